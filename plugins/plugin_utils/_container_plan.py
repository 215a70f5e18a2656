# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The training container of a host, from training_container_info's result, the request, and the
facts of role cluster. Pure functions.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypedDict

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _container_services as services

if TYPE_CHECKING:
    from ansible_collections.trainyard.gpu.plugins.plugin_utils._drift import Difference

#: Settings in a drop-in of the unit that decide whether the container starts, how it ends, and
#: whether it starts again.
DECISIVE = re.compile(
    r"(Exec|Condition|Assert|StartLimit|Restart|Root|Kill)\w*$"
    r"|(Type|User|Group|DynamicUser|RemainAfterExit|SuccessExitStatus|Requires|Requisite|BindsTo|PartOf|Conflicts|DefaultDependencies|RefuseManualStart"
    r"|RuntimeMaxSec|OnFailure|WantedBy|RequiresMountsFor|AllowIsolate)$"
)
#: What systemd calls a unit that does not start with the host.
NOT_AT_BOOT = ("disabled", "masked", "masked-runtime")
#: How module training_container_info says that a mount was lost, or that a second sshd runs.
UNSEEN = re.compile(r".* is (not mounted|read-only) in the container$|another sshd runs ")
#: By the first word of a fault. The others are corrected by training_environment.yml.
FIXES = {
    "docker.service": "run gpu_stack.yml",
    "another": (
        "find out who started it and who may have used it, then run training_environment.yml, "
        "which restarts the container and ends it"
    ),
}
LOOPBACK = re.compile(r"127[.]|::1$")


class Requested(services.Requested):
    """What the variables of role training_container request."""

    name: str
    image: str
    #: C(none), C(all), or a list of numbers and UUIDs.
    gpus: str | list[int | str]
    #: Whether the container gets the NPUs.
    npus: bool
    #: Such as 64g, or C(auto) for half of the host's memory.
    shm_size: str
    ulimits: dict[str, int | str]
    environment: dict[str, Any]
    #: Options of docker_container's mounts.
    mounts: list[dict[str, Any]]
    devices: list[str]
    capabilities: list[str]
    #: Options of docker_container by name. One without a value is left to the engine.
    engine_options: dict[str, Any]
    #: Whether the hostname is pointed at the cluster address.
    repair_own_name: bool
    #: The shared folder, and the folder in the root that contains it.
    share: str
    share_root: str
    #: Paths on the host.
    ssh_dir: str
    site_dir: str
    env_file: str
    infiniband: str
    #: Programs of the services' supervisor by name.
    service_programs: dict[str, str]


class Host(TypedDict):
    """The facts of role cluster."""

    #: Number of GPUs that the driver reports.
    gpus: int
    memory_mib: int
    #: Addresses that /etc/hosts gives the host's name, and whether the collection has written that
    #: line.
    own_name_in_hosts: list[str]
    own_name_repaired: bool


class Fault(TypedDict):
    """What differs from the plan although the container runs now."""

    found: str
    #: What to do; empty for what training_environment.yml corrects.
    fix: str
    #: Whether it is only a warning, and whether no role corrects it.
    warn: bool
    by_hand: bool


class Plan(TypedDict):
    """What role training_container does on a host."""

    services: services.Plan
    #: Missing prerequisites as texts.
    problems: list[str]
    #: Options of docker_container, and those that are set on request only.
    settings: dict[str, Any]
    options: dict[str, Any]
    #: Of all settings, a label of the container.
    hash: str
    #: Whether the hostname in /etc/hosts is as requested.
    own_name_as_asked: bool
    #: Whether nothing is missing, and files, container, unit, services and notebooks are as
    #: requested.
    as_asked: bool
    #: Whether the container must be created anew although its settings match.
    recreate: bool
    #: Whether a restart is needed because the running container lost mounts or limits.
    restart: bool
    faults: list[Fault]


def plain(value: Any) -> Any:
    """Return the same value without Ansible's types: json and str.join take the items of a lazy
    list as they are.
    """
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def faults(found: dict[str, Any], name: str, image: str, names: Iterable[str] = ()) -> list[str]:
    """Return the faults of a container that should run, and of its services C(names).

    C(found) is the result of training_container_info, here and below.
    """
    found = plain(found)
    container, unit, messages = found["container"], found["unit"], []
    if not container["exists"]:
        return ["container %s does not exist" % name]
    if not container["running"]:
        messages.append("container %s does not run" % name)
    if container["paused"]:
        messages.append("container %s is paused" % name)
    if container["changed_files"]:
        messages.append(
            "files of the image were changed in the running container: %s"
            % ", ".join(container["changed_files"])
        )
    if not unit["active"]:
        messages.append("%s.service is %s" % (name, unit["state"]))
    if not unit["enabled"]:
        messages.append("%s.service is not enabled, so it will not start at boot" % name)
    if container["exists"] and container["image_id"] != found["image"]["id"]:
        messages.append("the container was created from another image than %s" % image)
    not_ready = services.unready(found, plain(names))
    return messages + ["service %s: %s" % service for service in not_ready]


def _unit_faults(unit: dict[str, Any], name: str) -> list[str]:
    """Return what the host's next boot would do with the container's unit."""
    messages = []
    if unit["reload_needed"]:
        messages.append(
            "the file of %s.service was changed after systemd read it, and a reboot reads it" % name
        )
    if unit.get("engine") in NOT_AT_BOOT:
        messages.append("docker.service is %s, so it does not start at boot" % unit["engine"])
    return messages


def _unseen(container: dict[str, Any], requested: Requested) -> list[str]:
    """Return the departures of a running container that no job's session shows in checks of their
    own.
    """
    checked = (requested["share"], requested["share_root"], "/dev/shm")
    return [
        text
        for text in container.get("departures") or []
        if UNSEEN.match(text) and text.split(" ")[0] not in checked
    ]


def plan_faults(
    found: dict[str, Any], requested: Requested, digest: str, files: list[dict[str, str]]
) -> list[Fault]:
    """Return what differs from the plan although the container runs now.

    C(digest) is the hash of the planned settings, C(files) are the unit's files, the unit itself
    last.
    """
    name, container, unit = requested["name"], found["container"], found["unit"]
    if not container["exists"]:
        return []
    messages = []
    if not files_match(found, files[-1:]):
        messages.append("the unit %s is not the one that this release installs" % files[-1]["path"])
    messages += _unit_faults(unit, name)
    if container["restart_policy"] not in ("no", ""):
        messages.append(
            "Docker's restart policy of the container is %s, and its unit alone must restart it"
            % container["restart_policy"]
        )
    if container["managed"] and container["settings"] != digest:
        messages.append("the container was created with other settings than those of the inventory")
    faults: list[Fault] = [
        {
            "found": text,
            "fix": FIXES.get(text.split(" ")[0], ""),
            "warn": False,
            "by_hand": False,
        }
        for text in messages + _unseen(container, requested)
    ]
    return faults + [drop_in_fault(entry, name) for entry in unit.get("drop_ins") or []]


def differences(
    found: dict[str, Any], state_faults: Iterable[str], plan_faults: Iterable[Fault]
) -> list[Difference]:
    """Return the faults of a container for the table of playbook drift.

    A host without container and unit never had them.
    """
    container = found.get("container") or {}
    if not container or not container["exists"] and not found["unit"]["loaded"]:
        return []
    # Services have rows of their own.
    texts = [text for text in plain(state_faults) if not text.startswith("service ")]
    texts += [fault["found"] for fault in plain(plan_faults) if not fault["warn"]]
    texts += container.get("departures") or []
    texts += ["limited to %s" % text for text in container.get("limited") or []]
    return [
        {"what": "training container", "asked": "as configured", "found": text}
        for text in dict.fromkeys(texts)
    ]


def drop_in_fault(entry: dict[str, Any], name: str) -> Fault:
    """Return the fault of a drop-in.

    A drop-in belongs to the person who wrote it. So no role removes it, and it only warns if it
    decides nothing.
    """
    decisive = [key for key in entry["keys"] if DECISIVE.match(key)]
    return {
        "found": "%s sets %s of %s.service"
        % (entry["path"], ", ".join(decisive or entry["keys"]) or "nothing", name),
        "fix": (
            "if you do not need it, remove %s and run `systemctl daemon-reload`. No playbook "
            "removes it"
        )
        % entry["path"],
        "warn": not decisive,
        "by_hand": True,
    }


def files_match(found: dict[str, Any], files: list[dict[str, str]]) -> bool:
    """Return whether the host has the files as they are planned.

    Of a folder, only the permissions count.
    """
    return all(
        found["paths"].get(entry["path"]) == entry["mode"]
        and (
            "content" not in entry
            or found["files"].get(entry["path"], "")
            == hashlib.sha256(entry["content"].encode()).hexdigest()
        )
        for entry in files
    )


def _engine_problems(found: dict[str, Any], image: str) -> list[str]:
    """Return why the engine has no image for the container."""
    messages = []
    if not found["available"]:
        messages.append("the Docker engine is missing (%s): %s" % (found["cause"], found["fix"]))
    if not image:
        messages.append(
            "no image is set: run role training_image before, or set training_container_image"
        )
    elif found["available"] and not found["image"]["exists"]:
        messages.append(
            (
                "image %s is not on this host: run role training_image, or correct "
                "training_container_image"
            )
            % image
        )
    return messages


def _foreign_problems(found: dict[str, Any], name: str) -> list[str]:
    """Return what of others has the container's name."""
    messages = []
    if found["container"]["exists"] and not found["container"]["managed"]:
        messages.append(
            (
                "a container %s exists that this collection did not create: rename it, or set "
                "training_container_name"
            )
            % name
        )
    if found["unit"]["foreign"]:
        messages.append(
            (
                "the role would replace the unit %s, which this collection did not install: set "
                "training_container_name"
            )
            % found["unit"]["foreign"]
        )
    return messages


def _path_problems(found: dict[str, Any], requested: Requested) -> list[str]:
    """Return which paths the container needs and the host does not have."""
    paths, messages = existing(found), []
    if requested["share_root"] not in paths:
        messages.append(
            (
                "%s does not exist on this host, but it must contain the shared folder %s: run "
                "role shared_storage"
            )
            % (requested["share_root"], requested["share"])
        )
    sources = [mount["source"] for mount in requested["mounts"]]
    messages += [
        (
            "%s does not exist on this host: correct training_container_mounts or "
            "training_container_devices"
        )
        % path
        for path in sources + requested["devices"]
        if path not in paths
    ]
    return messages


def problems(found: dict[str, Any], requested: Requested, host: Host) -> list[str]:
    """Return missing prerequisites.

    A container with changed files is not recreated while a job runs in it, because the job would
    end.
    """
    container, name = found["container"], requested["name"]
    runtime = requested["engine_options"]["runtime"]
    messages = _engine_problems(found, requested["image"]) + _foreign_problems(found, name)
    if found["available"] and runtime and runtime not in found["runtimes"]:
        messages.append(
            (
                "Docker on this host has no runtime %s (it has %s): run role container_toolkit for "
                "nvidia, or correct training_container_runtime"
            )
            % (runtime, ", ".join(found["runtimes"]))
        )
    if container["busy"]:
        messages.append(
            "%s. It must be %s, but this would end its processes (%s): end the job, "
            "or stop it together with the container (systemctl stop %s.service), then run "
            "training_environment.yml again"
            % (
                changes(container),
                "recreated" if recreated(container) else "restarted",
                ", ".join(container["busy"]),
                name,
            )
        )
    if requested["gpus"] != "none" and host["gpus"] == 0:
        messages.append(
            "training_container_gpus is %s, but the driver of this host reports no GPU: load "
            "the driver with gpu_stack.yml, "
            "which says if a reboot is due, or set it to none" % json.dumps(requested["gpus"])
        )
    return messages + _path_problems(found, requested)


def recreated(container: dict[str, Any]) -> bool:
    """Return whether the container must be created anew although its settings are as planned."""
    return bool(container["changed_files"] or container.get("limited"))


def changes(container: dict[str, Any]) -> str:
    """Return what somebody has changed in a running container, in a sentence."""
    messages = []
    if container["changed_files"]:
        messages.append(
            "files of the image were changed in the running container (%s)"
            % ", ".join(container["changed_files"])
        )
    if container.get("limited"):
        messages.append("the container was limited to %s" % ", ".join(container["limited"]))
    return "; ".join(messages + (container.get("departures") or []))


def existing(found: dict[str, Any]) -> list[str]:
    """Return the paths that exist on the host."""
    return [path for path, mode in found["paths"].items() if mode]


def _environment(requested: Requested, paths: list[str]) -> dict[str, str]:
    """Return the variables of the container. C(paths) exist on the host.

    It has the certificates and pip settings of the site, if it has any. The proxies come from the
    file, so that no password appears in a variable.
    """
    bundle, pip = requested["site_dir"] + "/ca-bundle.crt", requested["site_dir"] + "/pip.conf"
    environment: dict[str, str] = {}
    if bundle in paths:
        environment.update(SSL_CERT_FILE=bundle, REQUESTS_CA_BUNDLE=bundle)
    if pip in paths:
        environment["PIP_CONFIG_FILE"] = pip
    # Docker accepts strings only.
    environment.update((name, str(value)) for name, value in requested["environment"].items())
    return environment


def _mounts(requested: Requested, paths: list[str], of_npus: Iterable[str]) -> list[dict[str, Any]]:
    """Return the mounts of the container.

    C(paths) exist on the host, C(of_npus) are paths of the NPUs' driver.
    """
    share, ssh, site = requested["share_root"], requested["ssh_dir"], requested["site_dir"]
    binds: list[dict[str, Any]] = [
        {"source": share, "target": share, "propagation": "rslave"},
        {"source": ssh, "target": ssh, "read_only": True},
    ]
    if site in paths:
        binds.append({"source": site, "target": site, "read_only": True})
    binds += [{"source": path, "target": path, "read_only": True} for path in of_npus]
    others = requested["mounts"] + services.mounts(requested)
    return [dict(bind, type="bind") for bind in binds] + [
        {"type": "bind", **mount} for mount in others
    ]


def _device_requests(gpus: str | list[int | str]) -> list[dict[str, Any]]:
    """Return what the container requests of NVIDIA's runtime."""
    if gpus == "none":
        return []
    if gpus == "all":
        return [{"driver": "nvidia", "count": -1, "capabilities": [["gpu"]]}]
    return [
        {
            "driver": "nvidia",
            "device_ids": [str(gpu) for gpu in gpus],
            "capabilities": [["gpu"]],
        }
    ]


def settings(found: dict[str, Any], requested: Requested, host: Host) -> dict[str, Any]:
    """Return all settings of the container.

    Their hash is a label of the container, so that the next run does not compare each setting.
    """
    paths = existing(found)
    npus = found["npus"] if requested["npus"] else {"devices": [], "mounts": []}
    shm_size = requested["shm_size"]
    if shm_size == "auto":
        # Half of the host's memory in GiB.
        shm_size = "%dg" % max(host["memory_mib"] // 2048, 1)
    infiniband = [path for path in [requested["infiniband"]] if path in paths]
    return {
        "image": requested["image"],
        "init": True,
        "network_mode": "host",
        "working_dir": requested["workdir"],
        "env": _environment(requested, paths),
        "env_file": {
            path: digest for path, digest in found["files"].items() if path == requested["env_file"]
        },
        "mounts": _mounts(requested, paths, npus["mounts"]),
        "shm_size": shm_size,
        # Name, soft and hard.
        "ulimits": [
            "%s:%s:%s" % (name, limit, limit) for name, limit in requested["ulimits"].items()
        ],
        "capabilities": requested["capabilities"],
        "devices": requested["devices"] + infiniband + npus["devices"],
        "device_requests": _device_requests(requested["gpus"]),
        # The journal has the complete log. This copy is for `docker logs`.
        "log_driver": "json-file",
        "log_options": {"max-size": "10m", "max-file": "3"},
    }


def options(requested: Requested) -> dict[str, Any]:
    """Return the options that are set.

    Others are not part of the hash, so that a container of an earlier release is left alone.
    """
    return {name: value for name, value in requested["engine_options"].items() if value}


def own_name(requested: Requested, host: Host) -> tuple[bool, str]:
    """Return whether the hostname in the host's /etc/hosts is as requested, and the address that it
    is pointed at, empty if it is not.

    The container uses the file.
    """
    in_hosts, repaired = plain(host["own_name_in_hosts"]), host["own_name_repaired"]
    loopback = any(LOOPBACK.match(address) for address in in_hosts)
    if not requested["repair_own_name"]:
        return not repaired, ""
    address = requested["address"]
    is_right = not loopback and (not repaired or address in in_hosts)
    return is_right, address if repaired or loopback else ""


def _runs_as_planned(found: dict[str, Any], digest: str) -> bool:
    """Return whether container and unit are as planned.

    C(digest) is the hash of the planned settings.
    """
    container = found["container"]
    return (
        container["settings"] == digest
        and container["restart_policy"] == "no"
        and not recreated(container)
        and not container.get("departures")
        and not found["unit"]["reload_needed"]
    )


def plan(
    found: dict[str, Any], requested: Requested, host: Host, files: list[dict[str, str]]
) -> Plan:
    """Return the plan for a host. C(files) are the unit's files, the unit itself last."""
    found, requested = plain(found), plain(requested)
    planned, also = settings(found, requested, host), options(requested)
    missing = problems(found, requested, host)
    served = services.plan(found, requested, requested["service_programs"])
    name_is_as_requested, address = own_name(requested, host)
    hashed = {**planned, **also}
    if address:
        # A change of the address recreates the container.
        hashed["own_name"] = address
    digest = hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()
    as_requested = (
        not missing
        and files_match(found, files)
        and _runs_as_planned(found, digest)
        and not faults(found, requested["name"], requested["image"])
        and not served["differ"]
    )
    return {
        "services": served,
        "problems": missing,
        "settings": planned,
        "options": also,
        "hash": digest,
        "own_name_as_asked": name_is_as_requested,
        "as_asked": as_requested,
        "recreate": recreated(found["container"]),
        "restart": (found["container"].get("departures") or []) != [],
        "faults": plan_faults(found, requested, digest, files),
    }


def drift(
    found: dict[str, Any],
    requested: Requested,
    state_faults: Iterable[str] = (),
    plan_faults: Iterable[Fault] = (),
) -> list[Difference]:
    """Return how a host differs from the plan. The faults are those of the state and of the
    plan.
    """
    found, requested = plain(found), plain(requested)
    of_services = services.differences(found, requested, requested["service_programs"])
    return differences(found, state_faults, plan_faults) + of_services


def service_faults(
    requested: list[dict[str, Any]], kind: str, ssh_port: int | str = 0
) -> list[str | None]:
    """Return what is wrong with the services of the inventory; see faults of
    _container_services.
    """
    return services.faults(plain(requested), kind, ssh_port)
