# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The packages of a driver at one version: output of apt, nvidia-detect and ubuntu-drivers in,
typed data out.
"""

from __future__ import annotations

import re

from typing import Any, Iterable, Mapping, Sequence, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils import _apt_sources
from ansible_collections.trainyard.gpu.plugins.module_utils._gpu_stack import (
    foreign_pin,
    upstream,
    version_key,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._packages import whole_lines

__all__ = [
    "OUT_OF_STEP",
    "OWN_SOURCES",
    "branch_of",
    "closure",
    "expand",
    "fits",
    "is_driver",
    "keep_out",
    "lacking_components",
    "parse_nvidia_detect",
    "parse_simulated_versions",
    "parse_ubuntu_drivers",
    "pin",
    "resolve",
]

# Packages that may belong to a driver. Those that do have the driver's version; container tools and
# CUDA packages have other versions.
DRIVER = re.compile(
    r"cuda-drivers.*|libcuda1.*|libcudadebugger1|libnvcuvid1|libnvoptix1|libxnvctrl0|libnvsdm.*|nvsdm.*"
)
# Debian's daemon is older than its driver, and Ubuntu's modules have the version of their kernel.
OUT_OF_STEP = re.compile(r"nvidia-persistenced|linux-modules-nvidia-.*")
# Role nvidia_driver writes the components that are missing to it.
OWN_SOURCES = "/etc/apt/sources.list.d/trainyard-nvidia-driver.sources"


class Family(TypedDict):
    """Packages of a driver, the first of which is offered at the version."""

    names: list[str]
    version: str


def is_driver(name: str) -> bool:
    """Whether a package may belong to a driver, by its name."""
    # The tool that recommends a driver is built from the same source.
    return ("nvidia" in name or bool(DRIVER.fullmatch(name))) and name != "nvidia-detect"


# --- output of the tools ---------------------------------------------------------------------------------------------------


def parse_simulated_versions(text: str) -> dict[str, str]:
    """The versions that `apt-get --simulate install` would install, by package, in apt's order."""
    return dict(re.findall(r"^Inst ([^\s:]+)\S*(?: \[[^\]]*\])? \((\S+) ", text, re.MULTILINE))


def parse_nvidia_detect(text: str) -> str:
    """The package that Debian's nvidia-detect recommends for all given GPUs; empty if there is
    none, or no single one for all.
    """
    cards = re.split(r"^Checking (?:driver support|card)", text, flags=re.MULTILINE)[1:]
    found = [
        re.findall(r"^It is recommended to install the\n\s+(\S+)\npackage\.$", card, re.MULTILINE)
        for card in cards
    ]
    packages = {names[0].partition(":")[0] for names in found if names}
    return packages.pop() if len(packages) == 1 and all(found) else ""


def parse_ubuntu_drivers(listed: str, devices: str = "") -> str:
    """The package of Ubuntu's archive that `ubuntu-drivers` recommends, from `list --gpgpu
    --recommended` and `devices`; empty if it recommends none.

    The former prints 'nvidia-driver-535-server, (kernel modules provided by …)', the package and
    its modules, or the package alone, the latter 'driver : nvidia-driver-535 - … recommended'. With
    another repository configured, both recommend a package of it: marked third-party by the latter,
    and without signed modules in the former. Then it is the archive's package of that branch, or of
    the newest one.
    """
    whole_lines(listed + devices, "ubuntu-drivers")
    offered = re.findall(
        r"^driver\s*:\s*(nvidia-driver-\S+) - (\S+)(.*)$", listed + devices, re.MULTILINE
    )
    named = re.findall(r"^(nvidia-driver-\d+[\w-]*)(.*)$", listed, re.MULTILINE)
    signed = [name for name, rest in named if "linux-modules-nvidia" in rest]
    recommended = [name for name, _origin, rest in offered if "recommended" in rest.split()]
    chosen: str = (signed + [name for name, _rest in named] + recommended + [""])[0]
    if any((name, origin) == (chosen, "third-party") for name, origin, _rest in offered):
        return _archives(chosen, [name for name, origin, _rest in offered if origin == "distro"])
    return chosen


def _archives(name: str, offered: list[str]) -> str:
    """The archive's driver that is most like another repository's C(name): of its branch, else of
    the newest; open or not as that one, for servers first.
    """

    def likeness(other: str) -> tuple[bool, int, bool, bool]:
        return (
            branch_of(other) == branch_of(name),
            int(branch_of(other)),
            other.endswith("-open") == name.endswith("-open"),
            "-server" in other,
        )

    return max((other for other in offered if branch_of(other)), key=likeness, default="")


def _suites_of(entry: _apt_sources.Stanza, codename: str) -> list[str]:
    """The suites of the distribution in an entry that has its component main.

    PPAs have the same form.
    """
    if not entry["uris"] or "main" not in entry["components"]:
        return []
    if any(re.search(r"\bppa\b", uri) for uri in entry["uris"]):
        return []
    pattern = re.escape(codename) + r"(-updates|-security|/updates)?"
    return [suite for suite in entry["suites"] if re.fullmatch(pattern, suite)]


def _available(entries: Iterable[_apt_sources.Stanza], uris: Iterable[str]) -> set[tuple[str, str]]:
    """(suite, component) pairs that entries with one of these URIs have."""
    return {
        (suite, component)
        for entry in entries
        if set(entry["uris"]) & set(uris)
        for suite in entry["suites"]
        for component in entry["components"]
    }


def _paragraph(entry: _apt_sources.Stanza, suites: Iterable[str], components: Iterable[str]) -> str:
    """A deb822 paragraph that adds components to an entry."""
    lines = [
        "Types: deb",
        "URIs: " + " ".join(entry["uris"]),
        "Suites: " + " ".join(suites),
        "Components: " + " ".join(components),
    ]
    if entry["architectures"]:
        lines.append("Architectures: " + " ".join(entry["architectures"]))
    lines += ["%s: %s" % (name.title(), value) for name, value in entry["options"].items()]
    if entry["signed_by"]:
        # The key may be inline in the entry, over many lines.
        separator = "\n " if "\n" in entry["signed_by"] else " "
        lines.append("Signed-By:%s%s" % (separator, entry["signed_by"]))
    return "\n".join(lines) + "\n"


def lacking_components(files: Mapping[str, str], codename: str, components: Iterable[str]) -> str:
    """Deb822 paragraphs that add components to the distribution's repositories in use.

    C(files) is the text of apt's lists of sources by path. Mirror, suites, options and key are as
    the host has them: apt refuses two entries that differ in their key or in whether they are
    trusted. Empty if the components exist. What an earlier run wrote to C(OWN_SOURCES) does not
    count, because the file is written anew. Other archives of the same form, except PPAs, cannot be
    distinguished. If an archive lacks a component, apt only prints a note.
    """
    entries = [
        entry
        for path in sorted(set(files) - {OWN_SOURCES})
        for entry in _apt_sources.stanzas(path, files[path])
        if "deb" in entry["types"]
    ]
    paragraphs = []
    for entry in entries:
        suites = _suites_of(entry, codename)
        there = _available(entries, entry["uris"])
        lacking = [
            component
            for component in components
            if any((suite, component) not in there for suite in suites)
        ]
        if lacking:
            paragraphs.append(_paragraph(entry, suites, lacking))
    return "\n".join(dict.fromkeys(paragraphs))


# --- conclusions ----------------------------------------------------------------------------------------------------------


def fits(version: str, requested: str) -> bool:
    """Whether a package's version matches the requested one: as a whole, by NVIDIA's part, or by
    its branch. An empty request matches all.
    """
    if not requested or version == requested:
        return True
    if not re.fullmatch(r"\d+(\.\d+)*", requested):
        return False
    number = upstream(version)
    return bool(number) and version_key(number)[: len(version_key(requested))] == version_key(
        requested
    )


def branch_of(text: str) -> str:
    """The branch in a version, or in a package's name such as nvidia-driver-535-server; empty if
    there is none.
    """
    number = re.match(r"(?:\d+:)?(\d+)(?:[.]|$)", text) or re.search(r"-(\d{3})(?:-|$)", text)
    return number.group(1) if number else ""


def expand(families: Iterable[list[str]], requested: str) -> list[list[str]]:
    """Families with the requested version's branch instead of <BR>.

    Those with <BR> are left out if no version is requested.
    """
    branch = branch_of(requested)
    return [
        [name.replace("<BR>", branch) for name in names]
        for names in families
        if branch or not any("<BR>" in name for name in names)
    ]


def resolve(
    families: Iterable[list[str]],
    offers: Mapping[str, Sequence[str]],
    requested: str,
    installed: str = "",
) -> Family | None:
    """The first family that is completely available at a matching version of its first package;
    else the first whose first package is: C(names), C(version).

    Packages that may be C(OUT_OF_STEP) count in any version, unless another family is available
    without them.

    Of matching versions, the installed one is preferred, else the newest. None if nothing matches.
    """
    found: list[Family] = []
    for names in families:
        versions = [version for version in offers.get(names[0], []) if fits(version, requested)]
        if versions:
            kept = [version for version in versions if upstream(version) == installed]
            found.append({"names": names, "version": (kept or versions)[0]})

    in_step = [family for family in found if _is_whole(family, offers, strict=True)]
    whole = [family for family in found if _is_whole(family, offers, strict=False)]
    best = in_step or whole or found
    return best[0] if best else None


def _is_whole(family: Family, offers: Mapping[str, Sequence[str]], strict: bool) -> bool:
    """Whether all packages of a family are offered at its version.

    Those C(OUT_OF_STEP) may have any version unless C(strict).
    """
    number = upstream(family["version"])
    return all(
        number in [upstream(version) for version in offers.get(name, [])]
        or not strict
        and bool(offers.get(name))
        and bool(OUT_OF_STEP.fullmatch(name))
        for name in family["names"]
    )


PIN_PACKAGES = (
    "Package: *nvidia* cuda-drivers* libcuda1* libcudadebugger1* libnvcuvid1* libnvoptix1* "
    "libxnvctrl0* libnvsdm* nvsdm*\n"
)


def keep_out(sources: Iterable[Mapping[str, Any]]) -> str:
    """Apt preferences that block driver packages from these repositories, if they can be
    distinguished by origin; else empty.
    """
    pins = dict.fromkeys(foreign_pin(source) for source in sources if foreign_pin(source))
    why = (
        "Explanation: Managed by trainyard.gpu, role nvidia_driver. No driver is taken from this "
        "apt source.\n"
    )
    return "\n".join("%s%sPin: %s\nPin-Priority: -1\n" % (why, PIN_PACKAGES, each) for each in pins)


def pin(version: str) -> str:
    """Apt preferences that pin all driver packages to one version, including dependencies that are
    not in the request.
    """
    return PIN_PACKAGES + "Pin: version /^([0-9]+:)?%s[-+~]/\nPin-Priority: 1001\n" % upstream(
        version
    ).replace(".", "[.]")


def closure(
    names: Sequence[str],
    offers: Mapping[str, Sequence[str]],
    version: str,
    simulated: Mapping[str, str],
    installed: Mapping[str, str],
) -> dict[str, str]:
    """Version of every driver package by name: those that apt would install, installed ones, and
    named ones.

    C(offers) are the versions by name, C(simulated) and C(installed) one version by name.
    """
    number = upstream(version)
    found = _of_version(installed, number)
    found.update(_of_version(simulated, number))
    found.update({name: simulated[name] for name in names if name in simulated})
    for name in names:
        if name in found:
            continue
        if name in installed:
            found[name] = installed[name]
        elif offers.get(name):
            found[name] = offers[name][0]
    return {name: found[name] for name in sorted(found)}


def _of_version(packages: Mapping[str, str], number: str) -> dict[str, str]:
    """Driver packages of NVIDIA's version C(number)."""
    return {
        name: version
        for name, version in packages.items()
        if is_driver(name) and upstream(version) == number
    }
