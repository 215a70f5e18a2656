"""What a second person tries: alice's jobs, sessions, files and limits, from bob's account. docs/security.md names the promises."""

from __future__ import annotations

import shlex

# Makes as many nested folders as no path can name.
DEEP = "import os\nfor _ in range(2000):\n    os.mkdir('d')\n    os.chdir('d')\n"

# --- between jobs -----------------------------------------------------------------------------------------------------------


# --- in the browser: identity of instances -----------------------------------------------------------------------------------


# --- in the browser: pages, tokens and helpers ------------------------------------------------------------------------------


# --- on the hosts -----------------------------------------------------------------------------------------------------------


def test_what_a_job_leaves_keeps_no_node_out_of_service(cluster):
    script = (
        "for top in /tmp /dev/shm; do mkdir $top/left && cd $top/left && python3 -c \"%s\"; done; mkdir '/tmp/a\nb' /tmp/closed; chmod 0 /tmp/closed"
        % DEEP
    )
    cluster.as_person(
        "bob", "srun --nodelist=%s --mem=200M sh -c %s" % (cluster.peer, shlex.quote(script))
    )
    cluster.nothing_left("bob")
    assert (
        cluster.on(
            cluster.head, "sinfo --noheader --nodes=%s --format %%T" % cluster.peer
        ).out.strip()
        == "idle"
    )
    assert (
        cluster.on(
            cluster.peer,
            "ls /run/trainyard/epilog.failed; find /tmp -maxdepth 1 -user bob",
            check=False,
        ).out
        == ""
    )


def test_cron_and_at_are_refused_on_training_hosts(cluster):
    for host in cluster.hosts:
        assert "bob" not in cluster.on(host, "cat /etc/cron.allow /etc/at.allow").out.split()


# --- people who leave, and limits -------------------------------------------------------------------------------------------
