"""A CPython that the newest ansible-core runs on.

Where there is none, the tests that need it are not run, and the report names them.
"""

from __future__ import annotations

import functools
import glob
import os
import re
import shutil
import subprocess
import sys

NO_NEW = "there is no CPython 3.12 or later on this machine, neither ~/.pyenv/versions/3.* nor python3.12 and later on the PATH"
SHOWN = "import sys, venv, ensurepip; print(sys.implementation.name, *sys.version_info[:2])"


@functools.lru_cache(maxsize=None)
def new_python():
    """Its path, empty if there is none."""
    # pyenv's own come first: what it puts on the PATH may be a script that refuses.
    paths = sorted(
        glob.glob(os.path.expanduser("~/.pyenv/versions/3.*/bin/python3")),
        key=lambda path: [int(part) for part in re.findall(r"\d+", path)],
        reverse=True,
    )
    for path in [
        sys.executable,
        *paths,
        *(shutil.which("python3.%d" % minor) or "" for minor in range(19, 11, -1)),
    ]:
        if path:
            done = subprocess.run(
                [path, "-E", "-c", SHOWN],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                check=False,
            )
            name, _blank, version = done.stdout.strip().partition(" ")
            if name == "cpython" and tuple(map(int, version.split())) >= (3, 12):
                return path
    return ""
