"""The expected bandwidth of a cluster, its limiting bound, and the verdict on a measurement."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
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
        == [{"nvlink": 300.0, "pcie": pytest.approx(31.504), "model": "NVIDIA A100-SXM4-80GB"}] * 8
    )
    assert _bandwidth.gpus(NONE, "4, 8\n") == [
        {"nvlink": 0.0, "pcie": pytest.approx(15.752), "model": "NVIDIA L40S"}
    ]
    assert _bandwidth.gpus(MIG, "[N/A], [N/A]\n") == [
        {"nvlink": 0.0, "pcie": 0.0, "model": "NVIDIA H100 80GB HBM3 in MIG mode"}
    ]
    assert _bandwidth.gpus("", "") == []
    # With all lanes that it can use, and its name.
    assert _bandwidth.gpus("", "4, 8, 16, NVIDIA L40S\n4, 16, [N/A], NVIDIA L40S\n") == [
        {
            "nvlink": 0.0,
            "pcie": pytest.approx(15.752),
            "pcie_max": pytest.approx(31.504),
            "model": "NVIDIA L40S",
        },
        {"nvlink": 0.0, "pcie": pytest.approx(31.504), "model": "NVIDIA L40S"},
    ]


# As it is printed by drivers of several years for a GPU without active links, and the text of a GPU
# that answers no question.
@pytest.mark.parametrize(
    "said, speeds",
    [
        ("NVML: Unable to retrieve NVLink information as all links are inactive", []),
        ("NVML: Unable to retrieve Nvlink information as all links are inActive", []),
        ("Device does not have or support Nvlink", []),
        ("Nvlink queries are not supported for Devices in MIG mode", None),
        ("Unable to get the NVLink state: GPU is lost", None),
        ("\t Link 0: 25.781 GB/s\n\t Link 1: <inactive>", [25.781, 0.0]),
        ("\t Link 0: <inactive>", [0.0]),
        ("", None),
    ],
)
def test_nvlinks(said, speeds):
    text = "GPU 0: Tesla V100-SXM2-32GB (UUID: GPU-1)\n%s\nGPU 1: Tesla V100-SXM2-32GB (UUID: GPU-2)\n\t Link 0: 25.781 GB/s\n"
    first, second = _bandwidth.nvlinks(text % said)
    assert (first["name"], first["speeds"]) == ("Tesla V100-SXM2-32GB", speeds)
    assert second["speeds"] == [25.781]
    assert first["said"] == ("" if "Link 0" in said else said)


LEGEND = "\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n  GNS  = GPU not supported\n  U    = Unknown\n"


@pytest.mark.parametrize(
    "matrix, has_it",
    [
        (" \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n", True),
        (" \tGPU0\tGPU1\t\n GPU0\tX\tNS\t\n GPU1\tNS\tX\t\n", False),
        (" \tGPU0\tGPU1\t\n GPU0\tX\tGNS\t\n GPU1\tGNS\tX\t\n", False),
        # Copied from a terminal, with the header underlined.
        ("\x1b[4m        GPU0    GPU1\x1b[0m\n GPU0   X       DR\n GPU1   DR      X\n", False),
        # Of three GPUs, two share a root complex.
        (
            "\tGPU0\tGPU1\tGPU2\nGPU0\tX\tOK\tCNS\nGPU1\tOK\tX\tCNS\nGPU2\tCNS\tCNS\tX\n",
            False,
        ),
        (" \tGPU0\tGPU1\t\n GPU0\tX\tU\t\n GPU1\tU\tX\t\n", None),
        (" \tGPU0\t\n GPU0\tX\t\n", None),
        ("", None),
    ],
)
def test_peer_to_peer(matrix, has_it):
    assert _bandwidth.peer_to_peer(matrix + LEGEND) is has_it


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


# What real machines did (fixtures/all_reduce_perf, INDEX.tsv; nccl-tests' issue 119), against what
# the rules expect of them.
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


H100 = "NVIDIA H100 80GB HBM3"


def linked(*active, model=H100, speed="26.562", total=18, pcie="5, 16"):
    """GPUs of which so many links are active, as nvidia-smi tells it."""
    text = ""
    for number, count in enumerate(active):
        text += "GPU %d: %s (UUID: GPU-%d)\n" % (number, model, number)
        if not count:
            text += "NVML: Unable to retrieve NVLink information as all links are inActive\n"
        for link in range(total if count else 0):
            text += "\t Link %d: %s\n" % (
                link,
                "%s GB/s" % speed if link < count else "<inactive>",
            )
    return _bandwidth.gpus(text, (pcie + "\n") * len(active))


def on_pcie(*lanes, model="NVIDIA GeForce RTX 4090", p2p=None, generation=4):
    text = "".join("%d, %d, 16, %s\n" % (generation, width, model) for width in lanes)
    return {"cards": [], "gpus": _bandwidth.gpus("", text), "p2p": p2p}


def eight_cards(slow=0, active=8):
    return [
        _bandwidth.card(
            "mlx5_%d" % number,
            "400 Gb/sec (4X NDR)",
            True,
            "8.0 GT/s PCIe" if number < slow else "32.0 GT/s PCIe",
            "4" if number < slow else "16",
            "15b3:1021",
        )
        for number in range(active)
    ]


WHOLE = {"cards": eight_cards(), "gpus": linked(*[18] * 8)}


def by_tcp(speed):
    return {"cards": [_bandwidth.card("eth0", speed)], "gpus": []}


def measured(reached, facts, asked=ASKED, earlier=None, shm=(), carrier="nccl"):
    """Results of a measurement by run, in which the hosts alone and all together have reached so
    many GB/s.
    """
    found = []
    for name, value in reached.items():
        members = list(facts) if name == "cluster" else [name]
        found.append(
            {
                "id": name if name == "cluster" else "host:" + name,
                "hosts": members,
                "rows": rows(*[value] * 5),
                "errors": [],
                "transports": ["SHM/direct" if name in shm else "P2P/CUMEM"],
            }
        )
    judged = _bandwidth.judge_runs(found, facts, carrier, asked, earlier or {})
    return {entry["id"].replace("host:", ""): entry for entry in judged}


def lost(*active):
    return dict(WHOLE, gpus=linked(*active))


@pytest.mark.parametrize(
    "facts, reached, required",
    [
        ({"a": WHOLE}, {"a": 360}, 251.0),
        ({"a": lost(18, 18, 18, 17, 18, 18, 18, 18)}, {"a": 338}, 251.0),
        ({"a": lost(18, 18, 18, 9, 18, 18, 18, 18)}, {"a": 180}, 251.0),
        ({"a": lost(18, 18, 18, 0, 18, 18, 18, 18)}, {"a": 40}, 251.0),
        ({"a": WHOLE, "b": WHOLE}, {"cluster": 360}, 251.0),
        (
            {"a": WHOLE, "b": dict(WHOLE, cards=eight_cards(slow=8))},
            {"cluster": 24},
            251.0,
        ),
        # One of eight cards slows down the ring through all of them.
        (
            {"a": WHOLE, "b": dict(WHOLE, cards=eight_cards(slow=1))},
            {"cluster": 24},
            251.0,
        ),
        (
            {"a": WHOLE, "b": dict(WHOLE, cards=eight_cards(active=4))},
            {"cluster": 180},
            251.0,
        ),
        ({"a": by_tcp("100000"), "b": by_tcp("100000")}, {"cluster": 11}, 8.2),
        ({"a": by_tcp("100000"), "b": by_tcp("1000")}, {"cluster": 0.11}, 8.2),
    ],
)
def test_a_degraded_part_does_not_lower_its_own_bar(facts, reached, required):
    for run_id, run_of_it in measured(reached, facts).items():
        assert run_of_it["expected"]["required_gb_s"] == pytest.approx(required, abs=0.1)
        # A lost link of 144 is told by the check of links. It costs less than what is allowed.
        good = reached[run_id] >= required
        assert run_of_it["passed"] is good


def test_the_one_of_three_hosts_with_dead_links_fails_at_once():
    """Without earlier reports."""
    facts = {"a": WHOLE, "b": lost(18, 18, 18, 9, 18, 18, 18, 18), "c": WHOLE}
    found = measured({"a": 360, "b": 180, "c": 361, "cluster": 180}, facts)
    assert {name: entry["passed"] for name, entry in found.items()} == {
        "a": True,
        "b": False,
        "c": True,
        "cluster": False,
    }
    # Also if all GPUs of it have lost as many: the others show what they can do.
    facts["b"] = lost(*[9] * 8)
    found = measured({"a": 360, "b": 180, "c": 361, "cluster": 180}, facts)
    assert not found["b"]["passed"] and not found["cluster"]["passed"]
    assert found["b"]["expected"]["from"] == "a: 8 GPUs with NVLink, and b has the same hardware"


def test_rdma_ports_that_are_all_down_leave_the_bar():
    """NCCL takes the interface instead, whose card is of a different model."""
    nics = {"nics": ["15b3:1021"]}
    facts = {
        "a": dict(WHOLE, **nics),
        "b": dict(WHOLE, cards=[_bandwidth.card("eth0", "25000", model="8086:1572")], **nics),
    }
    assert measured({"cluster": 2.9}, facts)["cluster"]["expected"]["required_gb_s"] > 250


@pytest.mark.parametrize(
    "facts, reached",
    [
        # H100 NVL has 12 of 18 links by design.
        (
            {
                name: {"cards": [], "gpus": linked(12, 12, model="NVIDIA H100 NVL")}
                for name in ("a", "b")
            },
            {"a": 200, "b": 201},
        ),
        # A100 PCIe without a bridge, beside a host that has bridges.
        (
            {
                "a": {
                    "cards": [],
                    "gpus": linked(12, 12, model="NVIDIA A100 80GB PCIe", pcie="4, 16"),
                },
                "b": {
                    "cards": [],
                    "gpus": linked(0, 0, model="NVIDIA A100 80GB PCIe", pcie="4, 16"),
                },
            },
            {"a": 200, "b": 20},
        ),
        # Hosts of another model, or with another number of GPUs, are not compared.
        (
            {
                "a": WHOLE,
                "b": dict(WHOLE, gpus=linked(*[12] * 8, model="NVIDIA A100-SXM4-80GB", speed="25")),
            },
            {"a": 360, "b": 235, "cluster": 190},
        ),
        ({"a": WHOLE, "b": dict(WHOLE, gpus=linked(12, 12))}, {"a": 360, "b": 200}),
        # All GPUs of a virtual machine have 8 of 16 lanes.
        ({"a": on_pcie(8, 8, p2p=True), "b": on_pcie(8, 8, p2p=True)}, {"a": 10, "b": 10}),
        # A board that gives the second slot 4 lanes.
        (
            {
                "a": {
                    "cards": [],
                    "gpus": _bandwidth.gpus("", "4, 16, 16, RTX\n4, 4, 4, RTX\n"),
                    "p2p": True,
                }
            },
            {"a": 5},
        ),
        # A slow management port beside eight cards of the fabric.
        (
            {
                name: dict(WHOLE, cards=eight_cards() + [_bandwidth.card("mlx5_8", 25, True)])
                for name in ("a", "b")
            },
            {"cluster": 352},
        ),
        # Results of a release that knew neither models nor P2P.
        (
            {
                name: {
                    "cards": [{"name": "mlx5_0", "rdma": True, "line": 25.0, "pcie": 31.5}],
                    "gpus": [{"nvlink": 300.0, "pcie": 31.5}] * 8,
                }
                for name in ("a", "b")
            },
            {"a": 230, "b": 230, "cluster": 23},
        ),
    ],
)
def test_healthy_hosts_of_odd_kinds_pass(facts, reached):
    models = {
        "NVIDIA A100 80GB PCIe": {"nvlink": 0.0, "bridge": True},
        "NVIDIA H100 NVL": {"nvlink": 0.0, "bridge": True},
    }
    found = measured(reached, facts, dict(ASKED, models=models))
    assert {name: entry["reasons"] for name, entry in found.items()} == dict.fromkeys(reached, [])


def test_a_slow_card_of_an_only_kind_of_host():
    """The model of the cards differs, so the hosts are not compared, and the slow one is not what
    the others wait for.
    """
    one = dict(WHOLE, cards=eight_cards(slow=1))
    other = dict(
        WHOLE, cards=[_bandwidth.card("mlx5_%d" % number, 200, True) for number in range(8)]
    )
    found = _bandwidth.expected([dict(one, name="a"), dict(other, name="b")], "nccl", ASKED)
    assert (found["bound"], found["required_gb_s"]) == ("nic", pytest.approx(192 * 0.7))
    assert _bandwidth.expected([dict(one, name="a"), host("c", eight_cards())], "nccl", ASKED)[
        "busbw_gb_s"
    ] == pytest.approx(7 * 63.008 * 0.8)


def test_two_geforce_without_p2p_have_no_bound():
    """RTX 2080 Ti on gen 3 x16 reach 4.0 GB/s, and by PCIe 8.8 would be required."""
    two = {"a": on_pcie(16, 16, model="RTX 2080 Ti", p2p=False, generation=3)}
    found = measured({"a": 4.0}, two)["a"]
    assert found["passed"] and found["expected"]["required_gb_s"] is None
    # Nothing says whether that is good.
    assert not found["compared"]
    before = measured({"a": 4.0}, two, earlier={"host:a": 5.5})["a"]
    assert not before["passed"] and before["expected"]["bound"] == "history" and before["compared"]
    # NCCL's log tells it, too.
    unknown = {"a": on_pcie(16, 16, model="RTX 2080 Ti", generation=3)}
    assert measured({"a": 4.0}, unknown, shm=["a"])["a"]["passed"]
    assert not measured({"a": 4.0}, unknown)["a"]["passed"]


def test_a_host_that_has_lost_p2p_is_held_against_those_that_have_it():
    facts = {name: on_pcie(16, 16, 16, 16, p2p=True) for name in ("a", "b")}
    found = measured({"a": 22, "b": 15}, facts, shm=["b"])
    assert found["a"]["passed"] and not found["b"]["passed"]
    facts["b"]["p2p"] = False
    assert not measured({"a": 22, "b": 15}, facts)["b"]["passed"]


def test_peers_are_always_compared():
    facts = {name: on_pcie(16, 16, 16, 16, p2p=False) for name in ("a", "b", "c")}
    found = measured({"a": 6, "b": 5.9, "c": 3}, facts)
    assert [entry["passed"] for entry in found.values()] == [True, True, False]
    assert found["c"]["reasons"] == ["3 GB/s, required: 3.6 (peers: the other hosts alone)"]
    # Also with a bound that the host reaches: H100 with NVLink SHARP do more than it says.
    found = measured({"a": 470, "b": 475, "c": 260}, {name: WHOLE for name in "abc"})
    assert not found["c"]["passed"] and found["c"]["expected"]["bound"] == "peers"
    # Hosts of another kind are no peers.
    facts["c"] = on_pcie(16, 16, model="Quadro", p2p=False)
    assert measured({"a": 6, "b": 5.9, "c": 3}, facts)["c"]["passed"]


def test_threshold_of_a_host():
    facts = {name: on_pcie(16, 16, 16, 16) for name in ("a", "b", "c")}
    asked = dict(ASKED, host_min_gb_s={"a": 4.0, "b": 4.0, "c": 4.0})
    found = measured({"a": 12, "b": 11, "c": 3.9}, facts, asked)
    assert [entry["passed"] for entry in found.values()] == [True, True, False]
    # One threshold for all does not hide the slow one of them.
    assert not measured({"a": 12, "b": 11, "c": 4.5}, facts, asked)["c"]["passed"]
    # A host with its own one is known to be another one than the rest.
    asked["host_min_gb_s"]["c"] = 3.0
    found = measured({"a": 12, "b": 11, "c": 3.9}, facts, asked)["c"]
    assert found["passed"] and found["expected"]["from"] == "the site's threshold"
    found = measured({"c": 3.9}, facts, asked, earlier={"host:c": 6.0})["c"]
    assert not found["passed"] and found["expected"]["bound"] == "history"


@pytest.mark.parametrize("card_rate, limit", [("100000", 6.0), ("10000", 1.25 * 0.94)])
def test_hosts_without_p2p_limit_the_cluster_by_what_they_do_alone(card_rate, limit):
    one = dict(on_pcie(16, 16, 16, 16, p2p=False), cards=[_bandwidth.card("eth0", card_rate)])
    found = measured({"a": 6.0, "b": 5.0, "cluster": 4.4}, {"a": one, "b": one})
    assert found["cluster"]["expected"]["busbw_gb_s"] == pytest.approx(limit)
    assert found["cluster"]["passed"]


@pytest.mark.parametrize(
    "active, model, required",
    [
        # Half of the links of all GPUs are gone, and no other GPU shows it.
        (9, H100, 251.0),
        (0, H100, 251.0),
        (18, H100, 251.0),
        # It needs a bridge, and nothing says whether it should have one.
        (12, "NVIDIA H100 NVL", 167.3),
        (0, "NVIDIA H100 NVL", 35.3),
        (18, "NVIDIA H999", 251.0),
        # Not one of a whole GPU.
        (0, H100 + " in MIG mode", 35.3),
    ],
)
def test_an_only_host_is_held_against_the_compatibility_data(active, model, required):
    asked = dict(
        ASKED,
        models={
            H100: {"nvlink": 478.116, "bridge": False, "known": True},
            "NVIDIA H100 NVL": {"nvlink": 0.0, "bridge": True, "known": True},
            "NVIDIA H999": {"nvlink": 0.0, "bridge": False, "known": False},
        },
    )
    facts = {"a": {"cards": [], "gpus": linked(*[active] * 8, model=model)}}
    found = measured({"a": 400}, facts, asked)["a"]
    assert found["expected"]["required_gb_s"] == pytest.approx(required, abs=0.1)
    assert found["compared"] is asked["models"].get(model, {}).get("known", False)
    # With others of its kind, they are the measure.
    facts["b"] = facts["a"]
    assert measured({"a": 400, "b": 400}, facts, asked)["a"]["compared"]


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


def test_what_each_card_has_moved():
    before = {"a": [10, 20], "b": [10, 20], "c": None, "e": [5, 5]}
    after = {"a": [11, 22], "b": [3, 30], "c": [1, 1], "d": [1, 1], "e": None}
    assert _bandwidth.moved_by_card(before, after) == dict.fromkeys("bcde", None) | {"a": 3}


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
    """A ring is between the two bounds, and so is a host of two trees, each for a half: four
    neighbours together, or two.
    """
    least, most = _bandwidth.may_move(1 << 30, 1 << 30)
    assert least <= _bandwidth.must_move(1 << 30, 1, hosts * gpus) <= most
    assert least <= 2 * (1 << 30) / 2 and most >= (3 + 1) * (1 << 30) / 2


IN_A_NETWORK = """
import subprocess
from ansible_collections.trainyard.gpu.plugins.module_utils import _bandwidth
subprocess.run(["ip", "link", "add", "name", "one", "type", "veth", "peer", "name", "two"], check=True)
print(_bandwidth.driver_statistics("one"))
print("lo: " + _bandwidth.driver_statistics("lo") + _bandwidth.driver_statistics("none"))
"""


def test_what_the_driver_of_an_interface_counts():
    """By the kernel itself, for a veth in a network of its own. The driver of lo counts nothing, and there is no interface none."""
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", IN_A_NETWORK],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"peer_ifindex: [1-9]\d*", lines[0]) and lines[-1] == "lo: "
    assert all(re.fullmatch(r"\w+: \d+", line) for line in lines[:-1])
