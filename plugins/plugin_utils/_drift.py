# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Differences of the GPU stack from the request, and what the next boot will break: a result of
gpu_stack_info in, texts out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils._gpu_stack import drift, upstream
from ansible_collections.trainyard.gpu.plugins.module_utils._quantity import quantity


class Difference(TypedDict):
    """Something of a host that is not as requested, in words."""

    what: str
    asked: str
    found: str


class Host(TypedDict, total=False):
    """What was compared on a host."""

    name: str
    #: None if the host did not answer.
    problems: list[Difference] | None
    #: Number of requested packages.
    asked: int
    #: What was compared beside the packages, in words.
    compared: list[str]


def _unheld(packages: dict[str, Any], requested: dict[str, str], differ: set[str]) -> list[str]:
    """Return the requested packages that apt may replace. C(differ) are those of another
    version.
    """
    return [
        name
        for name in sorted(requested)
        if name not in differ and requested[name] != "absent" and not packages[name]["held"]
    ]


def _package_differences(
    packages: dict[str, Any], requested: dict[str, str]
) -> Iterable[Difference]:
    versions = {name: package["version"] for name, package in packages.items()}
    differences = drift(requested, versions)
    for entry in differences:
        yield {"what": entry["name"], "asked": entry["asked"], "found": entry["found"]}
    for name in _unheld(packages, requested, {entry["name"] for entry in differences}):
        yield {"what": name, "asked": "%s, held" % requested[name], "found": "not held"}
    for name in sorted(packages):
        if packages[name]["broken"]:
            found = "%s, broken off" % packages[name]["version"]
            yield {"what": name, "asked": "installed whole", "found": found}


def problems(
    answer: dict[str, Any], requested: dict[str, str], driver: str = ""
) -> list[Difference]:
    """Return what differs on a host from the request, and what its next boot will break.

    C(answer) is the result of gpu_stack_info. C(requested) has versions by package, C(driver) is a
    driver's version or branch; empty: any.
    """
    # A driver consists of about twenty packages, which were recorded at installation.
    recorded = answer.get("record", {}).get("packages", {})
    versions = {str(name): str(each) for name, each in dict(recorded, **requested).items()}
    found: list[Difference] = []
    if driver:
        installed = {"driver": answer["library"]}
        for entry in drift({"driver": upstream(str(driver))}, installed):
            found.append({"what": "driver", "asked": str(driver), "found": entry["found"]})
    found += _package_differences(answer["packages"], versions)
    for source in answer.get("foreign_sources", []):
        if not source["kept_out"]:
            found.append(
                {
                    "what": "apt source",
                    "asked": "the driver only from the distribution or from NVIDIA",
                    "found": source_in_words(source),
                }
            )
    if answer["reboot_required_reason"]:
        found.append(
            {
                "what": "driver",
                "asked": "the one on disk",
                "found": answer["reboot_required_reason"],
            }
        )
    if answer["will_break_on_next_boot"]:
        found.append(
            {
                "what": "next boot",
                "asked": "a driver that works",
                "found": answer["will_break_on_next_boot"],
            }
        )
    return found


def source_in_words(source: dict[str, Any]) -> str:
    """Return a description of a foreign repository that offers a driver: its place, and the first
    of its packages.
    """
    name = sorted(source["packages"])[0]
    return "%s in %s offers %s %s" % (
        source["uri"],
        source["path"],
        name,
        source["packages"][name][0],
    )


def table(hosts: list[Host]) -> str:
    """Return the comparison as text for a terminal: a line for each problem, and for each host
    without one.
    """
    lines = [("host", "what", "asked", "found")]
    for host in hosts:
        problems = host["problems"]
        if problems is None:
            lines.append((host["name"], "-", "-", "did not answer"))
        elif not problems:
            compared = ", ".join(host.get("compared") or [])
            good = "as configured" + (": " + compared if compared else "")
            lines.append((host["name"], "-", quantity(host["asked"], "package"), good))
        for each in problems or []:
            lines.append((host["name"], each["what"], each["asked"], each["found"]))
    return aligned(lines)


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of texts as columns for a terminal. The last column has no fixed width."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]) - 1)]
    return "\n".join(
        "  ".join([text.ljust(width) for text, width in zip(line, widths)] + [line[-1]])
        for line in lines
    )
