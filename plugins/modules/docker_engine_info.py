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
forwarding:
  description: Whether the kernel forwards IPv4. If it is off, the engine turns it on and makes the
    packet filter drop forwarded packets.
  returned: success
  type: bool
  sample: true
"""

import hashlib
import importlib.util
import json
import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._docker_engine import (
    DPKG_FORMAT,
    ParseError,
    cli_needs_buildx,
    merge,
    parse_daemon_config,
    parse_installed,
    parse_policy,
    tool_version,
    upstream_version,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._recipe import describe_image
from ansible_collections.trainyard.gpu.plugins.module_utils._record import Record

FIXES = {
    "": "",
    "not_installed": "run gpu_stack.yml, which installs an engine",
    "daemon_stopped": (
        "run gpu_stack.yml, which starts it; if it ends again, journalctl -u docker.service says "
        "why"
    ),
    "no_answer": "see why: journalctl -u docker.service",
}
# A link to snap itself. Whether it is on the PATH of a run does not matter: the engine runs.
SNAP = "/snap/bin/docker"
NO_PACKAGE = {"installed": "", "candidate": "", "origin": "", "versions": []}


def read(path):
    """Bytes of a file, None where there is none."""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


class Host:
    def __init__(self, module):
        self.module = module
        self.params = module.params

    def output(self, *command):
        """What a program prints, empty where it is missing."""
        path = self.module.get_bin_path(command[0])
        return self.module.run_command([path] + list(command[1:]))[1] if path else ""

    def docker(self, *arguments):
        return self.output(
            "timeout",
            str(self.params["timeout"]),
            self.params["executable"],
            "--host",
            f"unix://{self.params['socket']}",
            *arguments,
        )

    def info(self):
        """What C(docker info) says.

        Of the command line's plugins it tells even where no engine answers.
        """
        try:
            return json.loads(self.docker("info", "--format", "{{json .}}"))
        except ValueError:
            return {}

    def images(self) -> list[dict]:
        """Describe the images with the label. Those that an engine removes meanwhile are
        left out.
        """
        label = self.params["image_label"]
        if not label:
            return []
        ids = self.docker(
            "image", "ls", "--quiet", "--no-trunc", "--filter", f"label={label}"
        ).split()
        if not ids:
            return []
        try:
            found = json.loads(self.docker("image", "inspect", *sorted(set(ids))))
        except ValueError:
            return []
        return [describe_image(name, image) for image in found for name in image["RepoTags"] or []]

    def service(self):
        shown = self.output(
            "systemctl",
            "show",
            self.params["service"],
            "--property=LoadState,ActiveState,UnitFileState,MainPID",
        )
        return dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)

    def daemon_config(self, noted):
        """C(noted) is what docker_daemon_config wrote into the record."""
        wanted, placed = self.params["daemon_options"], noted.get("placed", [])
        content = read(self.params["daemon_config"])
        try:
            options = parse_daemon_config((content or b"").decode("utf-8"))
        except (ParseError, UnicodeDecodeError) as error:
            return {
                "exists": True,
                "options": {},
                "error": f"{self.params['daemon_config']}: {error}",
                "differs": bool(wanted or noted),
            }
        merged = merge(options, wanted, placed, self.params["daemon_override"])
        differs = (
            noted.get("pending", False) or merged.options != options or merged.placed != placed
        )
        return {"exists": content is not None, "options": options, "error": "", "differs": differs}

    def compose(self, plugin, packages):
        """Version and command.

        The plugin is preferred. dpkg knows the version of a packaged program without starting it,
        which takes half a second.
        """
        if plugin:
            return plugin, "docker compose"
        version = (
            packages.get("docker-compose", NO_PACKAGE)["installed"]
            if self.module.get_bin_path("docker-compose")
            else ""
        )
        version = version or tool_version(self.output("docker-compose", "--version"))
        return upstream_version(version), "docker-compose" if version else ""

    def packages(self):
        if not self.params["packages"]:
            return {}
        if self.params["candidates"]:
            known = parse_policy(self.output("apt-cache", "policy", *self.params["packages"]))
        else:
            known = parse_installed(
                self.output(
                    "dpkg-query", "--show", "--showformat", DPKG_FORMAT, *self.params["packages"]
                )
            )
        return {name: known.get(name, NO_PACKAGE) for name in self.params["packages"]}

    def files(self):
        contents = {path: read(path) for path in self.params["files"]}
        return {
            path: hashlib.sha256(content).hexdigest()
            for path, content in contents.items()
            if content is not None
        }

    def environment_in_force(self, pid):
        if not self.params["environment"] or pid in ("", "0"):
            return True
        # As the process has it: a drop-in that was written after the start is not in force.
        running = dict(
            entry.split("=", 1)
            for entry in (read(f"/proc/{pid}/environ") or b"")
            .decode("utf-8", "replace")
            .split("\0")
            if "=" in entry
        )
        return all(
            running.get(name, "") == str(value)
            for name, value in self.params["environment"].items()
        )

    def apparmor_required(self):
        enabled = read("/sys/module/apparmor/parameters/enabled") or b""
        return enabled.strip() == b"Y" and self.module.get_bin_path("apparmor_parser") is None

    def has_group(self):
        return any(line.startswith(b"docker:") for line in (read("/etc/group") or b"").splitlines())


def main():
    module = AnsibleModule(
        argument_spec={
            "executable": {"type": "path", "default": "docker"},
            "daemon": {"type": "path", "default": "dockerd"},
            "service": {"type": "str", "default": "docker.service"},
            "socket": {"type": "path", "default": "/var/run/docker.sock"},
            "daemon_config": {"type": "path", "default": "/etc/docker/daemon.json"},
            "daemon_options": {"type": "dict", "default": {}},
            "daemon_override": {"type": "list", "elements": "str", "default": []},
            "packages": {"type": "list", "elements": "str", "default": []},
            "candidates": {"type": "bool", "default": True},
            "files": {"type": "list", "elements": "path", "default": []},
            "record": {"type": "path", "default": "/var/lib/trainyard/placed.d/docker_engine.json"},
            "environment": {"type": "dict", "default": {}, "no_log": True},
            "image_label": {"type": "str", "default": ""},
            "timeout": {"type": "int", "default": 20},
        },
        supports_check_mode=True,
    )
    host = Host(module)
    module.run_command_environ_update = {"LC_ALL": "C.UTF-8"}
    service, record = host.service(), Record(module, module.params["record"]).read()
    cli = tool_version(host.output(host.params["executable"], "--version"))
    info = host.info() if cli else {}
    running = info.get("ServerVersion", "")
    # An engine that answers need not be asked a second way.
    installed = running or tool_version(host.output(host.params["daemon"], "--version"))

    cause = ""
    if not running:
        cause = (
            "not_installed"
            if not installed
            else "daemon_stopped"
            if service.get("ActiveState") != "active"
            else "no_answer"
        )
    plugins = {
        plugin["Name"]: upstream_version(plugin.get("Version") or "")
        for plugin in (info.get("ClientInfo") or {}).get("Plugins") or []
    }
    packages = host.packages()
    compose_version, compose_command = host.compose(plugins.get("compose", ""), packages)
    module.exit_json(
        changed=False,
        available=not cause,
        cause=cause,
        fix=FIXES[cause],
        version=upstream_version(installed),
        cli_version=upstream_version(cli),
        buildx_version=plugins.get("buildx", ""),
        buildx_required=cli_needs_buildx(cli),
        compose_version=compose_version,
        compose_command=compose_command,
        live_restore=info.get("LiveRestoreEnabled", False),
        containers_running=info.get("ContainersRunning", 0),
        runtimes=sorted(info.get("Runtimes") or {}),
        cgroup_driver=info.get("CgroupDriver", ""),
        service={
            "loaded": service.get("LoadState") == "loaded",
            "active": service.get("ActiveState") == "active",
            "enabled": service.get("UnitFileState") == "enabled",
        },
        packages=packages,
        daemon_config=host.daemon_config(record.get("daemon_config", {})),
        files=host.files(),
        environment_in_force=host.environment_in_force(service.get("MainPID", "")),
        record=record,
        python_requests=importlib.util.find_spec("requests") is not None,
        apparmor_required=host.apparmor_required(),
        group=host.has_group(),
        images=host.images() if running else [],
        snap=os.path.lexists(SNAP),
        forwarding=(read("/proc/sys/net/ipv4/ip_forward") or b"").strip() == b"1",
    )


if __name__ == "__main__":
    main()
