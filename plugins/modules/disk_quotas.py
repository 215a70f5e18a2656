#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: disk_quotas
short_description: Set disk quotas of users and groups
version_added: "0.2.0"
description:
  - Sets hard limits of space with C(setquota) if quotas are on for the file system. Soft limits,
    inode limits and grace times stay unchanged.
  - A file system without quotas is returned in RV(unsupported) and is not a failure.
  - The former limits are written to O(record). A limit that is no longer requested is restored, and
    V(former) restores all of them. A limit that was changed by others since then stays.
options:
  quotas:
    description: One limit per user or group of a file system. Not used with O(state=former).
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: A path on the file system.
        type: path
        required: true
      kind:
        description: Whether O(quotas[].id) is a user or a group.
        type: str
        choices: [user, group]
        required: true
      id:
        description: Numeric id of the user or group.
        type: int
        required: true
      limit_mib:
        description: MiB that the user or group may use on the file system. V(0) means no limit.
        type: int
        required: true
  record:
    description:
      - File on the host that records the limits before this module set them. Its folder must exist.
    type: path
    required: true
  state:
    description: V(present) sets the limits. V(former) restores those in O(record), unless they were
      changed since.
    type: str
    choices: [present, former]
    default: present
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.internal
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Limit user 2001 to 10 GiB
  trainyard.gpu.disk_quotas:
    quotas:
      - {path: /mnt/user/anna, kind: user, id: 2001, limit_mib: 10240}
    record: /var/lib/trainyard/placed.d/disk_quotas.json
  register: limited

- name: Restore the former limits
  trainyard.gpu.disk_quotas:
    record: /var/lib/trainyard/placed.d/disk_quotas.json
    state: former
"""

RETURN = r"""
limited:
  description: Limits that were set, or would be in check mode, as V(path), V(kind), V(id) and
    V(limit_mib).
  returned: success
  type: list
  elements: dict
unsupported:
  description: Entries of O(quotas) that cannot be set.
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: Path as given.
      type: str
    reason:
      description: The reason, and what to do.
      type: str
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._mountinfo import (
    mount_of,
    parse_mountinfo,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._record import Record

BLOCKS_PER_MIB = 1024


class Quotas:
    """Limits are tuples as setquota takes them: soft and hard limit in blocks of 1 KiB, soft and
    hard limit of inodes; 0 is none.
    """

    def __init__(self, module):
        self.module = module
        self.limited, self.unsupported, self.reports = [], [], {}
        self.file = Record(module, module.params["record"])
        self.record = self.file.read()

    def program(self, name):
        return self.module.get_bin_path(name, opt_dirs=["/usr/sbin"])

    def limits(self, mount, kind):
        """Return the limits of a file system by id, None where quotas are not on."""
        if (mount, kind) not in self.reports:
            self.reports[(mount, kind)] = self.report(mount, kind)
        return self.reports[(mount, kind)]

    def report(self, mount, kind):
        if self.program("repquota") is None:
            return None
        rc, out, dummy = self.module.run_command(
            [
                self.program("repquota"),
                "--raw-grace",
                "--no-names",
                "--verbose",
                "--output=csv",
                "--" + kind,
                mount,
            ],
            environ_update={"LC_ALL": "C"},
        )
        if rc != 0:
            return None
        limits = {}
        for line in out.splitlines():
            fields = line.split(",")
            if fields[0].lstrip("#").isdigit() and len(fields) > 9:
                limits[int(fields[0].lstrip("#"))] = tuple(
                    int(fields[index]) for index in (4, 5, 8, 9)
                )
        return limits

    def set(self, quota, mount, limits):
        self.limited.append(quota)
        if self.module.check_mode:
            return
        rc, out, err = self.module.run_command(
            [self.program("setquota"), "--" + quota["kind"], str(quota["id"])]
            + [str(limit) for limit in limits]
            + [mount]
        )
        if rc != 0:
            self.module.fail_json(
                msg=(
                    "setquota for %s %d on %s failed: %s. Check with 'quotaon --print %s' that "
                    "quotas are on, and run this again"
                )
                % (quota["kind"], quota["id"], mount, (err or out).strip(), mount),
                limited=self.limited,
            )

    def all_present(self, quotas, mounts):
        places = [mount_of(os.path.realpath(quota["path"]), mounts) for quota in quotas]
        requested = {}
        for quota, mount in zip(quotas, places):
            other = requested.setdefault((mount["path"], quota["kind"], str(quota["id"])), quota)
            if other["limit_mib"] != quota["limit_mib"]:
                self.module.fail_json(
                    msg="%s and %s lie on the same file system, %s, which has one limit for %s %d: "
                    "set %d or %d MiB in both. "
                    "Nothing was set"
                    % (
                        other["path"],
                        quota["path"],
                        mount["path"],
                        quota["kind"],
                        quota["id"],
                        other["limit_mib"],
                        quota["limit_mib"],
                    )
                )
        for quota, mount in zip(quotas, places):
            self.present(quota, mount)
        self.set_back(lambda mount, kind, number: (mount, kind, number) not in requested)

    def present(self, quota, mount):
        on_server = mount["type"] in ("nfs", "nfs4")
        limits = None if on_server else self.limits(mount["path"], quota["kind"])
        if on_server:
            reason = (
                "%s is a folder of NFS server %s, where quotas are set, not here; have its "
                "administrator limit %s %d to %d MiB "
                "(setquota --%s %d 0 %d 0 0 on its file system), or set quota_mib to 0"
                % (
                    mount["path"],
                    mount["source"].rpartition(":/")[0],
                    quota["kind"],
                    quota["id"],
                    quota["limit_mib"],
                    quota["kind"],
                    quota["id"],
                    quota["limit_mib"] * BLOCKS_PER_MIB,
                )
            )
            self.unsupported.append({"path": quota["path"], "reason": reason})
            return
        if limits is None:
            reason = (
                "no %s quotas are on for %s (%s); turn them on there (mount options "
                "usrquota,grpquota and quotaon, or the file system's own way), "
                "or set quota_mib to 0" % (quota["kind"], mount["path"], mount["type"])
            )
            self.unsupported.append({"path": quota["path"], "reason": reason})
            return
        before = soft, hard, soft_inodes, hard_inodes = limits.get(quota["id"], (0, 0, 0, 0))
        requested = quota["limit_mib"] * BLOCKS_PER_MIB
        if hard == requested:
            return
        # Written down first: a run that is cut off leaves no limit that nobody knows of.
        kept = (
            self.record.setdefault("limits", {})
            .setdefault(mount["path"], {})
            .setdefault(quota["kind"], {})
            .setdefault(str(quota["id"]), {"before": before})
        )
        kept["hard"] = requested
        self.file.write(self.record)
        # A soft limit above the hard one would never be told.
        self.set(
            quota,
            mount["path"],
            (min(soft, requested) if requested else soft, requested, soft_inodes, hard_inodes),
        )

    def set_back(self, chosen):
        entries = [
            (mount, kind, number)
            for mount, kinds in self.record.get("limits", {}).items()
            for kind, kept in kinds.items()
            for number in kept
            if chosen(mount, kind, number)
        ]
        for mount, kind, number in entries:
            entry = self.record["limits"][mount][kind].pop(number)
            limits = self.limits(mount, kind)
            if limits is None:
                self.unsupported.append(
                    {"path": mount, "reason": "no %s quotas are on for it any more" % kind}
                )
            # Another limit than ours is somebody else's.
            elif limits.get(int(number), (0, 0, 0, 0))[1] == entry["hard"] != entry["before"][1]:
                self.set(
                    {
                        "path": mount,
                        "kind": kind,
                        "id": int(number),
                        "limit_mib": entry["before"][1] // BLOCKS_PER_MIB,
                    },
                    mount,
                    entry["before"],
                )
        if entries:
            if not any(kept for kinds in self.record["limits"].values() for kept in kinds.values()):
                del self.record["limits"]
            self.file.write(self.record)


def main():
    module = AnsibleModule(
        argument_spec={
            "quotas": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": {"type": "path", "required": True},
                    "kind": {"type": "str", "choices": ["user", "group"], "required": True},
                    "id": {"type": "int", "required": True},
                    "limit_mib": {"type": "int", "required": True},
                },
            },
            "record": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["present", "former"], "default": "present"},
        },
        supports_check_mode=True,
    )
    quotas = Quotas(module)
    if module.params["state"] == "former":
        quotas.set_back(lambda *entry: True)
    else:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            mounts = parse_mountinfo(file.read())
        quotas.all_present(module.params["quotas"], mounts)
    module.exit_json(
        changed=bool(quotas.limited), limited=quotas.limited, unsupported=quotas.unsupported
    )


if __name__ == "__main__":
    main()
