# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


def upgrade_plan(found, noted=None, asked=None, driver="", smi=None):
    # Imported when it is called, as Ansible loads all filters of a collection for the first one that a task uses.
    from ansible_collections.trainyard.gpu.plugins.plugin_utils._upgrade_plan import plan

    return plan(found, noted or {}, asked, driver, smi)


def service_updates(installed: dict, policy: dict | None = None) -> dict:
    from ansible_collections.trainyard.gpu.plugins.plugin_utils._upgrade_plan import services

    return services(installed, policy)


class FilterModule:
    """Filters for the plan of role upgrade."""

    def filters(self):
        return {"upgrade_plan": upgrade_plan, "service_updates": service_updates}
