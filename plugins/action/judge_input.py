# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import functools
import os
import re
import time
from typing import NamedTuple

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
    verify_rules,
)

# When this plugin is imported: of a task, ansible-core loads the class of its action plugin in its
# own process, before it forks a worker.
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
_BY_SSH = ("ssh", "smart", "paramiko", "paramiko_ssh")
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


def without_name(value, name):
    """Return a value of a finding with the masked name in place of the name."""
    return value.replace(name, kinds.mask(name)) if isinstance(value, str) else value


def without_names(findings, names):
    """Return the findings without credentials of hosts written as user:password@address."""
    for name in sorted(name for name in names if kinds.mask(name) != name):
        findings = [
            {key: without_name(inner, name) for key, inner in entry.items()} for entry in findings
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


def message_of(error):
    """Return the message of a template error, without the template's text, which ansible-core
    before 2.19 adds.
    """
    return show(str(error).partition(". String: ")[0])


def value_at(value, label):
    """Return the value at a path within a value: [0].environment.A."""
    for number, name in re.findall(r"\[([0-9]+)\]|\.([^.\[]+)", label):
        value = value[int(number)] if number else value.get(name)
    return value


def connection_variables(shared, host):
    """Return ({variable: text} of CONNECTION, findings about those whose template fails)."""
    inputs = shared.hosts[host]
    entry, findings = {}, []
    for name, default in CONNECTION.items():
        value = host if default is None else default
        try:
            value = shared.value(host, name) if name in inputs else value
        except AnsibleError as error:
            # cluster_address is checked with its role.
            if name != "cluster_address":
                findings.append(
                    finding(
                        "input-template",
                        host,
                        "fail",
                        "text",
                        "a template that fails: %s" % message_of(error),
                        name,
                        "correct the expression or the variables in it where the inventory sets %s"
                        % name,
                    )
                )
        entry[name] = "" if value is None else str(value)
    return entry, findings


def ssh_findings(host, entry):
    """Return the findings about the connection variables of a host with ssh."""
    address, port = entry["ansible_host"], kinds.as_number(entry["ansible_port"])
    user, findings = entry["ansible_user"], []
    if not kinds.is_host(address.partition("%")[0]) and address != host:
        findings.append(
            finding(
                "input-hostname",
                host,
                "fail",
                "a host name or an address",
                show(address),
                "ansible_host",
                (
                    "set ansible_host to the address for ssh, ansible_port to the port, and "
                    "ansible_user to the user"
                ),
            )
        )
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
    if not kinds.is_plain_text(user) or re.search(r"[\s:/@]|\A-", user):
        findings.append(
            finding(
                "input-pattern",
                host,
                "fail",
                "the name of an account",
                show(user),
                "ansible_user",
                "set ansible_user to the account for ssh logins",
            )
        )
    return findings


def given_names(roles, shared):
    """Return the names of the roles' variables that the inventory sets."""
    given = {name for inputs in shared.hosts.values() for name in inputs.given}
    return given.intersection(name for role in roles for name in role.options)


def needed_rules(rules, touched):
    """Return the rules that judge a variable in C(touched), or say something about its text."""
    return [
        rule
        for rule in rules
        if rule["kind"] in ("multiline", "foreign_keys") or not touched.isdisjoint(rule["words"])
    ]


def base_of(rule):
    """Return the name of the variable that a rule judges."""
    return re.split(r"[.\[]", rule["variable"])[0]


class Texts(NamedTuple):
    """What the rules of a role say about texts: where they have line breaks, where they are secret,
    and which keys are of other collections.
    """

    many_lines: set
    secrets: dict
    foreign: dict


class ActionModule(ActionBase):
    """Checks every variable of every role for every host on the controller before anything is
    changed.
    """

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
        # Without a cluster there is nothing else to check, because the variables of all roles
        # belong to its hosts.
        if shared.hosts:
            findings += self._judge_variables(roles, rules, shared, groups, values)
            findings += self._files(values)
            findings = self._causes(findings, shared, defaults)
            findings += self._unknown(roles, shared, hostvars)

        findings = without_names(findings, set(groups).union(*groups.values()))
        result.update(
            changed=False,
            findings=findings,
            deferred=sorted(self._deferred),
            needs_facts=self._needs_facts,
            seconds=round(time.monotonic() - started, 3),
            evaluations=shared.evaluations,
        )
        stopping = blocks(findings, args["fail_on"] or self._fail_on(values))
        return self._told(result, stopping, shared, roles)

    def _told(self, result, stopping, shared, roles):
        """Return the result with its message. C(stopping) are the findings that end the run."""
        findings = result["findings"]
        if stopping and all(entry["id"] == "inventory-no-lab" for entry in stopping):
            # In a fresh checkout one line is enough.
            missing = [
                "%s do not exist yet: %s" % (entry["host"], entry["fix"]) for entry in stopping
            ]
            return {"changed": False, "failed": True, "msg": "; ".join(missing)}
        if stopping:
            result["failed"] = True
            result["msg"] = "The input is not valid; nothing was changed.\n" + render(findings)
            show_failure(self._display, self._templar, result["msg"])
            return result
        result["msg"] = "The input is %s: %s and %s set by the inventory were checked." % (
            "accepted with warnings" if findings else "valid",
            counted(len(shared.hosts), "host"),
            counted(len(given_names(roles, shared)), "variable"),
        )
        if findings:
            text = "The input is accepted, but:\n" + render(findings)
            self._display.warning(text, formatted=True)
        return result

    def _judge_variables(self, roles, rules, shared, groups, values):
        """Return the findings about the roles' variables, and fill C(values), {host: {variable:
        value}}, with the valid ones.
        """
        names = [name for role in roles for name in role.options]
        # Defaults are valid, as a unit test verifies. Variables that no host sets need no
        # evaluation.
        touched = set().union(*[shared.touched(host, names) for host in shared.hosts])
        secrets = {role: secretive(of_role) for role, of_role in rules.items()}
        rules = {role: needed_rules(of_role, touched) for role, of_role in rules.items()}
        needed = touched.union(base_of(rule) for of_role in rules.values() for rule in of_role)
        judged, wrong = {}, {host: set() for host in shared.hosts}
        findings = []
        for role in roles:
            of_role = rules[role.name]
            texts = Texts(texts_of_many_lines(of_role), secrets[role.name], foreign_keys(of_role))
            options = {name: spec for name, spec in role.options.items() if name in needed}
            for host in shared.hosts:
                its_values, its_findings, wrong_names = self._values_of(
                    shared, host, options, texts, judged
                )
                findings += its_findings
                wrong[host] |= wrong_names
                values[host].update(its_values)
                shared.settle(host, its_values)
        # Afterwards, because a rule may use other roles' variables.
        for role in roles:
            filled = self._with_data(rules[role.name], role, roles, values)
            findings += self._judge_rules(filled, values, wrong, shared, role, groups)
        return findings

    def _rules_of(self, role):
        data = load_data(self._loader, os.path.join(role.path, "meta", "input_rules.yml"))
        return data if data is not None else {"input_rules": []}

    def _with_data(self, rules, role, roles, values):
        """Return the rules with what they name: IDs of a role, including those of the site's files,
        and options of a file. Their words are templates.
        """
        paths = {role.name: role.path for role in roles}
        filled = []
        for rule in rules:
            if "{{" in rule.get("allowed", ""):
                rule = dict(rule, allowed=self._templar.template(rule["allowed"]))
            if rule["kind"] == "ids":
                ids = self._ids(paths, rule["ids"], values)
                if ids is None:
                    continue
                rule = dict(rule, ids=ids)
            elif rule["kind"] == "options":
                data = load_data(
                    self._loader, os.path.join(role.path, "meta", "%s.yml" % rule["options"])
                )
                rule = dict(rule, options=parse_options(data, role.name, rule["options"]))
            filled.append(rule)
        return filled

    def _ids(self, paths, role, values):
        """Return the ids of a role's rules or checks.

        None: one of the site's files is not readable, so they are unknown.
        """
        meta = os.path.join(paths[role], "meta")
        if role == "verify":
            checks = published_checks(verify_rules())
            # Those that apply to trouble report a host that does not answer: they are neither
            # required nor overruled.
            return frozenset(
                check["id"] for check in checks if check.get("applies_to") != "trouble"
            )
        own = {
            path
            for its in values.values()
            for path in its.get("preflight_rules_files", [])
            if kinds.is_file(path)
        }
        if any(self._problem("preflight_rules_files", path) for path in own):
            return None
        files = [os.path.join(meta, name) for name in ("host_rules.yml", "compat_rules.yml")]
        return frozenset().union(
            *[ids_in(load_data(self._loader, path)) for path in files + sorted(own)]
        )

    def _files(self, values):
        """Return the findings about the content of the site's files, which preflight would
        otherwise find only after the facts were gathered.
        """
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
        """Return (findings, {host: connection data}); a failing expression is one finding among
        others.
        """
        findings, connections = [], {}
        for host, inputs in shared.hosts.items():
            entry, failing = connection_variables(shared, host)
            findings += failing
            failed = bool(failing)
            connection = entry["ansible_connection"]
            if connection.rpartition(".")[2] in _BY_SSH and not failed:
                findings += ssh_findings(host, entry)
            # Any other key may be in an agent under this name. This one exists only after
            # lab/lab.py has created hosts.
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
                "connection": "" if failed else connection,
                "cluster_address": entry["cluster_address"],
            }
        return findings, connections

    def _values_of(self, shared, host, options, texts, judged):
        """Return the values of a role's variables as the role gets them, the problems of the
        others, and the names of these. C(options) are the specifications of those that are needed.
        """
        values, wrong, wrong_names = {}, [], set()
        inputs = shared.hosts[host]
        for name, spec in options.items():
            if name not in inputs:
                # Only the playbook that uses the role determines whether a variable without a
                # default is required.
                continue
            key = (name, shared.key(host, name))
            later = name in inputs.given and shared.depends_on_the_run(host, name)
            if later:
                # Even a value that can be evaluated by now may be a different one then.
                self._deferred.add(name)
                self._needs_facts = self._needs_facts or shared.needs_facts(host, name)
            if key not in judged:
                judged[key] = judge_value(
                    Variable(
                        name, spec, shared.is_secret(host, name), texts.many_lines, texts.secrets
                    ),
                    functools.partial(shared.value, host, name),
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
                            (
                                "correct the expression or the variables in it where the inventory "
                                "sets %s"
                            )
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
                        of_foreign_key(texts.foreign, name + label, found) or fix,
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
            # A value of an unexpected type is not allowed either. Values computed from an invalid
            # value are not reported again.
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
        """Return the findings without those about a default that is invalid only because of an
        invalid variable in it.
        """
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
        findings, by_group = [], {}
        # Values computed by an earlier run are not from the inventory.
        facts = getattr(
            getattr(hostvars, "_variable_manager", None), "_nonpersistent_fact_cache", {}
        )
        for host, inputs in shared.hosts.items():
            group = frozenset(inputs.given)
            if group not in by_group:
                by_group[group] = unknown_variables(
                    inputs.given, known, names, shared.words_of(host).union(RUNTIME_FACTS)
                )
            for name, (meant, likely) in by_group[group].items():
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
        "ours": (
            "if the variable is your own, choose a name that does not begin with the name of a role"
        ),
        "maybe": "if the variable is your own, prefer a name without the prefix of a role",
    }[likely]
    return ("did you mean %s? Correct the name; " % meant if meant else "correct the name; ") + own


def yaml_problem(error):
    """Return the message of the YAML parser with the line, which only some messages of ansible-core
    have.
    """
    message = " ".join(str(error).splitlines()[:1])
    while error is not None:
        mark = getattr(error, "problem_mark", None)
        if mark is not None:
            return "line %d: %s" % (mark.line + 1, message)
        error = error.__cause__ or getattr(error, "orig_exc", None)
    return message


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
    """Return what to do about a text in place of a whole number, None if neither its description
    nor the text says more than that one is expected.
    """
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
    """Return the minutes of a duration in the form of slurm.conf, such as 1-00:00:00, None for
    other texts.
    """
    try:
        return minutes(text)
    except ParseError:
        return None


class Variable(NamedTuple):
    """A variable of a role.

    C(secret): a host has its value from a vault. The rest is what the rules of the role say about
    its texts.
    """

    name: str
    spec: dict
    secret: bool
    many_lines: frozenset
    secrets: frozenset

    def is_hidden(self, label):
        return self.secret or keeps_secrets(option_at(self.spec, label))


def judge_value(variable, ask):
    """Return (value, problems) of a variable, or (message, None) if its template fails."""
    try:
        value = ask()
    except AnsibleError as error:
        return "a template that fails: %s" % (
            HIDDEN if variable.secret else message_of(error)
        ), None
    value, found = kinds.check_type(variable.spec, value)
    problems = [type_problem(variable, value, *each) for each in found]
    return value, problems or text_problems(variable, value)


def type_problem(variable, value, *found):
    """Return the problem that a value has another type, as (check, path, what was expected, what
    was found, what to do).
    """
    check_id, label, expected, shown, fix, shows = found
    name, spec = variable.name, variable.spec
    where = name + label
    if shows:
        its = value_at(value, label)
        revealed = reveal_at(where, its, variable.secrets)
        shown = show(revealed) if revealed != its else shown
    if shows and variable.is_hidden(label):
        shown = HIDDEN
    if fix is None and check_id == "input-type":
        fix = about_a_number(where, option_at(spec, label), value_at(value, label))
    if fix is None and spec.get("type") in ("list", "dict") and not label:
        fix = "set %s to %s, on a command line as JSON: -e '{\"%s\": ...}'" % (
            name,
            describe(spec),
            name,
        )
    if fix is None:
        fix = "set %s to %s" % (where, expected)
    return check_id, label, expected, shown, fix


def text_problems(variable, value):
    """Return the problems of texts with line breaks or control characters, in the form of
    type_problem.
    """
    problems = []
    for label, text in texts_of(value):
        where = variable.name + label
        if kinds.is_plain_text(text) or may_have_lines(where, variable.many_lines):
            continue
        # Keys of dictionaries are not secret.
        its = text
        if isinstance(value_at(value, label), str):
            its = reveal_at(where, text, variable.secrets)
        wrong = {ascii(char)[1:-1] for char in text if not kinds.is_plain_text(char)}
        shown = "%s (%s)" % (show(its), ", ".join(sorted(wrong)))
        problems.append(
            (
                "input-text",
                label,
                "text of one line, without control characters",
                HIDDEN if variable.is_hidden(label) else shown,
                (
                    "set %s to one line; a block (|) in YAML ends with a line break, which |- "
                    "leaves out"
                )
                % where,
            )
        )
    return problems
