"""One test per Molecule scenario: `pytest -k docker_engine` runs one alone."""

from __future__ import annotations

import concurrent.futures
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
# They compile on all cores, and cluster judges seconds.
ALONE = {"cluster", "nccl_rebuild"}


def scenarios():
    for path in sorted(ROOT.glob("molecule/*/molecule.yml")):
        name = path.parent.name
        yield pytest.param(name, id=name, marks=[pytest.mark.scenario] + [pytest.mark.acceptance] * (name in ACCEPTANCE))


def molecule(scenario, record, acceptance, tell):
    """Run a scenario; every line is told while it runs, and stands in a log. Returns exit code and text."""
    environment = dict(os.environ, PATH="%s:%s" % (BIN, os.environ["PATH"]), TRAINYARD_RUNS=str(record), PYTHONUNBUFFERED="1",
                       ANSIBLE_NOCOLOR="1", NO_COLOR="1", COLUMNS="160", TRAINYARD_ACCEPTANCE="1" if acceptance else "")
    LOGS.mkdir(parents=True, exist_ok=True)
    command = [str(BIN / "molecule"), "test", "--scenario-name", scenario]
    if os.environ.get("KEEP"):
        command += ["--destroy", "never"]
    text = []
    with open(LOGS / ("%s.log" % scenario), "w", encoding="utf-8") as log:
        tell("%s (log: %s)\n" % (" ".join(command[1:]), log.name))
        with subprocess.Popen(command, cwd=ROOT, env=environment, text=True, errors="replace", stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            for line in process.stdout:
                log.write(line)
                log.flush()
                tell(line)
                text.append(line)
    return process.returncode, "".join(text)


@pytest.fixture(name="finished", scope="session")
def fixture_finished(request, tmp_path_factory):
    """Returns, of a scenario: exit code, text, and what the callback has recorded. Two run side by side: most of a scenario is one host's waiting for
    another. Where seconds are judged a scenario runs alone: conftest.py has it come last."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        terminal = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", errors="replace", buffering=1)
    records = tmp_path_factory.mktemp("runs")
    acceptance = "not acceptance" not in request.config.getoption("-m")

    def run(scenario):
        prefix = "" if scenario in ALONE else "%s | " % scenario
        record = records / ("%s.jsonl" % scenario)
        code, text = molecule(scenario, record, acceptance, lambda line: terminal.write(prefix + line))
        return code, text, [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()] if record.exists() else []

    asked = [item.callspec.params["scenario"] for item in request.session.items if "scenario" in getattr(item, "fixturenames", ())]
    terminal.write("\n")
    pool = concurrent.futures.ThreadPoolExecutor(2)
    running = {scenario: pool.submit(run, scenario) for scenario in asked if scenario not in ALONE}
    yield lambda scenario: run(scenario) if scenario in ALONE else running[scenario].result()
    pool.shutdown(cancel_futures=True)
    terminal.close()


def complaints(text, sequence):
    """What Molecule only warns about, and yet means that something was not tested."""
    recap = re.search(r"SCENARIO RECAP\s+\S+\s*:(.*)", text)
    if not recap:
        return ["no scenario recap"]
    found = ["%s=%s" % (what, count) for what, count in re.findall(r"(disabled|skipped|missing|failed)=([1-9]\d*)", recap.group(1))]
    done = re.findall(r"> (\w+)\] Executed: Successful", text)
    found += ["step %s did not run" % step for step in sequence if step not in done]
    found += re.findall(r".*(?:Skipping, |\[WARNING\]: (?:Could not match|No inventory|provided hosts list is empty)).*", text)
    # A search pattern, and each line that it finds fails the scenario: pytest itself ends green when it has left tests out.
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
def test_scenario(scenario, finished):
    config = {}
    for path in (ROOT / ".config/molecule/config.yml", ROOT / "molecule" / scenario / "molecule.yml"):
        config.update((yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get("scenario", {}))
    code, text, records = finished(scenario)
    if code:
        pytest.fail("molecule test -s %s: exit code %d, see %s" % (scenario, code, LOGS / ("%s.log" % scenario)), pytrace=False)
    sequence = [step for step in config["test_sequence"] if not (os.environ.get("KEEP") and step in ("cleanup", "destroy"))]
    assert complaints(text, sequence) == []

    if "check" in sequence:
        differences, unused = check_mode_differences(records, exceptions_of(scenario))
        assert differences == []
        assert unused == set(), "exceptions that no longer happen: delete them"
