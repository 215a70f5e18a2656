#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: verify_report
short_description: Judge verify's findings and write its report
version_added: "0.2.0"
description:
  - Writes a folder named after the time (UTC) into O(report_dir), whole or not at all, and fails after that where the verdict is V(fail), with one message
    that names what failed, who is at fault, and what to do.
  - The verdict is V(fail) where a check failed, or where one that is required was not made on a host that it applies to, whatever kept it from being made.
    Where nobody has a finding for it, one is added, as V(not_evaluated).
  - C(report.html) is one file without scripts and without anything from elsewhere; its curves need matplotlib on the controller, without which it has their
    numbers alone and says so. The form of C(report.json) is fixed by C(plugins/plugin_utils/report.schema.json), the meaning of errors is in C(docs/errors.md).
  - C(suspect.yml) in O(report_dir) is an inventory with group C(suspect), empty where nobody is suspect. With C(-i) after the site's own inventory and
    C(--limit 'cluster:!suspect') a later run leaves these hosts out.
  - Earlier reports in O(report_dir) of the same cluster with the same hosts are what this one is compared with; other ones are passed over.
  - Passwords and tokens, which logs and answers may hold, are taken out of all that is written and returned.
  - Runs on the controller only, and needs no connection. Use it with C(run_once). Nothing on the hosts is changed, so it never reports a change.
options:
  cluster:
    description: Name of the cluster, by which its reports are told from those of others.
    type: str
    required: true
  checks:
    description: Findings, each with C(id), C(host), C(verdict), C(expected), C(found), C(source), C(seconds) and C(fix).
    type: list
    elements: dict
    required: true
  hosts:
    description:
      - The hosts in rank order, as role C(trainyard.gpu.cluster) has them in C(cluster_members). Keys that the report doesn't know are left out.
      - C(gpus) and C(rdma_devices), numbers, say for each host which checks apply to it.
    type: list
    elements: dict
    required: true
  versions:
    description: By host, by component, what is installed there.
    type: dict
    default: {}
  bandwidth:
    description:
      - C(collective) (V(nccl), V(horovod) or V(gloo)), C(runs) and C(note), as C(report.schema.json) says. Other keys are left out.
      - Empty where none was measured.
    type: dict
    default: {}
  blame:
    description: Who is at fault; C(kind) (V(host) or V(link)), C(names) and C(evidence) of each.
    type: list
    elements: dict
    default: []
  suspect:
    description: Hosts that later runs should leave out.
    type: list
    elements: str
    default: []
  logs:
    description: Logs that matter, with C(host), C(name) and C(tail) (text). What their errors mean is worked out of all that is given; 60 lines are kept.
    type: list
    elements: dict
    default: []
  seconds:
    description: How long verify took, in seconds.
    type: float
    default: 0.0
  report_dir:
    description:
      - Folder on the controller that holds the reports, relative to where ansible-playbook is called. Made where it is missing.
      - Refused where Ansible would take what is in it for inventories, which is everywhere in a folder given with C(-i), except below a name that begins with
        a dot.
    type: path
    required: true
  before:
    description:
      - The report to compare with in place of the last one; its folder or file, relative to O(report_dir). Fails where it is of another cluster or of other
        hosts.
    type: path
  required:
    description: Ids of the checks that are required, in place of those that role C(trainyard.gpu.verify) publishes as such in C(meta/checks.yml).
    type: list
    elements: str
  overrule:
    description: By the id of a check; V(skip) takes it out of the required ones, as the site has left it out on purpose.
    type: dict
    default: {}
  fail_on:
    description: V(block) lets warnings pass, V(warn) makes the verdict V(fail) for them too.
    type: str
    choices: [block, warn]
    default: block
notes:
  - In check mode nothing is required and nothing is written.
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Judge what was found, and write the report
  trainyard.gpu.verify_report:
    cluster: physics
    hosts: "{{ cluster_members }}"
    checks: "{{ our_checks }}"
    report_dir: "{{ inventory_dir }}/.trainyard/reports"
  run_once: true
"""

RETURN = r"""
msg:
  description: The verdict, what is wrong and what to do, and where the report is.
  returned: always
  type: str
verdict:
  description: V(pass), V(warn) or V(fail).
  returned: always
  type: str
folder:
  description: Folder of the report; empty in check mode.
  returned: always
  type: str
  sample: inventories/lab/.trainyard/reports/2026-11-23T18-45-02Z
suspect_file:
  description: The inventory with group C(suspect).
  returned: always
  type: str
report:
  description: What report.json holds.
  returned: where the verdict is not V(fail)
  type: dict
"""
