# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The NFS mounts of a host: what is requested, what differs on the host, and conflicts. Pure functions."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from ansible_collections.trainyard.gpu.plugins.module_utils._input_kinds import normal_path
from ansible_collections.trainyard.gpu.plugins.module_utils._nfs import unit_name
from ansible_collections.trainyard.gpu.plugins.module_utils._nfs_options import version_in
from ansible_collections.trainyard.gpu.plugins.plugin_utils._quoting import quoted

UNITS = "/etc/systemd/system"
# People write on the share, so no file on it gives rights of another, unless the site wants it.
SAFE_OPTIONS = {"nosuid": "suid", "nodev": "dev"}
#: A cluster with more hosts has this many connections of each client, if the site has not set a number.
SMALL_CLUSTER, CONNECTIONS = 4, 4
# Options of a line in fstab that the kernel does not show.
FSTAB_OPTIONS = ["x-trainyard.placed", "x-systemd.mount-timeout=infinity"]

_MOUNT = """\
# Placed by trainyard.gpu.nfs_client.
[Unit]
Description=Shared folder %(target)s
Wants=network-online.target
After=network-online.target

[Mount]
What=%(source)s
Where=%(target)s
Type=nfs
Options=%(options)s
# The mount program tries again until the server is there; to give up is not systemd's to decide.
TimeoutSec=infinity
"""
_AUTOMOUNT = """\
# Placed by trainyard.gpu.nfs_client.
[Unit]
Description=Shared folder %(target)s at its first access

[Automount]
Where=%(target)s
"""
_INSTALL = """
[Install]
WantedBy=remote-fs.target
"""


def _options(mount: dict, options: Sequence[str], version: str, connections: int) -> list[str]:
    """Return the options of a mount: its own or the default C(options), and what makes it safe."""
    chosen = ["_netdev", "nofail"] + list(mount.get("options") or options)
    given = _option_names(chosen)
    chosen += [
        option for option, opposite in SAFE_OPTIONS.items() if not given & {option, opposite}
    ]
    if version and not version_in(chosen):
        chosen.append("vers=%s" % version)
    if connections > 1 and "nconnect" not in given:
        chosen.append("nconnect=%d" % connections)
    return chosen


def _option_names(options: list[str]) -> set[str]:
    return {option.partition("=")[0] for option in options}


def nfs_mounts(mounts, host, members=(), options=("hard",), version="", nconnect=1):
    """Return the mounts of a host, with source, options and names of units; see the filter.

    With C(nconnect) 0 the number of hosts decides about the connections. A mount in use keeps those that it has: then C(at_next_mount) has the option.
    """
    connections, automatic = int(nconnect), []
    if connections == 0 and len(members) > SMALL_CLUSTER:
        automatic = ["nconnect=%d" % CONNECTIONS]
    by_name = {}
    for member in members:
        by_name[member["name"]] = member
        if member["address"]:
            by_name[member["address"]] = member
    found = []
    for mount in mounts:
        member = by_name.get(mount["server"])
        if member and member["name"] == host:
            continue
        server = (member["address"] or member["name"]) if member else mount["server"]
        # In the kernel's notation.
        path, target = normal_path(mount["path"]), normal_path(mount.get("target") or mount["path"])
        chosen = _options(mount, options, version, connections)
        # Other transports than TCP are the choice of the site, and so are their connections.
        later = automatic
        if _option_names(chosen) & {"nconnect", "udp", "rdma", "proto"}:
            later = []
        chosen += later
        if not _option_names(chosen) & {"retry", "bg", "fg"}:
            # A week in minutes: at boot the server may take long to start, and a failed unit stays failed.
            chosen.append("retry=10080")
        entry = {
            "target": target,
            "source": "%s:%s" % ("[%s]" % server if ":" in server else server, path),
            "server": server,
            "options": chosen,
            "unit": unit_name(target, "mount"),
            "automount_unit": unit_name(target, "automount"),
        }
        if later:
            entry["at_next_mount"] = later
        found.append(entry)
    return found


def _question(mount: dict) -> dict:
    """What a mount that is mounted must have."""
    later = mount.get("at_next_mount") or []
    options = [option for option in mount["options"] if option not in later]
    return {"target": mount["target"], "source": mount["source"], "options": options}


def unit_files(mounts, unit):
    """Return C(path) and C(content) of the unit files of mounts; none for C(fstab). QuoteError: a value that a unit file cannot represent."""
    files = []
    for mount in mounts if unit != "fstab" else ():
        words = {
            "target": quoted(mount["target"], "systemd_line"),
            "source": quoted(mount["source"], "systemd_line"),
            "options": quoted(",".join(mount["options"]), "systemd_line"),
        }
        files.append(
            {
                "path": "%s/%s" % (UNITS, mount["unit"]),
                "content": _MOUNT % words + (_INSTALL if unit == "mount" else ""),
            }
        )
        if unit == "automount":
            files.append(
                {
                    "path": "%s/%s" % (UNITS, mount["automount_unit"]),
                    "content": _AUTOMOUNT % words + _INSTALL,
                }
            )
    return files


def leaving(placed, mounts, unit):
    """Return the mounts of an earlier run that are no longer configured, or whose configuration differs."""
    sources = {mount["target"]: mount["source"] for mount in mounts}
    return [
        entry
        for entry in placed
        if entry["unit"] != unit or sources.get(entry["target"]) != entry["source"]
    ]


def problems(found, gone):
    """Return the conflicts of mounts with what is on the host, one sentence each. Targets in C(gone) are unmounted first."""
    texts = []
    for mount in found:
        state, target = mount["state"], mount["target"]
        if state == "other" and target not in gone:
            texts.append(
                "%s (%s) is already mounted at %s: unmount it, or set another target"
                % (mount["source"], mount["type"], target)
            )
        elif (
            mount["configured_in"]
            and state != "hangs"
            and (state != "mounted" or not mount["unit_enabled"])
        ):
            why = {
                "absent": "nothing is mounted there",
                "stale": "the mount is stale",
                "differs": "without %s" % ", ".join(mount["differences"]),
                "mounted": "not at boot",
                "other": "%s is mounted there" % mount["source"],
            }[state]
            texts.append(
                "%s has %s, but %s: correct and mount it, or remove it there, so that this role mounts it"
                % (mount["configured_in"], target, why)
            )
        elif state == "absent" and mount["entries"]:
            texts.append(
                "%s is not empty (%s), and a mount would hide these files: move them"
                % (target, ", ".join(mount["entries"]))
            )
        elif (
            state == "absent"
            and mount["exists"]
            and mount["error"]
            and not mount["error"].startswith("systemd")
        ):
            texts.append("%s is not a folder (%s): remove or rename it" % (target, mount["error"]))
    return texts


def not_as_requested(found, timeout):
    """Return a sentence for each mount that is not mounted as requested after C(timeout) seconds."""
    texts = []
    for mount in found:
        if mount["state"] == "mounted":
            continue
        what = {
            "absent": "nothing is mounted",
            "hangs": "the server does not answer",
            "stale": "the file handle is stale",
            "differs": "these options are missing: %s" % ", ".join(mount["differences"]),
            "other": "the source is %s" % mount["source"],
        }[mount["state"]]
        texts.append(
            "'%s' is not mounted as requested after %s s: %s%s."
            % (mount["target"], timeout, what, " (%s)" % mount["error"] if mount["error"] else "")
        )
    return texts


def _in_fstab(placed: list[dict], lines: list[dict]) -> list[str]:
    """Return the targets whose line in fstab has the options of C(lines)."""
    wanted = {line["target"]: line["options"] for line in lines}
    return [
        entry["target"]
        for entry in placed
        if entry["unit"] == "fstab" and wanted.get(entry["target"]) == list(entry["options"])
    ]


def _has_files(found: dict, files: list[dict]) -> bool:
    """Return whether the host has these files with their content, and systemd has read them."""
    checksums = found.get("files") or {}
    return not found.get("reload_needed") and all(
        hashlib.sha256(file["content"].encode("utf-8")).hexdigest() == checksums.get(file["path"])
        for file in files
    )


def _only_tightened(states: dict) -> dict[str, list[str]]:
    """Return the options that are added to mounts as they are, by target, because jobs keep their files open."""
    return {
        target: mount["differences"]
        for target, mount in states.items()
        if mount["state"] == "differs"
        and mount["differences"]
        and set(mount["differences"]) <= set(SAFE_OPTIONS)
    }


def _fstab_lines(mounts: list[dict]) -> list[dict]:
    return [dict(mount, options=mount["options"] + FSTAB_OPTIONS) for mount in mounts]


def _restarted(states: dict, tightened: dict, first_folders: list[str]) -> set[str]:
    """Return the targets that are mounted again."""
    differ = {
        target
        for target, mount in states.items()
        if mount["state"] == "differs" and mount["differences"]
    }
    return (differ | set(first_folders)) - set(tightened)


def _is_as_requested(found: dict, ours: list[dict], kind: str, lines: list[dict]) -> bool:
    """Return whether a host has the mounts C(ours), now and at its next boot.

    C(kind) is that of their units, mount or automount, and C(lines) are those of fstab.
    """
    states = _by_target(found.get("mounts") or [])
    if sorted(_in_fstab(found.get("placed") or [], lines)) != sorted(_by_target(lines)):
        return False
    return all(mount["state"] == "mounted" for mount in states.values()) and all(
        kind in states.get(mount["target"], {}).get("unit_enabled", ()) for mount in ours
    )


def _by_target(mounts: list[dict]) -> dict[str, dict]:
    return {mount["target"]: mount for mount in mounts}


def _stale(mounts: list[dict], waited: Sequence[dict]) -> tuple[list[str], list[str]]:
    """Return (targets to detach, targets to mount again) of the stale mounts.

    A mount point below the root may be mounted into the container itself, which a lazy unmount does not reach.
    """
    # A hanging mount may be stale when its server answers again.
    stale = [mount["target"] for mount in [*mounts, *waited] if mount["state"] == "stale"]
    first_folders = [target for target in stale if re.match(r"/[^/]+$", target)]
    return [target for target in stale if target not in first_folders], first_folders


def nfs_client_plan(
    found: dict,
    mounts: list[dict],
    unit: str,
    timeout: int = 0,
    waited: Sequence[dict] = (),
    now: Sequence[dict] = (),
) -> dict:
    """Return the plan; see the filter. C(mounts) are those of nfs_mounts.

    C(found) is the result of nfs_mount_info. It is empty before the host is read, and then only C(question) and C(files) are of use.
    """
    states = _by_target(found.get("mounts") or [])
    # The site's own mounts are left alone, but they must match the configuration.
    ours = [mount for mount in mounts if not states.get(mount["target"], {}).get("configured_in")]
    targets = [mount["target"] for mount in ours]
    our_files = unit_files(ours, unit)
    gone = leaving(list(found.get("placed") or []), mounts, unit)
    unmounted = set(_by_target(gone)) | _in_state(states, "absent") | _in_state(states, "stale")
    detached, first_folders = _stale(list(states.values()), waited)
    hanging = _in_state(states, "hangs")
    lines = _fstab_lines(ours) if unit == "fstab" else []
    tightened = _only_tightened(states)
    restarted = _restarted(states, tightened, first_folders)
    kind = "automount" if unit == "automount" else "mount"
    return {
        "question": [_question(mount) for mount in mounts],
        "files": unit_files(mounts, unit),
        "leaving": gone,
        "problems": problems(found.get("mounts") or [], set(_by_target(gone))),
        "as_requested": _has_files(found, our_files) and _is_as_requested(found, ours, kind, lines),
        "hanging": [_question(mount) for mount in mounts if mount["target"] in hanging],
        "tightened": [
            {"target": target, "options": tightened[target]}
            for target in targets
            if target in tightened
        ],
        "detached": detached,
        "points": [
            {"path": target, "immutable": True} for target in targets if target in unmounted
        ],
        "our_files": our_files,
        "lines": lines,
        "units": [_unit_state(mount, kind, mount["target"] in restarted) for mount in ours],
        "wrong": not_as_requested(now, timeout),
    }


def _in_state(states: dict, state: str) -> set[str]:
    """Return the targets of the mounts in a state."""
    return {target for target, mount in states.items() if mount["state"] == state}


def _unit_state(mount: dict, kind: str, is_restarted: bool) -> dict[str, str]:
    """Return the unit of a mount, C(kind) mount or automount, and what becomes of it."""
    name = "automount_unit" if kind == "automount" else "unit"
    state = "restarted" if is_restarted else "started"
    return {"target": mount["target"], "name": mount[name], "state": state}


def decide_nfs_client_plan(
    found: dict,
    mounts: list[dict],
    unit: str,
    timeout: int = 0,
    waited: dict | None = None,
    now: dict | None = None,
) -> dict:
    """As nfs_client_plan. C(waited) and C(now) are results of nfs_mount_info, empty before it has run. Raises QuoteError."""
    readings = [(reading or {}).get("mounts") or [] for reading in (waited, now)]
    return nfs_client_plan(found, mounts, unit, timeout, *readings)
