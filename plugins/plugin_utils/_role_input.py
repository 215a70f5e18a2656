# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The variables of a role on a host, without running the role: its defaults, overridden by the inventory."""

from __future__ import annotations

import functools
import inspect
import os
import re

from ansible.errors import AnsibleError
from ansible.module_utils.common.yaml import yaml_load

from ansible_collections.trainyard.gpu.plugins.plugin_utils._host_rules import ids_with

ROLES = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "roles")

# A fact as a variable, and none of what Ansible itself or an inventory sets.
_FACT = re.compile(
    r"ansible_(?!(become|check_mode|collection|connection|diff_mode|facts$|forks|host$|index_var|inventory|limit|loop|managed$|parent_role|password|play"
    r"|port$|python_interpreter|role|run_tags|search_path|shell_type|shell_executable|skip_tags|ssh_(?!host_key)|user$|verbosity|version$|winrm)|\w*_tags$)"
)
# Set by role cluster during the run. Before that, variables that depend on them cannot be checked.
RUNTIME_FACTS = ("cluster_host", "cluster_members")


def show_failure(display, templar, text):
    """Show a multi-line failure message, because ansible-core before 2.19 shows it as one line of JSON."""
    if not hasattr(templar, "evaluate_expression"):
        display.error(text, wrap_text=False)


class Role:
    """A role of this collection as data: option specs, defaults, and the paths of its files."""

    def __init__(self, name, options, defaults, path):
        self.name = name
        self.options = options
        self.defaults = defaults
        self.path = path


def load_data(loader, path):
    """Return the content of a YAML file of the collection, None if it does not exist."""
    if not os.path.exists(path):
        return None
    # Since ansible-core 2.19 only trusted text is templated.
    trusted = (
        {"trusted_as_template": True}
        if "trusted_as_template" in inspect.signature(loader.load_from_file).parameters
        else {}
    )
    # The data is not shared, so 'unsafe', which avoids a deep copy, is safe. Copies would take a third of the judging time.
    return loader.load_from_file(path, cache="none", unsafe=True, **trusted)


def load_plain(path):
    """Return the content of a YAML file without templates. Ansible's loader takes four times as long, because it notes the place of each text."""
    with open(path, "rb") as stream:
        return yaml_load(stream)


@functools.lru_cache(maxsize=1)
def verify_rules():
    """Return the rules of role verify as plain data without templates."""
    return load_plain(os.path.join(ROLES, "verify", "meta", "rules.yml"))


def load_roles(loader):
    """Return the roles of the collection. Each has argument specs."""
    roles = []
    for name in sorted(os.listdir(ROLES)):
        path = os.path.join(ROLES, name)
        specs = load_plain(os.path.join(path, "meta", "argument_specs.yml"))
        options = specs["argument_specs"]["main"].get("options") or {}
        roles.append(Role(name, options, defaults_of(loader, name), path))
    return roles


def defaults_of(loader, name):
    """Return the defaults of a role."""
    return load_data(loader, os.path.join(ROLES, name, "defaults", "main.yml")) or {}


def load_defaults(loader):
    """Return the defaults of all roles."""
    defaults = {}
    for name in sorted(os.listdir(ROLES)):
        defaults.update(defaults_of(loader, name))
    return defaults


def own_templar(templar):
    """Return a templar for the hosts of a run. They share one, because each finds the filters of the collection anew, which takes longer than to use them."""
    return templar.copy_with_new_env()


class HostInput:
    """The variables of one host, including role defaults, with a templar of P(own_templar), which all hosts use in turn."""

    def __init__(self, templar, hostvars, host, defaults, extra=None):
        self.given = hostvars.raw_get(host)
        self._variables = dict(defaults, **self.given)
        self._variables["hostvars"] = hostvars
        self._variables.update(extra or {})
        self._shared = templar
        # Rules share conditions, and Ansible compiles an expression anew each time.
        self._evaluated = {}

    def _with(self, extra):
        self._shared.available_variables = dict(self._variables, **extra)
        return self._shared

    def settle(self, values):
        """Replace templates and texts by these values of the requested types."""
        self._variables.update(values)
        self._evaluated = {}

    def raw(self, name):
        """Return the untemplated value of a variable."""
        return self._variables[name]

    def __contains__(self, name):
        return name in self._variables

    def value(self, name):
        """Return the templated value of a variable; raises the errors of the template engine."""
        return self._with({}).template(self._variables[name])

    def evaluate(self, expression, **extra):
        """Return the value of a Jinja expression without braces."""
        if extra:
            return self._evaluate(self._with(extra), expression)
        if expression not in self._evaluated:
            self._evaluated[expression] = self._evaluate(self._with({}), expression)
        return self._evaluated[expression]

    @staticmethod
    def _evaluate(templar, expression):
        if hasattr(templar, "evaluate_expression"):
            return templar.evaluate_expression(expression)
        # ansible-core before 2.19
        return templar.template("{{ %s }}" % expression)

    def template(self, text, **extra):
        """Return a templated text of the collection's files."""
        return self._with(extra).template(text)


class Shared:
    """Results shared by all hosts with the same values.

    Compiling an expression takes much longer than anything else here, and hosts of a cluster differ very little. So values and
    truths are kept by key(): what a variable's own text says, and what the variables say that it names.
    """

    # Equal for all hosts of a run.
    CONSTANT = frozenset(
        (
            "groups",
            "hostvars",
            "omit",
            "playbook_dir",
            "inventory_dir",
            "inventory_file",
            "ansible_version",
            "environment",
        )
    )
    # Variables that Ansible sets: a default that uses only these counts as constant.
    MAGIC = CONSTANT.union(("inventory_hostname", "inventory_hostname_short", "group_names"))
    # Names that make an expression read variables that are not in its text.
    OF_THE_HOST = frozenset(("vars", "lookup", "query", "q", "random", "now"))

    OF_THE_MOMENT = OF_THE_HOST - {"vars"}
    NAMES_THE_HOST = frozenset(
        ("inventory_hostname", "inventory_hostname_short", "ansible_host", "group_names")
    )

    def __init__(self, templar, hostvars, hosts, defaults):
        templar = own_templar(templar)
        self.hosts = {host: HostInput(templar, hostvars, host, defaults) for host in hosts}
        self._facts = {}
        self._numbers = {}
        self._keys = {host: {} for host in hosts}
        self._reads = {}
        self._settled = {host: {} for host in hosts}
        self._of_values = {host: {} for host in hosts}
        self._of_keys = {}
        self._values = {}
        self._answers = {}
        self._words = {}
        self.evaluations = 0

    def _number(self, thing):
        return self._numbers.setdefault(thing, len(self._numbers))

    def _about(self, raw):
        """Return (key of equal values, whether it is not a template, the words in its templates, whether it is from a vault)."""
        known = self._facts.get(id(raw))
        # The value is kept too, because its memory address could be reused.
        if known is None or known[0] is not raw:
            texts = []
            secret = _collect(raw, texts)
            templates = [text for text in texts if "{{" in text or "{%" in text or "{#" in text]
            words = frozenset(
                word for text in templates for word in re.findall(r"[A-Za-z_][A-Za-z0-9_]*", text)
            )
            try:
                print_of_it = self._number(
                    (type(raw).__name__, getattr(raw, "_ciphertext", None) or repr(raw))
                )
            except AnsibleError:
                # A vault that cannot be decrypted fails when it is read.
                print_of_it = self._number(("", id(raw)))
            known = self._facts[id(raw)] = (
                raw,
                print_of_it,
                not templates and not secret,
                words,
                secret,
            )
        return known[1:]

    def key(self, host, name):
        """Return a number that is equal for hosts with the same value of the variable."""
        keys = self._keys[host]
        if name not in keys:
            if name in self.CONSTANT:
                return -1
            # Circular references fail anyway.
            keys[name] = -2
            of_it, static, words, secret = self._about(self.hosts[host].raw(name))
            read = {name}
            if not static:
                inner = []
                for word in sorted(words):
                    if word in self.OF_THE_HOST:
                        inner.append((word, host))
                    elif word in self.hosts[host]:
                        key = self.key(host, word)
                        inner.append((word, key))
                        # The other part of a circular reference is not known yet.
                        its_words, its_secret = self._reads.get(key, (frozenset(), False))
                        read |= its_words
                        secret = secret or its_secret
                read |= words
                of_it = self._number((of_it, tuple(inner)))
            keys[name] = of_it
            self._reads.setdefault(of_it, (frozenset(read) if not static else frozenset(), secret))
        return keys[name]

    def is_secret(self, host, name):
        """Return whether a variable's value comes from a vault, directly or through other variables."""
        return name in self.hosts[host] and self._reads.get(self.key(host, name), (None, False))[1]

    def is_given(self, host, name):
        return name in self.hosts[host].given

    def unsteady(self, host, name):
        """Return whether a variable may change with each evaluation, because it reads the clock or the like, and nothing of the host."""
        read = self._reads.get(self.key(host, name), (frozenset(), False))[0]
        return not read.isdisjoint(self.OF_THE_MOMENT) and read.isdisjoint(self.NAMES_THE_HOST)

    def depends_on_the_run(self, host, name):
        """Return whether a variable refers to a value that the run has not set yet."""
        read = self._reads.get(self.key(host, name), (frozenset(), False))[0]
        return any(
            fact in read and not self.is_given(host, fact) for fact in RUNTIME_FACTS
        ) or self.needs_facts(host, name)

    def needs_facts(self, host, name):
        """Return whether a variable refers to facts of Ansible, and none of the host are known."""
        read = self._reads.get(self.key(host, name), (frozenset(), False))[0]
        given = self.hosts[host].given
        return not given.get("ansible_facts") and any(
            word == "ansible_facts" or (_FACT.match(word) and word not in given) for word in read
        )

    def value(self, host, name):
        """Return the templated value of a variable in plain containers; raises AnsibleError."""
        key = self.key(host, name)
        if key not in self._values:
            raw = self.hosts[host].raw(name)
            if self._about(raw)[1]:
                self._values[key] = (_plain(raw), None)
            else:
                self.evaluations += 1
                try:
                    self._values[key] = (_plain(self.hosts[host].value(name)), None)
                except AnsibleError as error:
                    self._values[key] = (None, error)
                except RecursionError:
                    self._values[key] = (None, AnsibleError("%s names itself" % name))
        value, error = self._values[key]
        if error is not None:
            raise error
        return value

    def touched(self, host, names):
        """Return the names whose value, or a variable in whose default, is set by the inventory."""
        given = set(self.hosts[host].given) - self.MAGIC
        found = set()
        for name in names:
            if name in self.hosts[host] and (
                name in given or not self._reads[self.key(host, name)][0].isdisjoint(given)
            ):
                found.add(name)
        return found

    def words_of(self, host):
        """Return the names that the templates in a host's variables use."""
        inputs = self.hosts[host]
        return frozenset().union(
            *[
                self._about(raw)[2]
                for name, raw in inputs.given.items()
                if name not in self.CONSTANT
            ]
        )

    def settle(self, host, values):
        """Replace templates and texts by these values of the requested types."""
        self._settled[host].update(values)
        for name, value in values.items():
            key = self.key(host, name)
            if key not in self._of_keys:
                self._of_keys[key] = self._number(("value", repr(value)))
            self._of_values[host][name] = self._of_keys[key]

    def _of_value(self, host, name):
        """Return a number that is equal for hosts with the same value of a variable, as far as known."""
        if name not in self._of_values[host]:
            return self.key(host, name)
        return self._of_values[host][name]

    def answer(self, host, expression, item=None):
        """Return the value of a Jinja expression on a host, None if it fails. False stands for any other value that is empty and no list."""
        if expression not in self._words:
            self._words[expression] = sorted(set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", expression)))
        # For computed values the result counts, because templates differ between hosts more often than their values.
        names = tuple(
            (word, host if word in self.OF_THE_HOST else self._of_value(host, word))
            for word in self._words[expression]
            if word in self.OF_THE_HOST or word in self.hosts[host]
        )
        key = (expression, names, repr(item))
        if key not in self._answers:
            self.evaluations += 1
            if self._settled[host]:
                self.hosts[host].settle(self._settled[host])
                self._settled[host] = {}
            try:
                answer = _plain(self.hosts[host].evaluate(expression, item=item))
                self._answers[key] = answer if answer or isinstance(answer, list) else False
            except AnsibleError:
                self._answers[key] = None
        return self._answers[key]


def _collect(raw, texts):
    """Append the texts in a value to a list. Returns whether one of them is from a vault."""
    if isinstance(raw, dict):
        return True in [_collect(inner, texts) for pair in raw.items() for inner in pair]
    if isinstance(raw, (list, tuple)):
        return True in [_collect(inner, texts) for inner in raw]
    # EncryptedString, or AnsibleVaultEncryptedUnicode before ansible-core 2.19. A file that is encrypted as a whole adds a tag.
    if hasattr(raw, "_ciphertext"):
        return True
    if isinstance(raw, str):
        texts.append(raw)
    return any(tag.__name__ == "VaultedValue" for tag in getattr(raw, "_ansible_tags_mapping", ()))


def _plain(value):
    """Return a value with all lazy templates in it evaluated."""
    if isinstance(value, dict):
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, str) and "{" in value:
        # A trust mark shows whether it is a template. A plain copy would lose it.
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    return value


def verify_ids(key: str, value: str | None = None) -> list[str]:
    """Return the ids of the checks of role verify whose row has a key and, if it is given, this value in it."""
    return ids_with(verify_rules(), key, value)
