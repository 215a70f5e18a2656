#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_info
short_description: Gather nodes, partitions, jobs and accounts of Slurm
version_added: "0.4.0"
description:
  - Returns the output of Slurm's commands as data, for Slurm 21.08 to 24.11. It runs on any host
    that has the commands and the configuration of the cluster.
  - It runs one command for the cluster and its controllers, and one for each item of O(gather).
  - If Slurm does not answer, the result says why (RV(available=false), RV(cause), RV(fix)). The
    task fails only for invalid options and for output that is incomplete or has an unexpected
    format. The message then has the line.
  - All times are UTC.
author:
  - trainyard maintainers (@trainyard)
options:
  gather:
    description:
      - What to read. With an empty list, only the cluster and its controllers are read.
      - A person without privileges sees only what C(PrivateData) in C(slurm.conf) and in
        C(slurmdbd.conf) allows.
      - V(associations) and V(qos) come from the accounting database.
    type: list
    elements: str
    choices: [nodes, partitions, jobs, reservations, associations, qos]
    default: [nodes, partitions]
  credential:
    description:
      - A new MUNGE credential of the controller, as C(munge --no-input --restrict-uid=0) prints it
        there. If the controller refuses this host, the credential tells V(auth_key) from
        V(auth_clock) in RV(cause). Without it, RV(cause) is V(auth).
      - Create it right before the task. It expires after 5 minutes.
    type: str
  timeout:
    description: Seconds after which all commands together are ended, 1 or more.
    type: int
    default: 30
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
seealso:
  - module: trainyard.gpu.slurm_node_state
requirements:
  - Slurm's commands (C(scontrol), C(squeue) for V(jobs), and C(sacctmgr) for V(associations) and
    V(qos))
  - C(unmunge), for O(credential)
"""

EXAMPLES = r"""
- name: Gather the nodes of the cluster
  trainyard.gpu.slurm_info:
    gather: [nodes]
  register: slurm

- name: Report nodes that start no jobs
  ansible.builtin.debug:
    msg: "{{ item.name }}: {{ item.states | join(', ') }}. {{ item.reason }}"
  loop: "{{ slurm.nodes | rejectattr('available_for_jobs') }}"

- name: Gather accounts and quotas
  trainyard.gpu.slurm_info:
    gather: [associations]
  register: accounts

- name: Report the GPU quota of each account
  ansible.builtin.debug:
    msg: "{{ item.account }}: {{ item.group_tres['gres/gpu'] | default('no limit') }}"
  loop: "{{ accounts.associations | rejectattr('user') }}"

- name: Create a credential on the controller
  ansible.builtin.command: munge --no-input --restrict-uid=0
  delegate_to: scheduler1
  register: credential
  changed_when: false
  no_log: true

- name: Check that this host reaches the controller
  trainyard.gpu.slurm_info:
    gather: []
    credential: "{{ credential.stdout }}"
  register: slurm
  failed_when: slurm.failed or not slurm.available
"""

RETURN = r"""
available:
  description: Whether all that was requested could be read.
  type: bool
  returned: success
  sample: true
cause:
  description:
    - Why RV(available) is false, else null.
    - V(not_installed) - the command is not on the PATH.
    - V(not_configured) - no C(slurm.conf) on this host, and no source to fetch it from.
    - V(invalid_configuration) - Slurm refuses a line of C(slurm.conf).
    - V(controller_down) - the controller's host is up, but nothing listens at Slurm's port.
    - V(controller_unreachable) - the controller's host does not answer, or its name cannot be
      resolved.
    - V(auth_munge_down) - MUNGE does not run on this host.
    - V(auth_key) - this host has another MUNGE key than the controller. Only with O(credential).
    - V(auth_clock) - the clocks of this host and the controller differ. Only with O(credential).
    - V(auth) - the controller refused this host, because of the key or the clock.
    - V(database_down) - the accounting database does not answer.
    - V(permission) - Slurm refuses this person.
    - V(timeout) - the commands did not end within O(timeout).
    - V(failed) - any other error.
  type: str
  returned: success
  sample: controller_down
fix:
  description: What was found, and what to do; null if RV(available) is true.
  type: str
  returned: success
version:
  description: Version of the controller; empty if it does not answer.
  type: str
  returned: success
  sample: 22.05.8
cluster:
  description: Name of the cluster; empty if the controller does not answer.
  type: str
  returned: success
  sample: trainyard
controllers:
  description: The controllers.
  type: list
  elements: dict
  returned: success
  contains:
    role:
      description: V(primary), or V(backup) with a number if there are several.
      type: str
    host:
      description: Name of its host.
      type: str
    up:
      description: Whether it answers.
      type: bool
nodes:
  description: The nodes.
  type: list
  elements: dict
  returned: if C(nodes) is in O(gather)
  contains:
    name:
      description: Name.
      type: str
    address:
      description: Address at which the controller reaches it.
      type: str
    states:
      description: Base state, then Slurm's flags, in lower case. The base state is V(idle),
        V(mixed), V(allocated), V(down), V(error), V(future) or V(unknown).
      type: list
      elements: str
      sample: [idle, drain]
    flags:
      description: RV(nodes[].states) without the base state.
      type: list
      elements: str
      sample: [drain, not_responding]
    available_for_jobs:
      description: Whether the node starts jobs as soon as it has free resources. A node that is
        planned for a job or reserved for some people is included.
      type: bool
    cpus:
      description: CPUs for jobs, without those that C(CoreSpecCount) and C(CPUSpecList) keep for
        the system.
      type: int
    cpus_allocated:
      description: CPUs that jobs use.
      type: int
    memory_mib:
      description: Memory for jobs in MiB, without C(MemSpecLimit).
      type: int
    memory_allocated_mib:
      description: Memory that jobs have requested, in MiB.
      type: int
    gpus:
      description: GPUs by model. The model is empty if none is configured.
      type: list
      elements: dict
      sample: [{model: h100, total: 8, used: 2}]
    features:
      description: Features that jobs can request with C(--constraint).
      type: list
      elements: str
    active_features:
      description: Those of RV(nodes[].features) that are active now.
      type: list
      elements: str
    partitions:
      description: Partitions of the node.
      type: list
      elements: str
    reason:
      description: Why the node is down or drained; empty if no reason is set. Line breaks are
        replaced by spaces.
      type: str
      sample: "trainyard: 3 of 8 GPUs do not answer"
    reason_user:
      description: Who set the reason; empty if no reason is set.
      type: str
      sample: root
    reason_time:
      description: When the reason was set, or null.
      type: str
      sample: "2026-11-26T04:48:08Z"
    boot_time:
      description: When the node was started, or null if it has not registered.
      type: str
    slurmd_start_time:
      description: When slurmd was started, or null if it has not registered.
      type: str
    slurmd_version:
      description: Version of slurmd; empty if it has not registered.
      type: str
    architecture:
      description: Architecture of the processor as the kernel names it; empty if the node has not
        registered.
      type: str
      sample: x86_64
partitions:
  description: The partitions, with hidden ones.
  type: list
  elements: dict
  returned: if C(partitions) is in O(gather)
  contains:
    name:
      description: Name.
      type: str
    default:
      description: Whether jobs without a partition go there.
      type: bool
    state:
      description: V(up), V(down) (starts no jobs), V(drain) (accepts no jobs) or V(inactive)
        (neither).
      type: str
    hidden:
      description: Whether Slurm's commands hide it.
      type: bool
    nodes:
      description: Names of its nodes.
      type: list
      elements: str
    max_minutes:
      description: Longest time of a job in minutes; null if it is unlimited.
      type: int
    default_minutes:
      description: Time of a job that requests none; null if none is set.
      type: int
    max_nodes:
      description: Most nodes of a job; null if it is unlimited.
      type: int
    priority_tier:
      description: Jobs in a partition of a higher tier start first.
      type: int
    allow_accounts:
      description: Accounts that may use it; null for all.
      type: list
      elements: str
    allow_qos:
      description: QOS that may use it; null for all.
      type: list
      elements: str
    qos:
      description: QOS whose limits the partition has; empty if there is none.
      type: str
    preempt_mode:
      description: What happens to preempted jobs, such as V(requeue).
      type: str
    cpus:
      description: CPUs of all nodes.
      type: int
    gpus:
      description: GPUs of all nodes.
      type: int
    gpu_models:
      description: GPUs by model, as far as C(AccountingStorageTRES) names the models.
      type: dict
      sample: {h100: 16}
jobs:
  description: The jobs that wait or run, and those that ended within C(MinJobAge) as far as
    C(squeue) lists them.
  type: list
  elements: dict
  returned: if C(jobs) is in O(gather)
  contains:
    id:
      description: Number of the job. Tasks of an array and parts of a heterogeneous job have
        numbers of their own.
      type: int
    array:
      description: For a job array, its C(id), and C(tasks) of this entry as Slurm prints them.
        Waiting tasks share an entry. Otherwise null.
      type: dict
      sample: {id: 19, tasks: "1,3,5,7%2"}
    het:
      description: For a part of a heterogeneous job, its C(id) and the C(offset) of the part.
        Otherwise null.
      type: dict
      sample: {id: 22, offset: 1}
    name:
      description: Name. It may contain spaces and line breaks.
      type: str
    comment:
      description: Comment; empty if there is none.
      type: str
    user:
      description: Name of the person.
      type: str
    account:
      description: Account.
      type: str
    qos:
      description: QOS.
      type: str
    partition:
      description: Partition. Several, joined by commas, for a job that waits for any of them.
      type: str
    state:
      description: State in lower case, such as V(pending), V(running) or V(suspended).
      type: str
    reason:
      description: Why a job waits, as C(squeue) prints it; empty if there is no reason.
      type: str
      sample: AssocGrpGRES
    priority:
      description: Priority. 0 for a job that is held.
      type: int
    node_count:
      description: Nodes that it has, or needs at least.
      type: int
    nodes:
      description: Nodes on which it runs.
      type: list
      elements: str
    requested_nodes:
      description: Nodes that it requests by name.
      type: list
      elements: str
    planned_nodes:
      description: Nodes on which Slurm plans to start it.
      type: list
      elements: str
    cpus:
      description: CPUs, on all nodes together. For waiting tasks of an array, of one task.
      type: int
    memory_mib:
      description: Memory in MiB, as C(cpus).
      type: int
    gpus:
      description: GPUs, as C(cpus). 0 if C(AccountingStorageTRES) lacks C(gres/gpu).
      type: int
    gpu_models:
      description: GPUs by model, as far as C(AccountingStorageTRES) names the models.
      type: dict
    submit_time:
      description: When it was submitted.
      type: str
    eligible_time:
      description: From when on it may start, or null.
      type: str
    start_time:
      description: When it started; null if it waits.
      type: str
    start_estimate:
      description: When a waiting job is expected to start; null if Slurm has no estimate.
      type: str
    end_time:
      description: When it has to end, or null.
      type: str
    limit_minutes:
      description: Time limit in minutes; null if it is unlimited.
      type: int
    restarts:
      description: How often it was requeued.
      type: int
    features:
      description: Features that it requests; empty if there are none.
      type: str
    reservation:
      description: Reservation that it requests; empty if there is none.
      type: str
    dependency:
      description: Jobs that it waits for; empty if there are none.
      type: str
      sample: afterany:5(unfulfilled)
reservations:
  description: The reservations.
  type: list
  elements: dict
  returned: if C(reservations) is in O(gather)
  contains:
    name:
      description: Name.
      type: str
    state:
      description: V(active) or V(inactive).
      type: str
    start_time:
      description: Start.
      type: str
    end_time:
      description: End.
      type: str
    nodes:
      description: Names of its nodes.
      type: list
      elements: str
    flags:
      description: Flags in lower case.
      type: list
      elements: str
      sample: [maint, ignore_jobs, spec_nodes]
    users:
      description: People who may use it.
      type: list
      elements: str
    accounts:
      description: Accounts that may use it.
      type: list
      elements: str
    partition:
      description: Partition; empty if there is none.
      type: str
    comment:
      description: Comment; empty if there is none.
      type: str
associations:
  description: The associations of all clusters in the database. Each is of an account, or of a
    person in an account.
  type: list
  elements: dict
  returned: if C(associations) is in O(gather)
  contains:
    cluster:
      description: Name of the cluster.
      type: str
    account:
      description: Name of the account.
      type: str
    user:
      description: Login name of the person; empty for the association of the account itself.
      type: str
    partition:
      description: Partition, if the association is for one only; else empty.
      type: str
    parent:
      description: The account above; empty for persons and for C(root).
      type: str
    shares:
      description: Shares for the fair-share priority, or null for those of its parent.
      type: int
    group_tres:
      description: Resources that its running jobs may have together, with C(mem) in MiB. What is
        not listed has no limit here.
      type: dict
      sample: {gres/gpu: 8}
    group_max_jobs:
      description: Jobs that may run together, or null.
      type: int
    group_max_submitted:
      description: Jobs that may wait and run together, or null.
      type: int
    job_tres:
      description: Resources that one job may have, with those inherited from the account.
      type: dict
    max_jobs:
      description: Jobs that a person may run together, or null. This and the following limits
        include those inherited from the account.
      type: int
    max_submitted:
      description: Jobs of a person that may wait and run together, or null.
      type: int
    max_minutes:
      description: Longest time of a job in minutes, or null.
      type: int
    qos:
      description: Names of the QOS that jobs may use.
      type: list
      elements: str
    default_qos:
      description: QOS of jobs that request none; empty if none is set.
      type: str
qos:
  description: The QOS.
  type: list
  elements: dict
  returned: if C(qos) is in O(gather)
  contains:
    name:
      description: Name.
      type: str
    priority:
      description: Priority.
      type: int
    preempts:
      description: Names of the QOS whose jobs it may preempt.
      type: list
      elements: str
    preempt_mode:
      description: What happens to its jobs if they are preempted, such as V(requeue). V(cluster) is
        C(PreemptMode) of C(slurm.conf).
      type: str
    grace_seconds:
      description: Seconds between the notice of a preemption and the end of the job.
      type: int
    flags:
      description: Flags in lower case.
      type: list
      elements: str
      sample: [denyonlimit]
    usage_factor:
      description: Factor for the usage of its jobs.
      type: float
    group_tres:
      description: Resources that its running jobs may have together, as in
        RV(associations[].group_tres).
      type: dict
    group_max_jobs:
      description: Its jobs that may run together, or null.
      type: int
    group_max_submitted:
      description: Its jobs that may wait and run together, or null.
      type: int
    job_tres:
      description: Resources that one job may have.
      type: dict
    person_tres:
      description: Resources that the running jobs of one person may have together.
      type: dict
    person_max_jobs:
      description: Jobs that one person may run together, or null.
      type: int
    person_max_submitted:
      description: Jobs of one person that may wait and run together, or null.
      type: int
    max_minutes:
      description: Longest time of a job in minutes, or null.
      type: int
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils import _slurm
from ansible_collections.trainyard.gpu.plugins.module_utils._slurm_commands import NoAnswer, Slurm

READINGS = {
    "nodes": (_slurm.NODES, _slurm.parse_nodes),
    "partitions": (_slurm.PARTITIONS, _slurm.parse_partitions),
    "reservations": (_slurm.RESERVATIONS, _slurm.parse_reservations),
    "associations": (_slurm.ASSOCIATIONS, _slurm.parse_associations),
    "qos": (_slurm.QOS, _slurm.parse_qos),
}


def main():
    module = AnsibleModule(
        argument_spec={
            "gather": {
                "type": "list",
                "elements": "str",
                "choices": ["nodes", "partitions", "jobs", "reservations", "associations", "qos"],
                "default": ["nodes", "partitions"],
            },
            "credential": {"type": "str", "no_log": True},
            "timeout": {"type": "int", "default": 30},
        },
        supports_check_mode=True,
    )
    slurm = Slurm(module)
    gathered = list(dict.fromkeys(module.params["gather"]))
    result = dict(
        {"version": "", "cluster": "", "controllers": []}, **{name: [] for name in gathered}
    )
    try:
        result.update(slurm.read(_slurm.CONFIG, _slurm.parse_config))
        for name in gathered:
            result[name] = slurm.jobs() if name == "jobs" else slurm.read(*READINGS[name])
    except NoAnswer as error:
        module.exit_json(
            changed=False, available=False, cause=error.cause, fix=str(error), **result
        )
    module.exit_json(changed=False, available=True, cause=None, fix=None, **result)


if __name__ == "__main__":
    main()
