# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: nccl_build
short_description: Split the version of an NCCL build
version_added: "0.4.0"
author:
  - trainyard maintainers (@trainyard)
description:
  - Splits a version of NVIDIA's NCCL packages into its parts. A release alone has no revision and
    no CUDA.
  - For other text the parts are empty.
options:
  _input:
    description: A version such as V(2.21.5-1+cuda12.4), or a release such as V(2.21.5).
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Report the CUDA of a build
  ansible.builtin.debug:
    msg: "{{ ('2.21.5-1+cuda12.4' | trainyard.gpu.nccl_build).cuda }}"
"""

RETURN = r"""
_value:
  description: The parts.
  type: dict
  contains:
    release:
      description: Release of NCCL, V(2.21.5).
      type: str
    revision:
      description: Revision of the package, V(1); 0 if the text is not a build.
      type: int
    cuda:
      description: CUDA version of the build, V(12.4).
      type: str
    cuda_major:
      description: CUDA major version, V(12); 0 if the text is not a build.
      type: int
"""

from ansible_collections.trainyard.gpu.plugins.module_utils._nccl_build import NcclBuild


def nccl_build(text):
    build = NcclBuild.parse(str(text))
    if build:
        return dict(build._asdict(), cuda_major=build.cuda_major)
    return {
        "release": str(text) if NcclBuild.is_release(str(text)) else "",
        "revision": 0,
        "cuda": "",
        "cuda_major": 0,
    }


class FilterModule:
    """Filters that parse NCCL versions."""

    def filters(self):
        return {"nccl_build": nccl_build}
