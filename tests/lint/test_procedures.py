"""docs/procedures.md, docs/security.md and the faults of docs/evidence.md: the tables are complete,
and the code has all that they name.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import _job_file
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]

# The steps of each guide, and by letters what a guide mentions only in passing.
STEPS = {
    "P1": (11, "abcdef"),
    "P2": (6, "abcde"),
    "P3": (3, "abcdefgh"),
    "P4": (6, "ab"),
    "P5": (7, "abcde"),
}
COLUMNS = ["Step", "In the collection", "Test", "Fault that turns it red"]
# Instead of a fault, and for a step without a test.
REASON = re.compile(r"(GAP|Not carried over[^:.]*): \S+( \S+){2,}")


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def tables(page, columns):
    """Yield title and rows of each section's table."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        lines = [line for line in section.splitlines() if line.startswith("|")]
        title = section.partition("\n")[0]
        assert cells(lines[0]) == columns, title
        yield title, [cells(line) for line in lines[2:]]


ROWS = [(title[:2], *row) for title, rows in tables("docs/procedures.md", COLUMNS) for row in rows]
PROMISE_COLUMNS = ["Promise", "Mechanism", "Test", "Not promised"]
PROMISES = [row for _title, rows in tables("docs/security.md", PROMISE_COLUMNS) for row in rows]


def named(text):
    return re.findall(r"`([^`]+)`", text)


def paths_in(cell):
    return [name for name in named(cell) if "::" in name]


def is_a_test(name):
    """Return whether a file of the tree has the function that path::function names."""
    path, _colons, function = name.partition("::")
    return (ROOT / path).is_file() and function in functions(path)


def options(spec):
    for name, option in (spec.get("options") or {}).items():
        yield name, option
        yield from (("%s[].%s" % (name, inner), more) for inner, more in options(option))


@functools.lru_cache(maxsize=None)
def variables():
    """Of all roles and entry points, those in lists of dictionaries as name[].option."""
    specs = [
        yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"]
        for path in (ROOT / "roles").glob("*/meta/argument_specs.yml")
    ]
    return {
        name for entries in specs for spec in entries.values() for name, _option in options(spec)
    }


def stems(pattern):
    return {path.stem for path in ROOT.glob(pattern)}


def found_in(pattern, *paths):
    return {
        name
        for path in paths
        for name in re.findall(pattern, (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
    }


# What a word before the name says that it is.
KINDS = {
    "role": stems("roles/*"),
    "playbook": stems("playbooks/*.yml"),
    "module": stems("plugins/modules/*.py"),
    "check": found_in(
        r"^  - id: (\S+)$",
        "roles/preflight/meta/host_rules.yml",
        "roles/preflight/meta/compat_rules.yml",
        "roles/verify/meta/rules.yml",
    ),
    "example": {path.name for path in ROOT.glob("roles/train/files/examples/*.py")},
    "key": set(_job_file.KEYS),
}
COMMANDS = found_in(r'^    "(\w+)": \(', "roles/jobs/files/_command_line.py")


@functools.lru_cache(maxsize=None)
def functions(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"), path)
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_steps_are_there_in_order():
    for guide, (numbers, letters) in STEPS.items():
        found = list(dict.fromkeys(row[1].split()[0] for row in ROWS if row[0] == guide))
        assert found == ["%s.%s" % (guide, step) for step in [*range(1, numbers + 1), *letters]]
    assert {row[0] for row in ROWS} == set(STEPS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1])
def test_a_step_has_tests_and_a_fault_or_a_reason(row):
    assert len(row) == len(COLUMNS) + 1 and all(row), "four cells, none of them empty"
    assert row[3] == "none" or named(row[3]) and all("::" in name for name in named(row[3])), (
        "tests as path::function, or none"
    )
    if row[3] == "none" or row[4].startswith(("GAP", "Not carried over")):
        assert REASON.match(row[4]), (
            "a step without a test or a fault needs 'GAP: ...' or 'Not carried over: ...'"
        )
    assert [name for cell in row[3:] for name in paths_in(cell) if not is_a_test(name)] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1])
def test_what_a_step_names_exists(row):
    text = row[2]
    for kind, known in KINDS.items():
        for listed in re.findall(r"\b%ss? ((?:`[^`]+`(?:, | and )?)+)" % kind, text):
            # The list of a kind may go on with variables.
            names = [name for name in named(listed) if name not in variables()]
            assert names and set(names) <= known, "%s: %s" % (kind, ", ".join(set(names) - known))
    # A word that begins as a variable of a role does is one.
    prefixes = tuple(role + "_" for role in KINDS["role"])
    words = re.findall(r"`([a-z][a-z0-9_]*(?:\[\]\.\w+)?)`", text)
    assert [
        word
        for word in words
        if word.startswith(prefixes) and word not in variables() | KINDS["module"]
    ] == []
    assert [
        word
        for word in named(text)
        if word.startswith("trainyard ") and word.split()[1] not in COMMANDS
    ] == []


@pytest.mark.parametrize("row", PROMISES, ids=lambda row: row[0][:60])
def test_a_promise_has_a_mechanism_and_tests_that_exist(row):
    assert len(row) == len(PROMISE_COLUMNS) and all(row), "four cells, none of them empty"
    assert paths_in(row[2]), "tests as path::function"
    assert [name for name in paths_in(row[2]) if not is_a_test(name)] == []


def planted_faults():
    """Rows of the tables of docs/evidence.md: the fault, and the last cell, which names tests or
    'the same' as the row before.
    """
    text = (ROOT / "docs/evidence.md").read_text(encoding="utf-8")
    lines = text.partition("## Planted faults")[2].splitlines()
    rows = [cells(line) for line in lines if line.startswith("| ")]
    return [(row[0], row[-1]) for row in rows if row[0] != "Fault planted"]


def test_each_planted_fault_has_tests_that_exist():
    rows, before = planted_faults(), []
    assert len(rows) > 90
    for fault, cell in rows:
        found, path = [], ""
        for file, function in re.findall(r"([\w/.]+\.py)?::(test_\w+)", cell):
            path = file or path
            found.append("%s::%s" % (path, function))
        before = found or (before if cell.startswith("the same") else [])
        assert before, "no test: %s" % fault
        assert [name for name in before if not is_a_test(name)] == [], fault
