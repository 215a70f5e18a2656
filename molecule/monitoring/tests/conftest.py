"""Fixtures of this scenario's tests."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import time
from pathlib import Path

import pytest
import testinfra
from eight_gpus import some_gpus
from left_to_acceptance import pytest_collection_modifyitems
from role_again import playbook

__all__ = ["playbook", "pytest_collection_modifyitems"]

ROOT = Path(__file__).resolve().parents[3]
TLS = "/etc/trainyard/monitoring/tls"
#: The device numbers of monitoring-b (prepare.yml).
MINORS = [0, 1, 3, 4]
#: All that listens: Prometheus, Alertmanager, its gossip, node_exporter.
PORTS = (9090, 9093, 9094, 9100)
ADDRESSES = {"monitoring-a": "172.30.112.21", "monitoring-b": "172.30.112.22"}
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

    def write(self, path, text):
        """Replace the content of a file."""
        subprocess.run(
            ["docker", "exec", "--interactive", self.name, "sh", "-c", "cat > " + path],
            input=text,
            text=True,
            check=True,
        )

    def intrude(self, person):
        """What a person on this host gets of metrics, alerts, keys and settings (intruder.py)."""
        program = (Path(__file__).parent / "intruder.py").read_text(encoding="utf-8")
        places = [
            "%s:%d" % (address, port)
            for address in ["localhost", *ADDRESSES.values()]
            for port in PORTS
        ]
        words = ["runuser", "-u", person, "--", "python3", "-c", program, *places]
        return json.loads(self.run(shlex.join(words)))

    def gpus(self, minors=tuple(MINORS), busy=()):
        """Replace what nvidia-smi prints."""
        self.write("/var/spool/gpus.xml", some_gpus(minors, busy))

    @contextlib.contextmanager
    def paused(self):
        """A host that does not answer, as one that hangs."""
        subprocess.run(["docker", "pause", self.name], check=True, capture_output=True)
        try:
            yield
        finally:
            subprocess.run(["docker", "unpause", self.name], check=True, capture_output=True)


class Receivers:
    """A webhook and a mailbox on the host of Alertmanager."""

    def __init__(self, host):
        self.host = host
        program = (ROOT / "tests/support/alert_receivers.py").read_text(encoding="utf-8")
        host.write("/root/receivers.py", program)
        host.run(
            "systemd-run --unit=receivers --collect python3 /root/receivers.py 8025 8026 /root/received"
        )

    def stop(self):
        self.host.run(
            "systemctl stop receivers 2> /dev/null; rm -f /root/received /root/receivers.py"
        )

    def told(self, alert, host="", **labels):
        """The labels of an alert, and the receivers of a mail with it, if both have arrived.

        Hosts in containers have other alerts, too.
        """
        text = self.host.host.run("cat /root/received").stdout
        lines = [json.loads(line) for line in text.splitlines()]
        labels.update({"alertname": alert, **({"instance": host} if host else {})})
        alerts = [
            each["labels"]
            for line in lines
            for each in line.get("alerts", [])
            if each["status"] == "firing" and labels.items() <= each["labels"].items()
        ]
        mails = [line["to"] for line in lines if alert in line.get("mail", "")]
        return (alerts[0], mails[0]) if alerts and mails else None


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


@pytest.fixture(scope="session")
def received(front):
    made = Receivers(front)
    yield made
    made.stop()
