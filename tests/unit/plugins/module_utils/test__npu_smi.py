"""npu-smi info: published outputs (tests/fixtures/npu-smi), layouts of the vendor's source (310B,
950), and possible variants of them.
"""

import csv
import hashlib
import re
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies

from ansible_collections.trainyard.gpu.plugins.module_utils._npu_smi import (
    ABSENT,
    ParseError,
    device_nodes_finding,
    merged_devices,
    parse_address,
    parse_conf,
    parse_info,
    unhealthy,
    why_no_answer,
)

FIXTURES = Path(__file__).parents[3] / "fixtures/npu-smi"


def index():
    with open(FIXTURES / "INDEX.tsv", encoding="utf-8", newline="") as stream:
        return {row["path"]: row for row in csv.DictReader(stream, delimiter="\t")}


def read(name):
    return (FIXTURES / name).read_bytes().decode("utf-8")


def facts(row):
    return dict(fact.split("=", 1) for fact in row["expected_key_facts"].split("; ") if "=" in fact)


TABLES = {name: row for name, row in index().items() if re.match(r"npu-[0-9]", name)}
A3, OLD, P310, ELIDED = (
    read("npu-%s.txt" % name)
    for name in (
        "25.2.3-a3-8x2-processes",
        "1.8.21-8x910A",
        "22.0.0-310P3",
        "23.0.rc2-910B1-elided",
    )
)

# What npu-smi prints for a 950 (no chips, NPU and name in cells of their own, none of them on the
# PCI bus) and on a board that has no PCI bus.
CHIP_950 = """\
+-------------------------------------------------------------------------------------------------+
| npu-smi 26.1.0                                   Version: 26.1.0                                |
+--------+------------------+---------------+-----------------------------------------------------+
| NPU ID | Name             | Health        | Power(W)    Temp(C)           Hugepages-Usage(page) |
|        |                  | Bus-Id        | NPU Util(%) Memory-Usage(MB)  HBM-Usage(MB)         |
+========+==================+===============+=====================================================+
| 5      | Ascend950PR      | Warning       | 201.5       41                0     / 0             |
|        |                  | NA            | 83          0    / 0          90112 / 131072        |
+========+==================+===============+=====================================================+
+---------------------------+---------------+-----------------------------------------------------+
| NPU ID                    | Process id    | Process name             | Process memory(MB)       |
+===========================+===============+=====================================================+
| 5                          | 4711          | python | tee             | 90000                   |
+===========================+===============+=====================================================+
[WARNING]The driver package may not be completely installed, which may cause function abnormal. Please reinstall it.
"""
BOARD_310B = """\
+--------------------------------------------------------------------------------------------------------+
| npu-smi 23.0.0                                   Version: 23.0.0                                       |
+-------------------------------+-----------------+------------------------------------------------------+
| NPU     Name                  | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |
| Chip    Device                | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |
+===============================+=================+======================================================+
| 0       310B4                 | Alarm           | NA           50                15    / 15            |
| 0       0                     | NA              | 0            NA / 7545                               |
+===============================+=================+======================================================+
"""


def test_index_lists_every_fixture():
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in FIXTURES.iterdir()
        if path.name != "INDEX.tsv"
    }
    assert {name: row["sha256"] for name, row in index().items()} == found


@pytest.mark.parametrize("name", sorted(TABLES))
def test_every_published_table(name):
    expected, table = facts(TABLES[name]), parse_info(read(name))
    versions = [expected[key] for key in ("tool", "version") if key in expected]
    assert (table.tool_version, table.driver_version, table.cut) == (versions[0], versions[-1], "")
    count = expected.get("npus") or expected.get("npus_shown") or expected["cards_shown"]
    assert len(table.npus) == int(re.match("[0-9]+", count)[0])
    chips = [chip for npu in table.npus for chip in npu["chips"]]
    assert len(chips) == int(expected.get("chips_shown", len(table.npus)))
    for chip in chips:
        assert {key for key, value in chip.items() if value is None} == set(chip["unavailable"])
        assert (
            re.fullmatch("0000:[0-9a-f]{2}:00.0", chip["bus_id"])
            and chip["health"] == "OK"
            and 20 < chip["temperature_c"] < 60
        )


def test_a_card_with_two_chips_and_processes():
    table = parse_info(A3)
    assert [npu["id"] for npu in table.npus] == list(range(8)) and [
        chip["phy_id"] for npu in table.npus for chip in npu["chips"]
    ] == list(range(16))
    first, second = table.npus[0]["chips"]
    assert first == {
        "id": 0,
        "name": "Ascend910",
        "health": "OK",
        "phy_id": 0,
        "logic_id": None,
        "bus_id": "0000:9d:00.0",
        "power_w": 232.5,
        "temperature_c": 52,
        "utilization_percent": 17,
        "hugepages_used": 0,
        "hugepages_total": 0,
        "memory_used_mib": 0,
        "memory_total_mib": 0,
        "hbm_used_mib": 53444,
        "hbm_total_mib": 65536,
        "unavailable": {"logic_id": ABSENT},
    }
    assert (
        second["power_w"] is None
        and second["unavailable"] == {"power_w": "-", "logic_id": ABSENT}
        and second["bus_id"] == "0000:9f:00.0"
    )
    assert (
        table.npus[0]["power_w"],
        table.npus[0]["memory_used_mib"],
        table.npus[0]["memory_total_mib"],
    ) == (232.5, 106392, 131072)
    assert table.npus[1]["processes"] == [
        {"chip": 0, "pid": 3330598, "name": None, "memory_mib": 50117},
        {"chip": 1, "pid": 3333165, "name": None, "memory_mib": 50119},
    ]
    assert (
        sum(len(npu["processes"]) for npu in table.npus) == 14 and table.npus[3]["processes"] == []
    )


def test_memory_without_hbm_and_beside_it():
    (npu,) = parse_info(P310).npus
    assert (
        npu["name"],
        npu["memory_used_mib"],
        npu["memory_total_mib"],
        npu["chips"][0]["logic_id"],
        npu["processes"],
    ) == ("310P3", 994, 21534, 0, None)
    assert npu["chips"][0]["unavailable"] == {
        "hbm_used_mib": ABSENT,
        "hbm_total_mib": ABSENT,
        "phy_id": ABSENT,
    }
    # DDR of the control CPU is not the memory of the NPU.
    old = parse_info(OLD).npus[3]
    assert (
        old["memory_total_mib"],
        old["chips"][0]["memory_used_mib"],
        old["chips"][0]["hugepages_total"],
    ) == (32768, 3168, None)


def test_lines_that_were_left_out_are_remarks():
    table = parse_info("$ npu-smi info\n" + ELIDED)
    assert table.remarks == ["$ npu-smi info", "..."] and [npu["id"] for npu in table.npus] == [
        0,
        1,
        7,
    ]


def test_an_npu_without_chips():
    table = parse_info(CHIP_950)
    (npu,) = table.npus
    assert (npu["id"], npu["name"], npu["health"], npu["power_w"], npu["memory_used_mib"]) == (
        5,
        "Ascend950PR",
        "Warning",
        201.5,
        90112,
    )
    assert (
        npu["chips"][0]["id"],
        npu["chips"][0]["utilization_percent"],
        npu["chips"][0]["bus_id"],
    ) == (0, 83, None)
    assert npu["chips"][0]["unavailable"]["bus_id"] == "NA"
    assert npu["processes"] == [
        {"chip": 0, "pid": 4711, "name": "python | tee", "memory_mib": 90000}
    ]
    assert table.remarks[0].startswith("[WARNING]The driver package") and table.cut == ""


def test_a_board_without_a_pci_bus():
    (npu,) = parse_info(BOARD_310B).npus
    assert (npu["health"], npu["memory_used_mib"], npu["memory_total_mib"], npu["power_w"]) == (
        "Alarm",
        None,
        7545,
        None,
    )
    assert (
        npu["chips"][0]["unavailable"]["memory_used_mib"] == "NA"
        and npu["chips"][0]["unavailable"]["power_w"] == "NA"
    )
    (finding,) = unhealthy([npu])
    assert (finding["kind"], finding["device"], finding["found"], finding["expected"]) == (
        "unhealthy",
        0,
        "chip 0: Alarm",
        "OK",
    )
    assert unhealthy(parse_info(A3).npus) == []


def test_widths_do_not_matter():
    """All blanks of a cell but one can go, and the rules can be of any length."""
    narrow = "\n".join(
        re.sub("([-=])[-=]+", r"\1" * 9, line) if line[0] == "+" else re.sub(" +", " ", line)
        for line in A3.splitlines()
    )
    wide = "\n".join("  " + re.sub(r" \|", "     |", line) + "\r" for line in A3.splitlines())
    assert parse_info(narrow) == parse_info(wide) == parse_info(A3)


@pytest.mark.parametrize(
    "old, new, said",
    [
        (
            "| 0     0                   | 0000:9D",
            "| 0     0                   | x | 0000:9D",
            "line 8 has other columns",
        ),
        (
            "| 3     Ascend910           | OK            | 170.6       51",
            "| three Ascend910           | OK            | 170.6       51",
            "'three' in column NPU",
        ),
        (
            "| 0     0                   | 0000:9D",
            "|                           | 0000:9D",
            "line 8 has no number of a chip",
        ),
        (
            "170.6       51                0    / 0 ",
            "170.6       51                         ",
            "line 25 has 2 values for the 3 columns",
        ),
        (
            "| 0     2                   | 0000:99:00.0",
            "| 0     2                   | 0000:9d:00.0",
            "same bus id: '0000:9d:00.0'",
        ),
        (
            "| 0     2                   | 0000:99",
            "| 0     1                   | 0000:99",
            "same Phy-ID: '1'",
        ),
        (
            "| 1     3                   | 0000:9B",
            "| 0     3                   | 0000:9B",
            "same npu and chip",
        ),
        (
            "| 0       0                 | 3325989",
            "| 0       0                 | 33259x9",
            "is no row of a process",
        ),
        (
            "| 0       0                 | 3325989",
            "| 0                         | 3325989",
            "is no row of a process",
        ),
        (
            "| 1     1                   | 0000:9F:00.0  | 17          0    / 0          52948/ 65536         |\n",
            "| 1\n",
            "line 11 has no end",
        ),
        (
            "| 0     0                   | 0000:9D",
            "| 9     Ascend910           | OK  | - 1 0 / 0 |\n| 0     0                   | 0000:9D",
            "third row of a chip",
        ),
    ],
)
def test_garbage_is_an_error_with_its_line(old, new, said):
    assert A3.count(old) == 1
    with pytest.raises(ParseError, match=said):
        parse_info(A3.replace(old, new))


def test_two_tables_and_other_output():
    with pytest.raises(ParseError, match="line 2 begins a table, and another one follows"):
        parse_info(P310 + P310)
    for text in (
        "",
        "npu-smi: command not found",
        read("npu-topo-hccs.txt"),
        read("npu-t-usages.txt"),
        "+----+\n| NVIDIA-SMI 535 |\n+----+",
    ):
        assert parse_info(text) is None


def test_every_cut_is_noticed_or_ends_at_a_rule():
    """Between two rules, each cut says so.

    At a rule the rest could be another NPU, which only the number of device files shows.
    """
    lines = A3.splitlines(keepends=True)
    # Behind the heading of the table.
    for place in range(2, len(lines)):
        text = "".join(lines[:place])
        table = parse_info(text)
        assert (table.cut == "") == (lines[place - 1].startswith("+") and place > 5), place
        assert parse_info(text + lines[place][:7]).cut, place
    heading = parse_info("".join(lines[:3]))
    assert (heading.npus, heading.driver_version, heading.cut) == (
        [],
        "25.2.3",
        "it has no heading",
    )


def test_a_row_that_npu_smi_could_not_read():
    """Its row is left out, and the other rows count."""
    without = A3.replace(
        "| 3     Ascend910           | OK            | -           51                0    / 0             |\n",
        "",
    )
    table = parse_info(without)
    assert (
        "is the only one of two rows of a chip: '1     7 | 0000:93:00.0" in table.cut
        and len(table.npus[3]["chips"]) == 1
    )
    nodes = list(range(16))
    (finding,) = device_nodes_finding(nodes, table.npus)
    assert finding["kind"] == "device_nodes_differ"
    assert (finding["found"], finding["expected"]) == (
        "15 chips in the table of npu-smi",
        "16, as many as files /dev/davinciN",
    )
    assert (
        device_nodes_finding(nodes, parse_info(A3).npus)
        == device_nodes_finding([], table.npus)
        == device_nodes_finding(nodes, [])
        == []
    )


@pytest.mark.parametrize(
    "name, rc, cause",
    [
        ("fail-8005-not-initialized.txt", 187, "driver_not_loaded"),
        ("fail-8020-device-in-use.txt", 172, "device_in_use"),
    ],
)
def test_every_failure_has_a_cause(name, rc, cause):
    text = read(name)
    assert facts(index()[name])["class"] == cause and parse_info(text) is None
    for streams in ((text, ""), ("", text)):
        assert why_no_answer(rc, *streams) == (cause, text.splitlines()[1])


@pytest.mark.parametrize(
    "text, cause",
    [
        ("There is no NPU card on this server.", "no_devices"),
        (
            "npu-smi: error while loading shared libraries: libdcmi.so: cannot open shared object file: No such file or directory",
            "library_missing",
        ),
        ("Failed to execute npu-smi info. ret is -8012.", "not_ready"),
        ("dcmi module initialize failed. ret is -8017", "not_ready"),
        ("dcmi module initialize failed. ret is -8002", "permission"),
        ("dcmi module initialize failed. ret is -8008", "no_devices"),
        ("Failed to execute npu-smi info. ret is -8010.", "no_answer"),
        ("dcmi module initialize failed. ret is -8999", "unknown"),
        ("", "unknown"),
        # What a process is called is no message.
        ("| 0       0                 | 1 | There is no NPU card on this server | 1 |", "unknown"),
    ],
)
def test_messages(text, cause):
    found, evidence = why_no_answer(1, text, "")
    assert found == cause and evidence and (cause != "unknown" or "(exit code 1)" in evidence)


def test_addresses():
    assert parse_address("ipaddr:192.98.92.1\nnetmask:255.255.255.0\n") == (
        "192.98.92.1",
        "255.255.255.0",
    )
    assert parse_address("  IPADDR : fe80::1 \r\n") == ("fe80::1", None)
    assert parse_address("ipaddr:10.xx.xx.10\nnetmask:255.255.255.0\n") == (None, "255.255.255.0")
    assert parse_address("Get ip failed") == (None, None)


def test_hccn_conf():
    text = (
        "# address_9=1.2.3.4\naddress_0=10.0.0.1\nnetmask_0=255.255.255.0\n\n address_10 = 10.0.0.3 \naddress_2=10.0.0.999\nnetmask_3=255.0.0.0\n"
        "gateway_0=10.0.0.254\naddress_0=10.0.0.2\n"
    )
    assert parse_conf(text) == {
        0: {"address": "10.0.0.2", "netmask": "255.255.255.0"},
        10: {"address": "10.0.0.3", "netmask": None},
    }
    assert list(parse_conf("address_11=1.1.1.2\naddress_2=1.1.1.1\n")) == [2, 11]


def test_the_live_address_wins_and_a_difference_is_a_finding():
    configured = parse_conf(
        "address_0=10.0.0.1\nnetmask_0=255.0.0.0\naddress_1=10.0.0.2\nnetmask_1=255.0.0.0\naddress_3=10.0.0.2"
    )
    devices, findings = merged_devices(
        [0, 1, 2, 3], {0: ("10.9.9.9", "255.255.0.0")}, {1: "it failed", 2: "it failed"}, configured
    )
    assert devices[0] == {
        "id": 0,
        "address": "10.9.9.9",
        "netmask": "255.255.0.0",
        "source": "hccn_tool",
        "live_address": "10.9.9.9",
        "configured_address": "10.0.0.1",
        "reason": None,
    }
    assert devices[1] == {
        "id": 1,
        "address": "10.0.0.2",
        "netmask": "255.0.0.0",
        "source": "hccn_conf",
        "live_address": None,
        "configured_address": "10.0.0.2",
        "reason": "it failed",
    }
    assert (devices[2]["address"], devices[2]["source"]) == (None, None)
    assert [
        (each["kind"], each["device"], each["found"], each["expected"]) for each in findings
    ] == [
        ("address_differs", 0, "10.9.9.9", "10.0.0.1"),
        ("address_missing", 2, "it failed", "an address"),
        ("address_duplicate", 3, "10.0.0.2", "an address that device 1 does not have"),
    ]
    assert merged_devices([0], {0: ("10.0.0.1", None)}, {}, configured)[1] == []


@settings(derandomize=True, deadline=None, database=None, max_examples=150)
@given(strategies.data())
def test_no_text_breaks_the_parser(data):
    """Only a ParseError may come of a changed table, and what is returned has the types that are
    documented.
    """
    text = data.draw(strategies.sampled_from([A3, OLD, P310, ELIDED, CHIP_950, BOARD_310B]))
    for _change in range(data.draw(strategies.integers(1, 3))):
        begin = data.draw(strategies.integers(0, len(text)))
        end = min(len(text), begin + data.draw(strategies.integers(0, 40)))
        text = (
            text[:begin]
            + data.draw(
                strategies.text(alphabet="|+-= /\n0179NPUChipOK.:()%\u0661\u00b2", max_size=12)
            )
            + text[end:]
        )
    try:
        table = parse_info(text)
    except ParseError as error:
        assert str(error)
        return
    for npu in table.npus if table else []:
        assert isinstance(npu["id"], int) and npu["chips"]
        for chip in npu["chips"]:
            for key, value in chip.items():
                kind = (
                    float
                    if key == "power_w"
                    else str
                    if key in ("name", "health", "bus_id")
                    else dict
                    if key == "unavailable"
                    else int
                )
                assert value is None and key in chip["unavailable"] or type(value) is kind, key


@settings(derandomize=True, deadline=None, database=None, max_examples=50)
@given(
    strategies.text(
        alphabet=strategies.characters(blacklist_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=20
    )
)
def test_no_name_of_a_process_changes_anything_else(name):
    row = "| 0       0                 | 3325989       |                          | 50128                   |"
    table = parse_info(
        A3.replace(
            row,
            "| 0       0                 | 3325989       | %s | 50128                   |" % name,
        )
    )
    expected = parse_info(A3)
    assert [dict(npu, processes=0) for npu in table.npus] == [
        dict(npu, processes=0) for npu in expected.npus
    ]
    found, wanted = (
        [(each["pid"], each["memory_mib"]) for each in one.npus[0]["processes"]]
        for one in (table, expected)
    )
    assert found == wanted
