#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: package_way_back
short_description: Restore packages to their state before a change
version_added: "0.2.0"
description:
  - Restores, in one transaction, the packages that differ between O(before) and O(after) -
    versions, holds and marks. New packages are removed.
  - Packages that were changed after O(after) stay, and so do all packages that the change did not
    modify.
  - If apt would change other packages as well, or no longer has a former version, nothing is
    changed.
author:
  - trainyard maintainers (@trainyard)
options:
  before:
    description: Result of M(trainyard.gpu.package_list_info) before the change.
    type: dict
    required: true
  after:
    description: Its result after the change. If empty, the current state counts as the result of
      the change.
    type: dict
    default: {}
  lock_timeout:
    description: Maximum time in seconds to wait for another run of apt or dpkg.
    type: int
    default: 600
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.internal
attributes:
  check_mode:
    support: full
    details:
      - Check mode does not run apt, because its lists may be missing or old.
  diff_mode:
    support: full
  platform:
    platforms: debian
seealso:
  - module: trainyard.gpu.package_list_info
"""

EXAMPLES = r"""
- name: Restore the packages from before the upgrade
  trainyard.gpu.package_way_back:
    before: "{{ before.packages }}"
    after: "{{ after.packages }}"
"""

RETURN = r"""
installed:
  description: Packages restored to their former version, as name=version.
  returned: success
  type: list
  elements: str
removed:
  description: Packages that the change had installed and that were removed.
  returned: success
  type: list
  elements: str
kept:
  description: Packages that the change had modified and that were changed again since then. They
    stay unchanged.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils import _packages

# Keep the site's configuration files without an interactive question.
QUIETLY = [
    "--quiet",
    "--assume-yes",
    "--option",
    "Dpkg::Options::=--force-confdef",
    "--option",
    "Dpkg::Options::=--force-confold",
]
OPTIONS = [
    "--no-install-recommends",
    "--allow-downgrades",
    "--allow-change-held-packages",
    "--purge",
]


class Apt:
    def __init__(self, module):
        self.module = module

    def run(self, *command):
        return self.module.run_command(
            [self.module.get_bin_path(command[0], required=True)] + list(command[1:]),
            environ_update=dict(_packages.APT_ENVIRONMENT, LC_ALL="C"),
            expand_user_and_vars=False,
        )

    def get(self, *arguments):
        return self.run(
            "apt-get",
            "--option",
            "DPkg::Lock::Timeout=%d" % self.module.params["lock_timeout"],
            *arguments,
        )

    def must(self, *command):
        rc, stdout, stderr = self.run(*command)
        if rc:
            self.fail(" ".join(command[:2]), stdout, stderr)

    def fail(self, what, stdout, stderr):
        lines = [line for line in (stderr or stdout).strip().splitlines() if line.strip()]
        self.module.fail_json(
            msg=(
                "%s: %s\nCorrect what the message names, or install the former versions yourself, "
                "and run this again"
            )
            % (what, "\n".join(lines[-8:])),
            stdout=stdout,
            stderr=stderr,
        )

    def states(self):
        return _packages.parse_states(
            self.run("dpkg-query", "--show", "--showformat", _packages.STATES_FORMAT)[1],
            self.run("apt-mark", "showauto")[1].split(),
        )

    def simulate(self, requested):
        rc, stdout, stderr = self.get("--simulate", *OPTIONS, "install", *requested)
        if rc:
            # The lists may be older than the repository.
            self.get("--quiet", "update")
            rc, stdout, stderr = self.get("--simulate", *OPTIONS, "install", *requested)
        if rc:
            self.fail(
                "apt cannot restore %s; nothing was changed" % " ".join(requested), stdout, stderr
            )
        return _packages.parse_simulation(stdout)

    def bring_back(self, plan):
        requested = plan["install"] + [name + "-" for name in plan["remove"]]
        if requested:
            expected = {
                _packages.split_package(package)[0].partition(":")[0] for package in plan["install"]
            }
            does = self.simulate(requested)
            strays = [name for name in does["installed"] if name not in expected]
            strays += [
                name
                for name in does["removed"]
                if name not in {name.partition(":")[0] for name in plan["remove"]} | expected
            ]
            if strays:
                self.module.fail_json(
                    msg="to restore %s apt would also change %s; nothing was changed. Change these "
                    "packages yourself with apt, and run this "
                    "again" % (" ".join(requested), ", ".join(strays))
                )
            rc, stdout, stderr = self.get(*(QUIETLY + OPTIONS), "install", *requested)
            if rc:
                self.fail("apt-get install %s" % " ".join(requested), stdout, stderr)
        for mark in ("unhold", "hold"):
            if plan[mark]:
                self.must("apt-mark", mark, *plan[mark])
        if plan["automatic"]:
            self.must("apt-mark", "auto", *plan["automatic"])


def shown(states, names):
    return "".join(
        "%s %s %s\n" % (name, states[name]["version"], states[name]["status"])
        for name in sorted(names)
        if name in states
    )


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
        touched = {
            _packages.split_package(package)[0]
            for part in ("install", "remove", "hold", "unhold", "automatic")
            for package in plan[part]
        }
        if touched and not module.check_mode:
            apt.bring_back(plan)
    except _packages.ParseError as error:
        module.fail_json(
            msg="the output of apt and dpkg cannot be parsed: %s. Run 'dpkg --audit' on the host, "
            "and repair what it lists. If it lists nothing, "
            "report the line as a fault of the collection" % error
        )
    module.exit_json(
        changed=bool(touched),
        installed=plan["install"],
        removed=plan["remove"],
        kept=plan["kept"],
        diff={"before": shown(now, touched), "after": shown(before, touched)},
    )


if __name__ == "__main__":
    main()
