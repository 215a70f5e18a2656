# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Output of sacctmgr -n -P and squeue, of Slurm 21.08 to 24.11, as data.

JSON output came with 23.02 only.
"""

from __future__ import annotations

import re

from typing import Dict, Iterator, NamedTuple, Union

from ansible_collections.trainyard.gpu.plugins.module_utils._parse_error import ParseError

__all__ = [
    "Association",
    "COLUMNS",
    "CPU",
    "GPU",
    "JOB_FORMAT",
    "Job",
    "MEMORY",
    "ParseError",
    "Qos",
    "User",
    "is_busy",
    "is_done_already",
    "message",
    "parse_accounts",
    "parse_associations",
    "parse_jobs",
    "parse_limits",
    "parse_minutes",
    "parse_qos",
    "parse_tres",
    "parse_users",
    "show",
]

GPU, CPU, MEMORY = "gres/gpu", "cpu", "mem"

# A description may have a | in it, so it is the last column.
COLUMNS = {
    "tres": ("Type", "Name", "ID"),
    "account": ("Account", "Description"),
    "user": ("User", "Cluster", "Account", "DefaultAccount", "Admin"),
    "qos": ("Name", "Priority", "Preempt", "PreemptMode", "Flags"),
    "assoc": (
        "Cluster",
        "Account",
        "User",
        "Partition",
        "ParentName",
        "GrpTRES",
        "MaxWall",
        "QOS",
        "DefaultQOS",
        "MaxSubmitJobs",
        "MaxJobs",
    ),
}
# Without these words, an association of a person shows the limits that it inherits from its account
# as its own.
_WORDS = {"assoc": ["WithRawQOS", "WOPLimits"], "user": ["WithAssoc"]}
JOB_FORMAT = "%i|%u|%a|%q|%T"


#: Amounts by resource: GPUs, CPUs, and memory in MiB. Text of resources that this collection does
#: not set.
Limits = Dict[str, Union[int, str]]


class Association(NamedTuple):
    """One of an account (C(user) is empty) or of a person.

    C(qos) has the names that it adds to those of its parent if it C(inherits), else all of its
    names. None is no limit: of C(minutes) that a job runs, of jobs that wait or run (C(submit)),
    and of those that run (C(running)).
    """

    cluster: str
    account: str
    user: str
    partition: str
    parent: str
    limits: Limits
    minutes: int | None
    qos: tuple[str, ...]
    inherits: bool
    default_qos: str
    submit: int | None
    running: int | None = None


class User(NamedTuple):
    """A person's default account in a cluster.

    C(admin) is None where the person is no administrator.
    """

    default: str
    admin: str


class Qos(NamedTuple):
    """A quality of service, which this collection calls a priority.

    C(mode) is how jobs are preempted that have it.
    """

    priority: int
    preempts: tuple[str, ...]
    mode: str
    flags: tuple[str, ...]


class Job(NamedTuple):
    """A job of squeue that has not ended."""

    number: str
    user: str
    account: str
    qos: str
    state: str


def show(entity: str) -> list[str]:
    """Return the arguments of sacctmgr that print a table."""
    return (
        ["-n", "-P", "show", entity]
        + _WORDS.get(entity, [])
        + ["format=" + ",".join(COLUMNS[entity])]
    )


def _rows(text: str, entity: str, count: int) -> Iterator[tuple[str, list[str]]]:
    """Return each line and its columns. ParseError if a line is not whole."""
    # The last line ends with a line break too. Without one, the output was cut off.
    if text and not text.endswith("\n"):
        raise ParseError(
            "sacctmgr show %s: the output ends within a line: %.120r"
            % (entity, text.rsplit("\n", 1)[-1])
        )
    for line in text.split("\n")[:-1]:
        fields = line.split("|", count - 1)
        if len(fields) != count or (entity != "account" and "|" in fields[-1]):
            raise ParseError(
                "sacctmgr show %s: %d columns are expected: %.120r" % (entity, count, line)
            )
        yield line, fields


def _number(text: str, line: str, entity: str) -> int | None:
    """Return the number in a column, None if the column is empty."""
    if not re.fullmatch("[0-9]{0,10}", text, re.ASCII):
        raise ParseError("sacctmgr show %s: not a number: %.20r in %.120r" % (entity, text, line))
    return int(text) if text else None


def _names(text: str) -> tuple[str, ...]:
    """Return the sorted names of a list with commas."""
    return tuple(sorted(name for name in text.split(",") if name))


def parse_minutes(text: str) -> int | None:
    """Return the minutes of D-HH:MM:SS, HH:MM:SS or MM:SS, rounded up; None for no limit."""
    if text in ("", "UNLIMITED"):
        return None
    found = re.fullmatch(
        r"(?:([0-9]{1,6})-)?(?:([0-9]{1,2}):)?([0-9]{1,2}):([0-9]{2})", text, re.ASCII
    )
    if not found:
        raise ParseError("not a time such as 1-02:00:00: %.40r" % text)
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return (days * 24 + hours) * 60 + minutes + (1 if seconds else 0)


_AMOUNTS = {GPU: "[0-9]{1,10}", CPU: "[0-9]{1,10}", MEMORY: r"[0-9]{1,15}(\.[0-9]{1,9})?[KMGTP]?"}


def parse_limits(text: str) -> Limits:
    """Return {TRES: number} of text such as cpu=100,gres/gpu=8,mem=4G."""
    limits: Limits = {}
    for part in text.split(",") if text else []:
        name, sign, number = part.partition("=")
        form = _AMOUNTS.get(name, ".*")
        is_amount = re.fullmatch(form, number, re.ASCII)
        if not (name and sign and number) or name in limits or not is_amount:
            raise ParseError("not a limit such as gres/gpu=8: %.80r" % text)
        if name == MEMORY:
            limits[name] = _mebibytes(number)
        else:
            limits[name] = int(number) if number.isdigit() and number.isascii() else number
    return limits


def _mebibytes(text: str) -> int:
    """Return the MiB of text such as 4000M, 16G or 4096, which is in MiB."""
    number, unit = (text, "M") if text[-1].isdigit() else (text[:-1], text[-1])
    factors = {"K": 1.0 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}
    return int(round(float(number) * factors[unit]))


def parse_associations(text: str) -> list[Association]:
    """Return the Associations of all clusters."""
    found = []
    for line, fields in _rows(text, "assoc", len(COLUMNS["assoc"])):
        (
            cluster,
            account,
            user,
            partition,
            parent,
            limits,
            wall,
            qos,
            default_qos,
            submit,
            running,
        ) = fields
        if not (cluster and account):
            raise ParseError("sacctmgr show assoc: no cluster or no account: %.120r" % line)
        # +low: added to those of the parent. -low: taken from them.
        names = tuple(
            sorted(name.lstrip("+") for name in qos.split(",") if name and not name.startswith("-"))
        )
        inherits = all(name.startswith(("+", "-")) for name in qos.split(",") if name)
        try:
            found.append(
                Association(
                    cluster,
                    account,
                    user,
                    partition,
                    parent,
                    parse_limits(limits),
                    parse_minutes(wall),
                    names,
                    inherits,
                    default_qos,
                    _number(submit, line, "assoc"),
                    _number(running, line, "assoc"),
                )
            )
        except ParseError as error:
            raise ParseError("sacctmgr show assoc: %s in %.120r" % (error, line)) from error
    return found


def parse_accounts(text: str) -> dict[str, str]:
    """Return {account: description}."""
    return {fields[0]: fields[1] for dummy, fields in _rows(text, "account", 2)}


def parse_users(text: str, cluster: str) -> dict[str, User]:
    """Return {person: User} of a cluster."""
    return {
        fields[0]: User(fields[3], fields[4])
        for dummy, fields in _rows(text, "user", 5)
        if fields[1] == cluster
    }


def parse_qos(text: str) -> dict[str, Qos]:
    """Return {QOS: Qos}."""
    return {
        fields[0]: Qos(
            _number(fields[1], line, "qos") or 0,
            _names(fields[2]),
            fields[3].lower() or "cluster",
            _names(fields[4]),
        )
        for line, fields in _rows(text, "qos", 5)
    }


def parse_tres(text: str) -> set[str]:
    """Return the names of the resources that the database counts, such as cpu and gres/gpu."""
    return {
        "/".join(part for part in fields[:2] if part) for dummy, fields in _rows(text, "tres", 3)
    }


def parse_jobs(text: str) -> list[Job]:
    """Return the Jobs of squeue that have not ended."""
    return [Job(*fields) for dummy, fields in _rows(text, "jobs", 5)]


def is_busy(output: str) -> bool:
    """Return whether the same command may succeed a second later. sacctmgr may print this and exit
    with 0.
    """
    return (
        re.search(
            (
                r"waiting for lock|no TRES known by type|Connection refused|Unable to contact "
                r"slurmdbd|Sending PersistInit msg|timed out"
            ),
            output,
            re.IGNORECASE,
        )
        is not None
    )


def is_done_already(output: str) -> bool:
    """Return whether a command failed because nothing was left to do.

    22.05 and 24.11 use other words.
    """
    return (
        "You need to add" not in output
        and re.search(
            r"^\s*(Nothing (new )?(added|deleted|modified)|Already existing account)",
            output,
            re.IGNORECASE | re.MULTILINE,
        )
        is not None
    )


def message(output: str) -> str:
    """Return what sacctmgr says on one line."""
    return (
        "; ".join(" ".join(line.split()) for line in output.splitlines() if line.strip())
        or "no message"
    )
