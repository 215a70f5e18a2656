# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The expected bus bandwidth of a cluster, its limiting bound, and the verdict on a measurement. Bandwidths are in GB/s (1e9 bytes), one way.

Pure functions. They also run in training containers, so this is Python 3.6 with only the standard library.

Bus bandwidth is size / time x 2(n-1)/n, as nccl-tests' PERFORMANCE.md defines it for an all-reduce: it doesn't depend on the number of ranks n, and can be
compared with what the slowest part of the way can carry. What that is:

- network card: its line rate x 0.96 by RDMA (24 GB/s of a 200 Gb/s card, the rule of nccl-tests' maintainers, issue 119), x 0.94 by TCP (headers at MTU 1500);
- PCIe: rate of a lane x lanes x 0.8 (headers at 256 bytes of payload, flow control), of the card's slot and of the GPUs' where they have no NVLink;
- NVLink: sum of a GPU's links x 0.75 (8 A100: 235 of 300 GB/s; H100 do more with NVLink SHARP);
- CPU: Gloo adds up on one core and sends through one TCP stream for each pair of ranks, so a fast card is not what limits it.
"""

import re
import statistics

__all__ = [
    "BROKE_OFF",
    "COUNTER_FILES",
    "ParseError",
    "better",
    "card",
    "counted",
    "expected",
    "gpus",
    "grown",
    "history",
    "judge_runs",
    "judged_busbw",
    "may_move",
    "must_move",
    "peaks",
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
    r" via (NET/[A-Za-z][\w. -]*?(?=/\d)|(?:P2P/(?:direct pointer|CUMEM|IPC|MNNVL|indirect)|SHM/(?:direct|CE)|direct shared memory)\b)"
)
RDMA_SHARE = 0.96
TCP_SHARE = 0.94
PCIE_SHARE = 0.8
NVLINK_SHARE = 0.75
GLOO = 1.0
#: GB/s of a lane by its rate in GT/s in sysfs and lspci: after the line code, before packet headers.
LANES = {2.5: 0.25, 5.0: 0.5, 8.0: 0.985, 16.0: 1.969, 32.0: 3.938, 64.0: 7.563}
#: The same by generation, as in nvidia-smi.
GENERATIONS = dict(enumerate(sorted(LANES.values()), 1))
#: Counters of sent and received bytes: of an interface, and of an adapter's port (64 bits, older kernels'; in units of four octets).
#: The first existing one is used.
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


class ParseError(ValueError):
    """Unexpected output of a tool; the message names the line."""


def card(name, rate_gbit_s, rdma=False, link_speed="", link_width=""):
    """A network card: its name, and the bandwidths of its line and of its slot (0.0 if unknown).

    C(rate_gbit_s) is a number, or the text of sysfs' speed or rate ('100000' are Mbit/s, '200 Gb/sec (4X HDR)'); C(link_speed) and C(link_width) are the texts
    of current_link_speed and current_link_width ('16.0 GT/s PCIe', '16').
    """
    if isinstance(rate_gbit_s, str):
        text = rate_gbit_s.strip()
        match = re.match(r"([0-9.]+) Gb/sec\b", text)
        if match:
            rate_gbit_s = float(match.group(1))
        elif re.match(r"-?[0-9]+$", text):
            rate_gbit_s = max(0, int(text)) / 1000.0
        elif text:
            raise ParseError("not a rate of a network card: %r" % text)
        # 2^32 - 1 is -1 of older drivers: unknown.
        rate_gbit_s = 0.0 if not text or rate_gbit_s > 4e6 else rate_gbit_s
    lane = re.match(r"([0-9.]+) GT/s", link_speed)
    pcie = (
        LANES.get(float(lane.group(1)), 0.0) * int(link_width)
        if lane and link_width.strip().isdigit()
        else 0.0
    )
    return {"name": name, "rdma": bool(rdma), "line": rate_gbit_s / 8.0, "pcie": pcie}


def gpus(nvlink_status, pcie_query):
    """Bandwidths of each GPU's links to the others: C(nvlink) and C(pcie), 0.0 if it has none or does not report it.

    The arguments are the outputs of C(nvidia-smi nvlink --status) and of C(nvidia-smi --query-gpu=pcie.link.gen.max,pcie.link.width.current
    --format=csv,noheader). The generation may drop while a GPU idles, so its maximum counts; the width doesn't.
    """
    links = []
    for line in nvlink_status.splitlines():
        if re.match(r"GPU \d+:", line):
            links.append(0.0)
            continue
        match = re.match(r"\s+Link \d+: ([0-9.]+) GB/s$", line.rstrip())
        if match:
            if not links:
                raise ParseError("a link without a GPU: %r" % line)
            links[-1] += float(match.group(1))
    found = []
    for number, line in enumerate(line for line in pcie_query.splitlines() if line.strip()):
        match = re.match(r"\s*(\d+|\[[^\]]+\])\s*,\s*(\d+|\[[^\]]+\])\s*$", line)
        if not match:
            raise ParseError("not generation and width of a PCIe link: %r" % line)
        known = match.group(1).isdigit() and match.group(2).isdigit()
        found.append(
            {
                "nvlink": round(links[number], 3) if number < len(links) else 0.0,
                "pcie": GENERATIONS.get(int(match.group(1)), 0.0) * int(match.group(2))
                if known
                else 0.0,
            }
        )
    return found


def _bounds(host, collective, crosses):
    """(GB/s, bound, explanation) of one host: the bandwidth of all cards together, and of the GPUs among themselves."""
    bounds = []
    if crosses and host["cards"] and all(entry["line"] for entry in host["cards"]):
        line = sum(
            entry["line"] * (RDMA_SHARE if entry["rdma"] else TCP_SHARE) for entry in host["cards"]
        )
        names = ", ".join(
            "%s %g Gb/s" % (entry["name"], entry["line"] * 8) for entry in host["cards"]
        )
        bounds.append(
            (
                line,
                "nic",
                "%s by %s"
                % (names, "RDMA" if all(entry["rdma"] for entry in host["cards"]) else "TCP"),
            )
        )
        if all(entry["pcie"] for entry in host["cards"]):
            bounds.append(
                (
                    sum(entry["pcie"] for entry in host["cards"]) * PCIE_SHARE,
                    "pcie",
                    "%s in PCIe slots of %g GB/s"
                    % (names, sum(entry["pcie"] for entry in host["cards"])),
                )
            )
        if collective == "gloo":
            bounds.append((GLOO, "cpu", "Gloo reduces on one core and uses one TCP stream"))
    if len(host["gpus"]) > 1:
        if all(gpu["nvlink"] for gpu in host["gpus"]):
            bounds.append(
                (
                    min(gpu["nvlink"] for gpu in host["gpus"]) * NVLINK_SHARE,
                    "nvlink",
                    "%d GPUs with NVLink" % len(host["gpus"]),
                )
            )
        elif all(gpu["pcie"] for gpu in host["gpus"]):
            bounds.append(
                (
                    min(gpu["pcie"] for gpu in host["gpus"]) * PCIE_SHARE,
                    "pcie",
                    "%d GPUs on PCIe" % len(host["gpus"]),
                )
            )
    return bounds


def expected(hosts, collective, asked, earlier=None, peers=None):
    """Expected values of a run: busbw_gb_s, bound, from, required_gb_s, history_gb_s; None if unknown.

    C(hosts) has for each host of the run name, cards and gpus (see P(card), P(gpus)); C(asked) the site's thresholds: fraction of what is expected,
    min_busbw_gb_s (0: none; it replaces what is expected), drop_percent against C(earlier), what earlier runs of the same kind did, peer_fraction of
    C(peers), what the other hosts do alone. The strictest counts.
    """
    crosses = len(hosts) > 1
    bounds = [
        (value, bound, "%s: %s" % (host["name"], told))
        for host in hosts
        for value, bound, told in _bounds(host, collective, crosses)
    ]
    # Across hosts a card with an unknown rate may be the limit, whatever else is known.
    known = bounds and not (
        crosses
        and any(not entry["line"] for host in hosts for entry in host["cards"] or [{"line": 0}])
    )
    best, bound, told = (
        min(bounds)
        if known
        else (
            None,
            None,
            "the rates of the network cards are unknown"
            if crosses
            else "the bandwidth of a host alone is unknown",
        )
    )
    required = best * asked["fraction"] if known else None
    if peers and not known:
        best, bound, told = peers, "peers", "the other hosts alone"
        required = peers * asked["peer_fraction"]
    if crosses and asked["min_busbw_gb_s"]:
        best, bound, told = asked["min_busbw_gb_s"], "threshold", "the site's threshold"
        required = best
    if earlier is not None:
        kept = earlier * (1 - asked["drop_percent"] / 100.0)
        if required is None or kept > required:
            best, bound, told, required = (
                earlier,
                "history",
                "the median of earlier runs, less %g %%" % asked["drop_percent"],
                kept,
            )
    return {
        "busbw_gb_s": best,
        "bound": bound,
        "from": told,
        "required_gb_s": required,
        "history_gb_s": earlier,
    }


def sizes(largest):
    """Five message sizes in bytes up to the largest: the beginning of a curve, and the judged part."""
    return [largest >> shift for shift in (8, 6, 4, 2, 0)]


def row(size_bytes, seconds, ranks, wrong):
    """A row in the format of nccl_all_reduce. The collective works in place, so the out-of-place figures are null."""
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


def _busbw(entry):
    return (entry["out_of_place"] or entry["in_place"])["busbw_gb_s"]


def judged_busbw(rows, wanted=None):
    """The best row among those of at least a sixteenth of the largest size. Latency dominates below that, and noise only lowers a bandwidth.

    With C(wanted), only those sizes count. None where no row is left.
    """
    rows = [entry for entry in rows if wanted is None or entry["size_bytes"] in wanted]
    largest = max([entry["size_bytes"] for entry in rows] or [0])
    return max([_busbw(entry) for entry in rows if entry["size_bytes"] * 16 >= largest] or [None])


def history(packs, collective, run_id, hosts, wanted):
    """The median of earlier results of a run: same run, same hosts, same collective, same sizes. None without such a run.

    C(packs) are the C(bandwidth) of earlier reports. What failed then is no measure for now.
    """
    found = [
        judged_busbw(run["rows"], wanted)
        for pack in packs
        if pack and pack["collective"] == collective
        for run in pack["runs"]
        if run["id"] == run_id and run["hosts"] == hosts and run["passed"]
    ]
    found = [value for value in found if value is not None]
    return statistics.median(found) if found else None


def wrong_values(rows):
    """Number of wrong values of the sums in all of these rows."""
    return sum((entry["out_of_place"] or entry["in_place"])["wrong"] for entry in rows)


def better(former, run):
    """The faster of two measurements of a group, with its missing rows. A row with wrong values stays, whatever the other measurement is."""
    slower, faster = sorted([former, run], key=lambda each: judged_busbw(each["rows"]) or 0)
    rows = {}
    for entry in slower["rows"] + faster["rows"]:
        if not wrong_values([rows[entry["size_bytes"]]] if entry["size_bytes"] in rows else []):
            rows[entry["size_bytes"]] = entry
    return dict(faster, rows=[rows[size] for size in sorted(rows)])


def verdict(run, bound):
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


def judge_runs(runs, facts, carrier, asked, earlier):
    """Runs with their expected bandwidths and verdicts.

    C(facts) are the hosts' cards and GPUs, C(carrier) what moves the data (nccl or gloo), C(earlier) what the same runs did before, by their id.
    """
    alone = {
        run["hosts"][0]: judged_busbw(run["rows"]) or 0.0 for run in runs if len(run["hosts"]) == 1
    }

    def bound(run):
        hosts = [dict(facts[host], name=host) for host in run["hosts"]]
        if len(hosts) > 1:
            return expected(
                hosts, carrier, asked, earlier.get("cluster") if run["id"] == "cluster" else None
            )
        peers = [value for host, value in alone.items() if host != run["hosts"][0]]
        # With two hosts the other one; with many the median.
        return expected(
            hosts,
            carrier,
            asked,
            earlier.get(run["id"]),
            sorted(peers)[len(peers) // 2] if peers else None,
        )

    return [dict(run, **verdict(run, bound(run))) for run in runs]


def watched_size(largest, collective, ranks):
    """The largest message up to C(largest) whose all-reduce has a known traffic.

    With more than two pieces per rank, older versions of Gloo send some unnecessarily.
    """
    return min(largest, 2 * ranks * GLOO_PIECE) if collective == "gloo" else largest


def must_move(size_bytes, iterations, ranks):
    """Bytes that a ring over C(ranks) sends out of each host, and receives there: the ring enters and leaves a host once, for any number of ranks."""
    return 2.0 * (ranks - 1) / ranks * size_bytes * iterations


def may_move(least_bytes, most_bytes):
    """The minimum and the maximum of bytes that each of several hosts sends, and receives, for messages of this total size, for all algorithms of NCCL.

    A host's part of a sum has to leave it, or the sum itself does, and one of the two has to arrive: each value once at least. A ring moves it twice, less a
    part (P(must_move)); of NCCL's two trees, each for a half, a host has three neighbours in the one and one in the other at most: twice.
    """
    return 1.0 * least_bytes, 2.0 * most_bytes


def counted(texts):
    """Bytes that an interface or port has sent and received; None if unknown. C(texts) has the existing files of P(COUNTER_FILES)."""
    found = []
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


def grown(before, after):
    """How much the counters of _job_watch.losses have grown.

    One that is smaller now has started anew, as after a reload of the driver. Then its value counts.
    """

    def more(then, now):
        return now - then if now >= then else now

    return {
        "tcp": [more(*pair) for pair in zip(before["tcp"], after["tcp"])],
        "cards": {
            name: more(before["cards"].get(name, 0), value)
            for name, value in after["cards"].items()
        },
        "mtu": after["mtu"],
    }


def transports(text):
    """Return the kinds of connections between ranks in NCCL's log (NCCL_DEBUG=INFO). The line "Using network" does not count, as it names a candidate."""
    return sorted(
        {"SHM/direct" if name == "direct shared memory" else name for name in _VIA.findall(text)}
    )


def usage(text):
    """Percent of each GPU, and MiB of its memory used and in all; None if unknown.

    C(text) is of C(nvidia-smi --query-gpu=utilization.gpu,memory.used,memory.total --format=csv,noheader,nounits).
    """
    found = []
    for line in text.splitlines():
        matches = [
            re.match(r"\s*(?:(\d{1,9})(?: %| MiB)?|\[[^\]]+\])\s*$", field)
            for field in line.split(",")
        ]
        if line.strip() and (len(matches) != 3 or None in matches):
            raise ParseError("not the utilization and memory of a GPU: %r" % line)
        if line.strip():
            found.append([int(match.group(1)) if match.group(1) else None for match in matches])
    return found


def peaks(text):
    """The highest utilization of each GPU in percent, None if unknown.

    C(text) is of C(nvidia-smi --query-gpu=index,utilization.gpu --format=csv,noheader,nounits -lms 200), which goes on until it is ended.
    """
    found = {}
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
