# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prolog of slurmd, as root: makes the folders of a job on this host.

It calls no commands of Slurm, unless it refuses a job for a GPU that is in use. A failure drains
the node and requeues the job.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pwd
import stat
import sys

# Teardown would find the folder of the compiled module.
sys.dont_write_bytecode = True
sys.path.insert(0, "/usr/local/lib/trainyard/shared")
import _gpu_numbers
import _gpu_users
import _job_ports

CONFIG = "/etc/trainyard/job/config.json"
RUNTIME = "/run/trainyard"
LOGIN = "/run/user"
#: What slurmd drains the node with after a failed prolog.
SLURM_REASON = "Prolog error"
#: For the person whose srun or salloc waits.
NOTIFY_SECONDS = 2
#: Which job has each GPU, by device number. Role monitoring_host makes the folder.
GPUS = RUNTIME + "/gpus"


class Failed(Exception):
    """The job must not start on this host. The message is for the operator."""


def job_of(environment):
    """Return the number of the job and the ID of its user."""
    job, uid = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_JOB_UID", "")
    if not job.isdigit() or not uid.isdigit():
        raise Failed(
            (
                "SLURM_JOB_ID '%s' or SLURM_JOB_UID '%s' is not a number; slurmd has to start this "
                "program"
            )
            % (job, uid)
        )
    return job, int(uid)


def shared_folder(path, mode):
    """Make a folder of root.

    All parts of the path belong to root, so nobody else can put a link there.
    """
    os.makedirs(path, mode=0o755, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise Failed("%s is not a folder of root; remove it" % path)
    os.chmod(path, mode)


def own_folder(path, uid, gid):
    """Make a folder of the user, in a folder of root.

    Return whether it is new. A folder of another user is an error.
    """
    is_new = True
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        is_new = False
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid:
            raise Failed(
                "%s exists and does not belong to user %d; remove it" % (path, uid)
            ) from None
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if is_new:
            os.fchown(folder, uid, gid)
        # Also of one that exists: others would run a set-user-ID program in the store of a person
        # as that person.
        os.fchmod(folder, 0o700)
    finally:
        os.close(folder)
    return is_new


def begin(job, uid, gid, storage, runtime=RUNTIME, login=LOGIN):
    """Make the folders of a job."""
    for path in (runtime, runtime + "/jobs", runtime + "/made"):
        shared_folder(path, 0o711 if path.endswith("jobs") else 0o755)
    for path in (storage, storage + "/jobs", storage + "/people"):
        shared_folder(path, 0o711 if path != storage else 0o755)
    # A requeued job whose epilog has failed on this host: the health program must not end it.
    with contextlib.suppress(FileNotFoundError):
        os.unlink("%s/epilog.failed/%s" % (runtime, job))
    own_folder("%s/jobs/%s" % (runtime, job), uid, gid)
    own_folder("%s/jobs/%s" % (storage, job), uid, gid)
    own_folder("%s/people/%d" % (storage, uid), uid, gid)
    # systemd makes it for users who log in. The mark lets the epilog remove only what this program
    # made.
    shared_folder(login, 0o755)
    if own_folder("%s/%d" % (login, uid), uid, gid):
        with open("%s/made/%d" % (runtime, uid), "w", encoding="ascii"):
            pass


def limit_disk(job: str, config: dict) -> None:
    """Limit what the job may write into its folder on the local disk, if the site has a limit."""
    if config.get("job_bytes"):
        # Only here: prologs without a limit do not wait for it.
        disk = importlib.import_module("_disk_limit")
        disk.begin("%s/jobs/%s" % (config["storage"], job), job, config["job_bytes"])


def devices_of_job(environment: dict, kinds: dict) -> list:
    """Return the device numbers of a job.

    Refuse a job whose GPUs this host cannot tell: it would open those of another job.

    CUDA_VISIBLE_DEVICES has UUIDs here from Slurm 25.11 on.
    """
    positions = _gpu_numbers.numbers_of(environment.get("SLURM_JOB_GPUS", ""))
    if not positions:
        return []
    return _gpu_numbers.devices_of(positions, kinds, _gpu_numbers.read_host(kinds))


def refuse_busy(job: str, devices: list, kinds: dict, runtime: str = RUNTIME) -> None:
    """Refuse a job whose GPUs are used by a process of no job: it would share their memory and time
    with it.

    slurmd drains the node then and holds the job. The health program releases the job, which starts
    elsewhere, and resumes the node when the process has ended.
    """
    if not devices:
        return
    try:
        living = set(os.listdir(runtime + "/jobs")) | {job}
    except FileNotFoundError:
        living = {job}
    found = _gpu_users.lasting(devices, kinds.get("nodes") or _gpu_numbers.NODES, living)
    if not found:
        return
    with open(runtime + "/gpus.busy", "w", encoding="ascii") as stream:
        stream.write(json.dumps({"devices": sorted(set(found.values())), "job": job}))
    with open(runtime + "/health.reason", "w", encoding="ascii") as stream:
        stream.write(SLURM_REASON)
    tell_job(
        job,
        "trainyard: the job does not start on %s: %s. A batch job starts on another host. Repeat srun or salloc: this host gets no jobs until it is free"
        % (os.uname().nodename, _gpu_users.message(found)),
    )
    raise Failed(
        (
            "alloc-gpus-busy: job %s does not start here: %s; end the process. The node is resumed "
            "when it has ended"
        )
        % (job, _gpu_users.told_operator(found))
    )


def tell_job(job: str, text: str) -> None:
    """Show a line to the person whose srun or salloc waits for the job. Names of others are not in
    it.
    """
    # Only here: a prolog without a refusal does not wait for it.
    process = importlib.import_module("subprocess")
    with contextlib.suppress(OSError, process.TimeoutExpired):
        process.run(
            ["scontrol", "notify", job, text],
            stdin=process.DEVNULL,
            stdout=process.DEVNULL,
            stderr=process.DEVNULL,
            timeout=NOTIFY_SECONDS,
            check=False,
        )


def mark_gpus(job: str, uid: int, devices: list, folder: str = GPUS) -> None:
    """Write who has each GPU, for the metrics of the host.

    Without them there is no folder. The epilog removes the marks.
    """
    if not devices or not os.path.isdir(folder):
        return
    for device in devices:
        path = "%s/%d" % (folder, device)
        with open(path + ".new", "w", encoding="ascii") as stream:
            stream.write("%s %d\n" % (job, uid))
            os.fchmod(stream.fileno(), 0o640)
        os.rename(path + ".new", path)


def mark_job_of_the_system(job: str, uid: int, kinds: dict) -> None:
    """Mark the GPUs of a job of role train.

    It uses them in the training container, so nothing here depends on them.
    """
    with contextlib.suppress(_gpu_numbers.DeviceError, OSError):
        mark_gpus(job, uid, devices_of_job(os.environ, kinds))


def main():
    try:
        job, uid = job_of(os.environ)
        with open(CONFIG, encoding="utf-8") as stream:
            config = json.load(stream)
        kinds = config.get("gpus") or {}
        if _job_ports.is_of_the_system(uid):
            mark_job_of_the_system(job, uid, kinds)
        else:
            devices = devices_of_job(os.environ, kinds)
            refuse_busy(job, devices, kinds)
            mark_gpus(job, uid, devices)
            begin(job, uid, pwd.getpwuid(uid).pw_gid, config["storage"])
            limit_disk(job, config)
            _job_ports.open_ports(job, uid, os.environ)
    except KeyError as error:
        raise Failed("user %s is unknown on this host; run playbook people" % error) from error
    except Failed:
        raise
    except _gpu_numbers.DeviceError as error:
        raise Failed(error) from error
    except Exception as error:  # one line for the log of slurmd, whatever it is
        raise Failed("%s: %s" % (type(error).__name__, error)) from error


if __name__ == "__main__":
    try:
        main()
    except Failed as problem:
        print("trainyard: prolog: %s" % problem, file=sys.stderr)
        sys.exit(1)
