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
  - Runs C(nvidia-smi -q -x) on the host or in a running container, and returns its document as data.
  - A driver or a GPU that is missing or broken is a result (RV(available=false), RV(cause), RV(fix)), as roles decide on it.
  - The task fails only for bad options, for a document that is cut or can't be read, and for output that is something else.
  - What nvidia-smi has no value for (C(N/A), C(Not Supported), C(ERR!), C(Unknown Error)) is null, and RV(gpus[].unavailable) keeps its words.
author:
  - trainyard maintainers (@trainyard)
options:
  executable:
    default: nvidia-smi
  timeout:
    default: 60
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
  - trainyard.gpu.tool
  - trainyard.gpu.tool.executable
notes:
  - Without persistence mode the driver initializes every GPU for each call, which takes seconds per GPU and counts towards O(timeout).
"""

EXAMPLES = r"""
- name: Ask the driver
  trainyard.gpu.nvidia_smi_info:
  register: smi

- name: Say what is wrong
  ansible.builtin.debug:
    msg: "{{ smi.cause }}: {{ smi.fix }}"
  when: not smi.available

- name: Eight GPUs, all of which answer, in the training container
  trainyard.gpu.nvidia_smi_info:
    container: trainyard-training
  register: inside
  failed_when: inside.failed or not inside.available or inside.gpus | length != 8
"""

RETURN = r"""
available:
  description:
    - Whether nvidia-smi answered with exit code 0 and without an error for any GPU.
    - Where it is false, RV(gpus) still has the GPUs that were described.
  type: bool
  returned: success
  sample: true
cause:
  description:
    - Why RV(available) is false, else null.
    - V(not_installed) - no such executable there.
    - V(driver_not_loaded) - the kernel module is not loaded.
    - V(driver_library_mismatch) - the loaded kernel module has another version than the libraries on disk.
    - V(library_missing) - libnvidia-ml.so, or another library, can't be found.
    - V(no_devices) - the driver has no GPU.
    - V(gpu_lost) - a GPU does not answer; RV(error_gpus) names it.
    - V(access_blocked) - the operating system keeps the GPU from the caller.
    - V(permission) - the caller may not use the device files.
    - V(timeout) - no end within O(timeout).
    - V(unknown) - NVML's own «Unknown Error», and whatever else ends with an exit code.
    - V(container_not_running) - no such container, or it is stopped, paused or restarting.
    - V(engine_unavailable) - no Docker client, no daemon, or the daemon refused.
  type: str
  returned: success
  sample: driver_library_mismatch
fix:
  description: What to do about RV(cause), with the line of output that shows it; null when RV(available) is true.
  type: str
  returned: success
  sample: "reboot, or unload and load the kernel module: ... It said: Failed to initialize NVML: Driver/library version mismatch"
driver_version:
  description: The loaded driver's version; null where it is not said.
  type: str
  returned: success
  sample: 570.124.04
cuda_version:
  description: The highest CUDA version that the driver library supports; not what is installed. Null where it is not said (before driver 410).
  type: str
  returned: success
  sample: "12.8"
gpu_count:
  description: GPUs that nvidia-smi counts. More than RV(gpus) has, where some were not described.
  type: int
  returned: success
  sample: 8
error_gpus:
  description: GPUs of which nvidia-smi says that they can't be reached.
  type: list
  elements: dict
  returned: success
  contains:
    bus_id:
      description: PCI bus id as it was printed, in lower case.
      type: str
    error:
      description: What was said of it.
      type: str
remarks:
  description: Lines that nvidia-smi printed beside the document, such as «WARNING» of a corrupted infoROM.
  type: list
  elements: str
  returned: success
gpus:
  description: The GPUs, in nvidia-smi's order, which is that of their bus ids.
  type: list
  elements: dict
  returned: success
  contains:
    index:
      description: Position, as in nvidia-smi's table and for its option C(-i).
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
      description: N of /dev/nvidiaN, which may be in another order than RV(gpus[].index).
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
      description: Whether the driver stays initialized when nobody uses the GPU.
      type: bool
    mig_mode:
      description: Whether the GPU is partitioned (Multi-Instance GPU).
      type: bool
    mig_mode_pending:
      description: What RV(gpus[].mig_mode) will be after the GPU's next reset.
      type: bool
    mig_devices:
      description: The partitions - index, gpu_instance_id, compute_instance_id, memory_total_mib, memory_used_mib.
      type: list
      elements: dict
    virtualization_mode:
      description: V(None) on bare metal, V(Pass-Through), V(VGPU) ...
      type: str
    recovery_action:
      description: What the driver advises, V(None) where nothing; from driver 565 on.
      type: str
    fabric_state:
      description: State of the NVSwitch fabric, V(Completed) where the GPU has joined it; null where there is none.
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
      description: What RV(gpus[].ecc_mode) will be after the next reboot.
      type: bool
    ecc_errors:
      description: Under C(volatile) (since the driver was loaded) and C(aggregate) (over the GPU's life), C(correctable) and C(uncorrectable) errors.
      type: dict
      sample: {volatile: {correctable: 0, uncorrectable: 0}, aggregate: {correctable: 7, uncorrectable: 0}}
    retired_pages_pending:
      description: Whether memory pages are retired at the next reset. Before Ampere.
      type: bool
    remapped_rows_pending:
      description: Whether memory rows are remapped at the next reset. From Ampere on.
      type: bool
    remapped_rows_failure:
      description: Whether remapping has failed, after which the GPU has to be replaced.
      type: bool
    pcie_generation:
      description: PCIe generation now; an idle GPU lowers it.
      type: int
    pcie_generation_max:
      description: The highest PCIe generation that GPU and slot have together.
      type: int
    pcie_width:
      description: PCIe lanes now.
      type: int
    pcie_width_max:
      description: PCIe lanes that the GPU has.
      type: int
    clocks_mhz:
      description: Clocks now - graphics, sm, memory, video.
      type: dict
    clocks_max_mhz:
      description: The highest clocks - graphics, sm, memory, video.
      type: dict
    throttle_reasons:
      description: What keeps the clocks down now, in NVIDIA's words (V(gpu_idle), V(sw_power_cap), V(hw_thermal_slowdown) ...); empty where nothing does.
      type: list
      elements: str
    processes:
      description: Processes on the GPU - pid, name, type (V(C), V(G), V(C+G)), used_memory_mib, gpu_instance_id. Null where they aren't said.
      type: list
      elements: dict
    unavailable:
      description: For every key above that is null, why; V(not reported by this driver) where the document doesn't have it.
      type: dict
      sample: {ecc_mode: N/A}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._nvidia_smi import ParseError, lost_gpus, parse_query, why_no_answer
from ansible_collections.trainyard.gpu.plugins.module_utils._tool import check_names, check_timeout, run_tool, tool_options

# By cause: what to do on a host, and, where that is something else, in a container.
FIXES = {
    "not_installed": ("install the NVIDIA driver on this host, or name its nvidia-smi in «executable»",
                      "give container {container} its GPUs when it is created, by the NVIDIA container toolkit, which also brings nvidia-smi"),
    "driver_not_loaded": ("load the kernel module («modprobe nvidia»; «dmesg» says why not). After an update of the kernel it may have to be built",
                          "load the driver's kernel module on the host («modprobe nvidia»)"),
    "driver_library_mismatch": ("reboot, or unload and load the kernel module: the driver was updated on disk, and the former version still runs",
                                "reboot the host, then create container {container} anew: its libraries are of another version than the running kernel module"),
    "library_missing": ("install the driver's libraries in the version of its kernel module, and run ldconfig",
                        "create container {container} by the NVIDIA container toolkit, with capability «utility», which brings libnvidia-ml.so"),
    "no_devices": ("see whether «lspci -d 10de:» lists the GPUs and what «dmesg | grep NVRM» says: a card without power, or a kernel module that doesn't "
                   "support this generation",
                   "see what nvidia-smi says on the host, and which GPUs container {container} was given"),
    "gpu_lost": ("take the host out of use and reboot it; «dmesg | grep Xid» says what happened. If that comes back, GPU, power or slot is faulty", None),
    "access_blocked": ("see which cgroup, hypervisor or security module keeps the GPU from this host's processes",
                       "restart container {container}: its cgroup has lost the device files"),
    "permission": ("run the task as root (become), or see who may use /dev/nvidia*", "see who may use /dev/nvidia* in container {container}"),
    "timeout": ("see what nvidia-smi waits for (a GPU that hangs: «dmesg | grep Xid»), switch persistence mode on, or raise «timeout»", None),
    "unknown": ("see «dmesg | grep -i nvrm», and run nvidia-smi by hand",
                "restart container {container}: containers lose their GPUs when systemd reloads its units on the host. Else see «dmesg | grep -i nvrm» there"),
    "container_not_running": ("start container {container}", None),
    "engine_unavailable": ("install and start Docker on this host, and run the task as root", None),
}


def main() -> None:
    module = AnsibleModule(argument_spec=tool_options(60, "nvidia-smi"), supports_check_mode=True)
    executable, container, timeout = (module.params[name] for name in ("executable", "container", "timeout"))
    check_names(module, "container")
    check_timeout(module)

    run = run_tool(module, [executable, "-q", "-x"], timeout, container=container)
    try:
        answer = parse_query(run.stdout) if not run.cause else None
    except ParseError as exc:
        module.fail_json(msg=f"{executable} -q -x: {exc}", rc=run.rc, stdout=run.stdout, stderr=run.stderr)
    gpus = answer.gpus if answer else []
    error_gpus = lost_gpus(run.stdout, run.stderr) + [{"bus_id": gpu["bus_id"], "error": gpu["unavailable"]["uuid"]} for gpu in gpus if gpu["uuid"] is None]

    cause, evidence = run.cause, run.evidence
    if not cause and (answer is None or run.rc != 0 or error_gpus):
        cause, evidence = why_no_answer(run.rc, run.stdout, run.stderr)
        if error_gpus:
            cause, evidence = "gpu_lost", ", ".join("GPU {bus_id}: {error}".format(**gpu) for gpu in error_gpus)
        elif answer is None and run.rc == 0 and cause == "unknown" and run.stdout.strip():
            module.fail_json(msg=f"{executable} -q -x ended with exit code 0, but printed no document of nvidia-smi", stdout=run.stdout, stderr=run.stderr)
    fix = None
    if cause:
        on_host, in_container = FIXES[cause]
        fix = (in_container or on_host if container else on_host).format(container=container) + f". It said: {evidence}"
    module.exit_json(
        changed=False, available=not cause, cause=cause or None, fix=fix,
        driver_version=answer.driver_version if answer else None, cuda_version=answer.cuda_version if answer else None,
        gpu_count=answer.gpu_count if answer else 0, gpus=gpus, error_gpus=error_gpus, remarks=answer.remarks if answer else [],
    )


if __name__ == "__main__":
    main()
