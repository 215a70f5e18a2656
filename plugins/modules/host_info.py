#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_info
short_description: Gather the host facts that the roles need
version_added: "0.1.0"
description:
  - Reads the facts that the roles need from C(/proc), C(/sys), C(/etc) and C(ip) in one module run,
    instead of gathering Ansible's facts.
  - Optionally also looks up names, connects to other hosts, and returns the listeners of ports and
    the free disk space.
  - Run it as root if possible. Without root, the owner of a listening socket is unknown.
options:
  names:
    description: Host names to look up with the host's own resolver.
    type: list
    elements: str
    default: []
  own_name:
    description: Whether to look up the host's own name, which is returned in RV(hostname).
    type: bool
    default: false
  connect:
    description: Hosts to open a TCP connection to, all at the same time. Nothing is sent.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the host, returned in RV(connections[].name).
        type: str
        required: true
      address:
        description: Address to connect to.
        type: str
        required: true
      port:
        description: TCP port to connect to. A refused connection still proves that the host is
          reachable.
        type: int
        required: true
      source:
        description: Source address of the connection, which verifies its network. If empty, the
          host's routes decide.
        type: str
        default: ''
  ports:
    description: TCP ports whose listeners are returned.
    type: list
    elements: int
    default: []
  paths:
    description: Absolute paths whose free disk space is returned. For a path that does not exist,
      its nearest existing parent is used.
    type: list
    elements: path
    default: []
  folders:
    description: Absolute paths of folders whose files are listed. Subfolders are not included.
    type: list
    elements: path
    default: []
  files:
    description: Absolute paths of files and folders whose state is returned.
    type: list
    elements: path
    default: []
    version_added: "0.4.0"
  docker_config:
    description: Whether to validate C(/etc/docker/daemon.json) with dockerd. It runs without
      privileges for that and exits at once.
    type: bool
    default: false
  begin_check:
    description:
      - Start C(horovodrun --check-build) in the background, if the container runs. It takes
        seconds, and M(trainyard.gpu.horovod_build_info) awaits its result later in the run, with
        RV(begun).
      - Its suboptions are those options of M(trainyard.gpu.horovod_build_info).
    type: dict
    suboptions:
      container:
        description: Name of the running container.
        type: str
        required: true
      ssh_host:
        description: The container logs in to this host by ssh and runs the command there.
        type: str
        required: true
      ssh_port:
        description: Port for O(begin_check.ssh_host), 1 to 65535.
        type: int
        required: true
      frameworks:
        description: Frameworks whose packages of Horovod are imported.
        type: list
        elements: str
        choices: [tensorflow, pytorch, mxnet]
        default: []
      timeout:
        description: Seconds after which it is killed.
        type: int
        default: 120
    version_added: "0.4.0"
  image_label:
    description: Name of a label. RV(labelled_images) lists the images of the host's Docker engine
      that carry it.
    type: str
    default: ''
  candidates:
    description: Names of packages. RV(candidates) has the versions that are installed, or that apt
      would install.
    type: list
    elements: str
    default: []
    version_added: "0.4.0"
  trusted:
    description: Certificates that the host should trust as M(trainyard.gpu.trusted_certificates)
      leaves it.
    type: dict
    suboptions:
      fingerprints:
        description: Their SHA-256 fingerprints in hexadecimal digits.
        type: list
        elements: str
        required: true
      bundle:
        description: Path of the copy of the system's bundle.
        type: path
        required: true
    version_added: "0.4.0"
  users:
    description: Names and numeric ids of users. RV(account_clashes) lists those that differ on the
      host.
    type: dict
    default: {}
  groups:
    description: Names and numeric ids of groups, for RV(account_clashes).
    type: dict
    default: {}
  accounts_record:
    description: Record of M(trainyard.gpu.shared_accounts), for RV(recorded_ids) and
      RV(account_clashes). A damaged one counts as missing.
    type: path
    version_added: "0.4.0"
  reused_ids:
    description: Ids of former users and groups that others may get, for RV(account_clashes).
    type: list
    elements: int
    default: []
    version_added: "0.4.0"
  engine:
    description: Options of M(trainyard.gpu.docker_engine_info). With them, RV(engine) is what that module returns.
    type: dict
    default: {}
    version_added: "0.4.0"
  timeout:
    description: Maximum time in seconds for all name lookups and connections together.
    type: float
    default: 3.0
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
  - trainyard.gpu.attributes.internal
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Gather the facts of the host
  trainyard.gpu.host_info:
  register: asked

- name: Check the peers, port 12345 and the space for images
  trainyard.gpu.host_info:
    names: [server-b]
    connect:
      - {name: server-b, address: 10.0.0.12, port: 12345}
    ports: [12345]
    paths: [/var/lib/docker]
    image_label: trainyard.recipe
  register: asked
"""

RETURN = r"""
os:
  description: The operating system, from os-release.
  returned: always
  type: dict
  contains:
    id:
      description: Lower-case identifier, such as V(debian).
      type: str
    version_id:
      description: Version, such as V(12) or V(24.04); empty on a rolling system.
      type: str
    codename:
      description: Code name of the version, such as V(bookworm).
      type: str
    id_like:
      description: Identifiers of the systems that this one is derived from.
      type: list
      elements: str
python_version:
  description: Version of the Python that ran the module.
  returned: always
  type: str
  sample: 3.11.2
architecture:
  description: Machine architecture as C(uname -m) names it.
  returned: always
  type: str
  sample: x86_64
kernel:
  description: Release of the running kernel.
  returned: always
  type: str
  sample: 6.1.0-28-amd64
cpus:
  description: Number of CPUs that this host's processes may run on.
  returned: always
  type: int
memory_mib:
  description: Memory in MiB.
  returned: always
  type: int
hugepages:
  description: Number of huge pages by their size, as far as the CPU has such pages, from
    C(/sys/kernel/mm/hugepages).
  returned: always
  type: dict
  sample: {2M: 512, 1G: 0}
governors:
  description:
    - Number of CPUs by their governor, from C(/sys/devices/system/cpu). Empty where the kernel does not set the clock, as in most virtual machines.
    - If the driver of the CPU chooses the clock itself, the name of another governor than C(performance) has it beside it.
  returned: always
  type: dict
  sample: {powersave of intel_pstate: 64}
  version_added: "0.4.0"
hostname:
  description: The host's own name as C(gethostname) gives it.
  returned: always
  type: str
interfaces:
  description: Network interfaces in the kernel's order.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: Name of the interface.
      type: str
    addresses:
      description: Its addresses.
      type: list
      elements: dict
      contains:
        address:
          description: IPv4 or IPv6 address.
          type: str
        prefix:
          description: Length of the network prefix in bits.
          type: int
    up:
      description: Whether the interface is up and has a carrier.
      type: bool
    mtu:
      description: Size of its largest packet in bytes; null if unknown.
      type: int
      version_added: "0.4.0"
    speed_mbit_s:
      description: Its speed in Mbit/s; null if the driver reports none.
      type: int
    duplex:
      description: V(full) or V(half); null if the driver reports none.
      type: str
      version_added: "0.4.0"
default_interface:
  description: Interface of the default route; empty if there is none.
  returned: always
  type: str
rdma_ports:
  description: Ports of InfiniBand and RoCE devices, from C(/sys/class/infiniband); empty on a host
    without.
  returned: always
  type: list
  elements: dict
  contains:
    device:
      description: Name of the device.
      type: str
      sample: mlx5_0
    port:
      description: Number of the port.
      type: int
    state:
      description: Its state, such as V(active) or V(down); null if unknown.
      type: str
    transport:
      description: V(infiniband), V(roce) or V(iwarp); null for anything else.
      type: str
    rate_gb_s:
      description: Its rate in Gb/s; null if unknown.
      type: float
    interfaces:
      description: Names of the network interface of the port, and of its bond if it has one.
      type: list
      elements: str
    gid_indexes:
      description: For each IPv4 address in the port's GID table, the index of its RoCE v2 entry.
      type: dict
      sample: {10.1.0.11: 3}
rdma_beside_gpus:
  description: By RDMA device, the PCI addresses of the GPUs that share a PCIe root port with it, as
    behind one switch.
  returned: always
  type: dict
  sample: {mlx5_0: ["0000:1b:00.0"]}
  version_added: "0.4.0"
own_name_in_hosts:
  description: Addresses that C(/etc/hosts) gives the host's own name.
  returned: always
  type: list
  elements: str
own_name_repaired:
  description: Whether M(trainyard.gpu.own_name) replaced the line in C(/etc/hosts).
  returned: always
  type: bool
gpus:
  description: Number of GPUs of the loaded NVIDIA driver; 0 without a driver.
  returned: always
  type: int
nvidia_devices:
  description: Number of NVIDIA GPUs on the PCI bus, with or without a driver.
  returned: always
  type: int
npus:
  description: Number of Ascend NPUs - device files C(/dev/davinciN), or devices on the PCI bus if
    there are more of them.
  returned: always
  type: int
  version_added: "0.4.0"
fabric_adapters:
  description: Number of InfiniBand and RoCE adapters on the PCI bus, with or without a driver.
  returned: always
  type: int
network_cards:
  description:
    - Network adapters on the PCI bus - C(bus_id), C(model) (vendor and device, V(15b3:1021)), the
      PCIe link with C(gt_s), C(gt_s_max), C(width) and C(width_max), the same maxima of the slot
      above it (C(slot_gt_s_max), C(slot_width_max)), C(interfaces) (C(name), and C(above), the
      bonds and VLANs on top), C(rdma), the names of its RDMA devices.
    - What is not known is null. Virtual functions are not listed.
  returned: always
  type: list
  elements: dict
  version_added: "0.4.0"
virtual_machine:
  description: Whether the host runs on a hypervisor.
  returned: always
  type: bool
  version_added: "0.4.0"
programs:
  description: Whether the host has some programs that show what is installed.
  returned: always
  type: dict
  sample: {exportfs: true, mount.nfs4: true, needrestart: false, setquota: false}
nfs_transports:
  description: Transports on which the NFS server of the host listens, such as V(tcp) and V(rdma).
    Empty if none runs.
  returned: always
  type: list
  elements: str
  version_added: "0.4.0"
boot_id:
  description: Identifier of the current boot of the kernel.
  returned: always
  type: str
begun:
  description: For option O(trainyard.gpu.horovod_build_info#module:begun) of
    M(trainyard.gpu.horovod_build_info). Empty if no check was started.
  returned: always
  type: str
  version_added: "0.4.0"
container:
  description: Whether the host itself is a container that shares the kernel of another host.
  returned: always
  type: bool
cgroup:
  description: Control groups, by which Slurm limits jobs.
  returned: always
  type: dict
  version_added: "0.4.0"
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
      description: Whether the kernel limits swap by control groups version 2.
      type: bool
candidates:
  description: Versions of O(candidates) by name.
  returned: always
  type: dict
  sample: {slurmd: 21.08.5-2ubuntu1}
  version_added: "0.4.0"
resolved:
  description: Result of the host's resolver for each of O(names), and with O(own_name) for the
    host's own name.
  returned: always
  type: dict
  contains:
    addresses:
      description: Addresses, each once; empty if the name is unknown.
      type: list
      elements: str
    error:
      description: Error of the resolver; empty if there are addresses.
      type: str
connections:
  description: One entry for each of O(connect), in its order.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: Name as given.
      type: str
    address:
      description: Address as given.
      type: str
    port:
      description: Port as given.
      type: int
    source:
      description: Source address as given; empty if there is none.
      type: str
    state:
      description: V(open) and V(refused) both mean that the host is reachable; V(timeout) means no
        answer; V(unreachable) any other failure.
      type: str
    error:
      description: Error of the operating system; empty for V(open).
      type: str
listeners:
  description: Sockets that listen on one of O(ports).
  returned: always
  type: list
  elements: dict
  contains:
    address:
      description: Address that the socket is bound to; V(0.0.0.0) or V(::) for all.
      type: str
    port:
      description: Port.
      type: int
    pid:
      description: Process that owns the socket; 0 if unknown.
      type: int
    process:
      description: Name of that process.
      type: str
    container_id:
      description: Id of the container in which the process runs; empty outside of containers.
      type: str
    container_name:
      description: Name of that container in the Docker engine; empty if the engine does not know
        it.
      type: str
docker_config_error:
  description:
    - Why the Docker engine cannot start with its configuration file, from its own output or from
      known limits.
    - Empty if it can start, if there is no such file, and without O(docker_config).
  returned: always
  type: str
  sample: "/etc/docker/daemon.json: the following directives don't match any configuration option:
    log-leve"
docker_config_warnings:
  description: Values of that file that prevent containers from starting, or that have no effect.
    Empty without O(docker_config).
  returned: always
  type: list
  elements: str
  sample: ["/etc/docker/daemon.json: log-driver: 'jsonfile' is not a log driver of Docker; containers start only if a plugin of that name is installed"]
  version_added: "0.4.0"
disk_free_mib:
  description: Free space for an unprivileged user in MiB, for each of O(paths).
  returned: always
  type: dict
disk_devices:
  description: Number of the file system, for each of O(paths). Paths on one file system share its
    free space.
  returned: always
  type: dict
  version_added: "0.4.0"
account_clashes:
  description: Entries of O(users) and O(groups) whose name has another id on this host, or whose id
    has another name.
  returned: always
  type: list
  elements: dict
  contains:
    kind:
      description: V(user) or V(group).
      type: str
    name:
      description: The requested name.
      type: str
    asked:
      description: The requested account as text.
      type: str
    found:
      description: The host's account as text.
      type: str
recorded_ids:
  description: Names of the C(users) and C(groups) in O(accounts_record) by id, also of former ones.
    Empty without a record, or without root.
  returned: always
  type: dict
  sample: {users: {"2001": anna}, groups: {"3001": vision}}
  version_added: "0.4.0"
folders:
  description: Files of each existing folder among O(folders), by name, with size in bytes and
    modification time in seconds since 1970.
  returned: always
  type: dict
  sample: {/var/lib/trainyard/wheels: {torch-2.13.0-cp311-cp311-linux_x86_64.whl: [215482913, 1763510000]}}
files:
  description:
    - Each of O(files) that exists, with its mode. C(state) is V(file), V(directory), or V(other),
      as for a link.
    - C(checksum) is SHA-256 of the content of a file. Without root, a file that cannot be read
      fails the module.
  returned: always
  type: dict
  sample: {/etc/trainyard/site/pip.conf: {state: file, checksum: 9f86d081884c7d65, mode: "0644"}}
  version_added: "0.4.0"
trusts:
  description: Whether the host trusts those of O(trusted), so that
    M(trainyard.gpu.trusted_certificates) would change nothing. V(false) without O(trusted).
  returned: always
  type: bool
  version_added: "0.4.0"
engine:
  description: What M(trainyard.gpu.docker_engine_info) returns. Empty without O(engine), and if that module would fail.
  returned: always
  type: dict
  version_added: "0.4.0"
labelled_images:
  description: Names of the images with O(image_label); empty without a Docker engine.
  returned: always
  type: list
  elements: str
"""

import errno
import fcntl
import glob
import hashlib
import os
import platform
import socket
import stat
import struct
import threading
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._accounts import (
    account_clashes,
    number_of,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._answers import answer_of
from ansible_collections.trainyard.gpu.plugins.module_utils._daemon_check import daemon_config_state
from ansible_collections.trainyard.gpu.plugins.module_utils._docker_engine import parse_policy
from ansible_collections.trainyard.gpu.plugins.module_utils._docker_engine_state import (
    ENGINE_OPTIONS,
    engine_state,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import read_text
from ansible_collections.trainyard.gpu.plugins.module_utils._horovod_check import begin_check
from ansible_collections.trainyard.gpu.plugins.module_utils._host import (
    ParseError,
    container_ids,
    default_interface,
    governors,
    hugepages,
    is_virtual_machine,
    listening_sockets,
    memory_mib,
    own_name_addresses,
    parse_ip_addresses,
    parse_os_release,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._infiniband import describe_device
from ansible_collections.trainyard.gpu.plugins.module_utils._own_name import BEGIN
from ansible_collections.trainyard.gpu.plugins.module_utils._pci import (
    fabric_adapters,
    gpus_beside,
    network_cards,
    npu_devices,
    npu_nodes,
    nvidia_devices,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._slurm_host import cgroups
from ansible_collections.trainyard.gpu.plugins.module_utils._people_plan import owned_ids
from ansible_collections.trainyard.gpu.plugins.module_utils._record import DamagedRecord, parse
from ansible_collections.trainyard.gpu.plugins.module_utils._trust_store import trusts_requested

HUGEPAGES = "/sys/kernel/mm/hugepages"
FREQUENCIES = "/sys/devices/system/cpu/cpu[0-9]*/cpufreq"
SYS_CLASS = "/sys/class"
DMI = "/sys/class/dmi/id/modalias"
RDMA_FILES = [
    "node_type",
    "ports/*/state",
    "ports/*/rate",
    "ports/*/link_layer",
    "ports/*/gids/*",
] + ["device/net/*/" + file for file in ("dev_port", "dev_id", "parent", "phys_port_name")]
PROGRAMS = ("exportfs", "mount.nfs4", "needrestart", "setquota")
SIOCGIFFLAGS = 0x8913
# Up and running, which is: with a carrier.
IFF_UP_RUNNING = 0x41
SIOCGIFADDR = 0x8915
SIOCGIFNETMASK = 0x891B


def interfaces_by_ioctl():
    """Return interfaces with their first IPv4 address, for hosts without iproute2."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:

        def ask(request, name):
            return fcntl.ioctl(sock.fileno(), request, struct.pack("256s", name.encode()))

        for dummy, name in socket.if_nameindex():
            addresses = []
            try:
                netmask = struct.unpack("!I", ask(SIOCGIFNETMASK, name)[20:24])[0]
                addresses.append(
                    {
                        "address": socket.inet_ntoa(ask(SIOCGIFADDR, name)[20:24]),
                        "prefix": bin(netmask).count("1"),
                    }
                )
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
            up = (
                struct.unpack("H", ask(SIOCGIFFLAGS, name)[16:18])[0] & IFF_UP_RUNNING
                == IFF_UP_RUNNING
            )
            mtu = sysfs("net", name, "mtu")
            found.append(
                {
                    "name": name,
                    "addresses": addresses,
                    "up": up,
                    "mtu": int(mtu) if mtu.isdigit() else None,
                }
            )
    return found


def read_head(path):
    """The first lines of a file. The kernel needs time for each of hundreds of processors."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(8192)
    except OSError:
        return ""


def sysfs(*parts):
    return read_text(os.path.join(SYS_CLASS, *parts)).strip()


def names_in(*parts):
    return sorted(
        os.path.basename(path) for path in glob.glob(os.path.join(SYS_CLASS, *parts, "*"))
    )


def interfaces(module):
    ip = module.get_bin_path("ip", opt_dirs=["/usr/sbin", "/sbin"])
    rc, out, dummy = module.run_command([ip, "-j", "addr"]) if ip else (1, "", "")
    found = parse_ip_addresses(out) if rc == 0 else interfaces_by_ioctl()
    for interface in found:
        speed = sysfs("net", interface["name"], "speed")
        # The driver reports -1 if it does not know the speed.
        interface["speed_mbit_s"] = int(speed) if speed.isdigit() else None
        duplex = sysfs("net", interface["name"], "duplex")
        interface["duplex"] = duplex if duplex in ("full", "half") else None
    return found


def rdma_files(folder):
    """Return the texts of the files of a device that describe its ports, by their path in its
    folder.
    """
    texts = {
        os.path.relpath(path, folder): read_text(path)
        for pattern in RDMA_FILES
        for path in glob.glob(os.path.join(folder, pattern))
    }
    # The table has up to 256 entries, most of them empty.
    used = [
        path for path in texts if "/gids/" in path and texts[path].replace(":", "").strip("0\n")
    ]
    for path in used:
        for kind in ("types", "ndevs"):
            attribute = path.replace("/gids/", "/gid_attrs/%s/" % kind)
            texts[attribute] = read_text(os.path.join(folder, attribute))
    return texts


def with_master(interface):
    """Return an interface and the bond or bridge that it is a part of, if there is one."""
    if not interface:
        return []
    master = os.path.join(SYS_CLASS, "net", interface, "master")
    masters = [os.path.basename(os.readlink(master))] if os.path.islink(master) else []
    return [interface] + masters


def huge_pages():
    """Return the number of this host's huge pages by their size."""
    paths = glob.glob(os.path.join(HUGEPAGES, "*/nr_hugepages"))
    return hugepages({os.path.basename(os.path.dirname(path)): read_text(path) for path in paths})


def cpu_governors():
    """Return the number of this host's CPUs by their governor."""
    return governors(
        [
            (read_text(folder + "/scaling_governor"), read_text(folder + "/scaling_driver"))
            for folder in glob.glob(FREQUENCIES)
        ]
    )


def rdma_ports():
    """The part of M(trainyard.gpu.infiniband_info)'s ports that is needed to choose networks."""
    found = []
    for name in names_in("infiniband"):
        texts = rdma_files(os.path.join(SYS_CLASS, "infiniband", name))
        for port in describe_device(name, texts)["ports"]:
            found.append(
                {
                    "device": name,
                    "port": port["port"],
                    "state": port["state"],
                    "transport": port["transport"],
                    "rate_gb_s": port["rate_gb_s"],
                    "interfaces": with_master(port["netdev"]),
                    "gid_indexes": {
                        gid["address"]: gid["index"]
                        for gid in port["gids"]
                        if gid["type"] == "RoCE v2" and "." in (gid["address"] or "")
                    },
                }
            )
    return found


def rdma_beside_gpus(gpus):
    return {
        name: gpus_beside(os.path.join(SYS_CLASS, "infiniband", name, "device"), gpus)
        for name in names_in("infiniband")
    }


def nfs_transports(portlist: str) -> list:
    """Return the transports of an NFS server.

    The kernel has a line such as "tcp 2049" or "rdma 20049" for each of its ports.
    """
    return sorted({line.split()[0] for line in portlist.splitlines() if line.strip()})


def resolve(name):
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return {"addresses": [], "error": str(error)}
    return {"addresses": list(dict.fromkeys(answer[4][0] for answer in answers)), "error": ""}


def connect(target, timeout):
    try:
        source = (target["source"], 0) if target["source"] else None
        socket.create_connection((target["address"], target["port"]), timeout, source).close()
        state, reason = "open", ""
    except socket.timeout:
        state, reason = "timeout", "no answer within %g s" % timeout
    except ConnectionRefusedError as error:
        state, reason = "refused", error.strerror
    except OSError as error:
        state, reason = "unreachable", error.strerror or str(error)
    return dict(target, state=state, error=reason)


def ask_network(names, targets, timeout):
    """Look up names and connect in parallel, so that silent hosts and name servers cost only one
    timeout together.
    """
    resolved = {
        name: {"addresses": [], "error": "no answer within %g s" % timeout} for name in names
    }
    connections = [
        dict(target, state="timeout", error="no answer within %g s" % timeout) for target in targets
    ]

    def look_up(name):
        resolved[name] = resolve(name)

    def try_connect(index):
        connections[index] = connect(targets[index], timeout)

    threads = [threading.Thread(target=look_up, args=(name,), daemon=True) for name in names]
    threads += [
        threading.Thread(target=try_connect, args=(index,), daemon=True)
        for index in range(len(targets))
    ]
    for thread in threads:
        thread.start()
    # A little longer than the connections' own timeout, so that they can report their error.
    deadline = time.monotonic() + timeout + 0.5
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(resolved), list(connections)


def owners(inodes):
    """Return the process that holds each of the sockets."""
    found = {}
    inode_of = {"socket:[%s]" % inode: inode for inode in inodes}
    for link in glob.iglob("/proc/[0-9]*/fd/*") if inode_of else ():
        try:
            inode = inode_of.get(os.readlink(link))
        except OSError:
            # The process or its file has just ended, or is not readable for this user.
            continue
        if inode:
            found[inode] = int(link.split("/")[2])
            if len(found) == len(inode_of):
                break
    return found


def listeners(module, docker):
    ports = module.params["ports"]
    sockets = (
        [
            entry
            for name in ("tcp", "tcp6")
            for entry in listening_sockets(read_text("/proc/net/" + name), ports)
        ]
        if ports
        else []
    )
    pids = owners([entry["inode"] for entry in sockets])
    # If the host is itself a container, all of its processes have the host's container id.
    own_ids = container_ids(read_text("/proc/1/cgroup"))
    names = {}
    for entry in sockets:
        pid = pids.get(entry.pop("inode"), 0)
        inner = (
            [
                name
                for name in container_ids(read_text("/proc/%d/cgroup" % pid))
                if name not in own_ids
            ]
            if pid
            else []
        )
        identifier = inner[-1] if inner else ""
        if identifier and docker and identifier not in names:
            rc, out, dummy = module.run_command(
                [docker, "inspect", "--type", "container", "--format", "{{.Name}}", identifier]
            )
            names[identifier] = out.strip().lstrip("/") if rc == 0 else ""
        entry.update(
            pid=pid,
            process=read_text("/proc/%d/comm" % pid).strip() if pid else "",
            container_id=identifier,
            container_name=names.get(identifier, ""),
        )
    return sockets


def free_mib(path):
    while not os.path.exists(path):
        path = os.path.dirname(path)
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize // (1024 * 1024)


def device_of(path: str) -> int:
    """Number of the file system of a path, or of its first parent that exists."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return os.stat(path).st_dev


def files_in(path):
    with os.scandir(path) as entries:
        return {
            entry.name: [entry.stat().st_size, int(entry.stat().st_mtime)]
            for entry in entries
            if entry.is_file()
        }


def files_found(paths: list[str]) -> dict[str, dict[str, str]]:
    """State, checksum and mode of each path that exists."""
    found = {}
    for path in paths:
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            continue
        state, checksum = "other", ""
        if stat.S_ISDIR(mode):
            state = "directory"
        elif stat.S_ISREG(mode):
            state = "file"
            with open(path, "rb") as file:
                checksum = hashlib.sha256(file.read()).hexdigest()
        found[path] = {
            "state": state,
            "checksum": checksum,
            "mode": "%04o" % stat.S_IMODE(mode),
        }
    return found


def labelled_images(module, docker):
    label = module.params["image_label"]
    if not (label and docker):
        return []
    rc, out, dummy = module.run_command(
        [
            docker,
            "image",
            "ls",
            "--filter",
            "label=" + label,
            "--format",
            "{{.Repository}}:{{.Tag}}",
        ]
    )
    return out.split() if rc == 0 else []


def container_kind() -> str:
    """Return the kind of container that the host is, empty for a machine."""
    kind = read_text("/run/systemd/container").strip()
    if kind:
        return kind
    marks = {
        "/.dockerenv": "docker",
        "/run/.containerenv": "podman",
        "/run/systemd/container": "container",
    }
    return next((mark for path, mark in marks.items() if os.path.exists(path)), "")


def candidates(module: AnsibleModule) -> dict[str, str]:
    names = module.params["candidates"]
    apt_cache = module.get_bin_path("apt-cache")
    if not names or not apt_cache:
        return {}
    policy = parse_policy(
        module.run_command([apt_cache, "policy"] + names, environ_update={"LC_ALL": "C.UTF-8"})[1]
    )
    return {name: state["installed"] or state["candidate"] for name, state in policy.items()}


def accounts_in(path):
    """Return the record of module shared_accounts, which only root reads."""
    try:
        with open(path or os.devnull, "rb") as file:
            return parse(file.read(), path)
    except (OSError, DamagedRecord):
        return {}


def main():
    module = AnsibleModule(
        argument_spec={
            "names": {"type": "list", "elements": "str", "default": []},
            "own_name": {"type": "bool", "default": False},
            "connect": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "name": {"type": "str", "required": True},
                    "address": {"type": "str", "required": True},
                    "port": {"type": "int", "required": True},
                    "source": {"type": "str", "default": ""},
                },
            },
            "ports": {"type": "list", "elements": "int", "default": []},
            "paths": {"type": "list", "elements": "path", "default": []},
            "folders": {"type": "list", "elements": "path", "default": []},
            "begin_check": {
                "type": "dict",
                "options": {
                    "container": {"type": "str", "required": True},
                    "ssh_host": {"type": "str", "required": True},
                    "ssh_port": {"type": "int", "required": True},
                    "frameworks": {
                        "type": "list",
                        "elements": "str",
                        "choices": ["tensorflow", "pytorch", "mxnet"],
                        "default": [],
                    },
                    "timeout": {"type": "int", "default": 120},
                },
            },
            "trusted": {
                "type": "dict",
                "options": {
                    "fingerprints": {"type": "list", "elements": "str", "required": True},
                    "bundle": {"type": "path", "required": True},
                },
            },
            "engine": {"type": "dict", "default": {}},
            "image_label": {"type": "str", "default": ""},
            "files": {"type": "list", "elements": "path", "default": []},
            "docker_config": {"type": "bool", "default": False},
            "candidates": {"type": "list", "elements": "str", "default": []},
            "users": {"type": "dict", "default": {}},
            "groups": {"type": "dict", "default": {}},
            "accounts_record": {"type": "path"},
            "reused_ids": {"type": "list", "elements": "int", "default": []},
            "timeout": {"type": "float", "default": 3.0},
        },
        supports_check_mode=True,
    )
    for name in ("paths", "folders", "files"):
        relative = [path for path in module.params[name] if not os.path.isabs(path)]
        if relative:
            module.fail_json(
                msg="%s: %s is not absolute; give paths that begin with /"
                % (name, ", ".join(relative))
            )
    docker = module.get_bin_path("docker")
    # First of all, so that it runs beside the rest.
    begun = begin_check(module, module.params["begin_check"])
    accounts = accounts_in(module.params["accounts_record"])
    docker_config = daemon_config_state(module) if module.params["docker_config"] else ("", [])
    hostname = socket.gethostname()
    container = container_kind()
    hosts_file = read_text("/etc/hosts")
    gpus_on_bus = nvidia_devices()[0]
    names = dict.fromkeys(
        module.params["names"] + ([hostname] if module.params["own_name"] else [])
    )
    resolved, connections = ask_network(
        list(names), module.params["connect"], module.params["timeout"]
    )
    try:
        module.exit_json(
            changed=False,
            os=parse_os_release(read_text("/etc/os-release") or read_text("/usr/lib/os-release")),
            python_version=platform.python_version(),
            architecture=platform.machine(),
            kernel=platform.release(),
            cpus=len(os.sched_getaffinity(0)),
            memory_mib=memory_mib(read_text("/proc/meminfo")),
            hugepages=huge_pages(),
            governors=cpu_governors(),
            hostname=hostname,
            interfaces=interfaces(module),
            default_interface=default_interface(
                read_text("/proc/net/route"), read_text("/proc/net/ipv6_route")
            ),
            rdma_ports=rdma_ports(),
            rdma_beside_gpus=rdma_beside_gpus(gpus_on_bus),
            own_name_in_hosts=own_name_addresses(hosts_file, hostname),
            own_name_repaired=BEGIN in hosts_file.splitlines(),
            gpus=len(glob.glob("/proc/driver/nvidia/gpus/*")),
            nvidia_devices=len(gpus_on_bus),
            npus=max(len(npu_nodes()), npu_devices()),
            fabric_adapters=len(fabric_adapters()),
            network_cards=network_cards(),
            virtual_machine=is_virtual_machine(read_head("/proc/cpuinfo"), read_head(DMI)),
            programs={
                name: bool(module.get_bin_path(name, opt_dirs=["/usr/sbin", "/sbin"]))
                for name in PROGRAMS
            },
            nfs_transports=nfs_transports(read_text("/proc/fs/nfsd/portlist")),
            boot_id=read_text("/proc/sys/kernel/random/boot_id").strip(),
            container=bool(container),
            begun=begun,
            cgroup=cgroups(
                read_text("/proc/1/mountinfo"),
                read_text("/sys/fs/cgroup/cgroup.controllers"),
                container,
                bool(glob.glob("/sys/fs/cgroup/*/memory.swap.max")),
            ),
            candidates=candidates(module),
            resolved=resolved,
            connections=connections,
            listeners=listeners(module, docker),
            disk_free_mib={path: free_mib(path) for path in module.params["paths"]},
            disk_devices={path: device_of(path) for path in module.params["paths"]},
            folders={
                path: files_in(path) for path in module.params["folders"] if os.path.isdir(path)
            },
            files=files_found(module.params["files"]),
            trusts=trusts_requested(module.params["trusted"]),
            docker_config_error=docker_config[0],
            docker_config_warnings=docker_config[1],
            engine=answer_of(module, engine_state, ENGINE_OPTIONS, module.params["engine"]),
            labelled_images=labelled_images(module, docker),
            account_clashes=account_clashes(
                module.params["users"],
                module.params["groups"],
                accounts,
                module.params["reused_ids"],
            ),
            recorded_ids=owned_ids(accounts, number_of),
        )
    except ParseError as error:
        module.fail_json(
            msg=(
                "%s. Read the same on the host. If it is complete, report it as a fault of the "
                "collection"
            )
            % error
        )


if __name__ == "__main__":
    main()
