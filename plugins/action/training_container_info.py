# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Sends module training_container_info only if its answer is not known."""

from __future__ import annotations

from ansible_collections.trainyard.gpu.plugins.plugin_utils._known_answer import KnownAnswer


class ActionModule(KnownAnswer):
    returned = frozenset(
        [
            "available",
            "cause",
            "fix",
            "runtimes",
            "image",
            "container",
            "unit",
            "services",
            "notebooks",
            "npus",
            "files",
            "paths",
        ]
    )
