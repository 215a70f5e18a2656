#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: package_list_info
short_description: List every package that dpkg knows
version_added: "0.2.0"
description:
  - Returns version and state of all packages, so that M(trainyard.gpu.package_way_back) can restore
    those that a change has modified.
author:
  - trainyard maintainers (@trainyard)
options: {}
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
  - trainyard.gpu.attributes.internal
attributes:
  platform:
    platforms: debian
seealso:
  - module: trainyard.gpu.package_way_back
"""

EXAMPLES = r"""
- name: Record the installed packages
  trainyard.gpu.package_list_info:
  register: before
"""

RETURN = r"""
packages:
  description: By name - version, status (the two letters of C(dpkg --list)), and automatic, whether
    it was installed as a dependency.
  returned: success
  type: dict
  sample: {libnccl2: {version: 2.21.5-1+cuda12.4, status: hi, automatic: false}}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils import _packages


def main():
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    module.run_command_environ_update = {"LC_ALL": "C"}
    listed = module.run_command(
        [
            module.get_bin_path("dpkg-query", required=True),
            "--show",
            "--showformat",
            _packages.STATES_FORMAT,
        ],
        check_rc=True,
    )[1]
    automatic = module.run_command(
        [module.get_bin_path("apt-mark", required=True), "showauto"], check_rc=True
    )[1].split()
    try:
        packages = _packages.parse_states(listed, automatic)
    except _packages.ParseError as error:
        module.fail_json(
            msg="the list of packages cannot be parsed: %s. Run 'dpkg --audit' on the host, and "
            "repair what it lists. If it lists nothing, report "
            "the line as a fault of the collection" % error
        )
    module.exit_json(changed=False, packages=packages)


if __name__ == "__main__":
    main()
