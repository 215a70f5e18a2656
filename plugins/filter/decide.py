# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: decide
short_description: Make a decision of the roles of this collection
version_added: "0.4.0"
description:
  - Calls a function of the collection with the input, the other arguments and the keywords.
    C(plugins/plugin_utils/_decisions.py) lists the names with their functions, and the docstring of
    a function explains its arguments and its result.
  - It serves the roles and playbooks of this collection. Names, arguments and results may change in
    a minor release.
  - The template fails for an unknown name. It also fails if a function refuses its arguments. The
    message begins with the name of the decision.
positional: decision
options:
  _input:
    description: The first argument of the function.
    type: raw
    required: true
  decision:
    description: The name of the decision.
    type: str
    required: true
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Report which of NVIDIA's repositories serves a host
  ansible.builtin.debug:
    msg: "{{ ('cuda' | trainyard.gpu.decide('vendor_source', cluster_host,
      {'with_key': false})).directory }}"
"""

RETURN = r"""
_value:
  description: The result of the function.
  type: raw
"""

from ansible.errors import AnsibleFilterError

from ansible_collections.trainyard.gpu.plugins.plugin_utils._decisions import function


def decide(_input, decision, *arguments, **requested):
    try:
        return function(decision)(_input, *arguments, **requested)
    except ValueError as error:
        raise AnsibleFilterError("%s: %s" % (decision, error)) from error


class FilterModule:
    """The one filter for the decisions of this collection's roles."""

    def filters(self):
        return {"decide": decide}
