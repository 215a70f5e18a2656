# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


def docker_engine_plan(found, asked, catalog, system, **answers):
    # Imported when it is called, as Ansible loads all filters of a collection for the first one that a task uses.
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _docker_engine_plan

    asked = dict(
        asked, version=str(asked["version"]), minimum_version=str(asked["minimum_version"])
    )
    given = _docker_engine_plan.Answers(**answers)
    return _docker_engine_plan.docker_engine_plan(found, asked, catalog, system, given)


def docker_engine_files(plan, files, found, keyring, key_checksum="", in_own_folders=()):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _docker_engine_plan

    return _docker_engine_plan.docker_engine_files(
        plan, files, found, keyring, key_checksum, in_own_folders
    )


class FilterModule:
    """Filters for the plan of role docker_engine."""

    def filters(self):
        return {
            "docker_engine_plan": docker_engine_plan,
            "docker_engine_files": docker_engine_files,
        }
