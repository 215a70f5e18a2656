"""Role jobs once more: what differs from its plan is told, and teardown leaves the hosts as they
were before the first run. Jobs stay.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from conftest import Cluster
from state_left import state_left

pytestmark = pytest.mark.acceptance
ROLE = "jobs"
HOST = Cluster.head
COMMAND, LIBRARY = "/usr/local/bin/trainyard", "/usr/local/lib/trainyard/jobs"


def rows(text):
    """The differences of the table of playbook drift, without those of the GPU stack."""
    return set(
        re.findall(
            r"(workbench-[ab]) (/\S+|command trainyard|package rclone) (?:as planned|installed|absent|a folder of user \d+, mode \d+) "
            r"(missing or changed|not installed|absent|present)",
            text,
        )
    )


def test_drift_is_told_and_gone_after_the_playbook(cluster, playbook):
    # The hub was removed before.
    usual = {"jupyterhub_enabled": False}
    run = playbook("drift.yml", **usual)
    assert run.code == 0 and run.changed == 0 and rows(run.text) == set(), run.text[-3000:]
    cluster.on(
        cluster.head,
        "rm /etc/bash_completion.d/trainyard && echo >> %s && sed -i s/site.tools/site.other/ /etc/trainyard/jobs.json && "
        "chmod 755 %s/bob && chown root %s/alice/.out" % (COMMAND, cluster.folder, cluster.folder),
    )
    cluster.on(
        cluster.peer,
        "rm %s/job && touch %s && apt-get --quiet --quiet --assume-yes remove rclone"
        % (LIBRARY, COMMAND),
    )
    run = playbook("drift.yml", **usual)
    planned = {
        (HOST, path, "missing or changed")
        for path in (
            "/etc/bash_completion.d/trainyard",
            COMMAND,
            "/etc/trainyard/jobs.json",
            cluster.folder + "/bob",
            cluster.folder + "/alice/.out",
        )
    }
    planned |= {
        (cluster.peer, LIBRARY + "/job", "missing or changed"),
        (cluster.peer, COMMAND, "present"),
        (cluster.peer, "package rclone", "absent"),
    }
    assert run.code == 2 and run.changed == 0 and rows(run.text) == planned, run.text[-3000:]
    assert playbook("workbench.yml", **usual).code == 0
    run = playbook("drift.yml", **usual)
    assert run.code == 0 and rows(run.text) == set(), run.text[-3000:]


def test_nothing_is_left(cluster, playbook):
    number = cluster.submit(
        "alice", "name: last\nworker_image: site/tools:1\ncommand: sleep 600\nworker_gpu: 1\n"
    )
    cluster.ends("alice", number, "running")
    run = playbook("teardown.yml", jupyterhub_enabled=False)
    assert run.code == 0, run.text[-3000:]
    # Jobs are people's.
    for person in ("alice", "bob"):
        assert (
            "%s/%s" % (cluster.folder, person)
            in run.text.partition("these folders are kept because people have jobs in them: ")[2]
        )
    assert cluster.on(
        cluster.head, "cat %s/alice/%s/spec.yml" % (cluster.folder, number)
    ).out.startswith("name: last\n")
    # What the tests have made: files in homes, a server for results.
    found = {
        what: told
        for what, told in state_left(
            cluster.hosts, Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"])
        ).items()
        if not re.search(r"files: (/home/(alice|bob|ops)|/srv/dav)(/|$)", what)
    }
    assert found == {}, "\n".join("%s %s" % pair for pair in found.items())
    for host in cluster.hosts:
        assert (
            cluster.on(
                host, "pgrep --list-full --uid alice,bob; pgrep --list-full slurm", check=False
            ).out
            == ""
        )
    run = playbook("teardown.yml", jupyterhub_enabled=False)
    assert (run.code, run.changed) == (0, 0), run.text[-3000:]
