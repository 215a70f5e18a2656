# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _jobs_plan


class FilterModule:
    """Filters for role jobs: its plan, and how a host differs from it."""

    def filters(self):
        return {"jobs_plan": _jobs_plan.jobs_plan, "jobs_drift": _jobs_plan.jobs_drift}
