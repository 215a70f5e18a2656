# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the hub sends to its helper, what a person may choose, login links, and what a server gets
of its job.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import sys
import threading
from pathlib import Path

import _job_file
import jinja2
import pytest

ROOT = Path(__file__).resolve().parents[4]
FILES = ROOT / "roles/jupyterhub/files"


def start_page(*values):
    """The fields of the start page as the hub draws them."""
    folder = jinja2.FileSystemLoader(FILES / "templates")
    template = jinja2.Environment(autoescape=True, loader=folder).get_template("start_form.html")
    return template.render(fields=_instance.start_fields(*values))


def load(name, *folders):
    sys.path[:0] = [str(folder) for folder in folders]
    try:
        spec = importlib.util.spec_from_file_location(
            "of_jupyterhub_" + name, FILES / (name + ".py")
        )
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        del sys.path[: len(folders)]


_instance = load("_instance")
server = load("server")
links = load("links", FILES)
ACCOUNT = {
    "account": "vision",
    "gpus": 4,
    "person_gpus": None,
    "job_gpus": None,
    "max_minutes": None,
    "qos": [],
}
NODES = [
    {"cpus": 8, "memory_gb": 15, "gpus": 8, "classes": ["h100"]},
    {"cpus": 64, "memory_gb": 500, "gpus": 0, "classes": []},
]


def test_only_known_options_are_taken():
    options = {
        "worker_gpu": 1,
        "worker_memory": 2.0,
        "cmd": "rm",
        "command": "rm",
        "name": "x",
        "worker_image": "",
        "environment": {"A": "b"},
        "worker_cpu": True,
    }
    assert _instance.chosen(options) == {"worker_gpu": "1", "worker_memory": "2"}
    assert _instance.chosen(None) == _instance.chosen(["worker_gpu"]) == {}
    # What JSON may spell, and no form.
    assert _instance.chosen(
        {"worker_gpu": float("inf"), "worker_memory": float("nan"), "worker_image": "\ud800x"}
    ) == {"worker_gpu": "inf", "worker_memory": "nan", "worker_image": "?x"}
    assert _instance.of_form(
        {
            "worker_gpu": ["1\n#SBATCH --uid=0"],
            "worker_cpu": [" 2 "],
            "cmd": ["rm"],
            "host_class": [],
        }
    ) == {"worker_gpu": "1\n#SBATCH --uid=0", "worker_cpu": "2"}


def test_only_fields_of_the_form_of_jobs_are_taken():
    """They are keys of job files."""
    sent = {
        "name": " a ",
        "command": "a\r\nb\r\n",
        "environment": "x",
        "copy_results": "x",
        "worker_gpu": "",
        "interactive": "true",
        "preemptible": "false",
        "worker_cpu": "1\n#SBATCH --uid=0",
        "services.ssh": "true",
        "services.jupyter": "false",
        "services.tensorboard": " ~/logs",
        "services.x": "1",
        "services": "ssh",
    }
    fields = _job_file.form_fields()
    assert _instance.of_jobs_form(sent, fields) == {
        "name": "a",
        "command": "a\nb\n",
        "preemptible": "false",
        "worker_cpu": "1\n#SBATCH --uid=0",
        "services": {"ssh": "true", "tensorboard": "~/logs"},
    }
    assert _instance.of_jobs_form({"services.ssh": "false"}, fields) == {}
    assert set(_instance.KEYS) <= set(_job_file.KEYS)


def test_an_instance_is_a_job_file_without_a_gpu_unless_requested():
    found = _instance.job_values("First", {"worker_cpu": "2", "worker_count": "9", "command": "rm"})
    assert found == {
        "name": "First",
        "kind": "Job",
        "worker_count": "1",
        "command": "trainyard-instance",
        "worker_cpu": "2",
        "worker_gpu": "0",
        "worker_memory": "4",
    }


@pytest.mark.parametrize(
    "server_name, display_name, name",
    [("", "", "main"), ("first", "", "first"), ("first-1", "First_1", "First_1")],
)
def test_names(server_name, display_name, name):
    assert _instance.name_of(server_name, display_name) == name


def test_a_server_gets_nothing_else_of_the_hub():
    found = _instance.server_environment(
        {
            "JUPYTERHUB_API_TOKEN": "t",
            "JPY_API_TOKEN": "t",
            "CONFIGPROXY_AUTH_TOKEN": "secret",
            "PATH": "/bin",
            "JUPYTERHUB_X": 1,
        }
    )
    assert found == {"JUPYTERHUB_API_TOKEN": "t", "JPY_API_TOKEN": "t"}


START = {
    "action": "start",
    "name": "a",
    "values": {},
    "environment": {"JUPYTERHUB_API_TOKEN": "t"},
    "identity": {"name": "n", "certificate": "c", "key": "k", "authority": "a"},
}


@pytest.mark.parametrize(
    "request_text",
    [
        "",
        "[]",
        "{}",
        json.dumps({"action": "rm"}),
        json.dumps({"action": "stop"}),
        json.dumps({"action": "stop", "job": "1 2", "file": "a" * 32 + ".json"}),
        json.dumps({"action": "stop", "job": "1", "file": "../" + "a" * 32 + ".json"}),
        json.dumps({"action": "status", "job": "-1"}),
        json.dumps({"action": "clone", "job": "1 --set"}),
        json.dumps({"action": "submit", "values": {"name": 1}}),
        json.dumps({"action": "submit", "values": {"services": {"ssh": "true"}}}),
        json.dumps({"action": "submit"}),
        json.dumps({"action": "stop", "job": "0"}),
        json.dumps(dict(START, name=1)),
        json.dumps(dict(START, values=[])),
        json.dumps(dict(START, environment={"LD_PRELOAD": "/tmp/x"})),
        json.dumps(dict(START, environment=None)),
        json.dumps(dict(START, identity=None)),
        json.dumps(dict(START, identity={"name": "n"})),
        json.dumps(dict(START, identity=dict(START["identity"], key=1))),
        json.dumps(dict(START, identity=dict(START["identity"], more="m"))),
    ],
)
def test_bad_requests_are_refused(request_text):
    with pytest.raises(_instance.RequestError):
        _instance.request_of(request_text)


def test_good_requests():
    for request in (
        START,
        {"action": "choices"},
        {"action": "submit", "values": {"name": "a", "services.ssh": "true"}},
        {"action": "stop", "job": "12", "file": "a" * 32 + ".json"},
    ):
        assert _instance.request_of(json.dumps(request)) == request


@pytest.mark.parametrize(
    "accounts, most, why",
    [
        ([ACCOUNT], 4, "your account has 4 GPUs, so 4 at most"),
        ([dict(ACCOUNT, person_gpus=1)], 1, "your account has 1 GPU, so"),
        ([ACCOUNT, dict(ACCOUNT, account="language", gpus=6)], 6, "your accounts have 6 GPUs"),
        ([ACCOUNT, dict(ACCOUNT, gpus=None)], 8, "no host has more than 8"),
        ([dict(ACCOUNT, gpus=16)], 8, "no host has more than 8"),
        ([], 8, "you have no account"),
    ],
)
def test_the_largest_number_of_gpus_has_its_reason(accounts, most, why):
    found = _instance.choices_of(accounts, NODES, [], "")
    assert found["gpus"]["most"] == most and why in found["gpus"]["why"]


@pytest.mark.parametrize(
    "former, default, selected",
    [
        ({}, "h100", "h100"),
        ({}, "", ""),
        ({}, "p100", ""),
        ({"worker_gpu": "1"}, "h100", ""),
        ({"host_class": "h100"}, "", "h100"),
    ],
)
def test_a_first_start_has_the_default_class_of_the_site(former, default, selected):
    """A person who has chosen any class keeps that choice."""
    page = start_page(
        _instance.choices_of([ACCOUNT], NODES, ["tools:1"], "tools:1"), former, default
    )
    assert ("<option selected>h100</option>" in page, "<option>h100</option>" in page) == (
        selected == "h100",
        selected == "",
    )


def test_the_page_quotes_what_others_have_written():
    choices = _instance.choices_of(
        [dict(ACCOUNT, max_minutes=60)],
        [dict(NODES[0], classes=["<b>"])],
        ["tools:1", 'a"b'],
        "tools:1",
    )
    page = start_page(
        choices, {"worker_gpu": '"><script>', "worker_image": "tools:1", "worker_memory": [1]}
    )
    assert (
        "<script>" not in page and "<b>" not in page and "&lt;b&gt;" in page and "a&#34;b" in page
    )
    assert (
        "<option selected>tools:1</option>" in page
        and 'max="60"' in page
        and 'name="workspace_id"' not in page
    )
    two = _instance.choices_of([ACCOUNT, dict(ACCOUNT, account="language")], NODES, [], "")
    assert 'name="workspace_id"' in start_page(
        two, {}
    ) and '<input class="form-control" id="worker_image"' in start_page(two, {})


SAVED = ["front:5000/anna/tools:20261128-120000", "front:5000/anna/tools:20261127-120000"]


def test_the_page_offers_saved_images_and_others():
    approved = ["front:5000/site/pytorch:2.5", "other:5000/site/x:1"]
    choices = dict(
        _instance.choices_of([ACCOUNT], NODES, ["tools:1"], "tools:1", approved, ["front:5000"]),
        saved=SAVED,
    )
    # What hosts may not pull is not offered.
    assert (
        choices["images"] == ["front:5000/site/pytorch:2.5", "tools:1"]
        and _instance.allowed(SAVED + ["front:50000/x:1"], ["front:5000/"]) == SAVED
    )
    page = start_page(choices, {})
    assert (
        '<optgroup label="Saved by you"><option>%s</option><option>%s</option></optgroup>'
        % tuple(SAVED)
        in page
    )
    assert (
        "<option selected>tools:1</option>" in page
        and 'name="other_image" value=""' in page
        and "from front:5000" in page
    )
    # The last choice, from the list and as a text.
    assert "<option selected>%s</option>" % SAVED[1] in start_page(
        choices, {"worker_image": SAVED[1]}
    )
    assert 'name="other_image" value="front:5000/&lt;b&gt;:1"' in start_page(
        choices, {"worker_image": "front:5000/<b>:1"}
    )
    assert _instance.of_form(
        {"worker_image": ["tools:1"], "other_image": [" front:5000/x:1 "]}
    ) == {"worker_image": "front:5000/x:1"}
    assert _instance.of_form({"worker_image": ["tools:1"], "other_image": [""]}) == {
        "worker_image": "tools:1"
    }
    # A registry that does not answer, and a site without one.
    silent = start_page(
        dict(choices, saved=[], saved_problem="your saved images are not <known>"), {}
    )
    assert (
        "optgroup" not in silent
        and "from front:5000; your saved images are not &lt;known&gt;" in silent
    )
    assert "other_image" not in start_page(
        _instance.choices_of([ACCOUNT], NODES, ["tools:1"], ""), {}
    )


def test_the_registry_is_asked_beside_slurm(monkeypatch):
    """The page works without it, and without a catalogue that can be read."""
    monkeypatch.syspath_prepend(str(FILES))
    instance = load("instance", FILES)

    class Refused(Exception):
        pass

    class Site:
        person, config, answer = (
            "anna",
            {"registries": ["front:5000"]},
            (SAVED + ["other:5000/x:1"], ""),
        )
        catalogue, saved = staticmethod(lambda: ["tools:1"]), classmethod(lambda cls: cls.answer)

        @classmethod
        def approved(cls):
            if cls.answer[1]:
                raise Refused
            return [{"name": "front:5000/site/x:1"}]

    limits = type(
        "Limits", (), {"gpus_of": lambda node: 0, "accounts_of": lambda usage, person: usage}
    )
    trainyard = type(
        "Trainyard",
        (),
        {
            "Refused": Refused,
            "GIB": 1024,
            "usage_now": lambda person: [ACCOUNT],
            "nodes_now": lambda: [{"cpus": 8, "memory_mib": 16000, "features": []}],
            "_job_limits": limits,
            "_job_file": _job_file,
        },
    )
    found = instance.choices(trainyard, Site, {})
    assert (found["images"], found["saved"], found["saved_problem"]) == (
        ["front:5000/site/x:1", "tools:1"],
        SAVED,
        "",
    )
    Site.answer = ([], "it does not answer")
    found = instance.choices(trainyard, Site, {})
    assert (found["images"], found["saved"], found["saved_problem"]) == (
        ["tools:1"],
        [],
        "it does not answer",
    )


def test_links_admit_until_they_end():
    found = {"person": "anna", "until": 100, "seconds": 60}
    assert _instance.link_problem(
        found, "anna", 100
    ) == "" and "60 seconds" in _instance.link_problem(found, "anna", 101)
    for bad in (None, {}, [], {"person": 1, "until": 5}, {"person": "anna", "until": "x"}):
        assert _instance.link_problem(bad, "anna", 0) == "the link is not valid"
    # A link of ben that shows the name of anna, or none.
    for shown in ("anna", "", "ben:x"):
        assert "somebody else" in _instance.link_problem(dict(found, person="ben"), shown, 0)
    for text, parts in (
        ("anna:t-_", ("anna", "t-_")),
        (" anna:t\n", ("anna", "t")),
        ("t", ("", "t")),
        ("", ("", "")),
        ("a:b:c", ("a:b", "c")),
    ):
        assert _instance.parts_of_link(text) == parts
    tokens = {_instance.new_token() for _number in range(100)}
    assert len(tokens) == 100 and all(len(token) >= 43 for token in tokens)
    assert (
        _instance.file_of("a") != _instance.file_of("b")
        and "/" not in _instance.file_of("../../etc/passwd")
        and _instance.file_of("\udcff")
    )


def test_a_link_is_for_who_asks(tmp_path, monkeypatch):
    """The kernel names the other end of the socket."""
    folder = tmp_path / "links"
    folder.mkdir()
    (tmp_path / "hub.json").write_text(
        json.dumps(
            {
                "links": str(folder),
                "link_seconds": 60,
                "url": "https://hub.example.org",
                "people": ["anna"],
                "authenticator": "link",
            }
        )
    )
    monkeypatch.setattr(links, "CONFIG", str(tmp_path / "hub.json"))

    recent = {}

    def asked(person):
        monkeypatch.setattr(links, "name_of", lambda uid: person if uid == os.getuid() else "other")
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        with ours, theirs:
            return links.answer(ours, recent)

    old = folder / "old"
    old.write_text("{}")
    os.utime(old, (1, 1))
    answer = asked("anna")
    url, _hash, token = answer["url"].partition("#")
    person, token = _instance.parts_of_link(token)
    assert person == "anna"
    assert (
        url == "https://hub.example.org/hub/login" and answer["seconds"] == 60 and not old.exists()
    )
    (path,) = folder.iterdir()
    assert (
        path.name == _instance.file_of(token)
        and path.stat().st_mode & 0o777 == 0o600
        and token not in path.read_text()
    )
    assert json.loads(path.read_text())["person"] == "anna"
    other = json.loads((tmp_path / "hub.json").read_text())
    (tmp_path / "hub.json").write_text(json.dumps(dict(other, authenticator="ldap")))
    assert asked("anna") == {
        "error": "this hub has no links: it knows people by ldap. Open https://hub.example.org, and log in there"
    }
    (tmp_path / "hub.json").write_text(json.dumps(other))
    for person in ("ben", None, "root"):
        assert "is not one of the people" in asked(person)["error"]
    assert len(list(folder.iterdir())) == 1
    # Who asks all the time is refused, and the others are not.
    (tmp_path / "hub.json").write_text(json.dumps(dict(other, people=["anna", "ben"])))
    told = [asked("anna") for _time in range(links.MOST)]
    assert (
        "url" in told[-2]
        and "you have asked for 20 links within 60 seconds" in told[-1]["error"]
        and "url" in asked("ben")
    )
    recent["anna"] = [moment - 60 for moment in recent["anna"]]
    assert "url" in asked("anna")


# --- on the host of the instance ---

CONFIG = {"environment": "/opt/e", "ca": "/etc/ca.pem", "addresses": {"a": "192.0.2.11"}}


def test_jupyterlab_and_the_job_do_not_mix():
    found = server.server_environment(
        {"JUPYTERHUB_API_TOKEN": "t", "LD_PRELOAD": "x", "PATH": "/tmp"},
        {"home": "/home/anna", "name": "anna"},
        "/run/r",
        "http://192.0.2.11:5000/",
        CONFIG,
    )
    assert (
        found["PATH"].startswith("/opt/e/bin:")
        and "LD_PRELOAD" not in found
        and found["SSL_CERT_FILE"] == "/etc/ca.pem"
    )
    assert (
        found["JUPYTERHUB_SERVICE_URL"] == "http://192.0.2.11:5000/"
        and found["PYTHONNOUSERSITE"] == "1"
    )
    assert "SSL_CERT_FILE" not in server.server_environment(
        {}, {"home": "/", "name": "a"}, "/r", "u", dict(CONFIG, ca="")
    )
    assert server.job_variables(
        {"SLURM_JOB_ID": "1", "SLURMD_NODENAME": "a", "PATH": "/bin", "JUPYTERHUB_API_TOKEN": "t"}
    ) == {"SLURM_JOB_ID": "1", "SLURMD_NODENAME": "a", "PATH": "/bin"}


def test_the_container_of_an_instance():
    beside = "--mount=%s:%s:ro" % (server.SERVICES, server.SERVICES_INSIDE)
    assert server.container_command({"image": "t:1", "shared_memory": 512}, "/run/r")[1:7] == [
        "--alone",
        "--root",
        "--mount=/run/r",
        beside,
        "--shm-size=512m",
        "t:1",
    ]
    assert server.container_command({"image": "t:1", "shared_memory": None}, "/run/r")[1:6] == [
        "--alone",
        "--root",
        "--mount=/run/r",
        beside,
        "t:1",
    ]
    assert server.address_of(CONFIG, "a") == "192.0.2.11"
    with pytest.raises(server.Refused):
        server.address_of(CONFIG, "b")
    for environment in ({}, {"SLURM_JOB_ID": "../1"}):
        with pytest.raises(server.Refused):
            server.runtime_folder(environment)


def test_a_pull_is_no_time_in_which_the_container_does_not_start(monkeypatch, tmp_path):
    """trainyard-run has a file as long as it pulls. Nothing asks it meanwhile."""
    runtime, asked = tmp_path / "hub", []
    (tmp_path / "pulling").write_text("image")

    class Container:
        returncode = None

        def __init__(self, *_words, **_options):
            self.terminated = False

        def poll(self):
            return None

        def terminate(self):
            self.terminated = True

    def later(_seconds):
        clock[0] += 200
        if clock[0] > 5000:
            (tmp_path / "pulling").unlink(missing_ok=True)

    def inside(command):
        asked.append(command)
        return type("Done", (), {"returncode": 1 if clock[0] < ready else 0})

    clock = [0]
    monkeypatch.setattr(server.subprocess, "Popen", Container)
    monkeypatch.setattr(server.time, "sleep", later)
    monkeypatch.setattr(server.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(server, "inside", inside)
    ready = 5300
    assert (
        isinstance(server.start_container({"image": "t:1"}, str(runtime)), Container)
        and len(asked) == 2
    )
    ready = 50000
    with pytest.raises(server.Refused, match="did not start within 300 s"):
        server.start_container({"image": "t:1"}, str(runtime))


def test_shells_and_saves(monkeypatch):
    ran = []
    monkeypatch.setattr(server.os, "execve", lambda *call: ran.append(call))
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "t")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    for words in (["shell"], ["shell", "root"], ["save", "tools --enter=0"]):
        server.main(words)
    assert [call[1][1:3] for call in ran] == [
        ["--enter=0", "--"],
        ["--enter=0", "--root"],
        ["--save=tools --enter=0"],
    ]
    assert all(
        "JUPYTERHUB_API_TOKEN" not in call[2] and call[2]["SLURM_JOB_ID"] == "7" for call in ran
    )
    assert server.main(["shell", "x"]) == 2


def test_the_secret_is_read_once(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("{}")
    path.chmod(0o640)
    with pytest.raises(server.Refused):
        server.read_secret(str(path))
    path.chmod(0o600)
    assert server.read_secret(str(path)) == {} and not path.exists()


def test_kernels_without_a_connection_file_are_left():
    assert server.left_kernels(["kernel-a.pid", "kernel-a.json", "kernel-b.pid", "other"]) == [
        "kernel-b.pid"
    ]


SERVES = "import socket, sys, time; server = socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(60)"


def test_a_server_has_its_port_before_the_hub_learns_it(monkeypatch, tmp_path):
    """Somebody else may take the port between the search and the start."""
    monkeypatch.setattr(server, "SERVER_SECONDS", 20)
    free, taken = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
    tries = [taken.getsockname()[1], free.getsockname()[1]]
    free.close()
    monkeypatch.setattr(server, "free_port", lambda _address, _ports: tries.pop(0))
    expected, children = tries[1], []
    # The port is in the environment, as the server gets it.
    command = [
        sys.executable,
        "-c",
        SERVES.replace("sys.argv[1]", "__import__('os').environ['PORT']"),
    ]
    process, port = server.start_server(
        command, lambda port: {"PORT": str(port)}, "127.0.0.1", [1, 2], children, []
    )
    assert (
        port == expected
        and process.poll() is None
        and [child.poll() for child in children] == [1, None]
    )
    process.kill()
    tries[:] = [taken.getsockname()[1]] * 3
    with pytest.raises(server.Refused, match="JupyterLab does not start"):
        server.start_server(command, lambda port: {"PORT": str(port)}, "127.0.0.1", [1, 2], [], [])
    with pytest.raises(server.Refused, match="was stopped while it started"):
        server.start_server(
            command, lambda port: {"PORT": str(port)}, "127.0.0.1", [1, 2], [], [15]
        )


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_who_listens(address):
    tables = server._files.read("/proc/net/tcp") + server._files.read("/proc/net/tcp6")
    with socket.create_server(
        (address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET
    ) as ours:
        port = ours.getsockname()[1]
        own = server.sockets_of(os.getpid())
        assert (
            not server.listens(tables, address, port, own)
            and str(os.fstat(ours.fileno()).st_ino) in own
        )
        tables = server._files.read("/proc/net/tcp") + server._files.read("/proc/net/tcp6")
        assert server.listens(tables, address, port, own) and not server.listens(
            tables, address, port, server.sockets_of(1)
        )
        assert not server.listens(tables, "127.0.0.2", port, own)


def test_the_port_is_told_to_the_hub(monkeypatch):
    """A hub that has given up the start does not take it, and one that restarts is asked again."""
    monkeypatch.setattr(server, "HUB_SECONDS", 1)
    monkeypatch.setattr(server.time, "sleep", lambda _seconds: None)
    answers, bodies = [503, 204, 404], []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        for code in answers:
            client, _address = listener.accept()
            with client:
                bodies.append(client.recv(65536).decode())
                client.sendall(
                    b"HTTP/1.1 %d x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % code
                )

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    secret = {
        "JUPYTERHUB_API_URL": "http://127.0.0.1:%d/hub/api" % listener.getsockname()[1],
        "JUPYTERHUB_API_TOKEN": "token1",
    }
    server.tell_hub(secret, 5000, dict(CONFIG, ca=""))
    with pytest.raises(server.Refused, match="does not expect"):
        server.tell_hub(secret, 5000, dict(CONFIG, ca=""))
    listener.close()
    with pytest.raises(server.Refused, match="does not answer"):
        server.tell_hub(secret, 5000, dict(CONFIG, ca=""))
    assert (
        "POST /hub/api/trainyard/instance" in bodies[0]
        and "authorization: token token1" in bodies[0].lower()
    )


def test_the_share_is_in_the_file_browser(tmp_path):
    """As a link in the home.

    What the person has of that name stays, and a share that has the home is not linked into itself.
    """
    home, share = tmp_path / "home/anna", tmp_path / "share"
    for folder in (home, share):
        folder.mkdir(parents=True)
    server.link_share(str(home), [str(home), str(share)])
    server.link_share(str(home), [str(home), str(share)])
    assert os.readlink(home / "share") == str(share) and os.listdir(home) == ["share"]
    (home / "share").unlink()
    (home / "share").mkdir()
    server.link_share(str(home), [str(home), str(share)])
    assert (home / "share").is_dir() and not (home / "share").is_symlink()
    # A share below the home is in the file browser anyway.
    (home / "share").rmdir()
    (home / "data").mkdir()
    server.link_share(str(home), [str(home), str(home / "data")])
    assert os.listdir(home) == ["data"]
