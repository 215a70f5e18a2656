# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: infiniband_plan
short_description: Plan modules and packages for fabric adapters
version_added: "0.3.0"
description:
  - Plans the kernel modules, packages and files that the InfiniBand and RoCE adapters of a host need.
  - Before the host is read, pass an empty dictionary. Only C(kernel_modules) is then of use.
options:
  _input:
    description: Result of M(trainyard.gpu.infiniband_info) for C(kernel_modules), O(packages) and O(placed_paths).
    type: dict
    required: true
  packages:
    description: Requested packages. They are not needed if the vendor's OFED is installed.
    type: list
    elements: str
    required: true
  placed_paths:
    description: Files that role C(trainyard.gpu.infiniband) may have written.
    type: list
    elements: str
    required: true
  names_file:
    description: The one of O(placed_paths) that replaces a rule of rdma-core. It may also be the user's.
    type: str
    required: true
  names_rule:
    description: Content of O(names_file) as the role writes it.
    type: str
    required: true
  persistent_names:
    description: Whether devices are named by their place on the PCI bus.
    type: bool
    required: true
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Report the kernel modules that are not loaded
  ansible.builtin.debug:
    msg: >-
      {{ (found | trainyard.gpu.infiniband_plan(packages=['rdma-core'], placed_paths=[rule], names_file=rule, names_rule='# mine\n',
                                                persistent_names=false)).unloaded }}
  vars:
    rule: /etc/udev/rules.d/60-rdma-persistent-naming.rules
"""

RETURN = r"""
_value:
  description: The plan.
  type: dict
  contains:
    kernel_modules:
      description: Modules whose state the plan needs.
      type: list
      elements: str
    missing_packages:
      description: Packages to install.
      type: list
      elements: str
    modules:
      description: Modules to load at boot.
      type: list
      elements: str
    lacking:
      description: Needed modules that the running kernel does not have.
      type: list
      elements: str
    unloaded:
      description: Modules to load now.
      type: list
      elements: str
    own_paths:
      description: The existing ones of O(placed_paths) that the role has written.
      type: list
      elements: str
    keeps_names:
      description: Whether O(names_file) is written, so that devices keep the kernel's names.
      type: bool
    ports:
      description: All ports with C(device), C(port), C(transport), C(state), C(rate_gb_s), C(netdev) and C(gid_index).
      type: list
      elements: dict
    summary:
      description: Sentences about the ports and what is unusual about the host.
      type: str
"""

from ansible_collections.trainyard.gpu.plugins.plugin_utils._infiniband_plan import infiniband_plan


class FilterModule:
    """Filters for the plan of role infiniband."""

    def filters(self):
        return {"infiniband_plan": infiniband_plan}
