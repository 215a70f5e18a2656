"""teardown.yml removes Slurm, its people, keys and database, and leaves the hosts as they were before the first run."""

from __future__ import annotations

import json
import subprocess

ROLE = "slurm_node"


def test_nothing_is_left(cluster):
    running = cluster.submit("ben", "--nodes=2", "--gpus-per-node=1")
    cluster.state_of(running, "RUNNING")
    run = cluster.playbook("teardown.yml")
    assert run.code == 0, run.text[-3000:]
    found = {}
    for host in cluster.hosts:
        before = json.loads((cluster.ephemeral / ("before-%s.json" % host)).read_text(encoding="utf-8"))
        with open(cluster.root / "molecule/cluster/snapshot.py", encoding="utf-8") as script:
            taken = subprocess.run(["docker", "exec", "--interactive", host, "python3", "-"], stdin=script, stdout=subprocess.PIPE, check=True)
        after = json.loads(taken.stdout)
        for section in before:
            for name in sorted(set(before[section]) | set(after[section])):
                was, now = before[section].get(name), after[section].get(name)
                if was != now:
                    found["%s: %s: %s" % (host, section, name)] = "was %s, is %s" % (was, now)
        # Nothing of a job either.
        assert cluster.on(host, "pgrep --list-full 'slurm|munge|mariadb|sleep'", check=False).out == ""
    assert found == {}


def test_second_teardown_changes_nothing(cluster):
    run = cluster.playbook("teardown.yml")
    assert (run.code, run.changed) == (0, {}), run.text[-3000:]
