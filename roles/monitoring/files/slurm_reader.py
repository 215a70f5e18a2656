# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""slurm_reader: writes the metrics of the queue, and the waiting jobs without names, once.

A timer starts it on the scheduler's host, as Slurm's own user, who sees all jobs in spite of
PrivateData.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time

# Teardown would find the folder of the compiled module.
sys.dont_write_bytecode = True
sys.path.insert(0, "/usr/local/lib/trainyard/shared")
import _metrics
import _slurm
import _slurm_metrics

TARGET = "/var/lib/trainyard/metrics/slurm/slurm.prom"
#: Everybody reads it: the command trainyard tells people their place in the queue. systemd creates
#: its folder.
QUEUE = "/run/trainyard-queue/queue.json"
SECONDS = 20


def ask(command: list[str], seconds: float = SECONDS) -> str | None:
    """Return the output of a command of Slurm, None if it fails or does not end in time."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=seconds,
            check=False,
            env=_slurm.command_environment(os.environ),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        print("trainyard: %s: %s" % (command[0], error), file=sys.stderr)
        return None
    if done.returncode:
        message = done.stderr.decode("utf-8", "replace").strip()
        print("trainyard: %s: %s" % (command[0], message[-300:]), file=sys.stderr)
        return None
    return done.stdout.decode("utf-8", "replace")


def readings(query=ask) -> tuple[list[_metrics.Family], list[dict] | None]:
    """Return the families of the queue, and its waiting jobs.

    If the controller does not answer, only that it does not, and None.
    """
    mark = "t" + os.urandom(8).hex()
    jobs = query(_slurm.jobs_command(mark))
    nodes = query(_slurm.NODES) if jobs is not None else None
    usage = query(_slurm.usage_command("slurm")) if nodes is not None else None
    # Any error of the database is one of this command, too: sacctmgr asks nobody else.
    database = query(["sacctmgr", "--noheader", "--parsable2", "show", "cluster", "format=cluster"])
    up = {"slurmctld": usage is not None, "slurmdbd": database is not None}
    found = [_slurm_metrics.up_family(up)]
    if usage is None:
        return found, None
    queued = _slurm.parse_jobs(jobs, mark)
    found += _slurm_metrics.queue_families(
        _slurm.parse_nodes(nodes), queued, _slurm.parse_usage(usage), time.time()
    )
    return found, _slurm_metrics.waiting(queued)


def write_queue(path: str, jobs: list[dict], now: float) -> None:
    """Replace the file of waiting jobs at once."""
    new = path + ".new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(new, flags, 0o644), "w", encoding="utf-8") as stream:
        json.dump({"written": now, "jobs": jobs}, stream)
        os.fchmod(stream.fileno(), 0o644)
    os.rename(new, path)


def main() -> None:
    try:
        families, jobs = readings()
        text = _metrics.render(families)
    except _slurm.ParseError as error:
        # The former file grows old, and an alert tells it.
        sys.exit("trainyard: %s" % error)
    _metrics.write(TARGET, text)
    if jobs is not None:
        write_queue(QUEUE, jobs, time.time())


if __name__ == "__main__":
    main()
