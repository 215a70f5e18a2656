# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether a host has files as requested. Pure functions."""

from __future__ import annotations

import hashlib
from typing import Any, TypedDict


class Found(TypedDict):
    """A file of a host, as module host_info returns it."""

    #: C(file), C(directory) or C(other).
    state: str
    #: Such as "0644".
    mode: str
    #: SHA-256 of a file; empty for everything else.
    checksum: str


def _differs(entry: dict[str, Any], found: Found | None) -> bool:
    state = entry.get("state", "file")
    if state == "absent":
        return found is not None
    if found is None:
        return True
    if found["state"] != state or entry.get("mode", found["mode"]) != found["mode"]:
        return True
    if state == "directory":
        return False
    requested: str = hashlib.sha256(entry["content"].encode("utf-8")).hexdigest()
    return found["checksum"] != requested


def files_differ(entries: list[dict[str, Any]], found: dict[str, Found]) -> bool:
    """Return whether module managed_files would change one of the entries.

    C(found) are the files of module host_info by path. Entries are files with C(content), folders, and what is to be absent. They belong to root, as every
    file below a folder that only root may write.
    """
    return any(_differs(entry, found.get(entry["path"])) for entry in entries)
