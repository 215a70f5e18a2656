#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: disk_quotas
short_description: Limit what users and groups may hold on a file system
version_added: "0.2.0"
description:
  - Sets hard limits of space by C(setquota), where quotas are turned on for the file system. Soft limits, limits of inodes and grace times stay.
  - A file system without quotas is a result, RV(unsupported), not a failure.
options:
  quotas:
    description: The limits.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: A path on the file system.
        type: path
        required: true
      kind:
        description: Who is limited.
        type: str
        choices: [user, group]
        required: true
      id:
        description: Numeric id of the user or group.
        type: int
        required: true
      limit_mib:
        description: MiB that they may hold on the file system. V(0) means no limit.
        type: int
        required: true
extends_documentation_fragment:
  - trainyard.gpu.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Let user 2001 hold 10 GiB
  trainyard.gpu.disk_quotas:
    quotas:
      - {path: /mnt/user/anna, kind: user, id: 2001, limit_mib: 10240}
  register: limited
"""

RETURN = r"""
limited:
  description: Limits that were set or would be.
  returned: success
  type: list
  elements: dict
unsupported:
  description: Those of O(quotas) that can't be set.
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: Path as given.
      type: str
    reason:
      description: Why, and what to do.
      type: str
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._nfs import mount_of, parse_mountinfo

BLOCKS_PER_MIB = 1024


def report(module, mount, kind):
    """Return {id: soft and hard limit in blocks of 1 KiB, soft and hard limit of inodes} of a file system, None where quotas are not on."""
    rc, out, dummy = module.run_command([module.get_bin_path("repquota", required=True, opt_dirs=["/usr/sbin"]), "--raw-grace", "--no-names", "--verbose",
                                         "--output=csv", "--" + kind, mount], environ_update={"LC_ALL": "C"})
    if rc != 0:
        return None
    limits = {}
    for line in out.splitlines():
        fields = line.split(",")
        if fields[0].lstrip("#").isdigit() and len(fields) > 9:
            limits[int(fields[0].lstrip("#"))] = tuple(int(fields[index]) for index in (4, 5, 8, 9))
    return limits


def main():
    module = AnsibleModule(
        argument_spec={
            "quotas": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "path": {"type": "path", "required": True},
                    "kind": {"type": "str", "choices": ["user", "group"], "required": True},
                    "id": {"type": "int", "required": True},
                    "limit_mib": {"type": "int", "required": True},
                },
            },
        },
        supports_check_mode=True,
    )
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        mounts = parse_mountinfo(file.read())
    limited, unsupported, reports = [], [], {}
    for quota in module.params["quotas"]:
        mount = mount_of(os.path.realpath(quota["path"]), mounts)
        key = (mount["path"], quota["kind"])
        if key not in reports:
            reports[key] = report(module, *key) if module.get_bin_path("repquota", opt_dirs=["/usr/sbin"]) else None
        if reports[key] is None:
            reason = "no %s quotas are on for %s (%s); turn them on there (mount options usrquota,grpquota and quotaon, or the file system's own way), " \
                     "or set quota_mib to 0" % (quota["kind"], mount["path"], mount["type"])
            unsupported.append({"path": quota["path"], "reason": reason})
            continue
        soft, hard, soft_inodes, hard_inodes = reports[key].get(quota["id"], (0, 0, 0, 0))
        wanted = quota["limit_mib"] * BLOCKS_PER_MIB
        if hard == wanted:
            continue
        limited.append(quota)
        if module.check_mode:
            continue
        # A soft limit above the hard one would never be told.
        soft = min(soft, wanted) if wanted else soft
        rc, out, err = module.run_command([module.get_bin_path("setquota", required=True, opt_dirs=["/usr/sbin"]), "--" + quota["kind"], str(quota["id"]),
                                           str(soft), str(wanted), str(soft_inodes), str(hard_inodes), mount["path"]])
        if rc != 0:
            module.fail_json(msg="setquota for %s %d on %s: %s" % (quota["kind"], quota["id"], mount["path"], (err or out).strip()), limited=limited)
    module.exit_json(changed=bool(limited), limited=limited, unsupported=unsupported)


if __name__ == "__main__":
    main()
