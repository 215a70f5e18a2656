#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: npu_smi_info
short_description: Read the driver and the Ascend NPUs from npu-smi
version_added: "0.4.0"
description:
  - Runs C(npu-smi info) on the host or in a running container, and returns its table as data.
  - Reads the network address of each device from C(hccn_tool -i N -ip -g) and from
    C(/etc/hccn.conf). The answer of the tool wins. A difference is one of RV(findings).
  - If the driver or an NPU is missing or broken, the module returns RV(available=false), RV(cause)
    and RV(fix), so that roles can decide.
  - The task fails only for invalid options and for output that cannot be parsed.
  - A value that npu-smi does not report (V(NA), V(-)) is null. RV(npus[].chips[].unavailable) has
    its text.
author:
  - trainyard maintainers (@trainyard)
options:
  executable:
    default: npu-smi
  timeout:
    default: 60
  addresses:
    description: Whether to read the network addresses of the devices.
    type: bool
    default: true
  hccn_tool:
    description: Path of C(hccn_tool) where it runs. The driver does not put it on the PATH. It
      needs root.
    type: str
    default: /usr/local/Ascend/driver/tools/hccn_tool
  hccn_conf:
    description: Path of the file with the configured addresses, where the tools run.
    type: str
    default: /etc/hccn.conf
  device_folder:
    description: Folder of the device files C(davinciN) on the host. N is the device's Phy-ID.
    type: path
    default: /dev
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
  - trainyard.gpu.tool
  - trainyard.gpu.tool.executable
notes:
  - O(timeout) applies to each call of a tool. After a call of C(hccn_tool) that did not end in
    time, it is not called for further devices.
  - The devices are those of column C(Phy-ID). Without that column they are the device files of the
    host, else those of O(hccn_conf). Column C(NPU) has other numbers.
"""

EXAMPLES = r"""
- name: Gather driver and NPUs
  trainyard.gpu.npu_smi_info:
  register: npu

- name: Report what is wrong
  ansible.builtin.debug:
    msg: "{{ npu.cause }}: {{ npu.fix }}"
  when: not npu.available

- name: Check that all chips are healthy and have an address
  trainyard.gpu.npu_smi_info:
  register: npu
  failed_when: npu.failed or not npu.available or npu.findings
"""

RETURN = r"""
available:
  description:
    - Whether npu-smi answered with exit code 0 and a complete table of at least one NPU.
    - If it is false, RV(npus) still has the NPUs that were described.
  type: bool
  returned: success
  sample: true
cause:
  description:
    - Why RV(available) is false, else null.
    - V(not_installed) - the executable does not exist.
    - V(driver_not_loaded) - the management interface does not start (C(ret is -8005)).
    - V(device_in_use) - another container has the same device (C(ret is -8020)).
    - V(library_missing) - a library of the driver cannot be found.
    - V(no_devices) - the server has no NPU, or none that the caller can see.
    - V(no_answer) - an NPU or the driver does not answer.
    - V(not_ready) - an NPU is starting, or its firmware is upgraded.
    - V(permission) - the caller may not use the device files.
    - V(truncated) - the table has no end, or lacks a row. npu-smi leaves out a row that it cannot
      read.
    - V(timeout) - it did not end within O(timeout).
    - V(unknown) - all other failures.
    - V(container_not_running) - no such container, or it is stopped, paused or restarting.
    - V(engine_unavailable) - no Docker client, no daemon, or the daemon denied access.
  type: str
  returned: success
  sample: driver_not_loaded
fix:
  description: What to do about RV(cause), with the line of output that shows it; null if
    RV(available) is true.
  type: str
  returned: success
  sample: "reboot if driver or firmware were installed since the last boot ... It said: dcmi module
    initialize failed. ret is -8005"
tool_version:
  description: Version of npu-smi.
  type: str
  returned: success
  sample: 25.5.1
driver_version:
  description: Version of the driver, as text. It can differ from that of the tool.
  type: str
  returned: success
  sample: 25.5.1
npu_count:
  description: Number of NPUs in the table.
  type: int
  returned: success
  sample: 8
npus:
  description: The NPUs in the order of the table.
  type: list
  elements: dict
  returned: success
  contains:
    id:
      description: Column C(NPU), the number for the options of npu-smi.
      type: int
    name:
      description: Name of the chip, such as V(910B1), V(310P3) or V(Ascend910).
      type: str
    health:
      description: V(OK), or the health of the first chip that is not V(OK) - V(Warning), V(Alarm),
        V(Critical) or V(UNKNOWN).
      type: str
    power_w:
      description: Power in watts.
      type: float
    memory_used_mib:
      description: Used memory of all chips in MiB - HBM if they have it, else DDR.
      type: int
    memory_total_mib:
      description: Memory of all chips in MiB - HBM if they have it, else DDR.
      type: int
    processes:
      description: Processes on the NPU - C(chip), C(pid), C(name), C(memory_mib). Null if npu-smi
        does not list them.
      type: list
      elements: dict
    chips:
      description: The chips of the NPU.
      type: list
      elements: dict
      contains:
        id:
          description: Column C(Chip).
          type: int
        name:
          description: Name of the chip.
          type: str
        health:
          description: Health of the chip.
          type: str
        phy_id:
          description: Column C(Phy-ID), N of /dev/davinciN. Null for versions without that column.
          type: int
        logic_id:
          description: Column C(Device). Null for versions without that column.
          type: int
        bus_id:
          description: PCI bus id in lower case. Null for an NPU that is not on the PCI bus.
          type: str
        power_w:
          description: Power in watts. Of a card with two chips, the first has the power of both.
          type: float
        temperature_c:
          description: Temperature in degrees Celsius.
          type: int
        utilization_percent:
          description: Column C(AICore) or C(NPU Util).
          type: int
        hugepages_used:
          description: Used huge pages.
          type: int
        hugepages_total:
          description: Huge pages.
          type: int
        memory_used_mib:
          description: Used DDR in MiB.
          type: int
        memory_total_mib:
          description: DDR in MiB. A chip without DDR has 0.
          type: int
        hbm_used_mib:
          description: Used HBM in MiB.
          type: int
        hbm_total_mib:
          description: HBM in MiB.
          type: int
        unavailable:
          description: Text or reason for every key above that is null.
          type: dict
          sample: {power_w: "-"}
devices:
  description: The devices with their addresses. Empty with O(addresses=false).
  type: list
  elements: dict
  returned: success
  contains:
    id:
      description: Phy-ID of the device, as in C(device_id) of a rank table.
      type: int
    address:
      description: The live address, else the configured one; null if there is none.
      type: str
    netmask:
      description: Netmask of RV(devices[].address).
      type: str
    source:
      description: V(hccn_tool) or V(hccn_conf); null without an address.
      type: str
    live_address:
      description: Address that C(hccn_tool) reports.
      type: str
    configured_address:
      description: Address in O(hccn_conf).
      type: str
    reason:
      description: Why there is no live address, else null.
      type: str
findings:
  description:
    - What is wrong although npu-smi answers.
    - V(unhealthy) - a chip is not V(OK).
    - V(device_nodes_differ) - the host has more or fewer files C(davinciN) than npu-smi has
      described chips.
    - V(address_differs) - the live address is not the configured one, so it changes at the next
      boot.
    - V(address_missing), V(address_duplicate) - the device cannot take part in collective
      communication.
  type: list
  elements: dict
  returned: success
  contains:
    kind:
      description: One of the words above.
      type: str
    device:
      description: Phy-ID of the device, for V(unhealthy) the number of the NPU. Null if it concerns
        the host.
      type: int
    found:
      description: What was found.
      type: str
    expected:
      description: What was expected.
      type: str
    fix:
      description: What to do.
      type: str
remarks:
  description: Lines that npu-smi printed beside the table, such as its warning of an incomplete
    driver.
  type: list
  elements: str
  returned: success
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._npu_smi import (
    ParseError,
    Table,
    device_nodes_finding,
    merged_devices,
    parse_address,
    parse_conf,
    parse_info,
    unhealthy,
    why_no_answer,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._pci import npu_nodes
from ansible_collections.trainyard.gpu.plugins.module_utils._tool import (
    Run,
    check_names,
    check_timeout,
    run_tool,
    tool_options,
)

# By cause: what to do on a host, and, if it differs, in a container.
FIXES = {
    "not_installed": (
        "install the Ascend driver on this host, or set its npu-smi in 'executable'",
        (
            "mount npu-smi of the host (/usr/local/bin/npu-smi or /usr/local/sbin/npu-smi) into "
            "container {container}"
        ),
    ),
    "driver_not_loaded": (
        "reboot if driver or firmware were installed since the last boot. Else check that "
        "'lsmod' lists drv_davinci_intf_host, read 'dmesg', "
        "and run the task as root or as a member of group HwHiAiUser",
        "create container {container} with /dev/davinci_manager, /dev/devmm_svm, "
        "/dev/hisi_hdc, a /dev/davinciN, /usr/local/dcmi and the "
        "driver's lib64. If it has them, check npu-smi on the host",
    ),
    "device_in_use": (
        "end the container that has the NPU: a device belongs to one container at a time",
        (
            "give container {container} devices that no other container has, and /usr/local/dcmi "
            "of the host"
        ),
    ),
    "library_missing": (
        (
            "install the driver again, and add its lib64/driver and lib64/common to "
            "LD_LIBRARY_PATH or ld.so.conf"
        ),
        (
            "mount /usr/local/Ascend/driver/lib64 and /usr/local/dcmi into container {container}, "
            "and set LD_LIBRARY_PATH"
        ),
    ),
    "no_devices": (
        (
            "check whether 'lspci -d 19e5:' lists the NPUs. If so, read 'dmesg' and check that "
            "firmware and driver fit together"
        ),
        "create container {container} with a /dev/davinciN",
    ),
    "no_answer": (
        (
            "read 'dmesg' and /var/log/npu, and reset the NPU or reboot the host. If it returns, "
            "the NPU is faulty"
        ),
        None,
    ),
    "not_ready": (
        (
            "wait until the NPU has started or its firmware is upgraded, then reboot if the "
            "installer asked for it"
        ),
        None,
    ),
    "permission": (
        "run the task as root (become), or as a member of group HwHiAiUser",
        "check the user of container {container}, and its group HwHiAiUser",
    ),
    "truncated": (
        (
            "run npu-smi info again. If it stays so, npu-smi cannot read this chip: read 'dmesg', "
            "and reset or replace it"
        ),
        None,
    ),
    "timeout": (
        "find out what npu-smi waits for (an NPU that hangs: 'dmesg'), or raise 'timeout'",
        None,
    ),
    "unknown": (
        "read 'dmesg' and /var/log/npu, and run npu-smi info manually",
        "run npu-smi info on the host, then in container {container}",
    ),
    "container_not_running": ("start container {container}", None),
    "engine_unavailable": ("install and start Docker on this host, and run the task as root", None),
}


def conf_text(module, path, timeout, container):
    """Content of hccn.conf; empty if it cannot be read."""
    if container:
        return run_tool(module, ["cat", path], timeout, container=container).stdout
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def live_addresses(module, devices, timeout, container):
    """{device: (address, netmask)}, and {device: why there is none}."""
    live, reasons, hopeless = {}, {}, ""
    for device in devices:
        if not hopeless:
            run = run_tool(
                module,
                [module.params["hccn_tool"], "-i", str(device), "-ip", "-g"],
                timeout,
                container=container,
            )
            address, netmask = parse_address(run.stdout) if run.rc == 0 else (None, None)
            if address:
                live[device] = (address, netmask)
                continue
            lines = [
                line.strip()
                for line in (run.stdout + "\n" + run.stderr).splitlines()
                if line.strip()
            ]
            reason = run.evidence or (
                f"{lines[-1]} (exit code {run.rc})" if lines else f"no output (exit code {run.rc})"
            )
            reasons[device] = f"hccn_tool: {reason}" + (
                "" if container or os.geteuid() == 0 else "; it needs root"
            )
            # It would not answer for the others either, and each call would take the whole time.
            hopeless = reasons[device] if run.cause else ""
        else:
            reasons[device] = hopeless
    return live, reasons


def table_of(module: AnsibleModule, run: Run) -> Table | None:
    """Return the table that npu-smi printed, None if it printed none.

    Fail for one that cannot be read.
    """
    try:
        return None if run.cause else parse_info(run.stdout)
    except ParseError as exc:
        module.fail_json(
            msg=(
                f"{module.params['executable']} info: {exc}. Run it in the same place. If its "
                "output is complete, report it as a fault of the collection"
            ),
            rc=run.rc,
            stdout=run.stdout,
            stderr=run.stderr,
        )


def cause_of(module: AnsibleModule, run: Run, table: Table | None) -> tuple[str, str]:
    """Return (why the NPUs are not known, what says so), empty texts if they are."""
    if run.cause:
        return run.cause, run.evidence
    if table is None or run.rc != 0:
        cause, evidence = why_no_answer(run.rc, run.stdout, run.stderr)
        if table is None and run.rc == 0 and cause == "unknown" and run.stdout.strip():
            module.fail_json(
                msg=f"{module.params['executable']} info ended with exit code 0, but printed no "
                "table of npu-smi. "
                "Set executable to the driver's npu-smi, or remove the program of that name "
                "that comes first in PATH",
                stdout=run.stdout,
                stderr=run.stderr,
            )
        return cause, evidence
    if table.cut:
        return "truncated", f"{table.cut}"
    if not table.npus:
        return "no_devices", "a table without an NPU"
    return run.cause, run.evidence


def fix_of(cause, evidence, container):
    """Return what to do about a cause, with what the tool said. None without a cause."""
    if not cause:
        return None
    on_host, in_container = FIXES[cause]
    template = in_container or on_host if container else on_host
    return template.format(container=container) + f". It said: {evidence}"


def addresses_of(module, npus, nodes):
    """Return the devices with their addresses, and findings about them.

    C(nodes) are the numbers of the device files of the host.
    """
    timeout, container = module.params["timeout"], module.params["container"]
    configured = parse_conf(conf_text(module, module.params["hccn_conf"], timeout, container))
    known = sorted(
        chip["phy_id"] for npu in npus for chip in npu["chips"] if chip["phy_id"] is not None
    )
    known = known or nodes or list(configured)
    live, reasons = live_addresses(module, known, timeout, container)
    return merged_devices(known, live, reasons, configured)


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            tool_options(60, "npu-smi"),
            addresses={"type": "bool", "default": True},
            hccn_tool={"type": "str", "default": "/usr/local/Ascend/driver/tools/hccn_tool"},
            hccn_conf={"type": "str", "default": "/etc/hccn.conf"},
            device_folder={"type": "path", "default": "/dev"},
        ),
        supports_check_mode=True,
    )
    executable, container, timeout = (
        module.params[name] for name in ("executable", "container", "timeout")
    )
    check_names(module, "container", "hccn_tool")
    check_timeout(module)

    run = run_tool(module, [executable, "info"], timeout, container=container)
    table = table_of(module, run)
    npus = table.npus if table else []
    cause, evidence = cause_of(module, run, table)

    nodes = [] if container else npu_nodes(module.params["device_folder"])
    findings = unhealthy(npus) + device_nodes_finding(nodes, npus)
    devices = []
    # Without a tool or a container there is nothing to ask.
    if module.params["addresses"] and cause not in ("container_not_running", "engine_unavailable"):
        devices, more = addresses_of(module, npus, nodes)
        findings += more
    module.exit_json(
        changed=False,
        available=not cause,
        cause=cause or None,
        fix=fix_of(cause, evidence, container),
        tool_version=table.tool_version if table else None,
        driver_version=table.driver_version if table else None,
        npu_count=len(npus),
        npus=npus,
        devices=devices,
        findings=findings,
        remarks=table.remarks if table else [],
    )


if __name__ == "__main__":
    main()
