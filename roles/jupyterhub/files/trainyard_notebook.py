# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An extension of Jupyter's server in an instance: its page, and TensorBoard in its container. The server asks who somebody is before it calls this."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import socket

import _notebook
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.utils import url_path_join
from tornado import web

SERVER = "/usr/local/lib/trainyard/notebook/server"
#: Seconds until TensorBoard has to answer: an image on a slow disk may need a minute to import its modules.
START_SECONDS = 180


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
    return {"error": None, "is_folder": os.path.isdir(path), "readable": os.access(path, os.R_OK | os.X_OK), "uid": state.st_uid, "owner": owner}


def answers(path):
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


class TensorBoard:
    """The TensorBoard of the instance, on one folder. It listens on a socket that only the person can open, as it has no login."""

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
                self.child = await asyncio.create_subprocess_exec(SERVER, "tensorboard", folder, self.socket, stdin=asyncio.subprocess.DEVNULL, stdout=log,
                                                                  stderr=log)
            self.folder = folder
            for _look in range(START_SECONDS * 2):
                if self.child.returncode is not None:
                    with open(self.log, encoding="utf-8", errors="replace") as stream:
                        return "TensorBoard has ended: %s" % _notebook.last_line(stream.read())
                if answers(self.socket):
                    return ""
                await asyncio.sleep(0.5)
            await self.stop()
            return "TensorBoard does not answer after %d s. Its log is %s" % (START_SECONDS, self.log)

    async def stop(self):
        if self.child and self.child.returncode is None:
            self.child.terminate()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.child.wait(), 20)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.socket)


class Page(JupyterHandler):
    def initialize(self, instance, tensorboard):
        self.instance, self.tensorboard = instance, tensorboard

    def show(self, problem=""):
        self.set_header("Cache-Control", "no-store")
        self.finish(_notebook.page(self.instance, self.instance["person"], self.base_url, self.xsrf_form_html(), self.tensorboard.shown(), problem))

    @web.authenticated
    def get(self):
        self.show()


class Folder(Page):
    @web.authenticated
    async def post(self):
        path = _notebook.folder_of(self.get_body_argument("folder", ""), self.instance["home"])
        # A name with a null byte has no path.
        path = path if "\0" in path else os.path.realpath(path)
        problem = _notebook.folder_problem(path, {"error": "no such name"} if "\0" in path else looked_at(path), os.getuid(), self.instance["folders"])
        problem = problem or await self.tensorboard.show(path)
        if problem:
            self.set_status(400)
            return self.show(problem)
        return self.redirect(url_path_join(self.base_url, "tensorboard/"))


def _jupyter_server_extension_points():
    return [{"module": "trainyard_notebook"}]


def _load_jupyter_server_extension(app):
    runtime = os.environ["JUPYTER_RUNTIME_DIR"]
    with open(runtime + "/instance.json", encoding="utf-8") as stream:
        instance = json.load(stream)
    parts = {"instance": instance, "tensorboard": TensorBoard(runtime)}
    base = app.web_app.settings["base_url"]
    app.web_app.add_handlers(".*$", [(url_path_join(base, "trainyard/"), Page, parts), (url_path_join(base, "trainyard/tensorboard"), Folder, parts)])
