"""The judge of the scenarios sees what Molecule passes over."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import molecule_runs
from molecule_runs import HostCosts, MoleculeRuns, Pace
from whole_cluster import PlaybookRun

SPEC = importlib.util.spec_from_file_location(
    "scenario_judge", Path(__file__).with_name("test_scenarios.py")
)
judge = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(judge)

STEPS = "".join(
    "INFO     [x > %s] Executed: Successful\n" % step for step in ("create", "converge", "verify")
)
RECAP = "SCENARIO RECAP\nx                     : actions=3  successful=3  disabled=0  skipped=0  missing=0  failed=0\n"


def test_good_run():
    assert judge.complaints(STEPS + RECAP, ["create", "converge", "verify"]) == []


def test_step_that_did_not_run():
    assert judge.complaints(STEPS + RECAP, ["create", "check", "converge", "verify"]) == [
        "step check did not run"
    ]


def test_missing_playbook():
    assert judge.complaints(STEPS + RECAP.replace("missing=0", "missing=1"), ["create"]) == [
        "missing=1"
    ]


def test_no_tests_and_no_recap():
    assert len(judge.complaints(STEPS + "WARNING  Skipping, no tests found.\n" + RECAP, [])) == 1
    assert judge.complaints(STEPS, []) == ["no scenario recap"]


def test_skipped_testinfra_test():
    assert judge.complaints(STEPS + "===== 3 passed, 1 skipped in 2 s =====\n" + RECAP, []) != []


def test_seconds_of_each_step():
    pace = Pace(100.0)
    for now, line in (
        (110.0, "INFO     [x > create] Executed: Successful\n"),
        (115.0, "TASK [Wait]\n"),
        (131.5, "INFO     [x > verify] Executed: Failed\n"),
        (131.6, "x > verify: Executed: Failed\n"),
        (140.0, "INFO     [x > create] Executed: Successful\n"),
    ):
        pace.take(line, now)
    assert pace.told(90.0) == "  10 s to   50 s: create 18, verify 21"


def test_seconds_of_hosts_are_those_before_their_end(monkeypatch):
    """A host that was created again counts from zero. The last step has no host."""
    found = [{}, {"1": 20.0, "2": 5.0}, {"1": 30.0, "3": 7.0}, {}]
    monkeypatch.setattr(molecule_runs, "hosts_of", lambda _scenario: list(found[0]))
    monkeypatch.setattr(molecule_runs, "seconds_of_container", lambda name: found[0][name])
    hosts = HostCosts("x")
    while found:
        hosts.take("TASK [Wait]\n")
        hosts.take("INFO     [x > verify] Executed: Successful\n")
        del found[0]
    assert hosts.sum() == 42.0


def test_report_shows_where_it_broke_and_else_the_end():
    lines = ["line %d" % number for number in range(100)]
    assert judge.where_it_broke("\n".join(lines)) == "\n".join(lines[60:])
    # A failure that a side effect expects, the one that ended the step, and the same again while it
    # was cleaned up.
    lines[20] = lines[50] = lines[70] = "fatal: [x-a]: UNREACHABLE! => {}"
    lines[55] = "ERROR    [x > converge] \x1b[31mExecuted: Failed\x1b[0m"
    assert judge.where_it_broke("\n".join(lines)) == "\n".join(lines[47:56])
    # A play that a test expects to fail is no reason.
    lines[52] = "=========== FAILURES ==========="
    assert judge.where_it_broke("\n".join(lines)) == "\n".join(lines[52:56])


def test_failed_run_of_a_playbook_shows_its_last_errors():
    text = "TASK [Read]\nfatal: [a]: FAILED! => {}\n[ERROR]: Task failed: not this one\nok: [b]\n[ERROR]: Task failed: bandwidth-host\nfatal: [b]: FAILED! => {}\n"
    assert (
        repr(PlaybookRun(code=2, text=text, seconds=61.2))
        == "exit code 2 after 61 s\n[ERROR]: Task failed: bandwidth-host\nfatal: [b]: FAILED! => {}"
    )
    assert repr(PlaybookRun(code=0, text="ok: [a]\n", seconds=3.0)) == "exit code 0 after 3 s"


def test_scenario_has_the_environment_of_the_run_not_of_a_unit_test_beside_it(
    tmp_path, monkeypatch
):
    given = []
    monkeypatch.setenv("PYTEST_ADDOPTS", "--basetemp /nowhere")
    scenarios = MoleculeRuns([], tmp_path, False, print)
    monkeypatch.setattr(
        scenarios,
        "stream",
        lambda name, command, environment, hosts: given.append(environment) or (0, ""),
    )
    former = os.environ["PATH"]
    monkeypatch.setenv("PATH", "/nowhere")
    scenarios.judged("x")
    assert given[0]["PATH"].endswith(":" + former) and "PYTEST_ADDOPTS" not in given[0]


def runs(told, done):
    return [
        {"playbook": "converge.yml", "check": True, "changed": {"a": told}},
        {"playbook": "converge.yml", "check": False, "changed": {"a": done}},
    ]


def test_check_mode_tells_the_truth():
    assert judge.check_mode_differences(runs(["install"], ["install"]), set()) == ([], set())


def test_check_mode_that_lies():
    found, _unused = judge.check_mode_differences(
        runs(["install", "never"], ["install", "start"]), set()
    )
    assert [line.rpartition(": ")[2] for line in found] == ["never", "start"]


def test_exceptions_have_to_happen():
    assert judge.check_mode_differences(runs([], ["start"]), {"start", "gone"}) == ([], {"gone"})


def test_files_of_other_scenarios_exist():
    """CI does not run the scenarios of make acceptance, so a file that was moved is noticed
    here.
    """
    root = Path(__file__).resolve().parents[2]
    # A single "../": two of them lead out of the scenarios.
    named = {
        (path, name)
        for path in root.glob("molecule/*/*.yml")
        for name in re.findall(
            r"(?<!\.\./)\.\./([a-z_]+/[\w./-]+)", path.read_text(encoding="utf-8")
        )
    }
    assert (
        named
        and sorted(
            "%s: %s" % (path.relative_to(root), name)
            for path, name in named
            if not (root / "molecule" / name).exists()
        )
        == []
    )
