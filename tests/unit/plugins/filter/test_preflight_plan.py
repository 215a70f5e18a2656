"""What preflight asks a host: names, connections to try, groups to look up."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _preflight_plan


def member(number, **more):
    address = "10.0.0.1%d" % number
    return dict(
        {"name": "abcd"[number], "address": address, "fabric_address": address, "reachable": True},
        **more,
    )


def plan(members=None, host="a", storage="b", **asked):
    those = [member(0), member(1)] if members is None else members
    return _preflight_plan.decide_preflight_plan(
        {"members": those}, {"host": host, "port": 12345, "storage": storage, **asked}
    )


def ssh(number, network="10.0.0", **more):
    return dict(
        {"name": "abcd"[number], "address": "%s.1%d" % (network, number), "port": 12345}, **more
    )


UBUNTU = Path(__file__).parents[3] / "fixtures/ubuntu"


@pytest.mark.parametrize(
    "file, system, slurm, podman",
    [
        ("slurm-packages-jammy.txt", "22.04", "21.08.5", "3.4.4"),
        ("podman-packages-noble.txt", "24.04", "23.11.4", "4.9.3"),
    ],
)
def test_what_a_host_of_ubuntu_gets(file, system, slurm, podman):
    """Recorded versions read as those that are known of the distribution."""
    offered = _preflight_plan.offered
    host = {"os": {"id": "ubuntu", "version_id": system}}
    recorded = dict(line.split()[:2] for line in (UBUNTU / file).read_text().splitlines())
    assert offered(host, {}, {}) == {"slurmd": slurm, "podman": podman}
    found = offered(host, recorded, {})
    assert (found["slurmd"], found["podman"]) == (slurm, podman)
    # A candidate that apt does not have, and a source that the host does not have yet.
    assert offered(host, {"slurmd": "", "podman": ""}, {}) == offered(host, {}, {})
    assert offered(host, recorded, {"uris": ["https://apt.example.org"]}) == {}


def test_every_other_host():
    members = [member(number) for number in range(3)]
    assert plan(members) == {"names": ["b", "c"], "connect": [ssh(1), ssh(2)], "groups": {}}
    assert plan(members, host="c")["connect"] == [ssh(0), ssh(1)]
    assert plan(members[:1]) == {"names": [], "connect": [], "groups": {}}
    # An inventory may have the port as text.
    assert plan(port="2222")["connect"] == [ssh(1, port=2222)]


@pytest.mark.parametrize(
    "changes, names, connect",
    [
        # That it does not answer is a finding already.
        ({"reachable": False}, ["b"], []),
        ({"address": "", "fabric_address": ""}, [], []),
    ],
)
def test_a_host_that_cannot_be_reached_is_not_connected_to(changes, names, connect):
    found = plan([member(0), member(1, **changes)])
    assert (found["names"], found["connect"]) == (names, connect)


@pytest.mark.parametrize(
    "own, peers, connect",
    [
        ("10.1.0.10", "10.1.0.11", [ssh(1), ssh(1, "10.1.0", source="10.1.0.10")]),
        # A host without an address on the fabric has a finding of its own.
        ("", "10.1.0.11", [ssh(1)]),
        ("10.1.0.10", "", [ssh(1)]),
        # The fabric network is the cluster network.
        ("10.0.0.10", "10.0.0.11", [ssh(1)]),
    ],
)
def test_the_fabric_is_tried_from_the_host_s_own_address(own, peers, connect):
    assert (
        plan([member(0, fabric_address=own), member(1, fabric_address=peers)])["connect"] == connect
    )


@pytest.mark.parametrize(
    "mount, options, connect",
    [
        ({"server": "nas"}, ["hard"], ("nas", "nas", 2049)),
        (
            {"server": "fd00::5", "options": ["port=2050", "port=1"]},
            [],
            ("fd00::5", "fd00::5", 2050),
        ),
        # The host's options replace those of all mounts. None are no options.
        ({"server": "nas", "options": ["hard"]}, ["port=2050"], ("nas", "nas", 2049)),
        ({"server": "nas", "options": []}, ["port=2050"], ("nas", "nas", 2050)),
        ({"server": "nas"}, ["hard", "port=2050"], ("nas", "nas", 2050)),
        ({"server": "nas"}, ["mountport=3", "port=x"], ("nas", "nas", 2049)),
        # A host of the cluster, by name or by address.
        ({"server": "c"}, [], ("c", "10.0.0.12", 2049)),
        ({"server": "10.0.0.12"}, [], ("10.0.0.12", "10.0.0.12", 2049)),
        # The storage host may not be a server yet, and nobody mounts from himself.
        ({"server": "b"}, [], None),
        ({"server": "10.0.0.11"}, [], None),
        ({"server": "a"}, [], None),
        ({"server": "10.0.0.10"}, [], None),
        # A port for RDMA is none of TCP.
        ({"server": "nas"}, ["hard", "rdma", "port=20049"], None),
        ({"server": "nas", "options": ["proto=rdma6"]}, [], None),
    ],
)
def test_nfs_servers(mount, options, connect):
    members = [member(number, reachable=False) for number in range(3)]
    found = plan(members, mounts=[dict(mount, path="/x")] * 2, options=options)["connect"]
    assert found == (
        [{"name": "NFS server " + connect[0], "address": connect[1], "port": connect[2]}]
        if connect
        else []
    )


def test_nfs_clients_that_the_server_must_resolve():
    exports = [
        {"path": "/x", "clients": ["*.site", "10.0.0.0/8", "Node1"]},
        {"path": "/y"},
        {"path": "/z", "clients": None},
    ]
    clients = ["node1", "fd00::/8", "10.0.0.3", "@net", "fe80::1"]
    assert plan(host="b", clients=clients, exports=exports)["names"] == [
        "a",
        "node1",
        "@net",
        "*.site",
    ]
    # Only the server has to.
    assert plan(host="a", clients=clients, exports=exports)["names"] == ["b"]


def test_groups_and_users_without_groups():
    users = [
        {"name": "anna", "uid": 2001, "groups": ["vision"]},
        {"name": "ben", "uid": 2002},
        {"name": "eva", "uid": 2003, "groups": []},
    ]
    assert plan(users=users, groups=[{"name": "vision", "gid": 3001}])["groups"] == {
        "ben": 2002,
        "eva": 2003,
        "vision": 3001,
    }
    # A group that is listed has the listed number.
    assert plan(users=users, groups=[{"name": "ben", "gid": 3002}])["groups"]["ben"] == 3002


def versions(driver, nccl):
    return {"driver": driver, "nccl": {"version": nccl}}


@pytest.mark.parametrize(
    "gpus, differences",
    [
        ([], []),
        ([versions("550.54.15", "2.21.5-1+cuda12.4")], []),
        ([versions("550.54.15", "1"), versions("550.90.07", "1")], []),
        ([versions("550.54.15", "1"), versions("570.86.15", "1")], ["driver"]),
        ([versions("550.54.15", "1"), versions("550.54.15", "2")], ["nccl"]),
        ([versions("550.54.15", "1"), versions("570", "2")], ["driver", "nccl"]),
        ([versions("550.54.15", ""), versions("", "2")], []),
    ],
)
def test_what_the_hosts_do_not_have_in_common(gpus, differences):
    assert _preflight_plan.differences(gpus) == differences


@pytest.mark.parametrize(
    "addresses, wrong",
    [
        # Its own address, also beside others, an address of no member, or none.
        (["10.0.0.11"], False),
        (["127.0.1.1", "10.0.0.11"], False),
        (["192.168.9.9"], False),
        ([], False),
        (["127.0.1.1"], True),
        (["::1"], True),
        (["192.168.9.9", "10.0.0.12"], True),
        (["10.0.0.10"], True),
    ],
)
def test_names_of_members_with_a_wrong_address(addresses, wrong):
    members = [member(0), member(1), member(2), member(3, address="")]
    resolved = {"b": {"addresses": addresses}, "c": {"addresses": []}}
    found = _preflight_plan.wrong_names(members, "a", resolved, r"(127\.|::1$)")
    assert [each["name"] for each in found] == (["b"] if wrong else [])


def test_each_rail_is_tried_from_its_own_address():
    def rails(*addresses):
        return [
            {"network": "10.%d.0.0/24" % rail, "address": address, "interface": "ib%d" % rail}
            for rail, address in enumerate(addresses, 1)
        ]

    members = [
        member(0, fabric_rails=rails("10.1.0.10", "10.2.0.10", "")),
        member(1, fabric_rails=rails("10.1.0.11", "", "10.3.0.11")),
    ]
    assert plan(members)["connect"] == [ssh(1), ssh(1, "10.1.0", source="10.1.0.10")]


def facts_of(name, address, mtu=1500):
    cards = [
        {"name": "eth0", "addresses": [{"address": address, "prefix": 24}], "mtu": mtu},
        {"name": "eth1", "addresses": [{"address": "192.168.9.9", "prefix": 24}], "mtu": 9000},
    ]
    return {"name": name, "interfaces": cards}


@pytest.mark.parametrize(
    "addresses, wrong",
    [
        (["10.0.0.11"], False),
        # Of its second interface, for management.
        (["192.168.9.9"], False),
        ([], False),
        # In no network of the cluster, so it is nobody's address.
        (["10.9.9.9"], True),
        (["10.0.0.12"], True),
    ],
)
def test_a_name_with_an_address_that_its_member_does_not_have(addresses, wrong):
    members = [member(0), member(1)]
    resolved = {"b": {"addresses": addresses}}
    found = _preflight_plan.wrong_names(
        members, "a", resolved, r"(127\.|::1$)", [facts_of("b", members[1]["address"])]
    )
    assert [each["name"] for each in found] == (["b"] if wrong else [])


@pytest.mark.parametrize(
    "mtus, found",
    [
        ((1500, 1500), []),
        # Old facts have none.
        ((1500, None), []),
        ((1500, 1400), ["1400 on b; 1500 on a"]),
    ],
)
def test_networks_with_different_mtus(mtus, found):
    members = [dict(member(number), interface="eth0", fabric_interface="eth0") for number in (0, 1)]
    answering = [facts_of(each["name"], each["address"], mtu) for each, mtu in zip(members, mtus)]
    told = _preflight_plan.mtu_differences(members, answering)
    assert [each["found"] for each in told] == found


def test_rails_with_different_mtus():
    rails = [{"network": "10.1.0.0/24", "address": "10.1.0.1", "interface": "eth1"}]
    members = [
        dict(member(number), interface="eth0", fabric_interface="eth0", fabric_rails=rails)
        for number in (0, 1)
    ]
    answering = [facts_of(each["name"], each["address"]) for each in members]
    answering[1]["interfaces"][1]["mtu"] = 1500
    (told,) = _preflight_plan.mtu_differences(members, answering)
    assert (told["network"], told["found"]) == ("fabric (10.1.0.0/24)", "1500 on b; 9000 on a")


def rdma(*states, rate=400.0):
    return [
        {"device": "mlx5_%d" % number, "port": 1, "state": state, "rate_gb_s": rate}
        for number, state in enumerate(states)
    ]


@pytest.mark.parametrize(
    "ports, found",
    [
        (rdma("active", "active"), []),
        (rdma("active", "down"), [("b", "1, mlx5_1 port 1: down, 400.0 Gb/s")]),
        (
            rdma("active") + rdma("active", "active", rate=200.0)[1:],
            [("b", "1, mlx5_1 port 1: active, 200.0 Gb/s")],
        ),
        ([], [("b", "0")]),
    ],
)
def test_hosts_with_fewer_rdma_ports(ports, found):
    members = [dict(member(number), slots=8 if number < 2 else 0) for number in (0, 1, 2)]
    of_hosts = {"a": rdma("active", "active"), "b": ports, "c": []}
    answering = [{"name": name, "rdma_ports": its} for name, its in of_hosts.items()]
    told = _preflight_plan.rdma_ports_missing(members, answering)
    assert [(each["name"], each["found"]) for each in told] == found
    assert all(each["expected"] == "2 active RDMA ports with 400 Gb/s, as on a" for each in told)
    assert _preflight_plan.rdma_ports_missing(members, [{"name": "a"}, {"name": "b"}]) == []


@pytest.mark.parametrize(
    "mounts, options, transports, found",
    [
        # The share of the storage host, which role nfs_server serves by TCP.
        ([], ["hard"], ["tcp"], []),
        ([], ["hard", "rdma"], ["tcp"], [("b", "b offers tcp", True)]),
        ([], ["proto=rdma", "port=20049"], [], [("b", "b has no NFS server yet", True)]),
        ([], ["rdma"], ["rdma", "tcp"], []),
        # By address, with options of its own.
        (
            [{"server": "10.0.0.11", "options": ["rdma"]}],
            [],
            ["tcp"],
            [("b", "b offers tcp", True)],
        ),
        ([{"server": "b", "options": ["hard"]}], ["rdma"], ["tcp"], []),
        # Only the mount can tell of a server outside of the cluster.
        ([{"server": "nas"}], ["rdma"], [], []),
    ],
)
def test_mounts_by_rdma(mounts, options, transports, found):
    """The server itself mounts nothing, and a client needs a port."""
    members = [member(number) for number in (0, 1)]
    port = {"state": "active"}
    answering = [
        {"name": "a", "rdma_ports": [port]},
        {"name": "b", "rdma_ports": [port], "nfs_transports": transports},
    ]
    judge = _preflight_plan.nfs_without_rdma
    told = judge(mounts, options, members, "a", "b", answering)
    assert [(each["server"], each["found"], each["on_server"]) for each in told] == found
    assert judge([], ["rdma"], members, "b", "b", answering) == []
    answering[0]["rdma_ports"] = [{"state": "down"}]
    (without,) = judge([{"server": "nas"}], ["rdma"], members, "a", "b", answering)
    assert without["found"] == "this host has no active RDMA port"
