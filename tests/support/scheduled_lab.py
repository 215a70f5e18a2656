"""Two hosts of the lab that share a queue: for `make bench`, which measures what Slurm and its
containers cost.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys

from whole_cluster import BIN, ROOT, WholeCluster

sys.path.insert(0, str(ROOT / "lab"))

import images  # the path has to be there first
import inventory
import machine
from hosts import Lab

IMAGE = "bench/tools:1"
STORE = "/var/lib/trainyard/containers"
PEOPLE = ["person%02d" % number for number in range(1, 21)]
PODMAN = "podman --root %s/images --runroot /run/trainyard/images --storage-driver overlay" % STORE
# Prints the seconds of each of COUNT runs of a command, as a list. Without a shell, whose start
# would count.
TIMED = """
import json, subprocess, sys, time
seconds = []
for _ in range(int(sys.argv[1])):
    begun = time.monotonic()
    subprocess.run(sys.argv[2:], check=True, stdout=subprocess.DEVNULL)
    seconds.append(time.monotonic() - begun)
print(json.dumps(seconds))
"""


class ScheduledLab(WholeCluster):
    """Hosts <name>-a, which is scheduler, login host and training host, and <name>-b."""

    def up(self):
        cache = ROOT / ".lab" / "cache"
        self.state.mkdir(parents=True, exist_ok=True)
        engine = machine.Engine(cache)
        engine.ensure()
        image = images.host_image(engine, cache, self.state / "image.log")
        self.own = Lab(engine, self.name, self.subnet, self.state / "state", 2, job_gpus=4)
        self.own.state.mkdir(parents=True, exist_ok=True)
        self.own.check_owner()
        # Of a bench that was killed.
        self.own.down()
        self.own.up(image)
        pip = subprocess.run(
            [str(BIN / "pip"), "config", "list"], capture_output=True, text=True, check=True
        ).stdout
        variables = {
            **inventory.package_sources(os.environ, inventory.parse_pip_config(pip)),
            "cluster_scheduler": "slurm",
            "slurm_gpu_type": "demo",
            "slurm_node_hardware": {"cpus": 8, "real_memory": 4000},
            "slurm_accept_no_limits": True,
            "slurm_accept_login_on_gpu_hosts": True,
            "shared_storage_backend": "existing",
            "shared_storage_trees": [{"path": "/data1/share/user", "of": "users"}],
            "shared_storage_users": [
                {"name": name, "uid": 2000 + number} for number, name in enumerate(PEOPLE, 1)
            ],
            "slurm_accounts": [
                {"name": "group%d" % number, "members": PEOPLE[number::4]} for number in range(4)
            ],
            "job_container_training_image": False,
            "job_container_free_gib": 0,
        }
        inventory.write(self.inventory / "hosts.yml", inventory.hosts_file(self.own))
        inventory.write(
            self.inventory / "group_vars/cluster/bench.yml", inventory.to_yaml(variables)
        )

    @contextlib.contextmanager
    def made(self):
        self.up()
        try:
            yield self
        finally:
            if not os.environ.get("KEEP"):
                self.own.down()

    def as_person(self, person, command):
        assert "'" not in command
        return self.on(self.head, "cd /tmp && su %s -c '%s'" % (person, command)).out.strip()

    def make_image(self):
        """An image in the store of both hosts, from the host's own shell and tools."""
        script = (ROOT / "molecule/job_container/make_image.sh").read_text(encoding="utf-8")
        for host in self.hosts:
            self.on(host, "mkdir -p /run/trainyard")
            subprocess.run(
                [
                    "docker",
                    "exec",
                    "--interactive",
                    host,
                    "sh",
                    "-s",
                    IMAGE,
                    PODMAN + " import --quiet",
                ],
                input=script,
                text=True,
                check=True,
            )
            self.on(host, "chmod -R a+rX,go-w,ug-s %s/images" % STORE)

    def first_line_seconds(self, person, command, count=7):
        """Seconds from sbatch to the first line of a job, which prints the time.

        All clocks are that of this machine.
        """
        seconds = []
        # Not in /tmp, where the epilog removes what the person has left.
        output = "/data1/share/user/%s/first-" % person
        for _attempt in range(count):
            submit = 'sbatch --parsable --nodelist=%s --output=%s%%j --wrap "%s date +%%s.%%N"' % (
                self.head,
                output,
                command,
            )
            begun, number = self.as_person(person, "date +%s.%N; " + submit).split()
            asked = "squeue --noheader --jobs=%s 2> /dev/null" % number
            self.wait(
                "job %s has ended" % number,
                120,
                lambda asked=asked: not self.on(self.head, asked, False).out,
            )
            printed = self.on(self.head, "cat %s%s" % (output, number)).out.split()
            assert len(printed) == 1, "the job printed %s" % printed
            seconds.append(float(printed[0]) - float(begun))
        return statistics.median(seconds)

    def timed(self, count, *command):
        """Median and maximum of the seconds of a command on the scheduler."""
        done = subprocess.run(
            ["docker", "exec", "--interactive", self.head, "python3", "-", str(count), *command],
            input=TIMED,
            text=True,
            capture_output=True,
            check=True,
        )
        seconds = json.loads(done.stdout)
        return statistics.median(seconds), max(seconds)

    def memory_mib(self, process):
        return (
            int(
                self.on(
                    self.head, "awk '/^VmRSS:/ {print $2}' /proc/$(pidof -s %s)/status" % process
                ).out
            )
            / 1024
        )

    def plan_seconds(self, people=500):
        """Seconds in which module slurm_accounts applies a plan, and finds it unchanged.

        Without Ansible's own start.
        """
        accounts = [
            {
                "name": "plan%02d" % number,
                "gpus": 8,
                "max_gpus_per_person": 2,
                "members": ["planned%03d" % person for person in range(number, people, 20)],
            }
            for number in range(20)
        ]
        module = {
            "cluster": "trainyard",
            "accounts": accounts,
            "record": "/var/lib/trainyard/bench.json",
        }
        names = ("Apply the plan", "Find the plan unchanged", "Remove the plan")
        tasks = [
            {"name": names[0], "trainyard.gpu.slurm_accounts": module},
            {"name": names[1], "trainyard.gpu.slurm_accounts": module},
            {"name": names[2], "trainyard.gpu.slurm_accounts": dict(module, accounts=[])},
        ]
        path = self.state / "plan.yml"
        path.write_text(
            json.dumps(
                [{"hosts": self.head, "gather_facts": False, "become": True, "tasks": tasks}]
            ),
            encoding="utf-8",
        )
        run = self.playbook(str(path))
        assert run.code == 0 and run.changed == {self.head: [names[0], names[2]]}, run
        seconds = {name: spent for spent, name in run.slowest}
        return seconds[names[0]], seconds[names[1]]
