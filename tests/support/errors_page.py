"""Generates docs/errors.md from the tables of error messages: make docs"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/errors.md"
HEAD = """\
# Error messages

What the messages of failed jobs mean, and what to do. The report of `verify`, `train`, `trainyard show`, `trainyard why`, the pages of jobs, and the modules
`nccl_all_reduce` and `job_log_info` use the same table. For a log of your own:

    trainyard explain train.log

Without the command `trainyard`, on any machine with the collection: `ansible localhost -m trainyard.gpu.job_log_info -a log_file=train.log`. A log that has no known
message is answered with the lines that look like a cause.

A message of several kinds is explained by the entry that knows most about it. Of several messages, the first cause in a log counts. Messages that only follow from
another failure are shown if nothing else is known.

A message after which the program tries again, or does without, is no cause as long as the log has another one. If the program goes on after it and nothing says that
it failed, the log has no cause.

The page is generated from the table in `plugins/module_utils/_error_signatures.py`: run `make docs`.

## The twenty most common

| Message | Meaning |
|---|---|"""
INDEX_HEAD = """\

## All messages

Search this page for a part of the message.

| Entry | Kind | Message |
|---|---|---|"""
#: Characters of a message in a table.
IN_TABLE = 110

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


def page(signatures, common, xids, advice):
    """Return the page: the most common messages, a table of all, a section for each id, and the
    table of Xids.
    """
    sections = {}
    for signature in signatures:
        sections.setdefault(signature.id, []).append(signature)
    most = [
        "| %s | [%s](#%s) |" % (cell(sections[name][0]), cause(sections[name][0]), name)
        for name in common
    ]
    index = [
        "| [%s](#%s) | %s | %s |" % (name, name, same[0].kind, cell(same[0]))
        for name, same in sections.items()
    ]
    texts = [section(name, same) for name, same in sections.items()]
    return "\n".join([HEAD, *most, INDEX_HEAD, *index, "", *texts, table(xids, advice)])


def cell(signature):
    """Return the first example of an entry as code in a table."""
    text = signature.examples[0]
    short = text if len(text) <= IN_TABLE else text[:IN_TABLE].rsplit(" ", 1)[0] + " ..."
    return "`%s`" % short.replace("`", "'").replace("|", "\\|")


def cause(signature):
    return sentence(signature.cause).replace("|", "\\|").rstrip(".")


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
    """Return the cause, and the fix for each reader."""
    if signature.person == signature.operator:
        texts = ["%s %s" % (sentence(signature.cause), sentence(signature.operator))]
    else:
        texts = [
            sentence(signature.cause),
            "In a job: %s." % shown(signature.person),
            "Operator: %s." % shown(signature.operator),
        ]
    return (
        "\n\n".join("\n".join(textwrap.wrap(text, 160, break_long_words=False)) for text in texts)
        + "\n"
    )


def shown(text):
    return text.replace("{1}", "…").replace("{2}", "…")


def sentence(text):
    return text[:1].upper() + shown(text[1:]) + "."


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / ".dev"))
    from ansible_collections.trainyard.gpu.plugins.module_utils._error_signatures import (
        COMMON,
        SIGNATURES,
    )
    from ansible_collections.trainyard.gpu.plugins.module_utils._host_health import ADVICE, XIDS

    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(SIGNATURES, COMMON, XIDS, ADVICE), encoding="utf-8")
