# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Filters of role shared_storage: exports, mounts, folders, and whether the hosts share them."""

from __future__ import annotations

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils._shared_storage_plan import (
    decide_shared_storage_plan,
    id_problems as shared_storage_id_problems,
    own_groups as shared_storage_own_groups,
    shared_storage_verdict,
)

MEMBERS = [{"name": "a", "address": "10.0.0.11"}, {"name": "b", "address": "10.0.0.12"}]
GROUPS = [{"name": "vision", "gid": 3001}, {"name": "speech", "gid": 3002, "quota_mib": 10}]
USERS = [
    {"name": "anna", "uid": 2001, "groups": ["vision", "speech"]},
    {"name": "ben", "uid": 2002},
]
TREES = [
    {"path": "/mnt/user", "of": "users", "quota_mib": 5},
    {"path": "/mnt/share/", "of": "groups"},
    {"path": "/mnt2/user", "of": "users", "only": ["vision"]},
]


def shared_storage_plan(share, storage, *people, host="", written=None, **more):
    requested = {"share": share, "storage": storage, **more}
    requested.update(zip(("trees", "users", "groups"), people))
    return decide_shared_storage_plan({"host": host, "written": written or {}}, requested)


def test_share_is_served_and_mounted():
    plan = shared_storage_plan("/data1/share", "a")
    assert {
        name: plan[name] for name in ("exports", "mounts", "folders", "quotas", "accounts", "homes")
    } == {
        "exports": [{"path": "/data1/share", "full_access": True}],
        "mounts": [{"server": "a", "path": "/data1/share"}],
        "folders": [],
        "quotas": [],
        "accounts": [],
        "homes": "",
    }


def test_what_the_site_mounts_itself_is_neither_served_nor_mounted():
    for target in ("/data1/share", "/data1", "/data1/"):
        plan = shared_storage_plan(
            "/data1/share", "a", mounts=[{"server": "nas", "path": "/vol", "target": target}]
        )
        assert plan["exports"] == [] and len(plan["mounts"]) == 1
    assert (
        shared_storage_plan("/data1/share", "a", mounts=[{"server": "nas", "path": "/data1/sha"}])[
            "exports"
        ]
        != []
    )


def test_everyone_has_a_folder():
    plan = shared_storage_plan(
        "/data1/share",
        "a",
        TREES,
        USERS,
        GROUPS,
        exports=[{"path": "/mnt/user", "options": ["rw", "all_squash"]}],
    )
    assert [(export["path"], export.get("full_access")) for export in plan["exports"]] == [
        ("/mnt/user", None),
        ("/data1/share", True),
        ("/mnt/share", False),
        ("/mnt2/user", False),
    ]
    folders = {
        folder["path"]: (folder.get("owner"), folder.get("group"), folder.get("mode"))
        for folder in plan["folders"]
    }
    assert folders == {
        "/mnt/user": (None, None, None),
        "/mnt/user/anna": (2001, 3001, "0700"),
        "/mnt/user/ben": (2002, 2002, "0700"),
        "/mnt/share": (None, None, None),
        "/mnt/share/vision": (0, 3001, "2770"),
        "/mnt/share/speech": (0, 3002, "2770"),
        "/mnt2/user": (None, None, None),
        "/mnt2/user/anna": (2001, 3001, "0700"),
    }
    assert [
        (quota["path"], quota["kind"], quota["id"], quota["limit_mib"]) for quota in plan["quotas"]
    ] == [
        ("/mnt/user/anna", "user", 2001, 5),
        ("/mnt/user/ben", "user", 2002, 5),
        ("/mnt/share/speech", "group", 3002, 10),
    ]
    assert plan["homes"] == "/mnt/user"


@pytest.mark.parametrize(
    "host, login_hosts, keys",
    [
        ("a", ["a"], {"anna": ["one", "two"]}),
        ("b", ["a", "b"], {"anna": ["one", "two"]}),
        ("b", ["a"], {}),
        ("a", [], {}),
    ],
)
def test_keys_are_for_login_hosts_only(host, login_hosts, keys):
    users = [
        dict(USERS[0], public_keys=["one", "two"]),
        dict(USERS[1], public_keys=[]),
        {"name": "eve", "uid": 2003, "public_keys": None},
    ]
    plan = shared_storage_plan(
        "/data1/share", "a", TREES, users, GROUPS, host=host, login_hosts=login_hosts
    )
    assert plan["people_keys"] == keys
    # The accounts are the same with and without keys.
    assert (
        plan["accounts"][:2]
        == shared_storage_plan("/data1/share", "a", TREES, USERS, GROUPS)["accounts"]
    )


def test_a_tree_in_the_share_is_shared_with_it():
    plan = shared_storage_plan(
        "/data1/share", "a", [{"path": "/data1/share/user", "of": "users"}], USERS, GROUPS
    )
    assert [export["path"] for export in plan["exports"]] == ["/data1/share"]


def test_folders_of_people_have_no_entry_of_a_squashed_root():
    told_of = {
        backend: shared_storage_plan(
            "/data1/share", "a", TREES, USERS, GROUPS, backend=backend, anonymous_uid=65000
        )["folders"]
        for backend in ("nfs", "existing")
    }
    assert {entry["without_uid"] for entry in told_of["nfs"]} == {65000}
    assert not any("without_uid" in entry for entry in told_of["existing"])


# --- the folder of one host -----------------------------------------------------------------------------------------------

NAS = {"server": "nas", "path": "/vol", "target": "/data1"}
NFS = {"path": "/data1/share", "source": "10.0.0.11:/data1/share", "type": "nfs4"}


def told(host="b", written=None, **more):
    return shared_storage_plan(
        "/data1/share", "a", members=MEMBERS, host=host, written=written, **more
    )


def written(cause="", real_path="/data1/share", **mount):
    return {
        "cause": cause,
        "error": "[Errno 1] x" if cause else "",
        "mount": dict(NFS, **mount),
        "real_path": real_path,
        "proof": {},
        "space": {},
        "speed": {},
    }


@pytest.mark.parametrize(
    "host, more, expected",
    [
        ("a", {}, (True, "nfs-kernel-server", "exportfs")),
        ("b", {}, (False, "nfs-common", "mount.nfs4")),
        ("a", {"backend": "existing"}, (False, "", "mount.nfs4")),
        ("b", {"backend": "existing"}, (False, "", "mount.nfs4")),
        # Another server has the folder.
        ("a", {"mounts": [NAS]}, (False, "nfs-common", "mount.nfs4")),
        (
            "a",
            {"mounts": [NAS], "exports": [{"path": "/data2"}]},
            (True, "nfs-kernel-server", "exportfs"),
        ),
    ],
)
def test_packages_of_a_host(host, more, expected):
    plan = told(host, **more)
    assert (plan["serves"], plan["package"], plan["program"]) == expected


@pytest.mark.parametrize(
    "host, more, expected",
    [
        ("b", {}, {"source": "10.0.0.11:/data1/share", "types": ["nfs4"]}),
        # The server has its own disk there.
        ("a", {}, {}),
        ("b", {"backend": "existing"}, {}),
        ("a", {"mounts": [NAS]}, {"source": "nas:/vol", "types": ["nfs4"]}),
        (
            "b",
            {"mounts": [dict(NAS, target="/data1/sha")]},
            {"source": "10.0.0.11:/data1/share", "types": ["nfs4"]},
        ),
        (
            "b",
            {"mounts": [dict(NAS, options=["hard", "nfsvers=3"])]},
            {"source": "nas:/vol", "types": ["nfs"]},
        ),
        (
            "b",
            {"mounts": [dict(NAS, options=["hard", "nfsvers=4.1"])]},
            {"source": "nas:/vol", "types": ["nfs4"]},
        ),
        (
            "b",
            {"client": {"options": ["hard"], "version": "3"}},
            {"source": "10.0.0.11:/data1/share", "types": ["nfs"]},
        ),
        # Client and server agree on a version.
        (
            "b",
            {"client": {"options": ["hard"], "version": ""}},
            {"source": "10.0.0.11:/data1/share", "types": ["nfs", "nfs4"]},
        ),
    ],
)
def test_mount_that_must_contain_the_folder(host, more, expected):
    assert told(host, **more)["expected"] == expected


@pytest.mark.parametrize(
    "host, found, more, problem",
    [
        ("b", written(), {}, ""),
        ("b", written(source="10.0.0.11:/data1/share/"), {}, ""),
        ("b", written("missing"), {}, "it does not exist ([Errno 1] x)"),
        ("b", written("no_directory"), {}, "it is not a directory ([Errno 1] x)"),
        ("b", written("no_space"), {}, "its storage or quota is full ([Errno 1] x)"),
        ("b", written("not_writable"), {}, "root cannot write there ([Errno 1] x)"),
        ("b", written("no_answer"), {}, "its server does not answer ([Errno 1] x)"),
        (
            "b",
            written(source="nas:/vol"),
            {},
            "it is nas:/vol (nfs4), not 10.0.0.11:/data1/share with nfs4",
        ),
        (
            "b",
            written(type="nfs"),
            {},
            "it is 10.0.0.11:/data1/share (nfs), not 10.0.0.11:/data1/share with nfs4",
        ),
        (
            "b",
            written(type="ext4"),
            {"client": {"options": ["hard"], "version": ""}},
            "it is 10.0.0.11:/data1/share (ext4), not 10.0.0.11:/data1/share with nfs or nfs4",
        ),
        (
            "b",
            written(path="/", source="/dev/sda1", type="ext4"),
            {"backend": "existing"},
            "it is on the root file system of the host, so nothing is mounted there",
        ),
        (
            "b",
            written(path="/", source="/dev/sda1", type="ext4"),
            {"backend": "existing", "require_mount": False},
            "",
        ),
        # The server is exempt.
        ("a", written(path="/", source="/dev/sda1", type="ext4"), {}, ""),
        (
            "a",
            written(real_path="/srv/disk/share"),
            {},
            "it is a link to /srv/disk/share, which is not mounted in the training containers",
        ),
        ("a", written(real_path="/data1"), {}, ""),
        # Not written yet, and a task that was skipped.
        ("b", None, {}, ""),
        ("b", {"skipped": True}, {}, ""),
    ],
)
def test_folder_of_a_host(host, found, more, problem):
    assert told(host, found, **more)["problem"] == problem


def test_what_to_do_about_the_folder():
    root_disk = (
        "; a folder of the root file system is accepted with shared_storage_require_mount: false"
    )
    assert told("b", written("no_space"))["fix"] == "Free space on it, or raise the quota"
    assert (
        told("b", written("no_answer"))["fix"] == "Start the server, or check the connection to it"
    )
    assert told("b", written("not_writable"))["fix"].startswith(
        "Mount it for writing. If its server maps root to another user (root_squash), ask"
    )
    assert (
        told("b", written("missing"))["fix"]
        == "Mount it on this host, or correct cluster_share_path"
    )
    assert (
        told("b", written(source="nas:/vol"))["fix"]
        == "Mount it on this host, or correct cluster_share_path"
    )
    assert (
        told("b", written(path="/"), backend="existing")["fix"]
        == "Mount it on this host, or correct cluster_share_path" + root_disk
    )


# --- all hosts ------------------------------------------------------------------------------------------------------------


def seen(name, cause="", seconds=0.1):
    return {"name": name, "cause": cause, "seconds": seconds}


def test_every_host_reads_the_others_files():
    verdict = shared_storage_verdict(
        {
            "a": [seen("b"), seen("c")],
            "b": [seen("a"), seen("c", seconds=2.5)],
            "c": [seen("a"), seen("b")],
        }
    )
    assert (
        verdict["verdict"],
        verdict["broken"],
        {name: len(those) for name, those in verdict["pairs"].items()},
    ) == ("pass", [], {"a": 2, "b": 2, "c": 2})
    assert verdict["pairs"]["b"][1] == {"writer": "c", "reader": "b", "cause": "", "seconds": 2.5}


def test_a_host_that_does_not_see_a_file():
    """A folder of each host's own, and a mount of another server on one of them."""
    local = shared_storage_verdict({"a": [seen("b", "missing")], "b": [seen("a", "missing")]})
    assert local["verdict"] == "fail" and [
        (pair["writer"], pair["reader"]) for pair in local["broken"]
    ] == [("b", "a"), ("a", "b")]
    one = shared_storage_verdict({"a": [seen("b")], "b": [seen("a", "differs")]})
    assert one["verdict"] == "fail" and one["broken"] == [
        {"writer": "a", "reader": "b", "cause": "differs", "seconds": 0.1}
    ]


def test_one_host_alone_verifies_nothing():
    assert shared_storage_verdict({"b": []}) == {
        "pairs": {"b": []},
        "broken": [],
        "verdict": "not_evaluated",
        "mounted": [],
    }


def test_mounts_that_are_compared():
    assert shared_storage_verdict(
        {}, mounts={"a": NFS, "b": {"path": "/", "source": "/dev/sda1", "type": "ext4"}}
    )["mounted"] == [
        "a has 10.0.0.11:/data1/share (nfs4) at /data1/share.",
        "b has /dev/sda1 (ext4) at /.",
    ]


def test_users_without_groups_get_one_of_their_own():
    users = [
        {"name": "anna", "uid": 2001},
        {"name": "ben", "uid": 2002, "groups": []},
        {"name": "carla", "uid": 2003, "groups": None},
        {"name": "dora", "uid": 2004, "groups": ["vision"]},
    ]
    assert shared_storage_own_groups(users) == [
        {"name": "anna", "gid": 2001},
        {"name": "ben", "gid": 2002},
        {"name": "carla", "gid": 2003},
    ]
    assert shared_storage_own_groups([]) == []
    groups = [{"name": "ben", "gid": 3000}, {"name": "vision", "gid": 2003}]
    assert shared_storage_own_groups(users, groups) == [{"name": "carla", "gid": 2003}]
    assert shared_storage_own_groups(users, groups, "name") == [{"name": "ben", "gid": 2002}]
    assert shared_storage_own_groups(users, []) == []


def test_ids_of_former_people():
    recorded = {
        "a": {"users": {"2002": "ben"}, "groups": {"3001": "vision"}},
        "b": {"users": {"2002": "ben"}},
        "c": {},
    }
    users = [{"name": "dora", "uid": 2002, "groups": ["speech"]}, {"name": "anna", "uid": 3001}]
    groups = [{"name": "speech", "gid": 3002}]
    user, group = shared_storage_id_problems(users, groups, recorded)
    assert (
        "shared_storage_users: user 'dora' has ID 2002 of former user 'ben' (recorded on a, b)"
        in user
    )
    assert (
        "shared_storage_groups: group 'anna' has ID 3001 of former group 'vision' (recorded on a)"
        in group
    )
    assert "add 2002 to shared_storage_reused_ids" in user
    assert shared_storage_id_problems(users, groups, recorded, ["2002", 3001]) == []
    assert (
        shared_storage_id_problems(
            [{"name": "ben", "uid": 2002, "groups": ["speech"]}], groups, recorded
        )
        == []
    )
