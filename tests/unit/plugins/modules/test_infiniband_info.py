"""infiniband_info, run like in Ansible, with sysfs trees as in Linux; tools are scripts that print
a fixture.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from scripted_tools import run_module, scripts
from sysfs_tree import SysfsTree, link, mapped, write

from ansible_collections.trainyard.gpu.plugins.module_utils import _infiniband
from ansible_collections.trainyard.gpu.plugins.module_utils._pci import peer_access, redirects
from ansible_collections.trainyard.gpu.plugins.modules import infiniband_info

FIXTURES = Path(__file__).parents[3] / "fixtures/ib"
LOCAL = "fe80:0000:0000:0000:a288:c2ff:fee3:142a"


@pytest.fixture(name="tree")
def fixture_tree(tmp_path):
    return SysfsTree(tmp_path / "sys")


@pytest.fixture(name="script")
def fixture_script(tmp_path, monkeypatch):
    return scripts(tmp_path, monkeypatch)


@pytest.fixture(name="ask")
def fixture_ask(tree, script):
    """No tool is there, unless a test puts one on the PATH."""
    assert script
    return lambda **arguments: run_module(
        "infiniband_info", dict({"sysfs_root": str(tree.root)}, **arguments), check=True
    )


def only_port(told, name="mlx5_0"):
    (port,) = next(device for device in told["devices"] if device["name"] == name)["ports"]
    return port


# --- sysfs -----------------------------------------------------------------------------------------------------------------


def described(tree, statistics):
    """The port of a tree, with what the drivers of interfaces count."""
    found = infiniband_info.sysfs_of(str(tree.root), "mlx5_0", statistics)
    return only_port({"devices": [_infiniband.describe_device("mlx5_0", found.texts)]})


def test_flow_control_of_roce(tree, ask):
    """By the driver, which only knows the interface.

    If it counts nothing, and for InfiniBand, the port has no such key.
    """
    tree.roce()
    assert "pfc" not in only_port(ask())
    lines = {"enp24s0np0": "rx_prio3_pause: 12\ntx_pause_storm_error_events: 0"}
    assert described(tree, lines.__getitem__)["pfc"] == {"rx_pause": 12, "storms": 0}


def test_infiniband_has_no_flow_control_by_priority(tree):
    tree.infiniband()
    assert "pfc" not in described(tree, lambda _name: "rx_prio3_pause: 12")


def test_infiniband(tree, ask):
    tree.infiniband()
    told = ask()
    assert (told["available"], told["cause"], told["fix"], told["source"], told["changed"]) == (
        True,
        None,
        None,
        "sysfs",
        False,
    )
    (device,) = told["devices"]
    port = device.pop("ports")[0]
    assert device == {
        "name": "mlx5_0",
        "hca_type": "MT4129",
        "firmware": "28.39.1002",
        "board_id": "MT_0000000838",
        "node_description": "gpu-a mlx5_0",
        "node_guid": "a088:c203:00e3:142a",
        "system_image_guid": "a088:c203:00e3:142a",
        "bus_id": "0000:18:00.0",
        "driver": "mlx5_core",
        "numa_node": 1,
        "pcie_gt_s": 16.0,
        "pcie_gt_s_max": 32.0,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "virtual_function": False,
        "physical_function": None,
        "unavailable": {"physical_function": "not a virtual function"},
    }
    assert (port["transport"], port["state"], port["physical_state"]) == (
        "infiniband",
        "active",
        "link_up",
    )
    assert (port["rate_gb_s"], port["width"], port["speed"], port["lid"], port["sm_lid"]) == (
        400.0,
        4,
        "NDR",
        0x4B,
        0x14E,
    )
    assert port["gids"] == [
        {
            "index": 0,
            "gid": "fe80:0000:0000:0000:a088:c203:00e3:142a",
            "type": "IB",
            "ndev": None,
            "address": None,
        }
    ]
    assert (port["port_guid"], port["netdev"], port["netdev_state"], port["bond_members"]) == (
        "a088:c203:00e3:142a",
        "ibs1",
        "up",
        [],
    )
    assert (port["nccl_gid_index"], port["unavailable"]) == (
        None,
        {"nccl_gid_index": "only RoCE needs one"},
    )
    assert port["counters"] == {
        "xmit_bytes": 4000,
        "rcv_bytes": 8000,
        "xmit_packets": 30,
        "rcv_packets": 40,
        "unicast_xmit_packets": 29,
        "unicast_rcv_packets": 39,
        "multicast_xmit_packets": 1,
        "multicast_rcv_packets": 1,
    }
    assert (port["errors"], port["hw_counters"]) == (
        {"symbol_error": 0, "link_downed": 1, "port_xmit_wait": 0},
        {},
    )
    assert told["adapters"] == [
        {
            "bus_id": "0000:18:00.0",
            "vendor_id": "15b3",
            "device_id": "101b",
            "driver": "mlx5_core",
            "infiniband": True,
            "devices": ["mlx5_0"],
        }
    ]


def test_roce_on_two_cards(tree, ask):
    tree.roce()
    tree.roce("mlx5_1", "0000:18:00.1", "enp24s0np1", "192.0.2.12")
    told = ask()
    for name, interface, address in (
        ("mlx5_0", "enp24s0np0", "192.0.2.11"),
        ("mlx5_1", "enp24s0np1", "192.0.2.12"),
    ):
        port = only_port(told, name)
        assert (
            port["transport"],
            port["link_layer"],
            port["rate_gb_s"],
            port["speed"],
            port["netdev"],
        ) == ("roce", "ethernet", 100.0, "EDR", interface)
        assert [
            (gid["index"], gid["type"], gid["ndev"], gid["address"]) for gid in port["gids"]
        ] == [
            (0, "RoCE v1", interface, "fe80::a288:c2ff:fee3:142a"),
            (1, "RoCE v2", interface, "fe80::a288:c2ff:fee3:142a"),
            (2, "RoCE v1", interface, address),
            (3, "RoCE v2", interface, address),
        ]
        assert (port["nccl_gid_index"], port["unavailable"]) == (3, {})
        assert port["hw_counters"] == {"out_of_sequence": 7, "np_cnp_sent": 12}


def test_two_ports_of_one_device(tree, ask):
    """mlx4: both ports, and the interfaces of both, are of one PCI function.

    Drivers of before Linux 3.15 number the interfaces by dev_id alone.
    """
    tree.adapter("0000:05:00.0", driver="mlx4_core")
    folder = tree.device("mlx4_0", "0000:05:00.0")
    for name, numbers in (
        ("ib0", {}),
        ("ib1", {"dev_port": "1", "dev_id": "0x1"}),
        ("ib0.8001", {"parent": "ib0"}),
        ("ib1.8001", {"parent": "ib1"}),
    ):
        tree.interface(name, "0000:05:00.0", **numbers)
    tree.port(folder, 1)
    tree.port(folder, 2, state="1: DOWN", phys_state="2: Polling", rate="10 Gb/sec (4X)")
    assert [port["netdev"] for port in ask()["devices"][0]["ports"]] == ["ib0", "ib1"]
    write(tree.root, "class/net/ib1/dev_port", "0")
    first, second = ask()["devices"][0]["ports"]
    assert (first["netdev"], second["netdev"]) == ("ib0", "ib1")
    assert (second["state"], second["physical_state"], second["rate_gb_s"], second["width"]) == (
        "down",
        "polling",
        10.0,
        4,
    )
    # Before the kernel named it, the lowest speed had no name.
    assert (second["speed"], second["unavailable"]["speed"]) == (None, "10 Gb/sec (4X)")


def test_bond(tree, ask):
    """Both ports of a card as one device; its interface is the bond, which no PCI function has."""
    folder = tree.roce("mlx5_bond_0", interface="enp24s0np0", address="")
    tree.interface("bond0", members=["enp24s0np0", "enp24s0np1"])
    for index, gid, kind in (
        (0, LOCAL, "IB/RoCE v1"),
        (1, LOCAL, "RoCE v2"),
        (2, mapped("169.254.142.62"), "IB/RoCE v1"),
        (3, mapped("169.254.142.62"), "RoCE v2"),
    ):
        for path, text in (("gids", gid), ("gid_attrs/types", kind), ("gid_attrs/ndevs", "bond0")):
            write(folder, "ports/1/%s/%d" % (path, index), text)
    port = only_port(ask(), "mlx5_bond_0")
    # An address of 169.254/16 may be the fabric's.
    assert (port["netdev"], port["netdev_state"], port["bond_members"], port["nccl_gid_index"]) == (
        "bond0",
        "up",
        ["enp24s0np0", "enp24s0np1"],
        3,
    )


def test_port_that_is_down(tree, ask):
    folder = tree.roce(
        state="1: DOWN", phys_state="3: Disabled", rate="40 Gb/sec (4X QDR)", address=""
    )
    write(tree.root, "class/net/enp24s0np0/operstate", "down")
    port = only_port(ask())
    assert (port["state"], port["physical_state"], port["rate_gb_s"], port["netdev_state"]) == (
        "down",
        "disabled",
        40.0,
        "down",
    )
    assert (port["nccl_gid_index"], port["unavailable"]["nccl_gid_index"]) == (
        None,
        "no RoCE v2 address but link-local ones",
    )
    # With an interface that was taken down long ago, the table is empty, and the interface is found
    # by its number.
    for index in range(2):
        write(folder, "ports/1/gids/%d" % index, ":".join(["0000"] * 8))
    port = only_port(ask())
    assert (port["gids"], port["netdev"], port["port_guid"], port["unavailable"]["port_guid"]) == (
        [],
        "enp24s0np0",
        None,
        "not assigned (all zeros)",
    )


def test_virtual_functions(tree, ask):
    tree.infiniband()
    tree.adapter(
        "0000:18:00.2",
        physical_function="0000:18:00.0",
        current_link_speed="Unknown",
        current_link_width="0",
        numa_node="-1",
    )
    tree.port(
        tree.device("mlx5_1", "0000:18:00.2", "0000:0000:0000:0000"),
        state="1: DOWN",
        lid="0xffff",
        counters={"port_xmit_data": "N/A (no PMA)"},
    )
    told = ask()
    physical, virtual = told["devices"]
    assert (
        physical["virtual_function"],
        virtual["virtual_function"],
        virtual["physical_function"],
    ) == (False, True, "0000:18:00.0")
    assert virtual["unavailable"] == {
        "node_guid": "not assigned (all zeros)",
        "numa_node": "-1",
        "pcie_gt_s": "Unknown",
        "pcie_width": "0",
    }
    port = only_port(told, "mlx5_1")
    assert (port["counters"]["xmit_bytes"], port["unavailable"]["counters.xmit_bytes"]) == (
        None,
        "N/A (no PMA)",
    )
    assert (port["netdev"], port["unavailable"]["netdev"], port["lid"]) == (
        None,
        "not there",
        0xFFFF,
    )


def test_switch_with_ports_to_virtual_functions(tree, ask):
    """Their interfaces are of the same PCI function as the port's own."""
    tree.infiniband()
    for name, said in (("eth0", "pf0vf0"), ("eth1", "c1pf0sf3")):
        tree.interface(name, "0000:18:00.0", phys_port_name=said)
    assert only_port(ask())["netdev"] == "ibs1"
    tree.interface("eth2", "0000:18:00.0", phys_port_name="p0")
    port = only_port(ask())
    assert (port["netdev"], port["unavailable"]["netdev"]) == (
        None,
        "several interfaces: eth2, ibs1",
    )


def test_which_gid_index(tree, ask):
    """One of another network, such as a VLAN's, would make jobs hang; which of two addresses is the
    fabric's nobody can tell but the user.
    """
    folder = tree.roce(more=[(4, mapped("198.51.100.1"), "RoCE v2", "enp24s0np0.100")])
    assert only_port(ask())["nccl_gid_index"] == 3
    assert only_port(ask(network="198.51.100.0/24"))["nccl_gid_index"] == 4
    port = only_port(ask(network="203.0.113.0/24"))
    assert (port["nccl_gid_index"], port["unavailable"]["nccl_gid_index"]) == (
        None,
        "no RoCE v2 address in 203.0.113.0/24",
    )
    for path, text in (
        ("gids", mapped("192.0.2.99")),
        ("gid_attrs/types", "RoCE v2"),
        ("gid_attrs/ndevs", "enp24s0np0"),
    ):
        write(folder, "ports/1/%s/5" % path, text)
    port = only_port(ask())
    assert (port["nccl_gid_index"], port["unavailable"]["nccl_gid_index"]) == (
        None,
        "several RoCE v2 addresses: 192.0.2.11 (3), 192.0.2.99 (5)",
    )
    assert only_port(ask(network="192.0.2.96/28"))["nccl_gid_index"] == 5
    # One of several rails.
    assert only_port(ask(network=["203.0.113.0/24", "192.0.2.96/28"]))["nccl_gid_index"] == 5
    assert only_port(ask(network="203.0.113.0/24,192.0.2.96/28"))["nccl_gid_index"] == 5
    # Without IPv4, IPv6, as long as it isn't link-local.
    for index in (2, 3, 5):
        write(
            folder,
            "ports/1/gids/%d" % index,
            "2001:0db8:0000:0000:0000:0000:0000:0011" if index == 3 else ":".join(["0000"] * 8),
        )
    assert only_port(ask())["nccl_gid_index"] == 3


def test_iwarp_is_no_roce(tree, ask):
    folder = tree.roce()
    write(folder, "node_type", "4: RNIC")
    port = only_port(ask())
    assert (port["transport"], port["nccl_gid_index"]) == ("iwarp", None)
    write(folder, "node_type", "7: unspecified")
    port = only_port(ask())
    assert (port["transport"], port["unavailable"]["transport"]) == (
        None,
        "node type: 7: unspecified",
    )


def test_counters_of_32_and_of_64_bits(tree, ask):
    folder = tree.infiniband()
    write(folder, "ports/1/counters/port_xmit_data", str(2**32 - 1))
    write(folder, "ports/1/counters/port_rcv_data", str(2**62))
    assert only_port(ask())["counters"]["xmit_bytes"] == 4 * (2**32 - 1)
    assert only_port(ask())["counters"]["rcv_bytes"] == 2**64
    # A port without counters of single receivers has none of 64 bits.
    (folder / "ports/1/counters/unicast_xmit_packets").unlink()
    port = only_port(ask())
    assert (port["counters"]["xmit_bytes"], port["unavailable"]["counters.xmit_bytes"]) == (
        None,
        "at its maximum of 32 bits",
    )
    # Former kernels have them beside.
    write(folder, "ports/1/counters_ext/port_xmit_data_64", str(2**40))
    assert only_port(ask())["counters"]["xmit_bytes"] == 2**42


def test_file_that_cannot_be_read(tree, ask):
    """A folder stands in for what the kernel answers with an error; root may read any file."""
    folder = tree.infiniband()
    for path in ("fw_ver", "ports/1/rate", "ports/1/counters/symbol_error"):
        (folder / path).unlink()
        (folder / path).mkdir()
    told = ask()
    assert told["devices"][0]["unavailable"]["firmware"] == "Is a directory"
    port = only_port(told)
    assert {
        port["unavailable"][key] for key in ("rate_gb_s", "width", "speed", "errors.symbol_error")
    } == {"Is a directory"}
    assert port["errors"]["symbol_error"] is None


def test_no_device_and_no_driver(tree, ask):
    told = ask()
    assert (told["available"], told["cause"], told["devices"], told["adapters"]) == (
        False,
        "no_devices",
        [],
        [],
    )
    tree.adapter("0000:17:00.0", driver="", vendor="0x8086", **{"class": "0x020000"})
    assert ask()["adapters"] == []
    # Every vendor's adapter for InfiniBand counts.
    tree.adapter("0000:18:00.0", driver="", vendor="0x1077")
    tree.adapter("0000:19:00.0", **{"class": "0x020000"})
    told = ask()
    assert (told["available"], told["cause"]) == (
        False,
        "driver_not_loaded",
    ) and "0000:18:00.0, adapter 0000:19:00.0" in told["fix"]
    assert [
        (adapter["vendor_id"], adapter["driver"], adapter["infiniband"], adapter["devices"])
        for adapter in told["adapters"]
    ] == [("1077", "", True, []), ("15b3", "mlx5_core", False, [])]


# --- GPUDirect RDMA --------------------------------------------------------------------------------------------------------


def a_config(port_type, control=None, size=4096):
    """Configuration space of a bridge: power management, then PCI Express; advanced errors, then
    Access Control Services if C(control) is given.
    """
    config = bytearray(size)
    config[0x34] = 0x40
    config[0x40:0x42] = bytes([0x01, 0x60])
    config[0x60:0x64] = bytes([0x10, 0x00, port_type << 4 | 2, 0x00])
    if size > 256:
        config[0x100:0x104] = (0x0001 | 1 << 16 | 0x148 << 20).to_bytes(4, "little")
    if size > 256 and control is not None:
        config[0x148:0x14C] = (0x000D | 1 << 16).to_bytes(4, "little")
        config[0x14C:0x150] = bytes([0x5F, 0, control, 0])
    return bytes(config)


@pytest.mark.parametrize(
    "config, expected",
    [
        (a_config(6, 0x1D), True),
        (a_config(6, 0x04), True),
        (a_config(6, 0x00), False),
        # Source validation alone redirects nothing.
        (a_config(6, 0x01), False),
        (a_config(6), False),
        # What passes a port of the root goes through it anyway.
        (a_config(4, 0x1D), False),
        (a_config(5, 0x1D), False),
        # As people without rights, and some virtual machines, see it.
        (a_config(6, size=64), False),
        (a_config(6, size=256), False),
        (b"", False),
        (b"\xff" * 4096, False),
    ],
)
def test_access_control_of_a_port(config, expected):
    assert redirects(config) is expected


def test_capabilities_that_form_a_circle():
    config = bytearray(a_config(6))
    config[0x61] = 0x40
    config[0x100:0x104] = (0x0001 | 0x100 << 20).to_bytes(4, "little")
    assert redirects(bytes(config)) is False


def with_gpu(tree, control, kind=""):
    """A GPU and an adapter below a switch, whose ports are 0000:15:00.0 and 0000:15:01.0, below
    port 0000:14:00.0 of the root.
    """
    root = tree.root / "devices/pci0000:14/0000:14:00.0"
    for bus_id, vendor, group in (
        ("0000:15:00.0/0000:16:00.0", "0x10de", "0x030200"),
        ("0000:15:01.0/0000:17:00.0", "0x15b3", "0x020700"),
    ):
        folder = root / bus_id
        for name, text in (("vendor", vendor), ("class", group), ("device", "0x2330")):
            write(folder, name, text)
        (folder.parent / "config").write_bytes(a_config(6, control))
        link(tree.root / "bus/pci/devices" / folder.name, folder)
        if kind:
            write(folder, "iommu_group/type", kind)
    (root / "config").write_bytes(a_config(4, 0x1D))


@pytest.mark.parametrize("kind, translated", [("", 0), ("identity", 0), ("DMA", 2), ("DMA-FQ", 2)])
def test_the_way_between_gpu_and_adapter(tree, ask, kind, translated):
    with_gpu(tree, 0x1D, kind)
    told = ask()["gpudirect"]
    assert told["redirected"] == ["0000:15:00.0", "0000:15:01.0"]
    assert told["translated"] == ["0000:16:00.0", "0000:17:00.0"][:translated]


def test_numa_nodes_of_gpus(tree, ask):
    with_gpu(tree, 0x1D)
    assert ask()["gpudirect"]["gpu_numa_nodes"] == {}
    gpu = tree.root / "bus/pci/devices/0000:16:00.0"
    for text, found in (("1", {"0000:16:00.0": 1}), ("-1", {})):
        write(gpu, "numa_node", text)
        assert ask()["gpudirect"]["gpu_numa_nodes"] == found


@pytest.mark.parametrize(
    "paths, release, expected",
    [
        ((), "5.15.0-91-generic", (False, False)),
        (("module/nvidia_peermem",), "5.4.0-1", (True, False)),
        (("module/nv_peer_mem",), "5.4.0-1", (True, False)),
        (("kernel/mm/memory_peers/nv_mem",), "5.4.0-1", (True, False)),
        # Open kernel modules, the others, and an old kernel.
        (("module/nvidia/taint=OE",), "5.15.0-91-generic", (False, True)),
        (("module/nvidia/taint=POE",), "6.8.0-1", (False, False)),
        (("module/nvidia/taint=OE",), "5.4.0-169-generic", (False, False)),
        (("module/nvidia/taint=OE",), "", (False, False)),
    ],
)
def test_modules_for_gpudirect(tree, paths, release, expected):
    for path in paths:
        name, _mark, text = path.partition("=")
        if text:
            write(tree.root, name, text)
        else:
            (tree.root / name).mkdir(parents=True)
    told = peer_access(str(tree.root), release)
    assert (told["peer_memory"], told["dma_buf"]) == expected
    assert told["redirected"] == told["translated"] == []


# --- tools -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(name="unreadable")
def fixture_unreadable(tmp_path):
    return {"sysfs_root": str(tmp_path / "none")}


def prints(script, tool, name, end=""):
    return script(tool, "cat %s/%s; %s" % (FIXTURES, name, end))


def test_tools_where_sysfs_is_not_there(ask, script, unreadable):
    prints(script, "ibstat", "ibstat-a100-ibpanic-at-end.txt", "exit 255")
    prints(script, "ibstatus", "ibstatus-a100-9.txt")
    script("ibdev2netdev", "echo 'mlx5_0 port 1 ==> ib0 (Up)'")
    told = ask(**unreadable)
    assert (told["available"], told["source"], len(told["devices"])) == (
        True,
        "ibstat+ibstatus+ibdev2netdev",
        8,
    )
    assert told["remarks"] == [
        "ibpanic: [1400444] main: stat of IB device 'mlx5_8' failed: No such file or directory"
    ]
    port = only_port(told)
    assert (
        port["lid"],
        port["rate_gb_s"],
        port["speed"],
        port["netdev"],
        port["netdev_state"],
    ) == (13247, 200.0, "HDR", "ib0", "up")
    assert (
        only_port(told, "mlx5_1")["unavailable"]["netdev"]
        == "not said by ibstat, ibstatus, ibdev2netdev"
    )


def test_only_the_verbs_tools(ask, script, unreadable):
    prints(script, "ibv_devinfo", "ibv_devinfo-mlx4-2hca-tabs.txt")
    told = ask(**unreadable)
    assert (told["source"], [device["name"] for device in told["devices"]]) == (
        "ibv_devinfo",
        ["mlx4_0", "mlx4_1"],
    )


@pytest.mark.parametrize(
    "tool, body, cause, seen",
    [
        ("nothing", "true", "not_installed", "ibv_devinfo is not on the PATH"),
        ("ibstat", "exit 0", "no_devices", "ibstat lists none"),
        (
            "ibstat",
            "echo 'ibpanic: [12] main: can not list devices' >&2; exit 255",
            "tool_failed",
            "can not list devices",
        ),
        ("ibstat", "echo garbage; exit 1", "tool_failed", "not a line of a device: garbage"),
        ("ibstat", "sleep 20", "timeout", "did not end within 1 s"),
        ("ibv_devinfo", "echo 'No IB devices found'", "no_devices", "ibv_devinfo lists none"),
    ],
)
def test_tools_that_say_nothing(ask, script, unreadable, tool, body, cause, seen):
    script(tool, body)
    told = ask(timeout=1, **unreadable)
    assert (told["available"], told["cause"], told["devices"]) == (
        False,
        cause,
        [],
    ) and seen in told["fix"]


def test_garbage_is_a_failure(ask, script, unreadable):
    script("ibstat", "head -c 300 %s/ibstat-mlx4-2ports.txt" % FIXTURES)
    told = ask(**unreadable)
    assert told["failed"] and "the output is truncated" in told["msg"]


def test_in_a_container(ask, tree, script, tmp_path):
    """Whatever the host has."""
    tree.infiniband()
    script(
        "docker",
        'echo "$@" >> %s/asked; [ "${@##* }" ]; for tool; do :; done; [ "$tool" = ibstat ] && cat %s/ibstat-h100-all-active.txt || '
        '{ echo "exec: \\"$tool\\": executable file not found in \\$PATH" >&2; exit 127; }'
        % (tmp_path, FIXTURES),
    )
    told = ask(container="trainyard-training")
    assert (told["source"], len(told["devices"]), told["adapters"]) == ("ibstat", 12, [])
    assert only_port(told)["transport"] == "roce"
    asked = (tmp_path / "asked").read_text(encoding="utf-8").splitlines()
    assert [line.split()[-2:] for line in asked] == [
        ["trainyard-training", tool] for tool in ("ibstat", "ibstatus", "ibdev2netdev")
    ]
    script("docker", "echo 'Error: No such container: trainyard-training' >&2; exit 1")
    assert ask(container="trainyard-training")["cause"] == "container_not_running"


# --- what a role asks beside -------------------------------------------------------------------------------------------------


def test_what_a_role_asks(ask, tree, script, tmp_path):
    (tree.root / "module/ib_uverbs").mkdir()
    script(
        "dpkg-query",
        "[ \"$4\" = rdma-core ] && printf 'rdma-core\\t44.0-2\\tii \\nperftest\\t4.5\\trc \\n'",
    )
    script("ofed_info", '[ "$1" = -s ] && echo MLNX_OFED_LINUX-5.8-3.0.7.0:')
    (tmp_path / "file").write_text("text", encoding="utf-8")
    told = ask(
        kernel_modules=["ib_uverbs", "of_no_kernel"],
        packages=["rdma-core", "perftest"],
        files=[str(tmp_path / "file"), "/nowhere"],
    )
    assert told["kernel_modules"] == {"ib_uverbs": "loaded", "of_no_kernel": "missing"}
    assert told["packages"] == {"rdma-core": "44.0-2"}
    assert told["files"] == {str(tmp_path / "file"): hashlib.sha256(b"text").hexdigest()}
    assert told["ofed"] == "MLNX_OFED_LINUX-5.8-3.0.7.0"


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"container": "-it"}, "not a valid name"),
        ({"timeout": 0}, "1 second or more"),
        ({"network": "192.0.2.1/24"}, "'192.0.2.1/24' is not a valid network"),
        ({"network": "fast"}, "Give a CIDR such as 192.0.2.0/24"),
    ],
)
def test_bad_options(ask, arguments, said):
    told = ask(**arguments)
    assert told["failed"] and said in told["msg"]


def test_this_machine_has_a_sysfs(script):
    """Whatever it has: it is answered."""
    assert script
    told = run_module("infiniband_info", {})
    assert told["available"] is bool(told["devices"]) and told["source"] == "sysfs"
