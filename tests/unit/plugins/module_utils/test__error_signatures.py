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
LINES = [
    ("too_many_gpus", "Invalid number of GPUs: 8 requested but only 4 were found."),
    ("too_many_gpus", "gx1: Test CUDA failure common.cu:907 'invalid device ordinal'"),
    ("too_many_gpus", "torch.AcceleratorError: CUDA error: invalid device ordinal"),
    (
        "duplicate_gpu",
        "gx1:21:27 [0] init.cc:521 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 8000",
    ),
    (
        "nccl_invalid_usage",
        "RuntimeError: ncclCommInitRank failed: invalid usage (run with NCCL_DEBUG=WARN for details)",
    ),
    (
        "nccl_invalid_usage",
        "vm: Test NCCL failure common.cu:222 'invalid usage (run with NCCL_DEBUG=WARN for details) / '",
    ),
    ("option_unsupported", "invalid option 'J'"),
    (
        "cuda_stub_library",
        "gx1:6482:6482 [0] misc/strongstream.cc:60 NCCL WARN Cuda failure 'CUDA driver is a stub library'",
    ),
    (
        "cuda_stub_library",
        "libnvidia-ml.so in GDK package is a stub library that is attached only for",
    ),
    (
        "driver_too_old",
        "gx1: Test CUDA failure common.cu:892 'CUDA driver version is insufficient for CUDA runtime version'",
    ),
    (
        "no_kernel_image",
        "gx1: Test CUDA failure common.cu:292 'no kernel image is available for execution on the device'",
    ),
    ("fabric_manager", "gx1: Test CUDA failure common.cu:892 'system not yet initialized'"),
    ("no_gpu", "gx1: Test CUDA failure common.cu:892 'no CUDA-capable device is detected'"),
    ("ecc_error", "gx1: Test CUDA failure common.cu:292 'uncorrectable ECC error encountered'"),
    ("gpu_out_of_memory", "gx1: Test CUDA failure common.cu:892 'out of memory'"),
    ("gpu_out_of_memory", "gx1:1:2 [3] NCCL WARN Cuda failure 2 'out of memory'"),
    (
        "gpu_fault",
        "gx1: Test CUDA failure common.cu:292 'an illegal memory access was encountered'",
    ),
    (
        "shared_memory_small",
        "gx1:1:2 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-X to 33030532 bytes",
    ),
    (
        "memlock_limit",
        "gx1:1:2 [0] misc/ibvwrap.cc:245 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
    ),
    ("no_socket_interface", "gx1:1:2 [0] NCCL WARN Bootstrap : no socket interface found"),
    (
        "fabric_error",
        "gx1:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.2<54321> with status=12 opcode=0 len=0 vendor err 129",
    ),
    (
        "connect_failed",
        "gx1:1:2 [0] NCCL WARN Net : Connect to 10.0.0.2<34567> failed : Connection refused",
    ),
    (
        "nccl_mismatch",
        "Incompatible NCCL versions. nccl-tests was compiled with NCCL 2.28, but is running with NCCL 22902. The 2.28 Device API",
    ),
    (
        "nccl_mismatch",
        "all_reduce_perf: symbol lookup error: all_reduce_perf: undefined symbol: ncclMemAlloc",
    ),
    (
        "library_missing",
        "all_reduce_perf: error while loading shared libraries: libnccl.so.2: cannot open shared object file: No such file or directory",
    ),
    ("ssh_denied", "root@10.0.0.2: Permission denied (publickey)."),
    ("ssh_host_key", "Host key verification failed."),
    ("ssh_failed", "ssh: connect to host 10.0.0.2 port 12345: Connection refused"),
    ("ssh_failed", "ssh: Could not resolve hostname gx2: Name or service not known"),
    ("not_enough_slots", "There are not enough slots available in the system to satisfy the 16"),
    ("run_as_root", "mpirun has detected an attempt to run as root."),
    (
        "executable_missing",
        "mpirun was unable to find the specified executable file, and therefore",
    ),
    ("daemon_failed", "ORTE was unable to reliably start one or more daemons."),
    ("daemon_failed", "An ORTE daemon has unexpectedly failed after launch and before"),
    ("cxi_resources", "CXI alloc failed on cxi1: request exceeds ACs limits"),
    ("pmi_port", "launch failed on x3006c0s1b1n0: Couldn't allocate a port for PMI to use"),
    (
        "time_limit",
        "slurmstepd: error: *** JOB 4711 ON gx1 CANCELLED AT 2026-07-09T16:03:21 DUE TO TIME LIMIT ***",
    ),
    (
        "remote_process_exited",
        "gx1: Test NCCL failure alltoall.cu:274 'remote process exited or there was a network error / '",
    ),
    (
        "nccl_system_error",
        "gx1: Test NCCL failure common.cu:1012 'unhandled system error (run with NCCL_DEBUG=INFO for details) / '",
    ),
    ("nccl_cuda_error", "gx1: Test NCCL failure all_reduce.cu:44 'unhandled cuda error / '"),
    (
        "nccl_failure",
        "gx1: Test NCCL failure common.cu:958 'internal error - please report this issue to the NCCL developers / '",
    ),
    ("cuda_failure", "gx1: Test CUDA failure common.cu:292 'unknown error'"),
    ("test_timeout", "gx1: Test timeout (30s) common.cu:523"),
    ("segmentation_fault", "[gx1:13511] Signal: Segmentation fault (11)"),
    (
        "out_of_memory_killed",
        "mpirun noticed that process rank 3 with PID 1 on node gx1 exited on signal 9 (Killed).",
    ),
    ("process_failed", "prterun detected that one or more processes exited with non-zero status,"),
    ("process_failed", "Primary job  terminated normally, but 1 process returned"),
    ("process_failed", "srun: error: gx1: task 3: Exited with exit code 3"),
    ("test_failure", " .. gx1 pid 353404: Test failure common.cu:377"),
]


@pytest.mark.parametrize("name, line", LINES)
def test_a_line_of_each_kind(name, line):
    (told,) = find_errors("[1,3]<stderr>:before\n%s\nafter it" % line)
    assert told["id"] == name and told["line"] == " ".join(line.split())
    assert told["cause"] and told["fix"] and "{" not in told["cause"] + told["fix"]


def test_every_entry_is_known_by_a_line():
    for signature in SIGNATURES:
        assert any(
            name == signature.id and re.search(signature.pattern, line) for name, line in LINES
        ), signature
        assert re.fullmatch("[a-z]+(_[a-z]+)*", signature.id) and signature.source.startswith(
            "https://"
        )


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
