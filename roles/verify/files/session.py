# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a job finds in its session in the training container, as one line of JSON: share, limits,
environment, Python, and processes that are left.

Module host_health_info runs it through the port for jobs, with `python3 -I`, so that it does not
import what the session would. Python 3.6, for old images. Values of variables may be secrets, so
only a digest leaves the container, and the text of a few that decide what a program loads.
"""

import hashlib
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import uuid

MARK = "trainyard-session "
SECONDS = 5
#: Variables that decide which program or library is loaded. None of them is made for secrets.
SHOWN = re.compile(
    r"(PATH|PYTHON(PATH|HOME|STARTUP|USERBASE|NOUSERSITE|SAFEPATH)|LD_(LIBRARY_PATH|PRELOAD|AUDIT)|BASH_ENV|ENV|VIRTUAL_ENV|CONDA_PREFIX)$"
)
#: Files that change what programs load or how ranks connect, like variables. Neither sshd nor an
#: image has to have them.
CONFIGURED = (
    "/etc/ld.so.preload",
    "/etc/nccl.conf",
    "~/.nccl.conf",
    "~/.openmpi/mca-params.conf",
    "/etc/openmpi/openmpi-mca-params.conf",
    "/etc/ucx/ucx.conf",
    "~/.ssh/rc",
    "/etc/ssh/sshrc",
)
PROGRAMS = ("python3", "torchrun", "horovodrun", "mpirun", "nvidia-smi")
LIMITS = {
    "as": resource.RLIMIT_AS,
    "core": resource.RLIMIT_CORE,
    "cpu": resource.RLIMIT_CPU,
    "data": resource.RLIMIT_DATA,
    "fsize": resource.RLIMIT_FSIZE,
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
    "stack": resource.RLIMIT_STACK,
}
#: Titles of /proc/PID/limits.
TITLES = {
    "Max address space": "as",
    "Max core file size": "core",
    "Max cpu time": "cpu",
    "Max data size": "data",
    "Max file size": "fsize",
    "Max open files": "nofile",
    "Max processes": "nproc",
    "Max stack size": "stack",
}
#: Control groups of version 2 and 1: file and the number that means no limit.
BOUNDLESS = 1 << 60
SUPERVISOR = "/etc/trainyard/services/supervisor.py"
#: A process without a job counts if it has used that share of a CPU over that many seconds.
BUSY, OLD = 0.25, 60
MOST = 50
IMPORTED = re.compile(r"([A-Za-z_]\w*)(\.py|\.pyc|\.so|\.[^.]+\.so)$")


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def share_of(folder: str) -> dict:
    """Write, read and remove a file in the shared folder.

    Return the folder's device and inode, and the error, empty if it works.
    """
    found = {"device": None, "inode": None, "error": ""}
    path = os.path.join(folder, ".trainyard-session-%s" % uuid.uuid4().hex)
    try:
        status = os.stat(folder)
        found.update(device=status.st_dev, inode=status.st_ino)
        with open(path, "x", encoding="ascii") as stream:
            stream.write(path)
            stream.flush()
            os.fsync(stream.fileno())
        try:
            found["error"] = "" if read(path) == path else "a file that was written reads otherwise"
        finally:
            os.unlink(path)
    except OSError as error:
        found["error"] = error.strerror or str(error)
    return found


def number(value: int):
    return None if value == resource.RLIM_INFINITY else value


def limit_of(word: str):
    """A limit in /proc/PID/limits as a number. None if it has none."""
    return int(word) if word.isdigit() else None


def limits_of_first() -> dict:
    """Limits of the container's first process."""
    found = {}
    for line in read("/proc/1/limits").splitlines():
        for title, name in TITLES.items():
            if line.startswith(title + " "):
                words = line[len(title) :].split()[:2]
                found[name] = [limit_of(word) for word in words]
    return found


def group_file(name: str, version_1: str) -> str:
    """The text of a file of this container's control group, in version 2 or 1, empty without it."""
    root = "/sys/fs/cgroup"
    for line in read("/proc/self/cgroup").splitlines():
        _number, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        folder = version_1.partition("/")[0]
        if controllers == "" or folder in controllers.split(","):
            for where in (path, ""):
                base = root + ("" if controllers == "" else "/" + folder) + where.rstrip("/")
                text = read(
                    base + "/" + (name if controllers == "" else version_1.partition("/")[2])
                )
                if text:
                    return text.strip()
    return ""


def bound(text: str):
    """A number of a control group. None if it has no limit."""
    words = text.split()
    if not words or not words[0].isdigit() or int(words[0]) >= BOUNDLESS:
        return None
    return int(words[0])


def memory():
    """Bytes that the control group allows, or from which on it slows its processes down.

    None without a limit.
    """
    limits = (
        bound(group_file("memory.max", "memory/memory.limit_in_bytes")),
        bound(group_file("memory.high", "memory/")),
    )
    return min([limit for limit in limits if limit is not None], default=None)


def cpus():
    """CPUs that the control group allows. None without a limit."""
    two = group_file("cpu.max", "cpu/cpu.cfs_quota_us").split()
    period = two[1] if len(two) > 1 else group_file("", "cpu/cpu.cfs_period_us")
    if not two or not two[0].isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return round(int(two[0]) / int(period), 2)


def killed() -> int:
    """Processes that the kernel has killed in the container because of a lack of memory."""
    match = re.search(
        r"^oom_kill (\d+)", group_file("memory.events", "memory/memory.oom_control"), re.MULTILINE
    )
    return int(match.group(1)) if match else 0


def first_environment() -> dict:
    entries = read("/proc/1/environ").split("\0")
    # The entrypoint writes one line for each.
    return dict(entry.replace("\n", " ").split("=", 1) for entry in entries if "=" in entry)


def environment_of(variables: dict) -> dict:
    found = {}
    for name, value in variables.items():
        shown = value if SHOWN.match(name) else ""
        found[name] = [digest_of(value), shown]
    return found


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def configured() -> dict:
    """Digests of the files of settings that are not empty."""
    paths = (os.path.expanduser(path) for path in CONFIGURED)
    texts = {path: read(path) for path in paths if os.path.isfile(path)}
    return {path: digest_of(text) for path, text in texts.items() if text.strip()}


def search_path() -> tuple:
    """(where Python of a job looks for modules, why it does not start)."""
    code = "import sys; sys.stdout.write('\\n' + '\\0'.join(sys.path))"
    try:
        child = subprocess.Popen(
            ["python3", "-c", code],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = child.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        return [], "python3 does not start within %d s" % SECONDS
    except OSError as error:
        return [], "python3: %s" % error.strerror
    if child.returncode:
        lines = err.decode("utf-8", "replace").strip().splitlines() or [
            "exit code %d" % child.returncode
        ]
        return [], "python3 does not start: %s" % lines[-1][:200]
    folders = out.decode("utf-8", "replace").rpartition("\n")[2].split("\0")
    return [os.path.realpath(folder) for folder in folders if folder], ""


def entries(folder: str) -> list:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def modules_in(folder: str) -> dict:
    """Names of the modules and packages in a folder, with their files.

    A folder without __init__.py hides nothing.
    """
    found = {}
    for name in entries(folder):
        match = IMPORTED.match(name)
        if match:
            found.setdefault(match.group(1), os.path.join(folder, name))
        elif os.path.exists(os.path.join(folder, name, "__init__.py")):
            found.setdefault(name, os.path.join(folder, name))
    return found


def packages_in(folders: list) -> dict:
    """Version and folder of each installed package, of which the first on the path counts."""
    found = {}
    for folder in folders:
        for name in entries(folder):
            match = re.match(r"(.+?)-([^-]+)(-py[\d.]+)?\.(dist-info|egg-info)$", name)
            if match:
                key = re.sub(r"[-_.]+", "-", match.group(1)).lower()
                found.setdefault(key, [match.group(2), os.path.join(folder, name)])
    return found


def python_of() -> dict:
    folders, error = search_path()
    shadows, startup, seen = [], [], {}
    standard = os.path.dirname(os.path.realpath(os.__file__))
    for folder in folders:
        for name, path in modules_in(folder).items():
            first = seen.setdefault(name, (folder, path))
            # What the standard library hides is hidden everywhere.
            if (
                first[0] != folder
                and first[0] != standard
                and not first[0].startswith(standard + "/lib-dynload")
            ):
                shadows.append({"module": name, "file": first[1], "hides": path})
            if name in ("sitecustomize", "usercustomize") and first[0] == folder:
                startup.append(path)
        startup += [os.path.join(folder, name) for name in entries(folder) if name.endswith(".pth")]
    return {
        "version": platform.python_version(),
        "programs": {
            name: os.path.realpath(path)
            for name, path in ((name, shutil.which(name)) for name in PROGRAMS)
            if path
        },
        "error": error,
        "packages": packages_in(folders),
        "shadows": shadows[:MOST],
        "startup": startup[:MOST],
    }


def status_of(pid: str):
    """(parent, seconds of CPU, seconds since its start, command) of a process, None if it has ended
    or is a zombie.
    """
    text = read("/proc/%s/stat" % pid)
    fields = text.rpartition(")")[2].split()
    if len(fields) < 20 or fields[0] == "Z":
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    uptime = float(read("/proc/uptime").split()[0])
    words = read("/proc/%s/cmdline" % pid).replace("\0", " ").strip()
    return (
        int(fields[1]),
        (int(fields[11]) + int(fields[12])) / ticks,
        uptime - int(fields[19]) / ticks,
        words or text.partition("(")[2].rpartition(")")[0],
    )


def job_of(pid: int) -> str:
    """ID of the job that started a process, empty if it is of none."""
    found = ""
    for entry in read("/proc/%s/environ" % pid).split("\0"):
        name, _equals, value = entry.partition("=")
        if name == "TRAINYARD_JOB_ID" and value:
            return value
        if name == "TRAINYARD_JOB_DIR":
            found = os.path.basename(value.rstrip("/"))
    return found


def processes() -> list:
    """Processes of jobs, and those without a job that use CPUs, other than services."""
    known = {int(pid): status_of(pid) for pid in entries("/proc") if pid.isdigit()}
    known = {pid: status for pid, status in known.items() if status}
    found = []
    for pid, (parent, used, age, command) in sorted(known.items()):
        line = [command]
        while parent in known:
            line.append(known[parent][3])
            parent = known[parent][0]
        if any(SUPERVISOR in words.split()[:3] for words in line):
            continue
        job = job_of(pid)
        if job or (age >= OLD and used / age >= BUSY):
            found.append({"pid": pid, "job": job, "age_s": int(age), "command": command[:80]})
    return found[:MOST]


def main() -> None:
    try:
        shm = os.statvfs("/dev/shm")
        shm_bytes = shm.f_blocks * shm.f_frsize
    except OSError:
        shm_bytes = 0
    view = {
        "share": share_of(sys.argv[1]),
        "shm_bytes": shm_bytes,
        "limits": {
            name: [number(value) for value in resource.getrlimit(limit)]
            for name, limit in LIMITS.items()
        },
        "first_limits": limits_of_first(),
        "group": {
            "memory": memory(),
            "cpus": cpus(),
            "pids": bound(group_file("pids.max", "pids/pids.max")),
            "affinity": len(os.sched_getaffinity(0)),
            "killed": killed(),
        },
        "environment": environment_of(os.environ),
        # Of the container's first process: the engine may have added variables to those that it was
        # told.
        "first_environment": environment_of(first_environment()),
        "files": configured(),
        "python": python_of(),
        "processes": processes(),
    }
    print(MARK + json.dumps(view))


if __name__ == "__main__":
    main()
