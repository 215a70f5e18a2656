"""Generates docs/errors.md from the tables of error messages and the examples below: make docs"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/errors.md"
HEAD = """\
# Error messages

Messages of drivers, CUDA, NCCL, launchers, containers and storage that `verify` recognises. If one of them is in a log or in a finding, the report shows
its cause and what to do, with a link to this page. The page is generated from the tables in
`plugins/plugin_utils/_signatures.py` and `plugins/module_utils/_error_signatures.py`.
"""

# An example of each error; real messages, shortened.
SAYS = {
    "xid_off_the_bus": [
        "NVRM: Xid (PCI:0000:03:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    ],
    "xid_memory": [
        "NVRM: Xid (PCI:0000:03:00): 48, pid=1234, name=python3, Double Bit ECC Error",
        "NVRM: Xid (PCI:0000:03:00): 63, Row remapping pending",
    ],
    "xid_nvlink": ["NVRM: Xid (PCI:0000:03:00): 74, NVLink: fatal error detected on link 2"],
    "xid_gsp": ["NVRM: Xid (PCI:0000:03:00): 119, Timeout waiting for RPC from GSP!"],
    "xid_program": [
        "NVRM: Xid (PCI:0000:03:00): 31, pid=1234, name=python3, Ch 00000008, MMU Fault"
    ],
    "host_out_of_memory": ["Out of memory: Killed process 1234 (python3) total-vm:9637888kB"],
    "driver_library_mismatch": ["Failed to initialize NVML: Driver/library version mismatch"],
    "driver_not_loaded": [
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    ],
    "nvml_library_missing": ["NVIDIA-SMI couldn't find libnvidia-ml.so library in your system."],
    "gpu_lost": [
        "Unable to determine the device handle for GPU 0000:03:00.0: GPU is lost.  Reboot the system to recover this GPU"
    ],
    "nvml_unknown_error": ["Failed to initialize NVML: Unknown Error"],
    "no_devices": ["No devices were found"],
    "module_refused": ["modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"],
    "driver_too_old_for_image": [
        "CUDA Error 804: forward compatibility was attempted on non supported HW"
    ],
    "program_out_of_gpu_memory": [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    ],
    "memlock_small": ["libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes."],
    "no_rdma_device": ["gpu-a:81:81 [0] NCCL INFO NET/IB : No device found."],
    "collective_timeout": [
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE)"
    ],
    "gloo_connect": [
        "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error"
    ],
    "address_in_use": [
        "The server socket has failed to listen on any local network address. code: EADDRINUSE"
    ],
    "horovod_extension_missing": ["ImportError: Extension horovod.torch has not been built."],
    "horovod_no_gloo": ["ValueError: Gloo support has not been built."],
    "horovod_no_controller": ["ValueError: Neither MPI nor Gloo support has been built."],
    "horovod_tasks_timeout": [
        "Exception: Timed out waiting for tasks to start. Please check connectivity between servers."
    ],
    "horovodrun_arguments": ["horovodrun: error: unrecognized arguments: --check-build"],
    "docker_no_gpu_driver": [
        'Error response from daemon: could not select device driver "" with capabilities: [[gpu]]'
    ],
    "cdi_unresolvable": [
        "failed to inject CDI devices: unresolvable CDI devices nvidia.com/gpu=all"
    ],
    "worker_out_of_shared_memory": [
        "RuntimeError: DataLoader worker is killed by signal: Bus error. It is possible that dataloader's workers are out of "
        "shared memory."
    ],
    "nfs_stale": ["OSError: [Errno 116] Stale file handle"],
    "nfs_denied": ["mount.nfs: access denied by server while mounting 192.0.2.11:/data1/share"],
    "nfs_no_answer": [
        "clnt_create: RPC: Unable to receive",
        "nfs: server 192.0.2.11 not responding, still trying",
    ],
    "disk_full": ["OSError: [Errno 28] No space left on device"],
    "apt_signed_by": ["E: Conflicting values set for option Signed-By regarding source"],
    "apt_key": [
        "The following signatures couldn't be verified because the public key is not available: NO_PUBKEY A4B469963BF863CC"
    ],
    "dpkg_interrupted": [
        "E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem."
    ],
    "too_many_gpus": [
        "Invalid number of GPUs: 8 requested but only 4 were found.",
        "gpu-a: Test CUDA failure common.cu:1012 'invalid device ordinal'",
        "torch.AcceleratorError: CUDA error: invalid device ordinal",
    ],
    "duplicate_gpu": [
        "NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 3000"
    ],
    "nccl_invalid_usage": [
        "RuntimeError: ncclCommInitRank failed: invalid usage (run with NCCL_DEBUG=WARN for details)"
    ],
    "option_unsupported": ["all_reduce_perf: invalid option 'J'"],
    "cuda_stub_library": [
        "NCCL WARN Cuda failure 'CUDA driver is a stub library'",
        "libnvidia-ml.so in GDK package is a stub library that is attached only for",
    ],
    "driver_too_old": [
        "Test CUDA failure 'CUDA driver version is insufficient for CUDA runtime version'"
    ],
    "no_kernel_image": ["CUDA error: no kernel image is available for execution on the device"],
    "fabric_manager": ["CUDA error 802: system not yet initialized"],
    "no_gpu": ["RuntimeError: no CUDA-capable device is detected"],
    "ecc_error": ["CUDA error: uncorrectable ECC error encountered"],
    "gpu_out_of_memory": ["Test CUDA failure common.cu:892 'out of memory'"],
    "gpu_fault": ["Test CUDA failure common.cu:395 'an illegal memory access was encountered'"],
    "shared_memory_small": [
        "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-4f5a (size 9637888)"
    ],
    "memlock_limit": ["NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory"],
    "no_socket_interface": ["NCCL WARN Bootstrap : no socket interface found"],
    "fabric_error": [
        "NCCL WARN NET/IB : Got completion from peer 10.0.0.12 with status=12 opcode=0"
    ],
    "connect_failed": ["NCCL WARN Connect to 10.0.0.12<43211> failed : Connection timed out"],
    "nccl_mismatch": [
        "Incompatible NCCL versions. nccl-tests was compiled with NCCL 2.21",
        "undefined symbol: ncclCommWindowRegister",
    ],
    "library_missing": [
        "all_reduce_perf: error while loading shared libraries: libnccl.so.2: cannot open shared object file"
    ],
    "ssh_denied": ["root@server-b: Permission denied (publickey,password)."],
    "ssh_host_key": ["Host key verification failed."],
    "ssh_failed": ["ssh: connect to host server-b port 12345: Connection refused"],
    "not_enough_slots": ["There are not enough slots available in the system to satisfy the 16"],
    "run_as_root": ["mpirun has detected an attempt to run as root."],
    "executable_missing": ["mpirun was unable to find the specified executable file"],
    "daemon_failed": ["ORTE was unable to reliably start one or more daemons."],
    "cxi_resources": ["CXI alloc failed on cxi1: request exceeds ACs limits"],
    "pmi_port": ["launch failed on x3006c0s1b1n0: Couldn't allocate a port for PMI to use"],
    "time_limit": [
        "slurmstepd: error: *** STEP 1.0 ON gpu-a CANCELLED AT 2026-11-23T10:00:00 DUE TO TIME LIMIT ***"
    ],
    "remote_process_exited": [
        "Test NCCL failure common.cu:533 'remote process exited or there was a network error'"
    ],
    "nccl_system_error": [
        "Test NCCL failure common.cu:1012 'unhandled system error (run with NCCL_DEBUG=INFO for details)'"
    ],
    "nccl_cuda_error": ["Test NCCL failure all_reduce.cu:44 'unhandled cuda error'"],
    "nccl_failure": ["Test NCCL failure common.cu:958 'internal error'"],
    "cuda_failure": ["Test CUDA failure common.cu:958 'unknown error'"],
    "test_timeout": ["Test timeout (120s)"],
    "segmentation_fault": [
        "mpirun noticed that process rank 3 exited on signal 11 (Segmentation fault)"
    ],
    "out_of_memory_killed": [
        "process rank 3 with PID 0 on node gpu-b exited on signal 9 (Killed)."
    ],
    "process_failed": ["prterun detected that one or more processes exited with non-zero status"],
    "test_failure": [".. gpu-a pid 353404: Test failure common.cu:377"],
}


def page(signatures):
    parts, told = [HEAD], set()
    for signature in signatures:
        if signature.id not in told:
            parts.append(
                "## %s\n\n%s\n"
                % (signature.id, "\n".join("    " + text for text in SAYS[signature.id]))
            )
        told.add(signature.id)
        parts.append(
            "\n".join(
                textwrap.wrap(
                    "%s %s" % (sentence(signature.cause), sentence(signature.fix)),
                    160,
                    break_long_words=False,
                )
            )
            + "\n"
        )
        if signature is [entry for entry in signatures if entry.id == signature.id][-1]:
            parts.append("See also <%s>.\n" % signature.source)
    return "\n".join(parts)


def sentence(text):
    return text[:1].upper() + text[1:].replace("{1}", "…").replace("{2}", "…") + "."


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / ".dev"))
    from ansible_collections.trainyard.gpu.plugins.plugin_utils._signatures import SIGNATURES

    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(SIGNATURES), encoding="utf-8")
