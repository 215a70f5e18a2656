# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Packages of a host and their former state: output of dpkg and apt in, typed data out."""

from __future__ import annotations

import re

from typing import Dict, Iterable, Iterator, Sequence, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._apt_sources import location
from ansible_collections.trainyard.gpu.plugins.module_utils._parse_error import ParseError

__all__ = [
    "APT_ENVIRONMENT",
    "PROVIDES_FORMAT",
    "STATES_FORMAT",
    "ParseError",
    "dpkg_rows",
    "is_of",
    "madison_rows",
    "nearest_versions",
    "parse_installed",
    "parse_madison",
    "parse_provided",
    "parse_simulation",
    "parse_states",
    "split_package",
    "way_back",
    "whole_lines",
]

# Of each run of apt. apt's hook of needrestart restarts services on Ubuntu 24.04 and asks on 22.04,
# also those in which jobs run.
APT_ENVIRONMENT = {
    "DEBIAN_FRONTEND": "noninteractive",
    "NEEDRESTART_MODE": "l",
    "NEEDRESTART_SUSPEND": "1",
}
_STATUS = re.compile(r"[uihrp][ncHUFWti]R?")
# For dpkg-query --showformat, for parse_states.
STATES_FORMAT = "${binary:Package}\\t${Version}\\t${db:Status-Abbrev}\\n"
# For dpkg-query --showformat without names, for parse_provided.
PROVIDES_FORMAT = "${Package}\\t${Version}\\t${db:Status-Abbrev}\\t${Provides}\\n"


class Installed(TypedDict):
    """Version of an installed package, and whether apt's changes leave it alone."""

    version: str
    held: bool


class Provider(Installed):
    """An installed package that provides another name."""

    package: str


class Simulation(TypedDict):
    """What apt would do: C(installed) and C(removed), in apt's order, and C(replaced), the former
    version by name.
    """

    installed: list[str]
    removed: list[str]
    replaced: dict[str, str]


class State(TypedDict):
    """A package of dpkg.

    C(status) are the two letters of C(dpkg --list), C(automatic) tells whether it came as a
    dependency.
    """

    version: str
    status: str
    automatic: bool


#: Packages by name, with a foreign architecture behind it.
States = Dict[str, State]


class WayBack(TypedDict):
    """Changes that restore packages: those to install have their versions.

    C(kept) are those that somebody has changed since, and that stay.
    """

    install: list[str]
    remove: list[str]
    hold: list[str]
    unhold: list[str]
    automatic: list[str]
    kept: list[str]


def whole_lines(text: str, tool: str) -> list[str]:
    """The lines of a tool's output.

    Output truncated within a line is an error, because half of a version reads as a different
    version.
    """
    lines = text.split("\n")
    cut = lines.pop()
    if cut:
        raise ParseError("%s: the output ends within a line: %.120r" % (tool, cut))
    return lines


def dpkg_rows(text: str, count: int = 3) -> Iterator[list[str]]:
    """Fields of each line of dpkg-query's ``…\\t${Version}\\t${db:Status-Abbrev}``, with C(count)
    of them; the status is the letters alone.
    """
    for line in whole_lines(text, "dpkg-query"):
        fields = line.split("\t")
        status = fields[2].strip() if len(fields) == count else ""
        # The heading of dpkg --list explains them. Packages that are not installed have no version.
        if not _STATUS.fullmatch(status) or not fields[0] or not fields[1] and status[1] != "n":
            raise ParseError("dpkg-query: %.120r" % line)
        yield fields[:2] + [status] + fields[3:]


def split_package(text: str) -> tuple[str, str]:
    """Name and version of 'name' or 'name=version'; the version is empty if none is requested."""
    name, _sign, version = text.partition("=")
    return name, version


def parse_installed(text: str) -> dict[str, Installed]:
    """Version and whether it is held, by name, of dpkg-query's
    ``${Package}\\t${Version}\\t${db:Status-Abbrev}``: installed ones only.

    A library may also be there for i386, which Ubuntu's drivers recommend where that is enabled.
    dpkg lists it after the one of amd64, and apt-mark holds only the latter.
    """
    found: dict[str, Installed] = {}
    for name, version, status in dpkg_rows(text):
        if status[1] == "i":
            found.setdefault(name, {"version": version, "held": status[0] == "h"})
    return found


def parse_provided(text: str, names: list[str]) -> dict[str, Provider]:
    """Installed packages that provide C(names) which no package has, as libpmix2t64 provides
    libpmix2 on Ubuntu 24.04.

    C(text) is dpkg-query's output of all packages with PROVIDES_FORMAT. Returns the first package
    by provided name.
    """
    found: dict[str, Provider] = {}
    for package, version, status, provides in dpkg_rows(text, count=4):
        if status[1] != "i":
            continue
        # "libpmix2 (= 5.0.1-4.1build1), mpi-default:amd64"
        offered = {re.split(r"[ :(]", entry.strip())[0] for entry in provides.split(",")}
        for name in sorted(offered.intersection(names)):
            found.setdefault(
                name, {"package": package, "version": version, "held": status[0] == "h"}
            )
    return found


def parse_simulation(text: str) -> Simulation:
    """What `apt-get --simulate` says it would do."""
    installed: list[str] = []
    removed: list[str] = []
    replaced: dict[str, str] = {}
    for line in whole_lines(text, "apt-get --simulate"):
        match = re.match(r"(Inst|Remv|Purg) ([^\s:]+)\S*(?: \[([^\]]+)\])?(?: |$)", line)
        if not match and line.startswith(("Inst ", "Remv ", "Purg ")):
            raise ParseError("apt-get --simulate: %.120r" % line)
        if match and match.group(1) == "Inst":
            installed.append(match.group(2))
            if match.group(3):
                replaced[match.group(2)] = match.group(3)
        elif match and match.group(2) not in removed:
            removed.append(match.group(2))
    return {"installed": installed, "removed": removed, "replaced": replaced}


def is_of(words: Sequence[str], uri: str, suite: str = "/") -> bool:
    """Whether the words of a row, URL, suite with component, architecture, belong to a repository.

    With suite / they are only the URL.
    """
    theirs = words[1] if len(words) > 2 else "/"
    return location(words[0]) == location(uri) and (theirs + "/").startswith(
        suite.rstrip("/") + "/"
    )


def madison_rows(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """Name, version, and the words of the place (URL, suite with component, architecture) of each
    binary package that `apt-cache madison` lists.
    """
    for line in whole_lines(text, "apt-cache madison"):
        fields = [field.strip() for field in line.split("|")]
        # Source packages are listed too, under the name of the binary package.
        if len(fields) == 3 and fields[2].endswith("Packages"):
            yield fields[0], fields[1], fields[2].split()


def parse_madison(
    text: str, repository: str = "", there: bool = True, without: Iterable[str] = ()
) -> dict[str, list[str]]:
    """Versions that `apt-cache madison` lists, by name, newest first.

    With C(repository), a URL, only those of it (C(there)), or only those of other repositories.
    None of C(without), URLs with a suite behind them.
    """
    found: dict[str, list[str]] = {}
    requested = re.sub(r"^\w+://", "", repository).rstrip("/")
    for name, version, words in madison_rows(text):
        if requested and (requested + "/" in " ".join(words)) != there:
            continue
        if any(is_of(words, *each.split()) for each in without):
            continue
        versions = found.setdefault(name, [])
        if version not in versions:
            versions.append(version)
    return found


def nearest_versions(requested: str, versions: Sequence[str], count: int = 3) -> list[str]:
    """The versions most similar to the requested one, in the given order."""

    def likeness(version: str) -> tuple[int, int]:
        """Length of the common prefix, and overall similarity."""
        same = [
            left == right
            for left, right in zip(
                re.findall(r"\d+|\D+", requested), re.findall(r"\d+|\D+", version)
            )
        ]
        return (same + [False]).index(False), sum(same)

    ranked = sorted(
        enumerate(versions),
        key=lambda entry: ([-number for number in likeness(entry[1])], entry[0]),
    )
    return [version for _place, version in ranked[:count]]


def parse_states(text: str, automatic: Iterable[str] = ()) -> States:
    """All packages of dpkg by name (with a foreign architecture): version, the two status letters
    of `dpkg --list`, automatic.
    """
    unrequested = set(automatic)
    return {
        name: {
            "version": version,
            "status": status,
            "automatic": bool({name, name.partition(":")[0]} & unrequested),
        }
        for name, version, status in dpkg_rows(text)
    }


def is_installed(state: State | None) -> bool:
    """Whether a package is installed. None is one that dpkg does not know."""
    return state is not None and state["status"][1:2] == "i"


def way_back(before: States, after: States | None, now: States) -> WayBack:
    """Changes that restore the packages that differ between two lists.

    What somebody has changed since C(after) is kept. Without C(after), what is there now is what
    the change has left.
    """
    after = after or now
    plan: WayBack = {
        "install": [],
        "remove": [],
        "hold": [],
        "unhold": [],
        "automatic": [],
        "kept": [],
    }
    for name in sorted(set(before) | set(after)):
        was, became, there = before.get(name), after.get(name), now.get(name)
        if was in (became, there):
            continue
        if became != there:
            plan["kept"].append(name)
        elif was is not None and is_installed(was):
            _restore(plan, name, was, there)
        elif there:
            # Neither installed nor with configuration files left.
            plan["remove"].append(name)
    return plan


def _restore(plan: WayBack, name: str, was: State, there: State | None) -> None:
    """Add to the plan what a package needs that was installed. C(there) is what is there now."""
    if there is None or not is_installed(there) or there["version"] != was["version"]:
        plan["install"].append("%s=%s" % (name, was["version"]))
    if was["status"][:1] == "h":
        plan["hold"].append(name)
    elif there is not None and is_installed(there) and there["status"][:1] == "h":
        plan["unhold"].append(name)
    if was["automatic"]:
        plan["automatic"].append(name)
