# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Driver, CUDA and NCCL of a host: output of the kernel, dpkg, apt, DKMS and nvcc in, typed data
and conclusions out.

A driver is three things that must be of one version: the kernel module that is loaded, the module
on disk for each kernel that may boot, and the libraries. An update replaces the last two
immediately, and the first at the next boot. Most failures in practice are mismatches between them.
"""

from __future__ import annotations

import binascii
import re

from typing import Any, Dict, Iterable, Mapping, Set, Tuple, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils import _apt_sources
from ansible_collections.trainyard.gpu.plugins.module_utils._packages import (
    dpkg_rows,
    is_of,
    madison_rows,
    whole_lines,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._parse_error import ParseError

# Debian adds the branch's name to the module's ('nvidia-current'), Ubuntu the branch
# ('nvidia-535-server'). Modules of others have versions such as v0.9.5.
_DKMS = re.compile(
    r"(?P<module>[\w.+-]+)(?:/|, )(?P<version>[^,:\s]+)(?:, (?P<kernel>[^,:\s]+), "
    r"(?P<arch>[^,:\s]+))?: (?P<state>added|built|installed|broken)\b"
    r"(?P<remark>.*)"
)
# As dkms 2 and 3.0 say it, and later ones.
_DIFFERS = re.compile(r"Diff(erences)? between built and installed")
_NVRM = re.compile(
    (
        r"NVRM version:\s+NVIDIA UNIX (?:(?P<open>Open) Kernel Module for \S+|\S+ Kernel "
        r"Module)\s+(?P<version>\d+(?:\.\d+)+)\s"
    )
)
_NVCC = re.compile(r"Cuda compilation tools, release (\d+\.\d+), V(\d+\.\d+\.\d+)\s")
# developer.download.nvidia.com/compute/cuda/repos/*/*/7fa2af80.pub, the id in full.
_OLD_KEY = bytes.fromhex("f60f4b3d7fa2af80")
# Packages that should come from one maker only.
_DRIVER = re.compile(
    r"(nvidia-(driver|open|kernel|dkms|utils|smi|headless|compute-utils)|cuda-drivers|libnvidia-(ml1|compute)|libcuda1)(-.*)?$"
)
# Origins of the distributions in Release files, also of mirrors. PPAs have LP-PPA-NAME.
# Ubuntu Pro has one origin for each of its services.
_DISTRIBUTION = re.compile(
    r"(Debian|Ubuntu)( ?Backports|ESM|ESMApps|FIPS|FIPSUpdates|FIPSPreview|RealtimeKernel)?"
)
# Repositories in package_sources_apt_repositories are used on purpose.
DECLARED_SOURCES = "/etc/apt/sources.list.d/trainyard.sources"
# Role package_sources writes NVIDIA's repositories, or the site's mirrors of them, to such files.
_NVIDIA_SOURCES = re.compile(r"/etc/apt/sources\.list\.d/trainyard-nvidia-[\w-]+\.sources")
# For dpkg-query --showformat, for parse_packages.
PACKAGES_FORMAT = "${binary:Package}\\t${Version}\\t${db:Status-Abbrev}\\t${Maintainer}\\t${Section}\\t${Depends}\\n"
ORIGINS = ("distribution", "nvidia_repository", "other_repository")
# nvidia-utils-570-server, linux-modules-nvidia-570-server-open-generic.
_BRANCHED = re.compile(r"((?:[a-z]+-)*(?:lib)?nvidia(?:-[a-z]\w*)*)-(\d{3})(?:-\S+)?")
# Ubuntu's archive has its release in a version: 570.211.01-0ubuntu1.24.04.1. NVIDIA's has -0ubuntu1
# or -1ubuntu1.
_OF_NVIDIA_FOR_UBUNTU = re.compile(r"\S+-[01]ubuntu1")
_LIBRARY = re.compile(r"libnvidia-ml\.so\.(\d+(?:\.\d+)+)$")


class Loaded(TypedDict):
    """Version of the loaded module, and whether it is the open one."""

    version: str
    open: bool


class Dkms(TypedDict):
    """A DKMS module.

    C(kernel) and C(arch) are empty if it was only added, C(differs) tells whether the installed
    module is from a different build.
    """

    module: str
    version: str
    kernel: str
    arch: str
    state: str
    differs: bool


class Package(TypedDict):
    """An installed package.

    C(by_nvidia) tells whether its maintainer is NVIDIA, C(leads_to) is the package that a
    transitional, empty one depends on.

    C(broken) is one that is half installed.
    """

    version: str
    held: bool
    broken: bool
    by_nvidia: bool
    leads_to: str


class PlacedPackage(Package):
    """The same with its origin, one of C(ORIGINS)."""

    origin: str


class Source(TypedDict):
    """An apt source of NVIDIA. C(signed_by) is empty if no key is named."""

    path: str
    uri: str
    suites: list[str]
    signed_by: str


class Policy(TypedDict):
    """Installed and candidate version of a package, empty if there is none."""

    installed: str
    candidate: str


class Difference(TypedDict):
    """A version that differs from the requested one."""

    name: str
    asked: str
    found: str


#: Origins that offer a version, by name and version of a package.
Offers = Dict[Tuple[str, str], Set[str]]


def version_key(version: str | None) -> tuple[int, ...]:
    """For comparisons: dotted numbers field by field, 470.239.06 above 470.57.02.

    Epoch and distribution suffix are ignored.
    """
    numbers = re.match(r"(?:\d+:)?(\d+(?:\.\d+)*)", version or "")
    if not numbers:
        raise ParseError("no version: %r" % version)
    return tuple(int(part) for part in numbers.group(1).split("."))


def upstream(version: str | None) -> str:
    """NVIDIA's own version in a package's: 535.183.01 of 535.183.01-1~deb12u1 and of
    1:535.183.01-0ubuntu1.
    """
    numbers = re.match(r"(?:\d+:)?(\d+(?:\.\d+)*)", version or "")
    return numbers.group(1) if numbers else ""


# --- output of the tools ---------------------------------------------------------------------------------------------------


def parse_nvrm(text: str) -> Loaded | None:
    """The loaded module from /proc/driver/nvidia/version. None without such a file."""
    if not text.strip():
        return None
    match = _NVRM.search(text)
    if not match:
        raise ParseError("/proc/driver/nvidia/version: %.120r" % text.splitlines()[0])
    return {"version": match.group("version"), "open": bool(match.group("open"))}


def parse_dkms_status(text: str) -> list[Dkms]:
    """The modules of C(dkms status)."""
    found: list[Dkms] = []
    for line in whole_lines(text, "dkms status"):
        if not line.strip() or line.startswith(("Error!", "Deprecated feature", "Warning")):
            continue
        match = _DKMS.fullmatch(line.strip())
        if not match:
            raise ParseError("dkms status: %.120r" % line)
        found.append(
            {
                "module": match.group("module"),
                "version": match.group("version"),
                "kernel": match.group("kernel") or "",
                "arch": match.group("arch") or "",
                "state": match.group("state"),
                "differs": bool(_DIFFERS.search(match.group("remark"))),
            }
        )
    return found


def parse_nvcc(text: str) -> dict[str, str] | None:
    """Release and version of nvcc, None for other text.

    Outputs of several hosts in one text must agree.
    """
    found = set(_NVCC.findall(text))
    if len(found) > 1:
        raise ParseError(
            "different outputs of nvcc in one text: %s"
            % ", ".join(sorted(version for dummy, version in found))
        )
    for release, version in found:
        return {"release": release, "version": version}
    return None


def parse_packages(text: str) -> dict[str, Package]:
    """Installed packages by name, of dpkg-query's C(PACKAGES_FORMAT).

    One that has only its settings left is none. A library that is also there for i386, which dpkg
    lists after amd64, is the one of amd64.
    """
    found: dict[str, Package] = {}
    for name, version, status, maintainer, section, depends in dpkg_rows(text, 6):
        name = name.partition(":")[0]
        if status[1] not in "nc" and name not in found:
            found[name] = {
                "version": version,
                "held": status[0] == "h",
                "broken": status[1] != "i",
                "by_nvidia": bool(re.search(r"@([\w.-]+\.)?nvidia\.com>", maintainer)),
                "leads_to": leads_to(name, section, depends),
            }
    return found


def leads_to(name: str, section: str, depends: str) -> str:
    """The package that a transitional package has become; empty if it has content of its own.

    Ubuntu moves the packages of an old driver branch to section oldlibs, or lets them depend on the
    same package of another branch.
    """
    needed: list[str] = re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]+)", depends)
    own = _BRANCHED.fullmatch(name)
    for other in needed:
        theirs = _BRANCHED.fullmatch(other)
        if own and theirs and own.group(1) == theirs.group(1) and own.group(2) != theirs.group(2):
            return other
    return needed[0] if needed and section.rpartition("/")[2] == "oldlibs" else ""


def parse_transitional(text: str) -> dict[tuple[str, str], str]:
    """The package that each transitional package leads to, by name and version, of `apt-cache
    show`.
    """
    found = {}
    for paragraph in re.split(r"\n\n+", text):
        # A value goes on in lines that begin with a blank.
        fields = dict(re.findall(r"^(\S+):[ \t]*(.*(?:\n[ \t].*)*)", paragraph, re.MULTILINE))
        about = fields.get("Description", "") + fields.get("Description-en", "")
        is_empty = re.match(r"\W*(transitional|dummy) ", about + " ", re.IGNORECASE)
        other = leads_to(
            fields.get("Package", ""),
            "oldlibs" if is_empty else fields.get("Section", ""),
            " ".join(fields.get("Depends", "").split()),
        )
        if other and "Version" in fields:
            found[fields["Package"], fields["Version"]] = other
    return found


def parse_sources(text: str, path: str) -> list[Source]:
    """NVIDIA repositories in one of apt's files, in both formats: C(path), C(uri), C(suites),
    C(signed_by), empty if none is named.

    Entries that are switched off count for nothing. What apt itself would refuse is left out: apt
    says so better.
    """
    return [
        {
            "path": path,
            "uri": entry["uri"].rstrip("/"),
            "suites": [entry["suite"]],
            "signed_by": entry["signed_by"],
        }
        for entry in _apt_sources.entries(path, text)
        if _looks_like_nvidia(entry["uri"])
    ]


def _looks_like_nvidia(uri: str) -> bool:
    # Launchpad has PPAs with that word in their names.
    return ("nvidia" in uri.lower() or "/compute/cuda/repos" in uri) and not re.search(
        r"\bppa\b", uri.lower()
    )


def parse_release(text: str) -> str:
    """Origin in the header of a Release or InRelease file; empty if it has none."""
    match = re.search(r"^Origin:[ \t]*(\S.*?)[ \t]*$", text, re.MULTILINE)
    return match.group(1) if match else ""


def is_foreign(path: str, uri: str, origin: str) -> bool:
    """Whether a repository is not the distribution's (or a mirror of it), NVIDIA's, or declared by
    the site.
    """
    return (
        path != DECLARED_SOURCES
        and not _DISTRIBUTION.fullmatch(origin)
        and not is_nvidias(path, uri, origin)
    )


def is_nvidias(path: str, uri: str, origin: str) -> bool:
    """Whether a repository is NVIDIA's, or a mirror of it."""
    by_url = _looks_like_nvidia(uri) and not _DISTRIBUTION.fullmatch(origin)
    return bool(_NVIDIA_SOURCES.fullmatch(path)) or origin == "NVIDIA" or by_url


def parse_driver_offers(text: str) -> dict[str, list[str]]:
    """Versions of the driver's packages in a Packages file, by name.

    Fields of other packages are not parsed.
    """
    found: dict[str, list[str]] = {}
    if not re.search(r"^Package: (.*nvidia|cuda-drivers|libcuda1)", text, re.MULTILINE):
        return found
    for paragraph in re.split(r"\n\n+", text):
        name = re.search(r"^Package: (\S+)$", paragraph, re.MULTILINE)
        version = re.search(r"^Version: (\S+)$", paragraph, re.MULTILINE)
        if name and version and _DRIVER.match(name.group(1)):
            found.setdefault(name.group(1), []).append(version.group(1))
    return found


def foreign_pin(source: Mapping[str, Any]) -> str:
    """Origin of a repository for apt preferences.

    Empty if it has none, or if another repository in use has the same one.

    C(source) has C(origin) of its Release file, and C(own_origin), whether no other repository in
    use has that.

    The host is no name for it: a mirror may serve the distribution beside it.
    """
    return "release o=%s" % source["origin"] if source["origin"] and source["own_origin"] else ""


def is_kept_out(source: Mapping[str, Any], preferences: Mapping[str, str]) -> bool:
    """Whether apt preferences block the driver's packages of a repository.

    C(preferences) has the text of apt's files by path.
    """
    if not foreign_pin(source):
        return False
    for text in preferences.values():
        for paragraph in re.split(r"\n\s*\n", text):
            fields = dict(re.findall(r"^(\S+):[ \t]*(.*?)[ \t]*$", paragraph, re.MULTILINE))
            names = fields.get("Package", "").split()
            if (
                fields.get("Pin") == foreign_pin(source)
                and fields.get("Pin-Priority", "").startswith("-")
                and ("*nvidia*" in names or "*" in names)
            ):
                return True
    return False


def holds_old_key(content: bytes) -> bool:
    """Whether a keyring, in bytes, has NVIDIA's signing key from before April 2022.

    The self-signature of a key contains its id.
    """
    for block in re.findall(
        rb"-----BEGIN PGP PUBLIC KEY BLOCK-----[^\n]*\n(.*?)-----END", content, re.DOTALL
    ):
        body = [
            line.strip()
            for line in block.splitlines()
            if b":" not in line and not line.startswith(b"=")
        ]
        try:
            content += binascii.a2b_base64(b"".join(body))
        except binascii.Error:
            # Then apt cannot read it either.
            continue
    return _OLD_KEY in content


def parse_policy(text: str) -> dict[str, Policy]:
    """Parse `apt-cache policy`: installed and candidate version by package, empty if there
    is none.
    """
    found: dict[str, Policy] = {}
    package: Policy | None = None
    for line in whole_lines(text, "apt-cache policy"):
        heading = re.fullmatch(r"(\S+):", line)
        value = re.fullmatch(r"  (Installed|Candidate): (\S+)", line)
        if heading:
            name = heading.group(1).partition(":")[0]
            package = found.setdefault(name, {"installed": "", "candidate": ""})
        elif value and package is not None:
            version = "" if value.group(2) == "(none)" else value.group(2)
            if value.group(1) == "Installed":
                package["installed"] = version
            else:
                package["candidate"] = version
    return found


def parse_module_name(text: str) -> str:
    """The module in an install command of modprobe, from `modprobe --show-depends nvidia`; empty if
    there is none.

    Debian's module has another name on disk, because several branches can be installed in parallel.
    """
    for line in whole_lines(text, "modprobe"):
        match = re.match(
            r"install .*\bmodprobe (?:-\S+ )*(?:-i|--ignore-install) (nvidia[\w-]*)", line
        )
        if match:
            return match.group(1)
    return ""


def parse_modinfo(text: str) -> str:
    """Output of `modinfo --field version` for one module; empty if there is no such module."""
    versions = sorted(set(whole_lines(text, "modinfo")))
    if len(versions) > 1 or versions and not re.fullmatch(r"\d+(\.\d+)+", versions[0]):
        raise ParseError("modinfo: %.120r" % text)
    return versions[0] if versions else ""


def parse_library_path(text: str) -> str:
    """Path of the driver's library, from `ldconfig --print-cache`; empty if the loader does not
    find it.
    """
    for line in whole_lines(text, "ldconfig"):
        match = re.fullmatch(r"\s*libnvidia-ml\.so\.1 \(\S*(?:x86-64|AArch64)\S*\) => (\S.*)", line)
        if match:
            return match.group(1)
    return ""


def library_version(path: str) -> str:
    """Version of the driver's library, from the target of libnvidia-ml.so.1; empty if it
    has none.
    """
    match = _LIBRARY.search(path)
    return match.group(1) if match else ""


def parse_nccl_header(text: str) -> str:
    """Version in nccl.h; empty if it has none."""
    found = (
        re.search(r"^#define NCCL_%s (\d+)\s" % name, text, re.MULTILINE)
        for name in ("MAJOR", "MINOR", "PATCH")
    )
    parts = [match.group(1) for match in found if match]
    return ".".join(parts) if len(parts) == 3 else ""


def grub_default(settings: str, environment: str) -> str:
    """The kernel configured in GRUB, if it is named: by GRUB_DEFAULT of /etc/default/grub, or saved
    by grub-set-default or grub-reboot.
    """

    def value(text: str, name: str) -> str:
        found = re.findall(r"^\s*%s=(.*)$" % name, text, re.MULTILINE)
        return found[-1].strip().strip("\"'") if found else ""

    entry = value(environment, "next_entry")
    if not entry:
        entry = value(settings, "GRUB_DEFAULT")
        if entry == "saved":
            entry = value(environment, "saved_entry")
    # As in 'Debian GNU/Linux, with Linux 6.1.0-18-amd64', and in GRUB's ids:
    # gnulinux-6.1.0-18-amd64-advanced-UUID.
    match = re.search(r"with Linux (\S+)|gnulinux-(\d\S*?)-(?:advanced|recovery)-", entry)
    return (match.group(1) or match.group(2)) if match else ""


def parse_origins(
    text: str, places: Mapping[str, Iterable[tuple[str, str]]] | None = None
) -> Offers:
    """Origins that offer a version, by name and version, from `apt-cache madison`.

    C(places) are repositories as URL and suite, by their origin. One that is not among them is
    judged by its URL.
    """
    found: Offers = {}
    for name, version, words in madison_rows(text):
        known = [
            origin
            for origin, repositories in (places or {}).items()
            if any(is_of(words, *repository) for repository in repositories)
        ]
        by_url = "nvidia_repository" if _looks_like_nvidia(words[0]) else "distribution"
        found.setdefault((name, version), set()).update(known or [by_url])
    return found


def package_origins(
    packages: Mapping[str, Package], offers: Offers, noted: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Origin of each installed package of the driver by name, one of C(ORIGINS).

    C(offers) are the origins that offer each name and version, of parse_origins. C(noted) has those
    that a role has installed, by name. Neither the maintainer nor the form of a version tells
    NVIDIA's driver for Ubuntu from Ubuntu's own: both are the same. They count only if no
    repository has the version any more.
    """
    found: dict[str, str] = {}
    noted = noted or {}
    for name, package in packages.items():
        those = set(offers.get((name, package["version"]), ())) - {"other_repository"}
        only_foreign = not those and (name, package["version"]) in offers
        if noted.get(name):
            found[name] = noted[name]
        elif len(those) == 1 or only_foreign:
            found[name] = (those or {"other_repository"}).pop()
    # Packages of one build are from one repository.
    builds: dict[str, set[str]] = {}
    for name, origin in found.items():
        builds.setdefault(packages[name]["version"], set()).add(origin)
    for name, package in packages.items():
        alike = builds.get(package["version"], set())
        if name not in found:
            offered = (name, package["version"]) in offers
            found[name] = alike.pop() if len(alike) == 1 else _guess(package, packages, offered)
            alike.add(found[name])
    return found


def _guess(package: Package, packages: Mapping[str, Package], offered: bool) -> str:
    """Origin of a version that no repository has (C(offered)), or that several have.

    NVIDIA is the maintainer of the metapackages of its driver.
    """
    number = upstream(package["version"])
    metapackage = any(
        other["by_nvidia"] and upstream(other["version"]) == number for other in packages.values()
    )
    like_nvidias = _OF_NVIDIA_FOR_UBUNTU.fullmatch(package["version"]) and (
        metapackage or not offered
    )
    return "nvidia_repository" if package["by_nvidia"] or like_nvidias else "distribution"


def driver_sources(packages: Mapping[str, PlacedPackage], runfile: bool) -> list[str]:
    """Origins of the installed driver: C(distribution), C(nvidia_repository), C(other_repository),
    C(runfile).

    More than one is a driver that doesn't fit itself. C(packages) have their C(origin).
    Transitional packages contain no driver.
    """
    driver = {
        package["origin"]
        for name, package in packages.items()
        if is_of_driver(name) and not package["leads_to"]
    }
    return [source for source in ORIGINS if source in driver] + (["runfile"] if runfile else [])


def is_of_driver(name: str) -> bool:
    """Whether a package's origin is the driver's. Those of container tools and CUDA may be
    others.
    """
    return bool(_DRIVER.match(name))


def driver_pinned(packages: Mapping[str, Package], preferences: Mapping[str, str]) -> str:
    """What pins the driver's version; empty if nothing does.

    C(preferences) has the text of apt preferences by path.
    """
    pinning = sorted(name for name in packages if name.startswith("nvidia-driver-pinning-"))
    if pinning:
        return pinning[0]
    held = sorted(
        name for name, package in packages.items() if package["held"] and _DRIVER.match(name)
    )
    if held:
        return "hold of %s" % held[0]
    for path in sorted(preferences):
        for paragraph in re.split(r"\n\s*\n", preferences[path]):
            names = re.search(r"^Package:(.*)$", paragraph, re.MULTILINE)
            if (
                names
                and re.search(r"^Pin:\s*version\b", paragraph, re.MULTILINE)
                and re.search(r"nvidia|cuda-drivers", names.group(1))
            ):
                return path
    return ""


# --- conclusions ----------------------------------------------------------------------------------------------------------


def next_kernel(kernels: Iterable[str], default: str = "") -> str:
    """The kernel that boots next: the configured one, else the newest in GRUB's order."""
    if default in kernels:
        return default
    return max(kernels, key=_grub_key, default="")


def _grub_key(kernel: str) -> list[int]:
    key = []
    for part in re.split(r"[.\-+~_]", kernel):
        key.append(int(part) if part.isdecimal() else -1)
    return key


def reboot_required_reason(
    loaded: str,
    modules: Mapping[str, str],
    library: str,
    running: str,
    boots_next: str,
    has_gpu: bool = True,
) -> str:
    """Why a reboot is needed to load the driver on disk; empty if none is needed.

    C(loaded) is the loaded module's version (empty: none), C(modules) the version on disk by
    kernel, C(library) that of the libraries.
    """
    on_disk = modules.get(running, "")
    if loaded and library and loaded != library:
        return (
            "the loaded kernel module is %s, the libraries are %s: nvidia-smi and CUDA fail "
            "until the module of that version is loaded"
        ) % (loaded, library)
    if loaded and on_disk and loaded != on_disk:
        return "the loaded kernel module is %s, the one on disk for kernel %s is %s" % (
            loaded,
            running,
            on_disk,
        )
    if has_gpu and not loaded and not on_disk and modules.get(boots_next):
        return "the running kernel %s has no driver; kernel %s, which boots next, has %s" % (
            running,
            boots_next,
            modules[boots_next],
        )
    return ""


def will_break_on_next_boot(
    modules: Mapping[str, str],
    library: str,
    boots_next: str,
    headers: Iterable[str] = (),
    has_gpu: bool = True,
) -> str:
    """Why the driver will not work after the next boot; empty if it will, or if there is none at
    all.
    """
    if not has_gpu or not boots_next or not (library or any(modules.values())):
        return ""
    version = modules.get(boots_next, "")
    if not version:
        return "kernel %s boots next, but has no NVIDIA module%s" % (
            boots_next,
            ""
            if boots_next in headers
            else ": DKMS cannot build one without its headers, which are missing",
        )
    if library and version != library:
        return "kernel %s boots next with module %s, but the libraries are %s" % (
            boots_next,
            version,
            library,
        )
    return ""


def drift(requested: Mapping[str, str], found: Mapping[str, str | None]) -> list[Difference]:
    """Versions that differ.

    C(requested) has a version or V(absent) by name. A version matches all that begin with it, field by
    field.
    """
    differences: list[Difference] = []
    for name in sorted(requested):
        want, have = requested[name], found.get(name) or ""
        if not _is_as_requested(want, have):
            differences.append({"name": name, "asked": want, "found": have or "absent"})
    return differences


def _is_as_requested(requested: str, version: str) -> bool:
    if requested == "absent" or not version:
        return requested == "absent" and not version
    if version == requested:
        return True
    if not re.fullmatch(r"\d+(\.\d+)*", requested):
        return False
    key = version_key(requested)
    return version_key(version)[: len(key)] == key
