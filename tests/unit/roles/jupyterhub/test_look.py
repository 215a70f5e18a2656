# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The look at instances from outside, as root: what counts as use, which jobs it ends, and that a
person cannot hide one.
"""

from __future__ import annotations

import json
import os
import types
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.roles.jupyterhub.files import look

FILES = Path(__file__).resolve().parents[4] / "roles" / "job_container" / "files"
PROCESS = {"environ": b"SLURM_JOB_ID=7", "cgroup": "", "space": "", "parent": 1}
SCRIPT = "#!/bin/bash\n#SBATCH --job-name=First\nexec /usr/local/lib/trainyard/notebook/server run /share/x.json\n"
NOW = 1000000


def line(gres="", name="First", after="Command=/x WorkDir=/home/anna"):
    """A line of scontrol show job --details --oneliner."""
    detail = " Nodes=a CPU_IDs=0-1 Mem=4096 GRES=%s" % gres if gres is not None else ""
    return (
        "JobId=7 JobName=%s UserId=anna(2001) GroupId=anna(2001) JobState=RUNNING TRES=cpu=2 %s MinCPUsNode=1 %s"
        % (name, detail, after)
    )


@pytest.mark.parametrize(
    "gres, gpus",
    [
        ("gpu:h100:2(IDX:0-1)", ["0", "1"]),
        ("gpu:2(IDX:0,3)", ["0", "3"]),
        ("", []),
        (None, []),
        ("gpu:1(IDX:1023)", ["1023"]),
    ],
)
def test_gpus_of_a_job(gres, gpus):
    assert look.gpus_of(line(gres), "First") == gpus


@pytest.mark.parametrize(
    "numbers, position, busy",
    [
        # Devices 2, 3, 5, 7: nvidia-smi counts them from 0, and the last one is busy.
        ([2, 3, 5, 7], "3", True),
        ([2, 3, 5, 7], "2", False),
        # A display card between them is the last one of Slurm.
        ([0, 1, 3, 2], "2", True),
        ([0, 1, 3, 2], "3", False),
        ([0, 1, 2, 3], "4", None),
    ],
)
def test_gpus_in_use_are_those_of_the_job(monkeypatch, numbers, position, busy):
    text = "".join("%d, 1, 2\n" % use for use in (0, 0, 0, 90))
    host = {"nodes": sorted(numbers), "driver": []}
    monkeypatch.setattr(look._files, "read_json", lambda _path: {"gpus": {"positions": numbers}})
    monkeypatch.setattr(look, "read_host", lambda _kinds: host)
    monkeypatch.setattr(look, "output", lambda _command: text)
    assert look.gpus_in_use([position]) is busy
    assert look.gpus_in_use([]) is False


#: What a person can write in the place of the words of Slurm.
FAKE = "x UserId=anna(2001) Nodes=a CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:%s) y"
ODD = ("9", "-", "0-9999999999", "0,,1")


@pytest.mark.parametrize("numbers", ODD)
def test_what_a_person_names_a_job_does_not_count(numbers):
    fake = FAKE % numbers
    assert look.gpus_of(line("gpu:1(IDX:3)", name=fake), fake) == ["3"]
    assert look.gpus_of(line("gpu:1(IDX:3)", after="Comment=" + fake), "First") == ["3"]
    assert look.gpus_of(line("", name=fake + "\n", after="WorkDir=/" + fake), fake + "\n") == []
    # The name has changed between two questions.
    with pytest.raises(ValueError):
        look.gpus_of(line("gpu:1(IDX:3)", name=fake), "First")


@pytest.mark.parametrize(
    "before, ticks, expected",
    [
        # The first look.
        (None, {}, True),
        (None, {"1 of 5": 0}, True),
        # 300 s with 100 ticks a second: 5 % are 1500.
        ({"1 of 5": 100}, {"1 of 5": 100}, False),
        ({"1 of 5": 100}, {"1 of 5": 1599}, False),
        ({"1 of 5": 100}, {"1 of 5": 1600}, True),
        # New processes, another process with the same number, and ended ones.
        ({}, {"2 of 9": 1500}, True),
        ({"1 of 5": 9000}, {"1 of 7": 1400}, False),
        ({"1 of 5": 9000, "2 of 6": 10}, {"2 of 6": 10}, False),
    ],
)
def test_use_of_a_cpu(before, ticks, expected):
    assert look.cpu_in_use(before, ticks, 300 * 100) is expected


def test_ticks_have_the_start_of_the_process():
    (own,) = look.ticks_of({os.getpid()}).items()
    assert own[0].startswith("%d of " % os.getpid()) and own[1] >= 0
    assert look.ticks_of({2**30}) == {}


def test_processes_of_a_job_come_from_the_program_of_the_host(monkeypatch, tmp_path):
    """The epilog of role job_container, with its modules beside it."""
    (tmp_path / "7").mkdir()
    monkeypatch.setattr(look, "JOBS", str(tmp_path))
    monkeypatch.setattr(look.sys, "path", list(look.sys.path))
    monkeypatch.delitem(look.sys.modules, "_job_ports", raising=False)
    epilog = look.module_of(str(FILES / "epilog.py"))
    found = {5: PROCESS, 6: dict(PROCESS, environ=b"")}
    monkeypatch.setattr(epilog, "owned", lambda uid, ranges: found)
    assert look.processes_of(epilog, "7") == {5}


class Cluster:
    """A host with one job, and looks at it each five minutes."""

    def __init__(self, monkeypatch, tmp_path, script=SCRIPT, gpus=""):
        self.now, self.ticks, self.gpus, self.ended, self.logged, self.asked = (
            NOW,
            0,
            False,
            [],
            [],
            [],
        )
        self.script, self.shown, self.name = script, line(gpus), "First"
        (tmp_path / "jobs/7").mkdir(parents=True)
        (tmp_path / "server.json").write_text(
            json.dumps({"idle": {"seconds": 3600, "warning": 900, "gpu_seconds": 0}})
        )
        self.config = tmp_path / "server.json"
        for name, value in {
            "JOBS": str(tmp_path / "jobs"),
            "STATE": str(tmp_path / "state.json"),
            "CONFIG": str(self.config),
            "output": self.output,
            "module_of": lambda _path: None,
            "processes_of": lambda _epilog, _job: {7},
            "ticks_of": lambda _pids: {"7 of 1": self.ticks},
            "gpus_in_use": lambda devices: self.gpus if devices else False,
        }.items():
            monkeypatch.setattr(look, name, value)
        monkeypatch.setattr(
            look, "time", types.SimpleNamespace(time=lambda: self.now, monotonic=lambda: self.now)
        )
        monkeypatch.setattr(look.syslog, "syslog", self.logged.append)

    def output(self, command):
        if command[0] == "scancel":
            self.ended.append(command[1])
            return ""
        self.asked.append(command)
        if command[0] == "squeue":
            return self.name + "\n"
        return self.script if "write" in command else self.shown

    def passes(self, minutes, cpu=0.0, step=5):
        for _look in range(0, minutes, step):
            self.now += 60 * step
            self.ticks += int(cpu * 60 * step * os.sysconf("SC_CLK_TCK"))
            assert look.main() == 0


def test_a_quiet_instance_ends_after_twice_its_time(monkeypatch, tmp_path):
    cluster = Cluster(monkeypatch, tmp_path)
    cluster.passes(120)
    assert cluster.ended == []
    cluster.passes(10)
    assert "7" in cluster.ended and "job 7 did not end itself" in cluster.logged[0]
    # The controller is asked once for each job.
    assert len(cluster.asked) == 3


def test_an_instance_in_use_stays(monkeypatch, tmp_path):
    cluster = Cluster(monkeypatch, tmp_path)
    cluster.passes(600, cpu=0.06)
    assert cluster.ended == []
    # An idle JupyterLab needs some CPU.
    cluster.passes(140, cpu=0.02)
    assert "7" in cluster.ended


@pytest.mark.parametrize("busy, ends", [(True, False), (None, False), (False, True)])
def test_gpus_count_as_use(monkeypatch, tmp_path, busy, ends):
    cluster = Cluster(monkeypatch, tmp_path, gpus="gpu:h100:1(IDX:0)")
    cluster.gpus = busy
    cluster.passes(200)
    assert bool(cluster.ended) is ends


def test_gpus_that_are_held_end_it_whatever_else_runs(monkeypatch, tmp_path):
    cluster = Cluster(monkeypatch, tmp_path, gpus="gpu:h100:1(IDX:0)")
    cluster.config.write_text(
        json.dumps({"idle": {"seconds": 0, "warning": 900, "gpu_seconds": 3600}})
    )
    cluster.passes(140, cpu=1.0)
    assert "7" in cluster.ended


@pytest.mark.parametrize("script", ["#!/bin/bash\npython train.py\n", "", None])
def test_other_jobs_stay(monkeypatch, tmp_path, script):
    cluster = Cluster(monkeypatch, tmp_path, script=script)
    cluster.passes(300)
    assert cluster.ended == []


@pytest.mark.parametrize("numbers", ODD)
def test_a_name_of_a_job_stops_no_look_at_others(monkeypatch, tmp_path, numbers):
    cluster = Cluster(monkeypatch, tmp_path)
    (tmp_path / "jobs/5").mkdir()
    others = cluster.output

    def output(command):
        # Job 5 of another person is no instance. Its name is the person's choice.
        if "5" in command:
            return "#!/bin/bash\nsleep 1\n" if "write" in command else line(name=FAKE % numbers)
        return others(command)

    monkeypatch.setattr(look, "output", output)
    cluster.passes(140)
    assert "7" in cluster.ended and len(cluster.logged) == len(cluster.ended)


def test_a_job_that_cannot_be_judged_stops_no_look_at_others(monkeypatch, tmp_path):
    cluster = Cluster(monkeypatch, tmp_path)
    (tmp_path / "jobs/5").mkdir()
    processes = look.processes_of

    def processes_of(epilog, job):
        if job == "5":
            raise PermissionError("a\nb")
        return processes(epilog, job)

    monkeypatch.setattr(look, "processes_of", processes_of)
    cluster.passes(140)
    assert cluster.ended and set(cluster.ended) == {"7"}
    assert "trainyard: job 5 cannot be judged. PermissionError: a\\nb" in cluster.logged
    assert not any("\n" in text for text in cluster.logged)


def test_without_a_limit_nothing_is_looked_at(monkeypatch, tmp_path):
    cluster = Cluster(monkeypatch, tmp_path)
    cluster.config.write_text(
        json.dumps({"idle": {"seconds": 0, "warning": 900, "gpu_seconds": 0}})
    )
    cluster.passes(300)
    assert cluster.ended == cluster.asked == []


def test_a_long_time_without_a_look_counts_as_use(monkeypatch, tmp_path):
    cluster = Cluster(monkeypatch, tmp_path)
    cluster.passes(110)
    cluster.passes(600, step=600)
    assert cluster.ended == []


def test_without_an_answer_of_slurm_nothing_ends(monkeypatch, tmp_path):
    cluster = Cluster(monkeypatch, tmp_path)
    cluster.shown = None
    cluster.passes(300)
    assert cluster.ended == []
    cluster.shown = line()
    cluster.passes(140)
    assert "7" in cluster.ended


def test_a_damaged_state_is_written_again(monkeypatch, tmp_path):
    cluster = Cluster(monkeypatch, tmp_path)
    (tmp_path / "state.json").write_text("{")
    cluster.passes(5)
    assert (
        json.loads((tmp_path / "state.json").read_text())["7"]["is_instance"]
        and (tmp_path / "state.json").stat().st_mode & 0o777 == 0o600
    )
