# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which roles have something left on the hosts. Pure functions."""

from __future__ import annotations

import re

#: Folders of all roles, which the playbook itself removes.
_SHARED = ("/var/lib/trainyard", "/var/lib/trainyard/placed.d")
_RECORD = re.compile(r"/var/lib/trainyard/placed\.d/([a-z_]+)(\.[a-z_]+)*\.json")
#: Folders that a removal keeps if people have content in them.
_KEPT = {
    "/var/lib/trainyard/containers": "job_container",
    "/var/lib/trainyard/image_relay": "image_relay",
    "/var/lib/trainyard/notebooks": "training_container",
}
#: Roles that another one removes.
_REMOVED_BY = {"nfs_client": "shared_storage", "nfs_server": "shared_storage"}


def _owner(path: str) -> str:
    """Return the role that a path belongs to, empty if it may be any."""
    for folder, role in _KEPT.items():
        if path == folder or path.startswith(folder + "/"):
            return role
    record = _RECORD.fullmatch(path)
    if not record:
        return ""
    return _REMOVED_BY.get(record[1], record[1])


def teardown_roles(found: list[list[str]], roles: list[str]) -> list[str]:
    """Return those of C(roles) that may have something on a host, in their order.

    C(found) has the traces of the collection on each host. Anything but records and folders that a
    removal may keep means that all roles run. So an unexpected trace costs time, and is not left
    behind.
    """
    owners = {_owner(path) for paths in found for path in paths if path not in _SHARED}
    if owners <= set(roles):
        return [role for role in roles if role in owners]
    return list(roles)
