# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import subprocess
import threading
import time

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _transient_unit as unit


@pytest.mark.parametrize(
    ("data", "final", "lines", "consumed"),
    [
        pytest.param(b"", False, [], 0, id="nothing"),
        pytest.param(b"half a li", False, [], 0, id="half a line waits"),
        pytest.param(b"half a li", True, ["half a li"], 9, id="half a line at the end is shown"),
        pytest.param(b"one\ntwo\nthr", False, ["one", "two"], 8, id="whole lines first"),
        pytest.param(b"one\r\ntwo\r\n", False, ["one", "two"], 10, id="CRLF"),
        pytest.param(b"one\r", False, [], 0, id="a carriage return may be half of a CRLF"),
        pytest.param(
            b" 10%\r 20%\r 30%",
            False,
            [" 20%"],
            10,
            id="a growing progress bar shows its last whole state",
        ),
        pytest.param(
            b" 10%\r 20%\rdone\n", False, ["done"], 15, id="a finished progress bar shows its end"
        ),
        pytest.param(b"caf\xe9\n", False, ["caf\ufffd"], 5, id="not UTF-8"),
        pytest.param(
            b"\x1b[31mred\x1b[0m\x07 \x1b]0;title\x07x\n",
            False,
            ["red x"],
            26,
            id="terminal escapes",
        ),
        pytest.param(b"a\tb\n\n", False, ["a\tb", ""], 5, id="tab and empty line stay"),
        pytest.param("größer\n".encode("utf-8"), False, ["größer"], 9, id="UTF-8 stays"),
    ],
)
def test_take_lines(data, final, lines, consumed):
    assert unit.take_lines(data, final) == (lines, consumed)


def test_take_lines_cuts_what_never_ends():
    data = b"x" * (unit.LONGEST_LINE * 2 + 1)
    lines, consumed = unit.take_lines(data)
    assert [len(line) for line in lines] == [unit.LONGEST_LINE, unit.LONGEST_LINE, 1]
    assert consumed == len(data)


def test_abridge_counts_what_it_leaves_out():
    lines = [str(number) for number in range(1000)]
    short = unit.abridge(lines, 40, "/var/log/x.log")
    assert len(short) == 40
    assert short[:10] == lines[:10]
    assert short[10] == "... 961 lines left out here; see the whole log in /var/log/x.log"
    assert short[11:] == lines[-29:]
    assert unit.abridge(lines, 1000, "x") == lines


def test_start_script_passes_values_as_they_are(tmp_path):
    value = "a b$HOME 'x' \"y\" `id` %h\nsecond line"
    script = unit.start_script(
        "u",
        str(tmp_path),
        ["sh", "-c", 'printf %s "$VALUE$1"', "sh", value],
        {"VALUE": value},
        "/",
        0,
    )
    assert (
        subprocess.run(["sh", "-c", script], check=True, stdout=subprocess.PIPE).stdout.decode()
        == value * 2
    )


def test_start_script_without_its_directory(tmp_path):
    script = unit.start_script("u", str(tmp_path), ["true"], {}, str(tmp_path / "absent"), 0)
    assert (
        subprocess.run(["sh", "-c", script], check=False, stderr=subprocess.PIPE).returncode == 200
    )


def test_stop_script_writes_the_result_after_the_stop_command(tmp_path):
    script = unit.stop_script(
        str(tmp_path), {"WHO": "me"}, ["sh", "-c", "echo $WHO; ls %s" % tmp_path], 5
    )
    out = subprocess.run(
        ["sh", "-c", script],
        check=True,
        stdout=subprocess.PIPE,
        env={
            "SERVICE_RESULT": "exit-code",
            "EXIT_CODE": "exited",
            "EXIT_STATUS": "7",
            "PATH": "/usr/bin:/bin",
        },
    ).stdout
    assert out == b"me\n"
    end = unit.parse_result((tmp_path / "result").read_text())
    assert (end["rc"], end["result"], end["signal"]) == (7, "exit-code", None)
    assert end["uptime"] > 0


@pytest.mark.parametrize(
    ("text", "rc", "result", "words"),
    [
        ("success exited 0 12.5\n", 0, "success", "ended with exit code 0"),
        ("exit-code exited 3 12.5\n", 3, "exit-code", "ended with exit code 3"),
        ("signal killed KILL 12.5\n", 137, "signal", "was ended by SIGKILL"),
        ("timeout killed TERM 12.5\n", 143, "timeout", "was stopped after its timeout of 60 s"),
        ("success killed TERM 12.5\n", 143, "stopped", "was stopped on the host"),
        ("core-dump dumped SEGV 12.5\n", 139, "core-dump", "was ended by SIGSEGV"),
        (
            "oom-kill killed KILL 12.5\n",
            137,
            "oom-kill",
            "was killed by the kernel because memory was full",
        ),
    ],
)
def test_results_of_units(text, rc, result, words):
    end = unit.parse_result(text)
    assert (end["rc"], end["result"]) == (rc, result)
    assert unit.describe_end(end, 60, 15) == words


@pytest.fixture
def look(tmp_path, monkeypatch):
    """Runs the look script against a unit's folder and log in tmp_path, with a systemctl that says
    what `active` says.
    """
    monkeypatch.setattr(unit, "RUN_DIRECTORY", str(tmp_path / "run of it"))
    monkeypatch.setattr(unit, "SILENT_SECONDS", 1)
    folder, log, asked = tmp_path / "run of it/u", tmp_path / "the log", tmp_path / "systemctl"
    folder.mkdir(parents=True)
    asked.write_text("#!/bin/sh\ncat %s/active\n" % tmp_path)
    asked.chmod(0o755)

    def run(inode=None, offset=0, active="active", lease=0):
        (tmp_path / "active").write_text(active)
        (folder / "look").write_text(unit.look_script("u", str(folder), str(log), lease))
        command = unit.look_command("u", inode if inode is not None else log.stat().st_ino, offset)
        done = subprocess.run(
            ["sh", "-c", command],
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": "%s:/usr/bin:/bin" % tmp_path},
        )
        assert done.stderr == b""
        return unit.parse_look(done.stdout.decode())

    run.folder, run.log = folder, log
    return run


def test_look_brings_new_bytes_as_they_are(look):
    data = bytes(range(256)) * 20 + b"trainyard-seen\n"
    look.log.write_bytes(b"old\n" + data)
    seen = look(offset=4)
    assert seen == {
        "end": None,
        "inode": look.log.stat().st_ino,
        "offset": 4,
        "skipped": 0,
        "data": data,
    }


def test_look_waits_for_output_and_then_for_more(look, monkeypatch):
    monkeypatch.setattr(unit, "SILENT_SECONDS", 20)
    monkeypatch.setattr(unit, "WAIT_SECONDS", 1)
    look.log.write_bytes(b"")
    writer = threading.Timer(0.5, look.log.write_bytes, [b"one\n"])
    writer.start()
    begun = time.monotonic()
    assert look()["data"] == b"one\n"
    writer.join()
    assert 1.2 < time.monotonic() - begun < 10


def test_look_ends_when_the_unit_has_ended(look, monkeypatch):
    monkeypatch.setattr(unit, "SILENT_SECONDS", 20)
    look.log.write_bytes(b"")
    writer = threading.Timer(
        0.5, (look.folder / "result").write_text, ["exit-code exited 3 12.5\n"]
    )
    writer.start()
    begun = time.monotonic()
    assert look()["end"] == {"rc": 3, "result": "exit-code", "signal": None, "uptime": 12.5}
    writer.join()
    assert time.monotonic() - begun < 10


def test_look_tells_a_lapsed_lease(look):
    look.log.write_bytes(b"")
    (look.folder / "result").write_text("success killed TERM 12.5\n")
    (look.folder / "lapsed").write_text("")
    assert look()["end"]["result"] == "lapsed"


def test_look_on_a_host_that_was_restarted(tmp_path, monkeypatch):
    monkeypatch.setattr(unit, "RUN_DIRECTORY", str(tmp_path))
    seen = unit.parse_look(
        subprocess.run(
            ["sh", "-c", unit.look_command("u", 1, 2)], check=True, stdout=subprocess.PIPE
        ).stdout.decode()
    )
    assert (seen["end"]["rc"], seen["end"]["result"], seen["data"]) == (255, "lost", b"")


def test_look_tells_a_unit_that_is_gone_and_its_last_bytes(look):
    look.log.write_bytes(b"last words\n")
    seen = look(active="inactive")
    assert (seen["end"]["rc"], seen["end"]["result"], seen["data"]) == (
        255,
        "lost",
        b"last words\n",
    )
    assert seen["end"]["uptime"] > 0


def test_look_on_a_systemctl_that_does_not_answer(look):
    look.log.write_bytes(b"")
    with pytest.raises(
        ValueError, match="systemctl cannot tell whether it runs: Failed to connect [*]"
    ):
        look(active="Failed to\nconnect *")


def test_look_renews_the_lease_and_leaves_nothing_beside_it(look):
    look.log.write_bytes(b"")
    with open("/proc/uptime") as stream:
        now = float(stream.read().split()[0])
    look(lease=15)
    assert abs(float((look.folder / "lease").read_text()) - now) < 2
    assert sorted(os.listdir(look.folder)) == ["lease", "look"]
    (look.folder / "lease").unlink()
    look(lease=0)
    assert os.listdir(look.folder) == ["look"]


def test_look_after_rotation_and_truncation(look):
    look.log.write_bytes(b"new\n")
    assert (look(inode=1, offset=3)["offset"], look(inode=1, offset=3)["data"]) == (0, b"new\n")
    assert (look(offset=100)["offset"], look(offset=100)["data"]) == (0, b"new\n")
    look.log.unlink()
    assert look(inode=1, offset=3) == {
        "end": None,
        "inode": 1,
        "offset": 3,
        "skipped": 0,
        "data": b"",
    }


def test_look_skips_what_is_too_much(look, monkeypatch):
    monkeypatch.setattr(unit, "BYTES_PER_LOOK", 10)
    look.log.write_bytes(b"a" * 5 + b"b" * 20 + b"c" * 10)
    seen = look(offset=5)
    assert (seen["offset"], seen["skipped"], seen["data"]) == (25, 20, b"c" * 10)


def test_a_secret_of_several_lines_is_hidden_line_by_line():
    """As a private key, of which each line of output has a part."""
    key = "-----BEGIN-----\r\nhunter2\r\n{\r\nhunter3\n"
    secrets = unit.secret_texts({"KEY": key, "other": ["x", "tab\there", "red\x1b[31m"]})
    for line in ("is hunter2.", "hunter3", "x", "tab\there", "red"):
        shown = unit.without_secrets(line, secrets)
        assert "********" in shown and not any(secret in shown for secret in secrets)
    # A brace alone says nothing, and a report without braces cannot be read.
    assert unit.without_secrets("{", secrets) == "{"
