# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


# Ansible loads all filters for the first one of a task, so that the modules are imported when a filter is used.
def slurm_plan(readings, hosts, scheduler, members, **more):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _slurm_plan

    requested = _slurm_plan.Requested(hosts, scheduler, members, **more)
    return _slurm_plan.slurm_plan(readings, requested)


def slurm_needs(plan, reading, host, scheduler):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _slurm_plan

    return _slurm_plan.slurm_needs(plan, reading, host, scheduler)


def slurm_drift(plan, reading, host, scheduler, compared=()):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _slurm_plan

    return _slurm_plan.slurm_drift(plan, reading, host, scheduler, compared)


def slurm_priority_problems(priorities):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _slurm_plan

    return _slurm_plan.priority_problems(priorities)


def slurm_option_problems(options):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _slurm_plan

    return _slurm_plan.option_problems(options)


def slurm_ssh_removal(reading):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _slurm_sessions, _slurm_ssh

    return _slurm_ssh.removal(reading) + _slurm_sessions.removal(reading)


class FilterModule:
    """Filters for the roles of Slurm: the plan, and what hosts and variables lack of it."""

    def filters(self):
        return {
            "slurm_plan": slurm_plan,
            "slurm_needs": slurm_needs,
            "slurm_drift": slurm_drift,
            "slurm_priority_problems": slurm_priority_problems,
            "slurm_option_problems": slurm_option_problems,
            "slurm_ssh_removal": slurm_ssh_removal,
        }
