"""A module run as Ansible runs it, on a PATH whose tools are shell scripts of the test."""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

from cpu_costs import COSTS

DEV = Path(__file__).parents[2] / ".dev"


def scripts(folder, monkeypatch):
    """Make a PATH of nothing but scripts and timeout(1).

    Returns a function that puts a script on it, by name and body.
    """
    monkeypatch.setenv("PATH", f"{folder}/bin:/nowhere")
    (folder / "bin").mkdir()
    (folder / "bin/timeout").symlink_to("/usr/bin/timeout")
    (folder / "bin/sh").symlink_to("/bin/sh")

    def script(name, body):
        path = folder / "bin" / name
        path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{body}\n", encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    return script


def run_module(name, arguments, check=False, **environment):
    """What the module says, run in a process of its own in this folder, with this environment and
    more of it.
    """
    arguments = {**arguments, "_ansible_check_mode": check, "_ansible_remote_tmp": "/tmp"}
    request = [name, arguments, {**os.environ, "PYTHONPATH": str(DEV), **environment}, os.getcwd()]
    server = _server()
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    stdout, stderr = json.loads(server.stdout.readline())
    assert stdout, stderr
    return json.loads(stdout)


@functools.lru_cache(maxsize=None)
def _server():
    server = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("module_server.py")],
        env={**os.environ, "PYTHONPATH": str(DEV)},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    # It ends with its stdin, also where this process is killed.
    atexit.register(server.communicate)
    COSTS.helpers.add(server.pid)
    return server
