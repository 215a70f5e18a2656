"""MindSpore on the CPUs of two hosts: four ranks started by msrun, two on each, as `train` starts
one for each NPU. The wheel has 800 MB.

A rank needs 420 MB of memory, and so does msrun's scheduler on the first host.
"""

from __future__ import annotations

import re

import pytest
from whole_cluster import WholeCluster

pytestmark = [pytest.mark.acceptance, pytest.mark.scenario]

# The base has Python 3.11, the newest one of MindSpore's wheels. It has no Horovod, so nothing is
# compiled, and no PyTorch to measure with.
IMAGE = {
    "training_image_requires": {"frameworks": [], "controllers": [], "tensor_operations": []},
    "training_image_python_packages": ["mindspore==2.10.0"],
    "verify_measure_bandwidth": False,
    "train_launcher": "mindspore",
    "cluster_slots": 2,
}
EXAMPLE = "python3 /data1/share/.trainyard/examples/digits_mindspore.py --data generated --hosts 2 --epochs %d"
#: Connects, and then does what its argument says.
STEP = """import os, socket, sys, time
from mindspore.communication import get_rank, init
if sys.argv[1] == "late" and socket.gethostname().endswith("-b"):
    time.sleep(1000)
init()
if get_rank() == 3 and sys.argv[1] == "exit":
    sys.exit(3)
if get_rank() == 3 and sys.argv[1] == "kill":
    os.kill(os.getpid(), 9)
time.sleep(1000)
"""


@pytest.fixture(name="cluster", scope="module")
def fixture_cluster():
    with WholeCluster("mindspore", "172.30.71.0/24").made("--extra-vars", IMAGE) as cluster:
        cluster.on(
            cluster.head,
            "mkdir -p /data1/share/step && cat > /data1/share/step/step.py << 'END'\n%s\nEND"
            % STEP,
        )
        yield cluster


def train(cluster, **variables):
    run = cluster.playbook("playbooks/train.yml", "--extra-vars", dict(IMAGE, **variables))
    return run, cluster.last_job()


def test_four_ranks_on_two_hosts_train_as_one_process(cluster):
    """The example itself compares its parameters with those of one process that had the images of
    all ranks.
    """
    run, result = train(cluster, train_command=EXAMPLE % 12)
    assert run.code == 0
    assert [
        (rank["rank"], rank["host"], rank["slot"], rank["exit_code"]) for rank in result["ranks"]
    ] == [
        (0, cluster.head, 0, 0),
        (1, cluster.head, 1, 0),
        (2, cluster.peer, 0, 0),
        (3, cluster.peer, 1, 0),
    ]
    assert len({rank["checksum"] for rank in result["ranks"]}) == 1 and re.fullmatch(
        "[0-9a-f]{64}", result["ranks"][0]["checksum"]
    )
    assert result["metrics"]["accuracy"] >= 0.95
    # Of float32 sums in another order; and that of what has been trained.
    assert result["metrics"]["difference"] < 1e-5 < 0.05 < result["metrics"]["moved"]
    assert (result["launcher"], result["versions"]) == ("mindspore", {"mindspore": "2.10.0"})
    folder = "/data1/share/.trainyard/jobs/%s" % result["job_id"]
    for host, ranks in ((cluster.head, (0, 1)), (cluster.peer, (2, 3))):
        for rank in ranks:
            told = cluster.on(
                host, "cat %s/%s/rank.%d/env.log" % (folder, host, rank)
            ).out.splitlines()
            assert {
                "RANK_ID=%d" % rank,
                "DEVICE_ID=%d" % (rank % 2),
                "RANK_SIZE=4",
                "DEVICE_NUM=2",
            } <= set(told)
            assert [
                line
                for line in told
                if line.startswith(("RANK_TABLE_FILE=", "MINDSPORE_HCCL_CONFIG_PATH="))
            ] == []
    assert cluster.left_alive(result["job_id"]) == {host: [] for host in cluster.hosts}


def test_ranks_that_average_nothing_are_found_out(cluster):
    """By their parameters, and by the one process."""
    run, result = train(cluster, train_command=EXAMPLE % 2 + " --no-averaging")
    assert run.code == 2 and "do not have the same parameters" in run.text
    assert result["metrics"]["difference"] > 0.01
    assert (
        "After one epoch the parameters differed by"
        in cluster.on(
            cluster.head, "cat /data1/share/.trainyard/jobs/%s/rank.0.log" % result["job_id"]
        ).out
    )


def test_ranks_on_one_host_are_found_out(cluster):
    run, _result = train(cluster, train_command=(EXAMPLE % 1).replace("--hosts 2", "--hosts 3"))
    assert run.code == 2 and "The 4 ranks are on 2 hosts, and 3 were expected" in run.text


@pytest.mark.parametrize("what, code", [("exit", 3), ("kill", 137)])
def test_a_rank_that_fails_is_named_and_ends_the_job(cluster, what, code):
    run, result = train(
        cluster, train_command="python3 step.py " + what, train_workdir="/data1/share/step"
    )
    assert run.code == 2 and result["exit_code"] == code
    assert "rank 3 on host %s ended with exit code %d" % (cluster.peer, code) in " ".join(
        run.text.split()
    )
    assert cluster.left_alive(result["job_id"]) == {host: [] for host in cluster.hosts}


def test_a_host_that_never_comes_ends_the_job(cluster):
    """Its ranks run, but do not connect. msrun waits twice as long as it is told."""
    run, result = train(
        cluster,
        train_command="python3 step.py late",
        train_workdir="/data1/share/step",
        train_start_timeout=15,
    )
    assert run.code == 2 and run.seconds < 240
    failed = [rank["rank"] for rank in result["ranks"] if rank["exit_code"] == 1]
    assert failed and set(failed) <= {0, 1}
    assert "rank %d on host %s ended with exit code 1" % (failed[0], cluster.head) in " ".join(
        run.text.split()
    )
    assert cluster.left_alive(result["job_id"]) == {host: [] for host in cluster.hosts}


def test_a_stopped_job_leaves_no_rank(cluster):
    run, result = train(
        cluster,
        train_command="python3 step.py wait",
        train_workdir="/data1/share/step",
        train_timeout=60,
    )
    assert run.code == 2 and result["exit_code"] == 124
    assert cluster.left_alive(result["job_id"]) == {host: [] for host in cluster.hosts}
