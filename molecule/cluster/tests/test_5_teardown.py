"""teardown.yml removes what was placed and nothing else: two pictures of each host, taken before the first run and now."""

from __future__ import annotations

import json
import subprocess


def test_nothing_is_left(cluster):
    cluster.on(cluster.head, "echo kept > /data1/share/of-the-user")
    run = cluster.playbook("playbooks/teardown.yml")
    assert run.code == 0
    found = {}
    for host in cluster.hosts:
        before = json.loads((cluster.state / ("before-%s.json" % host)).read_text(encoding="utf-8"))
        with open(cluster.root / "molecule/cluster/snapshot.py", encoding="utf-8") as script:
            taken = subprocess.run(["docker", "exec", "--interactive", host, "python3", "-"], stdin=script, stdout=subprocess.PIPE, check=True)
        after = json.loads(taken.stdout)
        for section in before:
            for name in sorted(set(before[section]) | set(after[section])):
                was, now = before[section].get(name), after[section].get(name)
                if was != now:
                    found["%s: %s: %s" % (host, section, name)] = "was %s, is %s" % (was, now)
    assert found == {}
    assert cluster.on(cluster.peer, "cat /data1/share/of-the-user").out == "kept\n"


def test_again(cluster):
    """On hosts that have nothing of ours it does nothing."""
    run = cluster.playbook("playbooks/teardown.yml")
    assert (run.code, run.changed) == (0, {})
