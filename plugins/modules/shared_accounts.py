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
  - Creates missing groups and users with C(groupadd) and C(useradd), without a password and without a home folder, and adds users to their groups.
  - Fails before it creates anything if a name has another id on the host, or an id has another name.
  - Accounts of a directory service count as existing.
  - New accounts are written to O(record), so that V(former) can remove them.
  - Writes the public keys of users, with which they log in, to files that only root changes, and lets the sshd of the host read them. sshd judges its whole
    configuration with the new file before it goes live. The files that AuthorizedKeysFile already names stay in force.
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
    description: Parent folder of the homes of new users in C(passwd). This module does not create the homes.
    type: path
    default: /home
  keys:
    description:
      - OpenSSH public keys by user, one line each and without options. Files of other users in O(keys_folder) are removed.
      - Without keys, the host needs no sshd, and the files and O(sshd_drop_in) are removed.
    type: dict
    default: {}
    version_added: "0.3.0"
  keys_folder:
    description: Folder of the files with keys, one for each user.
    type: path
    default: /etc/trainyard/people
    version_added: "0.3.0"
  sshd_config:
    description: Configuration of the host's sshd, which must include the folder of O(sshd_drop_in).
    type: path
    default: /etc/ssh/sshd_config
    version_added: "0.3.0"
  sshd_drop_in:
    description: File that adds the files in O(keys_folder) to AuthorizedKeysFile. sshd uses the first value that it reads, so the name must be an early one.
    type: path
    default: /etc/ssh/sshd_config.d/00-trainyard-people.conf
    version_added: "0.3.0"
  record:
    description: Absolute path of a JSON file that records new accounts. Its folder must exist.
    type: path
    required: true
  state:
    description: V(present) creates the accounts. V(former) removes the accounts and memberships in O(record), all keys and O(sshd_drop_in).
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
    support: partial
    details:
      - The files with keys are shown, the accounts are not.
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
  version_added: "0.3.0"
reload:
  description: Unit of the host's sshd that has not read O(sshd_drop_in) and runs; empty if none needs a reload.
  returned: success
  type: str
  sample: ssh.service
  version_added: "0.3.0"
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._accounts import account_clashes, find_group, find_user
from ansible_collections.trainyard.gpu.plugins.module_utils._people_keys import PeopleKeys
from ansible_collections.trainyard.gpu.plugins.module_utils._record import Record


class Accounts:
    def __init__(self, module):
        self.module, self.made = module, []
        self.file = Record(module, module.params["record"])
        self.record = self.file.read()

    def note(self, kind, value):
        """Called before the account is created, so that an interrupted run leaves nothing unrecorded."""
        if not self.module.check_mode and value not in self.record.setdefault(kind, []):
            self.record[kind].append(value)
            self.write()

    def write(self):
        self.file.write(self.record)

    def run(self, words, *command):
        self.made.append(words)
        if self.module.check_mode:
            return
        rc, out, err = self.module.run_command([self.module.get_bin_path(command[0], required=True, opt_dirs=["/usr/sbin", "/sbin"])] + list(command[1:]))
        if rc != 0:
            self.module.fail_json(msg="%s: %s failed: %s. Correct what it names on this host, and run this again: what was created stays"
                                  % (words, command[0], (err or out).strip()), made=self.made)

    def present(self, users, groups, keys):
        # A user without groups gets one with the same number. The number that useradd chooses would differ between hosts.
        groups = groups + [{"name": user["name"], "gid": user["uid"]} for user in users if not user["groups"]]
        users = [dict(user, groups=user["groups"] or [user["name"]]) for user in users]
        keys.plan(self.module.params["keys"], {user["name"]: user["groups"] for user in users})
        clashes = account_clashes({user["name"]: user["uid"] for user in users}, {group["name"]: group["gid"] for group in groups})
        if clashes:
            self.module.fail_json(msg="; ".join("%s is requested, this host has %s" % (clash["asked"], clash["found"]) for clash in clashes)
                                  + ". Nothing was created. Use ids that are free on all hosts, or the ones that the hosts have", clashes=clashes)
        for group in groups:
            if not find_group(group["name"]):
                self.note("groups", group["name"])
                self.run("group %s" % group["name"], "groupadd", "--gid", str(group["gid"]), group["name"])
        for user in users:
            if not find_user(user["name"]):
                self.note("users", user["name"])
                self.run("user %s" % user["name"], "useradd", "--no-create-home", "--home-dir", os.path.join(self.module.params["homes"], user["name"]),
                         "--uid", str(user["uid"]), "--gid", user["groups"][0], "--no-user-group", "--shell", user["shell"], user["name"])
            entry = find_user(user["name"])
            for name in user["groups"][0 if entry else 1:]:
                group = find_group(name)
                if group and (user["name"] in group.gr_mem or (entry and entry.pw_gid == group.gr_gid)):
                    continue
                self.note("members", [name, user["name"]])
                self.run("%s in group %s" % (user["name"], name), "gpasswd", "--add", user["name"], name)

    def former(self):
        for name, user in list(self.record.get("members", [])):
            group = find_group(name)
            if group and user in group.gr_mem and user not in self.record.get("users", []) and name not in self.record.get("groups", []):
                self.run("%s no longer in group %s" % (user, name), "gpasswd", "--delete", user, name)
        for user in list(self.record.get("users", [])):
            if find_user(user):
                # The user's files on the share stay, with the number as their owner.
                self.run("user %s removed" % user, "userdel", user)
        for name in list(self.record.get("groups", [])):
            if find_group(name):
                self.run("group %s removed" % name, "groupdel", name)
        self.record = {}
        self.write()


def main():
    module = AnsibleModule(
        argument_spec={
            "groups": {
                "type": "list", "elements": "dict", "default": [],
                "options": {"name": {"type": "str", "required": True}, "gid": {"type": "int", "required": True}},
            },
            "users": {
                "type": "list", "elements": "dict", "default": [],
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
            "sshd_drop_in": {"type": "path", "default": "/etc/ssh/sshd_config.d/00-trainyard-people.conf"},
            "record": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["present", "former"], "default": "present"},
        },
        supports_check_mode=True,
    )
    accounts = Accounts(module)
    keys = PeopleKeys(module, *[module.params[name] for name in ("keys_folder", "sshd_config", "sshd_drop_in")])
    if module.params["state"] == "former":
        # Before the accounts, so that nobody logs in while they are removed.
        keys.plan({}, {})
        reload = keys.write()
        accounts.former()
    else:
        accounts.present(module.params["users"], module.params["groups"], keys)
        reload = keys.write()
    files = keys.files
    module.exit_json(changed=bool(accounts.made or files.changed_paths), made=accounts.made, changed_paths=files.changed_paths, reload=reload, diff=files.diff)


if __name__ == "__main__":
    main()
