"""The judgement of an inventory's variables as ansible-playbook has it: real templates, the rules
and defaults of all roles.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from unittest import mock

from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from trusted import trusted

from ansible_collections.trainyard.gpu.plugins.action import judge_input
from ansible_collections.trainyard.gpu.plugins.plugin_utils._role_input import load_data, load_roles

LOADER = DataLoader()


class HostVars(dict):
    def raw_get(self, host):
        return self[host]


class Campaign:
    """The module as ansible-playbook calls it, with variables in place of an inventory's files."""

    def __init__(self):
        self.files, self.roles = {}, load_roles(LOADER)

    def load(self, dummy, path):
        if path not in self.files:
            self.files[path] = load_data(LOADER, path)
        return self.files[path]

    def __call__(self, both=None, first=None, groups=None, hosts=("server-a", "server-b")):
        every = {"all": list(hosts), "ungrouped": [], "cluster": list(hosts), **(groups or {})}
        hostvars = HostVars()
        for number, host in enumerate(hosts):
            hostvars[host] = trusted(
                dict(
                    {"ansible_host": "192.0.2.%d" % (number + 1)},
                    inventory_hostname=host,
                    groups=every,
                    inventory_dir="/inventories/lab",
                    **{**(both or {}), **((first or {}) if number == 0 else {})},
                )
            )
        return self.judge(every, hostvars)

    def judge(self, groups, hostvars):
        """The findings about the hosts of these groups.

        C(hostvars) are their variables, with groups and inventory_hostname.
        """
        task = SimpleNamespace(
            args={},
            async_val=False,
            check_mode=True,
            diff=False,
            action="trainyard.gpu.judge_input",
            collections=[],
            environment=[],
        )
        action = judge_input.ActionModule(
            task,
            SimpleNamespace(_shell=SimpleNamespace(tmpdir="/nowhere")),
            SimpleNamespace(check_mode=True),
            LOADER,
            Templar(LOADER, {}),
            None,
        )
        return action.run(task_vars={"groups": groups, "hostvars": hostvars})


@contextlib.contextmanager
def campaign() -> Iterator[Campaign]:
    """Yield a campaign whose rules and data are read once."""
    made = Campaign()
    with mock.patch.multiple(
        judge_input, load_roles=lambda loader: made.roles, load_data=made.load
    ):
        yield made
