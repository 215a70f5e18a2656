"""Checks of observations while ranks worked: each defect fails exactly its own check."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _bandwidth
from ansible_collections.trainyard.gpu.plugins.plugin_utils import _bandwidth_tool
from ansible_collections.trainyard.gpu.plugins.plugin_utils._watched import (
    fabric_counters,
    gpus_busy,
    nccl_transport,
)

FIXTURES = Path(__file__).parents[3] / "fixtures/nccl-transport"
HOSTS = ["a", "b"]
MUST = 1.5 * (1 << 30) * 20
IB = _bandwidth.card("mlx5_0", "200 Gb/sec (4X HDR)", True)
ETHERNET = _bandwidth.card("eth0", "25000")


def facts(*cards, nvlink=300.0, gpus=2):
    return {
        host: {
            "cards": list(cards),
            "gpus": [{"nvlink": nvlink, "pcie": 31.5}] * gpus,
            "interface": "eth0",
        }
        for host in HOSTS
    }


def watched(via=(), **changes):
    """Two hosts of two GPUs each in order: 20 messages of 1 GiB between four ranks."""
    seen = {
        "ranks": 2,
        "sent_bytes": MUST * 1.02,
        "received_bytes": MUST * 1.02,
        "gpus": [99, 98],
        "via": list(via),
    }
    return {
        "ranks": 4,
        "size_bytes": 1 << 30,
        "iterations": 20,
        "error": "",
        "hosts": {"a": copy.deepcopy(seen), "b": dict(seen, **changes)},
    }


def counters(collective="nccl", cards=(IB,), **changes):
    return fabric_counters(watched(**changes), facts(*cards), "b", collective)


def test_data_over_the_fabric():
    check = counters()
    assert (check["id"], check["host"], check["verdict"]) == ("fabric-counters", "b", "pass")
    assert (
        check["expected"] == "32.2 GB each way over mlx5_0, within 20 %"
        and check["found"] == "sent 32.9 GB (+2 %); received 32.9 GB (+2 %)"
    )
    assert check["source"] == "counters of the fabric's cards in sysfs"


@pytest.mark.parametrize(
    "changes, verdict",
    [
        ({"sent_bytes": MUST * 0.81}, "pass"),
        ({"sent_bytes": MUST * 0.79}, "fail"),
        ({"received_bytes": MUST * 0.79}, "fail"),
        ({"sent_bytes": 0, "received_bytes": 0}, "fail"),
        ({"sent_bytes": -5}, "fail"),
        ({"received_bytes": MUST * 1.19}, "pass"),
        ({"received_bytes": MUST * 1.21}, "warn"),
        ({"sent_bytes": MUST * 3}, "warn"),
        # One way too little is worse than the other one too much.
        ({"sent_bytes": 0, "received_bytes": MUST * 3}, "fail"),
    ],
)
def test_counters_that_did_not_grow_as_they_should(changes, verdict):
    check = counters(**changes)
    assert check["verdict"] == verdict and bool(check["fix"]) == (verdict != "pass")
    assert fabric_counters(watched(**changes), facts(IB), "a", "nccl")["verdict"] == "pass"


def test_counters_that_nobody_can_read():
    check = counters(sent_bytes=None, received_bytes=None)
    assert (check["verdict"], check["found"]) == ("skipped", "mlx5_0 has no readable counters")


@pytest.mark.parametrize(
    "collective, size, iterations, ranks, verdict",
    [
        ("gloo", 1 << 16, 5, 2, "skipped"),
        ("gloo", 1 << 16, 1000, 2, "pass"),
        # Pieces of 512 bytes: their headers alone are a fifth.
        ("gloo", 1 << 16, 1000, 64, "skipped"),
        ("nccl", 1 << 16, 1000, 64, "pass"),
    ],
)
def test_traffic_too_small_to_be_told_from_others(collective, size, iterations, ranks, verdict):
    must = _bandwidth.must_move(size, iterations, ranks)
    given = dict(
        watched(sent_bytes=must, received_bytes=must),
        ranks=ranks,
        size_bytes=size,
        iterations=iterations,
    )
    assert fabric_counters(given, facts(ETHERNET), "b", collective)["verdict"] == verdict


LEAST = 100 << 30


@pytest.mark.parametrize(
    "sent, verdict",
    [
        (LEAST * 0.81, "pass"),
        (LEAST * 0.79, "fail"),
        (0, "fail"),
        (-1, "fail"),
        (LEAST * 2.5, "pass"),
        (LEAST * 2.64 + 1, "warn"),
    ],
)
@pytest.mark.parametrize("way", ["sent_bytes", "received_bytes"])
def test_counters_of_an_algorithm_that_is_not_known(sent, verdict, way):
    """Once what was reduced at least, twice at most, each with the tolerance."""
    other = {"sent_bytes": LEAST, "received_bytes": LEAST}
    given = dict(
        watched(**dict(other, **{way: sent})), ring=False, reduced_bytes=[LEAST, LEAST * 1.1]
    )
    check = fabric_counters(given, facts(IB), "b", "nccl")
    assert check["verdict"] == verdict and bool(check["fix"]) == (verdict != "pass")
    assert (
        check["expected"]
        == "107 GB to 236 GB, depending on NCCL's algorithm, each way over mlx5_0, within 20 %"
    )


def test_reduced_bytes_of_one_size():
    """Of Horovod by NCCL: what a ring moves is between the bounds."""
    check = fabric_counters(dict(watched(), ring=False), facts(IB), "b", "nccl")
    assert (check["verdict"], check["found"]) == ("pass", "sent 32.9 GB; received 32.9 GB")
    assert check["expected"].startswith("21.5 GB to 42.9 GB")


@pytest.mark.parametrize("more", [{}, {"transports": ["P2P/MNNVL"]}])
def test_nvlink_between_hosts_is_not_counted(more):
    given = dict(
        watched(via=() if more else [" via P2P/MNNVL"], sent_bytes=0, received_bytes=0), **more
    )
    check = fabric_counters(given, facts(IB), "b", "nccl")
    assert check["verdict"] == "skipped" and "P2P/MNNVL" in check["found"]
    assert (
        fabric_counters(dict(given, transports=["NET/IB", "P2P/CUMEM"]), facts(IB), "b", "nccl")[
            "verdict"
        ]
        == "fail"
    )


def test_gpus_of_a_short_run():
    """The highest figures of all_reduce_perf's run: to be seen at all is enough."""
    check = gpus_busy(dict(watched(gpus=[5, 6]), in_use=5), "b")
    assert (check["verdict"], check["expected"]) == ("pass", "2 GPUs in use (5 % or more)")
    assert (
        gpus_busy(dict(watched(gpus=[4, 60]), in_use=5), "b")["verdict"] == "fail"
        and gpus_busy(watched(gpus=[5, 60]), "b")["verdict"] == "fail"
    )


@pytest.mark.parametrize(
    "gpus, verdict, found",
    [
        ([99, 50], "pass", "2: GPU 0 99 %, GPU 1 50 %"),
        ([99, 49], "fail", "1: GPU 0 99 %, GPU 1 49 %"),
        ([0, 0], "fail", "0: GPU 0 0 %, GPU 1 0 %"),
        # The job was given two of four.
        ([0, 99, 98, 0], "pass", "2: GPU 0 0 %, GPU 1 99 %, GPU 2 98 %, GPU 3 0 %"),
        ([99, None], "skipped", "nvidia-smi reports the use of 1 GPU only"),
        ([], "skipped", "nvidia-smi reports the use of 0 GPUs only"),
    ],
)
def test_gpus_in_use(gpus, verdict, found):
    check = gpus_busy(watched(gpus=gpus), "b")
    assert (check["id"], check["verdict"], check["found"]) == (
        "gpus-busy",
        verdict,
        found,
    ) and bool(check["fix"]) == (verdict == "fail")
    assert (
        check["expected"] == "2 GPUs in use (50 % or more)"
        and gpus_busy(watched(gpus=gpus), "a")["verdict"] == "pass"
    )


NVLINK = [" via P2P/CUMEM/read", " via P2P/IPC"]


@pytest.mark.parametrize(
    "via, cards, nvlink, verdict, found",
    [
        (
            [" via NET/IB/0/GDRDMA", " via NET/IB/1"] + NVLINK,
            [IB],
            300,
            "pass",
            "NET/IB, P2P/CUMEM, P2P/IPC",
        ),
        ([" via NET/Socket/0"] + NVLINK, [IB], 300, "fail", "NET/Socket, P2P/CUMEM, P2P/IPC"),
        (
            [" via NET/Socket/0", " via NET/IB/0"] + NVLINK,
            [IB],
            300,
            "fail",
            "NET/IB, NET/Socket, P2P/CUMEM, P2P/IPC",
        ),
        (
            [" via NET/FastSocket/0"] + NVLINK,
            [IB],
            300,
            "fail",
            "NET/FastSocket, P2P/CUMEM, P2P/IPC",
        ),
        (
            [" via NET/AWS Libfabric/0/GDRDMA"] + NVLINK,
            [IB],
            300,
            "pass",
            "NET/AWS Libfabric, P2P/CUMEM, P2P/IPC",
        ),
        # Not all have RDMA: then sockets are used.
        ([" via NET/Socket/0"] + NVLINK, [ETHERNET], 300, "pass", "NET/Socket, P2P/CUMEM, P2P/IPC"),
        (NVLINK, [IB], 300, "fail", "P2P/CUMEM, P2P/IPC; none between hosts"),
        # Racks whose NVLink reaches over several hosts.
        ([" via P2P/MNNVL"], [IB], 300, "pass", "P2P/MNNVL"),
        ([" via NET/IB/0", " via SHM/direct/direct"], [IB], 300, "warn", "NET/IB, SHM/direct"),
        ([" via NET/IB/0", " via SHM/direct/direct"], [IB], 0, "pass", "NET/IB, SHM/direct"),
        ([], [IB], 300, "skipped", ""),
    ],
)
def test_transports(via, cards, nvlink, verdict, found):
    check = nccl_transport(watched(via=via), facts(*cards, nvlink=nvlink), HOSTS)
    assert (check["id"], check["host"], check["verdict"]) == ("nccl-transport", "a, b", verdict)
    assert check["found"] == (found or "NCCL's log names no connection") and bool(check["fix"]) == (
        verdict in ("fail", "warn")
    )


SHM = [" via NET/IB/0", " via SHM/direct/direct"]


def test_a_gpu_without_active_links_does_not_make_host_memory_good():
    """It has lost its links, and NCCL goes around it."""
    one_lost, all_lost = facts(IB, gpus=4), facts(IB, gpus=4)
    one_lost["b"]["gpus"] = one_lost["b"]["gpus"][:3] + [{"nvlink": 0.0, "pcie": 31.5}]
    all_lost["b"]["gpus"] = [{"nvlink": 0.0, "pcie": 31.5}] * 4
    for given in (one_lost, all_lost):
        check = nccl_transport(watched(via=SHM), given, HOSTS)
        assert check["verdict"] == "warn" and "on a host NVLink (P2P)" in check["expected"]
        assert nccl_transport(watched(via=SHM), {"b": one_lost["b"]}, ["b"])["verdict"] == "warn"


def test_a_host_without_nvlink_does_not_hide_one_with_it():
    """GPUs of another model connect by the host's memory, as they should."""
    mixed = facts(IB)
    mixed["b"]["gpus"] = [{"nvlink": 0.0, "pcie": 31.5, "model": "NVIDIA L40S"}] * 2
    assert nccl_transport(watched(via=SHM), mixed, HOSTS)["verdict"] == "warn"
    given = watched(via=[" via NET/IB/0"] + NVLINK)
    given["hosts"]["b"]["via"] = SHM
    assert nccl_transport(given, mixed, HOSTS)["verdict"] == "pass"
    # The log of all_reduce_perf is one for all hosts.
    assert (
        nccl_transport(dict(given, transports=["NET/IB", "SHM/direct"]), mixed, HOSTS)["verdict"]
        == "pass"
    )


def test_a_host_that_takes_sockets_alone():
    given = watched(via=[" via NET/IB/0"])
    given["hosts"]["b"]["via"] = [" via NET/Socket/0"]
    assert nccl_transport(given, facts(IB), HOSTS)["verdict"] == "fail"


GDR, STAGED = [" via NET/IB/0/GDRDMA"] + NVLINK, [" via NET/IB/0(4)/Shared"] + NVLINK


@pytest.mark.parametrize(
    "given, changes, found",
    [
        ((GDR, STAGED), {}, "; no GPUDirect RDMA on b, unlike a"),
        ((STAGED, GDR), {}, "; no GPUDirect RDMA on a, unlike b"),
        ((GDR, STAGED), {"nvlink": 0.0}, "; no GPUDirect RDMA on b, unlike a"),
        ((STAGED, STAGED), {}, "; no GPUDirect RDMA on any host"),
        ((GDR, GDR), {}, ""),
        # A card that is far from its GPU.
        ((GDR, GDR + STAGED), {}, ""),
        # On PCIe, cards may be far from all GPUs.
        ((STAGED, STAGED), {"nvlink": 0.0}, ""),
        # Of GeForce cards no adapter can read the memory.
        ((STAGED, STAGED), {"model": "NVIDIA GeForce RTX 3090"}, ""),
        # Other networks have another way.
        (([" via NET/AWS Libfabric/0"] + NVLINK,) * 2, {}, ""),
    ],
)
def test_gpudirect(given, changes, found):
    seen = watched(via=given[0])
    seen["hosts"]["b"]["via"] = given[1]
    its = facts(IB, nvlink=changes.get("nvlink", 300.0))
    for host in its.values():
        host["gpus"] = [dict(gpu, model=changes.get("model", "H100")) for gpu in host["gpus"]]
    check = nccl_transport(seen, its, HOSTS)
    assert check["verdict"] == ("warn" if found else "pass")
    assert check["found"].endswith(found or "P2P/IPC") and "gpudirect" in check[
        "fix"
    ] + "gpudirect" * (not found)


def test_gpudirect_of_hosts_with_other_gpus():
    """They are not held against each other."""
    its, seen = facts(IB), watched(via=GDR)
    its["b"]["gpus"] = [{"nvlink": 300.0, "pcie": 31.5, "model": "NVIDIA V100"}] * 2
    seen["hosts"]["b"]["via"] = STAGED
    assert nccl_transport(seen, its, HOSTS)["verdict"] == "pass"


def test_gpudirect_in_a_whole_log():
    """As the log of all_reduce_perf has it, which is one for all hosts."""
    line = "%s:12:34 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0%s\n"
    found = _bandwidth.rdma_connections(line % ("a", "/GDRDMA") + line % ("b.example", ""))
    assert found == {
        "a": {"gpudirect": True, "devices": [0]},
        "b.example": {"gpudirect": False, "devices": [0]},
    }
    assert (
        _bandwidth.rdma_connections("b:1:2 [0] NCCL INFO Using network IB\n via NET/Socket/0\n")
        == {}
    )
    seen = dict(
        watched(), transports=["NET/IB"], over_rdma={"a": found["a"], "b": found["b.example"]}
    )
    assert nccl_transport(seen, facts(IB), HOSTS)["found"].endswith(
        "; no GPUDirect RDMA on b, unlike a"
    )


def test_names_of_hosts_in_a_whole_log():
    """A host is known by its short name. A line without one is of all hosts."""
    direct, staged = ({"gpudirect": each, "devices": [0]} for each in (True, False))
    gpus = {"a": 2, "b": 2}
    told = {"over_rdma": {"a": direct, "b.example": staged, "b": dict(staged, devices=[1])}}
    assert _bandwidth_tool._over_rdma(told, gpus) == {
        "a": direct,
        "b": dict(staged, devices=[0, 1]),
    }
    assert _bandwidth_tool._over_rdma({"over_rdma": {"": staged}}, gpus) == {
        "a": staged,
        "b": staged,
    }


def test_a_host_that_uses_fewer_rails():
    """Two rails, of which NCCL uses one on b, unless b has other cards or other GPUs."""
    other = _bandwidth.card("mlx5_1", "200 Gb/sec (4X HDR)", True)
    seen, its = watched(via=[*GDR, " via NET/IB/1/GDRDMA"]), facts(IB, other)
    seen["hosts"]["b"]["via"] = GDR
    check = nccl_transport(seen, its, HOSTS)
    assert check["verdict"] == "warn" and "NCCL_IB_HCA" in check["fix"]
    assert check["found"].endswith("; b uses network device 0 of NCCL's log, a uses 0, 1")
    its["b"]["cards"] = [IB]
    assert nccl_transport(seen, its, HOSTS)["verdict"] == "pass"
    its = facts(IB, other)
    its["b"]["gpus"] = its["b"]["gpus"][:1]
    assert nccl_transport(seen, its, HOSTS)["verdict"] == "pass"


@pytest.mark.parametrize(
    "moved, told",
    [
        # NCCL's log has both devices on both hosts, and one of b carries nothing but other traffic.
        (
            {"mlx5_0": 60 << 30, "mlx5_1": 1 << 20},
            "; the data of b went over mlx5_0, that of a over mlx5_0, mlx5_1",
        ),
        ({"mlx5_0": 30 << 30, "mlx5_1": 29 << 30}, ""),
        # Nothing is told by counters that are not known, or of a job that moved little.
        ({"mlx5_0": 60 << 30, "mlx5_1": None}, ""),
        ({"mlx5_0": 3 << 20, "mlx5_1": 0}, ""),
        ({}, ""),
    ],
)
def test_a_rail_whose_card_carries_nothing(moved, told):
    """The counters of each card count, before what NCCL has connected."""
    other = _bandwidth.card("mlx5_1", "200 Gb/sec (4X HDR)", True)
    both = [*GDR, " via NET/IB/1/GDRDMA"]
    seen, its = watched(via=both, by_card=moved), facts(IB, other)
    seen["hosts"]["b"]["via"] = both
    seen["hosts"]["a"]["by_card"] = {"mlx5_0": 30 << 30, "mlx5_1": 30 << 30}
    check = nccl_transport(seen, its, HOSTS)
    assert (check["verdict"], "NCCL_IB_HCA" in check["fix"]) == (
        ("warn", True) if told else ("pass", False)
    )
    assert check["found"].endswith(told)


def test_counters_count_although_the_log_names_fewer_devices():
    """One device in NCCL's log may stand for several cards that it has merged."""
    other = _bandwidth.card("mlx5_1", "200 Gb/sec (4X HDR)", True)
    seen = watched(via=[*GDR, " via NET/IB/1/GDRDMA"])
    seen["hosts"]["b"]["via"] = GDR
    for host in HOSTS:
        seen["hosts"][host]["by_card"] = {"mlx5_0": 30 << 30, "mlx5_1": 30 << 30}
    assert nccl_transport(seen, facts(IB, other), HOSTS)["verdict"] == "pass"


def test_alone_there_is_no_network():
    given = watched(via=NVLINK)
    check = nccl_transport(given, facts(IB), ["a"])
    assert (check["verdict"], check["expected"]) == ("pass", "on a host NVLink (P2P)")


@pytest.mark.parametrize(
    "fixture, cards, verdict",
    [
        ("net-ib-and-shm-2node-4gpu-first900.txt", [IB], "pass"),
        ("roce-ib-v100-4gpu.txt", [IB], "skipped"),
        ("cxi-aws-libfabric-pytorch.txt", [IB], "pass"),
        ("net-ib-roce-2node-2gpu.txt", [IB], "pass"),
        ("socket-pytorch-resnet.txt", [ETHERNET], "pass"),
        ("socket-pytorch-resnet.txt", [IB], "fail"),
        ("horovod-bert-tagged-socket.txt", [IB], "fail"),
        # 'Using network Socket' is not a connection, so there is none between hosts.
        ("p2p-direct-pointer-using-network-socket.txt", [ETHERNET], "fail"),
    ],
)
def test_real_logs(fixture, cards, verdict):
    """As files/all_reduce.py of role verify takes them out of the log."""
    lines = (FIXTURES / fixture).read_text(encoding="utf-8", errors="replace").splitlines()
    via = sorted({line[line.index(" via ") :].rstrip() for line in lines if " via " in line})
    assert nccl_transport(watched(via=via), facts(*cards, nvlink=0.0), HOSTS)["verdict"] == verdict
