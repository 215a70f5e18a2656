from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import machine
import pytest
from process import LabError

DEB822 = """\
# the mirror of this site
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/security
Suites: bookworm-security
Components: main

Types: deb
URIs: https://vendor.example/node
Suites: nodistro
Components: main

Types: deb
URIs: http://mirror.example/old
Suites: bookworm
Components: main
Enabled: no
"""
ONE_LINE = """\
# deb http://commented.example/debian bookworm main
deb [arch=amd64 signed-by=/etc/apt/keyrings/site.asc] http://mirror.example/debian bookworm-backports main
deb-src http://mirror.example/debian bookworm main
deb http://vendor.example/debian bookworm-pgdg-testing main
deb http://vendor.example/cloud cloud-sdk-bookworm main
"""


def test_apt_sources_of_the_release_only():
    kept = machine.apt_sources([(DEB822, True), (ONE_LINE, False)], "bookworm")
    assert [is_deb822 for is_deb822, _entry in kept] == [True, True, False, False]
    text = "\n".join(entry for _is_deb822, entry in kept)
    assert "bookworm bookworm-updates" in text
    assert "bookworm-security" in text
    assert "signed-by=/etc/apt/keyrings/site.asc" in text
    for absent in (
        "nodistro",
        "cloud-sdk",
        "commented.example",
        "mirror.example/old",
        "the mirror of this site",
    ):
        assert absent not in text


def test_capabilities_without_sys_resource():
    assert "SYS_RESOURCE" not in machine.granted("000001fffeffffff")
    assert "SYS_ADMIN" in machine.granted("000001fffeffffff")
    assert machine.granted("000001ffffffffff") == sorted(machine.CAPABILITIES)
    assert machine.granted("0000000000000000") == []


@pytest.mark.parametrize("text", ["1\n", "999999999", "", "not a number\n"])
def test_pid_file_of_a_killed_engine_is_removed(tmp_path, text):
    file = tmp_path / "docker.pid"
    file.write_text(text)
    machine.remove_stale_pid(file, "dockerd")
    assert not file.exists()


def test_pid_file_of_a_running_process_stays(tmp_path):
    sleep = subprocess.Popen(["sleep", "30"])
    file = tmp_path / "docker.pid"
    file.write_text(f"{sleep.pid}\n")
    try:
        while machine.command_of(sleep.pid) != "sleep":
            time.sleep(0.01)
        machine.remove_stale_pid(file, "sleep")
        assert file.exists()
    finally:
        sleep.kill()
    # A zombie is not running: its parent has not waited for it yet.
    while machine.command_of(sleep.pid):
        time.sleep(0.01)
    machine.remove_stale_pid(file, "sleep")
    assert not file.exists()
    sleep.wait()


def test_pid_file_that_is_absent(tmp_path):
    machine.remove_stale_pid(tmp_path / "docker.pid", "dockerd")


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """An engine that no client reaches, on a machine without systemd whose dockerd is a script of
    the test.
    """
    engine = machine.Engine(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(machine, "is_root", lambda: True)
    monkeypatch.setattr(machine, "runs_systemd", lambda: False)
    monkeypatch.setattr(machine, "PID_FILES", {})
    monkeypatch.setattr(engine, "_find_client", lambda: None)
    return engine


def dockerd(folder, script):
    program = folder / "dockerd"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_engine_that_ends_is_started_again_and_then_reported_with_its_log(engine, tmp_path):
    dockerd(
        tmp_path,
        "echo started >> %s/starts; echo 'failed to start daemon: iptables not found' >&2; exit 1"
        % tmp_path,
    )
    with pytest.raises(
        LabError, match="dockerd ended 3 times, with exit code 1(.|\n)*iptables not found"
    ):
        engine.ensure()
    assert (tmp_path / "starts").read_text() == "started\n" * 3


def test_engine_that_comes_at_the_second_start(engine, tmp_path, monkeypatch):
    dockerd(
        tmp_path,
        "echo started >> %s/starts; [ $(wc -l < %s/starts) = 2 ] || exit 1; touch %s/socket; exec sleep 5"
        % ((tmp_path,) * 3),
    )
    monkeypatch.setattr(
        engine, "_find_client", lambda: "docker" if (tmp_path / "socket").exists() else None
    )
    engine._start()
    assert engine.client == "docker"


def test_engine_that_does_not_answer(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "START_SECONDS", 1)
    dockerd(tmp_path, "echo waiting for containerd; exec sleep 5")
    with pytest.raises(LabError, match="did not answer within 1 s(.|\n)*waiting for containerd"):
        engine.ensure()


@pytest.mark.parametrize("names, ended", [("", True), ("database\nweb\n", False)])
def test_an_engine_with_other_containers_is_not_stopped(
    engine, tmp_path, monkeypatch, capsys, names, ended
):
    ends = []
    monkeypatch.setattr(machine, "command_of", lambda pid: "" if ends else "dockerd")
    monkeypatch.setattr(machine.os, "kill", lambda pid, number: ends.append((pid, number)))
    monkeypatch.setattr(
        engine, "docker", lambda *arguments: type("Done", (), {"stdout": names})(), raising=False
    )
    engine.client = "docker"
    engine.record.write_text(json.dumps({"pid": 4711}))
    engine.stop()
    assert (ends == [(4711, 15)]) is ended and not engine.started_by_lab()
    assert ended or "database, web" in capsys.readouterr().out


RUNNER = """\
Types: deb
URIs: mirror+file:/etc/apt/apt-mirrors.txt
Suites: noble noble-updates noble-security
Components: main universe restricted multiverse
Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg
"""
THIRD_PARTY = "deb [arch=amd64 signed-by=/usr/share/keyrings/vendor.gpg] https://vendor.example/ubuntu/24.04/prod noble main\n"
MIRRORS = Path(__file__).parents[2] / "fixtures/ubuntu/github-runner-apt-mirrors.txt"
TARGETS = (
    "mirror+file:/etc/apt/apt-mirrors.txt/\tUbuntu\nhttps://vendor.example/ubuntu/24.04/prod/\tvendor prod\n"
    "https://site.example/ubuntu/\t\n"
)


def test_sources_of_a_runner_are_the_distributions_and_name_a_server():
    """A runner's list of mirrors exists on the runner only, and a third party has a suite of the
    release's name.
    """
    texts = [(RUNNER, True), (THIRD_PARTY, False)]
    kept = machine.apt_sources(texts, "noble", machine.origins_of(TARGETS))
    assert [is_deb822 for is_deb822, _text in kept] == [True]
    [(_is_deb822, text)] = machine.without_mirror_lists(kept, lambda _path: MIRRORS.read_text())
    assert "mirror+file" not in text and "vendor.example" not in text
    first = MIRRORS.read_text().split()[0]
    assert "URIs: %s\n" % first in text and "Suites: noble noble-updates noble-security" in text


def test_a_source_whose_origin_apt_has_not_read_is_kept():
    assert len(machine.apt_sources([(THIRD_PARTY, False)], "noble", {})) == 1
    site = THIRD_PARTY.replace("vendor.example/ubuntu/24.04/prod", "site.example/ubuntu")
    assert len(machine.apt_sources([(site, False)], "noble", machine.origins_of(TARGETS))) == 1


@pytest.mark.parametrize(
    "text, url",
    [
        ("http://a.example/\tpriority:2\nhttp://b.example/\tpriority:1\n", "http://b.example/"),
        ("# of this site\nhttp://a.example/\n\nhttp://b.example/\n", "http://a.example/"),
        ("http://a.example/\nhttp://b.example/ arch:amd64 priority:9\n", "http://b.example/"),
    ],
)
def test_the_preferred_mirror(text, url):
    assert machine.first_mirror(text) == url


def test_an_empty_list_of_mirrors():
    with pytest.raises(LabError, match="list of mirrors is empty"):
        machine.first_mirror("# nothing\n")
