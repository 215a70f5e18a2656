# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: upgrade_plan
short_description: Plan the upgrade of a host and list its faults
version_added: "0.3.0"
description:
  - Compares the GPU stack of a host with the requested one, as P(trainyard.gpu.stack_problems#filter) does, and with the answer of nvidia-smi.
positional: noted, asked, driver, smi
options:
  _input:
    description: Result of M(trainyard.gpu.gpu_stack_info).
    type: dict
    required: true
  noted:
    description: Snapshot of role C(upgrade) for the host; empty if there is none.
    type: dict
    default: {}
  asked:
    description: Requested versions by package. Without it, as in a rollback, only faults of the host itself count.
    type: dict
  driver:
    description: The requested version or branch of the driver; empty for any.
    type: str
    default: ''
  smi:
    description: Result of M(trainyard.gpu.nvidia_smi_info); empty or skipped if it was not read.
    type: dict
    default: {}
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Check that the host works
  ansible.builtin.assert:
    that: plan.faults == []
    fail_msg: "{{ plan.faults | join(' ') }}"
  vars:
    plan: "{{ stack | trainyard.gpu.upgrade_plan(asked={'libnccl2': '2.21.5-1+cuda12.4'}, smi=smi) }}"
"""

RETURN = r"""
_value:
  description: The plan.
  type: dict
  contains:
    needed:
      description: Whether the host differs from the request.
      type: bool
    over:
      description: Whether no upgrade of the host was begun that has not ended with a host that works.
      type: bool
    faults:
      description: Why the host does not work as requested, as sentences; empty if it does.
      type: list
      elements: str
"""


def upgrade_plan(found, noted=None, asked=None, driver="", smi=None):
    # Imported when it is called, as Ansible loads all filters of a collection for the first one that a task uses.
    from ansible_collections.trainyard.gpu.plugins.plugin_utils._upgrade_plan import plan

    return plan(found, noted or {}, asked, driver, smi)


class FilterModule:
    """Filters for the plan of role upgrade."""

    def filters(self):
        return {"upgrade_plan": upgrade_plan}
