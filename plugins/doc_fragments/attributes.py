# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check mode and diff mode of every plugin, in the wording of ansible-core's fragment of this name."""

from __future__ import annotations


class ModuleDocFragment:
    # A plugin that uses it adds support and details.
    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying target.
  diff_mode:
    description: Returns details on what has changed, or would change in check mode, when run in diff mode.
"""

    # For modules that only read: same result in check mode, never a diff.
    INFO_MODULE = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying target.
    support: full
    details:
      - This module does not change anything, so its result is the same in check mode.
  diff_mode:
    description: Returns details on what has changed, or would change in check mode, when run in diff mode.
    support: N/A
    details:
      - This module does not change anything.
"""
