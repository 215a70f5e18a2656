# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Processes in the training container other than those that keep it running: the table of C(docker top) in, names out."""

from __future__ import annotations

import re

# For `docker top`. The command line comes last, because it may contain blanks.
COLUMNS = "pid,ppid,comm,args"
INITS = ("docker-init", "tini", "catatonit", "dumb-init")
# The listening sshd, and those of a session or a login. Processes in a session are separate.
SSHD = ("sshd", "sshd-session", "sshd-auth")
SHELLS = ("sh", "dash", "bash", "ash", "busybox")
ENTRYPOINT = "/usr/local/lib/trainyard/entrypoint"
# The supervisor of services is a child of the entrypoint, and each service is a child of the supervisor.
SUPERVISOR = "/etc/trainyard/services/supervisor.py"


def busy_processes(table):
    """Names of the processes other than init, the entrypoint, its sshd, its sleep, and services. What a service starts counts, such as a kernel of Jupyter.

    A name alone does not tell: sh may be the entrypoint, a session or a job that is a script, and sleep may be the entrypoint's or a job's.
    """
    processes = {}
    for line in table.splitlines()[1:]:
        fields = line.split(None, 3)
        if len(fields) > 2 and fields[0].isdigit():
            processes[fields[0]] = (
                fields[1],
                fields[2],
                fields[3] if len(fields) > 3 else fields[2],
            )
    entrypoints = {
        pid
        for pid, (_parent, name, arguments) in processes.items()
        if _is_entrypoint(name, arguments)
    }
    inits = {pid for pid, (_parent, name, _arguments) in processes.items() if name in INITS}
    supervisors = {
        pid
        for pid, (parent, _name, arguments) in processes.items()
        if parent in entrypoints and SUPERVISOR in arguments.split()[:3]
    }
    return sorted(
        {
            name
            for pid, (parent, name, arguments) in processes.items()
            if pid not in entrypoints | inits | supervisors
            and parent not in supervisors
            and name not in SSHD
            and not arguments.endswith("<defunct>")
            and not _serves(pid, parent, name, arguments, entrypoints, inits, processes)
        }
    )


def _is_entrypoint(name, arguments):
    words = arguments.split()
    return (
        name == "entrypoint"
        and len(words) < 2
        or ENTRYPOINT in words[:2]
        and (words[0] == ENTRYPOINT or _base(words[0]) in SHELLS)
    )


def _serves(pid, parent, name, arguments, entrypoints, inits, processes):
    """The entrypoint's sleep, and its shell at the start, which has no script and no child processes."""
    if parent in entrypoints and name == "sleep":
        return True
    bare = (
        name in SHELLS
        and len(arguments.split()) == 1
        and not any(each[0] == pid for each in processes.values())
    )
    return bare and parent in entrypoints | inits


def _base(path):
    return re.sub(".*/", "", path).lstrip("-")
