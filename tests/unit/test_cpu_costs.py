"""The CPU seconds that the report of a test run prints."""

from __future__ import annotations

import subprocess
import sys

import pytest
from cpu_costs import Costs, seconds_of_container, seconds_of_process, told

BUSY = "import time\nwhile time.process_time() < 0.3: pass\n"


def test_a_process_that_is_waited_for_is_a_part_of_its_own():
    costs = Costs()
    costs.taken("start")
    with subprocess.Popen([sys.executable, "-c", BUSY + "raise SystemExit(3)"]) as process:
        assert costs.waited_for(process, "tool") == 3 == process.returncode
    found = costs.taken("file")
    assert found["tool"] >= 0.3 and -0.01 < found["file"] < 0.3
    assert "tool" not in costs.taken("file")


def test_any_other_child_is_the_file_s():
    costs = Costs()
    costs.taken("start")
    subprocess.run([sys.executable, "-c", BUSY], check=True)
    assert costs.taken("file")["file"] >= 0.3


def test_a_helper_is_counted_while_it_runs():
    costs = Costs()
    command = [sys.executable, "-c", BUSY + "print(flush=True)\ninput()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as helper:
        costs.helpers.add(helper.pid)
        costs.taken("start")
        assert helper.stdout.readline() == b"\n"
        assert costs.taken("file")["file"] >= 0.2
        assert seconds_of_process(helper.pid) >= 0.2
        helper.communicate(b"\n")
    assert seconds_of_process(helper.pid) == 0.0


def test_seconds_of_hosts_are_added():
    costs = Costs()
    costs.charge("scenario a", 40.0)
    costs.charge("scenario a", 2.0)
    assert costs.taken("file")["scenario a"] == 42.0


@pytest.mark.parametrize(
    "path, text",
    [
        ("cpuacct/docker/abc/cpuacct.usage", "1500000000\n"),
        ("cpuacct/system.slice/docker-abc.scope/cpuacct.usage", "1500000000\n"),
        ("docker/abc/cpu.stat", "usage_usec 1500000\nuser_usec 1000000\n"),
        ("system.slice/docker-abc.scope/cpu.stat", "usage_usec 1500000\nuser_usec 1000000\n"),
    ],
)
def test_control_groups_of_hosts(tmp_path, path, text):
    assert seconds_of_container("abc", tmp_path) == 0.0
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(text, encoding="ascii")
    assert seconds_of_container("abc", tmp_path) == 1.5


def test_the_report_has_the_sum_and_the_most_expensive_parts():
    parts = {"part %02d" % number: float(number) for number in range(1, 13)}
    lines = told(parts)
    assert lines[0] == "CPU seconds: 78, the 10 most expensive of 12 parts:"
    assert lines[1] == "   12.0  part 12" and lines[-1] == "    3.0  part 03"
    assert told({}) == []
