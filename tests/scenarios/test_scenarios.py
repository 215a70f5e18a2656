"""One test per Molecule scenario: `pytest -k docker_engine` runs one alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
LOGS = ROOT / ".cache/logs"
# Several GB of CUDA packages and a second compile.
ACCEPTANCE = {"nccl_rebuild"}


def scenarios():
    for path in sorted(ROOT.glob("molecule/*/molecule.yml")):
        name = path.parent.name
        yield pytest.param(name, id=name, marks=[pytest.mark.scenario] + [pytest.mark.acceptance] * (name in ACCEPTANCE))


def molecule(scenario, record, capsys, acceptance):
    """Run a scenario; its lines are on the terminal while it runs, and in a log. Returns exit code and text."""
    environment = dict(os.environ, PATH="%s:%s" % (BIN, os.environ["PATH"]), TRAINYARD_RUNS=str(record), PYTHONUNBUFFERED="1",
                       ANSIBLE_NOCOLOR="1", NO_COLOR="1", COLUMNS="160", TRAINYARD_ACCEPTANCE="1" if acceptance else "")
    LOGS.mkdir(parents=True, exist_ok=True)
    command = [str(BIN / "molecule"), "test", "--scenario-name", scenario]
    if os.environ.get("KEEP"):
        command += ["--destroy", "never"]
    text = []
    with capsys.disabled(), open(LOGS / ("%s.log" % scenario), "w", encoding="utf-8") as log:
        print("\n%s (log: %s)" % (" ".join(command[1:]), log.name), flush=True)
        with subprocess.Popen(command, cwd=ROOT, env=environment, text=True, errors="replace", stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            for line in process.stdout:
                log.write(line)
                log.flush()
                print(line, end="", flush=True)
                text.append(line)
    return process.returncode, "".join(text)


def complaints(text, sequence):
    """What Molecule only warns about, and yet means that something was not tested."""
    recap = re.search(r"SCENARIO RECAP\s+\S+\s*:(.*)", text)
    if not recap:
        return ["no scenario recap"]
    found = ["%s=%s" % (what, count) for what, count in re.findall(r"(disabled|skipped|missing|failed)=([1-9]\d*)", recap.group(1))]
    done = re.findall(r"> (\w+)\] Executed: Successful", text)
    found += ["step %s did not run" % step for step in sequence if step not in done]
    found += re.findall(r".*(?:Skipping, |\[WARNING\]: (?:Could not match|No inventory|provided hosts list is empty)).*", text)
    found += re.findall(r".*\d+ (?:skipped|xfailed)\b.*", text)
    return found


def exceptions_of(scenario, path=Path(__file__).with_name("check_mode_exceptions.yml")):
    entries = [entry for entry in yaml.safe_load(path.read_text(encoding="utf-8")) if scenario in entry["scenarios"]]
    assert [entry for entry in entries if not entry.get("reason")] == []
    return {task for entry in entries for task in entry["tasks"]}


def check_mode_differences(records, excused):
    """Tasks that say «changed» in check mode on fresh hosts and not in the run that follows, and the other way round."""
    def changed(check):
        for record in records:
            if record["playbook"] in ("converge.yml", "site.yml") and record["check"] == check:
                return {(host, task) for host, tasks in record["changed"].items() for task in tasks}
        return set()

    told, done = changed(True), changed(False)
    found = ["%s: check mode said that this would change, and it did not: %s" % pair for pair in sorted(told - done) if pair[1] not in excused]
    found += ["%s: changed, and check mode did not say so: %s" % pair for pair in sorted(done - told) if pair[1] not in excused]
    happened = {task for _host, task in told ^ done}
    return found, excused - happened


@pytest.mark.parametrize("scenario", list(scenarios()))
def test_scenario(scenario, tmp_path, capsys, request):
    config = {}
    for path in (ROOT / ".config/molecule/config.yml", ROOT / "molecule" / scenario / "molecule.yml"):
        config.update((yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get("scenario", {}))
    record = tmp_path / "runs.jsonl"
    acceptance = "not acceptance" not in request.config.getoption("-m")
    code, text = molecule(scenario, record, capsys, acceptance)
    if code:
        pytest.fail("molecule test -s %s: exit code %d, see %s" % (scenario, code, LOGS / ("%s.log" % scenario)), pytrace=False)
    sequence = [step for step in config["test_sequence"] if not (os.environ.get("KEEP") and step in ("cleanup", "destroy"))]
    assert complaints(text, sequence) == []

    records = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
    if "check" in sequence:
        differences, unused = check_mode_differences(records, exceptions_of(scenario))
        assert differences == []
        assert unused == set(), "exceptions that no longer happen: delete them"
