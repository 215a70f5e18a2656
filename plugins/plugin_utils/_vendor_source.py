# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""NVIDIA's repositories: which one serves a system, at which URL, and its key.

Pure functions over the compatibility data.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._nccl_build import NcclBuild
from ansible_collections.trainyard.gpu.plugins.plugin_utils._quoting import quoted

if TYPE_CHECKING:
    from ansible_collections.trainyard.gpu.plugins.plugin_utils._compat import Compatibility

KINDS = ("cuda", "cuda_ubuntu", "container_toolkit")
# The defaults of role package_sources.
CUDA_URL = "https://developer.download.nvidia.com/compute/cuda/repos"
CONTAINER_URL = "https://nvidia.github.io/libnvidia-container"
KEYRING = "cuda-keyring_1.1-1_all.deb"
# The key with which NVIDIA signs CUDA's repositories since April 2022, and its file name there. The
# default of role package_sources.
CUDA_FINGERPRINT = "EB693B3035CD5710E231E123A4B469963BF863CC"
PUBLIC_KEY = "3bf863cc.pub"
# 7fa2af80, with which it signed them until then:
# developer.download.nvidia.com/compute/cuda/repos/*/*/7fa2af80.pub.
RETIRED_KEYS = ["AE09FE4BBD223A84B2CCFCE3F60F4B3D7FA2AF80"]
# CUDA's repository of one directory, and NVIDIA's former repository of NCCL and cuDNN, whose key is
# retired.
CUDA_PLACE = "developer[.]download[.]nvidia[.](com|cn)/compute/cuda/repos/%s/[^/]+"
FORMER_PLACE = "developer[.]download[.]nvidia[.](com|cn)/compute/machine-learning/repos/.+"
# The compatibility data has no build of NCCL in Debian's directories. glibc: Debian 12 has 2.36 and
# Ubuntu 22.04 has 2.35; Debian 13 has 2.41 and Ubuntu 24.04 has 2.39.
UBUNTU_OF = {"debian12": "ubuntu2204", "debian13": "ubuntu2404"}
# The names of CUDA's folders and of Debian's architectures, by the kernel's name of the machine.
CUDA_ARCHITECTURES = {"x86_64": "x86_64", "aarch64": "sbsa"}
DEB_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@functools.lru_cache(maxsize=2)
def facts(more: str = "") -> Compatibility:
    """The compatibility data, with that of a file of the site."""
    # Imported when it is called, because most callers do not need the compatibility data.
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _compat

    return _compat.Compatibility(_compat.load_facts(more))


class Requested(NamedTuple):
    """What the variables of role package_sources say of NVIDIA's repositories.

    The fingerprints and the checksum are empty if they are not set.

    C(with_key): whether the repository's key is needed. C(facts_file) has compatibility data of the
    site.
    """

    cuda_url: str = CUDA_URL
    container_url: str = CONTAINER_URL
    keyring_checksum: str = ""
    container_fingerprint: str = ""
    with_key: bool = True
    facts_file: str = ""
    cuda_fingerprint: str = ""


class VendorSource(TypedDict):
    """A repository; vendor_source explains each key."""

    name: str
    uri: str
    folder: str
    directory: str
    key_url: str
    key_checksums: list[str]
    key_fingerprints: list[str]
    problem: str
    replaces: list[str]
    retired_keys: list[str]


class _Keyring(NamedTuple):
    """How the key of CUDA's repository is proved: by checksums of its package, or by its
    fingerprint (C(by_key)).
    """

    checksums: list[str]
    by_key: bool = False
    problem: str = ""


def vendor_source(
    kind: str, host: Mapping[str, Any], requested: Mapping[str, Any] | None = None
) -> VendorSource:
    """Return NVIDIA's apt repository for a host and its key, with the options of
    M(trainyard.gpu.vendor_source). Raises ValueError for another C(kind).

    C(requested) has fields of Requested by name. Those that lack have their defaults.

    C(cuda) is the CUDA repository for the system. C(cuda_ubuntu) is the one with NCCL, which for
    Debian is that of the newest Ubuntu whose C library is not newer. C(host) is C(cluster_host).
    The URLs may be those of a mirror. C(keyring_checksum) are checksums, separated by spaces,
    instead of those in the compatibility data, which is read for the key only (C(with_key)).
    C(cuda_fingerprint) is used if no checksum is known.

    Returns C(name) of its files, C(uri), C(folder) with the repositories of other systems,
    C(directory) in it, C(key_url), C(key_checksums), C(key_fingerprints), C(replaces), regular
    expressions for the locations of entries that it replaces, C(retired_keys), their fingerprints,
    and C(problem), why it cannot be added.
    """
    if kind not in KINDS:
        raise ValueError(
            "'%s' is not a repository; use cuda, cuda_ubuntu or container_toolkit" % kind
        )
    request = Requested(**(requested or {}))
    machine = host["architecture"]
    problem = "" if machine in CUDA_ARCHITECTURES else "NVIDIA has no packages for %s" % machine
    if kind == "container_toolkit":
        return _container_source(machine, request, problem)
    return _cuda_source(kind, host, request, problem)


def _container_source(machine: str, requested: Requested, problem: str) -> VendorSource:
    base, fingerprint = requested.container_url.rstrip("/"), requested.container_fingerprint
    return {
        "name": "trainyard-nvidia-container",
        "uri": "%s/stable/deb/%s/" % (base, DEB_ARCHITECTURES.get(machine, machine)),
        "folder": base,
        "directory": "",
        "key_url": base + "/gpgkey",
        "key_checksums": [],
        "key_fingerprints": [fingerprint] if fingerprint else [],
        "problem": problem,
        # The former repositories have the same packages.
        "replaces": [
            "nvidia[.]github[.]io/(nvidia-docker|nvidia-container-runtime)/.+",
            "nvidia[.]github[.]io/libnvidia-container/(?!experimental/).+",
        ],
        "retired_keys": RETIRED_KEYS,
    }


def _cuda_source(
    kind: str, host: Mapping[str, Any], requested: Requested, problem: str
) -> VendorSource:
    machine = host["architecture"]
    own = host["os"]["id"] + host["os"]["version_id"].replace(".", "")
    directory = UBUNTU_OF.get(own, own) if kind == "cuda_ubuntu" else own
    folder = requested.cuda_url.rstrip("/")
    base, arch = "%s/%s" % (folder, directory), CUDA_ARCHITECTURES.get(machine, machine)
    checksums = requested.keyring_checksum.lower().split()
    # The compatibility data has the package of the x86_64 folder. Its keys are valid for all.
    keyring_arch, keyring = arch if checksums else "x86_64", _Keyring(checksums)
    if requested.with_key and not checksums and not problem:
        keyring = _known_keyring(requested, directory, "%s/%s" % (base, arch))
    path = (arch, PUBLIC_KEY) if keyring.by_key else (keyring_arch, KEYRING)
    return {
        # On Ubuntu both kinds are the same repository and therefore one source.
        "name": "trainyard-nvidia-cuda" if directory == own else "trainyard-nvidia-cuda-ubuntu",
        "uri": "%s/%s/" % (base, arch),
        "folder": folder,
        "directory": directory,
        "key_url": "/".join((base, *path)),
        "key_checksums": keyring.checksums,
        "key_fingerprints": [requested.cuda_fingerprint] if keyring.by_key else [],
        "problem": problem or keyring.problem,
        # Also the vendor's own entry if a mirror is requested, because two origins compete.
        "replaces": [CUDA_PLACE % directory, FORMER_PLACE],
        "retired_keys": RETIRED_KEYS,
    }


def _known_keyring(requested: Requested, directory: str, url: str) -> _Keyring:
    """How the key of a directory is proved if the inventory has no checksum.

    C(url) is that of the repository.
    """
    checksum = facts(requested.facts_file).keyring(directory)["sha256"]
    if checksum:
        return _Keyring(["sha256:" + checksum])
    if requested.cuda_fingerprint:
        return _Keyring([], by_key=True)
    problem = (
        "the checksum of %s for %s is not in the compatibility data: set "
        "package_sources_nvidia_keyring_checksum to the output "
        "of sha256sum for %s/%s" % (KEYRING, directory, url, KEYRING)
    )
    return _Keyring([], problem=problem)


#: The packages of NCCL that a host or an image gets.
NAMES = ("libnccl2", "libnccl-dev")
#: Above 1000, so that it overrides an installed newer version and the vendor's pin of 600.
PREFERENCES = """\
Explanation: Managed by trainyard.gpu. libnccl-dev needs the libnccl2 of its very version, and a newer build may need a newer CUDA than the driver runs.
Package: %s
Pin: version %s
Pin-Priority: 1001
"""


def nccl_pair(
    version: str,
    cuda: str = "",
    directory: str = "",
    architecture: str = "x86_64",
    facts_file: str = "",
) -> dict[str, Any]:
    """Return the version of libnccl2 and libnccl-dev.

    If the compatibility data does not have the pair, it is composed from the request, and apt
    decides.

    C(version) is exact, as 2.21.5-1+cuda12.4, or a release, as 2.21.5, for C(cuda), as 12.4. If it
    is empty, all results are. C(directory) is one of NVIDIA's repositories, as ubuntu2204; empty
    means any. C(architecture) is as C(uname -m) names it. C(facts_file) is a file of the site with
    compatibility data.

    Returns C(version), C(known), whether the data has it there, C(nearest), versions, best first,
    C(packages) in apt's notation, and C(preferences), the text of apt's file, which is the same for
    a host and for an image. Raises QuoteError.
    """
    if not version:
        return {"version": "", "known": False, "nearest": [], "packages": [], "preferences": ""}
    found = facts(facts_file).nccl_pair(
        version, cuda, directory, CUDA_ARCHITECTURES.get(architecture, architecture)
    )
    exact = quoted(
        found["version"] or str(NcclBuild(version, 1, ".".join(cuda.split(".")[:2]))), "field"
    )
    return dict(
        found,
        version=exact,
        packages=["%s=%s" % (name, exact) for name in NAMES],
        preferences=PREFERENCES % (" ".join(NAMES), exact),
    )
