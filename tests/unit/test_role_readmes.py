"""The tables of variables and of checks in the READMEs of roles are valid Markdown, and every
default in them can be read.
"""

from __future__ import annotations

import pytest
from role_readmes import (
    BEGIN,
    BEGIN_CHECKS,
    END,
    KEYS_PAGE,
    check_rows,
    readmes,
    rows,
    section,
    value,
    written,
)


@pytest.mark.parametrize(
    "default, shown",
    [
        ("", '""'),
        ("4", '"4"'),
        ("auto", "auto"),
        ("0.28.1", "0.28.1"),
        (True, "true"),
        (1.0, "1.0"),
        ([], "[]"),
        ({}, "{}"),
        (["rw", "sync"], "[rw, sync]"),
        ({"memlock": -1, "stack": 64}, "{memlock: -1, stack: 64}"),
        ("{{ other }}", ""),
        (["/", "{{ other }}"], ""),
        (["a long entry"] * 20, ""),
    ],
)
def test_a_default_is_a_value_or_needs_words(default, shown):
    assert value(default) == shown


def test_markup_becomes_markdown_that_no_cell_ends():
    (row,) = rows(
        {
            "x": {
                "type": "str",
                "default": "a|b",
                "choices": ["a|b", "c"],
                "description": ["C(a | b) or O(y=1) of M(n.c.m), <this>, *.py.", "V(f(x\\)) ends."],
            }
        }
    )
    assert (
        row
        == r"| `x` | str | `a\|b` | `a \| b` or `y=1` of `n.c.m`, &lt;this>, \*.py. `f(x)` ends. Choices: `a\|b`, `c`. |"
    )


def test_a_default_in_words_is_told_once():
    option = {
        "type": "list",
        "elements": "str",
        "default": "{{ other }}",
        "description": ["What it is.", "The default is C(other)."],
    }
    assert list(rows({"x": option})) == ["| `x` | list of str | `other` | What it is. |"]
    with pytest.raises(
        ValueError, match="x: a paragraph of its description must begin with 'The default is '"
    ):
        list(rows({"x": dict(option, description="What it is.")}))


def test_options_of_options_follow_their_option():
    inner = {
        "path": {"type": "path", "required": True, "description": "Path."},
        "only": {"type": "str", "description": "Only."},
    }
    assert list(
        rows(
            {
                "x": {
                    "type": "list",
                    "elements": "dict",
                    "default": [],
                    "description": "All.",
                    "options": inner,
                }
            }
        )
    ) == [
        "| `x` | list of dict | `[]` | All. |",
        "| `x[].path` | path | required | Path. |",
        "| `x[].only` | str | not set | Only. |",
    ]


def test_other_entry_points_describe_what_main_does_not():
    one, two = ({"type": "int", "default": 1, "description": name} for name in ("One.", "Two."))
    told = section(
        {
            "main": {"options": {"one": one}},
            "remove": {"short_description": "Remove it", "options": {"one": one, "two": two}},
            "asked": {"options": {}},
        }
    )
    assert told.splitlines()[4:] == [
        "`tasks_from: remove` (Remove it) takes `one`:",
        "",
        "| Variable | Type | Default | Description |",
        "|---|---|---|---|",
        "| `two` | int | `1` | Two. |",
    ]


def test_only_what_is_between_the_comments_changes():
    specs = {"main": {"options": {"x": {"type": "int", "default": 1, "description": "One."}}}}
    readme = written("before\n%s\n%s\nafter\n" % (BEGIN, END), specs)
    assert (
        readme.startswith("before\n%s\n\n| Variable" % BEGIN)
        and readme.endswith("|\n\n%s\nafter\n" % END)
        and written(readme, specs) == readme
    )
    with pytest.raises(ValueError, match="once each"):
        written("before\nafter\n", specs)


RULE = {"id": "x", "severity": "block", "checked": "A of b_c is in d.json, not <e> | -f."}


def test_a_check_is_a_row_with_its_severity_and_its_words():
    others = [
        {
            "id": "t",
            "severity": "block",
            "warns": "if excluded by --limit",
            "checked": "T.",
            "applies_to": "trouble",
        },
        {"id": "z", "severity": "warn", "checked": "Z."},
    ]
    assert list(
        check_rows(
            {
                "host_rules": [
                    RULE,
                    dict(RULE, id="y", only_warn="true", warns="for old ones", checked="Y."),
                    {"id": "s", "otherwise": "role a_b does it"},
                ],
                "other_checks": others,
            }
        )
    ) == [
        "| `t` | block; warn if excluded by `--limit` | T. |",
        r"| `x` | block | A of `b_c` is in `d.json`, not &lt;e> \| `-f`. |",
        "| `y` | block; warn for old ones | Y. |",
        "| `s` | - | Skipped: role `a_b` does it. |",
        "| `z` | warn | Z. |",
    ]


@pytest.mark.parametrize(
    "rule, key",
    [({"id": "x", "severity": "block"}, "checked"), (dict(RULE, only_warn="true"), "warns")],
)
def test_a_check_without_words_is_refused(rule, key):
    with pytest.raises(ValueError, match="check x: no key %s, which the README shows" % key):
        list(check_rows({"host_rules": [rule]}))


def test_each_table_of_checks_has_its_place():
    specs, tables = (
        {"main": {}},
        {"a.yml": {"host_rules": [RULE]}, "b.yml": {"host_rules": [dict(RULE, id="y")]}},
    )
    places = (
        "%s\n%s\n1\n" % (BEGIN, END),
        "%s\n%s\n2\n" % (BEGIN_CHECKS % "b.yml", END),
        "%s\n%s\n3\n" % (BEGIN_CHECKS % "a.yml", END),
    )
    readme = written("".join(places), specs, tables)
    assert (
        readme.index("`y`") < readme.index("\n2\n") < readme.index("`x`")
        and written(readme, specs, tables) == readme
    )
    # A table that is not between its comments, comments of a file that has no table, and a comment
    # without its end.
    for wrong in (
        "".join(places[:2]),
        "".join(places) + places[1],
        places[0] + BEGIN_CHECKS % "a.yml" + "\n" + places[1],
    ):
        with pytest.raises(ValueError, match="the README "):
            written(wrong, specs, tables)
    with pytest.raises(ValueError, match="the README "):
        written("".join(places), specs, {"a.yml": tables["a.yml"]})


def test_the_keys_of_a_job_file_are_described_once():
    page, found, expected = next(iter(readmes()))
    assert page == KEYS_PAGE and found == expected, "run make docs"
    assert (
        "\n| `worker_gpu` | GPUs (or NPUs) of each worker | a whole number from 0 to 64 | `0` | `4` |\n"
        in found
    )
