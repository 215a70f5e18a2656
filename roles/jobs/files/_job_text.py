# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The two texts of a job: its file, as a person writes it, and the judged job, which sbatch carries
to the training hosts.

A file has key=value lines, or YAML as PyYAML reads it. Each value is text: C(yes), C(0x1f) and
C(1:30) are not converted. A job file has no anchors, tags or second document, and a text goes on in
the next line only after C(|) or C(>): otherwise that is nearly always a mistake.

Training hosts have this file, too, but not PyYAML: they read the judged job only.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import re

#: A longer text is not a job file.
MAX_BYTES = 1 << 20
MAX_DEPTH = 5
#: Values in a file that PyYAML reads without libyaml, which takes ten times as long.
MAX_SLOW = 20000
#: Of what sbatch carries. Raise it when the training hosts need what a queued job does not have.
VERSION = 1
#: YAML has these characters only as escapes, or takes them for ends of lines, which no editor does.
_NO_YAML = re.compile(
    "[^\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
#: JSON spells a character beyond \uffff as a pair of escapes, which libyaml refuses.
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


class TextError(ValueError):
    """The text is in no format of job files.

    The message is for the person, and names the line, if it is known.
    """

    def __init__(self, line: int, message: str) -> None:
        super().__init__("line %d: %s" % (line, message) if line else message)
        self.line, self.message = line, message


class SealError(ValueError):
    """The text is not what sealed() has returned. C(spec) is the job file in it."""

    def __init__(self, message: str, spec: str) -> None:
        super().__init__(message)
        self.spec = spec


class Text(str):
    """A value of a job file, and the C(line) on which it is."""

    line = 0


def text_at(value: str, line: int) -> Text:
    found = Text(value)
    found.line = line
    return found


def read_job_text(text: str, known_keys: tuple) -> dict:
    """Return the values by key: Text, lists, or dicts of them.

    Keys are Text, too. Raises TextError.

    C(known_keys) tells where a value ends if all of them are on one line.
    """
    if len(text) > MAX_BYTES:
        raise TextError(1, "the file has more than %d characters, so it is no job file" % MAX_BYTES)
    if "\0" in text:
        raise TextError(
            text[: text.index("\0")].count("\n") + 1,
            "the file has a null character, so it is no text",
        )
    text = text.lstrip("\ufeff").replace("\r\n", "\n")
    used = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            used.append((number, line))
    if used and re.match(r"\s*[A-Za-z_]\w*\s*=", used[0][1]):
        return _read_pairs(used, known_keys)
    return _Yaml(text).document()


def read_value(text: str) -> list | dict:
    """Return a list or mapping in brackets that is the value of a key=value line or of C(--set).

    Raises TextError.
    """
    return _Yaml(text).brackets()


# --- key=value --------------------------------------------------------------------------------------------------------------


def _read_pairs(used, known_keys):
    found = {}
    for number, line in _one_line_each(used[0], known_keys) if len(used) == 1 else used:
        match = re.match(r"\s*([A-Za-z_]\w*)\s*=(.*)$", line)
        if not match:
            raise TextError(
                number, "'%.60s' is not key=value, as the lines before it" % line.strip()
            )
        key, value = match.group(1), match.group(2).strip()
        if key in found:
            raise TextError(
                number, "%s is there twice; the first one is on line %d" % (key, found[key].line)
            )
        # The shell reads the quotes of a command.
        if key != "command" and len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        found[text_at(key, number)] = text_at(value, number)
    return found


def _starts_of_keys(line, known_keys):
    """Return where in a line a known key with its equals sign begins."""
    keys = "|".join(map(re.escape, known_keys))
    return {match.start(1) for match in re.finditer(r"(?:^|\s)((?:%s)=)" % keys, line)}


def _one_line_each(entry, known_keys):
    """Return a line per key of a file that is one line: a value ends where a known key begins
    outside of quotes.
    """
    number, line = entry
    parts, quote, opened, inside = [], "", 0, ""
    starts = _starts_of_keys(line, known_keys)
    for at, character in enumerate(line):
        if at in starts and not quote:
            parts.append("")
        elif at in starts:
            inside = inside or line[at:].partition("=")[0]
        if character in "'\"":
            opened, inside = (opened, inside) if quote else (at, "")
            quote = "" if quote == character else quote or character
        if parts:
            parts[-1] += character
        elif character.strip():
            # It begins with a key that is not known, which is told when the values are judged.
            parts.append(character)
    if quote and inside:
        raise TextError(
            number,
            (
                "the quote before '%.20s' has no end, so %s= would be part of that value; close "
                "it, or write each key on a line of its own"
            )
            % (line[opened + 1 :].strip(), inside),
        )
    return [(number, part) for part in parts]


# --- YAML -------------------------------------------------------------------------------------------------------------------

_SAMPLE = "as in: command: python3 train.py"
#: What PyYAML says, and what to do. C(words) is the line, C(sign) the character at which it has
#: stopped.
_HINTS = (
    (r"tab character|character '\\t'", "a tab indents this line; use spaces"),
    (
        "cannot start any token|(sequence entries|mapping keys) are not allowed|node content",
        "a text cannot begin with '%(sign)s' here; put it in quotes",
    ),
    (
        "mapping values are not allowed",
        (
            "'%(words).60s' has a colon and a space, so it could be a key; put the text in quotes, "
            "or begin it with |"
        ),
    ),
    (
        "found unexpected end of stream|unexpected document separator",
        "a quote has no end on this line; close it, or begin the text with | after the key",
    ),
    ("',' or '[]}]'", "a bracket has no end on this line, or no comma between two values"),
    (
        "expected key|<block end>|expected ':'",
        "'%(words).60s' is not indented as the keys before it, or it is not a key with a value, "
        + _SAMPLE,
    ),
    ("<document start>", "'%(words).60s' follows the end of the value"),
)


class _Yaml:
    """Builds values from the events of PyYAML.

    So an alias is never followed, and what is nested too deep is not read.
    """

    def __init__(self, text: str) -> None:
        try:
            # Only here: other commands need not wait for it.
            self.yaml = importlib.import_module("yaml")
        except ImportError:
            raise TextError(
                0,
                (
                    "package python3-yaml is not installed on this host; tell the operator to run "
                    "playbook workbench"
                ),
            ) from None
        bad = _NO_YAML.search(text)
        if bad:
            raise TextError(
                text.count("\n", 0, bad.start()) + 1,
                (
                    "the file has the character %s, which YAML does not allow; remove it, or write "
                    "it as an escape in double quotes"
                )
                % ascii(bad.group()),
            )
        loader = getattr(self.yaml, "CSafeLoader", None)
        self.left = MAX_BYTES
        if loader is None or _HALF.search(text):
            loader, self.left = self.yaml.SafeLoader, MAX_SLOW
        self.lines = text.rstrip("\n").split("\n")
        # libyaml refuses a Text.
        self.events = self.yaml.parse(str(text), Loader=loader)

    def document(self) -> dict:
        """Return the values of a job file."""
        event = self.first()
        if isinstance(event, self.yaml.ScalarEvent) and not event.value:
            raise TextError(1, "the file is empty; it needs at least a command, " + _SAMPLE)
        if not isinstance(event, self.yaml.MappingStartEvent) or event.flow_style:
            line = self.line_of(event.start_mark)
            raise TextError(
                line, "'%.60s' is not a key with a value, %s" % (self.words(line), _SAMPLE)
            )
        found = self.value(event, 1)
        self.end("a job file has one document")
        return found

    def brackets(self) -> list | dict:
        """Return a value that is nothing but a list or mapping in brackets."""
        event = self.first()
        if not getattr(event, "flow_style", False):
            raise TextError(1, "it is not a list or mapping in brackets")
        found = self.value(event, 1)
        self.end("something follows the end of the value")
        return found

    def first(self) -> object:
        """Return the first event of the first document."""
        self.next()
        event = self.next()
        if isinstance(event, self.yaml.StreamEndEvent):
            raise TextError(1, "the file is empty; it needs at least a command, " + _SAMPLE)
        return self.next()

    def end(self, message: str) -> None:
        self.next()
        event = self.next()
        if not isinstance(event, self.yaml.StreamEndEvent):
            raise TextError(self.line_of(event.start_mark), message)

    def next(self) -> object:
        self.left -= 1
        try:
            event = next(self.events)
        except self.yaml.YAMLError as error:
            raise self.explained(error) from error
        if self.left < 0:
            raise TextError(
                self.line_of(event.start_mark),
                "the file has more than %d values before this line, so it is no job file"
                % MAX_SLOW,
            )
        return event

    def explained(self, error: Exception) -> TextError:
        """Return an error of PyYAML in words that help."""
        problem, mark = str(getattr(error, "problem", error)), getattr(error, "problem_mark", None)
        if re.search("quoted|flow|simple key", getattr(error, "context", None) or ""):
            # Where it begins, and not where the file ends.
            mark = error.context_mark
        if mark is None:
            return TextError(1, "it is not YAML: " + problem)
        line = self.line_of(mark)
        words, sign = self.words(line), self.sign(mark)
        if sign == "\t":
            problem = "tab character"
        for pattern, hint in _HINTS:
            if re.search(pattern, problem) and (sign or "%(sign)s" not in hint):
                return TextError(line, hint % {"words": words, "sign": sign})
        return TextError(line, "'%.60s' is not YAML: %s" % (words, problem))

    def line_of(self, mark: object) -> int:
        """Return the number of the line. libyaml has one more than the file at its end."""
        return min(mark.line + 1, len(self.lines))

    def words(self, line: int) -> str:
        """Return what is on a line."""
        return self.lines[line - 1].strip()

    def sign(self, mark: object) -> str:
        """Return the character at a place, empty at the end of a line."""
        line = self.lines[mark.line] if mark.line < len(self.lines) else ""
        return line[mark.column : mark.column + 1]

    def value(self, event: object, depth: int, of_line: int = 0) -> Text | list | dict:
        """Return the value that begins with an event.

        That of a key has to begin on its line, unless it is a block.
        """
        line = self.line_of(event.start_mark)
        if isinstance(event, self.yaml.AliasEvent) or event.anchor or event.tag:
            hint = "a text cannot begin with '%s' here; put it in quotes"
            raise TextError(line, hint % self.sign(event.start_mark))
        if isinstance(event, self.yaml.ScalarEvent):
            if event.style not in ("|", ">"):
                self.check_line(of_line or line, event)
            # Two halves of a character.
            value = re.sub("[\ud800-\udbff][\udc00-\udfff]", _joined, event.value)
            return text_at(value, line)
        if depth > MAX_DEPTH:
            raise TextError(line, "keys or lists are nested more than %d deep" % MAX_DEPTH)
        is_mapping = isinstance(event, self.yaml.MappingStartEvent)
        found, last = (self.mapping if is_mapping else self.items)(depth)
        if event.flow_style:
            self.check_line(of_line or line, last)
        return found

    def check_line(self, line: int, event: object) -> None:
        """Refuse what ends on another line than it should."""
        last = self.line_of(event.end_mark)
        if last != line and getattr(event, "value", "more"):
            raise TextError(
                last,
                (
                    "'%.60s' goes on with a value of line %d; write it on one line, or begin a "
                    "text of several lines with | after its key"
                )
                % (self.words(last), line),
            )

    def mapping(self, depth: int) -> tuple:
        """Return a mapping that has begun, and its last event."""
        found = {}
        while True:
            event = self.next()
            if isinstance(event, self.yaml.MappingEndEvent):
                return found, event
            if not isinstance(event, self.yaml.ScalarEvent):
                line = self.line_of(event.start_mark)
                raise TextError(
                    line, "'%.60s' is not a key with a value, %s" % (self.words(line), _SAMPLE)
                )
            key = self.value(event, depth)
            if key in found:
                first = next(entry for entry in found if entry == key)
                raise TextError(
                    key.line, "%s is there twice; the first one is on line %d" % (key, first.line)
                )
            found[key] = self.value(self.next(), depth + 1, key.line)

    def items(self, depth: int) -> tuple:
        """Return a list that has begun, and its last event."""
        found = []
        while True:
            event = self.next()
            if isinstance(event, self.yaml.SequenceEndEvent):
                return found, event
            found.append(self.value(event, depth + 1))


def _joined(pair: re.Match) -> str:
    high, low = map(ord, pair.group(0))
    return chr(0x10000 + ((high - 0xD800) << 10) + low - 0xDC00)


# --- the judged job ---------------------------------------------------------------------------------------------------------


def sealed(job: dict, spec: str) -> str:
    """Return what sbatch carries: a line of JSON with the judged job, and then the job file, by
    which it can be submitted again.

    The checksum finds damage, and edits by hand, which were never judged. It is no protection of
    others: the job and its script belong to the person, and Slurm enforces what a person may use.
    """
    head = {"version": VERSION, "sha256": _digest(job, spec), "job": job}
    return json.dumps(head, ensure_ascii=False, sort_keys=True) + "\n" + spec


def opened(text: str) -> tuple:
    """Return the judged job and the job file of a text that sealed() has returned.

    Raises SealError.
    """
    head, _break, spec = text.partition("\n")
    found = None
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        found = json.loads(head)
        job, version = found["job"], found["version"]
        if version == VERSION and isinstance(job, dict) and found["sha256"] == _digest(job, spec):
            return job, spec
    other = "it was submitted by another release of the command trainyard"
    if not head.startswith("{"):
        # Before there were versions, the text was the job file.
        raise SealError(other, text)
    if isinstance(found, dict) and found.get("version", VERSION) != VERSION:
        raise SealError(other, spec)
    raise SealError("it was damaged or edited after trainyard submit had judged it", spec)


def _digest(job: dict, spec: str) -> str:
    text = json.dumps(job, sort_keys=True) + "\n" + spec
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
