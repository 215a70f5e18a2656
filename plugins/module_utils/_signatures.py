# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What error messages mean: text in, cause, fix and a link into docs/errors.md out. That page is written from the same tables.

Beside what jobs over several GPUs say (P(_error_signatures)) there are here the messages of what is below them: kernel, driver, container, storage, packages.
"""

from __future__ import annotations

import re

from ansible_collections.trainyard.gpu.plugins.module_utils import _error_signatures
from ansible_collections.trainyard.gpu.plugins.module_utils._error_signatures import Signature, find_errors

__all__ = ["SIGNATURES", "explain"]

DOCS = "https://github.com/trainyard/gpu/blob/main/docs/errors.md"
XID = "https://docs.nvidia.com/deploy/xid-errors/"
NVML = "https://docs.nvidia.com/deploy/nvml-api/"
CUDA = "https://docs.nvidia.com/deploy/cuda-compatibility/"
TOOLKIT = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html"
HOROVOD = "https://horovod.readthedocs.io/en/stable/troubleshooting_include.html"
PYTORCH = "https://pytorch.org/docs/stable/distributed.html"
NFS = "https://man7.org/linux/man-pages/man5/nfs.5.html"
APT = "https://manpages.debian.org/apt-secure"

_BELOW = [Signature(*entry) for entry in (
    # The kernel's log.
    ("xid_off_the_bus", r"Xid \(PCI:[0-9a-f:.]+\): 79\b",
     "the GPU no longer answers on the PCI bus: hardware, power, heat or its slot",
     "leave the host out, power it off and on; a GPU that does it again has to be replaced", XID),
    ("xid_memory", r"Xid \(PCI:[0-9a-f:.]+\): (?:48|63|64|94|95)\b",
     "the GPU's memory had an error that ECC could not correct, or has taken a row out of use",
     "reset the GPU or reboot the host; where nvidia-smi then still shows pending or failed remappings, the GPU has to be replaced", XID),
    ("xid_nvlink", r"Xid \(PCI:[0-9a-f:.]+\): 74\b",
     "an NVLink between GPUs has failed",
     "reset the GPUs or reboot the host; «nvidia-smi nvlink -e» shows the link; one that fails again is hardware", XID),
    ("xid_gsp", r"Xid \(PCI:[0-9a-f:.]+\): (?:119|120)\b",
     "the GPU's own system processor does not answer its driver",
     "reboot the host; take a newer driver, or switch GSP firmware off (NVreg_EnableGpuFirmware=0) where the GPU can do without", XID),
    ("xid_program", r"Xid \(PCI:[0-9a-f:.]+\): (?:13|31|43|45)\b",
     "a program did what a GPU does not allow, or was ended for it; mostly it is the program's own fault",
     "look at the job of that time; suspect the GPU only where several programs fail on this one alone", XID),
    ("host_out_of_memory", r"(?:Out of memory: Killed process|oom-kill:)",
     "the host's memory was full, and the kernel ended a process",
     "give the job less to load (workers, batch), or fewer ranks to the host", "https://docs.kernel.org/admin-guide/sysctl/vm.html"),
    # The driver and nvidia-smi.
    ("driver_library_mismatch", r"Driver/library version mismatch",
     "the driver's libraries were replaced while the old kernel module stayed loaded",
     "reboot the host (nvidia_driver_allow_reboot lets gpu_stack.yml do it), or end all programs that use GPUs and load the module anew", NVML),
    ("driver_not_loaded", r"(?:couldn't communicate with the NVIDIA driver|NVIDIA driver is not loaded|Driver Not Loaded)",
     "the kernel module nvidia is not loaded: not built for the running kernel, refused by Secure Boot, or nouveau has the GPU",
     "look at «dkms status» and «dmesg» on the host; gpu_stack.yml names what is in the way", NVML),
    ("nvml_library_missing", r"(?:couldn't find libnvidia-ml|NVML Shared Library Not Found)",
     "the driver's libraries are not there; in a container: it was started without the GPUs",
     "set training_container_gpus and run training_environment.yml; on a host, run gpu_stack.yml", NVML),
    ("gpu_lost", r"(?:GPU is lost|Unable to determine the device handle for GPU|fallen off the bus)",
     "the GPU no longer answers on the PCI bus: hardware, power, heat or its slot",
     "leave the host out, power it off and on; a GPU that is lost again has to be replaced", NVML),
    ("nvml_unknown_error", r"Failed to initialize NVML: Unknown Error",
     "a running container lost its GPUs, mostly by a daemon-reload of systemd; the host itself is well",
     "restart the container, which ends what runs in it (systemctl restart trainyard-training)", TOOLKIT),
    ("no_devices", r"No devices were found",
     "the driver is loaded and starts no GPU: the open kernel module needs Turing or newer, a driver may be too new for the GPU, or firmware is missing",
     "look at «dmesg» for NVRM; choose the kernel module or branch that the GPU needs (nvidia_driver_kernel_module, nvidia_driver_version)", NVML),
    ("module_refused", r"Key was rejected by service",
     "Secure Boot is on, and the kernel module is not signed by a key that the machine knows",
     "use the distribution's signed modules, enrol the key of dkms (mokutil --import), or switch Secure Boot off", "https://wiki.debian.org/SecureBoot"),
    ("driver_too_old_for_image", r"(?:forward compatibility was attempted on non supported HW|system has unsupported display driver / cuda driver combination)",
     "the image's CUDA is newer than the host's driver can run; CUDA's compatibility library works with data centre GPUs and certain branches only",
     "upgrade the driver (nvidia_driver_version), or take an image with an older CUDA", CUDA),
    ("program_out_of_gpu_memory", r"CUDA out of memory",
     "the GPU's memory is full: the job's own, or that of another program on the same GPU",
     "look at the processes that nvidia-smi lists; make the batch smaller", PYTORCH),
    # Launchers and frameworks.
    ("memlock_small", r"RLIMIT_MEMLOCK is \d+ bytes",
     "the process may not lock the memory that RDMA needs; what counts is the limit behind port 12345, not that of docker exec",
     "give the container an unlimited memlock (training_container_ulimits) and run training_environment.yml", TOOLKIT),
    ("no_rdma_device", r"NET/IB : No device found",
     "NCCL sees no InfiniBand or RoCE device and takes sockets instead: none in the host, none in the container, or libibverbs is missing in the image",
     "look at /dev/infiniband in the container, and at libibverbs1 and ibverbs-providers in the image; on hosts without such devices it is as it should be",
     "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"),
    ("collective_timeout", r"Watchdog caught collective operation timeout",
     "a rank waited too long for the others: one of them hangs, is far behind, or called another collective",
     "look for the rank that did not get there; its host's log has the reason", PYTORCH),
    ("gloo_connect", r"Gloo connectFullMesh failed",
     "the ranks could not reach each other by Gloo; often a host's own name is 127.0.1.1 in its /etc/hosts, which it then tells the others",
     "run preflight.yml, which names such a host; check that the cluster network lets all ports through between the hosts", PYTORCH),
    ("address_in_use", r"(?:EADDRINUSE|Address already in use)",
     "another program, often an earlier job, holds the port",
     "run `ss -ltnp` on the host to see which one; end it if it is an earlier job, or use another port", PYTORCH),
    ("horovod_extension_missing", r"Extension horovod\.(\w+) has not been built",
     "Horovod in the image was compiled without {1}",
     "name it in training_image_requires, and run training_environment.yml: it compiles what is missing", HOROVOD),
    ("horovod_no_gloo", r"Gloo support has not been built",
     "Horovod in the image was compiled without Gloo, as cmake was missing then",
     "name the controller in training_image_requires, and run training_environment.yml", HOROVOD),
    ("horovod_no_controller", r"Neither MPI nor Gloo support has been built",
     "Horovod in the image has no controller, so it can't start a job",
     "name gloo or mpi in training_image_requires, and run training_environment.yml", HOROVOD),
    ("horovod_tasks_timeout", r"Timed out waiting for tasks to start",
     "Horovod's tasks were started on the other hosts and could not connect back: wrong interface, a firewall, or hosts too slow for the time given",
     "check that the cluster network lets all ports through between the hosts; set cluster_network where a host has several", HOROVOD),
    ("horovodrun_arguments", r"horovodrun: error: unrecognized arguments",
     "this Horovod is too old for the option, or the option is misspelled",
     "run `horovodrun --help` in the container to see its options; "
     "set training_image_horovod_version to 0.19.2 or newer and run training_environment.yml", HOROVOD),
    # The engine and containers.
    ("docker_no_gpu_driver", r"could not select device driver .{0,20}with capabilities: \[\[gpu\]\]",
     "Docker was asked for GPUs and knows no runtime for them",
     "leave container_toolkit_version at recommended, or set it to a version, and run gpu_stack.yml", TOOLKIT),
    ("cdi_unresolvable", r"unresolvable CDI devices",
     "the CDI specification does not name the device: it was written before the driver or the GPUs changed, or not at all",
     "run gpu_stack.yml, which writes it anew (nvidia-ctk cdi generate)", TOOLKIT),
    ("worker_out_of_shared_memory", r"(?:out of shared memory|insufficient shared memory \(shm\))",
     "/dev/shm of the container is full; Docker's own default is 64 MiB",
     "set training_container_shm_size to more, and run training_environment.yml", PYTORCH),
    # Storage.
    ("nfs_stale", r"Stale (?:NFS )?file handle",
     "the server no longer knows a file or folder that the client had open: it was removed, or exported anew from another file system",
     "run shared_storage.yml, which mounts it anew; if programs keep the old one open, restart the container, which ends them", NFS),
    ("nfs_denied", r"access denied by server while mounting",
     "the server's export does not name this client's address",
     "run shared_storage.yml for all hosts; with a server of your own, add the client to its export", NFS),
    ("nfs_no_answer", r"(?:clnt_create: RPC: |nfs: server \S+ not responding)",
     "the NFS server does not answer: it is down, or a firewall drops what goes to it",
     "check that nfs-server runs there, and that port 2049 is let through", NFS),
    ("disk_full", r"(?:No space left on device|Disk quota exceeded)",
     "the file system or a quota on it is full",
     "run `df -h` and `df -i` on the host with the message, and remove what is no longer needed, such as old checkpoints; `docker image prune` "
     "without --all leaves the images that have a name", "https://man7.org/linux/man-pages/man3/errno.3.html"),
    # Packages.
    ("apt_signed_by", r"Conflicting values set for option Signed-By",
     "two entries of apt name one repository with different keys, which stops all of apt",
     "remove the entry that is not the collection's; preflight.yml names the files", APT),
    ("apt_key", r"(?:NO_PUBKEY [0-9A-F]+|EXPKEYSIG)",
     "the repository is signed by a key that this host does not have, or one that has expired",
     "run gpu_stack.yml, which brings the keyring that the vendor signs with today", APT),
    ("dpkg_interrupted", r"dpkg was interrupted",
     "an installation was broken off, by a power loss or a kill",
     "run «dpkg --configure -a» on the host, then the playbook again", "https://manpages.debian.org/dpkg"),
)]
# Of two that know one line the first is told: below a job's message stands what made it.
SIGNATURES = _BELOW + _error_signatures.SIGNATURES
_PATTERNS = [(signature, re.compile(signature.pattern)) for signature in SIGNATURES]
# They only say that something went wrong, which explains nothing where another message is there too.
_CONSEQUENCES = {"process_failed", "remote_process_exited", "nccl_system_error", "nccl_cuda_error", "nccl_failure", "cuda_failure", "test_failure",
                 "no_rdma_device"}
_LOOKS_WRONG = re.compile(r"\b(?:\w*error|failed|failure|fatal|\w*exception|refused|denied|timed out|panic|aborted)\b", re.IGNORECASE)
UNKNOWN_LINES = 3


def explain(text):
    """What the text's errors mean, in the order in which they come: signature, line, cause, fix and link of each.

    Where none is known the last lines that look like errors are returned as they are, with all but C(line) empty.
    """
    known = find_errors(text, _PATTERNS)
    known = [error for error in known if error["id"] not in _CONSEQUENCES] or known
    if known:
        return [{"signature": error["id"], "line": error["line"], "cause": sentence(error["cause"]), "fix": sentence(error["fix"]),
                 "link": f"{DOCS}#{error['id']}"} for error in known]
    lines = [" ".join(line.split())[:500] for line in text.splitlines() if _LOOKS_WRONG.search(line)]
    return [{"signature": "", "line": line, "cause": "", "fix": "", "link": ""} for line in list(dict.fromkeys(lines))[-UNKNOWN_LINES:]]


def sentence(text):
    return text[:1].upper() + text[1:] + "."
