"""The networks of a cluster, and address and interface of each host in them."""

from __future__ import annotations

import ipaddress

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _cluster


def host(*interfaces, default="eth0", gpus=0, speeds=(), rdma=()):
    return {
        "rdma_ports": list(rdma),
        "interfaces": [
            {
                "name": name,
                "addresses": [
                    dict(zip(("address", "prefix"), (text.split("/")[0], int(text.split("/")[1]))))
                    for text in addresses
                ],
                "up": up,
                "speed_mbit_s": dict(speeds).get(name),
            }
            for name, up, addresses in interfaces
        ],
        "default_interface": default,
        "gpus": gpus,
    }


LO = ("lo", True, ["127.0.0.1/8", "::1/128"])
DOCKER0 = ("docker0", True, ["172.17.0.1/16"])
ETH0 = ("eth0", True, ["10.0.0.11/24", "fe80::1/64"])
BOND0 = ("bond0", True, ["192.168.5.11/22"])
IB0 = ("ib0", True, ["169.254.3.11/16"])
SERVER = host(LO, DOCKER0, ETH0, BOND0, IB0)


@pytest.mark.parametrize(
    "inventory_address, info, expected",
    [
        ("192.168.5.11", SERVER, "192.168.4.0/22"),
        ("169.254.3.11", SERVER, "169.254.0.0/16"),
        ("203.0.113.7", SERVER, "10.0.0.0/24"),
        ("server-a", SERVER, "10.0.0.0/24"),
        ("127.0.0.1", SERVER, "10.0.0.0/24"),
        ("172.17.0.1", SERVER, "10.0.0.0/24"),
        (
            "server-a",
            host(LO, ("ens5", True, ["fe80::1/64", "2001:db8::5/64"]), default="ens5"),
            "2001:db8::/64",
        ),
        ("server-a", host(LO, DOCKER0, default=""), ""),
        ("10.0.0.11", host(("eth0", False, ["10.0.0.11/24"])), ""),
    ],
)
def test_network_of_the_head(inventory_address, info, expected):
    assert _cluster.find_network(info, inventory_address) == expected


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ({"network": "10.0.0.0/24"}, ("10.0.0.11", "eth0")),
        ({"network": "10.0.0.0/8"}, ("10.0.0.11", "eth0")),
        ({"network": "169.254.0.0/16"}, ("169.254.3.11", "ib0")),
        ({"network": "172.16.0.0/12"}, ("", "")),
        ({"network": ""}, ("", "")),
        ({"network": "0.0.0.0/0", "inventory_address": "192.168.5.11"}, ("192.168.5.11", "bond0")),
        ({"network": "0.0.0.0/0", "interface": "ib0"}, ("169.254.3.11", "ib0")),
        ({"network": "172.17.0.0/16", "interface": "docker0"}, ("172.17.0.1", "docker0")),
        ({"network": "10.0.0.0/24", "interface": "ib0"}, ("", "ib0")),
        ({"network": "10.0.0.0/24", "address": "192.168.5.11"}, ("192.168.5.11", "bond0")),
        ({"network": "10.0.0.0/24", "address": "10.9.9.9"}, ("10.9.9.9", "")),
    ],
)
def test_address_and_interface(arguments, expected):
    assert _cluster.pick_address(SERVER, **arguments) == expected


@pytest.mark.parametrize("slots, gpus, expected", [(0, 0, 1), (0, 8, 8), (4, 8, 4), (2, 0, 2)])
def test_slots(slots, gpus, expected):
    assert _cluster.slots_of({"gpus": gpus}, slots) == expected
    assert _cluster.slots_of({"gpus": gpus}, slots, trains=False) == 0


def port(
    device="mlx5_0",
    number=1,
    interfaces=("ib0",),
    rate=200.0,
    transport="infiniband",
    state="active",
    gid_indexes=(),
):
    return {
        "device": device,
        "port": number,
        "interfaces": list(interfaces),
        "rate_gb_s": rate,
        "transport": transport,
        "state": state,
        "gid_indexes": dict(gid_indexes),
    }


def named(*hosts):
    return dict(zip("abcd", hosts))


def shared(hosts, names=None):
    return [str(network) for network in _cluster.shared_networks(hosts, names)]


def server(number, fabric="ib0", fabric_up=True, **options):
    return host(
        LO,
        DOCKER0,
        ("eth0", True, ["10.0.0.%d/24" % number, "fe80::1/64"]),
        (fabric, fabric_up, ["169.254.3.%d/16" % number]),
        **options,
    )


@pytest.mark.parametrize(
    "hosts, expected",
    [
        # Names may differ, and docker0 and the loopback are on all of them.
        (named(server(11), server(12, fabric="ibp1s0")), ["10.0.0.0/24", "169.254.0.0/16"]),
        (named(server(11), server(12), server(13, fabric_up=False)), ["10.0.0.0/24"]),
        # A bridge of the user's, and a service processor, with one address everywhere.
        (
            named(
                *(
                    host(
                        ("eth0", True, ["10.0.0.%d/24" % number]),
                        ("br0", True, ["192.168.0.1/24"]),
                        ("usb0", True, ["169.254.0.2/16"]),
                    )
                    for number in (11, 12)
                )
            ),
            ["10.0.0.0/24"],
        ),
        # The same one on two of three is no network of theirs.
        (
            named(
                *(
                    host(
                        ("eth0", True, ["10.0.0.%d/24" % number]),
                        ("eth1", True, ["10.1.0.%d/24" % other]),
                    )
                    for number, other in ((1, 1), (2, 2), (3, 2))
                )
            ),
            ["10.0.0.0/24"],
        ),
        # One has the prefix wrong, and is in the other's network all the same.
        (
            named(host(("eth0", True, ["10.0.0.11/24"])), host(("eth0", True, ["10.0.0.12/16"]))),
            ["10.0.0.0/24"],
        ),
        (named(host(("eth0", True, ["10.0.0.11/24"])), host(("eth0", True, ["10.0.1.12/24"]))), []),
        ({}, []),
    ],
)
def test_networks_that_all_hosts_share(hosts, expected):
    assert shared(hosts) == expected


def test_a_named_interface_is_all_that_its_host_offers():
    hosts = named(server(11), server(12))
    assert shared(hosts, {"a": "ib0"}) == ["169.254.0.0/16"]
    assert shared(hosts, {"a": "ib0", "b": "eth0"}) == []
    assert shared(
        named(*(host(("docker0", True, ["172.17.0.%d/16" % number])) for number in (1, 2))),
        {"a": "docker0", "b": "docker0"},
    ) == ["172.17.0.0/16"]


@pytest.mark.parametrize(
    "network, inside, networks, expected",
    [
        ("10.0.0.0/24", True, ["10.0.0.0/24", "10.1.0.0/24"], "10.0.0.0/24"),
        ("203.0.113.0/24", False, ["10.1.0.0/24"], "10.1.0.0/24"),
        ("", False, ["10.1.0.0/24"], "10.1.0.0/24"),
        # Which of them, or none: the user has to say, and preflight tells the host that is outside.
        ("203.0.113.0/24", False, ["10.0.0.0/24", "10.1.0.0/24"], "203.0.113.0/24"),
        ("203.0.113.0/24", False, [], "203.0.113.0/24"),
        ("203.0.113.0/24", True, ["10.1.0.0/24"], "203.0.113.0/24"),
    ],
)
def test_cluster_network(network, inside, networks, expected):
    assert (
        _cluster.cluster_network(network, inside, [ipaddress.ip_network(each) for each in networks])
        == expected
    )


def fabric(*hosts, network="10.0.0.0/24", names=None, **options):
    hosts = named(*hosts)
    return _cluster.fabric_network(
        hosts, _cluster.shared_networks(hosts, names), network, names, **options
    )


def test_the_fabric_is_the_fastest_network():
    infiniband = {"speeds": {"eth0": 25000}, "rdma": [port()]}
    assert fabric(server(11, **infiniband), server(12, **infiniband)) == (
        "169.254.0.0/16",
        "the fastest that all hosts share (10.0.0.0/24 25 Gb/s, 169.254.0.0/16 200 Gb/s)",
    )
    ethernet = {"speeds": {"eth0": 1000, "ib0": 10000}}
    assert fabric(server(11, **ethernet), server(12, **ethernet))[0] == "169.254.0.0/16"
    # The cluster network, where the slowest host's interface makes it so.
    assert fabric(server(11, **ethernet), server(12, speeds={"eth0": 1000, "ib0": 100})) == (
        "10.0.0.0/24",
        "the cluster network is the fastest (10.0.0.0/24 1 Gb/s, 169.254.0.0/16 0.1 Gb/s)",
    )


@pytest.mark.parametrize(
    "speeds, told",
    [
        ({"eth0": 10000, "ib0": 10000}, "169.254.0.0/16 10 Gb/s"),
        ({"eth0": 1000}, "169.254.0.0/16 of unknown speed"),
        ({"ib0": 10000}, "10.0.0.0/24 of unknown speed"),
    ],
)
def test_what_is_not_beyond_doubt_is_the_cluster_network(speeds, told):
    network, why = fabric(server(11, speeds=speeds), server(12, speeds=speeds))
    assert network == "10.0.0.0/24" and "is unknown" in why and told in why


def test_nothing_to_choose():
    assert fabric(server(11), server(12, fabric_up=False)) == ("10.0.0.0/24", "")
    assert fabric(server(11, speeds={"eth0": 1000, "ib0": 10000})) == ("10.0.0.0/24", "")
    assert fabric(server(11), server(12), network="") == ("", "")
    # All that is shared lies within.
    assert fabric(server(11), server(12), network="0.0.0.0/0") == ("0.0.0.0/0", "")
    assert fabric(
        host(("eth0", True, ["10.0.0.11/24"])), host(("eth0", True, ["10.9.0.12/24"]))
    ) == ("10.0.0.0/24", "")


def test_an_interface_that_the_user_names_decides():
    assert fabric(server(11), server(12), names={"a": "ib0", "b": "ib0"}) == (
        "169.254.0.0/16",
        "the one of cluster_fabric_interface",
    )
    assert fabric(server(11), server(12), names={"a": "eth0", "b": "eth0"}) == ("10.0.0.0/24", "")


RAILS = [port("mlx5_%d" % number, interfaces=["ib%d" % number], rate=400.0) for number in range(2)]
ROCE = {"transport": "roce", "rate": 100.0}


@pytest.mark.parametrize(
    "ports, interface, expected",
    [
        ([], "ib0", None),
        ([port()], "", None),
        ([port(interfaces=["ib1"])], "ib0", None),
        ([port(state="down")], "ib0", None),
        ([port(transport="iwarp")], "ib0", None),
        ([port(transport=None)], "ib0", None),
        ([port()], "ib0", ("infiniband", 200.0, ["mlx5_0"], None)),
        # A partition's interface is its parent's.
        ([port()], "ib0.8001", ("infiniband", 200.0, ["mlx5_0"], None)),
        # All rails, without the one that is down, the slower one and the Ethernet one.
        (
            RAILS
            + [
                port("mlx5_2", interfaces=["ib2"], rate=400.0, state="init"),
                port("mlx5_3", interfaces=["ib3"], rate=100.0),
                port("mlx5_4", interfaces=["eth0"], rate=400.0, transport="roce"),
            ],
            "ib0",
            ("infiniband", 400.0, ["mlx5_0", "mlx5_1"], None),
        ),
        # The host's data is not held to the slow one.
        (RAILS + [port("mlx5_9", interfaces=["eth0"], **ROCE)], "eth0", None),
        (
            [port("mlx4_0", 1), port("mlx4_0", 2, state="down")],
            "ib0",
            ("infiniband", 200.0, ["mlx4_0:1"], None),
        ),
        (
            [port("mlx5_0", interfaces=["eth1"], gid_indexes={"169.254.3.11": 3}, **ROCE)],
            "eth1",
            ("roce", 100.0, ["mlx5_0"], 3),
        ),
        # A VLAN of the port is not the fabric, and another port with an address in it is a rail.
        (
            [
                port(
                    "mlx5_0",
                    interfaces=["eth1"],
                    gid_indexes={"169.254.3.11": 3, "10.7.0.11": 5},
                    **ROCE,
                ),
                port("mlx5_1", interfaces=["eth2"], gid_indexes={"169.254.4.11": 3}, **ROCE),
                port("mlx5_2", interfaces=["eth3"], gid_indexes={"10.8.0.11": 3}, **ROCE),
            ],
            "eth1",
            ("roce", 100.0, ["mlx5_0", "mlx5_1"], 3),
        ),
        # One variable can't name two of them.
        (
            [
                port("mlx5_0", interfaces=["eth1"], gid_indexes={"169.254.3.11": 3}, **ROCE),
                port("mlx5_1", interfaces=["eth2"], gid_indexes={"169.254.4.11": 5}, **ROCE),
            ],
            "eth1",
            ("roce", 100.0, ["mlx5_0", "mlx5_1"], None),
        ),
        # By its address, where the name of its VLAN doesn't tell.
        (
            [port("mlx5_0", interfaces=["eth1"], gid_indexes={"169.254.3.11": 5}, **ROCE)],
            "vlan7",
            ("roce", 100.0, ["mlx5_0"], 5),
        ),
        ([port("mlx5_0", interfaces=["eth1"], **ROCE)], "eth1", ("roce", 100.0, ["mlx5_0"], None)),
    ],
)
def test_rdma_on_the_fabric(ports, interface, expected):
    found = _cluster.rdma_of({"rdma_ports": ports}, "169.254.0.0/16", "169.254.3.11", interface)
    assert found == (
        expected and dict(zip(("transport", "rate_gb_s", "devices", "gid_index"), expected))
    )


def railed(number, rails=8, storage="", transport="infiniband", beside=True, down=()):
    """A host with eight GPUs, a rail beside each, with a /24 of its own, and an equally fast
    adapter for storage, C(storage) being its address.
    """
    names = ["ib%d" % rail for rail in range(rails)] + (["ib8"] if storage else [])
    addresses = ["10.10.%d.%d" % (rail, number) for rail in range(rails)] + [storage]
    ports = [
        port(
            "mlx5_%s" % name[2:],
            interfaces=[name],
            rate=400.0,
            transport=transport,
            state="down" if name in down else "active",
            gid_indexes={address: 3} if transport == "roce" else {},
        )
        for name, address in zip(names, addresses)
    ]
    info = host(
        LO,
        ("eth0", True, ["10.0.0.%d/24" % number]),
        *[(name, name not in down, [address + "/24"]) for name, address in zip(names, addresses)],
        speeds={"eth0": 25000},
        rdma=ports,
        gpus=8,
    )
    gpus = {"mlx5_%d" % rail: ["0000:%d1:00.0" % rail] for rail in range(rails)}
    return dict(info, nvidia_devices=8, rdma_beside_gpus=dict(gpus, mlx5_8=[]) if beside else {})


EIGHT = ["10.10.%d.0/24" % rail for rail in range(8)]
ITS = ["mlx5_%d" % rail for rail in range(8)]


def devices(info, networks):
    found = _cluster.rdma_of(info, networks, *_cluster.pick_address(info, networks))
    return found["devices"], found["gid_index"]


@pytest.mark.parametrize("transport, index", [("infiniband", None), ("roce", 3)])
def test_eight_rails_with_a_network_each_are_one_fabric(transport, index):
    hosts = [railed(number, transport=transport) for number in (11, 12)]
    network, why = fabric(*hosts)
    assert network == ",".join(EIGHT)
    assert why.startswith(
        "the fastest that all hosts share, as rails of one fabric (10.0.0.0/24 25 Gb/s, 10.10.0.0/24 400 Gb/s"
    )
    assert _cluster.pick_address(hosts[1], network) == ("10.10.0.12", "ib0")
    assert devices(hosts[1], network) == (ITS, index)
    assert [rail["address"] for rail in _cluster.rails_of(hosts[1], network)] == [
        "10.10.%d.12" % rail for rail in range(8)
    ]
    assert _cluster.rails_of(hosts[1], "10.10.0.0/16") == []


def test_a_rail_that_is_down_on_one_host_is_no_rail_of_all():
    hosts = [railed(11), railed(12, down=["ib0"])]
    network, dummy = fabric(*hosts)
    assert network == ",".join(EIGHT[1:])
    assert devices(hosts[0], network) == devices(hosts[1], network) == (ITS[1:], None)


@pytest.mark.parametrize("transport, index", [("infiniband", None), ("roce", 3)])
def test_an_adapter_for_storage_is_no_rail(transport, index):
    """By its place on the bus, or because the NFS server is in its network."""
    its = {"storage": "10.20.0.11", "transport": transport}
    hosts = [railed(11, **its), railed(12, **dict(its, storage="10.20.0.12"))]
    assert fabric(*hosts)[0] == ",".join(EIGHT)
    blind = [
        railed(11, beside=False, **its),
        railed(12, beside=False, **dict(its, storage="10.20.0.12")),
    ]
    assert fabric(*blind)[0] == ",".join([*EIGHT, "10.20.0.0/24"])
    assert fabric(*blind, servers=[ipaddress.ip_address("10.20.0.1")])[0] == ",".join(EIGHT)
    for info in (hosts[0], blind[0]):
        for network in (",".join(EIGHT), "10.10.0.0/16"):
            assert devices(info, network) == (ITS, index)


def test_the_only_fast_network_may_also_have_the_storage():
    its = {"rails": 1, "beside": False}
    servers = [ipaddress.ip_address("10.10.0.1")]
    assert fabric(railed(11, **its), railed(12, **its), servers=servers)[0] == "10.10.0.0/24"


def test_one_address_stands_for_all_ports_of_the_fabric():
    """IPoIB is configured on the first port alone.

    A port far from all GPUs is not used, and its rate does not count.
    """
    info = railed(11, storage="10.20.0.11")
    for interface in info["interfaces"]:
        if interface["name"] not in ("lo", "eth0", "ib0"):
            interface["addresses"] = []
    assert devices(info, "10.10.0.0/24") == (ITS, None)
    info["rdma_ports"][8]["rate_gb_s"] = 800.0
    assert devices(info, "10.10.0.0/24") == (ITS, None)
    # Of an earlier release, or a virtual machine: nobody can tell.
    info["rdma_ports"][8]["rate_gb_s"] = 400.0
    info["rdma_beside_gpus"] = {}
    assert devices(info, "10.10.0.0/24") == ([*ITS, "mlx5_8"], None)
    # Two adapters for two sockets, one of them beside the GPUs of one socket only.
    info["rdma_beside_gpus"] = {"mlx5_0": ["0000:11:00.0"]}
    assert devices(info, "10.10.0.0/24") == ([*ITS, "mlx5_8"], None)
