"""People log in with their keys on the login host: by ssh from the controller, to the address of
the host.
"""

from __future__ import annotations

import functools
import os
import subprocess

import pytest
import testinfra

testinfra_hosts = ["ansible://shared-storage-a"]
LOGIN, OTHER = "172.30.89.91", "172.30.89.92"
HOSTS = {LOGIN: "shared-storage-a", OTHER: "shared-storage-b"}
FOLDER = os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]
KEY = os.path.join(FOLDER, "anna")
FILE = "/etc/trainyard/people/anna.keys"


@functools.lru_cache(maxsize=None)
def known_hosts():
    path = os.path.join(FOLDER, "known_hosts")
    with open(path, "w", encoding="utf-8") as file:
        for address, name in HOSTS.items():
            file.write(
                "%s %s\n"
                % (
                    address,
                    testinfra.get_host("docker://" + name)
                    .file("/etc/ssh/ssh_host_ed25519_key.pub")
                    .content_string.strip(),
                )
            )
    return path


def ssh(user, address, key, command):
    options = [
        "IdentitiesOnly=yes",
        "BatchMode=yes",
        "StrictHostKeyChecking=yes",
        "ConnectTimeout=10",
    ]
    options += [
        "UserKnownHostsFile=" + known_hosts(),
        "HostKeyAlgorithms=ssh-ed25519",
        "LogLevel=ERROR",
    ]
    words = [word for option in options for word in ("-o", option)]
    return ["ssh", "-F", "/dev/null", "-i", key] + words + ["%s@%s" % (user, address), command]


def login(user, address=LOGIN, key=KEY, command="id -un; pwd"):
    return subprocess.run(
        ssh(user, address, key, command),
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        check=False,
    )


def test_a_person_with_a_key_logs_in():
    done = login("anna")
    assert (done.returncode, done.stdout) == (0, "anna\n/data1/share/user/anna\n"), done.stderr


@pytest.mark.parametrize("user, address", [("ben", LOGIN), ("root", LOGIN), ("anna", OTHER)])
def test_nobody_else_and_nowhere_else(user, address):
    done = login(user, address)
    assert done.returncode == 255 and "Permission denied" in done.stderr


def test_the_person_cannot_change_the_file_and_keeps_own_keys(host, tmp_path):
    assert (
        host.file(FILE).user,
        host.file(FILE).mode,
        host.file("/etc/trainyard/people").mode,
    ) == ("root", 0o644, 0o755)
    assert login("anna", command="rm -f %s" % FILE).returncode != 0
    assert login("anna", command="echo > %s" % FILE).returncode != 0
    own = str(tmp_path / "own")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", own], check=True)
    assert login("anna", key=own).returncode == 255
    with open(own + ".pub", encoding="utf-8") as public:
        assert (
            login(
                "anna",
                command="umask 077; mkdir -p .ssh && echo '%s' > .ssh/authorized_keys"
                % public.read().strip(),
            ).returncode
            == 0
        )
    assert login("anna", key=own).returncode == 0
    # A damaged file of one's own locks nobody out.
    assert (
        login("anna", command="chmod 777 .ssh && echo nonsense > .ssh/authorized_keys").returncode
        == 0
    )
    assert login("anna", key=own).returncode == 255
    assert login("anna", command="rm -r .ssh").returncode == 0


def test_the_files_of_the_site_stay_in_force(host):
    assert (
        "authorizedkeysfile .ssh/authorized_keys /etc/ssh/keys/%u /etc/trainyard/people/%u.keys"
        in host.check_output("sshd -T").splitlines()
    )
