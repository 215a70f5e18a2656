# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Checks of observations while role verify measured the bandwidth: counters of the fabric, use of
the GPUs, NCCL's connections.

Pure. C(watched) is what the job (files/all_reduce.py, files/horovod_all_reduce.py) has left of
that: ranks, size_bytes, iterations, error, and by host ranks, sent_bytes, received_bytes, by_card
(bytes of both directions by the name of the card), gpus (percent), via (the text after ' via ' in
NCCL's log, each once). Some tools add other values:

- reduced_bytes: the least and the most of size_bytes x iterations, of one that has reduced messages of several sizes;
- ring: false where it is not known by which algorithm that was done;
- transports: what NCCL's log names, in place of via;
- over_rdma: by host, what NCCL's log names of connections over InfiniBand or RoCE, beside transports;
- in_use: percent from which on a GPU was in use, where gpus are the highest figures of a whole run;
- errors: by host, why neither its counters nor its GPUs are known.

C(facts) are the hosts' cards and GPUs, as P(_bandwidth) has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.trainyard.gpu.plugins.module_utils._bandwidth import (
    GLOO_PIECE,
    has_nvlink,
    may_move,
    must_move,
    rdma_connections,
    transports,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._quantity import quantity
from ansible_collections.trainyard.gpu.plugins.plugin_utils._findings import finding

__all__ = ["fabric_counters", "fabric_errors", "gpus_busy", "nccl_transport"]

#: Allowed difference of counters from the expected traffic. Headers and acknowledgements of TCP are
#: at most 8 %.
TOLERANCE = 0.2
#: Fewer bytes may be other traffic.
LEAST_BYTES = 4 << 20
#: Below this size, the headers of Gloo's pieces matter.
LEAST_PIECE = GLOO_PIECE >> 8
#: A card that has moved a smaller share of what the busiest card of its host has moved did not
#: carry the job's data.
IDLE_SHARE = 0.1
#: NCCL's name of a connection through NVLink switches across hosts.
MULTI_HOST_NVLINK = "P2P/MNNVL"
#: From this share on, and for this number of segments, TCP has resent more than a network without
#: faults needs. On a busy machine it resends up to 0.1 %.
RESENT_SHARE, RESENT_LEAST = 0.005, 20
#: Fewer drops and packets out of order are normal: drivers drop frames of unknown protocols.
FEW = 100
SEVERAL = ("dropped", "discards", "out_of_sequence", "packet_seq_err", "local_ack_timeout_err")
#: Percent from which a GPU counts as busy: its kernels run without pauses.
BUSY = 50
COUNTERS = "counters of the fabric's cards in sysfs"
LOG = "NCCL's log (NCCL_DEBUG=INFO)"
SMI = "nvidia-smi while the job ran"
#: What the job has left, and the cards and GPUs by host.
Watched = dict[str, Any]
Facts = dict[str, dict[str, Any]]


def _gb(value: float) -> str:
    """Bytes in words."""
    return "%.3g GB" % (value / 1e9)


def _cards(facts: Facts, host: str) -> str:
    names = dict.fromkeys(card["name"] for card in facts[host]["cards"])
    return ", ".join(names) or "an unknown interface"


def _transports(watched: Watched, hosts: Iterable[str]) -> list[str]:
    """What NCCL's log names of the connections of some hosts, or of all where the log is not
    divided by host.
    """
    if "transports" in watched:
        return list(watched["transports"])
    return transports("\n".join(via for host in hosts for via in watched["hosts"][host]["via"]))


def _moved(watched: Watched) -> tuple[float, float]:
    """The minimum and the maximum of bytes that each host must have sent and received; equal if the
    algorithm is known.
    """
    if watched.get("ring", True):
        return (must_move(watched["size_bytes"], watched["iterations"], watched["ranks"]),) * 2
    return may_move(
        *watched.get("reduced_bytes") or (watched["size_bytes"] * watched["iterations"],) * 2
    )


def fabric_counters(watched: Watched, facts: Facts, host: str, carrier: str) -> Mapping[str, Any]:
    """Whether the host's fabric carried the job's data in both directions."""
    least, most = _moved(watched)
    seen = watched["hosts"][host]
    cards = _cards(facts, host)
    amount = _gb(least)
    if least != most:
        amount += " to %s, depending on NCCL's algorithm," % _gb(most)
    expected = "%s each way over %s, within %d %%" % (amount, cards, TOLERANCE * 100)

    def judged(verdict: str, found: str, fix: str = "") -> Mapping[str, Any]:
        return finding(
            "fabric-counters",
            host,
            verdict,
            expected=expected,
            found=found,
            source=COUNTERS,
            fix=fix,
        )

    moved = {"sent": seen["sent_bytes"], "received": seen["received_bytes"]}
    if None in moved.values():
        return judged("skipped", "%s has no readable counters" % cards)
    if least < LEAST_BYTES or (
        carrier == "gloo" and watched["size_bytes"] < LEAST_PIECE * 2 * watched["ranks"]
    ):
        return judged(
            "skipped",
            (
                "the job moved too few bytes to distinguish them from other traffic: %d bytes in "
                "messages of %d"
            )
            % (least, watched["size_bytes"]),
        )
    if any(name == MULTI_HOST_NVLINK for name in _transports(watched, list(watched["hosts"]))):
        return judged(
            "skipped",
            (
                "ranks of several hosts are connected by NVLink (%s), which is not in the cards' "
                "counters"
            )
            % MULTI_HOST_NVLINK,
        )
    shares = {way: "" for way in moved}
    if least == most:
        shares = {way: " (%+.0f %%)" % (100 * (moved[way] / least - 1)) for way in moved}
    found = "; ".join("%s %s%s" % (way, _gb(moved[way]), shares[way]) for way in moved)
    if min(moved.values()) < (1 - TOLERANCE) * least:
        return judged(
            "fail",
            found,
            "the job's data took another path: check %s's routes and addresses on the fabric "
            "network, cluster_fabric_network, "
            "and NCCL_SOCKET_IFNAME, NCCL_IB_HCA and NCCL_IB_DISABLE in the image" % host,
        )
    if max(moved.values()) > (1 + TOLERANCE) * most:
        return judged(
            "warn",
            found,
            (
                "check for other traffic over %s at the same time, and for lost and resent "
                "packets; then run verify again"
            )
            % cards,
        )
    return judged("pass", found)


def _lost_data(lost: Mapping[str, Any]) -> list[str]:
    """What a host has lost between two readings of its counters, as texts."""
    found = []
    sent, resent = lost.get("tcp") or (0, 0)
    if resent >= RESENT_LEAST and resent > RESENT_SHARE * sent:
        found.append("TCP resent %d of %d segments (%.2g %%)" % (resent, sent, 100 * resent / sent))
    for name, count in sorted(lost.get("cards", {}).items()):
        if count > (FEW if name.endswith(SEVERAL) else 0):
            found.append("%s: %d" % (name, count))
    return found


def fabric_errors(
    lost: Mapping[str, Mapping[str, Any]], remarks: Mapping[str, list[str]], host: str
) -> Mapping[str, Any]:
    """Whether data was lost on the way to or from the host.

    C(lost) is by host what P(_bandwidth.grown) returned, C(remarks) by host what NCCL's log has
    told of ports. Another MTU than that of the other hosts loses large packets.
    """
    found = _lost_data(lost[host])
    mtus = {
        name: sorted(set((lost[name].get("mtu") or {}).values())) for name in lost if lost[name]
    }
    others = sorted({mtu for name, each in mtus.items() if name != host for mtu in each})
    if mtus.get(host) and others and mtus[host] != others:
        found.append(
            "MTU %s, on the other hosts %s"
            % tuple(", ".join(map(str, each)) for each in (mtus[host], others))
        )
    found += remarks.get(host, [])
    fix = (
        "check cables, transceivers and switch ports of %s, its MTU, and the load of the links "
        "between the hosts; then run verify again"
    ) % host
    return finding(
        "fabric-errors",
        host,
        "warn" if found else "pass",
        expected=(
            "nothing lost or resent while the bandwidth was measured, the same MTU on all hosts, "
            "and no port error"
        ),
        found="; ".join(found),
        source="counters of TCP and of the fabric's cards, NCCL's log",
        fix=fix if found else "",
    )


def _use(number: int, percent: float | None) -> str:
    return "GPU %d %s" % (number, "?" if percent is None else "%d %%" % percent)


def gpus_busy(watched: Watched, host: str) -> Mapping[str, Any]:
    """Whether as many of the host's GPUs were busy as the job had ranks there."""
    seen, least = watched["hosts"][host], watched.get("in_use", BUSY)
    expected = "%s in use (%d %% or more)" % (quantity(seen["ranks"], "GPU"), least)
    known = [percent for percent in seen["gpus"] if percent is not None]
    busy = [percent for percent in known if percent >= least]
    each = ", ".join(_use(number, percent) for number, percent in enumerate(seen["gpus"]))
    found = "%d: %s" % (len(busy), each)
    if len(busy) >= seen["ranks"]:
        return finding("gpus-busy", host, "pass", expected=expected, found=found, source=SMI)
    # In MIG mode it reports none.
    if len(known) < seen["ranks"]:
        return finding(
            "gpus-busy",
            host,
            "skipped",
            expected=expected,
            found="nvidia-smi reports the use of %s only" % quantity(len(known), "GPU"),
            source=SMI,
        )
    return finding(
        "gpus-busy",
        host,
        "fail",
        expected=expected,
        found=found,
        source=SMI,
        fix=(
            "check which GPUs the ranks use (CUDA_VISIBLE_DEVICES in the image, "
            "training_container_gpus), and whether each answers nvidia-smi"
        ),
    )


def _use_host_memory(watched: Watched, hosts: Sequence[str], linked: list[str]) -> bool:
    """Whether ranks of a host with NVLink use its memory instead.

    Where the log is not divided by host, any of them may have done so.
    """
    if "transports" in watched and linked != list(hosts):
        return False
    return any(name.startswith("SHM/") for host in linked for name in _transports(watched, [host]))


def _rdma_in_log(watched: Watched, hosts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What NCCL's log names of the connections over InfiniBand or RoCE of each host that
    has any.
    """
    vias = {host: "\n".join(watched["hosts"].get(host, {}).get("via", [])) for host in hosts}
    named: dict[str, Any] = {host: rdma_connections(via).get("") for host, via in vias.items()}
    named.update(watched.get("over_rdma") or {})
    return {host: its for host, its in named.items() if its}


def _hardware_of(its: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, str]]]:
    """What a host is compared by: the models of its GPUs, and its network cards."""
    gpus = sorted(gpu.get("model", "") for gpu in its["gpus"])
    return gpus, sorted((card["line"], card.get("model", "")) for card in its["cards"])


def _gpudirect_missing(
    used: Mapping[str, Mapping[str, Any]], facts: Facts, hosts: Sequence[str]
) -> str:
    """What is to be said of hosts whose adapters do not read the memory of the GPUs directly, empty
    if all do as their hardware allows.

    NCCL copies through the memory of the host where an adapter is far from a GPU, so a host is held
    against the others with the same GPUs. If none does it, only servers with NVLink count, which
    have adapters beside their GPUs.
    """
    models = {host: _hardware_of(facts[host])[0] for host in hosts}
    if "GeForce" in str(models):
        return ""
    users = [host for host in used if used[host]["gpudirect"]]

    def peer(host: str) -> str:
        """A host with the same GPUs whose adapters read them."""
        return next((other for other in users if models[other] == models[host]), "")

    without = [host for host in used if not used[host]["gpudirect"]]
    unlike = ["%s, unlike %s" % (host, peer(host)) for host in without if peer(host)]
    if unlike:
        return "no GPUDirect RDMA on %s" % "; ".join(unlike)
    if without == list(hosts) and all(has_nvlink(host, facts) for host in hosts):
        return "no GPUDirect RDMA on any host"
    return ""


def _carriers(watched: Watched, host: str) -> list[str] | None:
    """The host's cards that have carried the job's data, by their counters.

    None if that is not known.
    """
    moved = watched["hosts"].get(host, {}).get("by_card") or {}
    if not moved or None in moved.values() or max(moved.values()) < LEAST_BYTES:
        return None
    return sorted(name for name in moved if moved[name] >= IDLE_SHARE * max(moved.values()))


def _rails_missing(
    watched: Watched,
    used: Mapping[str, Mapping[str, Any]],
    facts: Facts,
    hosts: Sequence[str],
) -> str:
    """What is to be said of hosts whose data takes fewer cards (rails) than on another host with
    the same hardware. Equal hosts use as many.

    The counters of each card tell it. Where a host has none, the network devices in NCCL's log do,
    which C(used) has: those that NCCL has connected.
    """
    carriers = {host: _carriers(watched, host) for host in hosts}
    rails = {host: cards for host, cards in carriers.items() if cards is not None}
    words = "the data of %s went over %s, that of %s over %s"
    if len(rails) < len(carriers):
        rails = {host: ["%d" % number for number in used[host]["devices"]] for host in used}
        words = "%s uses network device %s of NCCL's log, %s uses %s"
    fewer = []
    for host, its in rails.items():
        alike = [
            other for other in rails if _hardware_of(facts[other]) == _hardware_of(facts[host])
        ]
        best = max(alike, key=lambda other: len(rails[other]))
        if len(its) < len(rails[best]):
            fewer.append(words % (host, ", ".join(its), best, ", ".join(rails[best])))
    return "; ".join(fewer)


_DETOUR_FIX = (
    "the data takes a detour through the memory of the host: see check gpudirect, and "
    "NCCL_NET_GDR_LEVEL, NCCL_NET_GDR_READ and NCCL_DMABUF_ENABLE "
    "in the image and in the sessions"
)
_RAILS_FIX = (
    "compare the ports of the hosts (check ib-ports), their PCIe slots (nvidia-smi topo -m), and "
    "NCCL_IB_HCA in the image and in the sessions"
)


def _rdma_finding(watched: Watched, facts: Facts, hosts: Sequence[str]) -> tuple[str, str]:
    """What is to be said of connections over InfiniBand or RoCE, and what to do.

    Empty if nothing is.
    """
    if not all(_has_rdma(facts[host]) for host in hosts):
        return "", ""
    used = _rdma_in_log(watched, hosts)
    missing = _gpudirect_missing(used, facts, hosts)
    if missing:
        return missing, _DETOUR_FIX
    rails = _rails_missing(watched, used, facts, hosts)
    return (rails, _RAILS_FIX) if rails else ("", "")


def _expected_transport(
    watched: Watched, facts: Facts, hosts: Sequence[str], over_rdma: bool, linked: list[str]
) -> str:
    """What is expected of the connections, as text. C(linked) are the hosts with NVLink."""
    expected = []
    if len(hosts) > 1:
        cards = ", ".join(dict.fromkeys(_cards(facts, host) for host in hosts))
        network = "the network, by TCP because not all have RDMA devices"
        expected.append("between hosts %s" % ("RDMA (%s)" % cards if over_rdma else network))
    if any(watched["hosts"][host]["ranks"] > 1 for host in hosts):
        way = "NVLink (P2P)" if linked == list(hosts) else "P2P or shared memory"
        expected.append("on a host %s" % way)
    return "; ".join(expected)


def _has_rdma(its: Mapping[str, Any]) -> bool:
    return bool(its["cards"]) and all(card["rdma"] for card in its["cards"])


def nccl_transport(watched: Watched, facts: Facts, hosts: Sequence[str]) -> Mapping[str, Any]:
    """Whether NCCL connects its ranks by the best hardware: RDMA between hosts, NVLink on a
    host.
    """
    seen = _transports(watched, hosts)
    between = [name for name in seen if name.startswith("NET/")]
    # NVLink switches reach across hosts.
    is_divided = len(hosts) > 1 and not between and MULTI_HOST_NVLINK not in seen
    over_rdma = all(_has_rdma(facts[host]) for host in hosts)
    # A GPU without active links, which has lost them, is held against the others of its model.
    linked = [host for host in hosts if has_nvlink(host, facts)]
    expected = _expected_transport(watched, facts, hosts, over_rdma, linked)
    all_seen = ", ".join(seen)

    def judged(verdict: str, found: str = all_seen, fix: str = "") -> Mapping[str, Any]:
        return finding(
            "nccl-transport",
            ", ".join(hosts),
            verdict,
            expected=expected,
            found=found,
            source=LOG,
            fix=fix,
        )

    if not seen:
        return judged("skipped", "NCCL's log names no connection")
    if is_divided:
        return judged(
            "fail",
            "%s; none between hosts" % ", ".join(seen),
            "read the job's log: the ranks of each host may have worked without the others",
        )
    if over_rdma and any("socket" in name.lower() for name in between):
        return judged(
            "fail",
            fix="NCCL uses sockets although there are RDMA devices: check that /dev/infiniband and "
            "libibverbs are in the container, that "
            "memory can be locked without limit, and that NCCL_IB_DISABLE and NCCL_NET are not "
            "set in the image",
        )
    if _use_host_memory(watched, hosts, linked):
        return judged(
            "warn",
            fix="some GPUs have NVLink but use the host's memory: check nvidia-smi nvlink "
            "--status, nvidia-smi topo -m, and "
            "NCCL_P2P_DISABLE and NCCL_P2P_LEVEL in the image",
        )
    missing, fix = _rdma_finding(watched, facts, hosts)
    if missing:
        return judged("warn", "%s; %s" % (all_seen, missing), fix)
    return judged("pass")
