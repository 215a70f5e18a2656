# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Processes in the training container other than those that keep it running: the table of C(docker
top) in, names out.
"""

from __future__ import annotations

import re

from typing import NamedTuple

# For `docker top`. The command line comes last, because it may contain blanks.
COLUMNS = "pid,ppid,comm,args"
INITS = ("docker-init", "tini", "catatonit", "dumb-init")
# The listening sshd, and those of a session or a login. Processes in a session are separate.
SSHD = ("sshd", "sshd-session", "sshd-auth")
SHELLS = ("sh", "dash", "bash", "ash", "busybox")
ENTRYPOINT = "/usr/local/lib/trainyard/entrypoint"
# The supervisor of services is a child of the entrypoint, and each service is a child of the
# supervisor.
SUPERVISOR = "/etc/trainyard/services/supervisor.py"


class _Process(NamedTuple):
    parent: str
    name: str
    arguments: str


def busy_processes(table: str) -> list[str]:
    """Names of the processes other than init, the entrypoint, its sshd, its sleep, and services.

    What a service starts counts, such as a kernel of Jupyter.

    A name alone does not tell: sh may be the entrypoint, a session or a job that is a script, and
    sleep may be the entrypoint's or a job's.
    """
    processes = _processes(table)
    entrypoints = {pid for pid, each in processes.items() if _is_entrypoint(each)}
    supervisors = {
        pid
        for pid, each in processes.items()
        if each.parent in entrypoints and SUPERVISOR in each.arguments.split()[:3]
    }
    own = entrypoints | supervisors | _waiting(processes, entrypoints)
    others = [each for pid, each in processes.items() if pid not in own]
    return sorted(
        {each.name for each in others if each.parent not in supervisors and not _is_sshd(each)}
    )


def _waiting(processes: dict[str, _Process], entrypoints: set[str]) -> set[str]:
    """Init, the entrypoint's sleep, and its shell at the start, which has no script and no child
    processes.
    """
    inits = {pid for pid, each in processes.items() if each.name in INITS}
    parents = {each.parent for each in processes.values()}
    found = set(inits)
    for pid, each in processes.items():
        is_start = _is_bare_shell(each) and pid not in parents
        if is_start and each.parent in entrypoints | inits:
            found.add(pid)
        elif each.name == "sleep" and each.parent in entrypoints:
            found.add(pid)
    return found


def _processes(table: str) -> dict[str, _Process]:
    """The processes by their number."""
    processes = {}
    for line in table.splitlines()[1:]:
        fields = line.split(None, 3)
        if len(fields) > 2 and fields[0].isdigit():
            processes[fields[0]] = _Process(fields[1], fields[2], fields[-1])
    return processes


def _is_entrypoint(process: _Process) -> bool:
    words = process.arguments.split()
    if process.name == "entrypoint" and len(words) < 2:
        return True
    if ENTRYPOINT not in words[:2]:
        return False
    return words[0] == ENTRYPOINT or _base(words[0]) in SHELLS


def _is_bare_shell(process: _Process) -> bool:
    return process.name in SHELLS and len(process.arguments.split()) == 1


def _is_sshd(process: _Process) -> bool:
    """Whether a process is one of the sshd, or has ended."""
    return process.name in SSHD or process.arguments.endswith("<defunct>")


def _base(path: str) -> str:
    return re.sub(".*/", "", path).lstrip("-")
