"""Whether a file system answers, where the call fails or never returns."""

from __future__ import annotations

import errno
import os
import signal
import time

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import (
    ask_file_system,
    existing,
)


@pytest.fixture(name="statvfs")
def _statvfs(monkeypatch):
    """The process that asks is forked, so it has what replaces the call."""
    return lambda call: monkeypatch.setattr(os, "statvfs", call)


def failing(number):
    def call(path):
        raise OSError(number, os.strerror(number), path)

    return call


def test_one_that_answers(tmp_path):
    assert ask_file_system(str(tmp_path), 5) == ("", "")


def test_a_path_that_does_not_exist(tmp_path):
    cause, error = ask_file_system(str(tmp_path / "none"), 5)
    assert cause == "fails" and error.startswith(
        "FileNotFoundError: [Errno 2] No such file or directory"
    )


@pytest.mark.parametrize(
    "number, cause", [(errno.ESTALE, "stale"), (errno.EIO, "fails"), (errno.EHOSTDOWN, "fails")]
)
def test_an_error_of_the_server(statvfs, number, cause):
    statvfs(failing(number))
    assert ask_file_system("/share", 5) == (
        cause,
        "OSError: [Errno %d] %s: '/share'" % (number, os.strerror(number)),
    )


def test_one_that_hangs_is_not_waited_for(statvfs, monkeypatch):
    fork, children = os.fork, []

    def recorded():
        children.append(fork())
        return children[-1]

    monkeypatch.setattr(os, "fork", recorded)
    statvfs(lambda path: time.sleep(60))
    began = time.monotonic()
    assert ask_file_system("/share", 0.3) == ("hangs", "no answer within 0.3 s")
    assert time.monotonic() - began < 5
    # It was killed. In a module it is left behind.
    assert os.WTERMSIG(os.waitpid(children[0], 0)[1]) == signal.SIGKILL


def test_a_process_that_is_killed_before_it_answers(statvfs):
    statvfs(lambda path: os.kill(os.getpid(), signal.SIGKILL))
    assert ask_file_system("/share", 5) == (
        "fails",
        "the process that asked it ended with status 9",
    )


def test_the_nearest_folder_that_exists(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    assert existing(str(tmp_path / "link" / "a" / "b")) == str(tmp_path.resolve())
