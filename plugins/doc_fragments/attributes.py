# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What every plugin says of check mode and diff mode, in the words of ansible-core's own fragment of this name."""

from __future__ import annotations


class ModuleDocFragment:
    # The frame: a plugin that uses it fills in support (and details) itself.
    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying target.
  diff_mode:
    description: Returns details on what has changed, or would change in check mode, when run in diff mode.
"""

    # A module that only looks: the same answer in check mode, and never a difference to show.
    INFO_MODULE = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying target.
    support: full
    details:
      - This module does not change anything, so it answers the same in check mode.
  diff_mode:
    description: Returns details on what has changed, or would change in check mode, when run in diff mode.
    support: N/A
    details:
      - This module does not change anything.
"""
