"""Toolkits side by side and the one selected for login shells, which only the role changes."""

from __future__ import annotations

import pytest
from packages_left import packages_that_differ

HOST = "gpu-stack-b"
ROLE = "cuda_toolkit"
testinfra_hosts = ["ansible://" + HOST]
PROFILE = "/etc/profile.d/trainyard-cuda.sh"


def release(host, nvcc="nvcc"):
    return host.check_output(
        f"bash -lc '{nvcc} --version' | sed -n 's/.*release \\([0-9.]*\\),.*/\\1/p'"
    )


def test_they_lie_side_by_side_and_one_is_chosen(host):
    assert release(host) == "12.4" and release(host, "/usr/local/cuda-11.8/bin/nvcc") == "11.8"
    assert host.check_output("readlink --canonicalize /usr/local/cuda") == "/usr/local/cuda-12.4"
    assert host.package("cuda-toolkit-12-4").version == "12.4.1-1"
    held = host.check_output("apt-mark showhold").split()
    # Including dependencies: a newer nvcc in an older toolkit is not the requested toolkit.
    assert {
        "cuda-toolkit-12-4",
        "cuda-nvcc-12-4",
        "libcublas-11-8",
        "cuda-toolkit-11-8-config-common",
    } <= set(held)


def test_cudnn_is_there(host):
    assert host.package("libcudnn9-cuda-12").version == "9.1.0.70-1"


def test_login_shells_find_it_and_mpi(host):
    for shell in ("sh -u", "bash"):
        paths = host.check_output(
            f"{shell} -c '. {PROFILE}; . {PROFILE}; echo $PATH $LD_LIBRARY_PATH'"
        )
        path, libraries = paths.split()
        assert (
            path.startswith("/usr/local/cuda/bin:/usr/mpi/gcc/openmpi-4.1.5a1/bin:")
            and path.count("cuda/bin") == 1
        )
        assert libraries == "/usr/local/cuda/lib64:/usr/mpi/gcc/openmpi-4.1.5a1/lib"
    assert host.check_output("bash -lc mpirun") == "mpirun 4.1.5a1"


def test_another_one_is_chosen(role, host):
    assert role(cuda_toolkit_default="11.8", cuda_toolkit_cudnn_version="").code == 0
    assert release(host) == "11.8"


@pytest.mark.acceptance
@pytest.mark.usefixtures("host")
def test_the_same_choice_in_other_words_changes_nothing(role):
    assert role(cuda_toolkit_default="11.8.0", cuda_toolkit_cudnn_version="").changed == 0


@pytest.mark.acceptance
def test_a_newer_toolkit_by_hand_does_not_move_it(host):
    host.check_output("apt-get install --yes --no-install-recommends cuda-toolkit-12-6")
    assert host.file("/usr/local/cuda-12.6/bin/nvcc").exists and release(host) == "11.8"
    host.check_output(
        "apt-get purge --yes --auto-remove cuda-toolkit-12-6 'cuda-*-12-6' 'libcublas-12-6'"
    )


@pytest.mark.acceptance
def test_versions_that_do_not_exist(role, host):
    done = role(cuda_toolkit_versions=["12.4.9", "11.8"])
    assert done.code == 2 and "available versions of cuda-toolkit-12-4: 12.4.1-1" in done.text
    done = role(cuda_toolkit_versions=["12.4.1", "11.8", "12.5"])
    assert done.code == 2 and "no repository of this host has cuda-toolkit-12-5" in done.text
    assert host.package("cuda-toolkit-12-4").version == "12.4.1-1"


@pytest.mark.acceptance
def test_an_older_release_of_a_series(role, host):
    assert role(cuda_toolkit_versions=["12.4.0", "11.8"]).code == 0
    assert host.package("cuda-toolkit-12-4").version == "12.4.0-1"
    assert "cuda-toolkit-12-4" in host.check_output("apt-mark showhold").split()


def test_all_of_it_is_taken_back(role, host):
    assert role("remove").code == 0
    assert packages_that_differ(host) == []
    assert (
        not host.file(PROFILE).exists and host.check_output("ls -d /usr/local/cuda* || true") == ""
    )
    assert host.check_output("find /var/lib/trainyard -name 'cuda*'") == ""


@pytest.mark.acceptance
@pytest.mark.usefixtures("host")
def test_a_second_removal_changes_nothing(role):
    assert role("remove").changed == 0
