#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: compare_reports
short_description: Compare two reports of verify
version_added: "0.2.0"
description:
  - Prints the differences as one table, with one row for all hosts on which a value changed in the
    same way, and writes C(compare.html) beside the later report. Its curves need matplotlib on the
    controller.
  - Fails if a report cannot be read, or if the two are of different clusters or hosts. Differences
    are not a failure.
  - Runs on the controller only and needs no connection. Use it with C(run_once). It changes nothing
    on the hosts, so it never reports a change.
options:
  report_dir:
    description: Folder on the controller that holds the reports, relative to the working directory
      of ansible-playbook.
    type: path
    required: true
  before:
    description: The earlier report, as its folder or file relative to O(report_dir). The default is
      the last one before O(after).
    type: path
  after:
    description: The later report, as its folder or file relative to O(report_dir). The default is
      the last one.
    type: path
notes:
  - In check mode the table is printed and nothing is written.
extends_documentation_fragment:
  - trainyard.gpu.attributes.posix_info
  - trainyard.gpu.attributes.internal
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Compare the last two reports
  trainyard.gpu.compare_reports:
    report_dir: "{{ inventory_dir }}/.trainyard/reports"
  run_once: true
"""

RETURN = r"""
msg:
  description: Number of differences, and the path of the page.
  returned: success
  type: str
changes:
  description: The differences, one for each host.
  returned: success
  type: list
  elements: dict
  contains:
    what:
      description: Id of a check, component, property of a host, or bandwidth.
      type: str
    host:
      description: Inventory name; empty for the whole cluster.
      type: str
    before:
      description: Value in the earlier report.
      type: str
    now:
      description: Value in the later report.
      type: str
page:
  description: Path of the page that shows both reports.
  returned: success
  type: str
"""
