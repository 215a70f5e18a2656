"""The job of check scheduler-job. srun, trainyard-run and scontrol are scripts of the test."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[4] / "roles/verify/files/probe.py"
SPEC = importlib.util.spec_from_file_location("probe", FILE)
probe = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(probe)


@pytest.fixture(name="share")
def fixture_share(tmp_path):
    folder = tmp_path / "anna" / ".trainyard-probe.1"
    folder.mkdir(parents=True)
    (folder / "token").write_text("secret", encoding="ascii")
    return folder


def test_a_share_that_can_be_used(share):
    assert (
        probe.share_problem(str(share), "secret", "n1") == ""
        and (share / "n1").read_text(encoding="ascii") == "secret"
    )


def test_a_share_that_cannot_be_used(share, monkeypatch):
    parent = str(share.parent)
    assert (
        probe.share_problem(str(share), "other", "n1")
        == parent + " has a different content than on the scheduler"
    )
    assert (
        probe.share_problem(str(share) + "2", "secret", "n1")
        == "what was written to %s on the scheduler cannot be read: No such file or directory"
        % parent
    )
    (share / "n2").mkdir()
    assert (
        probe.share_problem(str(share), "secret", "n2")
        == parent + " cannot be written: File exists"
    )
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    assert probe.share_problem(
        str(share), "secret", "n1"
    ) == "a new file in %s belongs to user %d" % (parent, os.geteuid())


def test_device_nodes(tmp_path):
    # Not of NVIDIA, but they can be opened anywhere.
    for name, target in (
        ("gpu0", "/dev/null"),
        ("gpu1", "/dev/missing"),
        ("gpuctl", "/dev/null"),
        ("gpu2", "/dev/zero"),
    ):
        (tmp_path / name).symlink_to(target)
    (tmp_path / "gpu1").unlink()
    (tmp_path / "gpu7").write_text("", encoding="ascii")
    assert probe.devices(str(tmp_path / "gpu")) == {
        "0": ["c", 1, 3, ""],
        "2": ["c", 1, 5, ""],
        "7": ["-", 0, 0, ""],
    }
    assert probe.opened(str(tmp_path / "gpu9")) == "ENOENT"


def test_what_the_task_sees(share, tmp_path):
    asked = {"all_devices": ["/dev/none"], "folder": str(share), "token": "secret", "node": "n1"}
    seen = probe.task(
        asked,
        {
            "SLURMD_NODENAME": "n1",
            "SLURM_STEP_GPUS": "1,3-4",
            "SLURM_JOB_GPUS": "9",
            "CUDA_VISIBLE_DEVICES": "0,1,2",
        },
    )
    assert seen == {
        "node": "n1",
        "uid": os.getuid(),
        "gid": os.getgid(),
        "gpus": [1, 3, 4],
        "visible": 3,
        "device": "/dev/none",
        "devices": {},
        "driver": os.path.exists("/proc/driver/nvidia/version"),
        "share": "",
    }
    # Without GPUs and a share.
    seen = probe.task(dict(asked, folder=""), {})
    assert (seen["gpus"], seen["visible"], seen["share"]) == ([], 0, "")
    # NPUs in a container of trainyard-run.
    (tmp_path / "davinci4").symlink_to("/dev/null")
    prefix = str(tmp_path / "davinci")
    asked.update(folder="", all_devices=["/dev/none", prefix])
    seen = probe.task(asked, {"SLURM_STEP_GPUS": "0", "ASCEND_RT_VISIBLE_DEVICES": "0"})
    assert (seen["gpus"], seen["visible"], seen["device"]) == ([0], 1, prefix)
    assert seen["devices"] == {"4": ["c", 1, 3, ""]}


def test_the_list_of_the_host(tmp_path):
    path = tmp_path / "config.json"
    assert probe.listed_devices(str(path)) is None
    for text, found in (
        ('{"gpus": {"positions": [2, 3]}}', [2, 3]),
        ('{"gpus": {}}', None),
        ("{}", None),
        ("[]", None),
        ("{", None),
    ):
        path.write_text(text, encoding="ascii")
        assert probe.listed_devices(str(path)) == found


@pytest.mark.parametrize(
    "output, code, result",
    [
        ('srun: warning\ntrainyard-probe {"uid": 1}\nbye\n', 0, {"uid": 1}),
        ("", 1, {"failed": "exit code 1 and no output"}),
        (
            "trainyard-run: image 'x'\nis \x1bnot on this host\n",
            125,
            {"failed": "exit code 125: trainyard-run: image 'x' is not on this host"},
        ),
        ("x" * 1000, 1, {"failed": "exit code 1: " + "x" * 400}),
    ],
)
def test_the_output_of_the_task(output, code, result):
    assert probe.result_of(output, code) == result


def job(tmp_path, srun, image="", seconds=30):
    """What the whole job stores as its comment."""
    (tmp_path / "bin").mkdir()
    for name, body in (
        ("srun", srun),
        ("trainyard-run", 'echo "$1" > %s/image; shift 2; exec "$@"' % tmp_path),
        ("scontrol", "printf '%%s\\n' \"$@\" > %s/scontrol" % tmp_path),
    ):
        path = tmp_path / "bin" / name
        path.write_text("#!/bin/sh\n%s\n" % body, encoding="utf-8")
        path.chmod(0o755)
    asked = {
        "folder": "",
        "token": "",
        "node": "n1",
        "image": image,
        "seconds": seconds,
        "all_devices": ["/dev/none"],
        "job_folders": [],
    }
    environment = {
        "PATH": "%s/bin:/usr/bin:/bin" % tmp_path,
        "SLURM_JOB_ID": "7",
        "SLURMD_NODENAME": "n1",
        probe.ASKED: json.dumps(asked),
        probe.PROGRAM: FILE.read_text(encoding="utf-8"),
    }
    subprocess.run(
        [sys.executable, "-B", "-c", environment[probe.PROGRAM]], env=environment, check=True
    )
    words = (tmp_path / "scontrol").read_text(encoding="utf-8").splitlines()
    assert (
        words[:2] == ["update", "jobid=7"]
        and words[2].startswith("comment=trainyard:")
        and len(words) == 3
    )
    return json.loads(base64.urlsafe_b64decode(words[2].partition(":")[2]))


# Without the options of srun.
TASK = 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"'


def test_the_whole_job(tmp_path):
    told = job(tmp_path, TASK)
    assert (told["node"], told["uid"], told["devices"]) == ("n1", os.getuid(), {}) and not (
        tmp_path / "image"
    ).exists()


def test_the_whole_job_in_a_container(tmp_path):
    assert job(tmp_path, TASK, image="trainyard/training:1")["node"] == "n1"
    assert (tmp_path / "image").read_text(encoding="utf-8") == "trainyard/training:1\n"


def test_a_task_that_hangs(tmp_path):
    failed = {"failed": "the task did not end within 1 s"}
    assert job(tmp_path, "exec sleep 30", seconds=1) == dict(failed, plain=failed)


def test_a_task_that_fails(tmp_path):
    failed = {"failed": "exit code 125: no such image"}
    assert job(tmp_path, "echo no such image >&2; exit 125") == dict(failed, plain=failed)


def test_a_task_without_gpus(tmp_path):
    """Nothing limits this machine: the memory is what it asked for, and the container is
    not used.
    """
    told = job(
        tmp_path,
        'echo "$@" | head -n 1 | cut -c 1-60 >> %s/options; %s' % (tmp_path, TASK),
        image="trainyard/training:1",
    )["plain"]
    assert probe.BEYOND <= told.pop("memory") <= probe.BEYOND + 64
    assert told == {"devices": {}, "folders": [], "missing": [], "here": []}
    first, second = [
        line.split() for line in (tmp_path / "options").read_text(encoding="utf-8").splitlines()
    ]
    assert first[:3] == ["--quiet", "--ntasks=1", "trainyard-run"]
    assert second[:5] == [
        "--quiet",
        "--ntasks=1",
        "--gres=none",
        "--mem=%dM" % probe.LIMIT,
        "python3",
    ]


def test_a_task_that_slurm_ends_because_of_its_memory(tmp_path):
    # ulimit stands for the limit of a control group: Python gets no more memory.
    refused = job(tmp_path, "case $3 in --gres=none) ulimit -v 150000;; esac; %s" % TASK)["plain"]
    assert refused["memory"] == "refused" and refused["devices"] == {}


@pytest.mark.parametrize(
    "words, memory",
    [
        ("slurmstepd: error: Detected 1 oom_kill event", "killed"),
        ("srun: error: n1: task 0: Killed", "killed"),
        ("srun: error: lost the node", ""),
    ],
)
def test_a_task_that_ends_between_its_lines(tmp_path, words, memory):
    line = probe.MARK + json.dumps(
        {"devices": {"/dev/nvidia0": "EPERM"}, "missing": [], "folders": []}
    )
    told = job(tmp_path, "echo '%s'; echo '%s'; exit 137" % (line, words))["plain"]
    assert (told["devices"], told["memory"]) == ({"/dev/nvidia0": "EPERM"}, memory)


def test_what_becomes_of_memory(monkeypatch):
    assert probe.get_memory(8) >= 8
    monkeypatch.setattr(probe, "resident_mib", lambda: os.kill(os.getpid(), 9))
    assert probe.get_memory(1) == "killed"


def test_folders_of_jobs(tmp_path, monkeypatch):
    (tmp_path / "7").mkdir(mode=0o700)
    assert probe.folder_problem(str(tmp_path), "7") == (False, "") and probe.folder_problem(
        str(tmp_path), "8"
    ) == (True, "")
    (tmp_path / "7").chmod(0o755)
    assert "mode 0755" in probe.folder_problem(str(tmp_path), "7")[1]
    (tmp_path / "7").chmod(0o700)
    (tmp_path / "9").mkdir(mode=0o755)
    # Another job of the same person.
    assert probe.folder_problem(str(tmp_path), "7") == (False, "")
    monkeypatch.setattr(probe.os, "getuid", lambda: 4711)
    assert probe.folder_problem(str(tmp_path), "7") == (False, "%s/9 can be read" % tmp_path)


def test_devices_that_a_task_can_open(tmp_path):
    (tmp_path / "gpu0").symlink_to("/dev/null")
    (tmp_path / "gpuctl").symlink_to("/dev/null")
    (tmp_path / "npu1").symlink_to(tmp_path)
    assert probe.opened_devices([str(tmp_path / "gpu"), str(tmp_path / "npu")]) == {
        str(tmp_path / "gpu0"): "",
        str(tmp_path / "npu1"): "EISDIR",
    }
