# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reports as files on the controller: one folder for each, written completely or not at all; and
reports of earlier runs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml
from ansible_collections.trainyard.gpu.plugins.plugin_utils._host_rules import published_checks
from ansible_collections.trainyard.gpu.plugins.plugin_utils._report import Report, ReportError
from ansible_collections.trainyard.gpu.plugins.plugin_utils._role_input import verify_rules

SCHEMA = os.path.join(os.path.dirname(__file__), "report.schema.json")
REPORT = "report.json"
SUSPECT = "suspect.yml"
# Names that ansible-core ignores in a folder of inventories.
NOT_READ = re.compile(
    r"^\.|^(?:host_vars|group_vars|vars_plugins)$|(?:\.pyc|\.pyo|\.swp|\.bak|~|\.rpm|\.md|\.txt|\.rst|\.orig|\.cfg|\.retry)$"
)
_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "integer": int,
    "number": (int, float),
}


def published() -> list[dict[str, Any]]:
    """The published list of checks."""
    return published_checks(verify_rules())


# --- shape --------------------------------------------------------------------------------------------------------------------


def load_schema() -> dict[str, Any]:
    """The JSON Schema of a report."""
    with open(SCHEMA, encoding="utf-8") as opened:
        schema: dict[str, Any] = json.load(opened)
    return schema


def problem_of(
    value: Any, schema: Mapping[str, Any], root: Mapping[str, Any] | None = None, where: str = ""
) -> str:
    """Why the value does not match the schema; '' if it does.

    Supports the part of JSON Schema that report.schema.json uses.
    """
    root = root or schema
    if "$ref" in schema:
        problem = problem_of(value, root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root, where)
        if problem:
            return problem
    if "anyOf" in schema:
        problems = [problem_of(value, inner, root, where) for inner in schema["anyOf"]]
        return "" if "" in problems else problems[0]
    where = where or "the report"
    problem = _problem_of_kind(value, schema, where) or _problem_of_size(value, schema, where)
    if problem:
        return problem
    if isinstance(value, list):
        entries = (
            problem_of(inner, schema.get("items", {}), root, "%s[%d]" % (where, number))
            for number, inner in enumerate(value)
        )
        return next((problem for problem in entries if problem), "")
    if isinstance(value, dict):
        return _problem_of_keys(value, schema, root, where)
    return ""


def _problem_of_kind(value: Any, schema: Mapping[str, Any], where: str) -> str:
    """Why the value is not of the schema's type, or none of its choices."""
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(_is(value, name) for name in types):
        return "%s is %s, but must be of type %s" % (where, _show(value), " or ".join(types))
    allowed = schema.get("enum", [schema["const"]] if "const" in schema else None)
    # True equals 1 in Python, but not in JSON.
    if allowed is None or any(
        value == choice and isinstance(value, bool) == isinstance(choice, bool)
        for choice in allowed
    ):
        return ""
    choices = ", ".join(json.dumps(choice) for choice in allowed)
    return "%s is %s. Allowed: %s" % (where, _show(value), choices)


def _problem_of_size(value: Any, schema: Mapping[str, Any], where: str) -> str:
    """Why a text, a number or a list is out of the schema's limits."""
    if isinstance(value, str) and (
        len(value) < schema.get("minLength", 0) or not re.search(schema.get("pattern", ""), value)
    ):
        expected = "match %s" % schema["pattern"] if "pattern" in schema else "not be empty"
        return "%s is %s, but must %s" % (where, _show(value), expected)
    if _is(value, "number") and not value >= schema.get("minimum", value):
        return "%s is %s, but must be %s or more" % (where, _show(value), schema["minimum"])
    if isinstance(value, list) and len(value) < schema.get("minItems", 0):
        return "%s has %d entries, but must have %d or more" % (
            where,
            len(value),
            schema["minItems"],
        )
    return ""


def _problem_of_keys(
    value: Mapping[str, Any], schema: Mapping[str, Any], root: Mapping[str, Any], where: str
) -> str:
    """Why a dictionary lacks a key or has a wrong one."""
    missing = [name for name in schema.get("required", ()) if name not in value]
    if missing:
        return "%s lacks %s" % (where, ", ".join(missing))
    for name, inner in value.items():
        rule = schema.get("properties", {}).get(name, schema.get("additionalProperties", {}))
        if rule is False:
            return "%s has %s, which is not a known key. Allowed: %s" % (
                where,
                name,
                ", ".join(schema["properties"]),
            )
        path = name if where == "the report" else "%s.%s" % (where, name)
        problem = problem_of(inner, rule, root, path)
        if problem:
            return problem
    return ""


def _is(value: Any, name: str) -> bool:
    """Whether a value is of a type of JSON Schema."""
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[name])


def _show(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


# --- earlier reports ------------------------------------------------------------------------------------------------------------


def read(path: str, schema: Mapping[str, Any]) -> Report:
    """The report in a file, or in the folder of one.

    ReportError: there is none, or it does not match the schema.
    """
    file = os.path.join(path, REPORT) if os.path.isdir(path) else path
    try:
        with open(file, encoding="utf-8") as opened:
            report: Report = json.load(opened)
    except FileNotFoundError as error:
        raise ReportError(
            "%s: no report found. Give a folder that verify.yml has written, or its %s."
            % (path, REPORT)
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(
            "%s cannot be read: %s" % (file, getattr(error, "strerror", None) or error)
        ) from error
    except (ValueError, RecursionError) as error:
        raise ReportError("%s is not a report: it is not JSON (%s)." % (file, error)) from error
    version = report.get("schema_version") if isinstance(report, dict) else None
    if version is not None and version != schema["properties"]["schema_version"]["const"]:
        raise ReportError(
            "%s is a report of schema version %s; this version of the collection reads %d."
            % (file, _show(version), schema["properties"]["schema_version"]["const"])
        )
    problem = problem_of(report, schema)
    if problem:
        raise ReportError("%s is not a report of verify.yml: %s." % (file, problem))
    return report


def difference(report: Report, cluster: str, names: Sequence[str]) -> str:
    """Why a report is of another cluster; '' if it is of this one."""
    if report["cluster"] != cluster:
        return "it is of cluster %s, but this is %s" % (report["cluster"], cluster)
    theirs = [host["name"] for host in report["hosts"]]
    if sorted(theirs) != sorted(names):
        return "its hosts are %s, but these are %s" % (", ".join(theirs), ", ".join(names))
    return ""


def history(
    folder: str, schema: Mapping[str, Any], cluster: str, names: Sequence[str], limit: int
) -> tuple[list[Report], list[str]]:
    """The last reports of this cluster, newest first, and the ignored ones with the reason."""
    reports: list[Report] = []
    passed_over: list[str] = []
    for path in folders(folder):
        if len(reports) == limit:
            break
        try:
            report = read(path, schema)
        except ReportError as error:
            passed_over.append(str(error))
            continue
        if not difference(report, cluster, names):
            reports.append(report)
    return reports, passed_over


def folders(folder: str) -> list[str]:
    """The folders of reports, newest first: their names are times."""
    try:
        names = sorted(os.listdir(folder), reverse=True)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ReportError("%s cannot be read: %s" % (folder, error.strerror)) from error
    return [
        os.path.join(folder, name)
        for name in names
        if not name.startswith(".") and os.path.isfile(os.path.join(folder, name, REPORT))
    ]


# --- the new one ----------------------------------------------------------------------------------------------------------------


def read_as_inventory(folder: str, sources: Iterable[str]) -> str:
    """The inventory source through which Ansible would read files in this folder as inventories, or
    ''.
    """
    folder = os.path.realpath(folder)
    for source in sources:
        root = os.path.realpath(source)
        if os.path.isdir(root) and os.path.commonpath([root, folder]) == root:
            parts = [] if folder == root else os.path.relpath(folder, root).split(os.sep)
            if not any(NOT_READ.search(part) for part in parts):
                return source
    return ""


def write(folder: str, generated: str, files: Mapping[str, str]) -> str:
    """Write the files of one report, by name, into a folder named after its time.

    Returns its path. It is written completely or not at all.
    """
    os.makedirs(folder, mode=0o750, exist_ok=True)
    name = generated.replace(":", "-")
    part = os.path.join(folder, ".%s.%d" % (name, os.getpid()))
    os.mkdir(part, 0o750)
    try:
        for file, text in files.items():
            _write(os.path.join(part, file), text)
        # Two reports of the same second get separate folders.
        for number in range(1, 100):
            path = os.path.join(folder, name if number == 1 else "%s.%02d" % (name, number))
            if not os.path.exists(path):
                os.rename(part, path)
                return path
        raise ReportError("%s has a hundred reports of the same second; remove them" % folder)
    finally:
        if os.path.isdir(part):
            shutil.rmtree(part)


def suspects(path: str) -> list[str]:
    """The hosts that an earlier run has added to group suspect. An unreadable file counts
    as none.
    """
    try:
        with open(path, encoding="utf-8") as opened:
            return [str(name) for name in yaml.safe_load(opened)["suspect"]["hosts"]]
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError):
        return []


def replace(path: str, text: str) -> None:
    """Replace a file."""
    part = "%s.%d.part" % (path, os.getpid())
    _write(part, text)
    os.replace(part, path)


def _write(path: str, text: str) -> None:
    with open(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640), "w", encoding="utf-8"
    ) as opened:
        opened.write(text)
