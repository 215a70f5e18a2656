# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Exports, mounts and folders of the shared storage, and whether every host reads the others'
files. Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._people_plan import remembered_clashes
from ansible_collections.trainyard.gpu.plugins.plugin_utils._nfs_client_plan import nfs_mounts

if TYPE_CHECKING:
    from ansible_collections.trainyard.gpu.plugins.plugin_utils._cluster import Member

_CAUSES = {
    "missing": "it does not exist",
    "no_directory": "it is not a directory",
    "no_space": "its storage or quota is full",
    "not_writable": "root cannot write there",
    "no_answer": "its server does not answer",
}
_FIXES = {
    "no_space": "Free space on it, or raise the quota",
    "no_answer": "Start the server, or check the connection to it",
    "not_writable": "Mount it for writing. If its server maps root to another user (root_squash), ask its "
    "administrator to make the folder writable for "
    "that user, for example with chmod 1777, or to export it to these hosts with no_root_squash",
}


class Expected(TypedDict, total=False):
    """The mount that must contain the shared folder, empty if none must."""

    source: str
    types: list[str]


class _Served(TypedDict):
    """Exports and mounts of all hosts."""

    exports: list[dict[str, Any]]
    mounts: list[dict[str, Any]]


class SharedStoragePlan(_Served):
    """What a host needs; shared_storage_plan explains each key."""

    folders: list[dict[str, Any]]
    quotas: list[dict[str, Any]]
    accounts: list[dict[str, Any]]
    homes: str
    people_keys: dict[str, list[str]]
    serves: bool
    package: str
    program: str
    expected: Expected
    problem: str
    fix: str


class Pair(TypedDict):
    """What one host has read of the other's file. Without C(cause) it was found after
    C(seconds).
    """

    writer: str
    reader: str
    cause: str
    seconds: float


class Verdict(TypedDict):
    """What the hosts have read of each other: C(pairs) by the host that reads, and what each has
    mounted.
    """

    pairs: dict[str, list[Pair]]
    broken: list[Pair]
    verdict: str
    mounted: list[str]


def _covers(folder: str, path: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def expected_mount(share: str, mounts: Sequence[Mapping[str, Any]]) -> Expected:
    """Return the mount that must contain the shared folder, of the mounts of nfs_mounts; empty if
    there is none.
    """
    found = [mount for mount in mounts if (share + "/").startswith(mount["target"] + "/")]
    if not found:
        return {}
    versions = [
        match.group(1)
        for match in (re.match("(?:nfs)?vers=([34])", option) for option in found[-1]["options"])
        if match
    ]
    # Without a version in the options, both types are possible.
    return {
        "source": found[-1]["source"],
        "types": ["nfs4"] if "4" in versions else ["nfs"] if "3" in versions else ["nfs", "nfs4"],
    }


def problem(
    share: str, written: Mapping[str, Any], expected: Expected, serves: bool, require_mount: bool
) -> str:
    """Return the reason why the folder of a host cannot be the shared folder, empty if it can.

    C(written) is the result of shared_storage_proof.
    """
    if "cause" not in written:
        return ""
    mount, cause = written["mount"], written["cause"]
    if cause:
        return "%s (%s)" % (_CAUSES[cause], written["error"])
    if expected and (
        mount["source"].rstrip("/") != expected["source"].rstrip("/")
        or mount["type"] not in expected["types"]
    ):
        return "it is %s (%s), not %s with %s" % (
            mount["source"],
            mount["type"],
            expected["source"],
            " or ".join(expected["types"]),
        )
    if require_mount and not serves and mount["path"] == "/":
        return "it is on the root file system of the host, so nothing is mounted there"
    if not (written["real_path"] + "/").startswith("/%s/" % share.split("/")[1]):
        return (
            "it is a link to %s, which is not mounted in the training containers"
            % written["real_path"]
        )
    return ""


def fix(cause: str, expected: Expected) -> str:
    """Return what to do about a problem."""
    text = _FIXES.get(cause, "Mount it on this host, or correct cluster_share_path")
    if not cause and not expected:
        text += (
            "; a folder of the root file system is accepted with shared_storage_require_mount: "
            "false"
        )
    return text


def own_groups(
    users: Sequence[dict[str, Any]],
    groups: Sequence[dict[str, Any]] | None = None,
    key: str = "gid",
) -> list[dict[str, Any]]:
    """The groups of users without groups.

    Each gets one with the user's name and number. With groups, only those whose C(key) one of them
    has.
    """
    own = [{"name": user["name"], "gid": user["uid"]} for user in users if not user.get("groups")]
    if groups is None:
        return own
    requested = [group[key] for group in groups]
    return [group for group in own if group[key] in requested]


def id_problems(
    users: Sequence[dict[str, Any]],
    groups: Sequence[dict[str, Any]],
    recorded: Mapping[str, dict[str, dict[str, str]] | None],
    accepted: Sequence[Any] = (),
) -> list[str]:
    """Return a text about each requested id that belonged to somebody else: files keep the number
    of their owner, so who gets it gets the files.

    C(recorded) has C(recorded_ids) of M(trainyard.gpu.host_info) by host. C(accepted) are ids that
    others may get.
    """
    requested = {
        "users": {user["name"]: user["uid"] for user in users},
        "groups": {group["name"]: group["gid"] for group in list(groups) + own_groups(users)},
    }
    reused = [int(number) for number in accepted]
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for host, owned in recorded.items():
        for clash in remembered_clashes(requested, owned or {}, reused):
            hosts = found.setdefault((clash["name"], clash["kind"]), dict(clash, hosts=[]))["hosts"]
            hosts.append(host)
    text = (
        "shared_storage_%(kind)ss: %(kind)s '%(name)s' has ID %(id)d of former %(kind)s "
        "'%(former)s' (recorded on %(hosts)s), whose files have this owner. Use an ID that nobody "
        "had. Or remove or hand over the files, and add %(id)d to shared_storage_reused_ids"
    )
    return [text % dict(clash, hosts=", ".join(clash["hosts"])) for clash in found.values()]


class Requested(NamedTuple):
    """What the variables of role shared_storage request.

    C(share) is the absolute path of the shared folder, C(storage) the name of the NFS server, whose
    addresses are known from C(members). C(mounts) and C(exports) are those of the site. C(backend)
    is nfs or existing. C(client) has C(options) and C(version) of mounts without their own.
    C(require_mount): the folder must not be on the root file system; the server is exempt.
    C(anonymous_uid) is nfs_server_anonuid: folders of people are planned without its access.
    """

    share: str
    storage: str
    trees: Sequence[dict[str, Any]] = ()
    users: Sequence[dict[str, Any]] = ()
    groups: Sequence[dict[str, Any]] = ()
    mounts: Sequence[dict[str, Any]] = ()
    exports: Sequence[dict[str, Any]] = ()
    members: Sequence[Member] = ()
    backend: str = "nfs"
    client: dict[str, Any] | None = None
    require_mount: bool = True
    login_hosts: Sequence[str] = ()
    anonymous_uid: int | None = None


def _owners(tree: dict[str, Any], requested: Requested) -> list[dict[str, Any]]:
    """Return the users or groups that have a folder in a tree."""
    only = tree.get("only") or []
    if tree["of"] == "users":
        return [
            user
            for user in requested.users
            if not only or set(user.get("groups") or []) & set(only)
        ]
    return [group for group in requested.groups if not only or group["name"] in only]


def _folder_of(owner: dict[str, Any], tree: dict[str, Any], gids: dict[str, int]) -> dict[str, Any]:
    """Return the folder of a user or a group in a tree.

    C(gids) are the numbers of the groups by name.
    """
    path = "%s/%s" % (tree["path"].rstrip("/"), owner["name"])
    if tree["of"] != "users":
        return {"path": path, "owner": 0, "group": owner["gid"], "mode": "2770"}
    primary = gids[owner["groups"][0]] if owner.get("groups") else owner["uid"]
    return {"path": path, "owner": owner["uid"], "group": primary, "mode": "0700"}


def _quota_of(owner: dict[str, Any], tree: dict[str, Any], path: str) -> list[dict[str, Any]]:
    """Return the quota of a user or a group on its folder, none without a limit."""
    limit = owner.get("quota_mib")
    if limit is None:
        limit = tree.get("quota_mib") or 0
    if not limit:
        return []
    number = owner["uid" if tree["of"] == "users" else "gid"]
    return [{"path": path, "kind": tree["of"][:-1], "id": number, "limit_mib": limit}]


class _Trees(NamedTuple):
    """What the trees of people's folders need.

    C(paths) are exported, the share first. C(homes) is the first tree with folders of users.
    """

    paths: list[str]
    folders: list[dict[str, Any]]
    quotas: list[dict[str, Any]]
    homes: str


def _trees(requested: Requested) -> _Trees:
    gids = {group["name"]: group["gid"] for group in requested.groups}
    paths, homes = [requested.share.rstrip("/")], ""
    folders: list[dict[str, Any]] = []
    quotas: list[dict[str, Any]] = []
    for tree in requested.trees:
        root, owners = tree["path"].rstrip("/"), _owners(tree, requested)
        if not owners:
            continue
        if tree["of"] == "users":
            homes = homes or root
        if not any(_covers(path, root) for path in paths):
            paths.append(root)
        folders.append({"path": root})
        for owner in owners:
            folder = _folder_of(owner, tree, gids)
            folders.append(folder)
            quotas += _quota_of(owner, tree, folder["path"])
    if requested.backend == "nfs" and requested.anonymous_uid is not None:
        # Below the share they would get the access list of the share, which lets root of all hosts
        # write and replaces people's umask.
        uid = int(requested.anonymous_uid)
        folders = [dict(entry, without_uid=uid) for entry in folders]
    return _Trees(paths, folders, quotas, homes)


def _exports_and_mounts(requested: Requested, paths: list[str]) -> _Served:
    """Return the requested exports and mounts, and those that the paths need in addition."""
    names = {member["address"]: member["name"] for member in requested.members if member["address"]}
    targets = {
        (mount.get("target") or mount["path"]).rstrip("/"): names.get(
            mount["server"], mount["server"]
        )
        for mount in requested.mounts
    }
    # A mount that names the storage host itself only sets the options.
    elsewhere = [target for target, server in targets.items() if server != requested.storage]
    served = [path for path in paths if not any(_covers(target, path) for target in elsewhere)]
    exported = [export["path"].rstrip("/") for export in requested.exports]
    return {
        "exports": list(requested.exports)
        + [
            {"path": path, "full_access": path == paths[0]}
            for path in served
            if path not in exported
        ],
        "mounts": list(requested.mounts)
        + [{"server": requested.storage, "path": path} for path in served if path not in targets],
    }


def _keys_of_people(requested: Requested, host: str) -> dict[str, list[str]]:
    """Return the public keys of people by name, on hosts where they log in."""
    if host not in requested.login_hosts:
        return {}
    return {
        user["name"]: list(user["public_keys"])
        for user in requested.users
        if user.get("public_keys")
    }


def shared_storage_plan(
    requested: Requested, host: str = "", written: dict[str, Any] | None = None
) -> SharedStoragePlan:
    """Return the plan of a host.

    C(written) is the result of shared_storage_proof; with it, whether the folder can be the shared
    folder is checked, too.

    Folders below a mount of the site are neither exported nor mounted by the cluster. Returns
    C(exports) and C(mounts), values for nfs_server and nfs_client, C(folders), C(quotas),
    C(accounts), C(homes), the first tree of users, C(people_keys), their public keys on a login
    host, C(serves), whether the host exports folders, C(package) that it needs for NFS and the
    C(program) that shows it, C(expected), C(source) and C(types) of the mount of the shared folder,
    empty for the server and an existing one, C(problem), why the folder cannot be it, and C(fix).
    """
    trees = _trees(requested)
    planned = _exports_and_mounts(requested, trees.paths)
    uses_nfs = requested.backend == "nfs"
    serves = uses_nfs and host == requested.storage and planned["exports"] != []
    defaults, own = requested.client or {}, []
    if uses_nfs:
        own = nfs_mounts(
            planned["mounts"],
            host,
            requested.members,
            defaults.get("options", ["hard"]),
            defaults.get("version", "4"),
        )
    package = "nfs-common" if own else ""
    if serves:
        package = "nfs-kernel-server"
    expected, written = expected_mount(requested.share, own), written or {}
    return {
        **planned,
        "folders": trees.folders,
        "quotas": trees.quotas,
        "accounts": [
            {"name": user["name"], "uid": user["uid"], "groups": user.get("groups") or []}
            for user in requested.users
        ],
        "homes": trees.homes,
        "people_keys": _keys_of_people(requested, host),
        "serves": serves,
        "package": package,
        "program": "exportfs" if serves else "mount.nfs4",
        "expected": expected,
        "problem": problem(requested.share, written, expected, serves, requested.require_mount),
        "fix": fix(written.get("cause", ""), expected),
    }


def shared_storage_verdict(
    readings: Mapping[str, Sequence[Mapping[str, Any]]],
    mounts: Mapping[str, Mapping[str, Any]] | None = None,
) -> Verdict:
    """Return the verdict on what the hosts have read of each other.

    C(readings) and C(mounts) are RV(trainyard.gpu.shared_storage_proof#module:seen) and
    RV(trainyard.gpu.shared_storage_proof#module:mount) by host.

    Returns C(pairs) with C(writer), C(reader), C(cause), empty if the file was read, and
    C(seconds), C(broken), those with a cause, C(verdict), pass, fail, or not_evaluated without a
    pair, and C(mounted), a sentence for each mount.
    """
    pairs: dict[str, list[Pair]] = {
        reader: [
            {
                "writer": seen["name"],
                "reader": reader,
                "cause": seen["cause"],
                "seconds": seen["seconds"],
            }
            for seen in those
        ]
        for reader, those in readings.items()
    }
    broken = [pair for those in pairs.values() for pair in those if pair["cause"] != ""]
    return {
        "pairs": pairs,
        "broken": broken,
        "verdict": "fail" if broken else "pass" if any(pairs.values()) else "not_evaluated",
        "mounted": [
            "%s has %s (%s) at %s." % (host, mount["source"], mount["type"], mount["path"])
            for host, mount in (mounts or {}).items()
        ],
    }


class Found(TypedDict, total=False):
    """A host by its inventory name, and the result of M(trainyard.gpu.shared_storage_proof) on it,
    which lacks before the first file is written.
    """

    host: str
    written: dict[str, Any]


def decide_shared_storage_plan(found: Found, requested: Mapping[str, Any]) -> SharedStoragePlan:
    """Return what the storage of a host needs: exports, mounts, folders and quotas in MiB.

    C(requested) has the fields of Requested by name; C(share), a path, and C(storage), an inventory
    name, are required.

    Returns SharedStoragePlan, which shared_storage_plan explains key by key. Raises TypeError for
    an unknown or a missing field.
    """
    host, written = found.get("host", ""), found.get("written")
    return shared_storage_plan(Requested(**requested), host, written)
