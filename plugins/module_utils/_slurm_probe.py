# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Probe jobs on the nodes of Slurm: how they are submitted, and what their results say.

Pure functions.

The jobs run files/probe.py of role verify, which stores its result in the comment of the job.
Checks scheduler-job and scheduler-isolation report it.
"""

from __future__ import annotations

import base64
import binascii
import json
import re

from typing import Any, Dict, Iterable, Sequence, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils import _slurm

__all__ = [
    "ALL_DEVICES",
    "NAME",
    "constrains_devices",
    "drained_by_slurm",
    "has_ended",
    "is_active",
    "isolation",
    "outcome",
    "request",
    "result_of",
    "submission",
    "unavailable",
]

#: Name of the jobs, by which those of a run that was killed are found.
NAME = "trainyard-probe"
#: Devices that only a job with a GPU or an NPU may open: the paths without the number.
ALL_DEVICES = ("/dev/nvidia", "/dev/davinci")
#: The major number of NVIDIA's. Their minor number is that of the path. The kernel chooses the one
#: of others.
DEVICE, MAJOR = ALL_DEVICES[0], 195
#: MiB that the task without GPUs may have in memory: LIMIT of probe.py, and what Slurm and the
#: kernel count otherwise.
MAY_HAVE = 64 + 32
_DENIED = frozenset(("EPERM", "EACCES", "ENOENT"))
#: MiB of memory of a job. A container with Python needs less.
MEMORY = 512
_MARK = "trainyard:"

# Flags of a node that a maintenance reservation sets.
_RESERVED = frozenset(("maintenance", "reserved", "planned"))
_ACTIVE = frozenset(
    (
        "pending",
        "configuring",
        "running",
        "completing",
        "suspended",
        "stopped",
        "signaling",
        "stage_out",
        "requeued",
        "requeue_hold",
        "requeue_fed",
        "resv_del_hold",
        "special_exit",
    )
)
# A job waits or is refused for these reasons because of its account, its partition or an
# administrator, and not because of the node.
_NOT_THE_NODE = re.compile(
    r"Assoc|QOS|Licenses|Invalid(Account|QOS)|Account|Partition|Dependency|BeginTime|JobHeldUser|Reservation$|Priority$|MaxSubmit|"
    r"Invalid (account|qos|partition)|policy|time limit|reservation|Access|User",
    re.IGNORECASE,
)
# The word "User" and others occur in these, too.
_THE_NODE = re.compile(
    r"ReqNodeNotAvail|node configuration|Node count|Requested nodes|launch failed", re.IGNORECASE
)


class Request(TypedDict, total=False):
    """The job for a node.

    C(problem) says why there is none. C(contained) says whether the job can see its own GPUs only.
    """

    node: str
    gpus: int
    contained: bool
    partition: str
    qos: str
    problem: str


class Person(TypedDict):
    """The person whose jobs they are."""

    name: str
    uid: int
    gid: int


class Outcome(TypedDict):
    """What the job of a node says.

    C(verdict) is C(pass), C(fail) or C(not_made), C(found) what was found. C(job) is the number of
    the job, if there is one.
    """

    node: str
    job: int | None
    verdict: str
    found: str


class Isolation(TypedDict):
    """What a task without GPUs and container says about a node.

    C(of_limits) says whether only limits failed, which a host without control groups cannot have.
    """

    verdict: str
    found: str
    of_limits: bool


#: What files/probe.py of role verify prints.
Result = Dict[str, Any]


def constrains_devices(text: str) -> bool:
    """Return whether jobs can open only their own GPUs, by the output of C(scontrol show
    config).
    """
    values: dict[str, str] = dict(re.findall(r"^([A-Za-z]+) *= (.*)$", text, re.MULTILINE))
    constrained = values.get("ConstrainDevices", "no").strip().lower() in ("yes", "true")
    return constrained and "task/cgroup" in values.get("TaskPlugin", "")


def unavailable(node: _slurm.Node) -> str:
    """Return why a node would start no job, whatever is reserved, or empty."""
    blocking = [state for state in node["states"] if state not in _RESERVED]
    if _slurm.available_for_jobs(blocking):
        return ""
    return "the node is %s%s" % (
        ", ".join(node["states"]),
        ": " + node["reason"] if node["reason"] else "",
    )


def request(
    node: _slurm.Node, partitions: Iterable[_slurm.Partition], account: str, contained: bool
) -> Request:
    """Return the job for a node: one GPU if it has any, in a partition and with a QOS that the
    account may use.

    C(contained) says whether the job can see its own GPUs only.
    """
    mine = [partition for partition in partitions if node["name"] in partition["nodes"]]
    usable = [
        partition
        for partition in mine
        if partition["state"] == "up"
        and (partition["allow_accounts"] is None or account in partition["allow_accounts"])
    ]
    found: Request = {
        "node": node["name"],
        "gpus": min(1, sum(entry["total"] for entry in node["gpus"])),
        "contained": contained,
        "partition": "",
        "qos": "",
        "problem": "",
    }
    if not mine:
        found["problem"] = "the node is in no partition"
        return found
    if not usable:
        states = ", ".join("%s: %s" % (each["name"], each["state"]) for each in mine)
        found["problem"] = "account %s may not use its partitions (%s)" % (account, states)
        return found
    qos = usable[0]["allow_qos"]
    found["partition"] = usable[0]["name"]
    found["qos"] = "" if qos is None or "normal" in qos else qos[0]
    return found


def submission(requested: Request, account: str, reservation: str, seconds: int) -> list[str]:
    """Return the command that submits the job.

    It ends by itself, and it is removed from the queue by itself, if nobody cancels it.
    """
    gpus, qos = requested["gpus"], requested["qos"]
    minutes = seconds // 60 + 2
    command = [
        "sbatch",
        "--parsable",
        "--job-name=" + NAME,
        "--account=" + account,
        "--partition=" + requested["partition"],
        "--nodes=1",
        "--ntasks=1",
        "--nodelist=" + requested["node"],
        "--mem=%dM" % MEMORY,
        "--no-requeue",
        "--time=%d" % minutes,
        "--deadline=now+%d" % (seconds + 60 * minutes + 60),
        "--chdir=/",
        "--input=/dev/null",
        "--output=/dev/null",
    ]
    command += ["--gres=gpu:%d" % gpus] if gpus else []
    command += ["--qos=" + qos] if qos else []
    command += ["--reservation=" + reservation] if reservation else []
    return command + ['--wrap=exec /usr/bin/python3 -B -c "$TRAINYARD_PROBE_PROGRAM"']


def is_active(state: str) -> bool:
    """Return whether a job in this state has not ended."""
    return state in _ACTIVE


def has_ended(job: _slurm.Job) -> bool:
    """Return whether the job has said what it had to say, or never will. Its epilog may
    still run.
    """
    return bool(result_of(job["comment"])) or not is_active(job["state"])


def result_of(comment: str) -> Result:
    """Return what the job has stored in its comment, or an empty dictionary."""
    if not comment.startswith(_MARK):
        return {}
    try:
        result = json.loads(
            base64.urlsafe_b64decode(comment[len(_MARK) :].encode("ascii", "replace"))
        )
    except (binascii.Error, ValueError):
        return {}
    return result if isinstance(result, dict) else {}


def _refusal(text: str) -> str:
    """Return the last line that sbatch has printed, without what it begins with."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "no message"
    return re.sub(r"^(sbatch: )?(error: )?(Batch job submission failed: )?", "", lines[-1])


def _is_of_the_node(reason: str) -> bool:
    """Return whether a job waits because of its node."""
    return bool(_THE_NODE.search(reason)) or not _NOT_THE_NODE.search(reason)


def _devices(positions: list[int], listed: object) -> list[int]:
    """Return the device numbers of GPUs that Slurm counts by their position in the host's list.

    Without a list both are the same.
    """
    if not isinstance(listed, list) or not all(isinstance(number, int) for number in listed):
        return positions
    return [listed[position] for position in positions if position < len(listed)]


def _is_device(prefix: str, number: int, found: Sequence[object]) -> bool:
    """Return whether the device node PREFIX<number> is what its path says.

    C(found) has its kind and numbers.
    """
    return tuple(found) == ("c", MAJOR, number) if prefix == DEVICE else found[0] == "c"


def _gpu_problems(requested: Request, result: Result) -> list[str]:
    """What is wrong with the GPUs or NPUs of the job."""
    granted, found = result["gpus"], result["devices"]
    prefix = result.get("device", DEVICE)
    if prefix not in ALL_DEVICES:
        prefix = DEVICE
    if len(granted) != requested["gpus"] or result["visible"] != requested["gpus"]:
        return [
            "it has GPUs %s and sees %d, not %d"
            % (", ".join(map(str, granted)) or "none", result["visible"], requested["gpus"])
        ]
    devices = _devices(granted, result.get("positions"))
    if len(devices) != len(granted):
        return [
            "it has GPUs %s of Slurm, and the list of the host has %d devices"
            % (", ".join(map(str, granted)), len(result["positions"]))
        ]
    problems = []
    expected = _expected_errors(result)
    for number in devices:
        problem = _device_problem(prefix, number, found.get(str(number)), expected)
        if problem:
            problems.append(problem)
    others = [number for number in sorted(found, key=int) if int(number) not in devices]
    opened = [prefix + each for each in others if found[each][3] not in ("EPERM", "EACCES")]
    if requested["contained"] and opened:
        problems.append("it can open GPUs of other jobs: " + ", ".join(opened))
    return problems


def _expected_errors(result: Result) -> tuple[str, ...]:
    """Return the errors with which a job may fail to open its own devices.

    Without a driver, as in tests, a device node cannot be opened: ENXIO, or EPERM for all of them
    on a host that is itself a container.
    """
    if result["driver"]:
        return ()
    is_container = {each[3] for each in result["devices"].values()} == {"EPERM"}
    return ("ENXIO", "EPERM") if is_container else ("ENXIO",)


def _device_problem(
    prefix: str, number: int, found: Sequence[Any] | None, expected: Sequence[str]
) -> str:
    """Return what is wrong with a device of the job, or empty.

    C(found) has kind, major and minor number, and the error of opening it.
    """
    path = "%s%d" % (prefix, number)
    if found is None:
        return "it got %s, which does not exist" % path
    kind, major, minor, error = found
    if not _is_device(prefix, number, (kind, major, minor)):
        right = "c %d:%d" % (MAJOR, number) if prefix == DEVICE else "a character device"
        device = (path, kind, major, minor, right)
        return "it got %s, which is the device %s %d:%d and not %s" % device
    return "it cannot open %s: %s" % (path, error) if error and error not in expected else ""


def _broken_limits(plain: Result) -> list[str]:
    """Return which limits did not hold for a task without GPUs."""
    problems = []
    opened = sorted(path for path, error in plain["devices"].items() if error not in _DENIED)
    if opened:
        problems.append("it can open %s" % ", ".join(opened))
    if isinstance(plain["memory"], int) and plain["memory"] > MAY_HAVE:
        problems.append("it got %d MiB of memory with a limit of 64 MiB" % plain["memory"])
    return problems


def _not_measured(plain: Result, gpus: int) -> list[str]:
    """Return what the task without GPUs could not show."""
    found = []
    # The batch script has the GPUs of the job. If it cannot open them either, something else than
    # Slurm denies it.
    if gpus and plain["devices"] and _DENIED.issuperset(plain["here"]):
        found.append("the job cannot open its own GPU either")
    if not isinstance(plain["memory"], int) and plain["memory"] not in ("killed", "refused"):
        found.append("it could not try to get memory")
    return found + ["the job has no folder in %s" % folder for folder in plain["missing"]]


def isolation(requested: Request, job: _slurm.Job | None, found: str) -> Isolation:
    """Return what a task without GPUs and container says about a node.

    C(found) is the reason if the job has no result.
    """
    plain: Result = (result_of(job["comment"]) if job else {}).get("plain") or {}
    if job is None or "devices" not in plain:
        return {
            "verdict": "not_made",
            "found": (
                "the task without GPUs failed: %s" % plain["failed"] if "failed" in plain else found
            ),
            "of_limits": False,
        }
    limits = _broken_limits(plain)
    name = "a task without GPUs of job %d" % job["id"]
    if limits or plain["folders"]:
        return {
            "verdict": "fail",
            "found": "%s: %s" % (name, "; ".join(limits + plain["folders"])),
            "of_limits": not plain["folders"],
        }
    missing = _not_measured(plain, requested.get("gpus", 0))
    if missing:
        return {
            "verdict": "not_made",
            "found": "%s: %s" % (name, "; ".join(missing)),
            "of_limits": False,
        }
    closed = (
        "%d devices are closed" % len(plain["devices"])
        if plain["devices"]
        else "there is no device of a GPU"
    )
    return {
        "verdict": "pass",
        "found": "%s: %s, and its memory is limited" % (name, closed),
        "of_limits": False,
    }


def _problems(requested: Request, job: _slurm.Job, result: Result, person: Person) -> list[str]:
    """What is wrong with a job that has a result."""
    if "failed" in result:
        return ["its task failed: %s" % result["failed"]]
    problems = []
    node = requested["node"]
    if result["node"] != node or job["nodes"] not in ([], [node]):
        problems.append("it ran on %s" % (result["node"] or ", ".join(job["nodes"])))
    if (result["uid"], result["gid"]) != (person["uid"], person["gid"]):
        problems.append(
            "it ran as user %d and group %d, and %s is %d and %d"
            % (result["uid"], result["gid"], person["name"], person["uid"], person["gid"])
        )
    problems += _gpu_problems(requested, result)
    if result["share"]:
        problems.append("it cannot use the share: %s" % result["share"])
    return problems


def drained_by_slurm(node: _slurm.Node | None) -> str:
    """Return why Slurm itself has taken a node out of service, as it does after a job that it could
    not start, or empty.
    """
    if (
        node is None
        or not set(node["states"]).intersection(("drain", "down", "fail"))
        or _slurm.is_ours(node["reason"])
    ):
        return ""
    return node["reason"]


def outcome(
    requested: Request,
    job: _slurm.Job | None,
    refused: str,
    person: Person,
    seconds: int,
    node: _slurm.Node | None = None,
) -> Outcome:
    """Return what the job of a node says: C(pass), C(fail), or C(not_made) if it says nothing about
    the node, and what was found.

    C(job) is from parse_jobs, or None if there is none; C(refused) is what sbatch said. C(node) is
    the node after the job.
    """
    if requested["problem"]:
        verdict, text = "not_made", requested["problem"]
    elif refused:
        reason = _refusal(refused)
        verdict = "fail" if _THE_NODE.search(reason) else "not_made"
        text = "Slurm refuses the job of %s: %s" % (person["name"], reason)
    elif job is None:
        verdict = "not_made"
        text = (
            "Slurm has forgotten the job of %s before its result was read; raise MinJobAge"
            % person["name"]
        )
    else:
        verdict, text = _outcome_of_job(requested, job, person, seconds)
    if node is not None and verdict == "fail" and drained_by_slurm(node):
        # The state of the job does not tell a failed prolog from a full disk.
        text += "; the node is %s: %s" % (", ".join(node["states"]), drained_by_slurm(node))
    number = job["id"] if job else None
    return {"node": requested["node"], "job": number, "verdict": verdict, "found": text}


def _outcome_of_job(
    requested: Request, job: _slurm.Job, person: Person, seconds: int
) -> tuple[str, str]:
    """Return verdict and what was found of a job that Slurm knows."""
    name = "job %d of %s" % (job["id"], person["name"])
    result = result_of(job["comment"])
    if result:
        problems = _problems(requested, job, result, person)
        if problems:
            return "fail", "%s: %s" % (name, "; ".join(problems))
        return "pass", "%s ran" % name
    if job["state"] in ("pending", "configuring"):
        reason = ": " + job["reason"] if job["reason"] else ""
        verdict = "fail" if _is_of_the_node(job["reason"]) else "not_made"
        return verdict, "%s did not start within %d s%s" % (name, seconds, reason)
    if is_active(job["state"]):
        return "fail", "%s did not end within %d s" % (name, seconds)
    reason = ", " + job["reason"] if job["reason"] else ""
    return "fail", "%s ended without a result: %s%s" % (name, job["state"], reason)
