"""nccl-tests with the installed NCCL, with MPI if requested: built once, and removed by the
record.
"""

from __future__ import annotations

import json

import pytest

HOST = "gpu-stack-a"
ROLE = "nccl_tests"
testinfra_hosts = ["ansible://" + HOST]
RECORD = "/var/lib/trainyard/placed.d/nccl_tests.json"
# What nccl-tests need of it: a header, and a library of Open MPI's name.
MPI = """
mkdir -p /srv/mpi/include /srv/mpi/lib && cd /srv/mpi &&
echo 'extern "C" int MPI_Comm_size(int, int *ranks);' > include/mpi.h &&
echo 'extern "C" int MPI_Comm_size(int, int *ranks) { *ranks = 2; return 0; }' | g++ -shared -fPIC -Wl,-soname,libmpi.so.40 -o lib/libmpi.so.40 -x c++ - &&
ln -s libmpi.so.40 lib/libmpi.so
"""


def test_built_with_the_nccl_that_is_there(role, host):
    assert role().code == 0
    # Called by its name only, as in module nccl_all_reduce.
    assert host.check_output("all_reduce_perf") == "headers=22105 library=22105 ranks=0"
    record = json.loads(host.file(RECORD).content_string)
    assert set(record["files"]) == {
        "/usr/local/bin/all_reduce_perf",
        "/usr/local/bin/sendrecv_perf",
    }
    assert (record["build"]["nccl"], record["build"]["nccl_home"], record["build"]["cuda"]) == (
        "2.21.5",
        "/usr/local",
        "12.4.131",
    )
    assert (
        "Installed /usr/local/bin/all_reduce_perf"
        in host.file("/var/log/trainyard/nccl_tests.log").content_string
    )
    assert host.check_output("ls /var/tmp | grep nccl || true") == ""


@pytest.mark.acceptance
@pytest.mark.usefixtures("host")
def test_a_second_run_builds_nothing(role):
    assert role().changed == 0


@pytest.mark.acceptance
def test_mpi_is_built_in_when_asked(role, host):
    done = role(nccl_tests_mpi=True, nccl_tests_mpi_home="/srv/mpi")
    assert done.code == 2 and "There is no mpi.h in /srv/mpi/include" in done.text
    host.check_output(MPI)
    assert role(nccl_tests_mpi=True, nccl_tests_mpi_home="/srv/mpi").code == 0
    # Found without the variables of a login shell.
    assert (
        host.check_output("env --ignore-environment /usr/local/bin/all_reduce_perf")
        == "headers=22105 library=22105 ranks=2"
    )


@pytest.mark.acceptance
def test_another_archive_is_refused_and_the_build_stays(role, host):
    done = role(nccl_tests_checksum="sha256:" + "0" * 64)
    assert done.code == 2 and "has the SHA-256 checksum" in done.text
    assert host.check_output("all_reduce_perf") == "headers=22105 library=22105 ranks=2"


@pytest.mark.acceptance
def test_another_toolkit_is_another_build(role, host):
    host.check_output("sed --in-place s/12.4/12.5/g /srv/cuda/bin/nvcc")
    done = role()
    assert done.code == 0 and done.changed > 0
    assert host.check_output("all_reduce_perf") == "headers=22105 library=22105 ranks=0"


def test_all_of_it_is_taken_back(role, host):
    assert role("remove").code == 0
    left = "find /usr/local /var/lib/trainyard /var/log/trainyard -name '*_perf' -o -name '*nccl_tests*'"
    assert host.check_output(left) == ""
    # The build of NCCL belongs to another role.
    assert (
        host.file("/usr/local/lib/libnccl.so.2").exists
        and host.file("/var/lib/trainyard/placed.d/nccl.json").exists
    )


@pytest.mark.acceptance
@pytest.mark.usefixtures("host")
def test_a_second_removal_changes_nothing(role):
    assert role("remove").changed == 0
