#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: name_servers
short_description: Configure a site's name servers on a host
version_added: "0.2.0"
description:
  - On hosts with systemd-resolved they are written to a drop-in. On other hosts they are inserted
    before the entries of C(/etc/resolv.conf).
  - Existing entries stay. If O(servers) is empty, only they remain.
author:
  - trainyard maintainers (@trainyard)
options:
  servers:
    description: Addresses in the order of their use. If empty, the entries of an earlier run are
      removed.
    type: list
    elements: str
    required: true
  resolv_conf:
    description: Path of resolv.conf.
    type: path
    default: /etc/resolv.conf
  drop_in:
    description: Path of the drop-in for systemd-resolved.
    type: path
    default: /etc/systemd/resolved.conf.d/trainyard.conf
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.internal
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
"""

EXAMPLES = r"""
- name: Configure the site's name servers
  trainyard.gpu.name_servers:
    servers: [10.0.0.53, 10.0.0.54]
"""

RETURN = r"""
by:
  description: The resolver of the host, V(systemd-resolved) or V(resolv.conf).
  returned: success
  type: str
rewritten_by:
  description: Target of the link if another program manages resolv.conf; empty if it is a plain
    file. That program may overwrite the entries.
  returned: success
  type: str
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import read_text
from ansible_collections.trainyard.gpu.plugins.module_utils._input_kinds import is_ip, show
from ansible_collections.trainyard.gpu.plugins.module_utils._name_servers import (
    drop_in,
    with_servers,
)


def write(module, path, text):
    """Replaces the file at once.

    In a container it is a mount, which cannot be replaced, so it is then written in place.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    new = os.path.join(module.tmpdir, "name_servers")
    with open(new, "w", encoding="utf-8") as stream:
        stream.write(text)
    module.atomic_move(new, path, unsafe_writes=True)


def place(module, changed, path):
    """Write the changed files, {name: text}, and remove those without text.

    An empty folder of the drop-in C(path) is removed, too.
    """
    for name, text in changed.items():
        if text:
            write(module, name, text)
        else:
            os.unlink(name)
    folder = os.path.dirname(path)
    if changed.get(path) == "" and not os.listdir(folder):
        os.rmdir(folder)


def restart_resolved(module, path):
    systemctl = module.get_bin_path("systemctl", required=True)
    rc, stdout, stderr = module.run_command([systemctl, "restart", "systemd-resolved.service"])
    if rc:
        module.fail_json(
            msg="systemd-resolved does not start with %s: %s. Find the cause with 'journalctl "
            "--unit=systemd-resolved' on the host, "
            "correct it, and run this again" % (path, (stderr or stdout).strip())
        )


def check_servers(module):
    """Fail for the first server that is not an address."""
    wrong = [server for server in module.params["servers"] if not is_ip(server)]
    if wrong:
        module.fail_json(
            msg="servers: '%s' is not an address; use one such as 10.0.0.53" % show(wrong[0])
        )


def wanted_texts(servers, target, path, resolved):
    """Return the text of the drop-in of systemd-resolved at C(path) and of C(target), resolv.conf.

    What an earlier run has set in the other way is taken back too: a host may have changed its
    resolver.
    """
    if resolved:
        return {path: drop_in(servers) if servers else "", target: read_text(target)}
    return {path: "", target: with_servers(read_text(target), servers)}


def main():
    module = AnsibleModule(
        argument_spec={
            "servers": {"type": "list", "elements": "str", "required": True},
            "resolv_conf": {"type": "path", "default": "/etc/resolv.conf"},
            "drop_in": {"type": "path", "default": "/etc/systemd/resolved.conf.d/trainyard.conf"},
        },
        supports_check_mode=True,
    )
    servers, resolv_conf, path = (
        module.params[name] for name in ("servers", "resolv_conf", "drop_in")
    )
    check_servers(module)
    target = os.path.realpath(resolv_conf)
    resolved = "/systemd/resolve/" in target
    requested = wanted_texts(servers, target, path, resolved)
    changed = {name: text for name, text in requested.items() if text != read_text(name)}
    diff = [
        {"before_header": name, "after_header": name, "before": read_text(name), "after": text}
        for name, text in changed.items()
    ]
    if not module.check_mode:
        place(module, changed, path)
        if path in changed and resolved:
            restart_resolved(module, path)
    module.exit_json(
        changed=bool(changed),
        diff=diff,
        by="systemd-resolved" if resolved else "resolv.conf",
        rewritten_by=target if not resolved and target != os.path.abspath(resolv_conf) else "",
    )


if __name__ == "__main__":
    main()
