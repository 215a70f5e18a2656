# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: vendor_source
short_description: Look up NVIDIA's apt repository for a host and its key
version_added: "0.2.0"
description:
  - Returns the repository for a system, with the options of M(trainyard.gpu.vendor_source).
  - The checksums of the keyring packages are part of the compatibility data.
positional: host
options:
  _input:
    description:
      - V(cuda) is the CUDA repository for the system. V(cuda_ubuntu) is the one with NCCL, which for Debian is that of the newest Ubuntu whose C library is not
        newer. V(container_toolkit) is that of the container toolkit.
    type: str
    choices: [cuda, cuda_ubuntu, container_toolkit]
    required: true
  host:
    description: C(cluster_host) of role C(trainyard.gpu.cluster), for its C(os) and C(architecture).
    type: dict
    required: true
  cuda_url:
    description: URL of the folder of CUDA's repositories, or of a mirror.
    type: str
    default: https://developer.download.nvidia.com/compute/cuda/repos
  container_url:
    description: URL of the folder of the container toolkit's repository, or of a mirror.
    type: str
    default: https://nvidia.github.io/libnvidia-container
  keyring_checksum:
    description: Checksums of keyring packages, separated by spaces, instead of those in the compatibility data.
    type: str
    default: ""
  cuda_fingerprint:
    description: Fingerprint of the key of CUDA's repositories, used if no checksum of the keyring package is known.
    type: str
    default: ""
  container_fingerprint:
    description: Fingerprint of the key of the container toolkit's repository.
    type: str
    default: ""
  with_key:
    description: Whether to return the key. The compatibility data is read only then.
    type: bool
    default: true
  facts_file:
    description: Path on the controller of additional compatibility data in the format of the files in C(plugins/plugin_utils/compat). It has priority over the
      collection's.
    type: str
    default: ""
"""

EXAMPLES = r"""
source: "{{ 'cuda' | trainyard.gpu.vendor_source(cluster_host) }}"
"""

RETURN = r"""
_value:
  description: The repository.
  type: dict
  contains:
    name:
      description: Name of the files of its source and keyring.
      type: str
    uri:
      description: Its URI; it is a flat repository.
      type: str
    folder:
      description: Its parent folder, which it shares with repositories for other systems.
      type: str
    directory:
      description: Its directory below CUDA's repositories, such as V(debian12); empty for the container toolkit.
      type: str
    key_url:
      description: URL of its keyring.
      type: str
    key_checksums:
      description: Accepted checksums of the keyring package.
      type: list
      elements: str
    key_fingerprints:
      description: Fingerprints of its keys, if no checksum is known.
      type: list
      elements: str
    replaces:
      description: Regular expressions for the locations of the entries that it replaces.
      type: list
      elements: str
    retired_keys:
      description: Fingerprints of retired keys.
      type: list
      elements: str
    problem:
      description: Why it cannot be added; empty if it can.
      type: str
"""

import functools

from ansible.errors import AnsibleFilterError

# The defaults of role package_sources.
CUDA_URL = "https://developer.download.nvidia.com/compute/cuda/repos"
CONTAINER_URL = "https://nvidia.github.io/libnvidia-container"
KEYRING = "cuda-keyring_1.1-1_all.deb"
# The key with which NVIDIA signs CUDA's repositories since April 2022, and its file name there. The default of role package_sources.
CUDA_FINGERPRINT = "EB693B3035CD5710E231E123A4B469963BF863CC"
PUBLIC_KEY = "3bf863cc.pub"
# 7fa2af80, with which it signed them until then: developer.download.nvidia.com/compute/cuda/repos/*/*/7fa2af80.pub.
RETIRED_KEYS = ["AE09FE4BBD223A84B2CCFCE3F60F4B3D7FA2AF80"]
# CUDA's repository of one directory, and NVIDIA's former repository of NCCL and cuDNN, whose key is retired.
CUDA_PLACE = "developer[.]download[.]nvidia[.](com|cn)/compute/cuda/repos/%s/[^/]+"
FORMER_PLACE = "developer[.]download[.]nvidia[.](com|cn)/compute/machine-learning/repos/.+"
# The compatibility data has no build of NCCL in Debian's directories. glibc: Debian 12 has 2.36 and Ubuntu 22.04 has 2.35; Debian 13 has 2.41 and Ubuntu 24.04
# has 2.39.
UBUNTU_OF = {"debian12": "ubuntu2204", "debian13": "ubuntu2404"}
# The names of CUDA's folders and of Debian's architectures, by the kernel's name of the machine.
CUDA_ARCHITECTURES = {"x86_64": "x86_64", "aarch64": "sbsa"}
DEB_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@functools.lru_cache(maxsize=2)
def facts(more=""):
    # Imported when it is called, as Ansible loads all filters of a collection for the first one that a task uses.
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _compat

    return _compat.Compatibility(_compat.load_facts(more))


def vendor_source(kind, host, cuda_url=CUDA_URL, container_url=CONTAINER_URL, keyring_checksum="", container_fingerprint="", with_key=True,
                  facts_file="", cuda_fingerprint=""):
    machine = host["architecture"]
    problem = "" if machine in CUDA_ARCHITECTURES else "NVIDIA has no packages for %s" % machine
    if kind == "container_toolkit":
        base = container_url.rstrip("/")
        return {
            "name": "trainyard-nvidia-container", "uri": "%s/stable/deb/%s/" % (base, DEB_ARCHITECTURES.get(machine, machine)), "folder": base, "directory": "",
            "key_url": base + "/gpgkey", "key_checksums": [], "key_fingerprints": [container_fingerprint] if container_fingerprint else [], "problem": problem,
            # The former repositories have the same packages.
            "replaces": ["nvidia[.]github[.]io/(nvidia-docker|nvidia-container-runtime)/.+", "nvidia[.]github[.]io/libnvidia-container/(?!experimental/).+"],
            "retired_keys": RETIRED_KEYS,
        }
    if kind not in ("cuda", "cuda_ubuntu"):
        raise AnsibleFilterError("vendor_source: '%s' is not a repository; use cuda, cuda_ubuntu or container_toolkit" % kind)
    own = host["os"]["id"] + host["os"]["version_id"].replace(".", "")
    directory = UBUNTU_OF.get(own, own) if kind == "cuda_ubuntu" else own
    folder = cuda_url.rstrip("/")
    base, arch = "%s/%s" % (folder, directory), CUDA_ARCHITECTURES.get(machine, machine)
    checksums = keyring_checksum.lower().split()
    # The compatibility data has the package of the x86_64 folder. Its keys are valid for all.
    keyring_arch, by_key = arch if checksums else "x86_64", False
    if with_key and not checksums and not problem:
        known = facts(facts_file).keyring(directory)
        checksums = ["sha256:" + known["sha256"]] if known["sha256"] else []
        by_key = not checksums and cuda_fingerprint != ""
        if not checksums and not by_key:
            problem = "the checksum of %s for %s is not in the compatibility data: set package_sources_nvidia_keyring_checksum to the output " \
                      "of sha256sum for %s/%s/%s" % (KEYRING, directory, base, arch, KEYRING)
    return {
        # On Ubuntu both kinds are the same repository and therefore one source.
        "name": "trainyard-nvidia-cuda" if directory == own else "trainyard-nvidia-cuda-ubuntu", "uri": "%s/%s/" % (base, arch),
        "folder": folder, "directory": directory,
        "key_url": "%s/%s/%s" % ((base, arch, PUBLIC_KEY) if by_key else (base, keyring_arch, KEYRING)), "key_checksums": checksums,
        "key_fingerprints": [cuda_fingerprint] if by_key else [], "problem": problem,
        # Also the vendor's own entry if a mirror is requested, because two origins compete.
        "replaces": [CUDA_PLACE % directory, FORMER_PLACE], "retired_keys": RETIRED_KEYS,
    }


class FilterModule:
    """Filters for NVIDIA's repositories."""

    def filters(self):
        return {"vendor_source": vendor_source}
