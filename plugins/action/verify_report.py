# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import datetime
import json
import os

from ansible import context
from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase

from ansible_collections.trainyard.gpu.plugins.module_utils import _metrics
from ansible_collections.trainyard.gpu.plugins.module_utils._slurm_metrics import seconds_of
from ansible_collections.trainyard.gpu.plugins.plugin_utils import (
    _report,
    _report_files,
    _report_page,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils._role_input import show_failure

# Number of earlier runs whose curves the page shows.
HISTORY = 5
BANDWIDTH_KEYS = ("collective", "note", "runs", "tool", "tool_reason")


# Options that become parts of the report as they are.
FIELDS = (
    "cluster",
    "checks",
    "hosts",
    "versions",
    "bandwidth",
    "burn_in",
    "blame",
    "suspect",
    "logs",
    "seconds",
)


def checked_fields(args, schema):
    """The options that are parts of the report, in its form.

    A ReportError says which one does not match the schema.
    """
    rules = {name: rule for name, rule in schema["properties"].items() if name in args}
    given = {name: value for name, value in args.items() if name in rules and value is not None}
    given["hosts"] = [
        {key: value for key, value in host.items() if key in _report.HOST_KEYS}
        for host in args["hosts"]
    ]
    # A version such as 12.4 is a number to YAML.
    given["versions"] = {}
    for host, components in args["versions"].items():
        texts = {name: str(version) for name, version in components.items() if version is not None}
        given["versions"][host] = dict(components, **texts)
    # Other results of the measurement are in blame and suspect.
    given["bandwidth"] = dict(
        {"collective": None, "runs": []},
        **{key: args["bandwidth"][key] for key in BANDWIDTH_KEYS if key in args["bandwidth"]},
    )
    problem = _report_files.problem_of(given, dict(schema, required=[], properties=rules))
    if problem:
        raise _report.ReportError(
            "the options of verify_report do not make a valid report: %s" % problem
        )
    return given


class ActionModule(ActionBase):
    """Judges the findings of verify on the controller, and writes the report before the verdict
    fails the play.
    """

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(
        (
            *FIELDS,
            "report_dir",
            "before",
            "required",
            "overrule",
            "fail_on",
            "metrics",
            "portal",
        )
    )

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        dummy, args = self.validate_argument_spec(
            {
                "cluster": {"type": "str", "required": True},
                "checks": {"type": "list", "elements": "dict", "required": True},
                "hosts": {"type": "list", "elements": "dict", "required": True},
                "versions": {"type": "dict", "default": {}},
                "bandwidth": {"type": "dict", "default": {}},
                "burn_in": {"type": "list", "elements": "dict", "default": []},
                "blame": {"type": "list", "elements": "dict", "default": []},
                "suspect": {"type": "list", "elements": "str", "default": []},
                "logs": {"type": "list", "elements": "dict", "default": []},
                "seconds": {"type": "float", "default": 0.0},
                "report_dir": {"type": "path", "required": True},
                "before": {"type": "path"},
                "required": {"type": "list", "elements": "str"},
                "overrule": {"type": "dict", "default": {}},
                "fail_on": {"type": "str", "choices": ["block", "warn"], "default": "block"},
                "metrics": {"type": "str", "default": ""},
                "portal": {"type": "str", "default": ""},
            }
        )
        # Templates return Ansible's own types of text and list.
        args = json.loads(json.dumps(args, default=str))
        checks = _report_files.published()
        try:
            report, earlier = self._report(args, checks)
        except _report.ReportError as error:
            raise AnsibleError(str(error)) from error

        folder = self._folder(args["report_dir"])
        suspect_file = os.path.join(folder, _report_files.SUSPECT)
        result.update(
            changed=False,
            verdict=report["verdict"],
            report=report,
            folder="",
            suspect_file=suspect_file,
        )
        page = ""
        if not self._task.check_mode:
            page = _report_page.render(report, checks, suspect_file, earlier)
            try:
                result["folder"] = _report_files.write(
                    folder,
                    report["generated"],
                    {
                        _report_files.REPORT: json.dumps(report, indent=1, ensure_ascii=False)
                        + "\n",
                        "junit.xml": _report.junit(report, checks),
                        "report.html": page,
                    },
                )
                # Hosts that have left the cluster since then are no suspects.
                members = (task_vars or {}).get("groups", {}).get("cluster")
                former = [
                    name
                    for name in _report_files.suspects(suspect_file)
                    if members is None or name in members
                ]
                _report_files.replace(suspect_file, _report.suspect_inventory(report, former))
            except OSError as error:
                raise AnsibleError(
                    "report_dir %s: the report cannot be written: %s\n%s"
                    % (folder, error, _report.summary(report, checks))
                ) from error
        where = (
            "\nReport: %s" % os.path.join(result["folder"], "report.html")
            if result["folder"]
            else ""
        )
        if args["metrics"] and not self._task.check_mode:
            self._write_on_host(args, report, page, task_vars)
        result["msg"] = _report.summary(report, checks) + where
        if report["verdict"] == "fail":
            result["failed"] = True
            # Ansible prints all values of a failed result, and the message has the relevant ones.
            del result["report"]
            show_failure(self._display, self._templar, result["msg"])
        return result

    def _write_on_host(self, args, report, page, task_vars):
        """Write the verdict for Prometheus, and the page for operators of the portal.

        Without it, alerts tell of an old verdict, so a failure is a warning.
        """
        path, generated = args["metrics"], seconds_of(report["generated"])
        files = [
            {
                "path": path,
                "content": _metrics.render(_metrics.verify_families(report, generated)),
                "mode": "0640",
                "group": "prometheus",
            }
        ]
        if args["portal"]:
            # The folder is root's: in one of the portal's account, this account could put a link or
            # a FIFO in the place of the file that root writes.
            mine = {"owner": "root", "group": "trainyard-hub"}
            folder = os.path.dirname(args["portal"])
            files.append(dict(mine, path=folder, state="directory", mode="0750"))
            files.append(dict(mine, path=args["portal"], content=page, mode="0640"))
        try:
            done = self._execute_module(
                module_name="trainyard.gpu.managed_files",
                module_args={"files": files},
                task_vars=task_vars,
            )
        except AnsibleError as error:
            # Its host does not answer. The verdict is worth more.
            done = {"failed": True, "msg": str(error)}
        if done.get("failed"):
            self._display.warning("%s cannot be written: %s" % (path, done.get("msg")))

    def _report(self, args, checks):
        """The report and the earlier ones, or a ReportError before anything is written."""
        folder = self._folder(args["report_dir"])
        source = _report_files.read_as_inventory(folder, context.CLIARGS.get("inventory") or ())
        if source:
            raise _report.ReportError(
                "report_dir %s is in %s, where Ansible reads every file as an inventory: "
                "junit.xml would become hosts. "
                "Set a folder outside of it, or one below a name that begins with a dot, such "
                "as %s." % (folder, source, os.path.join(source, ".trainyard", "reports"))
            )
        schema = _report_files.load_schema()
        names = [host.get("name") for host in args["hosts"]]
        earlier, passed_over = _report_files.history(
            folder, schema, args["cluster"], names, HISTORY
        )
        for reason in passed_over:
            self._display.warning("An earlier report was ignored: %s" % reason)
        before = earlier[0] if earlier else None
        if args["before"]:
            before = self._before(args, folder, schema, names)
        given = checked_fields(args, schema)
        required = []
        # Checks that the site leaves out on purpose, or that check mode cannot make, are not
        # missing.
        if not self._task.check_mode:
            required = [
                name
                for name in _report.required_ids(args["required"], checks)
                if args["overrule"].get(name) != "skip"
            ]
        report = _report.make(
            generated=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            published=checks,
            required=required,
            fail_on=args["fail_on"],
            before=before,
            **{key: given[key] for key in FIELDS},
        )
        return report, earlier

    @staticmethod
    def _before(args, folder, schema, names):
        """The report that the user names for the comparison."""
        path = os.path.join(folder, os.path.expanduser(args["before"]))
        before = _report_files.read(path, schema)
        reason = _report_files.difference(before, args["cluster"], names)
        if reason:
            raise _report.ReportError(
                "before: '%s' cannot be used: %s. Set a report of this cluster, or none."
                % (path, reason)
            )
        return before

    def _folder(self, path):
        """Relative to the working directory of ansible-playbook, like its -i."""
        return os.path.abspath(os.path.expanduser(path))
