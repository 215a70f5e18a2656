# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: nvidia_driver_plan
short_description: Plan the driver of a host and list conflicts
version_added: "0.2.0"
description:
  - Selects the kernel module by the generation of the GPUs and the compatibility data of role preflight, and the packages by the source of the driver.
  - Use it before anything is changed.
options:
  _input:
    description: Result of M(trainyard.gpu.gpu_stack_info) for the host, with its record.
    type: dict
    required: true
  source:
    description: V(distribution), V(nvidia_repository) or V(runfile).
    type: str
    required: true
  version:
    description: V(recommended), a branch, or an exact version.
    type: str
    required: true
  kernel_module:
    description: V(auto), V(open) or V(proprietary).
    type: str
    required: true
  fabric_manager:
    description: V(auto), V(always) or V(never).
    type: str
    required: true
  data:
    description: C(system), the distribution's id; C(families), packages by source and system; C(recommended_by), the tool by system.
    type: dict
    required: true
  recommended:
    description: The branch that the tool recommends, after it was run.
    type: str
    default: ''
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Fail if the plan has problems
  ansible.builtin.assert:
    that: plan.problems == []
    fail_msg: "{{ plan.problems | join('; ') }}"
  vars:
    plan: >-
      {{ stack | trainyard.gpu.nvidia_driver_plan(source='nvidia_repository', version='570', kernel_module='auto', fabric_manager='auto', data=packages) }}
"""

RETURN = r"""
_value:
  description: >-
    C(problems); C(kernel_module), open or proprietary; C(generations) of the GPUs; C(own_kernel), false in a container; C(signed), whether the distribution
    signs the modules; C(fabric_manager); C(asked), versions in the order of preference; C(recommended_by), the tool to run; C(families), lists of packages of
    which the first available one is used; C(headers), missing packages; C(kernels_without_package); C(key), the required key of a valid record; C(installed),
    whether everything is installed as requested; C(stays), a driver from another source that is left alone because no version is requested; C(driver_packages)
    and C(former), the installed driver and its version.
  type: dict
"""

from ansible_collections.trainyard.gpu.plugins.plugin_utils._compat import Compatibility, load_facts
from ansible_collections.trainyard.gpu.plugins.plugin_utils._driver_plan import plan


def nvidia_driver_plan(found, source, version, kernel_module, fabric_manager, data, recommended=""):
    facts = load_facts()
    asked = {"source": source, "version": version, "kernel_module": kernel_module, "fabric_manager": fabric_manager}
    return plan(found, facts, Compatibility(facts).generation, asked, data, recommended)


class FilterModule:
    def filters(self):
        return {"nvidia_driver_plan": nvidia_driver_plan}
