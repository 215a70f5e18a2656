# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers module runs in place of a host, so that a run costs what it costs the controller.

The controller builds each module's payload and sends it, as with pipelining over ssh. Which module
it is and its arguments are read from the payload.
"""

from __future__ import annotations

import ast
import json
import os
import re

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection import ConnectionBase
from stand_in_hosts import StandInHost, name_at

DOCUMENTATION = """
name: stand_in
short_description: Answers module runs in place of a host
description:
  - Needs pipelining, C(tests/support) in E(PYTHONPATH), and a folder for what modules write in E(TRAINYARD_STAND_IN).
options:
  host:
    description: The host's address, also of a host that a task is delegated to.
    type: str
    vars:
      - name: ansible_host
"""

# Arguments of the call with which the program begins that ansible-core sends.
MODULE = re.compile(rb"(?:^module_fqn=|mod_name=)'([^']+)'", re.MULTILINE)
PARAMS = re.compile(rb"(?:^params=| ANSIBALLZ_PARAMS = )(.+?),?$", re.MULTILINE)


def module_and_arguments(program):
    """Full name of the module in a payload, and its arguments."""
    params = ast.literal_eval(PARAMS.search(program)[1].decode("utf-8"))
    return MODULE.search(program)[1].decode("ascii"), json.loads(params)["ANSIBLE_MODULE_ARGS"]


class Connection(ConnectionBase):
    transport = "stand_in"
    has_pipelining = True
    always_pipeline_modules = True

    def _connect(self):
        self._connected = True
        return self

    def exec_command(self, cmd, in_data=None, sudoable=True):
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        if not in_data:
            raise AnsibleConnectionFailure("only modules are answered: %s" % cmd)
        module, arguments = module_and_arguments(in_data)
        host = StandInHost(name_at(self.get_option("host")), os.environ["TRAINYARD_STAND_IN"])
        return 0, json.dumps(host.answer(module, arguments)).encode("utf-8"), b""

    def put_file(self, in_path, out_path):
        raise AnsibleConnectionFailure(
            "only modules are answered, no files are stored: %s" % out_path
        )

    def fetch_file(self, in_path, out_path):
        raise AnsibleConnectionFailure("only modules are answered, no files are kept: %s" % in_path)

    def close(self):
        self._connected = False
