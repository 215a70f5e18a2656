# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tasks of role jobs: its removal and its drift."""

from __future__ import annotations

from pathlib import Path

import yaml

TASKS = Path(__file__).resolve().parents[4] / "roles/jobs/tasks"


def tasks(name):
    return yaml.safe_load((TASKS / name).read_text(encoding="utf-8"))


def test_an_interrupted_removal_is_continued():
    """Its condition is that a host has the programs.

    So they are removed last, after packages and folders.
    """
    (removal,) = tasks("remove.yml")
    assert removal["when"] == "__jobs_is_installed"
    programs = [
        number
        for number, task in enumerate(removal["block"])
        if "trainyard.gpu.managed_files" in task
    ]
    assert programs == [len(removal["block"]) - 2] and len(removal["block"]) >= 4
    # After them what they import. Without programs, the removal of role host_library takes it
    # along.
    last = removal["block"][-1]["ansible.builtin.include_role"]
    assert (last["name"], last["tasks_from"]) == ("trainyard.gpu.host_library", "remove")


def test_drift_changes_nothing():
    """Each module that could change a host runs in check mode."""
    modules = [
        task
        for task in tasks("compare.yml")
        if any(key.startswith("trainyard.gpu.") for key in task)
    ]
    assert len(modules) == 3 and all(
        task["check_mode"] is True and task["changed_when"] is False for task in modules
    )
    # The same files, packages and folders as those of a run.
    assert [
        task["trainyard.gpu.managed_files"]
        for task in modules
        if "trainyard.gpu.managed_files" in task
    ] == [
        task["trainyard.gpu.managed_files"]
        for task in tasks("main.yml")[0]["block"]
        if "trainyard.gpu.managed_files" in task
    ]
    assert [
        task["trainyard.gpu.shared_folders"]
        for task in modules
        if "trainyard.gpu.shared_folders" in task
    ] == [task["trainyard.gpu.shared_folders"] for task in tasks("folders.yml")]
