"""How much of a function a reader has to hold in mind: branches, parameters, and conditions inside
comprehensions.

The bounds never go up: split the new function instead.
"""

from __future__ import annotations

import ast
import functools
import inspect
from pathlib import Path

import pytest
from radon.complexity import cc_visit
from radon.visitors import Class

from ansible_collections.trainyard.gpu.plugins.plugin_utils._decisions import DECISIONS, function

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path for folder in ("plugins", "roles") for path in (ROOT / folder).rglob("*.py"))
#: Cyclomatic complexity as radon counts it: boolean operators and comprehensions count.
HIGHEST = 15
PARAMETERS = 6
#: `requested`, `found`, `messages` and `match` have the place of these.
FORMER_WORDS = {"asked", "wanted", "said", "told"}
#: A finding has the parts that each report shows.
WITH_MORE_PARAMETERS = ["plugins/module_utils/_finding.py finding"]


def complexity():
    """Return [(file and name, complexity)] of each function and method."""
    found = []
    for path in FILES:
        for block in cc_visit(path.read_text(encoding="utf-8")):
            if not isinstance(block, Class):
                found.append(("%s %s" % (path.name, block.fullname), block.complexity))
    return found


def parameters(node: ast.FunctionDef) -> int:
    """Return how many parameters a function has, without self and cls."""
    given = node.args
    names = [each.arg for each in given.posonlyargs + given.args + given.kwonlyargs]
    names += [each.arg for each in (given.vararg, given.kwarg) if each]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def has_condition(node: ast.AST) -> bool:
    """Return whether a node is a comprehension with a conditional expression in it."""
    comprehensions = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    if not isinstance(node, comprehensions):
        return False
    return any(isinstance(inner, ast.IfExp) for inner in ast.walk(node))


def variables(node: ast.AST) -> list[str]:
    """Return the names of the parameters and local variables of a function."""
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return []
    inner = list(ast.walk(node))
    stored = [each for each in inner if isinstance(each, ast.Name)]
    names = [each.id for each in stored if isinstance(each.ctx, ast.Store)]
    return names + [each.arg for each in inner if isinstance(each, ast.arg)]


@functools.lru_cache(maxsize=1)
def nodes():
    """Return (where, node) of all files."""
    return [
        ("%s:%d" % (path.relative_to(ROOT), getattr(node, "lineno", 0)), node)
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    ]


def test_functions_have_few_branches():
    found = complexity()
    assert [name for name, value in found if value > HIGHEST] == [], "split these functions"


def test_functions_have_few_parameters():
    found = [
        "%s %s" % (where.rpartition(":")[0], node.name)
        for where, node in nodes()
        if isinstance(node, ast.FunctionDef) and parameters(node) > PARAMETERS
    ]
    assert found == WITH_MORE_PARAMETERS, "pass what belongs together as one NamedTuple"


def named(decision: str) -> list[str]:
    """Return the parameters of a decision."""
    return list(inspect.signature(function(decision)).parameters)


def test_plans_are_made_of_what_was_found_and_requested():
    plans = [name for name in DECISIONS if name.endswith(("_plan", "_state"))]
    assert len(plans) >= 20
    assert [name for name in plans if named(name)[:2] != ["found", "requested"]] == []


def test_decisions_name_their_parameters():
    """`**more` hides from a reader, and from the bound above, what a decision takes."""
    gathering = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    found = [
        "%s *%s" % (name, parameter.name)
        for name in DECISIONS
        for parameter in inspect.signature(function(name)).parameters.values()
        if parameter.kind in gathering
    ]
    assert found == [], "take one dictionary or one NamedTuple"


def test_comprehensions_have_no_conditions():
    found = [where for where, node in nodes() if has_condition(node)]
    assert found == [], "write a loop, or a function with a name"


def test_variables_share_one_vocabulary():
    found = [
        "%s %s" % (where, name)
        for where, node in nodes()
        for name in variables(node)
        if name in FORMER_WORDS
    ]
    assert found == [], "requested, found, messages or match"


@pytest.mark.parametrize(
    "text, count",
    [
        ("def one(a, b, *c, d=1, **e): pass", 5),
        ("class A:\n    def one(self, a): pass", 1),
        ("class A:\n    @classmethod\n    def one(cls): pass", 0),
        ("def one(): pass", 0),
    ],
)
def test_parameters_are_counted(text, count):
    (found,) = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    assert parameters(found) == count


@pytest.mark.parametrize(
    "text, found",
    [
        ("[a if b else c for a in d]", True),
        ("{a: (b if c else d) for a in e}", True),
        ("any(a for a in (b if c else d))", True),
        ("[a for a in b if c]", False),
        ("(a if b else c)", False),
    ],
)
def test_conditions_are_found(text, found):
    assert any(has_condition(node) for node in ast.walk(ast.parse(text))) == found
