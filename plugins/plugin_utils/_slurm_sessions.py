# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What people get on a host outside of jobs. Pure functions.

They get no GPUs, no cron and at, no user manager, and limited memory. Sessions run below user.slice.
On login hosts that run no jobs, cron and at start people's processes within limits.
Jobs, and logins that pam_slurm_adopt has moved into a job, run below a scope of slurmd, so none of
these settings reaches them.
"""

from __future__ import annotations

import json

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


def operators_of(reading: dict) -> dict:
    """Return the uids of operators by name: root, and those whom the module has found."""
    return dict(reading.get("operators") or {}, root=0)


def planners_of(reading: dict, kind: str) -> dict:
    """Return the uids of those who have a crontab, or jobs of at, by name."""
    return (reading.get("planners") or {}).get(kind, {})


def _folder(path: str) -> dict:
    return {"path": path, "state": "directory", "mode": "0755", "owner": "root", "group": "root"}


def _file(path: str, content: str) -> dict:
    return {"path": path, "content": content, "mode": "0644", "owner": "root", "group": "root"}


def _drop_in(path: str, text: str) -> list:
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


def manager_text(uids: list) -> str:
    """Return the settings by which a user manager starts for system accounts and operators only.

    systemd replaces %i by the uid.
    """
    allowed = ["[0-9]", "[0-9][0-9]", "[0-9][0-9][0-9]"]
    allowed += [str(uid) for uid in sorted(uids) if uid > SYSTEM_UID]
    condition = "case %%i in %s) exit 0;; esac; exit 1" % "|".join(allowed)
    return "[Service]\nExecCondition=+/bin/sh -c '%s'\n" % condition


def allow_text(reading: dict, kind: str) -> str:
    """Return cron.allow or at.allow: operators, and system accounts that use it."""
    planners = planners_of(reading, kind)
    names = set(operators_of(reading))
    names |= {name for name, uid in planners.items() if uid <= SYSTEM_UID}
    return HEADING + "".join(name + "\n" for name in sorted(names))


def _is_ours(text: str) -> bool:
    return text.startswith(HEADING)


def _of_training_host(reading: dict, kind: dict, wishes: dict) -> list:
    files = []
    if wishes["gpus_need_job"]:
        for name, path in ALLOW.items():
            # A site that has such a file has decided itself.
            if _is_ours(reading["texts"].get(path, HEADING)):
                files.append(_file(path, allow_text(reading, name)))
    told = {
        "only_in_jobs": kind["only_in_jobs"],
        "operators": sorted(operators_of(reading).values()),
    }
    content = json.dumps(told, sort_keys=True) + "\n"
    return [*files, _folder(PEOPLE.rsplit("/", 1)[0]), _file(PEOPLE, content)]


def _wanted(reading: dict, kind: dict, wishes: dict) -> list:
    """Return the files of a host, in the order in which they are written."""
    files = []
    uids = sorted(set(operators_of(reading).values()))
    memory, tasks = "", 0
    if kind["login"]:
        memory, tasks = wishes["memory"], int(wishes["tasks"])
    if kind["training"]:
        files += _of_training_host(reading, kind, wishes)
    if kind["only_in_jobs"]:
        files += _drop_in(MANAGER, manager_text(uids))
    if kind["only_in_jobs"] and wishes["hide_processes"] and not reading["container"]:
        files.append(_file(HIDING_UNIT, HEADING + HIDING_TEXT))
        files.append({"path": HIDING_LINK, "state": "link", "src": HIDING_UNIT})
    if kind["closes"] or memory or tasks:
        # First the exceptions, so that the session of this run keeps its devices.
        for uid in uids:
            files += _drop_in(OPERATOR_SLICE % uid, "# An operator: %s does not count.\n" % SLICE)
        files += _drop_in(SLICE, slice_text(kind["closes"], memory, tasks))
    if kind["login"] and wishes["memory_all"]:
        files += _drop_in(ALL_SLICES, "[Slice]\nMemoryMax=%s\n" % wishes["memory_all"])
    planners = planner_text(kind["closes"] and bool(reading["gpus"]), memory, tasks)
    if kind["login"] and planners:
        for name in PLANNERS:
            files += _drop_in(DAEMON % name, planners)
    if kind["login"] and kind["scheduler"]:
        for name in DAEMONS:
            files += _drop_in(DAEMON % name, "[Service]\nOOMScoreAdjust=-500\n")
    return files


def placed(reading: dict) -> list:
    """Return the paths of the files of these roles on a host."""
    texts = reading["texts"]
    paths = [SLICE, ALL_SLICES, MANAGER, HIDING_UNIT, *ALLOW.values()]
    paths += [DAEMON % name for name in (*DAEMONS, *PLANNERS)]
    paths += sorted(path for path in texts if path.startswith(SYSTEMD + "/user-"))
    found = [path for path in dict.fromkeys(paths) if _is_ours(texts.get(path, ""))]
    if PEOPLE in texts:
        found.append(PEOPLE)
    return found


def _steps(reading: dict, files: list) -> list:
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


def sessions(reading: dict, kind: dict, wishes: dict) -> dict:
    """Return C(steps), the arguments of managed_files, and C(warnings).

    C(kind) has whether the host is C(training), C(login) and C(scheduler), whether people have
    processes there C(only_in_jobs), and whether Slurm's limits are C(usable). C(wishes) are the
    variables.
    """
    kind = dict(kind, closes=_closes(reading, kind, wishes))
    warnings = []
    if wishes["gpus_need_job"]:
        warnings = _open_gpus(reading, kind)
        if kind["training"]:
            warnings += _planned(reading)
    return {"steps": _steps(reading, _wanted(reading, kind, wishes)), "warnings": warnings}


def _closes(reading: dict, kind: dict, wishes: dict) -> bool:
    """Return whether GPUs are closed to sessions.

    On a training host without limits, a login is not in the control group of its job, and would
    lose the GPUs of the job, too.
    """
    if not wishes["gpus_need_job"]:
        return False
    if kind["training"]:
        return kind["usable"]
    return kind["login"] and reading["cgroup"]["usable"]


def _open_gpus(reading: dict, kind: dict) -> list:
    concerned = kind["training"] or kind["login"]
    if not reading["gpus"] or not concerned or kind["closes"]:
        return []
    why = reading["cgroup"]["why"] or "not every training host can limit jobs"
    return ["people's sessions can open its GPUs outside of jobs, because %s" % why]


def _planned(reading: dict) -> list:
    """Return what cron and at still start for people."""
    known, found = operators_of(reading), []
    removals = {"cron": "crontab -r -u NAME", "at": "atrm"}
    for name, path in ALLOW.items():
        text = reading["texts"].get(path, HEADING)
        if not _is_ours(text):
            listed = {line.strip() for line in text.splitlines() if line.strip()}
            people = sorted(entry for entry in listed - set(known) if entry[0] != "#")
            if people:
                found.append(
                    "%s is the site's and stays; the accounts in it (%s) can start processes "
                    "outside of jobs" % (path, ", ".join(people[:5]))
                )
        planners = planners_of(reading, name)
        owners = sorted(owner for owner, uid in planners.items() if uid > SYSTEM_UID)
        owners = [owner for owner in owners if owner not in known]
        if owners:
            found.append(
                "%s still runs what %s had planned before; remove it with '%s'"
                % (name, ", ".join(owners[:5]), removals[name])
            )
    return found


def removal(reading: dict) -> list:
    """Return the steps that remove the files of these roles."""
    return _steps(reading, [])
