# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Builds nccl-tests at a tag, checks the programs and installs them, with a record of every file.

    TRAINYARD_NCCL_TESTS='{"tag": …}' nccl_tests_from_source.py RECORD

source_build.py of role nccl is in the same folder. Python 3.6, because role training_image uses it
in its build.
"""

import ctypes
import glob
import json
import os
import re
import shutil
import sys
import tempfile

import source_build as source

ROLE = "nccl_tests"
# Part of the driver, which may be installed later.
LATER = ("libcuda.so.1",)


def get(requested, work):
    """The folder of the sources."""
    if requested["source"] == "git":
        folder = os.path.join(work, "source")
        source.clone(ROLE, requested["url"], requested["tag"], requested["commit"], folder)
    else:
        archive = os.path.join(work, "nccl-tests.tar.gz")
        source.fetch(ROLE, requested["url"], requested["checksum"], archive)
        os.mkdir(os.path.join(work, "source"))
        folder = source.unpack(ROLE, archive, os.path.join(work, "source"), "nccl-tests")
    if not os.path.isfile(os.path.join(folder, "src", "all_reduce.cu")):
        raise source.StepError(
            (
                "nccl_tests_url: the sources are not those of nccl-tests: they have no "
                "src/all_reduce.cu"
            )
        )
    # The sources contain their version since 2.17.
    for header in glob.glob(os.path.join(folder, "src", "*.h")):
        with open(header, encoding="utf-8", errors="replace") as stream:
            for version in re.findall(
                r'^#define NCCL_TESTS_VERSION "([^"]+)"', stream.read(), re.MULTILINE
            ):
                if version != requested["tag"].lstrip("v"):
                    raise source.StepError(
                        (
                            "nccl_tests_url: the sources are those of nccl-tests %s, but "
                            "nccl_tests_tag is %s"
                        )
                        % (version, requested["tag"])
                    )
    return folder


def make_variables(requested):
    variables = (
        ["MPI=1", "MPI_HOME=" + requested["mpi_home"]] if requested["mpi_home"] else ["MPI=0"]
    )
    variables += ["CUDA_HOME=" + requested["cuda_home"], "NCCL_HOME=" + requested["nccl_home"]]
    variables += source.gpu_variables(requested["compute_capabilities"])
    return variables + [
        "%s=%s" % (name, value) for name, value in sorted(requested["make_variables"].items())
    ]


def run_path(requested):
    """Library path for the programs: mpirun's ranks on other hosts do not have the LD_LIBRARY_PATH
    of a login shell.
    """
    folders = (
        [os.path.join(requested["nccl_home"], "lib")] if requested["nccl_home"] != "/usr" else []
    )
    folders += [
        os.path.join(requested["mpi_home"], name)
        for name in ("lib", "lib64")
        if requested["mpi_home"]
    ]
    folders.append(os.path.join(requested["cuda_home"], "lib64"))
    return ":".join(folder for folder in folders if os.path.isdir(folder))


def build(requested, work):
    """Build and return the programs."""
    folder = get(requested, work)
    # The linker stores LD_RUN_PATH in the programs, because nccl-tests sets no path.
    source.run(
        "make",
        "-C",
        folder,
        "-j%d" % len(os.sched_getaffinity(0)),
        *make_variables(requested),
        LD_RUN_PATH=run_path(requested),
    )
    programs = sorted(glob.glob(os.path.join(folder, "build", "*_perf")))
    if os.path.join(folder, "build", "all_reduce_perf") not in programs:
        raise source.StepError("the build produced no build/all_reduce_perf; see the lines above")
    return programs


def nccl_version(path):
    """Version that the library reports. It had fewer digits until 2.8."""
    code = ctypes.c_int()
    ctypes.CDLL(path).ncclGetVersion(ctypes.byref(code))
    digits = (10000, 100) if code.value >= 10000 else (1000, 100)
    return "%d.%d.%d" % (
        code.value // digits[0],
        code.value % digits[0] // digits[1],
        code.value % digits[1],
    )


def prove(program, requested):
    """Check the libraries of the program, because it can't measure without a GPU."""
    found = source.libraries(program)
    lost = sorted(name for name, path in found.items() if not path and name not in LATER)
    if lost:
        raise source.StepError(
            (
                "the loader does not find %s for all_reduce_perf: add the library's folder to "
                "/etc/ld.so.conf.d"
            )
            % ", ".join(lost)
        )
    with_mpi = any(name.startswith("libmpi.so") for name in found)
    if with_mpi != bool(requested["mpi_home"]):
        # Without MPI, mpirun starts independent ranks, and each measures itself.
        raise source.StepError(
            (
                "all_reduce_perf was built %s MPI, contrary to nccl_tests_mpi: check "
                "nccl_tests_make_variables"
            )
            % ("with" if with_mpi else "without")
        )
    if "libnccl.so.2" not in found:
        raise source.StepError(
            (
                "all_reduce_perf was built without the shared library of NCCL: check "
                "nccl_tests_make_variables"
            )
        )
    version = nccl_version(found["libnccl.so.2"])
    if version != requested["nccl"]:
        raise source.StepError(
            "all_reduce_perf was built with NCCL %s, but the loader finds %s in %s: remove one "
            "of them, or set "
            "nccl_tests_nccl_home to its folder"
            % (requested["nccl"], version, found["libnccl.so.2"])
        )


def main():
    path, command = sys.argv[1], json.loads(os.environ["TRAINYARD_NCCL_TESTS"])
    work = tempfile.mkdtemp(prefix="trainyard-nccl-tests.", dir="/var/tmp")
    try:
        programs = build(command, work)
        prove(os.path.join(os.path.dirname(programs[0]), "all_reduce_perf"), command)
        folder = os.path.join(command["prefix"], "bin")
        source.place(
            path,
            command,
            {os.path.join(folder, os.path.basename(program)): program for program in programs},
            [folder],
            "remove it, or set nccl_tests_prefix",
        )
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    source.program(main)
