# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether Docker can read its configuration file, as checked by the installed dockerd, even without
C(--validate), which came with 23.0.

It reads the file first of all. Started without privileges it then says what is wrong with the file,
or that it needs to be root, before it has touched anything. What it would stumble over later is
judged by C(_daemon_values).
"""

from __future__ import annotations

import os
import re
import tempfile

from typing import Any, List, Tuple

from ansible_collections.trainyard.gpu.plugins.module_utils._daemon_values import (
    FAIL,
    value_findings,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._docker_engine import (
    numbers,
    parse_daemon_config,
    tool_version,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._parse_error import ParseError

__all__ = ["daemon_config_state", "flags_of", "verdict"]

# An id without an account, so that no other process can read the copy.
NOBODY = 65533
_REFUSED = re.compile(
    (
        r"unable to configure the Docker daemon with file \S+: (.+)|^(unable to parse logging "
        r"level: .+|conflict labels for .+)$"
    ),
    re.MULTILINE,
)
EMPTY = "the file is empty, but %s not accept that; write {} into it, or remove it"


def flags_of(exec_start: str) -> list[str]:
    """The options of dockerd in the unit, from C(systemctl show --property=ExecStart).

    An option must not be in both places.
    """
    found = re.search(r"argv\[\]=(.*?) ;", exec_start)
    words = found.group(1).split()[1:] if found else []
    # Variables belong to the unit.
    return [word for word in words if not word.startswith("$")]


def verdict(text: str) -> str:
    """dockerd's error about the file; empty if it could read it."""
    found = _REFUSED.search(text)
    return (found.group(1) or found.group(2)).strip() if found else ""


#: Why Docker's next start fails with its file, empty if it does not, and other problems.
State = Tuple[str, List[str]]


def daemon_config_state(
    module: Any, path: str = "/etc/docker/daemon.json", service: str = "docker.service"
) -> State:
    """Judge Docker's configuration file, which may be missing. Each text begins with its path."""
    try:
        with open(path, "rb") as stream:
            content = stream.read()
    except FileNotFoundError:
        return "", []
    except OSError as error:
        return "%s: %s" % (path, error.strerror), []
    why, others = _judged(content, *_ask_dockerd(module, service, content))
    return "%s: %s" % (path, why) if why else "", ["%s: %s" % (path, text) for text in others]


def _judged(content: bytes, error: str, version: list[int] | None) -> State:
    """Return the state of a file, with dockerd's error about it and the version of Docker, None if
    dockerd cannot be run.
    """
    try:
        options = parse_daemon_config(content.decode("utf-8"))
    except (ParseError, UnicodeDecodeError) as problem:
        # Docker reports no position of JSON errors. Without an engine the file is not read.
        return str(problem) if error or version is None else "", []
    if not content.strip():
        if error:
            return EMPTY % "this version of Docker does", []
        return "", [EMPTY % "older versions of Docker do"] if version is None else []
    findings = value_findings(options, version or ())
    errors = [error] if error else [text for severity, text in findings if severity == FAIL]
    return "; ".join(errors), [text for severity, text in findings if severity != FAIL]


def _ask_dockerd(module: Any, service: str, content: bytes) -> tuple[str, list[int] | None]:
    """dockerd's error about the file, and its version; None if dockerd cannot be run."""
    dockerd, setpriv = (
        module.get_bin_path(name, opt_dirs=["/usr/sbin", "/sbin"])
        for name in ("dockerd", "setpriv")
    )
    if os.geteuid() != 0 or not dockerd or not setpriv:
        return "", None
    systemctl = module.get_bin_path("systemctl")
    flags: list[str] = []
    if systemctl:
        command = [systemctl, "show", "--property=ExecStart", service]
        flags = flags_of(module.run_command(command)[1])
    with tempfile.NamedTemporaryFile(dir="/tmp", prefix="trainyard-daemon-") as copy:
        copy.write(content)
        copy.flush()
        os.chown(copy.name, NOBODY, NOBODY)
        drop = [setpriv, "--reuid=%d" % NOBODY, "--regid=%d" % NOBODY, "--clear-groups"]
        dummy, out, err = module.run_command(
            drop + [dockerd] + flags + ["--config-file", copy.name], cwd="/"
        )
    printed = module.run_command([dockerd, "--version"])[1]
    version: list[int] = numbers(tool_version(printed + " "))
    return verdict(out + "\n" + err), version
