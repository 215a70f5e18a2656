# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Options of sshd_config from the inventory: those that the user may set, and their lines.

Pure functions.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["GROUPS", "SshdOptionError", "refused", "sshd_lines", "unwritable"]

# Names in lower case, as in sshd: options that only the role sets, by reason.
GROUPS = {
    "address": ("port", "listenaddress", "addressfamily", "routingdomain"),
    "keys": (
        "hostkey",
        "hostkeyagent",
        "hostcertificate",
        "authorizedkeysfile",
        "authorizedkeyscommand",
        "authorizedkeyscommanduser",
        "trustedusercakeys",
        "authorizedprincipalsfile",
        "authorizedprincipalscommand",
        "authorizedprincipalscommanduser",
        "pidfile",
        "revokedkeys",
    ),
    "login": (
        "allowusers",
        "allowgroups",
        "denyusers",
        "denygroups",
        "permitrootlogin",
        "passwordauthentication",
        "permitemptypasswords",
        "challengeresponseauthentication",
        "kbdinteractiveauthentication",
        "pubkeyauthentication",
        "authenticationmethods",
        "usepam",
        "strictmodes",
        "hostbasedauthentication",
        "gssapiauthentication",
        "kerberosauthentication",
        "permituserenvironment",
        "refuseconnection",
    ),
    "session": ("forcecommand", "chrootdirectory"),
    # Each applies to the lines below it.
    "block": ("match", "include"),
}
# With a value below one, sshd accepts the file but no login.
_AT_LEAST_ONE = ("maxsessions", "maxauthtries", "persourcemaxstartups")
# One of these algorithms must remain: of the cluster's keys, or of the defaults of ssh in OpenSSH
# 7.6 to 10.
_NEEDED = {
    "hostkeyalgorithms": ("ssh-ed25519",),
    "pubkeyacceptedalgorithms": ("ssh-ed25519",),
    "pubkeyacceptedkeytypes": ("ssh-ed25519",),
    "ciphers": (
        "aes128-ctr",
        "aes192-ctr",
        "aes256-ctr",
        "aes128-gcm@openssh.com",
        "aes256-gcm@openssh.com",
        "chacha20-poly1305@openssh.com",
    ),
    "kexalgorithms": (
        "curve25519-sha256",
        "curve25519-sha256@libssh.org",
        "ecdh-sha2-nistp256",
        "ecdh-sha2-nistp384",
        "ecdh-sha2-nistp521",
        "diffie-hellman-group-exchange-sha256",
        "diffie-hellman-group14-sha256",
        "diffie-hellman-group16-sha512",
        "diffie-hellman-group18-sha512",
        "sntrup761x25519-sha512",
        "sntrup761x25519-sha512@openssh.com",
        "mlkem768x25519-sha256",
    ),
}
# All other lists have commas.
_WITH_BLANKS = (
    "acceptenv",
    "setenv",
    "ipqos",
    "permitopen",
    "permitlisten",
    "rekeylimit",
    "subsystem",
    "channeltimeout",
    "persourcepenalties",
    "persourcepenaltyexemptlist",
)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*\Z")


class SshdOptionError(ValueError):
    """Options that cannot be written; the message names them."""


def refused(options: Mapping[Any, Any], group: str) -> list[str]:
    """Names of the options in a group of C(GROUPS), or, for the group lockout, those whose value
    would reject every login.
    """
    if group == "lockout":
        return sorted(
            str(name)
            for name, value in options.items()
            if _locks_out(str(name).lower(), _text(value, str(name).lower()))
        )
    return sorted(str(name) for name in options if str(name).lower() in GROUPS[group])


def _locks_out(name: str, text: str | None) -> bool:
    """Whether sshd would reject every login with this value, or not start: tested with OpenSSH 9.2,
    whose sshd -t accepts most of them.
    """
    if text is None:
        return False
    if name in _AT_LEAST_ONE:
        return re.fullmatch("0+", text) is not None
    if name == "maxstartups":
        return not re.fullmatch("0*[1-9][0-9]*(:0*([1-9][0-9]?|100):0*[1-9][0-9]*)?", text)
    if name not in _NEEDED or text[0] in "+^":
        return False
    patterns = text.lstrip("-").split(",")
    matched = [
        algorithm
        for algorithm in _NEEDED[name]
        if any(fnmatch.fnmatchcase(algorithm, pattern) for pattern in patterns)
    ]
    return len(matched) == len(_NEEDED[name]) if text[0] == "-" else not matched


def _text(value: Any, name: str = "") -> str | None:
    """The value of an option, given in lower case, in sshd's notation; None if it has no line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        texts = [_text(entry) for entry in value]
        words = [text for text in texts if text is not None]
        if not words or len(words) < len(texts):
            return None
        return " ".join(_word(word) for word in words) if name in _WITH_BLANKS else ",".join(words)
    if not isinstance(value, (str, int)):
        return None
    text = str(value).strip()
    # A line break would start another option.
    return text if text and text.isprintable() else None


def _word(text: str) -> str:
    """A word in a list separated by blanks."""
    return '"%s"' % text if " " in text and '"' not in text else text


def unwritable(options: Mapping[Any, Any]) -> list[str]:
    """Names of options that are not valid, have no plain value, or are repeated in another
    spelling.
    """
    lower = [str(name).lower() for name in options]
    return sorted(
        str(name)
        for name, value in options.items()
        if not isinstance(name, str)
        or not _NAME.match(name)
        or _text(value) is None
        or lower.count(str(name).lower()) > 1
    )


def sshd_lines(defaults: Mapping[str, Any], options: Mapping[str, Any]) -> list[str]:
    """Lines of sshd_config: the defaults, overridden by C(options) of the same name in any
    spelling, and the other options.

    SshdOptionError: an option cannot be set.
    """
    wrong = unwritable(options) + [
        name for group in tuple(GROUPS) + ("lockout",) for name in refused(options, group)
    ]
    if wrong:
        raise SshdOptionError(
            "training_sshd_options: %s cannot be set" % ", ".join("'%s'" % name for name in wrong)
        )
    given = {name.lower(): value for name, value in options.items()}
    lines = [
        "%s %s" % (name, _text(given.get(name.lower(), value), name.lower()))
        for name, value in defaults.items()
    ]
    known = {name.lower() for name in defaults}
    return lines + [
        "%s %s" % (name, _text(value, name.lower()))
        for name, value in sorted(options.items())
        if name.lower() not in known
    ]
