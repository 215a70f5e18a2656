#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: managed_files
short_description: Manage many files, directories and links in one run
version_added: "0.1.0"
description:
  - Compares every entry of O(files) and O(absent) with the host, and changes only what differs.
  - One run handles all files of a role. M(ansible.builtin.copy), M(ansible.builtin.template) and
    M(ansible.builtin.file) need one run (0.2 s to 0.4 s over ssh) per file.
  - All new contents are validated before the first file is replaced. One invalid file leaves all
    files unchanged.
  - A file is replaced by rename, never truncated and rewritten.
author:
  - trainyard maintainers (@trainyard)
options:
  files:
    description:
      - Files, directories and links in the order in which they are created. List directories before
        their content.
      - Required unless O(absent) is given.
  absent:
    description:
      - Absolute paths of files, links and directories to remove, in this order and before O(files).
        List directories after their content. A directory that still has content stays, because its
        content is not the caller's.
    type: list
    elements: path
    version_added: "0.4.0"
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.files
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
notes:
  - Set C(no_log) to V(true) and C(diff) to V(false) on the task if a content is secret.
seealso:
  - module: ansible.builtin.copy
  - module: ansible.builtin.file
"""

EXAMPLES = r"""
- name: Configure the container's sshd
  trainyard.gpu.managed_files:
    files:
      - {path: /etc/trainyard, state: directory, mode: "0755"}
      - {path: /etc/trainyard/ssh, state: directory, mode: "0700"}
      - path: /etc/trainyard/ssh/sshd_config
        content: "{{ lookup('ansible.builtin.template', 'sshd_config.j2') }}"
        mode: "0600"
        validate: /usr/sbin/sshd -t -f %s

- name: Remove it
  trainyard.gpu.managed_files:
    absent: [/etc/trainyard/ssh/sshd_config, /etc/trainyard/ssh, /etc/trainyard]
"""

RETURN = r"""
changed_paths:
  description: Changed paths, in the order of O(absent) and O(files).
  returned: success
  type: list
  elements: str
  sample: [/etc/trainyard/ssh/sshd_config]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._managed_files import (
    ENTRY,
    ManagedFiles,
)


def entry_of(path):
    """An entry of O(files) that removes what is at a path."""
    return dict(
        {name: option.get("default") for name, option in ENTRY.items()},
        path=path,
        state="absent",
        leave_filled=True,
    )


def main():
    module = AnsibleModule(
        argument_spec={
            "files": {"type": "list", "elements": "dict", "options": ENTRY},
            "absent": {"type": "list", "elements": "path"},
        },
        required_one_of=[["files", "absent"]],
        supports_check_mode=True,
    )
    manager = ManagedFiles(module)
    manager.run(
        [entry_of(path) for path in module.params["absent"] or []] + (module.params["files"] or [])
    )
    module.exit_json(
        changed=bool(manager.changed_paths), changed_paths=manager.changed_paths, diff=manager.diff
    )


if __name__ == "__main__":
    main()
