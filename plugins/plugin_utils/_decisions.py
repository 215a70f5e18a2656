# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The decisions of roles and playbooks, which filter C(decide) makes, and their functions."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

PLUGINS = "ansible_collections.trainyard.gpu.plugins."
#: Where the function of each decision is. It is imported when it is called, because a task needs
#: few of them; _preload imports most of them once per run.
DECISIONS: dict[str, str] = {
    "ascend_drift": "plugin_utils._ascend_plan.ascend_drift",
    "ascend_plan": "plugin_utils._ascend_plan.ascend_plan",
    "bandwidth_checks": "plugin_utils._bandwidth_checks.bandwidth_checks",
    "bandwidth_of_nccl_tests": "plugin_utils._bandwidth_tool.decide_bandwidth_of_nccl_tests",
    "bandwidth_tool": "plugin_utils._bandwidth_tool.decide_bandwidth_tool",
    "bandwidth_with_search": "plugin_utils._bandwidth_tool.with_search",
    "base_image_problems": "plugin_utils._image_plan.base_image_problems",
    "certificate_fingerprints": "module_utils._pem.fingerprints",
    "container_toolkit_plan": "plugin_utils._container_toolkit_plan.container_toolkit_plan",
    "cuda_toolkits": "plugin_utils._cuda_toolkits.cuda_toolkits",
    "docker_engine_files": "plugin_utils._docker_engine_plan.docker_engine_files",
    "docker_engine_plan": "plugin_utils._docker_engine_plan.decide_docker_engine_plan",
    "files_differ": "plugin_utils._placed_files.files_differ",
    "gpu_fit": "plugin_utils._compat.decide_gpu_fit",
    "hosts_behind": "plugin_utils._image_plan.hosts_behind",
    "image_fit": "plugin_utils._compat.decide_image_fit",
    "image_is_everywhere": "plugin_utils._image_plan.image_is_everywhere",
    "image_plan": "plugin_utils._image_plan.decide_image_plan",
    "image_problem": "plugin_utils._image_plan.image_problem",
    "image_recipe": "plugin_utils._image_plan.image_recipe",
    "image_relay_auth": "plugin_utils._image_relay_plan.auth_document",
    "image_relay_client": "plugin_utils._image_relay_plan.client_plan",
    "image_relay_drift": "plugin_utils._image_relay_plan.drift",
    "image_relay_former": "plugin_utils._image_relay_plan.former_registry",
    "image_relay_images": "plugin_utils._image_relay_plan.images_plan",
    "image_relay_plan": "plugin_utils._image_relay_plan.host_plan",
    "image_relay_removal": "plugin_utils._image_relay_plan.removal",
    "infiniband_plan": "plugin_utils._infiniband_plan.infiniband_plan",
    "input_covers": "plugin_utils._input_rules.covers",
    "input_is_apart": "plugin_utils._input_rules.is_apart",
    "input_is_beside": "plugin_utils._input_rules.is_beside",
    "input_is_inside": "plugin_utils._input_rules.is_inside",
    "input_is_registry_of": "plugin_utils._input_rules.is_registry_of",
    "input_is_writable": "plugin_utils._input_rules.is_writable",
    "job_container_drift": "plugin_utils._job_container_plan.job_container_drift",
    "job_container_plan": "plugin_utils._job_container_plan.job_container_plan",
    "job_container_removal": "plugin_utils._job_container_plan.removal",
    "jobs_drift": "plugin_utils._jobs_plan.jobs_drift",
    "jobs_plan": "plugin_utils._jobs_plan.jobs_plan",
    "jupyterhub_drift": "plugin_utils._jupyterhub_plan.jupyterhub_drift",
    "jupyterhub_leaving": "plugin_utils._jupyterhub_plan.leaving",
    "jupyterhub_left_instances": "plugin_utils._jupyterhub_plan.left_instances",
    "jupyterhub_plan": "plugin_utils._jupyterhub_plan.jupyterhub_plan",
    "jupyterhub_restarts": "plugin_utils._jupyterhub_plan.restarts",
    "layers_digest": "module_utils._recipe.layers_digest",
    "monitoring_drift": "plugin_utils._monitoring_plan.drift",
    "monitoring_lacks_certificate": "plugin_utils._monitoring_plan.lacks_certificate",
    "monitoring_options": "plugin_utils._monitoring_plan.read_options",
    "monitoring_plan": "plugin_utils._monitoring_plan.host_plan",
    "monitoring_removal": "plugin_utils._monitoring_plan.removal",
    "monitoring_requests": "plugin_utils._monitoring_plan.requests",
    "monitoring_services": "plugin_utils._monitoring_plan.services",
    "monitoring_tls": "plugin_utils._monitoring_plan.tls_files",
    "nccl_pair": "plugin_utils._vendor_source.nccl_pair",
    "nfs_client_plan": "plugin_utils._nfs_client_plan.decide_nfs_client_plan",
    "nfs_mounts": "plugin_utils._nfs_client_plan.nfs_mounts",
    "nfs_server_conflicts": "plugin_utils._nfs_server_plan.conflicts",
    "nfs_server_plan": "plugin_utils._nfs_server_plan.decide_nfs_server_plan",
    "nvidia_driver_plan": "plugin_utils._compat.decide_nvidia_driver_plan",
    "nvidia_driver_state": "plugin_utils._driver_plan.decide_nvidia_driver_state",
    "preflight_differences": "plugin_utils._preflight_plan.differences",
    "preflight_disks": "plugin_utils._preflight_plan.disks",
    "preflight_hardware": "plugin_utils._hardware.decide_preflight_hardware",
    "preflight_limits": "plugin_utils._slurm_plan.decide_preflight_limits",
    "preflight_mtu_differences": "plugin_utils._preflight_plan.mtu_differences",
    "preflight_nfs_rdma": "plugin_utils._preflight_plan.nfs_without_rdma",
    "preflight_offered": "plugin_utils._preflight_plan.offered",
    "preflight_plan": "plugin_utils._preflight_plan.decide_preflight_plan",
    "preflight_rdma_ports": "plugin_utils._preflight_plan.rdma_ports_missing",
    "preflight_releases": "plugin_utils._slurm_plan.decide_preflight_releases",
    "preflight_wrong_names": "plugin_utils._preflight_plan.wrong_names",
    "rank_table_fit": "plugin_utils._compat.decide_rank_table_fit",
    "recorded": "module_utils._record.recorded",
    "service_updates": "plugin_utils._upgrade_plan.services",
    "shared_storage_id_problems": "plugin_utils._shared_storage_plan.id_problems",
    "shared_storage_own_groups": "plugin_utils._shared_storage_plan.own_groups",
    "shared_storage_plan": "plugin_utils._shared_storage_plan.decide_shared_storage_plan",
    "shared_storage_verdict": "plugin_utils._shared_storage_plan.shared_storage_verdict",
    "slurm_drift": "plugin_utils._slurm_plan.slurm_drift",
    "slurm_needs": "plugin_utils._slurm_plan.slurm_needs",
    "slurm_option_problems": "plugin_utils._slurm_plan.option_problems",
    "slurm_plan": "plugin_utils._slurm_plan.decide_slurm_plan",
    "slurm_priority_problems": "plugin_utils._slurm_plan.priority_problems",
    "slurm_ssh_removal": "plugin_utils._slurm_plan.ssh_removal",
    "ssh_mesh_foreign": "plugin_utils._foreign_access.differences",
    "ssh_mesh_members": "module_utils._ssh_mesh.mesh_members",
    "ssh_mesh_problems": "module_utils._ssh_mesh.mesh_problems",
    "sshd_lines": "plugin_utils._sshd_options.sshd_lines",
    "sshd_options_refused": "plugin_utils._sshd_options.refused",
    "sshd_options_unwritable": "plugin_utils._sshd_options.unwritable",
    "stack_problems": "plugin_utils._drift.problems",
    "teardown_roles": "plugin_utils._teardown_plan.teardown_roles",
    "toolkit_version": "plugin_utils._compat.decide_toolkit_version",
    "train_plan": "plugin_utils._train_plan.train_plan",
    "train_queue": "plugin_utils._train_plan.queue_command",
    "training_container_drift": "plugin_utils._container_plan.drift",
    "training_container_faults": "plugin_utils._container_plan.faults",
    "training_container_plan": "plugin_utils._container_plan.plan",
    "training_container_service_faults": "plugin_utils._container_plan.service_faults",
    "upgrade_plan": "plugin_utils._upgrade_plan.plan",
    "vendor_source": "plugin_utils._vendor_source.vendor_source",
    "verify_causes": "plugin_utils._verify_plan.with_causes",
    "verify_evidence": "plugin_utils._verify_plan.evidence",
    "verify_gpu_problems": "plugin_utils._verify_plan.gpu_problems",
    "verify_hardware": "plugin_utils._hardware.decide_verify_hardware",
    "verify_ids": "plugin_utils._role_input.verify_ids",
    "verify_logins": "plugin_utils._verify_plan.logins",
    "verify_logs": "plugin_utils._verify_plan.logs",
    "verify_nodes": "plugin_utils._verify_plan.decide_verify_nodes",
    "verify_plan": "plugin_utils._verify_plan.measured",
    "verify_port_rates": "plugin_utils._verify_plan.port_rates",
    "verify_probe": "plugin_utils._verify_plan.probe",
    "verify_probe_checks": "plugin_utils._verify_plan.probe_checks",
    "verify_sessions": "plugin_utils._session_checks.decide_verify_sessions",
    "verify_unmeasured": "plugin_utils._verify_plan.decide_verify_unmeasured",
}


def function(decision: str) -> Callable[..., Any]:
    """Return the function of a decision. Raises ValueError for a name that is not in DECISIONS."""
    if decision not in DECISIONS:
        raise ValueError(
            "no decision has this name; use one of DECISIONS in plugins/plugin_utils/_decisions.py"
        )
    module, _dot, name = DECISIONS[decision].rpartition(".")
    found: Callable[..., Any] = getattr(importlib.import_module(PLUGINS + module), name)
    return found
