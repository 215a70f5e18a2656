# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""NVIDIA devices, Ascend NPUs and fabric adapters on the PCI bus, with or without a driver."""

from __future__ import annotations

import glob
import os

from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import read_text

DEVICES = "/sys/bus/pci/devices"
NVIDIA = "0x10de"
MELLANOX = "0x15b3"
HUAWEI = "0x19e5"
# Classes of the PCI specification.
NETWORK, INFINIBAND, ACCELERATOR = "0x02", "0x0207", "0x12"


def nvidia_devices():
    """GPUs (C(bus_id), C(device_id)), and the number of NVSwitches, which are PCI bridges."""
    gpus, switches = [], 0
    for folder in sorted(glob.glob(DEVICES + "/*")):
        vendor, kind, device = (
            read_text(os.path.join(folder, name)).strip() for name in ("vendor", "class", "device")
        )
        if vendor == NVIDIA and kind.startswith("0x03"):
            gpus.append({"bus_id": os.path.basename(folder), "device_id": device[2:]})
        switches += vendor == NVIDIA and kind.startswith("0x0680")
    return gpus, switches


def npu_devices():
    """Number of Ascend NPUs."""
    return sum(
        read_text(folder + "/vendor").strip() == HUAWEI
        and read_text(folder + "/class").startswith(ACCELERATOR)
        for folder in glob.glob(DEVICES + "/*")
    )


def fabric_adapters(root="/sys"):
    """InfiniBand adapters of any vendor, and Mellanox network adapters, which all support RoCE or InfiniBand, with or without a driver."""
    adapters = []
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
