# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _train_plan


def train_plan(members, environment, gpus, launcher="", npus=None):
    return _train_plan.train_plan(members, environment, gpus, launcher, npus)


def train_queue(hosts, job_id, timeout=0, options=()):
    return _train_plan.queue_command(hosts, job_id, timeout, options)


class FilterModule:
    """Filters for the plan of a job."""

    def filters(self):
        return {"train_plan": train_plan, "train_queue": train_queue}
