# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Meaning of error messages: text in, cause, fix and a link into docs/errors.md out. That page is generated from the same tables.

P(_error_signatures) has the messages of jobs over several GPUs. This module adds those of kernel, driver, container, storage and packages.
"""

from __future__ import annotations

import re

from ansible_collections.trainyard.gpu.plugins.module_utils import _error_signatures
from ansible_collections.trainyard.gpu.plugins.module_utils._error_signatures import (
    Signature,
    find_errors,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._host_health import told_lines

__all__ = ["SIGNATURES", "explain"]

DOCS = "https://github.com/trainyard/gpu/blob/main/docs/errors.md"
XID = "https://docs.nvidia.com/deploy/xid-errors/"
NVML = "https://docs.nvidia.com/deploy/nvml-api/"
CUDA = "https://docs.nvidia.com/deploy/cuda-compatibility/"
TOOLKIT = (
    "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html"
)
HOROVOD = "https://horovod.readthedocs.io/en/stable/troubleshooting_include.html"
PYTORCH = "https://pytorch.org/docs/stable/distributed.html"
NFS = "https://man7.org/linux/man-pages/man5/nfs.5.html"
APT = "https://manpages.debian.org/apt-secure"


#: Errors of GPUs and NVSwitches. The cause and the fix of each are in the table of Xids.
_GPUS = [
    Signature(name, "", examples, cause, fix, XID)
    for name, examples, cause, fix in (
        (
            "xid_off_the_bus",
            [
                "NVRM: Xid (PCI:0000:03:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
            ],
            "the GPU no longer answers on the PCI bus. The cause is the GPU, its power supply, its temperature or its slot",
            "take the host out of use and power-cycle it. If the GPU fails again, replace it",
        ),
        (
            "xid_memory",
            [
                "NVRM: Xid (PCI:0000:03:00): 48, pid=1234, name=python3, Double Bit ECC Error",
                "NVRM: Xid (PCI:0000:03:00): 63, Row remapping pending",
                "NVRM: Xid (PCI:0000:c1:00 GPU-I:04): 94, pid=1234, Contained: CE User Channel (0x9). RST: No, D-RST: No",
            ],
            "the GPU's memory had an ECC error, or retired a page or remapped a row because of one",
            "look at the code in the table of Xids below. After 48, 64, 95 and 140 reset the GPU or reboot the host. After 63 and 94 it works on, and is "
            "reset when no job runs. If `nvidia-smi -q` shows a failed remapping, replace the GPU",
        ),
        (
            "xid_nvlink",
            [
                "NVRM: Xid (PCI:0000:03:00): 74, NVLink: fatal error detected on link 2",
                "NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)",
            ],
            "an NVLink of the GPU has failed, or had an error. `Nonfatal` errors are repaired by the driver",
            "reset the GPUs or reboot the host, unless the message says Nonfatal. Find the link with `nvidia-smi nvlink -e`. "
            "If the same link fails again, replace the GPU, its bridge or the NVSwitch",
        ),
        (
            "xid_gsp",
            ["NVRM: Xid (PCI:0000:03:00): 119, Timeout waiting for RPC from GSP!"],
            "the GPU's system processor (GSP) does not answer its driver",
            "reboot the host. If it happens again, install a newer driver, or disable GSP firmware (NVreg_EnableGpuFirmware=0) if the GPU supports that",
        ),
        (
            "xid_reset",
            [
                "NVRM: Xid (PCI:0000:03:00): 109, pid=5122, name=python, channel 0x00000018, errorString CTX SWITCH TIMEOUT, Info 0x2c014"
            ],
            "the GPU, or a part of it, stopped working",
            "stop the jobs on the GPU, then reset it or reboot the host. If the error returns, replace the GPU",
        ),
        (
            "xid_recovery",
            [
                "NVRM: Xid (PCI:0000:a1:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
            ],
            "the driver says what has to be done with the GPU",
            "do what the message names last. `None` ends an earlier request",
        ),
        (
            "xid_program",
            ["NVRM: Xid (PCI:0000:03:00): 31, pid=1234, name=python3, Ch 00000008, MMU Fault"],
            "a program made an invalid access on a GPU, or was ended because of one. Usually the fault is in the program",
            "check the job that ran at that time. Suspect the GPU only if several programs fail on this GPU alone",
        ),
        (
            "xid_notice",
            ["NVRM: Xid (PCI:0000:03:00): 37, Driver firmware error"],
            "the driver reports an event of a GPU that needs no action at once, or one that this collection does not know",
            "look the code up in the table of Xids below, or in NVIDIA's catalogue",
        ),
        (
            "sxid_fatal",
            ["nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"],
            "an NVSwitch has failed. Programs on several GPUs fail or hang",
            "restart Fabric Manager, then reboot the host. If the error returns, replace the NVSwitch or its cable",
        ),
        (
            "sxid_notice",
            [
                "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ interrupt"
            ],
            "an NVSwitch had an error that it has repaired",
            "no action is needed now. If the error returns often, check the NVSwitch and its cables",
        ),
    )
]
_BELOW = [
    Signature(*entry)
    for entry in (
        # The kernel log.
        (
            "driver_reset_required",
            r"(?:NV_ERR_RESET_REQUIRED|Reset required \[NV_ERR)",
            [
                "NVRM: GPU0 nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned from status "
                "@ kernel_channel.c:2874"
            ],
            "the driver refuses work, because a GPU requires a reset",
            "stop the jobs on the GPU, then reset it (nvidia-smi --gpu-reset) or reboot the host. `nvidia-smi -q` shows which GPU it is",
            XID,
        ),
        (
            "driver_adapter_failed",
            r"RmInitAdapter failed!",
            ["NVRM: GPU 0000:21:00.0: RmInitAdapter failed! (0x62:0xffff:2477)"],
            "the driver cannot initialize a GPU",
            "reboot the host. If it happens again, look for NVRM and Xid before it in `dmesg`, install a newer driver, or replace the GPU",
            XID,
        ),
        (
            "host_out_of_memory",
            r"(?:Out of memory: Killed process|oom-kill:)",
            ["Out of memory: Killed process 1234 (python3) total-vm:9637888kB"],
            "the host's memory was full, and the kernel killed a process",
            "reduce the memory use of the job (workers, batch), or start fewer ranks on the host",
            "https://docs.kernel.org/admin-guide/sysctl/vm.html",
        ),
        # The driver and nvidia-smi.
        (
            "driver_library_mismatch",
            r"Driver/library version mismatch",
            ["Failed to initialize NVML: Driver/library version mismatch"],
            "the driver's libraries were replaced while the old kernel module stayed loaded",
            "reboot the host (with nvidia_driver_allow_reboot gpu_stack.yml does it), or end all programs that use GPUs and reload the module",
            NVML,
        ),
        (
            "driver_not_loaded",
            r"(?:couldn't communicate with the NVIDIA driver|NVIDIA driver is not loaded|Driver Not Loaded)",
            ["NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."],
            "the kernel module nvidia is not loaded. It is not built for the running kernel, Secure Boot rejects it, or nouveau uses the GPU",
            "run gpu_stack.yml, which reports the reason. On the host, `dkms status` and `dmesg` show it",
            NVML,
        ),
        (
            "nvml_library_missing",
            r"(?:couldn't find libnvidia-ml|NVML Shared Library Not Found)",
            ["NVIDIA-SMI couldn't find libnvidia-ml.so library in your system."],
            "the driver's libraries are missing, or the container was started without GPUs",
            "for the training container, set training_container_gpus and run training_environment.yml. On a host, run gpu_stack.yml",
            NVML,
        ),
        (
            "gpu_lost",
            r"(?:GPU is lost|Unable to determine the device handle for GPU|fallen off the bus)",
            [
                "Unable to determine the device handle for GPU 0000:03:00.0: GPU is lost.  Reboot the system to recover this GPU"
            ],
            "the GPU no longer answers on the PCI bus. The cause is the GPU, its power supply, its temperature or its slot",
            "take the host out of use and power-cycle it. If the GPU is lost again, replace it",
            NVML,
        ),
        (
            "nvml_unknown_error",
            r"Failed to initialize NVML: Unknown Error",
            ["Failed to initialize NVML: Unknown Error"],
            "a running container lost its GPUs, usually after a daemon-reload of systemd. The host itself is healthy",
            "restart the container, which ends all of its processes (systemctl restart trainyard-training)",
            TOOLKIT,
        ),
        (
            "no_devices",
            r"No devices were found",
            ["No devices were found"],
            "the driver is loaded but initializes no GPU. The open kernel module needs Turing or "
            "newer, the driver may be too new for the GPU, or firmware is missing",
            "look for NVRM in `dmesg`. Set the kernel module or branch that the GPU needs (nvidia_driver_kernel_module, nvidia_driver_version)",
            NVML,
        ),
        (
            "module_refused",
            r"Key was rejected by service",
            ["modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"],
            "Secure Boot is on, and the kernel module is not signed by a key that the machine trusts",
            "use the distribution's signed modules, enroll the key of DKMS (mokutil --import), or switch Secure Boot off",
            "https://wiki.debian.org/SecureBoot",
        ),
        (
            "driver_too_old_for_image",
            r"(?:forward compatibility was attempted on non supported HW|system has unsupported display driver / cuda driver combination)",
            ["CUDA Error 804: forward compatibility was attempted on non supported HW"],
            "the image's CUDA is too new for the host's driver. CUDA's compatibility library works only with data center GPUs and certain branches",
            "upgrade the driver (nvidia_driver_version), or use an image with an older CUDA",
            CUDA,
        ),
        (
            "program_out_of_gpu_memory",
            r"CUDA out of memory",
            ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."],
            "the GPU's memory is full, because of the job itself or another program on the same GPU",
            "end other processes on the GPU, which nvidia-smi lists, or use a smaller batch",
            PYTORCH,
        ),
        # Launchers and frameworks.
        (
            "memlock_small",
            r"RLIMIT_MEMLOCK is \d+ bytes",
            ["libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes."],
            "the process is not allowed to lock the memory that RDMA needs. The limit in sessions through port 12345 counts, not that of docker exec",
            "set an unlimited memlock for the container (training_container_ulimits) and run training_environment.yml",
            TOOLKIT,
        ),
        (
            "no_rdma_device",
            r"NET/IB : No device found",
            ["gpu-a:81:81 [0] NCCL INFO NET/IB : No device found."],
            "NCCL finds no InfiniBand or RoCE device and uses sockets instead. The host or the container has none, or libibverbs is missing in the image",
            "check /dev/infiniband in the container, and libibverbs1 and ibverbs-providers in the image. On hosts without such devices this is normal",
            "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
        ),
        (
            "collective_timeout",
            r"Watchdog caught collective operation timeout",
            ["Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE)"],
            "a rank waited too long for the others. Another rank hangs, is far behind, or called a different collective",
            "find the rank that did not reach the operation. The log of its host has the reason",
            PYTORCH,
        ),
        (
            "gloo_connect",
            r"Gloo connectFullMesh failed",
            [
                "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error"
            ],
            "the ranks could not connect to each other by Gloo. Often /etc/hosts gives the hostname the address 127.0.1.1, and the host announces that address",
            "run preflight.yml, which reports such hosts. Check that the cluster network allows all ports between the hosts",
            PYTORCH,
        ),
        (
            "address_in_use",
            r"(?:EADDRINUSE|Address already in use)",
            [
                "The server socket has failed to listen on any local network address. code: EADDRINUSE"
            ],
            "another program, often an earlier job, uses the port",
            "find it with `ss -ltnp` on the host. If it is an earlier job, end it, else use a different port",
            PYTORCH,
        ),
        (
            "horovod_extension_missing",
            r"Extension horovod\.(\w+) has not been built",
            ["ImportError: Extension horovod.torch has not been built."],
            "Horovod in the image was compiled without {1}",
            "add it to training_image_requires and run training_environment.yml, which compiles missing parts",
            HOROVOD,
        ),
        (
            "horovod_no_gloo",
            r"Gloo support has not been built",
            ["ValueError: Gloo support has not been built."],
            "Horovod in the image was compiled without Gloo, because cmake was missing",
            "add the controller to training_image_requires and run training_environment.yml",
            HOROVOD,
        ),
        (
            "horovod_no_controller",
            r"Neither MPI nor Gloo support has been built",
            ["ValueError: Neither MPI nor Gloo support has been built."],
            "Horovod in the image has no controller, so it cannot start a job",
            "add gloo or mpi to training_image_requires and run training_environment.yml",
            HOROVOD,
        ),
        (
            "horovod_tasks_timeout",
            r"Timed out waiting for tasks to start",
            [
                "Exception: Timed out waiting for tasks to start. Please check connectivity between servers."
            ],
            "Horovod's tasks were started on the other hosts but could not connect back. "
            "The interface is wrong, a firewall blocks them, or the hosts are too slow for the timeout",
            "check that the cluster network allows all ports between the hosts. If a host has several networks, set cluster_network",
            HOROVOD,
        ),
        (
            "horovodrun_arguments",
            r"horovodrun: error: unrecognized arguments",
            ["horovodrun: error: unrecognized arguments: --check-build"],
            "this Horovod is too old for the option, or the option is misspelled",
            "run `horovodrun --help` in the container for its options. "
            "If the option is missing, set training_image_horovod_version to 0.19.2 or newer and run training_environment.yml",
            HOROVOD,
        ),
        # The engine and containers.
        (
            "docker_no_gpu_driver",
            r"could not select device driver .{0,20}with capabilities: \[\[gpu\]\]",
            [
                'Error response from daemon: could not select device driver "" with capabilities: [[gpu]]'
            ],
            "GPUs were requested from Docker, but it has no runtime for them",
            "leave container_toolkit_version at recommended, or set it to a version, and run gpu_stack.yml",
            TOOLKIT,
        ),
        (
            "cdi_unresolvable",
            r"unresolvable CDI devices",
            ["failed to inject CDI devices: unresolvable CDI devices nvidia.com/gpu=all"],
            "the CDI specification lacks the device. It is missing, or was generated before the driver or the GPUs changed",
            "run gpu_stack.yml, which generates it again (nvidia-ctk cdi generate)",
            TOOLKIT,
        ),
        (
            "worker_out_of_shared_memory",
            r"(?:out of shared memory|insufficient shared memory \(shm\))",
            [
                "RuntimeError: DataLoader worker is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory."
            ],
            "/dev/shm of the container is full. Docker's default is 64 MiB",
            "raise training_container_shm_size and run training_environment.yml",
            PYTORCH,
        ),
        # Storage.
        (
            "nfs_stale",
            r"Stale (?:NFS )?file handle",
            ["OSError: [Errno 116] Stale file handle"],
            "the server no longer has a file or folder that the client had open. It was removed, or the path was exported again from a different file system",
            "run shared_storage.yml, which mounts the export again. If programs keep the old file open, restart the container, which ends them",
            NFS,
        ),
        (
            "nfs_denied",
            r"access denied by server while mounting",
            ["mount.nfs: access denied by server while mounting 192.0.2.11:/data1/share"],
            "the server's export does not include this client's address",
            "run shared_storage.yml for all hosts. On a server that you manage yourself, add the client to the export",
            NFS,
        ),
        (
            "nfs_no_answer",
            r"(?:clnt_create: RPC: |nfs: server \S+ not responding)",
            [
                "clnt_create: RPC: Unable to receive",
                "nfs: server 192.0.2.11 not responding, still trying",
            ],
            "the NFS server does not answer. It is down, or a firewall blocks it",
            "check that nfs-server runs on the server, and that its firewall allows port 2049",
            NFS,
        ),
        (
            "disk_full",
            r"(?:No space left on device|Disk quota exceeded)",
            ["OSError: [Errno 28] No space left on device"],
            "the file system or a quota on it is full",
            "run `df -h` and `df -i` on the host with the message, and remove files that are no longer needed, such as old checkpoints. `docker image prune` "
            "without --all keeps images that have a name",
            "https://man7.org/linux/man-pages/man3/errno.3.html",
        ),
        # Packages.
        (
            "apt_signed_by",
            r"Conflicting values set for option Signed-By",
            ["E: Conflicting values set for option Signed-By regarding source"],
            "two of apt's entries name one repository with different keys, so apt fails completely",
            "remove the entry that is not from this collection. preflight.yml lists the files",
            APT,
        ),
        (
            "apt_key",
            r"(?:NO_PUBKEY [0-9A-F]+|EXPKEYSIG)",
            [
                "The following signatures couldn't be verified because the public key is not available: NO_PUBKEY A4B469963BF863CC"
            ],
            "the repository is signed by a key that this host does not have, or one that has expired",
            "run gpu_stack.yml, which installs the vendor's current keyring",
            APT,
        ),
        (
            "dpkg_interrupted",
            r"dpkg was interrupted",
            [
                "E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem."
            ],
            "an installation was interrupted by a power loss or a kill",
            "run `dpkg --configure -a` on the host, then the playbook again",
            "https://manpages.debian.org/dpkg",
        ),
    )
]
# If two entries match a line, the first one counts: the messages of lower layers are the cause of a job's error.
SIGNATURES = _GPUS + _BELOW + _error_signatures.SIGNATURES
_PATTERNS = [
    (signature, re.compile(signature.pattern)) for signature in SIGNATURES if signature.pattern
]
# Messages that only report a failure. They explain nothing if the log has a more specific message.
_CONSEQUENCES = {
    "process_failed",
    "remote_process_exited",
    "nccl_system_error",
    "nccl_cuda_error",
    "nccl_failure",
    "cuda_failure",
    "test_failure",
    "no_rdma_device",
}
_LOOKS_WRONG = re.compile(
    r"\b(?:\w*error|failed|failure|fatal|\w*exception|refused|denied|timed out|panic|aborted)\b",
    re.IGNORECASE,
)
_OF_GPU = re.compile(r"NVRM: Xid \(|: SXid \(")
UNKNOWN_LINES = 3


def explain(text):
    """Meaning of the errors in a text, in their order: signature, line, cause, fix and link of each.

    If none is known, the last lines that look like errors are returned, with everything except C(line) empty.
    """
    known = find_errors(text, _PATTERNS, told_lines)
    known = [error for error in known if error["id"] not in _CONSEQUENCES] or known
    if known:
        return [
            {
                "signature": error["id"],
                "line": error["line"],
                "cause": sentence(error["cause"]),
                "fix": sentence(error["fix"]),
                "link": f"{DOCS}#{error['id']}",
            }
            for error in known
        ]
    # What is left of these has ended, or is ignored.
    lines = [
        " ".join(line.split())[:500]
        for line in text.splitlines()
        if _LOOKS_WRONG.search(line) and not _OF_GPU.search(line)
    ]
    return [
        {"signature": "", "line": line, "cause": "", "fix": "", "link": ""}
        for line in list(dict.fromkeys(lines))[-UNKNOWN_LINES:]
    ]


def sentence(text):
    return text[:1].upper() + text[1:] + "."
