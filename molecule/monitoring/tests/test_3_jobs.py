"""The cluster gets Slurm: the job of each GPU, its use in AdminComment, playbook usage, jobs
without use, and a drained node.
"""

from __future__ import annotations

import csv
import json
import re

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _usage

ROLE = "monitoring_server"
SLURM = {
    "cluster_scheduler": "slurm",
    "job_container_storage": "/var/spool/containers",
    "jobs_idle_gpu_minutes": 30,
}
OPS = ["ops@example.org"]
#: Device number and job of each GPU.
MARKED = "trainyard_gpu_info * on (instance, uuid) group_left () (trainyard_gpu_job == %s)"


class Queue:
    """Jobs of people, who submit them on the first host."""

    def __init__(self, front):
        self.front = front

    def submit(self, person, *options, command="sleep 3600"):
        words = "sbatch --parsable --chdir=/tmp --output=/tmp/%%j.log %s --wrap '%s'"
        text = words % (" ".join(options), command)
        return self.front.run("runuser -u %s -- %s" % (person, text)).strip()

    def pair(self, wait):
        """The numbers of two jobs on two GPUs each, of alice and of bob."""
        numbers = []
        for person in ("alice", "bob"):
            numbers.append(self.submit(person, "--gpus=2"))
            wait(lambda: self.state(numbers[-1]) == "RUNNING")
        return numbers

    def state(self, number):
        told = self.front.run("scontrol --oneliner show job " + number)
        return re.search(r"\bJobState=(\w+)", told).group(1)

    def seconds(self, number):
        """How long a job has been running."""
        command = "sacct --allocations --noheader --parsable2 --format=ElapsedRaw --jobs="
        return int(self.front.run(command + number) or 0)

    def summary(self, number):
        """What is kept of the use of a job, by the number that people see."""
        command = "sacct --allocations --noheader --parsable2 --format=AdminComment --jobs="
        return _usage.parse_summary(self.front.run(command + number).strip())

    def minors(self, number):
        """The device numbers that the metrics have for a job."""
        rows = self.front.query(MARKED % number)
        assert {row["metric"]["instance"] for row in rows} <= {"monitoring-b"}
        return sorted(int(row["metric"]["minor"]) for row in rows)

    def measure(self):
        """What the timer does each five minutes."""
        # systemd starts a unit five times in ten seconds at most.
        unit = "trainyard-usage.service"
        self.front.run("systemctl reset-failed %s && systemctl start %s" % (unit, unit))


@pytest.fixture(scope="module")
def queue(front, playbook):
    for name in ("scheduler.yml", "monitoring.yml"):
        done = playbook(name, **SLURM)
        assert done.code == 0, done.output
    # Minutes in place of half an hour.
    path = "/etc/trainyard/monitoring/usage.json"
    settings = json.loads(front.run("cat " + path))
    assert settings["idle_minutes"] == 30
    front.write(path, json.dumps(dict(settings, idle_minutes=1)))
    return Queue(front)


@pytest.fixture(scope="module")
def pair(other, queue, wait):
    """Two jobs on two GPUs each. The one of alice uses the first of its GPUs, the one of
    bob none.
    """
    other.gpus(busy=[0])
    return queue.pair(wait)


def test_each_job_is_on_its_gpus(front, other, queue, pair, wait):
    """Slurm counts 0 to 3, the device numbers are 0, 1, 3 and 4."""
    alice, bob = pair
    wait(lambda: queue.minors(alice) == [0, 1] and queue.minors(bob) == [3, 4])
    told = front.run("scontrol --details show job " + bob)
    assert "(IDX:2-3)" in told
    marks = other.run("cd /run/trainyard/gpus && grep --recursive . | sort")
    assert marks.split() == ["0:%s" % alice, "2101", "1:%s" % alice, "2101"] + [
        "3:%s" % bob,
        "2102",
        "4:%s" % bob,
        "2102",
    ]


def test_an_idle_job_is_told(front, queue, pair, received, wait):
    alice, bob = pair
    idle, mailed = wait(lambda: received.told("GpuAllocatedButIdle", slurm_job=bob), 240)
    # Its number, and nobody's name.
    assert set(idle) == {"alertname", "severity", "slurm_job"} and mailed == OPS
    told = json.loads(front.get("localhost:9090", "/api/v1/alerts")[1])["data"]["alerts"]
    summaries = [row["annotations"]["summary"] for row in told if "slurm_job" in row["labels"]]
    text = "job %s holds %s that it has not used for 2 hours"
    assert sorted(summaries) == sorted([text % (alice, "1 GPU"), text % (bob, "2 GPUs")])


def test_an_idle_job_is_warned_and_stopped(front, queue, pair, wait):
    alice, bob = pair
    mails = "cat /var/spool/sent_mail"

    def warned():
        queue.measure()
        return "Job %s, wrap: idle GPUs" % bob in front.run(mails)

    wait(warned)
    text = front.run(mails)
    assert "none of the 2 GPUs of job %s has been used for 1 minute." % bob in text
    assert "Job %s" % alice not in text and "bob" in text
    assert queue.state(bob) == "RUNNING"
    # Half an hour later.
    path = "/var/lib/trainyard/metrics/slurm/idle.json"
    told = json.loads(front.run("cat " + path))
    told[bob]["warned"] -= 1801
    front.run("echo '%s' > %s" % (json.dumps(told), path))
    queue.measure()
    wait(lambda: queue.state(bob) == "CANCELLED")
    assert queue.state(alice) == "RUNNING"


def test_the_use_of_ended_jobs(front, other, queue, pair, wait):
    """Of sbatch, of each task of an array, and of srun."""
    alice, bob = pair
    wait(lambda: queue.minors(bob) == [])
    array = queue.submit("bob", "--gpus=1", "--array=0-1", command="sleep 50")
    front.run(
        "systemd-run --unit=interactive --collect --property=User=alice srun --chdir=/tmp --job-name=by-hand --gpus=2 sleep 50"
    )
    other.gpus(busy=[0, 3])
    front.run("scancel " + alice)
    found = "sacct --allocations --noheader --parsable2 --format=JobID --name=by-hand --user=alice"
    by_hand = wait(lambda: front.run(found).strip())
    numbers = [alice, bob, array + "_0", array + "_1", by_hand]

    def measured():
        queue.measure()
        found = [queue.summary(number) for number in numbers]
        return found if all(found) else None

    first, second, *tasks, third = wait(measured, 400)
    assert (first["gpus"], first["seen"], first["used"]) == (2, 2, 1)
    assert 0.3 < first["use"] < 0.6 and 0.4 < first["idle"] < 0.7
    assert (second["seen"], second["used"], second["use"], second["idle"]) == (2, 0, 0, 1)
    assert second["stopped"] == 1 and "stopped" not in first
    # Each task has its own text: one used its GPU, and the other one had none in use.
    assert sorted(task["used"] for task in tasks) == [0, 1]
    assert [(task["gpus"], task["seen"]) for task in tasks] == [(1, 1), (1, 1)]
    assert (third["gpus"], third["seen"]) == (2, 2)


def summed_by_sreport(front):
    """The GPU seconds of each person since yesterday.

    sreport shows full hours that Slurm has summed. So Slurm sums the present hour now, and the clock of sreport is an hour ahead.
    """
    begin, end = front.run(
        "date --date yesterday +%Y-%m-%dT00:00:00; date --date '1 hour' +%Y-%m-%dT%H:00:00"
    ).split()
    front.run("sacctmgr --immediate rollup %s %s" % (begin, end))
    front.run(
        "cd /tmp && apt-get download libfaketime && dpkg-deb --extract libfaketime_*.deb ahead"
    )
    try:
        told = front.run(
            "LD_PRELOAD=$(echo /tmp/ahead/usr/lib/*/faketime/libfaketime.so.1) FAKETIME=+1h sreport --parsable2 --noheader --tres=gres/gpu -t Seconds"
            " cluster AccountUtilizationByUser start=%s end=%s format=login,used" % (begin, end)
        )
    finally:
        front.run("rm -r /tmp/ahead /tmp/libfaketime_*.deb")
    people = [line.split("|") for line in told.splitlines() if not line.startswith("|")]
    return {name: int(seconds) for name, seconds in people}


def test_playbook_usage(front, playbook, tmp_path, queue, pair):
    """The sums are those of Slurm's accounting, by job in sacct and by month in sreport."""
    done = playbook("usage.yml", monitoring_usage_dir=str(tmp_path / "usage"), **SLURM)
    assert (done.code, done.changed) == (0, 2), done.output
    paths = sorted((tmp_path / "usage").iterdir())
    assert [(path.suffix, path.stat().st_mode & 0o777) for path in paths] == [
        (".csv", 0o600),
        (".html", 0o600),
    ]
    with open(paths[0], encoding="utf-8") as stream:
        rows = {row["user"]: row for row in csv.DictReader(stream)}
    command = "sacct --allusers --allocations --noheader --parsable2 --starttime=2020-01-01 --format=User,ElapsedRaw,AllocTRES"
    hours, jobs = dict.fromkeys(rows, 0.0), dict.fromkeys(rows, 0)
    for line in front.run(command).splitlines():
        user, seconds, tres = line.split("|")
        gpus = re.search(r"gres/gpu=(\d+)", tres)
        hours[user] += int(seconds) * int(gpus.group(1)) / 3600
        jobs[user] += 1
    assert {name: int(row["jobs"]) for name, row in rows.items()} == jobs
    for name, row in rows.items():
        assert abs(float(row["gpu_hours"]) - hours[name]) < 0.0001 < hours[name], rows
    seconds = {name: round(3600 * float(row["gpu_hours"])) for name, row in rows.items()}
    assert summed_by_sreport(front) == seconds
    assert set(rows) == {"alice", "bob"} and float(rows["bob"]["gpu_hours_idle"]) > 0


def test_verify_notices_gpus_with_the_job_of_another(front, other, queue, wait, playbook):
    """As many GPUs as Slurm has given to each job, and not these."""
    alice, bob = queue.pair(wait)
    lists = {"monitoring-b": [0, 1, 3, 4]}
    asked = {
        "folder": "/etc/trainyard/monitoring/tls",
        "hosts": [{"name": "monitoring-b", "address": "172.30.112.22"}],
        "address": "172.30.112.21",
        "has_scheduler": True,
        "positions": lists,
    }

    def told():
        found = front.host.ansible(
            "trainyard.gpu.monitoring_proof", json.dumps(asked), check=False, become=True
        )
        assert (found["error"], found["jobs_error"]) == ("", "")
        return found["jobs"]

    exchange = "cd /run/trainyard/gpus && mv 1 kept && mv 3 1 && mv kept 3"
    wrong = [
        "job %s has the device numbers monitoring-b: 0, 1, and metrics of monitoring-b: 0, 3"
        % alice,
        "job %s has the device numbers monitoring-b: 3, 4, and metrics of monitoring-b: 1, 4" % bob,
    ]
    # Nothing is compared in the first two minutes of a job.
    wait(lambda: queue.minors(alice) == [0, 1] and queue.seconds(bob) > 125, 240)
    assert told() == []
    other.run(exchange)
    try:
        wait(lambda: told() == wrong, 240)
        playbook("verify.yml", verify_timeout=60, **SLURM)
    finally:
        other.run(exchange)
        # verify takes nodes out of service on which a check fails.
        for name in ("monitoring-a", "monitoring-b"):
            front.host.run("scontrol update nodename=%s state=resume" % name)
    report = front.run("cat /var/lib/trainyard/metrics/verify/verify.prom")
    assert 'check_passed{check="metrics-job",host="monitoring-a"} 0' in report, report
    wait(lambda: told() == [], 240)
    front.run("scancel %s %s" % (alice, bob))


def test_a_drained_node(front, queue, received, wait):
    front.run("scontrol update nodename=monitoring-b state=drain reason='a fan'")
    try:
        out, mailed = wait(lambda: received.told("NodeOutOfService", node="monitoring-b"), 240)
    finally:
        front.run("scontrol update nodename=monitoring-b state=resume")
    assert (out["reason"], out["by"], mailed) == ("a fan", "operator", OPS)


def test_a_person_sees_own_jobs_only(front, other, queue):
    """Also with Slurm: nothing of the metrics, and of the accounting only the own jobs."""
    for host, more in (
        (front, ["/run/trainyard-queue/queue.json", "/var/lib/trainyard/usage/accounts.json"]),
        (other, []),
    ):
        found = host.intrude("alice")
        parts = ("/monitoring/", "/metrics/", "/prometheus/", "/gpus/", "queue", "usage")
        files = [path for path in found["files"] if any(part in path for part in parts)]
        assert files == more, found["files"]
        assert found["answers"] == found["sockets"] == found["processes"] == []
    for path in ("/run/trainyard-queue/queue.json", "/var/lib/trainyard/usage/accounts.json"):
        text = front.run("cat " + path)
        assert "bob" not in text and "alice" not in text
    command = "runuser -u alice -- sacct --allusers --allocations --noheader --parsable2 --format=User,AdminComment"
    lines = front.run(command).splitlines()
    assert {line.partition("|")[0] for line in lines} == {"alice"}
    assert any("ty1:" in line for line in lines)
