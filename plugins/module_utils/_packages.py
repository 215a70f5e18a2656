# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Packages of a host and their former state: output of dpkg and apt in, typed data out."""

from __future__ import annotations

import re

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

# Of each run of apt. apt's hook of needrestart restarts services on Ubuntu 24.04 and asks on 22.04, also those in which jobs run.
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


def whole_lines(text, tool):
    """The lines of a tool's output. Output truncated within a line is an error, because half of a version reads as a different version."""
    lines = text.split("\n")
    cut = lines.pop()
    if cut:
        raise ParseError("%s: the output ends within a line: %.120r" % (tool, cut))
    return lines


def dpkg_rows(text, count=3):
    """Fields of each line of dpkg-query's ``…\\t${Version}\\t${db:Status-Abbrev}``, with C(count) of them; the status is the letters alone."""
    for line in whole_lines(text, "dpkg-query"):
        fields = line.split("\t")
        status = fields[2].strip() if len(fields) == count else ""
        # The heading of dpkg --list explains them. Packages that are not installed have no version.
        if not _STATUS.fullmatch(status) or not fields[0] or not fields[1] and status[1] != "n":
            raise ParseError("dpkg-query: %.120r" % line)
        yield fields[:2] + [status] + fields[3:]


def split_package(text):
    """Name and version of 'name' or 'name=version'; the version is empty if none is requested."""
    name, _sign, version = text.partition("=")
    return name, version


def parse_installed(text):
    """Version and whether it is held, by name, of dpkg-query's ``${Package}\\t${Version}\\t${db:Status-Abbrev}``: installed ones only."""
    return {
        name: {"version": version, "held": status[0] == "h"}
        for name, version, status in dpkg_rows(text)
        if status[1] == "i"
    }


def parse_provided(text: str, names: list[str]) -> dict[str, dict]:
    """Installed packages that provide C(names) which no package has, as libpmix2t64 provides libpmix2 on Ubuntu 24.04.

    C(text) is dpkg-query's output of all packages with PROVIDES_FORMAT. Returns C(package), its version and whether it is held, by provided name.
    """
    found = {}
    for package, version, status, provides in dpkg_rows(text, count=4):
        if status[1] != "i":
            continue
        # "libpmix2 (= 5.0.1-4.1build1), mpi-default:amd64"
        offered = {re.split(r"[ :(]", entry.strip())[0] for entry in provides.split(",")}
        for name in sorted(offered.intersection(names)):
            entry = {"package": package, "version": version, "held": status[0] == "h"}
            found.setdefault(name, entry)
    return found


def parse_simulation(text):
    """What `apt-get --simulate` says it would do: C(installed) and C(removed), in apt's order, and C(replaced), the former version by name."""
    installed, removed, replaced = [], [], {}
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


def is_of(words, uri, suite="/"):
    """Whether the words of a row, URL, suite with component, architecture, belong to a repository. With suite / they are only the URL."""
    theirs = words[1] if len(words) > 2 else "/"
    return location(words[0]) == location(uri) and (theirs + "/").startswith(
        suite.rstrip("/") + "/"
    )


def madison_rows(text):
    """Name, version, and the words of the place (URL, suite with component, architecture) of each binary package that `apt-cache madison` lists."""
    for line in whole_lines(text, "apt-cache madison"):
        fields = [field.strip() for field in line.split("|")]
        # Source packages are listed too, under the name of the binary package.
        if len(fields) == 3 and fields[2].endswith("Packages"):
            yield fields[0], fields[1], fields[2].split()


def parse_madison(text, repository="", there=True, without=()):
    """Versions that `apt-cache madison` lists, by name, newest first.

    With C(repository), a URL, only those of it (C(there)), or only those of other repositories. None of C(without), URLs with a suite behind them.
    """
    found = {}
    wanted = re.sub(r"^\w+://", "", repository).rstrip("/")
    for name, version, words in madison_rows(text):
        if wanted and (wanted + "/" in " ".join(words)) != there:
            continue
        if any(is_of(words, *each.split()) for each in without):
            continue
        versions = found.setdefault(name, [])
        if version not in versions:
            versions.append(version)
    return found


def nearest_versions(wanted, versions, count=3):
    """The versions most similar to the requested one, in the given order."""

    def likeness(version):
        """Length of the common prefix, and overall similarity."""
        same = [
            left == right
            for left, right in zip(re.findall(r"\d+|\D+", wanted), re.findall(r"\d+|\D+", version))
        ]
        return (same + [False]).index(False), sum(same)

    ranked = sorted(
        enumerate(versions),
        key=lambda entry: ([-number for number in likeness(entry[1])], entry[0]),
    )
    return [version for _place, version in ranked[:count]]


def parse_states(text, automatic=()):
    """All packages of dpkg by name (with a foreign architecture): version, the two status letters of `dpkg --list`, automatic."""
    automatic = set(automatic)
    return {
        name: {
            "version": version,
            "status": status,
            "automatic": bool({name, name.partition(":")[0]} & automatic),
        }
        for name, version, status in dpkg_rows(text)
    }


def is_installed(state):
    return bool(state) and state["status"][1:2] == "i"


def way_back(before, after, now):
    """Changes that restore the packages that differ between two lists: C(install) (names with versions), C(remove), C(hold), C(unhold), C(automatic).

    C(kept) are those that somebody has changed since C(after), and that stay. Without C(after), what is there now is what the change has left.
    """
    after = after or now
    plan = {"install": [], "remove": [], "hold": [], "unhold": [], "automatic": [], "kept": []}
    for name in sorted(set(before) | set(after)):
        was, became, there = before.get(name), after.get(name), now.get(name)
        if was in (became, there):
            continue
        if became != there:
            plan["kept"].append(name)
            continue
        if is_installed(was):
            if not is_installed(there) or there["version"] != was["version"]:
                plan["install"].append("%s=%s" % (name, was["version"]))
            held = was["status"][:1] == "h"
            if held or is_installed(there) and there["status"][:1] == "h":
                plan["hold" if held else "unhold"].append(name)
            if was["automatic"]:
                plan["automatic"].append(name)
        elif there:
            # Neither installed nor with configuration files left.
            plan["remove"].append(name)
    return plan
