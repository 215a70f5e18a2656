# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _preflight_plan


def preflight_plan(members, host, port, storage, requested=None):
    asked = _preflight_plan.Requested(**(requested or {}))
    return _preflight_plan.preflight_plan(members, host, port, storage, asked)


def preflight_differences(gpus):
    return _preflight_plan.differences(gpus)


def preflight_wrong_names(members, own_name, resolved, loopback, answering=()):
    return _preflight_plan.wrong_names(members, own_name, resolved, loopback, answering)


def preflight_mtu_differences(members, answering):
    return _preflight_plan.mtu_differences(members, answering)


def preflight_rdma_ports(members: list, answering: list) -> list:
    return _preflight_plan.rdma_ports_missing(members, answering)


def preflight_nfs_rdma(
    mounts: list, options: list, members: list, host: str, storage: str, answering: list
) -> list:
    return _preflight_plan.nfs_without_rdma(mounts, options, members, host, storage, answering)


def preflight_limits(cgroup: dict, version: str) -> dict:
    # Not at the top: Ansible loads all filters, and this module loads much more than they need.
    from ansible_collections.trainyard.gpu.plugins.module_utils._slurm_host import release
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _slurm_plan

    return {
        "why": _slurm_plan.limits_fault(cgroup, release(version)),
        "way": _slurm_plan.way_to_limits(cgroup),
    }


def preflight_offered(host: dict, candidates: dict, source: dict | None = None) -> dict:
    return _preflight_plan.offered(host, candidates, source or {})


def preflight_disks(answer: dict, path: str, mib: int, storage: str = "") -> list:
    return _preflight_plan.disks(answer, path, int(mib), storage)


def preflight_releases(each: list, scheduler: str, others: list) -> list:
    from ansible_collections.trainyard.gpu.plugins.module_utils._slurm_host import release
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _slurm_plan

    wanted = {scheduler, *others}
    releases = {
        host["name"]: release(host["offered"].get("slurmd", ""))
        for host in each
        if host["name"] in wanted
    }
    return _slurm_plan.release_mismatches(scheduler, releases, others)


class FilterModule:
    """Filters for the plan and the rules of role preflight."""

    def filters(self):
        return {
            "preflight_plan": preflight_plan,
            "preflight_differences": preflight_differences,
            "preflight_wrong_names": preflight_wrong_names,
            "preflight_mtu_differences": preflight_mtu_differences,
            "preflight_rdma_ports": preflight_rdma_ports,
            "preflight_nfs_rdma": preflight_nfs_rdma,
            "preflight_limits": preflight_limits,
            "preflight_offered": preflight_offered,
            "preflight_disks": preflight_disks,
            "preflight_releases": preflight_releases,
        }
