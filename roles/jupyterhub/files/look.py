# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ends idle instances by what their person cannot change: the CPU time of their processes, and their GPUs. The health program of the host runs it as root.

The instance ends itself first, after a warning, as it knows about kernels, terminals and browsers. Its process belongs to its person, who can stop or change
it. This has no such knowledge, so it waits twice as long.
"""

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

# Teardown would find the folders of compiled modules.
sys.dont_write_bytecode = True
sys.path.append("/usr/local/lib/trainyard/jobs")
try:
    from ansible_collections.trainyard.gpu.roles.jupyterhub.files import _idle
except ImportError:
    # On hosts it is in the same folder.
    import _idle

CONFIG = "/etc/trainyard/notebook/server.json"
#: Made by the prolog, one for each job. The folder of each belongs to the person of the job.
JOBS = "/run/trainyard/jobs"
STATE = "/run/trainyard/instances.json"
#: It knows which processes belong to a job.
EPILOG = "/usr/local/lib/trainyard/slurm/epilog"
#: In the batch script that the controller keeps, which nobody can change. Its comment can be changed.
BATCH_SCRIPT = re.compile(r"^exec /usr/local/lib/trainyard/notebook/server run ", re.MULTILINE)
GPUS = re.compile(r"\bGRES=\S*?gpu[^(\s]*\(IDX:([0-9,-]+)\)")
#: Part of one CPU from which an instance counts as used. An idle JupyterLab that a browser shows needs less.
IN_USE = 0.05
#: How often longer this waits than the instance itself.
PATIENCE = 2
#: Seconds without a look after which nothing is known of the time between: the host has slept, or Slurm was not running.
GAP = 1200
TOOL_SECONDS = 10


# --- pure functions ---


def numbers_of(text):
    """Return the numbers of a list as Slurm writes it: 0-1,3."""
    found = []
    for part in text.split(","):
        first, _dash, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def gpus_of(shown):
    """Return the GPUs of a job on its host, as texts. C(shown) is the line of C(scontrol show job --details)."""
    found = GPUS.search(shown)
    return [str(number) for number in numbers_of(found.group(1))] if found else []


def cpu_in_use(before, ticks, seconds, ticks_of_second):
    """Return whether processes have used a CPU between two looks. Both have the ticks of each process, by a key that no other process has.

    Without a look before, they count as in use.
    """
    if before is None or seconds <= 0:
        return True
    used = sum(max(0, value - before.get(key, 0)) for key, value in ticks.items())
    return used / ticks_of_second >= IN_USE * seconds


def limits_of(idle):
    """Return the limits of this look from those of instances. There is no warning: the instance has given it."""
    return {"seconds": PATIENCE * idle.get("seconds", 0), "gpu_seconds": PATIENCE * idle.get("gpu_seconds", 0), "warning": 0}


def known(former, now):
    """Return what is known of a job from former looks, nothing after too long a time."""
    return former if former and now - former["looked"] <= GAP else {}


# --- the host ---


def module_of(path):
    """Return a program as a module. It has no .py at its end."""
    loader = importlib.machinery.SourceFileLoader("epilog", path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("epilog", loader))
    loader.exec_module(module)
    return module


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def output(command):
    """Return the output of a command, or None if it failed."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=TOOL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def about(job):
    """Return what stays the same for a job: whether it is an instance, and its GPUs. None if Slurm does not answer."""
    script, shown = output(["scontrol", "write", "batch_script", job, "-"]), output(["scontrol", "show", "job", "--details", "--oneliner", job])
    if shown is None:
        return None
    # A job of srun or salloc has no script.
    return {"is_instance": bool(BATCH_SCRIPT.search(script or "")), "gpus": gpus_of(shown)}


def ticks_of(pids):
    """Return the ticks of processes and of their ended children, with the start of the process in the key."""
    found = {}
    for pid in pids:
        fields = read("/proc/%d/stat" % pid).rpartition(")")[2].split()
        if len(fields) > 19:
            found["%d of %s" % (pid, fields[19])] = sum(map(int, fields[11:15]))
    return found


def processes_of(epilog, job, uid):
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    ranges = epilog.subordinate(name, uid, read("/etc/subuid"))
    return epilog.of_job(epilog.owned(uid, ranges), job, read("/proc/self/cgroup"), False)


def gpus_in_use(devices):
    """Return whether one of the GPUs is busy, as the instance judges it. None if that is not known."""
    if not devices:
        return False
    # Of role jobs, and only here: a host without GPUs has no use for them.
    import _bandwidth
    import _job_watch
    text = output(list(_job_watch.USAGE))
    try:
        usage = [gpu[0] for gpu in _bandwidth.usage(text or "")]
    except _bandwidth.ParseError:
        return None
    busy = _job_watch.seen_gpus(len(devices), devices, usage)["busy"]
    return None if busy is None else busy > 0


def looked(job, former, epilog, limits):
    """Look at one instance. Return what is known of it, and why it has to end, or an empty text."""
    now = time.time()
    record = dict(known(former, now))
    if "is_instance" not in record:
        record.update(about(job) or {})
    if not record.get("is_instance"):
        return dict(record, looked=now), ""
    ticks = ticks_of(processes_of(epilog, job, os.stat("%s/%s" % (JOBS, job)).st_uid))
    found = dict.fromkeys(_idle.SOURCES, False)
    found.update(kernels=cpu_in_use(record.get("ticks"), ticks, now - record.get("looked", now), os.sysconf("SC_CLK_TCK")),
                 gpus=gpus_in_use(record["gpus"]))
    last, began = _idle.looked(record.get("last", {}), found, now), record.get("began", now)
    # Without the time of a warning nothing ends.
    verdict, message = _idle.judge(began, last, now, limits, bool(record["gpus"]), 0)
    record.update(looked=now, ticks=ticks, last=last, began=began)
    return record, message if verdict == "stop" else ""


def main():
    limits = limits_of(json.loads(read(CONFIG) or "{}").get("idle") or {})
    if not limits["seconds"] and not limits["gpu_seconds"]:
        return 0
    try:
        former = json.loads(read(STATE) or "{}")
    except ValueError:
        former = {}
    epilog, records = module_of(EPILOG), {}
    for job in sorted(filter(str.isdigit, os.listdir(JOBS) if os.path.isdir(JOBS) else [])):
        try:
            records[job], reason = looked(job, former.get(job), epilog, limits)
        except FileNotFoundError:
            # It has just ended.
            continue
        if reason:
            syslog.syslog("trainyard: job %s: its own watch has not ended it. %s" % (job, reason))
            output(["scancel", job])
    new = STATE + ".new"
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as stream:
        json.dump(records, stream)
    os.rename(new, STATE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
