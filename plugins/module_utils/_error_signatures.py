# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Errors of NCCL, CUDA, launchers and ssh in failed jobs over several GPUs: one table, text in, causes with their fix out.

A line is reported once, by the first matching entry of the table, so special entries come before general ones. Each pattern begins with
plain text, in the case in which it is printed: looking for it takes a moment also in a log of many megabytes.
"""

from __future__ import annotations

import re

from typing import NamedTuple

NCCL_TESTS = "https://github.com/NVIDIA/nccl-tests"
NCCL_DOCS = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs"
OPEN_MPI = "https://docs.open-mpi.org"


class Signature(NamedTuple):
    """One kind of failure. C(id) is published and never renamed. In C(cause) and C(fix), {1} is the pattern's first group.

    C(pattern) is empty if the table of Xids (P(_host_health)) has the causes. Then C(cause) and C(fix) are only for docs/errors.md.
    C(examples) are real messages, shortened. The unit tests look for each, and docs/errors.md shows them: run C(make docs).
    """

    id: str
    pattern: str
    examples: list[str]
    cause: str
    fix: str
    source: str


SIGNATURES = [
    Signature(*entry)
    for entry in (
        # Requested options.
        (
            "too_many_gpus",
            r"Invalid number of GPUs: (\d+) requested but only (\d+) were found",
            ["Invalid number of GPUs: 8 requested but only 4 were found."],
            "more GPUs are requested than the host has ({1} requested, {2} found)",
            "request at most {2} GPUs, or check with nvidia-smi why the others are missing",
            NCCL_TESTS,
        ),
        (
            "too_many_gpus",
            r"invalid device ordinal",
            [
                "gpu-a: Test CUDA failure common.cu:1012 'invalid device ordinal'",
                "torch.AcceleratorError: CUDA error: invalid device ordinal",
            ],
            "more GPUs are requested than a process can use",
            "request fewer GPUs, or check with nvidia-smi and CUDA_VISIBLE_DEVICES which ones the process can use",
            NCCL_TESTS,
        ),
        (
            "duplicate_gpu",
            r"Duplicate GPU detected",
            ["NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 3000"],
            "two ranks use the same GPU",
            "start at most as many ranks on a host as it has GPUs. A program selects its GPU by its "
            "local rank, as torch.cuda.set_device(hvd.local_rank()) does. "
            "Build nccl-tests with MPI=1",
            NCCL_DOCS + "/troubleshooting.html",
        ),
        # Without NCCL_DEBUG this is all that Horovod and nccl-tests print about it.
        (
            "nccl_invalid_usage",
            r"invalid usage \(run with NCCL_DEBUG=WARN",
            [
                "RuntimeError: ncclCommInitRank failed: invalid usage (run with NCCL_DEBUG=WARN for details)",
                "Test NCCL failure common.cu:222 'invalid usage (run with NCCL_DEBUG=WARN for details) / '",
            ],
            "NCCL refuses the call. Usually two ranks use the same GPU",
            "start at most as many ranks on a host as it has GPUs, and let each select its GPU by its "
            "local rank, as torch.cuda.set_device(hvd.local_rank()) does. "
            "If that is in order, run it with NCCL_DEBUG=WARN. The line before the error shows the reason",
            NCCL_DOCS + "/troubleshooting.html",
        ),
        (
            "option_unsupported",
            r"invalid option '",
            ["all_reduce_perf: invalid option 'J'"],
            "the tool does not support one of the given options",
            "set nccl_tests_tag to a newer tag and run gpu_stack.yml, or leave the option out",
            NCCL_TESTS,
        ),
        # Driver, CUDA and the GPU itself.
        (
            "cuda_stub_library",
            r"(?:CUDA driver is a stub library|libnvidia-ml\.so in GDK package is a stub library)",
            [
                "NCCL WARN Cuda failure 'CUDA driver is a stub library'",
                "libnvidia-ml.so in GDK package is a stub library that is attached only for",
            ],
            "the program uses CUDA's stub of a driver library, which is only for linking",
            "remove CUDA's folder lib64/stubs from LD_LIBRARY_PATH and ld.so.conf, so that the driver's libcuda.so.1 and libnvidia-ml.so.1 are found",
            NCCL_TESTS + "/issues/124",
        ),
        (
            "driver_too_old",
            r"CUDA driver version is insufficient for CUDA runtime version",
            [
                "Test CUDA failure common.cu:892 'CUDA driver version is insufficient for CUDA runtime version'"
            ],
            "the driver is older than the CUDA that the program was built with",
            "set nvidia_driver_version to a newer branch and run gpu_stack.yml, or use an image with an older CUDA",
            "https://docs.nvidia.com/deploy/cuda-compatibility/",
        ),
        (
            "no_kernel_image",
            r"no kernel image is available for execution on the device",
            [
                "Test CUDA failure common.cu:292 'no kernel image is available for execution on the device'"
            ],
            "the program has no code for this generation of GPUs",
            "use a newer image. For programs built on the host, add the GPU to "
            "nccl_compute_capabilities and nccl_tests_compute_capabilities and run gpu_stack.yml",
            NCCL_TESTS,
        ),
        (
            "fabric_manager",
            r"system not yet initialized",
            ["Test CUDA failure common.cu:892 'system not yet initialized'"],
            "the NVSwitch fabric of the GPUs is not ready (CUDA error 802)",
            "run gpu_stack.yml, which installs and starts nvidia-fabricmanager in the driver's version. If it does not detect the NVSwitch, set "
            "nvidia_driver_fabric_manager to always. `nvidia-smi -q` then shows the fabric state Completed",
            "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/",
        ),
        (
            "no_gpu",
            r"no CUDA-capable device is detected",
            ["Test CUDA failure common.cu:892 'no CUDA-capable device is detected'"],
            "a process finds no GPU",
            "run nvidia-smi on each host and in its container. If it fails in the container only, restart the container",
            NCCL_TESTS,
        ),
        (
            "ecc_error",
            r"uncorrectable ECC error encountered",
            ["Test CUDA failure common.cu:292 'uncorrectable ECC error encountered'"],
            "a GPU's memory has an uncorrectable error",
            "take the host out of use and reset the GPU. If the error returns, replace the GPU",
            "https://docs.nvidia.com/deploy/xid-errors/",
        ),
        (
            "gpu_out_of_memory",
            r"failure [^\n]{0,300}?'out of memory'",
            [
                "Test CUDA failure common.cu:892 'out of memory'",
                "NCCL WARN Cuda failure 2 'out of memory'",
            ],
            "a GPU has too little free memory",
            "end other processes on the GPUs (nvidia-smi lists them), or set a smaller largest size",
            NCCL_TESTS,
        ),
        (
            "gpu_fault",
            r"failure [^\n]{0,300}?(?:an illegal memory access was encountered|unspecified launch failure|device-side assert)",
            ["Test CUDA failure common.cu:395 'an illegal memory access was encountered'"],
            "a kernel on a GPU was aborted",
            "look for Xid errors in the kernel log of each host (dmesg | grep Xid)",
            "https://docs.nvidia.com/deploy/xid-errors/",
        ),
        # Host memory for NCCL.
        (
            "shared_memory_small",
            r"(?:Error while creating shared memory segment|Error: failed to extend /dev/shm|Call to posix_fallocate failed)",
            [
                "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-4f5a (size 9637888)",
                "NCCL WARN Error: failed to extend /dev/shm/nccl-X to 33030532 bytes",
            ],
            "/dev/shm is too small for NCCL",
            "raise training_container_shm_size and run training_environment.yml. For your own container, use docker run --shm-size or --ipc=host",
            NCCL_DOCS + "/troubleshooting.html",
        ),
        (
            "memlock_limit",
            r"ibv_\w[^\n]{0,360}?Cannot allocate memory",
            ["NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"],
            "a rank is not allowed to lock enough memory for the fabric adapter",
            "set training_container_ulimits.memlock to -1 and run training_environment.yml. `ulimit -l` must print unlimited in logins through port 12345",
            NCCL_TESTS + "/issues/206",
        ),
        # The network.
        (
            "no_socket_interface",
            r"Bootstrap ?: no socket interface found",
            ["NCCL WARN Bootstrap : no socket interface found"],
            "NCCL found no network interface",
            "set NCCL_SOCKET_IFNAME to an interface that every host has (=name is exact, a name without it is a prefix)",
            NCCL_DOCS + "/env.html",
        ),
        (
            "fabric_error",
            r"Got completion (?:from peer [^\n]{0,300}?)?with (?:status|error)[= ]\d+",
            [
                "NCCL WARN NET/IB : Got completion from peer 10.0.0.2<54321> with status=12 opcode=0 len=0 vendor err 129"
            ],
            "the fabric adapter aborted a transfer",
            "check for a port that is down or flaps, that NCCL_IB_HCA names ports of one fabric, and with RoCE the GID index of each host",
            NCCL_DOCS + "/env.html",
        ),
        (
            "connect_failed",
            r"Connect to [^\n]{1,80} failed ?: ([^\n]{1,60})",
            ["NCCL WARN Connect to 10.0.0.12<43211> failed : Connection timed out"],
            "a rank cannot connect to another rank",
            "allow all ports above 1023 between the hosts (NCCL's are random), and check that NCCL_SOCKET_IFNAME names an interface that all hosts have",
            NCCL_DOCS + "/troubleshooting.html",
        ),
        (
            "nccl_mismatch",
            r"Incompatible NCCL versions",
            [
                "Incompatible NCCL versions. nccl-tests was compiled with NCCL 2.28, but is running with NCCL 22902. The 2.28 Device API"
            ],
            "the program of nccl-tests was built with a different NCCL version than the one it runs with",
            "run gpu_stack.yml, which rebuilds nccl-tests with the installed NCCL",
            NCCL_TESTS,
        ),
        (
            "nccl_mismatch",
            r"undefined symbol: p?nccl",
            [
                "all_reduce_perf: symbol lookup error: all_reduce_perf: undefined symbol: ncclMemAlloc"
            ],
            "the program needs a newer NCCL than the one in use",
            "in the training container, set training_image_nccl_version to its NCCL and run training_environment.yml. On a host, set nccl_version "
            "and run gpu_stack.yml. `ldd` of the program shows which one it loads",
            NCCL_DOCS,
        ),
        (
            "library_missing",
            r"error while loading shared libraries: ([^:\s]+)",
            [
                "all_reduce_perf: error while loading shared libraries: libnccl.so.2: cannot open shared object file: No such file or directory"
            ],
            "the shared library {1} is missing",
            "in the training container, add its package to training_image_apt_packages, or its folder "
            "to LD_LIBRARY_PATH in training_container_environment, and run "
            "training_environment.yml. Software installed in the running container is lost when it is recreated",
            NCCL_TESTS,
        ),
        # Launchers.
        (
            "ssh_denied",
            r"Permission denied \(publickey",
            ["root@server-b: Permission denied (publickey,password)."],
            "a host rejects the launcher's ssh key",
            "run training_environment.yml, which distributes and verifies the keys between all containers",
            OPEN_MPI,
        ),
        (
            "ssh_host_key",
            r"Host key verification failed",
            ["Host key verification failed."],
            "a host's ssh key differs from the known one",
            "find out first which machine answers. If the host was reinstalled, training_environment.yml shows how to accept its new key",
            OPEN_MPI,
        ),
        (
            "ssh_failed",
            r"ssh: (?:connect to host|Could not resolve hostname) ([^\n]{1,120})",
            [
                "ssh: connect to host server-b port 12345: Connection refused",
                "ssh: Could not resolve hostname gpu-b: Name or service not known",
            ],
            "the launcher cannot reach a host by ssh",
            "run training_environment.yml, which starts the training container and its sshd on every host, or reports the host that does not answer",
            OPEN_MPI,
        ),
        (
            "not_enough_slots",
            r"There are not enough slots available in the system",
            ["There are not enough slots available in the system to satisfy the 16"],
            "more ranks are requested than the hosts have slots",
            "give each host as many slots as it has GPUs",
            OPEN_MPI,
        ),
        (
            "run_as_root",
            r"mpirun has detected an attempt to run as root",
            ["mpirun has detected an attempt to run as root."],
            "mpirun does not run as root by default",
            "add --allow-run-as-root to its options",
            OPEN_MPI,
        ),
        (
            "executable_missing",
            r"(?:mpirun|prterun|orterun|mpiexec) (?:was unable to (?:find|launch)|could not (?:access|find)) ",
            ["mpirun was unable to find the specified executable file"],
            "the launcher does not find the program on a host",
            "install it at the same path on every host, or in the image",
            OPEN_MPI,
        ),
        (
            "daemon_failed",
            r"(?:ORTE|PRTE) (?:was unable to reliably start|has lost communication with)",
            ["ORTE was unable to reliably start one or more daemons."],
            "the launcher's daemon did not start, or stopped, on a host",
            "check that every host has the same Open MPI at the same path, and that the containers' sshd accepts logins from the head",
            OPEN_MPI,
        ),
        (
            "daemon_failed",
            r"An (?:ORTE|PRTE) daemon has unexpectedly failed",
            ["An ORTE daemon has unexpectedly failed after launch and before"],
            "the launcher's daemon failed on a host",
            "check that every host has the same Open MPI at the same path, and that the containers' sshd accepts logins from the head",
            OPEN_MPI,
        ),
        (
            "cxi_resources",
            r"CXI alloc failed on (\w+)",
            ["CXI alloc failed on cxi1: request exceeds ACs limits"],
            "the launcher could not allocate resources of the Slingshot adapter {1}",
            "end other jobs on that host, or start fewer ranks there",
            "https://github.com/argonne-lcf/alcf-nccl-tests",
        ),
        (
            "pmi_port",
            r"Couldn't allocate a port for PMI",
            ["launch failed on x3006c0s1b1n0: Couldn't allocate a port for PMI to use"],
            "the launcher could not allocate a port for its PMI server",
            "end left-over jobs on that host, and start the job again",
            "https://github.com/argonne-lcf/alcf-nccl-tests",
        ),
        (
            "time_limit",
            r"CANCELLED AT [^\n]{0,300}?DUE TO (?:TIME LIMIT|PREEMPTION)",
            [
                "slurmstepd: error: *** STEP 1.0 ON gpu-a CANCELLED AT 2026-11-23T10:00:00 DUE TO TIME LIMIT ***"
            ],
            "the scheduler ended the job",
            "give it more time, or measure fewer sizes",
            "https://slurm.schedmd.com/squeue.html",
        ),
        # General errors of NCCL and nccl-tests.
        (
            "remote_process_exited",
            r"remote process exited or there was a network error",
            [
                "Test NCCL failure common.cu:533 'remote process exited or there was a network error'"
            ],
            "another rank ended, or the network between two ranks failed",
            "read the first error of the other hosts. If there is none, test the link between them",
            NCCL_DOCS + "/troubleshooting.html",
        ),
        (
            "nccl_system_error",
            r"unhandled system error",
            [
                "Test NCCL failure common.cu:1012 'unhandled system error (run with NCCL_DEBUG=INFO for details)'"
            ],
            "a system call of NCCL failed (network, memory or device files)",
            "run it with NCCL_DEBUG=INFO. The line before the error shows the call",
            NCCL_DOCS + "/troubleshooting.html",
        ),
        (
            "nccl_cuda_error",
            r"unhandled cuda error",
            ["Test NCCL failure all_reduce.cu:44 'unhandled cuda error'"],
            "a CUDA call of NCCL failed",
            "run it with NCCL_DEBUG=INFO. The line before the error shows the call",
            NCCL_DOCS + "/troubleshooting.html",
        ),
        (
            "nccl_failure",
            r"Test NCCL failure ",
            ["Test NCCL failure common.cu:958 'internal error'"],
            "an NCCL call failed",
            "run it with NCCL_DEBUG=INFO, and read the line before the error",
            NCCL_DOCS + "/troubleshooting.html",
        ),
        (
            "cuda_failure",
            r"Test CUDA failure ",
            ["Test CUDA failure common.cu:958 'unknown error'"],
            "a CUDA call failed",
            "check that nvidia-smi answers on each host, and look for Xid errors in the kernel log",
            NCCL_TESTS,
        ),
        (
            "test_timeout",
            r"Test timeout \(",
            ["Test timeout (30s) common.cu:523"],
            "an operation exceeded its timeout",
            "check whether all ranks run, and test the links between the hosts",
            NCCL_TESTS,
        ),
        (
            "segmentation_fault",
            r"(?:Segmentation fault|Signal: Segmentation fault|exited on signal 11)",
            [
                "mpirun noticed that process rank 3 exited on signal 11 (Segmentation fault)",
                "[gpu-a:13511] Signal: Segmentation fault (11)",
            ],
            "a process crashed",
            "check that all hosts have the same NCCL, CUDA and MPI libraries (ldd of the program)",
            NCCL_TESTS,
        ),
        (
            "out_of_memory_killed",
            r"exited on signal 9",
            [
                "mpirun noticed that process rank 3 with PID 1 on node gpu-a exited on signal 9 (Killed)."
            ],
            "a process was killed",
            "look for 'Out of memory' in the kernel log of its host",
            NCCL_TESTS,
        ),
        (
            "process_failed",
            r"(?:mpirun|prterun|mpiexec|orterun) (?:detected that one or more processes exited|noticed that (?:process rank|the job aborted))",
            ["prterun detected that one or more processes exited with non-zero status"],
            "a process ended with an error, and the launcher ended the others",
            "read the earlier output of that process",
            OPEN_MPI,
        ),
        (
            "process_failed",
            r"Primary job\s+terminated normally, but \d+ process",
            ["Primary job  terminated normally, but 1 process returned"],
            "a process ended with an error, and the launcher ended the others",
            "read the earlier output of that process",
            OPEN_MPI,
        ),
        (
            "process_failed",
            r"srun: error: ",
            ["srun: error: gpu-a: task 3: Exited with exit code 3"],
            "a process ended with an error",
            "read the earlier output of that process",
            "https://slurm.schedmd.com/srun.html",
        ),
        (
            "test_failure",
            r"Test failure ",
            [".. gpu-a pid 353404: Test failure common.cu:377"],
            "nccl-tests ended early",
            "read the earlier output",
            NCCL_TESTS,
        ),
    )
]
_PATTERNS = [(signature, re.compile(signature.pattern)) for signature in SIGNATURES]


# Of longer lines (a progress bar, binary output) only this many characters of each end are searched.
_END_OF_LINE = 4000


def _of_gpu(error: dict, line: str) -> dict:
    """Return what is told of an error of a GPU or an NVSwitch, as of a failure of a signature."""
    return {
        "id": error["signature"],
        "cause": "%(kind)s %(code)d of %(device)s: %(cause)s" % error,
        "fix": error["fix"],
        "source": "https://docs.nvidia.com/deploy/xid-errors/",
        "line": " ".join(line.split())[:500],
    }


def _without_middles(text):
    if len(text) <= 2 * _END_OF_LINE or max(map(len, text.split("\n"))) <= 2 * _END_OF_LINE:
        return text
    return "\n".join(
        line
        if len(line) <= 2 * _END_OF_LINE
        else line[:_END_OF_LINE] + " ... " + line[-_END_OF_LINE:]
        for line in text.split("\n")
    )


def find_errors(text: str, patterns=_PATTERNS, read_gpu_errors=None) -> list[dict]:
    """Known failures in the text, each id once, in the order of the text: id, cause, fix, source and the line.

    C(read_gpu_errors) is C(told_lines) of P(_host_health), if errors of GPUs from the kernel's log count, too. Each code of a GPU is told.
    """
    text, found = _without_middles(text), {}
    for at, error in read_gpu_errors(text) if read_gpu_errors else []:
        found[(error["device"], error["code"])] = (at, _of_gpu(error, text[at:].split("\n", 1)[0]))
    taken = {at for at, _error in found.values()}
    for signature, pattern in patterns:
        told_until = 0
        for match in pattern.finditer(text):
            if match.start() < told_until:
                continue
            begin = text.rfind("\n", 0, match.start()) + 1
            end = text.find("\n", match.end())
            end = told_until = len(text) if end < 0 else end
            if begin in taken:
                continue
            taken.add(begin)
            if signature.id not in found or begin < found[signature.id][0]:
                words = ["", *(group or "" for group in match.groups())]
                line = " ".join(text[begin : min(end, begin + 4000)].split())
                found[signature.id] = (
                    begin,
                    {
                        "id": signature.id,
                        "cause": signature.cause.format(*words),
                        "fix": signature.fix.format(*words),
                        "source": signature.source,
                        "line": line[:500],
                    },
                )
    # 'Test failure' is the trace below an error that is already reported.
    if len(found) > 1:
        found.pop("test_failure", None)
    if "duplicate_gpu" in found:
        found.pop("nccl_invalid_usage", None)
    return [error for _begin, error in sorted(found.values(), key=lambda entry: entry[0])]
