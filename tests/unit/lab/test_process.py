from __future__ import annotations

import re
import sys
import threading

import images
import pytest
from process import LabError, stream


def test_output_of_builds_side_by_side_is_in_whole_lines(tmp_path, capfdbinary):
    script = "import sys, time\nfor part in ('one', ' line\\nhalf'):\n    sys.stdout.write(part); sys.stdout.flush(); time.sleep(0.1)\nprint(' a line\\nthe end', end='')"
    assert stream([sys.executable, "-c", script], tmp_path / "log", label="host") == 0
    assert capfdbinary.readouterr().out == b"host: one line\nhost: half a line\nhost: the end\n"
    assert (tmp_path / "log").read_bytes() == b"one line\nhalf a line\nthe end"


def test_output_without_a_label_is_not_held_back(tmp_path, capfdbinary):
    assert stream([sys.executable, "-c", "print('no line end', end='')"], tmp_path / "log") == 0
    assert capfdbinary.readouterr().out == b"no line end"


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
