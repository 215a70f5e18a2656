# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _nfs_server_plan


def nfs_server_plan(found, **requested):
    return _nfs_server_plan.nfs_server_plan(found, _nfs_server_plan.Requested(**requested))


def nfs_server_conflicts(exports):
    return _nfs_server_plan.conflicts(exports)


class FilterModule:
    """Filters for the plan and the input rules of role nfs_server."""

    def filters(self):
        return {"nfs_server_plan": nfs_server_plan, "nfs_server_conflicts": nfs_server_conflicts}
