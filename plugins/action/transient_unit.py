# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.module_utils.common.validation import check_type_dict
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.trainyard.gpu.plugins.module_utils._transient_unit import (
    LINES_PER_LOOK,
    abridge,
    describe_end,
    look_command,
    parse_look,
    secret_texts,
    take_lines,
    without_secrets,
)

display = Display()

# A restart of sshd or a replugged cable must not abort a build of an hour.
RETRY_SECONDS = 90
TAIL_LINES = 15


def _tell(play, line):
    """Write a line to the terminal of the play. After Ctrl-C it takes no more lines from
    its tasks.
    """
    try:
        with open("/proc/%d/fd/2" % play, "w", encoding="utf-8") as stream:
            stream.write(line + "\n")
    except OSError:
        display.display(line)


class ActionModule(ActionBase):
    """Starts the unit with the module, then follows it and shows its lines as they appear.

    A module cannot do that, because it returns only at its end.

    It looks by a shell command, not by the module: that would be a Python process on a host that
    may be training, every few seconds.
    """

    _requires_connection = True

    def run(self, tmp=None, task_vars=None):
        result = super(ActionModule, self).run(tmp, task_vars)
        del tmp
        self._host = self._task.delegate_to or task_vars.get("inventory_hostname")
        play = os.getppid()
        result.update(self._execute_module(module_args=dict(self._task.args), task_vars=task_vars))
        state = result.pop("follow", None)
        if result.get("failed") or not state:
            return result
        secrets = secret_texts(check_type_dict(self._task.args.get("secret_environment") or {}))
        if secrets:
            # The output of a look is raw. The connection would show it with -vvv.
            self._connection._play_context.no_log = True
        with self._told_of_ctrl_c(play, result, state):
            end, tail = self._follow(result, state, secrets, play)
        result.update(
            finished=True,
            rc=end["rc"],
            result=end["result"],
            seconds=round(max(end["uptime"] - state["started"], 0.0), 1),
            tail=tail,
        )
        if end["rc"]:
            result["failed"] = True
            result["msg"] = (
                "Unit %s on host %s %s. Its whole output is in %s on that host; the last lines:\n%s"
                % (
                    result["unit"],
                    self._host,
                    describe_end(end, state["timeout"], state["lease"]),
                    result["log"],
                    "\n".join(tail),
                )
            )
        return result

    def _follow(self, result, state, secrets, play):
        """Show the lines of the unit until its end. Return how it ended, and its last lines."""
        end, tail = None, []
        while end is None:
            if os.getppid() != play:
                # ansible-playbook was killed and this worker was left over: nobody sees its lines,
                # and it must not renew the lease.
                raise AnsibleError("The play that started %s has ended" % result["unit"])
            look = self._look(result, state)
            end = look["end"]
            lines, consumed = take_lines(look["data"], end is not None)
            state.update(inode=look["inode"], offset=look["offset"] + consumed)
            lines = [without_secrets(line, secrets) for line in lines]
            tail = (tail + lines)[-TAIL_LINES:]
            self._show(lines, look["skipped"], result["log"])
        return end, tail

    @contextlib.contextmanager
    def _told_of_ctrl_c(self, play, result, state):
        """Say on Ctrl-C what becomes of the unit.

        Ansible passes SIGINT on to its tasks, and then kills them while they wait for their
        connection.
        """

        def interrupt(number, frame):
            _tell(play, self._interrupted(result, state))
            if not callable(former):
                raise KeyboardInterrupt
            former(number, frame)

        # A strategy with threads gets no signals.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        former = signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, former)

    def _interrupted(self, result, state):
        """What becomes of the unit after Ctrl-C, as a line."""
        left = (
            "continues. To stop it, run on that host: systemctl stop %s" % result["unit"]
            if not state["lease"]
            else "is stopped within %d s, and all of its processes with it" % state["lease"]
        )
        return "Interrupted: %s on host %s %s. Its output is in %s" % (
            result["unit"],
            self._host,
            left,
            result["log"],
        )

    def _show(self, lines, skipped, log):
        lines = abridge(lines, LINES_PER_LOOK, log)
        if skipped:
            lines.insert(0, "... %d bytes left out here; see the whole log in %s" % (skipped, log))
        # One call for all lines of a look, because every call passes a queue to the main process.
        if lines:
            display.display("\n".join("%s | %s" % (self._host, line) for line in lines))

    def _look(self, result, state):
        command = look_command(self._task.args["name"], state["inode"], state["offset"])
        give_up = time.monotonic() + RETRY_SECONDS
        while True:
            try:
                answer = self._low_level_execute_command(command)
            except AnsibleConnectionFailure as error:
                if time.monotonic() > give_up:
                    raise
                display.warning(
                    "%s cannot be reached (%s); the unit %s continues, trying again"
                    % (self._host, error, result["unit"])
                )
                time.sleep(2)
                self._connection.reset()
                continue
            try:
                return parse_look(answer["stdout"])
            except ValueError as error:
                # Without the text after the marker, which is log output and may contain a secret.
                output = answer["stderr"] or answer["stdout"].partition("trainyard-look")[0]
                raise AnsibleError(
                    (
                        "Cannot follow unit %s on host %s, which continues there with its output "
                        "in %s: %s: exit code %s: %s"
                    )
                    % (
                        result["unit"],
                        self._host,
                        result["log"],
                        error,
                        answer["rc"],
                        output.strip()[-500:],
                    )
                ) from None
