#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: shared_storage_proof
short_description: Verify that hosts see each other's files in a shared folder
version_added: "0.1.0"
description:
  - Run with V(write) on every host, then with V(read) on every host, then with V(remove) on one of
    them. In between the files lie in C(.trainyard/proof) of the folder; afterwards nothing is left.
  - Between two hosts O(take) makes V(remove) unnecessary, because each file has one reader.
  - A file that is not visible is a result and not a failure.
  - The folder has no changes afterwards, so the module never reports a change.
options:
  path:
    description: Absolute path of the shared folder on this host.
    type: path
    required: true
  step:
    description:
      - V(write) returns what is mounted at O(path), writes this host's file and syncs it to the
        storage.
      - V(read) reads the files of the other hosts.
      - V(remove) deletes the files of all hosts.
    type: str
    choices: [write, read, remove]
    required: true
  name:
    description: Name of this host, for V(write).
    type: str
  files:
    description: Results of V(write) on the other hosts, for V(read).
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
      uid:
        description: Numeric id of its owner.
        type: int
        required: true
      gid:
        description: Numeric id of its group.
        type: int
        required: true
      mode:
        description: Its permission bits in octal.
        type: str
        required: true
  take:
    description: Whether V(read) deletes files that it has read correctly. Use it for files without
      other readers. Ignored in check mode.
    type: bool
    default: false
  speed_record:
    description: Record of M(trainyard.gpu.shared_storage_speed). V(write) returns the measurement
      in it.
    type: path
  container:
    description: Options of M(trainyard.gpu.training_container_info). V(read) then returns what that module returns in RV(container).
    type: dict
    default: {}
    version_added: "0.4.0"
  sshd:
    description: Options of M(trainyard.gpu.ssh_mesh_keys). V(read) then returns what that module returns in check mode in RV(sshd).
    type: dict
    default: {}
    version_added: "0.4.0"
  timeout:
    description: Maximum time in seconds to wait for files that appear late, or for a storage that
      does not answer.
    type: int
    default: 10
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.internal
attributes:
  check_mode:
    support: partial
    details:
      - Nothing is written or removed, so there is nothing to read. The mount is still returned.
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

- name: Read the files of the other hosts
  trainyard.gpu.shared_storage_proof:
    path: /data1/share
    step: read
    files: "{{ ansible_play_hosts | reject('eq', inventory_hostname) | map('extract', hostvars,
      ['written', 'proof']) }}"
  register: seen

- name: Remove the files
  trainyard.gpu.shared_storage_proof:
    path: /data1/share
    step: remove
  run_once: true
"""

RETURN = r"""
cause:
  description:
    - What is wrong with the folder. V(missing), V(no_directory), V(not_writable), V(no_space) or
      V(no_answer); empty if nothing is wrong.
  returned: when O(step=write)
  type: str
error:
  description: Error of the operating system; empty if nothing is wrong.
  returned: when O(step=write)
  type: str
mount:
  description: The mount of the folder.
  returned: when O(step=write)
  type: dict
  contains:
    path:
      description: Its mount point. V(/) means that the folder is on the host's root file system.
      type: str
    source:
      description: Its source.
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
  description: The written file, for O(files) on the other hosts; empty in check mode or if nothing
    could be written.
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
    uid:
      description: Numeric id of its owner, as this host sees it.
      type: int
    gid:
      description: Numeric id of its group.
      type: int
    mode:
      description: Its permission bits in octal.
      type: str
space:
  description: Size and free space of the storage; empty if unknown.
  returned: when O(step=write)
  type: dict
  contains:
    total_mib:
      description: Its size in MiB.
      type: int
    free_mib:
      description: Free space for an unprivileged user, in MiB.
      type: int
    inodes:
      description: Number of files that it can hold. V(0) on storages without a limit.
      type: int
    inodes_free:
      description: Number of files that can still be created.
      type: int
speed:
  description: Measurement of M(trainyard.gpu.shared_storage_speed) of the same mount; empty if
    there is none.
  returned: when O(step=write)
  type: dict
container:
  description: What M(trainyard.gpu.training_container_info) returns. Empty without O(container), if that module would fail, or if RV(seen) has a cause.
  returned: when O(step=read)
  type: dict
  version_added: "0.4.0"
sshd:
  description: What M(trainyard.gpu.ssh_mesh_keys) returns in check mode. Empty without O(sshd), if that module would fail, or if RV(seen) has a cause.
  returned: when O(step=read)
  type: dict
  version_added: "0.4.0"
seen:
  description: One entry per entry of O(files), in the same order.
  returned: when O(step=read)
  type: list
  elements: dict
  contains:
    name:
      description: Name of the host that wrote it.
      type: str
    cause:
      description:
        - V(missing), V(differs) in its content, V(owner_differs), V(mode_differs), V(not_renamed)
          if its temporary name exists too, V(unreadable).
        - Empty if the file is as it was written.
      type: str
    seconds:
      description: Seconds until it was visible.
      type: float
"""

import errno
import hashlib
import json
import os
import re
import stat
import time
import uuid

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import ask_file_system
from ansible_collections.trainyard.gpu.plugins.module_utils._mountinfo import (
    mount_of,
    parse_mountinfo,
)

# No other file has this content by chance.
MODE = 0o640
UNFINISHED = ".unfinished"
FOLDERS = (".trainyard", ".trainyard/proof")
CAUSES = {
    errno.ENOENT: "missing",
    errno.ENOTDIR: "no_directory",
    errno.ENOSPC: "no_space",
    errno.EDQUOT: "no_space",
}


def synced(path, content):
    """Sync a file to the storage before it gets its name, as checkpoints are written."""
    unfinished = path + UNFINISHED
    with open(unfinished, "wb") as file:
        os.fchmod(file.fileno(), MODE)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(unfinished, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def space_of(path):
    found = os.statvfs(path)
    return {
        "total_mib": found.f_blocks * found.f_frsize // 2**20,
        "free_mib": found.f_bavail * found.f_frsize // 2**20,
        "inodes": found.f_files,
        "inodes_free": found.f_favail,
    }


def speed_of(record, mount):
    """Return the measurement, if the same storage is still mounted."""
    try:
        with open(record, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, TypeError, ValueError):
        return {}
    return (
        found.get("speed", {})
        if found.get("mount") == {key: mount[key] for key in ("path", "source", "type")}
        else {}
    )


def write(share, name, check_mode, timeout, speed_record):
    result = {
        "cause": "",
        "error": "",
        "mount": dict.fromkeys(("path", "source", "type"), ""),
        "real_path": share,
        "proof": {},
        "space": {},
        "speed": {},
    }
    cause, result["error"] = ask_file_system(share, timeout)
    if cause == "hangs":
        result["cause"] = "no_answer"
        return result
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        mount = mount_of(os.path.realpath(share), parse_mountinfo(file.read()))
    result.update(
        error="",
        mount={key: mount[key] for key in ("path", "source", "type")},
        real_path=os.path.realpath(share),
    )
    result["speed"] = speed_of(speed_record, mount)
    try:
        os.scandir(share).close()
        result["space"] = space_of(share)
        if check_mode:
            return result
        for folder in FOLDERS:
            # Without an explicit mode, which would restrict an access list that lets root of other
            # hosts write here.
            os.makedirs(os.path.join(share, folder), exist_ok=True)
        # Left by an earlier, interrupted proof.
        former = re.escape(name) + r"\.[0-9a-f]{32}(%s)?" % re.escape(UNFINISHED)
        remove_files(
            share,
            [
                file
                for file in os.listdir(os.path.join(share, FOLDERS[-1]))
                if re.fullmatch(former, file)
            ],
        )
        # A new name, because a network file system caches names that it did not find.
        file, content = "%s.%s" % (name, uuid.uuid4().hex), os.urandom(65536)
        path = os.path.join(share, FOLDERS[-1], file)
        synced(path, content)
        found = os.stat(path)
        result["proof"] = {
            "name": name,
            "file": file,
            "checksum": hashlib.sha256(content).hexdigest(),
            "uid": found.st_uid,
            "gid": found.st_gid,
            "mode": "%04o" % stat.S_IMODE(found.st_mode),
        }
    except OSError as error:
        result.update(cause=CAUSES.get(error.errno, "not_writable"), error=str(error))
    return result


def look(share, expected):
    """Return why the file is not as expected, '' if it is."""
    path = os.path.join(share, FOLDERS[-1], expected["file"])
    try:
        with open(path, "rb") as file:
            if hashlib.sha256(file.read()).hexdigest() != expected["checksum"]:
                return "differs"
            found = os.fstat(file.fileno())
    except FileNotFoundError:
        return "missing"
    except OSError:
        return "unreadable"
    if (found.st_uid, found.st_gid) != (expected["uid"], expected["gid"]):
        return "owner_differs"
    if "%04o" % stat.S_IMODE(found.st_mode) != expected["mode"]:
        return "mode_differs"
    return "not_renamed" if os.path.exists(path + UNFINISHED) else ""


def read(share, files, timeout, take):
    began = time.monotonic()
    seen = [{"name": expected["name"], "cause": "missing", "seconds": 0.0} for expected in files]
    while True:
        for result, expected in zip(seen, files):
            if result["cause"]:
                result.update(
                    cause=look(share, expected), seconds=round(time.monotonic() - began, 3)
                )
        if not any(result["cause"] for result in seen) or time.monotonic() - began > timeout:
            break
        time.sleep(0.5)
    taken = [
        expected["file"] for result, expected in zip(seen, files) if take and not result["cause"]
    ]
    if taken:
        remove(share, taken)
    return {"seen": seen}


def remove_files(share, names):
    for name in names:
        try:
            os.unlink(os.path.join(share, FOLDERS[-1], name))
        except FileNotFoundError:
            # Another host has removed it meanwhile.
            continue


def remove(share, names=None):
    """Remove files of the proof, or all of them, and its folders if they are empty."""
    try:
        remove_files(
            share, os.listdir(os.path.join(share, FOLDERS[-1])) if names is None else names
        )
        for name in reversed(FOLDERS):
            os.rmdir(os.path.join(share, name))
    except OSError as error:
        # Nothing was written here, or the folder has other content, such as jobs.
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
            raise


def asked_along(module):
    """What roles that follow would ask this host.

    Imported here, because Python compiles what a module imports in each run, and the other steps
    do not need it.
    """
    from ansible_collections.trainyard.gpu.plugins.module_utils._answers import answer_of
    from ansible_collections.trainyard.gpu.plugins.module_utils._ssh_mesh_keys import (
        KEYS_OPTIONS,
        keys_state,
    )
    from ansible_collections.trainyard.gpu.plugins.module_utils._training_container import (
        CONTAINER_OPTIONS,
        container_state,
    )

    container, sshd = module.params["container"], module.params["sshd"]
    return {
        "container": answer_of(module, container_state, CONTAINER_OPTIONS, container),
        "sshd": answer_of(module, keys_state, KEYS_OPTIONS, sshd),
    }


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
                    "uid": {"type": "int", "required": True},
                    "gid": {"type": "int", "required": True},
                    "mode": {"type": "str", "required": True},
                },
            },
            "take": {"type": "bool", "default": False},
            "speed_record": {"type": "path"},
            "container": {"type": "dict", "default": {}},
            "sshd": {"type": "dict", "default": {}},
            "timeout": {"type": "int", "default": 10},
        },
        required_if=[("step", "write", ["name"])],
        supports_check_mode=True,
    )
    params = module.params
    result = {}
    if params["step"] == "write":
        result = write(
            params["path"],
            params["name"],
            module.check_mode,
            params["timeout"],
            params["speed_record"],
        )
    try:
        if params["step"] == "read":
            result = read(
                params["path"],
                params["files"],
                params["timeout"],
                params["take"] and not module.check_mode,
            )
            # The run ends if a file is not as it was written.
            is_shared = not any(file["cause"] for file in result["seen"])
            result.update(asked_along(module) if is_shared else {"container": {}, "sshd": {}})
        elif params["step"] == "remove" and not module.check_mode:
            if ask_file_system(params["path"], params["timeout"])[0] == "hangs":
                module.fail_json(
                    msg="the server of '%s' does not answer: start it, or discard the data that "
                    "this host has not written to it yet with "
                    "'umount --force --lazy %s'" % (params["path"], params["path"])
                )
            remove(params["path"])
    except OSError as error:
        module.fail_json(
            msg=(
                "the files of the proof cannot be removed: %s. Mount the share writable on this "
                "host, or remove '%s' on its server"
            )
            % (error, os.path.join(params["path"], FOLDERS[-1]))
        )
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
