# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Loads the collection's filters, and the rules that some of them read, once per run.

Ansible forks a process for each task on each host, and what that process loads is lost with it.
"""

from __future__ import annotations

import pkgutil

# ansible-core has no types.
from ansible.plugins.loader import filter_loader  # type: ignore[import-untyped]

from ansible_collections.trainyard.gpu.plugins import filter as filters
from ansible_collections.trainyard.gpu.plugins.plugin_utils._role_input import verify_rules


def load_filters() -> None:
    """Load all filters into this process and those that it forks."""
    verify_rules()
    for module in pkgutil.iter_modules(filters.__path__):
        filter_loader.get("trainyard.gpu." + module.name)
