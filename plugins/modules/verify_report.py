#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: verify_report
short_description: Judge verify's findings and write its report
version_added: "0.2.0"
description:
  - Writes a folder named after the time (UTC) into O(report_dir), completely or not at all. If the
    verdict is V(fail), it then fails with one message that names the failures, the suspects and
    what to do.
  - The verdict is V(fail) if a check failed, or if a required check was not made on a host that it
    applies to, for any reason. If a required check has no finding, one is added as
    V(not_evaluated).
  - C(report.html) is one file without scripts and external resources. Its curves need matplotlib on
    the controller. Without it the page has only their numbers and says so.
    C(plugins/plugin_utils/report.schema.json) defines the format of C(report.json),
    C(docs/errors.md) explains error messages.
  - C(suspect.yml) in O(report_dir) is an inventory with group C(suspect), empty if there are no
    suspects. With C(-i) after the site's inventory and C(--limit 'cluster:!suspect') a later run
    leaves these hosts out.
  - The report is compared with earlier reports in O(report_dir) of the same cluster with the same
    hosts. Others are ignored.
  - Passwords and tokens from logs and results are removed from everything that is written and
    returned.
  - Runs on the controller and needs no connection without O(metrics). Use it with C(run_once). It
    never reports a change.
options:
  cluster:
    description: Name of the cluster, which distinguishes its reports from those of others.
    type: str
    required: true
  checks:
    description: Findings, each with C(id), C(host), C(verdict), C(expected), C(found), C(source),
      C(seconds) and C(fix).
    type: list
    elements: dict
    required: true
  hosts:
    description:
      - The hosts in rank order, as in C(cluster_members) of role C(trainyard.gpu.cluster). Unknown
        keys are left out.
      - The numbers C(gpus) and C(rdma_devices) of each host determine which checks apply to it, and
        so does its list C(scheduler), with V(controller), V(node), both or neither. A cluster
        without a scheduler has no such key.
    type: list
    elements: dict
    required: true
  versions:
    description: Installed versions by host and component.
    type: dict
    default: {}
  bandwidth:
    description:
      - C(collective) (V(nccl), V(horovod) or V(gloo)), C(runs) and C(note), as in
        C(report.schema.json). Other keys are left out.
      - Empty if none was measured.
    type: dict
    default: {}
  burn_in:
    description: Devices as M(trainyard.gpu.burn_in_results) returns them. Empty if no burn-in was
      part of the run.
    type: list
    elements: dict
    default: []
    version_added: "0.4.0"
  blame:
    description: Hosts and links at fault, each with C(kind) (V(host) or V(link)), C(names) and
      C(evidence).
    type: list
    elements: dict
    default: []
  suspect:
    description: Hosts that later runs should leave out.
    type: list
    elements: str
    default: []
  logs:
    description: Relevant logs, each with C(host), C(name) and C(tail) (text). Errors are looked up
      in the whole text, and 60 lines of it are kept.
    type: list
    elements: dict
    default: []
  seconds:
    description: Duration of verify in seconds.
    type: float
    default: 0.0
  report_dir:
    description:
      - Folder on the controller that holds the reports, relative to the working directory of
        ansible-playbook. It is created if it is missing.
      - The module fails if Ansible would read the files in it as inventories. That is the case
        everywhere in a folder given with C(-i), except below a name that begins with a dot.
    type: path
    required: true
  before:
    description:
      - The report to compare with instead of the last one, as its folder or file relative to
        O(report_dir). The module fails if it is of another cluster or of other hosts.
    type: path
  required:
    description: Ids of the required checks, instead of those in C(meta/rules.yml) of role
      C(trainyard.gpu.verify).
    type: list
    elements: str
  overrule:
    description: By check id. V(skip) makes it optional, for checks that the site leaves out on
      purpose.
    type: dict
    default: {}
  fail_on:
    description: V(block) ignores warnings, V(warn) makes the verdict V(fail) for warnings too.
    type: str
    choices: [block, warn]
    default: block
  metrics:
    description:
      - Absolute path of a file for Prometheus with the verdict, on the host of the task. Set
        C(delegate_to) to the host that has its folder. A host that does not answer is a warning.
      - Empty means none, and the task needs no host.
    type: str
    default: ""
  portal:
    description:
      - Absolute path of a copy of C(report.html) beside O(metrics), which only root and the
        portal's account C(trainyard-hub) can read. Operators see it there.
      - Its folder is created and belongs to root, so that no other account can replace the file.
      - Empty means none.
    type: str
    default: ""
    version_added: "0.4.0"
notes:
  - In check mode nothing is required and nothing is written.
extends_documentation_fragment:
  - trainyard.gpu.attributes.posix_info
  - trainyard.gpu.attributes.internal
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Write the report
  trainyard.gpu.verify_report:
    cluster: physics
    hosts: "{{ cluster_members }}"
    checks: "{{ our_checks }}"
    report_dir: "{{ inventory_dir }}/.trainyard/reports"
  run_once: true
"""

RETURN = r"""
msg:
  description: The verdict, the problems with their fixes, and the path of the report.
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
  description: Content of report.json.
  returned: when the verdict is not V(fail)
  type: dict
"""
