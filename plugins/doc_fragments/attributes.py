# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check mode, diff mode and platform of every module, in the wording of ansible-core's fragment of
this name, and who a module is for.
"""

from __future__ import annotations


class ModuleDocFragment:
    # A module that uses it adds support and details. It also overrides the platform if it needs
    # apt, or runs on the controller only.
    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying
      target.
  diff_mode:
    description: Returns details on what has changed, or would change in check mode, when run in
      diff mode.
  platform:
    description: Target operating systems and families.
    support: full
    platforms: linux
"""

    # For modules that only read: same result in check mode, never a diff.
    INFO_MODULE = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying
      target.
    support: full
    details:
      - This module does not change anything, so its result is the same in check mode.
  diff_mode:
    description: Returns details on what has changed, or would change in check mode, when run in
      diff mode.
    support: N/A
    details:
      - This module does not change anything.
"""

    # For those of them that run on any system, alone: most of them run on the controller.
    # In full, as ansible-test reads texts only.
    POSIX_INFO = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying
      target.
    support: full
    details:
      - This module does not change anything, so its result is the same in check mode.
  diff_mode:
    description: Returns details on what has changed, or would change in check mode, when run in
      diff mode.
    support: N/A
    details:
      - This module does not change anything.
  platform:
    description: Target operating systems and families.
    support: full
    platforms: posix
"""

    # Ansible cannot hide a module. docs/architecture.md lists the public and the internal ones.
    INTERNAL = r"""
options: {}
notes:
  - Internal to the roles of this collection. Its options may change in a minor release.
"""

    # For information modules that an action plugin with KnownAnswer sends.
    KNOWN = r"""
options:
  known:
    description:
      - What an earlier module run of the same play has answered to the same options. If it is not empty, it is returned, and nothing is sent to
        the host.
      - Use it only if nothing on the host can have changed since.
    type: dict
    default: {}
    version_added: "0.4.0"
  question:
    description:
      - Name of a variable with the other options. It is evaluated only if O(known) is empty. An
        option of the task overrides the one in the variable.
    type: str
    default: ''
    version_added: "0.4.0"
"""
