#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: judge_hosts
short_description: Check the answers of all hosts against rules
version_added: "0.1.0"
description:
  - Fails once, with all problems of all hosts in one message, or passes with every check and its verdict.
  - A host of the play that no longer takes part did not answer, which is a finding of its own.
  - Runs on the controller only, and needs no connection. Use it with C(run_once), after role C(trainyard.gpu.cluster).
options:
  rules:
    description:
      - Paths of YAML files with a list C(host_rules) and, where rules need it, a dictionary C(data). A rule of a later file takes the place of one with its
        C(id).
      - A rule has C(id) (published, never renamed), C(severity) (V(block) or V(warn)), C(stage) (V(host) is judged for every host, V(cluster) once),
        C(that) (a Jinja expression without braces, true is good), and the texts C(expected), C(found), C(source) and C(fix), which are templates.
      - C(for_each), an expression, judges each entry of a list as C(item). C(hosts), an expression, names the hosts that a finding is about. Where
        C(only_warn), an expression, is true, a finding of a rule that blocks only warns.
      - Where C(when), an expression, is false, the rule is skipped, and C(otherwise), a template, says why. C(needs) has reasons, which are templates, by
        expression; where one is false, the rule is not evaluated. A rule of C(id) and C(otherwise) alone is skipped always.
      - A file's own C(when) and C(otherwise) hold for all of its rules of stage V(host). Its C(let) has expressions by name, worked out for every host in
        this order before the rules are judged.
      - Expressions see the variables of all roles and what the run has worked out for the host, C(data), what C(let) has, C(answer) (the variable that
        O(answers) names), C(member) (the host in C(cluster_members)), C(check_mode), C(answering) (C(cluster_host) of every host that answered, with its
        C(name)), and in rules of stage V(cluster) C(each) (what C(let) has for every host, with its C(name)).
    type: list
    elements: path
    required: true
  answers:
    description: Name of the variable that holds, on every host, what it has answered, to M(trainyard.gpu.host_info) or another module.
    type: str
    required: true
  findings:
    description: Findings of an earlier judgement, which belong into the same message.
    type: list
    elements: dict
    default: []
  fail_on:
    description: V(block) fails for findings that block, V(warn) for warnings too.
    type: str
    choices: [block, warn]
    default: block
  overrule:
    description: By the id of a rule, V(skip), V(warn) or V(block) in place of its severity.
    type: dict
    default: {}
  report_only:
    description: Return all findings, whatever they say, and never fail for them. It is for whoever has more findings to come.
    type: bool
    default: false
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Ask the host about its peers
  trainyard.gpu.host_info:
    own_name: true
  register: asked

- name: Judge what all hosts have said
  trainyard.gpu.judge_hosts:
    rules: ["{{ playbook_dir }}/our_rules.yml"]
    answers: asked
  run_once: true
"""

RETURN = r"""
msg:
  description: All problems as text, or how much was checked.
  returned: always
  type: str
findings:
  description: Every check with its verdict, after those given with O(findings). Where this fails, those that passed or were skipped are left out.
  returned: always
  type: list
  elements: dict
  contains:
    id:
      description: Identifier of the check, never renamed.
      type: str
      sample: ssh-port-taken
    host:
      description: Inventory name of the host, several where the finding is about several.
      type: str
    verdict:
      description: V(pass), V(warn), V(fail), V(skipped) or V(not_evaluated).
      type: str
    expected:
      description: What is needed; empty for V(pass).
      type: str
    found:
      description: What the host says, or why the rule was skipped or not evaluated; empty for V(pass).
      type: str
    source:
      description: Tool, file or variable that told it.
      type: str
    seconds:
      description: Always V(0.0), as the hosts have been asked before.
      type: float
    fix:
      description: What to do; empty for V(pass).
      type: str
"""
