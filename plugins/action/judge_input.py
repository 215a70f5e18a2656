# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import re
import time

from ansible import constants as C
from ansible.errors import AnsibleError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.errors import RequiredError, UnsupportedError
from ansible.plugins.action import ActionBase

from ansible_collections.trainyard.gpu.plugins.module_utils._findings import blocks, finding, render
from ansible_collections.trainyard.gpu.plugins.module_utils._input_rules import (
    RuleError,
    check_inventory,
    describe,
    judge_rules,
    parse_rules,
    show,
    unknown_variables,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils._role_input import HostInput, load_data, load_roles, show_failure


def keeps_secrets(spec):
    """Tell whether an option or one of its suboptions must not be shown."""
    return bool(spec.get("no_log")) or any(keeps_secrets(inner) for inner in (spec.get("options") or {}).values())


class ActionModule(ActionBase):
    """Judge, on the controller, every variable of every role for every host before anything is changed."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(("fail_on",))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        dummy, args = self.validate_argument_spec({"fail_on": {"type": "str", "choices": ["block", "warn"]}})
        started = time.monotonic()
        groups = task_vars["groups"]
        hostvars = task_vars["hostvars"]
        try:
            roles = load_roles(self._loader)
            rules = {role.name: parse_rules(self._rules_of(role), role.name, role.options) for role in roles}
        except RuleError as error:
            raise AnsibleError(str(error)) from error
        defaults = {name: value for role in roles for name, value in role.defaults.items()}
        hosts = {host: HostInput(self._templar, hostvars, host, defaults) for host in groups.get("cluster", [])}

        findings = check_inventory(groups, {host: self._connection_of(inputs) for host, inputs in hosts.items()})
        # Without a cluster there is nothing else to judge: every role's variables are those of its hosts.
        if hosts:
            values_by_role = {}
            for role in roles:
                values = values_by_role[role.name] = {}
                for host, inputs in hosts.items():
                    values[host], wrong = self._values_of(role, host, inputs)
                    findings += wrong
                    inputs.settle(values[host])
            # Afterwards, as a rule may speak of other roles' variables.
            for role in roles:
                findings += self._judge_rules(rules[role.name], values_by_role[role.name], hosts, role)
            findings = self._causes(findings, hosts, defaults)
            findings += self._unknown(roles, hosts)

        fail_on = args["fail_on"] or self._fail_on(hosts)
        stopping = blocks(findings, fail_on)
        result.update(changed=False, findings=findings, seconds=round(time.monotonic() - started, 3))
        if stopping:
            result["failed"] = True
            result["msg"] = "The input is refused; nothing has been changed.\n" + render(findings)
            show_failure(self._display, self._templar, result["msg"])
        else:
            result["msg"] = "The input is good." if not findings else "The input is accepted with warnings."
            if findings:
                self._display.warning("The input is accepted, but:\n" + render(findings), formatted=True)
        return result

    def _rules_of(self, role):
        data = load_data(self._loader, os.path.join(role.path, "meta", "input_rules.yml"))
        return data if data is not None else {"input_rules": []}

    @staticmethod
    def _fail_on(hosts):
        for inputs in hosts.values():
            if "preflight_fail_on" in inputs:
                return inputs.value("preflight_fail_on")
        return "block"

    @staticmethod
    def _connection_of(inputs):
        def value(name, default):
            return str(inputs.value(name)) if name in inputs else default

        # Any other key may be in an agent under this name. This one exists only where lab/lab.py has made hosts.
        key = os.path.normpath(value("ansible_ssh_private_key_file", ""))
        return {
            "missing_lab_key": key if "/.lab/" in key and not os.path.exists(key) else "",
            "address": value("ansible_host", value("inventory_hostname", "")),
            "port": value("ansible_port", "22"),
            "connection": value("ansible_connection", C.DEFAULT_TRANSPORT),
            "cluster_address": value("cluster_address", ""),
        }

    @staticmethod
    def _values_of(role, host, inputs):
        """Return the values of a role's variables as the role will get them, and what is wrong with the others."""
        values, wrong = {}, []
        for name, spec in role.options.items():
            if name not in inputs:
                # Whether a variable without a default is needed, only the playbook that uses the role can tell.
                continue
            secret = keeps_secrets(spec)
            try:
                value = inputs.value(name)
            except AnsibleError as error:
                if name in inputs.given and not inputs.depends_on_the_run(name):
                    wrong.append(finding("input-template", host, "fail", describe(spec), "a template that fails: %s" % show(str(error)), name,
                                         "correct the expression, or what it refers to, where the inventory sets %s" % name))
                continue
            if spec.get("type") in ("list", "dict") and isinstance(value, str) and value:
                # Ansible's own check would split it; the role gets the text, and goes through it letter by letter.
                wrong.append(finding("input-type", host, "fail", describe(spec), "(not shown)" if secret else show(value), name,
                                     "set %s to %s, on a command line as JSON: -e '{\"%s\": ...}'" % (name, describe(spec), name)))
                continue
            checked = ArgumentSpecValidator({name: spec}).validate({name: value}, validate_role_argument_spec=True)
            if checked.error_messages:
                kind = "input-choice" if "choices" in spec else "input-type"
                found = "(not shown)" if secret else show(value)
                # Which key is missing or unknown is no secret.
                told = [str(error) for error in checked.errors.errors if not secret or isinstance(error, (RequiredError, UnsupportedError))]
                if "options" in spec and told:
                    found = "%s (%s)" % (found, show("; ".join(told)))
                wrong.append(finding(kind, host, "fail", describe(spec), found, name, "set %s to %s" % (name, describe(spec))))
            else:
                # Numbers as such. The rest as the role will see it: here ~ is expanded and keys that were not given appear.
                values[name] = checked.validated_parameters[name] if spec.get("type") in ("int", "float", "bool") else value
        return values, wrong

    @staticmethod
    def _judge_rules(rules, values, hosts, role):
        def evaluate(host, expression, item):
            try:
                return bool(hosts[host].evaluate(expression, item=item))
            except AnsibleError:
                # A value of a shape that the rule doesn't know is not allowed either. What is made of a value that has been
                # found wrong already is not blamed again.
                return wrong_input[host]

        wrong_input = {host: any(name in hosts[host] and name not in values[host] for name in role.options) for host in values}
        hidden = {name for name, spec in role.options.items() if keeps_secrets(spec)}
        return judge_rules(rules, values, evaluate, hidden)

    @staticmethod
    def _causes(findings, hosts, defaults):
        """Return the findings without those about a default that is only wrong because it is made of a variable that is."""
        blamed = {(entry["host"], re.split(r"[.\[]", entry["source"])[0]) for entry in findings}

        def is_consequence(entry):
            host, name = entry["host"], re.split(r"[.\[]", entry["source"])[0]
            if host not in hosts or name in hosts[host].given or name not in defaults:
                return False
            return any((host, word) in blamed for word in re.findall(r"\w+", repr(defaults[name])) if word != name)

        return [entry for entry in findings if not is_consequence(entry)]

    @staticmethod
    def _unknown(roles, hosts):
        known = {name for role in roles for name in list(role.options) + list(role.defaults)}
        names = [role.name for role in roles]
        findings = []
        for host, inputs in hosts.items():
            for name, meant in unknown_variables(inputs.given, known, names).items():
                findings.append(finding("input-unknown", host, "warn", "a variable that a role has", "no role has a variable of this name", name,
                                        "did you mean %s?" % meant if meant else "correct the name, or remove it"))
        return findings
