"""Slurm on the same hosts: NPUs are gres/gpu with the chip as type, so that a job over its quota
waits. They are device files without a driver.
"""

from __future__ import annotations

import re
import time

import pytest

HOST = "ascend-a"
testinfra_hosts = ["ansible://" + HOST]
VARIABLES = {
    "cluster_scheduler": "slurm",
    "job_container_enabled": False,
    "slurm_node_hardware": {"cpus": 8, "real_memory": 8000},
    # Hosts are containers, and the first one has all parts.
    "slurm_accept_no_limits": True,
    "slurm_accept_login_on_gpu_hosts": True,
    "shared_storage_trees": [{"path": "/data1/share/user", "of": "users"}],
    "shared_storage_users": [{"name": "anna", "uid": 2201}],
    "slurm_accounts": [{"name": "vision", "gpus": 8, "members": ["anna"]}],
}


@pytest.fixture(name="slurm", scope="module")
def _slurm(playbook):
    for name in ("shared_storage.yml", "scheduler.yml"):
        run = playbook(name, **VARIABLES)
        assert run.code == 0, run.text[-3000:]


def as_anna(host, command):
    return host.check_output("cd /tmp && su anna -c '%s'" % command)


def submit(host, gpus):
    return as_anna(host, 'sbatch --parsable --output=/dev/null --gpus=%d --wrap "sleep 600"' % gpus)


def wait_for(host, job, expected, seconds=60):
    deadline = time.monotonic() + seconds
    while True:
        told = host.check_output("scontrol --oneliner show job %s", job)
        found = tuple(
            re.search(r"\b%s=(\S*)" % key, told).group(1) for key in ("JobState", "Reason")
        )
        if found[: len(expected)] == expected:
            return
        assert time.monotonic() < deadline, "job %s is %s, and not %s" % (job, found, expected)
        time.sleep(1)


@pytest.mark.usefixtures("slurm")
def test_nodes_have_their_npus(host):
    shown = host.check_output("sinfo --noheader --Node --format '%N %T %G'").splitlines()
    assert shown == [
        "ascend-a idle gpu:ascend910a:8",
        "ascend-b idle gpu:ascend910a:8",
        "ascend-c idle (null)",
    ]


@pytest.mark.usefixtures("slurm")
def test_a_job_over_the_quota_of_its_account_waits(host):
    first = submit(host, 8)
    wait_for(host, first, ("RUNNING",))
    second = submit(host, 2)
    wait_for(host, second, ("PENDING", "AssocGrpGRES"))
    host.run_expect([0], "scancel " + first)
    wait_for(host, second, ("RUNNING",))
    host.run_expect([0], "scancel " + second)


@pytest.mark.usefixtures("slurm")
def test_a_task_learns_which_npus_it_has(host):
    """trainyard-run reads both variables."""
    shown = as_anna(
        host, 'srun --quiet --gpus=2 sh -c "echo \\$SLURM_STEP_GPUS \\$CUDA_VISIBLE_DEVICES"'
    )
    assert shown in ("0,1 0,1", "2,3 0,1", "2,3 2,3"), shown
