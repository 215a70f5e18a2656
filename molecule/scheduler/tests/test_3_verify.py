"""verify.yml on a scheduled cluster: a job of a person on each node finds what is wrong with it.

Nothing of it is left, and it never runs beside jobs.
"""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.acceptance

ROLE = "verify"


@pytest.fixture(autouse=True)
def _idle(cluster):
    cluster.idle()
    yield
    for host in cluster.hosts:
        cluster.on(cluster.head, "scontrol update nodename=%s state=resume" % host, check=False)
    cluster.idle()


def the_job(found, host):
    (check,) = found["scheduler-job", host]
    return check


def test_a_job_of_a_person_runs_on_each_node(cluster):
    found = cluster.verify()
    for host in cluster.hosts:
        for name in ("scheduler-answers", "scheduler-nodes", "scheduler-job"):
            (check,) = found[name, host]
            assert check["verdict"] == "pass", check
        # Of the account with the largest quota, on this node, and with one GPU.
        command = (
            "sacct --noheader --allocations --parsable2 --allusers --name=trainyard-probe --format=user,account,alloctres --nodelist="
            + host
        )
        told = cluster.wait(
            "the accounting of the job",
            lambda command=command: cluster.on(cluster.head, command).out,
        )
        assert all(
            re.fullmatch(r"ben\|language\|.*gres/gpu=1(,.*)?", line) for line in told.splitlines()
        ), told
    (quota,) = found["scheduler-quota", cluster.head]
    assert quota["verdict"] == "pass", quota
    for host in cluster.hosts:
        # These hosts limit nothing, which slurm_accept_no_limits accepts. It is no good verdict.
        (check,) = found["scheduler-isolation", host]
        assert check["verdict"] == "warn" and check["host"] == host, check
        assert (
            "MiB of memory with a limit of 64 MiB" in check["found"]
            and "slurm_accept_no_limits accepts it" in check["found"]
        ), check
    cluster.nothing_is_left_of_verify()
    # Other checks fail on these hosts, but none of them drains a node.
    assert cluster.nodes() == dict.fromkeys(cluster.hosts, "idle")


def test_a_prolog_that_fails_and_one_that_does_not_end(cluster):
    program = "/opt/prolog"
    cluster.on(
        cluster.peer, "printf '#!/bin/sh\\nexit 3\\n' > %s && chmod 755 %s" % (program, program)
    )
    cluster.on(
        cluster.head,
        "printf '#!/bin/sh\\nexec sleep 90\\n' > %s && chmod 755 %s" % (program, program),
    )
    with cluster.added("Prolog=" + program):
        found = cluster.verify()
    for host in cluster.hosts:
        cluster.on(host, "rm " + program)
    check = the_job(found, cluster.peer)
    assert check["verdict"] == "fail" and "Prolog error" in check["found"], check
    check = the_job(found, cluster.head)
    assert check["verdict"] == "fail" and "within 60 s" in check["found"], check
    cluster.nothing_is_left_of_verify()
    assert set(cluster.nodes().values()) == {"drained"}
    # Slurm itself has drained the peer, and its reason stays.
    assert cluster.reason(cluster.peer) == "Prolog error" and cluster.reason(
        cluster.head
    ).startswith("trainyard: verify: scheduler-job: ")


def test_no_job_beside_a_job(cluster):
    running = cluster.submit("anna", "--nodelist=" + cluster.peer, "--gpus=1")
    cluster.state_of(running, "RUNNING")
    found = cluster.verify(verify_wait_for_jobs=3)
    for host in cluster.hosts:
        check = the_job(found, host)
        assert (
            check["verdict"] not in ("pass", "fail")
            and "job %s of anna on %s" % (running, cluster.peer) in check["found"]
        ), check
    assert cluster.job(running)[0] == "RUNNING"
    assert "No reservations" in cluster.on(cluster.head, "scontrol show reservations").text
    assert "drained" not in cluster.nodes().values()
    # Jobs start again.
    cluster.state_of(cluster.submit("ben", "--nodelist=" + cluster.head, "--gpus=1"), "RUNNING")


def test_hosts_without_limits_that_nobody_accepts(cluster):
    """The variable is taken away: the run stops before it changes anything, and the check fails and
    drains.
    """
    run = cluster.playbook("scheduler.yml", slurm_accept_no_limits=False)
    assert run.code == 2 and run.changed == {}, run.text[-3000:]
    for host in cluster.hosts:
        assert (
            "%s: Slurm cannot limit jobs here, because the host is a container" % host in run.text
        ), run.text[-3000:]
    run = cluster.playbook("inventory_check.yml", slurm_accept_login_on_gpu_hosts=False)
    assert (
        run.code == 2
        and "slurm_accept_login_on_gpu_hosts: true" in run.text
        and "login: {hosts: {front: }}" in run.text
    ), run.text[-3000:]
