# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What modules and programs on hosts tell people: texts that can be printed, lines of a log, and
why something is not done.
"""

from __future__ import annotations

import contextlib
import os


class Refused(Exception):
    """What was requested cannot be done. The message is for the person, and ends the program."""


def printable(text: str, instead: str = "?") -> str:
    """Return a text of people or hosts for a terminal, a table or a mail: with C(instead) for each
    character that cannot be printed, such as a line break.
    """
    strange = {letter for letter in text if not letter.isprintable()}
    return text.translate({ord(letter): instead for letter in strange})


def say(text: object, descriptor: int = 1) -> None:
    """Write a line to the log, unless the share is full: what follows has to be done anyway.

    It has no buffer, which Python would write once more at its end and then change the exit code.
    """
    with contextlib.suppress(OSError):
        os.write(descriptor, ("trainyard: %s\n" % text).encode("utf-8", "replace"))
