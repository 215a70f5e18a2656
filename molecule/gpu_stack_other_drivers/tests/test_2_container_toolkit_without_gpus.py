"""A host without a GPU for which the toolkit is requested.

It had one for the tests of the driver, which have left nothing.
"""

from __future__ import annotations

import pytest

HOST = "other-drivers-a"
ROLE = "container_toolkit"
testinfra_hosts = ["ansible://" + HOST]


def test_nothing_of_nvidias_is_there(host, role):
    host.run_expect([0], "umount /sys/bus/pci/devices")
    run = role(container_toolkit_version="1.17.7")
    assert (run.code, run.changed) == (0, 0)
    assert (
        host.check_output(
            "dpkg-query --show --showformat '${Package}\n' '*nvidia*' 2>/dev/null || true"
        )
        == ""
    )
    assert not host.file("/etc/docker/daemon.json").exists
    assert (
        host.check_output("find /etc/apt /var/lib/trainyard -name '*nvidia*' 2>/dev/null || true")
        == ""
    )


@pytest.mark.acceptance
def test_the_role_says_why(host, role):
    run = role(container_toolkit_version="1.17.7")
    assert (run.code, run.changed) == (0, 0)
    assert "no NVIDIA GPU on this host" in run.text


@pytest.mark.acceptance
def test_nothing_is_requested(host, role):
    run = role(container_toolkit_version="")
    assert (run.code, run.changed) == (0, 0)
    assert "container toolkit if requested] ***" in run.text and "no NVIDIA GPU" not in run.text
