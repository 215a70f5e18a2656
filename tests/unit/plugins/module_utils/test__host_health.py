"""Kernel logs, clocks and file systems, from output of their tools."""

from __future__ import annotations

import time

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
    meaning = ("cause", "action", "ended", "fix")
    return {key: value for key, value in entry.items() if key not in meaning}


@pytest.mark.parametrize(
    "kind, code, text, cause, action",
    [
        ("Xid", 79, "GPU has fallen off the bus.", "the GPU has fallen off the bus", "drain"),
        ("Xid", 31, "Ch 0000000b", "a program used memory that is not its own", "stop_job"),
        ("Xid", 63, "", "a memory page or row is pending retirement", "warn"),
        ("Xid", 144, "NETIR Fatal XC0", "an NVLink failed", "drain"),
        ("Xid", 145, "", "an NVLink failed", "drain"),
        ("Xid", 149, "NETIR_LINK_EVT  Fatal   XC0 i0 Link 00", "an NVLink failed", "drain"),
        ("Xid", 150, "RLW_RXPIPE Nonfatal XC0 i0 Link 13", "an NVLink failed", "warn"),
        ("Xid", 999, "", "an error that is not listed in the collection", "warn"),
        ("SXid", 20034, "Fatal, Link 30 LTSSM Fault Up", "an NVSwitch reports an error", "drain"),
        ("SXid", 22013, "Non-fatal, Link 44", "an NVSwitch reports an error", "warn"),
        # Not the Xid of this number.
        ("SXid", 79, "Non-fatal, Link 44", "an NVSwitch reports an error", "warn"),
    ],
)
def test_the_meaning_of_an_error(kind, code, text, cause, action):
    told = _host_health.meaning(kind, code, text)
    assert (told["cause"], told["action"]) == (cause, action) and told["fix"]


@pytest.mark.parametrize(
    "words, action",
    [
        ("None", "ignore"),
        ("GPU Reset Required", "drain"),
        ("Reset", "drain"),
        ("Node Reboot Required", "drain"),
        ("reboot", "drain"),
        ("Drain P2P", "drain"),
        ("Drain and Reset", "drain"),
        ("Recover the IMEX domain", "warn"),
        ("", "warn"),
    ],
)
def test_a_recovery_action(words, action):
    assert _host_health.recovery(words)[0] == action
    text = "GPU recovery action changed from 0x7 (Other) to 0x1 (%s)" % words
    assert _host_health.meaning("Xid", 154, text)["action"] == action


def test_each_advice_is_that_of_an_error():
    known = [
        *_host_health.XIDS.values(),
        _host_health._UNKNOWN,
        *_host_health._SWITCH.values(),
    ]
    assert {xid.advice for xid in known} == set(_host_health.ADVICE)
    assert {xid.action for xid in known} == set(_host_health.ACTIONS)


def test_the_table_is_complete():
    """NVIDIA's catalogue of 2025-10 has 172 codes.

    The proposals for each are of the document that the issue names.
    """
    assert sorted(_host_health.XIDS) == list(range(1, 173))
    codes = {
        action: [code for code in range(1, 173) if _host_health.XIDS[code].action == action]
        for action in _host_health.ACTIONS
    }
    assert codes["ignore"] == [14, 106, 107, 108, 121]
    assert codes["drain"] == [46, 48, 54, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143] + [
        *range(144, 152),
        156,
        158,
    ]
    engines = [*range(39, 42), *range(70, 73), *range(75, 78), 85, *range(126, 136)]
    videos = [68, 83, 84, 88, 89, 96, 97, 98, 82, *range(99, 106), 86, 139]
    programs = [8, 11, 13, 25, 31, 32, 43, 45, 60, 69, 80, 94, 137]
    assert codes["stop_job"] == sorted(engines + videos + programs)


A = "[%d.0] NVRM: Xid (PCI:0000:a1:00): %s"
PROBED = "[%d.0] nvidia-nvswitch: Probing device 0000:08:00.0, Vendor Id = 0x10de, Device Id = 0x22a3, Class = 0x68000"
CHANGED = "154, GPU recovery action changed from 0x%s to 0x%s"


def now(*lines):
    """What counts after these lines: action by kind, device and code.

    A time is put in where there is room for it.
    """
    stamped = [line % number if line.count("%") == 1 else line for number, line in enumerate(lines)]
    return {
        (entry["kind"], entry["device"], entry["code"]): entry["action"]
        for entry in _host_health.judged(
            _host_health.parse_gpu_errors("\n".join(stamped) + "\n"), [], ""
        )
    }


def of_a(text, number=1):
    return A % (number, text)


def test_the_worst_text_of_a_device_and_code_decides():
    fatal, nonfatal = of_a("145, RLW_REMAP Fatal XC0"), of_a("145, RLW_RXPIPE Nonfatal XC0", 2)
    for lines in ((fatal, nonfatal), (nonfatal, fatal), (nonfatal, fatal, nonfatal)):
        assert now(*lines) == {("Xid", "0000:a1:00", 145): "drain"}
        (entry,) = _host_health.parse_gpu_errors("\n".join(lines))
        assert "RLW_REMAP Fatal" in entry["text"] and entry["count"] == len(lines)
    assert now(nonfatal) == {("Xid", "0000:a1:00", 145): "warn"}
    # Of another link or switch.
    other = fatal.replace("a1", "b2")
    assert now(other, nonfatal) == {
        ("Xid", "0000:b2:00", 145): "drain",
        ("Xid", "0000:a1:00", 145): "warn",
    }
    switch = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, %s, Link 30"
    assert now(switch.replace("%s", "Fatal"), switch.replace("%s", "Non-fatal")) == {
        ("SXid", "0000:05:00.0", 20034): "drain"
    }


def test_of_a_recovery_action_the_last_line_counts():
    asked, reboot, none = (
        of_a(CHANGED % ends)
        for ends in (
            ("0 (None)", "1 (GPU Reset Required)"),
            ("1 (GPU Reset Required)", "2 (Node Reboot Required)"),
            ("2 (Node Reboot Required)", "0 (None)"),
        )
    )
    key = ("Xid", "0000:a1:00", 154)
    assert now(asked) == now(asked, reboot) == now(none, asked) == {key: "drain"}
    assert now(asked, none) == now(asked, none, asked, none) == {}
    assert now(asked, of_a(CHANGED % ("1 (GPU Reset Required)", "5 (New Words)"))) == {key: "warn"}


ENDS = {
    "the recovery action is None again": of_a(CHANGED % ("1 (GPU Reset Required)", "0 (None)")),
    "an NVSwitch is probed again": PROBED,
    "the driver is loaded again": "[%d.0] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build",
    "it begins to load": "[%d.0] nvidia-nvlink: Nvlink Core is being initialized, major device number 236",
    "a boot": "[    0.000000] Linux version 6.1.0-28-amd64 (debian-kernel@lists.debian.org) (gcc-12) #1 SMP",
    "a boot in the journal": "-- Boot 4f1c2a0d8a6e4a3fb4c1 --",
    "the PCI core": "[%d.0] nvidia 0000:a1:00.0: reset done",
    "a device that was reset": "[%d.0] vfio-pci 0000:A1:00.0: reset done",
    "the driver's words": "[%d.0] NVRM: GPU 0000:a1:00.0: GPU has been reset",
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_an_error_ends_with_its_cause(end):
    error = of_a("119, pid=1, Timeout waiting for RPC from GSP!")
    key = ("Xid", "0000:a1:00", 119)
    assert now(error, end) == now(end) == now(error, error, end) == {}
    # What comes later counts again, and so does an end that came before.
    assert now(end, error) == now(error, end, error) == {key: "drain"}
    assert [entry["ended"] for entry in _host_health.parse_gpu_errors(error + "\n" + end)][0]
    assert "\n".join([error, end, error]).count("119,") == 2
    (entry,) = [
        entry
        for entry in _host_health.parse_gpu_errors("\n".join([error, end, error]))
        if entry["code"] == 119
    ]
    assert entry["count"] == 2 and not entry["ended"]


def test_a_reset_ends_the_errors_of_its_device_only():
    other = "[1.0] NVRM: Xid (PCI:0000:B2:00): 48, pid=1"
    for name in ("the recovery action is None again", "the PCI core", "the driver's words"):
        assert now(other, of_a("48, pid=1"), ENDS[name]) == {("Xid", "0000:b2:00", 48): "drain"}
    switch = "[1.0] nvidia-nvswitch1: SXid (PCI:0000:%s:00.0): 20034, Fatal, Link 30"
    both = [switch.replace("%s", "08"), switch.replace("%s", "09")]
    assert now(*both, PROBED) == {("SXid", "0000:09:00.0", 20034): "drain"}


def test_a_reset_that_a_program_reports():
    named = "[1.0] NVRM: GPU at PCI:0000:a1:00: GPU-455d8f70-2051-db6c-0430-ffc457bff834"
    done = "[9.0] GPU reset executed: GPU-455d8f70-2051-db6c-0430-ffc457bff834, success: %s"
    error = of_a("109, pid=1, name=python")
    assert now(named, error, done.replace("%s", "true")) == {}
    for no_end in (done.replace("%s", "false"), done.replace("455d8f70", "455d8f71")):
        assert now(named, error, no_end) == {("Xid", "0000:a1:00", 109): "drain"}


@pytest.mark.parametrize(
    "line",
    [
        "[9.0] nvidia 0000:a1:00.0: not ready 65535ms after FLR; giving up",
        "[9.0] NVRM: GPU 0000:a1:00.0: GPU requires reset",
        "[9.0] NVRM: GPU0 nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED]",
        "[9.0] pci 0000:a1:00.0: reset failed",
        "[9.0] nvidia 0000:a1:00.0: resetting",
        # The name of a program that a person has chosen.
        "[9.0] Linux version 6[1234]: segfault at 0 ip 0 sp 0 error 4",
        "[9.0] docker0: port 1 nvidia-nvswitch",
        "[9.0] usb 1-1: reset high-speed USB device number 2",
    ],
)
def test_a_line_that_ends_nothing(line):
    assert now(of_a("79, GPU has fallen off the bus."), line) == {
        ("Xid", "0000:a1:00", 79): "drain"
    }


# A person who may run a program chooses the names of its files, which the kernel tells if it
# crashes, also with line breaks, and the name of its process.
CRASH = "[ 12.3] a[99]: segfault at 0 ip 00 sp 00 error 4 in %s[400000+1000]"


@pytest.mark.parametrize(
    "front", ["", "\n                 ", "kernel: ", "[1.0] ", "\u2028", "x: "]
)
@pytest.mark.parametrize("end", ["", "fallen off the bus"])
def test_a_name_in_a_message_of_the_kernel_is_no_error_and_ends_none(front, end):
    error = {("Xid", "0000:a1:00", 119): "drain"}
    told = of_a("119, pid=1, Timeout waiting for RPC from GSP!")
    for words in (
        "NVRM: Xid (PCI:0000:b2:00): 79, ",
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, ",
        "NVRM: The NVIDIA GPU 0000:b3:00.0\n           NVRM: fallen off the bus",
        "nvidia-nvlink: Nvlink Core is being initialized",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
        "Linux version 6.8.0 (",
        "nvidia 0000:a1:00.0: reset done",
        "nvidia-nvswitch: Probing device 0000:08:00.0",
    ):
        for crash in (CRASH, CRASH.replace("] a", "] gpu-1 kernel: a")):
            assert now(told, crash.replace("%s", front + words + end)) == error
            log = told + "\n" + crash.replace("%s", front + words + end)
            assert now(_host_health.remember({}, "boot", log)[0]) == error


def test_a_long_line_is_read_in_time():
    for piece in (
        "[x] ",
        "[x]",
        "<4>",
        "reset ",
        "0000:",
        "kernel: ",
        "fatal nonfatal ",
        " to 0x0 (",
    ):
        for front in ("[1.0] ", "[1.0] NVRM: ", of_a("145, ")):
            started = time.process_time()
            _host_health.parse_gpu_errors(front + piece * 5000 + "reset NVRM")
            assert time.process_time() - started < 1


def test_a_number_of_many_digits_is_no_code():
    assert now(of_a("7" * 5000 + ", x")) == {}
    assert _host_health.told_lines(of_a("7" * 5000 + ", x")) == []


@pytest.mark.parametrize(
    "text, action",
    [
        # The name of the process stands before the words of the driver.
        ("145, pid=1, name=nonfatal, RLW_REMAP Fatal XC0 i0 Link 1", "drain"),
        ("145, pid=1, name=Fatal, RLW_RXPIPE Nonfatal XC0 i0 Link 1", "warn"),
        (CHANGED % ("0 (None)", "1 (GPU Reset Required), pid=1, name=(None)"), "drain"),
        ("154, pid=1, name=x, " + (CHANGED % ("0 (None)", "3 (Drain P2P)"))[5:], "drain"),
    ],
)
def test_the_name_of_a_process_does_not_decide(text, action):
    assert list(now(of_a(text)).values()) == [action]


def test_a_gpu_that_the_driver_has_not_found_is_missing_after_its_load():
    loaded = "[ 1843.439669] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build"
    begins = "[ 1842.0] nvidia-nvlink: Nvlink Core is being initialized, major device number 236"
    lost = {("Xid", "0000:b3:00", 79): "drain"}
    for load in ((LOST, loaded), (begins, LOST, loaded)):
        assert now(*load) == lost
        # The next load finds it.
        assert now(*load, loaded) == now(*load, begins, loaded) == {}
    assert now(begins, LOST, loaded, begins, LOST, loaded) == lost


def card(recovery_action=None, errors=None, failure=None, bus_id="00000000:A1:00.0"):
    return {
        "bus_id": bus_id,
        "recovery_action": recovery_action,
        "ecc_errors": {"volatile": {"uncorrectable": errors}},
        "remapped_rows_failure": failure,
    }


@pytest.mark.parametrize(
    "text, gpu, driver, action",
    [
        ("95, pid=1", card("None"), "570.158.01", "warn"),
        ("95, pid=1", card("None"), "560.35.03", "drain"),
        ("95, pid=1", card(), "570.158.01", "drain"),
        ("95, pid=1", card("Reset"), "570.158.01", "drain"),
        ("95, pid=1", card("None", bus_id="00000000:B2:00.0"), "570.158.01", "drain"),
        # Counters begin again at a reset.
        ("48, pid=1", card(errors=0), "535.54.03", "warn"),
        ("48, pid=1", card(errors=1), "535.54.03", "drain"),
        ("64, pid=1", card(failure=False), "535.54.03", "warn"),
        ("64, pid=1", card(failure=True), "535.54.03", "drain"),
        ("64, pid=1", card(), "535.54.03", "drain"),
        # The recovery action does not cover these.
        ("46, pid=1", card("None", 0, False), "580.95.05", "drain"),
        ("119, pid=1", card("None", 0, False), "580.95.05", "drain"),
        ("140, pid=1", card("None", 0, False), "580.95.05", "drain"),
        ("79, GPU has fallen off the bus.", card("None", 0, False), "580.95.05", "drain"),
        # From driver 570 and 575 on.
        ("109, pid=1", card("None"), "565.57.01", "drain"),
        ("109, pid=1", card("None"), "570.158.01", "warn"),
        ("143, pid=1", card("None"), "570.158.01", "drain"),
        ("143, pid=1", card("None"), "575.51.02", "warn"),
        (CHANGED % ("0 (None)", "1 (GPU Reset Required)"), card("None"), "580.95.05", "warn"),
        # Never worse than the log.
        ("31, pid=1", card("Reset", 5, True), "580.95.05", "stop_job"),
    ],
)
def test_the_state_of_the_card_is_newer_than_the_log(text, gpu, driver, action):
    (error,) = _host_health.judged(_host_health.parse_gpu_errors(of_a(text)), [gpu], driver)
    assert error["action"] == action and error["fix"]


def test_a_reset_by_uuid_ends_an_error_whose_uuid_was_told_long_before():
    uuid = "GPU-455d8f70-2051-db6c-0430-ffc457bff834"
    log, record = "", {}
    for line in (
        "[1.0] NVRM: GPU at PCI:0000:a1:00: %s" % uuid,
        of_a("45, pid=1, name=python", 2),
        of_a("119, pid=1, Timeout waiting for RPC from GSP!", 3),
        "[9.0] GPU reset executed: %s" % uuid,
    ):
        log += line + "\n"
        text, record = _host_health.remember(record, "boot", log)
    assert [entry["ended"] for entry in _host_health.parse_gpu_errors(text)] == [True]
    assert record["open"] == []


def test_a_device_has_one_name():
    assert (
        {
            _host_health.device_of(name)
            for name in ("00000000:A1:00.0", "0000:a1:00", "0000:A1:00.0")
        }
        == {"0000:a1:00"}
        and _host_health.device_of("0018:01:00.0") == "0018:01:00"
        and _host_health.device_of("00010018:01:00.0") == "10018:01:00"
        and _host_health.device_of("odd") == "odd"
    )


def test_what_the_kernel_forgets_is_remembered():
    error = of_a("119, pid=1, Timeout waiting for RPC from GSP!")
    named = "[0.5] NVRM: GPU at PCI:0000:a1:00: GPU-455d8f70-2051-db6c-0430-ffc457bff834"
    noise = "[2.0] NVRM: Xid (PCI:0000:a1:00): 31, pid=2, MMU Fault"
    text, record = _host_health.remember({}, "boot-1", "\n".join([named, error, noise]))
    assert now(text)[("Xid", "0000:a1:00", 119)] == "drain"
    for later in ("", "[3.0] eth0: link is up", noise, error):
        text, record = _host_health.remember(record, "boot-1", later)
        assert now(text)[("Xid", "0000:a1:00", 119)] == "drain"
    # The reset of a GPU whose UUID is no longer in the log.
    done = "[9.0] GPU reset executed: GPU-455d8f70-2051-db6c-0430-ffc457bff834"
    text, after = _host_health.remember(record, "boot-1", done)
    assert now(text) == {} and after["open"] == []
    # The same text as before, and later.
    text, again = _host_health.remember(after, "boot-1", "\n".join([done, error]))
    assert now(text) == {("Xid", "0000:a1:00", 119): "drain"}
    text, empty = _host_health.remember(again, "boot-2", "")
    assert now(text) == {} and empty["open"] == []


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "NVRM: Xid (PCI:0000:a1:00): 119, pid=%d",
                "NVRM: Xid (PCI:0000:b2:00): 145, RLW_REMAP Fatal XC0 %d",
                "NVRM: Xid (PCI:0000:b2:00): 145, RLW_REMAP Nonfatal XC0 %d",
                "NVRM: Xid (PCI:0000:a1:00): " + CHANGED % ("1 (GPU Reset Required)", "0 (None)"),
                "nvidia-nvswitch0: SXid (PCI:0000:08:00.0): 20034, Fatal, Link %d",
                "nvidia-nvswitch: Probing device 0000:08:00.0, Vendor Id = 0x10de",
                "eth0: link is up",
            ]
        ),
        max_size=30,
    ),
    st.lists(st.integers(0, 30), max_size=5),
    st.integers(1, 30),
)
def test_a_buffer_that_forgets_changes_no_verdict(lines, looks, size):
    """As long as each line is in the buffer at one look, and whatever has left it since."""
    stamped = [
        "[%d.5] %s" % (number, line.replace("%d", str(number))) for number, line in enumerate(lines)
    ]
    record, seen = {}, 0
    for look in sorted({*looks, len(stamped)}):
        begin = min(seen, max(0, look - size))
        text, record = _host_health.remember(record, "boot", "\n".join(stamped[begin:look]))
        seen = look
    draining = {key for key, action in now(text).items() if action == "drain"}
    whole = now(*stamped)
    assert draining == {key for key, action in whole.items() if action == "drain"}


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
    assert lost["cause"] == "the GPU has fallen off the bus" and lost["action"] == "drain"
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
