# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: train_plan
short_description: Plan a job's hosts, ranks and requested GPUs
version_added: "0.2.0"
description:
  - Fits the number of ranks on each host to the devices that C(CUDA_VISIBLE_DEVICES) names, and reports what does not fit.
  - Slots that follow from a host's GPUs become the number of chosen devices. Slots that the inventory sets are never changed.
positional: environment, gpus
options:
  _input:
    description: The hosts of the job, as in C(cluster_members).
    type: list
    elements: dict
    required: true
  environment:
    description: Environment variables of the ranks.
    type: dict
    required: true
  gpus:
    description: Number of GPUs by host.
    type: dict
    required: true
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Report what a job on two chosen GPUs does not fit
  ansible.builtin.debug:
    msg: "{{ (cluster_members | trainyard.gpu.train_plan({'CUDA_VISIBLE_DEVICES': '0,1'}, {'server-a': 8})).problems }}"
"""

RETURN = r"""
_value:
  description: The plan of the job.
  type: dict
  contains:
    hosts:
      description: The members with their C(slots) in the job.
      type: list
      elements: dict
    watch:
      description: GPUs that the job requests, by host. C(count), and C(devices) if they were chosen.
      type: dict
      sample: {server-a: {count: 2, devices: ["0", "1"]}}
    problems:
      description: Problems that prevent the job, as sentences; empty if there are none.
      type: list
      elements: str
"""

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _train_plan


def train_plan(members, environment, gpus):
    return _train_plan.train_plan(members, environment, gpus)


def train_queue(hosts, job_id, timeout=0, options=()):
    return _train_plan.queue_command(hosts, job_id, timeout, options)


class FilterModule:
    """Filters for the plan of a job."""

    def filters(self):
        return {"train_plan": train_plan, "train_queue": train_queue}
