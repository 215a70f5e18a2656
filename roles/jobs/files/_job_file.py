# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judges the values of a job file, once, when it is submitted.

The command, the form in the browser and the tests call it, so that all of them refuse the same.

TABLE has a row for each key. The judge, the options of sbatch, `trainyard submit --help`, the form
in the browser and the documentation (`make docs`) read it. What a site has (accounts, hosts,
images) is judged by _job_limits.py.
"""

from __future__ import annotations

import difflib
import math
import re
from typing import Callable, NamedTuple

import _job_text

KINDS = ("PyTorchJob", "HorovodJob", "MPIJob", "MindSporeJob", "Job")
ALIASES = ("none", "dlws")
#: Events of the key mail, as sbatch calls them.
MAIL_TYPES = {"start": "BEGIN", "end": "END", "fail": "FAIL", "requeue": "REQUEUE"}
#: Those of a site that sends mails, if the person has chosen none.
USUAL_MAIL = ["end", "fail", "requeue"]
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
YES, NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
MAX_COMMAND, MAX_TEXT, MAX_VARIABLES = 65536, 4096, 500
#: The largest amounts that are a job and not a typing error.
MAX_WORKERS, MAX_CPUS, MAX_GPUS, MAX_GB, MAX_MINUTES, MAX_RETRIES = (
    4096,
    1024,
    64,
    16384,
    60 * 24 * 366,
    10,
)
MAX_HANG_MINUTES = 60 * 24 * 7
MIB_PER_GB = 1024
#: How far jobs of one priority are apart that have other numbers.
NICE_STEP = 100
#: Set for each job, or by the shell, which does not let them be set. A value of the person would
#: break it.
OWN_VARIABLES = (
    "SLURM_",
    "TRAINYARD_",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "CUDA_VISIBLE_DEVICES",
    "HOME",
    "USER",
    "UID",
    "EUID",
    "PPID",
    "BASHOPTS",
    "SHELLOPTS",
    "BASH_VERSINFO",
)


class JobFileError(ValueError):
    """The job file is not valid: C(problems) has a sentence for each fault, with its line, the key,
    the value, and what is allowed.
    """

    def __init__(self, problems):
        super().__init__("\n".join(problems))
        self.problems = problems


class _Fault(Exception):
    """What is wrong with one value; the message begins with the value."""


class Accepts(NamedTuple):
    """What a key accepts."""

    #: In words that follow "use".
    allowed: str
    #: Returns the value as the judged job has it. Raises _Fault.
    convert: Callable
    #: All texts that are allowed, if there are few.
    choices: tuple = ()


class Field(NamedTuple):
    """A field of the form in the browser."""

    #: Where it stands: the form begins with the smallest number.
    place: int
    label: str
    #: text, number, select, boolean or area
    control: str


class Key(NamedTuple):
    """A key of job files."""

    name: str
    #: As a job file has it. None: a job file needs the key.
    default: str | list | dict | None
    accepts: Accepts
    #: What it does, in Markdown.
    doc: str
    #: A value for the documentation.
    example: str
    #: Option of sbatch, with a place for the judged value unless that is true or false. It is left
    #: out if the value is empty.
    sbatch: str = ""
    #: Whether an interactive job cannot have it.
    is_of_batch: bool = False
    field: Field | None = None


class Service(NamedTuple):
    """What the key services starts beside a job."""

    name: str
    field: Field


# --- single values ----------------------------------------------------------------------------------------------------------


def shown(value: object) -> str:
    """Return a value as messages show it: short, in quotes, and without characters that a terminal
    would obey.
    """
    if isinstance(value, (list, tuple)):
        return "a list"
    if isinstance(value, dict):
        return "several keys"
    text = ""
    for character in str(value):
        text += character if character.isprintable() else "?"
    if not isinstance(value, str):
        return text
    return "'%s'" % (text if len(text) <= 60 else text[:57] + "...")


def _text(value: object, allowed: str) -> str:
    if not isinstance(value, str):
        raise _Fault("%s is not one value; use %s" % (shown(value), allowed))
    _check_characters(value)
    return str(value)


def _check_characters(text: str) -> None:
    if re.search("[\ud800-\udfff]", text):
        raise _Fault(
            (
                "%s has a character that is none in UTF-8; write the file in UTF-8, and check its "
                "\\u escapes"
            )
            % shown(text)
        )


def _in_brackets(value: object) -> object:
    """Return the list or mapping that a text spells, as key=value lines and C(--set) have it.

    Other values are returned as they are.
    """
    if not isinstance(value, str) or not value.startswith(("{", "[")):
        return value
    try:
        return _job_text.read_value(value)
    except _job_text.TextError as error:
        raise _Fault("%s cannot be read: %s" % (shown(value), error.message)) from error


def _form(pattern: str, allowed: str, empty: bool = False) -> Accepts:
    def convert(value: object) -> str:
        text = _text(value, allowed)
        if not (empty and text == "") and not re.fullmatch(pattern, text):
            raise _Fault("%s is not valid; use %s" % (shown(text), allowed))
        return text

    return Accepts(allowed, convert)


def _whole(first: int, last: int, empty: bool = False) -> Accepts:
    allowed = "a whole number from %d to %d" % (first, last)

    def convert(value: object) -> int | None:
        text = _text(value, allowed)
        if empty and text == "":
            return None
        if not re.fullmatch(r"[0-9]{1,9}", text) or not first <= int(text) <= last:
            raise _Fault("%s is not possible; use %s" % (shown(text), allowed))
        return int(text)

    return Accepts(allowed, convert)


def _gigabytes(zero: bool = False, empty: bool = False) -> Accepts:
    """Accept GB. The judged job has MiB."""
    least, allowed = 1e-9, "a number of GB above 0, up to %d, such as 16 or 0.5" % MAX_GB
    if zero:
        least, allowed = 0, "a number of GB from 0 to %d, such as 16 or 0.5" % MAX_GB

    def convert(value: object) -> int | None:
        text = _text(value, allowed)
        if empty and text == "":
            return None
        is_number = re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text)
        if not is_number or not least <= float(text) <= MAX_GB:
            raise _Fault("%s is not possible; use %s" % (shown(text), allowed))
        return math.ceil(float(text) * MIB_PER_GB)

    return Accepts(allowed, convert)


def _boolean(value: object) -> bool:
    text = _text(value, "true or false").lower()
    if text not in YES + NO:
        raise _Fault("%s is neither true nor false" % shown(value))
    return text in YES


def _one_of(names: tuple) -> Accepts:
    def convert(value: object) -> str:
        text = _text(value, "one of " + ", ".join(names))
        if text in names:
            return text
        known = {name.lower(): name for name in names}
        near = difflib.get_close_matches(text.lower(), known, 1, 0.5)
        hint = "; did you mean %s?" % known[near[0]] if near else ""
        raise _Fault("%s is not one of %s%s" % (shown(text), ", ".join(names), hint))

    return Accepts(", ".join(names), convert, names)


def _command(value: object) -> str:
    text = _text(value, "a command, as in: python3 train.py")
    if not text.strip():
        raise _Fault("it is empty; write what the workers run, as in: command: python3 train.py")
    if len(text) > MAX_COMMAND:
        raise _Fault(
            "it has more than %d characters; put it into a script on the share, and write its path"
            % MAX_COMMAND
        )
    bad = re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text)
    if bad:
        raise _Fault("it has the control character %r; remove it" % bad.group(0))
    return text.rstrip("\n")


def _line_of_text(value: object, allowed: str) -> str:
    text = _text(value, allowed)
    if re.search(r"[\x00-\x1f\x7f]", text) or len(text) > MAX_TEXT:
        raise _Fault(
            "%s is not one line of at most %d characters; use %s" % (shown(text), MAX_TEXT, allowed)
        )
    return text


def _priority(value: object) -> str:
    """Return what the file says. chosen_priority() judges it, by the priorities of the site."""
    return _line_of_text(value, "1 to 9, or the name of a priority")


def _folder(value: object) -> str:
    allowed = "an absolute path, or one that begins with ~/"
    text = _line_of_text(value, allowed)
    is_absolute = text.startswith(("/", "~/")) or text in ("", "~")
    # podman separates the parts of a mount by commas.
    if not is_absolute or re.search(r'[,"]', text) or ".." in text.split("/"):
        raise _Fault(
            "%s is not possible; use %s, without commas, quotes and '..'" % (shown(text), allowed)
        )
    return text


def is_folder(text: str) -> bool:
    """Return whether a job file can have this path as a folder."""
    try:
        return bool(_folder(text))
    except _Fault:
        return False


def _environment(value: object) -> dict:
    value = _in_brackets(value)
    if value in ("", [], None):
        return {}
    if not isinstance(value, dict):
        raise _Fault(
            "%s is not possible; write one NAME: value per line below it, or {NAME: value}"
            % shown(value)
        )
    found = {}
    for name, entry in value.items():
        if not re.fullmatch(VARIABLE, name):
            raise _Fault(
                "%s is not the name of a variable; use letters, digits and '_', and no digit first"
                % shown(str(name))
            )
        if not isinstance(entry, str):
            raise _Fault("%s is %s, but a variable has one value" % (name, shown(entry)))
        _check_characters(entry)
        if "\0" in entry or len(entry) > MAX_COMMAND:
            raise _Fault(
                "the value of %s is longer than %d characters, or has a null character"
                % (name, MAX_COMMAND)
            )
        if name.startswith(OWN_VARIABLES[:2]) or name in OWN_VARIABLES:
            raise _Fault("%s is set for each job; use another name" % name)
        found[str(name)] = str(entry)
    if len(found) > MAX_VARIABLES:
        raise _Fault("there are more than %d variables" % MAX_VARIABLES)
    return found


def _services(value: object) -> dict:
    """Return what is started beside the job: C(ssh) and C(jupyter) as booleans, C(tensorboard) as a
    folder or an empty text.
    """
    found = {"ssh": False, "jupyter": False, "tensorboard": ""}
    value = _in_brackets(value)
    if isinstance(value, str):
        value = [entry.strip() for entry in value.split(",") if entry.strip()]
    pairs = []
    for entry in value if isinstance(value, list) else [value]:
        pairs += entry.items() if isinstance(entry, dict) else [(entry, "true")]
    for name, setting in pairs:
        if not isinstance(name, str) or name not in found:
            raise _Fault("%s is not one of %s" % (shown(name), ", ".join(found)))
        if name == "tensorboard":
            if not isinstance(setting, str) or not setting.startswith(("/", "~/")):
                raise _Fault(
                    "tensorboard needs the folder of the logs, as in: tensorboard: ~/logs; found %s"
                    % shown(setting)
                )
            found[name] = _folder(setting)
        else:
            found[name] = _boolean(setting)
    return found


def _mail(value: object) -> list | None:
    """Return when Slurm sends mails about a job, None for the person's default."""
    allowed = "none, or some of " + ", ".join(MAIL_TYPES)
    value = _in_brackets(value)
    if isinstance(value, str):
        value = [entry.strip() for entry in value.split(",") if entry.strip()]
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise _Fault("%s is not possible; use %s" % (shown(value), allowed))
    for entry in value:
        if entry not in MAIL_TYPES and value != ["none"]:
            raise _Fault("%s is not possible; use %s" % (shown(entry), allowed))
    if not value:
        return None
    return [entry for entry in MAIL_TYPES if entry in value]


def mail_default(text: str) -> list | None:
    """Return the events that a person has chosen for all jobs, None if the text is empty.

    ValueError: it is not valid.
    """
    try:
        return _mail(text.strip())
    except _Fault as fault:
        raise ValueError(str(fault)) from fault


# --- the table --------------------------------------------------------------------------------------------------------------

BOOLEAN = Accepts("true or false", _boolean)
TABLE = (
    Key(
        "name",
        None,
        _form(r"[A-Za-z0-9_]{1,27}", "1 to 27 letters, digits and '_'"),
        "The name of the job",
        "first_job",
        sbatch="--job-name=%s",
        field=Field(1, "Name", "text"),
    ),
    Key(
        "command",
        None,
        Accepts("a line or a text", _command),
        "What `bash` runs on each worker, or on worker 0 only with `HorovodJob` and `MPIJob`",
        "python3 train.py",
        field=Field(10, "Command", "area"),
    ),
    Key(
        "kind",
        "Job",
        _one_of(KINDS),
        (
            "`PyTorchJob` gives the command `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`. "
            "With `HorovodJob` and `MPIJob`, the other workers run an sshd"
        ),
        "PyTorchJob",
        field=Field(2, "Type", "select"),
    ),
    Key(
        "worker_count",
        "1",
        _whole(1, MAX_WORKERS),
        "Workers. Each has a host of its own",
        "2",
        sbatch="--nodes=%d",
        field=Field(5, "Workers", "number"),
    ),
    Key(
        "worker_cpu",
        "1",
        _whole(1, MAX_CPUS),
        "CPUs of each worker",
        "8",
        sbatch="--cpus-per-task=%d",
        field=Field(7, "CPUs of each worker", "number"),
    ),
    Key(
        "worker_gpu",
        "0",
        _whole(0, MAX_GPUS),
        "GPUs (or NPUs) of each worker",
        "4",
        sbatch="--gpus-per-node=%d",
        field=Field(6, "GPUs of each worker", "number"),
    ),
    Key(
        "worker_memory",
        "4",
        _gigabytes(),
        "Memory of each worker",
        "16",
        field=Field(8, "Memory of each worker in GB", "number"),
    ),
    Key(
        "worker_shared_memory",
        "",
        _gigabytes(zero=True, empty=True),
        "Size of `/dev/shm` of each worker, in addition to `worker_memory`",
        "8",
        field=Field(17, "Shared memory of each worker in GB", "number"),
    ),
    Key(
        "worker_image",
        "",
        _form(
            r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}",
            (
                "the name of an image, such as pytorch:2.5; 'trainyard images' lists those of this "
                "cluster"
            ),
            empty=True,
        ),
        "The image of the containers. Empty means the default image of the cluster, if it has one",
        "pytorch:2.5",
        field=Field(9, "Image", "select"),
    ),
    Key(
        "priority",
        "",
        Accepts("1 to 9 (highest), or a name such as high", _priority),
        "How soon it starts, compared with other jobs",
        "high",
        sbatch="--qos=%s",
        field=Field(13, "Priority", "select"),
    ),
    Key(
        "workspace_id",
        "",
        _form(
            r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}",
            "the name of an account; 'trainyard quota' lists yours",
            empty=True,
        ),
        "The account. Empty means your default account",
        "vision",
        sbatch="--account=%s",
        field=Field(12, "Account", "select"),
    ),
    Key(
        "interactive",
        "false",
        BOOLEAN,
        "Whether its only worker has your terminal",
        "true",
    ),
    Key(
        "host_class",
        "",
        _form(
            r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}",
            "a class of hosts, such as h100; 'trainyard nodes' lists them",
            empty=True,
        ),
        "Only hosts with this GPU model or feature",
        "h100",
        sbatch="--constraint=%s",
        field=Field(4, "Device type", "select"),
    ),
    Key(
        "max_minutes",
        "",
        _whole(1, MAX_MINUTES, empty=True),
        "Time limit. Empty means the one of the queue",
        "90",
        sbatch="--time=%d",
        field=Field(11, "Minutes until it ends", "number"),
    ),
    Key(
        "preemptible",
        "false",
        BOOLEAN,
        "Whether other jobs may interrupt it. It is queued again then",
        "true",
        sbatch="--requeue",
        is_of_batch=True,
        field=Field(3, "Preemptible", "boolean"),
    ),
    Key(
        "environment",
        {},
        Accepts("NAME: value", _environment),
        "Variables of the command",
        "{NCCL_DEBUG: INFO}",
        is_of_batch=True,
    ),
    Key(
        "workdir",
        "",
        Accepts("a path below your home or the share, which may begin with ~/", _folder),
        "The folder in which the command starts. Empty means the current one, or your home",
        "~/code",
        field=Field(18, "Folder", "text"),
    ),
    Key(
        "retries",
        "0",
        _whole(0, MAX_RETRIES),
        "How often a command that failed is tried again",
        "2",
        field=Field(19, "Retries", "number"),
    ),
    Key(
        "hang_minutes",
        "0",
        _whole(0, MAX_HANG_MINUTES),
        "Minutes without output, work of the GPUs and traffic, after which `hang.txt` in the "
        "job's folder tells where each rank waits. "
        "The job goes on. 0: never",
        "30",
        is_of_batch=True,
    ),
    Key(
        "services",
        [],
        Accepts("ssh, jupyter, tensorboard: folder", _services),
        "What runs beside the job",
        "{ssh: true, tensorboard: ~/logs}",
        is_of_batch=True,
    ),
    Key(
        "environment_aliases",
        "none",
        _one_of(ALIASES),
        "`dlws`: `DLWS_*` variables and `~/ib_config`, as on Apulis",
        "dlws",
        is_of_batch=True,
    ),
    Key(
        "copy_results",
        "",
        # A remote of the person's own configuration. One that begins with ':' would have its
        # password in the job file.
        _form(
            r"[A-Za-z0-9_][A-Za-z0-9_ .+@-]{0,99}:[^\x00-\x1f\x7f]{0,900}",
            "remote:path with a remote that 'rclone config' has made, such as results:runs/1",
            empty=True,
        ),
        (
            "Where `rclone` copies the folder of a job that succeeded, with `result.json` and the "
            "logs of the workers. `trainyard show` tells if it failed"
        ),
        "results:runs/1",
        is_of_batch=True,
    ),
    Key(
        "mail",
        "",
        Accepts("none, or some of start, end, fail, requeue", _mail),
        (
            "When Slurm sends you a mail. Empty means the line in `~/.config/trainyard/mail`, or "
            "`end, fail, requeue` without that file. It needs `jobs_mail`"
        ),
        "start, fail",
        is_of_batch=True,
        field=Field(20, "Mail", "text"),
    ),
)
KEYS = tuple(key.name for key in TABLE)
SERVICES = (
    Service("ssh", Field(14, "ssh and VS Code Remote", "boolean")),
    Service("jupyter", Field(15, "Jupyter of the image", "boolean")),
    Service("tensorboard", Field(16, "TensorBoard of this folder", "text")),
)


def form_fields() -> list:
    """Return the fields of the form in the browser, in their order.

    Each is a dict with C(name), C(label), C(control), C(default), C(placeholder), C(choices),
    C(help) and C(allowed). The last two are in Markdown.
    """
    found = []
    for key in TABLE:
        if key.field:
            default = key.default or ""
            hint = key.example if key.default is None else default
            texts = (key.doc, key.accepts.allowed)
            found.append((key.field, key.name, default, hint, key.accepts.choices, *texts))
    for service in SERVICES:
        hint = "~/logs" if service.name == "tensorboard" else ""
        texts = ("It runs in the container of the first worker, beside the command", "")
        found.append((service.field, "services." + service.name, "", hint, (), *texts))
    names = ("name", "default", "placeholder", "choices", "help", "allowed", "label", "control")
    return [
        dict(zip(names, (*entry[1:], *entry[0][1:])))
        for entry in sorted(found, key=lambda entry: entry[0].place)
    ]


# --- a whole file -----------------------------------------------------------------------------------------------------------


def changed(values, changes):
    """Return the values with the changes of C(--set)."""
    values = dict(values)
    for change in changes:
        key, equal, value = change.partition("=")
        key = key.strip()
        if not equal or not re.fullmatch(r"[A-Za-z_]\w*(\.\w+)?", key):
            raise JobFileError(
                ["--set: '%.80s' is not KEY=VALUE, as in: --set worker_gpu=2" % change]
            )
        outer, _dot, inner = key.partition(".")
        if outer == "environment" and inner:
            former = values.get(outer)
            values[outer] = dict(former if isinstance(former, dict) else {}, **{inner: value})
        else:
            values.pop(key, None)
            if value:
                values[key] = value
    return values


def judge(values: dict, priorities: list | tuple = (), default_image: str = "") -> dict:
    """Return the job that values of a job file describe. Raises JobFileError with all faults.

    :param values: texts, with the attribute C(line) where they come from a file, or lists or dicts of them.
    :param priorities: priorities of the site, C(name), C(priority) and C(preempts) of each.
    :param default_image: image of jobs that name none; empty if the site has none.
    """
    problems, job = [], {}
    for key in values:
        if key not in KEYS:
            near = difflib.get_close_matches(key.lower(), KEYS, 1, 0.6)
            hint = "did you mean %s?" % near[0] if near else "the keys are " + ", ".join(KEYS)
            problems.append("%s%s: there is no such key; %s" % (_line(key), key, hint))
    lines = {str(key): _line(key) for key in values}
    for key in TABLE:
        value = values.get(key.name, key.default)
        if value is None:
            problems.append(
                "%s: a value is required and missing; give one, as in: %s: %s"
                % (key.name, key.name, key.example)
            )
            continue
        try:
            job[key.name] = key.accepts.convert(value)
        except _Fault as fault:
            problems.append("%s%s: %s" % (lines.get(key.name, ""), key.name, fault))
    if not problems:
        problems += _together(job, lines, priorities, default_image)
    if problems:
        raise JobFileError(problems)
    return job


def _line(value: object) -> str:
    number = getattr(value, "line", 0)
    return "line %d: " % number if number else ""


# --- values that depend on each other ---------------------------------------------------------------------------------------


def _together(job: dict, lines: dict, priorities: list | tuple, default_image: str) -> list:
    problems = []

    def problem(key: str, text: object) -> None:
        problems.append("%s%s: %s" % (lines.get(key, ""), key, text))

    job["worker_image"] = job["worker_image"] or default_image
    if not job["worker_image"]:
        (image,) = (key for key in TABLE if key.name == "worker_image")
        problem(
            "worker_image",
            "a value is required and missing, because the cluster has no image of its own; use %s"
            % image.accepts.allowed,
        )
    try:
        job["priority"], job["nice"] = chosen_priority(
            job["priority"], job["preemptible"], priorities
        )
    except _Fault as fault:
        problem("priority" if "priority" in lines else "preemptible", fault)
    if not job["interactive"]:
        return problems
    for key in TABLE:
        # Its command runs in the terminal, without the program that reads these keys.
        if key.is_of_batch and job[key.name] != key.accepts.convert(key.default):
            problem(key.name, "an interactive job has none; remove the key, or interactive")
    if job["worker_count"] != 1:
        problem(
            "interactive",
            "an interactive job has one worker, but worker_count is %d" % job["worker_count"],
        )
    if job["retries"]:
        problem("retries", "an interactive job is not run again; remove retries or interactive")
    return problems


def _preempted(ordered: list, priorities: list) -> list:
    """Return those of the names whose jobs end for jobs of another priority, in their order."""
    return [
        name
        for name in ordered
        if any(name in (entry.get("preempts") or []) for entry in priorities)
    ]


def _default_priority(preemptible: bool, ordered: list, preempted: list) -> str:
    """Return the name of the priority of a job that requests none. Empty for the one of Slurm."""
    if not preemptible:
        return "normal" if "normal" in ordered else ""
    if not preempted:
        raise _Fault("no priority of this cluster is preempted; remove preemptible")
    return preempted[0]


def chosen_priority(value, preemptible, priorities):
    """Return the name of a priority and the nice value in it.

    Numbers from 1 to 9 are spread over the priorities; 9 is the highest.
    """
    ordered = [entry["name"] for entry in sorted(priorities, key=lambda entry: entry["priority"])]
    preempted = _preempted(ordered, priorities)
    allowed = "1 to 9, or one of " + ", ".join(ordered) if ordered else "1 to 9"
    if value == "":
        return _default_priority(preemptible, ordered, preempted), 0
    if re.fullmatch(r"[1-9]", value) and value not in ordered:
        name, nice = _numbered(int(value), ordered)
    elif value in ordered:
        name, nice = value, 0
    else:
        raise _Fault("%s is not possible; use %s (9 is the highest)" % (shown(value), allowed))
    if preemptible and name not in preempted:
        raise _Fault(
            "jobs of priority %s are never preempted; use %s, or remove preemptible"
            % (name or value, " or ".join(preempted) or "another one")
        )
    return name, nice


def _numbered(number, ordered):
    if not ordered:
        return "", (9 - number) * NICE_STEP
    band = (number - 1) * len(ordered) // 9
    same = [other for other in range(1, 10) if (other - 1) * len(ordered) // 9 == band]
    return ordered[band], (same[-1] - number) * NICE_STEP


# --- the other way: a job as a file -----------------------------------------------------------------------------------------


def to_yaml(values):
    """Return values of a job file as YAML which read_job_text reads as the same values, in the
    order of KEYS.
    """
    lines = []
    for key in sorted(values, key=lambda key: KEYS.index(key) if key in KEYS else len(KEYS)):
        lines += _lines_of(key, values[key], 0)
    return "".join(line + "\n" for line in lines)


def _lines_of(key, value, depth):
    head = "  " * depth + key + ":"
    if isinstance(value, dict):
        if not value:
            return [head + " {}"]
        return [head] + [line for name in value for line in _lines_of(name, value[name], depth + 1)]
    if isinstance(value, (list, tuple)):
        if not any(isinstance(entry, dict) for entry in value):
            return [head + " [" + ", ".join(_scalar(entry) for entry in value) + "]"]
        dash = "  " * (depth + 1) + "- "
        return [head] + [dash + _entry(entry) for entry in value]
    return [head + " " + _scalar(value)]


def _entry(value):
    """Return an entry of a list: several keys, or one value."""
    if not isinstance(value, dict):
        return _scalar(value)
    return "{" + ", ".join("%s: %s" % (name, _scalar(value[name])) for name in value) + "}"


def _scalar(value):
    text = str(value)
    # A plain word, or in double quotes with escapes: one form for everything else.
    if re.fullmatch(r"[A-Za-z0-9_/.][A-Za-z0-9_/.+-]*", text):
        return text
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character):
    if character in '"\\':
        return "\\" + character
    if character == "\n":
        return "\\n"
    code = ord(character)
    if character.isprintable() and code < 0xD800:
        return character
    return (
        "\\x%02x" % code
        if code < 0x100
        else "\\u%04x" % code
        if code < 0x10000
        else "\\U%08x" % code
    )
