#!/usr/bin/python
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: docker_engine_info
short_description: Gather facts about a host's Docker engine
version_added: "0.1.0"
description:
  - Returns in one run what role P(trainyard.gpu.docker_engine#role) needs - the versions of engine,
    command line client and plugins, the installed and available packages, the service, the
    configuration file, and the record of an earlier run.
  - An engine that is missing or does not answer is a result, not a failure.
author:
  - trainyard maintainers (@trainyard)
options:
  executable:
    description: Docker's command line client, as a name or a path.
    type: path
    default: docker
  daemon:
    description: The engine itself, as a name or a path.
    type: path
    default: dockerd
  service:
    description: The systemd unit that runs the engine.
    type: str
    default: docker.service
  socket:
    description: Where the engine listens. C(DOCKER_HOST) and contexts are ignored, because they may
      name another machine.
    type: path
    default: /var/run/docker.sock
  daemon_config:
    description: The engine's configuration file.
    type: path
    default: /etc/docker/daemon.json
  daemon_options:
    description: Options that M(trainyard.gpu.docker_daemon_config) is to merge. They determine
      C(differs) in RV(daemon_config).
    type: dict
    default: {}
  daemon_override:
    description: Same as O(trainyard.gpu.docker_daemon_config#module:override).
    type: list
    elements: str
    default: []
  packages:
    description: Names of packages to look up.
    type: list
    elements: str
    default: []
  candidates:
    description: Whether to look up installable versions with apt. Otherwise only installed versions
      are read from dpkg, which is much faster.
    type: bool
    default: true
  files:
    description: Paths of files whose checksums are returned.
    type: list
    elements: path
    default: []
  record:
    description: File in which the role records its changes.
    type: path
    default: /var/lib/trainyard/placed.d/docker_engine.json
  environment:
    description:
      - Environment that the running engine should have. A variable with an empty value should not
        be set.
      - The values may be secret and are not returned.
    type: dict
    default: {}
  image_label:
    description: Name of a label. RV(images) describes the images that have it. If empty, none are
      described.
    type: str
    default: ''
    version_added: "0.4.0"
  timeout:
    description: Seconds after which an engine that does not answer counts as not available.
    type: int
    default: 20
extends_documentation_fragment:
  - trainyard.gpu.attributes
  - trainyard.gpu.attributes.info_module
  - trainyard.gpu.attributes.known
attributes:
  platform:
    platforms: debian
seealso:
  - module: trainyard.gpu.docker_daemon_config
  - module: community.docker.docker_host_info
"""

EXAMPLES = r"""
- name: Gather facts about the Docker engine
  trainyard.gpu.docker_engine_info:
    packages: [docker.io, docker-ce]
  register: engine

- name: Report its version
  ansible.builtin.debug:
    msg: "{{ engine.version if engine.available else engine.fix }}"
"""

RETURN = r"""
available:
  description: Whether the engine answers.
  returned: success
  type: bool
  sample: true
cause:
  description: Why it does not answer. V(not_installed), V(daemon_stopped), V(no_answer), or empty.
  returned: success
  type: str
  sample: ""
fix:
  description: What to do about it; empty if nothing is wrong.
  returned: success
  type: str
  sample: ""
version:
  description: Upstream version of the engine, of the running one if it answers. Empty if there is
    none.
  returned: success
  type: str
  sample: 20.10.24
cli_version:
  description: Upstream version of the command line client; empty if there is none.
  returned: success
  type: str
  sample: 20.10.24
buildx_version:
  description: Version of the plugin buildx; empty if the command line client has none.
  returned: success
  type: str
  sample: 0.29.1
buildx_required:
  description: Whether this command line client needs buildx to build with BuildKit (from 23.0 on).
  returned: success
  type: bool
  sample: false
compose_version:
  description: Version of the plugin compose, else of the program C(docker-compose). Empty if the
    host has neither.
  returned: success
  type: str
  sample: 2.40.0
compose_command:
  description: The compose command on the host. V(docker compose), V(docker-compose), or empty if
    the host has neither.
  returned: success
  type: str
  version_added: "0.4.0"
  sample: docker compose
live_restore:
  description: Whether containers keep running while the engine restarts.
  returned: success
  type: bool
  sample: false
containers_running:
  description: Number of running containers.
  returned: success
  type: int
  sample: 1
runtimes:
  description: Runtimes of the running engine. Runtimes that were added to its file after its start
    are not included.
  returned: success
  type: list
  elements: str
  sample: [runc]
cgroup_driver:
  description: Driver of the containers' cgroups, V(systemd) or V(cgroupfs). Empty if no engine
    answers.
  returned: success
  type: str
  sample: systemd
service:
  description: State of the systemd unit - C(loaded), C(active), C(enabled).
  returned: success
  type: dict
  sample: {loaded: true, active: true, enabled: true}
packages:
  description:
    - State of each of O(packages) by name. C(installed) and C(candidate) are versions or empty,
      C(origin) is the source of the installed version as C(apt-cache policy) prints it, C(versions)
      has all installable versions, newest first.
    - All values are empty for a package that apt does not know. Without O(candidates) all values
      except C(installed) are empty.
  returned: success
  type: dict
  sample: {docker.io: {installed: 20.10.24+dfsg1-1+deb12u1, candidate: 20.10.24+dfsg1-1+deb12u1, origin: "", versions: [20.10.24+dfsg1-1+deb12u1]}}
daemon_config:
  description:
    - The configuration file - whether it C(exists), its C(options), and the C(error) if it cannot
      be parsed.
    - Whether it C(differs) from the file with O(daemon_options) merged in. A file that cannot be
      parsed differs if options are requested.
  returned: success
  type: dict
  sample: {exists: true, options: {live-restore: true}, error: "", differs: false}
files:
  description: SHA-256 checksums of the existing files among O(files).
  returned: success
  type: dict
  sample: {}
environment_in_force:
  description: Whether the running engine has O(environment). True if no engine runs.
  returned: success
  type: bool
  sample: true
record:
  description: Content of O(record); empty if there is none.
  returned: success
  type: dict
  sample: {packages: [docker.io, containerd, runc]}
python_requests:
  description: Whether Ansible's Python on the host has the package requests, which the modules of
    community.docker need.
  returned: success
  type: bool
  sample: true
apparmor_required:
  description: Whether the kernel uses AppArmor but the host lacks the program that loads profiles.
    Then the engine cannot start containers.
  returned: success
  type: bool
  sample: false
group:
  description: Whether the host has the group C(docker).
  returned: success
  type: bool
  sample: true
images:
  description: The images with O(image_label), once for each of their names, as
    M(trainyard.gpu.image_info) describes them.
  returned: success
  type: list
  elements: dict
  version_added: "0.4.0"
snap:
  description: Whether an engine is installed as a snap, whose files are in places of its own.
  returned: success
  type: bool
  version_added: "0.4.0"
  sample: false
sent:
  description: V(false) if O(known) was returned.
  returned: if it is V(false)
  type: bool
  version_added: "0.4.0"
forwarding:
  description: Whether the kernel forwards IPv4. If it is off, the engine turns it on and makes the
    packet filter drop forwarded packets.
  returned: success
  type: bool
  sample: true
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._docker_engine_state import (
    ENGINE_OPTIONS,
    engine_state,
)


def main():
    module = AnsibleModule(
        argument_spec=dict(
            ENGINE_OPTIONS,
            known={"type": "dict", "default": {}},
            question={"type": "str", "default": ""},
        ),
        supports_check_mode=True,
    )
    module.exit_json(changed=False, **engine_state(module))


if __name__ == "__main__":
    main()
