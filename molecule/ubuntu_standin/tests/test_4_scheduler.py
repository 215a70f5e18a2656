"""Slurm with the names and versions of both releases.

Only in make acceptance: mariadb and Slurm are 200 packages more.
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.acceptance
HOST = "ubuntu-noble"
testinfra_hosts = ["ansible://" + HOST]
SLURM = {
    "cluster_scheduler": "slurm",
    "job_container_enabled": False,
    "slurm_gpu_type": "h100",
    "slurm_node_hardware": {"cpus": 8, "real_memory": 8000},
    "slurm_accept_no_limits": True,
    "slurm_accept_login_on_gpu_hosts": True,
    "shared_storage_users": [{"name": "anna", "uid": 2001}],
    "shared_storage_trees": [{"path": "/data1/share/user", "of": "users"}],
    "slurm_accounts": [{"name": "vision", "gpus": 1, "members": ["anna"]}],
}


def test_slurm_is_installed_on_24_04(host, alone):
    # The kernel has no driver: Slurm needs the device node only.
    host.run_expect([0], "test -e /dev/nvidia0 || mknod --mode=0666 /dev/nvidia0 c 195 0")
    for name in ("shared_storage.yml", "scheduler.yml"):
        done = alone(HOST, name, **SLURM)
        assert done.code == 0, done.text[-3000:]
    assert host.package("slurmctld").version == "23.11.4-1.2ubuntu5"
    assert host.check_output("sinfo --noheader --format=%T") == "idle"
    job = "cd /tmp && su anna -c 'srun --account=vision --gpus=1 hostname'"
    assert host.check_output(job) == HOST


def test_22_04_with_containers_is_refused_in_preflight(alone):
    """podman 3.4.4 has no CDI, and Slurm 21.08 no control groups of version 2."""
    done = alone("ubuntu-jammy", "preflight.yml", **{**SLURM, "job_container_enabled": True})
    assert done.code != 0 and "podman" in done.text and "24.04" in done.text
