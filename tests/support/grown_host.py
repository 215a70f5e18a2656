"""A host that is set up as a container, where compilers are fast, and is a virtual machine from its
first boot on, with GRUB and kernels of its own.
"""

from __future__ import annotations

import json
import shutil
import subprocess

import images
import inventory
from hosts import Lab
from lab import CACHE, log_file, only_one
from machine import Engine
from virtual import KERNEL_ARGUMENTS, VirtualLab
from virtual_cluster import VirtualCluster
from whole_cluster import BIN, ROOT

GRUB_SETTINGS = (
    'GRUB_DEFAULT=0\nGRUB_TIMEOUT=0\nGRUB_TERMINAL=console\nGRUB_CMDLINE_LINUX="%s"\n'
    % KERNEL_ARGUMENTS
)
GRUB_OF_ONE_KERNEL = """menuentry "Linux {kernel}" {{
    linux /boot/vmlinuz-{kernel} {arguments}
    initrd /boot/initrd.img-{kernel}
}}
set timeout=0
"""
# What grub-install does, but for the disk's first sectors: lnxboot.img makes a program of it that
# is loaded as a kernel is, which is what QEMU can do.
GRUB_INSTALL = """
set -e
DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes --no-install-recommends grub2-common grub-pc-bin > /dev/null
mkdir -p /boot/grub
cp -r /usr/lib/grub/i386-pc /boot/grub/
grub-mkimage --format i386-pc --output /boot/grub/core.img --prefix '(hd0)/boot/grub' biosdisk ext2 normal
cat /usr/lib/grub/i386-pc/lnxboot.img /boot/grub/core.img > /boot/grub/loader
"""
# Before anybody can log in.
SERVICE = """[Unit]
Before=ssh.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/{name}

[Install]
WantedBy=multi-user.target
"""


class ByGrub(VirtualLab):
    """Its system has no User-mode Linux, which has no boot loader: QEMU runs it."""

    def boot_options(self):
        return ["-kernel", str(self.system["loader"])]


class GrownHost(VirtualCluster):
    def __init__(self, name, subnet):
        super().__init__(name, subnet)
        self.host, self.engine = self.head, Engine(CACHE)
        self.lab_options = (self.engine, name, subnet, self.lab_state, 1)

    def make(self):
        """As a container: a bare server."""
        self.remove()
        self.engine.ensure()
        with only_one(CACHE, wait=True):
            image = images.host_image(self.engine, CACHE, log_file(ROOT / ".lab", "prepare"))
        container = Lab(*self.lab_options)
        container.up(image)
        inventory.write(self.inventory / "hosts.yml", inventory.hosts_file(container))

    def boot(self, kernel, **services):
        """The same host as a virtual machine, with a kernel of its own, the only one that GRUB
        knows yet; and with services, scripts by name.
        """
        self.run(GRUB_INSTALL)
        scratch = self.state / "boot"
        root, archive = scratch / "root", scratch / "root.tar"
        root.mkdir(parents=True)
        self.engine.docker("stop", self.host)
        self.engine.docker("export", "--output", str(archive), self.host)
        Lab(*self.lab_options).remove_host(self.host)
        subprocess.run(
            [
                "tar",
                "--extract",
                "--numeric-owner",
                "--xattrs",
                "--xattrs-include=*",
                "--file",
                archive,
                "--directory",
                root,
            ],
            check=True,
        )
        archive.unlink()
        # By this file programs know that they are in a container.
        (root / ".dockerenv").unlink()
        (root / "etc/default/grub").write_text(GRUB_SETTINGS, encoding="utf-8")
        (root / "boot/grub/grub.cfg").write_text(
            GRUB_OF_ONE_KERNEL.format(kernel=kernel, arguments=KERNEL_ARGUMENTS), encoding="utf-8"
        )
        for name, script in services.items():
            (root / "usr/local/sbin" / name).write_text(script, encoding="utf-8")
            (root / "usr/local/sbin" / name).chmod(0o755)
            (root / "etc/systemd/system" / (name + ".service")).write_text(
                SERVICE.format(name=name), encoding="utf-8"
            )
        subprocess.run(["systemctl", "--quiet", "--root", root, "enable", *services], check=True)
        system = {
            "kernel": scratch / "vmlinuz",
            "loader": scratch / "loader",
            "disk": scratch / "disk.ext4",
        }
        shutil.copy(root / ("boot/vmlinuz-" + kernel), system["kernel"])
        shutil.copy(root / "boot/grub/loader", system["loader"])
        images.make_virtual(root, system["disk"])
        shutil.rmtree(root)
        ByGrub(*self.lab_options).up(system)
        for name in services:
            self.run(
                "systemctl is-active --quiet {0} || {{ journalctl --unit {0} --no-pager; exit 1; }}".format(
                    name
                )
            )

    def remove(self):
        self.lab("down", "--keep")
        shutil.rmtree(self.state, ignore_errors=True)

    def run(self, command, **options):
        """What a shell command prints, as root, by ssh: Ansible plays no part."""
        return self.on(self.host, command, **options).out

    def role(self, name, **variables):
        """A role by its own, with variables; what self.playbook returns."""
        path = self.state / "role.yml"
        tasks = [
            {
                "name": "Apply the role",
                "ansible.builtin.include_role": {"name": "trainyard.gpu." + name},
            }
        ]
        path.write_text(
            json.dumps(
                [
                    {
                        "name": "Apply",
                        "hosts": "cluster",
                        "gather_facts": False,
                        "become": True,
                        "tasks": tasks,
                    }
                ]
            ),
            encoding="utf-8",
        )
        return self.playbook(str(path), "--extra-vars", variables)

    def module(self, name):
        """What a module of the collection returns that asks the host."""
        done = subprocess.run(
            [
                BIN / "ansible",
                "all",
                "--inventory",
                self.inventory,
                "--become",
                "--module-name",
                "trainyard.gpu." + name,
            ],
            cwd=ROOT,
            env=self.environment(),
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            check=False,
        )
        state, _arrow, result = done.stdout.partition(" => ")
        assert done.returncode == 0 and state.endswith("SUCCESS"), done.stdout + done.stderr
        return json.loads(result)
