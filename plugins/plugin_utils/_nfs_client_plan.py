# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The NFS mounts of a host: what is requested, what differs on the host, and conflicts.

Pure functions.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._input_kinds import normal_path
from ansible_collections.trainyard.gpu.plugins.module_utils._nfs import unit_name
from ansible_collections.trainyard.gpu.plugins.module_utils._nfs_options import version_in
from ansible_collections.trainyard.gpu.plugins.plugin_utils._quoting import quoted

if TYPE_CHECKING:
    from ansible_collections.trainyard.gpu.plugins.plugin_utils._cluster import Member

UNITS = "/etc/systemd/system"
# People write on the share, so no file on it gives rights of another, unless the site wants it.
SAFE_OPTIONS = {"nosuid": "suid", "nodev": "dev"}
#: A cluster with more hosts has this many connections of each client, if the site has not set a
#: number.
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


class _Mount(TypedDict):
    target: str
    source: str
    server: str
    options: list[str]
    #: Names of its units.
    unit: str
    automount_unit: str


class Mount(_Mount, total=False):
    """A requested mount of a host."""

    #: Those of its options that a mount in use gets only when it is mounted again.
    at_next_mount: list[str]


class FoundMount(TypedDict):
    """A mount as nfs_mount_info returns it; its documentation explains each key."""

    target: str
    state: str
    error: str
    source: str
    type: str
    options: list[str]
    differences: list[str]
    exists: bool
    entries: list[str]
    configured_in: str
    unit_enabled: list[str]


class Placed(TypedDict):
    """A mount of an earlier run, as nfs_mount_info returns it."""

    target: str
    source: str
    #: C(mount), C(automount) or C(fstab).
    unit: str
    units: list[str]
    files: list[str]
    options: list[str]


class Question(TypedDict):
    """A mount that nfs_mount_info is to look for."""

    target: str
    source: str
    options: list[str]


class File(TypedDict):
    """A unit file for managed_files."""

    path: str
    content: str


class Plan(TypedDict):
    """What role nfs_client does on a host."""

    question: list[Question]
    #: Unit files of all mounts; empty for C(fstab).
    files: list[File]
    #: Mounts of an earlier run that are no longer configured, or whose configuration differs.
    leaving: list[Placed]
    #: Conflicts with the site's own mounts and with files in the mount points, one sentence each.
    problems: list[str]
    #: Whether everything is mounted and configured as requested.
    as_requested: bool
    #: Entries of C(question) whose server does not answer.
    hanging: list[Question]
    #: C(target) and C(options) of mounts that only lack these options, which are added while they
    #: are in use.
    tightened: list[dict[str, Any]]
    #: Mount points of stale mounts to unmount lazily.
    detached: list[str]
    #: Mount points while nothing is mounted, for shared_folders.
    points: list[dict[str, Any]]
    #: Entries of C(files) that are not configured by the site itself.
    our_files: list[File]
    #: Mounts with the options of their lines in /etc/fstab; empty for units.
    lines: list[Mount]
    #: Units with C(target), C(name) and C(state), started or restarted.
    units: list[dict[str, str]]
    #: One sentence for each mount that is not mounted as requested at the end.
    wrong: list[str]


def _options(
    mount: dict[str, Any], options: Sequence[str], version: str, connections: int
) -> list[str]:
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


def _members_by_name(members: Sequence[Member]) -> dict[str, Member]:
    """Return the members by their names and by their addresses."""
    by_name = {}
    for member in members:
        by_name[member["name"]] = member
        if member["address"]:
            by_name[member["address"]] = member
    return by_name


def _at_next_mount(chosen: list[str], automatic: list[str]) -> list[str]:
    """Return the options of C(automatic) that a mount with the options C(chosen) takes.

    Other transports than TCP are the choice of the site, and so are their connections.
    """
    if _option_names(chosen) & {"nconnect", "udp", "rdma", "proto"}:
        return []
    return automatic


def _mount(mount: dict[str, Any], server: str, chosen: list[str], later: list[str]) -> Mount:
    """Return one of nfs_mounts.

    C(chosen) are its options, apart from those C(later), which it has from its next mount on.
    """
    # In the kernel's notation.
    path, target = normal_path(mount["path"]), normal_path(mount.get("target") or mount["path"])
    options = chosen + later
    if not _option_names(options) & {"retry", "bg", "fg"}:
        # A week in minutes: at boot the server may take long to start, and a failed unit stays
        # failed.
        options.append("retry=10080")
    entry: Mount = {
        "target": target,
        "source": "%s:%s" % ("[%s]" % server if ":" in server else server, path),
        "server": server,
        "options": options,
        "unit": unit_name(target, "mount"),
        "automount_unit": unit_name(target, "automount"),
    }
    if later:
        entry["at_next_mount"] = later
    return entry


def nfs_mounts(
    mounts: list[dict[str, Any]],
    host: str,
    members: Sequence[Member] = (),
    options: Sequence[str] = ("hard",),
    version: str = "",
    nconnect: int = 1,
) -> list[Mount]:
    """Return the mounts of a host, with source, options and names of units.

    C(mounts) have server, path, target (default: path) and options (default: C(options)). A server
    may be a member of the cluster, by name or address; its own folders are left out. C(version) and
    C(nconnect) are for mounts whose options do not have them. With C(nconnect) 0 the number of
    hosts decides about the connections. A mount in use keeps those that it has: then
    C(at_next_mount) has the option.
    """
    connections, automatic = int(nconnect), []
    if connections == 0 and len(members) > SMALL_CLUSTER:
        automatic = ["nconnect=%d" % CONNECTIONS]
    by_name = _members_by_name(members)
    found = []
    for mount in mounts:
        member = by_name.get(mount["server"])
        if member and member["name"] == host:
            continue
        server = (member["address"] or member["name"]) if member else mount["server"]
        chosen = _options(mount, options, version, connections)
        found.append(_mount(mount, server, chosen, _at_next_mount(chosen, automatic)))
    return found


def _question(mount: Mount) -> Question:
    """What a mount that is mounted must have."""
    later = mount.get("at_next_mount") or []
    options = [option for option in mount["options"] if option not in later]
    return {"target": mount["target"], "source": mount["source"], "options": options}


def unit_files(mounts: list[Mount], unit: str) -> list[File]:
    """Return C(path) and C(content) of the unit files of mounts; none for C(fstab).

    QuoteError: a value that a unit file cannot represent.
    """
    files: list[File] = []
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


def leaving(placed: list[Placed], mounts: list[Mount], unit: str) -> list[Placed]:
    """Return the mounts of an earlier run that are no longer configured, or whose configuration
    differs.
    """
    sources = {mount["target"]: mount["source"] for mount in mounts}
    return [
        entry
        for entry in placed
        if entry["unit"] != unit or sources.get(entry["target"]) != entry["source"]
    ]


def _problem_with_entry(mount: FoundMount) -> str:
    """Return why a mount that the site has configured itself is not mounted as requested."""
    why = {
        "absent": "nothing is mounted there",
        "stale": "the mount is stale",
        "differs": "without %s" % ", ".join(mount["differences"]),
        "mounted": "not at boot",
        "other": "%s is mounted there" % mount["source"],
    }[mount["state"]]
    return (
        "%s has %s, but %s: correct and mount it, or remove it there, so that this role mounts it"
        % (mount["configured_in"], mount["target"], why)
    )


def _problem_with_folder(mount: FoundMount) -> str:
    """Return why nothing can be mounted on a folder; empty if it can."""
    target, error = mount["target"], mount["error"]
    if mount["entries"]:
        return "%s is not empty (%s), and a mount would hide these files: move them" % (
            target,
            ", ".join(mount["entries"]),
        )
    if mount["exists"] and error and not error.startswith("systemd"):
        return "%s is not a folder (%s): remove or rename it" % (target, error)
    return ""


def _problem(mount: FoundMount, gone: set[str]) -> str:
    state, target = mount["state"], mount["target"]
    if state == "other" and target not in gone:
        return "%s (%s) is already mounted at %s: unmount it, or set another target" % (
            mount["source"],
            mount["type"],
            target,
        )
    if mount["configured_in"] and state != "hangs":
        if state != "mounted" or not mount["unit_enabled"]:
            return _problem_with_entry(mount)
    return _problem_with_folder(mount) if state == "absent" else ""


def problems(found: list[FoundMount], gone: set[str]) -> list[str]:
    """Return the conflicts of mounts with what is on the host, one sentence each.

    Targets in C(gone) are unmounted first.
    """
    texts = [_problem(mount, gone) for mount in found]
    return [text for text in texts if text]


def not_as_requested(found: Sequence[FoundMount], timeout: int) -> list[str]:
    """Return a sentence for each mount that is not mounted as requested after C(timeout)
    seconds.
    """
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


def _in_fstab(placed: list[Placed], lines: list[Mount]) -> list[str]:
    """Return the targets whose line in fstab has the options of C(lines)."""
    requested = {line["target"]: line["options"] for line in lines}
    return [
        entry["target"]
        for entry in placed
        if entry["unit"] == "fstab" and requested.get(entry["target"]) == list(entry["options"])
    ]


def _has_files(found: dict[str, Any], files: list[File]) -> bool:
    """Return whether the host has these files with their content, and systemd has read them."""
    checksums = found.get("files") or {}
    return not found.get("reload_needed") and all(
        hashlib.sha256(file["content"].encode("utf-8")).hexdigest() == checksums.get(file["path"])
        for file in files
    )


def _only_tightened(states: dict[str, FoundMount]) -> dict[str, list[str]]:
    """Return the options that are added to mounts as they are, by target, because jobs keep their
    files open.
    """
    return {
        target: mount["differences"]
        for target, mount in states.items()
        if mount["state"] == "differs"
        and mount["differences"]
        and set(mount["differences"]) <= set(SAFE_OPTIONS)
    }


def _fstab_lines(mounts: list[Mount]) -> list[Mount]:
    return [{**mount, "options": mount["options"] + FSTAB_OPTIONS} for mount in mounts]


def _restarted(
    states: dict[str, FoundMount], tightened: dict[str, list[str]], first_folders: list[str]
) -> set[str]:
    """Return the targets that are mounted again."""
    differ = {
        target
        for target, mount in states.items()
        if mount["state"] == "differs" and mount["differences"]
    }
    return (differ | set(first_folders)) - set(tightened)


def _is_as_requested(
    found: dict[str, Any], ours: list[Mount], kind: str, lines: list[Mount]
) -> bool:
    """Return whether a host has the mounts C(ours), now and at its next boot.

    C(kind) is that of their units, mount or automount, and C(lines) are those of fstab.
    """
    states = _by_target(found.get("mounts") or [])
    in_fstab = sorted(_in_fstab(found.get("placed") or [], lines))
    if in_fstab != sorted({line["target"] for line in lines}):
        return False
    enabled = {target: mount["unit_enabled"] for target, mount in states.items()}
    return all(mount["state"] == "mounted" for mount in states.values()) and all(
        kind in enabled.get(mount["target"], ()) for mount in ours
    )


def _by_target(found: list[FoundMount]) -> dict[str, FoundMount]:
    return {mount["target"]: mount for mount in found}


def _stale(mounts: list[FoundMount], waited: Sequence[FoundMount]) -> tuple[list[str], list[str]]:
    """Return (targets to detach, targets to mount again) of the stale mounts.

    A mount point below the root may be mounted into the container itself, which a lazy unmount does
    not reach.
    """
    # A hanging mount may be stale when its server answers again.
    stale = [mount["target"] for mount in [*mounts, *waited] if mount["state"] == "stale"]
    first_folders = [target for target in stale if re.match(r"/[^/]+$", target)]
    return [target for target in stale if target not in first_folders], first_folders


def nfs_client_plan(
    found: dict[str, Any],
    mounts: list[Mount],
    unit: str,
    timeout: int = 0,
    waited: Sequence[FoundMount] = (),
    now: Sequence[FoundMount] = (),
) -> Plan:
    """Return the plan.

    C(mounts) are those of nfs_mounts, and C(unit) is the kind of their units: C(mount),
    C(automount) or C(fstab).

    C(found) is the result of nfs_mount_info. It is empty before the host is read, and then only
    C(question) and C(files) are of use. C(waited) are the mounts that were read again because their
    server did not answer, C(now) those at the end, C(timeout) seconds after they were requested.
    """
    states = _by_target(found.get("mounts") or [])
    ours = _without_those_of_the_site(mounts, states)
    targets = [mount["target"] for mount in ours]
    our_files = unit_files(ours, unit)
    gone = leaving(list(found.get("placed") or []), mounts, unit)
    gone_targets = {mount["target"] for mount in gone}
    unmounted = gone_targets | _in_state(states, "absent") | _in_state(states, "stale")
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
        "problems": problems(found.get("mounts") or [], gone_targets),
        "as_requested": _has_files(found, our_files) and _is_as_requested(found, ours, kind, lines),
        "hanging": [_question(mount) for mount in mounts if mount["target"] in hanging],
        "tightened": _in_order(tightened, targets),
        "detached": detached,
        "points": _points([target for target in targets if target in unmounted]),
        "our_files": our_files,
        "lines": lines,
        "units": [_unit_state(mount, kind, mount["target"] in restarted) for mount in ours],
        "wrong": not_as_requested(now, timeout),
    }


def _without_those_of_the_site(mounts: list[Mount], states: dict[str, FoundMount]) -> list[Mount]:
    """Return the mounts that the role manages.

    It leaves the site's own alone, but they must match the configuration.
    """
    of_the_site = {target for target, mount in states.items() if mount["configured_in"]}
    return [mount for mount in mounts if mount["target"] not in of_the_site]


def _in_order(options: dict[str, list[str]], targets: list[str]) -> list[dict[str, Any]]:
    """Return C(target) and C(options) of those mounts that have options here, in the order of the
    targets.
    """
    return [
        {"target": target, "options": options[target]} for target in targets if target in options
    ]


def _points(targets: list[str]) -> list[dict[str, Any]]:
    """Return mount points for shared_folders. Nobody can write there while nothing is mounted."""
    return [{"path": target, "immutable": True} for target in targets]


def _in_state(states: dict[str, FoundMount], state: str) -> set[str]:
    """Return the targets of the mounts in a state."""
    return {target for target, mount in states.items() if mount["state"] == state}


def _unit_state(mount: Mount, kind: str, is_restarted: bool) -> dict[str, str]:
    """Return the unit of a mount, C(kind) mount or automount, and what becomes of it."""
    name = mount["automount_unit"] if kind == "automount" else mount["unit"]
    state = "restarted" if is_restarted else "started"
    return {"target": mount["target"], "name": name, "state": state}


class Found(TypedDict, total=False):
    """Results of M(trainyard.gpu.nfs_mount_info), which lack or are empty before it has run:
    C(first), before anything is changed, C(waited), of mounts that were read again because their
    server did not answer, and C(last).
    """

    first: dict[str, Any]
    waited: dict[str, Any]
    last: dict[str, Any]


class _Requested(TypedDict):
    #: Those of decision C(nfs_mounts).
    mounts: list[Mount]
    #: Kind of their units: mount, automount or fstab.
    unit: str


class Requested(_Requested, total=False):
    """What the variables of role nfs_client request."""

    #: Seconds that a mount may take.
    timeout: int


def decide_nfs_client_plan(found: Found, requested: Requested) -> Plan:
    """Return the mounts of a host, their units, and how the host differs from that.

    Before the host is read, only C(question) and C(files) are of use. Returns Plan, which explains
    each key. Raises QuoteError for a value that a unit cannot have.
    """
    waited = found.get("waited", {}).get("mounts") or []
    last = found.get("last", {}).get("mounts") or []
    return nfs_client_plan(
        found.get("first", {}),
        requested["mounts"],
        requested["unit"],
        requested.get("timeout", 0),
        waited,
        last,
    )
