# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The texts of a job: what a job file may have of YAML, and the judged job that sbatch carries."""

from __future__ import annotations

import builtins
import sys
import time

import _job_text
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

KEYS = (
    "name",
    "kind",
    "worker_count",
    "command",
    "priority",
    "workspace_id",
    "interactive",
    "environment",
    "services",
)
LINES = [
    "a: 1",
    "b: x y",
    "  c: d",
    "  - e",
    "- f",
    "-  g: h",
    "    k: l",
    "c: |",
    "d: >-",
    "  text",
    "   more",
    "",
    "  ",
    "# comment",
    "e: 'it''s'",
    'f: "a\\tb"',
    "g: [a, b]",
    "h: {x: 1, y: 'z'}",
    "i:",
    "  j:",
    "    m: n",
    "o: p # q",
    "r: s#t",
    "u: >+",
    "v: |2",
    "    w",
    "x: -1",
    "y: http://a/b",
    "aa: ? b",
    "- - n",
    "  - o: p",
    "    q: r",
    "'s': t",
    "bb: [a, [b, c], {d: e}]",
    "cc: {d}",
    "---",
    "...",
    "\tdd: e",
    "gg : h",
    "hh: a: b",
    "ii: |-",
    "  trailing  ",
    "jj: ''",
    "kk: [ ]",
    "  - |",
    "     deep",
    "ll: &a b",
    "mm: !x y",
    "nn: 'a' b",
    "oo: [a,]",
    "pp: [,a]",
    "qq: - a",
    "rr: [a b, 'c d' , \"e\"]",
    "ss: |1",
    "  -",
    "tt: [a: b]",
    "  uu: >",
    "   vv",
    "ww:x",
    "xx: @a",
    "- ",
    "yy: {a: }",
    "zz: {a: b, }",
    "  'x y': z",
    "ab: 'x' #c",
    "ac: 'x'#c",
    "ad: {a: [b]}",
    "ae: {a:b}",
    "af: [a#b]",
    "ag: [a #b]",
    'ah: "\\x41\\u00e9"',
    "ai: [ 'a', b ] # c",
    "command: python3 train.py --lr 0.1 && echo done",
    "=: x",
    "<<: *a",
    "aj: {",
    "ak: 'open",
    "al: >",
    'am: "\\q"',
]


def read(text):
    return _job_text.read_job_text(text, KEYS)


def plain(value):
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, list) else str(value)


def theirs(text):
    """What PyYAML reads, with each value as text."""
    try:
        return plain(yaml.load(text, Loader=yaml.BaseLoader))
    except yaml.YAMLError as error:
        return "refused: %s" % error


@settings(deadline=None)
@given(st.lists(st.sampled_from(LINES), min_size=1, max_size=7))
def test_what_is_accepted_means_the_same_to_other_readers(lines):
    text = "\n".join(lines) + "\n"
    try:
        ours = plain(read(text))
    except _job_text.TextError as error:
        assert str(error).startswith("line %d: " % error.line) and 1 <= error.line <= len(lines)
    else:
        assert ours == theirs(text)


@settings(deadline=None)
@given(
    st.text(
        st.sampled_from("ab:-?,[]{}&*!|>'\"%@`#= \n\n\t\\\x85\u2028\ufeff\r\u00e9\ud800\U0001f600"),
        max_size=30,
    ),
    st.booleans(),
)
def test_any_text_is_read_or_refused_with_a_line_of_it(text, is_pure):
    with pytest.MonkeyPatch.context() as patch:
        if is_pure:
            patch.delattr(yaml, "CSafeLoader")
        for reader in (read, _job_text.read_value):
            try:
                reader(text)
            except _job_text.TextError as error:
                assert 1 <= error.line <= text.count("\n") + 1


@pytest.mark.parametrize(
    "text",
    [
        "name: first_job\nkind: PyTorchJob\nworker_count: 2\ncommand: |\n  cd /data1/share\n\n  if true; then\n    python3 train.py\n  fi\npriority: high\n",
        "---\n# by hand\nname: 'a job'\nenvironment:\n  A: 1\n  B: \"x\\ny\"\nservices: [ssh, jupyter]\n...\n",
        "name: x\ncommand: >-\n  python3 train.py\n  --lr 0.1\n\n  --epochs 3\nservices:\n- ssh\n- tensorboard: /data1/logs\n  x: y\n",
        "name: x\ncommand: |+\n  a\n\n\nenvironment: {A: 'it''s', B: [1, {c: d}]}\n",
    ],
)
def test_files_as_people_write_them(text):
    assert plain(read(text)) == theirs(text) and not isinstance(theirs(text), str)


def test_the_parameter_file_of_the_guide():
    found = read(
        'name=first_job\nkind=PyTorchJob\nworker_count=1\nworker_cpu=4\nworker_gpu=0\ncommand=echo "hello world"\npriority=1\n'
        "workspace_id=your-workspace-id\ninteractive=false\n"
    )
    assert plain(found) == {
        "name": "first_job",
        "kind": "PyTorchJob",
        "worker_count": "1",
        "worker_cpu": "4",
        "worker_gpu": "0",
        "command": 'echo "hello world"',
        "priority": "1",
        "workspace_id": "your-workspace-id",
        "interactive": "false",
    }
    assert {str(key): (key.line, value.line) for key, value in found.items()}["command"] == (6, 6)


def test_the_parameter_file_of_the_guide_in_one_line():
    found = read(
        'name=first_job kind=PyTorchJob worker_count=1 command=echo "hello priority=2 world" priority=1 interactive=false\r\n'
    )
    assert plain(found) == {
        "name": "first_job",
        "kind": "PyTorchJob",
        "worker_count": "1",
        "command": 'echo "hello priority=2 world"',
        "priority": "1",
        "interactive": "false",
    }
    # In a file of several lines a command is the rest of its line.
    assert plain(read("name=a\ncommand=train.py priority=1\n"))["command"] == "train.py priority=1"


@pytest.mark.parametrize(
    "text, line, said",
    [
        ("", 1, "the file is empty"),
        ("# only a comment\n", 1, "the file is empty"),
        ("\n\n", 1, "the file is empty"),
        ("---\n", 1, "the file is empty"),
        ("name: a\n\tkind: b\n", 2, "a tab indents this line"),
        ("name: a\nname: b\n", 2, "name is there twice; the first one is on line 1"),
        ("name=a\nname=b\n", 2, "name is there twice; the first one is on line 1"),
        ("name=a\njust words\n", 2, "'just words' is not key=value"),
        ("just words\n", 1, "'just words' is not a key with a value"),
        ("- name: a\n", 1, "is not a key with a value"),
        ('{"name": "a"}\n', 1, "is not a key with a value"),
        ("name: a\n[b]: c\n", 2, "is not a key with a value"),
        ("name: a\nb\n", 2, "is not a key with a value"),
        ("name: a\ncommand: echo a: b\n", 2, "has a colon and a space"),
        ("name: 'a\n", 1, "has no end on this line"),
        ("name: 'a\nkind: b\n", 1, "has no end on this line"),
        ("name: a\n  more\n", 2, "begin a text of several lines with |"),
        ("name: 'a\n  more'\n", 2, "begin a text of several lines with |"),
        ("command:\n  echo\n", 2, "begin a text of several lines with |"),
        ("environment: {A: 1,\n  B: 2}\n", 2, "write it on one line"),
        ("services:\n  [ssh]\n", 2, "write it on one line"),
        ('name: "a\\q"\n', 1, "found unknown escape character"),
        ("name: @a\n", 1, "cannot begin with '@'"),
        ("name: ]\n", 1, "cannot begin with ']'"),
        ("name: a\ncommand: b\x1bc\n", 2, r"has the character '\x1b', which YAML does not allow"),
        ("name: a\n# \ud800\n", 2, r"has the character '\ud800', which YAML does not allow"),
        (
            "name: a # b\u2028command: c\n",
            1,
            r"has the character '\u2028', which YAML does not allow",
        ),
        ("name: a\rcommand: b\n", 1, r"has the character '\r', which YAML does not allow"),
        ("%YAML 9.9\n---\nname: a\n", 1, "found incompatible YAML document"),
        ("name: a\n---\nname: b\n", 2, "one document"),
        ("name: &x a\n", 1, "cannot begin with '&'"),
        ("name: *x\n", 1, "cannot begin with '*'"),
        ("name: !!str a\n", 1, "cannot begin with '!'"),
        ("services: [ssh\n", 1, "a bracket has no end on this line"),
        ("environment:\n  A: 1\n B: 2\n", 3, "is not indented as the keys before it"),
        ("name: a\n- b\n", 2, "is not a key with a value"),
        (
            "command: |x\n  a\n",
            1,
            "'command: |x' is not YAML: did not find expected comment or line break",
        ),
        ("name: a\0\n", 1, "null character"),
        ("a:\n b:\n  c:\n   d:\n    e:\n     f: 1\n", 6, "nested more than 5 deep"),
        ("a: [[[[[[b]]]]]]\n", 1, "nested more than 5 deep"),
    ],
)
def test_errors_name_the_line(text, line, said):
    with pytest.raises(_job_text.TextError, match=r"^line %d: " % line) as caught:
        read(text)
    assert said in str(caught.value)


def test_a_quote_that_hides_keys_is_told():
    with pytest.raises(
        _job_text.TextError,
        match="line 1: the quote before 's worker_gpu=2 prior' has no end, so worker_gpu= would be part of that value",
    ):
        _job_text.read_job_text(
            "name=a command=echo it's worker_gpu=2 priority=3", (*KEYS, "worker_gpu")
        )
    found = _job_text.read_job_text("name=a worker_gpu=2 command=echo it's", (*KEYS, "worker_gpu"))
    assert found["command"] == "echo it's" and found["worker_gpu"] == "2"


@pytest.fixture(name="without_libyaml")
def _without_libyaml(monkeypatch):
    monkeypatch.delattr(yaml, "CSafeLoader")


def test_a_python_without_libyaml_reads_the_same(without_libyaml):
    text = "name: first\n# x\ncommand: |\n  a\n   b\nenvironment: {A: 'it''s', B: \"\\u00e9\"}\nservices:\n- ssh\n"
    found = read(text)
    assert plain(found) == theirs(text)
    assert [key.line for key in found] == [1, 3, 6, 7]
    for text, line, said in (
        ("name: a\n\tkind: b\n", 2, "a tab indents this line"),
        ("name: a\ncommand: echo a: b\n", 2, "has a colon and a space"),
        ("services: [ssh\n", 1, "a bracket has no end on this line"),
        ("environment:\n  A: 1\n B: 2\n", 3, "is not indented as the keys before it"),
        ("name: @a\n", 1, "cannot begin with '@'"),
    ):
        with pytest.raises(_job_text.TextError, match="^line %d: .*%s" % (line, said)):
            read(text)


def test_escapes_of_json_are_read():
    """libyaml refuses the pairs by which JSON spells a character.

    One half is told when the value is judged.
    """
    text = 'environment: {A: "\\ud83d\\ude00", B: "\\udc00", C: \'\\ud83d\'}\n'
    assert read(text)["environment"] == {"A": "\U0001f600", "B": "\udc00", "C": "\\ud83d"}


def test_a_host_without_pyyaml_says_so(monkeypatch):
    usual = builtins.__import__

    def without(name, *arguments):
        if name == "yaml":
            raise ImportError(name)
        return usual(name, *arguments)

    monkeypatch.setitem(sys.modules, "yaml", None)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(_job_text.TextError, match="^package python3-yaml is not installed"):
        read("name: a\n")
    assert read("name=a\n") == {"name": "a"}


def test_long_values_take_no_longer_for_each_character():
    begun = time.process_time()
    _job_text.read_job_text("services: [%s]\n" % ",".join(["a"] * 100000), KEYS)
    _job_text.read_job_text('command: "%s"\n' % ("a" * 500000), KEYS)
    assert time.process_time() - begun < 3


LAUGHS = "a: &a [x, x]\n" + "".join(
    "%s: &%s [*%s, *%s]\n" % (name, name, former, former)
    for former, name in zip("abcdefghijklmnopqrstuvwx", "bcdefghijklmnopqrstuvwxy")
)
HOSTILE = (
    "x" * (1 << 20 | 1),
    "x" * (1 << 20),
    "[" * 100000,
    "a: " + "[" * 100000,
    "- " * 100000,
    "? " * 100000,
    "a: " + ": " * 100000,
    "a:\n" + "".join(" " * depth + "a:\n" for depth in range(1, 800)),
    LAUGHS,
    "a: [" + "&a b," * 100000 + "]\n",
    "a: '" + "b\n" * 400000,
    "a" * 900000 + ": b\n",
    "%TAG ! tag:a\n" * 70000,
    "---\n" * 250000,
    "\t" * 900000,
)


def test_a_file_that_is_no_job_file_ends_at_once():
    begun = time.process_time()
    for text in HOSTILE:
        with pytest.raises(_job_text.TextError):
            read(text)
    assert time.process_time() - begun < 3


def test_it_also_ends_without_libyaml(without_libyaml):
    begun = time.process_time()
    for text in (
        *HOSTILE,
        "services: [%s]\n" % ",".join(["a"] * 400000),
        "".join("k%d: 1\n" % number for number in range(80000)),
    ):
        with pytest.raises(_job_text.TextError):
            read(text)
    assert time.process_time() - begun < 10


JOB = {"name": "a", "worker_count": 2, "max_minutes": None, "environment": {"B": "\u00e9\n'\u2028"}}
SPEC = 'name: a\ncommand: "\u00e9"\n'


def test_a_sealed_job_is_read_as_it_was():
    text = _job_text.sealed(JOB, SPEC)
    assert _job_text.opened(text) == (JOB, SPEC)
    assert _job_text.opened(_job_text.sealed(JOB, "")) == (JOB, "")
    # The job file can be read in the script.
    assert text.count("\n") == 3 and text.endswith(SPEC)


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda text: text.replace('"worker_count": 2', '"worker_count": 9'), "damaged or edited"),
        (lambda text: text.replace("name: a", "name: b"), "damaged or edited"),
        (lambda text: text[:-5], "damaged or edited"),
        (lambda text: text[:60], "damaged or edited"),
        (
            lambda text: text.replace('"job": {', '"job": [{').replace("}}", "}]}"),
            "damaged or edited",
        ),
        (lambda text: '{"version": 1}\n', "damaged or edited"),
        (lambda text: "{" * 100000 + "\n", "damaged or edited"),
        (lambda text: text.replace('"version": 1', '"version": 2'), "another release"),
        (lambda text: text.replace('"version": 1', '"version": "1"'), "another release"),
        (lambda text: '{"a": 1}\n', "damaged or edited"),
        (lambda text: '{"job": 1, "version": 1, "sha256": []}\n', "damaged or edited"),
        (lambda text: "[" * 100000 + "\n", "another release"),
        (lambda text: "", "another release"),
        # The job file itself, as it was before there were versions.
        (lambda text: SPEC, "another release"),
    ],
)
def test_another_text_is_no_sealed_job(change, said):
    with pytest.raises(_job_text.SealError, match=said):
        _job_text.opened(change(_job_text.sealed(JOB, SPEC)))


def test_the_job_file_of_a_refused_job_is_kept():
    text = _job_text.sealed(JOB, SPEC)
    for changed in (text.replace('"version": 1', '"version": 2'), text.replace('"a"', '"b"'), SPEC):
        with pytest.raises(_job_text.SealError) as caught:
            _job_text.opened(changed)
        assert caught.value.spec == SPEC
