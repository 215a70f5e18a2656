"""The jobs of make lab-slurm, without hosts: ssh and Slurm's commands are functions of the test."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import queue_demo
import report
from process import LabError

HOSTS = {"lab-a": "172.30.77.11", "lab-b": "172.30.77.12"}
QUEUE = [
    ["1", "anna", "vision", "RUNNING", "None", "lab-a"],
    ["2", "ben", "vision", "PENDING", "AssocGrpGRES", ""],
    ["3", "carla", "language", "RUNNING", "None", "lab-b"],
]
ENDED = [
    ["1", "anna", "vision", "COMPLETED", "0:0", "lab-a"],
    ["2", "ben", "vision", "COMPLETED", "0:0", "lab-a"],
    ["3", "carla", "language", "COMPLETED", "0:0", "lab-b"],
]


class Lab:
    """A queue that has what was submitted, and is empty after the third job."""

    hosts, key, known_hosts = HOSTS, "/state/key", "/state/known_hosts"

    def __init__(self, queue=None):
        self.queue, self.submitted = [list(row) for row in queue or QUEUE], 0

    def on(self, host, *argv):
        assert host == "lab-a"
        rows = (
            ENDED
            if argv[0] == "sacct"
            else self.queue[: self.submitted]
            if "%i|%u|%a|%T|%r|%N" in argv[-1]
            else []
        )
        return SimpleNamespace(stdout="".join("|".join(row) + "\n" for row in rows))


@pytest.fixture(name="people")
def fixture_people(monkeypatch):
    monkeypatch.setattr(queue_demo, "WAIT", 0.1)
    monkeypatch.setattr(queue_demo.time, "sleep", lambda seconds: None)
    logged = []

    def use(lab, printed=None):
        def run(*argv):
            lab.submitted += 1
            logged.append(argv)
            return SimpleNamespace(stdout=printed or "%d\n" % lab.submitted)

        monkeypatch.setattr(queue_demo, "run", run)
        return logged

    return use


def test_each_person_submits_a_job_and_one_waits_for_the_quota(people):
    lab, told = Lab(), []
    logged = people(lab)
    assert queue_demo.run_jobs(lab, told.append) == (QUEUE, ENDED)
    assert [argv[-2] for argv in logged] == [
        "anna@172.30.77.11",
        "ben@172.30.77.11",
        "carla@172.30.77.11",
    ]
    assert ["--gpus=%d " % gpus in argv[-1] for argv, gpus in zip(logged, (2, 1, 1))] == [True] * 3
    assert told == [
        "job 1 of anna: running",
        "job 2 of ben: pending, AssocGrpGRES",
        "job 3 of carla: running",
    ]


def test_a_job_that_does_not_wait_for_the_quota_is_a_failure(people):
    lab = Lab([QUEUE[0], QUEUE[1][:3] + ["RUNNING", "None", "lab-b"], QUEUE[2]])
    people(lab)
    with pytest.raises(
        LabError, match=r"job 2 of ben is RUNNING \(None\), expected PENDING \(AssocGrpGRES\)"
    ):
        queue_demo.run_jobs(lab, lambda text: None)


def test_a_refused_job_is_a_failure(people):
    lab = Lab()
    people(lab, "sbatch: error")
    with pytest.raises(
        LabError, match="sbatch of anna printed 'sbatch: error', expected the number of the job"
    ):
        queue_demo.run_jobs(lab, lambda text: None)


@pytest.mark.parametrize("told", [["", "lab-a\n", "lab-a\nlab-b\n"], ["lab-a\n"]])
def test_prometheus_reads_all_hosts(people, monkeypatch, told):
    """It starts, has read one host, and then both. Or it never reads the other one."""
    lab, answers = Lab(), list(told)
    people(lab)

    def on(host, *argv, check=True):
        assert (host, argv[:2], check) == ("lab-a", ("python3", "-c"), False)
        compile(argv[2], "program", "exec")
        return SimpleNamespace(stdout=answers.pop(0) if len(answers) > 1 else answers[0])

    monkeypatch.setattr(lab, "on", on, raising=False)
    if len(told) > 1:
        assert queue_demo.measured_hosts(lab) == ["lab-a", "lab-b"]
        return
    with pytest.raises(LabError, match="Prometheus reads lab-a, expected lab-a, lab-b"):
        queue_demo.measured_hosts(lab)


def test_one_of_them_trains_on_all_hosts(people):
    lab, told = Lab(), []
    logged = people(
        lab,
        "epoch 1 of 2: loss 0.3, test accuracy 0.9000\nepoch 2 of 2: loss 0.1, test accuracy 0.9722\n",
    )
    assert queue_demo.train(lab, "trainyard/training:1", told.append) == "0.9722"
    copied, started = logged
    assert copied[0] == "scp" and copied[-1] == "carla@172.30.77.11:/data1/share/user/carla/"
    assert all(queue_demo.pathlib.Path(path).is_file() for path in copied[-3:-1])
    assert (
        "srun --nodes=2 " in started[-1]
        and "trainyard-run trainyard/training:1 -- trainyard-launch torchrun digits_torchrun.py"
        in started[-1]
    )
    people(lab, "Killed\n")
    with pytest.raises(LabError, match="the job of carla printed no accuracy:\nKilled"):
        queue_demo.train(lab, "trainyard/training:1", told.append)


def test_summary():
    text = report.queue_summary(
        HOSTS, QUEUE, ENDED, "0.9722", ["  ssh anna@172.30.77.11"], {"lab": 10.4, "site.yml": 20.4}
    )
    assert text.endswith("\nlab: ok hosts=2 jobs=3 waited=1 accuracy=0.9722 seconds=31")
    assert (
        "\n2    ben     vision    PENDING  AssocGrpGRES\n" in text
        and "\n  ssh anna@172.30.77.11\n" in text
        and "docs/shared-cluster.md has your first job" in text
    )
    with pytest.raises(
        LabError, match="2 ben vision FAILED 1:0 lab-a; .*Expected 3 jobs with state COMPLETED"
    ):
        report.queue_summary(
            HOSTS,
            QUEUE,
            [ENDED[0], ["2", "ben", "vision", "FAILED", "1:0", "lab-a"], ENDED[2]],
            "",
            [],
            {},
        )
    with pytest.raises(LabError, match="sacct reports: no job"):
        report.queue_summary(HOSTS, QUEUE, [], "", [], {})
