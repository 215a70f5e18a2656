# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible.errors import AnsibleFilterError

from ansible_collections.trainyard.gpu.plugins.module_utils._recipe import (
    REPOSITORY,
    Build,
    RecipeError,
    archive_image,
    base_problems,
    horovod_variables,
    layers_digest,
    recipe_hash,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils import _image_plan
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


def image_plan(probe, base, horovod, requested, vendor=None, facts_file=""):
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
        _image_plan.image_plan(base, horovod, probe, requested, facts(facts_file), source),
        source=source,
        retired=retired,
    )


def image_recipe(recipe):
    parts = dict(recipe)
    archive = parts.pop("base_archive")
    try:
        base = archive_image(archive, parts["base"]) if archive else {"id": "", "layers": []}
    except RecipeError as exc:
        raise AnsibleFilterError(str(exc)) from exc
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


def base_image_problems(probe, python_packages, **build):
    return base_problems(probe, Build(packages=python_packages, **build))


class FilterModule:
    """Filters for role training_image: the recipe of an image, its base and what a build does."""

    def filters(self):
        return {
            "image_plan": image_plan,
            "hosts_behind": _image_plan.hosts_behind,
            "image_problem": _image_plan.image_problem,
            "image_is_everywhere": _image_plan.image_is_everywhere,
            "image_recipe": image_recipe,
            "base_image_problems": base_image_problems,
            "layers_digest": layers_digest,
        }
