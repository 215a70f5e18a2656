# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Parsers for exports, mounts and access lists in files of the kernel and the NFS tools.

Text in, data out.
"""

from __future__ import annotations

import ipaddress
import os
import re
import struct

from typing import Callable, Iterable, List, Sequence, Tuple, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._mountinfo import unescaped
from ansible_collections.trainyard.gpu.plugins.module_utils._parse_error import ParseError

__all__ = [
    "ParseError",
    "access_list",
    "allowed_by_ufw",
    "full_access",
    "is_same_client",
    "not_in_force",
    "options_in_force",
    "parse_exports",
    "parse_versions",
    "shown_options",
    "unit_name",
    "without_access",
]

#: Entries of an access list: tag, permissions and id.
_Access = List[Tuple[int, int, int]]


class Export(TypedDict):
    """An export of a folder to a client."""

    path: str
    client: str
    options: list[str]


# linux/posix_acl_xattr.h
_ACL_VERSION = 2
_USER_OBJ, _USER, _GROUP_OBJ, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
_NO_ID = 0xFFFFFFFF


# exportfs uses one name for each.
_SYNONYMS = {
    "mp": "mountpoint",
    "auth_nlm": "secure_locks",
    "no_auth_nlm": "insecure_locks",
    "fsid=root": "fsid=0",
}
# Mount options that the mount program, systemd or the kernel do not show.
_NOT_SHOWN = frozenset(
    (
        "_netdev nofail defaults retry bg fg auto noauto rw async dev suid exec tcp udp rdma "
        "intr nointr lock nolock acl ac cto rdirplus resvport "
        "port mountport mountproto mountvers mounthost mountprog nfsprog minorversion "
        "sharecache sloppy comment user nouser users owner noowner group nogroup "
        "atime diratime norelatime strictatime nostrictatime nolazytime mand nomand silent "
        "loud symfollow nofsc nosoftreval nomigration iversion noiversion"
    ).split()
)
# Options that the kernel shows in another notation.
_SHOWN_AS = {
    "nfsvers": "vers",
    "lookupcache=positive": "lookupcache=pos",
    "v3": "vers=3",
    "v4": "vers=4",
    "v4.0": "vers=4.0",
    "v4.1": "vers=4.1",
    "v4.2": "vers=4.2",
}
# Options that the kernel shows only if they have another value (nfs_show_mount_options).
_SHOWN_UNLESS = frozenset(
    "acregmin=3 acregmax=60 acdirmin=30 acdirmax=60 lookupcache=all nconnect=1".split()
)


# --- mounts ---------------------------------------------------------------------------------------------------------------


def unit_name(path: str, suffix: str) -> str:
    """Return the name of systemd's unit for a path, as in systemd-escape --path."""
    parts = [part for part in path.split("/") if part]
    text = "-".join(_escaped(part) for part in parts)
    # systemd escapes a dot at the beginning only.
    if text.startswith("."):
        text = "\\x2e" + text[1:]
    return (text or "-") + "." + suffix


def _escaped(part: str) -> str:
    text = ""
    for character in part:
        if re.match(r"[A-Za-z0-9:_.]", character):
            text += character
        else:
            text += "".join("\\x%02x" % byte for byte in character.encode("utf-8"))
    return text


def shown_options(options: Iterable[str]) -> list[str]:
    """Return the requested mount options in the kernel's notation, without those of the mount
    program and systemd.
    """
    shown = []
    for option in options:
        name, equals, value = option.partition("=")
        if name.startswith("x-") or name in _NOT_SHOWN:
            continue
        if name == "actimeo":
            shown += [
                "%s=%s" % (each, value) for each in ("acregmin", "acregmax", "acdirmin", "acdirmax")
            ]
            continue
        shown.append(_SHOWN_AS.get(option, _SHOWN_AS.get(name, name) + equals + value))
    return shown


def options_in_force(requested: Iterable[str], shown: Sequence[str]) -> list[str]:
    """Return the requested options that a mounted file system does not have.

    A version without minor number matches any.
    """
    names = {option.partition("=")[0] for option in shown}
    sizes = {option[:5]: option[6:] for option in shown if option.startswith(("rsize=", "wsize="))}
    missing = []
    for option in shown_options(requested):
        if option in shown or option in _SHOWN_UNLESS and option.partition("=")[0] not in names:
            continue
        # The server may lower these.
        if option.startswith(("rsize=", "wsize=")) and 0 < int(sizes.get(option[:5], 0)) <= int(
            option[6:]
        ):
            continue
        is_version = option.startswith("vers=")
        if not is_version or not any(other.startswith(option + ".") for other in shown):
            missing.append(option)
    return missing


# --- exports --------------------------------------------------------------------------------------------------------------


def parse_exports(text: str) -> list[Export]:
    """Return path, client and options of every export in /etc/exports, a file of /etc/exports.d, or
    /var/lib/nfs/etab.
    """
    exports: list[Export] = []
    client_and_options = re.compile(r"([^()]*)(?:\(([^()]*)\))?").fullmatch
    for line in re.sub(r"\\\n", " ", text).splitlines():
        words = [
            word[0] or word[1]
            for word in re.findall(r'"([^"]*)"|((?:\\.|[^\s"#\\]+|\\)+)|#.*', line)
        ]
        words = [word for word in words if word]
        if not words:
            continue
        path = unescaped(words[0])
        defaults: list[str] = []
        if not path.startswith("/"):
            raise ParseError("no export: %.160r" % line)
        # exportfs accepts /a/, //a and /a/. for the folder /a.
        path = os.path.normpath("/" + path.lstrip("/"))
        clients: list[Export] = []
        for word in words[1:]:
            if word.startswith("-") and not clients:
                defaults = word[1:].split(",")
                continue
            match = client_and_options(word)
            if not match:
                raise ParseError("not a client of an export: %.160r" % line)
            client, options = match.groups("")
            clients.append(
                {
                    "path": path,
                    "client": client or "*",
                    "options": defaults + list(filter(None, options.split(","))),
                }
            )
        exports += clients or [{"path": path, "client": "*", "options": defaults}]
    return exports


def is_same_client(one: str, other: str) -> bool:
    """Return whether two clients of an export are the same: an address with and without its prefix,
    a name in any case.
    """

    def normal(client: str) -> str:
        try:
            return str(ipaddress.ip_network(client, strict=False))
        except ValueError:
            return client.lower().rstrip(".")

    return normal(one) == normal(other)


def not_in_force(
    requested: Iterable[Export], in_force: Sequence[Export], canonical: Callable[[str], str] = str
) -> list[Export]:
    """Return the requested exports that are not active, or have other options.

    C(canonical) returns the name that the server uses for a client, which may differ from the
    requested name.
    """

    def served_as_asked(export: Export, served: Export) -> bool:
        same = is_same_client(served["client"], export["client"]) or is_same_client(
            served["client"], canonical(export["client"])
        )
        return (
            served["path"] == export["path"]
            and same
            and {_SYNONYMS.get(option, option) for option in export["options"]}
            <= set(served["options"])
        )

    return [
        export
        for export in requested
        if not any(served_as_asked(export, served) for served in in_force)
    ]


def parse_versions(text: str) -> list[str]:
    """Return the enabled versions in /proc/fs/nfsd/versions: ``-2 +3 +4 -4.0 +4.1 +4.2``.

    A major version includes its minor ones.
    """
    words = text.split()
    found = [word[1:] for word in words if re.fullmatch(r"\+\d+(\.\d+)?", word)]
    # The kernel lists 4.0 only if it is off.
    if "4" in found and not {"+4.0", "-4.0"} & set(words):
        found.insert(found.index("4"), "4.0")
    return [version for version in found if version != "4"]


def allowed_by_ufw(status: str, address: str, port: int) -> bool:
    """Return whether `ufw status verbose` allows an address, or a whole network, to reach a TCP
    port.
    """
    if not re.search(r"^Status: active", status, re.M):
        return True
    if re.search(r"^Default: allow \(incoming\)", status, re.M):
        return True
    network = ipaddress.ip_network(address, strict=False)
    for line in status.splitlines():
        match = re.match(r"(\S+)(?: \(v6\))?\s+(ALLOW|LIMIT)(?: IN)?\s+(\S+)", line)
        if not match or match.group(1) not in ("%d/tcp" % port, str(port), "Anywhere"):
            continue
        if match.group(3) == "Anywhere":
            return True
        try:
            source = ipaddress.ip_network(match.group(3), strict=False)
            if _is_within(network, source):
                return True
        except ValueError:
            continue
    return False


# --- access lists ---------------------------------------------------------------------------------------------------------


def _is_within(
    network: ipaddress.IPv4Network | ipaddress.IPv6Network,
    other: ipaddress.IPv4Network | ipaddress.IPv6Network,
) -> bool:
    if isinstance(network, ipaddress.IPv4Network) and isinstance(other, ipaddress.IPv4Network):
        return network.subnet_of(other)
    if isinstance(network, ipaddress.IPv6Network) and isinstance(other, ipaddress.IPv6Network):
        return network.subnet_of(other)
    return False


def access_list(raw: bytes) -> _Access:
    """Return [(tag, permissions, id)] of a POSIX access list in an extended attribute; []
    for none.
    """
    if not raw:
        return []
    if len(raw) < 4 or (len(raw) - 4) % 8 or struct.unpack_from("<I", raw)[0] != _ACL_VERSION:
        raise ParseError("not a POSIX access list: %r" % raw[:16])
    return list(struct.iter_unpack("<HHI", raw[4:]))


def full_access(raw: bytes, mode: int, uid: int, default: bool) -> bytes:
    """Return the access list with full access for one more user. All other entries stay.

    C(raw) is the present one (b"" for none), C(mode) the permission bits: of them come owner and
    others, and without a list the group too. With C(default) it is the list for what is made in the
    folder later.
    """
    entries = {(tag, owner): permissions for tag, permissions, owner in access_list(raw)}
    if not entries:
        entries = {
            (_USER_OBJ, _NO_ID): mode >> 6 & 7,
            (_GROUP_OBJ, _NO_ID): mode >> 3 & 7,
            (_OTHER, _NO_ID): mode & 7,
        }
    elif not default:
        entries.update({(_USER_OBJ, _NO_ID): mode >> 6 & 7, (_OTHER, _NO_ID): mode & 7})
    entries[(_USER, uid)] = 7
    entries[(_MASK, _NO_ID)] = 7
    return _packed(entries)


def _packed(entries: dict[tuple[int, int], int]) -> bytes:
    """The access list with permissions by tag and id."""
    return struct.pack("<I", _ACL_VERSION) + b"".join(
        struct.pack("<HHI", tag, entries[(tag, owner)], owner) for tag, owner in sorted(entries)
    )


def without_access(raw: bytes, uid: int) -> tuple[bytes, int | None]:
    """Return the access list without the entry that C(full_access) has made for a user, and the
    group's permissions if no list is left, else None.

    Entries of the site stay. A list whose other entries are only those of the mode is none: as a
    default list it would replace the umask. The permissions of the group are then what the mask has
    left of them.
    """
    entries = {(tag, owner): permissions for tag, permissions, owner in access_list(raw)}
    if entries.get((_USER, uid)) != 7:
        return raw, None
    del entries[(_USER, uid)]
    if not any(tag in (_USER, _GROUP) for tag, _owner in entries):
        return b"", entries[(_GROUP_OBJ, _NO_ID)] & entries.get((_MASK, _NO_ID), 7)
    return _packed(entries), None
