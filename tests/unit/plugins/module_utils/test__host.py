"""Parsers for /proc, /etc and ip."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _host

FIXTURES = Path(__file__).parents[3] / "fixtures"

OUTER, INNER = "a" * 64, "b" * 64

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:3039 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000000000000000 100 0 0 10 0
   1: 1F001DAC:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4712 1 0000000000000000 100 0 0 10 0
   2: 1F001DAC:3039 20001DAC:A2B4 01 00000000:00000000 02:000A9A64 00000000     0        0 4713 3 0000000000000000 20 4 30 10 -1
"""
TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000000000000000000000000000:3039 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4714 1 0 100 0 0 10 0
   1: 0000000000000000FFFF00001F001DAC:3039 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4715 1 0 100 0 0 10 0
"""
ROUTE = """\
Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
wlan0	00000000	0100A8C0	0003	0	0	600	00000000	0	0	0
eth0	00000000	01001DAC	0003	0	0	100	00000000	0	0	0
eth0	00001DAC	00000000	0001	0	0	0	00FFFFFF	0	0	0
"""
ROUTE6 = """\
fe800000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe80000000000000020c29fffe000001 00000400 00000001 00000000 00000003     ens5
00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo
"""


@pytest.mark.parametrize(
    "text, expected",
    [
        (
            'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n',
            {"id": "debian", "version_id": "12", "codename": "bookworm", "id_like": []},
        ),
        (
            "ID=ubuntu\nID_LIKE=debian\nVERSION_ID='24.04'\nVERSION_CODENAME=noble\n# ID=no\n",
            {"id": "ubuntu", "version_id": "24.04", "codename": "noble", "id_like": ["debian"]},
        ),
        (
            'ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"\n',
            {
                "id": "rocky",
                "version_id": "9.4",
                "codename": "",
                "id_like": ["rhel", "centos", "fedora"],
            },
        ),
        ("", {"id": "linux", "version_id": "", "codename": "", "id_like": []}),
        # Of hosts with Ubuntu.
        *(
            (
                (FIXTURES / ("ubuntu/os-release-%s.txt" % codename)).read_text(encoding="utf-8"),
                {
                    "id": "ubuntu",
                    "version_id": version,
                    "codename": codename,
                    "id_like": ["debian"],
                },
            )
            for codename, version in (("jammy", "22.04"), ("noble", "24.04"))
        ),
    ],
)
def test_os_release(text, expected):
    assert _host.parse_os_release(text) == expected


def test_temporary_addresses_are_left_out() -> None:
    """The kernel replaces them every day."""
    entries = [
        {"local": "fd00::1", "prefixlen": 64},
        {"local": "fd00::abcd", "prefixlen": 64, "temporary": True},
    ]
    (found,) = _host.parse_ip_addresses(
        json.dumps([{"ifname": "eth0", "flags": ["UP"], "addr_info": entries}])
    )
    assert found["addresses"] == [{"address": "fd00::1", "prefix": 64}]


def test_interfaces():
    text = json.dumps(
        [
            {
                "ifname": "eth0@if12",
                "flags": ["BROADCAST", "UP"],
                "mtu": 1400,
                "addr_info": [
                    {"family": "inet", "local": "10.0.0.1", "prefixlen": 24},
                    {"family": "inet6"},
                ],
            },
            {"ifname": "ib0", "flags": ["BROADCAST"], "addr_info": []},
            {"ifname": "eth1", "flags": ["NO-CARRIER", "BROADCAST", "UP"], "addr_info": []},
            {},
        ]
    )
    assert _host.parse_ip_addresses(text) == [
        {
            "name": "eth0",
            "addresses": [{"address": "10.0.0.1", "prefix": 24}],
            "up": True,
            "mtu": 1400,
        },
        {"name": "ib0", "addresses": [], "up": False, "mtu": None},
        {"name": "eth1", "addresses": [], "up": False, "mtu": None},
    ]
    with pytest.raises(_host.ParseError, match="Option"):
        _host.parse_ip_addresses('Option "-j" is unknown')


@pytest.mark.parametrize(
    "name, virtual",
    [
        ("lo", True),
        ("docker0", True),
        ("br-0123456789ab", True),
        ("br-train", True),
        ("veth1a2b", True),
        ("virbr0", True),
        ("cni0", True),
        ("flannel.1", True),
        ("eth0", False),
        ("bond0", False),
        ("ib0", False),
        ("br0", False),
        ("enp1s0f0np0", False),
        ("vlan.100", False),
    ],
)
def test_virtual_interfaces(name, virtual):
    assert _host.is_virtual_interface(name) is virtual


@pytest.mark.parametrize(
    "route, route6, expected",
    [
        (ROUTE, ROUTE6, "eth0"),
        (ROUTE.splitlines()[0], ROUTE6, "ens5"),
        ("", "", ""),
    ],
)
def test_default_interface(route, route6, expected):
    assert _host.default_interface(route, route6) == expected


def test_listening_sockets():
    assert _host.listening_sockets(TCP, [12345]) == [
        {"address": "0.0.0.0", "port": 12345, "inode": "4711"}
    ]
    assert _host.listening_sockets(TCP, [22, 80]) == [
        {"address": "172.29.0.31", "port": 22, "inode": "4712"}
    ]
    assert [entry["address"] for entry in _host.listening_sockets(TCP6, [12345])] == [
        "::",
        "172.29.0.31",
    ]
    assert _host.listening_sockets("", [22]) == []


@pytest.mark.parametrize(
    "cgroup, expected",
    [
        ("0::/system.slice/docker-%s.scope\n" % INNER, [INNER]),
        (
            "4:memory:/docker/%s/docker/%s\n1:name=systemd:/docker/%s/docker/%s\n"
            % (OUTER, INNER, OUTER, INNER),
            [OUTER, INNER],
        ),
        ("0::/system.slice/ssh.service\n", []),
    ],
)
def test_container_ids(cgroup, expected):
    assert _host.container_ids(cgroup) == expected


def test_huge_pages():
    """Folders of x86_64 and of Arm, and one that cannot be read."""
    counts = {
        "hugepages-64kB": "0\n",
        "hugepages-2048kB": "512\n",
        "hugepages-32768kB": "",
        "hugepages-524288kB": "3",
        "hugepages-1048576kB": "8\n",
        "hugepages-16777216kB": "1\n",
        "other": "7",
    }
    assert _host.hugepages(counts) == {"64K": 0, "2M": 512, "512M": 3, "1G": 8, "16G": 1}


def test_governors():
    """A driver that chooses the clock itself is named. A CPU that is off has no governor."""
    texts = [
        ("performance\n", "intel_pstate\n"),
        ("powersave\n", "intel_pstate\n"),
        ("powersave\n", "amd-pstate-epp\n"),
        ("powersave\n", "intel_cpufreq\n"),
        ("powersave\n", "acpi-cpufreq\n"),
        ("schedutil\n", "acpi-cpufreq\n"),
        ("", ""),
    ]
    assert _host.governors(texts) == {
        "performance": 1,
        "powersave of intel_pstate": 1,
        "powersave of amd-pstate-epp": 1,
        "powersave": 2,
        "schedutil": 1,
    }


def test_memory():
    assert _host.memory_mib("MemTotal:       24683640 kB\nMemFree: 1 kB\n") == 24105
    with pytest.raises(_host.ParseError):
        _host.memory_mib("garbage")


@pytest.mark.parametrize(
    "text, addresses",
    [
        (
            "127.0.0.1 localhost\n127.0.1.1\tserver-a.example server-a # ours\n10.0.0.11 server-a\n",
            ["127.0.1.1", "10.0.0.11"],
        ),
        ("# 127.0.1.1 server-a\n10.0.0.12 server-ab\n", []),
        ("", []),
    ],
)
def test_own_name(text, addresses):
    assert _host.own_name_addresses(text, "server-a") == addresses


@pytest.mark.parametrize(
    "cpuinfo, dmi, is_one",
    [
        ("processor\t: 0\nflags\t\t: fpu vme hypervisor lahf_lm\n", "", True),
        (
            "processor\t: 0\nflags\t\t: fpu vme lahf_lm\n",
            "dmi:svnDellInc.:pnPowerEdgeXE9680:",
            False,
        ),
        ("Features\t: fp asimd\n", "dmi:bvnEDKII:svnQEMU:pnKVMVirtualMachine:", True),
        ("Features\t: fp asimd\n", "dmi:bvnNVIDIA:svnNVIDIA:pnGraceHopper:", False),
        ("", "", False),
    ],
)
def test_virtual_machine(cpuinfo, dmi, is_one):
    assert _host.is_virtual_machine(cpuinfo, dmi) is is_one
