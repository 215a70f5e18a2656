# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who else can log in to a training container: its sshd and its files against the plan. Pure functions."""

from __future__ import annotations

import hashlib
import ipaddress
import re

from ansible_collections.trainyard.gpu.plugins.module_utils._ssh_mesh import (
    ParseError,
    fingerprint,
    printable,
)

__all__ = ["differences"]

AUTHORIZED, CONFIG = "authorized_keys", "sshd_config"
#: Settings of sshd that decide who logs in and how, as `sshd -T` prints them, with OpenSSH's defaults where the plan does not set them.
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


def lines_of(text: str) -> list[str]:
    """The lines of a file that count, without blanks around them."""
    found = [line.strip() for line in text.splitlines()]
    return [line for line in found if line and not line.startswith("#")]


def key_in_words(line: str) -> str:
    """A line of authorized_keys, as somebody can search for it: fingerprint, options, comment."""
    match = KEY.search(line)
    if not match:
        return "a line that is no key (%.60r)" % line
    options = line[: match.start()].strip()
    try:
        text = fingerprint(match.group(1))
    except ParseError:
        return "a line that is no key (%.60r)" % line
    if options:
        text += " with the options %.100r" % options
    return text + (" (comment %.60r)" % match.group(2) if match.group(2) else "")


def key_of(line: str) -> str:
    """Options and key of a line of authorized_keys, which decide who is let in and to what. The line itself, if it has no key."""
    match = KEY.search(line)
    return line[: match.end(1)] if match else line


def key_differences(path: str, planned: str, found: list[str]) -> list[dict]:
    wanted = lines_of(planned)
    found = lines_of("\n".join(found))
    # A member that was renamed has another comment, which is the last part.
    keys = {key_of(line): line for line in wanted}
    renamed = [line for line in found if line not in wanted and key_of(line) in keys]
    foreign = [line for line in found if line not in wanted + renamed]
    kept = [keys[key_of(line)] for line in renamed]
    missing = [line for line in wanted if line not in found + kept]
    told = [
        {
            "found": "%s lets a key in that is not the cluster's: %s" % (path, key_in_words(line)),
            "asked": "one key of each host of the cluster",
        }
        for line in foreign[:MOST]
    ]
    told += [
        {
            "found": "%s has a key of the cluster with another comment: %s"
            % (path, key_in_words(line)),
            "asked": "%s" % key_in_words(keys[key_of(line)]),
        }
        for line in renamed[:MOST]
    ]
    if len(foreign) > MOST:
        told.append(
            {
                "found": "%s has %d more foreign keys" % (path, len(foreign) - MOST),
                "asked": "one key of each host of the cluster",
            }
        )
    if missing:
        told.append(
            {
                "found": "%s lacks %s"
                % (path, ", ".join(key_in_words(line) for line in missing[:MOST])),
                "asked": "one key of each host of the cluster",
            }
        )
    return told


def planned_settings(text: str) -> dict[str, list[str]]:
    """The settings of a planned sshd_config by name in lower case. The file has no Match and no Include."""
    found = {}
    for line in lines_of(text):
        name, _blank, value = line.partition(" ")
        found.setdefault(name.lower(), []).append(value.strip())
    for new, old in SAME.items():
        both = found.get(new, found.get(old))
        if both is not None:
            found[new] = found[old] = both
    return found


def setting_differences(path: str, planned: str, effective: dict) -> list[dict]:
    """Settings that sshd takes from the file otherwise than planned. C(effective) has the values by name, as `sshd -T` prints them."""
    wanted = planned_settings(planned)
    told = []
    for name, default in DECISIVE.items():
        expected = wanted.get(name, [default] if default else [])
        values = [WORDS.get(value, value) for value in effective.get(name, [])]
        if not expected or not values:
            continue
        if sorted(value.lower() for value in values) != sorted(value.lower() for value in expected):
            told.append(
                {
                    "found": "sshd reads %s from %s as '%s'"
                    % (name, path, printable(", ".join(values))),
                    "asked": "%s '%s'" % (name, ", ".join(expected)),
                }
            )
    return told


def listening_differences(address: str, port: int, listens: list[str]) -> list[dict]:
    try:
        wanted = str(ipaddress.ip_address(address))
    except ValueError:
        return []
    return [
        {
            "found": "port %d is open on %s"
            % (port, "all addresses (%s)" % other if other in EVERYWHERE else other),
            "asked": "an sshd that listens on %s only" % wanted,
        }
        for other in listens
        if other != wanted
    ]


def differences(found: dict, files: list[dict], address: str, port: int) -> list[dict]:
    """How the access to a container differs from the plan, each with C(what), C(asked) and C(found).

    C(found) is the result of M(ssh_mesh_keys), C(files) are the planned files with C(path), C(content) and C(mode). Without a running container, the
    text of sshd_config is not known, and it is not compared. On a host without any of the files, the role has not run.
    """
    if not any(entry["path"] in found["checksums"] for entry in files):
        return []
    runs = (found.get("sshd") or {}).get("running", False)
    told = []
    for entry in files:
        path, name = entry["path"], entry["path"].rsplit("/", 1)[-1]
        if name == CONFIG and not runs:
            continue
        if path not in found["checksums"]:
            told.append({"found": "%s is missing" % path, "asked": "the file of the plan"})
            continue
        mode = found["permissions"].get(path, entry["mode"])
        if mode != entry["mode"]:
            told.append(
                {"found": "%s has mode %s" % (path, mode), "asked": "mode %s" % entry["mode"]}
            )
        if found["checksums"][path] != hashlib.sha256(entry["content"].encode()).hexdigest():
            special = []
            if name == AUTHORIZED:
                special = key_differences(path, entry["content"], found.get("authorized") or [])
            elif name == CONFIG:
                special = setting_differences(path, entry["content"], found.get("effective") or {})
            told += special or [
                {
                    "found": "%s has another content" % path,
                    "asked": "the content that the inventory gives it",
                }
            ]
    if runs and (found["sshd"].get("reload_needed")):
        told.append(
            {
                "found": "sshd in the container has not read its files since they were changed",
                "asked": "an sshd with the settings of its files",
            }
        )
    told += listening_differences(address, port, found.get("listens") or [] if runs else [])
    return [dict(entry, what="ssh to the container") for entry in told]
