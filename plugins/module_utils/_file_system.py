# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reads files, and checks whether a mounted file system answers, without hanging in one that does
not.
"""

from __future__ import annotations

import errno
import hashlib
import os
import select
import signal

from typing import Iterable, NoReturn

from ansible_collections.trainyard.gpu.plugins.module_utils._tool import leave_session

__all__ = ["ask_file_system", "checksums", "existing", "read_text"]


def ask_file_system(path: str, timeout: float) -> tuple[str, str]:
    """Return (cause, error): '' if it answers, V(hangs), V(stale) if an NFS server no longer knows
    it, or V(fails).

    A process that hangs in the kernel cannot be killed before the server is back, so it is left
    alone.
    """
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        _tell_state(path, writer)
    os.close(writer)
    with open(reader, "rb") as answer:
        if not select.select([answer], [], [], timeout)[0]:
            os.kill(process, signal.SIGKILL)
            return "hangs", "no answer within %g s" % timeout
        error = answer.read().decode("utf-8", "replace")
    status = os.waitpid(process, 0)[1]
    if status and not error:
        error = "the process that asked it ended with status %d" % status
    if "[Errno %d]" % errno.ESTALE in error:
        return "stale", error
    return "fails" if error else "", error


def _tell_state(path: str, writer: int) -> NoReturn:
    """In a process of its own: write the error, if there is one, and end."""
    code = 1
    try:
        leave_session()
        # It always contacts the server, and needs no permission in the folder.
        os.statvfs(path)
        code = 0
    except OSError as error:
        os.write(writer, ("%s: %s" % (type(error).__name__, error)).encode("utf-8", "replace"))
    finally:
        # Without the handlers of the module, which would remove its temporary files.
        os._exit(code)


def read_text(path: str) -> str:
    """Return a file's text, '' if it does not exist or is not readable: the kernel omits files that
    it does not support.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def existing(path: str) -> str:
    """Return the path without links, or the nearest of its folders that exists."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return os.path.realpath(path)


def checksums(paths: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 checksum of each file that exists, by path."""
    sums = {}
    for path in paths:
        try:
            with open(path, "rb") as file:
                sums[path] = hashlib.sha256(file.read()).hexdigest()
        except OSError:
            continue
    return sums
