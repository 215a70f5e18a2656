# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import functools
import re

from collections.abc import Mapping

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase

from ansible_collections.trainyard.gpu.plugins.module_utils._quantity import quantity
from ansible_collections.trainyard.gpu.plugins.plugin_utils._findings import blocks, finding, render
from ansible_collections.trainyard.gpu.plugins.plugin_utils._host_rules import problem_of_table
from ansible_collections.trainyard.gpu.plugins.plugin_utils._role_input import (
    HostInput,
    load_data,
    load_defaults,
    own_templar,
    show_failure,
)

# Ansible's messages for a host that answers, but has no usable Python.
NO_PYTHON = re.compile(
    (
        r"interpreter .*not found|requires a minimum of Python|SyntaxError: |python[\d.]*: "
        r"(?:command )?not found"
    ),
    re.IGNORECASE,
)


class ActionModule(ActionBase):
    """Checks the answers of all hosts against rules on the controller."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(("rules", "answers", "findings", "fail_on", "overrule", "report_only"))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        dummy, args = self.validate_argument_spec(
            {
                "rules": {"type": "list", "elements": "path", "required": True},
                "answers": {"type": "str", "required": True},
                "findings": {"type": "list", "elements": "dict", "default": []},
                "fail_on": {"type": "str", "choices": ["block", "warn"], "default": "block"},
                "overrule": {"type": "dict", "default": {}},
                "report_only": {"type": "bool", "default": False},
            }
        )
        rules = self._rules(args["rules"], args["overrule"])
        hostvars = task_vars["hostvars"]
        members = task_vars["cluster_members"]
        alive = [
            name
            for name in task_vars["groups"]["cluster"]
            if name in task_vars["ansible_play_hosts"]
        ]
        findings = self._missing(members, alive, task_vars)
        templar, defaults = own_templar(self._templar), load_defaults(self._loader)
        new_input = functools.partial(HostInput, templar, hostvars, defaults=defaults)
        for table in {id(table): table for table, dummy in rules}.values():
            hosts = self._inputs(table, alive, args["answers"], task_vars, new_input)
            for rule in [rule for its_table, rule in rules if its_table is table]:
                for name in alive if rule.get("stage") == "host" else alive[:1]:
                    findings += self._judge(rule, table, name, hosts[name], members)
        return self._told(result, args, findings, len(alive))

    def _missing(self, members, alive, task_vars):
        """Return the findings about hosts that have not answered, and about those that were lost in
        this run.
        """
        hostvars, in_play = task_vars["hostvars"], task_vars["ansible_play_hosts_all"]
        silent = [member for member in members if not member["reachable"]]
        names = [member["name"] for member in members if member["reachable"]]
        return [self._silent(member, hostvars, task_vars) for member in silent] + [
            self._lost(name, hostvars) for name in names if name in in_play and name not in alive
        ]

    def _inputs(self, table, alive, answers, task_vars, new_input):
        """Return what the rules of a table are judged with, by host.

        C(answers) is the name of the variable with the hosts' answers, C(new_input) returns the
        P(HostInput) of a host.
        """
        hostvars = task_vars["hostvars"]
        by_name = {member["name"]: member for member in task_vars["cluster_members"]}
        answering = [dict(hostvars[name]["cluster_host"], name=name) for name in alive]
        hosts, each, once = {}, [], None
        for name in alive:
            extra = {
                "data": table.get("data", {}),
                "answer": hostvars[name][answers],
                "check_mode": self._task.check_mode,
                "answering": answering,
                "each": each,
                "member": by_name[name],
            }
            hosts[name] = new_input(name, extra=extra)
            if once is None:
                once = self._let(table.get("let_once", {}), name, hosts[name])
            else:
                hosts[name].settle(once)
            each.append(dict(self._let(table.get("let", {}), name, hosts[name]), name=name))
        return hosts

    def _told(self, result, args, findings, hosts):
        """Return the result with its message. C(hosts) is how many have answered."""
        judged = [entry for entry in findings if entry["verdict"] in ("pass", "warn", "fail")]
        counts = (quantity(len(judged), "check"), quantity(hosts, "host"), not_evaluated(findings))
        result.update(changed=False, findings=args["findings"] + findings)
        if args["report_only"]:
            result["msg"] = "%s on %s.%s" % counts
        elif blocks(result["findings"], args["fail_on"]):
            result["failed"] = True
            # Ansible prints all values of a failed result. Passed checks would hide the failed
            # ones.
            result["findings"] = [
                entry for entry in result["findings"] if entry["verdict"] not in ("pass", "skipped")
            ]
            result["msg"] = (
                "Preflight found blocking problems; nothing was changed.\n"
                + render(result["findings"])
                + not_evaluated(findings)
            )
            show_failure(self._display, self._templar, result["msg"])
        else:
            warnings = render(findings)
            if warnings:
                text = "Preflight passed with warnings:\n" + warnings
                self._display.warning(text, formatted=True)
            result["msg"] = "%s on %s; no blocking problems.%s" % counts
        return result

    def _rules(self, paths, overrule):
        """All rules with their tables. A rule of a later file replaces one with the same id."""
        rules = {}
        for path in paths:
            table = load_data(self._loader, path)
            # Jinja syntax errors are found during the evaluation.
            problem = (
                problem_of_table(table, templates=False)
                if table is not None
                else "the file does not exist"
            )
            if problem:
                raise AnsibleError("rules: %s: %s" % (path, problem))
            for rule in table["host_rules"]:
                rules[rule["id"]] = (table, rule)
        for check_id, verdict in overrule.items():
            if check_id not in rules or verdict not in ("skip", "warn", "block"):
                raise AnsibleError(
                    (
                        "overrule: '%s: %s' is not valid; use ids of rules, each with skip, warn "
                        "or block"
                    )
                    % (check_id, verdict)
                )
            table, rule = rules[check_id]
            if verdict == "skip":
                rules[check_id] = (
                    table,
                    {"id": check_id, "stage": "cluster", "otherwise": "overruled: skip"},
                )
            elif "that" in rule:
                rules[check_id] = (
                    table,
                    {
                        key: value
                        for key, value in dict(rule, severity=verdict).items()
                        if key != "only_warn"
                    },
                )
        return list(rules.values())

    @staticmethod
    def _let(expressions, name, inputs):
        """The values of the expressions for a host, in their order. Each can use those
        before it.
        """
        values = {}
        for key, expression in expressions.items():
            try:
                values[key] = inputs.evaluate(expression)
            except AnsibleError as error:
                raise AnsibleError(
                    "%s cannot be evaluated for %s: %s" % (key, name, error)
                ) from error
            inputs.settle({key: values[key]})
        return values

    @staticmethod
    def _silent(member, hostvars, task_vars):
        name = member["name"]
        in_play = name in task_vars["ansible_play_hosts_all"]
        if NO_PYTHON.search(member["error"]):
            return finding(
                "python-version",
                name,
                "fail" if in_play else "warn",
                expected="Python 3.8 or newer",
                found=member["error"],
                source="ansible_python_interpreter",
                fix=(
                    "install python3 on %s, or set ansible_python_interpreter to a Python 3.8 or "
                    "newer there"
                )
                % name,
            )
        return finding(
            "host-unreachable",
            name,
            # A host outside of --limit need not be reachable.
            "fail" if in_play else "warn",
            expected="the host answers to Ansible",
            found="%s: %s" % (hostvars[name].get("ansible_host", name), member["error"]),
            source="ssh",
            # ssh says the same of a host whose shell ends at once, such as one without Python.
            fix=(
                "start %s, or correct its address, user, key or sudo, or install python3 there, "
                "until 'ansible %s --become -m ansible.builtin.ping' succeeds%s"
            )
            % (
                name,
                name,
                "; to work on the others meanwhile, leave it out with --limit" if in_play else "",
            ),
        )

    @staticmethod
    def _lost(name, hostvars):
        """A host that has failed a task. Its result may be registered, and then it has the
        cause.
        """
        variables = hostvars.raw_get(name) if hasattr(hostvars, "raw_get") else hostvars[name]
        causes = [
            " ".join(str(value.get("msg", "")).split())
            for value in dict(variables).values()
            if isinstance(value, Mapping) and value.get("failed") is True and value.get("msg")
        ]
        found = "it dropped out of the play, so nothing was checked there"
        return finding(
            "host-unreachable",
            name,
            "fail",
            expected="the host answers in all tasks",
            found="%s: %s" % (found, causes[-1][:500]) if causes else found,
            source="ansible-playbook",
            fix="correct this error, and run the playbook again"
            if causes
            else (
                "correct the error of the failed task of %s in Ansible's output of this run, and "
                "run the playbook again"
            )
            % name,
        )

    @classmethod
    def _judge(cls, rule, table, name, inputs, members):
        everyone = ", ".join(member["name"] for member in members if member["reachable"])
        where = name if rule.get("stage") == "host" else everyone
        source = str(rule.get("source", "preflight"))
        try:
            left_out = cls._not_judged(rule, table, inputs)
            if left_out:
                verdict, why = left_out
                about = where if "that" in rule else everyone
                return [finding(rule["id"], about, verdict, found=why, source=source)]
            findings = []
            for item in inputs.evaluate(rule["for_each"]) if "for_each" in rule else [None]:
                if not inputs.evaluate(rule["that"], item=item):
                    findings.append(cls._finding(rule, name, inputs, item))
        except AnsibleError as error:
            # A rule that cannot be evaluated must not count as met.
            raise AnsibleError(
                "rule %s cannot be evaluated for %s: %s" % (rule["id"], name, error)
            ) from error
        return findings or [finding(rule["id"], where, "pass", source=source)]

    @staticmethod
    def _not_judged(rule, table, inputs):
        """Return (verdict, why) of a rule that is not judged here, None for the others."""
        if "that" not in rule:
            return "skipped", str(inputs.template(rule["otherwise"]))
        for condition in [table, rule] if rule["stage"] == "host" else [rule]:
            if "when" in condition and not inputs.evaluate(condition["when"]):
                return "skipped", str(inputs.template(condition["otherwise"])).strip()
        for needed, otherwise in rule.get("needs", {}).items():
            if not inputs.evaluate(needed):
                return "not_evaluated", str(inputs.template(otherwise)).strip()
        return None

    @staticmethod
    def _finding(rule, name, inputs, item):
        """Return the finding of a rule that an item breaks."""
        about = name
        if "hosts" in rule:
            about = ", ".join(inputs.evaluate(rule["hosts"], item=item))
        texts = {
            key: str(inputs.template(rule[key], item=item)).strip()
            for key in ("expected", "found", "source", "fix")
        }
        lesser = rule["severity"] == "warn" or (
            "only_warn" in rule and inputs.evaluate(rule["only_warn"], item=item)
        )
        return finding(rule["id"], about, "warn" if lesser else "fail", **texts)


def not_evaluated(findings):
    reasons = {}
    for entry in findings:
        if entry["verdict"] == "not_evaluated":
            reasons.setdefault(entry["found"], []).append(entry["id"])
    return "".join(
        "\nNot evaluated: %s: %s" % (", ".join(dict.fromkeys(ids)), reason)
        for reason, ids in reasons.items()
    )
