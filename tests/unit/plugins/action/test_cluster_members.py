"""The members as computed by ansible-playbook, including a second run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from ansible_collections.trainyard.gpu.plugins.action.cluster_members import ActionModule


def an_interface(name, address, speed=None):
    return {
        "name": name,
        "up": True,
        "addresses": [{"address": address, "prefix": 24}],
        "speed_mbit_s": speed,
    }


def an_answer(name, *interfaces, gpus=0):
    return {
        "item": name,
        "gpus": gpus,
        "interfaces": list(interfaces),
        "default_interface": "eth0",
        "rdma_ports": [],
    }


def work_out(answers, hostvars, head="a", groups=(), **arguments):
    task_vars = {
        "hostvars": hostvars,
        "groups": dict({"cluster": list(hostvars)}, **dict(groups)),
        "ansible_play_hosts": list(hostvars),
        "ansible_play_hosts_all": list(hostvars),
    }
    task = SimpleNamespace(
        args=dict({"head": head, "answers": answers}, **arguments),
        async_val=False,
        check_mode=True,
        diff=False,
        action="trainyard.gpu.cluster_members",
        collections=[],
        environment=[],
    )
    connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir="/nowhere"))
    loader = DataLoader()
    action = ActionModule(
        task, connection, SimpleNamespace(check_mode=True), loader, Templar(loader, task_vars), None
    )
    return action.run(task_vars=task_vars)


def members(gpus, **variables):
    answer = an_answer("a", an_interface("eth0", "10.0.0.11"), gpus=gpus)
    (member,) = work_out([answer], {"a": dict({"ansible_host": "10.0.0.11"}, **variables)})[
        "members"
    ]
    return member["slots"], member["slots_counted"]


@pytest.mark.parametrize(
    "variables, gpus, expected",
    [
        ({}, 0, (1, True)),
        ({}, 8, (8, True)),
        ({"cluster_slots": 4}, 8, (4, False)),
        ({"cluster_slots": "4"}, 0, (4, False)),
        # Counted before the driver came, and again afterwards.
        ({"cluster_slots": 1, "__cluster_slots_are_counted": True}, 8, (8, True)),
        ({"cluster_slots": 4, "__cluster_slots_are_counted": False}, 8, (4, False)),
    ],
)
def test_slots(variables, gpus, expected):
    assert members(gpus, **variables) == expected


def test_gpus_on_the_bus_of_each_host():
    answers = [dict(an_answer("a", an_interface("eth0", "10.0.0.11")), nvidia_devices=4)]
    told = work_out(
        answers, {"a": {"ansible_host": "10.0.0.11"}, "b": {"ansible_host": "10.0.0.12"}}
    )["members"]
    assert [member["nvidia_devices"] for member in told] == [4, 0]


def test_npus_of_each_host_and_a_rank_for_each():
    answers = [dict(an_answer("a", an_interface("eth0", "10.0.0.11")), npus=8)]
    told = work_out(
        answers, {"a": {"ansible_host": "10.0.0.11"}, "b": {"ansible_host": "10.0.0.12"}}
    )["members"]
    assert [(member["npus"], member["slots"]) for member in told] == [(8, 8), (0, 0)]


def test_all_addresses_of_each_host() -> None:
    """Of every network, up or not.

    A bridge has the same one everywhere, and that of a link is of the link.
    """
    down = dict(an_interface("eth1", "10.8.0.11"), up=False)
    others = [
        an_interface(name, address)
        for name, address in (
            ("eth2", "fd00::11"),
            ("eth3", "fe80::11"),
            ("lo", "127.0.0.1"),
            ("docker0", "172.17.0.1"),
            ("ib0", "169.254.0.11"),
        )
    ]
    answers = [an_answer("a", an_interface("eth0", "10.0.0.11"), down, *others)]
    told = work_out(
        answers, {"a": {"ansible_host": "10.0.0.11"}, "b": {"ansible_host": "10.0.0.12"}}
    )["members"]
    assert [member["addresses"] for member in told] == [
        ["10.0.0.11", "10.8.0.11", "169.254.0.11", "fd00::11"],
        [],
    ]
    many = an_answer(
        "a",
        an_interface("eth0", "10.0.0.11"),
        *[an_interface("eth%d" % each, "10.9.0.%d" % each) for each in range(1, 99)],
    )
    assert (
        len(work_out([many], {"a": {"ansible_host": "10.0.0.11"}})["members"][0]["addresses"]) == 64
    )


def two_networks(variables=(), groups=(), **arguments):
    """Network, fabric network, and each member's place on both: two hosts with a slow and a fast
    network.
    """
    answers = [
        an_answer(
            name,
            an_interface("eth0", "10.0.0.1%d" % number, 1000),
            an_interface("eth1", "10.1.0.1%d" % number, 100000),
        )
        for number, name in enumerate("ab")
    ]
    hostvars = {
        name: dict({"ansible_host": "10.0.0.1%d" % number}, **dict(variables))
        for number, name in enumerate("ab")
    }
    told = work_out(answers, hostvars, groups=groups, **arguments)
    return (
        told["network"],
        told["fabric_network"],
        [
            tuple(
                member[key]
                for key in ("address", "interface", "fabric_address", "fabric_interface")
            )
            for member in told["members"]
        ],
    )


SLOW = [("10.0.0.10", "eth0", "10.0.0.10", "eth0"), ("10.0.0.11", "eth0", "10.0.0.11", "eth0")]
BOTH = [("10.0.0.10", "eth0", "10.1.0.10", "eth1"), ("10.0.0.11", "eth0", "10.1.0.11", "eth1")]


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ({}, ("10.0.0.0/24", "10.1.0.0/24", BOTH)),
        ({"network": "10.0.0.0/24"}, ("10.0.0.0/24", "10.1.0.0/24", BOTH)),
        # The user's word.
        ({"fabric_network": "10.0.0.0/24"}, ("10.0.0.0/24", "10.0.0.0/24", SLOW)),
        ({"fabric_network": "10.1.0.0/16"}, ("10.0.0.0/24", "10.1.0.0/16", BOTH)),
        ({"variables": {"cluster_fabric_interface": "eth1"}}, ("10.0.0.0/24", "10.1.0.0/24", BOTH)),
        ({"variables": {"cluster_fabric_interface": "eth0"}}, ("10.0.0.0/24", "10.0.0.0/24", SLOW)),
        (
            {"variables": {"cluster_fabric_interface": "eth7"}, "fabric_network": "10.1.0.0/24"},
            (
                "10.0.0.0/24",
                "10.1.0.0/24",
                [("10.0.0.10", "eth0", "", "eth7"), ("10.0.0.11", "eth0", "", "eth7")],
            ),
        ),
    ],
)
def test_fabric(arguments, expected):
    assert two_networks(**arguments) == expected


def test_a_second_interface_in_the_same_network_is_named():
    answers = [
        an_answer(
            name,
            an_interface("eth0", "10.0.0.1%d" % number),
            an_interface("eth1", "10.0.0.2%d" % number),
        )
        for number, name in enumerate("ab")
    ]
    told = work_out(
        answers,
        {
            name: {"ansible_host": "10.0.0.1%d" % number, "cluster_fabric_interface": "eth1"}
            for number, name in enumerate("ab")
        },
    )
    assert told["fabric_network"] == told["network"] == "10.0.0.0/24"
    assert [(member["interface"], member["fabric_address"]) for member in told["members"]] == [
        ("eth0", "10.0.0.20"),
        ("eth0", "10.0.0.21"),
    ]


def test_the_choice_is_told_where_there_is_one(capsys):
    two_networks()
    assert (
        "Fabric network: 10.1.0.0/24: the fastest that all hosts share (10.0.0.0/24 1 Gb/s, 10.1.0.0/24 100 Gb/s). "
        "Set cluster_fabric_network to use another one"
    ) in (" ".join(capsys.readouterr().out.split()))
    two_networks(fabric_network="10.1.0.0/24")
    assert "Fabric" not in capsys.readouterr().out


def test_rails_are_a_list_or_found():
    """Two equally fast networks beside the cluster network: all of them, those that the user names,
    and without that of the NFS server.
    """
    answers = [
        an_answer(
            name,
            an_interface("eth0", "10.0.0.1%d" % number, 1000),
            *[
                an_interface("eth%d" % rail, "10.%d.0.1%d" % (rail, number), 100000)
                for rail in (1, 2, 3)
                if (name, rail) != ("b", 1)
            ],
        )
        for number, name in enumerate("ab")
    ]
    hostvars = {name: {"ansible_host": "10.0.0.1%d" % number} for number, name in enumerate("ab")}

    def rails(**arguments):
        told = work_out(answers, hostvars, **arguments)
        (dummy, last) = told["members"]
        return (
            told["fabric_network"],
            last["fabric_address"],
            [rail["address"] for rail in last["fabric_rails"]],
        )

    both = ("10.2.0.0/24,10.3.0.0/24", "10.2.0.11", ["10.2.0.11", "10.3.0.11"])
    assert rails() == both
    # What the role has set as a fact, in a later play.
    assert rails(fabric_network=both[0]) == both
    assert rails(fabric_network=["10.3.0.0/24", "10.2.0.0/24"])[1] == "10.3.0.11"
    # The first one is one that all hosts have.
    assert rails(fabric_network=["10.1.0.0/24", "10.3.0.0/24"]) == (
        "10.3.0.0/24,10.1.0.0/24",
        "10.3.0.11",
        ["10.3.0.11", ""],
    )
    assert rails(fabric_network=["10.3.0.0/24"]) == ("10.3.0.0/24", "10.3.0.11", [])
    mounts = [{"server": "10.3.0.9", "path": "/x"}, {"server": "nas", "path": "/y"}]
    hostvars["a"]["nfs_client_mounts"] = mounts
    assert rails() == ("10.2.0.0/24", "10.2.0.11", [])


def test_a_storage_server_need_not_be_on_the_fabric():
    answers = [
        an_answer(
            name,
            an_interface("eth0", "10.0.0.1%d" % number, 1000),
            *([an_interface("eth1", "10.1.0.1%d" % number, 100000)] if number else []),
        )
        for number, name in enumerate("abc")
    ]
    told = work_out(
        answers,
        {name: {"ansible_host": "10.0.0.1%d" % number} for number, name in enumerate("abc")},
        groups={"gpu": ["b", "c"]},
    )
    assert told["fabric_network"] == "10.1.0.0/24"
    assert [(member["fabric_address"], member["slots"]) for member in told["members"]] == [
        ("", 0),
        ("10.1.0.11", 1),
        ("10.1.0.12", 1),
    ]


def test_the_only_network_that_all_share_where_the_head_s_is_not():
    """The head is reached by an address of its own network, such as a public one."""
    answers = [
        an_answer("a", an_interface("eth0", "203.0.113.7"), an_interface("eth1", "10.1.0.10")),
        an_answer("b", an_interface("eth1", "10.1.0.11")),
    ]
    hostvars = {"a": {"ansible_host": "203.0.113.7"}, "b": {"ansible_host": "198.51.100.7"}}
    told = work_out(answers, hostvars)
    assert (told["network"], [member["address"] for member in told["members"]]) == (
        "10.1.0.0/24",
        ["10.1.0.10", "10.1.0.11"],
    )
    assert work_out(answers, hostvars, network="203.0.113.0/24")["network"] == "203.0.113.0/24"


def test_results_that_the_hosts_of_the_play_have_registered():
    """Beside the answers of hosts outside the play.

    A host that has dropped out has registered nothing, or why.
    """
    first, second = (
        an_answer(name, an_interface("eth0", "10.0.0.1%d" % number))
        for number, name in enumerate("ab")
    )
    hostvars = {
        "a": {"ansible_host": "10.0.0.10"},
        "b": {
            "ansible_host": "10.0.0.11",
            "asked": {key: second[key] for key in second if key != "item"},
        },
        "c": {"ansible_host": "10.0.0.12"},
        "d": {
            "ansible_host": "10.0.0.13",
            "asked": {"unreachable": True, "msg": "Failed to\nconnect"},
        },
    }
    told = work_out([first], hostvars, registered="asked")
    assert [
        (member["name"], member["address"], member["reachable"], member["error"])
        for member in told["members"]
    ] == [
        ("a", "10.0.0.10", True, ""),
        ("b", "10.0.0.11", True, ""),
        ("c", "10.0.0.12", False, "no answer"),
        ("d", "10.0.0.13", False, "Failed to connect"),
    ]
    assert told["hosts"]["b"] == {key: second[key] for key in second if key != "item"}
    assert [member["reachable"] for member in work_out([first], hostvars)["members"]] == [
        True,
        False,
        False,
        False,
    ]
