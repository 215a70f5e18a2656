# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An extension of Jupyter's server in an instance: its page, TensorBoard in its container, images
of it, and its end if nobody uses it.

The server asks who somebody is before it calls this.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import re
import signal
import socket
import time

import _bandwidth
import _files
import _idle
import _job_watch
import _notebook
from _messages import say
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.utils import url_path_join
from tornado import ioloop, netutil, web

SERVER = "/usr/local/lib/trainyard/notebook/server"
#: Seconds until TensorBoard has to answer: an image on a slow disk may need a minute to import its
#: modules.
START_SECONDS = 180
#: Seconds between two looks at what is used.
LOOK_SECONDS = 20
TOOL_SECONDS = 20


def looked_at(path):
    """Return what P(_notebook.folder_problem) needs to know of a folder."""
    try:
        state = os.stat(path)
    except OSError as error:
        return {"error": error.strerror}
    try:
        owner = pwd.getpwuid(state.st_uid).pw_name
    except KeyError:
        owner = str(state.st_uid)
    return {
        "error": None,
        "is_folder": os.path.isdir(path),
        "readable": os.access(path, os.R_OK | os.X_OK),
        "uid": state.st_uid,
        "owner": owner,
    }


def answers(path):
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


class TensorBoard:
    """The TensorBoard of the instance, on one folder.

    It listens on a socket that only the person can open, as it has no login.
    """

    def __init__(self, runtime):
        self.socket, self.log = runtime + "/tensorboard.sock", runtime + "/tensorboard.log"
        self.child, self.folder, self.lock = None, "", asyncio.Lock()

    def shown(self):
        return self.folder if self.child and self.child.returncode is None else ""

    async def show(self, folder):
        """Start it on a folder. Return why it does not run, or an empty text."""
        async with self.lock:
            if self.shown() == folder and answers(self.socket):
                return ""
            await self.stop()
            with open(os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as log:
                self.child = await asyncio.create_subprocess_exec(
                    SERVER,
                    "tensorboard",
                    folder,
                    self.socket,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            self.folder = folder
            for _look in range(START_SECONDS * 2):
                if self.child.returncode is not None:
                    with open(self.log, encoding="utf-8", errors="replace") as stream:
                        return "TensorBoard has ended: %s" % _notebook.last_line(stream.read())
                if answers(self.socket):
                    return ""
                await asyncio.sleep(0.5)
            await self.stop()
            return "TensorBoard does not answer after %d s. Its log is %s" % (
                START_SECONDS,
                self.log,
            )

    async def stop(self):
        if self.child and self.child.returncode is None:
            self.child.terminate()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.child.wait(), 20)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.socket)


def end_instance():
    """End the batch script, which ends JupyterLab and the container."""
    os.kill(os.getppid(), signal.SIGTERM)


class Save:
    """Saves the container as an image. One at a time, beside everything else."""

    def __init__(self, runtime):
        self.log, self.found, self.task = runtime + "/save.log", dict(_notebook.NOTHING_SAVED), None

    def is_running(self):
        return self.found["state"] == "running"

    def start(self, name, stops):
        """Start a save.

        Return why it does not start, or an empty text. trainyard-run judges the name.
        """
        if self.is_running():
            return "%s is being saved; wait for its end" % self.found["name"]
        if "\0" in name:
            return "the name of an image has no null byte"
        self.found = {"state": "running", "name": name, "text": ""}
        self.task = asyncio.ensure_future(self.run(name, stops))
        return ""

    async def run(self, name, stops):
        try:
            with open(os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as log:
                child = await asyncio.create_subprocess_exec(
                    SERVER, "save", name, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
                )
                code = await child.wait()
            found = _notebook.saved(name, code, _files.read(self.log))
        except OSError as error:
            found = {"state": "failed", "name": name, "text": "the save did not start: %s" % error}
        self.found = found
        say(found["text"])
        if stops and found["state"] == "saved":
            end_instance()


def moment(times):
    """Return the last of some times of Jupyter in seconds, or False without one."""
    return max((found.timestamp() for found in times if found is not None), default=False)


def kernels_in_use(manager):
    kernels = [manager.get_kernel(number) for number in manager.list_kernel_ids()]
    if any(getattr(kernel, "execution_state", None) == "busy" for kernel in kernels):
        return True
    return moment(getattr(kernel, "last_activity", None) for kernel in kernels)


def terminals_in_use(manager):
    return moment(
        getattr(terminal, "last_activity", None)
        for terminal in list(getattr(manager, "terminals", {}).values())
    )


def ssh_in_use(job, processes="/proc"):
    """Return whether an ssh connection into the job is open.

    Role jobs has an sshd for each, which changes its own title, in a step of the job.
    """
    for name in os.listdir(processes):
        found = (
            re.match(
                r"\d+ \(sshd[a-z-]*\) \S (\d+) ", _files.read("%s/%s/stat" % (processes, name))
            )
            if name.isdigit()
            else None
        )
        if found and _files.read("%s/%s/cmdline" % (processes, found.group(1))).startswith(
            "slurmstepd: [%s." % job
        ):
            return True
    return False


async def gpus_in_use(devices):
    """Return whether one of the GPUs of the job is busy. None if that is not known."""
    if not devices:
        return False
    try:
        child = await asyncio.create_subprocess_exec(
            *_job_watch.USAGE,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return None
    try:
        text = (await asyncio.wait_for(child.communicate(), TOOL_SECONDS))[0].decode(
            "utf-8", "replace"
        )
        busy = _job_watch.seen_gpus(
            len(devices), devices, [gpu[0] for gpu in _bandwidth.usage(text)]
        )["busy"]
    except asyncio.TimeoutError:
        child.kill()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(child.wait(), TOOL_SECONDS)
        return None
    except _bandwidth.ParseError:
        return None
    return None if busy is None else busy > 0


class Idle:
    """Watches whether the instance is used. It warns, then ends it."""

    def __init__(self, app, instance, saving):
        self.app, self.limits, self.job, self.saving = (
            app,
            instance["idle"],
            instance["job"],
            saving,
        )
        self.devices = [
            device for device in os.environ.get("SLURM_JOB_GPUS", "").split(",") if device
        ]
        self.began, self.last, self.warned, self.message = time.time(), {}, None, ""

    async def look(self):
        settings = self.app.web_app.settings
        found = {
            "kernels": kernels_in_use(self.app.kernel_manager),
            "terminals": terminals_in_use(settings.get("terminal_manager")),
            "ssh": ssh_in_use(self.job),
            "http": moment([settings.get("api_last_activity")]),
            "gpus": await gpus_in_use(self.devices),
            "save": self.saving.is_running(),
        }
        now = time.time()
        self.last = _idle.looked(self.last, found, now)
        verdict, message = _idle.judge(
            self.began, self.last, now, self.limits, bool(self.devices), self.warned
        )
        if verdict == "active":
            self.warned = None
        elif self.warned is None or verdict == "stop":
            self.warned = now if self.warned is None else self.warned
            say(message)
        self.message = message
        if verdict == "stop":
            end_instance()


def cookie_made(cookies):
    """Return when the cookie of JupyterHub's login on this page was made, or None.

    It has the form of tornado, with the time in its third field.
    """
    client = os.environ.get("JUPYTERHUB_CLIENT_ID", "")
    for name in (client, "__Host-" + client):
        found = (
            re.match(r"2\|1:\d\|\d{1,2}:(\d{1,11})\|", cookies[name].value)
            if name in cookies
            else None
        )
        if found:
            return int(found.group(1))
    return None


class IdleWarning(APIHandler):
    """What the page of JupyterLab asks.

    It does not count as use. Who is not logged in gets 403 instead of the way to the login.
    """

    _track_activity = False

    def initialize(self, idle):
        self.idle = idle

    @web.authenticated
    def get(self):
        self.set_header("Cache-Control", "no-store")
        self.finish(
            {
                "message": self.idle.message
                or _idle.login_words(
                    cookie_made(self.request.cookies), time.time(), self.idle.limits
                )
            }
        )


class Page(JupyterHandler):
    def initialize(self, instance, tensorboard, saving):
        self.instance, self.tensorboard, self.saving = instance, tensorboard, saving

    def show(self, problem="", note=""):
        self.set_header("Cache-Control", "no-store")
        self.finish(
            _notebook.page(
                self.instance,
                self.base_url,
                self.xsrf_form_html(),
                shown=self.tensorboard.shown(),
                # As the page of a job asks for. Nothing is shown before its person says so.
                folder=self.get_query_argument("folder", "")[:4096],
                problem=problem,
                found=self.saving.found,
                note=note,
            )
        )

    @web.authenticated
    def get(self):
        self.show()


class Folder(Page):
    @web.authenticated
    async def post(self):
        path = _notebook.folder_of(self.get_body_argument("folder", ""), self.instance["home"])
        # A name with a null byte has no path.
        path = path if "\0" in path else os.path.realpath(path)
        problem = _notebook.folder_problem(
            path,
            {"error": "no such name"} if "\0" in path else looked_at(path),
            os.getuid(),
            self.instance["folders"],
        )
        problem = problem or await self.tensorboard.show(path)
        if problem:
            self.set_status(400)
            return self.show(problem)
        return self.redirect(url_path_join(self.base_url, "tensorboard/"))


class SaveImage(Page):
    @web.authenticated
    async def post(self):
        problem = self.saving.start(
            self.get_body_argument("name", "").strip(" "), self.get_body_argument("stop", "") == "1"
        )
        if problem:
            self.set_status(409)
            return self.show(problem)
        return self.redirect(url_path_join(self.base_url, "trainyard/"))


class RootTerminal(Page):
    @web.authenticated
    async def post(self):
        manager = self.settings.get("terminal_manager")
        if manager is None:
            self.set_status(400)
            return self.show("this server has no terminals")
        name = manager.create(shell_command=[SERVER, "shell", "root"], cwd=self.instance["home"])[
            "name"
        ]
        return self.show(
            note=(
                "Terminal %s is root's. JupyterLab lists it among the running terminals, at its "
                "left side."
            )
            % name
        )


def hold_identity(app) -> None:
    """Load certificate and key, and remove the files. Tornado would read them at each
    connection.
    """
    app.http_server.ssl_options = netutil.ssl_options_to_context(app.ssl_options, server_side=True)
    for name in ("certfile", "keyfile", "ca_certs"):
        os.unlink(app.ssl_options[name])


def _jupyter_server_extension_points():
    return [{"module": "trainyard_notebook"}]


def _load_jupyter_server_extension(app):
    runtime = os.environ["JUPYTER_RUNTIME_DIR"]
    with open(runtime + "/instance.json", encoding="utf-8") as stream:
        instance = json.load(stream)
    # Before the first connection: the server has none until its loop runs.
    ioloop.IOLoop.current().add_callback(hold_identity, app)
    parts = {"instance": instance, "tensorboard": TensorBoard(runtime), "saving": Save(runtime)}
    base, idle = app.web_app.settings["base_url"], Idle(app, instance, parts["saving"])
    app.web_app.add_handlers(
        ".*$",
        [
            (url_path_join(base, "trainyard/"), Page, parts),
            (url_path_join(base, "trainyard/tensorboard"), Folder, parts),
            (url_path_join(base, "trainyard/save"), SaveImage, parts),
            (url_path_join(base, "trainyard/root"), RootTerminal, parts),
            (url_path_join(base, "trainyard/idle"), IdleWarning, {"idle": idle}),
        ],
    )
    if any(_idle.rules(idle.limits, bool(idle.devices))):
        ioloop.PeriodicCallback(idle.look, LOOK_SECONDS * 1000).start()
