# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The state of a host's Docker engine, for modules docker_engine_info and host_info."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os

from typing import Any

from ansible_collections.trainyard.gpu.plugins.module_utils._docker_engine import (
    DPKG_FORMAT,
    cli_needs_buildx,
    merge,
    parse_daemon_config,
    parse_installed,
    parse_policy,
    tool_version,
    upstream_version,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._parse_error import ParseError
from ansible_collections.trainyard.gpu.plugins.module_utils._recipe import Image, describe_image
from ansible_collections.trainyard.gpu.plugins.module_utils._record import Record

__all__ = ["ENGINE_OPTIONS", "engine_state"]

#: Options of module docker_engine_info.
ENGINE_OPTIONS = {
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
}
FIXES = {
    "": "",
    "not_installed": "run gpu_stack.yml, which installs an engine",
    "daemon_stopped": "run gpu_stack.yml, which starts it; if it ends again, journalctl -u docker.service says why",
    "no_answer": "see why: journalctl -u docker.service",
}
# A link to snap itself. Whether it is on the PATH of a run does not matter: the engine runs.
SNAP = "/snap/bin/docker"
NO_PACKAGE = {"installed": "", "candidate": "", "origin": "", "versions": []}


def read(path: str) -> bytes | None:
    """Bytes of a file, None where there is none."""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


class Host:
    """Reads the Docker engine of this host, as the options of docker_engine_info say."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.params = module.params

    def output(self, *command: str) -> str:
        """What a program prints, empty where it is missing."""
        path = self.module.get_bin_path(command[0])
        return self.module.run_command([path] + list(command[1:]))[1] if path else ""

    def docker(self, *arguments: str) -> str:
        """Return what the command docker prints about the engine at the socket of the options.

        It is ended after C(timeout) seconds.
        """
        return self.output(
            "timeout",
            str(self.params["timeout"]),
            self.params["executable"],
            "--host",
            f"unix://{self.params['socket']}",
            *arguments,
        )

    def info(self) -> dict[str, Any]:
        """What C(docker info) says.

        Of the command line's plugins it tells even where no engine answers.
        """
        try:
            found: dict[str, Any] = json.loads(self.docker("info", "--format", "{{json .}}"))
        except ValueError:
            return {}
        return found

    def images(self) -> list[Image]:
        """Describe the images with the label. Those that an engine removes meanwhile are left out."""
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

    def service(self) -> dict[str, str]:
        """Return the properties of the engine's unit by name, as systemctl prints them."""
        shown = self.output(
            "systemctl",
            "show",
            self.params["service"],
            "--property=LoadState,ActiveState,UnitFileState,MainPID",
        )
        return dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)

    def daemon_config(self, noted: dict[str, Any]) -> dict[str, Any]:
        """C(noted) is what docker_daemon_config wrote into the record."""
        requested, placed = self.params["daemon_options"], noted.get("placed", [])
        content = read(self.params["daemon_config"])
        try:
            options = parse_daemon_config((content or b"").decode("utf-8"))
        except (ParseError, UnicodeDecodeError) as error:
            return {
                "exists": True,
                "options": {},
                "error": f"{self.params['daemon_config']}: {error}",
                "differs": bool(requested or noted),
            }
        merged = merge(options, requested, placed, self.params["daemon_override"])
        differs = (
            noted.get("pending", False) or merged.options != options or merged.placed != placed
        )
        return {"exists": content is not None, "options": options, "error": "", "differs": differs}

    def compose(self, plugin: str, packages: dict[str, Any]) -> tuple[str, str]:
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

    def packages(self) -> dict[str, Any]:
        """Return the installed version of each package of the options.

        If C(candidates) is set, also the versions that apt offers.
        """
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

    def files(self) -> dict[str, str]:
        """Return the SHA-256 checksum of each file of the options that exists.

        OSError: it cannot be read.
        """
        contents = {path: read(path) for path in self.params["files"]}
        return {
            path: hashlib.sha256(content).hexdigest()
            for path, content in contents.items()
            if content is not None
        }

    def environment_in_force(self, pid: str) -> bool:
        """Return whether the running engine has the requested variables. True without a process."""
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

    def apparmor_required(self) -> bool:
        """Return whether the kernel has AppArmor enabled and its parser is missing."""
        enabled = read("/sys/module/apparmor/parameters/enabled") or b""
        return enabled.strip() == b"Y" and self.module.get_bin_path("apparmor_parser") is None

    def has_group(self) -> bool:
        """Return whether /etc/group has the group docker."""
        return any(line.startswith(b"docker:") for line in (read("/etc/group") or b"").splitlines())


def engine_state(module: Any) -> dict[str, Any]:
    """Return what module docker_engine_info returns, for the options of an AnsibleModule."""
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
    return {
        "available": not cause,
        "cause": cause,
        "fix": FIXES[cause],
        "version": upstream_version(installed),
        "cli_version": upstream_version(cli),
        "buildx_version": plugins.get("buildx", ""),
        "buildx_required": cli_needs_buildx(cli),
        "compose_version": compose_version,
        "compose_command": compose_command,
        "live_restore": info.get("LiveRestoreEnabled", False),
        "containers_running": info.get("ContainersRunning", 0),
        "runtimes": sorted(info.get("Runtimes") or {}),
        "cgroup_driver": info.get("CgroupDriver", ""),
        "service": {
            "loaded": service.get("LoadState") == "loaded",
            "active": service.get("ActiveState") == "active",
            "enabled": service.get("UnitFileState") == "enabled",
        },
        "packages": packages,
        "daemon_config": host.daemon_config(record.get("daemon_config", {})),
        "files": host.files(),
        "environment_in_force": host.environment_in_force(service.get("MainPID", "")),
        "record": record,
        "python_requests": importlib.util.find_spec("requests") is not None,
        "apparmor_required": host.apparmor_required(),
        "group": host.has_group(),
        "images": host.images() if running else [],
        "snap": os.path.lexists(SNAP),
        "forwarding": (read("/proc/sys/net/ipv4/ip_forward") or b"").strip() == b"1",
    }
