"""py-spy for hosts of tests: one program without dependencies, from the Python index that this machine has."""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "0.4.1"


@functools.lru_cache(maxsize=None)
def program() -> bytes:
    """Return the program."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command += ["--no-deps", "--only-binary=:all:", "--target", folder, "py-spy==" + VERSION]
        subprocess.run(command, check=True)
        return (Path(folder) / "bin/py-spy").read_bytes()


def place(*before: str) -> None:
    """Install it where these words run a shell: docker exec -i HOST."""
    script = "cat > /usr/local/bin/py-spy && chmod 755 /usr/local/bin/py-spy"
    subprocess.run([*before, "sh", "-c", script], input=program(), check=True)
