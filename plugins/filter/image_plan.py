# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: image_plan
short_description: Plan what an image build does with its base image
version_added: "0.3.0"
description:
  - Keeps the parts of the base image's Horovod, determines the NCCL packages, and lists problems.
options:
  _input:
    description: Output of step C(probe) of the recipe for the base image; empty if nothing is compiled and no NCCL is pinned.
    type: dict
    required: true
  base:
    description: Name of the base image.
    type: str
    required: true
  horovod:
    description: Result of M(trainyard.gpu.horovod_build_info) for it.
    type: dict
    required: true
  requested:
    description: Requests of the inventory - C(requires), C(build_variables), C(cuda_architectures), C(nccl_version), C(compiles), C(has_repositories).
    type: dict
    required: true
  vendor:
    description: Options of filter P(trainyard.gpu.vendor_source#filter) - C(cuda_url), C(keyring_checksum), C(cuda_fingerprint).
    type: dict
    default: {}
  facts_file:
    description: Path on the controller of additional compatibility data in the format of the files in C(plugins/plugin_utils/compat). It has priority over the
      collection's.
    type: str
    default: ""
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Report the pair of NCCL's packages
  ansible.builtin.debug:
    msg: "{{ (probe | trainyard.gpu.image_plan(base=training_image_base, horovod=horovod, requested=requested)).nccl.version }}"
"""

RETURN = r"""
_value:
  description: The plan.
  type: dict
  contains:
    requires:
      description: Required parts of Horovod, including those kept from the base.
      type: dict
    kept:
      description: Kept parts, such as V(controllers.mpi).
      type: list
      elements: str
    variables:
      description: Build variables for Horovod.
      type: dict
    nccl:
      description: C(version) to install, empty for none; C(why); C(vendor), whether NVIDIA's repository serves it.
      type: dict
    source:
      description: NVIDIA's repository for the image's distribution, as returned by filter P(trainyard.gpu.vendor_source#filter).
      type: dict
    retired:
      description: Patterns of retired NVIDIA entries and keys that break apt in an image.
      type: dict
    labels:
      description: Labels of the image that record this.
      type: dict
    report:
      description: Sentences for the operator.
      type: list
      elements: str
    problems:
      description: Problems that prevent the build, one sentence each.
      type: list
      elements: str
"""

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _image_plan
from ansible_collections.trainyard.gpu.plugins.plugin_utils._vendor_source import (
    CUDA_ARCHITECTURES, CUDA_FINGERPRINT, CUDA_PLACE, CUDA_URL, FORMER_PLACE, RETIRED_KEYS, facts, vendor_source,
)


def image_plan(probe, base, horovod, requested, vendor=None, facts_file=""):
    given = vendor or {}
    fingerprint = (given.get("cuda_fingerprint") or CUDA_FINGERPRINT).upper()
    source = {}
    if probe:
        probe = dict(probe, cuda_architecture=CUDA_ARCHITECTURES.get(probe["architecture"], probe["architecture"]))
        source = vendor_source("cuda_ubuntu", {"os": probe["os"], "architecture": probe["architecture"]}, given.get("cuda_url") or CUDA_URL,
                               keyring_checksum=given.get("keyring_checksum") or "", facts_file=facts_file, cuda_fingerprint=fingerprint)
    retired = {"places": [CUDA_PLACE % "[^/]+"], "former_places": [FORMER_PLACE], "fingerprints": [fingerprint], "retired_keys": RETIRED_KEYS}
    return dict(_image_plan.image_plan(base, horovod, probe, requested, facts(facts_file), source), source=source, retired=retired)


class FilterModule:
    def filters(self):
        return {"image_plan": image_plan, "hosts_behind": _image_plan.hosts_behind}
