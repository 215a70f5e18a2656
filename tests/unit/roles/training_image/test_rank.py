# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import importlib.util
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

RANK = Path(__file__).resolve().parents[4] / "roles" / "training_image" / "files" / "rank.py"
_spec = importlib.util.spec_from_file_location("rank", RANK)
rank = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(rank)

# /proc/net/fib_trie of a host with one interface and Docker, shortened.
FIB_TRIE = """\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 127.0.0.0/8 2 0 2
           |-- 127.0.0.0
              /8 host LOCAL
           |-- 127.0.0.1
              /32 host LOCAL
        |-- 127.255.255.255
           /32 link BROADCAST
     +-- 172.30.77.0/24 2 0 2
        |-- 172.30.77.0
           /24 link UNICAST
        |-- 172.30.77.11
           /32 host LOCAL
        |-- 172.30.77.255
           /32 link BROADCAST
Local:
        |-- 172.30.77.11
           /32 host LOCAL
"""


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({"HOROVOD_RANK": "3", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_SIZE": "4"}, (3, 1, 4)),
        ({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}, (0, 0, 2)),
        (
            {
                "OMPI_COMM_WORLD_RANK": "5",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "8",
                "RANK": "",
            },
            (5, 1, 8),
        ),
        ({"RANK": "none"}, (None, None, None)),
    ],
)
def test_place(environment, place):
    assert rank.place(environment) == place


def test_local_addresses():
    assert rank.local_addresses(FIB_TRIE) == ["127.0.0.1", "172.30.77.11"]


def test_container_id():
    line = (
        "812 800 254:0 /var/lib/docker/containers/%s/resolv.conf /etc/resolv.conf rw,relatime - ext4 /dev/vda rw"
        % ("a1" * 32)
    )
    assert rank.container_id("800 1 0:1 / / rw - overlay overlay rw\n" + line) == "a1" * 32
    assert rank.container_id("800 1 0:1 / / rw - overlay overlay rw\n") is None


def start(folder, *command, **kwargs):
    environment = {
        "PATH": os.environ["PATH"],
        "TRAINYARD_JOB_DIR": str(folder),
        "RANK": "1",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "2",
    }
    return subprocess.Popen(
        [sys.executable, str(RANK)] + list(command),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **kwargs,
    )


def test_processes_that_the_kernel_has_killed():
    assert rank.oom_kills("oom_kill 12\nnr_free_pages 3\n") == 12
    assert rank.oom_kills("drop_slab 1\noom_kill_x 4\n") is None and rank.oom_kills("") is None


def test_memory_that_was_full_is_in_the_record(tmp_path):
    """The counter of the host grows while the rank runs."""
    counter = tmp_path / "vmstat"
    counter.write_text("oom_kill 4\n", encoding="ascii")
    program = RANK.read_text(encoding="utf-8").replace("/proc/vmstat", str(counter))
    (tmp_path / "rank.py").write_text(program, encoding="utf-8")
    done = subprocess.run(
        [
            sys.executable,
            tmp_path / "rank.py",
            "sh",
            "-c",
            "echo oom_kill 6 > %s; kill -9 $$" % counter,
        ],
        env=dict(os.environ, TRAINYARD_JOB_DIR=str(tmp_path), RANK="0"),
        check=False,
    )
    told = json.loads((tmp_path / "rank.0.json").read_text(encoding="utf-8"))
    assert (done.returncode, told["exit_code"], told["oom_kills"]) == (137, 137, 2)


def test_a_rank_leaves_its_record(tmp_path):
    process = start(
        tmp_path,
        "sh",
        "-c",
        'echo one; printf "10%%\\r20%%\\rhalf"; echo \'{"checksum": "c", "metrics": {"loss": 1}}\' > $TRAINYARD_RANK_REPORT; exit 3',
    )
    out = process.communicate(timeout=20)[0].decode().splitlines()
    assert process.returncode == 3
    said = "trainyard: rank ended with exit code 3"
    assert [line.split("] ", 1)[1] for line in out] == ["one", "10%", "20%", "half", said]
    assert all(line.startswith("[1 ") for line in out)
    assert (tmp_path / "rank.1.log").read_bytes() == b"one\n10%\r20%\rhalf"
    record = json.loads((tmp_path / "rank.1.json").read_text())
    assert (record["rank"], record["slot"], record["world_size"], record["exit_code"]) == (
        1,
        0,
        2,
        3,
    )
    assert record["report"] == {"checksum": "c", "metrics": {"loss": 1}}
    assert "127.0.0.1" in record["addresses"]


def test_a_rank_that_failed_says_so_to_the_launcher(tmp_path):
    """Its log has only what the command printed."""
    for command, code in (("exit 3", 3), ("kill -9 $$", 137), ("exit 0", 0)):
        process = start(tmp_path, "sh", "-c", "echo a; " + command)
        said = process.communicate(timeout=30)[0]
        prefix = b"[1 %s] " % socket.gethostname().encode()
        end = prefix + b"trainyard: rank ended with exit code %d\n" % code if code else b""
        assert said == prefix + b"a\n" + end
        assert (tmp_path / "rank.1.log").read_bytes() == b"a\n"


@pytest.mark.parametrize(
    "command, code, said",
    [
        ("no-such-trainer", 127, "no-such-trainer: command not found"),
        ("./plain", 126, "./plain: Permission denied"),
    ],
)
def test_a_command_that_cannot_be_started(tmp_path, command, code, said):
    """Its record has an exit code: one without was killed, most often because memory was full."""
    (tmp_path / "plain").touch()
    done = subprocess.run(
        [sys.executable, str(RANK), command],
        cwd=tmp_path,
        env=dict(os.environ, RANK="0", TRAINYARD_JOB_DIR=str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, b"")
    assert json.loads((tmp_path / "rank.0.json").read_text(encoding="utf-8"))["exit_code"] == code
    assert said in (tmp_path / "rank.0.log").read_text(encoding="utf-8")
    assert said in done.stdout.decode()


def test_an_aborted_rank_leaves_no_core_file(tmp_path):
    process = start(tmp_path, "sh", "-c", "ulimit -Sc; ulimit -Hc", preexec_fn=allow_core_files)
    assert process.communicate(timeout=20)[0].decode().splitlines() == [
        "[1 %s] 0" % socket.gethostname(),
        "[1 %s] 8" % socket.gethostname(),
    ]


def allow_core_files():
    resource.setrlimit(resource.RLIMIT_CORE, (4096, 4096))


def wait_for(path, text):
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if path.exists() and text in path.read_text():
            return
        time.sleep(0.05)
    raise AssertionError("%s never had %r" % (path, text))


def test_sigterm_reaches_the_whole_command(tmp_path):
    process = start(tmp_path, "sh", "-c", "echo ready; sleep 600; echo never")
    wait_for(tmp_path / "rank.1.log", "ready")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGTERM
    assert json.loads((tmp_path / "rank.1.json").read_text())["exit_code"] == 128 + signal.SIGTERM


def test_a_killed_rank_takes_its_command_along(tmp_path):
    process = start(tmp_path, "sh", "-c", "echo $$; exec sleep 600")
    wait_for(tmp_path / "rank.1.log", "\n")
    child = int((tmp_path / "rank.1.log").read_text())
    process.kill()
    process.communicate(timeout=20)
    until = time.monotonic() + 10
    while (
        time.monotonic() < until
        and os.path.exists("/proc/%d/cmdline" % child)
        and b"sleep" in Path("/proc/%d/cmdline" % child).read_bytes()
    ):
        time.sleep(0.1)
    assert (
        not os.path.exists("/proc/%d" % child)
        or Path("/proc/%d/cmdline" % child).read_bytes() == b""
    )
    assert json.loads((tmp_path / "rank.1.json").read_text())["exit_code"] is None


def test_what_a_command_leaves_behind_does_not_hold_the_rank(tmp_path):
    process = start(tmp_path, "sh", "-c", "sleep 15 & echo done")
    began = time.monotonic()
    process.communicate(timeout=20)
    assert process.returncode == 0
    assert time.monotonic() - began < 10


def test_without_a_rank_it_says_how_it_is_used(tmp_path):
    done = subprocess.run(
        [sys.executable, str(RANK), "true"],
        env={"TRAINYARD_JOB_DIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        check=False,
    )
    assert done.returncode == 1
    assert b"usage" in done.stderr
