"""burn_in_results in a play: the files of the devices, and what a second burn-in makes of them."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from ansible_collections.trainyard.gpu.plugins.action import burn_in_results


def act(folder, hosts, check=False, **more):
    task = SimpleNamespace(
        args={"hosts": hosts, "results_dir": str(folder), **more},
        async_val=False,
        check_mode=check,
        diff=False,
        action="trainyard.gpu.burn_in_results",
        collections=[],
        environment=[],
    )
    loader = DataLoader()
    connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir="/nowhere"))
    return burn_in_results.ActionModule(
        task, connection, SimpleNamespace(check_mode=check), loader, Templar(loader, {}), None
    ).run(task_vars={})


def ended(answer):
    return {"rc": 0, "stdout_lines": ["a library says hello", json.dumps(answer), ""]}


def told(speed=1.0, ranks=2, serial="SN-00042"):
    return {
        "run": ended(
            {
                "software": "torch 2.4.0, CUDA None",
                "ranks": [
                    {
                        "kind": "cpu",
                        "index": number,
                        "model": "EPYC",
                        "rates": {"memory": [10.0 * speed] * 10},
                        "wrong": {"memory": 0},
                        "error": "",
                    }
                    for number in range(ranks)
                ],
                "host": {
                    "rates": {"read_local": [2.0]},
                    "model": "EPYC",
                    "wrong": {},
                    "faults": [],
                },
                "error": "",
            }
        ),
        "serial": serial,
    }


def verdicts(result):
    return {(entry["id"], entry["host"]): entry["verdict"] for entry in result["checks"]}


def test_each_device_has_a_file(tmp_path):
    result = act(tmp_path / "burn_in", {"host-a": told()})
    assert sorted(os.listdir(tmp_path / "burn_in")) == [
        "SN-00042-cpu-0.json",
        "SN-00042-cpu-1.json",
        "SN-00042.json",
    ]
    assert result["changed"] is False and len(result["devices"]) == 3
    document = json.loads((tmp_path / "burn_in/SN-00042-cpu-1.json").read_text(encoding="utf-8"))
    assert document["serial"] == "SN-00042-cpu-1"
    assert [entry["rates"] for entry in document["results"]] == [{"memory": 10.0}]


def test_the_second_run_is_compared_with_the_first(tmp_path):
    act(tmp_path, {"host-a": told()})
    same = act(tmp_path, {"host-a": told(0.95)})
    assert verdicts(same)["burn-in-speed", "host-a"] == "pass"
    slower = act(tmp_path, {"host-a": told(0.5)})
    assert verdicts(slower)["burn-in-speed", "host-a"] == "fail"
    assert "earlier burn-ins of it" in next(
        entry["found"] for entry in slower["checks"] if entry["id"] == "burn-in-speed"
    )
    # The slow result does not become what the next one is compared with.
    again = act(tmp_path, {"host-a": told(0.5)})
    assert verdicts(again)["burn-in-speed", "host-a"] == "fail"


def test_another_host_alone_is_compared_with_the_filed_ones(tmp_path):
    act(tmp_path, {"host-a": told(ranks=3)})
    slow = act(tmp_path, {"host-b": told(0.5, serial="SN-00043")})
    assert verdicts(slow) == {
        ("burn-in-results", "host-b"): "pass",
        ("burn-in-speed", "host-b"): "fail",
        ("burn-in-errors", "host-b"): "pass",
    }


def test_check_mode_writes_nothing(tmp_path):
    result = act(tmp_path / "burn_in", {"host-a": told()}, check=True)
    assert not (tmp_path / "burn_in").exists() and result["checks"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": 9}', "[" * 100000])
def test_a_file_that_cannot_be_read_is_no_result(tmp_path, text):
    (tmp_path / "SN-00042.json").write_text(text, encoding="utf-8")
    result = act(tmp_path, {"host-a": told()})
    assert set(verdicts(result).values()) == {"pass"}
    assert (
        json.loads((tmp_path / "SN-00042.json").read_text(encoding="utf-8"))["serial"] == "SN-00042"
    )


def test_a_host_that_answers_nothing(tmp_path):
    result = act(
        tmp_path, {"host-a": {"run": {"rc": 1, "msg": "docker exec failed"}, "serial": ""}}
    )
    assert verdicts(result)["burn-in-results", "host-a"] == "fail"


def test_network_cards_have_files_beside_the_other_devices(tmp_path):
    act(tmp_path, {"host-a": told(ranks=1)})
    rail = {"name": "mlx5_0", "rdma": True, "model": "15b3:1021", "serial": "a088c20300e31420"}
    answer = {
        "collective": "nccl",
        "facts": {"a": {"rails": [rail]}, "b": {"rails": [dict(rail, serial="")]}},
        "rails": [
            {"card": "mlx5_0", "hosts": ["a", "b"], "busbw_gb_s": 44.0, "wrong": 0, "error": ""}
        ],
    }
    result = act(tmp_path, {}, rails=answer)
    assert verdicts(result) == {("burn-in-rails", "a, b"): "pass"}
    assert sorted(os.listdir(tmp_path)) == [
        "SN-00042-cpu-0.json",
        "SN-00042.json",
        "a088c20300e31420.json",
        "b-mlx5_0.json",
    ]
    document = json.loads((tmp_path / "a088c20300e31420.json").read_text(encoding="utf-8"))
    (entry,) = document["results"]
    assert (entry["kind"], entry["name"], entry["host"]) == ("hca", "mlx5_0", "a")
    assert entry["rates"] == {"rail": 44.0}
