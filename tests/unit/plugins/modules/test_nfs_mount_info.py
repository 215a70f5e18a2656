"""Mounts of the site in nfs_mount_info, with a fake /etc/fstab and fake systemd units."""

from __future__ import annotations

import pytest

from ansible_collections.trainyard.gpu.plugins.modules import nfs_mount_info

FSTAB = """# nas:/old /data1/old nfs defaults 0 0
UUID=1 / ext4 defaults 0 1
nas:/share /data1/share/ nfs4 hard,noauto 0 0
nas:/blank /mnt/with\\040blank nfs hard 0 0
10.0.0.11:/ours /data1/ours nfs hard,x-trainyard.placed 0 0
short line
"""


@pytest.fixture(autouse=True)
def _fstab(monkeypatch):
    monkeypatch.setattr(
        nfs_mount_info, "read_text", lambda path: {"/etc/fstab": FSTAB}.get(path, "")
    )


@pytest.mark.parametrize(
    "target, expected",
    [
        ("/data1/share", "/etc/fstab"),
        ("/mnt/with blank", "/etc/fstab"),
        ("/", "/etc/fstab"),
        ("/data1/ours", ""),
        ("/data1/old", ""),
        ("/data1", ""),
    ],
)
def test_lines_in_fstab(target, expected):
    # What systemd makes of fstab is no file of its own.
    assert (
        nfs_mount_info.configured_in(
            target, [{"FragmentPath": "/run/systemd/generator/x.mount"}], []
        )
        == expected
    )


def test_units(tmp_path):
    unit = tmp_path / "data1-x.mount"
    found = [{"FragmentPath": str(unit)}, {"FragmentPath": ""}, {}]
    # systemd may remember one whose file is gone.
    assert nfs_mount_info.configured_in("/data1/x", found, []) == ""
    unit.write_text("[Mount]\n", encoding="utf-8")
    assert nfs_mount_info.configured_in("/data1/x", found, []) == str(unit)
    assert nfs_mount_info.configured_in("/data1/x", found, [{"files": [str(unit)]}]) == ""


def test_whether_others_need_nfs(monkeypatch):
    ours = [{"target": "/data1/ours"}]
    assert nfs_mount_info.in_use([], ours)
    without = (
        "UUID=1 / ext4 defaults 0 1\n10.0.0.11:/ours /data1/ours nfs hard,x-trainyard.placed 0 0\n"
    )
    monkeypatch.setattr(nfs_mount_info, "read_text", lambda path: without)
    assert not nfs_mount_info.in_use(
        [{"path": "/data1/ours", "type": "nfs4"}, {"path": "/", "type": "ext4"}], ours
    )
    assert nfs_mount_info.in_use([{"path": "/mnt", "type": "nfs"}], ours)


def test_mounts_of_one_server_share_their_connections():
    def mount(path, *options):
        return {"path": path, "type": "nfs4", "options": ["rw", *options]}

    one, other = mount("/a", "vers=4.1", "addr=10.0.0.1"), mount("/b", "vers=4.1", "addr=10.0.0.1")
    assert nfs_mount_info.shares_connections(one, [one, other])
    for different in (
        mount("/b", "vers=4.2", "addr=10.0.0.1"),
        mount("/b", "vers=4.1", "addr=10.0.0.2"),
        {"path": "/b", "type": "ext4", "options": ["rw"]},
    ):
        assert not nfs_mount_info.shares_connections(one, [one, different])
