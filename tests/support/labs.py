"""The labs of docs/getting-started.md as whole clusters: their inventories from the page, and facts
of such hosts, as modules report them on Ubuntu 24.04.

No test runs such hosts. What the facts have of them is from outputs of real hosts in
tests/fixtures, from specifications, and from plugins/plugin_utils/compat.
"""

from __future__ import annotations

import copy
import functools
import re
from pathlib import Path
from types import SimpleNamespace

import yaml
from ansible.inventory.helpers import get_group_vars
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from judged_hosts import RULES, a_host, judge
from judged_input import Campaign, HostVars
from trusted import trusted

from ansible_collections.trainyard.gpu.plugins.action.cluster_members import ActionModule

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/getting-started.md"
#: PCI device id, model, GPUs of a host, and sockets near each GPU.
H100, RTX_4090, V100 = (
    ("2330", "NVIDIA H100 80GB HBM3"),
    ("2684", "NVIDIA GeForce RTX 4090"),
    ("1db5", "Tesla V100-SXM2-32GB"),
)
KERNEL = "6.8.0-85-generic"
NOBLE = {"id": "ubuntu", "version_id": "24.04", "codename": "noble", "id_like": ["debian"]}
JAMMY = {"id": "ubuntu", "version_id": "22.04", "codename": "jammy", "id_like": ["debian"]}
CGROUP = {"version": 2, "usable": True, "why": "", "cores": True, "swap": True}


def inventory_of(title: str, folder: Path) -> InventoryManager:
    """The inventory below a heading of the page, as ansible-playbook reads it."""
    section = PAGE.read_text(encoding="utf-8").partition("### %s\n" % title)[2]
    block = re.search(r"```yaml\n(cluster:\n.*?)```", section, re.DOTALL).group(1)
    path = folder / "hosts.yml"
    path.write_text(block, encoding="utf-8")
    return InventoryManager(loader=DataLoader(), sources=[str(path)])


def interface(name: str, address: str, prefix: int = 24, speed: int | None = None) -> dict:
    return {
        "name": name,
        "up": True,
        "mtu": 1500,
        "speed_mbit_s": speed,
        "addresses": [{"address": address, "prefix": prefix}] if address else [],
    }


def rail(number: int, name: str) -> dict:
    """An InfiniBand port of 400 Gb/s."""
    return {
        "device": "mlx5_%d" % number,
        "port": 1,
        "state": "active",
        "transport": "infiniband",
        "rate_gb_s": 400.0,
        "interfaces": [name],
        "gid_indexes": {},
    }


def host_facts(name: str, interfaces: list, gpus: int, **more) -> dict:
    """What host_info returns for a fresh Ubuntu server."""
    facts = {
        "os": dict(NOBLE),
        "python_version": "3.12.3",
        "architecture": "x86_64",
        "kernel": KERNEL,
        "cpus": 128,
        "memory_mib": 1031000,
        "hostname": name,
        "interfaces": [
            interface("lo", "127.0.0.1", 8),
            *interfaces,
        ],
        "default_interface": interfaces[0]["name"],
        "rdma_ports": [],
        "rdma_beside_gpus": {},
        # By Ubuntu's installer.
        "own_name_in_hosts": ["127.0.1.1"],
        "own_name_repaired": False,
        "gpus": 0,
        "nvidia_devices": gpus,
        "npus": 0,
        "fabric_adapters": 0,
        "network_cards": [],
        "virtual_machine": False,
        "programs": {"exportfs": False, "mount.nfs4": False, "setquota": False},
        "nfs_transports": [],
        "container": False,
        "cgroup": dict(CGROUP),
        "candidates": {"slurmd": "23.11.4-1.2ubuntu5"},
    }
    return dict(facts, **more)


def stack_facts(device_id: str, gpus: int, **more) -> dict:
    """What gpu_stack_info returns for a fresh server: GPUs without a driver, and Ubuntu's
    packages.
    """
    package = {"version": "6.8.0-85.85", "held": False, "broken": False, "by_nvidia": False}
    facts = {
        "gpus": [
            {"bus_id": "0000:%02x:00.0" % (0x1B + number), "device_id": device_id, "model": ""}
            for number in range(gpus)
        ],
        "nvswitches": 0,
        "loaded": "",
        "loaded_is_open": None,
        "modules": {KERNEL: ""},
        "running_kernel": KERNEL,
        "next_kernel": KERNEL,
        "headers": [KERNEL],
        "dkms": [],
        "library": "",
        "nouveau_loaded": False,
        "secure_boot": None,
        "module_keys_enrolled": [],
        "packages": {
            name: dict(package) for name in ("linux-image-" + KERNEL, "linux-image-generic")
        },
        "driver_sources": [],
        "driver_pinned": "",
        "repositories": [],
        "foreign_sources": [],
        "old_keys": [],
        "docker": "",
        "container_toolkit": "",
        "container_runtimes": [],
        "cdi": [],
        "services": {},
        "record": {},
        "files": {},
        "reboot_required_reason": "",
    }
    return dict(facts, **more)


def slurm_facts(name: str, gpus: int, model: str, **more) -> dict:
    """What slurm_host_info returns for such a server with two sockets of 32 cores, before Slurm is
    installed.
    """
    service = {
        "loaded": False,
        "active": False,
        "enabled": False,
        "state": "inactive/dead",
        "user": "",
        "runtime_directory": "",
    }
    hardware = {
        "cpus": 128,
        "boards": 1,
        "sockets": 2,
        "cores_per_socket": 32,
        "threads_per_core": 2,
        "real_memory": 1031000,
    }
    facts = {
        "hostname": name,
        "kernel": KERNEL,
        "release": "23.11",
        "packages": {},
        "candidates": {"slurmd": "23.11.4-1.2ubuntu5"},
        "hardware": dict(hardware),
        "kernel_hardware": dict(hardware),
        "gpus": [
            {"path": "/dev/nvidia%d" % number, "minor": number, "model": model}
            for number in range(gpus)
        ],
        "gpu_sockets": {str(number): [number * 2 // gpus] for number in range(gpus)},
        "container": "",
        "cgroup": dict(CGROUP),
        "dbus": True,
        "services": {
            unit: dict(service)
            for unit in ("munge", "mariadb", "slurmdbd", "slurmctld", "slurmd", "sackd")
        },
        "texts": {},
        "record": {},
        "munge_key": {"exists": False, "private": False, "digest": ""},
        "mail_program": "",
        "pmix_folder": "",
        "pmix_link": "",
    }
    return dict(facts, **more)


@functools.lru_cache(maxsize=1)
def role_defaults() -> dict:
    """Defaults and variables of all roles, as templates."""
    found = {}
    for kind in ("defaults", "vars"):
        for path in sorted((ROOT / "roles").glob("*/%s/main.yml" % kind)):
            found.update(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    return trusted(found)


class Lab:
    """A lab of the page.

    C(facts), C(stacks) and C(slurm) are what the modules report, by host; C(variables) are those of
    the inventory.
    """

    def __init__(self, title: str, folder: Path):
        inventory = inventory_of(title, folder)
        self.groups = {
            name: [host.name for host in group.get_hosts()]
            for name, group in inventory.groups.items()
        }
        self.variables = {}
        for host in inventory.get_hosts():
            given = {**get_group_vars(host.get_groups()), **host.vars}
            own = {
                key: value
                for key, value in given.items()
                if key not in ("inventory_file", "inventory_dir")
            }
            self.variables[host.name] = own
        self.facts, self.stacks, self.slurm = {}, {}, {}
        # What preflight asks a host beside its facts, by host.
        self.asked = {}

    @property
    def hosts(self) -> list:
        return self.groups["cluster"]

    def set(self, **variables) -> None:
        """Variables of group cluster."""
        for its in self.variables.values():
            its.update(copy.deepcopy(variables))

    def of_host(self, name: str) -> dict:
        return dict(
            trusted(self.variables[name]),
            inventory_hostname=name,
            groups=self.groups,
            inventory_dir="/inventories/lab",
        )

    def input(self, campaign: Campaign) -> list:
        """The findings of inventory_check."""
        hostvars = HostVars({name: self.of_host(name) for name in self.hosts})
        return campaign.judge(self.groups, hostvars)["findings"]

    def value(self, host: str, name: str, role: str = "", **more):
        """A variable of a role on a host. With C(role) its text may look up files of the role."""
        variables = {**role_defaults(), **self.of_host(host), **more}
        loader = DataLoader()
        loader.set_basedir(str(ROOT / "roles" / role / "files") if role else str(ROOT))
        return Templar(loader, variables).template(variables[name])

    def members(self) -> dict:
        """The result of cluster_members."""
        hostvars = {name: self.of_host(name) for name in self.hosts}
        arguments = {
            "head": self.value(self.hosts[0], "cluster_head"),
            "network": self.variables[self.hosts[0]].get("cluster_network", ""),
            "fabric_network": self.variables[self.hosts[0]].get("cluster_fabric_network", ""),
            "answers": [dict(copy.deepcopy(self.facts[name]), item=name) for name in self.hosts],
        }
        task = SimpleNamespace(
            args=arguments,
            async_val=False,
            check_mode=True,
            diff=False,
            action="trainyard.gpu.cluster_members",
            collections=[],
            environment=[],
        )
        variables = {
            "hostvars": hostvars,
            "groups": self.groups,
            "ansible_play_hosts": self.hosts,
            "ansible_play_hosts_all": self.hosts,
        }
        action = ActionModule(
            task,
            SimpleNamespace(_shell=SimpleNamespace(tmpdir="/nowhere")),
            SimpleNamespace(check_mode=True),
            DataLoader(),
            Templar(DataLoader(), variables),
            None,
        )
        return action.run(task_vars=variables)

    def preflight(self, only: str | None = None) -> list:
        """The findings of all rules of preflight, or of one, that are no pass and no skip."""
        told = self.members()
        hosts = []
        for name in self.hosts:
            member = next(each for each in told["members"] if each["name"] == name)
            has_gpus = self.facts[name]["nvidia_devices"] > 0
            given = {
                "training_container_gpus": "all" if has_gpus else "none",
                **self.of_host(name),
                "cluster_network": told["network"],
                "cluster_fabric_network": told["fabric_network"],
                "cluster_address": member["address"],
                "cluster_interface": member["interface"],
                "cluster_slots": member["slots"],
            }
            made = a_host(name, member["address"])
            made["asked"]["candidates"] = self.facts[name]["candidates"]
            made["asked"]["resolved"] = {name: {"addresses": ["127.0.1.1"], "error": ""}}
            made["asked"].update(self.asked.get(name, {}))
            made.update(given, cluster_host=told["hosts"][name])
            made["cluster_stack"] = self.stacks.get(name) or {"skipped": True}
            hosts.append(made)
        result = judge(
            *hosts,
            rules=sorted(
                path.name for path in RULES.glob("*_rules.yml") if path.name != "input_rules.yml"
            ),
            members=told["members"],
            only=only,
        )
        return [entry for entry in result["findings"] if entry["verdict"] in ("warn", "fail")]
