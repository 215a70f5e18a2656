# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The container toolkit of a host, from the results of gpu_stack_info and docker_engine_info and
the request. Pure functions.
"""

from __future__ import annotations

import json
from typing import Any, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._docker_engine import numbers

# One version for all: before 1.18 they depend on each other's version or a newer one, so apt alone
# would mix them (facts: container_toolkit.pin_together).
PACKAGES = (
    "libnvidia-container1",
    "libnvidia-container-tools",
    "nvidia-container-toolkit-base",
    "nvidia-container-toolkit",
)
# --gpus works through a hook that runc does not know: if systemd manages the cgroups, its next reload removes the devices. Of NVIDIA's remedies
# (container-toolkit/troubleshooting.md of NVIDIA/cloud-native-docs) this one works however a
# container requests its GPUs, and with every engine and toolkit; links in /dev/char fix another
# bug, of some versions of runc.
EXEC_OPTS = ["native.cgroupdriver=cgroupfs"]
BY_SYSTEMD = "native.cgroupdriver=systemd"
# Before the packages are installed: the output to expect from nvidia-ctk (its AddRuntime for
# Docker, the same from 1.14 to 1.20).
EXPECTED_RUNTIMES = {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}
# The engine has the switch since this version (moby: feature flag cdi).
CDI_FROM = [25]


class Requested(TypedDict):
    """What the variables of role container_toolkit request."""

    #: Whether the toolkit is requested for this host.
    is_asked: bool
    #: Whether no version is requested.
    recommended: bool
    #: Whether Docker manages the cgroups itself.
    keep_gpus: bool
    #: Whether the host has a CDI specification, and the path of the role's.
    cdi: bool
    specification: str
    #: Of the packages, such as 1.17.8-1.
    version: str


class Found(TypedDict):
    """What was read of a host."""

    #: Result of M(trainyard.gpu.gpu_stack_info), and of M(trainyard.gpu.docker_engine_info) with
    #: the record of the role.
    stack: dict[str, Any]
    engine: dict[str, Any]
    #: What nvidia-ctk has printed, as JSON; empty for what is expected of it.
    runtimes: str


class DockerPlan(TypedDict):
    """What becomes of Docker."""

    #: Options of daemon.json to merge.
    options: dict[str, Any]
    #: Whether Docker has to restart, although its options may be complete.
    restarts: bool
    #: Whether Docker has to be configured or restarted.
    configures: bool
    #: Whether existing options make systemd manage the cgroups, although containers are to keep
    #: their GPUs.
    cgroups_by_systemd: bool


class CdiPlan(TypedDict):
    """What becomes of the CDI specifications of a host."""

    #: Of the role's: file, absent or as it is.
    own_state: str
    #: Paths of those for an earlier driver, to be generated again, and of those among them that are
    #: not the role's.
    stale: list[str]
    stale_of_others: list[str]


class Plan(DockerPlan, CdiPlan):
    """What role container_toolkit does on a host."""

    #: Versions by package, for option asked of gpu_stack_info. Empty if no version is requested.
    asked: dict[str, str]
    #: In apt's notation.
    packages: list[str]
    #: Whether one of them is missing, has another version or is not held.
    packages_differ: bool
    #: Whether a working toolkit is installed that the role did not install, and no version is
    #: requested.
    is_left_alone: bool
    #: Whether a CDI specification has to be written, removed or generated again.
    updates_cdi: bool
    #: Whether the GPUs have to be checked in a container after the changes.
    is_checked: bool
    #: Why a container cannot show the GPUs; empty if it can.
    no_proof_because: str


def docker_options(
    engine: dict[str, Any], keep_gpus: bool, cdi: bool, runtimes: str
) -> dict[str, Any]:
    """Return the options of daemon.json to merge: those that the role adds, and C(runtimes), which
    nvidia-ctk has printed as JSON.
    """
    options: dict[str, Any] = {}
    if keep_gpus:
        options["exec-opts"] = list(EXEC_OPTS)
    if cdi and numbers(engine.get("version") or "") >= CDI_FROM:
        options["features"] = {"cdi": True}
    options["runtimes"] = json.loads(runtimes or "{}").get("runtimes", EXPECTED_RUNTIMES)
    return options


def _is_configured(engine: dict[str, Any], options: dict[str, Any], keep_gpus: bool) -> bool:
    """Return whether daemon.json has the options, and none that the role has set earlier."""
    existing = engine.get("daemon_config", {}).get("options", {})
    noted = engine.get("record", {}).get("daemon_config", {})
    placed = {entry["path"][0] for entry in noted.get("placed", [])}
    return (
        "nvidia" in (existing.get("runtimes") or {})
        and ("exec-opts" in existing or not keep_gpus)
        and ("cdi" in (existing.get("features") or {}) or "features" not in options)
        and placed <= set(options)
        and not noted.get("pending", False)
    )


def docker_plan(
    found: dict[str, Any], engine: dict[str, Any], keep_gpus: bool, cdi: bool, runtimes: str
) -> DockerPlan:
    """Return what becomes of Docker. See container_toolkit_plan for the parameters."""
    options = docker_options(engine, keep_gpus, cdi, runtimes)
    own = engine.get("daemon_config", {}).get("options", {}).get("exec-opts", [])
    # The engine may have started before the file was changed.
    in_force = "nvidia" in engine.get("runtimes", []) and (
        engine.get("cgroup_driver") == "cgroupfs" or own != EXEC_OPTS
    )
    # Docker looks for the toolkit's hook once, when it starts (moby: daemon/nvidia_linux.go).
    # Without the hook Docker rejects --gpus.
    is_new = "nvidia-container-toolkit" not in found.get("packages", {})
    restarts = is_new or not in_force
    return {
        "options": options,
        "restarts": restarts,
        "configures": restarts or not _is_configured(engine, options, keep_gpus),
        "cgroups_by_systemd": keep_gpus and BY_SYSTEMD in own,
    }


def _stale_specifications(found: dict[str, Any]) -> list[str]:
    """Return the paths of the specifications that name libraries of an earlier driver."""
    return [
        entry["path"]
        for entry in found.get("cdi", [])
        if entry["library"] and entry["library"] != found.get("library", "")
    ]


def cdi_plan(found: dict[str, Any], cdi: bool, specification: str) -> CdiPlan:
    """Return what becomes of the CDI specifications. C(specification) is the path of the role's.

    Two specifications of the same device are both rejected, so the role writes one only if no other
    exists. Toolkit 1.18 and newer maintain their own.
    """
    library, paths = found.get("library", ""), [entry["path"] for entry in found.get("cdi", [])]
    # nvidia-ctk queries the driver, so it cannot generate a specification before the driver is
    # loaded.
    can_generate = cdi and library != "" and found["loaded"] == library
    stale = _stale_specifications(found) if can_generate else []
    has_own = specification in paths
    has_others = any(path != specification for path in paths)
    state = "as it is"
    if has_own and (has_others or not cdi):
        state = "absent"
    elif can_generate and not has_others and (not has_own or specification in stale):
        state = "file"
    return {
        "own_state": state,
        "stale": stale,
        "stale_of_others": [path for path in stale if path != specification],
    }


def no_proof_because(found: dict[str, Any]) -> str:
    """Return why a container cannot show the GPUs; empty if it can."""
    if found.get("loaded", "") == "":
        return "the driver is not loaded"
    reason: str = found["reboot_required_reason"]
    return reason or ("" if found["library"] else "the driver has no libraries")


def _works_by_itself(
    engine: dict[str, Any], installed: list[dict[str, Any]], stale: list[str]
) -> bool:
    """Return whether a host has a working toolkit that this role did not install.

    C(installed) are its packages.
    """
    if engine.get("record", {}).get("daemon_config") or stale:
        return False
    is_whole = len(installed) == len(PACKAGES)
    is_of_one_version = len({package["version"] for package in installed}) == 1
    return "nvidia" in engine.get("runtimes", []) and is_whole and is_of_one_version


def container_toolkit_plan(found: Found, requested: Requested) -> Plan:
    """Return which packages of the toolkit a host gets, and how Docker and CDI are configured.

    Returns Plan, which explains each key.
    """
    stack, engine, version = found["stack"], found["engine"], requested["version"]
    docker = docker_plan(stack, engine, requested["keep_gpus"], requested["cdi"], found["runtimes"])
    specifications = cdi_plan(stack, requested["cdi"], requested["specification"])
    installed = [package for name, package in stack.get("packages", {}).items() if name in PACKAGES]
    good = [package for package in installed if package["version"] == version and package["held"]]
    packages_differ = len(good) < len(PACKAGES)
    versions: dict[str, str] = {}
    # The recommended version is for a host without a toolkit, so an installed one is not compared.
    if requested["is_asked"] and not requested["recommended"]:
        versions = dict.fromkeys(PACKAGES, version)
    own_state, others_change = specifications["own_state"], specifications["stale_of_others"] != []
    return {
        **docker,
        **specifications,
        "asked": versions,
        "packages": ["%s=%s" % (name, version) for name in PACKAGES],
        "packages_differ": packages_differ,
        "is_left_alone": requested["recommended"]
        and _works_by_itself(engine, installed, specifications["stale"]),
        "updates_cdi": own_state != "as it is" or others_change,
        "is_checked": packages_differ
        or docker["configures"]
        or own_state == "file"
        or others_change,
        "no_proof_because": no_proof_because(stack),
    }
