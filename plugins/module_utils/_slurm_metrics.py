# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Metrics of Slurm: data of the parsers in, families out.

Only C(trainyard_slurm_job_info) names people.
"""

from __future__ import annotations

import calendar
import time

from collections import Counter

from typing import Any, Sequence

try:
    from ansible_collections.trainyard.gpu.plugins.module_utils._metrics import Family
except ImportError:
    # Role host_library copies these files to hosts, into one folder.
    from _metrics import Family  # type: ignore[import-not-found,no-redef]

__all__ = ["queue_families", "seconds_of", "up_family", "waiting"]

#: Why jobs wait, as Slurm names it. Others are free text in parts, and each text would be a series.
REASONS = frozenset(
    (
        "Priority",
        "Resources",
        "Dependency",
        "BeginTime",
        "Licenses",
        "ReqNodeNotAvail",
        "Reservation",
        "PartitionTimeLimit",
        "PartitionNodeLimit",
        "JobHeldUser",
        "JobHeldAdmin",
        "JobArrayTaskLimit",
        "BadConstraints",
        "AssocGrpGRES",
        "AssocGrpJobsLimit",
        "AssocGrpMemLimit",
        "AssocGrpCpuLimit",
        "AssocMaxJobsLimit",
        "QOSGrpGRES",
        "QOSMaxGRESPerUser",
        "QOSMaxJobsPerUserLimit",
    )
)
_RUNS = ("running", "completing")


def seconds_of(text: str | None) -> float | None:
    """Return the seconds since 1970 of a time of the parsers, such as 2026-11-30T03:55:00Z, None
    for no time.
    """
    if not text:
        return None
    return float(calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")))


def _age(text: str | None, now: float) -> float | None:
    """Return the seconds since a time of the parsers, None for no time."""
    begun = seconds_of(text)
    return None if begun is None else max(0.0, now - begun)


def _gauge(name: str, text: str, samples: Sequence[tuple[dict[str, str], float | None]]) -> Family:
    return Family("trainyard_slurm_" + name, "gauge", text, samples)


def up_family(answers: dict[str, bool]) -> Family:
    """Return whether each daemon answers, by its name."""
    return _gauge(
        "up",
        "1 if the daemon answers.",
        [({"daemon": name}, is_up) for name, is_up in sorted(answers.items())],
    )


def _job_state(job: dict[str, Any]) -> str:
    """Return pending, running or other."""
    if job["state"] == "pending":
        return "pending"
    return "running" if job["state"] in _RUNS else "other"


def _job_families(jobs: list[dict[str, Any]], now: float) -> list[Family]:
    count: Counter[tuple[str, str, str]] = Counter()
    gpus: Counter[tuple[str, str]] = Counter()
    waits: dict[tuple[str, str], float] = {}
    people: list[tuple[dict[str, str], float]] = []
    for job in jobs:
        place = (job["account"], job["partition"])
        state = _job_state(job)
        count[(job["account"], job["partition"], state)] += 1
        if state == "running":
            gpus[place] += job["gpus"]
            labels = {"slurm_job": str(job["id"]), "account": job["account"]}
            people.append((dict(labels, user=job["user"], partition=job["partition"]), 1))
        if state == "pending":
            reason = job["reason"] if job["reason"] in REASONS else "other"
            since = job["eligible_time"] or job["submit_time"]
            # A job that begins later, by its person's wish, does not wait yet.
            at = (job["partition"], reason)
            waits[at] = max(waits.get(at, 0.0), _age(since, now) or 0.0)
    return [
        _gauge(
            "jobs",
            "Jobs of the queue.",
            [
                ({"account": account, "partition": partition, "state": state}, number)
                for (account, partition, state), number in sorted(count.items())
            ],
        ),
        _gauge(
            "gpus_allocated",
            "GPUs of running jobs.",
            [
                ({"account": account, "partition": partition}, number)
                for (account, partition), number in sorted(gpus.items())
            ],
        ),
        _gauge(
            "oldest_wait_seconds",
            "How long the oldest waiting job has waited, by reason.",
            [
                ({"partition": partition, "reason": reason}, seconds)
                for (partition, reason), seconds in sorted(waits.items())
            ],
        ),
        _gauge("job_info", "Whose running job it is. For operators.", people),
    ]


def _quota_families(usage: list[dict[str, Any]]) -> list[Family]:
    accounts = [entry for entry in usage if not entry["user"]]
    return [
        _gauge(
            "account_gpus_used",
            "GPUs that count against the quota of the account.",
            [({"account": entry["account"]}, entry["gpus"]["used"]) for entry in accounts],
        ),
        _gauge(
            "account_gpus_limit",
            "Quota of the account. Absent without one.",
            [({"account": entry["account"]}, entry["gpus"]["limit"]) for entry in accounts],
        ),
    ]


def node_state(node: dict[str, Any]) -> str:
    """Return the one state of a node that decides whether it runs jobs."""
    states = set(node["states"])
    if node["states"][0] in ("down", "error") or "not_responding" in states:
        return "down"
    if states & {"drain", "fail"}:
        return "drain"
    return "maintenance" if "maintenance" in states else node["states"][0]


def _by(node: dict[str, Any]) -> str:
    """Return who has set the reason of a node: trainyard, slurm or operator."""
    if node["reason"].startswith("trainyard:"):
        return "trainyard"
    return "slurm" if node["reason_user"] == "slurm" else "operator"


def _node_families(nodes: list[dict[str, Any]], now: float) -> list[Family]:
    reasons = [
        (
            {"node": node["name"], "by": _by(node), "reason": node["reason"]},
            _age(node["reason_time"], now) or 0.0,
        )
        for node in nodes
        if node["reason"]
    ]
    keyed = [({"node": node["name"]}, node["gpus"]) for node in nodes]
    return [
        _gauge(
            "node_state",
            "1 for the state of the node.",
            [({"node": node["name"], "state": node_state(node)}, 1) for node in nodes],
        ),
        _gauge(
            "node_reason_age_seconds",
            "Age of the reason for which the node is out of service.",
            reasons,
        ),
        _gauge(
            "node_gpus",
            "GPUs of the node.",
            [(labels, sum(gpu["total"] for gpu in gpus)) for labels, gpus in keyed],
        ),
        _gauge(
            "node_gpus_allocated",
            "GPUs of the node that jobs have.",
            [(labels, sum(gpu["used"] for gpu in gpus)) for labels, gpus in keyed],
        ),
    ]


def waiting(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the jobs that wait in the order in which Slurm looks at them, without anything that
    names a person, a group or a job.

    C(jobs) are of P(_slurm.parse_jobs). One that is held has no place.
    """
    queued = [job for job in jobs if job["state"] == "pending" and job["priority"] > 0]
    found = []
    for job in sorted(queued, key=lambda job: (-job["priority"], job["id"])):
        entry = {key: job[key] for key in ("id", "partition", "reason", "gpus", "start_estimate")}
        found.append(dict(entry, workers=job["node_count"]))
    return found


def queue_families(
    nodes: list[dict[str, Any]], jobs: list[dict[str, Any]], usage: list[dict[str, Any]], now: float
) -> list[Family]:
    """Return the families of the queue, from what the parsers of C(_slurm) return, and the time in
    seconds since 1970.
    """
    return _job_families(jobs, now) + _quota_families(usage) + _node_families(nodes, now)
