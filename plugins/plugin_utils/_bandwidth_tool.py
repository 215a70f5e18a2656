# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What verify measures the bandwidth with: the best tool that the image has, and what all_reduce_perf has measured as the answer of a job."""

from __future__ import annotations

from ansible_collections.trainyard.gpu.plugins.module_utils import _bandwidth

__all__ = ["TOOLS", "choose", "of_nccl_tests"]

#: Best first. The first measures NCCL alone, the second finds who is to blame, the third is in every image for horovodrun.
TOOLS = ("all_reduce_perf", "torch", "horovod")
NAMES = {"all_reduce_perf": "all_reduce_perf", "torch": "PyTorch", "horovod": "Horovod"}
NO_BLAME = "all_reduce_perf measured; the host or link to blame is looked for by PyTorch (verify_bandwidth_tool: torch)"


def _without_all_reduce_perf(gpus, image, on_host, problems):
    """Why all_reduce_perf can't measure; empty where it can. And where it is."""
    counts = set(gpus.values())
    if not counts or 0 in counts:
        return "it needs a GPU on every host", ""
    if sum(gpus.values()) < 2:
        return "one GPU alone has nothing to exchange", ""
    if len(gpus) == 1:
        where = "container" if "all_reduce_perf" in image else "host" if on_host else ""
        return ("" if where else "neither the image (training_image_nccl_tests_tag) nor the host (nccl_tests_tag) has it"), where
    if "all_reduce_perf" not in image:
        return "the image does not have it (training_image_nccl_tests_tag)%s" % (
            "; that of the hosts does not reach from host to host, as ssh between them ends in the containers" if on_host else ""), ""
    if "mpi" not in image or "mpirun" not in image:
        return "across hosts it needs mpirun and a build with MPI, which the image lacks (training_image_tools: [mpirun])", ""
    if len(counts) > 1:
        return "it needs as many GPUs on each host, and they have %s" % ", ".join("%s %d" % item for item in gpus.items()), ""
    return ("; ".join(problems), "") if problems else ("", "container")


def choose(asked, gpus, image, on_host=False, frameworks=None, problems=None):
    """The tool, and why the better ones are passed over.

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
    against["all_reduce_perf"], where = _without_all_reduce_perf(gpus, image, on_host, problems.get("mpirun", []))
    against["torch"] = "" if "torch" in image else "the image does not have it"
    bound = {"pytorch": "torch"}
    there = found = image & {"torch", "tensorflow", "mxnet"}
    # Templates of older versions of Ansible make a text of nothing.
    if frameworks is not None and frameworks != "":
        there = found & {bound.get(name, name) for name in frameworks}
    against["horovod"] = ("the image does not have it" if "horovod" not in image else
                          "it has none of the image's frameworks (%s)" % (", ".join(sorted(found)) or "none") if not there else
                          "; ".join(problems.get("horovodrun", [])))
    names = TOOLS if asked == "auto" else (asked,)
    tool = next((name for name in names if not against[name]), "")
    passed_over = ["%s: %s" % (NAMES[name], against[name]) for name in names[:names.index(tool) if tool else len(names)]]
    reason = "; ".join(passed_over) or ("verify_bandwidth_tool" if asked != "auto" else "the best tool, and the image has it")
    return {"tool": tool, "where": where if tool == "all_reduce_perf" else "container" if tool else "", "reason": reason if tool else "",
            "problem": "" if tool else "no tool can measure it. %s" % ". ".join(passed_over)}


def _run(run_id, hosts, ranks, told):
    """A run as the measuring job has it, of what nccl_all_reduce has returned."""
    rows = [row for row in told.get("rows") or [] if all((row[place] or {}).get("busbw_gb_s") is not None for place in ("out_of_place", "in_place"))]
    # Rows that were not checked have a reason of their own.
    rows = [dict(row, **{place: dict(row[place], wrong=row[place]["wrong"] or 0) for place in ("out_of_place", "in_place")}) for row in rows]
    errors = [reason["cause"] + ("; %s" % reason["fix"] if reason.get("fix") else "") for reason in told.get("reasons") or []]
    if not told.get("passed") and not errors:
        errors = [str(told.get("fix") or told.get("msg") or "nothing was measured")]
    return {"id": run_id, "hosts": list(hosts), "ranks": ranks, "rows": rows, "seconds": 0.0, "errors": errors, "judged": told.get("judged") or [],
            "transports": told.get("transports") or []}


def of_nccl_tests(alone, together, facts, gpus, plan):
    """The answer of a measuring job, of what module nccl_all_reduce has returned.

    C(alone) has it by host, C(together) of all hosts (empty for one host), C(facts) by host what all_reduce.py tells with C(facts), C(plan) is the job's.
    """
    hosts = list(gpus)
    runs = [_run("host:%s" % host, [host], gpus[host], alone[host]) for host in hosts if host in alone]
    if len(hosts) > 1:
        runs.append(_run("cluster", hosts, sum(gpus.values()), together))
    judged = _bandwidth.judge_runs(runs, facts, "nccl", plan["asked"], plan["history"].get("nccl", {}))
    return {"collective": "nccl", "runs": judged, "facts": facts, "watched": {}, "blame": [], "suspect": [], "rounds": 0,
            "note": NO_BLAME if len(hosts) > 1 and not all(run["passed"] for run in judged) else ""}
