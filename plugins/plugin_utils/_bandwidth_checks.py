# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Judges the measured bandwidth, and what was seen of GPUs, fabric and NCCL meanwhile, as checks of
role verify.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.trainyard.gpu.plugins.module_utils._bandwidth import BROKE_OFF
from ansible_collections.trainyard.gpu.plugins.module_utils._quantity import quantity
from ansible_collections.trainyard.gpu.plugins.plugin_utils._bandwidth_tool import (
    reason as reason_of,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._burn_in import link_check
from ansible_collections.trainyard.gpu.plugins.plugin_utils._findings import finding
from ansible_collections.trainyard.gpu.plugins.plugin_utils._watched import (
    fabric_counters,
    fabric_errors,
    gpus_busy,
    nccl_transport,
)

SOURCE = {
    "gloo": "PyTorch's all-reduce by Gloo",
    "nccl": "PyTorch's all-reduce by NCCL",
    "horovod": "Horovod's all-reduce",
    "all_reduce_perf": "all_reduce_perf of nccl-tests",
}
LOG = "read the job's log, .trainyard/jobs/verify-bandwidth/job.log on the share"
FAILED = "correct the error that the finding names; it says nothing of the hardware. Else %s" % LOG
NO_COUNTERS = "the job has left no counters"
ONE_RANK = "one rank has nothing to exchange"
FRAMEWORKS = {"Torch": "PyTorch", "TensorFlow": "TensorFlow", "MXNet": "MXNet"}
NO_SETS = (
    "this Horovod has no process sets (0.23 and newer have), so it measures only all ranks together"
)


def _required(bound: dict[str, Any]) -> str:
    """Return the required bandwidth of a run in words, empty if it is unknown."""
    if bound["required_gb_s"] is None:
        return ""
    return "%.3g GB/s or more (%s: %s)" % (bound["required_gb_s"], bound["bound"], bound["from"])


def _measured(run: dict[str, Any]) -> str:
    """Return what a run has measured, in words. One that failed has measured no slow hardware."""
    found = "; ".join(run["reasons"]) or "%.3g GB/s" % run["judged_busbw_gb_s"]
    return "the measurement failed: %s" % found if run["errors"] else found


#: Of a host that reached what its own hardware promises, of which nothing says whether it is whole.
ALONE = (
    ", but there is nothing to compare with: no other host has these GPUs, the compatibility data "
    "does not have the model, and there is no earlier run"
)


def _host_verdict(run: dict[str, Any]) -> tuple[str, str, str]:
    """Return verdict, what was found, and what to do, for a host that was measured alone."""
    host, found = run["hosts"][0], _measured(run)
    if run["errors"] and not run["passed"]:
        return "fail", found, FAILED
    if not run["passed"]:
        return (
            "fail",
            found,
            (
                "compare what else runs on %s, its CPU's or GPUs' clocks and limits, and its "
                "NVLinks and PCIe links, with a host that passes"
            )
            % host,
        )
    if run.get("compared", True):
        return "pass", found, ""
    return (
        "warn",
        found + ALONE,
        (
            "set verify_bandwidth_host_min_gb_s of %s to what it reached when it was new; later "
            "runs are compared with this one"
        )
        % host,
    )


def _remarks(answer: dict[str, Any]) -> dict[str, list[str]]:
    """Return what NCCL's log of a job has told of ports, by host."""
    if not answer.get("nccl_lines"):
        return {}
    # Compiling its patterns takes 40 ms, and a run without a measurement has no log.
    from ansible_collections.trainyard.gpu.plugins.module_utils._run_log import remarks

    return {
        host: ["%s; %s" % (remark["cause"], remark["fix"]) for remark in remarks("\n".join(lines))]
        for host, lines in answer["nccl_lines"].items()
    }


def _ended(answer: dict[str, Any]) -> bool:
    """Return whether the job has completed. Until then its note says that it did not."""
    return "runs" in answer and answer.get("note") != BROKE_OFF


def _unseen(answer: dict[str, Any], hosts: Sequence[str], tail: Sequence[str]) -> str:
    """Return why the ranks were not observed during their work."""
    if not answer.get("runs"):
        return reason_of(tail)
    if any(run["errors"] for run in answer["runs"] if run["id"] == "cluster" or len(hosts) < 2):
        return "the previous measurement has failed"
    return ONE_RANK if len(hosts) < 2 and _ended(answer) else "the job was aborted"


def _source(answer: dict[str, Any]) -> str:
    """Return the source of the findings: what has measured."""
    key = "all_reduce_perf" if answer.get("tool") == "all_reduce_perf" else answer.get("collective")
    carriers = {"nccl": " by NCCL", "gloo": " by Gloo", "mpi": " by MPI"}
    carrier = carriers.get(answer.get("carrier", ""), "")
    return SOURCE.get(key or "", "an all-reduce of all ranks") + carrier


def _busy_check(
    answer: dict[str, Any], host: str, gpus: int | None, why_unknown: str
) -> Mapping[str, Any]:
    """Return check gpus-busy of a host.

    C(gpus) is the number of its GPUs, C(why_unknown) the reason why nothing was seen.
    """
    carrier = answer.get("carrier") or answer.get("collective")
    if not gpus:
        if not _on_gpus(answer):
            return _skipped(answer, "gpus-busy", host, "the training container has no GPU")
    elif carrier and not _on_gpus(answer):
        framework = FRAMEWORKS[answer.get("binding", "Torch")]
        return finding(
            "gpus-busy",
            host,
            "fail",
            expected="%s in use" % quantity(gpus, "GPU"),
            source=_source(answer),
            found="the job ran on the CPU: %s sees no GPU" % framework,
            fix="use an image whose %s is built for CUDA, and read check toolkit-container"
            % framework,
        )
    if why_unknown:
        return _skipped(answer, "gpus-busy", host, "not seen: %s" % why_unknown)
    return gpus_busy(answer["watched"], host)


def _on_gpus(answer: dict[str, Any]) -> bool:
    """Return whether the job used GPUs. Horovod may use another library than NCCL for them."""
    by_nccl = (answer.get("carrier") or answer.get("collective")) == "nccl"
    return bool(answer.get("on_gpus", by_nccl))


def _skipped(answer: dict[str, Any], check_id: str, host: str, found: str) -> Mapping[str, Any]:
    return finding(check_id, host, "skipped", found=found, source=_source(answer))


def _fabric_checks(
    answer: dict[str, Any], hosts: Sequence[str], unknown: Mapping[str, str]
) -> list[Mapping[str, Any]]:
    """Return what the counters of the fabric tell of each of several hosts.

    C(unknown) has the reason of those that were not seen.
    """
    watched = answer.get("watched") or {}
    carrier = answer.get("carrier") or answer.get("collective") or ""
    checks: list[Mapping[str, Any]] = []
    for host in hosts:
        if unknown[host]:
            check = _skipped(answer, "fabric-counters", host, "not read: %s" % unknown[host])
        else:
            check = fabric_counters(watched, answer["facts"], host, carrier)
        checks.append(check)
    lost, remarks = answer.get("lost") or {}, answer.get("remarks") or _remarks(answer)
    for host in hosts:
        if lost.get(host):
            check = fabric_errors(lost, remarks, host)
        else:
            why = unknown[host] or NO_COUNTERS
            check = _skipped(answer, "fabric-errors", host, "not read: %s" % why)
        checks.append(check)
    return checks


def _transport_check(
    answer: dict[str, Any], hosts: Sequence[str], unknown: Mapping[str, str]
) -> Mapping[str, Any]:
    """Return check nccl-transport: how NCCL has moved data between all hosts.

    C(unknown) has by host why it was not seen.
    """
    carrier, name = answer.get("carrier") or answer.get("collective"), ", ".join(hosts)
    if carrier and carrier != "nccl":
        why = "which Horovod was not built with" if _on_gpus(answer) else "because it has no GPUs"
        return _skipped(answer, "nccl-transport", name, "the job ran without NCCL, %s" % why)
    watched = answer.get("watched") or {}
    # The log of a run without other results may still name its connections.
    missing = [text for text in unknown.values() if text]
    if missing and not watched.get("transports"):
        return _skipped(answer, "nccl-transport", name, "not seen: %s" % missing[0])
    return nccl_transport(watched, answer["facts"], hosts)


def _watched_checks(
    answer: dict[str, Any],
    hosts: Sequence[str],
    tail: Sequence[str],
    gpus: Mapping[str, int],
    reason: str,
) -> list[Mapping[str, Any]]:
    """Return observations while all hosts worked together.

    A check that cannot be made gives the reason.
    """
    watched = answer.get("watched") or {}
    reason = reason or watched.get("error") or _unseen(answer, hosts, tail)
    seen, errors = watched.get("hosts") or {}, watched.get("errors", {})
    unseen = {host: reason for host in hosts if host not in seen}
    unknown = {host: errors.get(host) or unseen.get(host, "") for host in hosts}
    checks: list[Mapping[str, Any]] = [
        _busy_check(answer, host, gpus.get(host), unknown[host]) for host in hosts
    ]
    if len(hosts) > 1:
        checks += _fabric_checks(answer, hosts, unknown)
    return checks + [_transport_check(answer, hosts, unknown)]


def bandwidth_checks(
    answer: dict[str, Any],
    hosts: Sequence[str],
    tail: Sequence[str] = (),
    gpus: Mapping[str, int] | None = None,
    reason: str = "",
) -> list[Mapping[str, Any]]:
    """Return the findings of a measurement and of what was seen meanwhile.

    They are C(bandwidth-host), one per host, and C(bandwidth-cluster), which names the suspects.
    What was seen during the job becomes C(gpus-busy) and C(fabric-counters), one per host, and
    C(nccl-transport). Without a measurement a check is skipped, and a bandwidth without an expected
    value is a warning.

    C(answer) is the result of the measuring job, empty if it left none. C(tail) are the last lines
    of its output, C(gpus) the number of GPUs by host, and C(reason) tells why nothing was measured.
    """
    return _measured_checks(answer, hosts, tail, gpus or {}, reason) + _watched_checks(
        answer, hosts, tail, gpus or {}, reason
    )


def _host_check(
    answer: dict[str, Any], host: str, run: dict[str, Any] | None, reason: tuple[str, str]
) -> Mapping[str, Any]:
    """Return check bandwidth-host. C(run) is the host's own run, None with the C(reason)."""
    if run is None:
        return _unmeasured(answer, "bandwidth-host", host, reason)
    verdict, found, fix = _host_verdict(run)
    return finding(
        "bandwidth-host",
        host,
        verdict,
        expected=_required(run["expected"]),
        found=found,
        source=_source(answer),
        seconds=run["seconds"],
        fix=fix,
    )


def _unmeasured(
    answer: dict[str, Any], check_id: str, host: str, reason: tuple[str, str]
) -> Mapping[str, Any]:
    """Return a skipped check. C(reason) has why, and for a job whose log tells it, a fix."""
    why, fix = reason
    found = "not measured: %s" % why
    return finding(check_id, host, "skipped", source=_source(answer), found=found, fix=fix)


def _why_not_alone(answer: dict[str, Any], host: str, gpus: Mapping[str, int]) -> str:
    """Return why a host was not measured alone, empty if that is not known."""
    if answer.get("collective") == "horovod" and gpus.get(host, 0) > 1:
        return NO_SETS
    return ONE_RANK if _ended(answer) else ""


def _cluster_fix(answer: dict[str, Any]) -> str:
    """Return what to do about a cluster that is too slow."""
    if not answer["blame"] and answer.get("tool") in ("all_reduce_perf", "horovod"):
        return (
            "check first the hosts that fail alone, then what all hosts share: the switch, its "
            "uplinks, settings"
        )
    if not answer["suspect"]:
        return "check what all hosts share: the switch, its uplinks, settings"
    hosts = [name for each in answer["blame"] if each["kind"] == "host" for name in each["names"]]
    links = [each["names"] for each in answer["blame"] if each["kind"] == "link"]
    fix = ["check %s" % host for host in dict.fromkeys(hosts)]
    fix += ["check the path between %s and %s" % tuple(link) for link in links]
    return "%s; until then leave out: %s" % (" and ".join(fix), ", ".join(answer["suspect"]))


def _cluster_check(answer: dict[str, Any], name: str, run: dict[str, Any]) -> Mapping[str, Any]:
    """Return check bandwidth-cluster. C(run) is that of all hosts, C(name) has their names."""
    found, required = _measured(run), run["expected"]["required_gb_s"]
    verdict, fix = "pass", ""
    if not run["passed"]:
        blame = [
            "%s %s: %s" % (entry["kind"], " - ".join(entry["names"]), entry["evidence"])
            for entry in answer["blame"]
        ]
        found = ". ".join([found] + (blame or [text for text in [answer["note"]] if text]))
        verdict, fix = "fail", _cluster_fix(answer)
    elif required is None:
        found += (
            ", but its expected value is unknown: %s, and there is no earlier run"
            % run["expected"]["from"]
        )
        verdict = "warn"
        fix = "set verify_bandwidth_min_gb_s; later runs are compared with this one"
    return finding(
        "bandwidth-cluster",
        name,
        verdict,
        expected=_required(run["expected"]),
        found=found,
        source=_source(answer),
        seconds=run["seconds"],
        fix=fix,
    )


def _measured_checks(
    answer: dict[str, Any],
    hosts: Sequence[str],
    tail: Sequence[str],
    gpus: Mapping[str, int],
    reason: str,
) -> list[Mapping[str, Any]]:
    """Return the checks of the bandwidth. See bandwidth_checks for the parameters."""
    runs = {run["id"]: run for run in answer.get("runs", [])}

    def because(why: str) -> tuple[str, str]:
        return (why, "") if why else (reason_of(tail), LOG)

    checks = [
        _host_check(
            answer,
            host,
            runs.get("host:%s" % host),
            because(reason or _why_not_alone(answer, host, gpus)),
        )
        for host in hosts
    ]
    if len(hosts) < 2:
        return checks
    name, run = ", ".join(hosts), runs.get("cluster")
    if run is None:
        return checks + [_unmeasured(answer, "bandwidth-cluster", name, because(reason))]
    checks.append(_cluster_check(answer, name, run))
    if answer.get("pairs"):
        checks.append(link_check(answer["runs"], answer["collective"], list(hosts)))
    return checks
