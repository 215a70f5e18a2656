"""Modules: who they are for, which platform they need, and the group of those with common options."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
INTERNAL = "trainyard.gpu.attributes.internal"


def documentation(path):
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return next(yaml.safe_load(node.value.value) for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "DOCUMENTATION")


@pytest.fixture(name="modules", scope="module")
def _modules():
    """The documentation of all modules by name."""
    return {path.stem: documentation(path) for path in sorted((ROOT / "plugins/modules").glob("*.py"))}


def of_kind(modules):
    internal = {name for name, doc in modules.items() if INTERNAL in doc["extends_documentation_fragment"]}
    return {"Public": set(modules) - internal, "Internal": internal}


@pytest.mark.parametrize("kind", ["Public", "Internal"])
def test_architecture_lists_the_modules(modules, kind):
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    listed = re.search(r"^- %s: (.*?)(?=^- |^$)" % kind, text, re.MULTILINE | re.DOTALL)
    assert re.findall(r"`(\w+)`", listed.group(1)) == sorted(of_kind(modules)[kind])


@pytest.mark.parametrize("kind", ["Public", "Internal"])
def test_each_module_is_described_once(modules, kind):
    text = (ROOT / "docs/modules.md").read_text(encoding="utf-8")
    section = re.search(r"^## %s modules$(.*?)(?=^## |\Z)" % kind, text, re.MULTILINE | re.DOTALL).group(1)
    rows = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row)) == sorted(of_kind(modules)[kind])


def test_every_module_says_what_it_supports(modules):
    """antsibull-docs and ansible-test accept a module without attributes."""
    text = (ROOT / "plugins/doc_fragments/attributes.py").read_text(encoding="utf-8")
    fragment = yaml.safe_load(re.search(r'DOCUMENTATION = r"""(.*?)"""', text, re.DOTALL).group(1))
    assert set(fragment["attributes"]) == {"check_mode", "diff_mode", "platform"}
    assert fragment["attributes"]["platform"]["support"] == "full"
    assert [name for name, doc in modules.items() if "trainyard.gpu.attributes" not in doc["extends_documentation_fragment"]] == []
    for name, doc in modules.items():
        info = "trainyard.gpu.attributes.info_module" in doc["extends_documentation_fragment"]
        assert info or all("support" in doc["attributes"][attribute] for attribute in ("check_mode", "diff_mode")), name


def test_group_tools_has_the_modules_with_common_options(modules):
    groups = yaml.safe_load((ROOT / "meta/runtime.yml").read_text(encoding="utf-8"))["action_groups"]
    assert groups == {"tools": [name for name, doc in modules.items() if "trainyard.gpu.tool" in doc["extends_documentation_fragment"]]}
    assert set(groups["tools"]) <= of_kind(modules)["Public"]
