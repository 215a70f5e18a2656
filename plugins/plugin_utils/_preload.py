# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Loads the collection's filters, their functions, and the rules that some of them read, once per
run.

Ansible forks a process for each task on each host, and what that process loads is lost with it.
"""

from __future__ import annotations

import importlib
import pkgutil

from ansible.plugins.loader import filter_loader

from ansible_collections.trainyard.gpu.plugins import filter as filters
from ansible_collections.trainyard.gpu.plugins.plugin_utils._decisions import DECISIONS, PLUGINS
from ansible_collections.trainyard.gpu.plugins.plugin_utils._role_input import verify_rules

#: What one host of a run needs at most, and takes long because of its regular expressions.
LATE = {
    "plugin_utils._bandwidth_checks",
    "plugin_utils._bandwidth_tool",
    "plugin_utils._session_checks",
}


def load_filters() -> None:
    """Load all filters and their functions into this process and those that it forks."""
    verify_rules()
    for module in pkgutil.iter_modules(filters.__path__):
        filter_loader.get("trainyard.gpu." + module.name)
    for name in sorted({path.rpartition(".")[0] for path in DECISIONS.values()} - LATE):
        importlib.import_module(PLUGINS + name)
