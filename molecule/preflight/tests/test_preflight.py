"""Break one thing on a host: the playbook reports the problem and the host, nothing else, and
passes after the repair. It changes nothing.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[3]
A, B = HOSTS = ("preflight-a", "preflight-b")
FINDING = re.compile(r"^\s*(BLOCK|WARN) ([\w-]+): (.+)$", re.MULTILINE)


def on(host, command, check=True):
    done = subprocess.run(
        ["docker", "exec", host, "sh", "-c", command],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.returncode == 0 or not check, "%s: %s: %s" % (host, command, done.stdout)
    return done.stdout


def preflight(*arguments, **variables):
    command = [
        "ansible-playbook",
        "playbooks/preflight.yml",
        "-i",
        os.environ["MOLECULE_INVENTORY_FILE"],
        *arguments,
        "-e",
        json.dumps(variables),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    print(done.stdout)
    # Hosts with the same finding share one line.
    findings = {
        (severity, check, host)
        for severity, check, hosts in FINDING.findall(done.stdout)
        for host in hosts.split(", ")
    }
    return SimpleNamespace(code=done.returncode, text=done.stdout, findings=findings)


@contextmanager
def broken(host, command, mend):
    on(host, command)
    try:
        yield
    finally:
        on(host, mend)


def test_whole_hosts_pass_and_nothing_on_them_changes():
    for host in HOSTS:
        on(host, "touch /run/before; sleep 1.1")
    run = preflight()
    assert (run.code, run.findings) == (0, set())
    for host in HOSTS:
        # Except for files of Ansible itself and of the running host.
        assert (
            on(
                host,
                "find / -xdev -newercm /run/before -not -path '/proc/*' -not -path '/home/ops*' -not -path '/tmp*' -not -path '/var/tmp*' "
                "-not -path '/var/log/*' -not -path '/var/lib/systemd/*' -not -path '/var/cache/ldconfig*'",
            )
            == ""
        )


def test_all_problems_of_all_hosts_come_in_one_message():
    with (
        broken(B, "hostname preflight-a", "hostname preflight-b"),
        broken(
            B,
            "cp /usr/lib/os-release /root/kept; sed -i 's/^VERSION_ID=.*/VERSION_ID=\"10\"/' /usr/lib/os-release",
            "cp /root/kept /usr/lib/os-release",
        ),
        broken(
            B,
            "iptables -I INPUT -p tcp --syn -s 172.30.90.101 -j DROP",
            "iptables -D INPUT -p tcp --syn -s 172.30.90.101 -j DROP",
        ),
    ):
        run = preflight(
            preflight_image_disk_mib=99999999,
            cluster_slots=64,
            training_container_gpus="all",
            cluster_fabric_network="10.9.8.0/24",
        )
    assert (run.code, run.findings) == (
        2,
        {
            *(
                ("BLOCK", check, host)
                for host in HOSTS
                for check in (
                    "hostname-twice",
                    "image-disk",
                    "slots-exceeded",
                    "gpu-missing",
                    "fabric-address-missing",
                )
            ),
            ("BLOCK", "os-supported", B),
            ("BLOCK", "peer-unreachable", A),
        },
    )


# The finding is a rule of its own: address-missing in
# tests/unit/plugins/action/test_judge_hosts.py.
@pytest.mark.acceptance
def test_a_network_that_no_host_is_in():
    run = preflight(cluster_network="10.9.8.0/24")
    assert (run.code, run.findings) == (
        2,
        {("BLOCK", "address-missing", A), ("BLOCK", "address-missing", B)},
    )


@contextmanager
def second_network():
    """Of both hosts on the same wire: it is not known to be faster, so it must be configured."""
    addresses = [
        broken(
            host,
            "ip address add 10.77.0.%d/24 dev eth0" % number,
            "ip address delete 10.77.0.%d/24 dev eth0" % number,
        )
        for number, host in ((101, A), (102, B))
    ]
    with addresses[0], addresses[1]:
        yield


# Which network is chosen is a pure function: tests/unit/plugins/plugin_utils/test__cluster.py.
@pytest.mark.acceptance
def test_a_second_network_that_may_be_slower():
    with second_network():
        run = preflight()
    assert (run.code, run.findings) == (0, set())
    assert re.search(
        r"Fabric network: 172\.30\.90\.0/24: the fastest network is unknown \(.*10\.77\.0\.0/24",
        run.text,
    )


# Its rules are tested without hosts, as those above.
@pytest.mark.acceptance
def test_a_fabric_network():
    with second_network():
        run = preflight(cluster_fabric_network="10.77.0.0/24")
        assert (run.code, run.findings) == (0, set()) and "Fabric network" not in run.text
        # A firewall that allows the cluster network.
        with broken(
            B,
            "iptables -I INPUT -p tcp --syn -s 10.77.0.101 -j DROP",
            "iptables -D INPUT -p tcp --syn -s 10.77.0.101 -j DROP",
        ):
            run = preflight(cluster_fabric_network="10.77.0.0/24")
        assert (run.code, run.findings) == (2, {("BLOCK", "fabric-peer-unreachable", A)})
        assert "from 10.77.0.101 to 10.77.0.102 port 12345" in run.text


def test_port_that_someone_else_holds():
    listener = 'import socket, time; s = socket.create_server(("", 12345)); time.sleep(600)'
    on(B, "systemd-run --quiet --unit taken python3 -c '%s'" % listener)
    try:
        for _attempt in range(50):
            if ":12345 " in on(B, "ss -Htln"):
                break
            time.sleep(0.2)
        run = preflight()
        assert (run.code, run.findings) == (2, {("BLOCK", "ssh-port-taken", B)})
        pid = on(B, "systemctl show --property MainPID --value taken").strip()
        assert "0.0.0.0:12345 is held by python3 (pid %s)" % pid in run.text
        # Another port is free.
        assert preflight(cluster_ssh_port=12346).code == 0
    finally:
        on(B, "systemctl stop taken")


DAEMON_JSON = "/etc/docker/daemon.json"


# The others of these are refused by the same function:
# tests/unit/plugins/module_utils/test__daemon_check.py.
@pytest.mark.parametrize(
    "content, found",
    [
        ('{"log-leve": "warn"}', "don't match any configuration option: log-leve"),
        pytest.param(
            '{"debug": "yes"}',
            "cannot unmarshal string into Go struct field Config.debug of type bool",
            marks=pytest.mark.acceptance,
        ),
        pytest.param(
            '{"log-level": "loud"}',
            "unable to parse logging level: loud",
            marks=pytest.mark.acceptance,
        ),
        pytest.param('{"bip": "x"}', "bip: 'x' is not an address", marks=pytest.mark.acceptance),
        pytest.param('{"debug": true,\n}', "line 2, column 1", marks=pytest.mark.acceptance),
        pytest.param("", "the file is empty", marks=pytest.mark.acceptance),
        pytest.param(
            '{"hosts": ["fd://"]}',
            "both as a flag and in the configuration file: hosts",
            marks=pytest.mark.acceptance,
        ),
    ],
    ids=[
        "unknown option",
        "kind of value",
        "value",
        "address",
        "syntax",
        "empty",
        "option of the unit",
    ],
)
def test_daemon_json_that_docker_can_not_read(content, found):
    """No option is requested, and the engine keeps running.

    The installed dockerd reports the error.
    """
    pid = on(B, "pidof dockerd")
    with broken(
        B,
        "mkdir -p /etc/docker; cat > %s <<'EOF'\n%s\nEOF" % (DAEMON_JSON, content),
        "rm " + DAEMON_JSON,
    ):
        run = preflight()
    assert (run.code, run.findings) == (2, {("BLOCK", "docker-config", B)})
    assert found in run.text
    assert on(B, "pidof dockerd") == pid


@pytest.mark.acceptance
def test_daemon_json_that_docker_reads():
    pid = on(B, "pidof dockerd")
    with broken(
        B,
        'mkdir -p /etc/docker; echo \'{"debug": true, "log-driver": "nope"}\' > ' + DAEMON_JSON,
        "rm " + DAEMON_JSON,
    ):
        run = preflight()
        assert (run.code, run.findings) == (
            0,
            {("WARN", "docker-config", B)},
        ) and "'nope' is not a log driver of Docker" in run.text
    with broken(B, "echo '{\"debug\": true}' > " + DAEMON_JSON, "rm " + DAEMON_JSON):
        assert preflight().code == 0
    assert on(B, "pidof dockerd") == pid


@pytest.mark.acceptance
def test_own_name_on_the_loopback_is_a_warning_that_can_be_made_to_stop_it():
    # Docker mounts the file, so it is written, not replaced.
    with broken(
        A,
        "cp /etc/hosts /root/hosts; { echo 127.0.1.1 preflight-a; cat /root/hosts; } > /etc/hosts",
        "cat /root/hosts > /etc/hosts; rm /root/hosts",
    ):
        run = preflight(preflight_fail_on="warn")
    assert (run.code, run.findings) == (2, {("WARN", "own-name-loopback", A)})


def test_one_host_alone():
    """With --limit, which excludes the head."""
    run = preflight("--limit", B)
    assert (run.code, run.findings) == (0, set())


def test_a_host_that_has_no_python():
    with broken(B, "mv /usr/bin/python3.11 /root/", "mv /root/python3.11 /usr/bin/"):
        run = preflight()
    assert (run.code, run.findings) == (2, {("BLOCK", "python-version", B)})
