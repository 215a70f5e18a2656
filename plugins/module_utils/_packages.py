# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Packages of a host and what was before them: dpkg's and apt's words in, typed data out."""

from __future__ import annotations

import re

__all__ = ["STATES_FORMAT", "parse_installed", "parse_madison", "parse_simulation", "parse_states", "nearest_versions", "split_package", "way_back"]

# For dpkg-query --showformat: what parse_states reads.
STATES_FORMAT = "${binary:Package}\\t${Version}\\t${db:Status-Abbrev}\\n"


def split_package(text):
    """Name and version of «name» or «name=version»; the version is empty where none is asked for."""
    name, _sign, version = text.partition("=")
    return name, version


def parse_installed(text):
    """Version and whether it is held, by name, of dpkg-query's ``${Package}\\t${Version}\\t${db:Status-Abbrev}``: installed ones only."""
    found = {}
    for line in text.splitlines():
        name, version, status = (line.split("\t") + ["", ""])[:3]
        if status[1:2] == "i":
            found[name] = {"version": version, "held": status[:1] == "h"}
    return found


def parse_simulation(text):
    """What `apt-get --simulate` says it would do: C(installed) and C(removed), in apt's order, and C(replaced), the former version by name."""
    installed, removed, replaced = [], [], {}
    for line in text.splitlines():
        match = re.match(r"(Inst|Remv|Purg) ([^\s:]+)\S*(?: \[([^\]]+)\])?", line)
        if match and match.group(1) == "Inst":
            installed.append(match.group(2))
            if match.group(3):
                replaced[match.group(2)] = match.group(3)
        elif match and match.group(2) not in removed:
            removed.append(match.group(2))
    return {"installed": installed, "removed": removed, "replaced": replaced}


def parse_madison(text):
    """Versions that apt knows, by name, newest first, of `apt-cache madison`."""
    found = {}
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) == 3 and fields[1] not in found.setdefault(fields[0], []):
            found[fields[0]].append(fields[1])
    return found


def nearest_versions(wanted, versions, count=3):
    """Of versions, those that are most like the wanted one, in the order that they came in."""
    def likeness(version):
        """How much of it is the same from its beginning on, and in all."""
        same = [left == right for left, right in zip(re.findall(r"\d+|\D+", wanted), re.findall(r"\d+|\D+", version))]
        return (same + [False]).index(False), sum(same)

    ranked = sorted(enumerate(versions), key=lambda entry: ([-number for number in likeness(entry[1])], entry[0]))
    return [version for _place, version in ranked[:count]]


def parse_states(text, automatic=()):
    """All that dpkg knows, by name (with the architecture, where that is a foreign one): version, status of two letters as `dpkg --list` has it, automatic."""
    found, automatic = {}, set(automatic)
    for line in text.splitlines():
        name, version, status = (line.split("\t") + ["", ""])[:3]
        found[name] = {"version": version, "status": status.strip(), "automatic": bool({name, name.partition(":")[0]} & automatic)}
    return found


def is_installed(state):
    return bool(state) and state["status"][1:2] == "i"


def way_back(before, after, now):
    """What brings back the packages that differ between two lists of states: C(install) (names with versions), C(remove), C(hold), C(unhold), C(automatic).

    C(kept) are those that somebody has changed since C(after), and that stay. Without C(after), what is there now is what the change has left.
    """
    after = after or now
    plan = {"install": [], "remove": [], "hold": [], "unhold": [], "automatic": [], "kept": []}
    for name in sorted(set(before) | set(after)):
        was, became, there = before.get(name), after.get(name), now.get(name)
        if was == became or was == there:
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
            # Nothing of it is left: neither installed, nor its settings.
            plan["remove"].append(name)
    return plan
