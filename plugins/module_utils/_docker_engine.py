# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Parsers of Docker's configuration file, its tools and apt: text in, data out, and the merge of
two configurations.
"""

from __future__ import annotations

import copy
import json
import re

from typing import Any, Collection, Dict, Iterator, NamedTuple, NoReturn, Tuple, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._parse_error import ParseError

# Options that dockerd reloads on SIGHUP; all others need a restart (dockerd's manual,
# 'Configuration reload behavior').
RELOADABLE = frozenset(
    [
        "authorization-plugins",
        "debug",
        "default-runtime",
        "features",
        "insecure-registries",
        "labels",
        "live-restore",
        "max-concurrent-downloads",
        "max-concurrent-uploads",
        "max-download-attempts",
        "registry-mirrors",
        "runtimes",
        "shutdown-timeout",
    ]
)
# 'Docker version 28.5.1, build e180ab8', 'containerd github.com/containerd/containerd 1.6.20~ds1
# 1.6.20~ds1-1+deb12u3'
_VERSION = re.compile(
    r"(?:version|containerd(?:\.io|/v\d+)?) v?(\d+(?:\.\d+)+[^\s,]*)[\s,]", re.IGNORECASE
)
_UPSTREAM = re.compile(r"v?(?:\d+:)?(\d+(?:\.\d+)*(?:[-~](?:rc|beta)[.\d]*)?)")


#: Options of a daemon.json.
Options = Dict[str, Any]
#: Keys of an option, from the outermost.
Path = Tuple[str, ...]


class AptPackage(TypedDict):
    """A package of apt.

    C(origin) is that of the installed version, C(versions) are those that apt knows, and texts are
    empty if there is none.
    """

    installed: str
    candidate: str
    origin: str
    versions: list[str]


def parse_daemon_config(text: str) -> Options:
    """Options of a daemon.json. An empty file means no options, as in newer versions of dockerd."""
    if not text.strip():
        return {}

    def constant(name: str) -> NoReturn:
        raise ParseError(f"{name} is not a JSON value")

    try:
        options = json.loads(text, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise ParseError(f"line {error.lineno}, column {error.colno}: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        # Numbers with thousands of digits, thousands of brackets.
        raise ParseError(str(error)) from error
    if not isinstance(options, dict):
        raise ParseError("line 1, column 1: it is not a JSON object ({...})")
    return options


def dump_daemon_config(options: Options, like: str = "") -> str:
    """The text of a daemon.json, with the indentation of the former one."""
    indent = re.search(r"^([ \t]+)\S", like, re.MULTILINE)
    return json.dumps(options, indent=indent.group(1) if indent else 2, ensure_ascii=False) + "\n"


class Merge(NamedTuple):
    """C(placed) are the values that the collection has set, with the former ones; C(kept) the
    user's values that stay.
    """

    options: Options
    placed: list[dict[str, Any]]
    kept: list[dict[str, Any]]


_ABSENT = object()


def _get(options: Any, path: Path) -> Any:
    for key in path:
        if not isinstance(options, dict) or key not in options:
            return _ABSENT
        options = options[key]
    return options


def _set(options: Any, path: Path, value: Any) -> None:
    for key in path[:-1]:
        options = options.setdefault(key, {})
    options[path[-1]] = copy.deepcopy(value)


def _delete(options: Options, path: Path) -> None:
    """Remove a value, and enclosing objects that become empty."""
    del _get(options, path[:-1])[path[-1]]
    for length in range(len(path) - 1, 0, -1):
        if _get(options, path[:length]):
            return
        del _get(options, path[: length - 1])[path[length - 1]]


def _leaves(requested: Options, current: Options, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """(path, value) of the requested options, down to values that can be set independently."""
    for key, value in requested.items():
        here = path + (key,)
        there = _get(current, here)
        if isinstance(value, dict) and value and (there is _ABSENT or isinstance(there, dict)):
            yield from _leaves(value, current, here)
        elif not (value == {} and isinstance(there, dict)):
            yield here, value


def _same(one: Any, other: Any) -> bool:
    # 1 == True in Python, but not in JSON.
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def merge(
    current: Options,
    requested: Options,
    placed: list[dict[str, Any]],
    override: Collection[str] = (),
) -> Merge:
    """Merge requested options into existing ones.

    A value that an earlier merge placed is ours: it follows what is asked, and goes, or gives way
    to the former one, when it is asked no more. Any other value is the user's: it stays, unless its
    path (C(log-opts.max-size)) or one above it is in C(override). Lists are values as a whole:
    joining two of them would mean something else.
    """
    options = copy.deepcopy(current)
    entries = {tuple(entry["path"]): entry for entry in placed}
    requested_values = dict(_leaves(requested, current))
    result: list[dict[str, Any]] = []
    kept: list[dict[str, Any]] = []
    for path, entry in entries.items():
        if path not in requested_values and _same_as(options, path, entry["value"]):
            if "former" in entry:
                _set(options, path, entry["former"])
            else:
                _delete(options, path)
    for path, value in requested_values.items():
        there, former_entry = _get(options, path), entries.get(path)
        if there is _ABSENT:
            new = {"path": list(path), "value": value}
        elif former_entry is not None and _same(there, former_entry["value"]):
            new = dict(former_entry, value=value)
        elif _same(there, value):
            continue
        elif _is_overridden(path, override):
            new = {"path": list(path), "value": value, "former": there}
        else:
            kept.append({"option": ".".join(path), "value": there, "asked": value})
            continue
        _set(options, path, value)
        result.append(new)
    return Merge(options, result, kept)


def _is_overridden(path: Path, override: Collection[str]) -> bool:
    """Whether an option, or one above it, is in the list."""
    return any(".".join(path[:length]) in override for length in range(1, len(path) + 1))


def _same_as(options: Options, path: Path, value: Any) -> bool:
    there = _get(options, path)
    return there is not _ABSENT and _same(there, value)


def changed_options(before: Options, after: Options) -> list[str]:
    """Names of the top-level options that differ."""
    return sorted(
        key
        for key in set(before) | set(after)
        if not _same(before.get(key, "\0"), after.get(key, "\0"))
    )


def tool_version(text: str) -> str:
    """Version in the output of C(dockerd --version) and similar commands; empty if there is
    none.
    """
    found = _VERSION.search(text)
    return found.group(1) if found else ""


def upstream_version(version: str) -> str:
    """C(20.10.24) of C(20.10.24+dfsg1), C(28.5.1) of C(5:28.5.1-1~debian.12~bookworm)."""
    found = _UPSTREAM.match(version)
    return found.group(1) if found else ""


def numbers(version: str) -> list[int]:
    """The numbers of a version, for comparisons: [20, 10, 24]. Empty for an empty text."""
    return [
        int(part)
        for part in re.findall(r"\d+", upstream_version(version).split("-")[0].split("~")[0])
    ]


def cli_needs_buildx(version: str) -> bool:
    """From 23.0 on the client runs BuildKit builds with the plugin buildx and fails without it."""
    return bool(version) and numbers(version) >= [23]


# For dpkg-query --showformat.
DPKG_FORMAT = "${Package} ${Version} ${db:Status-Status}\\n"


def parse_installed(text: str) -> dict[str, AptPackage]:
    """Like parse_policy, from dpkg-query with C(DPKG_FORMAT): only the installed versions."""
    rows = [line.split(" ") for line in text.splitlines()]
    return {row[0]: _package(row[1]) for row in rows if row[2:] == ["installed"]}


def parse_policy(text: str) -> dict[str, AptPackage]:
    """Packages by name from C(apt-cache policy)."""
    packages: dict[str, AptPackage] = {}
    package: AptPackage | None = None
    version = None
    for line in text.splitlines():
        if line and not line[0].isspace():
            package, version = _package(), None
            packages[line.rstrip(":")] = package
            continue
        if package is None:
            continue
        field = re.match(r"  (Installed|Candidate): (\S+)", line)
        row = re.match(r" (\*\*\*|   ) (\S+) -?\d+(?: \(phased \d+%\))?$", line)
        source = re.match(r" {8} *-?\d+ (.+)$", line)
        if field:
            value = "" if field.group(2) == "(none)" else field.group(2)
            package["installed" if field.group(1) == "Installed" else "candidate"] = value
        elif row:
            version = row.group(2)
            package["versions"].append(version)
        elif source and version == package["installed"] and not package["origin"]:
            if not source.group(1).startswith("/var/lib/dpkg/status"):
                package["origin"] = source.group(1)
    return packages


def _package(installed: str = "") -> AptPackage:
    return {"installed": installed, "candidate": "", "origin": "", "versions": []}


def failure_reason(journal: str) -> str:
    """The lines of a unit's journal that show why dockerd did not start."""
    lines = [line.strip() for line in journal.splitlines() if line.strip()]
    telling = [
        line
        for line in lines
        if re.search(
            r"unable to configure|failed to start daemon|level=fatal|invalid|unknown flag|conflict",
            line,
        )
    ]
    # systemd retries several times with the same messages.
    return "\n".join(list(dict.fromkeys(telling or lines))[-3:])
