# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: shared_storage_plan
short_description: Plan exports, mounts and folders of the shared storage
version_added: "0.2.0"
description:
  - Computes exports, mounts, folders, quotas and accounts from the variables of role C(trainyard.gpu.shared_storage).
  - Folders below a mount of the site are neither exported nor mounted by the cluster.
options:
  _input:
    description: Absolute path of the shared folder.
    type: str
    required: true
  storage:
    description: Inventory name of the NFS server.
    type: str
    required: true
  trees:
    description: C(shared_storage_trees).
    type: list
    elements: dict
    default: []
  users:
    description: C(shared_storage_users).
    type: list
    elements: dict
    default: []
  groups:
    description: C(shared_storage_groups).
    type: list
    elements: dict
    default: []
  mounts:
    description: C(nfs_client_mounts).
    type: list
    elements: dict
    default: []
  exports:
    description: C(nfs_server_exports) as set by the site.
    type: list
    elements: dict
    default: []
  members:
    description: C(cluster_members) of role C(trainyard.gpu.cluster), to recognise addresses of O(storage).
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
plan: "{{ cluster_share_path | trainyard.gpu.shared_storage_plan(storage=cluster_storage, mounts=nfs_client_mounts) }}"
"""

RETURN = r"""
_value:
  description: The plan.
  type: dict
  contains:
    exports:
      description: Value of C(nfs_server_exports).
      type: list
      elements: dict
    mounts:
      description: Value of C(nfs_client_mounts).
      type: list
      elements: dict
    folders:
      description: Folders of users and groups, for M(trainyard.gpu.shared_folders).
      type: list
      elements: dict
    quotas:
      description: Quotas, for M(trainyard.gpu.disk_quotas).
      type: list
      elements: dict
    accounts:
      description: Users, for M(trainyard.gpu.shared_accounts).
      type: list
      elements: dict
    homes:
      description: Path of the first tree of users; empty if there is none.
      type: str
"""


def _covers(folder, path):
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def shared_storage_plan(share, storage, trees=(), users=(), groups=(), mounts=(), exports=(), members=()):
    names = {member["address"]: member["name"] for member in members if member["address"]}
    share = share.rstrip("/")
    gids = {group["name"]: group["gid"] for group in groups}
    paths, folders, quotas, homes = [share], [], [], ""
    for tree in trees:
        root, only = tree["path"].rstrip("/"), tree.get("only") or []
        if tree["of"] == "users":
            those = [user for user in users if not only or set(user.get("groups") or []) & set(only)]
            homes = homes or (root if those else "")
        else:
            those = [group for group in groups if not only or group["name"] in only]
        if not those:
            continue
        if not any(_covers(path, root) for path in paths):
            paths.append(root)
        folders.append({"path": root})
        for one in those:
            path = "%s/%s" % (root, one["name"])
            if tree["of"] == "users":
                primary = gids[one["groups"][0]] if one.get("groups") else one["uid"]
                folders.append({"path": path, "owner": one["uid"], "group": primary, "mode": "0700"})
            else:
                folders.append({"path": path, "owner": 0, "group": one["gid"], "mode": "2770"})
            limit = one.get("quota_mib") if one.get("quota_mib") is not None else tree.get("quota_mib") or 0
            if limit:
                quotas.append({"path": path, "kind": tree["of"][:-1], "id": one["uid" if tree["of"] == "users" else "gid"], "limit_mib": limit})
    targets = {(mount.get("target") or mount["path"]).rstrip("/"): names.get(mount["server"], mount["server"]) for mount in mounts}
    # A mount that names the storage host itself only sets the options.
    served = [path for path in paths if not any(_covers(target, path) and server != storage for target, server in targets.items())]
    named = [export["path"].rstrip("/") for export in exports]
    return {
        "exports": list(exports) + [{"path": path, "full_access": path == share} for path in served if path not in named],
        "mounts": list(mounts) + [{"server": storage, "path": path} for path in served if path not in targets],
        "folders": folders,
        "quotas": quotas,
        "accounts": [{"name": user["name"], "uid": user["uid"], "groups": user.get("groups") or []} for user in users],
        "homes": homes,
    }


class FilterModule:
    """Filters for the plan of role shared_storage."""

    def filters(self):
        return {"shared_storage_plan": shared_storage_plan}
