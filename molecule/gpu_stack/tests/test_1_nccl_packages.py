"""Both packages at one version in spite of newer ones; another version, one that does not exist,
and removal.
"""

from __future__ import annotations

import pytest
from packages_left import packages_that_differ

HOST = "gpu-stack-b"
ROLE = "nccl"
testinfra_hosts = ["ansible://" + HOST]
NAMES = ("libnccl2", "libnccl-dev")
OLD_LIST = "/etc/apt/sources.list.d/cuda-ubuntu2204-x86_64.list"
SOURCE = "/etc/apt/sources.list.d/trainyard-nvidia-cuda-ubuntu.sources"
PREFERENCES = "/etc/apt/preferences.d/trainyard-nccl"


def versions(host):
    return [
        host.check_output("dpkg-query --show --showformat '${Version} ${db:Status-Want}' %s" % name)
        for name in NAMES
    ]


def test_both_are_at_the_version_of_that_cuda_and_held(host):
    assert versions(host) == ["2.21.5-1+cuda12.4 hold"] * 2
    assert host.file("/usr/include/nccl.h").exists


def test_no_repository_for_another_system_is_left(host):
    assert not host.file(SOURCE).exists and not host.file(OLD_LIST).exists
    assert "ubuntu" not in host.check_output("apt-cache policy")
    # apt reports no conflict.
    assert host.run("apt-get update").rc == 0


def test_no_upgrade_changes_the_packages(host):
    """Even if somebody adds the repository again and removes the holds, because of the pin."""
    ring = "/etc/apt/keyrings/trainyard-nvidia-cuda-ubuntu.gpg"
    host.check_output(
        f"echo 'deb [signed-by={ring}] file:///srv/vendor/compute/cuda/repos/ubuntu2204/x86_64/ /' > {OLD_LIST}"
    )
    try:
        assert "2.27.7-1+cuda13.0" in host.check_output(
            "apt-get update > /dev/null && apt-cache madison libnccl2"
        )
        assert "libnccl" not in host.check_output("apt-get --simulate dist-upgrade").replace(
            "libnccl-dev libnccl2", ""
        )
        candidate = host.check_output("apt-cache policy libnccl2 | sed -n 's/ *Candidate: //p'")
        simulated = host.check_output("apt-get --simulate --ignore-hold dist-upgrade")
        assert candidate == "2.21.5-1+cuda12.4" and "Inst libnccl" not in simulated
    finally:
        host.check_output(f"rm {OLD_LIST}; apt-get update > /dev/null")


def test_another_version_in_one_go(role, host):
    done = role(nccl_version="2.18.5-1+cuda12.2", nccl_cuda="")
    assert done.code == 0 and versions(host) == ["2.18.5-1+cuda12.2 hold"] * 2
    assert "Pin: version 2.18.5-1+cuda12.2" in host.file(PREFERENCES).content_string
    assert not host.file(SOURCE).exists


@pytest.mark.acceptance
@pytest.mark.usefixtures("host")
def test_the_same_version_in_other_words_changes_nothing(role):
    assert role(nccl_version="2.18.5", nccl_cuda="12.2").changed == 0


def test_a_version_that_does_not_exist(role, host):
    done = role(nccl_version="2.21.4-1+cuda12.4", nccl_cuda="")
    assert done.code == 2 and "available versions of libnccl2: 2.21.5-1+cuda12.4" in done.text
    assert "libnccl2 2.21.4-1+cuda12.4 in ubuntu2204 is not in the compatibility data" in done.text
    assert versions(host) == ["2.18.5-1+cuda12.2 hold"] * 2 and not host.file(SOURCE).exists


@pytest.mark.acceptance
def test_a_key_that_is_another(role, host):
    done = role(
        nccl_version="2.21.5-1+cuda12.4",
        nccl_cuda="",
        package_sources_nvidia_keyring_checksum="sha256:" + "0" * 64,
    )
    assert done.code == 2 and "has the SHA-256 checksum" in done.text
    assert versions(host) == ["2.18.5-1+cuda12.2 hold"] * 2


@pytest.mark.acceptance
def test_a_hold_that_somebody_has_lifted(role, host):
    host.check_output("apt-mark unhold libnccl2")
    assert role(nccl_version="2.18.5", nccl_cuda="12.2").changed > 0
    assert versions(host) == ["2.18.5-1+cuda12.2 hold"] * 2


def test_all_of_it_is_taken_back(role, host):
    assert role("remove").code == 0
    assert packages_that_differ(host) == []
    assert (
        not host.file(PREFERENCES).exists
        and host.check_output("find /var/lib/trainyard -name 'nccl*'") == ""
    )


@pytest.mark.acceptance
@pytest.mark.usefixtures("host")
def test_a_second_removal_changes_nothing(role):
    assert role("remove").changed == 0
