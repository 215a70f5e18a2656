# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: recorded
short_description: Return the content of a role's undo record
version_added: "0.3.0"
description:
  - Returns the undo record that a role has written with M(trainyard.gpu.managed_files) and has read with M(ansible.builtin.slurp).
  - Fails if the record is damaged, with the same message as the modules that have a record.
options:
  _input:
    description: The registered result of M(ansible.builtin.slurp). Its C(source) is named in the error.
    type: dict
    required: true
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Read the record
  ansible.builtin.slurp:
    src: /var/lib/trainyard/placed.d/slurm.json
  register: slurm_record

- name: Report the services that the host had before
  ansible.builtin.debug:
    msg: "{{ (slurm_record | trainyard.gpu.recorded).services }}"
"""

RETURN = r"""
_value:
  description: The record. Empty if the file is empty, as a power loss could leave it in older versions.
  type: dict
"""

import base64

from ansible.errors import AnsibleFilterError
from ansible_collections.trainyard.gpu.plugins.module_utils._record import DamagedRecord, parse


def recorded(slurped):
    try:
        return parse(base64.b64decode(slurped["content"]), slurped["source"])
    except DamagedRecord as error:
        # Its own text says all. Ansible would print each cause once more.
        raise AnsibleFilterError(str(error)) from None


class FilterModule:
    """The filter for undo records that tasks read."""

    def filters(self):
        return {"recorded": recorded}
