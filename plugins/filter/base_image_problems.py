# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: base_image_problems
short_description: Check whether Horovod can be compiled on a base image
version_added: "0.1.0"
description:
  - Use it before an image build, which can take hours.
options:
  _input:
    description: Output of step C(probe) of the recipe for the base image.
    type: dict
    required: true
  base:
    description: Name of the base image.
    type: str
    required: true
  requires:
    description: Required parts of Horovod, in lists C(frameworks), C(controllers), C(tensor_operations).
    type: dict
    required: true
  variables:
    description: Build variables for Horovod.
    type: dict
    required: true
  python_packages:
    description: Python packages that are added to the base.
    type: list
    elements: str
    required: true
  apt_packages:
    description: Debian packages that are added to the base.
    type: list
    elements: str
    required: true
  nccl_version:
    description: The requested NCCL version; empty for that of the base.
    type: str
    required: true
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Check that the base image can meet the requirements
  ansible.builtin.assert:
    that: problems | length == 0
    fail_msg: "{{ problems | join('\n') }}"
  vars:
    problems: >-
      {{ probe.stdout | from_json
         | trainyard.gpu.base_image_problems(base=training_image_base, requires=training_image_requires, variables={}, python_packages=[],
                                             apt_packages=[], nccl_version='') }}
"""

RETURN = r"""
_value:
  description: One sentence per problem, with variable, value and fix. Empty if there are none.
  type: list
  elements: str
"""

from ansible_collections.trainyard.gpu.plugins.module_utils._recipe import base_problems


def base_image_problems(probe, base, requires, variables, python_packages, apt_packages, nccl_version):
    return base_problems(base, probe, requires, variables, python_packages, apt_packages, nccl_version)


class FilterModule:
    def filters(self):
        return {"base_image_problems": base_image_problems}
