# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What was found in Slurm's accounting database and what is requested, as commands of sacctmgr.

The record remembers what was created and the former values of what was changed. Only that is
removed or restored. A record is a dictionary of "qos NAME", "account NAME", "member ACCOUNT PERSON"
and "operator PERSON"; each has C(created), C(fields) with [former value, value that was set] by
field, and an account the QOS that were added to it.
"""

from __future__ import annotations

import re

from typing import Any, Callable, Dict, Iterable, Mapping, NamedTuple, Sequence, Tuple, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._sacctmgr import (
    CPU,
    GPU,
    MEMORY,
    Association,
    Job,
    Qos,
    User,
)
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

#: What is planned: ("qos", NAME), ("account", NAME), ("member", ACCOUNT, PERSON) or ("operator",
#: PERSON).
Key = Tuple[str, ...]
#: The values of a key, by field.
Fields = Dict[str, Any]

_PERSON = re.compile(r"[a-z_][a-z0-9_-]{0,31}", re.ASCII)
_PERSONS = (
    "lower-case letters, digits, _ and -, at most 32, beginning with a letter or _, and not root"
)
# | separates columns, and quotes are taken away or replaced.
_DESCRIPTION = re.compile(r"[ -~]{1,200}")
# A line of arguments must stay below 128 KiB.
_NAMES_PER_COMMAND = 1000

_DEFAULTS: dict[str, Fields] = {
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
# Rights in Slurm: those of operators, and none. AdminLevel=Operator sees all jobs, but slurmctld
# lets only an Administrator drain nodes (22.05.8).
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
    """The tables of the database, as _sacctmgr reads them.

    C(users) is of the cluster, the rest of all clusters.
    """

    cluster: str
    qos: dict[str, Qos]
    accounts: dict[str, str]
    associations: list[Association]
    users: dict[str, User]


class Priority(TypedDict, total=False):
    """An entry of option C(priorities) of module slurm_accounts."""

    name: str
    priority: int
    preempts: list[str] | None


class Account(TypedDict, total=False):
    """An entry of option C(accounts) of module slurm_accounts.

    C(defaults) has the last four options.
    """

    name: str
    description: str | None
    gpus: int | None
    max_gpus_per_person: int | None
    max_minutes: int | None
    members: list[str] | None
    defaults: dict[str, int | None] | None
    cpus: int | None
    memory_gb: int | None
    max_jobs_per_person: int | None
    max_submitted_per_person: int | None


class Entry(TypedDict, total=False):
    """The record of a key: [former value, value that was set] by field.

    C(qos) are those that an account got.
    """

    created: bool
    fields: dict[str, list[Any]]
    qos: list[str]


class Change(TypedDict):
    """A change for people. C(action) is add, change or remove."""

    what: str
    action: str
    before: Fields
    after: Fields


class Waiting(TypedDict):
    """What is not removed while C(jobs), which are numbers, have not ended."""

    what: str
    jobs: list[str]


class Kept(TypedDict):
    """What is not removed at all."""

    what: str
    reason: str


class Step(NamedTuple):
    """Arguments of sacctmgr.

    C(content) is the file that LOAD stands for, C(what) says what the step does.
    """

    arguments: list[str]
    what: str
    content: str = ""


class Plan(NamedTuple):
    """C(removes) says whether jobs may be in the way, and C(waiting) that they are.

    C(others) are members that others have added.
    """

    changes: list[Change]
    steps: list[Step]
    record: dict[str, Entry]
    waiting: list[Waiting]
    kept: list[Kept]
    others: list[str]
    removes: bool


def _name_faults(
    label: str, values: Sequence[object], pattern: re.Pattern[str], allowed: str
) -> list[str]:
    """Return what is wrong with names: those that are not valid, and those that are listed
    twice.
    """
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


def _limit_faults(entry: Account) -> list[str]:
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


def faults(
    accounts: Sequence[Account], priorities: Sequence[Priority], operators: Sequence[str] = ()
) -> list[str]:
    """Return what is wrong with a request, as texts."""
    wrong = ["priorities: " + fault for fault in priority_faults(priorities)]
    wrong += _name_faults("accounts", [entry["name"] for entry in accounts], NAME, NAMES)
    members: set[str] = set()
    for entry in accounts:
        people, text = entry.get("members") or [], entry.get("description")
        wrong += _limit_faults(entry)
        wrong += _name_faults("members of %s" % entry["name"], people, _PERSON, _PERSONS)
        if text and not _is_description(text):
            wrong.append(
                (
                    "description of %s: '%s' is not valid; use at most 200 printable ASCII "
                    "characters without | \" ' ` \\"
                )
                % (entry["name"], text)
            )
        members.update(people)
    text = "operators: '%s' is in no account; list the person in members of one"
    return wrong + [text % person for person in operators if person not in members]


def default_priority(priorities: Sequence[Priority]) -> str:
    """Return the QOS of a job that names none: normal, else the first of the list."""
    names = [entry["name"] for entry in priorities]
    return "normal" if "normal" in names else (names or [""])[0]


def _in_order(priorities: Sequence[Priority]) -> list[Priority]:
    """Return priorities in an order of creation: a QOS must exist before another one can preempt
    it.
    """
    ordered: list[Priority] = []
    waiting = list(priorities)
    while waiting:
        names = {entry["name"] for entry in waiting}
        entry = next(entry for entry in waiting if not names & set(entry.get("preempts") or []))
        waiting.remove(entry)
        ordered.append(entry)
    return ordered


def _requested_qos(priorities: Sequence[Priority]) -> dict[Key, Fields]:
    """Return the fields of each QOS."""
    requested: dict[Key, Fields] = {}
    preempted = {name for entry in priorities for name in entry.get("preempts") or []}
    for entry in _in_order(priorities):
        # DenyOnLimit refuses a job at submit that alone is over a limit. It would wait for ever
        # otherwise.
        fields: Fields = {
            "priority": entry.get("priority", 0),
            "preempts": sorted(entry.get("preempts") or []),
            "deny": True,
        }
        if entry["name"] in preempted:
            fields["mode"] = "requeue"
        requested[("qos", entry["name"])] = fields
    return requested


def _requested_account(entry: Account, default_qos: str) -> Fields:
    """Return the fields of an account: those that have a value."""
    fields: Fields = {
        "description": (entry.get("description") or "").lower(),
        "gpus": entry.get("gpus"),
        "minutes": entry.get("max_minutes"),
        "default_qos": default_qos,
    }
    fields.update(_limits_of(entry))
    return {name: value for name, value in fields.items() if value not in (None, "")}


def _requested(
    accounts: Sequence[Account], priorities: Sequence[Priority], operators: Sequence[str]
) -> dict[Key, Fields]:
    """Return {(kind, name...): {field: value}}, in the order in which it is created."""
    requested = _requested_qos(priorities)
    default_qos = default_priority(priorities)
    for entry in accounts:
        requested[("account", entry["name"])] = _requested_account(entry, default_qos)
    for entry in accounts:
        limit = entry.get("max_gpus_per_person")
        for person in entry.get("members") or []:
            requested[("member", entry["name"], person)] = {} if limit is None else {"gpus": limit}
    for person in operators:
        requested[("operator", person)] = {"admin": _OPERATOR}
    return requested


def _limits_of(options: Mapping[str, Any]) -> Fields:
    """Return {field: value} of the options of an account, or of its C(defaults)."""
    limits: Fields = {}
    for option, (field, factor) in _WITH_DEFAULT.items():
        if options.get(option) is not None:
            limits[field] = options[option] * factor
    return limits


def _key_of(row: Association) -> Key:
    """Return the key of an association."""
    return ("member", row.account, row.user) if row.user else ("account", row.account)


def _state(found: Found) -> dict[Key, Fields]:
    """Return the same of what was found, with all fields."""
    state: dict[Key, Fields] = {
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
            state[_key_of(row)] = {"gpus": row.limits.get(GPU), "submit": row.submit}
        else:
            state[_key_of(row)] = {
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
    """Compares the request with what was found, and collects what to create, set, take away and
    delete.
    """

    def __init__(
        self,
        found: Found,
        accounts: Sequence[Account],
        priorities: Sequence[Priority],
        record: Mapping[str, Entry],
        jobs: Sequence[Job],
        operators: Sequence[str],
    ) -> None:
        self.found, self.accounts, self.jobs = found, accounts, jobs
        self.cluster = "cluster=" + found.cluster
        self.record: dict[Key, Entry] = {
            tuple(key.split(" ")): entry for key, entry in record.items()
        }
        self.state = _state(found)
        self.requested = _requested(accounts, priorities, operators)
        for person in operators:
            # Somebody new has an entry when the step that adds people is done.
            self.state.setdefault(("operator", person), {"admin": _NO_RIGHTS[1]})
        for entry in accounts:
            self.add_defaults(("account", entry["name"]), _limits_of(entry.get("defaults") or {}))
        self.priorities = [entry["name"] for entry in priorities]
        self.rows = [row for row in found.associations if row.cluster == found.cluster]
        self.elsewhere = [row for row in found.associations if row.cluster != found.cluster]
        self.listed = {row.account: set(row.qos) for row in self.rows if not row.user}
        self.inherits = {row.account for row in self.rows if not row.user and row.inherits}
        # The record afterwards, and what the steps do: fields by key, QOS by account.
        self.after: dict[Key, Entry] = {}
        self.created: list[Key] = []
        self.sets: dict[Key, Fields] = {}
        self.deleted: list[Key] = []
        self.added: dict[str, list[str]] = {}
        self.taken: dict[str, list[str]] = {}
        self.waiting: list[Waiting] = []
        self.kept: list[Kept] = []
        self.removes = False

    def is_administrator(self, person: str) -> bool:
        """Return whether somebody has rights in the database that this run leaves."""
        user = self.found.users.get(person)
        if user is None:
            return False
        planned = self.sets.get(("operator", person), {})
        return planned.get("admin", user.admin) not in _NO_RIGHTS

    def add_defaults(self, key: Key, fields: Fields) -> None:
        """Request the default limits of an account. A limit that somebody has set by hand stays."""
        recorded = self.record.get(key, {}).get("fields", {})
        for name, value in fields.items():
            now = self.state.get(key, {}).get(name)
            if now is None or now == recorded.get(name, [None, None])[1]:
                self.requested[key].setdefault(name, value)

    def field(self, key: Key, name: str, value: object) -> None:
        """Set a field, unless it has this value."""
        if self.state[key][name] != value:
            self.sets.setdefault(key, {})[name] = value

    def restore(self, key: Key, fields: Mapping[str, list[Any]]) -> None:
        """Restore the former values of fields. A value that somebody else has set since
        then stays.
        """
        for name, (former, ours) in fields.items():
            if self.state[key][name] == ours:
                self.field(key, name, former)

    def present(self, key: Key, fields: Fields) -> None:
        """Create what is requested, or change it. Both are recorded."""
        entry = self.change(key, fields) if key in self.state else self.create(key, fields)
        if key[0] == "account":
            names = self.request_qos(key)
            if names:
                entry["qos"] = names
        if entry["created"] or entry["fields"] or entry.get("qos"):
            self.after[key] = entry

    def create(self, key: Key, fields: Fields) -> Entry:
        """Create a key, and return its record. The former values are Slurm's defaults."""
        self.created.append(key)
        defaults = dict(_DEFAULTS[key[0]], description=key[1])
        former = {name: [defaults[name], value] for name, value in fields.items()}
        return {"created": True, "fields": former}

    def change(self, key: Key, fields: Fields) -> Entry:
        """Set the fields of a key that exists, and return its record.

        Fields that are no longer requested are restored.
        """
        entry = self.record.get(key, {})
        recorded, values = entry.get("fields", {}), {}
        for name, value in fields.items():
            former = recorded[name][0] if name in recorded else self.state[key][name]
            if name in recorded or former != value:
                values[name] = [former, value]
            self.field(key, name, value)
        self.restore(key, {name: each for name, each in recorded.items() if name not in fields})
        return {"created": entry.get("created", False), "fields": values}

    def request_qos(self, key: Key) -> list[str]:
        """Give an account all priorities, take away those of earlier runs, and return those that
        are ours.
        """
        account, requested = key[1], set(self.priorities)
        ours: set[str] = set()
        listed: set[str] = set()
        if key in self.state:
            ours = set(self.record.get(key, {}).get("qos", []))
            listed = self.listed.get(account, set())
        missing = requested - listed
        if missing:
            self.added[account] = sorted(missing)
        self.take(account, ours - requested)
        return sorted(ours & requested | missing)

    def take(self, account: str, names: set[str]) -> None:
        """Take those of the QOS away from an account that it has."""
        if names & self.listed.get(account, set()):
            self.taken[account] = sorted(names & self.listed[account])

    def absent(self, key: Key, entry: Entry) -> None:
        """Restore what was changed. What was created is deleted later, because the order
        matters.
        """
        if key in self.state and not entry.get("created"):
            self.restore(key, entry.get("fields", {}))
            if key[0] == "account":
                self.take(key[1], set(entry.get("qos", [])))

    def keep(self, key: Key, entry: Entry, reason: str) -> None:
        """Do not remove a key, and say why."""
        self.after[key] = entry
        self.kept.append({"what": _name_of(key), "reason": reason})

    def wait(self, key: Key, entry: Entry, jobs: Iterable[Job]) -> None:
        """Do not remove a key in this run, because jobs have not ended."""
        self.after[key] = entry
        self.waiting.append({"what": _name_of(key), "jobs": [job.number for job in jobs]})

    def remove_members(self, entries: Mapping[Key, Entry]) -> None:
        """Delete associations of people, unless others or jobs need them."""
        for key, entry in entries.items():
            jobs = [job for job in self.jobs if (job.account, job.user) == key[1:]]
            reason = self.reason_to_keep_member(key, entries)
            if reason:
                self.keep(key, entry, reason)
            elif jobs:
                # Slurm refuses to delete it. No more jobs can be submitted, and those that run go
                # on.
                self.field(key, "submit", 0)
                fields = dict(entry.get("fields", {}))
                former = fields.get("submit", [self.state[key]["submit"]])[0]
                fields["submit"] = [former, 0]
                self.wait(key, {**entry, "fields": fields}, jobs)
            else:
                self.deleted.append(key)

    def reason_to_keep_member(self, key: Key, leaving: Iterable[Key]) -> str:
        """Return why an association of a person is not deleted, empty if it can be.

        C(leaving) are the keys that this run removes.
        """
        dummy, account, person = key
        if any(row.partition and (row.account, row.user) == key[1:] for row in self.rows):
            return (
                "it has associations with partitions that were made by others, which would be "
                "deleted too"
            )
        stays_member = any(row.user == person for row in self.elsewhere) or any(
            row.user == person and _key_of(row) not in leaving for row in self.rows
        )
        if not stays_member and not self.member_of(person) and self.is_administrator(person):
            return (
                "%s is an administrator of the database, and deleting the last account deletes "
                "the person"
            ) % person
        return ""

    def member_of(self, person: str) -> list[Key]:
        """Return the requested associations of a person."""
        return [key for key in self.requested if key[0] == "member" and key[2] == person]

    def remove_accounts(self, entries: Mapping[Key, Entry]) -> None:
        """Delete accounts, unless others or jobs need them."""
        leaving = {key[1] for key in entries}
        for key, entry in entries.items():
            name = key[1]
            left = self.members_left(name)
            strangers = {person for person in left if ("member", name, person) not in self.after}
            others = sorted(self.accounts_below(name) - leaving) + sorted(strangers)
            if others:
                self.keep(key, entry, "others have put %s into it" % ", ".join(others))
            elif any(each["what"].endswith(" in account " + name) for each in self.kept):
                self.keep(key, entry, "one of its people is kept")
            elif left:
                self.wait(key, entry, [job for job in self.jobs if job.account == name])
            else:
                self.deleted.append(key)

    def members_left(self, account: str) -> list[str]:
        """Return the members of an account that are not deleted."""
        members = [row for row in self.rows if row.account == account and row.user]
        return [row.user for row in members if _key_of(row) not in self.deleted]

    def accounts_below(self, account: str) -> set[str]:
        """Return the accounts whose parent is this one."""
        return {row.account for row in self.rows if row.parent == account and not row.user}

    def remove_qos(self, entries: Mapping[Key, Entry]) -> None:
        """Delete priorities, unless others or jobs need them."""
        for key, entry in entries.items():
            name = key[1]
            using = [row for row in self.found.associations if self.will_have_qos(row, name)]
            jobs = [job for job in self.jobs if job.qos == name]
            # Pending jobs would wait with InvalidQOS for ever.
            if jobs:
                self.wait(key, entry, jobs)
            elif using:
                holders = ", ".join(sorted(_holder(row) for row in using))
                self.keep(key, entry, "account %s has it" % holders)
            else:
                self.deleted.append(key)

    def will_have_qos(self, row: Association, name: str) -> bool:
        """Return whether an association has a QOS after the steps of this plan so far."""
        default, taken = row.default_qos, []
        if row.cluster == self.found.cluster:
            if _key_of(row) in self.deleted:
                return False
            if not row.user:
                taken = self.taken.get(row.account, [])
                default = self.sets.get(_key_of(row), {}).get("default_qos", default)
        return default == name or (name in row.qos and name not in taken)

    def default_accounts(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return {person: default account} of those who get another one, and {person: default
        account} for new associations.
        """
        changed: dict[str, str] = {}
        in_file: dict[str, str] = {}
        former, new = self.accounts_of_people()
        # Only who has been touched: somebody else's people are left as they are.
        touched = {key[2] for key in self.created + self.deleted if key[0] == "member"}
        for person in sorted({*former, *new}):
            has = former.get(person, [])
            remaining = self.accounts_left(person, has) + new.get(person, [])
            current = self.default_of(person)
            # A person may choose another default account, so any of the person's accounts is good.
            chosen = current if current in remaining else self.first_account(person, remaining)
            in_file[person] = current if current in has else chosen
            if person in touched and has and remaining and chosen != in_file[person]:
                changed[person] = chosen
        return changed, in_file

    def accounts_of_people(self) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        """Return {person: accounts} of the associations that were found, and of those that are
        created.
        """
        members = [row for row in self.rows if row.user and row.account != "root"]
        created = [key for key in self.created if key[0] == "member"]
        return (
            _grouped((row.user, row.account) for row in members),
            _grouped((person, account) for dummy, account, person in created),
        )

    def default_of(self, person: str) -> str:
        """Return the present default account of a person, empty without one."""
        return self.found.users[person].default if person in self.found.users else ""

    def accounts_left(self, person: str, accounts: Iterable[str]) -> list[str]:
        """Return those of the accounts of a person that the person keeps."""
        return [name for name in accounts if ("member", name, person) not in self.deleted]

    def first_account(self, person: str, remaining: Iterable[str]) -> str:
        """Return the first requested account of a person, else the first that remains, else
        nothing.
        """
        requested = [key[1] for key in self.member_of(person)]
        return (requested + sorted(remaining) + [""])[0]

    def remove(self) -> None:
        """Plan the end of what is recorded and no longer requested."""
        leaving = {
            key: entry for key, entry in sorted(self.record.items()) if key not in self.requested
        }
        for key, entry in leaving.items():
            self.absent(key, entry)
        created: dict[str, dict[Key, Entry]] = {"member": {}, "account": {}, "qos": {}}
        for key, entry in leaving.items():
            if key in self.state and entry.get("created"):
                self.removes = True
                created.setdefault(key[0], {})[key] = entry
        self.remove_members(created["member"])
        self.remove_accounts(created["account"])
        self.remove_qos(created["qos"])

    def others(self) -> list[str]:
        """Return the members of our accounts whom others have added."""
        known = {*self.requested, *self.record}
        members = [
            row for row in self.rows if row.user and ("account", row.account) in self.requested
        ]
        return sorted(_name_of(_key_of(row)) for row in members if _key_of(row) not in known)

    def run(self) -> Plan:
        """Return the whole plan. Deletions depend on all other changes."""
        for key, fields in self.requested.items():
            self.present(key, fields)
        self.remove()
        defaults, in_file = self.default_accounts()
        return Plan(
            self.changes(defaults),
            self.steps(defaults, in_file),
            {" ".join(key): entry for key, entry in self.after.items()},
            self.waiting,
            self.kept,
            self.others(),
            self.removes,
        )

    def changes(self, defaults: Mapping[str, str]) -> list[Change]:
        """Return the changes for people. C(defaults) are new default accounts by person."""
        changes = [self.addition(key) for key in self.created]
        accounts: set[Key] = {("account", name) for name in [*self.added, *self.taken]}
        for key in sorted(set(self.sets) | accounts - set(self.created)):
            changes.append(self.alteration(key))
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

    def addition(self, key: Key) -> Change:
        """Return the change of a key that is created."""
        fields = dict(self.requested[key])
        if key[0] == "account" and key[1] in self.added:
            fields["qos"] = self.added[key[1]]
        return {"what": " ".join(key), "action": "add", "before": {}, "after": fields}

    def alteration(self, key: Key) -> Change:
        """Return the change of a key that exists."""
        after = dict(self.sets.get(key, {}))
        before = {name: self.state[key][name] for name in after}
        if key[0] == "account" and (key[1] in self.added or key[1] in self.taken):
            listed = self.listed[key[1]]
            before["qos"] = sorted(listed)
            after["qos"] = sorted(
                listed - set(self.taken.get(key[1], ())) | set(self.added.get(key[1], ()))
            )
        return {"what": " ".join(key), "action": "change", "before": before, "after": after}

    def steps(self, defaults: Mapping[str, str], in_file: Mapping[str, str]) -> list[Step]:
        """Return the commands of sacctmgr, in the order in which they succeed.

        C(defaults) are new default accounts by person, C(in_file) those of new associations.
        """
        steps = self.qos_steps()
        new = [key for key in self.created if key[0] != "qos"]
        if new:
            # One transaction, which is done as a whole or not at all. An add command for each
            # account takes twice as long.
            names = _listed([" ".join(key) for key in new])
            steps.append(Step(["load", "file=LOAD"], "add " + names, self.file(new, in_file)))
        steps += self.account_steps()
        steps += self.taken_steps()
        steps += self.person_steps(defaults)
        return steps + self.member_deletions() + self.account_deletions() + self.qos_deletions()

    def qos_steps(self) -> list[Step]:
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

    def account_steps(self) -> list[Step]:
        """Return the commands that change accounts which exist, those with equal settings
        together.
        """
        groups: dict[tuple[str, ...], list[str]] = {}
        changed = {key[1] for key in self.sets if key[0] == "account"} | set(self.added)
        for account in sorted(changed):
            if ("account", account) in self.created:
                continue
            settings = _settings(self.sets.get(("account", account), {}))
            settings += ["QOS+=" + ",".join(self.added[account])] if account in self.added else []
            if settings:
                groups.setdefault(tuple(settings), []).append(account)
        steps = []
        for group, names in groups.items():
            steps += self.account_change(names, group, "change account")
        return steps

    def account_change(self, names: list[str], settings: Iterable[str], what: str) -> list[Step]:
        """Return the commands that give accounts the same settings."""
        return _commands(
            ["modify", "account", "where"], names, [self.cluster, "set", *settings], what
        )

    def taken_steps(self) -> list[Step]:
        """Return the commands that take QOS away from accounts."""
        groups: dict[str, list[str]] = {}
        rest: dict[str, list[str]] = {}
        for account, names in sorted(self.taken.items()):
            if account not in self.inherits:
                groups.setdefault("QOS-=" + ",".join(names), []).append(account)
                continue
            # QOS-= would also take away what the account inherits.
            groups.setdefault("QOS=", []).append(account)
            left = self.listed[account] - set(names) | set(self.added.get(account, ()))
            if left:
                rest.setdefault("QOS+=" + ",".join(sorted(left)), []).append(account)
        steps = []
        for each in (groups, rest):
            for setting, accounts in each.items():
                steps += self.account_change(accounts, [setting], "change the QOS of account")
        return steps

    def person_steps(self, defaults: Mapping[str, str]) -> list[Step]:
        """Return the commands that change limits, rights and default accounts of people."""
        limits: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        rights: dict[tuple[str, ...], list[str]] = {}
        for key in sorted(self.sets):
            settings = tuple(_settings(self.sets[key]))
            if key[0] == "member":
                limits.setdefault((key[1], settings), []).append(key[2])
            if key[0] == "operator":
                rights.setdefault(settings, []).append(key[1])
        accounts = _grouped((account, person) for person, account in sorted(defaults.items()))
        modify, steps = ["modify", "user", "where"], []
        for (account, settings), people in limits.items():
            words = ["account=" + account, self.cluster, "set", *settings]
            steps += _commands(modify, people, words, "change limits of")
        for settings, people in rights.items():
            # The rights of a person are the same in all clusters of the database.
            steps += _commands(modify, people, ["set", *settings], "change the rights of")
        for account, people in accounts.items():
            words = [self.cluster, "set", "DefaultAccount=" + account]
            steps += _commands(modify, people, words, "change the default account of")
        return steps

    def member_deletions(self) -> list[Step]:
        """Return the commands that delete associations of people, and people who have no
        other one.
        """
        here: dict[str, set[Key]] = {}
        for row in self.rows:
            if row.user:
                here.setdefault(row.user, set()).add(_key_of(row))
        elsewhere = {row.user for row in self.elsewhere}
        deleted = set(self.deleted)
        whole: set[str] = set()
        here_only: set[str] = set()
        groups: dict[str, list[str]] = {}
        for key in self.deleted:
            if key[0] != "member":
                continue
            dummy, account, person = key
            # Slurm refuses to delete a default account, unless the person has no other one left in
            # the cluster.
            if not here[person] <= deleted or self.member_of(person):
                groups.setdefault(account, []).append(person)
            elif person in elsewhere:
                here_only.add(person)
            else:
                whole.add(person)
        delete = ["delete", "user", "where"]
        # 22.05 refuses some of them if the cluster is named.
        steps = _commands(delete, sorted(whole), [], "remove")
        steps += _commands(delete, sorted(here_only), [self.cluster], "remove")
        for account, people in groups.items():
            words = ["account=" + account, self.cluster]
            steps += _commands(delete, people, words, "remove from an account")
        return steps

    def account_deletions(self) -> list[Step]:
        """Return the commands that delete accounts."""
        elsewhere = {row.account for row in self.elsewhere}
        accounts = [key[1] for key in self.deleted if key[0] == "account"]
        here_only = [name for name in accounts if name in elsewhere]
        whole = [name for name in accounts if name not in elsewhere]
        delete, what = ["delete", "account", "where"], "remove account"
        # If the cluster is named, only the association is deleted, and sacctmgr show account still
        # has the account.
        return _commands(delete, whole, [], what) + _commands(
            delete, here_only, [self.cluster], what
        )

    def qos_deletions(self) -> list[Step]:
        """Return the commands that delete QOS."""
        names = [key[1] for key in self.deleted if key[0] == "qos"]
        return _commands(["delete", "qos", "where"], names, [], "remove priority")

    def file(self, new: Sequence[Key], in_file: Mapping[str, str]) -> str:
        """Return the file for sacctmgr load. It adds only: what it does not name stays."""
        lines = ["Cluster - '%s'" % self.found.cluster, "Parent - 'root'"]
        lines += [self.account_line(key) for key in new if key[0] == "account"]
        for entry in self.accounts:
            people = [key for key in new if key[0] == "member" and key[1] == entry["name"]]
            lines += ["Parent - '%s'" % entry["name"]] if people else []
            for key in people:
                words = ["User - '%s'" % key[2], "DefaultAccount='%s'" % in_file[key[2]]]
                if "gpus" in self.requested[key]:
                    words.append("GrpTRES=%s=%d" % (GPU, self.requested[key]["gpus"]))
                lines.append(":".join(words))
        return "\n".join(lines) + "\n"

    def account_line(self, key: Key) -> str:
        """Return the line of a new account in the file for sacctmgr load."""
        fields = self.requested[key]
        words = [
            "Account - '%s'" % key[1],
            "Description='%s'" % fields.get("description", key[1]),
            "Organization='trainyard'",
        ]
        of_file = set(fields) & {*_TRES, "running", "submit"}
        words += _settings({name: fields[name] for name in of_file})
        if "minutes" in fields:
            words.append("MaxWallDurationPerJob=%d" % fields["minutes"])
        if self.priorities:
            words.append("QOS='%s'" % ",".join(sorted(self.priorities)))
            words.append("DefaultQOS='%s'" % fields["default_qos"])
        return ":".join(words)


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return {first: [second, ...]} of pairs."""
    lists: dict[str, list[str]] = {}
    for first, second in pairs:
        lists.setdefault(first, []).append(second)
    return lists


def _holder(row: Association) -> str:
    """Return the name of an association for people."""
    return row.account + (" for " + row.user if row.user else "")


def _name_of(key: Key) -> str:
    """Return the name of a key for people."""
    return " ".join(key) if key[0] != "member" else "%s in account %s" % (key[2], key[1])


def _settings(fields: Fields) -> list[str]:
    """Return the settings of sacctmgr for fields. -1 clears a limit."""
    limits = []
    for name in sorted(set(_TRES) & set(fields)):
        limits.append("%s=%d" % (_TRES[name], _or_none(fields[name])))
    words = ["GrpTRES=" + ",".join(limits)] if limits else []
    return words + [_WORDS[name](fields[name]) for name in sorted(set(_WORDS) & set(fields))]


def _or_none(limit: int | None) -> int:
    return -1 if limit is None else limit


#: The setting of sacctmgr for the value of a field.
_WORDS: dict[str, Callable[[Any], str]] = {
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


def _commands(before: list[str], names: list[str], after: list[str], what: str) -> list[Step]:
    """Return steps that name all of C(names) between two lists of arguments, none without names."""
    steps = []
    for start in range(0, len(names), _NAMES_PER_COMMAND):
        some = names[start : start + _NAMES_PER_COMMAND]
        arguments = [*before, "name=" + ",".join(some), *after]
        steps.append(Step(arguments, "%s %s" % (what, _listed(some))))
    return steps


def _listed(names: list[str]) -> str:
    """Return the first names, and how many more there are."""
    more = " and %d more" % (len(names) - 5) if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def plan(
    found: Found,
    accounts: Sequence[Account],
    priorities: Sequence[Priority],
    record: Mapping[str, Entry],
    jobs: Sequence[Job] = (),
    operators: Sequence[str] = (),
) -> Plan:
    """Return the Plan. C(jobs) are those that have not ended, needed if something is removed."""
    return _Planner(found, accounts, priorities, record, jobs, operators).run()


def settled_record(
    found: Found, before: Mapping[str, Entry], after: Mapping[str, Entry]
) -> dict[str, Entry]:
    """Return the record after a run that failed halfway, by what the database has now."""
    state = _state(found)
    settled: dict[str, Entry] = {}
    for key in sorted({*before, *after}):
        now = state.get(tuple(key.split(" ")))
        if now is None:
            continue
        new, old = after.get(key, {}), before.get(key, {})
        entry: Entry = {**(new or old), "fields": _settled_fields(now, new, old)}
        names = sorted({*old.get("qos", []), *new.get("qos", [])})
        if names:
            entry["qos"] = names
        if entry.get("created") or entry["fields"] or names:
            settled[key] = entry
    return settled


def _settled_fields(now: Fields, new: Entry, old: Entry) -> dict[str, list[Any]]:
    """Return the fields of a record whose value is what the database has, those of the new record
    first.
    """
    recorded, former = new.get("fields", {}), old.get("fields", {})
    fields = {name: values for name, values in former.items() if now[name] == values[1]}
    fields.update({name: values for name, values in recorded.items() if now[name] == values[1]})
    return fields


def diff_of(changes: Iterable[Change]) -> dict[str, str]:
    """Return C(before) and C(after) as text, a line for each change."""
    before = [(each["what"], each["before"]) for each in changes if each["action"] != "add"]
    after = [(each["what"], each["after"]) for each in changes if each["action"] != "remove"]
    return {"before": _lines(before), "after": _lines(after)}


def _lines(entries: Iterable[tuple[str, Fields]]) -> str:
    """Return a sorted line for each name with its fields."""
    lines = []
    for what, fields in entries:
        values = ", ".join("%s: %s" % (name, _shown(fields[name])) for name in sorted(fields))
        lines.append("%s%s\n" % (what, " (%s)" % values if values else ""))
    return "".join(sorted(lines))


def _shown(value: object) -> str:
    """Return the value of a field for people."""
    if isinstance(value, list):
        return " ".join(value) or "none"
    if value in (None, ""):
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
