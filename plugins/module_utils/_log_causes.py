# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Causes of a failure from the log of a job: text in, what was wrong and what to do out.

The messages are those of P(_error_signatures) and P(_host_health).

Programs on hosts import this module from one folder with others, and modules import it from the
collection.
"""

from __future__ import annotations

import functools
import itertools
import re

from typing import Any, BinaryIO, Dict, NamedTuple, TypedDict

try:
    from ansible_collections.trainyard.gpu.plugins.module_utils._error_signatures import (
        CAUSE,
        GENERAL,
        SIGNATURES,
        SPECIAL,
        Signature,
    )
    from ansible_collections.trainyard.gpu.plugins.module_utils._host_health import told_lines
except ImportError:
    # On a host, where they are in one folder.
    from _error_signatures import (  # type: ignore[import-not-found, no-redef]
        CAUSE,
        GENERAL,
        SIGNATURES,
        SPECIAL,
        Signature,
    )
    from _host_health import told_lines  # type: ignore[import-not-found, no-redef]

__all__ = [
    "PART_BYTES",
    "Log",
    "answer",
    "cause_of",
    "causes",
    "find_errors",
    "goes_on",
    "last_lines",
    "log_of",
    "more_lines",
    "read_log",
    "unknown_lines",
]

#: Of larger logs, this much of each end is searched.
PART_BYTES = 16 << 20
#: Of longer lines (a progress bar, binary output), this many characters of each end.
_END_OF_LINE = 4000
#: Lines of one entry of the table that are looked at, and objects of one id that are told.
_MOST_LINES, _MOST_OBJECTS = 2000, 3
_CHUNK = 1 << 20
#: Characters that are shown before a message, at most.
_BEFORE = 300
#: Lines that are shown of a log without a known message.
UNKNOWN_LINES, LAST_LINES = 3, 5
_SOURCE_OF_GPUS = "https://docs.nvidia.com/deploy/xid-errors/"

# What launchers, loggers and the scheduler put before a line: [1,3]<stderr>:, [rank3]:, 3: , [3
# gpu-b] , (Worker pid=3), worker-1: and times.
_PREFIX = re.compile(
    r"(?:\s?(?:\[(?P<mpi>\d+,\d+)\]<std(?:err|out)>:|\[?(?P<torch>rank\d+)\]?:|\[(?P<elastic>default\d+)\]:|\[rank: "
    r"(?P<lightning>\d+)\] "
    r"|\[(?P<own>\d+) \S+\] |(?P<srun>\d{1,6}): |\((?P<ray>\w+ pid=\d+)[^)]{0,80}\) "
    r"|(?P<pdsh>worker-\d+): "
    r"|\[(?P<plain>\d+)\](?:<std(?:err|out)>)?:|<?\d{4}-\d\d-\d\d[T ][\d:.,+Z-]+>? "
    r"?|\[\d{4}-\d\d-\d\d[T ][\d:.,+Z-]+\] ?"
    r"|std(?:err|out) [FP] |[A-Z][a-z]{2} [ \d]\d [\d:]{8} \S{1,64} [\w.@-]{1,64}\[\d+\]: "
    r")){0,6}\s?"
)
# Words of a line that may be a cause. Each line that is looked at has one of these.
_WORDS = (
    "error",
    "exception",
    "fail",
    "fatal",
    "refused",
    "denied",
    "timed out",
    "times out",
    "timeout",
    "panic",
    "abort",
    "not found",
    "not compatible",
    "unable to",
    "cannot",
    "could not",
    "killed",
    "signal",
    "returned",
    "invalid",
    "exit code",
    "warn",
)
_LOOKS_WRONG = re.compile(
    r"\b(?:\w*error|failed|failure|fatal|\w*exception|refused|denied|tim(?:ed|es) "
    r"out|timeout|panic|aborted|not found|not compatible|unable to|cannot|could not"
    r"|killed|signal \d+|returned -?\d+|invalid|exit code "
    r"-?[1-9]\d*|(?<!\.)warn(?:ing)?)\b|^[EF]\d{4} \d\d:",
    re.IGNORECASE,
)
# Warnings come after what looks like an error.
_WARNING = re.compile(r"\bwarn(?:ing)?\b", re.IGNORECASE)
# What a line has if the program goes on after it: it tries again, or does without.
_GOES_ON = (
    "will retry",
    "retrying",
    "Retrying in ",
    "Retry(total=",
    "retry loop",
    "still trying",
    "not a failure",
    "may be stuck",
    "thrown while requesting",
    "(ignored)",
    "NCCL INFO ",
    "[c10d] The client socket has failed",
    "[c10d] The client socket cannot be",
    "The IPv6 network addresses of",
    "libibverbs: Warning",
    "stall_inspector",
    "Missing ranks:",
    "Stalled ranks:",
    "Stalled ops:",
    "This DataLoader will create",
    "Plan failed with a cudnnException",
    "dynamic library 'libnvinfer",
    "reducing batch size",
    "recover from OOM",
    "ls: cannot access",
)
# A warning, by the begin of its line.
_MILD = re.compile(
    r"(?<!NCCL )\bWARN(?:ING)?\b|\b[A-Za-z]*Warning: |(?:^|[]:>\s])W\d{4} \d\d:|\[W\d{0,4} [\d:. ]{0,24}\w+\.cpp"
)
_BEGIN_OF_LINE = 400
# A line that a good run does not print, and what one prints at its end.
_FAILS = re.compile(
    r"^(?:\w+\.)*\w*(?:Error|Exception)\b(?:: |$)|^terminate called|NCCL WARN|\bFATAL\b|\bpanic\b|\bfatal\b|ailed with (?:exit|return|error) code"
    r"|^[EF]\d{4} \d\d:"
)
_ENDED_WELL = re.compile(
    r"\b[Tt]rain(?:ing)?\b[^\n]{0,40}\b(?:finished|completed?|done|successful(?:ly)?)\b|\b(?:max_epochs|max_steps)=\d+` reached|'train_runtime': "
    r"|exits successfully|Out of bounds values : 0 OK"
)
_COLOURS = re.compile(r"\x1b\[[\d;?]{0,20}[A-Za-z]")
# What launchers print after each failure, whatever its cause is. They are no cause.
_TRAILER = re.compile(
    r"torch[./]distributed[./](?:elastic|launcher|run)|ChildFailedError|Root Cause \(first "
    r"observed|\bTraceback \(most recent call last\):"
    r"|\bFile \"[^\"]{1,400}\", line \d+|^\s*(?:error_file|exitcode|traceback) *:"
    r"|^srun: |^slurmstepd: error: \*\*\*|Terminating "
    r"StepId|^(?:mpirun|prterun|mpiexec|orterun) (?:detected|noticed)|^Primary job\s|^a "
    r"non-zero exit code"
    r"|^\s*Process name: |^\s*Exit code: "
    r"|Process \d+ exit with status code|Terminating remaining workers|Horovod detected that "
    r"one or more"
    r"|^RuntimeError: Horovod detected|subprocess\.CalledProcessError"
    r"|^During handling of the above|^The above exception was|terminated with exit code "
    r"\d+\b|^\S* FAILED$|exits with return code"
    r"|Killing subprocess|accelerate\.commands|^Error: worker "
    r"|^worker \d+ failed first|^failed: |NVRM: Xid \(|: SXid \(|^\[\S+:\d+\] \d+ more process"
    r"|HYDRA_FULL_ERROR=1|^wandb: (?!ERROR|Network "
    r"error)|\(raylet\)|ray\.exceptions\.RayTaskError|destroy_process_group\(\) was not called"
    r"|^Exception ignored in|ssh exited with exit code \d|exits? with exception|^RuntimeError: "
    r"Distributed job exited|Time out nodes are \["
)
# What the pattern above has where it may match behind the begin of a line. A search for each of
# them is quicker than one for the pattern.
_IN_TRAILERS = (
    "torch",
    "ChildFailedError",
    "Root Cause (first observed",
    "Traceback (most recent call last):",
    'File "',
    "Terminating StepId",
    "exit with status code",
    "Terminating remaining workers",
    "Horovod detected that one or more",
    "subprocess.CalledProcessError",
    "terminated with exit code",
    "exits with return code",
    "Killing subprocess",
    "accelerate.commands",
    "NVRM: Xid (",
    ": SXid (",
    "HYDRA_FULL_ERROR=1",
    "(raylet)",
    "ray.exceptions.RayTaskError",
    "destroy_process_group() was not called",
    "ssh exited with exit code",
    "with exception",
    "Time out nodes are [",
)
_FRAME = re.compile(r"\bFile \"[^\"]{1,400}\", line \d+")
#: Lines of other ranks between two lines of one.
_BETWEEN = 40
#: Lines after the last known message that show that the program went on.
_LINES_AFTER = 2
#: Entries that say why a process was killed. Each takes the place of one that says that it was.
_OF_KILLS, _KILLED = ("job_out_of_memory", "host_out_of_memory"), "out_of_memory_killed"
#: What PyTorch says of a file that could not be written, and entries that say why.
_WRITE_FAILED = re.compile(r"PytorchStreamWriter failed writing|inline_container\.cc")
_OF_WRITES = {"quota_exceeded", "nfs_stale", "read_only", "io_error", "permission_denied"}
_ROOT_CAUSE, _RULER = "Root Cause (first observed failure)", "=" * 20


#: A known message: C(id), C(rank) (precedence), C(cause), C(fix) for the person, C(fix_operator),
#: C(source), C(line), and C(line_number) from 1.
Error = Dict[str, Any]


class Line(TypedDict):
    """A line of a log, shortened, and its number from 1."""

    line: str
    line_number: int


class Answer(TypedDict):
    """What readers show of a log."""

    causes: list[Error]
    lines: list[Line]


class Log(NamedTuple):
    """A log, of which the middle may be left out.

    C(text) is what is searched. C(begin) is the position in it behind the gap, and C(missing) the
    number of lines that are left out there.
    """

    text: str
    begin: int = 0
    missing: int = 0

    def number(self, at: int) -> int:
        """Return the number of the line at a position, from 1, in the whole log."""
        number = self.text.count("\n", 0, at) + 1
        return number + self.missing if self.missing and at >= self.begin else number


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        # An error handler would take a second for each MiB of binary data.
        return data.translate(_ASCII).decode("ascii")


_ASCII = bytes(range(128)) + b"?" * 128


def log_of(text: str) -> Log:
    """Return a text as a log. Of a large one, the middle is left out."""
    if len(text) <= 2 * PART_BYTES:
        return Log(_plain_text(text))
    middle = text.count("\n", PART_BYTES, len(text) - PART_BYTES)
    return _joined(text[:PART_BYTES], text[-PART_BYTES:], middle)


def _joined(first: str, last: str, middle: int) -> Log:
    """Return the two ends as a log.

    C(middle) is the number of line ends between them. What is left of the two lines at the gap is
    no line of its own.
    """
    first = _plain_text(first) + "\n"
    return Log(first + _plain_text(last), len(first), middle - 1)


def read_log(stream: BinaryIO) -> Log:
    """Return the log that a stream has: all of it, or the first and the last 16 MiB.

    No more than that is kept in memory.
    """
    first = stream.read(PART_BYTES)
    tail, size, middle = [], 0, 0
    while True:
        chunk = stream.read(_CHUNK)
        if not chunk:
            break
        tail.append(chunk)
        size += len(chunk)
        while size - len(tail[0]) >= PART_BYTES:
            size -= len(tail[0])
            middle += tail.pop(0).count(b"\n")
    last = b"".join(tail)
    excess = max(0, len(last) - PART_BYTES)
    if not middle and not excess:
        return Log(_plain_text(_decoded(first + last)))
    middle += last.count(b"\n", 0, excess)
    return _joined(_decoded(first), _decoded(last[excess:]), middle)


def _plain_text(text: str) -> str:
    """Return a text without colours, and of lines that are too long the two ends.

    Lines keep their numbers. The quotes of GNU's tools depend on the language of the session, so
    they become the plain ones.
    """
    if "\x1b[" in text:
        text = _COLOURS.sub("", text)
    text = text.replace("\u2018", "'").replace("\u2019", "'")
    if len(text) <= 2 * _END_OF_LINE or max(map(len, text.split("\n"))) <= 2 * _END_OF_LINE:
        return text
    return "\n".join(map(_ends_of_line, text.split("\n")))


def _ends_of_line(line: str) -> str:
    if len(line) <= 2 * _END_OF_LINE:
        return line
    return line[:_END_OF_LINE] + " ... " + line[-_END_OF_LINE:]


# --- which entries of the table can be in a text ---

_LITERAL = re.compile(r"(?:[^\\.^$*+?{}\[\]|()]|\\[^A-Za-z0-9])(?![*+?{])")
_DIGITS = b"0123456789"
#: Characters of words that rule a wording out.
_LONG_WORD = 4


def needle(pattern: str) -> str:
    """Return the plain text with which a pattern begins."""
    found, at = "", 0
    while True:
        match = _LITERAL.match(pattern, at)
        if not match:
            return found
        found += match.group()[-1]
        at = match.end()


class _Wording(NamedTuple):
    """A pattern of an entry.

    C(needle) is the text with which it begins, C(words) its longer words without digits. It is
    ruled out if one of them is missing.
    """

    signature: Signature
    pattern: str
    needle: str
    words: tuple[bytes, ...]


@functools.lru_cache(maxsize=None)
def _plain(pattern: str) -> tuple[str, tuple[bytes, ...]]:
    text = needle(pattern)
    words = text.encode().translate(_PRINTABLE, _DIGITS).split()
    return text, tuple(word for word in words if len(word) >= _LONG_WORD)


def _wordings_of(signatures: list[Signature]) -> list[_Wording]:
    return [
        _Wording(signature, pattern, *_plain(pattern))
        for signature in signatures
        for pattern in signature.patterns
    ]


@functools.lru_cache(maxsize=None)
def _wordings() -> list[_Wording]:
    return _wordings_of(SIGNATURES)


def _possible(text: str, signatures: list[Signature] | None) -> list[_Wording]:
    """Return the wordings whose plain text is in the text.

    To look for each would take seconds in a large log. Its different words, without their digits,
    are much fewer than all.
    """
    words: set[bytes] = set()
    for at in range(0, len(text), _CHUNK):
        # A word at the border of two chunks is in both halves of it, so the next chunk begins a
        # little earlier.
        part = _without_binary(text[max(0, at - 200) : at + _CHUNK].encode("utf-8", "replace"))
        words.update(part.translate(_PRINTABLE, _DIGITS).split())
    spoken = b"\n".join(
        word for word in words if len(word) >= _LONG_WORD and not _ENCODED.fullmatch(word)
    )
    wordings = _wordings() if signatures is None else _wordings_of(signatures)
    return [
        wording
        for wording in wordings
        if all(word in spoken for word in wording.words) and wording.needle in text
    ]


_PRINTABLE = b" " * 33 + bytes(range(33, 127)) + b" " * 129
# Control characters that text does not have, and all other bytes.
_CONTROLS = bytes([*range(7), *range(14, 27), *range(28, 32), 127])
_NO_CONTROLS = bytes(byte for byte in range(256) if byte not in _CONTROLS)
# Base64 and the like. No message has such a word.
_ENCODED = re.compile(rb"[A-Za-z+/=]{48,}")


def _without_binary(part: bytes) -> bytes:
    """Return bytes without the lines that are no text."""
    if len(part.translate(None, _NO_CONTROLS)) * 50 < len(part):
        return part
    lines = part.split(b"\n")
    return b"\n".join(
        line for line in lines if len(line.translate(None, _NO_CONTROLS)) * 25 < len(line)
    )


# --- what is told ---


def _of_gpu(error: Error, line: str) -> Error:
    """Return what is told of an error of a GPU or an NVSwitch, as of a failure of a signature."""
    return {
        "id": error["signature"],
        "rank": SPECIAL,
        "cause": "%(kind)s %(code)d of %(device)s: %(cause)s" % error,
        "fix": error["fix"],
        "fix_operator": error["fix"],
        "source": _SOURCE_OF_GPUS,
        "line": " ".join(line.split())[:500],
    }


class _Lines:
    """The lines of a text that have a known message, each with the entry that wins it."""

    def __init__(self, text: str) -> None:
        self.text = text
        # By the position of a line: precedence, entry, match, and the end of the line.
        self.found: dict[int, tuple[tuple[int, int], Signature, re.Match[str], int]] = {}

    def take(self, wording: _Wording) -> None:
        """Keep the lines of a wording in which no entry of a higher precedence was found."""
        until = 0
        matches = re.compile(wording.pattern).finditer(self.text)
        for match in itertools.islice(matches, _MOST_LINES):
            if match.start() < until:
                continue
            begin = self.text.rfind("\n", 0, match.start()) + 1
            end = self.text.find("\n", match.start())
            until = end = len(self.text) if end < 0 else end
            former = self.found.get(begin)
            if former is None or (wording.signature.rank, match.start()) < former[0]:
                key = (wording.signature.rank, match.start())
                self.found[begin] = (key, wording.signature, match, end)

    def line(self, begin: int) -> str:
        """Return the line that begins at a position of the text."""
        return self.text[begin : self.found[begin][3]]

    def rank(self, begin: int) -> int:
        """Return the precedence of a line. One after which the program goes on is no cause."""
        rank = self.found[begin][1].rank
        return max(rank, GENERAL) if goes_on(self.line(begin)) else rank

    def is_mild(self, begin: int) -> bool:
        """Return whether good runs have such a line, too."""
        line = self.line(begin)
        return goes_on(line) or self.found[begin][1].rank > CAUSE and _is_warning(line)

    def error_at(self, begin: int) -> Error:
        """Return the error in the line that begins at a position of the text."""
        _key, signature, match, end = self.found[begin]
        words = ["", *(group or "" for group in match.groups())]
        return {
            "id": signature.id,
            "rank": self.rank(begin),
            "cause": signature.cause.format(*words),
            "fix": signature.person.format(*words),
            "fix_operator": signature.operator.format(*words),
            "source": signature.source,
            "line": _shown(self.text[begin:end], match.start() - begin),
        }


def _shown(line: str, at: int) -> str:
    """Return what is shown of a line with a message at a position: at most 500 characters.

    A progress bar has drawn itself again after each CR.
    """
    begin = line.rfind("\r", 0, at) + 1
    if at - begin > _BEFORE:
        begin = at - _BEFORE // 2
    return " ".join(line[begin : begin + 2 * _END_OF_LINE].split())[:500]


class _Told:
    """Which objects (paths, ports, GPUs) of each id are told: the first, and further ones that
    differ.
    """

    def __init__(self) -> None:
        self.objects: dict[tuple[str, bool], list[tuple[str, ...]]] = {}

    def is_new(self, name: str, is_cause: bool, words: tuple[str, ...]) -> bool:
        """Return whether to tell an error about the objects C(words)."""
        # A message that says less does not hide a later one of the same id.
        seen = self.objects.setdefault((name, is_cause), [])
        is_first = not seen
        has_object = any(words)
        is_other = has_object and words not in seen and any(map(any, seen))
        if is_first or has_object and words not in seen:
            seen.append(words)
        return is_first or is_other and len(seen) <= _MOST_OBJECTS


def find_errors(log: str | Log, signatures: list[Signature] | None = None) -> list[Error]:
    """Return the known messages in a log: the causes, then messages that only say that something
    failed, then consequences. Each in the order of the log.

    C(signatures) are the entries that count, all of the table by default. Of each C(id), the first
    line is told, and lines with another object.
    """
    log = log_of(log) if isinstance(log, str) else log
    return _errors(log, *_known_lines(log, signatures))


def _known_lines(log: Log, signatures: list[Signature] | None) -> tuple[_Lines, dict[int, Error]]:
    """Return the lines with a message of an entry, and by position those of the table of Xids."""
    gpus = {at: _of_gpu(error, _line_at(log.text, at)) for at, error in told_lines(log.text)}
    lines = _Lines(log.text)
    for wording in _possible(log.text, signatures):
        lines.take(wording)
    return lines, gpus


def _errors(log: Log, lines: _Lines, gpus: dict[int, Error]) -> list[Error]:
    seen = _Told()
    errors: list[Error] = []
    # In one line, the table of Xids knows more.
    for begin in sorted({**lines.found, **gpus}):
        if begin in gpus:
            error = gpus[begin]
        else:
            signature, match = lines.found[begin][1:3]
            words = tuple(group or "" for group in match.groups())
            if not seen.is_new(signature.id, lines.rank(begin) <= CAUSE, words):
                continue
            error = lines.error_at(begin)
        errors.append(dict(error, line_number=log.number(begin)))
    return _in_order(errors)


def _line_at(text: str, at: int) -> str:
    end = text.find("\n", at)
    return text[at : min(len(text) if end < 0 else end, at + 2 * _END_OF_LINE)]


def _in_order(errors: list[Error]) -> list[Error]:
    """Return the errors, causes first. A message that says less about the same failure is
    left out.
    """
    names = {error["id"] for error in errors}
    # 'Test failure' is the trace below an error that is already told.
    less = {"test_failure"} if len(names) > 1 else set()
    if "duplicate_gpu" in names:
        less.add("nccl_invalid_usage")
    if names & _OF_WRITES:
        errors = [error for error in errors if not _WRITE_FAILED.search(error["line"])]
    kept = [error for error in _with_reasons(errors) if error["id"] not in less]
    return sorted(kept, key=lambda error: max(error["rank"], CAUSE))


def _with_reasons(errors: list[Error]) -> list[Error]:
    """Return the errors, with the reason of a kill in the place of the kill.

    The kernel and Slurm may say the reason later than the launcher says the end.
    """
    places = [number for number, error in enumerate(errors) if error["id"] == _KILLED]
    reason = next(
        (error for error in errors if error["id"] in _OF_KILLS and error["rank"] <= CAUSE), None
    )
    if not reason or not places or errors.index(reason) < places[0]:
        return errors
    rest = [error for error in errors if error is not reason]
    return rest[: places[0]] + [reason] + rest[places[0] :]


def _went_on(text: str, lines: _Lines) -> bool:
    """Return whether a program went on after each known message, and nothing says that it failed.

    Messages of further tries are in the logs of good runs, too.
    """
    if not lines.found or not all(map(lines.is_mild, lines.found)):
        return False
    last = lines.found[max(lines.found)][3]
    rest = filter(str.strip, text[last : last + _END_OF_LINE].split("\n"))
    # Of more lines than are looked at, those behind them may be the same. Launchers print at the
    # end of failed runs, too.
    after = [line for line in rest if not (goes_on(line) or _is_trailer(line[_prefix(line)[1] :]))]
    if len(after) < _LINES_AFTER and not _ENDED_WELL.search(text):
        return False
    return not any(_fails(_line_at(text, begin)) for begin in _with_words(text))


def _fails(line: str) -> bool:
    rest = line[_prefix(line)[1] :][:_BEGIN_OF_LINE]
    return bool(_FAILS.search(rest)) and not goes_on(line) and not _is_warning(line)


def goes_on(line: str) -> bool:
    """Return whether a program goes on after a message: it tries again, or does without."""
    return any(word in line for word in _GOES_ON)


def _is_warning(line: str) -> bool:
    return bool(_MILD.search(line, 0, _BEGIN_OF_LINE))


def causes(log: str | Log, signatures: list[Signature] | None = None) -> list[Error]:
    """Return the causes in a log, the first one first.

    If it has none, the messages that say that something failed are returned, and if it has none of
    these, the consequences. A log of a program that went on has none.
    """
    log = log_of(log) if isinstance(log, str) else log
    lines, gpus = _known_lines(log, signatures)
    if not gpus and _went_on(log.text, lines):
        return []
    errors = _errors(log, lines, gpus)
    for highest in (CAUSE, GENERAL):
        found = [error for error in errors if error["rank"] <= highest]
        if found:
            return found
    return errors


def answer(log: Log) -> Answer:
    """Return what readers show of a log: C(causes), and C(lines) that look like a cause if none of
    the messages is one. Of an unknown log, the last lines.
    """
    keys = ("id", "cause", "fix", "fix_operator", "line", "line_number")
    errors = causes(log)
    lines = more_lines(log, errors)
    found = [{key: error[key] for key in keys} for error in errors]
    return {"causes": found, "lines": lines if errors else lines or last_lines(log)}


# --- what is shown if nothing is known ---


def more_lines(log: Log, errors: list[Error]) -> list[Line]:
    """Return the lines that look like a cause, without those of C(errors), what P(causes) has
    returned. None if one of these is a cause.

    What a launcher prints of each failure says that something failed, and not why.
    """
    if any(error["rank"] <= CAUSE for error in errors):
        return []
    known = {error["line_number"] for error in errors}
    lines = unknown_lines(log, UNKNOWN_LINES + len(known))
    return [line for line in lines if line["line_number"] not in known][:UNKNOWN_LINES]


def unknown_lines(log: str | Log, count: int = UNKNOWN_LINES) -> list[Line]:
    """Return the first lines that look like a cause: C(line) and C(line_number).

    Those of the rank that has the first one, then those of the others.

    What launchers print after each failure, and the frames of tracebacks, are none. Warnings come
    last.
    """
    log = log_of(log) if isinstance(log, str) else log
    ranks: dict[str, list[tuple[str, int, str]]] = {}
    warnings: list[tuple[str, int, str]] = []
    for begin, line in _suspicious(log.text):
        tags, end = _prefix(line)
        rest = line[end:]
        rank = next(filter(None, tags), "")
        is_warning = _WARNING.search(rest) and not _LOOKS_WRONG.search(_WARNING.sub("", rest))
        kept = warnings if is_warning else ranks.setdefault(rank, [])
        if len(kept) < count:
            kept.append((" ".join(rest.split())[:500], begin, " ".join(line.split())[:500]))
    ordered = list(itertools.chain(*ranks.values(), warnings))
    first: dict[str, Line] = {}
    for rest, begin, line in ordered:
        first.setdefault(rest, {"line": line, "line_number": log.number(begin)})
    return list(first.values())[:count]


def cause_of(name: str, line: str, **words: str) -> Error:
    """Return what is told of an entry of the table that no line of a log shows.

    C(words) replace its words.
    """
    entry = next(signature for signature in SIGNATURES if signature.id == name)
    found = {"id": name, "cause": entry.cause, "fix": entry.person, "fix_operator": entry.operator}
    return dict(found, line=line, line_number=None, **words)


def last_lines(log: Log, count: int = LAST_LINES) -> list[Line]:
    """Return the last lines of a log that are not empty, as P(unknown_lines) does."""
    found: list[Line] = []
    end = len(log.text)
    while end > 0 and len(found) < count:
        begin = log.text.rfind("\n", 0, end) + 1
        line = " ".join(log.text[begin:end].split())
        if line:
            found.insert(0, {"line": line[:500], "line_number": log.number(begin)})
        end = begin - 1
    return found


def _suspicious(text: str) -> list[tuple[int, str]]:
    """Return the lines that look like a cause, with their positions."""
    skipped = _summaries(text)
    found = []
    for begin in _with_words(text):
        line = _line_at(text, begin).partition("\r")[0]
        rest = line[_prefix(line)[1] :]
        if any(start <= begin < end for start, end in skipped) or _is_trailer(rest):
            continue
        if _LOOKS_WRONG.search(rest) and not _is_frame(text, begin, line):
            found.append((begin, line))
    return found


def _is_trailer(rest: str) -> bool:
    """Return whether launchers print a line after each failure."""
    if _TRAILER.match(rest):
        return True
    return any(words in rest for words in _IN_TRAILERS) and bool(_TRAILER.search(rest))


def _with_words(text: str) -> list[int]:
    """Return the positions of the lines with a word that may be of a cause.

    After a CR, a progress bar begins its line again.
    """
    lower = text.lower()
    # Of a few characters, the lower case is longer.
    lower = lower if len(lower) == len(text) else text
    begins: set[int] = set()
    for word in _WORDS:
        at = lower.find(word)
        for _line in range(_MOST_LINES):
            if at < 0:
                break
            begin = text.rfind("\n", 0, at) + 1
            begins.add(max(begin, text.rfind("\r", begin, at) + 1))
            end = text.find("\n", at)
            at = lower.find(word, end) if end >= 0 else -1
    return sorted(begins)


def _prefix(line: str) -> tuple[tuple[str | None, ...], int]:
    """Return the tags of launchers before a line, and the position behind them."""
    prefix = _PREFIX.match(line)
    return (prefix.groups(), prefix.end()) if prefix else ((), 0)


def _is_frame(text: str, begin: int, line: str) -> bool:
    """Return whether a line is the source line of a traceback's frame.

    The lines of other ranks may be between the two.
    """
    tags, prefix_end = _prefix(line)
    end = begin
    for _line in range(_BETWEEN):
        if end < 1:
            return False
        start = text.rfind("\n", 0, end - 1) + 1
        before = text[start : min(end, start + 2 * _END_OF_LINE)]
        its_tags, its_end = _prefix(before)
        if its_tags == tags:
            break
        end = start
    frame = _FRAME.search(before, its_end)
    if not frame:
        return False
    # Both have the same words of a logger before them, and the source line is indented by more.
    at = frame.start() - its_end
    rest = line[prefix_end:]
    return rest[:at] == before[its_end : frame.start()] and rest[at : at + 1] == " "


def _summaries(text: str) -> list[tuple[int, int]]:
    """Return begin and end of torchrun's summaries of a failure."""
    found, at = [], text.find(_ROOT_CAUSE)
    while at >= 0:
        begin = text.rfind(_RULER, 0, at)
        end = text.find(_RULER, at)
        end = len(text) if end < 0 else end
        found.append((text.rfind("\n", 0, max(0, begin)) + 1, end))
        at = text.find(_ROOT_CAUSE, end)
    return found
