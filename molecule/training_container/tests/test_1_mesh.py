"""Role training_sshd: every container logs in to every other with a key and with host keys checked,
and no other client can log in.
"""

import contextlib
import json
import re
import socket
import subprocess
import time

import pytest

ROLE = "training_sshd"
testinfra_hosts = ["ansible://cluster"]
# Testinfra takes the exit code 255 of a command for the end of its own connection.
CODE = '; echo "exit code $?"'
NAME, PORT, SSH = "trainyard-training", 12345, "/etc/trainyard/ssh"
ADDRESSES = {"training-container-a": "172.30.87.71", "training-container-b": "172.30.87.72"}


def address(host):
    return ADDRESSES[host.backend.host]


def inside(host, command):
    return host.run("docker exec %s sh -c %s", NAME, command)


@pytest.mark.parametrize("target", [*ADDRESSES, *ADDRESSES.values()])
def test_every_container_logs_in_to_every_other(host, target):
    told = inside(
        host,
        "ssh %s 'uname -n; ulimit -l; echo $PATH; echo $LD_LIBRARY_PATH; echo $GREETING'" % target,
    )
    assert told.rc == 0, told.stderr
    hostname, memlock, path, libraries, greeting = told.stdout.splitlines()
    assert ADDRESSES[hostname] == ADDRESSES.get(target, target)
    assert (
        memlock == "8192"
        and path.startswith("/usr/local/lib/trainyard/bin:")
        and libraries == "/usr/local/lib/molecule"
    )
    assert greeting == 'two words and "quotes"'


def test_sshd_s_own_view_of_its_settings(host):
    told = dict(
        line.split(" ", 1)
        for line in host.check_output(
            "docker exec %s /usr/sbin/sshd -T -f %s/sshd_config", NAME, SSH
        ).splitlines()
    )
    assert told["listenaddress"] == "%s:%d" % (address(host), PORT)
    expected = {
        "port": str(PORT),
        "permitrootlogin": "without-password",
        "passwordauthentication": "no",
        "kbdinteractiveauthentication": "no",
        "authenticationmethods": "publickey",
        "allowusers": "root",
        "usepam": "no",
        "strictmodes": "yes",
        "disableforwarding": "yes",
        "permitemptypasswords": "no",
        "loglevel": "VERBOSE",
        "usedns": "no",
        "hostkey": SSH + "/ssh_host_ed25519_key",
        "authorizedkeysfile": SSH + "/authorized_keys",
    }
    assert {name: told[name] for name in expected} == expected


def test_algorithms_are_those_that_ssh_audit_finds_no_fault_with(host):
    """The image's OpenSSH is 9.2 or newer, so all key exchanges are post-quantum hybrids."""
    told = subprocess.run(
        ["ssh-audit", "-n", "--skip-rate-test", "-p", str(PORT), address(host)],
        text=True,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (
        "(gen) software: OpenSSH" in told.stdout
        and "(kex) sntrup761x25519-sha512@openssh.com" in told.stdout
    ), told.stdout + told.stderr
    assert re.findall(r".*\[(?:fail|warn)\].*", told.stdout) == []


def test_listens_on_the_cluster_address_only(host):
    listening = [
        line.split()[3]
        for line in host.check_output(
            "ss --no-header --listening --tcp --numeric sport = :%d" % PORT
        ).splitlines()
    ]
    assert listening == ["%s:%d" % (address(host), PORT)]


def test_connections_of_one_address_keep_nobody_out(host):
    """They send nothing. Without a limit per address, sshd drops most of the others."""
    with contextlib.ExitStack() as held:
        for _number in range(400):
            held.enter_context(socket.create_connection((address(host), PORT), 10))
        assert [inside(host, "ssh %s true" % address(host)).rc for _time in range(5)] == [0] * 5


def test_password_is_refused(host):
    """The client accepts any host key, because the test is about the login."""
    told = host.run(
        "ssh -v -p %d -o StrictHostKeyChecking=accept-new -o UserKnownHostsFile=/tmp/known -o PubkeyAuthentication=no -o BatchMode=yes"
        " root@%s true" % (PORT, address(host)) + CODE
    )
    assert told.stdout == "exit code 255\n"
    assert (
        "Authentications that can continue: publickey\n" in told.stderr.replace("\r", "")
        and "Permission denied (publickey)" in told.stderr
    )


def test_key_that_nobody_knows_is_refused(host):
    host.check_output(
        "rm -f /tmp/stranger /tmp/stranger.pub && ssh-keygen -q -t ed25519 -N '' -f /tmp/stranger"
    )
    told = host.run(
        "ssh -p %d -o StrictHostKeyChecking=accept-new -o UserKnownHostsFile=/tmp/known -o IdentitiesOnly=yes -i /tmp/stranger"
        " -o BatchMode=yes root@%s true" % (PORT, address(host)) + CODE
    )
    assert told.stdout == "exit code 255\n" and "Permission denied (publickey)" in told.stderr


def test_horovodrun_s_own_option_does_not_switch_host_keys_off(host):
    """With another recorded key, the login fails even with horovodrun's option."""
    told = inside(
        host,
        "sed 's/ AAAA.*/ AAAAC3NzaC1lZDI1NTE5AAAAIId4kmORM7AHPZP2DH5lMTWRXs79RwkZFPGj07fRkHF6/' %s/known_hosts > /tmp/wrong;"
        "ssh -o UserKnownHostsFile=/tmp/wrong -o StrictHostKeyChecking=off %s true"
        % (SSH, address(host))
        + CODE,
    )
    assert (
        told.stdout == "exit code 255\n" and "REMOTE HOST IDENTIFICATION HAS CHANGED" in told.stderr
    )


def test_container_can_not_change_its_keys(host):
    assert inside(host, "touch %s/known_hosts" % SSH).rc != 0


def test_private_keys_are_root_s(host):
    for name in ("id_ed25519", "ssh_host_ed25519_key"):
        file = host.file("%s/%s" % (SSH, name))
        assert (oct(file.mode), file.user) == ("0o600", "root")


def test_every_host_has_keys_of_its_own(host):
    record = json.loads(host.file("/etc/trainyard/cluster.json").content_string)
    assert [entry["name"] for entry in record["hosts"]] == list(ADDRESSES)
    assert [entry["address"] for entry in record["hosts"]] == list(ADDRESSES.values())
    keys = [entry[kind] for entry in record["hosts"] for kind in ("host_key", "public_key")]
    assert len(set(keys)) == 4 and (record["port"], record["container"], record["share"]) == (
        PORT,
        NAME,
        "/data1/share",
    )
    own = next(entry for entry in record["hosts"] if entry["name"] == host.backend.host)
    assert host.file(SSH + "/id_ed25519.pub").content_string.startswith(own["public_key"] + " ")
    assert host.file(SSH + "/ssh_host_ed25519_key.pub").content_string.startswith(
        own["host_key"] + " "
    )


def test_sshd_that_is_killed_comes_back_and_sessions_stay(host):
    told = inside(
        host,
        "ssh %s 'sleep 8; echo still there' & sleep 2; kill -9 $(cat /run/trainyard-sshd.pid); wait $!"
        % address(host),
    )
    assert told.stdout == "still there\n", told.stderr
    deadline = time.monotonic() + 10
    while inside(host, "ssh %s true || false" % address(host)).rc != 0:
        assert time.monotonic() < deadline, "sshd did not come back"
        time.sleep(0.5)
