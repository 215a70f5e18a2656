# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether a mounted file system answers, without hanging in one that does not."""

from __future__ import annotations

import errno
import subprocess
import sys
import time

__all__ = ["ask_file_system"]

# statvfs always asks the server, and needs no permission in the folder.
_PROGRAM = "import os, sys; os.statvfs(sys.argv[1])"


def ask_file_system(path, timeout):
    """Return (cause, error): '' where it answers, V(hangs), V(stale) where an NFS server no longer knows it, or V(fails).

    A process that hangs in the kernel can't be ended before the server is back, so it isn't waited for.
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
