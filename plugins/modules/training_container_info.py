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

import datetime
import json
import os
import re
import stat
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.gpu.plugins.module_utils._ascend import (
    control_nodes,
    driver_paths,
    npu_nodes,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._container_files import (
    changed_in_layers,
    parse_diff,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._container_processes import (
    COLUMNS,
    busy_processes,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._container_state import (
    departures,
    limited,
    parse_drop_in,
    parse_units,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._file_system import read_text
from ansible_collections.trainyard.gpu.plugins.module_utils._name_servers import asked_servers
from ansible_collections.trainyard.gpu.plugins.module_utils._own_certificate import (
    ParseError,
    not_after,
)

RESOLV_CONF = "/etc/resolv.conf"
DAEMON_CONFIG = "/etc/docker/daemon.json"
PROPERTIES = (
    "Id",
    "LoadState",
    "ActiveState",
    "UnitFileState",
    "NeedDaemonReload",
    "FragmentPath",
    "DropInPaths",
    "InvocationID",
)
ENGINE = "docker.service"
# First line of the unit file that role training_container writes.
OURS = "# Placed by trainyard.gpu.training_container."
# In the container. Its supervisor writes it.
STATUS = "/run/trainyard-services/status.json"
STATUS_BYTES = 65536
# Without overlayfs, docker diff compares whole images.
DIFF_TIMEOUT = 15


def permissions(path):
    try:
        return "%04o" % stat.S_IMODE(os.stat(path).st_mode)
    except OSError:
        return ""


def foreign(unit, loaded_from):
    """The file of a unit of that name from another source, where systemd loaded it from or where
    the role would write its own; empty if there is none.
    """
    for path in (loaded_from, "/etc/systemd/system/" + unit):
        try:
            with open(path, encoding="utf-8", errors="replace") as stream:
                if stream.read(len(OURS)) != OURS:
                    return path
        except OSError:
            pass
    return ""


def changed_files(module, docker, found):
    """Read from the layers if possible: docker diff does not compare content, and may scan the
    whole image, which takes many seconds.
    """
    graph = found.get("GraphDriver") or {}
    layers = graph.get("Data") or {}
    if graph.get("Name") == "overlay2" and os.path.isdir(layers.get("UpperDir", "")):
        changed = changed_in_layers(layers["UpperDir"], layers.get("LowerDir", "").split(":"))
    else:
        timeout = module.get_bin_path("timeout")
        rc, out, dummy = module.run_command(
            ([timeout, str(DIFF_TIMEOUT)] if timeout else []) + [docker, "diff", found["Id"]]
        )
        changed = parse_diff(out) if rc == 0 else []
    return ["%s (%s)" % entry for entry in changed]


def own_state(module: AnsibleModule, docker: str, found: dict) -> dict:
    """What somebody has changed in or around a container of this collection, and whether a restart
    would end processes.
    """
    state = {
        "changed_files": changed_files(module, docker, found),
        "departures": departures(found, module.params["share"]),
        "limited": limited(found["HostConfig"]),
    }
    return dict(state, busy=busy(module, docker, found) if any(state.values()) else [])


def busy(module, docker, found):
    if not found["State"]["Running"]:
        return []
    dummy, out, dummy = module.run_command([docker, "top", found["Id"], "-eo", COLUMNS])
    return busy_processes(out)


def outdated_resolv_conf(found):
    """Path of the running container's resolv.conf from `docker inspect`; empty if it has the host's
    name servers.
    """
    settings = found["HostConfig"]
    if (
        not found["State"]["Running"]
        or settings.get("NetworkMode") != "host"
        or settings.get("Dns")
    ):
        return ""
    try:
        engine = json.loads(read_text(DAEMON_CONFIG) or "{}")
    except ValueError:
        engine = {}
    path = found.get("ResolvConfPath") or ""
    theirs = asked_servers(read_text(path))
    # Docker uses public name servers if the host has no suitable ones.
    return (
        path
        if theirs and not engine.get("dns") and theirs != asked_servers(read_text(RESOLV_CONF))
        else ""
    )


def supervised(pid):
    """What the supervisor of a container tells, as (checksum of its configuration, states).

    The container's users may have changed it.
    """
    try:
        # Not one that somebody has linked to a file of the host, and without waiting for a writer.
        handle = os.open(
            "/proc/%d/root%s" % (pid, STATUS), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        )
        with open(handle, "rb") as stream:
            told = json.loads(stream.read(STATUS_BYTES).decode("utf-8", "replace"))
        states = {
            str(name): {"state": str(state["state"]), "why": str(state["why"])}
            for name, state in told["services"].items()
        }
        return str(told["config"]), states
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "", {}


def files_below(folder):
    return sorted(
        os.path.join(path, name) for path, dummy, names in os.walk(folder) for name in names
    )


def days_left(module, path):
    openssl = module.get_bin_path("openssl")
    if not openssl or not os.path.exists(path):
        return None
    rc, out, dummy = module.run_command([openssl, "x509", "-in", path, "-noout", "-enddate"])
    try:
        return (
            (
                not_after(out) - datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
            ).days
            if rc == 0
            else None
        )
    except ParseError:
        return None


def revision_of(repository):
    """The revision that is checked out, from HEAD of a repository without a branch."""
    head = read_text(os.path.join(repository, "HEAD")).strip()
    return head if re.match(r"[0-9a-f]{40}$", head) else ""


#: What is said of a container that does not exist.
NO_CONTAINER = {
    "exists": False,
    "running": False,
    "id": "",
    "image_id": "",
    "started_at": "",
    "managed": False,
    "settings": "",
    "restart_policy": "",
    "paused": False,
    "changed_files": [],
    "busy": [],
    "departures": [],
    "limited": [],
    "resolv_conf": "",
}


def container_of(found):
    """Return what `docker inspect` tells of a container, without what only a look into it shows."""
    labels = found["Config"].get("Labels") or {}
    return {
        "exists": True,
        "running": found["State"]["Running"],
        "id": found["Id"],
        "image_id": found["Image"],
        "started_at": found["State"]["StartedAt"],
        "managed": labels.get("trainyard.managed") == "true",
        "settings": labels.get("trainyard.settings", ""),
        "restart_policy": found["HostConfig"]["RestartPolicy"]["Name"],
        "paused": found["State"].get("Paused", False),
        "changed_files": [],
        "busy": [],
        "departures": [],
        "limited": [],
        "resolv_conf": outdated_resolv_conf(found),
    }


def runtimes_of(module, docker):
    """Return the names of Docker's runtimes, none if it does not tell."""
    dummy, out, dummy = module.run_command([docker, "info", "--format", "{{json .Runtimes}}"])
    try:
        return sorted(json.loads(out) or {})
    except ValueError:
        return []


def ask_docker(module, result):
    name, image = module.params["name"], module.params["image"]
    docker = module.get_bin_path(module.params["executable"])
    result["image"] = {"exists": False, "id": ""}
    result["container"] = dict(NO_CONTAINER)
    result["runtimes"] = []
    result["services"].update(config="", states={})
    if not docker:
        return result.update(available=False, cause="not_installed", fix="run gpu_stack.yml")
    rc, out, err = module.run_command([docker, "inspect", name] + ([image] if image else []))
    if rc != 0 and "no such object" not in err.lower():
        return result.update(
            available=False,
            cause="engine_unavailable",
            fix=(
                "run gpu_stack.yml, which starts it; if it stops again, read `journalctl -u "
                "docker`: %s"
            )
            % (err.strip() or out.strip()),
        )
    result.update(available=True, cause="", fix="")
    # systemctl omits unknown units.
    for found in json.loads(out or "[]"):
        if "RootFS" in found:
            result["image"] = {"exists": True, "id": found["Id"]}
        elif found.get("Name") == "/" + name:
            result["container"] = container_of(found)
            if module.params["services_folder"] and found["State"]["Running"]:
                result["services"]["config"], result["services"]["states"] = supervised(
                    found["State"].get("Pid", 0)
                )
            if result["container"]["managed"]:
                result["container"].update(own_state(module, docker, found))
    if module.params["runtime"]:
        result["runtimes"] = runtimes_of(module, docker)
    return None


def ask_systemd(module, result):
    unit = module.params["name"] + ".service"
    systemctl = module.get_bin_path("systemctl", required=True)
    rc, out, err = module.run_command(
        [systemctl, "show", "--property=" + ",".join(PROPERTIES), unit, ENGINE]
    )
    if rc != 0:
        module.fail_json(
            msg=(
                "systemctl show %s failed: %s. The host must be booted with systemd. Check it with "
                "'systemctl status' on the host"
            )
            % (unit, err.strip() or out.strip()),
            rc=rc,
        )
    units = parse_units(out)
    found = units.get(unit) or units.get("") or {}
    result["unit"] = {
        "loaded": found["LoadState"] == "loaded",
        "foreign": foreign(unit, found["FragmentPath"]),
        "active": found["ActiveState"] == "active",
        "state": found["ActiveState"],
        "enabled": found["UnitFileState"] == "enabled",
        "reload_needed": found["NeedDaemonReload"] == "yes",
        "drop_ins": [
            {"path": path, "keys": parse_drop_in(read_text(path))}
            for path in found.get("DropInPaths", "").split()
        ],
        "engine": units.get(ENGINE, {}).get("UnitFileState", ""),
        "log": [],
    }
    if result["unit"]["loaded"] and not result["unit"]["active"]:
        # Lines of earlier starts would explain a fault that has ended.
        start = found.get("InvocationID")
        its = ["--unit", unit]
        if start:
            its = ["_SYSTEMD_INVOCATION_ID=" + start, "+", "INVOCATION_ID=" + start]
        rc, out, err = module.run_command(
            [
                module.get_bin_path("journalctl", required=True),
                *its,
                "--lines=15",
                "--output=cat",
                "--no-pager",
            ]
        )
        result["unit"]["log"] = out.splitlines() if rc == 0 else err.splitlines()


def serves(module, result):
    """Whether the awaited services serve, or never will."""
    expected, found = module.params["services_config"], result["services"]
    return (
        not expected
        or found["config"] == expected
        and all(state["state"] in ("ready", "refused") for state in found["states"].values())
    )


def npus():
    numbers = npu_nodes()
    return {
        "devices": ["/dev/davinci%d" % number for number in numbers]
        + (control_nodes() if numbers else []),
        "mounts": driver_paths() if numbers else [],
    }


def main():
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "image": {"type": "str", "default": ""},
            "paths": {"type": "list", "elements": "path", "default": []},
            "files": {"type": "list", "elements": "path", "default": []},
            "wait": {"type": "int", "default": 0},
            "runtime": {"type": "str", "default": ""},
            "share": {"type": "path", "default": ""},
            "services_folder": {"type": "path", "default": ""},
            "services_config": {"type": "str", "default": ""},
            "certificate": {"type": "path", "default": ""},
            "repository": {"type": "path", "default": ""},
            "executable": {"type": "path", "default": "docker"},
        },
        supports_check_mode=True,
    )
    folder, certificate, repository = (
        module.params[name] for name in ("services_folder", "certificate", "repository")
    )
    result = {
        "changed": False,
        "paths": {path: permissions(path) for path in module.params["paths"]},
        "files": {
            path: module.sha256(path) for path in module.params["files"] if os.path.exists(path)
        },
        "services": {
            "files": files_below(folder) if folder else [],
            "config": "",
            "states": {},
            "certificate_days": days_left(module, certificate) if certificate else None,
        },
        "notebooks": {"revision": revision_of(repository) if repository else ""},
        "npus": npus(),
    }
    deadline = time.monotonic() + module.params["wait"]
    started_before = ""
    while True:
        ask_docker(module, result)
        ask_systemd(module, result)
        runs = result["container"]["running"] and result["unit"]["active"]
        # A container in a restart loop seems to run at any single check, so check twice.
        if (
            runs and result["container"]["started_at"] == started_before and serves(module, result)
        ) or time.monotonic() >= deadline:
            break
        started_before = result["container"]["started_at"] if runs else ""
        time.sleep(1)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
