# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _job_container_plan


class FilterModule:
    """Filters for role job_container: its plan, its removal and its drift."""

    def filters(self):
        return {
            "job_container_plan": _job_container_plan.job_container_plan,
            "job_container_drift": _job_container_plan.job_container_drift,
            "job_container_removal": _job_container_plan.removal,
        }
