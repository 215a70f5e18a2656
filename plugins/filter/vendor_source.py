# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: vendor_source
short_description: Look up NVIDIA's apt repository for a host and its key
version_added: "0.2.0"
description:
  - Returns the repository for a system, with the options of M(trainyard.gpu.vendor_source).
  - The checksums of the keyring packages are part of the compatibility data.
positional: host
options:
  _input:
    description:
      - V(cuda) is the CUDA repository for the system. V(cuda_ubuntu) is the one with NCCL, which for Debian is that of the newest Ubuntu whose C library is not
        newer. V(container_toolkit) is that of the container toolkit.
    type: str
    choices: [cuda, cuda_ubuntu, container_toolkit]
    required: true
  host:
    description: C(cluster_host) of role C(trainyard.gpu.cluster), for its C(os) and C(architecture).
    type: dict
    required: true
  cuda_url:
    description: URL of the folder of CUDA's repositories, or of a mirror.
    type: str
    default: https://developer.download.nvidia.com/compute/cuda/repos
  container_url:
    description: URL of the folder of the container toolkit's repository, or of a mirror.
    type: str
    default: https://nvidia.github.io/libnvidia-container
  keyring_checksum:
    description: Checksums of keyring packages, separated by spaces, instead of those in the compatibility data.
    type: str
    default: ""
  cuda_fingerprint:
    description: Fingerprint of the key of CUDA's repositories, used if no checksum of the keyring package is known.
    type: str
    default: ""
  container_fingerprint:
    description: Fingerprint of the key of the container toolkit's repository.
    type: str
    default: ""
  with_key:
    description: Whether to return the key. The compatibility data is read only then.
    type: bool
    default: true
  facts_file:
    description: Path on the controller of additional compatibility data in the format of the files in C(plugins/plugin_utils/compat). It has priority over the
      collection's.
    type: str
    default: ""
"""

EXAMPLES = r"""
source: "{{ 'cuda' | trainyard.gpu.vendor_source(cluster_host) }}"
"""

RETURN = r"""
_value:
  description: The repository.
  type: dict
  contains:
    name:
      description: Name of the files of its source and keyring.
      type: str
    uri:
      description: Its URI; it is a flat repository.
      type: str
    folder:
      description: Its parent folder, which it shares with repositories for other systems.
      type: str
    directory:
      description: Its directory below CUDA's repositories, such as V(debian12); empty for the container toolkit.
      type: str
    key_url:
      description: URL of its keyring.
      type: str
    key_checksums:
      description: Accepted checksums of the keyring package.
      type: list
      elements: str
    key_fingerprints:
      description: Fingerprints of its keys, if no checksum is known.
      type: list
      elements: str
    replaces:
      description: Regular expressions for the locations of the entries that it replaces.
      type: list
      elements: str
    retired_keys:
      description: Fingerprints of retired keys.
      type: list
      elements: str
    problem:
      description: Why it cannot be added; empty if it can.
      type: str
"""

from ansible.errors import AnsibleFilterError

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _vendor_source


def vendor_source(kind, *arguments, **options):
    if kind not in _vendor_source.KINDS:
        raise AnsibleFilterError("vendor_source: '%s' is not a repository; use cuda, cuda_ubuntu or container_toolkit" % kind)
    return _vendor_source.vendor_source(kind, *arguments, **options)


class FilterModule:
    """Filters for NVIDIA's repositories."""

    def filters(self):
        return {"vendor_source": vendor_source}
