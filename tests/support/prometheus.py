"""Prometheus, promtool, Alertmanager, amtool and node_exporter of this machine's distribution,
unpacked and not installed: none of their services starts.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".cache" / "prometheus"
TEMPLATES = "/usr/share/prometheus/alertmanager"
PACKAGES = ["prometheus", "prometheus-alertmanager", "prometheus-node-exporter"]


def _unpack() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (FOLDER / "usr/bin/promtool").exists():
            return
        if os.geteuid() == 0:
            subprocess.run(["apt-get", "update", "-qq"], check=True, stdout=subprocess.DEVNULL)
        command = ["apt-get", "download", "-qq", *PACKAGES]
        subprocess.run(command, check=True, cwd=FOLDER, stdout=subprocess.DEVNULL)
        # promtool comes last, so that a run that was killed begins again.
        for package in sorted(FOLDER.glob("*.deb"), reverse=True):
            subprocess.run(["dpkg-deb", "-x", str(package), str(FOLDER)], check=True)
            package.unlink()


def alertmanager(folder: Path) -> str:
    """Return Alertmanager for a process in a folder.

    One that is not installed has no templates at the path in the program, so it gets them in the
    folder.

    The new path is as long as the former one.
    """
    found = program("prometheus-alertmanager")
    if Path(TEMPLATES).exists():
        return found
    content = Path(found).read_bytes()
    assert TEMPLATES.encode() in content
    for template in Path("%s%s" % (Path(found).parents[2], TEMPLATES)).glob("*.tmpl"):
        shutil.copy(template, folder)
    here = "." + "/" * (len(TEMPLATES) - 1)
    path = folder / "alertmanager"
    path.write_bytes(content.replace(TEMPLATES.encode(), here.encode()))
    path.chmod(0o755)
    return str(path)


def program(name: str) -> str:
    """Return the path of one of the programs."""
    found = shutil.which(name)
    if found:
        return found
    path = FOLDER / "usr/bin" / name
    if not path.exists() and shutil.which("apt-get"):
        _unpack()
    if not path.exists():
        pytest.fail(
            "%s is not on this machine. Install packages %s" % (name, ", ".join(PACKAGES)),
            pytrace=False,
        )
    return str(path)


def check_metrics(text: str) -> str:
    """Return what C(promtool check metrics) has against a text, empty if nothing."""
    done = subprocess.run(
        [program("promtool"), "check", "metrics"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    return (done.stdout + done.stderr).strip()
