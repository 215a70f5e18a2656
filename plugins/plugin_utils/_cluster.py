# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The networks of a cluster, and address, interface and number of slots of each host. Pure functions over results of M(host_info)."""

from __future__ import annotations

import collections
import ipaddress

from ansible_collections.trainyard.gpu.plugins.module_utils._host import is_virtual_interface

__all__ = [
    "as_address",
    "cluster_network",
    "fabric_network",
    "find_network",
    "own_addresses",
    "pick_address",
    "rdma_of",
    "shared_networks",
    "slots_of",
]


#: More than a host has. Root of a host can answer anything.
_MOST_ADDRESSES = 64


def as_address(text):
    """Return text as an IP address object, None for other text (a name, empty)."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _candidates(info, include_virtual=False):
    """List (interface name, address, network) of the interfaces that are up and that a cluster may use."""
    return [
        (
            interface["name"],
            ipaddress.ip_address(entry["address"]),
            ipaddress.ip_interface("%s/%d" % (entry["address"], entry["prefix"])).network,
        )
        for interface in info["interfaces"]
        if interface["up"] and (include_virtual or not is_virtual_interface(interface["name"]))
        for entry in interface["addresses"]
    ]


def own_addresses(info):
    """Return the addresses by which others may reach a host, in all its networks, at most 64.

    Those of a link and of bridges of container engines are not among them.
    """
    found = set()
    for interface in info["interfaces"]:
        if is_virtual_interface(interface["name"]):
            continue
        for entry in interface["addresses"]:
            address = ipaddress.ip_address(entry["address"])
            if address.is_loopback or address.is_multicast or address.is_unspecified:
                continue
            # Hosts without another network may have a fabric of IPv4 addresses of a link.
            if not (address.version == 6 and address.is_link_local):
                found.add(str(address))
    return sorted(found)[:_MOST_ADDRESSES]


def find_network(info, inventory_address):
    """Return the network (CIDR) of the host's inventory address, else of its default route; '' if there is none."""
    candidates = _candidates(info)
    wanted = as_address(inventory_address)
    for dummy, address, network in candidates:
        if address == wanted:
            return str(network)
    # A translated or forwarded address is not on any interface.
    for version in (4, 6):
        for name, address, network in candidates:
            if (
                name == info["default_interface"]
                and address.version == version
                and not (version == 6 and address.is_link_local)
            ):
                return str(network)
    return ""


def shared_networks(hosts, named=None):
    """Return, as network objects in the first host's order, the IPv4 networks in which every host has a different address.

    C(hosts) are answers by name. A host with an interface in C(named) offers that one alone. An address that two hosts have is none of their own:
    bridges and service processors have the same address everywhere, under any name.
    """
    named = named or {}
    offers = {
        name: [
            (address, network)
            for interface, address, network in _candidates(
                info, include_virtual=bool(named.get(name))
            )
            if address.version == 4 and named.get(name) in (None, "", interface)
        ]
        for name, info in hosts.items()
    }
    everywhere = collections.Counter(
        address for offer in offers.values() for address in {each for each, dummy in offer}
    )
    own = [
        [(address, network) for address, network in offer if everywhere[address] == 1]
        for offer in offers.values()
    ]
    networks = dict.fromkeys(network for dummy, network in own[0]) if own else {}
    return [
        network
        for network in networks
        if all(any(address in network for address, dummy in offer) for offer in own)
    ]


def cluster_network(network, is_inside, shared):
    """Return the cluster network (CIDR): the head's, or the only one that all hosts share if C(is_inside) finds a host outside of the head's."""
    return str(shared[0]) if len(shared) == 1 and not (network and is_inside) else network


def _speed_mbit_s(info, interface):
    rates = [
        port["rate_gb_s"] * 1000
        for port in info.get("rdma_ports", [])
        if interface in port["interfaces"] and port["rate_gb_s"]
    ]
    speeds = [
        entry.get("speed_mbit_s") for entry in info["interfaces"] if entry["name"] == interface
    ]
    return max(rates) if rates else (speeds + [None])[0]


def fabric_network(hosts, shared, network, named=None):
    """Return (CIDR, reason): the fastest network that all hosts share, or the cluster network if the fastest is not certain.

    C(why) is '' where there is nothing to choose.
    """
    if not network or len(hosts) < 2:
        return network, ""
    own = ipaddress.ip_network(network, strict=False)
    if all(each.overlaps(own) for each in shared):
        return network, ""
    if named and any(named.values()) and len(shared) == 1:
        return str(shared[0]), "the one of cluster_fabric_interface"
    speeds = {}
    for each in shared:
        of_hosts = [
            _speed_mbit_s(
                info, pick_address(info, str(each), interface=(named or {}).get(name, ""))[1]
            )
            for name, info in hosts.items()
        ]
        # The slowest host limits a ring of all hosts.
        speeds[each] = None if None in of_hosts else min(of_hosts)
    told = ", ".join(
        "%s %s" % (each, "%g Gb/s" % (speed / 1000.0) if speed else "of unknown speed")
        for each, speed in speeds.items()
    )
    fastest = [
        each
        for each, speed in speeds.items()
        if speed == max(value or 0 for value in speeds.values())
    ]
    if not all(speeds.values()) or len(fastest) > 1:
        return network, "the fastest network is unknown (%s), so the cluster network is used" % told
    if fastest[0].overlaps(own):
        return network, "the cluster network is the fastest (%s)" % told
    return str(fastest[0]), "the fastest that all hosts share (%s)" % told


def pick_address(info, network, address="", interface="", inventory_address=""):
    """Return (address, interface) of a host inside the network.

    A given address or interface is used and only completed. Otherwise the inventory address has priority.
    ('', '') where the host has no address in the network.
    """
    # A bridge that is given by name or address is the user's choice.
    found = _candidates(info, include_virtual=bool(address or interface))
    if address:
        wanted = as_address(address)
        names = [name for name, candidate, dummy in found if candidate == wanted]
        return address, interface or (names[0] if names else "")
    inside = ipaddress.ip_network(network, strict=False) if network else None
    found = [
        (name, candidate)
        for name, candidate, dummy in found
        if inside is not None and candidate in inside and interface in ("", name)
    ]
    found.sort(key=lambda entry: entry[1] != as_address(inventory_address))
    return (str(found[0][1]), found[0][0]) if found else ("", interface)


def rdma_of(info, network, address, interface):
    """Return the RDMA devices of a host's fabric data: transport, rate, devices in NCCL_IB_HCA's notation, GID index; None without any.

    InfiniBand needs no address, so every active port of the same rate is a rail of the fabric. RoCE does: each port with one inside the network.
    If the host has faster ports than these, its data should not be restricted to them, and NCCL chooses by itself.
    """
    ports = [
        port
        for port in info.get("rdma_ports", [])
        if port["state"] == "active" and port["transport"] in ("infiniband", "roce")
    ]
    names = {interface, interface.partition(".")[0]}
    carriers = [
        port for port in ports if names & set(port["interfaces"]) or address in port["gid_indexes"]
    ]
    fastest = max([port["rate_gb_s"] or 0 for port in ports] or [0])
    if not (network and interface and carriers) or (carriers[0]["rate_gb_s"] or 0) < fastest:
        return None
    first, indexes = carriers[0], set()
    if first["transport"] == "infiniband":
        rails = [
            port
            for port in ports
            if (port["transport"], port["rate_gb_s"]) == (first["transport"], first["rate_gb_s"])
        ]
    else:
        inside = ipaddress.ip_network(network, strict=False)
        by_port = [
            (
                port,
                [
                    index
                    for each, index in port["gid_indexes"].items()
                    if ipaddress.ip_address(each) in inside
                ],
            )
            for port in ports
        ]
        rails = [port for port, found in by_port if found] or carriers
        indexes = {found[0] for dummy, found in by_port if found}
    several = {port["device"] for port in info["rdma_ports"] if port["port"] > 1}
    return {
        "transport": first["transport"],
        "rate_gb_s": first["rate_gb_s"],
        "devices": [
            "%s:%d" % (port["device"], port["port"])
            if port["device"] in several
            else port["device"]
            for port in rails
        ],
        # One per process, because NCCL has only one variable for it.
        "gid_index": indexes.pop() if len(indexes) == 1 else None,
    }


def slots_of(info, slots, trains=True):
    """Return the host's number of ranks: the requested one, or one per GPU or NPU, or one without; none if group gpu exists without it."""
    return (slots or max(1, info["gpus"] or info.get("npus", 0))) if trains else 0
