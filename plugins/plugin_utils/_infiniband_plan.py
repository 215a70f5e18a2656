# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Kernel modules, packages and files for the InfiniBand and RoCE adapters of a host.

Pure functions.
"""

from __future__ import annotations

import hashlib
from typing import Any, TypedDict

# The driver of a card on the bus, and the module that creates the InfiniBand or RoCE device.
DRIVERS = {"mlx5_core": "mlx5_ib", "mlx4_core": "mlx4_ib"}
# Modules for access to the devices, for connections, and for queries of the fabric (ibstat).
INTERFACES = ["ib_uverbs", "rdma_ucm", "ib_umad"]
IP_OVER_INFINIBAND = "ib_ipoib"
# What module infiniband_info returns of a host on which there is nothing.
_NOTHING: dict[str, Any] = {
    "ofed": "",
    "files": {},
    "devices": [],
    "kernel_modules": {},
    "packages": {},
    "adapters": [],
    "fix": "",
}


class Port(TypedDict):
    """A port as the role's facts have it.

    C(rate_gb_s) is in Gb/s, and C(gid_index) the one for NCCL. What could not be read is None.
    """

    device: str
    port: int
    transport: str | None
    state: str | None
    rate_gb_s: float | None
    netdev: str | None
    gid_index: int | None


class Plan(TypedDict):
    """What a host gets.

    C(kernel_modules) are those to read, C(modules) those to load at boot, and C(unloaded) those to
    load now.

    C(lacking) are modules that the kernel does not have, C(own_paths) files of the role that the
    host has, and C(keeps_names) tells whether the rule for names of devices is written.
    """

    kernel_modules: list[str]
    missing_packages: list[str]
    modules: list[str]
    lacking: list[str]
    unloaded: list[str]
    own_paths: list[str]
    keeps_names: bool
    ports: list[Port]
    summary: str


def _needed_modules(adapters: list[dict[str, Any]], devices: list[dict[str, Any]]) -> list[str]:
    """Return the kernel modules that the adapters need."""
    names = dict.fromkeys(adapter["driver"] for adapter in adapters)
    drivers = [DRIVERS[name] for name in names if name in DRIVERS]
    # An adapter that has the class of a network card may be set to InfiniBand.
    is_infiniband = any(adapter["infiniband"] for adapter in adapters) or any(
        port["transport"] == "infiniband" for device in devices for port in device["ports"]
    )
    return drivers + INTERFACES + ([IP_OVER_INFINIBAND] if is_infiniband else [])


def _summary(ports: list[Port], fix: str, lacking: list[str], ofed: str) -> str:
    """Return the sentences that report the ports and what is unusual about the host."""
    texts = [_sentence(port) for port in ports]
    if fix:
        texts.append("%s." % fix)
    if lacking:
        texts.append(
            "The running kernel has no module %s; on Ubuntu, linux-modules-extra may have it."
            % ", ".join(lacking)
        )
    if ofed:
        texts.append("%s is installed and has its own tools and modules." % ofed)
    return " ".join(texts)


def _sentence(port: Port) -> str:
    """Return the sentence that reports a port."""
    return "%s port %s: %s, %s, %s Gb/s, %s." % (
        port["device"],
        port["port"],
        port["transport"] or "unknown transport",
        port["state"] or "unknown state",
        port["rate_gb_s"] or "?",
        port["netdev"] or "no interface",
    )


def _ports(devices: list[dict[str, Any]]) -> list[Port]:
    """Return the ports of the devices as the role's facts have them."""
    return [
        {
            "device": device["name"],
            "port": port["port"],
            "transport": port["transport"],
            "state": port["state"],
            "rate_gb_s": port["rate_gb_s"],
            "netdev": port["netdev"],
            "gid_index": port["nccl_gid_index"],
        }
        for device in devices
        for port in device["ports"]
    ]


class Requested(TypedDict):
    """What role infiniband requests of a host."""

    #: Of the distribution. They are not needed if the vendor's OFED is installed.
    packages: list[str]
    #: Files that the role may have written.
    placed_paths: list[str]
    #: The one of them that replaces a rule of rdma-core, and may be the user's, and its content.
    names_file: str
    names_rule: str
    #: Whether devices are named by their place on the PCI bus.
    persistent_names: bool


def infiniband_plan(found: dict[str, Any], requested: Requested) -> Plan:
    """Plan the kernel modules, packages and files that the InfiniBand and RoCE adapters of a host
    need.

    C(found) is a result of M(trainyard.gpu.infiniband_info). It is empty before the host is read,
    and then only C(kernel_modules) is of use.

    Returns C(kernel_modules) whose state the plan needs, C(missing_packages), C(modules) to load at
    boot, C(lacking), those that the kernel does not have, C(unloaded), those to load now,
    C(own_paths), existing files of the role, C(keeps_names), whether C(names_file) is written,
    C(ports) with C(device), C(port), C(transport), C(state), C(rate_gb_s) in Gb/s, C(netdev) and
    C(gid_index), and C(summary), sentences.
    """
    read = dict(_NOTHING, **{name: value for name, value in found.items() if value})
    ofed, files, states = read["ofed"], read["files"], read["kernel_modules"]
    names_file, names_rule = requested["names_file"], requested["names_rule"]
    missing: list[str] = []
    needed: list[str] = []
    # The vendor's OFED has its own tools and modules.
    if not ofed:
        missing = [name for name in requested["packages"] if name not in read["packages"]]
        needed = _needed_modules(read["adapters"], read["devices"])
    lacking = _in_state("missing", states, needed)
    # The file has the name of rdma-core's rule, so it may be the user's.
    own_names = files.get(names_file) == hashlib.sha256(names_rule.encode("utf-8")).hexdigest()
    # Existing device names are kept: the rule is written only if this role installs rdma-core or
    # wrote the rule before.
    may_write = own_names or "rdma-core" in missing and names_file not in files
    foreign = "" if own_names else names_file
    ports = _ports(read["devices"])
    return {
        "kernel_modules": list(DRIVERS.values()) + INTERFACES + [IP_OVER_INFINIBAND],
        "missing_packages": missing,
        # A module that the kernel does not have would make systemd's unit fail at every boot.
        "modules": [name for name in needed if name not in lacking],
        "lacking": lacking,
        "unloaded": _in_state("available", states, needed),
        "own_paths": [
            path for path in requested["placed_paths"] if path in files and path != foreign
        ],
        "keeps_names": not requested["persistent_names"] and may_write,
        "ports": ports,
        "summary": _summary(ports, read["fix"], lacking, ofed),
    }


def _in_state(state: str, states: dict[str, str], needed: list[str]) -> list[str]:
    """Return the needed kernel modules that are in a state of module infiniband_info."""
    return [name for name, its_state in states.items() if its_state == state and name in needed]
