"""Decision vendor_source: NVIDIA's repository for each system."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ansible_collections.trainyard.gpu.plugins.plugin_utils._vendor_source import (
    CONTAINER_URL,
    CUDA_FINGERPRINT,
    CUDA_URL,
    KINDS,
    UBUNTU_OF,
    facts,
    vendor_source,
)

ROLE = Path(__file__).parents[4] / "roles/package_sources"


def host(system="debian", version="12", machine="x86_64"):
    return {"os": {"id": system, "version_id": version}, "architecture": machine}


@pytest.mark.parametrize(
    "kind, system, version, machine, name, uri",
    [
        (
            "cuda",
            "debian",
            "12",
            "x86_64",
            "trainyard-nvidia-cuda",
            "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/",
        ),
        (
            "cuda_ubuntu",
            "debian",
            "12",
            "x86_64",
            "trainyard-nvidia-cuda-ubuntu",
            "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64/",
        ),
        (
            "cuda_ubuntu",
            "debian",
            "13",
            "x86_64",
            "trainyard-nvidia-cuda-ubuntu",
            "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/",
        ),
        (
            "cuda_ubuntu",
            "debian",
            "13",
            "aarch64",
            "trainyard-nvidia-cuda-ubuntu",
            "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/sbsa/",
        ),
        # One repository, one source: two that name different keys would stop apt.
        (
            "cuda_ubuntu",
            "ubuntu",
            "22.04",
            "x86_64",
            "trainyard-nvidia-cuda",
            "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64/",
        ),
        (
            "container_toolkit",
            "debian",
            "12",
            "aarch64",
            "trainyard-nvidia-container",
            "https://nvidia.github.io/libnvidia-container/stable/deb/arm64/",
        ),
    ],
)
def test_repositories_by_system(kind, system, version, machine, name, uri):
    source = vendor_source(kind, host(system, version, machine), {"container_fingerprint": "C95B"})
    assert (source["name"], source["uri"], source["problem"]) == (name, uri, "")
    assert source["key_checksums"] or source["key_fingerprints"]


def test_without_a_url_it_is_the_roles_own():
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text(encoding="utf-8"))
    assert (
        CUDA_URL
        == defaults["package_sources_nvidia_cuda_url"]
        == vendor_source("cuda", host())["folder"]
    )
    assert defaults["package_sources_nvidia_container_url"] == CONTAINER_URL


def test_the_key_is_that_of_the_directory():
    for kind, directory in (("cuda", "debian12"), ("cuda_ubuntu", "ubuntu2204")):
        source = vendor_source(kind, host(), {"cuda_url": "https://mirror.example.org/cuda/"})
        assert (
            source["key_url"]
            == "https://mirror.example.org/cuda/%s/x86_64/cuda-keyring_1.1-1_all.deb" % directory
        )
        assert source["key_checksums"] == ["sha256:" + facts().keyring(directory)["sha256"]]


def test_a_key_that_nobody_knows():
    source = vendor_source("cuda", host("debian", "11"))
    assert (
        source["key_checksums"] == []
        and "package_sources_nvidia_keyring_checksum" in source["problem"]
        and "debian11" in source["problem"]
    )
    assert vendor_source("cuda", host("debian", "11"), {"with_key": False})["problem"] == ""
    source = vendor_source(
        "cuda", host("debian", "11", "aarch64"), {"keyring_checksum": "sha256:1a sha256:2B"}
    )
    assert (
        source["key_checksums"] == ["sha256:1a", "sha256:2b"]
        and source["problem"] == ""
        and "/sbsa/" in source["key_url"]
    )
    assert vendor_source("container_toolkit", host())["key_fingerprints"] == []


def test_machines_that_nvidia_has_nothing_for():
    assert (
        vendor_source("cuda", host(machine="riscv64"))["problem"]
        == "NVIDIA has no packages for riscv64"
    )
    with pytest.raises(ValueError, match="is not a repository; use cuda"):
        vendor_source("cudnn", host())
    assert KINDS == ("cuda", "cuda_ubuntu", "container_toolkit")


def test_debian_s_ubuntu_has_nccl_and_debian_has_not():
    status = {row["dir"]: row["nccl_debs"] for row in facts().facts["nccl"]["dir_status"]}
    for debian, ubuntu in UBUNTU_OF.items():
        assert status[debian] == "none_found" and status[ubuntu] is True


def test_by_its_fingerprint_the_key_is_known_whatever_the_directory():
    """No checksum of cuda-keyring is known for Ubuntu 18.04, which images have."""
    source = vendor_source("cuda", host("ubuntu", "18.04"), {"cuda_fingerprint": CUDA_FINGERPRINT})
    assert (source["problem"], source["key_checksums"], source["key_fingerprints"]) == (
        "",
        [],
        [CUDA_FINGERPRINT],
    )
    assert source["key_url"] == source["uri"] + "3bf863cc.pub"
    # A checksum that is known comes first.
    assert (
        vendor_source("cuda", host(), {"cuda_fingerprint": CUDA_FINGERPRINT})["key_fingerprints"]
        == []
    )
    assert (
        yaml.safe_load((ROLE / "defaults/main.yml").read_text(encoding="utf-8"))[
            "package_sources_nvidia_cuda_key_fingerprint"
        ]
        == CUDA_FINGERPRINT
    )
