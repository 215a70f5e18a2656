# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: bandwidth_checks
short_description: What was measured between hosts, as checks
version_added: "0.2.0"
description:
  - Puts the answer of role C(verify)'s bandwidth job into checks C(bandwidth-host), one for each host, and C(bandwidth-cluster), which names who is to blame.
  - What was seen while the job worked becomes C(gpus-busy) and C(fabric-counters), one for each host, and C(nccl-transport).
  - A check whose measurement is not there is C(skipped), with what the job said at its end.
  - A cluster whose bandwidth was measured, but of which nothing tells what it should be, is a warning.
positional: hosts, tail, gpus, reason
options:
  _input:
    description: What the job has left; empty where it left nothing.
    type: dict
    required: true
  hosts:
    description: Names of the hosts that take part.
    type: list
    elements: str
    required: true
  tail:
    description: The last lines of the job's output.
    type: list
    elements: str
    default: []
  gpus:
    description: By host, how many GPUs its training container was given. Hosts that are not in it have none.
    type: dict
    default: {}
  reason:
    description: Why no job was started, where none was.
    type: str
    default: ""
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
checks: "{{ answer | trainyard.gpu.bandwidth_checks(['node-a', 'node-b'], job.tail) }}"
left_out: "{{ {} | trainyard.gpu.bandwidth_checks(['node-a', 'node-b'], reason='verify_measure_bandwidth is false') }}"
"""

RETURN = r"""
_value:
  description: The checks, in the shape of C(report.json).
  type: list
  elements: dict
"""

from ansible_collections.trainyard.gpu.plugins.module_utils._bandwidth import BROKE_OFF
from ansible_collections.trainyard.gpu.plugins.module_utils._findings import finding
from ansible_collections.trainyard.gpu.plugins.module_utils._quantity import quantity
from ansible_collections.trainyard.gpu.plugins.module_utils._watched import fabric_counters, gpus_busy, nccl_transport

SOURCE = {"gloo": "PyTorch's all-reduce by Gloo", "nccl": "PyTorch's all-reduce by NCCL", "horovod": "Horovod's all-reduce",
          "all_reduce_perf": "all_reduce_perf of nccl-tests"}
SAID = "trainyard: failed: "
LOG = "look at the job's log, .trainyard/jobs/verify-bandwidth/job.log on the share"
ONE_RANK = "one rank has nothing to exchange"
NO_SETS = "this Horovod has no process sets (0.23 and newer have), so it measures all ranks together only"


def _reason(tail):
    """Why the job left nothing: its runner's own words, else the last line."""
    said = [line.partition(SAID)[2] for line in tail if SAID in line]
    return said[0] if said else (tail[-1] if tail else "the job left no answer")


def _required(bound):
    if bound["required_gb_s"] is None:
        return ""
    return "%.3g GB/s or more (%s: %s)" % (bound["required_gb_s"], bound["bound"], bound["from"])


def _ended(answer):
    """Whether the job came to its end: until then its note is that it did not."""
    return "runs" in answer and answer.get("note") != BROKE_OFF


def _unseen(answer, hosts, tail):
    """Why nobody has watched the ranks at work."""
    if not answer.get("runs"):
        return _reason(tail)
    if any(run["errors"] for run in answer["runs"] if run["id"] == "cluster" or len(hosts) < 2):
        return "the measurement before it has failed"
    return ONE_RANK if len(hosts) < 2 and _ended(answer) else "the job broke off"


def _source(answer):
    key = "all_reduce_perf" if answer.get("tool") == "all_reduce_perf" else answer.get("collective")
    carrier = {"nccl": " by NCCL", "gloo": " by Gloo"}.get(answer.get("carrier"), "")
    return SOURCE.get(key, "an all-reduce of all ranks") + carrier


def _unwatched_checks(answer, hosts, gpus):
    """Of a tool that is not watched at work; NCCL's log tells the transport."""
    why = "only the job that measures with PyTorch is watched"
    name, source = ", ".join(hosts), _source(answer)
    no_gpu = "the training container was given no GPU"
    checks = [finding("gpus-busy", host, "skipped", found=why if gpus.get(host) else no_gpu, source=source) for host in hosts]
    if len(hosts) > 1:
        checks += [finding("fabric-counters", host, "skipped", found=why, source=source) for host in hosts]
    seen = sorted({transport for run in answer["runs"] for transport in run["transports"]})
    if not seen:
        return checks + [finding("nccl-transport", name, "skipped", found=why if gpus else "the job ran without NCCL, as it has no GPUs", source=source)]
    watched = {"transports": seen, "hosts": {host: {"ranks": gpus.get(host, 0), "via": []} for host in hosts}}
    return checks + [nccl_transport(watched, answer["facts"], hosts)]


def _watched_checks(answer, hosts, tail, gpus, reason):
    """What was seen while all worked together. A check that can't be made says why."""
    if answer.get("runs") and (answer.get("tool") == "all_reduce_perf" or answer.get("collective") == "horovod"):
        return _unwatched_checks(answer, hosts, {host: count for host, count in gpus.items() if count})
    collective, watched, name = answer.get("collective"), answer.get("watched") or {}, ", ".join(hosts)
    reason = reason or watched.get("error") or _unseen(answer, hosts, tail)

    def skipped(check_id, host, found):
        return finding(check_id, host, "skipped", found=found, source=_source(answer))

    seen = watched.get("hosts") or {}
    checks = []
    for host in hosts:
        if not gpus.get(host) and collective != "nccl":
            checks.append(skipped("gpus-busy", host, "the training container was given no GPU"))
        elif collective == "gloo":
            checks.append(finding("gpus-busy", host, "fail", expected="%s in use" % quantity(gpus[host], "GPU"),
                                  found="the job ran on the CPU: PyTorch sees no GPU",
                                  source=SOURCE["gloo"], fix="take an image whose PyTorch is built for CUDA, and see check toolkit-container"))
        else:
            checks.append(gpus_busy(watched, host) if host in seen else skipped("gpus-busy", host, "not seen: %s" % reason))
    if len(hosts) > 1:
        checks += [fabric_counters(watched, answer["facts"], host, collective) if host in seen
                   else skipped("fabric-counters", host, "not read: %s" % reason) for host in hosts]
    if collective == "gloo":
        return checks + [skipped("nccl-transport", name, "the job ran without NCCL, as it has no GPUs")]
    return checks + [nccl_transport(watched, answer["facts"], hosts) if set(hosts) <= set(seen) else skipped("nccl-transport", name, "not seen: %s" % reason)]


def bandwidth_checks(answer, hosts, tail=None, gpus=None, reason=""):
    return _measured_checks(answer, hosts, tail or [], gpus or {}, reason) + _watched_checks(answer, hosts, tail or [], gpus or {}, reason)


def _measured_checks(answer, hosts, tail, gpus, reason):
    runs = {run["id"]: run for run in answer.get("runs", [])}
    source = _source(answer)
    blamed = {host: entry["evidence"] for entry in answer.get("blame", []) if entry["kind"] == "host" for host in entry["names"]}

    def missing(check_id, host, why):
        return finding(check_id, host, "skipped", source=source, found="not measured: %s" % (why or _reason(tail)), fix="" if why else LOG)

    checks = []
    for host in hosts:
        run = runs.get("host:%s" % host)
        if run is None:
            checks.append(missing("bandwidth-host", host, reason or (
                NO_SETS if answer.get("collective") == "horovod" and gpus.get(host, 0) > 1 else ONE_RANK if _ended(answer) else "")))
            continue
        checks.append(finding(
            "bandwidth-host", host, "pass" if run["passed"] else "fail", expected=_required(run["expected"]),
            found="; ".join(run["reasons"]) or "%.3g GB/s" % run["judged_busbw_gb_s"], source=source, seconds=run["seconds"],
            fix="" if run["passed"]
            else "compare what else runs on %s, its CPU's or GPUs' clocks and limits, and its PCIe links, with a host that passes" % host))
    if len(hosts) < 2:
        return checks
    name, run = ", ".join(hosts), runs.get("cluster")
    if run is None:
        return checks + [missing("bandwidth-cluster", name, reason)]
    verdict = "fail" if not run["passed"] else "warn" if run["expected"]["required_gb_s"] is None else "pass"
    found = "; ".join(run["reasons"]) or "%.3g GB/s" % run["judged_busbw_gb_s"]
    fix = ""
    if verdict == "fail":
        blame = ["%s %s: %s" % (entry["kind"], " - ".join(entry["names"]), entry["evidence"]) for entry in answer["blame"]]
        found = ". ".join([found] + (blame or [text for text in [answer["note"]] if text]))
        links = [entry["names"] for entry in answer["blame"] if entry["kind"] == "link"]
        fix = " and ".join(["look at %s" % host for host in blamed] + ["look at the way between %s and %s" % tuple(link) for link in links])
        if not answer["blame"] and answer.get("tool") in ("all_reduce_perf", "horovod"):
            fix = "look at the hosts that fail alone first, then at what all hosts share: the switch, its uplinks, settings"
        elif answer["suspect"]:
            fix += "; until then leave out: %s" % ", ".join(answer["suspect"])
        else:
            fix = "look at what all hosts share: the switch, its uplinks, settings"
    elif verdict == "warn":
        found += ", but nothing tells what it should be: %s, and there is no earlier run" % run["expected"]["from"]
        fix = "set verify_bandwidth_min_gb_s; later runs are compared with this one"
    return checks + [finding("bandwidth-cluster", name, verdict, expected=_required(run["expected"]), found=found, source=source,
                             seconds=run["seconds"], fix=fix)]


class FilterModule:
    """What was measured between hosts, as checks."""

    def filters(self):
        return {"bandwidth_checks": bandwidth_checks}
