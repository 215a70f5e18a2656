"""InfiniBand and RoCE: real output of the tools (tests/fixtures/ib), and arbitrary input.

Whole sysfs trees: test_infiniband_info.py.
"""

import csv
import hashlib
import ipaddress
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ansible_collections.trainyard.gpu.plugins.module_utils import _infiniband
from ansible_collections.trainyard.gpu.plugins.module_utils._infiniband import (
    ParseError,
    describe_device,
    module_states,
    parse_ibdev2netdev,
    parse_ibstat,
    parse_ibstatus,
    parse_ibv_devinfo,
)

FIXTURES = Path(__file__).parents[3] / "fixtures/ib"
PARSERS = {
    "ibstat": parse_ibstat,
    "ibstatus": parse_ibstatus,
    "ibv_devinfo": parse_ibv_devinfo,
    "ibdev2netdev": parse_ibdev2netdev,
}
ABSENT = "not said"
# Reproducible, and without a folder of examples in the checkout.
any_input = settings(
    max_examples=150,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


def index():
    with open(FIXTURES / "INDEX.tsv", encoding="utf-8", newline="") as stream:
        return {row["path"]: row for row in csv.DictReader(stream, delimiter="\t")}


INDEX = index()


def read(name):
    return (FIXTURES / name).read_bytes().decode("utf-8")


def parser(name):
    return PARSERS[name.partition("-")[0]]


def describe(name, text):
    devices, remarks = parser(name)(text)
    return [
        describe_device(device, texts, absent=ABSENT) for device, texts in devices.items()
    ], remarks


def facts(name):
    return dict(
        fact.split("=", 1) for fact in INDEX[name]["expected_key_facts"].split("; ") if "=" in fact
    )


def of(tool):
    return [name for name in INDEX if name.startswith(tool + "-")]


def nulls_have_reasons(device):
    for part in [device] + device["ports"]:
        for key, value in part.items():
            assert value is not None or part["unavailable"][key], key
        assert {key for key in part["unavailable"] if "." not in key} == {
            key for key, value in part.items() if value is None
        }


# --- the fixtures, and the facts that their index tells ---------------------------------------------------------------------


def test_index_lists_every_fixture():
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in FIXTURES.iterdir()
        if path.name != "INDEX.tsv"
    }
    assert {name: row["sha256"] for name, row in INDEX.items()} == found


@pytest.mark.parametrize("name", list(INDEX))
def test_every_null_has_its_reason(name):
    devices, _remarks = describe(name, read(name))
    assert devices
    for device in devices:
        nulls_have_reasons(device)


@pytest.mark.parametrize("name", of("ibstat"))
def test_ibstat(name):
    expected, (devices, remarks) = facts(name), describe(name, read(name))
    ports = [port for device in devices for port in device["ports"]]
    assert len(devices) == int(expected["cas"])
    assert [sum(port["state"] == state for port in ports) for state in ("active", "down")] == [
        int(expected["active"]),
        int(expected["down"]),
    ]
    assert sorted({port["rate_gb_s"] for port in ports}) == [
        float(rate) for rate in expected["rates"].split(",")
    ]
    assert sorted({port["link_layer"] for port in ports}) == expected["link_layers"].lower().split(
        ","
    )
    assert {(port["link_layer"], port["transport"]) for port in ports} <= {
        ("infiniband", "infiniband"),
        ("ethernet", "roce"),
    }
    assert all(
        device["node_guid"] and device["firmware"] and device["hca_type"].startswith("MT")
        for device in devices
    )
    assert remarks == (
        ["ibpanic: [1400444] main: stat of IB device 'mlx5_8' failed: No such file or directory"]
        if "ibpanic" in name
        else []
    )


def test_one_of_ibstats_devices():
    (device,), _remarks = describe("ibstat-mlx4-2ports.txt", read("ibstat-mlx4-2ports.txt"))
    first, second = device["ports"]
    assert (device["name"], device["hca_type"], device["firmware"]) == (
        "mlx4_0",
        "MT4099",
        "2.42.5000",
    )
    assert (device["node_guid"], device["system_image_guid"]) == (
        "0002:c903:00a4:e720",
        "0002:c903:00a4:e723",
    )
    assert (first["port"], first["lid"], first["sm_lid"], first["port_guid"]) == (
        1,
        3,
        3,
        "0002:c903:00a4:e721",
    )
    assert (second["port"], second["lid"], second["sm_lid"], second["port_guid"]) == (
        2,
        2,
        2,
        "0002:c903:00a4:e722",
    )
    assert (first["physical_state"], first["width"], first["unavailable"]["netdev"]) == (
        "link_up",
        None,
        ABSENT,
    )
    assert (
        device["bus_id"],
        device["virtual_function"],
        first["gids"],
        first["nccl_gid_index"],
    ) == (None, None, None, None)
    assert (
        first["counters"]["xmit_bytes"] is None
        and first["unavailable"]["counters.xmit_bytes"] == ABSENT
    )


def test_ports_that_are_down():
    devices, _remarks = describe("ibstat-h100-polling.txt", read("ibstat-h100-polling.txt"))
    down = {
        device["name"]: device["ports"][0]
        for device in devices
        if device["ports"][0]["state"] == "down"
    }
    assert sorted(port["physical_state"] for port in down.values()) == ["disabled", "polling"]
    assert (
        down["mlx5_11"]["port_guid"] is None
        and down["mlx5_11"]["unavailable"]["port_guid"] == _infiniband.NOT_ASSIGNED
    )


def test_ibstatus():
    expected, (devices, remarks) = (
        facts("ibstatus-a100-9.txt"),
        describe("ibstatus-a100-9.txt", read("ibstatus-a100-9.txt")),
    )
    ports = [port for device in devices for port in device["ports"]]
    assert (len(devices), [port["state"] for port in ports].count("active"), remarks) == (
        int(expected["devices"]),
        int(expected["active"]),
        [],
    )
    assert (
        ports[0]["rate_gb_s"],
        ports[0]["width"],
        ports[0]["speed"],
        ports[0]["lid"],
        ports[0]["sm_lid"],
    ) == (200.0, 4, "HDR", 0x33BF, 1)
    # ibstat says of the same card that this is the port's GUID.
    assert (ports[0]["port_guid"], ports[0]["transport"]) == ("0015:5dff:fd34:11eb", "infiniband")
    last = ports[-1]
    assert (devices[-1]["name"], last["link_layer"], last["rate_gb_s"], last["speed"]) == (
        "mlx5_8",
        "ethernet",
        40.0,
        "QDR",
    )
    assert (last["port_guid"], last["unavailable"]["port_guid"]) == (None, "unknown")
    # Whether Ethernet is RoCE or iWARP, ibstatus doesn't say.
    assert (last["transport"], last["unavailable"]["transport"]) == (None, "node type: " + ABSENT)


@pytest.mark.parametrize("name", of("ibv_devinfo"))
def test_ibv_devinfo(name):
    expected, (devices, _remarks) = facts(name), describe(name, read(name))
    ports = [port for device in devices for port in device["ports"]]
    assert (len(devices), [port["state"] for port in ports].count("active")) == (
        int(expected["hcas"]),
        int(expected["active"]),
    )
    assert len(ports) == int(expected.get("ports", 1)) and [port["state"] for port in ports].count(
        "down"
    ) == int(expected.get("down", 0))
    assert {port["link_layer"] for port in ports} == {
        expected.get("link_layer", "InfiniBand").lower()
    }
    # 'transport: InfiniBand (0)' is printed for RoCE, too.
    assert {port["transport"] for port in ports} == {"roce" if "roce" in name else "infiniband"}
    assert devices[0]["board_id"] == ("MT_0000000425" if "roce" in name else "MT_1090120019")
    assert devices[0]["node_guid"] == (
        "6cb3:1103:0088:55b4" if "roce" in name else "7cfe:9003:00a5:95c0"
    )


@pytest.mark.parametrize("name", of("ibdev2netdev"))
def test_ibdev2netdev(name):
    expected, (devices, _remarks) = facts(name), describe(name, read(name))
    ports = [port for device in devices for port in device["ports"]]
    states = [port["netdev_state"] for port in ports]
    assert (states.count("up"), states.count("down")) == (
        int(expected["up"].split(" ")[0]),
        int(expected["down"]),
    )
    assert [port["netdev"] for port in ports] == re.findall(r"==> (\S+)", read(name))
    assert ("no ib interface" in INDEX[name]["expected_key_facts"]) is not any(
        port["netdev"].startswith("ib") for port in ports
    )


def test_other_forms_of_ibdev2netdev():
    text = "0000:18:00.0 mlx5_0 (MT4129 - MCX75310AAS-NEAT) ConnectX-7 fw 28.39.1002 port 1 (ACTIVE) ==> ibs1 (Up)\nmlx5_1 port 1 ==>  (Down)\n"
    (first, second), _remarks = describe("ibdev2netdev-", text)
    assert (first["name"], first["ports"][0]["netdev"], second["ports"][0]["netdev"]) == (
        "mlx5_0",
        "ibs1",
        None,
    )
    assert second["ports"][0]["unavailable"]["netdev"] == "no interface"


def test_ibdev2netdev_in_columns():
    """job-failures.md, section 2, class N."""
    text = (
        "mlx5_0   port  1  ==>  ibp26s0        (Down)\nmlx5_1\tport  1  ==>  enp27s0f0np0   (Up)\n"
    )
    devices, _remarks = describe("ibdev2netdev-", text)
    assert [(device["name"], device["ports"][0]["netdev_state"]) for device in devices] == [
        ("mlx5_0", "down"),
        ("mlx5_1", "up"),
    ]


@pytest.mark.parametrize("layer", ["Unknown", "unspecified", "OPA", "IB"])
@pytest.mark.parametrize("name", ["ibstat-mlx4-2ports.txt", "ibv_devinfo-roce-blanks.txt"])
def test_a_link_layer_that_nobody_knows(name, layer):
    text = re.sub("(?i)(link.layer:\\s*)\\w+", lambda found: found.group(1) + layer, read(name))
    ports = [port for device in describe(name, text)[0] for port in device["ports"]]
    assert ports and {port["link_layer"] for port in ports} == {None}


def test_no_device():
    assert [parse("") for parse in PARSERS.values()] == [({}, [])] * 4
    assert parse_ibv_devinfo("No IB devices found\n") == ({}, [])


@pytest.mark.parametrize(
    "name, change, said",
    [
        (
            "ibstat-mlx4-2ports.txt",
            lambda text: text[: text.index("\tPort 2")],
            "has 2 ports, but 1 are described: the output is truncated",
        ),
        (
            "ibstat-mlx4-2ports.txt",
            lambda text: text[: -len("iBand\n")],
            "port 2 of mlx4_0 ends without its link layer: the output is truncated",
        ),
        ("ibstat-mlx4-2ports.txt", lambda text: text + text, "line 30 of ibstat: a second mlx4_0"),
        (
            "ibstat-mlx4-2ports.txt",
            lambda text: text.replace("\tPort 2:", "\tPort 1:"),
            "a second port 1",
        ),
        (
            "ibstat-mlx4-2ports.txt",
            lambda text: text.replace("\t\tLMC", "\t\tRate: 40\n\t\tLMC"),
            "line 14 of ibstat: repeated: Rate: 40",
        ),
        (
            "ibstat-mlx4-2ports.txt",
            lambda text: "bash: ibstat: command not found\n" + text,
            "line 1 of ibstat: not a line of a device",
        ),
        (
            "ibstatus-a100-9.txt",
            lambda text: text[: text.index("rate:")],
            "port 1 of mlx5_0 ends without its link layer",
        ),
        (
            "ibstatus-a100-9.txt",
            lambda text: text.replace("'mlx5_1'", "'mlx5_0'"),
            "a second port 1",
        ),
        (
            "ibv_devinfo-roce-blanks.txt",
            lambda text: text[: text.index("port:   1")],
            "has 1 ports, but 0 are described",
        ),
        (
            "ibdev2netdev-mlx4.txt",
            lambda text: text + "mlx4_0 port 2 ==> ib1",
            "line 4 of ibdev2netdev: not the line of a port",
        ),
        (
            "ibdev2netdev-mlx4.txt",
            lambda text: text + "mlx4_0 port 2 ==> ib1 (Up)",
            "line 4 of ibdev2netdev: repeated",
        ),
    ],
)
def test_what_is_cut_or_something_else_is_refused(name, change, said):
    with pytest.raises(ParseError, match=re.escape(said)):
        parser(name)(change(read(name)))


def test_kernel_modules():
    text = (
        "kernel/drivers/infiniband/core/ib_umad.ko.xz: kernel/drivers/infiniband/core/ib_core.ko.xz\n"
        "kernel/fs/nfs/auth-rpcgss.ko:\nkernel/lib/crc16.ko\nkernel/x\n"
    )
    names = ["ib_umad", "ib_core", "auth_rpcgss", "x", "mlx5_ib", "rdma_ucm"]
    assert module_states(
        names, ["mlx5_ib", "ib_core"], text, "kernel/drivers/infiniband/core/rdma_ucm.ko\n"
    ) == {
        "ib_umad": "available",
        "ib_core": "loaded",
        "auth_rpcgss": "available",
        "x": "missing",
        "mlx5_ib": "loaded",
        "rdma_ucm": "loaded",
    }


# --- any input: an error or what was there, nothing in between -----------------------------------------------------------------


def values(devices):
    """All that is said of the devices, by device, port and key."""
    return {
        (device["name"], part.get("port"), key): value
        for device in devices
        for part in [device] + device["ports"]
        for key, value in part.items()
        if value not in (None, [], {})
        and key not in ("ports", "unavailable", "counters", "errors", "hw_counters")
    }


@given(name=st.sampled_from(sorted(INDEX)), data=st.data())
@any_input
def test_a_cut_output_is_refused_or_says_what_the_whole_one_does(name, data):
    text = read(name)
    whole, _remarks = describe(name, text)
    try:
        cut, _remarks = describe(name, text[: data.draw(st.integers(0, len(text)))])
    except ParseError:
        return
    assert values(cut).items() <= values(whole).items()


@given(name=st.sampled_from(sorted(INDEX)), data=st.data())
@any_input
def test_lines_that_are_lost_doubled_or_strange(name, data):
    """A value is right or absent: the value of a different port would be worse than none."""
    lines = read(name).splitlines()
    whole, _remarks = describe(name, read(name))
    place = data.draw(st.integers(0, len(lines) - 1))
    change = data.draw(st.sampled_from(["lost", "doubled", "strange"]))
    strange = data.draw(st.text(max_size=40))
    changed = {
        "lost": lines[:place] + lines[place + 1 :],
        "doubled": lines[:place] + [lines[place]] + lines[place:],
        "strange": lines[:place] + [strange] + lines[place:],
    }[change]
    try:
        devices, _remarks = describe(name, "\n".join(changed))
    except ParseError:
        return
    assert values(devices).items() <= values(whole).items()


@given(tool=st.sampled_from(sorted(PARSERS)), text=st.text(max_size=300))
@any_input
def test_arbitrary_text_is_parsed_or_rejected(tool, text):
    try:
        devices, _remarks = PARSERS[tool](text)
    except ParseError:
        return
    for name, texts in devices.items():
        nulls_have_reasons(describe_device(name, texts, absent=ABSENT))


PATHS = [
    "node_type",
    "node_guid",
    "device",
    "device/physfn",
    "device/current_link_speed",
    "device/current_link_width",
    "device/numa_node",
    "device/net/eth0/dev_port",
    "device/net/eth0/dev_id",
    "device/net/eth1/dev_port",
    "net/eth0/operstate",
    "net/eth0/bonding/slaves",
    "ports/1/link_layer",
    "ports/1/state",
    "ports/1/phys_state",
    "ports/1/rate",
    "ports/1/lid",
    "ports/1/gids/0",
    "ports/1/gids/3",
    "ports/1/gid_attrs/types/0",
    "ports/1/gid_attrs/types/3",
    "ports/1/gid_attrs/ndevs/0",
    "ports/1/gid_attrs/ndevs/3",
    "ports/1/counters/port_xmit_data",
    "ports/1/counters_ext/port_xmit_data_64",
    "ports/1/counters/symbol_error",
    "ports/1/hw_counters/np_cnp_sent",
    "ports/x/state",
    "ports/01/state",
]
WORDS = st.one_of(
    st.text(max_size=30),
    st.integers().map(str),
    st.sampled_from(
        [
            "",
            "0x0",
            "4: ACTIVE",
            "ACTIVE",
            "InfiniBand",
            "Ethernet",
            "1: CA",
            "4: RNIC",
            "100 Gb/sec (4X EDR)",
            "2.5 Gb/sec (1X)",
            "RoCE v2",
            "IB/RoCE v1",
            "eth0",
            "0000:18:00.0",
            "9" * 5000,
            "N/A (no PMA)",
            "0000:0000:0000:0000:0000:ffff:c000:020b",
            "fe80:0000:0000:0000:a288:c2ff:fee3:142a",
        ]
    ),
)


@given(
    texts=st.dictionaries(st.sampled_from(PATHS), WORDS),
    errors=st.dictionaries(st.sampled_from(PATHS), st.just("Invalid argument")),
)
@any_input
def test_any_files(texts, errors):
    device = describe_device(
        "mlx5_0", texts, errors, networks=[ipaddress.ip_network("192.0.2.0/24")]
    )
    nulls_have_reasons(device)
    for port in device["ports"]:
        chosen = [gid for gid in port["gids"] or [] if gid["index"] == port["nccl_gid_index"]]
        assert (
            port["nccl_gid_index"] is None
            or [gid["type"] for gid in chosen] == ["RoCE v2"]
            and port["transport"] == "roce"
        )
        assert (
            port["rate_gb_s"] is None
            or texts["ports/%d/rate" % port["port"]].startswith("%g" % port["rate_gb_s"])
            or port["rate_gb_s"] > 99999
        )


# --- flow control of RoCE -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lines, found",
    [
        # mlx5, by the kernel's document of its counters. A counter of discards has the sum of the
        # two others.
        (
            "rx_packets: 99\nrx_prio0_pause: 0\nrx_prio3_pause: 1204\nrx_prio3_pause_duration: 77\nrx_prio3_pause_transition: 602\n"
            "tx_prio3_pause: 5\ntx_prio4_pause: 6\nrx_prio3_buf_discard: 2\nrx_prio3_cong_discard: 5\nrx_prio3_discards: 7\nrx_prio4_discards: 1\n"
            "tx_pause_storm_warning_events: 9\ntx_pause_storm_error_events: 1",
            {"rx_pause": 1204, "tx_pause": 11, "discards": 8, "storms": 1},
        ),
        # bnxt_en and ice.
        (
            "rx_pfc_ena_frames_pri3: 4\ntx_pfc_ena_frames_pri3: 2\npfc_pri3_rx_duration_us: 8",
            {"rx_pause": 4, "tx_pause": 2},
        ),
        (
            "rx_priority_3_xoff.nic: 6\nrx_priority_3_xon.nic: 6\ntx_priority_0_xoff.nic: 0",
            {"rx_pause": 6, "tx_pause": 0},
        ),
        ("rx_packets: 4\nrx_pause: 3", {}),
        ("rx_prio3_pause: many\nrx_prio3_pause", {}),
        ("", {}),
    ],
)
def test_flow_control_by_priority(lines, found):
    text = "NIC statistics:\n" + "".join("     %s\n" % line for line in lines.splitlines())
    assert _infiniband.parse_pfc(text) == found
