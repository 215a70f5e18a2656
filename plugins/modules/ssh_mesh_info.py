#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ssh_mesh_info
short_description: Test ssh logins from a training container to all others
version_added: "0.1.0"
description:
  - Logs in to all O(peers) at the same time from inside the container, with the ssh that jobs use
    and with host key checking.
  - Returns limits and environment of each session, or why the login failed. A failed login is a
    result and not a failure of the module.
  - With O(address), each session also connects back to a random port of this host, as ranks do to
    find each other. This detects a firewall that permits only sshd's port.
options:
  container:
    description: Name of the training container on this host.
    type: str
    required: true
  peers:
    description: Hosts to log in to, by the names that jobs use. Include the host itself, because a
      job's launcher may log in there too.
    type: list
    elements: str
    required: true
  address:
    description: This host's address on the cluster network. If empty, nothing connects back.
    type: str
    default: ""
  environment:
    description: Environment variables of the session to return.
    type: list
    elements: str
    default: [PATH, LD_LIBRARY_PATH]
  wait:
    description: Maximum time in seconds to retry while sshd is starting.
    type: int
    default: 20
  timeout:
    description: Maximum time in seconds for one connection. A whole login, with its session, may
      take three times as long.
    type: int
    default: 5
  executable:
    description: The ssh client in the container.
    type: path
    default: /usr/local/lib/trainyard/bin/ssh
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
  - trainyard.gpu.attributes.internal
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Log in to every container from this one
  trainyard.gpu.ssh_mesh_info:
    container: trainyard-training
    peers: [server-a, server-b]
  register: mesh
"""

RETURN = r"""
available:
  description: Whether the container answered.
  returned: always
  type: bool
cause:
  description: Why it did not answer, such as V(container_not_running) or V(engine_unavailable);
    empty if it answered.
  returned: always
  type: str
fix:
  description: What to do about it; empty if nothing is wrong.
  returned: always
  type: str
container:
  description: Docker's data of this host's container, for comparison with sessions on it.
  returned: always
  type: dict
  contains:
    id:
      description: Its id.
      type: str
    memlock:
      description: Limit of locked memory as C(ulimit -l) prints it, in KiB or V(unlimited); null if
        the container has none.
      type: str
    environment:
      description: Variables of O(environment) that image and container set.
      type: dict
logins:
  description: One entry per peer, in the order of O(peers).
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: Name as given.
      type: str
    ok:
      description: Whether the login worked.
      type: bool
    cause:
      description:
        - Why it failed. One of V(host_key_changed), V(host_key_unknown), V(login_refused),
          V(name_unresolved), V(connection_refused), V(timeout), V(no_banner) (connections are
          accepted but sshd does not answer), V(path_mtu) (the key exchange hangs, as packets of
          full size are lost), V(session_hangs) (the login works, but its shell does not run the
          command), V(session_ends) (it ends before that), V(unreachable), V(connection_closed),
          V(ssh_missing), V(unknown); empty if it worked.
      type: str
    fix:
      description: What to do about it; empty if it worked.
      type: str
    evidence:
      description: The line that shows the cause; empty if it worked.
      type: str
    session:
      description: Properties of the session; empty if there was none.
      type: dict
      contains:
        hostname:
          description: Name of the host.
          type: str
        container_id:
          description: Id of the container.
          type: str
        memlock:
          description: Output of C(ulimit -l), in KiB or V(unlimited).
          type: str
        clock_ahead_s:
          description:
            - Lower and upper bound in seconds by which its clock is ahead of this host's (negative
              if it is behind). They differ by the duration of the login.
            - Null if a clock cannot be read.
          type: list
          elements: float
          sample: [-0.183, 0.02]
        way_back:
          description: Result of the connection to this host's port, V(open) or the error; empty
            without O(address).
          type: str
        environment:
          description: Variables of O(environment) that are set.
          type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._ssh_mesh import ParseError
from ansible_collections.trainyard.gpu.plugins.module_utils._ssh_mesh_logins import (
    LOGIN_OPTIONS,
    try_logins,
)


def main():
    module = AnsibleModule(
        argument_spec={
            "container": {"type": "str", "required": True},
            "peers": {"type": "list", "elements": "str", "required": True},
            "address": {"type": "str", "default": ""},
            "environment": {
                "type": "list",
                "elements": "str",
                "default": LOGIN_OPTIONS["environment"],
            },
            "wait": {"type": "int", "default": 20},
            "timeout": {"type": "int", "default": LOGIN_OPTIONS["timeout"]},
            "executable": {"type": "path", "default": LOGIN_OPTIONS["executable"]},
        },
        supports_check_mode=True,
    )
    try:
        result = try_logins(module, module.params, module.params["wait"])
    except ParseError as error:
        module.fail_json(
            msg="the output of container %s cannot be parsed: %s. If a program or shell profile of "
            "the image prints the line, remove that. "
            "Else report it as a fault of the collection" % (module.params["container"], error)
        )
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
