# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who else can log in to a training container: its sshd and its files against the plan.

Pure functions.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._ssh_mesh import (
    ParseError,
    fingerprint,
    one_line,
)

if TYPE_CHECKING:
    from ansible_collections.trainyard.gpu.plugins.plugin_utils._drift import Difference

__all__ = ["differences"]

AUTHORIZED, CONFIG = "authorized_keys", "sshd_config"
#: Settings of sshd that decide who logs in and how, as `sshd -T` prints them, with OpenSSH's
#: defaults where the plan does not set them.
DECISIVE = {
    "port": "",
    "listenaddress": "",
    "allowusers": "",
    "authenticationmethods": "",
    "permitrootlogin": "",
    "pubkeyauthentication": "",
    "authorizedkeysfile": "",
    "strictmodes": "",
    "usepam": "",
    "disableforwarding": "",
    "passwordauthentication": "",
    "kbdinteractiveauthentication": "no",
    "challengeresponseauthentication": "no",
    "permitemptypasswords": "no",
    "hostbasedauthentication": "no",
    "gssapiauthentication": "no",
    "kerberosauthentication": "no",
    "authorizedkeyscommand": "none",
    "authorizedprincipalscommand": "none",
    "trustedusercakeys": "none",
    "forcecommand": "none",
}
#: Both names of a setting, of which a release prints one.
SAME = {"kbdinteractiveauthentication": "challengeresponseauthentication"}
#: Before OpenSSH 9, -T prints the old word.
WORDS = {"without-password": "prohibit-password"}
KEY = re.compile(r"(?:^|\s)((?:ssh|ecdsa|sk)-\S+ [A-Za-z0-9+/]+={0,2})(?:\s+(.*))?$")
#: More foreign keys are counted.
MOST = 10
EVERYWHERE = ("0.0.0.0", "::")
ONE_KEY_EACH = "one key of each host of the cluster"


class File(TypedDict):
    """A planned file."""

    path: str
    content: str
    #: Such as "0600".
    mode: str


def lines_of(text: str) -> list[str]:
    """Return the lines of a file that count, without blanks around them."""
    found = [line.strip() for line in text.splitlines()]
    return [line for line in found if line and not line.startswith("#")]


def key_in_words(line: str) -> str:
    """Return a line of authorized_keys, as somebody can search for it: fingerprint, options,
    comment.
    """
    match = KEY.search(line)
    if not match:
        return "a line that is no key (%.60r)" % line
    options = line[: match.start()].strip()
    try:
        text: str = fingerprint(match.group(1))
    except ParseError:
        return "a line that is no key (%.60r)" % line
    if options:
        text += " with the options %.100r" % options
    return text + (" (comment %.60r)" % match.group(2) if match.group(2) else "")


def key_of(line: str) -> str:
    """Return options and key of a line of authorized_keys, which decide who is let in and to what.

    The line itself, if it has no key.
    """
    match = KEY.search(line)
    return line[: match.end(1)] if match else line


def _difference(found: str, requested: str) -> Difference:
    return {"found": found, "asked": requested, "what": "ssh to the container"}


def key_differences(path: str, planned: str, found: list[str]) -> Iterator[Difference]:
    """Yield the lines that a file of keys has in place of the planned ones."""
    requested = lines_of(planned)
    found = lines_of("\n".join(found))
    # A member that was renamed has another comment, which is the last part.
    keys = {key_of(line): line for line in requested}
    renamed = [line for line in found if line not in requested and key_of(line) in keys]
    foreign = [line for line in found if line not in requested + renamed]
    kept = [keys[key_of(line)] for line in renamed]
    missing = [line for line in requested if line not in found + kept]
    for line in foreign[:MOST]:
        words = "%s lets a key in that is not the cluster's: %s" % (path, key_in_words(line))
        yield _difference(words, ONE_KEY_EACH)
    for line in renamed[:MOST]:
        words = "%s has a key of the cluster with another comment: %s"
        yield _difference(words % (path, key_in_words(line)), key_in_words(keys[key_of(line)]))
    if len(foreign) > MOST:
        words = "%s has %d more foreign keys" % (path, len(foreign) - MOST)
        yield _difference(words, ONE_KEY_EACH)
    if missing:
        words = "%s lacks %s" % (path, ", ".join(key_in_words(line) for line in missing[:MOST]))
        yield _difference(words, ONE_KEY_EACH)


def planned_settings(text: str) -> dict[str, list[str]]:
    """Return the settings of a planned sshd_config by name in lower case.

    The file has no Match and no Include.
    """
    found: dict[str, list[str]] = {}
    for line in lines_of(text):
        name, _blank, value = line.partition(" ")
        found.setdefault(name.lower(), []).append(value.strip())
    for new, old in SAME.items():
        both = found.get(new, found.get(old))
        if both is not None:
            found[new] = found[old] = both
    return found


def setting_differences(
    path: str, planned: str, effective: dict[str, list[str]]
) -> Iterator[Difference]:
    """Yield the settings that sshd takes from the file otherwise than planned.

    C(effective) has the values by name, as `sshd -T` prints them.
    """
    requested = planned_settings(planned)
    for name, default in DECISIVE.items():
        expected = requested.get(name, [default] if default else [])
        values = [WORDS.get(value, value) for value in effective.get(name, [])]
        if not expected or not values:
            continue
        if sorted(value.lower() for value in values) != sorted(value.lower() for value in expected):
            yield _difference(
                "sshd reads %s from %s as '%s'" % (name, path, one_line(", ".join(values))),
                "%s '%s'" % (name, ", ".join(expected)),
            )


def listening_differences(address: str, port: int, listens: Iterable[str]) -> Iterator[Difference]:
    """Yield the addresses beside the planned one on which the port is open.

    A name in place of the planned address is not judged.
    """
    try:
        requested = str(ipaddress.ip_address(address))
    except ValueError:
        return
    for other in listens:
        if other != requested:
            place = "all addresses (%s)" % other if other in EVERYWHERE else other
            yield _difference(
                "port %d is open on %s" % (port, place),
                "an sshd that listens on %s only" % requested,
            )


def _content_differences(file: File, found: dict[str, Any]) -> list[Difference]:
    """Return how the content of a file differs from the plan."""
    path, name = file["path"], file["path"].rsplit("/", 1)[-1]
    if found["checksums"][path] == hashlib.sha256(file["content"].encode()).hexdigest():
        return []
    special: list[Difference] = []
    if name == AUTHORIZED:
        special += key_differences(path, file["content"], found.get("authorized") or [])
    elif name == CONFIG:
        special += setting_differences(path, file["content"], found.get("effective") or {})
    return special or [
        _difference(
            "%s has another content" % path,
            "the content that the inventory gives it",
        )
    ]


def _file_differences(file: File, found: dict[str, Any]) -> Iterator[Difference]:
    """Yield how a file differs from the plan."""
    path = file["path"]
    if path not in found["checksums"]:
        yield _difference("%s is missing" % path, "the file of the plan")
        return
    mode = found["permissions"].get(path, file["mode"])
    if mode != file["mode"]:
        yield _difference("%s has mode %s" % (path, mode), "mode %s" % file["mode"])
    yield from _content_differences(file, found)


def differences(
    found: dict[str, Any], files: list[File], address: str, port: int
) -> list[Difference]:
    """Return how the access to a container differs from the plan.

    C(found) is the result of M(ssh_mesh_keys). Without a running container, the text of sshd_config
    is not known, and it is not compared. On a host without any of the files, the role has not run.
    """
    if not any(file["path"] in found["checksums"] for file in files):
        return []
    sshd = found.get("sshd") or {}
    runs = sshd.get("running", False)
    different: list[Difference] = []
    for file in files:
        if runs or file["path"].rsplit("/", 1)[-1] != CONFIG:
            different += _file_differences(file, found)
    if runs and sshd.get("reload_needed"):
        different.append(
            _difference(
                "sshd in the container has not read its files since they were changed",
                "an sshd with the settings of its files",
            )
        )
    if runs:
        different += listening_differences(address, port, found.get("listens") or [])
    return different
