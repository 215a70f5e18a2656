# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: quoted
short_description: Quote a value for a configuration file format
version_added: "0.4.0"
author:
  - trainyard maintainers (@trainyard)
description:
  - Quotes a value for a format. Fails if the format cannot hold the value, so that it never reaches
    the file.
  - For a shell use the filter P(ansible.builtin.quote#filter).
positional: form
options:
  _input:
    description: The value.
    type: raw
    required: true
  form:
    description:
      - V(one_line) for formats that use a line literally, V(field) for those that use a word
        literally (apt's sources and preferences, C(limits.conf), C(pip.conf)), V(host_name) for
        C(known_hosts) and C(ssh_config).
      - V(systemd_line) for C(What=) and C(Description=) of a unit, V(systemd_word) for lists of
        words, V(systemd_argument) for C(ExecStart=), V(environment_file) for the value of a
        variable in C(EnvironmentFile=).
      - V(apt_conf) for the value of an option of apt, V(export_path) and V(export_word) for
        C(exports).
    type: str
    required: true
    choices:
      - one_line
      - field
      - host_name
      - systemd_line
      - systemd_word
      - systemd_argument
      - environment_file
      - apt_conf
      - export_path
      - export_word
"""

EXAMPLES = r"""
- name: Report a line of a unit
  ansible.builtin.debug:
    msg: "RequiresMountsFor={{ '/data1/50% done' | trainyard.gpu.quoted('systemd_word') }}"
"""

RETURN = r"""
_value:
  description: The value, quoted where the format needs it.
  type: str
"""

from ansible.errors import AnsibleFilterError
from ansible_collections.trainyard.gpu.plugins.plugin_utils import _quoting


def quoted(value, form):
    if form not in _quoting.FORMATS:
        raise AnsibleFilterError(
            "quoted: '%s' is not a format; use one of %s" % (form, ", ".join(_quoting.FORMATS))
        )
    try:
        return _quoting.quoted(value, form)
    except _quoting.QuoteError as error:
        raise AnsibleFilterError("quoted: %s" % error) from error


class FilterModule:
    """Filters that quote values for configuration files."""

    def filters(self):
        return {"quoted": quoted}
