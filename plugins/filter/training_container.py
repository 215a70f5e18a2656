# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


def training_container_plan(found, asked, host, files):
    # Imported when it is called, as Ansible loads all filters of a collection for the first one that a task uses.
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _container_plan

    return _container_plan.plan(found, asked, host, files)


def training_container_faults(found, name, image, services=()):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _container_plan

    return _container_plan.faults(found, name, image, services)


def training_container_drift(found, asked, state_faults=(), plan_faults=()):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import (
        _container_plan,
        _container_services,
    )

    found, asked = _container_plan.plain(found), _container_plan.plain(asked)
    return _container_plan.differences(
        found, state_faults, plan_faults
    ) + _container_services.differences(found, asked, asked["service_programs"])


def training_container_service_faults(services, kind, ssh_port=0):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import (
        _container_plan,
        _container_services,
    )

    return _container_services.faults(_container_plan.plain(services), kind, ssh_port)


class FilterModule:
    """Filters for the plan of role training_container."""

    def filters(self):
        return {
            "training_container_plan": training_container_plan,
            "training_container_faults": training_container_faults,
            "training_container_drift": training_container_drift,
            "training_container_service_faults": training_container_service_faults,
        }
