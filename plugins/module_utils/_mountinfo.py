# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The only reader of /proc/PID/mountinfo: text in, mounts out.

People choose names of mount points. The kernel writes blanks, tabs, line breaks and backslashes in
them as octal codes. What else Python takes for the end of a line or of a word is part of the name.
If Python has read such a name as a line break, the parts of its line are too short to be a mount,
and are left out.

Programs for hosts get this file as text, beside them.
"""

from __future__ import annotations

import re

from typing import TypedDict


class Mount(TypedDict):
    """A mount.

    C(options) are those of its mount point (C(own_options)) and of its file system
    (C(system_options)) together.
    """

    path: str
    source: str
    type: str
    own_options: list[str]
    system_options: list[str]
    options: list[str]


def parse_mountinfo(text: str) -> list[Mount]:
    """Return the mounts in their order."""
    mounts: list[Mount] = []
    for line in text.split("\n"):
        before, _dash, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if len(fields) < 6 or len(rest) < 2:
            continue
        own = fields[5].split(",")
        of_system = rest[2].split(",") if len(rest) > 2 else []
        mounts.append(
            {
                "path": unescaped(fields[4]),
                "source": unescaped(rest[1]),
                "type": rest[0],
                "own_options": own,
                "system_options": of_system,
                "options": list(dict.fromkeys(own + of_system)),
            }
        )
    return mounts


def mount_of(path: str, mounts: list[Mount]) -> Mount:
    """Return the mount of a path (without links): the longest matching one, and of these the last,
    which covers the earlier ones.

    Without any, its texts and lists are empty.
    """
    best: Mount = {
        "path": "",
        "source": "",
        "type": "",
        "own_options": [],
        "system_options": [],
        "options": [],
    }
    for mount in mounts:
        point = mount["path"].rstrip("/")
        if (path + "/").startswith(point + "/") and len(mount["path"]) >= len(best["path"]):
            best = mount
    return best


def unescaped(text: str) -> str:
    """Return a text without the octal codes of the kernel and of exportfs, such as \\040 for a
    blank.
    """
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code.group(1), 8)), text)
