"""Virtual machines under test: as a cluster, with power switches and cables."""

from __future__ import annotations

import json
import subprocess
import time
from types import SimpleNamespace

from whole_cluster import ROOT, WholeCluster

SHARE = "/data1/share"
# Appends numbered lines, each synced before it is acknowledged on the writer's own disk. Then the
# last line, and the end.
WRITER = """
import os, sys, time
path, count = sys.argv[1], int(sys.argv[2])
lines = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
acknowledged = open("/var/tmp/acknowledged", "w")
for number in range(count):
    os.write(lines, b"%06d\\n" % number)
    os.fsync(lines)
    acknowledged.write("%d\\n" % number)
    acknowledged.flush()
    time.sleep(0.02)
open("/var/tmp/written", "w").close()
"""


PEOPLE = {
    "shared_storage_groups": [{"name": "vision", "gid": 3001}],
    "shared_storage_users": [
        {"name": "anna", "uid": 2001, "groups": ["vision"]},
        {"name": "ben", "uid": 2002, "quota_mib": 32},
    ],
    # On the data disk, which has quotas, and on the root file system, which has none.
    "shared_storage_trees": [
        {"path": "/data1/user", "of": "users", "quota_mib": 64},
        {"path": "/mnt/share", "of": "groups", "quota_mib": 64},
    ],
}


class VirtualCluster(WholeCluster):
    def __init__(self, name, subnet, lab_state=None):
        """`lab_state` is the folder of lab/lab.py's state, where it isn't the tests' own."""
        super().__init__(name, subnet)
        self.server, self.client = self.hosts
        self.lab_state = lab_state or self.state / "state"

    def ssh(self, host):
        state = self.lab_state / "ssh"
        return [
            "ssh",
            "-q",
            "-i",
            str(state / "id_ed25519"),
            "-o",
            "UserKnownHostsFile=%s" % (state / "known_hosts"),
            "-o",
            "StrictHostKeyChecking=yes",
            "-o",
            "BatchMode=yes",
            "-o",
            "IdentitiesOnly=yes",
            "-o",
            "ConnectTimeout=5",
            "-o",
            "ServerAliveInterval=10",
            "-o",
            "ServerAliveCountMax=12",
            "ops@%s" % self.address[host],
        ]

    def on(self, host, command, check=True, timeout=600):
        """A shell command on a host, as root, by ssh: Ansible plays no part."""
        done = subprocess.run(
            [*self.ssh(host), "sudo sh"],
            input=command,
            text=True,
            errors="replace",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            check=False,
            timeout=timeout,
        )
        if check and done.returncode:
            raise AssertionError(
                "%s: %s: exit code %d\n%s%s"
                % (host, command, done.returncode, done.stdout, done.stderr)
            )
        return SimpleNamespace(
            code=done.returncode, out=done.stdout, text=done.stdout + done.stderr
        )

    def run_python(self, host, path):
        """The output of a Python program of this machine, run on a host as root."""
        with open(path, encoding="utf-8") as script:
            return subprocess.run(
                [*self.ssh(host), "sudo python3 -"],
                stdin=script,
                stdout=subprocess.PIPE,
                check=True,
            ).stdout

    def module(self, host, name, **arguments):
        """One module on one host, without the roles around it.

        Returns the run; whether it failed is for the caller to judge.
        """
        path = self.state / "module.yml"
        path.write_text(
            json.dumps(
                [
                    {
                        "hosts": host,
                        "gather_facts": False,
                        "become": True,
                        "tasks": [{"trainyard.gpu." + name: arguments}],
                    }
                ]
            ),
            encoding="utf-8",
        )
        return self.playbook(str(path))

    def shared_storage(self, *arguments):
        return self.playbook("playbooks/shared_storage.yml", *arguments)

    def people_with_keys(self):
        """PEOPLE, where anna logs in on the client with the key of the lab's operator."""
        with open(self.lab_state / "ssh/id_ed25519.pub", encoding="utf-8") as public:
            anna, *others = PEOPLE["shared_storage_users"]
            return dict(
                PEOPLE,
                shared_storage_login_hosts=[self.client],
                shared_storage_users=[dict(anna, public_keys=[public.read().strip()]), *others],
            )

    def login(self, user, host, command):
        """A command on a host as somebody who logs in with the key of the lab's operator."""
        *ssh, target = self.ssh(host)
        done = subprocess.run(
            [*ssh, "%s@%s" % (user, target.partition("@")[2]), command],
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=600,
        )
        return SimpleNamespace(code=done.returncode, out=done.stdout)

    def power(self, host, switch):
        subprocess.run(
            [
                str(ROOT / ".venv/bin/python"),
                "lab/lab.py",
                "power",
                switch,
                host,
                "--name",
                self.name,
                "--subnet",
                self.subnet,
                "--state",
                str(self.lab_state),
            ],
            cwd=ROOT,
            check=True,
        )

    def make_share_again(self):
        """The same content, in a folder that clients have no handle of."""
        self.on(
            self.server,
            "exportfs -ua && cp -a {0} {0}.new && rm -r {0} && mv {0}.new {0} && exportfs -ra".format(
                SHARE
            ),
        )

    def link(self, host, state):
        subprocess.run(["ip", "link", "set", "ty-%s" % host, state], check=True)

    def boot_id(self, host):
        """Empty where the host does not answer. One that goes down may leave a connection
        hanging.
        """
        try:
            return self.on(
                host, "cat /proc/sys/kernel/random/boot_id", check=False, timeout=60
            ).out.strip()
        except subprocess.TimeoutExpired:
            return ""

    def wait_for_boot(self, host, former, seconds=420):
        """Until a host that was rebooted or switched on has started everything. `former` is the
        boot id before.
        """

        def is_up():
            return self.boot_id(host) not in ("", former)

        began = time.monotonic()
        self.wait("%s answers after its boot" % host, seconds, is_up)
        state = self.on(
            host, "systemctl is-system-running --wait || true", timeout=seconds
        ).out.strip()
        print(
            "%s is %s %.0f s after its start" % (host, state, time.monotonic() - began), flush=True
        )

    def reboot(self, host):
        former = self.boot_id(host)
        self.on(host, "systemctl reboot", check=False)
        return former

    def mount(self, host, path=SHARE):
        return self.on(
            host,
            "findmnt --noheadings --output FSTYPE,SOURCE,OPTIONS --mountpoint %s" % path,
            check=False,
        ).out.split()

    def quotas(self):
        """Users of the data disk that have a limit, with their KiB."""
        rows = [
            line.split(",")
            for line in self.on(
                self.server, "repquota --raw-grace --no-names --verbose --output=csv --user /data1"
            ).out.splitlines()
        ]
        return {
            int(row[0].lstrip("#")): int(row[5])
            for row in rows
            if row[0].startswith("#") and int(row[5])
        }

    def start_writer(self, host, path, count):
        self.on(
            host,
            "rm -f /var/tmp/acknowledged /var/tmp/written; cat > /var/tmp/writer.py << 'END'\n%sEND\n"
            "systemd-run --quiet --collect --unit=writer python3 /var/tmp/writer.py %s %d"
            % (WRITER, path, count),
        )
        self.wait("the first lines", 120, lambda: self.acknowledged(host) > 10)

    def acknowledged(self, host):
        lines = self.on(host, "cat /var/tmp/acknowledged", check=False).out.split()
        return int(lines[-1]) if lines else -1

    def has_written(self, host):
        return self.on(host, "test -e /var/tmp/written", check=False).code == 0


def lines_of(text):
    return [int(line) for line in text.split()]
