# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When the health program drains a node, and when the node comes back.

Pure functions: findings, Slurm's answers and the node's history in, decisions out.
"""

from __future__ import annotations

import re
from typing import Any

PREFIX = "trainyard: "
#: Slurm accepts more. The reason is shown in tables.
LENGTH = 200
#: Reasons of verify, of upgrades and of burn-ins, which begin with the same word.
OTHERS = ("trainyard: verify:", "trainyard: upgrade", "trainyard: burn-in")
#: Who has to act: on a host, on what hosts share, or on what a person's job has left.
CLASSES = {
    "share": "fabric",
    "gpu-fabric": "fabric",
    "ib-ports": "fabric",
    "ib-flaps": "fabric",
    "ib-counters": "fabric",
    "epilog": "user",
    "alloc-gpus-busy": "user",
}
#: Drain any number of nodes: a job without the share fails on each of them, and what a job has left
#: must not meet the next person.
NEVER_HELD = {"share", "epilog", "firewall", "alloc-gpus-busy"}
#: A smaller cluster has no mass to protect. In others the breaker leaves two thirds of the nodes in
#: service.
LEAST_NODES, MOST_OUT = 4, 3
#: A job of a person, or one server for all hosts, causes these. There is nothing to repair on the
#: node, so they never keep it out.
NEVER_STAYS = {"share", "epilog", "alloc-gpus-busy", "free-space"}
#: So many drains for one cause in so many seconds, and a person has to look at the node.
TIMES, WEEK = 3, 7 * 24 * 3600
STAYS = "trainyard: stays out: "
#: The cause has ended, and program idle-checks of the scheduler tries a job before the node returns
#: to service.
PROBE = "trainyard: probe: "
KEPT = 100
#: slurmd itself drains the node for it, when a process of a job does not end in time. The process
#: may end later.
KILL_FAILED = "Kill task failed"


def line(found: list[tuple[str, str]]) -> str:
    """Return the reason of a drain from the checks and their findings: one line, as Slurm's tables
    have no room for more. Empty without a finding.
    """
    text = "; ".join("%s: %s" % pair for pair in found if pair[1])
    # Names of processes and files are chosen by people, and the reason is shown on terminals.
    text = re.sub(r"\s+", " ", text)
    strange = {letter for letter in text if not letter.isprintable()}
    text = text.translate({ord(letter): "?" for letter in strange})
    return (PREFIX + text)[:LENGTH] if text else ""


def class_of(found: list[tuple[str, str]]) -> str:
    """Return the class of a drain. A fault of the host itself counts more than the others."""
    classes = {CLASSES.get(check, "host") for check, text in found if text}
    return next((name for name in ("host", "fabric", "user") if name in classes), "")


def is_held(found: list[tuple[str, str]]) -> bool:
    """Return whether the breaker may hold a drain for these findings back."""
    return not NEVER_HELD.intersection(check for check, text in found if text)


def is_over(node: str, shown: str) -> bool:
    """Return whether a node is one too many of those that this program has drained.

    C(shown) has a node, the time of its reason and the reason in each line, as sinfo prints them.
    All hosts may find the same in the same minute. Each drains first and reads then, so all see the
    same order on the scheduler, and only the first third of the nodes stay out. A node without a
    reason of its own comes last.
    """
    rows = {}
    for text in shown.splitlines():
        name, _separator, rest = text.partition("|")
        since, separator, reason = rest.partition("|")
        if separator:
            rows[name.strip()] = (since.strip(), reason.strip())
    if len(rows) < LEAST_NODES:
        return False
    ours = sorted(
        (since, name)
        for name, (since, reason) in rows.items()
        if reason.startswith(PREFIX) and not reason.startswith(OTHERS)
    )
    names = [name for _since, name in ours]
    place = names.index(node) if node in names else len(names)
    return place >= len(rows) // MOST_OUT


def read_history(text: list[Any]) -> list[dict[str, Any]]:
    """Return the events of the node's history, of which any may be damaged."""
    return [
        event
        for event in text
        if isinstance(event, dict)
        and isinstance(event.get("time"), (int, float))
        and isinstance(event.get("checks"), list)
        and event.get("event") in ("drain", "resume", "held")
    ]


def with_event(history: list[dict[str, Any]], event: dict[str, Any]) -> list[dict[str, Any]]:
    return (history + [event])[-KEPT:]


def new_checks(history: list[dict[str, Any]], found: list[tuple[str, str]]) -> list[str]:
    """Return the checks that drain now and did not at the last event, in their order."""
    last = history[-1] if history else {}
    former = last["checks"] if last.get("event") == "drain" else []
    return list(dict.fromkeys(check for check, text in found if text and check not in former))


def too_often(history: list[dict[str, Any]], now: float) -> str:
    """Return the check that has drained the node too often in the last week, if it is one of those
    that drained it last. Empty if there is none.
    """
    drains = [event for event in history if event["event"] == "drain"]
    if not drains:
        return ""
    for check in drains[-1]["checks"]:
        if check in NEVER_STAYS:
            continue
        begun = [
            event
            for event in drains
            if check in event.get("new", event["checks"]) and now - WEEK < event["time"] <= now
        ]
        if len(begun) >= TIMES:
            return str(check)
    return ""


def is_of_hardware(history: list[dict[str, Any]]) -> bool:
    """Return whether the last drain was for a fault of the host or of what hosts share.

    What a job has left says nothing about them when it has gone.
    """
    drains = [event for event in history if event["event"] == "drain"]
    return not drains or drains[-1].get("class") != "user"


def waits_for_probe(former: str) -> str:
    """Return the reason of a node whose fault has ended, until a job has run on it."""
    return (PROBE + former[len(PREFIX) :])[:LENGTH]


def stays_out(check: str) -> str:
    """Return the reason of a node that a person has to resume."""
    return "%s%s drained this node %d times in a week; repair it, then resume it by hand" % (
        STAYS,
        check,
        TIMES,
    )
