# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The expected bus bandwidth of a cluster, its limiting bound, and the verdict on a measurement.

Bandwidths are in GB/s (1e9 bytes), one way.

Pure functions. They also run in training containers, so this is Python 3.6 with only the standard
library.

Bus bandwidth is size / time x 2(n-1)/n, as nccl-tests' PERFORMANCE.md defines it for an all-reduce:
it doesn't depend on the number of ranks n, and can be compared with what the slowest part of the
way can carry. What that is:

- network card: its line rate x 0.96 by RDMA (24 GB/s of a 200 Gb/s card, the rule of nccl-tests' maintainers, issue 119), x 0.94 by TCP (headers at MTU 1500);
- PCIe: rate of a lane x lanes x 0.8 (headers at 256 bytes of payload, flow control), of the card's slot and of the GPUs' where they have no NVLink;
- NVLink: sum of a GPU's links x 0.75 (8 A100: 235 of 300 GB/s; H100 do more with NVLink SHARP);
- CPU: Gloo adds up on one core and sends through one TCP stream for each pair of ranks, so a fast card is not what limits it.

A broken part must not lower its own bar, so what a part can carry is read where it works: of a
host's GPUs, the best one of the model counts, and of a host, the best one with the same hardware.
GPUs that cannot read each other's memory (P2P) copy through the host's memory, whose bandwidth
nothing tells. They have no bound by PCIe, and other hosts and earlier runs are what they are
compared with.
"""

import array
import fcntl
import re
import socket
import statistics
import struct
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple, Union

__all__ = [
    "BROKE_OFF",
    "COUNTER_FILES",
    "ParseError",
    "better",
    "card",
    "counted",
    "driver_statistics",
    "expected",
    "gpus",
    "grown",
    "has_nvlink",
    "history",
    "judge_runs",
    "judged_busbw",
    "may_move",
    "must_move",
    "nvlinks",
    "parse_pfc",
    "peaks",
    "peer_to_peer",
    "rdma_connections",
    "row",
    "sizes",
    "transports",
    "usage",
    "verdict",
    "watched_size",
    "wrong_values",
]

#: The note of a result until its job has ended.
BROKE_OFF = "the job did not complete"
_VIA = re.compile(
    (
        r" via (NET/[A-Za-z][\w. -]*?(?=/\d)|(?:P2P/(?:direct "
        r"pointer|CUMEM|IPC|MNNVL|indirect)|SHM/(?:direct|CE)|direct shared memory)\b)"
    )
)
# Over InfiniBand or RoCE, with the name of the host if the whole line is there. The number of the
# device may be followed by that of a second one, in parentheses.
_VIA_IB = re.compile(
    (
        r"(?:([\w.-]{1,255}):\d+:\d+ \[\d+\] NCCL INFO [^\n]{1,200}?)?( via "
        r"NET/IB[\w.-]*/(\d+)(?:\(\d+\))?(/GDRDMA)?)"
    )
)
RDMA_SHARE = 0.96
TCP_SHARE = 0.94
PCIE_SHARE = 0.8
NVLINK_SHARE = 0.75
GLOO = 1.0
#: GB/s of a lane by its rate in GT/s in sysfs and lspci: after the line code, before packet
#: headers.
LANES = {2.5: 0.25, 5.0: 0.5, 8.0: 0.985, 16.0: 1.969, 32.0: 3.938, 64.0: 7.563}
#: The same by generation, as in nvidia-smi.
GENERATIONS = dict(enumerate(sorted(LANES.values()), 1))
#: Counters of sent and received bytes: of an interface, and of an adapter's port (64 bits, older
#: kernels'; in units of four octets). The first existing one is used.
_COUNTERS = tuple(
    (
        ("statistics/%s_bytes" % ethernet, 1),
        ("counters_ext/port_%s_data_64" % port, 4),
        ("counters/port_%s_data" % port, 4),
    )
    for ethernet, port in (("tx", "xmit"), ("rx", "rcv"))
)
# A port without this counter has 32-bit counters, which stop at their maximum.
_WIDE = "counters/unicast_xmit_packets"
#: Their paths below an interface's or a port's folder in sysfs.
COUNTER_FILES = tuple(path for names in _COUNTERS for path, _factor in names) + (_WIDE,)
#: Gloo's ring sends a message in pieces of at most 1 MiB, two or more per rank.
GLOO_PIECE = 1 << 20


#: States of two GPUs in C(nvidia-smi topo -p2p r) in which one cannot read the memory of the other:
#: the chipset, the GPU, the topology or the driver does not support it, or a setting has disabled
#: it.
_NO_P2P = ("CNS", "GNS", "TNS", "NS", "DR")


#: A network card, as P(card) returns it.
Card = Dict[str, Any]
#: The links of a GPU, as P(gpus) returns them.
Gpu = Dict[str, Any]
#: A host: C(name), C(cards), C(gpus), and if they are known C(p2p), C(nics) and C(alone).
#: P(_prepared) adds what it is compared by.
Host = Dict[str, Any]
#: A row of a measurement, as P(row) returns it.
Row = Dict[str, Any]
#: A measurement: C(id), C(hosts), C(rows) and C(errors), with its verdict after P(judge_runs).
Run = Dict[str, Any]
#: What the compatibility data says of GPUs, by their name.
Models = Mapping[str, Dict[str, Any]]
#: A bandwidth in GB/s, the kind of part that limits it, and an explanation.
Bound = Tuple[float, str, str]


class ParseError(ValueError):
    """Unexpected output of a tool; the message names the line."""


def card(
    name: str,
    rate_gbit_s: Union[str, float],
    rdma: bool = False,
    link_speed: str = "",
    link_width: str = "",
    model: str = "",
) -> Card:
    """A network card: its name, and the bandwidths of its line and of its slot (0.0 if unknown).

    C(rate_gbit_s) is a number, or the text of sysfs' speed or rate ('100000' are Mbit/s, '200
    Gb/sec (4X HDR)'); C(link_speed) and C(link_width) are the texts of current_link_speed and
    current_link_width ('16.0 GT/s PCIe', '16'); C(model) is the PCI vendor and device
    ('15b3:1021').
    """
    rate = _card_rate(rate_gbit_s) if isinstance(rate_gbit_s, str) else rate_gbit_s
    lane = re.match(r"([0-9.]+) GT/s", link_speed)
    pcie = (
        LANES.get(float(lane.group(1)), 0.0) * int(link_width)
        if lane and link_width.strip().isdigit()
        else 0.0
    )
    found = {"name": name, "rdma": bool(rdma), "line": rate / 8.0, "pcie": pcie}
    return dict(found, model=model) if model else found


def _card_rate(text: str) -> float:
    """Gbit/s of a card from the text of sysfs' speed or rate, 0.0 if it is unknown."""
    text = text.strip()
    rate = 0.0
    match = re.match(r"([0-9.]+) Gb/sec\b", text)
    if match:
        rate = float(match.group(1))
    elif re.match(r"-?[0-9]+$", text):
        rate = max(0, int(text)) / 1000.0
    elif text:
        raise ParseError("not a rate of a network card: %r" % text)
    # 2^32 - 1 is -1 of older drivers: unknown.
    return 0.0 if rate > 4e6 else rate


def nvlinks(status: str) -> List[Dict[str, Any]]:
    """What C(nvidia-smi nvlink --status) says of each GPU, in its order: C(name), C(uuid),
    C(speeds) and C(message).

    C(speeds) are the links' in GB/s, 0.0 of an inactive one. Without a list of links, they are
    empty if all are inactive or there are none, and None if that is unknown, as in MIG mode or
    after an error. C(message) is the text in place of the list.
    """
    found: List[Dict[str, Any]] = []
    for line in status.splitlines():
        head = re.match(r"GPU \d+:(.*)$", line)
        if head:
            name, _mark, rest = head.group(1).partition("(UUID:")
            uuid = re.findall(r"^\s*([\w-]*)", rest)[0]
            found.append({"name": name.strip(), "uuid": uuid, "speeds": None, "said": ""})
            continue
        link = re.match(r"\s+Link \d+: (?:(\d+(?:\.\d+)?) GB/s|<inactive>)$", line.rstrip())
        if link and not found:
            raise ParseError("a link without a GPU: %r" % line)
        if link:
            speed = float(link.group(1) or 0)
            found[-1]["speeds"] = (found[-1]["speeds"] or []) + [speed]
        elif found and line.strip():
            message = line.strip()
            found[-1]["said"] = message
            if re.search(
                r"all links are inactive|not have or support nvlink", message, re.IGNORECASE
            ):
                found[-1]["speeds"] = found[-1]["speeds"] or []
    return found


def peer_to_peer(matrix: str) -> Optional[bool]:
    """Whether all GPUs can read each other's memory, from the output of C(nvidia-smi topo -p2p r).

    None if it does not say so, as for one GPU.
    """
    states: List[str] = []
    for line in matrix.splitlines():
        words = re.sub("\x1b\\[[0-9;]*m", "", line).split()
        if len(words) > 1 and re.match(r"GPU\d+$", words[0]) and words[1][:3] != "GPU":
            states += [word for word in words[1:] if word != "X"]
    if any(state in _NO_P2P for state in states):
        return False
    return True if states and set(states) == {"OK"} else None


def gpus(nvlink_status: str, pcie_query: str) -> List[Gpu]:
    """Bandwidths of each GPU's links to the others: C(nvlink) and C(pcie), 0.0 if it has none or
    does not report it; and C(model), if it is named.

    The arguments are the outputs of C(nvidia-smi nvlink --status) and of C(nvidia-smi --query-gpu=pcie.link.gen.max,pcie.link.width.current
    --format=csv,noheader). The generation may drop while a GPU idles, so its maximum counts; the width doesn't. The query may add C(pcie.link.width.max,name).
    Then C(pcie_max) is what all of the GPU's lanes carry.
    """
    links = nvlinks(nvlink_status)
    found = []
    for number, line in enumerate(line for line in pcie_query.splitlines() if line.strip()):
        value = r"(\d+|\[[^\]]+\])"
        match = re.match(r"\s*%s\s*,\s*%s\s*(?:,\s*%s\s*,(.*))?$" % (value, value, value), line)
        if not match:
            raise ParseError("not generation and width of a PCIe link: %r" % line)
        generation, width, width_max, name = match.groups()
        lane = GENERATIONS.get(int(generation), 0.0) if generation.isdigit() else 0.0
        nothing: Dict[str, Any] = {"name": "", "speeds": None, "said": ""}
        its = links[number] if number < len(links) else nothing
        gpu = {
            "nvlink": round(sum(its["speeds"] or []), 3),
            "pcie": lane * int(width) if width.isdigit() else 0.0,
        }
        if width_max and width_max.isdigit():
            gpu["pcie_max"] = lane * int(width_max)
        name = (name or "").strip() or its["name"]
        if name:
            # Its parts have no NVLinks, so it is not compared with whole ones.
            gpu["model"] = name + (" in MIG mode" if "MIG mode" in its["said"] else "")
        found.append(gpu)
    return found


def _together(values: List[float]) -> float:
    """Bandwidth of several cards: those in use all work at the pace of the slowest of them, so a
    slow one is left out or slows the others down.
    """
    return max(value * count for count, value in enumerate(sorted(values, reverse=True), 1))


def _model(gpu: Gpu, models: Models) -> str:
    name: str = gpu.get("model", "")
    # NVLinks of such a card need a bridge to another one, and not every card has a bridge.
    needs_bridge = models.get(name, {}).get("bridge") and not gpu["nvlink"]
    return name + " without a bridge" if needs_bridge else name


def _gpu_kind(host: Host, models: Models) -> List[str]:
    """Hosts with the same models and number of GPUs are compared.

    Without a name, as in older results, every GPU is of one model.
    """
    return sorted(_model(gpu, models) for gpu in host["gpus"])


def _card_kind(host: Host) -> Set[str]:
    """The models of a host's cards.

    All RDMA devices count if they are known, because those without an active port do not carry
    data.
    """
    # The bus tells cards of unknown models apart from virtual interfaces.
    models = host.get("nics") or [
        "%s %s" % (entry.get("model") or bool(entry["pcie"]), entry["rdma"])
        for entry in host["cards"]
    ]
    return set(models)


def _line_share(entry: Card) -> float:
    """What a card's line can carry in GB/s."""
    line: float = entry["line"]
    return line * (RDMA_SHARE if entry["rdma"] else TCP_SHARE)


def _card_bounds(host: Host) -> List[Bound]:
    cards = host["cards"]
    names = ", ".join("%s %g Gb/s" % (entry["name"], entry["line"] * 8) for entry in cards)
    bounds = []
    if cards and all(entry["line"] for entry in cards):
        shares = [_line_share(entry) for entry in cards]
        way = "RDMA" if all(entry["rdma"] for entry in cards) else "TCP"
        bounds.append((_together(shares), "nic", "%s by %s" % (names, way)))
        if all(entry["pcie"] for entry in cards):
            slots = _together([entry["pcie"] for entry in cards])
            origin = "%s in PCIe slots of %g GB/s" % (names, slots)
            bounds.append((slots * PCIE_SHARE, "pcie", origin))
    return bounds


def _lanes(members: List[Gpu]) -> float:
    """What the GPUs of one model carry over PCIe: a GPU with less lanes than it can use counts like
    the best one.
    """
    best: float = max(gpu["pcie"] for gpu in members)
    with_all_lanes = [
        gpu["pcie"]
        for gpu in members
        if gpu["pcie"] and gpu["pcie"] >= gpu.get("pcie_max", float("inf"))
    ]
    return min(with_all_lanes, default=best)


def _gpu_bounds(host: Host, models: Models) -> List[Bound]:
    """The bound of the GPUs among themselves: by NVLink if each model has it, else by PCIe."""
    if len(host["gpus"]) < 2:
        return []
    members: Dict[str, List[Gpu]] = {}
    for gpu in host["gpus"]:
        members.setdefault(_model(gpu, models), []).append(gpu)
    links = min(max(gpu["nvlink"] for gpu in each) for each in members.values())
    lanes = min(_lanes(each) for each in members.values())
    if links:
        return [(links * NVLINK_SHARE, "nvlink", "%d GPUs with NVLink" % len(host["gpus"]))]
    if lanes:
        return [(lanes * PCIE_SHARE, "pcie", "%d GPUs on PCIe" % len(host["gpus"]))]
    return []


def _as_made(host: Host, models: Models) -> Host:
    """The host with the NVLinks that its model has by the compatibility data, for a host without
    others to compare it with.
    """
    known = [
        dict(gpu, nvlink=max(gpu["nvlink"], models.get(gpu.get("model"), {}).get("nvlink", 0.0)))
        for gpu in host["gpus"]
    ]
    return dict(host, gpus=known)


def _prepared(hosts: Sequence[Host], models: Models) -> List[Host]:
    """The hosts with what they are compared by, which is the same for all runs: kinds, and bounds
    of their own cards and GPUs.
    """
    return [_prepared_host(host, models) for host in hosts]


def _prepared_host(host: Host, models: Models) -> Host:
    if "kind" in host:
        return host
    return dict(
        host,
        kind=_gpu_kind(host, models),
        card_kind=_card_kind(host),
        by_cards=_card_bounds(host),
        by_gpus=_gpu_bounds(host, models),
        as_made=_gpu_bounds(_as_made(host, models), models),
    )


def _best(host: Host, others: List[Host], key: str, others_key: str) -> Dict[str, Bound]:
    """Bounds of a host as the best host with the same hardware has them, itself included."""
    best: Dict[str, Bound] = {}
    for each in [host] + others:
        for value, bound, origin in each[others_key if others else key]:
            if bound not in best or value > best[bound][0]:
                origin = "%s: %s" % (each["name"], origin)
                if each["name"] != host["name"]:
                    origin += ", and %s has the same hardware" % host["name"]
                best[bound] = (value, bound, origin)
    return best


def _others(host: Host, among: Sequence[Host]) -> List[Host]:
    """The other hosts with the same GPUs."""
    return [other for other in among if other is not host and other["kind"] == host["kind"]]


def _can_read_peers(hosts: Sequence[Host]) -> bool:
    """Whether GPUs of this kind of host have P2P: if one host has.

    Hosts of which it is unknown do not count.
    """
    known = [host["p2p"] for host in hosts if host.get("p2p") is not None]
    return any(known) or not known


def _within(host: Host, among: Sequence[Host]) -> List[Bound]:
    """Bounds of the GPUs of a host among themselves.

    What GPUs without P2P do is not known before it was measured.
    """
    others = _others(host, among)
    best = _best(host, others, "as_made", "by_gpus")
    if "nvlink" in best:
        return [best["nvlink"]]
    if _can_read_peers([host] + others):
        return list(best.values())
    reached = max((each.get("alone") or 0.0, each["name"]) for each in [host] + others)
    if len(host["gpus"]) > 1 and reached[0]:
        return [(reached[0], "peers", "%s alone, whose GPUs have no P2P" % reached[1])]
    return []


def has_nvlink(name: str, facts: Mapping[str, Host]) -> bool:
    """Whether all GPUs of a host have NVLinks where its hardware works, from P(judge_runs)' facts
    of all hosts.
    """
    among = _prepared([dict(its, name=host) for host, its in facts.items()], {})
    (host,) = [each for each in among if each["name"] == name]
    if len(host["gpus"]) < 2:
        return bool(host["gpus"]) and all(gpu["nvlink"] for gpu in host["gpus"])
    return any(bound == "nvlink" for _value, bound, _told in _within(host, among))


def _across(host: Host, among: Sequence[Host], collective: str) -> List[Bound]:
    """(GB/s, bound, explanation) of one of several hosts: the bandwidth of all cards together, and
    of the GPUs among themselves.
    """
    alike = [other for other in _others(host, among) if other["card_kind"] == host["card_kind"]]
    cards = list(_best(host, alike, "by_cards", "by_cards").values())
    if cards and collective == "gloo":
        origin = "%s: Gloo reduces on one core and uses one TCP stream" % host["name"]
        cards.append((GLOO, "cpu", origin))
    return cards + _within(host, among)


def _limit(host: Host, among: Sequence[Host], collective: str) -> Bound:
    """The lowest of the bounds of a host among several. It is the same for all runs."""
    if "limit" not in host:
        host["limit"] = min(_across(host, among, collective))
    limit: Bound = host["limit"]
    return limit


def _by_hardware(
    hosts: Sequence[Host], among: Sequence[Host], collective: str
) -> Tuple[Optional[float], Optional[str], str]:
    """(GB/s, bound, explanation) of the part that limits a run; None and the reason if it is
    unknown.
    """
    if len(hosts) < 2:
        # What the host itself has just done is no measure.
        bounds = [entry for entry in _within(hosts[0], among) if entry[1] != "peers"]
        return min(bounds) if bounds else (None, None, "the bandwidth of a host alone is unknown")
    # A card with an unknown rate may be the limit, whatever else is known.
    if any(not entry["line"] for host in hosts for entry in host["cards"] or [{"line": 0}]):
        return None, None, "the rates of the network cards are unknown"
    return min(_limit(host, among, collective) for host in hosts)


def expected(
    hosts: Sequence[Host],
    collective: str,
    requested: Dict[str, Any],
    earlier: Optional[float] = None,
    peers: Optional[float] = None,
    among: Sequence[Host] = (),
) -> Dict[str, Any]:
    """Expected values of a run: busbw_gb_s, bound, from, required_gb_s, history_gb_s; None if
    unknown.

    C(hosts) has for each host of the run name, cards and gpus (see P(card), P(gpus)), and p2p if it
    is known; C(among) has all hosts to compare them with, including these. C(requested) has the site's
    thresholds: fraction of what is expected, min_busbw_gb_s of several hosts and host_min_gb_s of
    each host alone by its name (0: none; they replace what is expected), drop_percent against
    C(earlier), what earlier runs of the same kind did, peer_fraction of C(peers), what the other
    hosts do alone. Its models are what the compatibility data says of GPUs by their name: nvlink,
    the sum of the links in GB/s, bridge, whether they need one, and known. The strictest counts.
    """
    hosts = _prepared(hosts, requested.get("models") or {})
    best, bound, origin = _by_hardware(hosts, among or hosts, collective)
    required = None if best is None else best * requested["fraction"]
    threshold = (
        requested["min_busbw_gb_s"]
        if len(hosts) > 1
        else (requested.get("host_min_gb_s") or {}).get(hosts[0]["name"])
    )
    if threshold:
        best, bound, origin, required = threshold, "threshold", "the site's threshold", threshold
    origin_of_history = "the median of earlier runs, less %g %%" % requested["drop_percent"]
    for value, share, name, text in (
        (peers, requested["peer_fraction"], "peers", "the other hosts alone"),
        (earlier, 1 - requested["drop_percent"] / 100.0, "history", origin_of_history),
    ):
        if value is not None and (required is None or value * share > required):
            best, bound, origin, required = value, name, text, value * share
    return {
        "busbw_gb_s": best,
        "bound": bound,
        "from": origin,
        "required_gb_s": required,
        "history_gb_s": earlier,
    }


def sizes(largest: int) -> List[int]:
    """Five message sizes in bytes up to the largest: the beginning of a curve, and the
    judged part.
    """
    return [largest >> shift for shift in (8, 6, 4, 2, 0)]


def row(size_bytes: int, seconds: float, ranks: int, wrong: int) -> Row:
    """A row in the format of nccl_all_reduce.

    The collective works in place, so the out-of-place figures are null.
    """
    algbw = size_bytes / seconds / 1e9
    # To a kilobyte per second, so that the smallest message on a slow network is not 0.
    figures = {
        "time_us": round(seconds * 1e6, 1),
        "algbw_gb_s": round(algbw, 6),
        "busbw_gb_s": round(algbw * 2 * (ranks - 1) / ranks, 6),
        "wrong": wrong,
    }
    return {
        "size_bytes": size_bytes,
        "count": size_bytes // 4,
        "type": "float",
        "redop": "sum",
        "root": -1,
        "out_of_place": None,
        "in_place": figures,
    }


def _busbw(entry: Row) -> float:
    busbw: float = (entry["out_of_place"] or entry["in_place"])["busbw_gb_s"]
    return busbw


def judged_busbw(rows: List[Row], requested: Optional[Sequence[int]] = None) -> Optional[float]:
    """The best row among those of at least a sixteenth of the largest size.

    Latency dominates below that, and noise only lowers a bandwidth.

    With C(requested), only those sizes count. None where no row is left.
    """
    rows = [entry for entry in rows if requested is None or entry["size_bytes"] in requested]
    largest = max([entry["size_bytes"] for entry in rows] or [0])
    return max(
        [_busbw(entry) for entry in rows if entry["size_bytes"] * 16 >= largest], default=None
    )


def history(
    packs: Iterable[Optional[Dict[str, Any]]],
    collective: str,
    run_id: str,
    hosts: List[str],
    requested: Optional[Sequence[int]],
) -> Optional[float]:
    """The median of earlier results of a run: same run, same hosts, same collective, same sizes.

    None without such a run.

    C(packs) are the C(bandwidth) of earlier reports. What failed then is no measure for now.
    """
    found = [
        judged_busbw(run["rows"], requested)
        for pack in packs
        if pack and pack["collective"] == collective
        for run in pack["runs"]
        if run["id"] == run_id and run["hosts"] == hosts and run["passed"]
    ]
    measured = [value for value in found if value is not None]
    return statistics.median(measured) if measured else None


def wrong_values(rows: List[Row]) -> int:
    """Number of wrong values of the sums in all of these rows."""
    return sum((entry["out_of_place"] or entry["in_place"])["wrong"] for entry in rows)


def better(former: Run, run: Run) -> Run:
    """The faster of two measurements of a group, with its missing rows.

    A row with wrong values stays, whatever the other measurement is.
    """
    slower, faster = sorted([former, run], key=lambda each: judged_busbw(each["rows"]) or 0)
    rows: Dict[int, Row] = {}
    for entry in slower["rows"] + faster["rows"]:
        if not wrong_values([rows[entry["size_bytes"]]] if entry["size_bytes"] in rows else []):
            rows[entry["size_bytes"]] = entry
    return dict(faster, rows=[rows[size] for size in sorted(rows)])


def verdict(run: Run, bound: Dict[str, Any]) -> Dict[str, Any]:
    """C(passed), C(reasons) and other results of a run, from its rows and the expected values."""
    reasons = list(run["errors"])
    wrong = wrong_values(run["rows"])
    if wrong:
        reasons.append("%d values of the sum are wrong" % wrong)
    busbw = judged_busbw(run["rows"])
    if busbw is None and not reasons:
        reasons.append("nothing was measured")
    elif (
        busbw is not None and bound["required_gb_s"] is not None and busbw < bound["required_gb_s"]
    ):
        reasons.append(
            "%.3g GB/s, required: %.3g (%s: %s)"
            % (busbw, bound["required_gb_s"], bound["bound"], bound["from"])
        )
    figures = [_busbw(entry) for entry in run["rows"]]
    return {
        "expected": bound,
        "judged_busbw_gb_s": busbw,
        "passed": not reasons,
        "reasons": reasons,
        "avg_busbw_gb_s": round(sum(figures) / len(figures), 4) if figures else None,
        "max_busbw_gb_s": max(figures) if figures else None,
    }


def _used_host_memory(run: Run) -> bool:
    return any(name.startswith("SHM/") for name in run.get("transports") or [])


def _with_own_run(
    facts: Mapping[str, Host], runs: List[Run], models: Mapping[str, Any]
) -> List[Host]:
    """The hosts with their names, and with what each has reached alone."""
    alone = {run["hosts"][0]: run for run in runs if len(run["hosts"]) == 1}
    found = []
    for name, its in facts.items():
        host = dict(its, name=name)
        if name in alone:
            host["alone"] = judged_busbw(alone[name]["rows"])
            host["p2p"] = False if _used_host_memory(alone[name]) else host.get("p2p")
        found.append(host)
    return _prepared(found, models)


def _of_peers(host: Host, among: List[Host], thresholds: Mapping[str, float]) -> Optional[float]:
    """What the other hosts with the same GPUs do alone.

    A host with a threshold of its own is not like the others.
    """
    found = sorted(
        other["alone"] or 0.0
        for other in _others(host, among)
        if "alone" in other and thresholds.get(other["name"]) == thresholds.get(host["name"])
    )
    # With two hosts the other one; with many the median.
    return found[len(found) // 2] if found else None


def _judged_alone(
    run: Run,
    among: List[Host],
    carrier: str,
    requested: Dict[str, Any],
    before: Optional[float],
) -> Run:
    """A run of one host with its verdict, and C(compared)."""
    models, thresholds = requested.get("models") or {}, requested.get("host_min_gb_s") or {}
    host = next(each for each in among if each["name"] == run["hosts"][0])
    peers = _of_peers(host, among, thresholds)
    bound = expected([host], carrier, requested, before, peers, among)
    # A model that the compatibility data knows has the NVLinks that it should have.
    known = bound["bound"] and all(
        models.get(gpu.get("model"), {}).get("known") for gpu in host["gpus"]
    )
    compared = bool(peers or before or thresholds.get(host["name"]) or known)
    # Without GPUs it is compared with nothing but other hosts.
    return dict(run, compared=compared or not host["gpus"], **verdict(run, bound))


def judge_runs(
    runs: List[Run],
    facts: Mapping[str, Host],
    carrier: str,
    requested: Dict[str, Any],
    earlier: Mapping[str, Optional[float]],
) -> List[Run]:
    """Runs with their expected bandwidths and verdicts.

    Runs of one host also have C(compared): whether there is anything to compare the host with.

    C(facts) are the hosts' cards and GPUs, C(carrier) what moves the data (nccl or gloo),
    C(earlier) what the same runs did before, by their id.
    """
    among = _with_own_run(facts, runs, requested.get("models") or {})
    of_name = {host["name"]: host for host in among}
    found = []
    for run in runs:
        if len(run["hosts"]) == 1:
            found.append(_judged_alone(run, among, carrier, requested, earlier.get(run["id"])))
            continue
        hosts = [of_name[host] for host in run["hosts"]]
        before = earlier.get("cluster") if run["id"] == "cluster" else None
        bound = expected(hosts, carrier, requested, before, None, among)
        found.append(dict(run, **verdict(run, bound)))
    return found


def watched_size(largest: int, collective: str, ranks: int) -> int:
    """The largest message up to C(largest) whose all-reduce has a known traffic.

    With more than two pieces per rank, older versions of Gloo send some unnecessarily.
    """
    return min(largest, 2 * ranks * GLOO_PIECE) if collective == "gloo" else largest


def must_move(size_bytes: int, iterations: int, ranks: int) -> float:
    """Bytes that a ring over C(ranks) sends out of each host, and receives there: the ring enters
    and leaves a host once, for any number of ranks.
    """
    return 2.0 * (ranks - 1) / ranks * size_bytes * iterations


def may_move(least_bytes: float, most_bytes: float) -> Tuple[float, float]:
    """The minimum and the maximum of bytes that each of several hosts sends, and receives, for
    messages of this total size, for all algorithms of NCCL.

    A host's part of a sum has to leave it, or the sum itself does, and one of the two has to
    arrive: each value once at least. A ring moves it twice, less a part (P(must_move)); of NCCL's
    two trees, each for a half, a host has three neighbours in the one and one in the other at most:
    twice.
    """
    return 1.0 * least_bytes, 2.0 * most_bytes


def counted(texts: Mapping[str, str]) -> List[Optional[int]]:
    """Bytes that an interface or port has sent and received; None if unknown.

    C(texts) has the existing files of P(COUNTER_FILES).
    """
    found: List[Optional[int]] = []
    for names in _COUNTERS:
        there = [
            (texts[path].strip(), factor)
            for path, factor in names
            if texts.get(path, "").strip().isdigit()
        ]
        if there and there[0] == (str(0xFFFFFFFF), 4) and not texts.get(_WIDE, "").strip():
            there = []
        found.append(int(there[0][0]) * there[0][1] if there else None)
    return found


# linux/sockios.h and linux/ethtool.h. Neither images nor Debian's hosts have the program ethtool.
SIOCETHTOOL = 0x8946
ETHTOOL_GSTRINGS, ETHTOOL_GSTATS, ETHTOOL_GSSET_INFO = 0x1B, 0x1D, 0x37
ETH_SS_STATS, ETH_GSTRING_LEN = 1, 32


def driver_statistics(interface: str) -> str:
    """What the driver of an interface counts, in the lines of C(ethtool -S).

    Empty if there is no such interface, or if its driver counts nothing. It needs no rights.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:

        def ask(words: bytes, room: int) -> bytes:
            """Return what the kernel writes behind these words."""
            data = array.array("B", words + bytes(room))
            request = struct.pack("16sP16x", interface.encode()[:15], data.buffer_info()[0])
            fcntl.ioctl(sock.fileno(), SIOCETHTOOL, request)
            return data.tobytes()[len(words) :]

        try:
            query = struct.pack("=IIQ", ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_STATS)
            count = struct.unpack("=I", ask(query, 4))[0]
            # More room than needed: the driver may add some meanwhile.
            room = count + 1024
            names = ask(
                struct.pack("=III", ETHTOOL_GSTRINGS, ETH_SS_STATS, count), ETH_GSTRING_LEN * room
            )
            values = ask(struct.pack("=II", ETHTOOL_GSTATS, count), 8 * room)
        except OSError:
            return ""
    lines = []
    for number, value in enumerate(struct.unpack_from("=%dQ" % count, values)):
        name = names[number * ETH_GSTRING_LEN : (number + 1) * ETH_GSTRING_LEN]
        lines.append("%s: %d" % (name.split(b"\0")[0].decode(errors="replace").strip(), value))
    return "\n".join(lines)


#: Priority flow control of RoCE, as mlx5, bnxt_en and ice name it in C(ethtool -S). The group is
#: the priority.
_PFC = (
    (
        "rx_pause",
        re.compile(r"rx_prio(\d)_pause$|rx_pfc_ena_frames_pri(\d)$|rx_priority_(\d)_xoff"),
    ),
    (
        "tx_pause",
        re.compile(r"tx_prio(\d)_pause$|tx_pfc_ena_frames_pri(\d)$|tx_priority_(\d)_xoff"),
    ),
    ("discards", re.compile(r"rx_prio(\d)_(?:discards?|buf_discard|cong_discard)$")),
    # The adapter has sent pauses for so long that it stopped them, and lost packets.
    ("storms", re.compile(r"(tx_pause_storm_error_events)$")),
)


def parse_pfc(text: str) -> Dict[str, int]:
    """Return the frames of flow control by priority (C(rx_pause), C(tx_pause)), the packets lost
    with it (C(discards)) and the pause storms (C(storms)).

    C(text) is what C(ethtool -S) prints of an interface. Only what its driver counts is there,
    since it was loaded, as the sum of all priorities.
    """
    found: Dict[str, Dict[str, int]] = {}
    for line in text.splitlines():
        name, colon, words = line.strip().partition(":")
        if not colon or not re.match(r"\s*[0-9]{1,20}\s*$", words):
            continue
        count = int(words)
        for key, pattern in _PFC:
            match = pattern.match(name)
            if match:
                priority = next(each for each in match.groups() if each)
                by_priority = found.setdefault(key, {})
                # Of several counters of one priority, one has the sum of the others.
                by_priority[priority] = max(count, by_priority.get(priority, 0))
    return {key: sum(by_priority.values()) for key, by_priority in found.items()}


def grown(before: Dict[str, Any], after: Dict[str, Any]) -> Dict[str, Any]:
    """How much the counters of _job_watch.losses have grown.

    One that is smaller now has started anew, as after a reload of the driver. Then its value
    counts.
    """

    def more(then: int, now: int) -> int:
        return now - then if now >= then else now

    return {
        "tcp": [more(*pair) for pair in zip(before["tcp"], after["tcp"])],
        "cards": {
            name: more(before["cards"].get(name, 0), value)
            for name, value in after["cards"].items()
        },
        "mtu": after["mtu"],
    }


def moved_by_card(
    before: Mapping[str, Optional[List[int]]], after: Mapping[str, Optional[List[int]]]
) -> Dict[str, Optional[int]]:
    """Bytes that each card has moved, in both directions together, between two readings of
    _job_watch.card_counters.

    None for a card whose counters are not known, or have started anew, as after a reload of the
    driver.
    """
    found: Dict[str, Optional[int]] = {}
    for name, late in after.items():
        early = before.get(name)
        grown = [now - then for now, then in zip(late, early)] if late and early else [-1]
        found[name] = sum(grown) if min(grown) >= 0 else None
    return found


def transports(text: str) -> List[str]:
    """Return the kinds of connections between ranks in NCCL's log (NCCL_DEBUG=INFO).

    The line "Using network" does not count, as it names a candidate.
    """
    names = set(_VIA.findall(text))
    if "direct shared memory" in names:
        names.remove("direct shared memory")
        names.add("SHM/direct")
    return sorted(names)


def rdma_connections(text: str) -> Dict[str, Dict[str, Any]]:
    """Return what NCCL's log names of the connections over InfiniBand or RoCE, by host.

    C(gpudirect) is whether any of them reads the memory of GPUs directly (GDRDMA), C(devices) are
    the numbers that NCCL has given to the network devices in use. The name of the host is as in the
    log, and empty for lines without it. A host without such a connection is not named.
    """
    found: Dict[str, Dict[str, Any]] = {}
    for match in _VIA_IB.finditer(text):
        host = found.setdefault(match.group(1) or "", {"gpudirect": False, "devices": []})
        host["gpudirect"] = host["gpudirect"] or bool(match.group(4))
        host["devices"] = sorted({int(match.group(3))}.union(host["devices"]))
    return found


def usage(text: str, most: int = 3) -> List[List[Optional[int]]]:
    """Percent of each GPU, and MiB of its memory used and in all; None if unknown.

    C(text) is of C(nvidia-smi --query-gpu=utilization.gpu,memory.used,memory.total
    --format=csv,noheader,nounits). With C(most) 4, it may have C(utilization.memory), too: in which
    percent of the time the memory was read or written.
    """
    found = []
    for line in text.splitlines():
        if not line.strip():
            continue
        values: List[Optional[int]] = []
        for field in line.split(","):
            match = re.match(r"\s*(?:(\d{1,9})(?: %| MiB)?|\[[^\]]+\])\s*$", field)
            if not match:
                raise ParseError("not the utilization and memory of a GPU: %r" % line)
            values.append(int(match.group(1)) if match.group(1) else None)
        if not 3 <= len(values) <= most:
            raise ParseError("not the utilization and memory of a GPU: %r" % line)
        found.append(values)
    return found


def peaks(text: str) -> List[Optional[int]]:
    """The highest utilization of each GPU in percent, None if unknown.

    C(text) is of C(nvidia-smi --query-gpu=index,utilization.gpu --format=csv,noheader,nounits -lms
    200), which goes on until it is ended.
    """
    found: Dict[int, List[Optional[int]]] = {}
    # Text after the last line end is truncated.
    for line in text.split("\n")[:-1]:
        match = re.match(r"\s*(\d{1,3})\s*,\s*(?:(\d{1,3})(?: %)?|\[[^\]]+\])\s*$", line)
        if line.strip() and not match:
            raise ParseError("not the number of a GPU and its utilization: %r" % line)
        if match:
            found.setdefault(int(match.group(1)), []).append(
                int(match.group(2)) if match.group(2) else None
            )
    return [
        max((value for value in values if value is not None), default=None)
        for _number, values in sorted(found.items())
    ]
