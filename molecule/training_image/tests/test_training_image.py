"""Every host has the same image, and nothing of the site or of the transfer is left."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

testinfra_hosts = ["ansible://cluster"]

FOLDER = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"])
# A line of the certificate, and the secrets of the inventory.
SECRETS = [
    FOLDER.joinpath("site-ca.pem").read_text(encoding="utf-8").splitlines()[3],
    "word-in-the-index",
    "word-in-the-login",
    "word-in-the-proxy",
    "index.site.example",
    "172.30.85.51:3128",
]


def on(host, letter):
    """Return whether a test of one host runs on that host.

    Both names are known, so that no test is skipped unnoticed.
    """
    return {"training-image-a": "a", "training-image-b": "b"}[host.backend.get_hostname()] == letter


@pytest.fixture(name="images")
def fixture_images(host):
    names = host.check_output(
        "docker image ls --filter label=trainyard.recipe --format '{{.Repository}}:{{.Tag}}'"
    ).split()
    return [json.loads(host.check_output("docker image inspect %s", name))[0] for name in names]


def test_every_host_has_the_head_s_layers(host, images):
    head = host.get_host(
        "ansible://training-image-a", ansible_inventory=host.backend.ansible_inventory, sudo=True
    )
    for image in images:
        name = image["RepoTags"][0]
        assert (
            json.loads(head.check_output("docker image inspect %s", name))[0]["RootFS"]["Layers"]
            == image["RootFS"]["Layers"]
        )
    assert (
        len({image["Config"]["Labels"]["trainyard.recipe"] for image in images}) == len(images) > 0
    )


def test_image_says_what_it_is(images):
    for image in images:
        labels = image["Config"]["Labels"]
        assert image["RepoTags"] == ["trainyard/training:" + labels["trainyard.recipe"][:12]]
        layers = json.dumps(
            image["RootFS"]["Layers"], sort_keys=True, separators=(",", ":")
        ).encode()
        assert labels["trainyard.layers"] == hashlib.sha256(layers).hexdigest()
        assert image["RepoDigests"] == []
        assert image["Config"]["Entrypoint"] == ["/usr/local/lib/trainyard/entrypoint"]
        [path] = [entry for entry in image["Config"]["Env"] if entry.startswith("PATH=")]
        assert path.startswith("PATH=/usr/local/lib/trainyard/bin:")


def test_what_was_asked_for_is_in_it(host, images):
    name = images[0]["RepoTags"][0]
    run = "docker run --rm --network none --entrypoint /bin/sh %s -ec %s"
    assert host.check_output(
        run, name, "command -v ssh; command -v sshd; command -v sudo; command -v tree"
    ).split() == [
        "/usr/local/lib/trainyard/bin/ssh",
        "/usr/sbin/sshd",
        "/usr/bin/sudo",
        "/usr/bin/tree",
    ]
    # No edit remains, and the image has no host keys.
    assert (
        host.check_output(
            run, name, "ls /edited /etc/ssh/ssh_host_* /etc/trainyard/* 2>/dev/null || true"
        )
        == ""
    )
    assert host.check_output(
        run, name, "ls /var/lib/apt/lists; ls /usr/sbin/policy-rc.d 2>/dev/null || true"
    ).split() == ["partial"]
    # The base is the image of the hosts: its sources are unchanged.
    sources = "ls /etc/apt/sources.list.d | grep -v ^trainyard"
    assert host.check_output(run, name, "ls /etc/apt/sources.list.d") == host.check_output(sources)


def test_the_build_went_through_the_proxy(host):
    if not on(host, "a"):
        return
    assert "/tree_" in host.check_output(
        "journalctl --unit tinyproxy --output cat --no-pager | grep 'GET http'"
    )
    assert (
        host.run("grep -rl word-in-the-proxy /var/log/trainyard /var/lib/trainyard/image").stdout
        == ""
    )


def test_ssh_checks_host_keys_whatever_it_is_asked_for(host, images):
    said = host.check_output(
        "docker run --rm --network none --entrypoint /bin/sh %s -c 'mkdir -p /etc/trainyard/ssh; touch /etc/trainyard/ssh/ssh_config; "
        "ssh -o StrictHostKeyChecking=off -G somewhere'",
        images[0]["RepoTags"][0],
    )
    assert "stricthostkeychecking true" in said


def test_nothing_of_the_site_is_in_layers_or_history(host, images):
    if not on(host, "a"):
        return
    name = images[0]["RepoTags"][0]
    history = host.check_output(
        "docker history --no-trunc %s && docker image inspect %s", name, name
    )
    assert [secret for secret in SECRETS if secret in history] == []
    host.check_output("docker save %s > /var/tmp/saved.tar", name)
    copy = host.run("cat /var/tmp/saved.tar && rm /var/tmp/saved.tar").stdout_bytes
    found, read = [], 0
    with tarfile.open(fileobj=io.BytesIO(copy)) as archive:
        [saved] = json.load(archive.extractfile("manifest.json"))
        for layer in saved["Layers"]:
            with tarfile.open(fileobj=archive.extractfile(layer)) as files:
                for member in files:
                    data = files.extractfile(member).read() if member.isfile() else b""
                    found += [
                        (member.name, secret) for secret in SECRETS if secret.encode() in data
                    ]
                    read += len(data)
    assert found == []
    assert len(saved["Layers"]) == len(images[0]["RootFS"]["Layers"]) and read > 10**7


def test_hand_out_left_nothing_open(host):
    assert not host.socket("tcp://5443").is_listening
    assert not host.socket("tcp://5000").is_listening
    assert host.run("systemctl is-active trainyard-registry").stdout.strip() == "inactive"
    assert (
        host.run("ls /run/trainyard/login /run/trainyard/registry /var/tmp/trainyard-*").stdout
        == ""
    )
    assert (
        host.run(
            "grep -rl word-in-the-login /run/trainyard /var/lib/trainyard /var/log/trainyard /root /etc"
        ).stdout
        == ""
    )
    assert host.file("/etc/docker/certs.d/172.30.85.51:5443/ca.crt").mode == 0o644


def test_authority_of_earlier_releases_is_replaced(host):
    head = host.get_host(
        "ansible://training-image-a", ansible_inventory=host.backend.ansible_inventory, sudo=True
    )
    assert not host.file("/etc/trainyard/tls").exists
    assert (
        host.file("/etc/docker/certs.d/172.30.85.51:5443/ca.crt").content
        == head.file("/etc/trainyard/transfer/ca.crt").content
    )


def test_registry_was_closed_but_for_the_hand_out_and_gave_strangers_nothing(host):
    if not on(host, "b"):
        return
    host.check_output("systemctl is-active watch-registry")
    seen = host.check_output(
        "journalctl --unit watch-registry --output cat --no-pager"
    ).splitlines()
    assert {
        "closed",
        "without a login: 401",
        "without TLS: 400",
        "with the host's own authorities: unable to get local issuer certificate",
    } <= set(seen)
    assert [answer for answer in seen if answer.endswith(": 200")] == []


def test_registry_of_the_package_is_masked_and_keys_are_root_s(host):
    if not on(host, "a"):
        return
    assert host.run("systemctl is-enabled docker-registry").stdout.strip() == "masked"
    folder = host.file("/etc/trainyard/transfer")
    assert folder.mode == 0o700 and sorted(folder.listdir()) == ["ca.crt", "ca.key"]
    assert host.file("/etc/trainyard/transfer/ca.key").mode == 0o600
    tags = host.check_output(
        "ls /var/lib/trainyard/registry/docker/registry/v2/repositories/trainyard/training/_manifests/tags"
    ).split()
    assert len(tags) == 1
