# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Parse the output of C(horovodrun --check-build): text in, typed data out.

The command prints one table and exits with 0 whatever is ticked:

    Horovod v0.28.1:

    Available Frameworks:
        [ ] TensorFlow
        [X] PyTorch
        ...

What people have in a log of it differs in indentation, blank lines, the colon, the prefix of each
line (a comment sign, a rank, a container's name) and in what was printed before and after. So a
line is recognised by how it ends, and the table is accepted only if every entry is in it: a
truncated table is never read as one with fewer ticks.

Where the text ends decides what it is:

- before the first section (C(Available ...)): there is no table, P(why_no_table) names the cause;
- in or after the first section, with an entry missing: a table that was cut, which is a ParseError.
"""

from __future__ import annotations

import re

from typing import Iterator, List, NamedTuple, Tuple
from ansible_collections.trainyard.gpu.plugins.module_utils._parse_error import ParseError

# Label of an entry -> key. MLSL was renamed to CCL in Horovod 0.19.
SECTIONS = {
    "frameworks": {"tensorflow": "tensorflow", "pytorch": "pytorch", "mxnet": "mxnet"},
    "controllers": {"mpi": "mpi", "gloo": "gloo"},
    "tensor_operations": {
        "nccl": "nccl",
        "ddl": "ddl",
        "ccl": "ccl",
        "mlsl": "ccl",
        "mpi": "mpi",
        "gloo": "gloo",
    },
}
KEYS = {section: list(dict.fromkeys(labels.values())) for section, labels in SECTIONS.items()}

# Colours and other terminal control; the frame that a terminal multiplexer draws around its panes.
_CONTROL = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|[\x00-\x08\x0b-\x1f\x7f]"
)
_FRAME = re.compile("[\u2500-\u259f]+")

# Before the word: nothing, punctuation, or a token that ends like a time or a number. So 'requires
# Horovod v0.28.1' is not a version line.
_VERSION = re.compile(r"(?:^|[^\w\s]|\d\w*\s)\s*Horovod v(\d[\w.+-]*)\W*$")
_HEADING = re.compile(r"(?:^|\W)Available\s+(\w+(?:\s+\w+)?)\W*$", re.IGNORECASE)
_ENTRY = re.compile(r"\[\s*(x?)\s*\]\s*([a-z]\w*)\W*$", re.IGNORECASE)
# In a section: something short that is not a tick, then a label.
_NO_TICK = re.compile(r"^\W*\w?\W*\b([a-z]\w*)\W*$", re.IGNORECASE)

# The Horovod package of a framework, which a job imports.
PACKAGES = {
    "tensorflow": "horovod.tensorflow",
    "pytorch": "horovod.torch",
    "mxnet": "horovod.mxnet",
}

# horovodrun's interpreter, named in its first line, imports the packages and then continues as
# horovodrun. Horovod forks a process for each entry of its table, which imports the framework again
# (seconds each for torch) unless the parent has it already. horovod.torch can be imported, and is
# ticked, without its compiled extension. Then it prints a warning and lacks all functions that a
# job calls.
_IMPORT = """\
import importlib, os, runpy, sys
path, packages = sys.argv[1], sys.argv[2:]
sys.path[0] = os.path.dirname(path)
for package in packages:
    try:
        module = importlib.import_module(package)
        said = "ok" if hasattr(module, "init") else "it has no init(): its compiled extension is missing"
    except Exception as error:
        said = " ".join(("%s: %s" % (type(error).__name__, error)).split())
    sys.stderr.write("\\ntrainyard: import %s: %s\\n" % (package, said))
sys.argv = [path, "--check-build"]
try:
    runpy.run_path(path, run_name="__main__")
except SystemExit as end:
    if end.code:
        raise
    sys.stdout.flush()
    sys.stderr.flush()
    # A normal exit of a Python with PyTorch takes another 0.7 s.
    os._exit(0)
"""
_SHELL = """\
path=$(command -v -- "$1") || { echo "$1: not found" >&2; exit 127; }
shift
IFS= read -r first < "$path"
case $first in
  "#!"*python*) script=$1; shift; exec ${first#??} -c "$script" "$path" "$@" ;;
esac
exec "$path" --check-build
"""
_IMPORTED = re.compile(r"\n?^trainyard: import (\S+): (.*?)\r?\n", re.MULTILINE)

# argparse reports a missing -np before an unknown option: 0.16 may say either.
_USAGE = re.compile(
    (
        r"unrecogni[sz]ed (?:arguments|option)|(?:unknown|invalid|no such) option|^usage: "
        r".*horovodrun|\bhorovodrun: error:"
    ),
    re.IGNORECASE,
)
_EXCEPTION = re.compile(
    r"(?:^|[^\w\s]\s*)(?:[\w.]*\wError|[\w.]*Exception|[\w.]*queue\.Empty)(?::.*)?$"
    r"|No module named|error while loading shared libraries|symbol lookup error"
)
_TRACEBACK = "Traceback (most recent call last):"
# With --verbose the traceback of an extension's check is normal. A traceback through these frames
# ends horovodrun itself.
_VERBOSE = re.compile(r"Checking whether extension \w+ was ")
_OWN_FRAME = re.compile(r"\bin (?:run_commandline|check_build)$", re.MULTILINE)


class Build(NamedTuple):
    """What Horovod was built with. Each section has all of its keys."""

    version: str
    frameworks: dict[str, bool]
    controllers: dict[str, bool]
    tensor_operations: dict[str, bool]


# No line of a table or of an exception's name is longer. The patterns below backtrack in lines.
_TOO_LONG = 1000
#: Lines with their numbers.
_Lines = List[Tuple[int, str]]


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """(number, content) of each line.

    The text left and right of a pane's frame counts as separate lines.
    """
    for number, line in enumerate(re.split(r"\r?\n|\r", text), start=1):
        for part in _FRAME.split(_CONTROL.sub("", line)):
            part = part.strip()
            yield number, part if len(part) <= _TOO_LONG else part[:_TOO_LONG] + " (cut)"


def _section(line: str) -> str | None:
    """The key of the section of a heading, "" for an unknown section, None if the line is not a
    heading.
    """
    found = _HEADING.search(line)
    if not found:
        return None
    key = "_".join(found.group(1).lower().split())
    return key if key in SECTIONS else ""


def parse_check_build(text: str) -> Build | None:
    """The last table in the text, or None if there is none.

    ParseError if a table is truncated or cannot be parsed.
    """
    headless, tables = _tables(text)
    if len(tables) > 1:
        _refuse_cut_begin(*tables[-1])
    # A version line alone is not a table, because a log may name the version elsewhere too.
    tables = [(version, lines) for version, lines in tables if _has_section(lines)]
    if tables:
        return _build(*tables[-1])
    if headless:
        number, line = headless[0]
        raise ParseError(
            (
                f"line {number}: '{line}' has no line 'Horovod v<version>:' before it: the head of "
                "the table is missing"
            )
        )
    return None


def _tables(text: str) -> tuple[_Lines, list[tuple[str, _Lines]]]:
    """Headings of sections before any version, and each version with the lines below it."""
    headless: _Lines = []
    tables: list[tuple[str, _Lines]] = []
    for number, line in _lines(text):
        found = _VERSION.search(line)
        if found:
            tables.append((found.group(1), []))
        elif tables:
            tables[-1][1].append((number, line))
        elif _section(line):
            headless.append((number, line))
    return headless, tables


def _has_section(lines: _Lines) -> bool:
    return any(_section(line) for _number, line in lines)


def _refuse_cut_begin(version: str, lines: _Lines) -> None:
    """ParseError for the last of several tables, if it ends in the heading of its first section."""
    words = " ".join(line for _number, line in lines if line)
    if re.match(r"\W*Available\b", words) and not _has_section(lines):
        raise ParseError(
            (
                f"the last table, of Horovod {version}, is truncated: no section follows its line "
                f"'Horovod v{version}:'"
            )
        )


def _build(version: str, lines: _Lines) -> Build:
    """The table of a version. ParseError if it is truncated or cannot be parsed."""
    ticks, last = _ticks(lines)
    for section, keys in KEYS.items():
        known = {key for label, key in SECTIONS[section].items() if label in ticks[section]}
        absent = [key for key in keys if key not in known]
        if absent:
            raise ParseError(
                (
                    f"the table of Horovod {version} is truncated: {section} has no entry for "
                    f"{', '.join(absent)}; its last line is line {last}"
                )
            )
    ticked = {
        section: {key: _is_ticked(section, key, ticks[section]) for key in keys}
        for section, keys in KEYS.items()
    }
    return Build(version, **ticked)


def _is_ticked(section: str, key: str, ticks: dict[str, bool]) -> bool:
    return any(ticks.get(label, False) for label, to in SECTIONS[section].items() if to == key)


def _ticks(lines: _Lines) -> tuple[dict[str, dict[str, bool]], int]:
    """The ticks by section and label, and the number of the last line of the table."""
    ticks: dict[str, dict[str, bool]] = {section: {} for section in SECTIONS}
    section, last = "", 0
    for number, line in lines:
        heading = _section(line)
        if heading is not None:
            section, last = heading, number
            continue
        if not section:
            continue
        found = _ENTRY.search(line)
        if found:
            is_ticked, label = bool(found.group(1)), found.group(2).lower()
            if ticks[section].setdefault(label, is_ticked) != is_ticked:
                raise ParseError(
                    f"line {number}: '{line}' contradicts an earlier line of the same section"
                )
            last = number
            continue
        found = _NO_TICK.search(line)
        if found and found.group(1).lower() in SECTIONS[section]:
            raise ParseError(f"line {number}: '{line}' is neither '[X] …' nor '[ ] …'")
    return ticks, last


def why_no_table(rc: int, stdout: str, stderr: str) -> tuple[str, str]:
    """(cause, the line that shows it) if the command ended without a table.

    ParseError if it is the output of another program.
    """
    lines = [line for _number, line in _lines(stdout + "\n" + stderr) if line]
    last = lines[-1] if lines else ""
    usage = [line for line in lines if _USAGE.search(line)]
    if usage:
        return "option_unsupported", usage[-1]
    # Before the exit codes, because the dynamic loader exits with 127 too.
    exceptions = [line for line in lines if _EXCEPTION.search(line)]
    if exceptions and _is_ended_by_exception(lines):
        return "import_error", exceptions[-1]
    if rc in (126, 127):
        return "not_installed", last or f"exit code {rc}"
    if _has_begun(lines):
        return "truncated", last
    # The table goes to stdout. Libraries log to stderr, which does not count.
    if not stdout.strip():
        return "no_output", _silence(rc, last)
    raise ParseError(
        f"line 1 of {len(lines)}: '{lines[0]}' is not the output of horovodrun --check-build"
    )


def _silence(rc: int, last: str) -> str:
    return f"exit code {rc}" + (f", last line on stderr: {last}" if last else "")


def _is_ended_by_exception(lines: list[str]) -> bool:
    """Whether an exception has ended horovodrun itself, and not only the check of an extension."""
    text = "\n".join(lines)
    if not _VERBOSE.search(text):
        return True
    return _OWN_FRAME.search(text.rpartition(_TRACEBACK)[2]) is not None


def _has_begun(lines: list[str]) -> bool:
    """Whether horovodrun has printed something of its own."""
    text = "\n".join(lines)
    if _VERBOSE.search(text) or _TRACEBACK in text:
        return True
    return any(_VERSION.search(line) for line in lines)


def check_build_command(executable: str, frameworks: list[str]) -> list[str]:
    """The command that prints the table, and before it, on stderr, a line for each framework whose
    package it imports.
    """
    if not frameworks:
        return [executable, "--check-build"]
    return [
        "sh",
        "-c",
        _SHELL,
        "sh",
        executable,
        _IMPORT,
        *[PACKAGES[framework] for framework in frameworks],
    ]


def split_imports(stderr: str, frameworks: list[str]) -> tuple[str, dict[str, str]]:
    """stderr without the lines about imports, and the import error by framework.

    Without a line, the import did not happen.
    """
    messages = dict(_IMPORTED.findall(stderr))
    errors = {
        framework: messages.get(
            PACKAGES[framework], "horovodrun is not a Python script, or it ended before the import"
        )
        for framework in frameworks
    }
    return _IMPORTED.sub("", stderr), {
        framework: error for framework, error in errors.items() if error != "ok"
    }


def missing(
    requires: dict[str, list[str]], build: Build | None, import_errors: dict[str, str] | None = None
) -> list[str]:
    """Required parts that are not ticked or cannot be imported, as C(section.key), in the order of
    the table. Without a table, all of them.
    """
    failed = {"frameworks": import_errors or {}}
    return [
        f"{section}.{key}"
        for section, keys in KEYS.items()
        for key in keys
        if key in (requires.get(section) or [])
        and not (build and getattr(build, section)[key] and key not in failed.get(section, {}))
    ]
