"""What role training_container asks of Docker, as far as variables decide it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from trusted import trust_as_template

ROOT = Path(__file__).parents[3]
VARIABLES = yaml.safe_load((ROOT / "roles/training_container/vars/main.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("gpus, requests", [
    ("none", []),
    ("all", [{"driver": "nvidia", "count": -1, "capabilities": [["gpu"]]}]),
    ([0, 1], [{"driver": "nvidia", "device_ids": ["0", "1"], "capabilities": [["gpu"]]}]),
    (["GPU-3a23c669-1f69-c64e-cf85-44e9b07e7a2a"], [{"driver": "nvidia", "device_ids": ["GPU-3a23c669-1f69-c64e-cf85-44e9b07e7a2a"], "capabilities": [["gpu"]]}]),
])
def test_gpus(gpus, requests):
    templar = Templar(DataLoader(), {"training_container_gpus": gpus})
    assert templar.template(trust_as_template(VARIABLES["__training_container_gpu_requests"])) == requests


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


@pytest.mark.parametrize("asked, in_hosts, repaired, as_asked, anew", [
    (False, ["127.0.1.1"], False, True, {}),
    (False, ["10.0.0.11"], False, True, {}),
    # No longer asked for.
    (False, ["10.0.0.11"], True, False, {}),
    ("true", ["127.0.1.1"], False, False, {"own_name": "10.0.0.11"}),
    (True, ["10.0.0.11"], True, True, {"own_name": "10.0.0.11"}),
    # The container is left alone where nothing was to be repaired.
    (True, ["10.0.0.11"], False, True, {}),
    (True, [], False, True, {}),
    # The host has another address by now; somebody has added a line again.
    (True, ["10.0.0.99"], True, False, {"own_name": "10.0.0.11"}),
    (True, ["127.0.1.1", "10.0.0.11"], True, False, {"own_name": "10.0.0.11"}),
])
def test_own_name(asked, in_hosts, repaired, as_asked, anew):
    variables = {name: trust_as_template(VARIABLES[name]) for name in VARIABLES if "own_name" in name}
    templar = Templar(DataLoader(), dict(variables, training_container_repair_own_name=asked, cluster_address="10.0.0.11",
                                         cluster_host={"own_name_in_hosts": in_hosts, "own_name_repaired": repaired}))
    found = [templar.template(variables[name]) for name in ("__training_container_own_name_is_as_asked", "__training_container_own_name")]
    assert found == [as_asked, anew]
