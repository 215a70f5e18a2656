# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run Slurm's commands for a module, with a common time limit, and say why one gave no answer."""

from __future__ import annotations

import os
import socket
import time
import uuid

from typing import Any, Callable, Iterable, Sequence, TypeVar

from ansible_collections.trainyard.gpu.plugins.module_utils import _slurm
from ansible_collections.trainyard.gpu.plugins.module_utils._tool import (
    Run,
    check_timeout,
    run_tool,
)

# Where slurm.conf is. slurmd and sackd keep what they fetched in the last two.
CONFIGURATIONS = [
    "/etc/slurm/slurm.conf",
    "/run/slurm/conf/slurm.conf",
    "/var/lib/slurm/slurmd/conf-cache/slurm.conf",
]
# Seconds between two looks at the queue.
PAUSE = 5
# Jobs that a message names.
NAMED = 10
# Seconds for the connection that tells a controller that is down from one that cannot be reached.
PROBE = 3


Parsed = TypeVar("Parsed")


class NoAnswer(Exception):
    """Slurm did not answer; the text says what was found and what to do."""

    def __init__(self, cause: str, text: str) -> None:
        super().__init__(text)
        self.cause = cause


def _name_of(job: _slurm.Job) -> str:
    """Return what a message says of a job that runs."""
    until = ", until %s at most" % job["end_time"] if job["end_time"] else ""
    return "job %d of %s on %s%s" % (job["id"], job["user"], ", ".join(job["nodes"]), until)


class Slurm:
    """Slurm's commands for an AnsibleModule, all of them within its option C(timeout)."""

    def __init__(self, module: Any) -> None:
        self.module = module
        check_timeout(module)
        self.deadline = time.monotonic() + module.params["timeout"]
        environment = _slurm.command_environment(os.environ)
        os.environ.clear()
        os.environ.update(environment)

    def run(self, command: list[str]) -> str:
        """Return the output of a command. Raises NoAnswer if it failed."""
        left = self.deadline - time.monotonic()
        shown = command[0] if command[0] in ("squeue", "sacct") else " ".join(command[:6])
        if left <= 0:
            raise self._no_answer(
                "timeout",
                shown,
                "no time was left for it, of %d seconds" % self.module.params["timeout"],
            )
        run: Run = run_tool(self.module, command, max(1, int(left + 0.5)))
        if not run.cause and run.rc == 0:
            return run.stdout
        if run.cause == "timeout":
            evidence = "no answer within %d seconds" % self.module.params["timeout"]
            # Slurm's commands try again for minutes. That the controller cannot be reached is the
            # more useful cause.
            cause = self._probe() or "timeout"
        elif run.cause:
            cause, evidence = run.cause, run.evidence
        else:
            cause, evidence = _slurm.why_no_answer(run.rc, run.stdout, run.stderr)
            if cause == "controller_down":
                cause = self._probe() or cause
            elif cause == "auth" and self.module.params.get("credential"):
                cause = self._credential() or cause
        raise self._no_answer(cause, shown, evidence)

    def read(self, command: list[str], parse: Callable[[str], Parsed]) -> Parsed:
        """Return what the parser reads in the output. Fails the module if it cannot."""
        try:
            return parse(self.run(command))
        except _slurm.ParseError as error:
            self.module.fail_json(
                msg=(
                    "%s: the output has an unexpected format: %s. Run the command on the host, and "
                    "report its output if it is complete"
                )
                % (command[0] if command[0] == "squeue" else " ".join(command), error)
            )
            raise

    def jobs(self) -> list[_slurm.Job]:
        """Return the jobs of the queue."""
        # Made now, so no name or comment contains it.
        mark = "|%s|" % uuid.uuid4().hex
        return self.read(_slurm.jobs_command(mark), lambda text: _slurm.parse_jobs(text, mark))

    def wait_for_jobs(
        self, nodes: Iterable[str], wait: int, reservation: str = ""
    ) -> tuple[list[_slurm.Job], int]:
        """Wait C(wait) seconds until no job runs on the nodes, but for those of the reservation.

        Returns the jobs that still run, and the seconds waited.

        The time limit of the commands does not include it.
        """
        self.deadline += wait
        begun = time.monotonic()
        while True:
            jobs = [
                job
                for job in self.jobs()
                if set(job["nodes"]).intersection(nodes)
                and (not reservation or job["reservation"] != reservation)
            ]
            waited = int(time.monotonic() - begun)
            if not jobs or waited >= wait:
                return jobs, waited
            time.sleep(min(PAUSE, max(wait - waited, 1)))

    def fail_for_jobs(self, jobs: Sequence[_slurm.Job], waited: int, end: str) -> None:
        """Fail the module with the jobs in the way; C(end) says what was done about the nodes."""
        names = [_name_of(job) for job in jobs[:NAMED]]
        names += ["and %d more" % (len(jobs) - NAMED)] if len(jobs) > NAMED else []
        rows = [
            {
                "id": job["id"],
                "user": job["user"],
                "nodes": job["nodes"],
                "end_time": job["end_time"],
            }
            for job in jobs
        ]
        self.module.fail_json(
            msg=(
                "Jobs run on the nodes%s: %s. Expected none. Wait until they have ended, or cancel "
                "them (scancel ID). %s"
            )
            % (" after %d s" % waited if waited else "", "; ".join(names), end),
            jobs=rows,
        )

    @staticmethod
    def _no_answer(cause: str, command: str, evidence: str) -> NoAnswer:
        return NoAnswer(
            cause,
            "'%s' gave no answer: '%s'. %s"
            % (command, evidence, _slurm.FIXES[cause][0].upper() + _slurm.FIXES[cause][1:]),
        )

    def _probe(self) -> str:
        """controller_down, controller_unreachable, or empty if a controller accepts a connection or
        the configuration is not known.
        """
        for path in [os.environ.get("SLURM_CONF", "")] + CONFIGURATIONS:
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    hosts, port = _slurm.controllers_of(file.read())
                break
            except OSError:
                continue
        else:
            return ""
        found = ""
        for host in hosts:
            try:
                socket.create_connection((host, port), PROBE).close()
                return ""
            except ConnectionRefusedError:
                found = "controller_down"
            except OSError:
                found = found or "controller_unreachable"
        return found

    def _credential(self) -> str:
        """Return auth_key, auth_clock or empty, by what this host's MUNGE says of the module's
        option C(credential).
        """
        unmunge = self.module.get_bin_path("unmunge")
        if not unmunge:
            return ""
        dummy, stdout, stderr = self.module.run_command(
            [unmunge], data=self.module.params["credential"].strip()
        )
        return _slurm.credential_fault(stdout + "\n" + stderr)
