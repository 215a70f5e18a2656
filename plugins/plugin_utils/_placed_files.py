# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files and folders that roles place, whether a host has them as requested, and rows about
differences. Pure functions.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, TypedDict, cast

if TYPE_CHECKING:
    # Module typing has these from Python 3.11, and a controller may run Python 3.10.
    from typing_extensions import Required, Unpack


class FileOptions(TypedDict, total=False):
    """Options of an entry that most entries leave out.

    C(validate) is a command with %s for the path, C(replace) whether a file that is there changes.
    """

    owner: str
    group: str
    validate: str
    replace: bool


class ManagedFile(FileOptions, total=False):
    """Entry of option C(files) of module managed_files. C(mode) is octal, as in 0644.

    Files have C(content), folders C(state=directory), and links C(state=link) and C(src).
    """

    path: Required[str]
    content: str
    src: str
    state: str
    mode: str


class Found(TypedDict):
    """A file of a host, as module host_info returns it."""

    #: C(file), C(directory) or C(other).
    state: str
    #: Such as "0644".
    mode: str
    #: SHA-256 of a file; empty for everything else.
    checksum: str


class Difference(TypedDict):
    """Row of playbook drift: what differs, what is requested, and what the host has."""

    what: str
    asked: str
    found: str


def managed_folder(path: str, mode: str = "0755", **options: Unpack[FileOptions]) -> ManagedFile:
    """Return the entry of a folder."""
    return cast(ManagedFile, {"path": path, "state": "directory", "mode": mode, **options})


def managed_file(
    path: str, content: str, mode: str = "0644", **options: Unpack[FileOptions]
) -> ManagedFile:
    """Return the entry of a file."""
    return cast(ManagedFile, {"path": path, "content": content, "mode": mode, **options})


def difference(what: str, requested: str, found: str) -> Difference:
    """Return one row of playbook drift."""
    return {"what": what, "asked": requested, "found": found}


def _differs(entry: ManagedFile, found: Found | None) -> bool:
    state = entry.get("state", "file")
    if state == "absent":
        return found is not None
    if found is None:
        return True
    if found["state"] != state or entry.get("mode", found["mode"]) != found["mode"]:
        return True
    if state == "directory":
        return False
    requested = hashlib.sha256(entry["content"].encode("utf-8")).hexdigest()
    return found["checksum"] != requested


def files_differ(entries: list[ManagedFile], found: dict[str, Found]) -> bool:
    """Return whether module managed_files would change one of the entries.

    C(found) are the files of module host_info by path. Entries are files with C(content), folders,
    and what is to be absent. They belong to root, as every file below a folder that only root may
    write.
    """
    return any(_differs(entry, found.get(entry["path"])) for entry in entries)
