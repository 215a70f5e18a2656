"""Horovod by MPI: compiled against Debian's Open MPI, its ranks started by mpirun between the containers of two hosts."""

from __future__ import annotations

import pytest
from whole_cluster import WholeCluster

pytestmark = [pytest.mark.acceptance, pytest.mark.scenario]

IMAGE = {
    "training_image_requires": {
        "frameworks": ["pytorch"],
        "controllers": ["gloo", "mpi"],
        "tensor_operations": ["gloo", "mpi"],
    },
    "training_image_apt_packages": ["libopenmpi-dev", "openmpi-bin"],
}


@pytest.fixture(name="cluster", scope="module")
def fixture_cluster():
    with WholeCluster("mpi", "172.30.73.0/24").made("--extra-vars", IMAGE) as cluster:
        yield cluster


# By auto horovodrun takes MPI before Gloo where its build has both.
@pytest.mark.parametrize("controller, by_mpi", [("mpi", True), ("auto", True), ("gloo", False)])
def test_ranks_are_started_by_the_requested_controller(cluster, controller, by_mpi):
    command = 'sh -c "echo size $OMPI_COMM_WORLD_SIZE; exec python3 /data1/share/.trainyard/examples/digits_horovod.py --epochs 2"'
    run = cluster.playbook(
        "playbooks/train.yml",
        "--extra-vars",
        dict(
            IMAGE,
            train_controller=controller,
            cluster_slots=2,
            train_command=command,
            train_environment={"CUDA_VISIBLE_DEVICES": "0,1"},
        ),
    )
    assert run.code == 0
    result = cluster.last_job()
    assert [
        (rank["rank"], rank["host"], rank["slot"], rank["exit_code"]) for rank in result["ranks"]
    ] == [
        (0, cluster.head, 0, 0),
        (1, cluster.head, 1, 0),
        (2, cluster.peer, 0, 0),
        (3, cluster.peer, 1, 0),
    ]
    assert len({rank["checksum"] for rank in result["ranks"]}) == 1
    # Four at once, and who has counted them.
    folder = "/data1/share/.trainyard/jobs/%s" % result["job_id"]
    told = [
        line.strip()
        for line in cluster.on(cluster.peer, "cat %s/rank.*.log" % folder).out.splitlines()
    ]
    assert told.count("size 4" if by_mpi else "size") == 4


def test_a_failed_rank_ends_the_others(cluster):
    """mpirun and its daemons are the launcher's, not the ranks': the sweep finds them all."""
    command = 'sh -c "test $OMPI_COMM_WORLD_RANK != 3 || exit 7; sleep 1000"'
    run = cluster.playbook(
        "playbooks/train.yml",
        "--extra-vars",
        dict(IMAGE, train_controller="mpi", cluster_slots=2, train_command=command),
    )
    assert run.code == 2
    assert cluster.last_job()["exit_code"] == 7
    for host in cluster.hosts:
        assert (
            cluster.inside(host, 'pgrep -f "[s]leep 1000|[o]rted|[m]pirun"', check=False).out == ""
        ), host
