# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's part of information modules whose answer an earlier module run of the play has
brought along, if nothing can have changed since.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.plugins.action.normal import ActionModule as AnyModule


class KnownAnswer(AnyModule):  # type: ignore[misc]  # Ansible has no types.
    """Returns option C(known). If that is empty, it runs the module as Ansible runs any other, with
    the options in the variable that C(question) names: a name, so that a host whose answer is known
    does not evaluate them.
    """

    #: What the module returns. A host chooses its answer, and Ansible obeys some keys of a result,
    #: such as C(add_host) and C(ansible_facts). It removes them from the result of a module, and
    #: not from what is nested in one.
    returned: frozenset[str] = frozenset()

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result of the task. C(sent) is false if no module was sent to the host."""
        known: Any = self._task.args.pop("known", None)
        question: str = self._task.args.pop("question", "")
        if known and isinstance(known, Mapping):
            answer = {name: known[name] for name in sorted(self.returned & known.keys())}
            return {**answer, "changed": False, "sent": False}
        if question and task_vars is not None:
            options = self._templar.template(task_vars[question])
            self._task.args = {**options, **self._task.args}
        found: dict[str, Any] = super().run(tmp, task_vars)
        return found
