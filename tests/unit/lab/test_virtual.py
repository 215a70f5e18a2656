"""What runs virtual hosts: chosen by what boots, not by what is installed."""

from __future__ import annotations

import time

import machine
import pytest
import virtual


@pytest.fixture(name="kernel")
def fixture_kernel(tmp_path, monkeypatch):
    """A program in place of User-mode Linux, on a machine without KVM."""
    monkeypatch.setattr(virtual.os, "access", lambda path, mode: False)

    def write(script):
        path = tmp_path / "linux.uml"
        path.write_text("#!/bin/sh\n" + script, encoding="utf-8")
        path.chmod(0o755)
        return path

    return write


@pytest.mark.parametrize(
    "script, chosen",
    [
        ("echo Linux version 6.1; exit 134", "uml"),
        ("echo ptrace: Operation not permitted; exit 1", "tcg"),
        ("exit 0", "tcg"),
    ],
)
def test_user_mode_linux_is_used_where_it_boots(kernel, tmp_path, script, chosen):
    assert virtual.accelerator({"uml": kernel(script)}, tmp_path) == chosen


def test_without_it_qemu_emulates(kernel, tmp_path):
    assert (
        virtual.accelerator({"uml": None}, tmp_path) == virtual.accelerator({}, tmp_path) == "tcg"
    )


def test_a_kernel_that_hangs_is_ended_with_all_its_processes(kernel, tmp_path, monkeypatch):
    monkeypatch.setattr(virtual, "PROBE_SECONDS", 1)
    assert (
        virtual.accelerator(
            {"uml": kernel('sleep 600 & echo $! > "%s"; sleep 600' % (tmp_path / "pid"))}, tmp_path
        )
        == "tcg"
    )
    deadline = time.monotonic() + 10
    while machine.command_of(int((tmp_path / "pid").read_text())) == "sleep":
        assert time.monotonic() < deadline
        time.sleep(0.05)
