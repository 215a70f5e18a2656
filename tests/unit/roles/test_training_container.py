"""Defaults of roles training_container and training_image that follow from the hosts' GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from trusted import trust_as_template

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "groups, devices, npus, gpus",
    [
        ({}, 8, 0, "all"),
        ({}, 0, 0, "none"),
        ({}, None, 0, "none"),
        ({"gpu": []}, 8, 0, "all"),
        ({"gpu": ["a"]}, 0, 0, "all"),
        ({"gpu": ["a"]}, None, 0, "all"),
        ({"gpu": ["b"]}, 8, 0, "none"),
        ({"gpu": ["a"]}, 0, 8, "none"),
        ({}, 0, 8, "none"),
    ],
)
def test_gpus_by_default(groups, devices, npus, gpus):
    """A host without a GPU is no fault, unless group gpu names it and it has no NPU either."""
    variables = {"inventory_hostname": "a", "groups": {"cluster": ["a", "b"], **groups}}
    variables.update(
        {} if devices is None else {"cluster_host": {"nvidia_devices": devices, "npus": npus}}
    )
    default = yaml.safe_load(
        (ROOT / "roles/training_container/defaults/main.yml").read_text(encoding="utf-8")
    )["training_container_gpus"]
    assert Templar(DataLoader(), variables).template(trust_as_template(default)) == gpus


def a_member(slots, devices, reachable=True):
    return {"slots": slots, "nvidia_devices": devices, "reachable": reachable}


@pytest.mark.parametrize(
    "members, operations",
    [
        ([a_member(8, 8), a_member(1, 0)], ["nccl"]),
        ([a_member(1, 0), a_member(1, 0)], ["gloo"]),
        ([a_member(0, 0), a_member(8, 8)], ["nccl"]),
        ([a_member(0, 8), a_member(1, 0)], ["gloo"]),
        # The first training host that answers stands for all. Before any is known, on the
        # controller, it is NCCL.
        ([a_member(4, 0, reachable=False), a_member(1, 0)], ["gloo"]),
        ([a_member(4, 0, reachable=False)], ["nccl"]),
        ([], ["nccl"]),
        (None, ["nccl"]),
    ],
)
def test_nccl_is_required_by_default_where_there_are_gpus(members, operations):
    variables = {} if members is None else {"cluster_members": members}
    default = yaml.safe_load(
        (ROOT / "roles/training_image/defaults/main.yml").read_text(encoding="utf-8")
    )["training_image_requires"]
    required = Templar(DataLoader(), variables).template(
        {
            key: trust_as_template(value) if isinstance(value, str) else value
            for key, value in default.items()
        }
    )
    assert required == {
        "frameworks": ["pytorch"],
        "controllers": ["gloo"],
        "tensor_operations": operations,
    }
