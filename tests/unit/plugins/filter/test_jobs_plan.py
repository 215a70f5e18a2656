# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What role jobs places on each kind of host, and the folders of people."""

from __future__ import annotations

import json

import pytest

from ansible_collections.trainyard.gpu.plugins.filter.jobs import FilterModule
from ansible_collections.trainyard.gpu.plugins.plugin_utils import _jobs_plan

NAMES = set(_jobs_plan.OF_LOGIN + _jobs_plan.OF_TRAINING) | {"completion"}
WANTED = {"login_hosts": ["a"], "training_hosts": ["a", "b"], "keeper": "c", "share": "/data1/share/", "priorities": [], "images": ["t:1", "t:1"],
          "default_image": "", "registries": [], "mail": False, "login": "front", "rclone": True, "programs": {name: "text of %s\n" % name for name in NAMES},
          "accounts": [{"name": "vision", "members": ["anna", "gone"]}, {"name": "empty"}],
          "users": [{"name": "anna", "uid": 2001}, {"name": "ben", "uid": 2002}]}


def plan(host, **changes):
    return FilterModule().filters()["jobs_plan"](dict(WANTED, **changes), host)


def files(found):
    return {entry["path"]: entry for entry in found["files"] if "content" in entry}


@pytest.mark.parametrize("host, has_command, has_programs", [("a", True, True), ("b", False, True), ("c", False, False)])
def test_each_host_has_its_part_and_nothing_else(host, has_command, has_programs):
    found = plan(host)
    paths = set(files(found))
    assert ("/usr/local/bin/trainyard" in paths) == has_command and ("/usr/local/lib/trainyard/jobs/job" in paths) == has_programs
    # All that the role may have placed is there or has to be absent.
    assert paths | set(found["absent"]) == set(_jobs_plan.owned()) and not paths & set(found["absent"])


def test_programs_can_be_run_and_modules_are_read():
    found = files(plan("a"))
    assert {path for path, entry in found.items() if entry["mode"] == "0755"} == {
        "/usr/local/bin/trainyard", *("/usr/local/lib/trainyard/jobs/" + name for name in ("trainyard", "door", "job", "rank", "services"))}
    settings = json.loads(found["/etc/trainyard/jobs.json"]["content"])
    assert (settings["jobs"], settings["images"]) == ("/data1/share/.trainyard/jobs", ["t:1"])
    assert [entry["name"] for entry in settings["priorities"]] == ["low", "normal", "high"]


def test_folders_are_made_on_one_host_for_people_with_an_account():
    assert plan("a")["folders"] == plan("b")["folders"] == []
    assert [(entry["path"], entry["owner"], entry["mode"]) for entry in plan("c")["folders"]] == [
        ("/data1/share/.trainyard", 0, "0755"), ("/data1/share/.trainyard/jobs", 0, "0755"),
        ("/data1/share/.trainyard/jobs/anna", 2001, "0700"), ("/data1/share/.trainyard/jobs/anna/.out", 2001, "0700")]
