#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: stack_drift
short_description: Compare the GPU stack of all hosts with the requested one
version_added: "0.2.0"
description:
  - Prints one table for the hosts of the play. Fails after the table if a host differs from the
    request.
  - A host that has dropped out of the play did not answer. The table shows that, and
    ansible-playbook's exit code reports it.
  - Runs on the controller only and needs no connection. Use it with C(run_once).
options:
  answers:
    description: Name of the variable that holds, on every host, the result of
      M(trainyard.gpu.gpu_stack_info).
    type: str
    required: true
  asked:
    description: Name of the variable that holds, on every host, the requested versions by package.
    type: str
    required: true
  driver:
    description: Name of the variable that holds, on every host, the requested version or branch of
      the driver; empty for any.
    type: str
    required: true
  more:
    description: Name of a variable that holds, on every host, a list of further differences with
      C(what), C(asked) and C(found).
    type: str
    version_added: "0.4.0"
  compared:
    description: Name of a variable that holds, on every host, a list of what was compared. The
      table names it for a host without differences.
    type: str
    version_added: "0.4.0"
extends_documentation_fragment:
  - trainyard.gpu.attributes.posix_info
  - trainyard.gpu.attributes.internal
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Gather the GPU stack
  trainyard.gpu.gpu_stack_info:
    asked: "{{ wanted }}"
  register: stack

- name: Report the differences
  trainyard.gpu.stack_drift:
    answers: stack
    asked: wanted
    driver: wanted_driver
  run_once: true
"""

RETURN = r"""
msg:
  description: Number and names of the hosts that differ.
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
      description: Number of requested packages.
      type: int
    compared:
      description: What was compared, from O(compared).
      type: list
      elements: str
      version_added: "0.4.0"
    problems:
      description: Differences - what, asked, found. Null if the host did not answer.
      type: list
      elements: dict
"""
