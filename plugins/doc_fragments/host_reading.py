# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Options of the modules that read for a role, in one run, what it has placed on a host and what it
needs.
"""

from __future__ import annotations


class ModuleDocFragment:
    # The record is not here: one role requires it. A module with another default of texts repeats
    # that option.
    DOCUMENTATION = r"""
options:
  packages:
    description: Names of packages whose versions are returned. A module may return others in
      addition.
    type: list
    elements: str
    default: []
  files:
    description: Absolute paths of files whose checksums are returned.
    type: list
    elements: path
    default: []
  texts:
    description: Absolute paths of files whose content is returned. The content must not be secret.
    type: list
    elements: path
    default: []
"""
