# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rank tables of HCCL: which device of which server has which rank.

The format without a version is that of MindSpore before 1.0. It has one instance for each rank.
Format 1.0 has a list of servers with their devices. Both have a string for every value, numbers
included. Format 1.2 adds the super node of each device, which no tool on the host reports.
"""

from __future__ import annotations

import json
import re
from typing import Any, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._npu_smi import is_address

LEGACY, CURRENT, SUPER_NODE = "legacy", "1.0", "1.2"
FORMATS = (LEGACY, CURRENT)
COMPLETED = "completed"


class Device(TypedDict):
    """A device of a server: its Phy-ID as text, and its IP address."""

    id: str
    address: str


class Server(TypedDict):
    """A host in the table, with its devices in the order of their numbers."""

    name: str
    server_id: str
    devices: list[Device]


#: (server, device, rank) of each device, in rank order.
_Ranks = list[tuple[Server, Device, str]]


class RankTableError(ValueError):
    """There is no table of these hosts: what was found, what was expected, and what to do."""


def rank_table(
    hosts: list[dict[str, Any]],
    format: str = CURRENT,
    board_id: str = "0x0020",
    chip_info: str = "910",
) -> dict[str, Any]:
    """The table of hosts in rank order.

    A host is {name, server_id, devices: [{id, address}]}. RankTableError: HCCL would not take it.
    """
    reason = refusal(format)
    if reason:
        raise RankTableError(reason)
    servers = _servers(hosts)
    ranks = [
        (server, device, str(rank))
        for rank, (server, device) in enumerate(
            (server, device) for server in servers for device in server["devices"]
        )
    ]
    if format == LEGACY:
        return _legacy(servers, ranks, board_id, chip_info)
    devices: dict[str, list[dict[str, str]]] = {server["server_id"]: [] for server in servers}
    for server, device, rank in ranks:
        devices[server["server_id"]].append(
            {"device_id": device["id"], "device_ip": device["address"], "rank_id": rank}
        )
    return {
        "version": CURRENT,
        "server_count": str(len(servers)),
        "server_list": [
            {"server_id": server, "device": devices[server], "host_nic_ip": "reserve"}
            for server in devices
        ],
        "status": COMPLETED,
    }


def _legacy(servers: list[Server], ranks: _Ranks, board_id: str, chip_info: str) -> dict[str, Any]:
    # Devices of one server are on networks of their own, which is why the names of interfaces are
    # counted for a server.
    each = len(servers[0]["devices"])
    return {
        "board_id": str(board_id),
        "chip_info": str(chip_info),
        "deploy_mode": "lab",
        "group_count": "1",
        "group_list": [
            {
                "device_num": str(len(ranks)),
                "server_num": str(len(servers)),
                "group_name": "",
                "instance_count": str(len(ranks)),
                "instance_list": [
                    {
                        "devices": [{"device_id": device["id"], "device_ip": device["address"]}],
                        "rank_id": rank,
                        "server_id": server["server_id"],
                    }
                    for server, device, rank in ranks
                ],
            }
        ],
        "para_plane_nic_location": "device",
        "para_plane_nic_name": ["eth" + device["id"] for device in servers[0]["devices"]],
        "para_plane_nic_num": str(each),
        "status": COMPLETED,
    }


def rendered(table: dict[str, Any]) -> str:
    """The text of a table: the same for equal tables."""
    return json.dumps(table, indent=2) + "\n"


def refusal(format: str) -> str:
    """Why there is no table in a format; empty if there is."""
    if format in FORMATS:
        return ""
    if str(format) == SUPER_NODE:
        return (
            "rank table format '1.2' was requested, which is for super nodes (Atlas A3): it "
            "needs the super_device_id of each device and the list of super "
            "pods, which the tools of a host do not report. Use the table that the cluster's "
            "scheduler or CCAE writes, or '1.0' within one super node"
        )
    return f"rank table format '{format}' is not known; use one of {', '.join(FORMATS)}"


def _servers(hosts: list[dict[str, Any]]) -> list[Server]:
    """The hosts as they are in the table. Refuses what HCCL would hang on."""
    if not isinstance(hosts, list) or not hosts:
        raise RankTableError(
            "no host was given for the rank table; add one with NPUs to group cluster"
        )
    servers: list[Server] = []
    names: dict[str, str] = {}
    addresses: dict[str, str] = {}
    for host in hosts:
        server_id = str(host.get("server_id") or "").strip()
        name = str(host.get("name") or server_id)
        if not server_id:
            raise RankTableError(
                f"host '{name}' has no server_id; set its address in the cluster network"
            )
        if server_id in names:
            raise RankTableError(
                f"server '{server_id}' is in the rank table twice, as '{names[server_id]}' and "
                f"'{name}'; list each host once, with an address "
                "of its own"
            )
        names[server_id] = name
        devices = _devices(name, host.get("devices") or [], addresses)
        servers.append({"name": name, "server_id": server_id, "devices": devices})
    if len({len(server["devices"]) for server in servers}) > 1:
        each = ", ".join(f"{server['name']} {len(server['devices'])}" for server in servers)
        raise RankTableError(
            (
                f"the hosts have unequal numbers of devices ({each}); use as many on each host, "
                "because HCCL needs it"
            )
        )
    return servers


def _devices(host: str, entries: list[dict[str, Any]], addresses: dict[str, str]) -> list[Device]:
    """The devices of a host.

    C(addresses) says whose the addresses are that the table has already. Those of this host are
    added.
    """
    devices: dict[str, Device] = {}
    for entry in entries:
        number, address = str(entry.get("id")), str(entry.get("address") or "").strip()
        if not re.fullmatch("[0-9]{1,4}", number):
            raise RankTableError(
                f"host '{host}': '{number}' is not the number of a device; use its Phy-ID"
            )
        if number in devices:
            raise RankTableError(f"host '{host}' has device {number} twice; list each device once")
        if not address:
            raise RankTableError(
                f"host '{host}': device {number} has no address; configure one with 'hccn_tool "
                f"-i {number} -ip -s address ADDRESS netmask "
                "NETMASK'"
            )
        if not is_address(address):
            raise RankTableError(
                (
                    f"host '{host}': '{address}' of device {number} is not an IP address; correct "
                    "it with hccn_tool or in /etc/hccn.conf"
                )
            )
        if address in addresses:
            raise RankTableError(
                f"device {number} of host '{host}' and {addresses[address]} have the same "
                f"address '{address}'; give each device of the "
                "cluster an address of its own"
            )
        addresses[address] = f"device {number} of host '{host}'"
        devices[number] = {"id": number, "address": address}
    if not devices:
        raise RankTableError(
            (
                f"host '{host}' has no device; remove it from the job, or find out why npu-smi "
                "does not list its NPUs"
            )
        )
    return sorted(devices.values(), key=lambda device: int(device["id"]))
