# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Builds NCCL from an archive of its sources and installs it, with a record of every file.

    TRAINYARD_NCCL='{"version": …}' nccl_from_source.py RECORD

source_build.py is in the same folder.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile

import source_build as source

ROLE = "nccl"
# Prefixes that the loader searches by default.
LOADED = ("/usr/local", "/usr")
LOADER = "/etc/ld.so.conf.d/trainyard-nccl.conf"


def build(requested, work):
    """Build, install into a staging folder and return that folder."""
    archive, staging = os.path.join(work, "nccl.tar.gz"), os.path.join(work, "staging")
    source.fetch(ROLE, requested["url"], requested["checksum"], archive)
    os.mkdir(os.path.join(work, "source"))
    folder = source.unpack(ROLE, archive, os.path.join(work, "source"), "NCCL")
    variables = ["CUDA_HOME=" + requested["cuda_home"]]
    variables += source.gpu_variables(requested["compute_capabilities"])
    # nccl.pc gets the prefix of the build. The second make does not build it again.
    source.run(
        "make",
        "-C",
        folder,
        "-j%d" % len(os.sched_getaffinity(0)),
        "src.build",
        "PREFIX=" + requested["prefix"],
        *variables,
    )
    source.run("make", "-C", folder, "src.install", "PREFIX=" + staging, *variables)
    header = os.path.join(staging, "include", "nccl.h")
    if not os.path.exists(header):
        raise source.StepError("the build produced no include/nccl.h; see the lines above")
    version = source.header_version(header)
    if version != requested["version"]:
        raise source.StepError(
            "nccl_url: the archive contains NCCL %s, but nccl_version is %s"
            % (version, requested["version"])
        )
    return staging


def listing(staging):
    """Relative paths in the folder: files and links, and folders, parents first."""
    files, folders = [], []
    for folder, below, names in os.walk(staging):
        links = [name for name in below if os.path.islink(os.path.join(folder, name))]
        files += [os.path.relpath(os.path.join(folder, name), staging) for name in names + links]
        folders += [
            os.path.relpath(os.path.join(folder, name), staging)
            for name in below
            if name not in links
        ]
    return sorted(files), folders


def install(staging, requested, work, path):
    prefix = requested["prefix"]
    files, folders = listing(staging)
    targets = {os.path.join(prefix, name): os.path.join(staging, name) for name in files}
    if prefix not in LOADED:
        targets[LOADER] = os.path.join(work, "loader.conf")
        with open(targets[LOADER], "w", encoding="utf-8") as stream:
            stream.write(prefix + "/lib\n")
    source.place(
        path,
        requested,
        targets,
        [os.path.normpath(os.path.join(prefix, name)) for name in [""] + folders],
        "remove it, or set nccl_prefix",
    )
    source.run("ldconfig")


def main():
    path, command = sys.argv[1], json.loads(os.environ["TRAINYARD_NCCL"])
    work = tempfile.mkdtemp(prefix="trainyard-nccl.", dir="/var/tmp")
    try:
        install(build(command, work), command, work, path)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    source.program(main)
