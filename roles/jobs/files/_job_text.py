# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the text of a job file: key=value lines, or YAML. Text in, values with their lines out.

Only the standard library is there, so this reads the part of YAML that job files need: mappings, lists, quoted text, and blocks of text (C(|) and C(>)). What
it accepts means the same in any other reader of YAML, but each value is text: C(yes), C(0x1f) and C(1:30) are not converted. It refuses anchors, tags, several
documents, and texts that go on in the next line without C(|).
"""

from __future__ import annotations

import re

#: A longer text is not a job file.
MAX_BYTES = 1 << 20
MAX_DEPTH = 5
_KEY = re.compile(r"""(?P<key>[A-Za-z_][\w.-]*|"[^"\\]*"|'[^']*')[ \t]*:(?=[ \t]|$)""")
_NOT_PLAIN = "&*!%@`|>"
_ESCAPES = {
    "0": "\0",
    "a": "\a",
    "b": "\b",
    "t": "\t",
    "n": "\n",
    "v": "\v",
    "f": "\f",
    "r": "\r",
    "e": "\x1b",
    " ": " ",
    '"': '"',
    "/": "/",
    "\\": "\\",
    "N": "\x85",
    "_": "\xa0",
    "L": "\u2028",
    "P": "\u2029",
}
_CODES = {"x": 2, "u": 4, "U": 8}
_BLANK, _PLAIN = re.compile(r"\s*"), re.compile(r"[^,\[\]{}#]*")


class TextError(ValueError):
    """The text is in no format of job files. The message is for the person, and names the line."""

    def __init__(self, line, message):
        super().__init__("line %d: %s" % (line, message))
        self.line, self.message = line, message


class Text(str):
    """A value of a job file, and the C(line) on which it is."""

    line = 0


def text_at(value, line):
    found = Text(value)
    found.line = line
    return found


def read_job_text(text, known_keys):
    """Return the values by key: Text, lists, or dicts of them. Keys are Text, too. Raises TextError.

    C(known_keys) tells where a value ends if all of them are on one line.
    """
    if len(text) > MAX_BYTES:
        raise TextError(1, "the file has more than %d characters, so it is no job file" % MAX_BYTES)
    if "\0" in text:
        raise TextError(
            text[: text.index("\0")].count("\n") + 1,
            "the file has a null character, so it is no text",
        )
    lines = text.lstrip("\ufeff").replace("\r\n", "\n").split("\n")
    if not lines[-1]:
        # What follows the last line break of the file is no line.
        lines.pop()
    used = [
        (number, line)
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not used:
        raise TextError(
            1, "the file is empty; it needs at least a command, as in: command: python3 train.py"
        )
    if re.match(r"\s*[A-Za-z_]\w*\s*=", used[0][1]):
        return _read_pairs(used, known_keys)
    return _Yaml(lines).document()


def read_value(text, line=0):
    """Return a list or mapping in brackets that is the value of a key=value line or of C(--set). Raises TextError."""
    value, after = _flow(text, 0, line, 1)
    if text[after:].strip():
        raise TextError(line, "'%.40s' follows the end of the value" % text[after:].strip())
    return value


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


def _one_line_each(entry, known_keys):
    """Return a line per key of a file that is one line: a value ends where a known key begins outside of quotes."""
    number, line = entry
    parts, quote, opened, inside = [], "", 0, ""
    starts = {
        match.start(1)
        for match in re.finditer(r"(?:^|\s)((?:%s)=)" % "|".join(map(re.escape, known_keys)), line)
    }
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
            "the quote before '%.20s' has no end, so %s= would be part of that value; close it, or write each key on a line of its own"
            % (line[opened + 1 :].strip(), inside),
        )
    return [(number, part) for part in parts]


# --- YAML -------------------------------------------------------------------------------------------------------------------


class _Yaml:
    def __init__(self, lines):
        self.lines, self.at = lines, 0

    def document(self):
        self._skip()
        if self._line().rstrip() == "---":
            self.at += 1
        elif self._line().startswith(("--- ", "%")):
            raise TextError(
                self.at + 1,
                "'%.40s' is not supported here; begin with the first key" % self._line(),
            )
        self._skip()
        if self.at == len(self.lines) or self._line().startswith(("---", "...")):
            raise TextError(
                min(self.at + 1, len(self.lines)),
                "the file is empty; it needs at least a command, as in: command: python3 train.py",
            )
        found = self._mapping(self._indent(), 1)
        self._skip()
        if self.at < len(self.lines) and self._line().rstrip() == "...":
            self.at += 1
            self._skip()
        if self.at < len(self.lines):
            raise TextError(
                self.at + 1,
                "a job file has one document"
                if self._line().startswith(("---", "..."))
                else "'%.60s' is not indented as the keys before it" % self._line().strip(),
            )
        return found

    def _line(self):
        return self.lines[self.at] if self.at < len(self.lines) else ""

    def _skip(self):
        while self.at < len(self.lines) and (
            not self._line().strip() or self._line().lstrip(" ").startswith("#")
        ):
            self.at += 1

    def _indent(self):
        line = self._line()
        blank = line[: len(line) - len(line.lstrip())]
        if "\t" in blank:
            raise TextError(self.at + 1, "a tab indents this line; use spaces")
        return len(blank)

    def _more(self, indent):
        """Return whether the next line has this indentation, or raise for one that fits nowhere."""
        self._skip()
        if self.at == len(self.lines) or self._line().startswith(("---", "...")) and indent == 0:
            return False
        found = self._indent()
        if found > indent:
            words = self._line().strip()
            raise TextError(
                self.at + 1,
                (
                    "'%.60s' is not indented as the keys before it"
                    if _KEY.match(words)
                    else "'%.60s' goes on with nothing; begin a text of several lines with | after its key"
                )
                % words,
            )
        return found == indent

    def _mapping(self, indent, depth):
        if depth > MAX_DEPTH:
            raise TextError(self.at + 1, "keys are nested more than %d deep" % MAX_DEPTH)
        found = {}
        while self._more(indent):
            number, rest = self.at + 1, self._line()[indent:]
            match = _KEY.match(rest)
            if not match:
                raise TextError(
                    number,
                    "'%.60s' is not a key with a value, as in: command: python3 train.py"
                    % rest.strip(),
                )
            key = match.group("key").strip("'\"")
            if key in found:
                first = next(entry for entry in found if entry == key)
                raise TextError(
                    number, "%s is there twice; the first one is on line %d" % (key, first.line)
                )
            found[text_at(key, number)] = self._value(rest[match.end() :], indent, depth)
        return found

    def _value(self, rest, indent, depth, of_key=True):
        """Return the value after a key or a dash, with its further lines. Only the list of a key need not be indented."""
        number, rest = self.at + 1, rest.strip()
        if rest.startswith(("|", ">")):
            return self._block(rest, indent)
        self.at += 1
        if rest and not rest.startswith("#"):
            return self._scalar(rest, number)
        self._skip()
        if self.at == len(self.lines) or self._line().startswith(("---", "...")):
            return text_at("", number)
        below, line = self._indent(), self._line().lstrip(" ")
        if below >= indent + (not of_key) and re.match(r"-(?:[ \t]|$)", line):
            return self._list(below, depth + 1)
        if below <= indent:
            return text_at("", number)
        if not _KEY.match(line):
            raise TextError(
                self.at + 1,
                "'%.60s' is a text without a key; write it behind its key, or begin it with |"
                % line.strip(),
            )
        return self._mapping(below, depth + 1)

    def _list(self, indent, depth):
        if depth > MAX_DEPTH:
            raise TextError(self.at + 1, "lists are nested more than %d deep" % MAX_DEPTH)
        found = []
        while self._more(indent):
            line = self._line()[indent:]
            if not re.match(r"-(?:[ \t]|$)", line):
                break
            rest = line[1:].lstrip(" ")
            if _KEY.match(rest):
                # A mapping as an item: its keys are as far to the right as the first one.
                inner = len(self._line()) - len(rest)
                self.lines[self.at] = " " * inner + rest
                found.append(self._mapping(inner, depth + 1))
            else:
                found.append(self._value(rest, indent, depth, of_key=False))
        return found

    def _scalar(self, rest, number):
        if rest[0] in "[{":
            value, after = _flow(rest, 0, number, 1)
        elif rest[0] in "'\"":
            value, after = _quoted(rest, 0, number)
        else:
            if rest[0] in _NOT_PLAIN or re.match(r"[-?:](?:\s|$)", rest) or rest[0] in ",]}":
                raise TextError(
                    number, "a text cannot begin with '%s' here; put it in quotes" % rest[0]
                )
            value = re.split(r"[ \t]#", rest, maxsplit=1)[0].rstrip()
            if re.search(r":(?:[ \t]|$)", value):
                raise TextError(
                    number,
                    "'%.60s' has a colon and a space, so it could be a key; put the text in quotes, or begin it with |"
                    % value,
                )
            return text_at(value, number)
        left = rest[after:].strip()
        if left and not (left.startswith("#") and rest[after] in " \t"):
            raise TextError(number, "'%.40s' follows the end of the value" % left)
        return value

    def _block(self, header, indent):
        """Return a text that begins with | or >."""
        number = self.at + 1
        match = re.match(r"([|>])(?:([1-9])([+-]?)|([+-])([1-9]?))?(?:[ \t]+#.*)?$", header)
        if not match:
            raise TextError(
                number,
                "'%.40s' does not begin a block of text; write | and begin the text on the next line"
                % header,
            )
        folded, chomp = match.group(1) == ">", match.group(3) or match.group(4) or ""
        width = int(match.group(2) or match.group(5) or 0)
        width = width + indent if width else 0
        self.at += 1
        raw = []
        while self.at < len(self.lines):
            line = self._line()
            blank = len(line) - len(line.lstrip(" "))
            if line.strip(" "):
                width = width or blank
                if blank < width or width <= indent:
                    break
            raw.append(line)
            self.at += 1
        # Lines of spaces before the first text must not be longer than its indentation: others would read them otherwise.
        for offset, line in enumerate(raw):
            if line.strip(" "):
                break
            if len(line) > width > 0:
                raise TextError(
                    number + 1 + offset,
                    "a line of spaces is longer than the indentation of the text below it; remove its spaces",
                )
        texts = [line[width:] if width else "" for line in raw]
        end = len(texts)
        while end and not texts[end - 1]:
            end -= 1
        body, empty = texts[:end], len(texts) - end
        value = _fold(body) if folded else "\n".join(body)
        if chomp == "-":
            return text_at(value, number)
        return text_at(
            value + ("\n" if body else "") + ("\n" * empty if chomp == "+" else ""), number
        )


def _fold(lines):
    """Join lines as C(>) does: with spaces, but for empty lines and those that are indented further."""
    value, breaks, previous = "", 0, None
    for line in lines:
        if not line:
            breaks += 1
            continue
        further = line[0] in " \t"
        if previous is None:
            value += "\n" * breaks
        elif further or previous:
            value += "\n" * (breaks + 1)
        else:
            value += "\n" * breaks if breaks else " "
        value, breaks, previous = value + line, 0, further
    return value


def _quoted(text, at, number):
    """Return the value of the quoted text that begins at a place, and the place after it."""
    quote, parts, place = text[at], [], at + 1
    while place < len(text):
        character = text[place]
        if quote == "'" and character == "'":
            if text[place + 1 : place + 2] != "'":
                return text_at("".join(parts), number), place + 1
            parts.append("'")
            place += 2
        elif quote == '"' and character == '"':
            # Other writers spell a character beyond \uffff as a pair, as JSON does.
            return text_at(
                re.sub("[\ud800-\udbff][\udc00-\udfff]", _joined, "".join(parts)), number
            ), place + 1
        elif quote == '"' and character == "\\":
            code = text[place + 1 : place + 2]
            digits = text[place + 2 : place + 2 + _CODES.get(code, 0)]
            if code in _ESCAPES:
                parts.append(_ESCAPES[code])
                place += 2
            elif (
                code in _CODES
                and re.fullmatch(r"[0-9A-Fa-f]{%d}" % _CODES[code], digits)
                and int(digits, 16) < 0x110000
            ):
                parts.append(chr(int(digits, 16)))
                place += 2 + _CODES[code]
            else:
                raise TextError(
                    number,
                    "'\\%s' means nothing in double quotes; write \\\\ for a backslash, or use single quotes"
                    % code,
                )
        else:
            parts.append(character)
            place += 1
    raise TextError(
        number,
        "the quote %s has no end on this line; close it, or begin the text with | after the key"
        % quote,
    )


def _joined(pair):
    high, low = map(ord, pair.group(0))
    return chr(0x10000 + ((high - 0xD800) << 10) + low - 0xDC00)


def _flow(text, at, number, depth):
    """Return the list or mapping in brackets that begins at a place, and the place after it."""
    if depth > MAX_DEPTH:
        raise TextError(number, "brackets are nested more than %d deep" % MAX_DEPTH)
    mapping = text[at] == "{"
    found, place, end = {} if mapping else [], at + 1, "}" if mapping else "]"
    while True:
        place = _BLANK.match(text, place).end()
        if text[place : place + 1] == end:
            return found, place + 1
        if mapping:
            match = _KEY.match(text, place)
            if not match:
                raise TextError(
                    number,
                    "expected a key and a value in { }, as in: {tensorboard: /data1/logs}; found '%.40s'"
                    % text[place:],
                )
            key = text_at(match.group("key").strip("'\""), number)
            if key in found:
                raise TextError(number, "%s is there twice" % key)
            found[key], place = _flow_value(text, match.end(), number, depth)
        else:
            value, place = _flow_value(text, place, number, depth)
            if value == "" and text[place - 1 : place] not in "'\"":
                raise TextError(number, "expected a value before '%.40s'" % text[place:])
            found.append(value)
        place = _BLANK.match(text, place).end()
        if text[place : place + 1] == ",":
            place += 1
        elif text[place : place + 1] != end:
            raise TextError(number, "'%s' has no '%s' on this line" % (text[at], end))


def _flow_value(text, place, number, depth):
    place = _BLANK.match(text, place).end()
    if text[place : place + 1] in ("[", "{"):
        return _flow(text, place, number, depth + 1)
    if text[place : place + 1] in ("'", '"'):
        return _quoted(text, place, number)
    match = _PLAIN.match(text, place)
    value = match.group(0).rstrip()
    if value and (
        value[0] in _NOT_PLAIN + "'\""
        or re.match(r"[-?:](?:\s|$)", value)
        or re.search(r":(?:\s|$)", value)
    ):
        raise TextError(number, "'%.40s' has to be in quotes here" % value)
    return text_at(value, number), place + len(match.group(0))
