# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What both job runners share: from the records of a job's ranks to result.json, its verdict and the lines for the log.

Role train's runner starts ranks, and role jobs' runner starts workers. Both start each through rank.py, which writes rank.N.json. It runs on hosts
with Python 3.8 or later.
"""

from __future__ import annotations

import json
import signal
import time

import _job_watch
from _files import read_json, write_private

__all__ = [
    "STOPPED",
    "TIMED_OUT",
    "checksum_problems",
    "entries",
    "exit_code",
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

#: Exit codes of a job, as of timeout(1) and of a shell.
TIMED_OUT, STOPPED = 124, 143
#: The rank itself, or one of its workers that load data.
OUT_OF_MEMORY = (
    ". Memory was full, and the kernel killed %d of the processes there meanwhile: use less memory (workers, batch), or fewer ranks on the host. "
    "verify shows limits of the container"
)
#: What a job reports of the card of its data.
OF_FABRIC = ("interface", "rdma", "sent_bytes", "received_bytes")


# --- pure functions ---


def report_of(record: dict | None) -> dict:
    """Return what a rank has reported, empty if that is not an object."""
    report = (record or {}).get("report")
    return report if isinstance(report, dict) else {}


def row(rank: int, host: str | None, slot: int, record: dict | None) -> dict:
    """Return what is known of a rank: its entry of result.json, and C(ended), the time of its end in seconds since the epoch or None.

    C(record) is its rank.N.json, or None. C(exit_code) is None for one that was killed, C(hostname) for one that did not start. C(world_size) is the number
    of ranks that it was told of, C(oom_kills) how many processes the kernel has killed on its host meanwhile, because memory was full.
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


def entries(rows: list[dict]) -> list[dict]:
    """Return the rows as result.json has them."""
    inner = ("ended", "world_size", "oom_kills")
    return [{key: row[key] for key in row if key not in inner} for row in rows]


def own_failures(rows: list[dict]) -> list[dict]:
    """Return the ranks that failed by themselves, the earliest first.

    A rank that ended by SIGTERM was stopped because of another one. A rank that ended by SIGKILL counts: the kernel so ends a
    process when the memory is full, and its peers fail a moment later. One that was killed because of another one ended
    after that one.
    """
    failed = [row for row in rows if row["exit_code"] not in (None, 0, 128 + signal.SIGTERM)]
    return sorted(failed, key=lambda row: (row["ended"] or float("inf"), row["rank"]))


def exit_code(code: int, rows: list[dict], problems: list[str], is_stopped: bool) -> int:
    """Return the job's exit code: that of the first failed rank, else that of the launcher, or 1 if only a check failed.

    C(is_stopped) says that the runner has ended the job. Then C(code) is the reason.
    """
    if is_stopped:
        return code
    failed = own_failures(rows)
    if failed:
        return failed[0]["exit_code"]
    # A launcher's 0 is not enough: each rank has to report its own.
    return code or int(bool(problems) or any(row["exit_code"] != 0 for row in rows))


def problem(what: str, host: str, row: dict, folder: str) -> str:
    """Return how a rank failed, as a sentence, or an empty text. C(what) is C(rank) or C(worker), C(host) where it belongs."""
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


def checksum_problems(checksums: dict) -> list[str]:
    """Return the sentences that the parameters differ. C(checksums) has what each rank has reported, by its name, None for one that has reported nothing."""
    if len(set(checksums.values())) < 2:
        return []
    each = ", ".join(
        "%s has %s" % (name, str(checksum or "none")[:12]) for name, checksum in checksums.items()
    )
    return ["the ranks do not have the same parameters after training: " + each]


def seen(
    host: str, requested: int, devices: list[str], found: dict
) -> tuple[dict, dict, list[str]]:
    """Return result.json's entries of a host, C(gpus) and C(fabric), and warnings.

    C(requested) is the number of GPUs that the job requested there, C(devices) which ones if it has chosen them, C(found) the last line of the
    host's watcher.
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
    warning = "host %s: %s stayed idle, although the job requested %d. Check how its command chooses its GPUs, and CUDA_VISIBLE_DEVICES"
    return gpus, fabric, [warning % (host, idle, requested)]


def metrics(records: dict) -> dict:
    """Return the metrics that the first rank has reported."""
    return report_of(records.get(0)).get("metrics", {})


def longest(records: dict) -> float:
    """Return the seconds of the rank that ran longest."""
    return max([record.get("seconds") or 0.0 for record in records.values() if record] or [0.0])


def busy(gpus: dict) -> str:
    """Return how many of the requested GPUs of a host were busy, for the log."""
    return "GPUs busy %s of %d" % ("?" if gpus["busy"] is None else gpus["busy"], gpus["requested"])


def moved(result: dict) -> list[str]:
    """Return lines for the log: the metrics, and by host the bytes of the fabric and the use of the GPUs."""
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


def summary_end(result: dict) -> list[str]:
    """Return the last lines for the log: the warnings and the problems."""
    warnings = ["warning: " + warning for warning in result["warnings"]]
    return warnings + ["failed: " + problem for problem in result["problems"]]


# --- functions with side effects ---


def write_json(path: str, value: object, mode: int = 0o600) -> None:
    write_private(path, json.dumps(value, indent=2) + "\n", mode)


def read_records(folder: str, count: int, seconds: float) -> dict[int, dict]:
    """Return the rank.N.json of C(count) ranks by N, without those that are missing.

    A network file system may show a file of another host after a short delay, so there are C(seconds) for those that are missing or not complete.
    """
    deadline = time.monotonic() + seconds
    while True:
        every = {rank: read_json("%s/rank.%d.json" % (folder, rank)) for rank in range(count)}
        found = {rank: record for rank, record in every.items() if isinstance(record, dict)}
        complete = [record for record in found.values() if record.get("exit_code") is not None]
        if len(complete) == count or time.monotonic() >= deadline:
            return found
        time.sleep(0.2)
