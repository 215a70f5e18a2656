"""host_info, run as Ansible runs it, against this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.plugins.modules import host_info

ROOT = Path(__file__).parents[4]


def run(**arguments):
    arguments.update(_ansible_check_mode=True, _ansible_remote_tmp="/tmp")
    done = subprocess.run(
        [sys.executable, str(ROOT / "plugins/modules/host_info.py")], input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}), capture_output=True, text=True,
        check=False, env=dict(os.environ, PYTHONPATH=str(ROOT / ".dev")),
    )
    return json.loads(done.stdout)


@pytest.fixture(name="port")
def _port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_what_every_host_tells():
    told = run()
    assert told["changed"] is False
    assert told["cpus"] >= 1 and told["memory_mib"] > 100 and told["os"]["id"] and told["boot_id"] and told["hostname"]
    assert told["python_version"] == "%d.%d.%d" % sys.version_info[:3]
    assert {"address": "127.0.0.1", "prefix": 8} in next(entry for entry in told["interfaces"] if entry["name"] == "lo")["addresses"]
    assert (told["resolved"], told["connections"], told["listeners"], told["disk_free_mib"], told["labelled_images"]) == ({}, [], [], {}, [])


def test_names_and_connections(port):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        told = run(
            names=["localhost", "no-such-host.invalid"], own_name=True, timeout=1,
            connect=[{"name": "there", "address": "127.0.0.1", "port": port}, {"name": "refuses", "address": "127.0.0.1", "port": unused.getsockname()[1]},
                     {"name": "no address", "address": "no-such-host.invalid", "port": 22}],
        )
    assert "127.0.0.1" in told["resolved"]["localhost"]["addresses"]
    assert told["resolved"]["no-such-host.invalid"]["addresses"] == [] and told["resolved"]["no-such-host.invalid"]["error"]
    assert told["hostname"] in told["resolved"]
    assert [entry["state"] for entry in told["connections"]][:2] == ["open", "refused"]
    assert told["connections"][2]["state"] in ("unreachable", "timeout") and told["connections"][2]["error"]


def test_who_listens(port):
    (entry,) = run(ports=[port])["listeners"]
    assert (entry["address"], entry["port"], entry["pid"]) == ("127.0.0.1", port, os.getpid())
    assert entry["process"] and entry["container_id"] == ""


def test_space_of_the_nearest_parent_that_exists(tmp_path):
    told = run(paths=[str(tmp_path), str(tmp_path / "not/there")])
    assert set(told["disk_free_mib"]) == {str(tmp_path), str(tmp_path / "not/there")}
    assert len(set(told["disk_free_mib"].values())) == 1
    assert "not absolute" in run(paths=["relative"])["msg"]


def test_interfaces_without_iproute2():
    interfaces = {entry["name"]: entry for entry in host_info.interfaces_by_ioctl()}
    assert interfaces["lo"] == {"name": "lo", "addresses": [{"address": "127.0.0.1", "prefix": 8}], "up": True}
