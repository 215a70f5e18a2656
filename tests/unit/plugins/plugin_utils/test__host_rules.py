"""Validation of preflight's files, from the collection and from a site."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ansible_collections.trainyard.gpu.plugins.plugin_utils._compat import load_facts
from ansible_collections.trainyard.gpu.plugins.plugin_utils._host_rules import (
    problem_of_facts,
    problem_of_rule,
    problem_of_table,
)

META = Path(__file__).parents[4] / "roles/preflight/meta"
FACTS = load_facts()
RULE = {
    "id": "x",
    "severity": "block",
    "stage": "host",
    "that": "true",
    "expected": "a",
    "found": "{{ item }}",
    "source": "us",
    "fix": "b",
}


@pytest.mark.parametrize("name", ["host_rules.yml", "compat_rules.yml"])
def test_our_own_are_good(name):
    assert problem_of_table(yaml.safe_load((META / name).read_text(encoding="utf-8"))) == ""


def test_good_rules():
    for rule in (
        RULE,
        dict(RULE, for_each="[1]", hosts="[item]", only_warn="false", when="true", otherwise="no"),
        {"id": "x", "otherwise": "why"},
        dict(RULE, needs={"item is defined": "unknown"}),
        dict(RULE, expected=12, that=True),
        dict(RULE, checked="A is b."),
        dict(RULE, only_warn="true", checked="A is b.", warns="if c"),
    ):
        assert problem_of_rule(rule) == ""


@pytest.mark.parametrize(
    "change, said",
    [
        ({"fixx": "x"}, "rule x: unknown key 'fixx' (did you mean fix?)"),
        ({"severity": "fatal"}, "rule x: severity must be block or warn"),
        ({"stage": "moon"}, "stage must be host or cluster"),
        ({"when": "false"}, "when and otherwise must be used together"),
        ({"fix": None, "id": 12}, "quote it"),
        ({"needs": ["x"]}, "rule x: needs must be a dictionary"),
        ({"that": "a =="}, "rule x: that is not a Jinja expression: "),
        ({"fix": "{{ a"}, "fix is not a Jinja text: "),
        ({"needs": {"a b": "x"}}, "needs is not a Jinja expression"),
        ({"checked": None}, "rule x: checked must be a text"),
        ({"checked": " "}, "checked must be a text"),
        ({"checkd": "A."}, "unknown key 'checkd' (did you mean checked?)"),
        ({"warns": "if c"}, "warns says when only_warn is true"),
    ],
)
def test_a_rule_that_is_misspelt(change, said):
    assert said in problem_of_rule(dict(RULE, **change))


def test_missing_keys():
    assert (
        problem_of_rule({"id": "x", "that": "true"})
        == "rule x: no key expected, fix, found, severity, source, stage"
    )
    assert problem_of_rule("x") == "a rule is not a dictionary: 'x'" and problem_of_rule(
        {}
    ).startswith("rule without id: no key ")


@pytest.mark.parametrize(
    "table, said",
    [
        (None, "no list host_rules"),
        ("x", "no list host_rules"),
        ([RULE], "no list host_rules"),
        ({"host_rules": {}}, "no list host_rules"),
        ({"host_rules": []}, "no list host_rules"),
        ({"rules": [RULE]}, "no list host_rules"),
        ({"host_rules": [RULE], "lett": {}}, "unknown key 'lett' (did you mean let?)"),
        ({"host_rules": [RULE], "let_once": []}, "let_once is not a dictionary"),
        ({"host_rules": [RULE], "let_once": {"a": "b +"}}, "let_once.a is not a Jinja expression"),
        ({"host_rules": [RULE], "let": []}, "let is not a dictionary"),
        ({"host_rules": [RULE], "let": {"a": "b +"}}, "let.a is not a Jinja expression"),
        ({"host_rules": [RULE, dict(RULE, id="y", stage="x")]}, "rule y: "),
    ],
)
def test_a_file_that_is_no_table(table, said):
    assert said in problem_of_table(table)


@pytest.mark.parametrize(
    "more",
    [
        {},
        None,
        {
            "cuda": {
                "driver_branches": [
                    {
                        "branch": 570,
                        "status": "supported",
                        "eol": None,
                        "max_cuda_major_no_fwd_compat": 12,
                    }
                ]
            }
        },
        {"container_toolkit": {"recommended": {"version": "1.18.0", "why": "ours"}}},
    ],
)
def test_good_facts(more):
    assert problem_of_facts(more, FACTS) == ""


@pytest.mark.parametrize(
    "more, said",
    [
        ([], "not a dictionary"),
        ("x", "not a dictionary"),
        ({"cudda": {}}, "unknown key cudda (did you mean cuda?)"),
        ({"kubernetes": {}}, "unknown key kubernetes; known are ascend, container_toolkit, "),
        ({"cuda": []}, "cuda is not a dictionary"),
        (
            {"cuda": {"driver_branchs": []}},
            "unknown key cuda.driver_branchs (did you mean cuda.driver_branches?)",
        ),
        ({"cuda": {"driver_branches": {"branch": 1}}}, "cuda.driver_branches is not a list"),
        ({"cuda": {"driver_branches": ["570"]}}, "cuda.driver_branches[0] is not a dictionary"),
        ({"cuda": {"nvlink_5_boards": {"gpus": [8]}}}, "cuda.nvlink_5_boards.gpus is not a number"),
    ],
)
def test_facts_that_would_break_later(more, said):
    assert said in problem_of_facts(more, FACTS)
