# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What people get on a host outside of jobs: no GPUs, no cron and at, no user manager, and limited memory. Pure functions.

Sessions run below user.slice. Jobs, and logins that pam_slurm_adopt has moved into a job, run below a scope of slurmd, so none of these settings reaches them.
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
#: The epilog reads it.
PEOPLE = "/etc/trainyard/sessions.json"
ALLOW = {"cron": "/etc/cron.allow", "at": "/etc/at.allow"}
#: Daemons on a scheduler that the kernel ends after all sessions if the memory is full.
DAEMONS = ("mariadb", "slurmctld", "slurmdbd")
DAEMON = "%s/%%s.service.d/trainyard-memory.conf" % SYSTEMD
#: What a session needs beyond the pseudo devices that systemd always allows: consoles, rootless podman, virtual machines and InfiniBand.
DEVICES = ("char-tty rw", "char-ttyS rw", "char-hvc rw", "/dev/console rw", "/dev/fuse rw", "/dev/net/tun rw", "/dev/kvm rw", "char-infiniband_verbs rw",
           "char-infiniband_mad rw", "char-infiniband_cm rw")
# Hosts without these accounts have no more of them.
_LAST_SYSTEM_UID = 999


def operators_of(reading):
    """Return the accounts of operators by name: root, and those whom the module has found."""
    return dict(reading.get("operators") or {}, root=0)


def _folder(path):
    return {"path": path, "state": "directory", "mode": "0755", "owner": "root", "group": "root"}


def _drop_in(path, text):
    return [_folder(path.rsplit("/", 1)[0]), _file(path, HEADING + text)]


def _file(path, content):
    return {"path": path, "content": content, "mode": "0644", "owner": "root", "group": "root"}


def slice_text(closed, memory, tasks):
    """Return the settings of each person's slice: whether devices are C(closed), and limits, empty for none."""
    lines = ["[Slice]"]
    if closed:
        lines += ["DevicePolicy=closed"] + ["DeviceAllow=" + device for device in DEVICES]
    if memory:
        lines.append("MemoryMax=" + memory)
    if tasks:
        lines.append("TasksMax=%s" % tasks)
    return "\n".join(lines) + "\n"


def manager_text(uids):
    """Return the settings by which a user manager starts for system accounts and operators only. systemd replaces %i by the uid."""
    allowed = "|".join(["[0-9]", "[0-9][0-9]", "[0-9][0-9][0-9]"] + [str(uid) for uid in sorted(uids) if uid > _LAST_SYSTEM_UID])
    return "[Service]\nExecCondition=+/bin/sh -c 'case %%i in %s) exit 0;; esac; exit 1'\n" % allowed


def allow_text(reading, kind):
    """Return cron.allow or at.allow: operators, and system accounts that use it."""
    used = [name for name, uid in (reading.get("planners") or {}).get(kind, {}).items() if uid <= _LAST_SYSTEM_UID]
    return HEADING + "".join(name + "\n" for name in sorted({*operators_of(reading), *used}))


def _is_ours(text):
    return text.startswith(HEADING)


def _wanted(reading, kind, wishes):
    """Return the files of a host. C(kind) has whether it is C(training), C(login), C(scheduler), has people C(only_in_jobs), and C(closes) GPUs."""
    operators, files = operators_of(reading), []
    memory, tasks = (wishes["memory"], int(wishes["tasks"])) if kind["login"] else ("", 0)
    if kind["training"] and wishes["gpus_need_job"]:
        for name, path in ALLOW.items():
            # A site that has such a file has decided itself.
            if _is_ours(reading["texts"].get(path, HEADING)):
                files.append(_file(path, allow_text(reading, name)))
    if kind["training"]:
        told = {"only_in_jobs": kind["only_in_jobs"], "operators": sorted(operators.values())}
        files += [_folder(PEOPLE.rsplit("/", 1)[0]), _file(PEOPLE, json.dumps(told, sort_keys=True) + "\n")]
    if kind["only_in_jobs"]:
        files += _drop_in(MANAGER, manager_text(operators.values()))
    if kind["closes"] or memory or tasks:
        # First the exceptions, so that the session of this run keeps its devices.
        for uid in sorted(set(operators.values())):
            files += _drop_in(OPERATOR_SLICE % uid, "# An operator: %s does not count.\n" % SLICE)
        files += _drop_in(SLICE, slice_text(kind["closes"], memory, tasks))
    if kind["login"] and wishes["memory_all"]:
        files += _drop_in(ALL_SLICES, "[Slice]\nMemoryMax=%s\n" % wishes["memory_all"])
    if kind["login"] and kind["scheduler"]:
        for name in DAEMONS:
            files += _drop_in(DAEMON % name, "[Service]\nOOMScoreAdjust=-500\n")
    return files


def placed(reading):
    """Return the paths of the files of these roles on a host."""
    paths = [SLICE, ALL_SLICES, MANAGER, *(DAEMON % name for name in DAEMONS)]
    paths += sorted(path for path in reading["texts"] if path.startswith(SYSTEMD + "/user-") and path != SLICE)
    found = [path for path in (*paths, *ALLOW.values()) if _is_ours(reading["texts"].get(path, ""))]
    return found + ([PEOPLE] if PEOPLE in reading["texts"] else [])


def _step(reading, files):
    """Return the arguments of managed_files, in a list that is empty if there is nothing to do."""
    kept = {entry["path"] for entry in files}
    absent = [path for path in placed(reading) if path not in kept]
    folders = [path.rsplit("/", 1)[0] for path in absent]
    absent += [folder for folder in dict.fromkeys(folders) if folder != "/etc" and folder not in kept]
    return [{"files": files, "absent": absent}] if files or absent else []


def sessions(reading, kind, wishes):
    """Return what people get on a host outside of jobs: C(steps), the arguments of managed_files, and C(warnings)."""
    kind = dict(kind, closes=_closes(reading, kind, wishes))
    return {"steps": _step(reading, _wanted(reading, kind, wishes)), "warnings": _warnings(reading, kind, wishes)}


def _closes(reading, kind, wishes):
    """Return whether GPUs are closed to sessions: where a job's own login would not be in its control group, it would lose them, too."""
    limits_jobs = kind["usable"] if kind["training"] else reading["cgroup"]["usable"]
    return (kind["training"] or kind["login"]) and wishes["gpus_need_job"] and limits_jobs


def _warnings(reading, kind, wishes):
    found = []
    if not wishes["gpus_need_job"]:
        return found
    if reading["gpus"] and (kind["training"] or kind["login"]) and not kind["closes"]:
        found.append("people's sessions can open its GPUs outside of jobs, because %s"
                     % (reading["cgroup"]["why"] or "not every training host can limit jobs"))
    if not kind["training"]:
        return found
    known = operators_of(reading)
    for name, path in ALLOW.items():
        text = reading["texts"].get(path, HEADING)
        listed = [] if _is_ours(text) else [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
        people = sorted(set(listed) - set(known))
        if people:
            found.append("%s is the site's and stays; the accounts in it (%s) can start processes outside of jobs" % (path, ", ".join(people[:5])))
        owners = sorted(owner for owner, uid in (reading.get("planners") or {}).get(name, {}).items() if uid > _LAST_SYSTEM_UID and owner not in known)
        if owners:
            found.append("%s still runs what %s had planned before; remove it with '%s'"
                         % (name, ", ".join(owners[:5]), "crontab -r -u NAME" if name == "cron" else "atrm"))
    return found


def removal(reading):
    """Return the steps that remove the files of these roles."""
    return _step(reading, [])
