#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ssh_mesh_keys
short_description: Create and read the ssh keys of the training container
version_added: "0.1.0"
description:
  - Creates missing ones of two ed25519 key pairs on the host, the host key of the container's sshd
    and the client key of the container. Private keys never leave the host.
  - Returns the public keys, the host's record of the cluster's keys, and whether the container's
    sshd has read its files.
options:
  directory:
    description: Directory of the keys. If it is missing, it is created for root only.
    type: path
    default: /etc/trainyard/ssh
  record:
    description: The host's record of the cluster, a JSON file with C(hosts[].name),
      C(hosts[].host_key) and C(hosts[].public_key).
    type: path
    default: /etc/trainyard/cluster.json
  rotate:
    description: Replace existing key pairs.
    type: bool
    default: false
  comment:
    description: Comment of new keys, such as the host's name.
    type: str
    default: ''
  container:
    description: Name of the container whose sshd is checked. If empty, none is.
    type: str
    default: ''
  pid_file:
    description: File in the container that its sshd writes after it has read its files.
    type: path
    default: /run/trainyard-sshd.pid
  files:
    description: Files of the host whose checksums and permissions are returned.
    type: list
    elements: path
    default: []
  address:
    description: Address on which the container's sshd listens. If empty, no connection is tried.
    type: str
    default: ''
  port:
    description: Its port.
    type: int
    default: 12345
  peers:
    description:
      - Hosts that the container logs in to once, as M(trainyard.gpu.ssh_mesh_info) does. The result
        is in RV(logins).
      - No login is tried if this run has changed something, or if sshd does not run with its
        current files.
    type: list
    elements: str
    default: []
    version_added: "0.4.0"
  timeout:
    description: Maximum time in seconds to wait for its banner, and for a login.
    type: int
    default: 5
  executable:
    description: The program that creates keys.
    type: path
    default: ssh-keygen
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.internal
  - trainyard.gpu.attributes.known
attributes:
  check_mode:
    support: full
    details:
      - The public key of keys that would be created is empty.
  diff_mode:
    support: none
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Create the keys of this host
  trainyard.gpu.ssh_mesh_keys:
    comment: "{{ inventory_hostname }}"
    container: trainyard-training
  register: keys

- name: Read the keys of a host outside the play without creating any
  trainyard.gpu.ssh_mesh_keys:
  delegate_to: server-b
  check_mode: true
  register: keys_of_b
"""

RETURN = r"""
host_key:
  description: Public host key of sshd, without comment; empty if there is none yet.
  returned: success
  type: str
  sample: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExample
public_key:
  description: Public client key of the container, without comment; empty if there is none yet.
  returned: success
  type: str
sent:
  description: V(false) if O(known) was returned.
  returned: if it is V(false)
  type: bool
  version_added: "0.4.0"
made:
  description: Key files that were created, or would be in check mode.
  returned: success
  type: list
  elements: str
rotated:
  description: Whether existing keys were replaced, or would be in check mode.
  returned: success
  type: bool
recorded:
  description: Content of O(record); empty if there is none.
  returned: success
  type: dict
image_id:
  description: Id of the image of O(container); empty if there is none.
  returned: success
  type: str
post_quantum:
  description: Whether OpenSSH in the running O(container) has a post-quantum key exchange (by
    default from release 9.0 on).
  returned: success
  type: bool
checksums:
  description: SHA-256 checksums of the existing files among O(files).
  returned: success
  type: dict
permissions:
  description: Their permissions in octal digits, such as V(0600).
  returned: success
  type: dict
authorized:
  description: Lines of C(authorized_keys) in O(directory), at most 1000. They are public keys.
  returned: success
  type: list
  elements: str
  version_added: "0.4.0"
effective:
  description:
    - Settings of the running container's sshd, as C(sshd -T) takes them from C(sshd_config) in
      O(directory), by name in lower case.
    - Empty if the container does not run, or if its sshd rejects the file.
  returned: success
  type: dict
  sample: {passwordauthentication: ["no"], listenaddress: ["10.0.0.11:12345"]}
  version_added: "0.4.0"
listens:
  description: Addresses of this host on which something listens on O(port).
  returned: success
  type: list
  elements: str
  version_added: "0.4.0"
sshd:
  description: The container's sshd.
  returned: success
  type: dict
  contains:
    running:
      description: Whether it was started in the running container.
      type: bool
    reload_needed:
      description: Whether C(sshd_config) or the host key changed after it read them.
      type: bool
    frozen:
      description: Whether it accepts connections to O(address) but sends no banner, because the
        process is stopped or hangs.
      type: bool
logins:
  description: What M(trainyard.gpu.ssh_mesh_info) returns for O(peers); empty if no login was
    tried.
  returned: success
  type: dict
  version_added: "0.4.0"
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._ssh_mesh_keys import (
    KEYS_OPTIONS,
    keys_state,
)


def main():
    module = AnsibleModule(
        argument_spec=dict(
            KEYS_OPTIONS,
            known={"type": "dict", "default": {}},
            question={"type": "str", "default": ""},
        ),
        supports_check_mode=True,
    )
    module.exit_json(**keys_state(module))


if __name__ == "__main__":
    main()
