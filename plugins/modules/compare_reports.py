#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: compare_reports
short_description: Compare two reports of verify
version_added: "0.2.0"
description:
  - Prints what differs as one table, and writes C(compare.html) beside the later report. Its curves need matplotlib on the controller.
  - Fails where a report cannot be read, or where the two are of different clusters or hosts. That they differ is no failure.
  - Runs on the controller only, and needs no connection. Use it with C(run_once). Nothing on the hosts is changed, so it never reports a change.
options:
  report_dir:
    description: Folder on the controller that holds the reports, relative to where ansible-playbook is called.
    type: path
    required: true
  before:
    description: The earlier report; its folder or file, relative to O(report_dir). By default the last one before O(after).
    type: path
  after:
    description: The later report; its folder or file, relative to O(report_dir). By default the last one.
    type: path
notes:
  - In check mode the table is printed and nothing is written.
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
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
  description: How many differences there are, and where the page is.
  returned: success
  type: str
changes:
  description: What differs.
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
      description: In the earlier report.
      type: str
    now:
      description: In the later report.
      type: str
page:
  description: The page with both.
  returned: success
  type: str
"""
