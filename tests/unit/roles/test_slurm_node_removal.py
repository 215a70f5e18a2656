"""Removal of role slurm_node: which processes it waits for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

TASKS = Path(__file__).parents[3] / "roles/slurm_node/tasks/withdraw.yml"


def pattern():
    block = next(
        task for task in yaml.safe_load(TASKS.read_text(encoding="utf-8")) if "block" in task
    )["block"]
    return next(task for task in block if "until" in task)["ansible.builtin.command"]["argv"][-1]


@pytest.mark.parametrize(
    "command_line, is_step",
    [
        ("slurmstepd: [14.batch]", True),
        ("slurmstepd: [14.0]", True),
        ("/usr/sbin/slurmstepd", True),
        # With control groups of version 2 it is there as long as the host runs.
        ("/usr/sbin/slurmstepd infinity", False),
        ("/usr/sbin/slurmd -D -s", False),
        ("pgrep --full slurmstepd: x", False),
    ],
)
def test_steps_of_jobs_are_waited_for_and_nothing_else(command_line, is_step):
    assert bool(re.search(pattern(), command_line)) is is_step
