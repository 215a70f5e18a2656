# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: nfs_mounts
short_description: Complete the NFS mounts of a host
version_added: "0.2.0"
description:
  - Completes the entries of C(nfs_client_mounts) with source, mount options and names of systemd units.
  - For a server that is a cluster member, its address on the cluster network is used. Exports of the host itself are left out.
positional: host
options:
  _input:
    description: Entries with C(server), C(path), and optionally C(target) and C(options).
    type: list
    elements: dict
    required: true
  host:
    description: Inventory name of the host.
    type: str
    required: true
  members:
    description: C(cluster_members) of role C(trainyard.gpu.cluster).
    type: list
    elements: dict
    default: []
  options:
    description: Options of mounts without their own options.
    type: list
    elements: str
    default: [hard]
  version:
    description: Protocol version for mounts without one. If empty, client and server negotiate it.
    type: str
    default: ""
  nconnect:
    description: Number of connections to the server for mounts without one.
    type: int
    default: 1
"""

EXAMPLES = r"""
mounts: "{{ nfs_client_mounts | trainyard.gpu.nfs_mounts(inventory_hostname, cluster_members) }}"
"""

RETURN = r"""
_value:
  description: One entry per mount of the host, in the same order.
  type: list
  elements: dict
  contains:
    target:
      description: Mount point.
      type: str
    source:
      description: Server and path in the notation of mount.
      type: str
    server:
      description: Address or name of the server.
      type: str
    options:
      description: Mount options, including those for systemd.
      type: list
      elements: str
    unit:
      description: Name of the mount's unit.
      type: str
    automount_unit:
      description: Name of its automount unit.
      type: str
"""

from ansible_collections.trainyard.gpu.plugins.module_utils._input_kinds import normal_path
from ansible_collections.trainyard.gpu.plugins.module_utils._nfs import unit_name
from ansible_collections.trainyard.gpu.plugins.module_utils._nfs_options import version_in


def nfs_mounts(mounts, host, members=(), options=("hard",), version="", nconnect=1):
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
        if version and not version_in(chosen):
            chosen.append("vers=%s" % version)
        if int(nconnect) > 1 and "nconnect" not in given:
            chosen.append("nconnect=%d" % int(nconnect))
        if not given & {"retry", "bg", "fg"}:
            # A week in minutes: at boot the server may take long to start, and a failed unit stays failed.
            chosen.append("retry=10080")
        found.append({
            "target": target,
            "source": "%s:%s" % ("[%s]" % server if ":" in server else server, path),
            "server": server,
            "options": chosen,
            "unit": unit_name(target, "mount"),
            "automount_unit": unit_name(target, "automount"),
        })
    return found


class FilterModule:
    """Filters for NFS mounts."""

    def filters(self):
        return {"nfs_mounts": nfs_mounts}
