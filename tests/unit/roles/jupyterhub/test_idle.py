# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When an instance is idle: one test per row of the table, with simulated use, then what is read of
Jupyter, Slurm and the GPUs.
"""

from __future__ import annotations

import asyncio
import http.cookies
import datetime
import json
import os
import signal
import sys
import types
from pathlib import Path

import pytest
from test_notebook import extension

from ansible_collections.trainyard.gpu.roles.jupyterhub.files import _idle

HOUR, NOW = 3600, 1000000
LIMITS = {"seconds": HOUR, "warning": 600, "gpu_seconds": 0}
QUIET = {
    "kernels": False,
    "terminals": False,
    "ssh": False,
    "http": False,
    "gpus": False,
    "save": False,
}
LONG_AGO, JUST_NOW = NOW - 2 * HOUR, NOW - 30


def verdict(found, limits=None, has_gpus=True, warned=NOW - 700, began=LONG_AGO, last=None):
    return _idle.judge(
        began,
        _idle.looked(last or {}, dict(QUIET, **found), NOW),
        NOW,
        dict(LIMITS, **limits or {}),
        has_gpus,
        warned,
    )[0]


@pytest.mark.parametrize(
    "found, limits, expected",
    [
        # All are quiet.
        ({}, {}, "stop"),
        # One of them is in use.
        ({"kernels": True}, {}, "active"),
        ({"terminals": True}, {}, "active"),
        ({"ssh": True}, {}, "active"),
        ({"http": True}, {}, "active"),
        ({"gpus": True}, {}, "active"),
        ({"save": True}, {}, "active"),
        # One of them was in use just now.
        ({"kernels": JUST_NOW}, {}, "active"),
        ({"terminals": JUST_NOW}, {}, "active"),
        ({"http": JUST_NOW}, {}, "active"),
        # Each was in use, but long ago.
        ({"kernels": LONG_AGO, "terminals": LONG_AGO, "http": LONG_AGO}, {}, "stop"),
        # It is not known whether one is in use.
        ({"kernels": None}, {}, "active"),
        ({"terminals": None}, {}, "active"),
        ({"ssh": None}, {}, "active"),
        ({"http": None}, {}, "active"),
        ({"gpus": None}, {}, "active"),
        # The rule is off.
        ({}, {"seconds": 0}, "active"),
        # The rule for GPUs that are held: everything else may be in use.
        (
            {"kernels": True, "terminals": True, "ssh": True, "http": True},
            {"seconds": 0, "gpu_seconds": HOUR},
            "stop",
        ),
        (
            {"kernels": True, "terminals": True, "ssh": True, "http": True},
            {"gpu_seconds": HOUR},
            "stop",
        ),
        ({"gpus": True}, {"gpu_seconds": HOUR}, "active"),
        ({"gpus": None}, {"gpu_seconds": HOUR}, "active"),
        ({"kernels": True}, {"gpu_seconds": 3 * HOUR}, "active"),
        # A save holds GPUs, and is not cut off.
        ({"save": True}, {"seconds": 0, "gpu_seconds": HOUR}, "active"),
    ],
)
def test_a_row_of_the_table(found, limits, expected):
    assert verdict(found, limits) == expected


def test_the_rule_for_gpus_needs_gpus():
    assert verdict({"kernels": True}, {"gpu_seconds": HOUR}, has_gpus=False) == "active"


@pytest.mark.parametrize(
    "began, warned, expected, minutes",
    [
        (NOW - HOUR + 601, None, "active", ""),
        (NOW - HOUR + 600, None, "warn", "in 10 minutes"),
        (NOW - HOUR + 60, NOW - 540, "warn", "in 1 minute:"),
        (NOW - HOUR, NOW - 600, "stop", ""),
        (NOW - HOUR + 1, NOW - 600, "warn", "in 1 minute:"),
        # A host that slept, or one whose clock was set: a warning comes first, and its time is
        # whole.
        (LONG_AGO, None, "warn", "in 10 minutes"),
        (LONG_AGO, NOW - 300, "warn", "in 5 minutes"),
    ],
)
def test_a_warning_comes_first(began, warned, expected, minutes):
    found, message = _idle.judge(began, _idle.looked({}, QUIET, NOW), NOW, LIMITS, False, warned)
    assert found == expected and minutes in message and bool(message) == (expected != "active")


def test_use_between_two_looks_counts():
    last = _idle.looked({}, dict(QUIET, ssh=True), NOW - HOUR + 700)
    assert verdict({}, last=last) == "active"
    assert verdict({}, last=_idle.looked(last, QUIET, NOW - 10), began=LONG_AGO) == "active"
    # A time in the future is one of now.
    assert _idle.looked({}, dict(QUIET, http=NOW + HOUR), NOW)["http"] == NOW


# --- what is read ---


def at(seconds):
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)


class Kernels:
    def __init__(self, *kernels):
        self.kernels = {
            str(number): types.SimpleNamespace(execution_state=state, last_activity=at(moment))
            for number, (state, moment) in enumerate(kernels)
        }

    def list_kernel_ids(self):
        return list(self.kernels)

    def get_kernel(self, number):
        return self.kernels[number]


def test_kernels_and_terminals():
    assert (
        extension.kernels_in_use(Kernels()) is False and extension.terminals_in_use(None) is False
    )
    assert (
        extension.kernels_in_use(Kernels(("idle", 5), ("idle", 9))) == 9
        and extension.kernels_in_use(Kernels(("idle", 5), ("busy", 1))) is True
    )
    terminals = types.SimpleNamespace(
        terminals={"1": types.SimpleNamespace(last_activity=at(7)), "2": types.SimpleNamespace()}
    )
    assert extension.terminals_in_use(terminals) == 7 and extension.moment([None]) is False


@pytest.mark.parametrize(
    "title, parent, used",
    [
        ("sshd", "slurmstepd: [7.3]", True),
        ("sshd-session", "slurmstepd: [7.3]", True),
        ("sshd", "slurmstepd: [71.0]", False),
        ("sshd", "sshd: /usr/sbin/sshd -D", False),
        ("bash", "slurmstepd: [7.3]", False),
        ("x) S 9 (sshd", "slurmstepd: [7.3]", False),
    ],
)
def test_an_open_connection_of_ssh(tmp_path, title, parent, used):
    for number, stat, command in (
        ("100", "100 (slurmstepd) S 1 1", parent),
        ("200", "200 (%s) S 100 200" % title, "sshd: anna@notty"),
    ):
        (tmp_path / number).mkdir()
        (tmp_path / number / "stat").write_text(stat)
        (tmp_path / number / "cmdline").write_text(command + "\0")
    (tmp_path / "300").mkdir()
    (tmp_path / "self").mkdir()
    assert extension.ssh_in_use("7", str(tmp_path)) is used


@pytest.mark.parametrize(
    "devices, text, busy",
    [
        ([], "", False),
        (["0"], "0, 10, 100\n", False),
        (["0"], "90, 10, 100\n", True),
        (["1"], "90, 10, 100\n0, 1, 100\n", False),
        (["0", "1"], "0, 10, 100\n50, 1, 100\n", True),
        (["0"], "[N/A], 10, 100\n", None),
        (["0"], "No devices were found\n", None),
        (["0"], "", None),
    ],
)
def test_gpus(monkeypatch, devices, text, busy):
    monkeypatch.setattr(
        extension._job_watch, "USAGE", (sys.executable, "-c", "print(%r, end='')" % text)
    )
    assert asyncio.run(extension.gpus_in_use(devices)) is busy


def test_a_gpu_tool_that_is_missing_or_hangs(monkeypatch, tmp_path):
    monkeypatch.setattr(extension._job_watch, "USAGE", (str(tmp_path / "none"),))
    assert asyncio.run(extension.gpus_in_use(["0"])) is None
    monkeypatch.setattr(extension, "TOOL_SECONDS", 0.2)
    monkeypatch.setattr(
        extension._job_watch, "USAGE", (sys.executable, "-c", "import time; time.sleep(60)")
    )
    assert asyncio.run(extension.gpus_in_use(["0"])) is None


@pytest.fixture(name="idle")
def _idle_instance(monkeypatch):
    """The watch of an instance with nothing in use.

    Its clock is that of the test, and the batch script gets a list in place of a signal.
    """
    killed, clock = [], types.SimpleNamespace(now=float(NOW))
    monkeypatch.setattr(extension.time, "time", lambda: clock.now)
    monkeypatch.setattr(extension.os, "kill", lambda *call: killed.append(call))
    monkeypatch.setattr(extension, "ssh_in_use", lambda job: False)
    monkeypatch.delenv("SLURM_JOB_GPUS", raising=False)
    app = types.SimpleNamespace(
        kernel_manager=Kernels(),
        web_app=types.SimpleNamespace(settings={"api_last_activity": at(NOW)}),
    )
    saving = types.SimpleNamespace(is_running=lambda: False)
    return types.SimpleNamespace(
        saving=saving,
        watch=extension.Idle(app, {"idle": LIMITS, "job": "7"}, saving),
        clock=clock,
        killed=killed,
        settings=app.web_app.settings,
    )


def look(idle, seconds):
    idle.clock.now = float(NOW + seconds)
    asyncio.run(idle.watch.look())
    return idle.watch.message


def test_it_warns_once_then_ends(idle, capfd):
    assert look(idle, HOUR - 700) == ""
    assert (
        "stops in 10 minutes" in look(idle, HOUR - 600)
        and "stops in 5 minutes" in look(idle, HOUR - 300)
        and not idle.killed
    )
    assert "stops" in look(idle, HOUR) and [call[1] for call in idle.killed] == [signal.SIGTERM]
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 2 and all(
        line.startswith("trainyard: This instance stops") for line in lines
    )


def test_a_full_share_does_not_keep_it(idle, capfd):
    """The log of the job is there."""
    with capfd.disabled():
        log = os.dup(1)
        full = os.open("/dev/full", os.O_WRONLY)
        try:
            os.dup2(full, 1)
            look(idle, HOUR - 600)
            look(idle, HOUR)
        finally:
            os.dup2(log, 1)
            os.close(log)
            os.close(full)
    assert [call[1] for call in idle.killed] == [signal.SIGTERM]


def test_use_after_the_warning_keeps_it(idle):
    assert look(idle, HOUR - 600)
    idle.settings["api_last_activity"] = at(NOW + HOUR - 100)
    assert look(idle, HOUR) == "" and not idle.killed
    # The next warning has its whole time.
    assert "in 10 minutes" in look(idle, 3 * HOUR) and not idle.killed
    look(idle, 3 * HOUR + 599)
    assert not idle.killed
    look(idle, 3 * HOUR + 600)
    assert idle.killed


def test_a_save_is_not_cut_off(idle):
    idle.saving.is_running = lambda: True
    assert look(idle, 5 * HOUR) == "" and look(idle, 9 * HOUR) == "" and not idle.killed
    idle.saving.is_running = lambda: False
    assert look(idle, 9 * HOUR + 60) == "" and "stops in 10 minutes" in look(idle, 10 * HOUR - 600)


def test_the_extension_of_jupyterlab_is_what_it_loads():
    """JupyterLab calls init and get of what the file registers under the name of the package."""
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _jupyterhub_plan

    text = (Path(extension.__file__).parent / "idle_warning.js").read_text()
    assert (
        'window._JUPYTERLAB["%s"] = {' % _jupyterhub_plan.LAB_PACKAGE["name"] in text
        and "trainyard/idle" in text
        and 'return {__esModule: true, "default": {id: ' in text
    )
    assert (
        json.loads(json.dumps(_jupyterhub_plan.LAB_PACKAGE))["jupyterlab"]["_build"]["load"]
        == "static/idle_warning.js"
    )


@pytest.mark.parametrize(
    "left, words",
    [(HOUR, ""), (901, ""), (900, "in 15 minutes"), (60, "in 1 minute."), (0, ""), (-5, "")],
)
def test_the_end_of_a_login_is_told_before(left, words):
    limits = dict(LIMITS, warning=900, login=86400)
    told = _idle.login_words(NOW - 86400 + left, NOW, limits)
    assert words in told and bool(told) == bool(words)
    assert _idle.login_words(None, NOW, limits) == ""


def test_when_a_cookie_was_made(monkeypatch):
    monkeypatch.setenv("JUPYTERHUB_CLIENT_ID", "jupyterhub-user-anna")
    value = '"2|1:0|10:1700000000|20:jupyterhub-user-anna|4:c2Fs|abc"'
    for name in ("jupyterhub-user-anna", "__Host-jupyterhub-user-anna"):
        assert (
            extension.cookie_made(http.cookies.SimpleCookie("a=b; %s=%s" % (name, value)))
            == 1700000000
        )
    for text in ("", "jupyterhub-user-anna=x", "jupyterhub-user-ben=" + value):
        assert extension.cookie_made(http.cookies.SimpleCookie(text)) is None
