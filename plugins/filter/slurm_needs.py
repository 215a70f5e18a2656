# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# The documentation of these filters is in the .yml files of their names: that in a .py file would count for all of its filters.
from __future__ import annotations


# Ansible loads all filters for the first one of a task, so that the modules are imported when a filter is used.
def slurm_needs(plan, reading, host, scheduler):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _slurm_plan

    return _slurm_plan.slurm_needs(plan, reading, host, scheduler)


def slurm_drift(plan, reading, host, scheduler):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _slurm_plan

    return _slurm_plan.slurm_drift(plan, reading, host, scheduler)


def slurm_priority_problems(priorities):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _slurm_plan

    return _slurm_plan.priority_problems(priorities)


def slurm_option_problems(options):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _slurm_plan

    return _slurm_plan.option_problems(options)


def slurm_ssh_removal(reading):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _slurm_ssh

    return _slurm_ssh.removal(reading)


class FilterModule:
    """Filters that compare hosts and variables with the plan of role slurm."""

    def filters(self):
        return {"slurm_needs": slurm_needs, "slurm_drift": slurm_drift, "slurm_priority_problems": slurm_priority_problems,
                "slurm_option_problems": slurm_option_problems, "slurm_ssh_removal": slurm_ssh_removal}
