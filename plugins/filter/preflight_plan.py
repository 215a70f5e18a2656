# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: preflight_plan
short_description: Plan what preflight checks on a host
version_added: "0.3.0"
description:
  - Determines the names that a host must resolve, the connections that it must be able to make, and the groups whose numbers it must have free.
  - A host that is known to be unreachable is not connected to.
options:
  _input:
    description: The hosts of the cluster, as in C(cluster_members).
    type: list
    elements: dict
    required: true
  host:
    description: Inventory name of the host.
    type: str
    required: true
  port:
    description: Port of sshd in the training containers.
    type: int
    required: true
  storage:
    description: Inventory name of the host that serves the shared folder.
    type: str
    required: true
  requested:
    description:
      - Requests of the inventory. C(mounts) and C(options), which are C(nfs_client_mounts) and C(nfs_client_options); C(clients) and C(exports), which are
        C(nfs_server_clients) and C(nfs_server_exports); C(users) and C(groups), which are C(shared_storage_users) and C(shared_storage_groups).
    type: dict
    default: {}
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Report the connections that preflight tries
  ansible.builtin.debug:
    msg: "{{ (cluster_members | trainyard.gpu.preflight_plan(host=inventory_hostname, port=12345, storage=cluster_storage)).connect }}"
"""

RETURN = r"""
_value:
  description: The plan.
  type: dict
  contains:
    names:
      description: Names of the other hosts, and on O(storage) of NFS clients that are given by name.
      type: list
      elements: str
    connect:
      description: Connections to try. C(name), C(address), C(port), and on the fabric network C(source), the host's own address.
      type: list
      elements: dict
      sample: [{name: server-b, address: 10.0.0.12, port: 12345}]
    groups:
      description: Number of each group, by name.
      type: dict
      sample: {vision: 3001}
"""

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _preflight_plan


def preflight_plan(members, host, port, storage, requested=None):
    asked = requested or {}
    return _preflight_plan.preflight_plan(members, host, port, storage, **{name: asked[name] for name in asked})


class FilterModule:
    """Filters for the plan of role preflight."""

    def filters(self):
        return {"preflight_plan": preflight_plan}
