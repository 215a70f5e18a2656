# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits the local disk of a job by a project quota of its folder. For prolog and epilog, as root.

The file system has to be mounted with prjquota. setquota and xfs_quota are not needed: ext4 and
XFS both answer the kernel's general calls, quotactl(2) and ioctl_xfs_fsgetxattr(2).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct

import _files
from _mountinfo import mount_of, parse_mountinfo

#: IDs of projects: above those that a site would choose, one for each job.
FIRST_PROJECT = 1 << 30
_GET, _SET = 0x801C581F, 0x401C5820
# Flags, extent size, extents, project, extent size of copies, padding.
_ATTRIBUTES = "=5I8x"
#: New files and folders get the project of their folder.
_INHERIT = 0x200
# Limits of blocks in KiB and their use in bytes, limits and use of files, times, what is valid.
_QUOTA = "=8QI4x"
_BLOCK_LIMITS = 1
_SET_QUOTA = (0x800008 << 8) | 2


def project_of(job: str) -> int:
    return FIRST_PROJECT + int(job) % FIRST_PROJECT


def device_of(path: str, text: str) -> str:
    """Return the device of the file system of a path, from the text of /proc/self/mountinfo.

    It is empty if the file system is not mounted with prjquota.
    """
    mount = mount_of(path, parse_mountinfo(text))
    usable = {"prjquota", "pquota"} & set(mount["system_options"])
    return mount["source"] if usable else ""


def mark(folder: str, project: int) -> None:
    """Give a folder a project, which its new content inherits."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = struct.unpack(
            _ATTRIBUTES, fcntl.ioctl(handle, _GET, bytes(struct.calcsize(_ATTRIBUTES)))
        )
        requested = (found[0] | _INHERIT,) + found[1:3] + (project,) + found[4:]
        fcntl.ioctl(handle, _SET, struct.pack(_ATTRIBUTES, *requested))
    finally:
        os.close(handle)


def limit_project(device: str, project: int, size: int) -> None:
    """Set the limit of a project in bytes. 0 removes it."""
    kibibytes = size // 1024
    quota = struct.pack(_QUOTA, kibibytes, kibibytes, 0, 0, 0, 0, 0, 0, _BLOCK_LIMITS)
    library = ctypes.CDLL(None, use_errno=True)
    if library.quotactl(_SET_QUOTA, device.encode(), project, quota):
        number = ctypes.get_errno()
        raise OSError(
            number,
            "the quota of project %d on %s cannot be set: %s"
            % (project, device, os.strerror(number)),
        )


def begin(folder: str, job: str, size: int) -> None:
    """Limit the folder of a job to a size in bytes, before the job has written into it."""
    device = device_of(os.path.realpath(folder), _files.read("/proc/self/mountinfo"))
    if not device:
        raise OSError(
            (
                "%s is not on a file system that is mounted with prjquota, which "
                "job_container_job_gib needs"
            )
            % folder
        )
    limit_project(device, project_of(job), size)
    mark(folder, project_of(job))


def finish(storage: str, job: str) -> None:
    """Remove the limit of a job that has ended, whose files are removed."""
    device = device_of(os.path.realpath(storage), _files.read("/proc/self/mountinfo"))
    if device:
        limit_project(device, project_of(job), 0)
