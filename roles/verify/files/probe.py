# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The job of checks scheduler-job and scheduler-isolation: what the job of a user finds on a node.

Module slurm_probe submits it. The batch script starts this program again as a task of the job, in a
container if an image is given. It stores the result in the comment of the job, which needs no file
that both hosts can read. A second task, without GPUs, without a container and with little memory,
tries what must not work.
"""

import base64
import errno
import glob
import json
import os
import re
import stat
import subprocess
import sys

#: What to check, as JSON, and this program. Slurm passes the environment on.
ASKED, PROGRAM, INSIDE = "TRAINYARD_PROBE", "TRAINYARD_PROBE_PROGRAM", "TRAINYARD_PROBE_INSIDE"
#: The line of the result. Other programs may print, too.
MARK = "trainyard-probe "
#: MiB of memory of the task without GPUs, and how many it tries to get.
LIMIT, BEYOND = 64, 192
#: Of role job_container: which GPU of Slurm is which device.
CONFIG = "/etc/trainyard/job/config.json"
#: What a control group answers to an open of a device that is not the job's.
DENIED = ("EPERM", "EACCES")
#: Characters of the task's output that are reported if it has no result.
TAIL = 400


def numbers_of(text):
    """Return the numbers of 0,2-3."""
    # As in _gpu_numbers, which this program cannot import: it comes alone, as a text in the
    # environment, and runs in images with Python 3.6.
    found = []
    for part in text.split(","):
        match = re.match(r"(\d+)(?:-(\d+))?$", part.strip())
        if match:
            found += range(int(match.group(1)), int(match.group(2) or match.group(1)) + 1)
    return found


def opened(path):
    """Return the name of the error if the device cannot be opened, or empty."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    return ""


def devices(prefix):
    """Return kind, numbers and error of each device PREFIX<number> by its number."""
    found = {}
    for path in glob.glob(prefix + "[0-9]*"):
        if path[len(prefix) :].isdigit():
            status = os.stat(path)
            kind = (
                "c"
                if stat.S_ISCHR(status.st_mode)
                else "b"
                if stat.S_ISBLK(status.st_mode)
                else "-"
            )
            found[path[len(prefix) :]] = [
                kind,
                os.major(status.st_rdev),
                os.minor(status.st_rdev),
                opened(path),
            ]
    return found


def seen_devices(prefixes):
    """Return the first of the prefixes that has devices, and these. A host has GPUs or NPUs."""
    for prefix in prefixes:
        found = devices(prefix)
        if found:
            return prefix, found
    return prefixes[0], {}


def opened_devices(prefixes):
    """Return the error of an open of each device PREFIX<number>, empty if it opens, by its path."""
    return {
        path: opened(path)
        for prefix in prefixes
        for path in sorted(glob.glob(prefix + "[0-9]*"))
        if path[len(prefix) :].isdigit()
    }


def readable_entries(folder, own):
    """Return the folders of other people's jobs in a folder that this process can list."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    found = []
    for name in names:
        path = os.path.join(folder, name)
        try:
            of_others = name != own and os.stat(path).st_uid != os.getuid()
            os.listdir(path)
        except OSError:
            continue
        found += [path] if of_others else []
    return found


def folder_problem(folder, own):
    """Return (missing, problem): whether the job has no folder there, and why a folder of a job is
    open to other people.
    """
    path = os.path.join(folder, own)
    try:
        status = os.stat(path)
    except OSError:
        return True, ""
    others = readable_entries(folder, own)
    if others:
        return False, "%s can be read" % others[0]
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        return False, "%s has mode %04o of user %d, so others can read it" % (
            path,
            stat.S_IMODE(status.st_mode),
            status.st_uid,
        )
    return False, ""


def resident_mib():
    """Return the memory of this process that is not in swap."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as stream:
        return int(re.search(r"^VmRSS:\s+(\d+) kB$", stream.read(), re.MULTILINE).group(1)) // 1024


def get_memory(mib):
    """Get memory in a child process.

    Return how it went: killed, refused, or the MiB that it had.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            # Written to, because the kernel gives no page before.
            kept = [b"\x01" * 2**20 for _block in range(mib)]
            os.write(writer, b"%d" % (resident_mib() if kept else 0))
        except MemoryError:
            os.write(writer, b"refused")
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        word = stream.read()
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return "killed"
    return int(word) if word.isdigit() else word


def plain(requested, environment):
    """Print what a task without GPUs can do.

    In two lines, as Slurm may end the whole task because of the second.
    """
    missing, problems = [], []
    for folder in requested["job_folders"]:
        is_missing, problem = folder_problem(folder, environment.get("SLURM_JOB_ID", ""))
        missing += [folder] if is_missing else []
        problems += [problem] if problem else []
    print(
        MARK
        + json.dumps(
            {
                "devices": opened_devices(requested["all_devices"]),
                "missing": missing,
                "folders": problems,
            }
        ),
        flush=True,
    )
    print(MARK + json.dumps({"memory": get_memory(BEYOND)}), flush=True)


def share_problem(folder, token, name):
    """Return why the job cannot use the folder on the share, or empty.

    It has the token if it is the same folder as on the scheduler.
    """
    parent = os.path.dirname(folder)
    try:
        with open(os.path.join(folder, "token"), encoding="ascii") as stream:
            same = stream.read() == token
    except OSError as error:
        return "what was written to %s on the scheduler cannot be read: %s" % (
            parent,
            error.strerror,
        )
    if not same:
        return "%s has a different content than on the scheduler" % parent
    path = os.path.join(folder, name)
    try:
        with open(path, "x", encoding="ascii") as stream:
            stream.write(token)
            stream.flush()
            os.fsync(stream.fileno())
        owner = os.stat(path).st_uid
    except OSError as error:
        return "%s cannot be written: %s" % (parent, error.strerror)
    return "" if owner == os.getuid() else "a new file in %s belongs to user %d" % (parent, owner)


def task(requested, environment):
    """Return what this process sees."""
    # trainyard-run sets the second one in containers with NPUs.
    visible = environment.get("CUDA_VISIBLE_DEVICES") or environment.get(
        "ASCEND_RT_VISIBLE_DEVICES"
    )
    prefix, seen = seen_devices(requested["all_devices"])
    return {
        "node": environment.get("SLURMD_NODENAME", ""),
        "uid": os.getuid(),
        "gid": os.getgid(),
        "gpus": numbers_of(
            environment.get("SLURM_STEP_GPUS") or environment.get("SLURM_JOB_GPUS") or ""
        ),
        "visible": len([part for part in (visible or "").split(",") if part]),
        "device": prefix,
        "devices": seen,
        "driver": os.path.exists("/proc/driver/nvidia/version"),
        "share": share_problem(requested["folder"], requested["token"], requested["node"])
        if requested["folder"]
        else "",
    }


def listed_devices(path=CONFIG):
    """Return the device numbers in the order of Slurm, as programs of the host read them.

    None without a list.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)["gpus"].get("positions")
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def result_of(output, code):
    """Return the result of the task from its output."""
    for line in output.splitlines():
        if line.startswith(MARK):
            return json.loads(line[len(MARK) :])
    for character in set(output):
        if not character.isprintable():
            output = output.replace(character, " ")
    words = " ".join(output.split())
    return {
        "failed": "exit code %s%s" % (code, ": " + words[-TAIL:] if words else " and no output")
    }


def output_of(options, command, environment, seconds):
    """Return (output, exit code) of a task, the latter None with a reason in place of the
    output.
    """
    try:
        child = subprocess.Popen(
            ["srun", "--quiet", "--ntasks=1"] + options + command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        output = child.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        # Not waited for: a process that waits for a share cannot be killed.
        child.kill()
        return "the task did not end within %d s" % seconds, None
    except OSError as error:
        return str(error), None
    return output.decode("utf-8", "replace"), child.returncode


def run(requested, program, environment):
    """Start the task, and return its result."""
    command = (["trainyard-run", requested["image"], "--"] if requested["image"] else []) + [
        "python3",
        "-B",
        "-c",
        program,
    ]
    output, code = output_of([], command, dict(environment, **{INSIDE: "1"}), requested["seconds"])
    return {"failed": output} if code is None else result_of(output, code)


def run_plain(requested, program, environment):
    """Start the task without GPUs, and return its result, with the error of an open of each device
    in this process, which has the GPUs of the job.
    """
    options = ["--gres=none", "--mem=%dM" % LIMIT]
    output, code = output_of(
        options,
        ["python3", "-B", "-c", program],
        dict(environment, **{INSIDE: "plain"}),
        requested["seconds"],
    )
    if code is None:
        return {"failed": output}
    lines = [json.loads(line[len(MARK) :]) for line in output.splitlines() if line.startswith(MARK)]
    if not lines:
        return result_of(output, code)
    result = dict(
        lines[0], memory="", here=sorted(set(opened_devices(requested["all_devices"]).values()))
    )
    if len(lines) > 1:
        result["memory"] = lines[1]["memory"]
    elif code and re.search(r"oom|out.of.memory|killed", output, re.IGNORECASE):
        result["memory"] = "killed"
    return result


def comment_of(result):
    # Slurm's commands change quotes and line breaks.
    return "trainyard:" + base64.urlsafe_b64encode(json.dumps(result).encode("utf-8")).decode(
        "ascii"
    )


def main(environment):
    command = json.loads(environment[ASKED])
    if environment.get(INSIDE) == "plain":
        plain(command, environment)
        return 0
    if environment.get(INSIDE):
        print(MARK + json.dumps(task(command, environment)))
        return 0
    result = run(command, environment[PROGRAM], environment)
    # The container has no such file.
    listed = listed_devices()
    result.update({"positions": listed} if listed is not None else {})
    result["plain"] = run_plain(command, environment[PROGRAM], environment)
    return subprocess.call(
        [
            "scontrol",
            "update",
            "jobid=" + environment["SLURM_JOB_ID"],
            "comment=" + comment_of(result),
        ],
        stdin=subprocess.DEVNULL,
    )


if __name__ == "__main__":
    sys.exit(main(os.environ))
