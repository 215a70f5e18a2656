#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: image_relay_logins
short_description: Manage the logins of the site's registry
version_added: "0.4.0"
description:
  - Creates a random password for each account, and removes those of former accounts. A password
    stays until its account is removed.
author:
  - trainyard maintainers (@trainyard)
options:
  folder:
    description: Absolute path of the folder for C(tokens.json) and C(htpasswd).
    type: path
    required: true
  accounts:
    description: Names of the accounts.
    type: list
    elements: str
    required: true
  group:
    description: Group that may read C(htpasswd).
    type: str
    required: true
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.internal
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
notes:
  - Set C(no_log) to V(true) on the task, because RV(logins) is secret.
"""

EXAMPLES = r"""
- name: Create the logins
  trainyard.gpu.image_relay_logins:
    folder: /etc/trainyard/registry
    accounts: [trainyard-relay, anna, ben]
    group: docker-registry
  register: access
  no_log: true
"""

RETURN = r"""
logins:
  description: C(user:password) of each account in base64, by name.
  returned: success
  type: dict
"""

import base64
import grp
import json
import os
import secrets

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import read_text


def tokens_of(former, accounts, make):
    """Return the passwords by account: the former ones, and new ones."""
    return {name: former.get(name) or make() for name in accounts}


class Logins:
    def __init__(self, module):
        self.module, self.params = module, module.params
        self.tokens, self.htpasswd = (
            os.path.join(self.params["folder"], name) for name in ("tokens.json", "htpasswd")
        )

    def hash_of(self, token):
        # Read from standard input, so that no list of processes has it.
        code, output, errors = self.module.run_command(
            [self.module.get_bin_path("openssl", required=True), "passwd", "-6", "-stdin"],
            data=token,
        )
        if code:
            self.module.fail_json(
                msg="openssl passwd failed: %s\nCorrect what it names, and run this again"
                % (errors or output).strip()
            )
        return output.strip()

    def write(self, path, content, mode, group=0):
        unfinished = path + ".unfinished"
        if os.path.lexists(unfinished):
            os.unlink(unfinished)
        handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            os.fchown(handle, 0, group)
            os.fchmod(handle, mode)
            stream.write(content)
            stream.flush()
            os.fsync(handle)
        os.rename(unfinished, path)

    def manage(self):
        """Return (passwords by account, whether they have changed)."""
        try:
            former = json.loads(read_text(self.tokens) or "{}")
        except ValueError as error:
            self.module.fail_json(
                msg=(
                    "%s is damaged (%s). Restore it from a backup, or remove it: then all people "
                    "get new passwords"
                )
                % (self.tokens, error)
            )
        tokens = tokens_of(
            former,
            self.params["accounts"],
            lambda: "" if self.module.check_mode else secrets.token_urlsafe(24),
        )
        known = (
            {line.partition(":")[0] for line in read_text(self.htpasswd).splitlines()}
            if os.path.exists(self.htpasswd)
            else set()
        )
        if tokens == former and known == set(tokens):
            return tokens, False
        if not self.module.check_mode:
            lines = [
                "%s:%s\n" % (name, self.hash_of(token)) for name, token in sorted(tokens.items())
            ]
            # In this order: a run that is killed in between creates the new passwords once more.
            self.write(
                self.htpasswd, "".join(lines), 0o640, grp.getgrnam(self.params["group"]).gr_gid
            )
            self.write(self.tokens, json.dumps(tokens, indent=2, sort_keys=True) + "\n", 0o600)
        return tokens, True


def main():
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "accounts": {"type": "list", "elements": "str", "required": True},
            "group": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    tokens, changed = Logins(module).manage()
    module.exit_json(
        changed=changed,
        logins={
            name: base64.b64encode(("%s:%s" % (name, token)).encode("utf-8")).decode("ascii")
            for name, token in tokens.items()
            if token
        },
    )


if __name__ == "__main__":
    main()
