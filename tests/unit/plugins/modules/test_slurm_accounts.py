"""slurm_accounts, run as Ansible runs it, with a sacctmgr, squeue and scancel of a model of the
database.
"""

from __future__ import annotations

import json
import os
import sys

import pytest
import slurm_database
from scripted_tools import run_module

VISION = {
    "name": "vision",
    "description": "Computer Vision",
    "gpus": 4,
    "max_gpus_per_person": 2,
    "max_minutes": 600,
    "members": ["anna", "ben"],
}
NLP = {"name": "nlp", "members": ["ben", "carla"]}
PRIORITIES = [{"name": "low"}, {"name": "normal", "priority": 50, "preempts": ["low"]}]


class Host:
    def __init__(self, folder):
        self.folder, self.record, self.path = (
            folder,
            folder / "placed.d/slurm_accounts.json",
            folder / "database.json",
        )
        self.write(slurm_database.empty())
        (folder / "bin").mkdir()
        for tool in ("sacctmgr", "squeue", "scancel"):
            self.script(tool, f'exec {sys.executable} -I -S {slurm_database.__file__} {tool} "$@"')

    def script(self, tool, body):
        path = self.folder / "bin" / tool
        path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        path.chmod(0o755)

    def write(self, state):
        self.path.write_text(json.dumps(state), encoding="utf-8")

    def state(self, **changes):
        state = json.loads(self.path.read_text(encoding="utf-8"))
        if changes:
            state.update(changes)
            self.write(state)
        return state

    def row(self, account, user=""):
        return next(
            iter(slurm_database.Database(self.state()).rows(account=account, user=user)), None
        )

    def run(self, *accounts, check=False, **options):
        arguments = {
            "cluster": "trainyard",
            "accounts": list(accounts),
            "priorities": PRIORITIES,
            "record": str(self.record),
            "timeout": 60,
            **options,
        }
        return run_module(
            "slurm_accounts",
            {**arguments, "_ansible_diff": True},
            check,
            SLURM_DATABASE=str(self.path),
            PATH=f"{self.folder}/bin:{os.environ['PATH']}",
        )


@pytest.fixture(name="host")
def _host(tmp_path):
    return Host(tmp_path)


def test_operators(host):
    done = host.run(VISION, operators=["anna"])
    assert done["changed"] and host.state()["users"]["anna"] == {"admin": "Administrator"}
    assert host.run(VISION, operators=["anna"])["changed"] is False
    wrong = host.run(VISION, operators=["carla"])
    assert wrong["failed"] and "operators: 'carla' is in no account" in wrong["msg"]
    former = host.run(state="former")
    assert former["changed"] and "anna" not in host.state()["users"]


def test_check_mode_tells_what_the_run_does_and_a_second_run_changes_nothing(host):
    expected = host.run(VISION, NLP, check=True)
    assert (
        expected["changed"] and host.state() == slurm_database.empty() and not host.record.exists()
    )
    done = host.run(VISION, NLP)
    assert {name: done[name] for name in ("changed", "changes", "diff")} == {
        name: expected[name] for name in ("changed", "changes", "diff")
    }
    assert (
        host.row("vision")["limits"] == {"gres/gpu": 4}
        and host.row("nlp", "carla")
        and "+account nlp" not in done["diff"]["after"]
    )
    assert (
        oct(host.record.stat().st_mode)[-3:] == "600"
        and len(json.loads(host.record.read_text())) == 8
    )
    before = host.record.stat()
    again = host.run(VISION, NLP)
    assert (again["changed"], again["changes"], again["diff"]) == (
        False,
        [],
        {"before": "", "after": ""},
    )
    assert host.record.stat().st_mtime_ns == before.st_mtime_ns
    # Nothing of ours is left in /tmp.
    load = next(words for words in host.state()["log"] if words[0] == "load")[1].partition("=")[2]
    assert not os.path.exists(load)


def test_former_removes_what_was_created(host):
    state = host.state()
    state["rows"].append(slurm_database.row("trainyard", "vision", limits={"gres/gpu": 1}))
    state["accounts"]["vision"] = "theirs"
    host.write(state)
    before = host.state()
    host.run(VISION, NLP)
    assert host.run(state="former", check=True)["changed"] and host.record.exists()
    assert host.run(state="former")["changed"] and not host.record.exists()
    after = host.state(log=[])
    assert after == before
    # Without a record no tool is needed.
    for tool in ("sacctmgr", "squeue"):
        host.script(tool, "exit 1")
    assert host.run(state="former")["changed"] is False


def test_bad_requests_are_refused_before_any_command(host):
    host.script("sacctmgr", "touch %s/called; exit 1" % host.folder)
    result = host.run(dict(VISION, name="a; touch x"), dict(NLP, members=["$(id)", "ben", "ben"]))
    assert result["failed"] and not (host.folder / "called").exists()
    assert (
        "accounts: 'a; touch x' is not a valid name" in result["msg"]
        and "members of nlp: 'ben' is listed twice" in result["msg"]
    )
    assert result["msg"].endswith("Nothing was changed")


def test_a_busy_database_is_asked_again(host):
    host.state(busy=2)
    assert host.run(VISION)["changed"] and host.row("vision")
    host.state(busy=20)
    result = host.run(VISION, NLP, timeout=0)
    assert result["failed"] and "Database is busy" in result["msg"] and result["done"] == []
    host.state(busy=0)
    assert host.run(VISION, NLP)["changed"]


def test_a_failed_step_says_what_was_done_and_the_next_run_goes_on(host):
    host.state(fails={"load": "Problem with requests"})
    result = host.run(VISION, NLP)
    assert result["failed"] and result["done"] == ["add priority low", "change priority normal"]
    assert result["not_done"] == [
        "add account vision, account nlp, member vision anna, member vision ben, member nlp ben and 1 more"
    ]
    assert (
        "failed: Problem with requests. Done: add priority low, change priority normal. Not done: add account vision"
        in result["msg"]
    )
    # The record has what was done, so it can be removed.
    assert sorted(json.loads(host.record.read_text())) == ["qos low", "qos normal"]
    host.state(fails={})
    assert host.run(VISION, NLP)["changed"] and host.run(VISION, NLP)["changed"] is False
    host.run(state="former")
    assert host.state(log=[]) == slurm_database.empty()


def test_the_record_is_written_before_the_database_is_changed(host):
    """A run that is interrupted leaves nothing that teardown does not know."""
    real = (host.folder / "bin/sacctmgr").read_text(encoding="utf-8").splitlines()[1]
    host.script(
        "sacctmgr",
        f'case "$*" in "-i "*) test -s {host.record} || {{ echo no record; exit 1; }};; esac\n{real}',
    )
    assert host.run(VISION)["changed"]


def test_a_command_that_lies_is_found_out(host):
    real = (host.folder / "bin/sacctmgr").read_text(encoding="utf-8").splitlines()[1]
    host.script("sacctmgr", 'case "$*" in *load*) echo done; exit 0;; esac\n' + real)
    result = host.run(VISION)
    assert (
        result["failed"]
        and "sacctmgr reported success, but the database does not have it" in result["msg"]
    )


def test_gpus_that_are_not_registered_yet_are_awaited(host):
    host.state(tres=["cpu"])
    result = host.run(VISION, timeout=0)
    assert (
        result["failed"]
        and "Set AccountingStorageTRES=gres/gpu in slurm.conf" in result["msg"]
        and host.state()["log"] == []
    )
    assert host.run(NLP, timeout=0)["changed"]


def test_a_cluster_that_is_not_registered_is_not_created(host):
    result = host.run(VISION, cluster="typo")
    assert (
        result["failed"]
        and "cluster: 'typo' is not registered in the database, which has trainyard"
        in result["msg"]
        and host.state()["log"] == []
    )


def test_people_with_jobs(host):
    host.run(VISION, NLP)
    host.state(jobs=[["7", "anna", "vision", "normal", "RUNNING"]])
    result = host.run(NLP)
    assert result["waiting"] == [
        {"what": "anna in account vision", "jobs": ["7"]},
        {"what": "account vision", "jobs": ["7"]},
    ]
    assert host.row("vision", "anna")["submit"] == 0 and host.run(NLP)["changed"] is False
    expected = host.run(NLP, cancel_jobs=True, check=True)
    assert expected["cancelled"] == ["7"] and host.state()["jobs"]
    done = host.run(NLP, cancel_jobs=True)
    assert (
        done["changes"] == expected["changes"]
        and done["cancelled"] == ["7"]
        and done["waiting"] == []
    )
    assert not host.row("vision") and host.state()["jobs"] == []


def test_nothing_is_removed_while_squeue_does_not_answer(host):
    host.run(VISION, NLP)
    host.script(
        "squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1"
    )
    assert host.run(VISION, dict(NLP, gpus=3))["changed"]
    result = host.run(VISION)
    assert (
        result["failed"]
        and "Unable to contact slurm controller" in result["msg"]
        and host.row("nlp")
    )


def test_a_database_that_does_not_answer(host):
    host.script(
        "sacctmgr",
        "echo 'sacctmgr: error: Sending PersistInit msg: Connection refused' >&2; exit 1",
    )
    result = host.run(VISION, timeout=0)
    assert (
        "sacctmgr show qos failed: sacctmgr: error: Sending PersistInit msg: Connection refused. Check that slurmdbd runs"
        in result["msg"]
    )
    host.script("sacctmgr", "printf 'normal|0'")
    assert "the output ends within a line: 'normal|0'" in host.run(VISION)["msg"]


def test_people_whom_others_put_there_are_named(host):
    host.run(VISION)
    state = host.state()
    state["rows"].append(slurm_database.row("trainyard", "vision", "dave"))
    state["users"]["dave"], state["defaults"]["trainyard dave"] = {"admin": "None"}, "vision"
    host.write(state)
    assert host.run(VISION)["others"] == ["dave in account vision"] and host.row("vision", "dave")
