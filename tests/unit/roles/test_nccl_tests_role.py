"""What role nccl_tests decides on by what a host has, as far as variables decide it; scenario
gpu_stack does it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from trusted import trusted

ROLE = Path(__file__).parents[3] / "roles/nccl_tests"
OFED, OWN = "/usr/mpi/gcc/openmpi-4.1.5a1", "/usr/lib/x86_64-linux-gnu/openmpi"
NVCC = {"path": "/usr/local/cuda/bin/nvcc", "release": "12.4", "version": "12.4.131"}
PROGRAM = "/usr/local/bin/all_reduce_perf"
DIGEST = "ab" * 32


def read(name):
    return yaml.safe_load((ROLE / name).read_text(encoding="utf-8"))


def decided(*names, **given):
    """Values of the role's variables, on a host with NCCL's packages.

    The arguments name variables to evaluate; all else is what the host has.
    """
    asked = {
        key: given.pop(key)
        for key in list(given)
        if key.startswith(("nccl_tests_", "nccl_version"))
    }
    found = dict(
        {
            "nvcc": NVCC,
            "nccl_header": {"/usr/include/nccl.h": "2.21.5"},
            "packages": {"libnccl2": {"version": "2.21.5-1+cuda12.4"}},
            "open_mpi": [],
            "files": {},
            "record": {},
        },
        **given,
    )
    variables = trusted(dict(read("vars/main.yml"), **read("defaults/main.yml")))
    variables.update(
        dict({"nccl_tests_tag": "v2.17.10", "nccl_tests_checksum": "sha256:" + DIGEST}, **asked),
        __nccl_tests_found=found,
        role_path=str(ROLE),
        cluster_host={"architecture": "x86_64"},
    )
    templar = Templar(DataLoader(), variables)
    values = [templar.template(variables["__nccl_tests_" + name]) for name in names]
    return values[0] if len(values) == 1 else values


def built(**asked):
    """What the host has after a build."""
    return {
        "record": {
            "build": decided("build", **asked),
            "folders": [],
            "files": {PROGRAM: "1", "/usr/local/bin/later_perf": "2"},
        },
        "files": {PROGRAM: "1"},
    }


def test_what_is_built():
    build = decided("build", nccl_tests_compute_capabilities=["90"])
    assert build == {
        "tag": "v2.17.10",
        "source": "archive",
        "url": "https://github.com/NVIDIA/nccl-tests/archive/refs/tags/v2.17.10.tar.gz",
        "checksum": DIGEST,
        "commit": "",
        "cuda_home": "/usr/local/cuda",
        "cuda": "12.4.131",
        "nccl_home": "/usr",
        "nccl": "2.21.5",
        "nccl_package": "2.21.5-1+cuda12.4",
        "mpi_home": "",
        "compute_capabilities": ["90"],
        "make_variables": {},
        "prefix": "/usr/local",
    }
    assert (
        decided("build", nccl_tests_source="git")["url"]
        == "https://github.com/NVIDIA/nccl-tests.git"
    )
    assert decided("packages") == ["g++", "make"] and decided(
        "packages", nccl_tests_source="git"
    ) == ["g++", "make", "git"]


@pytest.mark.parametrize(
    "changed, is_built",
    [
        ({}, True),
        # The same sources of another place.
        ({"nccl_tests_url": "https://mirror.example/nccl-tests.tar.gz"}, True),
        ({"nccl_tests_timeout": 60}, True),
        ({"nccl_tests_tag": "v2.17.9"}, False),
        ({"nccl_tests_checksum": "sha256:" + "cd" * 32}, False),
        ({"nccl_tests_mpi": "true"}, False),
        ({"nccl_tests_compute_capabilities": ["90"]}, False),
        ({"nccl_tests_make_variables": {"CXXSTD": "-std=c++17"}}, False),
        ({"nccl_tests_prefix": "/opt/nccl-tests"}, False),
        ({"nccl_header": {"/usr/include/nccl.h": "2.22.3"}}, False),
        # One release, built for another CUDA.
        ({"packages": {"libnccl2": {"version": "2.21.5-1+cuda12.2"}}}, False),
        ({"nvcc": dict(NVCC, version="12.4.99")}, False),
        # Somebody has replaced it, or removed it.
        ({"files": {PROGRAM: "3"}}, False),
        ({"files": {}}, False),
        ({"record": {}}, False),
    ],
)
def test_built_again_only_when_something_is_another(changed, is_built):
    assert decided("has_build", **dict(built(), **changed)) is is_built


def test_mpi_where_asked():
    assert decided("mpi_home", open_mpi=[OFED, OWN]) == ""
    assert decided("mpi_home", "packages", nccl_tests_mpi=True) == [
        OWN,
        ["g++", "make", "openmpi-bin", "libopenmpi-dev"],
    ]
    # The vendor's is found, never installed.
    assert decided("mpi_home", "packages", nccl_tests_mpi=True, open_mpi=[OFED, OWN]) == [
        OFED,
        ["g++", "make"],
    ]
    assert (
        decided("mpi_home", nccl_tests_mpi="yes", nccl_tests_mpi_home="/opt/mpi", open_mpi=[OFED])
        == "/opt/mpi"
    )


def test_mpi_that_has_gone_since():
    host = built(nccl_tests_mpi=True)
    assert decided("has_build", nccl_tests_mpi=True, open_mpi=[OWN], **host) is True
    assert decided("has_build", nccl_tests_mpi=True, **host) is False
    # The vendor's OFED has come: that is what its fabric is for.
    assert decided("has_build", nccl_tests_mpi=True, open_mpi=[OFED, OWN], **host) is False


def test_the_nccl_that_is_there():
    source = {"nccl_header": {"/usr/local/nccl-2.21/include/nccl.h": "2.21.5"}}
    assert decided("nccl_home", "nccl", "nccl_package", "problem", **source) == [
        "/usr/local/nccl-2.21",
        "2.21.5",
        "",
        "",
    ]
    both = {"nccl_header": {"/usr/include/nccl.h": "2.21.5", "/usr/local/include/nccl.h": "2.19.3"}}
    assert (
        "more than one NCCL, in /usr, /usr/local. Set nccl_tests_nccl_home to one of them"
        in decided("problem", **both)
    )
    assert decided("nccl", "problem", nccl_tests_nccl_home="/usr/local", **both) == ["2.19.3", ""]


@pytest.mark.parametrize(
    "given, problem",
    [
        (
            {"nvcc": {}},
            "/usr/local/cuda/bin/nvcc does not exist, and nccl-tests need nvcc. Set cuda_toolkit_versions",
        ),
        # That of the PATH, which wasn't asked for.
        ({"nvcc": dict(NVCC, path="/usr/bin/nvcc")}, "/usr/local/cuda/bin/nvcc does not exist"),
        ({"nccl_header": {}}, "There is no nccl.h on this host. Set nccl_version"),
        ({"nccl_tests_nccl_home": "/usr/local"}, "There is no nccl.h in /usr/local/include"),
        (
            {"nccl_version": "2.22.3-1+cuda12.5"},
            "NCCL is 2.21.5 in /usr, but nccl_version requests 2.22.3",
        ),
        ({"nccl_version": "2.21.5-1+cuda12.4"}, ""),
        ({"nccl_version": "2.22.3"}, "NCCL is 2.21.5 in /usr, but nccl_version requests 2.22.3"),
        ({"nccl_version": "2.21.5"}, ""),
        ({"open_mpi": [OFED, "/usr/mpi/gcc/openmpi-4.1.7"]}, ""),
        (
            {"open_mpi": [OFED, "/usr/mpi/gcc/openmpi-4.1.7"], "nccl_tests_mpi": True},
            "more than one Open MPI of the vendor",
        ),
        (
            {"nccl_tests_mpi": True, "nccl_tests_mpi_home": "/opt/mpi"},
            "no mpi.h in /opt/mpi/include",
        ),
        (
            {
                "nccl_tests_mpi": True,
                "nccl_tests_mpi_home": "/opt/mpi",
                "files": {"/opt/mpi/include/mpi.h": "1"},
            },
            "",
        ),
        ({"nccl_tests_mpi": True}, ""),
    ],
)
def test_what_stands_in_the_way(given, problem):
    found = decided("problem", **given)
    assert problem in found and bool(problem) is bool(found)


def test_nothing_is_taken_for_built_where_something_stands_in_the_way():
    host = built()
    assert decided("has_build", **dict(host, nvcc={})) is False
