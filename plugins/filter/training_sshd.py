# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible.errors import AnsibleFilterError

from ansible_collections.trainyard.gpu.plugins.module_utils import _ssh_mesh
from ansible_collections.trainyard.gpu.plugins.plugin_utils import _sshd_options


def sshd_lines(options, defaults):
    try:
        return _sshd_options.sshd_lines(defaults, options)
    except _sshd_options.SshdOptionError as error:
        raise AnsibleFilterError(str(error)) from error


def ssh_mesh_members(members, answers):
    try:
        return _ssh_mesh.mesh_members(members, answers)
    except _ssh_mesh.ParseError as error:
        raise AnsibleFilterError("ssh_mesh_members: %s" % error) from error


def ssh_mesh_problems(proofs, members, hosts):
    return _ssh_mesh.mesh_problems(proofs, members, hosts)


def ssh_mesh_foreign(found: dict, files: list, address: str, port: int) -> list:
    # Imported when it is called, as Ansible loads all filters of a collection for the first one that a task uses.
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _foreign_access

    return _foreign_access.differences(found, files, address, int(port))


class FilterModule:
    """Filters for role training_sshd: the options of sshd, and the keys of all members."""

    def filters(self):
        return {
            "sshd_lines": sshd_lines,
            "sshd_options_refused": _sshd_options.refused,
            "sshd_options_unwritable": _sshd_options.unwritable,
            "ssh_mesh_foreign": ssh_mesh_foreign,
            "ssh_mesh_members": ssh_mesh_members,
            "ssh_mesh_problems": ssh_mesh_problems,
        }
