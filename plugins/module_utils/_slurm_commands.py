# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run Slurm's commands for a module, with a common time limit, and say why one gave no answer."""

from __future__ import annotations

import os
import socket
import time
import uuid

from ansible_collections.trainyard.gpu.plugins.module_utils import _slurm
from ansible_collections.trainyard.gpu.plugins.module_utils._tool import check_timeout, run_tool

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


class NoAnswer(Exception):
    """Slurm did not answer; the text says what was found and what to do."""

    def __init__(self, cause, text):
        super().__init__(text)
        self.cause = cause


class Slurm:
    def __init__(self, module):
        self.module = module
        check_timeout(module)
        self.deadline = time.monotonic() + module.params["timeout"]
        environment = _slurm.command_environment(os.environ)
        os.environ.clear()
        os.environ.update(environment)

    def run(self, command):
        """Return the output of a command. Raises NoAnswer if it failed."""
        left = self.deadline - time.monotonic()
        shown = command[0] if command[0] in ("squeue", "sacct") else " ".join(command[:6])
        if left <= 0:
            raise self._no_answer(
                "timeout",
                shown,
                "no time was left for it, of %d seconds" % self.module.params["timeout"],
            )
        run = run_tool(self.module, command, max(1, int(left + 0.5)))
        if not run.cause and run.rc == 0:
            return run.stdout
        if run.cause == "timeout":
            cause, evidence = (
                "timeout",
                "no answer within %d seconds" % self.module.params["timeout"],
            )
            # Slurm's commands try again for minutes. That the controller cannot be reached is the more useful cause.
            cause = self._probe() or cause
        elif run.cause:
            cause, evidence = run.cause, run.evidence
        else:
            cause, evidence = _slurm.why_no_answer(run.rc, run.stdout, run.stderr)
            if cause == "controller_down":
                cause = self._probe() or cause
            elif cause == "auth" and self.module.params.get("credential"):
                cause = self._credential() or cause
        raise self._no_answer(cause, shown, evidence)

    def read(self, command, parse):
        """Return what the parser reads in the output. Fails the module if it cannot."""
        try:
            return parse(self.run(command))
        except _slurm.ParseError as error:
            self.module.fail_json(
                msg="%s: the output has an unexpected format: %s. Run the command on the host, and report its output if it is complete"
                % (command[0] if command[0] == "squeue" else " ".join(command), error)
            )

    def jobs(self):
        # Made now, so no name or comment contains it.
        mark = "|%s|" % uuid.uuid4().hex
        return self.read(_slurm.jobs_command(mark), lambda text: _slurm.parse_jobs(text, mark))

    def wait_for_jobs(self, nodes, wait, reservation=""):
        """Wait C(wait) seconds until no job runs on the nodes, but for those of the reservation. Returns the jobs that still run, and the seconds waited.

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

    def fail_for_jobs(self, jobs, waited, end):
        """Fail the module with the jobs in the way; C(end) says what was done about the nodes."""
        told = [
            "job %d of %s on %s%s"
            % (
                job["id"],
                job["user"],
                ", ".join(job["nodes"]),
                ", until %s at most" % job["end_time"] if job["end_time"] else "",
            )
            for job in jobs[:NAMED]
        ] + (["and %d more" % (len(jobs) - NAMED)] if len(jobs) > NAMED else [])
        self.module.fail_json(
            msg="Jobs run on the nodes%s: %s. Expected none. Wait until they have ended, or cancel them (scancel ID). %s"
            % (" after %d s" % waited if waited else "", "; ".join(told), end),
            jobs=[{key: job[key] for key in ("id", "user", "nodes", "end_time")} for job in jobs],
        )

    @staticmethod
    def _no_answer(cause, command, evidence):
        return NoAnswer(
            cause,
            "'%s' gave no answer: '%s'. %s"
            % (command, evidence, _slurm.FIXES[cause][0].upper() + _slurm.FIXES[cause][1:]),
        )

    def _probe(self):
        """controller_down, controller_unreachable, or empty if a controller accepts a connection or the configuration is not known."""
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

    def _credential(self):
        unmunge = self.module.get_bin_path("unmunge")
        if not unmunge:
            return ""
        dummy, stdout, stderr = self.module.run_command(
            [unmunge], data=self.module.params["credential"].strip()
        )
        return _slurm.credential_fault(stdout + "\n" + stderr)
