# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The content of the training image and its identification. Pure functions: data in, data out."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from typing import Any, Iterable, NamedTuple, Sequence, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._nccl_build import NcclBuild

RECIPE_LABEL = "trainyard.recipe"
LAYERS_LABEL = "trainyard.layers"
REPOSITORY = "trainyard/training"

FRAMEWORKS = ("tensorflow", "pytorch", "mxnet")
# The first version that Horovod's published source does not support; no fix of the source is known.
NO_TENSORFLOW_FROM = (2, 16)
# Python distributions of the frameworks.
DISTRIBUTIONS = {
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "nvidia-tensorflow"),
    "pytorch": ("torch",),
    "mxnet": ("mxnet",),
}


class RecipeError(ValueError):
    """The recipe cannot be computed; the message names the variable."""


class Archived(TypedDict):
    """Identity of an image in an archive. C(layers) are the digests of its layers."""

    id: str
    layers: list[str]


class Image(TypedDict):
    """An image in the results of modules.

    C(recipe) is empty if it was not built by role training_image, C(intact) tells whether its
    layers are those built.
    """

    name: str
    present: bool
    id: str
    recipe: str
    intact: bool
    labels: dict[str, str]
    layers: list[str]
    environment: list[str]
    size_mib: int


def digest(value: Any) -> str:
    """sha256 of data, independent of the order of its keys."""
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, separators=(",", ":")).encode("utf-8")
    ).hexdigest()


def layers_digest(layers: Iterable[str]) -> str:
    """Value of label C(trainyard.layers) for an image with these layers."""
    return digest(list(layers))


def horovod_variables(
    requires: dict[str, list[str]],
    architectures: Sequence[int | str],
    overrides: dict[str, Any] | None,
) -> dict[str, str]:
    """HOROVOD_* variables for the build.

    Required parts must be built or the build fails. Other parts are left out if that saves time.

    C(overrides) come last; a value of None takes a variable away.
    """
    sections = ("frameworks", "controllers", "tensor_operations")
    parts = {section: requires.get(section) or [] for section in sections}
    variables: dict[str, Any] = {}
    for name in FRAMEWORKS:
        state = "WITH" if name in parts["frameworks"] else "WITHOUT"
        variables["HOROVOD_%s_%s" % (state, name.upper())] = "1"
    transports = parts["controllers"] + parts["tensor_operations"]
    variables["HOROVOD_WITH_MPI" if "mpi" in transports else "HOROVOD_WITHOUT_MPI"] = "1"
    if "gloo" in transports:
        # Not left out otherwise, because horovodrun needs it without mpirun.
        variables["HOROVOD_WITH_GLOO"] = "1"
    if "ccl" in transports:
        variables["HOROVOD_CPU_OPERATIONS"] = "CCL"
    if "nccl" in transports:
        # Shared, so that the pinned NCCL is used; a static one crashes with a shared CUDA runtime
        # before Horovod 0.28.
        variables.update(
            HOROVOD_GPU="CUDA", HOROVOD_GPU_OPERATIONS="NCCL", HOROVOD_NCCL_LINK="SHARED"
        )
    if architectures:
        # If the framework has CUDA, Horovod compiles kernels for any transport.
        variables["HOROVOD_BUILD_CUDA_CC_LIST"] = ",".join(str(each) for each in architectures)
    variables.update(overrides or {})
    return {name: str(value) for name, value in variables.items() if value is not None}


def recipe_hash(parts: Any) -> str:
    """Hash over everything that determines the content of the image, and nothing else: no mirror,
    CA, proxy or fact of a host.
    """
    return digest(parts)


def archive_image(path: str, name: str) -> Archived:
    """Identity of an image in an archive of C(docker save). The archive is not unpacked."""
    requested = name if ":" in name.rpartition("/")[2] else name + ":latest"
    try:
        with tarfile.open(path) as archive:
            images = json.loads(_member(archive, "manifest.json"))
            for image in images:
                if requested in (image.get("RepoTags") or []):
                    config = _member(archive, image["Config"])
                    return {
                        "id": "sha256:" + hashlib.sha256(config).hexdigest(),
                        "layers": json.loads(config.decode("utf-8"))["rootfs"]["diff_ids"],
                    }
    except (OSError, KeyError, ValueError, tarfile.TarError) as exc:
        raise RecipeError(
            "training_image_base_archive: '%s' cannot be read as an archive of docker save: %s"
            % (path, exc)
        ) from exc
    there = sorted(tag for image in images for tag in image.get("RepoTags") or [])
    raise RecipeError(
        "training_image_base_archive: '%s' has no image named '%s' (training_image_base). It "
        "has: %s. Set one of these, or "
        "save it under that name" % (path, requested, ", ".join(there) or "none with a name")
    )


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    """The content of a file in an archive. KeyError if there is none, ValueError if it is a
    folder.
    """
    stream = archive.extractfile(name)
    if stream is None:
        raise ValueError("%s is no file" % name)
    return stream.read()


def _package_names(packages: Iterable[str]) -> set[str]:
    names = set()
    for package in packages:
        name = package
        for separator in "=<>!~[;@ ":
            name = name.partition(separator)[0]
        names.add(name.lower().replace("_", "-"))
    return names


def _pinned_version(packages: Iterable[str], names: Iterable[str]) -> str:
    """The exact version of one of these distributions in requirements of pip, empty if none has
    one. A requirement with a marker does not count, because it may not apply.
    """
    for package in packages:
        name, equals, version = package.partition("==")
        if equals and ";" not in version and _package_names([name]) & set(names):
            return version.strip()
    return ""


class Build(NamedTuple):
    """What the variables of role training_image say about the build of Horovod.

    C(requires) are its required parts by section, C(variables) those of its build, C(packages) what
    pip installs and C(apt_packages) what apt does.
    """

    base: str
    requires: dict[str, list[str]]
    variables: dict[str, Any]
    packages: list[str]
    apt_packages: list[str]
    nccl_version: str


def _framework_problems(probe: dict[str, Any], build: Build) -> list[str]:
    """Return the required frameworks that neither the base nor the packages have, and those that do
    not work with Horovod.
    """
    problems = []
    required = build.requires.get("frameworks") or []
    python_packages = _package_names(build.packages)
    for name in required:
        if not probe["frameworks"][name] and not python_packages & set(DISTRIBUTIONS[name]):
            problems.append(
                "training_image_requires.frameworks has %s, but %s does not have it: add it to "
                "training_image_python_packages with its version "
                "(%s==...), or set a base that has it" % (name, build.base, DISTRIBUTIONS[name][0])
            )
    # pip replaces the base's.
    pinned = _pinned_version(build.packages, DISTRIBUTIONS["tensorflow"])
    tensorflow = pinned or probe["versions"]["tensorflow"] or "0"
    place = "training_image_python_packages" if pinned else build.base
    release = tuple(int(part) for part in re.findall(r"\d+", tensorflow)[:2])
    if "tensorflow" in required and release >= NO_TENSORFLOW_FROM:
        problems.append(
            "training_image_requires.frameworks has tensorflow, but with TensorFlow %s (Keras "
            "3) in %s the published Horovod fails at run time "
            "(horovod #4040, #4290): use TensorFlow 2.15 or older, or a base with its own Horovod "
            "(NGC's through 25.02)" % (tensorflow, place)
        )
    return problems


def _uses_cpu_build(probe: dict[str, Any], build: Build) -> bool:
    """Return whether PyTorch of the base is required and has no CUDA."""
    if not probe["frameworks"]["pytorch"] or probe["torch_cuda"]:
        return False
    required = build.requires.get("frameworks") or []
    return "pytorch" in required and "torch" not in _package_names(build.packages)


def _nccl_problem(probe: dict[str, Any], build: Build) -> str:
    """Return why Horovod cannot be compiled with NCCL as required, empty if it can."""
    why = "training_image_requires.tensor_operations has nccl, "
    if not probe["versions"]["cuda"]:
        return (
            why
            + "which needs Horovod compiled with CUDA, but %s has no CUDA compiler (nvcc): set a "
            "base with CUDA's development files, or "
            "remove nccl" % build.base
        )
    if _uses_cpu_build(probe, build):
        return why + (
            "but PyTorch %s in %s is a CPU build: set a base whose PyTorch has CUDA, or remove nccl"
        ) % (probe["versions"]["torch"], build.base)
    if not probe["nccl_header"] and not build.nccl_version:
        return (
            why + "but %s has no nccl.h: set training_image_nccl_version (for example "
            "2.28.9-1+cuda13.0) and training_image_apt_repositories, "
            "or HOROVOD_NCCL_HOME in training_image_build_variables" % build.base
        )
    return ""


def base_problems(probe: dict[str, Any], build: Build) -> list[str]:
    """Why Horovod cannot be compiled on this base as required: one sentence each, empty if it can.

    C(probe) is what step C(probe) of the recipe says of the base.
    """
    problems = _framework_problems(probe, build)
    operations = build.requires.get("tensor_operations") or []
    nccl = _nccl_problem(probe, build) if "nccl" in operations else ""
    problems += [nccl] if nccl else []
    if "ddl" in operations and build.variables.get("HOROVOD_GPU_ALLREDUCE") != "DDL":
        problems.append(
            "training_image_requires.tensor_operations has ddl, which this recipe does not "
            "build by default: set a base whose Horovod has it, "
            "or set HOROVOD_GPU_ALLREDUCE to DDL in training_image_build_variables"
        )
    cuda, pair = probe["versions"]["cuda"], NcclBuild.parse(build.nccl_version)
    if pair and cuda and str(pair.cuda_major) != cuda.partition(".")[0]:
        problems.append(
            (
                "training_image_nccl_version: '%s' is for CUDA %s, but %s has CUDA %s: set a build "
                "for that CUDA"
            )
            % (build.nccl_version, pair.cuda_major, build.base, cuda)
        )
    if not probe["apt"] and (build.nccl_version or build.apt_packages):
        problems.append(
            "%s has no apt-get, so neither training_image_nccl_version nor "
            "training_image_apt_packages can be installed: "
            "set a base of Debian or Ubuntu" % build.base
        )
    return problems


def describe_image(name: str, found: dict[str, Any] | None) -> Image:
    """The entry of one image in the results of modules.

    C(found) is the output of docker inspect, None if there is no such image.
    """
    found = found or {}
    config = found.get("Config") or {}
    labels = config.get("Labels") or {}
    layers = (found.get("RootFS") or {}).get("Layers") or []
    return {
        "name": name,
        "present": bool(found),
        "id": found.get("Id", ""),
        "recipe": labels.get(RECIPE_LABEL, ""),
        "intact": bool(layers) and labels.get(LAYERS_LABEL) == layers_digest(layers),
        "labels": labels,
        "layers": layers,
        "environment": config.get("Env") or [],
        "size_mib": found.get("Size", 0) // (1024 * 1024),
    }
