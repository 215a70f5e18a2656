# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: layers_digest
short_description: Compute the digest of an image's layers
version_added: "0.1.0"
description:
  - The digest is the value of label C(trainyard.layers). M(trainyard.gpu.image_info) compares the label with the image's layers.
options:
  _input:
    description: Digests of the image's layers, lowest first.
    type: list
    elements: str
    required: true
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Report the expected label
  ansible.builtin.debug:
    msg: "{{ gathered.images[0].layers | trainyard.gpu.layers_digest }}"
"""

RETURN = r"""
_value:
  description: 64 hexadecimal digits.
  type: str
"""

from ansible_collections.trainyard.gpu.plugins.module_utils._recipe import layers_digest


class FilterModule:
    def filters(self):
        return {"layers_digest": layers_digest}
