# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which hosts a job runs on, with how many ranks, and which GPUs it requests there. Pure
functions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._quantity import quantity
from ansible_collections.trainyard.gpu.plugins.module_utils._slurm import SLURM_USER, TRAIN_ACCOUNT

DEVICES, NPUS = "CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"
# Numbers, and names as `nvidia-smi -L` prints them.
_DEVICE = re.compile(r"\d+|GPU-[0-9A-Fa-f-]+|MIG-[0-9A-Za-z/-]+")
# Slurm refuses jobs of root.
_AS_SLURM = [
    "setpriv",
    "--reuid=" + SLURM_USER,
    "--regid=" + SLURM_USER,
    "--init-groups",
    "--reset-env",
]
# A line ends it at once. Without one its runner was killed, and systemd's SIGTERM is on its way to
# salloc, which handles that signal with a message to slurmctld (Slurm 22.05 to 25.11). If it comes
# while salloc sends the same message because its command has ended, salloc waits for a lock of its
# own and keeps the hosts for ever. So the command waits until the signal has come.
_HOLD = ["sh", "-c", "trap '' TERM; echo granted; read -r line || exec sleep 2"]
# What CUDA takes for no GPU.
_NONE = ("", "-1", "NoDevFiles")


class Watch(TypedDict):
    """The GPUs that a job requests on a host: their C(count) and, if chosen, C(devices)."""

    count: int
    devices: list[str]


class TrainPlan(TypedDict):
    """C(hosts) are the members with the job's slots, C(watch) has the GPUs by host."""

    hosts: list[dict[str, Any]]
    watch: dict[str, Watch]
    problems: list[str]


class _Choice(NamedTuple):
    """How the environment of a job chooses devices of one kind: the variable, and what to do if it
    does not fit the ranks.
    """

    variable: str
    kind: str
    advice: str


_GPUS = _Choice(DEVICES, "GPU", "name as many GPUs as there are ranks on a host")
_NPUS = _Choice(NPUS, "NPU", "name one NPU for each rank")


def chosen_npus(environment: Mapping[str, Any]) -> list[str] | None:
    """Return the NPUs that ASCEND_RT_VISIBLE_DEVICES names, or None where it is not set.

    ValueError: it is not a list of numbers.
    """
    if environment.get(NPUS) is None:
        return None
    text = str(environment[NPUS])
    devices = text.split(",")
    if not all(re.fullmatch(r"[0-9]{1,3}", device) for device in devices) or len(
        set(devices)
    ) < len(devices):
        raise ValueError(
            (
                "%s: '%s' is not a list of NPUs; name each number once, with commas between them "
                "and no blanks, such as 4,5,6,7"
            )
            % (NPUS, text)
        )
    return devices


def chosen_devices(environment: Mapping[str, Any]) -> list[str] | None:
    """Return the devices that CUDA_VISIBLE_DEVICES names: None where it is not set, [] where it
    hides all GPUs. ValueError: CUDA would not take it.
    """
    if environment.get(DEVICES) is None:
        return None
    text = str(environment[DEVICES])
    if text in _NONE:
        return []
    devices = text.split(",")
    if not all(_DEVICE.fullmatch(device) for device in devices):
        raise ValueError(
            (
                "%s: '%s' is not a list of GPUs; name numbers or UUIDs with commas between them "
                "and no blanks, such as 0,1"
            )
            % (DEVICES, text)
        )
    if len(set(devices)) < len(devices):
        raise ValueError(
            "%s: '%s' names a GPU twice, for which CUDA shows none; name each once"
            % (DEVICES, text)
        )
    return devices


class Found(TypedDict):
    """The hosts of the job in the order of their ranks, as module cluster_members returns them, and
    how many GPUs and NPUs each has, by inventory name. A host that did not say lacks or has 0.
    """

    members: list[dict[str, Any]]
    gpus: Mapping[str, int]
    npus: Mapping[str, int]


class Requested(TypedDict):
    """The variables of the job's environment, and its launcher."""

    environment: Mapping[str, Any]
    launcher: str


def train_plan(found: Found, requested: Requested) -> TrainPlan:
    """Return which hosts a job runs on, and which GPUs it requests there.

    Slots that were counted from the GPUs or NPUs follow the chosen devices. Slots of the
    inventory's own must fit them. Only the launcher C(mindspore) uses NPUs.

    Returns C(hosts), the members with their C(slots), C(watch), C(count) and C(devices) of GPUs by
    host, and C(problems), sentences.
    """
    members, gpus, npus = found["members"], found["gpus"], found["npus"]
    environment = requested["environment"]
    uses_npus = requested["launcher"] == "mindspore"
    try:
        devices = chosen_devices(environment)
        its_npus = chosen_npus(environment) if uses_npus else None
    except ValueError as error:
        return {"hosts": members, "watch": {}, "problems": [str(error)]}
    problems: list[str] = []
    if uses_npus:
        members, problems = _npu_slots(members, its_npus or [], npus)
    hosts: list[dict[str, Any]] = []
    watch: dict[str, Watch] = {}
    for member in members:
        name, count = member["name"], gpus.get(member["name"], 0)
        slots = _slots(member, devices or [], count)
        hosts.append(dict(member, slots=slots))
        if not slots:
            continue
        watch[name] = {
            "count": min(slots, count) if devices is None else len(devices),
            "devices": devices or [],
        }
        if devices and slots > len(devices):
            problems.append(_does_not_fit(_GPUS, devices, name, slots))
        else:
            problems += _beyond(_GPUS, devices or [], name, count)
    return {"hosts": hosts, "watch": watch, "problems": problems}


def _slots(member: Mapping[str, Any], chosen: Sequence[str], found: int) -> int:
    """Return the slots of a member.

    C(found) is the number of its devices, 0 if it has none or did not say.
    """
    slots: int = member["slots"]
    if chosen and member["slots_counted"] and found:
        return min(slots, len(chosen))
    return slots


def _does_not_fit(choice: _Choice, chosen: list[str], name: str, slots: int) -> str:
    return "%s: '%s' names %s, but host %s has %s; %s, or set cluster_slots to %d" % (
        choice.variable,
        ",".join(chosen),
        quantity(len(chosen), choice.kind),
        name,
        quantity(slots, "slot"),
        choice.advice,
        len(chosen),
    )


def _beyond(choice: _Choice, chosen: list[str], name: str, found: int) -> list[str]:
    """Return which of the chosen numbers a host with C(found) devices does not have, if it said how
    many it has.
    """
    beyond = [device for device in chosen if found and device.isdigit() and int(device) >= found]
    if not beyond:
        return []
    return [
        "%s: '%s' names %s %s, but host %s has %d, numbered from 0; name those that it has"
        % (choice.variable, ",".join(chosen), choice.kind, ", ".join(beyond), name, found)
    ]


def _npu_slots(
    members: list[dict[str, Any]], chosen: list[str], npus: Mapping[str, int]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the members with one slot per chosen NPU, and what HCCL and msrun do not accept."""
    hosts: list[dict[str, Any]] = []
    problems: list[str] = []
    for member in members:
        name, found = member["name"], npus.get(member["name"], 0)
        slots = _slots(member, chosen, found)
        hosts.append(dict(member, slots=slots))
        if slots and chosen and slots != len(chosen):
            problems.append(_does_not_fit(_NPUS, chosen, name, slots))
        elif slots:
            problems += _beyond(_NPUS, chosen, name, found)
    counts = {member["name"]: member["slots"] for member in hosts if member["slots"]}
    if len(set(counts.values())) > 1:
        problems.append(
            "cluster_slots: %s, but the launcher mindspore needs as many ranks on each host; "
            "set it to one number for all hosts, or leave out "
            "hosts with --limit"
            % ", ".join("%s on %s" % (count, name) for name, count in counts.items())
        )
    return hosts, problems


def queue_command(
    hosts: list[dict[str, Any]], job_id: str, timeout: int, options: list[str]
) -> list[str]:
    """Return the command that waits in Slurm's queue until the hosts of a job are free of other
    jobs. Times in seconds.

    It prints C(granted) then, and keeps them until it reads a line, its input ends, or Slurm takes
    them back.
    """
    names = [host["name"] for host in hosts if host["slots"]]
    # The runner itself ends a job at its time limit. Slurm's limit is for a runner that hangs, and
    # lets the queue plan.
    limit = ["--time=%d" % (-(-timeout // 60) + 5)] if timeout else []
    # Without kill-command, a job that was cancelled would run on. It is USR1, as the command
    # ignores TERM.
    own = [
        "--account=" + TRAIN_ACCOUNT,
        "--job-name=trainyard-" + job_id,
        "--nodes=%d" % len(names),
        "--nodelist=" + ",".join(names),
        "--exclusive",
        "--kill-command=USR1",
    ]
    return [*_AS_SLURM, "salloc", *own, *limit, *options, *_HOLD]
