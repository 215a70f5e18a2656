# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A number and its noun, for messages."""

from __future__ import annotations

__all__ = ["quantity"]


def quantity(count: int, noun: str) -> str:
    """Return 1 GPU, 2 GPUs. Only for nouns that take an s."""
    return "%d %s%s" % (count, noun, "" if count == 1 else "s")
