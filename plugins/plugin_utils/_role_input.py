# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a role would see of its variables on a host, without running the role: its defaults below what the inventory says."""

from __future__ import annotations

import inspect
import os

ROLES = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "roles")

# Worked out during the run; what depends on them cannot be judged before it.
RUNTIME_FACTS = ("cluster_host", "cluster_members")


def show_failure(display, templar, text):
    """Show a text of many lines that a task fails with, where ansible-core (before 2.19) only shows it as one line of JSON."""
    if not hasattr(templar, "evaluate_expression"):
        display.error(text, wrap_text=False)


class Role:
    """A role of this collection as data: option specs, defaults, and where its files are."""

    def __init__(self, name, options, defaults, path):
        self.name = name
        self.options = options
        self.defaults = defaults
        self.path = path


def load_data(loader, path):
    """Return the content of a YAML file of the collection, None where there is no such file."""
    if not os.path.exists(path):
        return None
    # Since ansible-core 2.19 only text that is marked as trusted is templated; before, there was no such mark.
    trusted = {"trusted_as_template": True} if "trusted_as_template" in inspect.signature(loader.load_from_file).parameters else {}
    # It is nobody else's, so «unsafe», which is without a deep copy, is safe; the copies would cost a third of the judging.
    return loader.load_from_file(path, cache="none", unsafe=True, **trusted)


def load_roles(loader):
    """Return the roles of the collection that say which variables they take."""
    roles = []
    for name in sorted(os.listdir(ROLES)):
        path = os.path.join(ROLES, name)
        specs = load_data(loader, os.path.join(path, "meta", "argument_specs.yml"))
        if specs:
            options = specs["argument_specs"]["main"].get("options") or {}
            roles.append(Role(name, options, load_data(loader, os.path.join(path, "defaults", "main.yml")) or {}, path))
    return roles


class HostInput:
    """The variables of one host, role defaults included, and the means to template them."""

    def __init__(self, templar, hostvars, host, defaults, extra=None):
        self.given = hostvars.raw_get(host)
        self._variables = dict(defaults, **self.given)
        self._variables["hostvars"] = hostvars
        self._variables.update(extra or {})
        self._parent = templar
        self._templar = self._with({})

    def _with(self, extra):
        return self._parent.copy_with_new_env(available_variables=dict(self._variables, **extra))

    def settle(self, values):
        """Take these values, of the types that the roles ask for, in place of the templates and texts they come from."""
        self._variables.update(values)
        self._templar = self._with({})

    def __contains__(self, name):
        return name in self._variables

    def value(self, name):
        """Return the templated value of a variable; raises what the template engine raises."""
        return self._templar.template(self._variables[name])

    def depends_on_the_run(self, name):
        """Tell whether the text of a variable names something that is only known during the run."""
        return any(fact in repr(self._variables[name]) for fact in RUNTIME_FACTS)

    def evaluate(self, expression, **extra):
        """Return the value of a Jinja expression without braces."""
        templar = self._with(extra) if extra else self._templar
        if hasattr(templar, "evaluate_expression"):
            return templar.evaluate_expression(expression)
        # ansible-core before 2.19
        return templar.template("{{ %s }}" % expression)

    def template(self, text, **extra):
        """Return a text of the collection's own files with its expressions filled in."""
        return self._with(extra).template(text)
