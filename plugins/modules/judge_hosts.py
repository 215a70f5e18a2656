#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: judge_hosts
short_description: Check the answers of all hosts against rules
version_added: "0.1.0"
description:
  - Fails once with all problems of all hosts in one message, or returns every check with its
    verdict.
  - A host that has dropped out of the play did not answer. That is a separate finding.
  - Runs on the controller only and needs no connection. Use it with C(run_once), after role
    C(trainyard.gpu.cluster).
options:
  rules:
    description:
      - Paths of YAML files with a list C(host_rules) and, if rules need it, a dictionary C(data). A
        rule of a later file replaces a rule with the same C(id).
      - A rule has C(id) (published, never renamed), C(severity) (V(block) or V(warn)), C(stage)
        (V(host) is judged for every host, V(cluster) once), C(that) (a Jinja expression without
        braces, true means pass), and the texts C(expected), C(found), C(source) and C(fix), which
        are templates.
      - C(for_each), an expression, returns a list whose entries are judged as C(item). C(hosts), an
        expression, returns the hosts that a finding is about. If C(only_warn), an expression, is
        true, a blocking rule only warns.
      - If C(when), an expression, is false, the rule is skipped, and C(otherwise), a template,
        gives the reason. C(needs) has reasons, which are templates, by expression. If one of these
        is false, the rule is not evaluated. A rule that has only C(id) and C(otherwise) is always
        skipped.
      - C(title), C(checked), C(required), C(applies_to) and C(procedure) of a rule, and
        C(other_checks) of a file, are for the report of role C(trainyard.gpu.verify). They do not
        change the judgement. C(checked) says in a sentence what passes, and C(warns) when
        C(only_warn) is true. The tables in the READMEs of the roles show them. The rules of a site
        need neither.
      - C(when) and C(otherwise) of a file apply to all of its rules of stage V(host). Its C(let)
        has expressions by name, which are evaluated for every host in this order before the rules.
        Those of C(let_once) are evaluated before C(let), once for all hosts, on the first one. Use
        it for what is equal for all hosts and grows with their number.
      - Expressions can use the variables of all roles and the facts of the host, C(data), the
        values of C(let_once) and C(let), C(answer) (the variable named in O(answers)), C(member)
        (the host in C(cluster_members)), C(check_mode), C(answering) (C(cluster_host) of every host
        that answered, with its C(name)), and in rules of stage V(cluster) C(each) (the values of
        C(let) for every host, with its C(name)).
    type: list
    elements: path
    required: true
  answers:
    description: Name of the variable that holds, on every host, the result of
      M(trainyard.gpu.host_info) or another module.
    type: str
    required: true
  findings:
    description: Findings of an earlier judgement to include in the message.
    type: list
    elements: dict
    default: []
  fail_on:
    description: V(block) fails for blocking findings, V(warn) also for warnings.
    type: str
    choices: [block, warn]
    default: block
  overrule:
    description: Severity by rule id, V(skip), V(warn) or V(block).
    type: dict
    default: {}
  report_only:
    description: Return all findings and do not fail for them. Use it if more findings follow.
    type: bool
    default: false
extends_documentation_fragment:
  - trainyard.gpu.attributes.posix_info
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Gather the facts of the host
  trainyard.gpu.host_info:
    own_name: true
  register: gathered

- name: Check the answers of all hosts
  trainyard.gpu.judge_hosts:
    rules: ["{{ playbook_dir }}/our_rules.yml"]
    answers: gathered
  run_once: true
"""

RETURN = r"""
msg:
  description: All problems as text, or the number of checks.
  returned: always
  type: str
findings:
  description: Every check with its verdict, after those in O(findings). If the module fails, passed
    and skipped checks are left out.
  returned: always
  type: list
  elements: dict
  contains:
    id:
      description: Identifier of the check, never renamed.
      type: str
      sample: ssh-port-taken
    host:
      description: Inventory name of the host, or several names if the finding is about several
        hosts.
      type: str
    verdict:
      description: V(pass), V(warn), V(fail), V(skipped) or V(not_evaluated).
      type: str
    expected:
      description: What was expected; empty for V(pass).
      type: str
    found:
      description: What was found, or why the rule was skipped or not evaluated; empty for V(pass).
      type: str
    source:
      description: Tool, file or variable that was read.
      type: str
    seconds:
      description: Always V(0.0), because the facts were gathered before.
      type: float
    fix:
      description: What to do; empty for V(pass).
      type: str
"""
