# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a host is asked before anything changes: names to resolve, connections to try, accounts to look up. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

NFS_PORT = 2049
# What the distributions have, for a host whose package lists are empty. Ubuntu's: packages.ubuntu.com as quoted in tests/fixtures/ubuntu.
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


def offered(host: dict, candidates: dict, source: dict) -> dict[str, str]:
    """Return the upstream versions of slurmd and podman that a host has or would get.

    :param host: facts of role cluster.
    :param candidates: what module host_info returned, empty if the host has no package lists or was not asked.
    :param source: slurm_packages_source. Before the host has it, nothing is known.
    """
    if source and SLURM_SOURCE not in host.get("files", {}):
        return {}
    system = "%s %s" % (host["os"]["id"], host["os"]["version_id"])
    told = {name: version for name, version in candidates.items() if version}
    versions = dict(OF_DISTRIBUTION.get(system, {}), **told)
    found = {name: _UPSTREAM.match(version) for name, version in versions.items()}
    return {name: match.group(1) for name, match in found.items() if match}


def disks(answer: dict, path: str, mib: int, storage: str = "") -> list[dict]:
    """Return what each file system must have free for the training image: C(paths), C(needed) and C(free) in MiB, C(copies), whether it is podman's alone.

    :param answer: what module host_info returned.
    :param path: folder of Docker.
    :param mib: space for the image and its build.
    :param storage: folder of podman's copy, which takes half of that and as much in SPOOL while it is loaded. Empty if jobs do not run in containers.
    """
    needs = [] if answer["labelled_images"] else [(path, mib, False)]
    if storage and not any(name.startswith(storage + "/") for name in answer.get("files", {})):
        needs += [(storage, mib // 2, True), (SPOOL, mib // 2, True)]
    groups = {}
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


def differences(gpus):
    """What the hosts with GPUs do not have in common: the branch of the C(driver), the version of C(nccl). A host without one has no say."""
    branches = {gpu["driver"].split(".")[0] for gpu in gpus if gpu["driver"]}
    builds = {gpu["nccl"]["version"] for gpu in gpus if gpu["nccl"]["version"]}
    return [name for name, found in (("driver", branches), ("nccl", builds)) if len(found) > 1]


def _on_fabric(member):
    """Return the addresses of a member on the fabric by network. A single network needs no name."""
    rails = {rail["network"]: rail["address"] for rail in member.get("fabric_rails") or []}
    return rails or {"": member["fabric_address"]}


def to_peers(members, host, port):
    """Connections to the cluster's other reachable hosts, on the cluster network and, from the host's own address, on each fabric network.

    An unreachable member is a finding already, and no other host needs to wait for it. The source is given because routes could use another network.
    """
    own = next((_on_fabric(member) for member in members if member["name"] == host), {})
    targets = []
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


def to_nfs_servers(mounts, options, members, host, storage):
    """Connections to the NFS servers, except to the storage host, which may not be a server yet, and to the host itself."""
    targets = []
    for mount in mounts:
        server = mount["server"]
        # An inventory name has priority over an address.
        member = next(
            (each for key in ("name", "address") for each in members if each[key] == server), {}
        )
        chosen = [str(option) for option in mount.get("options") or options]
        # A port for RDMA is none of TCP.
        if member.get("name", "") in (storage, host) or any(map(_RDMA.match, chosen)):
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


def nfs_without_rdma(mounts, options, members, host, storage, answering):
    """The mounts of a host with option rdma that cannot work: C(server), C(found) as text, and C(on_server), whether it is the server that lacks RDMA.

    Without C(mounts), the share of C(storage) is mounted. Of a server outside of the cluster, only its mount tells.
    """
    facts = {each["name"]: each for each in answering}
    found = []
    for mount in mounts or [{"server": storage}]:
        chosen = [str(option) for option in mount.get("options") or options]
        names = [
            member["name"]
            for member in members
            if mount["server"] in (member["name"], member["address"])
        ]
        if not any(map(_RDMA.match, chosen)) or host in names:
            continue
        offered = facts.get(names[0], {}).get("nfs_transports") or [] if names else ["rdma"]
        ports = facts.get(host, {}).get("rdma_ports") or []
        if not any(each.startswith("rdma") for each in offered):
            told = "offers %s" % " and ".join(offered) if offered else "has no NFS server yet"
            found.append(
                {
                    "server": names[0],
                    "found": "%s %s" % (names[0], told),
                    "on_server": True,
                }
            )
        elif not any(port["state"] == "active" for port in ports):
            found.append(
                {
                    "server": mount["server"],
                    "found": "this host has no active RDMA port",
                    "on_server": False,
                }
            )
    return found


def nfs_client_names(clients, exports):
    """Clients given by name: exportfs ignores names that the server cannot resolve."""
    those = list(clients)
    for export in exports:
        of_export = export.get("clients") or []
        those += [of_export] if isinstance(of_export, str) else of_export
    # Case does not matter in a host name.
    names = {}
    for client in those:
        if not _ADDRESS.match(str(client)):
            names.setdefault(str(client).lower(), client)
    return list(names.values())


def gids(users, groups):
    """Number of each group. Users without groups get a group of the same name and number."""
    numbers = {user["name"]: user["uid"] for user in users if not user.get("groups")}
    return dict(numbers, **{group["name"]: group["gid"] for group in groups})


class Requested(NamedTuple):
    """What the variables say about NFS and people.

    C(mounts) and C(options) are C(nfs_client_mounts) and C(nfs_client_options), C(clients) and C(exports) are C(nfs_server_clients) and C(nfs_server_exports),
    C(users) and C(groups) are C(shared_storage_users) and C(shared_storage_groups).
    """

    mounts: Sequence[dict] = ()
    options: Sequence[str] = ()
    clients: Sequence[str] = ()
    exports: Sequence[dict] = ()
    users: Sequence[dict] = ()
    groups: Sequence[dict] = ()


def preflight_plan(
    members: list[dict], host: str, port: int, storage: str, requested: Requested
) -> dict:
    """Return C(names) to resolve, C(connect), connections to try, and C(groups), the number of each group to look up."""
    connect = []
    for target in to_peers(members, host, port) + to_nfs_servers(
        requested.mounts, requested.options, members, host, storage
    ):
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


def wrong_names(members, own_name, resolved, loopback, answering=()):
    """The members whose name has other addresses than their own (C(resolved), C(addresses) by name).

    Hosts often have a second name or address for management. So an address of any interface of the member is right, C(answering) has the facts of each
    host that answers. Of a host that does not answer, only a loopback address or one of another member is known to be wrong.
    """
    taken = {member["address"] for member in members}
    of_hosts = {
        host["name"]: {
            entry["address"] for card in host["interfaces"] for entry in card["addresses"]
        }
        for host in answering
    }
    wrong = []
    for member in members:
        if member["name"] == own_name or not member["address"]:
            continue
        found = resolved[member["name"]]["addresses"]
        own = of_hosts.get(member["name"], set()) | {member["address"]}
        if own.intersection(address for address in found if not re.match(loopback, address)):
            continue
        if any(
            member["name"] in of_hosts or address in taken or re.match(loopback, address)
            for address in found
        ):
            wrong.append(member)
    return wrong


def _interfaces(members):
    """Return the interface of each member by network, as a finding names the network: C(cluster), C(fabric), and a rail with its CIDR."""
    found = {
        "cluster": {member["name"]: member["interface"] for member in members},
        "fabric": {member["name"]: member["fabric_interface"] for member in members},
    }
    for member in members:
        for rail in member.get("fabric_rails") or []:
            its = found.setdefault("fabric (%s)" % rail["network"], {})
            its[member["name"]] = rail["interface"]
    return found


def rdma_ports_missing(members, answering):
    """The training hosts with fewer active RDMA ports of the highest rate than another one: C(name), C(expected) and C(found) as text.

    NCCL uses a ring of all hosts, and the host with the fewest ports limits it. If a host has none, all hosts use sockets.
    """
    names = [member["name"] for member in members if member["slots"]]
    ports = {
        host["name"]: host.get("rdma_ports") or [] for host in answering if host["name"] in names
    }
    active = {
        name: [port for port in each if port["state"] == "active" and port["rate_gb_s"]]
        for name, each in ports.items()
    }
    rate = max((port["rate_gb_s"] for each in active.values() for port in each), default=0)
    fast = {
        name: [port for port in its if port["rate_gb_s"] == rate] for name, its in active.items()
    }
    most = max(fast, key=lambda name: len(fast[name]), default="")
    return [
        {
            "name": name,
            "expected": "%d active RDMA ports with %g Gb/s, as on %s"
            % (len(fast[most]), rate, most),
            "found": "%d%s"
            % (
                len(its),
                "".join(
                    ", %s port %d: %s, %s Gb/s"
                    % (port["device"], port["port"], port["state"], port["rate_gb_s"])
                    for port in ports[name]
                    if port not in its
                ),
            ),
        }
        for name, its in fast.items()
        if len(its) < len(fast[most])
    ]


def mtu_differences(members, answering):
    """The networks of the cluster whose interfaces have different MTUs: C(network) (a word), C(hosts), and C(found), the hosts by MTU as text.

    A host with a larger one sends packets that the others drop, if no router tells it. Old facts have no MTU.
    """
    facts = {host["name"]: host for host in answering}
    different = []
    for network, interfaces in _interfaces(members).items():
        by_mtu = {}
        for name, interface in interfaces.items():
            for card in facts.get(name, {}).get("interfaces", []):
                if card["name"] == interface and card.get("mtu"):
                    by_mtu.setdefault(card["mtu"], []).append(name)
        same = [entry for entry in different if entry["by_mtu"] == by_mtu]
        if len(by_mtu) > 1 and not same:
            found = "; ".join(
                "%d on %s" % (mtu, ", ".join(hosts)) for mtu, hosts in sorted(by_mtu.items())
            )
            names = sorted(name for hosts in by_mtu.values() for name in hosts)
            different.append({"network": network, "hosts": names, "found": found, "by_mtu": by_mtu})
    return different


def decide_preflight_plan(
    members: list[dict], host: str, port: int, storage: str, requested: dict | None = None
) -> dict:
    """As preflight_plan. C(requested) has the fields of Requested."""
    return preflight_plan(members, host, port, storage, Requested(**(requested or {})))
