"""The comparison of a host's states before the first run and after teardown."""

from __future__ import annotations

import json

from state_left import SNAPSHOT, differences, state_left

BEFORE = {"packages": {"sudo": "1", "vim": "2"}, "state": {"path /srv": "present"}}


def test_what_differs():
    assert differences(BEFORE, BEFORE) == {}
    assert differences(BEFORE, dict(BEFORE, users={"anna": "2001"})) == {}
    assert differences(BEFORE, {"packages": {"sudo": "2", "munge": "3"}, "state": {}}) == {
        "packages: munge": "was None, is 3",
        "packages: sudo": "was 1, is 2",
        "packages: vim": "was 2, is None",
        "state: path /srv": "was present, is None",
    }


def test_hosts_are_compared_with_their_own_state(tmp_path):
    asked = []

    def run(host, script):
        asked.append((host, script))
        return json.dumps(dict(BEFORE, state={}) if host == "b" else BEFORE)

    for host in ("a", "b"):
        (tmp_path / ("before-%s.json" % host)).write_text(json.dumps(BEFORE), encoding="utf-8")
    assert state_left(["a", "b"], tmp_path, run) == {"b: state: path /srv": "was present, is None"}
    assert asked == [("a", SNAPSHOT), ("b", SNAPSHOT)] and SNAPSHOT.is_file()
