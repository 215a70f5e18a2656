"""Hosts with their own kernels, on the bridge of a Docker network, which is also their gateway.

QEMU runs them if KVM works. Otherwise each host is a group of User-mode Linux processes, which run
Python ten times as fast as QEMU's emulation. QEMU emulates what User-mode Linux does not support: a
boot loader, and Docker's disk.
"""

import contextlib
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import time

import machine
from hosts import Lab
from process import LabError, run, say

MEMORY_MIB = 3072
# Time limit for an emulated machine from power on until sshd answers and systemd has started
# everything.
BOOT_SECONDS = 420
# Sockets for the administration of User-mode Linux. The path of a socket has at most 107
# characters.
SOCKETS = "/run/trainyard-uml"
IDENTITY_LABEL = "lab-identity"
# Size of the disk with the exports of the storage host, small enough that a test can fill it.
DATA_MIB = 2048
# mitigations: an emulated processor does not speculate, and the mitigations cost time. norandmaps:
# QEMU caches translated code by address, so programs at random addresses are translated again at
# each start (37 ms instead of 17 for a /bin/true).
KERNEL_ARGUMENTS = (
    "root=LABEL=lab-root rw console=ttyS0 net.ifnames=0 mitigations=off nokaslr norandmaps quiet "
    "systemd.show_status=1"
)
# Time limit for a kernel without a root file system until it panics.
PROBE_SECONDS = 60
# A guest's reboot executes this anew, with what it has open. A network device that is still open
# cannot be opened again.
UML_PROGRAM = """#!/bin/bash
for descriptor in /proc/self/fd/*; do
    [ "${{descriptor##*/}}" -le 2 ] || eval "exec ${{descriptor##*/}}>&-"
done
exec -a "$0" {kernel} "$@"
"""
# User-mode Linux: the first console writes to standard output, the others are disabled.
CONSOLE = ("con=null", "con0=null,fd:1")

NETWORK = """[Match]
Type=ether

[Network]
Address={address}/{prefix}
Gateway={gateway}
{servers}
"""


def accelerator(system, cache):
    """Return kvm or uml if it boots a kernel (an existing /dev/kvm may not work), otherwise tcg."""
    if os.access("/dev/kvm", os.R_OK | os.W_OK) and _boots_by_kvm(system, cache):
        return "kvm"
    return "uml" if system.get("uml") and _boots_as_process(system["uml"]) else "tcg"


def _boots_as_process(kernel):
    # Without a root file system, so it ends in a panic.
    with subprocess.Popen(
        [str(kernel), "mem=64M", *CONSOLE, "panic=1"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as booted:
        try:
            return b"Linux version" in booted.communicate(timeout=PROBE_SECONDS)[0]
        except subprocess.TimeoutExpired:
            return False
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(booted.pid, signal.SIGKILL)


def _boots_by_kvm(system, cache):
    console = cache / "kvm-test.log"
    console.unlink(missing_ok=True)
    command = [
        "qemu-system-x86_64",
        "-accel",
        "kvm",
        "-m",
        "512",
        "-display",
        "none",
        "-no-reboot",
        "-kernel",
        str(system["kernel"]),
        "-append",
        "console=ttyS0 panic=-1",
        "-serial",
        f"file:{console}",
    ]
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=20,
            check=False,
        )
    return console.exists() and "Linux version" in console.read_text(errors="replace")


class VirtualLab(Lab):
    """A Lab with virtual machines as hosts.

    Each has a folder in the lab's state: disks, identity, console, pid.
    """

    def __init__(self, engine, name, subnet, state, count=2):
        super().__init__(engine, name, subnet, state, count)
        self.system = self.accelerator = self.docker_storage = None

    def folder(self, host):
        return self.state / "hosts" / host

    # Up

    def up(self, system, docker_storage=None):
        """Create and start the machines. `system` is the result of images.virtual_system,
        `docker_storage` a disk for /var/lib/docker.
        """
        self.check_free()
        self._make_key()
        self._make_network()
        self.system, self.docker_storage = system, docker_storage
        self.accelerator = self.choose_accelerator()
        if self.accelerator == "uml":
            say(
                (
                    "KVM does not work on this machine: the hosts run User-mode Linux, in which "
                    "starting a program takes about ten times as long"
                )
            )
        elif self.accelerator == "tcg":
            say(
                (
                    "KVM does not work on this machine: the hosts are emulated, and everything in "
                    "them takes about ten times as long"
                )
            )
        for host in self.hosts:
            self.make(host)
            self.start(host)
        self.write_known_hosts()
        for host in self.hosts:
            self.wait_for(host)
        say(
            (
                "hosts are up: "
                f"{', '.join(f'{host} {address}' for host, address in self.hosts.items())}"
            )
        )

    def choose_accelerator(self):
        # Docker's disk is a copy-on-write disk of QEMU.
        return accelerator(
            {**self.system, "uml": None} if self.docker_storage else self.system, self.state
        )

    def check_free(self):
        if self.containers():
            raise LabError(
                (
                    f"the lab {self.name} already runs containers with the same addresses: run "
                    "make lab-down first"
                )
            )

    def make(self, host):
        """Create the disks and the identity of a host unless they exist."""
        folder = self.folder(host)
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / "complete").exists():
            return
        say(f"creating {host} {self.hosts[host]}")
        identity = folder / "identity"
        shutil.rmtree(identity, ignore_errors=True)
        identity.mkdir()
        for kind in ("ed25519", "ecdsa"):
            run(
                "ssh-keygen",
                "-q",
                "-t",
                kind,
                "-N",
                "",
                "-C",
                f"root@{host}",
                "-f",
                str(identity / f"ssh_host_{kind}_key"),
            )
        servers = [
            line.split()[1]
            for line in pathlib.Path("/etc/resolv.conf").read_text().splitlines()
            if line.startswith("nameserver ")
        ]
        (identity / "hostname").write_text(f"{host}\n")
        (identity / "hosts").write_text(f"127.0.0.1 localhost\n{self.hosts[host]} {host}\n")
        (identity / "resolv.conf").write_text(
            "".join(f"nameserver {server}\n" for server in servers)
        )
        (identity / "authorized_keys").write_text(self.key.with_suffix(".pub").read_text())
        (identity / "lab.network").write_text(
            NETWORK.format(
                address=self.hosts[host],
                prefix=self.subnet.prefixlen,
                gateway=self.subnet[1],
                servers="".join(f"DNS={server}\n" for server in servers),
            ).rstrip()
            + "\n"
        )
        run(
            "mkfs.ext4",
            "-q",
            "-F",
            "-L",
            IDENTITY_LABEL,
            "-d",
            str(identity),
            str(folder / "identity.ext4"),
            "4M",
        )
        if self.accelerator != "uml":
            self._overlay(self.system["disk"], folder / "root.qcow2")
        if host == next(iter(self.hosts)):
            run(
                "mkfs.ext4",
                "-q",
                "-F",
                "-L",
                "lab-data",
                "-O",
                "quota",
                str(folder / "data.ext4"),
                f"{DATA_MIB}M",
            )
        if self.docker_storage:
            self._overlay(self.docker_storage, folder / "docker.qcow2")
        (folder / "complete").touch()

    @staticmethod
    def _overlay(base, path):
        path.unlink(missing_ok=True)
        run("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", str(base), str(path))

    def _drives(self, host):
        folder = self.folder(host)
        for name, kind in (
            ("root.qcow2", "qcow2"),
            ("identity.ext4", "raw"),
            ("data.ext4", "raw"),
            ("docker.qcow2", "qcow2"),
        ):
            path = folder / name
            if path.exists():
                # unsafe: a guest's flush is not passed to this machine's disk. Written data
                # survives the end of QEMU, but not of this machine.
                yield f"file={path},if=virtio,cache=unsafe,format={kind},discard=unmap"

    def tap(self, host):
        return f"ty-{host}"[:15]

    def _bridge(self):
        return "br-" + self._inspect("network", self.network)["Id"][:12]

    def boot_options(self):
        """Return the options for a boot without a boot loader."""
        return [
            "-kernel",
            str(self.system["kernel"]),
            "-initrd",
            str(self.system["initrd"]),
            "-append",
            KERNEL_ARGUMENTS,
        ]

    def _mac(self, host):
        return f"52:54:00:{self.subnet.network_address.packed[2]:02x}:00:{list(self.hosts).index(host) + 11:02x}"

    def start(self, host):
        """Switch a host on unless it runs."""
        if self.runs(host):
            return
        tap = self.tap(host)
        if not pathlib.Path(f"/sys/class/net/{tap}").exists():
            run("ip", "tuntap", "add", "dev", tap, "mode", "tap")
        run("ip", "link", "set", tap, "master", self._bridge())
        run("ip", "link", "set", tap, "up")
        say(f"starting {host}")
        (self._start_process if self.accelerator == "uml" else self._start_machine)(host)

    def _start_machine(self, host):
        folder = self.folder(host)
        run(
            "qemu-system-x86_64",
            "-name",
            host,
            "-daemonize",
            "-pidfile",
            str(folder / "pid"),
            "-display",
            "none",
            "-accel",
            self.accelerator,
            "-cpu",
            "host" if self.accelerator == "kvm" else "max",
            "-smp",
            "1",
            "-m",
            str(MEMORY_MIB),
            *self.boot_options(),
            *(word for drive in self._drives(host) for word in ("-drive", drive)),
            "-netdev",
            f"tap,id=net0,ifname={self.tap(host)},script=no,downscript=no",
            "-device",
            f"virtio-net-pci,netdev=net0,mac={self._mac(host)}",
            "-device",
            "virtio-rng-pci",
            "-serial",
            f"file:{folder / 'console.log'}",
            "-monitor",
            f"unix:{folder / 'monitor'},server,nowait",
        )

    def _start_process(self, host):
        """Start User-mode Linux as the leader of a process group, which ends with the host."""
        folder = self.folder(host)
        data = [f"ubdc={folder / 'data.ext4'}"] if (folder / "data.ext4").exists() else []
        program = folder / "linux.uml"
        program.write_text(UML_PROGRAM.format(kernel=shlex.quote(str(self.system["uml"]))))
        program.chmod(0o700)
        # barrier=0, as cache=unsafe of QEMU: what the kernel has written is in this machine's
        # memory and survives the end of the process. A flush to this machine's disk takes up to
        # half a second when others use the disk, and dpkg makes hundreds.
        command = [
            str(program),
            f"mem={MEMORY_MIB}M",
            f"umid={self.tap(host)}",
            f"uml_dir={SOCKETS}",
            f"ubda={folder / 'root.cow'},{self.system['disk']}",
            f"ubdb={folder / 'identity.ext4'}",
            *data,
            "root=/dev/ubda",
            "rootflags=barrier=0",
            "rw",
            f"vec0:transport=tap,ifname={self.tap(host)},depth=128,gro=1,mac={self._mac(host)}",
            *CONSOLE,
            "quiet",
            "systemd.show_status=1",
        ]
        # The host's memory is an unnamed file, in /dev/shm if it has room for all hosts.
        shared = pathlib.Path("/dev/shm")
        roomy = shared.is_dir() and shutil.disk_usage(shared).free > MEMORY_MIB * 2**20 * len(
            self.hosts
        )
        with open(folder / "console.log", "wb") as console:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "TMPDIR": str(shared if roomy else folder)},
            )
        (folder / "pid").write_text(f"{process.pid}\n")
        # Each system call of a guest is a switch between two processes, which waits its turn on a
        # busy machine. The kernel weighs sessions, not processes.
        with contextlib.suppress(OSError):
            pathlib.Path(f"/proc/{process.pid}/autogroup").write_text("-15")

    def pid(self, host):
        try:
            pid = int((self.folder(host) / "pid").read_text())
        except (OSError, ValueError):
            return None
        return pid if (machine.command_of(pid) or "").startswith(machine.VIRTUAL) else None

    def runs(self, host):
        return self.pid(host) is not None

    def write_known_hosts(self):
        """Write known_hosts before the hosts start, because their keys were created here."""
        lines = []
        for host, address in self.hosts.items():
            for path in sorted((self.folder(host) / "identity").glob("ssh_host_*_key.pub")):
                lines.append(f"{host},{address} {' '.join(path.read_text().split()[:2])}\n")
        self.known_hosts.write_text("".join(lines))

    def ssh(self, host):
        return [
            "ssh",
            "-q",
            "-i",
            str(self.key),
            "-o",
            f"UserKnownHostsFile={self.known_hosts}",
            "-o",
            "StrictHostKeyChecking=yes",
            "-o",
            "BatchMode=yes",
            "-o",
            "IdentitiesOnly=yes",
            "-o",
            "ConnectTimeout=10",
            "-o",
            "ServerAliveInterval=15",
            "-o",
            "ServerAliveCountMax=8",
            f"ops@{self.hosts[host]}",
        ]

    def on(self, host, *argv, check=True, timeout=None):
        """Run a command on a host as root."""
        quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in argv)
        return run(*self.ssh(host), f"sudo {quoted}", check=check, timeout=timeout)

    def login(self, host):
        return self.ssh(host)[:1] + ["-t"] + [word for word in self.ssh(host)[1:] if word != "-q"]

    def wait_for(self, host, seconds=BOOT_SECONDS):
        """Wait until systemd has started everything."""
        console, begun, told = self.folder(host) / "console.log", time.monotonic(), time.monotonic()
        state = ""
        while time.monotonic() - begun < seconds:
            if not self.runs(host):
                raise LabError(f"host: {host}\nstep: boot: the machine has stopped\nlog: {console}")
            asked = run(
                *self.ssh(host), "systemctl is-system-running --wait", check=False, timeout=seconds
            )
            state = asked.stdout.strip()
            if state in ("running", "degraded"):
                break
            if time.monotonic() - told > 15:
                lines = (
                    [
                        line
                        for line in console.read_text(errors="replace").splitlines()
                        if line.strip()
                    ]
                    if console.exists()
                    else []
                )
                say(
                    (
                        f"{host} is booting: "
                        f"{lines[-1][-100:] if lines else 'nothing on its console yet'}"
                    )
                )
                told = time.monotonic()
            time.sleep(1)
        if state == "degraded":
            failed = run(
                *self.ssh(host), "systemctl --failed --plain --no-legend --no-pager", check=False
            ).stdout.splitlines()
            say(f"{host} has failed units: {', '.join(line.split()[0] for line in failed if line)}")
        elif state != "running":
            raise LabError(
                (
                    f"host: {host}\nstep: boot: no answer at {self.hosts[host]} port 22 within "
                    f"{seconds} s, systemd is '{state}'\nlog: {console}"
                )
            )

    # Used by tests

    def cut_power(self, host):
        """Stop a host without a shutdown. Data that the guest had not written to its disks
        is lost.
        """
        pid = self.pid(host)
        if pid:
            # Both are leaders of their own process group. User-mode Linux has one process per guest
            # process.
            os.killpg(os.getpgid(pid), signal.SIGKILL)
            while self.pid(host):
                time.sleep(0.05)

    def attach(self, system):
        """Use a lab that already runs."""
        self.system = system
        # The accelerator with which the hosts were created.
        self.accelerator = (
            "uml"
            if any(self.state.glob("hosts/*/root.cow"))
            else accelerator({**system, "uml": None}, self.state)
        )
        return self

    # Down

    def down(self):
        self.remove_machines()
        super().down()

    def remove_machines(self):
        folder = self.state / "hosts"
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            say(f"removing {path.name}")
            self.cut_power(path.name)
            if pathlib.Path(f"/sys/class/net/{self.tap(path.name)}").exists():
                run("ip", "link", "delete", self.tap(path.name))
            shutil.rmtree(path)


def in_use(state):
    """Return whether a state folder contains a lab of virtual hosts."""
    return (state / "hosts").is_dir() and any((state / "hosts").iterdir())


def build_storage(lab, host, target):
    """Create a disk for /var/lib/docker from the engine of a container host, with its training
    images only.
    """
    script = (
        "docker builder prune --all --force > /dev/null; docker ps --all --quiet | xargs "
        "--no-run-if-empty docker rm --force; "
        "docker image ls --format '{{.Repository}}:{{.Tag}}' | grep -v '^trainyard/training:' "
        "| xargs --no-run-if-empty docker rmi --force; "
        "systemctl stop docker.socket docker.service containerd.service"
    )
    lab.on(host, "sh", "-c", script, timeout=300)
    volume = lab.engine.docker(
        "volume", "inspect", "--format", "{{.Mountpoint}}", f"{lab.network}-{host}-docker"
    ).stdout.strip()
    unfinished = target.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    run(
        "mkfs.ext4", "-q", "-F", "-L", "lab-docker", "-m", "0", "-d", volume, str(unfinished), "16G"
    )
    unfinished.rename(target)
