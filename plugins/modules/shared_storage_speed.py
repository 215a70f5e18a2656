#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: shared_storage_speed
short_description: Measure the read and write speed of a shared folder
version_added: "0.2.0"
description:
  - Writes one large file and many small ones into C(.trainyard/speed) of the folder, reads them
    back, and removes them.
  - The write time includes the sync to the storage (C(fsync) of the large file, C(syncfs) after the
    small ones). Before reading, the host's page cache is dropped. A server may still have the files
    in its own cache.
  - The measurement is kept in O(record) on the host. The folder has no changes afterwards, so the
    module never reports a change.
options:
  path:
    description: Absolute path of the shared folder.
    type: path
    required: true
  name:
    description: Name of this host, for the names of its files.
    type: str
    required: true
  large_mib:
    description: Size of the large file in MiB.
    type: int
    default: 64
  small_files:
    description: Number of small files, of 4 KiB each.
    type: int
    default: 100
  record:
    description: JSON file on the host for the measurement. A missing parent folder is created.
    type: path
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.internal
attributes:
  check_mode:
    support: partial
    details:
      - Nothing is written in check mode, so nothing is measured.
  diff_mode:
    support: none
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Measure the shared folder, one host at a time
  trainyard.gpu.shared_storage_speed:
    path: /data1/share
    name: "{{ inventory_hostname }}"
  throttle: 1
  register: measured
"""

RETURN = r"""
speed:
  description: The measurement; empty in check mode, or if the folder has too little space.
  returned: success
  type: dict
  contains:
    large_mib:
      description: Size of the large file in MiB.
      type: int
    small_files:
      description: Number of small files.
      type: int
    write_mib_per_second:
      description: Write speed of the large file in MiB/s.
      type: float
    read_mib_per_second:
      description: Read speed of the large file in MiB/s.
      type: float
    small_write_files_per_second:
      description: Files of 4 KiB written per second.
      type: float
    small_read_files_per_second:
      description: Files of 4 KiB read per second.
      type: float
    measured:
      description: Time of the measurement in UTC.
      type: str
"""

import ctypes
import json
import os
import shutil
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._mountinfo import (
    mount_of,
    parse_mountinfo,
)

BLOCK = 2**20
SMALL = 4096


def sync_all(folder):
    """Sync the folder's file system to the storage."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(handle) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), folder)
    finally:
        os.close(handle)


def forget(path):
    """Drop a file from the host's page cache."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def measure(folder, large_mib, small_files):
    large = os.path.join(folder, "large")
    # Random data, because storages do not write zeros or repeated blocks.
    blocks = [os.urandom(BLOCK) for dummy in range(min(large_mib, 8))]
    began = time.monotonic()
    with open(large, "wb", buffering=0) as file:
        for index in range(large_mib):
            file.write(blocks[index % len(blocks)])
        os.fsync(file.fileno())
    written = time.monotonic() - began
    forget(large)
    began = time.monotonic()
    with open(large, "rb", buffering=0) as file:
        while file.read(BLOCK):
            pass
    read = time.monotonic() - began

    names = [os.path.join(folder, "small.%d" % index) for index in range(small_files)]
    began = time.monotonic()
    for index, name in enumerate(names):
        with open(name, "wb", buffering=0) as file:
            file.write(blocks[index % len(blocks)][:SMALL])
    sync_all(folder)
    small_written = time.monotonic() - began
    for name in names:
        forget(name)
    began = time.monotonic()
    for name in names:
        with open(name, "rb", buffering=0) as file:
            file.read()
    small_read = time.monotonic() - began
    return {
        "large_mib": large_mib,
        "small_files": small_files,
        "write_mib_per_second": round(large_mib / written, 1),
        "read_mib_per_second": round(large_mib / read, 1),
        "small_write_files_per_second": round(small_files / small_written, 1),
        "small_read_files_per_second": round(small_files / small_read, 1),
        "measured": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def main():
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "name": {"type": "str", "required": True},
            "large_mib": {"type": "int", "default": 64},
            "small_files": {"type": "int", "default": 100},
            "record": {"type": "path"},
        },
        supports_check_mode=True,
    )
    params = module.params
    for name in ("large_mib", "small_files"):
        if params[name] < 1:
            module.fail_json(msg="%s: '%d' is too small; set 1 or more" % (name, params[name]))
    if module.check_mode:
        module.exit_json(changed=False, speed={})
    folder = os.path.join(params["path"], ".trainyard", "speed", params["name"])
    try:
        space = os.statvfs(params["path"])
        if space.f_bavail * space.f_frsize < 2 * params["large_mib"] * BLOCK:
            module.exit_json(changed=False, speed={})
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        try:
            speed = measure(folder, params["large_mib"], params["small_files"])
        finally:
            shutil.rmtree(folder)
            for parent in (os.path.dirname(folder), os.path.dirname(os.path.dirname(folder))):
                if not os.listdir(parent):
                    os.rmdir(parent)
        if params["record"]:
            with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
                mount = mount_of(os.path.realpath(params["path"]), parse_mountinfo(file.read()))
            os.makedirs(os.path.dirname(params["record"]), exist_ok=True)
            with open(params["record"], "w", encoding="utf-8") as file:
                json.dump(
                    {
                        "mount": {key: mount[key] for key in ("path", "source", "type")},
                        "speed": speed,
                    },
                    file,
                    indent=2,
                    sort_keys=True,
                )
                file.write("\n")
    except OSError as error:
        module.fail_json(
            msg="%s: %s. Check on this host that it is mounted and writable, and run this again"
            % (error.filename or params["path"], error.strerror)
        )
    module.exit_json(changed=False, speed=speed)


if __name__ == "__main__":
    main()
