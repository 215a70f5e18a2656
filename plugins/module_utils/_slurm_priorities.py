# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is wrong with a list of priorities.

The input rules, the plan and module slurm_accounts use this one check. A pure function.
"""

from __future__ import annotations

import re

from typing import Any, Mapping, Sequence

__all__ = ["MOST", "NAME", "NAMES", "priority_faults"]

# sacctmgr folds names to lower case. It accepts any character, and its own output is ambiguous with
# some.
NAME = re.compile(r"(?!root$)[a-z][a-z0-9_-]{0,39}", re.ASCII)
NAMES = "lower-case letters, digits, _ and -, at most 40, beginning with a letter, and not root"
MOST = 1000000


def _circle(preempts: Mapping[str, list[str]]) -> list[str]:
    """Return the names of priorities that preempt each other in a circle, in its order, [] if there
    is none.
    """

    def walk(name: str, path: list[str]) -> list[str]:
        if name in path:
            return path[path.index(name) :] + [name]
        for other in preempts.get(name, ()):
            circle = walk(other, path + [name])
            if circle:
                return circle
        return []

    for name in preempts:
        circle = walk(name, [])
        if circle:
            return circle
    return []


def priority_faults(priorities: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what is wrong with entries of C(name), C(priority) and C(preempts), one sentence each.

    The caller names the variable before each of them.
    """
    found: list[str] = []
    preempts: dict[str, list[str]] = {}
    names = [str(entry.get("name", "")) for entry in priorities]
    for entry, name in zip(priorities, names):
        if not NAME.fullmatch(name):
            found.append("'%s' is not a valid name; use %s" % (name, NAMES))
        if names.count(name) > 1:
            found.append("'%s' is listed %d times; keep one" % (name, names.count(name)))
        number = entry.get("priority", 0)
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MOST:
            found.append(
                "'%s' has the priority '%s'; use a whole number from 0 to %d" % (name, number, MOST)
            )
        preempts[name] = [str(other) for other in entry.get("preempts") or []]
        found += [
            "'%s' preempts '%s', which is not in the list; correct the name or add it"
            % (name, other)
            for other in preempts[name]
            if other not in names
        ]
    circle = _circle(preempts)
    if circle:
        found.append(
            (
                "%s preempt each other in a circle; jobs would requeue each other without end. "
                "Remove one of these 'preempts'"
            )
            % " > ".join(circle)
        )
    return list(dict.fromkeys(found))
