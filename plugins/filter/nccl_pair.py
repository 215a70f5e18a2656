# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: nccl_pair
short_description: Resolve the version of libnccl2 and libnccl-dev
version_added: "0.2.0"
description:
  - Resolves the request with the compatibility data. If the data does not have the pair, the version is composed from the request, and apt decides.
  - The apt preferences are the same for a host and for an image.
positional: cuda
options:
  _input:
    description: An exact version, V(2.21.5-1+cuda12.4), or a release, V(2.21.5), for a CUDA version. If empty, all results are empty.
    type: str
    required: true
  cuda:
    description: CUDA version for a release, such as V(12.4).
    type: str
    default: ""
  directory:
    description: Directory of NVIDIA's repositories, such as V(ubuntu2204). Empty means any.
    type: str
    default: ""
  architecture:
    description: Machine architecture as C(uname -m) names it.
    type: str
    default: x86_64
  facts_file:
    description: Path on the controller of additional compatibility data in the format of the files in C(plugins/plugin_utils/compat). It has priority over the
      collection's.
    type: str
    default: ""
"""

EXAMPLES = r"""
pair: "{{ '2.21.5' | trainyard.gpu.nccl_pair('12.4') }}"
"""

RETURN = r"""
_value:
  description: The pair.
  type: dict
  contains:
    version:
      description: Exact version of both packages.
      type: str
    known:
      description: Whether the compatibility data has it for the directory and architecture.
      type: bool
    nearest:
      description: Nearest versions, best first.
      type: list
      elements: str
    packages:
      description: Both packages with their version, in apt's notation.
      type: list
      elements: str
    preferences:
      description: Text of an apt preferences file.
      type: str
"""

from ansible.errors import AnsibleFilterError

from ansible_collections.trainyard.gpu.plugins.module_utils._nccl_build import NcclBuild
from ansible_collections.trainyard.gpu.plugins.plugin_utils._quoting import QuoteError, quoted
from ansible_collections.trainyard.gpu.plugins.plugin_utils._vendor_source import CUDA_ARCHITECTURES, facts

NAMES = ("libnccl2", "libnccl-dev")
# Above 1000, so that it overrides an installed newer version and the vendor's pin of 600.
PREFERENCES = """\
Explanation: Managed by trainyard.gpu. libnccl-dev needs the libnccl2 of its very version, and a newer build may need a newer CUDA than the driver runs.
Package: %s
Pin: version %s
Pin-Priority: 1001
"""


def nccl_pair(version, cuda="", directory="", architecture="x86_64", facts_file=""):
    if not version:
        return {"version": "", "known": False, "nearest": [], "packages": [], "preferences": ""}
    found = facts(facts_file).nccl_pair(version, cuda, directory, CUDA_ARCHITECTURES.get(architecture, architecture))
    try:
        exact = quoted(found["version"] or str(NcclBuild(version, 1, ".".join(cuda.split(".")[:2]))), "field")
    except QuoteError as error:
        raise AnsibleFilterError("nccl_pair: %s" % error) from error
    return dict(found, version=exact, packages=["%s=%s" % (name, exact) for name in NAMES], preferences=PREFERENCES % (" ".join(NAMES), exact))


class FilterModule:
    """Filters that resolve NCCL packages."""

    def filters(self):
        return {"nccl_pair": nccl_pair}
