# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Judges a burn-in: what each device has measured, in comparison with its peers, with itself and
with published figures. Data in, findings out.

A device is a GPU, a rank of a host without GPUs, or the host itself. It has a serial number, which
results of earlier burn-ins are filed under, so that a replaced GPU is a new one. Rates are in GB/s
and TFLOP/s: more is better.
"""

from __future__ import annotations

import collections
import json
import re
import statistics
from typing import Any, Callable, Dict, Tuple, TypedDict

try:
    from ansible_collections.trainyard.gpu.plugins.module_utils._finding import Finding, finding
except ImportError:
    # Role host_library copies these files to hosts, into one folder.
    from _finding import Finding, finding  # type: ignore[import-not-found, no-redef]

SCHEMA_VERSION = 1
RESULTS, SPEED, ERRORS = "burn-in-results", "burn-in-speed", "burn-in-errors"
LINKS, RAILS = "burn-in-links", "burn-in-rails"
#: How much slower than the median is a fault: microsoft/superbenchmark's 5 % for GPUs. CPUs, disks
#: and links share more with others.
TOLERANCE = {"gpu": 0.05, "cpu": 0.25, "host": 0.4, "hca": 0.15}
#: Copies depend on the socket of the process, and on what else the host does.
COPIES, COPY_TOLERANCE = ("to_device", "from_device", "peers", "all_reduce"), 0.15
#: Pairs of hosts without GPUs also share CPUs.
LINK_TOLERANCE = {"nccl": 0.15, "gloo": 0.4}
#: Where good devices differ more than usual, the limit is this many deviations (of the median's
#: kind), but at most twice the tolerance, or a bad lot would excuse itself.
DEVIATIONS, MOST = 3.5, 2
#: Makes the median of the absolute deviations the standard deviation of a normal distribution.
NORMAL = 1.4826
#: With fewer peers the deviation is not known.
LEAST_PEERS = 8
#: A share of published figures that healthy devices reach: power limits, and matrices that are no
#: benchmark. Below it, all devices of a model may be slow.
PUBLISHED = {"memory": 0.6, "matmul": 0.35}
KEPT = 20
#: What boards say that have none.
NO_SERIAL = {
    "none",
    "not specified",
    "not available",
    "default string",
    "system serial number",
    "to be filled by o.e.m.",
    "0123456789",
}
#: Counters of nvidia-smi that must not grow while a GPU works.
COUNTED = (
    ("volatile", "uncorrectable", "uncorrectable memory errors"),
    ("volatile", "correctable", "correctable memory errors"),
)
#: One finding for a host, if so large a share of several GPUs of it is slow.
MOST_OF_HOST = 0.75


#: What was read on a host, as P(devices) describes it.
Told = Dict[str, Any]
#: Kind, model, software and test of devices that are compared.
Key = Tuple[str, str, str, str]
#: Names of hosts that were measured together.
Pair = Tuple[str, ...]
#: Results of earlier burn-ins by serial number, newest last, as P(filed_result) returns them.
Filed = Dict[str, "list[dict[str, Any]]"]
#: Returns the published rates of a model by test.
Figures = Callable[[str], Dict[str, float]]


class Rate(TypedDict):
    """A rate in GB/s or TFLOP/s, as a share of the median of its peers (None without peers), why it
    is slow, and whether it was compared with anything.
    """

    value: float
    relative: float | None
    slow: list[str]
    below: str
    compared: bool


class _Card(TypedDict, total=False):
    """C(name) is only of a network card."""

    name: str


class _OfHosts(_Card, total=False):
    """C(remarks) are what other tools warn of. Only the host itself has them."""

    remarks: list[str]


class _Named(_OfHosts):
    """C(wrong) are numbers of wrong values by test, C(grown) is what counters and logs have
    gained.
    """

    kind: str
    serial: str
    uuid: str
    index: int
    model: str
    wrong: dict[str, int]
    error: str
    grown: list[str]
    state: dict[str, Any]


class _Measured(_Named):
    """A device without its host. C(rates) are the samples of each test."""

    rates: dict[str, list[float]]


class Device(_Measured):
    """A device of a host, and the software that it was measured with."""

    host: str
    software: str


class Judged(_Named):
    """A device with what its rates were compared with."""

    host: str
    software: str
    rates: dict[str, Rate]


class Shown(_Card):
    """A device for the report and its file."""

    kind: str
    serial: str
    host: str
    index: int
    model: str
    software: str
    verdict: str
    wrong: int
    rates: dict[str, float]
    relative: dict[str, float]
    state: dict[str, Any]


class Verdict(TypedDict):
    """The judged devices and the findings."""

    devices: list[Shown]
    checks: list[Finding]


class Document(TypedDict, total=False):
    """The file of a device. P(read_document) leaves out C(schema_version)."""

    schema_version: int
    serial: str
    results: list[dict[str, Any]]


def score(samples: list[float]) -> float | None:
    """Return the rate of a device from several measurements: their mean without the best and the
    worst, so that one pause of the machine counts for nothing.

    Simulated with 64 GPUs of which one has 93 %, noise of 2 % and a lasting spread of 1 %: ten
    measurements name it in 99 of 100 runs, one does in 85.
    """
    values = sorted(float(value) for value in samples if value and value > 0)
    if not values:
        return None
    return statistics.fmean(values[1:-1] if len(values) > 4 else values)


def limit(scores: list[float], tolerance: float) -> tuple[float, float]:
    """Return the median of the scores of equal devices and the share of it below which one is slow.

    Of an even number the higher of the middle scores counts as the median, and the lower of the
    middle deviations: half of the devices may be slow, as on one of two hosts, and do not lower the
    bar that they are measured against.
    """
    middle = statistics.median_high(scores)
    spread = 0.0
    if len(scores) >= LEAST_PEERS:
        apart = statistics.median_low([abs(value - middle) for value in scores])
        spread = NORMAL * apart / middle
    return middle, 1 - min(max(tolerance, DEVIATIONS * spread), MOST * tolerance)


def tolerance(kind: str, test: str) -> float:
    """Return the tolerance of a test of a kind of device, as a share."""
    return max(TOLERANCE[kind], COPY_TOLERANCE if test in COPIES else 0.0)


def file_name(serial: str) -> str:
    """Return the name of a device's file.

    Serial numbers are what hosts say, so nothing of them leaves the folder.
    """
    return (re.sub(r"[^A-Za-z0-9_-]+", "_", str(serial)).strip("_") or "unknown")[:100] + ".json"


# --- what hosts say -----------------------------------------------------------------------------------------------------------


def of_hosts(reported: dict[str, Told]) -> list[Device]:
    """Return the devices of all hosts.

    A serial number that several hosts have, such as those of virtual machines, is none.
    """
    serials = {host: str(its.get("serial") or "").strip() for host, its in reported.items()}
    counts = collections.Counter(serials.values())
    found: list[Device] = []
    for host, its in reported.items():
        own = serials[host] if _is_serial(serials[host], counts) else ""
        try:
            found += devices(host, dict(its, serial=own))
        except (AttributeError, TypeError, ValueError, OverflowError):
            # What one host says must not end the verdict of the others.
            odd = {"msg": "its answer has another form than that of the program"}
            found += devices(host, {"run": odd, "serial": own})
    return _told_apart(found)


def _told_apart(found: list[Device]) -> list[Device]:
    """Return the devices, each with a serial number of its own: GPUs of one board may have that of
    the board.
    """
    counts = collections.Counter(device["serial"] for device in found)
    for device in found:
        if counts[device["serial"]] > 1:
            number = "%(host)s-%(kind)s-%(index)d" % device
            device["serial"] = device["uuid"] or number
    return found


def _is_serial(text: str, counts: dict[str, int]) -> bool:
    return counts[text] == 1 and text.lower() not in NO_SERIAL and len(text) > 3


def _lines(found: object) -> list[str]:
    lines = [str(each) for each in found] if isinstance(found, list) else []
    return [line for line in lines if line.strip()]


def answer_of(run: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of the program, from the result of its task: the last line, as libraries
    may print anything before it.
    """
    lines = _lines(run.get("stdout_lines"))
    try:
        answer = json.loads(lines[-1]) if run.get("rc") == 0 else None
    except (IndexError, ValueError, RecursionError):
        answer = None
    if isinstance(answer, dict):
        return answer
    messages = _lines(run.get("stderr_lines")) or lines
    why = (messages or [str(run.get("msg") or "no message")])[-1]
    return {"error": "the program did not end well: %s" % why[:300]}


def devices(host: str, reported: Told) -> list[Device]:
    """Return the devices of a host from what was read there.

    C(reported) has C(run), the result of the program's task, C(serial) of the host, the results of
    M(trainyard.gpu.nvidia_smi_info#module) C(before), C(during) and C(after), the errors of the
    kernel's log C(errors_before) and C(errors_after), and C(vendor), the text for
    P(vendor_findings).
    """
    answer = answer_of(reported.get("run") or {})
    by_uuid = {moment: _by_uuid(reported.get(moment)) for moment in ("before", "during", "after")}
    own = str(reported.get("serial") or "").strip() or host
    driver = (reported.get("before") or {}).get("driver_version")
    software = str(answer.get("software") or "") + (", driver %s" % driver if driver else "")
    found = []
    for rank in answer.get("ranks") or []:
        cards = {moment: by_uuid[moment].get(rank.get("uuid")) or {} for moment in by_uuid}
        found.append(_rank_device(own, rank, cards))
    found.append(_host_device(own, reported, answer))
    return [{**device, "host": host, "software": software} for device in found]


def _by_uuid(read: dict[str, Any] | None) -> dict[Any, dict[str, Any]]:
    """Return the GPUs of a result of nvidia_smi_info."""
    return {gpu.get("uuid"): gpu for gpu in (read or {}).get("gpus") or []}


def _rank_device(own: str, rank: dict[str, Any], cards: dict[str, dict[str, Any]]) -> _Measured:
    """Return a GPU or a rank on a CPU.

    C(own) is the serial number of the host, C(cards) what nvidia-smi has said of the GPU at each
    moment.
    """
    card = cards["after"] or cards["before"]
    serial = card.get("serial") or rank.get("uuid") or "%s-cpu-%s" % (own, rank.get("index"))
    is_gpu = rank.get("kind") == "gpu"
    return {
        "kind": "gpu" if is_gpu else "cpu",
        "serial": str(serial),
        "uuid": str(rank.get("uuid") or ""),
        "index": int(card.get("index", rank.get("index", 0))),
        "model": str(card.get("name") or rank.get("model") or "unknown"),
        "rates": _numbers(rank.get("rates")),
        "wrong": _counts(rank.get("wrong")),
        "error": str(rank.get("error") or ""),
        "grown": _grown(cards["before"], cards["after"]) if is_gpu else [],
        "state": _state(cards["during"]),
    }


def _host_device(own: str, reported: Told, answer: dict[str, Any]) -> _Measured:
    """Return the host itself: its disks, its CPUs, the kernel's log, and what other tools say."""
    part = answer.get("host") or {}
    faults, remarks = vendor_findings(str(reported.get("vendor") or ""))
    errors = _new_errors(reported.get("errors_before"), reported.get("errors_after"))
    return {
        "kind": "host",
        "serial": own,
        "uuid": "",
        "index": 0,
        "model": str(part.get("model") or "unknown"),
        "rates": _numbers(part.get("rates")),
        "wrong": _counts(part.get("wrong")),
        "error": str(answer.get("error") or ""),
        "grown": [*errors, *(str(text) for text in part.get("faults") or []), *faults],
        "remarks": [*(str(text) for text in part.get("remarks") or []), *remarks],
        "state": {},
    }


def _counts(wrong: dict[Any, Any] | None) -> dict[str, int]:
    return {str(test): int(count) for test, count in (wrong or {}).items()}


def vendor_findings(text: str) -> tuple[list[str], list[str]]:
    """Return the faults and the remarks of C(dcgmi diag) and C(nhc), from what role burn_in has
    printed of them.

    Each part begins with a line C(== NAME) and ends with C(== exit CODE). A tool that gives no
    result, because its daemon is stopped, is a remark.
    """
    faults: list[str] = []
    remarks: list[str] = []
    for name, output, code in re.findall(
        r"^== (dcgmi|nhc)\n(.*?)^== exit (\d+)$", text, re.MULTILINE | re.DOTALL
    ):
        lines = [line.strip() for line in output.splitlines() if line.strip()] or ["no message"]
        if name == "dcgmi":
            bad, other = _dcgm_results(output)
            faults += bad
            remarks += other
        elif code == "124":
            remarks.append("nhc did not end in time")
        elif code != "0":
            bad = [line for line in lines if "Health check failed" in line] or lines
            faults.append("nhc: %s" % bad[-1][:300])
    return faults, remarks


def _dcgm_results(output: str) -> tuple[list[str], list[str]]:
    """Return the tests of C(dcgmi diag --json) that failed, and those that warn.

    DCGM 4 has another name for the document and for a GPU than DCGM 3.
    """
    nothing: tuple[list[str], list[str]] = (
        [],
        ["dcgmi diag gave no result: %s" % " ".join(output.split())[-200:]],
    )
    try:
        # Messages may stand before the document, and after it.
        document, _end = json.JSONDecoder().raw_decode(output[output.index("{") :])
        root = document.get("DCGM Diagnostic") or document["DCGM GPU Diagnostic"]
        rows = [
            (test["name"], result)
            for category in root["test_categories"]
            for test in category["tests"]
            for result in test["results"]
        ]
        messages = {
            status: [_dcgm_row(*row) for row in rows if row[1].get("status") == status]
            for status in ("Fail", "Warn")
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return nothing
    return (messages["Fail"], messages["Warn"]) if rows else nothing


def _dcgm_warning(entry: object) -> str:
    return str(entry.get("warning") if isinstance(entry, dict) else entry)


def _dcgm_row(name: str, result: dict[str, Any]) -> str:
    number = result.get("entity_id", result.get("gpu_id", result.get("gpu_ids")))
    why = "; ".join(_dcgm_warning(entry) for entry in result.get("warnings") or [])
    place = "" if number is None else " of GPU %s" % number
    return ("dcgmi diag: %s%s: %s" % (name, place, why or result["status"]))[:300]


def _numbers(rates: dict[Any, Any] | None) -> dict[str, list[float]]:
    found = {}
    for test, samples in (rates or {}).items():
        found[str(test)] = [float(value) for value in samples if _is_number(value)]
    return found


def _is_number(value: object) -> bool:
    # Neither infinite, nor a number whose sum is.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e12


def _grown(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return what the GPU's counters have gained, and what nvidia-smi holds against the GPU only
    since.
    """
    if not after:
        return ["nvidia-smi does not show it any more"] if before else []
    found = []
    for span, kind, words in COUNTED:
        then, now = (_counted(card, span, kind) for card in (before, after))
        if now > then:
            found.append("%d %s during the run" % (now - then, words))
    former = {problem["id"] for problem in before.get("problems") or []}
    found += [
        problem["evidence"]
        for problem in after.get("problems") or []
        if problem["id"] not in former and problem["id"] != "gpu-throttle"
    ]
    return found


def _counted(card: dict[str, Any], span: str, kind: str) -> int:
    return int((card.get("ecc_errors") or {}).get(span, {}).get(kind) or 0)


def _new_errors(
    before: list[dict[str, Any]] | None, after: list[dict[str, Any]] | None
) -> list[str]:
    """Return the GPU errors of the kernel's log that are new, or more than before."""

    def counts(errors: list[dict[str, Any]] | None) -> dict[tuple[Any, ...], dict[str, Any]]:
        return {
            (entry.get("kind"), entry.get("device"), entry.get("code")): entry
            for entry in errors or []
        }

    then = counts(before)
    return [
        "%s %s of %s during the run: %s"
        % (
            entry.get("kind"),
            entry.get("code"),
            entry.get("device"),
            entry.get("cause") or entry.get("message"),
        )
        for key, entry in counts(after).items()
        if entry.get("action") != "ignore"
        and (entry.get("count") or 1) > (then.get(key, {}).get("count") or 0)
    ]


def _state(card: dict[str, Any]) -> dict[str, Any]:
    """Return what the GPU said of itself while it worked."""
    keys = ("temperature_c", "power_draw_w", "power_limit_w", "throttle_reasons")
    state = {key: card.get(key) for key in keys if card.get(key) is not None}
    clock = (card.get("clocks_mhz") or {}).get("sm")
    if clock is not None:
        state["clock_mhz"] = clock
    state["slowed"] = [
        problem["evidence"]
        for problem in card.get("problems") or []
        if problem["id"] == "gpu-throttle"
    ]
    return state


# --- the verdict --------------------------------------------------------------------------------------------------------------


def judge(found: list[Device], filed: Filed, figures: Figures) -> Verdict:
    """Return the judged devices and the findings.

    C(found) are the devices of P(devices) of all hosts of the run, C(filed) the earlier results by
    serial number, newest last. C(figures) returns the published rates of a model.
    """
    scores = {device["serial"]: _scores(device) for device in found}
    peers = _peers(found, scores, filed)
    judged: list[Judged] = []
    for device in found:
        rates = {
            test: _rate(device, test, value, peers, filed, figures)
            for test, value in scores[device["serial"]].items()
        }
        judged.append({**device, "rates": rates})
    return {"devices": [_shown(device) for device in judged], "checks": _checks(judged)}


def _scores(device: Device) -> dict[str, float]:
    scores = {test: score(samples) for test, samples in device["rates"].items()}
    return {test: value for test, value in scores.items() if value is not None}


def _key(device: Device | dict[str, Any], test: str) -> Key:
    return device["kind"], device["model"], device["software"], test


def _peers(
    found: list[Device], scores: dict[str, dict[str, float]], filed: Filed
) -> dict[Key, list[float]]:
    """Return the scores of equal devices: of this run, and of the last good burn-in of those that
    are not part of it.
    """
    peers: dict[Key, list[float]] = {}
    for device in found:
        for test, value in scores[device["serial"]].items():
            peers.setdefault(_key(device, test), []).append(value)
    for serial, results in filed.items():
        good = [result for result in results if result["verdict"] == "pass"]
        if serial in scores or not good:
            continue
        for test, rate in good[-1]["rates"].items():
            key = _key(good[-1], test)
            # Another model, or one that is only in a drawer.
            if key in peers:
                peers[key].append(rate)
    return peers


def _rate(
    device: Device,
    test: str,
    value: float,
    peers: dict[Key, list[float]],
    filed: Filed,
    figures: Figures,
) -> Rate:
    """Return a device's rate in one test, what it was compared with, and why it is slow."""
    allowed = tolerance(device["kind"], test)
    among = peers[_key(device, test)]
    rate: Rate = {"value": value, "relative": None, "slow": [], "below": "", "compared": False}
    if len(among) > 1:
        middle, share = limit(among, allowed)
        rate["relative"], rate["compared"] = value / middle, True
        if value < middle * share:
            rate["slow"].append(
                "%s, %.1f %% less than the median of %d such (%s)"
                % (_unit(test, value), 100 * (1 - value / middle), len(among), _unit(test, middle))
            )
    former = [
        result["rates"][test]
        for result in filed.get(device["serial"], [])
        if result["verdict"] == "pass"
        and result["software"] == device["software"]
        and test in result["rates"]
    ]
    if former:
        own = statistics.median_high(former)
        rate["compared"] = True
        if value < own * (1 - allowed):
            rate["slow"].append(
                "%s, %.1f %% less than in earlier burn-ins of it (%s)"
                % (_unit(test, value), 100 * (1 - value / own), _unit(test, own))
            )
    published = figures(device["model"]).get(test)
    if published:
        rate["compared"] = True
        least = published * PUBLISHED["memory" if test == "memory" else "matmul"]
        if value < least:
            rate["below"] = "%s; such a GPU has %s by its data sheet, and %s are usual" % (
                _unit(test, value),
                _unit(test, published),
                _unit(test, least),
            )
    return rate


def _unit(test: str, value: float) -> str:
    return "%.4g %s" % (value, "TFLOP/s" if test.startswith("matmul") else "GB/s")


def _name(device: Device | Judged) -> str:
    if device["kind"] == "host":
        return "the host"
    if device["kind"] == "hca":
        return "%s of %s" % (device["name"], device["host"])
    return "%s %d (%s, serial %s)" % (
        "GPU" if device["kind"] == "gpu" else "rank",
        device["index"],
        device["model"],
        device["serial"],
    )


def _slow(device: Judged) -> list[str]:
    """Return why a device is slow, and what it says of itself."""
    messages = [
        "%s: %s" % (test, text) for test, rate in device["rates"].items() for text in rate["slow"]
    ]
    if not messages:
        return []
    state = device["state"]
    hints = list(state.get("slowed") or [])
    if "temperature_c" in state:
        hints.append("%s C" % state["temperature_c"])
    if "power_draw_w" in state:
        hints.append("%s of %s W" % (state["power_draw_w"], state.get("power_limit_w", "?")))
    if "clock_mhz" in state:
        hints.append("%s MHz" % state["clock_mhz"])
    return [
        "%s is slow. %s%s"
        % (
            _name(device),
            "; ".join(messages[:3]),
            " (at work: %s)" % ", ".join(hints) if hints else "",
        )
    ]


def _checks(judged: list[Judged]) -> list[Finding]:
    """Return the findings, for each host one of each check."""
    checks = []
    for host in dict.fromkeys(device["host"] for device in judged):
        own = [device for device in judged if device["host"] == host]
        checks += [_results_check(host, own), _speed_check(host, own), _errors_check(host, own)]
    return checks


def _results_check(host: str, own: list[Judged]) -> Finding:
    bad = [
        "%s: %d wrong values in %s" % (_name(device), count, test)
        for device in own
        for test, count in device["wrong"].items()
        if count
    ]
    broken = ["%s: %s" % (_name(device), device["error"]) for device in own if device["error"]]
    return finding(
        RESULTS,
        host,
        "fail" if bad or broken else "pass",
        expected="each device ends the burn-in, and each value is right",
        found="; ".join(bad + broken) or "all values of %d devices are right" % len(own),
        source="burn_in",
        fix=(
            "Take the device out of service. It changes data without an error: run burn_in again, "
            "and have it replaced if it returns."
        )
        if bad
        else "Repair what the message names, and run burn_in.yml again for this host."
        if broken
        else "",
    )


_SLOW = {
    "gpu": "Compare temperature, power limit and clocks with those of the others (nvidia-smi -q), "
    "check fans, power cables and the seat of the card, "
    "then run burn_in.yml again. Replace a device that stays slow.",
    "host": (
        "Run burn_in.yml again while nobody else uses the disk and the share. If it stays slow, "
        "check the disk (smartctl -a) and the server of the share."
    ),
    "cpu": (
        "Look for other programs (top), limits of control groups (systemd-cgtop) and the governor "
        "and temperature of the CPUs, then run burn_in.yml again."
    ),
}


_BELOW = (
    "All devices of this model may be slow. Check the power limit (nvidia-smi -q -d POWER), the "
    "cooling of the room, and whether other programs run."
)
_ALONE = "Run burn_in.yml for several hosts with this model, or later once more."


def _told_tolerance(kind: str) -> str:
    if kind == "gpu":
        return "%d %% (GPUs) or %d %% (copies)" % (100 * TOLERANCE[kind], 100 * COPY_TOLERANCE)
    return "%d %% (CPUs)" % (100 * TOLERANCE[kind])


def _speed_check(host: str, own: list[Judged]) -> Finding:
    slow, disks = _slow_parts(own)
    kind = "gpu" if any(device["kind"] == "gpu" for device in own) else "cpu"
    rows = (
        (slow[:4], "fail", _SLOW[kind]),
        (disks[:3], "warn", _SLOW["host"]),
        (_below(own)[:3], "warn", _BELOW),
        (_incomparable(own), "warn", _ALONE),
    )
    good = ["%d devices are as fast as their peers" % len(own)], "pass", ""
    messages, verdict, fix = next((row for row in rows if row[0]), good)
    return finding(
        SPEED,
        host,
        verdict,
        expected="no device is slower than the median of its model, or than before, by "
        + _told_tolerance(kind),
        found="; ".join(messages),
        source="burn_in",
        fix=fix,
    )


def _slow_parts(own: list[Judged]) -> tuple[list[str], list[str]]:
    """Return in words the devices that are slow, and the disks: one is measured once, and others
    may use the share. 49 % less was seen on a healthy host.
    """
    slow = [text for device in own if device["kind"] != "host" for text in _slow(device)]
    disks = [text for device in own if device["kind"] == "host" for text in _slow(device)]
    gpus = [bool(_slow(device)) for device in own if device["kind"] == "gpu"]
    if len(gpus) > 2 and sum(gpus) >= MOST_OF_HOST * len(gpus):
        slow.insert(0, "%d of %d GPUs of the host are slow" % (sum(gpus), len(gpus)))
    return slow, disks


def _below(own: list[Judged]) -> list[str]:
    return [
        "%s: %s: %s" % (_name(device), test, rate["below"])
        for device in own
        for test, rate in device["rates"].items()
        if rate["below"]
    ]


def _incomparable(own: list[Judged]) -> list[str]:
    """Return in words which devices have no peers, no past and no data sheet.

    Empty if all have something.
    """
    alone = [
        _name(device)
        for device in own
        if device["kind"] != "host"
        and device["rates"]
        and not any(rate["compared"] for rate in device["rates"].values())
    ]
    return ["there is nothing to compare with: %s" % ", ".join(alone[:3])] if alone else []


_ERRORS = {
    "grown": "Reset or reboot, run burn_in.yml again, and replace what counts errors again.",
    "slowed": "Check fans, dust, airflow and room temperature, then power cables and supplies.",
    "remarks": "Do what the message asks for, start the daemon of the tool (systemctl start "
    "nvidia-dcgm), "
    "or replace memory that counts errors each time. "
    "Then run burn_in.yml again.",
}


def _errors_check(host: str, own: list[Judged]) -> Finding:
    grown = ["%s: %s" % (_name(device), text) for device in own for text in device["grown"]]
    slowed = [text for device in own for text in device["state"].get("slowed") or []]
    remarks = [text for device in own for text in device.get("remarks") or []]
    rows = (
        (grown, "fail", _ERRORS["grown"]),
        (slowed, "warn", _ERRORS["slowed"]),
        (remarks, "warn", _ERRORS["remarks"]),
    )
    _texts, verdict, fix = next((row for row in rows if row[0]), ((), "pass", ""))
    return finding(
        ERRORS,
        host,
        verdict,
        expected=(
            "no error of memory, link or driver is counted, and no clock is lowered, while the "
            "devices work"
        ),
        found="; ".join((grown + slowed + remarks)[:4]) or "none was counted",
        source="burn_in, nvidia-smi, kernel log, dcgmi and nhc if installed",
        fix=fix,
    )


def _verdict(device: Judged) -> str:
    is_slow = device["kind"] != "host" and _slow(device)
    is_bad = device["error"] or any(device["wrong"].values()) or device["grown"] or is_slow
    return "fail" if is_bad else "pass"


def _shown(device: Judged) -> Shown:
    """Return a device for the report and its file."""
    shown: Shown = {
        "kind": device["kind"],
        "serial": device["serial"],
        "host": device["host"],
        "index": device["index"],
        "model": device["model"],
        "software": device["software"],
        "verdict": _verdict(device),
        "wrong": sum(device["wrong"].values()),
        "rates": {test: round(rate["value"], 4) for test, rate in device["rates"].items()},
        "relative": {
            test: round(rate["relative"], 4)
            for test, rate in device["rates"].items()
            if rate["relative"] is not None
        },
        "state": {key: value for key, value in device["state"].items() if key != "slowed"},
    }
    if "name" in device:
        shown["name"] = device["name"]
    return shown


# --- between hosts ------------------------------------------------------------------------------------------------------------


def _slow_pairs(speeds: dict[Pair, float], allowed: float) -> dict[Pair, str]:
    """Return the pairs that are slower than the others, in words. Of fewer than three
    nobody knows.
    """
    good = [speed for speed in speeds.values() if speed > 0]
    if len(good) < 3:
        return {}
    middle, share = limit(good, allowed)
    return {
        pair: "%s: %.3g GB/s, %.0f %% of the median"
        % (" - ".join(pair), speed, 100 * speed / middle)
        for pair, speed in speeds.items()
        if speed < middle * share
    }


def _slow_with_all(hosts: list[str], pairs: set[Pair], slow: set[Pair]) -> list[str]:
    """Return the hosts that are slow with each other host: a card, cable or port.

    Else it is the way between two.
    """
    its = {host: {pair for pair in pairs if host in pair} for host in hosts}
    return [
        "%s is slow with each other host" % host
        for host in hosts
        if len(its[host]) > 1 and its[host] <= slow
    ]


def link_check(runs: list[dict[str, Any]], collective: str, hosts: list[str]) -> Finding:
    """Return the finding about the pairs of hosts, of which each was measured once: runs of the
    bandwidth job with the ID C(pair:...).
    """
    pairs = [run for run in runs if run["id"].startswith("pair:")]
    speeds = {tuple(run["hosts"]): run["judged_busbw_gb_s"] or 0.0 for run in pairs}
    broken = [" - ".join(run["hosts"]) for run in pairs if not run["passed"]]
    slow = _slow_pairs(speeds, LINK_TOLERANCE.get(collective, COPY_TOLERANCE))
    messages = [slow[pair] for pair in sorted(slow, key=lambda pair: speeds[pair])]
    parts = _slow_with_all(hosts, set(speeds), set(slow))
    parts += ["too slow or failed: %s" % ", ".join(broken[:4])] * bool(broken) + messages[:4]
    return finding(
        LINKS,
        ", ".join(hosts),
        "fail" if broken else "warn" if slow else "pass",
        expected=(
            "each pair of hosts reaches what its hardware promises, and what the other pairs do"
        ),
        found="; ".join(parts) or "%d pairs are equally fast" % len(pairs),
        source="PyTorch's all-reduce between two hosts",
        fix=(
            "Check the cards, cables and ports of the host or the pair that is named, and the path "
            "through the switches between them."
        )
        if parts
        else "",
    )


def rail_devices(answer: dict[str, Any]) -> list[Device]:
    """Return the cards that were measured alone, as devices, from the answer of the bandwidth job:
    C(rails) and, by host, C(facts).

    A card was measured with one or two others. The best of these counts, because the other one may
    be slow.
    """
    software = str(answer.get("collective") or "")
    found = []
    for host, facts in (answer.get("facts") or {}).items():
        for number, rail in enumerate(facts.get("rails") or []):
            own = [
                run
                for run in answer.get("rails") or []
                if run["card"] == rail["name"] and host in run["hosts"]
            ]
            if own:
                found.append(_rail_device(host, number, rail, own, software))
    return _told_apart(found)


def _rail_fault(run: dict[str, Any]) -> str:
    """Return why a measurement over one card counts for nothing."""
    if run["error"]:
        return str(run["error"])
    if run["wrong"]:
        return "%d wrong values" % run["wrong"]
    return "" if run["busbw_gb_s"] else "nothing was measured"


def _rail_device(
    host: str, number: int, rail: dict[str, Any], own: list[dict[str, Any]], software: str
) -> Device:
    good = [run["busbw_gb_s"] for run in own if not _rail_fault(run)]
    broken = [
        "with %s: %s" % (", ".join(name for name in run["hosts"] if name != host), _rail_fault(run))
        for run in own
        if _rail_fault(run)
    ]
    return {
        "kind": "hca",
        "name": rail["name"],
        "serial": rail.get("serial") or "%s-%s" % (host, rail["name"]),
        "uuid": "",
        "index": number,
        "model": rail.get("model") or "unknown",
        "host": host,
        "software": software,
        "rates": {"rail": [max(good)] if good else []},
        # If another pair works, the fault is of the other card.
        "wrong": {"rail": 0 if good else sum(run["wrong"] for run in own)},
        "error": "" if good else "; ".join(broken),
        "grown": [],
        "state": {},
    }


def judge_rails(answer: dict[str, Any], filed: Filed) -> Verdict:
    """Return the judged cards and the finding about them.

    C(filed) are earlier results by serial number, as for P(judge).
    """
    found = rail_devices(answer)
    rates = judge(found, filed, lambda model: {})["devices"]
    scores = {device["serial"]: _scores(device) for device in found}
    peers = _peers(found, scores, filed)
    slow, broken = [], []
    for device in found:
        value = scores[device["serial"]].get("rail")
        if device["error"]:
            broken.append("%s: %s" % (_name(device), device["error"]))
        elif value is not None:
            rate = _rate(device, "rail", value, peers, filed, lambda model: {})
            slow += ["%s: %s" % (_name(device), text) for text in rate["slow"]]
    hosts = list(dict.fromkeys(device["host"] for device in found))
    check = finding(
        RAILS,
        ", ".join(hosts),
        "fail" if broken else "warn" if slow else "pass",
        expected=(
            "each card alone carries as much as the others of its model, and as before, minus %d %%"
        )
        % (100 * TOLERANCE["hca"]),
        found="; ".join((broken + slow)[:6]) or "%d cards are equally fast" % len(found),
        source="PyTorch's all-reduce between two hosts over one card of each",
        fix=(
            "Check the card that is named, its cable, its slot and its switch port. If all cards "
            "of one name are slow, check the switch of that rail."
        )
        if broken or slow
        else "",
    )
    return {"devices": rates, "checks": [check] if found else []}


# --- the files ----------------------------------------------------------------------------------------------------------------


def filed_result(device: Shown, generated: str) -> dict[str, Any]:
    """Return what the file of a device keeps of this run."""
    keys = ["kind", "model", "host", "index", "software", "verdict", "wrong", "rates", "state"]
    if "name" in device:
        keys.append("name")
    found: dict[str, Any] = dict(device)
    return dict({key: found[key] for key in keys}, generated=generated)


def with_result(document: Document | None, device: Shown, generated: str) -> Document:
    """Return the document of a device's file with the result of this run.

    The oldest results leave it.
    """
    results = document.get("results") or [] if document else []
    return {
        "schema_version": SCHEMA_VERSION,
        "serial": device["serial"],
        "results": (results + [filed_result(device, generated)])[-KEPT:],
    }


def read_document(document: object) -> Document | None:
    """Return the serial number and the usable results of a file; None if it is not such a file."""
    if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION:
        return None
    results = [result for result in document.get("results") or [] if _is_result(result)]
    return {"serial": str(document.get("serial") or ""), "results": results}


def _is_result(result: object) -> bool:
    keys = ("kind", "model", "software", "verdict", "rates")
    return (
        isinstance(result, dict)
        and all(key in result for key in keys)
        and isinstance(result["rates"], dict)
        and all(_is_number(value) for value in result["rates"].values())
    )
