# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Hosts with Ascend NPUs: what is missing on them, where they differ, their environment, and the
rank table of all. Pure functions.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._quantity import quantity
from ansible_collections.trainyard.gpu.plugins.plugin_utils._readings import ASCEND, reading_faults
from ansible_collections.trainyard.gpu.plugins.plugin_utils._rank_table import (
    RankTableError,
    rank_table,
    rendered,
)

if TYPE_CHECKING:
    from ansible_collections.trainyard.gpu.plugins.plugin_utils._drift import Difference

#: Results of ascend_info and of npu_smi_info by host, in rank order.
Readings = Mapping[str, dict[str, Any]]
ENVIRONMENT, TABLE = "/etc/trainyard/ascend.sh", "/etc/trainyard/hccl.json"
PARTS = ("driver", "firmware")
# In a rank table of the old format.
BOARDS = {"aarch64": "0x0020", "x86_64": "0x0000"}
# What the table of playbook drift calls it.
PART = "Ascend"
HEADING = (
    "# Managed by Ansible (trainyard.gpu). Changes are overwritten.\n# For logins and jobs: . %s\n"
    % ENVIRONMENT
)


class Requested(TypedDict):
    """What the variables of role ascend request."""

    #: Of driver and firmware, empty for any.
    versions: dict[str, str]
    #: Of the rank table, empty for none, and what is wrong with it on the hosts.
    format: str
    format_problems: list[str]
    #: Of all hosts with NPUs by name.
    addresses: dict[str, str]
    #: Those of them that are not in this run.
    absent: list[str]


class HostFiles(TypedDict):
    """The files of a host, and how it differs from them."""

    #: For managed_files, and paths to remove.
    files: list[dict[str, str]]
    absent: list[str]
    #: Whether these differ, and whether the rank table does.
    differs: bool
    table_differs: bool
    #: Paths whose content differs.
    changed: list[str]


class HostPlan(HostFiles):
    """What role ascend does on one host."""

    #: What the host has, in a sentence.
    summary: str


class Plan(TypedDict):
    """What role ascend does on the hosts."""

    #: What keeps NPUs from working, and what does not, one sentence each.
    problems: list[str]
    warnings: list[str]
    hosts: dict[str, HostPlan]
    #: For a rank table of the old format; empty without hosts.
    board_id: str
    #: Of the rank table; empty if none is written.
    format: str
    #: C(name) and C(address) of the hosts in rank order.
    members: list[dict[str, str]]


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode("utf-8")).hexdigest()


def environment_file(variables: Mapping[str, str | list[str]]) -> str:
    """Return a file for `.` of sh, which may be read several times.

    Lists are paths and come before what a variable has.
    """
    lines = []
    for name in sorted(variables):
        value = variables[name]
        if isinstance(value, str):
            lines.append("export %s=%s" % (name, shlex.quote(value)))
        elif value:
            paths = ":".join(value)
            lines.append(
                'case ":${%s:-}:" in\n  *:%s:*) ;;\n  *) export %s=%s${%s:+:$%s} ;;\nesac'
                % (name, paths, name, paths, name, name)
            )
    # The hard limit is the site's. A shell that has no such limit says so, which is no error.
    return HEADING + "\n".join(lines + ['ulimit -S -u "$(ulimit -H -u)" 2> /dev/null || :', ""])


def host_problems(reading: dict[str, Any], npus: dict[str, Any]) -> list[str]:
    """Return what keeps NPUs of a host from working, one sentence each."""
    found = []
    for part in PARTS:
        if not reading[part]["version"]:
            found.append(
                (
                    "%s has no version.info, so no %s is installed; install the vendor's package, "
                    "first the driver, then the firmware"
                )
                % (reading[part]["path"], part)
            )
    if not npus["available"]:
        found.append("npu-smi: %s: %s" % (npus["cause"], npus["fix"]))
    if reading["missing_devices"]:
        found.append(
            "no %s; load the driver (reboot after its installation), and read 'dmesg'"
            % ", ".join(reading["missing_devices"])
        )
    if not any(
        entry["path"].startswith("/dev/davinci") and entry["path"][-1].isdigit()
        for entry in reading["devices"]
    ):
        found.append(
            "no /dev/davinciN; load the driver (reboot after its installation), and read 'dmesg'"
        )
    if not reading["group"]["exists"]:
        found.append(
            (
                "group '%s' does not exist; create it and its user before the driver is installed, "
                "as the vendor's guide says"
            )
            % reading["group"]["name"]
        )
    return found


def _is_open(mode: str) -> bool:
    """Return whether everyone may read and write."""
    return int(mode, 8) & 0o006 == 0o006


def host_warnings(reading: dict[str, Any], npus: dict[str, Any]) -> list[str]:
    """Return what is wrong with a host although its NPUs may work, one sentence each."""
    found = []
    for entry in npus["findings"]:
        device = "" if entry["device"] is None else " of device %s" % entry["device"]
        found.append(
            "%s%s: found %s, expected %s; %s"
            % (entry["kind"], device, entry["found"], entry["expected"], entry["fix"])
        )
    group = reading["group"]
    closed = [entry for entry in reading["devices"] if not _is_open(entry["mode"])]
    found += [
        (
            "%s belongs to group '%s' with mode %s; reinstall the driver, or use chgrp %s and "
            "chmod 0660"
        )
        % (entry["path"], entry["group"], entry["mode"], group["name"])
        for entry in closed
        if entry["group"] != group["name"] or int(entry["mode"], 8) & 0o060 != 0o060
    ]
    if closed and group["missing"]:
        found.append(
            "%s may not use the NPUs, as they are not in group '%s'; run: usermod -aG %s NAME"
            % (", ".join(group["missing"]), group["name"], group["name"])
        )
    return found


def different(readings: Readings, requested: dict[str, str]) -> list[str]:
    """Return where driver and firmware differ between hosts or from the requested version.

    Versions are compared as text: 1.72.T2.100.B020.
    """
    found = []
    for part in PARTS:
        versions: dict[str, list[str]] = {}
        for name, reading in readings.items():
            if reading[part]["version"]:
                versions.setdefault(reading[part]["version"], []).append(name)
        by_version = ", ".join(
            "%s on %s" % (version, ", ".join(names)) for version, names in versions.items()
        )
        if len(versions) > 1:
            found.append(
                "the hosts have different versions of the %s: %s; install one of them on all hosts"
                % (part, by_version)
            )
        if requested.get(part) and any(version != requested[part] for version in versions):
            found.append(
                (
                    "ascend_%s_version is '%s', found: %s; install that version, or correct the "
                    "variable"
                )
                % (part, requested[part], by_version)
            )
    return found


def table_of(
    readings: Readings, npus: Readings, requested: Requested
) -> tuple[dict[str, Any] | None, str, str]:
    """Return the rank table (None if there is none), a problem and a warning about it."""
    if not requested["format"]:
        return None, "", ""
    if requested["absent"]:
        return (
            None,
            "",
            "the rank table is not written, because it needs all hosts, and %s is not in this run"
            % ", ".join(requested["absent"]),
        )
    devices = sum(len(answer["devices"]) for answer in npus.values())
    if devices < 2:
        return None, "", ""
    boards = [
        BOARDS.get(reading["architecture"], BOARDS["aarch64"]) for reading in readings.values()
    ]
    hosts: list[Any] = [
        {
            "name": name,
            "server_id": requested["addresses"].get(name, ""),
            "devices": npus[name]["devices"],
        }
        for name in readings
    ]
    try:
        return rank_table(hosts, requested["format"], board_id=boards[0]), "", ""
    except RankTableError as error:
        return None, "rank table: %s. Without one, set ascend_rank_table_format to none" % error, ""


def summary(reading: dict[str, Any], npus: dict[str, Any]) -> str:
    """Return what a host has, in sentences."""
    names = sorted({npu["name"] for npu in npus["npus"] if npu["name"]})
    versions = [reading[part]["version"] or "unknown" for part in PARTS]
    texts = [
        "%s (%s), driver %s, firmware %s."
        % (quantity(npus["npu_count"], "NPU"), ", ".join(names) or "unknown", *versions)
    ]
    cann = reading["cann"]
    if cann["path"]:
        texts.append("CANN %s in %s." % (cann["version"] or "of an unknown version", cann["path"]))
    else:
        texts.append("There is no CANN on the host, so jobs need an image that has it.")
    if reading["processes"] != "unlimited":
        texts.append(
            (
                "A user may have at most %s processes (ulimit -u). If jobs need more, raise nproc "
                "in /etc/security/limits.d."
            )
            % reading["processes"]
        )
    return " ".join(texts)


def _host_files(
    reading: dict[str, Any], table: dict[str, Any] | None, keeps_table: bool
) -> HostFiles:
    """Return the files of a host, and how it differs from them.

    C(keeps_table): without a new table, that of an earlier run stays.
    """
    files = reading["files"]
    contents = {ENVIRONMENT: environment_file(reading["environment"])}
    if table:
        contents[TABLE] = rendered(table)
    gone = [TABLE] if not table and not keeps_table and TABLE in files else []
    changed = [path for path in contents if files.get(path) != _digest(contents[path])]
    return {
        "files": [
            {"path": "/etc/trainyard", "state": "directory", "mode": "0755"},
            {"path": ENVIRONMENT, "content": contents[ENVIRONMENT], "mode": "0644"},
        ],
        "absent": gone,
        "differs": bool(gone) or ENVIRONMENT in changed,
        "table_differs": TABLE in changed,
        "changed": changed,
    }


def _board(readings: Readings) -> str:
    """Return the board of the hosts, by the architecture of the first one."""
    for reading in readings.values():
        return BOARDS.get(reading["architecture"], BOARDS["aarch64"])
    return ""


def _of_hosts(
    texts_of: Callable[[dict[str, Any], dict[str, Any]], list[str]],
    readings: Readings,
    npus: Readings,
) -> list[str]:
    """Return what a function says about each host, with the host's name."""
    return [
        "%s: %s" % (name, text)
        for name in readings
        for text in texts_of(readings[name], npus[name])
    ]


class Found(TypedDict):
    """Results of M(trainyard.gpu.ascend_info) and of M(trainyard.gpu.npu_smi_info) by host, in rank
    order.
    """

    readings: Readings
    npus: Readings


def ascend_plan(found: Found, requested: Requested) -> Plan:
    """Judge driver, firmware and devices of all hosts with NPUs, and plan their environment and the
    rank table.

    Returns Plan, which explains each key; C(problems) and C(warnings) are sentences.
    """
    readings, npus = found["readings"], found["npus"]
    problems = [
        fault
        for name, reading in readings.items()
        for fault in reading_faults(name, reading, ASCEND)
    ]
    problems += _of_hosts(host_problems, readings, npus)
    warnings = _of_hosts(host_warnings, readings, npus)
    problems += list(requested["format_problems"]) + different(readings, requested["versions"])
    # Hosts without a driver have no addresses, which would only repeat it.
    table, problem, warning = None, "", ""
    if not problems:
        table, problem, warning = table_of(readings, npus, requested)
    problems += [problem] if problem else []
    warnings += [warning] if warning else []
    # If hosts are missing in this run, or have problems, the table of an earlier run stays.
    keeps_table = bool(problems or warning)
    return {
        "problems": problems,
        "warnings": warnings,
        "hosts": {
            name: {
                **_host_files(reading, table, keeps_table),
                "summary": summary(reading, npus[name]),
            }
            for name, reading in readings.items()
        },
        "board_id": _board(readings),
        "format": requested["format"],
        "members": [
            {"name": name, "address": requested["addresses"].get(name, "")} for name in readings
        ],
    }


def ascend_drift(plan: Plan, name: str, reading: dict[str, Any]) -> list[Difference]:
    """Return how a host differs from the plan, one row each: C(what), C(asked) and C(found).

    C(name) is the host's in the inventory, C(reading) the result of M(trainyard.gpu.ascend_info)
    on it. Empty if a run of the role would change nothing.
    """
    rows: list[Difference] = [
        {"what": PART, "asked": "NPUs that work alike on all hosts", "found": text}
        for text in plan["problems"]
        if text.startswith(name + ": ") or text.partition(": ")[0] not in plan["hosts"]
    ]
    host = plan["hosts"][name]
    for path in host["changed"]:
        found = "changed" if path in reading["files"] else "missing"
        rows.append({"what": path, "asked": "as planned", "found": found})
    for path in host["absent"]:
        rows.append({"what": path, "asked": "absent", "found": "present"})
    return rows
