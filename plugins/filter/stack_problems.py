# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: stack_problems
short_description: List where a GPU stack differs from the requested one
version_added: "0.2.0"
description:
  - Puts an answer of M(trainyard.gpu.gpu_stack_info) into what is wrong with the host - packages of other versions, packages that are not held or were
    broken off, a reboot that was skipped, a driver that the next boot will break.
positional: asked, driver
options:
  _input:
    description: What M(trainyard.gpu.gpu_stack_info) has answered.
    type: dict
    required: true
  asked:
    description: Versions by package, as option C(asked) of M(trainyard.gpu.gpu_stack_info). Those in the C(record) of role C(nvidia_driver) are asked for too.
    type: dict
    default: {}
  driver:
    description: The driver's version or branch that is asked for; empty for any.
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
  description: What is wrong; empty where nothing is.
  type: list
  elements: dict
  contains:
    what:
      description: A package, or what else it is about.
      type: str
    asked:
      description: What it should be.
      type: str
    found:
      description: What it is.
      type: str
"""

from ansible_collections.trainyard.gpu.plugins.plugin_utils._drift import problems


def stack_problems(answer, asked=None, driver=""):
    return problems(answer, asked or {}, driver)


class FilterModule:
    """What of the GPU stack is not as it was asked for."""

    def filters(self):
        return {"stack_problems": stack_problems}
