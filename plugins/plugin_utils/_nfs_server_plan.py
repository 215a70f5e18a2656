# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What an NFS server exports to which clients, what differs on the host, and conflicts.

Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._input_kinds import normal_path

if TYPE_CHECKING:
    from ansible_collections.trainyard.gpu.plugins.plugin_utils._cluster import Member

SETTINGS_FILE = "/etc/nfs.conf.d/trainyard.conf"
# A firewall does not resolve names.
_ADDRESS = re.compile(r"([0-9]+[.][0-9.]+|[0-9A-Fa-f]*:[0-9A-Fa-f:]*)(/[0-9]+)?$")


class Export(TypedDict, total=False):
    """An entry of nfs_server_exports. The keys apart from C(path) may lack."""

    path: str
    clients: list[str]
    options: list[str]
    full_access: bool


class Anonymous(TypedDict):
    """The user of root's files on the clients."""

    uid: int
    gid: int


class Settings(TypedDict):
    """Settings of the server. A number of 0 and an empty list request nothing."""

    threads: int
    lease_seconds: int
    grace_seconds: int
    versions: list[str]


class Conflicts(TypedDict):
    """Options of the exports that conflict with another setting or export."""

    #: Options that name the user of root's files. Only an export without full access may have them.
    anonymous: list[str]
    #: Options fsid that occur more than once.
    fsids: list[str]


class Served(TypedDict):
    """A folder that the server exports, with the clients and options of the request."""

    path: str
    clients: list[str]
    options: list[str]


class Wanted(TypedDict):
    """What one client gets, as nfs_server_info compares it."""

    path: str
    client: str
    options: list[str]


class Plan(TypedDict):
    """What role nfs_server does on a host."""

    #: The exports that have clients.
    served: list[Served]
    wanted: list[Wanted]
    #: Addresses and networks for which a firewall must be open.
    let_in: list[str]
    #: Exported folders, for shared_folders.
    folders: list[dict[str, Any]]
    #: Whether any setting is requested, and whether the running server has others.
    has_settings: bool
    settings_differ: bool
    #: Conflicts with other exports and with the folders' mounts, one sentence each.
    problems: list[str]


def _unique(names: Iterable[str]) -> list[str]:
    """Return the names, each once. Names of hosts have no case."""
    found: dict[str, str] = {}
    for name in names:
        found.setdefault(name.lower(), name)
    return list(found.values())


def squashes(options: Sequence[str]) -> bool:
    """Return whether an export maps root of the clients to another user."""
    return "no_root_squash" not in options or "all_squash" in options


def cluster_clients(
    members: list[Member], host: str, inventory_addresses: Iterable[str], own_clients: list[str]
) -> list[str]:
    """Return the addresses of the other members, sorted.

    The address of a member that does not answer is unknown, unless the inventory has it:
    C(inventory_addresses). The clients of an earlier run, C(own_clients), are then kept.
    """
    peers = [member for member in members if member["name"] != host]
    addresses = [member["address"] for member in peers if member["reachable"]] + list(
        inventory_addresses
    )
    if not all(member["reachable"] for member in peers):
        addresses += own_clients
    return sorted(_unique(address for address in addresses if address), key=str.lower)


def conflicts(exports: list[Export]) -> Conflicts:
    """Return the options of the exports that conflict with another setting or export.

    Returns C(anonymous), options that name the user of root's files in exports with full access,
    and C(fsids), options fsid that occur more than once. Both are empty without a conflict.
    """
    anonymous = [
        option
        for export in exports
        if export.get("full_access", True)
        for option in export.get("options") or []
        if re.match("anon[ug]id=", option)
    ]
    # exports(5): root means 0.
    fsids = [
        re.sub("=root$", "=0", option).lower()
        for export in exports
        for option in export.get("options") or []
        if option.startswith("fsid=")
    ]
    return {
        "anonymous": anonymous,
        "fsids": sorted({fsid for fsid in fsids if fsids.count(fsid) > 1}),
    }


def served(
    exports: list[Export],
    cluster: list[str],
    clients: Sequence[str],
    options: list[str],
    anonymous: Anonymous,
) -> list[Served]:
    """Return the exports that have clients.

    C(cluster) and C(clients) are clients of all exports, C(options) those of an export without
    options of its own.
    """
    found: list[Served] = []
    for export in exports:
        chosen = list(export.get("options") or options)
        allowed = _unique([*cluster, *clients, *(export.get("clients") or [])])
        if squashes(chosen) and not any(re.match("anon[ug]id=", option) for option in chosen):
            chosen += ["anonuid=%d" % anonymous["uid"], "anongid=%d" % anonymous["gid"]]
        if allowed:
            found.append({"path": export["path"], "clients": allowed, "options": chosen})
    return found


def folders(exports: list[Export], options: list[str], uid: int) -> list[dict[str, Any]]:
    """Return the exported folders for shared_folders.

    If root of the clients is mapped to another user, that user gets full access, unless disabled.
    """
    found = []
    for export in exports:
        folder: dict[str, Any] = {"path": export["path"]}
        if export.get("full_access") is not False and squashes(export.get("options") or options):
            folder.update(mode="2775", full_access_uid=uid)
        found.append(folder)
    return found


def _numbers(settings: Settings) -> dict[str, int]:
    """Return the requested settings that are numbers."""
    numbers = {
        "threads": settings["threads"],
        "lease_seconds": settings["lease_seconds"],
        "grace_seconds": settings["grace_seconds"],
    }
    return {name: number for name, number in numbers.items() if number > 0}


def settings_differ(found: dict[str, Any], settings: Settings) -> bool:
    """Return whether the running server has other settings than requested.

    Settings that are not requested may have any value.

    C(found) is the result of nfs_server_info.
    """
    nfsd = found.get("nfsd") or {}
    if not nfsd:
        return False
    if any(nfsd[name] != number for name, number in _numbers(settings).items()):
        return True
    if settings["versions"] and sorted(nfsd["versions"]) != sorted(settings["versions"]):
        return True
    return (SETTINGS_FILE in found["files"]) != has_settings(settings)


def has_settings(settings: Settings) -> bool:
    """Return whether any setting is requested."""
    return bool(_numbers(settings)) or settings["versions"] != []


def problems(found: dict[str, Any], exports: list[Export], require_mount: bool) -> list[str]:
    """Return the conflicts of the exports with what is on the host, one sentence each."""
    paths = [normal_path(export["path"]) for export in exports]
    texts = []
    if found.get("error"):
        texts.append("%s: correct that file, because exportfs would reject it" % found["error"])
    texts += [
        "%s also exports a folder of nfs_server_exports: remove it there or here" % file
        for file in _unique(
            export["file"]
            for export in found.get("others", ())
            if normal_path(export["path"]) in paths
        )
    ]
    texts += [
        "%s is itself an NFS mount: unmount it, or set its server in nfs_client_mounts" % path
        for path in found.get("mounted_by_nfs", ())
    ]
    if require_mount:
        texts += [
            (
                "%s is on the root file system: mount a disk there, or set "
                "nfs_server_require_mount to false"
            )
            % path
            for path, mount in found.get("mounts", {}).items()
            if mount == "/"
        ]
    return texts


class Requested(NamedTuple):
    """What the variables of role nfs_server request of a host."""

    exports: list[Export]
    #: The hosts of the cluster, which are clients.
    members: list[Member]
    #: Inventory name of the server.
    host: str
    #: Options of an export without options of its own.
    options: list[str]
    anonymous: Anonymous
    settings: Settings
    #: Addresses of members that the inventory has.
    inventory_addresses: Sequence[str] = ()
    #: Clients of all exports beside the members.
    clients: Sequence[str] = ()
    #: Whether the role opens the firewall.
    firewall: bool = True
    require_mount: bool = False


def nfs_server_plan(found: dict[str, Any], requested: Requested) -> Plan:
    """Return the plan.

    C(found) is the result of nfs_server_info, with the clients of an earlier run (C(own_clients));
    empty before the host is read.
    """
    cluster = cluster_clients(
        requested.members,
        requested.host,
        requested.inventory_addresses,
        found.get("own_clients") or [],
    )
    exports, options, anonymous = requested.exports, requested.options, requested.anonymous
    exported = served(exports, cluster, requested.clients, options, anonymous)
    with_clients: list[Wanted] = [
        {"path": export["path"], "client": client, "options": export["options"]}
        for export in exported
        for client in export["clients"]
    ]
    let_in = []
    if requested.firewall:
        clients = _unique(entry["client"] for entry in with_clients)
        let_in = [client for client in clients if _ADDRESS.match(client)]
    return {
        "served": exported,
        "wanted": with_clients,
        "let_in": let_in,
        "folders": folders(exports, options, anonymous["uid"]),
        "has_settings": has_settings(requested.settings),
        "settings_differ": settings_differ(found, requested.settings),
        "problems": problems(found, exports, requested.require_mount),
    }


def decide_nfs_server_plan(found: dict[str, Any], requested: Mapping[str, Any]) -> Plan:
    """Return what a host exports, to whom, and how it differs from that.

    C(found) is the result of M(trainyard.gpu.nfs_server_info), empty before the host is read; then
    C(problems) and C(settings_differ) are of no use. C(requested) has the fields of Requested by
    name.

    Returns Plan, which explains each key. Raises TypeError for an unknown or a missing field.
    """
    return nfs_server_plan(found, Requested(**requested))
