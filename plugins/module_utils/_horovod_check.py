# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What Horovod was built with, for modules horovod_build_info, host_health_info and host_info."""

from __future__ import annotations

from typing import Any

from ansible_collections.trainyard.gpu.plugins.module_utils._horovod import (
    KEYS,
    Build,
    check_build_command,
    missing,
    parse_check_build,
    split_imports,
    why_no_table,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._parse_error import ParseError
from ansible_collections.trainyard.gpu.plugins.module_utils._tool import (
    Login,
    Module,
    Run,
    begin_tool,
    begun_tool,
    run_tool,
    tool_options,
)

#: Options of module horovod_build_info.
BUILD_OPTIONS = {
    **tool_options(60, "horovodrun"),
    "image": {"type": "str"},
    "ssh_host": {"type": "str"},
    "ssh_port": {"type": "int", "default": 12345},
    "requires": {
        "type": "dict",
        "default": {},
        "options": {
            section: {"type": "list", "elements": "str", "choices": keys, "default": []}
            for section, keys in KEYS.items()
        },
    },
    "import_required": {"type": "bool", "default": False},
    "begun": {"type": "str", "default": ""},
}
FIXES = {
    "not_installed": "install Horovod {place}, or name its horovodrun in `executable`",
    "option_unsupported": "install Horovod 0.18 or later {place}: before that horovodrun has no --check-build",
    "import_error": (
        "Horovod {place} does not start: reinstall it for the framework and libraries that are "
        "there now"
    ),
    "no_output": (
        "run horovodrun --check-build {place} by hand and see how it ends (a crash, too little "
        "memory)"
    ),
    "truncated": (
        "run horovodrun --check-build {place} by hand and see how it ends: it died before its table"
    ),
    "container_not_running": "start container {container}",
    "image_missing": "load or pull image {image} on this host, or correct its name",
    "engine_unavailable": "install and start Docker on this host, and run the task as root",
    "ssh_failed": (
        "make container {container} able to log in to {ssh_host} on port {ssh_port} (sshd, keys, "
        "known_hosts)"
    ),
    "timeout": (
        "see what horovodrun --check-build {place} waits for, or raise `timeout` (verify_timeout "
        "in role verify)"
    ),
}
# A container gets all that it needs from its image: nothing is ever installed in it.
RECREATE = (
    "Run training_environment.yml, which recreates a container whose files were changed, and "
    "rebuilds the image if it lacks what "
    "training_image_requires names"
)
CONTAINER_FIXES = {
    "not_installed": "horovodrun is missing {place}. " + RECREATE,
    "option_unsupported": "Horovod {place} is older than 0.18 and has no --check-build. Name a newer one in "
    "training_image_horovod_version and run "
    "training_environment.yml",
    "import_error": "Horovod {place} does not start. " + RECREATE,
    "no_output": (
        "horovodrun --check-build {place} ended without a word, as after a crash or with too "
        "little memory. "
    )
    + RECREATE,
    "truncated": (
        "horovodrun --check-build {place} died before its table, as after a crash or with too "
        "little memory. "
    )
    + RECREATE,
    "container_not_running": (
        "start container {container}: run training_environment.yml, which also resumes one that is "
        "paused"
    ),
    "ssh_failed": "container {container} cannot log in to {ssh_host} on port {ssh_port}: run "
    "training_environment.yml, which repairs sshd, keys and "
    "known_hosts, or names what is in the way",
}


class UnreadableTable(Exception):
    """A table that is truncated or cannot be parsed. C(run) is the run that printed it."""

    def __init__(self, message: str, run: Run) -> None:
        super().__init__(message)
        self.run = run


def place_of(params: dict[str, Any]) -> str:
    """Return where the check runs, as the end of a sentence."""
    if params["ssh_host"]:
        return "behind ssh port %s of %s" % (params["ssh_port"], params["ssh_host"])
    if params["container"]:
        return "in container %s" % params["container"]
    if params["image"]:
        return "in image %s" % params["image"]
    return "on this host"


def begin_check(module: Module, options: dict[str, Any] | None) -> str:
    """Start the check of a container in the background, and return the value of option C(begun),
    empty if none was started. Without options there is none.
    """
    if not options:
        return ""
    return begin_tool(
        module,
        check_build_command("horovodrun", options["frameworks"]),
        options["timeout"],
        options["container"],
        _login(options),
    )


def _login(options: dict[str, Any]) -> Login | None:
    return Login(options["ssh_host"], options["ssh_port"]) if options["ssh_host"] else None


def made_check(module: Module, command: list[str], options: dict[str, Any]) -> Run:
    """Await the check that begin_check has started, or make one.

    C(options) are those of module horovod_build_info.
    """
    timeout, container, login = options["timeout"], options["container"], _login(options)
    run = None
    if options["begun"]:
        run = begun_tool(module, options["begun"], command, timeout, container, login)
    # What failed while the hosts were read may have been repaired since, or the engine was
    # restarted meanwhile.
    if not run or run.cause or run.rc != 0:
        return run_tool(module, command, timeout, container, options["image"], login)
    return run


def build_info(module: Module, options: dict[str, Any]) -> dict[str, Any]:
    """Return the result of module horovod_build_info for its options.

    UnreadableTable for a table that is truncated or cannot be parsed.
    """
    requires = options["requires"]
    frameworks = (requires.get("frameworks") or []) if options["import_required"] else []
    command = check_build_command(options["executable"], frameworks)
    run = made_check(module, command, options)
    stderr, import_errors = split_imports(run.stderr, frameworks)
    run = run._replace(stderr=stderr)
    build, cause, evidence = _read_build(run, options["executable"])
    return {
        "changed": False,
        "available": build is not None,
        "cause": cause or None,
        "fix": _fix(cause, evidence, options) if cause else None,
        "version": None,
        "missing": missing(requires, build, import_errors),
        "import_errors": import_errors,
        **_sections(build),
    }


def _read_build(run: Run, executable: str) -> tuple[Build | None, str, str]:
    """Return the table of a run, or why there is none: the cause, and the line that shows it."""
    if run.cause:
        return None, run.cause, run.evidence
    try:
        build = parse_check_build(run.stdout) or parse_check_build(run.stderr)
        if build:
            return build, "", ""
        cause, evidence = why_no_table(run.rc, run.stdout, run.stderr)
    except ParseError as exc:
        raise UnreadableTable(
            f"{executable} --check-build: {exc}. Run it in the same place. If its output is "
            "complete, report it as a fault of "
            "the collection",
            run,
        ) from None
    return None, cause, evidence


def _fix(cause: str, evidence: str, options: dict[str, Any]) -> str:
    fixes = dict(FIXES, **CONTAINER_FIXES) if options["container"] else FIXES
    place = {name: options[name] for name in ("container", "image", "ssh_host", "ssh_port")}
    return fixes[cause].format(place=place_of(options), **place) + f". It said: {evidence}"


def _sections(build: Build | None) -> dict[str, Any]:
    """Return the version and the sections of a table, or those of a Horovod without anything."""
    if build:
        return build._asdict()
    return {section: dict.fromkeys(keys, False) for section, keys in KEYS.items()}
