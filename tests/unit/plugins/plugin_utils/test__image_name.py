"""Versions in the names of well-known public images."""

from __future__ import annotations

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _compat
from ansible_collections.trainyard.gpu.plugins.plugin_utils._image_name import (
    NOTHING,
    versions_in_name,
)

FACTS = _compat.load_facts()
DEVEL, RUNTIME = {"nvcc": True}, {"nvcc": False}


@pytest.mark.parametrize(
    "image, said",
    [
        (
            "apulistech/horovod:0.19.2-tf2.2.0-torch1.5.0-py3.6.9-gpu",
            {"horovod": "0.19.2", "tensorflow": "2.2.0", "torch": "1.5.0", "python": "3.6.9"},
        ),
        (
            "pytorch/pytorch:1.10.2-cuda11.3-cudnn8-devel",
            dict(DEVEL, torch="1.10.2", cuda="11.3", cudnn="8"),
        ),
        (
            "pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime",
            dict(RUNTIME, torch="2.1.0", cuda="12.1", cudnn="8"),
        ),
        (
            "docker.io/pytorch/pytorch:2.4.0-cuda12.4-cudnn9-devel@sha256:" + "0" * 64,
            dict(DEVEL, torch="2.4.0", cuda="12.4", cudnn="9"),
        ),
        (
            "nvidia/cuda:11.0.3-devel-ubuntu18.04",
            dict(DEVEL, cuda="11.0.3", ubuntu="18.04", python="3.6"),
        ),
        (
            "nvcr.io/nvidia/cuda:12.2.0-runtime-ubuntu20.04",
            dict(RUNTIME, cuda="12.2.0", ubuntu="20.04", python="3.8"),
        ),
        (
            "nvidia/cuda:11.8.0-cudnn8-devel-ubuntu22.04",
            dict(DEVEL, cuda="11.8.0", cudnn="8", ubuntu="22.04", python="3.10"),
        ),
        (
            "nvidia/cuda:12.4.1-base-ubuntu22.04",
            dict(RUNTIME, cuda="12.4.1", ubuntu="22.04", python="3.10"),
        ),
        ("nvidia/cuda:11.4.3-devel-rockylinux8", dict(DEVEL, cuda="11.4.3")),
        ("horovod/horovod:0.28.1", {"horovod": "0.28.1"}),
        (
            "horovod/horovod:0.18.2-tf1.14.0-torch1.2.0-mxnet1.5.0-py3.6-gpu",
            {"horovod": "0.18.2", "tensorflow": "1.14.0", "torch": "1.2.0", "python": "3.6"},
        ),
        ("tensorflow/tensorflow:2.11.0-gpu", {"tensorflow": "2.11.0"}),
        ("tensorflow/tensorflow:latest-gpu", {}),
        ("python:3.8.18-slim-bookworm", {"python": "3.8.18"}),
        ("python:3.11", {"python": "3.11"}),
        ("ubuntu:18.04", {"ubuntu": "18.04", "python": "3.6"}),
        ("ubuntu:jammy", {"ubuntu": "22.04", "python": "3.10"}),
        ("debian:12-slim", {"python": "3.11"}),
        ("debian:bookworm", {"python": "3.11"}),
        ("rayproject/ray:2.9.0-py310-cu118", {"python": "3.10", "cuda": "11.8"}),
        (
            "rocm/pytorch:rocm6.0_ubuntu20.04_py3.9_pytorch_2.1.1",
            {"ubuntu": "20.04", "python": "3.9", "torch": "2.1.1"},
        ),
        ("huggingface/transformers-pytorch-gpu:4.35.2", {}),
        (
            "mosaicml/pytorch:2.1.2_cu121-python3.10-ubuntu20.04",
            {"torch": "2.1.2", "cuda": "12.1", "python": "3.10", "ubuntu": "20.04"},
        ),
        ("deepspeed/deepspeed:v072_torch112_cu117", {"cuda": "11.7"}),
        (
            "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.1.0-gpu-py310-cu121-ubuntu20.04-ec2",
            {"python": "3.10", "cuda": "12.1", "ubuntu": "20.04"},
        ),
        ("gcr.io/deeplearning-platform-release/pytorch-cu113.py37:latest", {}),
        ("bitnami/pytorch:2.1.0-debian-11-r5", {"torch": "2.1.0"}),
        ("jupyter/base-notebook:ubuntu-22.04", {"ubuntu": "22.04"}),
        ("continuumio/miniconda3:24.1.2-0", {}),
        # NGC's tags begin with a month, and say nothing of minor versions.
        ("nvcr.io/nvidia/pytorch:24.08-py3", {}),
        ("registry.example:5000/mirror/pytorch:24.08-py3", {}),
        ("nvcr.io/nvidia/tensorflow:24.08-tf2-py3", {}),
        ("nvcr.io/nvidia/clara-train-sdk:v3.1.01", {}),
        # A name of one's own.
        (
            "registry.example:5000/lab/train:torch1.10.2-cu113-py3.8",
            {"torch": "1.10.2", "cuda": "11.3", "python": "3.8"},
        ),
        (
            "lab/train:cuda-11.3-devel-ubuntu-18.04",
            dict(DEVEL, cuda="11.3", ubuntu="18.04", python="3.6"),
        ),
        ("lab/train:cuda11.3-ubuntu1804", {"cuda": "11.3", "ubuntu": "18.04", "python": "3.6"}),
        ("lab/train:cuda11.3-cu118", {}),
        ("lab/train:cuda11.3-cuda11.3.1", {"cuda": "11.3.1"}),
        ("lab/train:py3.6-py3.8-ubuntu18.04", {"ubuntu": "18.04"}),
        ("lab/train:devel", {}),
        ("lab/train:runtime-base", {}),
        ("lab/train:cu12-py3-tf2", {}),
        ("lab/train", {}),
        ("lab/cuda11.3", {}),
        ("lab/train:cuda11.3-devel-runtime", {"cuda": "11.3"}),
        ("lab/train:base-cuda11.3", {"cuda": "11.3"}),
    ],
)
def test_names(image, said):
    assert versions_in_name(*_compat.split_image(image)) == dict(NOTHING, **said)


def test_preflight_knows_what_the_name_says():
    image = _compat.image_fit(
        "apulistech/horovod:0.19.2-tf2.2.0-torch1.5.0-py3.6.9-gpu",
        FACTS,
        {},
        _compat.ImageRequest(packages=["cmake==3.31.6"]),
    )
    assert (image["python"], image["torch"], image["tensorflow"], image["horovod"]) == (
        "3.6.9",
        "1.5.0",
        "2.2.0",
        "0.19.2",
    )
    assert (
        image["too_new"] == ["cmake==3.31.6 (3.28.4 is the last for Python 3.6)"]
        and image["nvcc"] is None
    )
    image = _compat.image_fit("nvidia/cuda:11.0.3-devel-ubuntu18.04", FACTS, {})
    assert (image["cuda"], image["directory"], image["nccl_build"], image["nvcc"]) == (
        "11.0.3",
        "ubuntu1804",
        "2.8.4-1+cuda11.0",
        True,
    )
    assert image["driver_floor"]
    assert (
        _compat.image_fit("pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime", FACTS, {})["nvcc"]
        is False
    )
    # What the user says comes first, then the facts.
    assert (
        _compat.image_fit(
            "nvidia/cuda:11.0.3-devel-ubuntu18.04", FACTS, {"cuda": "11.1", "python": "3.8"}
        )["cuda"]
        == "11.1"
    )
    ngc = _compat.image_fit("nvcr.io/nvidia/tensorflow:20.03-tf2-py3", FACTS, {})
    assert (ngc["cuda"], ngc["horovod"], ngc["nvcc"]) == ("10.2.89", "0.19.0", None)
