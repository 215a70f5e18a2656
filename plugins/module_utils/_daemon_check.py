# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether Docker can read its configuration file, as checked by the installed dockerd, even without C(--validate), which came with 23.0.

It reads the file first of all. Started without privileges it then says what is wrong with the file, or that it needs to be root, before it has touched
anything. What it would stumble over later is judged by C(_daemon_values).
"""

from __future__ import annotations

import os
import re
import tempfile

from ansible_collections.trainyard.gpu.plugins.module_utils._daemon_values import (
    FAIL,
    value_findings,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._docker_engine import (
    ParseError,
    numbers,
    parse_daemon_config,
    tool_version,
)

__all__ = ["daemon_config_state", "flags_of", "verdict"]

# An id without an account, so that no other process can read the copy.
NOBODY = 65533
_REFUSED = re.compile(
    r"unable to configure the Docker daemon with file \S+: (.+)|^(unable to parse logging level: .+|conflict labels for .+)$",
    re.MULTILINE,
)
EMPTY = "the file is empty, but %s not accept that; write {} into it, or remove it"


def flags_of(exec_start):
    """The options of dockerd in the unit, from C(systemctl show --property=ExecStart). An option must not be in both places."""
    found = re.search(r"argv\[\]=(.*?) ;", exec_start)
    words = found.group(1).split()[1:] if found else []
    # Variables belong to the unit.
    return [word for word in words if not word.startswith("$")]


def verdict(text):
    """dockerd's error about the file; empty if it could read it."""
    found = _REFUSED.search(text)
    return (found.group(1) or found.group(2)).strip() if found else ""


def daemon_config_state(module, path="/etc/docker/daemon.json", service="docker.service"):
    """Why Docker's next start fails with the file, empty if it does not or if there is no file; and a list of other problems."""
    try:
        with open(path, "rb") as stream:
            content = stream.read()
    except FileNotFoundError:
        return "", []
    except OSError as error:
        return "%s: %s" % (path, error.strerror), []
    error, version = _ask_dockerd(module, service, content)
    try:
        options = parse_daemon_config(content.decode("utf-8"))
    except (ParseError, UnicodeDecodeError) as problem:
        # Docker reports no position of JSON errors. Without an engine the file is not read.
        return "%s: %s" % (path, problem) if error or version is None else "", []
    if not content.strip():
        if error:
            return "%s: %s" % (path, EMPTY % "this version of Docker does"), []
        return "", [
            "%s: %s" % (path, EMPTY % "older versions of Docker do")
        ] if version is None else []
    findings = value_findings(options, version or ())
    errors = [error] if error else [text for severity, text in findings if severity == FAIL]
    return "%s: %s" % (path, "; ".join(errors)) if errors else "", [
        "%s: %s" % (path, text) for severity, text in findings if severity != FAIL
    ]


def _ask_dockerd(module, service, content):
    """dockerd's error about the file, and its version; None if dockerd cannot be run."""
    dockerd, setpriv = (
        module.get_bin_path(name, opt_dirs=["/usr/sbin", "/sbin"])
        for name in ("dockerd", "setpriv")
    )
    if os.geteuid() != 0 or not dockerd or not setpriv:
        return "", None
    systemctl = module.get_bin_path("systemctl")
    flags = (
        flags_of(module.run_command([systemctl, "show", "--property=ExecStart", service])[1])
        if systemctl
        else []
    )
    with tempfile.NamedTemporaryFile(dir="/tmp", prefix="trainyard-daemon-") as copy:
        copy.write(content)
        copy.flush()
        os.chown(copy.name, NOBODY, NOBODY)
        drop = [setpriv, "--reuid=%d" % NOBODY, "--regid=%d" % NOBODY, "--clear-groups"]
        dummy, out, err = module.run_command(
            drop + [dockerd] + flags + ["--config-file", copy.name], cwd="/"
        )
    return verdict(out + "\n" + err), numbers(
        tool_version(module.run_command([dockerd, "--version"])[1] + " ")
    )
