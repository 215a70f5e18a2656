# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compatibility of driver, CUDA, NCCL and images: queries of the data in folder compat, which a maintainer updates without code changes.

Every answer that the facts don't have is None or empty, never a guess: the caller says that it could not judge.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import re

from ansible.module_utils.common.yaml import yaml_load

from ansible_collections.trainyard.gpu.plugins.module_utils._gpu_stack import (
    is_of_driver,
    upstream,
    version_key,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._nccl_build import NcclBuild
from ansible_collections.trainyard.gpu.plugins.plugin_utils._driver_plan import nvlink_5_board
from ansible_collections.trainyard.gpu.plugins.plugin_utils._image_name import said_by_name
from ansible_collections.trainyard.gpu.plugins.plugin_utils._rank_table import (
    COMPLETED,
    CURRENT,
    SUPER_NODE,
    refusal,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils._role_input import ROLES

FOLDER = os.path.join(os.path.dirname(__file__), "compat")
RECOMMENDED = "recommended"


@functools.lru_cache(maxsize=4)
def load_facts(more=""):
    """The compatibility data as plain data without templates. Entries of C(more), a file of the site, come first."""
    facts = {}
    for name in sorted(os.listdir(FOLDER)):
        if name.endswith(".yml"):
            facts.update(_load(os.path.join(FOLDER, name)))
    return with_more(facts, _load(more) or {}) if more else facts


def _load(path):
    with open(path, "rb") as stream:
        return yaml_load(stream)


def with_more(facts, more):
    """Merged data: keys of dictionaries are replaced, and new rows of lists come before existing ones, so that they are found first."""
    merged = dict(facts)
    for key, value in more.items():
        known = facts.get(key)
        if isinstance(value, dict) and isinstance(known, dict):
            merged[key] = with_more(known, value)
        else:
            merged[key] = (
                value + known if isinstance(value, list) and isinstance(known, list) else value
            )
    return merged


def below(version, floor):
    """Whether a version is lower, field by field. A shorter one counts as its first release (535 is below 535.54.03)."""
    return version_key(version) < version_key(floor)


def same_branch(version, other):
    return version_key(version)[0] == version_key(other)[0]


class Compatibility:
    """Queries of the compatibility data. CUDA versions are texts such as 12.4 or 12.4.1, drivers such as 550.54.15 or 550."""

    def __init__(self, facts):
        self.facts = facts

    # Drivers

    def generation(self, device_id):
        """The row of cuda.gpu_arch for a GPU by its PCI device id, four hexadecimal digits; None if no range has it."""
        number = int(device_id, 16)
        for entry in self.facts["cuda"]["gpu_device_ids"]:
            if any(int(first, 16) <= number <= int(last, 16) for first, last in entry["ranges"]):
                return entry["generation"]
        return None

    def branch(self, driver):
        """The row of a driver's branch; None if there is none."""
        number = version_key(driver)[0]
        return next(
            (row for row in self.facts["cuda"]["driver_branches"] if row["branch"] == number), None
        )

    def minor_compat_min(self, cuda):
        """The oldest driver that runs programs of that CUDA major; None if the major has no minor version compatibility, or is unknown."""
        row = next(
            (
                row
                for row in self.facts["cuda"]["minor_version_compat"]
                if row["cuda_major"] == version_key(cuda)[0]
            ),
            None,
        )
        return row["min_driver"] if row else None

    def toolkit(self, cuda):
        """The row of a toolkit: of exactly that version, else the first of its series; None if there is none."""
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

    def forward_compatible(self, driver, cuda):
        """Whether a data center GPU's driver, below the floor, runs that CUDA with the compatibility libraries in NVIDIA's images; None if unknown."""
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

    def nccl_pair(self, nccl, cuda="", directory="", arch="x86_64"):
        """The exact version of libnccl2 and libnccl-dev for a request.

        C(nccl) is exact already (2.21.5-1+cuda12.4), or a release (2.21.5) to go with C(cuda). Returns C(version), empty where the facts have no such build;
        C(known), whether they have it for that directory of NVIDIA's repository; and C(nearest), builds that come nearest, best first.
        """
        asked = NcclBuild.parse(nccl)
        release, cuda = (
            (asked.release, asked.cuda) if asked else (nccl, ".".join(cuda.split(".")[:2]))
        )
        builds = [row for row in self.facts["nccl"]["debs"] if row["conf"] != "low"]
        there = [row for row in builds if not directory or arch in row["dirs"].get(directory, [])]
        exact = [
            row
            for row in builds
            if row["nccl"] == release
            and row["cuda"] == cuda
            and (not asked or row["deb_version"] == nccl)
        ]
        version = nccl if asked else exact[0]["deb_version"] if exact else ""
        # If a directory has none at all, one of another may work: the packages need little more than a C library that is not older.
        candidates = [row["deb_version"] for row in there or builds]
        return {
            "version": version,
            "known": any(row in there for row in exact),
            "nearest": nearest(release, cuda, candidates),
        }

    def nccl_for_image(self, cuda, directory, arch="x86_64", installed=""):
        """The build of NCCL for an image with that CUDA compiler, from NVIDIA's directory for its distribution; empty if none is known.

        In this order: the libnccl2 that the image has, as its frameworks use it; the build that the facts prefer there; the newest for exactly this CUDA; the
        newest for the nearest older CUDA of the same major, which every driver for this CUDA runs too; the newest for a newer one of the same major.
        """
        wanted = version_key(cuda)[:2]
        rows = {
            row["deb_version"]: row
            for row in self.facts["nccl"]["debs"]
            if row["conf"] != "low"
            and arch in row["dirs"].get(directory, [])
            and version_key(row["cuda"])[0] == wanted[0]
        }
        if installed in rows:
            return installed
        for row in self.facts["nccl"]["preferred"]:
            if (
                row["dir"] == directory
                and version_key(row["cuda"]) == wanted
                and row["deb_version"] in rows
            ):
                return row["deb_version"]

        def order(version):
            build = NcclBuild.parse(version)
            theirs = version_key(build.cuda)
            return (
                theirs > wanted,
                abs(theirs[1] - wanted[1]),
                [-part for part in version_key(build.release)],
                -build.revision,
            )

        return min(rows, key=order, default="")

    def nccl_cuda_major_max(self, driver):
        """The newest CUDA major that a driver runs without compatibility libraries; None if the branch is unknown."""
        row = self.branch(driver)
        return row["max_cuda_major_no_fwd_compat"] if row else None

    # Rank tables

    def rank_table_format(self, mindspore, cann):
        """The format of rank tables that MindSpore reads, or that CANN reads if no MindSpore is known; empty if neither is."""
        name, version = ("mindspore_below", mindspore) if mindspore else ("cann_below", cann)
        rows = self.facts["ascend"]["rank_table_formats"]
        # Releases have had other names too, such as V100R020C10.
        return (
            next(row["format"] for row in rows if name not in row or below(version, row[name]))
            if re.match(r"\d", version)
            else ""
        )

    # Repositories

    def keyring(self, directory, version="1.1-1"):
        """The cuda-keyring package of a directory: C(exists) (None if unknown) and C(sha256), empty if unknown."""
        row = next(
            (
                row
                for row in self.facts["driver_packages"]["cuda_keyring"]["rows"]
                if row["dir"] == directory
            ),
            {},
        )
        return {"exists": row.get("v" + version), "sha256": row.get("sha256_" + version, "")}


# --- queries of preflight rules ---------------------------------------------------------------------------------------------


def gpu_fit(stack, facts, directory, image_cuda="", asked=None):
    """Compatibility data of a host's GPUs, driver, NCCL and container toolkit, requested or found; None or empty if unknown.

    C(stack) is the result of gpu_stack_info, C(directory) the directory of NVIDIA's repository for the host's system. C(asked) has the requested C(driver),
    C(module), C(nccl), C(nccl_cuda) and C(toolkit). An empty value requests nothing.

    C(driver) is the requested version, or the loaded or installed one if the request is not a version. C(newest) is the newest version that the request can
    mean. C(open_module) is true for the open kernel module. C(forward) is true if a data center GPU with that driver runs the image's CUDA by compatibility
    libraries, according to NVIDIA's list.
    """
    wanted = dict(
        {"driver": "", "module": "auto", "nccl": "", "nccl_cuda": "", "toolkit": ""},
        **(asked or {}),
    )
    driver_asked, module_asked = wanted["driver"], wanted["module"]
    compat = Compatibility(facts)
    asked = driver_asked if re.fullmatch(r"\d+(\.\d+)*", driver_asked) else ""
    packaged = [
        package["version"]
        for name, package in sorted(stack["packages"].items())
        if re.match(r"(libnvidia-ml1|libnvidia-compute(-.*)?)$", name)
        and not package.get("leads_to")
    ]
    found = stack["loaded"] or stack["library"] or (upstream(packaged[0]) if packaged else "")
    generations = [compat.generation(gpu["device_id"]) for gpu in stack["gpus"]]
    rows = [row for row in facts["cuda"]["gpu_arch"] if set(row["generations"]) & set(generations)]
    # Of two rows of one generation the less strict one, because the device id does not distinguish them.
    first = {}
    for row in rows:
        first.setdefault(tuple(row["generations"]), row)
    rows = list(first.values())
    packages = [
        name
        for name in stack["packages"]
        if re.match(r"nvidia-(open|kernel-open|(driver|dkms|headless)\S*-open)", name)
    ]
    is_open = {"open": True, "proprietary": False}.get(module_asked)
    if is_open is None:
        is_open = (
            stack["loaded_is_open"]
            if stack["loaded"]
            else True
            if packages
            else False
            if found
            else None
        )
    nccl = (
        dict(compat.nccl_pair(wanted["nccl"], wanted["nccl_cuda"], directory), asked=True)
        if wanted["nccl"]
        else {
            "version": stack["packages"].get("libnccl2", {}).get("version", ""),
            "known": True,
            "nearest": [],
            "asked": False,
        }
    )
    build = NcclBuild.parse(nccl["version"])
    return {
        "driver": asked or found,
        "driver_from": "asked" if asked else "found",
        "found": found,
        "newest": asked + ".999" if asked and "." not in asked else asked or found,
        "branch": (compat.branch(asked or found) or {}) if asked or found else {},
        "generations": sorted(set(filter(None, generations))),
        "unknown": [
            gpu["device_id"]
            for gpu, generation in zip(stack["gpus"], generations)
            if generation is None
        ],
        "open_module": is_open,
        "open_refused": sorted(
            name for row in rows if row.get("open_module") is False for name in row["generations"]
        ),
        "open_required": sorted(
            name
            for row in rows
            if row.get("open_module") == "required"
            for name in row["generations"]
        ),
        "max_driver_branch": min(
            (row["max_driver_branch"] for row in rows if "max_driver_branch" in row), default=None
        ),
        "max_cuda": min(
            (row["max_cuda"] for row in rows if "max_cuda" in row), key=version_key, default=""
        ),
        "min_cuda": max(
            (row["min_cuda"] for row in rows if "min_cuda" in row), key=version_key, default=""
        ),
        "capability": min(
            (capability for row in rows for capability in row["compute_capabilities"]),
            key=version_key,
            default="",
        ),
        "data_center": _all_data_center(stack["gpus"], facts),
        "forward": compat.forward_compatible(asked or found, image_cuda)
        if image_cuda and (asked or found)
        else None,
        "nccl": dict(nccl, cuda_major=build.cuda_major if build else None),
        "cuda_major_max": compat.nccl_cuda_major_max(asked or found) if asked or found else None,
        "keyring": compat.keyring(directory),
        "keyrings_elsewhere": [
            row["sha256_1.1-1"]
            for row in facts["driver_packages"]["cuda_keyring"]["rows"]
            if row["dir"] != directory and "sha256_1.1-1" in row
        ],
        "left_packages": left_packages(stack["packages"], facts),
        "left_branch": _server_branch(facts, (asked or "0").split(".")[0]),
        "mix": driver_mix(stack),
        "reboot_ahead": reboot_ahead(stack, asked),
        "nvlink_5": nvlink_5_board(facts, stack["gpus"]),
        "toolkit": upstream(
            toolkit_version(wanted["toolkit"], stack["packages"], facts)
            if wanted["toolkit"] == RECOMMENDED and not stack["container_toolkit"]
            else wanted["toolkit"].replace(RECOMMENDED, "") or stack["container_toolkit"]
        ),
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


def _server_branch(facts, branch):
    """The row of a branch of Ubuntu's -server packages that gets no updates; {} if it does, or is unknown."""
    rows = facts["driver_packages"]["ubuntu_archive"]["server_branches"]
    left = (row for row in rows if row["branch"] == int(branch) and row["state"] != "live")
    return next(left, {})


def left_packages(packages, facts):
    """Installed packages of the driver that get no updates: C(name), C(version), C(leads_to) (a package or a branch, empty if none). One for each branch."""
    found = {}
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


def driver_mix(stack):
    """Packages of the driver by their origin, in words (C(found)), and the names of those that are of another version than the driver in use (C(others))."""
    in_use = stack["loaded"] or stack["library"]
    by_origin, versions = {}, {}
    for name, package in sorted(stack["packages"].items()):
        if package.get("origin") and is_of_driver(name) and not package.get("leads_to"):
            by_origin.setdefault(package["origin"], []).append("%s %s" % (name, package["version"]))
            versions[name] = upstream(package["version"])
    return {
        "found": "; ".join(
            "%s: %s" % (origin, ", ".join(names)) for origin, names in sorted(by_origin.items())
        ),
        "in_use": in_use,
        "others": [name for name in versions if versions[name] != in_use]
        if in_use in versions.values()
        else [],
    }


def reboot_ahead(stack, asked):
    """Why the host needs a reboot before its driver works, though nothing is installed yet; empty if it needs none."""
    loaded, wanted = stack["loaded"], upstream(asked)
    if not stack.get("next_kernel"):
        # A container has no kernel of its own.
        return ""
    if stack.get("nouveau_loaded") and not loaded:
        return "the kernel module nouveau is loaded and blocks NVIDIA's module until the next boot"
    if loaded and wanted and version_key(loaded)[: len(version_key(wanted))] != version_key(wanted):
        return "driver %s is loaded, and %s is requested" % (loaded, wanted)
    return stack.get("reboot_required_reason", "")


def toolkit_version(asked, packages, facts):
    """The package version of the requested container toolkit: a version such as 1.17.8, or C(recommended).

    C(packages) are those of gpu_stack_info. A recommendation is for a host without a toolkit: of an installed one the version stays.
    """
    if asked == RECOMMENDED:
        asked = (
            packages.get("nvidia-container-toolkit", {}).get("version")
            or facts["container_toolkit"]["recommended"]["version"]
        )
    return asked if not asked or "-" in asked else asked + "-1"


def _short(model):
    """A GPU's name as the tables have it."""
    return re.sub(r"(NVIDIA )?(Tesla |GRID )?", "", model, count=1)


# Bare boards: V100 is PG500 and PG503, A100 PG506 and PG509. Virtual GPUs of a Server Edition are of "DC".
_BOARD = re.compile(r"(A[0-9]{2,3}-)?PG5[0-9]{2}-[0-9]+\b|.*\b(Server Edition|Blackwell DC-[0-9])")


def is_data_center(model: str, facts: dict, device_id: str = "") -> bool:
    """Return whether a GPU is of a data center: by its PCI device id, four hexadecimal digits, or else by its name."""
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


def _all_data_center(gpus: list, facts: dict) -> bool | None:
    """Return whether all GPUs of a host are of a data center, None if one is not known: without a driver it has no name."""
    found = [is_data_center(gpu["model"], facts, gpu["device_id"]) for gpu in gpus]
    unknown = [gpu for gpu, known in zip(gpus, found) if not known and not gpu["model"]]
    return None if unknown else all(found)


def gpu_figures(model: str, facts: dict) -> dict:
    """Return the published speed of a GPU of this name by test of role burn_in, in GB/s and TFLOP/s; empty if the table does not have it."""
    for row in facts["cuda"]["gpu_figures"]:
        if any(fnmatch.fnmatchcase(_short(model), name) for name in row["models"]):
            return {
                test: value for test, value in row.items() if test.startswith(("matmul_", "memory"))
            }
    return {}


def nvlinks(model, facts):
    """What a GPU of this name has: C(links), None if that is not known, C(gb_s) of each, C(bridge), whether they need one, and C(known).

    C(known) is true for data center models of which the table says something.
    """
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


def image_fit(base, facts, known, fixes=(), horovod_asked="", requires=None, packages=()):
    """Known versions of a base image: from C(known), set by the user, from its name in the compatibility data, and from its tag, in this order.

    C(kind) is pytorch, tensorflow, mxnet, clara_train, or empty where nobody knows the image. C(fixed) names what the recipe corrects in Horovod's source:
    for every version that the corrections of C(fixes) are meant for and that doesn't speak against what is known. C(driver_floor) is the oldest driver that
    runs its CUDA, C(driver_full) the one that CUDA's toolkit came with.

    C(lacks) is what of C(requires) its Horovod is known not to have, C(had) what it is known to have beyond that: a rebuild keeps it. C(too_new) are those of
    C(packages) that have no release for its Python. C(directory) is the one of NVIDIA's repository for its distribution, C(nccl_build) the build of NCCL that
    matches.
    """
    name, tag = split_image(base)
    kind, month, row = "", "", {}
    match = re.search(r"(?:^|/)nvidia/(pytorch|tensorflow|mxnet)$", name)
    if match:
        kind = match.group(1)
        month = (re.match(r"\d\d\.\d\d", tag) or [""])[0]
        row = next(
            (
                dict(each)
                for each in facts["ngc"]["images"]
                if each["tag"] == month and kind in each["frameworks"]
            ),
            {},
        )
        row["horovod"] = row.pop("horovod_tf", None) if kind != "pytorch" else None
        if row["horovod"]:
            # An image has one framework. For others no list shows what is ticked.
            row["horovod_parts"] = {"frameworks": [kind]}
        if kind != "pytorch":
            row.pop("torch", None)
    elif re.search(r"(?:^|/)clara-train-sdk$", name):
        kind = "clara_train"
        row = next((dict(each) for each in facts["ngc"]["clara_train"] if each["tag"] == tag), {})
    said = said_by_name(name, tag)
    image = {
        "name": base,
        "kind": kind,
        "tag": tag,
        "month": month,
        "known": sorted(known),
        "nvcc": said["nvcc"],
    }
    for key in (
        "cuda",
        "nccl",
        "python",
        "openmpi",
        "horovod",
        "torch",
        "tensorflow",
        "gcc",
        "cmake",
    ):
        value = str(known.get(key) or row.get(key) or said.get(key) or "")
        # The leading version, as in 2.8.0a0+34c6371d24, '3.6 (PyTorch)' and 4.1.7+.
        version = re.match(r"\d+(\.\d+)*", value)
        image[key] = version.group(0) if version else ""
    parts = row.get("horovod_parts") or {}
    image["lacks"] = [
        "%s.%s" % (section, name)
        for section in parts
        for name in (requires or {}).get(section) or []
        if name not in parts[section]
    ]
    image["had"] = [
        "%s.%s" % (section, name)
        for section in parts
        for name in parts[section]
        if name not in ((requires or {}).get(section) or [])
    ]
    image["too_new"] = too_new(image["python"], packages, facts)
    image["ubuntu"] = str(row.get("ubuntu") or said["ubuntu"])
    image["directory"] = "ubuntu" + image["ubuntu"].replace(".", "") if image["ubuntu"] else ""
    image["nccl_build"] = (
        Compatibility(facts).nccl_for_image(image["cuda"], image["directory"])
        if image["cuda"] and image["directory"]
        else ""
    )
    row = Compatibility(facts).toolkit(image["cuda"]) or {} if image["cuda"] else {}
    floor = Compatibility(facts).minor_compat_min(image["cuda"]) if image["cuda"] else None
    pythons = next(
        (
            each["python"]
            for each in facts["pytorch"]["releases"]
            if image["torch"] and version_key(each["torch"]) == version_key(image["torch"])[:2]
        ),
        "",
    )
    image.update(
        fixed=fixed_by(fixes, dict(image, horovod=horovod_asked)),
        driver_full=row.get("toolkit_driver") or "",
        driver_floor=floor or row.get("toolkit_driver") or "",
        minor_compatible=bool(floor),
        torch_pythons=pythons,
        python_fits=python_fits(image["python"], pythons) if pythons and image["python"] else None,
    )
    return image


def too_new(python, packages, facts):
    """The pip requirements whose version is newer than the last one for a Python, with that version. Requirements without a version are ignored."""
    limits = next(
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
        if (
            last
            and marker_holds(marker, python)
            and version_key(match.group(2)) > version_key(last)
        ):
            found.append(
                "%s (%s is the last for Python %s)" % (pin.strip(), last, limits["python"])
            )
    return found


def marker_holds(marker, python):
    """Whether a requirement with that marker applies to a Python. An unsupported marker does not apply, so that it rejects no base."""
    if not marker.strip():
        return True
    match = re.fullmatch(
        r"""\s*python_version\s*(<=|>=|==|<|>)\s*['"](\d+(?:\.\d+)*)['"]\s*""", marker
    )
    return bool(match) and in_range(
        ".".join(python.split(".")[:2]), match.group(1) + match.group(2)
    )


def split_image(name):
    """Name and tag of an image; the tag is empty for a digest or without a version."""
    name = name.partition("@")[0]
    path, colon, tag = name.rpartition(":")
    return (path, tag) if colon and "/" not in tag else (name, "")


def fixed_by(fixes, versions):
    found = set()
    for fix in fixes:
        ranges = fix.get("when") or {}
        if all(in_range(versions[name], ranges[name]) for name in ranges if versions.get(name)):
            found.update(name for name in ranges if name != "horovod")
    return sorted(found)


def in_range(version, text):
    """Whether a version is in a range such as >=2.1,<2.13, whose parts must all be true."""
    compare = {
        ">=": lambda left, right: left >= right,
        "<=": lambda left, right: left <= right,
        "==": lambda left, right: left == right,
        ">": lambda left, right: left > right,
        "<": lambda left, right: left < right,
    }
    for part in text.split(","):
        sign, limit = re.match(r"\s*(>=|<=|==|<|>)\s*([\d.]+)", part).groups()
        left, right = version_key(version), version_key(limit)
        width = max(len(left), len(right))
        if not compare[sign](
            left + (0,) * (width - len(left)), right + (0,) * (width - len(right))
        ):
            return False
    return True


def rank_table_fit(reading, asked, facts, mindspore="", packages=()):
    """The format of rank tables for a host, from the result of ascend_info; see the filter."""
    added = [
        package.partition("==")[2] for package in packages if package.startswith("mindspore==")
    ]
    # As text, because 1.0 is a number in YAML.
    asked, mindspore = str(asked), str(mindspore or "".join(added[:1]) or reading["mindspore"])
    cann = reading["cann"]["version"]
    fits = Compatibility(facts).rank_table_format(mindspore, cann)
    found = "MindSpore %s" % mindspore if mindspore else "CANN %s" % cann if cann else ""
    problems = []
    if asked not in ("auto", "none"):
        reason = refusal(asked)
        if not reason and fits and asked != fits:
            reason = "format '%s' was requested, and %s reads '%s'" % (asked, found, fits)
        problems += [reason] if reason else []
    for path, table in sorted(reading["rank_tables"].items()):
        where = "%s: " % path
        if table["format"] == SUPER_NODE or not table["format"]:
            problems.append(
                where + (refusal(SUPER_NODE) if table["format"] else "it is not a rank table")
            )
        elif fits and table["format"] != fits:
            problems.append(
                where + "it has format '%s', and %s reads '%s'" % (table["format"], found, fits)
            )
        elif table["status"] != COMPLETED:
            problems.append(where + "its status is '%s', not '%s'" % (table["status"], COMPLETED))
        elif table["number"]:
            problems.append(
                where + "%s is not a text, and every value has to be one" % table["number"]
            )
    chosen = (fits or CURRENT) if asked == "auto" else "" if asked == "none" else asked
    return {
        "format": chosen,
        "fits": fits,
        "found": found,
        "judged": bool(fits or problems),
        "problems": problems,
    }


def own_source_fixes():
    """The corrections of role training_image."""
    return _load(os.path.join(ROLES, "training_image", "vars", "main.yml"))[
        "__training_image_source_fixes"
    ]


def python_fits(python, ranges):
    """Whether a Python is in ranges such as '3.8-3.11 (3.12 exp)' or '2.7, 3.5-3.8'. Experimental versions count."""
    wanted = version_key(python)[:2]
    for first, last in re.findall(r"(\d\.\d+)(?:-(\d\.\d+))?", ranges):
        if version_key(first) <= wanted <= version_key(last or first):
            return True
    return False


def nearest(release, cuda, versions, count=3):
    """The builds nearest to a release for a CUDA: the same CUDA major first, then the nearest release, then the nearest CUDA."""

    def distance(version):
        build = NcclBuild.parse(version)
        theirs, wanted = version_key(build.release), version_key(release)
        step = [abs(left - right) for left, right in zip(theirs, wanted)]
        major, minor = version_key(build.cuda)
        wanted_major, wanted_minor = (version_key(cuda) + (0,))[:2] if cuda else (major, minor)
        return major != wanted_major, step, abs(minor - wanted_minor)

    exact = {version for version in versions if NcclBuild.parse(version)}
    return sorted(exact, key=lambda version: (distance(version), version))[:count]
