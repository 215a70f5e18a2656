# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images that trainyard-run pulls and saves: decisions, then both with a program in the place of
podman. Scenario workbench has the real one.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import re
import sys
import time
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.roles.host_library.files import _registry

FILES = Path(__file__).resolve().parents[4] / "roles/job_container/files"


def load(name):
    sys.path.insert(0, str(FILES))
    sys.modules["_registry"] = _registry
    try:
        spec = importlib.util.spec_from_file_location(
            "of_job_container_" + name, FILES / (name + ".py")
        )
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(FILES))
        del sys.modules["_registry"]


images = load("_images")
FIRST, SECOND, NEW = ("sha256:" + digit * 64 for digit in "123")
BASE = {
    "architecture": "amd64",
    "os": "linux",
    "created": "2026-01-01T00:00:00Z",
    "docker_version": "20",
    "container": "c",
    "container_config": {"Env": ["B=1"]},
    "config": {
        "Env": ["PATH=/bin"],
        "Cmd": ["bash"],
        "Entrypoint": ["/entry"],
        "User": "",
        "WorkingDir": "/w",
        "Labels": {"a": "b"},
    },
    "history": [{"created_by": "ADD"}, {"created_by": "RUN"}],
    "rootfs": {"type": "layers", "diff_ids": [FIRST, SECOND]},
}
COMMITTED = {
    "architecture": "amd64",
    "os": "linux",
    "created": "now",
    "author": "x",
    "config": {
        "Env": ["PATH=/bin", "JUPYTERHUB_API_TOKEN=t", "container=podman"],
        "Cmd": ["-c", "secret"],
        "Entrypoint": ["/bin/sh"],
        "User": "2101:2101",
        "WorkingDir": "/home/anna",
        "Labels": {"a": "b", "trainyard.job": "7"},
    },
    "history": BASE["history"] + [{"created_by": "/bin/sh -c secret"}],
    "rootfs": {"type": "layers", "diff_ids": [FIRST, SECOND, NEW]},
}
LAYERS = [
    {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest, "size": 5}
    for digest in (FIRST, SECOND, NEW)
]
MOMENT = "2026-11-28T12:00:00Z"


@pytest.mark.parametrize("name", ["tools", "a", "my-tools.2", "a__b", "a--b", "0", "a" * 64])
def test_names(name):
    assert images.name_problem(name) == ""


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Tools",
        "a b",
        "a/b",
        "a:1",
        "-a",
        "a-",
        ".a",
        "a..b",
        "a___b",
        "a" * 65,
        "a\n",
        "a\nb",
        "$(id)",
        "../x",
        "ä",
        "--help",
    ],
)
def test_names_that_are_refused(name):
    problem = images.name_problem(name)
    assert "lower-case letters and digits" in problem and "\n" not in problem


@pytest.mark.parametrize(
    "size, free, kept, said",
    [
        (10, 10, 0, ""),
        (1 << 30, 3 << 30, 2 << 30, ""),
        (
            3 << 30,
            2 << 30,
            0,
            "the changes of the container have 3.0 GiB, and /s has 2.0 GiB free; remove",
        ),
        # Less than that, and the health check takes the host out of service.
        (1 << 30, 5 << 30, 20 << 30, "5.0 GiB free, 20.0 GiB of which have to stay free"),
    ],
)
def test_the_room_for_a_commit(size, free, kept, said):
    problem = images.room_problem(size, free, kept, "/s")
    assert said in problem and bool(problem) == bool(said)


def test_the_configuration_is_that_of_the_base():
    """podman commit adds the environment, the command, the user and the labels of the container."""
    found = images.saved_config(BASE, COMMITTED, MOMENT)
    assert found["config"] == BASE["config"] and set(found) == {
        "architecture",
        "os",
        "config",
        "created",
        "rootfs",
        "history",
    }
    assert (
        found["rootfs"] == COMMITTED["rootfs"]
        and found["history"][:-1] == BASE["history"]
        and found["history"][-1]["created_by"] == "trainyard-run --save"
    )
    text = images.as_text(found)
    assert not any(
        word in text for word in ("secret", "TOKEN", "2101", "trainyard.job", "container_config")
    )
    # A container without changes, and a base without a history.
    same = images.saved_config(BASE, dict(COMMITTED, rootfs=BASE["rootfs"]), MOMENT)
    assert same["rootfs"] == BASE["rootfs"] and same["history"][-1]["empty_layer"] is True
    assert "history" not in images.saved_config(
        {key: BASE[key] for key in BASE if key != "history"}, COMMITTED, MOMENT
    )


@pytest.mark.parametrize("layers", [[FIRST, NEW], [FIRST, SECOND, NEW, NEW], [NEW], []])
def test_other_layers_are_refused(layers):
    with pytest.raises(images.ImageError, match="other layers"):
        images.saved_config(BASE, dict(COMMITTED, rootfs={"diff_ids": layers}), MOMENT)


def test_the_folder_of_the_image():
    config = images.saved_config(BASE, COMMITTED, MOMENT)
    files = images.layout(config, LAYERS)
    index = json.loads(files.pop("index.json"))
    assert json.loads(files.pop("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
    assert (
        all(
            hashlib.sha256(text.encode()).hexdigest() == path[len("blobs/sha256/") :]
            for path, text in files.items()
        )
        and len(files) == 2
    )
    manifest = json.loads(files["blobs/sha256/" + index["manifests"][0]["digest"][7:]])
    assert manifest["layers"] == LAYERS and manifest["config"][
        "digest"
    ] == "sha256:" + images.image_id(config)
    assert json.loads(files["blobs/sha256/" + images.image_id(config)]) == config
    assert index["manifests"][0]["size"] == len(
        files["blobs/sha256/" + index["manifests"][0]["digest"][7:]]
    )


def test_what_podman_has_written():
    # As it names the file of a configuration.
    assert (
        images.big_data("0" * 64)
        == "=c2hhMjU2OjAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDA="
    )
    containers = [
        {"id": "c1", "names": ["job-7.0.0"], "image": "i", "layer": "l", "flags": {}},
        {"id": "c2"},
    ]
    assert images.container_of(containers, "job-7.0.0") == {"id": "c1", "image": "i", "layer": "l"}
    assert (
        images.container_of(containers, "job-7.1.0") is None
        and images.container_of(None, "x") is None
    )
    assert (
        images.last_line("a\nError: writing blob: denied: the registry is full\n\n")
        == "writing blob: denied: the registry is full"
    )
    assert images.last_line("\n") == "podman says nothing"


# --- with a program in the place of podman ---

PODMAN = r"""#!%(python)s
import base64, hashlib, json, os, shutil, sys
here, words = %(here)r, sys.argv[1:]
store = here + "/store"
with open(here + "/calls", "a") as stream:
    stream.write(json.dumps({"words": words, "environment": dict(os.environ), "folder": os.getcwd()}) + "\n")
def put(text, manifest):
    number = hashlib.sha256(text.encode()).hexdigest()
    folder = store + "/overlay-images/" + number
    os.makedirs(folder)
    open(folder + "/=" + base64.b64encode(("sha256:" + number).encode()).decode(), "w").write(text)
    open(folder + "/manifest", "w").write(manifest)
    print(number)
name = next(word for word in words if not word.startswith("-"))
if os.path.exists(here + "/fails") and open(here + "/fails").read() == name:
    sys.exit("warning\nError: %(reason)s")
if name == "commit":
    put(open(here + "/committed").read(), json.dumps({"layers": json.load(open(here + "/layers"))}))
elif name == "rmi":
    shutil.rmtree(store + "/overlay-images/" + words[-1])
elif name == "pull" and words[-1].startswith("oci:"):
    index = json.load(open(words[-1][4:] + "/index.json"))
    manifest = open(words[-1][4:] + "/blobs/sha256/" + index["manifests"][0]["digest"][7:]).read()
    text = open(words[-1][4:] + "/blobs/sha256/" + json.loads(manifest)["config"]["digest"][7:]).read()
    put(text + " " * os.path.exists(here + "/changes"), manifest)
elif name == "pull":
    open(here + "/pulled", "w").write(words[-1])
elif name == "push":
    shutil.copytree(store + "/overlay-images/" + words[-2], here + "/pushed")
"""
PERSON = {"name": "anna", "uid": 2001}


class Host:
    def __init__(self, folder, monkeypatch):
        self.here, self.disk, self.checked = folder, folder / "disk", []
        for name in (
            "people",
            "disk",
            "store/overlay-containers",
            "store/overlay/l/diff/usr",
            "base/overlay-images/" + "b" * 64,
        ):
            (folder / name).mkdir(parents=True)
        (folder / "people/anna.json").write_text(
            '{"auths": {"front:5000": {"auth": "YW5uYTpzZWNyZXQ="}}}'
        )
        (folder / "store/overlay-containers/containers.json").write_text(
            json.dumps([{"id": "c1", "names": ["job-7.0.0"], "image": "b" * 64, "layer": "l"}])
        )
        (folder / "store/overlay/l/diff/usr/file").write_bytes(bytes(8192))
        (folder / "base/overlay-images" / ("b" * 64) / images.big_data("b" * 64)).write_text(
            json.dumps(BASE)
        )
        (folder / "committed").write_text(json.dumps(COMMITTED))
        (folder / "layers").write_text(json.dumps(LAYERS))
        (folder / "podman").write_text(
            PODMAN
            % {
                "python": sys.executable,
                "here": str(folder),
                "reason": "denied: the registry is full",
            }
        )
        (folder / "podman").chmod(0o755)
        monkeypatch.setattr(_registry, "LOGINS", str(folder / "people"))
        monkeypatch.setattr(
            _registry.Registry,
            "check_write",
            lambda _self, repository: self.checked.append(repository),
        )
        monkeypatch.setattr(images, "LOGIN", str(folder / "login-%d"))
        self.config = {
            "podman": str(folder / "podman"),
            "registries": ["front:5000"],
            "storage": str(folder),
            "health": {"free_gib": {str(folder): 0}},
        }
        self.place = {
            "command": [str(folder / "podman"), "--root=" + str(folder / "store")],
            "store": str(folder / "store"),
            "stores": [str(folder / "none"), str(folder / "base")],
            "folder": str(self.disk),
            "lock": str(folder / "lock"),
        }

    def save(self, name="tools", environment=None):
        return images.save(
            name,
            "job-7.0.0",
            PERSON,
            self.config,
            self.place,
            environment or {"HOME": "/home/anna"},
        )

    def refused(self, said, name="tools"):
        with pytest.raises((images.ImageError, images.RegistryError), match=said):
            self.save(name)
        self.nothing_is_left()

    def calls(self):
        return (
            [json.loads(line) for line in (self.here / "calls").read_text().splitlines()]
            if (self.here / "calls").exists()
            else []
        )

    def nothing_is_left(self):
        assert (
            list(self.disk.iterdir()) == []
            and [path for path in self.here.glob("store/overlay-images/*")] == []
        )


@pytest.fixture(name="host")
def _host(tmp_path, monkeypatch):
    return Host(tmp_path, monkeypatch)


def test_a_save(host):
    image = host.save()
    assert re.fullmatch(r"front:5000/anna/tools:\d{8}-\d{6}", image) and host.checked == [
        "anna/tools"
    ]
    commit, pull, push = host.calls()[:3]
    assert commit["words"][1:] == [
        "commit",
        "--quiet",
        "--pause=false",
        "--format=oci",
        "c1",
    ] and pull["words"][1:] == ["pull", "--quiet", "oci:saved-image"]
    (config,) = [
        json.loads(path.read_text())
        for path in (host.here / "pushed").iterdir()
        if path.name.startswith("=")
    ]
    assert config["config"] == BASE["config"] and config["rootfs"] == COMMITTED["rootfs"]
    assert push["words"][1:] == ["push", "--quiet", images.image_id(config), "docker://" + image]
    # The login is in a file. No argument, variable or image has it.
    assert all(
        call["environment"]["REGISTRY_AUTH_FILE"] == str(host.here / "people/anna.json")
        for call in host.calls()
    )
    assert (
        "YW5u" not in (host.here / "calls").read_text()
        and "secret" not in (host.here / "calls").read_text()
    )
    assert all(
        call["folder"].startswith(str(host.disk))
        and call["environment"]["TMPDIR"] == str(host.disk)
        for call in host.calls()
    )
    host.nothing_is_left()


@pytest.mark.parametrize("step", ["commit", "pull", "push"])
def test_a_step_that_fails_leaves_nothing(host, step):
    (host.here / "fails").write_text(step)
    host.refused(
        "%s.* failed: denied: the registry is full"
        % ("the push to front:5000" if step == "push" else "podman " + step)
    )


def test_another_configuration_is_not_pushed(host):
    (host.here / "changes").write_text("")
    host.refused("podman has changed the configuration")
    assert not (host.here / "pushed").exists()


def test_what_is_refused_before_a_commit(host):
    host.refused("lower-case", "Tools")
    host.config["registries"] = ["front:5000/site"]
    host.refused("front:5000/anna is not in job_container_registries")
    host.config["registries"] = ["front:5000"]
    host.config["health"] = {"free_gib": {str(host.here): 1 << 20}}
    host.refused("of which have to stay free")
    del host.config["health"]
    (host.here / "store/overlay-containers/containers.json").write_text("[]")
    host.refused("podman has no container job-7.0.0")
    with open(host.place["lock"], "w", encoding="ascii") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        host.refused("another save of this job is running")
    (host.here / "people/anna.json").unlink()
    host.refused("anna has no login")
    (host.here / "people").rmdir()
    host.refused("this cluster has no registry")
    assert host.calls() == [] and host.checked == []


def test_a_registry_that_refuses_is_asked_before_a_commit(host, monkeypatch):
    def refuse(_self, repository):
        raise _registry.RegistryError("the registry front:5000 refuses it: the registry is full")

    monkeypatch.setattr(_registry.Registry, "check_write", refuse)
    host.refused("the registry is full")
    assert host.calls() == []


def test_a_base_that_is_gone(host):
    host.place["stores"] = []
    host.refused("the image of the container, bbbbbbbbbbbb, is not on this host")


def test_the_size_of_changes(host):
    assert (
        images.size_of(str(host.here / "store/overlay/l/diff")) >= 8192
        and images.size_of(str(host.here / "none")) == 0
    )


def pull(host, image, is_there=False):
    (host.here / "login-2001").mkdir(exist_ok=True)
    images.pull(
        image,
        PERSON,
        host.config,
        {
            "HOME": "/home/anna",
            "CONTAINERS_CONF": "/etc/x",
            "XDG_RUNTIME_DIR": "/run/trainyard/jobs/7",
        },
        str(host.disk),
        lambda: is_there,
    )


def test_a_pull_is_one_of_the_person(host):
    pull(host, "front:5000/anna/tools:1")
    (call,) = host.calls()
    assert call["words"] == ["--log-level=error", "pull", "--quiet", "front:5000/anna/tools:1"]
    environment = call["environment"]
    assert "CONTAINERS_CONF" not in environment and environment["XDG_RUNTIME_DIR"] == str(
        host.here / "login-2001"
    )
    assert environment["REGISTRY_AUTH_FILE"] == str(host.here / "people/anna.json") and environment[
        "TMPDIR"
    ] == str(host.disk)
    # Of another registry: with the logins that the person has.
    pull(host, "registry.example.org/x:1")
    assert "REGISTRY_AUTH_FILE" not in host.calls()[1]["environment"]
    # Another task was faster.
    pull(host, "front:5000/anna/tools:1", is_there=True)
    assert len(host.calls()) == 2 and list(host.disk.iterdir()) == []


def test_a_pull_waits_for_another_one(host):
    (host.here / "login-2001").mkdir()
    child = os.fork()
    if child == 0:
        with images.locked(str(host.here / "login-2001/trainyard-pull.lock"), wait=True):
            (host.here / "locked").write_text("")
            time.sleep(0.5)
            (host.here / "unlocked").write_text("")
        os._exit(0)
    while not (host.here / "locked").exists():
        time.sleep(0.01)
    pull(host, "front:5000/anna/tools:1")
    assert (host.here / "unlocked").exists()
    os.waitpid(child, 0)


def test_why_a_pull_fails(host, monkeypatch):
    (host.here / "fails").write_text("pull")
    with pytest.raises(images.ImageError, match="the pull of front:5000/x:1 failed: denied"):
        pull(host, "front:5000/x:1")
    (host.here / "podman").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(images, "PULL_SECONDS", 0.2)
    with pytest.raises(images.ImageError, match="the pull of front:5000/x:1 took more than"):
        pull(host, "front:5000/x:1")
    monkeypatch.setattr(images, "LOGIN", str(host.here / "none-%d"))
    with pytest.raises(images.ImageError, match="cannot be locked: No such file"):
        images.pull("front:5000/x:1", PERSON, host.config, {}, str(host.disk), lambda: False)
