# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a build of the training image does with its base: (found, requested) -> plan. Pure functions.

The recipe hash covers the requests of the inventory. The decisions here follow from these and the base, so the same recipe on the same base gives the same
plan. The plan is recorded in labels of the image and is not part of the hash.
"""

from __future__ import annotations

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

SECTIONS = ("frameworks", "controllers", "tensor_operations")
NCCL_LABEL = "trainyard.nccl"
HOROVOD_LABEL = "trainyard.horovod"


def dropped_by(section, name, build_variables):
    """The build variable with which the user has disabled a part of Horovod, empty if there is none."""
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


def kept_parts(base, horovod, probe, requires, build_variables):
    """Additional parts of the base's Horovod: C(requires) with the kept ones, C(kept), C(left) (notes) and C(problems), sentences.

    A part is kept. It is left out if a build variable disables it, or if the base has lost the framework. It is a problem if it cannot be compiled.
    """
    merged = {section: list(requires.get(section) or []) for section in SECTIONS}
    kept, left, problems = [], [], []
    for section in SECTIONS:
        for name, ticked in horovod.get(section, {}).items():
            if not ticked or name in merged[section]:
                continue
            part = "%s.%s" % (section, name)
            variable = dropped_by(section, name, build_variables)
            way_out = (
                "set a base without it, or disable it: set %s in training_image_build_variables"
                % (
                    'HOROVOD_WITHOUT_%s to "1"' % name.upper()
                    if name in FRAMEWORKS + ("mpi", "gloo")
                    else "HOROVOD_GPU_OPERATIONS to another value"
                )
            )
            if variable:
                left.append(
                    "%s: %s in training_image_build_variables disables it" % (part, variable)
                )
            elif section == "frameworks" and not probe["frameworks"][name]:
                left.append("%s: %s no longer has the framework" % (part, base))
            elif name == "mpi" and not probe["mpi_compiler"]:
                problems.append(
                    "the Horovod of %s has %s, but it cannot be kept: the base has no mpicxx to compile the part for MPI. Add a development "
                    "package of its MPI to the base, or %s" % (base, part, way_out)
                )
            elif name == "nccl" and not probe["versions"]["cuda"]:
                problems.append(
                    "the Horovod of %s has %s, but it cannot be kept: the base has no CUDA compiler (nvcc). Set a base with CUDA's development "
                    "files, or %s" % (base, part, way_out)
                )
            elif name == "ddl" and build_variables.get("HOROVOD_GPU_ALLREDUCE") != "DDL":
                problems.append(
                    "the Horovod of %s has %s, but it cannot be kept: this recipe does not build it by default. Set a base without it, or set "
                    "HOROVOD_GPU_ALLREDUCE to DDL in training_image_build_variables" % (base, part)
                )
            else:
                merged[section].append(name)
                kept.append(part)
    return {"requires": merged, "kept": kept, "left": left, "problems": problems}


def own_nccl(probe):
    """Why the base's NCCL header does not fit its CUDA compiler; empty if it fits, or if only apt's package could show it."""
    build, cuda = (
        NcclBuild.parse(probe["packages"].get("libnccl-dev") or ""),
        probe["versions"]["cuda"] or "",
    )
    if build and cuda and str(build.cuda_major) != cuda.partition(".")[0]:
        return "libnccl-dev %s, which is for another CUDA version than its compiler, %s" % (
            build,
            cuda,
        )
    return ""


def nccl_plan(base, probe, requested, wants_nccl, compat, source):
    """C(version) of libnccl2 and libnccl-dev to install (empty: that of the base), C(vendor), whether NVIDIA's repository is needed, C(why), C(problems).

    C(source) is what vendor_source says for the image's distribution. One is installed without being requested only where NCCL is required, Horovod is
    compiled, and the base has none that fits.
    """
    cuda, directory = probe["versions"]["cuda"], source["directory"]
    system = "%s %s" % (probe["os"]["id"] or "an unknown system", probe["os"]["version_id"])
    plan = {"version": requested["nccl_version"], "vendor": False, "why": "", "problems": []}
    if plan["version"]:
        plan["why"] = "requested by training_image_nccl_version"
    elif wants_nccl and cuda and not requested["build_variables"].get("HOROVOD_NCCL_HOME"):
        lacks = own_nccl(probe) or ("" if probe["nccl_header"] else "no nccl.h")
        if not lacks:
            plan["why"] = "%s has a matching one" % base
            return plan
        plan["version"] = compat.nccl_for_image(
            cuda, directory, probe["cuda_architecture"], probe["packages"].get("libnccl2") or ""
        )
        if not plan["version"]:
            nearest = compat.nccl_pair("2.0.0", cuda)["nearest"]
            plan["problems"].append(
                "training_image_requires.tensor_operations has nccl, but %s has %s, and the compatibility data has no build for CUDA %s in "
                "NVIDIA's directory '%s' (%s): set training_image_nccl_version (for example %s) and training_image_apt_repositories, or HOROVOD_NCCL_HOME in "
                "training_image_build_variables"
                % (
                    base,
                    lacks,
                    cuda,
                    directory,
                    system,
                    nearest[0] if nearest else "2.28.9-1+cuda13.0",
                )
            )
            return plan
        plan["why"] = (
            "determined from CUDA %s (nvcc), %s and the compatibility data, because %s has %s"
            % (cuda, system, base, lacks)
        )
    if not plan["version"]:
        return plan
    there = all(
        probe["packages"].get(name) == plan["version"] for name in ("libnccl2", "libnccl-dev")
    )
    # If the user sets repositories, only these are used, because a closed network has no others.
    plan["vendor"] = not there and not requested["has_repositories"]
    if plan["vendor"] and source["problem"]:
        plan["problems"].append(
            "NCCL %s (%s) cannot be installed on %s from NVIDIA's repository: %s. Set the repository in training_image_apt_repositories"
            % (plan["version"], plan["why"], base, source["problem"])
        )
    elif plan["vendor"] and not directory.startswith(("ubuntu", "debian")):
        plan["problems"].append(
            "NCCL %s (%s) cannot be installed on %s: NVIDIA has no apt repository for %s. Set one in training_image_apt_repositories"
            % (plan["version"], plan["why"], base, system)
        )
    return plan


def hosts_behind(images, head, image):
    """The hosts whose image differs from the head's. C(images) are pairs of a host and what image_info returned of its image, C(image) is that of the head."""
    return [
        host
        for host, found in images
        if host != head and (found["layers"], found["recipe"]) != (image["layers"], image["recipe"])
    ]


def image_problem(image: dict, head_image: dict, recipe: str, name: str, hosts: dict) -> str:
    """Return what is wrong with the image of a host, with what to do, or an empty text.

    C(image) and C(head_image) are what image_info returned of the host and of the head, C(recipe) that of the inventory, C(hosts) their names as C(own) and
    C(head). The recipe and the recorded layers decide which of two images is the wrong one: a host is not at fault because the head's image was replaced.
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
            "the image '%s' was replaced or changed after its build: its layers are not those that its build has recorded"
            % name
        )
    elif own == head or not head_image["intact"] or head_image["recipe"] != recipe:
        return ""
    elif image["layers"] != head_image["layers"]:
        found = "the image '%s' has other layers than that of the head, %s" % (name, head)
    else:
        return ""
    renew = "builds it again" if own == head else "copies it from %s" % head
    return (
        "%s. Run training_environment.yml, which %s. If this message comes from that run: docker image rm --force %s on %s, and run it again"
        % (found, renew, name, own)
    )


def image_is_everywhere(engines: list[dict], name: str, recipe: str) -> bool:
    """Return whether all hosts have the same intact image of this name and recipe.

    C(engines) has what docker_engine_info returned of each host. One that has read no images, or has lost them since, counts as without the image.
    """
    layers = []
    for engine in engines:
        for image in engine.get("images") or []:
            if image["name"] == name and image["intact"] and image["recipe"] == recipe:
                layers.append(image["layers"])
    return len(layers) == len(engines) and all(each == layers[0] for each in layers)


def image_plan(base, horovod, probe, requested, compat, source):
    """The plan of a build on a base.

    C(horovod) is what horovod_build_info has said of it, C(probe) what step C(probe) of the recipe has, empty where nothing is compiled or pinned.
    C(requested): C(requires), C(build_variables), C(cuda_architectures), C(nccl_version), C(compiles), C(has_repositories).
    """
    requires = {section: list(requested["requires"].get(section) or []) for section in SECTIONS}
    plan = {
        "requires": requires,
        "kept": [],
        "problems": [],
        "report": [],
        "nccl": {"version": requested["nccl_version"], "vendor": False, "why": "", "problems": []},
    }
    if requested["compiles"]:
        found = kept_parts(base, horovod, probe, requires, requested["build_variables"])
        plan.update(requires=found["requires"], kept=found["kept"], problems=found["problems"])
        if found["kept"]:
            plan["report"].append(
                "kept from the Horovod of %s: %s" % (base, ", ".join(found["kept"]))
            )
        plan["report"] += ["left out: " + note for note in found["left"]]
        if not horovod["available"] and horovod["cause"] != "not_installed":
            plan["report"].append(
                "the parts of the Horovod of %s are unknown, because it does not print its table (%s): only training_image_requires is built"
                % (base, horovod["cause"])
            )
    if probe:
        plan["nccl"] = nccl_plan(
            base,
            probe,
            requested,
            requested["compiles"] and "nccl" in plan["requires"]["tensor_operations"],
            compat,
            source,
        )
        plan["problems"] = plan["problems"] + plan["nccl"]["problems"]
        if plan["nccl"]["why"]:
            plan["report"].append(
                "NCCL %s: %s" % (plan["nccl"]["version"] or "of the base", plan["nccl"]["why"])
            )
    plan["variables"] = horovod_variables(
        plan["requires"], requested["cuda_architectures"], requested["build_variables"]
    )
    plan["labels"] = {
        HOROVOD_LABEL: " ".join(
            "%s.%s" % (section, name) for section in SECTIONS for name in plan["requires"][section]
        )
    }
    if plan["nccl"]["version"]:
        plan["labels"][NCCL_LABEL] = plan["nccl"]["version"]
    return plan


def decide_image_plan(
    probe: dict,
    base: str,
    horovod: dict,
    requested: dict,
    vendor: dict | None = None,
    facts_file: str = "",
) -> dict:
    """As image_plan, with C(source), NVIDIA's repository for the image, and C(retired), what a build removes of its former ones.

    C(probe) is empty if no build has to be planned. C(vendor) has C(cuda_url), C(keyring_checksum) and C(cuda_fingerprint) of the inventory, where it sets
    them.
    """
    given = vendor or {}
    fingerprint = (given.get("cuda_fingerprint") or CUDA_FINGERPRINT).upper()
    source = {}
    if probe:
        probe = dict(
            probe,
            cuda_architecture=CUDA_ARCHITECTURES.get(probe["architecture"], probe["architecture"]),
        )
        source = vendor_source(
            "cuda_ubuntu",
            {"os": probe["os"], "architecture": probe["architecture"]},
            given.get("cuda_url") or CUDA_URL,
            keyring_checksum=given.get("keyring_checksum") or "",
            facts_file=facts_file,
            cuda_fingerprint=fingerprint,
        )
    retired = {
        "places": [CUDA_PLACE % "[^/]+"],
        "former_places": [FORMER_PLACE],
        "fingerprints": [fingerprint],
        "retired_keys": RETIRED_KEYS,
    }
    return dict(
        image_plan(base, horovod, probe, requested, facts(facts_file), source),
        source=source,
        retired=retired,
    )


def image_recipe(recipe: dict) -> dict:
    """Return the C(hash) of all that determines an image, its C(name), the C(variables) of Horovod's build and C(base_layers), known of an archive only.

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


def base_image_problems(probe: dict, python_packages: list, **build) -> list[str]:
    """As base_problems. C(build) has the other fields of Build."""
    return base_problems(probe, Build(packages=python_packages, **build))
