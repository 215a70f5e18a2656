"""cuda_link, run like in Ansible, with the real update-alternatives in temporary folders."""

from __future__ import annotations

import os
import subprocess

import pytest
from scripted_tools import run_module


@pytest.fixture(name="host")
def fixture_host(tmp_path):
    for name in (
        "etc/alternatives",
        "admin",
        "local/cuda-11.8",
        "local/cuda-12.4",
        "local/cuda-11.4",
    ):
        (tmp_path / name).mkdir(parents=True)
    program = tmp_path / "update-alternatives"
    program.write_text(
        f"#!/bin/sh\nexec /usr/bin/update-alternatives --altdir {tmp_path}/etc/alternatives --admindir {tmp_path}/admin "
        f'--log {tmp_path}/log "$@"\n',
        encoding="utf-8",
    )
    program.chmod(0o755)
    link = tmp_path / "local/cuda"

    def package(version):
        """What the set-up of a package of NVIDIA's does."""
        subprocess.run(
            [
                str(program),
                "--install",
                str(link),
                "cuda",
                str(tmp_path / f"local/cuda-{version}"),
                version.replace(".", ""),
            ],
            check=True,
            capture_output=True,
        )

    def run(version=None, check=False, state="absent"):
        arguments = {
            "record": str(tmp_path / "placed.d/link.json"),
            "link": str(link),
            "executable": str(program),
        }
        if version:
            arguments.update(
                folder=str(tmp_path / f"local/cuda-{version}"),
                priority=int(version.replace(".", "")),
            )
        return run_module(
            "cuda_link", dict(arguments, state="present" if version else state), check
        )

    def leads():
        return os.path.basename(os.path.realpath(link)) if link.exists() else ""

    run.package, run.leads, run.link, run.folder, run.program = (
        package,
        leads,
        link,
        tmp_path,
        program,
    )
    return run


def status(host):
    return (
        subprocess.run(
            [str(host.program), "--query", "cuda"], capture_output=True, text=True, check=False
        )
        .stdout.partition("Status: ")[2]
        .partition("\n")[0]
    )


def test_packages_do_not_move_it(host):
    host.package("11.8")
    host.package("12.4")
    assert host.leads() == "cuda-12.4"
    assert host("11.8", check=True)["changed"] and host.leads() == "cuda-12.4"
    assert host("11.8")["changed"] and host.leads() == "cuda-11.8"
    assert not host("11.8")["changed"]
    (host.folder / "local/cuda-13.0").mkdir()
    host.package("13.0")
    assert host.leads() == "cuda-11.8"
    assert host()["changed"] and host.leads() == "cuda-13.0" and status(host) == "auto"
    assert not host()["changed"]


def test_the_newest_is_chosen_by_hand_too(host):
    host.package("12.4")
    assert host("12.4")["changed"] and status(host) == "manual"
    assert not host("12.4")["changed"]


def test_a_toolkit_that_is_no_package(host):
    host.link.symlink_to(host.folder / "local/cuda-11.4")
    assert host("11.4")["former"] == {
        "link": str(host.folder / "local/cuda-11.4"),
        "status": "",
        "value": "",
    }
    assert host.leads() == "cuda-11.4" and status(host) == "manual"
    assert not host("11.4")["changed"]
    # Its installer makes the link anew, past the alternatives.
    host.link.unlink()
    host.link.symlink_to(host.folder / "local/cuda-12.4")
    assert host("11.4")["changed"] and host.leads() == "cuda-11.4"
    assert (
        host()["changed"]
        and os.readlink(host.link) == str(host.folder / "local/cuda-11.4")
        and status(host) == ""
    )


def test_from_a_bare_host_and_back(host):
    assert host("11.4")["changed"] and host.leads() == "cuda-11.4"
    assert host("12.4")["changed"] and host.leads() == "cuda-12.4"
    assert host()["changed"] and not host.link.is_symlink() and status(host) == ""


def test_a_toolkit_that_is_gone_already(host):
    host("11.4")
    (host.folder / "local/cuda-11.4").rmdir()
    assert host()["changed"] and not host.link.is_symlink() and status(host) == ""


def test_what_a_user_has_chosen_comes_back(host):
    host.package("11.8")
    host.package("12.4")
    subprocess.run(
        [str(host.program), "--set", "cuda", str(host.folder / "local/cuda-11.8")],
        check=True,
        capture_output=True,
    )
    host("12.4")
    assert host.leads() == "cuda-12.4"
    host()
    assert host.leads() == "cuda-11.8" and status(host) == "manual"


def test_a_users_own_link_outlives_packages(host):
    """They replace it by the alternatives' before anything is chosen, and their last one takes that
    away.
    """
    host.link.symlink_to(host.folder / "local/cuda-11.4")
    assert (
        not host(state="noted", check=True)["changed"] and not (host.folder / "placed.d").exists()
    )
    assert not host(state="noted")["changed"]
    host.package("12.4")
    assert not host(state="noted")["changed"]
    host("12.4")
    assert host.leads() == "cuda-12.4" and [
        path.name for path in (host.folder / "placed.d").iterdir()
    ] == ["link.json"]
    subprocess.run(
        [str(host.program), "--remove", "cuda", str(host.folder / "local/cuda-12.4")],
        check=True,
        capture_output=True,
    )
    assert host()["changed"] and os.readlink(host.link) == str(host.folder / "local/cuda-11.4")
    assert not list((host.folder / "placed.d").iterdir())


def test_an_interrupted_run_before_the_selection_is_restored(host):
    host.link.symlink_to(host.folder / "local/cuda-11.4")
    host(state="noted")
    host.package("12.4")
    assert (
        host()["changed"]
        and host.leads() == "cuda-11.4"
        and not list((host.folder / "placed.d").iterdir())
    )


def test_a_missing_toolkit_and_a_folder_at_the_link_fail(host):
    assert "no toolkit is installed there" in host("12.6")["msg"]
    host.link.mkdir()
    assert "is not a symbolic link" in host("12.4")["msg"]
