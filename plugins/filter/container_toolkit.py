# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


def container_toolkit_plan(found, engine, asked, version, specification, said=""):
    # Imported when it is called, as Ansible loads all filters of a collection for the first one that a task uses.
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _container_toolkit_plan

    return _container_toolkit_plan.container_toolkit_plan(
        found, engine, asked, str(version), specification, said
    )


class FilterModule:
    """Filters for the plan of role container_toolkit."""

    def filters(self):
        return {"container_toolkit_plan": container_toolkit_plan}
