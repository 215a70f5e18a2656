"""Plain technical English: task names begin with a verb of the field, and phrases that were
translated word for word do not come back.
"""

from __future__ import annotations

import functools
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERBS = set(
    """
    Add Build Change Check Compare Configure Copy Create Disable Download Drain Enable Export Fail Gather Hold Include Install Load Log Measure Mount Pin Point Prepare Publish Pull
    Push Read Reboot Record Refresh Reload Remove Report Restart Restore Resume Run Search Set Show Sign Skip Start Stop Trust Undo Unmask Unmount Unpack Update
    Upgrade Validate Verify Wait Write
""".split()
)
# Where an operator or a user reads them.
TASKS = ["roles/*/tasks", "playbooks"]
# All files but those that others wrote (fixtures are output of real tools) and those of past
# releases. This file has the phrases.
NOT_OURS = [
    ":!tests/fixtures",
    ":!LICENSE",
    ":!CHANGELOG.*",
    ":!changelogs/changelog.yaml",
    ":!tests/lint/test_english.py",
]
# What we write about fixtures.
INDEXES = ":(glob)tests/fixtures/**/INDEX.tsv"
BINARY = (".png",)
# The marker lines of _own_name.py keep their words in any case: they are in /etc/hosts of hosts,
# where the module searches for them. Refused: a file that contains one of them fails the test. This
# list is the only place where they stand.
PHRASES = [
    "is another",
    "are another",
    "is asked for",
    "are asked for",
    "that is asked",
    "stands against",
    "stand against",
    "for want of",
    "whoever",
    "nobody has",
    "there as it is",
    "what there is",
    "one that is there",
    "ones that are there",
    "names another",
    "made anew",
    "asked for no longer",
    "is asked to",
    "are asked to",
    "apt is asked",
    "servers asked",
    "as asked",
    "is not touched",
    "are not touched",
    "a host's own",
    "stays as it is until",
    "no further than to",
    "stand for in the facts",
]
NOT_A_SUMMARY = {
    "Ask",
    "Asks",
    "Say",
    "Says",
    "Bring",
    "Brings",
    "Have",
    "Tell",
    "Tells",
    "See",
    "Lead",
    "Leads",
}


def files(*folders):
    listed = subprocess.run(
        ["git", "ls-files", "--", *folders], cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True
    ).stdout.split("\n")
    return [
        name
        for name in listed
        if name and not name.endswith(BINARY) and not (ROOT / name).is_symlink()
    ]


@functools.lru_cache(maxsize=None)
def texts():
    return [
        (name, (ROOT / name).read_text(encoding="utf-8"))
        for name in files(*NOT_OURS) + files(INDEXES)
    ]


@functools.lru_cache(maxsize=None)
def words(text):
    return " ".join(text.lower().split())


@pytest.mark.parametrize("folder", TASKS)
def test_task_names_begin_with_a_verb_of_the_field(folder):
    found = []
    for name in files(":(glob)%s/**" % folder):
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        found += [
            "%s:%d: %s" % (name, number, line.strip())
            for number, line in enumerate(lines, 1)
            if (told := re.match(r"\s*- name: [\"']?(\w+)", line)) and told.group(1) not in VERBS
        ]
    assert found == [], "begin them with one of: %s" % ", ".join(sorted(VERBS))


@pytest.mark.parametrize("phrase", PHRASES)
def test_phrases_that_do_not_come_back(phrase):
    found = []
    for name, text in texts():
        if phrase not in words(text):
            continue
        found += [
            "%s:%d" % (name, text.count("\n", 0, at.start()) + 1)
            for at in re.finditer(r"\b%s\b" % phrase.replace(" ", r"\s+"), text, re.IGNORECASE)
        ]
    assert found == [], "%r: say it as an engineer would" % phrase


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        ".github/workflows/test.yml",
        "inventories/example_infiniband/group_vars/cluster.yml",
        "changelogs",
        "roles/training_image/files/entrypoint",
        "tests/support/vendor/programs/cuda-installer",
    ],
)
def test_these_are_read(name):
    assert any(read == name or read.startswith(name + "/") for read, _text in texts())


def test_summaries_are_short_and_begin_with_no_verb_of_speech():
    found = []
    for name in files("plugins", "roles/*/meta"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for told in re.findall(r"^ *short_description: *[\"']?(\S.*?)[\"']?$", text, re.MULTILINE):
            if len(told) > 60 or told.split()[0] in NOT_A_SUMMARY:
                found.append("%s: %s" % (name, told))
    assert found == [], "at most 60 characters, as 'Compare ...' or 'Check ...'"


def test_no_guillemets():
    found = []
    for name, text in texts():
        found += [
            "%s:%d" % (name, number)
            for number, line in enumerate(text.splitlines(), 1)
            if re.search("[\u00ab\u00bb]", line)
        ]
    assert found == [], "quote with single quotes"
