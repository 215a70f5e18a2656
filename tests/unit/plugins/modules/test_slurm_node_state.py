"""slurm_node_state, run like in Ansible. scontrol is a script with the nodes in a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripted_tools import run_module, scripts
from slurm_queue import JOBS, MARK, a_job

FIXTURES = Path(__file__).parents[3] / "fixtures/slurm"
LINE = "NodeName=%s Arch=x86_64 CPUAlloc=0 CPUTot=8 RealMemory=4000 AllocMem=0 State=%s ThreadsPerCore=1%s\n"


class Nodes:
    def __init__(self, folder, script):
        self.folder, self.now, self.later = folder, folder / "nodes", folder / "later"
        self.script = script
        script(
            "scontrol",
            'case "$*" in update*) for word; do echo "$word"; done > %(at)s/update; cp %(at)s/later %(at)s/nodes;; *) cat %(at)s/nodes;; esac'
            % {"at": folder},
        )

    def are(self, now, later=None):
        for path, nodes in ((self.now, now), (self.later, later or now)):
            path.write_text(
                "".join(
                    LINE
                    % (
                        name,
                        state,
                        " Reason=%s [root@2026-11-26T04:48:08]" % reason if reason else "",
                    )
                    for name, (state, reason) in nodes.items()
                ),
                encoding="utf-8",
            )

    def updated(self):
        path = self.folder / "update"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else None


@pytest.fixture(name="nodes")
def fixture_nodes(tmp_path, monkeypatch):
    return Nodes(tmp_path, scripts(tmp_path, monkeypatch))


def act(state, *names, check=False, **arguments):
    return run_module(
        "slurm_node_state", dict(arguments, state=state, nodes=list(names)), check=check
    )


def test_drain_and_again(nodes):
    nodes.are(
        {"n1": ("IDLE", ""), "n2": ("MIXED", "")},
        {"n1": ("IDLE+DRAIN", "trainyard: a b"), "n2": ("MIXED+DRAIN", "trainyard: a b")},
    )
    told = act("drain", "n1", "n2", reason="a\nb", check=True)
    assert (told["changed"], told["drained"], nodes.updated()) == (True, ["n1", "n2"], None)
    expected = told["nodes"], told["diff"]
    told = act("drain", "n1", "n2", reason="a\nb")
    assert (told["changed"], told["drained"], told["kept"], told["unchanged"]) == (
        True,
        ["n1", "n2"],
        [],
        [],
    )
    assert nodes.updated() == ["update", "nodename=n1,n2", "state=drain", "reason=trainyard: a b"]
    assert (told["nodes"], told["diff"]) == expected
    assert told["diff"] == {
        "before": "n1: idle\nn2: mixed\n",
        "after": "n1: idle+drain (trainyard: a b)\nn2: mixed+drain (trainyard: a b)\n",
    }
    (nodes.folder / "update").unlink()
    told = act("drain", "n1", "n2", reason="trainyard: a b")
    assert (told["changed"], told["unchanged"], nodes.updated()) == (
        False,
        ["n1", "n2"],
        None,
    ) and told["diff"]["before"] == told["diff"]["after"]


def test_resume_only_ours(nodes):
    before = {
        "n1": ("IDLE+DRAIN", "trainyard: x"),
        "n2": ("MIXED+DRAIN", "fan is broken"),
        "n3": ("IDLE", ""),
        "n4": ("IDLE+DRAIN", "trainyard: y"),
    }
    nodes.are(before, dict(before, n1=("IDLE", "")))
    told = act("resume", "n1", "n2", "n3", check=True)
    assert (told["changed"], nodes.updated()) == (True, None)
    expected = told["nodes"], told["diff"]
    told = act("resume", "n1", "n2", "n3")
    assert (told["resumed"], told["unchanged"], told["reason"]) == (["n1"], ["n3"], "")
    assert told["kept"] == [
        {
            "name": "n2",
            "states": ["mixed", "drain"],
            "reason": "fan is broken",
            "reason_user": "root",
            "reason_time": "2026-11-26T04:48:08Z",
        }
    ]
    assert (
        nodes.updated() == ["update", "nodename=n1", "state=resume"]
        and (told["nodes"], told["diff"]) == expected
    )
    told = act("resume", "n1", "n2", "n3")
    assert (told["changed"], told["unchanged"]) == (False, ["n1", "n3"])


@pytest.mark.parametrize(
    "end", ["", "; echo 'slurm_update error: Invalid node state specified' >&2; exit 1"]
)
def test_a_node_that_never_registered_is_undrained(nodes, end):
    """Slurm 22.05 and 24.11 clear the flag and print an error."""
    nodes.script(
        "scontrol",
        'case "$*" in update*) for word; do echo "$word"; done > %(at)s/update; cp %(at)s/later %(at)s/nodes%(end)s;; *) cat %(at)s/nodes;; esac'
        % {"at": nodes.folder, "end": end},
    )
    nodes.are(
        {"n1": ("UNKNOWN+DRAIN+NOT_RESPONDING", "trainyard: x")},
        {"n1": ("UNKNOWN+NOT_RESPONDING", "")},
    )
    assert act("resume", "n1")["nodes"] == {
        "n1": {"states": ["unknown", "not_responding"], "reason": ""}
    }
    assert nodes.updated() == ["update", "nodename=n1", "state=undrain"]


def test_resume_of_all(nodes):
    nodes.are({"n1": ("IDLE+DRAIN", "fan is broken")}, {"n1": ("IDLE", "")})
    assert act("resume", "n1", only_ours=False)["resumed"] == ["n1"]


def test_a_reason_of_others_stays(nodes):
    nodes.are({"n1": ("IDLE+DRAIN", "fan is broken"), "n2": ("DOWN*", "in repair")})
    told = act("drain", "n1", "n2", reason="x")
    assert (told["changed"], [node["name"] for node in told["kept"]], nodes.updated()) == (
        False,
        ["n1", "n2"],
        None,
    )


def test_a_new_finding_replaces_ours(nodes):
    nodes.are({"n1": ("IDLE+DRAIN", "trainyard: old")}, {"n1": ("IDLE+DRAIN", "trainyard: new")})
    assert act("drain", "n1", reason="new")["drained"] == ["n1"]
    assert nodes.updated()[-1] == "reason=trainyard: new"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            {"state": "drain", "nodes": ["n1"], "reason": " \n"},
            "reason: ' \n' has no text. Say why the nodes are drained",
        ),
        (
            {"state": "drain", "nodes": ["n1"]},
            "state is drain but all of the following are missing: reason",
        ),
        (
            {"state": "resume", "nodes": ["ALL,n[1-2]"]},
            "nodes: 'ALL,n[1-2]' is not a valid node name; use one name per entry, of letters, digits, '-', '.' and '_'",
        ),
        ({"state": "resume", "nodes": ["--help"]}, "nodes: '--help' is not a valid node name"),
        (
            {"state": "resume", "nodes": ["n1", "n9"]},
            "nodes: 'n9' is not a node of the cluster, which has n1. Correct the name, or add the node to slurm.conf",
        ),
        ({"state": "resume", "nodes": ["ALL"]}, "nodes: 'ALL' is not a node of the cluster"),
    ],
)
def test_refusals(nodes, arguments, message):
    nodes.are({"n1": ("IDLE", "")})
    told = run_module("slurm_node_state", arguments)
    assert told["failed"] and message in told["msg"] and nodes.updated() is None


def test_an_update_without_effect_fails(nodes):
    nodes.are({"n1": ("IDLE", "")})
    told = act("drain", "n1", reason="x")
    assert told["failed"] and told["msg"].startswith(
        "n1: idle after 'scontrol update state=drain'; expected the flag drain."
    )


@pytest.mark.parametrize("version", ["22.05", "24.11"])
def test_a_person_who_may_not(nodes, version):
    nodes.are({"n1": ("IDLE", "")})
    nodes.script(
        "scontrol",
        'case "$*" in update*) cat %s/%s/error-permission-update.txt >&2; exit 1;; *) cat %s;; esac'
        % (FIXTURES, version, nodes.now),
    )
    told = act("drain", "n1", reason="x")
    assert (told["failed"], told["cause"]) == (
        True,
        "permission",
    ) and "'slurm_update error: Invalid user id'" in told["msg"]


def test_no_controller(nodes):
    nodes.script("scontrol", "cat %s/22.05/error-nomunge-nodes.txt >&2; exit 1" % FIXTURES)
    told = act("resume", "n1")
    assert (told["failed"], told["cause"]) == (True, "auth_munge_down") and told["msg"].endswith(
        "Start MUNGE on this host ('systemctl start munge')"
    )


@pytest.mark.parametrize("queue, expected", [("", ""), ("4711", "Jobs run on the nodes after ")])
def test_jobs_on_a_drained_node_are_waited_for(nodes, queue, expected):
    """On n1. The job on n3 is not in the way."""
    nodes.are(
        {"n1": ("MIXED", ""), "n3": ("MIXED", "")},
        {"n1": ("MIXED+DRAIN", "trainyard: upgrade"), "n3": ("MIXED", "")},
    )
    (nodes.folder / "jobs").write_text(
        a_job(1, "n3") + (a_job(int(queue), "n1") if queue else ""), encoding="utf-8"
    )
    nodes.script("squeue", JOBS % (MARK, nodes.folder))
    assert act("drain", "n1", reason="upgrade", wait=1, check=True)["drained"] == ["n1"]
    told = act("drain", "n1", reason="upgrade", wait=1)
    assert told.get("msg", "")[: len(expected)] == expected and nodes.updated()[1:3] == [
        "nodename=n1",
        "state=drain",
    ]
    if queue:
        assert "job 4711 of anna on n1, until 2026-11-26T12:00:00Z at most. Expected none." in told[
            "msg"
        ] and told["msg"].endswith("The nodes are n1: mixed+drain")


def test_a_wait_that_is_no_time(nodes):
    nodes.are({"n1": ("IDLE", "")})
    assert (
        act("drain", "n1", reason="upgrade", wait=-1)["msg"] == "wait: -1 is too low; use 0 or more"
        and nodes.updated() is None
    )
