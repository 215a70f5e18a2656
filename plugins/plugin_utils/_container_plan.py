# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The training container of a host, from training_container_info's result, the request, and the facts of role cluster. Pure functions."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _container_services as services

#: Settings in a drop-in of the unit that decide whether the container starts, how it ends, and whether it starts again.
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
    "another": "find out who started it and who may have used it, then run training_environment.yml, which restarts the container and ends it",
}
LOOPBACK = re.compile(r"127[.]|::1$")


def plain(value):
    """The same value without Ansible's types: json and str.join take the items of a lazy list as they are."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def faults(found, name, image, names=()):
    """Faults of a container that should run, and of its services C(names)."""
    found = plain(found)
    container, unit, said = found["container"], found["unit"], []
    if not container["exists"]:
        return ["container %s does not exist" % name]
    if not container["running"]:
        said.append("container %s does not run" % name)
    if container["paused"]:
        said.append("container %s is paused" % name)
    if container["changed_files"]:
        said.append(
            "files of the image were changed in the running container: %s"
            % ", ".join(container["changed_files"])
        )
    if not unit["active"]:
        said.append("%s.service is %s" % (name, unit["state"]))
    if not unit["enabled"]:
        said.append("%s.service is not enabled, so it will not start at boot" % name)
    if container["exists"] and container["image_id"] != found["image"]["id"]:
        said.append("the container was created from another image than %s" % image)
    return said + ["service %s: %s" % service for service in services.unready(found, plain(names))]


def plan_faults(found: dict, asked: dict, digest: str, files: list[dict]) -> list[dict]:
    """What differs from the plan although the container runs now, each with C(found), C(fix) and whether only a person can correct it (C(by_hand)).

    C(digest) is the hash of the planned settings, C(files) are the unit's files, the unit itself last.
    """
    name, container, unit = asked["name"], found["container"], found["unit"]
    if not container["exists"]:
        return []
    said = ["the unit %s is not the one that this release installs" % files[-1]["path"]] * (
        not files_match(found, files[-1:])
    )
    if unit["reload_needed"]:
        said.append(
            "the file of %s.service was changed after systemd read it, and a reboot reads it" % name
        )
    if unit.get("engine") in NOT_AT_BOOT:
        said.append("docker.service is %s, so it does not start at boot" % unit["engine"])
    if container["restart_policy"] not in ("no", ""):
        said.append(
            "Docker's restart policy of the container is %s, and its unit alone must restart it"
            % container["restart_policy"]
        )
    if container["managed"] and container["settings"] != digest:
        said.append("the container was created with other settings than those of the inventory")
    # A job's session shows the other departures, in checks of their own.
    said += [
        text
        for text in container.get("departures") or []
        if UNSEEN.match(text)
        and text.split(" ")[0] not in (asked["share"], asked["share_root"], "/dev/shm")
    ]
    return [
        {
            "found": text,
            "fix": FIXES.get(text.split(" ")[0], ""),
            "warn": False,
            "by_hand": False,
        }
        for text in said
    ] + [drop_in_fault(entry, name) for entry in unit.get("drop_ins") or []]


def differences(found: dict, state_faults: list[str], plan_faults: list[dict]) -> list[dict]:
    """The faults of a container for the table of playbook drift. A host without container and unit never had them."""
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


def drop_in_fault(entry: dict, name: str) -> dict:
    """A drop-in belongs to the person who wrote it. So no role removes it, and it only warns if it decides nothing."""
    decisive = [key for key in entry["keys"] if DECISIVE.match(key)]
    return {
        "found": "%s sets %s of %s.service"
        % (entry["path"], ", ".join(decisive or entry["keys"]) or "nothing", name),
        "fix": "if you do not need it, remove %s and run `systemctl daemon-reload`. No playbook removes it"
        % entry["path"],
        "warn": not decisive,
        "by_hand": True,
    }


def files_match(found: dict, files: list[dict]) -> bool:
    """Whether the host has the files as they are planned. Of a folder, only the permissions count."""
    return all(
        found["paths"].get(entry["path"]) == entry["mode"]
        and (
            "content" not in entry
            or found["files"].get(entry["path"], "")
            == hashlib.sha256(entry["content"].encode()).hexdigest()
        )
        for entry in files
    )


def problems(found, asked, host):
    """Missing prerequisites. A container with changed files is not recreated while a job runs in it, because the job would end."""
    container, said = found["container"], []
    there = existing(found)
    name, image, runtime = asked["name"], asked["image"], asked["runtime"]
    if not found["available"]:
        said.append("the Docker engine is missing (%s): %s" % (found["cause"], found["fix"]))
    if not image:
        said.append(
            "no image is set: run role training_image before, or set training_container_image"
        )
    elif found["available"] and not found["image"]["exists"]:
        said.append(
            "image %s is not on this host: run role training_image, or correct training_container_image"
            % image
        )
    if container["exists"] and not container["managed"]:
        said.append(
            "a container %s exists that this collection did not create: rename it, or set training_container_name"
            % name
        )
    if found["unit"]["foreign"]:
        said.append(
            "the role would replace the unit %s, which this collection did not install: set training_container_name"
            % found["unit"]["foreign"]
        )
    if found["available"] and runtime and runtime not in found["runtimes"]:
        said.append(
            "Docker on this host has no runtime %s (it has %s): run role container_toolkit for nvidia, or correct training_container_runtime"
            % (runtime, ", ".join(found["runtimes"]))
        )
    if container["busy"]:
        said.append(
            "%s. It must be %s, but this would end its processes (%s): end the job, "
            "or stop it together with the container (systemctl stop %s.service), then run training_environment.yml again"
            % (
                changes(container),
                "recreated" if recreated(container) else "restarted",
                ", ".join(container["busy"]),
                name,
            )
        )
    if asked["gpus"] != "none" and host["gpus"] == 0:
        said.append(
            "training_container_gpus is %s, but the driver of this host reports no GPU: load the driver with gpu_stack.yml, "
            "which says if a reboot is due, or set it to none" % json.dumps(asked["gpus"])
        )
    if asked["share_root"] not in there:
        said.append(
            "%s does not exist on this host, but it must contain the shared folder %s: run role shared_storage"
            % (asked["share_root"], asked["share"])
        )
    said += [
        "%s does not exist on this host: correct training_container_mounts or training_container_devices"
        % path
        for path in [mount["source"] for mount in asked["mounts"]] + asked["devices"]
        if path not in there
    ]
    return said


def recreated(container: dict) -> bool:
    """Whether the container must be created anew although its settings are as planned."""
    return container["changed_files"] + (container.get("limited") or []) != []


def changes(container: dict) -> str:
    """What somebody has changed in a running container, in a sentence."""
    said = [
        "files of the image were changed in the running container (%s)"
        % ", ".join(container["changed_files"])
    ]
    said = said if container["changed_files"] else []
    if container.get("limited"):
        said.append("the container was limited to %s" % ", ".join(container["limited"]))
    return "; ".join(said + (container.get("departures") or []))


def existing(found):
    """The paths that exist on the host."""
    return [path for path, mode in found["paths"].items() if mode]


def settings(found, asked, host):
    """All settings of the container. Their hash is a label of the container, so that the next run does not compare each setting."""
    there, site, gpus = existing(found), asked["site_dir"], asked["gpus"]
    bundle, pip = site + "/ca-bundle.crt", site + "/pip.conf"
    # Certificates and pip settings of the site, if it has any. The proxies come from the file, so that no password appears in a variable.
    environment = dict(
        {"SSL_CERT_FILE": bundle, "REQUESTS_CA_BUNDLE": bundle} if bundle in there else {},
        **({"PIP_CONFIG_FILE": pip} if pip in there else {}),
    )
    # Docker accepts strings only.
    environment.update((name, str(value)) for name, value in asked["environment"].items())
    binds = [
        {"source": asked["share_root"], "target": asked["share_root"], "propagation": "rslave"},
        {"source": asked["ssh_dir"], "target": asked["ssh_dir"], "read_only": True},
    ]
    binds += [{"source": site, "target": site, "read_only": True}] if site in there else []
    npus = found["npus"] if asked["npus"] else {"devices": [], "mounts": []}
    binds += [{"source": path, "target": path, "read_only": True} for path in npus["mounts"]]
    if gpus == "none":
        requests = []
    elif gpus == "all":
        requests = [{"driver": "nvidia", "count": -1, "capabilities": [["gpu"]]}]
    else:
        requests = [
            {
                "driver": "nvidia",
                "device_ids": [str(gpu) for gpu in gpus],
                "capabilities": [["gpu"]],
            }
        ]
    return {
        "image": asked["image"],
        "init": True,
        "network_mode": "host",
        "working_dir": asked["workdir"],
        "env": environment,
        "env_file": {
            path: digest for path, digest in found["files"].items() if path == asked["env_file"]
        },
        "mounts": [dict(bind, type="bind") for bind in binds]
        + [dict({"type": "bind"}, **mount) for mount in asked["mounts"] + services.mounts(asked)],
        # Half of the host's memory in GiB.
        "shm_size": "%dg" % max(host["memory_mib"] // 2048, 1)
        if asked["shm_size"] == "auto"
        else asked["shm_size"],
        # Name, soft and hard.
        "ulimits": ["%s:%s:%s" % (name, limit, limit) for name, limit in asked["ulimits"].items()],
        "capabilities": asked["capabilities"],
        "devices": asked["devices"]
        + ([asked["infiniband"]] if asked["infiniband"] in there else [])
        + npus["devices"],
        "device_requests": requests,
        # The journal has the complete log. This copy is for `docker logs`.
        "log_driver": "json-file",
        "log_options": {"max-size": "10m", "max-file": "3"},
    }


def options(asked):
    """Options that are not set are not part of the hash, so that a container of an earlier release is left alone."""
    found = {}
    if asked["ipc"]:
        found["ipc_mode"] = asked["ipc"]
    if asked["runtime"]:
        found["runtime"] = asked["runtime"]
    if asked["tty"]:
        found.update(tty=True, interactive=True)
    if asked["user"]:
        found["user"] = asked["user"]
    return found


def own_name(asked, host):
    """Whether the hostname in the host's /etc/hosts is as requested, and the address that it is pointed at, empty if it is not. The container uses the file."""
    in_hosts, repaired = plain(host["own_name_in_hosts"]), host["own_name_repaired"]
    loopback = any(LOOPBACK.match(address) for address in in_hosts)
    if not asked["repair_own_name"]:
        return not repaired, ""
    return not loopback and (not repaired or asked["address"] in in_hosts), asked[
        "address"
    ] if repaired or loopback else ""


def plan(found, asked, host, files):
    """List what the container lacks, compute its settings and their hash, and compare container and unit with them.

    C(found) is a result of M(trainyard.gpu.training_container_info), C(host) has the facts of role cluster, C(files) are the unit's files, the unit itself
    last. C(asked) are the variables of the role without their prefix, C(address), C(share) and C(share_root) of the cluster, the paths C(ssh_dir), C(site_dir),
    C(env_file) and C(infiniband), C(host_name), and the C(service_programs) by name.

    Returns C(problems), C(settings) and C(options) of C(community.docker.docker_container), their C(hash), a label of the container, C(own_name_as_asked),
    C(services), what plan of _container_services returns, C(as_asked), whether nothing has to be done, C(recreate), whether the container is created anew
    although its settings match, C(restart), whether it lost mounts or limits, and C(faults) with C(found), C(fix), C(warn), and C(by_hand) for what no role
    changes.
    """
    found, asked = plain(found), plain(asked)
    wanted, also, failing = (
        settings(found, asked, host),
        options(asked),
        faults(found, asked["name"], asked["image"]),
    )
    missing, served = (
        problems(found, asked, host),
        services.plan(found, asked, asked["service_programs"]),
    )
    name_is_as_asked, address = own_name(asked, host)
    # A change of the address recreates the container.
    hashed = dict(wanted, **dict(also, **({"own_name": address} if address else {})))
    digest = hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()
    container = found["container"]
    as_asked = (
        container["settings"] == digest
        and container["restart_policy"] == "no"
        and not recreated(container)
        and not container.get("departures")
        and not failing
        and not found["unit"]["reload_needed"]
        and not served["differ"]
    )
    return {
        "services": served,
        "problems": missing,
        "settings": wanted,
        "options": also,
        "hash": digest,
        "own_name_as_asked": name_is_as_asked,
        "as_asked": bool(not missing and files_match(found, files) and as_asked),
        "recreate": recreated(container),
        "restart": (container.get("departures") or []) != [],
        "faults": plan_faults(found, asked, digest, files),
    }


def drift(
    found: dict, asked: dict, state_faults: Sequence[str] = (), plan_faults: Sequence[dict] = ()
) -> list[dict]:
    """Return how a host differs from the plan, each with C(what), C(asked) and C(found). The faults are those of the state and of the plan."""
    found, asked = plain(found), plain(asked)
    of_services = services.differences(found, asked, asked["service_programs"])
    return differences(found, state_faults, plan_faults) + of_services


def service_faults(requested: list[dict], kind: str, ssh_port: int = 0) -> list[str]:
    """Return what is wrong with the services of the inventory; see faults of _container_services."""
    return services.faults(plain(requested), kind, ssh_port)
