# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase

from ansible_collections.trainyard.gpu.plugins.module_utils._findings import blocks, finding, render
from ansible_collections.trainyard.gpu.plugins.plugin_utils._role_input import HostInput, load_data, load_roles, show_failure

REQUIRED = {"id", "severity", "stage", "that", "expected", "found", "source", "fix"}
OPTIONAL = {"for_each", "hosts"}
# How Ansible says that a host answers, but has no Python that it can use.
NO_PYTHON = re.compile(r"interpreter .*not found|requires a minimum of Python|SyntaxError: |python[\d.]*: (?:command )?not found", re.IGNORECASE)


class ActionModule(ActionBase):
    """Judge, on the controller, what all hosts have answered, by rules that are data."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(("rules", "answers", "findings", "fail_on"))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        dummy, args = self.validate_argument_spec(
            {
                "rules": {"type": "path", "required": True},
                "answers": {"type": "str", "required": True},
                "findings": {"type": "list", "elements": "dict", "default": []},
                "fail_on": {"type": "str", "choices": ["block", "warn"], "default": "block"},
            }
        )
        table = load_data(self._loader, args["rules"])
        if not table:
            raise AnsibleError("rules: there is no file %s" % args["rules"])
        for rule in table["host_rules"]:
            self._check_rule(rule)

        hostvars = task_vars["hostvars"]
        defaults = {name: value for role in load_roles(self._loader) for name, value in role.defaults.items()}
        members = task_vars["cluster_members"]
        alive = [name for name in task_vars["groups"]["cluster"] if name in task_vars["ansible_play_hosts"]]
        answering = [dict(hostvars[name]["cluster_host"], name=name) for name in alive]
        hosts = {}
        for name in alive:
            extra = {
                "data": table.get("data", {}),
                "answer": hostvars[name][args["answers"]],
                "answering": answering,
                "member": next(member for member in members if member["name"] == name),
            }
            hosts[name] = HostInput(self._templar, hostvars, name, defaults, extra)

        findings = [self._silent(member, hostvars, task_vars) for member in members if not member["reachable"]]
        for rule in table["host_rules"]:
            if rule["stage"] == "cluster":
                findings += self._judge(rule, alive[0], hosts[alive[0]], members)
            else:
                for name in alive:
                    findings += self._judge(rule, name, hosts[name], members)

        stopping = blocks(args["findings"] + findings, args["fail_on"])
        result.update(changed=False, findings=args["findings"] + findings)
        if stopping:
            result["failed"] = True
            # Ansible prints all of a failed result: what is good would bury what is not.
            result["findings"] = [entry for entry in result["findings"] if entry["verdict"] != "pass"]
            result["msg"] = "Preflight found what stops this; nothing has been changed.\n" + render(result["findings"])
            show_failure(self._display, self._templar, result["msg"])
        else:
            warnings = render(findings)
            if warnings:
                self._display.warning("Preflight lets this pass, but:\n" + warnings, formatted=True)
            result["msg"] = "%d checks on %d hosts; nothing stops this." % (len(findings), len(alive))
        return result

    @staticmethod
    def _check_rule(rule):
        name = rule.get("id", "without id")
        if not REQUIRED <= set(rule) <= REQUIRED | OPTIONAL:
            raise AnsibleError("rule %s: missing %s, unknown %s" % (
                name, ", ".join(sorted(REQUIRED - set(rule))) or "nothing", ", ".join(sorted(set(rule) - REQUIRED - OPTIONAL)) or "nothing"))
        if rule["severity"] not in ("block", "warn") or rule["stage"] not in ("host", "cluster"):
            raise AnsibleError("rule %s: severity is block or warn, stage is host or cluster" % name)

    @staticmethod
    def _silent(member, hostvars, task_vars):
        name = member["name"]
        asked = name in task_vars["ansible_play_hosts_all"]
        if NO_PYTHON.search(member["error"]):
            return finding(
                "python-version",
                name,
                "fail" if asked else "warn",
                expected="Python 3.8 or newer",
                found=member["error"],
                source="ansible_python_interpreter",
                fix="install python3 on %s, or point ansible_python_interpreter at a Python there that is 3.8 or newer" % name,
            )
        return finding(
            "host-unreachable",
            name,
            # One that --limit leaves out is not asked to be there.
            "fail" if asked else "warn",
            expected="the host answers to Ansible",
            found="%s: %s" % (hostvars[name].get("ansible_host", name), member["error"]),
            source="ssh",
            fix="start %s, or correct its address, user, key or sudo until «ansible %s --become -m ansible.builtin.ping» succeeds%s"
            % (name, name, "; to work on the others meanwhile, leave it out with --limit" if asked else ""),
        )

    @staticmethod
    def _judge(rule, name, inputs, members):
        severity = {"block": "fail", "warn": "warn"}[rule["severity"]]
        findings = []
        try:
            for item in inputs.evaluate(rule["for_each"]) if "for_each" in rule else [None]:
                if inputs.evaluate(rule["that"], item=item):
                    continue
                where = [name] if "hosts" not in rule else list(inputs.evaluate(rule["hosts"], item=item))
                texts = {key: str(inputs.template(rule[key], item=item)).strip() for key in ("expected", "found", "source", "fix")}
                findings.append(finding(rule["id"], ", ".join(where), severity, **texts))
        except AnsibleError as error:
            # A rule that can't be judged must not pass for one that is kept.
            raise AnsibleError("rule %s cannot be judged for %s: %s" % (rule["id"], name, error)) from error
        if not findings:
            everyone = ", ".join(member["name"] for member in members if member["reachable"])
            findings.append(finding(rule["id"], everyone if rule["stage"] == "cluster" else name, "pass", source=str(rule["source"])))
        return findings
