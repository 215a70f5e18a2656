#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: judge_input
short_description: Check every role variable of all hosts in advance
version_added: "0.1.0"
description:
  - A role's own argument validation runs when the role starts, after other roles have changed the host, and knows no ranges.
    This reads the argument specs, defaults and C(meta/input_rules.yml) of all roles of the collection as data
    and judges what the inventory says against them, at once.
  - Judges the inventory's shape, too - group C(cluster), head, storage, names, addresses.
  - Names that are nearly a known one are refused. Other names that begin like a role's variables but that no role has are warned of.
  - Hosts that have the same values are judged once.
  - Runs on the controller only, and needs no connection. Use it with C(run_once).
  - Whether a variable without a default is needed is left to the role that uses it.
options:
  fail_on:
    description:
      - V(block) fails for findings that block, V(warn) for warnings too.
      - Not given, it is what variable C(preflight_fail_on) says.
    type: str
    choices: [block, warn]
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Judge the input
  trainyard.gpu.judge_input:
  run_once: true
"""

RETURN = r"""
msg:
  description: All findings as text.
  returned: always
  type: str
findings:
  description: What is wrong, one entry for each variable and host. Empty where all is good.
  returned: always
  type: list
  elements: dict
  contains:
    id:
      description: Identifier of the check, never renamed.
      type: str
      sample: input-range
    host:
      description: Inventory name of the host, several where the finding is about several.
      type: str
    verdict:
      description: V(fail) or V(warn).
      type: str
    expected:
      description: What is allowed.
      type: str
    found:
      description: What the inventory says. Not shown for options that hold secrets.
      type: str
    source:
      description: Name of the variable, or V(inventory).
      type: str
    seconds:
      description: Always V(0.0), as nothing is asked.
      type: float
    fix:
      description: What to do.
      type: str
evaluations:
  description: How many expressions were compiled. It depends on what the inventory sets, and hardly on the number of hosts.
  returned: always
  type: int
seconds:
  description: How long all of it took, in seconds.
  returned: always
  type: float
"""
