# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Limits beside GPUs that an account has by default. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

__all__ = ["DEFAULTS", "NodeSize", "node_size", "numbers", "with_defaults"]

# As defaults/main.yml of role slurm has them. A limit of 0 means none.
DEFAULTS = {
    "max_minutes": 43200,
    "default_minutes": 0,
    "max_jobs_per_person": 500,
    "max_submitted_per_person": 2000,
    "share": 50,
}
_PER_PERSON = ("max_jobs_per_person", "max_submitted_per_person")


class NodeSize(TypedDict):
    """The CPUs of a node, and its memory in MiB. 0 if slurm.conf does not say."""

    cpus: int
    real_memory: int


def numbers(limits: Mapping[str, Any] | None) -> dict[str, int]:
    """Return all limits as numbers, which ansible-core before 2.19 makes texts of."""
    return {name: int(value) for name, value in dict(DEFAULTS, **limits or {}).items()}


def node_size(values: Mapping[str, Any]) -> NodeSize:
    """Return the size of a parsed node line of slurm.conf."""
    return {"cpus": _number(values.get("cpus")), "real_memory": _number(values.get("realmemory"))}


def _number(value: Any) -> int:
    text = str(value)
    return int(text) if re.fullmatch("[0-9]{1,12}", text) else 0


def _share(
    account: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]], least: int
) -> dict[str, int]:
    """Return the default C(cpus) and C(memory_gb) of an account, empty for no limit.

    C(least) is a percentage. An account that may use all GPUs can keep all hosts busy anyway.
    Without GPUs in the cluster there is nothing to protect.
    """
    total: int = sum(node["gpu_count"] for node in nodes)
    gpus = account.get("gpus")
    if gpus is None or int(gpus) >= total or least >= 100:
        return {}

    def part(key: str) -> int:
        amount: int = sum(node[key] for node in nodes)
        return max(amount * least // 100, amount * int(gpus) // total)

    cpus, mebibytes = part("cpus"), part("real_memory")
    # Rounded up: the memory that Slurm gives to these CPUs by default must fit.
    return {"cpus": max(1, cpus), "memory_gb": max(1, -(-mebibytes // 1024))}


def with_defaults(
    accounts: Sequence[Mapping[str, Any]],
    nodes: Sequence[Mapping[str, Any]],
    limits: Mapping[str, int],
) -> list[dict[str, Any]]:
    """Return the accounts for module slurm_accounts, with C(defaults) for what they do not set."""
    planned = []
    for account in accounts:
        entry = {key: value for key, value in account.items() if key != "hosts_classes"}
        defaults = _share(account, nodes, limits["share"])
        defaults.update((name, limits[name]) for name in _PER_PERSON if limits[name])
        planned.append(dict(entry, defaults=defaults))
    return planned
