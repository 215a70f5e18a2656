# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The variables of a role on a host, without running the role: its defaults, overridden by the
inventory.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

import ansible.template
from ansible.errors import AnsibleError
from ansible.module_utils.common.yaml import yaml_load

from ansible_collections.trainyard.gpu.plugins.plugin_utils._host_rules import ids_with

ROLES = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "roles")

# Since ansible-core 2.19 only trusted text is templated.
_TRUST = getattr(ansible.template, "trust_as_template", str)

# A fact as a variable, and none of what Ansible itself or an inventory sets.
_FACT = re.compile(
    r"ansible_(?!(become|check_mode|collection|connection|diff_mode|facts$|forks|host$|index_var|inventory|limit|loop|managed$|parent_role|password|play"
    r"|port$|python_interpreter|role|run_tags|search_path|shell_type|shell_executable|skip_tags|ssh_(?!host_key)|user$|verbosity|version$|winrm)|\w*_tags$)"
)
# Set by role cluster during the run. Before that, variables that depend on them cannot be checked.
RUNTIME_FACTS = ("cluster_host", "cluster_members")


def show_failure(display: Any, templar: Any, text: str) -> None:
    """Show a multi-line failure message, because ansible-core before 2.19 shows it as one line of
    JSON.
    """
    if not hasattr(templar, "evaluate_expression"):
        display.error(text, wrap_text=False)


class Role(NamedTuple):
    """A role of this collection as data: option specs, defaults, and the path of its folder."""

    name: str
    options: dict[str, Any]
    defaults: dict[str, Any]
    path: str


def load_data(loader: Any, path: str) -> Any:
    """Return the content of a YAML file of rules or defaults, None if it does not exist.

    It is shared by all that read a file of the roles: nothing may change it.
    """
    if not os.path.exists(path):
        return None
    if path.startswith(ROLES + os.sep):
        return _load_own(path)
    trusted = (
        {"trusted_as_template": True}
        if "trusted_as_template" in inspect.signature(loader.load_from_file).parameters
        else {}
    )
    # The data is not shared, so 'unsafe', which avoids a deep copy, is safe. Copies would take a
    # third of the judging time.
    return loader.load_from_file(path, cache="none", unsafe=True, **trusted)


@functools.lru_cache(maxsize=None)
def _load_own(path: str) -> Any:
    """Return the content of a file of the roles, whose texts are templates."""
    return _trusted(load_plain(path))


def _trusted(value: Any) -> Any:
    """Return a value with all its texts marked as templates."""
    if isinstance(value, dict):
        # Some keys are expressions.
        return {_trusted(key): _trusted(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_trusted(inner) for inner in value]
    return _TRUST(value) if isinstance(value, str) else value


def load_plain(path: str) -> Any:
    """Return the content of a YAML file without templates.

    Ansible's loader takes four times as long, because it notes the place of each text.
    """
    with open(path, "rb") as stream:
        return yaml_load(stream)


@functools.lru_cache(maxsize=1)
def verify_rules() -> dict[str, Any]:
    """Return the rules of role verify as plain data without templates."""
    rules: dict[str, Any] = load_plain(os.path.join(ROLES, "verify", "meta", "rules.yml"))
    return rules


def load_roles(loader: Any) -> list[Role]:
    """Return the roles of the collection. Each has argument specs."""
    roles = []
    for name in sorted(os.listdir(ROLES)):
        path = os.path.join(ROLES, name)
        specs = load_plain(os.path.join(path, "meta", "argument_specs.yml"))
        options = specs["argument_specs"]["main"].get("options") or {}
        roles.append(Role(name, options, defaults_of(loader, name), path))
    return roles


def defaults_of(loader: Any, name: str) -> dict[str, Any]:
    """Return the defaults of a role."""
    return load_data(loader, os.path.join(ROLES, name, "defaults", "main.yml")) or {}


def load_defaults(loader: Any) -> dict[str, Any]:
    """Return the defaults of all roles."""
    defaults: dict[str, Any] = {}
    for name in sorted(os.listdir(ROLES)):
        defaults.update(defaults_of(loader, name))
    return defaults


def own_templar(templar: Any) -> Any:
    """Return a templar for the hosts of a run.

    They share one, because each finds the filters of the collection anew, which takes longer than
    to use them.
    """
    return templar.copy_with_new_env()


class HostInput:
    """The variables of one host, including role defaults, with a templar of P(own_templar), which
    all hosts use in turn.
    """

    def __init__(
        self,
        templar: Any,
        hostvars: Any,
        host: str,
        defaults: dict[str, Any],
        extra: dict[str, Any] | None = None,
    ) -> None:
        self.given: dict[str, Any] = hostvars.raw_get(host)
        self._variables = dict(defaults, **self.given)
        self._variables["hostvars"] = hostvars
        self._variables.update(extra or {})
        self._shared = templar
        # Rules share conditions, and Ansible compiles an expression anew each time.
        self._evaluated: dict[str, Any] = {}

    def _with(self, extra: dict[str, Any]) -> Any:
        self._shared.available_variables = dict(self._variables, **extra)
        return self._shared

    def settle(self, values: dict[str, Any]) -> None:
        """Replace templates and texts by these values of the requested types."""
        self._variables.update(values)
        self._evaluated = {}

    def raw(self, name: str) -> Any:
        """Return the untemplated value of a variable."""
        return self._variables[name]

    def __contains__(self, name: str) -> bool:
        return name in self._variables

    def value(self, name: str) -> Any:
        """Return the templated value of a variable; raises the errors of the template engine."""
        return self._with({}).template(self._variables[name])

    def evaluate(self, expression: str, **extra: Any) -> Any:
        """Return the value of a Jinja expression without braces."""
        if extra:
            return self._evaluate(self._with(extra), expression)
        if expression not in self._evaluated:
            self._evaluated[expression] = self._evaluate(self._with({}), expression)
        return self._evaluated[expression]

    @staticmethod
    def _evaluate(templar: Any, expression: str) -> Any:
        if hasattr(templar, "evaluate_expression"):
            return templar.evaluate_expression(expression)
        # ansible-core before 2.19
        return templar.template("{{ %s }}" % expression)

    def template(self, text: str, **extra: Any) -> Any:
        """Return a templated text of the collection's files."""
        return self._with(extra).template(text)


class _Facts(NamedTuple):
    """What a value says by itself, before it is templated.

    C(number) is equal for equal values. C(static): it is not a template. C(words) are those in its
    templates. C(secret): it is from a vault.
    """

    raw: Any
    number: int
    static: bool
    words: frozenset[str]
    secret: bool


class _Reads(NamedTuple):
    """The names that a variable reads, directly or through others, and whether one of them is from
    a vault.
    """

    names: frozenset[str] = frozenset()
    secret: bool = False


class Shared:
    """Results shared by all hosts with the same values.

    Compiling an expression takes much longer than anything else here, and hosts of a cluster differ
    very little. So values and truths are kept by key(): what a variable's own text says, and what
    the variables say that it names.
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

    def __init__(
        self, templar: Any, hostvars: Any, hosts: Iterable[str], defaults: dict[str, Any]
    ) -> None:
        templar = own_templar(templar)
        self.hosts = {host: HostInput(templar, hostvars, host, defaults) for host in hosts}
        self._facts: dict[int, _Facts] = {}
        self._numbers: dict[Hashable, int] = {}
        self._keys: dict[str, dict[str, int]] = {host: {} for host in self.hosts}
        self._reads: dict[int, _Reads] = {}
        self._settled: dict[str, dict[str, Any]] = {host: {} for host in self.hosts}
        self._of_values: dict[str, dict[str, int]] = {host: {} for host in self.hosts}
        self._of_keys: dict[int, int] = {}
        self._values: dict[int, tuple[Any, AnsibleError | None]] = {}
        self._answers: dict[Hashable, Any] = {}
        self._words: dict[str, list[str]] = {}
        self.evaluations = 0

    def _number(self, thing: Hashable) -> int:
        return self._numbers.setdefault(thing, len(self._numbers))

    def _about(self, raw: Any) -> _Facts:
        """Return what a value says by itself."""
        known = self._facts.get(id(raw))
        # The value is kept too, because its memory address could be reused.
        if known is None or known.raw is not raw:
            texts: list[str] = []
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
            static = not templates and not secret
            known = self._facts[id(raw)] = _Facts(raw, print_of_it, static, words, secret)
        return known

    def key(self, host: str, name: str) -> int:
        """Return a number that is equal for hosts with the same value of the variable."""
        keys = self._keys[host]
        if name not in keys:
            if name in self.CONSTANT:
                return -1
            # Circular references fail anyway.
            keys[name] = -2
            dummy, of_it, static, words, secret = self._about(self.hosts[host].raw(name))
            read = {name}
            if not static:
                inner: list[tuple[str, str | int]] = []
                for word in sorted(words):
                    if word in self.OF_THE_HOST:
                        inner.append((word, host))
                    elif word in self.hosts[host]:
                        key = self.key(host, word)
                        inner.append((word, key))
                        # The other part of a circular reference is not known yet.
                        its_names, its_secret = self._reads.get(key, _Reads())
                        read |= its_names
                        secret = secret or its_secret
                read |= words
                of_it = self._number((of_it, tuple(inner)))
            keys[name] = of_it
            self._reads.setdefault(of_it, _Reads(frozenset(() if static else read), secret))
        return keys[name]

    def _reads_of(self, host: str, name: str) -> _Reads:
        return self._reads.get(self.key(host, name), _Reads())

    def is_secret(self, host: str, name: str) -> bool:
        """Return whether a variable's value comes from a vault, directly or through other
        variables.
        """
        return name in self.hosts[host] and self._reads_of(host, name).secret

    def is_given(self, host: str, name: str) -> bool:
        """Return whether the inventory sets a variable, or Ansible does."""
        return name in self.hosts[host].given

    def unsteady(self, host: str, name: str) -> bool:
        """Return whether a variable may change with each evaluation, because it reads the clock or
        the like, and nothing of the host.
        """
        read = self._reads_of(host, name).names
        return not read.isdisjoint(self.OF_THE_MOMENT) and read.isdisjoint(self.NAMES_THE_HOST)

    def depends_on_the_run(self, host: str, name: str) -> bool:
        """Return whether a variable refers to a value that the run has not set yet."""
        read = self._reads_of(host, name).names
        return any(
            fact in read and not self.is_given(host, fact) for fact in RUNTIME_FACTS
        ) or self.needs_facts(host, name)

    def needs_facts(self, host: str, name: str) -> bool:
        """Return whether a variable refers to facts of Ansible, and none of the host are known."""
        read = self._reads_of(host, name).names
        given = self.hosts[host].given
        return not given.get("ansible_facts") and any(
            word == "ansible_facts" or (_FACT.match(word) and word not in given) for word in read
        )

    def value(self, host: str, name: str) -> Any:
        """Return the templated value of a variable in plain containers; raises AnsibleError."""
        key = self.key(host, name)
        if key not in self._values:
            raw = self.hosts[host].raw(name)
            if self._about(raw).static:
                self._values[key] = (_plain(raw), None)
            else:
                self.evaluations += 1
                try:
                    self._values[key] = (_plain(self.hosts[host].value(name)), None)
                except AnsibleError as error:
                    self._values[key] = (None, error)
                except RecursionError:
                    self._values[key] = (None, AnsibleError("%s names itself" % name))
        value, failure = self._values[key]
        if failure is not None:
            raise failure
        return value

    def touched(self, host: str, names: Iterable[str]) -> set[str]:
        """Return the names whose value, or a variable in whose default, is set by the inventory."""
        given = set(self.hosts[host].given) - self.MAGIC
        found = set()
        for name in names:
            if name in self.hosts[host] and (
                name in given or not self._reads[self.key(host, name)].names.isdisjoint(given)
            ):
                found.add(name)
        return found

    def words_of(self, host: str) -> frozenset[str]:
        """Return the names that the templates in a host's variables use."""
        return frozenset(
            word
            for name, raw in self.hosts[host].given.items()
            if name not in self.CONSTANT
            for word in self._about(raw).words
        )

    def settle(self, host: str, values: dict[str, Any]) -> None:
        """Replace templates and texts by these values of the requested types."""
        self._settled[host].update(values)
        for name, value in values.items():
            key = self.key(host, name)
            if key not in self._of_keys:
                self._of_keys[key] = self._number(("value", repr(value)))
            self._of_values[host][name] = self._of_keys[key]

    def _of_value(self, host: str, name: str) -> int:
        """Return a number that is equal for hosts with the same value of a variable, as far as
        known.
        """
        if name not in self._of_values[host]:
            return self.key(host, name)
        return self._of_values[host][name]

    def _state_of(self, host: str, word: str) -> str | int:
        """Return what an expression reads by a word: equal for hosts whose answers are equal."""
        return host if word in self.OF_THE_HOST else self._of_value(host, word)

    def answer(self, host: str, expression: str, item: Any = None) -> Any:
        """Return the value of a Jinja expression on a host, None if it fails.

        False stands for any other value that is empty and no list.
        """
        if expression not in self._words:
            self._words[expression] = sorted(set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", expression)))
        # For computed values the result counts, because templates differ between hosts more often
        # than their values.
        names = tuple(
            (word, self._state_of(host, word))
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


def _collect(raw: Any, texts: list[str]) -> bool:
    """Append the texts in a value to a list. Returns whether one of them is from a vault."""
    if isinstance(raw, dict):
        return True in [_collect(inner, texts) for pair in raw.items() for inner in pair]
    if isinstance(raw, (list, tuple)):
        return True in [_collect(inner, texts) for inner in raw]
    # EncryptedString, or AnsibleVaultEncryptedUnicode before ansible-core 2.19. A file that is
    # encrypted as a whole adds a tag.
    if hasattr(raw, "_ciphertext"):
        return True
    if isinstance(raw, str):
        texts.append(raw)
    return any(tag.__name__ == "VaultedValue" for tag in getattr(raw, "_ansible_tags_mapping", ()))


def _plain(value: Any) -> Any:
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
    """Return the ids of the checks of role verify whose row has a key and, if it is given, this
    value in it.
    """
    return ids_with(verify_rules(), key, value)
