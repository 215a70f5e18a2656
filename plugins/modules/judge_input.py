#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: judge_input
short_description: Check every role variable of all hosts in advance
version_added: "0.1.0"
description:
  - A role's argument validation runs when the role starts, after other roles have changed the host,
    and does not check ranges. This module checks the inventory in advance against the argument
    specs, defaults and C(meta/input_rules.yml) of all roles of the collection.
  - Also checks the structure of the inventory - group C(cluster), head, storage, names, addresses.
  - Fails for variable names that are nearly a known one. Warns of other unknown names with the
    prefix of a role.
  - Hosts with the same values are checked once.
  - Runs on the controller only and needs no connection. Use it with C(run_once).
  - A variable that uses C(cluster_host) or C(cluster_members) cannot be checked before role
    P(trainyard.gpu.cluster#role) has set them. It is in RV(deferred), and the role runs this module
    again afterwards. This is why the playbooks of the collection run their roles with
    C(rolespec_validate=false).
options:
  fail_on:
    description:
      - V(block) fails for blocking findings, V(warn) also for warnings.
      - The default is the value of variable C(preflight_fail_on).
    type: str
    choices: [block, warn]
extends_documentation_fragment:
  - trainyard.gpu.attributes.posix_info
  - trainyard.gpu.attributes.internal
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Check the input
  trainyard.gpu.judge_input:
  run_once: true
"""

RETURN = r"""
msg:
  description: All findings as text. If no finding stops the run, one sentence with the number of
    checked hosts, and of role variables that the inventory sets.
  returned: always
  type: str
findings:
  description: Problems, one entry per variable and host. Empty if there are none.
  returned: always
  type: list
  elements: dict
  contains:
    id:
      description: Identifier of the check, never renamed.
      type: str
      sample: input-range
    host:
      description: Inventory name of the host, or several names if the finding is about several
        hosts.
      type: str
    verdict:
      description: V(fail) or V(warn).
      type: str
    expected:
      description: What is allowed.
      type: str
    found:
      description: The value in the inventory. Not shown for options that hold secrets.
      type: str
    source:
      description: Name of the variable, or V(inventory).
      type: str
    seconds:
      description: Always V(0.0), because nothing is measured.
      type: float
    fix:
      description: What to do.
      type: str
deferred:
  description: Variables of the inventory that were not checked, because they use facts that role
    P(trainyard.gpu.cluster#role) has not set yet.
  returned: always
  type: list
  elements: str
  version_added: "0.4.0"
evaluations:
  description: Number of compiled expressions. It depends on the variables in the inventory and
    hardly on the number of hosts.
  returned: always
  type: int
seconds:
  description: Duration in seconds.
  returned: always
  type: float
"""
