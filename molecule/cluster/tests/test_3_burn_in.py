"""burn_in.yml loads the CPUs of both hosts with the image's PyTorch, files the results, and
verifies. A rank that computes one wrong bit is named.
"""

from __future__ import annotations

import base64
import json

import pytest

# Two containers share two busy cores, so only the right results are checked here, not the speed.
ASKED = {
    "burn_in_minutes": 1,
    "burn_in_ranks": 2,
    "verify_overrule": {"burn-in-speed": "skip"},
    "verify_bandwidth_min_gb_s": 0.0001,
    "verify_bandwidth_peer_fraction": 0.01,
    "verify_bandwidth_drop_percent": 100,
}
# Of the second rank of the host only. Python of the image imports it at its start.
WRONG = """
import sys
words = open("/proc/self/cmdline").read().split("\\0")
if "rank" in words and words[-2] == "1":
    import torch
    multiply = torch.matmul
    def wrong(left, right):
        product = multiply(left, right)
        if product.dtype == torch.float32:
            product.view(torch.int32)[3, 4] ^= 1
        return product
    torch.matmul = wrong
"""
FOLDER = "python3 -c \"import sysconfig; print(sysconfig.get_paths()['purelib'])\""


def checks(report, check_id):
    return {
        entry["host"]: (entry["verdict"], entry["found"])
        for entry in report["checks"]
        if entry["id"] == check_id
    }


def results(cluster):
    folder = cluster.inventory / ".trainyard/burn_in"
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.iterdir()}


@pytest.mark.acceptance
def test_a_healthy_cluster_and_the_files_of_its_devices(cluster):
    run = cluster.playbook("playbooks/burn_in.yml", "-e", ASKED)
    report = cluster.last_report()
    assert run.code == 0
    assert {host: said[0] for host, said in checks(report, "burn-in-results").items()} == {
        cluster.head: "pass",
        cluster.peer: "pass",
    }
    # Two ranks and the disks of each host.
    assert len(report["burn_in"]) == 6 and {each["wrong"] for each in report["burn_in"]} == {0}
    assert {each["serial"] for each in report["burn_in"]} == set(results(cluster))


@pytest.mark.acceptance
def test_one_wrong_bit_of_one_rank_is_named(cluster):
    program = base64.b64encode(WRONG.encode()).decode()
    cluster.inside(
        cluster.peer,
        "cd $(%s) && echo %s | base64 -d > wrong_bits.py && echo import wrong_bits > wrong_bits.pth"
        % (FOLDER, program),
    )
    try:
        run = cluster.playbook("playbooks/burn_in.yml", "-e", ASKED)
    finally:
        cluster.inside(cluster.peer, "cd $(%s) && rm -f wrong_bits.py wrong_bits.pth" % FOLDER)
    found = checks(cluster.last_report(), "burn-in-results")
    assert run.code == 2 and found[cluster.head][0] == "pass"
    verdict, said = found[cluster.peer]
    assert verdict == "fail" and "rank 1" in said and "matmul_float32" in said
