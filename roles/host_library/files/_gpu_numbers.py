# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Numbers of GPUs as Slurm writes them."""

from __future__ import annotations

import re

from _messages import Refused

#: No host has more GPUs.
MOST_GPUS = 1024


def numbers_of(text: str) -> list[int]:
    """Return the numbers of 0,2-3. Names (UUIDs) are left out. Numbers that no GPU has are refused."""
    found = []
    for part in text.split(","):
        match = re.match(r"(\d+)(?:-(\d+))?$", part.strip())
        if not match:
            continue
        first, last = int(match.group(1)), int(match.group(2) or match.group(1))
        if last >= MOST_GPUS:
            raise Refused("'%.80s' has GPUs after the number %d" % (text, MOST_GPUS - 1))
        found += range(first, last + 1)
    return found
