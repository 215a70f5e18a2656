"""The cluster of this scenario, and people who submit jobs on it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import time
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest
import testinfra
from left_to_acceptance import pytest_collection_modifyitems
from role_again import playbook, role

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = json.loads(
    (ROOT / "plugins/plugin_utils/trainyard.schema.json").read_text(encoding="utf-8")
)
__all__ = ["playbook", "pytest_collection_modifyitems", "role"]


class Cluster:
    head, peer = hosts = ("workbench-a", "workbench-b")
    # Of all people's jobs on the share, and of containers on each host.
    folder, store = "/data1/share/.trainyard/jobs", "/var/lib/trainyard/containers"

    def on(self, host, command, check=True):
        """A shell command on a host as root."""
        done = testinfra.get_host(
            "ansible://" + host, ansible_inventory=os.environ["MOLECULE_INVENTORY_FILE"], sudo=True
        ).run(command)
        assert not check or done.rc == 0, "%s: %s: exit code %d\n%s%s" % (
            host,
            command,
            done.rc,
            done.stdout,
            done.stderr,
        )
        return SimpleNamespace(code=done.rc, out=done.stdout, text=done.stdout + done.stderr)

    def as_person(self, person, command, check=True):
        return self.on(
            self.head, "cd /home/%s && su %s -c %s" % (person, person, shlex.quote(command)), check
        )

    def trainyard(self, person, *words, check=True, text=None):
        command = shlex.join(["trainyard", *words])
        if text is not None:
            command = "printf %%s %s | %s" % (shlex.quote(text), command)
        return self.as_person(person, command, check)

    def submit(self, person, text, *words):
        return json.loads(self.trainyard(person, "submit", "-", "--json", *words, text=text).out)[
            "id"
        ]

    def ends(self, person, number, *states, seconds=120):
        deadline = time.monotonic() + seconds
        while True:
            job = json.loads(self.trainyard(person, "show", number, "--json").out)
            if job["state"] in (states or ("completed", "failed", "cancelled", "timeout")):
                jsonschema.validate(job, dict(SCHEMA, **{"$ref": "#/$defs/show"}))
                return job
            assert time.monotonic() < deadline, job
            time.sleep(1)

    def refused(self, code, *words, person="alice", text=None):
        """The error of a command, which is one line for the person, and no traceback."""
        done = self.trainyard(person, *words, check=False, text=text)
        assert (
            done.code == code and done.text.startswith("trainyard: ") and done.text.count("\n") == 1
        ), (words, done.code, done.text)
        return done.text

    def nothing_left(self, *people):
        """Nothing of any job is left: in the queue, of the GPUs and hosts, among the processes of
        these people, and of containers.
        """
        self.wait(
            "an empty queue", lambda: self.on(self.head, "squeue --all --noheader").out == "", 120
        )
        look = (
            "pgrep --list-full --uid %s; ls /run/trainyard/jobs %s/jobs | grep -v :$; find /dev/shm -mindepth 1 -user %s"
            % (",".join(people), self.store, " -o -user ".join(people))
        )
        for host in self.hosts:
            self.wait(
                "an end on " + host,
                lambda host=host: not self.on(host, look, check=False).out.strip(),
            )
        # A test may have taken one out of service.
        self.wait(
            "free hosts",
            lambda: (
                set(self.on(self.head, "sinfo --noheader --Node --format %T").out.split())
                <= {"idle", "drained"}
            ),
        )
        assert set(
            re.findall(
                r"gpu:h100:(\d+)",
                self.on(self.head, "sinfo --noheader --Node --Format=GresUsed:100").out,
            )
        ) == {"0"}

    @contextlib.contextmanager
    def out_of_service(self, *hosts):
        """Hosts on which no job starts."""
        names = ",".join(hosts)
        self.on(self.head, "scontrol update nodename=%s state=drain reason=test" % names)
        try:
            yield
        finally:
            self.on(self.head, "scontrol update nodename=%s state=resume" % names)

    def sql(self, statement):
        return self.on(
            self.head,
            "mariadb --batch --skip-column-names slurm_acct_db --execute %s"
            % shlex.quote(statement),
        ).out

    @staticmethod
    def wait(what, condition, seconds=60):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "not after %d s: %s" % (seconds, what)
            time.sleep(1)


@pytest.fixture(scope="session")
def cluster():
    return Cluster()
