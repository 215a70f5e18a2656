# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What people get outside of jobs: which hosts get which files, for whom they do not count, and how
they are removed.
"""

from __future__ import annotations

import json
import subprocess

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _slurm_sessions as sessions

WISHES = {
    "gpus_need_job": True,
    "hide_processes": True,
    "memory": "50%",
    "memory_all": "80%",
    "tasks": 10000,
}
TRAINING = {
    "training": True,
    "login": False,
    "scheduler": False,
    "only_in_jobs": True,
    "usable": True,
}
LOGIN = {
    "training": False,
    "login": True,
    "scheduler": False,
    "only_in_jobs": False,
    "usable": True,
}
BOTH = {"training": True, "login": True, "scheduler": True, "only_in_jobs": False, "usable": True}
OPERATORS = [sessions.OPERATOR_SLICE % 0, sessions.OPERATOR_SLICE % 1500]
ALLOW = list(sessions.ALLOW.values())
PLANNERS = [sessions.DAEMON % name for name in sessions.PLANNERS]


def reading(**more):
    found = {
        "texts": {},
        "container": "",
        "operators": {"root": 0, "ops": 1500},
        "gpus": [{"path": "/dev/nvidia0"}],
        "cgroup": {"usable": True, "why": ""},
        "planners": {"cron": {"backup": 34, "anna": 2001}, "at": {}},
    }
    return dict(found, **more)


def files(kind, host=None, **wishes):
    steps = sessions.sessions(host or reading(), kind, dict(WISHES, **wishes))["steps"]
    return {
        entry["path"]: entry["content"]
        for step in steps
        for entry in step["files"]
        if "content" in entry
    }


@pytest.mark.parametrize(
    "kind, expected",
    [
        (
            TRAINING,
            {
                *ALLOW,
                sessions.PEOPLE,
                sessions.MANAGER,
                sessions.HIDING_UNIT,
                sessions.SLICE,
                *OPERATORS,
            },
        ),
        (LOGIN, {sessions.SLICE, sessions.ALL_SLICES, *PLANNERS, *OPERATORS}),
        (
            BOTH,
            {
                *ALLOW,
                sessions.PEOPLE,
                sessions.SLICE,
                sessions.ALL_SLICES,
                *OPERATORS,
                *PLANNERS,
                *(sessions.DAEMON % name for name in sessions.DAEMONS),
            },
        ),
        (dict(LOGIN, login=False), set()),
    ],
)
def test_which_files_a_host_gets(kind, expected):
    assert set(files(kind)) == expected


def test_devices_are_closed_and_memory_is_limited_on_a_login_host_only():
    assert (
        "DevicePolicy=closed\n" in files(LOGIN)[sessions.SLICE]
        and "MemoryMax=50%\nTasksMax=10000\n" in files(LOGIN)[sessions.SLICE]
    )
    assert (
        "DevicePolicy=closed\n" in files(TRAINING)[sessions.SLICE]
        and "Max=" not in files(TRAINING)[sessions.SLICE]
    )
    assert (
        "nvidia" not in files(LOGIN)[sessions.SLICE]
        and "MemoryMax=80%\n" in files(LOGIN)[sessions.ALL_SLICES]
    )
    open_again = files(LOGIN, gpus_need_job=False)
    assert (
        "DevicePolicy" not in open_again[sessions.SLICE]
        and "MemoryMax=50%\n" in open_again[sessions.SLICE]
    )
    assert set(files(LOGIN, gpus_need_job=False, memory="", memory_all="", tasks=0)) == set()
    assert not {sessions.SLICE, *ALLOW} & set(files(TRAINING, gpus_need_job=False))


@pytest.mark.parametrize("path", PLANNERS)
def test_what_cron_and_at_start_on_a_login_host_has_limits(path):
    text = files(LOGIN)[path]
    assert path.rpartition("/")[0] in (
        "/etc/systemd/system/cron.service.d",
        "/etc/systemd/system/atd.service.d",
    )
    assert "[Service]\n" in text and "MemoryMax=50%\nOOMPolicy=continue\nTasksMax=10000\n" in text
    # Disks stay open to jobs of root, and GPUs do not.
    assert "DevicePolicy=closed\n" in text and "DeviceAllow=block-* rwm\n" in text
    assert "nvidia" not in text and "char-*" not in text and "davinci" not in text
    # Nothing is closed on a host without GPUs, or where people get GPUs outside of jobs.
    for found in (files(LOGIN, reading(gpus=[]))[path], files(LOGIN, gpus_need_job=False)[path]):
        assert "Device" not in found and "MemoryMax=50%\n" in found
    assert "TasksMax" not in files(LOGIN, tasks=0)[path]
    bare = files(LOGIN, reading(gpus=[]), memory="", tasks=0)
    assert path not in bare and path not in files(TRAINING)
    # Teardown removes what the role placed, and nothing of the site.
    (step,) = sessions.removal(reading(texts=files(LOGIN)))
    assert {path, path.rpartition("/")[0]} <= set(step["absent"])
    assert sessions.removal(reading(texts={path: "[Service]\nMemoryMax=1G\n"})) == []


def test_the_settings_of_an_operator_replace_those_of_people():
    for path in OPERATORS:
        text = files(LOGIN)[path]
        assert path.rsplit("/", 1)[1] == sessions.SLICE.rsplit("/", 1)[1]
        assert all(line.startswith("#") for line in text.splitlines())


def test_where_jobs_are_not_limited_sessions_keep_the_devices():
    # A login to such a host is in no job's control group: a person with a job would lose the GPUs,
    # too.
    found = sessions.sessions(reading(), dict(TRAINING, usable=False), WISHES)
    assert (
        found["warnings"][0]
        == "people's sessions can open its GPUs outside of jobs, because not every training host can limit jobs"
    )
    assert sessions.SLICE not in files(dict(TRAINING, usable=False)) and sessions.MANAGER in files(
        dict(TRAINING, usable=False)
    )
    host = reading(cgroup={"usable": False, "why": "the host is a container (docker)"})
    assert "DevicePolicy" not in files(LOGIN, host)[sessions.SLICE]
    assert sessions.sessions(host, LOGIN, WISHES)["warnings"] == [
        "people's sessions can open its GPUs outside of jobs, because the host is a container (docker)"
    ]
    assert sessions.sessions(dict(host, gpus=[]), LOGIN, WISHES)["warnings"] == []


def test_who_can_use_cron_and_at():
    found = files(TRAINING)
    assert found["/etc/cron.allow"].splitlines()[1:] == ["backup", "ops", "root"] and found[
        "/etc/at.allow"
    ].splitlines()[1:] == ["ops", "root"]
    warnings = sessions.sessions(reading(), TRAINING, WISHES)["warnings"]
    assert warnings == [
        "cron still runs what anna had planned before; remove it with 'crontab -r -u NAME'"
    ]


def test_an_allow_file_of_the_site_stays():
    host = reading(
        texts={"/etc/cron.allow": "root\nops\nanna\n", "/etc/at.allow": ""},
        planners={"cron": {}, "at": {}},
    )
    found = sessions.sessions(host, TRAINING, WISHES)
    assert not set(ALLOW) & set(files(TRAINING, host)) and not any(
        set(ALLOW) & set(step["absent"]) for step in found["steps"]
    )
    assert found["warnings"] == [
        "/etc/cron.allow is the site's and stays; the accounts in it (anna) can start processes outside of jobs"
    ]
    assert sessions.removal(host) == []


def test_whose_user_manager_starts():
    text = sessions.manager_text([0, 1500, 123])
    command = text.partition("ExecCondition=+/bin/sh -c '")[2].partition("'\n")[0]
    starts = [
        uid
        for uid in (0, 7, 99, 999, 1000, 1500, 15000, 500000, 2001)
        if subprocess.run(["sh", "-c", command.replace("%i", str(uid))], check=False).returncode
        == 0
    ]
    assert starts == [0, 7, 99, 999, 1500]


def test_what_the_epilog_is_told():
    assert json.loads(files(TRAINING)[sessions.PEOPLE]) == {
        "only_in_jobs": True,
        "operators": [0, 1500],
    }
    assert json.loads(files(BOTH)[sessions.PEOPLE]) == {
        "only_in_jobs": False,
        "operators": [0, 1500],
    }


def test_what_is_no_longer_needed_is_removed():
    host = reading(texts=files(BOTH), operators={"root": 0})
    (step,) = sessions.sessions(host, dict(LOGIN), WISHES)["steps"]
    gone = {
        *ALLOW,
        sessions.PEOPLE,
        OPERATORS[1],
        *(sessions.DAEMON % name for name in sessions.DAEMONS),
    }
    assert (
        gone <= set(step["absent"])
        and sessions.SLICE not in step["absent"]
        and "/etc/systemd/system/user-1500.slice.d" in step["absent"]
    )
    assert step["absent"].index(OPERATORS[1]) < step["absent"].index(
        "/etc/systemd/system/user-1500.slice.d"
    )
    (step,) = sessions.removal(host)
    assert (
        set(host["texts"]) <= set(step["absent"])
        and step["files"] == []
        and "/etc" not in step["absent"]
    )
    assert sessions.removal(reading()) == []


def test_a_drop_in_of_others_with_the_same_name_stays():
    assert sessions.removal(reading(texts={sessions.SLICE: "[Slice]\nCPUWeight=5\n"})) == []


def test_processes_of_others_are_hidden_where_people_have_only_jobs():
    host = reading(texts=files(TRAINING))
    assert "hidepid=2,gid=4" in host["texts"][sessions.HIDING_UNIT]
    assert sessions.HIDING_UNIT not in {*files(LOGIN), *files(BOTH)}
    assert sessions.HIDING_UNIT not in files(TRAINING, reading(container="docker"))
    assert sessions.HIDING_UNIT not in files(TRAINING, hide_processes=False)
    (step,) = sessions.removal(host)
    assert step["absent"][0] == sessions.HIDING_LINK and sessions.HIDING_UNIT in step["absent"]
    assert sessions.SYSTEMD not in step["absent"]
