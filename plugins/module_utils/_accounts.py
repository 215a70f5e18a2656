# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Users and groups of the host's name service: its files, and a directory service if there is one."""

from __future__ import annotations

import grp
import pwd

__all__ = ["account_clashes", "find_group", "find_user"]


def _found(function, key):
    try:
        return function(key)
    except KeyError:
        return None


def find_user(key):
    """Return the entry of a user by name or number, None if there is none."""
    return _found(pwd.getpwnam if isinstance(key, str) else pwd.getpwuid, key)


def find_group(key):
    """Return the entry of a group by name or number, None if there is none."""
    return _found(grp.getgrnam if isinstance(key, str) else grp.getgrgid, key)


def account_clashes(users, groups):
    """Return entries of C(users) and C(groups), {name: number}, whose name has another number on this host, or whose number has another name."""
    clashes = []
    for kind, asked, find, fields in (("user", users, find_user, ("pw_name", "pw_uid")), ("group", groups, find_group, ("gr_name", "gr_gid"))):
        for name, number in asked.items():
            for entry in (find(name), find(int(number))):
                found = entry and tuple(getattr(entry, field) for field in fields)
                if found and found != (name, int(number)):
                    clash = {"kind": kind, "name": name, "asked": "%s %s with id %s" % (kind, name, number), "found": "%s %s with id %s" % ((kind,) + found)}
                    clashes += [clash] if clash not in clashes else []
    return clashes
