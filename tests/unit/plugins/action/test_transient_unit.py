# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import base64
import signal
import subprocess
from copy import deepcopy
from types import SimpleNamespace

import pytest
from ansible.errors import AnsibleConnectionFailure, AnsibleError

from ansible_collections.trainyard.gpu.plugins.action import transient_unit

STARTED = {
    "changed": True,
    "attached": False,
    "unit": "u.service",
    "log": "/l",
    "finished": False,
    "follow": {"inode": 1, "offset": 100, "started": 10.0, "timeout": 60, "lease": 15},
}
SUCCESS = "success exited 0 12.5"


def look(data=b"", end="", active="active", inode=1, offset=100, skipped=0, before="", lapsed=""):
    """What the look script prints, through a terminal that makes CRLF of line ends."""
    fields = [
        before,
        "trainyard-look",
        active,
        end,
        lapsed,
        "1300",
        inode,
        offset,
        skipped,
        base64.encodebytes(data).decode() + "trainyard-seen",
        "",
    ]
    return {"rc": 0, "stdout": "\n".join(map(str, fields)).replace("\n", "\r\n"), "stderr": ""}


class Plugin(transient_unit.ActionModule):
    def __init__(self, started, *looks, **arguments):
        self.started = started
        self.looks = list(looks)
        self.calls = []
        self.commands = []
        self.resets = 0
        self._task = SimpleNamespace(
            args=dict({"name": "u", "command": ["true"], "log": "/l"}, **arguments),
            delegate_to="lab-a",
            async_val=0,
            check_mode=False,
            diff=False,
        )
        self._connection = SimpleNamespace(
            reset=self._reset,
            _shell=SimpleNamespace(tmpdir=None),
            _play_context=SimpleNamespace(no_log=False),
        )
        self._supports_check_mode = True
        self._supports_async = False

    def _reset(self):
        self.resets += 1

    def _execute_module(self, module_args=None, task_vars=None, **dummy):
        self.calls.append(module_args)
        return deepcopy(self.started)

    def _low_level_execute_command(self, command, **dummy):
        self.commands.append(command)
        answer = self.looks.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if answer == signal.SIGINT:
            signal.raise_signal(answer)
        return answer


@pytest.fixture
def shown(monkeypatch):
    lines = []
    monkeypatch.setattr(
        transient_unit, "display", SimpleNamespace(display=lines.append, warning=lines.append)
    )
    monkeypatch.setattr(transient_unit.time, "sleep", lambda seconds: None)
    return lines


def run(plugin):
    return plugin.run(task_vars={"inventory_hostname": "lab-b"})


def test_lines_are_shown_look_by_look_with_the_host_that_runs_the_unit(shown):
    placed = [{"before_header": "/f", "after_header": "/f", "before": "", "after": "new\n"}]
    plugin = Plugin(
        dict(STARTED, diff=placed),
        look(b"one\nhal"),
        look(),
        look(b"half\ntwo", SUCCESS, offset=104),
    )
    result = run(plugin)
    assert shown == ["lab-a | one", "lab-a | half\nlab-a | two"]
    assert (
        result["changed"],
        result["attached"],
        result["finished"],
        result["rc"],
        result["result"],
        result["seconds"],
        result["diff"],
    ) == (True, False, True, 0, "success", 2.5, placed)
    assert result["tail"] == ["one", "half", "two"]
    assert not result.get("failed") and "follow" not in result


def test_each_look_begins_where_the_lines_shown_end(shown):
    plugin = Plugin(
        STARTED,
        look(b"one\nhal"),
        look(b"new\n", inode=2, offset=0),
        look(end=SUCCESS, inode=2, offset=4),
    )
    run(plugin)
    assert plugin.commands == [
        transient_unit.look_command("u", inode, offset)
        for inode, offset in ((1, 100), (1, 104), (2, 4))
    ]


def test_the_module_gets_what_the_task_says_once(shown):
    plugin = Plugin(STARTED, look(), look(end=SUCCESS), lease=15, environment={"A": "b"})
    run(plugin)
    assert plugin.calls == [
        {"name": "u", "command": ["true"], "log": "/l", "lease": 15, "environment": {"A": "b"}}
    ]


def test_secrets_are_replaced_in_lines_and_hidden_from_verbose_output(shown):
    plugin = Plugin(
        STARTED,
        look(b"login with pass and passphrase 4711\n"),
        look(b"passphrase", "exit-code exited 1 12.5"),
        secret_environment={
            "A": "pass",
            "B": {"deep": ["passphrase", 4711]},
            "C": "",
            "D": None,
            "E": True,
        },
    )
    result = run(plugin)
    assert shown == ["lab-a | login with ******** and ******** ********", "lab-a | ********"]
    assert "passphrase" not in str(result)
    assert plugin._connection._play_context.no_log is True


def test_verbose_output_stays_where_there_is_no_secret(shown):
    plugin = Plugin(STARTED, look(end=SUCCESS))
    run(plugin)
    assert plugin._connection._play_context.no_log is False


def test_much_output_is_abridged_and_what_was_left_out_is_counted(shown):
    lines = b"".join(b"%d\n" % number for number in range(1000))
    result = run(Plugin(STARTED, look(lines, SUCCESS, skipped=5)))
    told = shown[0].split("\n")
    assert told[0] == "lab-a | ... 5 bytes left out here; see the whole log in /l"
    assert len(told) == transient_unit.LINES_PER_LOOK + 1
    assert result["tail"] == [str(number) for number in range(985, 1000)]


@pytest.mark.parametrize(
    ("ended", "rc", "words"),
    [
        ({"end": "exit-code exited 3 12.5"}, 3, "ended with exit code 3"),
        ({"end": "timeout killed TERM 12.5"}, 143, "was stopped after its timeout of 60 s"),
        (
            {"end": "success killed TERM 12.5", "lapsed": "1"},
            143,
            "was stopped because the play that started it made no contact for 15 s",
        ),
        ({"active": "inactive"}, 255, "disappeared without a result (was the host restarted?)"),
        (
            {"before": "trainyard-gone"},
            255,
            "disappeared without a result (was the host restarted?)",
        ),
    ],
)
def test_a_failure_names_unit_host_log_and_the_last_lines(shown, ended, rc, words):
    result = run(Plugin(STARTED, look(b"one\ntwo\n"), look(**ended)))
    assert result["failed"] and result["rc"] == rc
    assert (
        result["msg"]
        == "Unit u.service on host lab-a %s. Its whole output is in /l on that host; the last lines:\none\ntwo"
        % words
    )


def test_a_module_that_fails_is_passed_on(shown):
    assert run(
        Plugin({"failed": True, "msg": "systemd-run cannot start u.service", "changed": False})
    )["msg"].startswith("systemd-run")


def test_a_lost_connection_is_taken_up_again(shown):
    plugin = Plugin(
        STARTED,
        look(),
        AnsibleConnectionFailure("gone"),
        AnsibleConnectionFailure("gone"),
        look(end=SUCCESS),
    )
    assert run(plugin)["rc"] == 0
    assert plugin.resets == 2
    assert sum("trying again" in line for line in shown) == 2


def test_a_connection_that_stays_lost_ends_the_task(shown, monkeypatch):
    times = iter([0, 0, transient_unit.RETRY_SECONDS + 1])
    monkeypatch.setattr(transient_unit.time, "monotonic", lambda: next(times))
    with pytest.raises(AnsibleConnectionFailure):
        run(Plugin(STARTED, *[AnsibleConnectionFailure("gone")] * 3))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            {"rc": 1, "stdout": "", "stderr": "sudo: a password is required"},
            "the answer is incomplete: exit code 1: sudo: a password is required",
        ),
        (
            {"rc": 0, "stdout": look(b"x" * 99)["stdout"][:-40], "stderr": ""},
            "the answer is incomplete",
        ),
        (
            look(active="Failed to connect to bus"),
            "systemctl cannot tell whether it runs: Failed to connect to bus",
        ),
    ],
)
def test_a_look_that_tells_nothing_ends_the_task_with_its_words(shown, answer, reason):
    with pytest.raises(
        AnsibleError,
        match="Cannot follow unit u.service on host lab-a, which continues there with its output in /l: "
        + reason,
    ):
        run(Plugin(STARTED, answer))


def test_an_answer_cut_short_is_not_quoted_as_it_may_hold_a_secret(shown):
    whole = look(b"passphrase", before="You have mail.")["stdout"]
    with pytest.raises(AnsibleError) as caught:
        run(
            Plugin(
                STARTED, {"rc": 0, "stdout": whole[: whole.index("trainyard-seen")], "stderr": ""}
            )
        )
    assert "You have mail." in str(caught.value) and base64.b64encode(
        b"passphrase"
    ).decode() not in str(caught.value)


def test_what_sudo_or_a_profile_prints_does_no_harm(shown):
    assert run(
        Plugin(STARTED, look(b"one\n", SUCCESS, before="BECOME-SUCCESS-abc\nYou have mail."))
    )["tail"] == ["one"]


def test_a_worker_whose_play_is_gone_stops_renewing_the_lease(shown, monkeypatch):
    parents = iter([100, 100, 1])
    monkeypatch.setattr(transient_unit.os, "getppid", lambda: next(parents))
    plugin = Plugin(STARTED, look(), look())
    with pytest.raises(AnsibleError, match="has ended"):
        run(plugin)
    assert len(plugin.commands) == 1


def test_detached_and_check_mode_end_without_a_look(shown):
    plugin = Plugin(dict((key, value) for key, value in STARTED.items() if key != "follow"))
    assert run(plugin)["finished"] is False
    assert plugin.commands == []


@pytest.mark.parametrize("lease, words", [(15, "is stopped within 15 s"), (0, "systemctl stop u")])
def test_ctrl_c_says_what_becomes_of_the_unit(shown, monkeypatch, tmp_path, lease, words):
    """The play takes no more lines from its tasks, so the line goes to its standard error."""
    error = tmp_path / "stderr"
    reader = subprocess.Popen(["sleep", "60"], stderr=error.open("w"))
    monkeypatch.setattr(transient_unit.os, "getppid", lambda: reader.pid)
    follow = dict(STARTED["follow"], lease=lease)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(Plugin(dict(STARTED, follow=follow), look(b"one\n"), signal.SIGINT))
    reader.kill()
    reader.wait()
    told = error.read_text()
    assert told.startswith("Interrupted: u.service on host lab-a ") and words in told
    assert signal.getsignal(signal.SIGINT) is handler
