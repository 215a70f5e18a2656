"""Fixtures of this scenario's tests."""

from __future__ import annotations

import json
import os
import shlex
import time

import pytest
import testinfra
from left_to_acceptance import pytest_collection_modifyitems
from role_again import playbook

__all__ = ["playbook", "pytest_collection_modifyitems"]

TLS = "/etc/trainyard/monitoring/tls"
#: The hosts have no curl. Prints the answer; the exit code is 1 if there is none.
GET = """
import http.client, ssl, sys
place, path, certificate = sys.argv[1:4]
context = ssl.create_default_context(cafile="%(tls)s/ca.pem")
if certificate:
    context.load_cert_chain("%(tls)s/" + certificate + ".pem", "%(tls)s/" + certificate + ".key")
name, port = place.rsplit(":", 1)
connection = http.client.HTTPSConnection(name, int(port), timeout=10, context=context)
connection.request("GET", path)
answer = connection.getresponse()
print(answer.read().decode())
sys.exit(answer.status != 200)
""" % {"tls": TLS}


class Host:
    """A host of the scenario, and what it can ask of the daemons."""

    def __init__(self, name):
        self.name = name
        inventory = os.environ["MOLECULE_INVENTORY_FILE"]
        self.host = testinfra.get_host("ansible://" + name, ansible_inventory=inventory, sudo=True)

    def run(self, command, code=0):
        done = self.host.run(command)
        assert done.rc == code, done
        return done.stdout

    def get(self, place, path="/metrics", certificate="client", before=""):
        """Return exit code and text of a request, with a certificate of the host, if any."""
        words = ["python3", "-c", GET, place, path, certificate]
        done = self.host.run("%s%s" % (before, shlex.join(words)))
        return done.rc, done.stdout

    def query(self, expression):
        from urllib.parse import urlencode

        path = "/api/v1/query?" + urlencode({"query": expression})
        code, text = self.get("localhost:9090", path)
        return json.loads(text)["data"]["result"] if code == 0 else []


def wait(condition, seconds=120):
    """Wait until a condition holds, and return what it gave."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(2)


@pytest.fixture(scope="session")
def front():
    return Host("monitoring-a")


@pytest.fixture(scope="session")
def other():
    return Host("monitoring-b")


@pytest.fixture(scope="session", name="wait")
def _wait():
    return wait
