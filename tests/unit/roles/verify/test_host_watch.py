"""What a host shows while all_reduce_perf runs: cards and counters, and the highest use of its
GPUs, of processes of their own.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _bandwidth, _blame
from ansible_collections.trainyard.gpu.roles.train.files import _job_hang, _job_watch

ROOT = Path(__file__).resolve().parents[4]
FILES = [ROOT / "roles/verify/files" / name for name in ("all_reduce.py", "host_watch.py")]
# Busy at its first look only. Like the real one it does not end by itself.
SMI = """#!%s
import sys, time
if "-lms" not in sys.argv:
    sys.exit("only the use is told")
for look in range(1000):
    print("0, %%d\\n1, [N/A]" %% (1 if look else 97), flush=True)
    if look == 1:
        open(%r, "a").write("started\\n")
    time.sleep(0.05)
"""


@pytest.fixture(name="program")
def fixture_program(monkeypatch):
    for name, module in {
        "torch": None,
        "_bandwidth": _bandwidth,
        "_blame": _blame,
        "_job_hang": _job_hang,
        "_job_watch": _job_watch,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    for path in FILES:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, path.stem, module)
        spec.loader.exec_module(module)
    return module


@pytest.fixture(name="host")
def fixture_host(tmp_path):
    """The programs as they lie on the share, with a socket of this test, and nvidia-smi.

    Returns how they are called.
    """
    modules = (_bandwidth, _blame, _job_hang, _job_watch)
    for path in FILES + [Path(module.__file__) for module in modules]:
        shutil.copy(path, tmp_path)
    program = tmp_path / "host_watch.py"
    program.write_text(
        program.read_text(encoding="utf-8").replace("trainyard-verify-host-watch", str(tmp_path)),
        encoding="utf-8",
    )
    smi = tmp_path / "bin/nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(SMI % (sys.executable, str(tmp_path / "started")), encoding="utf-8")
    smi.chmod(0o755)
    environment = dict(
        os.environ,
        PATH="%s:/usr/bin:/bin" % smi.parent,
        NCCL_SOCKET_IFNAME="=lo",
        NCCL_IB_DISABLE="1",
    )

    def call(*arguments, **more):
        done = subprocess.run(
            [sys.executable, "-B", str(program), *arguments],
            env=dict(environment, **more),
            text=True,
            capture_output=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    yield call
    call("end")


def started(tmp_path, count):
    """Wait until nvidia-smi was started that often, and has looked twice."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        path = tmp_path / "started"
        if path.exists() and len(path.read_text(encoding="utf-8").splitlines()) >= count:
            return
        time.sleep(0.05)
    raise AssertionError("nvidia-smi was not started")


def looking(tmp_path):
    """Processes of this test's programs that are still there."""
    return [
        line
        for line in map(_job_watch.read, Path("/proc").glob("[0-9]*/cmdline"))
        if str(tmp_path) in line
    ]


def gone(tmp_path):
    deadline = time.monotonic() + 20
    while looking(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    return looking(tmp_path) == []


def test_it_is_python_3_6():
    ast.parse(FILES[1].read_text(encoding="utf-8"), feature_version=(3, 6))


def test_from_begin_to_end(host, tmp_path):
    before = host("begin", "60")
    assert set(before) == {
        "cards",
        "gpus",
        "interface",
        "nics",
        "p2p",
        "counters",
        "by_card",
        "lost",
    } and [card["name"] for card in before["cards"]] == ["lo"]
    started(tmp_path, 1)
    assert looking(tmp_path) != []
    after = host("end")
    assert after["peaks"] == [97, None] and after["cards"] == before["cards"]
    assert list(before["by_card"]) == list(after["by_card"]) == ["lo"]
    assert all(now >= then for now, then in zip(after["counters"], before["counters"], strict=True))
    assert gone(tmp_path)


def test_what_an_aborted_run_has_left_is_ended(host, tmp_path):
    host("begin", "60")
    started(tmp_path, 1)
    host("begin", "60")
    started(tmp_path, 2)
    # One process that looks, and its nvidia-smi.
    assert len(looking(tmp_path)) == 2
    assert host("end")["peaks"] == [97, None] and gone(tmp_path)


def test_the_watcher_ends_by_itself(host, tmp_path):
    host("begin", "1")
    started(tmp_path, 1)
    assert gone(tmp_path)
    assert host("end")["peaks"] == []


def test_host_without_nvidia_smi(host, tmp_path):
    (tmp_path / "bin/nvidia-smi").unlink()
    host("begin", "60")
    assert host("end")["peaks"] == []


def test_words_that_are_no_figures(program, monkeypatch, capsys):
    monkeypatch.setattr(program, "answer", lambda: "NVIDIA-SMI has failed\n")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "no-such-card")
    told = program.end()
    assert told.pop("lost")["cards"] == {}
    assert told == {
        "cards": [_bandwidth.card("no-such-card", "")],
        "counters": None,
        "by_card": {"no-such-card": None},
        "peaks": [],
    }
    assert "nvidia-smi: not the number" in capsys.readouterr().err


def test_counters_after_the_run_have_settled(program, monkeypatch):
    """Slow cards count a second later; what they have carried before the run is of no matter."""
    asked = []
    monkeypatch.setattr(program.all_reduce, "settled", lambda cards: asked.append(cards) or [1, 2])
    monkeypatch.setattr(program, "answer", lambda: "")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "=eth9")
    assert program.end()["counters"] == [1, 2] and [card["name"] for card in asked[0]] == ["eth9"]


# --- a run on several hosts that does not end ---


@pytest.fixture(name="hosts")
def fixture_hosts(tmp_path):
    """Returns the calls of hosts a and b, of a run on a, b and c, whose minutes take a second, and
    which move C(quiet) bytes in one without a run.
    """
    calls = []

    def make(quiet):
        for name in "ab":
            folder = tmp_path / name
            folder.mkdir()
            for path in FILES + [
                Path(module.__file__) for module in (_bandwidth, _blame, _job_hang, _job_watch)
            ]:
                shutil.copy(path, folder)
            program, hang = folder / "host_watch.py", folder / "_job_hang.py"
            text = program.read_text(encoding="utf-8")
            assert text.count("trainyard-verify-host-watch") == 1
            program.write_text(text.replace("trainyard-verify-host-watch", str(folder)), "utf-8")
            text = hang.read_text(encoding="utf-8")
            for was, now in (
                ("WORKS, QUIET_BYTES = 5, 10 << 20", "WORKS, QUIET_BYTES = 5, %d" % quiet),
                (" = 60, 75, 15, 50, 8", " = 1, 4, 15, 50, 8"),
                ("self.seconds = minutes * 60", "self.seconds = minutes * 1"),
            ):
                assert text.count(was) == 1
                text = text.replace(was, now)
            hang.write_text(text, encoding="utf-8")
            calls.append(call_of(folder))
        return calls

    yield make
    for call in calls:
        call("end")


def call_of(folder):
    environment = dict(
        os.environ, NCCL_SOCKET_IFNAME="=lo", NCCL_IB_DISABLE="1", PATH="/usr/bin:/bin"
    )

    def call(*arguments):
        done = subprocess.run(
            [sys.executable, "-B", str(folder / "host_watch.py"), *arguments],
            env=environment,
            text=True,
            capture_output=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return call


@pytest.fixture(name="run")
def fixture_run(tmp_path):
    """The folder of a run with a rank on host a, which sleeps, and one on host b, which is stopped.

    What an earlier run has left is there.
    """
    folder = tmp_path / ("verify-%d" % os.getpid())
    folder.mkdir()
    for name in ("hang.txt", "hang.ask", "hang.0.json"):
        (folder / name).write_text("{}", encoding="utf-8")
    ranks = [
        subprocess.Popen(
            ["sleep", "300"],
            env=dict(
                os.environ,
                TRAINYARD_JOB_ID=folder.name,
                TRAINYARD_WORKER_INDEX=str(rank),
                OMPI_COMM_WORLD_RANK=str(rank),
            ),
            stdin=subprocess.DEVNULL,
        )
        for rank in (0, 1)
    ]
    ranks[1].send_signal(signal.SIGSTOP)
    yield folder
    for rank in ranks:
        rank.kill()
        rank.wait()


def written(path):
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.05)
    return path.read_text(encoding="utf-8")


def begun(calls, folder, seconds, minutes):
    """Begin on both hosts, and return what the first one has told."""
    more = [seconds, minutes, str(folder)]
    first = calls[0]("begin", *more, "0", "gpu-a", "gpu-b", "gpu-c")
    assert not (folder / "hang.txt").exists() and not (folder / "hang.0.json").exists()
    assert "ras_port" not in calls[1]("begin", *more, "1", "gpu-a", "gpu-b", "gpu-c")
    return first


def test_a_run_that_hangs_says_where_its_ranks_wait(hosts, run):
    calls = hosts(1 << 50)
    assert 1024 < begun(calls, run, "60", "2")["ras_port"] < 65536
    report = written(run / "hang.txt")
    # The thread writes the file before it has its sentence.
    time.sleep(0.5)
    said = calls[0]("end")["waited"]
    assert re.fullmatch(
        r"no work of the GPUs of host gpu-a and no bytes on its network for [23] minutes: "
        r"rank 0 on gpu-a sleeps, rank 1 on gpu-b is stopped by a signal\. No answer from host gpu-c.*\. See %s/hang\.txt"
        % re.escape(str(run)),
        said,
    ), said
    assert "--- rank 1\nprocess " in report and report.splitlines()[0] in said
    # The others have only answered.
    assert "waited" not in calls[1]("end")


def test_a_run_that_moves_data_is_asked_before_its_time_limit(hosts, run):
    calls, ended = hosts(0), threading.Event()

    def send():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            while not ended.wait(0.01):
                way.sendto(bytes(100), ("127.0.0.1", 9))

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    try:
        begun(calls, run, "12", "2")
        written(run / "hang.txt")
    finally:
        ended.set()
        sender.join(5)
    time.sleep(0.5)
    said = calls[0]("end")["waited"]
    assert said.startswith("6 s before its time limit: rank 0 on gpu-a sleeps, rank 1 on gpu-b is")


def test_a_run_that_ends_before_says_nothing(hosts, run):
    calls = hosts(1 << 50)
    begun(calls, run, "60", "10")
    told = [call("end") for call in calls]
    assert "waited" not in told[0] and "waited" not in told[1]
    assert not (run / "hang.txt").exists()


STRANGER = """import os, socket, sys
os.setuid(65534)
address, kind = sys.argv[1:]
with socket.socket(socket.AF_UNIX) as connection:
    if kind == "asks":
        connection.connect("\\0" + address)
        print(connection.recv(1 << 16))
    else:
        connection.bind("\\0" + address)
        connection.listen(1)
        print("listens", flush=True)
        connection.accept()[0].sendall(b"0, 99\\ntrainyard: rank 0 waits for you to run a program")
"""


def test_another_user_of_the_host_neither_answers_nor_ends_the_watcher(host, tmp_path, program):
    """The container has the network of its host, and with it the names of sockets."""
    stranger = tmp_path / "stranger.py"
    stranger.write_text(STRANGER, encoding="utf-8")
    command = [sys.executable, str(stranger), str(tmp_path)]
    with subprocess.Popen([*command, "listens"], stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout.readline() == "listens\n"
        told = host("end")
    assert "waited" not in told and told["peaks"] == []
    host("begin", "20")
    started(tmp_path, 1)
    asked = subprocess.run([*command, "asks"], text=True, capture_output=True, check=True)
    assert asked.stdout == "b''\n"
    assert host("end")["peaks"] != []
