# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: container_toolkit_plan
short_description: Plan the container toolkit of a host
version_added: "0.3.0"
description:
  - Compares the packages, Docker's options and the CDI specifications of a host with the request of role C(trainyard.gpu.container_toolkit).
  - Use it before anything is changed. What is not known yet may be empty.
positional: engine, asked, version, specification
options:
  _input:
    description: Result of M(trainyard.gpu.gpu_stack_info).
    type: dict
    required: true
  engine:
    description: Result of M(trainyard.gpu.docker_engine_info), with the record of the role.
    type: dict
    required: true
  asked:
    description:
      - C(is_asked), whether the toolkit is requested for this host; C(recommended), whether no version is requested; C(keep_gpus), whether Docker manages the
        cgroups itself; C(cdi), whether the host has a CDI specification.
    type: dict
    required: true
  version:
    description: Version of the packages, such as V(1.17.8-1).
    type: str
    required: true
  specification:
    description: Path of the role's CDI specification.
    type: str
    required: true
  said:
    description: Runtime settings that C(nvidia-ctk) has printed, as JSON. Empty means the settings that are expected of it.
    type: str
    default: ""
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Report the packages of the plan
  ansible.builtin.debug:
    msg: "{{ plan.packages }}"
  vars:
    request: {is_asked: true, recommended: false, keep_gpus: true, cdi: true}
    plan: "{{ stack | trainyard.gpu.container_toolkit_plan(engine, request, '1.17.8-1', '/etc/cdi/trainyard-nvidia.yaml') }}"
"""

RETURN = r"""
_value:
  description: The plan.
  type: dict
  contains:
    asked:
      description: Versions by package, for option C(asked) of M(trainyard.gpu.gpu_stack_info). Empty if no version is requested.
      type: dict
    packages:
      description: Packages in apt's notation.
      type: list
      elements: str
    packages_differ:
      description: Whether one of them is missing, has another version or is not held.
      type: bool
    is_left_alone:
      description: Whether a working toolkit is installed that the role did not install, and no version is requested.
      type: bool
    options:
      description: Docker's options, for M(trainyard.gpu.docker_daemon_config).
      type: dict
    restarts:
      description: Whether Docker has to restart, although its options may be complete.
      type: bool
    configures:
      description: Whether Docker has to be configured or restarted.
      type: bool
    cgroups_by_systemd:
      description: Whether existing options make systemd manage the containers' cgroups, although containers are to keep their GPUs.
      type: bool
    own_state:
      description: What becomes of the role's CDI specification - V(file) if it is written, V(absent) if it is removed, V(as it is) otherwise.
      type: str
    stale:
      description: Paths of CDI specifications for an earlier driver.
      type: list
      elements: str
    stale_of_others:
      description: Those that are not the role's.
      type: list
      elements: str
    updates_cdi:
      description: Whether a CDI specification has to be written, removed or regenerated.
      type: bool
    is_checked:
      description: Whether the GPUs have to be checked in a container after the changes.
      type: bool
    no_proof_because:
      description: Why a container cannot show the GPUs; empty if it can.
      type: str
"""


def container_toolkit_plan(found, engine, asked, version, specification, said=""):
    # Imported when it is called, as Ansible loads all filters of a collection for the first one that a task uses.
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _container_toolkit_plan

    return _container_toolkit_plan.container_toolkit_plan(found, engine, asked, str(version), specification, said)


class FilterModule:
    """Filters for the plan of role container_toolkit."""

    def filters(self):
        return {"container_toolkit_plan": container_toolkit_plan}
