# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The job of check scheduler-job: what the job of a user finds on a node. Module slurm_probe submits it.

The batch script starts this program again as a task of the job, in a container if an image is given. It stores the result in the comment of the job, which
needs no file that both hosts can read.
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
#: Characters of the task's output that are reported if it has no result.
TAIL = 400


def numbers_of(text):
    """Return the numbers of 0,2-3."""
    # As in job_container's trainyard_run.py. Each of the two programs is sent alone, to hosts that need not have the other.
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
        if path[len(prefix):].isdigit():
            status = os.stat(path)
            kind = "c" if stat.S_ISCHR(status.st_mode) else "b" if stat.S_ISBLK(status.st_mode) else "-"
            found[path[len(prefix):]] = [kind, os.major(status.st_rdev), os.minor(status.st_rdev), opened(path)]
    return found


def share_problem(folder, token, name):
    """Return why the job cannot use the folder on the share, or empty. It has the token if it is the same folder as on the scheduler."""
    parent = os.path.dirname(folder)
    try:
        with open(os.path.join(folder, "token"), encoding="ascii") as stream:
            same = stream.read() == token
    except OSError as error:
        return "what was written to %s on the scheduler cannot be read: %s" % (parent, error.strerror)
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


def task(asked, environment):
    """Return what this process sees."""
    return {
        "node": environment.get("SLURMD_NODENAME", ""),
        "uid": os.getuid(),
        "gid": os.getgid(),
        "gpus": numbers_of(environment.get("SLURM_STEP_GPUS") or environment.get("SLURM_JOB_GPUS") or ""),
        "visible": len([part for part in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if part]),
        "devices": devices(asked["device"]),
        "driver": os.path.exists("/proc/driver/nvidia/version"),
        "share": share_problem(asked["folder"], asked["token"], asked["node"]) if asked["folder"] else "",
    }


def result_of(output, code):
    """Return the result of the task from its output."""
    for line in output.splitlines():
        if line.startswith(MARK):
            return json.loads(line[len(MARK):])
    words = " ".join("".join(character if character.isprintable() else " " for character in output).split())
    return {"failed": "exit code %s%s" % (code, ": " + words[-TAIL:] if words else " and no output")}


def run(asked, program, environment):
    """Start the task, and return its result."""
    command = ["srun", "--quiet", "--ntasks=1"] + (["trainyard-run", asked["image"], "--"] if asked["image"] else []) + ["python3", "-B", "-c", program]
    child = subprocess.Popen(command, env=dict(environment, **{INSIDE: "1"}), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        output = child.communicate(timeout=asked["seconds"])[0]
    except subprocess.TimeoutExpired:
        # Not waited for: a process that waits for a share cannot be killed.
        child.kill()
        return {"failed": "the task did not end within %d s" % asked["seconds"]}
    except OSError as error:
        return {"failed": str(error)}
    return result_of(output.decode("utf-8", "replace"), child.returncode)


def comment_of(result):
    # Slurm's commands change quotes and line breaks.
    return "trainyard:" + base64.urlsafe_b64encode(json.dumps(result).encode("utf-8")).decode("ascii")


def main(environment):
    asked = json.loads(environment[ASKED])
    if environment.get(INSIDE):
        print(MARK + json.dumps(task(asked, environment)))
        return 0
    result = run(asked, environment[PROGRAM], environment)
    return subprocess.call(["scontrol", "update", "jobid=" + environment["SLURM_JOB_ID"], "comment=" + comment_of(result)], stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main(os.environ))
