"""A build from source: installed with a record, built once, and removed by the record."""

from __future__ import annotations

import json

import pytest
from packages_left import packages_that_differ

HOST = "gpu-stack-a"
ROLE = "nccl"
testinfra_hosts = ["ansible://" + HOST]
RECORD = "/var/lib/trainyard/placed.d/nccl.json"


def test_it_is_installed(host):
    assert "libnccl.so.2 (libc6,x86-64) => /usr/local/lib/libnccl.so.2" in host.check_output(
        "ldconfig --print-cache"
    )
    assert "prefix=/usr/local\n" in host.file("/usr/local/lib/pkgconfig/nccl.pc").content_string
    version = "import ctypes; n = ctypes.c_int(); ctypes.CDLL('libnccl.so.2').ncclGetVersion(ctypes.byref(n)); print(n.value)"
    assert host.check_output('python3 -c "%s"' % version) == "22105"
    assert (
        "Installed /usr/local/lib/libnccl.so.2.21.5"
        in host.file("/var/log/trainyard/nccl.log").content_string
    )
    assert set(json.loads(host.file(RECORD).content_string)["files"]) == {
        "/usr/local/include/nccl.h",
        "/usr/local/lib/pkgconfig/nccl.pc",
        *("/usr/local/lib/libnccl.so" + end for end in ("", ".2", ".2.21.5")),
    }
    assert host.check_output("ls /var/tmp | grep nccl || true") == ""


@pytest.mark.acceptance
def test_another_archive_is_refused_and_the_build_stays(role, host):
    done = role(nccl_checksum="sha256:" + "0" * 64)
    assert done.code == 2 and "has the SHA-256 checksum" in done.text
    assert host.file("/usr/local/lib/libnccl.so.2").exists


@pytest.mark.acceptance
def test_packages_would_be_those_of_the_release(role, host):
    """Debian 13 uses the packages of the Ubuntu whose C library is not newer, which differs from
    Debian 12's.
    """
    assert host.system_info.codename == "trixie"
    done = role(nccl_source="repository", nccl_version="2.21.4-1+cuda12.4", nccl_cuda="")
    assert (
        done.code == 2
        and "libnccl2 2.21.4-1+cuda12.4 in ubuntu2404 is not in the compatibility data" in done.text
    )
    assert host.file("/usr/local/lib/libnccl.so.2").exists


@pytest.mark.acceptance
def test_packages_take_its_place(role, host):
    assert role(nccl_source="repository", nccl_version="2.21.5", nccl_cuda="12.4").code == 0
    assert not host.file("/usr/local/lib/libnccl.so.2").exists and not host.file(RECORD).exists
    assert "/lib/x86_64-linux-gnu/libnccl.so.2" in host.check_output("ldconfig --print-cache")
    assert role().code == 0
    assert (
        not host.package("libnccl2").is_installed
        and host.file("/usr/local/lib/libnccl.so.2").exists
    )
    assert role().changed == 0


def test_all_of_it_is_taken_back(role, host):
    assert role("remove").code == 0
    assert packages_that_differ(host) == []
    assert (
        host.check_output(
            "find /usr/local -name '*nccl*'; find /var/lib/trainyard /var/log/trainyard -name 'nccl*'"
        )
        == ""
    )


@pytest.mark.acceptance
@pytest.mark.usefixtures("host")
def test_a_second_removal_changes_nothing(role):
    assert role("remove").changed == 0
