# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which processes use the GPUs of a host and belong to no job: by their open device files, as
nvidia-smi may take seconds.
"""

from __future__ import annotations

import os
import pwd
import re
import time

try:
    from ansible_collections.trainyard.gpu.plugins.module_utils._files import read_bytes
except ImportError:
    # On a host, prolog and health program have the folder of shared modules.
    from _files import read_bytes

PROC = "/proc"
#: A job starts later by so much at most. A host with so many processes is looked at again by the
#: health program.
SECONDS = 0.05
#: Somebody's nvidia-smi opens all GPUs for a moment.
PAUSE = 2.0
#: They open all GPUs on purpose, and compute nothing: the driver's own services, DCGM, role
#: monitoring_host, and Slurm itself.
SERVICES = re.compile(
    r"/(nvidia-persistenced|nvidia-fabricmanager|nvidia-dcgm|nvidia-dcgm-exporter|dcgm|dcgm-exporter"
    r"|nv-hostengine|nvidia-powerd|trainyard-metrics-gpu|slurmd)\.service(/|$)",
    re.MULTILINE,
)
STEPS = re.compile(r"/job_([0-9]+)(?:/|$)", re.MULTILINE)
CONTAINER = re.compile(r"(?:docker|libpod|cri-containerd)[-/]([0-9a-f]{12})[0-9a-f]{52}")


def opened(pid: str, head: str, proc: str) -> set[int]:
    """Return the device numbers that a process has open.

    Empty for one that has ended, or that may not be read.
    """
    folder = "%s/%s/fd" % (proc, pid)
    found = set()
    try:
        names = os.listdir(folder)
    except OSError:
        return found
    for name in names:
        try:
            target = os.readlink(folder + "/" + name)
        except OSError:
            continue
        if target.startswith(head) and target[len(head) :].isdigit():
            found.add(int(target[len(head) :]))
    return found


def jobs_of(pid: str, proc: str) -> set[str]:
    """Return the jobs that a process belongs to: by its control group, and by its environment where
    Slurm makes no groups.
    """
    groups = read_bytes("%s/%s/cgroup" % (proc, pid)).decode(errors="replace")
    found = set(STEPS.findall(groups))
    for entry in read_bytes("%s/%s/environ" % (proc, pid)).split(b"\0"):
        name, _equals, value = entry.partition(b"=")
        if name == b"SLURM_JOB_ID" and value.isdigit() and not found:
            found.add(value.decode())
    return found


def strangers(
    devices: list, pattern: str, living: set, proc: str = PROC, seconds: float = SECONDS
) -> dict:
    """Return the processes that have one of the devices open and belong to no living job: {pid:
    device number}.

    C(pattern) is the path of a device file with C(%d), and C(living) the jobs of this host, also
    the one that begins. The newest processes are looked at first, until the time is over.
    """
    head, watched = pattern.replace("%d", ""), set(devices)
    end = time.monotonic() + seconds
    pids = sorted((name for name in os.listdir(proc) if name.isdigit()), key=int, reverse=True)
    found = {}
    for pid in pids:
        if time.monotonic() > end:
            break
        numbers = opened(pid, head, proc) & watched
        if not numbers or int(pid) == os.getpid():
            continue
        groups = read_bytes("%s/%s/cgroup" % (proc, pid)).decode(errors="replace")
        if not SERVICES.search(groups) and not jobs_of(pid, proc) & living:
            found[int(pid)] = min(numbers)
    return found


def lasting(
    devices: list, pattern: str, living: set, proc: str = PROC, pause: float = PAUSE
) -> dict:
    """Return the strangers that are still there after a while. Without strangers it does
    not wait.
    """
    found = strangers(devices, pattern, living, proc)
    if not found:
        return {}
    time.sleep(pause)
    again = strangers(devices, pattern, living, proc)
    return {pid: device for pid, device in again.items() if pid in found}


def message(found: dict, proc: str = PROC) -> str:
    """Return the strangers for Slurm's tables, without the names of people."""
    return ", ".join(
        "GPU %d is used by process %d (%s) of no job" % (device, pid, name_of(pid, proc))
        for pid, device in sorted(found.items())[:2]
    )


def told_operator(found: dict, proc: str = PROC) -> str:
    """Return the strangers for the log of the operator: with owner and container."""
    parts = []
    for pid, device in sorted(found.items())[:8]:
        groups = read_bytes("%s/%d/cgroup" % (proc, pid)).decode(errors="replace")
        container = CONTAINER.search(groups)
        parts.append(
            "GPU %d: process %d (%s) of %s%s"
            % (
                device,
                pid,
                name_of(pid, proc),
                owner_of(pid, proc),
                " in container %s" % container.group(1) if container else "",
            )
        )
    return "; ".join(parts)


def name_of(pid: int, proc: str) -> str:
    text = read_bytes("%s/%d/comm" % (proc, pid)).decode(errors="replace").strip()
    strange = {letter for letter in text if not letter.isprintable()}
    return text.translate({ord(letter): "?" for letter in strange}) or "?"


def owner_of(pid: int, proc: str) -> str:
    try:
        uid = os.stat("%s/%d" % (proc, pid)).st_uid
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return "user %d" % uid
    except OSError:
        return "a user who is gone"
