"""A CPython 3.6, the oldest Python of the images that the guides use.

Where there is none, the tests that need it are not run, and the report names them.
"""

from __future__ import annotations

import functools
import glob
import os
import shutil
import subprocess

NONE = "there is no CPython 3.6 on this machine, neither ~/.pyenv/versions/3.6.* nor python3.6 on the PATH"


@functools.lru_cache(maxsize=None)
def old_python():
    """Its path; empty where there is none."""
    # pyenv's own first: the python3.6 that it puts on the PATH may be a script that refuses.
    for path in sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.6.*/bin/python3.6"))) + [
        shutil.which("python3.6") or ""
    ]:
        if path:
            done = subprocess.run(
                [path, "-E", "-c", "import sys; print(sys.version_info[:2])"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                check=False,
            )
            if done.stdout.strip() == "(3, 6)":
                return path
    return ""
