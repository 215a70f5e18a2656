# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's part of synced_folder: lists the files and transfers those that the host
lacks.
"""

from __future__ import annotations

import fnmatch
import os

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.hashing import secure_hash
from hashlib import sha256


class ActionModule(ActionBase):
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        found = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        sources = {}
        if arguments.get("src") and arguments.get("state") != "absent":
            sources = self.sources(arguments["src"], arguments.get("patterns") or ["*"])
            stats = {name: os.stat(path) for name, path in sources.items()}
            arguments["files"] = {
                name: [file.st_size, int(file.st_mtime)] for name, file in stats.items()
            }
            if arguments["files"] and arguments["files"] == arguments.get("known"):
                return dict(found, changed=False, copied=[], removed=[], sent=False)

        result = self._execute_module(module_args=arguments, task_vars=task_vars)
        if result.get("wanted"):
            arguments["uploads"] = {
                name: [
                    self.upload(sources[name], number),
                    secure_hash(sources[name], hash_func=sha256),
                ]
                for number, name in enumerate(result["wanted"])
            }
            result = self._execute_module(module_args=arguments, task_vars=task_vars)
        return result

    def upload(self, path, number):
        # Created only now, because a temporary folder costs a round trip that a run without a
        # difference does not need.
        if self._connection._shell.tmpdir is None:
            self._make_tmp_path()
        remote = self._connection._shell.join_path(
            self._connection._shell.tmpdir, f"upload-{number}"
        )
        self._transfer_file(path, remote)
        self._fixup_perms2((self._connection._shell.tmpdir, remote))
        return remote

    def sources(self, src, patterns):
        """{name: path} of the selected files of the controller's folder."""
        folder = src if os.path.isabs(src) else self._find_needle("files", src)
        if not os.path.isdir(folder):
            raise AnsibleActionFail(
                f"src: '{folder}' is not a folder on the controller; set an existing one"
            )
        paths = {name: os.path.join(folder, name) for name in sorted(os.listdir(folder))}
        return {
            name: path
            for name, path in paths.items()
            if os.path.isfile(path) and any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
        }
