# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a build of the training image does with its base: (found, requested) -> plan.

Pure functions.

The recipe hash covers the requests of the inventory. The decisions here follow from these and the
base, so the same recipe on the same base gives the same plan. The plan is recorded in labels of the
image and is not part of the hash.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._nccl_build import NcclBuild
from ansible_collections.trainyard.gpu.plugins.module_utils._recipe import (
    FRAMEWORKS,
    REPOSITORY,
    Build,
    archive_image,
    base_problems,
    horovod_variables,
    recipe_hash,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils._vendor_source import (
    CUDA_ARCHITECTURES,
    CUDA_FINGERPRINT,
    CUDA_PLACE,
    CUDA_URL,
    FORMER_PLACE,
    RETIRED_KEYS,
    facts,
    vendor_source,
)

if TYPE_CHECKING:
    from ansible_collections.trainyard.gpu.plugins.plugin_utils._compat import Compatibility

SECTIONS = ("frameworks", "controllers", "tensor_operations")
NCCL_LABEL = "trainyard.nccl"
HOROVOD_LABEL = "trainyard.horovod"


class Requested(TypedDict):
    """What the variables of role training_image request."""

    #: Parts of Horovod by section.
    requires: dict[str, list[str]]
    #: Variables of Horovod's build.
    build_variables: dict[str, Any]
    cuda_architectures: list[str]
    #: Empty without a request.
    nccl_version: str
    #: Whether Horovod is compiled.
    compiles: bool
    #: Whether the site has repositories of its own for apt.
    has_repositories: bool


class Parts(TypedDict):
    """The parts of Horovod that a build has."""

    #: All of them, by section.
    requires: dict[str, list[str]]
    #: Those that are kept of the base, such as frameworks.pytorch.
    kept: list[str]
    #: Sentences about those that are left out, and about those that cannot be compiled.
    left: list[str]
    problems: list[str]


class NcclPlan(TypedDict):
    """What becomes of NCCL."""

    #: Of libnccl2 and libnccl-dev, to install; empty if the base's is used.
    version: str
    #: Whether it comes from NVIDIA's repository.
    vendor: bool
    why: str
    problems: list[str]


class Plan(TypedDict):
    """What a build does with its base."""

    requires: dict[str, list[str]]
    kept: list[str]
    problems: list[str]
    #: Sentences for the reader.
    report: list[str]
    nccl: NcclPlan
    #: Environment of Horovod's build.
    variables: dict[str, str]
    #: Labels of the image.
    labels: dict[str, str]


def dropped_by(section: str, name: str, build_variables: dict[str, Any]) -> str:
    """Return the build variable with which the user has disabled a part of Horovod, empty if there
    is none.
    """
    if section == "frameworks" or name in ("mpi", "gloo"):
        variable = "HOROVOD_WITHOUT_" + name.upper()
        # Horovod's build compares with 1 and ignores every other value.
        return variable if str(build_variables.get(variable)) == "1" else ""
    variable, value = {
        "nccl": ("HOROVOD_GPU_OPERATIONS", "NCCL"),
        "ccl": ("HOROVOD_CPU_OPERATIONS", "CCL"),
        "ddl": ("HOROVOD_GPU_ALLREDUCE", "DDL"),
    }[name]
    return variable if variable in build_variables and build_variables[variable] != value else ""


def _why_left_out(
    base: str, section: str, name: str, probe: dict[str, Any], build_variables: dict[str, Any]
) -> str:
    """Return why a part of the base's Horovod is left out; empty if it is not."""
    variable = dropped_by(section, name, build_variables)
    if variable:
        return "%s.%s: %s in training_image_build_variables disables it" % (section, name, variable)
    if section == "frameworks" and not probe["frameworks"][name]:
        return "%s.%s: %s no longer has the framework" % (section, name, base)
    return ""


def _why_not_compiled(
    base: str, section: str, name: str, probe: dict[str, Any], build_variables: dict[str, Any]
) -> str:
    """Return why a part of the base's Horovod cannot be compiled, and what to do; empty if
    it can.
    """
    disable = "HOROVOD_GPU_OPERATIONS to another value"
    if name in FRAMEWORKS + ("mpi", "gloo"):
        disable = 'HOROVOD_WITHOUT_%s to "1"' % name.upper()
    way_out = (
        "set a base without it, or disable it: set %s in training_image_build_variables" % disable
    )
    why = ""
    if name == "mpi" and not probe["mpi_compiler"]:
        why = (
            "the base has no mpicxx to compile the part for MPI. Add a development package of "
            "its MPI to the base, or "
        ) + way_out
    elif name == "nccl" and not probe["versions"]["cuda"]:
        why = (
            "the base has no CUDA compiler (nvcc). Set a base with CUDA's development files, or "
            + way_out
        )
    elif name == "ddl" and build_variables.get("HOROVOD_GPU_ALLREDUCE") != "DDL":
        why = (
            "this recipe does not build it by default. Set a base without it, or set "
            "HOROVOD_GPU_ALLREDUCE to DDL in "
            "training_image_build_variables"
        )
    if not why:
        return ""
    return "the Horovod of %s has %s.%s, but it cannot be kept: %s" % (base, section, name, why)


def kept_parts(
    base: str,
    horovod: dict[str, Any],
    probe: dict[str, Any],
    requires: dict[str, list[str]],
    build_variables: dict[str, Any],
) -> Parts:
    """Return the parts that are required or that the base's Horovod has.

    A part is kept. It is left out if a build variable disables it, or if the base has lost the
    framework. It is a problem if it cannot be compiled.
    """
    merged = {section: list(requires.get(section) or []) for section in SECTIONS}
    kept, left, problems = [], [], []
    of_base = [
        (section, name)
        for section in SECTIONS
        for name, ticked in horovod.get(section, {}).items()
        if ticked and name not in merged[section]
    ]
    for section, name in of_base:
        left_out = _why_left_out(base, section, name, probe, build_variables)
        if left_out:
            left.append(left_out)
            continue
        problem = _why_not_compiled(base, section, name, probe, build_variables)
        if problem:
            problems.append(problem)
        else:
            merged[section].append(name)
            kept.append("%s.%s" % (section, name))
    return {"requires": merged, "kept": kept, "left": left, "problems": problems}


def own_nccl(probe: dict[str, Any]) -> str:
    """Return why the base's NCCL header does not fit its CUDA compiler; empty if it fits, or if
    only apt's package could show it.
    """
    build = NcclBuild.parse(probe["packages"].get("libnccl-dev") or "")
    cuda = probe["versions"]["cuda"] or ""
    if build and cuda and str(build.cuda_major) != cuda.partition(".")[0]:
        return "libnccl-dev %s, which is for another CUDA version than its compiler, %s" % (
            build,
            cuda,
        )
    return ""


def _system(probe: dict[str, Any]) -> str:
    return "%s %s" % (probe["os"]["id"] or "an unknown system", probe["os"]["version_id"])


def _nccl_for_base(
    base: str, probe: dict[str, Any], compat: Compatibility, directory: str
) -> NcclPlan:
    """Return the NCCL that a base needs, for a build with NCCL without a requested version."""
    plan: NcclPlan = {"version": "", "vendor": False, "why": "", "problems": []}
    lacks = own_nccl(probe) or ("" if probe["nccl_header"] else "no nccl.h")
    if not lacks:
        plan["why"] = "%s has a matching one" % base
        return plan
    cuda, system = probe["versions"]["cuda"], _system(probe)
    plan["version"] = compat.nccl_for_image(
        cuda, directory, probe["cuda_architecture"], probe["packages"].get("libnccl2") or ""
    )
    if plan["version"]:
        plan["why"] = (
            "determined from CUDA %s (nvcc), %s and the compatibility data, because %s has %s"
            % (cuda, system, base, lacks)
        )
        return plan
    nearest = compat.nccl_pair("2.0.0", cuda)["nearest"]
    plan["problems"].append(
        "training_image_requires.tensor_operations has nccl, but %s has %s, and the "
        "compatibility data has no build for CUDA %s in "
        "NVIDIA's directory '%s' (%s): set training_image_nccl_version (for example %s) and "
        "training_image_apt_repositories, or HOROVOD_NCCL_HOME in "
        "training_image_build_variables"
        % (base, lacks, cuda, directory, system, nearest[0] if nearest else "2.28.9-1+cuda13.0")
    )
    return plan


def _repository_problems(
    base: str, probe: dict[str, Any], plan: NcclPlan, source: Mapping[str, Any]
) -> list[str]:
    """Return why NVIDIA's repository does not have the NCCL of the plan."""
    if source["problem"]:
        return [
            (
                "NCCL %s (%s) cannot be installed on %s from NVIDIA's repository: %s. Set the "
                "repository in training_image_apt_repositories"
            )
            % (plan["version"], plan["why"], base, source["problem"])
        ]
    if not source["directory"].startswith(("ubuntu", "debian")):
        return [
            (
                "NCCL %s (%s) cannot be installed on %s: NVIDIA has no apt repository for %s. Set "
                "one in training_image_apt_repositories"
            )
            % (plan["version"], plan["why"], base, _system(probe))
        ]
    return []


def nccl_plan(
    base: str,
    probe: dict[str, Any],
    requested: Requested,
    wants_nccl: bool,
    compat: Compatibility,
    source: Mapping[str, Any],
) -> NcclPlan:
    """Return what becomes of NCCL.

    C(source) is what vendor_source returns for the image's distribution. One is installed without
    being requested only where NCCL is required, Horovod is compiled (C(wants_nccl)), and the base
    has none that fits.
    """
    version = requested["nccl_version"]
    plan: NcclPlan = {"version": version, "vendor": False, "why": "", "problems": []}
    if version:
        plan["why"] = "requested by training_image_nccl_version"
    elif wants_nccl and probe["versions"]["cuda"]:
        if not requested["build_variables"].get("HOROVOD_NCCL_HOME"):
            plan = _nccl_for_base(base, probe, compat, source["directory"])
    if not plan["version"]:
        return plan
    is_there = all(
        probe["packages"].get(name) == plan["version"] for name in ("libnccl2", "libnccl-dev")
    )
    # If the user sets repositories, only these are used, because a closed network has no others.
    plan["vendor"] = not is_there and not requested["has_repositories"]
    if plan["vendor"]:
        plan["problems"] += _repository_problems(base, probe, plan, source)
    return plan


def hosts_behind(
    images: list[tuple[str, dict[str, Any]]], head: str, image: dict[str, Any]
) -> list[str]:
    """Return the hosts whose image differs from the head's.

    C(images) are pairs of a host and what image_info returned of its image, C(image) is that of the
    head.
    """
    return [
        host
        for host, found in images
        if host != head and (found["layers"], found["recipe"]) != (image["layers"], image["recipe"])
    ]


def image_problem(
    image: dict[str, Any], head_image: dict[str, Any], recipe: str, name: str, hosts: dict[str, str]
) -> str:
    """Return what is wrong with the image of a host, with what to do, or an empty text.

    C(image) and C(head_image) are what image_info returned of the host and of the head, C(recipe)
    that of the inventory, C(hosts) their names as C(own) and C(head). The recipe and the recorded
    layers decide which of two images is the wrong one: a host is not at fault because the head's
    image was replaced.
    """
    own, head = hosts["own"], hosts["head"]
    if not image["present"]:
        found = "the image '%s' does not exist" % name
    elif image["recipe"] != recipe:
        found = "the image '%s' is of another recipe (%s) than the inventory's (%s)" % (
            name,
            image["recipe"][:12] or "none",
            recipe[:12],
        )
    elif not image["intact"]:
        found = (
            "the image '%s' was replaced or changed after its build: its layers are not those "
            "that its build has recorded"
        ) % name
    elif own == head or not head_image["intact"] or head_image["recipe"] != recipe:
        return ""
    elif image["layers"] != head_image["layers"]:
        found = "the image '%s' has other layers than that of the head, %s" % (name, head)
    else:
        return ""
    renew = "builds it again" if own == head else "copies it from %s" % head
    return (
        "%s. Run training_environment.yml, which %s. If this message comes from that run: "
        "docker image rm --force %s on %s, and run it again"
    ) % (found, renew, name, own)


def image_is_everywhere(engines: list[dict[str, Any]], name: str, recipe: str) -> bool:
    """Return whether all hosts have the same intact image of this name and recipe.

    C(engines) has what docker_engine_info returned of each host. One that has read no images, or
    has lost them since, counts as without the image.
    """
    layers = []
    for engine in engines:
        for image in engine.get("images") or []:
            if image["name"] == name and image["intact"] and image["recipe"] == recipe:
                layers.append(image["layers"])
    return len(layers) == len(engines) and all(each == layers[0] for each in layers)


def _report_on_parts(base: str, horovod: dict[str, Any], parts: Parts) -> list[str]:
    """Return what a build does with the Horovod of its base, in sentences."""
    report = []
    if parts["kept"]:
        report.append("kept from the Horovod of %s: %s" % (base, ", ".join(parts["kept"])))
    report += ["left out: " + note for note in parts["left"]]
    if not horovod["available"] and horovod["cause"] != "not_installed":
        report.append(
            (
                "the parts of the Horovod of %s are unknown, because it does not print its table "
                "(%s): only training_image_requires is built"
            )
            % (base, horovod["cause"])
        )
    return report


def _labels(requires: dict[str, list[str]], nccl_version: str) -> dict[str, str]:
    parts = ["%s.%s" % (section, name) for section in SECTIONS for name in requires[section]]
    labels = {HOROVOD_LABEL: " ".join(parts)}
    if nccl_version:
        labels[NCCL_LABEL] = nccl_version
    return labels


def image_plan(
    base: str,
    horovod: dict[str, Any],
    probe: dict[str, Any],
    requested: Requested,
    compat: Compatibility,
    source: Mapping[str, Any],
) -> Plan:
    """Return the plan of a build on a base.

    C(horovod) is what horovod_build_info returned of it. C(probe) is what step C(probe) of the
    recipe returned, empty where nothing is compiled or pinned. C(source) is NVIDIA's repository for
    the base, as vendor_source returns it.
    """
    requires = {section: list(requested["requires"].get(section) or []) for section in SECTIONS}
    parts: Parts = {"requires": requires, "kept": [], "left": [], "problems": []}
    report = []
    if requested["compiles"]:
        parts = kept_parts(base, horovod, probe, requires, requested["build_variables"])
        report = _report_on_parts(base, horovod, parts)
    requires = parts["requires"]
    nccl: NcclPlan = {
        "version": requested["nccl_version"],
        "vendor": False,
        "why": "",
        "problems": [],
    }
    if probe:
        wants_nccl = requested["compiles"] and "nccl" in requires["tensor_operations"]
        nccl = nccl_plan(base, probe, requested, wants_nccl, compat, source)
    if nccl["why"]:
        report.append("NCCL %s: %s" % (nccl["version"] or "of the base", nccl["why"]))
    return {
        "requires": requires,
        "kept": parts["kept"],
        "problems": parts["problems"] + nccl["problems"],
        "report": report,
        "nccl": nccl,
        "variables": horovod_variables(
            requires, requested["cuda_architectures"], requested["build_variables"]
        ),
        "labels": _labels(requires, nccl["version"]),
    }


class RetiredSources(TypedDict):
    """NVIDIA's former repositories, which a build removes from its base."""

    #: Patterns of their addresses.
    places: list[str]
    former_places: list[str]
    #: Of keys.
    fingerprints: list[str]
    retired_keys: list[str]


class PlanWithSource(Plan):
    """The plan of an image, with NVIDIA's repository from the compatibility data."""

    #: NVIDIA's repository for the image, empty if no build has to be planned.
    source: Mapping[str, Any]
    retired: RetiredSources


class FoundBase(TypedDict):
    """What was read of the base: C(horovod), the result of M(trainyard.gpu.horovod_build_info), and
    C(probe), that of step C(probe) of the recipe, empty if no build has to be planned.
    """

    horovod: dict[str, Any]
    probe: dict[str, Any]


class Request(Requested):
    """The request with the name of the C(base), and C(vendor), C(cuda_url), C(keyring_checksum) and
    C(cuda_fingerprint) of the inventory, empty where it does not set them. C(facts_file) is the
    path of the site's compatibility data, empty for none.
    """

    base: str
    vendor: dict[str, str]
    facts_file: str


def decide_image_plan(found: FoundBase, requested: Request) -> PlanWithSource:
    """Return what is built on a base, with the compatibility data of the collection and of a file
    of the site.

    Returns PlanWithSource, which explains each key; C(problems) are sentences.
    """
    given, facts_file = requested["vendor"], requested["facts_file"]
    fingerprint = (given.get("cuda_fingerprint") or CUDA_FINGERPRINT).upper()
    source: Mapping[str, Any] = {}
    probe = found["probe"]
    if probe:
        machine = probe["architecture"]
        probe = dict(probe, cuda_architecture=CUDA_ARCHITECTURES.get(machine, machine))
        source = vendor_source(
            "cuda_ubuntu",
            {"os": probe["os"], "architecture": machine},
            {
                "cuda_url": given.get("cuda_url") or CUDA_URL,
                "keyring_checksum": given.get("keyring_checksum") or "",
                "facts_file": facts_file,
                "cuda_fingerprint": fingerprint,
            },
        )
    return {
        **image_plan(
            requested["base"], found["horovod"], probe, requested, facts(facts_file), source
        ),
        "source": source,
        "retired": {
            "places": [CUDA_PLACE % "[^/]+"],
            "former_places": [FORMER_PLACE],
            "fingerprints": [fingerprint],
            "retired_keys": RETIRED_KEYS,
        },
    }


class Recipe(TypedDict):
    """What determines an image."""

    hash: str
    name: str
    #: Environment of Horovod's build.
    variables: dict[str, str]
    #: Layers of the base, which are known of an archive only.
    base_layers: list[str]


def image_recipe(recipe: dict[str, Any]) -> Recipe:
    """Return what determines an image, from the variables of the role without their prefix.

    Raises RecipeError for an archive C(base_archive) that does not have the base.
    """
    parts = dict(recipe)
    archive = parts.pop("base_archive")
    base = archive_image(archive, parts["base"]) if archive else {"id": "", "layers": []}
    variables = horovod_variables(
        parts["requires"], parts.pop("cuda_architectures"), parts.pop("build_variables")
    )
    digest = recipe_hash(dict(parts, base_id=base["id"], variables=variables))
    return {
        "hash": digest,
        "name": "%s:%s" % (REPOSITORY, digest[:12]),
        "variables": variables,
        "base_layers": base["layers"],
    }


def base_image_problems(probe: dict[str, Any], requested: Mapping[str, Any]) -> list[str]:
    """Return why nothing can be built on a base, one sentence each.

    C(probe) is the result of step C(probe) of the recipe, and C(requested) has the fields of Build
    by name. Raises TypeError for an unknown or a missing field.
    """
    problems: list[str] = base_problems(probe, Build(**requested))
    return problems
