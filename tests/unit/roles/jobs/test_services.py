# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What runs beside a job, and ssh into it.

Scenario workbench has the real Jupyter, TensorBoard and sshd.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.roles.jobs.files import door, services

JOB = {"TRAINYARD_JOB_ID": "7", "TRAINYARD_STEP_ID": "0", "TRAINYARD_WORKER_INDEX": "0"}
# A package of the image that serves on the socket which its configuration names, as Jupyter does,
# or fails.
SERVER = """
import socket, sys
class App:
    def __getattr__(self, name):
        return self.__dict__.setdefault(name, App())
c = App()
exec(open(sys.argv[1].partition("=")[2]).read())
if %(fails)r:
    print("first line"); sys.exit("there is no disk space")
server = socket.socket(socket.AF_UNIX)
server.bind(c.ServerApp.sock)
server.listen(1)
while True:
    server.accept()
"""


def test_paths_and_arguments():
    assert services.socket_on_host("jupyter", JOB) == "/run/trainyard/jobs/7/task.0.0/jupyter.sock"
    assert (
        services.tensorboard_arguments("/l", "1.15.0")
        == services.tensorboard_arguments("/l", "2.4.1")
        == ["tensorboard", "--logdir", "/l"]
    )
    assert (
        services.tensorboard_arguments("/l", "2.5.0")[3:]
        == services.tensorboard_arguments("/l", "2.21.0a1")[3:]
        == ["--load_fast=false"]
    )
    assert services.last_line("a\n b \r\n\n") == "b" and services.last_line("\n") == ""


def test_jupyter_listens_on_its_socket_only():
    text = services.jupyter_config(
        "t0k'en", "/home/anna/it's", sock="/run/trainyard/jupyter.sock", sock_mode="0600"
    )

    class Config:
        def __getattr__(self, name):
            return self.__dict__.setdefault(name, Config())

    config = Config()
    exec(text, {"c": config})
    for app in (config.ServerApp, config.NotebookApp):
        assert (app.sock, app.sock_mode, app.token, app.open_browser) == (
            "/run/trainyard/jupyter.sock",
            "0600",
            "t0k'en",
            False,
        )
    assert (
        config.ServerApp.root_dir == config.NotebookApp.notebook_dir == "/home/anna/it's"
        and config.KernelManager.transport == "ipc"
    )


@pytest.fixture(name="job")
def _job(tmp_path, monkeypatch):
    """The folder of a job. The image's packages are in tmp_path."""
    monkeypatch.setattr(services, "INSIDE", str(tmp_path / "inside"))
    (tmp_path / "inside").mkdir()
    (tmp_path / "job").mkdir()
    for name, value in dict(JOB, SLURMD_NODENAME="a").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(
        services, "has", lambda module: (tmp_path / "packages" / (module + ".py")).exists()
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    (tmp_path / "packages").mkdir()
    return tmp_path / "job"


def ends(service, state, seconds=30):
    deadline = time.monotonic() + seconds
    while not service.look() or service.state != state:
        assert time.monotonic() < deadline and service.state in ("starting", "ready"), vars(service)
        time.sleep(0.05)


def test_the_life_of_a_service(job):
    (job.parent / "packages/notebook.py").write_text(SERVER % {"fails": False}, encoding="utf-8")
    service = services.Service("jupyter", True, str(job))
    try:
        assert service.status(dict(os.environ))["state"] == "starting"
        ends(service, "ready")
        told = service.status(dict(os.environ))
        assert told["host"] == "a" and len(told["token"]) == 48
        # Everybody on the host can read the arguments.
        assert told["token"] not in Path("/proc/%d/cmdline" % service.child.pid).read_text(
            encoding="utf-8"
        )
        assert (job.parent / "inside/jupyter/config.py").stat().st_mode & 0o777 == 0o600
    finally:
        service.child.kill()
    ends(service, "failed")
    assert (
        service.why
        == "it ended with exit code -9: it said nothing. Log: %s/service.jupyter.log" % job
    )


def test_services_that_cannot_run(job):
    (job / "services.json").write_text(
        json.dumps({"jupyter": {"setting": True}, "tensorboard": {"setting": "/logs"}}),
        encoding="utf-8",
    )
    (job.parent / "packages/jupyterlab.py").write_text(SERVER % {"fails": True}, encoding="utf-8")
    assert services.run(str(job)) == 1
    told = json.loads((job / "services.json").read_text(encoding="utf-8"))
    said = "the image has no TensorBoard; use an image with it, or install it in yours"
    assert (told["tensorboard"]["state"], told["tensorboard"]["why"]) == ("failed", said)
    assert (
        told["jupyter"]["why"]
        == "it ended with exit code 1: there is no disk space. Log: %s/service.jupyter.log" % job
    )
    assert (job / "services.json").stat().st_mode & 0o777 == 0o600
    assert services.wait(str(job)) == 1


def test_a_service_that_never_answers(job, monkeypatch):
    (job.parent / "packages/jupyterlab.py").write_text(
        "import time; time.sleep(60)\n", encoding="utf-8"
    )
    monkeypatch.setattr(services, "START_SECONDS", 0.2)
    service = services.Service("jupyter", True, str(job))
    ends(service, "failed")
    assert service.why.startswith("it does not answer after 0 s") and service.child.wait(10) == -9


def test_the_server_on_a_socket(job):
    """As TensorBoard uses it: a WSGI application, requests side by side, and no port."""

    def application(environment, start):
        start("200 OK", [("Content-Type", "text/plain")])
        return [environment["PATH_INFO"].encode()]

    server = services.TensorBoardServer(application, None)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def get(path):
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(services.INSIDE + "/tensorboard.sock")
        connection.request("GET", path)
        return connection.getresponse().read().decode()

    with socket.socket(socket.AF_UNIX) as idle:
        idle.connect(services.INSIDE + "/tensorboard.sock")
        assert [get("/a"), get("/b")] == ["/a", "/b"]
    server.server.shutdown()
    server.server.server_close()


# --- ssh into a job ---


def test_what_a_session_runs():
    enter = [door.TRAINYARD_RUN, "--enter=1", "--"]
    assert door.session_command(None, "1", "")[:5] == enter + ["sh", "-c"]
    assert door.session_command("echo 'a b'; exit 3", "1", "")[-1] == "echo 'a b'; exit 3"
    assert door.session_command(door.SFTP[0], "1", "") == [door.SFTP[0]]
    assert door.session_command(door.SFTP[0], "1", "/usr/libexec/sftp-server") == enter + [
        "/usr/libexec/sftp-server"
    ]


def test_no_way_in(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(door.Refused, match="not within a job of Slurm"):
        door.main(["serve", "/keys", "0"])
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(door, "SSHD", ("/nonexistent",))
    with pytest.raises(
        door.Refused, match="has no sshd; tell the operator to install openssh-server"
    ):
        door.main(["serve", "/keys", "0"])
    assert door.main([]) == door.main(["serve", "/keys", "../1"]) == 2
