# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which driver, CUDA, NCCL and image fit: questions to the facts in roles/preflight/meta/compat_facts.yml, which a maintainer updates without touching code.

Every answer that the facts don't have is None or empty, never a guess: the caller says that it could not judge.
"""

from __future__ import annotations

import os
import re

from ansible.module_utils.common.yaml import yaml_load

from ansible_collections.trainyard.gpu.plugins.module_utils._gpu_stack import version_key
from ansible_collections.trainyard.gpu.plugins.plugin_utils._role_input import ROLES

PATH = os.path.join(ROLES, "preflight", "meta", "compat_facts.yml")


def load_facts(path=PATH):
    """The facts, as plain data: nothing in them is a template."""
    with open(path, "rb") as stream:
        return yaml_load(stream)


def below(version, floor):
    """Whether a version is lower, field by field; a shorter one stands for its first release (535 is below 535.54.03)."""
    return version_key(version) < version_key(floor)


def same_branch(version, other):
    return version_key(version)[0] == version_key(other)[0]


class Compatibility:
    """Questions to the facts. CUDA versions are texts such as 12.4 or 12.4.1, drivers such as 550.54.15 or 550."""

    def __init__(self, facts):
        self.facts = facts

    # Drivers

    def generation(self, device_id):
        """Of a GPU by its PCI device id, four hexadecimal digits: the row of cuda.gpu_arch; None where the ranges don't have it."""
        number = int(device_id, 16)
        for entry in self.facts["cuda"]["gpu_device_ids"]:
            if any(int(first, 16) <= number <= int(last, 16) for first, last in entry["ranges"]):
                return entry["generation"]
        return None

    def branch(self, driver):
        """The row of a driver's branch; None where there is none."""
        number = version_key(driver)[0]
        return next((row for row in self.facts["cuda"]["driver_branches"] if row["branch"] == number), None)

    def minor_compat_min(self, cuda):
        """The oldest driver that runs programs of that CUDA major; None where the major has no minor version compatibility, or isn't known."""
        row = next((row for row in self.facts["cuda"]["minor_version_compat"] if row["cuda_major"] == version_key(cuda)[0]), None)
        return row["min_driver"] if row else None

    def toolkit(self, cuda):
        """The row of a toolkit: of exactly that version, else the first of its series; None where there is none."""
        rows = [row for row in self.facts["cuda"]["toolkits"] if version_key(row["cuda"])[: len(version_key(cuda))] == version_key(cuda)]
        rows = rows or [row for row in self.facts["cuda"]["toolkits"] if version_key(row["series"]) == version_key(cuda)[:2]]
        return rows[0] if rows else None

    def forward_compatible(self, driver, cuda):
        """Whether a data-center GPU's driver, below the floor, runs that CUDA by the compatibility libraries in NVIDIA's images; None where no list says it."""
        lists = [row for row in self.facts["cuda"]["forward_compat"]["datacenter_driver_lists"] if version_key(row["image_cuda"]) == version_key(cuda)[:2]]
        if not lists:
            return None
        return any(same_branch(driver, floor) and not below(driver, floor) for floor in lists[0]["also_ok"])

    # NCCL

    def nccl_pair(self, nccl, cuda="", directory="", arch="x86_64"):
        """The exact version of libnccl2 and libnccl-dev for what was asked.

        C(nccl) is exact already (2.21.5-1+cuda12.4), or a release (2.21.5) to go with C(cuda). Returns C(version), empty where the facts have no such build;
        C(known), whether they have it for that directory of NVIDIA's repository; and C(nearest), builds that come nearest, best first.
        """
        asked = re.fullmatch(self.facts["nccl"]["deb_version_pattern"].strip("^$"), nccl)
        release, cuda = (asked.group(1), asked.group(3)) if asked else (nccl, ".".join(cuda.split(".")[:2]))
        builds = [row for row in self.facts["nccl"]["debs"] if row["conf"] != "low"]
        there = [row for row in builds if not directory or arch in row["dirs"].get(directory, [])]
        exact = [row for row in builds if row["nccl"] == release and row["cuda"] == cuda and (not asked or row["deb_version"] == nccl)]
        version = nccl if asked else exact[0]["deb_version"] if exact else ""
        # Where a directory has none at all, one of another may do: the debs need little more than a C library that isn't older.
        candidates = [row["deb_version"] for row in there or builds]
        return {"version": version, "known": any(row in there for row in exact), "nearest": nearest(release, cuda, candidates)}

    def nccl_cuda_major_max(self, driver):
        """The newest CUDA major that a driver runs without compatibility libraries; None where the branch isn't known."""
        row = self.branch(driver)
        return row["max_cuda_major_no_fwd_compat"] if row else None

    # Repositories

    def keyring(self, directory, version="1.1-1"):
        """The cuda-keyring package of a directory: C(exists) (None where nobody looked) and C(sha256), empty where nobody noted it."""
        row = next((row for row in self.facts["driver_packages"]["cuda_keyring"]["rows"] if row["dir"] == directory), {})
        return {"exists": row.get("v" + version), "sha256": row.get("sha256_" + version, "")}


def nearest(release, cuda, versions, count=3):
    """Of builds, those that come nearest to a release for a CUDA: the same CUDA major first, then the nearest release, then the nearest CUDA."""
    def distance(version):
        match = re.fullmatch(r"(\d+(?:\.\d+)*)-\d+\+cuda(\d+\.\d+)", version)
        theirs, wanted = version_key(match.group(1)), version_key(release)
        step = [abs(left - right) for left, right in zip(theirs, wanted)]
        fit = version_key(match.group(2)), version_key(cuda) if cuda else version_key(match.group(2))
        return fit[0][0] != fit[1][0], step, abs(fit[0][1] - fit[1][1])

    exact = {version for version in versions if re.fullmatch(r"\d+(?:\.\d+)*-\d+\+cuda\d+\.\d+", version)}
    return sorted(exact, key=lambda version: (distance(version), version))[:count]
