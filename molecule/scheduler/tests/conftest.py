"""The cluster of this scenario: its hosts, what people do on them, and its playbooks once more."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import testinfra
from left_to_acceptance import pytest_collection_modifyitems

__all__ = ["pytest_collection_modifyitems"]

ROOT = Path(__file__).resolve().parents[3]
NAME = os.environ["MOLECULE_SCENARIO_NAME"].replace("_", "-")
EPHEMERAL = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"])


class Cluster:
    head, peer = hosts = (NAME + "-a", NAME + "-b")
    root, ephemeral = ROOT, EPHEMERAL
    # The site had a database server and munge before the first run (prepare.yml).
    has_site_services = NAME == "scheduler-trixie"

    def sql(self, statement):
        return self.on(
            self.head, 'mariadb --batch --skip-column-names --execute "%s"' % statement
        ).out

    def on(self, host, command, check=True):
        """A shell command on a host as root."""
        done = testinfra.get_host("docker://" + host).run(command)
        assert not check or done.rc == 0, "%s: %s: exit code %d\n%s%s" % (
            host,
            command,
            done.rc,
            done.stdout,
            done.stderr,
        )
        return SimpleNamespace(
            code=done.rc, out=done.stdout.strip(), text=(done.stdout + done.stderr).strip()
        )

    def as_person(self, person, command, host=None, check=True):
        assert "'" not in command
        return self.on(host or self.head, "cd /tmp && su %s -c '%s'" % (person, command), check)

    def submit(self, person, *options, command="sleep 3600"):
        """The number of a new job, which sleeps if no command is given."""
        done = self.as_person(
            person,
            'sbatch --parsable --output=/dev/null %s --wrap "%s"' % (" ".join(options), command),
        )
        assert done.out.isdigit(), done.text
        return done.out

    def refused(self, person, *options):
        done = self.as_person(
            person,
            'sbatch --parsable --output=/dev/null %s --wrap "sleep 1"' % " ".join(options),
            check=False,
        )
        assert done.code != 0, "job %s was accepted" % done.text
        return done.text

    def job(self, number):
        """State, reason and hosts of a job."""
        told = self.on(self.head, "scontrol --oneliner show job " + number).out
        return tuple(
            re.search(r"\b%s=(\S*)" % key, told).group(1)
            for key in ("JobState", "Reason", "NodeList")
        )

    def wait(self, what, condition, seconds=60):
        deadline = time.monotonic() + seconds
        while True:
            found = condition()
            if found:
                return found
            assert time.monotonic() < deadline, "not after %d s: %s" % (seconds, what)
            time.sleep(1)

    def state_of(self, number, *states, seconds=60):
        self.wait(
            "job %s is %s" % (number, " or ".join(states)),
            lambda: self.job(number)[0] in states,
            seconds,
        )
        return self.job(number)

    def nodes(self):
        return dict(
            line.split()
            for line in self.on(
                self.head, "sinfo --noheader --Node --format '%N %T'"
            ).out.splitlines()
        )

    def idle(self, seconds=90):
        self.on(self.head, "scancel --full --user=anna; scancel --full --user=ben")
        self.wait("all nodes are idle", lambda: set(self.nodes().values()) == {"idle"}, seconds)

    def module(self, host, name, arguments):
        """The result of a module of the collection, as the playbooks run it."""
        return testinfra.get_host(
            "ansible://" + host, ansible_inventory=os.environ["MOLECULE_INVENTORY_FILE"]
        ).ansible("trainyard.gpu." + name, arguments, check=False, become=True)

    def playbook(self, name, *arguments, **variables):
        """A run of a playbook: exit code, text, and what the callback has counted."""
        record = EPHEMERAL / "runs.jsonl"
        record.unlink(missing_ok=True)
        environment = dict(
            os.environ, ANSIBLE_FORCE_COLOR="0", ANSIBLE_NOCOLOR="1", TRAINYARD_RUNS=str(record)
        )
        done = subprocess.run(
            [
                "ansible-playbook",
                "--inventory",
                os.environ["MOLECULE_INVENTORY_FILE"],
                str(ROOT / "playbooks" / name),
                *arguments,
                "--extra-vars",
                json.dumps(variables),
            ],
            cwd=ROOT,
            env=environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        print(done.stdout)
        told = json.loads(record.read_text(encoding="utf-8").splitlines()[-1])
        runs = {host: Counter(names) for host, names in told["runs"].items()}
        return SimpleNamespace(
            code=done.returncode,
            text=" ".join(done.stdout.split()),
            changed=told["changed"],
            runs=runs,
        )

    def verify(self, **variables):
        """What verify.yml finds: the checks of its report by their name and host.

        These hosts have no training container, so its verdict is never good.
        """
        folder = EPHEMERAL / "reports"
        run = self.playbook(
            "verify.yml", verify_report_dir=str(folder), verify_timeout=60, **variables
        )
        assert run.code == 2, run.text[-3000:]
        report = json.loads(max(folder.glob("*/report.json")).read_text(encoding="utf-8"))
        found = {}
        for check in report["checks"]:
            for host in check["host"].split(", "):
                found.setdefault((check["id"], host), []).append(check)
        return found

    def reason(self, host):
        """Why a node is drained."""
        return self.on(self.head, "sinfo --noheader --nodes=%s --format %%E" % host).out.strip()

    def nothing_is_left_of_verify(self):
        assert self.on(self.head, "squeue --noheader --all --name=trainyard-probe").out == ""
        assert "No reservations" in self.on(self.head, "scontrol show reservations").text
        assert self.on(self.head, "find /data1/share/user -name '.trainyard-probe*'").out == ""
        for host in self.hosts:
            assert self.on(host, "pgrep --list-full '^(slurmstepd|sleep)'", check=False).out == ""

    @contextlib.contextmanager
    def added(self, line):
        """One more line in slurm.conf, as if somebody had written it there."""
        self.on(
            self.head,
            "cp --preserve /etc/slurm/slurm.conf /root/slurm.conf && echo '%s' >> /etc/slurm/slurm.conf && scontrol reconfigure"
            % line,
        )
        try:
            yield
        finally:
            self.on(self.head, "mv /root/slurm.conf /etc/slurm/slurm.conf && scontrol reconfigure")

    @contextlib.contextmanager
    def full(self, host, folder):
        """A file system without space in the place of a folder, with its content."""
        self.on(
            host,
            "cp --archive {0} /root/kept && mount -t tmpfs -o size=8m full {0} && cp --archive /root/kept/. {0} && rm -r /root/kept "
            "&& ! dd if=/dev/zero of={0}/fill bs=4k 2> /dev/null".format(folder),
        )
        try:
            yield
        finally:
            self.on(host, "umount --lazy " + folder)


@pytest.fixture(scope="session")
def cluster():
    return Cluster()
