#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cuda_link
short_description: Select the CUDA toolkit behind /usr/local/cuda
version_added: "0.2.0"
description:
  - Sets the alternative that NVIDIA's packages use for C(/usr/local/cuda). A toolkit that is
    installed later then does not change the link.
  - A toolkit installed from a self-extracting file creates only a link. It is registered as an
    alternative.
  - Records the former state. O(state=absent) restores it.
author:
  - trainyard maintainers (@trainyard)
options:
  state:
    description:
      - V(present) selects O(folder). V(absent) restores the former state.
      - V(noted) only records the current state, unless it is already recorded. Use it before
        installing packages, because they create the link themselves.
    type: str
    choices: [present, absent, noted]
    default: present
  folder:
    description: Folder of the toolkit.
    type: path
  priority:
    description: Its priority, if it is not registered as an alternative yet.
    type: int
    default: 0
  record:
    description: Absolute path of the file that records the former state.
    type: path
    required: true
  link:
    description: The link.
    type: path
    default: /usr/local/cuda
  executable:
    description: The program that manages alternatives.
    type: path
    default: update-alternatives
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.internal
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
"""

EXAMPLES = r"""
- name: Select CUDA 12.4
  trainyard.gpu.cuda_link:
    folder: /usr/local/cuda-12.4
    priority: 124
    record: /var/lib/trainyard/placed.d/cuda_toolkit.link.json
"""

RETURN = r"""
former:
  description: State before the first run - link (its target), status (C(auto), C(manual), empty if
    there were no alternatives) and value.
  returned: success
  type: dict
"""

import os
import re

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._record import Record

NAME = "cuda"
# State recorded before the packages were installed. It moves into the record when a toolkit is
# selected.
FORMER = ".former"


def former_of(found):
    return {key: found[key] for key in ("link", "status", "value")}


class Host:
    def __init__(self, module):
        self.module = module
        self.link = module.params["link"]

    def alternatives(self, *arguments):
        rc, stdout, stderr = self.module.run_command(
            [self.module.get_bin_path(self.module.params["executable"], required=True)]
            + list(arguments),
            environ_update={"LC_ALL": "C"},
        )
        if rc and arguments[0] != "--query":
            self.module.fail_json(
                msg="update-alternatives %s failed: %s. Check the entries with "
                "'update-alternatives --display %s', correct what the message "
                "names, and run this again"
                % (" ".join(arguments), (stderr or stdout).strip(), NAME)
            )
        return stdout

    def look(self):
        """Target of the link, and status, value and choices of the alternatives."""
        text = self.alternatives("--query", NAME)
        head = text.partition("\n\n")[0]
        fields = dict(re.findall(r"^(Status|Value|Link): (.*)$", head, re.MULTILINE))
        return {
            "link": os.readlink(self.link) if os.path.islink(self.link) else "",
            "status": fields.get("Status", ""),
            "value": fields.get("Value", "").replace("none", ""),
            "choices": re.findall(r"^Alternative: (.*)$", text, re.MULTILINE),
        }

    def file(self, ending=""):
        return Record(self.module, self.module.params["record"] + ending)

    def leads_to(self):
        return os.path.realpath(self.link) if os.path.exists(self.link) else ""

    def ours_leads(self, found, folder):
        """Requires the alternative in manual mode: the next package would replace any other
        link.
        """
        return (
            found["status"] == "manual"
            and found["value"] == folder
            and self.leads_to() == os.path.realpath(folder)
        )

    def note_former(self):
        former = (
            self.file().read().get("former") or self.file(FORMER).read() or former_of(self.look())
        )
        if not self.module.check_mode and not self.file().read():
            self.file(FORMER).write(former)
        # Nothing on the host changed.
        return {"changed": False, "former": former}

    def fail_for_other_link(self, folder):
        """Fail if the link does not lead to the folder after update-alternatives has succeeded."""
        if self.leads_to() != os.path.realpath(folder):
            self.module.fail_json(
                msg="update-alternatives succeeded, but %s leads to '%s', expected '%s'. Compare "
                "it with 'update-alternatives --display %s', "
                "remove the link, and run this again"
                % (self.link, self.leads_to() or "nothing", folder, NAME)
            )

    def choose(self, folder, priority):
        found, record = self.look(), self.file().read()
        if os.path.lexists(self.link) and not os.path.islink(self.link):
            self.module.fail_json(
                msg="'%s' is not a symbolic link as expected: remove or rename it" % self.link
            )
        former = record.get("former") or self.file(FORMER).read() or former_of(found)
        if self.ours_leads(found, folder) and record:
            return {"changed": False, "former": former}
        result = {
            "changed": True,
            "former": former,
            "diff": {"before": "%s\n" % (self.leads_to() or "absent"), "after": "%s\n" % folder},
        }
        if self.module.check_mode:
            return result
        if not os.path.isdir(folder):
            self.module.fail_json(
                msg=(
                    "'%s' is not a folder: no toolkit is installed there; install it or set "
                    "another folder"
                )
                % folder
            )
        registered = record.get("registered", [])
        if folder not in found["choices"] and folder not in registered:
            registered = registered + [folder]
        self.file().write({"former": former, "registered": registered})
        self.file(FORMER).write({})
        if folder not in found["choices"]:
            self.free()
            self.alternatives("--install", self.link, NAME, folder, str(priority))
        if not self.ours_leads(self.look(), folder):
            # update-alternatives keeps a link that something else created if it has nothing to
            # change itself.
            self.free()
            self.alternatives("--set", NAME, folder)
        self.fail_for_other_link(folder)
        return result

    def free(self):
        """Remove a link that the alternatives do not manage."""
        if (
            os.path.islink(self.link)
            and os.path.basename(os.path.dirname(os.readlink(self.link))) != "alternatives"
        ):
            os.unlink(self.link)

    def bring_back(self):
        # If only FORMER exists, a run was interrupted before the selection.
        record = self.file().read() or {"former": self.file(FORMER).read(), "registered": []}
        if not record["former"]:
            return {"changed": False, "former": {}}
        former = record["former"]
        before = self.leads_to()
        if not self.module.check_mode:
            for folder in record["registered"]:
                # One whose folder is gone is no choice any more, and yet on the list.
                if self.look()["status"]:
                    self.alternatives("--remove", NAME, folder)
            choices = self.look()["choices"]
            if former["status"] == "manual" and former["value"] in choices:
                self.alternatives("--set", NAME, former["value"])
            elif choices:
                self.alternatives("--auto", NAME)
            if not former["status"] and former["link"]:
                if os.path.islink(self.link):
                    os.unlink(self.link)
                os.symlink(former["link"], self.link)
            self.file().write({})
            self.file(FORMER).write({})
        return {
            "changed": True,
            "former": former,
            "diff": {
                "before": "%s\n" % before,
                "after": "%s\n" % (former["value"] or former["link"] or "absent"),
            },
        }


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {
                "type": "str",
                "choices": ["present", "absent", "noted"],
                "default": "present",
            },
            "folder": {"type": "path"},
            "priority": {"type": "int", "default": 0},
            "record": {"type": "path", "required": True},
            "link": {"type": "path", "default": "/usr/local/cuda"},
            "executable": {"type": "path", "default": "update-alternatives"},
        },
        required_if=[("state", "present", ["folder"])],
        supports_check_mode=True,
    )
    host = Host(module)
    if module.params["state"] == "present":
        result = host.choose(module.params["folder"], module.params["priority"])
    elif module.params["state"] == "noted":
        result = host.note_former()
    else:
        result = host.bring_back()
    module.exit_json(**result)


if __name__ == "__main__":
    main()
