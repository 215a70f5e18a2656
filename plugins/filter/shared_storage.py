# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


def shared_storage_plan(share, storage, trees=(), users=(), groups=(), **more):
    # Imported when it is called, as Ansible loads all filters of a collection for the first one that a task uses.
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _shared_storage_plan

    host, written = more.pop("host", ""), more.pop("written", None)
    requested = _shared_storage_plan.Requested(share, storage, trees, users, groups, **more)
    return _shared_storage_plan.shared_storage_plan(requested, host, written)


def shared_storage_verdict(readings, mounts=None):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _shared_storage_plan

    return _shared_storage_plan.shared_storage_verdict(readings, mounts)


def shared_storage_own_groups(users, groups=None, key="gid"):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _shared_storage_plan

    return _shared_storage_plan.own_groups(users, groups, key)


def shared_storage_id_problems(users, groups, recorded, accepted=()):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _shared_storage_plan

    return _shared_storage_plan.id_problems(users, groups, recorded, accepted)


class FilterModule:
    """Filters for the plan, the verdict and the input rules of role shared_storage."""

    def filters(self):
        return {
            "shared_storage_plan": shared_storage_plan,
            "shared_storage_verdict": shared_storage_verdict,
            "shared_storage_own_groups": shared_storage_own_groups,
            "shared_storage_id_problems": shared_storage_id_problems,
        }
