# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: slurm_plan
short_description: Plan Slurm's configuration files for a cluster
version_added: "0.3.0"
description:
  - Writes the texts of Slurm's files from what M(trainyard.gpu.slurm_host_info) found on the hosts and from the variables of the roles for Slurm,
    says which daemons a change of them concerns, and lists problems.
  - A training host that was not read keeps its node as it is in the scheduler's slurm.conf.
options:
  _input:
    description: Results of M(trainyard.gpu.slurm_host_info) by inventory name. Hosts that do not answer are left out.
    type: dict
    required: true
  hosts:
    description: Inventory names of the training hosts, in the order of the nodes.
    type: list
    elements: str
    required: true
  scheduler:
    description: Inventory name of the host with slurmctld, slurmdbd and MariaDB.
    type: str
    required: true
  members:
    description: C(cluster_members) of role P(trainyard.gpu.cluster#role). Only C(name) and C(address) are used.
    type: list
    elements: dict
    required: true
  cluster_name:
    description: Name of the cluster. The accounts in the database belong to it.
    type: str
    default: trainyard
  login_hosts:
    description: Inventory names of the hosts where people log in.
    type: list
    elements: str
    default: []
  groups:
    description: Groups of the inventory, for C(hosts) of O(partitions).
    type: dict
    default: {}
  partitions:
    description:
      - Entries with C(name), and optionally C(hosts) (hosts, groups, or V(all)), C(default), C(max_minutes) and C(priorities).
      - Empty means one partition C(train) with all hosts.
    type: list
    elements: dict
    default: []
  priorities:
    description:
      - Entries with C(name), C(priority) and optionally C(preempts).
      - Empty means C(low), C(normal) and C(high). The last two preempt the first.
    type: list
    elements: dict
    default: []
  node_features:
    description: Features of hosts in addition to their GPU model, by inventory name.
    type: dict
    default: {}
  accounts:
    description: C(slurm_accounts), of which C(name) and C(hosts_classes) are compared with the features.
    type: list
    elements: dict
    default: []
  options:
    description: Keys of slurm.conf and their values. Keys that the plan decides and dangerous ones are refused.
    type: dict
    default: {}
  accept_smaller:
    description: Hosts that may have fewer GPUs, CPUs or less memory than configured.
    type: list
    elements: str
    default: []
  gpu_models:
    description: Models of the GPUs by inventory name, in the order of their numbers. They count where the driver's files name no model.
    type: dict
    default: {}
  gpu_types:
    description: Type of all GPUs of a host by inventory name, in place of the one that follows from the model.
    type: dict
    default: {}
  node_hardware:
    description: C(cpus) and C(real_memory) by inventory name, for containers that claim more CPUs than they have.
    type: dict
    default: {}
  scripts:
    description: Absolute paths of C(prolog), C(epilog) and C(health) on the training hosts. An empty path means none.
    type: dict
    default: {}
  ssh:
    description:
      - Who can log in to training hosts by ssh. C(needs_job), C(users) and C(groups). The users and the members of the groups need no job.
      - Empty means C(needs_job) and group C(sudo).
    type: dict
    default: {}
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Check the plan
  ansible.builtin.assert:
    that: plan.problems == []
    fail_msg: "{{ plan.problems | join('; ') }}"
  vars:
    plan: "{{ readings | trainyard.gpu.slurm_plan(hosts=groups['gpu'], scheduler=cluster_scheduler_host, members=cluster_members) }}"
"""

RETURN = r"""
_value:
  description: The plan. With problems it has only C(complete), C(problems), C(warnings), C(scheduler) and C(hosts).
  type: dict
  contains:
    complete:
      description: Whether the plan can be carried out.
      type: bool
    problems:
      description: What is wrong with the hosts or the variables, one sentence each.
      type: list
      elements: str
    warnings:
      description: What works with a restriction, one sentence each.
      type: list
      elements: str
    scheduler:
      description: Inventory name of the scheduler.
      type: str
    hosts:
      description: The training hosts of O(hosts). Only with problems.
      type: list
      elements: str
    release:
      description: Release of Slurm on the scheduler.
      type: str
    releases:
      description: Release by inventory name.
      type: dict
    cgroups:
      description: Whether jobs are limited by control groups. One host that cannot decides for all.
      type: bool
    nodes:
      description: The nodes with their hardware and features.
      type: list
      elements: dict
    node_names:
      description: Their names.
      type: list
      elements: str
    partitions:
      description: The partitions with their hosts.
      type: list
      elements: dict
    priorities:
      description: The priorities.
      type: list
      elements: dict
    qos:
      description: Names of the QOS that must exist before slurmctld starts.
      type: list
      elements: str
    packages:
      description: Packages by inventory name.
      type: dict
    installed:
      description: Hosts that have all of their packages.
      type: list
      elements: str
    cluster_name:
      description: Name of the cluster.
      type: str
    accounts:
      description: The accounts for M(trainyard.gpu.slurm_accounts), without C(hosts_classes).
      type: list
      elements: dict
    missing_people:
      description: Members of accounts without a Unix account on the scheduler.
      type: list
      elements: str
    munge_hosts:
      description: Hosts to which the scheduler's munge key must be copied, with a restart of munge and of their daemons.
      type: list
      elements: str
    absent:
      description: Files of these roles to remove, by inventory name.
      type: dict
    pmix_files:
      description: Files for M(trainyard.gpu.managed_files) by inventory name, which must exist before C(controller_files) are validated.
      type: dict
    check_files:
      description: Files of the scheduler that check slurm.conf. They must exist before C(controller_files) are validated.
      type: list
      elements: dict
    database_files:
      description: Files of MariaDB on the scheduler. MariaDB is restarted if they change.
      type: list
      elements: dict
    slurmdbd_files:
      description: Files of slurmdbd on the scheduler. slurmdbd is restarted if they change.
      type: list
      elements: dict
    controller_files:
      description: Files of slurmctld on the scheduler. What to do if they change is in C(effect).
      type: list
      elements: dict
    node_files:
      description: Files of every training host. systemd is reloaded and slurmd restarted if they change.
      type: list
      elements: dict
    login_files:
      description: Files by inventory name of login hosts that are neither the scheduler nor a training host.
      type: dict
    ssh:
      description: Who can log in by ssh, by inventory name.
      type: dict
      contains:
        rule:
          description: V(adopt) (pam_slurm_adopt), V(slurm) (pam_slurm), or V(none).
          type: str
        why:
          description: Why there is none.
          type: str
        steps:
          description: Arguments C(files) and C(absent) of M(trainyard.gpu.managed_files), to be run in this order.
          type: list
          elements: dict
    sql:
      description: Statements that create the database and its account.
      type: list
      elements: str
    validate:
      description: Command that checks a slurm.conf, with C(%s) for its path.
      type: str
    pending:
      description: Whether an earlier run was interrupted before all daemons had its settings. Then C(effect) includes what is left to do.
      type: bool
    pending_files:
      description: Files that record C(effect) on the scheduler, from before C(controller_files) are written until all of it is done.
      type: list
      elements: dict
    changes:
      description: Whether C(effect) needs anything.
      type: bool
    in_the_way:
      description: Which running jobs the change would end.
      type: list
      elements: dict
      contains:
        arguments:
          description: Arguments of squeue that select the jobs.
          type: list
          elements: str
        why:
          description: Why they would end, and what to do.
          type: str
    effect:
      description: What the difference between the scheduler's present files and the plan needs. Do it in this order.
      type: dict
      contains:
        first:
          description: Whether there was no slurm.conf.
          type: bool
        restart_slurmctld:
          description: Whether slurmctld must be restarted.
          type: bool
        reconfigure:
          description: Whether to run C(scontrol reconfigure).
          type: bool
        restart_slurmd:
          description: Nodes whose slurmd must be restarted, after slurmctld.
          type: list
          elements: str
        needs_idle:
          description: Reasons why no job may run during the change; empty if running jobs go on.
          type: list
          elements: str
        added:
          description: New nodes.
          type: list
          elements: str
        removed:
          description: Nodes that are no longer configured. Jobs on them are ended, so drain them first.
          type: list
          elements: str
        removed_partitions:
          description: Partitions that are no longer configured.
          type: list
          elements: str
        reasons:
          description: Why a daemon is restarted.
          type: list
          elements: str
"""


def slurm_plan(readings, hosts, scheduler, members, **more):
    # Ansible loads all filters for the first one of a task. This one is used by one play.
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _slurm_plan

    return _slurm_plan.slurm_plan(readings, hosts, scheduler, members, **more)


class FilterModule:
    """Filters for the plan of role slurm."""

    def filters(self):
        return {"slurm_plan": slurm_plan}
