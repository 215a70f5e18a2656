# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Meaning of error messages for the report of verify: text in, cause, fix for the operator, and a link into docs/errors.md out."""

from __future__ import annotations

from ansible_collections.trainyard.gpu.plugins.module_utils import _log_causes

__all__ = ["DOCS", "explain"]

DOCS = "https://github.com/trainyard/gpu/blob/main/docs/errors.md"


def explain(text: str) -> list[dict]:
    """Return the meaning of the errors in a text, the first cause first: signature, line, cause, fix and link of each.

    If none of them is a cause, the first lines that look like one follow, with everything except C(line) empty.
    """
    log = _log_causes.log_of(text)
    known = _log_causes.causes(log)
    meanings = [
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
