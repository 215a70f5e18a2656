# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The driver of a host and conflicts with it, from gpu_stack_info's result, the request, and the
compatibility data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._driver import (
    fits,
    is_driver,
    keep_out,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._gpu_stack import upstream, version_key

# From this branch on, NVIDIA's installer and documentation prefer the open kernel module for every
# GPU that it supports.
OPEN_FROM = 560
# github NVIDIA/open-gpu-kernel-modules begins with this branch.
OPEN_EXISTS_FROM = 515
MAIN = re.compile(
    r"(cuda-drivers|libcuda1|libnvidia-(ml1|compute)|nvidia-(driver|open|smi|utils|kernel|dkms))(-.*)?"
)
# Keys of the role's record on a host where it has installed Fabric Manager beside the driver of
# somebody else.
BESIDE = {"fabric_manager", "links"}
SOURCES = {
    "distribution": "the distribution's packages",
    "nvidia_repository": "packages of NVIDIA's repository",
    "runfile": "NVIDIA's installer",
    "other_repository": "packages of another apt source, such as a PPA",
}


class Requested(TypedDict):
    """What the variables of role nvidia_driver request of the driver."""

    #: A key of SOURCES.
    source: str
    #: A version, a branch or C(recommended).
    version: str
    #: C(open), C(proprietary) or C(auto).
    kernel_module: str
    #: C(always), C(never) or C(auto).
    fabric_manager: str


class Operation(TypedDict):
    """What the variables of role nvidia_driver request of its operation, and paths."""

    source: str
    version: str
    #: Whether nvidia-persistenced runs, and whether the role may reboot the host.
    persistence: bool
    allow_reboot: bool
    #: Folder of links that enable units.
    wants: str
    #: The installer's log.
    log: str


class Key(TypedDict):
    """The request that a record of the role must have to be valid."""

    source: str
    version: str
    kernel_module: str
    generations: list[str]
    fabric_manager: bool
    own_kernel: bool


class ForeignSource(TypedDict):
    """Another apt source with a driver, as gpu_stack_info returns it."""

    uri: str
    #: Of the file in which apt has it.
    path: str
    suite: str
    #: Of its Release file, and whether no other repository in use has the same one.
    origin: str
    own_origin: bool


class Foreign(TypedDict):
    """Other apt sources with a driver."""

    #: Preferences of apt against them.
    keep_out: str
    foreign_uris: list[str]
    foreign_files: list[str]
    #: Each as address and suite.
    without: list[str]


class Plan(Foreign):
    """The driver of a host."""

    problems: list[str]
    #: C(open) or C(proprietary).
    kernel_module: str
    #: Of the GPUs. An unknown one has its PCI device id here.
    generations: list[str]
    #: False in a container.
    own_kernel: bool
    #: Whether the distribution signs the modules.
    signed: bool
    fabric_manager: bool
    #: Versions or branches in the order of preference.
    asked: list[str]
    #: The distribution's tool that names the driver; empty if none does.
    recommended_by: str
    #: Lists of packages, of which the first available one is used.
    families: list[list[str]]
    #: Missing packages of kernel headers, and kernels whose package is unknown.
    headers: list[str]
    kernels_without_package: list[str]
    key: Key
    #: Whether everything is installed as requested.
    installed: bool
    #: A driver from another source that is left alone, in words; empty if there is none.
    stays: str
    #: C(families), C(version) and C(source) of Fabric Manager for such a driver, or empty.
    fabric_manager_beside: dict[str, Any]
    #: Of the distribution, for apt.
    components: list[str]
    #: Packages of the installed driver, and its versions.
    driver_packages: list[str]
    former: list[str]


class State(TypedDict):
    """What is left to do on a host."""

    #: Units that run.
    services: list[str]
    #: Links that enable them, for managed_files.
    links: list[dict[str, str]]
    #: Paths of links that teardown removes. The link of a service that the site enabled itself is
    #: not one of them.
    placed_links: list[str]
    #: Whether a service is to be enabled, and to be started.
    enables: bool
    starts: bool
    #: Whether the kernel module is to be loaded.
    loads: bool
    #: Why the host needs a reboot; empty if it needs none.
    reboot_reason: str
    #: How the driver on disk differs from the requested one; empty if it does not.
    unlike: str
    #: What the next boot does, as a message for the operator; empty if it does nothing.
    next_boot: str
    #: Packages to install, with their versions if they are known.
    packages: list[str]
    #: The role's record after the installation.
    record: dict[str, Any]
    #: Packages of the former driver that the new one has not replaced.
    left_over: list[str]
    #: Of NVIDIA's installer.
    flags: list[str]


def arch_row(facts: dict[str, Any], generation: str | None) -> dict[str, Any]:
    """Return the most specific row of cuda.gpu_arch for a generation, which may have several rows,
    by chip.
    """
    rows = [row for row in facts["cuda"]["gpu_arch"] if generation in row["generations"]]
    return dict(pair for row in rows for pair in row.items())


def open_module(facts: dict[str, Any], generation: str | None) -> str | None:
    """Return whether the open kernel module supports a generation: C(required), C(possible),
    C(impossible); None if the generation is unknown.
    """
    row = arch_row(facts, generation)
    if not row:
        return None
    # It begins with Turing. For older generations the data has false, or nothing.
    answers = {"required": "required", True: "possible"}
    return answers.get(row.get("open_module", False), "impossible")


def recommended_branches(facts: dict[str, Any], generations: Iterable[str | None]) -> list[str]:
    """Return the branches that NVIDIA supports for data centers and that support all these GPUs,
    newest first.
    """
    limits = [arch_row(facts, generation) for generation in generations]
    found = [
        row["branch"]
        for row in facts["cuda"]["driver_branches"]
        if row["status"] == "supported" and row["type"] in ("production", "ltsb")
    ]
    return [
        str(branch)
        for branch in sorted(found, reverse=True)
        if all(
            row.get("min_driver_branch", 0) <= branch <= row.get("max_driver_branch", branch)
            for row in limits
        )
    ]


def _named(gpus: list[dict[str, Any]]) -> str:
    """Return the generations of GPUs with their device ids, as one text."""
    names = (
        "%s (10de:%s)" % (gpu["generation"] or "an unknown GPU", gpu["device_id"]) for gpu in gpus
    )
    return ", ".join(sorted(set(names)))


def _with_answer(gpus: list[dict[str, Any]], answer: str | None) -> list[dict[str, Any]]:
    """Return the GPUs of which open_module has this answer."""
    return [gpu for gpu in gpus if gpu["open"] == answer]


def _module_problem(
    requested: str,
    only_open: list[dict[str, Any]],
    never_open: list[dict[str, Any]],
    unknown: list[dict[str, Any]],
) -> str:
    """Return why the GPUs cannot have the requested kernel module, empty if they can.

    :param only_open: GPUs that work only with the open module.
    :param never_open: GPUs that work only with the proprietary one.
    :param unknown: GPUs of unknown generations.
    """
    if only_open and never_open:
        return (
            "%s needs the open kernel module, but that does not support %s: no driver supports both"
            % (_named(only_open), _named(never_open))
        )
    if requested == "auto" and unknown and not only_open and not never_open:
        return (
            "%s is not in the compatibility data, so its kernel module is unknown: set "
            "nvidia_driver_kernel_module to open or proprietary"
        ) % _named(unknown)
    if requested == "proprietary" and only_open:
        return (
            "nvidia_driver_kernel_module is 'proprietary', but %s works only with the open "
            "one: set it to open, or to auto"
        ) % _named(only_open)
    if requested == "open" and never_open:
        return (
            "nvidia_driver_kernel_module is 'open', but %s works only with the proprietary "
            "one: set it to proprietary, or to auto"
        ) % _named(never_open)
    return ""


def kernel_module(
    facts: dict[str, Any], gpus: list[dict[str, Any]], requested: str, branch: str
) -> tuple[str, list[str]]:
    """Return the kernel module of the host, C(open) or C(proprietary), and why it cannot be the
    requested one. C(gpus) have C(device_id) and C(generation).
    """
    for gpu in gpus:
        gpu["open"] = open_module(facts, gpu["generation"])
    only_open = _with_answer(gpus, "required")
    never_open = _with_answer(gpus, "impossible")
    unknown = _with_answer(gpus, None)
    problem = _module_problem(requested, only_open, never_open, unknown)
    problems = [problem] if problem else []
    number = version_key(branch)[0] if branch else 0
    kind = requested
    prefers_open = only_open or not never_open and number >= OPEN_FROM
    if requested == "auto":
        kind = "open" if prefers_open else "proprietary"
    if kind == "open" and 0 < number < OPEN_EXISTS_FROM:
        problems.append(
            "driver %s has no open kernel module, which exists from %d on: request a newer driver"
            % (branch, OPEN_EXISTS_FROM)
        )
    return kind, problems


def _with_parts(family: dict[str, list[str]], parts: dict[str, str]) -> list[str]:
    """Return the packages of a family; empty if it lacks a required part."""
    driver = family.get("always", [])
    if parts["module"]:
        module = family.get(parts["module"])
        driver = driver + module if module else []
    if not parts["fabric"]:
        return driver
    fabric = family.get(parts["fabric"])
    return driver + fabric if driver and fabric else []


def _of_flavours(name: str, flavours: list[str]) -> list[str]:
    """Return a name for each flavor of the kernel, if it depends on that."""
    if "<FLAVOUR>" not in name:
        return [name]
    return [name.replace("<FLAVOUR>", flavour) for flavour in flavours]


def expand(
    families: Iterable[dict[str, list[str]]], parts: dict[str, str], flavours: list[str]
) -> list[list[str]]:
    """Return the lists of packages, in order of preference.

    A family that lacks a required package is left out.

    C(parts) are the keys of the packages of the kernel module and of Fabric Manager; empty if none
    is needed.
    """
    found = []
    for family in families:
        names = _with_parts(family, parts)
        names = [each for name in names for each in _of_flavours(name, flavours)]
        if names:
            found.append(names)
    return found


def kernel_headers(found: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the header packages of the running and the next kernel, and of those from
    metapackages; and kernels whose package is unknown.
    """
    packages, names, strange = found["packages"], list[str](), list[str]()
    for kernel in dict.fromkeys([found["running_kernel"], found["next_kernel"]]):
        if kernel in found["modules"] and kernel not in found["headers"]:
            if "linux-image-" + kernel in packages or "linux-image-unsigned-" + kernel in packages:
                names.append("linux-headers-" + kernel)
            else:
                strange.append(kernel)
    names += ["linux-headers-" + flavour for flavour in kernel_flavours(packages)]
    return [name for name in dict.fromkeys(names) if name not in packages], strange


def components(data: dict[str, Any], wishes: list[str], source: str, fabric: bool) -> list[str]:
    """Return the components of the distribution that hold the driver.

    One may be needed C(for) a part only, or C(from_branch) on for all of it.
    """
    rows = data.get("components", {}).get(data["system"], []) if source == "distribution" else []
    branch = upstream(wishes[0]).partition(".")[0] if wishes else ""
    return [
        row["name"]
        for row in rows
        if not row.get("for")
        or fabric
        and "fabric" in row["for"]
        or branch
        and int(branch) >= row.get("from_branch", 1000)
    ]


def kernel_flavours(packages: Iterable[str]) -> list[str]:
    """Return the flavors such as amd64 or generic, from the metapackages of kernels."""
    return sorted(
        name[len("linux-image-") :]
        for name in packages
        if re.match(r"linux-image-(?!unsigned-|extra-)[a-z]", name) and not name.endswith("-dbg")
    )


def signed_flavours(found: dict[str, Any]) -> list[str]:
    """Return the flavors of which Ubuntu signs modules for this host.

    The kernel of virtual is that of generic. A host without a metapackage gets the modules of the
    kernels that it boots: linux-modules-nvidia-580-server-6.8.0-85-generic.
    """
    flavours = [
        re.sub(r"^virtual\b", "generic", flavour) for flavour in kernel_flavours(found["packages"])
    ]
    kernels = [found["running_kernel"], found["next_kernel"]]
    return list(dict.fromkeys(flavours or filter(None, kernels)))


def nvlink_5_board(facts: dict[str, Any], gpus: Iterable[dict[str, Any]]) -> bool:
    """Return whether the GPUs are a board whose NVSwitches the host does not see as PCI bridges,
    and which needs nvlsm beside Fabric Manager.

    These are HGX B200 and B300.
    """
    row = facts["cuda"]["nvlink_5_boards"]
    ours = [gpu for gpu in gpus if gpu["device_id"].lower() in row["device_ids"]]
    enough: int = row["gpus"]
    return len(ours) >= enough


def origin_of(package: dict[str, Any]) -> str:
    """Return the origin of a package of the driver.

    Facts of an earlier release have only its maintainer.
    """
    origin: str = package.get("origin", "")
    if origin:
        return origin
    return "nvidia_repository" if package["by_nvidia"] else "distribution"


def other_source(found: dict[str, Any], installed: dict[str, Any], source: str) -> str:
    """Return why an installed driver prevents the requested one, and what to do; empty if all of it
    is from C(source).
    """
    foreign = [other for other in found["driver_sources"] if other != source]
    if not foreign:
        return ""
    # Without the origin of each package all of them must be removed.
    theirs = sorted(
        name
        for name, package in installed.items()
        if origin_of(package) in foreign
        or "other_repository" in foreign
        and "origin" not in package
    )
    ways = ["nvidia-uninstall"] if "runfile" in foreign else []
    if theirs:
        ways.append("apt-get purge %s" % " ".join(theirs))
    keep = ""
    if found["driver_sources"] == foreign[:1] and foreign != ["other_repository"]:
        keep = "set nvidia_driver_source to '%s' to keep that driver, or " % foreign[0]
    return (
        "a driver from %s is installed, but nvidia_driver_source is '%s': %sremove that driver "
        "first, when no job runs on the host (%s)"
    ) % (" and from ".join(SOURCES[other] for other in foreign), source, keep, "; ".join(ways))


def fabric_manager_beside(
    found: dict[str, Any], installed: dict[str, Any], data: dict[str, Any], nvlink_5: bool
) -> dict[str, Any]:
    """Return Fabric Manager for a driver that stays: its families, the version of the driver, and
    its source; {} if it is there or cannot be installed.
    """
    present = any(re.match(r"nvidia-fabricmanager|nvlink5-", name) for name in found["packages"])
    source = found["driver_sources"][0] if len(found["driver_sources"]) == 1 else ""
    numbers = driver_versions(installed)
    kind = "fabric_nvlink_5" if nvlink_5 else "fabric"
    families = []
    for family in data["families"].get(source, {}).get(data["system"], []):
        if family.get(kind) and family[kind] not in families:
            families.append(family[kind])
    if present or not families or len(numbers) != 1:
        return {}
    return {"families": families, "version": numbers[0], "source": source}


class _Needs(NamedTuple):
    """What the hardware of a host needs of a driver.

    C(fabric): Fabric Manager is needed or requested. C(nvlink_5): together with nvlsm.
    C(own_kernel) is false for a container.
    """

    gpus: list[dict[str, Any]]
    generations: list[str]
    nvlink_5: bool
    fabric: bool
    own_kernel: bool


def _needs(
    found: dict[str, Any],
    facts: dict[str, Any],
    generation_of: Callable[[str], str | None],
    fabric_manager: str,
) -> _Needs:
    """Return what the hardware needs. C(fabric_manager) is always, never or auto."""
    gpus = [dict(gpu, generation=generation_of(gpu["device_id"])) for gpu in found["gpus"]]
    nvlink_5 = nvlink_5_board(facts, gpus)
    has_switches = found["nvswitches"] > 0 or nvlink_5
    return _Needs(
        gpus=gpus,
        generations=sorted({gpu["generation"] or gpu["device_id"] for gpu in gpus}),
        nvlink_5=nvlink_5,
        fabric=fabric_manager == "always" or fabric_manager == "auto" and has_switches,
        own_kernel=bool(found["next_kernel"]),
    )


def _wishes(
    needs: _Needs, facts: dict[str, Any], requested: Requested, recommended: str | None
) -> list[str]:
    """Return the versions or branches to try, the best first."""
    if str(requested["version"]) != "recommended":
        return [str(requested["version"])]
    if requested["source"] == "nvidia_repository":
        return recommended_branches(facts, [gpu["generation"] for gpu in needs.gpus])
    return [recommended or ""]


def _lacking_packages(
    source: str, kind: str, needs: _Needs, choice: _Choice, has_problem: bool
) -> list[str]:
    """Return the problem that a source has no packages for what the host needs.

    With C(has_problem) another problem explains why no family of packages is left.
    """
    if needs.fabric and source == "runfile":
        return [
            (
                "this host's NVSwitches need Fabric Manager, but NVIDIA's installer does not "
                "include it: set nvidia_driver_source to nvidia_repository"
            )
        ]
    if not choice.offers or choice.families or has_problem:
        return []
    lacks = "%s kernel module" % kind
    if needs.fabric:
        lacks = "Fabric Manager, which this host's NVSwitches need"
    if needs.fabric and needs.nvlink_5:
        lacks = "nvlsm, which the NVSwitches of HGX B200 and B300 need beside Fabric Manager"
    return ["%s have no %s: choose another nvidia_driver_source" % (SOURCES[source], lacks)]


def _secure_boot_problems(found: dict[str, Any], signed: bool) -> list[str]:
    """Return why the next boot would reject the kernel module."""
    accepted = found["loaded"] or signed or found["module_keys_enrolled"]
    if not found["secure_boot"] or accepted:
        return []
    return [
        "Secure Boot is on and rejects kernel modules that this host builds itself: enroll its key "
        "(mokutil --import /var/lib/dkms/mok.pub, then confirm at the console), switch Secure "
        "Boot off, or "
        "use a source with signed modules (Ubuntu's distribution)"
    ]


class _Choice(NamedTuple):
    """The packages that a host can get: C(families) of them in order of preference.

    C(offers): the source has packages for the host's system, which may lack what it needs.
    C(signed): the kernel module is signed by the distribution.
    """

    families: list[list[str]]
    offers: bool
    signed: bool


def _choice(
    found: dict[str, Any], data: dict[str, Any], source: str, kind: str, needs: _Needs
) -> _Choice:
    """Return the packages that a host can get. C(kind) is the kernel module, open or
    proprietary.
    """
    families = data["families"].get(source, {}).get(data["system"], [])
    signed = bool(found["secure_boot"]) and any("signed_" + kind in family for family in families)
    parts = {"module": "", "fabric": ""}
    if needs.own_kernel:
        parts["module"] = "signed_" + kind if signed else kind
    if needs.fabric:
        parts["fabric"] = "fabric_nvlink_5" if needs.nvlink_5 else "fabric"
    expanded = expand(families, parts, signed_flavours(found))
    return _Choice(expanded, bool(families), signed)


def _is_installed(found: dict[str, Any], key: Key) -> bool:
    """Return whether the driver of the request C(key) is there, as an earlier run installed it."""
    version = key["version"]
    if key["source"] == "runfile":
        is_known = "runfile" in found["driver_sources"] or found["loaded"] == version
        return is_known and bool(found["library"] == version)
    packages = found["record"].get("packages", {})
    if not packages or found["record"].get("asked") != key:
        return False
    return all(
        _is_intact(found["packages"].get(name), version) for name, version in packages.items()
    )


def _is_intact(package: dict[str, Any] | None, version: str) -> bool:
    """Return whether a package is installed whole, in this version, and held."""
    if package is None:
        return False
    state = (package["version"], package["held"], package["broken"])
    return state == (version, True, False)


def _stays(found: dict[str, Any], version: str, installed: dict[str, Any]) -> str:
    """Return the driver that is left alone, in words; empty if the role installs one.

    A recommendation is for a host without a driver. A working driver is not replaced or rejected
    because of it.
    """
    # Fabric Manager beside a driver of somebody else is no driver of the role.
    own = set(found["record"]) - BESIDE
    if version != "recommended" or not found["driver_sources"] or own:
        return ""
    in_use = found["loaded"] or found["library"] or "/".join(driver_versions(installed))
    sources = " and from ".join(SOURCES[other] for other in found["driver_sources"])
    return "%s from %s" % (in_use, sources)


def _recommending_tool(key: Key, data: dict[str, Any]) -> str:
    """Return the distribution's tool that names the driver of a recommendation, empty
    without one.
    """
    if key["version"] != "recommended" or key["source"] != "distribution":
        return ""
    tools: dict[str, str] = data["recommended_by"]
    return tools.get(data["system"], "")


def _without_foreign(sources: list[ForeignSource]) -> Foreign:
    """Return how other apt sources with a driver are told of and kept out."""
    return {
        "keep_out": keep_out(sources),
        "foreign_uris": list(dict.fromkeys(entry["uri"] for entry in sources)),
        "foreign_files": list(dict.fromkeys(entry["path"] for entry in sources)),
        "without": ["%s %s" % (entry["uri"], entry["suite"]) for entry in sources],
    }


def plan(
    found: dict[str, Any],
    facts: dict[str, Any],
    generation_of: Callable[[str], str | None],
    requested: Requested,
    data: dict[str, Any],
    recommended: str | None = None,
) -> Plan:
    """Return the driver of a host.

    C(found) is the result of gpu_stack_info. C(data) has C(families) of packages by source and
    system, C(components) by system, C(recommended_by), tools by system, and the C(system).
    C(recommended) is the driver that the tool has named.
    """
    source, version = requested["source"], str(requested["version"])
    needs = _needs(found, facts, generation_of, requested["fabric_manager"])
    wishes = _wishes(needs, facts, requested, recommended)
    key: Key = {
        "source": source,
        "version": version,
        "kernel_module": requested["kernel_module"],
        "generations": needs.generations,
        "fabric_manager": needs.fabric,
        "own_kernel": needs.own_kernel,
    }
    kind, problems = kernel_module(
        facts, needs.gpus, requested["kernel_module"], upstream(wishes[0]) if wishes else ""
    )
    choice = _choice(found, data, source, kind, needs)
    installed = driver_packages(found["packages"])
    refused = other_source(found, installed, source)
    problems += [refused] if refused else []
    problems += _lacking_packages(source, kind, needs, choice, bool(problems))
    if not wishes:
        problems.append(
            (
                "no supported branch supports all GPUs of this host (%s): set one in "
                "nvidia_driver_version"
            )
            % ", ".join(needs.generations)
        )
    if needs.own_kernel:
        problems += _secure_boot_problems(found, choice.signed)

    stays, beside = _stays(found, version, installed), dict[str, Any]()
    if stays:
        problems = []
    if stays and needs.fabric:
        beside = fabric_manager_beside(found, installed, data, needs.nvlink_5)
    headers, strange = list[str](), list[str]()
    if needs.own_kernel and not choice.signed:
        headers, strange = kernel_headers(found)
    return {
        "problems": problems,
        "kernel_module": kind,
        "generations": needs.generations,
        "own_kernel": needs.own_kernel,
        "signed": choice.signed,
        "fabric_manager": needs.fabric,
        "asked": wishes,
        "recommended_by": _recommending_tool(key, data),
        "families": choice.families,
        "headers": headers,
        "kernels_without_package": strange,
        "key": key,
        "installed": _is_installed(found, key),
        "stays": stays,
        "fabric_manager_beside": beside,
        "components": components(data, wishes, beside.get("source") or source, needs.fabric),
        "driver_packages": sorted(installed),
        "former": driver_versions(installed),
        **_without_foreign(found["foreign_sources"]),
    }


def _links(found: dict[str, Any], wants: str, services: list[str]) -> list[str]:
    """Return the links that the role placed or places, and not those of the site."""
    links = list(found["record"].get("links", []))
    links += [
        "%s/%s" % (wants, name) for name in services if not found["services"][name]["enabled"]
    ]
    return list(dict.fromkeys(links))


def _enables(services: list[dict[str, Any]], installed: bool) -> bool:
    """Return whether a service is to be enabled.

    One whose unit comes with the packages is enabled in the same step.
    """
    disabled = [service for service in services if not service["enabled"]]
    return any(service["loaded"] or not installed for service in disabled)


def _has_stopped(services: list[dict[str, Any]]) -> bool:
    """Return whether a service that exists does not run."""
    return any(service["loaded"] and not service["active"] for service in services)


def _can_load(found: dict[str, Any], own_kernel: bool) -> bool:
    """Return whether the module exists for the running kernel and nothing prevents loading it."""
    module = found["modules"].get(found["running_kernel"], "")
    return bool(not found["loaded"] and own_kernel and not found["nouveau_loaded"] and module)


def state(
    found: dict[str, Any],
    planned: Plan,
    requested: Operation,
    offered: dict[str, Any],
    recommended: str = "",
) -> State:
    """Return what is left to do on a host as it was last read, which may be after P(plan) was made.

    C(offered) is the result of nvidia_driver_info, {} before it was asked, C(recommended) the
    driver that the distribution's tool names.
    """
    services = ["nvidia-persistenced.service"] if requested["persistence"] else []
    services += ["nvidia-fabricmanager.service"] if planned["fabric_manager"] else []
    units = "/lib/systemd/system/"
    if requested["source"] == "runfile":
        units = "/etc/systemd/system/"
    record, noted = found["record"], offered.get("packages") or {}
    theirs = [found["services"][name] for name in services]
    links = _links(found, requested["wants"], services)
    former = list(dict.fromkeys([*record.get("packages", {}), *record.get("former", [])]))
    reason = reboot_reason(found) if planned["own_kernel"] else ""
    return {
        "services": services,
        "links": [
            {"path": "%s/%s" % (requested["wants"], name), "src": units + name, "state": "link"}
            for name in services
        ],
        "placed_links": links,
        "enables": _enables(theirs, planned["installed"]),
        # Without a loaded module of the libraries' version they fail.
        "starts": bool(found["loaded"]) and not reason and _has_stopped(theirs),
        "loads": _can_load(found, planned["own_kernel"]),
        "reboot_reason": reason,
        "unlike": unlike(found, planned, requested["version"], offered),
        "next_boot": next_boot(reason, found["will_break_on_next_boot"], requested["allow_reboot"]),
        "packages": packages_to_install(planned, offered),
        "record": {
            "asked": planned["key"],
            "version": offered.get("version", ""),
            "recommended": recommended,
            "packages": noted,
            "links": links,
            "former": [name for name in former if name not in noted],
        },
        "left_over": [name for name in record.get("former", []) if name in found["packages"]],
        "flags": installer_flags(found, planned, requested["version"], requested["log"]),
    }


def unlike(found: dict[str, Any], planned: Plan, requested: str, offered: dict[str, Any]) -> str:
    """Return how the driver on disk differs from the requested one, in words; empty if it does not.

    Packages can have the requested version and contain nothing. So the libraries and the kernel
    module that boots next tell their version themselves.
    """
    version = "" if requested == "recommended" else upstream(str(requested))
    version = offered.get("version") or version
    module = found["modules"].get(found["next_kernel"], "") if planned["own_kernel"] else ""
    found_versions = {
        "the libraries are": found["library"],
        "the kernel module of %s is" % found["next_kernel"]: module,
    }
    return " and ".join(
        "%s %s" % (what, there)
        for what, there in found_versions.items()
        if version and there and not fits(there, version)
    )


def reboot_reason(found: dict[str, Any]) -> str:
    """Return why a host with its own kernel needs a reboot; empty if it needs none."""
    reason: str = found["reboot_required_reason"]
    if not reason and found["nouveau_loaded"] and not found["loaded"]:
        return "the kernel module nouveau is loaded, and blocks NVIDIA's module"
    return reason


def next_boot(reason: str, breaks: str, allowed: bool) -> str:
    """Return what the next boot does to the driver, and what the operator does about it, as one
    text.
    """
    texts = []
    if reason:
        texts.append("a reboot is needed: %s." % reason)
    if breaks:
        texts.append("the next boot will break the driver: %s." % breaks)
    if reason and not allowed and not breaks:
        texts.append(
            "Reboot the host when its jobs allow it, or set nvidia_driver_allow_reboot to true."
        )
    return " ".join(texts)


def packages_to_install(planned: Plan, offered: dict[str, Any]) -> list[str]:
    """Return packages with their versions.

    In check mode a fresh host has no apt lists, so the versions are unknown.
    """
    if offered.get("version"):
        return ["%s=%s" % pair for pair in sorted(offered["packages"].items())]
    branch = str(planned["asked"][0]).partition(".")[0] if planned["asked"] else ""
    return [
        name.replace("<BR>", branch or "recommended") for name in (planned["families"] or [[]])[0]
    ]


def installer_flags(found: dict[str, Any], planned: Plan, version: str, log: str) -> list[str]:
    """Return flags of NVIDIA's installer, by the branches that have them: github
    NVIDIA/nvidia-installer, option_table.h.
    """
    number = str(version).partition(".")[0]
    branch = int(number) if number.isdigit() else 0
    flags = ["--silent", "--log-file-name=%s" % log]
    if planned["own_kernel"]:
        flags.append("--dkms")
    else:
        flags.append("--no-kernel-modules" if branch >= 515 else "--no-kernel-module")
    if found["loaded"] and branch >= 545:
        flags.append("--allow-installation-with-running-driver")
    if planned["own_kernel"] and branch >= 555:
        flags.append("--kernel-module-type=%s" % planned["kernel_module"])
    elif planned["own_kernel"] and planned["kernel_module"] == "open":
        flags.append("--kernel-module-build-directory=kernel-open")
    return flags


def driver_packages(packages: dict[str, Any]) -> dict[str, Any]:
    """Return the installed packages that belong to the driver, which have the version of its main
    packages; and transitional ones, which contain nothing.
    """
    numbers = {
        upstream(package["version"])
        for name, package in packages.items()
        if MAIN.fullmatch(name) and not name.startswith("nvidia-driver-pinning")
    }
    return {
        name: package
        for name, package in packages.items()
        if is_driver(name) and upstream(package["version"]) in numbers
    }


def driver_versions(installed: Mapping[str, Any]) -> list[str]:
    """Return NVIDIA's versions of the packages of the driver that have content."""
    return sorted(
        {
            upstream(package["version"])
            for package in installed.values()
            if not package.get("leads_to")
        }
    )


class FoundState(TypedDict, total=False):
    """What was read of a host: C(stack), the result of M(trainyard.gpu.gpu_stack_info), and
    C(offered) and C(recommended), results of M(trainyard.gpu.nvidia_driver_info), which lack or are
    empty if it has not run.
    """

    stack: dict[str, Any]
    offered: dict[str, Any] | None
    recommended: dict[str, str] | None


class RequestedState(Operation):
    """C(plan) is the result of decision C(nvidia_driver_plan)."""

    plan: Plan


def decide_nvidia_driver_state(found: FoundState, requested: RequestedState) -> State:
    """Return what a host lacks of its driver and its operation, and what the role does about it.

    C(requested) has the keys of Operation and C(plan). Without C(persistence) nvidia-persistenced
    is requested, without C(allow_reboot) no reboot.

    Returns State, which explains each key.
    """
    operation: Any = {"persistence": True, "allow_reboot": False, **requested}
    planned = operation.pop("plan")
    named = (found.get("recommended") or {}).get("recommended", "")
    return state(found["stack"], planned, operation, found.get("offered") or {}, named)
