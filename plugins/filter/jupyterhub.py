# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _jupyterhub_plan


class FilterModule:
    """Filters for role jupyterhub: its plan, what differs from it, and the services to restart."""

    def filters(self):
        return {
            "jupyterhub_plan": _jupyterhub_plan.jupyterhub_plan,
            "jupyterhub_restarts": _jupyterhub_plan.restarts,
            "jupyterhub_drift": _jupyterhub_plan.jupyterhub_drift,
            "jupyterhub_leaving": _jupyterhub_plan.leaving,
            "jupyterhub_left_instances": _jupyterhub_plan.left_instances,
        }
