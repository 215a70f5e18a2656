# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Meaning of error messages for the report of verify: text in, cause, fix for the operator, and a
link into docs/errors.md out.
"""

from __future__ import annotations

from typing import TypedDict

from ansible_collections.trainyard.gpu.plugins.module_utils import _log_causes

__all__ = ["DOCS", "Meaning", "explain"]

DOCS = "https://github.com/trainyard/gpu/blob/main/docs/errors.md"


class Meaning(TypedDict):
    """What an error means. C(signature) is its id, C(link) its place in docs/errors.md."""

    signature: str
    line: str
    cause: str
    fix: str
    link: str


def explain(text: str) -> list[Meaning]:
    """Return the meaning of the errors in a text, the first cause first.

    If none of them is a cause, the first lines that look like one follow, with everything except
    C(line) empty.
    """
    log = _log_causes.log_of(text)
    known = _log_causes.causes(log)
    meanings: list[Meaning] = [
        {
            "signature": error["id"],
            "line": error["line"],
            "cause": _sentence(error["cause"]),
            "fix": _sentence(error["fix_operator"]),
            "link": f"{DOCS}#{error['id']}",
        }
        for error in known
    ]
    return meanings + [
        {"signature": "", "line": found["line"], "cause": "", "fix": "", "link": ""}
        for found in _log_causes.more_lines(log, known)
    ]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
