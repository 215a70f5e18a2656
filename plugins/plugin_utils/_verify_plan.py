# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which hosts verify measures, what it reports of each, which logs it reads, and which checks a run
cannot make. Pure functions.

C(variables) has the variables of every host by host name. It may be Ansible's C(hostvars), which
evaluates a variable when it is read. So only the needed variables are read, and each host is looked
up once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._host_health import judged
from ansible_collections.trainyard.gpu.plugins.module_utils._slurm import is_ours
from ansible_collections.trainyard.gpu.plugins.plugin_utils._findings import finding

ISOLATION = "scheduler-isolation"
#: Ranks of a host without GPUs that is measured alone.
RANKS_ALONE = 2
#: Findings in the form of the report.
Findings = Iterable[Mapping[str, Any]]
#: Hosts of the cluster as module cluster_members returns them.
Members = Iterable[Mapping[str, Any]]
#: The variables of each host.
Variables = Mapping[str, Mapping[str, Any]]


class Measured(TypedDict):
    """The hosts of the measuring job with their slots, and the number of GPUs in the training
    container of each.
    """

    hosts: list[dict[str, Any]]
    gpus: dict[str, int]


class Logins(TypedDict):
    """What logins to a host have shown: the cause of its own failed one, and the limits of locked
    memory of its sessions.
    """

    own_cause: str
    memlocks: list[Any]


class Log(TypedDict):
    """The last lines of a log of a host."""

    host: str
    name: str
    tail: str


class Drain(TypedDict):
    """A node of the scheduler, and why it is drained."""

    node: str
    reason: str


class Nodes(TypedDict):
    """Which nodes to drain, and the names of those to resume."""

    drain: list[Drain]
    resume: list[str]


class Evidence(TypedDict):
    """What the report has of the hosts."""

    hosts: list[dict[str, Any]]
    versions: dict[str, dict[str, str]]
    logs: list[Log]


class Probe(TypedDict):
    """How a job is tried on each node.

    C(folder) is that of the person on the share. C(problem) says why it cannot be tried.
    C(possible) is false if nobody can submit a job, which is no fault.
    """

    person: str
    account: str
    folder: str
    image: str
    problem: str
    possible: bool


class ToMeasure(TypedDict):
    """The hosts of the cluster in the order of their ranks."""

    members: Members


def measured(found: Variables, requested: ToMeasure) -> Measured:
    """Return what the measuring job runs on. C(found) are the variables of each host.

    Returns C(hosts), C(name) and C(slots) of the members in the play that have slots, and C(gpus),
    how many GPUs the training container of each sees, 0 if it was not checked.
    """
    hosts, gpus = [], {}
    for member in requested["members"]:
        if not member["in_play"] or not member["slots"]:
            continue
        its, name = found[member["name"]], member["name"]
        has_gpus = (its.get("cluster_host") or {}).get("gpus")
        hosts.append({"name": name, "slots": member["slots"] if has_gpus else RANKS_ALONE})
        gpus[name] = (its.get("__verify_container_gpus") or {}).get("gpu_count", 0)
    return {"hosts": hosts, "gpus": gpus}


def checked(
    members: Members, names: Collection[str], variables: Variables, scheduler: str = ""
) -> list[dict[str, Any]]:
    """The members among C(names), with what determines which checks apply: hardware, and parts of
    the scheduler, whose controller is C(scheduler).
    """
    hosts = []
    for member in members:
        if member["name"] not in names:
            continue
        its = variables[member["name"]]
        host = dict(
            member,
            gpus=(its.get("cluster_host") or {}).get("nvidia_devices", 0),
            rdma_devices=len((its.get("__verify_infiniband") or {}).get("devices", [])),
        )
        if scheduler:
            is_controller = member["name"] == scheduler
            host["scheduler"] = ["controller"] * is_controller + ["node"] * bool(member["slots"])
        hosts.append(host)
    return hosts


def port_rates(members: Members, variables: Variables) -> dict[str, float]:
    """Return the rates in Gb/s of the active ports in the cluster, by a text such as
    C(mlx5_0 port 1). Of ports with the same text on several hosts it is the fastest.

    C(members) are those of the cluster, C(variables) those of each host.
    """
    rates: dict[str, float] = {}
    for member in members:
        answer = variables[member["name"]].get("__verify_infiniband") or {}
        for device in answer.get("devices") or []:
            for port in device["ports"]:
                if port["state"] == "active" and port["rate_gb_s"] is not None:
                    name = "%s port %s" % (device["name"], port["port"])
                    rates[name] = max(port["rate_gb_s"], rates.get(name, 0))
    return rates


def hardware(members: Members, variables: Variables) -> list[dict[str, Any]]:
    """GPUs, facts, addresses and rails of the hosts, as P(_hardware) compares them.

    Without facts a host has not answered.
    """
    found = []
    for member in members:
        its = variables[member["name"]]
        facts = its.get("cluster_host")
        if facts:
            found.append(
                {
                    "name": member["name"],
                    "gpus": (its.get("__verify_gpus") or {}).get("gpus") or [],
                    "facts": facts,
                    "addresses": [member["address"], member.get("fabric_address", "")],
                    "rails": {
                        rail["interface"]: rail["network"]
                        for rail in member.get("fabric_rails") or []
                    },
                    "infiniband": its.get("__verify_infiniband") or {},
                }
            )
    return found


def logins(proofs: Mapping[str, Mapping[str, Any]]) -> dict[str, Logins]:
    """Return what the logins to each host have shown: C(own_cause), why its login to itself failed,
    empty if it did not, and C(memlocks), the limits of locked memory of its sessions.

    C(proofs) has the result of M(trainyard.gpu.ssh_mesh_info) by the host that logged in.
    """
    found: dict[str, Logins] = {}
    for host, proof in proofs.items():
        for login in proof.get("logins") or []:
            its = found.setdefault(login["name"], {"own_cause": "", "memlocks": []})
            if login["name"] == host:
                its["own_cause"] = login["cause"]
            limit = (login.get("session") or {}).get("memlock")
            if limit is not None and limit not in its["memlocks"]:
                its["memlocks"].append(limit)
    return found


#: Checks of GPUs whose problems M(trainyard.gpu.nvidia_smi_info) returns.
OF_SMI = ("gpu-state", "gpu-fabric", "gpu-ecc", "gpu-throttle")


def gpu_problems(
    smi: Mapping[str, Any],
    errors: list[dict[str, Any]] | None,
    stack: Mapping[str, Any],
    requested: str,
) -> dict[str, list[dict[str, Any]]]:
    """Return the problems of GPUs and NVSwitches by check.

    Each has C(action) and C(fix), those of the kernel's log also what its entry has.

    C(smi) is a result of M(trainyard.gpu.nvidia_smi_info), C(errors) are those of the kernel's log,
    C(stack) is a result of M(trainyard.gpu.gpu_stack_info), and C(requested) is
    C(nvidia_driver_fabric_manager).
    """
    gpus = smi.get("gpus") or []
    found = {
        check: [
            dict(
                problem,
                temperature_c=gpu.get("temperature_c"),
                power_draw_w=gpu.get("power_draw_w"),
            )
            for gpu in gpus
            for problem in gpu.get("problems") or []
            if problem["id"] == check
        ]
        for check in OF_SMI
    }
    found["gpu-fabric"] += fabric_manager_problems(stack, requested)
    found["gpu-xid"] = judged(errors or [], gpus, smi.get("driver_version"))
    return found


#: Packages with the program itself. Others have headers, or only depend on it, and their version
#: does not matter.
_DAEMON = re.compile(r"nvidia-fabric-?manager(?:-\d+)?")


def fabric_manager_problems(stack: Mapping[str, Any], requested: str) -> list[dict[str, Any]]:
    """Return why NVSwitches do not work although the GPUs do not say it: A100 have no fabric state,
    and a running program may not have noticed it yet.
    """
    switches, driver = stack.get("nvswitches") or 0, stack.get("loaded") or ""
    service = (stack.get("services") or {}).get("nvidia-fabricmanager.service")
    if not switches or not driver or service is None:
        return []
    found = []
    if not service["active"]:
        found.append(_stopped_manager(switches, driver, bool(service["loaded"])))
    for name, package in sorted((stack.get("packages") or {}).items()):
        version = re.search(r"\d+\.[\d.]*\d", package["version"])
        if _DAEMON.fullmatch(name) and version and version.group() != driver:
            found.append(
                (
                    "%s is %s, and driver %s is loaded" % (name, package["version"], driver),
                    "install Fabric Manager in version %s, or reboot if the driver was upgraded"
                    % driver,
                )
            )
    action = "warn" if requested == "never" else "drain"
    return [
        {"id": "gpu-fabric", "action": action, "evidence": evidence, "fix": fix}
        for evidence, fix in found
    ]


def _stopped_manager(switches: int, driver: str, installed: bool) -> tuple[str, str]:
    """Return (what was found, what to do) of a Fabric Manager that does not run."""
    state = "not installed"
    fix = (
        "set nvidia_driver_version to %s, and run gpu_stack.yml, which installs Fabric Manager"
        % (driver)
    )
    if installed:
        state = "not running"
        fix = (
            "run `systemctl enable --now nvidia-fabricmanager`, and read its log if it does not "
            "start"
        )
    return "%d NVSwitches, and nvidia-fabricmanager.service is %s" % (switches, state), fix


def sessions(
    members: Members, names: Collection[str], variables: Variables, head: str
) -> tuple[dict[str, dict[str, Any]], list[str] | None]:
    """What the hosts C(names) have read in a session, by name, and the IDs of the jobs that run,
    None if the head did not tell.

    Another host may have been the head when a job was started.
    """
    found: dict[str, dict[str, Any]] = {}
    for member in members:
        if member["name"] in names:
            answer = variables[member["name"]].get("__verify_health") or {}
            found[member["name"]] = answer.get("session") or {}
    if found.get(head, {}).get("jobs") is None:
        return found, None
    return found, sorted({job for session in found.values() for job in session.get("jobs") or []})


def versions(names: Iterable[str], variables: Variables) -> dict[str, dict[str, str]]:
    """Installed versions by host. What is not installed is left out."""
    found = {}
    for name in names:
        its = variables[name]
        stack = its.get("__verify_stack") or {}
        horovod = its.get("__verify_horovod") or (its.get("__verify_health") or {}).get("horovod")
        those = {
            "kernel": its["cluster_host"]["kernel"],
            "driver": (its.get("__verify_gpus") or {}).get("driver_version"),
            "cuda": (stack.get("nvcc") or {}).get("version"),
            "nccl": ((stack.get("packages") or {}).get("libnccl2") or {}).get("version"),
            "toolkit": stack.get("container_toolkit"),
            "docker": stack.get("docker"),
            "image": its.get("training_image_name"),
            "image_nccl": its.get("training_image_nccl"),
            "horovod": (horovod or {}).get("version"),
        }
        found[name] = {key: version for key, version in those.items() if version}
    return found


def with_causes(findings: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The findings with those of full file systems first.

    Other failures of such a host say that they may follow from it: programs that cannot write a
    file fail in many ways, most of which name something else.
    """
    full: dict[str, list[str]] = {}
    for entry in findings:
        found = re.match(r"(\S+): (?:0 MiB|\d+ MiB, 0 files)\b", entry["found"])
        if entry["id"] == "free-space" and entry["verdict"] == "fail" and found:
            full.setdefault(entry["host"], []).append(found.group(1))
    marked = []
    for entry in findings:
        paths = full.get(entry["host"])
        if paths and entry["verdict"] == "fail" and entry["id"] != "free-space":
            first = "first free space below %s (check free-space), as this may follow from it" % (
                ", ".join(paths)
            )
            entry = {**entry, "fix": "; then ".join(filter(None, (first, entry["fix"])))}
        marked.append(entry)
    return sorted(
        marked, key=lambda entry: entry["id"] != "free-space" or entry["host"] not in full
    )


def tails(names: Iterable[str], variables: Variables) -> list[Log]:
    """The last lines of each log that a host has read."""
    found: list[Log] = []
    for name in names:
        for read in (variables[name].get("__verify_log") or {}).get("results", []):
            if read.get("rc", 1) == 0 and read["stdout"].strip():
                found.append(
                    {
                        "host": read["item"]["host"],
                        "name": read["item"]["name"],
                        "tail": read["stdout"],
                    }
                )
    return found


def job_failed(checks: Findings) -> bool:
    """Whether the checks of the measuring job give a reason to read its log.

    A job that measured nothing has failed, but a host without GPUs has not.
    """
    return any(
        check["verdict"] == "fail"
        or check["verdict"] == "skipped"
        and check["id"].startswith("bandwidth-")
        for check in checks
    )


def logs(
    checks: Findings,
    host: str,
    sources: Iterable[Mapping[str, Any]],
    job_checks: Findings,
    job_log: dict[str, Any],
) -> list[dict[str, Any]]:
    """Return the logs that may explain the failed checks of a host.

    C(checks) are findings, C(sources) the logs with C(name), C(argv) that prints them, and the IDs
    of C(checks) that they explain. C(job_checks) are findings for the one host that reads
    C(job_log), empty on others.

    Returns C(host), C(name) and C(argv) each, and C(job_log) if the job has failed.
    """
    failed = {
        check["id"]
        for check in checks
        if check["verdict"] == "fail" and host in check["host"].split(", ")
    }
    found = [
        {"host": host, "name": source["name"], "argv": source["argv"]}
        for source in sources
        if failed.intersection(source["checks"])
    ]
    return found + ([job_log] if job_failed(job_checks) else [])


#: The health program has drained the node too often for one cause: a person has to resume it.
STAYS_OUT = "trainyard: stays out:"
#: Checks of which one measures a host.
MEASURED = ("bandwidth-", "burn-in-speed")


def _reasons(
    checks: Findings, blame: Findings, suspect: Collection[str], draining: Collection[str]
) -> dict[str, list[str]]:
    """Return why hosts are drained, by host: failed checks, and what the measurement blames them
    for.
    """
    reasons: dict[str, list[str]] = {}
    for check in checks:
        if check["id"] in draining and check["verdict"] == "fail":
            for name in check["host"].split(", "):
                reasons.setdefault(name, []).append("%s: %s" % (check["id"], check["found"]))
    for each in blame:
        reason = "%s %s: %s" % (each["kind"], ", ".join(each["names"]), each["evidence"])
        for name in each["names"]:
            if name in suspect:
                reasons.setdefault(name, []).append(reason)
    return reasons


def _proved(checks: Findings, draining: Collection[str]) -> set[str]:
    """Return the hosts that were measured and of which no check is open."""
    open_checks: set[str] = set()
    measured_hosts: set[str] = set()
    for check in checks:
        names = check["host"].split(", ")
        if check["id"] in draining and check["verdict"] == "not_evaluated":
            open_checks.update(names)
        if check["id"].startswith(MEASURED) and check["verdict"] in ("pass", "warn"):
            measured_hosts.update(names)
    return measured_hosts - open_checks


def nodes(
    checks: Findings,
    blame: Findings,
    suspect: Collection[str],
    draining: Collection[str],
    known: Sequence[Mapping[str, Any]],
    hosts: Collection[str],
) -> Nodes:
    """Return which of the scheduler's nodes to drain and to resume.

    A node is drained if one of the checks C(draining) failed on it, or if the measurement blames it
    (C(blame)) and leaves it out of later runs (C(suspect)). It is resumed if trainyard drained it,
    all of these checks were made where they apply, and its bandwidth or speed was measured.
    C(known) are the nodes as M(trainyard.gpu.slurm_info#module) returns them. Those that are not in
    C(hosts) were not checked and stay as they are.
    """
    # Not at the top, because it takes long, and only one host of a run needs it.
    from ansible_collections.trainyard.gpu.plugins.plugin_utils._report import redact

    reasons, proved = _reasons(checks, blame, suspect, draining), _proved(checks, draining)
    names = [node["name"] for node in known if node["name"] in hosts]
    ours = [
        node["name"]
        for node in known
        if is_ours(node["reason"]) and not node["reason"].startswith(STAYS_OUT)
    ]
    return {
        "drain": [
            {"node": name, "reason": redact("verify: " + "; ".join(dict.fromkeys(reasons[name])))}
            for name in names
            if name in reasons
        ],
        "resume": [
            name for name in names if name in ours and name in proved and name not in reasons
        ],
    }


def probe(
    slurm: Mapping[str, Any],
    users: Iterable[Mapping[str, Any]],
    trees: Iterable[Mapping[str, Any]],
    image: str = "",
) -> Probe:
    """Return how a job is tried on each node.

    C(slurm) is the plan of role slurm. C(users) are people, C(trees) the folders of the share. The
    person is the member of the account with the largest quota, as the quota must not be in the way.
    """
    found: Probe = {
        "person": "",
        "account": "",
        "folder": "",
        "image": image,
        "problem": "",
        "possible": True,
    }
    if "accounts" not in slurm:
        return {**found, "problem": "the accounts of the scheduler were not read"}
    missing = slurm.get("missing_people") or []
    names = [user["name"] for user in users if user["name"] not in missing]
    best = _largest_quota(slurm["accounts"], names)
    if best is None and missing:
        problem = "%s cannot log in to the scheduler; run people.yml" % ", ".join(missing)
        return {**found, "problem": problem}
    if best is None:
        problem = (
            "slurm_accounts has no member who is in shared_storage_users, so nobody can submit a "
            "job"
        )
        return {**found, "possible": False, "problem": problem}
    if best.quota < 1:
        problem = "the quotas in slurm_accounts allow nobody a GPU"
        return {**found, "possible": False, "problem": problem}
    of_users = [tree["path"].rstrip("/") for tree in trees if tree.get("of") == "users"]
    folder = "%s/%s" % (of_users[0], best.person) if of_users else ""
    return {**found, "person": best.person, "account": best.account, "folder": folder}


class _Quota(NamedTuple):
    """How many GPUs a person gets in an account. Infinite without a limit."""

    quota: float
    person: str
    account: str


def _largest_quota(accounts: Iterable[Mapping[str, Any]], people: list[str]) -> _Quota | None:
    """Return the first account with the largest quota, and its first member among C(people).

    None if no account has one of them.
    """
    best = None
    for account in accounts:
        limits = [account.get(key) for key in ("gpus", "max_gpus_per_person")]
        quota = min((limit for limit in limits if limit is not None), default=float("inf"))
        members = [name for name in people if name in (account.get("members") or [])]
        if members and (best is None or quota > best.quota):
            best = _Quota(quota, members[0], account["name"])
    return best


def _isolation_check(
    entry: Mapping[str, Any] | None, host: str, reason: str, accepted: bool, seconds: float
) -> Mapping[str, Any]:
    """Return the finding of check scheduler-isolation of a host."""
    if entry is None:
        found = reason or "no job was submitted"
        return finding(ISOLATION, host, "skipped", found=found, source="srun")
    isolation, fix = entry["isolation"], ""
    verdict, found = isolation["verdict"], isolation["found"]
    if verdict == "not_made":
        verdict, fix = "not_evaluated", "remove the reason, then run verify.yml"
    elif verdict == "fail" and accepted and isolation["of_limits"]:
        # The inventory has accepted a cluster without limits. Folders of jobs need none.
        verdict, found = "warn", found + ". slurm_accept_no_limits accepts it"
        fix = "use hosts with control groups, and set slurm_accept_no_limits to false"
    elif verdict == "fail":
        fix = (
            "run scheduler.yml, which writes cgroup.conf, and look for ConstrainDevices and "
            "ConstrainRAMSpace there; then run verify.yml"
        )
    expected = (
        "no GPU opens in a task without GPUs, its memory is limited, and others cannot read the "
        "folder of a job"
    )
    return finding(
        ISOLATION,
        host,
        verdict,
        expected=expected,
        found=found,
        source="srun",
        fix=fix,
        seconds=seconds,
    )


def probe_checks(
    result: Mapping[str, Any],
    plan: Mapping[str, Any],
    hosts: Sequence[str],
    reason: str = "",
    accepted: bool = False,
) -> list[Mapping[str, Any]]:
    """Return the findings of checks scheduler-job and scheduler-isolation.

    C(result) is of module slurm_probe. If it is empty, C(reason) says why no job was submitted.
    C(accepted) says whether the cluster may have hosts that limit nothing.
    """
    probes = {entry["node"]: entry for entry in result.get("probes", [])}
    place = " in a container of %s" % plan["image"] if plan.get("image") else ""
    share = ", and the share" if plan.get("folder") else ""
    checks: list[Mapping[str, Any]] = []
    for host in hosts:
        entry = probes.get(host)
        if entry is None:
            checks.append(
                finding(
                    "scheduler-job",
                    host,
                    "skipped",
                    found=reason or "no job was submitted",
                    source="sbatch",
                )
            )
            continue
        # Not made because of a quota or of a drained node: the node must not be resumed before.
        verdict = entry["verdict"] if entry["verdict"] in ("pass", "fail") else "not_evaluated"
        fix = {
            "pass": "",
            "fail": "repair what the finding names, then run verify.yml",
            "not_evaluated": "remove the reason, then run verify.yml",
        }[verdict]
        checks.append(
            finding(
                "scheduler-job",
                host,
                verdict,
                found=entry["found"],
                source="sbatch",
                fix=fix,
                seconds=result.get("seconds", 0),
                expected="a job of %s on this host%s, with its GPU alone%s"
                % (plan["person"], place, share),
            )
        )
    return checks + [
        _isolation_check(probes.get(host), host, reason, accepted, result.get("seconds", 0))
        for host in hosts
    ]


class Measurement(NamedTuple):
    """What a run can measure.

    C(hosts) is how many take part, C(is_asked): the job is not switched off.

    C(can_start): the launcher can start a job. C(has_tool), C(has_process_sets): what the image has
    for it. C(has_person): the scheduler has one to try.
    """

    hosts: int
    can_start: bool = True
    is_asked: bool = True
    has_tool: bool = True
    has_process_sets: bool = True
    needs_horovod: bool = True
    has_person: bool = True


def unmeasured(required: list[str], of_jobs: list[str], run: Measurement) -> list[str]:
    """IDs of checks that cannot be required in this run. C(of_jobs) are those that need a job.

    A check stays required if a fault of the cluster prevents it, or if C(required) names it and the
    job is only switched off.
    """

    def unless_required(*check_ids: str) -> list[str]:
        return [check_id for check_id in check_ids if check_id not in required]

    left_out = []
    if not run.can_start:
        left_out += of_jobs
    elif not run.is_asked:
        left_out += unless_required(*of_jobs)
    if run.hosts == 1:
        left_out += ["bandwidth-cluster", "fabric-counters", "fabric-errors"]
    if not run.has_tool:
        left_out += unless_required("bandwidth-host", "bandwidth-cluster")
    if not run.has_process_sets:
        left_out += unless_required("bandwidth-host")
    if not run.needs_horovod:
        left_out += unless_required("horovod-build")
    if not run.has_person:
        left_out += unless_required("scheduler-job", "scheduler-isolation")
    return left_out


def evidence(
    variables: Variables,
    members: Members,
    names: Collection[str],
    answering: Sequence[str],
    scheduler: str = "",
) -> Evidence:
    """Return what the report has of the hosts.

    C(variables) are those of each host, C(members) those of the cluster, C(names) and C(answering)
    inventory names. C(scheduler) is the controller's host, empty without one.

    Returns C(hosts), the members among C(names) with their hardware, C(versions), versions of
    software by host, and C(logs), the last lines of logs, both of the hosts that answer.
    """
    return {
        "hosts": checked(members, names, variables, scheduler),
        "versions": versions(answering, variables),
        "logs": tails(answering, variables),
    }


def decide_verify_unmeasured(
    required: list[str], of_jobs: list[str], run: Mapping[str, Any]
) -> list[str]:
    """Return the IDs of checks that cannot be required in this run, as unmeasured explains.

    C(required) and C(of_jobs) are IDs: those of the inventory, and those that need a job. C(run)
    has the fields of Measurement by name; C(hosts) is required. Raises TypeError for an unknown
    field.
    """
    return unmeasured(required, of_jobs, Measurement(**run))


def decide_verify_nodes(
    checks: list[dict[str, Any]],
    draining: list[str],
    scheduler: dict[str, Any],
    hosts: list[str],
    blame: Sequence[dict[str, Any]] = (),
    suspect: Collection[str] = (),
) -> Nodes:
    """Return which of the scheduler's nodes to drain and to resume, as nodes explains.

    C(checks) are findings of the report, C(draining) IDs of checks whose failure drains a node.
    C(scheduler) is a result of M(trainyard.gpu.slurm_info), empty if it has not run. C(hosts) were
    checked. C(blame) are the measurement's findings about hosts, C(suspect) the hosts that it left
    out of later runs.

    Returns C(drain), C(node) and C(reason) each, and C(resume), names.
    """
    return nodes(checks, blame, suspect, draining, scheduler.get("nodes") or [], hosts)
