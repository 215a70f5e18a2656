# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible.errors import AnsibleFilterError
from ansible_collections.trainyard.gpu.plugins.module_utils import _ssh_mesh


def ssh_mesh_members(members, answers):
    try:
        return _ssh_mesh.mesh_members(members, answers)
    except _ssh_mesh.ParseError as error:
        raise AnsibleFilterError("ssh_mesh_members: %s" % error) from error


def ssh_mesh_problems(proofs, members, hosts):
    return _ssh_mesh.mesh_problems(proofs, members, hosts)


class FilterModule:
    def filters(self):
        return {"ssh_mesh_members": ssh_mesh_members, "ssh_mesh_problems": ssh_mesh_problems}
