# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host has for jobs in containers, from text."""

from __future__ import annotations

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _job_container as parsers
from ansible_collections.trainyard.gpu.plugins.module_utils._mountinfo import parse_mountinfo

# Of a host that docker has started, shortened: / on overlay, a volume, and the masks of /proc.
DOCKER = """\
584 500 0:60 / / rw,relatime - overlay overlay rw,lowerdir=/a
585 584 0:123 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
586 585 0:123 /sys /proc/sys ro,nosuid,nodev,noexec,relatime - proc proc rw
587 585 0:124 / /proc/acpi ro,relatime - tmpfs tmpfs ro
588 584 254:0 /vol /var/lib/trainyard/containers rw,relatime master:1 - ext4 /dev/vda rw
589 584 0:61 / /data1/my\\040share rw - nfs4 10.0.0.1:/share rw
"""
MACHINE = """\
22 29 0:21 / /proc rw,nosuid - proc proc rw
29 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
31 22 0:30 / /proc/sys/fs/binfmt_misc rw,relatime shared:9 - autofs systemd-1 rw
40 22 0:50 / /proc/fs/nfsd rw - nfsd nfsd rw
"""


@pytest.mark.parametrize(
    "path, kind",
    [
        ("/", "overlay"),
        ("/var/lib/trainyard", "overlay"),
        ("/var/lib/trainyard/containers/images", "ext4"),
        ("/var/lib/trainyard/containers2", "overlay"),
        ("/data1/my share/x", "nfs4"),
    ],
)
def test_file_system(path, kind):
    assert parsers.file_system_of(path, DOCKER) == kind


def test_mounts():
    assert parsers.is_mount("/data1/my share", DOCKER) and not parsers.is_mount("/data1", DOCKER)
    assert parsers.file_system_of("/", "") == "" and parsers.file_system_of("/", "damaged") == ""


@pytest.mark.parametrize(
    "path, found",
    [("/scratch/containers", True), ("/scratch2", False), ("/fast/x", True), ("/", False)],
)
def test_project_quotas(path, found):
    text = (
        "21 1 8:1 / / rw - ext4 /dev/sda1 rw,errors=remount-ro\n22 21 8:2 / /scratch rw,noatime - xfs /dev/sdb rw,attr2,prjquota\n"
        "23 21 8:3 / /fast rw - ext4 /dev/sdc rw,prjquota\n"
    )
    assert parsers.has_project_quota(path, text) is found


def test_masks():
    assert (
        parsers.masked_paths(DOCKER) == ["/proc/acpi", "/proc/sys"]
        and parsers.masked_paths(MACHINE) == []
    )


@pytest.mark.parametrize(
    "separator", "\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u2028\u2029\u3000", ids=ascii
)
def test_the_name_of_a_mount_changes_nothing(separator):
    """People choose the names of their own mount points."""
    # In an earlier release, the name of a mount looked like another mount.
    forged = "x%s1 2 0:3 / /proc/forged rw".replace(" ", "\x1f") % separator
    strange = "90 21 0:50 / /home/bob/%s rw - fuse.x bob rw\n" % forged
    # As Python reads it: a carriage return is a line break.
    for text in (strange, strange.replace("\r", "\n")):
        found = text.join(DOCKER.splitlines(keepends=True))
        assert parse_mountinfo(DOCKER) == [
            mount for mount in parse_mountinfo(found) if not mount["path"].startswith("/home/bob")
        ]
        assert parsers.masked_paths(found) == parsers.masked_paths(DOCKER)
        assert parsers.is_mount("/data1/my share", found)


def test_images_of_the_store():
    text = '[{"id": "ab", "names": ["localhost/a:1"], "layer": "x"}, {"id": "cd"}]'
    assert (
        parsers.parse_store(text)
        == [{"id": "ab", "names": ["localhost/a:1"]}, {"id": "cd", "names": []}]
        and parsers.parse_store("") == []
    )


@pytest.mark.parametrize("text", ["[{", '{"a": 1}', '[{"names": []}]', "[1]"])
def test_a_damaged_store_is_shown(text):
    with pytest.raises(parsers.ParseError, match="images.json"):
        parsers.parse_store(text)


def test_images_of_docker():
    assert parsers.parse_docker_images("a:1 sha256:%s\n" % ("0" * 64)) == {
        "a:1": "sha256:" + "0" * 64
    }
    with pytest.raises(parsers.ParseError, match="docker image"):
        parsers.parse_docker_images("a:1 Cannot connect\n")


def test_numbers_of_devices():
    assert [
        parsers.device_number("/dev/nvidia" + end) for end in ("0", "12", "ctl", "-uvm", "-caps")
    ] == [0, 12, None, None, None]
