"""The expected bandwidth of a cluster, its limiting bound, and the verdict on a measurement."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.trainyard.gpu.plugins.module_utils import _bandwidth

ASKED = {"fraction": 0.7, "min_busbw_gb_s": 0, "peer_fraction": 0.6, "drop_percent": 20}

# As nvidia-smi nvlink --status prints them: eight A100; a GPU that has no NVLink; one in MIG mode.
A100 = "".join(
    "GPU %d: NVIDIA A100-SXM4-80GB (UUID: GPU-0)\n" % gpu
    + "".join("\t Link %d: 25 GB/s\n" % link for link in range(12))
    for gpu in range(8)
)
NONE = "GPU 0: NVIDIA L40S (UUID: GPU-0)\nDevice does not have or support Nvlink\n"
MIG = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)\nNvlink queries are not supported for Devices in MIG mode\n"


def host(name="a", cards=(), gpus=()):
    return {"name": name, "cards": list(cards), "gpus": list(gpus)}


def hosts(*cards, gpus=()):
    return [host(name, cards, gpus) for name in "ab"]


IB = _bandwidth.card("mlx5_0", "200 Gb/sec (4X HDR)", True, "16.0 GT/s PCIe", "16")
TEN = _bandwidth.card("eth0", "10000")
HUNDRED = _bandwidth.card("eth0", "100000", False, "8.0 GT/s PCIe", "8")


def test_it_runs_where_python_is_3_6():
    text = Path(_bandwidth.__file__).read_text(encoding="utf-8")
    ast.parse(text, feature_version=(3, 6))
    assert "__future__" not in text, "annotations came with 3.7"


@pytest.mark.parametrize(
    "rate, line",
    [
        ("10000\n", 1.25),
        ("400 Gb/sec (4X NDR)", 50),
        ("2.5 Gb/sec (1X SDR)", 0.3125),
        ("-1", 0),
        ("4294967295", 0),
        ("", 0),
        (25, 3.125),
    ],
)
def test_line_rate(rate, line):
    assert _bandwidth.card("x", rate)["line"] == line


@pytest.mark.parametrize(
    "speed, width, carried",
    [
        ("16.0 GT/s PCIe", "16", 31.504),
        ("8.0 GT/s PCIe", "8", 7.88),
        ("2.5 GT/s", "1", 0.25),
        ("Unknown", "16", 0),
        ("", "", 0),
        ("16.0 GT/s PCIe", "Unknown", 0),
    ],
)
def test_bandwidth_of_a_pcie_slot(speed, width, carried):
    assert _bandwidth.card("x", "", False, speed, width)["pcie"] == pytest.approx(carried)


def test_an_invalid_rate_is_an_error():
    with pytest.raises(_bandwidth.ParseError, match="not a rate of a network card: 'fast'"):
        _bandwidth.card("x", "fast")


def test_gpus():
    assert (
        _bandwidth.gpus(A100, "4, 16\n" * 8)
        == [{"nvlink": 300.0, "pcie": pytest.approx(31.504)}] * 8
    )
    assert _bandwidth.gpus(NONE, "4, 8\n") == [{"nvlink": 0.0, "pcie": pytest.approx(15.752)}]
    assert _bandwidth.gpus(MIG, "[N/A], [N/A]\n") == [{"nvlink": 0.0, "pcie": 0.0}]
    assert _bandwidth.gpus("", "") == []


@pytest.mark.parametrize(
    "nvlink, pcie",
    [("\t Link 0: 25 GB/s\n", ""), ("", "four, 16\n"), ("", "No devices were found\n")],
)
def test_output_that_is_none(nvlink, pcie):
    with pytest.raises(_bandwidth.ParseError):
        _bandwidth.gpus(nvlink, pcie)


@given(
    st.text(alphabet="GPU Link:0123456789./\t\n[NA]sBU", max_size=200),
    st.text(alphabet="0123456789, [NA]\n", max_size=60),
)
def test_nothing_makes_it_guess(nvlink, pcie):
    try:
        found = _bandwidth.gpus(nvlink, pcie)
    except _bandwidth.ParseError:
        return
    assert len(found) == len([line for line in pcie.splitlines() if line.strip()])


# What real machines did (fixtures/all_reduce_perf, INDEX.tsv; nccl-tests' issue 119), against what the rules expect of them.
@pytest.mark.parametrize(
    "members, reached, bound",
    [
        (hosts(*[IB] * 8, gpus=_bandwidth.gpus(A100, "4, 16\n" * 8)), 192, "nic"),
        (hosts(IB), 24, "nic"),
        ([host(gpus=_bandwidth.gpus(A100, "4, 16\n" * 8))], 235, "nvlink"),
    ],
)
def test_rules_of_thumb(members, reached, bound):
    found = _bandwidth.expected(members, "nccl", ASKED)
    assert found["bound"] == bound
    assert 0.9 * reached <= found["busbw_gb_s"] <= 1.05 * reached
    assert found["required_gb_s"] == pytest.approx(0.7 * found["busbw_gb_s"])


def test_the_bound_that_limits_is_named():
    # 12.5 GB/s of line in a slot that carries 7.88.
    assert (
        _bandwidth.expected(hosts(HUNDRED), "nccl", ASKED)["from"]
        == "a: eth0 100 Gb/s in PCIe slots of 7.88 GB/s"
    )
    assert _bandwidth.expected(hosts(HUNDRED), "gloo", ASKED)["bound"] == "cpu"
    assert (
        _bandwidth.expected([host("a", [HUNDRED]), host("b", [TEN])], "nccl", ASKED)["from"]
        == "b: eth0 10 Gb/s by TCP"
    )
    slow = _bandwidth.gpus(NONE * 2, "3, 16\n3, 16\n")
    assert _bandwidth.expected([host(gpus=slow)], "nccl", ASKED)["bound"] == "pcie"


def test_a_card_that_does_not_tell_its_rate_may_be_what_limits():
    found = _bandwidth.expected(
        [host("a", [TEN]), host("b", [_bandwidth.card("eth0", "")])], "nccl", ASKED
    )
    assert found == {
        "busbw_gb_s": None,
        "bound": None,
        "from": "the rates of the network cards are unknown",
        "required_gb_s": None,
        "history_gb_s": None,
    }
    assert _bandwidth.expected([host("a", [TEN]), host("b")], "nccl", ASKED)["bound"] is None


def test_threshold_replaces_what_is_expected():
    found = _bandwidth.expected(hosts(TEN), "nccl", dict(ASKED, min_busbw_gb_s=0.5))
    assert (found["bound"], found["required_gb_s"]) == ("threshold", 0.5)
    # It is for the way between hosts.
    assert _bandwidth.expected([host()], "gloo", dict(ASKED, min_busbw_gb_s=0.5))["bound"] is None


def test_the_strictest_counts():
    expected = 1.25 * 0.94
    assert _bandwidth.expected(hosts(TEN), "nccl", ASKED, earlier=1.0)[
        "required_gb_s"
    ] == pytest.approx(expected * 0.7)
    found = _bandwidth.expected(hosts(TEN), "nccl", ASKED, earlier=1.1)
    assert (found["bound"], found["busbw_gb_s"], found["history_gb_s"]) == ("history", 1.1, 1.1)
    assert (
        found["required_gb_s"] == pytest.approx(0.88)
        and found["from"] == "the median of earlier runs, less 20 %"
    )


def test_alone_it_is_compared_with_the_others():
    found = _bandwidth.expected([host()], "gloo", ASKED, peers=2.0)
    assert (found["bound"], found["required_gb_s"]) == ("peers", pytest.approx(1.2))


def rows(*busbw, largest=1 << 24):
    found = [_bandwidth.row(size, 1, 2, 0) for size in _bandwidth.sizes(largest)]
    for entry, value in zip(found, busbw):
        entry["in_place"]["busbw_gb_s"] = value
    return found[: len(busbw)]


def test_bandwidths_of_a_row():
    # 8 ranks, 1 GB in 0.1 s: 10 GB/s, on the bus 2 x 7/8 of it.
    assert _bandwidth.row(1000000000, 0.1, 8, 0) == {
        "size_bytes": 1000000000,
        "count": 250000000,
        "type": "float",
        "redop": "sum",
        "root": -1,
        "out_of_place": None,
        "in_place": {"time_us": 100000.0, "algbw_gb_s": 10.0, "busbw_gb_s": 17.5, "wrong": 0},
    }


def test_large_messages_are_judged():
    assert _bandwidth.sizes(1 << 24) == [65536, 262144, 1048576, 4194304, 16777216]
    assert _bandwidth.judged_busbw(rows(9, 9, 1, 3, 2)) == 3
    # A slow network's largest ones were left out.
    assert _bandwidth.judged_busbw(rows(9, 2)) == 9
    assert _bandwidth.judged_busbw([]) is None


def test_figures_of_a_collective_that_is_not_in_place_count():
    entry = rows(1)[0]
    entry["out_of_place"] = dict(entry["in_place"], busbw_gb_s=4)
    assert _bandwidth.judged_busbw([entry]) == 4


def pack(value, collective="gloo", hosts=("a", "b"), passed=True, largest=1 << 24):
    return {
        "collective": collective,
        "runs": [
            {
                "id": "cluster",
                "hosts": list(hosts),
                "passed": passed,
                "rows": rows(*[value] * 5, largest=largest),
            }
        ],
    }


@pytest.mark.parametrize(
    "packs, median",
    [
        ([pack(1), pack(5), pack(2)], 2),
        ([pack(1), pack(2)], 1.5),
        ([pack(1), None, {}], 1),
        (
            [
                pack(1, collective="nccl"),
                pack(1, hosts="ba"),
                pack(1, hosts="abc"),
                pack(1, passed=False),
                pack(1, largest=1 << 40),
            ],
            None,
        ),
        ([], None),
    ],
)
def test_history(packs, median):
    assert (
        _bandwidth.history(packs, "gloo", "cluster", ["a", "b"], _bandwidth.sizes(1 << 24))
        == median
    )


def run(**changes):
    return dict(
        {"id": "cluster", "hosts": ["a", "b"], "rows": rows(1, 1, 2, 3, 3), "errors": []}, **changes
    )


NOTHING = {
    "busbw_gb_s": None,
    "bound": None,
    "from": "",
    "required_gb_s": None,
    "history_gb_s": None,
}


def test_good_run():
    found = _bandwidth.verdict(run(), NOTHING)
    assert (
        found["passed"],
        found["reasons"],
        found["judged_busbw_gb_s"],
        found["avg_busbw_gb_s"],
        found["max_busbw_gb_s"],
    ) == (True, [], 3, 2, 3)


def test_bad_runs():
    wrong = rows(3, 3, 3, 3, 3)
    wrong[0]["in_place"]["wrong"] = 7
    short = _bandwidth.expected(hosts(TEN), "nccl", dict(ASKED, min_busbw_gb_s=3.1))
    for given_run, bound, reason in [
        (run(rows=wrong), NOTHING, "7 values of the sum are wrong"),
        (run(rows=[]), NOTHING, "nothing was measured"),
        (run(errors=["no way"], rows=[]), NOTHING, "no way"),
        (run(), short, "3 GB/s, required: 3.1 (threshold: the site's threshold)"),
    ]:
        found = _bandwidth.verdict(given_run, bound)
        assert (found["passed"], found["reasons"]) == (False, [reason])
        json.dumps(found)


def test_size_of_which_it_is_known_what_moves():
    # Four pieces of 1 MiB for two ranks; NCCL's ring has no such limit.
    assert (
        _bandwidth.watched_size(1 << 24, "gloo", 2) == 4 << 20
        and _bandwidth.watched_size(1 << 24, "gloo", 64) == 1 << 24
    )
    assert (
        _bandwidth.watched_size(1 << 16, "gloo", 2) == 1 << 16
        and _bandwidth.watched_size(1 << 30, "nccl", 2) == 1 << 30
    )


@pytest.mark.parametrize("ranks, moved", [(2, 1.0), (4, 1.5), (16, 1.875)])
def test_what_a_ring_must_move(ranks, moved):
    assert _bandwidth.must_move(1 << 20, 10, ranks) == moved * 10 * (1 << 20)


@pytest.mark.parametrize(
    "texts, counted",
    [
        ({"statistics/tx_bytes": "12\n", "statistics/rx_bytes": "34\n"}, [12, 34]),
        # In four octets; former kernels have the wide ones elsewhere.
        ({"counters/port_xmit_data": "100\n", "counters/port_rcv_data": "200\n"}, [400, 800]),
        (
            {
                "counters_ext/port_xmit_data_64": "5000000000",
                "counters/port_xmit_data": "4294967295",
                "counters/port_rcv_data": "1",
            },
            [20000000000, 4],
        ),
        # At the end of 32 bits it stays, unless the port counts with 64.
        ({"counters/port_xmit_data": "4294967295", "counters/port_rcv_data": "7"}, [None, 28]),
        (
            {
                "counters/port_xmit_data": "4294967295",
                "counters/port_rcv_data": "7",
                "counters/unicast_xmit_packets": "0",
            },
            [4 * 4294967295, 28],
        ),
        ({"counters/port_xmit_data": "N/A (no PMA)", "counters/port_rcv_data": ""}, [None, None]),
        ({}, [None, None]),
    ],
)
def test_counters(texts, counted):
    assert _bandwidth.counted(texts) == counted
    assert set(texts) <= set(_bandwidth.COUNTER_FILES)


def test_usage():
    text = "99, 900, 24576\n 0 %, 1 MiB, 24576 MiB\n[N/A], [N/A], 24576\n[Not Supported], 0, 0\n\n100, 5, [N/A]\n"
    assert _bandwidth.usage(text) == [
        [99, 900, 24576],
        [0, 1, 24576],
        [None, None, 24576],
        [None, 0, 0],
        [100, 5, None],
    ]
    assert _bandwidth.usage("") == []


@pytest.mark.parametrize(
    "text",
    ["No devices were found\n", "99, 900\n", "99, 900, 24576, 1\n", "99, many, 24576\n", "99\n"],
)
def test_text_without_usage(text):
    with pytest.raises(_bandwidth.ParseError, match="not the utilization and memory of a GPU"):
        _bandwidth.usage(text)


@pytest.mark.parametrize(
    "text, peaks",
    [
        ("0, 3\n1, 0\n0, 97\n1, 41\n0, 12\n1, 40\n", [97, 41]),
        # Ten GPUs in their order, and what follows the last line's end was cut.
        ("10, 5\n9, 4 %\n2, 3\n10, 9", [3, 4, 5]),
        ("0, [N/A]\n1, [Not Supported]\n1, 7\n\n", [None, 7]),
        ("", []),
        ("0, 98", []),
    ],
)
def test_peaks_of_utilization(text, peaks):
    assert _bandwidth.peaks(text) == peaks


@pytest.mark.parametrize("text", ["No devices were found\n", "0, 98, 3\n", "98\n"])
def test_text_without_peaks(text):
    with pytest.raises(_bandwidth.ParseError, match="not the number of a GPU and its utilization"):
        _bandwidth.peaks(text)


@pytest.mark.parametrize("hosts, gpus", [(2, 1), (2, 8), (3, 4), (64, 8)])
def test_what_any_algorithm_may_move(hosts, gpus):
    """A ring is between the two bounds, and so is a host of two trees, each for a half: four neighbours together, or two."""
    least, most = _bandwidth.may_move(1 << 30, 1 << 30)
    assert least <= _bandwidth.must_move(1 << 30, 1, hosts * gpus) <= most
    assert least <= 2 * (1 << 30) / 2 and most >= (3 + 1) * (1 << 30) / 2
