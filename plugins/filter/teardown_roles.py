# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.trainyard.gpu.plugins.plugin_utils._teardown_plan import teardown_roles

DOCUMENTATION = """
  name: teardown_roles
  short_description: List the roles that have something left on the hosts
  version_added: "0.4.0"
  author:
    - trainyard maintainers (@trainyard)
  description:
    - For playbook C(teardown), which skips all other roles.
    - A record in C(/var/lib/trainyard/placed.d) names its role. Any other trace may belong to any role, so all of them are listed.
  positional: roles
  options:
    _input:
      description: For each host, the paths and other traces that were found.
      type: list
      elements: list
      required: true
    roles:
      description: All roles, in the order of their removal.
      type: list
      elements: str
      required: true
"""

EXAMPLES = """
- name: Report what teardown would remove
  ansible.builtin.debug:
    msg: "{{ [['/var/lib/trainyard/placed.d/docker_engine.json']] | trainyard.gpu.teardown_roles(['nccl', 'docker_engine']) }}"
"""

RETURN = """
  _value:
    description: Those of O(roles) that may have something on a host.
    type: list
    elements: str
"""


class FilterModule:
    """The filter for playbook teardown."""

    def filters(self):
        return {"teardown_roles": teardown_roles}
