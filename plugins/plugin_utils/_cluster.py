# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The networks of a cluster, and address, interface and number of slots of each host.

Pure functions over results of M(host_info).
"""

from __future__ import annotations

import collections
import ipaddress
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypedDict, Union

from ansible_collections.trainyard.gpu.plugins.module_utils._host import is_virtual_interface

__all__ = [
    "Member",
    "as_address",
    "cluster_network",
    "fabric_network",
    "find_network",
    "networks_of",
    "own_addresses",
    "pick_address",
    "rails_of",
    "rdma_of",
    "shared_networks",
    "slots_of",
]

Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]
Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]


class Place(NamedTuple):
    """An address of a host, and where it is."""

    interface: str
    address: Address
    network: Network


class RdmaPort(TypedDict):
    """A port of an RDMA device, as M(host_info) returns it."""

    device: str
    port: int
    state: str | None
    transport: str | None
    rate_gb_s: float | None
    #: The network interface of the port, and its bond.
    interfaces: list[str]
    #: By IPv4 address, the index of its entry in the GID table.
    gid_indexes: dict[str, int]


class Rdma(TypedDict):
    """The RDMA devices that carry a host's data."""

    #: C(infiniband) or C(roce).
    transport: str | None
    #: Of each device in Gb/s; None if it reports none.
    rate_gb_s: float | None
    #: In NCCL_IB_HCA's notation.
    devices: list[str]
    #: Index of the address in the GID tables with RoCE; None with InfiniBand, or if the devices
    #: differ.
    gid_index: int | None


class Rail(TypedDict):
    """The place of a host in one of several fabric networks."""

    network: str
    address: str
    interface: str


class Member(TypedDict):
    """A host of the cluster, as M(cluster_members) returns it. Its documentation explains
    each key.
    """

    name: str
    address: str
    interface: str
    fabric_address: str
    fabric_interface: str
    fabric_rdma: Rdma | None
    fabric_rails: list[Rail]
    addresses: list[str]
    slots: int
    slots_counted: bool
    nvidia_devices: int
    npus: int
    reachable: bool
    in_play: bool
    error: str


#: More than a host has. Root of a host can answer anything.
_MOST_ADDRESSES = 64


def as_address(text: str) -> Address | None:
    """Return text as an IP address object, None for other text (a name, empty)."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def networks_of(value: str | Iterable[object] | None) -> list[Network]:
    """Return the networks of cluster_fabric_network, which is a CIDR, several of them with commas,
    or a list.
    """
    words = value.split(",") if isinstance(value, str) else value or []
    return [ipaddress.ip_network(str(word).strip(), strict=False) for word in words if word]


def _candidates(info: dict[str, Any], include_virtual: bool = False) -> list[Place]:
    """Return the addresses of the interfaces that are up and that a cluster may use."""
    return [
        Place(
            interface["name"],
            ipaddress.ip_address(entry["address"]),
            ipaddress.ip_interface("%s/%d" % (entry["address"], entry["prefix"])).network,
        )
        for interface in info.get("interfaces", [])
        if interface["up"] and (include_virtual or not is_virtual_interface(interface["name"]))
        for entry in interface["addresses"]
    ]


def own_addresses(info: dict[str, Any]) -> list[str]:
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


def find_network(info: dict[str, Any], inventory_address: str) -> str:
    """Return the network (CIDR) of the host's inventory address, else of its default route; '' if
    there is none.
    """
    candidates = _candidates(info)
    own = as_address(inventory_address)
    for dummy, address, network in candidates:
        if address == own:
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


def _offer(info: dict[str, Any], named: str | None) -> list[Place]:
    """Return the IPv4 addresses of a host by which others may reach it; only those of the interface
    C(named), if there is one.
    """
    return [
        place
        for place in _candidates(info, include_virtual=bool(named))
        if place.address.version == 4 and named in (None, "", place.interface)
    ]


def _unique_addresses(offers: list[list[Place]]) -> list[set[Address]]:
    """Return the addresses of each host that no other host has."""
    of_hosts = [{place.address for place in offer} for offer in offers]
    everywhere = collections.Counter(address for each in of_hosts for address in each)
    return [{address for address in each if everywhere[address] == 1} for each in of_hosts]


def shared_networks(
    hosts: Mapping[str, dict[str, Any]], named: Mapping[str, str] | None = None
) -> list[Network]:
    """Return, in the first host's order, the IPv4 networks in which every host has a different
    address.

    C(hosts) are answers by name. A host with an interface in C(named) offers that one alone. An
    address that two hosts have is none of their own: bridges and service processors have the same
    address everywhere, under any name.
    """
    interfaces = named or {}
    offers = [_offer(info, interfaces.get(name)) for name, info in hosts.items()]
    if not offers:
        return []
    own = _unique_addresses(offers)
    networks = dict.fromkeys(place.network for place in offers[0] if place.address in own[0])
    return [
        network
        for network in networks
        if all(any(address in network for address in addresses) for addresses in own)
    ]


def cluster_network(network: str, is_inside: bool, shared: list[Network]) -> str:
    """Return the cluster network (CIDR): the head's, or the only one that all hosts share if
    C(is_inside) finds a host outside of the head's.
    """
    return str(shared[0]) if len(shared) == 1 and not (network and is_inside) else network


def _speed_mbit_s(info: dict[str, Any], interface: str) -> float | None:
    """Return the speed of an interface in Mbit/s, that of its RDMA ports first; None if the host
    does not tell it.
    """
    rates: list[float] = [
        port["rate_gb_s"] * 1000
        for port in info.get("rdma_ports", [])
        if interface in port["interfaces"] and port["rate_gb_s"]
    ]
    if rates:
        return max(rates)
    speeds: list[float | None] = [
        entry.get("speed_mbit_s") for entry in info["interfaces"] if entry["name"] == interface
    ]
    return speeds[0] if speeds else None


def _indexes_in(port: RdmaPort, networks: Collection[Network]) -> list[int]:
    """Return the GID indexes of the addresses of a port that are in one of these networks."""
    return [
        index
        for address, index in port["gid_indexes"].items()
        if any(ipaddress.ip_address(address) in network for network in networks)
    ]


def _ports_in(info: dict[str, Any], networks: Collection[Network]) -> list[RdmaPort]:
    """Return the active RDMA ports of a host that have an address in one of these networks."""
    inside = {
        name.partition(".")[0]
        for name, address, dummy in _candidates(info, include_virtual=True)
        if any(address in network for network in networks)
    }
    return [
        port
        for port in info.get("rdma_ports", [])
        if port["state"] == "active"
        and (inside & set(port["interfaces"]) or _indexes_in(port, networks))
    ]


def _beside_gpus(info: dict[str, Any], ports: list[RdmaPort]) -> list[RdmaPort]:
    """Return the ports beside a GPU if every GPU of the host has one beside it, else all of them.

    NCCL takes the ports beside a GPU for its data. One that is far from all GPUs is for storage or
    for the system. Facts of an earlier release do not tell.
    """
    beside = info.get("rdma_beside_gpus") or {}
    near = {gpu for port in ports for gpu in beside.get(port["device"]) or []}
    if not info.get("nvidia_devices") or len(near) < info["nvidia_devices"]:
        return ports
    return [port for port in ports if beside.get(port["device"])]


def _without_storage(
    fastest: list[Network], hosts: Mapping[str, dict[str, Any]], servers: Collection[Address]
) -> list[Network]:
    """Return the networks for data of jobs among several that are equally fast.

    C(servers) are addresses of NFS servers.
    """
    kept = [each for each in fastest if not any(address in each for address in servers)]
    for info in hosts.values():
        ports = _beside_gpus(info, _ports_in(info, kept))
        if ports:
            kept = [each for each in kept if any(port in ports for port in _ports_in(info, [each]))]
    return kept or fastest


def _slowest_speeds(
    hosts: Mapping[str, dict[str, Any]], shared: list[Network], named: Mapping[str, str]
) -> dict[Network, float | None]:
    """Return the speed of each network in Mbit/s: that of the slowest host, which limits a ring of
    all hosts. None if a host does not tell it.
    """
    speeds: dict[Network, float | None] = {}
    for each in shared:
        places = [
            (info, pick_address(info, str(each), interface=named.get(name, "")))
            for name, info in hosts.items()
        ]
        of_hosts = [_speed_mbit_s(info, interface) for info, (_address, interface) in places]
        known = [speed for speed in of_hosts if speed is not None]
        speeds[each] = min(known) if len(known) == len(of_hosts) else None
    return speeds


def _speeds_in_words(speeds: Mapping[Network, float | None]) -> str:
    """Return the networks with their speeds in Mb/s as text."""
    words = []
    for network, speed in speeds.items():
        text = "%g Gb/s" % (speed / 1000.0) if speed else "of unknown speed"
        words.append("%s %s" % (network, text))
    return ", ".join(words)


def fabric_network(
    hosts: Mapping[str, dict[str, Any]],
    shared: list[Network],
    network: str,
    named: Mapping[str, str] | None = None,
    servers: Collection[Address] = (),
) -> tuple[str, str]:
    """Return (CIDR, reason): the fastest network that all hosts share, or the cluster network if
    the fastest is not certain.

    Several that are equally fast are the rails of one fabric, and returned with commas. C(servers)
    are addresses of NFS servers: their network is no rail. The reason is '' where there is nothing
    to choose.
    """
    if not network or len(hosts) < 2:
        return network, ""
    own, interfaces = ipaddress.ip_network(network, strict=False), named or {}
    if all(each.overlaps(own) for each in shared):
        return network, ""
    if any(interfaces.values()) and len(shared) == 1:
        return str(shared[0]), "the one of cluster_fabric_interface"
    speeds = _slowest_speeds(hosts, shared, interfaces)
    return _fastest(speeds, network, lambda fastest: _without_storage(fastest, hosts, servers))


def _fastest(
    speeds: Mapping[Network, float | None],
    network: str,
    without_storage: Callable[[list[Network]], list[Network]],
) -> tuple[str, str]:
    """Return (CIDR, reason) of the fastest network, by the speeds of all in Mbit/s.

    C(network) is the cluster network. C(without_storage) leaves those for data of jobs, of several.
    """
    own, in_words = ipaddress.ip_network(network, strict=False), _speeds_in_words(speeds)
    best = max([speed or 0 for speed in speeds.values()], default=0)
    fastest = [each for each, speed in speeds.items() if speed == best]
    is_own = any(each.overlaps(own) for each in fastest)
    if not all(speeds.values()) or is_own and len(fastest) > 1:
        return (
            network,
            "the fastest network is unknown (%s), so the cluster network is used" % in_words,
        )
    if is_own:
        return network, "the cluster network is the fastest (%s)" % in_words
    if len(fastest) > 1:
        fastest = without_storage(fastest)
    chosen = ",".join(str(each) for each in fastest)
    if len(fastest) > 1:
        return chosen, "the fastest that all hosts share, as rails of one fabric (%s)" % in_words
    return chosen, "the fastest that all hosts share (%s)" % in_words


def pick_address(
    info: dict[str, Any],
    network: str,
    address: str = "",
    interface: str = "",
    inventory_address: str = "",
) -> tuple[str, str]:
    """Return (address, interface) of a host inside the network, or inside the first of several.

    A given address or interface is used and only completed. Otherwise the inventory address has
    priority. ('', '') where the host has no address in the network.
    """
    # A bridge that is given by name or address is the user's choice.
    places = _candidates(info, include_virtual=bool(address or interface))
    if address:
        requested = as_address(address)
        names = [place.interface for place in places if place.address == requested]
        return address, interface or (names[0] if names else "")
    found = [
        place
        for inside in networks_of(network)
        for place in places
        if place.address in inside and interface in ("", place.interface)
    ]
    found.sort(key=lambda place: place.address != as_address(inventory_address))
    return (str(found[0].address), found[0].interface) if found else ("", interface)


def rails_of(info: dict[str, Any], network: str, interface: str = "") -> list[Rail]:
    """Return the place of a host in each of several fabric networks: C(network), C(address),
    C(interface). A single network has no rails.
    """
    networks = networks_of(network)
    places = [(str(each), pick_address(info, str(each), interface=interface)) for each in networks]
    return [
        {"network": each, "address": place[0], "interface": place[1]}
        for each, place in places
        if len(networks) > 1
    ]


def _infiniband_rails(
    info: dict[str, Any],
    alike: list[RdmaPort],
    carriers: list[RdmaPort],
    networks: Collection[Network],
) -> list[RdmaPort]:
    """Return those of the ports C(alike) that carry data of jobs: all of them, unless several have
    an address in the fabric, and so an address matters.
    """
    inside, beside = carriers + _ports_in(info, networks), info.get("rdma_beside_gpus") or {}
    if len(networks) == 1 and sum(port in inside for port in alike) < 2:
        return alike
    addressed = {
        name.partition(".")[0]
        for name, address, dummy in _candidates(info, include_virtual=True)
        if address.version == 4
    }
    return [
        port
        for port in alike
        if port in inside
        or (beside.get(port["device"]) and not addressed & set(port["interfaces"]))
    ]


def _carriers(ports: list[RdmaPort], address: str, interface: str) -> list[RdmaPort]:
    """Return the RDMA ports that carry an interface or an address."""
    names = {interface, interface.partition(".")[0]}
    return [
        port for port in ports if names & set(port["interfaces"]) or address in port["gid_indexes"]
    ]


def _rails(
    info: dict[str, Any],
    ports: list[RdmaPort],
    carriers: list[RdmaPort],
    networks: Collection[Network],
) -> tuple[list[RdmaPort], set[int]]:
    """Return (the ports that are rails of the fabric, the GID indexes of those with an address
    inside).

    InfiniBand needs no address, so every active port of the same rate is a rail. RoCE needs one:
    each port with an address inside a network is a rail.
    """
    first = carriers[0]
    if first["transport"] == "infiniband":
        kind = (first["transport"], first["rate_gb_s"])
        alike = [port for port in ports if (port["transport"], port["rate_gb_s"]) == kind]
        return _infiniband_rails(info, alike, carriers, networks), set()
    by_port = [(port, _indexes_in(port, networks)) for port in ports]
    rails = [port for port, found in by_port if found]
    return rails or carriers, {found[0] for dummy, found in by_port if found}


def _names_for_nccl(info: dict[str, Any], ports: list[RdmaPort]) -> list[str]:
    """Return the ports in NCCL_IB_HCA's notation."""
    several = {port["device"] for port in info["rdma_ports"] if port["port"] > 1}
    names = []
    for port in ports:
        number = ":%d" % port["port"] if port["device"] in several else ""
        names.append(port["device"] + number)
    return names


def rdma_of(info: dict[str, Any], network: str, address: str, interface: str) -> Rdma | None:
    """Return the RDMA devices of a host's fabric data: transport, rate, devices in NCCL_IB_HCA's
    notation, GID index; None without any.

    C(network) may be several with commas. If several ports have an address inside, the others are
    for storage. So is a port that is far from the GPUs, if each GPU has one beside it. If the host
    has faster ports than the rails, its data should not be restricted to them, and NCCL chooses by
    itself.
    """
    ports = [
        port
        for port in info.get("rdma_ports", [])
        if port["state"] == "active" and port["transport"] in ("infiniband", "roce")
    ]
    carriers = _carriers(ports, address, interface)
    if not (network and interface and carriers):
        return None
    fastest = max([port["rate_gb_s"] or 0 for port in _beside_gpus(info, ports)] or [0])
    first, networks = carriers[0], networks_of(network)
    if (first["rate_gb_s"] or 0) < fastest:
        return None
    rails, indexes = _rails(info, ports, carriers, networks)
    # Several networks are rails that somebody has chosen.
    rails = _beside_gpus(info, rails) if len(networks) == 1 else rails
    return {
        "transport": first["transport"],
        "rate_gb_s": first["rate_gb_s"],
        "devices": _names_for_nccl(info, rails),
        # One per process, because NCCL has only one variable for it.
        "gid_index": indexes.pop() if len(indexes) == 1 else None,
    }


def slots_of(info: dict[str, Any], slots: int, trains: bool = True) -> int:
    """Return the host's number of ranks.

    It is C(slots), the requested one. If that is 0, it is one per GPU or NPU, or one without. A
    host outside of group gpu, if that exists, has none.
    """
    if not trains:
        return 0
    return slots or max(1, int(info["gpus"] or info.get("npus", 0)))
