"""A login on a training host belongs to the job of the person, has its limits and ends with it."""

from __future__ import annotations

import subprocess

from conftest import OPEN_GPUS


def test_a_login_is_part_of_the_job(cluster):
    cluster.idle()
    *ssh, target = cluster.ssh(cluster.peer)
    person = [word for word in ssh if word != "-q"] + ["anna@" + target.partition("@")[2]]
    refused = subprocess.run(
        [*person, "true"], text=True, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
    )
    assert refused.returncode and "you have no active jobs on this node" in refused.stderr, (
        refused.stderr
    )
    script = cluster.put("open_gpus.py", OPEN_GPUS)
    number = cluster.submit("anna", "exec sleep 600")
    cluster.reaches(number, "RUNNING")
    own = cluster.gpus(number)
    told = cluster.login(
        "anna",
        cluster.peer,
        "cat /proc/self/cgroup; python3 %s; grep -c nvidia /proc/self/mounts" % script,
    )
    assert "/job_%s/step_extern" % number in told.out and "user.slice" not in told.out, told.out
    assert " ".join("ENXIO" if index in own else "EPERM" for index in range(4)) in told.out, (
        told.out
    )
    # ben has no job there.
    assert cluster.login("ben", cluster.peer, "true").code != 0
    with subprocess.Popen([*person, "exec sleep 555"], stdin=subprocess.DEVNULL) as session:
        cluster.wait(
            "the session",
            60,
            lambda: cluster.on(cluster.peer, "pgrep --full 'sleep 555'", check=False).out,
        )
        cluster.on(cluster.head, "scancel " + number)
        session.wait(timeout=120)
    cluster.wait("nothing is left", 60, lambda: cluster.left("anna") == "")
    assert cluster.login("anna", cluster.peer, "true").code != 0
