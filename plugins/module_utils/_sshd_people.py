# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the sshd of a host needs to read one more file of keys per user, and what keeps a user out.

Text in, text out: pure functions.
"""

from __future__ import annotations

import fnmatch
import os
import re

from typing import Callable, Iterable, List, Mapping

__all__ = [
    "config_with",
    "drop_in",
    "files_of_keys",
    "hinders",
    "includes",
    "is_judged_by_user",
    "lost_quotes",
    "parse_effective",
]

# Options that decide whether a key is accepted. A Match block can set all of them.
_OF_LOGIN = (
    "authorizedkeysfile",
    "pubkeyauthentication",
    "allowusers",
    "allowgroups",
    "denyusers",
    "denygroups",
    "authenticationmethods",
)
# sshd accepts name value, name=value and name = value, in any case.
_LINE = re.compile(r"\s*([A-Za-z0-9]+)(?:\s*=\s*|\s+)(\S.*?)\s*\Z")
_WORD = re.compile(r'"([^"]*)"|(#.*)|(\S+)')
#: Words of all lines of an option, by its name in lower case, as P(parse_effective) returns them.
Effective = Mapping[str, List[str]]


def _option(line: str) -> tuple[str, str]:
    """Return (name in lower case, value) of a line, ('', '') of a comment or an empty line."""
    found = _LINE.match(line)
    return (found.group(1).lower(), found.group(2)) if found else ("", "")


def _words(value: str) -> list[str]:
    """Return the words of a value, without quotes and without a comment."""
    words: list[str] = []
    for quoted, comment, plain in _WORD.findall(value):
        if comment:
            break
        words.append(plain or quoted)
    return words


def includes(text: str) -> list[str]:
    """Return the patterns of all Include lines, relative ones completed as sshd does it."""
    patterns: list[str] = []
    for name, value in map(_option, text.splitlines()):
        if name == "include":
            # An absolute one replaces the folder.
            patterns += [os.path.join("/etc/ssh", word) for word in _words(value)]
    return patterns


def config_with(
    text: str, expand: Callable[[str], list[str]], path: str, replacement: str | None = None
) -> tuple[str, bool]:
    """Return (sshd_config with C(replacement) in place of the file C(path) of a folder that it
    includes, whether it includes that file for all connections).

    sshd itself then judges the new file before it goes live. Without a replacement, the result is
    the configuration as if there was no such file. C(expand) returns the existing files of a
    pattern.
    """
    lines: list[str] = []
    is_included = in_block = False
    for line in text.splitlines():
        name, value = _option(line)
        in_block = in_block or name == "match"
        patterns = includes(line)
        if not any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns):
            lines.append(line)
            continue
        is_included = is_included or not in_block
        files: list[str] = []
        for pattern in patterns:
            files += _included(pattern, expand, path, replacement)
        lines += ["Include %s" % " ".join('"%s"' % file for file in files)] if files else []
    return "\n".join(lines) + "\n", is_included


def _included(
    pattern: str, expand: Callable[[str], list[str]], path: str, replacement: str | None
) -> list[str]:
    """Return the files of a pattern in sshd's order, with C(replacement) in the place of
    C(path).
    """
    files = {file: file for file in expand(pattern) if file != path}
    if replacement and fnmatch.fnmatchcase(path, pattern):
        files[path] = replacement
    return [files[name] for name in sorted(files)]


def is_judged_by_user(texts: Iterable[str]) -> bool:
    """Whether a Match block of one of these files decides about logins. sshd is then asked about
    each user.
    """
    for text in texts:
        in_block = False
        for line in text.splitlines():
            name = _option(line)[0]
            in_block = in_block or name == "match"
            if in_block and name in _OF_LOGIN:
                return True
    return False


def lost_quotes(texts: Iterable[str]) -> bool:
    """Whether AuthorizedKeysFile has a name with a blank in one of these files. sshd -T prints it
    without its quotes.
    """
    options = [_option(line) for text in texts for line in text.splitlines()]
    return any(
        name == "authorizedkeysfile" and any(" " in word for word in _words(value))
        for name, value in options
    )


def parse_effective(text: str) -> dict[str, list[str]]:
    """Return {name: [words of all lines]} of the output of sshd -T."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, dummy, value = line.partition(" ")
        found.setdefault(name.lower(), []).extend(value.split())
    return found


def files_of_keys(effective: Effective, path: str) -> list[str]:
    """Return AuthorizedKeysFile with one more file: what the site has, and C(path)."""
    return [
        name
        for name in effective.get("authorizedkeysfile", [])
        if name != path and name.lower() != "none"
    ] + [path]


def drop_in(files: Iterable[str]) -> str:
    """Return the text of our file in sshd's folder."""
    return (
        "# Written by role trainyard.gpu.shared_storage. The last file has the keys of "
        "shared_storage_users.\n"
        "# The others are what the rest of the configuration sets; the role reads it in each run.\n"
        "AuthorizedKeysFile %s\n" % " ".join(files)
    )


def _matches(name: str, pattern: str) -> bool:
    """Return whether a name matches a pattern of sshd, which knows * and ? only."""
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))


def hinders(effective: Effective, path: str, name: str = "", groups: Iterable[str] = ()) -> str:
    """Return why sshd would not accept the key of a user, or without a name of any user; empty if
    it would.
    """
    if effective.get("usepam", ["yes"]) == ["no"]:
        return "UsePAM is no, and sshd then rejects accounts without a password"
    if effective.get("pubkeyauthentication", ["yes"]) == ["no"]:
        return "PubkeyAuthentication is no"
    methods = effective.get("authenticationmethods", ["any"])
    if methods != ["any"] and not any(
        method.split(":")[0] == "publickey" for way in methods for method in way.split(",")
    ):
        return "AuthenticationMethods is %s, without publickey" % " ".join(methods)
    if path not in effective.get("authorizedkeysfile", []):
        return "AuthorizedKeysFile is %s, without %s" % (
            " ".join(effective.get("authorizedkeysfile", [])) or "none",
            path,
        )
    return _refused(effective, name, groups) if name else ""


def _refused(effective: Effective, name: str, groups: Iterable[str]) -> str:
    """Return which list of users or groups keeps a user out; empty if none does."""
    users = {
        kind: effective.get(kind, [])
        for kind in ("denyusers", "allowusers", "denygroups", "allowgroups")
    }
    # A pattern such as anna@10.0.0.1 also depends on where the user comes from.
    if any("@" not in pattern and _matches(name, pattern) for pattern in users["denyusers"]):
        return "DenyUsers is %s" % " ".join(users["denyusers"])
    if users["allowusers"] and not any(
        _matches(name, pattern.partition("@")[0]) for pattern in users["allowusers"]
    ):
        return "AllowUsers is %s" % " ".join(users["allowusers"])
    if any(_matches(group, pattern) for pattern in users["denygroups"] for group in groups):
        return "DenyGroups is %s" % " ".join(users["denygroups"])
    if users["allowgroups"] and not any(
        _matches(group, pattern) for pattern in users["allowgroups"] for group in groups
    ):
        return "AllowGroups is %s" % " ".join(users["allowgroups"])
    return ""
