"""host_info, run like in Ansible, on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys

import pytest
from scripted_tools import run_module
from sysfs_tree import SysfsTree, mapped, write

from ansible_collections.trainyard.gpu.plugins.module_utils import _pci
from ansible_collections.trainyard.gpu.plugins.modules import host_info


def run(**arguments):
    return run_module("host_info", arguments, check=True)


@pytest.fixture(name="port")
def _port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_what_every_host_tells():
    told = run()
    assert told["changed"] is False
    assert (
        told["cpus"] >= 1
        and told["memory_mib"] > 100
        and told["os"]["id"]
        and told["boot_id"]
        and told["hostname"]
    )
    assert told["python_version"] == "%d.%d.%d" % sys.version_info[:3]
    assert {"address": "127.0.0.1", "prefix": 8} in next(
        entry for entry in told["interfaces"] if entry["name"] == "lo"
    )["addresses"]
    assert (
        told["resolved"],
        told["connections"],
        told["listeners"],
        told["disk_free_mib"],
        told["labelled_images"],
    ) == ({}, [], [], {}, [])
    assert (
        told["cgroup"]["version"] in (1, 2)
        and told["cgroup"]["usable"] == (told["cgroup"]["why"] == "")
        and told["candidates"] == {}
    )
    # This machine has what it has.
    assert isinstance(told["virtual_machine"], bool)
    assert all(isinstance(count, int) for count in told["hugepages"].values())
    assert all(card["model"] and card["bus_id"] for card in told["network_cards"])


def test_huge_pages_of_a_tree_like_sys(tmp_path, monkeypatch):
    for size, count in (("2048", "1024"), ("1048576", "0")):
        folder = tmp_path / ("hugepages-%skB" % size)
        folder.mkdir()
        (folder / "nr_hugepages").write_text(count + "\n", encoding="ascii")
        (folder / "free_hugepages").write_text("7\n", encoding="ascii")
    monkeypatch.setattr(host_info, "HUGEPAGES", str(tmp_path))
    assert host_info.huge_pages() == {"2M": 1024, "1G": 0}


def test_governors_of_a_tree_like_sys(tmp_path, monkeypatch):
    for number in range(3):
        folder = tmp_path / ("cpu%d/cpufreq" % number)
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text("powersave\n", encoding="ascii")
        (folder / "scaling_driver").write_text("acpi-cpufreq\n", encoding="ascii")
    monkeypatch.setattr(host_info, "FREQUENCIES", str(tmp_path) + "/cpu[0-9]*/cpufreq")
    assert host_info.cpu_governors() == {"powersave": 3}


def test_files(tmp_path):
    (tmp_path / "file").write_text("text\n", encoding="utf-8")
    (tmp_path / "file").chmod(0o640)
    (tmp_path / "link").symlink_to("file")
    tmp_path.chmod(0o700)
    told = run(files=[str(tmp_path / name) for name in ("file", "link", "none")] + [str(tmp_path)])
    assert told["files"] == {
        str(tmp_path / "file"): {
            "state": "file",
            "checksum": hashlib.sha256(b"text\n").hexdigest(),
            "mode": "0640",
        },
        str(tmp_path / "link"): {"state": "other", "checksum": "", "mode": "0777"},
        str(tmp_path): {"state": "directory", "checksum": "", "mode": "0700"},
    }


def test_names_and_connections(port):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        told = run(
            names=["localhost", "no-such-host.invalid"],
            own_name=True,
            timeout=1,
            connect=[
                {"name": "there", "address": "127.0.0.1", "port": port},
                {"name": "refuses", "address": "127.0.0.1", "port": unused.getsockname()[1]},
                {"name": "no address", "address": "no-such-host.invalid", "port": 22},
                {"name": "from", "address": "127.0.0.1", "port": port, "source": "127.0.0.3"},
                {"name": "not ours", "address": "127.0.0.1", "port": port, "source": "192.0.2.1"},
            ],
        )
    assert "127.0.0.1" in told["resolved"]["localhost"]["addresses"]
    assert (
        told["resolved"]["no-such-host.invalid"]["addresses"] == []
        and told["resolved"]["no-such-host.invalid"]["error"]
    )
    assert told["hostname"] in told["resolved"]
    assert [entry["state"] for entry in told["connections"]][:2] == ["open", "refused"]
    assert [(entry["source"], entry["state"]) for entry in told["connections"][3:]] == [
        ("127.0.0.3", "open"),
        ("192.0.2.1", "unreachable"),
    ]
    assert (
        told["connections"][2]["state"] in ("unreachable", "timeout")
        and told["connections"][2]["error"]
    )


def test_the_listener_of_a_port(port):
    (entry,) = run(ports=[port])["listeners"]
    assert (entry["address"], entry["port"], entry["pid"]) == ("127.0.0.1", port, os.getpid())
    assert entry["process"] and entry["container_id"] == ""


def test_space_of_the_nearest_parent_that_exists(tmp_path):
    told = run(paths=[str(tmp_path), str(tmp_path / "not/there")])
    assert set(told["disk_free_mib"]) == {str(tmp_path), str(tmp_path / "not/there")}
    assert len(set(told["disk_free_mib"].values())) == 1
    assert set(told["disk_devices"].values()) == {tmp_path.stat().st_dev}
    assert set(told["disk_devices"]) == set(told["disk_free_mib"])
    assert "not absolute" in run(paths=["relative"])["msg"]


def test_interfaces_without_iproute2():
    interfaces = {entry["name"]: entry for entry in host_info.interfaces_by_ioctl()}
    assert interfaces["lo"] == {
        "name": "lo",
        "addresses": [{"address": "127.0.0.1", "prefix": 8}],
        "up": True,
        "mtu": 65536,
    }


@pytest.fixture(name="tree")
def fixture_tree(tmp_path, monkeypatch):
    monkeypatch.setattr(host_info, "SYS_CLASS", str(tmp_path / "sys/class"))
    return SysfsTree(tmp_path / "sys")


def test_no_rdma_ports(tree):
    tree.interface("eth0")
    assert host_info.rdma_ports() == []


def test_infiniband_ports_and_a_bond_of_their_interfaces(tree):
    tree.infiniband("mlx5_0", "0000:18:00.0", "ibs1")
    tree.port(
        tree.infiniband("mlx5_1", "0000:2a:00.0", "ibs2"),
        state="1: DOWN",
        rate="10 Gb/sec (4X SDR)",
    )
    tree.interface("bond1", members=["ibs1"])
    (tree.root / "class/net/ibs1/master").symlink_to("../bond1")
    assert host_info.rdma_ports() == [
        {
            "device": "mlx5_0",
            "port": 1,
            "state": "active",
            "transport": "infiniband",
            "rate_gb_s": 400.0,
            "interfaces": ["ibs1", "bond1"],
            "gid_indexes": {},
        },
        {
            "device": "mlx5_1",
            "port": 1,
            "state": "down",
            "transport": "infiniband",
            "rate_gb_s": 10.0,
            "interfaces": ["ibs2"],
            "gid_indexes": {},
        },
    ]


def test_roce_ports_with_the_indexes_of_their_addresses(tree):
    vlan = mapped("10.7.0.11")
    tree.roce(
        address="10.1.0.11",
        more=[(4, vlan, "IB/RoCE v1", "enp24s0np0.7"), (5, vlan, "RoCE v2", "enp24s0np0.7")],
    )
    tree.roce("siw0", "0000:2a:00.0", "enp42s0", address="")
    write(tree.root, "class/infiniband/siw0/node_type", "4: RNIC")
    assert [
        (port["device"], port["transport"], port["interfaces"], port["gid_indexes"])
        for port in host_info.rdma_ports()
    ] == [
        ("mlx5_0", "roce", ["enp24s0np0"], {"10.1.0.11": 3, "10.7.0.11": 5}),
        ("siw0", "iwarp", ["enp42s0"], {}),
    ]


def test_transports_of_an_nfs_server():
    portlist = "rdma 20049\nudp 2049\ntcp 2049\nudp 2049\ntcp 2049\n"
    assert host_info.nfs_transports(portlist) == ["rdma", "tcp", "udp"]
    assert host_info.nfs_transports("") == []


def test_gpus_beside_rdma_devices(tmp_path, monkeypatch):
    """An HGX host has a switch for a GPU and its adapter.

    Below it there are more bridges. A virtual machine has all devices at its root.
    """
    below = {
        "0000:1b:00.0": "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:1b:00.0",
        "mlx5_0": "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:18:00.0",
        "mlx5_1": "pci0000:15/0000:15:05.0/0000:29:00.0",
        "mlx5_2": "pci0000:15/0000:29:00.0",
        "0000:30:00.0": "pci0000:15/0000:30:00.0",
    }
    monkeypatch.setattr(host_info, "SYS_CLASS", str(tmp_path / "class"))
    monkeypatch.setattr(_pci, "DEVICES", str(tmp_path / "bus/pci/devices"))
    for name, path in below.items():
        folder = tmp_path / "devices" / path
        folder.mkdir(parents=True)
        where = "class/infiniband/%s/device" if name.startswith("mlx5") else "bus/pci/devices/%s"
        link = tmp_path / (where % name)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folder)
    gpus = [{"bus_id": name} for name in below if ":" in name]
    assert host_info.rdma_beside_gpus(gpus) == {
        "mlx5_0": ["0000:1b:00.0"],
        "mlx5_1": [],
        "mlx5_2": [],
    }


@pytest.mark.parametrize(
    "text, speed, said, duplex",
    [
        ("25000", 25000, "full", "full"),
        ("100", 100, "half", "half"),
        ("-1", None, "unknown", None),
        ("", None, "", None),
    ],
)
def test_speed_and_duplex_of_interfaces(tree, text, speed, said, duplex):
    tree.interface("eth0", speed=text, duplex=said)

    class Module:
        def get_bin_path(self, name, opt_dirs):
            return "/sbin/ip"

        def run_command(self, command):
            return 0, json.dumps([{"ifname": "eth0", "flags": ["UP", "LOWER_UP"]}]), ""

    assert host_info.interfaces(Module()) == [
        {
            "name": "eth0",
            "addresses": [],
            "up": True,
            "mtu": None,
            "speed_mbit_s": speed,
            "duplex": duplex,
        }
    ]


def test_network_cards(tree):
    """With the slots above them, and the bonds and VLANs on top."""
    root = tree.adapter("0000:16:01.0", **{"class": "0x060400", "max_link_width": "8"})
    tree.infiniband("mlx5_0", "0000:18:00.0", "ibs1")
    tree.adapter(
        "0000:19:00.0",
        **{"class": "0x020000", "vendor": "0x8086", "device": "0x158b"},
        current_link_speed="Unknown",
        current_link_width="0",
    )
    tree.interface("ens1", "0000:19:00.0")
    for name, upper in (("ens1", "bond0"), ("bond0", "bond0.7")):
        if name == "bond0":
            tree.interface(name)
        (tree.root / "class/net" / name / ("upper_" + upper)).symlink_to("../" + upper)
    tree.adapter("0000:1a:00.1", physical_function="0000:18:00.0")
    # Below a bridge, which has fewer lanes.
    write(root, "0000:1b:00.0/class", "0x020000")
    write(root, "0000:1b:00.0/max_link_width", "16")
    (tree.root / "bus/pci/devices/0000:1b:00.0").symlink_to(root / "0000:1b:00.0")
    tree.adapter("0000:1c:00.0", **{"class": "0x030200"})
    cards = {card["bus_id"]: card for card in _pci.network_cards(str(tree.root))}
    # Without the virtual function.
    assert set(cards) == {"0000:18:00.0", "0000:19:00.0", "0000:1b:00.0"}
    assert cards["0000:18:00.0"] == {
        "bus_id": "0000:18:00.0",
        "model": "15b3:101b",
        "gt_s": 16.0,
        "gt_s_max": 32.0,
        "width": 16.0,
        "width_max": 16.0,
        "slot_gt_s_max": None,
        "slot_width_max": None,
        "interfaces": [{"name": "ibs1", "above": []}],
        "rdma": ["mlx5_0"],
    }
    ethernet = cards["0000:19:00.0"]
    assert (ethernet["model"], ethernet["gt_s"], ethernet["width"]) == ("8086:158b", None, None)
    assert ethernet["interfaces"] == [{"name": "ens1", "above": ["bond0", "bond0.7"]}]
    assert (cards["0000:1b:00.0"]["width_max"], cards["0000:1b:00.0"]["slot_width_max"]) == (16, 8)


def test_npus_on_the_bus(tmp_path, monkeypatch):
    """Of Huawei's devices, network cards have another class."""
    for number, (vendor, kind) in enumerate(
        (
            ("0x19e5", "0x120000"),
            ("0x19e5", "0x120000"),
            ("0x19e5", "0x020000"),
            ("0x10de", "0x120000"),
        )
    ):
        write(tmp_path, "0000:%02d:00.0/vendor" % number, vendor)
        write(tmp_path, "0000:%02d:00.0/class" % number, kind)
    monkeypatch.setattr(_pci, "DEVICES", str(tmp_path))
    assert _pci.npu_devices() == 2
