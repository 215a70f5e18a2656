"""teardown.yml leaves both hosts as they were before the first run."""

from __future__ import annotations

import os
from pathlib import Path

from state_left import state_left

HOSTS = ("ubuntu-noble", "ubuntu-jammy")
#: What the distribution's own programs do. A purged package with a profile of AppArmor removes the
#: folder, containerd's store stays as Docker's does, and unattended-upgrade, which a test runs,
#: writes an empty list.
OF_THE_DISTRIBUTION = {
    "ubuntu-jammy: files: /etc/apparmor.d/disable",
    "ubuntu-jammy: state: path /var/lib/containerd",
    "ubuntu-noble: files: /etc/apparmor.d/disable",
    "ubuntu-noble: files: /etc/apt/sources.list",
    "ubuntu-noble: state: path /var/lib/containerd",
}


def test_nothing_is_left(playbook):
    done = playbook("teardown.yml")
    assert done.code == 0, done.text[-3000:]
    left = state_left(HOSTS, Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]))
    assert set(left) <= OF_THE_DISTRIBUTION, left
