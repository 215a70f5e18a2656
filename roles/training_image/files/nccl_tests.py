# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The step of the image build that builds nccl-tests with the image's own NCCL and CUDA, and with
its MPI if it has one.

Runs in the Python of the base image, 3.6 or newer. The same folder has steps.py, the program of
role nccl_tests and its modules.
"""

import glob
import json
import os
import shutil
import sys
import tempfile

import nccl_tests_from_source as tests
import source_build as source
import steps

ARGUMENTS = "/run/trainyard/arguments.json"


def nccl_home(cuda_home):
    for home in ("/usr", "/usr/local", cuda_home):
        if os.path.exists(os.path.join(home, "include", "nccl.h")):
            return home
    raise source.StepError(
        (
            "training_image_nccl_tests_tag: the base has no nccl.h, which nccl-tests need: set "
            "training_image_nccl_version"
        )
    )


def mpi_home(mpirun):
    """Return the folder of this mpirun's MPI, or an empty string without mpirun. nccl-tests then
    cannot run on several hosts.
    """
    if not mpirun:
        return ""
    # Debian's mpirun is in /usr/bin, and its header is in the second folder.
    for home in [os.path.dirname(os.path.dirname(os.path.realpath(mpirun)))] + sorted(
        glob.glob("/usr/lib/*/openmpi")
    ):
        if os.path.exists(os.path.join(home, "include", "mpi.h")):
            return home
    raise source.StepError(
        "training_image_nccl_tests_tag: the base has mpirun but no mpi.h, which nccl-tests "
        "need: add mpirun to training_image_tools, or "
        "libopenmpi-dev to training_image_apt_packages"
    )


def completed(arguments):
    """Return the arguments, completed with the paths and versions in the image."""
    cuda_home = steps.cuda_home()
    if not cuda_home:
        raise source.StepError(
            (
                "training_image_nccl_tests_tag: the base has no nvcc, which nccl-tests need: use a "
                "base with CUDA's development files"
            )
        )
    nccl = nccl_home(cuda_home)
    return dict(
        arguments,
        source="archive",
        cuda_home=cuda_home,
        nccl_home=nccl,
        nccl=source.header_version(os.path.join(nccl, "include", "nccl.h")),
        mpi_home=mpi_home(shutil.which("mpirun")),
        make_variables={},
    )


def main():
    with open(ARGUMENTS, encoding="utf-8") as stream:
        arguments = json.load(stream)
    steps.use_site()
    requested = completed(arguments)
    missing = [
        package
        for command, package in (("c++", "g++"), ("make", "make"))
        if not shutil.which(command)
    ]
    if missing:
        with steps.apt() as call:
            call("install", *missing)
    work = tempfile.mkdtemp(prefix="trainyard-nccl-tests-")
    try:
        programs = tests.build(requested, work)
        tests.prove(os.path.join(os.path.dirname(programs[0]), "all_reduce_perf"), requested)
        # The first folder of the image's PATH, because nccl-tests of the base may be built with
        # another NCCL.
        folder = os.path.join(steps.LIBRARY, "bin")
        for program in programs:
            shutil.copy2(program, folder)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    try:
        main()
    except (source.StepError, steps.StepError) as error:
        sys.exit("trainyard: %s" % error)
