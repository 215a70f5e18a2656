"""slurm_reservation, run like in Ansible. scontrol and squeue are scripts with reservation and jobs
in files.
"""

from __future__ import annotations

import pytest
from scripted_tools import run_module, scripts
from slurm_queue import JOBS, MARK, a_job

OURS = (
    "ReservationName=%s StartTime=2026-11-26T04:48:43 EndTime=2026-11-26T05:48:43 Duration=01:00:00 Nodes=%s NodeCnt=1 CoreCnt=8 Features=(null) "
    "PartitionName=(null) Flags=%s TRES=cpu=8 Users=root Groups=(null) Accounts=(null) Licenses=(null) State=ACTIVE BurstBuffer=(null)\n"
)
MAINTENANCE = "MAINT,IGNORE_JOBS,SPEC_NODES"


class Queue:
    def __init__(self, folder, script):
        self.folder, self.script = folder, script
        (folder / "reservations").write_text("No reservations in the system\n", encoding="utf-8")
        script(
            "scontrol",
            'case "$*" in *show*) cat %(at)s/reservations;; *) echo "$*" >> %(at)s/log;; esac'
            % {"at": folder},
        )
        # The jobs of the first look, then those of the later ones.
        script(
            "squeue",
            JOBS % (MARK, folder)
            + "\n[ ! -e %(at)s/later ] || mv %(at)s/later %(at)s/jobs" % {"at": folder},
        )
        self.has()

    def has(self, *jobs, later=None):
        (self.folder / "jobs").write_text("".join(jobs), encoding="utf-8")
        if later is not None:
            (self.folder / "later").write_text("".join(later), encoding="utf-8")

    def reserved(self, name="trainyard", nodes="n1,n2", flags=MAINTENANCE):
        (self.folder / "reservations").write_text(OURS % (name, nodes, flags), encoding="utf-8")

    def log(self):
        path = self.folder / "log"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


@pytest.fixture(name="queue")
def fixture_queue(tmp_path, monkeypatch):
    return Queue(tmp_path, scripts(tmp_path, monkeypatch))


def act(check=False, **arguments):
    return run_module("slurm_reservation", dict({"nodes": ["n1", "n2"]}, **arguments), check=check)


CREATE = "create reservation reservationname=trainyard nodes=n1,n2 duration=60 starttime=now flags=maint,ignore_jobs users=root"
DELETE = "delete reservationname=trainyard"


def test_nodes_without_jobs(queue):
    queue.has(a_job(1, "n3"), a_job(2, "", "PENDING"))
    told = act(check=True)
    assert (told["changed"], queue.log()) == (True, [])
    told = act()
    assert (told["changed"], told["waited"], queue.log()) == (True, 0, [CREATE])


def test_jobs_are_waited_for(queue):
    queue.has(a_job(1, "n1"), later=[])
    # The time limit of the commands does not include the waiting.
    told = act(wait=30, timeout=2)
    assert "msg" not in told and 1 <= told["waited"] < 30 and queue.log() == [CREATE]


@pytest.mark.parametrize("state", ["RUNNING", "SUSPENDED", "COMPLETING"])
def test_jobs_that_do_not_end_are_named_and_the_nodes_are_released(queue, state):
    queue.has(
        a_job(4711, "n[1,9]", state),
        a_job(4712, "n2", user="ben", end="Unknown"),
        a_job(4713, "n7"),
    )
    told = act(wait=1)
    assert told["failed"] and queue.log() == [CREATE, DELETE]
    assert told["msg"].startswith("Jobs run on the nodes after ")
    assert (
        ": job 4711 of anna on n1, n9, until 2026-11-26T12:00:00Z at most; job 4712 of ben on n2. Expected none. Wait until they have ended"
        in told["msg"]
    )
    assert told["msg"].endswith("(scancel ID). The nodes are not reserved now")
    assert told["jobs"][1] == {"id": 4712, "user": "ben", "nodes": ["n2"], "end_time": None}
    # Without waiting, and of many only some.
    queue.has(*[a_job(number, "n1") for number in range(1, 13)])
    told = act()
    assert (
        told["msg"].startswith("Jobs run on the nodes: job 1 of")
        and "job 10 of" in told["msg"]
        and "job 11 of" not in told["msg"]
        and "; and 2 more. " in told["msg"]
    )


def test_a_reservation_that_is_there_is_extended_and_not_deleted(queue):
    queue.reserved()
    queue.has(a_job(1, "n1", reservation="trainyard"))
    assert not act(check=True)["changed"]
    assert "msg" not in act(minutes=90)
    assert queue.log() == ["update reservationname=trainyard nodes=n1,n2 duration=90"]
    queue.has(a_job(1, "n1"))
    assert (
        act()["msg"].endswith("The reservation of an earlier run stays")
        and len(queue.log()) == 2
        and not any("delete" in line for line in queue.log())
    )


def test_absent(queue):
    assert not act(state="absent")["changed"] and queue.log() == []
    queue.reserved("site")
    assert not act(state="absent")["changed"] and queue.log() == []
    queue.reserved()
    assert act(state="absent", check=True)["changed"] and queue.log() == []
    assert act(state="absent")["changed"] and queue.log() == [DELETE]


def test_the_reservation_of_a_person_is_left_alone(queue):
    queue.reserved(flags="SPEC_NODES")
    told = act()
    assert told["failed"] and queue.log() == []
    assert told["msg"].startswith(
        "name: the reservation 'trainyard' is not for maintenance (flags: spec_nodes). Use a different name, or delete it"
    )


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"nodes": ["n[1-2]"]}, "nodes: 'n[1-2]' is not valid; use letters"),
        ({"nodes": ["ALL,n1"]}, "nodes: 'ALL,n1' is not valid"),
        ({"nodes": []}, "nodes: the list is empty; name the nodes"),
        ({"name": "a b"}, "name: 'a b' is not valid"),
        ({"minutes": 0}, "minutes: 0 is too low; use 1 or more"),
        ({"wait": -1}, "wait: -1 is too low; use 0 or more"),
        ({"nodes": None}, "nodes: the list is empty; name the nodes"),
    ],
)
def test_bad_options(queue, arguments, said):
    told = act(**arguments)
    assert told["failed"] and said in told["msg"] and queue.log() == []


def test_slurm_that_does_not_answer(queue):
    queue.script(
        "scontrol", "echo 'scontrol: error: Slurm backup controller in standby mode' >&2; exit 1"
    )
    told = act()
    assert told["failed"] and told["cause"] and "'scontrol" in told["msg"]
