# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The container toolkit of a host, from the results of gpu_stack_info and docker_engine_info and the request. Pure functions."""

from __future__ import annotations

import json

from ansible_collections.trainyard.gpu.plugins.module_utils._docker_engine import numbers

# One version for all: before 1.18 they depend on each other's version or a newer one, so apt alone would mix them (facts: container_toolkit.pin_together).
PACKAGES = (
    "libnvidia-container1",
    "libnvidia-container-tools",
    "nvidia-container-toolkit-base",
    "nvidia-container-toolkit",
)
# --gpus works through a hook that runc does not know: if systemd manages the cgroups, its next reload removes the devices. Of NVIDIA's remedies
# (container-toolkit/troubleshooting.md of NVIDIA/cloud-native-docs) this one works however a container requests its GPUs, and with every
# engine and toolkit; links in /dev/char fix another bug, of some versions of runc.
EXEC_OPTS = ["native.cgroupdriver=cgroupfs"]
BY_SYSTEMD = "native.cgroupdriver=systemd"
# Before the packages are installed: the output to expect from nvidia-ctk (its AddRuntime for Docker, the same from 1.14 to 1.20).
EXPECTED_RUNTIMES = {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}
# The engine has the switch since this version (moby: feature flag cdi).
CDI_FROM = [25]


def docker_options(engine, keep_gpus, cdi, said):
    """The options of daemon.json to merge: C(runtimes) as nvidia-ctk has printed them, and those that the role adds."""
    options = {}
    if keep_gpus:
        options["exec-opts"] = list(EXEC_OPTS)
    if cdi and numbers(engine.get("version") or "") >= CDI_FROM:
        options["features"] = {"cdi": True}
    options["runtimes"] = json.loads(said or "{}").get("runtimes", EXPECTED_RUNTIMES)
    return options


def docker_plan(found, engine, keep_gpus, cdi, said):
    """C(options), whether Docker C(restarts), whether the role C(configures) it, and whether systemd manages the cgroups by the user's own options."""
    options = docker_options(engine, keep_gpus, cdi, said)
    there = engine.get("daemon_config", {}).get("options", {})
    noted = engine.get("record", {}).get("daemon_config", {})
    placed = {entry["path"][0] for entry in noted.get("placed", [])}
    own = there.get("exec-opts", [])
    configured = (
        "nvidia" in (there.get("runtimes") or {})
        and ("exec-opts" in there or not keep_gpus)
        and ("cdi" in (there.get("features") or {}) or "features" not in options)
        and placed <= set(options)
        and not noted.get("pending", False)
    )
    # The engine may have started before the file was changed.
    in_force = "nvidia" in engine.get("runtimes", []) and (
        engine.get("cgroup_driver") == "cgroupfs" or own != EXEC_OPTS
    )
    # Docker looks for the toolkit's hook once, when it starts (moby: daemon/nvidia_linux.go). Without the hook Docker rejects --gpus.
    is_new = "nvidia-container-toolkit" not in found.get("packages", {})
    restarts = is_new or not in_force
    return {
        "options": options,
        "restarts": restarts,
        "configures": restarts or not configured,
        "cgroups_by_systemd": keep_gpus and BY_SYSTEMD in own,
    }


def cdi_plan(found, cdi, specification):
    """C(own_state), what becomes of the role's specification: file, absent or as it is; C(stale), specifications to regenerate, and those of others.

    Two specifications of the same device are both rejected, so the role writes one only if no other exists. Toolkit 1.18 and newer maintain their own.
    """
    library, entries = found.get("library", ""), found.get("cdi", [])
    # nvidia-ctk queries the driver, so it cannot generate a specification before the driver is loaded.
    wanted = cdi and library != "" and found["loaded"] == library
    # Specifications that name libraries of an earlier driver.
    stale = (
        [entry["path"] for entry in entries if entry["library"] and entry["library"] != library]
        if wanted
        else []
    )
    has_own = any(entry["path"] == specification for entry in entries)
    has_others = any(entry["path"] != specification for entry in entries)
    state = "as it is"
    if has_own and (has_others or not cdi):
        state = "absent"
    elif wanted and not has_others and (not has_own or specification in stale):
        state = "file"
    return {
        "own_state": state,
        "stale": stale,
        "stale_of_others": [path for path in stale if path != specification],
    }


def no_proof_because(found):
    """Why a container cannot show the GPUs; empty if it can."""
    if found.get("loaded", "") == "":
        return "the driver is not loaded"
    return found["reboot_required_reason"] or (
        "" if found["library"] else "the driver has no libraries"
    )


def container_toolkit_plan(found, engine, asked, version, specification, said=""):
    """Compare packages, Docker's options and CDI specifications with the request, before anything changes. What is not known yet may be empty.

    C(found) is a result of M(trainyard.gpu.gpu_stack_info), C(engine) of M(trainyard.gpu.docker_engine_info). C(asked): C(is_asked) for this host,
    C(recommended), no version is requested, C(keep_gpus), Docker manages the cgroups itself, C(cdi), there is to be a specification. C(version) is that of the
    packages, C(specification) the path of the role's own, C(said) the settings that nvidia-ctk has printed, as JSON; empty means those that are expected.

    Returns C(asked), versions by package, empty if none is requested, C(packages) in apt's notation, C(packages_differ), C(is_left_alone), a working toolkit is
    not the role's, C(options) of Docker, C(restarts) and C(configures), whether Docker has to, C(cgroups_by_systemd), existing options would take GPUs away,
    C(own_state), what becomes of the role's specification (file, absent, as it is), C(stale) ones of an earlier driver, C(stale_of_others), C(updates_cdi),
    C(is_checked), the GPUs have to be checked in a container, and C(no_proof_because), why a container cannot show them.
    """
    plan = docker_plan(found, engine, asked["keep_gpus"], asked["cdi"], said)
    plan.update(cdi_plan(found, asked["cdi"], specification))
    installed = [package for name, package in found.get("packages", {}).items() if name in PACKAGES]
    good = [package for package in installed if package["version"] == version and package["held"]]
    differ = len(good) < len(PACKAGES)
    plan.update(
        # The recommended version is for a host without a toolkit, so an installed one is not compared.
        asked=dict.fromkeys(PACKAGES, version)
        if asked["is_asked"] and not asked["recommended"]
        else {},
        packages=["%s=%s" % (name, version) for name in PACKAGES],
        packages_differ=differ,
        # A working toolkit that this role did not install, and no version is requested.
        is_left_alone=(
            asked["recommended"]
            and not engine.get("record", {}).get("daemon_config")
            and "nvidia" in engine.get("runtimes", [])
            and len(installed) == len(PACKAGES)
            and len({package["version"] for package in installed}) == 1
            and not plan["stale"]
        ),
        updates_cdi=plan["own_state"] != "as it is" or plan["stale_of_others"] != [],
        is_checked=differ
        or plan["configures"]
        or plan["own_state"] == "file"
        or plan["stale_of_others"] != [],
        no_proof_because=no_proof_because(found),
    )
    return plan
