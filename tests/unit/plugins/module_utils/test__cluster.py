"""Which address and interface a host gets on the cluster network."""

from __future__ import annotations

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _cluster


def host(*interfaces, default="eth0", gpus=0):
    return {
        "interfaces": [
            {"name": name, "addresses": [dict(zip(("address", "prefix"), (text.split("/")[0], int(text.split("/")[1])))) for text in addresses], "up": up}
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


@pytest.mark.parametrize("inventory_address, info, expected", [
    ("192.168.5.11", SERVER, "192.168.4.0/22"),
    ("169.254.3.11", SERVER, "169.254.0.0/16"),
    ("203.0.113.7", SERVER, "10.0.0.0/24"),
    ("server-a", SERVER, "10.0.0.0/24"),
    ("127.0.0.1", SERVER, "10.0.0.0/24"),
    ("172.17.0.1", SERVER, "10.0.0.0/24"),
    ("server-a", host(LO, ("ens5", True, ["fe80::1/64", "2001:db8::5/64"]), default="ens5"), "2001:db8::/64"),
    ("server-a", host(LO, DOCKER0, default=""), ""),
    ("10.0.0.11", host(("eth0", False, ["10.0.0.11/24"])), ""),
])
def test_network_of_the_head(inventory_address, info, expected):
    assert _cluster.find_network(info, inventory_address) == expected


@pytest.mark.parametrize("arguments, expected", [
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
])
def test_address_and_interface(arguments, expected):
    assert _cluster.pick_address(SERVER, **arguments) == expected


@pytest.mark.parametrize("slots, gpus, expected", [(0, 0, 1), (0, 8, 8), (4, 8, 4), (2, 0, 2)])
def test_slots(slots, gpus, expected):
    assert _cluster.slots_of({"gpus": gpus}, slots) == expected
    assert _cluster.slots_of({"gpus": gpus}, slots, trains=False) == 0
