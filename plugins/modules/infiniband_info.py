#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: infiniband_info
short_description: Gather a host's InfiniBand and RoCE devices
version_added: "0.2.0"
description:
  - Reads devices, ports, GIDs and counters from C(/sys/class/infiniband), which needs no tool.
  - If that cannot be read, and in a container, it runs C(ibstat), or C(ibv_devinfo) if that is
    missing, and adds the output of C(ibstatus) and C(ibdev2netdev). These tools report no GIDs,
    counters or PCI data.
  - A value that cannot be read is null. C(unavailable) of the device or port then has the reason or
    the original text.
  - A host without devices, or without a loaded driver, is a result (RV(available=false), RV(cause),
    RV(fix)). The task fails only for invalid options and for tool output that is truncated or
    unexpected.
author:
  - trainyard maintainers (@trainyard)
options:
  sysfs_root:
    description: Mount point of sysfs.
    type: path
    default: /sys
  container:
    description: Name or id of a running container. The tools run in it with C(docker exec), and the
      host's sysfs is not read.
  timeout:
    default: 30
  network:
    description:
      - Fabric network as CIDR, or the networks of its rails.
      - If a RoCE port has several addresses, C(nccl_gid_index) is the index of the one in these
        networks.
    type: list
    elements: str
  kernel_modules:
    description: Names of kernel modules whose state is returned in RV(kernel_modules).
    type: list
    elements: str
    default: []
  packages:
    description: Names of packages whose versions are returned in RV(packages).
    type: list
    elements: str
    default: []
  files:
    description: Paths of files whose checksums are returned in RV(files).
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
  - trainyard.gpu.tool
requirements:
  - C(ibstat) (infiniband-diags) or C(ibv_devinfo) (ibverbs-utils), if sysfs cannot be read, and for
    O(container)
"""

EXAMPLES = r"""
- name: Gather the fabric devices of the host
  trainyard.gpu.infiniband_info:
    network: 169.254.0.0/16
  register: fabric

- name: Report which ports are up
  ansible.builtin.debug:
    msg: "{{ item.0.name }} port {{ item.1.port }}: {{ item.1.transport }}, {{ item.1.rate_gb_s }}
      Gb/s, {{ item.1.netdev }}"
  loop: "{{ fabric.devices | subelements('ports') | selectattr('1.state', 'eq', 'active') }}"

- name: Check that the training container sees eight devices
  trainyard.gpu.infiniband_info:
    container: trainyard-training
  register: inside
  failed_when: inside.failed or inside.devices | length != 8
"""

RETURN = r"""
available:
  description: Whether there is at least one device.
  type: bool
  returned: success
  sample: true
cause:
  description:
    - Why RV(available) is false, else null.
    - V(no_devices) - the host has neither a device nor an adapter.
    - V(driver_not_loaded) - an adapter is on the PCI bus, but no driver has created a device for
      it.
    - V(not_installed) - sysfs cannot be read, and neither C(ibstat) nor C(ibv_devinfo) is
      installed.
    - V(tool_failed) - the tool ended with an error and described no device.
    - V(timeout) - the tool did not end within O(timeout).
    - V(container_not_running) - no such container, or it is stopped, paused or restarting.
    - V(engine_unavailable) - no Docker client, no daemon, or the daemon denied access.
  type: str
  returned: success
  sample: driver_not_loaded
fix:
  description: What to do about RV(cause), with the evidence; null if RV(available) is true.
  type: str
  returned: success
source:
  description: V(sysfs), or the names of the tools that answered, joined by C(+).
  type: str
  returned: success
  sample: sysfs
remarks:
  description: Errors that a tool reported in addition to the devices, such as a device that it
    could not describe.
  type: list
  elements: str
  returned: success
adapters:
  description: InfiniBand and RoCE adapters on the host's PCI bus, with or without a driver. Empty
    with O(container).
  type: list
  elements: dict
  returned: success
  contains:
    bus_id:
      description: PCI bus id.
      type: str
    vendor_id:
      description: Vendor, four hexadecimal digits.
      type: str
    device_id:
      description: Device, four hexadecimal digits.
      type: str
    driver:
      description: Its driver; empty if there is none.
      type: str
    infiniband:
      description: Whether its PCI class is InfiniBand. An adapter set to Ethernet has another
        class.
      type: bool
    devices:
      description: Names of its devices.
      type: list
      elements: str
devices:
  description: The devices, by name.
  type: list
  elements: dict
  returned: success
  contains:
    name:
      description: Its name, such as V(mlx5_0), V(mlx5_bond_0) or V(rocep1s0f0).
      type: str
    hca_type:
      description: The vendor's type, such as V(MT4129).
      type: str
    firmware:
      description: Version of the firmware.
      type: str
    board_id:
      description: Id of the board, which determines its firmware.
      type: str
    node_description:
      description: Its name in the subnet manager.
      type: str
    node_guid:
      description: GUID of the device, in four groups of four hexadecimal digits.
      type: str
      sample: a088:c203:00e3:142a
    system_image_guid:
      description: GUID that all devices of one card have in common.
      type: str
    bus_id:
      description: PCI bus id.
      type: str
    driver:
      description: Name of the driver.
      type: str
    numa_node:
      description: NUMA node; null if the firmware does not report it.
      type: int
    pcie_gt_s:
      description: Speed of its PCIe lanes, in billions of transfers a second.
      type: float
    pcie_gt_s_max:
      description: The highest speed of its PCIe lanes.
      type: float
    pcie_width:
      description: Current number of PCIe lanes.
      type: int
    pcie_width_max:
      description: Maximum number of PCIe lanes.
      type: int
    virtual_function:
      description: Whether it is a virtual function of another (SR-IOV).
      type: bool
    physical_function:
      description: PCI bus id of its physical function.
      type: str
    unavailable:
      description: Reason for every key above that is null.
      type: dict
      sample: {numa_node: "-1"}
    ports:
      description: Its ports.
      type: list
      elements: dict
      contains:
        port:
          description: Number, from 1 on.
          type: int
        link_layer:
          description: V(infiniband) or V(ethernet).
          type: str
        transport:
          description: V(infiniband), V(roce) or V(iwarp).
          type: str
        state:
          description: V(down), V(init) (no subnet manager has set it up), V(armed), V(active),
            V(active_defer) or V(nop).
          type: str
        physical_state:
          description: V(sleep), V(polling), V(disabled), V(training), V(link_up),
            V(link_error_recovery) or V(phy_test).
          type: str
        rate_gb_s:
          description: Rate in Gb/s (10^9 bits per second). For a port that is not active, it is the
            driver's default.
          type: float
          sample: 400.0
        width:
          description: Lanes of the link.
          type: int
          sample: 4
        speed:
          description: Name of the lane speed, such as V(EDR), V(HDR), V(NDR).
          type: str
        lid:
          description: Local id; 0 if no subnet manager has assigned one.
          type: int
        sm_lid:
          description: Local id of the subnet manager.
          type: int
        port_guid:
          description: GUID of the port.
          type: str
        netdev:
          description: Network interface of the port, or of its bond.
          type: str
        netdev_state:
          description: State of the interface in the kernel, V(up) or V(down).
          type: str
        bond_members:
          description: Interfaces of the bond; empty without a bond.
          type: list
          elements: str
        gids:
          description: The entries of the GID table that are in use.
          type: list
          elements: dict
          contains:
            index:
              description: Index.
              type: int
            gid:
              description: The GID, as eight groups of hexadecimal digits.
              type: str
            type:
              description: V(IB), V(RoCE v1) or V(RoCE v2).
              type: str
            ndev:
              description: Its network interface; null on InfiniBand.
              type: str
            address:
              description: Its IP address; null on InfiniBand.
              type: str
        nccl_gid_index:
          description:
            - Index for C(NCCL_IB_GID_INDEX) with RoCE v2.
            - It belongs to the port's only IPv4 address, or to the one in O(network), or to the
              IPv6 address if there is no IPv4 address. Null if several match.
          type: int
          sample: 3
        counters:
          description:
            - Counters since the driver was loaded or the counters were reset - xmit_bytes,
              rcv_bytes, xmit_packets, rcv_packets, unicast_xmit_packets, unicast_rcv_packets,
              multicast_xmit_packets, multicast_rcv_packets.
            - Bytes are the kernel's C(port_xmit_data) and C(port_rcv_data) times 4.
            - A 32-bit counter that has reached its maximum is null.
          type: dict
        errors:
          description: The port's error counters by the kernel's names, as far as it has them. Some
            have 8 or 16 bits and stay at their maximum.
          type: dict
          sample: {symbol_error: 0, link_downed: 1}
        hw_counters:
          description: The vendor's counters of loss, retries and congestion by their names, as far
            as the port has them.
          type: dict
          sample: {out_of_sequence: 0, np_cnp_sent: 12}
        pfc:
          description:
            - Of RoCE, if the driver counts them, as C(ethtool -S) shows - frames of priority flow
              control (C(rx_pause), C(tx_pause)), packets lost with it (C(discards)), and how often
              the adapter had to stop its own pauses (C(storms)). Sums of all priorities since the
              driver was loaded, as far as the driver counts them.
          type: dict
          version_added: "0.4.0"
          sample: {rx_pause: 1204, tx_pause: 0, discards: 0, storms: 0}
        unavailable:
          description: Reason for every key above that is null.
          type: dict
          sample: {nccl_gid_index: only RoCE needs one}
ofed:
  description: The vendor's drivers and tools, as C(ofed_info) names them; empty if there are none,
    and with O(container).
  type: str
  returned: success
  sample: MLNX_OFED_LINUX-5.8-3.0.7.0
gpudirect:
  description:
    - What decides whether adapters read the memory of GPUs directly (GPUDirect RDMA). Empty with
      O(container).
    - C(peer_memory) tells whether the kernel has nvidia-peermem, C(dma_buf) whether kernel and
      driver can do it by DMA-BUF.
    - C(redirected) has the ports of PCIe switches above GPUs and adapters whose Access Control
      Services send it up to the root, C(translated) the GPUs and adapters whose addresses an IOMMU
      translates.
    - C(gpu_numa_nodes) has the NUMA node of each GPU by its PCI address, as far as the firmware
      reports it.
  type: dict
  returned: success
  sample: {peer_memory: true, dma_buf: false, redirected: [], translated: [], gpu_numa_nodes: {"0000:1b:00.0": 0}}
kernel_modules:
  description: State of each of O(kernel_modules), V(loaded), V(available) or V(missing).
  type: dict
  returned: success
packages:
  description: Versions of the installed packages among O(packages), by name.
  type: dict
  returned: success
files:
  description: SHA-256 checksums of the existing files among O(files), by path.
  type: dict
  returned: success
"""

import glob
import ipaddress
import os
import platform
from collections.abc import Callable
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils import _bandwidth, _infiniband
from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import checksums, read_text
from ansible_collections.trainyard.gpu.plugins.module_utils._packages import (
    ParseError,
    parse_installed,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._pci import (
    fabric_adapters,
    peer_access,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._tool import (
    check_names,
    check_timeout,
    run_tool,
    tool_options,
)

# Below a device's folder. Of links, the last part of the target is read.
FILES = [
    "hca_type",
    "fw_ver",
    "board_id",
    "node_desc",
    "node_guid",
    "sys_image_guid",
    "node_type",
    "device/numa_node",
    "device/current_link_speed",
    "device/max_link_speed",
    "device/current_link_width",
    "device/max_link_width",
    "device/net/*/dev_port",
    "device/net/*/dev_id",
    "device/net/*/parent",
    "device/net/*/phys_port_name",
    "ports/*/link_layer",
    "ports/*/state",
    "ports/*/phys_state",
    "ports/*/rate",
    "ports/*/lid",
    "ports/*/sm_lid",
    "ports/*/gids/*",
    "ports/*/counters/*",
    "ports/*/counters_ext/*",
]
LINKS = ["device", "device/driver", "device/physfn"]
NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"

FIXES = {
    "no_devices": (
        "nothing to do on a host without InfiniBand or RoCE. Otherwise check whether 'lspci' lists "
        "the adapter"
    ),
    "driver_not_loaded": (
        "load the driver ('modprobe mlx5_ib' for adapters of driver mlx5_core), and check 'dmesg' "
        "for messages about the adapter"
    ),
    "not_installed": (
        "install infiniband-diags or ibverbs-utils there, or let the module read the host's sysfs"
    ),
    "tool_failed": "run it manually there, and check whether /dev/infiniband exists",
    "timeout": "find out what the tool waits for ('dmesg | grep mlx'), or raise 'timeout'",
    "container_not_running": "start the container",
    "engine_unavailable": "install and start Docker on this host, and run the task as root",
}


class Sysfs:
    """Texts of a device's files, and the errors of files that exist but cannot be read."""

    def __init__(self, root: str, name: str) -> None:
        self.root = root
        self.folder = os.path.join(root, "class/infiniband", name)
        self.texts: dict[str, str] = {}
        self.errors: dict[str, str | None] = {}

    def read(self, path: str, within: str) -> None:
        """Read a file below a folder. One that does not exist is left out."""
        try:
            # Not every driver writes UTF-8.
            with open(os.path.join(within, path), encoding="utf-8", errors="replace") as file:
                self.texts[path] = file.read()
        except FileNotFoundError:
            return
        except OSError as error:
            self.errors[path] = error.strerror

    def read_files(self) -> None:
        """Read what the device and its ports say of themselves."""
        counters = ["ports/*/hw_counters/" + counter for counter in _infiniband.HARDWARE]
        for pattern in FILES + counters:
            for path in glob.glob(os.path.join(self.folder, pattern)):
                self.read(os.path.relpath(path, self.folder), self.folder)
        for path in LINKS:
            if os.path.islink(os.path.join(self.folder, path)):
                target = os.path.realpath(os.path.join(self.folder, path))
                self.texts[path] = os.path.basename(target)

    def read_gid_attributes(self) -> None:
        """Read type and interface of each address."""
        # The table has up to 256 entries. Reading the attributes of an empty one is an error.
        addresses = [path for path in self.texts if "/gids/" in path]
        for path in [path for path in addresses if self.texts[path].strip() != NO_GID]:
            for attribute in ("types", "ndevs"):
                of_address = path.replace("/gids/", "/gid_attrs/%s/" % attribute)
                self.read(of_address, self.folder)

    def interfaces(self) -> set[str]:
        """Return the names of the device's own network interfaces."""
        found = glob.glob(os.path.join(self.folder, "device/net/*"))
        return {os.path.basename(path) for path in found}

    def read_interfaces(self) -> None:
        """Read the state of the device's interfaces, and of those of its addresses, such as
        a bond.
        """
        names = {text.strip() for path, text in self.texts.items() if "/gid_attrs/ndevs/" in path}
        for name in self.interfaces() | names:
            for file in ("operstate", "bonding/slaves"):
                self.read("net/%s/%s" % (name, file), os.path.join(self.root, "class"))

    def read_statistics(self, statistics: Callable[[str], str]) -> None:
        """Read the flow control by priority, of which the kernel has no files. InfiniBand has none.

        :param statistics: returns what the driver of an interface counts.
        """
        layers = [text for path, text in self.texts.items() if path.endswith("/link_layer")]
        if "Ethernet" not in [layer.strip() for layer in layers]:
            return
        for name in self.interfaces():
            self.texts[_infiniband.STATISTICS % name] = statistics(name)


def sysfs_of(
    root: str, name: str, statistics: Callable[[str], str] = _bandwidth.driver_statistics
) -> Sysfs:
    """Return what the kernel says of a device. C(statistics) is of P(Sysfs.read_statistics)."""
    found = Sysfs(root, name)
    found.read_files()
    found.read_gid_attributes()
    found.read_interfaces()
    found.read_statistics(statistics)
    return found


class Tools:
    """Output of the tools, on the host or in a container."""

    def __init__(self, module):
        self.module = module
        self.used, self.remarks = [], []

    def ask(self, tool, parse):
        """Texts by device, and the run, which has a cause if the tool gave no answer."""
        run = run_tool(
            self.module,
            [tool],
            self.module.params["timeout"],
            container=self.module.params["container"],
        )
        if run.cause:
            return {}, run
        try:
            found, remarks = parse(run.stdout)
        except _infiniband.ParseError as error:
            if not run.rc:
                self.module.fail_json(
                    msg=(
                        "%s. Run it on the host. If its output is complete, report it as a fault "
                        "of the collection"
                    )
                    % error,
                    rc=run.rc,
                    stdout=run.stdout,
                    stderr=run.stderr,
                )
            found, remarks = {}, [str(error)]
        remarks += [line.strip() for line in run.stderr.splitlines() if line.strip()]
        self.remarks += remarks
        self.used.append(tool)
        if run.rc and not found:
            return {}, run._replace(
                cause="tool_failed",
                evidence=remarks[-1] if remarks else "%s ended with exit code %d" % (tool, run.rc),
            )
        return found, run

    def devices(self):
        found, run = self.ask("ibstat", _infiniband.parse_ibstat)
        if run.cause == "not_installed":
            found, run = self.ask("ibv_devinfo", _infiniband.parse_ibv_devinfo)
        if run.cause or not found:
            return {}, run.cause or "no_devices", run.evidence or "%s lists none" % self.used[-1]
        for tool, parse in (
            ("ibstatus", _infiniband.parse_ibstatus),
            ("ibdev2netdev", _infiniband.parse_ibdev2netdev),
        ):
            for name, texts in self.ask(tool, parse)[0].items():
                # A device that appeared in between is left to the next run.
                found.get(name, {}).update(texts)
        return found, None, None


class Host:
    def __init__(self, module):
        self.module, self.root = module, module.params["sysfs_root"]

    def say(self, *command):
        """Output of a tool; empty if it is missing or prints nothing."""
        path = self.module.get_bin_path(command[0])
        return (
            self.module.run_command([path] + list(command[1:]), environ_update={"LC_ALL": "C"})[1]
            if path
            else ""
        )

    def gpudirect(self):
        """What is known of GPUDirect RDMA. A container shows another part of sysfs."""
        is_host = not self.module.params["container"]
        return peer_access(self.root, platform.release()) if is_host else {}

    def kernel_modules(self):
        names = self.module.params["kernel_modules"]
        loaded = [name for name in names if os.path.isdir(os.path.join(self.root, "module", name))]
        folder = "/lib/modules/%s/" % platform.release()
        return _infiniband.module_states(
            names, loaded, read_text(folder + "modules.dep"), read_text(folder + "modules.builtin")
        )

    def packages(self):
        names = self.module.params["packages"]
        listed = (
            self.say(
                "dpkg-query",
                "--show",
                "--showformat",
                "${Package}\\t${Version}\\t${db:Status-Abbrev}\\n",
                *names,
            )
            if names
            else ""
        )
        try:
            return {name: package["version"] for name, package in parse_installed(listed).items()}
        except ParseError as error:
            self.module.fail_json(
                msg=(
                    "the output of dpkg-query cannot be parsed: %s. Run 'dpkg --audit' on the "
                    "host, and repair what it lists"
                )
                % error
            )


def requested_networks(module: AnsibleModule) -> list[Any]:
    """Return the networks of the option. The module fails with one that is not valid."""
    networks = []
    for text in module.params["network"] or []:
        try:
            networks.append(ipaddress.ip_network(text))
        except ValueError as error:
            module.fail_json(
                msg="network: '%s' is not a valid network: %s. Give a CIDR such as 192.0.2.0/24"
                % (text, error)
            )
    return networks


def why_none(adapters: list[dict[str, Any]], folder: str) -> tuple[str, str]:
    """Return the cause why a host has no device in a folder of sysfs, and what shows it."""
    if adapters:
        found = ["adapter {bus_id}".format(**adapter) for adapter in adapters]
        return "driver_not_loaded", ", ".join(found)
    return "no_devices", "%s has none, and the PCI bus no adapter" % folder


def main():
    module = AnsibleModule(
        argument_spec={
            **tool_options(30),
            "sysfs_root": {"type": "path", "default": "/sys"},
            "network": {"type": "list", "elements": "str"},
            "kernel_modules": {"type": "list", "elements": "str", "default": []},
            "packages": {"type": "list", "elements": "str", "default": []},
            "files": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    root, container = module.params["sysfs_root"], module.params["container"]
    check_names(module, "container")
    check_timeout(module)
    networks = requested_networks(module)

    host, tools = Host(module), Tools(module)
    adapters = [] if container else fabric_adapters(root)
    reads_sysfs = (
        not container
        and os.path.isdir(os.path.join(root, "class"))
        and os.access(os.path.join(root, "class"), os.R_OK)
    )
    if reads_sysfs:
        folder = os.path.join(root, "class/infiniband")
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        devices = []
        for name in names:
            found = sysfs_of(root, name)
            devices.append(
                _infiniband.describe_device(name, found.texts, found.errors, networks=networks)
            )
        cause, evidence = (None, None) if devices else why_none(adapters, folder)
    else:
        found, cause, evidence = tools.devices()
        absent = "not said by " + ", ".join(tools.used)
        devices = [
            _infiniband.describe_device(name, found[name], absent=absent, networks=networks)
            for name in sorted(found)
        ]
    module.exit_json(
        changed=False,
        available=bool(devices),
        cause=cause,
        fix="%s. Seen: %s" % (FIXES[cause], evidence) if cause else None,
        source="sysfs" if reads_sysfs else "+".join(tools.used),
        remarks=tools.remarks,
        adapters=adapters,
        devices=devices,
        ofed="" if container else host.say("ofed_info", "-s").strip().rstrip(":"),
        gpudirect=host.gpudirect(),
        kernel_modules=host.kernel_modules(),
        packages=host.packages(),
        files=checksums(module.params["files"]),
    )


if __name__ == "__main__":
    main()
