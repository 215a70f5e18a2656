# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible.errors import AnsibleFilterError


def bandwidth_tool(image, asked, gpus, on_host=False, frameworks=None, problems=None):
    # Imported when it is called, as Ansible loads all filters of a collection for the first one that a task uses.
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _bandwidth_tool

    if asked not in ("auto",) + _bandwidth_tool.TOOLS:
        raise AnsibleFilterError("bandwidth_tool: '%s' is not a tool; use auto, %s" % (asked, ", ".join(_bandwidth_tool.TOOLS)))
    return _bandwidth_tool.choose(asked, gpus, image, on_host, frameworks, problems)


def bandwidth_of_nccl_tests(together, alone, before, after, gpus, plan, image=()):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _bandwidth_tool

    told = _bandwidth_tool.told_by_tasks(alone, before, after)
    return _bandwidth_tool.of_nccl_tests(told["alone"], together, told["facts"], told["after"], gpus, plan, image)


def bandwidth_with_search(found, job, tail=()):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _bandwidth_tool

    return _bandwidth_tool.with_search(found, job, tail)


class FilterModule:
    """Filters for the tool that measures the bandwidth and its result."""

    def filters(self):
        return {"bandwidth_tool": bandwidth_tool, "bandwidth_of_nccl_tests": bandwidth_of_nccl_tests, "bandwidth_with_search": bandwidth_with_search}
