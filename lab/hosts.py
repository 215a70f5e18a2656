"""The lab's hosts: systemd containers with addresses and names on a private bridge, a shared
volume, and ssh with keys.
"""

import hashlib
import ipaddress
import json
import os
import pathlib
import shutil
import string
import time

import machine
from process import LabError, run, say

LABEL = "trainyard.lab"
SHARE = "/data1/share"
# A Docker engine inside a host needs a real file system for its layers (overlay does not work on
# overlay).
VOLUMES = {"docker": "/var/lib/docker", "containerd": "/var/lib/containerd"}
# So do jobs in rootless containers, which also need FUSE, and a /proc that the container of their
# host does not mask.
JOB_VOLUMES = {"jobs": "/var/lib/trainyard/containers"}
JOB_OPTIONS = ("--device", "/dev/fuse", "--security-opt", "systempaths=unconfined")
# In each host, after its start: GPUs without hardware, so that quotas have something to count, and
# mounts that reach the containers of jobs.
JOB_HOST = """
mount --make-rshared /
for number in {gpus}; do [ -e /dev/nvidia$number ] || mknod -m 0666 /dev/nvidia$number c 195 $number; done
"""

# Before systemd: create ssh keys. With a private cgroup namespace (cgroup v2) the mount is
# read-only until it is remounted.
START = """
if command -v ssh-keygen > /dev/null; then ssh-keygen -A > /dev/null; fi
{remount}
exec /sbin/init
"""

# The user is not root, so that a missing `become` is noticed. Existing files are not written again,
# so a second run changes nothing.
PROVISION = """
missing=""
command -v python3 > /dev/null || missing="$missing python3"
command -v sudo > /dev/null || missing="$missing sudo"
test -x /usr/sbin/sshd || missing="$missing openssh-server"
if [ -n "$missing" ]; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing
fi
id ops > /dev/null 2>&1 || useradd --create-home --shell /bin/bash ops
[ -e /etc/sudoers.d/ops ] || { umask 0337; echo 'ops ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/ops; umask 0022; }
install -d -m 0700 -o ops -g ops /home/ops/.ssh
keys=/home/ops/.ssh/authorized_keys
grep -qxF "$1" "$keys" 2> /dev/null || echo "$1" >> "$keys"
chown ops: "$keys"
chmod 0600 "$keys"
systemctl is-active --quiet ssh || systemctl enable --now --quiet ssh
cat /etc/ssh/ssh_host_*_key.pub
"""

# The containers inside a host are removed first, because their cgroups would outlive the host.
EMPTY = """
command -v docker > /dev/null || exit 0
systemctl stop trainyard-training.service 2> /dev/null
docker ps --all --quiet | xargs --no-run-if-empty docker rm --force
systemctl stop docker.socket docker.service containerd.service
"""


class Lab:
    """A lab. `name` is the prefix of its Docker objects, `state` is the folder of its keys and
    logs. With `job_gpus`, each host has as many device nodes of GPUs, and what jobs in containers
    need.
    """

    def __init__(self, engine, name, subnet, state, count=2, job_gpus=0):
        self.engine = engine
        self.name = name
        self.subnet = ipaddress.ip_network(subnet)
        self.state = state
        self.network = f"trainyard-{name}"
        self.share = f"trainyard-{name}-share"
        self.job_gpus = job_gpus
        self.volumes = {**VOLUMES, **(JOB_VOLUMES if job_gpus else {})}
        self.hosts = {
            f"{name}-{letter}": str(self.subnet[11 + rank])
            for rank, letter in enumerate(string.ascii_lowercase[:count])
        }
        self.key = state / "ssh" / "id_ed25519"
        self.known_hosts = state / "ssh" / "known_hosts"

    # Docker objects of this lab

    def _objects(self, kind, template):
        arguments = [kind, "ls", "--filter", f"label={LABEL}={self.name}", "--format", template]
        return self.engine.docker(
            *arguments[:2], *(["--all"] if kind == "container" else []), *arguments[2:]
        ).stdout.split()

    def containers(self):
        return self._objects("container", "{{.Names}}")

    def _inspect(self, kind, name):
        found = self.engine.docker(kind, "inspect", name, check=False)
        return json.loads(found.stdout)[0] if found.returncode == 0 else None

    def check_owner(self):
        """Fail if another checkout has a lab of the same name."""
        network = self._inspect("network", self.network)
        owner = (network or {}).get("Labels", {}).get(f"{LABEL}.state")
        if network and owner != str(self.state) and (owner is None or pathlib.Path(owner).exists()):
            whose = (
                f"created by {owner}: run make lab-down there"
                if owner
                else "which the lab did not create: remove or rename it"
            )
            raise LabError(f"this machine already has a Docker network {self.network}, {whose}")

    # Up

    def up(self, image):
        self._make_key()
        self._make_network()
        self._make_volume(self.share)
        for host in sorted(set(self.containers()) - set(self.hosts)):
            self.remove_host(host)
        found = self._inspect("image", image)
        if not found:
            raise LabError(
                f"LAB_IMAGE={image} is not on this machine: run docker pull or docker load first"
            )
        image_id = found["Id"]
        if self.job_gpus and not os.path.exists("/dev/fuse"):
            raise LabError(
                (
                    "this machine has no /dev/fuse, which jobs in containers need: run modprobe "
                    "fuse as root"
                )
            )
        machine.check_inotify(len(set(self.hosts) - set(self.containers())))
        for host, address in self.hosts.items():
            self._make_host(host, address, image_id)
        keys = []
        for host, address in self.hosts.items():
            self._wait_for(host)
            if self.job_gpus:
                self.on(
                    host,
                    "sh",
                    "-ec",
                    JOB_HOST.format(gpus=" ".join(map(str, range(self.job_gpus)))),
                )
            keys += [f"{host},{address} {key}" for key in self._provision(host)]
        _write(self.known_hosts, "\n".join(keys) + "\n")
        say(
            (
                "hosts are up: "
                f"{', '.join(f'{host} {address}' for host, address in self.hosts.items())}"
            )
        )

    def _make_key(self):
        if self.key.exists() and self.key.with_suffix(".pub").exists():
            return
        shutil.rmtree(self.key.parent, ignore_errors=True)
        unfinished = self.key.parent.with_name("ssh.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700, parents=True)
        run(
            "ssh-keygen",
            "-q",
            "-t",
            "ed25519",
            "-N",
            "",
            "-C",
            f"operator of {self.network}",
            "-f",
            str(unfinished / self.key.name),
        )
        unfinished.rename(self.key.parent)

    def _labels(self, **more):
        labels = {
            LABEL: self.name,
            f"{LABEL}.state": str(self.state),
            **{f"{LABEL}.{key}": value for key, value in more.items()},
        }
        return [word for key, value in labels.items() for word in ("--label", f"{key}={value}")]

    def _make_network(self):
        network = self._inspect("network", self.network)
        if network and network["IPAM"]["Config"][0]["Subnet"] == str(self.subnet):
            return
        if network:
            for host in self.containers():
                self.remove_host(host)
            self.engine.docker("network", "rm", self.network)
        made = self.engine.docker(
            "network",
            "create",
            "--driver",
            "bridge",
            "--subnet",
            str(self.subnet),
            *self._labels(),
            self.network,
            check=False,
        )
        if made.returncode != 0:
            raise LabError(
                f"step: network {self.network} with addresses {self.subnet}: "
                f"{made.stderr.strip()}\n"
                "Check whether another network (docker network ls) uses these addresses"
            )

    def _make_volume(self, name):
        if self._inspect("volume", name) is None:
            self.engine.docker("volume", "create", *self._labels(), name)

    def _make_host(self, host, address, image_id):
        private = self.engine.info(".CgroupVersion") == "2"
        cgroup = (
            ["--cgroupns=private"]
            if private
            else ["--cgroupns=host", "--volume", "/sys/fs/cgroup:/sys/fs/cgroup:rw"]
        )
        start = START.format(
            remount="mount -o remount,rw /sys/fs/cgroup" if private else ""
        ).strip()
        options = [
            *("--hostname", host, "--network", self.network, "--ip", address),
            *(word for capability in machine.capabilities() for word in ("--cap-add", capability)),
            *(
                "--security-opt",
                "seccomp=unconfined",
                "--security-opt",
                "apparmor=unconfined",
                *cgroup,
            ),
            *(
                "--tmpfs",
                "/run",
                "--tmpfs",
                "/run/lock",
                "--env",
                "container=docker",
                "--stop-signal",
                "SIGRTMIN+3",
            ),
            *(
                word
                for volume, path in self.volumes.items()
                for word in ("--volume", f"{self.network}-{host}-{volume}:{path}")
            ),
            *("--volume", f"{self.share}:{SHARE}"),
            *(JOB_OPTIONS if self.job_gpus else ()),
        ]
        command = [image_id, "/bin/sh", "-ec", start]
        made_as = hashlib.sha256(repr((options, command)).encode()).hexdigest()[:12]
        found = self._inspect("container", host)
        if found and found["Config"]["Labels"].get(LABEL) != self.name:
            raise LabError(
                (
                    f"this machine has a container {host} that does not belong to this lab: remove "
                    "or rename it"
                )
            )
        if found and found["Config"]["Labels"].get(f"{LABEL}.made-as") == made_as:
            if not found["State"]["Running"]:
                say(f"starting {host}")
                self.engine.docker("start", host)
            return
        if found:
            self.remove_host(host)
        say(f"creating {host} {address}")
        for volume in self.volumes:
            self._make_volume(f"{self.network}-{host}-{volume}")
        self.engine.docker(
            "run",
            "--detach",
            "--name",
            host,
            *self._labels(**{"made-as": made_as}),
            *options,
            *command,
        )

    def _wait_for(self, host):
        # A host is ready when systemd has finished its start. Before that, systemd-tmpfiles may
        # empty /tmp while a module runs.
        deadline = time.monotonic() + 180
        state = ""
        while time.monotonic() < deadline:
            asked = self.engine.docker(
                "exec", host, "systemctl", "is-system-running", "--wait", check=False, timeout=180
            )
            state = asked.stdout.strip()
            if state in ("running", "degraded"):
                break
            if not self._inspect("container", host)["State"]["Running"]:
                break
            time.sleep(0.5)
        if state == "degraded":
            failed = self.engine.docker(
                "exec", host, "systemctl", "--failed", "--plain", "--no-legend", "--no-pager"
            ).stdout.split("\n")
            say(f"{host} has failed units: {', '.join(line.split()[0] for line in failed if line)}")
        elif state != "running":
            output = self.engine.docker("logs", "--tail", "20", host, check=False)
            raise LabError(
                f"host: {host}\nstep: start of systemd, state '{state}'. The image must have "
                "systemd as /sbin/init. Last lines of the host:\n"
                f"{output.stdout}{output.stderr}"
            )

    def _provision(self, host):
        public = self.key.with_suffix(".pub").read_text().strip()
        done = self.engine.docker("exec", host, "sh", "-euc", PROVISION, "sh", public, check=False)
        if done.returncode != 0:
            raise LabError(
                f"host: {host}\nstep: ssh user ops: {done.stderr.strip() or done.stdout.strip()}"
            )
        return [
            " ".join(line.split()[:2])
            for line in done.stdout.splitlines()
            if line.startswith(("ssh-", "ecdsa-"))
        ]

    def on(self, host, *argv, check=True, timeout=None):
        """Run a command on a host as root."""
        return self.engine.docker("exec", host, *argv, check=check, timeout=timeout)

    def login(self, host):
        """Return the command that opens a shell on a host."""
        return [
            self.engine.client,
            "exec",
            "--interactive",
            "--tty",
            "--user",
            "ops",
            "--workdir",
            "/home/ops",
            host,
            "bash",
            "--login",
        ]

    # Down

    def remove_host(self, host):
        say(f"removing {host}")
        details = self._inspect("container", host)
        if details["State"]["Running"]:
            self.engine.docker("exec", host, "sh", "-c", EMPTY, check=False, timeout=120)
        self.engine.docker("rm", "--force", "--volumes", host)
        for volume in {**VOLUMES, **JOB_VOLUMES}:
            self.engine.docker("volume", "rm", "--force", f"{self.network}-{host}-{volume}")
        remove_cgroups(details["Id"])

    def down(self):
        for host in self.containers():
            self.remove_host(host)
        for volume in self._objects("volume", "{{.Name}}"):
            self.engine.docker("volume", "rm", "--force", volume)
        for network in self._objects("network", "{{.Name}}"):
            self.engine.docker("network", "rm", network)


def other_labs(engine, name):
    """Return the names of other running labs.

    Labs of virtual hosts have a network on this engine, but no container.
    """
    arguments = [
        "network",
        "ls",
        "--filter",
        f"label={LABEL}",
        "--format",
        '{{.Label "%s"}}' % LABEL,
    ]
    return sorted(set(engine.docker(*arguments).stdout.split()) - {name})


def labs_of(engine, checkout):
    """Return (name, state folder) of every lab whose state is in a checkout."""
    template = '{{.Label "%s"}} {{.Label "%s.state"}}' % (LABEL, LABEL)
    listed = engine.docker(
        "network", "ls", "--filter", f"label={LABEL}", "--format", template
    ).stdout.splitlines()
    labs = [(name, pathlib.Path(state)) for name, state in (line.split(" ", 1) for line in listed)]
    return [(name, state) for name, state in labs if checkout in state.parents]


def remove_cgroups(container):
    """Remove the empty cgroups that a host on cgroup v1 leaves in the machine's own tree."""
    for controller in pathlib.Path("/sys/fs/cgroup").glob(f"*/docker/{container}"):
        for folder, _, _ in os.walk(controller, topdown=False):
            try:
                os.rmdir(folder)
            except OSError as error:
                say(f"the cgroup {folder} was not removed: {error.strerror}")


def _write(path, text):
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_text(text)
    unfinished.rename(path)
