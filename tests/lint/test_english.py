"""Plain technical English: task names begin with a verb of the field, and phrases that were translated word for word do not come back."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERBS = set("""
    Add Build Change Check Compare Configure Copy Create Disable Download Drain Enable Export Fail Gather Hold Include Install Load Log Measure Mount Pin Point Prepare Publish Pull
    Push Read Reboot Record Refresh Reload Remove Report Restart Restore Resume Run Search Set Show Sign Skip Start Stop Trust Undo Unmask Unmount Unpack Update
    Upgrade Validate Verify Wait Write
""".split())
# Where an operator or a user reads them.
TASKS = ["roles/*/tasks", "playbooks"]
TEXTS = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "lab", "tests", "molecule", "roles", "playbooks", "plugins"]
# This file has the phrases, so it is not searched.
PHRASES = ["is another", "are another", "is asked for", "are asked for", "that is asked", "stands against", "stand against", "for want of", "whoever", "nobody has", "there as it is",
           "what there is", "one that is there", "ones that are there", "names another", "made anew"]


def files(*folders):
    listed = subprocess.run(["git", "ls-files", "--", *folders], cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True).stdout.split("\n")
    return [name for name in listed if name.endswith((".md", ".yml", ".py", ".j2")) and not name.endswith("/test_english.py")]


@pytest.mark.parametrize("folder", TASKS)
def test_task_names_begin_with_a_verb_of_the_field(folder):
    found = []
    for name in files(":(glob)%s/**" % folder):
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        found += ["%s:%d: %s" % (name, number, line.strip()) for number, line in enumerate(lines, 1)
                  if (told := re.match(r"\s*- name: [\"']?(\w+)", line)) and told.group(1) not in VERBS]
    assert found == [], "begin them with one of: %s" % ", ".join(sorted(VERBS))


@pytest.mark.parametrize("phrase", PHRASES)
def test_phrases_that_do_not_come_back(phrase):
    found = []
    for name in files(*TEXTS):
        text = (ROOT / name).read_text(encoding="utf-8")
        found += ["%s:%d" % (name, text.count("\n", 0, at.start()) + 1) for at in re.finditer(r"\b%s\b" % phrase.replace(" ", r"\s+"), text, re.IGNORECASE)]
    assert found == [], "%r: say it as an engineer would" % phrase


def test_no_guillemets():
    """But where other programs' output is recognised by them."""
    found = []
    for name in files(*TEXTS):
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        found += ["%s:%d" % (name, number) for number, line in enumerate(lines, 1) if re.search("[\u00ab\u00bb]", line)]
    assert found == [], "quote with single quotes"
