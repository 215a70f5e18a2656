"""What role training_container asks of Docker, as far as variables decide it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

VARIABLES = yaml.safe_load((Path(__file__).parents[3] / "roles/training_container/vars/main.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("gpus, requests", [
    ("none", []),
    ("all", [{"driver": "nvidia", "count": -1, "capabilities": [["gpu"]]}]),
    ([0, 1], [{"driver": "nvidia", "device_ids": ["0", "1"], "capabilities": [["gpu"]]}]),
    (["GPU-3a23c669-1f69-c64e-cf85-44e9b07e7a2a"], [{"driver": "nvidia", "device_ids": ["GPU-3a23c669-1f69-c64e-cf85-44e9b07e7a2a"], "capabilities": [["gpu"]]}]),
])
def test_gpus(gpus, requests):
    templar = Templar(DataLoader(), {"training_container_gpus": gpus})
    assert templar.template(trust_as_template(VARIABLES["__training_container_gpu_requests"])) == requests


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
