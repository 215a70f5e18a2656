#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: shared_accounts
short_description: Manage users and groups with the same ids on every host
version_added: "0.2.0"
description:
  - Creates missing groups and users with C(groupadd) and C(useradd), without a password and without
    a home folder, and adds users to their groups.
  - Fails before it creates anything if a name has another id on the host, or an id has another
    name.
  - Accounts of a directory service count as existing.
  - New accounts and memberships are written to O(record), so that V(former) can remove them.
  - Memberships in O(record) that are no longer requested are removed, and the primary group of an
    account that this module created follows the request. Memberships that others have added stay,
    and are returned in RV(stays).
  - Accounts that this module created and that are no longer requested are locked. Their processes
    outside of Slurm's jobs, their crontab, at jobs and lingering end. When they are requested
    again, the lock is removed. Files stay, and O(record) remembers the owner of each id.
  - Writes the public keys of users, with which they log in, to files that only root changes, and
    lets the sshd of the host read them. sshd judges its whole configuration with the new file
    before it goes live. The files that AuthorizedKeysFile already names stay in force.
options:
  groups:
    description: The groups.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the group.
        type: str
        required: true
      gid:
        description: Numeric id of the group.
        type: int
        required: true
  users:
    description: The users.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the user.
        type: str
        required: true
      uid:
        description: Numeric id of the user.
        type: int
        required: true
      groups:
        description:
          - Names of the user's groups. The first one is the primary group of a new user.
          - If empty, a new user gets a group of the same name and number.
        type: list
        elements: str
        default: []
      shell:
        description: Login shell of a new user.
        type: str
        default: /bin/bash
  homes:
    description: Parent folder of the homes of new users in C(passwd). This module does not create
      the homes.
    type: path
    default: /home
  keys:
    description:
      - OpenSSH public keys by user, one line each and without options. Files of other users in
        O(keys_folder) are removed.
      - Without keys, the host needs no sshd, and the files and O(sshd_drop_in) are removed.
    type: dict
    default: {}
    version_added: "0.4.0"
  keys_folder:
    description: Folder of the files with keys, one for each user.
    type: path
    default: /etc/trainyard/people
    version_added: "0.4.0"
  sshd_config:
    description: Configuration of the host's sshd, which must include the folder of O(sshd_drop_in).
    type: path
    default: /etc/ssh/sshd_config
    version_added: "0.4.0"
  sshd_drop_in:
    description: File that adds the files in O(keys_folder) to AuthorizedKeysFile. sshd uses the
      first value that it reads, so the name must be an early one.
    type: path
    default: /etc/ssh/sshd_config.d/00-trainyard-people.conf
    version_added: "0.4.0"
  record:
    description: Absolute path of a JSON file that records new accounts. Its folder must exist.
    type: path
    required: true
  reused_ids:
    description:
      - Ids of former users and groups that others may get. Without it, the module fails if such an
        id is requested for another name.
      - The former account is removed from the host if this module created it.
    type: list
    elements: int
    default: []
    version_added: "0.4.0"
  state:
    description: V(present) creates the accounts. V(former) removes the accounts and memberships in
      O(record), all keys and O(sshd_drop_in).
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
- name: Create user anna with the same id on every host
  trainyard.gpu.shared_accounts:
    groups:
      - {name: vision, gid: 3001}
    users:
      - {name: anna, uid: 2001, groups: [vision]}
    keys:
      anna: ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAfWBWeD+lmc81HJ9lxOQA+NHp50RTLc67//Lm0MyXzY anna@laptop"]
    record: /var/lib/trainyard/placed.d/shared_accounts.json
"""

RETURN = r"""
made:
  description: Text about everything that was created or removed.
  returned: success
  type: list
  elements: str
changed_paths:
  description: Changed files and folders of O(keys) and O(sshd_drop_in).
  returned: success
  type: list
  elements: str
  version_added: "0.4.0"
differences:
  description: How former people and members of groups differ from the request, also what this run
    has changed, or would change in check mode.
  returned: success
  type: list
  elements: dict
  contains:
    what:
      description: A C(user) or a C(group) with its name.
      type: str
    asked:
      description: What is requested.
      type: str
    found:
      description: What the host had.
      type: str
  version_added: "0.4.0"
stays:
  description: Text about each of RV(differences) that is not of this module, such as a member of a
    group whom somebody else has added.
  returned: success
  type: list
  elements: str
  version_added: "0.4.0"
reload:
  description: Unit of the host's sshd that has not read O(sshd_drop_in) and runs; empty if none
    needs a reload.
  returned: success
  type: str
  sample: ssh.service
  version_added: "0.4.0"
"""

import os
import pwd
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._accounts import (
    account_clashes,
    find_group,
    find_user,
    number_of,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._former_people import (
    Processes,
    ranges_of,
    shadow_entries,
    timers_of,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._people_keys import PeopleKeys
from ansible_collections.trainyard.gpu.plugins.module_utils._people_plan import (
    MEMBER_OF_NONE,
    former_people,
    is_shut,
    lock,
    memberships,
    owned_ids,
    stale_groups,
    unlock,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._record import Record

# Arguments: home, group, user. usermod would give the files in the home to the new group, which
# takes long and fails on a share with root_squash. It does not if another folder is in the place of
# the home. Only this command sees that.
PRIMARY = """
if test -d "$1"; then mount -t tmpfs -o mode=0755 none "$1" || exit 1; fi
exec usermod --gid "$2" "$3"
"""


class Accounts:
    def __init__(self, module):
        self.module, self.made, self.differences, self.stays = module, [], [], []
        self.diff = {"before": "", "after": ""}
        self.diff.update(before_header="accounts", after_header="accounts")
        self.file = Record(module, module.params["record"])
        self.record = self.file.read()
        self.shadow, self.today = shadow_entries(), int(time.time() // 86400)

    def note(self, kind, value):
        """Called before the account is created, so that an interrupted run leaves nothing
        unrecorded.
        """
        if not self.module.check_mode and value not in self.record.setdefault(kind, []):
            self.record[kind].append(value)
            self.write()

    def forget(self, kind: str, value) -> None:
        """Called after the opposite."""
        if not self.module.check_mode and value in self.record.get(kind, []):
            self.record[kind].remove(value)
            self.write()

    def write(self):
        self.file.write(self.record)

    def act(self, words: str, before: str = "", after: str = "") -> bool:
        """Report a change. Returns whether to make it."""
        self.made.append(words)
        self.diff["before"] += before + "\n" if before else ""
        self.diff["after"] += after + "\n" if after else ""
        return not self.module.check_mode

    def differ(self, what: str, requested: str, found: str) -> None:
        self.differences.append({"what": what, "asked": requested, "found": found})

    def keep(self, what: str, requested: str, found: str) -> None:
        """Report a difference that no run of this module removes."""
        self.differ(what, requested, found)
        self.stays.append("%s: %s" % (what, found))

    def run(self, words: str, command: list, before: str = "", after: str = "") -> None:
        if not self.act(words, before, after):
            return
        folders = ["/usr/sbin", "/sbin"]
        tool = self.module.get_bin_path(command[0], required=True, opt_dirs=folders)
        rc, out, err = self.module.run_command([tool] + command[1:])
        if rc != 0:
            text = "%s: %s failed: %s. Correct what it names on this host, and run this again: "
            text = text % (words, command[0], (err or out).strip()) + "what was created stays"
            self.module.fail_json(msg=text, made=self.made)

    def add(self, users, groups):
        """Create the groups and people that are missing, and restore former people."""
        for group in groups:
            if not find_group(group["name"]):
                self.note("groups", group["name"])
                self.run(
                    "group %s" % group["name"],
                    ["groupadd", "--gid", str(group["gid"]), group["name"]],
                    after="group %s" % group["name"],
                )
        for user in users:
            if not find_user(user["name"]):
                self.create(user)
            elif user["name"] in self.record.get("locked", {}):
                self.restore(user["name"])

    def present(self, users, groups, keys):
        # A user without groups gets one with the same number. The number that useradd chooses would
        # differ between hosts.
        groups = groups + [
            {"name": user["name"], "gid": user["uid"]} for user in users if not user["groups"]
        ]
        users = [dict(user, groups=user["groups"] or [user["name"]]) for user in users]
        keys.plan(self.module.params["keys"], {user["name"]: user["groups"] for user in users})
        names = {user["name"]: user["uid"] for user in users}
        gids = {group["name"]: group["gid"] for group in groups}
        self.refuse_clashes(names, gids)
        owned = owned_ids(self.record, number_of)
        former = former_people(names, self.record, owned)
        processes = Processes()
        for name in former:
            self.revoke(name, owned, processes)
        self.free(names, gids, former, owned)
        self.own(names, gids, owned)
        self.add(users, groups)
        self.join(users, [name for name in former if find_user(name)], owned)
        self.report_processes(users, owned, processes)

    def refuse_clashes(self, names: dict, gids: dict) -> None:
        clashes = account_clashes(names, gids, self.record, self.module.params["reused_ids"])
        if not clashes:
            return
        text = "%(asked)s is requested, this host has %(found)s"
        text = "; ".join(text % clash for clash in clashes)
        text += (
            ". Nothing was created. Use ids that are free on all hosts, or the ones that the hosts "
            "have. Remove or hand over the files of a former owner before you add the id to "
            "shared_storage_reused_ids"
        )
        self.module.fail_json(msg=text, clashes=clashes)

    def create(self, user: dict) -> None:
        name = user["name"]
        self.note("users", name)
        home = os.path.join(self.module.params["homes"], name)
        command = ["useradd", "--no-create-home", "--home-dir", home, "--uid", str(user["uid"])]
        command += ["--gid", user["groups"][0], "--no-user-group", "--shell", user["shell"], name]
        self.run("user %s" % name, command, after="user %s" % name)
        self.set_primary(name, user["groups"][0])

    def own(self, names: dict, gids: dict, owned: dict) -> None:
        """Record the owner of each id, before it exists."""
        for kind, requested in (("users", names), ("groups", gids)):
            owned[kind].update({str(number): name for name, number in requested.items()})
        if not self.module.check_mode and self.record.get("ids") != owned and any(owned.values()):
            self.record["ids"] = owned
            self.write()

    def free(self, names: dict, gids: dict, former: list, owned: dict) -> None:
        """Remove accounts of former owners whose ids may be given to others."""
        numbers = {str(number) for number in self.module.params["reused_ids"]}
        for kind, requested, command in (("users", names, "userdel"), ("groups", gids, "groupdel")):
            name_of = {str(number): name for name, number in requested.items()}
            for number in sorted(numbers.intersection(name_of)):
                name = owned[kind].get(number)
                if name in requested or name not in self.record.get(kind, []):
                    continue
                if number_of(kind, name) == int(number):
                    what = "%s %s" % (kind[:-1], name)
                    self.run(
                        "%s removed, whose id %s gets another owner" % (what, number),
                        [command, name],
                        before=what,
                    )
                self.forget(kind, name)
                if name in former and kind == "users":
                    former.remove(name)
                    self.forget_person(name)

    def forget_person(self, name: str) -> None:
        if self.module.check_mode:
            return
        for kind in ("locked", "primary"):
            self.record.get(kind, {}).pop(name, None)
        self.record["members"] = [
            pair for pair in self.record.get("members", []) if pair[1] != name
        ]
        self.write()

    def read_memberships(self, users: list, former: list, owned: dict) -> dict:
        """Return C(members) of the groups that the role manages, and C(primary), the primary groups
        of people.
        """
        managed = set(owned["groups"].values()) | set(self.record.get("groups", []))
        groups = {name: find_group(name) for name in managed}
        groups = {name: group for name, group in groups.items() if group}
        gids = {group.gr_gid: name for name, group in groups.items()}
        primary = {}
        for entry in pwd.getpwall():
            if entry.pw_gid in gids:
                primary[entry.pw_name] = gids[entry.pw_gid]
        for name in [user["name"] for user in users] + former:
            entry = find_user(name)
            group = find_group(entry.pw_gid) if entry else None
            if entry:
                primary[name] = group.gr_name if group else str(entry.pw_gid)
        return {
            "members": {name: set(group.gr_mem) for name, group in groups.items()},
            "primary": primary,
        }

    def join(self, users: list, former: list, owned: dict) -> None:
        """Make the memberships true, as far as the record has them."""
        found = self.read_memberships(users, former, owned)
        plan = memberships(users, former, found, self.record)
        for name, before, after in plan["primary"]:
            command = ["unshare", "--mount", "sh", "-c", PRIMARY, "sh"]
            command += [find_user(name).pw_dir, after, name]
            words = name + " in primary group "
            self.run(words + after, command, before=words + before, after=words + after)
            self.set_primary(name, after)
            self.differ("group " + before, "without " + name, "has %s" % name)
        for group, name in plan["add"]:
            self.note("members", [group, name])
            words = "%s in group %s" % (name, group)
            self.run(words, ["gpasswd", "--add", name, group], after=words)
        for group, name in plan["remove"]:
            words = "%s in group %s" % (name, group)
            self.run("no longer " + words, ["gpasswd", "--delete", name, group], before=words)
            self.forget("members", [group, name])
            self.differ("group " + group, "without " + name, "has %s" % name)
        for group, name in plan["by_hand"]:
            self.keep_member(group, name)

    def keep_member(self, group: str, name: str) -> None:
        self.keep("group " + group, "without " + name, "has %s, whom this role did not add" % name)

    def set_primary(self, name: str, group: str) -> None:
        if not self.module.check_mode:
            self.record.setdefault("primary", {})[name] = group
            self.write()

    def account(self, name: str) -> dict:
        """Return what decides about logins of a user."""
        return dict(self.shadow.get(name, {}), shell=find_user(name).pw_shell)

    def revoke(self, name: str, owned: dict, processes: Processes) -> None:
        """Close the account of a former person, and end what runs."""
        entry = find_user(name)
        is_known = name in owned["users"].values()
        if not entry or (is_known and owned["users"].get(str(entry.pw_uid)) != name):
            return
        what = "user " + name
        is_open = not is_shut(self.account(name), self.today)
        if name not in self.record.get("users", []):
            if is_open:
                reason = "this role did not create the account"
                self.keep(what, "no login", "can log in, because " + reason)
            return
        if entry.pw_uid in processes.callers():
            self.keep(what, "no login", "can log in, because Ansible does so as this user")
            return
        if name in self.shadow:
            self.lock(name)
        elif is_open:
            self.keep(what, "no login", "can log in, because /etc/shadow has no such account")
        self.stop(entry, processes)
        # join() reports those of groups that are or were requested.
        managed = set(owned["groups"].values()) | set(self.record.get("groups", []))
        groups = filter(None, map(find_group, os.getgrouplist(name, entry.pw_gid)))
        others = {group.gr_name for group in groups} - managed - {MEMBER_OF_NONE}
        for group in sorted(others):
            self.keep_member(group, name)

    def lock(self, name: str) -> None:
        options, before = lock(self.account(name), self.today)
        if not options:
            return
        if not self.module.check_mode:
            locked = self.record.setdefault("locked", {})
            locked[name] = dict(locked.get(name, {}), **before)
            self.write()
        self.run(
            "user %s locked" % name,
            ["usermod"] + options + [name],
            before="%s can log in" % name,
            after="%s is locked" % name,
        )
        self.differ("user " + name, "no login", "can log in")

    def stop(self, entry, processes: Processes) -> None:
        name, uid = entry.pw_name, entry.pw_uid
        for path, what in timers_of(name, uid).items():
            words = "%s of %s removed" % (what, name)
            self.differ("user " + name, "no %s" % what, path)
            if what == "lingering" and self.module.get_bin_path("loginctl"):
                self.run(words, ["loginctl", "disable-linger", name], before=path)
            elif self.act(words, before=path):
                os.unlink(path)
        ranges = ranges_of(name)
        ended, of_jobs = processes.split(uid, ranges)
        if ended:
            names = ["%s (%d)" % (processes.found[pid]["name"], pid) for pid in ended]
            names = ", ".join(names[:5] + ["..."] * (len(names) > 5))
            self.differ("user " + name, "no processes", names)
            words = "processes of %s ended: %s" % (name, names)
            if self.act(words, before="%s runs %s" % (name, names)):
                self.end_processes(name, uid, ranges, processes)
        if of_jobs:
            self.keep(
                "user " + name,
                "no jobs",
                "has a job on this host, which runs on unless slurm_accounts_cancel_jobs is true",
            )

    def end_processes(self, name: str, uid: int, ranges: list, processes: Processes) -> None:
        left = processes.end(uid, ranges)
        if left:
            text = "processes of former user %s do not end: %s. End what they wait for, or reboot "
            text = text % (name, ", ".join(map(str, left))) + "this host"
            self.module.fail_json(msg=text, made=self.made)

    def restore(self, name: str) -> None:
        """Undo the lock of a person who is back."""
        options = []
        if name in self.shadow:
            options = unlock(self.account(name), self.record["locked"][name])
        if options:
            self.run(
                "user %s unlocked" % name,
                ["usermod"] + options + [name],
                before="%s is locked" % name,
                after="%s can log in" % name,
            )
        if not self.module.check_mode:
            del self.record["locked"][name]
            if not self.record["locked"]:
                del self.record["locked"]
            self.write()

    def report_processes(self, users: list, owned: dict, processes: Processes) -> None:
        """Report what runs with a group that its owner has left: a process keeps its groups."""
        people = {user["uid"]: (user["name"], set(user["groups"])) for user in users}
        groups = {name: find_group(name) for name in owned["groups"].values()}
        gids = {group.gr_gid: name for name, group in groups.items() if group}
        for name, names in people.values():
            entry = find_user(name)
            numbers = os.getgrouplist(name, entry.pw_gid) if entry else []
            names.update(gids[number] for number in set(numbers).intersection(gids))
        for name, group, pids in stale_groups(processes.found, people, gids):
            numbers = ", ".join(map(str, pids[:5]))
            self.keep(
                "group " + group,
                "without processes of " + name,
                "processes of %s have it until they end: %s" % (name, numbers),
            )

    def former(self):
        for name, user in list(self.record.get("members", [])):
            group = find_group(name)
            if (
                group
                and user in group.gr_mem
                and user not in self.record.get("users", [])
                and name not in self.record.get("groups", [])
            ):
                self.run(
                    "%s no longer in group %s" % (user, name),
                    ["gpasswd", "--delete", user, name],
                    before="%s in group %s" % (user, name),
                )
        for user in list(self.record.get("users", [])):
            if find_user(user):
                # The user's files on the share stay, with the number as their owner.
                self.run("user %s removed" % user, ["userdel", user], before="user " + user)
        for name in list(self.record.get("groups", [])):
            if find_group(name):
                self.run("group %s removed" % name, ["groupdel", name], before="group " + name)
        self.record = {}
        self.write()


def main():
    module = AnsibleModule(
        argument_spec={
            "groups": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "name": {"type": "str", "required": True},
                    "gid": {"type": "int", "required": True},
                },
            },
            "users": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "name": {"type": "str", "required": True},
                    "uid": {"type": "int", "required": True},
                    "groups": {"type": "list", "elements": "str", "default": []},
                    "shell": {"type": "str", "default": "/bin/bash"},
                },
            },
            "homes": {"type": "path", "default": "/home"},
            "keys": {"type": "dict", "default": {}, "no_log": False},
            "keys_folder": {"type": "path", "default": "/etc/trainyard/people", "no_log": False},
            "sshd_config": {"type": "path", "default": "/etc/ssh/sshd_config"},
            "sshd_drop_in": {
                "type": "path",
                "default": "/etc/ssh/sshd_config.d/00-trainyard-people.conf",
            },
            "record": {"type": "path", "required": True},
            "reused_ids": {"type": "list", "elements": "int", "default": []},
            "state": {"type": "str", "choices": ["present", "former"], "default": "present"},
        },
        supports_check_mode=True,
    )
    accounts = Accounts(module)
    keys = PeopleKeys(
        module, *[module.params[name] for name in ("keys_folder", "sshd_config", "sshd_drop_in")]
    )
    if module.params["state"] == "former":
        # Before the accounts, so that nobody logs in while they are removed.
        keys.plan({}, {})
        reload = keys.write()
        accounts.former()
    else:
        accounts.present(module.params["users"], module.params["groups"], keys)
        reload = keys.write()
    files = keys.files
    diff = files.diff
    if accounts.made:
        diff = [accounts.diff] + diff
    module.exit_json(
        changed=bool(accounts.made or files.changed_paths),
        made=accounts.made,
        changed_paths=files.changed_paths,
        reload=reload,
        differences=accounts.differences,
        stays=accounts.stays,
        diff=diff,
    )


if __name__ == "__main__":
    main()
