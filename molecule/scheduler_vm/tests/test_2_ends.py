"""How a job ends, and what is left of it: programs that are killed, a process that cannot be
killed, and a node that loses its power.
"""

from __future__ import annotations

import re

import pytest
from conftest import IMAGE, STORAGE

# As slurmd starts it every five minutes.
HEALTH = "SLURMD_NODENAME=$(hostname) /usr/local/lib/trainyard/slurm/health"
# Leaves files in all places that are a job's, and processes that nobody waits for.
LEAVES = "touch /tmp/mine /dev/shm/mine; (sleep 901 &); echo started; exec sleep 902"


@pytest.fixture(autouse=True)
def _idle(cluster):
    cluster.idle()
    yield
    cluster.idle()


def begun(cluster, *options):
    """A job in a container that has started, and which uses all but one of the GPUs so that the
    next one gets one of its.
    """
    script = (
        "touch /dev/shm/of-the-job /tmp/of-the-job; (setsid sleep 903 &); exec srun trainyard-run %s -- sh -c '%s'"
        % (IMAGE, LEAVES)
    )
    number = cluster.submit("anna", script, *options, gpus=4)
    cluster.says("anna", number, "started", seconds=180)
    return number


def ids(cluster, pattern):
    return cluster.on(cluster.peer, "pgrep --full '%s'" % pattern, check=False).out.split()


def ends_without_a_trace(cluster, first, second):
    cluster.reaches(first, "FAILED", "NODE_FAIL", "CANCELLED", "TIMEOUT", "COMPLETED", seconds=240)
    cluster.reaches(second, "RUNNING", seconds=240)
    # pgrep ran when the job of ben began.
    assert cluster.output("ben", second) == ""
    assert [line for line in cluster.left("anna").splitlines() if second not in line] == []


@pytest.mark.parametrize(
    "command, state",
    [("scancel %s", "CANCELLED"), ("scontrol update jobid=%s timelimit=1", "TIMEOUT")],
)
def test_a_job_that_is_cancelled_or_out_of_time_leaves_nothing(cluster, command, state):
    first = begun(cluster)
    second = cluster.submit("ben", "pgrep --uid anna; exec sleep 600", gpus=4)
    assert cluster.job(second)[0] == "PENDING"
    cluster.on(cluster.head, command % first)
    ends_without_a_trace(cluster, first, second)
    assert cluster.job(first)[0] == state


@pytest.mark.parametrize("victim", ["^/usr/bin/conmon", "trainyard-run"])
def test_a_killed_program_leaves_nothing(cluster, victim):
    first = begun(cluster)
    second = cluster.submit("ben", "pgrep --uid anna; exec sleep 600", gpus=4)
    assert cluster.job(second)[0] == "PENDING"
    found = ids(cluster, victim)
    assert found, "nothing to kill"
    cluster.on(cluster.peer, "kill -9 " + " ".join(found))
    ends_without_a_trace(cluster, first, second)


def test_a_job_whose_slurmstepd_was_killed_keeps_its_gpus_until_nothing_is_left(cluster):
    first = begun(cluster)
    second = cluster.submit("ben", "pgrep --uid anna; exec sleep 600", gpus=4)
    found = ids(cluster, r"^slurmstepd: \[%s\." % first)
    assert len(found) == 3, "expected batch, extern and 0"
    cluster.on(cluster.peer, "kill -9 " + " ".join(found))
    # slurmctld notices at the next registration of the node only, which may be half an hour later.
    # The processes run until then, and hold the GPUs.
    assert (
        ids(cluster, "sleep 90[123]")
        and cluster.job(first)[0] == "RUNNING"
        and cluster.job(second)[0] == "PENDING"
    )
    cluster.on(cluster.head, "scancel " + first)
    ends_without_a_trace(cluster, first, second)


def test_a_process_that_cannot_be_killed_drains_the_node(cluster):
    cluster.on(
        cluster.peer, "mkdir -p /mnt/hang && systemd-run --quiet --unit=hang /srv/hang.py /mnt/hang"
    )
    try:
        first = cluster.submit("anna", "echo started; exec cat /mnt/hang/file", gpus=4)
        cluster.says("anna", first, "started")
        second = cluster.submit("ben", "true", gpus=4)
        cluster.on(cluster.head, "scancel " + first)
        cluster.wait(
            "the node is drained", 300, lambda: cluster.node(cluster.peer).startswith("drain")
        )
        assert cluster.job(second)[0] == "PENDING"
        # Slurm says that the kill has failed. The health program has the reason of the epilog,
        # which fails some time later. Until then it holds its note, which says that it has not
        # ended.
        note = "cat /run/trainyard/epilog.failed/" + first
        cluster.wait(
            "the epilog has failed",
            120,
            lambda: "do not end" in cluster.on(cluster.peer, note, check=False).out,
        )
        cluster.on(cluster.peer, HEALTH, check=False)
        reason = cluster.on(
            cluster.head, "sinfo --noheader --nodes=%s --format %%E" % cluster.peer
        ).out
        assert re.match(
            r"trainyard: epilog: job %s: these processes do not end: \d+ \(cat\)" % first, reason
        ), reason
    finally:
        cluster.on(cluster.peer, "systemctl stop hang; umount --lazy --force /mnt/hang; true")
    cluster.wait(
        "the process has ended",
        120,
        lambda: cluster.on(cluster.peer, "pgrep --uid anna", check=False).out == "",
    )
    # It tries the epilog again, and resumes the node.
    cluster.on(cluster.peer, HEALTH)
    cluster.reaches(second, "COMPLETED", seconds=240)


@pytest.mark.parametrize("option, end", [("--requeue", "PENDING"), ("--no-requeue", "NODE_FAIL")])
def test_a_node_that_loses_power(cluster, option, end):
    first = begun(cluster, option)
    cluster.on(cluster.peer, "sync")
    assert cluster.on(cluster.peer, "ls %s/jobs" % STORAGE).out.split() == [first]
    former = cluster.boot_id(cluster.peer)
    cluster.power(cluster.peer, "off")
    cluster.power(cluster.peer, "on")
    cluster.wait_for_boot(cluster.peer, former)
    cluster.wait(
        "the end of the job",
        420,
        lambda: (
            cluster.job(first)[0] in (end, "RUNNING")
            and cluster.restarts(first) == (end == "PENDING")
        ),
    )
    if end == "PENDING":
        cluster.on(cluster.head, "scancel " + first)
    cluster.wait("the node is back", 420, lambda: cluster.node(cluster.peer) == "idle")
    assert cluster.left("anna") == ""
    second = cluster.submit("ben", "true", gpus=4)
    cluster.reaches(second, "COMPLETED")
