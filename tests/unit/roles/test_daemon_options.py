"""The data about options of daemon.json: every option of dockerd is in it, and what it takes is
what dockerd takes.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ansible_collections.trainyard.gpu.plugins.module_utils import _input_kinds as kinds
from ansible_collections.trainyard.gpu.plugins.plugin_utils._input_rules import (
    RuleError,
    parse_options,
)

ROOT = Path(__file__).resolve().parents[3]
DATA = yaml.safe_load(
    (ROOT / "roles" / "docker_engine" / "meta" / "daemon_options.yml").read_text(encoding="utf-8")
)
KNOWN, OTHERS = parse_options(DATA, "docker_engine", "daemon_options")
# Of the command line alone.
ONLY_FLAGS = {"config-file", "help", "validate", "version"}


@pytest.mark.parametrize("name", ["20.10.24_help.txt", "28.5.1_flags.txt"])
def test_every_option_of_dockerd_is_known(name):
    text = (ROOT / "tests" / "fixtures" / "dockerd" / name).read_text(encoding="utf-8")
    flags = set(re.findall(r"^ *(?:-\w, )?--([a-z0-9-]+)", text, re.MULTILINE))
    assert len(flags) > 70 and flags - ONLY_FLAGS - set(KNOWN) - set(OTHERS) == set()


def test_data_that_is_misspelt_is_no_data():
    for wrong in (
        {},
        {"daemon_options": {}},
        {"daemon_options": {"a": "boolen"}, "other_names": {}},
        {"daemon_options": {"a": "text"}, "other_names": {"b": "c"}},
    ):
        with pytest.raises(RuleError, match="docker_engine: meta/daemon_options.yml"):
            parse_options(wrong, "docker_engine", "daemon_options")


# What dockerd 20.10.24 said about a file with it.
TAKEN = [
    {"live-restore": True},
    {"mtu": 0},
    {"mtu": 9000},
    {"log-opts": {"max-file": "3"}},
    {"default-shm-size": "64M"},
    {"default-shm-size": "1.5g"},
    {"default-shm-size": "64 MB"},
    {"default-shm-size": "64"},
    {"log-level": "WARNING"},
    {"log-level": ""},
    {"ip": ""},
    {"dns": []},
    {"dns": ["fd00::53"]},
    {"bip": "172.30.0.1/16"},
    {"bip": ""},
    {"shutdown-timeout": -1},
    {"oom-score-adjust": -500},
    {"runtimes": {"nvidia": {"path": "x", "runtimeArgs": []}}},
    {"builder": {"gc": {"enabled": True}}},
    {"features": {"buildkit": True}},
    {"default-ulimits": {"nofile": {"Name": "nofile", "Hard": 1, "Soft": 1}}},
    {"default-address-pools": [{"base": "10.0.0.0/8", "size": 24}]},
    {"cluster-store": "x"},
    {"containerd-plugins-namespace": "x"},
    {"labels": ["a=b"]},
    {"registry-mirrors": ["https://m.example/path"]},
    {"hosts": ["tcp://0.0.0.0:2375"]},
    {"exec-root": "/var/run/docker"},
    {"pidfile": "/run/docker.pid"},
]
# The second half it passes over without a word, or fails by it later.
REFUSED = [
    {"live-restore": "true"},
    {"mtu": "1500"},
    {"mtu": 1500.0},
    {"mtu": True},
    {"log-opts": {"max-file": 3}},
    {"log-opts": {"a": True}},
    {"default-shm-size": 64},
    {"default-shm-size": "x"},
    {"dns": ["999.1.1.1"]},
    {"dns": "1.1.1.1"},
    {"dns": ["fe80::1%eth0"]},
    {"log-level": "loud"},
    {"ip": "x"},
    {"default-gateway": "x"},
    {"features": {"buildkit": "true"}},
    {"default-ulimits": {"nofile": 1}},
    {"exec-opts": "native.cgroupdriver=systemd"},
    {"default-ipc-mode": "host"},
    {"default-cgroupns-mode": "x"},
    {"max-concurrent-downloads": -1},
    {"runtimes": {"nvidia": "x"}},
    {"runtimes": []},
    {"experimental": "x"},
    {"tlsverify": 1},
    {"userns-remap": True},
    {"log-drivr": "x"},
    {"mtuu": 1},
    {"Log-Driver": "x"},
    {"Log Driver": "x"},
    {"": "x"},
    {"graph": "/x"},
    {"registry-mirror": ["https://x"]},
    {"insecure-registry": ["x"]},
    {"host": ["unix:///x"]},
    {"label": ["a=b"]},
    {"liveRestore": True},
    {"data-root": None},
    {"bip": "x"},
    {"fixed-cidr": "10.0.0.0"},
    {"registry-mirrors": ["m.example"]},
    {"registry-mirrors": ["https://u:p@m.example/"]},
    {"exec-root": "/etc"},
    {"exec-root": "/run"},
    {"exec-root": "/run/../etc"},
    {"pidfile": "/etc/passwd"},
    {"mtu": -5},
    {"cdi-spec-dirs": ["cdi"]},
]


def test_what_dockerd_takes_and_what_not():
    assert [options for options in TAKEN if kinds.option_faults(options, KNOWN, OTHERS)] == []
    assert [
        options for options in REFUSED if len(kinds.option_faults(options, KNOWN, OTHERS)) != 1
    ] == []


def test_other_names_are_left_to_dockerd():
    assert kinds.option_faults({"some-new-option": 1, "bip4": "x"}, KNOWN, OTHERS) == []
    assert kinds.option_faults({"live_restore": True}, KNOWN, OTHERS) == [
        ("live_restore", "the name of an option", "did you mean live-restore?")
    ]
