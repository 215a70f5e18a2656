"""A /sys of a host with InfiniBand or RoCE adapters, as Linux lays it out: devices below their PCI
functions, and links to them from class/infiniband.

What a file has in it is from the kernel (drivers/infiniband/core/sysfs.c,
drivers/net/ethernet/mellanox/mlx5) and from the outputs in tests/fixtures/ib, which are made of
these files.
"""

from __future__ import annotations

import os
from pathlib import Path

NO_GID = ":".join(["0000"] * 8)
DEFAULT_COUNTERS = {
    "port_xmit_data": "1000",
    "port_rcv_data": "2000",
    "port_xmit_packets": "30",
    "port_rcv_packets": "40",
    "unicast_xmit_packets": "29",
    "unicast_rcv_packets": "39",
    "multicast_xmit_packets": "1",
    "multicast_rcv_packets": "1",
    "symbol_error": "0",
    "link_downed": "1",
    "port_xmit_wait": "0",
}


def write(root, path, text):
    file = Path(root) / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n", encoding="utf-8")


def mapped(address):
    """The GID of an IPv4 address: '192.0.2.1' is 0000:...:ffff:c000:0201."""
    numbers = [int(part) for part in address.split(".")]
    return "0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x" % tuple(numbers)


def link(path, target):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))


class SysfsTree:
    """C(root) is what module option sysfs_root gets."""

    def __init__(self, root):
        self.root = Path(root)
        for folder in ("class/net", "bus/pci/devices", "module"):
            (self.root / folder).mkdir(parents=True)

    def adapter(self, bus_id, driver="mlx5_core", physical_function="", **files):
        """A PCI function."""
        folder = self.root / "devices/pci0000:00" / bus_id
        texts = {
            "vendor": "0x15b3",
            "class": "0x020700",
            "device": "0x101b",
            "numa_node": "1",
            "current_link_speed": "16.0 GT/s PCIe",
            "max_link_speed": "32.0 GT/s PCIe",
            "current_link_width": "16",
            "max_link_width": "16",
        }
        for name, text in dict(texts, **files).items():
            write(folder, name, text)
        link(self.root / "bus/pci/devices" / bus_id, folder)
        if driver:
            (self.root / "bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
            link(folder / "driver", self.root / "bus/pci/drivers" / driver)
        if physical_function:
            link(folder / "physfn", self.root / "devices/pci0000:00" / physical_function)
        return folder

    def interface(self, name, bus_id="", state="up", members=(), **files):
        """A network interface, of a PCI function or, as a bond is, of none."""
        folder = (
            self.root
            / "devices"
            / ("pci0000:00/%s/net" % bus_id if bus_id else "virtual/net")
            / name
        )
        for file, text in dict(
            {"dev_port": "0", "dev_id": "0x0", "operstate": state}, **files
        ).items():
            write(folder, file, text)
        if members:
            write(folder, "bonding/slaves", " ".join(members))
        link(self.root / "class/net" / name, folder)

    def device(self, name, bus_id, node_guid="a088:c203:00e3:142a", **files):
        folder = self.root / "devices/pci0000:00" / bus_id / "infiniband" / name
        texts = {
            "node_type": "1: CA",
            "hca_type": "MT4129",
            "fw_ver": "28.39.1002",
            "board_id": "MT_0000000838",
            "node_desc": "gpu-a mlx5_0",
            "node_guid": node_guid,
            "sys_image_guid": "a088:c203:00e3:142a",
        }
        for file, text in dict(texts, **files).items():
            write(folder, file, text)
        link(folder / "device", self.root / "devices/pci0000:00" / bus_id)
        link(self.root / "class/infiniband" / name, folder)
        return folder

    @staticmethod
    def port(folder, number=1, gids=(), counters=None, hardware=None, **files):
        """C(gids): index, gid, type and interface; the other places of the table are empty, and
        what is said of them can't be read.
        """
        texts = {
            "link_layer": "InfiniBand",
            "state": "4: ACTIVE",
            "phys_state": "5: LinkUp",
            "rate": "400 Gb/sec (4X NDR)",
            "lid": "0x4b",
            "sm_lid": "0x14e",
            "cap_mask": "0xa751e848",
            "lid_mask_count": "0",
        }
        for file, text in dict(texts, **files).items():
            write(folder, "ports/%d/%s" % (number, file), text)
        for index in range(8):
            write(folder, "ports/%d/gids/%d" % (number, index), NO_GID)
        for index, gid, kind, interface in gids:
            write(folder, "ports/%d/gids/%d" % (number, index), gid)
            write(folder, "ports/%d/gid_attrs/types/%d" % (number, index), kind)
            if interface:
                write(folder, "ports/%d/gid_attrs/ndevs/%d" % (number, index), interface)
        for counter, text in (DEFAULT_COUNTERS if counters is None else counters).items():
            write(folder, "ports/%d/counters/%s" % (number, counter), text)
        for counter, text in (hardware or {}).items():
            write(folder, "ports/%d/hw_counters/%s" % (number, counter), text)

    def infiniband(self, name="mlx5_0", bus_id="0000:18:00.0", interface="ibs1"):
        """A card with one InfiniBand port."""
        self.adapter(bus_id)
        self.interface(interface, bus_id)
        folder = self.device(name, bus_id)
        self.port(folder, gids=[(0, "fe80:0000:0000:0000:a088:c203:00e3:142a", "IB/RoCE v1", "")])
        return folder

    def roce(
        self,
        name="mlx5_0",
        bus_id="0000:18:00.0",
        interface="enp24s0np0",
        address="192.0.2.11",
        more=(),
        **files,
    ):
        """A card with one RoCE port, which has the default GIDs, and an address in both
        versions.
        """
        self.adapter(bus_id, **{"class": "0x020000"})
        self.interface(interface, bus_id)
        folder = self.device(name, bus_id)
        local = "fe80:0000:0000:0000:a288:c2ff:fee3:142a"
        gids = [(0, local, "IB/RoCE v1", interface), (1, local, "RoCE v2", interface)]
        if address:
            gids += [
                (2, mapped(address), "IB/RoCE v1", interface),
                (3, mapped(address), "RoCE v2", interface),
            ]
        self.port(
            folder,
            gids=gids + list(more),
            hardware={
                "lifespan": "10",
                "out_of_sequence": "7",
                "np_cnp_sent": "12",
                "resp_cqe_error": "0",
            },
            **dict(
                {
                    "link_layer": "Ethernet",
                    "lid": "0x0",
                    "sm_lid": "0x0",
                    "rate": "100 Gb/sec (4X EDR)",
                },
                **files,
            ),
        )
        return folder
