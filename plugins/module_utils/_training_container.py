# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The state of the training container and its unit, for modules training_container_info and
shared_storage_proof.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import stat
import time

from typing import Any, Dict

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
from ansible_collections.trainyard.gpu.plugins.module_utils._pci import (
    control_nodes,
    driver_paths,
    npu_nodes,
)

__all__ = ["CONTAINER_OPTIONS", "container_state"]

#: What docker inspect prints of a container, and what module training_container_info returns.
Inspected = Dict[str, Any]
State = Dict[str, Any]
#: Options of module training_container_info.
CONTAINER_OPTIONS = {
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
}
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


def permissions(path: str) -> str:
    """Return the mode of a file, such as 0644; empty if the file cannot be read."""
    try:
        return "%04o" % stat.S_IMODE(os.stat(path).st_mode)
    except OSError:
        return ""


def foreign(unit: str, loaded_from: str) -> str:
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


def changed_files(module: Any, docker: str, found: Inspected) -> list[str]:
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


def own_state(module: Any, docker: str, found: Inspected) -> dict[str, list[str]]:
    """What somebody has changed in or around a container of this collection, and whether a restart
    would end processes.
    """
    state = {
        "changed_files": changed_files(module, docker, found),
        "departures": departures(found, module.params["share"]),
        "limited": limited(found["HostConfig"]),
    }
    return dict(state, busy=busy(module, docker, found) if any(state.values()) else [])


def busy(module: Any, docker: str, found: Inspected) -> list[str]:
    """Return the jobs that run in a container, none if it is stopped."""
    if not found["State"]["Running"]:
        return []
    dummy, out, dummy = module.run_command([docker, "top", found["Id"], "-eo", COLUMNS])
    return busy_processes(out)


def outdated_resolv_conf(found: Inspected) -> str:
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


def supervised(pid: int) -> tuple[str, dict[str, dict[str, str]]]:
    """What the supervisor of a container tells, as (checksum of its configuration, states).

    The container's users may have changed it.
    """
    try:
        # Not one that somebody has linked to a file of the host, and without waiting for a writer.
        handle = os.open(
            "/proc/%d/root%s" % (pid, STATUS), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        )
        with open(handle, "rb") as stream:
            status = json.loads(stream.read(STATUS_BYTES).decode("utf-8", "replace"))
        states = {
            str(name): {"state": str(state["state"]), "why": str(state["why"])}
            for name, state in status["services"].items()
        }
        return str(status["config"]), states
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "", {}


def files_below(folder: str) -> list[str]:
    """Return the paths of all files in a folder and the folders in it, in order."""
    return sorted(
        os.path.join(path, name) for path, dummy, names in os.walk(folder) for name in names
    )


def days_left(module: Any, path: str) -> int | None:
    """Return for how many days a certificate is valid, negative if it has expired.

    None without openssl, or without a certificate that it can read.
    """
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


def revision_of(repository: str) -> str:
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


def container_of(found: Inspected) -> dict[str, Any]:
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


def runtimes_of(module: Any, docker: str) -> list[str]:
    """Return the names of Docker's runtimes, none if it does not tell."""
    dummy, out, dummy = module.run_command([docker, "info", "--format", "{{json .Runtimes}}"])
    try:
        return sorted(json.loads(out) or {})
    except ValueError:
        return []


def ask_docker(module: Any, result: State) -> None:
    """Add what Docker knows of the container, its image, its services and the runtimes."""
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
            fix="run gpu_stack.yml, which starts it; if it stops again, read `journalctl -u docker`: %s"
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


def ask_systemd(module: Any, result: State) -> None:
    """Add what systemd knows of the container's unit. The module fails if systemd does not answer."""
    unit = module.params["name"] + ".service"
    systemctl = module.get_bin_path("systemctl", required=True)
    rc, out, err = module.run_command(
        [systemctl, "show", "--property=" + ",".join(PROPERTIES), unit, ENGINE]
    )
    if rc != 0:
        module.fail_json(
            msg="systemctl show %s failed: %s. The host must be booted with systemd. Check it with 'systemctl status' on the host"
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


def serves(module: Any, result: State) -> bool:
    """Whether the awaited services serve, or never will."""
    expected, found = module.params["services_config"], result["services"]
    return (
        not expected
        or found["config"] == expected
        and all(state["state"] in ("ready", "refused") for state in found["states"].values())
    )


def npus() -> dict[str, list[str]]:
    """Return device nodes and driver paths for a container with NPUs, nothing on other hosts."""
    numbers = npu_nodes()
    return {
        "devices": ["/dev/davinci%d" % number for number in numbers]
        + (control_nodes() if numbers else []),
        "mounts": driver_paths() if numbers else [],
    }


def container_state(module: Any) -> State:
    """Return what module training_container_info returns, for the options of an AnsibleModule."""
    folder, certificate, repository = (
        module.params[name] for name in ("services_folder", "certificate", "repository")
    )
    result: State = {
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
    return result
