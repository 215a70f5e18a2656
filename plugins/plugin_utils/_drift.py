# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Differences of the GPU stack from the request, and what the next boot will break: a result of gpu_stack_info in, texts out."""

from __future__ import annotations

from ansible_collections.trainyard.gpu.plugins.module_utils._gpu_stack import drift, upstream
from ansible_collections.trainyard.gpu.plugins.module_utils._quantity import quantity

COLUMNS = ("what", "asked", "found")


def problems(answer, asked, driver=""):
    """What, asked and found of each problem. C(asked) has versions by package, C(driver) is a driver's version or branch; empty: any."""
    packages, library = answer["packages"], answer["library"]
    # A driver consists of about twenty packages, which were recorded at installation.
    recorded = answer.get("record", {}).get("packages", {})
    asked = {str(name): str(version) for name, version in dict(recorded, **asked).items()}
    differences = drift(asked, {name: package["version"] for name, package in packages.items()})
    differ = {entry["name"] for entry in differences}
    found = []
    if driver:
        found += [
            {"what": "driver", "asked": str(driver), "found": entry["found"]}
            for entry in drift({"driver": upstream(str(driver))}, {"driver": library})
        ]
    found += [
        {"what": entry["name"], "asked": entry["asked"], "found": entry["found"]}
        for entry in differences
    ]
    found += [
        {"what": name, "asked": "%s, held" % asked[name], "found": "not held"}
        for name in sorted(asked)
        if name not in differ and asked[name] != "absent" and not packages[name]["held"]
    ]
    found += [
        {
            "what": name,
            "asked": "installed whole",
            "found": "%s, broken off" % packages[name]["version"],
        }
        for name in sorted(packages)
        if packages[name]["broken"]
    ]
    found += [
        {
            "what": "apt source",
            "asked": "the driver only from the distribution or from NVIDIA",
            "found": source_in_words(source),
        }
        for source in answer.get("foreign_sources", [])
        if not source["kept_out"]
    ]
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


def source_in_words(source):
    """Description of a foreign repository that offers a driver: its place, and the first of its packages."""
    name = sorted(source["packages"])[0]
    return "%s in %s offers %s %s" % (
        source["uri"],
        source["path"],
        name,
        source["packages"][name][0],
    )


def table(hosts):
    """C(hosts): name, problems (None if the host did not answer), number of requested packages, and what was compared. One line per problem, and per host
    without one.
    """
    lines = [("host",) + COLUMNS]
    for host in hosts:
        if host["problems"] is None:
            lines.append((host["name"], "-", "-", "did not answer"))
        elif not host["problems"]:
            compared = ", ".join(host.get("compared") or [])
            good = "as configured" + (": " + compared if compared else "")
            lines.append((host["name"], "-", quantity(host["asked"], "package"), good))
        for problem in host["problems"] or []:
            lines.append((host["name"],) + tuple(problem[column] for column in COLUMNS))
    return aligned(lines)


def aligned(lines):
    """Lines of texts as columns for a terminal. The last column has no fixed width."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]) - 1)]
    return "\n".join(
        "  ".join([text.ljust(width) for text, width in zip(line, widths)] + [line[-1]])
        for line in lines
    )
