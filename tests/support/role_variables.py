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
