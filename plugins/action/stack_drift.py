# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible.plugins.action import ActionBase

from ansible_collections.trainyard.gpu.plugins.plugin_utils._drift import problems, table


class ActionModule(ActionBase):
    """Shows the differences of all hosts from the requested GPU stack on the controller."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(("answers", "asked", "driver", "more", "compared"))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        spec = {name: {"type": "str", "required": True} for name in ("answers", "asked", "driver")}
        dummy, args = self.validate_argument_spec(
            dict(spec, more={"type": "str"}, compared={"type": "str"})
        )
        hosts = []
        for name in [
            name
            for name in task_vars["groups"]["cluster"]
            if name in task_vars["ansible_play_hosts_all"]
        ]:
            variables = task_vars["hostvars"][name]
            answer, requested, driver = (
                variables.get(args["answers"], {}),
                variables.get(args["asked"], {}),
                variables.get(args["driver"], ""),
            )
            # A host that has dropped out of the play did not answer, even if it has a result of an
            # earlier play.
            silent = name not in task_vars["ansible_play_hosts"] or "packages" not in answer
            found = (
                None
                if silent
                else problems(answer, requested, driver)
                + list(variables.get(args["more"] or "", []))
            )
            hosts.append(
                {
                    "name": name,
                    "asked": len(requested),
                    "problems": found,
                    "compared": list(variables.get(args["compared"] or "", [])),
                }
            )
        self._display.display(table(hosts))
        drifted = [host["name"] for host in hosts if host["problems"]]
        result.update(
            changed=False,
            hosts=hosts,
            msg="drift on %d of %d hosts" % (len(drifted), len(hosts)),
            failed=bool(drifted),
        )
        if drifted:
            result["msg"] += ": " + ", ".join(drifted)
        return result
