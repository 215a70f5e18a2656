"""Network settings of NCCL, Gloo, MPI and Horovod."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.trainyard.gpu.plugins.filter.network_settings import FilterModule

CLUSTER, FABRIC = "10.0.0.0/24", "169.254.0.0/16"


def rdma(*devices, transport="infiniband", gid_index=None):
    return {
        "transport": transport,
        "rate_gb_s": 200.0,
        "devices": list(devices or ["mlx5_0"]),
        "gid_index": gid_index,
    }


def member(name, interface="bond0", fabric="ib0", on=None, slots=8):
    return {
        "name": name,
        "interface": interface,
        "fabric_interface": fabric,
        "fabric_rdma": on,
        "slots": slots,
    }


def settings(*members, launcher="torchrun", fabric=FABRIC):
    return FilterModule().filters()["network_settings"](list(members), launcher, CLUSTER, fabric)


def test_ethernet_and_one_network():
    told = settings(
        member("a", "eth0", "eth0"),
        dict(member("b", "eth0", "eth0"), fabric_address="10.0.0.2"),
        fabric=CLUSTER,
    )
    assert told == {
        "interface": "eth0",
        "problems": [],
        "notes": [],
        "addresses": {"a": "", "b": "10.0.0.2"},
        "environment": {
            name: {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "=eth0"} for name in "ab"
        },
    }


def test_data_takes_the_fabric():
    assert settings(member("a"), member("b"))["environment"]["b"] == {
        "GLOO_SOCKET_IFNAME": "ib0",
        "NCCL_SOCKET_IFNAME": "=ib0",
    }


@pytest.mark.parametrize(
    "launcher, socket", [("torchrun", "=bond0"), ("mpirun", "=bond0"), ("horovodrun", "=ib0")]
)
def test_infiniband_carries_the_data_and_the_host_network_the_rendezvous(launcher, socket):
    """Source 004: sockets on bond0, data on mlx5_0. horovodrun has one name for both."""
    told = settings(
        member("a", on=rdma("mlx5_0", "mlx5_1")),
        member("b", on=rdma("mlx5_0", "mlx5_1")),
        launcher=launcher,
    )
    of_a = told["environment"]["a"]
    assert (of_a["NCCL_SOCKET_IFNAME"], of_a["NCCL_IB_HCA"], of_a["GLOO_SOCKET_IFNAME"]) == (
        socket,
        "=mlx5_0,mlx5_1",
        "ib0",
    )
    assert (
        "NCCL_IB_GID_INDEX" not in of_a and told["environment"]["b"] == of_a and told["notes"] == []
    )


def test_roce_has_a_gid_index_of_each_host():
    told = settings(
        member("a", on=rdma(transport="roce", gid_index=3)),
        member("b", on=rdma("mlx5_2", transport="roce", gid_index=0)),
    )
    assert [
        (each["NCCL_IB_HCA"], each["NCCL_IB_GID_INDEX"]) for each in told["environment"].values()
    ] == [("=mlx5_0", "3"), ("=mlx5_2", "0")]
    # Several devices with several indexes: NCCL finds them.
    assert (
        "NCCL_IB_GID_INDEX"
        not in settings(member("a", on=rdma(transport="roce")))["environment"]["a"]
    )


def test_horovodrun_gives_one_value_to_all_ranks():
    hosts = [
        member("a", on=rdma(transport="roce", gid_index=3)),
        member("b", on=rdma("mlx5_2", transport="roce", gid_index=3)),
    ]
    told = settings(*hosts, launcher="horovodrun")
    assert told["environment"]["a"] == told["environment"]["b"]
    assert [
        told["environment"]["a"][name]
        for name in ("NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "HOROVOD_GLOO_IFACE")
    ] == ["=mlx5_0,mlx5_2", "3", "ib0"]
    assert told["notes"] == [
        "NCCL_IB_HCA is =mlx5_0,mlx5_2 for all ranks, because horovodrun has one value for them, from which NCCL uses what a host has: "
        "=mlx5_0 on a, =mlx5_2 on b"
    ]
    # An index is no list.
    hosts[1]["fabric_rdma"]["gid_index"] = 5
    told = settings(*hosts, launcher="horovodrun")
    assert "NCCL_IB_GID_INDEX" not in told["environment"]["a"]
    assert (
        told["notes"][0]
        == "NCCL_IB_GID_INDEX is not set, because horovodrun has one value for all ranks: 3 on a, 5 on b"
    )


@pytest.mark.parametrize("second, word", [(None, "none"), (rdma(transport="roce"), "roce")])
def test_hosts_without_one_transport_take_sockets(second, word):
    told = settings(member("a", on=rdma()), member("b", on=second))
    assert all(
        (each["NCCL_IB_DISABLE"], each["NCCL_SOCKET_IFNAME"]) == ("1", "=ib0")
        and "NCCL_IB_HCA" not in each
        for each in told["environment"].values()
    )
    assert told["notes"] == [
        "NCCL uses sockets, because the hosts have no common RDMA transport on 169.254.0.0/16: infiniband on a, %s on b"
        % word
    ]


def test_names_that_differ():
    hosts = [member("a"), member("b", "ens3", "ibp1s0")]
    for launcher, names in (
        ("torchrun", ["=ib0", "=ibp1s0"]),
        ("mindspore", ["=ib0", "=ibp1s0"]),
        ("mpirun", ["=ib0,ibp1s0"] * 2),
    ):
        told = settings(*hosts, launcher=launcher)
        assert (told["problems"], told["interface"]) == ([], "")
        assert [each["NCCL_SOCKET_IFNAME"] for each in told["environment"].values()] == names
    assert "GLOO_SOCKET_IFNAME" not in told["environment"]["a"] and told["notes"][0].endswith(
        "ib0 on a, ibp1s0 on b"
    )
    assert settings(*hosts, launcher="horovodrun")["problems"] == [
        "horovodrun gives one interface name to all ranks, but on 169.254.0.0/16 it is ib0 on a, ibp1s0 on b"
    ]
    # One that has no rank has no say; nor has the cluster network's name, as Open MPI is told the
    # network.
    assert settings(hosts[0], dict(hosts[1], slots=0), launcher="horovodrun")["problems"] == []
    assert settings(hosts[0], member("b", "ens3"), launcher="horovodrun")["problems"] == []


def test_open_mpi_is_told_the_networks():
    for launcher in ("horovodrun", "mpirun"):
        of_a = settings(member("a"), launcher=launcher)["environment"]["a"]
        assert (of_a["OMPI_MCA_oob_tcp_if_include"], of_a["OMPI_MCA_btl_tcp_if_include"]) == (
            CLUSTER,
            FABRIC,
        )
    assert [
        name for name in settings(member("a"))["environment"]["a"] if name.startswith("OMPI")
    ] == []


def test_a_host_without_a_known_interface():
    assert settings(member("a"), member("b", fabric=""))["problems"] == [
        "b: no interface on the network 169.254.0.0/16 is known"
    ]


def test_launcher():
    with pytest.raises(
        AnsibleFilterError, match="'srun'; use one of horovodrun, torchrun, mpirun, mindspore"
    ):
        settings(member("a"), launcher="srun")
