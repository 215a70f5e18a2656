# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _verify_plan
from ansible_collections.trainyard.gpu.plugins.plugin_utils._host_rules import ids_with
from ansible_collections.trainyard.gpu.plugins.plugin_utils._role_input import verify_rules


def verify_ids(key, value=None):
    return ids_with(verify_rules(), key, value)


def verify_plan(variables, members):
    return _verify_plan.measured(members, variables)


def verify_evidence(variables, members, checked, answering, scheduler=""):
    return {"hosts": _verify_plan.checked(members, checked, variables, scheduler), "versions": _verify_plan.versions(answering, variables),
            "logs": _verify_plan.tails(answering, variables)}


def verify_port_rates(variables, members):
    return _verify_plan.port_rates(members, variables)


def verify_logs(checks, host, sources, job_log, job_checks=()):
    return _verify_plan.logs(checks, host, sources, job_checks, job_log)


def verify_nodes(checks, draining, scheduler, hosts, blame=(), suspect=()):
    return _verify_plan.nodes(checks, blame, suspect, draining, scheduler.get("nodes") or [], hosts)


def verify_probe(slurm, users, trees, image=""):
    return _verify_plan.probe(slurm, users, trees, image)


def verify_probe_checks(result, plan, hosts, reason=""):
    return _verify_plan.probe_checks(result, plan, hosts, reason)


def verify_unmeasured(required, of_jobs, hosts, can_start=True, is_asked=True, has_tool=True, has_process_sets=True, needs_horovod=True, has_person=True):
    return _verify_plan.unmeasured(required, of_jobs, can_start, is_asked, hosts, has_tool, has_process_sets, needs_horovod, has_person)


class FilterModule:
    """Filters for the decisions of role verify."""

    def filters(self):
        return {"verify_plan": verify_plan, "verify_evidence": verify_evidence, "verify_logs": verify_logs, "verify_nodes": verify_nodes,
                "verify_ids": verify_ids, "verify_probe": verify_probe, "verify_probe_checks": verify_probe_checks, "verify_unmeasured": verify_unmeasured,
                "verify_port_rates": verify_port_rates}
