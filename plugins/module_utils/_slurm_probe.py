# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Probe jobs on the nodes of Slurm: how they are submitted, and what their results say. Pure functions.

The jobs run files/probe.py of role verify, which stores its result in the comment of the job.
Checks scheduler-job and scheduler-isolation report it.
"""

from __future__ import annotations

import base64
import binascii
import json
import re

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
#: The major number of NVIDIA's. Their minor number is that of the path. The kernel chooses the one of others.
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
# A job waits or is refused for these reasons because of its account, its partition or an administrator, and not because of the node.
_NOT_THE_NODE = re.compile(
    r"Assoc|QOS|Licenses|Invalid(Account|QOS)|Account|Partition|Dependency|BeginTime|JobHeldUser|Reservation$|Priority$|MaxSubmit|"
    r"Invalid (account|qos|partition)|policy|time limit|reservation|Access|User",
    re.IGNORECASE,
)
# The word "User" and others occur in these, too.
_THE_NODE = re.compile(
    r"ReqNodeNotAvail|node configuration|Node count|Requested nodes|launch failed", re.IGNORECASE
)


def constrains_devices(text):
    """Return whether jobs can open only their own GPUs, by the output of C(scontrol show config)."""
    values = dict(re.findall(r"^([A-Za-z]+) *= (.*)$", text, re.MULTILINE))
    return "task/cgroup" in values.get("TaskPlugin", "") and values.get(
        "ConstrainDevices", "no"
    ).strip().lower() in ("yes", "true")


def unavailable(node):
    """Return why a node would start no job, whatever is reserved, or empty."""
    blocking = [state for state in node["states"] if state not in _RESERVED]
    if _slurm.available_for_jobs(blocking):
        return ""
    return "the node is %s%s" % (
        ", ".join(node["states"]),
        ": " + node["reason"] if node["reason"] else "",
    )


def request(node, partitions, account, contained):
    """Return the job for a node: one GPU if it has any, in a partition and with a QOS that the account may use.

    C(contained) says whether the job can see its own GPUs only.
    """
    mine = [partition for partition in partitions if node["name"] in partition["nodes"]]
    usable = [
        partition
        for partition in mine
        if partition["state"] == "up"
        and (partition["allow_accounts"] is None or account in partition["allow_accounts"])
    ]
    found = {
        "node": node["name"],
        "gpus": min(1, sum(entry["total"] for entry in node["gpus"])),
        "contained": contained,
        "partition": "",
        "qos": "",
        "problem": "",
    }
    if not usable:
        found["problem"] = (
            "account %s may not use its partitions (%s)"
            % (account, ", ".join("%s: %s" % (each["name"], each["state"]) for each in mine))
            if mine
            else "the node is in no partition"
        )
        return found
    qos = usable[0]["allow_qos"]
    return dict(
        found, partition=usable[0]["name"], qos="" if qos is None or "normal" in qos else qos[0]
    )


def submission(asked, account, reservation, seconds):
    """Return the command that submits the job. It ends by itself, and it is removed from the queue by itself, if nobody cancels it."""
    minutes = seconds // 60 + 2
    command = [
        "sbatch",
        "--parsable",
        "--job-name=" + NAME,
        "--account=" + account,
        "--partition=" + asked["partition"],
        "--nodes=1",
        "--ntasks=1",
        "--nodelist=" + asked["node"],
        "--mem=%dM" % MEMORY,
        "--no-requeue",
        "--time=%d" % minutes,
        "--deadline=now+%d" % (seconds + 60 * minutes + 60),
        "--chdir=/",
        "--input=/dev/null",
        "--output=/dev/null",
    ]
    command += ["--gres=gpu:%d" % asked["gpus"]] if asked["gpus"] else []
    command += ["--qos=" + asked["qos"]] if asked["qos"] else []
    command += ["--reservation=" + reservation] if reservation else []
    return command + ['--wrap=exec /usr/bin/python3 -B -c "$TRAINYARD_PROBE_PROGRAM"']


def is_active(state):
    return state in _ACTIVE


def has_ended(job):
    """Return whether the job has said what it had to say, or never will. Its epilog may still run."""
    return bool(result_of(job["comment"])) or not is_active(job["state"])


def result_of(comment):
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


def _refusal(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (
        re.sub(r"^(sbatch: )?(error: )?(Batch job submission failed: )?", "", lines[-1])
        if lines
        else "no message"
    )


def _is_of_the_node(reason):
    return bool(_THE_NODE.search(reason)) or not _NOT_THE_NODE.search(reason)


def _devices(positions, listed):
    """Return the device numbers of GPUs that Slurm counts by their position in the host's list. Without a list both are the same."""
    if not isinstance(listed, list) or not all(isinstance(number, int) for number in listed):
        return positions
    return [listed[position] for position in positions if position < len(listed)]


def _is_device(prefix, number, found):
    """Return whether the device node PREFIX<number> is what its path says. C(found) has its kind and numbers."""
    return tuple(found) == ("c", MAJOR, number) if prefix == DEVICE else found[0] == "c"


def _gpu_problems(asked, result):
    """What is wrong with the GPUs or NPUs of the job."""
    granted, seen = result["gpus"], result["devices"]
    prefix = result.get("device") if result.get("device") in ALL_DEVICES else DEVICE
    if len(granted) != asked["gpus"] or result["visible"] != asked["gpus"]:
        return [
            "it has GPUs %s and sees %d, not %d"
            % (", ".join(map(str, granted)) or "none", result["visible"], asked["gpus"])
        ]
    devices = _devices(granted, result.get("positions"))
    if len(devices) != len(granted):
        return [
            "it has GPUs %s of Slurm, and the list of the host has %d devices"
            % (", ".join(map(str, granted)), len(result["positions"]))
        ]
    # Without a driver, as in tests, a device node cannot be opened: ENXIO, or EPERM for all of them on a host that is itself a container.
    expected = (
        ()
        if result["driver"]
        else ("ENXIO", "EPERM")
        if {each[3] for each in seen.values()} == {"EPERM"}
        else ("ENXIO",)
    )
    problems = []
    for number in devices:
        path = "%s%d" % (prefix, number)
        if str(number) not in seen:
            problems.append("it got %s, which does not exist" % path)
            continue
        kind, major, minor, error = seen[str(number)]
        if not _is_device(prefix, number, (kind, major, minor)):
            wanted = "c %d:%d" % (MAJOR, number) if prefix == DEVICE else "a character device"
            problems.append(
                "it got %s, which is the device %s %d:%d and not %s"
                % (path, kind, major, minor, wanted)
            )
        elif error and error not in expected:
            problems.append("it cannot open %s: %s" % (path, error))
    if asked["contained"]:
        others = [
            prefix + number
            for number in sorted(seen, key=int)
            if int(number) not in devices and seen[number][3] not in ("EPERM", "EACCES")
        ]
        if others:
            problems.append("it can open GPUs of other jobs: " + ", ".join(others))
    return problems


def _broken_limits(plain: dict) -> list[str]:
    """Return which limits did not hold for a task without GPUs."""
    problems = []
    opened = sorted(path for path, error in plain["devices"].items() if error not in _DENIED)
    if opened:
        problems.append("it can open %s" % ", ".join(opened))
    if isinstance(plain["memory"], int) and plain["memory"] > MAY_HAVE:
        problems.append("it got %d MiB of memory with a limit of 64 MiB" % plain["memory"])
    return problems


def _not_measured(plain: dict, gpus: int) -> list[str]:
    """Return what the task without GPUs could not show."""
    found = []
    # The batch script has the GPUs of the job. If it cannot open them either, something else than
    # Slurm denies it.
    if gpus and plain["devices"] and _DENIED.issuperset(plain["here"]):
        found.append("the job cannot open its own GPU either")
    if not isinstance(plain["memory"], int) and plain["memory"] not in ("killed", "refused"):
        found.append("it could not try to get memory")
    return found + ["the job has no folder in %s" % folder for folder in plain["missing"]]


def isolation(asked: dict, job: dict | None, found: str) -> dict:
    """Return what a task without GPUs and container says about a node.

    C(verdict) is C(pass), C(fail) or C(not_made), and C(found) what was found. C(of_limits) says
    whether only limits failed, which a host without control groups cannot have. The argument
    C(found) is the reason if the job has no result.
    """
    plain = (result_of(job["comment"]) if job else {}).get("plain") or {}
    if "devices" not in plain:
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
    missing = _not_measured(plain, asked.get("gpus", 0))
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


def _problems(asked, job, result, person):
    """What is wrong with a job that has a result."""
    if "failed" in result:
        return ["its task failed: %s" % result["failed"]]
    problems = []
    if result["node"] != asked["node"] or job["nodes"] not in ([], [asked["node"]]):
        problems.append("it ran on %s" % (result["node"] or ", ".join(job["nodes"])))
    if (result["uid"], result["gid"]) != (person["uid"], person["gid"]):
        problems.append(
            "it ran as user %d and group %d, and %s is %d and %d"
            % (result["uid"], result["gid"], person["name"], person["uid"], person["gid"])
        )
    problems += _gpu_problems(asked, result)
    if result["share"]:
        problems.append("it cannot use the share: %s" % result["share"])
    return problems


def drained_by_slurm(node):
    """Return why Slurm itself has taken a node out of service, as it does after a job that it could not start, or empty."""
    if (
        node is None
        or not set(node["states"]).intersection(("drain", "down", "fail"))
        or _slurm.is_ours(node["reason"])
    ):
        return ""
    return node["reason"]


def outcome(asked, job, refused, person, seconds, node=None):
    """Return what the job of a node says: C(pass), C(fail), or C(not_made) if it says nothing about the node, and what was found.

    C(job) is from parse_jobs, or None if there is none; C(refused) is what sbatch said. C(node) is the node after the job.
    """
    found = _outcome(asked, job, refused, person, seconds)
    # The state of the job does not tell a failed prolog from a full disk.
    reason = drained_by_slurm(node) if found["verdict"] == "fail" else ""
    return (
        dict(
            found,
            found="%s; the node is %s: %s" % (found["found"], ", ".join(node["states"]), reason),
        )
        if reason
        else found
    )


def _outcome(asked, job, refused, person, seconds):
    found = {"node": asked["node"], "job": job["id"] if job else None}
    if asked["problem"]:
        return dict(found, verdict="not_made", found=asked["problem"])
    if refused:
        reason = _refusal(refused)
        return dict(
            found,
            verdict="fail" if _THE_NODE.search(reason) else "not_made",
            found="Slurm refuses the job of %s: %s" % (person["name"], reason),
        )
    if job is None:
        return dict(
            found,
            verdict="not_made",
            found="Slurm has forgotten the job of %s before its result was read; raise MinJobAge"
            % person["name"],
        )
    name = "job %d of %s" % (job["id"], person["name"])
    result = result_of(job["comment"])
    if result:
        problems = _problems(asked, job, result, person)
        return dict(
            found,
            verdict="fail" if problems else "pass",
            found="%s: %s" % (name, "; ".join(problems)) if problems else "%s ran" % name,
        )
    if job["state"] in ("pending", "configuring"):
        return dict(
            found,
            verdict="fail" if _is_of_the_node(job["reason"]) else "not_made",
            found="%s did not start within %d s%s"
            % (name, seconds, ": " + job["reason"] if job["reason"] else ""),
        )
    if is_active(job["state"]):
        return dict(found, verdict="fail", found="%s did not end within %d s" % (name, seconds))
    return dict(
        found,
        verdict="fail",
        found="%s ended without a result: %s%s"
        % (name, job["state"], ", " + job["reason"] if job["reason"] else ""),
    )
