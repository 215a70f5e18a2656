# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Validation of preflight's files: tables of rules, and additional compatibility data.

Pure functions over parsed YAML.

They are asked twice: of a site's own files when the input is judged, and of every table when the
rules are judged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from jinja2 import Environment, TemplateSyntaxError

from ansible_collections.trainyard.gpu.plugins.module_utils._input_kinds import nearest

__all__ = [
    "ids_with",
    "problem_of_facts",
    "problem_of_rule",
    "problem_of_table",
    "published_checks",
]

REQUIRED = {"id", "severity", "stage", "that", "expected", "found", "source", "fix"}
OPTIONAL = {"for_each", "hosts", "only_warn", "when", "otherwise", "needs"}
# Only for the report of role verify.
PUBLISHED = {
    "title",
    "checked",
    "required",
    "applies_to",
    "procedure",
    "drains",
    "job",
    "needed_by_jobs",
    "logs",
}
TABLE = {"host_rules", "other_checks", "data", "let", "let_once", "when", "otherwise"}
_EXPRESSIONS = ("that", "when", "for_each", "hosts", "only_warn")
_TEXTS = ("expected", "found", "source", "fix", "otherwise")
# For readers of reports and of the roles' READMEs. The rules of a site need none of them.
_WORDS = ("title", "checked", "warns")
_JINJA = Environment()


def _names(words: Iterable[object]) -> str:
    return ", ".join(sorted(str(word) for word in words))


def _unknown_keys(given: Iterable[object], known: Collection[str]) -> str:
    """Return a message about unknown keys, with the likely ones; empty if there are none."""
    messages = []
    for key in sorted(str(key) for key in set(given) - set(known)):
        close = nearest(key, known)
        hint = " (did you mean %s?)" % close if close else ""
        messages.append("unknown key '%s'%s" % (key, hint))
    return ", ".join(messages)


def _bad_template(text: str, is_expression: bool) -> str:
    """Return why Jinja cannot parse a text; empty if it can."""
    try:
        _JINJA.parse("{{ (%s) }}" % text if is_expression else text)
    except TemplateSyntaxError as error:
        return str(error).splitlines()[0]
    return ""


def problem_of_rule(rule: Any, templates: bool = True) -> str:
    """Return what is wrong with a rule, empty for a valid one.

    Without C(templates) its expressions and texts are not parsed.
    """
    if not isinstance(rule, dict):
        return "a rule is not a dictionary: %r" % (rule,)
    if not isinstance(rule.get("id", ""), str):
        problem = "the id is not a text; quote it"
    else:
        problem = _problem_of_keys(rule) or _problem_of_words(rule)
    if templates and not problem:
        problem = _problem_of_templates(rule)
    return "rule %s: %s" % (rule.get("id", "without id"), problem) if problem else ""


def _problem_of_keys(rule: dict[str, Any]) -> str:
    """Return what is wrong with the keys of a rule and with their fixed values."""
    # A rule that is always skipped must give the reason.
    if set(rule) == {"id", "otherwise"}:
        return ""
    missing = REQUIRED - set(rule)
    problems = ["no key %s" % _names(missing)] if missing else []
    unknown = _unknown_keys(rule, REQUIRED | OPTIONAL | PUBLISHED | set(_WORDS))
    problems += [unknown] if unknown else []
    if problems:
        return ", ".join(problems)
    if rule["severity"] not in ("block", "warn") or rule["stage"] not in ("host", "cluster"):
        return "severity must be block or warn, stage must be host or cluster"
    if ("when" in rule) != ("otherwise" in rule):
        return "when and otherwise must be used together"
    return ""


def _problem_of_words(rule: dict[str, Any]) -> str:
    """Return what is wrong with the words of a rule for readers, or with its needs."""
    untold = [
        key
        for key in _WORDS
        if key in rule and (not isinstance(rule[key], str) or not rule[key].strip())
    ]
    if untold:
        return "%s must be a text" % _names(untold)
    if "warns" in rule and "only_warn" not in rule:
        return "warns says when only_warn is true, so they must be used together"
    if not isinstance(rule.get("needs", {}), dict):
        return "needs must be a dictionary of expressions and their reasons"
    return ""


def _problem_of_templates(rule: dict[str, Any]) -> str:
    """Return which expression or text of a rule Jinja cannot parse, and why."""
    needs = rule.get("needs", {})
    expressions = [(key, rule[key]) for key in _EXPRESSIONS if key in rule]
    texts = [(key, rule[key]) for key in _TEXTS if key in rule]
    for entries, is_expression, kind in (
        (expressions, True, "expression"),
        (texts, False, "text"),
        ([("needs", text) for text in needs], True, "expression"),
        ([("needs", text) for text in needs.values()], False, "text"),
    ):
        for key, text in entries:
            bad = _bad_template(str(text), is_expression)
            if bad:
                return "%s is not a Jinja %s: %s" % (key, kind, bad)
    return ""


def _problem_of_names(table: dict[str, Any]) -> str:
    """Return which expression that rules use by name Jinja cannot parse, and why."""
    for key in ("let_once", "let"):
        for name, expression in table.get(key, {}).items():
            bad = _bad_template(str(expression), True)
            if bad:
                return "%s.%s is not a Jinja expression: %s" % (key, name, bad)
    return ""


def problem_of_table(table: Any, templates: bool = True) -> str:
    """Return what is wrong with a file of rules, empty for a valid one.

    Without C(templates) its expressions and texts are not parsed.
    """
    if (
        not isinstance(table, dict)
        or not isinstance(table.get("host_rules"), list)
        or not table["host_rules"]
    ):
        return "it has no list host_rules"
    unknown = _unknown_keys(table, TABLE)
    if unknown:
        return "%s; known are %s" % (unknown, _names(TABLE))
    for key in ("let", "let_once", "data"):
        if not isinstance(table.get(key, {}), dict):
            return "%s is not a dictionary" % key
    problem = _problem_of_names(table) if templates else ""
    if problem:
        return problem
    for rule in table["host_rules"]:
        problem = problem_of_rule(rule, templates)
        if problem:
            return problem
    return ""


def published_checks(table: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the checks of a table whose rules have titles, in the order of the report: id, title,
    checked, stage, required, and applies_to if it has one.

    First those that are reported only in trouble, then the rules, then what other parts of the
    collection check (C(other_checks)).
    """
    others = table.get("other_checks", [])
    trouble = [check for check in others if check.get("applies_to") == "trouble"]
    rows = trouble + table["host_rules"] + [check for check in others if check not in trouble]
    return [
        {
            key: row[key]
            for key in ("id", "title", "checked", "stage", "required", "applies_to", "procedure")
            if key in row
        }
        for row in rows
    ]


def ids_with(table: dict[str, Any], key: str, value: str | None = None) -> list[str]:
    """Return the ids of the rows where a key is true or, given a C(value), has it in its list."""
    rows = table["host_rules"] + table.get("other_checks", [])
    return [row["id"] for row in rows if row.get(key) and (value is None or value in row[key])]


def problem_of_facts(more: Any, facts: dict[str, Any]) -> str:
    """Return what is wrong with a site's compatibility data, which has priority over C(facts);
    empty if nothing is.
    """
    # An empty file adds nothing.
    if more is None:
        return ""
    return _differs(more, facts, "") if isinstance(more, dict) else "it is not a dictionary"


def _differs(more: dict[Any, Any], facts: dict[Any, Any], where: str) -> str:
    """Return what is wrong with a dictionary of a site's data.

    C(where) are the keys that lead to it, with dots.
    """
    for key, value in more.items():
        name = "%s%s" % (where, key)
        if key in facts:
            problem = _problem_of_value(value, facts[key], name)
        else:
            problem = _problem_of_unknown_key(str(key), facts, where)
        if problem:
            return problem
    return ""


def _problem_of_unknown_key(key: str, facts: dict[Any, Any], where: str) -> str:
    """Return what is wrong with a key that the facts do not have.

    Below the first level most keys are data, and only one with a misspelled name is wrong.
    """
    close = nearest(key, [other for other in facts if isinstance(other, str)])
    if close:
        return "unknown key %s%s (did you mean %s%s?)" % (where, key, where, close)
    return "" if where else "unknown key %s; known are %s" % (key, _names(facts))


def _problem_of_value(value: Any, known: Any, name: str) -> str:
    """Return what is wrong with a value in place of a C(known) one."""
    for kind, words in ((dict, "dictionary"), (list, "list"), ((int, float), "number")):
        if isinstance(known, kind) and not isinstance(value, kind):
            return "%s is not a %s" % (name, words)
    if isinstance(known, dict):
        return _differs(value, known, name + ".")
    if isinstance(known, list) and all(isinstance(row, dict) for row in known):
        for number, row in enumerate(value):
            if not isinstance(row, dict):
                return "%s[%d] is not a dictionary" % (name, number)
    return ""
