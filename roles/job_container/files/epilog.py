# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Epilog of slurmd, as root: ends what is left of a job on this host, and removes its files.

It calls no commands of Slurm. A failure drains the node.

The container monitor of podman (conmon) leaves the process tree of the job, so the kill of Slurm
does not reach it without cgroups. Only processes of the job's user are touched. Those of the same
user's other jobs and logins are left alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import glob
import importlib
import itertools
import json
import os
import pwd
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

# Teardown would find the folder of the compiled module.
sys.dont_write_bytecode = True
sys.path.insert(0, "/usr/local/lib/trainyard/shared")
import _files
import _job_ports
from _mountinfo import parse_mountinfo

CONFIG = "/etc/trainyard/job/config.json"
RUNTIME = "/run/trainyard"
LOGIN = "/run/user"
#: Which job has each GPU, for the metrics of the host.
GPUS = RUNTIME + "/gpus"
LINGER = "/var/lib/systemd/linger"
#: Role slurm_node writes it: whether people have processes on this host only in jobs, and the uids
#: of operators.
PEOPLE = "/etc/trainyard/sessions.json"
#: What users leave behind in these folders is removed with their last job.
SHARED_FOLDERS = ("/dev/shm", "/tmp", "/var/tmp")
#: Control groups of a job, of version 2 and of version 1.
CGROUPS = (
    "/sys/fs/cgroup/system.slice/*slurmstepd.scope/job_%s",
    "/sys/fs/cgroup/*/slurm*/uid_*/job_%s",
)
#: Seconds for processes to end after SIGKILL. One that waits for a device or for a dead file server
#: cannot be ended. The health program, which tries again what has failed, waits less.
SECONDS = float(os.environ.get("TRAINYARD_EPILOG_SECONDS") or 20)
QUIET_LOOKS, LOGIN_LOOKS, PAUSE = 2, 20, 0.1
#: Files are removed until these seconds after the start: slurmd waits 120 s. Folders are removed in
#: a folder of root, which may go on while the next job runs.
REMOVAL_SECONDS = 4 * SECONDS
BEGUN = time.monotonic()
PATHS = "/usr/sbin:/usr/bin:/sbin:/bin"
SLURM_REASON = "Epilog error"
TRASH = ".trainyard-removed."
#: Bytes of a file of a person that this program reads.
OWN_BYTES = 2 << 20
OWN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
OWN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
#: Lists of podman's store. Newer versions have those with "volatile" for containers of --rm.
CONTAINERS = ("containers.json", "volatile-containers.json")
LAYERS = ("layers.json", "volatile-layers.json")
#: What podman keeps of containers. The last four are its database.
OF_CONTAINERS = ("overlay-containers", "libpod", "db.sql", "db.sql-wal", "db.sql-shm")


class Failed(Exception):
    """Something of the job is left. The message is for the operator."""


# --- pure functions: processes as data ---


def belongs(uid, owner, ranges):
    """Return whether a process or file is the user's: by the own ID, or by one that only the user's
    containers have.
    """
    return uid == owner or any(first <= uid < end for first, end in ranges)


def has_job(environ, job):
    marks = ("SLURM_JOB_ID=%s" % job, "TRAINYARD_JOB_ID=%s" % job, "SLURM_JOBID=%s" % job)
    return any(mark.encode() in environ.split(b"\0") for mark in marks)


def other_job(environ, job):
    """Return whether a process carries the ID of another job."""
    found = re.search(rb"(?:^|\0)(?:SLURM_JOB_ID|TRAINYARD_JOB_ID)=(\d+)", environ)
    return bool(found) and found.group(1).decode() != job


def in_job_cgroup(cgroup, job):
    return bool(re.search(r"/job_%s(/|$)" % job, cgroup, re.MULTILINE))


def in_slurmd(cgroup, own):
    """Return whether a process runs below slurmd, and so in a job.

    Logins run in a slice of their own.
    """
    paths = units(cgroup)
    for mine in units(own):
        for path in paths:
            if mine != "/" and (path + "/").startswith(mine.rstrip("/") + "/"):
                return True
    return any(re.search(r"slurmstepd\.scope|/slurm(/|$)|/slurmd\.service", path) for path in paths)


def units(cgroup: str) -> set:
    """Return the control groups of a process in the hierarchy of systemd.

    With version 1, all processes share the other ones.
    """
    found = set()
    for line in cgroup.split("\n"):
        fields = line.split(":", 2)
        if len(fields) == 3 and fields[1] in ("", "name=systemd"):
            found.add(fields[2])
    return found


def was_planned(cgroup: str) -> bool:
    """Return whether cron or at has started a process."""
    return bool(re.search(r"/(cron|crond|anacron|atd)\.service(/|$)", cgroup, re.MULTILINE))


def lives_in_jobs(people: dict, uid: int) -> bool:
    """Return whether a user has processes on this host only in jobs.

    So has everybody but operators, on a host on which nobody else logs in.
    """
    return bool(people.get("only_in_jobs")) and uid not in people.get("operators", [])


def is_left_over(cgroup: str, own_cgroup: str) -> bool:
    """Return whether a process of a user without jobs cannot belong to a login."""
    return in_slurmd(cgroup, own_cgroup) or was_planned(cgroup)


def of_job(processes, job, own_cgroup, last, only_in_jobs=False):
    """Return the processes of a job: those that carry its ID, are in its cgroup or pid namespace,
    or descend from one of these.

    C(processes) are the user's, by process ID. With the C(last) job of the user on this host, all
    others that slurmd, cron or at have started are left over, too, and on a host where the user has
    processes C(only_in_jobs), all others.
    """
    if last and only_in_jobs:
        return {pid for pid, process in processes.items() if not process["engine"]}
    found = set()
    for pid, process in processes.items():
        if has_job(process["environ"], job) or in_job_cgroup(process["cgroup"], job):
            found.add(pid)
        elif last and is_left_over(process["cgroup"], own_cgroup):
            found.add(pid)
    spaces = {processes[pid]["space"] for pid in found} - {""}
    found |= {pid for pid, process in processes.items() if process["space"] in spaces}
    return found | descendants(processes, found, job)


def descendants(processes: dict, found: set, job: str) -> set:
    """Return the processes that descend from some, and do not carry the ID of another job."""
    below = set()
    grows = True
    while grows:
        grows = False
        for pid, process in processes.items():
            is_known = pid in found or pid in below
            is_below = process["parent"] in found or process["parent"] in below
            if not is_known and is_below and not other_job(process["environ"], job):
                below.add(pid)
                grows = True
    return below


def of_another(process: dict, job: str, others: list) -> bool:
    """Return whether a process belongs to another job that lives on this host.

    The control group of this job counts first: people choose the environment.
    """
    if in_job_cgroup(process["cgroup"], job):
        return False
    for other in others:
        if in_job_cgroup(process["cgroup"], other) or has_job(process["environ"], other):
            return True
    return False


# --- the host ---


def settings(path: str) -> dict:
    """Return the content of a JSON file of the roles, nothing if there is none."""
    return json.loads(_files.read(path) or "{}")


def namespace(folder, kind):
    """Return the namespace of a process, empty if it has ended."""
    try:
        return os.readlink("%s/ns/%s" % (folder, kind))
    except OSError:
        return ""


def look(pid, host_space, proc="/proc"):
    """Return what is known of a process: owner, parent, environment, cgroup, pid namespace (empty
    for the host's), and its start, which no other has.

    C(engine) tells a container of root's engine: it has a pid namespace of its own and the users of
    the host, where an ID of a person is any program's. Containers of people have other users.
    """
    folder = "%s/%s" % (proc, pid)
    text = _files.read(folder + "/stat")
    fields = text.rpartition(")")[2].split()
    status = re.search(r"^Uid:\s+(\d+)\s+(\d+)", _files.read(folder + "/status"), re.MULTILINE)
    if len(fields) < 20 or not status or fields[0] in ("Z", "X"):
        return None
    space = namespace(folder, "pid") or host_space
    same_users = namespace(folder, "user") == namespace(proc + "/self", "user")
    return {
        "uid": int(status.group(1)),
        "parent": int(fields[1]),
        "start": fields[19],
        "name": text.partition("(")[2].rpartition(")")[0],
        "environ": _files.read_bytes(folder + "/environ"),
        "cgroup": _files.read(folder + "/cgroup"),
        "space": "" if space == host_space else space,
        "engine": space != host_space and same_users,
    }


def owned(uid, ranges, proc="/proc"):
    """Return the processes of a user, by ID."""
    host_space = os.readlink(proc + "/self/ns/pid")
    found = {}
    for name in os.listdir(proc):
        if name.isdigit() and int(name) != os.getpid():
            process = look(name, host_space, proc)
            if process and belongs(process["uid"], uid, ranges):
                found[int(name)] = process
    return found


def end(pid, start):
    """Kill a process, unless its ID now belongs to another one."""
    try:
        handle = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
        try:
            fields = _files.read("/proc/%d/stat" % pid).rpartition(")")[2].split()
            if len(fields) < 20 or fields[19] != start:
                return
            if handle is None:
                os.kill(pid, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            if handle is not None:
                os.close(handle)
    except OSError as error:
        # EINVAL: the process has ended, and its ID is still that of a session or process group with
        # other members.
        if error.errno not in (errno.ESRCH, errno.EINVAL):
            raise


def sweep(job: str, uid: int, ranges: list, others: Callable, seconds: float = SECONDS) -> dict:
    """End the processes of a job. Return those that do not end, as {pid: name}.

    C(others) returns the person's other jobs on this host. It is asked at each look, as one may
    begin meanwhile.
    """
    people = settings(PEOPLE)
    own_cgroup = _files.read("/proc/self/cgroup")
    begin, quiet = time.monotonic(), 0
    while True:
        processes = owned(uid, ranges)
        # Later than the list: a prolog makes the folder of a job before the job has a process.
        living = others()
        processes = {
            pid: process
            for pid, process in processes.items()
            if not of_another(process, job, living)
        }
        last = not living
        only_in_jobs = last and lives_in_jobs(people, uid)
        found = of_job(processes, job, own_cgroup, last, only_in_jobs)
        # One look is not sufficient: the list lacks processes forked meanwhile, and a process has
        # no environment during exec.
        quiet = 0 if found else quiet + 1
        if quiet == QUIET_LOOKS or found and time.monotonic() - begin > seconds:
            return {pid: processes[pid]["name"] for pid in found}
        for pid in found:
            end(pid, processes[pid]["start"])
        time.sleep(PAUSE)


def in_the_way(text: str) -> set:
    """Return the mount points and all folders above them: none of these may be removed.

    C(text) is that of /proc/self/mountinfo.
    """
    found = set()
    for mount in parse_mountinfo(text):
        path = mount["path"]
        while path not in found and path != "/":
            found.add(path)
            path = os.path.dirname(path)
    return found


def own_mounts(uid: int, text: str) -> list:
    """Return the mount points of file systems that a program of the user serves, the last one
    first.

    People can mount FUSE only.
    """
    owner = "user_id=%d" % uid
    found = [
        mount["path"]
        for mount in parse_mountinfo(text)
        if mount["type"].partition(".")[0] == "fuse" and owner in mount["system_options"]
    ]
    return found[::-1]


def mount_table() -> str:
    return os.fsdecode(_files.read_bytes("/proc/self/mountinfo"))


def run_for(command: list, seconds: float) -> bool:
    """Run a command. Return whether it has ended within C(seconds).

    If not, it goes on, and slurmd does not end it.
    """
    environment = {"PATH": PATHS, "LC_ALL": "C"}
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
            env=environment,
        )
        try:
            code = child.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        if code:
            errors.seek(0)
            message = errors.read(2000).decode(errors="replace").partition("\n")[0]
            raise Failed("%s: %s" % (command[0], message or "exit code %d" % code))
    return True


def unmount(points: list) -> None:
    """Unmount file systems of the user whose programs have ended.

    Every access to them fails, so they would be in the way of the removal for ever.
    """
    for point in points:
        try:
            run_for(["umount", "--lazy", "--", point], SECONDS)
        except Failed as problem:
            raise Failed("%s: %s" % (point, problem)) from problem


def clear_flags(path: str) -> None:
    """Make a folder or file changeable. Only root can set these flags, so this is rare."""
    with contextlib.suppress(Failed):
        run_for(["chattr", "-R", "-f", "-i", "-a", "--", path], SECONDS)


def remove_tree(path: str, deadline: float) -> None:
    """Remove a folder of any depth.

    rm does not recurse, follows no links, and stays in one file system.
    """
    command = ["rm", "--recursive", "--force", "--one-file-system", "--", path]
    try:
        run_for(command, max(deadline - time.monotonic(), 1))
    except Failed:
        clear_flags(path)
        run_for(command, max(deadline - time.monotonic(), 1))


def put_aside(path: str, trash: dict, owner: int, ranges: list) -> None:
    """Move a folder of the user to a folder of root beside it. Its path is free at once.

    C(trash) has the folder of root for each parent. Nobody else can enter it, so a process that is
    still there cannot put a link in the place of what is removed.
    """
    parent = os.path.dirname(path)
    if parent not in trash:
        trash[parent] = tempfile.mkdtemp(prefix=TRASH, dir=parent), itertools.count()
    folder, numbers = trash[parent]
    moved = os.path.join(folder, str(next(numbers)))
    os.rename(path, moved)
    if not belongs(os.lstat(moved).st_uid, owner, ranges):
        os.rename(moved, path)
        raise Failed("%s was replaced by a folder of another user meanwhile; look at it" % path)


def remove(path: str, trash: dict, owner: int, ranges: list) -> None:
    """Remove a file of the user, or put a folder aside."""
    found = os.lstat(path)
    if not belongs(found.st_uid, owner, ranges):
        return
    if stat.S_ISDIR(found.st_mode):
        put_aside(path, trash, owner, ranges)
    else:
        os.unlink(path)


def put_all_aside(paths: list, owner: int, ranges: list, deadline: float) -> tuple:
    """Remove files of the user, and put folders aside. Return the folders of root, and the
    errors.
    """
    errors, trash, mounted = [], {}, in_the_way(mount_table())
    for number, path in enumerate(paths):
        if number and time.monotonic() > deadline:
            errors.append(
                "%d files are left in %s; the health program goes on"
                % (len(paths) - number, os.path.dirname(path))
            )
            break
        try:
            if path in mounted:
                raise Failed("%s has a mount in it; unmount it" % path)
            try:
                remove(path, trash, owner, ranges)
            except PermissionError:
                clear_flags(path)
                remove(path, trash, owner, ranges)
        except FileNotFoundError:
            continue
        except (OSError, Failed) as error:
            errors.append(str(error))
    return [folder for folder, _numbers in trash.values()], errors


def clean(paths, owner, ranges, deadline=None):
    """Remove files and folders of the user, and nothing that is mounted in them. Return the
    errors.
    """
    if deadline is None:
        deadline = BEGUN + REMOVAL_SECONDS
    folders, errors = put_all_aside(paths, owner, ranges, deadline)
    return errors + remove_all(folders, deadline)


def remove_all(folders: list, deadline: float) -> list:
    """Remove folders of root with what was put aside. Return the errors."""
    errors = []
    for folder in folders:
        try:
            remove_tree(folder, deadline)
        except (OSError, Failed) as error:
            errors.append(str(error))
    return errors


def leftovers(folders):
    return [
        os.path.join(folder, name)
        for folder in folders
        if os.path.isdir(folder)
        for name in os.listdir(folder)
    ]


def shared_memory_ids(text, owner, ranges):
    """Return the IDs of the user's segments, from the text of /proc/sysvipc/shm."""
    rows = [line.split() for line in text.split("\n")[1:]]
    return [
        row[1]
        for row in rows
        if len(row) > 7 and row[7].isdigit() and belongs(int(row[7]), owner, ranges)
    ]


def other_jobs(job, uid, folder):
    """Return the user's other jobs on this host: each has a folder that the prolog made."""
    found = []
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        # The epilog of another job may remove its folder meanwhile.
        with contextlib.suppress(FileNotFoundError):
            if (
                name != job
                and name.isdigit()
                and os.lstat(os.path.join(folder, name)).st_uid == uid
            ):
                found.append(name)
    return found


def has_no_login(uid, ranges, looks=LOGIN_LOOKS):
    """Return whether the user has no process on this host.

    One of a command such as squeue, on a login host, ends soon.
    """
    for look in range(looks):
        if not owned(uid, ranges):
            return True
        if look < looks - 1:
            time.sleep(PAUSE)
    return False


@contextlib.contextmanager
def opened(*parts: str) -> Iterator[int]:
    """Open a folder of a person below one of root, the first of C(parts), and follow no link."""
    with contextlib.ExitStack() as handles:
        handle = None
        for part in parts:
            handle = os.open(part, OWN_FOLDER, dir_fd=handle)
            handles.callback(os.close, handle)
        yield handle


def own_file(folder: int, name: str) -> bytes:
    """Read a file of a person. Links, pipes, devices and large files are errors."""
    handle = os.open(name, OWN_FILE, dir_fd=folder)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_size > OWN_BYTES:
            text = "it is no regular file of at most %d bytes" % OWN_BYTES
            raise OSError(errno.EINVAL, text, name)
        return os.read(handle, OWN_BYTES)
    finally:
        os.close(handle)


def own_list(folder: int, name: str) -> list:
    """Return the entries of a list of podman, none if there is no such file."""
    try:
        entries = json.loads(own_file(folder, name))
    except FileNotFoundError:
        return []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("%s: it is no list of objects" % name)
    return entries


def own_containers(folder: int) -> list:
    """Return the containers of plain podman. trainyard-run has a store per job."""
    found = []
    for name in CONTAINERS:
        found += own_list(folder, name)
    return found


def has_volumes(*store: str) -> bool:
    with contextlib.suppress(FileNotFoundError), opened(*store, "volumes") as folder:
        return os.listdir(folder) != []
    return False


def keep_other_layers(folder: int, name: str, layers: set, uid: int, gid: int) -> None:
    """Remove the layers of containers from a list of podman."""
    entries = own_list(folder, name)
    kept = [entry for entry in entries if entry.get("id") not in layers]
    if len(kept) == len(entries):
        return
    new = name + TRASH
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    handle = os.open(new, flags, 0o600, dir_fd=folder)
    try:
        with open(handle, "w", encoding="ascii") as stream:
            json.dump(kept, stream)
            os.fchown(handle, uid, gid)
        os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        os.unlink(new, dir_fd=folder)
        raise


def move_to(trash: str, folder: int, names: tuple) -> None:
    """Move files and folders of a person to a folder of root."""
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.rename(name, os.path.join(trash, name), src_dir_fd=folder)


def put_containers_aside(store: tuple, uid: int, gid: int) -> list:
    """Remove the containers from the store of a person. Return the folder of root with them."""
    with opened(*store) as own, opened(*store, "overlay-containers") as folder:
        containers = own_containers(folder)
        # Only the database of podman knows the volumes.
        if not containers or has_volumes(*store):
            return []
        layers = {str(container.get("layer")) for container in containers}
        layers = {layer for layer in layers if re.fullmatch("[0-9a-f]{64}", layer)}
        with opened(*store, "overlay-layers") as lists:
            for name in LAYERS:
                keep_other_layers(lists, name, layers, uid, gid)
        trash = tempfile.mkdtemp(prefix=TRASH, dir=store[0])
        with contextlib.suppress(FileNotFoundError), opened(*store, "overlay") as files:
            move_to(trash, files, tuple(layers))
        # The list of containers comes last: if this stops, the next epilog does it again.
        move_to(trash, own, OF_CONTAINERS[::-1])
    return [trash]


def forget_containers(storage: str, uid: int, gid: int) -> list:
    """Remove the containers of plain podman of a person. Return the errors. Images stay.

    Podman itself would do it, but it starts programs that files of the person name, and they would
    run outside of a job. Containers in a store with volumes stay, and so does a store in another
    form. It keeps no node out of service.
    """
    store = (os.path.realpath(storage + "/people"), str(uid))
    if os.path.join(*store) in in_the_way(mount_table()):
        return []
    try:
        folders = put_containers_aside(store, uid, gid)
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as problem:
        text = "containers of user %d stay: %s" % (uid, problem)
        print("trainyard: epilog: %s" % printable(text), file=sys.stderr)
        return []
    return remove_all(folders, BEGUN + REMOVAL_SECONDS)


def forget_cgroups(job, patterns=CGROUPS, seconds=2):
    """Remove the control groups of a job, which a killed slurmstepd leaves, with the process of
    root in the external step.

    In version 2, slurmstepd itself is not in the groups below "user". If it still runs, its groups
    stay, and it removes them.
    """
    deadline = time.monotonic() + seconds
    for top in [path for pattern in patterns for path in glob.glob(pattern % job)]:
        while os.path.isdir(top):
            for folder, _folders, _names in os.walk(top, topdown=False):
                if "/user" in folder[len(top) :]:
                    for pid in _files.read_bytes(folder + "/cgroup.procs").split():
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(int(pid), signal.SIGKILL)
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
            if time.monotonic() > deadline:
                break
            time.sleep(PAUSE)


def has_manager(uid: int) -> bool:
    """Return whether systemd has a user's folder in /run/user.

    It mounts a folder of its own there, and removes both some seconds after the last session.
    """
    return os.path.exists("/run/systemd/users/%d" % uid) or os.path.ismount("%s/%d" % (LOGIN, uid))


def ranges_of(name: str, uid: int) -> list:
    """Return the subordinate IDs of a user. Program look of role jupyterhub calls it, too."""
    return _job_ports.subordinate(name, uid, _files.read("/etc/subuid"))


def finish(job, uid, storage, runtime=RUNTIME):
    """End the job, and remove what it left. Raises Failed if something survives."""
    try:
        entry = pwd.getpwuid(uid)
        name, gid = entry.pw_name, entry.pw_gid
    except KeyError:
        name, gid = str(uid), uid
    ranges = ranges_of(name, uid)
    others = functools.partial(other_jobs, job, uid, runtime + "/jobs")

    def end_processes():
        alive = sweep(job, uid, ranges, others)
        if alive:
            names = ", ".join("%d (%s)" % pair for pair in sorted(alive.items()))
            raise Failed(
                "job %s: these processes do not end: %s; end what they wait for, or reboot the host"
                % (job, names)
            )

    last = not others()
    if last and lives_in_jobs(settings(PEOPLE), uid):
        # It would start the user's manager again.
        with contextlib.suppress(FileNotFoundError):
            os.unlink("%s/%s" % (LINGER, name))
    end_processes()
    forget_cgroups(job)
    _job_ports.close_ports(job)
    tops = ("%s/jobs/%s/" % (storage, job), "%s/jobs/%s/" % (runtime, job))
    unmount([point for point in own_mounts(uid, mount_table()) if point.startswith(tops)])
    errors = clean(["%s/jobs/%s" % (storage, job), "%s/jobs/%s" % (runtime, job)], uid, ranges)
    # Of epilogs at the same time, each has seen the other's job. The one that removes its folder
    # last sees none any more.
    if not last and not others():
        end_processes()
    if not others():
        errors += clean_after_last(uid, gid, ranges, storage)
        mark = "%s/made/%d" % (runtime, uid)
        if os.path.exists(mark) and not has_manager(uid) and not others():
            errors += clean(["%s/%d" % (LOGIN, uid)], uid, ranges)
            os.unlink(mark)
    if errors:
        raise Failed("job %s: %s" % (job, "; ".join(errors[:5])))


def clean_after_last(uid: int, gid: int, ranges: list, storage: str) -> list:
    """Remove what a person without jobs has left on this host. Return the errors."""
    # With a login on this host, the files may be in use.
    if not has_no_login(uid, ranges):
        return []
    unmount(own_mounts(uid, mount_table()))
    errors = forget_containers(storage, uid, gid)
    errors += clean(leftovers(SHARED_FOLDERS), uid, ranges)
    for number in shared_memory_ids(_files.read("/proc/sysvipc/shm"), uid, ranges):
        subprocess.run(["ipcrm", "-m", number], check=False)
    return errors


def printable(text: str) -> str:
    """Return a text for the terminal of an operator: people choose names of processes and files."""
    strange = {letter for letter in text if not letter.isprintable()}
    return text.translate({ord(letter): "?" for letter in strange})


def note(job, uid, text, runtime=RUNTIME):
    """Keep the reason for the health program, which tries again: Slurm itself only reports an
    epilog error.
    """
    text = printable(text)
    print("trainyard: epilog: %s" % text, file=sys.stderr)
    os.makedirs(runtime + "/epilog.failed", exist_ok=True)
    with open("%s/epilog.failed/%s" % (runtime, job), "w", encoding="utf-8") as stream:
        stream.write("%s\n%s\n" % (uid, text))
    expect_drain(runtime)


def expect_drain(runtime: str) -> None:
    """Tell the health program that slurmd drains the node.

    It resumes the node when the epilog has ended without an error, also at the first try.
    """
    if not _files.read(runtime + "/health.reason").strip():
        with open(runtime + "/health.reason", "w", encoding="utf-8") as stream:
            stream.write(SLURM_REASON)


@contextlib.contextmanager
def begun(job: str, uid: str, runtime: str) -> Iterator[None]:
    """Hold the note of a job, which says at first that the epilog has not ended.

    slurmd kills an epilog that takes too long, and so may anybody. The health program tries again
    when nobody holds the note.
    """
    folder = runtime + "/epilog.failed"
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, job), "a+", encoding="utf-8") as stream:
        # Who starts an epilog limits its time.
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(0)
        if stream.read(1):
            expect_drain(runtime)
        else:
            stream.write("%s\njob %s: the epilog was killed before its end\n" % (uid, job))
            stream.flush()
        yield


def forget_gpus(job: str, folder: str = GPUS) -> None:
    """Remove the marks of the job's GPUs. Another job may have one of them by now."""
    for path in glob.glob(folder + "/*"):
        if _files.read(path).split(" ")[0] == job:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def main():
    job, uid = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_JOB_UID", "")
    if not job.isdigit() or not uid.isdigit():
        print(
            (
                "trainyard: epilog: SLURM_JOB_ID '%s' or SLURM_JOB_UID '%s' is not a number; "
                "slurmd has to start this program"
            )
            % (job, uid),
            file=sys.stderr,
        )
        return 1
    forget_gpus(job)
    if _job_ports.is_of_the_system(int(uid)):
        return 0
    with begun(job, uid, RUNTIME):
        return end_job(job, uid)


def end_job(job: str, uid: str) -> int:
    """Return the exit code of the epilog of a job. Without an error it removes the note."""
    try:
        config = settings(CONFIG)
        storage = config.get("storage", "/var/lib/containers/trainyard")
        finish(job, int(uid), storage)
        if config.get("job_bytes"):
            importlib.import_module("_disk_limit").finish(storage, job)
    except Failed as problem:
        note(job, uid, str(problem))
        return 1
    # Without a note the health program would not try again, and the node would stay drained.
    except Exception as problem:
        note(job, uid, "job %s: the epilog failed: %s: %s" % (job, type(problem).__name__, problem))
        return 1
    with contextlib.suppress(FileNotFoundError):
        os.unlink("%s/epilog.failed/%s" % (RUNTIME, job))
    # slurmd may have drained the node, as a process of the job did not end in time. It has now, and
    # the health program resumes the node.
    with open(RUNTIME + "/epilog.ended", "w", encoding="ascii"):
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
