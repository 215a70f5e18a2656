# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible.errors import AnsibleFilterError


def nfs_mounts(mounts, host, members=(), options=("hard",), version="", nconnect=1):
    # Imported when it is called, as Ansible loads all filters of a collection for the first one that a task uses.
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _nfs_client_plan

    return _nfs_client_plan.nfs_mounts(mounts, host, members, options, version, nconnect)


def nfs_client_plan(found, mounts, unit, timeout=0, waited=None, now=None):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _nfs_client_plan
    from ansible_collections.trainyard.gpu.plugins.plugin_utils._quoting import QuoteError

    try:
        return _nfs_client_plan.nfs_client_plan(
            found,
            mounts,
            unit,
            timeout,
            (waited or {}).get("mounts") or [],
            (now or {}).get("mounts") or [],
        )
    except QuoteError as error:
        raise AnsibleFilterError("nfs_client_plan: %s" % error) from error


class FilterModule:
    """Filters for NFS mounts."""

    def filters(self):
        return {"nfs_mounts": nfs_mounts, "nfs_client_plan": nfs_client_plan}
