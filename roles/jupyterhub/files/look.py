# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ends idle instances by the CPU time of their processes and the use of their GPUs.

The health program of the host runs it as root. An instance ends itself first, after a warning, as
it knows about kernels, terminals and browsers. That process belongs to the person of the instance,
who can stop or change it. This program knows less, so it waits twice as long.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import pwd
import re
import subprocess
import sys
import syslog
import time
import types

# Teardown would find the folders of compiled modules.
sys.dont_write_bytecode = True
sys.path.insert(0, "/usr/local/lib/trainyard/shared")
import _files
import _idle
from _gpu_numbers import DeviceError, devices_of, indexes, numbers_of, read_host

CONFIG = "/etc/trainyard/notebook/server.json"
#: Of role job_container: which GPU of Slurm is which device.
OF_DEVICES = "/etc/trainyard/job/config.json"
#: The prolog creates a folder here for each job. It belongs to the person of the job.
JOBS = "/run/trainyard/jobs"
STATE = "/run/trainyard/instances.json"
#: Its functions find the processes of a job.
EPILOG = "/usr/local/lib/trainyard/slurm/epilog"
#: In the batch script that the controller keeps. A person can change the comment of a job only.
BATCH_SCRIPT = re.compile(r"^exec /usr/local/lib/trainyard/notebook/server run ", re.MULTILINE)
#: What C(scontrol show job --details) writes of each host of a job, and of the GPUs there.
DETAIL = re.compile(r" Nodes=\S+ CPU_IDs=\S+ Mem=[0-9]+ GRES=(\S*)")
GPUS = re.compile(r"gpu[^(\s]*\(IDX:([0-9,-]+)\)")
#: Part of one CPU from which an instance counts as used. An idle JupyterLab needs less.
IN_USE = 0.05
#: How often longer this program waits than the instance itself.
PATIENCE = 2
#: Seconds after which a former look does not count: the host has slept, or Slurm did not run.
GAP = 1200
#: Seconds for one tool, and after which no other job is looked at. The health program has a limit.
TOOL_SECONDS, ALL_SECONDS = 4, 8


# --- pure functions -------------------------------------------------------------------------------


def gpus_of(shown: str, name: str) -> list[str]:
    """Return the GPUs of a job from the line of C(scontrol show job --details --oneliner).

    The person chooses the name of the job, which comes first in the line, and the working directory
    and the comment, which come after the GPUs. Each can have the words of this line.
    """
    _number, mark, rest = shown.partition(" JobName=%s UserId=" % name)
    if not mark:
        raise ValueError("the name of the job is not '%.80s'" % name)
    detail = DETAIL.search(rest)
    found = GPUS.search(detail.group(1)) if detail else None
    return [str(number) for number in numbers_of(found.group(1))] if found else []


def cpu_in_use(before: dict[str, int] | None, ticks: dict[str, int], available: float) -> bool:
    """Return whether processes have used a CPU between two looks. Without a former look they have.

    :param before: ticks of each process at the former look, by a key that no other process has.
    :param available: ticks of one CPU between the looks.
    """
    if before is None or available <= 0:
        return True
    used = sum(max(0, value - before.get(key, 0)) for key, value in ticks.items())
    return used >= IN_USE * available


def limits_of(idle: dict) -> dict:
    """Return the limits of this program from those of instances. The instance has warned."""
    return {
        "seconds": PATIENCE * idle.get("seconds", 0),
        "gpu_seconds": PATIENCE * idle.get("gpu_seconds", 0),
        "warning": 0,
    }


def one_line(error: Exception) -> str:
    """Return an exception as a part of a line of the log."""
    return ascii("%s: %s" % (type(error).__name__, error))[1:-1][:300]


def known(former: dict | None, now: float) -> dict:
    """Return what is known of a job from former looks, nothing after a long time."""
    return former if former and now - former["looked"] <= GAP else {}


# --- the host -------------------------------------------------------------------------------------


def module_of(path: str) -> types.ModuleType:
    """Return a program as a module. Its name has no .py at the end."""
    loader = importlib.machinery.SourceFileLoader("epilog", path)
    # Its modules are beside it.
    sys.path.append(os.path.dirname(path))
    spec = importlib.util.spec_from_loader("epilog", loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def output(command: list[str]) -> str | None:
    """Return the output of a command, or None if it failed."""
    quiet = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, timeout=TOOL_SECONDS, check=False, **quiet
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def about(job: str) -> dict:
    """Return what stays the same for a job: whether it is an instance, and its GPUs.

    The result is empty if Slurm does not answer.
    """
    shown = output(["scontrol", "show", "job", "--details", "--oneliner", job])
    if shown is None:
        return {}
    # A job of srun or salloc has no script.
    script = output(["scontrol", "write", "batch_script", job, "-"]) or ""
    if not BATCH_SCRIPT.search(script):
        return {"is_instance": False}
    name = output(["squeue", "--noheader", "--jobs=" + job, "--format=%j"])
    if name is None:
        return {}
    return {"is_instance": True, "gpus": gpus_of(shown, name[:-1])}


def ticks_of(pids: set[int]) -> dict[str, int]:
    """Return the ticks of processes and their ended children, by process ID and start."""
    found = {}
    for pid in pids:
        fields = _files.read("/proc/%d/stat" % pid).rpartition(")")[2].split()
        if len(fields) > 19:
            found["%d of %s" % (pid, fields[19])] = sum(map(int, fields[11:15]))
    return found


def processes_of(epilog: types.ModuleType, job: str) -> set[int]:
    uid = os.stat("%s/%s" % (JOBS, job)).st_uid
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    ranges = epilog.ranges_of(name, uid)
    return epilog.of_job(epilog.owned(uid, ranges), job, _files.read("/proc/self/cgroup"), False)


def gpus_in_use(positions: list[str]) -> bool | None:
    """Return whether one of the GPUs is busy, as the instance judges it. None if unknown.

    :param positions: their numbers in Slurm's list of this host.
    """
    if not positions:
        return False
    kinds = (_files.read_json(OF_DEVICES) or {}).get("gpus") or {}
    host = read_host(kinds)
    try:
        devices = devices_of([int(position) for position in positions], kinds, host)
    except DeviceError:
        return None
    numbers = [str(index) for index in indexes(devices, kinds, host)]
    # Of role jobs. A host without GPUs does not need them.
    import _bandwidth
    import _job_watch

    text = output(list(_job_watch.USAGE)) or ""
    try:
        usage = [gpu[0] for gpu in _bandwidth.usage(text)]
    except _bandwidth.ParseError:
        return None
    busy = _job_watch.seen_gpus(len(numbers), numbers, usage)["busy"]
    return None if busy is None else busy > 0


def looked(
    job: str, former: dict | None, epilog: types.ModuleType, limits: dict
) -> tuple[dict, str]:
    """Look at one job. Return what is known of it, and why it has to end, or an empty text."""
    now = time.time()
    record = dict(known(former, now))
    if "is_instance" not in record:
        record.update(about(job))
    if not record.get("is_instance"):
        return dict(record, looked=now), ""
    ticks = ticks_of(processes_of(epilog, job))
    available = (now - record.get("looked", now)) * os.sysconf("SC_CLK_TCK")
    found = dict.fromkeys(_idle.SOURCES, False)
    found["kernels"] = cpu_in_use(record.get("ticks"), ticks, available)
    found["gpus"] = gpus_in_use(record["gpus"])
    last, began = _idle.looked(record.get("last", {}), found, now), record.get("began", now)
    # Nothing ends without the time of a warning.
    verdict, message = _idle.judge(began, last, now, limits, bool(record["gpus"]), 0)
    record.update(looked=now, ticks=ticks, last=last, began=began)
    return record, message if verdict == "stop" else ""


def former_looks() -> dict:
    try:
        return json.loads(_files.read(STATE) or "{}")
    except ValueError:
        return {}


def jobs() -> list[str]:
    try:
        return sorted(filter(str.isdigit, os.listdir(JOBS)))
    except OSError:
        return []


def save(records: dict) -> None:
    new = STATE + ".new"
    number = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(number, "w", encoding="utf-8") as stream:
        json.dump(records, stream)
    os.rename(new, STATE)


def main() -> int:
    limits = limits_of(json.loads(_files.read(CONFIG) or "{}").get("idle") or {})
    if not limits["seconds"] and not limits["gpu_seconds"]:
        return 0
    epilog, former, records = module_of(EPILOG), former_looks(), {}
    deadline = time.monotonic() + ALL_SECONDS
    for job in jobs():
        if time.monotonic() > deadline:
            records[job] = former.get(job) or {"looked": 0}
            continue
        try:
            records[job], reason = looked(job, former.get(job), epilog, limits)
        except FileNotFoundError:
            # The job has just ended.
            continue
        # Whatever one person has done with a job, instances of others end.
        except Exception as error:
            syslog.syslog("trainyard: job %s cannot be judged. %s" % (job, one_line(error)))
            records[job] = former.get(job) or {"looked": 0}
            continue
        if reason:
            syslog.syslog("trainyard: job %s did not end itself. %s" % (job, reason))
            output(["scancel", job])
    save(records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
