# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What was found in Slurm's accounting database and what is requested, as commands of sacctmgr.

The record remembers what was created and the former values of what was changed. Only that is removed or restored. A record is a dictionary of "qos NAME",
"account NAME", "member ACCOUNT PERSON" and "operator PERSON"; each has C(created), C(fields) with [former value, value that was set] by field, and an account
the QOS that were added to it.
"""

from __future__ import annotations

import re

from typing import NamedTuple

from ansible_collections.trainyard.gpu.plugins.module_utils._sacctmgr import CPU, GPU, MEMORY
from ansible_collections.trainyard.gpu.plugins.module_utils._slurm_priorities import (
    MOST,
    NAME,
    NAMES,
    priority_faults,
)

__all__ = [
    "Found",
    "Plan",
    "Step",
    "default_priority",
    "diff_of",
    "faults",
    "plan",
    "settled_record",
]

_PERSON = re.compile(r"[a-z_][a-z0-9_-]{0,31}", re.ASCII)
_PERSONS = (
    "lower-case letters, digits, _ and -, at most 32, beginning with a letter or _, and not root"
)
# | separates columns, and quotes are taken away or replaced.
_DESCRIPTION = re.compile(r"[ -~]{1,200}")
# A line of arguments must stay below 128 KiB.
_NAMES_PER_COMMAND = 1000

_DEFAULTS = {
    "qos": {"priority": 0, "preempts": [], "mode": "cluster", "deny": False},
    "account": {
        "gpus": None,
        "minutes": None,
        "default_qos": "",
        "cpus": None,
        "memory_mib": None,
        "running": None,
        "submit": None,
    },
    "member": {"gpus": None, "submit": None},
}
# Rights in Slurm: those of operators, and none. AdminLevel=Operator sees all jobs, but slurmctld lets only an Administrator drain nodes (22.05.8).
_OPERATOR, _NO_RIGHTS = "Administrator", ("", "None", "Not Set")
# Options of an account that have a default for the whole cluster: fields here, and the factor.
_WITH_DEFAULT = {
    "cpus": ("cpus", 1),
    "memory_gb": ("memory_mib", 1024),
    "max_jobs_per_person": ("running", 1),
    "max_submitted_per_person": ("submit", 1),
}
_TRES = {"gpus": GPU, "cpus": CPU, "memory_mib": MEMORY}


class Found(NamedTuple):
    """The tables of the database, as _sacctmgr reads them. C(users) is of the cluster, the rest of all clusters."""

    cluster: str
    qos: dict
    accounts: dict
    associations: list
    users: dict


class Step(NamedTuple):
    """Arguments of sacctmgr. C(content) is the file that LOAD stands for, C(what) says what the step does."""

    arguments: list
    what: str
    content: str = ""


class Plan(NamedTuple):
    """C(changes) has what, action, before and after. C(removes) says whether jobs may be in the way, and C(waiting) that they are."""

    changes: list
    steps: list
    record: dict
    waiting: list
    kept: list
    others: list
    removes: bool


def _name_faults(label: str, values: list, pattern: re.Pattern, allowed: str) -> list[str]:
    """Return what is wrong with names: those that are not valid, and those that are listed twice."""
    wrong = [
        "%s: '%s' is not a valid name; use %s" % (label, name, allowed)
        for name in values
        if not isinstance(name, str) or not pattern.fullmatch(name) or name == "root"
    ]
    twice = sorted({str(name) for name in values if list(values).count(name) > 1})
    return wrong + ["%s: '%s' is listed twice; remove one" % (label, name) for name in twice]


def _number_faults(label: str, value: object, low: int) -> list[str]:
    """Return what is wrong with a number that may be missing."""
    if value is None:
        return []
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= MOST:
        return []
    text = "%s: '%s' is not valid; use a whole number from %d to %d"
    return [text % (label, value, low, MOST)]


def _limit_faults(entry: dict) -> list[str]:
    """Return what is wrong with the limits of an account."""
    name, gpus, each = entry["name"], entry.get("gpus"), entry.get("max_gpus_per_person")
    wrong = _number_faults("gpus of %s" % name, gpus, 0)
    wrong += _number_faults("max_gpus_per_person of %s" % name, each, 0)
    wrong += _number_faults("max_minutes of %s" % name, entry.get("max_minutes"), 1)
    defaults = entry.get("defaults") or {}
    for option in _WITH_DEFAULT:
        wrong += _number_faults("%s of %s" % (option, name), entry.get(option), 1)
        wrong += _number_faults("defaults.%s of %s" % (option, name), defaults.get(option), 1)
    if isinstance(gpus, int) and isinstance(each, int) and each > gpus:
        wrong.append(
            "max_gpus_per_person of %s: '%d' is above the %d GPUs of the account; set %d or less"
            % (name, each, gpus, gpus)
        )
    return wrong


def _is_description(text: str) -> bool:
    has_sign = any(sign in text for sign in "|\"'`\\")
    return bool(_DESCRIPTION.fullmatch(text)) and not has_sign and text == text.strip()


def faults(accounts, priorities, operators=()):
    """Return what is wrong with a request, as texts."""
    wrong = ["priorities: " + fault for fault in priority_faults(priorities)]
    wrong += _name_faults("accounts", [entry["name"] for entry in accounts], NAME, NAMES)
    members = set()
    for entry in accounts:
        people, text = entry.get("members") or [], entry.get("description")
        wrong += _limit_faults(entry)
        wrong += _name_faults("members of %s" % entry["name"], people, _PERSON, _PERSONS)
        if text and not _is_description(text):
            wrong.append(
                "description of %s: '%s' is not valid; use at most 200 printable ASCII characters without | \" ' ` \\"
                % (entry["name"], text)
            )
        members.update(people)
    text = "operators: '%s' is in no account; list the person in members of one"
    return wrong + [text % person for person in operators if person not in members]


def default_priority(priorities):
    """Return the QOS of a job that names none: normal, else the first of the list."""
    names = [entry["name"] for entry in priorities]
    return "normal" if "normal" in names else (names or [""])[0]


def _requested(accounts, priorities, operators):
    """Return {(kind, name...): {field: value}}, in the order in which it is created."""
    requested = {}
    preempted = {name for entry in priorities for name in entry.get("preempts") or []}
    waiting = list(priorities)
    while waiting:
        # A QOS must exist before another one can preempt it.
        entry = next(
            entry
            for entry in waiting
            if not set(entry.get("preempts") or []) & {other["name"] for other in waiting}
        )
        waiting.remove(entry)
        # DenyOnLimit refuses a job at submit that alone is over a limit. It would wait for ever otherwise.
        requested[("qos", entry["name"])] = {
            "priority": entry.get("priority", 0),
            "preempts": sorted(entry.get("preempts") or []),
            "deny": True,
        }
        if entry["name"] in preempted:
            requested[("qos", entry["name"])]["mode"] = "requeue"
    for entry in accounts:
        fields = {
            "description": (entry.get("description") or "").lower(),
            "gpus": entry.get("gpus"),
            "minutes": entry.get("max_minutes"),
            "default_qos": default_priority(priorities),
        }
        fields.update(_limits_of(entry))
        requested[("account", entry["name"])] = {
            name: value for name, value in fields.items() if value not in (None, "")
        }
    for entry in accounts:
        for person in entry.get("members") or []:
            limit = entry.get("max_gpus_per_person")
            requested[("member", entry["name"], person)] = {} if limit is None else {"gpus": limit}
    for person in operators:
        requested[("operator", person)] = {"admin": _OPERATOR}
    return requested


def _limits_of(options: dict) -> dict:
    """Return {field: value} of the options of an account, or of its C(defaults)."""
    limits = {}
    for option, (field, factor) in _WITH_DEFAULT.items():
        if options.get(option) is not None:
            limits[field] = options[option] * factor
    return limits


def _state(found):
    """Return the same of what was found, with all fields."""
    state = {
        ("qos", name): {
            "priority": qos.priority,
            "preempts": sorted(qos.preempts),
            "mode": qos.mode,
            "deny": "DenyOnLimit" in qos.flags,
        }
        for name, qos in found.qos.items()
    }
    for person, user in found.users.items():
        state[("operator", person)] = {"admin": user.admin}
    for row in found.associations:
        if row.cluster != found.cluster or row.account == "root" or row.partition:
            continue
        if row.user:
            state[("member", row.account, row.user)] = {
                "gpus": row.limits.get(GPU),
                "submit": row.submit,
            }
        else:
            state[("account", row.account)] = {
                "description": found.accounts.get(row.account, ""),
                "gpus": row.limits.get(GPU),
                "minutes": row.minutes,
                "default_qos": row.default_qos,
                "cpus": row.limits.get(CPU),
                "memory_mib": row.limits.get(MEMORY),
                "running": row.running,
                "submit": row.submit,
            }
    return state


class _Planner:
    def __init__(self, found, accounts, priorities, record, jobs, operators):
        self.found, self.accounts, self.jobs = found, accounts, jobs
        self.record = {tuple(key.split(" ")): entry for key, entry in record.items()}
        self.state = _state(found)
        self.requested = _requested(accounts, priorities, operators)
        for person in operators:
            # Somebody new has an entry when the step that adds people is done.
            self.state.setdefault(("operator", person), {"admin": _NO_RIGHTS[1]})
        for entry in accounts:
            self.add_defaults(("account", entry["name"]), _limits_of(entry.get("defaults") or {}))
        self.priorities = [entry["name"] for entry in priorities]
        self.rows = [row for row in found.associations if row.cluster == found.cluster]
        self.listed = {row.account: set(row.qos) for row in self.rows if not row.user}
        self.inherits = {row.account for row in self.rows if not row.user and row.inherits}
        self.after, self.created, self.sets, self.deleted = {}, [], {}, []
        self.added, self.taken, self.waiting, self.kept = {}, {}, [], []
        self.removes = False

    def is_administrator(self, person: str) -> bool:
        """Return whether somebody has rights in the database that this run leaves."""
        user = self.found.users.get(person)
        planned = self.sets.get(("operator", person), {})
        return bool(user) and planned.get("admin", user.admin) not in _NO_RIGHTS

    def add_defaults(self, key: tuple, fields: dict) -> None:
        """Request the default limits of an account. A limit that somebody has set by hand stays."""
        recorded = self.record.get(key, {}).get("fields", {})
        for name, value in fields.items():
            now = self.state.get(key, {}).get(name)
            if now is None or now == recorded.get(name, [None, None])[1]:
                self.requested[key].setdefault(name, value)

    def field(self, key, name, value):
        if self.state[key][name] != value:
            self.sets.setdefault(key, {})[name] = value

    def restore(self, key, fields):
        """Restore the former values of fields. A value that somebody else has set since then stays."""
        for name, (former, ours) in fields.items():
            if self.state[key][name] == ours:
                self.field(key, name, former)

    def present(self, key, fields):
        entry = self.record.get(key, {})
        recorded = entry.get("fields", {})
        if key not in self.state:
            self.created.append(key)
            defaults = dict(_DEFAULTS[key[0]], description=key[1])
            after = {
                "created": True,
                "fields": {name: [defaults[name], value] for name, value in fields.items()},
            }
        else:
            after = {"created": entry.get("created", False), "fields": {}}
            for name, value in fields.items():
                if name in recorded:
                    after["fields"][name] = [recorded[name][0], value]
                elif self.state[key][name] != value:
                    after["fields"][name] = [self.state[key][name], value]
                self.field(key, name, value)
            self.restore(
                key, {name: values for name, values in recorded.items() if name not in fields}
            )
        if key[0] == "account":
            ours = set(entry.get("qos", [])) if key in self.state else set()
            listed = self.listed.get(key[1], set()) if key in self.state else set()
            wanted = set(self.priorities)
            if wanted - listed:
                self.added[key[1]] = sorted(wanted - listed)
            self.take(key[1], ours - wanted)
            if ours & wanted or wanted - listed:
                after["qos"] = sorted(ours & wanted | wanted - listed)
        if after["created"] or after["fields"] or after.get("qos"):
            self.after[key] = after

    def take(self, account, names):
        if names & self.listed.get(account, set()):
            self.taken[account] = sorted(names & self.listed[account])

    def absent(self, key, entry):
        """Restore what was changed. What was created is deleted later, because the order matters."""
        if key in self.state and not entry.get("created"):
            self.restore(key, entry.get("fields", {}))
            if key[0] == "account":
                self.take(key[1], set(entry.get("qos", [])))

    def stays(self, key, entry, reason=None, jobs=()):
        self.after[key] = entry
        what = " ".join(key) if key[0] != "member" else "%s in account %s" % (key[2], key[1])
        if reason:
            self.kept.append({"what": what, "reason": reason})
        else:
            self.waiting.append({"what": what, "jobs": [job.number for job in jobs]})

    def remove_members(self, entries):
        for key, entry in entries:
            dummy, account, person = key
            others = [
                row
                for row in self.found.associations
                if row.user == person
                and (row.cluster, row.account) != (self.found.cluster, account)
                and not (
                    row.cluster == self.found.cluster
                    and any(
                        row.account == other[1] and person == other[2] for other, dummy in entries
                    )
                )
            ]
            jobs = [job for job in self.jobs if (job.account, job.user) == (account, person)]
            if any(
                row.partition and (row.account, row.user) == (account, person) for row in self.rows
            ):
                self.stays(
                    key,
                    entry,
                    "it has associations with partitions that were made by others, which would be deleted too",
                )
            elif not others and not self.member_of(person) and self.is_administrator(person):
                self.stays(
                    key,
                    entry,
                    "%s is an administrator of the database, and deleting the last account deletes the person"
                    % person,
                )
            elif jobs:
                # Slurm refuses to delete it. No more jobs can be submitted, and those that run go on.
                self.field(key, "submit", 0)
                former = entry.get("fields", {}).get("submit", [self.state[key]["submit"]])[0]
                self.stays(
                    key,
                    dict(entry, fields=dict(entry.get("fields", {}), submit=[former, 0])),
                    jobs=jobs,
                )
            else:
                self.deleted.append(key)

    def member_of(self, person):
        return [key for key in self.requested if key[0] == "member" and key[2] == person]

    def remove_accounts(self, entries):
        going = {key[1] for key, dummy in entries}
        for key, entry in entries:
            name = key[1]
            members = [
                row.user
                for row in self.rows
                if row.account == name
                and row.user
                and ("member", name, row.user) not in self.deleted
            ]
            below = sorted(
                {row.account for row in self.rows if row.parent == name and not row.user} - going
            )
            ours = [person for person in members if ("member", name, person) in self.after]
            if below or set(members) - set(ours):
                self.stays(
                    key,
                    entry,
                    "others have put %s into it"
                    % ", ".join(below + sorted(set(members) - set(ours))),
                )
            elif any(each["what"].endswith(" in account " + name) for each in self.kept):
                self.stays(key, entry, "one of its people is kept")
            elif members:
                self.stays(key, entry, jobs=[job for job in self.jobs if job.account == name])
            else:
                self.deleted.append(key)

    def remove_qos(self, entries):
        for key, entry in entries:
            name = key[1]
            using = []
            for row in self.found.associations:
                here = row.cluster == self.found.cluster
                gone = (
                    here
                    and (
                        ("member", row.account, row.user) if row.user else ("account", row.account)
                    )
                    in self.deleted
                )
                taken = here and not row.user and name in self.taken.get(row.account, ())
                default = row.default_qos
                if here and not row.user:
                    default = self.sets.get(("account", row.account), {}).get(
                        "default_qos", default
                    )
                if not gone and (default == name or (name in row.qos and not taken)):
                    using.append(row.account + (" for " + row.user if row.user else ""))
            jobs = [job for job in self.jobs if job.qos == name]
            # Pending jobs would wait with InvalidQOS for ever.
            if jobs:
                self.stays(key, entry, jobs=jobs)
            elif using:
                self.stays(key, entry, "account %s has it" % ", ".join(sorted(using)))
            else:
                self.deleted.append(key)

    def defaults(self):
        """Return {person: default account} of those who get another one, and {person: default account} for new associations."""
        changed, in_file = {}, {}
        accounts = {}
        for row in self.rows:
            if row.user and row.account != "root":
                accounts.setdefault(row.user, []).append(row.account)
        new = {}
        for key in self.created:
            if key[0] == "member":
                new.setdefault(key[2], []).append(key[1])
        for person in sorted(set(accounts) | set(new)):
            remaining = [
                name
                for name in accounts.get(person, [])
                if ("member", name, person) not in self.deleted
            ]
            current = self.found.users[person].default if person in self.found.users else ""
            requested = [key[1] for key in self.member_of(person)]
            chosen = (requested + sorted(remaining) + [""])[0]
            # A person may choose another default account, so any of the person's accounts is good.
            if current in remaining + new.get(person, []):
                chosen = current
            in_file[person] = current if current in accounts.get(person, []) else chosen
            # Only who has been touched: somebody else's people are left as they are.
            touched = person in new or any(
                key[0] == "member" and key[2] == person for key in self.deleted
            )
            if (
                touched
                and accounts.get(person)
                and remaining + new.get(person, [])
                and chosen != in_file[person]
            ):
                changed[person] = chosen
        return changed, in_file

    def run(self):
        for key, fields in self.requested.items():
            self.present(key, fields)
        going = [
            (key, entry) for key, entry in sorted(self.record.items()) if key not in self.requested
        ]
        for key, entry in going:
            self.absent(key, entry)
        going = [(key, entry) for key, entry in going if key in self.state and entry.get("created")]
        self.removes = bool(going)
        self.remove_members([each for each in going if each[0][0] == "member"])
        self.remove_accounts([each for each in going if each[0][0] == "account"])
        self.remove_qos([each for each in going if each[0][0] == "qos"])
        changed, in_file = self.defaults()
        ours = {key[1] for key in self.requested if key[0] == "account"}
        others = sorted(
            "%s in account %s" % (row.user, row.account)
            for row in self.rows
            if row.account in ours
            and row.user
            and ("member", row.account, row.user) not in self.requested
            and ("member", row.account, row.user) not in self.record
        )
        record = {" ".join(key): entry for key, entry in self.after.items()}
        return Plan(
            self.changes(changed),
            self.steps(changed, in_file),
            record,
            self.waiting,
            self.kept,
            others,
            self.removes,
        )

    def changes(self, defaults):
        changes = []
        for key in self.created:
            fields = dict(self.requested[key])
            if key[0] == "account" and key[1] in self.added:
                fields["qos"] = self.added[key[1]]
            changes.append({"what": " ".join(key), "action": "add", "before": {}, "after": fields})
        for key in sorted(
            set(self.sets)
            | {("account", name) for name in list(self.added) + list(self.taken)}
            - set(self.created)
        ):
            fields = self.sets.get(key, {})
            before, after = {name: self.state[key][name] for name in fields}, dict(fields)
            if key[0] == "account" and (key[1] in self.added or key[1] in self.taken):
                before["qos"] = sorted(self.listed[key[1]])
                after["qos"] = sorted(
                    self.listed[key[1]] - set(self.taken.get(key[1], ()))
                    | set(self.added.get(key[1], ()))
                )
            changes.append(
                {"what": " ".join(key), "action": "change", "before": before, "after": after}
            )
        for person, account in sorted(defaults.items()):
            changes.append(
                {
                    "what": "person " + person,
                    "action": "change",
                    "before": {"default_account": self.found.users[person].default},
                    "after": {"default_account": account},
                }
            )
        for key in self.deleted:
            changes.append(
                {"what": " ".join(key), "action": "remove", "before": self.state[key], "after": {}}
            )
        return changes

    def steps(self, defaults, in_file):
        """Return the commands of sacctmgr, in the order in which they succeed. C(defaults) are new default accounts by person."""
        cluster = "cluster=" + self.found.cluster
        steps = self.qos_steps()
        new = [key for key in self.created if key[0] != "qos"]
        if new:
            # One transaction, which is done as a whole or not at all. An add command for each account takes twice as long.
            names = _listed([" ".join(key) for key in new])
            steps.append(Step(["load", "file=LOAD"], "add " + names, self.file(new, in_file)))
        steps += self.account_steps(cluster)
        steps += self.taken_steps(cluster)
        steps += self.person_steps(defaults, cluster)
        return steps + self.deletions(cluster)

    def qos_steps(self):
        """Return the commands that create and change QOS."""
        steps = []
        for key in self.created:
            if key[0] == "qos":
                fields = self.requested[key]
                words = ["add", "qos", key[1], "Priority=%d" % fields["priority"]]
                words.append("Flags=DenyOnLimit")
                words += ["Preempt=" + ",".join(fields["preempts"])] if fields["preempts"] else []
                words += ["PreemptMode=" + fields["mode"]] if "mode" in fields else []
                steps.append(Step(words, "add priority " + key[1]))
        for key in sorted(self.sets):
            if key[0] == "qos":
                words = ["modify", "qos", "where", "name=" + key[1], "set"]
                words += _settings(self.sets[key])
                steps.append(Step(words, "change priority " + key[1]))
        return steps

    def account_steps(self, cluster):
        """Return the commands that change accounts which exist, those with equal settings together."""
        groups = {}
        changed = {key[1] for key in self.sets if key[0] == "account"} | set(self.added)
        for account in sorted(changed):
            if ("account", account) in self.created:
                continue
            settings = _settings(self.sets.get(("account", account), {}))
            settings += ["QOS+=" + ",".join(self.added[account])] if account in self.added else []
            if settings:
                groups.setdefault(tuple(settings), []).append(account)
        return _grouped(
            groups,
            lambda names, settings: (
                ["modify", "account", "where", names, cluster, "set"] + list(settings)
            ),
            "change account",
        )

    def taken_steps(self, cluster):
        """Return the commands that take QOS away from accounts."""
        groups, rest = {}, {}
        for account, names in sorted(self.taken.items()):
            if account not in self.inherits:
                groups.setdefault("QOS-=" + ",".join(names), []).append(account)
                continue
            # QOS-= would also take away what the account inherits.
            groups.setdefault("QOS=", []).append(account)
            names = self.listed[account] - set(names) | set(self.added.get(account, ()))
            if names:
                rest.setdefault("QOS+=" + ",".join(sorted(names)), []).append(account)
        steps = []
        for each in (groups, rest):
            steps += _grouped(
                each,
                lambda names, setting: (
                    ["modify", "account", "where", names, cluster, "set"] + [setting]
                ),
                "change the QOS of account",
            )
        return steps

    def person_steps(self, defaults, cluster):
        """Return the commands that change limits, rights and default accounts of people."""
        limits, rights, accounts = {}, {}, {}
        for key in sorted(self.sets):
            if key[0] == "member":
                limits.setdefault((key[1], tuple(_settings(self.sets[key]))), []).append(key[2])
            if key[0] == "operator":
                rights.setdefault(tuple(_settings(self.sets[key])), []).append(key[1])
        for person, account in sorted(defaults.items()):
            accounts.setdefault(account, []).append(person)
        steps = _grouped(
            limits,
            lambda names, group: (
                ["modify", "user", "where", names, "account=" + group[0], cluster, "set"]
                + list(group[1])
            ),
            "change limits of",
        )
        # The rights of a person are the same in all clusters of the database.
        steps += _grouped(
            rights,
            lambda names, settings: ["modify", "user", "where", names, "set"] + list(settings),
            "change the rights of",
        )
        return steps + _grouped(
            accounts,
            lambda names, account: (
                ["modify", "user", "where", names, cluster, "set"] + ["DefaultAccount=" + account]
            ),
            "change the default account of",
        )

    def deletions(self, cluster):
        whole, here_only, groups = [], [], {}
        here, elsewhere = (
            {},
            {row.user for row in self.found.associations if row.cluster != self.found.cluster},
        )
        for row in self.rows:
            if row.user:
                here.setdefault(row.user, set()).add(("member", row.account, row.user))
        deleted = set(self.deleted)
        for key in self.deleted:
            if key[0] == "member":
                # Slurm refuses to delete a default account, unless the person has no other one left in the cluster.
                if not here[key[2]] <= deleted or self.member_of(key[2]):
                    groups.setdefault(key[1], []).append(key[2])
                elif key[2] in elsewhere:
                    here_only.append(key[2])
                else:
                    whole.append(key[2])
        # 22.05 refuses some of them if the cluster is named.
        steps = _grouped(
            {"": sorted(set(whole))} if whole else {},
            lambda names, dummy: ["delete", "user", "where", names],
            "remove",
        )
        steps += _grouped(
            {"": sorted(set(here_only))} if here_only else {},
            lambda names, dummy: ["delete", "user", "where", names, cluster],
            "remove",
        )
        steps += _grouped(
            groups,
            lambda names, account: [
                "delete",
                "user",
                "where",
                names,
                "account=" + account,
                cluster,
            ],
            "remove from an account",
        )
        elsewhere = {
            row.account for row in self.found.associations if row.cluster != self.found.cluster
        }
        accounts = [key[1] for key in self.deleted if key[0] == "account"]
        # If the cluster is named, only the association is deleted, and sacctmgr show account still has the account.
        for names, place in (
            ([name for name in accounts if name not in elsewhere], []),
            ([name for name in accounts if name in elsewhere], [cluster]),
        ):
            steps += _grouped(
                {tuple(place): names} if names else {},
                lambda names, place: ["delete", "account", "where", names] + list(place),
                "remove account",
            )
        names = [key[1] for key in self.deleted if key[0] == "qos"]
        return steps + _grouped(
            {"": names} if names else {},
            lambda names, dummy: ["delete", "qos", "where", names],
            "remove priority",
        )

    def file(self, new, in_file):
        """Return the file for sacctmgr load. It adds only: what it does not name stays."""
        lines = ["Cluster - '%s'" % self.found.cluster, "Parent - 'root'"]
        for key in new:
            if key[0] == "account":
                fields = self.requested[key]
                words = [
                    "Account - '%s'" % key[1],
                    "Description='%s'" % fields.get("description", key[1]),
                    "Organization='trainyard'",
                ]
                of_file = set(fields) & {*_TRES, "running", "submit"}
                words += _settings({name: fields[name] for name in of_file})
                words += (
                    ["MaxWallDurationPerJob=%d" % fields["minutes"]] if "minutes" in fields else []
                )
                words += (
                    [
                        "QOS='%s'" % ",".join(sorted(self.priorities)),
                        "DefaultQOS='%s'" % fields["default_qos"],
                    ]
                    if self.priorities
                    else []
                )
                lines.append(":".join(words))
        for entry in self.accounts:
            people = [key for key in new if key[0] == "member" and key[1] == entry["name"]]
            lines += ["Parent - '%s'" % entry["name"]] if people else []
            for key in people:
                words = ["User - '%s'" % key[2], "DefaultAccount='%s'" % in_file[key[2]]]
                words += (
                    ["GrpTRES=%s=%d" % (GPU, self.requested[key]["gpus"])]
                    if "gpus" in self.requested[key]
                    else []
                )
                lines.append(":".join(words))
        return "\n".join(lines) + "\n"


def _settings(fields):
    """Return the settings of sacctmgr for fields. -1 clears a limit."""
    limits = []
    for name in sorted(set(_TRES) & set(fields)):
        limits.append("%s=%d" % (_TRES[name], _or_none(fields[name])))
    words = ["GrpTRES=" + ",".join(limits)] if limits else []
    return words + [_WORDS[name](fields[name]) for name in sorted(set(_WORDS) & set(fields))]


def _or_none(limit: int | None) -> int:
    return -1 if limit is None else limit


#: The setting of sacctmgr for the value of a field.
_WORDS = {
    "minutes": lambda value: "MaxWall=%d" % _or_none(value),
    "submit": lambda value: "MaxSubmitJobs=%d" % _or_none(value),
    "running": lambda value: "MaxJobs=%d" % _or_none(value),
    "description": lambda value: "Description=" + value,
    "default_qos": lambda value: "DefaultQOS=" + (value or "-1"),
    "priority": lambda value: "Priority=%d" % value,
    "mode": lambda value: "PreemptMode=" + value,
    # Preempt=-1, which clears other lists, is read as the name of a QOS.
    "preempts": lambda value: "Preempt=" + ",".join(value),
    "admin": lambda value: "AdminLevel=" + value,
    "deny": lambda value: "Flags%s=DenyOnLimit" % ("+" if value else "-"),
}


def _grouped(groups, arguments, what):
    steps = []
    for group, names in groups.items():
        for start in range(0, len(names), _NAMES_PER_COMMAND):
            some = names[start : start + _NAMES_PER_COMMAND]
            steps.append(
                Step(arguments("name=" + ",".join(some), group), "%s %s" % (what, _listed(some)))
            )
    return steps


def _listed(names):
    return ", ".join(names[:5]) + (" and %d more" % (len(names) - 5) if len(names) > 5 else "")


def plan(found, accounts, priorities, record, jobs=(), operators=()):
    """Return the Plan. C(jobs) are those that have not ended, needed if something is removed."""
    return _Planner(found, accounts, priorities, record, jobs, operators).run()


def settled_record(found, before, after):
    """Return the record after a run that failed halfway, by what the database has now."""
    state, settled = _state(found), {}
    for key in sorted(set(before) | set(after)):
        entry = after.get(key) or before[key]
        now = state.get(tuple(key.split(" ")))
        if now is None:
            continue
        fields = {}
        for name in set(entry.get("fields", {})) | set(before.get(key, {}).get("fields", {})):
            for side in (after, before):
                values = side.get(key, {}).get("fields", {}).get(name)
                if values and now[name] == values[1]:
                    fields[name] = values
                    break
        kept = dict(entry, fields=fields)
        names = sorted(
            set(before.get(key, {}).get("qos", [])) | set(after.get(key, {}).get("qos", []))
        )
        if names:
            kept["qos"] = names
        if kept.get("created") or fields or names:
            settled[key] = kept
    return settled


def diff_of(changes):
    """Return before and after as text."""
    sides = {}
    for side, without in (("before", "add"), ("after", "remove")):
        lines = []
        for change in changes:
            if change["action"] != without:
                values = ", ".join(
                    "%s: %s" % (name, _shown(value)) for name, value in sorted(change[side].items())
                )
                lines.append("%s%s" % (change["what"], " (%s)" % values if values else ""))
        sides[side] = "".join(line + "\n" for line in sorted(lines))
    return sides


def _shown(value):
    if isinstance(value, list):
        return " ".join(value) or "none"
    return (
        "none"
        if value in (None, "")
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )
