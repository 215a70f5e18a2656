"""The table of error messages: its form, and which entry wins."""

from __future__ import annotations

import random
import re

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _log_causes
from ansible_collections.trainyard.gpu.plugins.module_utils._error_signatures import (
    COMMON,
    IN_GOOD_RUNS,
    LAST,
    OF_OTHERS,
    SIGNATURES,
    SPECIAL,
)
from ansible_collections.trainyard.gpu.plugins.module_utils._log_causes import find_errors, needle

#: Entries whose causes are not in the table of Xids.
ENTRIES = [signature for signature in SIGNATURES if signature.patterns]
IDS = sorted({signature.id for signature in SIGNATURES})
# Words of an inventory, and words of a job file.
OF_OPERATORS = re.compile(
    r"\b\w+\.yml\b|\b(?:training|train(?!_batch)|nvidia|nccl|slurm|verify|preflight|cluster|package_sources|container_toolkit|image_relay)_[a-z]\w*"
)
OF_PERSONS = re.compile(
    r"\bworker_(?:memory|shared_memory|gpu|cpu|image|count)\b|\bmax_minutes\b|\bhost_class\b"
)


def names(signature):
    return "%s-%d" % (signature.id, SIGNATURES.index(signature))


def test_size_and_names():
    assert len(IDS) >= 150
    assert all(re.fullmatch("[a-z0-9]+(_[a-z0-9]+)*", name) for name in IDS)
    assert len(COMMON) == len(set(COMMON)) == 20 and set(COMMON) <= set(IDS)
    assert set(IDS) >= IN_GOOD_RUNS and set(IDS) >= OF_OTHERS


@pytest.mark.parametrize("signature", ENTRIES, ids=names)
def test_an_entry(signature):
    assert signature.examples and signature.source.startswith("https://")
    assert SPECIAL <= signature.rank <= LAST
    for text in (signature.cause, signature.person, signature.operator):
        assert text and not text.endswith(".") and text == text.strip()
        # Of texts that are put together, each sentence has a capital.
        assert not re.search(r"\. (?:start|tell|use|look)\b", text), text
    for pattern in signature.patterns:
        # Most patterns are ruled out by a search for this text.
        assert len(needle(pattern)) >= 4, pattern
        assert re.match(re.escape(needle(pattern)), pattern.replace("\\", "")) or "\\" in pattern


def alternatives(pattern):
    """Return how many alternatives a pattern has outside of groups."""
    bare = re.sub(r"\\.|\[\^?\]?(?:\\.|[^]\\])*\]", "", pattern)
    while "(" in bare:
        bare = re.sub(r"\([^()]*\)", "", bare)
    return bare.count("|") + 1


@pytest.mark.parametrize("signature", ENTRIES, ids=names)
def test_a_pattern_is_one_alternative(signature):
    """The text with which it begins rules a pattern out, so a second alternative is never found."""
    assert [alternatives(pattern) for pattern in signature.patterns] == [1] * len(
        signature.patterns
    )
    assert [alternatives(r"a|b"), alternatives(r"a(b|\))[|)]\|")] == [2, 1]


@pytest.mark.parametrize("signature", SIGNATURES, ids=names)
def test_each_reader_gets_its_own_words(signature):
    assert not OF_OPERATORS.search(signature.person), signature.person
    assert not OF_PERSONS.search(signature.operator), signature.operator


def test_no_fix_installs_packages_by_the_variable_of_pip_itself():
    """The image gets packages by training_image_python_packages. training_image_pip_packages is the pip that installs them."""
    assert [s.id for s in SIGNATURES if "training_image_pip_packages" in s.operator] == []


@pytest.mark.parametrize("signature", ENTRIES, ids=names)
def test_no_other_entry_wins(signature):
    """Each example is fed to all entries: of those that match it, one alone has the highest precedence, and it is the right one."""
    for text in signature.examples:
        matching = [
            (entry.rank, entry.id)
            for entry in ENTRIES
            if any(re.search(pattern, text) for pattern in entry.patterns)
        ]
        highest = min(matching)[0]
        assert {name for rank, name in matching if rank == highest} == {signature.id}, text


@pytest.mark.parametrize("name", sorted({entry.id for entry in ENTRIES}))
def test_an_entry_fails_without_its_pattern(name):
    """Each pattern is needed: without it, an example of its own is no longer explained."""
    rest = [entry for entry in ENTRIES if entry.id != name]
    for entry in ENTRIES:
        if entry.id != name:
            continue
        for text in entry.examples:
            assert name not in [error["id"] for error in find_errors(text, rest)]
        for pattern in entry.patterns:
            less = [other for other in entry.patterns if other != pattern]
            assert any(
                not any(re.search(other, text) for other in less) and re.search(pattern, text)
                for text in entry.examples
            ), pattern


def test_the_order_of_the_table_has_no_meaning():
    texts = [text for entry in ENTRIES for text in entry.examples]
    log = "\n".join(texts)
    expected = [(error["id"], error["line_number"]) for error in find_errors(log)]
    for seed in range(3):
        mixed = random.Random(seed).sample(SIGNATURES, len(SIGNATURES))
        told = find_errors(log, mixed)
        assert [(error["id"], error["line_number"]) for error in told] == expected


def test_the_plain_text_of_a_pattern():
    assert needle(r"Error: failed \(x\) [a-z]") == "Error: failed (x) "
    assert needle(r"tasks? \d") == "task" and needle(r"EI0002\b") == "EI0002"
    assert _log_causes.needle(r"\d+") == ""
