"""What a host shows while all_reduce_perf runs: cards and counters, and the highest use of its GPUs, of processes of their own."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _bandwidth, _blame
from ansible_collections.trainyard.gpu.roles.train.files import _job_watch

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
    """The programs as they lie on the share, with a socket of this test, and nvidia-smi. Returns how they are called."""
    for path in FILES + [Path(module.__file__) for module in (_bandwidth, _blame, _job_watch)]:
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
