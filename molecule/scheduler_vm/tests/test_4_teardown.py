"""teardown.yml ends the jobs, and leaves the hosts as they were before the first run."""

from __future__ import annotations

from state_left import state_left


def test_nothing_is_left(cluster):
    cluster.reaches(cluster.submit("ben", "exec sleep 600"), "RUNNING")
    run = cluster.play("teardown.yml")
    assert run.code == 0, run.text[-3000:]
    found = state_left(cluster.hosts, cluster.state, run=cluster.run_python)
    for host in cluster.hosts:
        assert (
            cluster.on(host, "pgrep --list-full 'slurm|munge|mariadb|sleep'", check=False).out == ""
        )
    # The folder of people's files is kept. pytest shows five entries of a dict only. A host that
    # was booted with podman has /var/lib/cni.
    assert found == {"%s: state: path /data1/share" % cluster.head: "was None, is present"}, (
        "\n".join("%s: %s" % pair for pair in sorted(found.items()))
    )
