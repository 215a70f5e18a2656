# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Memberships, former people and their ids: found and requested in, plan out. Pure functions."""

from __future__ import annotations

import re

from typing import Any, Callable, Container, Dict, Iterable, Mapping, Tuple, TypedDict

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
#: Day since 1970-01-01. sshd and PAM refuse an account that expired.
_EXPIRED = "1"
_CLOSED_SHELLS = ("/usr/sbin/nologin", "/sbin/nologin", "/bin/false", "/usr/bin/false")
# slurmd.service and slurmstepd.scope, or slurm with control groups of version 1.
_OF_SLURM = re.compile(r"/slurm[^/]*(/|$)")
# Of logins and timers. People can create folders with any name below their own slice.
_OF_SESSIONS = re.compile(r"/(user\.slice|sshd?(\.service|@[^/]*)|(cron|atd)\.service)(/|$)")


#: What module shared_accounts has recorded: names of users, groups and members that it created, and
#: the ids of everyone.
Record = Mapping[str, Any]
#: {"users": {id: name}, "groups": {id: name}}
Owned = Dict[str, Dict[str, str]]
#: Group and person.
Pair = Tuple[str, str]
#: First id and the one after the last.
Range = Tuple[int, int]


class RememberedClash(TypedDict):
    """An id that belonged to somebody else. C(kind) is user or group."""

    kind: str
    name: str
    id: int
    former: str


class Memberships(TypedDict):
    """What changes in groups: C(primary) has name, group before and group after.

    No record has C(by_hand), so they stay.
    """

    primary: list[tuple[str, str, str]]
    add: list[Pair]
    remove: list[Pair]
    by_hand: list[Pair]


class Process(TypedDict):
    """A process of /proc. C(uids) and C(groups) are numbers, C(cgroups) are paths."""

    name: str
    parent: int
    uids: set[int]
    groups: set[int]
    cgroups: list[str]


def owned_ids(record: Record, number_of: Callable[[str, str], int | None]) -> Owned:
    """Return {"users": {id: name}, "groups": {id: name}} of everyone who was requested until now.

    C(record) is the record of module shared_accounts. Those of older versions have the names of
    created accounts only. C(number_of) returns the id of a name.
    """
    owned: Owned = {}
    for kind in ("users", "groups"):
        owned[kind] = dict(record.get("ids", {}).get(kind, {}))
        for name in record.get(kind, []):
            number = number_of(kind, name)
            if number is not None and name not in owned[kind].values():
                owned[kind].setdefault(str(number), name)
    return owned


def remembered_clashes(
    requested: Mapping[str, Mapping[str, int]], owned: Owned, accepted: Container[int] = ()
) -> list[RememberedClash]:
    """Return kind, name, id and former owner of each requested id that belonged to somebody else.

    C(requested) has {name: id} of C(users) and C(groups). C(owned) is a result of owned_ids.
    C(accepted) are the ids that may be given to others.
    """
    clashes: list[RememberedClash] = []
    for kind in ("users", "groups"):
        for name, number in sorted(requested.get(kind, {}).items()):
            former = owned.get(kind, {}).get(str(number), name)
            if former == name or int(number) in accepted:
                continue
            clashes.append({"kind": kind[:-1], "name": name, "id": int(number), "former": former})
    return clashes


def former_people(requested: Iterable[str], record: Record, owned: Owned) -> list[str]:
    """Return the names of those who are recorded and no longer requested."""
    names: set[str] = set(record.get("users", [])) | set(owned["users"].values())
    names.update(user for _group, user in record.get("members", []))
    return sorted(names - set(requested))


class _Memberships:
    """Compares the groups that people have with those that are requested."""

    def __init__(
        self,
        users: Iterable[Mapping[str, Any]],
        former: Iterable[str],
        found: Mapping[str, Any],
        record: Record,
    ) -> None:
        self.members: dict[str, list[str]] = found["members"]
        self.found_primary: dict[str, str] = found["primary"]
        self.created = set(record.get("users", []))
        self.placed = {tuple(pair) for pair in record.get("members", [])}
        self.set_primary = record.get("primary", {})
        self.groups: dict[str, list[str]] = {user["name"]: user["groups"] for user in users}
        for name in former:
            # A group of one's own opens nothing of others.
            has_own = self.found_primary.get(name) == name
            self.groups[name] = [name] if has_own else []
        self.requested: set[Pair] = set()
        for name, groups in self.groups.items():
            self.requested.update((group, name) for group in groups)
        self.plan: Memberships = {"primary": [], "add": [], "remove": [], "by_hand": []}

    def primary(self, name: str) -> str:
        """Return the primary group that a person has after the run."""
        current = self.found_primary.get(name)
        requested = (self.groups[name] or [MEMBER_OF_NONE])[0]
        if current is None:
            return requested
        # Records of older versions do not have it. These accounts were created with --gid.
        was_set = current == self.set_primary.get(name, current)
        if current == requested or name not in self.created or not was_set:
            return current
        self.plan["primary"].append((name, current, requested))
        return requested

    def add(self, name: str, primary: str) -> None:
        """Plan the groups that a person lacks, other than the primary one."""
        for group in self.groups[name]:
            if group != primary and name not in self.members.get(group, ()):
                self.plan["add"].append((group, name))

    def run(self) -> Memberships:
        """Return the plan."""
        after = dict(self.found_primary)
        for name in self.groups:
            after[name] = self.primary(name)
            self.add(name, after[name])
        for group, names in sorted(self.members.items()):
            for pair in sorted((group, name) for name in names):
                if pair not in self.requested:
                    pairs = self.plan["remove"] if pair in self.placed else self.plan["by_hand"]
                    pairs.append(pair)
        for name, group in sorted(after.items()):
            if group in self.members and (group, name) not in self.requested:
                self.plan["by_hand"].append((group, name))
        return self.plan


def memberships(
    users: Iterable[Mapping[str, Any]],
    former: Iterable[str],
    found: Mapping[str, Any],
    record: Record,
) -> Memberships:
    """Return C(primary) (name, group before, group after), C(add), C(remove) and C(by_hand).

    The latter are pairs of group and name. C(users) have C(name) and C(groups), the first of which
    is the primary one. C(found) has the C(members) of all groups that are or were requested,
    without those whose primary group it is, and the C(primary) group of each account. Only what the
    record has is removed.
    """
    return _Memberships(users, former, found, record).run()


def parse_shadow(text: str) -> dict[str, dict[str, str]]:
    """Return {name: {"password": its hash, "expires": day}} of the text of /etc/shadow."""
    entries = {}
    for line in text.splitlines():
        fields = line.split(":")
        if len(fields) >= 8:
            entries[fields[0]] = {"password": fields[1], "expires": fields[7]}
    return entries


def _is_expired(expires: str, today: int) -> bool:
    """Return whether the day in a field of /etc/shadow has come.

    C(today) is in days since 1970-01-01.
    """
    # shadow(5) says that 0 may mean both that it never expires and that it is expired.
    return expires.isdigit() and 0 < int(expires) <= today


def is_shut(account: Mapping[str, str], today: int) -> bool:
    """Whether an account admits nobody.

    C(account) has C(shell), and C(password) and C(expires) if /etc/shadow has the account.
    """
    return _is_expired(account.get("expires", ""), today) or account["shell"] in _CLOSED_SHELLS


def lock(account: Mapping[str, str], today: int) -> tuple[list[str], dict[str, Any]]:
    """Return (options of usermod that close the account, what it had); ([], {}) if it is closed."""
    options: list[str] = []
    before: dict[str, Any] = {}
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


def unlock(account: Mapping[str, str], before: Mapping[str, Any]) -> list[str]:
    """Return the options of usermod that undo a lock. What others have changed since then stays."""
    options = []
    # usermod refuses to unlock an account without a password.
    has_password = account["password"].strip("!") != ""
    if before.get("password") and account["password"].startswith("!") and has_password:
        options.append("--unlock")
    if "expires" in before and account["expires"] == _EXPIRED:
        options += ["--expiredate", before["expires"]]
    if "shell" in before and account["shell"] == NOLOGIN:
        options += ["--shell", before["shell"]]
    return options


def parse_process(status: str, cgroup: str) -> Process | None:
    """Return name, parent, uids, groups and control groups of a process; None if it is ending.

    C(status) and C(cgroup) are the texts of its files below /proc.
    """
    fields: dict[str, list[str]] = {}
    # People choose names of processes and of their control groups.
    for line in status.split("\n"):
        name, _colon, value = line.partition(":")
        fields[name] = value.split()
    is_whole = {"Name", "PPid", "Uid", "Gid"}.issubset(fields)
    if not is_whole or fields.get("State", [])[:1] == ["Z"]:
        return None
    return {
        "name": " ".join(fields["Name"]),
        "parent": int(fields["PPid"][0]),
        "uids": {int(number) for number in fields["Uid"]},
        "groups": {int(number) for number in fields["Gid"] + fields.get("Groups", [])},
        "cgroups": [line.split(":", 2)[-1] for line in cgroup.split("\n") if line],
    }


def _is_of_a_job(pid: int, processes: Mapping[int, Process]) -> bool:
    """Return whether a process is in the control group of a job, and not of a login that Slurm has
    adopted.
    """
    paths = processes[pid]["cgroups"]
    if any(_OF_SESSIONS.search(path) for path in paths):
        return False
    if not any(_OF_SLURM.search(path) for path in paths):
        return False
    # A login that pam_slurm_adopt has moved into the control group of a job is not the job.
    seen = set()
    while pid in processes and pid not in seen:
        if processes[pid]["name"].startswith("sshd"):
            return False
        seen.add(pid)
        pid = processes[pid]["parent"]
    return True


def _is_theirs(process: Process, uid: int, ranges: Iterable[Range]) -> bool:
    """Return whether a process has an id of a person."""
    for number in process["uids"]:
        if number == uid or any(first <= number < end for first, end in ranges):
            return True
    return False


def processes_to_end(
    processes: Mapping[int, Process],
    uid: int,
    ranges: Iterable[Range],
    is_foreign: Callable[[int], bool],
) -> tuple[list[int], list[int]]:
    """Return (pids of a former person to end, pids of the person's jobs).

    C(processes) is {pid: result of parse_process}, C(ranges) are the person's subordinate ids
    (first, end). C(is_foreign) tells of a pid whether it is in a container of root's engine, whose
    ids are not the ids of people.
    """
    ended, of_jobs = [], []
    for pid, process in sorted(processes.items()):
        if not _is_theirs(process, uid, ranges) or is_foreign(pid):
            continue
        if _is_of_a_job(pid, processes):
            of_jobs.append(pid)
        else:
            ended.append(pid)
    return ended, of_jobs


def stale_groups(
    processes: Mapping[int, Process],
    people: Mapping[int, tuple[str, Iterable[str]]],
    gids: Mapping[int, str],
) -> list[tuple[str, str, list[int]]]:
    """Return [(name, group, pids)] of processes that still have a group that their owner has left.

    C(people) is {uid: (name, names of the person's groups)}, C(gids) is {gid: group} of the groups
    that are or were requested.
    """
    found: dict[tuple[str, str], list[int]] = {}
    for pid, process in sorted(processes.items()):
        for uid in process["uids"].intersection(people):
            name, groups = people[uid]
            has = {gids[number] for number in process["groups"].intersection(gids)}
            for group in has.difference(groups):
                found.setdefault((name, group), []).append(pid)
    return [(name, group, pids) for (name, group), pids in sorted(found.items())]
