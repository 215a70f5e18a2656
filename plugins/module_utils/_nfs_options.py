# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Options of NFS mounts and exports in nfs(5), mount(8), systemd.mount(5) and exports(5), with
their values.

The kernel's client rejects a mount with any other option, and exportfs a whole file.
"""

from __future__ import annotations

import ipaddress
import re

from typing import Callable, Dict, Iterable, List, Sequence, Tuple, Union

__all__ = ["EXPORT", "MOUNT", "are_exclusive", "contradictions", "is_option", "version_in"]

_NUMBER = "[0-9]{1,10}"
_PORT = "[0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
_TEXT = "[A-Za-z0-9_.:/@%+-]+"
_CONNECTIONS = "[1-9]|1[0-6]"
_SECURITY = "(none|null|sys|krb5[ip]?|lkey[ip]?|spkm3[ip]?)"
_HOSTS = "/[A-Za-z0-9._/-]*@[A-Za-z0-9._-]+([+][A-Za-z0-9._-]+)*"


#: What an option takes: nothing, a value that matches a pattern, or one that a function accepts.
_Takes = Union[None, str, Callable[[str], bool]]
Options = Dict[str, List[_Takes]]


def _is_address(text: str) -> bool:
    try:
        return bool(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return False


def _is_id(text: str) -> bool:
    return re.fullmatch(_NUMBER, text, re.ASCII) is not None and int(text) < 4294967295


def _options(flags: str, values: Iterable[Tuple[str, _Takes]]) -> Options:
    """Return {option: pattern of its value, None for one without a value}.

    Some are valid with and without a value.
    """
    found: Options = {name: [None] for name in flags.split()}
    for names, value in values:
        for name in names.split():
            found.setdefault(name, []).append(value)
    return found


# nfs(5), then kernels newer than its pages and those of distributions and vendors, then mount(8).
MOUNT = _options(
    "soft softerr hard softreval nosoftreval intr nointr ac noac bg fg rdirplus nordirplus "
    "sharecache nosharecache resvport noresvport fsc nofsc sloppy "
    "udp tcp rdma lock nolock cto nocto acl noacl migration nomigration posix noposix v3 v4 "
    "v4.0 v4.1 v4.2 "
    "trunkdiscovery notrunkdiscovery alignwrite noalignwrite sharetransport nosharetransport "
    "forcerdirplus spread_reads spread_writes "
    "async sync dirsync atime noatime diratime nodiratime relatime norelatime strictatime "
    "nostrictatime lazytime nolazytime auto noauto defaults "
    "dev nodev exec noexec suid nosuid ro rw user nouser users owner noowner group nogroup "
    "iversion noiversion mand nomand silent loud nofail _netdev "
    "symfollow nosymfollow",
    [
        (
            (
                "rsize wsize timeo retrans acregmin acregmax acdirmin acdirmax actimeo retry "
                "namlen bsize mountprog nfsprog cert_serial privkey_serial"
            ),
            _NUMBER,
        ),
        ("port mountport", _PORT),
        ("nconnect max_connect", _CONNECTIONS),
        ("vers nfsvers", r"[234]|4\.[0-2]"),
        ("minorversion", "[0-2]"),
        ("mountvers", "[1-3]"),
        ("proto", "(udp|tcp|rdma)6?"),
        ("mountproto", "(udp|tcp)6?"),
        ("sec", "%s(:%s)*" % (_SECURITY, _SECURITY)),
        ("lookupcache", "all|none|pos|positive"),
        ("local_lock", "all|flock|posix|none"),
        ("clientaddr addr mountaddr", _is_address),
        ("xprtsec", "none|tls|mtls"),
        ("write", "lazy|eager|wait"),
        ("rdirplus", "none|force"),
        ("fatal_neterrors", "default|none|ENETDOWN:ENETUNREACH|ENETUNREACH:ENETDOWN"),
        (
            "mounthost fsc context fscontext defcontext rootcontext comment localports remoteports",
            _TEXT,
        ),
    ],
)
EXPORT = _options(
    "rw ro sync async root_squash no_root_squash all_squash no_all_squash subtree_check "
    "no_subtree_check wdelay no_wdelay secure insecure hide nohide "
    "crossmnt nocrossmnt secure_locks insecure_locks auth_nlm no_auth_nlm acl no_acl pnfs "
    "no_pnfs security_label nordirplus mountpoint mp",
    [
        ("anonuid anongid", _is_id),
        ("fsid", "[0-9]{1,10}|root|[0-9A-Fa-f]{8}(-?[0-9A-Fa-f]{4}){3}-?[0-9A-Fa-f]{12}"),
        ("sec", "(sys|krb5[ip]?|none)(:(sys|krb5[ip]?|none))*"),
        ("mountpoint mp", "(/[A-Za-z0-9._/+@-]*)?"),
        ("refer replicas", "%s(:%s)*" % (_HOSTS, _HOSTS)),
        ("xprtsec", "(none|tls|mtls)(:(none|tls|mtls))*"),
        ("reexport", "no|auto-fsidnum|predefined-fsidnum"),
    ],
)


def is_option(text: str, known: Options) -> bool:
    """Return whether a text is one of these options, with a valid value."""
    name, equals, value = text.partition("=")
    # Each program reads its own options and ignores the others: x-systemd.requires=, x-gvfs-hide.
    if known is MOUNT and re.fullmatch("[xX]-[A-Za-z0-9_.-]+", name):
        return not equals or re.fullmatch(_TEXT, value, re.ASCII) is not None
    for takes in known.get(name, ()):
        if takes is None:
            good = not equals
        elif callable(takes):
            good = bool(equals) and takes(value)
        else:
            good = bool(equals) and re.fullmatch(takes, value, re.ASCII) is not None
        if good:
            return True
    return False


def _by_flavor(options: Iterable[str]) -> list[list[str]]:
    """Return the options in parts, one for the flavors of each sec=, because exports(5) allows some
    options to differ between them.
    """
    parts: list[list[str]] = [[]]
    for option in options:
        if option.startswith("sec=") and any(other.startswith("sec=") for other in parts[-1]):
            parts.append([])
        parts[-1].append(option)
    return parts


def contradictions(options: Iterable[str], sets: Iterable[list[str]]) -> list[list[str]]:
    """Return the sets with more than one option present.

    A word that ends in = matches all of its values.
    """
    parts = _by_flavor(options)
    return [words for words in sets if any(_has_several(part, words) for part in parts)]


def _has_several(options: Iterable[str], words: Sequence[str]) -> bool:
    beginnings = tuple(word for word in words if word.endswith("="))
    found = {option for option in options if option in words or option.startswith(beginnings)}
    return len(found) > 1


def are_exclusive(options: Iterable[str], sets: Iterable[list[str]]) -> bool:
    """Return whether no set has more than one option present."""
    return contradictions(options, sets) == []


def version_in(options: Iterable[str]) -> str:
    """Return the version that a mount's options request, '' if they do not set one."""
    for option in options:
        found = re.fullmatch(r"(?:(?:nfs)?vers=|v)([2-4](?:\.[0-2])?)", option)
        if found:
            return found.group(1)
    return ""
