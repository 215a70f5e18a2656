"""The distribution's engine on a host with a user's daemon.json, and later changes by the user."""

from __future__ import annotations

import json

import pytest

HOST = "docker-engine-a"
testinfra_hosts = ["ansible://" + HOST]
CONFIG = "/etc/docker/daemon.json"
OURS = {"live-restore": True, "log-opts": {"max-size": "10m", "max-file": "3"}}


def started(host):
    return host.check_output(
        "systemctl show docker.service --property=ExecMainStartTimestampMonotonic --value"
    )


@pytest.fixture
def config(host):
    """The file, restored after the test."""
    host.run_expect([0], f"cp --preserve {CONFIG} {CONFIG}.test")
    yield host.file(CONFIG)
    host.run_expect([0], f"mv {CONFIG}.test {CONFIG}")


def test_engine_is_the_distributions_and_comes_back_after_a_boot(host):
    assert host.package("docker.io").is_installed
    assert not host.file("/etc/apt/sources.list.d/trainyard-docker.sources").exists
    assert host.service("docker").is_enabled
    assert host.check_output("docker version --format '{{.Server.Version}}'").startswith("20.10.24")
    host.run_expect([0], "/usr/bin/python3 -c 'import requests'")


def test_users_options_stay_beside_ours(host):
    content = host.file(CONFIG)
    assert json.loads(content.content_string) == {
        "log-level": "warn",
        "log-opts": {"max-size": "50m", "max-file": "3"},
        "live-restore": True,
    }
    assert '\n\t\t"max-file": "3"' in content.content_string
    assert content.mode == 0o640
    assert host.check_output("docker info --format '{{.LiveRestoreEnabled}}'") == "true"


@pytest.mark.acceptance
def test_engine_that_is_new_enough_is_left_alone(host, role):
    before = started(host)
    run = role(docker_engine_source="docker_repository", docker_engine_daemon_options=OURS)
    assert (run.code, run.changed) == (0, 0)
    assert started(host) == before
    assert "compose is not installed:" not in run.text


def test_compose_of_debian_12_is_its_program_and_works(host):
    told = host.ansible("trainyard.gpu.docker_engine_info", check=False, become=True)
    assert (told["compose_command"], told["compose_version"]) == ("docker-compose", "1.29.2")
    assert "docker-compose version 1.29.2" in host.check_output("docker-compose version")
    # It connects to the engine and reads a file of services.
    host.run_expect(
        [0], "printf 'version: \"3\"\nservices: {one: {image: of-the-user}}\n' > /srv/compose.yml"
    )
    assert host.check_output("docker-compose --file /srv/compose.yml ps --services") == "one"
    host.run_expect([0], "rm /srv/compose.yml")


@pytest.mark.acceptance
def test_engine_that_is_too_old_is_not_replaced_unasked(host, role):
    run = role(
        docker_engine_source="docker_repository",
        docker_engine_minimum_version="99",
        docker_engine_repository_url="file:///nowhere",
    )
    assert run.code != 0
    assert "docker_engine_replace" in run.text
    assert host.package("docker.io").is_installed


@pytest.mark.acceptance
def test_command_line_that_can_not_build_is_refused(host, role):
    """From 23 on BuildKit needs the plugin.

    A command line that reports version 28.5.1 precedes the distribution's on the PATH.
    """
    newer = "/usr/local/bin/docker"
    said = 'if [ "$1" = --version ]; then echo "Docker version 28.5.1, build e180ab8"; else exec /usr/bin/docker "$@"; fi'
    host.run_expect([0], f"printf '#!/bin/sh\n%s\n' '{said}' > {newer} && chmod 0755 {newer}")
    try:
        run = role(docker_engine_daemon_options=OURS)
    finally:
        host.run_expect([0], f"rm {newer}")
    assert run.code != 0
    assert "Docker's command line 28.5.1 needs the plugin buildx" in run.text


def test_file_that_cannot_be_parsed_is_refused_and_left_alone(host, role, config):
    broken = '{\n  "debug": true,\n  oops\n}\n'
    host.run_expect([0], f"printf '%s' '{broken}' > {CONFIG}")
    before = started(host)
    run = role(docker_engine_daemon_options=OURS)
    assert run.code != 0
    assert f"{CONFIG}: line 3, column 3" in run.text
    assert config.content_string == broken
    assert started(host) == before


def test_former_file_comes_back_when_the_engine_does_not_start(host, role, config):
    before = config.content_string
    run = role(docker_engine_daemon_options=dict(OURS, hosts=["fd://"]))
    assert run.code != 0
    assert "specified both as a flag and in the configuration file: hosts" in run.text
    assert config.content_string == before
    host.run_expect([0], "docker version")


@pytest.mark.acceptance
def test_proxies_are_the_same_text_in_every_run(host, role):
    asked = {
        "docker_engine_http_proxy": "http://proxy.site.example:3128",
        "docker_engine_no_proxy": ["%s.site.example" % name for name in "abcdefgh"],
    }
    assert role(**asked).changed > 0
    assert (
        host.check_output("docker info --format '{{.HTTPProxy}}'")
        == asked["docker_engine_http_proxy"]
    )
    assert (
        host.check_output("docker info --format '{{.NoProxy}}'").split(",")[:8]
        == asked["docker_engine_no_proxy"]
    )
    assert role(**asked).changed == 0
    assert role().code == 0
    assert host.check_output("docker info --format '{{.HTTPProxy}}'") == ""


@pytest.mark.acceptance
def test_options_on_a_host_that_had_its_engine_already(host, role):
    """The role installed no package there, so its folder has no files of the role."""
    records, before = "/var/lib/trainyard/placed.d", host.file(CONFIG).content_string
    host.run_expect([0], f"mv {records} {records}.kept")
    assert role(docker_engine_daemon_options={"shutdown-timeout": 20}).code == 0
    assert json.loads(host.file(CONFIG).content_string) == {
        **json.loads(before),
        "shutdown-timeout": 20,
    }
    assert role(docker_engine_daemon_options={}).code == 0
    assert host.file(CONFIG).content_string == before
    host.run_expect([0], f"rm -r {records} && mv {records}.kept {records}")


@pytest.fixture
def container(host):
    """A minimal container of a user."""
    host.run_expect(
        [0],
        "cd / && tar -ch usr/bin/sleep lib/x86_64-linux-gnu/libc.so.6 lib64/ld-linux-x86-64.so.2 | docker import - of-the-user "
        "&& docker run --detach --network none --name of-the-user of-the-user /usr/bin/sleep infinity",
    )
    yield lambda: host.check_output(
        "docker inspect --format '{{.State.Running}} {{.State.StartedAt}}' of-the-user"
    )
    host.run_expect([0], "docker rm --force of-the-user && docker image rm of-the-user")


@pytest.mark.acceptance
def test_users_container_outlives_what_goes_wrong_and_what_goes_well(host, role, request):
    assert role(docker_engine_daemon_options={}).code == 0
    assert host.check_output("docker info --format '{{.LiveRestoreEnabled}}'") == "false"
    before, running = host.file(CONFIG).content_string, request.getfixturevalue("container")
    since = running()
    assert since.startswith("true ")
    run = role(docker_engine_daemon_options=dict(OURS, hosts=["fd://"]))
    assert run.code != 0
    assert "live-restore could not be reloaded" in run.text
    assert (running(), host.file(CONFIG).content_string) == (since, before)
    # Without live-restore, the restart for the options would stop it.
    refused = role(
        docker_engine_daemon_options={"log-opts": {"max-size": "10m"}},
        docker_engine_daemon_override=["log-opts"],
    )
    assert refused.code != 0
    assert "would stop: of-the-user" in refused.text
    assert role(docker_engine_daemon_options=OURS).code == 0
    assert running() == since
    assert host.check_output("docker info --format '{{.LiveRestoreEnabled}}'") == "true"


@pytest.mark.acceptance
def test_value_of_ours_wins_where_that_is_asked_and_is_taken_back_later(host, role):
    before = host.file(CONFIG).content_string
    assert (
        role(docker_engine_daemon_options=OURS, docker_engine_daemon_override=["log-opts"]).changed
        == 1
    )
    assert json.loads(host.file(CONFIG).content_string)["log-opts"] == {
        "max-size": "10m",
        "max-file": "3",
    }
    assert (
        role(
            docker_engine_daemon_options={"live-restore": True, "log-opts": {"max-file": "3"}}
        ).changed
        == 1
    )
    assert json.loads(host.file(CONFIG).content_string) == json.loads(before)


def test_teardown_leaves_what_the_user_had(host, role):
    assert role("remove").code == 0
    assert not host.package("docker.io").is_installed
    assert not host.package("docker-compose").is_installed
    assert (
        host.file(CONFIG).content_string
        == '{\n\t"log-level": "warn",\n\t"log-opts": { "max-size": "50m" }\n}\n'
    )
    assert host.file(CONFIG).mode == 0o640
    assert not host.file("/var/lib/trainyard/placed.d/docker_engine.json").exists
