# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What all parsers raise.

Those whose file runs in images have a class of their own, because nothing else is beside them.
"""

from __future__ import annotations


class ParseError(ValueError):
    """Text that is not in the expected format.

    The message says which, and shows the line or the place.
    """
