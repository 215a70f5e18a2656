"""A cluster under test: its playbooks as a user runs them, its hosts as nobody's Ansible
sees them.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
CONTAINER = "trainyard-training"
PORT = 12345
# A job: each rank prints the time, every second, for ever.
FOR_EVER = 'sh -c "while date +%s.%N; do sleep 1; done"'
# One bare module run on both hosts, where the limits of seconds were set.
MODULE_RUN_SECONDS = 0.19
# In a second run, of one host: what it sends is ssh's own traffic, what it receives is the modules
# as well. The training image is over a GB.
MOVED_BYTES = {"sent": 5e6, "received": 20e6}


class PlaybookRun(SimpleNamespace):
    """A run of ansible-playbook: code, text, wall seconds, and what the callback has counted."""

    def __repr__(self):
        """For a failed assertion: what the run failed with.

        Its text is too long for a report, which keeps only the ends.
        """
        errors = [
            line for line in self.text.splitlines() if line.startswith(("fatal: ", "[ERROR]: "))
        ]
        return "exit code %s after %.0f s%s" % (
            self.code,
            self.seconds,
            "".join("\n%.1500s" % error for error in errors[-2:]),
        )


class WholeCluster:
    root, container, port = ROOT, CONTAINER, PORT

    def __init__(self, name, subnet):
        """Two hosts <name>-a and <name>-b of lab/lab.py, beside those of `make lab`; what they
        leave lies in .cache/<name>.
        """
        self.name, self.subnet, self.state = name, subnet, ROOT / ".cache" / name
        self.inventory = self.state / "inventory"
        self.head, self.peer = self.hosts = ("%s-a" % name, "%s-b" % name)
        network = subnet.rpartition(".")[0]
        self.address = {self.head: "%s.11" % network, self.peer: "%s.12" % network}

    def lab(self, command, *arguments):
        subprocess.run(
            [
                sys.executable,
                "lab/lab.py",
                command,
                "--name",
                self.name,
                "--subnet",
                self.subnet,
                "--state",
                str(self.state / "state"),
                *arguments,
            ],
            cwd=ROOT,
            check=True,
        )

    def on(self, host, command, check=True):
        """A shell command on a host, as root, by the machine's Docker engine: Ansible and ssh play
        no part.
        """
        done = subprocess.run(
            ["docker", "exec", host, "sh", "-c", command],
            text=True,
            errors="replace",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(
                "%s: %s: exit code %d\n%s%s"
                % (host, command, done.returncode, done.stdout, done.stderr)
            )
        return SimpleNamespace(
            code=done.returncode, out=done.stdout, text=done.stdout + done.stderr
        )

    def inside(self, host, command, check=True):
        """A shell command in a host's training container."""
        return self.on(
            host, "docker exec -i %s sh -c '%s'" % (CONTAINER, command.replace("'", "'\\''")), check
        )

    def inspect(self, host, name=CONTAINER):
        return json.loads(self.on(host, "docker inspect %s" % name).out)[0]

    def layers(self, host):
        return self.inspect(host, self.inspect(host)["Image"])["RootFS"]["Layers"]

    def environment(self, **more):
        """Of a user, with the counter of module runs, and without what Molecule has put into this
        one.
        """
        clean = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("ANSIBLE_", "MOLECULE_"))
        }
        return dict(
            clean,
            PATH="%s:%s" % (BIN, os.environ["PATH"]),
            ANSIBLE_NOCOLOR="1",
            PYTHONUNBUFFERED="1",
            TRAINYARD_RUNS=str(self.state / "runs.jsonl"),
            ANSIBLE_CALLBACK_PLUGINS=str(ROOT / "tests/callback"),
            ANSIBLE_CALLBACKS_ENABLED="module_runs",
            **more,
        )

    def start(self, name, *arguments, output, cwd=ROOT, environment=None):
        """Start ansible-playbook as a user would."""
        command = [str(BIN / "ansible-playbook"), name, "-i", str(self.inventory)]
        command += [
            json.dumps(argument) if isinstance(argument, dict) else argument
            for argument in arguments
        ]
        print("\n$ ansible-playbook %s" % " ".join(command[1:]), flush=True)
        return subprocess.Popen(
            command,
            cwd=cwd,
            env=self.environment(**(environment or {})),
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def playbook(self, name, *arguments, **options):
        """Run ansible-playbook, its lines on the terminal while it runs."""
        record = self.state / "runs.jsonl"
        record.unlink(missing_ok=True)
        begun, text = time.monotonic(), []
        with self.start(name, *arguments, output=subprocess.PIPE, **options) as process:
            for line in process.stdout:
                print(line, end="", flush=True)
                text.append(line)
        seconds = time.monotonic() - begun
        records = (
            [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
            if record.exists()
            else []
        )
        changed = {
            host: tasks for entry in records for host, tasks in entry["changed"].items() if tasks
        }
        runs = {host: len(tasks) for entry in records for host, tasks in entry["runs"].items()}
        count = sum(entry["tasks"] for entry in records)
        slowest = [pair for entry in records for pair in entry["slowest"]]
        return PlaybookRun(
            code=process.returncode,
            text="".join(text),
            seconds=seconds,
            changed=changed,
            runs=runs,
            tasks=count,
            slowest=slowest,
        )

    def site(self, *arguments):
        return self.playbook("site.yml", *arguments)

    @contextlib.contextmanager
    def made(self, *arguments):
        """New hosts, on which site.yml has run with these arguments; removed at the end."""
        self.lab("down", "--keep")
        self.lab("up", "--inventory", str(self.inventory))
        try:
            assert self.site(*arguments).code == 0
            yield self
        finally:
            self.lab("down", "--keep")

    @contextlib.contextmanager
    def serving(self, folder):
        """A web server on the head with a folder, which is removed at the end; yields its address
        for the head itself.
        """
        server = (
            "cd %s && { setsid python3 -m http.server 8123 --bind 127.0.0.1 > /dev/null 2>&1 & }"
        )
        self.on(self.head, server % folder + "; sleep 1")
        try:
            yield "http://127.0.0.1:8123"
        finally:
            self.on(self.head, "pkill -f 'http.server 812[3]'; rm -r %s" % folder)

    def moved_bytes(self):
        """Bytes that each host has sent and received on the cluster network, by (host, way)."""
        return {
            (host, way): int(
                self.on(host, "cat /sys/class/net/eth0/statistics/%s_bytes" % name).out
            )
            for host in self.hosts
            for way, name in (("sent", "tx"), ("received", "rx"))
        }

    def module_run_seconds(self, count=20):
        """What a bare module run on all hosts costs on this machine, now: `count` of them more in a
        play, and how much longer it takes.
        """
        seconds = []
        for runs in (1, 1 + count):
            play = {
                "hosts": "cluster",
                "gather_facts": False,
                "tasks": [{"ansible.builtin.stat": {"path": "/"}}] * runs,
            }
            path = self.state / "module_runs.yml"
            path.write_text(json.dumps([play]), encoding="utf-8")
            seconds.append(self.playbook(str(path)).seconds)
        return (seconds[1] - seconds[0]) / count

    def last_job(self, name="result.json"):
        """A file of the newest job on the share."""
        return json.loads(
            self.on(
                self.head, "cat $(ls -td /data1/share/.trainyard/jobs/*/ | head -n 1)%s" % name
            ).out
        )

    def left_alive(self, job_id):
        """The processes of a job on all hosts, found by the job ID in their environment."""
        script = (
            "grep --files-with-matches --null-data '^TRAINYARD_JOB_ID=%s$' /proc/[0-9]*/environ 2>/dev/null || true"
            % job_id
        )
        return {host: self.on(host, script).out.split() for host in self.hosts}

    def last_report(self):
        """What verify.yml has left last, beside the inventory."""
        return json.loads(
            max(self.inventory.glob(".trainyard/reports/*/report.json")).read_text(encoding="utf-8")
        )

    def wait(self, what, seconds, condition):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "not within %d s: %s" % (seconds, what)
            time.sleep(0.5)

    def login(self, source, target):
        """ssh from one host's container to another's, as a job does it."""
        return self.inside(
            source, "ssh -o BatchMode=yes -p %d %s hostname" % (PORT, target), check=False
        )
