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
