# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Observes a host during a job: the counters of its fabric, and the use of its GPUs.

It runs in training containers, so this is Python 3.6 with only the standard library. Role verify's
bandwidth job uses its functions. Role train's runner starts P(watch) on every host of a job, and
ends it by closing its input.
"""

import glob
import json
import os
import re
import select
import subprocess
import sys
import threading
import time
import typing

try:
    from ansible_collections.trainyard.gpu.plugins.module_utils import _bandwidth
except ImportError:
    # In a container, and beside the runner, it is in the same folder.
    import _bandwidth  # type: ignore[no-redef]

__all__ = [
    "IN_USE",
    "USAGE",
    "WORK",
    "card_counters",
    "cards_of",
    "counters",
    "interface_card",
    "load",
    "losses",
    "memory",
    "output",
    "rdma_cards",
    "rdma_models",
    "read",
    "seen_gpus",
    "watch",
]

#: A card of C(_bandwidth.card), and the bytes that cards have sent and received, None if one of
#: them has no counters.
Card = typing.Dict[str, typing.Any]
Counters = typing.Optional[typing.List[int]]
#: Counters of control groups, None where they are not known.
Memory = typing.Dict[str, typing.Any]
Load = typing.Dict[str, typing.Any]

USAGE = (
    "nvidia-smi",
    "--query-gpu=utilization.gpu,memory.used,memory.total",
    "--format=csv,noheader,nounits",
)
#: A collective that waits uses the GPU, but not its memory.
WORK = (USAGE[0], USAGE[1] + ",utilization.memory", USAGE[2])
#: Percent from which a GPU counts as used. A desktop stays below.
IN_USE = 5
#: Seconds between two samples: short at first, for short jobs; then longer, because nvidia-smi
#: takes some hundred milliseconds of CPU with eight GPUs.
FIRST_SECONDS, FIRST_LOOKS, LATER_SECONDS = 1, 10, 5


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read().strip()
    except OSError:
        # The kernel returns an error for an interface that is down or has no speed.
        return ""


def output(*command: str) -> str:
    try:
        return subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=20,
            check=False,
            universal_newlines=True,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def card_model(device: str) -> str:
    """PCI vendor and device of a card's folder in sysfs, '15b3:1021'; empty for a virtual one."""
    ids = [read(os.path.join(device, file)) for file in ("vendor", "device")]
    return ":".join(text[2:] for text in ids) if all(text[:2] == "0x" for text in ids) else ""


def _models_below(folder: str) -> typing.Set[str]:
    """Models of an interface's card, or of the cards below a bond or VLAN."""
    model = card_model(os.path.join(folder, "device"))
    lower = sorted(os.path.realpath(path) for path in glob.glob(os.path.join(folder, "lower_*")))
    return {model} if model else {name for path in lower for name in _models_below(path)}


def interface_card(name: str, sysfs: str = "/sys") -> Card:
    folder = os.path.join(sysfs, "class/net", name)
    device = os.path.join(folder, "device")
    # Neither a card nor on top of one. The speed of a virtual interface is arbitrary.
    real = os.path.exists(device) or glob.glob(os.path.join(folder, "lower_*"))
    return _bandwidth.card(
        name,
        read(os.path.join(folder, "speed")) if real else "",
        False,
        read(os.path.join(device, "current_link_speed")),
        read(os.path.join(device, "current_link_width")),
        "+".join(sorted(_models_below(folder))),
    )


def rdma_cards(requested: str, sysfs: str = "/sys") -> typing.List[Card]:
    """A card for each active port that NCCL_IB_HCA selects (names with or without a port; = for
    exact names, ^ to exclude).
    """
    cards = []
    names = [entry.partition(":")[::2] for entry in requested.lstrip("=^").split(",") if entry]
    for port in sorted(glob.glob(os.path.join(sysfs, "class/infiniband/*/ports/*"))):
        name, number = port.split("/")[-3], port.split("/")[-1]
        taken = not names or any(
            (name == entry or (not requested.startswith(("=", "^=")) and name.startswith(entry)))
            and its_port in ("", number)
            for entry, its_port in names
        )
        if read(os.path.join(port, "state")).endswith("ACTIVE") and taken != (
            requested.startswith("^") and bool(names)
        ):
            device = os.path.join(sysfs, "class/infiniband", name, "device")
            cards.append(
                _bandwidth.card(
                    name,
                    read(os.path.join(port, "rate")),
                    True,
                    read(os.path.join(device, "current_link_speed")),
                    read(os.path.join(device, "current_link_width")),
                    card_model(device),
                )
            )
    return cards


def rdma_models(sysfs: str = "/sys") -> typing.List[str]:
    """Models of all RDMA devices, also of those whose ports are down."""
    folders = glob.glob(os.path.join(sysfs, "class/infiniband/*/device"))
    return sorted({model for model in map(card_model, folders) if model})


def is_infiniband(name: str, sysfs: str = "/sys") -> bool:
    return all(
        read(path) == "InfiniBand"
        for path in glob.glob(os.path.join(sysfs, "class/infiniband", name, "ports/*/link_layer"))
    )


def cards_of(
    environment: typing.Mapping[str, str], with_gpus: bool, sysfs: str = "/sys"
) -> typing.Tuple[typing.List[Card], str]:
    """(cards, interface) for the data of ranks with this environment.

    NCCL uses RDMA if possible; Gloo uses only the interface.
    """
    interface = (
        environment.get("NCCL_SOCKET_IFNAME" if with_gpus else "GLOO_SOCKET_IFNAME", "")
        .lstrip("=")
        .split(",")[0]
    )
    cards = (
        rdma_cards(environment.get("NCCL_IB_HCA", ""), sysfs)
        if with_gpus and environment.get("NCCL_IB_DISABLE", "0") == "0"
        else []
    )
    return cards or ([interface_card(interface, sysfs)] if interface else []), interface


def _together(readings: typing.Sequence[typing.Sequence[typing.Optional[int]]]) -> Counters:
    """Return the sums of bytes sent and received, None if one of the counters is not known."""
    known = [(sent, got) for sent, got in readings if sent is not None and got is not None]
    if len(known) < len(readings):
        return None
    return [sum(sent for sent, _got in known), sum(got for _sent, got in known)]


def card_counters(cards: typing.List[Card], sysfs: str = "/sys") -> typing.Dict[str, Counters]:
    """Bytes that each card has sent and received over all of its ports, by its name; None for a
    card without counters.
    """
    found = {}
    for name, rdma in sorted({(card["name"], card["rdma"]) for card in cards}):
        folders = (
            glob.glob(os.path.join(sysfs, "class/infiniband", name, "ports/*"))
            if rdma
            else [os.path.join(sysfs, "class/net", name)]
        )
        ports = [
            _bandwidth.counted(
                {path: read(os.path.join(folder, path)) for path in _bandwidth.COUNTER_FILES}
            )
            for folder in folders
        ]
        found[name] = _together(ports)
    return found


def counters(cards: typing.List[Card], sysfs: str = "/sys") -> Counters:
    """Bytes that the cards have sent and received together; None if one of them has no counters."""
    found = list(card_counters(cards, sysfs).values())
    known = [card for card in found if card is not None]
    return _together(known) if known and len(known) == len(found) else None


#: Counters of lost data, below the folder of an interface and of an RDMA port. Counters of
#: congestion and of flow control are no loss.
LOST = (
    "statistics/rx_crc_errors",
    "statistics/rx_dropped",
    "statistics/rx_errors",
    "statistics/tx_dropped",
    "statistics/tx_errors",
)
LOST_RDMA = (
    "counters/link_downed",
    "counters/link_error_recovery",
    "counters/local_link_integrity_errors",
    "counters/port_rcv_errors",
    "counters/port_xmit_discards",
    "counters/symbol_error",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/out_of_sequence",
    "hw_counters/packet_seq_err",
)


#: Lost by priority flow control of RoCE, of P(_bandwidth.parse_pfc).
LOST_PFC = ("discards", "storms")


def lost_by_flow_control(
    name: str, sysfs: str = "/sys", ask: typing.Callable[[str], str] = _bandwidth.driver_statistics
) -> typing.Dict[str, int]:
    """Return what priority flow control has lost at a RoCE card, by counter.

    InfiniBand has no such counters, and a port of a card may be without interface.
    """
    found = {}  # type: typing.Dict[str, int]
    if is_infiniband(name, sysfs):
        return found
    for path in glob.glob(os.path.join(sysfs, "class/infiniband", name, "device/net/*")):
        counted = _bandwidth.parse_pfc(ask(os.path.basename(path)))
        for key in LOST_PFC:
            if key in counted:
                counter = "%s pfc_%s" % (name, key)
                found[counter] = max(counted[key], found.get(counter, 0))
    return found


def losses(
    cards: typing.List[Card], sysfs: str = "/sys", proc: str = "/proc"
) -> typing.Dict[str, typing.Any]:
    """Counters of TCP's segments (C(tcp): sent, resent) and of lost data by card, and the MTU of
    each interface, as far as they can be read.

    TCP's counters are of all connections of the host, or of the container if it has a network of
    its own.
    """
    found = {"tcp": _segments(proc), "cards": {}, "mtu": {}}  # type: typing.Dict[str, typing.Any]
    for name, rdma in sorted({(card["name"], card["rdma"]) for card in cards}):
        folders = [os.path.join(sysfs, "class/net", name)]
        counted = LOST  # type: typing.Tuple[str, ...]
        if rdma:
            folders = glob.glob(os.path.join(sysfs, "class/infiniband", name, "ports/*"))
            counted = LOST_RDMA
            found["cards"].update(lost_by_flow_control(name, sysfs))
        mtu = read(os.path.join(folders[0], "mtu")) if folders else ""
        if mtu.isdigit():
            found["mtu"][name] = int(mtu)
        for path in counted:
            texts = [read(os.path.join(folder, path)) for folder in folders]
            numbers = [int(text) for text in texts if text.isdigit()]
            if numbers:
                found["cards"]["%s %s" % (name, path.split("/")[1])] = sum(numbers)
    return found


def _segments(proc: str) -> typing.List[int]:
    """Return how many segments TCP has sent, and how many of them again.

    Empty if the kernel does not say.
    """
    lines = [line.split() for line in read(os.path.join(proc, "net/snmp")).splitlines()]
    tcp = [words[1:] for words in lines if words[:1] == ["Tcp:"]]
    values = dict(zip(*tcp[:2])) if len(tcp) > 1 else {}
    if "OutSegs" not in values or "RetransSegs" not in values:
        return []
    return [int(values["OutSegs"]), int(values["RetransSegs"])]


def seen_gpus(
    requested: int, devices: typing.List[str], peaks: typing.List[typing.Optional[float]]
) -> typing.Dict[str, typing.Any]:
    """A job's GPUs on one host: requested, busy (None if unknown), and the idle ones by number.

    C(requested) is how many the job was to use, C(devices) which ones if they were chosen by
    number, C(peaks) the highest use of each in percent.
    """
    numbers = [int(device) for device in devices if device.isdigit() and int(device) < len(peaks)]
    # With a selection by UUID, or without one, the numbers are unknown.
    chosen = numbers if len(numbers) == requested else list(range(len(peaks)))
    read_peaks = [(number, peaks[number]) for number in chosen]
    known = [(number, peak) for number, peak in read_peaks if peak is not None]
    busy = [number for number, peak in known if peak >= IN_USE]
    if len(known) < requested and len(busy) < requested:
        # In MIG mode nvidia-smi reports nothing.
        return {"requested": requested, "busy": None, "idle": []}
    idle = [number for number, _peak in known if number not in busy]
    return {
        "requested": requested,
        "busy": min(len(busy), requested),
        "idle": idle[: max(0, requested - len(busy))],
    }


class _Gpus(threading.Thread):
    """Samples the GPUs repeatedly and keeps the highest use of each."""

    def __init__(self) -> None:
        super(_Gpus, self).__init__(daemon=True)
        self.looks, self.error = 0, ""
        self.peaks = []  # type: typing.List[typing.Optional[float]]
        self.now = []  # type: typing.List[typing.Any]

    def run(self) -> None:
        while True:
            self.look()
            time.sleep(FIRST_SECONDS if self.looks < FIRST_LOOKS else LATER_SECONDS)

    def look(self) -> None:
        try:
            found = _bandwidth.usage(output(*WORK), 4)
        except _bandwidth.ParseError as error:
            self.error = str(error)
            return
        if not found:
            self.error = "nvidia-smi has shown no GPU"
            return
        former = self.peaks if len(self.peaks) == len(found) else [None] * len(found)
        self.now = found
        self.peaks = [
            max((value for value in pair if value is not None), default=None)
            for pair in zip(former, [gpu[0] for gpu in found])
        ]
        self.looks, self.error = self.looks + 1, ""


def memory(root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup", killed: int = 0) -> Memory:
    """Return limit and peak in bytes, None if there is none, and oom_kills, of the control groups
    around this process. The smallest limit counts.

    The kernel counts a kill in the group whose limit was reached and in those above it. C(killed)
    were counted before: a container lives longer than a job.
    """
    found = {"limit": None, "peak": None, "oom_kills": 0}  # type: Memory
    for line in read(own).splitlines():
        number, names, path = (line.split(":", 2) + ["", ""])[:3]
        if (number, names) == ("0", ""):
            base, files = root, ("memory.max", "memory.peak", "memory.events")
        elif "memory" in names.split(","):
            base = root + "/memory"
            files = ("memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control")
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", ".", "..")]
        for depth in range(len(parts), -1, -1):
            _add_group(found, "/".join([base] + parts[:depth]), files)
    found["oom_kills"] = max(0, found["oom_kills"] - killed)
    return found


def _add_group(found: Memory, folder: str, files: typing.Tuple[str, str, str]) -> None:
    limit, peak, counted = (read("%s/%s" % (folder, name)) for name in files)
    # Version 1 has a number near 2^63 if there is no limit.
    if not limit.isdigit() or int(limit) > 1 << 60:
        return
    for line in counted.splitlines():
        if line.startswith("oom_kill "):
            found["oom_kills"] = max(found["oom_kills"], int(line.split()[1]))
    if found["limit"] is None or int(limit) < found["limit"]:
        found["limit"] = int(limit)
        # One above the limit is from before it was set.
        found["peak"] = min(int(peak), int(limit)) if peak.isdigit() else None


def load(root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> Load:
    """Return the seconds of CPU and the bytes of memory that the job of Slurm around this process
    has used on this host, None where that is not known.

    Only Slurm's group of the job is meant: others also hold processes of other jobs.
    """
    return load_of(read(own), root)


def load_of(groups: str, root: str = "/sys/fs/cgroup") -> Load:
    """Return the same for control groups in the form of /proc/PID/cgroup."""
    found = {"cpu_seconds": None, "memory": None}  # type: Load
    for line in groups.splitlines():
        number, names, path = (line.split(":", 2) + ["", ""])[:3]
        at = re.match(r"(.*/job_[0-9]+)(/|$)", path)
        if not at:
            continue
        if (number, names) == ("0", ""):
            folder = root + at.group(1)
            used = re.search(r"^usage_usec ([0-9]+)$", read(folder + "/cpu.stat"), re.MULTILINE)
            if used:
                found["cpu_seconds"] = int(used.group(1)) / 1e6
            kept = read(folder + "/memory.current")
        elif "cpuacct" in names.split(","):
            nanoseconds = read("%s/cpuacct%s/cpuacct.usage" % (root, at.group(1)))
            if nanoseconds.isdigit():
                found["cpu_seconds"] = int(nanoseconds) / 1e9
            continue
        elif "memory" in names.split(","):
            kept = read("%s/memory%s/memory.usage_in_bytes" % (root, at.group(1)))
        else:
            continue
        if kept.isdigit():
            found["memory"] = int(kept)
    return found


def _watched_cards(with_gpus: bool, sysfs: str) -> typing.List[Card]:
    """Return the cards whose bytes are those of a job."""
    # InfiniBand ports also count socket traffic. RoCE ports count only RDMA.
    named = [
        card
        for card in rdma_cards(os.environ.get("NCCL_IB_HCA", ""), sysfs)
        if "NCCL_IB_HCA" in os.environ and is_infiniband(card["name"], sysfs)
    ]
    return (not with_gpus and named) or cards_of(os.environ, with_gpus, sysfs)[0]


def _grown(before: Counters, now: Counters) -> typing.List[typing.Optional[int]]:
    """Return the bytes sent and received since the first reading, [None, None] if that is not
    known.
    """
    if not now or not before:
        return [None, None]
    grown = [late - early for late, early in zip(now, before)]
    # The counters restart at 0 after a reload of the driver.
    return [None, None] if min(grown) < 0 else [*grown]


def watch(
    with_gpus: bool,
    source: typing.Optional[typing.TextIO] = None,
    sink: typing.Optional[typing.TextIO] = None,
    sysfs: str = "/sys",
) -> None:
    """Write the observations as one line of JSON repeatedly until the input ends, and once more
    then.
    """
    source, sink = source or sys.stdin, sink or sys.stdout
    cards = _watched_cards(with_gpus, sysfs)
    before = counters(cards, sysfs)
    killed = memory(sysfs + "/fs/cgroup")["oom_kills"]
    gpus = _Gpus()
    if with_gpus:
        gpus.start()
    ended = False
    while True:
        grown = _grown(before, counters(cards, sysfs))
        sink.write(
            json.dumps(
                {
                    "interface": ",".join(card["name"] for card in cards),
                    "rdma": any(card["rdma"] for card in cards),
                    "sent_bytes": grown[0],
                    "received_bytes": grown[1],
                    "peaks": gpus.peaks,
                    "now": gpus.now,
                    "looks": gpus.looks,
                    "error": gpus.error,
                    "memory": memory(sysfs + "/fs/cgroup", killed=killed),
                    "load": load(sysfs + "/fs/cgroup"),
                }
            )
            + "\n"
        )
        sink.flush()
        if ended:
            return
        # The last line is written immediately, because the end of the job waits for it.
        ended = bool(
            select.select(
                [source], [], [], FIRST_SECONDS if gpus.looks < FIRST_LOOKS else LATER_SECONDS
            )[0]
        )
