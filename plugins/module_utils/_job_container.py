# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a host has for jobs in rootless containers: text of /proc, of podman's files and of docker
in, data out.
"""

from __future__ import annotations

import json
import re

from typing import Iterable, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._mountinfo import (
    mount_of,
    parse_mountinfo,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._parse_error import ParseError

__all__ = [
    "ParseError",
    "device_number",
    "file_system_of",
    "has_capability",
    "has_project_quota",
    "is_mount",
    "masked_paths",
    "mount_options",
    "parse_docker_images",
    "parse_store",
    "store_is_open",
]

# File systems that the kernel or systemd mounts below /proc. Everything else there hides a part of
# it.
_OF_PROC = ("autofs", "binfmt_misc", "nfsd", "rpc_pipefs", "proc")

#: VERSION of roles/job_container/files/clean_store.py.
CLEAN_MARK = "1\n"


class Image(TypedDict):
    """An image of podman's store."""

    id: str
    names: list[str]


def file_system_of(path: str, mountinfo: str) -> str:
    """Return the type of the file system of a path, '' for no mounts."""
    return mount_of(path, parse_mountinfo(mountinfo))["type"]


def has_project_quota(path: str, mountinfo: str) -> bool:
    """Return whether the file system of a path is mounted with project quotas.

    XFS also calls them pquota.
    """
    mount = mount_of(path, parse_mountinfo(mountinfo))
    return bool({"prjquota", "pquota"} & set(mount["system_options"]))


def is_mount(path: str, mountinfo: str) -> bool:
    """Return whether something is mounted at a path."""
    return any(mount["path"] == path for mount in parse_mountinfo(mountinfo))


def has_capability(status: str, number: int) -> bool:
    """Return whether a process has a capability, from the text of /proc/PID/status."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.M)
    return found is not None and bool(int(found.group(1), 16) >> number & 1)


def mount_options(path: str, mountinfo: str) -> list[str]:
    """Return the options of the last mount at a path, which hides the earlier ones.

    Without a mount there are none.
    """
    found: list[str] = []
    for mount in parse_mountinfo(mountinfo):
        if mount["path"] == path:
            found = mount["own_options"]
    return found


def store_is_open(mark: str, modes: Iterable[int]) -> bool:
    """Return whether program clean-store has cleaned all layers of a store and opened them.

    C(mark) is its mark, C(modes) are the modes of their folders.
    """
    return mark == CLEAN_MARK and all(mode & 0o001 for mode in modes)


def masked_paths(mountinfo: str) -> list[str]:
    """Return the mounts that hide or protect parts of /proc.

    With one of them the kernel mounts no proc in a user's own namespaces.
    """
    found = set()
    for mount in parse_mountinfo(mountinfo):
        is_protected = mount["type"] == "proc" and "ro" in mount["own_options"]
        hides = mount["type"] not in _OF_PROC or is_protected
        if mount["path"].startswith("/proc/") and hides:
            found.add(mount["path"])
    return sorted(found)


def parse_store(text: str) -> list[Image]:
    """Return the images of a store, C(id) and C(names) of each, from its images.json.

    A missing store has none.
    """
    if not text.strip():
        return []
    try:
        images = json.loads(text)
        return [{"id": image["id"], "names": list(image.get("names") or [])} for image in images]
    except (ValueError, TypeError, KeyError) as error:
        raise ParseError("images.json of the image store: %s in: %.120r" % (error, text)) from error


def parse_docker_images(text: str) -> dict[str, str]:
    """Return the IDs of images by name, from the lines NAME ID of ``docker image ls
    --no-trunc``.
    """
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) != 2 or not re.fullmatch(r"(sha256:)?[0-9a-f]{12,64}", words[1]):
            raise ParseError("docker image ls: no name and ID in: %.120r" % line)
        found[words[0]] = words[1]
    return found


def device_number(path: str, pattern: str = r"/dev/nvidia(\d+)") -> int | None:
    """Return the number of a GPU's device node, None for another path."""
    found = re.fullmatch(pattern, path)
    return int(found.group(1)) if found else None
