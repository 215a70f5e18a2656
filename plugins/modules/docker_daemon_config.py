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
  - Parses the file, merges O(options) into it, and keeps every other option.
  - Restarts the engine only if something differs. If all differences can be reloaded, it only
    reloads the engine.
  - If the engine does not start, the module restores the former file, starts the engine again, and
    fails with the reason from the journal.
  - A file that cannot be parsed is left unchanged, and the module fails.
author:
  - trainyard maintainers (@trainyard)
options:
  options:
    description:
      - Options in the form of O(path). Objects are merged key by key at any depth. Lists are
        replaced as a whole.
      - Options that an earlier run set and that are no longer requested are removed.
    type: dict
    default: {}
  override:
    description:
      - Options for which O(options) replaces a value that was set by others. Write them as a path
        with dots, for example V(log-driver) or V(log-opts.max-size). An object stands for all of
        its keys.
      - Any other value set by others stays. It is listed in RV(kept) and in a warning.
    type: list
    elements: str
    default: []
  path:
    description: The configuration file.
    type: path
    default: /etc/docker/daemon.json
  record:
    description:
      - File in which the module records, under C(daemon_config), its own options and the former
        file. Other keys are left alone.
      - Its folder must exist.
    type: path
    default: /var/lib/trainyard/placed.d/docker_engine.json
  interrupt_containers:
    description: Whether a restart may stop running containers. If not, the module fails before it
      changes anything.
    type: bool
    default: false
  restart:
    description:
      - Whether to restart the engine even if a reload would be enough, or if the file already has
        all of O(options).
      - Needed for everything that the engine looks up only at start, such as the hook for
        C(--gpus).
    type: bool
    default: false
    version_added: "0.2.0"
  service:
    description: The systemd unit that runs the engine. If it is empty or the host has no such unit,
      only the file is written.
    type: str
    default: docker.service
  executable:
    description: Docker's command line client, as a name or a path.
    type: path
    default: docker
  daemon:
    description: The engine itself, as a name or a path. From 23.0 on it validates the new file
      before the file is used.
    type: path
    default: dockerd
  timeout:
    description: Seconds to wait until the engine has started.
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
- name: Limit the size of container logs, whatever the file had before
  trainyard.gpu.docker_daemon_config:
    options:
      live-restore: true
      log-opts: {max-size: 10m, max-file: "3"}
    override: [log-opts]

- name: Remove all options that were set
  trainyard.gpu.docker_daemon_config:
    options: {}
"""

RETURN = r"""
action:
  description: What was done to the engine, or would be in check mode. V(none), V(reload) or
    V(restart).
  returned: success
  type: str
  sample: reload
kept:
  description: Options set by others that were kept although another value is requested. C(option),
    C(value) and C(asked).
  returned: success
  type: list
  elements: dict
  sample: [{option: log-opts.max-size, value: 100m, asked: 10m}]
options:
  description: The options that the file has now.
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
    RELOADABLE,
    ParseError,
    changed_options,
    dump_daemon_config,
    failure_reason,
    merge,
    parse_daemon_config,
    tool_version,
    upstream_version,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._record import Record

KEY = "daemon_config"


def read(path):
    """Text of a file, None if it does not exist."""
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        return None


class Config:
    """The file, with its record."""

    def __init__(self, module):
        self.module = module
        self.path = module.params["path"]
        try:
            self.text = read(self.path)
            self.options = parse_daemon_config(self.text or "")
        except (ParseError, UnicodeDecodeError) as error:
            module.fail_json(
                msg=f"{self.path}: {error}. It was left unchanged: repair it, or move it away"
            )
        self.mode = os.stat(self.path).st_mode & 0o7777 if self.text is not None else 0o644
        self.file = Record(module, module.params["record"])
        self.record = self.file.read()
        self.noted = self.record.get(KEY, {})

    def text_of(self, options):
        """New text of the file; None if it is to be removed because it did not exist before."""
        former = self.noted.get("former_text")
        if former is not None and parse_daemon_config(former) == options:
            return former
        if not options and former is None:
            return None
        return dump_daemon_config(options, like=self.text or "")

    def write(self, text):
        """Replace the file by rename. A link is followed, so that its target is replaced."""
        path = os.path.realpath(self.path)
        if text is None:
            if os.path.exists(path):
                os.unlink(path)
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._write(path, text, self.mode)

    def note(self, placed, pending):
        """Called before the file is changed, so that the next run can complete an
        interrupted one.
        """
        if placed or pending:
            former = self.noted.get("former_text") if self.noted else self.text
            self.record[KEY] = {"placed": placed, "former_text": former, "pending": pending}
        else:
            self.record.pop(KEY, None)
        self.file.write(self.record)

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
        return (
            self.module.run_command([path] + list(command[1:]))
            if path
            else (127, "", f"{command[0]} is not installed")
        )

    def state(self):
        out = self.run(
            "systemctl", "show", self.service, "--property=LoadState,ActiveState,SubState"
        )[1]
        return dict(line.split("=", 1) for line in out.splitlines() if "=" in line)

    def is_there(self):
        return bool(self.service) and self.state().get("LoadState") == "loaded"

    def is_active(self):
        return self.state().get("ActiveState") == "active"

    def ask(self, what, template, *more):
        return self.run(
            "timeout",
            "20",
            self.module.params["executable"],
            "--host",
            "unix:///var/run/docker.sock",
            what,
            "--format",
            template,
            *more,
        )

    def containers(self, only=""):
        rc, out, unused = self.ask("ps", "{{.Names}}", *(["--filter", only] if only else []))
        return out.split() if rc == 0 else []

    def live_restore(self):
        return self.ask("info", "{{.LiveRestoreEnabled}}")[1].strip() == "true"

    def can_validate(self):
        version = upstream_version(
            tool_version(self.run(self.module.params["daemon"], "--version")[1])
        )
        return bool(version) and int(version.split(".")[0]) >= 23

    def refusal(self, text):
        """Why the engine rejects the new file; empty if it accepts it, or is too old to validate
        it.
        """
        if text is None or not self.can_validate():
            return ""
        handle, temporary = tempfile.mkstemp(dir=self.module.tmpdir, suffix=".json")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        rc, out, err = self.run(
            self.module.params["daemon"], "--validate", "--config-file", temporary
        )
        os.unlink(temporary)
        return (
            "" if rc == 0 else (err or out).strip().replace(temporary, self.module.params["path"])
        )

    def reload(self):
        return (
            self.run("systemctl", "reload", self.service)[0] == 0
            and self.ask("version", "{{.Server.Version}}")[0] == 0
        )

    def restart(self):
        """Restart, and wait until it answers.

        Returns the reason from the journal if it does not, else an empty string.
        """
        since = time.time()
        # The unit's start limit would make a valid start fail.
        self.run("systemctl", "reset-failed", self.service)
        # Without waiting, because the unit has no time limit of its own.
        self.run("systemctl", "restart", "--no-block", self.service)
        while time.time() - since < self.module.params["timeout"]:
            time.sleep(0.3)
            # While the job is queued, the unit still shows its former state.
            queued = self.run("systemctl", "show", self.service, "--property=Job", "--value")[
                1
            ].strip() not in ("", "0")
            state = self.state()
            if (
                not queued
                and state.get("ActiveState") == "active"
                and self.ask("version", "{{.Server.Version}}")[0] == 0
            ):
                return ""
            if not queued and (
                state.get("ActiveState") == "failed" or state.get("SubState") == "auto-restart"
            ):
                break
        journal = self.run(
            "journalctl",
            "--unit",
            self.service,
            f"--since=@{int(since)}",
            "--output=cat",
            "--no-pager",
            "--lines=100",
        )[1]
        return (
            failure_reason(journal) or f"it did not answer within {self.module.params['timeout']} s"
        )


def refuse_to_stop(module, config, engine, new):
    """Returns the running containers that a restart would stop. Fails unless that is allowed."""
    from_flag = "live-restore" not in config.options and engine.live_restore()
    # The training container's unit requires docker.service, so it stops with it whatever
    # live-restore is.
    outlive = new.get("live-restore", from_flag) is True
    containers = (
        engine.containers("label=trainyard.managed=true" if outlive else "")
        if engine.is_active()
        else []
    )
    if containers and not module.params["interrupt_containers"]:
        module.fail_json(
            msg=(
                f"Changing {', '.join(changed_options(config.options, new)) or 'the options'} "
                f"in {config.path} needs a restart of Docker, which would stop: "
                f"{', '.join(containers)}. Nothing was changed. Stop them, or allow it "
                "(interrupt_containers; docker_engine_interrupt_containers of the "
                "role), or set live-restore to true among the options, which spares all but "
                "the training container"
            )
        )
    return containers


def take(module, engine, new, action):
    """Apply the new file. Returns the reason if that fails, and whether a restart was tried."""
    if (
        action == "restart"
        and new.get("live-restore") is True
        and engine.is_active()
        and not engine.live_restore()
    ):
        # live-restore can be reloaded. If it is in force before the restart, the containers survive
        # the restart.
        engine.reload()
        # A reload is only a signal, so wait until the daemon has read the file.
        deadline = time.time() + 5
        while not engine.live_restore() and time.time() < deadline:
            time.sleep(0.3)
        if (
            not engine.live_restore()
            and engine.containers()
            and not module.params["interrupt_containers"]
        ):
            return (
                "live-restore could not be reloaded, and a restart would have stopped containers",
                False,
            )
    if action == "restart":
        return engine.restart(), True
    if action == "reload" and not engine.reload():
        return "it could not be reloaded", False
    return "", False


def run_as_before(engine, restarted):
    """Run the engine with the former file.

    Returns the reason if that fails. Without an earlier restart the containers still run.
    """
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
        # An interrupted run may have left its own file. Then the file from before that run is the
        # working one.
        was_pending = config.noted.get("pending", False)
        config.write(config.noted["former_text"] if was_pending else config.text)
        config.note([] if was_pending else config.noted.get("placed", []), False)
        again = run_as_before(engine, restarted)
        module.fail_json(
            msg=(
                (
                    f"Docker did not accept the new {config.path}: {reason}\nThe former file is "
                    "restored, and Docker "
                )
                + (
                    (
                        f"does not start with it either: {again}\nFind the cause with 'journalctl "
                        f"--unit={engine.service}' on the host, and correct it"
                    )
                    if again
                    else (
                        "runs with it again. Correct the options (docker_engine_daemon_options of "
                        "the role), and run this again"
                    )
                )
            )
        )


def action_for(engine, differs, pending):
    """Return what brings other options into force: reload, restart, or none without a daemon.

    C(differs) are the names of the options, C(pending) is true if a restart is needed in any case.
    """
    if not engine.is_there():
        return "none"
    # Without --validate, a rejected reload looks like an accepted one.
    reloads = (
        not pending and set(differs) <= RELOADABLE and engine.is_active() and engine.can_validate()
    )
    return "reload" if reloads else "restart"


def fail_if_refused(module, engine, config, text):
    refusal = engine.refusal(text)
    if refusal:
        module.fail_json(
            msg=f"Docker rejects the new {config.path}, nothing was changed: {refusal}\n"
            "Correct the options (docker_engine_daemon_options of the role), and run this again"
        )


def warn(module, config, merged, containers):
    """Warn of containers that a restart stops, and of options that stay as the site has set
    them.
    """
    if containers:
        module.warn(f"The restart of Docker stops: {', '.join(containers)}")
    for kept in merged.kept:
        module.warn(
            f"{config.path}: {kept['option']} stays {json.dumps(kept['value'])}, which was not "
            "set by this collection; "
            f"requested is {json.dumps(kept['asked'])}. "
            f"To replace it, add it to override (docker_engine_daemon_override of the role)"
        )


def diff_of(config, text):
    """Return the diff of daemon.json to its new text."""
    return {
        "before_header": config.path,
        "after_header": config.path,
        "before": config.text or "",
        "after": text or "",
    }


def is_pending(module, config, engine):
    """Return whether to restart without a change: after an interrupted run, or because the caller
    requests it.
    """
    return config.noted.get("pending", False) or module.params["restart"] and engine.is_there()


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
    merged = merge(
        config.options,
        module.params["options"],
        config.noted.get("placed", []),
        module.params["override"],
    )
    differs = changed_options(config.options, merged.options)
    # If only a restart is needed, the user's file keeps its formatting.
    text = config.text_of(merged.options) if differs else config.text
    pending = is_pending(module, config, engine)

    changes = bool(differs or pending)
    action = action_for(engine, differs, pending) if changes else "none"
    if differs and not module.check_mode:
        fail_if_refused(module, engine, config, text)
    containers = []
    if action == "restart":
        containers = refuse_to_stop(module, config, engine, merged.options)
    if not module.check_mode:
        if changes:
            bring_into_force(module, config, engine, merged, text, action)
        if changes or merged.placed != config.noted.get("placed", []):
            config.note(merged.placed, False)
    warn(module, config, merged, containers)
    module.exit_json(
        changed=changes,
        action=action,
        kept=merged.kept,
        options=merged.options,
        diff=diff_of(config, text),
    )


if __name__ == "__main__":
    main()
