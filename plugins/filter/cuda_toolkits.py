# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: cuda_toolkits
short_description: Plan the packages for the requested CUDA toolkits
version_added: "0.2.0"
description:
  - Names the folders, packages and versions of toolkits and of cuDNN, and compares them with what a host says of itself.
positional: runfiles
options:
  _input:
    description: Versions that come as packages, each a series (V(12.4)), a release (V(12.4.1)) or a package's version (V(12.4.1-1)).
    type: list
    elements: str
    required: true
  runfiles:
    description: Toolkits that come as NVIDIA's self-extracting files, of which C(version) is read.
    type: list
    elements: dict
    default: []
  chosen:
    description: The one that C(/usr/local/cuda) shall lead to, as one of the others is written or as its series. Empty is the newest.
    type: str
    default: ""
  cudnn:
    description: Version of cuDNN's packages, V(9.1.0.70-1) or V(8.9.7.29-1+cuda12.2). Empty is none.
    type: str
    default: ""
  found:
    description: What M(trainyard.gpu.gpu_stack_info) says of the host.
    type: dict
    default: {}
"""

EXAMPLES = r"""
plan: "{{ ['12.4.1', '11.8'] | trainyard.gpu.cuda_toolkits(cudnn='9.1.0.70-1', found=stack) }}"
"""

RETURN = r"""
_value:
  description: What is to be done.
  type: dict
  contains:
    folders:
      description: Folder of every toolkit, with its series.
      type: dict
    chosen:
      description: The folder that C(/usr/local/cuda) shall lead to; empty where no toolkit is asked for.
      type: str
    priority:
      description: Its priority among the alternatives, as NVIDIA's packages give it.
      type: int
    packages:
      description: Packages as apt takes them.
      type: list
      elements: str
    asked:
      description: Their versions by name, of those without one the series, as M(trainyard.gpu.gpu_stack_info) takes them.
      type: dict
    holds:
      description: Names, as shell patterns, of what is held besides them.
      type: list
      elements: str
    lacks_packages:
      description: Whether the host lacks one of them at its version and held.
      type: bool
    missing_runfiles:
      description: Those of the self-extracting files whose toolkit the host lacks, with C(folder).
      type: list
      elements: dict
    new_folders:
      description: Folders of these in which no nvcc is.
      type: list
      elements: str
    wrong:
      description: What nvcc says that is not as asked, in words.
      type: list
      elements: str
"""

import re


def series_of(version):
    return ".".join(version.split(".")[:2])


def number(version):
    return tuple(int(part) for part in re.findall(r"\d+", version))


def packages_of(versions, cudnn, cuda):
    """Name and version; a series alone has none."""
    found = []
    for version in versions:
        exact = "" if version.count(".") < 2 else version if "-" in version else version + "-1"
        found.append(("cuda-toolkit-" + series_of(version).replace(".", "-"), exact))
    major = cudnn.split(".")[0]
    # From 9 on a name for each CUDA major, before that the CUDA is in the version.
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
        "wrong": ["%s/bin/nvcc is %s, not %s" % (folder, cuda[folder]["release"] if folder in cuda else "missing or silent", release)
                  for folder, release in folders.items() if cuda.get(folder, {}).get("release") != release],
    }


class FilterModule:
    """CUDA toolkits by version."""

    def filters(self):
        return {"cuda_toolkits": cuda_toolkits}
