#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_smi_info
short_description: Read the driver and the GPUs from nvidia-smi
version_added: "0.2.0"
description:
  - Runs C(nvidia-smi -q -x) on the host or in a running container, and returns its document as
    data.
  - If a driver or a GPU is missing or broken, the module returns RV(available=false), RV(cause) and
    RV(fix), so that roles can decide.
  - The task fails only for invalid options, for a document that is truncated or cannot be parsed,
    and for other output.
  - A value that nvidia-smi does not report (C(N/A), C(Not Supported)) is null.
    RV(gpus[].unavailable) has its text.
  - Some texts in place of a value are a fault of the GPU (C(GPU requires reset), C(GPU is lost),
    C(Unknown Error), C(ERR!)). Then RV(available=false), and RV(gpus[].problems) has the fault.
author:
  - trainyard maintainers (@trainyard)
options:
  executable:
    default: nvidia-smi
  timeout:
    default: 60
  nvlinks:
    description: Whether to run C(nvidia-smi nvlink --status) as well, for RV(gpus[].nvlinks).
    type: bool
    default: false
    version_added: "0.4.0"
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
  - trainyard.gpu.tool
  - trainyard.gpu.tool.executable
notes:
  - Without persistence mode the driver initializes every GPU for each call, which takes seconds per
    GPU and counts towards O(timeout).
"""

EXAMPLES = r"""
- name: Gather driver and GPUs
  trainyard.gpu.nvidia_smi_info:
  register: smi

- name: Report what is wrong
  ansible.builtin.debug:
    msg: "{{ smi.cause }}: {{ smi.fix }}"
  when: not smi.available

- name: Report the GPUs that must not get new jobs
  ansible.builtin.debug:
    msg: "{{ smi.gpus | rejectattr('usable') | map(attribute='problems') | flatten |
      map(attribute='evidence') }}"

- name: Check that all eight GPUs answer in the training container
  trainyard.gpu.nvidia_smi_info:
    container: trainyard-training
  register: inside
  failed_when: inside.failed or not inside.available or inside.gpus | length != 8
"""

RETURN = r"""
available:
  description:
    - Whether nvidia-smi answered with exit code 0 and without an error for any GPU.
    - If it is false, RV(gpus) still has the GPUs that were described.
  type: bool
  returned: success
  sample: true
cause:
  description:
    - Why RV(available) is false, else null.
    - V(not_installed) - the executable does not exist.
    - V(driver_not_loaded) - the kernel module is not loaded.
    - V(driver_library_mismatch) - the version of the loaded kernel module differs from that of the
      libraries on disk.
    - V(library_missing) - libnvidia-ml.so, or another library, cannot be found, or CUDA's stub of
      it was found.
    - V(no_devices) - the driver has no GPU, or the caller may not open the device file of any.
    - V(gpu_lost) - a GPU does not answer, or says an error in place of a value; RV(error_gpus)
      names it.
    - V(access_blocked) - the operating system denies the caller access to the GPU.
    - V(permission) - the caller may not use the device files.
    - V(timeout) - it did not end within O(timeout).
    - V(unknown) - NVML's 'Unknown Error', and all other failures.
    - V(container_not_running) - no such container, or it is stopped, paused or restarting.
    - V(engine_unavailable) - no Docker client, no daemon, or the daemon denied access.
  type: str
  returned: success
  sample: driver_library_mismatch
fix:
  description: What to do about RV(cause), with the line of output that shows it; null if
    RV(available) is true.
  type: str
  returned: success
  sample: "reboot, or unload and load the kernel module: ... It said: Failed to initialize NVML:
    Driver/library version mismatch"
driver_version:
  description: Version of the loaded driver; null if it is not reported.
  type: str
  returned: success
  sample: 570.124.04
cuda_version:
  description: The highest CUDA version that the driver library supports, and not the installed one.
    Null if it is not reported (before driver 410).
  type: str
  returned: success
  sample: "12.8"
gpu_count:
  description: Number of GPUs that nvidia-smi counts. It is more than RV(gpus) has if some were not
    described.
  type: int
  returned: success
  sample: 8
error_gpus:
  description: GPUs that nvidia-smi cannot reach, or that have an error in place of a value.
  type: list
  elements: dict
  returned: success
  contains:
    bus_id:
      description: PCI bus id as printed, in lower case.
      type: str
    error:
      description: Its error message.
      type: str
remarks:
  description: Lines that nvidia-smi printed in addition to the document, such as the 'WARNING' of a
    corrupted infoROM.
  type: list
  elements: str
  returned: success
gpus:
  description: The GPUs in nvidia-smi's order, by bus id.
  type: list
  elements: dict
  returned: success
  contains:
    index:
      description: Position as in nvidia-smi's table and its option C(-i).
      type: int
    uuid:
      description: The UUID, with its C(GPU-).
      type: str
    name:
      description: The product's name.
      type: str
    bus_id:
      description: PCI bus id in lower case, the domain with eight digits (four before driver 396).
      type: str
    minor_number:
      description: N of /dev/nvidiaN. Its order may differ from RV(gpus[].index).
      type: int
    serial:
      description: The board's serial number.
      type: str
    architecture:
      description: NVIDIA's name of the generation, from driver 495 on.
      type: str
    compute_mode:
      description: V(Default), V(Exclusive_Process) or V(Prohibited).
      type: str
    persistence_mode:
      description: Whether the driver stays initialized while the GPU is not used.
      type: bool
    mig_mode:
      description: Whether the GPU is partitioned (Multi-Instance GPU).
      type: bool
    mig_mode_pending:
      description: Value of RV(gpus[].mig_mode) after the next reset of the GPU.
      type: bool
    mig_devices:
      description: The partitions - index, gpu_instance_id, compute_instance_id, memory_total_mib,
        memory_used_mib.
      type: list
      elements: dict
    virtualization_mode:
      description: V(None) on bare metal, V(Pass-Through), V(VGPU) ...
      type: str
    recovery_action:
      description: Recovery action that the driver recommends, V(None) if none; from driver 565 on.
      type: str
    reset_required:
      description: Whether the GPU requires a reset; before driver 565.
      type: bool
      version_added: "0.4.0"
    drain_and_reset_recommended:
      description: Whether the jobs should end, and the GPU be reset; before driver 565.
      type: bool
      version_added: "0.4.0"
    fabric_state:
      description: State of the NVSwitch fabric, V(Completed) if the GPU has joined it; null without
        a fabric.
      type: str
    fabric_status:
      description: Result of joining the fabric, V(Success) if it worked; null without a fabric.
      type: str
      version_added: "0.4.0"
    fabric_health:
      description: Summary of the fabric's health, such as V(Healthy); null if it is not reported,
        as on H100.
      type: str
      version_added: "0.4.0"
    fabric_clique:
      description: Group of GPUs in the fabric that reach each other. V(0) is normal in one server.
      type: str
      version_added: "0.4.0"
    fabric_cluster:
      description: UUID of the fabric. Zeros are normal in one server.
      type: str
      version_added: "0.4.0"
    usable:
      description: Whether the GPU can have new jobs. It is false if a problem has action V(drain).
      type: bool
      version_added: "0.4.0"
    faults:
      description: Errors that nvidia-smi has in place of values, by the name of the value in its
        document.
      type: dict
      sample: {current_ecc: GPU requires reset}
      version_added: "0.4.0"
    fabric_faults:
      description: Parts of the fabric's health that are a fault.
      type: list
      elements: str
      sample: [bandwidth is Degraded]
      version_added: "0.4.0"
    memory_faults:
      description: What nvidia-smi says of the memory beside the counters of errors, if it is a
        fault.
      type: list
      elements: str
      sample: [unrepairable_memory]
      version_added: "0.4.0"
    problems:
      description: What is wrong with the GPU, as role P(trainyard.gpu.verify#role) and the health
        program of role P(trainyard.gpu.job_container#role) judge it.
      type: list
      elements: dict
      version_added: "0.4.0"
      contains:
        id:
          description:
            - The check of role P(trainyard.gpu.verify#role) that reports it.
            - V(gpu-state) - an error in place of a value, or a recovery action.
            - V(gpu-fabric) - the GPU has not joined the NVSwitch fabric, or that is not healthy.
            - V(gpu-ecc) - errors of its memory.
            - V(gpu-throttle) - clocks that are lower because of heat or the power supply.
          type: str
          sample: gpu-state
        action:
          description: V(warn), or V(drain) if the host must not get new jobs. V(ignore) and
            V(stop_job) are actions of errors in the kernel log only.
          type: str
          sample: drain
        evidence:
          description: What nvidia-smi says.
          type: str
          sample: "GPU 1 (00000000:43:00.0): the driver asks for recovery action 'Reset'"
        fix:
          description: What to do about it.
          type: str
    memory_total_mib:
      description: Memory in MiB.
      type: int
    memory_used_mib:
      description: Used memory in MiB.
      type: int
    memory_free_mib:
      description: Free memory in MiB.
      type: int
    utilization_gpu_percent:
      description: Share of the last sample period in which a kernel ran. Null with MIG.
      type: int
    utilization_memory_percent:
      description: Share of the last sample period in which memory was read or written.
      type: int
    temperature_c:
      description: Temperature in degrees Celsius.
      type: int
    power_draw_w:
      description: Power draw in watts.
      type: float
    power_limit_w:
      description: The limit in force, in watts.
      type: float
    ecc_mode:
      description: Whether ECC is on.
      type: bool
    ecc_mode_pending:
      description: Value of RV(gpus[].ecc_mode) after the next reboot.
      type: bool
    ecc_errors:
      description: Under C(volatile) (since the driver was loaded) and C(aggregate) (over the GPU's
        life), C(correctable) and C(uncorrectable) errors.
      type: dict
      sample: {volatile: {correctable: 0, uncorrectable: 0}, aggregate: {correctable: 7, uncorrectable: 0}}
    retired_pages_pending:
      description: Whether memory pages are retired at the next reset. Before Ampere.
      type: bool
    remapped_rows_pending:
      description: Whether memory rows are remapped at the next reset. From Ampere on.
      type: bool
    remapped_rows_failure:
      description: Whether remapping has failed. Then the GPU must be replaced.
      type: bool
    pcie_generation:
      description: Current PCIe generation. An idle GPU lowers it.
      type: int
    pcie_generation_max:
      description: The highest PCIe generation that both GPU and slot support.
      type: int
    pcie_width:
      description: Current number of PCIe lanes.
      type: int
    pcie_width_max:
      description: Maximum number of PCIe lanes of the GPU.
      type: int
    nvlinks:
      description: Speed of each NVLink in GB/s, 0 if it is inactive. Empty if none is active or the
        GPU has none, null if it is unknown or not O(nvlinks).
      type: list
      elements: float
      sample: [26.562, 26.562]
      version_added: "0.4.0"
    clocks_mhz:
      description: Current clocks - graphics, sm, memory, video.
      type: dict
    clocks_max_mhz:
      description: The highest clocks - graphics, sm, memory, video.
      type: dict
    throttle_reasons:
      description: Current reasons for lower clocks, in NVIDIA's terms (V(gpu_idle),
        V(sw_power_cap), V(hw_thermal_slowdown) ...); empty if there are none.
      type: list
      elements: str
    processes:
      description: Processes on the GPU - pid, name, type (V(C), V(G), V(C+G)), used_memory_mib,
        gpu_instance_id. Null if they are not reported.
      type: list
      elements: dict
    unavailable:
      description: Reason for every key above that is null; V(not reported by this driver) if the
        document does not have it.
      type: dict
      sample: {ecc_mode: N/A}
fabric:
  description: The NVLink fabric of the GPUs, as they report it.
  type: dict
  returned: success
  version_added: "0.4.0"
  contains:
    present:
      description: Whether a GPU is part of a fabric.
      type: bool
    ready:
      description: Whether all of these GPUs have joined it, so that CUDA programs can start; null
        without a fabric.
      type: bool
    states:
      description: The different values of RV(gpus[].fabric_state).
      type: list
      elements: str
    statuses:
      description: The different values of RV(gpus[].fabric_status).
      type: list
      elements: str
    healths:
      description: The different values of RV(gpus[].fabric_health).
      type: list
      elements: str
    cliques:
      description: The different values of RV(gpus[].fabric_clique).
      type: list
      elements: str
    clusters:
      description: The different values of RV(gpus[].fabric_cluster). More than one means that the
        GPUs do not reach each other by NVLink.
      type: list
      elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils import _bandwidth
from ansible_collections.trainyard.gpu.plugins.module_utils._nvidia_smi import (
    ParseError,
    fabric_of,
    lost_gpus,
    parse_query,
    why_no_answer,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._tool import (
    check_names,
    check_timeout,
    run_tool,
    tool_options,
)

# By cause: what to do on a host, and, if it differs, in a container.
FIXES = {
    "not_installed": (
        "install the NVIDIA driver on this host, or set its nvidia-smi in 'executable'",
        (
            "create container {container} with GPUs by the NVIDIA container toolkit, which also "
            "adds nvidia-smi"
        ),
    ),
    "driver_not_loaded": (
        (
            "load the kernel module ('modprobe nvidia'; 'dmesg' shows errors). After an update of "
            "the kernel it may have to be built"
        ),
        "load the driver's kernel module on the host ('modprobe nvidia')",
    ),
    "driver_library_mismatch": (
        (
            "reboot, or unload and load the kernel module: the driver was updated on disk, and the "
            "former version is still loaded"
        ),
        (
            "reboot the host, then recreate container {container}: its libraries differ in version "
            "from the loaded kernel module"
        ),
    ),
    "library_missing": (
        "install the driver's libraries in the version of its kernel module, and run ldconfig. "
        "CUDA's folder of stubs must not be in "
        "LD_LIBRARY_PATH or ld.so.conf",
        (
            "create container {container} by the NVIDIA container toolkit with capability "
            "'utility', which adds libnvidia-ml.so"
        ),
    ),
    "no_devices": (
        "check whether 'lspci -d 10de:' lists the GPUs, and read 'dmesg | grep NVRM': a card "
        "without power, or a kernel module that does not "
        "support this generation. If nothing is wrong there, check the permissions of /dev/nvidia*",
        "run nvidia-smi on the host, and check which GPUs container {container} was created with",
    ),
    "gpu_lost": (
        "take the host out of use and reboot it. If the GPU only requires a reset, stop its "
        "jobs and reset it (nvidia-smi --gpu-reset, with monitoring "
        "after systemctl stop trainyard-metrics-gpu). 'dmesg | grep Xid' "
        "shows the error. If it returns, GPU, power or slot is faulty",
        None,
    ),
    "access_blocked": (
        "find out which cgroup, hypervisor or security module denies this host's processes the GPU",
        "restart container {container}: its cgroup has lost the device files",
    ),
    "permission": (
        "run the task as root (become), or check the permissions of /dev/nvidia*",
        "check the permissions of /dev/nvidia* in container {container}",
    ),
    "timeout": (
        (
            "find out what nvidia-smi waits for (a GPU that hangs: 'dmesg | grep Xid'), switch "
            "persistence mode on, or raise 'timeout'"
        ),
        None,
    ),
    "unknown": (
        "read 'dmesg | grep -i nvrm', and run nvidia-smi manually",
        (
            "restart container {container}: containers lose their GPUs when systemd reloads its "
            "units on the host. Else read 'dmesg | grep -i nvrm' there"
        ),
    ),
    "container_not_running": ("start container {container}", None),
    "engine_unavailable": ("install and start Docker on this host, and run the task as root", None),
}


def add_nvlinks(gpus: list, run) -> None:
    """Add the links to each GPU. A driver that knows no NVLinks has no such command."""
    links, reason = [], run.evidence if run.cause else f"nvidia-smi ended with exit code {run.rc}"
    try:
        links = _bandwidth.nvlinks("" if run.cause else run.stdout)
    except _bandwidth.ParseError as exc:
        reason = str(exc)
    # The same order, unless one of them could not be asked. UUIDs may be masked.
    found = {gpu["index"]: each for gpu, each in zip(gpus, links) if len(gpus) == len(links)}
    of_uuid = {each["uuid"]: each for each in links}
    for gpu in gpus:
        its = (
            found.get(gpu["index"]) or of_uuid.get(gpu["uuid"]) or {"speeds": None, "said": reason}
        )
        gpu["nvlinks"] = its["speeds"]
        if its["speeds"] is None:
            gpu["unavailable"]["nvlinks"] = its["said"] or "nvidia-smi lists no links"


def broken_gpus(run, gpus: list) -> list:
    """Return C(error_gpus): the lost GPUs, and those whose document has an error in place of a
    value.
    """
    return lost_gpus(run.stdout, run.stderr) + [
        {
            "bus_id": gpu["bus_id"],
            "error": ", ".join(sorted({words.strip("[]") for words in gpu["faults"].values()}))
            or gpu["unavailable"]["uuid"],
        }
        for gpu in gpus
        if gpu["uuid"] is None or gpu["faults"]
    ]


def cause_of(run, has_document: bool, error_gpus: list) -> tuple[str, str]:
    """Return why not all GPUs can be used, and the evidence.

    The cause is empty if they can, and V(other) if the program is not nvidia-smi.
    """
    if run.cause or (has_document and run.rc == 0 and not error_gpus):
        return run.cause, run.evidence
    cause, evidence = why_no_answer(run.rc, run.stdout, run.stderr)
    if error_gpus:
        return "gpu_lost", ", ".join("GPU {bus_id}: {error}".format(**gpu) for gpu in error_gpus)
    is_other = not has_document and run.rc == 0 and cause == "unknown" and run.stdout.strip()
    return ("other" if is_other else cause), evidence


def fix_of(cause: str, evidence: str, container: str | None) -> str | None:
    if not cause:
        return None
    on_host, in_container = FIXES[cause]
    fix = in_container or on_host if container else on_host
    return fix.format(container=container) + f". It said: {evidence}"


def read_document(module: AnsibleModule, run, executable: str):
    """Return the parsed document, None if there is none."""
    if run.cause:
        return None
    try:
        return parse_query(run.stdout)
    except ParseError as exc:
        return module.fail_json(
            msg=f"{executable} -q -x: {exc}. Run it in the same place. If its output is complete, "
            "report it as a fault of the "
            "collection",
            rc=run.rc,
            stdout=run.stdout,
            stderr=run.stderr,
        )


#: What is returned without a document.
NO_DOCUMENT = {"driver_version": None, "cuda_version": None, "gpu_count": 0, "remarks": []}


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            tool_options(60, "nvidia-smi"), nvlinks={"type": "bool", "default": False}
        ),
        supports_check_mode=True,
    )
    executable, container, timeout = (
        module.params[name] for name in ("executable", "container", "timeout")
    )
    check_names(module, "container")
    check_timeout(module)

    run = run_tool(module, [executable, "-q", "-x"], timeout, container=container)
    answer = read_document(module, run, executable)
    gpus = answer.gpus if answer else []
    if module.params["nvlinks"] and gpus:
        command = [executable, "nvlink", "--status"]
        add_nvlinks(gpus, run_tool(module, command, timeout, container=container))
    error_gpus = broken_gpus(run, gpus)
    cause, evidence = cause_of(run, answer is not None, error_gpus)
    if cause == "other":
        module.fail_json(
            msg=f"{executable} -q -x ended with exit code 0, but printed no document of "
            "nvidia-smi. Set executable to the driver's "
            "nvidia-smi, or remove the program of that name that comes first in PATH",
            stdout=run.stdout,
            stderr=run.stderr,
        )
    module.exit_json(
        changed=False,
        available=not cause,
        cause=cause or None,
        fix=fix_of(cause, evidence, container),
        gpus=gpus,
        fabric=fabric_of(gpus),
        error_gpus=error_gpus,
        **({name: getattr(answer, name) for name in NO_DOCUMENT} if answer else NO_DOCUMENT),
    )


if __name__ == "__main__":
    main()
