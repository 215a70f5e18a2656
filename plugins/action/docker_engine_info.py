# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Sends module docker_engine_info only if its answer is not known."""

from __future__ import annotations

from ansible_collections.trainyard.gpu.plugins.plugin_utils._known_answer import KnownAnswer


class ActionModule(KnownAnswer):
    returned = frozenset(
        [
            "available",
            "cause",
            "fix",
            "version",
            "cli_version",
            "buildx_version",
            "buildx_required",
            "compose_version",
            "compose_command",
            "live_restore",
            "containers_running",
            "runtimes",
            "cgroup_driver",
            "service",
            "packages",
            "daemon_config",
            "files",
            "environment_in_force",
            "record",
            "python_requests",
            "apparmor_required",
            "group",
            "images",
            "snap",
            "forwarding",
        ]
    )
