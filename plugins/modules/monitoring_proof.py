#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: monitoring_proof
short_description: Check that Prometheus reads all hosts, and nobody else
version_added: "0.4.0"
description:
  - Asks Prometheus on its host, with the certificate of a client, which hosts it reads and how old
    their metrics are. Sends a test alert to Alertmanager, as Prometheus does, and asks whether it
    has arrived. The alert ends after ten seconds and has no receiver. Check mode sends none.
  - Connects to each daemon as the user nobody without a certificate, and with the certificate of a
    host, and tells which of them answer. None should. Tells the keys and values that nobody can
    read, too.
  - What does not answer is a result, not a failure.
options:
  folder:
    description: Absolute path of the folder with C(ca.pem), C(client.pem), C(client.key),
      C(host.pem) and C(host.key).
    type: path
    required: true
  hosts:
    description: The hosts that have to be read, each with C(name) and C(address).
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Inventory name.
        type: str
        required: true
      address:
        description: Address of node_exporter.
        type: str
        required: true
  address:
    description: Address of this host in the cluster network, on which neither Prometheus nor
      Alertmanager listens.
    type: str
    required: true
  port:
    description: TCP port of node_exporter.
    type: int
    default: 9100
  has_alertmanager:
    description: Whether Alertmanager runs on this host.
    type: bool
    default: true
  has_scheduler:
    description: Whether Slurm's commands are on this host, and prolog and epilog mark the GPUs of
      jobs.
    type: bool
    default: false
  counts:
    description: The number of GPUs that the driver of each host counts, by its name. Hosts that are
      not named are not compared.
    type: dict
    default: {}
  interval:
    description: Number of seconds between two values of each curve.
    type: int
    default: 15
  certificate:
    description:
      - Certificate that the daemons of hosts show, with O(key). Empty means C(host.pem) and
        C(host.key) of O(folder).
    type: path
    default: ""
  key:
    description: Key of O(certificate).
    type: path
    default: ""
  positions:
    description:
      - The device numbers of the GPUs of each host, by its name, in the order in which Slurm counts
        them. Of jobs on other hosts only the number of GPUs is compared.
    type: dict
    default: {}
  timeout:
    description: Time limit in seconds for each answer.
    type: int
    default: 5
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
  - trainyard.gpu.attributes.internal
attributes:
  platform:
    platforms: debian
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Check the metrics of all hosts
  trainyard.gpu.monitoring_proof:
    folder: /etc/trainyard/monitoring/tls
    hosts: [{name: gpu-a, address: 192.0.2.11}]
    address: 192.0.2.10
  register: proof
"""

RETURN = r"""
error:
  description: Why Prometheus does not answer, empty if it does.
  returned: success
  type: str
missing:
  description: Hosts that Prometheus does not read.
  returned: success
  type: list
  elements: str
strange:
  description: What it reads as hosts beside those of O(hosts).
  returned: success
  type: list
  elements: str
stale:
  description: What is wrong with files of metrics, and with the number of GPUs in them.
  returned: success
  type: list
  elements: str
open:
  description: Daemons that answer without a certificate of a client, ports that should be closed,
    and files that everybody can read.
  returned: success
  type: list
  elements: str
open_error:
  description: Why the doors could not be tried, empty if they were.
  returned: success
  type: str
jobs:
  description: Jobs of which the metrics show other GPUs than Slurm has given to them. Null without
    O(has_scheduler).
  returned: success
  type: list
  elements: str
jobs_error:
  description: Why the jobs could not be compared, empty if they were.
  returned: success
  type: str
alerts:
  description: Why alerts do not reach Alertmanager, empty if they do. In check mode, only whether
    Prometheus knows it and it answers.
  returned: success
  type: str
receivers:
  description: Names of the receivers of Alertmanager.
  returned: success
  type: list
  elements: str
"""

import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import time
import urllib.parse
import uuid

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils import _slurm
from ansible_collections.trainyard.gpu.plugins.module_utils._monitoring_proof import (
    MARKED,
    arrived,
    counted_gpus,
    given_devices,
    hosts_up,
    marked_alert,
    marked_gpus,
    missing_gpus,
    not_sent,
    settled_jobs,
    stale_files,
    wrong_jobs,
)

PROMETHEUS = 9090
ALERTMANAGER = 9093
GOSSIP = 9094
LOOPBACK = "127.0.0.1"
NOBODY = 65534
#: Bytes of an answer that are read.
MOST = 64 << 20
#: Seconds for all tries without rights.
CHILD_SECONDS = 120
#: What people must not read, beside the keys of the folder.
VALUES = ("/var/lib/prometheus/metrics2", "/var/lib/trainyard/metrics/host/host.prom")
#: A query of GPUs that are known and have no metrics.
UNMEASURED = "trainyard_host_gpus_expected unless on (instance) trainyard_gpus"


def as_nobody(tried):
    """Return the texts that a function returns as a user without rights.

    As this user, if that is not root. ValueError: it has not ended well.
    """
    if os.geteuid():
        return tried()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            # Who listens in the place of a daemon may never come to an end.
            signal.alarm(CHILD_SECONDS)
            os.write(writer, json.dumps(tried()).encode("utf-8"))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as stream:
        text = stream.read()
    os.waitpid(child, 0)
    if not text:
        raise ValueError("the tries of user nobody did not end within %d s" % CHILD_SECONDS)
    return json.loads(text)


class Proof:
    def __init__(self, params, sends=True):
        self.params, self.sends = params, sends

    def in_folder(self, name):
        return os.path.join(self.params["folder"], name)

    def of_hosts(self):
        """Return the paths of the certificate that daemons of hosts show, and of its key."""
        if self.params["certificate"]:
            return self.params["certificate"], self.params["key"]
        return self.in_folder("host.pem"), self.in_folder("host.key")

    def context(self, certificate="", key=""):
        """Return how to connect: with a certificate, or without one and trusting anybody, as
        somebody who cannot read the authority. OSError: a file cannot be read.
        """
        if not certificate:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            return context
        context = ssl.create_default_context(cafile=self.in_folder("ca.pem"))
        context.load_cert_chain(certificate, key)
        return context

    def as_client(self):
        return self.context(self.in_folder("client.pem"), self.in_folder("client.key"))

    def get(self, address, port, path, context=None, sent=None):
        """Return the text of an answer, after sending JSON if there is some. Without C(context) as
        a client.

        OSError or http.client.HTTPException: there is none.
        """
        connection = http.client.HTTPSConnection(
            address, port, timeout=self.params["timeout"], context=context or self.as_client()
        )
        try:
            if sent is None:
                connection.request("GET", path)
            else:
                kind = {"Content-Type": "application/json"}
                connection.request("POST", path, json.dumps(sent), kind)
            answer = connection.getresponse()
            text = answer.read(MOST).decode("utf-8", "replace")
        finally:
            connection.close()
        if answer.status != 200:
            raise OSError("status %d: %s" % (answer.status, text.strip()[:200]))
        return text

    def query(self, expression):
        path = "/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        return json.loads(self.get(LOOPBACK, PROMETHEUS, path))

    def answers_without(self, address, port, context):
        """Return whether a daemon gives an answer to somebody who has no certificate of a
        client.
        """
        try:
            self.get(address, port, "/metrics", context)
        except (OSError, http.client.HTTPException):
            return False
        return True

    def listens(self, address, port):
        try:
            socket.create_connection((address, port), self.params["timeout"]).close()
        except OSError:
            return False
        return True

    def doors(self):
        """Return name, address and port of each daemon."""
        found = [
            (host["name"], host["address"], self.params["port"]) for host in self.params["hosts"]
        ]
        found += [("Prometheus", LOOPBACK, PROMETHEUS)]
        return found + [("Alertmanager", LOOPBACK, ALERTMANAGER)] * self.params["has_alertmanager"]

    def open_to_nobody(self):
        """Return what this process gets without a certificate, and the files that it can read."""
        keys = [self.in_folder("client.key"), self.of_hosts()[1]]
        found = ["%s can be read" % path for path in (*keys, *VALUES) if os.access(path, os.R_OK)]
        context = self.context()
        for name, address, port in self.doors():
            if self.answers_without(address, port, context):
                found.append("%s answers on port %d without a certificate" % (name, port))
        return found

    def open_doors(self):
        found = as_nobody(self.open_to_nobody)
        context = self.context(*self.of_hosts())
        for name, address, port in self.doors():
            if self.answers_without(address, port, context):
                found.append("%s answers on port %d to the certificate of a host" % (name, port))
        for port in (PROMETHEUS, ALERTMANAGER, GOSSIP):
            if self.listens(self.params["address"], port):
                found.append("port %d is open on %s" % (port, self.params["address"]))
        if self.listens(LOOPBACK, GOSSIP):
            found.append("port %d is open on %s" % (GOSSIP, LOOPBACK))
        return found

    def alerts(self):
        """Return why alerts do not arrive, and the names of the receivers."""
        why = not_sent(json.loads(self.get(LOOPBACK, PROMETHEUS, "/api/v1/alertmanagers")))
        if not self.params["has_alertmanager"]:
            return why, []
        try:
            rows = json.loads(self.get(LOOPBACK, ALERTMANAGER, "/api/v2/receivers"))
            if self.sends and not why:
                why = self.why_not_arrived()
        except (OSError, http.client.HTTPException, ValueError) as error:
            return "Alertmanager does not answer: %s" % error, []
        return why, sorted(row["name"] for row in rows)

    def why_not_arrived(self):
        """Send a test alert to Alertmanager. Return why it has not arrived, empty if it has."""
        mark = uuid.uuid4().hex
        path = "/api/v2/alerts"
        self.get(LOOPBACK, ALERTMANAGER, path, sent=marked_alert(mark, time.time()))
        query = path + "?" + urllib.parse.urlencode({"filter": 'mark="%s"' % mark})
        return arrived(json.loads(self.get(LOOPBACK, ALERTMANAGER, query)), mark)

    def read(self):
        names = [host["name"] for host in self.params["hosts"]]
        found = hosts_up(self.query('up{job="host"}'), names)
        stale = stale_files(
            self.query("node_textfile_mtime_seconds"),
            self.query("node_textfile_scrape_error"),
            time.time(),
            self.params["interval"],
        )
        lost = missing_gpus(self.query(UNMEASURED))
        stale += ["%s: its GPUs are not measured" % host for host in lost]
        found["stale"] = stale + counted_gpus(self.query("trainyard_gpus"), self.params["counts"])
        found["alerts"], found["receivers"] = self.alerts()
        if self.params["has_scheduler"]:
            found["jobs"], found["jobs_error"] = self.wrong_jobs(self.query(MARKED))
        return found

    def slurm(self, command):
        """Return the output of a command of Slurm. OSError: it fails, or does not end in time."""
        environment = _slurm.command_environment(os.environ)
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=30, check=False, env=environment
            )
        except subprocess.TimeoutExpired as error:
            raise OSError(str(error)) from error
        if done.returncode:
            raise OSError(done.stderr.decode("utf-8", "replace").strip()[:200])
        return done.stdout.decode("utf-8", "replace")

    def given(self, job):
        """Return the GPUs of a job as Slurm has them, None if it has just ended, or if they cannot
        be told.
        """
        try:
            text = self.slurm(_slurm.details_command(job["id"]))
            positions = _slurm.parse_positions(text, job["id"])
        except (OSError, ValueError):
            return None
        return given_devices(job, positions, self.params["positions"])

    def wrong_jobs(self, answer):
        """Return what is wrong with the jobs of GPUs, or why it is not known.

        Jobs that have just ended are in the queue, too.
        """
        mark = "|%s|" % uuid.uuid4().hex
        try:
            output = self.slurm([*_slurm.jobs_command(mark), "--states=all"])
            jobs = _slurm.parse_jobs(output, mark)
        except (OSError, _slurm.ParseError) as error:
            return [], "squeue: %s" % error
        now = time.time()
        given = {job["id"]: self.given(job) for job in settled_jobs(jobs, now)}
        return wrong_jobs(marked_gpus(answer), jobs, given, now), ""


def main():
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "hosts": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "name": {"type": "str", "required": True},
                    "address": {"type": "str", "required": True},
                },
            },
            "address": {"type": "str", "required": True},
            "port": {"type": "int", "default": 9100},
            "has_alertmanager": {"type": "bool", "default": True},
            "has_scheduler": {"type": "bool", "default": False},
            "counts": {"type": "dict", "default": {}},
            "interval": {"type": "int", "default": 15},
            "certificate": {"type": "path", "default": ""},
            "key": {"type": "path", "default": "", "no_log": False},
            "positions": {"type": "dict", "default": {}},
            "timeout": {"type": "int", "default": 5},
        },
        supports_check_mode=True,
    )
    proof = Proof(module.params, sends=not module.check_mode)
    found = {"missing": [], "strange": [], "stale": [], "alerts": "", "receivers": [], "error": ""}
    found.update(jobs=[] if module.params["has_scheduler"] else None, jobs_error="")
    try:
        found.update(proof.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        found["error"] = "%s: %s" % (type(error).__name__, error)
    try:
        found["open"] = proof.open_doors()
        found["open_error"] = ""
    except (OSError, ValueError) as error:
        found["open"] = []
        found["open_error"] = "%s: %s" % (type(error).__name__, error)
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
