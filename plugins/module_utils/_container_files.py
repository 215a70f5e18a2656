# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Programs and libraries of an image that were modified or deleted in its container.

Files that were added are no fault: the container toolkit adds mount points, Python its caches, and
a user a package for an experiment. Neither is what lies outside of the program folders, such as
/etc, /root, /var and /tmp: running programs write there.
"""

from __future__ import annotations

import filecmp
import os
import re
import stat

from typing import Tuple

__all__ = ["FOLDERS", "changed_in_layers", "parse_diff"]

FOLDERS = ("bin", "lib", "lib32", "lib64", "libx32", "opt", "sbin", "usr")
# Documentation and desktop caches, Python's caches, and the driver's files, which the container
# toolkit adds and links.
_HARMLESS = re.compile(
    r"^usr/share/|(^|/)__pycache__(/|$)|\.py[co]$|\.cache$"
    r"|(^|/)(nvidia-|lib(cuda|nv|nvidia|EGL_nvidia|GLX_nvidia|GLESv\w*_nvidia|vdpau_nvidia)[^/]*\.so|libcudadebugger)"
)
MOST = 20


#: A path, and whether it was modified or deleted.
_Change = Tuple[str, str]


def _is_whiteout(found: os.stat_result) -> bool:
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def _is_opaque(path: str) -> bool:
    try:
        return os.getxattr(path, "trusted.overlay.opaque", follow_symlinks=False) == b"y"
    except OSError:
        return False


def _lstat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _below(lowers: list[str], name: str) -> str:
    """The image's path of that name, empty if it has none.

    C(lowers) are the image's layers, the last one first.
    """
    steps = name.split("/")
    for lower in lowers:
        path, hidden = lower, False
        for step in steps:
            path += "/" + step
            found = _lstat(path)
            if found is None:
                break
            if _is_whiteout(found):
                return ""
            hidden = hidden or (stat.S_ISDIR(found.st_mode) and _is_opaque(path))
        else:
            return path
        if hidden:
            return ""
    return ""


def _same(one: str, other: str) -> bool:
    """Whether a written file has its former content and permissions."""
    first, second = os.lstat(one), os.lstat(other)
    if stat.S_IFMT(first.st_mode) != stat.S_IFMT(second.st_mode):
        return False
    if stat.S_ISLNK(first.st_mode):
        return os.readlink(one) == os.readlink(other)
    if not stat.S_ISREG(first.st_mode):
        return True
    return (
        stat.S_IMODE(first.st_mode) == stat.S_IMODE(second.st_mode)
        and first.st_size == second.st_size
        and filecmp.cmp(one, other, shallow=False)
    )


def _walk(upper: str, lowers: list[str], name: str, found: list[_Change]) -> None:
    """C(name) is a folder that both the container's layer and the image have."""
    folder = upper + "/" + name
    entries = sorted(entry.name for entry in os.scandir(folder))
    if _is_opaque(folder):
        found += _lost_with_folder(lowers, name, entries)
    for inner in entries:
        if len(found) >= MOST:
            return
        path = name + "/" + inner
        if _HARMLESS.search(path):
            continue
        here = os.lstat(folder + "/" + inner)
        if _is_whiteout(here):
            found.append((path, "deleted"))
            continue
        before = _below(lowers, path)
        if not before:
            continue
        if stat.S_ISDIR(here.st_mode) and os.path.isdir(before):
            _walk(upper, lowers, path, found)
        elif not _same(folder + "/" + inner, before):
            found.append((path, "modified"))


def _lost_with_folder(lowers: list[str], name: str, entries: list[str]) -> list[_Change]:
    """What a folder that was deleted and created again has lost."""
    found = []
    for lower in lowers:
        folder = lower + "/" + name
        former = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        for inner in former:
            path = name + "/" + inner
            is_lost = inner not in entries and _below(lowers, path)
            if is_lost and not _HARMLESS.search(path):
                found.append((path, "deleted"))
    return found


def changed_in_layers(upper: str, lowers: list[str]) -> list[_Change]:
    """[(path, V(modified) or V(deleted))] of a container on overlayfs, from the folders of its own
    layer and of its image's layers.
    """
    found: list[_Change] = []
    for name in FOLDERS:
        here = _lstat(upper + "/" + name)
        if here is None or not _below(lowers, name):
            continue
        if _is_whiteout(here):
            found.append((name, "deleted"))
        elif stat.S_ISDIR(here.st_mode):
            _walk(upper, lowers, name, found)
    return [("/" + path, how) for path, how in list(dict.fromkeys(found))[:MOST]]


def parse_diff(text: str) -> list[_Change]:
    """The same from the output of C(docker diff).

    It also lists folders whose content has changed, and files that were only touched.
    """
    rows = [(line[0], line[2:].lstrip("/")) for line in text.splitlines() if line[1:3] == " /"]
    parents = {os.path.dirname(path) for _kind, path in rows}
    found = []
    for kind, path in rows:
        if path.split("/")[0] not in FOLDERS or _HARMLESS.search(path) or path in parents:
            continue
        if kind in ("C", "D"):
            found.append(("/" + path, "deleted" if kind == "D" else "modified"))
    return found[:MOST]
