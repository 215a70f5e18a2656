#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: package_way_back
short_description: Restore packages to their state before a change
version_added: "0.2.0"
description:
  - Brings back, in one transaction, the packages that differ between O(before) and O(after) - former versions, holds and marks, and what came new goes.
  - Packages that somebody has changed since O(after) stay, and so do all that the change did not touch.
  - Where apt would do anything else for it, or doesn't know a former version any more, nothing is changed.
author:
  - trainyard maintainers (@trainyard)
options:
  before:
    description: What M(trainyard.gpu.package_list_info) said before the change.
    type: dict
    required: true
  after:
    description: What it said after the change. Empty means that nobody could ask any more; what is there now is taken for what the change has left.
    type: dict
    default: {}
  lock_timeout:
    description: How long in seconds another run of apt or dpkg is waited for.
    type: int
    default: 600
extends_documentation_fragment:
  - trainyard.gpu.attributes
attributes:
  check_mode:
    support: full
    details:
      - Check mode does not ask apt, as its lists may be missing or old.
  diff_mode:
    support: full
seealso:
  - module: trainyard.gpu.package_list_info
"""

EXAMPLES = r"""
- name: Take back the upgrade
  trainyard.gpu.package_way_back:
    before: "{{ before.packages }}"
    after: "{{ after.packages }}"
"""

RETURN = r"""
installed:
  description: Packages that have their former version again, as name=version.
  returned: success
  type: list
  elements: str
removed:
  description: Packages that the change had brought, and that are gone.
  returned: success
  type: list
  elements: str
kept:
  description: Packages that the change had touched and somebody else since then, and that stay as they are.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils import _packages

# Settings of the site's stay as they are, without a question that nobody answers.
QUIETLY = ["--quiet", "--assume-yes", "--option", "Dpkg::Options::=--force-confdef", "--option", "Dpkg::Options::=--force-confold"]
OPTIONS = ["--no-install-recommends", "--allow-downgrades", "--allow-change-held-packages", "--purge"]


class Apt:
    def __init__(self, module):
        self.module = module

    def run(self, *command):
        return self.module.run_command([self.module.get_bin_path(command[0], required=True)] + list(command[1:]),
                                       environ_update={"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}, expand_user_and_vars=False)

    def get(self, *arguments):
        return self.run("apt-get", "--option", "DPkg::Lock::Timeout=%d" % self.module.params["lock_timeout"], *arguments)

    def must(self, *command):
        rc, stdout, stderr = self.run(*command)
        if rc:
            self.fail(" ".join(command[:2]), stdout, stderr)

    def fail(self, what, stdout, stderr):
        lines = [line for line in (stderr or stdout).strip().splitlines() if line.strip()]
        self.module.fail_json(msg="%s: %s" % (what, "\n".join(lines[-8:])), stdout=stdout, stderr=stderr)

    def states(self):
        return _packages.parse_states(self.run("dpkg-query", "--show", "--showformat", _packages.STATES_FORMAT)[1], self.run("apt-mark", "showauto")[1].split())

    def simulate(self, asked):
        rc, stdout, stderr = self.get("--simulate", *OPTIONS, "install", *asked)
        if rc:
            # The lists may be older than the repository.
            self.get("--quiet", "update")
            rc, stdout, stderr = self.get("--simulate", *OPTIONS, "install", *asked)
        if rc:
            self.fail("apt can't bring back %s, and nothing has been changed" % " ".join(asked), stdout, stderr)
        return _packages.parse_simulation(stdout)

    def bring_back(self, plan):
        asked = plan["install"] + [name + "-" for name in plan["remove"]]
        if asked:
            wanted = {_packages.split_package(package)[0].partition(":")[0] for package in plan["install"]}
            does = self.simulate(asked)
            strays = [name for name in does["installed"] if name not in wanted]
            strays += [name for name in does["removed"] if name not in {name.partition(":")[0] for name in plan["remove"]} | wanted]
            if strays:
                self.module.fail_json(msg="to bring back %s apt would also touch %s; nothing has been changed" % (" ".join(asked), ", ".join(strays)))
            rc, stdout, stderr = self.get(*(QUIETLY + OPTIONS), "install", *asked)
            if rc:
                self.fail("apt-get install %s" % " ".join(asked), stdout, stderr)
        for mark in ("unhold", "hold"):
            if plan[mark]:
                self.must("apt-mark", mark, *plan[mark])
        if plan["automatic"]:
            self.must("apt-mark", "auto", *plan["automatic"])


def shown(states, names):
    return "".join("%s %s %s\n" % (name, states[name]["version"], states[name]["status"]) for name in sorted(names) if name in states)


def main():
    module = AnsibleModule(
        argument_spec={
            "before": {"type": "dict", "required": True},
            "after": {"type": "dict", "default": {}},
            "lock_timeout": {"type": "int", "default": 600},
        },
        supports_check_mode=True,
    )
    apt = Apt(module)
    try:
        before, now = module.params["before"], apt.states()
        plan = _packages.way_back(before, module.params["after"], now)
        touched = {_packages.split_package(package)[0] for part in ("install", "remove", "hold", "unhold", "automatic") for package in plan[part]}
        if touched and not module.check_mode:
            apt.bring_back(plan)
    except _packages.ParseError as error:
        module.fail_json(msg="what apt and dpkg say can't be read: %s" % error)
    module.exit_json(changed=bool(touched), installed=plan["install"], removed=plan["remove"], kept=plan["kept"],
                     diff={"before": shown(now, touched), "after": shown(before, touched)})


if __name__ == "__main__":
    main()
