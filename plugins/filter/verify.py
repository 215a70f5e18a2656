# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible.errors import AnsibleFilterError

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _verify_plan
from ansible_collections.trainyard.gpu.plugins.plugin_utils._host_rules import ids_with
from ansible_collections.trainyard.gpu.plugins.plugin_utils._role_input import verify_rules


def verify_ids(key, value=None):
    return ids_with(verify_rules(), key, value)


def verify_plan(variables, members):
    return _verify_plan.measured(members, variables)


def verify_evidence(variables, members, checked, answering, scheduler=""):
    return {
        "hosts": _verify_plan.checked(members, checked, variables, scheduler),
        "versions": _verify_plan.versions(answering, variables),
        "logs": _verify_plan.tails(answering, variables),
    }


def verify_port_rates(variables, members):
    return _verify_plan.port_rates(members, variables)


def verify_hardware(variables, members, facts_file=""):
    # Imported when it is called, as Ansible loads all filters of a collection for the first one that a task uses.
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _compat, _hardware

    hosts = _verify_plan.hardware(members, variables)
    models = _hardware.gpu_models(
        hosts, lambda name: _compat.nvlinks(name, _compat.load_facts(facts_file))
    )
    return {"models": models, "problems": _hardware.problems(hosts, models)}


def verify_gpu_problems(smi, errors, stack, fabric_manager):
    return _verify_plan.gpu_problems(smi, errors, stack, fabric_manager)


def verify_logins(proofs):
    return _verify_plan.logins(proofs)


def verify_sessions(variables: dict, members: list, share: str, head: str, names: list) -> dict:
    # Imported when it is called, as Ansible loads all filters of a collection for the first one that a task uses.
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _session_checks

    return _session_checks.findings(
        *_verify_plan.sessions(members, names, variables, head), share=share
    )


def verify_causes(findings):
    return _verify_plan.with_causes(findings)


def verify_logs(checks, host, sources, job_log, job_checks=()):
    return _verify_plan.logs(checks, host, sources, job_checks, job_log)


def verify_nodes(checks, draining, scheduler, hosts, blame=(), suspect=()):
    return _verify_plan.nodes(checks, blame, suspect, draining, scheduler.get("nodes") or [], hosts)


def verify_probe(slurm, users, trees, image=""):
    return _verify_plan.probe(slurm, users, trees, image)


def verify_probe_checks(result, plan, hosts, reason="", accepted=False):
    return _verify_plan.probe_checks(result, plan, hosts, reason, accepted)


def verify_unmeasured(required, of_jobs, hosts, **run):
    measurement = _verify_plan.Measurement(hosts, **run)
    return _verify_plan.unmeasured(required, of_jobs, measurement)


def bandwidth_checks(answer, hosts, tail=None, gpus=None, reason=""):
    # Imported when it is called, as Ansible loads all filters of a collection for the first one that a task uses.
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _bandwidth_checks

    return _bandwidth_checks.bandwidth_checks(answer, hosts, tail or [], gpus, reason)


def bandwidth_tool(image, asked, gpus, on_host=False, frameworks=None, problems=None):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _bandwidth_tool

    if asked not in ("auto",) + _bandwidth_tool.TOOLS:
        raise AnsibleFilterError(
            "bandwidth_tool: '%s' is not a tool; use auto, %s"
            % (asked, ", ".join(_bandwidth_tool.TOOLS))
        )
    return _bandwidth_tool.choose(asked, gpus, image, on_host, frameworks, problems)


def bandwidth_of_nccl_tests(together, alone, before, after, gpus, plan, image=()):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _bandwidth_tool

    results = _bandwidth_tool.results_of_tasks(alone, before, after)
    return _bandwidth_tool.of_nccl_tests(results, together, gpus, plan, image)


def bandwidth_with_search(found, job, tail=()):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _bandwidth_tool

    return _bandwidth_tool.with_search(found, job, tail)


def stack_problems(answer, asked=None, driver=""):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils._drift import problems

    return problems(answer, asked or {}, driver)


class FilterModule:
    """Filters for role verify: its plan, its checks and the measurement of the bandwidth."""

    def filters(self):
        return {
            "verify_plan": verify_plan,
            "verify_evidence": verify_evidence,
            "verify_causes": verify_causes,
            "verify_logs": verify_logs,
            "verify_nodes": verify_nodes,
            "verify_ids": verify_ids,
            "verify_probe": verify_probe,
            "verify_probe_checks": verify_probe_checks,
            "verify_unmeasured": verify_unmeasured,
            "verify_hardware": verify_hardware,
            "verify_port_rates": verify_port_rates,
            "verify_logins": verify_logins,
            "verify_gpu_problems": verify_gpu_problems,
            "verify_sessions": verify_sessions,
            "bandwidth_checks": bandwidth_checks,
            "bandwidth_tool": bandwidth_tool,
            "bandwidth_of_nccl_tests": bandwidth_of_nccl_tests,
            "bandwidth_with_search": bandwidth_with_search,
            "stack_problems": stack_problems,
        }
