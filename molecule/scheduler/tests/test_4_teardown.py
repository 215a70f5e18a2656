"""teardown.yml removes Slurm, its people, keys and database, and leaves the hosts as they were
before the first run.
"""

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
        assert (
            cluster.on(
                host,
                "pgrep --list-full 'slurm|sleep%s'"
                % ("" if cluster.has_site_services else "|munge|mariadb"),
                check=False,
            ).out
            == ""
        )
    assert found == {}
    if cluster.has_site_services:
        # Its server has its own settings again: InnoDB's default. The munge keys are among the
        # files that were compared.
        assert (
            cluster.sql("SELECT word FROM site.kept") == "kept"
            and cluster.sql("SELECT @@innodb_buffer_pool_size") == "134217728"
        )
        assert "slurm" not in cluster.sql("SHOW DATABASES; SELECT user FROM mysql.user")


# Each teardown of all roles takes minutes.
@pytest.mark.acceptance
def test_second_teardown_changes_nothing(cluster):
    run = cluster.playbook("teardown.yml")
    assert (run.code, run.changed) == (0, {}), run.text[-3000:]
