"""A module run as Ansible runs it, on a PATH whose tools are shell scripts of the test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

DEV = Path(__file__).parents[2] / ".dev"


def scripts(folder, monkeypatch):
    """Make a PATH of nothing but scripts and timeout(1). Returns a function that puts a script on it, by name and body."""
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


def run_module(name, arguments, check=False):
    done = subprocess.run(
        [sys.executable, "-m", f"ansible_collections.trainyard.gpu.plugins.modules.{name}"],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": {**arguments, "_ansible_check_mode": check, "_ansible_remote_tmp": "/tmp"}}),
        env={**os.environ, "PYTHONPATH": str(DEV)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout)
