"""A name server of the site that alone knows a name: builds and running containers use it."""

from __future__ import annotations

import pytest

HOST = "training-container-a"
ADDRESS = "172.30.87.71"
NAME = "trainyard-training"
testinfra_hosts = ["ansible://" + HOST]
# Answers for one name and refuses all others, so that the client tries the next server.
SERVER = (
    """
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("%s", 53))
while True:
    asked, client = server.recvfrom(512)
    end = asked.index(b"\\0", 12) + 5
    known, address = asked[12:end - 4] == b"\\x09only-here\\x04site\\x07example\\0", asked[end - 3:end - 2] == b"\\x01"
    head = asked[:2] + (b"\\x81\\x80" if known else b"\\x81\\x85") + b"\\0\\x01\\0" + bytes([known and address]) + b"\\0\\0\\0\\0" + asked[12:end]
    server.sendto(head + (b"\\xc0\\x0c\\0\\x01\\0\\x01\\0\\0\\0\\x3c\\0\\x04\\x0a\\x09\\x08\\x07" if known and address else b""), client)
"""
    % ADDRESS
)


@pytest.fixture(name="server")
def fixture_server(host):
    host.run_expect(
        [0], "cat /etc/resolv.conf > /srv/resolv.conf; printf '%s' '" + SERVER + "' > /srv/names.py"
    )
    host.run_expect([0], "systemd-run --unit names python3 /srv/names.py")
    yield
    host.run_expect([0], "cat /srv/resolv.conf > /etc/resolv.conf; systemctl stop names")


@pytest.mark.usefixtures("server")
def test_name_servers_reach_builds_and_the_running_container(host, role):
    look_up, started = (
        "getent hosts only-here.site.example",
        "docker inspect --format '{{.Id}} {{.State.StartedAt}}' " + NAME,
    )
    # The side effects may leave a container with other settings, and prepare has configured package
    # sources and certificates that these calls do not set.
    assert role(of="package_sources").code == 0
    assert role().code == 0
    before = host.check_output(started)
    assert role(of="package_sources", package_sources_name_servers=[ADDRESS]).code == 0
    assert host.check_output(look_up).split()[0] == "10.9.8.7"
    # Docker keeps the host's former name servers in it.
    assert host.run("docker exec %s %s" % (NAME, look_up)).rc != 0
    run = role()
    assert (run.code, run.changed) == (0, 1)
    assert host.check_output("docker exec %s %s" % (NAME, look_up)).split()[0] == "10.9.8.7"
    assert host.check_output(started) == before
    assert (
        host.ansible(
            "trainyard.gpu.training_container_info", "name=" + NAME, check=False, become=True
        )["container"]["resolv_conf"]
        == ""
    )
    build = (
        "printf 'FROM trainyard/training:molecule\\nRUN %s > /found\\n' | DOCKER_BUILDKIT=1 docker build --quiet --tag names -"
        % look_up
    )
    assert host.run(build).rc == 0
    assert "10.9.8.7" in host.check_output(
        "docker run --rm --network none --entrypoint cat names /found"
    )
    host.run_expect([0], "docker image rm names")
