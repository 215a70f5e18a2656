"""Decision nfs_server_plan: which clients get which exports, what differs on the server, and
conflicts.
"""

from __future__ import annotations

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _nfs_server_plan

OPTIONS = ["rw", "sync", "no_subtree_check", "root_squash"]
SETTINGS = {"threads": 0, "versions": [], "lease_seconds": 0, "grace_seconds": 0}
NFSD = {"threads": 8, "versions": ["3", "4.1", "4.2"], "lease_seconds": 90, "grace_seconds": 90}
SHARE = {"path": "/data1/share"}


def member(name, address, reachable=True):
    return {"name": name, "address": address, "reachable": reachable}


MEMBERS = [member("a", "10.0.0.11"), member("b", "10.0.0.12"), member("c", "10.0.0.13")]


def plan(found=None, exports=(SHARE,), members=MEMBERS, settings=None, **more):
    given = dict({"options": OPTIONS, "anonymous": {"uid": 65534, "gid": 65533}}, **more)
    return _nfs_server_plan.decide_nfs_server_plan(
        found or {},
        {
            "exports": list(exports),
            "members": members,
            "host": "a",
            "settings": dict(SETTINGS, **settings or {}),
            **given,
        },
    )


def host(**more):
    return dict(
        {
            "own_clients": [],
            "others": [],
            "nfsd": {},
            "mounts": {},
            "mounted_by_nfs": [],
            "files": {},
            "error": "",
        },
        **more,
    )


def clients(**more):
    return [export["clients"] for export in plan(**more)["served"]]


def test_the_other_members_are_clients():
    told = plan()
    assert told["served"] == [
        {
            "path": "/data1/share",
            "clients": ["10.0.0.12", "10.0.0.13"],
            "options": OPTIONS + ["anonuid=65534", "anongid=65533"],
        }
    ]
    assert told["wanted"] == [
        {
            "path": "/data1/share",
            "client": client,
            "options": OPTIONS + ["anonuid=65534", "anongid=65533"],
        }
        for client in ("10.0.0.12", "10.0.0.13")
    ]
    # A server alone exports nothing.
    assert plan(members=MEMBERS[:1])["served"] == [] and plan(members=MEMBERS[:1])["wanted"] == []


def test_clients_outside_of_the_cluster():
    exports = [
        dict(SHARE, clients=["NAS.example", "192.0.2.0/24"]),
        {"path": "/data2", "clients": None},
    ]
    assert clients(clients=["nas.example", "10.0.0.12"], exports=exports) == [
        ["10.0.0.12", "10.0.0.13", "nas.example", "192.0.2.0/24"],
        ["10.0.0.12", "10.0.0.13", "nas.example"],
    ]
    assert clients(members=[], clients=["nas.example"]) == [["nas.example"]]


def test_a_member_that_does_not_answer():
    silent = [MEMBERS[0], MEMBERS[1], member("c", "10.0.0.99", reachable=False)]
    former = host(own_clients=["10.0.0.13", "10.0.0.14"])
    assert clients(members=silent) == [["10.0.0.12"]]
    # The inventory has its address.
    assert clients(members=silent, inventory_addresses=["10.0.0.7"]) == [["10.0.0.12", "10.0.0.7"]]
    # It has none, so that the exports of an earlier run stay.
    assert clients(found=former, members=silent, inventory_addresses=[""]) == [
        ["10.0.0.12", "10.0.0.13", "10.0.0.14"]
    ]
    # All answer: an earlier client loses access.
    assert clients(found=former) == [["10.0.0.12", "10.0.0.13"]]


def test_an_address_counts_once_in_any_case():
    assert clients(
        members=[*MEMBERS, member("d", "FD00::A"), member("e", "fd00::a"), member("f", "")]
    ) == [["10.0.0.12", "10.0.0.13", "FD00::A"]]


@pytest.mark.parametrize(
    "options, squashed",
    [
        (["rw", "root_squash"], True),
        (["rw"], True),
        (["rw", "no_root_squash"], False),
        (["rw", "no_root_squash", "all_squash"], True),
    ],
)
def test_who_root_of_the_clients_is(options, squashed):
    for told in (plan(options=options), plan(exports=[dict(SHARE, options=options)])):
        assert told["served"][0]["options"] == options + (
            ["anonuid=65534", "anongid=65533"] if squashed else []
        )
        assert told["folders"] == [
            {"path": "/data1/share", "mode": "2775", "full_access_uid": 65534}
            if squashed
            else {"path": "/data1/share"}
        ]


@pytest.mark.parametrize("option", ["anonuid=1000", "anongid=1000"])
def test_an_export_with_ids_of_its_own(option):
    assert plan(exports=[dict(SHARE, options=["rw", option])])["served"][0]["options"] == [
        "rw",
        option,
    ]


def test_a_folder_is_created_before_it_has_clients():
    assert [folder["path"] for folder in plan(members=MEMBERS[:1])["folders"]] == ["/data1/share"]


@pytest.mark.parametrize(
    "wanted, access",
    [
        ({}, True),
        ({"full_access": True}, True),
        ({"full_access": None}, True),
        ({"full_access": False}, False),
    ],
)
def test_full_access_to_a_folder(wanted, access):
    """Trees of users and groups are exported without it: root of a client is not to write among the
    folders of users.
    """
    assert ("full_access_uid" in plan(exports=[dict(SHARE, **wanted)])["folders"][0]) is access


def test_a_firewall_is_opened_for_addresses_and_networks():
    named = {
        "clients": ["nas.example", "192.0.2.0/24", "fd00::/64", "*.example", "@group", "10.0.0.12"]
    }
    assert plan(**named)["let_in"] == ["10.0.0.12", "10.0.0.13", "192.0.2.0/24", "fd00::/64"]
    assert plan(firewall=False, **named)["let_in"] == []


@pytest.mark.parametrize(
    "settings, nfsd, files, differ",
    [
        ({}, NFSD, [], False),
        (
            {
                "threads": 8,
                "versions": ["4.2", "4.1", "3"],
                "lease_seconds": 90,
                "grace_seconds": 90,
            },
            NFSD,
            ["/etc/nfs.conf.d/trainyard.conf"],
            False,
        ),
        ({"threads": 4}, NFSD, ["/etc/nfs.conf.d/trainyard.conf"], True),
        ({"versions": ["4.2"]}, NFSD, ["/etc/nfs.conf.d/trainyard.conf"], True),
        ({"lease_seconds": 15}, NFSD, ["/etc/nfs.conf.d/trainyard.conf"], True),
        ({"grace_seconds": 15}, NFSD, ["/etc/nfs.conf.d/trainyard.conf"], True),
        # The values are right by chance, or were requested before.
        ({"threads": 8}, NFSD, [], True),
        ({}, NFSD, ["/etc/nfs.conf.d/trainyard.conf"], True),
        # No server runs yet.
        ({"threads": 4}, {}, [], False),
    ],
)
def test_settings_of_the_running_server(settings, nfsd, files, differ):
    told = plan(host(nfsd=nfsd, files=dict.fromkeys(files, "0")), settings=settings)
    assert (told["settings_differ"], told["has_settings"]) == (differ, settings != {})


@pytest.mark.parametrize(
    "found, require_mount, problems",
    [
        (host(), True, []),
        (
            host(error="/etc/exports: no export: 'x'"),
            False,
            ["/etc/exports: no export: 'x': correct that file, because exportfs would reject it"],
        ),
        (
            host(
                others=[{"path": "/data1/share", "file": "/etc/exports"}] * 2
                + [{"path": "/srv", "file": "/etc/exports.d/site.exports"}]
            ),
            False,
            ["/etc/exports also exports a folder of nfs_server_exports: remove it there or here"],
        ),
        (
            host(mounted_by_nfs=["/data1/share"]),
            False,
            [
                "/data1/share is itself an NFS mount: unmount it, or set its server in nfs_client_mounts"
            ],
        ),
        (
            host(mounts={"/data1/share": "/", "/data2": "/data2"}),
            True,
            [
                "/data1/share is on the root file system: mount a disk there, or set nfs_server_require_mount to false"
            ],
        ),
        (host(mounts={"/data1/share": "/"}), False, []),
    ],
)
def test_conflicts(found, require_mount, problems):
    assert plan(found, require_mount=require_mount)["problems"] == problems


@pytest.mark.parametrize("path", ["/data1/share/", "//data1/share", "/data1/./share/."])
def test_another_spelling_of_an_exported_folder(path):
    """job-failures.md, section 2, class N."""
    found = host(others=[{"file": "/etc/exports", "path": path, "client": "*"}])
    assert len(plan(found)["problems"]) == 1
    found["others"][0]["path"] = "/data1/share"
    assert len(plan(found, exports=[{"path": path}])["problems"]) == 1


def test_before_the_host_is_read():
    told = plan(settings={"threads": 4}, require_mount=True)
    assert (told["problems"], told["settings_differ"], told["has_settings"]) == ([], False, True)


@pytest.mark.parametrize(
    "exports, anonymous, fsids",
    [
        ([SHARE, dict(SHARE, options=None), dict(SHARE, options=[])], [], []),
        ([dict(SHARE, options=["rw", "anonuid=1000"])], ["anonuid=1000"], []),
        ([dict(SHARE, options=["anongid=1000"], full_access=True)], ["anongid=1000"], []),
        ([dict(SHARE, options=["anonuid=1000"], full_access=False)], [], []),
        (
            [dict(SHARE, options=["fsid=1"]), dict(SHARE, options=["fsid=2"], full_access=False)],
            [],
            [],
        ),
        (
            [
                dict(SHARE, options=["fsid=0"]),
                dict(SHARE, options=["fsid=root"], full_access=False),
            ],
            [],
            ["fsid=0"],
        ),
        (
            [
                dict(SHARE, options=["fsid=AB-1"]),
                dict(SHARE, options=["rw", "fsid=ab-1"]),
                dict(SHARE, options=["fsid=ab-1"]),
            ],
            [],
            ["fsid=ab-1"],
        ),
    ],
)
def test_options_that_conflict_with_others(exports, anonymous, fsids):
    assert _nfs_server_plan.conflicts(exports) == {
        "anonymous": anonymous,
        "fsids": fsids,
    }
