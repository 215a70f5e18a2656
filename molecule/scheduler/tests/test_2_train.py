"""Jobs of role train in the queue: the real runner and the real salloc.

The rank is a sleep, because these hosts have no training container.
"""

from __future__ import annotations

import base64
import json
import shlex
import time

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils._train_plan import queue_command

ROLE = "train"
FOLDER = "/root/queue-test"
#: The runner and what it imports, as roles/train/tasks/run.yml sends them.
PROGRAM = (
    "roles/train/files/trainyard_job.py",
    "roles/train/files/_job_hang.py",
    "roles/train/files/_job_watch.py",
    "roles/train/files/_job_result.py",
    "plugins/module_utils/_files.py",
    "plugins/module_utils/_messages.py",
    "plugins/module_utils/_bandwidth.py",
    "plugins/module_utils/_launchers.py",
)
#: The runner with a shell of this host in place of ssh to the training container.
RUNNER = """import sys
sys.path.insert(0, "{0}")
import trainyard_job as job
job.CLUSTER = "{0}/cluster.json"
job.SSH = ["python3", "-c", "import os, sys; os.execvp('sh', ['sh', '-c', sys.argv[2]])"]
job.REPORT_SECONDS = 0
sys.exit(job.main(sys.argv[1:]))
""".format(FOLDER)
RANK = "#!/bin/sh\nexec sleep 3600.5\n"


class Train:
    """One job at a time on both hosts, as a unit of systemd."""

    def __init__(self, cluster):
        self.cluster, self.number = cluster, 0

    def place(self, name, text):
        path = "%s/%s" % (FOLDER, name)
        encoded = base64.b64encode(text.encode()).decode()
        self.cluster.on(self.cluster.head, "echo %s | base64 --decode > %s" % (encoded, path))

    def install(self):
        head = self.cluster.head
        self.cluster.on(head, "mkdir -p %s/bin" % FOLDER)
        for path in PROGRAM:
            self.place(path.split("/")[-1], (self.cluster.root / path).read_text(encoding="utf-8"))
        self.place("runner.py", RUNNER)
        self.place("bin/torchrun", RANK)
        self.cluster.on(head, "chmod 755 %s/bin/torchrun" % FOLDER)
        hosts = [{"name": head, "address": "127.0.0.1"}]
        told = {"head": head, "port": 1, "share": FOLDER, "container": "none", "hosts": hosts}
        self.place("cluster.json", json.dumps(told))

    @property
    def name(self):
        return "queue-test-%d" % self.number

    def start(self, *options):
        self.number += 1
        hosts = [{"name": name, "slots": 1} for name in self.cluster.hosts]
        spec = {
            "job_id": self.name,
            "launcher": "torchrun",
            "command": "true",
            "hosts": hosts[:1],
            "environment": {},
            "workdir": "/",
            "timeout": 0,
            "network": {"environment": {}, "interface": "", "notes": []},
            "start_timeout": 60,
            "controller": "auto",
            "queue": queue_command(hosts, self.name, 0, list(options)),
        }
        self.place(
            "start",
            "export TRAINYARD_JOB=%s PATH=%s/bin:$PATH\nexec python3 -B %s/runner.py run\n"
            % (shlex.quote(json.dumps(spec)), FOLDER, FOLDER),
        )
        self.cluster.on(
            self.cluster.head,
            "systemd-run --quiet --collect --unit={0} --property=StandardOutput=append:{1}/log "
            "--property=StandardError=append:{1}/log sh {1}/start".format(self.name, FOLDER),
        )

    def queued(self):
        """State of the job and who has submitted it."""
        told = self.cluster.on(
            self.cluster.head,
            "squeue --noheader --all --name=trainyard-%s --format='%%T %%u %%D %%i'" % self.name,
        ).out
        return told.split() or ["gone"]

    def runs(self):
        """Whether the rank runs."""
        return (
            self.cluster.on(self.cluster.head, "pgrep --full 'sleep 3600[.]5'", check=False).code
            == 0
        )

    def until(self, state):
        self.cluster.wait("the job is %s" % state, lambda: self.queued()[0] == state)

    def result(self):
        path = "%s/.trainyard/jobs/%s/result.json" % (FOLDER, self.name)
        self.cluster.wait(
            "the job has a result",
            lambda: self.cluster.on(self.cluster.head, "test -s " + path, check=False).code == 0,
        )
        return json.loads(self.cluster.on(self.cluster.head, "cat " + path).out)

    def is_over(self):
        """Nothing of the job is left, and others get its hosts."""
        self.cluster.wait(
            "the unit is gone",
            lambda: (
                self.cluster.on(
                    self.cluster.head, "systemctl is-active " + self.name, check=False
                ).code
                != 0
            ),
        )
        self.until("gone")
        assert (
            not self.runs()
            and self.cluster.on(self.cluster.head, "pgrep salloc", check=False).out == ""
        )
        self.cluster.idle()


@pytest.fixture(name="train")
def fixture_train(cluster):
    cluster.idle()
    train = Train(cluster)
    train.install()
    yield train
    cluster.on(
        cluster.head,
        "systemctl stop '%s*'; scancel --user=slurm; rm -rf %s" % ("queue-test-", FOLDER),
    )
    cluster.idle()


def test_a_job_waits_for_others_and_others_for_it(cluster, train):
    other = cluster.submit("ben", "--nodes=1", "--gpus=1", "--nodelist=" + cluster.peer)
    cluster.state_of(other, "RUNNING")
    train.start()
    train.until("PENDING")
    assert train.queued()[1:3] == ["slurm", "2"] and not train.runs()
    cluster.on(cluster.head, "scancel " + other)
    train.until("RUNNING")
    cluster.wait("the rank runs", train.runs)
    waiting = cluster.submit("ben", "--nodes=1", "--gpus=1")
    time.sleep(2)
    assert cluster.job(waiting)[0] == "PENDING"
    # The end of the rank is that of the job.
    cluster.on(cluster.head, "pkill --full 'sleep 3600[.]5'")
    cluster.state_of(waiting, "RUNNING")
    assert train.result()["exit_code"] == 143
    train.is_over()


def test_a_cancelled_job_ends_its_ranks(cluster, train):
    train.start("--qos=high")
    cluster.wait("the rank runs", train.runs)
    cluster.on(cluster.head, "scancel " + train.queued()[3])
    result = train.result()
    assert (
        result["exit_code"] == 143
        and "Slurm ended the job: it was cancelled" in result["problems"][0]
    )
    train.is_over()


def test_a_job_that_is_cancelled_while_it_waits_never_starts(cluster, train):
    cluster.state_of(cluster.submit("ben", "--nodes=2"), "RUNNING")
    train.start()
    train.until("PENDING")
    cluster.on(cluster.head, "scancel " + train.queued()[3])
    assert "Slurm gave the job no hosts" in train.result()["problems"][0]
    train.is_over()


STOP, KILL = "systemctl stop {0}", "systemctl kill --kill-who=main --signal=KILL {0}"


@pytest.mark.parametrize("how", [STOP, KILL])
def test_a_job_whose_runner_ends_gives_its_hosts_back(cluster, train, how):
    train.start()
    cluster.wait("the rank runs", train.runs)
    cluster.on(cluster.head, how.format(train.name))
    train.is_over()


@pytest.mark.acceptance
@pytest.mark.parametrize("how", [STOP, KILL])
def test_a_job_that_ends_while_it_waits_leaves_the_queue(cluster, train, how):
    cluster.state_of(cluster.submit("ben", "--nodes=2"), "RUNNING")
    train.start()
    train.until("PENDING")
    cluster.on(cluster.head, how.format(train.name))
    train.is_over()
