#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nfs_mount_info
short_description: Gather a host's NFS mounts
version_added: "0.2.0"
description:
  - Tells for each mount that is asked about what is mounted there, whether it answers, and what systemd knows of it.
  - A mount whose server doesn't answer would hang whoever touches it. This module touches it in a process of its own, and gives up on that.
  - Also tells what role C(trainyard.gpu.nfs_client) has placed on the host.
options:
  mounts:
    description: The mounts to ask about.
    type: list
    elements: dict
    default: []
    suboptions:
      target:
        description: Absolute path of the mount point.
        type: path
        required: true
      source:
        description: What is to be mounted there, server and path.
        type: str
        required: true
      options:
        description: Mount options that it is to have.
        type: list
        elements: str
        default: []
  files:
    description: Absolute paths of files whose checksums are asked for.
    type: list
    elements: path
    default: []
  timeout:
    description: Longest time in seconds to wait for an answer of a mounted file system.
    type: float
    default: 5.0
  wait:
    description: Longest time in seconds to wait until all are mounted and answer. V(0) asks once.
    type: float
    default: 0.0
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Ask the host for the shared folder
  trainyard.gpu.nfs_mount_info:
    mounts:
      - {target: /data1/share, source: "10.0.0.11:/data1/share", options: [hard, vers=4]}
  register: asked
"""

RETURN = r"""
available:
  description: Whether the host has the program that mounts NFS.
  returned: always
  type: bool
mounts:
  description: One entry for each of O(mounts), in its order.
  returned: always
  type: list
  elements: dict
  contains:
    target:
      description: Mount point as given.
      type: str
    state:
      description:
        - V(mounted) as asked, and it answers; V(differs) with other options than asked; V(other) something else is mounted there; V(stale) the server no longer
          knows what is mounted; V(hangs) no answer; V(absent) nothing is mounted there.
      type: str
    error:
      description: What the operating system or systemd says; empty where nothing is wrong.
      type: str
    source:
      description: What is mounted there; empty where nothing is.
      type: str
    type:
      description: Type of the file system that is mounted there.
      type: str
    options:
      description: Options that the kernel shows.
      type: list
      elements: str
    differences:
      description: Options that were asked for and are not in force.
      type: list
      elements: str
    exists:
      description: Whether the mount point exists. Looked at only where nothing is mounted.
      type: bool
    entries:
      description: Names in the mount point while nothing is mounted there, five at most. A mount would hide them.
      type: list
      elements: str
    configured_in:
      description: The file of the site's own, C(/etc/fstab) or a unit file, that says what is mounted there; empty where none does, or the role's own.
      type: str
    unit_enabled:
      description: Units of this path, C(.mount) and C(.automount), that systemd starts at boot.
      type: list
      elements: str
placed:
  description: What the role has placed, found by its mark, below C(/etc/systemd/system) and in C(/etc/fstab).
  returned: always
  type: list
  elements: dict
  contains:
    target:
      description: Mount point.
      type: str
    source:
      description: What is mounted there.
      type: str
    unit:
      description: Kind of unit, V(mount), V(automount) or V(fstab).
      type: str
    units:
      description: Names of its units, in the order in which they are to be stopped.
      type: list
      elements: str
    files:
      description: Their files; empty for a line in C(/etc/fstab).
      type: list
      elements: str
    options:
      description: Options that C(/etc/fstab) has for it; empty for units, whose files are compared whole.
      type: list
      elements: str
in_use:
  description: Whether NFS file systems are mounted, or are in C(/etc/fstab), that the role has not placed.
  returned: always
  type: bool
files:
  description: SHA-256 of each of O(files) that exists.
  returned: always
  type: dict
reload_needed:
  description: Whether systemd has yet to read unit files that have changed.
  returned: always
  type: bool
"""

import glob
import os
import re
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import ask_file_system, checksums, read_text
from ansible_collections.trainyard.gpu.plugins.module_utils._nfs import options_in_force, parse_mountinfo, unit_name

UNITS = "/etc/systemd/system"
MARK = "# Placed by trainyard.gpu.nfs_client."
REMOUNT_SECONDS = 40
FSTAB_MARK = "x-trainyard.placed"


def units(module, names):
    """Return what systemd knows of units, by name."""
    systemctl = module.get_bin_path("systemctl")
    if not (systemctl and names):
        return {}
    # An id for each: a name that is no unit's yet is answered as well.
    properties = "Id,LoadState,ActiveState,Result,UnitFileState,FragmentPath,NeedDaemonReload"
    rc, out, dummy = module.run_command([systemctl, "show", "--property=" + properties, "--"] + names)
    found = {}
    for paragraph in out.split("\n\n") if rc == 0 else []:
        entry = dict(line.split("=", 1) for line in paragraph.splitlines() if "=" in line)
        found[entry.get("Id", "")] = entry
    return found


def placed():
    found = []
    for path in sorted(glob.glob(UNITS + "/*.mount")):
        text = read_text(path)
        where, what = (re.search(r"^%s=(.*)$" % name, text, re.M) for name in ("Where", "What"))
        if MARK in text and where and what:
            files = [name for name in (path[:-len("mount")] + "automount", path) if os.path.exists(name)]
            found.append({"target": where.group(1), "source": what.group(1), "unit": "mount" if len(files) == 1 else "automount",
                          "units": [os.path.basename(name) for name in files], "files": files, "options": []})
    for line in read_text("/etc/fstab").splitlines():
        words = line.split()
        if len(words) > 3 and not line.startswith("#") and FSTAB_MARK in words[3].split(","):
            target = words[1].replace("\\040", " ")
            found.append({"target": target, "source": words[0], "unit": "fstab", "units": [unit_name(target, "mount")], "files": [],
                          "options": words[3].split(",")})
    return found


def lines_of_the_site():
    """Target and type of what /etc/fstab has, without the role's own lines."""
    lines = [line.split() for line in read_text("/etc/fstab").splitlines() if not line.lstrip().startswith("#")]
    return [(words[1].replace("\\040", " ").rstrip("/") or "/", words[2]) for words in lines if len(words) > 3 and FSTAB_MARK not in words[3].split(",")]


def in_use(mounts, ours):
    targets = {mount["target"] for mount in ours}
    return bool([mount for mount in mounts if mount["type"] in ("nfs", "nfs4") and mount["path"] not in targets]
                or [kind for dummy, kind in lines_of_the_site() if kind in ("nfs", "nfs4")])


def configured_in(target, found, ours):
    """The site's own file that says what is mounted at a target. What systemd makes of fstab comes and goes with that."""
    if target in [line for line, dummy in lines_of_the_site()]:
        return "/etc/fstab"
    files = [entry.get("FragmentPath", "") for entry in found]
    mine = [name for mount in ours for name in mount["files"]]
    return next((name for name in files if os.path.exists(name) and not name.startswith("/run/systemd/generator") and name not in mine), "")


def shares_connections(mount, mounts):
    """Whether another mount is of the same server and version: the first one's connections carry both, and their number is its."""
    def server(options):
        return {option for option in options if option.startswith(("addr=", "vers="))}

    return any(other["path"] != mount["path"] and other["type"].startswith("nfs") and server(other["options"]) == server(mount["options"]) for other in mounts)


def ask(module, mount, mounts, known):
    target = mount["target"]
    # Without following links below it: a path that lies on a mount that hangs can't be looked at.
    here = [entry for entry in mounts if entry["path"] == target and entry["type"] != "autofs"]
    automount = known.get(unit_name(target, "automount"), {})
    unit = known.get(unit_name(target, "mount"), {})
    answer = {
        "target": target, "state": "absent", "error": "", "source": "", "type": "", "options": [], "differences": [], "exists": True, "entries": [],
        "configured_in": configured_in(target, (unit, automount), placed()),
        "unit_enabled": [name for name, entry in (("mount", unit), ("automount", automount)) if entry.get("UnitFileState") in ("enabled", "generated")],
    }
    if not here and automount.get("ActiveState") == "active":
        # It is mounted when it is first touched.
        cause, answer["error"] = ask_file_system(target, module.params["timeout"])
        here = [entry for entry in parse_mountinfo(read_text("/proc/self/mountinfo")) if entry["path"] == target and entry["type"] != "autofs"]
        if not here:
            answer["state"] = "hangs" if cause == "hangs" else "absent"
            return answer
    if not here:
        if unit.get("ActiveState") == "failed":
            answer["error"] = "systemd: %s" % unit.get("Result", "failed")
        try:
            answer["entries"] = sorted(os.listdir(target))[:5]
        except OSError as error:
            answer["exists"] = os.path.lexists(target)
            if answer["exists"]:
                answer["error"] = str(error)
        return answer
    top = here[-1]
    answer.update(source=top["source"], type=top["type"], options=top["options"])
    if not top["type"].startswith("nfs") or top["source"].rstrip("/") != mount["source"].rstrip("/"):
        answer["state"] = "other"
        return answer
    cause, answer["error"] = ask_file_system(target, module.params["timeout"])
    answer["differences"] = options_in_force(mount["options"], top["options"])
    if shares_connections(top, mounts):
        answer["differences"] = [option for option in answer["differences"] if not option.startswith("nconnect=")]
    answer["state"] = cause if cause in ("hangs", "stale") else "differs" if cause or answer["differences"] else "mounted"
    return answer


def ask_all(module):
    mounts = parse_mountinfo(read_text("/proc/self/mountinfo"))
    names = [unit_name(mount["target"], suffix) for mount in module.params["mounts"] for suffix in ("mount", "automount")]
    known = units(module, names)
    return [ask(module, mount, mounts, known) for mount in module.params["mounts"]], any(entry.get("NeedDaemonReload") == "yes" for entry in known.values())


def main():
    module = AnsibleModule(
        argument_spec={
            "mounts": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "target": {"type": "path", "required": True},
                    "source": {"type": "str", "required": True},
                    "options": {"type": "list", "elements": "str", "default": []},
                },
            },
            "files": {"type": "list", "elements": "path", "default": []},
            "timeout": {"type": "float", "default": 5.0},
            "wait": {"type": "float", "default": 0.0},
        },
        supports_check_mode=True,
    )
    began = time.monotonic()
    deadline = began + module.params["wait"]
    while True:
        mounts, reload_needed = ask_all(module)
        states = {mount["state"] for mount in mounts} - {"mounted"}
        # One that is being mounted anew has its former options until then.
        if not states or time.monotonic() >= deadline or (states == {"differs"} and time.monotonic() - began > REMOUNT_SECONDS):
            break
        time.sleep(1)
    ours = placed()
    module.exit_json(
        changed=False,
        available=bool(module.get_bin_path("mount.nfs4", opt_dirs=["/usr/sbin", "/sbin"])),
        mounts=mounts,
        placed=ours,
        in_use=in_use(parse_mountinfo(read_text("/proc/self/mountinfo")), ours),
        files=checksums(module.params["files"]),
        reload_needed=reload_needed,
    )


if __name__ == "__main__":
    main()
