# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: job_container_plan
short_description: Plan what a host needs to run jobs in containers
version_added: "0.3.0"
description:
  - Plans packages, files and the image store of a training host whose Slurm jobs run in rootless containers, and lists what keeps them from working.
options:
  _input:
    description: The host, as M(trainyard.gpu.job_container_info) returns it.
    type: dict
    required: true
  wanted:
    description:
      - The request. C(users), each with C(name) and C(uid); C(registries); C(storage), the folder for containers; C(share); C(shm_size); C(job_cgroups),
        whether Slurm has a cgroup for each job, null if unknown; C(network) and C(fabric), networks as CIDR; C(members) of
        M(trainyard.gpu.cluster_members); C(environment) of jobs; C(gpus), their number by Slurm, null if unknown; C(free_gib); C(images), names of images of
        the Docker engine; C(training_image), the name of the training image; C(programs), the content of the programs by path.
    type: dict
    required: true
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Fail if jobs cannot run in containers
  ansible.builtin.assert:
    that: plan.problems == []
    fail_msg: "{{ plan.problems | join('; ') }}"
  vars:
    plan: "{{ gathered | trainyard.gpu.job_container_plan(wanted) }}"
"""

RETURN = r"""
_value:
  description: The plan.
  type: dict
  contains:
    packages:
      description: Names of the packages.
      type: list
      elements: str
    lacks_packages:
      description: Names of the packages that are not installed.
      type: list
      elements: str
    files:
      description: Folders and files, for M(trainyard.gpu.managed_files).
      type: list
      elements: dict
    absent:
      description: Paths of files to remove.
      type: list
      elements: str
    files_differ:
      description: Whether a file is missing, differs, or has to be removed.
      type: bool
    record:
      description: Content of the role's record, which teardown needs.
      type: dict
    record_differs:
      description: Whether the record on the host differs.
      type: bool
    images:
      description: Images that the image store lacks, C(name), C(id) and C(command) of each. The command is the line for bash that loads it from Docker.
      type: list
      elements: dict
    problems:
      description: What keeps jobs from working, one sentence each.
      type: list
      elements: str
"""

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _job_container_plan


class FilterModule:
    """Filter for the plan of containers for jobs."""

    def filters(self):
        return {"job_container_plan": _job_container_plan.job_container_plan}
