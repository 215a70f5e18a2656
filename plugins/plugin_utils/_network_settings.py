# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Network settings of NCCL, Gloo, MPI and Horovod.

Pure functions over the members that M(cluster_members) returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._launchers import EACH, LAUNCHERS

if TYPE_CHECKING:
    from ansible_collections.trainyard.gpu.plugins.plugin_utils._cluster import Member

__all__ = ["LAUNCHERS", "network_settings"]

# They run on each host, with an environment of its own.
ON_EACH_HOST = [name for name, launcher in LAUNCHERS.items() if launcher.starts == EACH]
# NCCL uses the listed devices that a host has.
LISTS = ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA")


class Settings(TypedDict):
    """What the ranks of a job know of the network."""

    #: The interface of all hosts; empty if they have different ones.
    interface: str
    #: Address on the fabric network, by host.
    addresses: dict[str, str]
    #: Variables of the ranks, by host.
    environment: dict[str, dict[str, str]]
    #: Why the ranks cannot reach each other, and what is worth knowing, as sentences.
    problems: list[str]
    notes: list[str]


def _each(hosts: Iterable[Member], value: Callable[[Member], object]) -> str:
    """Return a value of each host, in words."""
    return ", ".join("%s on %s" % (value(host), host["name"]) for host in hosts)


class _Transport(NamedTuple):
    """How NCCL moves data: over RDMA on all hosts (C(whole)), on some (C(partly)), which is not
    used, or on none.
    """

    whole: bool
    partly: bool
    note: str


def _transport(hosts: list[Member], fabric_network: str) -> _Transport:
    over_rdma = [host["fabric_rdma"] for host in hosts if host["fabric_rdma"]]
    whole = len(over_rdma) == len(hosts) and len({rdma["transport"] for rdma in over_rdma}) == 1
    if whole or not over_rdma:
        return _Transport(whole, False, "")
    # Ranks without a common transport hang.
    note = "NCCL uses sockets, because the hosts have no common RDMA transport on %s: %s" % (
        fabric_network,
        _each(hosts, lambda host: (host["fabric_rdma"] or {"transport": "none"})["transport"]),
    )
    return _Transport(False, True, note)


def _interface_problems(hosts: list[Member], launcher: str, fabric_network: str) -> list[str]:
    """Return why the ranks have no interface that the launcher can name."""
    names = {host["fabric_interface"] for host in hosts}
    nameless = [host["name"] for host in hosts if not host["fabric_interface"]]
    if nameless:
        return [
            "%s: no interface on the network %s is known"
            % (", ".join(nameless), fabric_network or "of the cluster")
        ]
    if launcher == "horovodrun" and len(names) > 1:
        return [
            "horovodrun gives one interface name to all ranks, but on %s it is %s"
            % (fabric_network, _each(hosts, lambda host: host["fabric_interface"]))
        ]
    return []


def _environment(host: Member, launcher: str, transport: _Transport) -> dict[str, str]:
    """Return the variables of a host's ranks that follow from the host."""
    # Without the sign it is a prefix: bond0 also matches bond0.100. With RDMA, sockets are only for
    # the rendezvous; horovodrun has one name for both.
    socket = host["fabric_interface"]
    if transport.whole and launcher != "horovodrun":
        socket = host["interface"]
    settings = {
        "GLOO_SOCKET_IFNAME": host["fabric_interface"],
        "NCCL_SOCKET_IFNAME": "=" + socket,
    }
    rdma = host["fabric_rdma"]
    if transport.whole and rdma:
        settings["NCCL_IB_HCA"] = "=" + ",".join(rdma["devices"])
        if rdma["gid_index"] is not None:
            settings["NCCL_IB_GID_INDEX"] = str(rdma["gid_index"])
    elif transport.partly:
        settings["NCCL_IB_DISABLE"] = "1"
    if launcher == "horovodrun":
        settings["HOROVOD_GLOO_IFACE"] = host["fabric_interface"]
    return settings


def network_settings(
    members: list[Member], launcher: str, cluster_network: str, fabric_network: str
) -> Settings:
    """Return the settings of all hosts, for one of LAUNCHERS. The networks are CIDRs.

    Hosts without slots have no ranks and are ignored.
    """
    hosts = [member for member in members if member["slots"]]
    names = list(dict.fromkeys(host["fabric_interface"] for host in hosts))
    problems = _interface_problems(hosts, launcher, fabric_network)
    transport = _transport(hosts, fabric_network)
    notes = [transport.note] if transport.note else []
    networks = {}
    if launcher not in ON_EACH_HOST:
        # By network, because names may differ.
        networks = {
            "OMPI_MCA_oob_tcp_if_include": cluster_network,
            "OMPI_MCA_btl_tcp_if_include": fabric_network,
        }
    environment = {}
    for host in hosts:
        settings = dict(_environment(host, launcher, transport), **networks)
        environment[host["name"]] = {
            variable: value for variable, value in settings.items() if value
        }

    if launcher not in ON_EACH_HOST and not problems:
        environment, differences = _one_for_all(environment, launcher)
        notes += differences
    return {
        "interface": names[0] if len(names) == 1 else "",
        "addresses": {host["name"]: host.get("fabric_address", "") for host in hosts},
        "environment": environment,
        "problems": problems,
        "notes": notes,
    }


def _one_for_all(
    environment: dict[str, dict[str, str]], launcher: str
) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Return the common environment of all hosts, by host, and its differences from each host's own
    settings.
    """
    merged, notes = {}, []
    for variable in sorted({name for settings in environment.values() for name in settings}):
        values = {name: settings.get(variable, "none") for name, settings in environment.items()}
        several = list(dict.fromkeys(values.values()))
        each = ", ".join("%s on %s" % (value, name) for name, value in values.items())
        if len(several) == 1:
            merged[variable] = several[0]
        elif variable in LISTS:
            merged[variable] = "=" + ",".join(
                dict.fromkeys(",".join(value.lstrip("=") for value in several).split(","))
            )
            notes.append(
                (
                    "%s is %s for all ranks, because %s has one value for them, from which NCCL "
                    "uses what a host has: %s"
                )
                % (variable, merged[variable], launcher, each)
            )
        else:
            notes.append(
                "%s is not set, because %s has one value for all ranks: %s"
                % (variable, launcher, each)
            )
    return {name: dict(merged) for name in environment}, notes
