"""image_relay_logins, run like in Ansible with the machine's openssl."""

from __future__ import annotations

import base64
import json
import subprocess

import pytest
from scripted_tools import run_module

ACCOUNTS = ["trainyard-relay", "anna", "ben"]


@pytest.fixture(name="run")
def _run(tmp_path):
    def run(accounts=ACCOUNTS, check=False):
        return run_module(
            "image_relay_logins",
            {"folder": str(tmp_path), "accounts": accounts, "group": "root"},
            check,
        )

    return run


def tokens(folder):
    return json.loads((folder / "tokens.json").read_text(encoding="utf-8"))


def accepts(folder, name, token):
    """Whether a line of htpasswd is the hash of a password."""
    lines = dict(
        line.split(":", 1)
        for line in (folder / "htpasswd").read_text(encoding="utf-8").splitlines()
    )
    salt = lines[name].split("$")[2]
    made = subprocess.run(
        ["openssl", "passwd", "-6", "-salt", salt, "-stdin"],
        input=token,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.strip()
    return made == lines[name]


def test_each_account_gets_a_password_of_its_own_and_keeps_it(run, tmp_path):
    done = run()
    first = tokens(tmp_path)
    assert (
        done["changed"]
        and set(first) == set(ACCOUNTS)
        and len(set(first.values())) == 3
        and min(map(len, first.values())) == 32
    )
    assert done["logins"] == {
        name: base64.b64encode(("%s:%s" % (name, token)).encode()).decode()
        for name, token in first.items()
    }
    assert all(accepts(tmp_path, name, token) for name, token in first.items()) and not accepts(
        tmp_path, "anna", first["ben"]
    )
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("tokens.json", "htpasswd")] == [
        0o600,
        0o640,
    ]
    again = run()
    assert not again["changed"] and again["logins"] == done["logins"] and tokens(tmp_path) == first


def test_a_person_leaves_another_comes_and_one_gets_a_new_password(run, tmp_path):
    run()
    first = tokens(tmp_path)
    assert run(["trainyard-relay", "anna", "cleo"])["changed"]
    second = tokens(tmp_path)
    assert set(second) == {"trainyard-relay", "anna", "cleo"} and second["anna"] == first["anna"]
    assert "ben:" not in (tmp_path / "htpasswd").read_text(encoding="utf-8")
    # As the README of the role tells it.
    (tmp_path / "tokens.json").write_text(json.dumps(dict(second, anna="")), encoding="utf-8")
    assert run(["trainyard-relay", "anna", "cleo"])["changed"]
    third = tokens(tmp_path)
    assert (
        third["anna"] not in ("", first["anna"])
        and third["cleo"] == second["cleo"]
        and accepts(tmp_path, "anna", third["anna"])
    )


def test_a_lost_file_is_written_again(run, tmp_path):
    run()
    first = tokens(tmp_path)
    (tmp_path / "htpasswd").unlink()
    assert (
        run()["changed"] and tokens(tmp_path) == first and accepts(tmp_path, "anna", first["anna"])
    )


def test_check_mode_creates_nothing(run, tmp_path):
    done = run(check=True)
    assert done["changed"] and done["logins"] == {} and list(tmp_path.iterdir()) == []


def test_a_damaged_file(run, tmp_path):
    (tmp_path / "tokens.json").write_text("{", encoding="utf-8")
    done = run()
    assert (
        done["failed"]
        and "tokens.json is damaged" in done["msg"]
        and "Restore it from a backup, or remove it" in done["msg"]
    )
