"""Defaults of roles training_container and training_image that follow from the hosts' GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from trusted import trust_as_template

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("groups, devices, gpus", [
    ({}, 8, "all"), ({}, 0, "none"), ({}, None, "none"), ({"gpu": []}, 8, "all"), ({"gpu": ["a"]}, 0, "all"), ({"gpu": ["b"]}, 8, "none"),
])
def test_gpus_by_default(groups, devices, gpus):
    """A host without a GPU is no fault, unless group gpu names it."""
    variables = {"inventory_hostname": "a", "groups": {"cluster": ["a", "b"], **groups}}
    variables.update({} if devices is None else {"cluster_host": {"nvidia_devices": devices}})
    default = yaml.safe_load((ROOT / "roles/training_container/defaults/main.yml").read_text(encoding="utf-8"))["training_container_gpus"]
    assert Templar(DataLoader(), variables).template(trust_as_template(default)) == gpus


@pytest.mark.parametrize("groups, devices, operations", [
    ({}, {"a": 8, "b": 0}, ["nccl"]), ({}, {"a": 0, "b": 0}, ["gloo"]), ({"gpu": ["b"]}, {"a": 0, "b": 8}, ["nccl"]), ({"gpu": ["b"]}, {"b": 0}, ["gloo"]),
    # Who is left out by --limit is not known; the first host that is known stands for all. Before any is known, on the controller, it is NCCL.
    ({}, {"b": 0}, ["gloo"]), ({}, {}, ["nccl"]),
])
def test_nccl_is_required_by_default_where_there_are_gpus(groups, devices, operations):
    hostvars = {host: {"cluster_host": {"nvidia_devices": devices[host]}} if host in devices else {} for host in "ab"}
    variables = {"groups": {"cluster": ["a", "b"], **groups}, "hostvars": hostvars}
    default = yaml.safe_load((ROOT / "roles/training_image/defaults/main.yml").read_text(encoding="utf-8"))["training_image_requires"]
    required = Templar(DataLoader(), variables).template({key: trust_as_template(value) if isinstance(value, str) else value for key, value in default.items()})
    assert required == {"frameworks": ["pytorch"], "controllers": ["gloo"], "tensor_operations": operations}
