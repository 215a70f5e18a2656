# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Counts what a run costs and records what it changed.

A module run is a task (or an item of its loop, or a retry) that sends a module to a host. It is the
host that the module was sent to that is counted, also when the task was delegated. With
TRAINYARD_RUNS=<file> one JSON line per playbook run is appended to that file, so that tests and
`make bench` can judge it.
"""

from __future__ import annotations

import json
import os
import time

from ansible.playbook.task_include import TaskInclude
from ansible.plugins.callback import CallbackBase
from ansible.plugins.loader import action_loader

DOCUMENTATION = """
name: module_runs
type: aggregate
short_description: Counts the module runs per host and lists the tasks that changed something
description:
  - Prints one line after a run, and appends one JSON line to the file named by the environment variable E(TRAINYARD_RUNS).
"""


def sends_a_module(task):
    """False for includes, and for actions that work on the controller alone (debug, assert,
    set_fact, judge_input): they say so themselves.
    """
    plugin = action_loader.get(task.resolved_action or task.action, class_only=True)
    return not isinstance(task, TaskInclude) and getattr(plugin, "_requires_connection", True)


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "module_runs"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self):
        super().__init__()
        self.started = time.monotonic()
        self.playbook = None
        self.check = False
        self.tasks = 0
        # When each task began, and its name: it ended when the next one began.
        self.begun = []
        self.runs = {}
        self.changed = {}
        self.failed = {}

    def v2_playbook_on_start(self, playbook):
        self.playbook = os.path.basename(playbook._file_name)

    def v2_playbook_on_play_start(self, play):
        self.check = bool(play.check_mode)

    def v2_playbook_on_task_start(self, task, is_conditional):
        self.tasks += 1
        self.begun.append((time.monotonic(), task.get_name().strip()))

    def v2_playbook_on_handler_task_start(self, task):
        self.v2_playbook_on_task_start(task, False)

    def v2_runner_on_ok(self, result):
        self._count(result)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        self.failed.setdefault(result._host.get_name(), []).append(result._task.get_name().strip())
        self._count(result)

    def v2_runner_on_unreachable(self, result):
        self.failed.setdefault(result._host.get_name(), []).append(result._task.get_name().strip())

    def v2_runner_item_on_ok(self, result):
        self._count(result, item=True)

    def v2_runner_item_on_failed(self, result):
        self._count(result, item=True)

    def _count(self, result, item=False):
        task = result._task
        # The result of a loop says it for all its items; a task that failed may have changed
        # something first.
        if not item and result._result.get("changed"):
            self.changed.setdefault(result._host.get_name(), []).append(task.get_name().strip())
        # A loop's items have been counted one by one: only they know to which host each was
        # delegated. An action that has found out on the controller that nothing differs says that
        # it has sent none.
        if sends_a_module(task) and bool(task.loop) == item and result._result.get("sent", True):
            host = result._task_fields.get("delegate_to") or result._host.get_name()
            self.runs.setdefault(host, []).extend(
                [task.get_name().strip()] * max(1, int(result._result.get("attempts") or 1))
            )

    def v2_playbook_on_stats(self, stats):
        now = time.monotonic()
        seconds = round(now - self.started, 1)
        ends = [begun for begun, _name in self.begun[1:]] + [now]
        slowest = sorted(
            ((round(end - begun, 2), name) for (begun, name), end in zip(self.begun, ends)),
            reverse=True,
        )[:12]
        counts = ", ".join(
            "%s %d" % (host, len(names)) for host, names in sorted(self.runs.items())
        )
        self._display.display(
            "module runs: %s (%d tasks, %.1f s)" % (counts or "none", self.tasks, seconds)
        )
        path = os.environ.get("TRAINYARD_RUNS")
        if path:
            record = {
                "playbook": self.playbook,
                "check": self.check,
                "seconds": seconds,
                "tasks": self.tasks,
                "slowest": slowest,
                "runs": self.runs,
                "changed": self.changed,
                "failed": self.failed,
                "recap": {host: stats.summarize(host) for host in sorted(stats.processed)},
            }
            with open(path, "a", encoding="utf-8") as record_file:
                record_file.write(json.dumps(record, sort_keys=True) + "\n")
