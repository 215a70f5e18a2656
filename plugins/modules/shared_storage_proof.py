#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: shared_storage_proof
short_description: Prove that hosts see each other's files in a shared folder
version_added: "0.1.0"
description:
  - Run with V(write) on every host, then with V(read) on every host, then with V(remove) on one of them.
    In between the files lie in C(.trainyard/proof) of the folder; afterwards nothing is left.
  - Between two hosts V(remove) can be spared with O(take), as each file has one reader.
  - A file that can't be seen is a result, not a failure.
  - It leaves the folder as it was, so it never reports a change.
options:
  path:
    description: Absolute path of the shared folder on this host.
    type: path
    required: true
  step:
    description:
      - V(write) tells what is mounted at O(path), and writes this host's file and syncs it to the storage.
      - V(read) looks for the files of the others.
      - V(remove) deletes what V(write) has left, of all hosts.
    type: str
    choices: [write, read, remove]
    required: true
  name:
    description: Name of this host, for V(write).
    type: str
  files:
    description: What V(write) has returned on the other hosts, for V(read).
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the host that wrote it.
        type: str
        required: true
      file:
        description: Name of its file.
        type: str
        required: true
      checksum:
        description: SHA-256 of its content in hexadecimal.
        type: str
        required: true
  take:
    description: Whether V(read) deletes what it has seen as it should be. For files that nobody else is to read. Not in check mode.
    type: bool
    default: false
  timeout:
    description: Longest time in seconds to wait for files that a storage is slow to show.
    type: int
    default: 10
extends_documentation_fragment:
  - trainyard.gpu.attributes
attributes:
  check_mode:
    support: partial
    details:
      - Nothing is written or removed, so there is nothing to read; what is mounted is told all the same.
  diff_mode:
    support: none
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Write a file on every host
  trainyard.gpu.shared_storage_proof:
    path: /data1/share
    step: write
    name: "{{ inventory_hostname }}"
  register: written

- name: Read the other hosts' files
  trainyard.gpu.shared_storage_proof:
    path: /data1/share
    step: read
    files: "{{ ansible_play_hosts | reject('eq', inventory_hostname) | map('extract', hostvars, ['written', 'proof']) }}"
  register: seen

- name: Remove them
  trainyard.gpu.shared_storage_proof:
    path: /data1/share
    step: remove
  run_once: true
"""

RETURN = r"""
cause:
  description:
    - What is wrong with the folder. V(missing), V(no_directory), V(not_writable) or V(no_space); empty where nothing is.
  returned: when O(step=write)
  type: str
error:
  description: What the operating system says; empty where nothing is wrong.
  returned: when O(step=write)
  type: str
mount:
  description: The mount that the folder lies on.
  returned: when O(step=write)
  type: dict
  contains:
    path:
      description: Where it is mounted. V(/) means that the folder is on the host's own root file system.
      type: str
    source:
      description: What is mounted.
      type: str
    type:
      description: Type of the file system.
      type: str
real_path:
  description: The folder without symbolic links.
  returned: when O(step=write)
  type: str
  sample: /data1/share
proof:
  description: What was written, to be given to O(files) on the others; empty in check mode or where nothing could be written.
  returned: when O(step=write)
  type: dict
  contains:
    name:
      description: Name of this host.
      type: str
    file:
      description: Name of the file.
      type: str
    checksum:
      description: SHA-256 of its content.
      type: str
seen:
  description: One for each of O(files), in their order.
  returned: when O(step=read)
  type: list
  elements: dict
  contains:
    name:
      description: Name of the host that wrote it.
      type: str
    cause:
      description: V(missing), V(differs), V(unreadable), or empty where the file is there with the same content.
      type: str
    seconds:
      description: Time until it was seen in seconds.
      type: float
"""

import errno
import hashlib
import os
import re
import time
import uuid

from ansible.module_utils.basic import AnsibleModule

FOLDERS = (".trainyard", ".trainyard/proof")
CAUSES = {errno.ENOENT: "missing", errno.ENOTDIR: "no_directory", errno.ENOSPC: "no_space", errno.EDQUOT: "no_space"}


def mount_of(path, mountinfo):
    """Return the last of the mounts with the longest path that the folder lies on: a later one covers an earlier one."""
    path = os.path.realpath(path)
    best = {"path": "", "source": "", "type": ""}
    for line in mountinfo.splitlines():
        fields, dummy, kind = line.partition(" - ")
        # The kernel writes blanks as \040.
        where = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code.group(1), 8)), fields.split()[4])
        if (path == where or path.startswith(where.rstrip("/") + "/")) and len(where) >= len(best["path"]):
            best = {"path": where, "source": kind.split()[1], "type": kind.split()[0]}
    return best


def synced(path, content):
    """Write a file and its name down to the storage."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write(share, name, check_mode):
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        result = {"cause": "", "error": "", "mount": mount_of(share, file.read()), "real_path": os.path.realpath(share), "proof": {}}
    try:
        os.scandir(share).close()
        if check_mode:
            return result
        for folder in FOLDERS:
            os.makedirs(os.path.join(share, folder), mode=0o755, exist_ok=True)
        # Of an earlier proof that was interrupted.
        remove_files(share, [file for file in os.listdir(os.path.join(share, FOLDERS[-1])) if re.fullmatch(re.escape(name) + r"\.[0-9a-f]{32}", file)])
        # A name that was never asked for: a network file system remembers what it didn't find.
        file, content = "%s.%s" % (name, uuid.uuid4().hex), os.urandom(65536)
        synced(os.path.join(share, FOLDERS[-1], file), content)
        result["proof"] = {"name": name, "file": file, "checksum": hashlib.sha256(content).hexdigest()}
    except OSError as error:
        result.update(cause=CAUSES.get(error.errno, "not_writable"), error=str(error))
    return result


def look(share, expected):
    """Return why the file isn't as expected, '' where it is."""
    try:
        with open(os.path.join(share, FOLDERS[-1], expected["file"]), "rb") as file:
            return "" if hashlib.sha256(file.read()).hexdigest() == expected["checksum"] else "differs"
    except FileNotFoundError:
        return "missing"
    except OSError:
        return "unreadable"


def read(share, files, timeout, take):
    began = time.monotonic()
    seen = [{"name": expected["name"], "cause": "missing", "seconds": 0.0} for expected in files]
    while True:
        for result, expected in zip(seen, files):
            if result["cause"]:
                result.update(cause=look(share, expected), seconds=round(time.monotonic() - began, 3))
        if not any(result["cause"] for result in seen) or time.monotonic() - began > timeout:
            break
        time.sleep(0.5)
    taken = [expected["file"] for result, expected in zip(seen, files) if take and not result["cause"]]
    if taken:
        remove(share, taken)
    return {"seen": seen}


def remove_files(share, names):
    for name in names:
        try:
            os.unlink(os.path.join(share, FOLDERS[-1], name))
        except FileNotFoundError:
            # Removed by another host meanwhile.
            continue


def remove(share, names=None):
    """Files of the proof, or all of them, and its folders where nothing else is left in them."""
    try:
        remove_files(share, os.listdir(os.path.join(share, FOLDERS[-1])) if names is None else names)
        for name in reversed(FOLDERS):
            os.rmdir(os.path.join(share, name))
    except OSError as error:
        # Nothing was written here, or the folder has something else in it: jobs.
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
            raise


def main():
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "step": {"type": "str", "choices": ["write", "read", "remove"], "required": True},
            "name": {"type": "str"},
            "files": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "name": {"type": "str", "required": True},
                    "file": {"type": "str", "required": True},
                    "checksum": {"type": "str", "required": True},
                },
            },
            "take": {"type": "bool", "default": False},
            "timeout": {"type": "int", "default": 10},
        },
        required_if=[("step", "write", ["name"])],
        supports_check_mode=True,
    )
    params = module.params
    result = {}
    if params["step"] == "write":
        result = write(params["path"], params["name"], module.check_mode)
    try:
        if params["step"] == "read":
            result = read(params["path"], params["files"], params["timeout"], params["take"] and not module.check_mode)
        elif params["step"] == "remove" and not module.check_mode:
            remove(params["path"])
    except OSError as error:
        module.fail_json(msg="what the proof left can't be removed: %s" % error)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
