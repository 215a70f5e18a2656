# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Options of sshd_config from the inventory: which of them the role leaves to the user, and their lines. Pure functions."""

from __future__ import annotations

import re

__all__ = ["GROUPS", "SshdOptionError", "refused", "sshd_lines", "unwritable"]

# Names in lower case, as sshd reads them: what the role decides itself, by the reason for it.
GROUPS = {
    "address": ("port", "listenaddress", "addressfamily", "routingdomain"),
    "keys": ("hostkey", "hostkeyagent", "hostcertificate", "authorizedkeysfile", "authorizedkeyscommand", "authorizedkeyscommanduser", "trustedusercakeys",
             "authorizedprincipalsfile", "authorizedprincipalscommand", "authorizedprincipalscommanduser", "pidfile"),
    "login": ("allowusers", "allowgroups", "denyusers", "denygroups", "permitrootlogin", "passwordauthentication", "permitemptypasswords",
              "challengeresponseauthentication", "kbdinteractiveauthentication", "pubkeyauthentication", "authenticationmethods", "usepam", "strictmodes",
              "hostbasedauthentication", "gssapiauthentication", "kerberosauthentication", "permituserenvironment", "refuseconnection"),
    "session": ("forcecommand", "chrootdirectory"),
    # Each governs the lines below it.
    "block": ("match", "include"),
}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*\Z")


class SshdOptionError(ValueError):
    """Options that cannot be written; the message names them."""


def refused(options, group):
    """Names of the options that belong to a group of C(GROUPS)."""
    return sorted(str(name) for name in options if str(name).lower() in GROUPS[group])


def _text(value):
    """The value as sshd reads it; None where it has no line of its own."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        words = [_text(entry) for entry in value]
        return ",".join(words) if words and None not in words else None
    if not isinstance(value, (str, int)):
        return None
    text = str(value).strip()
    # A line break would begin another option.
    return text if text and text.isprintable() else None


def unwritable(options):
    """Names of options that are no names, have no plain value, or come twice in different spelling."""
    lower = [str(name).lower() for name in options]
    return sorted(str(name) for name, value in options.items()
                  if not isinstance(name, str) or not _NAME.match(name) or _text(value) is None or lower.count(str(name).lower()) > 1)


def sshd_lines(defaults, options):
    """Lines of sshd_config: the defaults, of which C(options) replace those of the same name in any spelling, and the other options."""
    wrong = unwritable(options) + [name for group in GROUPS for name in refused(options, group)]
    if wrong:
        raise SshdOptionError("training_sshd_options: %s cannot be set" % ", ".join("'%s'" % name for name in wrong))
    given = {name.lower(): name for name in options}
    lines = ["%s %s" % (name, _text(options[given[name.lower()]] if name.lower() in given else value)) for name, value in defaults.items()]
    known = {name.lower() for name in defaults}
    return lines + ["%s %s" % (name, _text(value)) for name, value in sorted(options.items()) if name.lower() not in known]
