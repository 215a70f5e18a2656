"""Horovod by MPI: compiled against Debian's Open MPI, its ranks started by mpirun between the
containers of two hosts.

Role train starts mpirun itself (train_launcher mpirun), or horovodrun does.
"""

from __future__ import annotations

import time

import pytest
from whole_cluster import FOR_EVER, WholeCluster

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


def train(cluster, **variables):
    return cluster.playbook("playbooks/train.yml", "--extra-vars", dict(IMAGE, **variables))


def nothing_left(cluster):
    """mpirun and its daemons are the launcher's, not the ranks': the sweep finds them all."""
    for host in cluster.hosts:
        left = cluster.inside(
            host, 'pgrep -af "[s]leep 1000|[d]ate [+]%s|[o]rted|[m]pirun"', check=False
        )
        assert left.out == "", host


# By auto horovodrun takes MPI before Gloo where its build has both.
@pytest.mark.parametrize(
    "launcher, controller, by_mpi",
    [
        ("horovodrun", "mpi", True),
        ("horovodrun", "auto", True),
        ("horovodrun", "gloo", False),
        ("mpirun", "auto", True),
    ],
)
def test_ranks_are_started_by_the_requested_controller(cluster, launcher, controller, by_mpi):
    command = 'sh -c "echo size ${OMPI_COMM_WORLD_SIZE:-none} interface $NCCL_SOCKET_IFNAME; exec python3 /data1/share/.trainyard/examples/digits_horovod.py --epochs 2"'
    run = train(
        cluster,
        train_launcher=launcher,
        train_controller=controller,
        cluster_slots=2,
        train_command=command,
        train_environment={"CUDA_VISIBLE_DEVICES": "0,1"},
    )
    assert run.code == 0
    result = cluster.last_job()
    assert result["launcher"] == launcher and list(result["versions"]) == [
        "openmpi" if launcher == "mpirun" else "horovod"
    ]
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
    assert told.count("size %s interface =eth0" % ("4" if by_mpi else "none")) == 4
    lines = ["%s slots=2" % cluster.address[host] for host in cluster.hosts]
    assert cluster.on(cluster.peer, "cat %s/hosts" % folder).out.splitlines() == lines
    if launcher == "mpirun":
        # Open MPI has nothing to complain of, such as memory that containers may not read.
        assert not [line for line in told if "errno" in line]
    assert cluster.left_alive(result["job_id"]) == {host: [] for host in cluster.hosts}


def test_mpirun_with_other_numbers_of_ranks(cluster):
    """One rank on the head, two on the other host: the ranks are numbered in the order of the
    hosts.
    """
    run = train(
        cluster,
        train_launcher="mpirun",
        cluster_slots="{{ 1 if inventory_hostname == '%s' else 2 }}" % cluster.head,
        train_command="python3 /data1/share/.trainyard/examples/digits_horovod.py --data generated --epochs 1",
    )
    assert run.code == 0
    assert [(rank["rank"], rank["host"], rank["slot"]) for rank in cluster.last_job()["ranks"]] == [
        (0, cluster.head, 0),
        (1, cluster.peer, 0),
        (2, cluster.peer, 1),
    ]


@pytest.mark.parametrize("launcher, controller", [("horovodrun", "mpi"), ("mpirun", "auto")])
def test_a_failed_rank_ends_the_others(cluster, launcher, controller):
    command = 'sh -c "test $OMPI_COMM_WORLD_RANK != 3 || exit 7; sleep 1000"'
    run = train(
        cluster,
        train_launcher=launcher,
        train_controller=controller,
        cluster_slots=2,
        train_command=command,
    )
    assert run.code == 2
    assert cluster.last_job()["exit_code"] == 7
    nothing_left(cluster)


@pytest.mark.parametrize("launcher", ["horovodrun", "mpirun"])
def test_a_rank_that_is_killed_gives_the_exit_code(cluster, launcher):
    """As the kernel does when the memory is full.

    Its peer ends by an error of its own a moment later.
    """
    command = 'sh -c "if test $OMPI_COMM_WORLD_RANK = 1; then kill -9 $$; fi; sleep 1; exit 1"'
    run = train(cluster, train_launcher=launcher, train_command=command)
    assert run.code == 2
    assert cluster.last_job()["exit_code"] == 137
    nothing_left(cluster)


def test_no_rank_of_mpirun_outlives_its_runner(cluster):
    log = cluster.state / "mpirun.log"
    # An ID that has run is refused, and a lab that is used again has run it.
    job_id = "killed-%d" % time.time()
    with open(log, "w", encoding="utf-8") as output:
        operator = cluster.start(
            "playbooks/train.yml",
            "--extra-vars",
            dict(IMAGE, train_command=FOR_EVER, train_job_id=job_id, train_launcher="mpirun"),
            output=output,
        )
    result = "cat /data1/share/.trainyard/jobs/%s/result.json" % job_id
    try:
        cluster.wait(
            "both ranks", 120, lambda: {"[0 ", "[1 "} <= words(log.read_text(encoding="utf-8"))
        )
        cluster.on(
            cluster.head,
            "systemctl kill --signal=KILL --kill-whom=main trainyard-job-%s" % job_id,
        )
        cluster.wait(
            "result.json", 60, lambda: cluster.on(cluster.peer, result, check=False).code == 0
        )
        assert cluster.left_alive(job_id) == {host: [] for host in cluster.hosts}
        nothing_left(cluster)
        assert operator.wait(60) != 0
    finally:
        operator.kill()


def words(text):
    """The three characters from each bracket on: a line of a rank begins with its number."""
    return {text[at : at + 3] for at, sign in enumerate(text) if sign == "["}


def test_an_image_without_mpirun_is_refused(cluster):
    """The input says so if it is known, else the launcher does."""
    requires = dict(IMAGE["training_image_requires"], controllers=["gloo"])
    run = train(cluster, train_launcher="mpirun", training_image_requires=requires)
    assert run.code == 2 and "add mpi to training_image_requires.controllers" in run.text
    program = cluster.inside(cluster.head, "command -v mpirun").out.strip()
    cluster.inside(cluster.head, "mv %s %s.away" % (program, program))
    try:
        run = train(cluster, train_launcher="mpirun")
    finally:
        cluster.inside(cluster.head, "mv %s.away %s" % (program, program))
    assert run.code == 2
    assert "'mpirun' needs Open MPI in the training image" in run.text
    assert "Add mpirun to training_image_tools and run site.yml" in run.text
