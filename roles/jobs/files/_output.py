# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the command trainyard shows what it has found: tables, times, or JSON."""

from __future__ import annotations

import datetime
import json
import os
import sys

import _messages
from _slurm_client import GIB

GOOD, FAILED, REFUSED, NO_ANSWER = 0, 1, 2, 3
#: Colours of words on a terminal (ECMA-48). Each word says the same without its colour.
GREEN, YELLOW, RED = "32", "33", "31"
COLOURS = {
    "running": GREEN,
    "in service": GREEN,
    "waiting": YELLOW,
    "starting": YELLOW,
    "ending": YELLOW,
    "held": YELLOW,
    "failed": RED,
    "out of time": RED,
    "out of memory": RED,
    "host failed": RED,
    "out of service": RED,
}


def is_coloured() -> bool:
    """Return whether the output is a terminal that shows colours, and its person wants them
    (NO_COLOR).
    """
    if os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return sys.stdout is not None and sys.stdout.isatty()


def painted(text: str) -> str:
    """Return a state with its colour, if the output has colours. The text may have spaces
    after it.
    """
    colour = COLOURS.get(text.rstrip())
    if colour is None or not is_coloured():
        return text
    return "\x1b[%sm%s\x1b[0m" % (colour, text)


def printable(value):
    """Return a value as text without characters that a terminal would obey."""
    return _messages.printable(str(value))


def table(heads, rows):
    """Print rows below their heads, each column as wide as it needs to be.

    States have a colour on a terminal.
    """
    cells = [list(heads)] + [[printable(value) for value in row] for row in rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(heads))]
    state = heads.index("STATE") if is_coloured() and "STATE" in heads else None
    lines = []
    for row in cells:
        shown = list(map(str.ljust, row, widths))
        shown[-1] = row[-1]
        if state is not None:
            shown[state] = painted(shown[state])
        lines.append("  ".join(shown).rstrip())
    print("\n".join(lines))


def local(stamp, today=None):
    """Return a time of Slurm in the zone of this host: the clock alone if it is today."""
    if not stamp:
        return "-"
    moment = moment_of(stamp).astimezone()
    today = today or datetime.datetime.now().date()
    return moment.strftime("%H:%M" if moment.date() == today else "%Y-%m-%d %H:%M")


def moment_of(stamp):
    # Much faster than strptime, which counts for thousands of jobs. Python 3.8 does not read the Z.
    return datetime.datetime.fromisoformat(stamp.rstrip("Z") + "+00:00")


def duration(seconds):
    seconds = int(max(0, seconds))
    hours, minutes = seconds // 3600, seconds % 3600 // 60
    return "%d:%02d:%02d" % (hours, minutes, seconds % 60)


def lasted(job):
    if not job["started"]:
        return "-"
    end = moment_of(job["ended"]) if job["ended"] else datetime.datetime.now(datetime.timezone.utc)
    return duration((end - moment_of(job["started"])).total_seconds())


def out(options, value, show):
    """Print a value as JSON, or as a person reads it."""
    if options.json:
        print(json.dumps(value, indent=2, sort_keys=True))
    else:
        show(value)
    return GOOD


def gigabytes(mebibytes: int | None) -> str:
    return amount(None if mebibytes is None else "%.4g" % (mebibytes / GIB))


def amount(value):
    return "no limit" if value is None else value
