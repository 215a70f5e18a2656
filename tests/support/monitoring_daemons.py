"""The files of role monitoring's plan in a folder, and the real daemons of the distribution with
them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import ssl
import subprocess
import time
import urllib.parse
import urllib.request

import alert_receivers
from prometheus import alertmanager, program
from role_variables import ROLES
from scripted_tools import run_module

from ansible_collections.trainyard.gpu.plugins.module_utils import _metrics
from ansible_collections.trainyard.gpu.plugins.plugin_utils import _monitoring_plan as planned

FILES = ROLES / "monitoring/files"
HOSTS = [
    {"name": "front", "address": "192.0.2.10"},
    {"name": "gpu-a", "address": "192.0.2.11"},
    {"name": "gpu-b", "address": "2001:db8::12"},
]
#: What the plan of a host is made from.
WANTED = {
    "host": "gpu-a",
    "hosts": HOSTS,
    "prometheus_host": "front",
    "has_slurm": True,
    "has_marks": True,
    "scheduler_host": "front",
    "release": "debian 12",
    "gpus": 8,
    "npus": 0,
    "share": "/share",
    "certificate": "",
    "key": "",
    "ca": "",
    "certificates": ["/etc/trainyard/tls/hub.pem"],
    # As ansible-core before 2.19 gives them.
    "interval": "15",
    "port": 9100,
    "retention_days": 90,
    "retention_gib": 20,
    "idle_hours": 2,
    "idle_minutes": "60",
    "mail": False,
    "people_see": "own",
    "gpu_source": "nvidia_smi",
    "receivers": [],
    "routes": [],
    "alertmanagers": [],
    "remote_write": [],
    "rules": {},
    "grafana_dir": "",
    "rules_text": (FILES / "rules.yml").read_text(encoding="utf-8"),
    "dcgm_text": (FILES / "dcgm.yml").read_text(encoding="utf-8"),
    "site_rules": {},
    "dashboards": {"cluster.json": "{}"},
    "programs": {"gpu_reader": "g", "host_reader": "h", "slurm_reader": "s", "job_usage": "u"},
}


def free_ports(number):
    with contextlib.ExitStack() as stack:
        listeners = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)
        ]
        return [listener.getsockname()[1] for listener in listeners]


class Receiver:
    """A webhook and a mail server that keep what they get."""

    def __init__(self):
        self.got, self.mails = [], []
        self.servers = [
            alert_receivers.webhook(0, self.got.append),
            alert_receivers.mail_server(0, self.mails.append),
        ]
        self.ports = [server.server_address[1] for server in self.servers]

    def stop(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()


class Monitoring:
    """The files of one host that is also that of Prometheus, in a folder, and its daemons.

    C(hosts) are others that are read, too, and C(changes) variables of the role.
    """

    #: In the place of 15 s, of the time that an answer may take, and of the wait for more alerts.
    seconds = {'"15s"': '"1s"', '"10s"': '"1s"', '"group_wait": "30s"': '"group_wait": "1s"'}

    def __init__(self, folder, hosts=(), **changes):
        self.folder, self.tls = folder, folder / "etc/tls"
        self.ports = free_ports(4)
        self.receiver = Receiver()
        self.children = {}
        self.now = []
        url = "http://127.0.0.1:%d/" % self.receiver.ports[0]
        mail = {"to": "ops@example.org", "from": "alerts@example.org", "require_tls": False}
        mail["smarthost"] = "127.0.0.1:%d" % self.receiver.ports[1]
        hook = {"name": "hook", "webhook_configs": [{"url": url, "send_resolved": False}]}
        wanted = {
            "host": "front",
            "hosts": [{"name": "front", "address": "127.0.0.1"}, *hosts],
            "share": "",
            "certificates": [],
            "interval": 15,
            "port": self.ports[0],
            "retention_days": 1,
            "retention_gib": 1,
            "idle_minutes": 0,
            "receivers": [dict(hook, email_configs=[mail])],
            "dcgm_text": "",
            "dashboards": {},
            "programs": dict.fromkeys(WANTED["programs"], ""),
        }
        self.wanted = {**WANTED, **wanted, **changes}
        self.write()
        self.sign()

    def here(self, text):
        """Return a text of the plan with paths and ports of this test."""
        pairs = [
            ("/etc/trainyard/monitoring", str(self.folder / "etc")),
            ("/var/lib/trainyard/metrics", str(self.folder / "metrics")),
            ("/var/lib/prometheus/metrics2", str(self.folder / "data")),
            ("/var/lib/prometheus/alertmanager", str(self.folder / "alerts")),
            ("127.0.0.1:9090", "127.0.0.1:%d" % self.ports[1]),
            ("127.0.0.1:9093", "127.0.0.1:%d" % self.ports[2]),
            *self.seconds.items(),
            ("$$", "$"),
        ]
        for before, after in pairs:
            text = text.replace(before, after)
        return text

    def write(self):
        made = planned.host_plan(
            {
                "record": {},
                "placed_packages": False,
                "packages": {},
                "units": {},
                "certificate": [],
                "key_access": [],
                "authority": "",
                "signer": "",
                "taken": [],
                "free_gib": 9,
            },
            self.wanted,
        )
        assert made["problems"] == []
        self.commands = {}
        for entry in made["host_files"] + made["server_files"]:
            text = self.here(entry.get("content", ""))
            if entry["path"].endswith(".service.d/trainyard.conf"):
                line = text.rpartition("ExecStart=")[2].partition("\n")[0]
                self.commands[entry["path"].split("/")[-2][: -len(".service.d")]] = line
            if entry["path"].startswith(("/etc/trainyard", "/var/lib/trainyard")):
                path = self.here(entry["path"])
                if entry.get("state") == "directory":
                    os.makedirs(path, exist_ok=True)
                    continue
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as stream:
                    stream.write(text)

    def sign(self):
        self.tls.mkdir(exist_ok=True)
        made = planned.certificate_names(self.wanted)
        options = {
            "folder": str(self.folder / "authority"),
            "_ansible_remote_tmp": str(self.folder),
        }
        asked = run_module(
            "own_certificate",
            {
                "folder": str(self.tls),
                "name": "host",
                "state": "request",
                "_ansible_remote_tmp": str(self.folder),
            },
            False,
        )
        # Hosts are addresses of this machine, and have one key.
        requests = dict.fromkeys(
            [member["name"] for member in self.wanted["hosts"]], asked["request"]
        )
        signed = run_module(
            "own_certificate",
            dict(
                options,
                name="client",
                usage="client",
                names=made["names"][:1],
                copy_to=str(self.tls),
                requests=planned.requests(self.wanted, requests),
            ),
            False,
        )
        self.signed = signed["signed"]
        for entry in planned.tls_files(self.wanted, signed["ca"], signed["signed"]):
            with open(self.here(entry["path"]), "w", encoding="utf-8") as stream:
                stream.write(entry["content"])

    def start(self, name):
        command = shlex.split(self.commands[name])
        is_manager = name == "prometheus-alertmanager"
        command[0] = alertmanager(self.folder) if is_manager else program(name)
        if name == "prometheus":
            # An alert that Alertmanager missed, while it had a new certificate, comes again after a
            # minute.
            command.append("--rules.alert.resend-delay=2s")
        with open(self.folder / (name + ".log"), "ab") as log:
            self.children[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)

    def stop(self, name):
        child = self.children.pop(name, None)
        if child:
            child.terminate()
            child.wait(30)

    def log(self):
        return "\n".join(
            path.read_text(errors="replace")[-3000:] for path in self.folder.glob("*.log")
        )

    def get(self, port, path, certificate="client"):
        context = ssl.create_default_context(cafile=str(self.tls / "ca.pem"))
        if certificate:
            context.load_cert_chain(
                self.tls / (certificate + ".pem"), self.tls / (certificate + ".key")
            )
        url = "https://127.0.0.1:%d%s" % (port, path)
        with urllib.request.urlopen(url, timeout=10, context=context) as answer:
            return answer.read().decode()

    def query(self, expression):
        path = "/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        return json.loads(self.get(self.ports[1], path))["data"]["result"]

    def metrics(self, name, families):
        folder = self.folder / "metrics" / name
        folder.mkdir(exist_ok=True)
        _metrics.write(str(folder / (name + ".prom")), _metrics.render(families))

    def wait(self, condition, seconds=60):
        """Wait until a condition holds, and return what it gave."""
        deadline, found = time.monotonic() + seconds, None
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                found = condition()
                if found:
                    return found
            time.sleep(0.3)
        raise AssertionError("%r\n%s" % (found, self.log()))
