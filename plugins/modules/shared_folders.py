#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: shared_folders
short_description: Manage folders that several users or hosts share
version_added: "0.2.0"
description:
  - Makes folders with owner, group and mode, makes mount points immutable, and has one user (the one that an NFS server takes a foreign root for) do
    everything in them by a POSIX
    access list, also in what is made there later.
  - Of a folder that is there already the content stays as it is.
  - On an NFS server that takes root for another user (root_squash), a folder that has group and mode as asked is accepted, and so is its owner unless a
    person is asked for. One that is missing is made as its owner where the parent lets them. What the server refuses otherwise fails the module after all
    folders were tried, with the commands for the server's administrator.
  - A path that leads through a symbolic link to a system folder such as C(/etc) is refused before anything is changed.
  - What was there before is written into O(record) first, so that V(former) can bring it back. Folders that the module made are removed by it only where
    they are empty.
options:
  folders:
    description: The folders, parents before what lies in them. Parents that are missing are made too, with mode V(0755), and recorded.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: Absolute path of the folder.
        type: path
        required: true
      owner:
        description: Numeric id of the owner. Without it the owner stays; a new folder gets V(0).
        type: int
      group:
        description: Numeric id of the group. Without it the group stays; a new folder gets V(0).
        type: int
      mode:
        description: Permission bits in octal, for example V('2770'). Without it they stay; a new folder gets V(0755).
        type: str
      full_access_uid:
        description: Numeric id of a user who may do everything in the folder and in what is made in it later. The file system must have access lists.
        type: int
      immutable:
        description:
          - Whether nothing, not even root, may write into the folder. For a mount point, so that nothing is written while nothing is mounted.
          - Not looked at while something is mounted there. RV(unprotected) tells where the file system lacks the attribute.
        type: bool
        default: false
  record:
    description: Absolute path of a JSON file that keeps what was there before. Its folder must exist.
    type: path
    required: true
  state:
    description: V(present) has the folders as asked. V(former) brings back what O(record) tells of O(folders), or of all where that is empty.
    type: str
    choices: [present, former]
    default: present
extends_documentation_fragment:
  - trainyard.gpu.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Have a folder in which the root of every host may write, which the server takes for user 65534
  trainyard.gpu.shared_folders:
    folders:
      - {path: /data1/share, mode: "2775", full_access_uid: 65534}
    record: /var/lib/trainyard/placed.d/nfs_server.json

- name: Bring back what was there before
  trainyard.gpu.shared_folders:
    folders: []
    record: /var/lib/trainyard/placed.d/nfs_server.json
    state: former
"""

RETURN = r"""
changed_paths:
  description: Folders that were made, changed or removed.
  returned: success
  type: list
  elements: str
kept:
  description: Folders that the module made and has left, with O(state=former), because something is in them or on them.
  returned: success
  type: list
  elements: str
commands:
  description: With a failure, what the administrators of NFS servers have to run there, by server.
  returned: when an NFS server refuses a folder
  type: dict
  version_added: "0.3.0"
  sample: {nas.example.org: ["mkdir -p /export/user/anna && chown 2001:3001 /export/user/anna && chmod 0700 /export/user/anna"]}
unprotected:
  description: Folders that were to be immutable, on file systems without that attribute.
  returned: success
  type: list
  elements: str
"""

import errno
import fcntl
import os
import shlex
import stat
import struct

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._input_kinds import is_folder, normal_path
from ansible_collections.trainyard.gpu.plugins.module_utils._nfs import full_access, mount_of, parse_mountinfo
from ansible_collections.trainyard.gpu.plugins.module_utils._quantity import quantity
from ansible_collections.trainyard.gpu.plugins.module_utils._record import read_record, write_record

ACCESS = "system.posix_acl_access"
DEFAULT = "system.posix_acl_default"
# linux/fs.h
GET_FLAGS = 0x80086601
SET_FLAGS = 0x40086602
IMMUTABLE = 0x10


def flags_of(path):
    """Return the file system's own attributes of a folder, None where it has none."""
    handle = os.open(path, os.O_RDONLY)
    try:
        return struct.unpack("i", fcntl.ioctl(handle, GET_FLAGS, struct.pack("i", 0)))[0]
    except OSError as error:
        if error.errno in (errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            return None
        raise
    finally:
        os.close(handle)


def set_immutable(path, immutable):
    flags = flags_of(path)
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(handle, SET_FLAGS, struct.pack("i", flags | IMMUTABLE if immutable else flags & ~IMMUTABLE))
    finally:
        os.close(handle)


def read_list(path, name):
    try:
        return os.getxattr(path, name)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
            return b""
        raise


def state_of(path):
    """Return owner, group, permission bits and access lists of a folder, as they are put into the record."""
    found = os.stat(path)
    return {"owner": found.st_uid, "group": found.st_gid, "mode": "%04o" % stat.S_IMODE(found.st_mode),
            "access": read_list(path, ACCESS).hex(), "default": read_list(path, DEFAULT).hex()}


def with_access(state, uid):
    """Return the state with one more user who may do everything."""
    mode = int(state["mode"], 8)
    access = full_access(bytes.fromhex(state["access"]), mode, uid, False)
    default = full_access(bytes.fromhex(state["default"]), mode, uid, True)
    # With an access list the group bits of the mode are its mask.
    return dict(state, access=access.hex(), default=default.hex(), mode="%04o" % (mode | 0o070))


def wanted_state(found, folder):
    """Return what a folder shall have, from what it has."""
    wanted = dict(found)
    for name in ("owner", "group"):
        if folder[name] is not None:
            wanted[name] = folder[name]
    if folder["mode"] is not None:
        wanted["mode"] = "%04o" % int(folder["mode"], 8)
    if folder["full_access_uid"] is not None:
        if found["access"]:
            # The mask stands in for the group's bits: what the list gives the group is told by the list.
            wanted["mode"] = "%04o" % (int(wanted["mode"], 8) & ~0o070 | int(found["mode"], 8) & 0o070)
        wanted = with_access(wanted, folder["full_access_uid"])
    return wanted


def bring(path, found, wanted):
    if found.get("immutable"):
        set_immutable(path, False)
    if (found["owner"], found["group"]) != (wanted["owner"], wanted["group"]):
        os.chown(path, wanted["owner"], wanted["group"])
    # After the owner, whose change takes setuid and setgid away; before the lists, whose mask it would change.
    if wanted["mode"] != found["mode"] or (found["owner"], found["group"]) != (wanted["owner"], wanted["group"]):
        os.chmod(path, int(wanted["mode"], 8))
    for name, key in ((ACCESS, "access"), (DEFAULT, "default")):
        if wanted[key] != found[key]:
            if wanted[key]:
                os.setxattr(path, name, bytes.fromhex(wanted[key]))
            else:
                os.removexattr(path, name)
    if not wanted["access"] and found["access"]:
        os.chmod(path, int(wanted["mode"], 8))
    if wanted.get("immutable"):
        set_immutable(path, True)


def nfs_place(path, mountinfo="/proc/self/mountinfo"):
    """Server and path there of a path on an NFS mount; None on other file systems."""
    with open(mountinfo, encoding="utf-8", errors="replace") as stream:
        mount = mount_of(path, parse_mountinfo(stream.read()))
    if mount["type"] not in ("nfs", "nfs4"):
        return None
    server, dummy, exported = mount["source"].rpartition(":/")
    return server.strip("[]"), os.path.normpath("/%s/%s" % (exported, os.path.relpath(path, mount["path"])))


def same_on_nfs(found, wanted):
    """Whether a folder is as wanted but for an owner that is not a person: what a server calls its own root need not be ours."""
    return dict(found, owner=0) == wanted and not wanted["owner"]


def as_user(uid, gid, work):
    """Whether a user may do some work, which a child does with their rights and no other groups. Never as root."""
    if not uid:
        return False
    child = os.fork()
    if not child:
        code = 1
        try:
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
            work()
            code = 0
        except OSError:
            pass
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


class Folders:
    def __init__(self, module):
        self.module = module
        self.path = module.params["record"]
        self.changed, self.kept, self.unprotected, self.diff = [], [], [], []
        self.commands = {}
        self.record = read_record(module, self.path)

    def write_record(self):
        write_record(self.module, self.path, self.record)

    def note(self, path, before, after):
        self.changed.append(path)
        self.diff.append({"before_header": path, "after_header": path, "before": before, "after": after})

    @staticmethod
    def lines(state):
        return "".join("%s: %s\n" % (key, state[key]) for key in sorted(state))

    def present(self, folder):
        path = folder["path"]
        missing = []
        while not os.path.lexists(path):
            missing.insert(0, path)
            path = os.path.dirname(path)
        if not os.path.isdir(path):
            self.module.fail_json(msg="%s is no folder: remove or rename it, or name another path than %s" % (path, folder["path"]))
        if missing:
            for made in missing:
                self.record.setdefault("folders", {})[made] = {"made": True}
            self.write_record()
            self.note(folder["path"], "absent\n", "folder\n")
            if self.module.check_mode:
                return
            for made in missing:
                try:
                    if not self.make(made, folder):
                        return self.refused(folder, missing[missing.index(made):])
                except FileExistsError:
                    # An NFS client remembers for up to a minute that a path was absent (acdirmax in nfs(5)). Only mkdir asks the server.
                    self.forget(folder, missing[missing.index(made):], lambda path: True)
                    return self.present(folder)
        if folder["immutable"] and os.path.ismount(folder["path"]):
            return
        found = state_of(folder["path"])
        wanted = wanted_state(found, folder)
        flags = flags_of(folder["path"]) if folder["immutable"] else None
        if folder["immutable"] and flags is None:
            self.unprotected.append(folder["path"])
        elif folder["immutable"]:
            found["immutable"], wanted["immutable"] = bool(flags & IMMUTABLE), True
        if wanted == found:
            return
        if same_on_nfs(found, wanted) and nfs_place(folder["path"]):
            return
        if not missing:
            if folder["path"] not in self.record.get("folders", {}):
                self.record.setdefault("folders", {})[folder["path"]] = found
                self.write_record()
            self.note(folder["path"], self.lines(found), self.lines(wanted))
        if not self.module.check_mode:
            try:
                bring(folder["path"], found, wanted)
            except PermissionError:
                if not nfs_place(folder["path"]):
                    raise
                if not as_user(found["owner"], wanted["group"], lambda: bring(folder["path"], found, wanted)):
                    self.refused(folder, missing or [folder["path"]])

    def make(self, path, folder):
        """Whether a missing folder could be made, by root, or on an NFS server by the one whose folder it becomes."""
        try:
            os.mkdir(path)
        except PermissionError:
            if not nfs_place(path):
                raise
            return path == folder["path"] and as_user(folder["owner"], folder["group"] or 0, lambda: os.mkdir(path, 0o700))
        os.chmod(path, 0o755)
        return True

    def forget(self, folder, unchanged, is_foreign):
        """What was not made or changed is not ours to take away later."""
        for path in unchanged:
            if is_foreign(path):
                del self.record["folders"][path]
        if not self.record["folders"]:
            del self.record["folders"]
        self.write_record()
        if folder["path"] in self.changed and folder["path"] in unchanged:
            self.changed.remove(folder["path"])
            self.diff = [entry for entry in self.diff if entry["before_header"] != folder["path"]]

    def refused(self, folder, unchanged):
        """Note what the server's administrator has to do."""
        self.forget(folder, unchanged, lambda path: not os.path.lexists(path) or not self.record["folders"][path].get("made"))
        server, place = nfs_place(folder["path"])
        place, steps = shlex.quote(place), []
        steps.append("mkdir -p %s" % place)
        if folder["owner"] is not None or folder["group"] is not None:
            steps.append("chown %s:%s %s" % ("" if folder["owner"] is None else folder["owner"], "" if folder["group"] is None else folder["group"], place))
        steps.append("chmod %s %s" % (folder["mode"] or "0755", place))
        self.commands.setdefault(server, []).append(" && ".join(steps))

    def former(self, paths):
        folders = self.record.get("folders", {})
        for path in sorted(paths or folders, reverse=True):
            if path not in folders:
                continue
            try:
                self.one_former(path, folders[path])
            except PermissionError:
                # A server that takes root for another user: what is there is its administrator's to remove.
                if not nfs_place(path):
                    raise
                self.kept.append(path)
                if path in self.changed:
                    self.changed.remove(path)
                    self.diff = [entry for entry in self.diff if entry["before_header"] != path]
            del folders[path]
        if not folders:
            self.record.pop("folders", None)
        self.write_record()

    def one_former(self, path, before):
        if not os.path.isdir(path):
            return
        if before.get("made"):
            if os.path.ismount(path) or [name for name in os.listdir(path) if os.path.join(path, name) not in self.changed]:
                # It is the user's by what they have put into it.
                self.kept.append(path)
                return
            self.note(path, "folder\n", "absent\n")
            if not self.module.check_mode:
                if (flags_of(path) or 0) & IMMUTABLE:
                    set_immutable(path, False)
                os.rmdir(path)
            return
        found = state_of(path)
        if "immutable" in before:
            found["immutable"] = bool((flags_of(path) or 0) & IMMUTABLE)
        if found != before:
            self.note(path, self.lines(found), self.lines(before))
            if not self.module.check_mode:
                bring(path, found, before)


def main():
    module = AnsibleModule(
        argument_spec={
            "folders": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "path": {"type": "path", "required": True},
                    "owner": {"type": "int"},
                    "group": {"type": "int"},
                    "mode": {"type": "str"},
                    "full_access_uid": {"type": "int"},
                    "immutable": {"type": "bool", "default": False},
                },
            },
            "record": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["present", "former"], "default": "present"},
        },
        supports_check_mode=True,
    )
    folders = Folders(module)
    for folder in module.params["folders"]:
        folder["path"] = folder["path"].rstrip("/") or "/"
        if not os.path.isabs(folder["path"]):
            module.fail_json(msg="folders: %s is not absolute; give a path that begins with /" % folder["path"])
        try:
            int(folder["mode"] or "0", 8)
        except ValueError:
            module.fail_json(msg="folders: mode %s of %s is no octal number such as 2770" % (folder["mode"], folder["path"]))
    try:
        if module.params["state"] == "former":
            folders.former([folder["path"] for folder in module.params["folders"]])
        else:
            # All before the first is changed.
            for folder in module.params["folders"]:
                leads_to = os.path.realpath(folder["path"])
                if leads_to != normal_path(folder["path"]) and not (is_folder(leads_to, "mount") or is_folder(leads_to, "tree")):
                    module.fail_json(msg="'%s' leads by a symbolic link to '%s'; expected a folder that is none of the system's own. Remove the link, or name "
                                         "another folder" % (folder["path"], leads_to))
            for folder in module.params["folders"]:
                folders.present(folder)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            module.fail_json(msg="%s: this file system has no POSIX access lists, which full_access_uid needs: mount it with acl" % error.filename,
                             changed_paths=folders.changed)
        module.fail_json(msg="%s: %s" % (error.filename, error.strerror), changed_paths=folders.changed)
    if folders.commands:
        orders = "; ".join("on %s: %s" % (server, "; ".join(commands)) for server, commands in sorted(folders.commands.items()))
        module.fail_json(
            msg="%s can not be made or changed from here, as their NFS server takes root for another user (root_squash) and their owner may not do "
                "it either. Have the server's administrator run, %s. Then run this again: folders with this group and mode are accepted as they are. Paths "
                "are as this host mounts them; below an NFS 4 root (fsid=0) put its path before them"
                % (quantity(sum(len(commands) for commands in folders.commands.values()), "folder"), orders),
            commands=folders.commands, changed_paths=folders.changed)
    module.exit_json(changed=bool(folders.changed), changed_paths=folders.changed, kept=folders.kept, unprotected=folders.unprotected,
                     diff=folders.diff)


if __name__ == "__main__":
    main()
