# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: nfs_server_plan
short_description: Plan the exports of an NFS server and list conflicts
version_added: "0.3.0"
description:
  - Completes the exports with their clients and options, and compares them and the settings with the result of M(trainyard.gpu.nfs_server_info).
  - Before the host is read, pass an empty dictionary. C(served), C(wanted), C(let_in), C(folders) and C(has_settings) are then complete, except for the former
    clients that are kept while a member does not answer.
options:
  _input:
    description: Result of M(trainyard.gpu.nfs_server_info) for C(wanted).
    type: dict
    required: true
  exports:
    description: Entries with C(path), and optionally C(options) and C(clients).
    type: list
    elements: dict
    required: true
  members:
    description: C(cluster_members) of role C(trainyard.gpu.cluster).
    type: list
    elements: dict
    required: true
  host:
    description: Inventory name of the server.
    type: str
    required: true
  inventory_addresses:
    description: Addresses that the inventory has for members that do not answer.
    type: list
    elements: str
    default: []
  clients:
    description: Clients of all exports in addition to the members.
    type: list
    elements: str
    default: []
  options:
    description: Options of exports without their own options.
    type: list
    elements: str
    required: true
  anonymous:
    description: C(uid) and C(gid) to which root of the clients is mapped.
    type: dict
    required: true
  settings:
    description: C(threads), C(lease_seconds) and C(grace_seconds), 0 for any; C(versions), empty for any.
    type: dict
    required: true
  firewall:
    description: Whether to open a firewall for the clients.
    type: bool
    default: true
  require_mount:
    description: Whether an exported folder must not be on the root file system.
    type: bool
    default: false
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Fail if an export conflicts with one of the site
  ansible.builtin.assert:
    that: plan.problems == []
    fail_msg: "{{ plan.problems | join('; ') }}"
  vars:
    plan: >-
      {{ found | trainyard.gpu.nfs_server_plan(exports=[{'path': '/data1/share'}], members=cluster_members, host=inventory_hostname, options=['rw', 'sync'],
                                               anonymous={'uid': 65534, 'gid': 65534},
                                               settings={'threads': 0, 'versions': [], 'lease_seconds': 0, 'grace_seconds': 0}) }}
"""

RETURN = r"""
_value:
  description: The plan.
  type: dict
  contains:
    served:
      description: C(path), C(clients) and C(options) of each export that has clients.
      type: list
      elements: dict
    wanted:
      description: One entry per export and client, the value of O(trainyard.gpu.nfs_server_info#module:exports).
      type: list
      elements: dict
    let_in:
      description: Addresses and networks for which a firewall must be open.
      type: list
      elements: str
    folders:
      description: Exported folders, for M(trainyard.gpu.shared_folders).
      type: list
      elements: dict
    has_settings:
      description: Whether any setting is requested.
      type: bool
    settings_differ:
      description: Whether the running server has other settings than requested.
      type: bool
    problems:
      description: Conflicts with other exports and with the folders' mounts, one sentence each.
      type: list
      elements: str
"""

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _nfs_server_plan


def nfs_server_plan(found, exports, members, host, options, anonymous, settings, inventory_addresses=(), clients=(), firewall=True, require_mount=False):
    cluster = _nfs_server_plan.cluster_clients(members, host, inventory_addresses, found.get("own_clients") or [])
    return _nfs_server_plan.nfs_server_plan(found, exports, cluster, clients, options, anonymous, settings, firewall, require_mount)


class FilterModule:
    """Filters for the plan of role nfs_server."""

    def filters(self):
        return {"nfs_server_plan": nfs_server_plan}
