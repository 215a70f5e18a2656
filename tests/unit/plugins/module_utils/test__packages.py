"""Lists of packages before and after a change, and the changes that restore the former state."""

from __future__ import annotations

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils._packages import (
    ParseError,
    parse_provided,
    parse_states,
    way_back,
)

NOTHING = {"install": [], "remove": [], "hold": [], "unhold": [], "automatic": [], "kept": []}


def state(version, status="ii", automatic=False):
    return {"version": version, "status": status, "automatic": automatic}


def test_names_that_other_packages_provide():
    text = (
        "libpmix2t64\t5.0.1-4.1build1\tii \tlibpmix2 (= 5.0.1-4.1build1), mpi(= 1), one:amd64\n"
        "gone\t1\trc \tsudo\nnone\t1\tii \t\nheld\t2\thi \tnfs\nlater\t3\tii \tnfs (= 3)\n"
    )
    found = parse_provided(text, ["libpmix2", "mpi", "one", "sudo", "nfs"])
    assert {name: entry["package"] for name, entry in found.items()} == {
        "libpmix2": "libpmix2t64",
        "mpi": "libpmix2t64",
        "one": "libpmix2t64",
        "nfs": "held",
    }
    assert found["nfs"] == {"package": "held", "version": "2", "held": True}
    for wrong in ("a\t1\tii \n", "a\t1\tii \tb", "a\t1\tii\tb\tc\n"):
        with pytest.raises(ParseError):
            parse_provided(wrong, ["b"])


def test_states_of_what_dpkg_prints():
    text = (
        "bash\t5.2-1\tii \nlibc6:amd64\t2.36\tii \nlibnccl2\t2.21.5-1+cuda12.4\thi \nold\t1\trc \n"
    )
    assert parse_states(text, ["libc6"]) == {
        "bash": state("5.2-1"),
        "libc6:amd64": state("2.36", automatic=True),
        "libnccl2": state("2.21.5-1+cuda12.4", "hi"),
        "old": state("1", "rc"),
    }


def test_what_the_change_did_not_touch_stays():
    before = {"a": state("1"), "b": state("1")}
    after = {"a": state("2"), "b": state("1")}
    now = {"a": state("2"), "b": state("7"), "vim": state("9")}
    assert way_back(before, after, now) == dict(NOTHING, install=["a=1"])


def test_versions_holds_and_marks_come_back_and_what_is_new_goes():
    before = {
        "a": state("1", "hi"),
        "b": state("1", automatic=True),
        "c": state("1"),
        "d": state("1"),
    }
    after = {
        "a": state("2", "hi"),
        "b": state("2"),
        "c": state("1", "hi"),
        "e": state("5", automatic=True),
    }
    assert way_back(before, after, after) == dict(
        NOTHING,
        install=["a=1", "b=1", "d=1"],
        remove=["e"],
        hold=["a"],
        unhold=["c"],
        automatic=["b"],
    )


def test_what_somebody_changed_since_then_stays_and_is_named():
    before, after = {"a": state("1"), "b": state("1")}, {"a": state("2"), "b": state("2")}
    assert way_back(before, after, {"a": state("3"), "b": state("1")}) == dict(NOTHING, kept=["a"])


def test_change_that_was_broken_off_has_left_what_is_there():
    before = {"a": state("1"), "b": state("1")}
    now = {"a": state("2"), "b": state("1"), "c": state("1", "iU")}
    assert way_back(before, {}, now) == dict(NOTHING, install=["a=1"], remove=["c"])


def test_the_way_back_is_gone_only_once():
    before, after = {"a": state("1")}, {"a": state("2"), "b": state("1")}
    assert way_back(before, after, before) == NOTHING
