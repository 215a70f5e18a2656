# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""NVIDIA devices, Ascend NPUs and fabric adapters on the PCI bus, with or without a driver, and what
the driver of an NPU has on the host.
"""

from __future__ import annotations

import glob
import os
import re

from typing import Any, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import read_text

DEVICES = "/sys/bus/pci/devices"
NVIDIA = "0x10de"
MELLANOX = "0x15b3"
HUAWEI = "0x19e5"
# Classes of the PCI specification.
NETWORK, INFINIBAND, ACCELERATOR = "0x02", "0x0207", "0x12"
#: Every program that uses an NPU opens these, besides its own /dev/davinciN.
CONTROL_NODES = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
#: What a container needs of the host's driver, to read. npu-smi is in one of two folders.
DRIVER_PATHS = (
    "/usr/local/Ascend/driver",
    "/usr/local/dcmi",
    "/usr/local/bin/npu-smi",
    "/usr/local/sbin/npu-smi",
    "/etc/ascend_install.info",
    "/etc/hccn.conf",
)


class Gpu(TypedDict):
    """A GPU on the PCI bus. C(device_id) has four hexadecimal digits."""

    bus_id: str
    device_id: str


class Adapter(TypedDict):
    """A network adapter of the fabric.

    C(driver) is empty without one, C(devices) are its RDMA devices.
    """

    bus_id: str
    vendor_id: str
    device_id: str
    driver: str
    infiniband: bool
    devices: list[str]


class PeerAccess(TypedDict):
    """What P(peer_access) returns."""

    peer_memory: bool
    dma_buf: bool
    redirected: list[str]
    translated: list[str]
    gpu_numa_nodes: dict[str, int]


def nvidia_devices(root: str = "") -> tuple[list[Gpu], int]:
    """GPUs (C(bus_id), C(device_id)), and the number of NVSwitches, which are PCI bridges."""
    gpus: list[Gpu] = []
    switches = 0
    for folder in sorted(glob.glob((root + "/bus/pci/devices" if root else DEVICES) + "/*")):
        vendor, kind, device = (
            read_text(os.path.join(folder, name)).strip() for name in ("vendor", "class", "device")
        )
        if vendor == NVIDIA and kind.startswith("0x03"):
            gpus.append({"bus_id": os.path.basename(folder), "device_id": device[2:]})
        switches += vendor == NVIDIA and kind.startswith("0x0680")
    return gpus, switches


def root_port(folder: str) -> str:
    """PCI address of the root port above a device's folder in sysfs; empty for one that is directly
    in the root complex, as in many virtual machines.
    """
    parts = os.path.realpath(folder).split("/")
    buses = [place for place, part in enumerate(parts) if re.match(r"pci[0-9a-f]{4,8}:", part)]
    return parts[buses[0] + 1] if buses and len(parts) > buses[0] + 2 else ""


def gpus_beside(folder: str, gpus: list[Gpu]) -> list[str]:
    """PCI addresses of those among the GPUs that share a PCIe root port with a device, and so can
    reach it without the processor.
    """
    port = root_port(folder)
    return [
        gpu["bus_id"]
        for gpu in gpus
        if port and root_port(os.path.join(DEVICES, gpu["bus_id"])) == port
    ]


def npu_nodes(folder: str = "/dev") -> list[int]:
    """Numbers of the device nodes /dev/davinciN."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    matches = (re.fullmatch("davinci([0-9]{1,4})", name) for name in names)
    return sorted(int(match.group(1)) for match in matches if match)


def control_nodes() -> list[str]:
    """The existing device nodes of CONTROL_NODES."""
    return [path for path in CONTROL_NODES if os.path.exists(path)]


def driver_paths() -> list[str]:
    """The existing paths of DRIVER_PATHS."""
    return [path for path in DRIVER_PATHS if os.path.exists(path)]


def npu_devices() -> int:
    """Number of Ascend NPUs."""
    return sum(
        read_text(folder + "/vendor").strip() == HUAWEI
        and read_text(folder + "/class").startswith(ACCELERATOR)
        for folder in glob.glob(DEVICES + "/*")
    )


def fabric_adapters(root: str = "/sys") -> list[Adapter]:
    """InfiniBand adapters of any vendor, and Mellanox network adapters, which all support RoCE or
    InfiniBand, with or without a driver.
    """
    adapters: list[Adapter] = []
    for folder in sorted(glob.glob(root + "/bus/pci/devices/*")):
        vendor, kind, device = (
            read_text(os.path.join(folder, name)).strip() for name in ("vendor", "class", "device")
        )
        if kind.startswith(INFINIBAND) or vendor == MELLANOX and kind.startswith(NETWORK):
            driver = os.path.join(folder, "driver")
            adapters.append(
                {
                    "bus_id": os.path.basename(folder),
                    "vendor_id": vendor[2:],
                    "device_id": device[2:],
                    "driver": os.path.basename(os.path.realpath(driver))
                    if os.path.islink(driver)
                    else "",
                    "infiniband": kind.startswith(INFINIBAND),
                    "devices": sorted(
                        os.path.basename(path) for path in glob.glob(folder + "/infiniband/*")
                    ),
                }
            )
    return adapters


# Of the PCI Express specification: where capabilities are found in the configuration space, and
# what is in them.
_POINTER, _EXTENDED, _EXPRESS, _ACS = 0x34, 0x100, 0x10, 0x0D
_DOWNSTREAM_PORT = 6
# P2P requests and their completions are sent up to the root.
_REDIRECTS = 0x04 | 0x08
_MOST_CAPABILITIES = 48


def redirects(config: bytes) -> bool:
    """Whether a port of a PCIe switch sends what the devices below it send to each other up to the
    root, by its Access Control Services.

    C(config) has the bytes of its configuration space. A port of the root is none: what passes it
    goes through the root anyway.
    """
    place = config[_POINTER] if len(config) > _POINTER else 0
    port = None
    for _number_of in range(_MOST_CAPABILITIES):
        if not 0x40 <= place <= len(config) - 4:
            break
        if config[place] == _EXPRESS:
            port = config[place + 2] >> 4 & 0xF
        place = config[place + 1] & 0xFC
    if port != _DOWNSTREAM_PORT:
        return False
    place = _EXTENDED
    for _number_of in range(_MOST_CAPABILITIES):
        if not _EXTENDED <= place <= len(config) - 8:
            break
        if int.from_bytes(config[place : place + 2], "little") == _ACS:
            return bool(config[place + 6] & _REDIRECTS)
        place = int.from_bytes(config[place + 2 : place + 4], "little") >> 4 & 0xFFC
    return False


def _config(folder: str) -> bytes:
    try:
        with open(os.path.join(folder, "config"), "rb") as file:
            return file.read(4096)
    except OSError:
        return b""


def peer_access(root: str = "/sys", release: str = "") -> PeerAccess:
    """What decides whether network adapters read the memory of GPUs directly (GPUDirect RDMA).

    C(release) is that of the kernel.

    Returns C(peer_memory), whether the kernel has nvidia-peermem or its predecessor, C(dma_buf),
    whether kernel and driver can do it without, C(redirected), the ports of PCIe switches above
    GPUs and adapters that send it up to the root, C(translated), GPUs and adapters whose addresses
    an IOMMU translates, and C(gpu_numa_nodes) by PCI address, without those that the firmware does
    not tell.
    """
    gpus = [gpu["bus_id"] for gpu in nvidia_devices(root)[0]]
    nodes = {
        name: read_text(os.path.join(root, "bus/pci/devices", name, "numa_node")).strip()
        for name in gpus
    }
    names = set(gpus)
    names |= {adapter["bus_id"] for adapter in fabric_adapters(root)}
    above: set[str] = set()
    translated: list[str] = []
    for name in sorted(names):
        folder = os.path.realpath(os.path.join(root, "bus/pci/devices", name))
        kind = read_text(os.path.join(folder, "iommu_group/type")).strip()
        translated += [name] if kind.startswith("DMA") else []
        folder = os.path.dirname(folder)
        while os.path.isfile(os.path.join(folder, "config")):
            above.add(folder)
            folder = os.path.dirname(folder)
    modules = ("module/nvidia_peermem", "module/nv_peer_mem", "kernel/mm/memory_peers/nv_mem")
    # The open kernel modules do not taint the kernel as proprietary.
    taint = os.path.join(root, "module/nvidia/taint")
    version = [int(part) for part in re.findall(r"\d+", release)[:2]]
    return {
        "peer_memory": any(os.path.isdir(os.path.join(root, name)) for name in modules),
        "dma_buf": version >= [5, 12] and os.path.isfile(taint) and "P" not in read_text(taint),
        "redirected": sorted(
            os.path.basename(folder) for folder in above if redirects(_config(folder))
        ),
        "translated": translated,
        "gpu_numa_nodes": {name: int(node) for name, node in nodes.items() if node.isdigit()},
    }


def _number(folder: str, name: str) -> float | None:
    """The number that a file of a PCI device begins with: '32.0 GT/s PCIe', '16'.

    None for 'Unknown', and for a width without a link.
    """
    match = re.match(r"\d{1,3}(?:\.\d)?", read_text(os.path.join(folder, name)))
    number = float(match.group()) if match else 0.0
    return number if 0 < number < 255 else None


def _above(root: str, name: str) -> list[str]:
    """Names of the bonds, bridges and VLANs on top of an interface."""
    found: list[str] = []
    for path in sorted(glob.glob("%s/class/net/%s/upper_*" % (root, glob.escape(name)))):
        upper = os.path.basename(path)[len("upper_") :]
        found += [upper, *_above(root, upper)]
    return list(dict.fromkeys(found))


def network_cards(root: str = "/sys") -> list[dict[str, Any]]:
    """Network adapters of any kind, without virtual functions: their PCIe links and those of the
    slots above them, their interfaces, and their RDMA devices.

    Speeds are in GT/s for each lane, C(width) is in lanes. A value that is not known, as in a
    virtual machine, is None. Unlike a GPU, an idle adapter does not lower the speed of its link.
    """
    cards = []
    for folder in sorted(glob.glob(root + "/bus/pci/devices/*")):
        # A virtual function has the link of its card.
        if not read_text(os.path.join(folder, "class")).startswith(NETWORK) or os.path.islink(
            os.path.join(folder, "physfn")
        ):
            continue
        ids = [read_text(os.path.join(folder, name)).strip()[2:] for name in ("vendor", "device")]
        slot = os.path.dirname(os.path.realpath(folder))
        interfaces = glob.glob(folder + "/net/*") + glob.glob(folder + "/virtio*/net/*")
        cards.append(
            {
                "bus_id": os.path.basename(folder),
                "model": ":".join(ids),
                "gt_s": _number(folder, "current_link_speed"),
                "gt_s_max": _number(folder, "max_link_speed"),
                "width": _number(folder, "current_link_width"),
                "width_max": _number(folder, "max_link_width"),
                "slot_gt_s_max": _number(slot, "max_link_speed"),
                "slot_width_max": _number(slot, "max_link_width"),
                "interfaces": [
                    {"name": name, "above": _above(root, name)}
                    for name in sorted(os.path.basename(path) for path in interfaces)
                ],
                "rdma": sorted(
                    os.path.basename(path) for path in glob.glob(folder + "/infiniband/*")
                ),
            }
        )
    return cards
