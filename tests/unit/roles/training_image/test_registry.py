"""The script of the registry that hands out the image: its authority, and that of earlier
releases.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[4] / "roles/training_image/files/registry"
OURS, HUB = "/CN=trainyard cluster CA", "/CN=trainyard cluster authority"


def created(folder, certificate, subject):
    """Create an authority as an earlier release or module own_certificate did."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "3650",
            "-subj",
            subject,
            "-keyout",
            folder / "ca.key",
            "-out",
            folder / certificate,
        ],
        check=True,
        capture_output=True,
    )


class Host:
    def __init__(self, folder):
        self.folder, self.tls, self.transfer = (
            folder,
            folder / "etc/trainyard/tls",
            folder / "etc/trainyard/transfer",
        )
        tools = folder / "tools"
        tools.mkdir()
        # The registry itself answers nothing here.
        (tools / "docker-registry").write_text("#!/bin/sh\n")
        (tools / "docker-registry").chmod(0o755)
        self.environment = dict(os.environ, PATH="%s:%s" % (tools, os.environ["PATH"]))
        self.script = SCRIPT.read_text(encoding="utf-8")
        for top in ("/etc/", "/run/trainyard", "/var/lib/trainyard"):
            assert top in self.script
            self.script = self.script.replace(top, str(folder) + top)

    def run(self, *arguments):
        return subprocess.run(
            ["/bin/sh", "-s", *arguments],
            input=self.script,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment,
            timeout=60,
        ).stdout

    def left(self):
        return sorted(path.name for path in self.tls.iterdir()) if self.tls.exists() else []


@pytest.fixture(name="host")
def fixture_host(tmp_path):
    return Host(tmp_path)


def test_the_authority_has_a_folder_of_its_own(host):
    created(host.tls, "ca.pem", HUB)
    before = {path.name: path.read_bytes() for path in host.tls.iterdir()}
    host.run("serve", "192.0.2.1")
    assert {path.name: path.read_bytes() for path in host.tls.iterdir()} == before
    assert {path.name: path.stat().st_mode & 0o777 for path in host.transfer.iterdir()} == {
        "ca.crt": 0o600,
        "ca.key": 0o600,
    }
    assert host.transfer.stat().st_mode & 0o777 == 0o700
    authority = host.transfer.joinpath("ca.crt").read_bytes()
    trusted = host.folder / "etc/docker/certs.d/192.0.2.1:5443/ca.crt"
    assert trusted.read_bytes() == authority
    subprocess.run(
        ["openssl", "verify", "-CAfile", trusted, host.folder / "run/trainyard/registry/tls.crt"],
        check=True,
        capture_output=True,
    )
    host.run("serve", "192.0.2.1")
    assert host.transfer.joinpath("ca.crt").read_bytes() == authority


def test_a_transfer_replaces_the_authority_of_an_earlier_release(host):
    created(host.tls, "ca.crt", OURS)
    former = host.tls.joinpath("ca.crt").read_bytes()
    assert "Removed the former CA" in host.run("serve", "192.0.2.1")
    assert not host.tls.exists() and host.transfer.joinpath("ca.crt").read_bytes() != former


def test_the_authority_of_the_hub_stays(host):
    created(host.tls, "ca.crt", OURS)
    # The hub replaces the key, because it finds no ca.pem.
    created(host.tls, "ca.pem", HUB)
    key = host.tls.joinpath("ca.key").read_bytes()
    assert (
        host.run("forget").startswith("Removed")
        and host.left() == ["ca.key", "ca.pem"]
        and host.tls.joinpath("ca.key").read_bytes() == key
    )
    assert host.run("forget") == ""


@pytest.mark.parametrize(
    "subject, others, left",
    [
        (OURS, [], []),
        (OURS, ["mine.txt"], ["mine.txt"]),
        ("/CN=of the site", [], ["ca.crt", "ca.key"]),
        (None, ["ca.key"], ["ca.key"]),
        (None, [], []),
        (None, ["ca.crt", "ca.key"], ["ca.crt", "ca.key"]),
    ],
)
def test_only_our_files_are_removed(host, subject, others, left):
    if subject:
        created(host.tls, "ca.crt", subject)
    for name in others:
        host.tls.mkdir(parents=True, exist_ok=True)
        (host.tls / name).write_text("of another program")
    assert host.run("forget").startswith("Removed") is (subject == OURS) and host.left() == left
