# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What Slurm needs to know about a host: text of /proc, /sys, slurmd and systemctl in, typed data
out.
"""

from __future__ import annotations

import hashlib
import hmac
import re

from typing import Any, Mapping, Sequence, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._mountinfo import parse_mountinfo
from ansible_collections.trainyard.gpu.plugins.module_utils._parse_error import ParseError

__all__ = [
    "ParseError",
    "cgroups",
    "hardware_of",
    "key_digest",
    "memory_total_mib",
    "parse_slurmd_hardware",
    "parse_units",
    "release",
    "sockets_of",
]


class Hardware(TypedDict):
    """What slurm.conf says of a node.

    C(sockets) are those of the whole host, C(real_memory) is in MiB.
    """

    cpus: int
    boards: int
    sockets: int
    cores_per_socket: int
    threads_per_core: int
    real_memory: int


class Cgroups(TypedDict):
    """The control groups of a host: their version, 0 without any, whether Slurm can use them or
    C(why) not, and whether it can limit cores and swap.
    """

    version: int
    usable: bool
    why: str
    cores: bool
    swap: bool


class Unit(TypedDict):
    """A unit of systemd. C(state) is that such as active/running, C(user) is empty for root."""

    loaded: bool
    active: bool
    enabled: bool
    state: str
    user: str
    runtime_directory: str


# What task/cgroup and proctrack/cgroup use: cgroup.conf(5), ConstrainDevices, ConstrainRAMSpace,
# and the freezer of version 1. Version 2 limits devices by a program in the kernel, which has no
# controller.
_CONTROLLERS = {
    0: ("devices", "freezer", "memory"),
    1: ("devices", "freezer", "memory"),
    2: ("memory",),
}
# ConstrainCores uses it. A kernel may lack it, and slurmd does not start with a setting that needs
# it.
_CORES_CONTROLLER = "cpuset"
_HARDWARE = {
    "CPUs": "cpus",
    "Boards": "boards",
    "SocketsPerBoard": "sockets",
    "CoresPerSocket": "cores_per_socket",
    "ThreadsPerCore": "threads_per_core",
    "RealMemory": "real_memory",
}


def release(version: str | None) -> str:
    """Return the release of a package's version: 23.11 of 23.11.4-1.2ubuntu5.

    It is empty if the version has none.
    """
    found = re.match(r"(?:\d+:)?(\d{2}\.\d{2})(?:\D|$)", version or "")
    return found.group(1) if found else ""


def parse_slurmd_hardware(text: str) -> dict[str, int]:
    """Return what ``slurmd -C`` prints with the keys of Hardware, {} for no output."""
    lines = [line for line in text.splitlines() if line.startswith("NodeName=")]
    if not lines:
        return {}
    values = dict(part.split("=", 1) for part in lines[0].split() if "=" in part)
    missing = [key for key in _HARDWARE if not re.fullmatch(r"[0-9]+", values.get(key, ""))]
    if missing:
        raise ParseError("slurmd -C: no number for %s in: %.200r" % (missing[0], lines[0]))
    found = {name: int(values[key]) for key, name in _HARDWARE.items()}
    found["sockets"] *= found["boards"]
    return found


def memory_total_mib(meminfo: str) -> int:
    """Return the memory of /proc/meminfo in MiB, rounded down as slurmd does."""
    found = re.search(r"^MemTotal:\s+(\d+) kB$", meminfo, re.M)
    if not found:
        raise ParseError("/proc/meminfo: no line 'MemTotal: N kB' in: %.120r" % meminfo)
    return int(found.group(1)) // 1024


def hardware_of(topology: Sequence[tuple[Any, Any]], meminfo: str) -> Hardware:
    """Return the same values as slurmd.

    C(topology) has (package, core) of each CPU that the host may use.

    Slurm describes a host by three factors. CPUs that do not fit into them, as in a container with
    some CPUs of a larger machine, are cores of one socket.
    """
    cpus = len(topology)
    sockets, cores = len({package for package, dummy in topology}), len(set(topology))
    even = cpus and cores % sockets == 0 and cpus % cores == 0
    if not even:
        sockets, cores = 1, cpus
    return {
        "cpus": cpus,
        "boards": 1,
        "sockets": sockets,
        "cores_per_socket": cores // sockets,
        "threads_per_core": cpus // cores if cores else 0,
        "real_memory": memory_total_mib(meminfo),
    }


def sockets_of(cpulist: str, packages: Mapping[int, Any]) -> list[int]:
    """Return the sockets with these CPUs as Slurm numbers sockets, which is by their first CPU.

    C(packages) has the package of each CPU of the host.

    C(cpulist) is local_cpulist of a PCI device, such as C(0-31,64-95). CPUs that the host may not
    use, or that are offline, do not count.
    """
    cpus: set[int] = set()
    for first, last in re.findall(r"(\d{1,5})(?:-(\d{1,5}))?", cpulist):
        cpus.update(range(int(first), int(last or first) + 1))
    order = list(dict.fromkeys(packages[cpu] for cpu in sorted(packages)))
    return sorted({order.index(packages[cpu]) for cpu in cpus & set(packages)})


def cgroups(mountinfo: str, controllers: str, container: str, swap: bool) -> Cgroups:
    """Return C(version), C(usable), C(why) not, and whether C(cores) and C(swap) can be limited.

    C(mountinfo) is that of process 1, C(controllers) the content of cgroup.controllers of the
    unified tree, C(swap) whether a group of it has memory.swap.max: a kernel without swap, or with
    swapaccount=0, has none, and slurmd then ends if it should limit swap. With version 1 swap is
    not limited, because the kernel counts it only if it was started for it. A container shares the
    tree with its kernel's other processes: slurmd would move processes that are not its own, and
    systemd in the container cannot delegate a scope to it.
    """
    version, found = _mounted_controllers(mountinfo, controllers)
    missing = [name for name in _CONTROLLERS[version] if name not in found]
    why = ""
    if container:
        why = "the host is a container (%s)" % container
    elif not version:
        why = "no control groups are mounted"
    elif missing:
        why = "the kernel has no control group controller %s" % missing[0]
    return {
        "version": version,
        "usable": not why,
        "why": why,
        "cores": _CORES_CONTROLLER in found,
        "swap": version == 2 and swap,
    }


def _mounted_controllers(mountinfo: str, controllers: str) -> tuple[int, list[str]]:
    """Return the version of the control groups, 0 without any, and the controllers that can be
    used.
    """
    mounts = parse_mountinfo(mountinfo)
    unified = [mount["path"] for mount in mounts if mount["type"] == "cgroup2"]
    if "/sys/fs/cgroup" in unified:
        return 2, controllers.split()
    trees = [mount for mount in mounts if mount["type"] == "cgroup"]
    found: list[str] = []
    for mount in trees:
        if "rw" in mount["own_options"]:
            found += mount["system_options"]
    return 1 if trees or unified else 0, found


def parse_units(text: str) -> dict[str, Unit]:
    """Return the properties of each unit in the output of ``systemctl show``, by name."""
    units: dict[str, Unit] = {}
    for block in text.split("\n\n"):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if values.get("Id"):
            units[values["Id"]] = {
                "loaded": values.get("LoadState") == "loaded",
                "active": values.get("ActiveState") == "active",
                "enabled": values.get("UnitFileState") == "enabled",
                "state": "/".join(
                    part
                    for part in (values.get("ActiveState", ""), values.get("SubState", ""))
                    if part
                ),
                "user": values.get("User", ""),
                "runtime_directory": values.get("RuntimeDirectory", ""),
            }
    return units


def key_digest(key: bytes, salt: str) -> str:
    """Return 16 characters that are equal on two hosts with the same key.

    The salt is that of one run, so that the result tells nothing later.
    """
    if not key or not salt:
        return ""
    return hmac.new(salt.encode("utf-8"), key, hashlib.sha256).hexdigest()[:16]
