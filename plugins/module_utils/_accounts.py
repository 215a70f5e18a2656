# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Users and groups of the host's name service: its files, and a directory service if there
is one.
"""

from __future__ import annotations

import grp
import pwd

from typing import Any, Callable, Container, Mapping, Tuple, TypedDict, TypeVar, Union

from ansible_collections.trainyard.gpu.plugins.module_utils._people_plan import (
    owned_ids,
    remembered_clashes,
)

__all__ = ["account_clashes", "find_group", "find_user", "number_of"]


#: A name or a number.
Key = Union[str, int]
Entry = TypeVar("Entry")
#: Name, number, and what the host has: another name or number.
Difference = Tuple[str, int, str, int]


class Clash(TypedDict):
    """An entry that was requested (C(asked)) and differs from what was C(found) on the host."""

    kind: str
    name: str
    asked: str
    found: str


def _found(function: Callable[[Any], Entry], key: Key) -> Entry | None:
    """Return an entry of the name service, None if there is none."""
    try:
        return function(key)
    except KeyError:
        return None


def find_user(key: Key) -> pwd.struct_passwd | None:
    """Return the entry of a user by name or number, None if there is none."""
    return _found(pwd.getpwnam if isinstance(key, str) else pwd.getpwuid, key)


def find_group(key: Key) -> grp.struct_group | None:
    """Return the entry of a group by name or number, None if there is none."""
    return _found(grp.getgrnam if isinstance(key, str) else grp.getgrgid, key)


def number_of(kind: str, name: str) -> int | None:
    """Return the id of one of C(users) or C(groups) by name, None if there is none."""
    if kind == "users":
        user = find_user(name)
        return user.pw_uid if user else None
    group = find_group(name)
    return group.gr_gid if group else None


def _user_of(key: Key) -> tuple[str, int] | None:
    user = find_user(key)
    return (user.pw_name, user.pw_uid) if user else None


def _group_of(key: Key) -> tuple[str, int] | None:
    group = find_group(key)
    return (group.gr_name, group.gr_gid) if group else None


def _clashes_on_host(
    requested: Mapping[str, int], find: Callable[[Key], tuple[str, int] | None]
) -> list[Difference]:
    """Return the entries that differ. C(find) returns name and number of an entry of the host."""
    clashes: list[Difference] = []
    for name, number in requested.items():
        for found in (find(name), find(int(number))):
            if found and found != (name, int(number)) and (name, number, *found) not in clashes:
                clashes.append((name, number, *found))
    return clashes


def _clash(kind: str, name: str, number: int, found: str) -> Clash:
    return {
        "kind": kind,
        "name": name,
        "asked": "%s %s with id %s" % (kind, name, number),
        "found": found,
    }


def account_clashes(
    users: Mapping[str, int],
    groups: Mapping[str, int],
    record: Mapping[str, Any] | None = None,
    accepted: Container[int] = (),
) -> list[Clash]:
    """Return entries of C(users) and C(groups), {name: number}, that differ from this host.

    That is: the name has another number on the host, or the number has another name.
    C(record) is that of module shared_accounts: numbers of former people also clash if their
    accounts are gone. C(accepted) are those that others may get.
    """
    record = record or {}
    clashes = []
    for kind, numbers, find in (("user", users, _user_of), ("group", groups, _group_of)):
        created = set(record.get(kind + "s", [])) - set(numbers)
        for name, number, other, its in _clashes_on_host(numbers, find):
            # The module removes a former account whose number may be used again.
            if not (other in created and its == int(number) and its in accepted):
                clashes.append(_clash(kind, name, number, "%s %s with id %s" % (kind, other, its)))
    known = {(clash["kind"], clash["name"]) for clash in clashes}
    requested = {"users": users, "groups": groups}
    for clash in remembered_clashes(requested, owned_ids(record, number_of), accepted):
        kind, name = clash["kind"], clash["name"]
        if (kind, name) not in known:
            found = "files of former %(kind)s %(former)s with id %(id)s" % clash
            clashes.append(_clash(kind, name, clash["id"], found))
    return clashes
