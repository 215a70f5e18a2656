"""The vendor's engine from a signed repository at one exact version, then from a repository with
another key.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from packages_left import packages_that_differ

HOST = "docker-engine-b"
testinfra_hosts = ["ansible://" + HOST]
KEYRING = "/etc/apt/keyrings/trainyard-docker.asc"


def test_engine_is_the_vendors_at_the_version_that_is_asked_for(host):
    assert host.package("docker-ce").version.startswith("5:20.10.24-")
    assert host.package("docker-ce-cli").version == host.package("docker-ce").version
    assert not host.package("docker.io").is_installed
    assert host.service("docker").is_running
    assert host.service("docker").is_enabled


def test_newer_version_is_offered_and_not_taken(host):
    policy = host.check_output("apt-cache policy docker-ce")
    assert "5:28.5.1-" in policy
    assert "Candidate: 5:20.10.24-" in policy


def test_plugins_of_the_source_are_there(host):
    for plugin in ("buildx", "compose"):
        host.run_expect([0], f"test -x /usr/libexec/docker/cli-plugins/docker-{plugin}")
    assert "buildx:" in host.check_output("docker info")


def test_key_is_trusted_for_this_repository_alone(host):
    key = host.check_output("cat /srv/docker-repository/gpg")
    assert host.check_output(f"cat {KEYRING}") == key
    assert (
        f"\nSigned-By: {KEYRING}\n"
        in host.file("/etc/apt/sources.list.d/trainyard-docker.sources").content_string
    )
    assert (
        host.check_output(
            'grep --recursive --files-with-matches --fixed-strings -- "$(sed -n 3p /srv/docker-repository/gpg)" /etc/apt'
        )
        == KEYRING
    )


@pytest.mark.acceptance
def test_teardown_removes_every_package_that_was_absent(host, role):
    assert role("remove").code == 0
    assert packages_that_differ(host, alone=True) == []
    assert (
        host.check_output(
            "find /etc/apt /etc/systemd/system -name '*trainyard*' -o -name 'docker*'"
        )
        == ""
    )


@pytest.mark.acceptance
def test_repository_that_another_key_signed_is_refused(host, role):
    # Another URL, so that no existing list is used.
    host.run_expect(
        [0], "ln --symbolic --no-dereference --force docker-repository /srv/other-repository"
    )
    other = (Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "other.asc").read_text(
        encoding="utf-8"
    )
    run = role(
        docker_engine_repository_url="file:///srv/other-repository",
        docker_engine_repository_key=other,
    )
    assert run.code != 0
    assert "is not signed" in run.text or "NO_PUBKEY" in run.text
    assert not host.package("docker-ce").is_installed
