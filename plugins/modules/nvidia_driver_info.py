#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_driver_info
short_description: Find the packages of an NVIDIA driver in apt
version_added: "0.2.0"
description:
  - Finds the requested driver version, exactly, by its branch, or as the distribution's tool
    recommends it, and every package that must have that version.
  - A driver consists of about twenty packages that must have the same version. Apt installs the
    newest version of packages without an explicit one, so this module returns all of them.
  - If it finds none, RV(problem) has the reason with the available versions. That is not a failure.
    The module changes nothing and does not update apt's lists.
options:
  asked:
    description:
      - Package version, NVIDIA's version, or branch; several in order of preference. Empty means
        the newest.
    type: list
    elements: str
    default: ['']
  families:
    description:
      - Lists of packages that make up a driver. The first list whose first package is available as
        requested is used. V(<BR>) in names stands for the branch.
    type: list
    elements: list
    default: []
  repository:
    description: URL of a repository. Only its versions are used, or with O(elsewhere) only those of
      others. Empty means all.
    type: str
    default: ''
  elsewhere:
    description: Whether to ignore the versions in O(repository).
    type: bool
    default: false
  without:
    description:
      - Other repositories whose packages are never used, such as PPAs, as URL and suite separated
        by a space. RV(trainyard.gpu.gpu_stack_info#module:foreign_sources) has them.
    type: list
    elements: str
    default: []
    version_added: "0.4.0"
  installed:
    description: NVIDIA's version of the installed driver. It is preferred if it matches O(asked).
    type: str
    default: ''
  follow:
    description:
      - Whether transitional packages, which contain nothing, are followed to the branch that they
        depend on. Otherwise they are a RV(problem) that names that branch.
    type: bool
    default: false
    version_added: "0.4.0"
  recommended_by:
    description: The tool that returns RV(recommended). It must be installed.
    type: str
    choices: [nvidia-detect, ubuntu-drivers]
  device_ids:
    description: Device ids of the GPUs, for V(nvidia-detect).
    type: list
    elements: str
    default: []
  components:
    description: Required components of the distribution. RV(sources) has those that apt's sources
      lack.
    type: list
    elements: str
    default: []
  codename:
    description: Code name of the distribution's release, for O(components).
    type: str
    default: ''
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
  - trainyard.gpu.attributes.internal
attributes:
  platform:
    platforms: debian
seealso:
  - module: trainyard.gpu.placed_packages
  - module: trainyard.gpu.gpu_stack_info
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Find the packages of the newest driver of branch 570
  trainyard.gpu.nvidia_driver_info:
    asked: ["570"]
    families: [[cuda-drivers-<BR>]]
    repository: https://developer.download.nvidia.com/compute/cuda/repos
  register: driver

- name: Install them
  trainyard.gpu.placed_packages:
    packages: "{{ driver.packages | dictsort | map('join', '=') }}"
    hold: true
    record: /var/lib/trainyard/placed.d/nvidia_driver.packages.json
"""

RETURN = r"""
version:
  description: NVIDIA's version of the driver; empty if no driver matches.
  returned: success
  type: str
  sample: 570.172.08
packages:
  description: Exact versions of all packages of the driver, by name.
  returned: success
  type: dict
recommended:
  description: The package that O(recommended_by) recommends; empty if the tool was not run, or
    recommends no single package for all GPUs.
  returned: success
  type: str
  sample: nvidia-driver-535-server
branch:
  description: The branch in RV(recommended); empty if its name has none.
  returned: success
  type: str
problem:
  description: Why there is no such driver; empty if there is one.
  returned: success
  type: str
sources:
  description: Deb822 paragraphs for apt that add the missing O(components) of the repositories that
    this host uses.
  returned: success
  type: str
"""

import glob
import os
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils import _driver as driver
from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import read_text
from ansible_collections.trainyard.gpu.plugins.module_utils._gpu_stack import (
    parse_transitional,
    upstream,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._packages import (
    ParseError,
    nearest_versions,
    parse_installed,
    parse_madison,
)

SOURCES = [
    "/etc/apt/sources.list",
    "/etc/apt/sources.list.d/*.list",
    "/etc/apt/sources.list.d/*.sources",
]
PREFERENCES = "/etc/apt/preferences"


class Host:
    def __init__(self, module):
        self.module = module

    def run(self, *command):
        path = self.module.get_bin_path(command[0], required=True)
        return self.module.run_command(
            [path] + list(command[1:]), environ_update={"LC_ALL": "C"}, expand_user_and_vars=False
        )

    def recommended(self):
        tool = self.module.params["recommended_by"]
        if tool == "nvidia-detect":
            return driver.parse_nvidia_detect(
                self.run("nvidia-detect", *self.module.params["device_ids"])[1]
            )
        # Older versions do not know the option.
        return driver.parse_ubuntu_drivers(
            self.run("ubuntu-drivers", "list", "--gpgpu", "--recommended")[1],
            self.run("ubuntu-drivers", "devices")[1],
        )

    def installed(self):
        words = self.run(
            "dpkg-query",
            "--show",
            "--showformat",
            "${Package}\\t${Version}\\t${db:Status-Abbrev}\\n",
        )[1]
        return {name: package["version"] for name, package in parse_installed(words).items()}

    def simulated(self, names, versions, version):
        """What apt would install if all driver packages were pinned, and the reason if it
        cannot.
        """
        descriptor, path = tempfile.mkstemp(prefix="trainyard-preferences.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                stream.write(read_text(PREFERENCES) + "\n\n" + driver.pin(version))
            os.chmod(path, 0o644)
            rc, stdout, stderr = self.run(
                "apt-get",
                "--simulate",
                "--no-install-recommends",
                "--allow-change-held-packages",
                "--ignore-hold",
                "--allow-downgrades",
                "--option",
                "Dir::Etc::Preferences=%s" % path,
                "install",
                *["%s=%s" % (name, versions[name]) for name in names],
            )
        finally:
            os.unlink(path)
        reason = " ".join(
            line.strip()
            for line in (stdout + stderr).splitlines()
            if " : " in line or line.startswith("E:")
        )
        return driver.parse_simulated_versions(stdout), reason if rc else ""


def offered(names, offers, requested):
    """The available versions as text."""
    found = [
        "available versions of %s: %s"
        % (name, ", ".join(nearest_versions(requested, offers[name])))
        for name in names
        if offers.get(name)
    ]
    return "; ".join(found) if found else "no usable repository has %s" % ", ".join(names)


def look_up(host, params, requested):
    """The family at a requested version, the versions and the names that apt offers, and the
    packages that transitional ones have become.
    """
    families = driver.expand(params["families"], requested)
    names = list(dict.fromkeys(name for family in families for name in family))
    if not names:
        return None, {}, [], {}
    offers = parse_madison(
        host.run("apt-cache", "madison", *names)[1],
        params["repository"],
        not params["elsewhere"],
        params["without"],
    )
    empty = parse_transitional(host.run("apt-cache", "show", *offers)[1]) if offers else {}
    full = {
        name: [version for version in versions if (name, version) not in empty]
        for name, versions in offers.items()
    }
    became = {
        name: empty[name, version]
        for name, versions in offers.items()
        for version in versions
        if driver.fits(version, requested) and (name, version) in empty
    }
    anchors = list(dict.fromkeys(family[0] for family in families))
    return driver.resolve(families, full, requested, params["installed"]), full, anchors, became


def choose(host, params, result):
    for requested in params["asked"]:
        chosen, offers, anchors, became = look_up(host, params, requested)
        expected, ways = anchors, []
        # The branch that a branch has become may have become another one.
        while not chosen and [name for name in anchors if name in became]:
            ways.append(next(became[name] for name in anchors if name in became))
            if ways.count(ways[-1]) > 1:
                break
            chosen, offers, anchors, became = look_up(host, params, driver.branch_of(ways[-1]))
        if chosen and (params["follow"] or not ways):
            result["problem"] = ""
            return judge(host, chosen, offers, became, result)
        result["problem"] += "; " if result["problem"] else ""
        if ways:
            result["problem"] += (
                "driver %s is a transitional package without content (%s), which leads to %s: "
                "request driver %s, or another source of the driver"
            ) % (requested, expected[0], ways[-1], driver.branch_of(ways[-1]))
        else:
            result["problem"] += "no driver %s: %s" % (
                requested,
                offered(anchors, offers, requested),
            )
    if params["without"]:
        result["problem"] += (
            "; %s is neither the distribution's nor NVIDIA's and was not used: if it is a "
            "mirror of the distribution, "
            "list it in package_sources_apt_repositories" % ", ".join(params["without"])
        )
    return None


def judge(host, chosen, offers, became, result):
    number = upstream(chosen["version"])
    versions, absent = {}, []
    for name in chosen["names"]:
        fitting = [version for version in offers.get(name, []) if upstream(version) == number]
        if not fitting and driver.OUT_OF_STEP.fullmatch(name):
            fitting = offers.get(name)
        versions[name] = chosen["version"] if name == chosen["names"][0] else (fitting or [""])[0]
        absent += [name] if not versions[name] else []
    if absent:
        result["problem"] = "driver %s is incomplete: %s" % (
            number,
            offered(absent, offers, number),
        )
        gone = [
            "%s is empty and leads to %s" % (name, became[name])
            for name in absent
            if name in became
        ]
        result["problem"] += "".join("; " + each for each in gone)
        return
    brought, reason = host.simulated(chosen["names"], versions, chosen["version"])
    if reason:
        result["problem"] = "apt cannot install driver %s: %s" % (number, reason)
        return
    result["version"] = number
    result["packages"] = driver.closure(
        chosen["names"],
        {name: [version] for name, version in versions.items()},
        chosen["version"],
        brought,
        host.installed(),
    )


def main():
    module = AnsibleModule(
        argument_spec={
            "asked": {"type": "list", "elements": "str", "default": [""]},
            "families": {"type": "list", "elements": "list", "default": []},
            "repository": {"type": "str", "default": ""},
            "elsewhere": {"type": "bool", "default": False},
            "without": {"type": "list", "elements": "str", "default": []},
            "installed": {"type": "str", "default": ""},
            "follow": {"type": "bool", "default": False},
            "recommended_by": {"type": "str", "choices": ["nvidia-detect", "ubuntu-drivers"]},
            "device_ids": {"type": "list", "elements": "str", "default": []},
            "components": {"type": "list", "elements": "str", "default": []},
            "codename": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    result = {
        "version": "",
        "packages": {},
        "recommended": "",
        "branch": "",
        "problem": "",
        "sources": "",
    }
    if module.params["components"]:
        files = {path: read_text(path) for pattern in SOURCES for path in glob.glob(pattern)}
        result["sources"] = driver.lacking_components(
            files, module.params["codename"], module.params["components"]
        )
    host = Host(module)
    try:
        if module.params["recommended_by"]:
            result["recommended"] = host.recommended()
            result["branch"] = driver.branch_of(result["recommended"])
        if module.params["families"]:
            choose(host, module.params, result)
    except ParseError as error:
        module.fail_json(
            msg="the output of apt and dpkg about the driver cannot be parsed: %s. Run 'dpkg "
            "--audit' on the host, and repair what it lists. If "
            "it lists nothing, report the line as a fault of the collection" % error
        )
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
