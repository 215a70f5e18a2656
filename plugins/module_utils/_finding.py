# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The form of a finding, also for programs on hosts."""

from __future__ import annotations

__all__ = ["VERDICTS", "finding"]

VERDICTS = ("pass", "warn", "fail", "skipped", "not_evaluated")


def finding(check_id, host, verdict, expected="", found="", source="", fix="", seconds=0.0):
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
