# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs Jupyter and TensorBoard beside a job, in the container of its worker 0.

    services run     starts those that services.json in the folder of the job names, and writes there how they are
    services wait    waits until one of them has failed; the exit code is 1
    services tensorboard FOLDER [SOCKET]
                     TensorBoard alone, as instances of the hub have it

Containers of all people on a host share its network. So each service listens on a Unix socket in a
folder that only the person can enter, and on no port. This runs in training images, so it is Python
3.6 with only the standard library, and with what the image has of Jupyter and TensorBoard.
"""

import importlib.util
import json
import os
import secrets
import socket
import socketserver
import subprocess
import sys
import time
import wsgiref.simple_server

#: Folder of the task in the container, and the folders of tasks on the host.
INSIDE, ON_HOST = "/run/trainyard", "/run/trainyard/jobs"
#: Seconds until a service has to answer: an image on a slow disk may need a minute to import its
#: modules.
START_SECONDS = 180
LOOK_SECONDS = 0.5
#: Modules that serve Jupyter, the best first, with the arguments of each.
JUPYTER = (("jupyterlab", "lab"), ("notebook", "notebook"), ("jupyter_server", "server"))
NO_TENSORBOARD = "the image has no TensorBoard; use an image with it, or install it in yours"


# --- pure functions ---


def socket_on_host(name, environment):
    """Return the path under which the host has the socket of a service."""
    task = "task.%s.%s" % (environment["TRAINYARD_STEP_ID"], environment["TRAINYARD_WORKER_INDEX"])
    return "%s/%s/%s/%s.sock" % (ON_HOST, environment["TRAINYARD_JOB_ID"], task, name)


def jupyter_config(token, folder, **place):
    """Return Jupyter's configuration.

    It is a file, because everybody on a host can read the arguments of a process.
    """
    lines = ["# Placed by trainyard.gpu."]
    # The first name is that of Jupyter Server, the second one of Notebook 6.
    for name in ("ServerApp", "NotebookApp"):
        settings = dict(place, token=token, open_browser=False, port_retries=0)
        settings["root_dir" if name == "ServerApp" else "notebook_dir"] = folder
        lines += ["c.%s.%s = %r" % (name, key, settings[key]) for key in sorted(settings)]
    lines.append("c.IdentityProvider.token = %r" % token)
    # Kernels would listen on 127.0.0.1, where anybody on the host could read what they print.
    lines.append("c.KernelManager.transport = 'ipc'")
    return "\n".join(lines) + "\n"


def number_of(part):
    """Return the number of a part of a release. 0 for a part such as C(0a1)."""
    return int(part) if part.isdigit() else 0


def tensorboard_arguments(folder, release):
    """Return the arguments of TensorBoard.

    Its data server, which it has since 2.5, would listen on a port.
    """
    numbers = [number_of(part) for part in release.split(".")[:2]]
    return ["tensorboard", "--logdir", folder] + (
        ["--load_fast=false"] if numbers >= [2, 5] else []
    )


def last_line(text):
    lines = [line.strip() for line in text.replace("\r", "\n").split("\n") if line.strip()]
    return lines[-1][:300] if lines else ""


# --- TensorBoard on a socket ---


class SocketServer(socketserver.ThreadingMixIn, wsgiref.simple_server.WSGIServer):
    address_family = socket.AF_UNIX
    daemon_threads = True

    def server_bind(self):
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "localhost", 0
        self.setup_environ()

    def get_request(self):
        # A Unix socket has no address of its client, but the handler shows one.
        return self.socket.accept()[0], ("localhost", 0)


class Handler(wsgiref.simple_server.WSGIRequestHandler):
    def address_string(self):
        return "localhost"

    def log_message(self, *_arguments):
        return


class TensorBoardServer:
    """What tensorboard.program.TensorBoard accepts as server_class."""

    #: Other than that of the task.
    path = ""

    def __init__(self, wsgi_app, flags):
        del flags
        self.server = SocketServer(self.path or INSIDE + "/tensorboard.sock", Handler)
        self.server.set_app(wsgi_app)

    def serve_forever(self):
        self.server.serve_forever()

    def get_url(self):
        return "http://localhost:0/"

    def print_serving_message(self):
        return


def serve_tensorboard(folder, path=""):
    if not has("tensorboard"):
        sys.stderr.write(NO_TENSORBOARD + "\n")
        return 1
    from tensorboard import default, program, version

    TensorBoardServer.path = path
    tool = program.TensorBoard(plugins=default.get_plugins(), server_class=TensorBoardServer)
    tool.configure(argv=tensorboard_arguments(folder, version.VERSION))
    return tool.main() or 0


# --- starting and watching ---
# Programs on hosts have such functions in _files, which no image has: this file stands alone there.


def write_private(path, text):
    with open(
        os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
    ) as stream:
        stream.write(text)
    os.rename(path + ".new", path)


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def has(module):
    return importlib.util.find_spec(module) is not None


def answers(path):
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(5)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


class Service:
    def __init__(self, name, setting, folder):
        self.name, self.folder = name, folder
        self.path, self.log = "%s/%s.sock" % (INSIDE, name), "%s/service.%s.log" % (folder, name)
        self.token, self.state, self.why, self.child, self.began = (
            "",
            "starting",
            "",
            None,
            time.time(),
        )
        command = self.jupyter() if name == "jupyter" else self.tensorboard(setting)
        if not command:
            self.state = "failed"
            return
        with open(os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as log:
            environment = dict(
                os.environ, JUPYTER_RUNTIME_DIR=INSIDE + "/jupyter", PYTHONUNBUFFERED="1"
            )
            # The launcher's variables would make a rank of each kernel and of TensorBoard.
            for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
                environment.pop(variable, None)
            if name == "tensorboard":
                environment["CUDA_VISIBLE_DEVICES"] = ""
            self.child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    def jupyter(self):
        found = [name for name in JUPYTER if has(name[0])]
        if not found:
            self.why = (
                "the image has no Jupyter; use an image with jupyterlab, or install it in yours"
            )
            return None
        self.token = secrets.token_hex(24)
        os.makedirs(INSIDE + "/jupyter", 0o700, exist_ok=True)
        config = INSIDE + "/jupyter/config.py"
        write_private(
            config, jupyter_config(self.token, os.getcwd(), sock=self.path, sock_mode="0600")
        )
        return [sys.executable, "-m", found[0][0], "--config=" + config]

    def tensorboard(self, setting):
        if not has("tensorboard"):
            self.why = NO_TENSORBOARD
            return None
        return [
            sys.executable,
            os.path.abspath(__file__),
            "tensorboard",
            os.path.expanduser(setting),
        ]

    def look(self):
        """Return whether the state has changed."""
        former = self.state
        if self.state in ("starting", "ready") and self.child.poll() is not None:
            self.state = "failed"
            self.why = "it ended with exit code %d: %s. Log: %s" % (
                self.child.returncode,
                last_line(read(self.log)) or "it said nothing",
                self.log,
            )
        elif self.state == "starting" and answers(self.path):
            self.state = "ready"
        elif self.state == "starting" and time.time() > self.began + START_SECONDS:
            self.state, self.why = (
                "failed",
                "it does not answer after %d s. Log: %s" % (START_SECONDS, self.log),
            )
            self.child.kill()
        return self.state != former

    def status(self, environment):
        return {
            "state": self.state,
            "why": self.why,
            "token": self.token,
            "host": environment.get("SLURMD_NODENAME", ""),
            "socket": socket_on_host(self.name, environment),
        }


def run(folder):
    path = folder + "/services.json"
    requested = json.loads(read(path))
    services = [Service(name, requested[name]["setting"], folder) for name in sorted(requested)]
    changed = list(requested)
    while True:
        if changed:
            write_private(
                path,
                json.dumps(
                    {service.name: service.status(os.environ) for service in services}, indent=2
                )
                + "\n",
            )
        if all(service.state == "failed" for service in services):
            return 1
        time.sleep(LOOK_SECONDS)
        # Each of them has to look.
        changed = [service.name for service in services if service.look()]


def wait(folder):
    while True:
        try:
            statuses = json.loads(read(folder + "/services.json"))
        except ValueError:
            statuses = {}
        for name, service in sorted(statuses.items()):
            if service["state"] == "failed":
                sys.stderr.write("%s: %s\n" % (name, service["why"]))
                return 1
        time.sleep(2)


def main(arguments):
    if arguments[:1] == ["tensorboard"] and len(arguments) in (2, 3):
        return serve_tensorboard(*arguments[1:])
    if arguments in (["run"], ["wait"]):
        return {"run": run, "wait": wait}[arguments[0]](os.environ["TRAINYARD_JOB_DIR"])
    sys.stderr.write(__doc__)
    return 2


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(sys.argv[1:]))
