"""Mounts of the kernel: of which file system a path is, also beside mount points with hostile
names.
"""

from __future__ import annotations

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils._mountinfo import (
    mount_of,
    parse_mountinfo,
)

MOUNTINFO = """22 28 0:21 / /sys rw,nosuid,nodev shared:7 - sysfs sysfs rw
28 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,errors=remount-ro
95 28 254:32 / /data1 rw,relatime shared:50 - ext4 /dev/vdc rw,quota,usrquota,grpquota
120 28 0:45 / /data1/share rw,relatime shared:60 - nfs4 10.0.0.11:/data1/share rw,vers=4.2,rsize=524288,hard,proto=tcp,timeo=600,sec=sys,local_lock=none,addr=10.0.0.11
121 28 0:46 / /mnt/with\\040blank rw,relatime - nfs nas:/vol\\040one rw,vers=3,soft
122 95 0:47 / /data1/share rw,relatime shared:61 - tmpfs tmpfs rw
"""


def test_mounts_with_options_of_mount_and_file_system():
    mounts = {mount["path"]: mount for mount in parse_mountinfo(MOUNTINFO)}
    assert mounts["/mnt/with blank"]["source"] == "nas:/vol one"
    assert mounts["/data1"]["own_options"] == ["rw", "relatime"]
    assert mounts["/data1"]["system_options"] == ["rw", "quota", "usrquota", "grpquota"]
    assert mounts["/data1"]["options"] == ["rw", "relatime", "quota", "usrquota", "grpquota"]
    escaped = "90 21 0:50 / /a\\040b\\011c\\012d\\134040 rw - ext4 /dev/x rw\n"
    assert parse_mountinfo(escaped)[0]["path"] == "/a b\tc\nd\\040"
    assert parse_mountinfo("half a line\n") == []


@pytest.mark.parametrize(
    "separator", "\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u2028\u2029\u3000", ids=ascii
)
def test_the_name_of_a_mount_breaks_no_line(separator):
    strange = "90 21 0:50 / /home/bob/%s rw - fuse.x bob rw\n" % separator
    mounts = parse_mountinfo(strange + MOUNTINFO)
    assert mounts[0]["path"] == "/home/bob/" + separator
    assert mounts[1:] == parse_mountinfo(MOUNTINFO)
    # Python makes it a line break when it reads the file.
    assert parse_mountinfo(strange.replace(separator, "\n") + MOUNTINFO) == mounts[1:]


@pytest.mark.parametrize(
    "path, source",
    [
        ("/data1/share/x", "tmpfs"),
        ("/data1/shared", "/dev/vdc"),
        ("/data", "/dev/vda"),
        ("/", "/dev/vda"),
    ],
)
def test_the_mount_that_a_path_lies_on_is_the_last_of_the_longest(path, source):
    assert mount_of(path, parse_mountinfo(MOUNTINFO))["source"] == source


def test_without_mounts_there_is_none():
    none = mount_of("/", [])
    assert set(none) == set(parse_mountinfo(MOUNTINFO)[0]) and not any(none.values())
