"""Program job_usage: the use of ended jobs goes into Slurm, once, and jobs that leave all of their
GPUs idle are warned and then stopped.
"""

from __future__ import annotations

import datetime
import json
import os

import pytest
from test_readers import load

from ansible_collections.trainyard.gpu.plugins.module_utils import _slurm, _usage

job_usage = load("job_usage")
NOW = datetime.datetime(2026, 11, 26, 12, tzinfo=datetime.timezone.utc).timestamp()
SETTINGS = {"interval": 15, "idle_minutes": 0, "mail": False, "people_see": "own"}
FIELDS = [*_slurm.FINISHED_FIELDS[:-1], "AdminComment", "ExitCode"]
KINDS = {
    "measured_seconds_total": 3600,
    "use_seconds_total": 1800,
    "busy_seconds_total": 3600,
    "energy_joules_total": 720000,
    "memory_max_bytes": 8 << 30,
}


def ended(number, raw=None, **values):
    known = {
        "JobID": number,
        "JobIDRaw": raw or number,
        "User": "anna",
        "Account": "vision",
        "QOS": "normal",
        "Partition": "train",
        "State": "COMPLETED",
        "Submit": "2026-11-26T10:00:00",
        "Start": "2026-11-26T10:00:00",
        "End": "2026-11-26T11:00:00",
        "ElapsedRaw": "3600",
        "NodeList": "a",
        "AllocTRES": "cpu=4,gres/gpu=2,mem=4G,node=1",
        "Reason": "None",
        "JobName": "first",
        "Comment": "",
        "AdminComment": "",
        "ExitCode": "0:0",
    }
    return "@".join(dict(known, **values)[field] for field in FIELDS) + "\n"


def running(number, gpus=2, **values):
    known = dict.fromkeys(_slurm.JOB_FIELDS, "")
    known.update(JobID=str(number), ArrayJobID=str(number), ArrayTaskID="N/A", HetJobID="0")
    known.update(UserName="anna", Account="vision", State="RUNNING", NumNodes="1", NodeList="a")
    known.update({"tres-alloc": "cpu=1,mem=1M,node=1,gres/gpu=%d" % gpus})
    known.update(PriorityLong="1", TimeLimit="8:00:00", RestartCnt="0", Name="first")
    return "".join(dict(known, **values)[field] + "@" for field in _slurm.JOB_FIELDS) + "\n"


class Cluster:
    """Stand-ins for Slurm's commands and for Prometheus."""

    def __init__(self, folder, monkeypatch):
        self.ended = self.queue = ""
        self.asked, self.mails, self.refused, self.moments = [], [], set(), []
        self.answers = {}
        self.mail_program = folder / "mail"
        self.mail_program.write_text("", encoding="utf-8")
        self.mail_program.chmod(0o755)
        monkeypatch.setattr(job_usage, "ask", self.ask)
        monkeypatch.setattr(job_usage, "query", self.query)
        monkeypatch.setattr(job_usage, "STATE", str(folder / "idle.json"))
        monkeypatch.setattr(job_usage, "ACCOUNTS", str(folder / "accounts.json"))

    def ask(self, command, text=None):
        words = " ".join(command)
        if command[0] == "sacct":
            sign = next(word for word in command if word.startswith("--delimiter=")).split("=")[1]
            return self.ended.replace("@", sign)
        if command[0] == "squeue":
            return self.queue.replace("@", command[-1].split(",")[0].rpartition(":")[2])
        if words == "scontrol show config":
            return "ClusterName = c\nMailProg                = %s\n" % self.mail_program
        if command[0] == str(self.mail_program):
            self.mails.append((command[1:], text))
            return ""
        if any(part in words for part in self.refused):
            raise job_usage.NoAnswer("refused")
        self.asked.append(words)
        return ""

    def query(self, expression, moment):
        self.moments.append(moment)
        if self.answers is None:
            raise job_usage.NoAnswer("Prometheus: no")
        return next((rows for part, rows in self.answers.items() if part in expression), [])

    def measured(self, number, gpus=2, **kinds):
        self.answers["trainyard_gpu_job == %d)" % number] = [
            {
                "metric": {"instance": "a", "uuid": "GPU-%d" % gpu, "kind": kind},
                "value": [NOW, str(value)],
            }
            for gpu in range(gpus)
            for kind, value in dict(KINDS, **kinds).items()
        ]

    def comments(self):
        begin = "sacctmgr --immediate modify job where jobid="
        rows = [line[len(begin) :].split(" set admincomment=") for line in self.asked]
        return dict(row for row in rows if len(row) == 2)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    return Cluster(tmp_path, monkeypatch)


def test_each_ended_job_gets_its_use_once(cluster):
    cluster.ended = (
        ended("7")
        # A task of an array, whose plain number may be that of all tasks.
        + ended("9_0", "9")
        + ended("8", AdminComment="ty1:gpus=2,seen=0")
        # Still runs, has no GPU, has just ended, never ran.
        + ended("10", End="Unknown", State="RUNNING")
        + ended("11", AllocTRES="cpu=4,node=1")
        + ended("12", End="2026-11-26T11:59:00")
        + ended("13", Start="Unknown", State="CANCELLED", AllocTRES="")
    )
    cluster.measured(7)
    job_usage.write_summaries(SETTINGS, NOW)
    assert cluster.comments() == {
        "7": "ty1:gpus=2,seen=2,used=2,hours=2,use=0.5,idle=0,mem=8,kwh=0.4",
        "9_0": "ty1:gpus=2,seen=0",
    }
    # Asked for the time of the end, and not for now.
    assert {round(NOW - moment) for moment in cluster.moments} == {3570}
    assert cluster.mails == []


def test_without_prometheus_nothing_is_written(cluster):
    cluster.ended, cluster.answers = ended("7"), None
    with pytest.raises(job_usage.NoAnswer):
        job_usage.write_summaries(SETTINGS, NOW)
    assert cluster.asked == []


def test_one_job_that_slurm_refuses_keeps_no_other_waiting(cluster):
    cluster.ended, cluster.refused = ended("7") + ended("8"), {"jobid=7 "}
    with pytest.raises(job_usage.NoAnswer, match="job 7: refused"):
        job_usage.write_summaries(SETTINGS, NOW)
    assert list(cluster.comments()) == ["8"]


def test_a_gpu_that_was_lost_before_the_end(cluster):
    """Its sums are older than those of the other one."""
    cluster.ended = ended("7")
    cluster.measured(7, gpus=1)
    late = cluster.answers.pop("trainyard_gpu_job == 7)")
    cluster.measured(7, gpus=2)
    cluster.answers = {"[600s:15s]": late, **cluster.answers}
    job_usage.write_summaries(SETTINGS, NOW)
    assert cluster.comments()["7"].startswith("ty1:gpus=2,seen=2,")


def test_idle_gpus_are_told_by_mail_at_the_end(cluster):
    cluster.ended = ended("7", JobName="a\nb") + ended("8", ElapsedRaw="60")
    cluster.measured(7, busy_seconds_total=0, use_seconds_total=0)
    cluster.measured(8, busy_seconds_total=0, use_seconds_total=0)
    job_usage.write_summaries(dict(SETTINGS, mail=True), NOW)
    [(words, text)] = cluster.mails
    assert words == ["-s", "Job 7, a?b: use of GPUs", "anna"]
    assert "0 of 2 GPUs used" in text and "its GPUs were never used" in text


IDLE = "count by (slurm_job)"


def idle(cluster, **counts):
    cluster.answers[IDLE] = [
        {"metric": {"slurm_job": name[1:]}, "value": [NOW, str(count)]}
        for name, count in counts.items()
    ]


def test_idle_jobs_are_warned_and_then_stopped(cluster):
    settings = dict(SETTINGS, idle_minutes=60)
    cluster.queue = (
        running(7)
        # Uses one of two GPUs; an instance; of the collection; waits.
        + running(8)
        + running(9, Comment="trainyard instance: main")
        + running(10, Account=_slurm.TRAIN_ACCOUNT)
        + running(11, State="SUSPENDED")
    )
    idle(cluster, _7=2, _8=1, _9=2, _10=2, _11=2)
    job_usage.end_idle_jobs(settings, NOW)
    assert cluster.asked == [
        "scontrol notify 7 trainyard: none of the 2 GPUs of job 7 has been used for 60 minutes. The job is stopped in 30 minutes unless it uses one"
    ]
    assert [words[1] for words, _text in cluster.mails] == ["Job 7, first: idle GPUs"]
    job_usage.end_idle_jobs(settings, NOW + 1700)
    assert len(cluster.asked) == 1
    job_usage.end_idle_jobs(settings, NOW + 1900)
    assert cluster.asked[-1] == "scancel 7" and len(cluster.mails) == 2
    # Its summary says why it has ended.
    cluster.ended = ended("7")
    job_usage.write_summaries(settings, NOW + 2000)
    assert cluster.comments() == {"7": "ty1:gpus=2,seen=0,stopped=60"}
    assert _usage.notes(_usage.parse_summary("ty1:gpus=2,seen=0,stopped=60"))


def test_the_words_for_one_gpu_and_one_minute(cluster):
    one = {"id": 7, "gpus": 1, "name": "first", "user": "ann"}
    assert job_usage.warning(one, 1) == (
        "the GPU of job 7 has not been used for 1 minute. The job is stopped in 30 minutes unless it uses it"
    )


def test_a_job_that_uses_a_gpu_again_is_warned_anew(cluster):
    settings = dict(SETTINGS, idle_minutes=60)
    cluster.queue = running(7)
    for moment, count in ((0, 2), (600, 1), (2400, 2)):
        idle(cluster, _7=count)
        job_usage.end_idle_jobs(settings, NOW + moment)
    assert [line.split()[1] for line in cluster.asked] == ["notify", "notify"]


def test_no_limit_asks_nobody(cluster):
    cluster.answers = None
    job_usage.end_idle_jobs(SETTINGS, NOW)
    assert not os.path.exists(job_usage.STATE)


def test_the_sums_of_accounts_name_nobody(cluster):
    cluster.ended = ended("7") + ended("8", User="ben")
    job_usage.publish_accounts(SETTINGS, NOW)
    assert not os.path.exists(job_usage.ACCOUNTS)
    job_usage.publish_accounts(dict(SETTINGS, people_see="occupancy"), NOW)
    text = open(job_usage.ACCOUNTS, encoding="utf-8").read()
    [row] = json.loads(text)["accounts"]
    assert (row["account"], row["jobs"], row["gpu_hours"]) == ("vision", 2, 4.0)
    assert "anna" not in text and "ben" not in text
    assert os.stat(job_usage.ACCOUNTS).st_mode & 0o777 == 0o644
