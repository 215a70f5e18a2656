#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: stack_drift
short_description: Compare the GPU stack of all hosts with the requested one
version_added: "0.2.0"
description:
  - Prints one table for the hosts of the play, and fails where a host differs from what was asked, after all hosts are in it.
  - A host that no longer takes part in the play did not answer. The table says so; ansible-playbook's own exit code tells of it.
  - Runs on the controller only, and needs no connection. Use it with C(run_once).
options:
  answers:
    description: Name of the variable that holds, on every host, what M(trainyard.gpu.gpu_stack_info) has answered.
    type: str
    required: true
  asked:
    description: Name of the variable that holds, on every host, the versions by package that are asked for.
    type: str
    required: true
  driver:
    description: Name of the variable that holds, on every host, the driver's version or branch that is asked for; empty for any.
    type: str
    required: true
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Ask the host
  trainyard.gpu.gpu_stack_info:
    asked: "{{ wanted }}"
  register: stack

- name: Show what differs
  trainyard.gpu.stack_drift:
    answers: stack
    asked: wanted
    driver: wanted_driver
  run_once: true
"""

RETURN = r"""
msg:
  description: On how many hosts something differs, and on which.
  returned: always
  type: str
  sample: "drift on 1 of 2 hosts: server-b"
hosts:
  description: The hosts, in the inventory's order.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: Inventory name.
      type: str
    asked:
      description: Number of packages that are asked for.
      type: int
    problems:
      description: What is wrong - what, asked, found. Null where the host did not answer.
      type: list
      elements: dict
"""
