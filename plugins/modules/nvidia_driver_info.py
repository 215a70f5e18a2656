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
  - Finds the version of a driver that is asked for, exactly, by its branch, or as the distribution's own tool recommends it, and every package that has
    to be of that version.
  - A driver is some twenty packages that must be of one version. Apt takes the newest of those that it isn't told about; so this module tells all of them.
  - What it can't find is a RV(problem), with what there is instead, and no failure. It changes nothing, and does not update apt's lists.
options:
  asked:
    description:
      - Version of the package, NVIDIA's own version, or the branch; several of them in the order of preference. Empty means the newest.
    type: list
    elements: str
    default: ['']
  families:
    description:
      - Lists of packages that make up a driver, of which the first list is taken whose first package is to be had as asked. V(<BR>) in names stands for
        the branch.
    type: list
    elements: list
    default: []
  repository:
    description: URL of a repository. Versions of its own are taken, or with O(elsewhere) only others'. Empty means all.
    type: str
    default: ''
  elsewhere:
    description: Whether what is in O(repository) doesn't count.
    type: bool
    default: false
  without:
    description:
      - Other repositories whose packages are never taken, such as PPAs, as URL and suite with a space between them.
        RV(trainyard.gpu.gpu_stack_info#module:foreign_sources) has them.
    type: list
    elements: str
    default: []
    version_added: "0.3.0"
  installed:
    description: NVIDIA's version of the driver that the host has. It is preferred where it is as asked.
    type: str
    default: ''
  recommended_by:
    description: The tool that is asked for RV(recommended). It has to be installed.
    type: str
    choices: [nvidia-detect, ubuntu-drivers]
  device_ids:
    description: Device ids of the GPUs, for V(nvidia-detect).
    type: list
    elements: str
    default: []
  components:
    description: Components of the distribution that are needed. RV(sources) has what apt's sources lack.
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
seealso:
  - module: trainyard.gpu.placed_packages
  - module: trainyard.gpu.gpu_stack_info
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Ask which packages make up the newest driver of branch 570
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
  description: NVIDIA's version of the driver; empty where nothing is as asked.
  returned: success
  type: str
  sample: 570.172.08
packages:
  description: Exact versions by package, of all that belongs to the driver.
  returned: success
  type: dict
recommended:
  description: The package that O(recommended_by) recommends; empty where it was not asked, or recommends no one for all GPUs.
  returned: success
  type: str
  sample: nvidia-driver-535-server
branch:
  description: The branch in RV(recommended); empty where its name has none.
  returned: success
  type: str
problem:
  description: Why there is no such driver; empty where there is one.
  returned: success
  type: str
sources:
  description: Paragraphs for apt, in deb822 format, that add the O(components) that are lacking from the repositories that this host uses.
  returned: success
  type: str
"""

import glob
import os
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils import _driver as driver
from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import read_text
from ansible_collections.trainyard.gpu.plugins.module_utils._gpu_stack import upstream
from ansible_collections.trainyard.gpu.plugins.module_utils._packages import ParseError, nearest_versions, parse_installed, parse_madison

SOURCES = ["/etc/apt/sources.list", "/etc/apt/sources.list.d/*.list", "/etc/apt/sources.list.d/*.sources"]
PREFERENCES = "/etc/apt/preferences"


class Host:
    def __init__(self, module):
        self.module = module

    def run(self, *command):
        path = self.module.get_bin_path(command[0], required=True)
        return self.module.run_command([path] + list(command[1:]), environ_update={"LC_ALL": "C"}, expand_user_and_vars=False)

    def recommended(self):
        tool = self.module.params["recommended_by"]
        if tool == "nvidia-detect":
            return driver.parse_nvidia_detect(self.run("nvidia-detect", *self.module.params["device_ids"])[1])
        # Older ones don't know the option.
        return driver.parse_ubuntu_drivers(self.run("ubuntu-drivers", "list", "--gpgpu", "--recommended")[1]) or \
            driver.parse_ubuntu_drivers(self.run("ubuntu-drivers", "devices")[1])

    def installed(self):
        words = self.run("dpkg-query", "--show", "--showformat", "${Package}\\t${Version}\\t${db:Status-Abbrev}\\n")[1]
        return {name: package["version"] for name, package in parse_installed(words).items()}

    def simulated(self, names, versions, version):
        """What apt would bring if all that belongs to the driver were pinned, and why it can't."""
        descriptor, path = tempfile.mkstemp(prefix="trainyard-preferences.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                stream.write(read_text(PREFERENCES) + "\n\n" + driver.pin(version))
            os.chmod(path, 0o644)
            rc, stdout, stderr = self.run(
                "apt-get", "--simulate", "--no-install-recommends", "--allow-change-held-packages", "--ignore-hold",
                "--allow-downgrades", "--option",
                "Dir::Etc::Preferences=%s" % path, "install", *["%s=%s" % (name, versions[name]) for name in names])
        finally:
            os.unlink(path)
        reason = " ".join(line.strip() for line in (stdout + stderr).splitlines() if " : " in line or line.startswith("E:"))
        return driver.parse_simulated_versions(stdout), reason if rc else ""


def offered(names, offers, asked):
    """In words, what there is in place of what was asked for."""
    found = ["of %s there is %s" % (name, ", ".join(nearest_versions(asked, offers[name]))) for name in names if offers.get(name)]
    return "; ".join(found) if found else "no repository that counts has %s" % ", ".join(names)


def choose(host, params, result):
    for asked in params["asked"]:
        families = driver.expand(params["families"], asked)
        names = list(dict.fromkeys(name for family in families for name in family))
        offers = parse_madison(host.run("apt-cache", "madison", *names)[1], params["repository"], not params["elsewhere"], params["without"]) if names else {}
        chosen = driver.resolve(families, offers, asked, params["installed"])
        if chosen:
            result["problem"] = ""
            return judge(host, chosen, offers, result)
        anchors = list(dict.fromkeys(family[0] for family in families))
        result["problem"] += "%sno driver %s: %s" % ("; " if result["problem"] else "", asked, offered(anchors, offers, asked))
    if params["without"]:
        result["problem"] += ("; %s is neither the distribution's nor NVIDIA's and was not used: if it is a mirror of the distribution, "
                              "list it in package_sources_apt_repositories" % ", ".join(params["without"]))
    return None


def judge(host, chosen, offers, result):
    number = upstream(chosen["version"])
    versions, absent = {}, []
    for name in chosen["names"]:
        fitting = [version for version in offers.get(name, []) if upstream(version) == number]
        if not fitting and driver.OUT_OF_STEP.fullmatch(name):
            fitting = offers.get(name)
        versions[name] = chosen["version"] if name == chosen["names"][0] else (fitting or [""])[0]
        absent += [name] if not versions[name] else []
    if absent:
        result["problem"] = "driver %s is not whole: %s" % (number, offered(absent, offers, number))
        return
    brought, reason = host.simulated(chosen["names"], versions, chosen["version"])
    if reason:
        result["problem"] = "apt can't install driver %s: %s" % (number, reason)
        return
    result["version"] = number
    result["packages"] = driver.closure(chosen["names"], {name: [version] for name, version in versions.items()}, chosen["version"], brought, host.installed())


def main():
    module = AnsibleModule(
        argument_spec={
            "asked": {"type": "list", "elements": "str", "default": [""]},
            "families": {"type": "list", "elements": "list", "default": []},
            "repository": {"type": "str", "default": ""},
            "elsewhere": {"type": "bool", "default": False},
            "without": {"type": "list", "elements": "str", "default": []},
            "installed": {"type": "str", "default": ""},
            "recommended_by": {"type": "str", "choices": ["nvidia-detect", "ubuntu-drivers"]},
            "device_ids": {"type": "list", "elements": "str", "default": []},
            "components": {"type": "list", "elements": "str", "default": []},
            "codename": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    result = {"version": "", "packages": {}, "recommended": "", "branch": "", "problem": "", "sources": ""}
    if module.params["components"]:
        files = {path: read_text(path) for pattern in SOURCES for path in glob.glob(pattern)}
        result["sources"] = driver.lacking_components(files, module.params["codename"], module.params["components"])
    host = Host(module)
    try:
        if module.params["recommended_by"]:
            result["recommended"] = host.recommended()
            result["branch"] = driver.branch_of(result["recommended"])
        if module.params["families"]:
            choose(host, module.params, result)
    except ParseError as error:
        module.fail_json(msg="what apt and dpkg say of the driver can't be read: %s" % error)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
