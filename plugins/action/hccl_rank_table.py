# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Builds the rank table on the controller, which knows all hosts, and writes it on the host of the
task.
"""

from __future__ import annotations

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.trainyard.gpu.plugins.plugin_utils._rank_table import (
    RankTableError,
    rank_table,
    rendered,
)


class ActionModule(ActionBase):
    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset(
        ("hosts", "members", "registered", "format", "board_id", "chip_info", "path", "mode")
    )

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(
            {
                "hosts": {"type": "list", "elements": "dict"},
                "members": {"type": "list", "elements": "dict"},
                "registered": {"type": "str"},
                "format": {"type": "str", "default": "1.0"},
                "board_id": {"type": "str", "default": "0x0020"},
                "chip_info": {"type": "str", "default": "910"},
                "path": {"type": "path"},
                "mode": {"type": "str", "default": "0644"},
            },
            mutually_exclusive=[("hosts", "registered")],
            required_one_of=[("hosts", "registered")],
        )
        try:
            hosts = args["hosts"] if args["hosts"] is not None else self.hosts(args, task_vars)
            table = rank_table(hosts, args["format"], args["board_id"], args["chip_info"])
        except RankTableError as error:
            raise AnsibleActionFail(str(error)) from error
        if args["path"]:
            file = {"path": args["path"], "content": rendered(table), "mode": args["mode"]}
            result.update(
                self._execute_module(
                    "trainyard.gpu.managed_files",
                    module_args={"files": [file]},
                    task_vars=task_vars,
                )
            )
        if not result.get("failed"):
            result.update(
                changed=bool(result.get("changed")),
                table=table,
                text=rendered(table),
                ranks=sum(len(host["devices"]) for host in hosts),
            )
        return result

    @staticmethod
    def hosts(args, task_vars):
        """The hosts in rank order with what each has registered."""
        hostvars = task_vars["hostvars"]
        members = args["members"]
        if members is None:
            members = [
                {
                    "name": name,
                    "address": hostvars[name].get("cluster_address")
                    or hostvars[name].get("ansible_host")
                    or name,
                }
                for name in task_vars["groups"].get("npu")
                or task_vars["groups"].get("cluster")
                or []
            ]
        hosts = []
        for member in members:
            answer = (
                hostvars[member["name"]].get(args["registered"])
                if member["name"] in hostvars
                else None
            )
            if not isinstance(answer, dict) or "devices" not in answer:
                raise RankTableError(
                    f"host '{member['name']}' has no result of npu_smi_info in variable "
                    f"'{args['registered']}'; run the module on all hosts "
                    "of the rank table first"
                )
            hosts.append(
                {
                    "name": member["name"],
                    "server_id": member["address"],
                    "devices": answer["devices"],
                }
            )
        return hosts
