"""Checks by schedule without a scheduler: which hosts are due, by the reports, and what is started
for them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from ansible_collections.trainyard.gpu.roles.verify.files import idle_verify

NOW, DAY = 1796000000.0, 86400


def report(days, *hosts, verdict="pass", check="bandwidth-host"):
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(NOW - days * DAY))
    checks = [{"id": check, "host": host, "verdict": verdict} for host in hosts]
    return {"generated": made, "checks": checks}


def test_hosts_whose_last_measurement_is_too_old():
    reports = [report(9, "a", "b"), report(3, "a"), report(1, "c", verdict="fail"), report(0, "x")]
    assert idle_verify.due(["a", "b", "c"], reports, 7, NOW) == ["b"]
    assert idle_verify.due(["a", "c"], reports, 7, NOW) == []
    # Never measured is oldest.
    assert idle_verify.due(["b", "d"], reports, 7, NOW) == ["d"]


def test_a_host_that_is_down_does_not_keep_others_waiting():
    down = report(0, "a", verdict="fail", check="host-unreachable")
    assert idle_verify.due(["a", "b"], [down], 7, NOW) == ["b"]
    assert idle_verify.due(["a", "b"], [down, report(0, "b")], 7, NOW) == ["a"]


@pytest.mark.parametrize("count, most", [(1, 1), (19, 1), (20, 2), (64, 6)])
def test_a_tenth_of_the_hosts_and_at_least_one(count, most):
    assert len(idle_verify.due(["h%d" % number for number in range(count)], [], 7, NOW)) == most


@pytest.mark.parametrize(
    "odd",
    [
        None,
        [],
        {},
        {"generated": "yesterday", "checks": []},
        {"generated": "2026-11-30T08:00:00Z", "checks": [7]},
        report(0, "a", verdict="skipped"),
        report(0, "a", verdict="not_evaluated"),
        report(0, "a", check="burn-in-speed"),
    ],
)
def test_a_report_that_has_not_measured_the_host(odd):
    assert idle_verify.due(["a"], [odd], 7, NOW) == ["a"]


def test_the_playbook_is_started_for_these_hosts_only(tmp_path):
    folder = tmp_path / "reports"
    for name, found in (("1", report(0, "a")), ("2", report(0, "b"))):
        (folder / name).mkdir(parents=True)
        found["generated"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        (folder / name / "report.json").write_text(json.dumps(found), encoding="utf-8")
    (folder / "3").mkdir()
    (folder / "suspect.yml").write_text("", encoding="utf-8")
    command = ["sh", "-c", 'echo "$@" > %s/started; exit 2' % tmp_path, "sh", "-i", "i.yml"]
    settings = {"days": 7, "reports": str(folder), "hosts": ["a", "b", "c"], "command": command}

    def run(**changes):
        words = [sys.executable, idle_verify.__file__, json.dumps(dict(settings, **changes))]
        return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)

    done = run()
    assert done.returncode == 2 and done.stdout.startswith("trainyard: c: the last check")
    assert (tmp_path / "started").read_text(encoding="utf-8") == "-i i.yml --limit c\n"
    # Nothing is due. The folder of reports does not exist yet.
    os.unlink(tmp_path / "started")
    assert run(hosts=["a", "b"]).returncode == 0 and not (tmp_path / "started").exists()
    assert run(reports=str(tmp_path / "none"), hosts=["a"]).returncode == 2
