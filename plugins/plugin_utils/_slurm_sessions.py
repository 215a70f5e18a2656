# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What people get on a host outside of jobs. Pure functions.

They get no GPUs, no cron and at, no user manager, and limited memory. Sessions run below
user.slice. On login hosts that run no jobs, cron and at start people's processes within limits.
Jobs, and logins that pam_slurm_adopt has moved into a job, run below a scope of slurmd, so none of
these settings reaches them.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple, TypedDict

HEADING = "# Managed by Ansible (trainyard.gpu). Changes are overwritten.\n"
SYSTEMD = "/etc/systemd/system"
#: A file of the same name for one user replaces the one for all users.
NAME = "trainyard.conf"
SLICE = "%s/user-.slice.d/%s" % (SYSTEMD, NAME)
OPERATOR_SLICE = "%s/user-%%d.slice.d/%s" % (SYSTEMD, NAME)
ALL_SLICES = "%s/user.slice.d/%s" % (SYSTEMD, NAME)
MANAGER = "%s/user@.service.d/%s" % (SYSTEMD, NAME)
#: Members of adm, which has this number on Debian and Ubuntu, see all processes.
HIDING = "trainyard-processes.service"
HIDING_UNIT = "%s/%s" % (SYSTEMD, HIDING)
HIDING_LINK = "%s/multi-user.target.wants/%s" % (SYSTEMD, HIDING)
HIDING_TEXT = """[Unit]
Description=Hide the processes of others from people
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/mount -o remount,hidepid=2,gid=4 /proc
ExecStop=/bin/mount -o remount,hidepid=0,gid=0 /proc
[Install]
WantedBy=multi-user.target
"""
#: The epilog reads it.
PEOPLE = "/etc/trainyard/sessions.json"
ALLOW = {"cron": "/etc/cron.allow", "at": "/etc/at.allow"}
#: Daemons on a scheduler that the kernel ends after all sessions if the memory is full.
DAEMONS = ("mariadb", "slurmctld", "slurmdbd")
DAEMON = "%s/%%s.service.d/trainyard-memory.conf" % SYSTEMD
#: Services below system.slice that start what people have planned.
PLANNERS = ("cron", "atd")
#: What a session needs beyond the pseudo devices that systemd always allows: consoles, rootless
#: podman, virtual machines and InfiniBand.
DEVICES = (
    "char-tty rw",
    "char-ttyS rw",
    "char-hvc rw",
    "/dev/console rw",
    "/dev/fuse rw",
    "/dev/net/tun rw",
    "/dev/kvm rw",
    "char-infiniband_verbs rw",
    "char-infiniband_mad rw",
    "char-infiniband_cm rw",
)
#: What jobs of root need beside, such as checks of disks and backups.
DEVICES_OF_PLANNERS = (
    "block-* rwm",
    "char-sg rw",
    "char-nvme rw",
    "char-ipmidev rw",
    "char-rtc rw",
    "/dev/mapper/control rw",
    "/dev/loop-control rw",
)
#: The largest uid of an account of the system.
SYSTEM_UID = 999


class Steps(TypedDict):
    """Arguments of module managed_files."""

    files: list[dict[str, Any]]
    absent: list[str]


class Sessions(TypedDict):
    """What a host needs for people outside of jobs, and what stays open there."""

    steps: list[Steps]
    warnings: list[str]


class Kind(TypedDict):
    """What a host is.

    It runs jobs (C(training)), people log in there (C(login)), Slurm's daemons run there
    (C(scheduler)). C(only_in_jobs): people have processes there only in jobs. C(usable): Slurm can
    limit jobs on all training hosts.
    """

    training: bool
    login: bool
    scheduler: bool
    only_in_jobs: bool
    usable: bool


class _Limits(NamedTuple):
    """What sessions of a host cannot have.

    C(closed): they cannot open GPUs. C(memory) as systemd takes it, empty for no limit. C(tasks) is
    the number of processes and threads, 0 for no limit.
    """

    closed: bool
    memory: str
    tasks: int


def operators_of(reading: dict[str, Any]) -> dict[str, int]:
    """Return the uids of operators by name: root, and those whom the module has found."""
    return dict(reading.get("operators") or {}, root=0)


def planners_of(reading: dict[str, Any], kind: str) -> dict[str, int]:
    """Return the uids of those who have a crontab, or jobs of at, by name."""
    planners: dict[str, dict[str, int]] = reading.get("planners") or {}
    return planners.get(kind, {})


def _folder(path: str) -> dict[str, Any]:
    return {"path": path, "state": "directory", "mode": "0755", "owner": "root", "group": "root"}


def _file(path: str, content: str) -> dict[str, Any]:
    return {"path": path, "content": content, "mode": "0644", "owner": "root", "group": "root"}


def _drop_in(path: str, text: str) -> list[dict[str, Any]]:
    return [_folder(path.rsplit("/", 1)[0]), _file(path, HEADING + text)]


def slice_text(closed: bool, memory: str, tasks: int) -> str:
    """Return the settings of each person's slice.

    C(closed) is whether devices are closed. The limits are empty or 0 for none.
    """
    lines = ["[Slice]"]
    if closed:
        lines.append("DevicePolicy=closed")
        lines += ["DeviceAllow=" + device for device in DEVICES]
    if memory:
        lines.append("MemoryMax=" + memory)
    if tasks:
        lines.append("TasksMax=%d" % tasks)
    return "\n".join(lines) + "\n"


def planner_text(closed: bool, memory: str, tasks: int) -> str:
    """Return the settings of cron or atd on a login host, empty for none.

    All that the service has started counts together. By default, systemd would stop the service if
    the kernel ends one process for its memory.
    """
    lines = []
    if closed:
        lines.append("DevicePolicy=closed")
        lines += ["DeviceAllow=" + device for device in (*DEVICES, *DEVICES_OF_PLANNERS)]
    if memory:
        lines += ["MemoryMax=" + memory, "OOMPolicy=continue"]
    if tasks:
        lines.append("TasksMax=%d" % tasks)
    return "\n".join(["[Service]", *lines]) + "\n" if lines else ""


def manager_text(uids: list[int]) -> str:
    """Return the settings by which a user manager starts for system accounts and operators only.

    systemd replaces %i by the uid.
    """
    allowed = ["[0-9]", "[0-9][0-9]", "[0-9][0-9][0-9]"]
    allowed += [str(uid) for uid in sorted(uids) if uid > SYSTEM_UID]
    condition = "case %%i in %s) exit 0;; esac; exit 1" % "|".join(allowed)
    return "[Service]\nExecCondition=+/bin/sh -c '%s'\n" % condition


def allow_text(reading: dict[str, Any], kind: str) -> str:
    """Return cron.allow or at.allow: operators, and system accounts that use it."""
    planners = planners_of(reading, kind)
    names = set(operators_of(reading))
    names |= {name for name, uid in planners.items() if uid <= SYSTEM_UID}
    return HEADING + "".join(name + "\n" for name in sorted(names))


def _is_ours(text: str) -> bool:
    return text.startswith(HEADING)


def _of_training_host(
    reading: dict[str, Any], kind: Kind, requested: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return who may use cron and at, and what the epilog reads."""
    files = []
    if requested["gpus_need_job"]:
        for name, path in ALLOW.items():
            # A site that has such a file has decided itself.
            if _is_ours(reading["texts"].get(path, HEADING)):
                files.append(_file(path, allow_text(reading, name)))
    people = {
        "only_in_jobs": kind["only_in_jobs"],
        "operators": sorted(operators_of(reading).values()),
    }
    content = json.dumps(people, sort_keys=True) + "\n"
    return [*files, _folder(PEOPLE.rsplit("/", 1)[0]), _file(PEOPLE, content)]


def _of_job_sessions(
    reading: dict[str, Any], requested: dict[str, Any], uids: list[int]
) -> list[dict[str, Any]]:
    """Return what withholds user managers, and the processes of others, on a host for jobs."""
    files = _drop_in(MANAGER, manager_text(uids))
    if requested["hide_processes"] and not reading["container"]:
        files.append(_file(HIDING_UNIT, HEADING + HIDING_TEXT))
        files.append({"path": HIDING_LINK, "state": "link", "src": HIDING_UNIT})
    return files


def _of_slices(limits: _Limits, uids: list[int]) -> list[dict[str, Any]]:
    """Return the limits of each person, from which operators are excepted."""
    if not any(limits):
        return []
    files = []
    # First the exceptions, so that the session of this run keeps its devices.
    for uid in uids:
        files += _drop_in(OPERATOR_SLICE % uid, "# An operator: %s does not count.\n" % SLICE)
    return files + _drop_in(SLICE, slice_text(*limits))


def _of_login_host(kind: Kind, requested: dict[str, Any], limits: _Limits) -> list[dict[str, Any]]:
    """Return the limits of all people together and of what they have planned, and what daemons get.

    C(limits) are those of cron and at.
    """
    files = []
    if requested["memory_all"]:
        files += _drop_in(ALL_SLICES, "[Slice]\nMemoryMax=%s\n" % requested["memory_all"])
    planners = planner_text(*limits)
    if planners:
        for name in PLANNERS:
            files += _drop_in(DAEMON % name, planners)
    if kind["scheduler"]:
        for name in DAEMONS:
            files += _drop_in(DAEMON % name, "[Service]\nOOMScoreAdjust=-500\n")
    return files


def _files(
    reading: dict[str, Any], kind: Kind, requested: dict[str, Any], closes: bool
) -> list[dict[str, Any]]:
    """Return the files of a host, in the order in which they are written."""
    files = []
    uids = sorted(set(operators_of(reading).values()))
    limits = _Limits(closes, "", 0)
    if kind["login"]:
        limits = _Limits(closes, requested["memory"], int(requested["tasks"]))
    if kind["training"]:
        files += _of_training_host(reading, kind, requested)
    if kind["only_in_jobs"]:
        files += _of_job_sessions(reading, requested, uids)
    files += _of_slices(limits, uids)
    if kind["login"]:
        with_gpus = closes and bool(reading["gpus"])
        files += _of_login_host(kind, requested, limits._replace(closed=with_gpus))
    return files


def placed(reading: dict[str, Any]) -> list[str]:
    """Return the paths of the files of these roles on a host."""
    texts = reading["texts"]
    paths = [SLICE, ALL_SLICES, MANAGER, HIDING_UNIT, *ALLOW.values()]
    paths += [DAEMON % name for name in (*DAEMONS, *PLANNERS)]
    paths += sorted(path for path in texts if path.startswith(SYSTEMD + "/user-"))
    found = [path for path in dict.fromkeys(paths) if _is_ours(texts.get(path, ""))]
    if PEOPLE in texts:
        found.append(PEOPLE)
    return found


def _steps(reading: dict[str, Any], files: list[dict[str, Any]]) -> list[Steps]:
    """Return the arguments of managed_files, in a list that is empty if there is nothing to do."""
    kept = {entry["path"] for entry in files}
    absent = [path for path in placed(reading) if path not in kept]
    folders = dict.fromkeys(path.rsplit("/", 1)[0] for path in absent)
    if HIDING_UNIT in absent:
        absent.insert(0, HIDING_LINK)
    absent += [folder for folder in folders if folder not in {*kept, "/etc", SYSTEMD}]
    if files or absent:
        return [{"files": files, "absent": absent}]
    return []


def sessions(reading: dict[str, Any], kind: Kind, requested: dict[str, Any]) -> Sessions:
    """Return what a host needs for people outside of jobs.

    C(reading) is the answer of module slurm_host_info. C(requested) has all keys of C(OUTSIDE) of
    the plan of Slurm.
    """
    closes = _closes(reading, kind, requested)
    warnings = []
    if requested["gpus_need_job"]:
        if not closes:
            warnings += _open_gpus(reading, kind)
        if kind["training"]:
            warnings += _planned(reading)
    return {
        "steps": _steps(reading, _files(reading, kind, requested, closes)),
        "warnings": warnings,
    }


def _closes(reading: dict[str, Any], kind: Kind, requested: dict[str, Any]) -> bool:
    """Return whether GPUs are closed to sessions.

    On a training host without limits, a login is not in the control group of its job, and would
    lose the GPUs of the job, too.
    """
    if not requested["gpus_need_job"]:
        return False
    if kind["training"]:
        return kind["usable"]
    return kind["login"] and bool(reading["cgroup"]["usable"])


def _open_gpus(reading: dict[str, Any], kind: Kind) -> list[str]:
    """Return why sessions of a host can open its GPUs, empty if it has none or no sessions."""
    concerned = kind["training"] or kind["login"]
    if not reading["gpus"] or not concerned:
        return []
    why = reading["cgroup"]["why"] or "not every training host can limit jobs"
    return ["people's sessions can open its GPUs outside of jobs, because %s" % why]


def _site_list(path: str, text: str, operators: dict[str, int]) -> list[str]:
    """Return whom a file of the site lets plan processes, empty if only operators."""
    if _is_ours(text):
        return []
    listed = {line.strip() for line in text.splitlines() if line.strip()}
    people = sorted(entry for entry in listed - set(operators) if entry[0] != "#")
    if not people:
        return []
    return [
        "%s is the site's and stays; the accounts in it (%s) can start processes outside of jobs"
        % (path, ", ".join(people[:5]))
    ]


def _planned(reading: dict[str, Any]) -> list[str]:
    """Return what cron and at still start for people."""
    operators, found = operators_of(reading), []
    removals = {"cron": "crontab -r -u NAME", "at": "atrm"}
    for name, path in ALLOW.items():
        found += _site_list(path, reading["texts"].get(path, HEADING), operators)
        planners = planners_of(reading, name)
        owners = sorted(owner for owner, uid in planners.items() if uid > SYSTEM_UID)
        owners = [owner for owner in owners if owner not in operators]
        if owners:
            found.append(
                "%s still runs what %s had planned before; remove it with '%s'"
                % (name, ", ".join(owners[:5]), removals[name])
            )
    return found


def removal(reading: dict[str, Any]) -> list[Steps]:
    """Return the steps that remove the files of these roles."""
    return _steps(reading, [])
