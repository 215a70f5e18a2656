"""teardown.yml leaves both hosts as they were before the first run."""

from __future__ import annotations

import os
from pathlib import Path

from state_left import state_left

HOSTS = ("ubuntu-noble", "ubuntu-jammy")


def test_nothing_is_left(playbook):
    done = playbook("teardown.yml")
    assert done.code == 0, done.text[-3000:]
    assert state_left(HOSTS, Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"])) == {}
