# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The packages and folders of the requested CUDA toolkits and of cuDNN. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

Package = tuple[str, str]


class Plan(TypedDict):
    """What role cuda_toolkit installs. cuda_toolkits explains the keys."""

    folders: dict[str, str]
    chosen: str
    priority: int
    packages: list[str]
    asked: dict[str, str]
    holds: list[str]
    lacks_packages: bool
    missing_runfiles: list[dict[str, Any]]
    new_folders: list[str]
    wrong: list[str]


def series_of(version: str) -> str:
    """Return the series of a version: 12.4 of 12.4.1-1."""
    return ".".join(version.split(".")[:2])


def number(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, by which versions are compared: 12, 4, 1, 1 of 12.4.1-1."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def packages_of(versions: Iterable[str], cudnn: str, cuda: str) -> list[Package]:
    """Name and version; a series alone has no version."""
    found = []
    for version in versions:
        exact = "" if version.count(".") < 2 else version if "-" in version else version + "-1"
        found.append(("cuda-toolkit-" + series_of(version).replace(".", "-"), exact))
    major = cudnn.split(".")[0]
    # From 9 on there is a name for each CUDA major. Before that the CUDA is part of the version.
    if cudnn and int(major) >= 9:
        names = [
            "libcudnn%s-%scuda-%s" % (major, part, cuda.split(".")[0])
            for part in ("", "headers-", "dev-")
        ]
    else:
        names = ["libcudnn%s" % major, "libcudnn%s-dev" % major] if cudnn else []
    return found + [(name, cudnn) for name in names]


def wrong_releases(folders: dict[str, str], found: dict[str, Any]) -> list[str]:
    """Return a sentence for each folder whose compiler is of another release.

    C(folders) are the releases by folder.
    """
    sentences = []
    for folder, release in folders.items():
        its = found.get(folder, {"release": "missing or gives no output"})["release"]
        if its != release:
            sentences.append("%s/bin/nvcc is %s, not %s" % (folder, its, release))
    return sentences


def lacks(installed: dict[str, Any], name: str, version: str) -> bool:
    """Return whether a package is missing, not held, or of another version.

    C(version) is empty where any will do.
    """
    there = installed.get(name)
    if not there or not there["held"]:
        return True
    return bool(version) and there["version"] != version


def _patterns_to_hold(versions: Iterable[object]) -> list[str]:
    names = [series_of(str(version)).replace(".", "-") for version in versions]
    return [pattern % name for name in names for pattern in ("*-%s", "cuda-toolkit-%s-*")]


def _versions_asked(packages: Iterable[Package]) -> dict[str, str]:
    """Return the versions by package. A name without a version has its series."""
    requested = {}
    for name, version in packages:
        requested[name] = version or name[len("cuda-toolkit-") :].replace("-", ".")
    return requested


def _missing_runfiles(
    runfiles: Iterable[dict[str, Any]], folders: dict[str, str], cuda: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the runfiles whose folder lacks the release of C(folders), each with its C(folder).

    C(cuda) are the toolkits of the host by folder.
    """
    missing = []
    for runfile in runfiles:
        folder = "/usr/local/cuda-" + series_of(str(runfile["version"]))
        if cuda.get(folder, {}).get("release") != folders[folder]:
            missing.append(dict(runfile, folder=folder))
    return missing


def cuda_toolkits(
    versions: Sequence[object],
    runfiles: Sequence[dict[str, Any]] = (),
    chosen: object = "",
    cudnn: object = "",
    found: dict[str, Any] | None = None,
) -> Plan:
    """Return the plan of the requested toolkits and of cuDNN.

    C(versions) are installed as packages. Each is a series (12.4), a release (12.4.1) or the
    version of a package (12.4.1-1). C(runfiles) come from NVIDIA's self-extracting files, by their
    C(version). C(chosen) is the toolkit for the link C(/usr/local/cuda), by default the newest.
    C(cudnn) is the version of its packages, empty for none. C(found) is a result of
    M(trainyard.gpu.gpu_stack_info).

    Returns C(folders) with their series, C(chosen), the target of the link, C(priority), that of
    the alternative as in NVIDIA's packages, C(packages) in apt's notation, C(requested), their versions
    by name, C(holds), patterns of the names of packages to hold, C(lacks_packages), whether one is
    missing, not held or of another version, C(missing_runfiles) with their C(folder),
    C(new_folders), those of them without nvcc, and C(wrong), sentences about other versions of
    nvcc.
    """
    found = found or {}
    requested = [str(version) for version in versions]
    requested += [str(runfile["version"]) for runfile in runfiles]
    all_series = list(map(series_of, requested))
    folders = {"/usr/local/cuda-" + series: series for series in all_series}
    series = max(all_series, key=number, default="")
    if chosen:
        series = series_of(str(chosen))
    packages = packages_of([str(version) for version in versions], str(cudnn), series)
    installed, cuda = found.get("packages", {}), found.get("cuda", {})
    missing = _missing_runfiles(runfiles, folders, cuda)
    return {
        "folders": folders,
        "chosen": "/usr/local/cuda-" + series if series else "",
        "priority": int(series.replace(".", "")) if series else 0,
        "packages": ["=".join(filter(None, package)) for package in packages],
        "asked": _versions_asked(packages),
        "holds": _patterns_to_hold(versions),
        "lacks_packages": any(lacks(installed, name, version) for name, version in packages),
        "missing_runfiles": missing,
        "new_folders": [runfile["folder"] for runfile in missing if runfile["folder"] not in cuda],
        "wrong": wrong_releases(folders, cuda),
    }
