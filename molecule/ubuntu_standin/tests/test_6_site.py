"""The whole of playbook site: on three hosts that say they are Ubuntu 24.04 and 22.04, with
NVIDIA's driver and training, and on the two of 24.04 with Ubuntu's driver, Slurm and jobs in
containers. Then teardown.

No GPU is here. One is on the PCI bus, its driver's nvidia-smi replays what a real H100 has
answered, and the training runs on CPUs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest
from state_left import state_left

pytestmark = pytest.mark.acceptance
ROOT = Path(__file__).resolve().parents[3]
# Slurm of 22.04 is refused.
QUEUE = ("ubuntu-noble", "ubuntu-noble-b")
HOSTS = (*QUEUE, "ubuntu-jammy")
# Base, wheels and recipe of the training image, and what hosts without GPUs need: as in make lab.
LAB = ROOT / "inventories/lab/group_vars/cluster"
ANSWER = ROOT / "tests/fixtures/nvidia-smi-xml/h100-80gb-hbm3-v13-580.xml"
# The container gets no GPU, so what looks at one in it is not made.
REQUIRED = ["stack-drift", "gpus-present", "image-identical", "container-running", "ssh-mesh"]
REQUIRED += ["horovod-build", "shared-storage", "bandwidth-host", "bandwidth-cluster"]
BRANCH_OF_NVIDIA = {"nvidia_driver_source": "nvidia_repository", "nvidia_driver_version": "570"}
SLURM = {
    "cluster_scheduler": "slurm",
    # The hosts are containers that share a machine.
    "slurm_node_hardware": {"cpus": 8, "real_memory": 12000},
    "slurm_accept_no_limits": True,
    "slurm_accept_login_on_gpu_hosts": True,
    "job_container_free_gib": 2,
    "shared_storage_trees": [{"path": "/data1/share/user", "of": "users"}],
    "shared_storage_users": [{"name": "anna", "uid": 2001}],
    "slurm_accounts": [{"name": "vision", "gpus": 2, "members": ["anna"]}],
}
# As in test_5_teardown.py, on any of the hosts.
OF_THE_DISTRIBUTION = {
    "files: /etc/apparmor.d/disable",
    "files: /etc/apt/sources.list",
    "state: path /var/lib/containerd",
}
JOB = """name: two
worker_count: 2
worker_gpu: 1
command: |
  echo "$SLURM_PROCID of $SLURM_NTASKS as $(id -un) in $(. /etc/os-release; echo $ID)"
  ls /dev | grep '^nvidia[0-9]'
  python3 -c 'import horovod, torch; print(torch.__version__)'
"""


def on(host, command, text=None):
    """What a shell command of root prints on a host."""
    done = subprocess.run(
        ["docker", "exec", "--interactive", host, "sh", "-ec", command],
        input=text,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.returncode == 0, (host, command, done.stdout)
    return done.stdout


@pytest.fixture(scope="module", autouse=True)
def answering_gpu(security_updates):
    """The GPU that prepare.yml has put on the bus has a device node and answers.

    No module is loaded: a mount below /proc would stop rootless containers.
    """
    answer = ANSWER.read_text(encoding="utf-8").replace("00000000:00:06.0", "00000000:01:00.0")
    for host in HOSTS:
        on(host, "rm --force /dev/nvidia[1-9]; mkdir --parents /etc/vendor-fixtures/nvidia-smi")
        # Purging Docker has emptied the volume that prepare.yml has put below the storage of jobs.
        store = "/var/lib/trainyard/containers"
        on(host, "! mountpoint --quiet %s || umount --recursive %s" % (store, store))
        on(host, "mkdir --parents /var/lib/docker/of-jobs %s" % store)
        on(host, "mount --bind /var/lib/docker/of-jobs %s" % store)
        # A container boots no kernel of its own, and DKMS has built no module for one.
        on(host, "rm --force /boot/vmlinuz-*")
        on(host, "cat > /etc/vendor-fixtures/nvidia-smi/xml", answer)
    yield
    for host in HOSTS:
        on(host, "rm --recursive --force /etc/vendor-fixtures/nvidia-smi")


@pytest.fixture(name="site")
def fixture_site(among):
    """A playbook on both hosts with the variables of the lab."""
    lab = [word for path in sorted(LAB.glob("*.yml")) for word in ("--extra-vars", "@%s" % path)]
    return lambda hosts, name, **variables: among(
        hosts, name, *lab, verify_required=REQUIRED, **variables
    )


def twice(site, hosts, **variables):
    """The whole of site, and a second run that changes nothing."""
    first = site(hosts, "site.yml", **variables)
    assert first.code == 0, first.output[-6000:]
    second = site(hosts, "site.yml", **variables)
    assert (second.code, second.changed) == (0, 0), second.output[-6000:]


def test_site_with_the_driver_of_nvidias_repository(site):
    twice(site, HOSTS, **BRANCH_OF_NVIDIA)
    for host in HOSTS:
        assert "570.172.08-0ubuntu1" in on(host, "dpkg-query --show nvidia-utils-570")


def test_all_hosts_train_together(site):
    done = site(HOSTS, "train.yml", **BRANCH_OF_NVIDIA)
    assert done.code == 0, done.output[-6000:]
    newest = "cat $(ls -t /data1/share/.trainyard/jobs/*/result.json | head -n 1)"
    result = json.loads(on(HOSTS[0], newest))
    assert [(rank["host"], rank["exit_code"]) for rank in result["ranks"]] == [
        (host, 0) for host in HOSTS
    ]
    assert result["metrics"]["accuracy"] >= 0.95


def test_the_advice_leads_to_the_driver_of_the_distribution(site):
    """Another source is refused until the driver is removed as the message says."""
    done = site(QUEUE, "gpu_stack.yml")
    advised = re.search(r"\((apt-get purge [^)]*)\)", done.text)
    assert done.code != 0 and advised, done.output[-6000:]
    for host in QUEUE:
        on(host, "echo y | DEBIAN_FRONTEND=noninteractive " + advised.group(1))


def test_site_with_the_driver_of_the_distribution_and_slurm(site):
    twice(site, QUEUE, **SLURM)
    for host in QUEUE:
        assert "580.142-0ubuntu0.24.04.1" in on(host, "dpkg-query --show nvidia-utils-580-server")
    assert on(QUEUE[0], "sinfo --noheader --Node --format=%T").split() == ["idle", "idle"]


def person(command, text=None):
    """What a person's command prints on the login host."""
    return on(QUEUE[0], "cd /data1/share/user/anna && su anna -c '%s'" % command, text)


def test_a_persons_job_runs_in_containers():
    number = json.loads(person("trainyard submit - --json", JOB))["id"]
    deadline = time.monotonic() + 180
    while True:
        job = json.loads(person("trainyard show %s --json" % number))
        if job["state"] not in ("pending", "configuring", "running", "completing"):
            break
        assert time.monotonic() < deadline, job
        time.sleep(2)
    assert job["state"] == "completed", (job, person("trainyard logs %s" % number))
    for rank, name in enumerate(QUEUE):
        told = person("trainyard logs %s --rank %d" % (number, rank)).splitlines()
        # The host says Ubuntu, and the image is Debian's.
        assert told == ["%d of 2 as anna in debian" % rank, "nvidia0", "2.13.0+cpu"], told
        assert "ubuntu" in on(name, "cat /etc/os-release")


def test_srun_in_a_container():
    image = on(QUEUE[0], "docker inspect --format '{{.Config.Image}}' trainyard-training").strip()
    command = "srun --nodes=2 --ntasks-per-node=1 --gpus-per-node=1 trainyard-run %s -- id -un"
    assert person(command % image).splitlines().count("anna") == 2


def test_nothing_is_left(site):
    done = site(HOSTS, "teardown.yml", **SLURM)
    assert done.code == 0, done.output[-6000:]
    for host in HOSTS:
        on(host, "rm --recursive /etc/vendor-fixtures/nvidia-smi")
        # Only the mount point of the test keeps the folder.
        on(host, "umount /var/lib/trainyard/containers")
        on(host, "rmdir /var/lib/trainyard/containers /var/lib/trainyard")
        if host in QUEUE:
            # prepare.yml had put the volume there before the first run.
            on(host, "mkdir /var/lib/trainyard")
    left = state_left(HOSTS, Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]))
    assert {name.partition(": ")[2] for name in left} <= OF_THE_DISTRIBUTION, left
