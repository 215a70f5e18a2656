#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: synced_folder
short_description: Synchronize a folder from the controller to a host
version_added: "0.1.0"
description:
  - Compares the files of a folder by size and modification time, as rsync does, in one module run,
    then transfers only those that differ. If nothing differs, no file is read or transferred.
  - Transferred files are verified by their SHA-256 checksum and get the modification time of the
    controller's file.
  - Only files directly in the folder are included, and no subfolders.
  - Files on the host that the controller's folder does not have are removed, so use the folder only
    for this purpose.
author:
  - trainyard maintainers (@trainyard)
options:
  src:
    description:
      - Folder on the controller. A relative path is resolved as in M(ansible.builtin.copy).
      - Required if O(state=present).
    type: path
  dest:
    description: Folder on the host. It is created if it is missing. Its parent must exist.
    type: path
    required: true
  patterns:
    description: Shell patterns of the names to include.
    type: list
    elements: str
    default: ["*"]
  state:
    description: V(absent) removes the folder and the files in it.
    type: str
    choices: [present, absent]
    default: present
  known:
    description:
      - Content of the folder on the host from earlier in this run, as in
        RV(trainyard.gpu.host_info#module:folders). If it matches, the host is not contacted again.
    type: dict
  files:
    description: Filled by the action plugin. Size in bytes and modification time in seconds since
      1970 of every file of the controller's folder, by name.
    type: dict
  uploads:
    description: Filled by the action plugin. Temporary path on the host and SHA-256 checksum of
      transferred files, by name.
    type: dict
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.internal
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
seealso:
  - module: ansible.builtin.copy
  - module: ansible.posix.synchronize
"""

EXAMPLES = r"""
- name: Copy the folder of wheels to the head
  trainyard.gpu.synced_folder:
    src: /srv/wheels
    dest: /var/lib/trainyard/wheels
    patterns: ["*.whl", "*.tar.gz"]
"""

RETURN = r"""
copied:
  description: Names of the files that were copied to the host, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: [torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl]
sent:
  description: V(false) if O(known) shows that nothing differs, so that no module was sent to the
    host.
  returned: if it is V(false)
  type: bool
removed:
  description: Names of the files that were removed from the host, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: []
wanted:
  description: Names of the files that the action plugin must transfer before anything is changed.
    Empty in the final result.
  returned: success
  type: list
  elements: str
  sample: []
"""

import hashlib
import os
import stat
import time

from ansible.module_utils.basic import AnsibleModule


def checksum(path):
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def held_in(module, folder):
    """{name: [size, modification time]} of the files of a folder on this host."""
    if not os.path.isdir(folder):
        return {}
    held = {}
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode):
            module.fail_json(
                msg=(
                    f"'{path}' is not a regular file, but this folder is only for files from the "
                    "controller: remove it"
                )
            )
        held[name] = [found.st_size, int(found.st_mtime)]
    return held


def shown(files):
    return "".join(
        (
            f"{name}  {size} bytes, changed "
            f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(changed))} UTC\n"
        )
        for name, (size, changed) in sorted(files.items())
    )


def apply(module, dest, requested, uploads, removed):
    if module.params["state"] == "present" and not os.path.isdir(dest):
        os.mkdir(dest, 0o755)
    for name, (path, digest) in sorted(uploads.items()):
        if checksum(path) != digest:
            module.fail_json(
                msg=f"'{name}' has a different checksum on this host than on the controller. Run "
                "this again, after the file "
                "has been written completely"
            )
        os.chmod(path, 0o644)
        # The ssh user transferred it, but the files in the folder belong to root.
        os.chown(path, os.geteuid(), os.getegid())
        # After the rename, which keeps the time of the new file.
        module.atomic_move(path, os.path.join(dest, name))
        os.utime(os.path.join(dest, name), (requested[name][1], requested[name][1]))
    for name in removed:
        os.unlink(os.path.join(dest, name))
    if module.params["state"] == "absent":
        os.rmdir(dest)


def differences(held, requested):
    """Return the names of the files to copy and of those to remove."""
    copied = sorted(name for name, seen in requested.items() if held.get(name) != seen)
    return copied, sorted(name for name in held if name not in requested)


def main():
    module = AnsibleModule(
        argument_spec={
            "src": {"type": "path"},
            "dest": {"type": "path", "required": True},
            "patterns": {"type": "list", "elements": "str", "default": ["*"]},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "known": {"type": "dict"},
            "files": {"type": "dict"},
            "uploads": {"type": "dict"},
        },
        required_if=[("state", "present", ["src"])],
        supports_check_mode=True,
    )
    dest, requested = module.params["dest"], module.params["files"] or {}
    uploads = module.params["uploads"] or {}
    held = held_in(module, dest)
    copied, removed = differences(held, requested)
    present = module.params["state"] == "present"
    changed = bool(copied or removed) or present != os.path.isdir(dest)
    # Nothing is changed before all files have arrived, so that no file is missing in between.
    missing = [] if module.check_mode else [name for name in copied if name not in uploads]

    if changed and not missing and not module.check_mode:
        try:
            apply(module, dest, requested, uploads, removed)
        except OSError as error:
            module.fail_json(
                msg=f"{error.filename}: {error.strerror}. Correct it on this host (a full or "
                "read-only file system, an immutable file), "
                "and run this again"
            )

    module.exit_json(
        changed=changed,
        copied=copied,
        removed=removed,
        wanted=missing,
        diff={
            "before_header": dest,
            "after_header": dest,
            "before": shown(held),
            "after": shown(requested),
        },
    )


if __name__ == "__main__":
    main()
