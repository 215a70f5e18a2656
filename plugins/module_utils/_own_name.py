# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The hostname in /etc/hosts, moved from the loopback to an address, in marked lines, so that it
can be restored exactly.
"""

from __future__ import annotations

import re

__all__ = ["BEGIN", "END", "with_own_name", "without_own_name"]

# Hosts have these lines: with other words, those of an earlier release would be left behind.
BEGIN = (
    "# Begin of trainyard.gpu's lines for this host's own name; behind the sign, what stood here."
)
END = "# End of trainyard.gpu's lines for this host's own name."
_KEPT = "#= "
_LOOPBACK = re.compile(r"127\.|::1$")


def without_own_name(text: str) -> str:
    """The former file: the commented lines replace the marked ones."""
    lines: list[str] = []
    ours: list[str] | None = None
    for line in text.split("\n"):
        if line == BEGIN and ours is None:
            ours = [line]
        elif ours is None:
            lines.append(line)
        else:
            ours.append(line)
            if line == END:
                lines += [each[len(_KEPT) :] for each in ours if each.startswith(_KEPT)]
                ours = None
    # The end marker was removed, so the end of the lines is unknown.
    return text if ours is not None else "\n".join(lines)


def with_own_name(text: str, hostname: str, address: str) -> str:
    """The file with the own name at the address instead of the loopback; unchanged if no line has
    it there.

    Other names of such a line, mainly localhost, stay on the loopback. The name is moved both with
    and without its domain.
    """
    lines: list[str] = []
    short, before = hostname.partition(".")[0], without_own_name(text).split("\n")
    if BEGIN in before:
        return text
    for line in before:
        words = line.partition("#")[0].split()
        own = [word for word in words[1:] if word.partition(".")[0] == short]
        if not own or short == "localhost" or not _LOOPBACK.match(words[0]):
            lines.append(line)
            continue
        others = [word for word in words[1:] if word.partition(".")[0] != short]
        lines += [BEGIN, _KEPT + line]
        lines += [" ".join([words[0], *others])] if others else []
        lines += [" ".join([address, *own]), END]
    return "\n".join(lines)
