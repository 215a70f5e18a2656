"""An image with TensorFlow and without PyTorch, on two hosts: Horovod compiled for it, checked, measured with, and trained with."""

from __future__ import annotations

import re

import pytest
from whole_cluster import WholeCluster

pytestmark = [pytest.mark.acceptance, pytest.mark.scenario]

# The last one that the published Horovod runs with.
IMAGE = {"training_image_requires": {"frameworks": ["tensorflow"], "controllers": ["gloo"], "tensor_operations": ["gloo"]},
         "training_image_python_packages": ["tensorflow-cpu==2.15.1", "numpy==1.26.4"]}
# As slow as two cores that have other work: whether it measures is asked here, not how fast the network is.
ASKED = {"verify_bandwidth_min_gb_s": 0.001, "verify_bandwidth_peer_fraction": 0.02, "verify_bandwidth_drop_percent": 100}
EXAMPLE = "python3 /data1/share/.trainyard/examples/digits_tensorflow.py --data generated --epochs %d"


@pytest.fixture(name="cluster", scope="module")
def fixture_cluster():
    with WholeCluster("tensorflow", "172.30.72.0/24").made("--extra-vars", IMAGE) as cluster:
        yield cluster


def test_horovod_is_built_for_tensorflow_alone(cluster):
    table = cluster.inside(cluster.peer, "horovodrun --check-build").out
    # Horovod 0.28.1 ticks PyTorch wherever `import horovod.torch` raises nothing, which it does without its compiled part too.
    assert re.findall(r"\[X\] (\w+)", table) == ["TensorFlow", "PyTorch", "Gloo", "Gloo"]
    assert cluster.inside(cluster.peer, "python3 -c \"import horovod.torch as it; it.init()\"", check=False).code != 0
    assert cluster.inside(cluster.peer, "python3 -c \"import torch\"", check=False).code != 0


def test_verify_measures_with_horovod(cluster):
    run = cluster.playbook("playbooks/verify.yml", "--extra-vars", {**IMAGE, **ASKED})
    report = cluster.last_report()
    bandwidth = report["bandwidth"]
    assert run.code == 0 and (bandwidth["tool"], bandwidth["collective"]) == ("horovod", "horovod")
    assert [(each["id"], each["ranks"], each["passed"]) for each in bandwidth["runs"]] == [
        ("host:%s" % cluster.head, 2, True), ("host:%s" % cluster.peer, 2, True), ("cluster", 2, True)]
    assert {row["in_place"]["wrong"] for each in bandwidth["runs"] for row in each["rows"]} == {0}
    verdicts = {check["id"]: check["verdict"] for check in report["checks"]}
    assert [verdicts[name] for name in ("horovod-build", "bandwidth-host", "bandwidth-cluster")] == ["pass"] * 3


@pytest.mark.parametrize("slots", [1, 2])
def test_two_hosts_train_together(cluster, slots):
    run = cluster.playbook("playbooks/train.yml", "--extra-vars", {**IMAGE, "cluster_slots": slots, "train_command": EXAMPLE % 6})
    assert run.code == 0
    result = cluster.last_job()
    assert [(rank["host"], rank["slot"], rank["exit_code"]) for rank in result["ranks"]] == [
        (host, slot, 0) for host in cluster.hosts for slot in range(slots)]
    assert len({rank["checksum"] for rank in result["ranks"]}) == 1 and re.fullmatch("[0-9a-f]{64}", result["ranks"][0]["checksum"])
    assert result["metrics"]["accuracy"] >= 0.95


def test_ranks_that_average_nothing_are_found_out(cluster):
    """To see that the equal parameters above come from the averaging."""
    run = cluster.playbook("playbooks/train.yml", "--extra-vars", {**IMAGE, "train_command": EXAMPLE % 1 + " --no-averaging"})
    assert run.code == 2 and "do not have the same parameters" in run.text
    assert len({rank["checksum"] for rank in cluster.last_job()["ranks"]}) == 2
