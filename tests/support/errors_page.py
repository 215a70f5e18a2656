"""Generates docs/errors.md from the tables of error messages: make docs"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/errors.md"
HEAD = """\
# Error messages

Messages of drivers, CUDA, NCCL, launchers, containers and storage that `verify` recognises. If one of them is in a log or in a finding, the report shows
its cause and what to do, with a link to this page. The page is generated from the tables in
`plugins/plugin_utils/_signatures.py` and `plugins/module_utils/_error_signatures.py`.
"""

XIDS_HEAD = """\
## Xids

`verify`, the health program of scheduled hosts, reports and results of jobs use this table, `XIDS` in `plugins/module_utils/_host_health.py`. Codes that are not
in it are reported, too. An Xid counts until the GPU is reset, the driver is loaded again, or the host is rebooted. Where the driver (565 and later) says that the
GPU needs no recovery, an Xid that this covers no longer drains. Of Xids 144 to 150, `Nonfatal` ones are only reported. Of Xid 154, the action that it
names last decides. A fatal SXid of an NVSwitch drains, and a non-fatal one is reported.

| Xid | Meaning | What happens | What to do |
|---|---|---|---|"""
#: By action of an Xid.
DONE = {
    "ignore": "nothing",
    "warn": "reported",
    "stop_job": "reported; the job has ended",
    "drain": "no new jobs on the host",
}


def page(signatures, xids, advice):
    """Return the page: a section for each id, with the messages of all of its signatures first, and the table of Xids."""
    sections = {}
    for signature in signatures:
        sections.setdefault(signature.id, []).append(signature)
    return "\n".join(
        [HEAD, *(section(name, same) for name, same in sections.items()), table(xids, advice)]
    )


def table(xids, advice):
    """Return the table of Xids. Codes with the same meaning are one row."""
    same = {}
    for code, xid in xids.items():
        same.setdefault(xid[:3], []).append(code)
    rows = [
        "| %s | %s | %s | %s |" % (ranges(sorted(codes)), cause, DONE[action], advice[what])
        for (cause, action, what), codes in sorted(same.items(), key=lambda row: min(row[1]))
    ]
    return "\n".join([XIDS_HEAD, *rows, ""])


def ranges(codes):
    """Return the codes, with the first and the last one of those that follow each other."""
    found = []
    for code in codes:
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return ", ".join(
        str(first)
        if first == last
        else "%d%s%d" % (first, ", " if last == first + 1 else " to ", last)
        for first, last in found
    )


def section(name, signatures):
    messages = [text for signature in signatures for text in signature.examples]
    return "\n".join(
        [
            "## %s\n\n%s\n" % (name, "\n".join("    " + text for text in messages)),
            *(meaning(signature) for signature in signatures),
            "See also <%s>.\n" % signatures[-1].source,
        ]
    )


def meaning(signature):
    text = "%s %s" % (sentence(signature.cause), sentence(signature.fix))
    return "\n".join(textwrap.wrap(text, 160, break_long_words=False)) + "\n"


def sentence(text):
    return text[:1].upper() + text[1:].replace("{1}", "…").replace("{2}", "…") + "."


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / ".dev"))
    from ansible_collections.trainyard.gpu.plugins.module_utils._host_health import ADVICE, XIDS
    from ansible_collections.trainyard.gpu.plugins.plugin_utils._signatures import SIGNATURES

    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(SIGNATURES, XIDS, ADVICE), encoding="utf-8")
