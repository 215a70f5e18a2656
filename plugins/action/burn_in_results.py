# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import datetime
import json
import os

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase

from ansible_collections.trainyard.gpu.plugins.module_utils import _burn_in
from ansible_collections.trainyard.gpu.plugins.plugin_utils import _compat, _report_files


class ActionModule(ActionBase):
    """Judges a burn-in on the controller, and files the result of each device."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(("hosts", "rails", "results_dir", "compat_facts"))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        dummy, args = self.validate_argument_spec(
            {
                "hosts": {"type": "dict", "default": {}},
                "rails": {"type": "dict", "default": {}},
                "results_dir": {"type": "path", "required": True},
                "compat_facts": {"type": "str", "default": ""},
            }
        )
        # Templates return Ansible's own types of text and list.
        reported = json.loads(json.dumps(args["hosts"], default=str))
        folder = os.path.abspath(os.path.expanduser(args["results_dir"]))
        filed = self._filed(folder)
        earlier = {serial: document["results"] for serial, document in filed.items()}
        facts = _compat.load_facts(args["compat_facts"])
        judged = _burn_in.judge(
            _burn_in.of_hosts(reported), earlier, lambda model: _compat.gpu_figures(model, facts)
        )
        of_rails = _burn_in.judge_rails(json.loads(json.dumps(args["rails"], default=str)), earlier)
        judged = {key: judged[key] + of_rails[key] for key in judged}
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        if not self._task.check_mode:
            try:
                os.makedirs(folder, mode=0o750, exist_ok=True)
                for device in judged["devices"]:
                    _report_files.replace(
                        os.path.join(folder, _burn_in.file_name(device["serial"])),
                        json.dumps(
                            _burn_in.with_result(filed.get(device["serial"]), device, now), indent=1
                        )
                        + "\n",
                    )
            except OSError as error:
                raise AnsibleError(
                    "results_dir %s: the results cannot be written: %s" % (folder, error)
                ) from error
        result.update(changed=False, folder=folder, **judged)
        return result

    def _filed(self, folder):
        """The documents of earlier burn-ins by serial number.

        One that cannot be read is reported, and the device counts as new.
        """
        found = {}
        try:
            names = sorted(os.listdir(folder))
        except FileNotFoundError:
            return found
        except OSError as error:
            raise AnsibleError("results_dir %s cannot be read: %s" % (folder, error)) from error
        for name in names:
            path = os.path.join(folder, name)
            if not name.endswith(".json"):
                continue
            try:
                with open(path, encoding="utf-8") as opened:
                    document = _burn_in.read_document(json.load(opened))
            except (OSError, ValueError, RecursionError) as error:
                document, why = None, str(error)
            else:
                why = "it is not a result of burn_in"
            if document is None:
                self._display.warning("%s was ignored: %s" % (path, why))
            else:
                found[document["serial"]] = document
        return found
