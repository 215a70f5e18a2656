# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What both job runners share: from the records of a job's ranks to result.json, its verdict and
the lines for the log.

Role train's runner starts ranks, and role jobs' runner starts workers. Both start each through
rank.py, which writes rank.N.json. It runs on hosts with Python 3.8 or later.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import time
from typing import Any, Dict

import _job_watch
from _files import read_json, write_private

__all__ = [
    "STOPPED",
    "TIMED_OUT",
    "checksum_problems",
    "entries",
    "exit_code",
    "failure_lines",
    "first_failed",
    "longest",
    "metrics",
    "moved",
    "own_failures",
    "problem",
    "read_records",
    "row",
    "seen",
    "summary_end",
    "write_json",
]

#: A rank's record or row, a cause, and other objects of result.json: what a program of a person has
#: reported may be in them.
Entry = Dict[str, Any]

#: Exit codes of a job, as of timeout(1) and of a shell.
TIMED_OUT, STOPPED = 124, 143
#: The rank itself, or one of its workers that load data.
OUT_OF_MEMORY = (
    ". Memory was full, and the kernel killed %d of the processes there meanwhile: use less "
    "memory (workers, batch), or fewer ranks on the host. "
    "verify shows limits of the container"
)
#: What a job reports of the card of its data.
OF_FABRIC = ("interface", "rdma", "sent_bytes", "received_bytes")
#: Exit codes that say why, if the log does not: the signals of a kill, a bus error and a crash, and
#: what a shell says of a command.
OF_CODES = {
    126: "not_executable",
    127: "command_missing",
    128 + signal.SIGILL: "illegal_instruction",
    128 + signal.SIGBUS: "bus_error",
    128 + signal.SIGKILL: "out_of_memory_killed",
    128 + signal.SIGSEGV: "segmentation_fault",
}
#: What launchers say of the end of any rank. They then end the others.
OF_LAUNCHERS = frozenset(["elastic_child_failed", "process_failed", "step_cancelled"])
#: Lines of a log in result.json, and consequences that the log of a job names.
LAST_LINES, NAMED = 20, 8


# --- pure functions ---


def report_of(record: Entry | None) -> Entry:
    """Return what a rank has reported, empty if that is not an object."""
    report = (record or {}).get("report")
    return report if isinstance(report, dict) else {}


def row(rank: int, host: str | None, slot: int, record: Entry | None) -> Entry:
    """Return what is known of a rank: its entry of result.json, and C(ended), the time of its end
    in seconds since the epoch or None.

    C(record) is its rank.N.json, or None. C(exit_code) is None for one that was killed, C(hostname)
    for one that did not start. C(world_size) is the number of ranks that it was told of,
    C(oom_kills) how many processes the kernel has killed on its host meanwhile, because memory was
    full.
    """
    record = record or {}
    seconds = record.get("seconds")
    return {
        "rank": rank,
        "host": host,
        "slot": slot,
        "exit_code": record.get("exit_code"),
        "checksum": report_of(record).get("checksum"),
        "hostname": record.get("hostname"),
        "container_id": record.get("container_id"),
        "world_size": record.get("world_size"),
        "oom_kills": record.get("oom_kills"),
        "ended": None if seconds is None else record["started"] + seconds,
    }


#: C(seen) is when the runner has seen the end of a rank, by its own clock.
NOT_TOLD = ("ended", "oom_kills", "seen", "world_size")


def entries(rows: list[Entry]) -> list[Entry]:
    """Return the rows as result.json has them."""
    return [{key: row[key] for key in row if key not in NOT_TOLD} for row in rows]


def own_failures(rows: list[Entry]) -> list[Entry]:
    """Return the ranks that failed by themselves, the earliest first.

    A rank that ended by SIGTERM was stopped because of another one. A rank that ended by SIGKILL
    counts: the kernel so ends a process when the memory is full, and its peers fail a moment later.
    One that was killed because of another one ended after that one.
    """
    failed = [row for row in rows if row["exit_code"] not in (None, 0, 128 + signal.SIGTERM)]
    return by_time(failed)


def by_time(rows: list[Entry]) -> list[Entry]:
    """Return the ranks in the order in which they ended.

    The clocks of hosts differ, so the times at which the runner has seen the ends count, if it has
    seen all of them.
    """
    clock = "seen" if all(row.get("seen") for row in rows) else "ended"
    return sorted(rows, key=lambda row: (row.get(clock) or float("inf"), row["rank"]))


class Logs:
    """The logs of the ranks of a job, each read when it is needed."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def get(self, rank: int, missing: object = "") -> object:
        """Return the log of a rank for _log_causes. Its owner may have put anything in its
        place.
        """
        causes = importlib.import_module("_log_causes")
        try:
            descriptor = os.open(
                "%s/rank.%d.log" % (self.folder, rank), os.O_RDONLY | os.O_NONBLOCK
            )
            with os.fdopen(descriptor, "rb") as stream:
                return causes.read_log(stream)
        except OSError:
            return missing


def first_failed(
    rows: list[Entry],
    logs: Logs | dict[int, str],
    messages: dict[int, str] | None = None,
    memory: dict[str, Entry] | None = None,
) -> Entry | None:
    """Return the rank that failed first, with its causes and the ranks that failed because of it,
    or None if none failed.

    C(logs) has the log of each rank. C(messages) has by rank what the scheduler said about its end, and
    C(memory) by host the counters of its control group. A rank whose log only has messages about
    other ranks, or a lost connection, is not the first one if a different rank has a cause of its
    own.
    """
    failed = _failed(rows)
    if not failed:
        return None
    each = ((row, _explained(row, logs.get(row["rank"], ""), messages, memory)) for row in failed)
    first = next(each)
    if not _failed_itself(first[1]["causes"]):
        first = next((other for other in each if _failed_itself(other[1]["causes"])), first)
    row, found = first
    keys = ("rank", "host", "exit_code")
    others = by_time([other for other in rows if other is not row and other["exit_code"] != 0])
    ended = [{key: other[key] for key in keys} for other in others]
    return dict({key: row[key] for key in keys}, **found, consequences=ended)


def _failed(rows: list[Entry]) -> list[Entry]:
    """Return the ranks that failed by themselves, or all that did not end well, the
    earliest first.
    """
    # A rank that was killed together with what records it has no exit code.
    killed = [row for row in rows if row["exit_code"] is None and row["hostname"]]
    bad = [row for row in rows if row["exit_code"] != 0 and row["hostname"]]
    return by_time(own_failures(rows) + killed) or by_time(bad)


def _is_own(causes: list[Entry]) -> bool:
    of_others = importlib.import_module("_error_signatures").OF_OTHERS
    return not causes or any(cause["id"] not in of_others for cause in causes)


def _failed_itself(causes: list[Entry]) -> bool:
    """Return whether a rank failed by itself.

    What its launcher says of the end does not tell whether it did.
    """
    names = {cause["id"] for cause in causes}
    if names & OF_LAUNCHERS:
        names -= OF_LAUNCHERS | {"terminated"}
    return _is_own([cause for cause in causes if cause["id"] in names])


def _has_cause(causes: list[Entry]) -> bool:
    """Return whether one of the messages says why, and not only that something failed."""
    table = importlib.import_module("_error_signatures")
    goes_on = importlib.import_module("_log_causes").goes_on
    known = {entry.id for entry in table.SIGNATURES if entry.rank <= table.CAUSE}
    return any(cause["id"] in known and not goes_on(cause["line"]) for cause in causes)


def _explained(
    row: Entry, log: object, messages: dict[int, str] | None, memory: dict[str, Entry] | None
) -> Entry:
    """Return C(causes) and C(lines) of a rank that failed."""
    library = importlib.import_module("_log_causes")
    log = library.log_of(log) if isinstance(log, str) else log
    answer = library.answer(log)
    of_scheduler = library.answer(library.log_of((messages or {}).get(row["rank"], "")))["causes"]
    known = {cause["id"] for cause in answer["causes"]}
    causes = [cause for cause in of_scheduler if cause["id"] not in known]
    # That a process has ended is no cause beside one in its log.
    causes = causes + answer["causes"] if _is_own(causes) else answer["causes"] or causes
    causes = _with_code(causes, row["exit_code"], library)
    counters = dict((memory or {}).get(row["host"]) or {})
    # The control group may be out of reach. Then the kernel's count of the whole host is left.
    counters["oom_kills"] = counters.get("oom_kills") or row.get("oom_kills")
    causes = _with_memory(causes, counters, library)
    # A launcher's words about the end are no cause.
    has_cause = _has_cause(causes)
    lines = not has_cause and answer["lines"] or library.last_lines(log, LAST_LINES)
    return {"lines": [found["line"] for found in lines], "causes": causes}


def _with_code(causes: list[Entry], code: int | None, library: Any) -> list[Entry]:
    """Return the causes, with what an exit code says if the log has no cause of this rank.

    C(code) is None for one that was killed.
    """
    name = OF_CODES.get(128 + signal.SIGKILL if code is None else code)
    if not name or causes and _is_own(causes):
        return causes
    line = "it was killed" if code is None else "exit code %d" % code
    return [library.cause_of(name, line)] + causes


def _with_memory(causes: list[Entry], counters: Entry, library: Any) -> list[Entry]:
    """Return the causes, with what the control group says of a kill: it counts those because of its
    limit.
    """
    names = ("out_of_memory_killed", "job_out_of_memory")
    if not counters.get("oom_kills") or not any(cause["id"] in names for cause in causes):
        return causes
    words = ", ".join(
        "%s %d MiB" % (name, counters[name] >> 20)
        for name in ("limit", "peak")
        if counters.get(name) is not None
    )
    cause = (
        "the memory of the job or its container was full (%s), and the kernel killed %d of the "
        "processes there"
    ) % (
        words or "limit not known",
        counters["oom_kills"],
    )
    line = "kernel: oom_kill %d" % counters["oom_kills"]
    added = library.cause_of("job_out_of_memory", line, cause=cause)
    return [added] + [each for each in causes if each["id"] not in names]


def failure_lines(what: str, failed: Entry | None, fix: str) -> list[str]:
    """Return lines for the log about the rank that failed first.

    C(what) is C(rank) or C(worker), C(fix) the key of the fix for the reader.
    """
    if not failed:
        return []
    lines = [
        "%s %d on host %s failed first. %s:"
        % (
            what,
            failed["rank"],
            failed["host"],
            "Its last lines"
            if _has_cause(failed["causes"])
            else "Lines of its log that may say why",
        )
    ]
    lines += ["  " + line for line in failed["lines"]]
    for cause in failed["causes"]:
        at = " (line %d)" % cause["line_number"] if cause["line_number"] else ""
        todo = cause[fix][:1].upper() + cause[fix][1:]
        lines.append("cause: %s. %s%s" % (cause["cause"], todo, at))
    ended = [
        "%s %d (exit code %s)" % (what, each["rank"], each["exit_code"])
        for each in failed["consequences"][:NAMED]
    ]
    more = len(failed["consequences"]) - len(ended)
    if ended:
        ended += ["and %d others" % more] if more else []
        lines.append("ended because of it: " + ", ".join(ended))
    return lines


def exit_code(code: int, rows: list[Entry], problems: list[str], is_stopped: bool) -> int:
    """Return the job's exit code: that of the first failed rank, else that of the launcher, or 1 if
    only a check failed.

    C(is_stopped) says that the runner has ended the job. Then C(code) is the reason.
    """
    if is_stopped:
        return code
    failed = own_failures(rows)
    if failed:
        return int(failed[0]["exit_code"])
    # A launcher's 0 is not enough: each rank has to report its own.
    return code or int(bool(problems) or any(row["exit_code"] != 0 for row in rows))


def problem(what: str, host: str, row: Entry, folder: str) -> str:
    """Return how a rank failed, as a sentence, or an empty text.

    C(what) is C(rank) or C(worker), C(host) where it belongs.
    """
    name = "%s %d" % (what, row["rank"])
    log = "Log: %s/rank.%d.log" % (folder, row["rank"])
    if row["hostname"] is None:
        return "%s did not start on host %s" % (name, host)
    if row["exit_code"] is None:
        return "%s on host %s was killed and has no exit code. %s" % (name, host, log)
    if row["exit_code"]:
        cause = OUT_OF_MEMORY % row["oom_kills"] if row.get("oom_kills") else ""
        return "%s on host %s ended with exit code %d%s. %s" % (
            name,
            host,
            row["exit_code"],
            cause,
            log,
        )
    return ""


def checksum_problems(checksums: dict[str, str | None]) -> list[str]:
    """Return the sentences that the parameters differ.

    C(checksums) has what each rank has reported, by its name, None for one that has reported
    nothing.
    """
    if len(set(checksums.values())) < 2:
        return []
    each = ", ".join(
        "%s has %s" % (name, str(checksum or "none")[:12]) for name, checksum in checksums.items()
    )
    return ["the ranks do not have the same parameters after training: " + each]


def seen(
    host: str, requested: int, devices: list[str], found: Entry
) -> tuple[Entry, Entry, list[str]]:
    """Return result.json's entries of a host, C(gpus) and C(fabric), and warnings.

    C(requested) is the number of GPUs that the job requested there, C(devices) which ones if it has
    chosen them, C(found) the last line of the host's watcher.
    """
    peaks = found.get("peaks", [])
    gpus = dict(
        _job_watch.seen_gpus(requested, devices, peaks),
        peak_utilization=peaks,
        looks=found.get("looks", 0),
    )
    fabric = {name: found.get(name) for name in OF_FABRIC}
    if not requested or not gpus["idle"]:
        return gpus, fabric, []
    idle = ", ".join("GPU %d (%d %% at most)" % (number, peaks[number]) for number in gpus["idle"])
    warning = (
        "host %s: %s stayed idle, although the job requested %d. Check how its command chooses its "
        "GPUs, and CUDA_VISIBLE_DEVICES"
    )
    return gpus, fabric, [warning % (host, idle, requested)]


def metrics(records: dict[int, Entry | None]) -> Entry:
    """Return the metrics that the first rank has reported."""
    found: Entry = report_of(records.get(0)).get("metrics", {})
    return found


def longest(records: dict[int, Entry | None]) -> float:
    """Return the seconds of the rank that ran longest."""
    return max([record.get("seconds") or 0.0 for record in records.values() if record] or [0.0])


def busy(gpus: Entry) -> str:
    """Return how many of the requested GPUs of a host were busy, for the log."""
    return "GPUs busy %s of %d" % ("?" if gpus["busy"] is None else gpus["busy"], gpus["requested"])


def moved(result: Entry) -> list[str]:
    """Return lines for the log: the metrics, and by host the bytes of the fabric and the use of the
    GPUs.
    """
    lines = []
    if result["metrics"]:
        lines.append("  ".join("%s %s" % item for item in sorted(result["metrics"].items())))
    for host in sorted(result["fabric"]):
        gpus, fabric = result["gpus"][host], result["fabric"][host]
        words = []
        if fabric["sent_bytes"] is not None:
            megabytes = (fabric["sent_bytes"] / 1e6, fabric["received_bytes"] / 1e6)
            words += [fabric["interface"], "sent %.1f MB  received %.1f MB" % megabytes]
        if gpus["requested"]:
            words.append(busy(gpus))
        if words:
            lines.append("  ".join(["host " + host] + words))
    return lines


def summary_end(result: Entry) -> list[str]:
    """Return the last lines for the log: the warnings and the problems."""
    warnings = ["warning: " + warning for warning in result["warnings"]]
    return warnings + ["failed: " + problem for problem in result["problems"]]


# --- functions with side effects ---


def write_json(path: str, value: object, mode: int = 0o600) -> None:
    write_private(path, json.dumps(value, indent=2) + "\n", mode)


def read_records(folder: str, count: int, seconds: float) -> dict[int, Entry]:
    """Return the rank.N.json of C(count) ranks by N, without those that are missing.

    A network file system may show a file of another host after a short delay, so there are
    C(seconds) for those that are missing or not complete.
    """
    deadline = time.monotonic() + seconds
    while True:
        every = {rank: read_json("%s/rank.%d.json" % (folder, rank)) for rank in range(count)}
        found = {rank: record for rank, record in every.items() if isinstance(record, dict)}
        complete = [record for record in found.values() if record.get("exit_code") is not None]
        if len(complete) == count or time.monotonic() >= deadline:
            return found
        time.sleep(0.2)
