# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _nfs_server_plan


def nfs_server_plan(
    found,
    exports,
    members,
    host,
    options,
    anonymous,
    settings,
    inventory_addresses=(),
    clients=(),
    firewall=True,
    require_mount=False,
):
    cluster = _nfs_server_plan.cluster_clients(
        members, host, inventory_addresses, found.get("own_clients") or []
    )
    return _nfs_server_plan.nfs_server_plan(
        found, exports, cluster, clients, options, anonymous, settings, firewall, require_mount
    )


def nfs_server_conflicts(exports):
    return _nfs_server_plan.conflicts(exports)


class FilterModule:
    """Filters for the plan and the input rules of role nfs_server."""

    def filters(self):
        return {"nfs_server_plan": nfs_server_plan, "nfs_server_conflicts": nfs_server_conflicts}
