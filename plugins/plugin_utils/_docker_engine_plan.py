# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The Docker engine of a host, from docker_engine_info's results, the request, and the packages of
each source. Pure functions.
"""

from __future__ import annotations

import hashlib
import os.path
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._docker_engine import numbers

REPOSITORY = "docker_repository"
# An upgrade or a removal of these stops the engine or its containers.
STOPPING = ("docker.io", "docker-ce", "containerd", "containerd.io", "runc")


# Its daemon.json is in /var/snap, it cannot mount /data1 or /etc/trainyard, and there is no
# docker.service.
SNAP = (
    "the Docker engine of this host is a snap, which reads no /etc/docker/daemon.json, mounts "
    "no folders such as /etc/trainyard into containers, and has no "
    "docker.service. Save what you need of its containers and volumes, run 'snap remove "
    "docker' on the host, and run this again: the role then installs the "
    "engine from packages."
)


class Requested(TypedDict):
    """What the variables of role docker_engine request."""

    #: C(distribution) or C(docker_repository).
    source: str
    #: Empty for any version from C(minimum_version) on.
    version: str
    minimum_version: str
    #: Whether another engine may be replaced, and running containers stopped.
    replace: bool
    interrupt: bool
    #: Path of the role's entry for apt.
    sources: str
    #: Whether the drop-in with the proxies was just removed.
    drop_in_went: bool


class Request(Requested):
    """The request with the packages by source, and the C(system), such as debian-12, by which the
    sources of distributions are named. Versions may be numbers.
    """

    catalog: dict[str, Parts]
    system: str


class _Found(TypedDict):
    #: Result of M(trainyard.gpu.docker_engine_info) with the packages of the catalog.
    engine: dict[str, Any]


class Found(_Found, total=False):
    """What was read of a host: C(engine), and the fields of Answers by name."""

    offered: dict[str, Any] | None
    simulated: dict[str, Any] | None
    leaving: dict[str, Any] | None
    contents: str


class Parts(TypedDict, total=False):
    """Names of the packages of one source. An empty name: the source does not have the part."""

    engine: str
    cli: str
    containerd: str
    buildx: str
    compose: str


class Engine(TypedDict):
    """The installed engine beside the requested one."""

    #: Sources: C(docker_repository), the system, C(unknown), or empty without an engine.
    installed_family: str
    #: Version of its package; empty if unknown.
    installed_package: str
    asked_family: str
    #: Whether the installed engine meets the request, whatever its source.
    is_good: bool
    #: Of the engine that stays or is installed; empty if they are unknown.
    parts: Parts
    #: Whether the role installed the engine.
    is_ours: bool
    #: Whether the role's entry for apt is present.
    has_repository: bool
    #: Packages whose version apt preferences pin.
    pinned: list[str]
    #: Whether the command line needs the plugin buildx and does not have it.
    cannot_build: bool
    #: Whether the engine has to restart for its environment, or to be started or enabled.
    restarts: bool
    stands_still: bool


class Missing(TypedDict):
    """The requested packages that are not installed."""

    #: Packages of the engine to install, and others.
    absent: list[str]
    extras: list[str]
    #: Whether compose is one of the others.
    wants_compose: bool


class Transaction(TypedDict):
    """What apt is to install."""

    #: Versions of the engine that apt offers, and the one to install; empty if there is none.
    versions: list[str]
    chosen: str
    #: Whether apt offers what is requested.
    is_offered: bool
    #: Packages to install, in apt's notation. Without an offer of the engine, they have the
    #: request, such as C(20.10 or newer), for the diff of check mode.
    transaction: list[str]


class ByApt(TypedDict):
    """What apt would do to the host by this installation."""

    #: Packages that the installation would remove, and those whose change would stop containers.
    removed: list[str]
    restarting: list[str]
    #: Why apt must not do it; empty if it may.
    apt_refusal: str


class Removal(TypedDict):
    """What teardown does to the packages."""

    #: Packages that a removal would also remove.
    taken_along: list[str]
    #: Whether teardown keeps the packages of the role, and whether it removes the engine.
    packages_stay: bool
    goes: bool


class Plan(Engine, Missing, Transaction, ByApt, Removal):
    """What role docker_engine does on a host."""

    #: C(group) and C(forwarding) of the host before the first installation, to record.
    former_state: dict[str, Any]
    #: Why the engine cannot be installed; empty if it can.
    refusal: str
    #: Whether a package has to be installed.
    lacks_packages: bool
    #: Whether daemon.json differs, or the engine has to be started or restarted.
    needs_configuring: bool


class Files(TypedDict):
    """The files of role docker_engine on a host."""

    #: SHA-256 checksums of the requested files, by path, and whether the existing files have
    #: others.
    checksums: dict[str, str]
    differ: bool
    #: Whether the host has to download the key of Docker's repository.
    downloads_key: bool
    #: The files to write and to remove, for M(managed_files).
    files: list[dict[str, Any]]
    #: Whether files, packages, options or the state of the engine differ, or the request is
    #: refused.
    has_work: bool


class Answers(NamedTuple):
    """What a host has answered since it was read.

    Packages that apt has (C(offered)), as docker_engine_info returns them. What apt would do, as
    placed_packages returns it: C(simulated) for the installation, C(leaving) for the removal. The
    C(contents) of Docker's folder.
    """

    offered: dict[str, Any] | None = None
    simulated: dict[str, Any] | None = None
    leaving: dict[str, Any] | None = None
    contents: str = ""


def matches(version: str, requested: str) -> bool:
    """Upstream's version matches a package's without its epoch and revision; a release candidate
    (~rc.1) is a different version.
    """
    return re.match(r"(?:\d+:)?%s(?:[-+].*)?$" % re.escape(requested), version) is not None


def installed_family(found: dict[str, Any], system: str) -> str:
    """Return the source of the installed engine: C(docker_repository), the system, C(unknown), or
    empty without an engine.
    """
    if found["packages"]["docker-ce"]["installed"]:
        return REPOSITORY
    if found["packages"]["docker.io"]["installed"]:
        return system
    return "unknown" if found["version"] else ""


def is_good(found: dict[str, Any], package: str, requested: Requested) -> bool:
    """Whether the installed engine meets the request, whatever its source."""
    version = found["version"]
    return (
        bool(version)
        and numbers(version) >= numbers(requested["minimum_version"])
        and (not requested["version"] or matches(package or version, requested["version"]))
    )


def refusal(found: dict[str, Any], engine: Engine, requested: Requested, system: str) -> str:
    """Why the engine cannot be installed; empty if it can."""
    if found.get("snap"):
        return SNAP
    if engine["is_good"]:
        return ""
    if engine["installed_family"] not in ("", engine["asked_family"]) and not requested["replace"]:
        return (
            "the installed engine '%s' (%s) is not the requested version "
            "(docker_engine_version '%s', docker_engine_minimum_version '%s'), "
            "and docker_engine_source '%s' would replace it. Set docker_engine_replace to "
            "true, use the source that it came from, "
            "or request a version that it meets."
            % (
                found["version"],
                engine["installed_package"] or "from an unknown package",
                requested["version"] or "any",
                requested["minimum_version"],
                requested["source"],
            )
        )
    if not engine["parts"]:
        return (
            "docker_engine_source '%s' has no packages for '%s'. Supported are Debian 12 and "
            "13 and Ubuntu 22.04 and 24.04. Use one of them, or set "
            "docker_engine_source to docker_repository." % (requested["source"], system)
        )
    return ""


def missing_packages(found: dict[str, Any], engine: Engine) -> Missing:
    """Return the packages that the host lacks."""
    parts, adds = engine["parts"], engine["is_ours"] or not engine["is_good"]
    absent = []
    if parts and not engine["is_good"]:
        absent = list(dict.fromkeys([parts["engine"], parts["cli"], parts["containerd"]]))
    extras = []
    if not found["python_requests"]:
        extras.append("python3-requests")
    if found["apparmor_required"]:
        extras.append("apparmor")
    if parts.get("buildx") and not found["buildx_version"] and (found["buildx_required"] or adds):
        extras.append(parts["buildx"])
    # The role adds nothing to an engine that the host had before.
    wants_compose = bool(parts.get("compose")) and not found["compose_version"] and adds
    if wants_compose:
        extras.append(parts["compose"])
    return {"absent": absent, "extras": extras, "wants_compose": wants_compose}


def _chosen_version(requested: Requested, offer: Mapping[str, Any]) -> str:
    """Return the version of the engine that apt would install; empty if there is none."""
    candidate: str = offer.get("candidate", "")
    if not requested["version"]:
        return candidate
    versions = offer.get("versions", [])
    return next((each for each in versions if matches(each, requested["version"])), "")


def _meets(requested: Requested, chosen: str) -> bool:
    """Return whether a version that apt would install is one that is requested."""
    if not chosen or requested["version"]:
        return bool(chosen)
    return numbers(chosen) >= numbers(requested["minimum_version"])


def transaction(
    engine: Engine, missing: Missing, requested: Requested, offered: Mapping[str, Any]
) -> Transaction:
    """Return what apt is to install, from what it offers."""
    absent, parts = missing["absent"], engine["parts"]
    offer = offered.get(parts["engine"], {}) if absent else {}
    chosen = _chosen_version(requested, offer)
    is_offered = not absent or _meets(requested, chosen)
    # Only check mode continues without an offer. Its diff shows the request, and an installed
    # engine counts as changed.
    version = chosen
    if not is_offered:
        version = requested["version"] or "%s or newer" % requested["minimum_version"]
    # Engine and command line have the same version.
    names = ["%s=%s" % (name, version) for name in absent if name != parts["containerd"]]
    names += [name for name in absent if name == parts["containerd"]]
    # A part that the source does not offer is omitted, unless check mode found no lists of this
    # source.
    has_lists = is_offered if absent else any(package["candidate"] for package in offered.values())
    names += [
        name
        for name in missing["extras"]
        if not has_lists or offered.get(name, {}).get("candidate", "unknown")
    ]
    return {
        "versions": offer.get("versions", []),
        "chosen": chosen,
        "is_offered": is_offered,
        "transaction": names,
    }


def former_state(found: dict[str, Any]) -> dict[str, Any]:
    """The host before the first run, to record: C(group), whether it had the engine's group, and
    C(forwarding).
    """
    # Records of releases before 0.4.0 have no notes, but the values beside the packages.
    noted = found["record"].get("notes", found["record"])
    return {name: noted.get(name, found[name]) for name in ("group", "forwarding")}


def changes_by_apt(
    found: dict[str, Any], requested: Requested, names: list[str], simulated: dict[str, Any]
) -> ByApt:
    """Return what apt would do, from its simulation of the installation of C(names)."""
    removed, held = simulated.get("removed", []), simulated.get("held", [])
    restarting = [
        name for name in list(simulated.get("replaced", {})) + removed if name in STOPPING
    ]
    problems = []
    if removed and not requested["replace"]:
        problems.append(
            "would remove %s (set docker_engine_replace to true to allow this)" % ", ".join(removed)
        )
    if restarting and found["containers_running"] and not requested["interrupt"]:
        problems.append(
            (
                "would upgrade or remove %s, which would stop %d running containers (set "
                "docker_engine_interrupt_containers to true to allow this)"
            )
            % (", ".join(restarting), found["containers_running"])
        )
    if held:
        problems.append(
            (
                "would change %s, held at the installed version (lift the hold with apt-mark "
                "unhold to allow this)"
            )
            % ", ".join(held)
        )
    refused = ""
    if problems:
        refused = "nothing was installed: installing %s %s" % (
            " ".join(names),
            ", and ".join(problems),
        )
    return {"removed": removed, "restarting": restarting, "apt_refusal": refused}


def removal(
    found: dict[str, Any], is_ours: bool, leaving: dict[str, Any], contents: str
) -> Removal:
    """Return what teardown removes, from apt's simulation of the removal (C(leaving)) and what is
    in Docker's folder (C(contents)).
    """
    along = leaving.get("needed_by", [])
    became_the_users = is_ours and (contents != "" or along != [] or not found["available"])
    # Something of the user's may have come to need python3-requests or a plugin, too, on a host
    # with an engine of its own.
    return {
        "taken_along": along,
        "packages_stay": became_the_users or along != [],
        "goes": is_ours and not became_the_users,
    }


def _has_repository(found: dict[str, Any], requested: Requested, good: bool) -> bool:
    """Return whether the role's entry for apt is present.

    A source that apt knows already stays the only one: two entries with different keys break apt.
    """
    if requested["source"] != REPOSITORY:
        return False
    if requested["sources"] in found["files"]:
        return True
    return not good and not found["packages"]["docker-ce"]["candidate"]


def _engine(
    found: dict[str, Any], requested: Requested, catalog: dict[str, Parts], system: str
) -> Engine:
    """Return the installed engine beside the requested one.

    See docker_engine_plan for the parameters.
    """
    family = installed_family(found, system)
    requested_family = system if requested["source"] == "distribution" else REPOSITORY
    package, is_ours = "", False
    if family in catalog:
        package = found["packages"][catalog[family]["engine"]]["installed"]
        is_ours = catalog[family]["engine"] in found["record"].get("packages", [])
    good = is_good(found, package, requested)
    parts = catalog.get(family if good else requested_family, {})
    pinned = []
    if requested["version"] and parts:
        pinned = list(dict.fromkeys([parts["engine"], parts["cli"]]))
    service = found["service"]
    lags_behind = not found["environment_in_force"] or requested["drop_in_went"]
    return {
        "installed_family": family,
        "installed_package": package,
        "asked_family": requested_family,
        "is_good": good,
        "parts": parts,
        "is_ours": is_ours,
        "has_repository": _has_repository(found, requested, good),
        "pinned": pinned,
        "cannot_build": found["buildx_required"] and found["buildx_version"] == "",
        "restarts": service["active"] and lags_behind,
        "stands_still": service["loaded"] and not (service["active"] and service["enabled"]),
    }


def docker_engine_plan(
    found: dict[str, Any],
    requested: Requested,
    catalog: dict[str, Parts],
    system: str,
    answers: Answers,
) -> Plan:
    """Return the plan for a host.

    C(found) is the result of docker_engine_info with the packages of C(catalog), which are named by
    source. Distributions are sources by their C(system), such as debian-12.
    """
    engine = _engine(found, requested, catalog, system)
    missing = missing_packages(found, engine)
    to_install = transaction(engine, missing, requested, answers.offered or {})
    return {
        **engine,
        **missing,
        **to_install,
        **changes_by_apt(found, requested, to_install["transaction"], answers.simulated or {}),
        **removal(found, engine["is_ours"], answers.leaving or {}, answers.contents),
        "former_state": former_state(found),
        "refusal": refusal(found, engine, requested, system),
        "lacks_packages": missing["absent"] + missing["extras"] != [],
        "needs_configuring": found["daemon_config"]["differs"]
        or engine["restarts"]
        or engine["stands_still"],
    }


def _is_needed(plan: Plan, key: str) -> bool:
    """Return whether the value of a key of the plan is neither false nor empty.

    A key that the plan does not have is needed always.
    """
    return bool(plan.get(key, True))


def _present_files(plan: Plan, files: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the files that have a content and what they need of the plan, with the pinned packages
    in their texts.
    """
    return [
        {
            "path": entry["path"],
            "content": entry["content"].replace("@pinned@", " ".join(plan["pinned"])),
            "mode": entry["mode"],
        }
        for entry in files
        if entry["content"] and _is_needed(plan, entry.get("needs", ""))
    ]


def _has_work(plan: Plan) -> bool:
    """Return whether packages, options or the state of the engine differ, or the request is
    refused.
    """
    return (
        plan["refusal"] != ""
        or plan["lacks_packages"]
        or plan["needs_configuring"]
        or plan["cannot_build"]
    )


def docker_engine_files(
    plan: Plan,
    files: list[dict[str, Any]],
    found: dict[str, str],
    keyring: str,
    key_checksum: str = "",
    in_own_folders: Iterable[str] = (),
) -> Files:
    """Return the files of the role on a host.

    C(files) have path, content and mode. C(needs) is a key of the plan: without content, or if its
    value is false or empty, the file is absent. C(@pinned@) in a content stands for the packages
    that the plan pins. C(found) are the checksums of the existing files, by path. C(keyring) is the
    path of the key of Docker's repository, and C(key_checksum) that of a key that the host
    downloads. The role creates the folders of C(in_own_folders), paths of files.
    """
    present = _present_files(plan, files)
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
    leaving = [{"path": path, "state": "absent"} for path in found if path not in checksums]
    differ = checksums != found
    return {
        "checksums": checksums,
        "differ": differ,
        "downloads_key": downloads and found.get(keyring, "") != checksums[keyring],
        "files": directories + present + leaving,
        "has_work": differ or _has_work(plan),
    }


def decide_docker_engine_plan(found: Found, requested: Request) -> Plan:
    """Return which engine a host keeps or gets, and what changes of it and of its packages.

    Returns Plan, which explains each key; C(refusal) is a sentence, empty if the request can be
    met.
    """
    as_texts: Request = {
        **requested,
        "version": str(requested["version"]),
        "minimum_version": str(requested["minimum_version"]),
    }
    answers = Answers(
        found.get("offered"),
        found.get("simulated"),
        found.get("leaving"),
        found.get("contents", ""),
    )
    return docker_engine_plan(
        found["engine"], as_texts, requested["catalog"], requested["system"], answers
    )
