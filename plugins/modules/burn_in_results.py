#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: burn_in_results
short_description: Judge a burn-in and file its results
version_added: "0.4.0"
description:
  - Compares each device with the same model in the run, with earlier results and with published
    figures, and adds the result to the file of its serial number.
  - A device that is slow or wrong is a finding and does not fail the task. Role C(verify) reports
    the findings.
  - Runs on the controller only and needs no connection. Use it with C(run_once). It changes nothing
    on the hosts, so it never reports a change.
options:
  hosts:
    description:
      - What was read on each host, by name - C(run), the result of the program of role C(burn_in),
        C(serial) of the host, C(before), C(during) and C(after) of
        M(trainyard.gpu.nvidia_smi_info), and C(errors_before) and C(errors_after) of
        M(trainyard.gpu.host_health_info).
    type: dict
    default: {}
  rails:
    description: The answer of the bandwidth job of role C(verify), which has measured each network
      card alone.
    type: dict
    default: {}
  results_dir:
    description: Folder on the controller with a file for each device, relative to the working
      directory of ansible-playbook.
    type: path
    required: true
  compat_facts:
    description: File with more compatibility data of the site; empty if it has none.
    type: str
    default: ''
notes:
  - In check mode nothing is written.
extends_documentation_fragment:
  - trainyard.gpu.attributes.posix_info
  - trainyard.gpu.attributes.internal
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Check the results of a burn-in
  trainyard.gpu.burn_in_results:
    hosts: {gpu-a: {run: "{{ program }}", serial: J0123456}}
    results_dir: "{{ inventory_dir }}/.trainyard/burn_in"
  run_once: true
"""

RETURN = r"""
checks:
  description: The findings, for each host one of each check.
  returned: success
  type: list
  elements: dict
  sample: [{id: burn-in-speed, host: gpu-a, verdict: fail, found: GPU 3 (NVIDIA H100 80GB HBM3, serial 1654923000341) is slow}]
devices:
  description: The devices with their rates in GB/s and TFLOP/s, and these relative to the median of
    the model.
  returned: success
  type: list
  elements: dict
  sample: [{kind: gpu, serial: "1654923000341", host: gpu-a, index: 3, verdict: fail, rates: {memory: 2911.3}, relative: {memory: 0.93}}]
folder:
  description: Path of the folder with the results.
  returned: success
  type: str
"""
