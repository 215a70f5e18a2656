"""verify.yml on a scheduled cluster: a job of a person runs on each node, and nothing of it is left."""

from __future__ import annotations

import re

import pytest

ROLE = "verify"


@pytest.fixture(autouse=True)
def _idle(cluster):
    cluster.idle()
    yield
    for host in cluster.hosts:
        cluster.on(cluster.head, "scontrol update nodename=%s state=resume" % host, check=False)
    cluster.idle()


def test_a_job_of_a_person_runs_on_each_node(cluster):
    found = cluster.verify()
    for host in cluster.hosts:
        for name in ("scheduler-answers", "scheduler-nodes", "scheduler-job"):
            (check,) = found[name, host]
            assert check["verdict"] == "pass", check
        # Of the account with the largest quota, on this node, and with one GPU.
        command = "sacct --noheader --allocations --parsable2 --allusers --name=trainyard-probe --format=user,account,alloctres --nodelist=" + host
        told = cluster.wait("the accounting of the job", lambda command=command: cluster.on(cluster.head, command).out)
        assert all(re.fullmatch(r"ben\|language\|.*gres/gpu=1(,.*)?", line) for line in told.splitlines()), told
    (quota,) = found["scheduler-quota", cluster.head]
    assert quota["verdict"] == "pass", quota
    cluster.nothing_is_left_of_verify()
    # Other checks fail on these hosts, but none of them drains a node.
    assert cluster.nodes() == dict.fromkeys(cluster.hosts, "idle")
