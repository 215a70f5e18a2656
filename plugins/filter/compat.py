# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible.errors import AnsibleFilterError


def gpu_fit(stack, directory, image_cuda="", asked=None, facts_file=""):
    # Imported when it is called, as Ansible loads all filters of a collection for the first one that a task uses.
    from ansible_collections.trainyard.gpu.plugins.module_utils._gpu_stack import ParseError
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _compat

    try:
        return _compat.gpu_fit(stack, _compat.load_facts(facts_file), directory, image_cuda, asked)
    except ParseError as error:
        raise AnsibleFilterError("gpu_fit: %s" % error) from error


def image_fit(base, known=None, source_fixes=(), horovod="", facts_file="", requires=None, packages=()):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _compat

    return _compat.image_fit(base, _compat.load_facts(facts_file), known or {}, _compat.own_source_fixes() + list(source_fixes), horovod, requires, packages)


def toolkit_version(asked, packages, facts_file=""):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _compat

    return _compat.toolkit_version(str(asked), packages, _compat.load_facts(facts_file))


class FilterModule:
    def filters(self):
        return {"gpu_fit": gpu_fit, "image_fit": image_fit, "toolkit_version": toolkit_version}
