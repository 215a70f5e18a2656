# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: docker_engine_plan
short_description: Plan the Docker engine of a host
version_added: "0.3.0"
description:
  - Compares the installed engine with the request of role P(trainyard.gpu.docker_engine#role), and selects the packages to install or to remove.
  - What is not known yet may be empty.
positional: asked, catalog, system
options:
  _input:
    description: Result of M(trainyard.gpu.docker_engine_info), with the packages of O(catalog).
    type: dict
    required: true
  asked:
    description:
      - C(source), C(version), C(minimum_version) and C(replace), as the variables of the role.
      - C(sources), the path of the role's entry for apt, and C(drop_in_went), whether the drop-in with the proxies was just removed.
    type: dict
    required: true
  catalog:
    description: C(engine), C(cli), C(containerd), C(buildx) and C(compose), the names of packages, by source. Distributions are sources by their O(system).
    type: dict
    required: true
  system:
    description: The host's distribution, such as V(debian-12).
    type: str
    required: true
  offered:
    description: The packages that apt offers, as M(trainyard.gpu.docker_engine_info) returns them.
    type: dict
    default: {}
  simulated:
    description: What apt has printed for the installation in check mode.
    type: str
    default: ""
  leaving:
    description: What apt has printed for the removal in check mode.
    type: str
    default: ""
  contents:
    description: IDs of the containers, images and volumes that a removal would also remove.
    type: str
    default: ""
author:
  - trainyard maintainers (@trainyard)
"""

EXAMPLES = r"""
- name: Fail if the engine cannot be installed
  ansible.builtin.assert:
    that: plan.refusal == ''
    fail_msg: "{{ plan.refusal }}"
  vars:
    plan: "{{ engine | trainyard.gpu.docker_engine_plan(request, catalog, 'debian-12') }}"
"""

RETURN = r"""
_value:
  description: The plan.
  type: dict
  contains:
    refusal:
      description: Why the engine cannot be installed; empty if it can.
      type: str
    is_good:
      description: Whether the installed engine meets the request, whatever its source.
      type: bool
    installed_family:
      description: Source of the installed engine - C(docker_repository), the distribution, C(unknown), or empty without an engine.
      type: str
    installed_package:
      description: Version of its package; empty if unknown.
      type: str
    asked_family:
      description: Requested source, in the same words.
      type: str
    parts:
      description: Names of the packages of the engine that stays or is installed; empty if they are unknown.
      type: dict
    is_ours:
      description: Whether the role installed the engine.
      type: bool
    has_repository:
      description: Whether the role's entry for apt is present.
      type: bool
    has_pin:
      description: Whether apt preferences pin the version.
      type: bool
    cannot_build:
      description: Whether the command line needs the plugin buildx and does not have it.
      type: bool
    absent:
      description: Packages of the engine to install.
      type: list
      elements: str
    extras:
      description: Other packages to install.
      type: list
      elements: str
    wants_compose:
      description: Whether compose is one of them.
      type: bool
    lacks_packages:
      description: Whether a package has to be installed.
      type: bool
    versions:
      description: Versions of the engine that apt offers.
      type: list
      elements: str
    chosen:
      description: The one to install; empty if there is none.
      type: str
    is_offered:
      description: Whether apt offers what is requested.
      type: bool
    transaction:
      description: Packages to install, in apt's notation.
      type: list
      elements: str
    removed:
      description: Packages that the installation would remove.
      type: list
      elements: str
    restarting:
      description: Packages whose upgrade or removal would stop containers.
      type: list
      elements: str
    record:
      description: The record to write before the installation.
      type: dict
    restarts:
      description: Whether the engine has to restart for its environment.
      type: bool
    stands_still:
      description: Whether the engine has to be started or enabled.
      type: bool
    needs_configuring:
      description: Whether daemon.json differs, or the engine has to be started or restarted.
      type: bool
    taken_along:
      description: Packages that a removal would also remove.
      type: list
      elements: str
    packages_stay:
      description: Whether teardown keeps the packages that the role installed.
      type: bool
    goes:
      description: Whether teardown removes the engine.
      type: bool
"""


def docker_engine_plan(found, asked, catalog, system, offered=None, simulated="", leaving="", contents=""):
    # Imported when it is called, as Ansible loads all filters of a collection for the first one that a task uses.
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _docker_engine_plan

    asked = dict(asked, version=str(asked["version"]), minimum_version=str(asked["minimum_version"]))
    return _docker_engine_plan.docker_engine_plan(found, asked, catalog, system, offered, simulated, leaving, contents)


def docker_engine_files(files, found, keyring, key_checksum="", in_own_folders=()):
    from ansible_collections.trainyard.gpu.plugins.plugin_utils import _docker_engine_plan

    return _docker_engine_plan.docker_engine_files(files, found, keyring, key_checksum, in_own_folders)


class FilterModule:
    """Filters for the plan of role docker_engine."""

    def filters(self):
        return {"docker_engine_plan": docker_engine_plan, "docker_engine_files": docker_engine_files}
