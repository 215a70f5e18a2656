"""The value of a role's variable, as a play evaluates it."""

from __future__ import annotations

from pathlib import Path

import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from trusted import trusted

ROLES = Path(__file__).resolve().parents[2] / "roles"


def role_variable(role, name, **given):
    """The value of a variable of vars/main.yml where a play has the given variables."""
    variables = trusted(
        yaml.safe_load((ROLES / role / "vars/main.yml").read_text(encoding="utf-8"))
    )
    return Templar(DataLoader(), {**variables, **given}).template(variables[name])


def task_variable(role, file, task, name, **given):
    """The value of a fact that a task of a role sets, where a play has the given variables."""
    tasks = yaml.safe_load((ROLES / role / "tasks" / file).read_text(encoding="utf-8"))
    facts = next(each for each in tasks if each["name"] == task)["ansible.builtin.set_fact"]
    return Templar(DataLoader(), given).template(trusted(facts[name]))
