# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The format of findings in preflight and in the report, and their text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ansible_collections.trainyard.gpu.plugins.module_utils._finding import finding

if TYPE_CHECKING:
    from ansible_collections.trainyard.gpu.plugins.module_utils._finding import Finding

__all__ = ["blocks", "finding", "render"]


def blocks(findings: Iterable[Finding], fail_on: str = "block") -> list[Finding]:
    """Return the findings that stop the run: failed ones, and warnings too if C(fail_on) is
    warn.
    """
    stopping = ("fail", "warn") if fail_on == "warn" else ("fail",)
    return [entry for entry in findings if entry["verdict"] in stopping]


def render(
    findings: Iterable[Finding],
    words: Sequence[tuple[str, str]] = (("fail", "BLOCK"), ("warn", "WARN")),
) -> str:
    """Return the findings of some verdicts as text. Equal findings of several hosts are merged.

    C(words) are pairs of a verdict and its name in the text, in the order of the text.
    """
    merged: dict[tuple[str, ...], list[str]] = {}
    for entry in findings:
        if entry["verdict"] in dict(words):
            texts = (entry["source"], entry["found"], entry["expected"], entry["fix"])
            merged.setdefault((entry["verdict"], entry["id"], *texts), []).append(entry["host"])
    paragraphs = []
    for verdict, word in words:
        for (its_verdict, check_id, source, found, expected, fix), hosts in merged.items():
            if its_verdict != verdict:
                continue
            lines = ["%s %s: %s" % (word, check_id, ", ".join(dict.fromkeys(hosts)))]
            for label, text in ((source, found), ("expected", expected), ("fix", fix)):
                if text:
                    lines.append("  %s: %s" % (label or "found", text))
            paragraphs.append("\n".join(lines))
    return "\n".join(paragraphs)
