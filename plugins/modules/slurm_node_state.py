#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_node_state
short_description: Drain and resume nodes of Slurm
version_added: "0.4.0"
description:
  - Drains nodes with a reason that begins with C(trainyard:), or resumes them. A drained node
    finishes its jobs and starts no others.
  - A reason without that prefix belongs to an administrator or to another program. Such a node is
    neither resumed nor given another reason. It is reported in RV(kept).
  - After V(resume), Slurm may report a node as C(not_responding) for some seconds, until it has
    contacted its slurmd.
  - Run it once, on a host that has Slurm's commands, for all nodes.
  - The task fails if Slurm does not answer, or if a name is not a node of the cluster.
author:
  - trainyard maintainers (@trainyard)
options:
  nodes:
    description: Names of the nodes.
    type: list
    elements: str
    required: true
  state:
    description:
      - V(drain) keeps the nodes from starting jobs. A node that is drained already gets the new
        reason.
      - V(resume) returns nodes that are drained, down or failing to service. Other nodes are not
        changed.
    type: str
    choices: [drain, resume]
    required: true
  reason:
    description:
      - Why the nodes are drained. Required for V(drain).
      - C(trainyard:) is added if it is missing. Line breaks become spaces. A reason of more than
        240 characters is shortened.
    type: str
  wait:
    description:
      - Seconds to wait, after the change, until no job runs on the nodes. 0 or more.
      - If jobs still run then, the task fails and names them, and the nodes stay as they are. If
        not set, the task does not wait.
    type: int
  only_ours:
    description: V(false) also resumes nodes, and replaces reasons, that others have drained or set.
    type: bool
    default: true
  timeout:
    description: Seconds after which all commands together are ended, 1 or more.
    type: int
    default: 30
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.internal
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
seealso:
  - module: trainyard.gpu.slurm_info
requirements:
  - C(squeue) for O(wait)
  - C(scontrol), as root or as a person with C(AdminLevel=Administrator)
"""

EXAMPLES = r"""
- name: Drain a node for an upgrade, and wait at most an hour for its jobs
  trainyard.gpu.slurm_node_state:
    nodes: [gpu03]
    state: drain
    reason: upgrade
    wait: 3600
  run_once: true

- name: Drain a node with a finding
  trainyard.gpu.slurm_node_state:
    nodes: [gpu03]
    state: drain
    reason: "verify: busbw 3.1 of 24 GB/s, link to gpu04"
  run_once: true

- name: Resume what an earlier run has drained
  trainyard.gpu.slurm_node_state:
    nodes: "{{ ansible_play_hosts }}"
    state: resume
  run_once: true
  register: resumed

- name: Report nodes that others have drained
  ansible.builtin.debug:
    msg: "{{ item.name }} stays {{ item.states | join('+') }}: {{ item.reason }} ({{
      item.reason_user }}, {{ item.reason_time }})"
  loop: "{{ resumed.kept }}"
"""

RETURN = r"""
drained:
  description: Names of the nodes that were drained or got another reason.
  type: list
  elements: str
  returned: success
resumed:
  description: Names of the nodes that were resumed.
  type: list
  elements: str
  returned: success
unchanged:
  description: Names of the nodes that had the requested state.
  type: list
  elements: str
  returned: success
kept:
  description: Nodes that were not changed because the reason is not ours.
  type: list
  elements: dict
  returned: success
  contains:
    name:
      description: Name.
      type: str
    states:
      description: As in RV(trainyard.gpu.slurm_info#module:nodes[].states).
      type: list
      elements: str
    reason:
      description: The reason that stays.
      type: str
    reason_user:
      description: Who set it.
      type: str
    reason_time:
      description: When it was set.
      type: str
nodes:
  description: States and reason of each of O(nodes) after the task, by name. In check mode, as
    expected.
  type: dict
  returned: success
  sample: {gpu03: {states: [idle, drain], reason: "trainyard: verify: busbw 3.1 of 24 GB/s, link to gpu04"}}
reason:
  description: The reason as it was set; empty for V(resume).
  type: str
  returned: success
"""

import re

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils import _slurm
from ansible_collections.trainyard.gpu.plugins.module_utils._slurm_commands import NoAnswer, Slurm


def expected(node, action, reason):
    """States and reason after the action. Slurm may add or remove other flags."""
    states = list(node["states"])
    if action == "drain":
        # Slurm prints the flag first.
        return {
            "states": states if "drain" in states else states[:1] + ["drain"] + states[1:],
            "reason": reason,
        }
    if action == "resume":
        base = "idle" if states[0] in ("down", "error") else states[0]
        return {
            "states": [base] + [state for state in states[1:] if state not in ("drain", "fail")],
            "reason": "",
        }
    return {"states": states, "reason": node["reason"]}


def shown(states):
    lines = []
    for name, state in sorted(states.items()):
        reason = " (%s)" % state["reason"] if state["reason"] else ""
        lines.append("%s: %s%s\n" % (name, "+".join(state["states"]), reason))
    return "".join(lines)


def checked_reason(module):
    """Return the reason to set, empty for V(resume).

    Fail for other parameters that Slurm cannot use.
    """
    reason, wait = "", module.params["wait"]
    if module.params["state"] == "drain":
        reason = _slurm.reason_of(module.params["reason"])
        if not reason:
            module.fail_json(
                msg="reason: '%s' has no text. Say why the nodes are drained"
                % module.params["reason"]
            )
    if wait is not None and wait < 0:
        module.fail_json(msg="wait: %d is too low; use 0 or more" % wait)
    for name in module.params["nodes"]:
        # Brackets and commas would address other nodes too, and ALL all of them.
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            module.fail_json(
                msg=(
                    "nodes: '%s' is not a valid node name; use one name per entry, of letters, "
                    "digits, '-', '.' and '_'"
                )
                % name
            )
    return reason


def read_nodes(slurm):
    """Return the nodes of the cluster by name."""
    return {node["name"]: node for node in slurm.read(_slurm.NODES, _slurm.parse_nodes)}


def fail_for_unknown(module, names, known):
    unknown = [name for name in names if name not in known]
    if unknown:
        module.fail_json(
            msg=(
                "nodes: '%s' is not a node of the cluster, which has %s. Correct the name, or add "
                "the node to slurm.conf"
            )
            % (
                "', '".join(unknown),
                ", ".join(sorted(known)[:20]) + (" and more" if len(known) > 20 else ""),
            )
        )


def update(slurm, names, word, reason):
    """Set the state of nodes: drain, undrain or resume."""
    if not names:
        return
    command = ["scontrol", "update", "nodename=" + ",".join(names), "state=" + word]
    try:
        slurm.run(command + (["reason=" + reason] if word == "drain" else []))
    except NoAnswer as error:
        # Slurm prints this for a node that never registered, and clears the flag nevertheless. The
        # nodes are read again afterwards.
        if word != "undrain" or "Invalid node state specified" not in str(error):
            raise


def fail_for_wrong(module, acting, after):
    """Fail if a node that was changed has another state than requested."""
    state = module.params["state"]
    is_drained = state == "drain"
    wrong = [name for name in acting if ("drain" in after[name]["states"]) != is_drained]
    if wrong:
        module.fail_json(
            msg=(
                "%s: %s after 'scontrol update state=%s'; expected %s. See the log of the "
                "controller ('journalctl -u slurmctld')"
            )
            % (
                ", ".join(wrong),
                "+".join(after[wrong[0]]["states"]),
                state,
                "the flag drain" if is_drained else "no flag drain",
            )
        )


def wait_for_jobs(module, slurm, names, after):
    """Wait until no job runs on the nodes. C(after) are their states."""
    jobs, waited = slurm.wait_for_jobs(names, module.params["wait"])
    if jobs:
        states = ["%s: %s" % (name, "+".join(after[name]["states"])) for name in sorted(after)]
        slurm.fail_for_jobs(jobs, waited, "The nodes are %s" % "; ".join(states))


def carry_out(slurm, plan, by_name, reason):
    """Change the nodes that the plan drains or resumes, in the order that Slurm needs."""
    acting = [name for name, action in plan.items() if action in ("drain", "resume")]
    words = {name: _slurm.state_word(by_name[name], plan[name]) for name in acting}
    for word in ("drain", "undrain", "resume"):
        update(slurm, [name for name in acting if words[name] == word], word, reason)


def main():
    module = AnsibleModule(
        argument_spec={
            "nodes": {"type": "list", "elements": "str", "required": True},
            "state": {"type": "str", "choices": ["drain", "resume"], "required": True},
            "reason": {"type": "str"},
            "wait": {"type": "int"},
            "only_ours": {"type": "bool", "default": True},
            "timeout": {"type": "int", "default": 30},
        },
        required_if=[("state", "drain", ["reason"])],
        supports_check_mode=True,
    )
    names = list(dict.fromkeys(module.params["nodes"]))
    reason = checked_reason(module)
    slurm = Slurm(module)
    try:
        by_name = read_nodes(slurm)
        fail_for_unknown(module, names, by_name)
        plan = _slurm.node_state_plan(
            list(by_name.values()),
            names,
            module.params["state"],
            reason,
            module.params["only_ours"],
        )
        before = {name: expected(by_name[name], "", "") for name in plan}
        after = {name: expected(by_name[name], action, reason) for name, action in plan.items()}
        acting = [name for name, action in plan.items() if action in ("drain", "resume")]
        if acting and not module.check_mode:
            carry_out(slurm, plan, by_name, reason)
            now = read_nodes(slurm)
            after = {name: expected(now[name], "", "") for name in plan}
            fail_for_wrong(module, acting, after)
        if module.params["wait"] is not None and not module.check_mode:
            wait_for_jobs(module, slurm, names, after)
    except NoAnswer as error:
        module.fail_json(msg=str(error), cause=error.cause)
    keys = ("name", "states", "reason", "reason_user", "reason_time")

    def with_action(action):
        return [name for name in plan if plan[name] == action]

    module.exit_json(
        changed=bool(acting),
        drained=with_action("drain"),
        resumed=with_action("resume"),
        unchanged=with_action("unchanged"),
        kept=[{key: by_name[name][key] for key in keys} for name in with_action("kept")],
        nodes=after,
        reason=reason,
        diff={"before": shown(before), "after": shown(after)},
    )


if __name__ == "__main__":
    main()
