# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Memberships, former people and their ids: what a host has and what is requested in, what to do out. Pure functions."""

from __future__ import annotations

import re

__all__ = [
    "MEMBER_OF_NONE",
    "NOLOGIN",
    "former_people",
    "is_shut",
    "lock",
    "memberships",
    "owned_ids",
    "parse_process",
    "parse_shadow",
    "processes_to_end",
    "remembered_clashes",
    "stale_groups",
    "unlock",
]

NOLOGIN = "/usr/sbin/nologin"
#: Primary group of former people.
MEMBER_OF_NONE = "nogroup"
#: An account that expired on this day, counted from 1970-01-01, is closed. sshd and PAM both check it.
_EXPIRED = "1"
_CLOSED_SHELLS = ("/usr/sbin/nologin", "/sbin/nologin", "/bin/false", "/usr/bin/false")
# A control group of Slurm: slurmd.service, slurmstepd.scope, or slurm with control groups of version 1.
_OF_SLURM = re.compile(r"/slurm[^/]*(/|$)")
# Of logins and timers. People can create folders with any name below their own slice.
_OF_SESSIONS = re.compile(r"/(user\.slice|sshd?\.service|sshd?@[^/]*|cron\.service|atd\.service)(/|$)")


def owned_ids(record, number_of):
    """Return {"users": {id: name}, "groups": {id: name}} of everyone who was requested until now.

    C(record) is the record of module shared_accounts. Those of older versions have the names of created accounts only. C(number_of) returns the id of a name.
    """
    owned = {}
    for kind in ("users", "groups"):
        owned[kind] = dict(record.get("ids", {}).get(kind, {}))
        for name in record.get(kind, []):
            number = number_of(kind, name)
            if number is not None and name not in owned[kind].values():
                owned[kind].setdefault(str(number), name)
    return owned


def remembered_clashes(requested, owned, accepted=()):
    """Return the requested ids that belonged to somebody else: kind, name, id and former owner of each.

    C(requested) has {"users": {name: id}, "groups": {name: id}}. C(owned) is a result of owned_ids, C(accepted) the ids that may be given to others.
    """
    clashes = []
    for kind in ("users", "groups"):
        for name, number in sorted(requested.get(kind, {}).items()):
            former = owned.get(kind, {}).get(str(number), name)
            if former != name and int(number) not in accepted:
                clashes.append({"kind": kind[:-1], "name": name, "id": int(number), "former": former})
    return clashes


def former_people(requested, record, owned):
    """Return the names of those who are recorded and no longer requested."""
    names = set(record.get("users", [])) | set(owned["users"].values())
    names.update(user for _group, user in record.get("members", []))
    return sorted(names - set(requested))


class _Memberships:
    def __init__(self, users, former, found, record):
        self.groups = {user["name"]: user["groups"] for user in users}
        for name in former:
            # A group of one's own opens nothing of others.
            self.groups[name] = [name] if found["primary"].get(name) == name else []
        self.found, self.created = found, set(record.get("users", []))
        self.placed = {tuple(pair) for pair in record.get("members", [])}
        self.set_primary = record.get("primary", {})
        self.plan = {"primary": [], "add": [], "remove": [], "by_hand": []}

    def primary(self, name):
        """Return the primary group that a person has after the run."""
        current = self.found["primary"].get(name)
        wanted = (self.groups[name] or [MEMBER_OF_NONE])[0]
        if current is None:
            return wanted
        # Records of older versions do not have it. These accounts were created with --gid.
        is_ours = name in self.created and current == self.set_primary.get(name, current)
        if not is_ours or current == wanted:
            return current
        self.plan["primary"].append((name, current, wanted))
        return wanted

    def run(self):
        requested = set()
        after = {}
        for name, groups in self.groups.items():
            requested.update((group, name) for group in groups)
            after[name] = self.primary(name)
            missing = [group for group in groups if group != after[name]]
            missing = [group for group in missing if name not in self.found["members"].get(group, ())]
            self.plan["add"] += [(group, name) for group in missing]
        for group, names in sorted(self.found["members"].items()):
            for name in sorted(names):
                pair = (group, name)
                if pair not in requested:
                    self.plan["remove" if pair in self.placed else "by_hand"].append(pair)
        for name, group in sorted(self.found["primary"].items()):
            if group in self.found["members"] and (group, name) not in requested and after.get(name, group) == group:
                self.plan["by_hand"].append((group, name))
        return self.plan


def memberships(users, former, found, record):
    """Return C(primary) (name, group before, group after), C(add), C(remove) and C(by_hand), which are pairs of group and name.

    C(users) have C(name) and C(groups), the first of which is the primary one. C(found) has the C(members) of all groups that are or were requested, without
    those whose primary group it is, and the C(primary) group of each account. Only what the record has is removed.
    """
    return _Memberships(users, former, found, record).run()


def parse_shadow(text):
    """Return {name: {"password": its hash, "expires": day}} of the text of /etc/shadow."""
    entries = {}
    for line in text.splitlines():
        fields = line.split(":")
        if len(fields) >= 8:
            entries[fields[0]] = {"password": fields[1], "expires": fields[7]}
    return entries


def _is_expired(expires, today):
    # shadow(5) says that 0 may mean both that it never expires and that it is expired.
    return expires.isdigit() and 0 < int(expires) <= today


def is_shut(account, today):
    """Whether an account admits nobody: it is expired. C(account) has C(shell), and C(password) and C(expires) if the host has them in /etc/shadow."""
    return _is_expired(account.get("expires", ""), today) or account["shell"] in _CLOSED_SHELLS


def lock(account, today):
    """Return (options of usermod that close the account, what it had before); ([], {}) if it is closed."""
    options, before = [], {}
    if not account["password"].startswith(("!", "*")):
        options.append("--lock")
        before["password"] = True
    if not _is_expired(account["expires"], today):
        options += ["--expiredate", _EXPIRED]
        before["expires"] = account["expires"]
    if account["shell"] not in _CLOSED_SHELLS:
        options += ["--shell", NOLOGIN]
        before["shell"] = account["shell"]
    return options, before


def unlock(account, before):
    """Return the options of usermod that undo a lock. What somebody else has changed since then stays."""
    options = []
    if before.get("password") and account["password"].startswith("!") and account["password"].strip("!"):
        options.append("--unlock")
    if "expires" in before and account["expires"] == _EXPIRED:
        options += ["--expiredate", before["expires"]]
    if "shell" in before and account["shell"] == NOLOGIN:
        options += ["--shell", before["shell"]]
    return options


def parse_process(status, cgroup):
    """Return name, parent, uid, groups and control groups of a process, from its files status and cgroup below /proc; None if it is ending."""
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    if not {"Name", "PPid", "Uid", "Gid"}.issubset(fields) or fields.get("State", "").split()[:1] == ["Z"]:
        return None
    groups = {int(number) for number in fields["Gid"].split() + fields.get("Groups", "").split()}
    return {
        "name": fields["Name"].strip(),
        "parent": int(fields["PPid"]),
        "uids": {int(number) for number in fields["Uid"].split()},
        "groups": groups,
        "cgroups": [line.split(":", 2)[2] for line in cgroup.splitlines() if line.count(":") >= 2],
    }


def _is_of_a_job(pid, processes):
    paths = processes[pid]["cgroups"]
    if any(_OF_SESSIONS.search(path) for path in paths) or not any(_OF_SLURM.search(path) for path in paths):
        return False
    # A login that pam_slurm_adopt has moved into the control group of a job is not the job.
    seen = set()
    while pid in processes and pid not in seen:
        if processes[pid]["name"].startswith("sshd"):
            return False
        seen.add(pid)
        pid = processes[pid]["parent"]
    return True


def processes_to_end(processes, uid, ranges, is_foreign):
    """Return (pids of a former person to end, pids of the person's jobs), from {pid: result of parse_process}.

    C(ranges) are the person's subordinate ids (first, end). C(is_foreign) tells of a pid whether it is in a container of root's engine, whose ids are not the
    ids of people.
    """
    ended, of_jobs = [], []
    for pid, process in sorted(processes.items()):
        is_theirs = uid in process["uids"] or any(first <= number < end for first, end in ranges for number in process["uids"])
        if not is_theirs or is_foreign(pid):
            continue
        (of_jobs if _is_of_a_job(pid, processes) else ended).append(pid)
    return ended, of_jobs


def stale_groups(processes, people, gids):
    """Return [(name, group, pids)] of processes that still have a group that their owner has left.

    C(people) is {uid: (name, names of the person's groups)}, C(gids) is {gid: group} of the groups that are or were requested.
    """
    found = {}
    for pid, process in sorted(processes.items()):
        for uid in process["uids"].intersection(people):
            name, groups = people[uid]
            left = {gids[number] for number in process["groups"].intersection(gids)}.difference(groups)
            for group in left:
                found.setdefault((name, group), []).append(pid)
    return [(name, group, pids) for (name, group), pids in sorted(found.items())]
