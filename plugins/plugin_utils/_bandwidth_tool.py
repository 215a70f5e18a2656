# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Selects verify's tool for the bandwidth, and converts results of all_reduce_perf to those of a job."""

from __future__ import annotations

import json
import re

from ansible_collections.trainyard.gpu.plugins.module_utils import _bandwidth

__all__ = [
    "TOOLS",
    "choose",
    "of_nccl_tests",
    "reason",
    "reduced_bytes",
    "told_by_tasks",
    "with_search",
]

#: Best first. The first measures only NCCL, the second finds suspects, the third is in every image for horovodrun.
TOOLS = ("all_reduce_perf", "torch", "horovod")
NAMES = {"all_reduce_perf": "all_reduce_perf", "torch": "PyTorch", "horovod": "Horovod"}
NO_BLAME = "measured with all_reduce_perf; the search for a suspect host or link needs PyTorch, which the image does not have"
NO_END = "all_reduce_perf did not complete"
# Of the job's runner.
SAID = "trainyard: failed: "
# Of the runner, too: where the ranks of a job waited that has not ended.
WAITED = re.compile(r"trainyard: warning: ((?:no output\b|at its end: ).*/hang\.txt)$")
#: Percent from which a GPU counts as busy in a run of all_reduce_perf, which may be shorter than one sample of the driver.
IN_USE = 5


def reason(tail):
    """Why a job left no result: the message of its runner, and where its ranks waited if it did not end. Else its last line."""
    said = [line.partition(SAID)[2] for line in tail if SAID in line]
    waited = [found.group(1) for found in map(WAITED.search, tail) if found]
    if not said:
        return tail[-1] if tail else "the job left no result"
    return "; ".join([said[0], *waited[:1]])


def _without_all_reduce_perf(gpus, image, on_host, problems):
    """Why all_reduce_perf cannot measure, empty if it can; and where it is installed."""
    counts = set(gpus.values())
    if not counts or 0 in counts:
        return "it needs a GPU on every host", ""
    if sum(gpus.values()) < 2:
        return "one GPU alone has nothing to exchange", ""
    if len(gpus) == 1:
        where = "container" if "all_reduce_perf" in image else "host" if on_host else ""
        return (
            ""
            if where
            else "neither the image (training_image_nccl_tests_tag) nor the host (nccl_tests_tag) has it"
        ), where
    if "all_reduce_perf" not in image:
        return "the image does not have it (training_image_nccl_tests_tag)%s" % (
            "; that of the hosts cannot run across hosts, because ssh between them ends in the containers"
            if on_host
            else ""
        ), ""
    if "mpi" not in image or "mpirun" not in image:
        return (
            "across hosts it needs mpirun and a build with MPI, which the image lacks (training_image_tools: [mpirun])",
            "",
        )
    if len(counts) > 1:
        return "it needs the same number of GPUs on each host, but they have %s" % ", ".join(
            "%s %d" % item for item in gpus.items()
        ), ""
    return ("; ".join(problems), "") if problems else ("", "container")


def choose(asked, gpus, image, on_host=False, frameworks=None, problems=None):
    """The tool, and why better ones are not used.

    C(asked) is auto or the name of a tool. C(gpus) has for each host how many GPUs its container was given, C(image) the words that
    the question to the image has brought: all_reduce_perf, mpi (it was built with MPI), mpirun, torch, horovod, and the frameworks torch, tensorflow, mxnet.
    C(on_host) tells whether a host alone has all_reduce_perf itself.
    C(frameworks) are those that Horovod was found to have been built with, None where it was not asked.
    C(problems) has for mpirun and horovodrun what in the network keeps them from starting.

    Returns C(tool) (empty where none can measure), C(where) (container or host), C(reason), and C(problem), why none can.
    """
    problems = problems or {}
    image = set(image)
    against = {}
    against["all_reduce_perf"], where = _without_all_reduce_perf(
        gpus, image, on_host, problems.get("mpirun", [])
    )
    against["torch"] = "" if "torch" in image else "the image does not have it"
    bound = {"pytorch": "torch"}
    there = found = image & {"torch", "tensorflow", "mxnet"}
    # Templates in older versions of Ansible convert None to text.
    if frameworks is not None and frameworks != "":
        there = found & {bound.get(name, name) for name in frameworks}
    against["horovod"] = (
        "the image does not have it"
        if "horovod" not in image
        else "it has none of the image's frameworks (%s)" % (", ".join(sorted(found)) or "none")
        if not there
        else "; ".join(problems.get("horovodrun", []))
    )
    names = TOOLS if asked == "auto" else (asked,)
    tool = next((name for name in names if not against[name]), "")
    passed_over = [
        "%s: %s" % (NAMES[name], against[name])
        for name in names[: names.index(tool) if tool else len(names)]
    ]
    why = "; ".join(passed_over) or (
        "verify_bandwidth_tool" if asked != "auto" else "the best tool, and the image has it"
    )
    return {
        "tool": tool,
        "where": where if tool == "all_reduce_perf" else "container" if tool else "",
        "reason": why if tool else "",
        "problem": "" if tool else "no tool can measure it. %s" % ". ".join(passed_over),
    }


def _run(run_id, hosts, ranks, told):
    """Convert a result of nccl_all_reduce to a run of the measuring job."""
    rows = [
        row
        for row in told.get("rows") or []
        if all(
            (row[place] or {}).get("busbw_gb_s") is not None
            for place in ("out_of_place", "in_place")
        )
    ]
    # Unchecked rows have their own reason.
    rows = [
        dict(
            row,
            **{
                place: dict(row[place], wrong=row[place]["wrong"] or 0)
                for place in ("out_of_place", "in_place")
            },
        )
        for row in rows
    ]
    errors = [
        entry["cause"] + ("; %s" % entry["fix"] if entry.get("fix") else "")
        for entry in told.get("reasons") or []
    ]
    if not told.get("passed") and not errors:
        errors = [str(told.get("fix") or told.get("msg") or "nothing was measured")]
    return {
        "id": run_id,
        "hosts": list(hosts),
        "ranks": ranks,
        "rows": rows,
        "seconds": 0.0,
        "errors": errors,
        "judged": told.get("judged") or [],
        "transports": told.get("transports") or [],
    }


def reduced_bytes(rows, command):
    """Minimum and maximum bytes of all messages in a run of all_reduce_perf, from its rows and its command line.

    For each size and each of the two placements it makes one reduction to synchronize, the measured ones (-n), and one whose result is checked (-c 1). Before,
    it warms up (-w) with the largest and the smallest size, since 2.17 with all of a factor 2 between them, which are less than twice the largest.
    """

    def option(name):
        return int(command[len(command) - command[::-1].index(name)])

    measured = 2 * (option("-n") + 2) * sum(row["size_bytes"] for row in rows)
    largest = max([row["size_bytes"] for row in rows] or [0])
    return measured + option("-w") * largest, measured + option("-w") * 2 * largest


def _watched_host(before, after):
    """Values of a host's counters and GPUs between two outputs of files/host_watch.py, or why there are none."""
    names = [[card["name"] for card in told.get("cards") or []] for told in (before, after)]
    unknown = {"sent_bytes": None, "received_bytes": None, "by_card": {}, "gpus": []}
    if not after:
        return unknown, "the host did not answer after the run"
    if names[0] != names[1]:
        return unknown, "before the run the fabric's cards were %s, after it %s" % tuple(
            ", ".join(each) or "unknown" for each in names
        )
    sent, received = (
        (now - then for now, then in zip(after["counters"], before["counters"]))
        if before["counters"] and after["counters"]
        else (None, None)
    )
    by_card = _bandwidth.moved_by_card(before.get("by_card") or {}, after.get("by_card") or {})
    return dict(
        unknown, sent_bytes=sent, received_bytes=received, by_card=by_card, gpus=after["peaks"]
    ), ""


def _watched(told, seen, gpus):
    """C(watched) of the run of all hosts, or of the one host."""
    watched = {
        "ranks": sum(gpus.values()),
        "size_bytes": max([row["size_bytes"] for row in told.get("rows") or []] or [0]),
        "iterations": 0,
        "error": "",
        "ring": False,
        "in_use": IN_USE,
        "transports": told.get("transports") or [],
        "over_rdma": _over_rdma(told, gpus),
        "hosts": {},
        "errors": {},
    }
    for host, ranks in gpus.items():
        found, error = _watched_host(*seen[host])
        watched["hosts"][host] = dict(found, ranks=ranks, via=[])
        if error or not told.get("complete"):
            watched["errors"][host] = error if told.get("complete") else NO_END
    watched["reduced_bytes"] = (
        list(reduced_bytes(told["rows"], told["command"])) if told.get("complete") else [0, 0]
    )
    return watched


def _lost(seen):
    """Lost data by host, between the two outputs of files/host_watch.py."""
    return {
        host: _bandwidth.grown(before["lost"], after["lost"])
        for host, (before, after) in seen.items()
        if before.get("lost") and after.get("lost")
    }


def _of_name(name, hosts):
    """The hosts that a line of NCCL's log is of. It has the name that a host has itself, which may have a domain; other lines are of all hosts."""
    short = (name or "").partition(".")[0]
    return [host for host in hosts if host.partition(".")[0] == short] or hosts


def _over_rdma(told, hosts):
    """What NCCL's log names of connections over InfiniBand or RoCE, by host."""
    found = {}
    for name, its in (told.get("over_rdma") or {}).items():
        for host in _of_name(name, list(hosts)):
            former = found.get(host, {"gpudirect": False, "devices": []})
            found[host] = {
                "gpudirect": former["gpudirect"] or its["gpudirect"],
                "devices": sorted({*former["devices"], *its["devices"]}),
            }
    return found


def _remarks(told, hosts):
    """Remarks of module nccl_all_reduce by host."""
    found = {}
    for remark in told.get("remarks") or []:
        for host in _of_name(remark["host"], hosts):
            found.setdefault(host, []).append("%s; %s" % (remark["cause"], remark["fix"]))
    return found


def told_by_tasks(alone, before, after):
    """Results of tasks by host as P(of_nccl_tests) takes them: of module nccl_all_reduce, and of files/host_watch.py before and after the run of all hosts."""
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


def of_nccl_tests(alone, together, facts, after, gpus, plan, image=()):
    """Convert results of module nccl_all_reduce to the result of a measuring job.

    C(alone) has it by host, C(together) of all hosts (empty for one host). C(facts) and C(after) have by host what files/host_watch.py has told before and
    after the run of all; a host that could not be asked is not in C(after). C(plan) is the job's, C(image) as for P(choose). C(search) in the answer tells
    whether PyTorch's job must search for the suspect host or link.
    """
    hosts = list(gpus)
    runs = [
        _run("host:%s" % host, [host], gpus[host], alone[host]) for host in hosts if host in alone
    ]
    if len(hosts) > 1:
        whole = _run("cluster", hosts, sum(gpus.values()), together)
        # The first host has watched the run. One that ended after all has no need of it.
        waited = after.get(hosts[0], {}).get("waited")
        if waited and not together.get("passed"):
            whole["errors"].append(waited)
        runs.append(whole)
    judged = _bandwidth.judge_runs(
        runs, facts, "nccl", plan["asked"], plan["history"].get("nccl", {})
    )
    whole = together if len(hosts) > 1 else alone.get(hosts[0], {})
    seen = {host: (facts[host], after.get(host, {})) for host in hosts}
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


def with_search(found, job, tail=()):
    """Results of all_reduce_perf, with the suspects found by PyTorch's job. The verdict stays that of all_reduce_perf.

    C(job) is the job's answer, empty where it left none, C(tail) the last lines of its output or why it was not run.
    """
    runs = {run["id"]: run for run in job.get("runs", [])}
    blame = [
        dict(entry, evidence="%s (by PyTorch's all-reduce)" % entry["evidence"])
        for entry in job.get("blame", [])
    ]
    note = "PyTorch's job searched for a suspect host or link: %s" % job.get("note")
    if not runs:
        note = (
            "PyTorch's job, which searches for a suspect host or link, has measured nothing: %s"
            % reason(list(tail))
        )
    elif not job["note"] and "cluster" in runs and runs["cluster"]["passed"]:
        note = (
            "with PyTorch's all-reduce the same hosts pass, with %.3g GB/s together, so no search for a host or link was made"
            % (runs["cluster"]["judged_busbw_gb_s"])
        )
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
        note="" if blame else note,
        watched=watched,
        lost=lost,
    )
