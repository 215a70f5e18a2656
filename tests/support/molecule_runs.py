"""Molecule as a user calls it, several scenarios side by side."""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from cpu_costs import COSTS, hosts_of, seconds_of_container

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
LOGS = ROOT / ".cache/logs"
# They fill all cores for long: with compilers, or with virtual machines.
ALONE = {"nccl_rebuild", "scheduler_vm", "vm"}
# Most of a scenario is one host's waiting for another, so more than one fits on a core, beside the
# unit tests. Four on two slow cores were too slow for the time limits of their tests.
SIDE_BY_SIDE = 3
LONGEST_FIRST = [
    "cluster",
    "workbench",
    "scheduler",
    "gpu_stack",
    "training_image",
    "training_container",
    "docker_engine",
]
# Scenarios of which some tests judge seconds: they run beside the others, and these tests wait for
# `quiet`.
WAITING = {"cluster"}
BUSY = ROOT / ".cache/busy"
STEP_ENDS = re.compile(r"\[\w+ > (\w+)\] Executed: ")
# They get the cores that cluster, which takes longest, leaves: as their hosts do, see
# molecule/shared/create.yml. `nice` doesn't do: each worker of Ansible is a session, and the
# kernel's autogroups weigh sessions alike. Where the machine has cgroup v2 they run without it.
ASIDE = Path("/sys/fs/cgroup/cpu/trainyard-tests")
ASIDE_SHARES = 128


@contextlib.contextmanager
def quiet():
    """Wait until no scenario runs that doesn't wait itself."""
    BUSY.parent.mkdir(exist_ok=True)
    with open(BUSY, "a", encoding="utf-8") as busy:
        fcntl.flock(busy, fcntl.LOCK_SH)
        yield


def ticks():
    """What the cores have done since the machine started, in ticks: worked, idled, waited for the
    machine's own host.
    """
    user, nice, system, idle, waited, interrupts, soft, stolen = map(
        int, Path("/proc/stat").read_text(encoding="ascii").split()[1:9]
    )
    return user + nice + system + interrupts + soft, idle + waited, stolen


def cores_between(before, after):
    """As a line of the report. It tells a slow machine from tests that wait."""
    worked, idle, stolen = (now - then for then, now in zip(before, after, strict=True))
    return (
        "%d cores: worked %d CPU seconds, which is %d%% of the time, idle %d%%, without a core of the machine's host %d%%"
        % (
            os.cpu_count(),
            worked / os.sysconf("SC_CLK_TCK"),
            *(
                round(100 * part / max(worked + idle + stolen, 1))
                for part in (worked, idle, stolen)
            ),
        )
    )


class Pace:
    """Where the minutes of a scenario went: the seconds of each of its steps, in the order in which
    they ended.
    """

    def __init__(self, now):
        self.begun = self.last = now
        self.steps = {}

    def take(self, line, now):
        ended = STEP_ENDS.search(line)
        if ended:
            self.steps[ended.group(1)] = self.steps.get(ended.group(1), 0) + now - self.last
            self.last = now

    def told(self, since):
        """As a line of the report; C(since) is when the test run began."""
        steps = ", ".join(
            "%s %d" % (name, seconds) for name, seconds in self.steps.items() if seconds >= 1
        )
        return "%4d s to %4d s%s" % (
            self.begun - since,
            self.last - since,
            ": " + steps if steps else "",
        )


class HostCosts:
    """CPU seconds of a scenario's hosts.

    They are read at the end of each step, because the last one removes the hosts.
    """

    def __init__(self, scenario: str) -> None:
        self.scenario, self.found = scenario, {}

    def take(self, line: str) -> None:
        if STEP_ENDS.search(line):
            for identifier in hosts_of(self.scenario):
                seconds = seconds_of_container(identifier)
                self.found[identifier] = max(seconds, self.found.get(identifier, 0.0))

    def sum(self) -> float:
        return sum(self.found.values())


class MoleculeRuns:
    """Starts the scenarios that may run side by side at once, and each of the others when its
    result is needed.
    """

    def __init__(self, asked, records, acceptance, tell):
        self.records, self.acceptance, self.tell = records, acceptance, tell
        self.begun, self.pace, self.ticks = time.monotonic(), {}, ticks()
        # As it is now: unit tests that give themselves another PATH run beside the scenarios'
        # start. Options of this pytest are not those of the scenarios' own: --basetemp would have
        # each of them empty the same folder, and this one's.
        self.environment = {
            name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"
        }
        self.pool = concurrent.futures.ThreadPoolExecutor(SIDE_BY_SIDE)
        # The hosts' image and what else takes minutes on a new machine.
        self.prepared = self.prepare("prepare") if asked else None
        together = sorted(
            set(asked) - ALONE, key=lambda name: ((LONGEST_FIRST + [name]).index(name), name)
        )
        self.loud, self.busy = set(together) - WAITING, None
        self.aside = set(self.loud) if WAITING & set(together) and ASIDE.parent.is_dir() else set()
        if self.aside:
            ASIDE.mkdir(exist_ok=True)
            (ASIDE / "cpu.shares").write_text(str(ASIDE_SHARES), encoding="utf-8")
        if self.loud:
            BUSY.parent.mkdir(exist_ok=True)
            # The lock goes with this process, however it ends.
            self.busy = open(BUSY, "a", encoding="utf-8")
            fcntl.flock(self.busy, fcntl.LOCK_EX)
        self.running = {scenario: self.pool.submit(self.run, scenario) for scenario in together}
        # While the last of them run.
        self.prepared_virtual = (
            self.prepare("prepare-virtual", "--virtual") if "vm" in asked else None
        )

    def prepare(self, name, *arguments):
        return self.pool.submit(
            self.stream,
            name,
            [sys.executable, "-u", "lab/lab.py", "prepare", *arguments],
            self.environment,
        )

    def result(self, scenario):
        """Exit code, text, and what the callback has recorded of a scenario."""
        return self.run(scenario) if scenario in ALONE else self.running[scenario].result()

    def again(self, scenario, name, **environment):
        """The same of one more run, with these variables, after the scenario's own run: its hosts
        have the same names.
        """
        if scenario in self.running:
            self.running[scenario].result()
        arguments = ("--virtual",) if scenario == "vm" else ()
        code, text = self.stream(
            "prepare", [sys.executable, "-u", "lab/lab.py", "prepare", *arguments], self.environment
        )
        return (code, text, []) if code else self.judged(scenario, name, **environment)

    def end(self):
        self.pool.shutdown(cancel_futures=True)

    def run(self, scenario):
        try:
            code, text = (self.prepared_virtual if scenario == "vm" else self.prepared).result()
            return (code, text, []) if code else self.judged(scenario)
        finally:
            self.loud.discard(scenario)
            if self.busy and not self.loud:
                self.busy.close()

    def judged(self, scenario, name=None, **environment):
        record = self.records / ("%s.jsonl" % (name or scenario))
        code, text = self.molecule(scenario, record, name, **environment)
        return (
            code,
            text,
            [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
            if record.exists()
            else [],
        )

    def molecule(self, scenario, record, name=None, **more):
        environment = dict(
            self.environment,
            PATH="%s:%s" % (BIN, self.environment["PATH"]),
            TRAINYARD_RUNS=str(record),
            PYTHONUNBUFFERED="1",
            ANSIBLE_NOCOLOR="1",
            NO_COLOR="1",
            COLUMNS="160",
            TRAINYARD_ACCEPTANCE="1" if self.acceptance else "",
            **more,
        )
        command = [str(BIN / "molecule"), "test", "--scenario-name", scenario]
        if scenario in self.aside:
            command = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(ASIDE)] + command
        if os.environ.get("KEEP"):
            command += ["--destroy", "never"]
        return self.stream(name or scenario, command, environment, HostCosts(scenario))

    def stream(self, name, command, environment, hosts=None):
        """Every line is told while it runs, and stands in a log."""
        prefix = "" if name in ALONE else "%s | " % name
        LOGS.mkdir(parents=True, exist_ok=True)
        text = []
        pace = self.pace[name] = Pace(time.monotonic())
        with open(LOGS / ("%s.log" % name), "w", encoding="utf-8") as log:
            self.tell("%s%s (log: %s)\n" % (prefix, " ".join(command), log.name))
            with subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                text=True,
                errors="replace",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            ) as process:
                for line in process.stdout:
                    log.write(line)
                    log.flush()
                    self.tell(prefix + line)
                    text.append(line)
                    pace.take(line, time.monotonic())
                    if hosts:
                        hosts.take(line)
                part = "scenario %s" % name if hosts else "lab/lab.py %s" % name
                code = COSTS.waited_for(process, part)
        if hosts:
            COSTS.charge(part, hosts.sum())
        pace.last = time.monotonic()
        return code, "".join(text)
