"""The cluster of this scenario: two hosts with kernels of their own, and what people do on them."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest
from left_to_acceptance import pytest_collection_modifyitems
from virtual_cluster import VirtualCluster

__all__ = ["pytest_collection_modifyitems"]

ROOT = Path(__file__).resolve().parents[3]
STORAGE = "/var/lib/trainyard/containers"
IMAGE = "localhost/site/small:1"
# Opens each device node of a GPU and prints the errors in the order of their numbers.
OPEN_GPUS = """
import errno, os
for number in range(4):
    try:
        os.close(os.open("/dev/nvidia%d" % number, os.O_RDWR))
        print("open", end=" ")
    except OSError as error:
        print(errno.errorcode[error.errno], end=" ")
print(os.environ.get("CUDA_VISIBLE_DEVICES", "-"))
"""


class Cluster(VirtualCluster):
    def __init__(self):
        super().__init__("svm", "172.30.103.0/24", ROOT / ".cache/scheduler_vm/state")
        self.state = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"])
        # The first host of VirtualCluster serves the share. Jobs of these tests run on the other
        # one.
        self.inventory = ROOT / ".cache/scheduler_vm/inventory"

    def play(self, name, **variables):
        return self.playbook(
            "playbooks/" + name,
            "-i",
            os.environ["MOLECULE_INVENTORY_FILE"],
            "--extra-vars",
            json.dumps(variables),
        )

    def as_person(self, person, command, host=None, check=True, timeout=600):
        return self.on(
            host or self.head,
            "cd /tmp && su %s -c %s" % (person, shlex.quote(command)),
            check,
            timeout,
        )

    def put(self, name, text):
        """A file that jobs read."""
        path = "/data1/share/" + name
        self.on(self.head, "cat > %s << 'END'\n%s\nEND\nchmod a+r %s" % (path, text, path))
        return path

    def submit(self, person, command, *options, gpus=1, memory=200):
        """The number of a new batch job on the peer. Its output is in output()."""
        words = [
            "sbatch",
            "--parsable",
            "--nodelist=" + self.peer,
            "--gpus=%d" % gpus,
            "--mem=%dM" % memory,
            "--output=/data1/share/user/%s/%%j.out" % person,
            *options,
            "--wrap",
            command,
        ]
        return self.as_person(person, shlex.join(words)).out.strip()

    def in_container(self, person, command, *options, **more):
        return self.submit(
            person,
            "exec srun trainyard-run %s -- sh -c %s" % (IMAGE, shlex.quote(command)),
            *options,
            **more,
        )

    def output(self, person, number):
        return self.on(
            self.head, "cat /data1/share/user/%s/%s.out" % (person, number), check=False
        ).out

    def job(self, number):
        """State and reason of a job."""
        told = self.on(self.head, "scontrol --oneliner show job " + number).out
        return tuple(
            re.search(r"\b%s=(\S*)" % key, told).group(1) for key in ("JobState", "Reason")
        )

    def gpus(self, number):
        """The numbers of the GPUs of a job."""
        told = re.search(
            r"GRES=\S*IDX:([\d,-]+)\)",
            self.on(self.head, "scontrol --details --oneliner show job " + number).out,
        ).group(1)
        pairs = [part.partition("-") for part in told.split(",")]
        return [
            index
            for first, _dash, last in pairs
            for index in range(int(first), int(last or first) + 1)
        ]

    def restarts(self, number):
        return int(
            re.search(
                r"\bRestarts=(\d+)",
                self.on(self.head, "scontrol --oneliner show job " + number).out,
            ).group(1)
        )

    def reaches(self, number, *states, seconds=120):
        self.wait(
            "job %s is %s" % (number, " or ".join(states)),
            seconds,
            lambda: self.job(number)[0] in states,
        )

    def says(self, person, number, word, seconds=120):
        self.wait(
            "job %s prints %s" % (number, word),
            seconds,
            lambda: word in self.output(person, number),
        )

    def node(self, host):
        return self.on(self.head, "sinfo --noheader --nodes=%s --format %%T" % host).out.strip()

    def idle(self, seconds=240):
        # A virtual host has one CPU, and several jobs run on it.
        self.on(
            self.head,
            "scancel --full --user=anna; scancel --full --user=ben; scontrol update partitionname=train oversubscribe=FORCE:4",
        )
        self.wait(
            "all nodes are idle",
            seconds,
            lambda: {self.node(host) for host in self.hosts} == {"idle"},
        )

    def left(self, person, host=None):
        """What is left of a person's jobs on a host: processes, files, mounts and control
        groups.
        """
        return self.on(
            host or self.peer,
            """
pgrep --list-full --uid {0} | cut -c1-150
find /tmp /var/tmp /dev/shm /run/trainyard/jobs /run/user {1}/jobs -mindepth 1 -user {0} 2> /dev/null
ls {1}/jobs
grep fuse-overlay /proc/mounts
find /sys/fs/cgroup -type d -name 'job_*'
true""".format(person, STORAGE),
        ).out.strip()


@pytest.fixture(scope="session")
def cluster():
    return Cluster()
