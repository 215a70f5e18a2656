# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Shared code of builds on hosts: verified sources, and files that are installed with a record and
removed by it.

Roles nccl and nccl_tests copy it next to their own programs on the host, role training_image into
its build. Python 3.6, because old images have nothing newer. As a program it removes the files of a
record, and then runs a command if there was a record:

    source_build.py remove RECORD [COMMAND ...]
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request


class StepError(Exception):
    """An error for the operator. The host has not been changed unless the message says so."""


def run(*command, **variables):
    """Run it with additional environment variables. Its output is part of the log."""
    print("+ " + " ".join(command), flush=True)
    code = subprocess.call(command, env=dict(os.environ, **variables))
    if code:
        raise StepError("%s: exit code %d; see the lines above" % (" ".join(command[:2]), code))


def digest(path):
    if os.path.islink(path):
        return "-> " + os.readlink(path)
    total = hashlib.sha256()
    with open(path, "rb") as stream:
        for chunk in iter(lambda: stream.read(1 << 20), b""):
            total.update(chunk)
    return total.hexdigest()


# --- sources. C(role) is the prefix of the role's variables -----------------------------------------------------------------


def fetch(role, url, checksum, path):
    print("Fetching %s" % url, flush=True)
    try:
        with urllib.request.urlopen(url, timeout=60) as answer, open(path, "wb") as stream:
            shutil.copyfileobj(answer, stream)
    except (urllib.error.URLError, OSError) as error:
        raise StepError("%s_url: %s can't be downloaded: %s" % (role, url, error)) from error
    if digest(path) != checksum:
        raise StepError(
            "%s_checksum: %s has the SHA-256 checksum %s, expected %s"
            % (role, url, digest(path), checksum)
        )


def clone(role, url, tag, commit, folder):
    """Clone the sources at a tag. A tag can be moved, a commit can't."""
    run(
        "git",
        "clone",
        "--quiet",
        "--depth",
        "1",
        "--branch",
        tag,
        "--config",
        "advice.detachedHead=false",
        url,
        folder,
        GIT_TERMINAL_PROMPT="0",
    )
    found = subprocess.check_output(
        ["git", "-C", folder, "rev-parse", "HEAD"], universal_newlines=True
    ).strip()
    if found != commit:
        raise StepError(
            "%s_commit: tag %s of %s is commit %s, expected %s" % (role, tag, url, found, commit)
        )


def leaves(folder, member):
    """Whether a member of an archive is outside of the folder, or is a link to a place outside."""
    places = [member.name] + (
        [os.path.join(os.path.dirname(member.name), member.linkname)] if member.issym() else []
    )
    return any(
        os.path.commonpath([folder, os.path.normpath(os.path.join(folder, place))]) != folder
        for place in places
    )


def unpack(role, archive, folder, what):
    """Unpack and return the folder of the sources, which has a src/Makefile.

    No member may be outside of C(folder).
    """
    try:
        with tarfile.open(archive) as tar:
            for member in tar.getmembers():
                if not (member.isfile() or member.isdir() or member.issym()) or leaves(
                    folder, member
                ):
                    raise StepError(
                        "%s_url: the archive contains %s, which does not belong to source code"
                        % (role, member.name)
                    )
            tar.extractall(folder)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise StepError("%s_url: the file is not an archive: %s" % (role, error)) from error
    for name in sorted(os.listdir(folder)):
        if os.path.isfile(os.path.join(folder, name, "src", "Makefile")):
            return os.path.join(folder, name)
    raise StepError(
        "%s_url: the archive does not contain %s: it has no src/Makefile" % (role, what)
    )


def gpu_variables(capabilities):
    """Return the variable of make for GPUs such as 80 or 90, none for the default of the sources.

    NCCL and nccl-tests have the same variable.
    """
    if not capabilities:
        return []
    flags = ["-gencode=arch=compute_%s,code=sm_%s" % (each, each) for each in capabilities]
    return ["NVCC_GENCODE=" + " ".join(flags)]


# --- files ------------------------------------------------------------------------------------------------------------------


def read_record(path):
    try:
        with open(path, encoding="utf-8") as stream:
            found = json.load(stream)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        found = error
    if not isinstance(found, dict):
        raise StepError(
            (
                "%s is damaged (%s). It records which files the earlier build installed. Restore "
                "it from a backup, or remove it and these files"
            )
            % (path, found if isinstance(found, ValueError) else "a dictionary is expected")
        )
    return found


def write_record(path, record):
    """Write the record to the disk before any file."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as stream:
        stream.write(json.dumps(record, indent=2, sort_keys=True) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    os.rename(path + ".new", path)


def missing_folders(path):
    found = []
    while not os.path.isdir(path):
        found.insert(0, path)
        path = os.path.dirname(path)
    return found


def place(path, build, files, folders, hint):
    """Install C(files), a dictionary of sources by target, instead of the files in the record at
    C(path).

    Missing C(folders) are created, parents first. C(hint) tells what to do about a file that is not
    in the record.
    """
    former = read_record(path)
    clashes = [
        target
        for target in files
        if os.path.lexists(target) and target not in former.get("files", {})
    ]
    if clashes:
        raise StepError(
            "%s already exists and was not installed by this role: %s"
            % (", ".join(clashes[:5]), hint)
        )
    remove(path)
    made = list(dict.fromkeys(each for folder in folders for each in missing_folders(folder)))
    write_record(
        path,
        {
            "build": build,
            "folders": made,
            "files": {target: digest(source) for target, source in files.items()},
        },
    )
    for folder in made:
        os.mkdir(folder)
    for target, source in files.items():
        shutil.copy2(source, target, follow_symlinks=False)
        print("Installed %s" % target, flush=True)


def remove(path):
    """Remove the files of a record. Return whether there was one. A file that was changed
    is kept.
    """
    record = read_record(path)
    for target, total in sorted(record.get("files", {}).items()):
        if not os.path.lexists(target):
            continue
        if digest(target) == total:
            os.unlink(target)
        else:
            print("%s is kept: it was changed since" % target)
    for folder in reversed(record.get("folders", [])):
        if os.path.isdir(folder) and not os.listdir(folder):
            os.rmdir(folder)
    if record:
        os.unlink(path)
    return bool(record)


# --- build results ----------------------------------------------------------------------------------------------------------


def header_version(path):
    """Version of NCCL in its header."""
    with open(path, encoding="utf-8") as stream:
        found = dict(
            re.findall(r"^#define NCCL_(MAJOR|MINOR|PATCH) (\d+)", stream.read(), re.MULTILINE)
        )
    return ".".join(found.get(part, "") for part in ("MAJOR", "MINOR", "PATCH"))


def parse_libraries(text):
    """Paths by library name in the output of C(ldd). Empty if the loader does not find the
    library.
    """
    found = {}
    for line in text.splitlines():
        match = re.match(r"\s+(\S+) => (?:(/.*) \(0x[0-9a-f]+\)|not found)\s*$", line)
        if match:
            found[match.group(1)] = match.group(2) or ""
    return found


def libraries(path):
    return parse_libraries(
        subprocess.run(
            ["ldd", path], stdout=subprocess.PIPE, universal_newlines=True, check=False
        ).stdout
    )


def main():
    step, path = sys.argv[1:3]
    if step != "remove":
        raise StepError("there is no step %s" % step)
    if remove(path) and sys.argv[3:]:
        run(*sys.argv[3:])


def program(main):
    """Run a program of the build. If it cannot go on, end with its message."""
    try:
        main()
    except StepError as error:
        sys.exit("trainyard: %s" % error)


if __name__ == "__main__":
    program(main)
