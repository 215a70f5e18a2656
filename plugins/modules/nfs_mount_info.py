#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nfs_mount_info
short_description: Gather a host's NFS mounts
version_added: "0.2.0"
description:
  - Returns for each requested mount what is mounted there, whether it answers, and the state of its
    systemd units.
  - Access to a mount hangs if its server does not answer. This module accesses mounts in separate
    processes and gives up after O(timeout).
  - Also returns the mounts that role C(trainyard.gpu.nfs_client) has configured on the host.
options:
  mounts:
    description: The requested mounts.
    type: list
    elements: dict
    default: []
    suboptions:
      target:
        description: Absolute path of the mount point.
        type: path
        required: true
      source:
        description: Requested source, server and path.
        type: str
        required: true
      options:
        description: Requested mount options.
        type: list
        elements: str
        default: []
  files:
    description: Absolute paths of files whose checksums are returned.
    type: list
    elements: path
    default: []
  timeout:
    description: Maximum time in seconds to wait for an answer of a mounted file system.
    type: float
    default: 5.0
  wait:
    description: Maximum time in seconds to wait until all are mounted and answer. V(0) checks once.
    type: float
    default: 0.0
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
  - trainyard.gpu.attributes.internal
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Gather the state of the shared folder
  trainyard.gpu.nfs_mount_info:
    mounts:
      - {target: /data1/share, source: "10.0.0.11:/data1/share", options: [hard, vers=4]}
  register: asked
"""

RETURN = r"""
available:
  description: Whether the host has the NFS mount program.
  returned: always
  type: bool
mounts:
  description: One entry per entry of O(mounts), in the same order.
  returned: always
  type: list
  elements: dict
  contains:
    target:
      description: Mount point as given.
      type: str
    state:
      description:
        - V(mounted) as requested, and it answers; V(differs) in its options; V(other) if something
          else is mounted there; V(stale) if the server no longer knows the mounted folder; V(hangs)
          without an answer; V(absent) if nothing is mounted there.
      type: str
    error:
      description: Error of the operating system or systemd; empty if nothing is wrong.
      type: str
    source:
      description: Source that is mounted there; empty if nothing is mounted.
      type: str
    type:
      description: Type of the mounted file system.
      type: str
    options:
      description: Options that the kernel reports.
      type: list
      elements: str
    differences:
      description: Requested options that are not in force.
      type: list
      elements: str
    exists:
      description: Whether the mount point exists. Checked only if nothing is mounted.
      type: bool
    entries:
      description: Names in the mount point while nothing is mounted there, at most five. A mount
        would hide them.
      type: list
      elements: str
    configured_in:
      description: The site's C(/etc/fstab) or unit file that configures this mount point; empty if
        none does, or only the role's own.
      type: str
    unit_enabled:
      description: Units of this path, C(.mount) and C(.automount), that systemd starts at boot.
      type: list
      elements: str
placed:
  description: Mounts of the role, found by its marker below C(/etc/systemd/system) and in
    C(/etc/fstab).
  returned: always
  type: list
  elements: dict
  contains:
    target:
      description: Mount point.
      type: str
    source:
      description: Source of the mount.
      type: str
    unit:
      description: Kind of unit, V(mount), V(automount) or V(fstab).
      type: str
    units:
      description: Names of its units, in the order in which to stop them.
      type: list
      elements: str
    files:
      description: Their files; empty for a line in C(/etc/fstab).
      type: list
      elements: str
    options:
      description: Options in C(/etc/fstab); empty for units, whose files are compared as a whole.
      type: list
      elements: str
in_use:
  description: Whether other NFS file systems than the role's are mounted or are in C(/etc/fstab).
  returned: always
  type: bool
files:
  description: SHA-256 checksums of the existing files among O(files).
  returned: always
  type: dict
reload_needed:
  description: Whether systemd must reload changed unit files.
  returned: always
  type: bool
"""

import glob
import os
import re
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import (
    ask_file_system,
    checksums,
    read_text,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._mountinfo import (
    parse_mountinfo,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._nfs import (
    options_in_force,
    unit_name,
)

UNITS = "/etc/systemd/system"
MARK = "# Placed by trainyard.gpu.nfs_client."
REMOUNT_SECONDS = 40
FSTAB_MARK = "x-trainyard.placed"


def units(module, names):
    """Return the properties of systemd units by name."""
    systemctl = module.get_bin_path("systemctl")
    if not (systemctl and names):
        return {}
    # With the property Id, systemd also answers for a name without a unit.
    properties = "Id,LoadState,ActiveState,Result,UnitFileState,FragmentPath,NeedDaemonReload"
    rc, out, dummy = module.run_command(
        [systemctl, "show", "--property=" + properties, "--"] + names
    )
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
            files = [
                name for name in (path[: -len("mount")] + "automount", path) if os.path.exists(name)
            ]
            found.append(
                {
                    "target": where.group(1),
                    "source": what.group(1),
                    "unit": "mount" if len(files) == 1 else "automount",
                    "units": [os.path.basename(name) for name in files],
                    "files": files,
                    "options": [],
                }
            )
    for line in read_text("/etc/fstab").splitlines():
        words = line.split()
        if len(words) > 3 and not line.startswith("#") and FSTAB_MARK in words[3].split(","):
            target = words[1].replace("\\040", " ")
            found.append(
                {
                    "target": target,
                    "source": words[0],
                    "unit": "fstab",
                    "units": [unit_name(target, "mount")],
                    "files": [],
                    "options": words[3].split(","),
                }
            )
    return found


def lines_of_the_site():
    """Target and type of the entries of /etc/fstab, without the role's own lines."""
    lines = [
        line.split()
        for line in read_text("/etc/fstab").splitlines()
        if not line.lstrip().startswith("#")
    ]
    return [
        (words[1].replace("\\040", " ").rstrip("/") or "/", words[2])
        for words in lines
        if len(words) > 3 and FSTAB_MARK not in words[3].split(",")
    ]


def in_use(mounts, ours):
    targets = {mount["target"] for mount in ours}
    return bool(
        [
            mount
            for mount in mounts
            if mount["type"] in ("nfs", "nfs4") and mount["path"] not in targets
        ]
        or [kind for dummy, kind in lines_of_the_site() if kind in ("nfs", "nfs4")]
    )


def configured_in(target, found, ours):
    """The site's file that configures a mount at the target.

    Units that systemd generates from fstab do not count.
    """
    if target in [line for line, dummy in lines_of_the_site()]:
        return "/etc/fstab"
    files = [entry.get("FragmentPath", "") for entry in found]
    mine = [name for mount in ours for name in mount["files"]]
    return next(
        (
            name
            for name in files
            if os.path.exists(name)
            and not name.startswith("/run/systemd/generator")
            and name not in mine
        ),
        "",
    )


def shares_connections(mount, mounts):
    """Whether another mount has the same server and version.

    Both share the connections of the first one, and its number of them.
    """

    def server(options):
        return {option for option in options if option.startswith(("addr=", "vers="))}

    return any(
        other["path"] != mount["path"]
        and other["type"].startswith("nfs")
        and server(other["options"]) == server(mount["options"])
        for other in mounts
    )


def mounted_at(target, mounts):
    """Return what is mounted at a target, the last one on top."""
    return [entry for entry in mounts if entry["path"] == target and entry["type"] != "autofs"]


def below(target, unit):
    """Return what is in a folder without a mount: C(entries), whether it C(exists), and the
    C(error) of its unit or of reading it.
    """
    found = {}
    if unit.get("ActiveState") == "failed":
        found["error"] = "systemd: %s" % unit.get("Result", "failed")
    try:
        found["entries"] = sorted(os.listdir(target))[:5]
    except OSError as error:
        found["exists"] = os.path.lexists(target)
        if found["exists"]:
            found["error"] = str(error)
    return found


def is_of(top, mount):
    """Return whether a mounted file system is the requested one."""
    is_nfs = top["type"].startswith("nfs")
    return is_nfs and top["source"].rstrip("/") == mount["source"].rstrip("/")


def other_options(mount, top, mounts):
    """Return the requested options that are not in force.

    Of several mounts from one server, the first decides on the connections.
    """
    differences = options_in_force(mount["options"], top["options"])
    if shares_connections(top, mounts):
        return [option for option in differences if not option.startswith("nconnect=")]
    return differences


def ask(module, mount, mounts, known):
    target = mount["target"]
    # Links are not followed, because access to a path on a hanging mount hangs.
    here = mounted_at(target, mounts)
    automount = known.get(unit_name(target, "automount"), {})
    unit = known.get(unit_name(target, "mount"), {})
    answer = {
        "target": target,
        "state": "absent",
        "error": "",
        "source": "",
        "type": "",
        "options": [],
        "differences": [],
        "exists": True,
        "entries": [],
        "configured_in": configured_in(target, (unit, automount), placed()),
        "unit_enabled": [
            name
            for name, entry in (("mount", unit), ("automount", automount))
            if entry.get("UnitFileState") in ("enabled", "generated")
        ],
    }
    if not here and automount.get("ActiveState") == "active":
        # The first access mounts it.
        cause, answer["error"] = ask_file_system(target, module.params["timeout"])
        here = mounted_at(target, parse_mountinfo(read_text("/proc/self/mountinfo")))
        if not here:
            answer["state"] = "hangs" if cause == "hangs" else "absent"
            return answer
    if not here:
        return dict(answer, **below(target, unit))
    top = here[-1]
    answer.update(source=top["source"], type=top["type"], options=top["options"])
    if not is_of(top, mount):
        answer["state"] = "other"
        return answer
    cause, answer["error"] = ask_file_system(target, module.params["timeout"])
    answer["differences"] = other_options(mount, top, mounts)
    answer["state"] = "mounted"
    if cause in ("hangs", "stale"):
        answer["state"] = cause
    elif cause or answer["differences"]:
        answer["state"] = "differs"
    return answer


def ask_all(module):
    mounts = parse_mountinfo(read_text("/proc/self/mountinfo"))
    names = [
        unit_name(mount["target"], suffix)
        for mount in module.params["mounts"]
        for suffix in ("mount", "automount")
    ]
    known = units(module, names)
    return [ask(module, mount, mounts, known) for mount in module.params["mounts"]], any(
        entry.get("NeedDaemonReload") == "yes" for entry in known.values()
    )


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
        if (
            not states
            or time.monotonic() >= deadline
            or (states == {"differs"} and time.monotonic() - began > REMOUNT_SECONDS)
        ):
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
