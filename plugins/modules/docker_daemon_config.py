#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: docker_daemon_config
short_description: Merge options into Docker's daemon.json and apply them
version_added: "0.1.0"
description:
  - Parses the file, merges O(options) into it, and keeps every option that is not asked about.
  - Restarts the engine only on a difference, and only reloads it where all that differs can be reloaded.
  - Where the engine does not come up, the former file is put back, the engine is started again, and the task fails with the
    reason out of the journal.
  - A file that can't be parsed is refused and left as it is.
author:
  - trainyard maintainers (@trainyard)
options:
  options:
    description:
      - Options as O(path) holds them. Objects are merged key by key, at any depth; lists are values as a whole.
      - What an earlier run of this module placed and what is not asked any more is taken back.
    type: dict
    default: {}
  override:
    description:
      - Options for which O(options) wins over a value that someone else set, by their path with dots, for example
        V(log-driver) or V(log-opts.max-size). One that holds others stands for all of them.
      - Any other value of someone else stays, and is named in RV(kept) and in a warning.
    type: list
    elements: str
    default: []
  path:
    description: The configuration file.
    type: path
    default: /etc/docker/daemon.json
  record:
    description:
      - File in which the module notes, under C(daemon_config), what it placed and what was there before. Other keys in it are left alone.
      - Its folder must exist.
    type: path
    default: /var/lib/trainyard/placed.d/docker_engine.json
  interrupt_containers:
    description: Whether a restart may stop containers that run. Without it such a restart is refused before anything is changed.
    type: bool
    default: false
  restart:
    description:
      - Whether the engine is restarted even where a reload would do, or where the file has all of O(options) already.
      - For what it looks for when it starts, and never again, such as the hook by which C(--gpus) works.
    type: bool
    default: false
    version_added: "0.2.0"
  service:
    description: The systemd unit that runs the engine. Where it is empty or the host has no such unit, only the file is written.
    type: str
    default: docker.service
  executable:
    description: Docker's command line, a name or a path.
    type: path
    default: docker
  daemon:
    description: The engine itself, a name or a path. From 23.0 on it checks the new file before it goes live.
    type: path
    default: dockerd
  timeout:
    description: Seconds that the engine gets to come up.
    type: int
    default: 90
extends_documentation_fragment:
  - trainyard.gpu.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
seealso:
  - module: trainyard.gpu.docker_engine_info
"""

EXAMPLES = r"""
- name: Keep the logs of containers small, whatever the file said before
  trainyard.gpu.docker_daemon_config:
    options:
      live-restore: true
      log-opts: {max-size: 10m, max-file: "3"}
    override: [log-opts]

- name: Take back all that was placed
  trainyard.gpu.docker_daemon_config:
    options: {}
"""

RETURN = r"""
action:
  description: What was, or in check mode would be, done to the engine. V(none), V(reload) or V(restart).
  returned: success
  type: str
  sample: reload
kept:
  description: Options of someone else that were kept in spite of what was asked, C(option), C(value) and C(asked).
  returned: success
  type: list
  elements: dict
  sample: [{option: log-opts.max-size, value: 100m, asked: 10m}]
options:
  description: The options that the file holds now.
  returned: success
  type: dict
  sample: {live-restore: true}
"""

import json
import os
import tempfile
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._docker_engine import (
    RELOADABLE, ParseError, changed_options, dump_daemon_config, failure_reason, merge, parse_daemon_config, tool_version, upstream_version,
)

KEY = "daemon_config"


def read(path):
    """Text of a file, None where there is none."""
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        return None


class Config:
    """The file, with what was noted about it."""

    def __init__(self, module):
        self.module = module
        self.path = module.params["path"]
        try:
            self.text = read(self.path)
            self.options = parse_daemon_config(self.text or "")
        except (ParseError, UnicodeDecodeError) as error:
            module.fail_json(msg=f"{self.path}: {error}. It is left as it is: repair it, or move it away")
        self.mode = os.stat(self.path).st_mode & 0o7777 if self.text is not None else 0o644
        self.record_path = module.params["record"]
        self.record = json.loads(read(self.record_path) or "{}")
        self.noted = self.record.get(KEY, {})

    def text_of(self, options):
        """What the file shall hold; None where it shall be gone, as it was before us."""
        former = self.noted.get("former_text")
        if former is not None and parse_daemon_config(former) == options:
            return former
        if not options and former is None:
            return None
        return dump_daemon_config(options, like=self.text or "")

    def write(self, text):
        """By rename; a link is followed, so that a file that is kept elsewhere stays there."""
        path = os.path.realpath(self.path)
        if text is None:
            if os.path.exists(path):
                os.unlink(path)
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._write(path, text, self.mode)

    def note(self, placed, pending):
        """Before the file is touched, so that a run that was cut short can be made up for."""
        if placed or pending:
            former = self.noted.get("former_text") if self.noted else self.text
            self.record[KEY] = {"placed": placed, "former_text": former, "pending": pending}
        else:
            self.record.pop(KEY, None)
        if self.record:
            # On a host that has had its engine already, nothing else makes the folder.
            os.makedirs(os.path.dirname(self.record_path), mode=0o755, exist_ok=True)
            self._write(self.record_path, json.dumps(self.record, indent=2, sort_keys=True) + "\n", 0o600)
        elif os.path.exists(self.record_path):
            os.unlink(self.record_path)

    def _write(self, path, text, mode):
        handle, temporary = tempfile.mkstemp(dir=self.module.tmpdir)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(temporary, mode)
        self.module.atomic_move(temporary, path)


class Engine:
    def __init__(self, module):
        self.module = module
        self.service = module.params["service"]

    def run(self, *command):
        path = self.module.get_bin_path(command[0])
        return self.module.run_command([path] + list(command[1:])) if path else (127, "", f"{command[0]} is missing")

    def state(self):
        out = self.run("systemctl", "show", self.service, "--property=LoadState,ActiveState,SubState")[1]
        return dict(line.split("=", 1) for line in out.splitlines() if "=" in line)

    def is_there(self):
        return bool(self.service) and self.state().get("LoadState") == "loaded"

    def is_active(self):
        return self.state().get("ActiveState") == "active"

    def ask(self, what, template, *more):
        return self.run("timeout", "20", self.module.params["executable"], "--host", "unix:///var/run/docker.sock", what, "--format", template, *more)

    def containers(self, only=""):
        rc, out, unused = self.ask("ps", "{{.Names}}", *(["--filter", only] if only else []))
        return out.split() if rc == 0 else []

    def live_restore(self):
        return self.ask("info", "{{.LiveRestoreEnabled}}")[1].strip() == "true"

    def can_validate(self):
        version = upstream_version(tool_version(self.run(self.module.params["daemon"], "--version")[1]))
        return bool(version) and int(version.split(".")[0]) >= 23

    def refusal(self, text):
        """Why the engine would not take the new file; empty where it would, or where it is too old to tell beforehand."""
        if text is None or not self.can_validate():
            return ""
        handle, temporary = tempfile.mkstemp(dir=self.module.tmpdir, suffix=".json")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        rc, out, err = self.run(self.module.params["daemon"], "--validate", "--config-file", temporary)
        os.unlink(temporary)
        return "" if rc == 0 else (err or out).strip().replace(temporary, self.module.params["path"])

    def reload(self):
        return self.run("systemctl", "reload", self.service)[0] == 0 and self.ask("version", "{{.Server.Version}}")[0] == 0

    def restart(self):
        """Restart, wait until it answers. The reason out of the journal where it does not, empty where it does."""
        since = time.time()
        # The unit's own limit of starts would turn a start that is right into a failed one.
        self.run("systemctl", "reset-failed", self.service)
        # Not waiting: the unit has no time limit of its own.
        self.run("systemctl", "restart", "--no-block", self.service)
        while time.time() - since < self.module.params["timeout"]:
            time.sleep(0.3)
            # While the job is queued the unit still shows the state of before.
            queued = self.run("systemctl", "show", self.service, "--property=Job", "--value")[1].strip() not in ("", "0")
            state = self.state()
            if not queued and state.get("ActiveState") == "active" and self.ask("version", "{{.Server.Version}}")[0] == 0:
                return ""
            if not queued and (state.get("ActiveState") == "failed" or state.get("SubState") == "auto-restart"):
                break
        journal = self.run("journalctl", "--unit", self.service, f"--since=@{int(since)}", "--output=cat", "--no-pager", "--lines=100")[1]
        return failure_reason(journal) or f"it did not answer within {self.module.params['timeout']} s"


def refuse_to_stop(module, config, engine, new):
    """Running containers that a restart would stop, refused unless that is allowed."""
    from_flag = "live-restore" not in config.options and engine.live_restore()
    # A training container runs under a unit that needs docker.service: it stops with it, whatever live-restore says.
    outlive = new.get("live-restore", from_flag) is True
    containers = engine.containers("label=trainyard.managed=true" if outlive else "") if engine.is_active() else []
    if containers and not module.params["interrupt_containers"]:
        module.fail_json(msg=(
            f"Changing {', '.join(changed_options(config.options, new)) or 'the options'} in {config.path} needs a restart of Docker, which would stop: "
            f"{', '.join(containers)}. Nothing was changed. Stop them, or allow it (interrupt_containers; docker_engine_interrupt_containers of the "
            "role), or set live-restore to true among the options, which spares all but the training container"))
    return containers


def take(module, engine, new, action):
    """Have the engine take the new file. The reason where it does not, and whether a restart was tried."""
    if action == "restart" and new.get("live-restore") is True and engine.is_active() and not engine.live_restore():
        # live-restore can be reloaded: in force before the restart, it lets the containers outlive it.
        engine.reload()
        # A reload is a signal: nobody waits for the daemon to have read the file.
        deadline = time.time() + 5
        while not engine.live_restore() and time.time() < deadline:
            time.sleep(0.3)
        if not engine.live_restore() and engine.containers() and not module.params["interrupt_containers"]:
            return "live-restore could not be reloaded, and a restart would have stopped containers", False
    if action == "restart":
        return engine.restart(), True
    if action == "reload" and not engine.reload():
        return "it could not be reloaded", False
    return "", False


def run_as_before(engine, restarted):
    """Have the engine run with the former file. The reason where it does not. One that no restart was tried on has its containers still."""
    if not restarted:
        engine.reload()
        if engine.is_active():
            return ""
    return engine.restart()


def bring_into_force(module, config, engine, merged, text, action):
    config.note(merged.placed, True)
    config.write(text)
    reason, restarted = take(module, engine, merged.options, action)
    if reason:
        # A run that was cut short may have left its own file: then what was there before it is the one that worked.
        was_pending = config.noted.get("pending", False)
        config.write(config.noted["former_text"] if was_pending else config.text)
        config.note([] if was_pending else config.noted.get("placed", []), False)
        again = run_as_before(engine, restarted)
        module.fail_json(msg=(
            f"Docker did not take the new {config.path}: {reason}\nThe former file is back in place, and Docker "
            + (f"does not come up with it either: {again}" if again else "runs with it again")))


def main():
    module = AnsibleModule(
        argument_spec={
            "options": {"type": "dict", "default": {}},
            "override": {"type": "list", "elements": "str", "default": []},
            "path": {"type": "path", "default": "/etc/docker/daemon.json"},
            "record": {"type": "path", "default": "/var/lib/trainyard/placed.d/docker_engine.json"},
            "interrupt_containers": {"type": "bool", "default": False},
            "restart": {"type": "bool", "default": False},
            "service": {"type": "str", "default": "docker.service"},
            "executable": {"type": "path", "default": "docker"},
            "daemon": {"type": "path", "default": "dockerd"},
            "timeout": {"type": "int", "default": 90},
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LC_ALL": "C.UTF-8"}
    config, engine = Config(module), Engine(module)
    merged = merge(config.options, module.params["options"], config.noted.get("placed", []), module.params["override"])
    differs = changed_options(config.options, merged.options)
    # A restart alone leaves the user's file as it is written.
    text = config.text_of(merged.options) if differs else config.text
    # What a restart has to make up for: a run that was cut short, or what the caller knows.
    pending = config.noted.get("pending", False) or module.params["restart"] and engine.is_there()

    action = "none"
    if (differs or pending) and engine.is_there():
        # Without --validate a reload that was refused could not be told from one that was taken.
        reloads = not pending and set(differs) <= RELOADABLE and engine.is_active() and engine.can_validate()
        action = "reload" if reloads else "restart"
    if differs and not module.check_mode:
        refusal = engine.refusal(text)
        if refusal:
            module.fail_json(msg=f"Docker refuses the new {config.path}, nothing was changed: {refusal}")

    containers = refuse_to_stop(module, config, engine, merged.options) if action == "restart" else []
    if not module.check_mode:
        if differs or pending:
            bring_into_force(module, config, engine, merged, text, action)
        if differs or pending or merged.placed != config.noted.get("placed", []):
            config.note(merged.placed, False)
    if containers:
        module.warn(f"The restart of Docker stops: {', '.join(containers)}")
    for kept in merged.kept:
        module.warn(f"{config.path}: {kept['option']} stays {json.dumps(kept['value'])}, which someone else set; asked was {json.dumps(kept['asked'])}. "
                    f"Name it in override (docker_engine_daemon_override of the role) to have it replaced")
    module.exit_json(
        changed=bool(differs or pending), action=action, kept=merged.kept, options=merged.options,
        diff={"before_header": config.path, "after_header": config.path, "before": config.text or "",
              "after": (text or "") if differs else config.text or ""},
    )


if __name__ == "__main__":
    main()
