# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who has used the GPUs, and how well: jobs of Slurm in, rows by account and person out.

Pure functions.

The use of a job is in its AdminComment, as one word such as
C(ty1:gpus=8,seen=8,used=3,hours=12.3,use=0.41). sacctmgr makes lower case of all letters and
replaces quotes, so the text has neither. A job without measurements is not measured: that is not a
use of 0.
"""

from __future__ import annotations

import calendar
import csv
import datetime
import html
import io
import re

from typing import Any, Iterable

try:
    from ansible_collections.trainyard.gpu.plugins.module_utils._messages import printable
except ImportError:
    # Role host_library copies these files to hosts, into one folder.
    from _messages import printable  # type: ignore[import-not-found,no-redef]

try:
    from ansible_collections.trainyard.gpu.plugins.module_utils._quantity import quantity
except ImportError:
    # Beside the program in a folder of a host.
    from _quantity import quantity  # type: ignore[import-not-found,no-redef]

__all__ = [
    "COLUMNS",
    "HEADS",
    "amount",
    "as_csv",
    "as_html",
    "as_lines",
    "cells",
    "is_summary",
    "measured",
    "month_of",
    "notes",
    "parse_summary",
    "span_of",
    "summary_text",
    "usage_rows",
    "words",
]

_MARK = "ty1:"
GIB = 1 << 30
HOUR = 3600.0
#: Decimals of hours and kWh: a GPU second is not 0.
DECIMALS = 4
#: Joules of a kWh.
KWH = 3.6e6
#: Mean use below which a job is told so. jobstats has the same limit.
LOW_USE = 0.15
_FAILED = frozenset(("failed", "node_fail", "boot_fail", "out_of_memory", "timeout", "deadline"))
_MONTH = re.compile(r"([0-9]{4})-(0[1-9]|1[0-2])")
_PART = re.compile(r"([a-z]{1,20})=([0-9]{1,15}(?:\.[0-9]{1,6})?)")
#: Keys of a row, with the head of the column.
HEADS = {
    "account": "ACCOUNT",
    "user": "PERSON",
    "jobs": "JOBS",
    "failed": "FAILED",
    "gpu_hours": "GPU HOURS",
    "gpu_hours_measured": "MEASURED",
    "gpu_hours_idle": "IDLE",
    "mean_use": "MEAN USE",
    "energy_kwh": "KWH",
    "wait_median_minutes": "WAIT (MIN)",
    "wait_90_minutes": "90 % WAIT",
}
COLUMNS = tuple(HEADS)


# --- the use of one job ---


def measured(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what was measured of a job, from the sums of each of its GPUs.

    :param rows: for each GPU C(measured_seconds_total), C(use_seconds_total), C(busy_seconds_total), C(energy_joules_total) and C(memory_max_bytes). One
        without the first has no use, as in MIG mode.
    """
    seen = [row for row in rows if row.get("measured_seconds_total")]
    seconds = sum(row["measured_seconds_total"] for row in seen)
    found = {"seen": len(seen), "energy": sum(row.get("energy_joules_total", 0) for row in rows)}
    if not seconds:
        return found
    busy = [row.get("busy_seconds_total", 0) for row in seen]
    return dict(
        found,
        used=len([value for value in busy if value > 0]),
        seconds=seconds,
        use=sum(row.get("use_seconds_total", 0) for row in seen) / seconds,
        idle=1 - sum(busy) / seconds,
        memory=max(row.get("memory_max_bytes", 0) for row in rows),
    )


def summary_text(gpus: int, found: dict[str, Any], stopped: int = 0) -> str:
    """Return the AdminComment of a job.

    :param gpus: number of GPUs that it had.
    :param found: what P(measured) returns.
    :param stopped: minutes without use after which it was stopped, 0 if it was not.
    """
    values = {"gpus": gpus, "seen": found["seen"]}
    if found["seen"]:
        values["used"] = found["used"]
        values["hours"] = round(found["seconds"] / HOUR, DECIMALS)
        values["use"] = round(min(1.0, found["use"]), 3)
        values["idle"] = round(max(0.0, found["idle"]), 3)
        values["mem"] = round(found["memory"] / GIB, 1)
    if found["energy"]:
        values["kwh"] = round(found["energy"] / KWH, 3)
    if stopped:
        values["stopped"] = stopped
    return _MARK + ",".join("%s=%.10g" % item for item in values.items())


def is_summary(text: str | None) -> bool:
    """Return whether an AdminComment begins like one of P(summary_text)."""
    return (text or "").startswith(_MARK)


def parse_summary(text: str | None) -> dict[str, Any] | None:
    """Return the values of an AdminComment, None if it is not one of P(summary_text).

    An administrator may have written any text.
    """
    if text is None or not text.startswith(_MARK):
        return None
    matches = [_PART.fullmatch(part) for part in text[len(_MARK) :].split(",")]
    if not all(matches):
        return None
    values = {match.group(1): float(match.group(2)) for match in matches if match}
    needed = ("gpus", "seen", "used", "hours", "use", "idle", "mem")
    return values if set(needed[: 7 if values.get("seen") else 2]) <= set(values) else None


def words(values: dict[str, Any]) -> str:
    """Return how well a job has used its GPUs, in words.

    :param values: what P(parse_summary) returns.
    """
    if not values["seen"]:
        return "not measured"
    parts = [
        "%d %% on average" % round(100 * values["use"]),
        "%d of %s used" % (values["used"], quantity(values["gpus"], "GPU")),
        "idle %d %% of the time" % round(100 * values["idle"]),
        "%.4g GiB of memory at most" % values["mem"],
    ]
    if values.get("kwh"):
        parts.append("%.3g kWh" % values["kwh"])
    if values["seen"] < values["gpus"]:
        parts.append("%d of %s measured" % (values["seen"], quantity(values["gpus"], "GPU")))
    return ", ".join(parts)


def notes(values: dict[str, Any]) -> list[str]:
    """Return what the person of a job could do better. Empty if nothing is known."""
    found = []
    if values.get("stopped"):
        found.append(
            (
                "it was stopped, because none of its GPUs had been used for %s; stop jobs that "
                "wait for you, and submit them again"
            )
            % quantity(values["stopped"], "minute")
        )
    if not values["seen"]:
        return found
    unused = int(values["seen"] - values["used"])
    if unused and values["used"]:
        found.append(
            (
                "%d of its %d GPUs %s never used; request fewer, or check how the program chooses "
                "its GPUs and CUDA_VISIBLE_DEVICES"
            )
            % (unused, values["gpus"], "was" if unused == 1 else "were")
        )
    elif unused:
        found.append(
            "its GPUs were never used; check that the program finds them, or set worker_gpu to 0"
        )
    elif values["use"] < LOW_USE:
        found.append(
            (
                "its GPUs were used %d %% on average; look for what they wait for, such as the "
                "loading of data, or request fewer"
            )
            % round(100 * values["use"])
        )
    return found


# --- a month ---


def month_of(text: str, today: datetime.date) -> tuple[str, int, int]:
    """Return a month, and its begin and end in seconds since 1970, in UTC. ValueError: it is none.

    :param text: such as 2026-11, or empty for the month of C(today).
    """
    text = text or today.strftime("%Y-%m")
    match = _MONTH.fullmatch(text)
    if not match:
        raise ValueError("'%.40s' is not a month; write it as in 2026-11" % text)
    year, month = int(match.group(1)), int(match.group(2))
    following = (year + month // 12, month % 12 + 1)
    begin, end = [calendar.timegm((*first, 1, 0, 0, 0)) for first in ((year, month), following)]
    return text, begin, end


def span_of(begin: float, end: float) -> tuple[str, str]:
    """Return begin and end of a time as sacct takes them, in UTC."""
    moments = [
        datetime.datetime.fromtimestamp(each, datetime.timezone.utc) for each in (begin, end)
    ]
    return moments[0].strftime("%Y-%m-%dT%H:%M:%S"), moments[1].strftime("%Y-%m-%dT%H:%M:%S")


def _moment(text: str | None) -> float | None:
    """Return the seconds since 1970 of a time of the parsers, such as 2026-11-30T03:55:00Z."""
    if not text:
        return None
    # Much faster than strptime, which counts for thousands of jobs. Python 3.8 does not read the Z.
    return datetime.datetime.fromisoformat(text.rstrip("Z") + "+00:00").timestamp()


def _quantile(values: list[float], share: float) -> float | None:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def _minutes(values: list[float], share: float) -> int | None:
    found = _quantile(values, share)
    return None if found is None else round(found / 60)


class _Sums:
    """What a person, or all of an account, has used in a month."""

    def __init__(self) -> None:
        self.jobs = self.failed = 0
        self.allocated = self.measured = self.used = self.idle = self.energy = 0.0
        self.waits: list[float] = []

    def add(self, job: dict[str, Any], begin: float, end: float) -> None:
        """Add the part of a job that is in the month. One that runs still counts until C(end)."""
        start, stop = _moment(job["start_time"]), _moment(job["end_time"])
        if start is None:
            return
        stop = end if stop is None else stop
        inside = min(stop, end) - max(start, begin)
        if inside < 0 or start >= end:
            return
        self.jobs += 1
        self.allocated += inside * job["gpus"] / HOUR
        if stop < end:
            self.failed += job["state"] in _FAILED
        if start >= begin:
            since = max(_moment(job["submit_time"]) or start, job.get("eligible") or 0)
            self.waits.append(max(0.0, start - since))
        known = parse_summary(job.get("admin_comment"))
        if known is None or stop <= start:
            return
        part = inside / (stop - start)
        self.energy += part * known.get("kwh", 0)
        if known["seen"]:
            hours = part * known["hours"]
            self.measured += hours
            self.used += hours * known["use"]
            self.idle += hours * known["idle"]

    def row(self) -> dict[str, Any]:
        """Return the sums with the keys of HEADS, but for account and user."""
        return {
            "jobs": self.jobs,
            "failed": self.failed,
            "gpu_hours": round(self.allocated, DECIMALS),
            "gpu_hours_measured": round(self.measured, DECIMALS),
            "gpu_hours_idle": round(self.idle, DECIMALS),
            "mean_use": round(self.used / self.measured, 3) if self.measured else None,
            "energy_kwh": round(self.energy, DECIMALS),
            "wait_median_minutes": _minutes(self.waits, 0.5),
            "wait_90_minutes": _minutes(self.waits, 0.9),
        }


def usage_rows(
    jobs: Iterable[dict[str, Any]], begin: float, end: float, by_person: bool = True
) -> list[dict[str, Any]]:
    """Return the use of GPUs by account and person, or by account only, with the key C(user) as
    empty text.

    :param jobs: what P(_slurm.parse_finished) returns, with C(admin_comment).
    :param begin: begin of the time, in seconds since 1970. Of a job only the part inside counts.
    :param end: its end, or now if that is earlier.
    """
    sums: dict[tuple[str, str], _Sums] = {}
    for job in jobs:
        key = (job["account"], job["user"] if by_person else "")
        sums.setdefault(key, _Sums()).add(job, begin, end)
    return [
        dict(account=account, user=user, **own.row())
        for (account, user), own in sorted(sums.items())
        if own.jobs
    ]


# --- how rows are shown ---


def amount(value: float) -> str:
    """Return hours or kWh for people: one decimal, and three digits of what is less than 1."""
    return "%.3g" % value if 0 < value < 0.9995 else "%.1f" % value


def cells(row: dict[str, Any]) -> dict[str, str]:
    """Return the texts of a row: C(-) for what is not known."""
    found = {}
    for key in COLUMNS:
        value = row[key]
        if key == "mean_use":
            found[key] = "-" if value is None else "%d %%" % round(100 * value)
        elif isinstance(value, float):
            found[key] = amount(value)
        else:
            found[key] = "-" if value is None else str(value)
    return found


def as_lines(rows: list[dict[str, Any]]) -> list[str]:
    """Return a table. Characters that a terminal would obey are replaced."""
    texts = [list(HEADS.values())] + [list(cells(row).values()) for row in rows]
    shown = [[printable(text) for text in row] for row in texts]
    widths = [max(len(row[at]) for row in shown) for at in range(len(COLUMNS))]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in shown]


def _safe(value: object) -> object:
    """Return a cell of CSV. Spreadsheets take a text that begins with one of these for a
    formula.
    """
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return "" if value is None else value


def as_csv(rows: list[dict[str, Any]], columns: tuple[str, ...] = COLUMNS) -> str:
    """Return rows as CSV, with the keys as heads."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_safe(row[key]) for key in columns])
    return text.getvalue()


_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:75em;padding:0 "
    "1em;color-scheme:light dark}"
    "table{border-collapse:collapse;width:100%}th,td{padding:.3em "
    ".7em;text-align:right;border-bottom:1px solid #8885}"
    "th:nth-child(-n+2),td:nth-child(-n+2){text-align:left}"
)


def _table(title: str, rows: list[dict[str, Any]]) -> str:
    """Return a title and a table in HTML."""
    heads = "".join("<th>%s</th>" % html.escape(head.capitalize()) for head in HEADS.values())
    lines = [
        "<tr>%s</tr>" % "".join("<td>%s</td>" % html.escape(cell) for cell in cells(row).values())
        for row in rows
    ]
    return "<h2>%s</h2>\n<table><tr>%s</tr>\n%s\n</table>\n" % (title, heads, "\n".join(lines))


def as_html(month: str, accounts: list[dict[str, Any]], rows: list[dict[str, Any]]) -> str:
    """Return a page with the sums of accounts, and with the rows of people."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>GPU usage '
        "%s</title><style>%s</style></head><body>\n"
        "<h1>GPU usage %s</h1>\n<p>Hours of GPUs. Measured: seen by the metrics. Idle: of "
        "these, with a use below 5 %%. Times are in UTC.</p>\n"
        "%s%s</body></html>\n"
        % (month, _STYLE, month, _table("Accounts", accounts), _table("People", rows))
    )
