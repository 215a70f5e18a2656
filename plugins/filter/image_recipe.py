# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: image_recipe
short_description: Compute an image recipe's hash, name and build variables
version_added: "0.1.0"
description:
  - The hash covers everything that determines the content of the image, and nothing else. It does not cover mirrors, certificates, proxies and facts of hosts.
  - Two sites with the same recipe have the same hash, and an image is built only if no image of its hash exists.
options:
  _input:
    description: The recipe from the variables and files of role P(trainyard.gpu.training_image#role).
    type: dict
    required: true
    suboptions:
      base:
        description: Name of the base image.
        type: str
      base_archive:
        description: Path on the controller of an archive with the base image. Empty means none. The identity of its image is part of the hash.
        type: str
      requires:
        description: Required parts of Horovod, in lists C(frameworks), C(controllers), C(tensor_operations).
        type: dict
      cuda_architectures:
        description: Compute capabilities for which Horovod's CUDA kernels are compiled.
        type: list
        elements: str
      build_variables:
        description: Additional build variables, which override those derived from C(requires).
        type: dict
      files:
        description: Text of every file of the recipe that is part of the image or used to build it.
        type: dict
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Report the name of the image
  ansible.builtin.debug:
    msg: "{{ (recipe | trainyard.gpu.image_recipe).name }}"
"""

RETURN = r"""
_value:
  description: The computed values.
  type: dict
  contains:
    hash:
      description: The recipe hash, 64 hexadecimal digits.
      type: str
    name:
      description: Name of the image, C(trainyard/training:) with the first 12 digits of the hash.
      type: str
    variables:
      description: Build variables for Horovod.
      type: dict
    base_layers:
      description: Layers of the base in C(base_archive); empty without an archive.
      type: list
      elements: str
"""

from ansible.errors import AnsibleFilterError
from ansible_collections.trainyard.gpu.plugins.module_utils._recipe import REPOSITORY, RecipeError, archive_image, horovod_variables, recipe_hash


def image_recipe(recipe):
    parts = dict(recipe)
    archive = parts.pop("base_archive")
    try:
        base = archive_image(archive, parts["base"]) if archive else {"id": "", "layers": []}
    except RecipeError as exc:
        raise AnsibleFilterError(str(exc)) from exc
    variables = horovod_variables(parts["requires"], parts.pop("cuda_architectures"), parts.pop("build_variables"))
    digest = recipe_hash(dict(parts, base_id=base["id"], variables=variables))
    return {"hash": digest, "name": "%s:%s" % (REPOSITORY, digest[:12]), "variables": variables, "base_layers": base["layers"]}


class FilterModule:
    def filters(self):
        return {"image_recipe": image_recipe}
