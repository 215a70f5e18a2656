"""What the nightly removal of old tags keeps, and the size limit."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from shared_modules import FOLDERS

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _job_container_plan

ROOT = Path(__file__).resolve().parents[4]
DAY = 86400
NOW = 1_800_000_000


@pytest.fixture(name="relay", scope="module")
def _relay():
    spec = importlib.util.spec_from_file_location(
        "relay_program", ROOT / "roles/image_relay/files/relay.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Registry:
    """A folder as docker-registry 2.8 writes it."""

    def __init__(self, folder, **settings):
        self.storage = folder
        self.base = folder / "registry/docker/registry/v2"
        (folder / "work").mkdir()
        self.settings = folder / "settings.json"
        self.settings.write_text(
            json.dumps(
                dict(
                    {
                        "storage": str(folder),
                        "folder": "site",
                        "config": "/config.yml",
                        "user": "registry",
                        "service": "r.service",
                        "images": [],
                        "keep_days": 30,
                        "max_bytes": 1 << 40,
                        "free_bytes": 0,
                        "people": ["anna", "ben"],
                        "person_bytes": 0,
                    },
                    **settings,
                )
            )
        )

    def digest(self, name):
        return (name.encode().hex() + "0" * 64)[:64]

    def link(self, path, name, days):
        path.mkdir(parents=True, exist_ok=True)
        (path / "link").write_text("sha256:" + self.digest(name))
        os.utime(path / "link", (NOW - days * DAY, NOW - days * DAY))

    def manifest(self, repository, name, days=10, tag=None, parts=()):
        digest = self.digest(name)
        self.link(
            self.base / "repositories" / repository / "_manifests/revisions/sha256" / digest,
            name,
            days,
        )
        blob = self.base / "blobs/sha256" / digest[:2] / digest
        blob.mkdir(parents=True, exist_ok=True)
        (blob / "data").write_text(
            json.dumps(
                {"manifests": [{"digest": "sha256:" + self.digest(part)} for part in parts]}
                if parts
                else {}
            )
        )
        if tag:
            self.link(
                self.base / "repositories" / repository / "_manifests/tags" / tag / "current",
                name,
                days,
            )

    def left(self, repository):
        folder = self.base / "repositories" / repository / "_manifests"
        return (
            sorted(path.name for path in (folder / "tags").glob("*")),
            sorted(path.name for path in (folder / "revisions/sha256").glob("*")),
        )


@pytest.fixture(name="called")
def _called(relay, monkeypatch):
    calls = []
    monkeypatch.setattr(relay, "run", lambda command, **_options: calls.append(command[:2]))
    return calls


def test_old_tags_go_and_what_an_index_needs_stays(relay, tmp_path, called):
    # Requested, but never recorded: its source did not answer after the record was lost.
    registry = Registry(tmp_path, images=["torch:2.5", "tools/a:1"])
    registry.manifest("anna/x", "old", days=40, tag="old")
    registry.manifest("anna/x", "index", days=10, tag="new", parts=["amd", "arm"])
    for part in ("amd", "arm"):
        registry.manifest("anna/x", part, days=10)
    registry.manifest("anna/x", "pushed now", days=0)
    registry.manifest("site/torch", "approved", days=400, tag="2.5")
    registry.manifest("site/torch", "former", days=400, tag="2.4")
    registry.manifest("site/torch", "former too", days=20, tag="2.3")
    registry.manifest("site/tools/a", "unrecorded", days=400, tag="1")
    # A person's image with the name of a relayed one.
    registry.manifest("anna/torch", "hers", days=400, tag="2.3")
    (tmp_path / "relayed.json").write_text(
        json.dumps({"torch:2.3": {}, "torch:2.4": {}, "torch:2.5": {}})
    )
    assert relay.tidy(str(registry.settings), NOW) == 0
    assert registry.left("anna/x") == (
        ["new"],
        sorted(map(registry.digest, ["index", "amd", "arm", "pushed now"])),
    )
    assert registry.left("site/torch") == (
        ["2.3", "2.5"],
        sorted(map(registry.digest, ["approved", "former too"])),
    )
    assert registry.left("site/tools/a")[0] == ["1"] and registry.left("anna/torch")[0] == []
    # The record has what the registry has.
    assert list(json.loads((tmp_path / "relayed.json").read_text())) == ["torch:2.3", "torch:2.5"]
    assert called == [["systemctl", "stop"], ["runuser", "-u"], ["systemctl", "start"]]


def test_old_tags_wait_for_a_relay(relay, tmp_path, monkeypatch):
    """It needs the registry, and both write relayed.json."""
    registry, free = Registry(tmp_path), []
    registry.manifest("anna/x", "a", tag="a")

    def run(_command, **_options):
        with open(tmp_path / "work/lock", "w", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                free.append(True)
            except BlockingIOError:
                free.append(False)

    monkeypatch.setattr(relay, "run", run)
    relay.tidy(str(registry.settings), NOW)
    assert free == [False] * 3
    run([])
    assert free[3]


def test_nothing_is_too_old_with_0_days(relay, tmp_path, called):
    registry = Registry(tmp_path, keep_days=0)
    registry.manifest("anna/x", "old", days=4000, tag="old")
    relay.tidy(str(registry.settings), NOW)
    assert registry.left("anna/x") == (["old"], [registry.digest("old")])


def test_the_registry_starts_again_if_the_removal_fails(relay, tmp_path, monkeypatch):
    registry, calls = Registry(tmp_path), []
    registry.manifest("anna/x", "a", tag="a")

    def run(command, **_options):
        calls.append(command[1])
        if command[0] == "runuser":
            raise relay.Failed("no")

    monkeypatch.setattr(relay, "run", run)
    with pytest.raises(relay.Failed):
        relay.tidy(str(registry.settings), NOW)
    assert calls == ["stop", "-u", "start"]


def test_a_registry_without_images(relay, tmp_path, called):
    (tmp_path / "registry").mkdir()
    assert relay.tidy(str(Registry(tmp_path).settings), NOW) == 0 and called == []


@pytest.mark.parametrize(
    "settings, is_full", [({"max_bytes": 1}, True), ({"free_bytes": 1 << 60}, True), ({}, False)]
)
def test_the_size_limit(relay, tmp_path, settings, is_full):
    registry = Registry(tmp_path, **settings)
    registry.manifest("anna/x", "a", tag="a")
    for before in (False, True):
        if before:
            (tmp_path / "full").touch()
        relay.room(str(registry.settings))
        assert (tmp_path / "full").exists() == is_full


def test_the_space_of_a_person(relay, tmp_path):
    registry = Registry(tmp_path, person_bytes=3 << 20)

    def layer(repository, name, mebibytes):
        digest = registry.digest(name)
        registry.link(
            registry.base / "repositories" / repository / "_layers/sha256" / digest, name, 1
        )
        blob = registry.base / "blobs/sha256" / digest[:2] / digest
        blob.mkdir(parents=True, exist_ok=True)
        with open(blob / "data", "wb") as stream:
            stream.truncate(mebibytes << 20)

    def spaces():
        relay.room(str(registry.settings))
        return {
            path.name: json.loads(path.read_text() or "0")
            for path in (tmp_path / "space").iterdir()
        }

    # Twice in one image, twice in the images of one person, and in an approved image.
    layer("anna/a", "one", 2)
    layer("anna/deep/b", "one", 2)
    layer("anna/deep/b", "two", 1)
    layer("site/base", "base", 50)
    layer("anna/deep/b", "base", 50)
    layer("ben/a", "one", 2)
    assert spaces() == {
        "anna.json": {"limit_mib": 3, "used_mib": 3},
        "ben.json": {"limit_mib": 3, "used_mib": 2},
    }
    # A push that runs, into a repository without anything else.
    unfinished = registry.base / "repositories/ben/new/b/_uploads/1"
    unfinished.mkdir(parents=True)
    (unfinished / "data").write_bytes(b"x" * (2 << 20))
    found = spaces()
    assert (
        found["ben.full"] == 0
        and found["ben.json"] == {"limit_mib": 3, "used_mib": 4}
        and "anna.full" not in found
    )
    # Removed content, and a person who has left.
    (unfinished / "data").unlink()
    (
        registry.base
        / "blobs/sha256"
        / registry.digest("two")[:2]
        / registry.digest("two")
        / "data"
    ).unlink()
    registry.settings.write_text(registry.settings.read_text().replace('"anna", "ben"', '"anna"'))
    assert spaces() == {"anna.json": {"limit_mib": 3, "used_mib": 2}}
    registry.settings.write_text(registry.settings.read_text().replace(str(3 << 20), "0"))
    assert spaces() == {"anna.json": {"limit_mib": None, "used_mib": 2}}


def completion(relay, root, answers):
    """A run that completes an image with these files, with answers of buildah by its first
    arguments. Returns the run and what it called.
    """
    calls, own = [], relay.Relay.__new__(relay.Relay)
    own.spec, own.plain, own.auth = {"policy": "/policy.json"}, [], "/auth.json"

    def buildah(*words, **_options):
        calls.append(words[0])
        assert "--authfile" not in words, "what runs programs of the image has no logins"
        code = next(
            (code for start, code in answers.items() if " ".join(words).startswith(start)), 0
        )
        return SimpleNamespace(
            returncode=code,
            stdout="%s\n" % (root if words[0] == "mount" else "image"),
            stderr="why\n",
        )

    own.buildah = buildah
    return own, calls


IMAGE = {
    "name": "a:1",
    "source": "r.example/a:1",
    "digest": "sha256:0",
    "recipe": "1",
    "target": "front:5000/site/a:1",
}


@pytest.mark.parametrize(
    "files, answers, said",
    [
        (
            [],
            {},
            "it has no apt, which installs openssh-server, sudo; use an image of Debian or Ubuntu, or complete: false",
        ),
        (["usr/sbin/sshd"], {}, "it has no apt, which installs sudo;"),
        (
            ["usr/sbin/sshd", "usr/bin/sudo"],
            {"run": 127},
            "it has no pip for its python3, which installs ipykernel; use an image with pip, or complete: false",
        ),
        (
            [
                "usr/bin/apt-get",
                "opt/lib/python3.11/site-packages/ipykernel-6.29.5.dist-info/METADATA",
            ],
            {"run": 100},
            "openssh-server, sudo could not be added (why); see what apt and pip say in the log",
        ),
    ],
)
def test_an_image_that_cannot_be_completed_is_not_pushed(relay, tmp_path, files, answers, said):
    for path in files:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    own, calls = completion(relay, tmp_path, answers)
    (tmp_path / "build").mkdir()
    with pytest.raises(relay.Failed) as caught:
        own.build(IMAGE, str(tmp_path / "build"), [])
    assert str(caught.value).startswith(said) and set(calls) <= {"from", "mount", "run"}


def test_an_image_that_has_all_of_it_gets_labels_only(relay, tmp_path):
    for path in (
        "usr/sbin/sshd",
        "usr/bin/sudo",
        "usr/lib/python3/dist-packages/ipykernel-6.29.5.dist-info/METADATA",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    own, calls = completion(relay, tmp_path, {})
    (tmp_path / "build").mkdir()
    assert own.build(IMAGE, str(tmp_path / "build"), []) == [] and calls == [
        "from",
        "mount",
        "run",
        "config",
        "commit",
        "push",
    ]


def test_programs_of_an_image_are_not_root_of_the_host(relay, tmp_path):
    folder = tmp_path / "build"
    (folder / "site").mkdir(parents=True)
    (folder / "site" / "pip.conf").write_text("word", encoding="utf-8")
    (folder / "site" / "pip.conf").chmod(0o600)
    relay.give(str(folder))
    for path in (tmp_path, *tmp_path.parents):
        path.chmod(0o755)
        if path.name.startswith("pytest-of-"):
            break
    of_root = tmp_path / "of-root"
    of_root.write_text("", encoding="utf-8")
    of_root.chmod(0o600)
    left = tmp_path / "build" / "left"

    def work():
        assert (
            os.getuid() == 0
            and (folder / "site" / "pip.conf").read_text(encoding="utf-8") == "word"
        )
        left.write_text(str(subprocess.Popen(["sleep", "60"]).pid), encoding="ascii")
        return [of_root.exists(), os.access(of_root, os.R_OK)]

    assert relay.with_own_ids(work) == [True, False]
    assert left.stat().st_uid == relay.FIRST_ID
    deadline = time.monotonic() + 5
    while (
        os.path.exists("/proc/" + left.read_text(encoding="ascii")) and time.monotonic() < deadline
    ):
        time.sleep(0.1)
    status = "/proc/%s/stat" % left.read_text(encoding="ascii")
    # Without an init that reaps it, it stays as a zombie.
    assert not os.path.exists(status) or Path(status).read_text(encoding="ascii").split()[2] == "Z"

    assert relay.FIRST_ID + relay.IDS <= _job_container_plan.FIRST_RANGE, "IDs of people"

    def fails():
        raise relay.Failed("the reason")

    with pytest.raises(relay.Failed, match="the reason"):
        relay.with_own_ids(fails)


def test_another_source_of_the_same_image_is_recorded(relay, tmp_path):
    """What was added to the image is not lost, and a run in which the new source does not answer
    knows it.
    """
    manifest = b"{}"
    digest = relay._image_relay.digest_of(manifest)
    own = relay.Relay.__new__(relay.Relay)
    own.spec = {"relayed": str(tmp_path / "relayed.json")}
    own.manifest, own.describe = (
        lambda _reference: manifest,
        lambda _image, _manifest: {"platforms": [], "frameworks": {}, "versions": {}},
    )
    image = dict(IMAGE, what="record", is_archive=False, source="other.example/a:1")
    for former, added in (
        ({"digest": digest, "added": ["sudo"], "source": IMAGE["source"]}, ["sudo"]),
        ({"digest": "sha256:1", "added": ["sudo"]}, []),
    ):
        own.relayed = {"a:1": former}
        own.one(image)
        entry = json.loads((tmp_path / "relayed.json").read_text())["a:1"]
        assert (entry["source"], entry["digest"], entry["added"]) == (
            "other.example/a:1",
            digest,
            added,
        )


SLOW = """#!/bin/sh
case "$*" in *inspect*) : > {folder}/running; sleep 60;; esac
"""


def test_logins_go_when_a_run_is_stopped_or_was_killed(tmp_path):
    """The program in a process of its own, with tools that do not end."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "work").mkdir()
    for name in ("skopeo", "buildah"):
        (tmp_path / "bin" / name).write_text(SLOW.format(folder=tmp_path), encoding="utf-8")
        (tmp_path / "bin" / name).chmod(0o755)
    own = tmp_path / "relay.py"
    text = (ROOT / "roles/image_relay/files/relay.py").read_text(encoding="utf-8")
    own.write_text(
        text.replace('"/run/trainyard/image_relay"', '"%s/run"' % tmp_path).replace(
            '"PATH": "', '"PATH": "%s/bin:' % tmp_path
        ),
        encoding="utf-8",
    )
    (tmp_path / "logins.json").write_text(
        json.dumps({"auths": {"r.example": {"auth": "YTpi"}}}), encoding="utf-8"
    )
    (tmp_path / "run/run.killed").mkdir(parents=True)
    (tmp_path / "run/run.killed/auth.json").touch()
    (tmp_path / "spec.json").write_text(
        json.dumps(
            {
                "registry": "front:5000",
                "account": "trainyard-relay",
                "tokens": "",
                "logins": str(tmp_path / "logins.json"),
                "plain_http": [],
                "policy": "/policy.json",
                "storage_conf": "/storage.conf",
                "work": str(tmp_path / "work"),
                "relayed": str(tmp_path / "relayed.json"),
                "images": [
                    {
                        "name": "a:1",
                        "what": "record",
                        "source": "r.example/a:1",
                        "is_archive": False,
                        "digest": "sha256:0",
                        "target": "front:5000/site/a:1",
                        "recipe": "",
                    }
                ],
            }
        ),
        encoding="utf-8",
    )
    with subprocess.Popen(
        [sys.executable, str(own), "relay", str(tmp_path / "spec.json")],
        env={"PYTHONPATH": ":".join(FOLDERS)},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + 30
        while not (tmp_path / "running").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not (tmp_path / "logins.json").exists()
        auths = [
            json.loads(path.read_text(encoding="utf-8"))["auths"]
            for path in (tmp_path / "run").glob("*/auth.json")
        ]
        os.killpg(process.pid, signal.SIGTERM)
    assert auths == [{"r.example": {"auth": "YTpi"}}] and process.returncode == 1
    assert list((tmp_path / "run").iterdir()) == []


def test_usage(relay, capsys):
    assert (
        relay.main(["relay"]) == relay.main(["other", "file"]) == 2
        and "usage" in capsys.readouterr().err
    )
