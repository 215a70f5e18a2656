# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reads files, and checks whether a mounted file system answers, without hanging in one that does not."""

from __future__ import annotations

import errno
import hashlib
import subprocess
import sys
import time

__all__ = ["ask_file_system", "checksums", "read_text"]

# statvfs always contacts the server, and needs no permission in the folder.
_PROGRAM = "import os, sys; os.statvfs(sys.argv[1])"


def ask_file_system(path, timeout):
    """Return (cause, error): '' if it answers, V(hangs), V(stale) if an NFS server no longer knows it, or V(fails).

    A process that hangs in the kernel cannot be killed before the server is back, so it is left alone.
    """
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", _PROGRAM, path], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, start_new_session=True)
    deadline = time.monotonic() + timeout
    while process.poll() is None:
        if time.monotonic() > deadline:
            process.kill()
            return "hangs", "no answer within %g s" % timeout
        time.sleep(0.02)
    if process.returncode == 0:
        return "", ""
    lines = process.stderr.read().decode("utf-8", "replace").strip().splitlines()
    error = lines[-1] if lines else "exit code %d" % process.returncode
    return ("stale" if "[Errno %d]" % errno.ESTALE in error else "fails"), error


def read_text(path):
    """Return a file's text, '' if it does not exist or is not readable: the kernel omits files that it does not support."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def checksums(paths):
    """Return the SHA-256 checksum of each file that exists, by path."""
    sums = {}
    for path in paths:
        try:
            with open(path, "rb") as file:
                sums[path] = hashlib.sha256(file.read()).hexdigest()
        except OSError:
            continue
    return sums
