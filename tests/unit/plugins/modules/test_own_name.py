"""own_name, run like in Ansible."""

from __future__ import annotations

import socket

import pytest
from scripted_tools import run_module

OTHERS = "127.0.0.1 localhost\n10.0.0.12 server-b\n"


@pytest.fixture(name="run")
def _run(tmp_path):
    def run(check=False, **arguments):
        arguments.update(
            _ansible_check_mode=check,
            _ansible_diff=True,
            _ansible_remote_tmp=str(tmp_path),
            path=str(tmp_path / "hosts"),
        )
        return run_module("own_name", arguments, check)

    return run


def test_the_name_is_moved_and_restored_exactly(run, tmp_path):
    hosts, own = tmp_path / "hosts", socket.gethostname()
    text = OTHERS + "127.0.1.1 %s\n" % own
    hosts.write_text(text)
    hosts.chmod(0o640)
    told = run(check=True, address="10.0.0.11")
    assert (
        told["changed"]
        and told["diff"]["before"] == text
        and "10.0.0.11 %s" % own in told["diff"]["after"]
        and hosts.read_text() == text
    )
    assert run(address="10.0.0.11")["changed"] and hosts.read_text() == told["diff"]["after"]
    assert run(address="10.0.0.11")["changed"] is False
    assert (
        run(state="absent")["changed"]
        and hosts.read_text() == text
        and hosts.stat().st_mode & 0o777 == 0o640
    )
    assert run(state="absent")["changed"] is False


def test_nothing_to_do(run, tmp_path):
    (tmp_path / "hosts").write_text(OTHERS)
    assert (
        run(address="10.0.0.11")["changed"] is False and (tmp_path / "hosts").read_text() == OTHERS
    )


def test_a_missing_address_fails(run):
    assert "address" in run()["msg"]


@pytest.mark.parametrize(
    "address", ["server-a", "10.0.0.11 example.org", "10.0.0.11\n10.0.0.12 server-b"]
)
def test_what_is_no_address_reaches_no_file(run, tmp_path, address):
    (tmp_path / "hosts").write_text("127.0.1.1 %s\n" % socket.gethostname())
    assert (
        "is not an address" in run(address=address)["msg"]
        and (tmp_path / "hosts").read_text().count("\n") == 1
    )
