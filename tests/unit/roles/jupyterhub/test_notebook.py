# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the server of an instance has beside JupyterLab: its page, and TensorBoard on a folder of
its person.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import socket
import sys
import types
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _bandwidth
from ansible_collections.trainyard.gpu.roles.jobs.files import services
from ansible_collections.trainyard.gpu.roles.jupyterhub.files import server
from ansible_collections.trainyard.gpu.roles.train.files import _job_watch

FILES = Path(__file__).resolve().parents[4] / "roles/jupyterhub/files"
FOLDERS = ["/home/anna", "/data1/share"]
GOOD = {"error": None, "is_folder": True, "readable": True, "uid": 2001, "owner": "anna"}
SSH = "ssh -o 'ProxyCommand=ssh anna@front trainyard attach --stdio 7' -o HostKeyAlias=jobs-of-anna anna@job-7"
INSTANCE = {"name": "First", "job": "7", "ssh": SSH}


def load(name, **modules):
    sys.modules.update(modules)
    sys.path.insert(0, str(FILES))
    try:
        spec = importlib.util.spec_from_file_location("of_notebook_" + name, FILES / (name + ".py"))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(FILES))
        for other in modules:
            del sys.modules[other]


def stand_in(name, **content):
    module = types.ModuleType(name)
    module.__dict__.update(content)
    return module


_notebook = load("_notebook")
# Jupyter is not on this machine. Scenario workbench has it.
extension = load(
    "trainyard_notebook",
    **{
        "jupyter_server": stand_in("jupyter_server"),
        "jupyter_server.base": stand_in("jupyter_server.base"),
        "jupyter_server.base.handlers": stand_in(
            "jupyter_server.base.handlers", APIHandler=object, JupyterHandler=object
        ),
        "jupyter_server.utils": stand_in("jupyter_server.utils", url_path_join="/".join),
        "tornado": stand_in(
            "tornado",
            ioloop=None,
            netutil=None,
            web=types.SimpleNamespace(authenticated=lambda function: function),
        ),
        "_bandwidth": _bandwidth,
        "_job_watch": _job_watch,
    },
)


@pytest.mark.parametrize(
    "text, path",
    [
        ("~/logs", "/home/anna/logs"),
        (" logs/run ", "/home/anna/logs/run"),
        ("/data1/share/x/", "/data1/share/x"),
        ("~", "/home/anna"),
        ("", "/home/anna"),
        ("../ben", "/home/ben"),
        ("~ben", "/home/anna/~ben"),
    ],
)
def test_paths_of_people(text, path):
    assert _notebook.folder_of(text, "/home/anna") == path


@pytest.mark.parametrize(
    "path, changes, complaint",
    [
        ("/home/anna/logs", {}, ""),
        ("/home/anna", {}, ""),
        ("/data1/share/vision", {"uid": 0, "owner": "root"}, ""),
        ("/data1/share/ben", {"uid": 2002, "owner": "ben"}, "belongs to ben"),
        ("/home/anna/x", {"readable": False}, "may not read"),
        ("/home/anna/x", {"error": "Permission denied"}, "Permission denied"),
        ("/home/anna/file", {"is_folder": False}, "is not a folder"),
        ("/home/annabel", {}, "is not in /home/anna or /data1/share"),
        ("/etc", {"uid": 0}, "is not in"),
        ("/home/anna/a\nb", {}, "line breaks"),
    ],
)
def test_only_folders_of_the_person_are_shown(path, changes, complaint):
    found = _notebook.folder_problem(path, dict(GOOD, **changes), 2001, FOLDERS)
    assert complaint in found and bool(found) == bool(complaint)


def test_a_server_has_a_free_port_of_its_range():
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        number = first.getsockname()[1]
        # Found by chance: both ports are free, or the one that is left.
        assert {server.free_port("127.0.0.1", [number + 1, number + 2]) for _try in range(50)} == {
            number + 1,
            number + 2,
        }
        assert server.free_port("127.0.0.1", [number, number + 1]) == number + 1
        second.bind(("127.0.0.1", number + 1))
        with pytest.raises(
            server.Refused,
            match="all ports from %d to %d of 127.0.0.1 are in use.* jupyterhub_instance_ports"
            % (number, number + 1),
        ):
            server.free_port("127.0.0.1", [number, number + 1])


def test_folders_are_looked_at(tmp_path):
    (tmp_path / "file").write_text("")
    found = extension.looked_at(str(tmp_path))
    assert (found["error"], found["is_folder"], found["readable"], found["uid"]) == (
        None,
        True,
        True,
        os.getuid(),
    )
    assert (
        not extension.looked_at(str(tmp_path / "file"))["is_folder"]
        and extension.looked_at(str(tmp_path / "none"))["error"] == "No such file or directory"
    )


def test_the_page_quotes_and_has_the_ssh_line():
    page = _notebook.page(
        dict(INSTANCE, name="<b>"),
        "/user/anna/first/",
        "<input xsrf>",
        shown="/home/anna/<i>",
        problem="no <u>",
    )
    assert (
        not any(tag in page for tag in ("<b>", "<i>", "<u>"))
        and "<input xsrf>" in page
        and "no &lt;u&gt;" in page
    )
    assert (
        'action="/user/anna/first/trainyard/tensorboard"' in page
        and 'href="/user/anna/first/tensorboard/"' in page
    )
    assert (
        "ProxyCommand=ssh anna@front trainyard attach --stdio 7" in page
        and "  ProxyCommand ssh anna@front trainyard attach --stdio %n\n" in page
    )
    asked = _notebook.page(INSTANCE, "/", "", shown="/home/anna/a", folder='/data1/"x')
    assert 'value="/data1/&#34;x"' in asked
    plain = _notebook.page(dict(INSTANCE, ssh=""), "/", "")
    assert "<h2>ssh" not in plain and "open it" not in plain and 'problem"' not in plain
    assert (
        _notebook.editor_lines("ssh elsewhere", "anna") == ""
        and _notebook.last_line("a\n b \n") == "b"
    )


def test_the_instance_knows_its_job():
    secret = {
        "name": "First",
        "ssh": SSH.replace("7", "NUMBER"),
        "folders": FOLDERS,
        "environment": {"JUPYTERHUB_API_TOKEN": "t"},
    }
    found = server.instance_of(
        secret, {"home": "/home/anna", "name": "anna"}, "7", {"idle": {"seconds": 1}}
    )
    assert found == {
        "name": "First",
        "job": "7",
        "ssh": SSH,
        "person": "anna",
        "home": "/home/anna",
        "folders": FOLDERS,
        "idle": {"seconds": 1},
        "private_images": False,
    }
    # One that a hub of an earlier version has started.
    assert server.instance_of({"name": "First"}, {"home": "/home/anna", "name": "anna"}, "7", {})[
        "folders"
    ] == ["/home/anna"]


@pytest.mark.parametrize(
    "private, readers",
    [
        (False, "Everybody on the cluster can read it."),
        (True, "The people of your groups can read it."),
    ],
)
def test_the_page_says_who_reads_saved_images(private, readers):
    config = {"private_images": private}
    found = server.instance_of({"name": "First"}, {"home": "/", "name": "anna"}, "7", config)
    assert readers in _notebook.page(found, "/", "")


def test_hosts_without_gpus_have_no_dashboard():
    config = {"environment": "/opt/e", "ca": ""}
    for gpus in (True, False):
        found = server.server_environment({}, {"home": "/", "name": "a"}, "/r", "u", config, gpus)
        assert found["JUPYTER_CONFIG_PATH"].split(":") == [server.SETTINGS] + (
            [] if gpus else [server.WITHOUT_GPUS]
        )


# --- saved images, with a program in the place of trainyard-run ---

SAVED = "saved as front:5000/anna/tools:20261128-120000"


@pytest.mark.parametrize(
    "state, expected",
    [
        (None, ()),
        (
            {"state": "running", "name": "<b>", "text": ""},
            ("Saving &lt;b&gt;", 'http-equiv="refresh"', " disabled>"),
        ),
        ({"state": "saved", "name": "tools", "text": SAVED}, ('<p id="save">%s' % SAVED,)),
        (
            {"state": "failed", "name": "tools", "text": "the registry is <full>"},
            ('<p id="save" class="problem">the registry is &lt;full&gt;',),
        ),
    ],
)
def test_the_page_shows_the_save(state, expected):
    page = _notebook.page(INSTANCE, "/user/anna/first/", "<input xsrf>", found=state, note="<i>")
    for text in expected + (
        'action="/user/anna/first/trainyard/save"><input xsrf>',
        'action="/user/anna/first/trainyard/root"><input xsrf>',
        "&lt;i&gt;",
    ):
        assert text in page, text
    running = bool(state) and state["state"] == "running"
    assert ("refresh" in page, " disabled>" in page, "<b>" in page) == (running, running, False)


@pytest.fixture(name="saving")
def _saving(tmp_path, monkeypatch):
    (tmp_path / "server").write_text(
        "#!/bin/sh\necho \"$@\" >> %s/calls\nsleep 0.2\ncase $2 in bad) echo 'trainyard-run: no room' >&2; exit 125;; esac\necho '%s'\n"
        % (tmp_path, SAVED)
    )
    (tmp_path / "server").chmod(0o755)
    monkeypatch.setattr(extension, "SERVER", str(tmp_path / "server"))
    ended = []
    monkeypatch.setattr(extension, "end_instance", lambda: ended.append(True))

    def run(name, stops=False):
        async def save():
            found = extension.Save(str(tmp_path))
            problems = [found.start(name, stops), found.start("second", True), found.is_running()]
            await found.task
            return found.found, problems

        return (*asyncio.run(save()), len(ended))

    return run


def test_a_save_and_its_end(saving, tmp_path, capfd):
    """One at a time. The instance ends after a good one only, and if that was wanted."""
    found, problems, ended = saving("tools")
    assert found == {"state": "saved", "name": "tools", "text": SAVED} and ended == 0
    assert problems == ["", "tools is being saved; wait for its end", True]
    assert saving("bad", True)[::2] == ({"state": "failed", "name": "bad", "text": "no room"}, 0)
    assert saving("tools", True)[2] == 1
    assert (tmp_path / "calls").read_text().splitlines() == ["save tools", "save bad", "save tools"]
    assert capfd.readouterr().out.splitlines() == [
        "trainyard: " + text for text in (SAVED, "no room", SAVED)
    ]
    assert (tmp_path / "save.log").stat().st_mode & 0o777 == 0o600


def test_a_save_that_does_not_start(saving, monkeypatch, tmp_path):
    monkeypatch.setattr(extension, "SERVER", str(tmp_path / "none"))
    found, _problems, ended = saving("tools", True)
    assert found["state"] == "failed" and "No such file" in found["text"] and ended == 0
    assert (
        extension.Save(str(tmp_path)).start("a\0b", False)
        == "the name of an image has no null byte"
    )


# --- TensorBoard, with a program in its place ---

PROGRAM = """#!%(python)s
import signal, socket, sys, time
folder, path = sys.argv[2:4]
if folder == "bad":
    sys.exit("the image has no TensorBoard")
server = socket.socket(socket.AF_UNIX)
server.bind(path)
server.listen()
open(path + ".shows", "a").write(folder + "\\n")
time.sleep(600)
"""


@pytest.fixture(name="board")
def _board(tmp_path, monkeypatch):
    (tmp_path / "server").write_text(PROGRAM % {"python": sys.executable})
    (tmp_path / "server").chmod(0o755)
    monkeypatch.setattr(extension, "SERVER", str(tmp_path / "server"))

    def run(*folders):
        async def show():
            board = extension.TensorBoard(str(tmp_path))
            try:
                return [(await board.show(folder), board.shown()) for folder in folders]
            finally:
                await board.stop()

        return asyncio.run(show())

    return run


def test_one_folder_at_a_time(board, tmp_path):
    assert board("one", "one", "two") == [("", "one"), ("", "one"), ("", "two")]
    # The second time it was there, and the third time another one was started.
    assert (tmp_path / "tensorboard.sock.shows").read_text() == "one\ntwo\n"
    assert (
        not (tmp_path / "tensorboard.sock").exists()
        and (tmp_path / "tensorboard.log").stat().st_mode & 0o777 == 0o600
    )


def test_why_it_does_not_run(board, monkeypatch):
    assert board("bad", "one") == [
        ("TensorBoard has ended: the image has no TensorBoard", ""),
        ("", "one"),
    ]
    monkeypatch.setattr(extension, "START_SECONDS", 1)
    monkeypatch.setattr(extension, "answers", lambda path: False)
    ((problem, shown),) = board("one")
    assert "does not answer after 1 s" in problem and shown == ""


def test_a_missing_module_is_told_by_its_service(monkeypatch, capsys):
    monkeypatch.setattr(services, "has", lambda module: False)
    assert (
        services.main(["tensorboard", "/logs", "/run/x.sock"]) == 1
        and services.NO_TENSORBOARD in capsys.readouterr().err
    )


def test_it_is_ended_in_the_container(tmp_path, monkeypatch):
    """Signals do not reach a container, so the number of the process is in a file."""
    called, process = [], tmp_path / "t.sock.process"
    monkeypatch.setattr(server, "RUN", "/bin/true")
    monkeypatch.setattr(server, "inside", called.append)

    class Child:
        def __init__(self, command, **_options):
            called.append(command)

        def wait(self):
            process.write_text("42\n")
            os.kill(os.getpid(), signal.SIGTERM)
            return 0

    monkeypatch.setattr(server.subprocess, "Popen", Child)
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert server.main(["tensorboard", "/home/anna/it's", str(tmp_path / "t.sock")]) == 0
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    assert called[0][:5] == ["/bin/true", "--enter=0", "--", "/bin/sh", "-c"] and called[0][
        -2:
    ] == ["/home/anna/it's", str(tmp_path / "t.sock")]
    assert called[1] == ["/bin/sh", "-c", "kill -KILL 42"] and not process.exists()
