#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: shared_folders
short_description: Manage folders that several users or hosts share
version_added: "0.2.0"
description:
  - Creates folders with owner, group and mode, and makes mount points immutable. With a POSIX
    access list it gives one user (the one that an NFS server maps a foreign root to) full access to
    them and to everything created in them later.
  - The content of an existing folder is not changed, except by O(folders[].without_uid).
  - On an NFS server that maps root to another user (root_squash), a folder with the requested group
    and mode is accepted, with any owner unless a person is requested. A missing folder is created
    as its owner if the parent permits it. If the server rejects anything else, the module fails
    after all folders were tried, with the commands for the server's administrator.
  - The module fails before it changes anything if a path leads through a symbolic link to a system
    folder such as C(/etc).
  - The former state is written to O(record) first, so that V(former) can restore it. Folders that
    the module created are removed only if they are empty.
options:
  folders:
    description: The folders, parents before their subfolders. Missing parents are created too, with
      mode V(0755), and recorded.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: Absolute path of the folder.
        type: path
        required: true
      owner:
        description: Numeric id of the owner. By default it is not changed, and a new folder gets
          V(0).
        type: int
      group:
        description: Numeric id of the group. By default it is not changed, and a new folder gets
          V(0).
        type: int
      mode:
        description: Permission bits in octal, for example V('2770'). By default they are not
          changed, and a new folder gets V(0755).
        type: str
      full_access_uid:
        description: Numeric id of a user with full access to the folder and to everything created
          in it later. The file system must support access lists.
        type: int
      without_uid:
        version_added: "0.4.0"
        description:
          - Numeric id of a user whose full access is removed from the folder and from everything in
            it. Use it for a folder of a person below a folder with O(folders[].full_access_uid).
            Without other entries in the inherited list, new files there get their mode from the
            umask again.
          - Entries of other users and groups stay. The content is changed only if the folder itself
            has the entry.
        type: int
      immutable:
        description:
          - Whether nobody, not even root, may write into the folder. Use it for mount points, so
            that nothing is written while nothing is mounted.
          - Ignored while something is mounted there. RV(unprotected) lists folders on file systems
            without the attribute.
        type: bool
        default: false
  record:
    description: Absolute path of a JSON file that records the former state. Its folder must exist.
    type: path
    required: true
  state:
    description: V(present) creates and corrects the folders. V(former) restores the recorded state
      of O(folders), or of all recorded folders if that is empty.
    type: str
    choices: [present, former]
    default: present
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.internal
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Create a folder that root of every host, mapped to user 65534, may write to
  trainyard.gpu.shared_folders:
    folders:
      - {path: /data1/share, mode: "2775", full_access_uid: 65534}
    record: /var/lib/trainyard/placed.d/nfs_server.json

- name: Restore the former state
  trainyard.gpu.shared_folders:
    folders: []
    record: /var/lib/trainyard/placed.d/nfs_server.json
    state: former
"""

RETURN = r"""
changed_paths:
  description: Folders that were created, changed or removed.
  returned: success
  type: list
  elements: str
kept:
  description: With O(state=former), folders that the module created and that stay because they are
    not empty or are mount points in use.
  returned: success
  type: list
  elements: str
commands:
  description: After a failure, the commands for the administrators of NFS servers, by server.
  returned: when an NFS server rejects a folder
  type: dict
  version_added: "0.4.0"
  sample: {nas.example.org: ["mkdir -p /export/user/anna && chown 2001:3001 /export/user/anna && chmod 0700 /export/user/anna"]}
unprotected:
  description: Folders requested as immutable on file systems without that attribute.
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
from ansible_collections.trainyard.gpu.plugins.module_utils._input_kinds import (
    is_folder,
    normal_path,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._mountinfo import (
    mount_of,
    parse_mountinfo,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._nfs import (
    full_access,
    without_access,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._quantity import quantity
from ansible_collections.trainyard.gpu.plugins.module_utils._record import Record

ACCESS = "system.posix_acl_access"
DEFAULT = "system.posix_acl_default"
# linux/fs.h
GET_FLAGS = 0x80086601
SET_FLAGS = 0x40086602
IMMUTABLE = 0x10
#: Each level that is walked needs a file descriptor, of which a process has 1024. What is deeper
#: keeps its lists.
DEEPEST = 800


def flags_of(path):
    """Return the file system attributes of a folder, None if it has none."""
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
        fcntl.ioctl(
            handle,
            SET_FLAGS,
            struct.pack("i", flags | IMMUTABLE if immutable else flags & ~IMMUTABLE),
        )
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
    """Return owner, group, permission bits and access lists of a folder in the form of the
    record.
    """
    found = os.stat(path)
    return {
        "owner": found.st_uid,
        "group": found.st_gid,
        "mode": "%04o" % stat.S_IMODE(found.st_mode),
        "access": read_list(path, ACCESS).hex(),
        "default": read_list(path, DEFAULT).hex(),
    }


def with_access(state, uid):
    """Return the state with one more user who has full access."""
    mode = int(state["mode"], 8)
    access = full_access(bytes.fromhex(state["access"]), mode, uid, False)
    default = full_access(bytes.fromhex(state["default"]), mode, uid, True)
    # With an access list the group bits of the mode are its mask.
    return dict(state, access=access.hex(), default=default.hex(), mode="%04o" % (mode | 0o070))


def without_user(state, uid):
    """Return the state without the full access of a user."""
    access, group = without_access(bytes.fromhex(state["access"]), uid)
    default, _group = without_access(bytes.fromhex(state["default"]), uid)
    mode = int(state["mode"], 8)
    if group is not None:
        mode = mode & ~0o070 | group << 3
    return dict(state, access=access.hex(), default=default.hex(), mode="%04o" % mode)


def free(path, uid):
    """Remove the full access of a user from a file or folder."""
    found = state_of(path)
    name_of = without_user(found, uid)
    if name_of != found:
        bring(path, found, name_of)


def free_content(top, uid):
    """Remove the full access of a user from everything below a folder.

    People may change it meanwhile, so no path is followed, only what was opened.

    A folder passes nothing on any more before its content is listed.
    """
    begin = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    device = os.fstat(begin).st_dev
    levels = [(begin, iter(os.listdir(begin)))]
    while levels:
        folder, names = levels[-1]
        name = next(names, None)
        if name is None:
            os.close(folder)
            levels.pop()
            continue
        below = free_one(folder, name, uid, device)
        if below is not None and len(levels) < DEEPEST:
            levels.append((below, iter(os.listdir(below))))
        elif below is not None:
            os.close(below)


def free_one(folder, name, uid, device):
    """Free an entry of an open folder.

    Return the entry, opened, if it is a folder of the same file system.
    """
    try:
        handle = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        return None
    try:
        found = os.fstat(handle)
        is_folder_here = stat.S_ISDIR(found.st_mode) and found.st_dev == device
        if is_folder_here or stat.S_ISREG(found.st_mode):
            free("/proc/self/fd/%d" % handle, uid)
        return (
            os.open("/proc/self/fd/%d" % handle, os.O_RDONLY | os.O_DIRECTORY)
            if is_folder_here
            else None
        )
    except PermissionError:
        # An immutable file.
        return None
    finally:
        os.close(handle)


def free_tree(path, found, uid):
    """Remove the full access of a user from a folder's default list and from its content.

    Its own entry stays: it says that the work is not finished.
    """
    requested = dict(found, default=without_user(found, uid)["default"])
    if requested["default"] != found["default"]:
        bring(path, found, requested)
    free_content(path, uid)


def wanted_state(found, folder):
    """Return the requested state of a folder from its current state."""
    requested = dict(found)
    if folder["without_uid"] is not None:
        requested = without_user(requested, folder["without_uid"])
    for name in ("owner", "group"):
        if folder[name] is not None:
            requested[name] = folder[name]
    if folder["mode"] is not None:
        requested["mode"] = "%04o" % int(folder["mode"], 8)
    if folder["full_access_uid"] is not None:
        if found["access"]:
            # The mask replaces the group's bits. The list has the permissions of the group.
            requested["mode"] = "%04o" % (
                int(requested["mode"], 8) & ~0o070 | int(found["mode"], 8) & 0o070
            )
        requested = with_access(requested, folder["full_access_uid"])
    return requested


def bring(path, found, requested):
    if found.get("immutable"):
        set_immutable(path, False)
    if (found["owner"], found["group"]) != (requested["owner"], requested["group"]):
        os.chown(path, requested["owner"], requested["group"])
    # After the owner, whose change clears setuid and setgid; before the lists, whose mask it would
    # change.
    if requested["mode"] != found["mode"] or (found["owner"], found["group"]) != (
        requested["owner"],
        requested["group"],
    ):
        os.chmod(path, int(requested["mode"], 8))
    for name, key in ((ACCESS, "access"), (DEFAULT, "default")):
        if requested[key] != found[key]:
            if requested[key]:
                os.setxattr(path, name, bytes.fromhex(requested[key]))
            else:
                os.removexattr(path, name)
    if requested["access"] != found["access"]:
        os.chmod(path, int(requested["mode"], 8))
    if requested.get("immutable"):
        set_immutable(path, True)


def nfs_place(path, mountinfo="/proc/self/mountinfo"):
    """Server and server path of a path on an NFS mount; None on other file systems."""
    with open(mountinfo, encoding="utf-8", errors="replace") as stream:
        mount = mount_of(path, parse_mountinfo(stream.read()))
    if mount["type"] not in ("nfs", "nfs4"):
        return None
    server, dummy, exported = mount["source"].rpartition(":/")
    return server.strip("[]"), os.path.normpath(
        "/%s/%s" % (exported, os.path.relpath(path, mount["path"]))
    )


def same_on_nfs(found, requested):
    """Whether a folder is as requested except for an owner that is not a person: a server may map
    root to any user.
    """
    return dict(found, owner=0) == requested and not requested["owner"]


def as_user(uid, gid, work):
    """Whether some work succeeds in a child process with the rights of a user and no other groups.

    Never as root.
    """
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
        self.file = Record(module, module.params["record"])
        self.changed, self.kept, self.unprotected, self.diff = [], [], [], []
        self.commands = {}
        self.record = self.file.read()

    def write_record(self):
        self.file.write(self.record)

    def note(self, path, before, after):
        self.changed.append(path)
        self.diff.append(
            {"before_header": path, "after_header": path, "before": before, "after": after}
        )

    @staticmethod
    def lines(state):
        return "".join("%s: %s\n" % (key, state[key]) for key in sorted(state))

    def present(self, folder):
        missing = self.missing(folder)
        if missing:
            for made in missing:
                self.record.setdefault("folders", {})[made] = {"made": True}
            self.write_record()
            self.note(folder["path"], "absent\n", "folder\n")
            if self.module.check_mode:
                return
            for number, made in enumerate(missing):
                try:
                    if not self.make(made, folder):
                        return self.refused(folder, missing[number:])
                except FileExistsError:
                    # An NFS client caches for up to a minute that a path was absent (acdirmax in
                    # nfs(5)). Only mkdir contacts the server.
                    self.forget(folder, missing[number:], lambda path: True)
                    return self.present(folder)
        if folder["immutable"] and os.path.ismount(folder["path"]):
            return
        found, requested = self.states(folder)
        if requested == found:
            return
        if same_on_nfs(found, requested) and nfs_place(folder["path"]):
            return
        if not missing:
            self.note_former(folder, found)
            self.note(folder["path"], self.lines(found), self.lines(requested))
        if not self.module.check_mode:
            self.bring(folder, found, requested, missing)

    def missing(self, folder):
        """The folders of a path that do not exist, from above."""
        path, missing = folder["path"], []
        while not os.path.lexists(path):
            missing.insert(0, path)
            path = os.path.dirname(path)
        if not os.path.isdir(path):
            self.module.fail_json(
                msg="'%s' is not a folder: remove or rename it, or set another path than '%s'"
                % (path, folder["path"])
            )
        return missing

    def states(self, folder):
        """The state of a folder, and the requested one."""
        found = state_of(folder["path"])
        requested = wanted_state(found, folder)
        if folder["immutable"]:
            flags = flags_of(folder["path"])
            if flags is None:
                self.unprotected.append(folder["path"])
            else:
                found["immutable"], requested["immutable"] = bool(flags & IMMUTABLE), True
        return found, requested

    def note_former(self, folder, found):
        """Record the state before the first run."""
        if folder["path"] in self.record.get("folders", {}):
            return
        former = found
        if folder["without_uid"] is not None:
            # An entry that another of our folders has passed on is not the former state.
            former = without_user(found, folder["without_uid"])
        self.record.setdefault("folders", {})[folder["path"]] = former
        self.write_record()

    def bring(self, folder, found, requested, missing):
        """Change a folder, on an NFS server as the person whose it is."""
        path, uid = folder["path"], folder["without_uid"]
        try:
            if uid is not None and without_user(found, uid) != found:
                free_tree(path, found, uid)
                found = state_of(path)
            bring(path, found, requested)
        except PermissionError:
            if not nfs_place(path):
                raise
            if not as_user(
                found["owner"], requested["group"], lambda: bring(path, found, requested)
            ):
                self.refused(folder, missing or [path])

    def make(self, path, folder):
        """Whether a missing folder could be created, by root, or on an NFS server by its future
        owner.
        """
        try:
            os.mkdir(path)
        except PermissionError:
            if not nfs_place(path):
                raise
            return self.make_as_person(path, folder)
        if (
            path == folder["path"]
            and folder["owner"]
            and os.stat(path).st_uid not in (0, folder["owner"])
            and nfs_place(path)
        ):
            # Everybody may make folders there, and what root makes is the server's nobody's, who
            # may not give it away.
            os.rmdir(path)
            return self.make_as_person(path, folder)
        os.chmod(path, 0o755)
        return True

    @staticmethod
    def make_as_person(path, folder):
        return path == folder["path"] and as_user(
            folder["owner"], folder["group"] or 0, lambda: os.mkdir(path, 0o700)
        )

    def forget(self, folder, unchanged, is_foreign):
        """Remove unchanged folders from the record, so that they are not removed later."""
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
        """Record the commands for the server's administrator."""
        self.forget(
            folder,
            unchanged,
            lambda path: not os.path.lexists(path) or not self.record["folders"][path].get("made"),
        )
        server, place = nfs_place(folder["path"])
        place, steps = shlex.quote(place), []
        steps.append("mkdir -p %s" % place)
        if folder["owner"] is not None or folder["group"] is not None:
            steps.append(
                "chown %s:%s %s"
                % (
                    "" if folder["owner"] is None else folder["owner"],
                    "" if folder["group"] is None else folder["group"],
                    place,
                )
            )
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
                # On a server that maps root to another user, only its administrator can remove the
                # folder.
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
            if os.path.ismount(path) or [
                name for name in os.listdir(path) if os.path.join(path, name) not in self.changed
            ]:
                # It is not empty, so its content belongs to users.
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


def check_folders(module):
    """Fail for a path that is not absolute and for a mode that is no number.

    Paths lose a slash at their end.
    """
    for folder in module.params["folders"]:
        folder["path"] = folder["path"].rstrip("/") or "/"
        if not os.path.isabs(folder["path"]):
            module.fail_json(
                msg="folders: '%s' is not an absolute path; give one that begins with /"
                % folder["path"]
            )
        try:
            int(folder["mode"] or "0", 8)
        except ValueError:
            module.fail_json(
                msg="folders: mode '%s' of %s is not valid; give an octal number such as 2770"
                % (folder["mode"], folder["path"])
            )


def check_links(module):
    """Fail if a path leads by a link to a folder of the system."""
    for folder in module.params["folders"]:
        leads_to = os.path.realpath(folder["path"])
        if leads_to != normal_path(folder["path"]) and not (
            is_folder(leads_to, "mount") or is_folder(leads_to, "tree")
        ):
            module.fail_json(
                msg="'%s' leads by a symbolic link to '%s'; expected a folder that is none of the "
                "system's own. Remove the link, or name "
                "another folder" % (folder["path"], leads_to)
            )


def fail_for(module, error, changed):
    """Fail for what the system has refused, with the paths that were changed before."""
    if error.errno == errno.EOPNOTSUPP:
        module.fail_json(
            msg=(
                "%s: this file system has no POSIX access lists, but full_access_uid needs them: "
                "mount it with acl"
            )
            % error.filename,
            changed_paths=changed,
        )
    module.fail_json(
        msg=(
            "%s: %s. Correct it on this host (mode, mount options, a full or read-only file "
            "system), and run this again"
        )
        % (error.filename, error.strerror),
        changed_paths=changed,
    )


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
                    "without_uid": {"type": "int"},
                    "immutable": {"type": "bool", "default": False},
                },
            },
            "record": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["present", "former"], "default": "present"},
        },
        supports_check_mode=True,
    )
    folders = Folders(module)
    check_folders(module)
    try:
        if module.params["state"] == "former":
            folders.former([folder["path"] for folder in module.params["folders"]])
        else:
            # Check all before the first change.
            check_links(module)
            for folder in module.params["folders"]:
                folders.present(folder)
    except OSError as error:
        fail_for(module, error, folders.changed)
    if folders.commands:
        orders = "; ".join(
            "on %s: %s" % (server, "; ".join(commands))
            for server, commands in sorted(folders.commands.items())
        )
        module.fail_json(
            msg="%s cannot be created or changed from this host, because their NFS server maps "
            "root to another user (root_squash) and their owner "
            "may not do it either. Have the server's administrator run, %s. Then run this "
            "again: folders with this group and mode are accepted. Paths "
            "are as this host mounts them; below an NFS 4 root (fsid=0) put its path before them"
            % (
                quantity(sum(len(commands) for commands in folders.commands.values()), "folder"),
                orders,
            ),
            commands=folders.commands,
            changed_paths=folders.changed,
        )
    module.exit_json(
        changed=bool(folders.changed),
        changed_paths=folders.changed,
        kept=folders.kept,
        unprotected=folders.unprotected,
        diff=folders.diff,
    )


if __name__ == "__main__":
    main()
