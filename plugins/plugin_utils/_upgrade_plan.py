# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether a host needs an upgrade, and whether it works after one, from a result of gpu_stack_info
and one of nvidia_smi_info. Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._driver import fits
from ansible_collections.trainyard.gpu.plugins.module_utils._gpu_stack import upstream
from ansible_collections.trainyard.gpu.plugins.module_utils._slurm_host import release
from ansible_collections.trainyard.gpu.plugins.plugin_utils._drift import problems

# Packages whose upgrade restarts a service in which jobs run. Those of the file
# 52trainyard-services of role package_sources, which keeps unattended-upgrades from them; each is
# matched at the start of a name.
HELD_BACK = (
    "docker([.]io|-ce|-cli)",
    "containerd([.]io)?$",
    "runc$",
    "nfs-kernel-server$",
    "(podman|crun|conmon|netavark|aardvark-dns|fuse-overlayfs|uidmap)$",
    "(lib)?slurm",
    "libpam-slurm",
    "(lib)?munge[0-9]*$",
    "mariadb-",
    "libmariadb",
)
_SLURM = re.compile("(lib)?slurm|libpam-slurm")


class Updates(TypedDict):
    """Packages of HELD_BACK on a host (C(names)), what apt is to install of them, with versions,
    and sentences about those that stay.
    """

    names: list[str]
    install: list[str]
    left: list[str]


class UpgradePlan(TypedDict):
    """Whether a host needs an upgrade, whether an earlier one is over, what does not work, and why
    it reboots.
    """

    needed: bool
    over: bool
    faults: list[str]
    reboot: str


def services(
    installed: Mapping[str, Mapping[str, Any]],
    policy: Mapping[str, Mapping[str, Any]] | None = None,
) -> Updates:
    """Return the packages of HELD_BACK on a host, and what apt is to install of them.

    :param installed: packages of module package_list_info, by name, with an architecture for some.
    :param policy: packages of module docker_engine_info for these names, with C(installed) and C(candidate).
    """
    states = {name.partition(":")[0]: state for name, state in installed.items()}
    names = sorted(
        name
        for name, state in states.items()
        if state["status"] == "ii" and any(re.match(pattern, name) for pattern in HELD_BACK)
    )
    moves = _moves(names, policy or {})
    other = [
        name
        for name, (now, then) in moves.items()
        if _SLURM.match(name) and release(now) != release(then)
    ]
    left = []
    if other:
        now, then = moves[other[0]]
        left.append(
            "%s: apt offers Slurm %s and %s is installed. Another release of Slurm is not "
            "installed host by host. Stop all jobs, upgrade slurmdbd, then "
            "slurmctld, then slurmd on all hosts, as Slurm's upgrade guide says"
            % (", ".join(other), release(then), release(now))
        )
    return {
        "names": names,
        "install": ["%s=%s" % (name, move[1]) for name, move in moves.items() if name not in other],
        "left": left,
    }


def _moves(names: list[str], policy: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    """Return (installed version, offered version) of the packages of which apt offers another
    version.
    """
    moves = {}
    for name in names:
        offer = policy.get(name) or {}
        if offer.get("candidate") and offer["candidate"] != offer["installed"]:
            moves[name] = (offer["installed"], offer["candidate"])
    return moves


class _Found(TypedDict):
    #: Result of M(trainyard.gpu.gpu_stack_info).
    stack: dict[str, Any]


class Found(_Found, total=False):
    """What was read of a host. Without C(snapshot) and C(smi) there is none."""

    #: What an earlier upgrade has recorded of the host.
    snapshot: Mapping[str, Any]
    #: Result of M(trainyard.gpu.nvidia_smi_info), which may be skipped.
    smi: Mapping[str, Any] | None


class Requested(TypedDict, total=False):
    """Versions. Without C(packages), as in a rollback, only faults of the host itself count."""

    #: Versions by package.
    packages: dict[str, str]
    #: Version or branch of the driver, empty for any.
    driver: str


def plan(found: Found, requested: Requested) -> UpgradePlan:
    """Return whether a host needs an upgrade.

    Returns C(needed), C(over), whether no earlier upgrade has failed, C(faults), sentences about
    what does not work or differs, and C(reboot), why the host reboots, empty if it does not.
    """
    packages, driver = requested.get("packages"), requested.get("driver", "")
    stack, smi = found["stack"], found.get("smi")
    differences = problems(stack, packages or {}, driver)
    if packages is None:
        faults = ["%s: %s." % (entry["what"], entry["found"]) for entry in differences]
    else:
        faults = [
            "%s: requested '%s', found '%s'." % (entry["what"], entry["asked"], entry["found"])
            for entry in differences
        ]
    if smi and not smi.get("available", True):
        faults.append("nvidia-smi: %s: %s." % (smi["cause"], smi["fix"]))
    # A host of an upgrade that was stopped has a snapshot and does not work yet.
    return {
        "needed": differences != [],
        "over": bool(found.get("snapshot", {}).get("works", True)),
        "faults": faults,
        "reboot": reboot(stack, driver),
    }


def reboot(found: Mapping[str, Any], driver: str) -> str:
    """Why an upgrade to C(driver) ends with a reboot; empty if it does not, as in a container,
    which has no kernel of its own.
    """
    if not found.get("next_kernel"):
        return ""
    requested, loaded = upstream(str(driver)), found.get("loaded", "")
    if requested and loaded and not fits(loaded, requested):
        return "driver %s is loaded, and %s is requested" % (loaded, requested)
    reason: str = found["reboot_required_reason"]
    return reason
