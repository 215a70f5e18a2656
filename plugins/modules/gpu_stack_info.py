#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_stack_info
short_description: Gather driver, CUDA, NCCL and container toolkit versions
version_added: "0.2.0"
description:
  - Returns which NVIDIA driver is loaded, which one is on disk for each bootable kernel, the
    version of the libraries, and the effect of a reboot.
  - Returns installed, held and available packages, and where they differ from the requested ones.
  - Works on hosts without a GPU, a driver or NVIDIA packages. It queries no GPU. For that use
    M(trainyard.gpu.nvidia_smi_info).
options:
  asked:
    description:
      - The requested version of each package by name, or V(absent). Digits and dots alone match
        every version that begins with them, field by field. V(535) matches 535.183.01-1.
      - RV(drift) lists those that differ.
    type: dict
    default: {}
  nvcc:
    description: Path of the nvcc that login shells use. Empty means the one below
      C(/usr/local/cuda), else the one on the PATH.
    type: path
  candidates:
    description: Whether to look up the versions that apt would install. This takes most of the
      module's run time.
    type: bool
    default: false
  files:
    description: Paths of files whose checksums are returned in RV(files).
    type: list
    elements: str
    default: []
  services:
    description: Systemd units whose state is returned in RV(services).
    type: list
    elements: str
    default: []
  record:
    description: Absolute path of a JSON file in which a role records what the host does not show
      otherwise. RV(record) has its content.
    type: path
  records:
    description: Absolute paths of further such files, by a name of your own. RV(records) has their
      content.
    type: dict
    default: {}
    version_added: "0.4.0"
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
attributes:
  platform:
    platforms: debian
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Gather the GPU stack
  trainyard.gpu.gpu_stack_info:
    asked:
      nvidia-driver: "535"
      libnccl2: 2.21.5-1+cuda12.4
      libnccl-dev: 2.21.5-1+cuda12.4
  register: stack

- name: Report what the next boot will break
  ansible.builtin.debug:
    msg: "{{ stack.will_break_on_next_boot }}"
  when: stack.will_break_on_next_boot != ''
"""

RETURN = r"""
gpus:
  description: NVIDIA GPUs on the PCI bus, with or without a driver.
  returned: success
  type: list
  elements: dict
  contains:
    bus_id:
      description: PCI bus id.
      type: str
    device_id:
      description: Device id, four hexadecimal digits. It determines the generation.
      type: str
    model:
      description: Name that the loaded driver reports; empty without a driver.
      type: str
nvswitches:
  description: Number of NVSwitches on the PCI bus, which need Fabric Manager.
  returned: success
  type: int
loaded:
  description: Version of the loaded kernel module; empty if none is loaded.
  returned: success
  type: str
loaded_is_open:
  description: Whether it is the open kernel module; null if none is loaded.
  returned: success
  type: bool
modules:
  description: Version of the kernel module on disk, by kernel; empty if a kernel has none.
  returned: success
  type: dict
running_kernel:
  description: The running kernel.
  returned: success
  type: str
next_kernel:
  description: The kernel that boots next; empty on a host without its own kernel, such as a
    container.
  returned: success
  type: str
headers:
  description: Kernels whose headers are installed, so that modules can be built for them.
  returned: success
  type: list
  elements: str
dkms:
  description: State of NVIDIA's modules in DKMS - module, version, kernel, arch, state, differs.
  returned: success
  type: list
  elements: dict
library:
  description: Version of the driver libraries that the loader finds; empty if it finds none.
  returned: success
  type: str
nouveau_loaded:
  description: Whether nouveau is loaded. It prevents NVIDIA's driver from loading.
  returned: success
  type: bool
secure_boot:
  description: Whether the firmware accepts only signed kernel modules; null if unknown.
  returned: success
  type: bool
packages:
  description:
    - Installed NVIDIA and kernel packages by name - version, held, broken, by_nvidia (maintained by
      NVIDIA), and with O(candidates) candidate.
    - C(leads_to) is the package that a transitional, empty package depends on. C(origin), of
      packages of the driver, is one of RV(driver_sources), from the repository that offers the
      installed version.
  returned: success
  type: dict
driver_sources:
  description: Origins of the installed driver - V(distribution), V(nvidia_repository),
    V(other_repository) (such as a PPA), V(runfile). More than one means that its parts do not
    match.
  returned: success
  type: list
  elements: str
driver_pinned:
  description: What pins the driver version - a package, a hold, or a file of apt preferences; empty
    if nothing does.
  returned: success
  type: str
repositories:
  description: NVIDIA repositories in apt's sources - path, uri, suites, and signed_by, which is
    empty if no keyring is named.
  returned: success
  type: list
  elements: dict
foreign_sources:
  description:
    - Repositories other than the distribution's and NVIDIA's, such as PPAs, that offer packages of
      the NVIDIA driver. Role P(trainyard.gpu.nvidia_driver#role) installs nothing from them.
      Repositories of C(package_sources_apt_repositories) are not included.
    - RV(foreign_sources[].kept_out) is true if apt preferences block their driver.
  returned: success
  type: list
  elements: dict
  version_added: "0.4.0"
  contains:
    path:
      description: File of the source entry.
      type: str
    uri:
      description: Its address.
      type: str
    suite:
      description: Its suite.
      type: str
    origin:
      description: Origin in its Release file; empty if it has none.
      type: str
    own_origin:
      description: Whether no other repository in use has the same origin. Otherwise apt preferences
        cannot distinguish them.
      type: bool
    packages:
      description: Driver packages that it offers by name, with their versions, newest first.
      type: dict
    kept_out:
      description: Whether apt preferences block its driver.
      type: bool
old_keys:
  description: Keyrings trusted for every repository that hold NVIDIA's signing key from before
    April 2022.
  returned: success
  type: list
  elements: str
docker:
  description: Version of the Docker engine; empty if there is none.
  returned: success
  type: str
cuda:
  description: CUDA toolkits, by their folder - release, version.
  returned: success
  type: dict
cuda_chosen:
  description: Target of the link C(/usr/local/cuda); empty if there is none.
  returned: success
  type: str
nvcc:
  description: The nvcc that login shells use - path, release, version; empty if there is none.
  returned: success
  type: dict
nccl_header:
  description: NCCL's version in C(nccl.h), by the header's path.
  returned: success
  type: dict
open_mpi:
  description: Folders of Open MPI that have its headers, from the vendor's OFED (C(/usr/mpi)) and
    the distribution.
  returned: success
  type: list
  elements: str
container_toolkit:
  description: Version of nvidia-ctk; empty if there is none.
  returned: success
  type: str
container_runtimes:
  description: Runtimes in C(/etc/docker/daemon.json).
  returned: success
  type: list
  elements: str
cdi:
  description: NVIDIA's CDI specifications - path, and library, the driver version in them.
  returned: success
  type: list
  elements: dict
module_keys_enrolled:
  description: With RV(secure_boot), this host's own DKMS signing keys that the firmware accepts.
  returned: success
  type: list
  elements: str
initramfs:
  description: Whether this host builds an initramfs for its kernels. It contains a copy of
    modprobe's configuration.
  returned: success
  type: bool
files:
  description: SHA-256 checksums of the existing files among O(files), by path.
  returned: success
  type: dict
services:
  description: For each of O(services), whether it is loaded, enabled and active.
  returned: success
  type: dict
record:
  description: Content of O(record); empty if there is none.
  returned: success
  type: dict
records:
  description: Content of each of O(records), by its name; empty if there is none.
  returned: success
  type: dict
reboot_required_reason:
  description: Why a reboot is needed to load the driver on disk; empty if none is needed.
  returned: success
  type: str
will_break_on_next_boot:
  description: Why the driver will not work after the next boot; empty if it will.
  returned: success
  type: str
drift:
  description: Packages that differ from O(asked) - name, asked, found.
  returned: success
  type: list
  elements: dict
"""

import glob
import json
import os
import platform
import re

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils import _apt_sources
from ansible_collections.trainyard.gpu.plugins.module_utils import _gpu_stack as stack
from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import checksums, read_text
from ansible_collections.trainyard.gpu.plugins.module_utils._pci import nvidia_devices
from ansible_collections.trainyard.gpu.plugins.module_utils._record import Record

PACKAGES = [
    "*nvidia*",
    "cuda*",
    "libcuda*",
    "libnvcuvid*",
    "libnvoptix*",
    "libnvsdm*",
    "nvsdm*",
    "libxnvctrl*",
    "libcudnn*",
    "libnccl*",
    "linux-image-*",
    "linux-headers-*",
]
HEADERS = ["/usr/include/nccl.h", "/usr/local/include/nccl.h", "/usr/local/nccl*/include/nccl.h"]
OPEN_MPI = ["/usr/mpi/*/openmpi-*/include/mpi.h", "/usr/lib/*/openmpi/include/mpi.h"]
SPECIFICATIONS = ["/etc/cdi/*", "/var/run/cdi/*"]
SOURCES = [
    "/etc/apt/sources.list",
    "/etc/apt/sources.list.d/*.list",
    "/etc/apt/sources.list.d/*.sources",
]
PREFERENCES = ["/etc/apt/preferences", "/etc/apt/preferences.d/*"]
# Certificate of the DKMS signing key, on Debian and on Ubuntu.
MODULE_KEYS = ["/var/lib/dkms/mok.pub", "/var/lib/shim-signed/mok/MOK.der"]
LISTS = "/var/lib/apt/lists"
KEYRINGS = ["/etc/apt/trusted.gpg", "/etc/apt/trusted.gpg.d/*"]


def secure_boot():
    for path in glob.glob("/sys/firmware/efi/efivars/SecureBoot-*"):
        try:
            with open(path, "rb") as stream:
                return stream.read()[-1:] == b"\x01"
        except OSError:
            continue
    return None


class Host:
    def __init__(self, module):
        self.module = module

    def say(self, *command):
        """Output of a tool; empty if it is missing or prints nothing."""
        path = self.module.get_bin_path(command[0], opt_dirs=["/usr/sbin", "/sbin"])
        if not path:
            return ""
        return self.module.run_command([path] + list(command[1:]), environ_update={"LC_ALL": "C"})[
            1
        ]

    def modules(self):
        kernels = sorted(
            os.path.basename(path)[len("vmlinuz-") :] for path in glob.glob("/boot/vmlinuz-*")
        )
        name = stack.parse_module_name(self.say("modprobe", "--show-depends", "nvidia")) or "nvidia"
        return {
            kernel: stack.parse_modinfo(
                self.say("modinfo", "--set-version", kernel, "--field", "version", name)
            )
            for kernel in kernels
        }

    def library(self):
        path = stack.parse_library_path(self.say("ldconfig", "--print-cache"))
        return stack.library_version(os.path.realpath(path)) if path else ""

    def packages(self):
        found = stack.parse_packages(
            self.say(
                "dpkg-query",
                "--show",
                "--showformat",
                stack.PACKAGES_FORMAT,
                *PACKAGES,
            )
        )
        if self.module.params["candidates"] and found:
            policy = stack.parse_policy(self.say("apt-cache", "policy", *sorted(found)))
            for name, package in found.items():
                package["candidate"] = policy.get(name, {}).get("candidate", "")
        return found

    def cuda(self):
        found = {}
        for path in sorted(glob.glob("/usr/local/cuda-*/bin/nvcc")):
            answer = stack.parse_nvcc(self.say(path, "--version"))
            if answer:
                # NVIDIA's packages also make a link for the major version, such as cuda-13.
                found[os.path.realpath(os.path.dirname(os.path.dirname(path)))] = answer
        return found

    def packages_file(self, path):
        if path.endswith("Packages"):
            return read_text(path)
        # Container and cloud images keep the lists compressed.
        return self.say("/usr/lib/apt/apt-helper", "cat-file", path)

    def foreign_sources(self, preferences):
        """Repositories of others that offer a driver, and all repositories as URL and suite, by
        their origin.

        A repository whose lists are not downloaded yet offers nothing, and its origin is unknown.
        """
        found, used, places = {}, set(), {origin: [] for origin in stack.ORIGINS}
        for path in files(SOURCES):
            for stanza in _apt_sources.stanzas(path, read_text(path)):
                for uri, suite in [
                    (uri, suite)
                    for uri in stanza["uris"]
                    for suite in stanza["suites"]
                    if "deb" in stanza["types"]
                ]:
                    prefix = os.path.join(LISTS, _apt_sources.list_prefix(uri, suite))
                    origin = stack.parse_release(
                        read_text(prefix + "InRelease") or read_text(prefix + "Release")
                    )
                    if not stack.is_foreign(path, uri, origin):
                        used.add(origin)
                        ours = stack.is_nvidias(path, uri, origin)
                        places["nvidia_repository" if ours else "distribution"].append((uri, suite))
                        continue
                    source = {
                        "path": path,
                        "uri": uri.rstrip("/"),
                        "suite": suite,
                        "origin": origin,
                        "packages": {},
                    }
                    for index in sorted(glob.glob(glob.escape(prefix) + "*Packages*")):
                        source["packages"].update(
                            stack.parse_driver_offers(self.packages_file(index))
                        )
                    if source["packages"]:
                        found.setdefault((path, uri, suite), source)
        for source in found.values():
            source["own_origin"] = source["origin"] not in used
            source["kept_out"] = stack.is_kept_out(source, preferences)
            places["other_repository"].append((source["uri"], source["suite"]))
        return list(found.values()), places

    def add_origins(self, packages, places, record):
        """Adds its origin to each package of the driver.

        Those that role nvidia_driver installed are from its source, so apt is not asked.
        """
        driver = {
            name: package
            for name, package in packages.items()
            if "nvidia" in name or stack.is_of_driver(name)
        }
        source = (record.get("asked") or {}).get("source", "")
        versions = record.get("packages") or {}
        noted = {
            name: source
            for name, package in driver.items()
            if source and versions.get(name) == package["version"]
        }
        requested = sorted(set(driver) - set(noted))
        offers = stack.parse_origins(
            self.say("apt-cache", "madison", *requested) if requested else "",
            places,
        )
        for name, origin in stack.package_origins(driver, offers, noted).items():
            packages[name]["origin"] = origin

    def nvcc(self):
        chosen = self.module.params["nvcc"] or "/usr/local/cuda/bin/nvcc"
        path = chosen if os.path.exists(chosen) else self.module.get_bin_path("nvcc") or ""
        answer = stack.parse_nvcc(self.say(path, "--version")) if path else None
        return dict(answer, path=path) if answer else {}

    def module_keys_enrolled(self):
        return [
            path
            for path in MODULE_KEYS
            if "is already enrolled" in self.say("mokutil", "--test-key", path)
        ]

    def services(self):
        found = {}
        for name in self.module.params["services"]:
            lines = self.say(
                "systemctl", "show", name, "--property=LoadState,UnitFileState,ActiveState"
            ).splitlines()
            shown = dict(line.split("=", 1) for line in lines if "=" in line)
            found[name] = {
                "loaded": shown.get("LoadState") == "loaded",
                "active": shown.get("ActiveState") == "active",
                # A static unit cannot be enabled: other units start it.
                "enabled": shown.get("UnitFileState")
                in ("enabled", "enabled-runtime", "static", "indirect", "generated", "alias"),
            }
        return found

    def docker(self):
        match = re.search(r"version (\d+\.\d+\.\d+)[^\d.]", self.say("dockerd", "--version"))
        return match.group(1) if match else ""

    def container_toolkit(self):
        match = re.search(r"version (\d+\.\d+\.\d+\S*)\s", self.say("nvidia-ctk", "--version"))
        return match.group(1) if match else ""


def files(patterns):
    return sorted(
        path for pattern in patterns for path in glob.glob(pattern) if os.path.isfile(path)
    )


def models():
    """GPU names that the loaded driver reports, by bus address."""
    return {
        os.path.basename(os.path.dirname(path)): match.group(1)
        for path in glob.glob("/proc/driver/nvidia/gpus/*/information")
        for match in [re.search(r"^Model:\s*(\S.*?)\s*$", read_text(path), re.MULTILINE)]
        if match
    }


def old_keys():
    found = []
    for path in files(KEYRINGS):
        with open(path, "rb") as stream:
            if stack.holds_old_key(stream.read()):
                found.append(path)
    return found


def runtimes():
    try:
        return sorted(json.loads(read_text("/etc/docker/daemon.json") or "{}").get("runtimes", {}))
    except (ValueError, AttributeError):
        # Role docker_engine reports errors in the file.
        return []


def specifications():
    found = []
    for path in sorted(path for pattern in SPECIFICATIONS for path in glob.glob(pattern)):
        text = read_text(path)
        if "nvidia.com/" in text:
            versions = sorted(set(re.findall(r"libnvidia-ml\.so\.(\d+(?:\.\d+)+)", text)))
            found.append({"path": path, "library": versions[-1] if versions else ""})
    return found


def loaded_driver():
    """Return the C(version) of the loaded kernel module, empty without one, and whether it is
    C(open), None if that is unknown.
    """
    found = stack.parse_nvrm(read_text("/proc/driver/nvidia/version"))
    version = read_text("/sys/module/nvidia/version").strip()
    return found or {"version": version, "open": None}


def nvidia_dkms(host):
    """Return the entries of NVIDIA's modules in dkms. Raises ParseError."""
    entries = stack.parse_dkms_status(host.say("dkms", "status"))
    return [entry for entry in entries if "nvidia" in entry["module"]]


def nccl_headers():
    """Return the version of each nccl.h by path."""
    paths = [path for pattern in HEADERS for path in glob.glob(pattern)]
    return {path: stack.parse_nccl_header(read_text(path)) for path in paths}


def repositories():
    """Return the entries of apt's sources."""
    return [
        entry for path in files(SOURCES) for entry in stack.parse_sources(read_text(path), path)
    ]


def has_initramfs(module):
    """Return whether the host has an initramfs and the program that writes it."""
    program = module.get_bin_path("update-initramfs", opt_dirs=["/usr/sbin", "/sbin"])
    return bool(glob.glob("/boot/initrd.img-*")) and bool(program)


def records_of(module):
    """Return C(record) and C(records), the content of the files in these options.

    A damaged one fails the module.
    """
    path, paths = module.params["record"], module.params["records"]
    return {
        "record": Record(module, path).read() if path else {},
        "records": {name: Record(module, each).read() for name, each in paths.items()},
    }


def main():
    module = AnsibleModule(
        argument_spec={
            "asked": {"type": "dict", "default": {}},
            "nvcc": {"type": "path"},
            "candidates": {"type": "bool", "default": False},
            "files": {"type": "list", "elements": "str", "default": []},
            "services": {"type": "list", "elements": "str", "default": []},
            "record": {"type": "path"},
            "records": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    host = Host(module)
    gpus, switches = nvidia_devices()
    named = models()
    try:
        loaded = loaded_driver()
        modules, library, packages = host.modules(), host.library(), host.packages()
        dkms = nvidia_dkms(host)
        cuda, nvcc = host.cuda(), host.nvcc()
    except stack.ParseError as error:
        module.fail_json(
            msg="the output about the driver cannot be parsed: %s. Read the same on the host. If "
            "it is complete, report the line as a "
            "fault of the collection" % error
        )
    headers = [kernel for kernel in modules if os.path.isdir("/lib/modules/%s/build" % kernel)]
    running = platform.release()
    following = stack.next_kernel(
        modules, stack.grub_default(read_text("/etc/default/grub"), read_text("/boot/grub/grubenv"))
    )
    command = {str(name): str(version) for name, version in module.params["asked"].items()}
    locked = secure_boot()
    records = records_of(module)
    preferences = {path: read_text(path) for path in files(PREFERENCES)}
    foreign, places = host.foreign_sources(preferences)
    host.add_origins(packages, places, records["record"])
    module.exit_json(
        changed=False,
        gpus=[dict(gpu, model=named.get(gpu["bus_id"], "")) for gpu in gpus],
        nvswitches=switches,
        loaded=loaded["version"],
        loaded_is_open=loaded["open"],
        modules=modules,
        running_kernel=running,
        next_kernel=following,
        headers=headers,
        dkms=dkms,
        library=library,
        nouveau_loaded=os.path.isdir("/sys/module/nouveau"),
        secure_boot=locked,
        module_keys_enrolled=host.module_keys_enrolled() if locked else [],
        initramfs=has_initramfs(module),
        files=checksums(module.params["files"]),
        services=host.services(),
        **records,
        packages=packages,
        driver_sources=stack.driver_sources(packages, os.path.lexists("/usr/bin/nvidia-uninstall")),
        driver_pinned=stack.driver_pinned(packages, preferences),
        foreign_sources=foreign,
        repositories=repositories(),
        old_keys=old_keys(),
        docker=host.docker(),
        cuda=cuda,
        cuda_chosen=os.path.realpath("/usr/local/cuda") if os.path.isdir("/usr/local/cuda") else "",
        nvcc=nvcc,
        nccl_header=nccl_headers(),
        open_mpi=[os.path.dirname(os.path.dirname(path)) for path in files(OPEN_MPI)],
        container_toolkit=host.container_toolkit(),
        container_runtimes=runtimes(),
        cdi=specifications(),
        reboot_required_reason=stack.reboot_required_reason(
            loaded["version"], modules, library, running, following, bool(gpus)
        ),
        will_break_on_next_boot=stack.will_break_on_next_boot(
            modules, library, following, headers, bool(gpus)
        ),
        drift=stack.drift(
            command, {name: package["version"] for name, package in packages.items()}
        ),
    )


if __name__ == "__main__":
    main()
