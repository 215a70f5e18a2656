"""One test per Molecule scenario: `pytest -k docker_engine` runs one alone."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml
from molecule_runs import LOGS

ROOT = Path(__file__).resolve().parents[2]
EXCEPTIONS = Path(__file__).with_name("check_mode_exceptions.yml")
# Downloads of GB and a compilation each; of the scheduler on Debian 13, of the upgrade of three
# hosts and of virtual machines, more minutes than CI has. Scenario gpu_stack has one driver, and
# leaves Debian's own and NVIDIA's installers to gpu_stack_other_drivers. Scenario cluster builds
# and distributes an image, too, so training_image, which has damaged and refused ones, is left to
# acceptance.
ACCEPTANCE = {
    "ascend",
    "gpu_stack_other_drivers",
    "image_relay",
    "job_container",
    "monitoring",
    "nccl_rebuild",
    "old_python",
    "scheduler_trixie",
    "scheduler_vm",
    "training_image",
    "upgrade",
    "vm",
}


def scenarios():
    for path in sorted(ROOT.glob("molecule/*/molecule.yml")):
        name = path.parent.name
        yield pytest.param(
            name,
            id=name,
            marks=[pytest.mark.scenario] + [pytest.mark.acceptance] * (name in ACCEPTANCE),
        )


def complaints(text, sequence):
    """What Molecule only warns about, and yet means that something was not tested."""
    recap = re.search(r"SCENARIO RECAP\s+\S+\s*:(.*)", text)
    if not recap:
        return ["no scenario recap"]
    found = [
        "%s=%s" % (what, count)
        for what, count in re.findall(
            r"(disabled|skipped|missing|failed)=([1-9]\d*)", recap.group(1)
        )
    ]
    done = re.findall(r"> (\w+)\] Executed: Successful", text)
    found += ["step %s did not run" % step for step in sequence if step not in done]
    found += re.findall(
        r".*(?:Skipping, |\[WARNING\]: (?:Could not match|No inventory|provided hosts list is empty)).*",
        text,
    )
    # A pattern: each match fails the scenario, although pytest exits with 0.
    left_out = r".*\d+ (?:skipped|xfailed)\b.*"  # looked for in order to be refused
    return found + re.findall(left_out, text)


def where_it_broke(text, lines=40):
    """What failed first, and what follows it: a reader of the report often does not have the
    machine with the log.
    """
    found = text.splitlines()

    def numbers(pattern):
        return [number for number, line in enumerate(found) if re.search(pattern, line)]

    # Cleaning up may fail afterwards, for the same reason.
    del found[
        ([number + 1 for number in numbers(r"> \w+\] \W*\w*Executed: Failed")] or [len(found)])[0] :
    ]
    # In tests the first failed one; in plays the last, as side effects and tests have others that
    # they expect.
    tests, plays = (
        numbers(r"^=+ (?:FAILURES|ERRORS) =+$"),
        numbers(r"fatal: |UNREACHABLE!|^\[?ERROR\]?: |Traceback"),
    )
    begin = tests[0] if tests else max(plays[-1] - 3, 0) if plays else -lines
    return "\n".join(line[:2000] for line in found[begin:][:lines])


def exceptions_of(scenario, path=EXCEPTIONS):
    entries = [
        entry
        for entry in yaml.safe_load(path.read_text(encoding="utf-8"))
        if scenario in entry["scenarios"]
    ]
    assert [entry for entry in entries if not entry.get("reason")] == []
    return {task for entry in entries for task in entry["tasks"]}


def check_mode_differences(records, excused):
    """Tasks that say 'changed' in check mode on fresh hosts and not in the run that follows, and
    the other way round.
    """

    def changed(check):
        for record in records:
            if (
                record["playbook"] in ("converge.yml", "site.yml", "shared_storage.yml")
                and record["check"] == check
            ):
                return {(host, task) for host, tasks in record["changed"].items() for task in tasks}
        return set()

    told, done = changed(True), changed(False)
    found = [
        "%s: check mode said that this would change, and it did not: %s" % pair
        for pair in sorted(told - done)
        if pair[1] not in excused
    ]
    found += [
        "%s: changed, and check mode did not say so: %s" % pair
        for pair in sorted(done - told)
        if pair[1] not in excused
    ]
    happened = {task for _host, task in told ^ done}
    return found, excused - happened


def judge(scenario, code, text, records, log=None):
    """Fail for what a run of a scenario says, and for what it only warns of."""
    config = {}
    for path in (
        ROOT / ".config/molecule/config.yml",
        ROOT / "molecule" / scenario / "molecule.yml",
    ):
        config.update((yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get("scenario", {}))
    if code:
        pytest.fail(
            "molecule test -s %s: exit code %d, see %s\n%s"
            % (scenario, code, LOGS / ("%s.log" % (log or scenario)), where_it_broke(text)),
            pytrace=False,
        )
    sequence = [
        step
        for step in config["test_sequence"]
        if not (os.environ.get("KEEP") and step in ("cleanup", "destroy"))
    ]
    assert complaints(text, sequence) == []

    if "check" in sequence or any(record["check"] for record in records):
        differences, unused = check_mode_differences(records, exceptions_of(scenario))
        assert differences == []
        assert unused == set(), "exceptions that no longer happen: delete them"


@pytest.mark.parametrize("scenario", list(scenarios()))
def test_scenario(scenario, molecule_runs):
    judge(scenario, *molecule_runs.result(scenario))
