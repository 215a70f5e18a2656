#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: training_container_info
short_description: Gather the state of the training container and its unit
version_added: "0.1.0"
description:
  - Returns whether the engine answers and has the image, the state of container and systemd unit,
    the permissions of some paths on the host, and the checksums of some files.
  - A missing engine, image, container or unit is a result and not a failure.
  - Values of the container's environment are not returned, because they may contain a proxy's
    password.
options:
  name:
    description: Name of the container. Its unit is O(name) with C(.service).
    type: str
    required: true
  image:
    description: Name of the requested image. If empty, none is checked.
    type: str
    default: ''
  paths:
    description: Paths of the host whose existence and permissions are returned.
    type: list
    elements: path
    default: []
  files:
    description: Files of the host whose checksums are returned.
    type: list
    elements: path
    default: []
  wait:
    description: Maximum time in seconds to wait until the container runs under its unit and still
      does so a second later. V(0) checks once.
    type: int
    default: 0
  runtime:
    description: The requested runtime. If empty, none is checked.
    type: str
    default: ''
  share:
    description: The shared folder. A running container that does not see the same one as the host
      is reported in RV(container.departures). If empty, it is not compared.
    type: path
    default: ''
    version_added: "0.4.0"
  services_folder:
    description: Folder of the host with the files of the container's services. If empty, services
      are not read.
    type: path
    default: ''
    version_added: "0.4.0"
  services_config:
    description: SHA-256 checksum of a configuration of the services. With O(wait), all services of
      this configuration are awaited, too.
    type: str
    default: ''
    version_added: "0.4.0"
  certificate:
    description: The services' certificate, whose end is read. If empty, none is read.
    type: path
    default: ''
    version_added: "0.4.0"
  repository:
    description: Repository of git whose checked out revision is returned. If empty, none is read.
    type: path
    default: ''
    version_added: "0.4.0"
  executable:
    description: Docker's command line client.
    type: path
    default: docker
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
  - trainyard.gpu.attributes.internal
  - trainyard.gpu.attributes.known
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Gather the state of the container
  trainyard.gpu.training_container_info:
    name: trainyard-training
    image: trainyard/training:0123456789ab
    paths: [/dev/infiniband]
  register: asked
"""

RETURN = r"""
available:
  description: Whether the Docker engine answers.
  returned: always
  type: bool
cause:
  description: Why it does not answer. V(not_installed) or V(engine_unavailable); empty if it
    answers.
  returned: always
  type: str
fix:
  description: What to do about it; empty if nothing is wrong.
  returned: always
  type: str
runtimes:
  description: Runtimes of the engine; empty without O(runtime).
  returned: always
  type: list
  elements: str
image:
  description: The image.
  returned: always
  type: dict
  contains:
    exists:
      description: Whether the engine has it.
      type: bool
    id:
      description: Its id; empty if there is none.
      type: str
container:
  description: The container.
  returned: always
  type: dict
  contains:
    exists:
      description: Whether it exists.
      type: bool
    running:
      description: Whether it runs.
      type: bool
    id:
      description: Its id; empty if there is none.
      type: str
    image_id:
      description: Id of its image; empty if there is no container.
      type: str
    started_at:
      description: Time of its last start (RFC 3339); empty if there is no container.
      type: str
    managed:
      description: Whether it has the label C(trainyard.managed=true) of containers that this
        collection created.
      type: bool
    settings:
      description: Its label C(trainyard.settings), a hash of the settings with which role
        training_container created it; empty if it has none.
      type: str
    paused:
      description: Whether it is paused.
      type: bool
    changed_files:
      description:
        - Programs and libraries of the image (C(/usr), C(/opt), C(/bin), C(/lib) and their like)
          that were modified or deleted in the container, at most 20, each with V((modified\)) or
          V((deleted\)).
        - Added files, Python's caches, C(/usr/share), and the driver files of the container toolkit
          are not included.
      type: list
      elements: str
      sample: ["/usr/local/bin/horovodrun (deleted)"]
    busy:
      description:
        - Names of the processes in it other than the entrypoint and its sshd. Shells other than the
          entrypoint and processes of sessions count.
        - It is read only if RV(container.changed_files), RV(container.departures) or
          RV(container.limited) is not empty.
      type: list
      elements: str
      sample: [python3]
    restart_policy:
      description: Docker's restart policy, which C(docker update) may have changed; empty if there
        is no container.
      type: str
    departures:
      description:
        - How the running container differs from the settings in Docker, such as a mount that is
          missing, or a limit that its sshd does not have. A restart corrects them.
        - Empty for a container that this collection did not create.
      type: list
      elements: str
      sample: [/data1/share is not mounted in the container]
      version_added: "0.4.0"
    limited:
      description:
        - Limits of the container's memory, CPUs and processes in Docker. Role training_container
          sets none, but C(docker update) does.
        - Empty for a container that this collection did not create.
      type: list
      elements: str
      sample: [memory 300 MiB]
      version_added: "0.4.0"
    resolv_conf:
      description:
        - The file that Docker mounts as the running container's C(/etc/resolv.conf), if its name
          servers differ from the host's. Docker copies the host's file when the container starts.
          Empty if they are the same, or if the name servers are set in Docker.
      type: str
      version_added: "0.4.0"
unit:
  description: The systemd unit.
  returned: always
  type: dict
  contains:
    loaded:
      description: Whether systemd knows it.
      type: bool
    foreign:
      description: File of a unit of that name from another source than role training_container;
        empty if there is none.
      type: str
    active:
      description: Whether it runs.
      type: bool
    state:
      description: What systemd calls C(ActiveState), such as V(active), V(activating) or V(failed).
      type: str
    enabled:
      description: Whether it starts at boot.
      type: bool
    reload_needed:
      description: Whether its file was changed after systemd has read it.
      type: bool
    drop_ins:
      description: Files that change it, each with its C(path) and with C(keys), the names of the
        settings in it.
      type: list
      elements: dict
      sample: [{path: /etc/systemd/system/trainyard-training.service.d/override.conf, keys: [Restart]}]
      version_added: "0.4.0"
    engine:
      description: Whether docker.service starts at boot, in systemd's words, such as V(enabled),
        V(disabled) or V(masked). Empty if there is no such unit.
      type: str
      version_added: "0.4.0"
    log:
      description: Its last lines in the journal; empty if it runs.
      type: list
      elements: str
services:
  description: Services of the container.
  returned: always
  type: dict
  version_added: "0.4.0"
  contains:
    files:
      description: Paths of all files in O(services_folder), sorted.
      type: list
      elements: str
    config:
      description: SHA-256 checksum of the configuration that the supervisor of the running
        container uses. Empty if it runs none.
      type: str
    states:
      description: State of each service by name, as the supervisor tells it. C(state) is
        V(starting), V(ready), V(failed) or V(refused), and C(why) is the reason. The supervisor
        does not restart a refused one.
      type: dict
      sample: {jupyterlab: {state: ready, why: ""}}
    certificate_days:
      description: Days until O(certificate) ends. Null if there is none, or if openssl cannot read
        it.
      type: int
notebooks:
  description: The checkout of O(repository).
  returned: always
  type: dict
  version_added: "0.4.0"
  contains:
    revision:
      description: Its revision. Empty if there is none.
      type: str
npus:
  description: Ascend NPUs of the host.
  returned: always
  type: dict
  version_added: "0.4.0"
  contains:
    devices:
      description: Their device files and those that every program for NPUs opens. Empty on a host
        without NPUs.
      type: list
      elements: str
      sample: [/dev/davinci0, /dev/davinci_manager]
    mounts:
      description: What the host has of their driver, for containers to read.
      type: list
      elements: str
      sample: [/usr/local/Ascend/driver]
sent:
  description: V(false) if O(known) was returned.
  returned: if it is V(false)
  type: bool
  version_added: "0.4.0"
files:
  description: SHA-256 checksums of the existing files among O(files).
  returned: always
  type: dict
paths:
  description: Permissions of each of O(paths) in octal digits, such as V(0755); empty if it does
    not exist.
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._training_container import (
    CONTAINER_OPTIONS,
    container_state,
)


def main():
    module = AnsibleModule(
        argument_spec=dict(
            CONTAINER_OPTIONS,
            known={"type": "dict", "default": {}},
            question={"type": "str", "default": ""},
        ),
        supports_check_mode=True,
    )
    module.exit_json(changed=False, **container_state(module))


if __name__ == "__main__":
    main()
