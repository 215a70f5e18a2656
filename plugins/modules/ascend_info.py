#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ascend_info
short_description: Gather driver, firmware and CANN of a host with NPUs
version_added: "0.4.0"
description:
  - Returns in one run what role C(trainyard.gpu.ascend) and rules of role
    C(trainyard.gpu.preflight) need of a host - device files, versions, CANN and its folders, the
    order in which driver and firmware were installed, and limits.
  - It reads files only. M(trainyard.gpu.npu_smi_info) asks the NPUs.
  - A host without driver or CANN is a result, not a failure.
options:
  cann:
    description: Absolute path of CANN. If empty, it is searched for below C(/usr/local/Ascend), in
      the folders of all its releases.
    type: str
    default: ''
  users:
    description: Names of people. Those who are not in the group of the driver are returned.
    type: list
    elements: str
    default: []
  rank_tables:
    description: Absolute paths of rank tables to read.
    type: list
    elements: path
    default: []
  files:
    description: Absolute paths of files whose checksums are returned.
    type: list
    elements: path
    default: []
extends_documentation_fragment:
  - trainyard.gpu.attributes.posix_info
  - trainyard.gpu.attributes.internal
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Gather driver, firmware and CANN
  trainyard.gpu.ascend_info:
    files: [/etc/trainyard/ascend.sh]
  register: ascend
"""

RETURN = r"""
architecture:
  description: Processor as C(uname -m) names it.
  returned: success
  type: str
  sample: aarch64
devices:
  description: The device files C(/dev/davinciN) and those that every program needs, sorted.
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: Path.
      type: str
    group:
      description: Name of its group, or the ID if it has no name.
      type: str
    mode:
      description: Permissions in octal.
      type: str
      sample: "0660"
missing_devices:
  description: Those of C(/dev/davinci_manager), C(/dev/devmm_svm) and C(/dev/hisi_hdc) that do not
    exist.
  returned: success
  type: list
  elements: str
driver:
  description: The driver.
  returned: success
  type: dict
  contains:
    path:
      description: Its folder.
      type: str
      sample: /usr/local/Ascend/driver
    version:
      description: Its version as text; empty if it is not installed.
      type: str
      sample: 1.72.T2.100.B020
firmware:
  description: The firmware. It has the same keys.
  returned: success
  type: dict
  sample: {path: /usr/local/Ascend/firmware, version: 7.1.0.3.220}
group:
  description: The group of the driver.
  returned: success
  type: dict
  contains:
    name:
      description: Its name, by C(/etc/ascend_install.info), else V(HwHiAiUser).
      type: str
    exists:
      description: Whether the host has it.
      type: bool
    missing:
      description: Names among O(users) that have an account on the host and are not in the group.
      type: list
      elements: str
cann:
  description: CANN.
  returned: success
  type: dict
  contains:
    path:
      description: Its folder; empty without CANN.
      type: str
      sample: /usr/local/Ascend/ascend-toolkit/latest
    version:
      description: Its version as text; empty if its files name none.
      type: str
      sample: 8.0.RC1
mindspore:
  description: Newest version of MindSpore in the host's Python folders; empty without one.
  returned: success
  type: str
  sample: 2.3.1
environment:
  description: Variables of driver and CANN - lists of existing folders, and paths.
  returned: success
  type: dict
  sample: {ASCEND_OPP_PATH: /usr/local/Ascend/ascend-toolkit/latest/opp, PATH: [/usr/local/Ascend/ascend-toolkit/latest/bin]}
processes:
  description: Hard limit of processes per user as the run has it; V(unlimited) if there is none.
  returned: success
  type: str
  sample: "4096"
install_order:
  description: What the logs of the installers show.
  returned: success
  type: dict
  contains:
    judged:
      description: Whether they have an installation of driver and of firmware.
      type: bool
    problems:
      description: What is wrong with the order.
      type: list
      elements: str
rank_tables:
  description: Of the existing files among O(rank_tables), C(format), C(status) and C(number), the
    place of a value that is not a text.
  returned: success
  type: dict
files:
  description: SHA-256 checksums of the existing files among O(files).
  returned: success
  type: dict
"""

import glob
import grp
import os
import platform
import pwd
import resource
import stat

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._ascend import (
    BASE,
    cann_home,
    cann_version,
    driver_folder,
    environment,
    install_order,
    install_steps,
    mindspore_version,
    parse_settings,
    table_facts,
    version_in,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import checksums, read_text
from ansible_collections.trainyard.gpu.plugins.module_utils._pci import CONTROL_NODES, npu_nodes

INSTALL_INFO = "/etc/ascend_install.info"
LOGS = "/var/log/ascend_seclog/"
GROUP = "HwHiAiUser"


def device(path):
    found = os.stat(path)
    try:
        group = grp.getgrgid(found.st_gid).gr_name
    except KeyError:
        group = str(found.st_gid)
    return {"path": path, "group": group, "mode": "%04o" % stat.S_IMODE(found.st_mode)}


def devices():
    """An NPU that is reset loses its device file, also between two looks."""
    found = []
    for path in ["/dev/davinci%d" % number for number in npu_nodes()] + list(CONTROL_NODES):
        try:
            found.append(device(path))
        except OSError:
            continue
    return found


def outside(users, group):
    """People with an account who are not in the group."""
    missing = []
    for name in users:
        try:
            account = pwd.getpwnam(name)
        except KeyError:
            continue
        if account.pw_gid != group.gr_gid and name not in group.gr_mem:
            missing.append(name)
    return missing


def group_of(name, users):
    try:
        group = grp.getgrnam(name)
    except KeyError:
        return {"name": name, "exists": False, "missing": []}
    return {"name": name, "exists": True, "missing": outside(users, group)}


def main():
    module = AnsibleModule(
        argument_spec={
            "cann": {"type": "str", "default": ""},
            "users": {"type": "list", "elements": "str", "default": []},
            "rank_tables": {"type": "list", "elements": "path", "default": []},
            "files": {"type": "list", "elements": "path", "default": []},
        },
        supports_check_mode=True,
    )
    params, machine = module.params, platform.machine()
    if params["cann"] and not os.path.isabs(params["cann"]):
        module.fail_json(
            msg="cann: '%s' is not absolute; give a path that begins with /" % params["cann"]
        )
    info = read_text(INSTALL_INFO)
    driver, home = driver_folder(info), cann_home(params["cann"])
    firmware = (parse_settings(info).get("firmware_install_path_param") or BASE).rstrip(
        "/"
    ) + "/firmware"
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    # The logs of CANN's packages have names of their own: ascend_toolkit_install.log,
    # ascend_nnae_install.log.
    others = sorted(glob.glob(LOGS + "ascend_*_install.log"))
    found = devices()
    module.exit_json(
        changed=False,
        architecture=machine,
        devices=found,
        missing_devices=[
            path for path in CONTROL_NODES if path not in [entry["path"] for entry in found]
        ],
        driver={"path": driver, "version": version_in(read_text(driver + "/version.info"))},
        firmware={"path": firmware, "version": version_in(read_text(firmware + "/version.info"))},
        group=group_of(parse_settings(info).get("usergroup") or GROUP, params["users"]),
        cann={"path": home, "version": cann_version(home, machine)},
        mindspore=mindspore_version(),
        environment=environment(home, driver, machine),
        processes="unlimited" if limit == resource.RLIM_INFINITY else str(limit),
        install_order=install_order(
            install_steps(
                read_text(LOGS + "ascend_install.log"),
                "\n".join(read_text(path) for path in others),
            )
        ),
        rank_tables={
            path: table_facts(read_text(path))
            for path in params["rank_tables"]
            if os.path.isfile(path)
        },
        files=checksums(params["files"]),
    )


if __name__ == "__main__":
    main()
