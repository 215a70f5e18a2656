"""The cluster of this scenario, and people who submit jobs on it."""

from __future__ import annotations

import json
import os
import shlex
import time
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest
import testinfra
from left_to_acceptance import pytest_collection_modifyitems
from role_again import role

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = json.loads((ROOT / "plugins/plugin_utils/trainyard.schema.json").read_text(encoding="utf-8"))
__all__ = ["pytest_collection_modifyitems", "role"]


class Cluster:
    head, peer = hosts = ("workbench-a", "workbench-b")

    def on(self, host, command, check=True):
        """A shell command on a host as root."""
        done = testinfra.get_host("ansible://" + host, ansible_inventory=os.environ["MOLECULE_INVENTORY_FILE"], sudo=True).run(command)
        assert not check or done.rc == 0, "%s: %s: exit code %d\n%s%s" % (host, command, done.rc, done.stdout, done.stderr)
        return SimpleNamespace(code=done.rc, out=done.stdout, text=done.stdout + done.stderr)

    def as_person(self, person, command, check=True):
        return self.on(self.head, "cd /home/%s && su %s -c %s" % (person, person, shlex.quote(command)), check)

    def trainyard(self, person, *words, check=True, text=None):
        command = shlex.join(["trainyard", *words])
        if text is not None:
            command = "printf %%s %s | %s" % (shlex.quote(text), command)
        return self.as_person(person, command, check)

    def submit(self, person, text, *words):
        return json.loads(self.trainyard(person, "submit", "-", "--json", *words, text=text).out)["id"]

    def ends(self, person, number, *states, seconds=120):
        deadline = time.monotonic() + seconds
        while True:
            job = json.loads(self.trainyard(person, "show", number, "--json").out)
            if job["state"] in (states or ("completed", "failed", "cancelled", "timeout")):
                jsonschema.validate(job, dict(SCHEMA, **{"$ref": "#/$defs/show"}))
                return job
            assert time.monotonic() < deadline, job
            time.sleep(1)

    @staticmethod
    def wait(what, condition, seconds=60):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "not after %d s: %s" % (seconds, what)
            time.sleep(1)


@pytest.fixture(scope="session")
def cluster():
    return Cluster()
