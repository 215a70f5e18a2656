# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.trainyard.gpu.plugins.plugin_utils._ascend_plan import (
    ascend_drift,
    ascend_plan,
)


class FilterModule:
    """Filters for the plan of role ascend."""

    def filters(self):
        return {"ascend_drift": ascend_drift, "ascend_plan": ascend_plan}
