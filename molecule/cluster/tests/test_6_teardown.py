"""teardown.yml removes only what the collection installed: compares snapshots of each host from
before the first run and now.
"""

from __future__ import annotations

import re
import subprocess

import pytest
from state_left import state_left


def test_nothing_is_left(cluster):
    cluster.on(cluster.head, "echo kept > /data1/share/of-the-user")
    run = cluster.playbook("playbooks/teardown.yml")
    assert run.code == 0
    found = state_left(cluster.hosts, cluster.state)
    assert found == {}
    assert cluster.on(cluster.peer, "cat /data1/share/of-the-user").out == "kept\n"
    assert cluster.last_job()["exit_code"] is not None


@pytest.mark.acceptance
def test_second_teardown_changes_nothing(cluster):
    """On hosts without the collection's files it does nothing."""
    run = cluster.playbook("playbooks/teardown.yml")
    assert (run.code, run.changed) == (0, {})
    assert sum(run.runs.values()) <= 20, run.runs


@pytest.mark.acceptance
def test_what_jobs_left_on_the_share_goes_when_it_is_asked_for_by_name(cluster):
    run = cluster.playbook("playbooks/teardown.yml", "-e", {"train_remove_share_data": True})
    assert run.code == 0
    assert cluster.on(cluster.peer, "ls --almost-all /data1/share").out == "of-the-user\n"


@pytest.mark.acceptance
def test_preflight_names_all_that_is_wrong_at_once(cluster):
    """Four real problems on two hosts: one message lists all of them, and nothing changes."""
    cluster.on(
        cluster.head, "printf '127.0.0.1 localhost\\n127.0.1.1 %s\\n' > /etc/hosts" % cluster.head
    )
    cluster.on(cluster.head, "ip route add unreachable %s" % cluster.address[cluster.peer])
    listener = subprocess.Popen(
        [
            "docker",
            "exec",
            cluster.peer,
            "python3",
            "-c",
            "import socket, time; s = socket.create_server(('', 12345)); time.sleep(600)",
        ]
    )
    try:
        cluster.wait(
            "the listener", 10, lambda: ":12345 " in cluster.on(cluster.peer, "ss -Htln").out
        )
        run = cluster.playbook(
            "playbooks/preflight.yml", "-e", {"preflight_image_disk_mib": 99999999}
        )
    finally:
        listener.kill()
    assert run.code == 2 and run.changed == {}
    message = run.text[run.text.index("Preflight found blocking problems") :]
    for found, host in (
        ("own-name-loopback", cluster.head),
        ("peer-unreachable", cluster.head),
        ("ssh-port-taken", cluster.peer),
        ("image-disk", cluster.head),
        ("image-disk", cluster.peer),
    ):
        assert re.search(r"^(?:BLOCK|WARN) %s: .*\b%s\b" % (found, host), message, re.MULTILINE), (
            found,
            host,
        )
