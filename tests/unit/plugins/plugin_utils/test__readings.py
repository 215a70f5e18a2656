"""What hosts answer is data: hostile answers are named with host and fact, and reach no file."""

from __future__ import annotations

import copy

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _slurm_plan
from ansible_collections.trainyard.gpu.plugins.plugin_utils import _readings
from ansible_collections.trainyard.gpu.plugins.plugin_utils._readings import (
    ASCEND,
    HOST,
    IMAGE_RELAY,
    JOB_CONTAINER,
    SLURM,
    reading_faults,
)

MARK = "Epilog=/tmp/x"
LINES = [
    "a\n" + MARK,
    "a\r" + MARK,
    "\x1b]0;x\x07",
    "a\x00",
    "a\x7f",
    "a\x9b31m",
    "a\u2028b",
    "\ud800",
]
#: In a fact that reaches a file, also what has a meaning there.
WORDS = LINES + [
    "a " + MARK,
    'a"b',
    "a'b",
    "a,b",
    "a;b",
    "a=b",
    "a#b",
    "a$(id)",
    "a`id`",
    "a{b",
    "a|b",
    "a\\b",
    "-x",
    "a/../b c",
]
SERVICE = {
    "loaded": True,
    "active": True,
    "enabled": True,
    "state": "active/running",
    "user": "slurm",
    "runtime_directory": "slurmctld",
}
ON_SLURM = {
    "hostname": "gpu-a",
    "kernel": "6.1.0-37-amd64",
    "release": "22.05",
    "packages": {"munge": "0.5.15-2+deb12u1"},
    "candidates": {"slurmd": "22.05.8-4+deb12u3"},
    "hardware": {
        "cpus": 8,
        "boards": 1,
        "sockets": 1,
        "cores_per_socket": 8,
        "threads_per_core": 1,
        "real_memory": 64000,
    },
    "gpus": [{"path": "/dev/nvidia0", "minor": 0, "model": "NVIDIA H100 80GB HBM3"}],
    "container": "",
    "cgroup": {"version": 2, "usable": True, "why": "", "cores": True, "swap": True},
    "dbus": True,
    "services": {
        name: SERVICE for name in ("munge", "mariadb", "slurmdbd", "slurmctld", "slurmd", "sackd")
    },
    "files": {"/etc/slurm/slurmdbd.conf": "0" * 64},
    "texts": {"/etc/slurm/slurm.conf": ""},
    "munge_key": {"exists": True, "private": True, "digest": "0af"},
    "mail_program": "/usr/bin/mail",
    "pmix_folder": "/usr/lib/x86_64-linux-gnu/pmix2/lib",
    "pmix_link": "libpmix.so.2",
    "free_mib": {"/var/lib/slurm": 1},
    "record": {"packages": ["slurmd"]},
    "login_user": "ops",
    "missing_people": [],
}
ON_HOST = {
    "os": {"id": "debian", "version_id": "12", "codename": "bookworm", "id_like": []},
    "python_version": "3.11.2",
    "architecture": "x86_64",
    "kernel": "6.1.0-37-amd64",
    "cpus": 8,
    "memory_mib": 64000,
    "hostname": "gpu-a",
    "default_interface": "eth0",
    "interfaces": [
        {
            "name": "bond0.100",
            "addresses": [
                {"address": "10.0.0.11", "prefix": 24},
                {"address": "fe80::1", "prefix": 64},
            ],
            "up": True,
            "speed_mbit_s": None,
        }
    ],
    "rdma_ports": [
        {
            "device": "mlx5_0",
            "port": 1,
            "state": "active",
            "transport": "roce",
            "rate_gb_s": 400,
            "interfaces": ["ens1f0np0"],
            "gid_indexes": {"10.0.0.11": 3},
        }
    ],
    "own_name_in_hosts": ["127.0.1.1"],
    "boot_id": "0f6c-1",
    "resolved": {"gpu-b": {"addresses": ["10.0.0.12"], "error": ""}},
    "candidates": {"slurmd": "22.05.8-4+deb12u3"},
    "folders": {"/etc/apt/sources.list.d": {"a b": [1, 2]}},
}
ON_ASCEND = {
    "architecture": "aarch64",
    "environment": {"ASCEND_OPP_PATH": "/usr/local/Ascend/opp", "PATH": ["/usr/local/Ascend/bin"]},
}
ON_JOBS = {
    "packages": {"podman": "4.3.1+ds1-8+deb12u1"},
    "control_nodes": ["/dev/nvidiactl"],
    "npu_control_nodes": ["/dev/davinci_manager"],
    "npu_driver_paths": ["/usr/local/Ascend/driver"],
    "storage_type": "ext4",
    "podman_candidate": "4.9.3+ds1-1ubuntu0.2",
    "texts": {"/etc/subuid": "a:1:2\nb:3:4\n"},
    "record": {"files": {"x": "a\nb"}},
}
ON_REGISTRY = {
    "packages": {"nginx": "1.22"},
    "certificate_checksum": "a" * 64,
    "record": {"former": "a\nb"},
}
ALL = [
    (ON_SLURM, SLURM),
    (ON_HOST, HOST),
    (ON_ASCEND, ASCEND),
    (ON_JOBS, JOB_CONTAINER),
    (ON_REGISTRY, IMAGE_RELAY),
]


def places(value, kinds, path="", steps=()):
    """The texts of an answer: (path as the rules name it, keys and indexes that lead there).

    Those that are the content of files are left out.
    """
    if kinds.get(path) == _readings._TEXT:
        return
    if isinstance(value, str):
        yield path, steps
    elif isinstance(value, dict):
        for key, inner in value.items():
            below = (
                path + ".*="
                if path + ".*" in _readings._FREE
                else "%s.%s" % (path, key)
                if path
                else key
            )
            yield from places(inner, kinds, below, steps + (key,))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, kinds, path + "[]", steps + (index,))


def changed(value, steps, text):
    found = copy.deepcopy(value)
    inner = found
    for step in steps[:-1]:
        inner = inner[step]
    inner[steps[-1]] = text
    return found


@pytest.mark.parametrize("reading, kinds", ALL)
def test_every_text_of_an_answer_is_judged(reading, kinds):
    assert reading_faults("gpu-a", reading, kinds) == []
    tried = 0
    for path, steps in places(reading, kinds):
        # Names of a directory service have a backslash.
        for text in (
            [word for word in WORDS if path != "login_user" or "\\" not in word]
            if path in kinds
            else LINES
        ):
            (fault,) = reading_faults("gpu-a", changed(reading, steps, text), kinds)
            assert (
                fault.startswith("gpu-a: the host reports ")
                and "\n" not in fault
                and "\x1b" not in fault
                and "fact " + path.split(".*=")[0] in fault
            )
            tried += 1
    assert tried > 20


@pytest.mark.parametrize("reading, kinds", ALL)
def test_every_rule_has_a_fact(reading, kinds):
    used = {path for path, dummy in places(reading, kinds)}
    assert {
        path for path, kind in kinds.items() if kind != _readings._TEXT and not path.endswith(".*")
    } <= used | {"os.id_like[]"}


@pytest.mark.parametrize(
    "kinds, changes",
    [
        (SLURM, {"packages": {"munge\n" + MARK: "1"}}),
        (SLURM, {"packages": {"a b": "1"}}),
        (SLURM, {"\n" + MARK: 1}),
        (SLURM, {"services": {"a\nb": SERVICE}}),
        (HOST, {"rdma_ports": [{"gid_indexes": {"10.0.0.1\n": 3}}]}),
        (HOST, {"rdma_ports": [{"gid_indexes": {"fe80::1%a": 3}}]}),
        (ASCEND, {"environment": {"A=1; id #": "/x"}}),
        (HOST, {"hostname": "a" * 5000}),
        (HOST, {"resolved": {"a\nb": {}}}),
    ],
)
def test_keys_are_judged(kinds, changes):
    (fault,) = reading_faults("gpu-a", changes, kinds)
    assert fault.startswith("gpu-a: the host reports ") and len(fault) < 800


def test_a_caller_that_names_the_host():
    assert reading_faults("", {"hostname": "a\nb"}, HOST)[0].startswith(
        "the host reports 'a\\nb' as its fact hostname; expected one line"
    )


def contents(value):
    """All contents of files in a plan."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "content":
                yield inner
            else:
                yield from contents(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from contents(inner)


def test_no_answer_adds_a_line_to_a_file_of_slurm():
    plan = _slurm_plan.decide_slurm_plan
    members = [{"name": "a", "address": "10.0.0.11"}, {"name": "b", "address": "10.0.0.12"}]
    good = {"a": dict(ON_SLURM, hostname="gpu-a"), "b": dict(ON_SLURM, hostname="gpu-b")}
    requested = {"hosts": ["a", "b"], "scheduler": "a", "members": members}
    assert plan(good, requested)["problems"] == []
    for host in good:
        for dummy, steps in places(ON_SLURM, SLURM):
            for text in LINES[:3]:
                told = plan(dict(good, **{host: changed(good[host], steps, text)}), requested)
                assert [
                    entry
                    for entry in told["problems"]
                    if entry.startswith(host + ": the host reports ")
                ] and not told["complete"]
                assert [content for content in contents(told) if MARK in content] == []
