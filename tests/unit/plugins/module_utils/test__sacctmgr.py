"""Parsers of sacctmgr and squeue on output of 22.05 (Debian 12) and 24.11 (Debian 13), and on
broken output.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.trainyard.gpu.plugins.module_utils import _sacctmgr as sacctmgr

FIXTURES = Path(__file__).parents[3] / "fixtures/slurm"
VERSIONS = ["22.05", "24.11"]
STEADY = settings(derandomize=True, deadline=None, database=None, max_examples=150)


def recorded(version, name):
    return (FIXTURES / version / f"sacctmgr-{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("version", VERSIONS)
def test_associations(version):
    found = {
        (row.account, row.user, row.partition): row
        for row in sacctmgr.parse_associations(recorded(version, "assoc"))
    }
    assert len(found) == 11 and {row.cluster for row in found.values()} == {"trainyard"}
    vision, hand = found[("vision", "", "")], found[("hand", "", "")]
    assert (
        vision.limits,
        vision.minutes,
        vision.qos,
        vision.inherits,
        vision.default_qos,
        vision.parent,
    ) == ({"gres/gpu": 4}, 600, ("high", "low", "normal"), False, "normal", "root")
    # A limit in seconds is stored in minutes, rounded up.
    assert (hand.limits, hand.minutes, hand.qos, hand.inherits) == (
        {"cpu": 50, "gres/gpu": 1, "mem": 4000},
        2 * 1440 + 31,
        ("special",),
        True,
    )
    # Without inherited limits.
    alice = found[("vision", "alice", "")]
    assert (alice.limits, alice.minutes, alice.qos, alice.default_qos, alice.submit) == (
        {"gres/gpu": 3},
        None,
        (),
        "",
        None,
    )
    assert ("hand", "dave", "train") in found and ("hand", "dave", "") in found


@pytest.mark.parametrize("version", VERSIONS)
def test_other_tables(version):
    assert sacctmgr.parse_accounts(recorded(version, "account"))["hand"] == "two words | a bar"
    assert (
        sacctmgr.parse_accounts(recorded(version, "account"))["vision"]
        == "computer vision: a, b & c = (x)"
    )
    assert {"cpu", "mem", "gres/gpu", "gres/gpu:h100", "fs/disk"} <= sacctmgr.parse_tres(
        recorded(version, "tres")
    )
    users = sacctmgr.parse_users(recorded(version, "user"), "trainyard")
    assert (
        users["bob"] == sacctmgr.User("vision", "None")
        and users["dave"].admin == "Operator"
        and users["root"].admin == "Administrator"
    )
    assert sacctmgr.parse_users(recorded(version, "user"), "other") == {}
    qos = sacctmgr.parse_qos(recorded(version, "qos"))
    assert qos["high"] == sacctmgr.Qos(100, ("low", "normal"), "cluster", ("DenyOnLimit",))
    assert (
        qos["low"] == sacctmgr.Qos(0, (), "requeue", ("DenyOnLimit",))
        and "OverPartQOS" in qos["special"].flags
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_jobs(version):
    jobs = sacctmgr.parse_jobs(recorded(version, "jobs"))
    assert sacctmgr.Job("40", "bob", "vision", "high", "RUNNING") in jobs
    assert sorted(job.number for job in jobs if job.user == "carol") == ["41_1", "41_2", "41_3"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "name", ["nothing-added", "nothing-account", "nothing-deleted", "nothing-qos"]
)
def test_nothing_left_to_do(version, name):
    text = recorded(version, name)
    assert sacctmgr.is_done_already(text) and not sacctmgr.is_busy(text)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "name", ["delete-with-jobs", "qos-in-use", "no-tres", "no-parent", "no-slurmdbd"]
)
def test_failures(version, name):
    text = recorded(version, name)
    assert not sacctmgr.is_done_already(text)
    assert sacctmgr.is_busy(text) == (name in ("no-tres", "no-slurmdbd"))
    assert "\n" not in sacctmgr.message(text)


def test_busy():
    assert sacctmgr.is_busy(
        " Adding Cluster(s)\n  Name           = other\n Database is busy or waiting for lock from other user.\n"
    )
    assert sacctmgr.message("\n \n") == "no message"


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("", None),
        ("10:00", 10),
        ("10:00:00", 600),
        ("1-00:00:00", 1440),
        ("00:00:30", 1),
        ("365-23:59:59", 527040),
    ],
)
def test_times(text, minutes):
    assert sacctmgr.parse_minutes(text) == minutes


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (sacctmgr.parse_associations, "trainyard|root||||||normal|"),
        (sacctmgr.parse_associations, "trainyard|root||||||normal||\n"),
        (sacctmgr.parse_associations, "trainyard|root||||||normal||||\n"),
        (sacctmgr.parse_associations, "|root||||||normal|||\n"),
        (sacctmgr.parse_associations, "c|a||||gres/gpu||||\n"),
        (sacctmgr.parse_associations, "c|a||||gres/gpu=x|||||\n"),
        (sacctmgr.parse_associations, "c|a||||gres/gpu=1,gres/gpu=2|||||\n"),
        (sacctmgr.parse_associations, "c|a|||||tomorrow||||\n"),
        (sacctmgr.parse_associations, "c|a||||||||x|\n"),
        (sacctmgr.parse_accounts, "vision\n"),
        (sacctmgr.parse_qos, "normal|high|||\n"),
        (sacctmgr.parse_jobs, "squeue: error: nothing\n"),
        (sacctmgr.parse_tres, "cpu\n"),
    ],
)
def test_broken_output_is_refused(parse, text):
    with pytest.raises(sacctmgr.ParseError):
        parse(text)


@STEADY
@given(st.sampled_from(VERSIONS), st.data())
def test_output_that_was_cut_is_refused_or_whole_lines(version, data):
    text = recorded(version, "assoc")
    cut = text[: data.draw(st.integers(0, len(text)))]
    try:
        found = sacctmgr.parse_associations(cut)
    except sacctmgr.ParseError:
        return
    assert not cut or cut.endswith("\n")
    assert found == sacctmgr.parse_associations(text)[: len(found)]


@STEADY
@given(st.text(alphabet="ab|,=-+:1\n gres/pu", max_size=60))
def test_any_text_is_parsed_or_refused(text):
    for parse in (
        sacctmgr.parse_associations,
        sacctmgr.parse_accounts,
        sacctmgr.parse_qos,
        sacctmgr.parse_tres,
        sacctmgr.parse_jobs,
    ):
        try:
            assert len(parse(text)) <= text.count("\n")
        except sacctmgr.ParseError as error:
            assert "sacctmgr show" in str(error)
