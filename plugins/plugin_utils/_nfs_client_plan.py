# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The NFS mounts of a host: what is requested, what differs on the host, and conflicts. Pure functions."""

from __future__ import annotations

import hashlib
import re

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


def nfs_mounts(mounts, host, members=(), options=("hard",), version="", nconnect=1):
    """Return the mounts of a host, with source, options and names of units; see the filter.

    With C(nconnect) 0 the number of hosts decides about the connections. A mount in use keeps those that it has: then C(at_next_mount) has the option.
    """
    automatic = ["nconnect=%d" % CONNECTIONS] if len(members) > SMALL_CLUSTER else []
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
        chosen = ["_netdev", "nofail"] + list(mount.get("options") or options)
        given = {option.partition("=")[0] for option in chosen}
        chosen += [
            option for option, opposite in SAFE_OPTIONS.items() if not given & {option, opposite}
        ]
        if version and not version_in(chosen):
            chosen.append("vers=%s" % version)
        if int(nconnect) > 1 and "nconnect" not in given:
            chosen.append("nconnect=%d" % int(nconnect))
        later = []
        # Other transports than TCP are the choice of the site, and so are their connections.
        if int(nconnect) == 0 and not given & {"nconnect", "udp", "rdma", "proto"}:
            later = automatic
            chosen += later
        if not given & {"retry", "bg", "fg"}:
            # A week in minutes: at boot the server may take long to start, and a failed unit stays failed.
            chosen.append("retry=10080")
        found.append(
            {
                "target": target,
                "source": "%s:%s" % ("[%s]" % server if ":" in server else server, path),
                "server": server,
                "options": chosen,
                "unit": unit_name(target, "mount"),
                "automount_unit": unit_name(target, "automount"),
                **({"at_next_mount": later} if later else {}),
            }
        )
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


def nfs_client_plan(found, mounts, unit, timeout=0, waited=(), now=()):
    """Return the plan; see the filter. C(mounts) are those of nfs_mounts.

    C(found) is the result of nfs_mount_info. It is empty before the host is read, and then only C(question) and C(files) are of use.
    """
    states = {mount["target"]: mount for mount in found.get("mounts") or []}
    placed = list(found.get("placed") or [])
    # The site's own mounts are left alone, but they must match the configuration.
    ours = [mount for mount in mounts if not states.get(mount["target"], {}).get("configured_in")]
    files, our_files = unit_files(mounts, unit), unit_files(ours, unit)
    gone = leaving(placed, mounts, unit)
    unmounted = {
        target for target, mount in states.items() if mount["state"] in ("absent", "stale")
    } | {mount["target"] for mount in gone}
    # A hanging mount may be stale when its server answers again.
    stale = [mount["target"] for mount in [*states.values(), *waited] if mount["state"] == "stale"]
    # A mount point below the root may be mounted into the container itself, which a lazy unmount does not reach.
    first_folders = [target for target in stale if re.match(r"/[^/]+$", target)]
    lines = (
        [dict(mount, options=mount["options"] + FSTAB_OPTIONS) for mount in ours]
        if unit == "fstab"
        else []
    )
    right = [
        entry["target"]
        for entry in placed
        if entry["unit"] == "fstab"
        and any(
            line["target"] == entry["target"] and line["options"] == list(entry["options"])
            for line in lines
        )
    ]
    checksums = found.get("files") or {}
    kind = "automount" if unit == "automount" else "mount"

    # Jobs keep their files open, so these are added to the mount as it is.
    tightened = {
        target: mount["differences"]
        for target, mount in states.items()
        if mount["state"] == "differs"
        and mount["differences"]
        and set(mount["differences"]) <= set(SAFE_OPTIONS)
    }

    def must_restart(target):
        state = states.get(target, {})
        if target in tightened:
            return False
        return (
            state.get("state") == "differs"
            and bool(state["differences"])
            or target in first_folders
        )

    return {
        "question": [_question(mount) for mount in mounts],
        "files": files,
        "leaving": gone,
        "problems": problems(found.get("mounts") or [], {mount["target"] for mount in gone}),
        "as_requested": (
            all(
                hashlib.sha256(file["content"].encode("utf-8")).hexdigest()
                == checksums.get(file["path"])
                for file in our_files
            )
            and sorted(right) == sorted(line["target"] for line in lines)
            and not found.get("reload_needed")
            and all(mount["state"] == "mounted" for mount in states.values())
            and all(
                kind in states.get(mount["target"], {}).get("unit_enabled", ()) for mount in ours
            )
        ),
        "hanging": [
            _question(mount)
            for mount in mounts
            if states.get(mount["target"], {}).get("state") == "hangs"
        ],
        "tightened": [
            {"target": mount["target"], "options": tightened[mount["target"]]}
            for mount in ours
            if mount["target"] in tightened
        ],
        "detached": [target for target in stale if target not in first_folders],
        "points": [
            {"path": mount["target"], "immutable": True}
            for mount in ours
            if mount["target"] in unmounted
        ],
        "our_files": our_files,
        "lines": lines,
        "units": [
            {
                "target": mount["target"],
                "name": mount["automount_unit" if unit == "automount" else "unit"],
                "state": "restarted" if must_restart(mount["target"]) else "started",
            }
            for mount in ours
        ],
        "wrong": not_as_requested(now, timeout),
    }
