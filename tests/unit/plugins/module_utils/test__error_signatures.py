"""The table of known failures: each entry matches a real line and has the right id."""

import re
import time
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils._error_signatures import (
    SIGNATURES,
    find_errors,
)

FIXTURES = Path(__file__).parents[3] / "fixtures"
LINES = [(signature.id, line) for signature in SIGNATURES for line in signature.examples]


@pytest.mark.parametrize("name, line", LINES)
def test_a_line_of_each_kind(name, line):
    (told,) = find_errors("[1,3]<stderr>:before\n%s\nafter it" % line)
    assert told["id"] == name and told["line"] == " ".join(line.split())
    assert told["cause"] and told["fix"] and "{" not in told["cause"] + told["fix"]


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda signature: signature.id)
def test_an_entry(signature):
    assert signature.examples
    assert all(re.search(signature.pattern, line) for line in signature.examples)
    assert re.fullmatch("[a-z]+(_[a-z]+)*", signature.id)
    assert signature.source.startswith("https://")


def test_figures_of_the_line_are_in_the_words():
    (told,) = find_errors(LINES[0][1])
    assert "8" in told["cause"] and "at most 4 GPUs" in told["fix"]
    (told,) = find_errors(next(line for name, line in LINES if name == "library_missing"))
    assert "libnccl.so.2" in told["cause"]


def test_each_once_and_in_the_order_of_the_log():
    text = "\n".join(
        line
        for name, line in LINES
        if name in ("process_failed", "ssh_failed", "nccl_system_error", "test_failure")
    )
    assert [told["id"] for told in find_errors(text)] == [
        "ssh_failed",
        "nccl_system_error",
        "process_failed",
    ]
    assert [told["id"] for told in find_errors(text[::-1])] == []
    # What is special is told, not what it is a kind of.
    eight = (FIXTURES / "all_reduce_perf/fail-sophia-nccl-system-error-8ranks.txt").read_text(
        encoding="utf-8"
    )
    assert [told["id"] for told in find_errors(eight)] == ["nccl_system_error", "process_failed"]


def test_good_logs_say_nothing():
    for name in (
        "polaris-128node-512gpu",
        "efa-2xt4-tagged-nccl-info",
        "v100-2node-patched-prefix-run",
        "h100-10node-80gpu-2.17.8-many-collectives",
    ):
        assert (
            find_errors((FIXTURES / ("all_reduce_perf/%s.txt" % name)).read_text(encoding="utf-8"))
            == []
        )


def test_a_long_log_takes_a_moment():
    text = "gx1:21:27 [0] NCCL INFO Channel 00/02 :    0   1   2   3   4   5   6   7\n" * 14000
    began = time.process_time()
    assert find_errors(text + LINES[0][1]) and time.process_time() - began < 1
