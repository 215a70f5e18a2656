# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The form of a finding, also for programs on hosts."""

from __future__ import annotations

from typing import TypedDict

__all__ = ["VERDICTS", "Finding", "finding"]

VERDICTS = ("pass", "warn", "fail", "skipped", "not_evaluated")


class Finding(TypedDict):
    """The result of one check. C(verdict) is one of VERDICTS."""

    id: str
    host: str
    verdict: str
    expected: str
    found: str
    source: str
    seconds: float
    fix: str


def finding(
    check_id: str,
    host: str,
    verdict: str,
    expected: str = "",
    found: str = "",
    source: str = "",
    fix: str = "",
    seconds: float = 0.0,
) -> Finding:
    """Return one finding.

    C(source) is what was asked: a variable's name for input, a tool or a file for what a host says.
    """
    if verdict not in VERDICTS:
        raise ValueError(
            "%s: verdict %r is not one of %s" % (check_id, verdict, ", ".join(VERDICTS))
        )
    return {
        "id": check_id,
        "host": host,
        "verdict": verdict,
        "expected": expected,
        "found": found,
        "source": source,
        "seconds": seconds,
        "fix": fix,
    }
