"""Writes the tables of variables and of checks in roles/*/README.md from the files in meta, and the
keys of job files in docs/shared-cluster.md: make docs
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "roles/jobs/files"))
import _job_file

BEGIN = "<!-- Written by `make docs` from meta/argument_specs.yml, where the descriptions are. -->"
BEGIN_CHECKS = "<!-- Written by `make docs` from meta/%s, where the words of each check are. -->"
BEGIN_KEYS = "<!-- Written by `make docs` from roles/jobs/files/_job_file.py, where the words of each key are. -->"
KEYS_PAGE = ROOT / "docs/shared-cluster.md"
END = "<!-- End of what `make docs` writes. -->"
# A default that cannot be shown as a value is told by a paragraph that begins with these words.
IN_WORDS = "The default is "
LONGEST_DEFAULT = 100
# Variables, options and files in the words of a check, which have no markup because reports of
# verify show them too.
CODE = re.compile(
    r"(?<![\w/.-])(?:--?[a-z][\w-]*|[a-z0-9]+(?:_[a-z0-9]+)+|[\w/-]+\.(?:json|yml))(?!\w)"
)


def plain(text):
    """Return text with Ansible's markup as Markdown for a cell of a table."""
    text = re.sub(
        r"\b[CVOM]\(((?:\\.|[^\\)])*)\)",
        lambda found: "`%s`" % re.sub(r"\\(.)", r"\1", found.group(1)),
        " ".join(text.split()),
    )
    text = "".join(
        part if part.startswith("`") else part.replace("<", "&lt;").replace("*", r"\*")
        for part in re.split("(`[^`]*`)", text)
    )
    return text.replace("|", r"\|")


def paragraphs(option):
    described = option["description"]
    return [described] if isinstance(described, str) else described


def value(default):
    """Return a default as YAML in one line, or an empty string if it contains an expression or is
    too long to be read in a table.
    """
    shown = yaml.safe_dump(
        default, default_flow_style=True, sort_keys=False, width=10000, allow_unicode=True
    ).split("\n")[0]
    if isinstance(default, str) and shown[:1] in "'\"":
        shown = json.dumps(default, ensure_ascii=False)
    return "" if "{{" in shown or len(shown) > LONGEST_DEFAULT else shown


def default_of(name, option, nested):
    """Return (cell, whether a paragraph of the description is that cell)."""
    if option.get("required"):
        return "required", False
    if option.get("default") is not None and value(option["default"]):
        return "`%s`" % value(option["default"]).replace("|", r"\|"), False
    told = [text for text in paragraphs(option) if text.startswith(IN_WORDS)]
    if len(told) == 1:
        return plain(told[0])[len(IN_WORDS) :].rstrip("."), True
    if nested and "default" not in option:
        return "not set", False
    raise ValueError(
        "%s: a paragraph of its description must begin with '%s', because the default is no value that a table can show"
        % (name, IN_WORDS)
    )


def rows(options, prefix=""):
    for name, option in options.items():
        name = prefix + name
        default, in_words = default_of(name, option, bool(prefix))
        told = [text for text in paragraphs(option) if not (in_words and text.startswith(IN_WORDS))]
        unnamed = [
            choice for choice in option.get("choices", []) if "V(%s)" % choice not in " ".join(told)
        ]
        if unnamed:
            told.append(
                "Choices: %s." % ", ".join("V(%s)" % choice for choice in option["choices"])
            )
        kind = "list of %s" % option["elements"] if option["type"] == "list" else option["type"]
        yield "| `%s` | %s | %s | %s |" % (name, kind, default, plain(" ".join(told)))
        yield from rows(
            option.get("options", {}), name + ("[]." if option["type"] == "list" else ".")
        )


def section(specs):
    """Return what stands between BEGIN and END."""
    lines, own = [], specs["main"].get("options", {})
    for entry, spec in specs.items():
        options = {
            name: option
            for name, option in spec.get("options", {}).items()
            if entry == "main" or name not in own
        }
        if entry != "main" and spec.get("options"):
            as_above = ", ".join("`%s`" % name for name in spec["options"] if name in own)
            lines += [
                "",
                "`tasks_from: %s` (%s)%s:"
                % (
                    entry,
                    plain(spec["short_description"]),
                    " takes %s" % as_above if as_above else "",
                ),
            ]
            if not options:
                lines[-1] = lines[-1][:-1] + "."
        if options:
            lines += [
                "",
                "| Variable | Type | Default | Description |",
                "|---|---|---|---|",
                *rows(options),
            ]
    return "\n".join(lines[1:])


def check_rows(table):
    """Return the rows of a table of checks, in the order in which verify reports them."""
    others = table.get("other_checks", [])
    trouble = [check for check in others if check.get("applies_to") == "trouble"]
    for check in (
        trouble + table["host_rules"] + [check for check in others if check not in trouble]
    ):
        if set(check) == {"id", "otherwise"}:
            yield "| `%s` | - | Skipped: %s. |" % (
                check["id"],
                plain(CODE.sub(r"`\g<0>`", check["otherwise"])),
            )
            continue
        for key, is_needed in (("checked", True), ("warns", "only_warn" in check)):
            if is_needed and key not in check:
                raise ValueError(
                    "check %s: no key %s, which the README shows. Add it to the row"
                    % (check["id"], key)
                )
        severity = (
            "%s; warn %s" % (check["severity"], check["warns"])
            if "warns" in check
            else check["severity"]
        )
        yield "| `%s` | %s | %s |" % (
            check["id"],
            *(plain(CODE.sub(r"`\g<0>`", text)) for text in (severity, check["checked"])),
        )


def checks_section(table):
    return "\n".join(["| ID | Severity | Requirement |", "|---|---|---|", *check_rows(table)])


def rule_tables(folder):
    """Return the tables of checks in a folder meta by the name of their file."""
    tables = {
        path.name: yaml.safe_load(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("*.yml"))
    }
    return {
        name: table
        for name, table in tables.items()
        if isinstance(table, dict) and "host_rules" in table
    }


def between(readme, begin, text):
    """Return a README with this text between a comment and the next END."""
    head, found, rest = readme.partition(begin)
    former, end, tail = rest.partition(END)
    if not found or not end or begin in tail or "<!-- Written by" in former:
        raise ValueError(
            "the README needs the two comments '%s' and '%s' in this order, once each"
            % (begin, END)
        )
    return "%s%s\n\n%s\n\n%s%s" % (head, begin, text, END, tail)


def written(readme, specs, tables=None):
    """Return the text of a README with the tables of these specs and of these checks."""
    tables = tables or {}
    readme = between(readme, BEGIN, section(specs))
    for name, table in tables.items():
        readme = between(readme, BEGIN_CHECKS % name, checks_section(table))
    if readme.count(END) != 1 + len(tables):
        raise ValueError("the README has '%s' without a comment before it that names a file" % END)
    return readme


def keys_section() -> str:
    """Return the table of the keys of a job file."""
    lines = ["| Key | Meaning | Values | Default | Example |", "|---|---|---|---|---|"]
    for key in _job_file.TABLE:
        default = "required" if key.default is None else "`%s`" % key.default if key.default else ""
        cells = (key.name, plain(key.doc), plain(key.accepts.allowed), default, plain(key.example))
        lines.append("| `%s` | %s | %s | %s | `%s` |" % cells)
    return "\n".join(lines)


def readmes():
    """Yield (path of a page, its text, the text that it should have)."""
    text = KEYS_PAGE.read_text(encoding="utf-8")
    yield KEYS_PAGE, text, between(text, BEGIN_KEYS, keys_section())
    for path in sorted((ROOT / "roles").glob("*/README.md")):
        text = path.read_text(encoding="utf-8")
        specs = yaml.safe_load(
            (path.parent / "meta/argument_specs.yml").read_text(encoding="utf-8")
        )["argument_specs"]
        yield path, text, written(text, specs, rule_tables(path.parent / "meta"))


if __name__ == "__main__":
    for readme, former, new in list(readmes()):
        if new != former:
            readme.write_text(new, encoding="utf-8")
            print("written: %s" % readme.relative_to(ROOT))
