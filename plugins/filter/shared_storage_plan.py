# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.trainyard.gpu.plugins.plugin_utils._shared_storage_plan import shared_storage_plan, shared_storage_verdict


class FilterModule:
    """Filters for the plan and the verdict of role shared_storage."""

    def filters(self):
        return {"shared_storage_plan": shared_storage_plan, "shared_storage_verdict": shared_storage_verdict}
