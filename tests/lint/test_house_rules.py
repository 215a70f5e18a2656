"""What nobody may commit, whatever the linters think of it."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _hardware

ROOT = Path(__file__).resolve().parents[2]

# What is looked for in order to be refused: no line here skips or masks anything itself.
FORBIDDEN = {
    "masks a failure": r"\bignore_errors\b *:|\bfailed_when: *false\b",
    "buys a linter off": r"# *noqa\b|skip_list *:|pylint: *disable",
    "asserts nothing": r"^\s*that: *true\s*$|\bassert True\b",
    "is not finished": r"\b(TODO|FIXME|XXX)\b",
    "skips a test": r"\bmark\.(xfail|skip)|\bpytest\.(xfail|skip|importorskip)\(",  # a pattern: a file that matches fails this test
    # ansible-core makes sets of them, whose order differs in every run: texts and checksums would
    # differ. unique, select and reject keep it.
    "has no order": r"\| *(union|difference|intersect|symmetric_difference)\(",
    # Packages are taken by signature or by checksum. Written apart, so that this line does not find
    # itself.
    "trusts any package source": r"trusted="
    "yes|allow-un"
    "authenticated|AllowInsecure"
    "Repositories",
    "trusts any host": r"host_key_checking *= *[Ff]alse|StrictHostKeyChecking[= ]no\b",
}
IN_COMMENTS = {"buys a linter off", "is not finished"}
TEXT = {".py", ".yml", ".md", ".cfg", ".toml", ".txt", ".sh", ".j2", ""}


def committed():
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    for name in sorted(set(listed.split("\0"))):
        path = ROOT / name
        if (
            name
            and path.is_file()
            and path.suffix in TEXT
            and not name.startswith(("tests/fixtures/", ".dev/"))
            and name != "LICENSE"
        ):
            yield name, path.read_text(encoding="utf-8", errors="replace")


def test_what_runs_on_hosts_is_python_3_8():
    """The oldest Python that preflight lets pass; here everything is run by a newer one."""
    for name, text in committed():
        if re.match(r"(plugins/(modules|module_utils)|roles/[^/]+/files)/.*\.py$", name):
            ast.parse(text, name, feature_version=(3, 8))


@pytest.mark.parametrize("what", FORBIDDEN)
def test_nothing_committed(what):
    found = []
    for name, text in committed():
        if name == "tests/lint/test_house_rules.py" or name.endswith(".md"):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            # A comment may name what the code does not do; only a linter obeys comments.
            if re.search(FORBIDDEN[what], line) and (
                what in IN_COMMENTS or not line.lstrip().startswith("#")
            ):
                found.append("%s:%d: %s" % (name, number, line.strip()))
    assert not found


def test_no_run_of_apt_lets_needrestart_restart_services():
    """On Ubuntu 24.04 the hook of apt restarts the training container, and on 22.04 it asks."""
    found = []
    for name, text in committed():
        if not re.match(r"(roles/[^/]+/tasks|playbooks|plugins/modules)/", name):
            continue
        for part in re.split(r"\n(?= *- name: )", text):
            if "ansible.builtin.apt:" in part and 'NEEDRESTART_SUSPEND: "1"' not in part:
                found.append("%s: %s" % (name, part.strip().splitlines()[0]))
        # A simulation and the other programs of apt have no hook.
        runs = re.search(r'"apt-get"', text) and not re.search(r'"apt-get",\s+"--simulate"', text)
        if name.endswith(".py") and runs and "APT_ENVIRONMENT" not in text:
            found.append(name)
    assert found == []


def test_plugins_carry_the_licence():
    for path in (ROOT / "plugins").glob("**/*.py"):
        head = path.read_text(encoding="utf-8")[:600]
        if head.strip():
            assert (
                "GNU General Public License v3.0+" in head
                and "SPDX-License-Identifier: GPL-3.0-or-later" in head
            ), path


def test_only_yml():
    assert [
        name
        for name, text in committed()
        if name.endswith(".yaml") and not name.startswith("changelogs/")
    ] == []


def test_each_fixture_has_a_row_of_its_index():
    """Where an output was recorded is in INDEX.tsv.

    A row without its file claims a test that is not there.
    """
    for index in ROOT.glob("tests/fixtures/*/INDEX.tsv"):
        rows = [line.split("\t")[0] for line in index.read_text(encoding="utf-8").splitlines()]
        files = [
            str(path.relative_to(index.parent))
            for path in index.parent.rglob("*")
            if path.is_file() and path.name not in ("INDEX.tsv", "README.md")
        ]
        assert rows[0] == "path" and sorted(rows[1:]) == sorted(files), index


# --- what each check costs, where its threshold is from, and what no test has proved ----------------------------------------------


def tables_of_costs(role):
    """The tables of a README with a column of costs: by check its cells, by the title of the
    column.
    """
    found, titles = {}, []
    for line in (ROOT / "roles" / role / "README.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if not line.startswith("|"):
            titles = []
        elif cells[0] == "Check" and "Costs" in cells:
            titles = cells
        elif titles and not line.startswith("|---"):
            for check in re.findall(r"`([a-z-]+)`", cells[0]):
                assert check not in found, check
                found[check] = dict(zip(titles, [*cells, ""], strict=False))
    return found


def checks_of_health_program():
    """The IDs that P(problems) of the health program puts together."""
    path = ROOT / "roles/job_container/files/health.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parts = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    of_cards = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "OF_CARDS"
    )
    starred = [node for node in ast.walk(parts["problems"]) if isinstance(node, ast.Starred)]
    # The checks of cards, and those of the fabric. Others must be read here, too.
    assert len(starred) == 2
    pairs = [node.elts for node in ast.walk(parts["problems"]) if isinstance(node, ast.Tuple)]
    fabric = [node.keys for node in ast.walk(parts["judge_fabric"]) if isinstance(node, ast.Dict)]
    firsts = [pair[0] for pair in pairs] + [key for keys in fabric for key in keys]
    constants = [node for node in [*firsts, *of_cards.elts] if isinstance(node, ast.Constant)]
    return {node.value for node in constants}


def rules_of_verify():
    text = (ROOT / "roles/verify/meta/rules.yml").read_text(encoding="utf-8")
    tables = yaml.safe_load(text)
    return [rule for table in tables.values() if isinstance(table, list) for rule in table]


def checks_with_costs():
    rules = rules_of_verify()
    burn_in = {rule["id"] for rule in rules if rule["id"].startswith("burn-in-")}
    # What is read of the kernel's files about buses, cards and memory.
    hardware = {rule["id"] for rule in rules if "/sys" in str(rule.get("source", ""))}
    hardware |= {"ib-ports", "fabric-errors"}
    return {
        "burn_in": burn_in,
        "job_container": checks_of_health_program(),
        "verify": hardware | set(_hardware._CHECKS),
    }


@pytest.mark.parametrize("owner", ["burn_in", "job_container", "verify"])
def test_each_check_says_what_it_costs_and_where_its_threshold_is_from(owner):
    table = tables_of_costs(owner)
    assert set(table) == checks_with_costs()[owner]
    for check, cells in table.items():
        sources = [text for title, text in cells.items() if "ource" in title]
        assert cells["Costs"] and sources and all(sources), check
        assert "Not proved by a test" in cells
