"""What a job is limited to by the kernel: its GPUs and its memory."""

from __future__ import annotations

import shlex

import pytest
from conftest import IMAGE, OPEN_GPUS

# A person starts podman with every GPU of the host, from an image of their own.
OWN_PODMAN = """
work=/tmp/own.$SLURM_JOB_ID
mkdir -p $work/image/bin $work/image/lib64 $work/image/dev $work/image/proc $work/image/sys $work/image/etc $work/image/run $work/image/tmp
cd $work/image && cp /bin/sh bin/ && cp --parents /lib/x86_64-linux-gnu/libc.so.6 . && cp /lib64/ld-linux-x86-64.so.2 lib64/
podman="podman --log-level=error --root=$work/store --runroot=$work/run"
tar --create . | $podman import --quiet - localhost/own:1 > /dev/null
devices=$(printf -- '--device=%s ' /dev/nvidia[0-9])
$podman run --network=host $devices localhost/own:1 \\
    /bin/sh -c 'for n in 0 1 2 3; do (: 0<> /dev/nvidia$n) 2>&1; done; read line < /proc/self/cgroup; echo $line'
"""


@pytest.fixture(autouse=True)
def _idle(cluster):
    cluster.idle()
    yield
    cluster.idle()


def test_the_limits_follow_from_the_kernel(cluster):
    for host in cluster.hosts:
        controllers = cluster.on(host, "cat /sys/fs/cgroup/cgroup.controllers").out.split()
        told = cluster.on(host, "cat /run/slurm/conf/cgroup.conf").out.splitlines()
        assert {"ConstrainDevices=yes", "ConstrainRAMSpace=yes", "ConstrainSwapSpace=yes"} <= set(
            told
        )
        assert ("ConstrainCores=yes" in told) == ("cpuset" in controllers)
    told = cluster.on(cluster.head, "scontrol show config").out
    for value in ("proctrack/cgroup", "task/affinity,task/cgroup", "jobacct_gather/cgroup"):
        assert value in told


def test_a_second_run_changes_nothing(cluster):
    run = cluster.play("scheduler.yml")
    assert (run.code, run.changed) == (0, {}), run.text[-3000:]


def test_a_job_opens_its_own_gpus_only(cluster):
    script = cluster.put("open_gpus.py", OPEN_GPUS)
    other = cluster.submit("ben", "exec sleep 600")
    cluster.reaches(other, "RUNNING")
    (taken,) = cluster.gpus(other)
    for count in (1, 2):
        number = cluster.submit("anna", "sleep 3; srun python3 " + script, gpus=count)
        cluster.reaches(number, "RUNNING")
        own = cluster.gpus(number)
        cluster.reaches(number, "COMPLETED")
        *found, visible = cluster.output("anna", number).split()
        # ENXIO: there is no driver behind the node.
        assert (
            found == ["ENXIO" if index in own else "EPERM" for index in range(4)]
            and taken not in own
        )
        assert visible == ",".join(str(index) for index in range(count))


def test_a_container_opens_its_own_gpus_only(cluster):
    other = cluster.submit("ben", "exec sleep 600")
    cluster.reaches(other, "RUNNING")
    (taken,) = cluster.gpus(other)
    look = "ls -d /dev/nvidia[0-9]; for n in 0 1 2 3; do (: 0<> /dev/nvidia$n) 2>&1; done; echo visible $CUDA_VISIBLE_DEVICES"
    number = cluster.submit(
        "anna", "sleep 3; srun trainyard-run %s -- sh -c %s" % (IMAGE, shlex.quote(look))
    )
    cluster.reaches(number, "RUNNING")
    own = cluster.gpus(number)
    cluster.reaches(number, "COMPLETED")
    told = cluster.output("anna", number)
    assert own != [taken] and "visible 0\n" in told, told
    assert [line for line in told.splitlines() if line.startswith("/dev/nvidia")] == [
        "/dev/nvidia%d" % own[0]
    ], told
    assert (
        told.count("No such device or address") == 1 and told.count("Operation not permitted") == 0
    ), told
    script = cluster.put("own_podman.sh", OWN_PODMAN)
    number = cluster.submit("anna", "sleep 3; sh " + script)
    cluster.reaches(number, "RUNNING")
    own = cluster.gpus(number)
    cluster.reaches(number, "COMPLETED", "FAILED")
    *told, group = cluster.output("anna", number).splitlines()
    assert [line.rpartition(": ")[2] for line in told] == [
        "No such device or address" if index in own else "Operation not permitted"
        for index in range(4)
    ]
    assert "/job_%s/" % number in group


def test_a_job_that_takes_too_much_memory_ends_alone(cluster):
    former = cluster.boot_id(cluster.peer)
    other = cluster.submit("ben", "exec sleep 600")
    greedy = cluster.submit("anna", "exec python3 -c 'print(len(bytearray(400 << 20)))'")
    cluster.reaches(other, "RUNNING")
    cluster.reaches(greedy, "OUT_OF_MEMORY")
    assert (
        cluster.on(
            cluster.head,
            "sacct --noheader --parsable2 --allocations --format=State --jobs=" + greedy,
        ).out.strip()
        == "OUT_OF_MEMORY"
    )
    assert str(400 << 20) not in cluster.output("anna", greedy)
    assert (
        cluster.job(other)[0] == "RUNNING"
        and cluster.boot_id(cluster.peer) == former
        and cluster.node(cluster.peer) in ("mixed", "allocated")
    )
    # What is in /dev/shm counts as the job's memory. With a size near the memory, podman's own
    # share decides, and the kernel may read its pages again forever.
    contained = cluster.in_container(
        "anna",
        "cat /dev/zero > /dev/shm/full && echo survived",
        "--export=ALL,TRAINYARD_SHM_SIZE=400m",
    )
    cluster.reaches(contained, "OUT_OF_MEMORY", "FAILED")
    assert "survived" not in cluster.output("anna", contained)
