# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Metrics of a host: data of the parsers in, text for the textfile collector of node_exporter out.

A value that nobody gives has no sample: a missing curve is honest, a 0 is not. One family belongs
to one file. No label is called C(job) or C(instance): Prometheus has these. Programs on hosts
import this module from one folder with others.
"""

from __future__ import annotations

import contextlib
import math
import os
import re

from typing import Any, Callable, Dict, Iterable, NamedTuple, Optional, Sequence, Tuple

try:
    from ansible_collections.trainyard.gpu.plugins.module_utils._messages import printable
except ImportError:
    # Role host_library copies these files to hosts, into one folder.
    from _messages import printable  # type: ignore[import-not-found,no-redef]

__all__ = [
    "BUSY",
    "Family",
    "add_sample",
    "certificate_family",
    "count_errors",
    "cpu_family",
    "driver_families",
    "gpu_families",
    "drains_family",
    "health_family",
    "known_sums",
    "npu_families",
    "nvlink_family",
    "render",
    "share_families",
    "sum_families",
    "verify_families",
    "write",
    "xid_family",
]

MIB = 1 << 20
MHZ = 1000000
#: Share of the time from which on a sample counts as use.
BUSY = 0.05
#: Reasons for a low clock that are a fault, of heat or of power. Others are idle clocks, and limits
#: that somebody has set.
THROTTLED = (
    "hw_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "sw_thermal_slowdown",
    "sw_power_cap",
)
#: Longer texts, such as a reason for which a node is out of service, are cut.
MOST_LETTERS = 160
_SUMS = (
    ("seconds", "job_measured_seconds_total", "Time that was measured of the job on the GPU."),
    ("use", "job_use_seconds_total", "Use of the GPU by the job: use of each sample by its time."),
    ("busy", "job_busy_seconds_total", "Time with a use of 5 % or more."),
    ("joules", "job_energy_joules_total", "Energy that the GPU drew for the job."),
)


#: A sample has labels and a value, which is None if nobody gives it.
Labels = Dict[str, str]
Sample = Tuple[Labels, Optional[float]]
#: The number of the job of each GPU, by device number.
Jobs = Dict[int, int]
#: A GPU, a chip or a card as the parsers return it.
Device = Dict[str, Any]


WEEK_SECONDS = 7 * 24 * 3600


class Family(NamedTuple):
    """Series with one name."""

    name: str
    kind: str
    text: str
    samples: Sequence[Sample]


# --- text ---


def _escaped(value: object) -> str:
    """Return the text of a label.

    Root of another host may have chosen it: it is one line of letters that can be printed.
    """
    text = re.sub(r"\s+", " ", str(value))[:MOST_LETTERS]
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')


def _number(value: float) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN"
    return "%d" % value if float(value).is_integer() else repr(float(value))


def _sample(name: str, labels: Labels, value: float) -> str:
    inner = ",".join('%s="%s"' % (key, _escaped(labels[key])) for key in sorted(labels))
    return "%s%s %s" % (name, "{%s}" % inner if inner else "", _number(value))


def render(families: Iterable[Family]) -> str:
    """Return the text of families. Those without a sample are left out."""
    lines = []
    for family in families:
        known = [(labels, value) for labels, value in family.samples if value is not None]
        if known:
            lines += ["# HELP %s %s" % (family.name, family.text)]
            lines += ["# TYPE %s %s" % (family.name, family.kind)]
            lines += [_sample(family.name, labels, value) for labels, value in known]
    return "".join(line + "\n" for line in lines)


def write(path: str, text: str) -> None:
    """Replace a file at once, also by the same text: the time of the file says that its writer
    lives.

    Its group is that of the folder, which has the set-group-ID bit. Others cannot read it.
    """
    new = "%s.%d" % (path, os.getpid())
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(new, flags, 0o640), "w", encoding="utf-8") as stream:
            stream.write(text)
            os.fchmod(stream.fileno(), 0o640)
        os.rename(new, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


# --- GPUs ---


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _ratio(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def _count(entries: list[Any] | None) -> int | None:
    return None if entries is None else len(entries)


def _is_ok(health: str | None) -> bool | None:
    return None if health is None else health == "OK"


def _text(value: object) -> str:
    return "" if value is None else str(value)


#: Help and the value of a GPU of P(_nvidia_smi.parse_query), by name.
_OF_GPU: dict[str, tuple[str, Callable[[Device], float | None]]] = {
    "utilization_ratio": (
        "Share of the last sample period in which a kernel ran.",
        lambda gpu: _ratio(gpu["utilization_gpu_percent"]),
    ),
    "memory_utilization_ratio": (
        "Share of the last sample period in which device memory was read or written.",
        lambda gpu: _ratio(gpu["utilization_memory_percent"]),
    ),
    "memory_used_bytes": (
        "Used device memory.",
        lambda gpu: _times(gpu["memory_used_mib"], MIB),
    ),
    "memory_total_bytes": ("Device memory.", lambda gpu: _times(gpu["memory_total_mib"], MIB)),
    "temperature_celsius": ("Temperature of the GPU.", lambda gpu: gpu["temperature_c"]),
    "power_watts": ("Power draw.", lambda gpu: gpu["power_draw_w"]),
    "power_limit_watts": ("Power limit in force.", lambda gpu: gpu["power_limit_w"]),
    "retired_pages_pending": (
        "1 if memory pages wait for a reset to be retired.",
        lambda gpu: gpu["retired_pages_pending"],
    ),
    "remapped_rows_pending": (
        "1 if memory rows wait for a reset to be remapped.",
        lambda gpu: gpu["remapped_rows_pending"],
    ),
    "remapped_rows_failed": (
        "1 if a memory row could not be remapped.",
        lambda gpu: gpu["remapped_rows_failure"],
    ),
    "pcie_link_width": ("PCIe lanes in use.", lambda gpu: gpu["pcie_width"]),
    "pcie_link_width_max": (
        "PCIe lanes that GPU and slot support.",
        lambda gpu: gpu["pcie_width_max"],
    ),
    "processes": ("Processes that hold the GPU.", lambda gpu: _count(gpu["processes"])),
    "usable": (
        "1 if no job would be kept off the GPU, by the rules of role verify.",
        lambda gpu: gpu["usable"],
    ),
}
#: The same of a chip of P(_npu_smi.parse_info).
_OF_CHIP: dict[str, Callable[[Device], float | None]] = {
    "utilization_ratio": lambda chip: _ratio(chip["utilization_percent"]),
    "memory_used_bytes": lambda chip: _chip_memory(chip, "used"),
    "memory_total_bytes": lambda chip: _chip_memory(chip, "total"),
    "temperature_celsius": lambda chip: chip["temperature_c"],
    "power_watts": lambda chip: chip["power_w"],
    "usable": lambda chip: _is_ok(chip["health"]),
}


def _key(gpu: Device) -> Labels:
    return {"gpu": str(gpu["index"]), "uuid": gpu["uuid"] or ""}


def _gauge(name: str, text: str, samples: Sequence[Sample]) -> Family:
    return Family("trainyard_gpu_" + name, "gauge", text, samples)


def _inventory(count: int, version: str | None, described: Iterable[Labels]) -> list[Family]:
    """Return what a host has.

    C(described) are the labels of the series with the model, of each GPU or NPU.
    """
    return [
        Family("trainyard_gpus", "gauge", "GPUs or NPUs that the driver counts.", [({}, count)]),
        _gauge(
            "driver_info",
            "Version of the loaded driver.",
            [({"version": version}, 1)] if version else [],
        ),
        _gauge(
            "info",
            "What the GPU is. The other series have only gpu and uuid.",
            [(labels, 1) for labels in described],
        ),
    ]


def _job_of(jobs: Jobs, minor: int | None) -> int:
    """Return the job of a GPU, 0 if it is free or its device number is not known."""
    return 0 if minor is None else jobs.get(minor, 0)


def _job_family(keys: Iterable[tuple[Labels, int | None]], jobs: Jobs | None) -> list[Family]:
    """Return the job of each GPU. C(keys) are labels and device number."""
    if jobs is None:
        return []
    return [
        _gauge(
            "job",
            "Number of the Slurm job that has the GPU, 0 if it is free.",
            [(labels, _job_of(jobs, minor)) for labels, minor in keys],
        )
    ]


def _clocks(gpus: Iterable[Device], key: str) -> list[Sample]:
    samples: list[Sample] = []
    for gpu in gpus:
        for clock in ("sm", "memory"):
            samples.append((dict(_key(gpu), clock=clock), _times(gpu[key][clock], MHZ)))
    return samples


def _throttled(gpus: Iterable[Device]) -> list[Sample]:
    samples: list[Sample] = []
    for gpu in gpus:
        reasons = gpu["throttle_reasons"]
        for reason in () if reasons is None else THROTTLED:
            samples.append((dict(_key(gpu), reason=reason), reason in reasons))
    return samples


def _ecc(gpus: Iterable[Device]) -> list[Sample]:
    samples: list[Sample] = []
    for gpu in gpus:
        for kind, value in gpu["ecc_errors"]["volatile"].items():
            samples.append((dict(_key(gpu), kind=kind), value))
    return samples


def gpu_families(answer: Any, jobs: Jobs | None = None) -> list[Family]:
    """Return the families of NVIDIA's GPUs.

    :param answer: what P(_nvidia_smi.parse_query) returns.
    :param jobs: the job of each GPU by device number, None without Slurm.
    """
    gpus = answer.gpus
    described = [
        dict(
            _key(gpu),
            model=_text(gpu["name"]),
            bus_id=_text(gpu["bus_id"]),
            minor=_text(gpu["minor_number"]),
        )
        for gpu in gpus
    ]
    families = _inventory(answer.gpu_count, answer.driver_version, described)
    for name, (text, value) in _OF_GPU.items():
        families.append(_gauge(name, text, [(_key(gpu), value(gpu)) for gpu in gpus]))
    families += [
        _gauge("clock_hertz", "Clock now.", _clocks(gpus, "clocks_mhz")),
        _gauge("clock_max_hertz", "Highest clock.", _clocks(gpus, "clocks_max_mhz")),
        _gauge("throttled", "1 if the clock is lowered for this reason.", _throttled(gpus)),
        Family(
            "trainyard_gpu_ecc_errors_total",
            "counter",
            "Memory errors since the driver was loaded.",
            _ecc(gpus),
        ),
    ]
    return families + _job_family([(_key(gpu), gpu["minor_number"]) for gpu in gpus], jobs)


def _chips(table: Any) -> list[tuple[Device, Device, Labels]]:
    """Return NPU, chip and labels of each chip. An NPU has no UUID, so the label has its
    numbers.
    """
    found: list[tuple[Device, Device, Labels]] = []
    for npu in table.npus:
        for chip in npu["chips"]:
            number = chip["phy_id"] if chip["phy_id"] is not None else chip["logic_id"]
            number = len(found) if number is None else number
            labels = {"gpu": str(number), "uuid": "NPU-%d-%d" % (npu["id"], chip["id"])}
            found.append((npu, chip, labels))
    return found


def _chip_memory(chip: Device, kind: str) -> float | None:
    """Return the HBM of a chip if it has some. Chips with HBM report other memory, too."""
    key = "hbm" if chip["hbm_total_mib"] else "memory"
    return _times(chip["%s_%s_mib" % (key, kind)], MIB)


def npu_families(table: Any, jobs: Jobs | None = None) -> list[Family]:
    """Return the families of Ascend NPUs, under the names of GPUs: a chip is what Slurm calls a
    GPU.

    :param table: what P(_npu_smi.parse_info) returns.
    :param jobs: the job of each chip by device number, None without Slurm.
    """
    chips = _chips(table)
    described = [
        dict(
            labels,
            model=_text(npu["name"]),
            bus_id=_text(chip["bus_id"]),
            minor=labels["gpu"],
        )
        for npu, chip, labels in chips
    ]
    families = _inventory(len(chips), table.driver_version or table.tool_version, described)
    for name, value in _OF_CHIP.items():
        samples = [(labels, value(chip)) for _npu, chip, labels in chips]
        families.append(_gauge(name, _OF_GPU[name][0], samples))
    return families + _job_family(
        [(labels, int(labels["gpu"])) for _npu, _chip, labels in chips], jobs
    )


def driver_families(cards: Sequence[Device], jobs: Jobs | None = None) -> list[Family]:
    """Return what the driver itself tells of GPUs, for hosts whose values come from another
    exporter.

    :param cards: C(driver) of P(_gpu_numbers.read_host), in the order of the PCI addresses.
    """
    keys = [
        ({"gpu": str(index), "uuid": card["uuid"]}, card["minor"])
        for index, card in enumerate(cards)
    ]
    described = [
        dict(labels, model=card["model"], bus_id=card["bus"], minor=str(card["minor"]))
        for (labels, _minor), card in zip(keys, cards)
    ]
    return _inventory(len(cards), None, described) + _job_family(keys, jobs)


def nvlink_family(entries: list[dict[str, Any]], uuids: dict[str, str]) -> Family:
    """Return the active NVLinks of each GPU.

    :param entries: what P(_bandwidth.nvlinks) returns.
    :param uuids: the index of each GPU by its UUID.
    """
    samples: list[Sample] = []
    for entry in entries:
        if entry["speeds"] is not None and entry["uuid"] in uuids:
            labels = {"gpu": uuids[entry["uuid"]], "uuid": entry["uuid"]}
            samples.append((labels, sum(speed > 0 for speed in entry["speeds"])))
    return _gauge("nvlinks_active", "Active NVLinks.", samples)


def add_sample(
    sums: dict[str, Any],
    jobs: dict[int, int],
    values: list[tuple[int | None, dict[str, Any]]],
    seconds: float,
) -> None:
    """Add a sample to the sums of each GPU's job. Those of a GPU begin again with its next job.

    :param sums: by UUID; changed in place.
    :param values: device number of each GPU, and its C(gpu), C(uuid), C(use) as a ratio, C(watts) and C(memory) in bytes.
    :param seconds: time since the last sample.
    """
    for minor, value in values:
        job = _job_of(jobs, minor)
        if not job:
            sums.pop(value["uuid"], None)
            continue
        own = sums.get(value["uuid"])
        if own is None or own["job"] != job:
            own = {"job": job, "gpu": value["gpu"], "memory": 0}
            own.update(seconds=0.0, use=0.0, busy=0.0, joules=0.0)
            sums[value["uuid"]] = own
        own["memory"] = max(own["memory"], value["memory"] or 0)
        own["joules"] += (value["watts"] or 0) * seconds
        # A GPU in MIG mode reports no use: it is not measured, and not idle.
        if value["use"] is not None:
            own["seconds"] += seconds
            own["use"] += value["use"] * seconds
            own["busy"] += seconds if value["use"] >= BUSY else 0


def known_sums(found: object) -> dict[str, Any]:
    """Return the sums of a former process, which P(add_sample) has made.

    Nothing if they are damaged.
    """
    keys = {"job", "gpu", "memory", "seconds", "use", "busy", "joules"}
    sums = found if isinstance(found, dict) else {}
    is_whole = all(isinstance(own, dict) and set(own) == keys for own in sums.values())
    return sums if is_whole else {}


def sum_families(sums: dict[str, Any]) -> list[Family]:
    """Return the sums of the job that has each GPU."""
    keyed = [({"gpu": own["gpu"], "uuid": uuid}, own) for uuid, own in sorted(sums.items())]
    families = [
        Family(
            "trainyard_gpu_" + name,
            "counter",
            text,
            [(labels, round(float(own[key]), 1)) for labels, own in keyed],
        )
        for key, name, text in _SUMS
    ]
    highest = [(labels, own["memory"]) for labels, own in keyed]
    return [
        *families,
        _gauge("job_memory_max_bytes", "Most device memory that the job has had.", highest),
    ]


def count_errors(record: dict[str, Any], errors: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how often each error of P(_host_health.parse_gpu_errors) has come in this boot.

    The kernel log forgets its oldest lines. A count that falls would look to Prometheus like a
    counter that began again.

    :param record: what this function has returned before, by a text of kind, device and code.
    """
    counted = dict(record)
    for error in errors:
        key = "%(kind)s %(device)s %(code)d" % error
        before = counted.get(key) or {"total": 0, "seen": 0, "last_s": -1.0}
        last = error["last_s"] or 0.0
        more = 0
        if last > before["last_s"]:
            more = max(1, error["count"] - before["seen"])
        counted[key] = {"total": before["total"] + more, "seen": error["count"], "last_s": last}
    return counted


def xid_family(
    errors: list[dict[str, Any]], counted: dict[str, Any], cards: list[dict[str, Any]]
) -> Family:
    """Return the errors in the kernel log, each with what it means: C(action) is that of the table
    of Xids.

    :param errors: what P(_host_health.parse_gpu_errors) returns.
    :param counted: what P(count_errors) returns.
    :param cards: C(driver) of P(_gpu_numbers.read_host), in the order of the PCI addresses.
    """
    known = {_address(card["bus"]): (str(at), card["uuid"]) for at, card in enumerate(cards)}
    samples: list[Sample] = []
    for error in errors:
        index, uuid = known.get(_address(error["device"]), ("", ""))
        labels = {
            "kind": error["kind"].lower(),
            "code": str(error["code"]),
            "action": error["action"],
            "bus_id": error["device"],
            "gpu": index,
            "uuid": uuid,
        }
        key = "%(kind)s %(device)s %(code)d" % error
        samples.append((labels, counted[key]["total"]))
    return Family(
        "trainyard_gpu_xid_errors_total",
        "counter",
        "Errors of GPUs and NVSwitches in the kernel log since the boot.",
        samples,
    )


def _address(text: str) -> tuple[int, ...]:
    """Return a PCI address as numbers: domains have four or eight digits, and some addresses lack
    the function.
    """
    numbers = [int(part, 16) for part in re.findall("[0-9A-Fa-f]+", text)]
    return tuple(numbers[:3])


# --- the host ---


def share_families(shares: list[tuple[str, tuple[int, int] | None]]) -> list[Family]:
    """Return the space of shared folders.

    Each has a path, and its size and free bytes, or None if it does not answer.
    """
    answered = [(path, space) for path, space in shares if space is not None]
    return [
        Family(
            "trainyard_share_answers",
            "gauge",
            "1 if the share is mounted and answers in time.",
            [({"path": path}, space is not None) for path, space in shares],
        ),
        Family(
            "trainyard_share_size_bytes",
            "gauge",
            "Size of the share.",
            [({"path": path}, space[0]) for path, space in answered],
        ),
        Family(
            "trainyard_share_available_bytes",
            "gauge",
            "Bytes of the share that people can use.",
            [({"path": path}, space[1]) for path, space in answered],
        ),
    ]


def certificate_family(ends: dict[str, float]) -> Family:
    """Return when certificates end, in seconds since 1970, by path."""
    return Family(
        "trainyard_certificate_not_after_timestamp_seconds",
        "gauge",
        "When the certificate ends.",
        [({"path": path}, end) for path, end in sorted(ends.items())],
    )


def cpu_family(text: str, ticks: int) -> Family:
    """Return the seconds of all processors together, from the text of /proc/stat. node_exporter has
    some series for each of them.
    """
    found = re.match(r"cpu +(\d+) (\d+) (\d+) (\d+) (\d+) (\d+) (\d+) (\d+)", text)
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    values = [int(value) / ticks for value in found.groups()] if found else []
    return Family(
        "trainyard_host_cpu_seconds_total",
        "counter",
        "Time of all processors.",
        [({"mode": name}, value) for name, value in zip(names, values)],
    )


def job_load_families(loads: dict[int, dict[str, Any]]) -> list[Family]:
    """Return the time of processors and the memory of each job of Slurm on this host.

    :param loads: by number of the job, C(cpu_seconds) and C(memory) in bytes, None for what is not known.
    """
    return [
        Family(
            "trainyard_job_%s" % name,
            kind,
            text,
            [
                ({"slurm_job": str(job)}, load[key])
                for job, load in sorted(loads.items())
                if load[key] is not None
            ],
        )
        for name, kind, key, text in (
            ("cpu_seconds_total", "counter", "cpu_seconds", "Time of processors of the job."),
            ("memory_bytes", "gauge", "memory", "Memory of the job, with its cached files."),
        )
    ]


def health_family(checks: list[tuple[str, str]]) -> Family:
    """Return the checks of the health program.

    Each has an ID and what is wrong, which is empty if nothing is. An ID may come twice.
    """
    failed: dict[str, bool] = {}
    for check, text in checks:
        failed[check] = failed.get(check, False) or bool(text)
    return Family(
        "trainyard_health_check_passed",
        "gauge",
        "1 if the check of the health program passes.",
        [({"check": check}, not is_bad) for check, is_bad in sorted(failed.items())],
    )


def drains_family(history: list[dict[str, Any]], now: float) -> Family:
    """Return how often each check has drained the node in the last week.

    C(history) has the events of the health program, as P(_drains.read_history) returns them, and
    C(now) is in seconds since 1970.
    """
    counts: dict[str, int] = {}
    for event in history:
        if event["event"] == "drain" and now - WEEK_SECONDS < event["time"] <= now:
            for check in event.get("new", event["checks"]):
                counts[str(check)] = counts.get(str(check), 0) + 1
    return Family(
        "trainyard_health_drains",
        "gauge",
        "Drains of the node by the health program in the last week.",
        [({"check": check}, count) for check, count in sorted(counts.items())],
    )


# --- verify ---


def verify_families(report: dict[str, Any], generated: float) -> list[Family]:
    """Return the verdict of verify, and the worst one of each check and host.

    :param report: the content of report.json.
    :param generated: its time in seconds since 1970.
    """
    worst: dict[tuple[str, str], bool] = {}
    for check in report["checks"]:
        # What was not evaluated has no series.
        if check["verdict"] not in ("pass", "warn", "fail"):
            continue
        for host in check["host"].split(", "):
            at = (check["id"], host)
            worst[at] = worst.get(at, True) and check["verdict"] != "fail"
    return [
        Family(
            "trainyard_verify_timestamp_seconds",
            "gauge",
            "When verify ended last.",
            [({}, generated)],
        ),
        Family(
            "trainyard_verify_passed",
            "gauge",
            "0 if the last verify failed.",
            [({}, report["verdict"] != "fail")],
        ),
        Family(
            "trainyard_verify_check_passed",
            "gauge",
            "1 if a check of the last verify passed or warned, 0 if it failed.",
            [({"check": check, "host": host}, value) for (check, host), value in worst.items()],
        ),
    ]
