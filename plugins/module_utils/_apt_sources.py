# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Apt's lists of sources, in both of their formats: which repositories they name, and their text without some of these.

Two entries that name one repository with different keys stop all of apt, so an old one has to go before a new one comes.
"""

from __future__ import annotations

import re

__all__ = ["entries", "location", "without"]

_LINE = re.compile(r"\s*deb(?:-src)?\s+(?:\[(?P<options>[^\]]*)\]\s*)?(?P<uri>\S+)\s+(?P<suite>\S+)")
_SWITCHED_OFF = ("no", "false", "without", "off", "disable", "0")


def location(uri, suite="", architecture=""):
    """Where a repository is, in one spelling: without scheme, credentials and slashes at its end; with the suite where that is a path."""
    text = uri + ("/" + suite if suite.endswith("/") else "")
    text = re.sub(r"^[a-z+]+:/*(?:[^/@]*@)?", "", text.replace("$(ARCH)", architecture))
    host, _slash, path = text.partition("/")
    return "/".join([host.lower()] + [part for part in path.split("/") if part not in ("", ".")])


def _fields(paragraph):
    """Fields of one paragraph, names in lower case; a comment may stand between the lines of a value."""
    text = "\n".join(line for line in paragraph.splitlines() if not line.startswith("#"))
    return {name.lower(): value.strip() for name, value in re.findall(r"^([\w-]+):(.*(?:\n[ \t].*)*)", text, re.MULTILINE)}


def _paragraphs(text):
    """The text in parts: paragraphs at even places, what parts them at odd ones."""
    return re.split(r"(\n(?:[ \t]*\n)+)", text)


def _paragraph_entries(paragraph, architecture):
    fields = _fields(paragraph)
    if fields.get("enabled", "yes").lower() in _SWITCHED_OFF:
        return []
    return [{"uri": uri, "suite": suite, "location": location(uri, suite, architecture), "signed_by": fields.get("signed-by", "")}
            for uri in fields.get("uris", "").split() for suite in fields.get("suites", "").split()]


def _line_entry(line, architecture):
    match = _LINE.match(line)
    if not match:
        return None
    signed_by = re.search(r"(?:^|\s)signed-by=(\S+)", match.group("options") or "")
    return {"uri": match.group("uri"), "suite": match.group("suite"), "location": location(match.group("uri"), match.group("suite"), architecture),
            "signed_by": signed_by.group(1) if signed_by else ""}


def entries(path, text, architecture=""):
    """The repositories that a file names: C(uri), C(suite), C(location), and C(signed_by), empty where none is named. What is switched off isn't named."""
    if path.endswith(".sources"):
        return [entry for paragraph in _paragraphs(text)[::2] for entry in _paragraph_entries(paragraph, architecture)]
    return [entry for line in text.splitlines() for entry in [_line_entry(line, architecture)] if entry]


def _paragraph_without(paragraph, architecture, unwanted):
    """The paragraph, None where nothing is left of it, and the URIs that it has lost."""
    found = _paragraph_entries(paragraph, architecture)
    gone = list(dict.fromkeys(entry["uri"] for entry in found if unwanted(entry)))
    kept = [uri for uri in dict.fromkeys(entry["uri"] for entry in found) if uri not in gone]
    if not gone:
        return paragraph, []
    if not kept:
        return None, gone
    return re.sub(r"^(URIs:).*(?:\n[ \t].*)*", lambda match: "%s %s" % (match.group(1), " ".join(kept)), paragraph, flags=re.MULTILINE | re.IGNORECASE), gone


def without(path, text, unwanted, architecture=""):
    """The file without the entries for which C(unwanted(entry)) is true: C(text), C(gone) (their URIs), C(empty), whether it names no repository now."""
    gone, rest = [], []
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
            entry = _line_entry(line, architecture)
            if entry and unwanted(entry):
                gone.append(entry["uri"])
            else:
                rest.append(line)
        left = "".join(rest)
    return {"text": left, "gone": gone, "empty": not entries(path, left, architecture)}
