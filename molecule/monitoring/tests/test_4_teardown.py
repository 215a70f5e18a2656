"""Teardown removes metrics and Slurm, and leaves the hosts as they were before the first run."""

from __future__ import annotations

import os
from pathlib import Path

from state_left import state_left

ROLE = "monitoring"
SLURM = {"cluster_scheduler": "slurm", "job_container_storage": "/var/spool/containers"}
HOSTS = ("monitoring-a", "monitoring-b")
LEFT = ("/etc/trainyard", "/var/lib/trainyard", "/var/lib/prometheus", "/run/trainyard")


def test_nothing_is_left(front, other, received, playbook):
    received.stop()
    done = playbook("teardown.yml", **SLURM)
    assert done.code == 0, done.output
    assert state_left(HOSTS, Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"])) == {}
    for host in (front, other):
        assert "prometheus" not in host.run("dpkg --list | grep '^[ih]' || true")
        assert not host.host.user("prometheus").exists and not host.host.group("prometheus").exists
        assert host.host.run("pgrep --list-full 'prometheus|slurm|nvidia-smi'").stdout == ""
        for path in LEFT:
            assert not host.host.file(path).exists, path
        for port in (9090, 9093, 9094, 9100):
            assert not host.host.socket("tcp://%d" % port).is_listening


def test_a_second_teardown_changes_nothing(playbook):
    done = playbook("teardown.yml", **SLURM)
    assert (done.code, done.changed) == (0, 0), done.output
