# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The Docker engine of a host, from docker_engine_info's results, the request, and the packages of each source. Pure functions."""

from __future__ import annotations

import hashlib
import os.path
import re
from typing import NamedTuple

from ansible_collections.trainyard.gpu.plugins.module_utils._docker_engine import numbers

REPOSITORY = "docker_repository"
# An upgrade or a removal of these stops the engine or its containers.
STOPPING = ("docker.io", "docker-ce", "containerd", "containerd.io", "runc")


# Its daemon.json is in /var/snap, it cannot mount /data1 or /etc/trainyard, and there is no docker.service.
SNAP = (
    "the Docker engine of this host is a snap, which reads no /etc/docker/daemon.json, mounts no folders such as /etc/trainyard into containers, and has no "
    "docker.service. Save what you need of its containers and volumes, run 'snap remove docker' on the host, and run this again: the role then installs the "
    "engine from packages."
)


def matches(version, asked):
    """Upstream's version matches a package's without its epoch and revision; a release candidate (~rc.1) is a different version."""
    return re.match(r"(?:\d+:)?%s(?:[-+].*)?$" % re.escape(asked), version) is not None


def installed_family(found, system):
    """The source of the installed engine: C(docker_repository), the system, C(unknown), or empty without an engine."""
    if found["packages"]["docker-ce"]["installed"]:
        return REPOSITORY
    if found["packages"]["docker.io"]["installed"]:
        return system
    return "unknown" if found["version"] else ""


def is_good(found, package, asked):
    """Whether the installed engine meets the request, whatever its source."""
    version = found["version"]
    return (
        bool(version)
        and numbers(version) >= numbers(asked["minimum_version"])
        and (not asked["version"] or matches(package or version, asked["version"]))
    )


def refusal(found, plan, asked, system):
    """Why the engine cannot be installed; empty if it can."""
    if found.get("snap"):
        return SNAP
    if plan["is_good"]:
        return ""
    if plan["installed_family"] not in ("", plan["asked_family"]) and not asked["replace"]:
        return (
            "the installed engine '%s' (%s) is not the requested version (docker_engine_version '%s', docker_engine_minimum_version '%s'), "
            "and docker_engine_source '%s' would replace it. Set docker_engine_replace to true, use the source that it came from, "
            "or request a version that it meets."
            % (
                found["version"],
                plan["installed_package"] or "from an unknown package",
                asked["version"] or "any",
                asked["minimum_version"],
                asked["source"],
            )
        )
    if not plan["parts"]:
        return (
            "docker_engine_source '%s' has no packages for '%s'. Supported are Debian 12 and 13 and Ubuntu 22.04 and 24.04. Use one of them, or set "
            "docker_engine_source to docker_repository." % (asked["source"], system)
        )
    return ""


def missing_packages(found, plan):
    """C(absent), the packages of the engine to install; C(extras), others; C(wants_compose)."""
    parts, adds = plan["parts"], plan["is_ours"] or not plan["is_good"]
    absent = (
        []
        if plan["is_good"] or not parts
        else list(dict.fromkeys([parts["engine"], parts["cli"], parts["containerd"]]))
    )
    extras = ([] if found["python_requests"] else ["python3-requests"]) + (
        ["apparmor"] if found["apparmor_required"] else []
    )
    if parts.get("buildx") and not found["buildx_version"] and (found["buildx_required"] or adds):
        extras.append(parts["buildx"])
    # The role adds nothing to an engine that the host had before.
    wants_compose = bool(parts.get("compose")) and not found["compose_version"] and adds
    if wants_compose:
        extras.append(parts["compose"])
    return {"absent": absent, "extras": extras, "wants_compose": wants_compose}


def transaction(plan, asked, offered):
    """What apt is to install, from what it offers: C(versions) of the engine, the C(chosen) one, whether C(is_offered), and the C(transaction)."""
    absent, parts = plan["absent"], plan["parts"]
    engine = offered.get(parts["engine"], {}) if absent else {}
    versions = engine.get("versions", [])
    chosen = engine.get("candidate", "")
    if asked["version"]:
        chosen = next((version for version in versions if matches(version, asked["version"])), "")
    is_offered = (
        not absent
        or bool(chosen)
        and (bool(asked["version"]) or numbers(chosen) >= numbers(asked["minimum_version"]))
    )
    # Only check mode continues without an offer. Its diff shows the request, and an installed engine counts as changed.
    version = chosen if is_offered else asked["version"] or "%s or newer" % asked["minimum_version"]
    # Engine and command line have the same version.
    names = ["%s=%s" % (name, version) for name in absent if name != parts["containerd"]] + [
        name for name in absent if name == parts["containerd"]
    ]
    # A part that the source does not offer is omitted, unless check mode found no lists of this source.
    has_lists = is_offered if absent else any(package["candidate"] for package in offered.values())
    names += [
        name
        for name in plan["extras"]
        if not has_lists or offered.get(name, {}).get("candidate", "unknown")
    ]
    return {"versions": versions, "chosen": chosen, "is_offered": is_offered, "transaction": names}


def former_state(found):
    """The host before the first run, to record: C(group), whether it had the engine's group, and C(forwarding)."""
    # Records of releases before 0.3.0 have no notes, but the values beside the packages.
    noted = found["record"].get("notes", found["record"])
    return {name: noted.get(name, found[name]) for name in ("group", "forwarding")}


def changes_by_apt(found, asked, names, simulated):
    """What apt would do, from its simulation: C(removed), C(restarting), and C(apt_refusal), why it must not; empty if it may."""
    removed, held = simulated.get("removed", []), simulated.get("held", [])
    restarting = [
        name for name in list(simulated.get("replaced", {})) + removed if name in STOPPING
    ]
    problems = []
    if removed and not asked["replace"]:
        problems.append(
            "would remove %s (set docker_engine_replace to true to allow this)" % ", ".join(removed)
        )
    if restarting and found["containers_running"] and not asked["interrupt"]:
        problems.append(
            "would upgrade or remove %s, which would stop %d running containers (set docker_engine_interrupt_containers to true to allow this)"
            % (", ".join(restarting), found["containers_running"])
        )
    if held:
        problems.append(
            "would change %s, held at the installed version (lift the hold with apt-mark unhold to allow this)"
            % ", ".join(held)
        )
    refused = (
        "nothing was installed: installing %s %s" % (" ".join(names), ", and ".join(problems))
        if problems
        else ""
    )
    return {"removed": removed, "restarting": restarting, "apt_refusal": refused}


def removal(found, is_ours, leaving, contents):
    """What teardown removes: C(taken_along), packages that a removal would also remove; C(packages_stay); C(goes), whether the engine is removed."""
    along = leaving.get("needed_by", [])
    became_the_users = is_ours and (contents != "" or along != [] or not found["available"])
    # Something of the user's may have come to need python3-requests or a plugin, too, on a host with an engine of its own.
    return {
        "taken_along": along,
        "packages_stay": became_the_users or along != [],
        "goes": is_ours and not became_the_users,
    }


class Answers(NamedTuple):
    """What a host has answered since it was read.

    Versions that apt has (C(offered)), what apt would do (C(simulated), C(leaving)), and the C(contents) of Docker's folder.
    """

    offered: dict | None = None
    simulated: dict | None = None
    leaving: dict | None = None
    contents: str = ""


def docker_engine_plan(
    found: dict, asked: dict, catalog: dict, system: str, answers: Answers
) -> dict:
    """See the filter."""
    family = installed_family(found, system)
    wanted = system if asked["source"] == "distribution" else REPOSITORY
    package = found["packages"][catalog[family]["engine"]]["installed"] if family in catalog else ""
    good = is_good(found, package, asked)
    service, parts = found["service"], catalog.get(family if good else wanted, {})
    plan = {
        "installed_family": family,
        "installed_package": package,
        "asked_family": wanted,
        "is_good": good,
        "parts": parts,
        "is_ours": family in catalog
        and catalog[family]["engine"] in found["record"].get("packages", []),
        # A source that apt knows already stays the only one: two entries with different keys break apt.
        "has_repository": asked["source"] == REPOSITORY
        and (
            asked["sources"] in found["files"]
            or not good
            and not found["packages"]["docker-ce"]["candidate"]
        ),
        "pinned": list(dict.fromkeys([parts["engine"], parts["cli"]]))
        if asked["version"] and parts
        else [],
        "cannot_build": found["buildx_required"] and found["buildx_version"] == "",
        "restarts": service["active"]
        and (not found["environment_in_force"] or asked["drop_in_went"]),
        "stands_still": service["loaded"] and not (service["active"] and service["enabled"]),
    }
    plan.update(missing_packages(found, plan))
    plan.update(transaction(plan, asked, answers.offered or {}))
    plan.update(changes_by_apt(found, asked, plan["transaction"], answers.simulated or {}))
    plan.update(removal(found, plan["is_ours"], answers.leaving or {}, answers.contents))
    plan.update(
        former_state=former_state(found),
        refusal=refusal(found, plan, asked, system),
        lacks_packages=plan["absent"] + plan["extras"] != [],
        needs_configuring=found["daemon_config"]["differs"]
        or plan["restarts"]
        or plan["stands_still"],
    )
    return plan


def docker_engine_files(plan, files, found, keyring, key_checksum="", in_own_folders=()):
    """C(files) of the role have path, content and mode; without content or what they need they are absent. See the filter."""
    present = [
        {
            "path": entry["path"],
            "content": entry["content"].replace("@pinned@", " ".join(plan["pinned"])),
            "mode": entry["mode"],
        }
        for entry in files
        if entry["content"] and plan.get(entry.get("needs"), True)
    ]
    checksums = {
        entry["path"]: hashlib.sha256(entry["content"].encode("utf-8")).hexdigest()
        for entry in present
    }
    # A key that the host downloads itself is verified by its checksum and not written here.
    downloads = bool(key_checksum) and plan["has_repository"]
    if downloads:
        checksums[keyring] = re.sub("^sha256:", "", key_checksum.lower())
    folders = {os.path.dirname(path) for path in checksums}
    directories = [
        {"path": os.path.dirname(path), "state": "directory"}
        for path in in_own_folders
        if os.path.dirname(path) in folders
    ]
    differ = checksums != found
    return {
        "checksums": checksums,
        "differ": differ,
        "downloads_key": downloads and found.get(keyring, "") != checksums[keyring],
        "files": directories
        + present
        + [{"path": path, "state": "absent"} for path in found if path not in checksums],
        "has_work": differ
        or plan["refusal"] != ""
        or plan["lacks_packages"]
        or plan["needs_configuring"]
        or plan["cannot_build"],
    }


def decide_docker_engine_plan(
    found: dict, asked: dict, catalog: dict, system: str, **answers
) -> dict:
    """As docker_engine_plan. C(answers) has the fields of Answers, and versions may be numbers."""
    versions = {name: str(asked[name]) for name in ("version", "minimum_version")}
    return docker_engine_plan(found, dict(asked, **versions), catalog, system, Answers(**answers))
