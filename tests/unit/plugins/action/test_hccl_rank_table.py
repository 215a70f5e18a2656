"""The module: hosts from the inventory and from what each has registered, and a file that is
written through managed_files.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible.errors import AnsibleActionFail
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from scripted_tools import run_module

from ansible_collections.trainyard.gpu.plugins.action.hccl_rank_table import ActionModule

SOURCE = json.loads(
    (Path(__file__).parents[3] / "fixtures/hccl/two-servers-of-8.json").read_text(encoding="utf-8")
)


def answer(last):
    return {
        "available": True,
        "devices": [
            {"id": number, "address": "192.168.%d.%d" % ((number % 4 + 1) * 10, last + number // 4)}
            for number in range(8)
        ],
    }


def hostvars():
    return {
        "gpu-b": {"cluster_address": "192.168.3.6", "ansible_host": "10.9.9.9", "npu": answer(1)},
        "gpu-a": {"ansible_host": "192.168.3.2", "npu": answer(3)},
        "head": {"npu": {"available": False}},
    }


def write(arguments, variables=None, groups=None, check=False):
    variables = variables or hostvars()
    task_vars = {"hostvars": variables, "groups": groups or {"cluster": ["gpu-b", "gpu-a"]}}
    task = SimpleNamespace(
        args=arguments,
        async_val=False,
        check_mode=check,
        diff=True,
        action="trainyard.gpu.hccl_rank_table",
        collections=[],
        environment=[],
    )
    loader = DataLoader()
    connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir="/nowhere"))
    action = ActionModule(
        task, connection, SimpleNamespace(check_mode=check), loader, Templar(loader, {}), None
    )
    ran = []

    def execute(name, module_args, task_vars):
        assert name == "trainyard.gpu.managed_files" and task_vars
        ran.append(module_args)
        return run_module("managed_files", module_args, check=check)

    action._execute_module = execute
    return action.run(task_vars=task_vars), ran


def test_ranks_are_in_the_order_of_the_inventory():
    told, ran = write({"registered": "npu", "format": "legacy"})
    assert (
        told["table"] == SOURCE and told["ranks"] == 16 and told["changed"] is False and ran == []
    )
    # Group npu has priority, so that a head without NPUs is not in the table.
    told, _ran = write(
        {"registered": "npu"},
        groups={"cluster": ["head", "gpu-a", "gpu-b"], "npu": ["gpu-a", "gpu-b"]},
    )
    assert [server["server_id"] for server in told["table"]["server_list"]] == [
        "192.168.3.2",
        "192.168.3.6",
    ]
    members = [{"name": "gpu-a", "address": "10.0.0.1"}]
    assert (
        write({"registered": "npu", "members": members})[0]["table"]["server_list"][0]["server_id"]
        == "10.0.0.1"
    )
    hosts = [{"server_id": "10.0.0.9", "devices": [{"id": 3, "address": "10.1.0.3"}]}]
    assert write({"hosts": hosts})[0]["ranks"] == 1


def test_it_is_written_only_when_it_differs(tmp_path):
    path = tmp_path / "hccl.json"
    told, _ran = write({"registered": "npu", "path": str(path)}, check=True)
    assert told["changed"] and told["changed_paths"] == [str(path)] and not path.exists()
    told, _ran = write({"registered": "npu", "path": str(path)})
    assert (
        told["changed"]
        and json.loads(path.read_text(encoding="utf-8")) == told["table"]
        and path.read_text(encoding="utf-8") == told["text"]
    )
    assert path.stat().st_mode & 0o777 == 0o644
    told, ran = write({"registered": "npu", "path": str(path)})
    assert not told["changed"] and told["changed_paths"] == [] and len(ran) == 1
    variables = hostvars()
    variables["gpu-a"]["npu"]["devices"][7]["address"] = "192.168.40.9"
    told, _ran = write({"registered": "npu", "path": str(path)}, variables)
    assert (
        told["changed"]
        and "192.168.40.9" in path.read_text(encoding="utf-8")
        and told["diff"][0]["before"] != told["diff"][0]["after"]
    )


@pytest.mark.parametrize(
    "arguments, groups, said",
    [
        (
            {"registered": "npu"},
            {"cluster": ["gpu-a", "head"]},
            "host 'head' has no result of npu_smi_info in variable 'npu'",
        ),
        (
            {"registered": "npu", "members": [{"name": "other", "address": "10.0.0.1"}]},
            None,
            "host 'other' has no result",
        ),
        ({"registered": "npu"}, {"all": []}, "no host was given"),
        ({"registered": "npu", "format": "1.2"}, None, "super_device_id"),
        ({"registered": "npu", "hosts": []}, None, "mutually exclusive"),
        ({}, None, "one of the following"),
        (
            {
                "registered": "npu",
                "members": [{"name": name, "address": "10.0.0.1"} for name in ("gpu-a", "gpu-b")],
            },
            None,
            "is in the rank table twice",
        ),
    ],
)
def test_refusals_write_nothing(arguments, groups, said, tmp_path):
    with pytest.raises(AnsibleActionFail, match=said):
        write({**arguments, "path": str(tmp_path / "hccl.json")}, groups=groups)
    assert not (tmp_path / "hccl.json").exists()
