# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether the kernel has the tables of nftables that this collection loads.

The health program of nodes imports it, too.
"""

from __future__ import annotations

import re
import time

from typing import Any, Callable

try:
    from ansible_collections.trainyard.gpu.plugins.module_utils._files import read_existing
except ImportError:
    # Role host_library copies these files to hosts, into one folder.
    from _files import read_existing  # type: ignore[import-not-found,no-redef]

__all__ = ["JOBS", "TABLES", "fault_of", "read_firewall", "settled_fault"]

JOBS = "trainyard-jobs-firewall.service"
#: The table of each unit, and the file that was loaded last.
TABLES = {
    JOBS: ("inet trainyard_jobs", "/run/trainyard/ports/table.nft"),
    "trainyard-instances.service": (
        "inet trainyard_instances",
        "/etc/trainyard/firewall/instances.nft",
    ),
}
#: A job that begins meanwhile changes first the table and then its file.
_TRIES, _PAUSE = 4, 0.1
_HOOK = re.compile(r"type (\w+) hook (\w+) .*?policy (\w+);")


def _chains(text: str) -> dict[str, tuple[str, int]]:
    """Return hook and number of rules of each chain, from a file for nft or from its output.

    nft prints a rule in its own words, in one line as in the file.
    """
    found: dict[str, tuple[str, int]] = {}
    name = ""
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["chain"]:
            name = words[1]
            found[name] = ("", 0)
        elif words == ["}"]:
            name = ""
        elif name and words:
            hook, rules = found[name]
            declared = _HOOK.search(line)
            found[name] = (" ".join(declared.groups()), rules) if declared else (hook, rules + 1)
    return found


def fault_of(planned: str, listed: str) -> str:
    """Return what is wrong with a table, or nothing.

    C(planned) is the text of its file, C(listed) what nft prints of it, if there is such a table.
    """
    requested, found = _chains(planned), _chains(listed)
    if not found:
        return "not loaded"
    if not requested:
        return "loaded from an unknown file"
    differing = sorted(
        name for name in {*requested, *found} if requested.get(name) != found.get(name)
    )
    return "chain %s is changed" % differing[0] if differing else ""


def settled_fault(unit: str, output: Callable[[list[str]], str]) -> str:
    """Return what is wrong with the table of a unit for longer than a job takes to begin.

    C(output) runs nft with a list of arguments and returns what it prints.
    """
    table, path = TABLES[unit]
    fault = ""
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE)
        planned = read_existing(path)
        fault = fault_of(planned, output(["list", "table", *table.split()]))
        if not fault:
            break
    return fault


def read_firewall(module: Any, unit: str) -> dict[str, bool | str]:
    """Return C(fault) of the table of a unit, and whether the unit is C(active) and C(enabled)."""
    nft, systemctl = module.get_bin_path("nft"), module.get_bin_path("systemctl")

    def output(arguments: list[str]) -> str:
        printed: str = module.run_command([nft, *arguments])[1] if nft else ""
        return printed

    state = ""
    if systemctl:
        # Both fields in one call, as empty ones if there is no such unit.
        state = module.run_command(
            [systemctl, "show", "--property=ActiveState,UnitFileState", unit]
        )[1]
    return {
        "fault": settled_fault(unit, output),
        "active": "ActiveState=active" in state.splitlines(),
        "enabled": "UnitFileState=enabled" in state.splitlines(),
    }
