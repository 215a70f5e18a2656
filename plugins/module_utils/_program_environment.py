# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An environment of programs with pinned checksums: its name, and the commands that fill it."""

from __future__ import annotations

import hashlib

from typing import Iterable

__all__ = ["folder_name", "is_used", "last_lines", "npm_command", "pip_command"]


def folder_name(version: str, requirements: str, npm_package: str, npm_lock: str) -> str:
    """Return the end of the folder's name, from all that decides about its content.

    Where the packages come from does not: they have checksums.
    """
    lock = "\n".join(line for line in npm_lock.splitlines() if '"resolved":' not in line)
    return hashlib.sha256(
        "\0".join((version, requirements, npm_package, lock)).encode("utf-8")
    ).hexdigest()[:12]


def pip_command(folder: str, requirements: str, packages: str) -> list[str]:
    """Return the command of pip. It runs no code of a package: there are wheels only."""
    offline = ["--no-index", "--find-links=" + packages] if packages else []
    return (
        [
            folder + "/bin/python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-input",
            "--no-cache-dir",
            "--only-binary=:all:",
            "--require-hashes",
        ]
        + offline
        + ["--requirement=" + requirements]
    )


def npm_command(
    folder: str, wheel: str, cache: str, offline: bool, registry: str, ca: str
) -> tuple[list[str], dict[str, str]]:
    """Return the command of npm and its environment. The program npm in the wheel is a
    broken link.
    """
    environment = {
        "PATH": folder + "/bin:/usr/bin:/bin",
        "HOME": cache,
        "npm_config_cache": cache,
        "npm_config_update_notifier": "false",
    }
    if registry:
        environment["npm_config_registry"] = registry
    if ca:
        environment["npm_config_cafile"] = ca
    command = [
        folder + "/bin/node",
        wheel + "/lib/node_modules/npm/bin/npm-cli.js",
        "ci",
        "--omit=dev",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
    ]
    return command + (["--offline"] if offline else []), environment


def is_used(folder: str, processes: Iterable[tuple[str, str]]) -> bool:
    """Return whether a process runs from a folder.

    C(processes) are pairs of command line and program.
    """
    return any(
        folder + "/" in command or program.startswith(folder + "/")
        for command, program in processes
    )


def last_lines(text: str, count: int = 4) -> str:
    """Return the end of what a program has printed, on one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-count:]) or "it printed nothing"
