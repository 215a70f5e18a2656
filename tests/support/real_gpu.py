"""A working NVIDIA GPU, and what the tests of it need.

Where something of it is missing they are not run, and the report names it and them.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess


def answers():
    if not shutil.which("nvidia-smi"):
        return False
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=60,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0 and done.stdout.startswith("GPU ")


@functools.lru_cache(maxsize=None)
def what_the_gpu_lacks():
    """The reason for which tests of a GPU cannot run here, empty if there is none."""
    if not answers():
        return "no NVIDIA GPU answers on this machine (nvidia-smi -L)"
    # Mount namespaces, and processes of other users.
    lacking = ["root"] if os.geteuid() else []
    lacking += [
        name
        for name in ("nvcc", "mpirun", "c++", "make", "unshare", "setpriv")
        if not shutil.which(name)
    ]
    lacking += [
        "Python's %s" % name for name in ("pynvml", "torch") if not importlib.util.find_spec(name)
    ]
    return "this machine with an NVIDIA GPU lacks %s" % ", ".join(lacking) if lacking else ""
