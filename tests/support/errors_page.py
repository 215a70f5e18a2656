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


def page(signatures):
    """Return the page: a section for each id, with the messages of all of its signatures first."""
    sections = {}
    for signature in signatures:
        sections.setdefault(signature.id, []).append(signature)
    return "\n".join([HEAD, *(section(name, same) for name, same in sections.items())])


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
    from ansible_collections.trainyard.gpu.plugins.plugin_utils._signatures import SIGNATURES

    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(SIGNATURES), encoding="utf-8")
