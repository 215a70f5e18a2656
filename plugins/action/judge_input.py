# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import functools
import os
import re
import time

from ansible import constants as C
from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase

from ansible_collections.trainyard.gpu.plugins.module_utils import _input_kinds as kinds
from ansible_collections.trainyard.gpu.plugins.module_utils._slurm import ParseError, minutes
from ansible_collections.trainyard.gpu.plugins.plugin_utils._compat import load_facts
from ansible_collections.trainyard.gpu.plugins.plugin_utils._findings import blocks, finding, render
from ansible_collections.trainyard.gpu.plugins.plugin_utils._host_rules import (
    problem_of_facts,
    problem_of_table,
    published_checks,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils._input_rules import (
    READING,
    About,
    RuleError,
    check_inventory,
    describe,
    foreign_keys,
    judge_rules,
    may_have_lines,
    parse_options,
    parse_rules,
    reveal_at,
    secretive,
    show,
    texts_of_many_lines,
    unknown_variables,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils._preload import load_filters
from ansible_collections.trainyard.gpu.plugins.plugin_utils._role_input import (
    RUNTIME_FACTS,
    Shared,
    load_data,
    load_roles,
    show_failure,
)

# When this plugin is imported: of a task, ansible-core loads the class of its action plugin in its own process, before it forks a worker.
load_filters()

HIDDEN = "(not shown)"
# Files of the site: their expected content, and what to do.
FILES = {
    "preflight_rules_files": (
        "a YAML file with a list host_rules, in the form of roles/preflight/meta/compat_rules.yml",
        "correct the file, or remove it from preflight_rules_files",
    ),
    "preflight_compat_facts": (
        "a YAML file with keys and rows of the files in plugins/plugin_utils/compat",
        "correct the file, or set preflight_compat_facts to an empty text",
    ),
}
# Connection variables that are checked, and their defaults.
CONNECTION = {
    "ansible_connection": C.DEFAULT_TRANSPORT,
    "ansible_host": None,
    "ansible_port": "22",
    "ansible_user": "",
    "cluster_address": "",
    "ansible_ssh_private_key_file": "",
}


def keeps_secrets(spec):
    """Return whether an option or one of its suboptions must not be shown."""
    return bool(spec.get("no_log")) or any(
        keeps_secrets(inner) for inner in (spec.get("options") or {}).values()
    )


def option_at(spec, label):
    """Return the option at a path within a variable: [0].password; {} if it is not specified."""
    for step in re.findall(r"\.[^.\[]+", label):
        if spec.get("no_log"):
            return spec
        spec = (spec.get("options") or {}).get(step[1:], {})
    return spec


def without_secrets(spec, value):
    """Return a value with (not shown) for secrets."""
    if spec.get("no_log"):
        return HIDDEN
    if isinstance(value, dict):
        options = spec.get("options") or {}
        return {key: without_secrets(options.get(key, {}), inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_secrets(spec, inner) for inner in value]
    # A text instead of a dictionary with a secret key.
    return HIDDEN if keeps_secrets(spec) else value


def without_names(findings, names):
    """Return the findings without credentials of hosts written as user:password@address."""
    for name in sorted(name for name in names if kinds.mask(name) != name):
        findings = [
            {
                key: inner.replace(name, kinds.mask(name)) if isinstance(inner, str) else inner
                for key, inner in entry.items()
            }
            for entry in findings
        ]
    return findings


def texts_of(value, label=""):
    """Return (path, text) of all texts in a value, including keys of dictionaries."""
    if isinstance(value, dict):
        return [
            found
            for key, inner in value.items()
            for found in [(label, str(key))] + texts_of(inner, "%s.%s" % (label, key))
        ]
    if isinstance(value, list):
        return [
            found
            for number, inner in enumerate(value)
            for found in texts_of(inner, "%s[%d]" % (label, number))
        ]
    return [(label, value)] if isinstance(value, str) else []


def said(error):
    """Return the message of a template error, without the template's text, which ansible-core before 2.19 adds."""
    return show(str(error).partition(". String: ")[0])


def value_at(value, label):
    """Return the value at a path within a value: [0].environment.A."""
    for number, name in re.findall(r"\[([0-9]+)\]|\.([^.\[]+)", label):
        value = value[int(number)] if number else value.get(name)
    return value


class ActionModule(ActionBase):
    """Checks every variable of every role for every host on the controller before anything is changed."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(("fail_on",))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        dummy, args = self.validate_argument_spec(
            {"fail_on": {"type": "str", "choices": ["block", "warn"]}}
        )
        started = time.monotonic()
        groups = task_vars["groups"]
        hostvars = task_vars["hostvars"]
        try:
            roles = load_roles(self._loader)
            rules = {
                role.name: parse_rules(self._rules_of(role), role.name, role.options)
                for role in roles
            }
        except RuleError as error:
            raise AnsibleError(str(error)) from error
        defaults = {name: value for role in roles for name, value in role.defaults.items()}
        shared = Shared(self._templar, hostvars, groups.get("cluster", []), defaults)

        self._problems, self._deferred, self._needs_facts = {}, set(), False
        findings, connections = self._connections(shared)
        findings += check_inventory(groups, connections)
        values = {host: {} for host in shared.hosts}
        given = set()
        # Without a cluster there is nothing else to check, because the variables of all roles belong to its hosts.
        if shared.hosts:
            names = [name for role in roles for name in role.options]
            # Defaults are valid, as a unit test verifies. Variables that no host sets need no evaluation.
            touched = set().union(*[shared.touched(host, names) for host in shared.hosts])
            given = set(names).intersection(
                name for inputs in shared.hosts.values() for name in inputs.given
            )
            secrets = {role: secretive(of_role) for role, of_role in rules.items()}
            rules = {
                role: [
                    rule
                    for rule in of_role
                    if rule["kind"] in ("multiline", "foreign_keys")
                    or not touched.isdisjoint(rule["words"])
                ]
                for role, of_role in rules.items()
            }
            needed = touched.union(
                word
                for of_role in rules.values()
                for rule in of_role
                for word in (
                    rule["words"]
                    if rule["kind"] in READING
                    else [re.split(r"[.\[]", rule["variable"])[0]]
                )
            )
            judged, wrong = {}, {host: set() for host in shared.hosts}
            for role in roles:
                many_lines = texts_of_many_lines(rules[role.name])
                foreign = foreign_keys(rules[role.name])
                for host in shared.hosts:
                    its_values, its_findings, wrong_names = self._values_of(
                        role,
                        host,
                        shared,
                        (many_lines, secrets[role.name], foreign),
                        judged,
                        needed,
                    )
                    findings += its_findings
                    wrong[host] |= wrong_names
                    values[host].update(its_values)
                    shared.settle(host, its_values)
            # Afterwards, because a rule may use other roles' variables.
            for role in roles:
                findings += self._judge_rules(
                    self._with_data(rules[role.name], role, roles, values),
                    values,
                    wrong,
                    shared,
                    role,
                    groups,
                )
            findings += self._files(values)
            findings = self._causes(findings, shared, defaults)
            findings += self._unknown(roles, shared, hostvars)

        findings = without_names(findings, set(groups).union(*groups.values()))
        fail_on = args["fail_on"] or self._fail_on(values)
        stopping = blocks(findings, fail_on)
        result.update(
            changed=False,
            findings=findings,
            deferred=sorted(self._deferred),
            needs_facts=self._needs_facts,
            seconds=round(time.monotonic() - started, 3),
            evaluations=shared.evaluations,
        )
        if stopping and all(entry["id"] == "inventory-no-lab" for entry in stopping):
            # In a fresh checkout one line is enough.
            result = {
                "changed": False,
                "failed": True,
                "msg": "; ".join(
                    "%s do not exist yet: %s" % (entry["host"], entry["fix"]) for entry in stopping
                ),
            }
        elif stopping:
            result["failed"] = True
            result["msg"] = "The input is not valid; nothing was changed.\n" + render(findings)
            show_failure(self._display, self._templar, result["msg"])
        else:
            result["msg"] = "The input is %s: %s and %s set by the inventory were checked." % (
                "accepted with warnings" if findings else "valid",
                counted(len(shared.hosts), "host"),
                counted(len(given), "variable"),
            )
            if findings:
                self._display.warning(
                    "The input is accepted, but:\n" + render(findings), formatted=True
                )
        return result

    def _rules_of(self, role):
        data = load_data(self._loader, os.path.join(role.path, "meta", "input_rules.yml"))
        return data if data is not None else {"input_rules": []}

    def _with_data(self, rules, role, roles, values):
        """Return the rules with what they name: IDs of a role, including those of the site's files, and options of a file. Their words are templates."""
        paths = {role.name: role.path for role in roles}
        filled = []
        for rule in rules:
            if "{{" in rule.get("allowed", ""):
                rule = dict(rule, allowed=self._templar.template(rule["allowed"]))
            if rule["kind"] == "ids" and rule["ids"] == "verify":
                checks = published_checks(
                    load_data(self._loader, os.path.join(paths["verify"], "meta", "rules.yml"))
                )
                # Those that apply to trouble report a host that does not answer: they are neither required nor overruled.
                rule = dict(
                    rule,
                    ids=frozenset(
                        check["id"] for check in checks if check.get("applies_to") != "trouble"
                    ),
                )
            elif rule["kind"] == "ids":
                files = [
                    os.path.join(paths[rule["ids"]], "meta", name)
                    for name in ("host_rules.yml", "compat_rules.yml")
                ]
                own = {
                    path
                    for its in values.values()
                    for path in its.get("preflight_rules_files", [])
                    if kinds.is_file(path)
                }
                if any(self._problem("preflight_rules_files", path) for path in own):
                    # The ids in an unreadable file are unknown.
                    continue
                rule = dict(
                    rule,
                    ids=frozenset().union(
                        *[ids_in(load_data(self._loader, path)) for path in files + sorted(own)]
                    ),
                )
            elif rule["kind"] == "options":
                data = load_data(
                    self._loader, os.path.join(role.path, "meta", "%s.yml" % rule["options"])
                )
                rule = dict(rule, options=parse_options(data, role.name, rule["options"]))
            filled.append(rule)
        return filled

    def _files(self, values):
        """Return the findings about the content of the site's files, which preflight would otherwise find only after the facts were gathered."""
        findings = []
        for name, (expected, fix) in FILES.items():
            for host, its in values.items():
                many = isinstance(its.get(name), list)
                for number, path in enumerate(its.get(name) or [] if many else [its.get(name)]):
                    # A rule checks that the file exists.
                    problem = self._problem(name, path) if kinds.is_file(path) else ""
                    if problem:
                        findings.append(
                            finding(
                                "input-file-content",
                                host,
                                "fail",
                                expected,
                                "%s: %s" % (show(path), show(problem)),
                                "%s[%d]" % (name, number) if many else name,
                                fix,
                            )
                        )
        return findings

    def _problem(self, name, path):
        """Return what is wrong with a file, empty for a valid one."""
        if path not in self._problems:
            try:
                data = load_data(self._loader, path)
                self._problems[path] = (
                    problem_of_table(data)
                    if name == "preflight_rules_files"
                    else problem_of_facts(data, load_facts())
                )
            except AnsibleError as error:
                self._problems[path] = "no YAML: %s" % yaml_problem(error)
        return self._problems[path]

    @staticmethod
    def _fail_on(values):
        # An invalid one has its own blocking finding.
        return (
            "warn"
            if any(its.get("preflight_fail_on") == "warn" for its in values.values())
            else "block"
        )

    @staticmethod
    def _connections(shared):
        """Return (findings, {host: connection data}); a failing expression is one finding among others."""
        findings, connections = [], {}
        for host, inputs in shared.hosts.items():
            entry = {}
            for name, default in CONNECTION.items():
                value = host if default is None else default
                if name in inputs:
                    try:
                        value = shared.value(host, name)
                    except AnsibleError as error:
                        # cluster_address is checked with its role.
                        if name != "cluster_address":
                            findings.append(
                                finding(
                                    "input-template",
                                    host,
                                    "fail",
                                    "text",
                                    "a template that fails: %s" % said(error),
                                    name,
                                    "correct the expression or the variables in it where the inventory sets %s"
                                    % name,
                                )
                            )
                            entry["failed"] = True
                entry[name] = "" if value is None else str(value)
            by_ssh = entry["ansible_connection"].rpartition(".")[2] in (
                "ssh",
                "smart",
                "paramiko",
                "paramiko_ssh",
            )
            if by_ssh and "failed" not in entry:
                if (
                    not kinds.is_host(entry["ansible_host"].partition("%")[0])
                    and entry["ansible_host"] != host
                ):
                    findings.append(
                        finding(
                            "input-hostname",
                            host,
                            "fail",
                            "a host name or an address",
                            show(entry["ansible_host"]),
                            "ansible_host",
                            "set ansible_host to the address for ssh, ansible_port to the port, and ansible_user to the user",
                        )
                    )
                port = kinds.as_number(entry["ansible_port"])
                if port is None or not 0 < port < 65536:
                    findings.append(
                        finding(
                            "input-range",
                            host,
                            "fail",
                            "a number from 1 to 65535",
                            show(entry["ansible_port"]),
                            "ansible_port",
                            "set ansible_port to the port of the host's sshd",
                        )
                    )
                if not kinds.is_plain_text(entry["ansible_user"]) or re.search(
                    r"[\s:/@]|\A-", entry["ansible_user"]
                ):
                    findings.append(
                        finding(
                            "input-pattern",
                            host,
                            "fail",
                            "the name of an account",
                            show(entry["ansible_user"]),
                            "ansible_user",
                            "set ansible_user to the account for ssh logins",
                        )
                    )
            # Any other key may be in an agent under this name. This one exists only after lab/lab.py has created hosts.
            key = os.path.normpath(entry["ansible_ssh_private_key_file"])
            virtual = (
                "inventory_dir" in inputs
                and os.path.basename(str(inputs.raw("inventory_dir"))) == "lab_virtual"
            )
            connections[host] = {
                "missing_lab_key": key if "/.lab/" in key and not os.path.exists(key) else "",
                "lab_command": "make lab-vm" if virtual else "make lab",
                "address": entry["ansible_host"],
                "port": entry["ansible_port"],
                "connection": "" if "failed" in entry else entry["ansible_connection"],
                "cluster_address": entry["cluster_address"],
            }
        return findings, connections

    def _values_of(self, role, host, shared, texts, judged, needed):
        """Return the values of a role's variables as the role gets them, the problems of the others, and the names of these."""
        *texts, foreign = texts
        values, wrong, wrong_names = {}, [], set()
        inputs = shared.hosts[host]
        for name, spec in role.options.items():
            if name not in needed or name not in inputs:
                # Only the playbook that uses the role determines whether a variable without a default is required.
                continue
            key = (name, shared.key(host, name))
            later = name in inputs.given and shared.depends_on_the_run(host, name)
            if later:
                # Even a value that can be evaluated by now may be a different one then.
                self._deferred.add(name)
                self._needs_facts = self._needs_facts or shared.needs_facts(host, name)
            if key not in judged:
                judged[key] = judge_value(
                    name,
                    spec,
                    functools.partial(shared.value, host, name),
                    shared.is_secret(host, name),
                    *texts,
                )
            value, problems = judged[key]
            if problems is None:
                # Variables in a default may be invalid, or known only during the run.
                if name in inputs.given and not later:
                    wrong.append(
                        finding(
                            "input-template",
                            host,
                            "fail",
                            describe(spec),
                            value,
                            name,
                            "correct the expression or the variables in it where the inventory sets %s"
                            % name,
                        )
                    )
            elif problems:
                wrong += [
                    finding(
                        check_id,
                        host,
                        "fail",
                        expected,
                        found,
                        name + label,
                        of_foreign_key(foreign, name + label, found) or fix,
                    )
                    for check_id, label, expected, found, fix in problems
                ]
            else:
                values[name] = value
                continue
            wrong_names.add(name)
        return values, wrong, wrong_names

    @staticmethod
    def _judge_rules(rules, values, wrong, shared, role, groups):
        secrets = secretive(rules)
        wrong_input = {host: not wrong[host].isdisjoint(role.options) for host in values}

        def evaluate(host, expression, item):
            # A value of an unexpected type is not allowed either. Values computed from an invalid value are not reported again.
            answer = shared.answer(host, expression, item)
            return wrong_input[host] if answer is None else answer

        def reveal(host, label, value):
            name = re.split(r"[.\[]", label)[0]
            if shared.is_secret(host, name):
                return HIDDEN
            return show(
                reveal_at(
                    label,
                    without_secrets(option_at(role.options[name], label[len(name) :]), value),
                    secrets,
                )
            )

        about = About(shared.key, groups, shared.unsteady, shared.is_given)
        return judge_rules(rules, values, evaluate, reveal, about)

    @staticmethod
    def _causes(findings, shared, defaults):
        """Return the findings without those about a default that is invalid only because of an invalid variable in it."""
        blamed = {
            (entry["host"], re.split(r"[.\[]", entry["source"])[0])
            for entry in findings
            if entry["verdict"] == "fail"
        }
        # An invalid value is not compared between hosts.
        wrong = {
            re.split(r"[.\[]", entry["source"])[0]
            for entry in findings
            if entry["verdict"] == "fail" and entry["id"] != "input-same"
        }
        shape = any(
            entry["id"] in ("inventory-outside-cluster", "inventory-one-host") for entry in findings
        )

        def is_consequence(entry):
            host, name = entry["host"], re.split(r"[.\[]", entry["source"])[0]
            if entry["id"] == "input-same" and name in wrong:
                return True
            if host not in shared.hosts or name in shared.hosts[host].given or name not in defaults:
                return False
            words = re.findall(r"\w+", repr(defaults[name]))
            return any((host, word) in blamed for word in words if word != name) or (
                shape and "groups" in words
            )

        return [entry for entry in findings if not is_consequence(entry)]

    @staticmethod
    def _unknown(roles, shared, hostvars):
        known = {name: {} for role in roles for name in role.defaults}
        known.update({name: spec for role in roles for name, spec in role.options.items()})
        for name in RUNTIME_FACTS:
            known.pop(name, None)
        names = [role.name for role in roles]
        findings, told = [], {}
        # Values computed by an earlier run are not from the inventory.
        facts = getattr(
            getattr(hostvars, "_variable_manager", None), "_nonpersistent_fact_cache", {}
        )
        for host, inputs in shared.hosts.items():
            group = frozenset(inputs.given)
            if group not in told:
                told[group] = unknown_variables(
                    inputs.given, known, names, shared.words_of(host).union(RUNTIME_FACTS)
                )
            for name, (meant, likely) in told[group].items():
                if name in facts.get(host, {}):
                    continue
                findings.append(
                    finding(
                        "input-unknown",
                        host,
                        "warn" if likely == "maybe" else "fail",
                        "a variable that a role has",
                        "no role has a variable of this name",
                        name,
                        what_to_do(name, meant, likely),
                    )
                )
            for name in RUNTIME_FACTS:
                if name in inputs.given and name not in facts.get(host, {}):
                    findings.append(
                        finding(
                            "input-unknown",
                            host,
                            "fail",
                            "variables that a role has",
                            "a name that every run sets itself",
                            name,
                            "remove it, or rename your own variable",
                        )
                    )
        return findings


def counted(number, thing):
    return "%d %s%s" % (number, thing, "" if number == 1 else "s")


def what_to_do(name, meant, likely):
    """Return the advice for a name that no role has. Users can keep variables of their own."""
    own = {
        "misspelt": "if the variable is your own, choose another name",
        "prefix": "if %s is your own variable, set %s as well, and it is ignored" % (name, meant),
        "ours": "if the variable is your own, choose a name that does not begin with the name of a role",
        "maybe": "if the variable is your own, prefer a name without the prefix of a role",
    }[likely]
    return ("did you mean %s? Correct the name; " % meant if meant else "correct the name; ") + own


def yaml_problem(error):
    """Return the message of the YAML parser with the line, which only some messages of ansible-core have."""
    said = " ".join(str(error).splitlines()[:1])
    while error is not None:
        mark = getattr(error, "problem_mark", None)
        if mark is not None:
            return "line %d: %s" % (mark.line + 1, said)
        error = error.__cause__ or getattr(error, "orig_exc", None)
    return said


def ids_in(data):
    """Return the ids of a role's rules or checks in all of its lists."""
    if isinstance(data, dict):
        return frozenset([str(data["id"])] if "id" in data else []).union(
            *[ids_in(inner) for inner in data.values()]
        )
    return (
        frozenset().union(*[ids_in(inner) for inner in data])
        if isinstance(data, list)
        else frozenset()
    )


def of_foreign_key(foreign, path, found):
    """Return what to do about a key of another collection at a path, empty for other problems."""
    key = found.partition(kinds.UNKNOWN_KEY)[2]
    return foreign.get(re.sub(r"\[[0-9]+\]", "[]", path), {}).get(key, "")


def about_a_number(where, spec, value):
    """Return what to do about a text in place of a whole number, None if neither its description nor the text says more than that one is expected."""
    if spec.get("type") != "int" or not isinstance(value, str):
        return None
    description = spec.get("description") or []
    words = " ".join([description] if isinstance(description, str) else description)
    special = re.search(
        r"\b(0 means [^.]*|The default is [^.]*)[.]", re.sub(r"\b[A-Z]\(([^()]*)\)", r"\1", words)
    )
    number = _minutes_in(value) if where.endswith("_minutes") else None
    if special is None and number is None:
        return None
    texts = ["set %s to %s" % (where, describe(spec) if number is None else "%d minutes" % number)]
    if special:
        texts.append(re.sub("^The default is", "without it, the default is", special.group(1)))
    return "; ".join(texts)


def _minutes_in(text):
    """Return the minutes of a duration in the form of slurm.conf, such as 1-00:00:00, None for other texts."""
    try:
        return minutes(text)
    except ParseError:
        return None


def judge_value(name, spec, ask, secret, many_lines, secrets):
    """Return (value, problems) of a variable, or (message, None) if its template fails."""
    try:
        value = ask()
    except AnsibleError as error:
        return "a template that fails: %s" % (HIDDEN if secret else said(error)), None
    value, found = kinds.check_type(spec, value)
    problems = []
    for check_id, label, expected, shown, fix, shows in found:
        hidden = shows and (secret or keeps_secrets(option_at(spec, label)))
        its = value_at(value, label) if shows else None
        if shows and reveal_at(name + label, its, secrets) != its:
            shown = show(reveal_at(name + label, its, secrets))
        where = name + label
        if fix is None and check_id == "input-type":
            fix = about_a_number(where, option_at(spec, label), value_at(value, label))
        if fix is None and spec.get("type") in ("list", "dict") and not label:
            fix = "set %s to %s, on a command line as JSON: -e '{\"%s\": ...}'" % (
                name,
                describe(spec),
                name,
            )
        problems.append(
            (
                check_id,
                label,
                expected,
                HIDDEN if hidden else shown,
                "set %s to %s" % (where, expected) if fix is None else fix,
            )
        )
    if not problems:
        for label, text in texts_of(value):
            if not kinds.is_plain_text(text) and not may_have_lines(name + label, many_lines):
                hidden = secret or keeps_secrets(option_at(spec, label))
                # Keys of dictionaries are not secret.
                its = (
                    reveal_at(name + label, text, secrets)
                    if isinstance(value_at(value, label), str)
                    else text
                )
                problems.append(
                    (
                        "input-text",
                        label,
                        "text of one line, without control characters",
                        HIDDEN
                        if hidden
                        else "%s (%s)"
                        % (
                            show(its),
                            ", ".join(
                                sorted(
                                    {
                                        ascii(char)[1:-1]
                                        for char in text
                                        if not kinds.is_plain_text(char)
                                    }
                                )
                            ),
                        ),
                        "set %s%s to one line; a block (|) in YAML ends with a line break, which |- leaves out"
                        % (name, label),
                    )
                )
    return value, problems
