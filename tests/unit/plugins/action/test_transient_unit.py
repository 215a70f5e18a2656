# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from types import SimpleNamespace

import pytest
from ansible.errors import AnsibleConnectionFailure, AnsibleError

from ansible_collections.trainyard.gpu.plugins.action import transient_unit

RUNNING = {"changed": True, "attached": False, "unit": "u.service", "log": "/l", "finished": False, "lines": ["one"], "cursor": "1:4"}
STILL = {"changed": False, "attached": True, "unit": "u.service", "log": "/l", "finished": False, "lines": [], "cursor": "1:4"}
ENDED = {"changed": False, "attached": True, "unit": "u.service", "log": "/l", "finished": True, "lines": ["two"], "cursor": "1:8", "rc": 0,
         "result": "success", "seconds": 1.0, "how": "ended with exit code 0", "tail": ["one", "two"]}
FAILED = dict(ENDED, rc=3, result="exit-code", how="ended with exit code 3")


class Plugin(transient_unit.ActionModule):
    def __init__(self, answers, **arguments):
        self.answers = list(answers)
        self.calls = []
        self.resets = 0
        self._task = SimpleNamespace(args=dict({"name": "u", "command": ["true"], "log": "/l"}, **arguments), delegate_to="lab-a", async_val=0,
                                     check_mode=False, diff=False)
        self._connection = SimpleNamespace(reset=self._reset, _shell=SimpleNamespace(tmpdir=None), has_pipelining=True)
        self._supports_check_mode = True
        self._supports_async = False

    def _reset(self):
        self.resets += 1

    def _execute_module(self, module_args=None, task_vars=None, **dummy):
        self.calls.append(module_args)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)


@pytest.fixture
def shown(monkeypatch):
    lines = []
    monkeypatch.setattr(transient_unit, "display", SimpleNamespace(display=lines.append, warning=lines.append))
    monkeypatch.setattr(transient_unit.time, "sleep", lambda seconds: None)
    return lines


def run(plugin):
    return plugin.run(task_vars={"inventory_hostname": "lab-b"})


def test_lines_are_shown_call_by_call_with_the_host_that_runs_the_unit(shown):
    placed = [{"before_header": "/f", "after_header": "/f", "before": "", "after": "new\n"}]
    plugin = Plugin([dict(RUNNING, diff=placed), STILL, ENDED])
    result = run(plugin)
    assert shown == ["lab-a | one", "lab-a | two"]
    assert (result["changed"], result["attached"], result["rc"], result["diff"]) == (True, False, 0, placed)
    assert not result.get("failed")
    assert {"lines", "cursor", "how"}.isdisjoint(result)


def test_only_the_first_call_carries_the_command(shown):
    plugin = Plugin([RUNNING, ENDED], lease=15, environment={"A": "b"}, secret_environment={"S": "secret"})
    run(plugin)
    assert plugin.calls[0]["command"] == ["true"] and "cursor" not in plugin.calls[0]
    assert plugin.calls[1] == {"name": "u", "log": "/l", "lease": 15, "secret_environment": {"S": "secret"}, "cursor": "1:4"}


def test_a_failure_names_unit_host_log_and_the_last_lines(shown):
    result = run(Plugin([RUNNING, FAILED]))
    assert result["failed"] and result["rc"] == 3
    assert result["msg"] == "Unit u.service on host lab-a ended with exit code 3. Its whole output is in /l on that host; the last lines:\none\ntwo"


def test_a_module_that_fails_is_passed_on(shown):
    assert run(Plugin([{"failed": True, "msg": "systemd-run cannot start u.service", "changed": False}]))["msg"].startswith("systemd-run")


def test_a_lost_connection_is_taken_up_again(shown):
    plugin = Plugin([RUNNING, AnsibleConnectionFailure("gone"), AnsibleConnectionFailure("gone"), ENDED])
    assert run(plugin)["rc"] == 0
    assert plugin.resets == 2
    assert sum("trying again" in line for line in shown) == 2


def test_a_connection_that_stays_lost_ends_the_task(shown, monkeypatch):
    times = iter([0, 0, transient_unit.RETRY_SECONDS + 1])
    monkeypatch.setattr(transient_unit.time, "monotonic", lambda: next(times))
    with pytest.raises(AnsibleConnectionFailure):
        run(Plugin([RUNNING] + [AnsibleConnectionFailure("gone")] * 3))


def test_a_worker_whose_play_is_gone_stops_renewing_the_lease(shown, monkeypatch):
    parents = iter([100, 1])
    monkeypatch.setattr(transient_unit.os, "getppid", lambda: next(parents))
    plugin = Plugin([RUNNING, STILL, STILL])
    with pytest.raises(AnsibleError, match="is gone"):
        run(plugin)
    assert len(plugin.calls) == 1


def test_detached_and_check_mode_end_after_one_call(shown):
    started = {"changed": True, "attached": False, "unit": "u.service", "log": "/l", "finished": False}
    plugin = Plugin([started])
    assert run(plugin)["finished"] is False
    assert len(plugin.calls) == 1
