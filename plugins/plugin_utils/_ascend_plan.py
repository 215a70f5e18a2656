# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Hosts with Ascend NPUs: what is missing on them, where they differ, their environment, and the rank table of all. Pure functions."""

from __future__ import annotations

import hashlib
import shlex

from ansible_collections.trainyard.gpu.plugins.module_utils._quantity import quantity
from ansible_collections.trainyard.gpu.plugins.plugin_utils._readings import ASCEND, reading_faults
from ansible_collections.trainyard.gpu.plugins.plugin_utils._rank_table import (
    RankTableError,
    rank_table,
    rendered,
)

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


def _digest(content):
    return hashlib.sha256(content.encode("utf-8")).hexdigest()


def environment_file(variables):
    """Return a file for `.` of sh, which may be read several times. Lists come before what a variable has."""
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


def host_problems(reading, npus):
    """Return what keeps NPUs of a host from working, one sentence each."""
    found = []
    for part in PARTS:
        if not reading[part]["version"]:
            found.append(
                "%s has no version.info, so no %s is installed; install the vendor's package, first the driver, then the firmware"
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
            "group '%s' does not exist; create it and its user before the driver is installed, as the vendor's guide says"
            % reading["group"]["name"]
        )
    return found


def _is_open(mode):
    """Whether everyone may read and write."""
    return int(mode, 8) & 0o006 == 0o006


def host_warnings(reading, npus):
    found = [
        "%s%s: found %s, expected %s; %s"
        % (
            entry["kind"],
            "" if entry["device"] is None else " of device %s" % entry["device"],
            entry["found"],
            entry["expected"],
            entry["fix"],
        )
        for entry in npus["findings"]
    ]
    group, closed = (
        reading["group"],
        [entry for entry in reading["devices"] if not _is_open(entry["mode"])],
    )
    found += [
        "%s belongs to group '%s' with mode %s; reinstall the driver, or use chgrp %s and chmod 0660"
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


def different(readings, asked):
    """Return where driver and firmware differ between hosts or from the requested version. Versions are compared as text: 1.72.T2.100.B020."""
    found = []
    for part in PARTS:
        versions = {}
        for name, reading in readings.items():
            if reading[part]["version"]:
                versions.setdefault(reading[part]["version"], []).append(name)
        told = ", ".join(
            "%s on %s" % (version, ", ".join(names)) for version, names in versions.items()
        )
        if len(versions) > 1:
            found.append(
                "the hosts have different versions of the %s: %s; install one of them on all hosts"
                % (part, told)
            )
        if asked.get(part) and any(version != asked[part] for version in versions):
            found.append(
                "ascend_%s_version is '%s', found: %s; install that version, or correct the variable"
                % (part, asked[part], told)
            )
    return found


def table_of(readings, npus, wanted):
    """Return the rank table (None if there is none), a problem and a warning about it."""
    if not wanted["format"]:
        return None, "", ""
    if wanted["absent"]:
        return (
            None,
            "",
            "the rank table is not written, because it needs all hosts, and %s is not in this run"
            % ", ".join(wanted["absent"]),
        )
    devices = sum(len(answer["devices"]) for answer in npus.values())
    if devices < 2:
        return None, "", ""
    boards = [
        BOARDS.get(reading["architecture"], BOARDS["aarch64"]) for reading in readings.values()
    ]
    hosts = [
        {
            "name": name,
            "server_id": wanted["addresses"].get(name, ""),
            "devices": npus[name]["devices"],
        }
        for name in readings
    ]
    try:
        return rank_table(hosts, wanted["format"], board_id=boards[0]), "", ""
    except RankTableError as error:
        return None, "rank table: %s. Without one, set ascend_rank_table_format to none" % error, ""


def summary(reading, npus):
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
            "A user may have at most %s processes (ulimit -u). If jobs need more, raise nproc in /etc/security/limits.d."
            % reading["processes"]
        )
    return " ".join(texts)


def _host_files(reading, table, keeps_table):
    """Return the files of a host, and how it differs from them. C(keeps_table): without a new table, that of an earlier run stays."""
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


def _board(readings):
    """Return the board of the hosts, by the architecture of the first one."""
    for reading in readings.values():
        return BOARDS.get(reading["architecture"], BOARDS["aarch64"])
    return ""


def _of_hosts(texts_of, readings, npus):
    """Return what a function says about each host, with the host's name."""
    return [
        "%s: %s" % (name, text)
        for name in readings
        for text in texts_of(readings[name], npus[name])
    ]


def ascend_plan(readings, npus, wanted):
    """Judge driver, firmware and devices of all hosts with NPUs, and plan their environment and the rank table.

    C(readings) are results of M(trainyard.gpu.ascend_info), C(npus) of M(trainyard.gpu.npu_smi_info), by host in rank order. C(wanted) has C(versions) of
    C(driver) and C(firmware), empty for any, C(format) of the table, empty for none, C(format_problems), C(addresses) of all hosts with NPUs by name, and
    C(absent), those of them that are not in this run.

    Returns C(problems) that keep NPUs from working, C(warnings), C(hosts), by host C(files) and C(absent) for M(trainyard.gpu.managed_files), whether they
    C(differs) and the table does (C(table_differs)), the paths that are C(changed), and a C(summary), C(members) with C(name) and C(address), the C(format) of
    the table, empty if none is written, and C(board_id) for one of the old format.
    """
    problems = [
        fault
        for name, reading in readings.items()
        for fault in reading_faults(name, reading, ASCEND)
    ]
    problems += _of_hosts(host_problems, readings, npus)
    warnings = _of_hosts(host_warnings, readings, npus)
    problems += list(wanted["format_problems"]) + different(readings, wanted["versions"])
    # Hosts without a driver have no addresses, which would only repeat it.
    table, problem, warning = table_of(readings, npus, wanted) if not problems else (None, "", "")
    problems += [problem] if problem else []
    warnings += [warning] if warning else []
    # If hosts are missing in this run, or have problems, the table of an earlier run stays.
    keeps_table = bool(problems or warning)
    return {
        "problems": problems,
        "warnings": warnings,
        "hosts": {
            name: dict(
                _host_files(reading, table, keeps_table), summary=summary(reading, npus[name])
            )
            for name, reading in readings.items()
        },
        "board_id": _board(readings),
        "format": wanted["format"],
        "members": [
            {"name": name, "address": wanted["addresses"].get(name, "")} for name in readings
        ],
    }


def ascend_drift(plan, name, reading):
    """Return how a host differs from the plan: C(what), C(asked) and C(found) of each difference."""
    rows = [
        {"what": PART, "asked": "NPUs that work alike on all hosts", "found": text}
        for text in plan["problems"]
        if text.startswith(name + ": ") or text.partition(": ")[0] not in plan["hosts"]
    ]
    host = plan["hosts"][name]
    rows += [
        {
            "what": path,
            "asked": "as planned",
            "found": "changed" if path in reading["files"] else "missing",
        }
        for path in host["changed"]
    ]
    return rows + [{"what": path, "asked": "absent", "found": "present"} for path in host["absent"]]
