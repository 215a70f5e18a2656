# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a job's session in the training container finds, beside what its host knows of the
container. For module host_health_info.

A program runs in the container through the port for jobs and prints JSON. Its output is of a place
where users are root, so it is data of unknown shape.
"""

from __future__ import annotations

import hashlib
import json
import os
import re

from typing import Any, Dict, Mapping, Tuple

from ansible_collections.trainyard.gpu.plugins.module_utils._container_state import (
    NAMED,
    groups_above,
    has_own_shm,
    limited,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import (
    ask_file_system,
    read_text,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._messages import printable
from ansible_collections.trainyard.gpu.plugins.module_utils._mountinfo import (
    mount_of,
    parse_mountinfo,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._tool import Login, run_tool

__all__ = ["SESSION_OPTIONS", "environment_differences", "origin_of", "parse_view", "session_view"]

SESSION_OPTIONS = {
    "container": {"type": "str", "required": True},
    "ssh_host": {"type": "str", "required": True},
    "ssh_port": {"type": "int", "required": True},
    "program": {"type": "str", "required": True},
    "share": {"type": "path", "required": True},
    "timeout": {"type": "int", "default": 10},
}
#: What the program prints, of the shape VIEW. What C(docker inspect) prints of a container.
View = Dict[str, Any]
Inspected = Mapping[str, Any]
#: Digest and, for few variables, the text of each variable.
Variables = Mapping[str, Tuple[str, str]]
MARK = "trainyard-session "
#: sshd and the shell set these for a session. PYTHONUNBUFFERED is of run_tool.
OWN = re.compile(
    r"(HOME|HOSTNAME|LOGNAME|MAIL|OLDPWD|PWD|SHELL|SHLVL|TERM|USER|_|LANG|LC_\w+|PYTHONUNBUFFERED|SSH_(CLIENT|CONNECTION|TTY))$"
)
#: Module ssh_mesh_info compares these with the container's.
COMPARED_ELSEWHERE = ("PATH", "LD_LIBRARY_PATH")
#: A login may extend it, as those of NGC's images do. So it is compared between hosts.
LIBRARIES = "LD_LIBRARY_PATH"
LONGEST = 400
#: The program prints less. A report has to stay readable, and a number of more bits has no other
#: digits.
MOST_CHARACTERS, MOST_OF_A_NUMBER = 1 << 20, 1 << 64
#: The program sends the first characters of a value's SHA-256.
EMPTY_DIGEST = hashlib.sha256(b"").hexdigest()[:16]
#: Shapes of the program's output.
EACH, OPTIONAL = "each", object()
LIMITS = {EACH: [OPTIONAL, OPTIONAL]}
VIEW: dict[str, Any] = {
    "share": {"device": OPTIONAL, "inode": OPTIONAL, "error": str},
    "shm_bytes": int,
    "limits": LIMITS,
    "first_limits": LIMITS,
    "group": {
        "memory": OPTIONAL,
        "cpus": OPTIONAL,
        "pids": OPTIONAL,
        "affinity": int,
        "killed": int,
    },
    "environment": {EACH: [str, str]},
    "first_environment": {EACH: [str, str]},
    "files": {EACH: str},
    "python": {
        "version": str,
        "error": str,
        "programs": {EACH: str},
        "packages": {EACH: [str, str]},
        "shadows": [{"module": str, "file": str, "hides": str}],
        "startup": [str],
    },
    "processes": [{"pid": int, "job": str, "age_s": int, "command": str}],
}
JOB_UNIT = re.compile(r"trainyard-job-(\S+)\.service")


class NoView(Exception):
    """The program's output is not what it prints."""


def parse_view(text: str) -> View:
    """The JSON of the program.

    Login files of the image may print other lines before it. NoView for any other output.
    """
    for line in text.splitlines():
        if line.startswith(MARK):
            if len(line) > MOST_CHARACTERS:
                raise NoView("its output has %d characters" % len(line))
            try:
                view: View = cleaned(json.loads(line[len(MARK) :]), VIEW)
                return view
            except (ValueError, RecursionError) as error:
                raise NoView("its output is not JSON (%s)" % type(error).__name__) from error
    last = text.strip().splitlines()[-1:] or ["no output"]
    raise NoView("its output cannot be read (%.100r)" % last[0])


def cleaned(value: Any, shape: Any) -> Any:
    """The value, if it has the shape.

    NoView otherwise. A line break in a text would look like another message.

    A shape is a type, None or a type (C(OPTIONAL)), a dictionary of shapes, C(EACH) with the shape
    of each value, or a list: of one shape for any number, of several for as many values.
    """
    if isinstance(shape, dict):
        return _cleaned_dictionary(value, shape)
    if isinstance(shape, list):
        return _cleaned_list(value, shape)
    if shape is OPTIONAL and value is None:
        return None
    kinds = (int, float) if shape is OPTIONAL else shape
    if not isinstance(value, kinds) or isinstance(value, bool) or not is_usual(value):
        raise NoView("its output has a value of another kind (%.40r)" % (value,))
    return clean_text(value) if isinstance(value, str) else value


def _cleaned_dictionary(value: object, shape: dict[str, Any]) -> dict[str, Any]:
    """Return a dictionary of the shape, as P(cleaned) does."""
    if not isinstance(value, dict) or not (EACH in shape or set(shape) <= set(value)):
        raise NoView("its output lacks a part")
    if EACH in shape:
        return {clean_text(name): cleaned(inner, shape[EACH]) for name, inner in value.items()}
    return {name: cleaned(value[name], inner) for name, inner in shape.items()}


def _cleaned_list(value: object, shape: list[Any]) -> list[Any]:
    """Return a list of the shape, as P(cleaned) does."""
    if not isinstance(value, list) or len(shape) > 1 and len(value) != len(shape):
        raise NoView("its output has a list of another length")
    shapes = shape if len(shape) > 1 else shape * len(value)
    return [cleaned(inner, its) for inner, its in zip(value, shapes)]


def is_usual(value: str | float) -> bool:
    """Whether a value is no number, or one that can be formatted."""
    return isinstance(value, str) or -MOST_OF_A_NUMBER < value < MOST_OF_A_NUMBER


def clean_text(text: str) -> str:
    """Return the beginning of a text on one line."""
    return printable(text, instead=" ")[:LONGEST]


def environment_differences(container: Variables, session: Variables) -> dict[str, Any]:
    """How a session's variables differ from those of the container's first process: names that it
    lacks or changes, what it adds, and what it extends.

    Both have a digest and, for few, the text by name. Values of others may be secrets and are never
    returned.
    """
    names = [name for name in container if not OWN.match(name) and name not in COMPARED_ELSEWHERE]
    added = [name for name in sorted(session) if name not in container and not OWN.match(name)]
    extended = [LIBRARIES] if _differs(LIBRARIES, container, session) else []
    return {
        "missing": sorted(name for name in names if _is_missing(name, container, session)),
        "changed": sorted(name for name in names if _differs(name, container, session)),
        "added": {name: _shown(session[name]) for name in added},
        "extended": {name: _shown(session[name]) for name in extended},
    }


def _is_missing(name: str, container: Variables, session: Variables) -> bool:
    """Return whether a session should have a variable of the container and lacks it."""
    # sshd sets no variable without a value, and the entrypoint's shell passes on none with another
    # name.
    can_be_set = NAMED.match(name + "=") is not None and container[name][0] != EMPTY_DIGEST
    return name not in session and can_be_set


def _differs(name: str, container: Variables, session: Variables) -> bool:
    """Return whether container and session have a variable, with different values."""
    return name in container and name in session and session[name][0] != container[name][0]


def _shown(variable: tuple[str, str]) -> list[str]:
    """Return digest and text of a variable, without a password in the text."""
    digest, text = variable
    return [digest, without_password(text)]


def without_password(text: str) -> str:
    """Return a text without the logins of its URLs."""
    return re.sub(r"//[^/@\s]*@", "//***@", text)


def origin_of(path: str, layer: str, mounts: list[str]) -> str:
    """Where a file of a container is from: V(mount), V(container) (written after the start) or
    V(image). C(layer) is the folder of its own layer.
    """
    if any((path + "/").startswith(mount.rstrip("/") + "/") for mount in mounts):
        return "mount"
    return "container" if layer and os.path.lexists(layer + path) else "image"


def layer_of(found: Inspected, mountinfo: str) -> str:
    """The folder of a container's own layer, empty if it has none.

    Only overlay2 has it in C(docker inspect), but any overlayfs in the container's mounts.
    """
    graph = found.get("GraphDriver") or {}
    if graph.get("Name") == "overlay2":
        folder: str = (graph.get("Data") or {}).get("UpperDir", "")
        return folder
    root = mount_of("/", parse_mountinfo(mountinfo))
    layers = [option for option in root["system_options"] if option.startswith("upperdir=/")]
    return layers[0].partition("=")[2] if root["type"].endswith("overlay") and layers else ""


def with_origins(found: Inspected, view: View) -> View:
    """Files of settings and Python of a session, with the origin of what it would load."""
    layer = layer_of(
        found, read_text("/proc/%d/mountinfo" % (found.get("State") or {}).get("Pid", 0))
    )
    mounts = [mount.get("Destination") or "/" for mount in found.get("Mounts") or []]
    python = view["python"]

    def origin(path: str) -> str:
        return origin_of(path, layer, mounts)

    return {
        "files": {path: [digest, origin(path)] for path, digest in view["files"].items()},
        "python": {
            "version": python["version"],
            "error": python["error"],
            "programs": {name: [path, origin(path)] for name, path in python["programs"].items()},
            "packages": {
                name: [version, origin(path)]
                for name, (version, path) in python["packages"].items()
            },
            # What the image itself hides is the same on all hosts.
            "shadows": [entry for entry in python["shadows"] if origin(entry["file"]) != "image"],
            "startup": [path for path in python["startup"] if origin(path) != "image"],
        },
    }


def running_jobs(module: Any) -> list[str]:
    """IDs of the jobs that this host has started and that run."""
    run = run_tool(
        module,
        ["systemctl", "list-units", "--plain", "--no-legend", "--no-pager", "trainyard-job-*"],
        module.params["timeout"],
    )
    return sorted(set(JOB_UNIT.findall(run.stdout)))


def settings_of(found: Inspected) -> dict[str, Any]:
    """What Docker has set for the container."""
    settings = found["HostConfig"]
    return {
        "shm_bytes": settings.get("ShmSize") or 0 if has_own_shm(settings) else 0,
        "ulimits": {
            limit["Name"]: [limit["Soft"], limit["Hard"]] for limit in settings.get("Ulimits") or []
        },
        "limited": limited(settings),
        "above": groups_above(
            read_text("/proc/%d/cgroup" % (found.get("State") or {}).get("Pid", 0)),
            found.get("Id", ""),
        ),
    }


def session_view(module: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The result of module host_health_info for its option C(session)."""
    result: dict[str, Any] = {
        "cause": "",
        "evidence": "",
        "jobs": running_jobs(module),
        "view": {},
    }
    inspected = run_tool(
        module,
        ["docker", "inspect", "--type=container", options["container"]],
        max(20, options["timeout"]),
    )
    if inspected.cause or inspected.rc != 0:
        return dict(
            result,
            cause=inspected.cause or "container_not_running",
            evidence=inspected.evidence or inspected.stderr.strip(),
        )
    found = json.loads(inspected.stdout)[0]
    run = run_tool(
        module,
        ["python3", "-I", "-c", options["program"], options["share"]],
        options["timeout"],
        container=options["container"],
        login=Login(options["ssh_host"], options["ssh_port"]),
    )
    if run.cause or run.rc != 0:
        words = run.evidence or (run.stderr.strip().splitlines() or ["exit code %d" % run.rc])[-1]
        return dict(result, cause=run.cause or "failed", evidence=clean_text(words))
    try:
        view = parse_view(run.stdout)
    except NoView as error:
        return dict(result, cause="unreadable", evidence=str(error))
    share: dict[str, int | None] = {"device": None, "inode": None}
    if not ask_file_system(options["share"], options["timeout"])[0]:
        status = os.stat(options["share"])
        share = {"device": status.st_dev, "inode": status.st_ino}
    return dict(
        result,
        share=share,
        settings=dict(settings_of(found), cpus=len(os.sched_getaffinity(0))),
        view=dict(
            {name: part for name, part in view.items() if name != "first_environment"},
            environment=environment_differences(view["first_environment"], view["environment"]),
            **with_origins(found, view),
        ),
    )
