# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Parsers for the output of Slurm's commands, 21.08 to 24.11. Text in, data out.

Each reading uses the format in which no text of a person can be taken for a field, in all of these
versions:

- Nodes, partitions, reservations and the configuration come from ``scontrol``. It prints ``Key=value`` words, and only administrators write its texts.
  In nodes, only reason, comment and what follows are free text, and they come last. ``--oneliner``, because it replaces the line breaks of a reason.
  ``sinfo`` lacks the boot time, and prints a node once per partition.
- Jobs come from ``squeue --Format`` with a mark after each field. Everybody chooses names and comments, with spaces, line breaks and ``State=RUNNING`` in
  them, so ``scontrol show jobs`` is ambiguous. The mark is random and made for the run: no name that exists already contains it. ``--Format`` has
  the GPUs (``tres-alloc``), which ``--format`` lacks.
- Associations and QOS come from ``sacctmgr --parsable2``. Slurm allows no ``|`` in their names.
- Finished jobs come from ``sacct --parsable2`` with such a mark as the delimiter. The last field has no free text, as a line break ends a job.
- ``--json`` needs a plugin that distributions build or leave out, and its keys differ from release to release. sacctmgr has it from 23.02 on only.
"""

from __future__ import annotations

import re

from typing import Any, Callable, Dict, Iterable, Iterator, Mapping, Sequence, TypedDict

try:
    from ansible_collections.trainyard.gpu.plugins.module_utils._messages import printable
    from ansible_collections.trainyard.gpu.plugins.module_utils._parse_error import ParseError
except ImportError:
    # Role host_library copies these files to hosts, into one folder.
    from _messages import printable  # type: ignore[import-not-found,no-redef]
    from _parse_error import ParseError  # type: ignore[import-not-found,no-redef]

__all__ = [
    "ParseError",
    "MAX_REASON",
    "REASON_PREFIX",
    "available_for_jobs",
    "command_environment",
    "controllers_of",
    "credential_fault",
    "details_command",
    "events_command",
    "expand_hosts",
    "finished_command",
    "is_ours",
    "jobs_command",
    "minutes",
    "node_state_plan",
    "parse_associations",
    "parse_config",
    "parse_events",
    "parse_finished",
    "parse_gres",
    "parse_jobs",
    "parse_nodes",
    "parse_partitions",
    "parse_positions",
    "parse_qos",
    "parse_reservations",
    "parse_tres",
    "parse_usage",
    "reason_of",
    "state_word",
    "usage_command",
    "why_no_answer",
]

CONFIG = ["scontrol", "show", "config"]
NODES = ["scontrol", "--oneliner", "--details", "show", "nodes"]
PARTITIONS = ["scontrol", "--oneliner", "--all", "show", "partitions"]
RESERVATIONS = ["scontrol", "--oneliner", "show", "reservations"]
ASSOCIATION_FIELDS = (
    "Cluster Account User Partition ParentName Share GrpTRES GrpJobs GrpSubmit MaxTRES MaxJobs "
    "MaxSubmitJobs MaxWall QOS "
    "DefaultQOS"
).split()
QOS_FIELDS = (
    "Name Priority Preempt PreemptMode Flags GraceTime UsageFactor GrpTRES GrpJobs GrpSubmit "
    "MaxTRES MaxTRESPU MaxJobsPU MaxSubmitPU MaxWall"
).split()
ASSOCIATIONS = [
    "sacctmgr",
    "--noheader",
    "--parsable2",
    "show",
    "associations",
    "format=" + ",".join(ASSOCIATION_FIELDS),
]
QOS = ["sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=" + ",".join(QOS_FIELDS)]
#: Reason is the last one because it may have any text.
EVENT_FIELDS = ("NodeName", "Start", "End", "State", "Reason")
JOB_FIELDS = (
    "JobID ArrayJobID ArrayTaskID HetJobID HetJobOffset UserName Account QOS Partition State "
    "Reason NumNodes NodeList ReqNodes SchedNodes tres-alloc "
    "PriorityLong SubmitTime EligibleTime StartTime EndTime TimeLimit RestartCnt Feature "
    "Reservation Dependency Name Comment"
).split()
# ExitCode is the last one because it has a fixed form.
FINISHED_FIELDS = (
    "JobID JobIDRaw User Account QOS Partition State Submit Start End ElapsedRaw NodeList "
    "AllocTRES Reason JobName Comment ExitCode"
).split()
#: Field that parse_finished reads on request. Administrators write it, and role monitoring keeps
#: the use of GPUs in it.
ADMIN_COMMENT = "AdminComment"

# Other programs and people rely on reasons of their own: only what begins with this is ours.
REASON_PREFIX = "trainyard: "
# Slurm accepts more. The reason is shown in tables and mails.
MAX_REASON = 240
# Who sets reasons in the name of Slurm (SlurmUser of the distributions' packages).
SLURM_USER = "slurm"
#: The account of jobs of role train, with Slurm's own user as its only member.
TRAIN_ACCOUNT = "trainyard-train"
# A range of more hosts is a typing error. Without a limit it would fill the memory.
MAX_HOSTS = 100000

_NONE = frozenset(("", "(null)", "N/A", "n/a", "None", "NONE", "Unknown", "None assigned"))
# The end of a node: texts of administrators, and what follows them in some releases.
_FREE = ("Reason", "Comment", "Extra", "InstanceId", "InstanceType", "ReservationName")
_AFTER_REASON = "(?:%s)=" % "|".join(_FREE[1:])
# node_state_string() marks a state with one of these, node_state_string_complete() spells it out.
_SUFFIXES = {
    "*": "not_responding",
    "~": "powered_down",
    "#": "powering_up",
    "!": "power_down",
    "%": "powering_down",
    "$": "maintenance",
    "@": "reboot_requested",
    "^": "reboot_issued",
    "-": "planned",
}
# Releases differ in these.
_STATE_NAMES = {
    "maint": "maintenance",
    "inval": "invalid_reg",
    "invalid": "invalid_reg",
    "drained": "drain",
    "draining": "drain",
    "failing": "fail",
    "reboot": "reboot_requested",
    "alloc": "allocated",
    "mix": "mixed",
}
# A node that has one of these starts no job, whatever its base state.
_BLOCKING = frozenset(
    (
        "drain",
        "fail",
        "invalid_reg",
        "maintenance",
        "not_responding",
        "power_down",
        "powered_down",
        "powering_down",
        "powering_up",
        "reboot_issued",
        "reboot_requested",
        "blocked",
        "dynamic_future",
    )
)
_STARTING = frozenset(("idle", "mixed", "allocated"))
_UNITS = {"": 1.0, "K": 1.0 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_COUNTS = {"": 1, "K": 1024, "M": 1024**2}
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}")
_EXIT_CODE = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")
_ENDED_STATE = re.compile(r"[A-Z_]+\+?")
_LEADING_NUMBER = re.compile(r"[0-9]+")


#: A resource of many names as numbers, such as GPUs by model.
Amounts = Dict[str, int]
#: A line of a command by field, and an entry as a module returns it. Times are text in UTC, such as
#: 2026-01-31T23:59:59Z, and None if Slurm has none.
Values = Dict[str, str]
Entry = Dict[str, Any]


class Event(TypedDict):
    """A time in which a node was out of service. C(end) is None for one that goes on."""

    node: str
    start: str | None
    end: str | None
    state: str
    reason: str


class Gpus(TypedDict):
    """The GPUs of a node of one model, which is empty if none is configured."""

    model: str
    total: int
    used: int


class Node(TypedDict):
    """A node. C(states) are the base state and C(flags). CPUs and memory are what jobs get."""

    name: str
    address: str
    states: list[str]
    flags: list[str]
    available_for_jobs: bool
    cpus: int
    cpus_allocated: int
    memory_mib: int
    memory_allocated_mib: int
    gpus: list[Gpus]
    features: list[str]
    active_features: list[str]
    partitions: list[str]
    reason: str
    reason_user: str
    reason_time: str | None
    boot_time: str | None
    slurmd_start_time: str | None
    slurmd_version: str
    architecture: str


class Partition(TypedDict):
    """A partition. None is no limit, and for accounts and QOS that all may use it."""

    name: str
    default: bool
    state: str
    hidden: bool
    nodes: list[str]
    max_minutes: int | None
    default_minutes: int | None
    max_nodes: int | None
    priority_tier: int
    allow_accounts: list[str] | None
    allow_qos: list[str] | None
    qos: str
    preempt_mode: str
    cpus: int
    gpus: int
    gpu_models: Amounts


class Job(TypedDict):
    """A job of the queue.

    C(array) has id and tasks, C(het) id and offset, both None for other jobs. C(start_estimate) is
    of jobs that wait.
    """

    id: int
    array: Entry | None
    het: Entry | None
    name: str
    comment: str
    user: str
    account: str
    qos: str
    partition: str
    state: str
    reason: str
    priority: int
    node_count: int
    nodes: list[str]
    requested_nodes: list[str]
    planned_nodes: list[str]
    cpus: int
    memory_mib: int
    gpus: int
    gpu_models: Amounts
    submit_time: str | None
    eligible_time: str | None
    start_time: str | None
    start_estimate: str | None
    end_time: str | None
    limit_minutes: int | None
    restarts: int
    features: str
    reservation: str
    dependency: str


class Reservation(TypedDict):
    """A reservation of nodes."""

    name: str
    state: str
    start_time: str | None
    end_time: str | None
    nodes: list[str]
    flags: list[str]
    users: list[str]
    accounts: list[str]
    partition: str
    comment: str


class Controller(TypedDict):
    """A host of slurmctld. C(role) is primary or backup."""

    role: str
    host: str
    up: bool


class Config(TypedDict):
    """Whose controllers they are, with the version of the one that answered."""

    cluster: str
    version: str
    controllers: list[Controller]


class Association(TypedDict):
    """The limits of an account, or of a person in one.

    None is no limit, and for C(shares) those of the parent.
    """

    cluster: str
    account: str
    user: str
    partition: str
    parent: str
    shares: int | None
    group_tres: Amounts
    group_max_jobs: int | None
    group_max_submitted: int | None
    job_tres: Amounts
    max_jobs: int | None
    max_submitted: int | None
    max_minutes: int | None
    qos: list[str]
    default_qos: str


class Qos(TypedDict):
    """A quality of service. None is no limit. C(person) limits are those of each person."""

    name: str
    priority: int
    preempts: list[str]
    preempt_mode: str
    grace_seconds: int
    flags: list[str]
    usage_factor: float
    group_tres: Amounts
    group_max_jobs: int | None
    group_max_submitted: int | None
    job_tres: Amounts
    person_tres: Amounts
    person_max_jobs: int | None
    person_max_submitted: int | None
    max_minutes: int | None


def command_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for Slurm's commands: without settings that change their output, and
    with times in UTC.
    """
    # SLURM_TIME_FORMAT, SQUEUE_FORMAT, SINFO_FORMAT and SLURM_CLUSTERS would change the output.
    # SLURM_CONF and SLURM_CONF_SERVER name the cluster.
    kept = {
        name: value
        for name, value in environment.items()
        if not name.startswith(("SLURM_", "SQUEUE_", "SINFO_", "SCONTROL_", "SACCT_"))
        or name in ("SLURM_CONF", "SLURM_CONF_SERVER")
    }
    return dict(kept, LC_ALL="C", TZ="UTC0")


def events_command(start: str, node: str = "") -> list[str]:
    """Return the command that lists when nodes were out of service, since a time of Slurm.

    C(node) is one of them; empty for all.
    """
    return [
        "sacctmgr",
        "--noheader",
        "--parsable2",
        "show",
        "event",
        "event=node",
        "start=%s" % start,
        *(["nodes=%s" % node] if node else []),
        "format=" + ",".join("%s%%250" % field for field in EVENT_FIELDS),
    ]


def parse_events(text: str) -> list[Event]:
    """Return the events in the output of P(events_command), in the order of their start."""
    events: list[Event] = []
    for line in text.splitlines():
        values = line.split("|", len(EVENT_FIELDS) - 1)
        if len(values) != len(EVENT_FIELDS) or not values[0]:
            raise ParseError("expected %s: %.160r" % ("|".join(EVENT_FIELDS), line))
        name, start, end, state, reason = values
        events.append(
            {
                "node": name,
                "start": _time("Start", start, line),
                "end": _time("End", end, line),
                "state": state.lower(),
                "reason": _text(reason),
            }
        )
    return sorted(events, key=lambda event: (event["start"] or "", event["node"]))


def jobs_command(mark: str) -> list[str]:
    """Return the command whose output parse_jobs reads.

    C(mark) must not begin with a digit, which squeue takes for the width of a field.
    """
    fields = ",".join("%s:%s" % (field, mark) for field in JOB_FIELDS)
    return ["squeue", "--all", "--noheader", "--noconvert", "--Format=" + fields]


def finished_command(
    mark: str, since: str, until: str = "", with_admin_comment: bool = False
) -> list[str]:
    """Return the command whose output parse_finished reads: jobs of the time from C(since), until
    now unless C(until) says another time.
    """
    fields = list(FINISHED_FIELDS)
    if with_admin_comment:
        fields.insert(-1, ADMIN_COMMENT)
    command = [
        "sacct",
        "--allusers",
        "--allocations",
        "--noheader",
        "--noconvert",
        "--parsable2",
        "--delimiter=" + mark,
        "--starttime=" + since,
        "--format=" + ",".join(fields),
    ]
    return command + (["--endtime=" + until] if until else [])


# --- values -----------------------------------------------------------------------------------------------------------------


def _text(value: str) -> str:
    """Return a text, empty for the words with which Slurm prints none."""
    return "" if value in _NONE else value


def _words(value: str) -> list[str]:
    """Return the words of a list with commas."""
    return [] if value in _NONE else value.split(",")


def _number(key: str, value: str, line: str) -> int:
    # isdigit alone accepts other digits too.
    if not (value.isascii() and value.isdigit() and len(value) < 19):
        raise ParseError("%s is %.40r, expected a number: %.160r" % (key, value, line))
    return int(value)


def _time(key: str, value: str, line: str) -> str | None:
    """Return a time of Slurm in UTC, None for no time."""
    if value in _NONE:
        return None
    if not _TIME.fullmatch(value):
        raise ParseError(
            "%s is %.40r, expected a time such as 2026-01-31T23:59:59: %.160r" % (key, value, line)
        )
    return value + "Z"


def minutes(value: str) -> int | None:
    """Return the minutes of [days-]hours:minutes:seconds, rounded up.

    None if it is unlimited or not set.
    """
    if value in _NONE or value in (
        "UNLIMITED",
        "INFINITE",
        "INVALID",
        "Partition_Limit",
        "NOT_SET",
    ):
        return None
    match = re.fullmatch(r"(?:([0-9]{1,9})-)?(?:([0-9]{1,9}):)?([0-9]{1,9}):([0-9]{1,9})", value)
    if not match:
        raise ParseError("not a duration such as 1-12:00:00: %.160r" % value)
    days, hours, mins, seconds = [int(part or 0) for part in match.groups()]
    return (days * 24 + hours) * 60 + mins + (1 if seconds else 0)


def parse_tres(value: str) -> Amounts:
    """Return the amounts in C(cpu=8,mem=4000M,gres/gpu=4,gres/gpu:h100=4) by name; C(mem)
    in MiB.
    """
    found: Amounts = {}
    for entry in _words(value):
        name, dummy, amount = entry.partition("=")
        match = re.fullmatch(r"([0-9]{1,18})(\.[0-9]{1,9})?([KMGTP]?)", amount)
        if not name or not match:
            raise ParseError("not a resource such as cpu=8: %.160r" % entry)
        number = float(match.group(1) + (match.group(2) or ""))
        unit = match.group(3)
        factor = _UNITS[unit] if name == "mem" else _COUNTS.get(unit, 1)
        found[name] = int(round(number * factor))
    return found


def _gpus_of_tres(tres: Amounts) -> tuple[int, Amounts]:
    """Total, and amounts by model as far as Slurm counts them by model (AccountingStorageTRES)."""
    models = {
        name[len("gres/gpu:") :]: count
        for name, count in tres.items()
        if name.startswith("gres/gpu:")
    }
    return tres.get("gres/gpu", sum(models.values())), models


def parse_gres(value: str) -> Amounts:
    """Return the GPUs in C(gpu:h100:4(S:0-1),gpu:2,mps:100) by model; the model is empty if none is
    configured.
    """
    found: Amounts = {}
    # What is in parentheses (sockets, indices) contains commas too.
    bare = re.sub(r"\([^()]*\)", "", "" if value in _NONE else value)
    for entry in bare.split(",") if bare else []:
        words = [word for word in entry.split(":") if word != "no_consume"]
        match = re.fullmatch(r"([0-9]{1,18})([KM]?)", words[-1])
        if len(words) < 2 or not match:
            raise ParseError("not a generic resource such as gpu:h100:4: %.160r" % entry)
        if words[0] == "gpu":
            model = ":".join(words[1:-1])
            found[model] = found.get(model, 0) + int(match.group(1)) * _COUNTS[match.group(2)]
    return found


def expand_hosts(value: str) -> list[str]:
    """Return the hosts in C(n[01-03,7],head), as C(scontrol show hostnames) does."""
    if value in _NONE:
        return []
    if len(value) > MAX_HOSTS:
        raise ParseError("a list of hosts of %d characters: %.160r" % (len(value), value))
    hosts = []
    for entry in re.findall(r"(?:\[[^\[\]]*\]|[^,])+", value):
        if not re.fullmatch(r"(?:[A-Za-z0-9._-]|\[[0-9,-]+\])+", entry):
            raise ParseError("not a list of hosts: %.160r" % value)
        names = [""]
        for text, ranges in re.findall(r"([^\[\]]+)|\[([^\[\]]*)\]", entry):
            ends = [text] if text else _numbers(ranges, value)
            if len(names) * len(ends) > MAX_HOSTS:
                raise ParseError("more than %d hosts: %.160r" % (MAX_HOSTS, value))
            names = [name + end for name in names for end in ends]
        hosts += names
        if len(hosts) > MAX_HOSTS:
            raise ParseError("more than %d hosts: %.160r" % (MAX_HOSTS, value))
    if not hosts:
        raise ParseError("not a list of hosts: %.160r" % value)
    return hosts


def _numbers(ranges: str, value: str) -> list[str]:
    """Return the numbers of 01-03,7 as they are written. C(value) is the whole list, for
    messages.
    """
    found: list[str] = []
    for part in ranges.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        if not match or int(match.group(2) or match.group(1)) < int(match.group(1)):
            raise ParseError("not a list of hosts: %.160r" % value)
        first, last = int(match.group(1)), int(match.group(2) or match.group(1))
        if last - first >= MAX_HOSTS - len(found):
            raise ParseError("more than %d hosts: %.160r" % (MAX_HOSTS, value))
        found += ["%0*d" % (len(match.group(1)), number) for number in range(first, last + 1)]
    return found


# --- scontrol ---------------------------------------------------------------------------------------------------------------


def _records(text: str, first: str, free: Sequence[str] = ()) -> Iterator[tuple[str, Values, str]]:
    """Yield (line, values by key, free text) of each line of scontrol --oneliner.

    The free text begins with one of the keys C(free).
    """
    if not text.strip():
        raise ParseError("scontrol printed nothing; expected lines that begin with %s=" % first)
    if not text.endswith("\n"):
        # scontrol was killed. Its last word may be half a word.
        raise ParseError("the last line is incomplete: %.160r" % text.rsplit("\n", 1)[-1])
    records = []
    # Not splitlines, which also splits at characters that a comment may contain.
    for line in text.split("\n"):
        if not line.strip() or re.match(r"No (nodes|partitions|reservations) in the system", line):
            continue
        if line.startswith(first + "="):
            head, rest = line, ""
            places = [at for at in (line.find(" %s=" % key) for key in free) if at >= 0]
            if places:
                head, rest = line[: min(places)], line[min(places) :]
            records.append([line, head, rest])
        elif records and re.search(r" (Comment|Extra)=", records[-1][2]):
            # Only these two keep their line breaks.
            records[-1][2] += "\n" + line
        else:
            raise ParseError("expected a line that begins with %s=: %.160r" % (first, line))
    for line, head, rest in records:
        # One space: a pattern for more would go back and forth in a line of spaces.
        pieces = re.split(r" ([A-Za-z][A-Za-z_]*)=", " " + head)
        values = {key: value.strip(" ") for key, value in zip(pieces[1::2], pieces[2::2])}
        yield line, values, rest


def _require(values: Values, keys: Iterable[str], line: str) -> None:
    for key in keys:
        if not values.get(key):
            raise ParseError("%s is missing: %.160r" % (key, line))


def _states(value: str) -> list[str]:
    """IDLE+DRAIN, idle* or DOWN*+DRAIN: base state, then flags, in lower case and without marks."""
    found = []
    for word in value.split("+"):
        bare = word.rstrip("".join(_SUFFIXES))
        found.append(_STATE_NAMES.get(bare.lower(), bare.lower()))
        found += [_SUFFIXES[mark] for mark in word[len(bare) :]]
    states = list(dict.fromkeys(state for state in found if state))
    # DRAINED and INVAL, as in sinfo, have no base state.
    return states


def available_for_jobs(states: Sequence[str]) -> bool:
    """Return whether a node with these states starts jobs as soon as it has free resources."""
    return bool(states) and states[0] in _STARTING and not _BLOCKING & set(states)


def _reason(rest: str) -> tuple[str, str, str | None]:
    """Text, person and time of `` Reason=text [person@time]        second line Comment=…``."""
    if not rest.startswith(" Reason="):
        return "", "", None
    text = rest[len(" Reason=") :]
    # The name and time follow the first line. It may itself contain some in brackets, so what
    # follows them must fit.
    stamp = re.search(
        r" \[([^\s\[\]@]{1,64})@([0-9T:-]{19}|Unknown|None)\](?=        |$| %s)" % _AFTER_REASON,
        text,
    )
    if stamp is None:
        return text.strip(" "), "", None
    more = text[stamp.end() :]
    if more.startswith("        "):
        # Line breaks, which scontrol prints as eight spaces.
        more = re.split(" " + _AFTER_REASON, more)[0]
        return (
            text[: stamp.start()] + " " + " ".join(more.split()),
            stamp.group(1),
            _time("time of the reason", stamp.group(2), rest),
        )
    return text[: stamp.start()], stamp.group(1), _time("time of the reason", stamp.group(2), rest)


def _usable_cpus(values: Values, line: str) -> int:
    """Return the CPUs of a node that jobs get: those of CoreSpecCount and CPUSpecList are not among
    them.
    """
    total = _number("CPUTot", values["CPUTot"], line)
    # Slurm 21.08 has only the other one. A node whose configuration is not in force yet has 0
    # there.
    configured = str(parse_tres(values.get("CfgTRES", "")).get("cpu", ""))
    words = [values.get("CPUEfctv", ""), configured]
    usable = [int(word) for word in words if re.fullmatch("[0-9]{1,9}", word)]
    return next((cpus for cpus in usable if 0 < cpus <= total), total)


def _usable_memory(values: Values, line: str) -> int:
    """Return the MiB of a node that jobs get: Slurm keeps MemSpecLimit for its daemons and the
    system.
    """
    total = _number("RealMemory", values["RealMemory"], line)
    kept = values.get("MemSpecLimit", "")
    return max(0, total - int(kept)) if re.fullmatch("[0-9]{1,12}", kept) else total


def _used_gpus(total: Amounts, values: Values) -> Amounts:
    """Return the GPUs in use by the models of a node, C(total).

    GresUsed may name no model, or another spelling of it. AllocTRES has the number of all of them,
    and of each model that Slurm accounts for.
    """
    used = parse_gres(values.get("GresUsed", ""))
    count, models = _gpus_of_tres(parse_tres(values.get("AllocTRES", "")))
    if len(total) == 1:
        return {model: max(sum(used.values()), count) for model in total}
    found = {model: max(used.get(model, 0), models.get(model, 0)) for model in total}
    # Nobody says whose these are. A model that is all in use has none of them.
    left = max(sum(used.values()), count) - sum(found.values())
    for model in sorted(total):
        more = min(max(left, 0), total[model] - found[model])
        found[model] += max(more, 0)
        left -= max(more, 0)
    return found


def parse_nodes(text: str) -> list[Node]:
    """Return the nodes in the output of NODES, in its order."""
    nodes: list[Node] = []
    for line, values, rest in _records(text, "NodeName", _FREE):
        _require(values, ("NodeName", "State", "CPUTot", "CPUAlloc", "RealMemory"), line)
        states = _states(values["State"])
        if not states or not re.fullmatch(r"[a-z_]+", "".join(states)):
            raise ParseError(
                "State is %.40r, expected a state such as IDLE+DRAIN: %.160r"
                % (values["State"], line)
            )
        total = parse_gres(values.get("Gres", ""))
        used = _used_gpus(total, values)
        reason, user, since = _reason(rest)
        nodes.append(
            {
                "name": values["NodeName"],
                "address": _text(values.get("NodeAddr", "")),
                "states": states,
                "flags": states[1:],
                "available_for_jobs": available_for_jobs(states),
                "cpus": _usable_cpus(values, line),
                "cpus_allocated": _number("CPUAlloc", values["CPUAlloc"], line),
                "memory_mib": _usable_memory(values, line),
                "memory_allocated_mib": _number("AllocMem", values.get("AllocMem", "0"), line),
                "gpus": [
                    {"model": model, "total": total[model], "used": used.get(model, 0)}
                    for model in sorted(total)
                ],
                "features": _words(values.get("AvailableFeatures", "")),
                "active_features": _words(values.get("ActiveFeatures", "")),
                "partitions": _words(values.get("Partitions", "")),
                "reason": reason,
                "reason_user": user,
                "reason_time": since,
                "boot_time": _time("BootTime", values.get("BootTime", ""), line),
                "slurmd_start_time": _time(
                    "SlurmdStartTime", values.get("SlurmdStartTime", ""), line
                ),
                "slurmd_version": _text(values.get("Version", "")),
                "architecture": _text(values.get("Arch", "")),
            }
        )
    return nodes


def details_command(number: int) -> list[str]:
    """Return the command whose output P(parse_positions) reads."""
    return ["scontrol", "--details", "show", "job", str(number)]


def parse_positions(text: str, number: int) -> dict[str, list[int]]:
    """Return the positions of a job's GPUs in Slurm's list of each host, from
    details_command(number).

    The name of a job may have line breaks, and lines that look like these. So the caller has to
    compare their number with that of the GPUs of the job. The number of an array is also that of
    one of its tasks, and scontrol prints all of them.
    """
    found: dict[str, list[int]] = {}
    is_own = False
    for line in text.splitlines():
        record = re.match(r"JobId=([0-9]{1,18})\b", line)
        if record:
            is_own = int(record.group(1)) == number
        match = re.match(r"\s+Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)", line)
        if not match or not is_own:
            continue
        ranges = re.findall(r"(?:^|,)gpu:[^,()]*\(IDX:([0-9,-]+)\)", match.group(2))
        positions = [int(position) for part in ranges for position in _numbers(part, line)]
        for host in expand_hosts(match.group(1)):
            found.setdefault(host, []).extend(positions)
    return found


def parse_partitions(text: str) -> list[Partition]:
    """Return the partitions in the output of PARTITIONS, in its order."""
    partitions: list[Partition] = []
    for line, values, dummy in _records(text, "PartitionName"):
        _require(values, ("PartitionName", "State", "Nodes", "TotalNodes"), line)
        tres = parse_tres(values.get("TRES", ""))
        gpus, models = _gpus_of_tres(tres)
        nodes_limit = values.get("MaxNodes", "UNLIMITED")
        partitions.append(
            {
                "name": values["PartitionName"],
                "default": values.get("Default") == "YES",
                "state": values["State"].lower(),
                "hidden": values.get("Hidden") == "YES",
                "nodes": expand_hosts(values["Nodes"]),
                "max_minutes": minutes(values.get("MaxTime", "")),
                "default_minutes": minutes(values.get("DefaultTime", "")),
                "max_nodes": (
                    None if nodes_limit == "UNLIMITED" else _number("MaxNodes", nodes_limit, line)
                ),
                "priority_tier": _number("PriorityTier", values.get("PriorityTier", "1"), line),
                "allow_accounts": _all_or_some(values.get("AllowAccounts", "ALL")),
                "allow_qos": _all_or_some(values.get("AllowQos", "ALL")),
                "qos": _text(values.get("QoS", "")),
                "preempt_mode": values.get("PreemptMode", "").lower(),
                "cpus": tres.get("cpu", 0),
                "gpus": gpus,
                "gpu_models": models,
            }
        )
    return partitions


def _all_or_some(value: str) -> list[str] | None:
    return None if value == "ALL" else _words(value)


def parse_reservations(text: str) -> list[Reservation]:
    """Return the reservations in the output of RESERVATIONS, in its order."""
    reservations: list[Reservation] = []
    for line, values, rest in _records(text, "ReservationName", ("Comment",)):
        _require(values, ("ReservationName", "StartTime", "EndTime", "State"), line)
        reservations.append(
            {
                "name": values["ReservationName"],
                "state": values["State"].lower(),
                "start_time": _time("StartTime", values["StartTime"], line),
                "end_time": _time("EndTime", values["EndTime"], line),
                "nodes": expand_hosts(values.get("Nodes", "")),
                "flags": [flag.lower() for flag in _words(values.get("Flags", ""))],
                "users": _words(values.get("Users", "")),
                "accounts": _words(values.get("Accounts", "")),
                "partition": _text(values.get("PartitionName", "")),
                "comment": rest[len(" Comment=") :].strip(" ") if rest else "",
            }
        )
    return reservations


def parse_config(text: str) -> Config:
    """Return cluster, version of the controller, and the controllers of C(scontrol show config)."""
    values = dict(re.findall(r"^([A-Za-z_]+(?:\[[0-9]+\])?) *= (.*)$", text, re.MULTILINE))
    for key in ("ClusterName", "SLURM_VERSION"):
        if not values.get(key):
            raise ParseError(
                "%s is missing in the output of scontrol show config, whose last line is: %.160r"
                % (key, text.rstrip().rsplit("\n", 1)[-1])
            )
    controllers: list[Controller] = [
        {"role": role, "host": host, "up": state == "UP"}
        for role, host, state in re.findall(
            r"^Slurmctld\(([^()\n]*)\) at (\S+) is (UP|DOWN)$", text, re.MULTILINE
        )
    ]
    if not controllers:
        raise ParseError(
            (
                "the state of the controllers is missing in the output of scontrol show config, "
                "whose last line is: %.160r"
            )
            % text.rstrip().rsplit("\n", 1)[-1]
        )
    return {
        "cluster": values["ClusterName"],
        "version": values["SLURM_VERSION"].strip(),
        "controllers": controllers,
    }


# --- squeue and sacct -------------------------------------------------------------------------------------------------------


def parse_jobs(text: str, mark: str) -> list[Job]:
    """Return the jobs in the output of jobs_command(mark), in its order.

    A job array that waits is one entry.
    """
    width = len(JOB_FIELDS)
    pieces = text.split(mark)
    last = pieces.pop()
    if last not in ("", "\n") or len(pieces) % width:
        shown = (pieces[-1] + last).strip() if pieces else last
        raise ParseError(
            "the output of squeue is incomplete or has another format; its end is: %.160r"
            % shown[-160:]
        )
    jobs = []
    for at in range(0, len(pieces), width):
        values = dict(zip(JOB_FIELDS, pieces[at : at + width]))
        line = " ".join(pieces[at : at + width])
        if at:
            # What ends the job before.
            if not values["JobID"].startswith("\n"):
                raise ParseError("expected a line break between two jobs: %.160r" % line)
            values["JobID"] = values["JobID"][1:]
        jobs.append(_job(values, line.lstrip("\n")))
    return jobs


def _job(values: Values, line: str) -> Job:
    tres = parse_tres(values["tres-alloc"])
    gpus, models = _gpus_of_tres(tres)
    state = values["State"].lower()
    if not re.fullmatch(r"[a-z_]+", state):
        raise ParseError(
            "State is %.40r, expected a state such as PENDING: %.160r" % (values["State"], line)
        )
    tasks, het = values["ArrayTaskID"], values["HetJobID"]
    waits = state in (
        "pending",
        "configuring",
        "requeued",
        "requeue_hold",
        "special_exit",
        "requeue_fed",
    )
    start = _time("StartTime", values["StartTime"], line)
    nodes = expand_hosts(values["NodeList"])
    number = _number("JobID", values["JobID"], line)
    array: Entry | None = None
    if tasks not in _NONE:
        array = {"id": _number("ArrayJobID", values["ArrayJobID"], line), "tasks": tasks}
    part: Entry | None = None
    if het not in _NONE and het != "0":
        part = {"id": _number("HetJobID", het, line)}
        part["offset"] = _number("HetJobOffset", values["HetJobOffset"], line)
    return {
        "id": number,
        "array": array,
        "het": part,
        "name": values["Name"],
        "comment": _text(values["Comment"]),
        "user": values["UserName"],
        "account": _text(values["Account"]),
        "qos": _text(values["QOS"]),
        "partition": values["Partition"],
        "state": state,
        "reason": _text(values["Reason"]),
        "priority": _number("PriorityLong", values["PriorityLong"], line),
        "node_count": _number("NumNodes", values["NumNodes"].partition("-")[0], line),
        "nodes": nodes,
        "requested_nodes": expand_hosts(values["ReqNodes"]),
        "planned_nodes": expand_hosts(values["SchedNodes"]),
        "cpus": tres.get("cpu", 0),
        "memory_mib": tres.get("mem", 0),
        "gpus": gpus,
        "gpu_models": models,
        "submit_time": _time("SubmitTime", values["SubmitTime"], line),
        "eligible_time": _time("EligibleTime", values["EligibleTime"], line),
        "start_time": None if waits else start,
        "start_estimate": start if waits else None,
        "end_time": _time("EndTime", values["EndTime"], line),
        "limit_minutes": minutes(values["TimeLimit"]),
        "restarts": _number("RestartCnt", values["RestartCnt"], line),
        "features": _text(values["Feature"]),
        "reservation": _text(values["Reservation"]),
        "dependency": _text(values["Dependency"]),
    }


class _Memo(Dict[str, Any]):
    """Results of a function by its argument."""

    def __init__(self, function: Callable[[str], object]) -> None:
        super().__init__()
        self.function = function

    def __missing__(self, text: str) -> Any:
        self[text] = found = self.function(text)
        return found


def _finished(fields: Sequence[str], line: str, amounts: _Memo, hosts: _Memo) -> Entry:
    """Return a job of FINISHED_FIELDS. C(line) is for messages."""
    (
        number,
        raw,
        user,
        account,
        qos,
        partition,
        shown,
        submit,
        start,
        end,
        elapsed,
        nodes,
        tres,
        reason,
        name,
        comment,
        *more,
        code,
    ) = fields
    state, dummy, by = shown.partition(" by ")
    match = _EXIT_CODE.fullmatch(code)
    if not _ENDED_STATE.fullmatch(state) or not match or not _LEADING_NUMBER.match(number):
        raise ParseError("not a job as sacct prints it: %.160r" % line)
    gpus, models = amounts[tres]
    found = {"admin_comment": _text(more[0])} if more else {}
    return {
        **found,
        "id": number,
        "raw_id": _number("JobIDRaw", raw, line),
        "name": name,
        "comment": _text(comment),
        "user": user,
        "account": account,
        "qos": qos,
        "partition": partition,
        "state": state.rstrip("+").lower(),
        "cancelled_by": _number("State", by, line) if by else None,
        "exit_code": int(match.group(1)),
        "signal": int(match.group(2)),
        "reason": _text(reason),
        "nodes": list(hosts[nodes]),
        "gpus": gpus,
        "gpu_models": dict(models),
        "submit_time": _time("Submit", submit, line),
        "start_time": _time("Start", start, line),
        "end_time": _time("End", end, line),
        "seconds": _number("ElapsedRaw", elapsed, line),
    }


def parse_finished(text: str, mark: str, with_admin_comment: bool = False) -> list[Entry]:
    """Return the jobs in the output of finished_command(mark), in its order, with those that still
    run.

    C(cancelled_by) is missing for jobs that were still in the memory of the controller when it was
    restarted: it then writes their records again, without it.
    """
    jobs: list[Entry] = []
    if not text.strip():
        return jobs
    if not text.endswith("\n"):
        raise ParseError("the output of sacct is incomplete; its end is: %.160r" % text[-160:])
    pieces = text.split(mark)
    width = len(FINISHED_FIELDS) - 1 + with_admin_comment
    if (len(pieces) - 1) % width:
        raise ParseError(
            "the output of sacct is incomplete or has another format; its end is: %.160r"
            % text[-160:]
        )
    first = pieces[0]
    # Thousands of jobs have the same few amounts and lists of hosts, so each text is parsed once.
    amounts, hosts = _Memo(lambda text: _gpus_of_tres(parse_tres(text))), _Memo(expand_hosts)
    for at in range(1, len(pieces), width):
        # The last field of a job, a line break, the first field of the next one.
        last, dummy, following = pieces[at + width - 1].partition("\n")
        fields = [first] + pieces[at : at + width - 1] + [last]
        first = following
        try:
            jobs.append(_finished(fields, "", amounts, hosts))
        except ParseError:
            # Once more for its message: the line is not put together for jobs that can be read.
            jobs.append(_finished(fields, " ".join(fields), amounts, hosts))
    if first:
        raise ParseError("the output of sacct is incomplete; its end is: %.160r" % first)
    return jobs


# --- sacctmgr ---------------------------------------------------------------------------------------------------------------


def _table(text: str, fields: Sequence[str]) -> Iterator[tuple[str, Values]]:
    """Yield (line, values by field) of each line of sacctmgr.

    A person without privileges may see none.
    """
    if text and not text.endswith("\n"):
        raise ParseError("the last line is incomplete: %.160r" % text.rsplit("\n", 1)[-1])
    for line in text.split("\n")[:-1]:
        values = line.split("|")
        if len(values) != len(fields) or not values[0]:
            raise ParseError("expected %s: %.160r" % ("|".join(fields), line))
        yield line, dict(zip(fields, values))


def _limit(values: Values, key: str, line: str) -> int | None:
    return _number(key, values[key], line) if values[key] else None


def parse_associations(text: str) -> list[Association]:
    """Return the associations in the output of ASSOCIATIONS, in its order."""
    associations: list[Association] = []
    for line, values in _table(text, ASSOCIATION_FIELDS):
        if not values["Account"]:
            raise ParseError("Account is missing: %.160r" % line)
        associations.append(
            {
                "cluster": values["Cluster"],
                "account": values["Account"],
                "user": values["User"],
                "partition": values["Partition"],
                "parent": values["ParentName"],
                "shares": None if values["Share"] == "parent" else _limit(values, "Share", line),
                "group_tres": parse_tres(values["GrpTRES"]),
                "group_max_jobs": _limit(values, "GrpJobs", line),
                "group_max_submitted": _limit(values, "GrpSubmit", line),
                "job_tres": parse_tres(values["MaxTRES"]),
                "max_jobs": _limit(values, "MaxJobs", line),
                "max_submitted": _limit(values, "MaxSubmitJobs", line),
                "max_minutes": minutes(values["MaxWall"]),
                "qos": _words(values["QOS"]),
                "default_qos": values["DefaultQOS"],
            }
        )
    return associations


def parse_qos(text: str) -> list[Qos]:
    """Return the QOS in the output of QOS, in its order."""
    qos: list[Qos] = []
    for line, values in _table(text, QOS_FIELDS):
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", values["UsageFactor"]):
            raise ParseError(
                "UsageFactor is %.40r, expected a number: %.160r" % (values["UsageFactor"], line)
            )
        grace = re.fullmatch(
            r"(?:([0-9]{1,5})-)?([0-9]{1,5}):([0-9]{2}):([0-9]{2})", values["GraceTime"]
        )
        if not grace:
            raise ParseError(
                "GraceTime is %.40r, expected a time such as 00:01:30: %.160r"
                % (values["GraceTime"], line)
            )
        days, hours, mins, seconds = [int(part or 0) for part in grace.groups()]
        qos.append(
            {
                "name": values["Name"],
                "priority": _number("Priority", values["Priority"], line),
                "preempts": _words(values["Preempt"]),
                "preempt_mode": values["PreemptMode"].lower(),
                "grace_seconds": ((days * 24 + hours) * 60 + mins) * 60 + seconds,
                "flags": [flag.lower() for flag in _words(values["Flags"])],
                "usage_factor": float(values["UsageFactor"]),
                "group_tres": parse_tres(values["GrpTRES"]),
                "group_max_jobs": _limit(values, "GrpJobs", line),
                "group_max_submitted": _limit(values, "GrpSubmit", line),
                "job_tres": parse_tres(values["MaxTRES"]),
                "person_tres": parse_tres(values["MaxTRESPU"]),
                "person_max_jobs": _limit(values, "MaxJobsPU", line),
                "person_max_submitted": _limit(values, "MaxSubmitPU", line),
                "max_minutes": minutes(values["MaxWall"]),
            }
        )
    return qos


_TRES_USED = r"\s+GrpTRES=(?:\S*,)?%s=(N|[0-9]{1,18})\(([0-9]{1,18})\)"
_USAGE = {
    "gpus": _TRES_USED % "gres/gpu",
    "cpus": _TRES_USED % "cpu",
    "memory_mib": _TRES_USED % "mem",
    "jobs": r"\s+GrpJobs=(N|[0-9]{1,18})\(([0-9]{1,18})\)",
    "submitted": r"\s+(?:\S+ )*GrpSubmitJobs=(N|[0-9]{1,18})\(([0-9]{1,18})\)",
}
_MAXIMA = {"max_jobs": "MaxJobs", "max_submitted": "MaxSubmitJobs", "max_minutes": "MaxWallPJ"}


def usage_command(person: str) -> list[str]:
    """Return the command for P(parse_usage): all accounts, and of the people this one only."""
    return ["scontrol", "show", "assoc_mgr", "users=" + person, "flags=assoc"]


def parse_usage(text: str) -> list[Entry]:
    """Return how much of its limits each association uses, and the limits as P(parse_associations)
    has them, from C(scontrol show assoc_mgr).

    The controller answers this, without the database and in a tenth of its time. It does not tell
    the QOS.
    """
    found: list[Entry] = []
    for line in text.split("\n"):
        match = re.match(r"ClusterName=(\S+) Account=(\S*) UserName=([^\s(]*)", line)
        if match:
            found.append(_unused(*match.groups()))
        if found:
            _read_usage(line, found[-1])
    if not found:
        raise ParseError("expected lines that begin with ClusterName=: %.160r" % text.strip())
    for entry in found:
        limits = {
            "gres/gpu": entry["gpus"]["limit"],
            "cpu": entry["cpus"]["limit"],
            "mem": entry["memory_mib"]["limit"],
        }
        entry["group_tres"] = {name: limit for name, limit in limits.items() if limit is not None}
    return found


def _unused(cluster: str, account: str, user: str) -> Entry:
    """Return an association that uses nothing and has no limits."""
    return {
        "cluster": cluster,
        "account": account,
        "user": user,
        **{key: {"used": 0, "limit": None} for key in _USAGE},
        "parent": "",
        "group_tres": {},
        "job_tres": {},
        "max_jobs": None,
        "max_submitted": None,
        "max_minutes": None,
        "qos": [],
    }


def _read_usage(line: str, entry: Entry) -> None:
    """Write into an association of P(parse_usage) what a line of its output says."""
    for key, pattern in _USAGE.items():
        match = re.match(pattern, line)
        if match:
            limit = None if match.group(1) == "N" else int(match.group(1))
            entry[key] = {"used": int(match.group(2)), "limit": limit}
    fields: Values = {}
    for word in line.split():
        name, dummy, value = word.partition("=")
        fields[name] = value
    if "ParentAccount" in fields:
        entry["parent"] = fields["ParentAccount"].partition("(")[0]
    if "MaxTRESPJ" in fields:
        entry["job_tres"] = parse_tres(fields["MaxTRESPJ"])
    for key, name in _MAXIMA.items():
        # With what is used of it in brackets.
        if fields.get(name):
            entry[key] = _number(name, fields[name].partition("(")[0], line)


# --- failures ---------------------------------------------------------------------------------------------------------------

# In this order: later lines of the same output are consequences of the first.
_CAUSES = [
    # Of the MUNGE library, on this host.
    (
        "auth_munge_down",
        (
            r"Did you start munged|Munge encode failed: Failed to (?:access|connect)|munged? (?:is "
            r"not running|communication)"
        ),
    ),
    ("auth_clock", r"(?:Expired|Rewound) credential"),
    ("auth_key", r"Invalid credential"),
    (
        "not_configured",
        (
            r"Could not establish a configuration source|Unable to establish (?:a )?configuration "
            r"source"
        ),
    ),
    (
        "invalid_configuration",
        (
            r"Unable to process configuration file|Parsing error at unrecognized key|error "
            r"opening/reading (?:configuration|\S+\.conf)"
        ),
    ),
    # 22.05 and earlier close the connection if they cannot verify the credential.
    (
        "auth",
        (
            r"Protocol authentication error|authentication error|Zero Bytes were transmitted or "
            r"received|Failed to unpack SLURM_PERSIST_INIT"
        ),
    ),
    (
        "database_down",
        r"persistent connection to host:\S+: Connection refused|persist_conn_open|Problem "
        r"talking to the database|Sending PersistInit msg"
        r"|slurmdbd.*(?:[Cc]onnection refused|not responding)|Unable to contact slurmdbd",
    ),
    (
        "permission",
        (
            r"Access/permission denied|Invalid user id|Permission denied|not authorized|requires? "
            r"(?:operator|administrator)"
        ),
    ),
    (
        "controller_unreachable",
        r"Unable to resolve|No route to host|Network is unreachable|Name or service not known",
    ),
    (
        "controller_down",
        (
            r"Unable to contact slurm controller|Connection refused|connect failure|Slurm backup "
            r"controller in standby mode"
        ),
    ),
    ("timeout", r"timed out"),
]
FIXES = {
    "not_installed": (
        "install Slurm's commands on this host (package slurm-client), or run the task on a host "
        "that has them"
    ),
    "not_configured": (
        "install /etc/slurm/slurm.conf on this host, or start slurmd or sackd with --conf-server, "
        "which fetches the configuration"
    ),
    "invalid_configuration": (
        "correct the line in /etc/slurm/slurm.conf that the message names. It may belong to "
        "another version of Slurm"
    ),
    "controller_down": (
        "start the controller on its host ('systemctl start slurmctld'). If it stops again, "
        "'journalctl -u slurmctld' shows the reason"
    ),
    "controller_unreachable": (
        "check that this host resolves the name of the controller in SlurmctldHost, and that it "
        "reaches TCP port 6817 there"
    ),
    "auth_munge_down": "start MUNGE on this host ('systemctl start munge')",
    "auth_key": (
        "copy /etc/munge/munge.key from the controller to this host and restart munge and Slurm's "
        "daemons here. The keys differ"
    ),
    "auth_clock": (
        "synchronise the clocks of this host and the controller. MUNGE refuses credentials that "
        "are more than 5 minutes old or from the future"
    ),
    "auth": (
        "compare the clocks ('date') and the checksums of /etc/munge/munge.key on this host and on "
        "the controller. They must be the same"
    ),
    "database_down": (
        "start the database daemon on its host ('systemctl start mariadb slurmdbd'). Jobs go on "
        "meanwhile. 'journalctl -u slurmdbd' shows errors"
    ),
    "permission": "run the task as root, or as a person with AdminLevel=Operator in Slurm",
    "timeout": (
        "check the load and the log of the controller ('journalctl -u slurmctld'), or raise "
        "'timeout'"
    ),
    "failed": "run the command on the host to see its whole output",
}


def why_no_answer(rc: int, stdout: str, stderr: str) -> tuple[str, str]:
    """Return (cause, the line that shows it) of a command that failed."""
    lines = [line.strip() for line in (stderr + "\n" + stdout).split("\n") if line.strip()]
    for cause, pattern in _CAUSES:
        for line in lines[:200]:
            if re.search(pattern, line[:1000]):
                return cause, line[:400]
    return "failed", lines[-1][:400] if lines else "exit code %d and no output" % rc


def credential_fault(text: str) -> str:
    """Return auth_key, auth_clock or empty for the output of unmunge, which decoded a new
    credential of the controller.
    """
    match = re.search(
        r"^(?:STATUS:|unmunge: Error:) +(.*?) *(?:\([0-9]+\))?$", text[:4000], re.MULTILINE
    )
    status = match.group(1) if match else ""
    if re.search(r"Expired|Rewound", status):
        return "auth_clock"
    return "auth_key" if re.search(r"Invalid credential", status) else ""


def controllers_of(text: str) -> tuple[list[str], int]:
    """Return ([host names or addresses], port) of the controllers in a slurm.conf."""
    hosts: list[str] = []
    port = 6817
    for line in text.split("\n"):
        match = re.match(r"\s*(SlurmctldHost|SlurmctldPort)\s*=\s*([^\s#]+)", line, re.IGNORECASE)
        if match and match.group(1).lower() == "slurmctldhost":
            name, dummy, address = match.group(2).rstrip(")").partition("(")
            hosts.append(address or name)
        elif match:
            # Several controllers' daemons may use a range.
            first = re.match(r"[0-9]{1,5}", match.group(2))
            port = int(first.group(0)) if first else port
    return hosts, port


# --- drain and resume -------------------------------------------------------------------------------------------------------


def reason_of(text: str) -> str:
    """Return the reason with our prefix, in one line, and not longer than MAX_REASON.

    Empty if there is no text.
    """
    # A finding may quote a whole log.
    words = " ".join(printable(text[: 10 * MAX_REASON], instead=" ").split())
    if words.startswith(REASON_PREFIX.strip()):
        words = words[len(REASON_PREFIX.strip()) :].strip()
    if not words:
        return ""
    reason = REASON_PREFIX + words
    return reason if len(reason) <= MAX_REASON else reason[: MAX_REASON - 3].rstrip() + "..."


def is_ours(reason: str) -> bool:
    """Return whether a reason is one of this collection."""
    return reason.startswith(REASON_PREFIX.strip())


def node_state_plan(
    found: Iterable[Node], names: Iterable[str], state: str, reason: str, only_ours: bool
) -> dict[str, str]:
    """Return what slurm_node_state does with each node: {name: drain, resume, unchanged or kept}.

    C(found) is from parse_nodes.
    """
    nodes = {node["name"]: node for node in found}
    plan: dict[str, str] = {}
    for name in dict.fromkeys(names):
        if state == "drain":
            plan[name] = _drain_action(nodes[name], reason, only_ours)
        else:
            plan[name] = _resume_action(nodes[name], only_ours)
    return plan


def _drain_action(node: Node, reason: str, only_ours: bool) -> str:
    """Return drain, unchanged or kept for a node that is to be drained."""
    foreign = only_ours and node["reason"] != "" and not is_ours(node["reason"])
    if "drain" in node["states"]:
        if node["reason"] == reason:
            return "unchanged"
        return "kept" if foreign else "drain"
    # Slurm itself sets nodes down that do not respond. They must not return to service by
    # themselves before the finding is cleared. A person's reason for a node that is down stays.
    is_down = node["states"][0] in ("down", "error")
    return "kept" if foreign and node["reason_user"] != SLURM_USER and is_down else "drain"


def _resume_action(node: Node, only_ours: bool) -> str:
    """Return resume, unchanged or kept for a node that is to be resumed."""
    if not {"drain", "down", "fail", "error"} & set(node["states"]):
        return "unchanged"
    return "resume" if not only_ours or is_ours(node["reason"]) else "kept"


def state_word(node: Node, action: str) -> str:
    """Return the state for C(scontrol update) that does the action with the node."""
    # Slurm refuses RESUME for a node that has not registered since the controller was first
    # started.
    return "undrain" if action == "resume" and node["states"][0] == "unknown" else action
