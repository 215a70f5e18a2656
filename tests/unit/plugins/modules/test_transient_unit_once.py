"""Units that run only once: which of several plays starts one, which follows it, and which is
refused.
"""

from __future__ import annotations

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _transient_unit
from ansible_collections.trainyard.gpu.plugins.modules import transient_unit

ONCE = "Set train_job_id to another name"


class Refused(Exception):
    """The module has failed with this message."""


class Module:
    """What the module needs of Ansible. C(active) is the state of all units."""

    check_mode = False

    def __init__(self, log, **params):
        files = {
            "files": [],
            "stop_command": [],
            "working_directory": None,
            "secret_environment": {},
        }
        defaults = {
            "timeout": 0,
            "lease": 30,
            "detach": False,
            "replace": False,
            "log_append": False,
        }
        self.params = dict(files, **defaults, name="job", command=["sleep"], environment={})
        self.params.update({"log": str(log), "once": ONCE}, **params)
        self.warnings, self.started, self.active = [], 0, "inactive"

    def run_command(self, command):
        self.started += command[0] == "systemd-run"
        return 0, self.active, ""

    def warn(self, text):
        self.warnings.append(text)

    def fail_json(self, msg, **_result):
        raise Refused(msg)


@pytest.fixture(name="play")
def fixture_play(tmp_path, monkeypatch):
    """A play that starts the unit, or attaches to it."""
    monkeypatch.setattr(transient_unit, "RUN_DIRECTORY", str(tmp_path / "run"))
    monkeypatch.setattr(
        transient_unit, "ManagedFiles", lambda _module: type("F", (), {"run": id, "diff": []})
    )

    def run(active, **params):
        module = Module(tmp_path / "share/job.log", **params)
        module.active, answer = active, {"attached": True, "changed": False}
        unit = transient_unit.Unit(module)
        with unit.alone():
            state = transient_unit.start_or_attach(module, unit, answer)
        return module, answer, state

    return run


def silent(tmp_path, seconds):
    """The play that follows the unit was last heard of this long ago."""
    (tmp_path / "run/job/lease").write_text(
        "%.2f\n" % (transient_unit.uptime() - seconds), encoding="ascii"
    )


def test_two_plays_with_one_id(play, tmp_path):
    module, answer, _state = play("inactive")
    assert (module.started, answer["attached"]) == (1, False)
    with pytest.raises(
        Refused, match="job.service is running, and another play follows it. " + ONCE
    ):
        play("active")
    # With another command the message is that of any unit.
    with pytest.raises(Refused, match="is running with another command"):
        play("active", command=["other"])
    # Its play was lost, so the next one goes on, and says so.
    silent(tmp_path, 20)
    module, answer, state = play("active")
    assert (module.started, answer["attached"], state["lease"]) == (0, True, 30)
    assert "starts nothing" in module.warnings[0]


def test_a_job_that_has_run_before_is_not_overwritten(play, tmp_path):
    play("inactive")
    log = tmp_path / "share/job.log"
    # Without output, nothing was run.
    assert play("inactive")[0].started == 1
    log.write_text("epoch 1\n", encoding="ascii")
    with pytest.raises(Refused, match="has already run on this host.*job.log. " + ONCE):
        play("inactive")
    assert log.read_text(encoding="ascii") == "epoch 1\n"
    # A measurement has one ID for all its runs.
    assert play("inactive", once="")[0].started == 1 and log.read_text(encoding="ascii") == ""


def test_a_detached_job(play):
    play("inactive", lease=0, detach=True)
    with pytest.raises(Refused, match="job.service is running. " + ONCE):
        play("active", lease=0, detach=True)
    module, answer, _state = play("active", lease=30)
    assert (module.started, answer["attached"], len(module.warnings)) == (0, True, 1)


def test_other_units_are_attached_to_as_before(play):
    play("inactive", once="")
    module, answer, _state = play("active", once="")
    assert (module.started, answer["attached"], module.warnings) == (0, True, [])


@pytest.mark.parametrize(
    "running, silent_for, log, detach, refused",
    [
        (False, None, "", False, False),
        (False, None, "/x/job.log", False, True),
        (True, 3.0, "/x/job.log", False, True),
        (True, 13.0, "/x/job.log", False, False),
        (True, None, "/x/job.log", False, False),
        (True, None, "/x/job.log", True, True),
    ],
)
def test_why_not_again(running, silent_for, log, detach, refused):
    reason = _transient_unit.why_not_again("a.service", log, running, silent_for, detach)
    assert bool(reason) is refused and (not log or running or log in reason)
