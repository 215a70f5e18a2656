"""A Python with PyTorch for CPUs, of the version that the lab has (lab/wheels.txt), in .cache.

The first call downloads it.
"""

from __future__ import annotations

import fcntl
import functools
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WHEELS = ROOT / "lab/wheels.txt"
FOLDER = ROOT / ".cache" / "torch"


@functools.lru_cache(maxsize=None)
def python() -> str:
    """Return the path of the interpreter."""
    wheels = WHEELS.read_text(encoding="utf-8")
    FOLDER.mkdir(parents=True, exist_ok=True)
    done = FOLDER / "wheels.txt"
    with open(FOLDER / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists() or done.read_text(encoding="utf-8") != wheels:
            subprocess.run([sys.executable, "-m", "venv", "--clear", FOLDER / "venv"], check=True)
            pip = [FOLDER / "venv/bin/pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "--only-binary=:all:", "--requirement", WHEELS], check=True)
            done.write_text(wheels, encoding="utf-8")
    return str(FOLDER / "venv/bin/python")
