"""The driver from NVIDIA's installer: unattended, with a log, installed once, and removed by its
uninstaller.
"""

from __future__ import annotations

import pytest
from packages_left import packages_that_differ

HOST = "other-drivers-b"
ROLE = "nvidia_driver"
testinfra_hosts = ["ansible://" + HOST]
LIBRARY = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"


def test_installer_has_done_it_and_kept_its_log(host):
    assert host.file(LIBRARY).linked_to.endswith("libnvidia-ml.so.550.54.15")
    log = host.file("/var/log/trainyard/nvidia_driver.log").content_string
    assert "installer version: 550.54.15" in log and "--silent" in log
    # A container uses its host's kernel.
    assert "--no-kernel-modules" in log
    assert (
        host.service("nvidia-persistenced").is_enabled
        and not host.service("nvidia-persistenced").is_running
    )


def test_daemon_runs_where_the_module_is_loaded(host):
    host.run_expect([0], "systemctl start nvidia-persistenced")
    assert not host.service("nvidia-persistenced").is_running
    host.run_expect(
        [0],
        "mount -t tmpfs driver /proc/driver && mkdir /proc/driver/nvidia && touch /proc/driver/nvidia/version",
    )
    try:
        host.run_expect([0], "systemctl start nvidia-persistenced")
        assert host.service("nvidia-persistenced").is_running
    finally:
        host.run("systemctl stop nvidia-persistenced; umount /proc/driver")


@pytest.mark.acceptance
def test_installer_is_not_run_again(host, role):
    host.run_expect([0], "rm /var/log/trainyard/nvidia_driver.log")
    assert role().changed == 0
    assert not host.file("/var/log/trainyard/nvidia_driver.log").exists


def test_file_that_is_another_is_refused(host, role):
    host.run_expect(
        [0],
        "rm -f /var/lib/trainyard/nvidia_driver.run; cp /srv/NVIDIA-Linux-x86_64-550.54.15.run /srv/NVIDIA-Linux-x86_64-570.124.06.run",
    )
    run = role(
        nvidia_driver_version="570.124.06",
        nvidia_driver_runfile_url="file:///srv/NVIDIA-Linux-x86_64-570.124.06.run",
        nvidia_driver_runfile_checksum="sha256:" + "0" * 64,
    )
    assert run.code != 0 and "checksum" in run.text
    assert host.file(LIBRARY).linked_to.endswith("libnvidia-ml.so.550.54.15")


@pytest.mark.acceptance
def test_packages_over_an_installers_files_are_refused(host, role):
    run = role(nvidia_driver_source="nvidia_repository", nvidia_driver_version="550")
    assert run.code != 0 and run.changed == 0
    assert (
        "a driver from NVIDIA's installer is installed" in run.text
        and "nvidia-uninstall" in run.text
    )


def test_teardown_leaves_what_was_there(host, role):
    # The playbook has also run this role.
    assert role("remove", of="package_sources").code == 0
    assert role("remove").code == 0
    assert packages_that_differ(host, alone=True) == []
    left = host.check_output(
        "find /etc /usr/bin /usr/lib/x86_64-linux-gnu -not -path /etc/ld.so.cache \\( -type f -o -type l \\) | sort | "
        "comm -13 /srv/files -"
    )
    assert left == ""
    assert not host.file("/var/lib/nvidia").exists
