# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import time

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

display = Display()

# A host that is restarting its sshd or a cable that is moved should not cost a build of an hour.
RETRY_SECONDS = 90


class ActionModule(ActionBase):
    """Calls the module until the unit has ended, and shows each call's lines at once: modules can't, they answer only at their end."""

    _requires_connection = True
    # What later calls need; secrets, so that they are replaced in the lines. The command and its environment travel once.
    FOLLOW = ("name", "log", "lease", "secret_environment")

    def run(self, tmp=None, task_vars=None):
        result = super(ActionModule, self).run(tmp, task_vars)
        del tmp
        host = self._task.delegate_to or task_vars.get("inventory_hostname")
        play = os.getppid()
        answer = self._execute_module(module_args=dict(self._task.args), task_vars=task_vars)
        first = answer
        self._show(host, answer)
        while self._goes_on(answer):
            if os.getppid() != play:
                # ansible-playbook was killed and this worker was left: nobody sees its lines, and it must not keep the lease alive.
                raise AnsibleError("The play that started %s is gone" % answer["unit"])
            arguments = dict((key, self._task.args[key]) for key in self.FOLLOW if key in self._task.args)
            arguments["cursor"] = answer["cursor"]
            answer = self._follow(host, arguments, task_vars)
            self._show(host, answer)
        for key in ("lines", "cursor"):
            answer.pop(key, None)
        result.update(answer)
        for key in ("changed", "attached", "diff"):
            if key in first:
                result[key] = first[key]
        how = result.pop("how", None)
        if result.get("finished") and result.get("rc"):
            result["failed"] = True
            result["msg"] = "Unit %s on host %s %s. Its whole output is in %s on that host; the last lines:\n%s" % (
                result["unit"], host, how, result["log"], "\n".join(result["tail"]))
        return result

    @staticmethod
    def _goes_on(answer):
        return not answer.get("failed") and not answer.get("finished") and "cursor" in answer

    @staticmethod
    def _show(host, answer):
        # One call for all lines of a poll: every call crosses a queue to the main process.
        if answer.get("lines"):
            display.display("\n".join("%s | %s" % (host, line) for line in answer["lines"]))

    def _follow(self, host, arguments, task_vars):
        give_up = time.monotonic() + RETRY_SECONDS
        while True:
            try:
                return self._execute_module(module_args=arguments, task_vars=task_vars)
            except AnsibleConnectionFailure as error:
                if time.monotonic() > give_up:
                    raise
                display.warning("%s cannot be reached (%s); the unit %s goes on, trying again" % (host, error, arguments["name"]))
                time.sleep(2)
                self._connection.reset()
