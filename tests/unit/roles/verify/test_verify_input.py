"""What role verify takes and publishes: the same ids everywhere."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROLE = Path(__file__).parents[4] / "roles/verify"


def load(name):
    return yaml.safe_load((ROLE / "meta" / name).read_text(encoding="utf-8"))


def test_every_published_check_can_be_overruled():
    (overrule,) = [rule["that"] for rule in load("input_rules.yml")["input_rules"] if rule["variable"] == "verify_overrule" and "keys()" in rule["that"]]
    assert re.findall(r"'([a-z-]+-[a-z-]+|memlock)'", overrule) == [check["id"] for check in load("checks.yml")["checks"]]


def test_every_rule_is_in_the_readme():
    readme = (ROLE / "README.md").read_text(encoding="utf-8")
    assert [rule["id"] for rule in load("rules.yml")["host_rules"] if "`%s`" % rule["id"] not in readme] == []
