#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_reservation
short_description: Keep jobs of Slurm off nodes during maintenance
version_added: "0.4.0"
description:
  - Reserves nodes for C(root), so that no waiting job starts there, and waits until the jobs that
    already run there have ended.
  - If jobs still run after O(wait), the task fails and names them. A reservation that this task
    made is deleted then.
  - The reservation ends by itself after O(minutes), so that a run that was killed does not block
    the nodes for ever.
  - Run it once, on a host that has Slurm's commands, for all nodes. Run it with O(state=absent) in
    C(always) of a block.
author:
  - trainyard maintainers (@trainyard)
options:
  name:
    description: Name of the reservation. Letters, digits, C(_), C(.) and C(-).
    type: str
    default: trainyard
  nodes:
    description: Names of the nodes. Required for V(present).
    type: list
    elements: str
  minutes:
    description: Minutes after which the reservation ends, 1 or more.
    type: int
    default: 60
  wait:
    description: Seconds to wait for the jobs on the nodes, 0 or more. With V(0) the task fails at
      once if there are any.
    type: int
    default: 0
  state:
    description:
      - V(present) makes the reservation and waits for the jobs. A reservation of this name for the
        same nodes is extended to O(minutes) from now.
      - V(absent) deletes it.
    type: str
    choices: [present, absent]
    default: present
  timeout:
    description: Seconds after which Slurm's commands together are ended, 1 or more. O(wait) is
      added.
    type: int
    default: 30
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.internal
attributes:
  check_mode:
    support: full
    details: It does not wait.
  diff_mode:
    support: none
seealso:
  - module: trainyard.gpu.slurm_node_state
requirements:
  - C(scontrol) and C(squeue), as root or as a person with C(AdminLevel=Operator)
"""

EXAMPLES = r"""
- name: Measure while no job runs
  block:
    - name: Hold the nodes
      trainyard.gpu.slurm_reservation:
        nodes: [gpu01, gpu02]
        wait: 300
      run_once: true

    - name: Measure
      ansible.builtin.command: /usr/local/bin/measure
      changed_when: false
  always:
    - name: Remove the reservation
      trainyard.gpu.slurm_reservation:
        state: absent
      run_once: true
"""

RETURN = r"""
waited:
  description: Seconds that the task waited for jobs.
  returned: success
  type: int
  sample: 12
jobs:
  description: The jobs that still run on the nodes.
  returned: failure because of them
  type: list
  elements: dict
  sample: [{id: 4711, user: anna, nodes: [gpu01], end_time: "2026-11-26T12:00:00Z"}]
"""

import re

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils import _slurm
from ansible_collections.trainyard.gpu.plugins.module_utils._slurm_commands import NoAnswer, Slurm


def check_params(module, name, nodes):
    """Fail for parameters that Slurm cannot use."""
    for what, words in (("name", [name]), ("nodes", nodes)):
        for word in words:
            # Brackets and commas would address other nodes too, and ALL all of them.
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", word):
                module.fail_json(
                    msg="%s: '%s' is not valid; use letters, digits, '-', '.' and '_'"
                    % (what, word)
                )
    for what, least in (("minutes", 1), ("wait", 0)):
        if module.params[what] < least:
            module.fail_json(
                msg="%s: %d is too low; use %d or more" % (what, module.params[what], least)
            )
    if module.params["state"] == "present" and not nodes:
        module.fail_json(msg="nodes: the list is empty; name the nodes")


def existing(slurm, name):
    """Return the reservation of this name, None if there is none."""
    reservations = slurm.read(_slurm.RESERVATIONS, _slurm.parse_reservations)
    return next((entry for entry in reservations if entry["name"] == name), None)


def fail_for_other_use(module, found):
    """Fail if a reservation of this name has another purpose."""
    if found and "maint" not in found["flags"]:
        module.fail_json(
            msg="name: the reservation '%s' is not for maintenance (flags: %s). Use a different "
            "name, or delete it on the scheduler's host: "
            "scontrol delete reservationname=%s"
            % (found["name"], ", ".join(found["flags"]) or "none", found["name"])
        )


def command(name, nodes, minutes, is_new):
    """Return the command that reserves the nodes for some minutes from now."""
    words = ["scontrol", *(["create", "reservation"] if is_new else ["update"])]
    words += ["reservationname=" + name, "nodes=" + ",".join(nodes), "duration=%d" % minutes]
    if is_new:
        words += ["starttime=now", "flags=maint,ignore_jobs", "users=root"]
    return words


def main():
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "default": "trainyard"},
            "nodes": {"type": "list", "elements": "str"},
            "minutes": {"type": "int", "default": 60},
            "wait": {"type": "int", "default": 0},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "timeout": {"type": "int", "default": 30},
        },
        supports_check_mode=True,
    )
    name, nodes = module.params["name"], list(dict.fromkeys(module.params["nodes"] or []))
    check_params(module, name, nodes)
    slurm = Slurm(module)
    try:
        found = existing(slurm, name)
        if module.params["state"] == "absent":
            if found and not module.check_mode:
                slurm.run(["scontrol", "delete", "reservationname=" + name])
            module.exit_json(changed=bool(found), waited=0)
        fail_for_other_use(module, found)
        if module.check_mode:
            module.exit_json(changed=not found or sorted(found["nodes"]) != sorted(nodes), waited=0)
        slurm.run(command(name, nodes, module.params["minutes"], is_new=not found))
        jobs, waited = slurm.wait_for_jobs(nodes, module.params["wait"], name)
        if jobs and not found:
            slurm.run(["scontrol", "delete", "reservationname=" + name])
    except NoAnswer as error:
        module.fail_json(msg=str(error), cause=error.cause)
    if jobs:
        left = "The nodes are not reserved now"
        if found:
            left = "The reservation of an earlier run stays"
        slurm.fail_for_jobs(jobs, waited, left)
    module.exit_json(changed=True, waited=waited)


if __name__ == "__main__":
    main()
