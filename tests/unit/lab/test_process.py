from __future__ import annotations

import re
import sys
import threading
import time

import images
import pytest
from process import LabError, heartbeat, say, stream


def test_output_of_builds_side_by_side_is_in_whole_lines(tmp_path, capfdbinary):
    script = "import sys, time\nfor part in ('one', ' line\\nhalf'):\n    sys.stdout.write(part); sys.stdout.flush(); time.sleep(0.1)\nprint(' a line\\nthe end', end='')"
    assert stream([sys.executable, "-c", script], tmp_path / "log", label="host") == 0
    assert capfdbinary.readouterr().out == b"host: one line\nhost: half a line\nhost: the end\n"
    assert (tmp_path / "log").read_bytes() == b"one line\nhalf a line\nthe end"


def test_output_without_a_label_is_not_held_back(tmp_path, capfdbinary):
    assert stream([sys.executable, "-c", "print('no line end', end='')"], tmp_path / "log") == 0
    assert capfdbinary.readouterr().out == b"no line end"


PLAY = """\
TASK [trainyard.gpu.training_image : Build the image] ***
lab-a | #9 24.90   logging.h:124:28: warning: comparison of integer expressions
\033[1;35m[WARNING]: Module remote_tmp /root/.ansible/tmp did not exist and was created\033[0m
WARNING: Location 'file:///opt/pypi/simple/torch/' is ignored: it is neither a file nor a directory.
changed: [lab-a]
"""


def test_a_build_and_harmless_warnings_are_only_in_the_log(tmp_path, capfdbinary):
    command = [sys.executable, "-c", f"print({PLAY!r}, end='')"]
    assert stream(command, tmp_path / "log") == 0
    lines = capfdbinary.readouterr().out.decode().splitlines()
    assert lines == [PLAY.splitlines()[0], "changed: [lab-a]"]
    text = (tmp_path / "log").read_text()
    assert "logging.h" in text and "remote_tmp" in text and "is ignored" in text


def test_a_silent_command_is_told_what_it_does(tmp_path, capfdbinary):
    """By its last task and the last line of a build. Nothing is told while lines are shown."""
    script = (
        "import time\n"
        "print('TASK [Build the image] ***', flush=True)\n"
        "print('lab-a | #9 24.90   [ 45%] Building CXX object', flush=True)\n"
        "time.sleep(1.5)"
    )
    with heartbeat(seconds=0.5):
        say("starting")
        assert stream([sys.executable, "-c", script], tmp_path / "log") == 0
    told = capfdbinary.readouterr().out.decode().splitlines()
    assert told[:2] == ["lab: starting", "TASK [Build the image] ***"]
    assert len(told) >= 4 and set(told[2:]) <= {
        f"lab: {seconds} s: Build the image: [ 45%] Building CXX object" for seconds in range(4)
    }
    time.sleep(0.6)
    assert capfdbinary.readouterr().out == b""


def test_builds_run_at_the_same_time_and_return_in_order():
    both = threading.Barrier(2, timeout=10)
    assert images.side_by_side(lambda: both.wait() * 0 + 1, lambda: both.wait() * 0 + 2) == [1, 2]


def test_a_failed_build_is_raised_after_the_other_has_ended():
    ended = []

    def bad():
        raise LabError("mmdebstrap ended with 1")

    def good():
        threading.Event().wait(0.2)
        ended.append(1)

    for builds in ((bad, good), (good, bad)):
        with pytest.raises(LabError, match=re.escape("mmdebstrap ended with 1")):
            images.side_by_side(*builds)
    assert ended == [1, 1]
