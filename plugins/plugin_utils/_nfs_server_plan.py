# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What an NFS server exports to which clients, what differs on the host, and conflicts. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ansible_collections.trainyard.gpu.plugins.module_utils._input_kinds import normal_path

SETTINGS_FILE = "/etc/nfs.conf.d/trainyard.conf"
# A firewall does not resolve names.
_ADDRESS = re.compile(r"([0-9]+[.][0-9.]+|[0-9A-Fa-f]*:[0-9A-Fa-f:]*)(/[0-9]+)?$")


def _unique(names):
    """Return the names, each once. Names of hosts have no case."""
    found = {}
    for name in names:
        found.setdefault(name.lower(), name)
    return list(found.values())


def squashes(options):
    """Return whether an export maps root of the clients to another user."""
    return "no_root_squash" not in options or "all_squash" in options


def cluster_clients(members, host, inventory_addresses, own_clients):
    """Return the addresses of the other members, sorted.

    The address of a member that does not answer is unknown, unless the inventory has it: C(inventory_addresses). The clients of an earlier run,
    C(own_clients), are then kept.
    """
    peers = [member for member in members if member["name"] != host]
    addresses = [member["address"] for member in peers if member["reachable"]] + list(
        inventory_addresses
    )
    if not all(member["reachable"] for member in peers):
        addresses += own_clients
    return sorted(_unique(address for address in addresses if address), key=str.lower)


def conflicts(exports):
    """Options of the exports that conflict with another setting or export.

    C(anonymous) are those that name the user of root's files. Only an export without full access may have them. C(fsids) occur more than once.
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


def served(exports, cluster, clients, options, anonymous):
    """Return C(path), C(clients) and C(options) of each export that has clients."""
    found = []
    for export in exports:
        chosen = list(export.get("options") or options)
        allowed = _unique([*cluster, *clients, *(export.get("clients") or [])])
        if squashes(chosen) and not any(re.match("anon[ug]id=", option) for option in chosen):
            chosen += ["anonuid=%d" % anonymous["uid"], "anongid=%d" % anonymous["gid"]]
        if allowed:
            found.append({"path": export["path"], "clients": allowed, "options": chosen})
    return found


def folders(exports, options, uid):
    """Return the exported folders for shared_folders. If root of the clients is mapped to another user, that user gets full access, unless disabled."""
    return [
        {"path": export["path"], "mode": "2775", "full_access_uid": uid}
        if export.get("full_access") is not False and squashes(export.get("options") or options)
        else {"path": export["path"]}
        for export in exports
    ]


def settings_differ(found, settings):
    """Return whether the running server has other settings than requested. Settings that are not requested may have any value."""
    nfsd = found.get("nfsd") or {}
    if not nfsd:
        return False
    return (
        any(
            settings[name] > 0 and nfsd[name] != settings[name]
            for name in ("threads", "lease_seconds", "grace_seconds")
        )
        or settings["versions"] != []
        and sorted(nfsd["versions"]) != sorted(settings["versions"])
        or (SETTINGS_FILE in found["files"]) != has_settings(settings)
    )


def has_settings(settings):
    return (
        any(settings[name] > 0 for name in ("threads", "lease_seconds", "grace_seconds"))
        or settings["versions"] != []
    )


def problems(found, exports, require_mount):
    """Return the conflicts of the exports with what is on the host, one sentence each."""
    paths = [normal_path(export["path"]) for export in exports]
    texts = (
        ["%s: correct that file, because exportfs would reject it" % found["error"]]
        if found.get("error")
        else []
    )
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
            "%s is on the root file system: mount a disk there, or set nfs_server_require_mount to false"
            % path
            for path, mount in found.get("mounts", {}).items()
            if mount == "/"
        ]
    return texts


class Requested(NamedTuple):
    """What the variables of role nfs_server request of C(host).

    C(exports) have C(path), and may have C(options) and C(clients). C(members) are the hosts of the cluster. C(options) are those of exports without their own.
    C(anonymous): C(uid) and C(gid) to which root of the clients is mapped. C(settings): C(threads), C(lease_seconds) and C(grace_seconds), 0 for any, and
    C(versions), empty for any. C(inventory_addresses) are those of members that do not answer. C(clients) are further ones of all exports. C(firewall): open
    one for the clients. C(require_mount): an exported folder must not be on the root file system.
    """

    exports: list[dict]
    members: list[dict]
    host: str
    options: list[str]
    anonymous: dict
    settings: dict
    inventory_addresses: Sequence[str] = ()
    clients: Sequence[str] = ()
    firewall: bool = True
    require_mount: bool = False


def nfs_server_plan(found: dict, requested: Requested) -> dict:
    """Complete the exports with their clients and options, and compare them and the settings with the host.

    C(found) is a result of M(trainyard.gpu.nfs_server_info). It is empty before the host is read: then problems and differences are of no use, and former
    clients are not kept while a member does not answer.

    Returns C(served), C(path), C(clients) and C(options) of each export that has clients, C(wanted), one entry per export and client, as nfs_server_info takes
    them, C(let_in), addresses and networks for which a firewall must be open, exported C(folders), C(has_settings), whether any is requested,
    C(settings_differ), those of the running server do, and C(problems), conflicts with other exports and with the folders' mounts, one sentence each.
    """
    cluster = cluster_clients(
        requested.members,
        requested.host,
        requested.inventory_addresses,
        found.get("own_clients") or [],
    )
    exports, options, anonymous = requested.exports, requested.options, requested.anonymous
    exported = served(exports, cluster, requested.clients, options, anonymous)
    wanted = [
        {"path": export["path"], "client": client, "options": export["options"]}
        for export in exported
        for client in export["clients"]
    ]
    let_in = []
    if requested.firewall:
        clients = _unique(entry["client"] for entry in wanted)
        let_in = [client for client in clients if _ADDRESS.match(client)]
    return {
        "served": exported,
        "wanted": wanted,
        "let_in": let_in,
        "folders": folders(exports, options, anonymous["uid"]),
        "has_settings": has_settings(requested.settings),
        "settings_differ": settings_differ(found, requested.settings),
        "problems": problems(found, exports, requested.require_mount),
    }


def decide_nfs_server_plan(found: dict, **requested) -> dict:
    """As nfs_server_plan. C(requested) has the fields of Requested."""
    return nfs_server_plan(found, Requested(**requested))
