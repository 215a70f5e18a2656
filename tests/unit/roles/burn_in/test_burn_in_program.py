"""The load of a burn-in: what its numbers rest on, and the program with PyTorch on CPUs, with a
rank that is held back and one that computes wrongly.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from role_variables import role_variable

from ansible_collections.trainyard.gpu.plugins.module_utils import _burn_in
from ansible_collections.trainyard.gpu.roles.burn_in.files import burn_in
from ansible_collections.trainyard.gpu.tests.support import torch_python

PROGRAM = Path(burn_in.__file__)

# --- what the numbers rest on ---


@pytest.mark.parametrize("size", [5, 20, 40])
def test_the_product_of_the_matrices_is_known(size):
    left = [
        [(row * 7 + column) % burn_in.PERIOD - 2 for column in range(size)] for row in range(size)
    ]
    right = [
        [(row + column * 3) % burn_in.PERIOD - 2 for column in range(size)] for row in range(size)
    ]
    for row in range(size):
        for column in range(size):
            product = sum(left[row][step] * right[step][column] for step in range(size))
            place = (row * 7 - column * 3) % burn_in.PERIOD
            assert product == burn_in.PRODUCTS[place] * (size // burn_in.PERIOD)


def test_no_precision_rounds_the_products():
    """bfloat16 has 8 bits of mantissa, float16 11 and values up to 65504."""
    sizes = {10240, *burn_in.SIZES["cuda"].values(), *burn_in.SIZES["cpu"].values()}
    for size in sizes:
        while size >= burn_in.LEAST_SIZE // 2:
            for product in burn_in.PRODUCTS:
                value = abs(product) * (size // burn_in.PERIOD)
                assert value <= 65504
                while value and value % 2 == 0:
                    value //= 2
                assert value < 2**8
            size //= 2


def test_the_patterns_flip_each_bit():
    words = [pattern & (2**64 - 1) for pattern in burn_in.PATTERNS]
    assert all({word >> bit & 1 for word in words} == {0, 1} for bit in range(64))
    assert {words[2] ^ words[3], words[0] ^ words[1]} == {2**64 - 1}


@pytest.mark.parametrize(
    "text, found", [("0-3", [0, 1, 2, 3]), ("0,2-3", [0, 2, 3]), ("", []), ("junk,1", [1])]
)
def test_lists_of_cpus(text, found):
    assert burn_in.numbers(text) == found


def test_cpus_that_are_off_or_slow(tmp_path):
    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text + "\n", encoding="ascii")

    write("present", "0-7")
    write("online", "0-7")
    assert burn_in.host_faults(str(tmp_path)) == []
    write("online", "0-5")
    drivers = ("acpi-cpufreq", "intel_cpufreq", "intel_pstate", "amd-pstate-epp")
    for number, driver in enumerate(drivers):
        write("cpu%d/cpufreq/scaling_governor" % number, "powersave")
        write("cpu%d/cpufreq/scaling_driver" % number, driver)
    # With the drivers of the last two, powersave is the usual governor and slows nothing.
    assert burn_in.host_faults(str(tmp_path)) == [
        "2 CPUs are present but not online: 6, 7",
        "the governor of 2 CPUs is powersave",
    ]


def test_the_memory_of_the_host_keeps_what_was_written(monkeypatch):
    assert burn_in.check_memory(10 << 12, 1 << 12) == 0 and burn_in.check_memory(5, 8) == 0

    class Flips(bytearray):
        """One bit of one byte is stuck, as in a broken module."""

        def __setitem__(self, place, value):
            super().__setitem__(place, value)
            super().__setitem__(7, self[7] | 4)

    monkeypatch.setattr(burn_in, "bytearray", Flips, raising=False)
    # Patterns 0xFF have the bit, and 0x55, too.
    assert burn_in.check_memory(4 << 12, 1 << 12) == 8


@pytest.mark.parametrize(
    "text, free", [("MemTotal: 9 kB\nMemAvailable:   2048 kB\n", 2 << 20), ("", 0)]
)
def test_free_memory(text, free):
    assert burn_in.free_memory(text) == free


@pytest.mark.parametrize(
    "counts, now, faults, remarks",
    [
        ((5, 1), (160.0, 60.0), [], []),
        (
            (9, 3),
            (160.4, 60.0),
            ["2 uncorrectable errors of the host's memory during the run"],
            ["4 corrected errors of the host's memory during the run"],
        ),
        ((5, 1), (157.5, 60.0), [], ["the clock of the host was set by -2.5 s during the run"]),
    ],
)
def test_errors_of_the_memory_of_the_host(tmp_path, monkeypatch, counts, now, faults, remarks):
    """A tree like /sys with two controllers. Errors before the run are of no interest."""
    monkeypatch.setattr(burn_in.memory_errors, "__defaults__", (str(tmp_path),))
    assert burn_in.memory_errors() == [0, 0]

    def write(ce, ue):
        for name, values in (("mc0", (ce, ue)), ("mc1", (0, 0))):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "ce_count").write_text("%d\n" % values[0], encoding="ascii")
            (tmp_path / name / "ue_count").write_text("%d\n" % values[1], encoding="ascii")

    write(5, 1)
    before, answer = burn_in.memory_errors(), {"faults": [], "remarks": []}
    write(*counts)
    burn_in.end_of_host(answer, before, (100.0, 0.0), now)
    assert (before, answer) == ([5, 1], {"faults": faults, "remarks": remarks})


def test_the_disk_keeps_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(burn_in, "DISK_BYTES", 8 << 20)
    written, loaded, wrong = burn_in.disk(str(tmp_path))
    assert written > 0 and loaded > 0 and wrong == 0 and os.listdir(tmp_path) == []
    found = burn_in.host({"local": str(tmp_path / "missing")})
    assert found["rates"] == {} and "the disk of local" in found["faults"][-1]


@pytest.mark.parametrize(
    "said, found",
    [
        ("GPU-a, Disabled\nGPU-b, [N/A]\n", ["GPU-a", "GPU-b"]),
        ("GPU-a, Enabled\nGPU-b, Disabled\n", ["GPU-b"]),
        ("No devices were found\n", []),
    ],
)
def test_gpus_of_the_container(tmp_path, monkeypatch, said, found):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nprintf '%s'" % said.replace("\n", "\\n"), encoding="ascii")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert burn_in.gpus() == found


@pytest.mark.parametrize("ranks, count", [("0", 4), (0, 4), ("3", 3), (None, 4)])
def test_the_number_of_ranks(monkeypatch, ranks, count):
    """Numbers of Ansible may be texts. Without one there is a rank for each two CPUs."""
    started = []
    nothing = SimpleNamespace(
        cuda=SimpleNamespace(is_available=lambda: False),
        __version__="2.4",
        version=SimpleNamespace(cuda=None),
    )
    monkeypatch.setattr(burn_in, "torch", nothing, raising=False)
    monkeypatch.setattr(burn_in.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(burn_in, "start", lambda words, _environment: started.append(words))
    monkeypatch.setattr(burn_in, "answer_of", lambda _process: {})
    # A gigabyte in a test would be too much.
    monkeypatch.setattr(burn_in, "check_memory", lambda _size: 0)
    burn_in.conduct({"seconds": "60", "ranks": ranks})
    assert started == [["rank", "cpu", "60", str(number)] for number in range(count)]


def test_without_nvidia_smi_nothing_is_known(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert burn_in.gpus() is None


def test_a_rank_that_dies_says_why():
    child = subprocess.Popen(
        [sys.executable, "-c", "raise SystemExit('CUDA error: an illegal memory access')"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert burn_in.answer_of(child) == {
        "error": "it ended with code 1: CUDA error: an illegal memory access"
    }


def test_gpus_in_use():
    """Without a scheduler, no run has waited for their programs."""

    def users(*processes):
        cards = [{"processes": each} for each in processes]
        return role_variable("burn_in", "__burn_in_users", __burn_in_gpus_before={"gpus": cards})

    mine = {"pid": 7, "name": "python3", "type": "C"}
    display = {"pid": 8, "name": "Xorg", "type": "G"}
    assert users(None, [], [display], [dict(display, type=None)]) == []
    assert users([display], [mine]) == [mine]
    assert role_variable("burn_in", "__burn_in_users") == []


# --- the program ---


def burn(tmp_path, meanwhile=lambda process: None, path="", **plan):
    """Run the program with two ranks, and return the devices and the findings."""
    process = subprocess.Popen(
        [torch_python.python(), "-B", str(PROGRAM)],
        env=dict(
            os.environ,
            PYTHONPATH=path,
            TRAINYARD_BURN_IN=json.dumps(
                dict({"seconds": "3", "ranks": "2", "folders": {}}, **plan)
            ),
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        meanwhile(process)
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, err.decode()
    run = {"rc": 0, "stdout_lines": out.decode().splitlines()}
    answer = _burn_in.answer_of(run)
    found = _burn_in.judge(
        _burn_in.of_hosts({"host-a": {"run": run, "serial": ""}}), {}, lambda _model: {}
    )
    return answer, found["devices"], {entry["id"]: entry for entry in found["checks"]}


@pytest.mark.acceptance
def test_a_healthy_host(tmp_path):
    answer, devices, checks = burn(tmp_path, folders={"local": str(tmp_path)})
    assert [device["serial"] for device in devices] == ["host-a-cpu-0", "host-a-cpu-1", "host-a"]
    for rank in answer["ranks"]:
        assert set(rank["rates"]) == {"matmul_float64", "matmul_float32", "memory"}
        assert all(len(samples) >= burn_in.ROUNDS for samples in rank["rates"].values())
        assert set(rank["wrong"].values()) == {0} and rank["error"] == ""
        # One for each rank is added to the host, whose ranks share its CPUs.
        assert rank["wrong"]["all_reduce"] == 0
    assert len(answer["host"]["rates"]["all_reduce"]) == burn_in.ROUNDS
    assert checks["burn-in-results"]["verdict"] == "pass"
    assert answer["software"].startswith("torch ")


# What a broken adder does: one bit of one value, each time.
WRONG = """
import sys
def patch():
    import torch
    multiply = torch.matmul
    def wrong(left, right):
        product = multiply(left, right)
        if sys.argv[-1] == "1" and product.dtype == torch.float32:
            product.view(torch.int32)[3, 4] ^= 1
        return product
    torch.matmul = wrong
patch()
"""


@pytest.mark.acceptance
def test_one_wrong_bit_is_named(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WRONG, encoding="ascii")
    _answer, devices, checks = burn(tmp_path, path=str(tmp_path))
    found = checks["burn-in-results"]
    assert found["verdict"] == "fail" and "rank 1" in found["found"]
    assert "matmul_float32" in found["found"] and "rank 0" not in found["found"]
    assert [device["index"] for device in devices if device["wrong"]] == [1]


SUMS = """
import sys
def patch():
    import torch.distributed
    add = torch.distributed.all_reduce
    def wrong(data):
        if "ring" in sys.argv and sys.argv[2] == "1":
            %s
        add(data)
    torch.distributed.all_reduce = wrong
patch()
"""


@pytest.mark.acceptance
@pytest.mark.parametrize(
    "fault, said",
    [
        ("data[7] += 1", "wrong values in all_reduce"),
        ("raise SystemExit('NCCL error: unhandled cuda error')", "the all-reduce of this host: "),
    ],
)
def test_a_wrong_sum_and_a_rank_that_dies(tmp_path, fault, said):
    (tmp_path / "sitecustomize.py").write_text(SUMS % fault, encoding="ascii")
    _answer, _devices, checks = burn(tmp_path, path=str(tmp_path))
    found = checks["burn-in-results"]
    assert found["verdict"] == "fail" and said in found["found"]


def ranks_of(process):
    """Return the processes of the ranks, in their order."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
            parent = int((path.parent / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if parent == process.pid and b"rank" in words:
            found[int(words[-2])] = int(path.parent.name)
    return found


@pytest.mark.acceptance
def test_a_rank_that_is_held_back_is_named(tmp_path):
    """As cpulimit does it, and much like a control group: the process runs for a fifth of each
    tenth of a second.
    """

    def hold(process):
        deadline = time.monotonic() + 120
        while len(ranks_of(process)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        slow = ranks_of(process)[1]

        def limit():
            try:
                while True:
                    os.kill(slow, signal.SIGSTOP)
                    time.sleep(0.08)
                    os.kill(slow, signal.SIGCONT)
                    time.sleep(0.02)
            except ProcessLookupError:
                pass

        threading.Thread(target=limit, daemon=True).start()

    _answer, devices, checks = burn(tmp_path, hold, seconds=6)
    found = checks["burn-in-speed"]
    assert found["verdict"] == "fail" and "rank 1" in found["found"]
    assert "rank 0" not in found["found"]
    assert [device["index"] for device in devices if device["verdict"] == "fail"] == [1]


@pytest.mark.acceptance
def test_ranks_end_with_their_starter(tmp_path):
    """A run that was killed must not load the host for an hour."""
    alive = {}

    def kill(process):
        deadline = time.monotonic() + 120
        while len(ranks_of(process)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        alive.update(ranks_of(process))
        # PyTorch takes seconds to load.
        time.sleep(10)
        process.kill()

    with pytest.raises(AssertionError):
        burn(tmp_path, kill, seconds=600)
    have_ended(alive)


def test_a_rank_whose_starter_is_gone_before_it_begins(monkeypatch):
    """PyTorch takes long to load on a busy host."""
    done = []
    device = burn_in.Device.__new__(burn_in.Device)
    device.kind = "cpu"
    monkeypatch.setattr(device, "multiply", lambda name, _span: done.append(name), raising=False)
    monkeypatch.setattr(device, "remember", lambda _span: done.append("memory"), raising=False)
    monkeypatch.setenv(burn_in.STARTER, "1" if os.getppid() != 1 else "2")
    device.burn(600)
    assert done == []
    monkeypatch.setenv(burn_in.STARTER, str(os.getppid()))
    device.burn(0)
    assert len(done) == 3 * burn_in.ROUNDS


def have_ended(ranks):
    deadline = time.monotonic() + 60
    while any(os.path.exists("/proc/%d" % pid) for pid in ranks.values()):
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.acceptance
def test_the_load_ends_with_its_input():
    """docker exec leaves the program in the container when it is killed itself.

    A job that is preempted must not load the host on.
    """
    plan = json.dumps({"seconds": 600, "ranks": 2, "leash": True})
    process = subprocess.Popen(
        [torch_python.python(), "-B", str(PROGRAM)],
        env=dict(os.environ, TRAINYARD_BURN_IN=plan),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 120
        while len(ranks_of(process)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        alive = ranks_of(process)
        assert len(alive) == 2 and process.poll() is None
        process.stdin.close()
        assert process.wait(timeout=20) == 1
    finally:
        process.kill()
    have_ended(alive)
