#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_host_info
short_description: Gather what Slurm's configuration needs from a host
version_added: "0.4.0"
description:
  - Returns in one run the host's part of the input of decision C(slurm_plan) - packages, hardware,
    GPU device nodes, control groups, services, files and the record of a role.
  - A host without Slurm is a result, not a failure.
  - The versions of Slurm, munge and MariaDB are returned in addition to O(packages).
options:
  texts:
    description: Absolute paths of files, or patterns of them, whose content is returned. The
      content must not be secret.
    type: list
    elements: path
    default: [/etc/slurm/slurm.conf, /etc/slurm/gres.conf, /etc/slurm/cgroup.conf, /etc/slurm/mpi.conf]
  munge_key:
    description: Absolute path of munge's key.
    type: path
    default: /etc/munge/munge.key
  munge_salt:
    description: Text of one run that is the same for all hosts. RV(munge_key.digest) is empty
      without it.
    type: str
    default: ''
  folders:
    description: Absolute paths of folders whose free space is returned.
    type: list
    elements: path
    default: [/var/lib/slurm, /var/log/slurm, /var/lib/mysql]
  record:
    description: Absolute path of a JSON file whose content is returned.
    type: path
  people:
    description: Names of people. Those without an account on the host are returned.
    type: list
    elements: str
    default: []
  operator_users:
    version_added: "0.4.0"
    description: Names of users who need no job on a training host.
    type: list
    elements: str
    default: []
  operator_groups:
    version_added: "0.4.0"
    description: Unix groups whose members need no job on a training host.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
  - trainyard.gpu.attributes.internal
  - trainyard.gpu.host_reading
attributes:
  platform:
    platforms: debian
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Gather what Slurm's configuration needs
  trainyard.gpu.slurm_host_info:
    munge_salt: "{{ slurm_salt }}"
    files: [/etc/systemd/system/slurmd.service.d/trainyard.conf]
    record: /var/lib/trainyard/placed.d/slurm_node.json
  register: slurm_host
"""

RETURN = r"""
hostname:
  description: The short host name, by which Slurm's daemons find themselves in slurm.conf.
  returned: success
  type: str
  sample: gpu01
kernel:
  description: Release of the running kernel.
  returned: success
  type: str
  sample: 6.1.0-37-amd64
packages:
  description: Versions of the installed packages, by name. A name of O(packages) that an installed
    package provides has the version of that package.
  returned: success
  type: dict
  sample: {slurmd: 22.05.8-4+deb12u3, munge: 0.5.15-2+deb12u1}
candidates:
  description: Versions that apt would install, by name. Empty if the host has slurmd or slurmctld.
  returned: success
  type: dict
  sample: {}
release:
  description: Release of the installed Slurm, else of the one that apt would install. Empty if
    there is neither.
  returned: success
  type: str
  sample: "22.05"
hardware:
  description: Hardware in the terms of slurm.conf, from C(slurmd -C) if it is installed, else from
    the kernel.
  returned: success
  type: dict
  contains:
    cpus:
      description: Number of hardware threads that the host may use.
      type: int
    boards:
      description: Number of boards.
      type: int
    sockets:
      description: Number of sockets.
      type: int
    cores_per_socket:
      description: Cores per socket.
      type: int
    threads_per_core:
      description: Hardware threads per core.
      type: int
    real_memory:
      description: Memory in MiB.
      type: int
kernel_hardware:
  description: The same from the kernel.
  returned: success
  type: dict
gpus:
  description: Device nodes C(/dev/nvidiaN), or C(/dev/davinciN) of Ascend NPUs on a host without
    GPUs, sorted by number.
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: The device node.
      type: str
    minor:
      description: Number in its name.
      type: int
    model:
      description: Model by the driver, of an NPU the chip, such as V(Ascend910B1). Empty if the
        driver does not tell.
      type: str
gpu_sockets:
  description:
    - For each GPU by its number, the sockets that are near it by the kernel (C(local_cpulist) of
      its PCI device), as Slurm numbers sockets. One that the driver does not tell is missing.
  returned: success
  type: dict
  version_added: "0.4.0"
  sample: {"0": [0], "1": [1]}
container:
  description: Kind of container that the host is; empty for a machine.
  returned: success
  type: str
  sample: docker
cgroup:
  description: Control groups.
  returned: success
  type: dict
  contains:
    version:
      description: V(1), V(2), or V(0) if none are mounted.
      type: int
    usable:
      description: Whether slurmd can limit jobs with them.
      type: bool
    why:
      description: Why it cannot; empty if it can.
      type: str
    cores:
      description: Whether the kernel has the controller C(cpuset), by which jobs are limited to
        their CPUs.
      type: bool
    swap:
      description: Whether the kernel limits swap by control groups version 2. It does not if it is
        built without swap or started with C(swapaccount=0).
      type: bool
dbus:
  description: Whether the system bus exists, by which slurmd requests its scope from systemd with
    control groups version 2.
  returned: success
  type: bool
services:
  description: The units C(munge), C(mariadb), C(slurmdbd), C(slurmctld), C(slurmd) and C(sackd), by
    that name.
  returned: success
  type: dict
  contains:
    loaded:
      description: Whether the unit exists.
      type: bool
    active:
      description: Whether it runs.
      type: bool
    enabled:
      description: Whether it starts at boot.
      type: bool
    state:
      description: Its state as systemd names it.
      type: str
      sample: active/running
    user:
      description: User in the unit; empty for root.
      type: str
    runtime_directory:
      description: RuntimeDirectory of the unit.
      type: str
files:
  description: SHA-256 checksums of the existing files among O(files).
  returned: success
  type: dict
texts:
  description: Content of the existing files among O(texts).
  returned: success
  type: dict
munge_key:
  description: The key.
  returned: success
  type: dict
  contains:
    exists:
      description: Whether there is one.
      type: bool
    private:
      description: Whether only its owner can read it. munged refuses another one.
      type: bool
    digest:
      description: Text that is the same on hosts with the same key, for one O(munge_salt).
      type: str
mail_program:
  description: Path of a program that Slurm can send mail with; empty if there is none.
  returned: success
  type: str
  sample: /usr/bin/mail
pmix_folder:
  description: Folder in which Slurm's plugin looks for the PMIx library; empty if the library is
    not installed.
  returned: success
  type: str
  sample: /usr/lib/x86_64-linux-gnu/pmix2/lib
pmix_link:
  description: Target of the link C(libpmix.so) in it; empty if there is none.
  returned: success
  type: str
  sample: libpmix.so.2
free_mib:
  description: Free space of each existing folder among O(folders), in MiB.
  returned: success
  type: dict
  sample: {/var/lib/slurm: 51200}
record:
  description: Content of O(record); empty if there is none.
  returned: success
  type: dict
login_user:
  description: The user that logged in to the host for this run, before C(become); empty if the
    connection has no login.
  returned: success
  type: str
  sample: ops
operators:
  version_added: "0.4.0"
  description: Uids of root, RV(login_user), O(operator_users) and the members of
    O(operator_groups), by name.
  returned: success
  type: dict
  sample: {root: 0, ops: 1000}
planners:
  version_added: "0.4.0"
  description: Uids of the owners of crontabs (C(cron)) and of jobs of C(at), by name.
  returned: success
  type: dict
  sample: {cron: {backup: 34}, at: {}}
missing_people:
  description: Names among O(people) without an account. slurmctld looks up people when they are
    added to Slurm, and again only each hour.
  returned: success
  type: list
  elements: str
"""

import functools
import glob
import grp
import os
import platform
import pwd
import re
import socket

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._ascend import chip_names
from ansible_collections.trainyard.gpu.plugins.module_utils._docker_engine import parse_policy
from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import checksums, read_text
from ansible_collections.trainyard.gpu.plugins.module_utils._gpu_numbers import parse_information
from ansible_collections.trainyard.gpu.plugins.module_utils._packages import (
    PROVIDES_FORMAT,
    parse_installed,
    parse_provided,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._pci import npu_nodes
from ansible_collections.trainyard.gpu.plugins.module_utils._record import Record
from ansible_collections.trainyard.gpu.plugins.module_utils._slurm_host import (
    cgroups,
    hardware_of,
    key_digest,
    parse_slurmd_hardware,
    parse_units,
    release,
    sockets_of,
)

PACKAGES = [
    "slurmctld",
    "slurmd",
    "slurmdbd",
    "slurm-client",
    "sackd",
    "slurm-wlm-mysql-plugin",
    "libpam-slurm-adopt",
    "libpam-slurm",
    "munge",
    "mariadb-server",
]
SERVICES = ["munge", "mariadb", "slurmdbd", "slurmctld", "slurmd", "sackd"]
SPOOLS = {"cron": "/var/spool/cron/crontabs", "at": "/var/spool/cron/atjobs"}
PROPERTIES = "Id,LoadState,ActiveState,SubState,UnitFileState,User,RuntimeDirectory"
MAIL_PROGRAMS = ["/usr/bin/mail", "/bin/mail", "/usr/bin/mailx"]


def login_user():
    """Name of the user who logged in: sudo tells it, and for other ways to become root the audit
    system.
    """
    name = os.environ.get("SUDO_USER", "")
    if name:
        return name
    try:
        return pwd.getpwuid(int(read_text("/proc/self/loginuid"))).pw_name
    except (ValueError, KeyError, OverflowError):
        return ""


def account(name: str) -> int | None:
    """The uid of a user, None if there is no such user."""
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def operators(users: list, groups: list) -> dict:
    """Uids by name. Members of a group that are not in its list have it as their primary group."""
    names, numbers = ["root"] + users, []
    for name in groups:
        try:
            group = grp.getgrnam(name)
        except KeyError:
            continue
        names += group.gr_mem
        numbers.append(group.gr_gid)
    names += [entry.pw_name for entry in pwd.getpwall() if entry.pw_gid in numbers]
    found = {name: account(name) for name in names if name}
    return {name: uid for name, uid in found.items() if uid is not None}


def owners(folder: str) -> dict:
    """Uids of the owners of the files in a folder, by name."""
    found = {}
    for path in glob.glob(folder + "/*"):
        try:
            uid = os.lstat(path).st_uid
            found[pwd.getpwuid(uid).pw_name] = uid
        except (OSError, KeyError):
            continue
    return found


def link_target(path):
    try:
        return os.readlink(path)
    except OSError:
        return ""


class Host:
    def __init__(self, module):
        self.module = module
        self.params = module.params

    def output(self, *command):
        """Standard output of a program, empty if it is missing."""
        path = self.module.get_bin_path(command[0], opt_dirs=["/usr/sbin", "/sbin"])
        return self.module.run_command([path] + list(command[1:]))[1] if path else ""

    def packages(self):
        names = PACKAGES + [name for name in self.params["packages"] if name not in PACKAGES]
        shown = self.output(
            "dpkg-query",
            "--show",
            "--showformat",
            "${Package}\\t${Version}\\t${db:Status-Abbrev}\\n",
            *names,
        )
        found = {name: state["version"] for name, state in parse_installed(shown).items()}
        missing = [name for name in self.params["packages"] if name not in found]
        # Ubuntu 24.04 has libpmix2 as libpmix2t64, which provides the name.
        if missing and "slurm-client" in found:
            shown = self.output("dpkg-query", "--show", "--showformat", PROVIDES_FORMAT)
            provided = parse_provided(shown, missing)
            found.update({name: state["version"] for name, state in provided.items()})
        return found

    def candidates(self, installed):
        # apt-cache takes most of a second.
        if "slurmd" in installed or "slurmctld" in installed:
            return {}
        policy = parse_policy(self.output("apt-cache", "policy", *PACKAGES))
        return {name: state["candidate"] for name, state in policy.items() if state["candidate"]}

    @functools.cached_property
    def topology(self) -> dict:
        """Package and core of each CPU."""
        # The CPUs of process 1 are those of the host: a run may be bound to some of them.
        try:
            usable = os.sched_getaffinity(1)
        except OSError:
            usable = os.sched_getaffinity(0)
        topology = {}
        for number in sorted(usable):
            base = "/sys/devices/system/cpu/cpu%d/topology/" % number
            # A kernel without topology has one core per CPU.
            topology[number] = (
                read_text(base + "physical_package_id").strip() or "0",
                read_text(base + "core_id").strip() or str(number),
            )
        return topology

    def kernel_hardware(self):
        return hardware_of(list(self.topology.values()), read_text("/proc/meminfo"))

    @functools.cached_property
    def cards(self) -> dict:
        """What the driver tells of each GPU, by PCI address."""
        by_address = {
            os.path.basename(os.path.dirname(path)): parse_information(read_text(path))
            for path in glob.glob("/proc/driver/nvidia/gpus/*/information")
        }
        return {address: card for address, card in by_address.items() if card}

    def gpu_sockets(self) -> dict:
        packages = {cpu: place[0] for cpu, place in self.topology.items()}
        return {
            str(card["minor"]): sockets_of(
                read_text("/sys/bus/pci/devices/%s/local_cpulist" % address), packages
            )
            for address, card in self.cards.items()
        }

    def gpus(self):
        models = {card["minor"]: card["model"] for card in self.cards.values()}
        numbers = [re.fullmatch(r"/dev/nvidia([0-9]+)", path) for path in glob.glob("/dev/nvidia*")]
        return [
            {"path": "/dev/nvidia%d" % minor, "minor": minor, "model": models.get(minor, "")}
            for minor in sorted(int(found.group(1)) for found in numbers if found)
        ] or self.npus()

    def npus(self):
        """A type of Slurm that is a number would be a count: 910 in gpu:910.

        So each name begins with that of the family.
        """
        numbers = npu_nodes()
        names = chip_names(self.module, numbers)
        models = {number: re.sub("^(?:Ascend)?", "Ascend", name) for number, name in names.items()}
        return [
            {"path": "/dev/davinci%d" % number, "minor": number, "model": models.get(number, "")}
            for number in numbers
        ]

    def services(self):
        units = parse_units(
            self.output(
                "systemctl",
                "show",
                "--property=" + PROPERTIES,
                *[name + ".service" for name in SERVICES],
            )
        )
        nothing = parse_units("Id=none")["none"]
        return {name: units.get(name + ".service", nothing) for name in SERVICES}

    def munge_key(self):
        path = self.params["munge_key"]
        try:
            with open(path, "rb") as file:
                key, mode = file.read(), os.fstat(file.fileno()).st_mode
        except OSError:
            return {"exists": False, "private": False, "digest": ""}
        return {
            "exists": True,
            "private": not mode & 0o077,
            "digest": key_digest(key, self.params["munge_salt"]),
        }

    def texts(self):
        paths = [path for pattern in self.params["texts"] for path in glob.glob(pattern)]
        return {path: read_text(path) for path in paths if os.path.isfile(path)}

    def free_mib(self):
        free = {}
        for path in self.params["folders"]:
            if os.path.isdir(path):
                found = os.statvfs(path)
                free[path] = found.f_bavail * found.f_frsize // (1024 * 1024)
        return free

    def record(self):
        return Record(self.module, self.params["record"]).read() if self.params["record"] else {}


def main():
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "list", "elements": "str", "default": []},
            "files": {"type": "list", "elements": "path", "default": []},
            "texts": {
                "type": "list",
                "elements": "path",
                "default": [
                    "/etc/slurm/slurm.conf",
                    "/etc/slurm/gres.conf",
                    "/etc/slurm/cgroup.conf",
                    "/etc/slurm/mpi.conf",
                ],
            },
            "munge_key": {"type": "path", "default": "/etc/munge/munge.key", "no_log": False},
            "munge_salt": {"type": "str", "default": "", "no_log": False},
            "folders": {
                "type": "list",
                "elements": "path",
                "default": ["/var/lib/slurm", "/var/log/slurm", "/var/lib/mysql"],
            },
            "record": {"type": "path"},
            "people": {"type": "list", "elements": "str", "default": []},
            "operator_users": {"type": "list", "elements": "str", "default": []},
            "operator_groups": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    host = Host(module)
    user = login_user()
    module.run_command_environ_update = {"LC_ALL": "C.UTF-8"}
    try:
        packages = host.packages()
        candidates = host.candidates(packages)
        kernel_hardware = host.kernel_hardware()
        hardware = parse_slurmd_hardware(host.output("slurmd", "-C")) or kernel_hardware
    except ValueError as error:
        module.fail_json(
            msg="%s; expected the format of Debian's tools. Report it with this line" % error
        )
    container = host.output("systemd-detect-virt", "--container").strip()
    container = "" if container == "none" else container
    known = dict(candidates, **packages)
    pmix_folder = next(
        (os.path.dirname(path) for path in sorted(glob.glob("/usr/lib/*/pmix2/lib/libpmix.so.2"))),
        "",
    )
    module.exit_json(
        changed=False,
        hostname=socket.gethostname().split(".")[0],
        kernel=platform.release(),
        packages=packages,
        candidates=candidates,
        release=next(
            (
                release(known[name])
                for name in ("slurmctld", "slurmd", "slurm-client")
                if release(known.get(name, ""))
            ),
            "",
        ),
        hardware=hardware,
        kernel_hardware=kernel_hardware,
        gpus=host.gpus(),
        gpu_sockets=host.gpu_sockets(),
        container=container,
        cgroup=cgroups(
            read_text("/proc/1/mountinfo"),
            read_text("/sys/fs/cgroup/cgroup.controllers"),
            container,
            bool(glob.glob("/sys/fs/cgroup/*/memory.swap.max")),
        ),
        dbus=os.path.exists("/run/dbus/system_bus_socket"),
        services=host.services(),
        files=checksums(module.params["files"]),
        texts=host.texts(),
        munge_key=host.munge_key(),
        mail_program=next((path for path in MAIL_PROGRAMS if os.access(path, os.X_OK)), ""),
        pmix_folder=pmix_folder,
        pmix_link=link_target(pmix_folder + "/libpmix.so"),
        free_mib=host.free_mib(),
        record=host.record(),
        login_user=user,
        operators=operators(
            [user] + module.params["operator_users"], module.params["operator_groups"]
        ),
        planners={name: owners(folder) for name, folder in SPOOLS.items()},
        missing_people=[name for name in module.params["people"] if account(name) is None],
    )


if __name__ == "__main__":
    main()
