"""CUDA 11.4.4 from a runfile: verified, unattended, without its driver, and removed completely."""

from __future__ import annotations

import pytest
from packages_left import packages_that_differ

HOST = "other-drivers-b"
ROLE = "cuda_toolkit"
testinfra_hosts = ["ansible://" + HOST]


def test_the_toolkit_alone_is_installed(host):
    assert "release 11.4," in host.check_output("bash -lc 'nvcc --version'")
    assert host.check_output("readlink --canonicalize /usr/local/cuda") == "/usr/local/cuda-11.4"
    log = host.file("/var/log/trainyard/cuda_toolkit.log").content_string
    assert "Toolkit:  Installed in /usr/local/cuda-11.4/" in log and "Driver:   Not Selected" in log
    # The file was removed. systemd has folders for its own services there.
    assert host.check_output("ls --ignore='systemd-private-*' /var/tmp") == ""


@pytest.mark.acceptance
def test_another_file_is_refused(role, host):
    runfile = {
        "version": "11.6.2",
        "url": "file:///srv/cuda_11.4.4_470.82.01_linux.run",
        "checksum": "sha256:" + "0" * 64,
    }
    done = role(cuda_toolkit_runfiles=[runfile])
    assert done.code == 2 and "checksum" in done.text
    assert not host.file("/usr/local/cuda-11.6").exists


def test_all_of_it_is_taken_back(role, host):
    assert role("remove").code == 0
    assert host.check_output("ls -d /usr/local/cuda* /etc/ld.so.conf.d/cuda* || true") == ""
    assert packages_that_differ(host, alone=True) == []
    assert host.check_output("find /var/lib/trainyard /var/log/trainyard -name 'cuda*'") == ""


@pytest.mark.acceptance
@pytest.mark.usefixtures("host")
def test_a_second_removal_changes_nothing(role):
    assert role("remove").changed == 0
