"""What breaks a job of two ranks, for real, and py-spy for its hosts.

Rank 1 fails, and rank 0 waits for it.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
from pathlib import Path

#: Programs of the ranks that need nothing but Python.
PROGRAMS = {
    "memory": """
import os, time
kept = []
# Not more than 2 GiB, because a limit may be missing.
while os.environ["RANK"] == "1" and len(kept) < 128:
    kept.append(bytearray(os.urandom(1 << 20) * 16))
time.sleep(600)
""",
    "killed": """
import os, signal, time
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)
""",
    "port": """
import os, socket, subprocess, sys, time
if os.environ["RANK"] == "1":
    taken = socket.socket()
    taken.bind(("0.0.0.0", 0))
    taken.listen()
    program = "import socket, sys; socket.socket().bind(('0.0.0.0', int(sys.argv[1])))"
    subprocess.run([sys.executable, "-c", program, str(taken.getsockname()[1])], check=True)
time.sleep(600)
""",
    "module": "import only_here, time\ntime.sleep(600)\n",
}
PY_SPY = "0.4.1"


def written(folder: str, programs: dict) -> str:
    """Return a shell script that writes programs into a folder, as NAME.py."""
    lines = ["mkdir -p " + folder]
    for name, text in programs.items():
        lines.append("cat > %s/%s.py << 'END'\n%s\nEND" % (folder, name, text))
    return "\n".join(lines)


@functools.lru_cache(maxsize=None)
def _py_spy() -> bytes:
    """Return py-spy, one program without dependencies, from the Python index that this
    machine has.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command += ["--no-deps", "--only-binary=:all:", "--target", folder, "py-spy==" + PY_SPY]
        subprocess.run(command, check=True)
        return (Path(folder) / "bin/py-spy").read_bytes()


def place_py_spy(*before: str) -> None:
    """Install py-spy where these words run a shell: docker exec -i HOST."""
    script = "cat > /usr/local/bin/py-spy && chmod 755 /usr/local/bin/py-spy"
    subprocess.run([*before, "sh", "-c", script], input=_py_spy(), check=True)
