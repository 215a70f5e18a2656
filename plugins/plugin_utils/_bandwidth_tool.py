# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Selects verify's tool for the bandwidth, and converts results of all_reduce_perf to those of a
job.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils import _bandwidth

__all__ = [
    "TOOLS",
    "choose",
    "of_nccl_tests",
    "reason",
    "reduced_bytes",
    "results_of_tasks",
    "with_search",
]

#: Best first. The first measures only NCCL, the second finds suspects, the third is in every image
#: for horovodrun.
TOOLS = ("all_reduce_perf", "torch", "horovod")
NAMES = {"all_reduce_perf": "all_reduce_perf", "torch": "PyTorch", "horovod": "Horovod"}
NO_BLAME = (
    "measured with all_reduce_perf; the search for a suspect host or link needs PyTorch, which the "
    "image does not have"
)
NO_END = "all_reduce_perf did not complete"
# Of the job's runner.
SAID = "trainyard: failed: "
# Of the runner, too: where the ranks of a job waited that has not ended.
WAITED = re.compile(r"trainyard: warning: ((?:no output\b|at its end: ).*/hang\.txt)$")
#: Percent from which a GPU counts as busy in a run of all_reduce_perf, which may be shorter than
#: one sample of the driver.
IN_USE = 5


class Choice(TypedDict):
    """The tool that measures the bandwidth."""

    #: One of TOOLS, empty if none can measure.
    tool: str
    #: Where it runs: C(container) or C(host).
    where: str
    #: Why better ones are not used.
    reason: str
    #: Why none can measure.
    problem: str


class Results(TypedDict):
    """What was measured and seen, by host."""

    #: Results of nccl_all_reduce for the host alone.
    alone: dict[str, dict[str, Any]]
    #: What files/host_watch.py has printed before and after the run of all hosts. A host that did
    #: not answer is not in the second.
    facts: dict[str, dict[str, Any]]
    after: dict[str, dict[str, Any]]


def reason(tail: Sequence[str]) -> str:
    """Return why a job left no result: the message of its runner, and where its ranks waited if it
    did not end. Else its last line.
    """
    messages = [line.partition(SAID)[2] for line in tail if SAID in line]
    waited = [match.group(1) for match in map(WAITED.search, tail) if match]
    if not messages:
        return tail[-1] if tail else "the job left no result"
    return "; ".join([messages[0], *waited[:1]])


def _all_reduce_perf_alone(image: set[str], on_host: bool) -> tuple[str, str]:
    """Return (why all_reduce_perf cannot measure one host, where it is installed)."""
    if "all_reduce_perf" in image:
        return "", "container"
    if on_host:
        return "", "host"
    return (
        "neither the image (training_image_nccl_tests_tag) nor the host (nccl_tests_tag) has it",
        "",
    )


def _no_all_reduce_perf_across(
    gpus: Mapping[str, int], image: set[str], on_host: bool, problems: Iterable[str]
) -> str:
    """Return why all_reduce_perf cannot measure several hosts, empty if it can."""
    if "all_reduce_perf" not in image:
        why = "the image does not have it (training_image_nccl_tests_tag)"
        if on_host:
            why += (
                "; that of the hosts cannot run across hosts, because ssh between them ends in the "
                "containers"
            )
        return why
    if "mpi" not in image or "mpirun" not in image:
        return (
            "across hosts it needs mpirun and a build with MPI, which the image lacks "
            "(training_image_tools: [mpirun])"
        )
    if len(set(gpus.values())) > 1:
        return "it needs the same number of GPUs on each host, but they have %s" % ", ".join(
            "%s %d" % item for item in gpus.items()
        )
    return "; ".join(problems)


def _all_reduce_perf(
    gpus: Mapping[str, int], image: set[str], on_host: bool, problems: Iterable[str]
) -> tuple[str, str]:
    """Return (why all_reduce_perf cannot measure, where it is installed), of which one is empty."""
    if not gpus or 0 in gpus.values():
        return "it needs a GPU on every host", ""
    if sum(gpus.values()) < 2:
        return "one GPU alone has nothing to exchange", ""
    if len(gpus) == 1:
        return _all_reduce_perf_alone(image, on_host)
    why = _no_all_reduce_perf_across(gpus, image, on_host, problems)
    return why, "" if why else "container"


def _no_horovod(
    image: set[str], frameworks: Iterable[str] | str | None, problems: Iterable[str]
) -> str:
    """Return why Horovod cannot measure, empty if it can."""
    if "horovod" not in image:
        return "the image does not have it"
    found = image & {"torch", "tensorflow", "mxnet"}
    usable, names_in_image = found, {"pytorch": "torch"}
    # Templates in older versions of Ansible convert None to text.
    if frameworks is not None and frameworks != "":
        usable = found & {names_in_image.get(name, name) for name in frameworks}
    if not usable:
        return "it has none of the image's frameworks (%s)" % (", ".join(sorted(found)) or "none")
    return "; ".join(problems)


def choose(
    requested: str,
    gpus: Mapping[str, int],
    image: Iterable[str],
    on_host: bool = False,
    frameworks: Iterable[str] | str | None = None,
    problems: Mapping[str, list[str]] | None = None,
) -> Choice:
    """Return the tool, and why better ones are not used.

    C(requested) is auto or the name of a tool. C(gpus) has for each host how many GPUs its
    container was given, C(image) the words that the question to the image has brought:
    all_reduce_perf, mpi (it was built with MPI), mpirun, torch, horovod, and the frameworks torch,
    tensorflow, mxnet. C(on_host) tells whether a host alone has all_reduce_perf itself.
    C(frameworks) are those that Horovod was found to have been built with, None where it was not
    asked. C(problems) has for mpirun and horovodrun what in the network keeps them from starting.
    """
    of_launchers, words = problems or {}, set(image)
    no_perf, where = _all_reduce_perf(gpus, words, on_host, of_launchers.get("mpirun", []))
    against = {
        "all_reduce_perf": no_perf,
        "torch": "" if "torch" in words else "the image does not have it",
        "horovod": _no_horovod(words, frameworks, of_launchers.get("horovodrun", [])),
    }
    names = TOOLS if requested == "auto" else (requested,)
    tool = next((name for name in names if not against[name]), "")
    better = names[: names.index(tool)] if tool else names
    passed_over = ["%s: %s" % (NAMES[name], against[name]) for name in better]
    if not tool:
        problem = "no tool can measure it. %s" % ". ".join(passed_over)
        return {"tool": "", "where": "", "reason": "", "problem": problem}
    why = "the best tool, and the image has it"
    if requested != "auto":
        why = "verify_bandwidth_tool"
    return {
        "tool": tool,
        "where": where if tool == "all_reduce_perf" else "container",
        "reason": "; ".join(passed_over) or why,
        "problem": "",
    }


def _complete_rows(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of all_reduce_perf that have both placements.

    Unchecked rows have their own reason, and count as without wrong values.
    """
    found = []
    for row in rows:
        placements = {place: row[place] or {} for place in ("out_of_place", "in_place")}
        if all(each.get("busbw_gb_s") is not None for each in placements.values()):
            checked = {
                place: dict(each, wrong=each["wrong"] or 0) for place, each in placements.items()
            }
            found.append({**row, **checked})
    return found


def _errors(result: dict[str, Any]) -> list[str]:
    """Return why a run of all_reduce_perf did not pass, each with what to do."""
    errors = []
    for entry in result.get("reasons") or []:
        fix = "; %s" % entry["fix"] if entry.get("fix") else ""
        errors.append(entry["cause"] + fix)
    if not result.get("passed") and not errors:
        errors.append(str(result.get("fix") or result.get("msg") or "nothing was measured"))
    return errors


def _run(run_id: str, hosts: list[str], ranks: int, result: dict[str, Any]) -> dict[str, Any]:
    """Convert a result of nccl_all_reduce to a run of the measuring job."""
    return {
        "id": run_id,
        "hosts": list(hosts),
        "ranks": ranks,
        "rows": _complete_rows(result.get("rows") or []),
        "seconds": 0.0,
        "errors": _errors(result),
        "judged": result.get("judged") or [],
        "transports": result.get("transports") or [],
    }


def reduced_bytes(rows: list[dict[str, Any]], command: list[str]) -> tuple[int, int]:
    """Return minimum and maximum bytes of all messages in a run of all_reduce_perf, from its rows
    and its command line.

    For each size and each of the two placements it makes one reduction to synchronize, the measured
    ones (-n), and one whose result is checked (-c 1). Before, it warms up (-w) with the largest and
    the smallest size, since 2.17 with all of a factor 2 between them, which are less than twice the
    largest.
    """

    def option(name: str) -> int:
        return int(command[len(command) - command[::-1].index(name)])

    sizes: list[int] = [row["size_bytes"] for row in rows]
    measured, largest = 2 * (option("-n") + 2) * sum(sizes), max(sizes or [0])
    return measured + option("-w") * largest, measured + option("-w") * 2 * largest


def _card_names(seen: dict[str, Any]) -> list[str]:
    return [card["name"] for card in seen.get("cards") or []]


def _watched_host(before: dict[str, Any], after: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return (values of a host's counters and GPUs between two outputs of files/host_watch.py, why
    there are none).
    """
    unknown: dict[str, Any] = {
        "sent_bytes": None,
        "received_bytes": None,
        "by_card": {},
        "gpus": [],
    }
    if not after:
        return unknown, "the host did not answer after the run"
    if _card_names(before) != _card_names(after):
        return unknown, "before the run the fabric's cards were %s, after it %s" % (
            ", ".join(_card_names(before)) or "unknown",
            ", ".join(_card_names(after)) or "unknown",
        )
    sent = received = None
    if before["counters"] and after["counters"]:
        sent, received = (now - then for now, then in zip(after["counters"], before["counters"]))
    by_card = _bandwidth.moved_by_card(before.get("by_card") or {}, after.get("by_card") or {})
    return {
        "sent_bytes": sent,
        "received_bytes": received,
        "by_card": by_card,
        "gpus": after["peaks"],
    }, ""


def _watched(
    result: dict[str, Any],
    seen: Mapping[str, tuple[dict[str, Any], dict[str, Any]]],
    gpus: Mapping[str, int],
) -> dict[str, Any]:
    """Return C(watched) of the run of all hosts, or of the one host.

    C(seen) are the two outputs of files/host_watch.py by host.
    """
    is_complete = result.get("complete")
    hosts, errors = {}, {}
    for host, ranks in gpus.items():
        found, error = _watched_host(*seen[host])
        hosts[host] = dict(found, ranks=ranks, via=[])
        if error or not is_complete:
            errors[host] = error if is_complete else NO_END
    reduced = [0, 0]
    if is_complete:
        reduced = list(reduced_bytes(result["rows"], result["command"]))
    return {
        "ranks": sum(gpus.values()),
        "size_bytes": max([row["size_bytes"] for row in result.get("rows") or []] or [0]),
        "iterations": 0,
        "error": "",
        "ring": False,
        "in_use": IN_USE,
        "transports": result.get("transports") or [],
        "over_rdma": _over_rdma(result, gpus),
        "hosts": hosts,
        "errors": errors,
        "reduced_bytes": reduced,
    }


def _lost(seen: Mapping[str, tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    """Return lost data by host, between the two outputs of files/host_watch.py."""
    return {
        host: _bandwidth.grown(before["lost"], after["lost"])
        for host, (before, after) in seen.items()
        if before.get("lost") and after.get("lost")
    }


def _of_name(name: str | None, hosts: list[str]) -> list[str]:
    """Return the hosts that a line of NCCL's log is of.

    It has the name that a host has itself, which may have a domain; other lines are of all hosts.
    """
    short = (name or "").partition(".")[0]
    return [host for host in hosts if host.partition(".")[0] == short] or hosts


def _over_rdma(result: dict[str, Any], hosts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return what NCCL's log names of connections over InfiniBand or RoCE, by host."""
    found: dict[str, dict[str, Any]] = {}
    for name, its in (result.get("over_rdma") or {}).items():
        for host in _of_name(name, list(hosts)):
            former = found.get(host, {"gpudirect": False, "devices": []})
            found[host] = {
                "gpudirect": former["gpudirect"] or its["gpudirect"],
                "devices": sorted({*former["devices"], *its["devices"]}),
            }
    return found


def _remarks(result: dict[str, Any], hosts: list[str]) -> dict[str, list[str]]:
    """Return remarks of module nccl_all_reduce by host."""
    found: dict[str, list[str]] = {}
    for remark in result.get("remarks") or []:
        for host in _of_name(remark["host"], hosts):
            found.setdefault(host, []).append("%s; %s" % (remark["cause"], remark["fix"]))
    return found


def results_of_tasks(
    alone: Mapping[str, dict[str, Any]],
    before: Mapping[str, dict[str, Any]],
    after: Mapping[str, dict[str, Any]],
) -> Results:
    """Return results by host, from those of tasks: of module nccl_all_reduce, and of
    files/host_watch.py before and after the run of all hosts.
    """
    return {
        # A skipped task has no result.
        "alone": {host: result for host, result in alone.items() if "passed" in result},
        "facts": {host: json.loads(result["stdout"]) for host, result in before.items()},
        "after": {
            host: json.loads(result["stdout"])
            for host, result in after.items()
            if result.get("rc", 1) == 0
        },
    }


def of_nccl_tests(
    results: Results,
    together: dict[str, Any],
    gpus: Mapping[str, int],
    plan: dict[str, Any],
    image: Iterable[str] = (),
) -> dict[str, Any]:
    """Convert results of module nccl_all_reduce to the result of a measuring job.

    C(together) is the one of all hosts, empty for one host. C(gpus) and C(image) are as for
    P(choose), C(plan) is the job's. C(search) in the answer tells whether PyTorch's job must search
    for the suspect host or link.
    """
    hosts, alone, facts = list(gpus), results["alone"], results["facts"]
    runs = [
        _run("host:%s" % host, [host], gpus[host], alone[host]) for host in hosts if host in alone
    ]
    if len(hosts) > 1:
        of_all = _run("cluster", hosts, sum(gpus.values()), together)
        # The first host has watched the run. One that ended after all has no need of it.
        waited = results["after"].get(hosts[0], {}).get("waited")
        if waited and not together.get("passed"):
            of_all["errors"].append(waited)
        runs.append(of_all)
    judged = _bandwidth.judge_runs(
        runs, facts, "nccl", plan["asked"], plan["history"].get("nccl", {})
    )
    whole = together if len(hosts) > 1 else alone.get(hosts[0], {})
    seen = {host: (facts[host], results["after"].get(host, {})) for host in hosts}
    failed = any(run["id"] == "cluster" and not run["passed"] for run in judged)
    return {
        "collective": "nccl",
        "runs": judged,
        "facts": facts,
        "watched": _watched(whole, seen, gpus),
        "lost": _lost(seen),
        "remarks": _remarks(whole, hosts),
        "blame": [],
        "suspect": [],
        "rounds": 0,
        "search": failed and "torch" in image,
        "note": NO_BLAME if failed else "",
    }


def _note_of_search(
    job: dict[str, Any], runs: Mapping[str, dict[str, Any]], tail: Sequence[str]
) -> str:
    """Return why PyTorch's job found no suspect. C(runs) are those of the job by id."""
    if not runs:
        return (
            "PyTorch's job, which searches for a suspect host or link, has measured nothing: %s"
            % reason(tail)
        )
    if not job["note"] and "cluster" in runs and runs["cluster"]["passed"]:
        return (
            "with PyTorch's all-reduce the same hosts pass, with %.3g GB/s together, so no "
            "search for a host or link was made"
        ) % runs["cluster"]["judged_busbw_gb_s"]
    return "PyTorch's job searched for a suspect host or link: %s" % job.get("note")


def with_search(
    found: dict[str, Any], job: dict[str, Any], tail: Iterable[str] = ()
) -> dict[str, Any]:
    """Return results of all_reduce_perf, with the suspects found by PyTorch's job.

    The verdict stays that of all_reduce_perf.

    C(job) is the job's answer, empty where it left none, C(tail) the last lines of its output or
    why it was not run.
    """
    runs = {run["id"]: run for run in job.get("runs", [])}
    blame = [
        dict(entry, evidence="%s (by PyTorch's all-reduce)" % entry["evidence"])
        for entry in job.get("blame", [])
    ]
    searched = [run for run in job.get("runs", []) if run["id"].startswith(("pair:", "group:"))]
    # If the run of all_reduce_perf did not complete, the job's ranks were watched.
    watched, lost = found["watched"], found.get("lost", {})
    of_job = job.get("watched") or {}
    if watched["errors"] and of_job.get("hosts") and job["collective"] == found["collective"]:
        watched, lost = of_job, job.get("lost") or {}
    return dict(
        found,
        runs=found["runs"] + searched,
        blame=blame,
        suspect=job.get("suspect", []),
        rounds=job.get("rounds", 0),
        note="" if blame else _note_of_search(job, runs, list(tail)),
        watched=watched,
        lost=lost,
    )


def decide_bandwidth_tool(
    image: Iterable[str],
    requested: str,
    gpus: Mapping[str, int],
    on_host: bool = False,
    frameworks: Iterable[str] | str | None = None,
    problems: Mapping[str, list[str]] | None = None,
) -> Choice:
    """Return the tool that measures the bandwidth, and why better ones are not used.

    C(image) are the words that the question to the image has brought, C(requested) is auto or the
    name of a tool, C(gpus) the number of GPUs of each host's container. C(on_host), C(frameworks)
    and C(problems) are as choose explains.

    Returns Choice, which explains each key. Raises ValueError if C(requested) is no tool.
    """
    if requested not in ("auto",) + TOOLS:
        raise ValueError("'%s' is not a tool; use auto, %s" % (requested, ", ".join(TOOLS)))
    return choose(requested, gpus, image, on_host, frameworks, problems)


class OfTasks(TypedDict):
    """Results of tasks with nccl_all_reduce: C(together), that of all hosts, empty for one host,
    and by host C(alone), and C(before) and C(after) that, those of files/host_watch.py.
    """

    together: dict[str, Any]
    alone: Mapping[str, dict[str, Any]]
    before: Mapping[str, dict[str, Any]]
    after: Mapping[str, dict[str, Any]]


class Job(TypedDict):
    """The number of GPUs of each host, the plan of the measuring job, and what its image has."""

    gpus: Mapping[str, int]
    plan: dict[str, Any]
    image: list[str]


def decide_bandwidth_of_nccl_tests(found: OfTasks, requested: Job) -> dict[str, Any]:
    """Return the result of a measuring job, of the results of tasks with nccl_all_reduce.

    The keys are those of the job's own answer, and C(search), whether PyTorch's job must search for
    the suspect host or link, as of_nccl_tests explains. Rates are in GB/s.
    """
    results = results_of_tasks(found["alone"], found["before"], found["after"])
    return of_nccl_tests(
        results, found["together"], requested["gpus"], requested["plan"], requested["image"]
    )
