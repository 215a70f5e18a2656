# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compatibility of driver, CUDA, NCCL and images: queries of the data in folder compat, which a
maintainer updates without code changes.

Every answer that the facts don't have is None or empty, never a guess: the caller says that it
could not judge.
"""

from __future__ import annotations

import fnmatch
import functools
import operator
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from ansible.module_utils.common.yaml import yaml_load

from ansible_collections.trainyard.gpu.plugins.module_utils._gpu_stack import (
    is_of_driver,
    upstream,
    version_key,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._nccl_build import NcclBuild
from ansible_collections.trainyard.gpu.plugins.plugin_utils._driver_plan import (
    Requested as RequestedDriver,
    nvlink_5_board,
    plan as driver_plan,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils._image_name import versions_in_name
from ansible_collections.trainyard.gpu.plugins.plugin_utils._rank_table import (
    COMPLETED,
    CURRENT,
    SUPER_NODE,
    refusal,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils._role_input import ROLES

if TYPE_CHECKING:
    from ansible_collections.trainyard.gpu.plugins.plugin_utils._driver_plan import (
        Plan as DriverPlan,
    )

FOLDER = os.path.join(os.path.dirname(__file__), "compat")
RECOMMENDED = "recommended"


class NcclPair(TypedDict):
    """A build of libnccl2 and libnccl-dev."""

    #: Empty where the facts have no such build.
    version: str
    #: Whether the facts have it for the requested directory of NVIDIA's repository.
    known: bool
    #: Builds that come nearest, best first.
    nearest: list[str]


class NvLinks(TypedDict):
    """The NVLinks of a model of GPU."""

    #: None if their number is not known.
    links: int | None
    #: Of each, in one direction.
    gb_s: float
    #: Whether they need a bridge.
    bridge: bool
    #: True for data center models of which the table says something.
    known: bool


class RankTableFit(TypedDict):
    """The format of rank tables for a host."""

    #: The one to write; empty for none.
    format: str
    #: The one that the host's MindSpore or CANN reads; empty if unknown, and the name and version
    #: of these.
    fits: str
    found: str
    #: Whether anything is known of the host's format.
    judged: bool
    problems: list[str]


class LeftPackage(TypedDict):
    """An installed package of the driver that gets no updates.

    C(leads_to) is a package or a branch, empty if there is none.
    """

    name: str
    version: str
    leads_to: str


class DriverMix(TypedDict):
    """Packages of the driver of several origins."""

    #: By their origin, in words.
    found: str
    #: Version of the driver in use.
    in_use: str
    #: Names of those of another version; empty if none has the one in use.
    others: list[str]


@functools.lru_cache(maxsize=4)
def load_facts(more: str = "") -> dict[str, Any]:
    """Return the compatibility data as plain data without templates.

    Entries of C(more), a file of the site, come first.
    """
    facts: dict[str, Any] = {}
    for name in sorted(os.listdir(FOLDER)):
        if name.endswith(".yml"):
            facts.update(_load(os.path.join(FOLDER, name)))
    return with_more(facts, _load(more) or {}) if more else facts


def _load(path: str) -> Any:
    with open(path, "rb") as stream:
        return yaml_load(stream)


def with_more(facts: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return merged data: keys of dictionaries are replaced, and new rows of lists come before
    existing ones, so that they are found first.
    """
    merged = dict(facts)
    for key, value in more.items():
        known = facts.get(key)
        if isinstance(value, dict) and isinstance(known, dict):
            merged[key] = with_more(known, value)
        elif isinstance(value, list) and isinstance(known, list):
            merged[key] = value + known
        else:
            merged[key] = value
    return merged


def below(version: str, floor: str) -> bool:
    """Return whether a version is lower, field by field.

    A shorter one counts as its first release (535 is below 535.54.03).
    """
    return version_key(version) < version_key(floor)


def same_branch(version: str, other: str) -> bool:
    """Return whether two versions of the driver have the same first number."""
    return version_key(version)[0] == version_key(other)[0]


class Compatibility:
    """Queries of the compatibility data.

    CUDA versions are texts such as 12.4 or 12.4.1, drivers such as 550.54.15 or 550.
    """

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts

    # Drivers

    def generation(self, device_id: str) -> str | None:
        """Return the generation of a GPU, as cuda.gpu_arch has it, by its PCI device id, four
        hexadecimal digits; None if no range has it.
        """
        number = int(device_id, 16)
        for entry in self.facts["cuda"]["gpu_device_ids"]:
            if any(int(first, 16) <= number <= int(last, 16) for first, last in entry["ranges"]):
                generation: str = entry["generation"]
                return generation
        return None

    def branch(self, driver: str) -> dict[str, Any] | None:
        """Return the row of a driver's branch; None if there is none."""
        number = version_key(driver)[0]
        return next(
            (row for row in self.facts["cuda"]["driver_branches"] if row["branch"] == number), None
        )

    def minor_compat_min(self, cuda: str) -> str | None:
        """Return the oldest driver that runs programs of that CUDA major; None if the major has no
        minor version compatibility, or is unknown.
        """
        row = next(
            (
                row
                for row in self.facts["cuda"]["minor_version_compat"]
                if row["cuda_major"] == version_key(cuda)[0]
            ),
            None,
        )
        return row["min_driver"] if row else None

    def toolkit(self, cuda: str) -> dict[str, Any] | None:
        """Return the row of a toolkit: of exactly that version, else the first of its series; None
        if there is none.
        """
        rows = [
            row
            for row in self.facts["cuda"]["toolkits"]
            if version_key(row["cuda"])[: len(version_key(cuda))] == version_key(cuda)
        ]
        rows = rows or [
            row
            for row in self.facts["cuda"]["toolkits"]
            if version_key(row["series"]) == version_key(cuda)[:2]
        ]
        return rows[0] if rows else None

    def forward_compatible(self, driver: str, cuda: str) -> bool | None:
        """Return whether a data center GPU's driver, below the floor, runs that CUDA with the
        compatibility libraries in NVIDIA's images; None if unknown.
        """
        lists = [
            row
            for row in self.facts["cuda"]["forward_compat"]["datacenter_driver_lists"]
            if version_key(row["image_cuda"]) == version_key(cuda)[:2]
        ]
        if not lists:
            return None
        return any(
            same_branch(driver, floor) and not below(driver, floor) for floor in lists[0]["also_ok"]
        )

    # NCCL

    def nccl_pair(
        self, nccl: str, cuda: str = "", directory: str = "", arch: str = "x86_64"
    ) -> NcclPair:
        """Return the exact version of libnccl2 and libnccl-dev for a request.

        C(nccl) is exact already (2.21.5-1+cuda12.4), or a release (2.21.5) to go with C(cuda).
        C(directory) is one of NVIDIA's repository.
        """
        requested = NcclBuild.parse(nccl)
        release, cuda = nccl, ".".join(cuda.split(".")[:2])
        if requested:
            release, cuda = requested.release, requested.cuda
        builds = self._nccl_builds()
        offered = builds
        if directory:
            offered = [row for row in builds if arch in row["dirs"].get(directory, [])]
        exact = [row for row in builds if (row["nccl"], row["cuda"]) == (release, cuda)]
        version = exact[0]["deb_version"] if exact else ""
        if requested:
            exact, version = [row for row in exact if row["deb_version"] == nccl], nccl
        # If a directory has none at all, one of another may work: the packages need little more
        # than a C library that is not older.
        candidates = [row["deb_version"] for row in offered or builds]
        return {
            "version": version,
            "known": any(row in offered for row in exact),
            "nearest": nearest(release, cuda, candidates),
        }

    def _nccl_builds(self) -> list[dict[str, Any]]:
        """Return the rows of builds of NCCL that are certain."""
        return [row for row in self.facts["nccl"]["debs"] if row["conf"] != "low"]

    def nccl_for_image(
        self, cuda: str, directory: str, arch: str = "x86_64", installed: str = ""
    ) -> str:
        """Return the build of NCCL for an image with that CUDA compiler, from NVIDIA's directory
        for its distribution; empty if none is known.

        In this order: the libnccl2 that the image has, as its frameworks use it; the build that the
        facts prefer there; the newest for exactly this CUDA; the newest for the nearest older CUDA
        of the same major, which every driver for this CUDA runs too; the newest for a newer one of
        the same major.
        """
        requested = version_key(cuda)[:2]
        versions = [
            row["deb_version"]
            for row in self._nccl_builds()
            if arch in row["dirs"].get(directory, [])
            and version_key(row["cuda"])[0] == requested[0]
        ]
        if installed in versions:
            return installed
        for row in self.facts["nccl"]["preferred"]:
            if (
                row["dir"] == directory
                and version_key(row["cuda"]) == requested
                and row["deb_version"] in versions
            ):
                preferred: str = row["deb_version"]
                return preferred

        def order(build: NcclBuild) -> tuple[bool, int, list[int], int]:
            its_cuda = version_key(build.cuda)
            return (
                its_cuda > requested,
                abs(its_cuda[1] - requested[1]),
                [-part for part in version_key(build.release)],
                -build.revision,
            )

        builds = {version: NcclBuild.parse(version) for version in versions}
        known = {version: build for version, build in builds.items() if build}
        return min(known, key=lambda version: order(known[version]), default="")

    def nccl_cuda_major_max(self, driver: str) -> int | None:
        """Return the newest CUDA major that a driver runs without compatibility libraries; None if
        the branch is unknown.
        """
        row = self.branch(driver)
        return row["max_cuda_major_no_fwd_compat"] if row else None

    # Rank tables

    def rank_table_format(self, mindspore: str, cann: str) -> str:
        """Return the format of rank tables that MindSpore reads, or that CANN reads if no MindSpore
        is known; empty if neither is.
        """
        name, version = ("mindspore_below", mindspore) if mindspore else ("cann_below", cann)
        # Releases have had other names too, such as V100R020C10.
        if not re.match(r"\d", version):
            return ""
        rows = self.facts["ascend"]["rank_table_formats"]
        fitting = (row for row in rows if name not in row or below(version, row[name]))
        fits: str = next(fitting)["format"]
        return fits

    # Repositories

    def keyring(self, directory: str, version: str = "1.1-1") -> dict[str, Any]:
        """Return the cuda-keyring package of a directory: C(exists) (None if unknown) and
        C(sha256), empty if unknown.
        """
        rows = self.facts["driver_packages"]["cuda_keyring"]["rows"]
        row: dict[str, Any] = next((row for row in rows if row["dir"] == directory), {})
        return {"exists": row.get("v" + version), "sha256": row.get("sha256_" + version, "")}


# --- queries of preflight rules ---------------------------------------------------------------------------------------------


def _driver_found(stack: dict[str, Any]) -> str:
    """Return the driver's version in use, or else the one of its installed packages; empty without
    one.
    """
    packaged = [
        package["version"]
        for name, package in sorted(stack["packages"].items())
        if re.match(r"(libnvidia-ml1|libnvidia-compute(-.*)?)$", name)
        and not package.get("leads_to")
    ]
    in_use: str = stack["loaded"] or stack["library"]
    return in_use or (upstream(packaged[0]) if packaged else "")


def _is_open_module(stack: dict[str, Any], requested: str, found: str) -> bool | None:
    """Return whether the host has or gets the open kernel module, None without a driver.

    C(requested) is open, proprietary or auto, C(found) the version of the driver or empty.
    """
    if requested in ("open", "proprietary"):
        return requested == "open"
    if stack["loaded"]:
        is_open: bool | None = stack["loaded_is_open"]
        return is_open
    if any(
        re.match(r"nvidia-(open|kernel-open|(driver|dkms|headless)\S*-open)", name)
        for name in stack["packages"]
    ):
        return True
    return False if found else None


def _nccl_of(
    stack: dict[str, Any], compat: Compatibility, requested: Mapping[str, str], directory: str
) -> dict[str, Any]:
    """Return NCCL's version, requested or installed, and the CUDA of its build."""
    if requested["nccl"]:
        nccl = compat.nccl_pair(requested["nccl"], requested["nccl_cuda"], directory)
    else:
        installed = stack["packages"].get("libnccl2", {}).get("version", "")
        nccl = {"version": installed, "known": True, "nearest": []}
    build = NcclBuild.parse(nccl["version"])
    cuda_major = build.cuda_major if build else None
    return {**nccl, "asked": bool(requested["nccl"]), "cuda_major": cuda_major}


def _generation_limits(generations: Iterable[str | None], facts: dict[str, Any]) -> dict[str, Any]:
    """Return what the GPUs of these generations need of the driver, its kernel module and CUDA."""
    named = set(generations)
    # Of two rows of one generation the less strict one, because the device id does not distinguish
    # them.
    first: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in facts["cuda"]["gpu_arch"]:
        if set(row["generations"]) & named:
            first.setdefault(tuple(row["generations"]), row)
    rows = list(first.values())

    def names(open_module: bool | str) -> list[str]:
        return sorted(
            name
            for row in rows
            if row.get("open_module") == open_module
            for name in row["generations"]
        )

    def values(key: str) -> list[Any]:
        return [row[key] for row in rows if key in row]

    capabilities = [each for row in rows for each in row["compute_capabilities"]]
    return {
        "open_refused": names(False),
        "open_required": names("required"),
        "max_driver_branch": min(values("max_driver_branch"), default=None),
        "max_cuda": min(values("max_cuda"), key=version_key, default=""),
        "min_cuda": max(values("min_cuda"), key=version_key, default=""),
        "capability": min(capabilities, key=version_key, default=""),
    }


def _driver_limits(compat: Compatibility, driver: str, image_cuda: str) -> dict[str, Any]:
    """Return what the data says about a version of the driver, None or empty without one."""
    if not driver:
        return {"branch": {}, "forward": None, "cuda_major_max": None}
    return {
        "branch": compat.branch(driver) or {},
        "forward": compat.forward_compatible(driver, image_cuda) if image_cuda else None,
        "cuda_major_max": compat.nccl_cuda_major_max(driver),
    }


def _toolkit_of(stack: dict[str, Any], requested: str, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the container toolkit's version, requested or installed, and what the data says about
    versions.
    """
    installed = stack["container_toolkit"]
    if requested == RECOMMENDED and not installed:
        version = toolkit_version(requested, stack["packages"], facts)
    else:
        version = requested.replace(RECOMMENDED, "") or installed
    return {
        "toolkit": upstream(version),
        "toolkit_packages": facts["container_toolkit"]["pin_together"]["packages"],
        "toolkit_safe_from": max(
            (row["fixed"] for row in facts["container_toolkit"]["security_floor"]), key=version_key
        ),
        "toolkit_cdi": next(
            dict(row["needs"], since=row["version"].rstrip("+"))
            for row in facts["container_toolkit"]["known_bad"]
            if "needs" in row
        ),
    }


def gpu_fit(
    stack: dict[str, Any],
    facts: dict[str, Any],
    directory: str,
    image_cuda: str = "",
    requested: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return compatibility data of a host's GPUs, driver, NCCL and container toolkit, requested or
    found; None or empty if unknown.

    C(stack) is the result of gpu_stack_info, C(directory) the directory of NVIDIA's repository for
    the host's system. C(requested) has C(driver), C(module), C(nccl), C(nccl_cuda) and C(toolkit).
    An empty value requests nothing.

    C(driver) is the requested version, or the loaded or installed one if the request is not a
    version. C(newest) is the newest version that the request can mean. C(open_module) is true for
    the open kernel module. C(forward) is true if a data center GPU with that driver runs the
    image's CUDA by compatibility libraries, according to NVIDIA's list.
    """
    nothing = {"driver": "", "module": "auto", "nccl": "", "nccl_cuda": "", "toolkit": ""}
    complete = {**nothing, **(requested or {})}
    compat = Compatibility(facts)
    version = complete["driver"] if re.fullmatch(r"\d+(\.\d+)*", complete["driver"]) else ""
    found = _driver_found(stack)
    driver = version or found
    is_branch = version and "." not in version
    generations = [compat.generation(gpu["device_id"]) for gpu in stack["gpus"]]
    return {
        "driver": driver,
        "driver_from": "asked" if version else "found",
        "found": found,
        "newest": version + ".999" if is_branch else driver,
        "generations": sorted(set(filter(None, generations))),
        "unknown": [
            gpu["device_id"]
            for gpu, generation in zip(stack["gpus"], generations)
            if generation is None
        ],
        "open_module": _is_open_module(stack, complete["module"], found),
        **_generation_limits(generations, facts),
        **_driver_limits(compat, driver, image_cuda),
        "data_center": _all_data_center(stack["gpus"], facts),
        "nccl": _nccl_of(stack, compat, complete, directory),
        "keyring": compat.keyring(directory),
        "keyrings_elsewhere": [
            row["sha256_1.1-1"]
            for row in facts["driver_packages"]["cuda_keyring"]["rows"]
            if row["dir"] != directory and "sha256_1.1-1" in row
        ],
        "left_packages": left_packages(stack["packages"], facts),
        "left_branch": _server_branch(facts, (version or "0").split(".")[0]),
        "mix": driver_mix(stack),
        "reboot_ahead": reboot_ahead(stack, version),
        "nvlink_5": nvlink_5_board(facts, stack["gpus"]),
        **_toolkit_of(stack, complete["toolkit"], facts),
    }


def _server_branch(facts: dict[str, Any], branch: str) -> dict[str, Any]:
    """Return the row of a branch of Ubuntu's -server packages that gets no updates; {} if it does,
    or is unknown.
    """
    rows = facts["driver_packages"]["ubuntu_archive"]["server_branches"]
    left = (row for row in rows if row["branch"] == int(branch) and row["state"] != "live")
    return next(left, {})


def left_packages(packages: dict[str, Any], facts: dict[str, Any]) -> list[LeftPackage]:
    """Return the installed packages of the driver that get no updates, one for each branch."""
    found: dict[str, LeftPackage] = {}
    for name, package in sorted(packages.items()):
        server = re.fullmatch(r"(?:[a-z]+-)?(?:lib)?nvidia-[a-z0-9-]+?-(\d{3})-server(-.*)?", name)
        row = _server_branch(facts, server.group(1)) if server else {}
        leads_to = package.get("leads_to") or row.get("leads_to", "")
        if row or leads_to:
            branch = re.search(r"-\d{3}(-server)?(?=-|$)", name)
            found.setdefault(
                branch.group() if branch else name,
                {"name": name, "version": package["version"], "leads_to": str(leads_to)},
            )
    return list(found.values())


def driver_mix(stack: dict[str, Any]) -> DriverMix:
    """Return the packages of the driver by their origin, and those of another version than the
    driver in use.
    """
    in_use = stack["loaded"] or stack["library"]
    by_origin: dict[str, list[str]] = {}
    versions = {}
    for name, package in sorted(stack["packages"].items()):
        if package.get("origin") and is_of_driver(name) and not package.get("leads_to"):
            by_origin.setdefault(package["origin"], []).append("%s %s" % (name, package["version"]))
            versions[name] = upstream(package["version"])
    others = []
    if in_use in versions.values():
        others = [name for name in versions if versions[name] != in_use]
    return {
        "found": "; ".join(
            "%s: %s" % (origin, ", ".join(names)) for origin, names in sorted(by_origin.items())
        ),
        "in_use": in_use,
        "others": others,
    }


def reboot_ahead(stack: dict[str, Any], requested: str) -> str:
    """Return why the host needs a reboot before its driver works, though nothing is installed yet;
    empty if it needs none.
    """
    loaded, version = stack["loaded"], upstream(requested)
    if not stack.get("next_kernel"):
        # A container has no kernel of its own.
        return ""
    if stack.get("nouveau_loaded") and not loaded:
        return "the kernel module nouveau is loaded and blocks NVIDIA's module until the next boot"
    key = version_key(version) if version else ()
    if loaded and version and version_key(loaded)[: len(key)] != key:
        return "driver %s is loaded, and %s is requested" % (loaded, version)
    reason: str = stack.get("reboot_required_reason", "")
    return reason


def toolkit_version(requested: str, packages: dict[str, Any], facts: dict[str, Any]) -> str:
    """Return the package version of the requested container toolkit: a version such as 1.17.8, or
    C(recommended).

    C(packages) are those of gpu_stack_info. A recommendation is for a host without a toolkit: of an
    installed one the version stays.
    """
    version = requested
    if requested == RECOMMENDED:
        version = (
            packages.get("nvidia-container-toolkit", {}).get("version")
            or facts["container_toolkit"]["recommended"]["version"]
        )
    return version if not version or "-" in version else version + "-1"


def _short(model: str) -> str:
    """Return a GPU's name as the tables have it."""
    return re.sub(r"(NVIDIA )?(Tesla |GRID )?", "", model, count=1)


# Bare boards: V100 is PG500 and PG503, A100 PG506 and PG509. Virtual GPUs of a Server Edition are
# of "DC".
_BOARD = re.compile(r"(A[0-9]{2,3}-)?PG5[0-9]{2}-[0-9]+\b|.*\b(Server Edition|Blackwell DC-[0-9])")


def is_data_center(model: str, facts: dict[str, Any], device_id: str = "") -> bool:
    """Return whether a GPU is of a data center: by its PCI device id, four hexadecimal digits, or
    else by its name.
    """
    table = facts["cuda"]["data_center_models"]
    number = int(device_id, 16) if device_id else -1
    ranges = table.get("device_ids", [])
    if any(int(first, 16) <= number <= int(last, 16) for first, last in ranges):
        return True
    # Tesla is the brand of nothing else.
    if re.match(r"(NVIDIA )?Tesla ", model) or _BOARD.match(_short(model)):
        return True
    name = re.match(r"([A-Z]+[0-9]+)[A-Za-z]{0,3}(?=[ -]|$)", _short(model))
    return name is not None and not {name.group(0), name.group(1)}.isdisjoint(table["names"])


def _all_data_center(gpus: list[dict[str, Any]], facts: dict[str, Any]) -> bool | None:
    """Return whether all GPUs of a host are of a data center, None if one is not known: without a
    driver it has no name.
    """
    found = [is_data_center(gpu["model"], facts, gpu["device_id"]) for gpu in gpus]
    unknown = [gpu for gpu, known in zip(gpus, found) if not known and not gpu["model"]]
    return None if unknown else all(found)


def gpu_figures(model: str, facts: dict[str, Any]) -> dict[str, float]:
    """Return the published speed of a GPU of this name by test of role burn_in, in GB/s and
    TFLOP/s; empty if the table does not have it.
    """
    for row in facts["cuda"]["gpu_figures"]:
        if any(fnmatch.fnmatchcase(_short(model), name) for name in row["models"]):
            return {
                test: value for test, value in row.items() if test.startswith(("matmul_", "memory"))
            }
    return {}


def nvlinks(model: str, facts: dict[str, Any]) -> NvLinks:
    """Return the NVLinks that a GPU of this name has."""
    rows = [
        row
        for row in facts["cuda"]["nvlinks"]
        if any(fnmatch.fnmatchcase(_short(model), name) for name in row["models"])
    ]
    row = rows[0] if rows else {}
    return {
        "links": row.get("links"),
        "gb_s": row.get("gb_s", 0.0),
        "bridge": row.get("bridge", False),
        "known": bool(row) and is_data_center(model, facts),
    }


class ImageRequest(NamedTuple):
    """What role training_image is to build on a base.

    C(fixes) are corrections of Horovod's source, C(horovod) the version to compile, C(requires)
    its required parts by section, and C(packages) what pip installs, as requirements.
    """

    fixes: Sequence[dict[str, Any]] = ()
    horovod: str = ""
    requires: dict[str, list[str]] | None = None
    packages: Sequence[str] = ()


class _Row(NamedTuple):
    """The row of a base image in the compatibility data, empty if it has none.

    C(month) is that of NGC's tag.
    """

    kind: str = ""
    month: str = ""
    values: dict[str, Any] = {}


def _image_row(name: str, tag: str, facts: dict[str, Any]) -> _Row:
    """Return what the compatibility data says about an image."""
    match = re.search(r"(?:^|/)nvidia/(pytorch|tensorflow|mxnet)$", name)
    if match:
        return _ngc_row(match.group(1), tag, facts)
    if re.search(r"(?:^|/)clara-train-sdk$", name):
        rows = (dict(each) for each in facts["ngc"]["clara_train"] if each["tag"] == tag)
        return _Row("clara_train", values=next(rows, {}))
    return _Row()


def _ngc_row(kind: str, tag: str, facts: dict[str, Any]) -> _Row:
    """Return the row of an image of NGC, by the month in its tag."""
    month = (re.match(r"\d\d\.\d\d", tag) or [""])[0]
    rows = (
        dict(each)
        for each in facts["ngc"]["images"]
        if each["tag"] == month and kind in each["frameworks"]
    )
    row = next(rows, {})
    row["horovod"] = row.pop("horovod_tf", None) if kind != "pytorch" else None
    if row["horovod"]:
        # An image has one framework. For others no list shows what is ticked.
        row["horovod_parts"] = {"frameworks": [kind]}
    if kind != "pytorch":
        row.pop("torch", None)
    return _Row(kind, month, row)


# Whose versions of an image are judged.
_IN_IMAGES = (
    "cuda",
    "nccl",
    "python",
    "openmpi",
    "horovod",
    "torch",
    "tensorflow",
    "gcc",
    "cmake",
)


def _versions(*sources: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions in an image, each of the first source that has it; empty if none has."""
    found = {}
    for key in _IN_IMAGES:
        value = next((str(source[key]) for source in sources if source.get(key)), "")
        # The leading version, as in 2.8.0a0+34c6371d24, '3.6 (PyTorch)' and 4.1.7+.
        version = re.match(r"\d+(\.\d+)*", value)
        found[key] = version.group(0) if version else ""
    return found


def _horovod_parts(
    parts: dict[str, list[str]], requires: dict[str, list[str]]
) -> dict[str, list[str]]:
    """Return which required parts the image's Horovod C(lacks), and which others it C(had)."""
    return {
        "lacks": [
            "%s.%s" % (section, name)
            for section in parts
            for name in requires.get(section) or []
            if name not in parts[section]
        ],
        "had": [
            "%s.%s" % (section, name)
            for section in parts
            for name in parts[section]
            if name not in (requires.get(section) or [])
        ],
    }


def _cuda_of_image(cuda: str, directory: str, facts: dict[str, Any]) -> dict[str, Any]:
    """Return what an image with this CUDA needs: a build of NCCL, and a driver."""
    if not cuda:
        return {
            "driver_full": "",
            "driver_floor": "",
            "minor_compatible": False,
            "nccl_build": "",
        }
    compat = Compatibility(facts)
    full = (compat.toolkit(cuda) or {}).get("toolkit_driver") or ""
    floor = compat.minor_compat_min(cuda)
    return {
        "nccl_build": compat.nccl_for_image(cuda, directory) if directory else "",
        "driver_full": full,
        "driver_floor": floor or full,
        "minor_compatible": bool(floor),
    }


def _python_of_image(torch: str, python: str, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the Pythons that PyTorch's release is for, and whether the image's is one of them."""
    pythons, fits = "", None
    if torch:
        pythons = next(
            (
                each["python"]
                for each in facts["pytorch"]["releases"]
                if version_key(each["torch"]) == version_key(torch)[:2]
            ),
            "",
        )
    if pythons and python:
        fits = python_fits(python, pythons)
    return {"torch_pythons": pythons, "python_fits": fits}


def image_fit(
    base: str,
    facts: dict[str, Any],
    known: dict[str, Any],
    requested: ImageRequest | None = None,
) -> dict[str, Any]:
    """Return the known versions of a base image: from C(known), set by the user, from its name in
    the compatibility data, and from its tag, in this order.

    C(kind) is pytorch, tensorflow, mxnet, clara_train, or empty where nobody knows the image.
    C(fixed) names what the recipe corrects in Horovod's source: for every version that the
    corrections of C(fixes) are meant for and that doesn't speak against what is known.
    C(driver_floor) is the oldest driver that runs its CUDA, C(driver_full) the one that CUDA's
    toolkit came with.

    C(lacks) is what of C(requires) its Horovod is known not to have, C(had) what it is known to
    have beyond that: a rebuild keeps it. C(too_new) are those of C(packages) that have no release
    for its Python. C(directory) is the one of NVIDIA's repository for its distribution,
    C(nccl_build) the build of NCCL that matches.
    """
    requested = requested or ImageRequest()
    name, tag = split_image(base)
    row = _image_row(name, tag, facts)
    from_name = versions_in_name(name, tag)
    versions = _versions(known, row.values, from_name)
    ubuntu = str(row.values.get("ubuntu") or from_name["ubuntu"])
    directory = "ubuntu" + ubuntu.replace(".", "") if ubuntu else ""
    image = {
        "name": base,
        "kind": row.kind,
        "tag": tag,
        "month": row.month,
        "known": sorted(known),
        "nvcc": from_name["nvcc"],
        **versions,
        **_horovod_parts(row.values.get("horovod_parts") or {}, requested.requires or {}),
        "too_new": too_new(versions["python"], requested.packages, facts),
        "ubuntu": ubuntu,
        "directory": directory,
        **_cuda_of_image(versions["cuda"], directory, facts),
        **_python_of_image(versions["torch"], versions["python"], facts),
    }
    image["fixed"] = fixed_by(requested.fixes, dict(image, horovod=requested.horovod))
    return image


def too_new(python: str, packages: Iterable[str], facts: dict[str, Any]) -> list[str]:
    """Return the pip requirements whose version is newer than the last one for a Python, with that
    version. Requirements without a version are ignored.
    """
    limits: dict[str, str] = next(
        (
            row
            for row in facts["horovod"]["python_limits"]
            if python and version_key(row["python"]) == version_key(python)[:2]
        ),
        {},
    )
    found = []
    for package in packages:
        pin, _semicolon, marker = package.partition(";")
        match = re.fullmatch(r"\s*([\w.-]+)\s*==\s*(\d+(?:\.\d+)*)\s*", pin)
        last = limits.get(match.group(1).lower().replace("_", "-")) if match else None
        if not match or not last or not marker_holds(marker, python):
            continue
        if version_key(match.group(2)) > version_key(last):
            found.append(
                "%s (%s is the last for Python %s)" % (pin.strip(), last, limits["python"])
            )
    return found


def marker_holds(marker: str, python: str) -> bool:
    """Return whether a requirement with that marker applies to a Python.

    An unsupported marker does not apply, so that it rejects no base.
    """
    if not marker.strip():
        return True
    match = re.fullmatch(
        r"""\s*python_version\s*(<=|>=|==|<|>)\s*['"](\d+(?:\.\d+)*)['"]\s*""", marker
    )
    if not match:
        return False
    return in_range(".".join(python.split(".")[:2]), match.group(1) + match.group(2))


def split_image(name: str) -> tuple[str, str]:
    """Return name and tag of an image; the tag is empty for a digest or without a version."""
    name = name.partition("@")[0]
    path, colon, tag = name.rpartition(":")
    return (path, tag) if colon and "/" not in tag else (name, "")


def fixed_by(fixes: Iterable[dict[str, Any]], versions: Mapping[str, Any]) -> list[str]:
    """Return what corrections of Horovod's source are for, apart from Horovod, where the known
    versions do not speak against it.
    """
    found: set[str] = set()
    for fix in fixes:
        ranges = fix.get("when") or {}
        if all(in_range(versions[name], ranges[name]) for name in ranges if versions.get(name)):
            found.update(name for name in ranges if name != "horovod")
    return sorted(found)


def in_range(version: str, text: str) -> bool:
    """Return whether a version is in a range such as >=2.1,<2.13, whose parts must all be true."""
    compare = {
        ">=": operator.ge,
        "<=": operator.le,
        "==": operator.eq,
        ">": operator.gt,
        "<": operator.lt,
    }
    for part in text.split(","):
        match = re.match(r"\s*(>=|<=|==|<|>)\s*([\d.]+)", part)
        if not match:
            raise ValueError("'%s' is not a range of versions, such as >=2.1,<2.13" % text)
        sign, limit = match.groups()
        left, right = version_key(version), version_key(limit)
        width = max(len(left), len(right))
        if not compare[sign](
            left + (0,) * (width - len(left)), right + (0,) * (width - len(right))
        ):
            return False
    return True


def _requested_format_problems(requested: str, fits: str, found: str) -> list[str]:
    """Return why the requested format of rank tables cannot be used."""
    if requested in ("auto", "none"):
        return []
    reason = refusal(requested)
    if not reason and fits and requested != fits:
        reason = "format '%s' was requested, and %s reads '%s'" % (requested, found, fits)
    return [reason] if reason else []


def _rank_table_problem(table: dict[str, Any], fits: str, found: str) -> str:
    """Return what is wrong with a rank table of the host, empty if nothing is."""
    if not table["format"]:
        return "it is not a rank table"
    if table["format"] == SUPER_NODE:
        return refusal(SUPER_NODE)
    if fits and table["format"] != fits:
        return "it has format '%s', and %s reads '%s'" % (table["format"], found, fits)
    if table["status"] != COMPLETED:
        return "its status is '%s', not '%s'" % (table["status"], COMPLETED)
    if table["number"]:
        return "%s is not a text, and every value has to be one" % table["number"]
    return ""


def rank_table_fit(
    reading: dict[str, Any],
    requested: str | float,
    facts: dict[str, Any],
    mindspore: str = "",
    packages: Iterable[str] = (),
) -> RankTableFit:
    """Return the format of rank tables for a host, from the result of ascend_info.

    C(requested) is a format, auto or none. The MindSpore is that of C(mindspore), a version, or of
    C(packages), requirements of pip, or the host's.
    """
    added = [
        package.partition("==")[2] for package in packages if package.startswith("mindspore==")
    ]
    # As text, because 1.0 is a number in YAML.
    text, mindspore = str(requested), str(mindspore or "".join(added[:1]) or reading["mindspore"])
    cann = reading["cann"]["version"]
    fits = Compatibility(facts).rank_table_format(mindspore, cann)
    found = "CANN %s" % cann if cann else ""
    if mindspore:
        found = "MindSpore %s" % mindspore
    problems = _requested_format_problems(text, fits, found)
    for path, table in sorted(reading["rank_tables"].items()):
        problem = _rank_table_problem(table, fits, found)
        problems += ["%s: %s" % (path, problem)] if problem else []
    chosen = {"auto": fits or CURRENT, "none": ""}.get(text, text)
    return {
        "format": chosen,
        "fits": fits,
        "found": found,
        "judged": bool(fits or problems),
        "problems": problems,
    }


def own_source_fixes() -> list[dict[str, Any]]:
    """Return the corrections of role training_image."""
    variables = _load(os.path.join(ROLES, "training_image", "vars", "main.yml"))
    fixes: list[dict[str, Any]] = variables["__training_image_source_fixes"]
    return fixes


def python_fits(python: str, ranges: str) -> bool:
    """Return whether a Python is in ranges such as '3.8-3.11 (3.12 exp)' or '2.7, 3.5-3.8'.

    Experimental versions count.
    """
    requested = version_key(python)[:2]
    for first, last in re.findall(r"(\d\.\d+)(?:-(\d\.\d+))?", ranges):
        if version_key(first) <= requested <= version_key(last or first):
            return True
    return False


def nearest(release: str, cuda: str, versions: Iterable[str], count: int = 3) -> list[str]:
    """Return the builds nearest to a release for a CUDA: the same CUDA major first, then the
    nearest release, then the nearest CUDA.
    """

    def distance(build: NcclBuild) -> tuple[bool, list[int], int]:
        its_release, requested = version_key(build.release), version_key(release)
        step = [abs(left - right) for left, right in zip(its_release, requested)]
        major, minor = version_key(build.cuda)
        wanted_major, wanted_minor = (version_key(cuda) + (0,))[:2] if cuda else (major, minor)
        return major != wanted_major, step, abs(minor - wanted_minor)

    builds = {version: NcclBuild.parse(version) for version in versions}
    exact = {version: build for version, build in builds.items() if build}
    return sorted(exact, key=lambda version: (distance(exact[version]), version))[:count]


def decide_gpu_fit(
    stack: dict[str, Any],
    directory: str,
    image_cuda: str = "",
    requested: Mapping[str, str] | None = None,
    facts_file: str = "",
) -> dict[str, Any]:
    """Return compatibility data of a host's GPUs, driver, NCCL and container toolkit, as gpu_fit
    explains its keys. The data is that of the collection and of a file of the site.

    C(stack) is the result of M(trainyard.gpu.gpu_stack_info), C(directory) that of NVIDIA's
    repository for the host's system, such as ubuntu2204, C(image_cuda) a version, empty for none.
    C(requested) are versions and C(module), C(facts_file) is a path, empty for none. Raises
    ParseError if the data is damaged.
    """
    return gpu_fit(stack, load_facts(facts_file), directory, image_cuda, requested)


def decide_image_fit(
    base: str, known: dict[str, Any], requested: Mapping[str, Any], facts_file: str = ""
) -> dict[str, Any]:
    """Return what is known of a base image and of what is built on it, as image_fit explains, with
    the compatibility data of the collection and of a file of the site.

    C(base) is the name of the image, C(known) what the site says of it, by name. C(requested) has
    the fields of ImageRequest by name; its C(fixes) are those of the inventory. C(facts_file) is a
    path, empty for none. Raises ParseError if the data is damaged.
    """
    fields = dict(requested)
    fixes = own_source_fixes() + list(fields.pop("fixes", ()))
    return image_fit(base, load_facts(facts_file), known, ImageRequest(fixes, **fields))


def decide_rank_table_fit(
    reading: dict[str, Any],
    requested: str | float = "auto",
    mindspore: str = "",
    packages: Iterable[str] = (),
    facts_file: str = "",
) -> RankTableFit:
    """Return the format of rank tables for a host, with the compatibility data of the collection
    and of a file of the site.

    C(reading) is the result of M(trainyard.gpu.ascend_info), C(requested) a format, auto or none.
    C(mindspore) is a version, empty for that of C(packages), requirements of pip, or of the host.
    C(facts_file) is a path, empty for none.

    Returns RankTableFit, which explains each key. Raises ParseError if the data is damaged.
    """
    return rank_table_fit(reading, requested, load_facts(facts_file), mindspore, packages)


def decide_toolkit_version(
    requested: str | float, packages: dict[str, Any], facts_file: str = ""
) -> str:
    """Return the package version of the requested container toolkit, such as 1.17.8-1.

    C(requested) is a version or recommended, C(packages) are those of
    M(trainyard.gpu.gpu_stack_info), whose toolkit stays if recommended is requested. C(facts_file)
    is the path of the site's compatibility data, empty for none. Raises ParseError if the data is
    damaged.
    """
    return toolkit_version(str(requested), packages, load_facts(facts_file))


class FoundDriver(TypedDict):
    """What was read of a host: C(stack), the result of M(trainyard.gpu.gpu_stack_info), and
    C(recommended), the branch that the distribution recommends, empty if none is known.
    """

    stack: dict[str, Any]
    recommended: str


class DriverRequest(RequestedDriver):
    """C(data) are the role's names of packages of the host's system."""

    data: dict[str, Any]


def decide_nvidia_driver_plan(found: FoundDriver, requested: DriverRequest) -> DriverPlan:
    """Return the driver of a host and conflicts with it, with the compatibility data of the
    collection.

    C(requested) has the keys of Requested of _driver_plan, and C(data).

    Returns Plan of _driver_plan, which explains each key; C(problems) are sentences. Raises
    ParseError if the compatibility data is damaged.
    """
    facts = load_facts()
    generation = Compatibility(facts).generation
    return driver_plan(
        found["stack"], facts, generation, requested, requested["data"], found["recommended"]
    )
