"""The value of a role's variable, as a play evaluates it."""

from __future__ import annotations

from pathlib import Path

import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from trusted import trust_as_template

ROLES = Path(__file__).resolve().parents[2] / "roles"


def trusted(value):
    """Templates wherever in it they are."""
    if isinstance(value, str):
        return trust_as_template(value)
    if isinstance(value, dict):
        return {key: trusted(inner) for key, inner in value.items()}
    return [trusted(inner) for inner in value] if isinstance(value, list) else value


def role_variable(role, name, **given):
    """The value of a variable of vars/main.yml where a play has the given variables."""
    variables = trusted(yaml.safe_load((ROLES / role / "vars/main.yml").read_text(encoding="utf-8")))
    return Templar(DataLoader(), {**variables, **given}).template(variables[name])
