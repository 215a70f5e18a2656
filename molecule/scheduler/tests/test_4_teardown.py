"""teardown.yml removes Slurm, its people, keys and database, and leaves the hosts as they were before the first run."""

from __future__ import annotations

import pytest
from state_left import state_left

ROLE = "slurm_node"


def test_nothing_is_left(cluster):
    running = cluster.submit("ben", "--nodes=2", "--gpus-per-node=1")
    cluster.state_of(running, "RUNNING")
    run = cluster.playbook("teardown.yml")
    assert run.code == 0, run.text[-3000:]
    found = state_left(cluster.hosts, cluster.ephemeral)
    for host in cluster.hosts:
        # Nothing of a job either.
        assert cluster.on(host, "pgrep --list-full 'slurm|munge|mariadb|sleep'", check=False).out == ""
    assert found == {}


# Each teardown of all roles takes minutes.
@pytest.mark.acceptance
def test_second_teardown_changes_nothing(cluster):
    run = cluster.playbook("teardown.yml")
    assert (run.code, run.changed) == (0, {}), run.text[-3000:]
