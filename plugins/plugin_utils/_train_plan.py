# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which hosts a job runs on, with how many ranks, and which GPUs it requests there. Pure functions."""

from __future__ import annotations

import re

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
_HOLD = ["sh", "-c", "echo granted; exec cat"]
# What CUDA takes for no GPU.
_NONE = ("", "-1", "NoDevFiles")


def chosen_npus(environment):
    """Return the NPUs that ASCEND_RT_VISIBLE_DEVICES names, or None where it is not set. ValueError: it is not a list of numbers."""
    if environment.get(NPUS) is None:
        return None
    text = str(environment[NPUS])
    devices = text.split(",")
    if not all(re.fullmatch(r"[0-9]{1,3}", device) for device in devices) or len(
        set(devices)
    ) < len(devices):
        raise ValueError(
            "%s: '%s' is not a list of NPUs; name each number once, with commas between them and no blanks, such as 4,5,6,7"
            % (NPUS, text)
        )
    return devices


def chosen_devices(environment):
    """Return the devices that CUDA_VISIBLE_DEVICES names: None where it is not set, [] where it hides all GPUs. ValueError: CUDA would not take it."""
    if environment.get(DEVICES) is None:
        return None
    text = str(environment[DEVICES])
    if text in _NONE:
        return []
    devices = text.split(",")
    if not all(_DEVICE.fullmatch(device) for device in devices):
        raise ValueError(
            "%s: '%s' is not a list of GPUs; name numbers or UUIDs with commas between them and no blanks, such as 0,1"
            % (DEVICES, text)
        )
    if len(set(devices)) < len(devices):
        raise ValueError(
            "%s: '%s' names a GPU twice, for which CUDA shows none; name each once"
            % (DEVICES, text)
        )
    return devices


def train_plan(members, environment, gpus, launcher="", npus=None):
    """Return C(hosts), the members with the job's slots; C(watch), by host the GPUs that the job requests: their count and, if chosen, C(devices); C(problems).

    Slots that were counted from the GPUs or NPUs follow the chosen devices. Slots of the inventory's own must fit them. C(gpus) and C(npus) are their number by
    host. Only the launcher C(mindspore) uses NPUs.
    """
    try:
        devices = chosen_devices(environment)
        chosen = chosen_npus(environment) if launcher == "mindspore" else None
    except ValueError as error:
        return {"hosts": members, "watch": {}, "problems": [str(error)]}
    if launcher == "mindspore":
        members, problems = _npu_slots(members, chosen, npus or {})
    else:
        problems = []
    hosts, watch = [], {}
    for member in members:
        name, slots, found = member["name"], member["slots"], gpus.get(member["name"], 0)
        if devices and member["slots_counted"] and found:
            slots = min(slots, len(devices))
        hosts.append(dict(member, slots=slots))
        if not slots:
            continue
        watch[name] = {
            "count": min(slots, found) if devices is None else len(devices),
            "devices": devices or [],
        }
        beyond = [
            device
            for device in devices or []
            if found and device.isdigit() and int(device) >= found
        ]
        if devices and slots > len(devices):
            problems.append(
                "%s: '%s' names %s, but host %s has %s; name as many GPUs as there are ranks on a host, or set cluster_slots to %d"
                % (
                    DEVICES,
                    ",".join(devices),
                    quantity(len(devices), "GPU"),
                    name,
                    quantity(slots, "slot"),
                    len(devices),
                )
            )
        elif beyond:
            problems.append(
                "%s: '%s' names GPU %s, but host %s has %d, numbered from 0; name those that it has"
                % (DEVICES, ",".join(devices), ", ".join(beyond), name, found)
            )
    return {"hosts": hosts, "watch": watch, "problems": problems}


def _npu_slots(members, chosen, npus):
    """Return the members with one slot per chosen NPU, and what HCCL and msrun do not accept."""
    hosts, problems = [], []
    for member in members:
        name, slots, found = member["name"], member["slots"], npus.get(member["name"], 0)
        if chosen and member["slots_counted"] and found:
            slots = min(slots, len(chosen))
        hosts.append(dict(member, slots=slots))
        beyond = [device for device in chosen or [] if found and int(device) >= found]
        if slots and chosen and slots != len(chosen):
            problems.append(
                "%s: '%s' names %s, but host %s has %s; name one NPU for each rank, or set cluster_slots to %d"
                % (
                    NPUS,
                    ",".join(chosen),
                    quantity(len(chosen), "NPU"),
                    name,
                    quantity(slots, "slot"),
                    len(chosen),
                )
            )
        elif slots and beyond:
            problems.append(
                "%s: '%s' names NPU %s, but host %s has %d, numbered from 0; name those that it has"
                % (NPUS, ",".join(chosen), ", ".join(beyond), name, found)
            )
    counts = {member["name"]: member["slots"] for member in hosts if member["slots"]}
    if len(set(counts.values())) > 1:
        problems.append(
            "cluster_slots: %s, but the launcher mindspore needs as many ranks on each host; set it to one number for all hosts, or leave out "
            "hosts with --limit"
            % ", ".join("%s on %s" % (count, name) for name, count in counts.items())
        )
    return hosts, problems


def queue_command(hosts, job_id, timeout, options):
    """Return the command that waits in Slurm's queue until the hosts of a job are free of other jobs. Times in seconds.

    It prints C(granted) then, and keeps them until its input ends or Slurm takes them back.
    """
    names = [host["name"] for host in hosts if host["slots"]]
    # The runner itself ends a job at its time limit. Slurm's limit is for a runner that hangs, and lets the queue plan.
    limit = ["--time=%d" % (-(-timeout // 60) + 5)] if timeout else []
    # Without kill-command, a job that was cancelled would run on.
    own = [
        "--account=" + TRAIN_ACCOUNT,
        "--job-name=trainyard-" + job_id,
        "--nodes=%d" % len(names),
        "--nodelist=" + ",".join(names),
        "--exclusive",
        "--kill-command=TERM",
    ]
    return [*_AS_SLURM, "salloc", *own, *limit, *options, *_HOLD]
