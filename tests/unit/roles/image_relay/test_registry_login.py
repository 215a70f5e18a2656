"""The login of a person in their auth.json, and when a login shell writes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _image_relay_plan as planned

ROOT = Path(__file__).resolve().parents[4]
PROGRAM = ROOT / "roles/image_relay/files/registry_login.py"
OURS, OTHER = {"front:5000": {"auth": "YTpi"}}, {"r.example": {"auth": "Yzpk"}}


class Session:
    """A login shell of a person, whose folders are in a temporary one."""

    def __init__(self, folder):
        self.folder, self.run = folder, folder / "run"
        self.auth = self.run / "containers/auth.json"
        self.run.mkdir(mode=0o700)
        (folder / "people").mkdir()
        name = subprocess.run(
            ["id", "-un"], stdout=subprocess.PIPE, text=True, check=True
        ).stdout.strip()
        self.own = folder / "people" / (name + ".json")
        (folder / "login").write_text(
            '#!/bin/sh\necho started >> %s/started\nexec %s %s "$@"\n'
            % (folder, sys.executable, PROGRAM),
            encoding="utf-8",
        )
        (folder / "login").chmod(0o755)
        profile = planned.PROFILE_TEXT.replace(planned.PEOPLE, str(folder / "people")).replace(
            planned.LOGIN, str(folder / "login")
        )
        (folder / "profile.sh").write_text(profile, encoding="utf-8")

    def renew(self, auths, seconds):
        self.own.write_text(json.dumps({"auths": auths}), encoding="utf-8")
        os.utime(self.own, (seconds, seconds))

    def start(self, shell="sh", **environment):
        done = subprocess.run(
            [shell, "-c", '. %s/profile.sh; echo "$? ${own-none}"' % self.folder],
            env=dict({"PATH": os.environ["PATH"]}, **environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.stdout

    def session(self, shell="sh"):
        return self.start(shell, XDG_RUNTIME_DIR=str(self.run))

    def auths(self):
        return json.loads(self.auth.read_text(encoding="utf-8"))["auths"]

    def started(self):
        path = self.folder / "started"
        return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0


@pytest.fixture(name="session")
def _session(tmp_path):
    return Session(tmp_path)


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_login_shell_gets_the_login_once(session, shell):
    session.renew(OURS, 1000)
    # Nothing is printed, and no variable is left.
    assert session.session(shell) == "0 none\n"
    assert (
        session.auths() == OURS
        and session.auth.stat().st_mode & 0o777 == 0o600
        and session.auth.parent.stat().st_mode & 0o777 == 0o700
    )
    session.session(shell)
    assert session.started() == 1


def test_a_renewed_login_replaces_the_former_one_and_no_other(session):
    session.renew(OURS, 1000)
    session.session()
    session.auth.write_text(
        json.dumps({"auths": dict(OURS, **OTHER), "credHelpers": {"x": "y"}}), encoding="utf-8"
    )
    session.renew({"front:5000": {"auth": "bmV3"}}, 4_000_000_000)
    session.session()
    assert session.auths() == {"front:5000": {"auth": "bmV3"}, **OTHER}
    assert (
        json.loads(session.auth.read_text(encoding="utf-8"))["credHelpers"] == {"x": "y"}
        and [
            path.name
            for path in session.auth.parent.iterdir()
            if path.name.startswith("auth.json.")
        ]
        == []
    )


def test_a_file_of_the_person_is_completed(session):
    session.auth.parent.mkdir()
    session.auth.write_text(json.dumps({"auths": OTHER}), encoding="utf-8")
    session.renew(OURS, 1000)
    session.session()
    assert session.auths() == {**OURS, **OTHER}


def test_a_file_that_the_person_has_written_again(session):
    session.renew(OURS, 1000)
    session.session()
    session.auth.write_text(json.dumps({"auths": OTHER}), encoding="utf-8")
    os.utime(session.auth, (4_000_000_000, 4_000_000_000))
    session.session()
    assert session.auths() == {**OURS, **OTHER}


def test_a_damaged_file_is_left_and_told(session):
    session.auth.parent.mkdir()
    session.auth.write_text("{", encoding="utf-8")
    session.renew(OURS, 1000)
    assert (
        "was not stored" in session.session()
        and "Correct or remove %s" % session.auth in session.session()
    )
    assert session.auth.read_text(encoding="utf-8") == "{"


def test_people_without_a_login_or_a_session(session):
    assert session.session() == "0 none\n" and not session.auth.exists()
    session.renew(OURS, 1000)
    assert session.start() == "0 none\n"
    # As su leaves it.
    assert (
        session.start(XDG_RUNTIME_DIR="/run/user/4000000000") == "0 none\n"
        and session.start(XDG_RUNTIME_DIR="") == "0 none\n"
    )
    assert session.started() == 0
