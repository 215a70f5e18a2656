"""Decision bandwidth_checks: checks of a measurement with their fixes."""

from __future__ import annotations

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils._bandwidth_checks import (
    bandwidth_checks,
)
from ansible_collections.trainyard.gpu.plugins.module_utils import _bandwidth

HOSTS = ["node-a", "node-b"]


def run(run_id, hosts, busbw=1.0, required=0.5, passed=True, reasons=()):
    return {
        "id": run_id,
        "hosts": hosts,
        "judged_busbw_gb_s": busbw,
        "passed": passed,
        "reasons": list(reasons),
        "errors": [],
        "seconds": 1.5,
        "expected": {
            "required_gb_s": required,
            "bound": "nic" if required else None,
            "from": "node-a: eth0 10 Gb/s by TCP",
            "busbw_gb_s": required,
        },
    }


def measured(*arguments):
    """The checks of what was measured, without those of what was seen besides."""
    return [check for check in bandwidth_checks(*arguments) if check["id"].startswith("bandwidth-")]


def seen(*arguments):
    checks = [
        check for check in bandwidth_checks(*arguments) if not check["id"].startswith("bandwidth-")
    ]
    return [(check["id"], check["host"], check["verdict"], check["found"]) for check in checks]


# 100 times 4 MiB between two ranks: each sends as much.
WATCHED = {
    "ranks": 2,
    "size_bytes": 4 << 20,
    "iterations": 100,
    "error": "",
    "hosts": {
        name: {
            "ranks": 1,
            "via": [],
            "gpus": [],
            "sent_bytes": 427 << 20,
            "received_bytes": 426 << 20,
        }
        for name in HOSTS
    },
}


LOST = {
    name: {
        "tcp": [40000, 3],
        "cards": {"eth0 rx_dropped": 2, "eth0 rx_errors": 0},
        "mtu": {"eth0": 1500},
    }
    for name in HOSTS
}


def answer(cluster=None, **changes):
    given = {
        "collective": "gloo",
        "blame": [],
        "suspect": [],
        "note": "",
        "watched": WATCHED,
        "lost": LOST,
        "facts": {
            name: {"cards": [_bandwidth.card("eth0", "")], "gpus": [], "interface": "eth0"}
            for name in HOSTS
        },
        "runs": [run("host:%s" % name, [name]) for name in HOSTS]
        + [cluster or run("cluster", HOSTS)],
    }
    return dict(given, **changes)


def test_a_good_measurement_passes_every_check():
    checks = measured(answer(), HOSTS)
    assert [(check["id"], check["host"], check["verdict"], check["found"]) for check in checks] == [
        ("bandwidth-host", "node-a", "pass", "1 GB/s"),
        ("bandwidth-host", "node-b", "pass", "1 GB/s"),
        ("bandwidth-cluster", "node-a, node-b", "pass", "1 GB/s"),
    ]
    assert (
        checks[2]["expected"] == "0.5 GB/s or more (nic: node-a: eth0 10 Gb/s by TCP)"
        and checks[2]["seconds"] == 1.5
    )
    assert checks[2]["source"] == "PyTorch's all-reduce by Gloo"


SHORT = run("cluster", HOSTS, 0.1, passed=False, reasons=["0.1 GB/s, required: 0.5 (nic: x)"])


@pytest.mark.parametrize(
    "blame, found, fix",
    [
        (
            [{"kind": "host", "names": ["node-b"], "evidence": "slow"}],
            "host node-b: slow",
            "check node-b; until then leave out: node-b",
        ),
        (
            [{"kind": "link", "names": HOSTS, "evidence": "slow"}],
            "link node-a - node-b: slow",
            "check the path between node-a and node-b; until then leave out: node-b",
        ),
    ],
)
def test_suspects_are_named_with_the_fix(blame, found, fix):
    check = measured(answer(SHORT, blame=blame, suspect=["node-b"]), HOSTS)[-1]
    assert (check["verdict"], check["found"], check["fix"]) == (
        "fail",
        "0.1 GB/s, required: 0.5 (nic: x). " + found,
        fix,
    )


def test_nobody_is_to_blame():
    check = measured(answer(SHORT, note="they are too slow only together"), HOSTS)[-1]
    assert check["found"].endswith(". they are too slow only together") and check["fix"].startswith(
        "check what all hosts share"
    )


def test_a_host_that_nothing_can_be_compared_with():
    alone = dict(run("host:node-a", HOSTS[:1]), compared=False)
    (check,) = measured(answer(runs=[alone]), HOSTS[:1])
    assert check["verdict"] == "warn" and "there is nothing to compare with" in check["found"]
    assert "verify_bandwidth_host_min_gb_s of node-a" in check["fix"]
    # What it fails by is more important.
    (check,) = measured(answer(runs=[dict(alone, passed=False, reasons=["slow"])]), HOSTS[:1])
    assert (check["verdict"], check["found"]) == ("fail", "slow")
    (check,) = measured(answer(runs=[dict(alone, compared=True)]), HOSTS[:1])
    assert check["verdict"] == "pass"


def test_nothing_says_what_it_should_be():
    check = measured(answer(run("cluster", HOSTS, required=None)), HOSTS)[-1]
    assert check["verdict"] == "warn" and "verify_bandwidth_min_gb_s" in check["fix"]


@pytest.mark.parametrize(
    "tail, reason",
    [
        (
            [
                "x",
                "trainyard: failed: rank 0 on host node-a ended with exit code 1. Log: l",
                "trainyard: result: r",
            ],
            "rank 0 on host node-a ended with exit code 1. Log: l",
        ),
        (["something else"], "something else"),
        ([], "the job left no result"),
    ],
)
def test_job_that_left_nothing(tail, reason):
    checks = measured({}, HOSTS, tail)
    assert [check["verdict"] for check in checks] == ["skipped"] * 3
    assert {check["found"] for check in checks} == {"not measured: " + reason}
    assert {found[2:] for found in seen({}, HOSTS, tail, dict.fromkeys(HOSTS, 1))} == {
        ("skipped", prefix + reason) for prefix in ("not seen: ", "not read: ")
    }


def test_job_that_broke_off():
    checks = measured(
        answer(runs=[run("host:node-a", ["node-a"])], note=_bandwidth.BROKE_OFF), HOSTS, ["broken"]
    )
    assert [(check["verdict"], check["found"]) for check in checks] == [("pass", "1 GB/s")] + [
        ("skipped", "not measured: broken")
    ] * 2
    assert "job.log" in checks[1]["fix"]


def test_hosts_with_one_rank():
    """Alone they exchange nothing. The job is in order, so nobody is sent to its log."""
    checks = measured(answer(runs=[run("cluster", HOSTS)]), HOSTS, ["trainyard: result: r"])
    assert [(check["verdict"], check["found"], check["fix"]) for check in checks] == [
        ("skipped", "not measured: one rank has nothing to exchange", "")
    ] * 2 + [("pass", "1 GB/s", "")]


def test_no_job_was_started():
    checks = bandwidth_checks(
        {}, HOSTS, gpus=dict.fromkeys(HOSTS, 8), reason="verify_measure_bandwidth is false"
    )
    assert {check["verdict"] for check in checks} == {"skipped"} and {
        check["fix"] for check in checks
    } == {""}
    assert [
        (check["id"], check["host"])
        for check in checks
        if "verify_measure_bandwidth is false" in check["found"]
    ] == [
        ("bandwidth-host", "node-a"),
        ("bandwidth-host", "node-b"),
        ("bandwidth-cluster", "node-a, node-b"),
        ("gpus-busy", "node-a"),
        ("gpus-busy", "node-b"),
        ("fabric-counters", "node-a"),
        ("fabric-counters", "node-b"),
        ("fabric-errors", "node-a"),
        ("fabric-errors", "node-b"),
        ("nccl-transport", "node-a, node-b"),
    ]


def test_one_host_has_no_network_to_measure():
    assert [check["id"] for check in measured(answer(), HOSTS[:1])] == ["bandwidth-host"]


def test_what_was_seen_besides():
    assert seen(answer(), HOSTS) == [
        ("gpus-busy", "node-a", "skipped", "the training container has no GPU"),
        ("gpus-busy", "node-b", "skipped", "the training container has no GPU"),
        ("fabric-counters", "node-a", "pass", "sent 0.448 GB (+7 %); received 0.447 GB (+6 %)"),
        ("fabric-counters", "node-b", "pass", "sent 0.448 GB (+7 %); received 0.447 GB (+6 %)"),
        ("fabric-errors", "node-a", "pass", ""),
        ("fabric-errors", "node-b", "pass", ""),
        (
            "nccl-transport",
            "node-a, node-b",
            "skipped",
            "the job ran without NCCL, because it has no GPUs",
        ),
    ]


def test_one_host_has_no_fabric():
    alone = answer(runs=[run("host:node-a", ["node-a"])], watched={}, collective="nccl")
    assert seen(alone, HOSTS[:1]) == [
        ("gpus-busy", "node-a", "skipped", "not seen: one rank has nothing to exchange"),
        ("nccl-transport", "node-a", "skipped", "not seen: one rank has nothing to exchange"),
    ]


def test_gpus_that_pytorch_does_not_see():
    found = seen(answer(), HOSTS, [], {"node-b": 8})
    assert found[0][2] == "skipped" and found[1] == (
        "gpus-busy",
        "node-b",
        "fail",
        "the job ran on the CPU: PyTorch sees no GPU",
    )


@pytest.mark.parametrize(
    "changes, reason",
    [
        (
            {"watched": dict(WATCHED, hosts={}, error="Connection reset by peer")},
            "Connection reset by peer",
        ),
        ({"watched": {}}, "the job was aborted"),
        (
            {
                "watched": {},
                "runs": [
                    dict(
                        run("cluster", HOSTS, None, passed=False, reasons=["no way"]),
                        errors=["no way"],
                    )
                ],
            },
            "the previous measurement has failed",
        ),
    ],
)
def test_ranks_that_were_not_watched(changes, reason):
    found = [entry for entry in seen(answer(**changes), HOSTS) if entry[0] == "fabric-counters"]
    assert found == [("fabric-counters", name, "skipped", "not read: " + reason) for name in HOSTS]


def test_a_measurement_with_gpus_passes_the_checks_of_gpus_and_fabric():
    hosts = {
        name: {
            "ranks": 2,
            "via": [" via NET/IB/0/GDRDMA", " via P2P/CUMEM/read"],
            "gpus": [99, 97],
            "sent_bytes": 630 << 20,
            "received_bytes": 630 << 20,
        }
        for name in HOSTS
    }
    cards = [_bandwidth.card("mlx5_0", "200 Gb/sec (4X HDR)", True)]
    facts = {
        name: {"cards": cards, "gpus": [{"nvlink": 300.0, "pcie": 0.0}] * 2, "interface": ""}
        for name in HOSTS
    }
    found = seen(
        answer(collective="nccl", watched=dict(WATCHED, ranks=4, hosts=hosts), facts=facts),
        HOSTS,
        [],
        dict.fromkeys(HOSTS, 2),
    )
    assert [entry[:3] for entry in found] == [
        ("gpus-busy", "node-a", "pass"),
        ("gpus-busy", "node-b", "pass"),
        ("fabric-counters", "node-a", "pass"),
        ("fabric-counters", "node-b", "pass"),
        ("fabric-errors", "node-a", "pass"),
        ("fabric-errors", "node-b", "pass"),
        ("nccl-transport", "node-a, node-b", "pass"),
    ]
    assert (
        found[0][3] == "2: GPU 0 99 %, GPU 1 97 %"
        and found[2][3] == "sent 0.661 GB (+5 %); received 0.661 GB (+5 %)"
    )
    assert found[6][3] == "NET/IB, P2P/CUMEM"


def horovod(carrier, **changes):
    given = {
        "collective": "horovod",
        "carrier": carrier,
        "on_gpus": carrier == "nccl",
        "binding": "TensorFlow",
    }
    return answer(**dict(given, **changes))


def test_horovod_by_gloo_is_watched():
    checks = seen(horovod("gloo", watched=dict(WATCHED, ring=True)), HOSTS)
    assert [entry[:3] for entry in checks] == [
        ("gpus-busy", "node-a", "skipped"),
        ("gpus-busy", "node-b", "skipped"),
        ("fabric-counters", "node-a", "pass"),
        ("fabric-counters", "node-b", "pass"),
        ("fabric-errors", "node-a", "pass"),
        ("fabric-errors", "node-b", "pass"),
        ("nccl-transport", "node-a, node-b", "skipped"),
    ]
    assert (
        checks[2][3] == "sent 0.448 GB (+7 %); received 0.447 GB (+6 %)"
        and checks[6][3] == "the job ran without NCCL, because it has no GPUs"
    )
    wrong = dict(
        WATCHED,
        hosts=dict(
            WATCHED["hosts"], **{"node-b": dict(WATCHED["hosts"]["node-b"], sent_bytes=1 << 20)}
        ),
    )
    assert [entry[2] for entry in seen(horovod("gloo", watched=wrong), HOSTS)][2:4] == [
        "pass",
        "fail",
    ]


def test_horovod_by_nccl_is_watched():
    hosts = {
        name: {
            "ranks": 2,
            "via": [" via NET/IB/0/GDRDMA", " via P2P/CUMEM/read"],
            "gpus": [99, 97],
            "sent_bytes": 630 << 20,
            "received_bytes": 630 << 20,
        }
        for name in HOSTS
    }
    facts = {
        name: {
            "cards": [_bandwidth.card("mlx5_0", "200 Gb/sec (4X HDR)", True)],
            "gpus": [{"nvlink": 300.0, "pcie": 0.0}] * 2,
            "interface": "",
        }
        for name in HOSTS
    }
    found = seen(
        horovod("nccl", watched=dict(WATCHED, ranks=4, ring=False, hosts=hosts), facts=facts),
        HOSTS,
        [],
        dict.fromkeys(HOSTS, 2),
    )
    assert [entry[2] for entry in found] == ["pass"] * 7 and found[2][
        3
    ] == "sent 0.661 GB; received 0.661 GB"


def test_horovod_by_mpi_says_why_it_is_not_watched():
    found = seen(
        horovod("mpi", watched={"error": "MPI carries the data"}), HOSTS, [], {"node-b": 8}
    )
    assert found[0][2:] == ("skipped", "the training container has no GPU")
    assert found[1][2:] == ("fail", "the job ran on the CPU: TensorFlow sees no GPU")
    assert found[2:4] == [
        ("fabric-counters", name, "skipped", "not read: MPI carries the data") for name in HOSTS
    ]
    assert [entry[0] for entry in found[4:]] == ["fabric-errors"] * 2 + ["nccl-transport"]
    assert found[6][2] == "skipped"
    source = {
        check["source"]
        for check in bandwidth_checks(horovod("mpi"), HOSTS)
        if check["id"] == "bandwidth-cluster"
    }
    assert source == {"Horovod's all-reduce by MPI"}


def test_horovod_with_gpus_and_without_nccl():
    """Its GPUs hold the data, and Gloo carries them."""
    found = seen(horovod("gloo", on_gpus=True), HOSTS, [], dict.fromkeys(HOSTS, 1))
    assert found[0] == (
        "gpus-busy",
        "node-a",
        "skipped",
        "nvidia-smi reports the use of 0 GPUs only",
    )
    assert found[6][3] == "the job ran without NCCL, which Horovod was not built with"


def test_horovod_that_broke_off_while_it_was_watched():
    found = seen(horovod("gloo", watched={}, note=_bandwidth.BROKE_OFF), HOSTS)
    assert found[2] == ("fabric-counters", "node-a", "skipped", "not read: the job was aborted")


@pytest.mark.parametrize(
    "changes, words",
    [
        ({}, ""),
        # tc qdisc add dev eth0 root netem loss 5%
        ({"tcp": [40000, 2000]}, "TCP resent 2000 of 40000 segments (5 %)"),
        # Few segments say nothing.
        ({"tcp": [100, 12]}, ""),
        ({"tcp": []}, ""),
        ({"cards": {"eth0 rx_crc_errors": 1}}, "eth0 rx_crc_errors: 1"),
        ({"cards": {"mlx5_0 out_of_sequence": 50, "eth0 tx_dropped": 101}}, "eth0 tx_dropped: 101"),
        ({"mtu": {"eth0": 1400}}, "MTU 1400, on the other hosts 1500"),
    ],
)
def test_lost_data_is_a_warning_of_the_host(changes, words):
    lost = dict(LOST, **{"node-b": dict(LOST["node-b"], **changes)})
    checks = {
        check["host"]: check
        for check in bandwidth_checks(answer(lost=lost), HOSTS)
        if check["id"] == "fabric-errors"
    }
    check = checks["node-b"]
    assert (check["verdict"], check["found"]) == ("warn" if words else "pass", words)
    assert bool(check["fix"]) is bool(words)
    assert (checks["node-a"]["verdict"] == "warn") is words.startswith("MTU")


def test_a_port_error_in_a_good_run_is_a_warning_of_its_host():
    found = seen(
        answer(remarks={"node-b": ["port mlx5_4:1 reported 'port error'; check it"]}), HOSTS
    )
    assert (
        "fabric-errors",
        "node-b",
        "warn",
        "port mlx5_4:1 reported 'port error'; check it",
    ) in found
    assert ("fabric-errors", "node-a", "pass", "") in found
    line = "gx1:1:2 [0] net_ib.cc:150 NCCL WARN NET/IB : mlx5_4:1 Got async event : port error"
    found = seen(answer(nccl_lines={"node-a": [], "node-b": [line]}), HOSTS)
    assert [entry[2] for entry in found if entry[0] == "fabric-errors"] == ["pass", "warn"]


def test_a_job_that_failed_is_not_slow_hardware():
    failed = dict(
        run("host:node-b", ["node-b"], None, passed=False, reasons=["Cannot assign address"]),
        errors=["Cannot assign address"],
    )
    runs = [run("host:node-a", ["node-a"]), failed, run("cluster", HOSTS)]
    check = measured(answer(runs=runs), HOSTS)[1]
    assert check["found"] == "the measurement failed: Cannot assign address"
    assert "says nothing of the hardware" in check["fix"] and "clocks" not in check["fix"]
