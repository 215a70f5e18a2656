"""Branches of the archive that are empty, and the driver of NVIDIA's repository, which has Ubuntu's
maintainer, too.
"""

from __future__ import annotations

import pytest

HOST = "ubuntu-noble"
ROLE = "nvidia_driver"
testinfra_hosts = ["ansible://" + HOST]
INSTALLED = "dpkg-query --show --showformat '${Package} ${Version} ${db:Status-Abbrev}\n' '*nvidia*' | grep '[hi]i '"


def driver(host):
    """Versions of the installed packages by name."""
    lines = host.run(INSTALLED).stdout.splitlines()
    return {line.split()[0]: line.split()[1] for line in lines}


def test_it_is_removed(role, host):
    assert role("remove").code == 0
    assert driver(host) == {}


def test_an_empty_branch_is_not_taken_for_a_driver(role, host):
    """nvidia-utils-570-server and its like depend on those of branch 580, and hold nothing."""
    done = role(nvidia_driver_version="570")
    assert "580" in done.text
    assert [name for name in driver(host) if "-570-" in name] == []
    if done.code == 0:
        assert role("remove").code == 0


@pytest.mark.acceptance
def test_the_driver_of_nvidias_repository_twice(role, host, alone):
    asked = {"nvidia_driver_source": "nvidia_repository", "nvidia_driver_version": "570"}
    done = role(**asked)
    assert done.code == 0, done.text[-3000:]
    assert driver(host)["nvidia-utils-570"].startswith("570.172.08-0ubuntu1")
    again = role(**asked)
    assert (again.code, again.changed) == (0, 0), again.text[-3000:]
    judged = alone(HOST, "preflight.yml", **asked)
    assert judged.code == 0 and "drv-mixed-source" not in judged.text
    assert role("remove").code == 0 and driver(host) == {}


@pytest.mark.acceptance
def test_the_container_toolkit(role, host):
    """Its proof needs GPUs that answer: scenario gpu_stack has it."""
    asked = {"of": "container_toolkit", "container_toolkit_version": "1.17.7"}
    assert role(container_toolkit_proof_image="", **asked).code == 0
    assert host.package("nvidia-container-toolkit").version == "1.17.7-1"
    assert role("remove", of="container_toolkit").code == 0
