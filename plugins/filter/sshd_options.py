# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible.errors import AnsibleFilterError
from ansible_collections.trainyard.gpu.plugins.plugin_utils import _sshd_options


def sshd_lines(options, defaults):
    try:
        return _sshd_options.sshd_lines(defaults, options)
    except _sshd_options.SshdOptionError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    def filters(self):
        return {"sshd_lines": sshd_lines, "sshd_options_refused": _sshd_options.refused, "sshd_options_unwritable": _sshd_options.unwritable}
