#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_accounts
short_description: Manage Slurm accounts, people, GPU quotas and priorities
version_added: "0.4.0"
description:
  - Makes the accounts, people, limits and QOS in Slurm's accounting database equal to a list, with
    C(sacctmgr).
  - Reads the database, compares it and runs commands for the differences only. New accounts and
    people are added in one transaction. Afterwards the database is read again, and a difference
    fails the module.
  - What was created, and the former value of what was changed, is written to O(record). Only that
    is removed or restored when it is no longer requested. Accounts, people, coordinators, QOS and
    limits that others have made stay, and so does every limit that is not an option of this module.
  - The limits hold if C(AccountingStorageEnforce) in C(slurm.conf) has C(associations,limits,qos),
    and if C(AccountingStorageTRES) has C(gres/gpu).
options:
  cluster:
    description: Name of the cluster, C(ClusterName) in C(slurm.conf). It must be registered in the
      database.
    type: str
    required: true
  accounts:
    description: The accounts. Slurm refuses jobs of people who are in none.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the account. Lower-case letters, digits, C(_) and C(-), because Slurm
          folds names to lower case.
        type: str
        required: true
      description:
        description: Description of the account. Slurm stores it in lower case.
        type: str
      gpus:
        description:
          - GPUs that the running jobs of the account may have together (C(GrpTRES) of its
            association). Further jobs wait with C(AssocGrpGRES).
          - V(0) allows jobs without GPUs only. If not set, the module sets no limit.
        type: int
      max_gpus_per_person:
        description:
          - GPUs that the running jobs of each member may have together in this account (C(GrpTRES)
            of the member's association).
          - At most O(accounts[].gpus). If not set, the module sets no limit.
        type: int
      max_minutes:
        description:
          - Minutes that one job may run (C(MaxWall) of the account, which its members inherit). A
            job without C(--time) gets this limit.
          - If not set, only the limit of the partition applies.
        type: int
      cpus:
        description:
          - CPUs that the running jobs of the account may have together (C(GrpTRES)). Further jobs
            wait with C(AssocGrpCpuLimit).
          - If not set, O(accounts[].defaults) has the limit.
        type: int
      memory_gb:
        description:
          - Memory in GiB that the running jobs of the account may have together (C(GrpTRES)).
            Further jobs wait with C(AssocGrpMemLimit).
          - If not set, O(accounts[].defaults) has the limit.
        type: int
      max_jobs_per_person:
        description:
          - Running jobs that each member may have in this account (C(MaxJobs), which members
            inherit). Each task of an array counts.
          - If not set, O(accounts[].defaults) has the limit.
        type: int
      max_submitted_per_person:
        description:
          - Pending and running jobs that each member may have in this account (C(MaxSubmitJobs),
            which members inherit). Each task of an array counts.
          - If not set, O(accounts[].defaults) has the limit.
        type: int
      defaults:
        description:
          - Limits for what the account does not set. They are set only if the account has no such
            limit yet, so that one that was set by hand stays.
          - If not set, the module sets no limit.
        type: dict
        suboptions:
          cpus:
            description: See O(accounts[].cpus).
            type: int
          memory_gb:
            description: See O(accounts[].memory_gb).
            type: int
          max_jobs_per_person:
            description: See O(accounts[].max_jobs_per_person).
            type: int
          max_submitted_per_person:
            description: See O(accounts[].max_submitted_per_person).
            type: int
      members:
        description: Names of the people. A person's default account is the first one in the list.
          Every person may choose another one.
        type: list
        elements: str
        default: []
  priorities:
    description:
      - The QOS that jobs of all O(accounts) can choose with C(--qos). A job that names none has
        V(normal), or the first one if there is no V(normal).
      - All of them refuse a job at submit that alone is over a limit (C(DenyOnLimit)). Without
        that, it waits for ever.
      - If not set, no QOS is managed.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the QOS. The one that Slurm has from the beginning is V(normal).
        type: str
        required: true
      priority:
        description: Priority, higher is first.
        type: int
        default: 0
      preempts:
        description: Names of O(priorities) whose running jobs are requeued if a job of this one
          needs their hosts. C(PreemptType) must be C(preempt/qos).
        type: list
        elements: str
        default: []
  operators:
    description:
      - Names of members who get C(AdminLevel=Administrator), with which Slurm shows them all jobs
        and lets them drain and resume nodes. They can change everything in Slurm. With
        C(AdminLevel=Operator) C(slurmctld) refuses a drain.
      - Rights that others have given stay, and are restored when a name is removed.
    type: list
    elements: str
    default: []
    version_added: "0.4.0"
  cancel_jobs:
    description:
      - Whether to cancel jobs of what is removed. Slurm refuses to remove a person or an account
        with pending or running jobs.
      - With V(false), such a person cannot submit jobs any more, the jobs run on, and a later run
        removes the person.
    type: bool
    default: false
  timeout:
    description: Seconds to wait each time for a database that is busy, for C(slurmctld) to register
      its GPUs, and for cancelled jobs to end.
    type: int
    default: 60
  record:
    description:
      - Absolute path of a JSON file that records what was created or changed.
      - Back it up together with the database. A database that is restored without it may have
        people who were removed since, see RV(others).
    type: path
    required: true
  state:
    description: V(present) makes the database equal to the request. V(former) removes or restores
      everything in O(record).
    type: str
    choices: [present, former]
    default: present
extends_documentation_fragment:
  - trainyard.gpu.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
notes:
  - Needs C(sacctmgr) and C(squeue) of Slurm 21.08 or later, and the rights of a Slurm
    administrator, which root has on the database's host.
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Configure two groups with a GPU quota, and three priorities
  trainyard.gpu.slurm_accounts:
    cluster: trainyard
    accounts:
      - name: vision
        description: Computer vision
        gpus: 4
        max_gpus_per_person: 2
        max_minutes: 1440
        members: [anna, ben]
      - name: language
        gpus: 8
        members: [ben, carla]
    priorities:
      - {name: low, priority: 0}
      - {name: normal, priority: 50, preempts: [low]}
      - {name: high, priority: 100, preempts: [low]}
    record: /var/lib/trainyard/placed.d/slurm_accounts.json
  register: result

- name: Report people who can submit jobs and are not in the list
  ansible.builtin.debug:
    var: result.others

- name: Remove what was created, and cancel the jobs of these people
  trainyard.gpu.slurm_accounts:
    cluster: trainyard
    record: /var/lib/trainyard/placed.d/slurm_accounts.json
    cancel_jobs: true
    state: former
"""

RETURN = r"""
changes:
  description: What was changed, or would be in check mode.
  returned: success
  type: list
  elements: dict
  contains:
    what:
      description: A C(qos), an C(account), a C(member) of an account, an C(operator), or the
        default account of a C(person), with its name.
      type: str
      sample: member vision anna
    action:
      description: V(add), V(change) or V(remove).
      type: str
    before:
      description: The values that differ, before the change.
      type: dict
    after:
      description: The same values after the change.
      type: dict
waiting:
  description: What will be removed by a later run because jobs have not ended. A person in this
    list cannot submit jobs.
  returned: success
  type: list
  elements: dict
  contains:
    what:
      description: What is not removed yet.
      type: str
    jobs:
      description: IDs of the jobs.
      type: list
      elements: str
kept:
  description: What is not removed although it is no longer requested, because others use it.
  returned: success
  type: list
  elements: dict
  contains:
    what:
      description: What is kept.
      type: str
    reason:
      description: Who uses it.
      type: str
cancelled:
  description: IDs of the jobs that were cancelled, or would be in check mode.
  returned: success
  type: list
  elements: str
others:
  description: People in O(accounts) whom this module has not put there. They stay.
  returned: success
  type: list
  elements: str
done:
  description: The steps that were done before one failed.
  returned: if a step fails
  type: list
  elements: str
not_done:
  description: The step that failed, and those after it.
  returned: if a step fails
  type: list
  elements: str
"""

import os
import tempfile
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils import _sacctmgr as sacctmgr
from ansible_collections.trainyard.gpu.plugins.module_utils._record import Record
from ansible_collections.trainyard.gpu.plugins.module_utils._slurm_accounts import (
    Found,
    diff_of,
    faults,
    plan,
    settled_record,
)


class Accounts:
    def __init__(self, module):
        self.module, self.cluster = module, module.params["cluster"]
        self.file = Record(module, module.params["record"])
        self.record = self.file.read()
        former = module.params["state"] == "former"
        self.accounts, self.priorities, self.operators = ([], [], [])
        if not former:
            self.accounts, self.priorities = module.params["accounts"], module.params["priorities"]
            self.operators = module.params["operators"]

    def deadline(self):
        return time.monotonic() + max(self.module.params["timeout"], 0)

    def tool(self, name):
        path = self.module.get_bin_path(name)
        if path is None:
            self.module.fail_json(
                msg=(
                    "%s is not installed on this host; install the package slurm-client, or run "
                    "this module on the host of slurmdbd"
                )
                % name
            )
        return path

    def run(self, arguments):
        """Run sacctmgr, again while the database is busy. Returns its exit code and output."""
        deadline = self.deadline()
        while True:
            rc, out, err = self.module.run_command(
                [self.tool("sacctmgr")] + arguments, environ_update={"LC_ALL": "C"}
            )
            # Also with exit code 0: sacctmgr may say that the database is busy, do nothing, and
            # report success.
            busy = sacctmgr.is_busy(err if rc == 0 and "show" in arguments else out + err)
            if not busy or time.monotonic() >= deadline:
                return rc or int(busy), out, err
            time.sleep(1)

    def table(self, entity):
        rc, out, err = self.run(sacctmgr.show(entity))
        if rc != 0:
            self.module.fail_json(
                msg=(
                    "sacctmgr show %s failed: %s. Check that slurmdbd runs on "
                    "AccountingStorageHost of slurm.conf, and look into its log"
                )
                % (entity, sacctmgr.message(err or out))
            )
        return out

    def parsed(self, parse, text, *more):
        try:
            return parse(text, *more)
        except sacctmgr.ParseError as error:
            self.module.fail_json(
                msg="%s. Nothing can be compared with that. Report it with the version of Slurm"
                % error
            )

    def found(self):
        """Read the database."""
        return Found(
            self.cluster,
            self.parsed(sacctmgr.parse_qos, self.table("qos")),
            self.parsed(sacctmgr.parse_accounts, self.table("account")),
            self.parsed(sacctmgr.parse_associations, self.table("assoc")),
            self.parsed(sacctmgr.parse_users, self.table("user"), self.cluster),
        )

    def jobs(self):
        rc, out, err = self.module.run_command(
            [self.tool("squeue"), "--noheader", "--all", "--format=" + sacctmgr.JOB_FORMAT],
            environ_update={"LC_ALL": "C"},
        )
        if rc != 0:
            self.module.fail_json(
                msg="squeue failed: %s. Something is to be removed, which is not possible while "
                "its jobs run. Start slurmctld, and run this "
                "again" % sacctmgr.message(err or out)
            )
        return self.parsed(sacctmgr.parse_jobs, out)

    def planned(self, found, jobs=(), record=None):
        """Return the plan for what was found. C(record) is that of an earlier run unless given."""
        record = self.record if record is None else record
        return plan(found, self.accounts, self.priorities, record, jobs, self.operators)

    def plan(self, found):
        """Return the plan, and the jobs that were considered. squeue is asked only if something is
        removed.
        """
        result, jobs = self.planned(found), []
        if result.removes:
            jobs = self.jobs()
            result = self.planned(found, jobs)
        return result, jobs

    def check(self, found):
        """Fail before any change if the database cannot take it."""
        # sacctmgr load would create a cluster of that name.
        if not any(row.cluster == self.cluster for row in found.associations):
            names = sorted({row.cluster for row in found.associations})
            self.module.fail_json(
                msg=(
                    "cluster: '%s' is not registered in the database, which has %s. Start "
                    "slurmctld with ClusterName=%s, or correct the name"
                )
                % (self.cluster, ", ".join(names) or "none", self.cluster)
            )

    def await_gpus(self):
        """slurmctld registers gres/gpu at its first start.

        Without it, sacctmgr refuses limits of GPUs.
        """
        deadline = self.deadline()
        while sacctmgr.GPU not in self.parsed(sacctmgr.parse_tres, self.table("tres")):
            if time.monotonic() >= deadline:
                self.module.fail_json(
                    msg="the database does not count %s. Set AccountingStorageTRES=gres/gpu in "
                    "slurm.conf, and start slurmctld, which "
                    "registers it" % sacctmgr.GPU
                )
            time.sleep(1)

    def cancel(self, waiting):
        numbers = sorted({number for each in waiting for number in each["jobs"]})
        if numbers and not self.module.check_mode:
            rc, out, err = self.module.run_command([self.tool("scancel")] + numbers)
            # One of them may have ended.
            if rc != 0 and "Invalid job id" not in err:
                self.module.fail_json(
                    msg="scancel of jobs %s failed: %s. Check that slurmctld runs, cancel the jobs "
                    "on the scheduler's host, and run "
                    "this again" % (", ".join(numbers), sacctmgr.message(err or out))
                )
            deadline = self.deadline()
            while {job.number for job in self.jobs()} & set(numbers):
                if time.monotonic() >= deadline:
                    self.module.fail_json(
                        msg=(
                            "jobs %s have not ended %d s after scancel. Run this again when squeue "
                            "does not show them any more"
                        )
                        % (", ".join(numbers), self.module.params["timeout"])
                    )
                time.sleep(1)
        return numbers

    def apply(self, steps):
        done = []
        for step in steps:
            arguments = ["-i"] + step.arguments
            if step.content:
                # Ansible removes this folder.
                handle, name = tempfile.mkstemp(prefix="slurm_accounts.", dir=self.module.tmpdir)
                with os.fdopen(handle, "w", encoding="ascii") as file:
                    file.write(step.content)
                arguments = [word.replace("=LOAD", "=" + name) for word in arguments]
            rc, out, err = self.run(arguments)
            if rc != 0 and not sacctmgr.is_done_already(out + err):
                return done, sacctmgr.message(err + out)
            done.append(step.what)
        return done, ""

    def reconcile(self):
        found = self.found()
        self.check(found)
        (result, jobs), cancelled = self.plan(found), []
        if result.waiting and self.module.params["cancel_jobs"]:
            cancelled = self.cancel(result.waiting)
            jobs = [job for job in self.jobs() if job.number not in cancelled]
            result = self.planned(found, jobs)
        if not self.module.check_mode:
            self.change(result, jobs)
        for each in result.waiting:
            self.module.warn(
                "%s is not removed while jobs have not ended: %s"
                % (each["what"], ", ".join(each["jobs"]))
            )
        for each in result.kept:
            self.module.warn("%s is not removed: %s" % (each["what"], each["reason"]))
        self.module.exit_json(
            changed=bool(result.steps or cancelled),
            changes=result.changes,
            waiting=result.waiting,
            kept=result.kept,
            cancelled=cancelled,
            others=result.others,
            diff=diff_of(result.changes),
        )

    def change(self, result, jobs):
        before = self.record
        if result.steps:
            if any(
                sacctmgr.GPU in word
                for step in result.steps
                for word in step.arguments + [step.content]
            ):
                self.await_gpus()
            # Written first: an interrupted run leaves nothing that is not recorded.
            self.file.write(dict(before, **result.record))
            done, message = self.apply(result.steps)
            now = self.found()
            left = self.planned(now, jobs, result.record)
            if message or left.steps:
                self.file.write(settled_record(now, before, result.record))
                not_done = (
                    [step.what for step in result.steps][len(done) :]
                    if message
                    else [step.what for step in left.steps]
                )
                self.module.fail_json(
                    msg=(
                        "%s failed: %s. Done: %s. Not done: %s. Correct the cause, and run this "
                        "again"
                    )
                    % (
                        not_done[0],
                        message or "sacctmgr reported success, but the database does not have it",
                        ", ".join(done) or "nothing",
                        ", ".join(not_done),
                    ),
                    done=done,
                    not_done=not_done,
                )
        if result.record != before:
            self.file.write(result.record)


def main():
    number = {"type": "int"}
    names = {"type": "list", "elements": "str", "default": []}
    limits = dict.fromkeys(
        ("cpus", "memory_gb", "max_jobs_per_person", "max_submitted_per_person"), number
    )
    module = AnsibleModule(
        argument_spec={
            "cluster": {"type": "str", "required": True},
            "accounts": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "name": {"type": "str", "required": True},
                    "description": {"type": "str"},
                    "gpus": number,
                    "max_gpus_per_person": number,
                    "max_minutes": number,
                    "members": names,
                    "defaults": {"type": "dict", "options": limits},
                    **limits,
                },
            },
            "priorities": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "name": {"type": "str", "required": True},
                    "priority": {"type": "int", "default": 0},
                    "preempts": names,
                },
            },
            "operators": names,
            "cancel_jobs": {"type": "bool", "default": False},
            "timeout": {"type": "int", "default": 60},
            "record": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["present", "former"], "default": "present"},
        },
        supports_check_mode=True,
    )
    accounts = Accounts(module)
    wrong = faults(accounts.accounts, accounts.priorities, accounts.operators)
    if wrong:
        module.fail_json(msg="%s. Nothing was changed" % "; ".join(wrong))
    if module.params["state"] == "former" and not accounts.record:
        module.exit_json(
            changed=False,
            changes=[],
            waiting=[],
            kept=[],
            cancelled=[],
            others=[],
            diff={"before": "", "after": ""},
        )
    accounts.reconcile()


if __name__ == "__main__":
    main()
