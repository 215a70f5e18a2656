"""The driver from NVIDIA's repository: all parts at one version, held, changed only on request, and
removed.
"""

from __future__ import annotations

import pytest
from packages_left import packages_that_differ

HOST = "gpu-stack-a"
ROLE = "nvidia_driver"
testinfra_hosts = ["ansible://" + HOST]
# For unattended-upgrades, whose default list has only Debian's security updates.
EAGER = 'Unattended-Upgrade::Origins-Pattern { "origin=NVIDIA"; };'
NAMES = "dpkg-query --show --showformat '${Package}\n' | sort"


def driver(host):
    """Version and state of all packages of the driver, by version."""
    # Without patterns: dpkg-query fails if one matches nothing.
    words = host.check_output(
        "dpkg-query --show --showformat '${Package} ${Version} ${db:Status-Abbrev}\n' | grep -E '^[^ ]*nvidia|^cuda|^libcuda'"
    )
    found = {}
    for name, version, state in (
        line.split()
        for line in words.splitlines()
        if len(line.split()) == 3 and line.split()[2][1] == "i"
    ):
        found.setdefault(version, {})[name] = state
    return found


def test_repository_is_that_of_the_release(host):
    """Debian 13 has its own folder and a keyring package with the configured checksum."""
    assert host.system_info.codename == "trixie"
    source = host.file("/etc/apt/sources.list.d/trainyard-nvidia-cuda.sources").content_string
    assert "URIs: file:///srv/vendor/compute/cuda/repos/debian13/x86_64/\n" in source
    assert "Signed-By: /etc/apt/keyrings/trainyard-nvidia-cuda.gpg\n" in source
    assert "repos/debian13/x86_64" in host.check_output(
        "apt-cache policy nvidia-smi"
    ) and "debian12" not in host.check_output("apt-cache policy")


def test_all_parts_are_of_the_version_that_is_asked_for_and_held(host):
    """The repository has newer versions, which apt would install without a requested version."""
    found = driver(host)
    assert set(found) == {"550.54.15-1"}
    assert set(found["550.54.15-1"].values()) == {"hi"}
    # An H100 works with either kernel module. Before branch 560 the role selects the proprietary
    # one.
    assert {
        "cuda-drivers-550",
        "nvidia-kernel-dkms",
        "nvidia-smi",
        "nvidia-persistenced",
        "libnvidia-ml1",
    } <= set(found["550.54.15-1"])
    assert "nvidia" not in host.check_output("apt-get --simulate dist-upgrade | grep ^Inst || true")


def test_nouveau_is_out_and_the_daemon_is_enabled_and_not_started(host):
    assert (
        "blacklist nouveau\noptions nouveau modeset=0\n"
        in host.file("/etc/modprobe.d/trainyard-nvidia-driver.conf").content_string
    )
    assert (
        host.service("nvidia-persistenced").is_enabled
        and not host.service("nvidia-persistenced").is_running
    )


def test_unattended_upgrades_leave_it_alone(host):
    """Held packages do not change.

    Packages that were installed later and are not held, such as Fabric Manager, are excluded by the
    role's list: without it the newer version of the branch would be installed.
    """
    host.run_expect([0], f"{NAMES} > /srv/before")
    host.run_expect(
        [0],
        "DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes --no-install-recommends unattended-upgrades "
        "nvidia-fabricmanager-550=550.54.15-1",
    )
    held = driver(host)
    host.run_expect([0], f"echo '{EAGER}' > /etc/apt/apt.conf.d/99eager")
    try:
        host.run_expect([0], "unattended-upgrade --debug")
        assert driver(host) == held
        host.run_expect([0], "mv /etc/apt/apt.conf.d/52trainyard-nvidia-driver /srv")
        host.run_expect([0], "unattended-upgrade --debug")
        assert (
            host.package("nvidia-fabricmanager-550").version == "550.163.01-1"
            and host.package("nvidia-smi").version == "550.54.15-1"
        )
    finally:
        host.run(
            "mv /srv/52trainyard-nvidia-driver /etc/apt/apt.conf.d; rm /etc/apt/apt.conf.d/99eager"
        )
        host.run_expect([0], f"apt-get purge --quiet=2 --yes $({NAMES} | comm -13 /srv/before -)")
        # unattended-upgrade creates an empty file if there is none.
        host.run_expect(
            [0],
            "grep --quiet --line-regexp /etc/apt/sources.list /srv/files || rm --force /etc/apt/sources.list",
        )


def test_what_is_loose_is_held_again(host, role):
    host.run_expect([0], "apt-mark unhold nvidia-smi")
    assert role().changed == 1
    assert set(driver(host)["550.54.15-1"].values()) == {"hi"}


@pytest.mark.acceptance
@pytest.mark.usefixtures("host")
def test_a_second_run_holds_nothing(role):
    assert role().changed == 0


@pytest.mark.acceptance
@pytest.mark.parametrize(
    "variables, said",
    [
        (
            {"nvidia_driver_version": "550.54.99"},
            "no driver 550.54.99: available versions of nvidia-smi: 550.54.15-1",
        ),
        (
            {"nvidia_driver_source": "distribution"},
            "a driver from packages of NVIDIA's repository is installed",
        ),
        (
            {"nvidia_driver_source": "runfile", "nvidia_driver_runfile_url": "file:///nowhere.run"},
            "a driver from packages of NVIDIA's repository is installed",
        ),
    ],
)
def test_what_can_not_be_is_refused_and_changes_nothing(host, role, variables, said):
    before = driver(host)
    run = role(**variables)
    assert run.code != 0 and said in run.text
    assert (driver(host), run.changed) == (before, 0)


@pytest.mark.acceptance
def test_gpus_that_need_the_other_kernel_module(host, role):
    """A B200, then a V100, instead of the H100."""
    device = "/sys/bus/pci/devices/0000:01:00.0/device"
    try:
        host.run_expect([0], f"echo 0x2901 > {device}")
        assert (
            "works only with the open one"
            in role(nvidia_driver_version="570", nvidia_driver_kernel_module="proprietary").text
        )
        host.run_expect([0], f"echo 0x1db6 > {device}")
        assert (
            "works only with the proprietary one"
            in role(nvidia_driver_version="570", nvidia_driver_kernel_module="open").text
        )
    finally:
        host.run_expect([0], f"echo 0x2330 > {device}")


@pytest.mark.acceptance
def test_another_branch_replaces_the_whole_driver(host, role):
    """With Fabric Manager, as on a host with an NVSwitch, and with the open kernel module, which is
    selected from 560 on.
    """
    assert role(nvidia_driver_version="570", nvidia_driver_fabric_manager="always").code == 0
    found = driver(host)
    assert set(found) == {"570.172.08-1"} and set(found["570.172.08-1"].values()) == {"hi"}
    assert {"nvidia-open", "nvidia-kernel-open-dkms", "nvidia-fabricmanager-570"} <= set(
        found["570.172.08-1"]
    )
    assert not {"cuda-drivers-550", "nvidia-kernel-dkms"} & set(found["570.172.08-1"])
    assert role(nvidia_driver_version="570", nvidia_driver_fabric_manager="always").changed == 0


@pytest.mark.acceptance
def test_way_back_leaves_nothing_of_the_newer_driver(host, role):
    """Including Fabric Manager, which has no replacement."""
    assert role().code == 0
    assert (
        set(driver(host)) == {"550.54.15-1"} and "nvidia-kernel-dkms" in driver(host)["550.54.15-1"]
    )


@pytest.mark.acceptance
def test_reboot_that_was_skipped_is_told_by_a_run_that_changes_nothing(host, role):
    host.run_expect([0], "mount -t tmpfs driver /proc/driver && mkdir /proc/driver/nvidia")
    try:
        host.run_expect(
            [0],
            "echo 'NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Tue Mar  5 22:23:56 UTC 2024' > /proc/driver/nvidia/version",
        )
        # The daemon has a module to connect to now, as after a boot.
        host.run_expect([0], "systemctl start nvidia-persistenced")
        run = role()
        assert run.changed == 0
        assert (
            "a reboot is needed: the loaded kernel module is 535.183.01, the libraries are 550.54.15"
            in run.text
        )
        assert "kernel 6.1.0-18-amd64 boots next, but has no NVIDIA module" in run.text
        # The next boot would break the driver.
        refused = role(nvidia_driver_allow_reboot=True)
        assert (
            refused.code != 0
            and "not rebooted, because the driver would not work afterwards" in refused.text
        )
    finally:
        host.run_expect([0], "systemctl stop nvidia-persistenced; umount /proc/driver")


def test_teardown_leaves_what_was_there(host, role):
    # The playbook has also run this role.
    assert role("remove", of="package_sources").code == 0
    assert role("remove").code == 0
    assert packages_that_differ(host, alone=True) == []
    assert host.check_output("apt-mark showhold") == ""
    left = host.check_output(
        "find /etc /usr/bin /usr/lib/x86_64-linux-gnu -not -path /etc/ld.so.cache \\( -type f -o -type l \\) | sort | "
        "comm -13 /srv/files - | grep --invert-match --fixed-strings trainyard-nvidia-cuda || true"
    )
    assert left == ""


@pytest.mark.acceptance
@pytest.mark.usefixtures("host")
def test_a_second_removal_changes_nothing(role):
    assert role("remove").changed == 0
