# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _monitoring_plan


class FilterModule:
    """Filters for roles monitoring, monitoring_host and monitoring_server: what a host gets, its certificate, and what teardown removes."""

    def filters(self):
        return {
            "monitoring_options": _monitoring_plan.read_options,
            "monitoring_plan": _monitoring_plan.host_plan,
            "monitoring_services": _monitoring_plan.services,
            "monitoring_lacks_certificate": _monitoring_plan.lacks_certificate,
            "monitoring_requests": _monitoring_plan.requests,
            "monitoring_tls": _monitoring_plan.tls_files,
            "monitoring_removal": _monitoring_plan.removal,
            "monitoring_drift": _monitoring_plan.drift,
        }
