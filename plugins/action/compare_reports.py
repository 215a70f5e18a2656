# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase

from ansible_collections.trainyard.gpu.plugins.module_utils._quantity import quantity
from ansible_collections.trainyard.gpu.plugins.plugin_utils import (
    _report,
    _report_files,
    _report_page,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils._drift import aligned


class ActionModule(ActionBase):
    """Compares two reports on the controller."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(("report_dir", "before", "after"))

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        dummy, args = self.validate_argument_spec(
            {
                "report_dir": {"type": "path", "required": True},
                "before": {"type": "path"},
                "after": {"type": "path"},
            }
        )
        folder = os.path.abspath(os.path.expanduser(args["report_dir"]))
        schema = _report_files.load_schema()
        try:
            paths = self._paths(folder, args)
            before, after = (_report_files.read(path, schema) for path in paths)
            reason = _report_files.difference(
                before, after["cluster"], [host["name"] for host in after["hosts"]]
            )
            if reason:
                raise _report.ReportError(
                    "%s cannot be compared with %s: %s." % (paths[0], paths[1], reason)
                )
        except _report.ReportError as error:
            raise AnsibleError(str(error)) from error
        changes = _report.changes(before, after)
        # As on the page, but with the ids of the checks: 64 hosts that were upgraded together are
        # one row for each component.
        rows = _report_page.grouped_changes(changes, {}, after["hosts"])
        self._display.display(
            aligned(
                [("what", "hosts", before["generated"], after["generated"])]
                + [
                    (row["what"], row["hosts"]["text"] or "cluster", row["before"], row["now"])
                    for row in rows
                ]
            )
        )
        page = os.path.join(
            os.path.dirname(paths[1]) if os.path.isfile(paths[1]) else paths[1], "compare.html"
        )
        if not self._task.check_mode:
            try:
                _report_files.replace(
                    page,
                    _report_page.render_comparison(
                        before, after, _report_files.published(), changes
                    ),
                )
            except OSError as error:
                raise AnsibleError("%s cannot be written: %s" % (page, error)) from error
        result.update(
            changed=False,
            changes=changes,
            page=page,
            msg="%s. Page: %s" % (quantity(len(changes), "difference"), page),
        )
        return result

    def _paths(self, folder, args):
        """The two reports: the named ones, else the last ones."""
        last = _report_files.folders(folder)
        if args["after"]:
            after = os.path.join(folder, os.path.expanduser(args["after"]))
        elif last:
            after = last[0]
        else:
            raise _report.ReportError(
                (
                    "report_dir %s holds no report. Run verify.yml, or set verify_report_dir to "
                    "the folder of its reports."
                )
                % folder
            )
        if args["before"]:
            return os.path.join(folder, os.path.expanduser(args["before"])), after
        older = [
            path
            for path in last
            if os.path.basename(path) < os.path.basename(os.path.normpath(after))
        ]
        if not older:
            raise _report.ReportError(
                "report_dir %s holds no report before %s. Name one with compare_before."
                % (folder, after)
            )
        return older[0], after
