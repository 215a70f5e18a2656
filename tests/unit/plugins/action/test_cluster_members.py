"""The members as ansible-playbook works them out, a second time included."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from ansible_collections.trainyard.gpu.plugins.action.cluster_members import ActionModule


def members(gpus, **variables):
    answer = {"item": "a", "gpus": gpus, "interfaces": [{"name": "eth0", "up": True, "addresses": [{"address": "10.0.0.11", "prefix": 24}]}]}
    task_vars = {"hostvars": {"a": dict({"ansible_host": "10.0.0.11"}, **variables)}, "groups": {"cluster": ["a"]}, "ansible_play_hosts": ["a"]}
    task = SimpleNamespace(args={"head": "a", "answers": [answer]}, async_val=False, check_mode=True, diff=False, action="trainyard.gpu.cluster_members",
                           collections=[], environment=[])
    connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir="/nowhere"))
    loader = DataLoader()
    action = ActionModule(task, connection, SimpleNamespace(check_mode=True), loader, Templar(loader, task_vars), None)
    (member,) = action.run(task_vars=task_vars)["members"]
    return member["slots"], member["slots_counted"]


@pytest.mark.parametrize("variables, gpus, expected", [
    ({}, 0, (1, True)), ({}, 8, (8, True)), ({"cluster_slots": 4}, 8, (4, False)), ({"cluster_slots": "4"}, 0, (4, False)),
    # Counted before the driver came, and again afterwards.
    ({"cluster_slots": 1, "__cluster_slots_are_counted": True}, 8, (8, True)),
    ({"cluster_slots": 4, "__cluster_slots_are_counted": False}, 8, (4, False)),
])
def test_slots(variables, gpus, expected):
    assert members(gpus, **variables) == expected
