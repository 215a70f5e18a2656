# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import struct

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils._nfs import (
    ParseError,
    access_list,
    allowed_by_ufw,
    full_access,
    is_same_client,
    not_in_force,
    options_in_force,
    parse_exports,
    without_access,
    parse_versions,
    shown_options,
    unit_name,
)

#: Of an NFS mount, as the kernel shows them.
SHOWN = (
    "rw,relatime,vers=4.2,rsize=524288,hard,proto=tcp,timeo=600,sec=sys,local_lock=none,addr=10.0.0.11"
).split(",")


# --- mounts ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path, name",
    [
        ("/data1/share", "data1-share.mount"),
        ("/", "-.mount"),
        ("/mnt/a-b", "mnt-a\\x2db.mount"),
        ("/mnt//x/", "mnt-x.mount"),
        ("/mnt/with blank", "mnt-with\\x20blank.mount"),
        ("/.hidden/.x", "\\x2ehidden-.x.mount"),
        ("/mnt/ä", "mnt-\\xc3\\xa4.mount"),
    ],
)
def test_unit_names_are_those_of_systemd_escape(path, name):
    assert unit_name(path, "mount") == name


@pytest.mark.parametrize(
    "asked, missing",
    [
        (["_netdev", "nofail", "hard", "vers=4", "retry=10080"], []),
        (["hard", "vers=4.2", "nconnect=1"], []),
        (
            ["soft", "vers=4.1", "nconnect=4", "x-systemd.automount"],
            ["soft", "vers=4.1", "nconnect=4"],
        ),
        (["nfsvers=4.2", "rsize=1048576", "noatime", "tcp"], ["noatime"]),
        (["rsize=1024", "actimeo=30"], ["rsize=1024", "acregmin=30", "acregmax=30", "acdirmax=30"]),
        # The kernel shows these only where they have another value.
        (
            [
                "acregmin=3",
                "acregmax=60",
                "acdirmin=30",
                "acdirmax=60",
                "lookupcache=all",
                "sharecache",
            ],
            [],
        ),
    ],
)
def test_options_that_are_not_in_force(asked, missing):
    assert options_in_force(asked, SHOWN) == missing


def test_every_option_of_mount_is_shown_or_known_not_to_be():
    """The kernel shows these as they are configured, or the role would mount again in each run."""
    assert shown_options(["v4.1", "nfsvers=3", "lookupcache=positive", "noatime", "fsc"]) == [
        "vers=4.1",
        "vers=3",
        "lookupcache=pos",
        "noatime",
        "fsc",
    ]
    assert (
        shown_options(
            [
                "sloppy",
                "users",
                "strictatime",
                "comment=share",
                "nofsc",
                "x-gvfs-hide",
                "norelatime",
                "silent",
            ]
        )
        == []
    )


# --- exports --------------------------------------------------------------------------------------------------------------


def test_exports_of_a_user_s_file():
    text = (
        '# /srv/no *(rw)\n"/srv/with blank" 10.0.0.0/24(ro) \\\n  host.example(rw,sync)  # by hand\n/srv/open\n/srv/def -rw,async a b(ro)\n'
        "/srv/oct\\040al *(rw)\n\n"
    )
    assert [
        (export["path"], export["client"], export["options"]) for export in parse_exports(text)
    ] == [
        ("/srv/with blank", "10.0.0.0/24", ["ro"]),
        ("/srv/with blank", "host.example", ["rw", "sync"]),
        ("/srv/open", "*", []),
        ("/srv/def", "a", ["rw", "async"]),
        ("/srv/def", "b", ["rw", "async", "ro"]),
        ("/srv/oct al", "*", ["rw"]),
    ]
    assert [
        export["path"] for export in parse_exports("/a/ b\n//a/c b\n/a/./d/. b\n/a//e/// b\n/ b\n")
    ] == ["/a", "/a/c", "/a/d", "/a/e", "/"]
    with pytest.raises(ParseError, match="no export: 'srv"):
        parse_exports("srv *(rw)")
    with pytest.raises(ParseError, match="not a client"):
        parse_exports("/srv a(rw")


ETAB = "/data1/share\t10.0.0.12(rw,sync,wdelay,hide,nocrossmnt,secure,root_squash,no_all_squash,no_subtree_check,acl,no_pnfs,anonuid=65534,anongid=65534,sec=sys)\n"


@pytest.mark.parametrize(
    "client, options, served",
    [
        ("10.0.0.12", ["rw", "sync", "root_squash"], True),
        ("10.0.0.12/32", ["rw"], True),
        ("10.0.0.12", ["no_root_squash"], False),
        ("10.0.0.13", ["rw"], False),
    ],
)
def test_exports_that_are_not_in_force(client, options, served):
    wanted = [{"path": "/data1/share", "client": client, "options": options}]
    assert not_in_force(wanted, parse_exports(ETAB)) == ([] if served else wanted)


@pytest.mark.parametrize(
    "one, other, same",
    [
        ("10.0.0.5", "10.0.0.5/32", True),
        ("10.0.0.5/24", "10.0.0.0/24", True),
        ("A.example.", "a.example", True),
        ("a", "b", False),
    ],
)
def test_clients_that_are_the_same(one, other, same):
    assert is_same_client(one, other) is same


@pytest.mark.parametrize(
    "text, versions",
    [
        ("-2 +3 +4 +4.1 +4.2\n", ["3", "4.0", "4.1", "4.2"]),
        ("+3 +4 +4.0 +4.1 +4.2\n", ["3", "4.0", "4.1", "4.2"]),
        ("-2 -3 +4 -4.1\n", ["4.0"]),
        ("-3 +4 -4.0 +4.1\n", ["4.1"]),
        ("", []),
    ],
)
def test_versions_that_the_server_speaks(text, versions):
    assert parse_versions(text) == versions


UFW = """Status: active
Logging: on (low)
Default: deny (incoming), allow (outgoing), disabled (routed)
New profiles: skip

To                         Action      From
--                         ------      ----
22/tcp                     ALLOW IN    Anywhere
2049/tcp                   ALLOW IN    10.0.0.12                  # trainyard.gpu.nfs_server
Anywhere                   ALLOW IN    192.168.7.0/24
2049                       DENY IN     10.0.0.14
22/tcp (v6)                ALLOW IN    Anywhere (v6)
"""


@pytest.mark.parametrize(
    "address, status, allowed",
    [
        ("10.0.0.12", UFW, True),
        ("10.0.0.13", UFW, False),
        ("10.0.0.14", UFW, False),
        ("192.168.7.9", UFW, True),
        ("fd00::1", UFW, False),
        ("192.168.7.128/25", UFW, True),
        ("192.168.0.0/16", UFW, False),
        ("10.0.0.0/24", UFW, False),
        ("fd00::/64", UFW, False),
        ("10.0.0.13", "Status: inactive\n", True),
        ("10.0.0.13", UFW.replace("deny (incoming)", "allow (incoming)"), True),
    ],
)
def test_who_gets_through_ufw(address, status, allowed):
    assert allowed_by_ufw(status, address, 2049) is allowed


# --- access lists ---------------------------------------------------------------------------------------------------------


def entries(raw):
    return {
        (tag, None if owner == 0xFFFFFFFF else owner): permissions
        for tag, permissions, owner in access_list(raw)
    }


def test_one_more_user_may_do_everything():
    new = entries(full_access(b"", 0o2755, 65534, False))
    assert new == {(1, None): 7, (2, 65534): 7, (4, None): 5, (0x10, None): 7, (0x20, None): 5}
    assert list(access_list(full_access(b"", 0o755, 65534, False))) == sorted(
        access_list(full_access(b"", 0o755, 65534, False))
    )


def test_what_others_have_in_the_list_stays():
    raw = struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", *entry)
        for entry in [
            (1, 7, 0xFFFFFFFF),
            (2, 5, 1234),
            (4, 0, 0xFFFFFFFF),
            (8, 6, 3001),
            (0x10, 5, 0xFFFFFFFF),
            (0x20, 0, 0xFFFFFFFF),
        ]
    )
    assert entries(full_access(raw, 0o2770, 65534, True)) == {
        (1, None): 7,
        (2, 1234): 5,
        (2, 65534): 7,
        (4, None): 0,
        (8, 3001): 6,
        (0x10, None): 7,
        (0x20, None): 0,
    }
    again = full_access(raw, 0o2770, 65534, True)
    assert full_access(again, 0o2770, 65534, True) == again
    with pytest.raises(ParseError):
        access_list(b"\x01\x00\x00\x00")


def packed(*rows):
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *row) for row in rows)


NONE = 0xFFFFFFFF


def test_without_our_entry_there_is_no_list():
    for default in (False, True):
        assert without_access(full_access(b"", 0o2755, 65534, default), 65534) == (b"", 5)
    # chmod 0700 has made the mask empty, and the group gets what it had by it.
    assert without_access(
        packed((1, 7, NONE), (2, 7, 65534), (4, 5, NONE), (0x10, 0, NONE), (0x20, 0, NONE)), 65534
    ) == (b"", 0)
    assert without_access(b"", 65534) == (b"", None)


def test_entries_of_the_site_stay():
    rows = [
        (1, 7, NONE),
        (2, 5, 1234),
        (2, 7, 65534),
        (4, 0, NONE),
        (8, 6, 3001),
        (0x10, 7, NONE),
        (0x20, 0, NONE),
    ]
    raw, group = without_access(packed(*rows), 65534)
    assert (raw, group) == (packed(*[row for row in rows if row != (2, 7, 65534)]), None)
    assert without_access(raw, 65534) == (raw, None)
    # Not what full_access gives.
    read_only = packed((1, 7, NONE), (2, 5, 65534), (4, 5, NONE), (0x10, 7, NONE), (0x20, 5, NONE))
    assert without_access(read_only, 65534) == (read_only, None)
