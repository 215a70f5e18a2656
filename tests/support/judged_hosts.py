"""Hosts that judge_hosts is to judge, made up by tests, and the judgement as ansible-playbook has
it: real templates, all roles' defaults.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from types import SimpleNamespace

from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from ansible_collections.trainyard.gpu.plugins.action import judge_hosts

RULES = Path(__file__).parents[2] / "roles/preflight/meta"


class RememberingLoader(DataLoader):
    """Parses a file again where it has changed: of a judgement, two thirds are the same forty
    files. The plugin itself works on what the loader has.
    """

    parsed = {}

    # With the signature of this ansible-core, which the plugin asks for: trusted_as_template came
    # with 2.19.
    @functools.wraps(DataLoader.load_from_file)
    def load_from_file(self, file_name, **options):
        found = os.stat(file_name)
        key = file_name, found.st_mtime_ns, found.st_size, options.get("trusted_as_template")
        if key not in self.parsed:
            self.parsed[key] = super().load_from_file(
                file_name, **dict(options, cache="none", unsafe=True)
            )
        return self.parsed[key]


class Hostvars(dict):
    raw_get = dict.__getitem__


def a_host(name="a", address="10.0.0.11", **changes):
    """Return the variables of a host against which nothing speaks."""
    facts = {
        "os": {"id": "debian", "version_id": "12"},
        "python_version": "3.11.2",
        "architecture": "x86_64",
        "cpus": 2,
        "gpus": 0,
        "nvidia_devices": 0,
        "npus": 0,
        "hostname": name,
        "own_name_in_hosts": [],
        "cgroup": {"version": 2, "usable": True, "why": "", "cores": True, "swap": True},
        "interfaces": [
            {
                "name": "eth0",
                "up": True,
                "addresses": [{"address": address, "prefix": 24}],
                "mtu": 1500,
            }
        ],
        "network_cards": [],
    }
    answer = {
        "labelled_images": [],
        "candidates": {},
        "docker_config_error": "",
        "docker_config_warnings": [],
        "disk_free_mib": {
            "/var/lib/docker": 50000,
            "/var/lib/trainyard/containers": 50000,
            "/var/tmp": 50000,
        },
        "disk_devices": {"/var/lib/docker": 1, "/var/lib/trainyard/containers": 2, "/var/tmp": 3},
        "listeners": [],
        "connections": [],
        "account_clashes": [],
        "resolved": {name: {"addresses": [address], "error": ""}},
    }
    variables = {
        "inventory_hostname": name,
        "cluster_host": facts,
        "asked": answer,
        "cluster_network": "10.0.0.0/24",
        "cluster_fabric_network": "10.0.0.0/24",
        "cluster_address": address,
        "training_container_gpus": "none",
    }
    for path, value in changes.items():
        target = {"facts": facts, "answer": answer, "vars": variables}[path.split("_", 1)[0]]
        target[path.split("_", 1)[1]] = value
    return variables


def judge(
    *hosts,
    rules=("host_rules.yml",),
    members=None,
    play=None,
    findings=(),
    check_mode=False,
    only=None,
    **options,
):
    """Return the result of judge_hosts about these hosts, by all rules or by C(only) one."""
    names = [host["inventory_hostname"] for host in hosts]
    members = members or [
        {
            "name": host["inventory_hostname"],
            "address": host["cluster_address"],
            "interface": "eth0",
            "fabric_address": host["cluster_address"],
            "fabric_interface": "eth0",
            "fabric_rdma": None,
            "slots": host.get("slots", 1),
            "nvidia_devices": host["cluster_host"]["nvidia_devices"],
            "reachable": True,
            "in_play": True,
        }
        for host in hosts
    ]
    for host in hosts:
        host["cluster_members"] = members
        host["asked"]["resolved"] = dict(
            {name: {"addresses": [], "error": "unknown"} for name in names},
            **host["asked"]["resolved"],
        )
    cluster = [member["name"] for member in members]
    hostvars = Hostvars(
        {name: {"inventory_hostname": name, "ansible_host": "192.0.2.99"} for name in cluster}
    )
    hostvars.update({host["inventory_hostname"]: host for host in hosts})
    task_vars = dict(
        hosts[0],
        hostvars=hostvars,
        groups={"cluster": cluster},
        ansible_play_hosts=names,
        ansible_play_hosts_all=play or cluster,
    )
    loader = RememberingLoader()
    task = SimpleNamespace(
        args=dict(
            {
                "rules": [str(RULES / name) for name in rules],
                "answers": "asked",
                "findings": list(findings),
            },
            **options,
        ),
        async_val=False,
        check_mode=check_mode,
        diff=False,
        action="trainyard.gpu.judge_hosts",
        collections=[],
        environment=[],
    )
    connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir="/nowhere"))
    action = judge_hosts.ActionModule(
        task,
        connection,
        SimpleNamespace(check_mode=check_mode),
        loader,
        Templar(loader, task_vars),
        None,
    )
    if only:
        all_rules = action._rules
        action._rules = lambda *args: [rule for rule in all_rules(*args) if rule[1]["id"] == only]
    return action.run(task_vars=task_vars)
