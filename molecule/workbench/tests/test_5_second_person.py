"""What a second person tries: alice's jobs, sessions, files and limits, from bob's account. docs/security.md names the promises."""

from __future__ import annotations

import json

# --- between jobs -----------------------------------------------------------------------------------------------------------


# --- in the browser: identity of instances -----------------------------------------------------------------------------------


# --- in the browser: pages, tokens and helpers ------------------------------------------------------------------------------


# --- on the hosts -----------------------------------------------------------------------------------------------------------


# --- people who leave, and limits -------------------------------------------------------------------------------------------


def test_a_person_cannot_take_all_cpus_and_sees_the_limits(cluster):
    """alice's account has 2 of the cluster's GPUs, so it has half of the 24 CPUs."""
    text = (
        "name: greedy\ncommand: sleep 600\nworker_image: site/tools:1\nworker_memory: 1\n"
        "worker_count: 2\nworker_cpu: 12\n"
    )
    done = cluster.trainyard("alice", "submit", "-", text=text, check=False)
    said = "worker_cpu: the job needs 24 CPUs (2 workers with 12 each), but account vision has 12"
    assert done.code == 2 and said in done.text, done.text
    [entry] = json.loads(cluster.trainyard("alice", "quota", "--json").out)
    found = {key: entry[key] for key in ("cpus", "memory_mib", "max_jobs", "max_submitted")}
    assert found == {"cpus": 12, "memory_mib": 16384, "max_jobs": 500, "max_submitted": 2000}
    assert entry["partition_minutes"] == 43200 and entry["registry_mib"] == 100 * 1024
