# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: cuda_toolkits
short_description: Plan the packages for the requested CUDA toolkits
version_added: "0.2.0"
description:
  - Returns the folders, packages and versions of toolkits and of cuDNN, and compares them with the host.
positional: runfiles
options:
  _input:
    description: Versions to install as packages, each a series (V(12.4)), a release (V(12.4.1)) or a package version (V(12.4.1-1)).
    type: list
    elements: str
    required: true
  runfiles:
    description: Toolkits to install from NVIDIA's self-extracting files. Their key C(version) is used.
    type: list
    elements: dict
    default: []
  chosen:
    description: Toolkit for the link C(/usr/local/cuda), written like one of the others or as its series. Empty means the newest.
    type: str
    default: ""
  cudnn:
    description: Version of cuDNN's packages, such as V(9.1.0.70-1) or V(8.9.7.29-1+cuda12.2). Empty means none.
    type: str
    default: ""
  found:
    description: Result of M(trainyard.gpu.gpu_stack_info) for the host.
    type: dict
    default: {}
"""

EXAMPLES = r"""
plan: "{{ ['12.4.1', '11.8'] | trainyard.gpu.cuda_toolkits(cudnn='9.1.0.70-1', found=stack) }}"
"""

RETURN = r"""
_value:
  description: The plan.
  type: dict
  contains:
    folders:
      description: Folder of every toolkit, with its series.
      type: dict
    chosen:
      description: Target of the link C(/usr/local/cuda); empty if no toolkit is requested.
      type: str
    priority:
      description: Its priority among the alternatives, as in NVIDIA's packages.
      type: int
    packages:
      description: Packages in apt's notation.
      type: list
      elements: str
    asked:
      description: Their versions by name, or the series of those without one, for option C(asked) of M(trainyard.gpu.gpu_stack_info).
      type: dict
    holds:
      description: Shell patterns of names of other packages to hold.
      type: list
      elements: str
    lacks_packages:
      description: Whether one of them is missing on the host, has another version or is not held.
      type: bool
    missing_runfiles:
      description: The self-extracting files whose toolkit the host lacks, with C(folder).
      type: list
      elements: dict
    new_folders:
      description: Folders of these toolkits without nvcc.
      type: list
      elements: str
    wrong:
      description: Differences of nvcc versions from the requested ones, as text.
      type: list
      elements: str
"""

import re


def series_of(version):
    return ".".join(version.split(".")[:2])


def number(version):
    return tuple(int(part) for part in re.findall(r"\d+", version))


def packages_of(versions, cudnn, cuda):
    """Name and version; a series alone has no version."""
    found = []
    for version in versions:
        exact = "" if version.count(".") < 2 else version if "-" in version else version + "-1"
        found.append(("cuda-toolkit-" + series_of(version).replace(".", "-"), exact))
    major = cudnn.split(".")[0]
    # From 9 on there is a name for each CUDA major. Before that the CUDA is part of the version.
    if cudnn and int(major) >= 9:
        names = ["libcudnn%s-%scuda-%s" % (major, part, cuda.split(".")[0]) for part in ("", "headers-", "dev-")]
    else:
        names = ["libcudnn%s" % major, "libcudnn%s-dev" % major] if cudnn else []
    return found + [(name, cudnn) for name in names]


def cuda_toolkits(versions, runfiles=(), chosen="", cudnn="", found=None):
    found = found or {}
    asked = [str(version) for version in versions] + [str(runfile["version"]) for runfile in runfiles]
    folders = {"/usr/local/cuda-" + series_of(version): series_of(version) for version in asked}
    series = series_of(str(chosen)) if chosen else max((series_of(version) for version in asked), key=number, default="")
    packages = packages_of([str(version) for version in versions], str(cudnn), series)
    installed, cuda = found.get("packages", {}), found.get("cuda", {})

    def lacks(name, version):
        there = installed.get(name)
        return not there or not there["held"] or bool(version) and there["version"] != version

    files = [dict(runfile, folder="/usr/local/cuda-" + series_of(str(runfile["version"]))) for runfile in runfiles]
    missing = [runfile for runfile in files if cuda.get(runfile["folder"], {}).get("release") != folders[runfile["folder"]]]
    return {
        "folders": folders,
        "chosen": "/usr/local/cuda-" + series if series else "",
        "priority": int(series.replace(".", "")) if series else 0,
        "packages": ["%s=%s" % (name, version) if version else name for name, version in packages],
        "asked": {name: version or name[len("cuda-toolkit-"):].replace("-", ".") for name, version in packages},
        "holds": [pattern % series_of(str(version)).replace(".", "-") for version in versions for pattern in ("*-%s", "cuda-toolkit-%s-*")],
        "lacks_packages": any(lacks(name, version) for name, version in packages),
        "missing_runfiles": missing,
        "new_folders": [runfile["folder"] for runfile in missing if runfile["folder"] not in cuda],
        "wrong": ["%s/bin/nvcc is %s, not %s" % (folder, cuda[folder]["release"] if folder in cuda else "missing or gives no output", release)
                  for folder, release in folders.items() if cuda.get(folder, {}).get("release") != release],
    }


class FilterModule:
    """Filters for CUDA toolkits."""

    def filters(self):
        return {"cuda_toolkits": cuda_toolkits}
