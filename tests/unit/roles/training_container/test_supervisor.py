# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The supervisor of the training container's services, and the entrypoint that starts it.

Scenario training_container has the container.
"""

from __future__ import annotations

import hashlib
import http.client
import ipaddress
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.roles.training_container.files import supervisor

ROOT = Path(__file__).resolve().parents[4]
PROGRAMS = [
    ROOT / "roles/training_container/files/supervisor.py",
    ROOT / "roles/jobs/files/services.py",
]
ENTRYPOINT = ROOT / "roles/training_image/files/entrypoint"
TOKEN = "5ec4e7" * 8
# A service: ADDRESS PORT [TOKEN_FILE]. It logs its token, which releases of Jupyter before 2022
# did, and starts a process in a session of its own.
SERVICE = """
import http.server, os, subprocess, sys
address, port = sys.argv[1], int(sys.argv[2])
token = open(sys.argv[3]).read().strip() if sys.argv[3:] else ""
print("token=%s" % token)
worker = subprocess.Popen(["sleep", "600"], start_new_session=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = ("%d %d" % (os.getpid(), worker.pid)).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *arguments):
        return
http.server.HTTPServer((address, port), Handler).serve_forever()
"""
# A JupyterLab that serves what its configuration says.
JUPYTERLAB = """
import http.server, os, sys
class App:
    def __getattr__(self, name):
        return self.__dict__.setdefault(name, App())
c = App()
exec(open(sys.argv[1].partition("=")[2]).read())
app = c.ServerApp
assert app.allow_root and not app.open_browser and c.KernelManager.transport == "ipc" and os.getcwd() == app.root_dir
print("with token " + c.IdentityProvider.token)
http.server.HTTPServer((app.ip, app.port), http.server.SimpleHTTPRequestHandler).serve_forever()
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, "not within %d s" % seconds
        time.sleep(0.1)


def is_alive(pid):
    try:
        return (
            Path("/proc/%d/stat" % pid).read_text(encoding="utf-8").rpartition(")")[2].split()[0]
            != "Z"
        )
    except OSError:
        return False


class Container:
    """The folder of the services, and a supervisor that runs there."""

    def __init__(self, folder):
        self.folder, self.run, self.work = folder / "services", folder / "run", folder / "work"
        for path in (self.folder, self.work, folder / "packages"):
            path.mkdir()
        for path in PROGRAMS:
            shutil.copy(path, self.folder)
        self.token_file = self.folder / "one.token"
        self.token_file.write_text(TOKEN + "\n", encoding="utf-8")
        (self.work / "service.py").write_text(SERVICE, encoding="utf-8")
        self.packages, self.log, self.child = folder / "packages", folder / "log", None

    def entry(self, name="one", command=None, **more):
        port = more.pop("port", None) or free_port()
        words = (
            [sys.executable, "service.py", "127.0.0.1", str(port), str(self.token_file)]
            if command is None
            else command
        )
        return dict(
            {
                "name": name,
                "address": "127.0.0.1",
                "port": port,
                "folder": str(self.work),
                "token_file": str(self.token_file),
                "certificate": "",
                "key": "",
                "command": words,
            },
            **more,
        )

    def configure(self, *entries):
        text = json.dumps({"services": entries})
        (self.folder / "new").write_text(text, encoding="utf-8")
        (self.folder / "new").rename(self.folder / "config.json")
        return hashlib.sha256(text.encode()).hexdigest()

    def start(self):
        with self.log.open("ab") as log:
            # Without the packages of the tests' Python, which may have a Jupyter.
            self.child = subprocess.Popen(
                [sys.executable, "-B", "-S", self.folder / "supervisor.py", self.run],
                stdout=log,
                stderr=log,
                env=dict(os.environ, PYTHONPATH=str(self.packages)),
            )

    def status(self):
        try:
            return json.loads((self.run / "status.json").read_text(encoding="utf-8"))
        except OSError:
            return {"config": "", "services": {}}

    def state(self, name="one"):
        return self.status()["services"].get(name, {}).get("state")

    def wait_for(self, state, name="one"):
        until(lambda: self.state(name) == state)

    def end(self):
        if self.child is not None and self.child.poll() is None:
            self.child.terminate()
            self.child.wait(30)


@pytest.fixture(name="container")
def fixture_container(tmp_path):
    found = Container(tmp_path)
    yield found
    found.end()


def answer(port, address):
    connection = http.client.HTTPConnection(address, port, timeout=5)
    try:
        connection.request("GET", "/")
    except ConnectionRefusedError:
        return []
    return [int(word) for word in connection.getresponse().read().split()]


def asked(port, address="127.0.0.1"):
    """Return the process IDs of a service and of its worker.

    The status may still say ready for a moment after the service has ended.
    """
    return until(lambda: answer(port, address))


# As a kernel of x86-64 or ARM shows them.
@pytest.mark.parametrize(
    "digits, address",
    [
        ("0100007F", "127.0.0.1"),
        ("00000000", "0.0.0.0"),
        ("0B00000A", "10.0.0.11"),
        ("00000000000000000000000001000000", "::1"),
        ("0" * 32, "::"),
        ("0000000000000000FFFF00000100007F", "127.0.0.1"),
    ],
)
def test_addresses_of_the_kernel(digits, address):
    assert supervisor.address_of(digits) == ipaddress.ip_address(address)


def test_listening_sockets_of_the_kernel():
    table = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:22BA 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000000000000000 100 0 0 10 0\n"
        "   1: 0100007F:22BA 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0000000000000000 100 0 0 10 0\n"
    )
    assert supervisor.listeners(table) == {"4711": (ipaddress.ip_address("127.0.0.1"), 8890)}
    assert supervisor.listeners("") == {}


@pytest.mark.parametrize(
    "sockets, listens, opened",
    [
        ([("127.0.0.1", 8890)], True, ""),
        ([("127.0.0.1", 8891)], False, ""),
        ([], False, ""),
        ([("10.0.0.11", 8890), ("::1", 1)], False, "10.0.0.11 port 8890"),
        ([("0.0.0.0", 8890)], False, "0.0.0.0 port 8890"),
        ([("127.0.0.1", 8890), ("::", 9)], True, ":: port 9"),
    ],
)
def test_sockets_that_a_service_may_have(sockets, listens, opened):
    sockets = {(ipaddress.ip_address(address), port) for address, port in sockets}
    assert supervisor.judged(sockets, "127.0.0.1", 8890) == (listens, opened)


def test_a_service_has_only_the_cluster_address_if_it_has_one():
    sockets = {(ipaddress.ip_address("10.0.0.11"), 8890)}
    assert supervisor.judged(sockets, "10.0.0.11", 8890) == (True, "")


def test_marks():
    assert supervisor.is_marked(b"A=1\0TRAINYARD_SERVICE=one\0", "one") and supervisor.is_marked(
        b"TRAINYARD_SERVICE=one", ""
    )
    assert not supervisor.is_marked(b"TRAINYARD_SERVICE=one\0", "on") and not supervisor.is_marked(
        b"A=TRAINYARD_SERVICE=one\0", ""
    )
    assert (
        supervisor.without(b"", b"a line") == b"a line"
        and supervisor.without(b"li", b"a line") == b"a (token)ne"
    )


def test_the_life_of_a_service(container):
    one, two = container.entry(), container.entry("two", token_file="")
    two["command"] = two["command"][:4]
    config = container.configure(one, two)
    container.start()
    container.wait_for("ready")
    container.wait_for("ready", "two")
    assert container.status() == {
        "config": config,
        "services": {name: {"state": "ready", "why": ""} for name in ("one", "two")},
    }
    # It comes back after it was killed, and says so.
    pid, worker = asked(one["port"])
    neighbour = asked(two["port"])
    os.kill(pid, signal.SIGKILL)
    until(
        lambda: (
            container.state() == "failed"
            and "it ended with signal 9" in container.status()["services"]["one"]["why"]
        )
    )
    container.wait_for("ready")
    assert asked(one["port"])[0] != pid and asked(two["port"]) == neighbour
    # A new token is used by a new process.
    before = asked(one["port"])
    container.token_file.write_text("another" * 6, encoding="utf-8")
    until(lambda: not is_alive(before[0]))
    container.wait_for("ready")
    # What is no longer configured is gone with all that it started. The other one goes on.
    before = asked(one["port"])
    container.configure(two)
    until(lambda: "one" not in container.status()["services"])
    until(lambda: not is_alive(before[0]) and not is_alive(before[1]))
    assert asked(two["port"]) == neighbour and is_alive(worker) is False
    container.end()
    assert (
        container.child.returncode == 0
        and not is_alive(neighbour[0])
        and not is_alive(neighbour[1])
    )
    log = container.log.read_text(encoding="utf-8")
    assert "one: token=(token)" in log and TOKEN not in log and "another" not in log
    assert TOKEN not in (container.run / "status.json").read_text(encoding="utf-8")


def test_a_damaged_configuration_changes_nothing(container):
    one = container.entry()
    config = container.configure(one)
    container.start()
    container.wait_for("ready")
    before = asked(one["port"])
    (container.folder / "config.json").write_text('{"services": [', encoding="utf-8")
    until(lambda: "config.json is damaged" in container.log.read_text(encoding="utf-8"))
    assert container.status()["config"] == config and asked(one["port"]) == before
    (container.folder / "config.json").unlink()
    until(lambda: container.status()["services"] == {})


def test_a_service_that_opens_the_host_is_stopped(container):
    one = container.entry()
    one["command"][2] = "0.0.0.0"
    container.configure(one)
    container.start()
    container.wait_for("refused")
    why = (
        "it was stopped because it listened on 0.0.0.0 port %(port)d. It may listen on 127.0.0.1 port %(port)d only. Correct its command"
        % one
    )
    assert container.status()["services"]["one"]["why"] == why
    time.sleep(supervisor.RESTART_SECONDS + 1)
    assert answer(one["port"], "127.0.0.1") == []
    one["command"][2] = "127.0.0.1"
    container.configure(one)
    container.wait_for("ready")


@pytest.mark.parametrize(
    "change, why",
    [
        ({"command": ["/nowhere/program"]}, "it cannot be started: [Errno 2]"),
        (
            {"command": ["sh", "-c", "echo no disk space; exit 3"]},
            "it ended with exit code 3: no disk space",
        ),
        ({"folder": "/nowhere"}, "it cannot be started: "),
        ({"token_file": "/nowhere/token"}, "/nowhere/token is missing or empty"),
        (
            {"command": []},
            "the image has no Jupyter. Add jupyterlab to training_image_python_packages",
        ),
    ],
)
def test_a_service_that_fails_says_why(container, change, why):
    container.configure(dict(container.entry(), **change))
    container.start()
    container.wait_for("failed")
    assert container.status()["services"]["one"]["why"].startswith(why)


def test_a_service_that_does_not_listen_is_not_ready(container):
    container.configure(container.entry(command=["sleep", "600"]))
    container.start()
    until(
        lambda: (
            "it does not listen on 127.0.0.1 port"
            in container.status()["services"].get("one", {}).get("why", "")
        )
    )
    assert container.state() == "starting"


def test_jupyter_has_its_token_in_a_private_file(container):
    (container.packages / "jupyterlab.py").write_text(JUPYTERLAB, encoding="utf-8")
    (container.work / "one.ipynb").write_text("{}", encoding="utf-8")
    one = container.entry(command=[])
    container.configure(one)
    container.start()
    container.wait_for("ready")
    assert (
        container.run.stat().st_mode & 0o777 == 0o700
        and (container.run / "one/config.py").stat().st_mode & 0o777 == 0o600
    )
    assert TOKEN in (container.run / "one/config.py").read_text(encoding="utf-8")
    processes = subprocess.run(
        ["ps", "-eww", "-o", "args"], check=True, capture_output=True, text=True
    ).stdout
    assert (
        "-m jupyterlab --config=%s/one/config.py" % container.run in processes
        and TOKEN not in processes
    )
    assert "one: with token (token)" in container.log.read_text(encoding="utf-8")


def test_what_a_killed_supervisor_left_is_ended(container):
    one = container.entry()
    container.configure(one)
    container.start()
    container.wait_for("ready")
    before = asked(one["port"])
    container.child.kill()
    container.child.wait()
    assert is_alive(before[0])
    container.start()
    until(lambda: not is_alive(before[0]) and not is_alive(before[1]))
    until(lambda: container.state() == "ready" and asked(one["port"])[0] != before[0])


def test_usage():
    done = subprocess.run(
        [sys.executable, PROGRAMS[0]],
        check=False,
        capture_output=True,
        text=True,
        env=dict(os.environ, PYTHONPATH=str(PROGRAMS[1].parent)),
    )
    assert done.returncode == 2 and "Runs the services" in done.stderr


@pytest.mark.parametrize("has_services", [True, False])
def test_the_entrypoint_runs_the_supervisor_beside_sshd(tmp_path, has_services):
    """With stand-ins for sshd and the supervisor, which both note that they were asked to end."""
    text = ENTRYPOINT.read_text(encoding="utf-8")
    for there, here in (
        ("/etc/trainyard", "etc"),
        ("~root", "root"),
        ("/run/sshd", "run"),
        ("/run/trainyard-services", "run/services"),
        ("/usr/sbin/sshd", "sshd"),
    ):
        assert there in text
        text = text.replace(there, str(tmp_path / here))
    note = "#!/bin/sh\necho began >> %(folder)s/%(name)s.log\ntrap 'echo ended >> %(folder)s/%(name)s.log; exit 0' TERM\nwhile :; do sleep 0.1; done\n"
    for name in ("sshd", "python3"):
        (tmp_path / name).write_text(note % {"folder": tmp_path, "name": name}, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "etc/ssh").mkdir(parents=True)
    for name in ("sshd_config", "ssh_host_ed25519_key"):
        (tmp_path / "etc/ssh" / name).write_text("x", encoding="utf-8")
    if has_services:
        (tmp_path / "etc/services").mkdir()
    (tmp_path / "entrypoint").write_text(text, encoding="utf-8")
    (tmp_path / "root").mkdir()
    child = subprocess.Popen(
        ["/bin/sh", tmp_path / "entrypoint"],
        env=dict(os.environ, PATH="%s:%s" % (tmp_path, os.environ["PATH"])),
    )
    expected = ["sshd", "python3"] if has_services else ["sshd"]

    def lines(name):
        path = tmp_path / (name + ".log")
        return path.read_text(encoding="utf-8").split() if path.exists() else []

    until(lambda: all(lines(name) == ["began"] for name in expected))
    child.terminate()
    assert child.wait(20) == 0
    assert [lines(name) for name in ("sshd", "python3")] == [
        ["began", "ended"],
        ["began", "ended"] if has_services else [],
    ]
