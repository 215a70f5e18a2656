# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Builds NCCL from an archive of its sources and installs it, with a record of every file; or removes what the record tells of.

    TRAINYARD_NCCL='{"version": …}' nccl_from_source.py install RECORD
    nccl_from_source.py remove RECORD
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request

# Where the loader looks anyway.
LOADED = ("/usr/local", "/usr")
LOADER = "/etc/ld.so.conf.d/trainyard-nccl.conf"


class StepError(Exception):
    """What the operator has to know; nothing of the host has been changed, unless it says so."""


def run(*command):
    print("+ " + " ".join(command), flush=True)
    code = subprocess.call(command)
    if code:
        raise StepError("%s: exit code %d; the lines above say why" % (" ".join(command[:2]), code))


def digest(path):
    if os.path.islink(path):
        return "-> " + os.readlink(path)
    total = hashlib.sha256()
    with open(path, "rb") as stream:
        for chunk in iter(lambda: stream.read(1 << 20), b""):
            total.update(chunk)
    return total.hexdigest()


def read_record(path):
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except FileNotFoundError:
        return {}


def write_record(path, record):
    """On the disk before a file is."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as stream:
        stream.write(json.dumps(record, indent=2, sort_keys=True) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    os.rename(path + ".new", path)


# --- build ----------------------------------------------------------------------------------------------------------------


def fetch(url, checksum, path):
    print("Fetching %s" % url, flush=True)
    try:
        with urllib.request.urlopen(url, timeout=60) as answer, open(path, "wb") as stream:
            shutil.copyfileobj(answer, stream)
    except (urllib.error.URLError, OSError) as error:
        raise StepError("nccl_url: %s can't be fetched: %s" % (url, error))
    if digest(path) != checksum:
        raise StepError("nccl_checksum: %s has the SHA-256 checksum %s, not %s" % (url, digest(path), checksum))


def unpack(archive, folder):
    """The folder of the sources. Nothing of an archive may land outside of it."""
    try:
        with tarfile.open(archive) as tar:
            for member in tar.getmembers():
                target = os.path.normpath(os.path.join(folder, member.name))
                if not (member.isfile() or member.isdir() or member.issym()) or not target.startswith(folder + "/") and target != folder:
                    raise StepError("nccl_url: the archive holds %s, which is none of a source's" % member.name)
            tar.extractall(folder)
    except tarfile.TarError as error:
        raise StepError("nccl_url: this is no archive: %s" % error)
    for name in sorted(os.listdir(folder)):
        if os.path.isfile(os.path.join(folder, name, "src", "Makefile")):
            return os.path.join(folder, name)
    raise StepError("nccl_url: the archive holds no NCCL: there is no src/Makefile in it")


def build(asked, work):
    """Install into a folder of its own, and return that."""
    archive, staging = os.path.join(work, "nccl.tar.gz"), os.path.join(work, "staging")
    fetch(asked["url"], asked["checksum"], archive)
    os.mkdir(os.path.join(work, "source"))
    source = unpack(archive, os.path.join(work, "source"))
    variables = ["CUDA_HOME=" + asked["cuda_home"]]
    if asked["compute_capabilities"]:
        variables.append("NVCC_GENCODE=" + " ".join("-gencode=arch=compute_%s,code=sm_%s" % (each, each) for each in asked["compute_capabilities"]))
    # The prefix of the build goes into nccl.pc; what is built by then isn't made again for the other one.
    run("make", "-C", source, "-j%d" % len(os.sched_getaffinity(0)), "src.build", "PREFIX=" + asked["prefix"], *variables)
    run("make", "-C", source, "src.install", "PREFIX=" + staging, *variables)
    header = os.path.join(staging, "include", "nccl.h")
    if not os.path.exists(header):
        raise StepError("the build has left no include/nccl.h")
    with open(header, encoding="utf-8") as stream:
        found = dict(re.findall(r"^#define NCCL_(MAJOR|MINOR|PATCH) (\d+)", stream.read(), re.MULTILINE))
    version = ".".join(found.get(part, "") for part in ("MAJOR", "MINOR", "PATCH"))
    if version != asked["version"]:
        raise StepError("nccl_url: the archive is of NCCL %s, and nccl_version is %s" % (version, asked["version"]))
    return staging


# --- files ----------------------------------------------------------------------------------------------------------------


def listing(staging):
    """What was installed there, relative: files and links, and folders from the outside in."""
    files, folders = [], []
    for folder, below, names in os.walk(staging):
        links = [name for name in below if os.path.islink(os.path.join(folder, name))]
        files += [os.path.relpath(os.path.join(folder, name), staging) for name in names + links]
        folders += [os.path.relpath(os.path.join(folder, name), staging) for name in below if name not in links]
    return sorted(files), folders


def missing_folders(path):
    found = []
    while not os.path.isdir(path):
        found.insert(0, path)
        path = os.path.dirname(path)
    return found


def place(staging, asked, path):
    prefix, former = asked["prefix"], read_record(path)
    files, folders = listing(staging)
    with_loader = prefix not in LOADED
    targets = [os.path.join(prefix, name) for name in files]
    clashes = [target for target in targets + [LOADER] * with_loader if os.path.lexists(target) and target not in former.get("files", {})]
    if clashes:
        raise StepError("%s is there already, and is nothing that was placed from here: remove it, or set nccl_prefix" % ", ".join(clashes[:5]))
    if former:
        remove(path)
    made = list(dict.fromkeys(each for name in [""] + folders for each in missing_folders(os.path.normpath(os.path.join(prefix, name)))))
    record = {"build": asked, "folders": made, "files": {target: digest(os.path.join(staging, name)) for target, name in zip(targets, files)}}
    loader = prefix + "/lib\n"
    if with_loader:
        record["files"][LOADER] = hashlib.sha256(loader.encode()).hexdigest()
    write_record(path, record)
    for folder in made:
        os.mkdir(folder)
    for target, name in zip(targets, files):
        shutil.copy2(os.path.join(staging, name), target, follow_symlinks=False)
        print("Installed %s" % target, flush=True)
    if with_loader:
        with open(LOADER, "w", encoding="utf-8") as stream:
            stream.write(loader)
    run("ldconfig")


def remove(path):
    record = read_record(path)
    for target, total in sorted(record.get("files", {}).items()):
        if not os.path.lexists(target):
            continue
        if digest(target) == total:
            os.unlink(target)
        else:
            print("%s stays: it was changed since" % target)
    for folder in reversed(record.get("folders", [])):
        if os.path.isdir(folder) and not os.listdir(folder):
            os.rmdir(folder)
    if record:
        os.unlink(path)
        run("ldconfig")


def main():
    step, path = sys.argv[1:]
    if step == "remove":
        remove(path)
        return
    asked = json.loads(os.environ["TRAINYARD_NCCL"])
    work = tempfile.mkdtemp(prefix="trainyard-nccl.", dir="/var/tmp")
    try:
        place(build(asked, work), asked, path)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    try:
        main()
    except StepError as error:
        sys.exit("trainyard: %s" % error)
