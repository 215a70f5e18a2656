# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: stack_problems
short_description: List where a GPU stack differs from the requested one
version_added: "0.2.0"
description:
  - Lists the problems in a result of M(trainyard.gpu.gpu_stack_info) - packages of other versions, packages that are not held or only partly installed, a
    pending reboot, a driver that the next boot will break.
positional: asked, driver
options:
  _input:
    description: Result of M(trainyard.gpu.gpu_stack_info).
    type: dict
    required: true
  asked:
    description: Requested versions by package, as in option C(asked) of M(trainyard.gpu.gpu_stack_info). Those in the C(record) of role C(nvidia_driver) are
      requested too.
    type: dict
    default: {}
  driver:
    description: The requested version or branch of the driver; empty for any.
    type: str
    default: ""
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
problems: "{{ stack | trainyard.gpu.stack_problems({'libnccl2': '2.21.5-1+cuda12.4'}) }}"
"""

RETURN = r"""
_value:
  description: The problems; empty if there are none.
  type: list
  elements: dict
  contains:
    what:
      description: Name of a package or another subject.
      type: str
    asked:
      description: The requested state.
      type: str
    found:
      description: The state on the host.
      type: str
"""


def stack_problems(answer, asked=None, driver=""):
    # Imported when it is called, as Ansible loads all filters of a collection for the first one that a task uses.
    from ansible_collections.trainyard.gpu.plugins.plugin_utils._drift import problems

    return problems(answer, asked or {}, driver)


class FilterModule:
    """Filters that compare the GPU stack with the requested one."""

    def filters(self):
        return {"stack_problems": stack_problems}
