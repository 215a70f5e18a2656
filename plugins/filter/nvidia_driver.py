# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


def nvidia_driver_plan(found, source, version, kernel_module, fabric_manager, data, recommended=""):
    # Imported when it is called, as Ansible loads all filters of a collection for the first one that a task uses.
    from ansible_collections.trainyard.gpu.plugins.plugin_utils._compat import (
        Compatibility,
        load_facts,
    )
    from ansible_collections.trainyard.gpu.plugins.plugin_utils._driver_plan import plan

    facts = load_facts()
    asked = {
        "source": source,
        "version": version,
        "kernel_module": kernel_module,
        "fabric_manager": fabric_manager,
    }
    return plan(found, facts, Compatibility(facts).generation, asked, data, recommended)


def nvidia_driver_state(found, planned, offered=None, recommended=None, **requested):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils._driver_plan import state

    asked = dict({"persistence": True, "allow_reboot": False}, **requested)
    return state(found, planned, asked, offered or {}, (recommended or {}).get("recommended", ""))


class FilterModule:
    def filters(self):
        return {
            "nvidia_driver_plan": nvidia_driver_plan,
            "nvidia_driver_state": nvidia_driver_state,
        }
