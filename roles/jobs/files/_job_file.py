# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judges the values of a job file. The command, the forms in the browser and the tests call it, so that all of them refuse the same.

It knows the format only. What a site has (accounts, hosts, images) is judged by _job_limits.py.
"""

from __future__ import annotations

import difflib
import math
import re

import _job_text

KINDS = ("PyTorchJob", "HorovodJob", "MPIJob", "MindSporeJob", "Job")
ALIASES = ("none", "dlws")
SERVICES = ("ssh", "jupyter", "tensorboard")
#: The form of values, and what a message says of it.
NAME = (r"[A-Za-z0-9_]{1,27}", "1 to 27 letters, digits and '_'")
IMAGE = (
    r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}",
    "the name of an image, such as pytorch:2.5; 'trainyard images' lists those of this cluster",
)
ACCOUNT = (
    r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}",
    "the name of an account; 'trainyard quota' lists yours",
)
CLASS = (
    r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}",
    "a class of hosts, such as h100; 'trainyard nodes' lists them",
)
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
#: A remote of the person's own configuration. One that begins with ':' would have its password in the job file.
REMOTE = (
    r"[A-Za-z0-9_][A-Za-z0-9_ .+@-]{0,99}:[^\x00-\x1f\x7f]{0,900}",
    "remote:path with a remote that 'rclone config' has made, such as results:runs/1",
)
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
MIB_PER_GB = 1024
#: How far jobs of one priority are apart that have other numbers.
NICE_STEP = 100
#: Set for each job, or by the shell, which does not let them be set. A value of the person would break it.
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
DEFAULTS = {
    "kind": "Job",
    "worker_count": "1",
    "worker_cpu": "1",
    "worker_gpu": "0",
    "worker_memory": "4",
    "worker_shared_memory": "",
    "worker_image": "",
    "priority": "",
    "workspace_id": "",
    "interactive": "false",
    "host_class": "",
    "max_minutes": "",
    "preemptible": "false",
    "environment": {},
    "workdir": "",
    "retries": "0",
    "services": [],
    "environment_aliases": "none",
    "copy_results": "",
}
KEYS = ("name", "command", *DEFAULTS)


class JobFileError(ValueError):
    """The job file is not valid: C(problems) has a sentence for each fault, with its line, the key, the value, and what is allowed."""

    def __init__(self, problems):
        super().__init__("\n".join(problems))
        self.problems = problems


class _Fault(Exception):
    """What is wrong with one value; the message begins with the value."""


def read_job_file(text, changes=(), priorities=(), default_image=""):
    """Return the job that a file describes; raises JobFileError with all its faults.

    :param text: content of the file, key=value lines or YAML.
    :param changes: texts C(KEY=VALUE) that replace values of the file, as of C(--set). An empty value restores the default.
    :param priorities: priorities of the site, C(name), C(priority) and C(preempts) of each.
    :param default_image: image of jobs that name none; empty if the site has none.
    """
    try:
        values = _job_text.read_job_text(text, KEYS)
    except _job_text.TextError as error:
        raise JobFileError([str(error)]) from error
    return judge(changed(values, changes), priorities, default_image)


def read_spec(text):
    """Return the values and the job of a file that has been accepted, as a job keeps it. The priorities of the site are not known there."""
    values = _job_text.read_job_text(text, KEYS)
    return values, judge(
        {key: value for key, value in values.items() if key not in ("priority", "preemptible")}
    )


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


def judge(values, priorities=(), default_image=""):
    """Return the job of these values; see read_job_file. Values are texts, with the attribute C(line) where they come from a file."""
    problems, job = [], {}
    for key in values:
        if key not in KEYS:
            near = difflib.get_close_matches(key.lower(), KEYS, 1, 0.6)
            problems.append(
                "%s%s: there is no such key%s"
                % (
                    _line(key),
                    key,
                    "; did you mean %s?" % near[0] if near else "; the keys are " + ", ".join(KEYS),
                )
            )
    lines = {str(key): _line(key) for key in values}
    whole = dict(DEFAULTS, **{str(key): value for key, value in values.items()})
    for key, convert in _CONVERTERS.items():
        if key not in whole:
            problems.append(
                "%s: the file does not have this key; it needs one, as in: %s"
                % (key, _EXAMPLES[key])
            )
            continue
        try:
            job[key] = convert(whole[key])
        except _Fault as fault:
            problems.append("%s%s: %s" % (lines.get(key, ""), key, fault))
    if not problems:
        problems += _together(job, lines, priorities, default_image)
    if problems:
        raise JobFileError(problems)
    return job


def _line(value):
    number = getattr(value, "line", 0)
    return "line %d: " % number if number else ""


def shown(value):
    """Return a value as messages show it: short, in quotes, and without characters that a terminal would obey."""
    text = (
        value
        if isinstance(value, str)
        else "a list"
        if isinstance(value, (list, tuple))
        else "several keys"
        if isinstance(value, dict)
        else str(value)
    )
    text = "".join(character if character.isprintable() else "?" for character in text)
    return (
        "'%s'" % (text if len(text) <= 60 else text[:57] + "...")
        if isinstance(value, str)
        else text
    )


# --- single values ----------------------------------------------------------------------------------------------------------


def _text(value, allowed):
    if not isinstance(value, str):
        raise _Fault("%s is not one value; use %s" % (shown(value), allowed))
    _check_characters(value)
    return str(value)


def _check_characters(text):
    if re.search("[\ud800-\udfff]", text):
        raise _Fault(
            "%s has a character that is none in UTF-8; write the file in UTF-8, and check its \\u escapes"
            % shown(text)
        )


def _in_brackets(value):
    """Return the list or mapping that a text spells, as key=value lines and C(--set) have it. Other values are returned as they are."""
    if not isinstance(value, str) or not value.startswith(("{", "[")):
        return value
    try:
        return _job_text.read_value(value)
    except _job_text.TextError as error:
        raise _Fault("%s cannot be read: %s" % (shown(value), error.message)) from error


def _form(form, empty=False):
    pattern, allowed = form

    def convert(value):
        text = _text(value, allowed)
        if not (empty and text == "") and not re.fullmatch(pattern, text):
            raise _Fault("%s is not valid; use %s" % (shown(text), allowed))
        return text

    return convert


def _whole(first, last, empty=False):
    allowed = "a whole number from %d to %d" % (first, last)

    def convert(value):
        text = _text(value, allowed)
        if empty and text == "":
            return None
        if not re.fullmatch(r"[0-9]{1,9}", text) or not first <= int(text) <= last:
            raise _Fault("%s is not possible; use %s" % (shown(text), allowed))
        return int(text)

    return convert


def _gigabytes(zero=False, empty=False):
    allowed = "a number of GB %s to %d, such as 16 or 0.5" % (
        "from 0" if zero else "above 0, up",
        MAX_GB,
    )

    def convert(value):
        text = _text(value, allowed)
        if empty and text == "":
            return None
        if (
            not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text)
            or not (0 if zero else 1e-9) <= float(text) <= MAX_GB
        ):
            raise _Fault("%s is not possible; use %s" % (shown(text), allowed))
        return math.ceil(float(text) * MIB_PER_GB)

    return convert


def _boolean(value):
    text = _text(value, "true or false").lower()
    if text not in YES + NO:
        raise _Fault("%s is neither true nor false" % shown(value))
    return text in YES


def _one_of(names):
    def convert(value):
        text = _text(value, "one of " + ", ".join(names))
        if text not in names:
            near = difflib.get_close_matches(text.lower(), [name.lower() for name in names], 1, 0.5)
            hint = (
                "; did you mean %s?" % next(name for name in names if name.lower() == near[0])
                if near
                else ""
            )
            raise _Fault("%s is not one of %s%s" % (shown(text), ", ".join(names), hint))
        return text

    return convert


def _command(value):
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


def _line_of_text(value, allowed):
    text = _text(value, allowed)
    if re.search(r"[\x00-\x1f\x7f]", text) or len(text) > MAX_TEXT:
        raise _Fault(
            "%s is not one line of at most %d characters; use %s" % (shown(text), MAX_TEXT, allowed)
        )
    return text


def _folder(value):
    allowed = "an absolute path, or one that begins with ~/"
    text = _line_of_text(value, allowed)
    # podman separates the parts of a mount by commas.
    if text and (
        not text.startswith(("/", "~/"))
        and text != "~"
        or re.search(r'[,"]', text)
        or ".." in text.split("/")
    ):
        raise _Fault(
            "%s is not possible; use %s, without commas, quotes and '..'" % (shown(text), allowed)
        )
    return text


def is_folder(text):
    """Return whether a job file can have this path as a folder."""
    try:
        return bool(_folder(text))
    except _Fault:
        return False


def _environment(value):
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


def _services(value):
    """Return what is started beside the job: C(ssh) and C(jupyter) as booleans, C(tensorboard) as a folder or an empty text."""
    found = {"ssh": False, "jupyter": False, "tensorboard": ""}
    value = _in_brackets(value)
    if isinstance(value, str):
        value = [entry.strip() for entry in value.split(",") if entry.strip()]
    pairs = []
    for entry in value if isinstance(value, list) else [value]:
        pairs += entry.items() if isinstance(entry, dict) else [(entry, "true")]
    for name, setting in pairs:
        if not isinstance(name, str) or name not in SERVICES:
            raise _Fault("%s is not one of %s" % (shown(name), ", ".join(SERVICES)))
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


_CONVERTERS = {
    "name": _form(NAME),
    "kind": _one_of(KINDS),
    "worker_count": _whole(1, MAX_WORKERS),
    "worker_cpu": _whole(1, MAX_CPUS),
    "worker_gpu": _whole(0, MAX_GPUS),
    "worker_memory": _gigabytes(),
    "worker_shared_memory": _gigabytes(zero=True, empty=True),
    "worker_image": _form(IMAGE, empty=True),
    "command": _command,
    "priority": lambda value: _line_of_text(value, "1 to 9, or the name of a priority"),
    "workspace_id": _form(ACCOUNT, empty=True),
    "interactive": _boolean,
    "host_class": _form(CLASS, empty=True),
    "max_minutes": _whole(1, MAX_MINUTES, empty=True),
    "preemptible": _boolean,
    "environment": _environment,
    "workdir": _folder,
    "retries": _whole(0, MAX_RETRIES),
    "services": _services,
    "environment_aliases": _one_of(ALIASES),
    "copy_results": _form(REMOTE, empty=True),
}
_EXAMPLES = {"name": "name: first_job", "command": "command: python3 train.py"}


# --- values that depend on each other ---------------------------------------------------------------------------------------


def _together(job, lines, priorities, default_image):
    problems = []

    def problem(key, text):
        problems.append("%s%s: %s" % (lines.get(key, ""), key, text))

    job["worker_image"] = job["worker_image"] or default_image
    if not job["worker_image"]:
        problem(
            "worker_image",
            "the file does not have this key, and the cluster has no image of its own; use %s"
            % IMAGE[1],
        )
    try:
        job["priority"], job["nice"] = chosen_priority(
            job["priority"], job["preemptible"], priorities
        )
    except _Fault as fault:
        problem("priority" if "priority" in lines else "preemptible", fault)
    if job["interactive"]:
        # Its command runs in the terminal, without the program that reads these keys.
        for key, is_set in (
            ("services", any(job["services"].values())),
            ("environment", job["environment"]),
            ("copy_results", job["copy_results"]),
            ("environment_aliases", job["environment_aliases"] != "none"),
            ("preemptible", job["preemptible"]),
        ):
            if is_set:
                problem(key, "an interactive job has none; remove the key, or interactive")
    if job["interactive"] and job["worker_count"] != 1:
        problem(
            "interactive",
            "an interactive job has one worker, but worker_count is %d" % job["worker_count"],
        )
    if job["interactive"] and job["retries"]:
        problem("retries", "an interactive job is not run again; remove retries or interactive")
    return problems


def chosen_priority(value, preemptible, priorities):
    """Return the name of a priority and the nice value in it. Numbers from 1 to 9 are spread over the priorities; 9 is the highest."""
    ordered = [entry["name"] for entry in sorted(priorities, key=lambda entry: entry["priority"])]
    preempted = [
        name
        for name in ordered
        if any(name in (entry.get("preempts") or []) for entry in priorities)
    ]
    allowed = "1 to 9, or one of " + ", ".join(ordered) if ordered else "1 to 9"
    if value == "":
        if preemptible and not preempted:
            raise _Fault("no priority of this cluster is preempted; remove preemptible")
        return (preempted[0] if preemptible else "normal" if "normal" in ordered else ""), 0
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
    """Return values of a job file as YAML which read_job_text reads as the same values, in the order of KEYS."""
    lines = []
    for key in sorted(values, key=lambda key: KEYS.index(key) if key in KEYS else len(KEYS)):
        lines += _lines_of(key, values[key], 0)
    return "".join(line + "\n" for line in lines)


def _lines_of(key, value, depth):
    head = "  " * depth + key + ":"
    if isinstance(value, dict):
        return (
            [head + " {}"]
            if not value
            else [head]
            + [line for name in value for line in _lines_of(name, value[name], depth + 1)]
        )
    if isinstance(value, (list, tuple)):
        return (
            [head + " [" + ", ".join(_scalar(entry) for entry in value) + "]"]
            if not any(isinstance(entry, dict) for entry in value)
            else [head]
            + [
                "  " * (depth + 1)
                + "- {"
                + ", ".join("%s: %s" % (name, _scalar(entry[name])) for name in entry)
                + "}"
                if isinstance(entry, dict)
                else "  " * (depth + 1) + "- " + _scalar(entry)
                for entry in value
            ]
        )
    return [head + " " + _scalar(value)]


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
