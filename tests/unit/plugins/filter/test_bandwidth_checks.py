"""What was measured between hosts, as checks that say what to do."""

from __future__ import annotations

import pytest

from ansible_collections.trainyard.gpu.plugins.filter.bandwidth_checks import bandwidth_checks

HOSTS = ["node-a", "node-b"]


def run(run_id, hosts, busbw=1.0, required=0.5, passed=True, reasons=()):
    return {"id": run_id, "hosts": hosts, "judged_busbw_gb_s": busbw, "passed": passed, "reasons": list(reasons), "seconds": 1.5,
            "expected": {"required_gb_s": required, "bound": "nic" if required else None, "from": "node-a: eth0 10 Gb/s by TCP", "busbw_gb_s": required}}


def answer(cluster=None, **changes):
    given = {"collective": "gloo", "blame": [], "suspect": [], "note": "",
             "runs": [run("host:%s" % name, [name]) for name in HOSTS] + [cluster or run("cluster", HOSTS)]}
    return dict(given, **changes)


def test_good():
    checks = bandwidth_checks(answer(), HOSTS)
    assert [(check["id"], check["host"], check["verdict"], check["found"]) for check in checks] == [
        ("bandwidth-host", "node-a", "pass", "1 GB/s"), ("bandwidth-host", "node-b", "pass", "1 GB/s"), ("bandwidth-cluster", "node-a, node-b", "pass", "1 GB/s")]
    assert checks[2]["expected"] == "0.5 GB/s or more (nic: node-a: eth0 10 Gb/s by TCP)" and checks[2]["seconds"] == 1.5
    assert checks[2]["source"] == "PyTorch's all-reduce by Gloo"


SHORT = run("cluster", HOSTS, 0.1, passed=False, reasons=["0.1 GB/s, required are 0.5 (nic: x)"])


@pytest.mark.parametrize("blame, found, fix", [
    ([{"kind": "host", "names": ["node-b"], "evidence": "slow"}], "host node-b: slow", "look at node-b; until then leave out: node-b"),
    ([{"kind": "link", "names": HOSTS, "evidence": "slow"}], "link node-a - node-b: slow", "look at the way between node-a and node-b; until then leave out: node-b"),
])
def test_who_is_to_blame(blame, found, fix):
    check = bandwidth_checks(answer(SHORT, blame=blame, suspect=["node-b"]), HOSTS)[-1]
    assert (check["verdict"], check["found"], check["fix"]) == ("fail", "0.1 GB/s, required are 0.5 (nic: x). " + found, fix)


def test_nobody_is_to_blame():
    check = bandwidth_checks(answer(SHORT, note="they fall short only together"), HOSTS)[-1]
    assert check["found"].endswith(". they fall short only together") and check["fix"].startswith("look at what all hosts share")


def test_nothing_says_what_it_should_be():
    check = bandwidth_checks(answer(run("cluster", HOSTS, required=None)), HOSTS)[-1]
    assert check["verdict"] == "warn" and "verify_bandwidth_min_gb_s" in check["fix"]


@pytest.mark.parametrize("tail, reason", [
    (["x", "trainyard: failed: rank 0 on host node-a ended with exit code 1; its log: l", "trainyard: result: r"], "rank 0 on host node-a ended with exit code 1; its log: l"),
    (["something else"], "something else"),
    ([], "the job left no answer"),
])
def test_job_that_left_nothing(tail, reason):
    checks = bandwidth_checks({}, HOSTS, tail)
    assert [check["verdict"] for check in checks] == ["skipped"] * 3
    assert {check["found"] for check in checks} == {"not measured: " + reason}


def test_job_that_broke_off():
    checks = bandwidth_checks(answer(runs=[run("host:node-a", ["node-a"])]), HOSTS, ["broken"])
    assert [check["verdict"] for check in checks] == ["pass", "skipped", "skipped"]


def test_one_host_has_no_network_to_measure():
    assert [check["id"] for check in bandwidth_checks(answer(), HOSTS[:1])] == ["bandwidth-host"]
