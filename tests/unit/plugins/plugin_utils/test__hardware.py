"""Links of GPUs and network cards against those of the same models: each fault is told of its host,
and healthy odd kinds are not.
"""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _hardware
from ansible_collections.trainyard.gpu.plugins.module_utils._bandwidth import nvlinks
from ansible_collections.trainyard.gpu.plugins.module_utils._nvidia_smi import parse_query
from ansible_collections.trainyard.gpu.plugins.plugin_utils._compat import (
    load_facts,
    nvlinks as nvlinks_of,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils._hardware import gpu_models, problems

ROOT = Path(__file__).parents[4]
H100, NVL, A100_PCIE = "NVIDIA H100 80GB HBM3", "NVIDIA H100 NVL", "NVIDIA A100 80GB PCIe"
GEFORCE = "NVIDIA GeForce RTX 3090"


def a_gpu(index, model, links=None, speed=26.562, total=18, **changes):
    """C(links) are the active ones. As module nvidia_smi_info returns it."""
    speeds = None if links is None else [speed] * links + [0.0] * (total - links if links else 0)
    gpu = {
        "index": index,
        "name": model,
        "bus_id": "00000000:%02x:00.0" % index,
        "mig_mode": False,
        "virtualization_mode": "None",
        "pcie_width": 16,
        "pcie_width_max": 16,
        "nvlinks": speeds,
        "unavailable": {},
    }
    return dict(gpu, **changes)


def with_links(*links, model=H100, **changes):
    return {"gpus": [a_gpu(index, model, count, **changes) for index, count in enumerate(links)]}


def with_lanes(*lanes, model="NVIDIA L40S", most=16, mode="None"):
    return {
        "gpus": [
            a_gpu(index, model, pcie_width=width, pcie_width_max=most, virtualization_mode=mode)
            for index, width in enumerate(lanes)
        ]
    }


def an_interface(name, speed, up=True, address=""):
    addresses = [{"address": address, "prefix": 24}] if address else []
    return {"name": name, "up": up, "speed_mbit_s": speed, "addresses": addresses}


def a_card(name="eth0", model="8086:1572", bus_id="0000:17:00.0", above=(), rdma=(), **link):
    good = {
        "gt_s": 32.0,
        "gt_s_max": 32.0,
        "width": 16.0,
        "width_max": 16.0,
        "slot_gt_s_max": 32.0,
        "slot_width_max": 16.0,
    }
    return dict(
        {
            "bus_id": bus_id,
            "model": model,
            "interfaces": [{"name": name, "above": list(above)}],
            "rdma": list(rdma),
        },
        **dict(good, **link),
    )


def on_network(speed=100000, name="eth0", up=True, used=True, **card):
    """One card, whose interface has the host's address if it is used."""
    return {
        "interfaces": [
            an_interface(name, speed, up, "10.0.0.1" if used else ""),
            an_interface("lo", None, True, "127.0.0.1"),
        ],
        "network_cards": [a_card(name, **card)],
    }


def slot(gt_s, width, **changes):
    return on_network(rdma=["mlx5_0"], gt_s=gt_s, width=width, **changes)


def told(check, **hosts):
    """By host: warn or fail, and what was found.

    C(hosts) have gpus of nvidia_smi_info, or else facts of host_info.
    """
    variables = {
        name: {
            "cluster_host": its.get("facts", {}) if "gpus" in its else its,
            "__verify_gpus": its if "gpus" in its else {"skipped": True},
            "__verify_infiniband": its.get("infiniband", {"skipped": True}),
        }
        for name, its in hosts.items()
    }
    for its in variables.values():
        its["cluster_host"].setdefault("hostname", "x")
    members = [
        {"name": name, "address": "10.0.0.1", "fabric_address": "10.0.0.1"} for name in hosts
    ]
    found = _hardware.decide_verify_hardware(variables, members)
    return {
        host: [
            ("warn: " if entry["warn"] else "") + entry["found"]
            for entry in entries
            if entry["expected"] and entry["fix"]
        ]
        for host, entries in found["problems"][check].items()
        if entries
    }


@pytest.mark.parametrize(
    "hosts, found",
    [
        # 9 of 18 links of one GPU, with a peer and without.
        (
            {"a": with_links(18, 18), "b": with_links(18, 9)},
            {"b": ["GPU 1 (00000000:01:00.0): 9 active NVLinks of 26.562 GB/s"]},
        ),
        (
            {"b": with_links(*[18] * 7, 17)},
            {"b": ["GPU 7 (00000000:07:00.0): 17 active NVLinks of 26.562 GB/s"]},
        ),
        # nvidia-smi prints a sentence in place of the links.
        (
            {"b": with_links(18, 18, 18, 0)},
            {"b": ["GPU 3 (00000000:03:00.0): 0 active NVLinks"]},
        ),
        # All of them, which only another host shows.
        (
            {"a": with_links(18, 18), "b": with_links(12, 12)},
            {
                "b": [
                    "GPU %d (00000000:0%d:00.0): 12 active NVLinks of 26.562 GB/s" % (gpu, gpu)
                    for gpu in (0, 1)
                ]
            },
        ),
        # The compatibility data alone, of a host that is the only one of its kind, or of several
        # that all say the same.
        (
            {"b": with_links(12, 12)},
            {
                "b": [
                    "warn: GPU %d (00000000:0%d:00.0): 12 active NVLinks of 26.562 GB/s"
                    % (gpu, gpu)
                    for gpu in (0, 1)
                ]
            },
        ),
        # A link that was trained to a lower speed.
        (
            {"a": with_links(18, 18), "b": with_links(18, 18, speed=25.0)},
            {
                "b": [
                    "GPU %d (00000000:0%d:00.0): 18 active NVLinks of 25 GB/s" % (gpu, gpu)
                    for gpu in (0, 1)
                ]
            },
        ),
        # A card with a bridge beside one without: the bridge may be loose, or there is none.
        (
            {"a": with_links(12, 12, 0, 0, model=A100_PCIE, speed=25.0)},
            {
                "a": [
                    "warn: GPU 2 (00000000:02:00.0): 0 active NVLinks",
                    "warn: GPU 3 (00000000:03:00.0): 0 active NVLinks",
                ]
            },
        ),
        (
            {"a": with_links(12, 12, 12, 8, model=A100_PCIE, speed=25.0)},
            {"a": ["GPU 3 (00000000:03:00.0): 8 active NVLinks of 25 GB/s"]},
        ),
        # In order.
        ({"a": with_links(18, 18), "b": with_links(18, 18)}, {}),
        ({"a": with_links(12, 12, model=NVL), "b": with_links(12, 12, model=NVL)}, {}),
        ({"a": with_links(12, 12, model=NVL), "b": with_links(18, 18)}, {}),
        ({"a": with_links(0, 0, model=A100_PCIE)}, {}),
        ({"a": with_links(0, 0, model=GEFORCE), "b": with_links(0, 0, model=GEFORCE)}, {}),
        ({"a": with_links(0, 0, model="NVIDIA L40S")}, {}),
        # A virtual machine with one GPU of a board: it needs no links.
        ({"a": with_links(18, 18), "b": with_links(0)}, {}),
        # Part of a mesh.
        ({"a": with_links(2, 2, model="Tesla V100-SXM2-16GB")}, {}),
        # In MIG mode a GPU does not say.
        ({"a": with_links(18, 18), "b": with_links(None, None, mig_mode=True)}, {}),
        # Answers of a release that did not ask.
        ({"a": {"gpus": [{"index": 0, "name": H100, "bus_id": "x"}] * 2}}, {}),
        ({"a": {"gpus": [{"index": 0, "name": None, "bus_id": "x"}] * 2}}, {}),
    ],
)
def test_nvlinks(hosts, found):
    assert told("gpu-nvlinks", **copy.deepcopy(hosts)) == found


def test_one_slow_link_of_many():
    gpus = with_links(18, 18)
    gpus["gpus"][1]["nvlinks"][4] = 1.562
    assert told("gpu-nvlinks", a=gpus) == {
        "a": ["GPU 1 (00000000:01:00.0): 18 active NVLinks of at least 1.562 GB/s"]
    }


def test_links_that_a_gpu_does_not_tell():
    gpus = with_links(18, None)
    gpus["gpus"][1]["unavailable"]["nvlinks"] = "Unable to get state: Unknown Error"
    assert told("gpu-nvlinks", a=gpus) == {
        "a": [
            "warn: GPU 1 (00000000:01:00.0): its NVLinks are unknown: Unable to get state: Unknown Error"
        ]
    }


def test_links_of_a_published_listing():
    """A V100 with two inactive links (Azure/azhpc-diagnostics#73)."""
    text = ""
    for gpu in range(4):
        text += "GPU %d: Tesla V100-SXM2-32GB (UUID: GPU-%d)\n" % (gpu, gpu)
        for link in range(6):
            active = gpu != 3 or link not in (3, 5)
            text += "         Link %d: %s\n" % (link, "25.781 GB/s" if active else "<inactive>")
    gpus = [
        dict(a_gpu(index, each["name"]), nvlinks=each["speeds"])
        for index, each in enumerate(nvlinks(text))
    ]
    assert told("gpu-nvlinks", a={"gpus": gpus}) == {
        "a": ["GPU 3 (00000000:03:00.0): 4 active NVLinks of 25.781 GB/s"]
    }


@pytest.mark.parametrize(
    "hosts, found",
    [
        ({"a": with_lanes(16, 8)}, {"a": ["GPU 1 (00000000:01:00.0) has 8"]}),
        (
            {"a": with_lanes(8, 8)},
            {"a": ["GPU %d (00000000:0%d:00.0) has 8" % (n, n) for n in (0, 1)]},
        ),
        # The lender of virtual GPUs is no virtual machine.
        ({"a": with_lanes(16, 8, mode="Host VGPU")}, {"a": ["GPU 1 (00000000:01:00.0) has 8"]}),
        # In a virtual machine it is a fault if another GPU has more.
        (
            {"a": with_lanes(16, 8, mode="Pass-Through")},
            {"a": ["GPU 1 (00000000:01:00.0) has 8"]},
        ),
        (
            {"a": with_lanes(16, mode="Pass-Through"), "b": with_lanes(8, mode="Pass-Through")},
            {"b": ["GPU 0 (00000000:00:00.0) has 8"]},
        ),
        (
            {"a": with_lanes(8, mode="Pass-Through"), "b": with_lanes(8, mode="VGPU")},
            {
                "a": ["warn: GPU 0 (00000000:00:00.0) has 8"],
                "b": ["warn: GPU 0 (00000000:00:00.0) has 8"],
            },
        ),
        # A riser that has lost lanes makes the GPU say that it has no more.
        (
            {
                "a": with_lanes(16, 16),
                "b": {
                    "gpus": [
                        a_gpu(0, "NVIDIA L40S"),
                        a_gpu(1, "NVIDIA L40S", pcie_width=8, pcie_width_max=8),
                    ]
                },
            },
            {"b": ["GPU 1 (00000000:01:00.0) has 8"]},
        ),
        # In order: a board whose second slot has fewer lanes, on both hosts and alone; another
        # model; a value that is not told.
        (
            {
                name: {
                    "gpus": [a_gpu(0, GEFORCE), a_gpu(1, GEFORCE, pcie_width=4, pcie_width_max=4)]
                }
                for name in ("a", "b")
            },
            {},
        ),
        ({"a": with_lanes(16, 16), "b": with_lanes(8, 8, model="NVIDIA L4", most=8)}, {}),
        ({"a": with_lanes(16, None)}, {}),
        ({"a": with_lanes(16, 16, most=None)}, {}),
    ],
)
def test_lanes_of_gpus(hosts, found):
    assert told("gpu-pcie-width", **hosts) == found


@pytest.mark.parametrize("capture", ["a10g.xml", "tesla-t4.xml"])
def test_a_virtual_machine_with_eight_of_sixteen_lanes(capture):
    """A published capture. Its fix does not send anybody to a data center."""
    path = ROOT / "tests/fixtures/nvidia-smi-xml" / capture
    gpus = parse_query(path.read_text(encoding="utf-8")).gpus
    variables = {"a": {"cluster_host": {"x": 1}, "__verify_gpus": {"gpus": gpus}}}
    members = [{"name": "a", "address": "10.0.0.1"}]
    found = _hardware.decide_verify_hardware(variables, members)["problems"]
    (problem,) = found["gpu-pcie-width"]["a"]
    assert problem["warn"] and "reseat" not in problem["fix"]
    assert (problem["expected"], problem["found"]) == (
        "16 PCIe lanes",
        "GPU 0 (00000000:00:1e.0) has 8",
    )
    # With one that has all of them it is a fault.
    gpus.append(dict(copy.deepcopy(gpus[0]), index=1, pcie_width=16))
    found = _hardware.decide_verify_hardware(variables, members)["problems"]
    (problem,) = found["gpu-pcie-width"]["a"]
    assert not problem["warn"] and "reseat" not in problem["fix"]


@pytest.mark.parametrize(
    "hosts, found",
    [
        (
            {"a": on_network(), "b": on_network(1000), "c": on_network()},
            {"b": ["eth0: 1000 Mb/s"]},
        ),
        # The names may differ.
        ({"a": on_network(name="ens1"), "b": on_network(1000)}, {"b": ["eth0: 1000 Mb/s"]}),
        # Not a card of the job.
        (
            {"a": on_network(used=False), "b": on_network(1000, used=False)},
            {"b": ["warn: eth0: 1000 Mb/s"]},
        ),
        # A member of a bond that has lost its link.
        (
            {
                name: dict(
                    on_network(used=False, above=["bond0"], up=name == "a"),
                    interfaces=[
                        an_interface("bond0", 200000, True, "10.0.0.1"),
                        an_interface("eth0", 100000 if name == "a" else None, name == "a"),
                    ],
                )
                for name in ("a", "b")
            },
            {"b": ["eth0: no link"]},
        ),
        # Another model, which may be all that it can.
        (
            {"a": on_network(), "b": on_network(10000, model="15b3:1015")},
            {"b": ["warn: eth0: 10000 Mb/s"]},
        ),
        # In order: a port without a cable on all hosts; speeds that nobody knows; a management port
        # on another model; RDMA devices; facts of before.
        ({name: on_network(None, up=False, used=False) for name in ("a", "b")}, {}),
        ({"a": on_network(None), "b": on_network(1000)}, {}),
        ({"a": on_network(), "b": on_network(1000, used=False, model="8086:1521")}, {}),
        ({"a": on_network(rdma=["mlx5_0"]), "b": on_network(1000, rdma=["mlx5_0"])}, {}),
        ({"a": on_network(), "b": {"interfaces": []}, "c": {}}, {}),
        ({"a": on_network(1000)}, {}),
    ],
)
def test_speed_of_interfaces(hosts, found):
    assert told("nic-speed", **hosts) == found


@pytest.mark.parametrize(
    "duplex, found", [("half", ["warn: eth0: half duplex"]), ("full", None), (None, None)]
)
def test_duplex_of_interfaces(duplex, found):
    """Also of a single host, and not of a bond, which is no card."""
    one = on_network(100)
    for interface in one["interfaces"]:
        interface["duplex"] = duplex
    one["interfaces"].append(dict(an_interface("bond9", 100), duplex="half"))
    assert told("nic-speed", a=one) == ({"a": found} if found else {})


AT = "0000:17:00.0 (mlx5_0): "


@pytest.mark.parametrize(
    "hosts, found",
    [
        # Generation 3 with 4 lanes.
        (
            {"a": slot(32.0, 16.0), "b": slot(8.0, 4.0)},
            {"b": [AT + "8 GT/s, 4 lanes"]},
        ),
        (
            {"a": slot(32.0, 16.0), "b": slot(32.0, 8.0), "c": slot(32.0, 16.0)},
            {"b": [AT + "32 GT/s, 8 lanes"]},
        ),
        # At another place the slot may have less, unless both say that they can more.
        (
            {"a": slot(32.0, 16.0), "b": slot(8.0, 4.0, bus_id="0000:99:00.0")},
            {"b": ["0000:99:00.0 (mlx5_0): 8 GT/s, 4 lanes"]},
        ),
        (
            {
                "a": slot(32.0, 16.0),
                "b": slot(16.0, 16.0, bus_id="0000:99:00.0", slot_gt_s_max=16.0),
            },
            {"b": ["warn: 0000:99:00.0 (mlx5_0): 16 GT/s, 16 lanes"]},
        ),
        # Nothing but its own maximum shows it.
        ({"a": slot(8.0, 16.0)}, {"a": ["warn: " + AT + "8 GT/s, 16 lanes"]}),
        # It carries no data of jobs.
        (
            {
                "a": on_network(used=False),
                "b": on_network(used=False, width=1.0),
            },
            {"b": ["warn: 0000:17:00.0 (eth0): 32 GT/s, 1 lanes"]},
        ),
        (
            {"a": on_network(), "b": on_network(width=1.0)},
            {"b": ["0000:17:00.0 (eth0): 32 GT/s, 1 lanes"]},
        ),
        # In order: a newer card in a slot of the generation before; a virtual machine that shows no
        # slot, or no link; other models.
        ({"a": slot(16.0, 16.0, slot_gt_s_max=16.0)}, {}),
        ({"a": slot(16.0, 16.0, slot_gt_s_max=None, slot_width_max=None)}, {}),
        ({"a": slot(None, None, gt_s_max=None), "b": slot(32.0, 16.0)}, {}),
        (
            {
                "a": slot(32.0, 16.0),
                "b": slot(8.0, 4.0, gt_s_max=8.0, width_max=4.0, model="8086:1521"),
            },
            {},
        ),
        # Two cards of a model, of which the second has a slot of 8 lanes on all hosts.
        (
            {
                name: {
                    "interfaces": [],
                    "network_cards": [
                        a_card(rdma=["mlx5_0"]),
                        a_card(
                            bus_id="0000:99:00.0",
                            rdma=["mlx5_1"],
                            width=8.0,
                            slot_width_max=8.0,
                        ),
                    ],
                }
                for name in ("a", "b")
            },
            {},
        ),
        ({"a": {}, "b": {"network_cards": []}}, {}),
    ],
)
def test_pcie_of_network_cards(hosts, found):
    assert told("nic-pcie", **hosts) == found


def test_a_host_that_did_not_answer_is_not_compared():
    found = _hardware.decide_verify_hardware(
        {"a": {}}, [{"name": "a", "address": "", "fabric_address": ""}]
    )
    assert found["problems"]["nic-pcie"] == {} and found["models"] == {}


def test_models_of_the_cluster():
    """As the bandwidth job compares them."""
    variables = {"a": {"cluster_host": {"x": 1}, "__verify_gpus": with_links(18, 18)}}
    members = [{"name": "a", "address": "", "fabric_address": ""}]
    assert _hardware.decide_verify_hardware(variables, members)["models"] == {
        H100: {"links": 18, "gb_s": 26.562, "nvlink": 478.116, "bridge": False, "known": True}
    }


V100 = "Tesla V100-SXM2-16GB"


def judged(check, **hosts):
    """Like told(), with the facts and addresses that are given, as pairs of the name and whether it
    is only a warning.
    """
    given = [
        {
            "name": name,
            "gpus": its.get("gpus", []),
            "facts": its,
            "addresses": ["10.0.0.1", "10.1.0.1"],
        }
        for name, its in hosts.items()
    ]
    models = gpu_models(given, lambda name: nvlinks_of(name, load_facts()))
    return {
        (name, entry["found"].partition(":")[0], entry["warn"])
        for name, entries in problems(given, models)[check].items()
        for entry in entries
    }


@pytest.mark.parametrize(
    "few, verdict",
    [
        # Without a switch, and with a part of a board, the number of links is that of the GPUs
        # beside it.
        (with_links(2, 2, model=V100, total=6), "warn"),
        (
            with_links(4, 4, model="NVIDIA A100-SXM4-40GB", virtualization_mode="Pass-Through"),
            "warn",
        ),
        # All links of this model go to a switch or to the other GPUs.
        (with_links(9, 9), "fail"),
        # One of its own peers has more.
        (with_links(2, 1, model=V100, total=6), "fail"),
    ],
)
def test_links_of_a_host_with_another_number_of_gpus(few, verdict):
    model = few["gpus"][0]["name"]
    most = {V100: 6, H100: 18}.get(model, 12)
    many = with_links(*[most] * 8, model=model, total=most)
    found = judged("gpu-nvlinks", a=many, b=few)
    assert {host for host, *_rest in found} == {"b"}
    assert (verdict == "warn") == all(is_warning for *_rest, is_warning in found)


def test_a_virtual_machine_that_the_driver_does_not_notice():
    hidden = dict(with_lanes(8, 8), virtual_machine=True)
    for host, is_warning in ((hidden, True), (with_lanes(8, 8), False)):
        found = judged("gpu-pcie-width", a=host)
        assert len(found) == 2 and {warns for *_rest, warns in found} == {is_warning}


def on_two_networks(cluster, fabric, names=("eno1", "eno2")):
    """Two ports of one model, with the addresses of the cluster and of the fabric network."""
    return {
        "interfaces": [
            an_interface(names[0], cluster, address="10.0.0.1"),
            an_interface(names[1], fabric, address="10.1.0.1"),
        ],
        "network_cards": [
            a_card(names[0], "8086:1563"),
            a_card(names[1], "8086:1563", "0000:17:00.1"),
        ],
    }


@pytest.mark.parametrize("names", [("eno1", "eno2"), ("eth0", "eth1")])
def test_ports_of_one_model_on_a_slow_and_a_fast_network(names):
    whole, other = on_two_networks(1000, 10000), on_two_networks(1000, 10000, names)
    assert judged("nic-speed", a=whole, b=other, c=whole) == set()
    slow = on_two_networks(1000, 1000, names)
    assert judged("nic-speed", a=whole, b=slow, c=whole) == {("b", names[1], False)}


def on_fabric(model=H100, state="active", driver="mlx5_core", facts=None, older=False, **changes):
    """A host with a GPU and an adapter, as far as GPUDirect RDMA depends on it."""
    read = {"peer_memory": True, "dma_buf": False, "redirected": [], "translated": []}
    devices = [{"name": "mlx5_0", "driver": driver, "ports": [{"state": state}]}]
    return {
        "gpus": [a_gpu(0, model)],
        "infiniband": {"devices": devices, "gpudirect": {} if older else dict(read, **changes)},
        "facts": dict({"architecture": "x86_64", "kernel": "5.4.0-1"}, **(facts or {})),
    }


NO_PEER_MEMORY = (
    "warn: nvidia-peermem is not loaded, and kernel and driver have no DMA-BUF (Linux 5.4.0-1)"
)


@pytest.mark.parametrize(
    "others, found",
    [
        ({"peer_memory": False}, [NO_PEER_MEMORY]),
        ({"peer_memory": False, "dma_buf": True}, []),
        (
            {"redirected": ["0000:15:%02x.0" % number for number in range(5)]},
            [
                "warn: Access Control Services send their data through the CPU at the ports 0000:15:00.0, 0000:15:01.0, 0000:15:02.0 and 2 more"
            ],
        ),
        (
            {"translated": ["0000:16:00.0"]},
            ["warn: the IOMMU translates the addresses of 0000:16:00.0"],
        ),
        ({"translated": ["0000:16:00.0"], "facts": {"architecture": "aarch64"}}, []),
        (
            {
                "translated": ["0000:16:00.0"],
                "redirected": ["0000:15:00.0"],
                "facts": {"virtual_machine": True},
            },
            [],
        ),
        # No cable, a driver with its own way, a card that cannot, a host that was read by an
        # earlier release.
        ({"peer_memory": False, "state": "down"}, []),
        ({"peer_memory": False, "driver": "efa"}, []),
        ({"peer_memory": False, "model": GEFORCE}, []),
        ({"older": True}, []),
    ],
)
def test_gpudirect(others, found):
    hosts = {"a": on_fabric(), "b": on_fabric(**others)}
    assert told("gpudirect", **hosts) == ({"b": found} if found else {})
    # All hosts may have it.
    assert set(told("gpudirect", a=on_fabric(**others), b=on_fabric(**others))) == (
        {"a", "b"} if found else set()
    )
    # Alone, and beside hosts without adapters, no data leaves the host by RDMA.
    assert told("gpudirect", b=on_fabric(**others), c=with_links(18, 18)) == {}


def an_adapter(name="mlx5_0", subnet="fe80:0000:0000:0001", **changes):
    port = {
        "port": 1,
        "state": "active",
        "link_layer": "infiniband",
        "transport": "infiniband",
        "gids": [{"gid": subnet + ":0002:c903:0000:1234"}],
        "nccl_gid_index": None,
    }
    device = {
        "name": name,
        "board_id": "MT_0000000838",
        "hca_type": "MT4129",
        "firmware": "28.39.1002",
        "driver": "mlx5_core",
        "numa_node": 0,
        "virtual_function": False,
    }
    port.update({key: value for key, value in changes.items() if key in port})
    device.update({key: value for key, value in changes.items() if key in device})
    return dict(device, ports=[port])


def with_adapters(*devices):
    return {"gpus": [], "facts": {}, "infiniband": {"devices": list(devices)}}


ROCE = {"link_layer": "ethernet", "transport": "roce", "nccl_gid_index": 3}


@pytest.mark.parametrize(
    "changes, found",
    [
        ({}, None),
        ({"firmware": "28.36.1010"}, "MT_0000000838: firmware 28.36.1010"),
        ({"driver": "mlx5_core_old"}, "mlx5_0: driver mlx5_core_old"),
        ({"numa_node": 1}, "mlx5_0: NUMA node 1"),
        # Rails that are exchanged.
        ({"subnet": "fe80:0000:0000:0002"}, "mlx5_0 port 1: subnet fe80:0000:0000:0002"),
        # Unknown, a port without a cable, a part of an adapter in a virtual machine.
        ({"numa_node": -1}, None),
        ({"firmware": None, "numa_node": None}, None),
        ({"state": "down", "link_layer": "ethernet"}, None),
        ({"virtual_function": True, "firmware": "1.2"}, None),
    ],
)
def test_adapters_that_differ_from_those_of_most_hosts(changes, found):
    hosts = {name: with_adapters(an_adapter()) for name in "abc"}
    hosts["d"] = with_adapters(an_adapter(**changes))
    assert told("fabric-alike", **hosts) == ({"d": ["warn: " + found]} if found else {})


def test_roce_adapters_that_differ():
    hosts = {name: with_adapters(an_adapter(**ROCE)) for name in "abc"}
    hosts["d"] = with_adapters(an_adapter(**dict(ROCE, nccl_gid_index=5)))
    assert told("fabric-alike", **hosts) == {"d": ["warn: mlx5_0 port 1: GID index 5"]}


def test_rails_of_roce_that_are_exchanged():
    """By the fabric network of their interfaces. On one network, and for a routed address of each port, there are none."""
    its = with_adapters(an_adapter(**ROCE))
    its["infiniband"]["devices"][0]["ports"][0]["netdev"] = "ens1"
    variables = {
        name: {
            "cluster_host": {"hostname": name},
            "__verify_infiniband": its["infiniband"],
        }
        for name in "abcd"
    }

    def members(*rails):
        return [
            dict(
                {"name": name, "address": "10.0.0.1"},
                **(
                    {"fabric_rails": [{"network": rail, "address": "x", "interface": "ens1"}]}
                    if rail
                    else {}
                ),
            )
            for name, rail in zip("abcd", rails)
        ]

    def told_of(*rails):
        found = _hardware.decide_verify_hardware(variables, members(*rails))["problems"]
        return {
            name: [(each["expected"], each["found"]) for each in entries]
            for name, entries in found["fabric-alike"].items()
            if entries
        }

    one, other = "10.1.0.0/24", "10.1.1.0/24"
    assert told_of(one, one, other, one) == {
        "c": [
            ("rail 10.1.0.0/24, as on a, b, d", "mlx5_0 port 1: rail 10.1.1.0/24"),
        ]
    }
    assert told_of(one, one, one, one) == {} and told_of("", "", "", "") == {}


def test_releases_of_drivers_and_places_of_gpus():
    """Each host has one adapter and two GPUs."""

    def host(ofed="MLNX_OFED_LINUX-5.8-3.0.7.0", nodes=(0, 1)):
        its = with_adapters(an_adapter())
        addresses = ("0000:1b:00.0", "0000:9b:00.0")
        its["infiniband"].update(
            ofed=ofed, gpudirect={"gpu_numa_nodes": dict(zip(addresses, nodes))}
        )
        return its

    assert told("fabric-alike", a=host(), b=host(), c=host()) == {}
    assert told("fabric-alike", a=host(), b=host(), c=host(ofed="")) == {
        "c": ["warn: adapters: release of the driver that of the kernel"]
    }
    assert told("fabric-alike", a=host(), b=host(), c=host(nodes=(0, 0))) == {
        "c": ["warn: 0000:9b:00.0: NUMA node of the GPU 0"]
    }
    # A host that does not say, and one without such a GPU.
    assert told("fabric-alike", a=host(), b=host(), c=host(nodes=())) == {}
    # Another model of server has GPUs at other addresses, and one of them at the same.
    assert told("fabric-alike", a=host(), b=host(), c=host(nodes=(1,))) == {}
    # An adapter of another vendor has no such driver.
    other = host(ofed="")
    other["infiniband"]["devices"][0]["driver"] = "bnxt_re"
    found = told("fabric-alike", a=host(), b=host(), c=other)
    assert "release" not in str(found) and "driver bnxt_re" in str(found)


@pytest.mark.parametrize(
    "governors, found",
    [
        ([{"performance": 64}, {"performance": 64}, {"performance": 64}], {}),
        # Intel's default. The driver chooses the clock.
        ([{"powersave of intel_pstate": 64}, {"powersave of intel_pstate": 32}], {}),
        ([{"schedutil": 64}, {"schedutil": 64}], {}),
        # Virtual machines, and facts of an earlier release.
        ([{}, None, {"performance": 64}], {}),
        (
            [{"powersave": 64}, {"powersave": 64}],
            {
                "a": [("governor performance", "governor powersave of 64 CPUs")],
                "b": [("governor performance", "governor powersave of 64 CPUs")],
            },
        ),
        (
            [{"performance": 64}, {"performance": 60, "powersave": 4}, {"performance": 64}],
            {
                "b": [
                    (
                        "governor performance, as on a, c",
                        "governor performance of 60 CPUs, powersave of 4 CPUs",
                    )
                ]
            },
        ),
        (
            [{"performance": 64}, {"performance": 64}, {"schedutil": 64}],
            {"c": [("governor performance, as on a, b", "governor schedutil of 64 CPUs")]},
        ),
        # The fast one of two is not told to become as the other.
        (
            [{"schedutil": 64}, {"performance": 64}],
            {"a": [("governor performance, as on b", "governor schedutil of 64 CPUs")]},
        ),
        # Each driver chooses the clock.
        ([{"powersave of intel_pstate": 64}] * 2 + [{"powersave of amd-pstate-epp": 8}], {}),
    ],
)
def test_governors(governors, found):
    variables = {
        name: {"cluster_host": {"hostname": name, "governors": its}}
        for name, its in zip("abc", governors)
    }
    members = [{"name": name, "address": "10.0.0.1"} for name in variables]
    told_of = _hardware.decide_preflight_hardware(variables, members)["cpu-governor"]
    assert {
        name: [(each["expected"], each["found"]) for each in entries]
        for name, entries in told_of.items()
    } == found


def test_preflight_judges_what_needs_no_link_of_a_gpu():
    found = _hardware.decide_preflight_hardware({"a": {}}, [{"name": "a", "address": ""}])
    assert found == dict.fromkeys(
        ("cpu-governor", "fabric-alike", "gpudirect", "nic-pcie", "nic-speed"), {}
    )


def test_two_firmwares_on_each_host_are_no_difference():
    both = with_adapters(an_adapter(), an_adapter("mlx5_1", firmware="28.36.1010"))
    assert told("fabric-alike", a=both, b=both) == {}
    # Of two hosts one is the measure.
    one = with_adapters(an_adapter(), an_adapter("mlx5_1"))
    assert list(told("fabric-alike", a=both, b=one)) == ["b"]


def test_gpudirect_names_a_peer():
    its = _hardware.decide_verify_hardware
    variables = {
        name: {
            "cluster_host": {"hostname": name},
            "__verify_gpus": host,
            "__verify_infiniband": host["infiniband"],
        }
        for name, host in (("a", on_fabric()), ("b", on_fabric(peer_memory=False)))
    }
    members = [{"name": name, "address": "10.0.0.1"} for name in variables]
    (entry,) = its(variables, members)["problems"]["gpudirect"]["b"]
    assert entry["expected"].endswith(", as on a") and "modprobe nvidia-peermem" in entry["fix"]
