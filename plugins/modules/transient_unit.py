#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: transient_unit
short_description: Run a long command as a systemd unit and show its output
version_added: "0.1.0"
description:
  - Starts a command with C(systemd-run) on the host, so that it survives a lost connection, and
    shows its output on the operator's terminal about three seconds after it was written. The task
    ends when the unit ends.
  - If a unit of this name with the same command and environment is running already, the task
    attaches to it instead of starting a second one. A unit that has ended is started again. The
    playbook must decide whether that is needed, by checking the results of the command.
  - The shown output is shortened if it is very long, and has no control characters. The log on the
    host is complete.
author:
  - trainyard maintainers (@trainyard)
options:
  name:
    description:
      - Name of the unit without the suffix C(.service).
    type: str
    required: true
  command:
    description:
      - The command and its arguments. No shell is involved. The program is looked up in the unit's
        E(PATH).
    type: list
    elements: str
    required: true
  environment:
    description:
      - Environment variables of the command. They are written to a file that only root can read,
        never to the command line.
    type: dict
    default: {}
  secret_environment:
    description:
      - Like O(environment), for values that must not be logged. They are masked in everything that
        this module returns, including log lines.
    type: dict
    default: {}
  files:
    description:
      - Files that the command needs on the host, in this order. They are managed as with
        M(trainyard.gpu.managed_files) before the unit is started, without a separate module run. If
        the unit is already running, they are not changed.
    default: []
  working_directory:
    description:
      - Working directory of the command.
    type: path
  log:
    description:
      - File on the host to which the output is appended. Its directory is created if it does not
        exist.
    type: path
    required: true
  log_append:
    description:
      - Whether the output of earlier units stays in O(log). With V(false) the file is emptied when
        the unit starts.
    type: bool
    default: true
    version_added: "0.4.0"
  stop_command:
    description:
      - A command that systemd runs after the unit has ended for any reason, before the task ends.
        It has 60 seconds.
    type: list
    elements: str
    default: []
  timeout:
    description:
      - Seconds after which the unit is stopped. V(0) means never.
    type: int
    default: 0
  lease:
    description:
      - Seconds without contact to this task after which the unit stops itself. V(0) means that it
        continues without the task.
      - If not V(0), it must be at least V(10), because the task makes contact about every six
        seconds, or more often while there is output.
    type: int
    default: 0
  detach:
    description:
      - End the task as soon as the unit has started. Excludes O(lease).
    type: bool
    default: false
  replace:
    description:
      - Action if a unit of this name is running with another command or environment. V(true) stops
        it and starts the new one, V(false) fails.
    type: bool
    default: false
  once:
    description:
      - If not empty, the unit runs only once, and the task fails if a unit of this name has left
        its O(log), or if another play follows the running unit. This text is then the end of the
        message, and says what to do instead.
      - A running unit that no play follows is still attached to, with a warning, so that a task can
        continue after a lost connection. With O(detach=true) the task fails.
    type: str
    default: ""
    version_added: "0.4.0"
requirements:
  - systemd 240 or newer on the host
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.files
attributes:
  check_mode:
    support: full
    details:
      - Reports whether a unit would be started. Runs nothing.
  diff_mode:
    support: partial
    details:
      - Of O(files).
"""

EXAMPLES = r"""
- name: Build the image
  trainyard.gpu.transient_unit:
    name: trainyard-image-build
    command: [docker, build, --tag, trainyard/training:0123456789ab, .]
    working_directory: /var/lib/trainyard/image
    environment:
      DOCKER_BUILDKIT: "1"
    log: /var/log/trainyard/training_image.log
    timeout: 7200

- name: Run the job, and stop it 15 seconds after this playbook has ended
  trainyard.gpu.transient_unit:
    name: trainyard-job-20261120t101500z
    command: [/var/lib/trainyard/bin/trainyard-job, run]
    stop_command: [/var/lib/trainyard/bin/trainyard-job, finish]
    files:
      - path: /var/lib/trainyard/bin/trainyard-job
        content: "{{ lookup('ansible.builtin.file', 'trainyard_job.py', rstrip=false) }}"
        mode: "0755"
    environment:
      TRAINYARD_JOB: "{{ my_job | to_json }}"
    log: /data1/share/.trainyard/jobs/20261120t101500z/job.log
    lease: 30
"""

RETURN = r"""
unit:
  description: Full name of the unit.
  returned: always
  type: str
  sample: trainyard-image-build.service
log:
  description: Path of the log on the host.
  returned: always
  type: str
  sample: /var/log/trainyard/training_image.log
attached:
  description: Whether the unit had been started before this task.
  returned: always
  type: bool
finished:
  description: Whether the unit has ended. V(false) with O(detach=true) and in check mode.
  returned: always
  type: bool
rc:
  description: Exit code of the command; 128 plus the number of the signal that ended it.
  returned: when the unit has ended
  type: int
  sample: 0
result:
  description: >-
    How it ended: V(success), V(exit-code), V(signal), V(timeout), V(oom-kill) and other results of
    systemd; V(stopped) if it was stopped on the host, V(lapsed) if its lease expired, V(lost) if
    the unit disappeared without a result.
  returned: when the unit has ended
  type: str
  sample: success
seconds:
  description: Seconds from the start of the unit to its end.
  returned: when the unit has ended
  type: float
  sample: 203.4
tail:
  description: The last lines of its output.
  returned: when the unit has ended
  type: list
  elements: str
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._managed_files import (
    ENTRY,
    ManagedFiles,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._transient_unit import (
    ACTIVE,
    RUN_DIRECTORY,
    look_script,
    parse_result,
    start_script,
    stop_script,
    why_not_again,
)

STOP_TIMEOUT = 60
KEEP_SECONDS = 3600


def uptime():
    with open("/proc/uptime") as stream:
        return float(stream.read().split()[0])


def read_text(path):
    try:
        with open(path) as stream:
            return stream.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def as_text(value):
    """Return the value of a variable: a text as it is, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


class Unit(object):
    def __init__(self, module):
        self.module = module
        self.name = module.params["name"]
        self.service = self.name + ".service"
        self.log = module.params["log"]
        self.directory = os.path.join(RUN_DIRECTORY, self.name)
        environment = dict(module.params["environment"], **module.params["secret_environment"])
        self.environment = {key: as_text(value) for key, value in environment.items()}

    def path(self, name):
        return os.path.join(self.directory, name)

    def read(self, name):
        return read_text(self.path(name))

    def write(self, name, text):
        # Write a new file and rename it, so that a reader never sees a partial file.
        fd, new = tempfile.mkstemp(dir=self.directory)
        with os.fdopen(fd, "w") as stream:
            stream.write(text)
        os.rename(new, self.path(name))

    def systemctl(self, *arguments):
        return self.module.run_command(["systemctl"] + list(arguments))

    def running(self):
        rc, out, err = self.systemctl("show", "--property=ActiveState", "--value", self.service)
        if rc:
            self.module.fail_json(
                msg="systemctl cannot tell whether %s runs: %s. The host must be booted with "
                "systemd. Check it with 'systemctl status' on "
                "the host" % (self.service, err.strip())
            )
        return out.strip() in ACTIVE

    @contextlib.contextmanager
    def alone(self):
        """Keep tasks of other plays from starting a unit meanwhile."""
        os.makedirs(RUN_DIRECTORY, exist_ok=True)
        with open(os.path.join(RUN_DIRECTORY, "start.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def check_once(self, running):
        """Fail if a unit that runs only once has run before, or another play follows it."""
        lease = (self.read("lease") or "").split() if self.state().get("lease") else []
        has_log = os.path.isfile(self.log) and os.path.getsize(self.log) > 0
        reason = why_not_again(
            self.service,
            self.log if has_log else "",
            running,
            uptime() - float(lease[0]) if lease else None,
            self.module.params["detach"],
        )
        if reason:
            self.module.fail_json(
                msg="%s. %s" % (reason, self.module.params["once"]),
                unit=self.service,
                log=self.log,
                attached=False,
                finished=False,
            )
        if running:
            self.module.warn(
                "%s is running already. This task starts nothing and shows the rest of its output"
                % self.service
            )

    def state(self):
        return json.loads(self.read("state") or "{}")

    def digest(self):
        requested = [
            self.module.params["command"],
            self.module.params["stop_command"],
            self.module.params["working_directory"],
            self.environment,
        ]
        return hashlib.sha256(json.dumps(requested, sort_keys=True).encode("utf-8")).hexdigest()

    def forget_former_runs(self):
        """Data of an ended unit is kept for a task that reconnects after a lost connection."""
        now = uptime()
        for name in os.listdir(RUN_DIRECTORY) if os.path.isdir(RUN_DIRECTORY) else []:
            directory = os.path.join(RUN_DIRECTORY, name)
            result = read_text(os.path.join(directory, "result"))
            if name == self.name or (
                result and now - parse_result(result)["uptime"] > KEEP_SECONDS
            ):
                shutil.rmtree(directory, ignore_errors=True)

    def start(self):
        params = self.module.params
        if not os.path.isdir(os.path.dirname(self.log)):
            # Without a mode, which would restrict a shared folder's default access list for root of
            # other hosts.
            os.makedirs(os.path.dirname(self.log))
        fresh = 0 if params["log_append"] else os.O_TRUNC
        os.close(os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | fresh, 0o640))
        self.forget_former_runs()
        os.makedirs(self.directory, 0o700)
        self.write(
            "start",
            start_script(
                self.name,
                self.directory,
                params["command"],
                self.environment,
                params["working_directory"],
                params["lease"],
            ),
        )
        self.write(
            "stop",
            stop_script(self.directory, self.environment, params["stop_command"], STOP_TIMEOUT),
        )
        self.write("lease", "%.2f\n" % uptime())
        status = os.stat(self.log)
        state = {
            "digest": self.digest(),
            "started": uptime(),
            "inode": status.st_ino,
            "offset": status.st_size,
            "timeout": params["timeout"],
            "lease": params["lease"],
        }
        self.write("state", json.dumps(state))
        properties = [
            "Type=exec",
            "KillMode=control-group",
            "StandardOutput=append:" + self.log,
            "StandardError=append:" + self.log,
            "ExecStopPost=/bin/sh " + self.path("stop"),
            "TimeoutStopSec=%d" % (STOP_TIMEOUT + 30),
        ]
        if params["timeout"]:
            properties.append("RuntimeMaxSec=%d" % params["timeout"])
        command = [
            "systemd-run",
            "--quiet",
            "--collect",
            "--unit=" + self.name,
            "--description=" + self.name,
        ]
        command += ["--property=" + each for each in properties] + ["/bin/sh", self.path("start")]
        rc, out, err = self.module.run_command(command)
        if rc:
            self.module.fail_json(
                msg=(
                    "systemd-run cannot start %s: %s. Find the cause with 'journalctl --unit=%s' "
                    "on the host, correct it, and run this again"
                )
                % (self.service, (err or out).strip(), self.service),
                log=self.log,
                unit=self.service,
            )
        return state


def start_or_attach(module, unit, answer):
    """Start the unit unless it runs, and complete the answer. Return its state."""
    params = module.params
    running = unit.running()
    state = unit.state()
    same = state.get("digest") == unit.digest()
    if params["once"] and (same or not running):
        unit.check_once(running)
    if running and not same:
        if not params["replace"]:
            module.fail_json(
                msg=(
                    "%s is running with another command or environment. Wait for its end, or stop "
                    "it: systemctl stop %s"
                )
                % (unit.service, unit.service),
                **answer,
            )
        if not module.check_mode:
            rc, out, err = unit.systemctl("stop", unit.service)
            if rc:
                module.fail_json(
                    msg=(
                        "systemctl cannot stop %s: %s. Kill its processes with 'systemctl kill "
                        "--signal=KILL %s' on the host, and run this again"
                    )
                    % (unit.service, err.strip(), unit.service),
                    **answer,
                )
        running = False
    if not running:
        answer["attached"] = False
        answer["changed"] = True
        files = ManagedFiles(module)
        files.run(params["files"])
        answer["diff"] = files.diff
        if not module.check_mode:
            state = unit.start()
    return state


def main():
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "command": {"type": "list", "elements": "str", "required": True},
            "environment": {"type": "dict", "default": {}},
            "secret_environment": {"type": "dict", "default": {}, "no_log": True},
            "files": {"type": "list", "elements": "dict", "default": [], "options": ENTRY},
            "working_directory": {"type": "path"},
            "log": {"type": "path", "required": True},
            "log_append": {"type": "bool", "default": True},
            "stop_command": {"type": "list", "elements": "str", "default": []},
            "timeout": {"type": "int", "default": 0},
            "lease": {"type": "int", "default": 0},
            "detach": {"type": "bool", "default": False},
            "replace": {"type": "bool", "default": False},
            "once": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    params = module.params
    if not re.match(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,199}\Z", params["name"]):
        module.fail_json(
            msg=(
                "name: %r is not a valid unit name; use letters, digits, _ . : @ - without the "
                "suffix .service"
            )
            % params["name"]
        )
    if not os.path.isabs(params["log"]):
        module.fail_json(
            msg="log: %r is not an absolute path; give one that begins with /" % params["log"]
        )
    if params["timeout"] < 0:
        module.fail_json(
            msg="timeout: '%d' is not valid; set 0 (never) or a number of seconds"
            % params["timeout"]
        )
    if params["lease"] < 0 or 0 < params["lease"] < 10:
        module.fail_json(
            msg="lease: '%d' is not valid; set 0 (none) or at least 10 seconds" % params["lease"]
        )
    if params["detach"] and params["lease"]:
        module.fail_json(
            msg=(
                "lease: '%d' and detach exclude each other, because nothing would renew the lease; "
                "remove one of them"
            )
            % params["lease"]
        )
    unit = Unit(module)
    for key in unit.environment:
        if not re.match(r"[A-Za-z_][A-Za-z0-9_]*\Z", key):
            module.fail_json(
                msg=(
                    "environment: %r is not a valid variable name; use letters, digits and "
                    "underscores"
                )
                % key
            )

    answer = {
        "changed": False,
        "unit": unit.service,
        "log": unit.log,
        "attached": True,
        "finished": False,
    }
    with unit.alone() if not module.check_mode else contextlib.nullcontext():
        state = start_or_attach(module, unit, answer)
    if not module.check_mode and not params["detach"]:
        # For the action plugin, which follows the unit and returns the documented values.
        unit.write("look", look_script(unit.name, unit.directory, unit.log, state["lease"]))
        answer["follow"] = dict(
            (key, state[key]) for key in ("inode", "offset", "started", "timeout", "lease")
        )
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
