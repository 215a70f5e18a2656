# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Filters nfs_mounts and shared_storage_plan: exports, mounts and folders."""

from __future__ import annotations

from ansible_collections.trainyard.gpu.plugins.filter.nfs_mounts import nfs_mounts
from ansible_collections.trainyard.gpu.plugins.filter.shared_storage_plan import shared_storage_plan

MEMBERS = [{"name": "a", "address": "10.0.0.11"}, {"name": "b", "address": "10.0.0.12"}]
GROUPS = [{"name": "vision", "gid": 3001}, {"name": "speech", "gid": 3002, "quota_mib": 10}]
USERS = [{"name": "anna", "uid": 2001, "groups": ["vision", "speech"]}, {"name": "ben", "uid": 2002}]
TREES = [{"path": "/mnt/user", "of": "users", "quota_mib": 5}, {"path": "/mnt/share/", "of": "groups"}, {"path": "/mnt2/user", "of": "users", "only": ["vision"]}]


def test_a_member_is_mounted_by_its_address_and_not_by_itself():
    mounts = [{"server": "a", "path": "/data1/share/"}]
    assert nfs_mounts(mounts, "a", MEMBERS) == []
    mount = nfs_mounts(mounts, "b", MEMBERS, ["hard"], "4", 1)[0]
    assert (mount["source"], mount["target"], mount["unit"]) == ("10.0.0.11:/data1/share", "/data1/share", "data1-share.mount")
    assert mount["options"] == ["_netdev", "nofail", "hard", "vers=4", "retry=10080"]
    # By its address it is the same host.
    assert nfs_mounts([{"server": "10.0.0.12", "path": "/x"}], "b", MEMBERS) == []


def test_a_server_outside_keeps_its_name_and_its_options():
    mount = nfs_mounts([{"server": "fd00::5", "path": "/", "target": "/data1", "options": ["nfsvers=4.1", "nconnect=8", "bg"]}], "b", MEMBERS, ["hard"], "4", 2)[0]
    assert (mount["source"], mount["target"]) == ("[fd00::5]:/", "/data1")
    assert mount["options"] == ["_netdev", "nofail", "nfsvers=4.1", "nconnect=8", "bg"]


def test_a_path_is_written_as_the_kernel_shows_it():
    mount = nfs_mounts([{"server": "nas", "path": "//vol/./a/", "target": "/data1/"}], "b")[0]
    assert (mount["source"], mount["target"], mount["unit"]) == ("nas:/vol/a", "/data1", "data1.mount")


def test_a_version_in_the_options_goes_before():
    for option in ("vers=4.1", "nfsvers=3", "v4.2", "v3"):
        assert nfs_mounts([{"server": "nas", "path": "/x"}], "b", [], ["hard", option], "4")[0]["options"] == ["_netdev", "nofail", "hard", option, "retry=10080"]
    assert "vers=4" in nfs_mounts([{"server": "nas", "path": "/x"}], "b", [], ["hard", "minorversion=1"], "4")[0]["options"]


def test_share_is_served_and_mounted():
    plan = shared_storage_plan("/data1/share", "a")
    assert plan == {"exports": [{"path": "/data1/share", "full_access": True}], "mounts": [{"server": "a", "path": "/data1/share"}],
                    "folders": [], "quotas": [], "accounts": [], "homes": ""}


def test_what_the_site_mounts_itself_is_neither_served_nor_mounted():
    for target in ("/data1/share", "/data1", "/data1/"):
        plan = shared_storage_plan("/data1/share", "a", mounts=[{"server": "nas", "path": "/vol", "target": target}])
        assert plan["exports"] == [] and len(plan["mounts"]) == 1
    assert shared_storage_plan("/data1/share", "a", mounts=[{"server": "nas", "path": "/data1/sha"}])["exports"] != []


def test_everyone_has_a_folder():
    plan = shared_storage_plan("/data1/share", "a", TREES, USERS, GROUPS, exports=[{"path": "/mnt/user", "options": ["rw", "all_squash"]}])
    assert [(export["path"], export.get("full_access")) for export in plan["exports"]] == [
        ("/mnt/user", None), ("/data1/share", True), ("/mnt/share", False), ("/mnt2/user", False)]
    folders = {folder["path"]: (folder.get("owner"), folder.get("group"), folder.get("mode")) for folder in plan["folders"]}
    assert folders == {"/mnt/user": (None, None, None), "/mnt/user/anna": (2001, 3001, "0700"), "/mnt/user/ben": (2002, 2002, "0700"),
                       "/mnt/share": (None, None, None), "/mnt/share/vision": (0, 3001, "2770"), "/mnt/share/speech": (0, 3002, "2770"),
                       "/mnt2/user": (None, None, None), "/mnt2/user/anna": (2001, 3001, "0700")}
    assert [(quota["path"], quota["kind"], quota["id"], quota["limit_mib"]) for quota in plan["quotas"]] == [
        ("/mnt/user/anna", "user", 2001, 5), ("/mnt/user/ben", "user", 2002, 5), ("/mnt/share/speech", "group", 3002, 10)]
    assert plan["homes"] == "/mnt/user"


def test_a_tree_in_the_share_is_shared_with_it():
    plan = shared_storage_plan("/data1/share", "a", [{"path": "/data1/share/user", "of": "users"}], USERS, GROUPS)
    assert [export["path"] for export in plan["exports"]] == ["/data1/share"]
