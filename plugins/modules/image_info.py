#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: image_info
short_description: Gather Docker images and check that they are unmodified
version_added: "0.1.0"
description:
  - Returns for each image whether the engine has it, its id, labels, layers and environment.
  - An image of role P(trainyard.gpu.training_image#role) carries a digest of its own layers in
    label C(trainyard.layers). A label adds no layer, and every change of an image under the same
    name (C(docker commit), another build) changes its layers. RV(images[].intact) therefore shows
    whether the image is the one that was built.
  - A missing engine or image is a result and not a failure. Only Docker's command line client is
    needed.
options:
  names:
    description: Names of images, each with its tag.
    type: list
    elements: str
    default: []
  label:
    description: Name of a label. RV(labelled) lists the images with this label. If empty, none are
      listed.
    type: str
    default: ''
  records:
    description: Absolute paths of JSON files in which a role records what it changed, by a name of
      your own. RV(records) has their content.
    type: dict
    default: {}
    version_added: "0.4.0"
  executable:
    description: Docker's command line client.
    type: path
    default: docker
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
  - trainyard.gpu.attributes.internal
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Gather the training image
  trainyard.gpu.image_info:
    names: ["{{ training_image_name }}"]
  register: gathered

- name: Fail if the image was modified
  ansible.builtin.assert:
    that: gathered.images[0].intact
"""

RETURN = r"""
available:
  description: Whether the engine answers.
  returned: always
  type: bool
cause:
  description: Why it does not answer. V(not_installed) or V(engine_unavailable); empty if it
    answers.
  returned: always
  type: str
fix:
  description: What to do about RV(cause); empty if nothing is wrong.
  returned: always
  type: str
images:
  description: One entry for each of O(names), in their order. Without an engine none is present.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: The requested name.
      type: str
    present:
      description: Whether the engine has it.
      type: bool
    id:
      description: Its id in this engine. Ids differ between engines, so compare
        RV(images[].layers).
      type: str
    recipe:
      description: Its label C(trainyard.recipe); empty if it has none.
      type: str
    intact:
      description: Whether its layers match its label C(trainyard.layers). V(false) without that
        label.
      type: bool
    labels:
      description: Its labels.
      type: dict
    layers:
      description: Digests of its uncompressed layers, lowest first.
      type: list
      elements: str
    environment:
      description: Its environment, C(NAME=value) each.
      type: list
      elements: str
    size_mib:
      description: Its size in MiB.
      type: int
labelled:
  description: Ids of all images with O(label), including those without a name.
  returned: always
  type: list
  elements: str
records:
  description: Content of each of O(records), by its name; empty if there is none. A damaged one
    fails the module.
  returned: always
  type: dict
"""

import json
import re

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._recipe import describe_image
from ansible_collections.trainyard.gpu.plugins.module_utils._record import Record

FIXES = {
    "": "",
    "not_installed": "run gpu_stack.yml, which installs Docker",
    "engine_unavailable": (
        "run gpu_stack.yml, which starts Docker, and run the task as root; if it stops again, read "
        "journalctl -u docker.service"
    ),
}
NO_IMAGE = re.compile(r"no such (image|object)", re.IGNORECASE)
NO_ENGINE = re.compile(
    r"connect to the docker daemon|permission denied|error during connect", re.IGNORECASE
)


def main():
    module = AnsibleModule(
        argument_spec={
            "names": {"type": "list", "elements": "str", "default": []},
            "label": {"type": "str", "default": ""},
            "records": {"type": "dict", "default": {}},
            "executable": {"type": "path", "default": "docker"},
        },
        supports_check_mode=True,
    )
    records = {name: Record(module, path).read() for name, path in module.params["records"].items()}
    docker = module.get_bin_path(module.params["executable"])
    cause = "" if docker else "not_installed"

    def ask(arguments, absent):
        """(output of the client, None where the engine has no such image; cause where there is no
        engine).
        """
        rc, out, err = module.run_command([docker, "image"] + arguments)
        if rc == 0:
            return out, ""
        if absent.search(err):
            return None, ""
        if NO_ENGINE.search(err):
            return None, "engine_unavailable"
        module.fail_json(
            msg="docker image %s failed: %s. Run the command on the host, correct what it names, "
            "and run this again. 'journalctl --unit=docker' "
            "has the log of Docker" % (" ".join(arguments), err.strip()),
            rc=rc,
        )

    images, labelled = [], []
    for name in module.params["names"]:
        out = None
        if not cause:
            out, cause = ask(["inspect", "--", name], NO_IMAGE)
        images.append(describe_image(name, json.loads(out)[0] if out else None))
    if module.params["label"] and not cause:
        out, cause = ask(
            ["ls", "--all", "--quiet", "--no-trunc", "--filter", "label=" + module.params["label"]],
            NO_IMAGE,
        )
        labelled = sorted(set((out or "").split()))
    module.exit_json(
        changed=False,
        available=not cause,
        cause=cause,
        fix=FIXES[cause],
        images=images,
        labelled=labelled,
        records=records,
    )


if __name__ == "__main__":
    main()
