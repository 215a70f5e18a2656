# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Options of the modules that run a tool on the host or in a container.

Each module adds its own defaults.
"""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  container:
    description: Name or id of a running container in which the tool runs, with C(docker exec).
    type: str
  timeout:
    description: Seconds after which the tool is killed, 1 or more.
    type: int
attributes:
  action_group:
    description: Use C(group/trainyard.gpu.tools) in C(module_defaults) to set defaults for this
      module.
    support: full
    membership: [trainyard.gpu.tools]
requirements:
  - Docker's command line client, if the tool runs in a container
"""

    # For a module with one tool, which may be replaced.
    EXECUTABLE = r"""
options:
  executable:
    description: Name on the PATH, or path, of the tool where it runs.
    type: str
"""
