# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Apt's source files in both formats: the repositories in them, and their text without some of
these.

Apt fails completely if two entries name one repository with different keys, so an old entry must be
removed before a new one is added. The image build uses it too: Python 3.6 with nothing but the
standard library.
"""

import re
from typing import Any, Callable, Dict, List, Optional, Tuple

__all__ = ["entries", "list_prefix", "location", "stanzas", "without"]

_LINE = re.compile(
    r"\s*(?P<type>deb(?:-src)?)\s+(?:\[(?P<options>[^\]]*)\]\s*)?(?P<uri>\S+)\s+(?P<suite>\S+)\s*(?P<components>[^#]*)"
)
_PORTS = {"http": "80", "https": "443", "ftp": "21"}
_SWITCHED_OFF = ("no", "false", "without", "off", "disable", "0")
# Fields of a paragraph that say how apt fetches and trusts a repository. It refuses all of its lists
# if two entries of one suite have, for example, different values of trusted or check-valid-until.
_OPTIONS = (
    "languages",
    "targets",
    "pdiffs",
    "by-hash",
    "allow-insecure",
    "allow-weak",
    "allow-downgrade-to-insecure",
    "trusted",
    "check-valid-until",
    "valid-until-min",
    "valid-until-max",
    "check-date",
    "date-max-future",
    "inrelease-path",
    "snapshot",
)
# Names in a line that differ from those in a paragraph.
_NAMES_IN_LINES = {"lang": "languages", "target": "targets"}

#: A line or a paragraph, as P(stanzas) returns it.
Stanza = Dict[str, Any]
#: A repository, as P(entries) returns it.
Entry = Dict[str, str]
#: Whether an entry is unwanted.
Judge = Callable[[Entry], bool]


def location(uri: str, suite: str = "", architecture: str = "") -> str:
    """Normalized location of a repository: without scheme, its port, credentials and trailing
    slashes; with the suite if that is a path.
    """
    text = uri + ("/" + suite if suite.endswith("/") else "")
    scheme = text.partition(":")[0].lower().rpartition("+")[2]
    text = re.sub(r"^[A-Za-z+]+:/*(?:[^/@]*@)?", "", text.replace("$(ARCH)", architecture))
    host, _slash, path = text.partition("/")
    name, _colon, port = host.lower().rpartition(":")
    # :443 of https is where it goes without a port, too. An empty port is none.
    if name and port in ("", _PORTS.get(scheme)):
        host = name
    return "/".join([host.lower()] + [part for part in path.split("/") if part not in ("", ".")])


def list_prefix(uri: str, suite: str) -> str:
    """Prefix of the names of a suite's files in /var/lib/apt/lists, followed by InRelease or
    …_Packages.
    """
    text = re.sub(r"^[a-z+]+:/*(?:[^/@]*@)?", "", uri.rstrip("/") + "/")
    if uri.startswith(("file:", "copy:")):
        text = "/" + text
    text += "" if suite == "/" else suite if suite.endswith("/") else "dists/%s/" % suite
    return re.sub(
        r"[\\|{}\[\]<>\"^~_=!@#$%&*]", lambda match: "%%%02x" % ord(match.group()), text
    ).replace("/", "_")


def _fields(paragraph: str) -> Dict[str, str]:
    """Fields of one paragraph, names in lower case. Comments may be between the lines of a
    value.
    """
    text = "\n".join(line for line in paragraph.splitlines() if not line.startswith("#"))
    return {
        name.lower(): value.strip()
        for name, value in re.findall(r"^([\w-]+):(.*(?:\n[ \t].*)*)", text, re.MULTILINE)
    }


def _paragraphs(text: str) -> List[str]:
    """The text in parts: paragraphs at even indexes, separators at odd ones."""
    return re.split(r"(\n(?:[ \t]*\n)+)", text)


def _of_paragraph(paragraph: str) -> Optional[Stanza]:
    fields = _fields(paragraph)
    if fields.get("enabled", "yes").lower() in _SWITCHED_OFF:
        return None
    names = ("types", "uris", "suites", "components", "architectures")
    found: Stanza = {name: fields.get(name, "").split() for name in names}
    options = {name: " ".join(fields[name].split()) for name in _OPTIONS if name in fields}
    return dict(found, signed_by=fields.get("signed-by", ""), options=options)


def _of_line(line: str) -> Optional[Stanza]:
    match = _LINE.match(line)
    if not match:
        return None
    options = dict(re.findall(r"([\w-]+)=(\S+)", match.group("options") or ""))
    named = {_NAMES_IN_LINES.get(name, name): value for name, value in options.items()}
    return {
        "types": [match.group("type")],
        "uris": [match.group("uri")],
        "suites": [match.group("suite")],
        "components": match.group("components").split(),
        "architectures": [name for name in options.get("arch", "").split(",") if name],
        "signed_by": options.get("signed-by", ""),
        "options": {name: named[name].replace(",", " ") for name in _OPTIONS if name in named},
    }


def stanzas(path: str, text: str) -> List[Stanza]:
    """A file's lines or paragraphs: C(types), C(uris), C(suites), C(components) and
    C(architectures), as lists, C(signed_by), empty if none is named, and C(options), the other
    fields that apt heeds, by name in lower case.

    Disabled entries are left out.
    """
    if path.endswith(".sources"):
        found = [_of_paragraph(paragraph) for paragraph in _paragraphs(text)[::2]]
    else:
        found = [_of_line(line) for line in text.splitlines()]
    return [stanza for stanza in found if stanza]


def _entries_of(stanza: Optional[Stanza], architecture: str) -> List[Entry]:
    if not stanza:
        return []
    return [
        {
            "uri": uri,
            "suite": suite,
            "location": location(uri, suite, architecture),
            "signed_by": stanza["signed_by"],
        }
        for uri in stanza["uris"]
        for suite in stanza["suites"]
    ]


def entries(path: str, text: str, architecture: str = "") -> List[Entry]:
    """The repositories that a file names: C(uri), C(suite), C(location), and C(signed_by), empty if
    none is named. Disabled entries are left out.
    """
    return [entry for stanza in stanzas(path, text) for entry in _entries_of(stanza, architecture)]


def _paragraph_without(
    paragraph: str, architecture: str, unwanted: Judge
) -> Tuple[Optional[str], List[str]]:
    """The remaining paragraph, None if it is empty, and the removed URIs."""
    found = _entries_of(_of_paragraph(paragraph), architecture)
    gone = list(dict.fromkeys(entry["uri"] for entry in found if unwanted(entry)))
    kept = [uri for uri in dict.fromkeys(entry["uri"] for entry in found) if uri not in gone]
    if not gone:
        return paragraph, []
    if not kept:
        return None, gone
    return re.sub(
        r"^(URIs:).*(?:\n[ \t].*)*",
        lambda match: "%s %s" % (match.group(1), " ".join(kept)),
        paragraph,
        flags=re.MULTILINE | re.IGNORECASE,
    ), gone


def without(path: str, text: str, unwanted: Judge, architecture: str = "") -> Dict[str, Any]:
    """The file without the entries for which C(unwanted(entry)) is true: C(text), C(gone) (their
    URIs), C(empty), whether no repository is left.
    """
    gone: List[str] = []
    rest: List[str] = []
    if path.endswith(".sources"):
        parts = _paragraphs(text)
        for number in range(0, len(parts), 2):
            paragraph, lost = _paragraph_without(parts[number], architecture, unwanted)
            gone += lost
            if paragraph is not None:
                rest.append(paragraph + (parts[number + 1] if number + 1 < len(parts) else ""))
        left = "".join(rest)
        left = left.rstrip("\n") + "\n" if gone and left.strip() else left
    else:
        for line in text.splitlines(True):
            lost = [
                entry["uri"]
                for entry in _entries_of(_of_line(line), architecture)
                if unwanted(entry)
            ]
            gone += lost
            rest += [] if lost else [line]
        left = "".join(rest)
    return {"text": left, "gone": gone, "empty": not entries(path, left, architecture)}
