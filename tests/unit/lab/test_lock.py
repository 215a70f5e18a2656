from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import lab
import pytest
from process import LabError

HOLD = """
import pathlib, sys, time
sys.path.insert(0, sys.argv[1])
import lab
with lab.only_one(pathlib.Path(sys.argv[2])):
    print("held", flush=True)
    time.sleep(60)
"""


def holder(state, *prefix):
    command = [*prefix, sys.executable, "-c", HOLD, str(Path(lab.__file__).parent), str(state)]
    process = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == "held\n"
    return process


def test_a_living_run_is_respected(tmp_path):
    process = holder(tmp_path)
    with (
        pytest.raises(LabError, match="another run is using .* %d" % process.pid),
        lab.only_one(tmp_path),
    ):
        pass
    process.kill()
    process.wait()
    with lab.only_one(tmp_path):
        pass


def test_what_is_left_of_a_killed_make_is_ended(tmp_path):
    make = holder(tmp_path, "sh", "-c", '"$@" & read _', "make")
    make.kill()
    make.wait()
    with lab.only_one(tmp_path):
        assert make.stdout.read() == "", (
            "the orphan has ended, and with it the other end of its output"
        )
