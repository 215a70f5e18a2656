#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: own_name
short_description: Map the name of the host in /etc/hosts to its address
version_added: "0.2.0"
description:
  - Debian and Ubuntu write C(127.0.1.1) and the host's own name into C(/etc/hosts). A rank that
    looks up its own name then announces a loopback address to the other ranks.
  - Such a line is replaced and kept as a comment, so that V(absent) restores it exactly. All other
    lines, and other names of that line, stay.
  - If no line maps the own name to the loopback, nothing is changed.
author:
  - trainyard maintainers (@trainyard)
options:
  address:
    description: Address of the own name. Required for O(state=present).
    type: str
  state:
    description: V(absent) restores the former line.
    type: str
    choices: [present, absent]
    default: present
  path:
    description: Path of the hosts file.
    type: path
    default: /etc/hosts
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.internal
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
notes:
  - cloud-init rewrites the file at each boot if its C(manage_etc_hosts) is on. Then add the line to
    its template.
"""

EXAMPLES = r"""
- name: Point the own name at the cluster address
  trainyard.gpu.own_name:
    address: 10.0.0.11
"""

RETURN = r"""
hostname:
  description: The host's own name.
  returned: success
  type: str
"""

import os
import socket

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import read_text
from ansible_collections.trainyard.gpu.plugins.module_utils._input_kinds import is_ip, show
from ansible_collections.trainyard.gpu.plugins.module_utils._own_name import (
    with_own_name,
    without_own_name,
)


def main():
    module = AnsibleModule(
        argument_spec={
            "address": {"type": "str"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "path": {"type": "path", "default": "/etc/hosts"},
        },
        supports_check_mode=True,
        required_if=[("state", "present", ["address"])],
    )
    path, hostname, address = module.params["path"], socket.gethostname(), module.params["address"]
    if module.params["state"] == "present" and not is_ip(address):
        module.fail_json(
            msg="address: '%s' is not an address; use one such as 10.0.0.11" % show(address)
        )
    before = read_text(path)
    after = (
        with_own_name(before, hostname, address)
        if module.params["state"] == "present"
        else without_own_name(before)
    )
    if after != before and not module.check_mode:
        new = os.path.join(module.tmpdir, "hosts")
        with open(new, "w", encoding="utf-8") as stream:
            stream.write(after)
        # In a container the file is a mount, which cannot be replaced.
        module.atomic_move(new, path, unsafe_writes=True)
    module.exit_json(
        changed=after != before,
        hostname=hostname,
        diff={"before_header": path, "after_header": path, "before": before, "after": after},
    )


if __name__ == "__main__":
    main()
