# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a host is asked before anything changes: names to resolve, connections to try, accounts to
look up. Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

if TYPE_CHECKING:
    # Module typing has these from Python 3.11, and a controller may run Python 3.10.
    from typing_extensions import NotRequired

NFS_PORT = 2049
# What the distributions have, for a host whose package lists are empty. Ubuntu's:
# packages.ubuntu.com as quoted in tests/fixtures/ubuntu.
OF_DISTRIBUTION = {
    "debian 12": {"slurmd": "22.05.8", "podman": "4.3.1"},
    "debian 13": {"slurmd": "24.11.5", "podman": "5.4.2"},
    "ubuntu 22.04": {"slurmd": "21.08.5", "podman": "3.4.4"},
    "ubuntu 24.04": {"slurmd": "23.11.4", "podman": "4.9.3"},
}
# Of slurm_packages_source. Role package_sources writes it.
SLURM_SOURCE = "/etc/apt/sources.list.d/trainyard-slurm.sources"
# podman load writes its input there first.
SPOOL = "/var/tmp"
_UPSTREAM = re.compile(r"(?:\d+:)?(\d+(?:\.\d+)*)")
_PORT_OPTION = re.compile(r"port=[0-9]+$")
_RDMA = re.compile(r"(proto=)?rdma6?$")
# An address or a network. The server resolves every other client.
_ADDRESS = re.compile(r"([0-9.]+|[0-9A-Fa-f]*:[0-9A-Fa-f:]*)(/[0-9]+)?$")


class DiskNeed(TypedDict):
    """What one file system must have free, in MiB, for which folders.

    C(copies) is whether all of it is podman's.
    """

    paths: list[str]
    needed: int
    free: int
    copies: bool


class Target(TypedDict):
    """A connection to try. C(source) is the address of the host that it must come from."""

    name: str
    address: str
    port: int
    source: NotRequired[str]


class Plan(TypedDict):
    """What a host is asked: C(names) to resolve, C(connect), connections to try, and C(groups), the
    number of each group to look up.
    """

    names: list[str]
    connect: list[Target]
    groups: dict[str, int]


class WithoutRdma(TypedDict):
    """A mount with option rdma that cannot work.

    C(found) is text, and C(on_server) whether it is the server that lacks RDMA.
    """

    server: str
    found: str
    on_server: bool


class FewerPorts(TypedDict):
    """A host with fewer RDMA ports than another one. Expected and found are texts."""

    name: str
    expected: str
    found: str


class MtuDifference(TypedDict):
    """A network (a word) whose interfaces have different MTUs.

    C(by_mtu) are the hosts by MTU in bytes, and C(found) is that as text.
    """

    network: str
    hosts: list[str]
    found: str
    by_mtu: dict[int, list[str]]


def offered(
    host: dict[str, Any], candidates: dict[str, str], source: dict[str, Any]
) -> dict[str, str]:
    """Return the upstream versions of slurmd and podman that a host has or would get.

    :param host: facts of role cluster.
    :param candidates: what module host_info returned, empty if the host has no package lists or was not asked.
    :param source: slurm_packages_source. Before the host has it, nothing is known.
    """
    if source and SLURM_SOURCE not in host.get("files", {}):
        return {}
    system = "%s %s" % (host["os"]["id"], host["os"]["version_id"])
    known = {name: version for name, version in candidates.items() if version}
    versions = dict(OF_DISTRIBUTION.get(system, {}), **known)
    found = {name: _UPSTREAM.match(version) for name, version in versions.items()}
    return {name: match.group(1) for name, match in found.items() if match}


def disks(answer: dict[str, Any], path: str, mib: int, storage: str = "") -> list[DiskNeed]:
    """Return what each file system must have free for the training image.

    :param answer: what module host_info returned.
    :param path: folder of Docker.
    :param mib: space for the image and its build.
    :param storage: folder of podman's copy, which takes half of that and as much in SPOOL while it is loaded. Empty if jobs do not run in containers.
    """
    needs = [] if answer["labelled_images"] else [(path, mib, False)]
    if storage and not any(name.startswith(storage + "/") for name in answer.get("files", {})):
        needs += [(storage, mib // 2, True), (SPOOL, mib // 2, True)]
    groups: dict[str, DiskNeed] = {}
    for place, size, copies in needs:
        device = answer.get("disk_devices", {}).get(place, place)
        group = groups.setdefault(
            device,
            {"paths": [], "needed": 0, "free": answer["disk_free_mib"][place], "copies": True},
        )
        group["paths"].append(place)
        group["needed"] += size
        group["copies"] = group["copies"] and copies
    return list(groups.values())


def differences(gpus: Sequence[dict[str, Any]]) -> list[str]:
    """Return what the hosts with GPUs do not have in common: the branch of the C(driver), the
    version of C(nccl). A host without one has no say.
    """
    branches = {gpu["driver"].split(".")[0] for gpu in gpus if gpu["driver"]}
    builds = {gpu["nccl"]["version"] for gpu in gpus if gpu["nccl"]["version"]}
    return [name for name, found in (("driver", branches), ("nccl", builds)) if len(found) > 1]


def _on_fabric(member: dict[str, Any]) -> dict[str, str]:
    """Return the addresses of a member on the fabric by network. A single network needs no name."""
    rails = {rail["network"]: rail["address"] for rail in member.get("fabric_rails") or []}
    return rails or {"": member["fabric_address"]}


def to_peers(members: Sequence[dict[str, Any]], host: str, port: int | str) -> list[Target]:
    """Return connections to the cluster's other reachable hosts, on the cluster network and, from
    the host's own address, on each fabric network.

    An unreachable member is a finding already, and no other host needs to wait for it. The source
    is given because routes could use another network.
    """
    mine = [_on_fabric(member) for member in members if member["name"] == host]
    own = mine[0] if mine else {}
    targets: list[Target] = []
    for peer in members:
        if peer["name"] == host or not peer["address"] or not peer["reachable"]:
            continue
        targets.append({"name": peer["name"], "address": peer["address"], "port": int(port)})
        for network, address in _on_fabric(peer).items():
            if address not in ("", peer["address"]) and own.get(network):
                targets.append(
                    {
                        "name": peer["name"],
                        "address": address,
                        "port": int(port),
                        "source": own[network],
                    }
                )
    return targets


def _options_of(mount: dict[str, Any], options: Sequence[str]) -> list[str]:
    """Return the options of a mount, which replace those of all mounts."""
    return [str(option) for option in mount.get("options") or options]


def _is_rdma(options: list[str]) -> bool:
    """Return whether a mount with these options uses RDMA."""
    return any(map(_RDMA.match, options))


def to_nfs_servers(
    mounts: Sequence[dict[str, Any]],
    options: Sequence[str],
    members: Sequence[dict[str, Any]],
    host: str,
    storage: str,
) -> list[Target]:
    """Return connections to the NFS servers, except to the storage host, which may not be a server
    yet, and to the host itself.
    """
    targets: list[Target] = []
    for mount in mounts:
        server = mount["server"]
        # An inventory name has priority over an address.
        those = [each for key in ("name", "address") for each in members if each[key] == server]
        member = those[0] if those else {}
        chosen = _options_of(mount, options)
        # A port for RDMA is none of TCP.
        if member.get("name", "") in (storage, host) or _is_rdma(chosen):
            continue
        ports = [option.replace("port=", "") for option in chosen if _PORT_OPTION.match(option)]
        targets.append(
            {
                "name": "NFS server %s" % server,
                "address": member.get("address", server),
                "port": int(ports[0]) if ports else NFS_PORT,
            }
        )
    return targets


def nfs_without_rdma(
    mounts: Sequence[dict[str, Any]],
    options: Sequence[str],
    members: Sequence[dict[str, Any]],
    host: str,
    storage: str,
    answering: Sequence[dict[str, Any]],
) -> list[WithoutRdma]:
    """Return the mounts of a host with option rdma that cannot work.

    C(answering) has the facts of each host that answers.

    Without C(mounts), the share of C(storage) is mounted. Of a server outside of the cluster, only
    its mount tells.
    """
    facts = {each["name"]: each for each in answering}
    found: list[WithoutRdma] = []
    for mount in mounts or [{"server": storage}]:
        server = mount["server"]
        names = [each["name"] for each in members if server in (each["name"], each["address"])]
        if not _is_rdma(_options_of(mount, options)) or host in names:
            continue
        lack = _lack_of_server(names[0], facts.get(names[0], {})) if names else ""
        if lack:
            found.append({"server": names[0], "found": lack, "on_server": True})
        elif not _has_active_port(facts.get(host, {})):
            lack = "this host has no active RDMA port"
            found.append({"server": server, "found": lack, "on_server": False})
    return found


def _has_active_port(facts: dict[str, Any]) -> bool:
    """Return whether a host has an RDMA port in use."""
    return any(port["state"] == "active" for port in facts.get("rdma_ports") or [])


def _lack_of_server(name: str, facts: dict[str, Any]) -> str:
    """Return why an NFS server of the cluster does not offer RDMA, or nothing if it does."""
    transports = facts.get("nfs_transports") or []
    if any(each.startswith("rdma") for each in transports):
        return ""
    if not transports:
        return "%s has no NFS server yet" % name
    return "%s offers %s" % (name, " and ".join(transports))


def nfs_client_names(clients: Sequence[str], exports: Sequence[dict[str, Any]]) -> list[str]:
    """Return the clients given by name: exportfs ignores names that the server cannot resolve."""
    those = list(clients)
    for export in exports:
        of_export = export.get("clients") or []
        those += [of_export] if isinstance(of_export, str) else of_export
    # Case does not matter in a host name.
    names: dict[str, str] = {}
    for client in those:
        if not _ADDRESS.match(str(client)):
            names.setdefault(str(client).lower(), client)
    return list(names.values())


def gids(users: Sequence[dict[str, Any]], groups: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Return the number of each group.

    Users without groups get a group of the same name and number.
    """
    numbers = {user["name"]: user["uid"] for user in users if not user.get("groups")}
    return dict(numbers, **{group["name"]: group["gid"] for group in groups})


class Requested(NamedTuple):
    """What is read of a host, and what the variables say about NFS and people.

    C(host) and C(storage), the host of the share, are inventory names, and C(port) is that of ssh.
    C(mounts) and C(options) are C(nfs_client_mounts) and C(nfs_client_options), C(clients) and
    C(exports) are C(nfs_server_clients) and C(nfs_server_exports), C(users) and C(groups) are
    C(shared_storage_users) and C(shared_storage_groups).
    """

    host: str
    port: int | str
    storage: str
    mounts: Sequence[dict[str, Any]] = ()
    options: Sequence[str] = ()
    clients: Sequence[str] = ()
    exports: Sequence[dict[str, Any]] = ()
    users: Sequence[dict[str, Any]] = ()
    groups: Sequence[dict[str, Any]] = ()


def preflight_plan(members: Sequence[dict[str, Any]], requested: Requested) -> Plan:
    """Return what a host is asked. C(members) are those of the cluster."""
    host, storage = requested.host, requested.storage
    targets = to_peers(members, host, requested.port)
    targets += to_nfs_servers(requested.mounts, requested.options, members, host, storage)
    connect: list[Target] = []
    for target in targets:
        if target not in connect:
            connect.append(target)
    names = [member["name"] for member in members if member["name"] != host and member["address"]]
    if host == storage:
        names += nfs_client_names(requested.clients, requested.exports)
    return {
        "names": names,
        "connect": connect,
        "groups": gids(requested.users, requested.groups),
    }


def _addresses(facts: dict[str, Any]) -> set[str]:
    """Return the addresses of all interfaces of a host."""
    return {entry["address"] for card in facts["interfaces"] for entry in card["addresses"]}


def wrong_names(
    members: Sequence[dict[str, Any]],
    own_name: str,
    resolved: dict[str, dict[str, Any]],
    loopback: str,
    answering: Sequence[dict[str, Any]] = (),
) -> list[dict[str, Any]]:
    """Return the members whose name has other addresses than their own (C(resolved), C(addresses)
    by name).

    Hosts often have a second name or address for management. So an address of any interface of the
    member is right, C(answering) has the facts of each host that answers. Of a host that does not
    answer, only a loopback address or one of another member is known to be wrong. C(loopback) is a
    regular expression.
    """
    taken = {member["address"] for member in members}
    of_hosts = {facts["name"]: _addresses(facts) for facts in answering}
    wrong = []
    for member in members:
        name = member["name"]
        if name == own_name or not member["address"]:
            continue
        found = resolved[name]["addresses"]
        outer = [address for address in found if not re.match(loopback, address)]
        if not of_hosts.get(name, set()).union([member["address"]]).isdisjoint(outer):
            continue
        has_loopback = len(outer) < len(found)
        if found and (name in of_hosts or has_loopback or not taken.isdisjoint(outer)):
            wrong.append(member)
    return wrong


def _interfaces(members: Sequence[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """Return the interface of each member by network, as a finding names the network: C(cluster),
    C(fabric), and a rail with its CIDR.
    """
    found = {
        "cluster": {member["name"]: member["interface"] for member in members},
        "fabric": {member["name"]: member["fabric_interface"] for member in members},
    }
    for member in members:
        for rail in member.get("fabric_rails") or []:
            its = found.setdefault("fabric (%s)" % rail["network"], {})
            its[member["name"]] = rail["interface"]
    return found


def rdma_ports_missing(
    members: Sequence[dict[str, Any]], answering: Sequence[dict[str, Any]]
) -> list[FewerPorts]:
    """Return the training hosts with fewer active RDMA ports of the highest rate (Gb/s) than
    another one.

    NCCL uses a ring of all hosts, and the host with the fewest ports limits it. If a host has none,
    all hosts use sockets.
    """
    names = [member["name"] for member in members if member["slots"]]
    ports = {
        host["name"]: host.get("rdma_ports") or [] for host in answering if host["name"] in names
    }
    rate = max((_rate(port) for each in ports.values() for port in each), default=0)
    fast = {
        name: [port for port in each if rate and _rate(port) == rate]
        for name, each in ports.items()
    }
    most = max(fast, key=lambda name: len(fast[name]), default="")
    return [
        {
            "name": name,
            "expected": "%d active RDMA ports with %g Gb/s, as on %s"
            % (len(fast[most]), rate, most),
            "found": _ports_as_text(ports[name], its),
        }
        for name, its in fast.items()
        if len(its) < len(fast[most])
    ]


def _rate(port: dict[str, Any]) -> float:
    """Return the rate of a port in Gb/s, 0 if the port is not active or its rate is unknown."""
    return port["state"] == "active" and port["rate_gb_s"] or 0


def _ports_as_text(ports: list[dict[str, Any]], fast: list[dict[str, Any]]) -> str:
    """Return the number of the fast ports of a host, and what the other ones are."""
    others = [
        "%s port %d: %s, %s Gb/s" % (port["device"], port["port"], port["state"], port["rate_gb_s"])
        for port in ports
        if port not in fast
    ]
    return ", ".join(["%d" % len(fast), *others])


def mtu_differences(
    members: Sequence[dict[str, Any]], answering: Sequence[dict[str, Any]]
) -> list[MtuDifference]:
    """Return the networks of the cluster whose interfaces have different MTUs.

    A host with a larger one sends packets that the others drop, if no router tells it. Old facts
    have no MTU.
    """
    facts = {host["name"]: host for host in answering}
    different: list[MtuDifference] = []
    for network, interfaces in _interfaces(members).items():
        by_mtu = _hosts_by_mtu(interfaces, facts)
        is_told = any(entry["by_mtu"] == by_mtu for entry in different)
        if len(by_mtu) > 1 and not is_told:
            found = "; ".join(
                "%d on %s" % (mtu, ", ".join(hosts)) for mtu, hosts in sorted(by_mtu.items())
            )
            names = sorted(name for hosts in by_mtu.values() for name in hosts)
            different.append({"network": network, "hosts": names, "found": found, "by_mtu": by_mtu})
    return different


def _hosts_by_mtu(
    interfaces: dict[str, str], facts: dict[str, dict[str, Any]]
) -> dict[int, list[str]]:
    """Return the names of hosts by the MTU of their interface in one network.

    C(interfaces) are names of interfaces by host.
    """
    by_mtu: dict[int, list[str]] = {}
    for name, interface in interfaces.items():
        for card in facts.get(name, {}).get("interfaces", []):
            if card["name"] == interface and card.get("mtu"):
                by_mtu.setdefault(card["mtu"], []).append(name)
    return by_mtu


class Found(TypedDict):
    """The hosts of the cluster as module cluster_members returns them."""

    members: Sequence[dict[str, Any]]


def decide_preflight_plan(found: Found, requested: Mapping[str, Any]) -> Plan:
    """Return what a host is asked: names to resolve, connections to try, and groups to look up.

    C(requested) has the fields of Requested by name; C(host), C(port) and C(storage) are required.

    Returns Plan, which explains each key. Raises TypeError for an unknown or a missing field.
    """
    return preflight_plan(found["members"], Requested(**requested))
