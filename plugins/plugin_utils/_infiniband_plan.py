# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Kernel modules, packages and files for the InfiniBand and RoCE adapters of a host. Pure functions."""

from __future__ import annotations

import hashlib

# The driver of a card on the bus, and the module that creates the InfiniBand or RoCE device.
DRIVERS = {"mlx5_core": "mlx5_ib", "mlx4_core": "mlx4_ib"}
# Modules for access to the devices, for connections, and for queries of the fabric (ibstat).
INTERFACES = ["ib_uverbs", "rdma_ucm", "ib_umad"]
IP_OVER_INFINIBAND = "ib_ipoib"


def wanted_modules(adapters, devices):
    """Return the kernel modules that the adapters need."""
    drivers = [
        DRIVERS[name]
        for name in dict.fromkeys(adapter["driver"] for adapter in adapters)
        if name in DRIVERS
    ]
    # An adapter that has the class of a network card may be set to InfiniBand.
    fabric = any(adapter["infiniband"] for adapter in adapters) or any(
        port["transport"] == "infiniband" for device in devices for port in device["ports"]
    )
    return drivers + INTERFACES + ([IP_OVER_INFINIBAND] if fabric else [])


def summary(ports, fix, lacking, ofed):
    """Return the sentences that report the ports and what is unusual about the host."""
    texts = [
        "%s port %s: %s, %s, %s Gb/s, %s."
        % (
            port["device"],
            port["port"],
            port["transport"] or "unknown transport",
            port["state"] or "unknown state",
            port["rate_gb_s"] or "?",
            port["netdev"] or "no interface",
        )
        for port in ports
    ]
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


def _ports(devices):
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


def infiniband_plan(found, packages, placed_paths, names_file, names_rule, persistent_names):
    """Plan the kernel modules, packages and files that the InfiniBand and RoCE adapters of a host need.

    C(found) is a result of M(trainyard.gpu.infiniband_info). It is empty before the host is read, and then only C(kernel_modules) is of use. C(packages) are
    not needed if the vendor's OFED is installed. C(placed_paths) are files that the role may have written. C(names_file) is the one of them that replaces a
    rule of rdma-core, and may be the user's; C(names_rule) is its content. C(persistent_names): devices are named by their place on the PCI bus.

    Returns C(kernel_modules) whose state the plan needs, C(missing_packages), C(modules) to load at boot, C(lacking), those that the kernel does not have,
    C(unloaded), those to load now, C(own_paths), existing files of the role, C(keeps_names), whether C(names_file) is written, C(ports) with C(device),
    C(port), C(transport), C(state), C(rate_gb_s), C(netdev) and C(gid_index), and C(summary), sentences.
    """
    ofed, files = found.get("ofed") or "", found.get("files") or {}
    devices, states = found.get("devices") or [], found.get("kernel_modules") or {}
    missing, wanted = [], []
    # The vendor's OFED has its own tools and modules.
    if not ofed:
        missing = [name for name in packages if name not in (found.get("packages") or {})]
        wanted = wanted_modules(found.get("adapters") or [], devices)

    def in_state(state):
        return [name for name, its in states.items() if its == state and name in wanted]

    lacking = in_state("missing")
    # The file has the name of rdma-core's rule, so it may be the user's.
    own_names = files.get(names_file) == hashlib.sha256(names_rule.encode("utf-8")).hexdigest()
    # Existing device names are kept: the rule is written only if this role installs rdma-core or wrote the rule before.
    may_write = own_names or "rdma-core" in missing and names_file not in files
    ports = _ports(devices)
    return {
        "kernel_modules": list(DRIVERS.values()) + INTERFACES + [IP_OVER_INFINIBAND],
        "missing_packages": missing,
        # A module that the kernel does not have would make systemd's unit fail at every boot.
        "modules": [name for name in wanted if name not in lacking],
        "lacking": lacking,
        "unloaded": in_state("available"),
        "own_paths": [
            path for path in placed_paths if path in files and (own_names or path != names_file)
        ],
        "keeps_names": not persistent_names and may_write,
        "ports": ports,
        "summary": summary(ports, found.get("fix"), lacking, ofed),
    }
