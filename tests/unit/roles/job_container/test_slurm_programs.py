# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prolog, epilog and health of slurmd: folders of a job, which processes belong to it, and what
drains a node.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib.util
import inspect
import json
import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from role_variables import role_variable
from shared_modules import FOLDERS

FILES = Path(__file__).resolve().parents[4] / "roles" / "job_container" / "files"


# On hosts the modules are in the folder of the programs.
sys.path.insert(0, str(FILES))


def load(name):
    spec = importlib.util.spec_from_file_location(name, FILES / (name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


prolog, epilog, health, disk = load("prolog"), load("epilog"), load("health"), load("_disk_limit")
ME, GROUP = os.getuid(), os.getgid()
SLURMD = "12:cpu:/\n1:name=systemd:/docker/x/system.slice/slurmd.service\n"
LOGIN = "12:cpu:/\n1:name=systemd:/docker/x/user.slice/user-2101.slice/session-3.scope\n"


@pytest.fixture(autouse=True)
def _begun_now() -> None:
    """Each test is an epilog of its own, whose time begins when it does."""
    epilog.BEGUN = time.monotonic()


# --- prolog ---


def begin(tmp_path, job="7"):
    prolog.begin(
        job, ME, GROUP, str(tmp_path / "storage"), str(tmp_path / "run"), str(tmp_path / "user")
    )


def test_prolog_makes_the_folders_of_the_job(tmp_path):
    begin(tmp_path)
    begin(tmp_path, "8")
    for path in (
        "run/jobs/7",
        "storage/jobs/7",
        "storage/people/%d" % ME,
        "user/%d" % ME,
        "run/jobs/8",
    ):
        assert (tmp_path / path).stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "run" / "jobs").stat().st_mode & 0o777 == 0o711, (
        "users do not see the jobs of others"
    )
    assert (tmp_path / "run" / "made" / str(ME)).exists()


def test_prolog_leaves_the_folder_of_a_login(tmp_path):
    (tmp_path / "user" / str(ME)).mkdir(parents=True)
    begin(tmp_path)
    assert not (tmp_path / "run" / "made" / str(ME)).exists()


def test_prolog_closes_a_folder_that_its_person_has_opened(tmp_path):
    begin(tmp_path)
    own = tmp_path / "storage" / "people" / str(ME)
    own.chmod(0o755)
    begin(tmp_path, "8")
    assert own.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["link", "file"])
def test_prolog_refuses_what_is_not_a_folder_of_the_user(tmp_path, kind):
    begin(tmp_path, "6")
    place = tmp_path / "run" / "jobs" / "7"
    if kind == "link":
        place.symlink_to(tmp_path)
    else:
        place.write_text("", encoding="ascii")
    with pytest.raises(prolog.Failed, match="does not belong to user"):
        begin(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 != 0o711


def test_prolog_needs_the_variables_of_slurmd():
    assert prolog.job_of({"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "2101"}) == ("7", 2101)
    for environment in (
        {},
        {"SLURM_JOB_ID": "../x", "SLURM_JOB_UID": "2101"},
        {"SLURM_JOB_ID": "7"},
    ):
        with pytest.raises(prolog.Failed, match="slurmd has to start this program"):
            prolog.job_of(environment)


def owner(name):
    return SimpleNamespace(pw_name=name, pw_gid=GROUP)


@pytest.mark.parametrize(
    "uid, name, begun", [(0, "root", False), (64030, "slurm", False), (2101, "anna", True)]
)
def test_jobs_of_the_system_have_no_folders_and_their_user_s_processes_stay(
    monkeypatch, tmp_path, uid, name, begun
):
    """Slurm's own user, with whose jobs role train keeps hosts free, has slurmctld and slurmdbd."""
    done = []
    (tmp_path / "config.json").write_text('{"storage": "/s"}', encoding="utf-8")
    monkeypatch.setattr(prolog._job_ports.pwd, "getpwuid", lambda _uid: owner(name))
    monkeypatch.setattr(prolog._job_ports, "open_ports", lambda *_arguments: None)
    monkeypatch.setattr(prolog, "begin", lambda *_arguments: done.append("prolog"))
    monkeypatch.setattr(epilog, "finish", lambda *_arguments: done.append("epilog"))
    for program in (prolog, epilog):
        monkeypatch.setattr(program, "CONFIG", str(tmp_path / "config.json"))
        environment = {"SLURM_JOB_ID": "987654321", "SLURM_JOB_UID": str(uid)}
        monkeypatch.setattr(program.os, "environ", environment)
        assert not program.main()
    assert done == (["prolog", "epilog"] if begun else [])


@pytest.mark.parametrize(
    "numbers, given, reason",
    [
        ([2, 3], "1", ""),
        ([2, 3], "2", "its list has 2: device numbers 2, 3"),
        ([2, 5], "1", "nvidia5, which this host does not have"),
        (None, "0", "device numbers 2, 3, and no list"),
        (None, "", ""),
    ],
)
def test_prolog_refuses_gpus_that_cannot_be_told(monkeypatch, tmp_path, numbers, given, reason):
    """By SLURM_JOB_GPUS: from Slurm 25.11 on CUDA_VISIBLE_DEVICES has UUIDs in prologs."""
    for number in (2, 3):
        (tmp_path / ("nvidia%d" % number)).touch()
    kinds = {"nodes": str(tmp_path / "nvidia%d")}
    kinds.update({"positions": numbers} if numbers else {})
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"storage": "/s", "gpus": kinds}), encoding="utf-8")
    begun = []
    monkeypatch.setattr(prolog, "CONFIG", str(config))
    monkeypatch.setattr(prolog.pwd, "getpwuid", lambda _uid: owner("anna"))
    monkeypatch.setattr(prolog, "begin", lambda *_arguments: begun.append(1))
    monkeypatch.setattr(prolog._job_ports, "open_ports", lambda *_arguments: None)
    environment = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "2101", "SLURM_JOB_GPUS": given}
    environment["CUDA_VISIBLE_DEVICES"] = "GPU-8f3a"
    monkeypatch.setattr(prolog.os, "environ", environment)
    if not reason:
        prolog.main()
        assert begun
        return
    with pytest.raises(prolog.Failed, match=reason):
        prolog.main()
    assert not begun


# --- epilog ---


def process(environ="", parent=1, cgroup=LOGIN, space="", start="1", name="x", engine=False):
    return {
        "uid": 2101,
        "parent": parent,
        "start": start,
        "name": name,
        "environ": environ.encode(),
        "cgroup": cgroup,
        "space": space,
        "engine": engine,
    }


PROCESSES = {
    10: process("A=1\0SLURM_JOB_ID=7\0", cgroup=SLURMD),  # the script
    11: process("SLURM_JOB_ID=7", cgroup=SLURMD),  # conmon, which has left the tree
    12: process("TRAINYARD_JOB_ID=7", parent=11, space="pid:[5]", cgroup=SLURMD),
    13: process("", parent=12, space="pid:[5]", cgroup=SLURMD),  # has cleared its environment
    14: process("", parent=1, space="pid:[5]", cgroup=SLURMD),
    15: process("", parent=10, cgroup=SLURMD),
    20: process("SLURM_JOB_ID=77", cgroup=SLURMD),  # another job
    21: process("TRAINYARD_JOB_ID=77", parent=10, cgroup=SLURMD, space="pid:[6]"),
    30: process("", cgroup=LOGIN),  # a login
    31: process("X=SLURM_JOB_ID=7", cgroup=LOGIN),
    40: process("", cgroup="0::/system.slice/slurmstepd.scope/job_7/step_0\n"),
    41: process("", cgroup="0::/system.slice/slurmstepd.scope/job_77/step_0\n"),
    50: process("", cgroup=SLURMD),  # has left job, tree and environment
}


def test_the_processes_of_a_job():
    assert epilog.of_job(PROCESSES, "7", SLURMD, last=False) == {10, 11, 12, 13, 14, 15, 40}


def test_with_the_last_job_all_that_slurmd_started_ends_and_logins_stay():
    alone = {pid: each for pid, each in PROCESSES.items() if pid not in (20, 21, 41)}
    assert epilog.of_job(alone, "7", SLURMD, last=True) == {10, 11, 12, 13, 14, 15, 40, 50}
    # So does what a job has given to cron or at, and all where nobody logs in.
    alone.update(
        {
            60: process("", cgroup="0::/system.slice/cron.service\n"),
            61: process("", cgroup="1:name=systemd:/docker/x/system.slice/atd.service\n"),
            62: process(
                "", cgroup="0::/user.slice/user-2101.slice/session-1.scope/cron.service-not\n"
            ),
        }
    )
    assert epilog.of_job(alone, "7", SLURMD, last=True) == {10, 11, 12, 13, 14, 15, 40, 50, 60, 61}
    assert epilog.of_job(alone, "7", SLURMD, last=True, only_in_jobs=True) == set(alone)
    assert not {60, 61} & epilog.of_job(alone, "7", SLURMD, last=False, only_in_jobs=True)
    # A program of the site in a container of Docker, whose ID is that of the person by chance.
    engine = process(space="pid:[9]", cgroup="0::/system.slice/docker-x.scope", engine=True)
    with_engine = {**alone, 63: engine}
    assert epilog.of_job(with_engine, "7", SLURMD, last=True, only_in_jobs=True) == set(alone)


@pytest.mark.parametrize(
    "people, ends",
    [
        ({}, False),
        ({"only_in_jobs": False}, False),
        ({"only_in_jobs": True, "operators": [0]}, True),
        ({"only_in_jobs": True, "operators": [0, 2101]}, False),
    ],
)
def test_whose_logins_end_with_the_last_job(people, ends):
    assert epilog.lives_in_jobs(people, 2101) is ends


def test_control_groups_of_the_job_are_removed_and_no_others(tmp_path):
    groups = tmp_path / "a_slurmstepd.scope"
    for job in ("7", "70"):
        (groups / ("job_" + job) / "step_0/user/task_0").mkdir(parents=True)
    (groups / "job_8/step_batch").mkdir(parents=True)
    (groups / "job_8/step_batch/used").touch()
    for job in ("7", "8", "9"):
        epilog.forget_cgroups(job, [str(tmp_path) + "/*slurmstepd.scope/job_%s"], seconds=0.2)
    assert (
        sorted(path.name for path in groups.iterdir()) == ["job_70", "job_8"]
        and (groups / "job_8/step_batch/used").exists()
    )


@pytest.mark.parametrize(
    "uid, mine",
    [
        (2101, True),
        (340590592, True),
        (340656127, True),
        (340656128, False),
        (2102, False),
        (0, False),
    ],
)
def test_processes_and_files_of_the_user(uid, mine):
    ranges = epilog._job_ports.subordinate(
        "alice", 2101, "bob:1:2\nalice:340590592:65536\nbroken\n"
    )
    assert epilog.belongs(uid, 2101, ranges) is mine


def test_sweep_ends_real_processes_of_the_job_only():
    environment = dict(os.environ, TRAINYARD_JOB_ID="987654321")
    mine = [
        subprocess.Popen(["sleep", "300"], env=environment),
        subprocess.Popen(["setsid", "sleep", "300"], env=environment),
    ]
    other = subprocess.Popen(["sleep", "300"], env=dict(os.environ, TRAINYARD_JOB_ID="98765432"))
    try:
        assert epilog.sweep("987654321", ME, [], lambda: ["5"], 20) == {}
        assert [child.wait(10) for child in mine] == [-9, -9] and other.poll() is None
    finally:
        for child in mine + [other]:
            child.kill()
            child.wait()


def test_a_process_that_does_not_end_is_named(monkeypatch):
    stuck = {5: process("SLURM_JOB_ID=7", name="python3")}
    killed = []
    monkeypatch.setattr(epilog, "owned", lambda _uid, _ranges: stuck)
    monkeypatch.setattr(epilog, "end", lambda pid, _start: killed.append(pid))
    assert epilog.sweep("7", 2101, [], lambda: ["8"], 0.3) == {5: "python3"}
    assert killed


def test_a_job_that_begins_during_the_epilog_of_the_last_one_is_spared(monkeypatch):
    """A process of job 7 that does not end at once holds the epilog for 20 s."""
    own = {5: process("SLURM_JOB_ID=7", cgroup=SLURMD), 6: process(cgroup=SLURMD)}
    new = {
        8: process("SLURM_JOB_ID=8", cgroup=SLURMD),
        9: process(parent=8, cgroup=SLURMD),
        10: process(cgroup="0::/system.slice/slurmstepd.scope/job_8/step_0\n"),
        # sbatch in a container of job 7 has given it the number of that job, too.
        11: process("SLURM_JOB_ID=8\0TRAINYARD_JOB_ID=7", cgroup=SLURMD),
    }
    looks, jobs, killed = [], [], []

    def owned(_uid: int, _ranges: list) -> dict:
        looks.append(1)
        if len(looks) == 3:
            jobs.append("8")
        return {**own, **new} if jobs else own

    monkeypatch.setattr(epilog, "owned", owned)
    monkeypatch.setattr(epilog, "end", lambda pid, _start: killed.append(pid))
    monkeypatch.setattr(epilog, "settings", lambda _path: {"only_in_jobs": True})
    assert set(epilog.sweep("7", 2101, [], lambda: jobs, 0.7)) == {5}
    assert set(killed) == {5, 6} and len(looks) > 5
    assert epilog.of_another(new[11], "7", ["8"]) and not epilog.of_another(new[11], "7", ["9"])
    # People choose the environment, and not the control group.
    own = process("SLURM_JOB_ID=8", cgroup="0::/system.slice/slurmstepd.scope/job_7/step_0\n")
    assert not epilog.of_another(own, "7", ["8"])


def test_a_reused_process_id_is_not_killed():
    child = subprocess.Popen(["sleep", "300"])
    try:
        epilog.end(child.pid, "1")
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.5)
        epilog.end(child.pid, epilog.look(child.pid, "")["start"])
        assert child.wait(10) == -9
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(
    "answer, raised", [(errno.ESRCH, False), (errno.EINVAL, False), (errno.EMFILE, True)]
)
def test_a_process_that_has_ended_before_the_others_of_its_session(monkeypatch, answer, raised):
    """The kernel keeps its ID for them. pidfd_open of older kernels then says that the argument is
    invalid, and not that there is no such process.
    """

    def pidfd_open(_pid):
        raise OSError(answer, os.strerror(answer))

    monkeypatch.setattr(epilog.os, "pidfd_open", pidfd_open, raising=False)
    with pytest.raises(OSError) if raised else contextlib.nullcontext():
        epilog.end(os.getpid(), "1")


@pytest.mark.parametrize(
    "others, cleaned", [([["8"], []], True), ([[], []], True), ([["8"], ["8"]], False)]
)
def test_of_two_epilogs_at_once_one_is_the_last(monkeypatch, tmp_path, others, cleaned):
    """Each has seen the other's job at first, so both would leave what people leave in shared
    folders.
    """
    done, looks = [], iter(others + [others[-1]] * 3)
    monkeypatch.setattr(epilog, "other_jobs", lambda *_arguments: next(looks))
    swept = []
    monkeypatch.setattr(epilog, "sweep", lambda *_arguments: swept.append(1) or {})
    monkeypatch.setattr(
        epilog,
        "clean",
        lambda paths, uid, ranges: (
            done.extend(path for path in paths if path.startswith("/shared")) or []
        ),
    )
    monkeypatch.setattr(epilog, "leftovers", lambda folders: ["/shared"])
    monkeypatch.setattr(epilog, "owned", lambda uid, ranges: {})
    epilog.finish("7", 2101, str(tmp_path / "storage"), str(tmp_path))
    # Again after the other job has ended.
    assert ("/shared" in done, len(swept)) == (cleaned, 2 if others[0] and cleaned else 1)


@pytest.mark.parametrize(
    "seen, free",
    [([{}], True), ([{5: "squeue"}, {5: "squeue"}, {}], True), ([{5: "bash"}] * 3, False)],
)
def test_a_command_on_the_host_is_no_login(monkeypatch, seen, free):
    looks = iter(seen)
    monkeypatch.setattr(epilog, "owned", lambda uid, ranges: next(looks))
    assert epilog.has_no_login(2101, [], 3) is free


def test_a_job_that_ends_while_its_folder_is_looked_at(monkeypatch, tmp_path):
    for name in ("7", "8"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(epilog.os, "listdir", lambda _folder: ["7", "8", "9", "note"])
    assert epilog.other_jobs("7", os.getuid(), str(tmp_path)) == ["8"]


def test_an_epilog_that_failed_is_tried_again(tmp_path):
    """By the health program, until it succeeds. Each job has a record of its own."""
    folder = tmp_path / "epilog.failed"
    assert health.unfinished(str(folder)) == ""
    for job in ("10", "9", "11"):
        epilog.note(job, "2101", "job %s: these processes do not end: 5 (cat)" % job, str(tmp_path))
    tried = []

    def again(job, uid):
        tried.append((job, uid))
        if job == "9":
            (folder / job).unlink()

    assert health.unfinished(str(folder), again) == "job 10: these processes do not end: 5 (cat)"
    # Up to the first that fails again.
    assert tried == [("9", "2101"), ("10", "2101")] and sorted(os.listdir(folder)) == ["10", "11"]
    # The same job, which begins once more on this host.
    begin(tmp_path, "9")
    epilog.note("9", "2101", "job 9", str(tmp_path / "run"))
    begin(tmp_path, "9")
    assert os.listdir(tmp_path / "run/epilog.failed") == []


def test_a_node_whose_epilog_was_repaired_at_the_first_try_is_resumed(monkeypatch, tmp_path):
    asked, reason = [], tmp_path / "health.reason"
    monkeypatch.setattr(health, "REASON", str(reason))
    monkeypatch.setattr(health, "HISTORY", str(tmp_path / "history.json"))
    monkeypatch.setattr(
        health, "output", lambda command, *_more: asked.append(command) or "Epilog error\n"
    )
    epilog.note("9", "2101", "job 9", str(tmp_path))
    health.drain("a", [])
    assert (
        asked[-1] == ["scontrol", "update", "nodename=a", "state=resume"]
        and reason.read_text(encoding="utf-8") == ""
    )
    # Drained before for another reason, which counts.
    reason.write_text("trainyard: 3 of 4 GPUs are present", encoding="utf-8")
    epilog.note("9", "2101", "job 9", str(tmp_path))
    assert reason.read_text(encoding="utf-8") == "trainyard: 3 of 4 GPUs are present"


def test_an_epilog_that_hangs_does_not_hold_the_health_program(monkeypatch, tmp_path):
    """It gets the job and less time than in the beginning, and is left behind."""
    program = tmp_path / "epilog"
    program.write_text(
        "#!/bin/sh\necho $SLURM_JOB_ID $SLURM_JOB_UID $TRAINYARD_EPILOG_SECONDS > %s/asked\nexec sleep 60\n"
        % tmp_path,
        encoding="utf-8",
    )
    program.chmod(0o755)
    monkeypatch.setattr(health, "EPILOG", str(program))
    monkeypatch.setattr(health, "TOOL_SECONDS", 1)
    began = time.monotonic()
    health.run_epilog("7", "2101")
    assert (
        time.monotonic() - began < 30
        and (tmp_path / "asked").read_text(encoding="utf-8") == "7 2101 2\n"
    )


@pytest.mark.parametrize(
    "problem, told",
    [
        (epilog.Failed("job 7: left"), "job 7: left"),
        (OSError(5, "no"), "job 7: the epilog failed: OSError: [Errno 5] no"),
        (RecursionError("deep"), "job 7: the epilog failed: RecursionError: deep"),
        (epilog.Failed("5 (\x1b]0;x\x07\udcff\n)"), "5 (?]0;x???)"),
        (None, None),
    ],
)
def test_the_epilog_keeps_why_it_failed(monkeypatch, tmp_path, problem, told):
    monkeypatch.setattr(epilog, "RUNTIME", str(tmp_path))
    monkeypatch.setattr(epilog, "note", functools.partial(epilog.note, runtime=str(tmp_path)))
    monkeypatch.setattr(epilog.os, "environ", {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "2101"})
    epilog.note("7", "2101", "of the time before")

    def finish(*_arguments):
        if problem:
            raise problem

    monkeypatch.setattr(epilog, "finish", finish)
    assert epilog.main() == (1 if problem else 0)
    assert {
        path.name: path.read_text(encoding="utf-8")
        for path in (tmp_path / "epilog.failed").iterdir()
    } == ({"7": "2101\n%s\n" % told} if told else {})


def test_links_are_removed_and_not_followed(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("x", encoding="ascii")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    assert (
        epilog.clean(
            [str(tmp_path / "job"), str(tmp_path / "link"), str(tmp_path / "none")], ME, []
        )
        == []
    )
    assert sorted(os.listdir(tmp_path)) == ["kept"] and (tmp_path / "kept" / "file").exists()


def test_files_of_others_stay(tmp_path):
    (tmp_path / "file").write_text("x", encoding="ascii")
    assert epilog.clean([str(tmp_path / "file")], ME + 1, [(ME + 5, ME + 9)]) == []
    assert (tmp_path / "file").exists()


def test_a_mount_is_not_emptied(monkeypatch, tmp_path):
    (tmp_path / "job" / "share").mkdir(parents=True)
    for point in ("job", "job/share"):
        monkeypatch.setattr(
            epilog,
            "mount_table",
            lambda point=point: "2 1 0:2 / %s/%s rw - ext4 x rw\n" % (tmp_path, point),
        )
        assert (
            "unmount it" in epilog.clean([str(tmp_path / "job")], ME, [])[0]
            and (tmp_path / "job" / "share").exists()
        )


def test_what_mounts_are_in_the_way_of():
    text = "1 0 0:1 / / rw - ext4 x rw\n2 1 0:2 / /tmp/a\\040b\\012c\\134/x rw shared:1 - ext4 y rw\nbroken\n"
    assert epilog.in_the_way(text) == {"/tmp", "/tmp/a b\nc\\", "/tmp/a b\nc\\/x"}


def test_mounts_that_a_program_of_the_user_serves():
    text = (
        "1 0 0:1 / /tmp/a rw,nosuid - fuse.x x rw,user_id=2101,group_id=1\n2 1 0:2 / /tmp/a/b rw shared:5 - fuse x rw,user_id=2101\n"
        "3 0 0:3 / /tmp/c rw - fuse x rw,user_id=21010\n4 0 0:4 / /tmp/d rw - nfs user_id=2101 rw\n"
    )
    assert epilog.own_mounts(2101, text) == ["/tmp/a/b", "/tmp/a"]


@pytest.fixture(autouse=True)
def _no_deep_folder_is_left(tmp_path):
    """pytest removes its folders with rmtree, which fails in a deep one."""
    yield
    subprocess.run(["rm", "-rf", str(tmp_path)], check=False)


def deep(folder, levels):
    """A folder with so many levels that no path names the last one."""
    handle = os.open(folder, os.O_RDONLY)
    for _level in range(levels):
        os.mkdir("d", dir_fd=handle)
        below = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = below
    os.close(handle)


@pytest.mark.parametrize("levels", [300, 2000])
def test_a_deep_folder_is_removed(tmp_path, levels):
    (tmp_path / "job").mkdir()
    deep(tmp_path / "job", levels)
    assert epilog.clean([str(tmp_path / "job")], ME, []) == []
    assert os.listdir(tmp_path) == []


def test_whatever_a_job_leaves_is_removed(tmp_path):
    job = tmp_path / "a\nb"
    (job / "closed").mkdir(parents=True)
    (job / "closed" / "file").write_text("x", encoding="ascii")
    (job / "closed").chmod(0)
    os.mkfifo(job / "fifo")
    (tmp_path / "-rf").mkdir()
    os.mkdir(os.fsencode(tmp_path) + b"/\xff\x1b")
    (job / "gone").symlink_to("/nowhere")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(job / "socket"))
    assert epilog.clean(epilog.leftovers([str(tmp_path)]), ME, []) == []
    assert os.listdir(tmp_path) == []


def test_a_folder_that_root_has_made_immutable_is_removed(tmp_path):
    (tmp_path / "job" / "kept").mkdir(parents=True)
    done = subprocess.run(
        ["chattr", "+i", str(tmp_path / "job" / "kept"), str(tmp_path / "job")],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (
        done.returncode == 0 or "not supported" in done.stderr or "not permitted" in done.stderr
    ), done.stderr
    assert epilog.clean([str(tmp_path / "job")], ME, []) == []
    assert os.listdir(tmp_path) == []


def test_a_folder_that_was_replaced_meanwhile_stays(monkeypatch, tmp_path):
    (tmp_path / "job").mkdir()
    answers = iter([True, False])
    monkeypatch.setattr(epilog, "belongs", lambda *_arguments: next(answers))
    assert "replaced" in epilog.clean([str(tmp_path / "job")], ME, [])[0]
    assert os.listdir(tmp_path) == ["job"]


def test_files_that_take_long_are_put_aside(monkeypatch, tmp_path):
    (tmp_path / "job").mkdir()
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "rm").write_text('#!/bin/sh\nsleep 2\nexec /bin/rm "$@"\n', encoding="ascii")
    (tools / "rm").chmod(0o755)
    monkeypatch.setattr(epilog, "PATHS", "%s:%s" % (tools, epilog.PATHS))
    assert epilog.clean([str(tmp_path / "job")], ME, [], time.monotonic() + 60) == []
    (tmp_path / "job").mkdir()
    assert epilog.clean([str(tmp_path / "job")], ME, [], time.monotonic()) == []
    # Its path is free, and rm goes on.
    assert [name[:19] for name in os.listdir(tmp_path) if name != "tools"] == [epilog.TRASH]
    deadline = time.monotonic() + 30
    while os.listdir(tmp_path) != ["tools"] and time.monotonic() < deadline:
        time.sleep(0.1)
    assert os.listdir(tmp_path) == ["tools"]


def test_too_many_files_are_left_to_the_health_program(tmp_path):
    for name in "abc":
        (tmp_path / name).write_text("x", encoding="ascii")
    assert epilog.clean(sorted(epilog.leftovers([str(tmp_path)])), ME, [], time.monotonic()) == [
        "2 files are left in %s; the health program goes on" % tmp_path
    ]


def test_the_health_program_removes_what_was_put_aside(monkeypatch, tmp_path):
    aside, own = tmp_path / ".trainyard-removed.a", tmp_path / ".trainyard-removed.b"
    for folder in (aside, own):
        folder.mkdir()
    deep(aside, 1500)
    found = os.lstat
    monkeypatch.setattr(
        health.os,
        "lstat",
        lambda path: os.stat_result([0, 0, 0, 0, 0 if path == str(aside) else 2101] + [0] * 5),
    )
    health.remove_rest([str(tmp_path)])
    monkeypatch.setattr(health.os, "lstat", found)
    assert os.listdir(tmp_path) == [own.name]


def test_the_removal_has_one_time_for_all_folders_and_comes_last(monkeypatch, tmp_path):
    """slurmd gives the health program a minute, in which it has to drain the node."""
    for number in range(4):
        (tmp_path / "tmp" / (epilog.TRASH + str(number))).mkdir(parents=True)
    done, now = [], [100.0]

    def output(command: list, seconds: float = 0, *_more: object) -> str:
        done.append(os.path.basename(command[0]))
        if command[0] == "rm":
            now[0] += seconds - 3 if len(done) == 3 else seconds
        return ""

    monkeypatch.setattr(health, "output", output)
    monkeypatch.setattr(health.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(health, "REASON", str(tmp_path / "reason"))
    monkeypatch.setattr(health, "INSTANCES", str(tmp_path))
    monkeypatch.setattr(health, "SHARED_FOLDERS", (str(tmp_path / "tmp"),))
    monkeypatch.setattr(health, "problems", lambda _config: [("epilog", "a GPU is lost")])
    monkeypatch.setattr(health, "HISTORY", str(tmp_path / "history.json"))
    monkeypatch.setattr(health.os, "environ", {"SLURMD_NODENAME": "a"})
    root = os.stat_result([0] * 10)
    monkeypatch.setattr(health.os, "lstat", lambda _path: root)
    assert health.main() == 1
    assert done == ["scontrol", tmp_path.name, "rm", "rm"]
    assert now[0] - 100 <= health.TOOL_SECONDS


def test_other_jobs_of_the_user(tmp_path):
    for name in ("7", "8", "task"):
        (tmp_path / name).mkdir()
    assert epilog.other_jobs("7", ME, str(tmp_path)) == ["8"]
    assert (
        epilog.other_jobs("7", ME + 1, str(tmp_path)) == []
        and epilog.other_jobs("7", ME, str(tmp_path / "none")) == []
    )


def test_shared_memory_of_the_user():
    text = "key shmid perms size cpid lpid nattch uid gid\n 0 32768 600 4096 1 2 0 2101 2101\n 0 5 600 1 1 1 0 0 0\n"
    assert epilog.shared_memory_ids(text, 2101, []) == ["32768"]


IMAGE_LAYER, CONTAINER_LAYER = "a" * 64, "b" * 64


def own_store(tmp_path: Path) -> Path:
    """Return the store of a person with an image and a container of plain podman."""
    store = tmp_path / "people" / str(ME)
    for folder in ("overlay-containers/" + "c" * 64, "overlay-images/" + "d" * 64, "volumes"):
        (store / folder).mkdir(parents=True)
    for layer in (IMAGE_LAYER, CONTAINER_LAYER):
        (store / "overlay" / layer / "diff").mkdir(parents=True)
    (store / "overlay-layers").mkdir()
    (store / "libpod").mkdir()
    (store / "libpod" / "bolt_state.db").touch()
    (store / "db.sql").touch()
    container = [{"id": "c" * 64, "layer": CONTAINER_LAYER}]
    layers = [{"id": IMAGE_LAYER}, {"id": CONTAINER_LAYER, "parent": IMAGE_LAYER}]
    (store / "overlay-containers/containers.json").write_text(json.dumps(container))
    (store / "overlay-layers/layers.json").write_text(json.dumps(layers))
    return store


def files_of(store: Path) -> set:
    return {str(path.relative_to(store)) for path in store.rglob("*")}


@pytest.mark.parametrize("volatile", [False, True])
def test_containers_of_plain_podman_go_and_images_stay(tmp_path, volatile):
    store = own_store(tmp_path)
    if volatile:
        for path in ("overlay-containers/containers.json", "overlay-layers/layers.json"):
            file = store / path
            file.rename(file.parent / ("volatile-" + file.name))
    assert epilog.forget_containers(str(tmp_path), ME, GROUP) == []
    name = "overlay-layers/volatile-layers.json" if volatile else "overlay-layers/layers.json"
    assert json.loads((store / name).read_text()) == [{"id": IMAGE_LAYER}]
    kept = {"overlay", "overlay/" + IMAGE_LAYER, "overlay/%s/diff" % IMAGE_LAYER, "overlay-layers"}
    kept |= {name, "overlay-images", "overlay-images/" + "d" * 64, "volumes"}
    assert files_of(store) == kept and os.listdir(tmp_path / "people") == [str(ME)]
    # Without containers nothing happens.
    (store / "overlay-containers").mkdir()
    (store / "overlay-containers/containers.json").write_text("[]")
    assert epilog.forget_containers(str(tmp_path), ME, GROUP) == []
    assert (store / "overlay-containers").exists()


def hostile_link(path: Path) -> None:
    path.symlink_to("/dev/zero")


#: What a person can put in the place of a list of podman.
HOSTILE = {
    "pipe": os.mkfifo,
    "link": hostile_link,
    "socket": lambda path: socket.socket(socket.AF_UNIX).bind(str(path)),
    "folder": lambda path: path.mkdir(),
    "deep": lambda path: path.write_text("[" * 200000),
    "large": lambda path: os.truncate(os.open(path, os.O_WRONLY | os.O_CREAT), 1 << 40),
    "no list": lambda path: path.write_text('{"layer": 1}'),
    "no objects": lambda path: path.write_text("[1]"),
    "no text": lambda path: path.write_bytes(b"\xff\xfe"),
}


@pytest.mark.parametrize(
    "name", ["overlay-containers/containers.json", "overlay-layers/layers.json"]
)
@pytest.mark.parametrize("kind", HOSTILE)
def test_nothing_in_the_store_of_a_person_holds_or_fails_the_epilog(
    tmp_path, monkeypatch, kind, name
):
    store = own_store(tmp_path)
    (store / name).unlink()
    # The path of a socket is short.
    monkeypatch.chdir(store)
    HOSTILE[kind](Path(name))
    before = files_of(store)
    began = time.monotonic()
    assert epilog.forget_containers(str(tmp_path), ME, GROUP) == []
    assert time.monotonic() - began < 5 and files_of(store) == before
    assert os.listdir(tmp_path / "people") == [str(ME)]


@pytest.mark.parametrize("folder", ["overlay-containers", "overlay-layers", "overlay", "volumes"])
def test_links_in_the_store_of_a_person_lead_nowhere(tmp_path, folder):
    store = own_store(tmp_path)
    other = tmp_path / "other"
    (store / folder).rename(other)
    (store / folder).symlink_to(other)
    before = files_of(other)
    assert epilog.forget_containers(str(tmp_path), ME, GROUP) == []
    assert files_of(other) == before


def test_a_store_with_volumes_stays(tmp_path):
    """Only the database of podman knows them, and it knows the containers, too."""
    store = own_store(tmp_path)
    (store / "volumes" / "work").mkdir()
    before = files_of(store)
    assert epilog.forget_containers(str(tmp_path), ME, GROUP) == []
    assert files_of(store) == before


def test_the_epilog_runs_no_podman(tmp_path, monkeypatch):
    """It would run programs that the person has chosen, outside of a job."""
    store = own_store(tmp_path)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "podman").write_text("#!/bin/sh\ntouch %s/ran\n" % tmp_path, encoding="ascii")
    (tools / "podman").chmod(0o755)
    monkeypatch.setattr(epilog, "PATHS", "%s:%s" % (tools, epilog.PATHS))
    monkeypatch.setenv("PATH", epilog.PATHS)
    monkeypatch.setattr(epilog, "sweep", lambda *_arguments: {})
    monkeypatch.setattr(epilog, "has_no_login", lambda *_arguments: True)
    monkeypatch.setattr(epilog, "leftovers", lambda _folders: [])
    monkeypatch.setattr(epilog._job_ports, "close_ports", lambda _job: None)
    epilog.finish("7", ME, str(tmp_path), str(tmp_path / "run"))
    assert not (tmp_path / "ran").exists() and not (store / "overlay-containers").exists()


def test_an_epilog_that_is_killed_is_tried_again_and_a_running_one_is_not(tmp_path):
    """slurmd kills it after two minutes."""
    program = "import sys; sys.path[:0] = %r; import epilog, time\n" % [str(FILES), *FOLDERS]
    program += "with epilog.begun('7', '2101', %r): print('x', flush=True); time.sleep(60)\n"
    child = subprocess.Popen(
        [sys.executable, "-B", "-c", program % str(tmp_path)], stdout=subprocess.PIPE
    )
    folder, tried = str(tmp_path / "epilog.failed"), []
    try:
        assert child.stdout.readline() == b"x\n"
        assert health.unfinished(folder, lambda *job: tried.append(job)) == "" and not tried
        assert not (tmp_path / "health.reason").exists()
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    said = "job 7: the epilog was killed before its end"
    assert health.unfinished(folder, lambda *job: tried.append(job)) == said
    assert tried == [("7", "2101")]
    # slurmd has drained the node, and the health program resumes it.
    with epilog.begun("7", "2101", str(tmp_path)):
        pass
    assert (tmp_path / "health.reason").read_text(encoding="utf-8") == epilog.SLURM_REASON
    assert (tmp_path / "epilog.failed/7").read_text(encoding="utf-8") == "2101\n%s\n" % said


#: What str.splitlines takes for the end of a line, and str.split for that of a word, but for what
#: the kernel writes as octal numbers.
SEPARATORS = "\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u2028\u2029\u3000"


@pytest.mark.parametrize("separator", SEPARATORS, ids=ascii)
@pytest.mark.parametrize("name", ["{0}", "x{0}y", "x{0}"])
def test_names_of_mounts_break_no_reader(separator, name):
    point = "/home/bob/" + name.format(separator)
    strange = "30 21 0:50 / %s rw - fuse.x bob rw,user_id=2102\n" % point
    text = MOUNTS.replace("\n", "\n" + strange) + "31 21 0:9 / /share rw - nfs4 a:/b rw\n30 21\n"
    assert {point, "/home/bob", "/share", "/fast disk"} <= epilog.in_the_way(text)
    assert epilog.own_mounts(2102, text) == [point] * 4
    assert disk.device_of("/fast disk/jobs", text) == "/dev/mapper/a b"
    assert health.unmounted("/share", text) == "" and health.unmounted("/none", text)
    groups = "1:name=systemd:/system.slice/%s\n0::/user.slice\n" % name.format(separator)
    assert epilog.units(groups) == {"/system.slice/" + name.format(separator), "/user.slice"}


def test_epilog_needs_the_variables_of_slurmd():
    done = subprocess.run(
        [sys.executable, str(FILES / "epilog.py")],
        env={"SLURM_JOB_ID": "7;x", "PYTHONPATH": ":".join(FOLDERS)},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "'7;x'" in done.stderr


# --- GPUs that are in use ---

users = sys.modules["_gpu_users"]


class Proc:
    """A folder like /proc."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()

    def add(self, pid, *targets, group="/user.slice/user-2101.slice/session-3.scope", job=""):
        own = self.folder / str(pid)
        (own / "fd").mkdir(parents=True)
        for number, target in enumerate(("/dev/null", "socket:[7]", *targets)):
            (own / "fd" / str(number)).symlink_to(target)
        (own / "cgroup").write_text("0::%s\n" % group, encoding="ascii")
        (own / "environ").write_bytes(
            b"A=1\0" + (b"SLURM_JOB_ID=%s\0" % job.encode() if job else b"")
        )
        (own / "comm").write_text("python3\n", encoding="ascii")


STEP = "/system.slice/slurmstepd.scope/job_%s/step_0/user/task_0"
DOCKER = "/system.slice/docker-%s.scope" % ("0123456789ab" + "c" * 52)


@pytest.mark.parametrize(
    "process, is_stranger",
    [
        ({"group": "/user.slice/user-2101.slice/session-3.scope"}, True),
        ({"group": DOCKER}, True),
        ({"group": STEP % "7"}, False),
        ({"group": STEP % "8"}, False),
        # A job that has ended, whose process has survived.
        ({"group": STEP % "6"}, True),
        ({"group": "/", "job": "7"}, False),
        ({"group": "/", "job": "6"}, True),
        # The environment is what a person writes into it, and the group is not.
        ({"group": STEP % "6", "job": "7"}, True),
        ({"group": "/system.slice/nvidia-persistenced.service"}, False),
        ({"group": "/system.slice/nvidia-fabricmanager.service"}, False),
        ({"group": "/system.slice/nvidia-dcgm.service"}, False),
        ({"group": "/system.slice/nvidia-dcgm-exporter.service"}, False),
        ({"group": "/system.slice/trainyard-metrics-gpu.service"}, False),
        ({"group": "/system.slice/my-nvidia-dcgm.service"}, True),
    ],
)
def test_who_uses_a_gpu_and_belongs_to_no_job(tmp_path, process, is_stranger):
    proc = Proc(tmp_path / "proc")
    proc.add(41, "/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia-uvm", **process)
    proc.add(42, "/dev/nvidia5")
    (tmp_path / "proc/self").mkdir()
    found = users.strangers([0, 3], "/dev/nvidia%d", {"7", "8"}, str(tmp_path / "proc"), 5)
    assert found == ({41: 3} if is_stranger else {})


def test_what_is_said_of_a_stranger(tmp_path):
    proc = Proc(tmp_path / "proc")
    proc.add(41, "/dev/nvidia3", group=DOCKER)
    name = pwd.getpwuid(os.getuid()).pw_name
    # No name of a person in the tables of Slurm.
    assert users.message({41: 3}, str(tmp_path / "proc")) == (
        "GPU 3 is used by process 41 (python3) of no job"
    )
    assert users.told_operator({41: 3}, str(tmp_path / "proc")) == (
        "GPU 3: process 41 (python3) of %s in container 0123456789ab" % name
    )


def test_a_host_with_many_processes_delays_no_job(tmp_path):
    proc = Proc(tmp_path / "proc")
    for pid in range(100, 160):
        proc.add(pid, *["/dev/shm/%d" % number for number in range(200)])
    begun = time.monotonic()
    users.strangers([0], "/dev/nvidia%d", set(), str(tmp_path / "proc"))
    # The last process may end after the time.
    assert time.monotonic() - begun < 10 * users.SECONDS


@pytest.mark.parametrize("ends", [True, False])
def test_the_prolog_refuses_a_gpu_that_is_in_use(monkeypatch, tmp_path, ends):
    """A real process with an open file. One that ends meanwhile, as nvidia-smi does, is no
    reason.
    """
    device = tmp_path / "nvidia3"
    device.touch()
    (tmp_path / "jobs").mkdir()
    monkeypatch.setattr(users, "PAUSE", 0.5)
    monkeypatch.setattr(users.lasting, "__defaults__", (users.PROC, 0.5))
    monkeypatch.setattr(users.strangers, "__defaults__", (users.PROC, 20))
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import time; f = open(%r); print(1, flush=True); time.sleep(%s)"
            % (str(device), "0.1" if ends else "60"),
        ],
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout.readline()
        if ends:
            monkeypatch.setattr(users.time, "sleep", lambda _seconds: (child.wait(), None)[1])
            prolog.refuse_busy("9", [3], {"nodes": str(tmp_path / "nvidia%d")}, str(tmp_path))
            assert not (tmp_path / "gpus.busy").exists()
        else:
            with pytest.raises(
                prolog.Failed, match="process %d .* of no job|process %d" % (child.pid, child.pid)
            ):
                prolog.refuse_busy("9", [3], {"nodes": str(tmp_path / "nvidia%d")}, str(tmp_path))
            assert json.loads((tmp_path / "gpus.busy").read_text()) == {"devices": [3], "job": "9"}
    finally:
        child.kill()
        child.wait()


def test_srun_and_salloc_are_told_why_their_job_does_not_start(tmp_path, monkeypatch):
    """By scontrol, with the process and without its owner. One that fails or is missing changes nothing else."""
    monkeypatch.setattr(users, "lasting", lambda *_arguments: {41: 3})
    monkeypatch.setattr(users, "message", lambda _found: "GPU 3 is used by process 41 of no job")
    monkeypatch.setattr(users, "told_operator", lambda _found: "process 41 of anna")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "jobs").mkdir()
    host = os.uname().nodename

    def refuse():
        with pytest.raises(prolog.Failed, match="process 41 of anna"):
            prolog.refuse_busy("9", [3], {}, str(tmp_path))

    refuse()
    scontrol = tmp_path / "bin/scontrol"
    scontrol.write_text(
        "#!/bin/sh\nprintf '%%s\\n' \"$@\" > %s/told\nexit 1\n" % tmp_path, encoding="ascii"
    )
    scontrol.chmod(0o755)
    refuse()
    assert (tmp_path / "told").read_text().splitlines() == [
        "notify",
        "9",
        "trainyard: the job does not start on %s: GPU 3 is used by process 41 of no job. A batch job starts on another host. "
        "Repeat srun or salloc: this host gets no jobs until it is free" % host,
    ]


def test_a_node_is_resumed_when_the_gpu_is_free(node, tmp_path, monkeypatch):
    proc = Proc(tmp_path / "proc")
    proc.add(41, "/dev/nvidia3")
    monkeypatch.setattr(health, "BUSY", str(tmp_path / "gpus.busy"))
    monkeypatch.setattr(users.strangers, "__defaults__", (str(tmp_path / "proc"), 5))
    monkeypatch.setattr(users.message, "__defaults__", (str(tmp_path / "proc"),))
    Path(health.BUSY).write_text('{"devices": [3], "job": "9"}', encoding="ascii")
    Path(health.HANDED_OVER).write_text("Prolog error", encoding="ascii")
    node.reason = "Prolog error"

    def check():
        text = health.judge_busy({}, str(tmp_path))
        health.drain("a", [("alloc-gpus-busy", text)] if text else [])

    check()
    said = "trainyard: alloc-gpus-busy: GPU 3 is used by process 41 (python3) of no job"
    assert node.reason == said
    node.asked.clear()
    health.release_job()
    health.release_job()
    assert node.asked == [["scontrol", "release", "9"]]
    node.reason = said
    check()
    assert node.reason == said
    shutil.rmtree(tmp_path / "proc/41")
    check()
    assert node.reason == "none" and not os.path.exists(health.BUSY)


# --- health ---


def test_gpus():
    assert health.judge_gpus(8, 7) == "7 of 8 GPUs are present"
    assert health.judge_gpus(8, 8) == health.judge_gpus(0, 0) == ""


def test_a_device_of_the_list_is_missing(monkeypatch):
    """The numbers have changed at a boot, and their count has not."""
    monkeypatch.setattr(health, "output", lambda *_arguments: "")
    monkeypatch.setattr(health, "count_gpus", lambda _kinds: 2)
    monkeypatch.setattr(
        health._gpu_numbers, "read_host", lambda _kinds: {"nodes": [0, 1], "driver": []}
    )
    for numbers, reason in (([0, 1], ""), ([0], ""), ([0, 2], "0, 2, and the host has 0, 1")):
        found = dict(health.problems({"health": {"gpus": 2}, "gpus": {"positions": numbers}}))
        told = found.get("gpu-count", "")
        assert reason in told and bool(reason) == bool(told)


def test_npus_are_counted_by_their_device_files(monkeypatch):
    listed = {"/dev/davinci[0-9]*": ["/dev/davinci0", "/dev/davinci1"]}
    monkeypatch.setattr(health.glob, "glob", lambda pattern: listed.get(pattern, []))
    assert health.count_gpus({"nodes": "/dev/davinci%d"}) == 2


@pytest.mark.parametrize(
    "text, said",
    [
        (
            "[1.0] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python3, GPU has fallen off the bus.",
            "Xid 79 of 0000:3b:00: the GPU has fallen off the bus",
        ),
        (
            "[1.0] NVRM: Xid (PCI:0000:3b:00): 48, pid=1, DBE",
            "Xid 48 of 0000:3b:00: an uncorrectable memory error (double bit)",
        ),
        (
            "[1.0] nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            "SXid 20034 of 0000:05:00.0: an NVSwitch reports an error",
        ),
        ("[1.0] NVRM: Xid (PCI:0000:3b:00): 31, pid=1, name=python3, MMU Fault", ""),
        ("[1.0] NVRM: Xid (PCI:0000:3b:00): 63, pid=1, Row Remapper: New row marked", ""),
        ("[1.0] NVRM: Xid (PCI:0000:3b:00): 94, pid=1, Contained", ""),
        ("", ""),
    ],
)
def test_errors_in_the_kernel_log(text, said):
    assert health.judge_kernel_log(text) == said


H100 = FILES.parents[2] / "tests/fixtures/nvidia-smi-xml/h100-80gb-hbm3-v13-580.xml"


def a_document(**values: str) -> str:
    """The document of a GPU, with other values of some elements."""
    text = H100.read_text(encoding="utf-8")
    for tag, value in values.items():
        text, count = re.subn("<%s>[^<]*<" % tag, "<%s>%s<" % (tag, value), text, count=1)
        assert count
    return text


@pytest.mark.parametrize(
    "values, said",
    [
        ({}, ""),
        ({"sram_uncorrectable_parity": "2"}, "2 uncorrectable errors since the driver was loaded"),
        ({"remapped_row_pending": "Yes"}, ""),
        ({"remapped_row_failure": "Yes"}, "memory could not be retired"),
        ({"gpu_recovery_action": "Reset"}, "the driver asks for recovery action 'Reset'"),
        ({"gpu_temp": "GPU requires reset"}, "'GPU requires reset' in place of gpu_temp"),
    ],
)
def test_problems_of_gpus(values, said):
    gpus = health._nvidia_smi.parse_query(a_document(**values)).gpus
    found = {check: health.judge_cards(gpus, check) for check in health.OF_CARDS}
    text = found["gpu-state"] + found["gpu-ecc"]
    assert said in text and bool(text) == bool(said)
    assert found["gpu-fabric"] == found["gpu-throttle"] == ""


@pytest.mark.parametrize(
    "program, count, said",
    [
        ("cat %s", 1, ""),
        ("cat %s; exit 15", 0, "nvidia-smi fails, or gives no answer within 1 s"),
        ("exec sleep 60", 0, "nvidia-smi fails, or gives no answer within 1 s"),
        ("echo '<nvidia_smi_log>'", 0, ""),
        ("echo No devices were found", 0, ""),
        (
            "echo 'Unable to determine the device handle for GPU 0000:03:00.0: GPU requires reset'; cat %s",
            1,
            "GPU 0000:03:00.0: GPU requires reset",
        ),
    ],
)
def test_nvidia_smi_is_asked(monkeypatch, tmp_path, program, count, said):
    (tmp_path / "document").write_text(a_document(), encoding="utf-8")
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\n" + program.replace("%s", str(tmp_path / "document")), encoding="utf-8"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", "%s:%s" % (tmp_path, os.environ["PATH"]))
    gpus, problem = health.read_cards(1)
    assert (len(gpus), problem) == (count, said)


def test_the_reader_of_the_metrics_has_just_asked(monkeypatch, tmp_path, capsys):
    """nvidia-smi takes up to 15 s on hosts with 8 GPUs. Its time is printed."""
    tool, kept = tmp_path / "nvidia-smi", tmp_path / "kept.xml"
    tool.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", "%s:%s" % (tmp_path, os.environ["PATH"]))
    monkeypatch.setattr(health, "DOCUMENT", str(kept))
    kept.write_text(a_document(gpu_recovery_action="Reset"), encoding="utf-8")
    gpus, problem = health.read_cards()
    assert problem == "" and "Reset" in health.judge_cards(gpus, "gpu-state")
    assert "took" not in capsys.readouterr().err
    # It is old, of the future, or no file.
    for seconds in (-121, 60):
        os.utime(kept, (time.time() + seconds, time.time() + seconds))
        assert health.read_cards()[1].startswith("nvidia-smi fails")
    assert re.search(r"nvidia-smi -q -x took \d\.\d s", capsys.readouterr().err)
    kept.unlink()
    os.mkfifo(kept)
    assert health.read_cards()[1].startswith("nvidia-smi fails")


MEASURED = """
import os, sys, time
sys.path[:0] = %(path)r
import importlib.util
spec = importlib.util.spec_from_file_location("health", %(program)r)
health = importlib.util.module_from_spec(spec)
spec.loader.exec_module(health)
health.CONFIG, health.PORTS, health.ERRORS = %(config)r, %(folder)r + "/ports", %(folder)r + "/errors"
health._fabric.read_ports.__defaults__ = (%(folder)r + "/infiniband",)
gpus, problem = health.read_cards()
assert len(gpus) == 8 and problem == "", (len(gpus), problem)
for check in health.OF_CARDS:
    health.judge_cards(gpus, check)
health.judge_kernel_log(health.read_kernel_log(), gpus, "580.65.06")
sys.exit(health.main())
"""


def test_what_a_look_costs(tmp_path):
    """At most 0.5 s of its own CPU time and 5 s without nvidia-smi, with 8 GPUs, 8 ports and a
    chatty kernel.
    """
    document = a_document()
    gpu = document[document.index("<gpu id") : document.index("</gpu>") + len("</gpu>")]
    cards = [
        gpu.replace("GPU-", "GPU-%d" % number).replace(":00:06.0", ":%d0:00.0" % number)
        for number in range(8)
    ]
    text = document.replace(gpu, "".join(cards)).replace("<attached_gpus>1<", "<attached_gpus>8<")
    (tmp_path / "document").write_text(text, encoding="utf-8")
    lines = ["[%d.0] NVRM: Xid (PCI:0000:3b:00): 31, pid=1" % second for second in range(5000)]
    (tmp_path / "log").write_text("\n".join(lines), encoding="utf-8")
    for name in ("nvidia-smi", "dmesg"):
        source = tmp_path / ("log" if name == "dmesg" else "document")
        (tmp_path / name).write_text("#!/bin/sh\nexec cat %s\n" % source, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    for number in range(8):
        port = tmp_path / ("infiniband/mlx5_%d/ports/1" % number)
        (port / "counters").mkdir(parents=True)
        (port / "state").write_text("4: ACTIVE\n", encoding="ascii")
        for counter in ("symbol_error", "link_error_recovery", "link_downed"):
            (port / "counters" / counter).write_text("0\n", encoding="ascii")
    (tmp_path / "config").write_text(
        json.dumps({"health": {"gpus": 0, "share": "", "free_gib": {"/": 0}}}), encoding="utf-8"
    )
    program = MEASURED % {
        "path": [*FOLDERS, str(FILES)],
        "program": str(FILES / "health.py"),
        "config": str(tmp_path / "config"),
        "folder": str(tmp_path),
    }
    environment = dict(os.environ, PATH="%s:%s" % (tmp_path, os.environ["PATH"]))
    environment.pop("SLURMD_NODENAME", None)
    begun = time.monotonic()
    child = subprocess.Popen([sys.executable, "-c", program], env=environment)
    _pid, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    # Its children are cat: what they cost is of nvidia-smi and dmesg.
    spent = used.ru_utime + used.ru_stime
    print("CPU %.2f s, wall %.2f s" % (spent, time.monotonic() - begun))
    assert spent < 0.5 and time.monotonic() - begun < 5


XID_79 = "[%d.0] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python3, GPU has fallen off the bus."
RELOADED = "[%d.0] nvidia-nvlink: Nvlink Core is being initialized, major device number 236"


@pytest.fixture(name="node")
def _node(monkeypatch, tmp_path):
    """A node whose kernel log, boot and scheduler are files and lists of the test."""
    state = SimpleNamespace(
        log="",
        asked=[],
        reason="none",
        nodes="a|Unknown|none\n",
        boot=tmp_path / "boot",
        now=1.7e9,
        ran=lambda command: None,
    )
    state.boot.write_text("boot-1\n", encoding="utf-8")

    def output(command, *_more):
        if command == ["dmesg"]:
            return state.log
        if command[0] == "sinfo":
            return state.nodes if "--Node" in command else state.reason + "\n"
        state.asked.append(command)
        if command[0] == "scontrol":
            state.reason = command[4].partition("=")[2] if len(command) == 5 else "none"
            state.ran(command)
        return ""

    monkeypatch.setattr(health, "output", output)
    monkeypatch.setattr(health.time, "time", lambda: state.now)
    monkeypatch.setattr(health, "BOOT", str(state.boot))
    monkeypatch.setattr(health, "HANDED_OVER", str(tmp_path / "run/health.reason"))
    monkeypatch.setattr(health, "SETTLE_SECONDS", 0)
    for name, path in (
        ("REASON", "lib/health.reason"),
        ("ERRORS", "lib/health.json"),
        ("HISTORY", "lib/health.history.json"),
        ("ENDED", "run/epilog.ended"),
    ):
        monkeypatch.setattr(health, name, str(tmp_path / path))
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("SLURMD_NODENAME", "a")

    def check():
        """One run: what it has asked of the scheduler."""
        state.asked.clear()
        kernel = health.read_kernel_log()
        health.drain(
            "a", [pair for pair in [("gpu-xid", health.judge_kernel_log(kernel))] if pair[1]]
        )
        return [command[3:] for command in state.asked]

    state.check = check
    return state


DRAINED = [
    [
        "state=drain",
        "reason=trainyard: gpu-xid: Xid 79 of 0000:3b:00: the GPU has fallen off the bus",
    ]
]
RESUMED = [["state=resume"]]


def test_a_node_is_resumed_when_the_driver_was_loaded_again(node):
    node.log = XID_79 % 100
    assert node.check() == DRAINED and node.check() == []
    node.log += "\n" + RELOADED % 200
    assert node.check() == RESUMED and node.check() == []
    node.log += "\n" + XID_79 % 300
    assert node.check() == DRAINED


def test_a_node_stays_drained_although_the_kernel_forgets_the_line(node):
    node.log = XID_79 % 100
    assert node.check() == DRAINED
    for node.log in ("[101.0] eth0: link is up", "", "[102.0] NVRM: Xid (PCI:0000:3b:00): 45"):
        assert node.check() == []
    node.log = RELOADED % 103
    assert node.check() == RESUMED


def test_a_node_is_resumed_after_a_reboot(node, tmp_path):
    """Everything below /run is gone then."""
    node.log = XID_79 % 100
    assert node.check() == DRAINED
    (tmp_path / "run").rmdir()
    node.boot.write_text("boot-2\n", encoding="utf-8")
    node.log = "[    0.000000] Linux version 6.1.0-28-amd64 (debian) #1 SMP"
    assert node.check() == RESUMED


@pytest.mark.parametrize(
    "reason", ["trainyard: verify: gpu-xid: Xid 79", "the disk is replaced", "trainyard: upgrade"]
)
def test_a_node_that_others_have_drained_stays_so_after_a_reboot(node, reason):
    node.log = XID_79 % 100
    assert node.check() == DRAINED
    node.reason, node.log = reason, ""
    node.boot.write_text("boot-2\n", encoding="utf-8")
    assert node.check() == [] and node.check() == []


def test_a_damaged_record_is_begun_anew(node):
    for content in ("", "{", "[]", "null", '{"open": []}'):
        os.makedirs(os.path.dirname(health.ERRORS), exist_ok=True)
        Path(health.ERRORS).write_text(content, encoding="utf-8")
        node.log = XID_79 % 100
        assert "Xid 79" in health.judge_kernel_log(health.read_kernel_log())


def test_the_note_of_an_epilog_is_taken_over(node):
    Path(health.HANDED_OVER).write_text("Epilog error", encoding="utf-8")
    node.reason = "Epilog error"
    assert node.check() == RESUMED and not os.path.exists(health.HANDED_OVER)


def shown(reasons, since="2026-11-30T08:00:00"):
    """What sinfo prints of all nodes."""
    return "".join(
        "%s|%s|%s\n" % (name, since if reason != "none" else "Unknown", reason)
        for name, reason in reasons.items()
    )


SIX = dict.fromkeys("abcdef", "none")
OURS = "trainyard: gpu-fabric: GPU 1: fabric state"


@pytest.mark.parametrize(
    "reasons, drains",
    [
        (SIX, True),
        (dict(SIX, b=OURS), True),
        # A third of six is out.
        (dict(SIX, b=OURS, c=OURS), False),
        (dict.fromkeys("abcdef", OURS), False),
        # Other people and programs drain for reasons of their own.
        (dict.fromkeys("abcdef", "maintenance"), True),
        (dict.fromkeys("abcdef", "trainyard: verify: gpu-fabric: GPU 1"), True),
        (dict.fromkeys("abcdef", "trainyard: burn-in"), True),
        # Three nodes are no mass.
        (dict.fromkeys("abc", OURS), True),
        ({}, True),
    ],
)
def test_the_breaker_leaves_two_thirds_of_the_nodes(node, capsys, reasons, drains):
    node.nodes = shown(dict(reasons, a="none") if reasons else {})
    found = [("gpu-xid", "Xid 79 of 0000:3b:00")]
    for _time in range(2):
        node.asked.clear()
        health.drain("a", found)
        assert ("a third of the nodes" in capsys.readouterr().out) is not drains or _time
    assert [command for command in node.asked if command[0] == "scontrol"] == []
    events = [event["event"] for event in json.loads(Path(health.HISTORY).read_text())]
    assert events == (["drain"] if drains else ["held"])
    assert (health._files.read(health.REASON) != "") is drains
    # The share, and what jobs have left, drain any number.
    health.drain("a", [*found, ("share", "/data1/share is not mounted")])
    assert "share" in health._files.read(health.REASON)


def test_hosts_that_drain_in_the_same_second_agree(node):
    """Each has seen none of the others before its drain.

    After it all see the same order, and the first third stays out.
    """
    for name in "abcdef":
        node.nodes = shown(SIX)
        node.ran = lambda _command: setattr(node, "nodes", shown(dict.fromkeys("abcdef", OURS)))
        Path(health.REASON).unlink(missing_ok=True)
        node.asked.clear()
        health.drain(name, [("gpu-fabric", "GPU 1: fabric state")])
        changes = [command[3] for command in node.asked if command[0] == "scontrol"]
        assert changes == (["state=drain"] if name in "ab" else ["state=drain", "state=resume"])
        assert bool(health._files.read(health.REASON)) is (name in "ab")


def test_three_drains_for_one_cause_in_a_week(node):
    for day in range(3):
        node.now = 1.7e9 + day * 86400
        node.log += "\n" + XID_79 % (100 + 100 * day)
        assert node.check() == DRAINED
        node.log += "\n" + RELOADED % (150 + 100 * day)
        if day < 2:
            assert node.check() == RESUMED
    stays = "trainyard: stays out: gpu-xid drained this node 3 times in a week; repair it, then resume it by hand"
    assert node.check() == [["state=drain", "reason=" + stays]]
    assert node.check() == [] and node.reason == stays
    # A person has repaired and resumed it.
    node.reason = "none"
    assert node.check() == [] and health._files.read(health.REASON) == ""
    node.log += "\n" + XID_79 % 900
    assert node.check() == DRAINED


def test_a_node_waits_for_a_job_before_it_returns(node):
    """The health program cannot start one: it says that the cause has ended, and the scheduler's
    program tries a job.
    """
    gone = [("gpu-ecc", "GPU 3: 1 uncorrectable error")]
    health.drain("a", gone, True)
    node.asked.clear()
    health.drain("a", [], True)
    waits = "trainyard: probe: gpu-ecc: GPU 3: 1 uncorrectable error"
    assert [command[3:] for command in node.asked] == [["state=drain", "reason=" + waits]]
    node.asked.clear()
    health.drain("a", [], True)
    assert node.asked == [] and node.reason == waits
    # The fault is back before the job.
    health.drain("a", gone, True)
    assert node.reason == "trainyard: gpu-ecc: GPU 3: 1 uncorrectable error"
    health.drain("a", [], True)
    # The job was good.
    node.reason = "none"
    node.asked.clear()
    health.drain("a", [], True)
    assert node.asked == [] and health._files.read(health.REASON) == ""
    events = json.loads(Path(health.HISTORY).read_text(encoding="utf-8"))
    assert [event["event"] for event in events] == ["drain", "drain", "resume"]
    assert health._drains.is_over("d", shown(dict.fromkeys("abc", waits) | {"d": "none"}))


def test_what_a_job_has_left_needs_no_probe(node):
    health.drain("a", [("alloc-gpus-busy", "GPU 0 is used by process 7 (python3) of no job")], True)
    health.drain("a", [], True)
    assert node.reason == "none"


def test_a_drain_after_one_of_somebody_else_is_a_new_one(node):
    for day in range(3):
        node.now = 1.7e9 + day * 86400
        health.drain("a", [("gpu-ecc", "GPU 3")])
        # Verify has found more, and a person resumes the node between two looks.
        node.reason = "trainyard: verify: burn-in-results"
        health.drain("a", [])
        node.reason = "none"
        health.drain("a", [])
    events = json.loads(Path(health.HISTORY).read_text(encoding="utf-8"))
    assert [event["new"] for event in events] == [["gpu-ecc"]] * 3


def test_a_probe_does_not_hide_that_a_node_is_drained_again_and_again(node):
    for day in range(3):
        node.now = 1.7e9 + day * 86400
        health.drain("a", [("gpu-ecc", "GPU 3")], True)
        health.drain("a", [], True)
        if day < 2:
            node.reason = "none"
            health.drain("a", [], True)
    assert node.reason.startswith("trainyard: stays out: gpu-ecc drained this node 3 times")


@pytest.mark.parametrize("check", ["share", "epilog", "alloc-gpus-busy", "free-space"])
def test_what_a_person_can_cause_never_keeps_a_node_out(node, check):
    for day in range(4):
        node.now = 1.7e9 + day * 86400
        health.drain("a", [(check, "x")])
        assert node.reason == "trainyard: %s: x" % check
        node.asked.clear()
        health.drain("a", [])
        assert node.asked == [["scontrol", "update", "nodename=a", "state=resume"]]
        node.reason = "none"


def test_three_drains_in_three_weeks_are_no_pattern(node):
    for week in range(4):
        node.now = 1.7e9 + week * 7 * 86400
        node.log += "\n" + XID_79 % (100 + 100 * week)
        assert node.check() == DRAINED
        node.log += "\n" + RELOADED % (150 + 100 * week)
        assert node.check() == RESUMED


def test_a_finding_that_changes_its_words_is_one_drain(node):
    for number in range(5):
        health.drain("a", [("free-space", "/tmp has 0.%d GiB free, less than 1" % number)])
    events = json.loads(Path(health.HISTORY).read_text(encoding="utf-8"))
    assert [event["new"] for event in events] == [["free-space"]] + [[]] * 4
    node.now += 60
    health.drain("a", [])
    assert node.reason == "none"


@pytest.mark.parametrize("content", ["", "{", "{}", "[3]", '[{"time": "x"}]', "[" * 100000])
def test_a_damaged_history_is_begun_anew(node, content):
    os.makedirs(os.path.dirname(health.HISTORY), exist_ok=True)
    Path(health.HISTORY).write_text(content, encoding="utf-8")
    health.drain("a", [("gpu-xid", "Xid 79")])
    assert [event["event"] for event in health.history()] == ["drain"]


@pytest.mark.parametrize(
    "reason, after_epilog, resumed",
    [
        ("Kill task failed", True, True),
        # No job has ended here: the process may still run.
        ("Kill task failed", False, False),
        ("the disk is replaced", True, False),
        ("none", True, False),
    ],
)
def test_a_node_that_slurm_drained_for_a_process_that_has_ended(
    node, reason, after_epilog, resumed
):
    node.reason = reason
    if after_epilog:
        Path(health.ENDED).touch()
        os.utime(health.ENDED, (node.now - 60, node.now - 60))
    health.drain("a", [])
    assert [command[3] for command in node.asked if command[0] == "scontrol"] == (
        ["state=resume"] if resumed else []
    )
    # An hour later nothing is asked any more.
    node.now += 4000
    node.asked.clear()
    monitored = node.reason
    health.drain("a", [])
    assert node.asked == [] and node.reason == monitored


def test_a_scheduler_that_does_not_answer_keeps_the_memory_of_a_drain(node, monkeypatch):
    node.log = XID_79 % 100
    assert node.check() == DRAINED
    answer = health.output
    monkeypatch.setattr(
        health,
        "output",
        lambda command, *more: None if command[0] == "sinfo" else answer(command, *more),
    )
    node.log += "\n" + RELOADED % 200
    assert node.check() == []
    monkeypatch.setattr(health, "output", answer)
    assert node.check() == RESUMED


def test_a_host_without_nvidia_smi(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert health.read_cards() == ([], "")


@pytest.mark.parametrize("program", [prolog, epilog, health], ids=lambda module: module.__name__)
def test_annotations_are_not_evaluated(program):
    """Python 3.8 of Ubuntu 20.04 cannot evaluate list[str], so the program would not load there."""
    functions = [value for value in vars(program).values() if inspect.isfunction(value)]
    evaluated = [
        function.__name__
        for function in functions
        if not all(isinstance(kind, str) for kind in function.__annotations__.values())
    ]
    assert evaluated == []


def test_driver_and_library():
    assert (
        "driver 550.54.15 is loaded, and library 550.90.07 is installed; reboot"
        in health.judge_driver("550.54.15", "550.90.07")
    )
    assert (
        health.judge_driver("550.54.15", "550.54.15") == health.judge_driver("", "550.54.15") == ""
    )


def test_space():
    assert (
        health.judge_space({"/var": 5 << 30}, {"/var": 10}) == "/var has 5.0 GiB free, less than 10"
    )
    assert health.judge_space({"/var": 10 << 30}, {"/var": 10}) == ""


def test_share(tmp_path):
    assert (
        health.unmounted("/data1/share", "1 0 0:1 / / rw - ext4 x rw\n")
        == "/data1/share is not mounted"
    )
    assert (
        health.unmounted("/data1/share", "1 0 0:1 / /data1/share rw - nfs4 x rw\n")
        == health.unmounted("", "")
        == ""
    )
    assert health.judge_share(str(tmp_path)) == ""
    assert "does not answer" in health.judge_share(str(tmp_path / "none"))


def test_a_tool_that_hangs_is_not_waited_for():
    assert (
        health.output(["sleep", "60"], 0.2) is None
        and health.output(["false"], 5) is None
        and health.output(["echo", "x"], 20) == "x\n"
    )


LOADED = """table inet trainyard_jobs {
  chain people {
    th dport 1 drop
  }
  chain output {
    type filter hook output priority filter - 10; policy accept;
    goto people
  }
}
"""
#: What is left after nft flush table.
EMPTIED = "\n".join(
    line for line in LOADED.splitlines() if "drop" not in line and "goto" not in line
)


@pytest.mark.parametrize(
    "tables, said, asked",
    [
        ([LOADED], "", 1),
        ([EMPTIED, LOADED], "", 2),
        ([EMPTIED] * 4 + [LOADED], "", 6),
        ([LOADED.replace("drop", "accept\n drop")] * 4 + [LOADED], "", 6),
        ([LOADED.replace("policy", "")] * 4 + [LOADED], "", 6),
        ([""] * 8, "no firewall: trainyard-jobs-firewall.service does not load its table", 9),
        ([None] * 8, "no firewall: trainyard-jobs-firewall.service does not load its table", 9),
    ],
)
def test_a_table_that_was_flushed_is_loaded_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tables: list[str | None], said: str, asked: int
) -> None:
    calls: list[list[str]] = []

    def output(command: list[str], _seconds: float) -> str | None:
        calls.append(command)
        return tables.pop(0) if "list" in command else ""

    monkeypatch.setattr(health, "UNITS", str(tmp_path))
    monkeypatch.setattr(health, "output", output)
    monkeypatch.setattr(health._nft_table, "_PAUSE", 0)
    assert health.restore_tables() == "" and not calls, "a host without these units"
    (tmp_path / health._nft_table.JOBS).touch()
    (tmp_path / "table.nft").write_text(LOADED)
    monkeypatch.setitem(
        health._nft_table.TABLES,
        health._nft_table.JOBS,
        ("inet trainyard_jobs", str(tmp_path / "table.nft")),
    )
    assert health.restore_tables() == said
    reloads = [command[2:] for command in calls if "systemctl" in command]
    assert len(calls) == asked and reloads == [[health._nft_table.JOBS]] * (asked > 2)


def test_one_line():
    line = health._drains.line
    assert line([("a", ""), ("b", "a\nb"), ("c", "c")]) == "trainyard: b: a b; c: c"
    assert line([("a", ""), ("b", "")]) == ""
    assert len(line([("a", "x" * 500)])) == 200
    assert line([("a", "5 (\x1b]0;x\x07)\u202e")]) == "trainyard: a: 5 (?]0;x?)?"


@pytest.mark.parametrize(
    "checks, name",
    [
        (["gpu-xid"], "host"),
        (["share", "free-space"], "host"),
        (["share", "epilog"], "fabric"),
        (["gpu-fabric"], "fabric"),
        (["epilog"], "user"),
        ([], ""),
    ],
)
def test_the_class_of_a_drain(checks, name):
    assert health._drains.class_of([(check, "x") for check in checks]) == name


@pytest.mark.parametrize(
    "former, text, shown, asked",
    [
        ("", "", "", []),
        (
            "",
            "x",
            "",
            [["scontrol", "update", "nodename=a", "state=drain", "reason=trainyard: share: x"]],
        ),
        ("trainyard: share: x", "x", "", []),
        (
            "trainyard: share: x",
            "",
            "trainyard: share: x",
            [
                ["sinfo", "--noheader", "--nodes=a", "--format=%E"],
                ["scontrol", "update", "nodename=a", "state=resume"],
            ],
        ),
        (
            "trainyard: share: x",
            "",
            "disk is replaced",
            [["sinfo", "--noheader", "--nodes=a", "--format=%E"]],
        ),
    ],
)
def test_slurm_is_asked_only_about_changes(monkeypatch, tmp_path, former, text, shown, asked):
    calls = []
    monkeypatch.setattr(health, "REASON", str(tmp_path / "reason"))
    monkeypatch.setattr(health, "HISTORY", str(tmp_path / "history.json"))
    monkeypatch.setattr(health, "ENDED", str(tmp_path / "ended"))
    monkeypatch.setattr(health, "output", lambda command, _seconds: calls.append(command) or shown)
    (tmp_path / "reason").write_text(former, encoding="utf-8")
    health.drain("a", [("share", text)] if text else [])
    assert calls == asked
    assert (tmp_path / "reason").read_text(encoding="utf-8") == (
        "trainyard: share: x" if text else ""
    )


def test_a_drain_that_failed_is_tried_again(monkeypatch, tmp_path):
    monkeypatch.setattr(health, "REASON", str(tmp_path / "reason"))
    monkeypatch.setattr(health, "output", lambda _command, _seconds: None)
    monkeypatch.setattr(health, "HISTORY", str(tmp_path / "history.json"))
    health.drain("a", [("share", "x")])
    assert not (tmp_path / "reason").exists()


MOUNTS = (
    "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n22 21 8:2 / /fast\\040disk rw - xfs /dev/mapper/a\\040b rw,prjquota\n"
    "23 21 8:3 / /old rw - ext4 /dev/sdc rw,prjquota\n24 21 8:4 / /old rw - ext4 /dev/sdd rw\n"
)


@pytest.mark.parametrize(
    "path, device",
    [("/fast disk/jobs/7", "/dev/mapper/a b"), ("/fast", ""), ("/old/jobs", ""), ("/", "")],
)
def test_the_device_of_a_project_quota(path, device):
    assert disk.device_of(path, MOUNTS) == device


def test_the_disk_of_a_job_is_limited_and_free_again(tmp_path, monkeypatch):
    """With calls of the kernel recorded: few kernels of test machines have such quotas."""
    calls = []
    monkeypatch.setattr(
        disk._files, "read", lambda _path: "21 1 8:1 / / rw - ext4 /dev/sda1 rw,prjquota\n"
    )
    monkeypatch.setattr(
        disk, "limit_project", lambda device, project, size: calls.append((device, project, size))
    )
    monkeypatch.setattr(
        disk.fcntl,
        "ioctl",
        lambda handle, request, data: (
            calls.append((os.readlink("/proc/self/fd/%d" % handle), hex(request))) or data
        ),
    )
    monkeypatch.setitem(sys.modules, "_disk_limit", disk)
    (tmp_path / "jobs/7").mkdir(parents=True)
    config = {"storage": str(tmp_path), "job_bytes": 5 << 30}
    prolog.limit_disk("7", config)
    disk.finish(str(tmp_path), "7")
    project = (1 << 30) + 7
    folder = str(tmp_path / "jobs/7")
    assert calls == [
        ("/dev/sda1", project, 5 << 30),
        (folder, "0x801c581f"),
        (folder, "0x401c5820"),
        ("/dev/sda1", project, 0),
    ]
    prolog.limit_disk("7", {"storage": str(tmp_path), "job_bytes": 0})
    assert len(calls) == 4
    # A site that has mounted it without quotas since then: the node is drained with the reason.
    monkeypatch.setattr(disk._files, "read", lambda _path: MOUNTS)
    with pytest.raises(
        OSError,
        match="is not on a file system that is mounted with prjquota, which job_container_job_gib needs",
    ):
        prolog.limit_disk("7", config)


def test_a_refused_quota_has_a_reason():
    with pytest.raises(
        OSError, match="the quota of project 1073741831 on /dev/null cannot be set: "
    ):
        disk.limit_project("/dev/null", disk.project_of("7"), 1 << 30)


def test_programs_are_placed_with_their_interpreter():
    """Slurm and people start them by name."""
    programs = role_variable(
        "job_container",
        "__job_container_programs",
        ansible_search_path=[str(FILES.parent)],
        role_path=str(FILES.parent),
    )
    first = {path.rpartition("/")[2]: text.partition("\n")[0] for path, text in programs.items()}
    modules = (
        "_disk_limit.py",
        "_gpu_users.py",
        "_images.py",
        "_job_ports.py",
    )
    assert all(first.pop(name).startswith("# ") for name in modules)
    # In containers, by the Python of the image.
    assert {first.pop(name) for name in ("trainyard-launch", "trainyard-root")} == {
        "#!/usr/bin/env python3"
    }
    assert first == dict.fromkeys(
        ("trainyard-run", "clean-store", "prolog", "epilog", "health", "host-check"),
        "#!/usr/bin/python3",
    )
    for text in programs.values():
        compile(text, "program", "exec")


# --- for the metrics of the host ---


def test_the_gpus_of_a_job_are_marked_by_device_number(tmp_path, monkeypatch):
    host = {"nodes": [0, 1, 2, 4], "driver": []}
    monkeypatch.setattr(prolog._gpu_numbers, "read_host", lambda _kinds: host)
    devices = prolog.devices_of_job({"SLURM_JOB_GPUS": "2,3"}, {"positions": [0, 1, 2, 4]})
    assert devices == [2, 4]
    folder = tmp_path / "gpus"
    # Without metrics there is no folder, and nothing is written.
    prolog.mark_gpus("4711", 2001, devices, str(folder))
    assert not folder.exists()
    folder.mkdir()
    prolog.mark_gpus("4711", 2001, devices, str(folder))
    assert {path.name: path.read_text(encoding="ascii") for path in folder.iterdir()} == {
        "2": "4711 2001\n",
        "4": "4711 2001\n",
    }
    assert (folder / "2").stat().st_mode & 0o777 == 0o640
    # The next job has one of them already when the epilog of the first one runs again.
    prolog.mark_gpus("4712", 2002, [4], str(folder))
    epilog.forget_gpus("4711", str(folder))
    assert os.listdir(folder) == ["4"]
    epilog.forget_gpus("471", str(folder))
    assert os.listdir(folder) == ["4"]


def test_a_job_of_the_system_starts_without_a_list(tmp_path, monkeypatch):
    """Its GPUs are those of the training container."""
    host = {"nodes": [0, 2], "driver": []}
    monkeypatch.setattr(prolog._gpu_numbers, "read_host", lambda _kinds: host)
    monkeypatch.setenv("SLURM_JOB_GPUS", "0,1")
    prolog.mark_job_of_the_system("5", 0, {})
    with pytest.raises(prolog._gpu_numbers.DeviceError):
        prolog.devices_of_job(os.environ, {})


def test_the_health_program_writes_how_often_it_has_drained(tmp_path, monkeypatch):
    """Of the last week, by check. A drain that goes on for another reason counts for that alone."""
    monkeypatch.setattr(health, "HISTORY", str(tmp_path / "history.json"))
    now = time.time()
    drain = {"event": "drain", "checks": ["gpu-xid"], "time": now - 60}
    events = [
        dict(drain, time=now - 8 * 24 * 3600),
        drain,
        dict(drain, checks=["gpu-xid", "share"], new=["share"]),
        dict(drain, event="held"),
        dict(drain, event="resume"),
        "damaged",
    ]
    Path(health.HISTORY).write_text(json.dumps(events), encoding="utf-8")
    (tmp_path / "metrics").mkdir()
    health.report([("share", "")], str(tmp_path / "metrics"))
    text = (tmp_path / "metrics/health.prom").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("trainyard_health_drains")]
    assert lines == [
        'trainyard_health_drains{check="gpu-xid"} 1',
        'trainyard_health_drains{check="share"} 1',
    ]


def test_the_health_program_writes_its_checks(tmp_path):
    health.report([("share", ""), ("gpu-count", "1 of 2 GPUs are present")], str(tmp_path / "no"))
    assert os.listdir(tmp_path) == []
    health.report([("share", ""), ("gpu-count", "1 of 2 GPUs are present")], str(tmp_path))
    text = (tmp_path / "health.prom").read_text(encoding="utf-8")
    assert 'trainyard_health_check_passed{check="share"} 1\n' in text
    assert 'trainyard_health_check_passed{check="gpu-count"} 0\n' in text


def test_each_check_of_the_health_program_has_an_id(monkeypatch):
    told = []
    monkeypatch.setattr(health, "report", told.extend)
    found = health.problems({"health": {"gpus": 2}})
    assert [pair for pair in told if pair[1]] == found
    assert {"gpu-count", "gpu-xid", "gpu-state", "share", "free-space"} < {row[0] for row in told}
