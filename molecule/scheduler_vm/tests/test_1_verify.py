"""verify.yml on hosts that limit jobs: check scheduler-isolation is good, and a cgroup.conf that
somebody has changed makes it fail and drains the nodes.
"""

from __future__ import annotations

import json

import pytest

# Two runs of verify.
pytestmark = pytest.mark.acceptance

ROLE = "verify"
CONF = "/etc/slurm/cgroup.conf"


def isolation(cluster, name):
    """The check of each host.

    These hosts have no training container, so the verdict of the whole is never good.
    """
    folder = cluster.state / name
    # The inventory of virtual hosts switches jobs of verify off, because bandwidths mean nothing
    # there.
    run = cluster.play(
        "verify.yml",
        verify_report_dir=str(folder),
        verify_timeout=60,
        verify_measure_bandwidth=True,
    )
    reports = list(folder.glob("*/report.json"))
    assert len(reports) == 1, run
    checks = json.loads(reports[0].read_text(encoding="utf-8"))["checks"]
    found = {}
    for check in checks:
        if check["id"] == "scheduler-isolation":
            found.update(dict.fromkeys(check["host"].split(", "), check))
    return found


def loaded(cluster):
    """The daemons read the file again."""
    cluster.on(cluster.head, "scontrol reconfigure")
    for host in cluster.hosts:
        cluster.on(host, "systemctl restart slurmd")
    cluster.wait(
        "all nodes answer",
        120,
        lambda: "*" not in cluster.on(cluster.head, "sinfo --noheader --Node --format %T").out,
    )


def test_jobs_are_separated(cluster):
    found = isolation(cluster, "separated")
    assert sorted(found) == sorted(cluster.hosts)
    for check in found.values():
        assert (
            check["verdict"] == "pass"
            and "4 devices are closed, and its memory is limited" in check["found"]
        ), check


def test_devices_that_are_not_limited(cluster):
    cluster.on(
        cluster.head,
        "cp --preserve {0} /root/cgroup.conf && sed --in-place /ConstrainDevices/d {0}".format(
            CONF
        ),
    )
    try:
        loaded(cluster)
        found = isolation(cluster, "planted")
        for host in cluster.hosts:
            check = found[host]
            assert (
                check["verdict"] == "fail"
                and "it can open /dev/nvidia0, /dev/nvidia1, /dev/nvidia2, /dev/nvidia3"
                in check["found"]
            ), check
            assert (
                "scheduler-isolation"
                in cluster.on(cluster.head, "sinfo --noheader --nodes=%s --format %%E" % host).out
            )
    finally:
        cluster.on(cluster.head, "mv /root/cgroup.conf " + CONF)
        loaded(cluster)
        for host in cluster.hosts:
            cluster.on(cluster.head, "scontrol update nodename=%s state=resume" % host, check=False)
