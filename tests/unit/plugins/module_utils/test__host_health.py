"""Kernel logs, clocks and file systems, from output of their tools."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.trainyard.gpu.plugins.module_utils import _host_health

# Lines as they stand in public reports: of drivers 304 to 595, by dmesg, journalctl and syslog.
LINES = {
    "[ 1234.567890] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.": (
        "Xid",
        "0000:3b:00",
        79,
        "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        1234.56789,
    ),
    "[   12.000001] node-a kernel: NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.": (
        "Xid",
        "0000:10:1c",
        63,
        "pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.",
        12.000001,
    ),
    "<4>[  966.503025] NVRM: Xid (0000:01:00): 31, Ch 0000000b, engmask 00000120, intr 10000000": (
        "Xid",
        "0000:01:00",
        31,
        "Ch 0000000b, engmask 00000120, intr 10000000",
        966.503025,
    ),
    "Nov 18 17:26:39 archlinux kernel: NVRM: Xid (0000:00:05): 9, Channel 00000000 Instance 000091d8 status 0000001d": (
        "Xid",
        "0000:00:05",
        9,
        "Channel 00000000 Instance 000091d8 status 0000001d",
        None,
    ),
    "[5.5] NVRM: Xid (PCI:0000:C1:00 GPU-I:04): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No": (
        "Xid",
        "0000:c1:00",
        94,
        "pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No",
        5.5,
    ),
    "[6.5] NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)": (
        "Xid",
        "0018:01:00",
        145,
        "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)",
        6.5,
    ),
    "[   38.178720] nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ interrupt": (
        "SXid",
        "0000:04:00.0",
        22013,
        "Non-fatal, Link 44 Minion Link DLREQ interrupt",
        38.17872,
    ),
}
# Not errors, or nothing that can be told.
SILENT = [
    "[   38.175561] nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Data {0x0000002b, 0x0000002b}",
    "[   38.180708] nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Severity 0 Engine instance 44 Sub-engine instance 00",
    "[ 1843.439669] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build",
    "[ 1843.439669] NVRM: Xid (PCI:0000:3b:00): ",
    "[ 1843.439669] NVRM: Xid (PCI:0000:3b",
    "[ 1.0] docker0: port 1 named Xid (PCI:0000:3b:00): 79",
    "",
]
LOST = """\
[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0
               NVRM: (PCI ID: 10de:26b5) installed in this system has
               NVRM: fallen off the bus and is not responding to commands.
[ 1843.439662] NVRM: The NVIDIA probe routine failed for 1 device(s).
"""


def without_meaning(entry):
    return {key: value for key, value in entry.items() if key not in ("cause", "stops", "fix")}


@pytest.mark.parametrize(
    "kind, code, text, cause, stops",
    [
        ("Xid", 79, "GPU has fallen off the bus.", "the GPU has fallen off the bus", True),
        ("Xid", 31, "Ch 0000000b", "a program used memory that is not its own", False),
        ("Xid", 63, "", "a memory page or row is pending retirement", False),
        ("Xid", 144, "NETIR Fatal XC0", "an NVLink failed", True),
        ("Xid", 150, "RLW_RXPIPE Nonfatal XC0 i0 Link 13", "an NVLink failed", False),
        ("Xid", 999, "", "an error that is not listed in the collection", False),
        ("SXid", 20034, "Fatal, Link 30 LTSSM Fault Up", "an NVSwitch reports an error", True),
        ("SXid", 22013, "Non-fatal, Link 44", "an NVSwitch reports an error", False),
        # Not the Xid of this number.
        ("SXid", 79, "Non-fatal, Link 44", "an NVSwitch reports an error", False),
    ],
)
def test_the_meaning_of_an_error(kind, code, text, cause, stops):
    told = _host_health.meaning(kind, code, text)
    assert (told["cause"], told["stops"]) == (cause, stops) and told["fix"]


def test_each_action_is_that_of_an_error():
    known = [*_host_health.XIDS.values(), _host_health._UNKNOWN, _host_health._SWITCH]
    assert {xid.action for xid in known} == set(_host_health.ACTIONS)


def test_the_errors_that_drain_a_node():
    draining = [code for code, xid in _host_health.XIDS.items() if xid.drains]
    assert draining == [48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140]


@pytest.mark.parametrize("line", LINES)
def test_an_error_of_a_gpu(line):
    kind, device, code, text, seconds = LINES[line]
    assert [without_meaning(entry) for entry in _host_health.parse_gpu_errors(line + "\r\n")] == [
        {
            "kind": kind,
            "device": device,
            "code": code,
            "text": text,
            "count": 1,
            "first_s": seconds,
            "last_s": seconds,
        }
    ]


@pytest.mark.parametrize("line", SILENT)
def test_a_line_that_is_none(line):
    assert _host_health.parse_gpu_errors(line) == []


def test_one_that_comes_back_is_counted():
    line = "[ %d.5] NVRM: Xid (PCI:0000:3b:00): %d, %s"
    told = _host_health.parse_gpu_errors(
        "\n".join(
            [
                line % (1, 31, "first"),
                line % (2, 48, ""),
                line % (3, 31, "then"),
                line % (9, 31, "last"),
            ]
        )
    )
    assert [
        (entry["code"], entry["count"], entry["first_s"], entry["last_s"], entry["text"])
        for entry in told
    ] == [(31, 3, 1.5, 9.5, "last"), (48, 1, 2.5, 2.5, "")]


def test_a_gpu_that_is_gone_without_an_xid():
    expected = {
        "kind": "Xid",
        "device": "0000:b3:00",
        "code": 79,
        "text": "GPU has fallen off the bus",
        "count": 1,
        "first_s": 1843.308145,
        "last_s": 1843.308145,
    }
    (lost,) = _host_health.parse_gpu_errors(LOST)
    assert without_meaning(lost) == expected
    assert lost["cause"] == "the GPU has fallen off the bus" and lost["stops"]
    # It is the same error as the Xid of that GPU.
    (both,) = _host_health.parse_gpu_errors(
        "[ 1800.1] NVRM: Xid (PCI:0000:b3:00): 79, GPU has fallen off the bus.\n" + LOST
    )
    assert both["count"] == 2
    assert _host_health.parse_gpu_errors("\n".join(LOST.splitlines()[1:])) == []


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([*LINES, *SILENT, *LOST.splitlines()])),
    st.integers(0, 200),
    st.text(max_size=20),
)
def test_no_log_makes_it_crash_or_invent_an_error(lines, cut, noise):
    text = "\n".join(lines)
    told = _host_health.parse_gpu_errors(text[: len(text) - cut] + noise)
    assert sum(entry["count"] for entry in told) <= text.count("Xid (") + text.count(
        "off the bus"
    ) + noise.count("Xid (")
    assert all(
        entry["code"] >= 0 and entry["device"] and entry["kind"] in ("Xid", "SXid")
        for entry in told
    )


@pytest.mark.parametrize(
    "text, synchronized", [("NTPSynchronized=yes\n", True), ("NTPSynchronized=no\n", False)]
)
def test_timedatectl(text, synchronized):
    assert _host_health.parse_timedatectl(text) is synchronized


CHRONYC = "A29FC87B,162.159.200.123,4,1763922900.123,0.000012,0.000034,0.000056,-1.234,0.001,0.012,0.0123,0.0004,64.5,%s\n"


@pytest.mark.parametrize(
    "leap, synchronized", [("Normal", True), ("Insert second", True), ("Not synchronised", False)]
)
def test_chronyc(leap, synchronized):
    assert _host_health.parse_chronyc(CHRONYC % leap) is synchronized


def test_free_space_from_stat():
    assert _host_health.parse_stat("4096 19787204 16777216 16310117\n") == {
        "free_bytes": 81048387584,
        "inodes": 16777216,
        "inodes_free": 16310117,
    }
    assert _host_health.parse_stat("4096 5 0 0\n")["inodes"] == 0


@pytest.mark.parametrize(
    "parse, text",
    [
        (_host_health.parse_timedatectl, "NTPSynchronized="),
        (_host_health.parse_timedatectl, "Unknown verb show."),
        (_host_health.parse_chronyc, "506 Cannot talk to daemon"),
        (_host_health.parse_stat, "4096 1 2"),
        (_host_health.parse_stat, "? ? ? ?"),
    ],
)
def test_garbage_is_named(parse, text):
    with pytest.raises(
        _host_health.ParseError, match=text.split(" ", maxsplit=1)[0].replace("?", r"\?")
    ):
        parse(text)
