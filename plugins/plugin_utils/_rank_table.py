# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rank tables of HCCL: which device of which server has which rank.

The format without a version is that of MindSpore before 1.0. It has one instance for each rank. Format 1.0 has a list of servers with their devices. Both have
a string for every value, numbers included. Format 1.2 adds the super node of each device, which no tool on the host reports.
"""

from __future__ import annotations

import ipaddress
import json
import re

LEGACY, CURRENT = "legacy", "1.0"
FORMATS = (LEGACY, CURRENT)
COMPLETED = "completed"


class RankTableError(ValueError):
    """There is no table of these hosts: what was found, what was expected, and what to do."""


def rank_table(hosts, format=CURRENT, board_id="0x0020", chip_info="910"):
    """The table of hosts in rank order. A host is {name, server_id, devices: [{id, address}]}."""
    if format not in FORMATS:
        raise RankTableError(_no_format(format))
    servers = _servers(hosts)
    ranks = [(server, device, str(rank)) for rank, (server, device) in enumerate((server, device) for server in servers for device in server["devices"])]
    if format == LEGACY:
        return _legacy(servers, ranks, board_id, chip_info)
    devices = {server["server_id"]: [] for server in servers}
    for server, device, rank in ranks:
        devices[server["server_id"]].append({"device_id": device["id"], "device_ip": device["address"], "rank_id": rank})
    return {
        "version": CURRENT,
        "server_count": str(len(servers)),
        "server_list": [{"server_id": server, "device": devices[server], "host_nic_ip": "reserve"} for server in devices],
        "status": COMPLETED,
    }


def _legacy(servers, ranks, board_id, chip_info):
    # Devices of one server are on networks of their own, which is why the names of interfaces are counted for a server.
    each = len(servers[0]["devices"])
    return {
        "board_id": str(board_id),
        "chip_info": str(chip_info),
        "deploy_mode": "lab",
        "group_count": "1",
        "group_list": [{
            "device_num": str(len(ranks)),
            "server_num": str(len(servers)),
            "group_name": "",
            "instance_count": str(len(ranks)),
            "instance_list": [{"devices": [{"device_id": device["id"], "device_ip": device["address"]}], "rank_id": rank, "server_id": server["server_id"]}
                              for server, device, rank in ranks],
        }],
        "para_plane_nic_location": "device",
        "para_plane_nic_name": ["eth" + device["id"] for device in servers[0]["devices"]],
        "para_plane_nic_num": str(each),
        "status": COMPLETED,
    }


def rendered(table):
    """The text of a table: the same for equal tables."""
    return json.dumps(table, indent=2) + "\n"


def suitable_format(mindspore="", cann=""):
    """The format for versions that were found; empty if a version is not known. Versions of drivers such as 1.72.T2.100.B020 are text."""
    number = re.match("[0-9]{1,9}", mindspore or "")
    if (number and int(number[0]) < 1) or re.match(r"1\.[67][0-9]\.", cann or ""):
        return LEGACY
    return CURRENT


def table_problems(text, expected=CURRENT):
    """What is wrong with the text of a rank table, as sentences. Empty if a job can use it."""
    try:
        table = json.loads(text)
    except ValueError as error:
        return [f"it is not JSON: {error}"]
    if not isinstance(table, dict):
        return ["it is not a JSON object"]
    found = LEGACY if "version" not in table and "group_list" in table else str(table.get("version"))
    if found not in FORMATS:
        return [_no_format(found if "version" in table else "without version and group_list")]
    problems = []
    if found != expected:
        problems.append(f"its format is '{found}', and '{expected}' is expected")
    if table.get("status") != COMPLETED:
        problems.append(f"its status is '{table.get('status')}', and '{COMPLETED}' is expected: wait until the table is complete")
    others = [path for path, value in _leaves(table, "") if not isinstance(value, str)]
    if others:
        problems.append(f"{others[0]} is not a string: every value is one, numbers included")
    try:
        hosts, counted = (_hosts_of_legacy if found == LEGACY else _hosts_of_current)(table)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        return problems + [f"it lacks a key or has one of another type: {error}"]
    ranks = [str(rank) for host in hosts for rank in host["ranks"]]
    if sorted(ranks) != sorted(str(rank) for rank in range(len(ranks))):
        problems.append(f"its ranks are not 0 to {len(ranks) - 1} without gaps: {', '.join(ranks[:20])}")
    if str(counted) != str(len(hosts)):
        problems.append(f"it counts {counted} servers, and lists {len(hosts)}")
    try:
        _servers(hosts)
    except RankTableError as error:
        problems.append(str(error))
    return problems


def _hosts_of_current(table):
    hosts = [{"server_id": server["server_id"], "ranks": [device["rank_id"] for device in server["device"]],
              "devices": [{"id": device["device_id"], "address": device["device_ip"]} for device in server["device"]]} for server in table["server_list"]]
    return hosts, table["server_count"]


def _hosts_of_legacy(table):
    hosts = {}
    for instance in (instance for group in table["group_list"] for instance in group["instance_list"]):
        host = hosts.setdefault(instance["server_id"], {"server_id": instance["server_id"], "ranks": [], "devices": []})
        host["ranks"].append(instance["rank_id"])
        host["devices"] += [{"id": device["device_id"], "address": device["device_ip"]} for device in instance["devices"]]
    return list(hosts.values()), table["group_list"][0]["server_num"]


def _leaves(value, path):
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if inner is None:
        yield path, value
        return
    for key, item in inner:
        yield from _leaves(item, f"{path}.{key}" if path else str(key))


def _no_format(format):
    if str(format) == "1.2":
        return ("rank table format '1.2' was requested, which is for super nodes (Atlas A3): it needs the super_device_id of each device and the list of super "
                "pods, which the tools of a host do not report. Use the table that the cluster's scheduler or CCAE writes, or '1.0' within one super node")
    return f"rank table format '{format}' is not known; use one of {', '.join(FORMATS)}"


def _servers(hosts):
    """The hosts as they are in the table. Refuses what HCCL would hang on."""
    if not isinstance(hosts, list) or not hosts:
        raise RankTableError("no host was given for the rank table; add one with NPUs to group cluster")
    servers, names, addresses = [], {}, {}
    for host in hosts:
        server_id = str(host.get("server_id") or "").strip()
        name = str(host.get("name") or server_id)
        if not server_id:
            raise RankTableError(f"host '{name}' has no server_id; set its address in the cluster network")
        if server_id in names:
            raise RankTableError(f"server '{server_id}' is in the rank table twice, as '{names[server_id]}' and '{name}'; list each host once, with an address "
                                 "of its own")
        names[server_id] = name
        devices, ids = [], set()
        for device in host.get("devices") or []:
            number, address = str(device.get("id")), str(device.get("address") or "").strip()
            if not re.fullmatch("[0-9]{1,4}", number):
                raise RankTableError(f"host '{name}': '{number}' is not the number of a device; use its Phy-ID")
            if number in ids:
                raise RankTableError(f"host '{name}' has device {number} twice; list each device once")
            if not address:
                raise RankTableError(f"host '{name}': device {number} has no address; configure one with 'hccn_tool -i {number} -ip -s address ADDRESS netmask "
                                     "NETMASK'")
            if not _is_address(address):
                raise RankTableError(f"host '{name}': '{address}' of device {number} is not an IP address; correct it with hccn_tool or in /etc/hccn.conf")
            if address in addresses:
                raise RankTableError(f"device {number} of host '{name}' and {addresses[address]} have the same address '{address}'; give each device of the "
                                     "cluster an address of its own")
            ids.add(number)
            addresses[address] = f"device {number} of host '{name}'"
            devices.append({"id": number, "address": address})
        if not devices:
            raise RankTableError(f"host '{name}' has no device; remove it from the job, or find out why npu-smi does not list its NPUs")
        servers.append({"name": name, "server_id": server_id, "devices": sorted(devices, key=lambda device: int(device["id"]))})
    counts = {len(server["devices"]) for server in servers}
    if len(counts) > 1:
        each = ", ".join(f"{server['name']} {len(server['devices'])}" for server in servers)
        raise RankTableError(f"the hosts have unequal numbers of devices ({each}); use as many on each host, because HCCL needs it")
    return servers


def _is_address(text):
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False
