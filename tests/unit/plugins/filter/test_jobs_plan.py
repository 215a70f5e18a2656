# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What role jobs places on each kind of host, the folders of people, and how a host differs from
that.
"""

from __future__ import annotations

import json

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _jobs_plan

NAMES = set(_jobs_plan.OF_LOGIN + _jobs_plan.OF_TRAINING) | {"completion"}
WANTED = {
    "login_hosts": ["a"],
    "training_hosts": ["a", "b"],
    "keeper": "c",
    "share": "/data1/share/",
    "priorities": [],
    "images": ["t:1", "t:1"],
    "default_image": "",
    "registries": [],
    "mail": False,
    "login": "front",
    "rclone": True,
    "programs": {name: "text of %s\n" % name for name in NAMES},
    "accounts": [{"name": "vision", "members": ["anna", "gone"]}, {"name": "empty"}],
    "users": [{"name": "anna", "uid": 2001}, {"name": "ben", "uid": 2002}],
}


def plan(host, **changes):
    return _jobs_plan.jobs_plan({"host": host}, dict(WANTED, **changes))


def files(found):
    return {entry["path"]: entry for entry in found["files"] if "content" in entry}


@pytest.mark.parametrize(
    "host, has_command, has_programs", [("a", True, True), ("b", False, True), ("c", False, False)]
)
def test_each_host_has_its_part_and_nothing_else(host, has_command, has_programs):
    found = plan(host)
    paths = set(files(found))
    assert ("/usr/local/bin/trainyard" in paths) == has_command and (
        "/usr/local/lib/trainyard/jobs/job" in paths
    ) == has_programs
    # All that the role may have placed is there or has to be absent.
    assert paths | set(found["absent"]) == set(_jobs_plan.owned()) and not paths & set(
        found["absent"]
    )


@pytest.mark.parametrize(
    "host, changes, packages",
    [
        ("a", {}, ["python3-yaml", "bash-completion", "rclone"]),
        ("b", {}, ["rclone"]),
        ("c", {}, []),
        ("a", {"training_hosts": ["b"]}, ["python3-yaml", "bash-completion"]),
        ("b", {"rclone": False}, []),
    ],
)
def test_only_the_packages_that_a_host_uses(host, changes, packages):
    assert plan(host, **changes)["packages"] == packages


def test_programs_can_be_run_and_modules_are_read():
    found = files(plan("a"))
    assert {path for path, entry in found.items() if entry["mode"] == "0755"} == {
        "/usr/local/bin/trainyard",
        *(
            "/usr/local/lib/trainyard/jobs/" + name
            for name in ("trainyard", "door", "job", "services")
        ),
    }
    settings = json.loads(found["/etc/trainyard/jobs.json"]["content"])
    assert (settings["jobs"], settings["images"]) == ("/data1/share/.trainyard/jobs", ["t:1"])
    assert [entry["name"] for entry in settings["priorities"]] == ["low", "normal", "high"]


def test_folders_are_made_on_one_host_for_people_with_an_account():
    assert plan("a")["folders"] == plan("b")["folders"] == []
    assert [(entry["path"], entry["owner"], entry["mode"]) for entry in plan("c")["folders"]] == [
        ("/data1/share/.trainyard", 0, "0755"),
        ("/data1/share/.trainyard/jobs", 0, "0755"),
        ("/data1/share/.trainyard/jobs/anna", 2001, "0700"),
        ("/data1/share/.trainyard/jobs/anna/.out", 2001, "0700"),
    ]


AS_PLANNED = {"is_placed": True, "changed_paths": [], "changed_folders": [], "missing_packages": []}
LIBRARY = "/usr/local/lib/trainyard/jobs/"


@pytest.mark.parametrize(
    "host, now, wanted, rows",
    [
        ("a", {}, {}, []),
        ("c", {}, {}, []),
        # Each of them is compared: the command, its completion, its settings, and the folders that
        # the role creates.
        *[
            ("a", {"changed_paths": [path]}, {}, [(path, "as planned", "missing or changed")])
            for path in (
                _jobs_plan.COMMAND,
                _jobs_plan.COMPLETION,
                _jobs_plan.CONFIG,
                LIBRARY + "trainyard",
                LIBRARY + "job",
                LIBRARY[:-1],
                "/etc/trainyard",
            )
        ],
        # Of a former login host.
        (
            "b",
            {"changed_paths": [_jobs_plan.COMMAND, LIBRARY + "job"]},
            {},
            [
                (_jobs_plan.COMMAND, "absent", "present"),
                (LIBRARY + "job", "as planned", "missing or changed"),
            ],
        ),
        # A host that has joined since: one line, not one for each program.
        (
            "b",
            {"is_placed": False, "changed_paths": [LIBRARY + "job", LIBRARY + "door"]},
            {},
            [("command trainyard", "installed", "not installed")],
        ),
        # One that has no part in it. Its folders are those of the share.
        (
            "c",
            {
                "is_placed": False,
                "changed_folders": [
                    "/data1/share/.trainyard/jobs/anna",
                    "/data1/share/.trainyard/jobs",
                ],
            },
            {},
            [
                (
                    "/data1/share/.trainyard/jobs",
                    "a folder of user 0, mode 0755",
                    "missing or changed",
                ),
                (
                    "/data1/share/.trainyard/jobs/anna",
                    "a folder of user 2001, mode 0700",
                    "missing or changed",
                ),
            ],
        ),
        ("b", {"missing_packages": ["rclone"]}, {}, [("package rclone", "installed", "absent")]),
        (
            "b",
            {"changed_paths": [LIBRARY + "job"], "is_placed": False},
            {"training_hosts": ["a"]},
            [(LIBRARY + "job", "absent", "present")],
        ),
    ],
)
def test_drift(host, now, wanted, rows):
    found = _jobs_plan.jobs_drift(dict(AS_PLANNED, **now), dict(WANTED, **wanted), host)
    assert [(row["what"], row["asked"], row["found"]) for row in found] == rows
