"""Slurm's output: recorded on Debian 12 (22.05.8) and Debian 13 (24.11.5), varied as in other
releases, truncated, and invented.
"""

from __future__ import annotations

import csv
import hashlib
import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.trainyard.gpu.plugins.module_utils import _slurm as slurm
import contextlib

FIXTURES = Path(__file__).parents[3] / "fixtures/slurm"
VERSIONS = ["22.05", "24.11"]
# The one with which the fixtures were recorded.
MARK = "|7b1f9c42e0d85a36|"
HOSTS = {"22.05": ("h2-12", "h2-12b"), "24.11": ("h2-13", "h2-13b")}
STEADY = settings(derandomize=True, deadline=None, database=None, max_examples=60)
BOTH = pytest.mark.parametrize("version", VERSIONS)


def recorded(version, name):
    return (FIXTURES / version / (name + ".txt")).read_bytes().decode("utf-8")


def nodes_of(version, name):
    return {node["name"]: node for node in slurm.parse_nodes(recorded(version, name))}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_index_lists_every_file(version):
    with (FIXTURES / version / "INDEX.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert sorted(row["path"] for row in rows) == sorted(
        path.name for path in (FIXTURES / version).glob("*.txt")
    )
    for row in rows:
        content = (FIXTURES / version / row["path"]).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (
            int(row["bytes"]),
            row["sha256"],
        ), row["path"]


# --- nodes ------------------------------------------------------------------------------------------------------------------


@BOTH
def test_a_node_with_all_its_values(version):
    first, second = HOSTS[version]
    node = dict(nodes_of(version, "nodes-idle")[first])
    assert re.fullmatch(r"2026-11-2[0-9]T[0-9:]{8}Z", node.pop("boot_time")) and node.pop(
        "slurmd_start_time"
    ).endswith("Z")
    assert node == {
        "name": first,
        "address": {"22.05": "172.30.200.20", "24.11": "172.30.200.21"}[version],
        "states": ["idle"],
        "flags": [],
        "available_for_jobs": True,
        "cpus": 8,
        "cpus_allocated": 0,
        "memory_mib": 4000,
        "memory_allocated_mib": 0,
        "gpus": [{"model": "h100", "total": 4, "used": 0}],
        "features": ["h100", "ib"],
        "active_features": ["h100", "ib"],
        "partitions": ["train", "debug"],
        "reason": "",
        "reason_user": "",
        "reason_time": None,
        "slurmd_version": {"22.05": "22.05.8", "24.11": "24.11.5"}[version],
        "architecture": "x86_64",
    }
    assert nodes_of(version, "nodes-idle")[second]["gpus"] == [
        {"model": "a100", "total": 2, "used": 0},
        {"model": "v100", "total": 2, "used": 0},
    ]


@BOTH
def test_a_node_that_never_registered(version):
    node = nodes_of(version, "nodes-idle")["h2-gone"]
    assert (node["states"], node["flags"], node["available_for_jobs"]) == (
        ["unknown", "not_responding"],
        ["not_responding"],
        False,
    )
    assert (
        node["gpus"],
        node["features"],
        node["boot_time"],
        node["slurmd_version"],
        node["partitions"],
    ) == ([], [], None, "", ["train"])
    assert node["architecture"] == ""


@BOTH
def test_nodes_with_jobs(version):
    first, second = HOSTS[version]
    nodes = nodes_of(version, "nodes-busy")
    assert (nodes[first]["states"][0], nodes[first]["cpus_allocated"], nodes[first]["gpus"]) == (
        "allocated",
        8,
        [{"model": "h100", "total": 4, "used": 4}],
    )
    assert (
        nodes[second]["states"][0] == "mixed"
        and sum(gpu["used"] for gpu in nodes[second]["gpus"]) == 4
    )


@BOTH
def test_a_reason_with_brackets_quotes_and_equals_signs(version):
    first, second = HOSTS[version]
    nodes = nodes_of(version, "nodes-drained")
    assert (nodes[first]["states"], nodes[first]["reason"], nodes[first]["reason_user"]) == (
        ["allocated", "drain"],
        "fan is broken",
        "root",
    )
    assert nodes[second]["reason"] == (
        'trainyard: verify 2026-11-26: busbw 3.1 of 24 GB/s, link to "h2-x" State=IDLE; it\'s (slow) [root@x] and a text that goes on and on, for more '
        "than eighty characters, to see where it is cut"
    )
    assert nodes[second]["states"] == ["mixed", "drain"] and nodes[second][
        "reason_time"
    ].startswith("2026-11-26T04:48:0")
    assert not nodes[first]["available_for_jobs"] and not nodes[second]["available_for_jobs"]


@BOTH
def test_a_reason_of_several_lines_adds_no_node(version):
    nodes = nodes_of(version, "nodes-reason-lines")
    assert sorted(nodes) == sorted(HOSTS[version] + ("h2-gone",))
    node = nodes[HOSTS[version][1]]
    assert (node["reason"], node["reason_user"], node["states"]) == (
        "two lines State=IDLE NodeName=fake State=IDLE",
        "root",
        ["mixed", "drain"],
    )


@BOTH
def test_nodes_that_are_down(version):
    second = HOSTS[version][1]
    node = nodes_of(version, "nodes-down")[second]
    assert (node["states"], node["reason"], node["reason_user"]) == (
        ["down", "drain"],
        "Not responding = x",
        "root",
    )
    node = nodes_of(version, "nodes-lost")[second]
    assert (node["states"], node["reason"], node["reason_user"], node["available_for_jobs"]) == (
        ["down", "not_responding"],
        "Not responding",
        "slurm",
        False,
    )


@BOTH
def test_nodes_of_a_reservation(version):
    """24.11 adds ReservationName after the reason."""
    node = nodes_of(version, "nodes-reserved")[HOSTS[version][1]]
    assert node["flags"] == ["maintenance", "reserved", "planned"] and (
        node["available_for_jobs"],
        node["reason"],
    ) == (False, "")


@BOTH
def test_a_node_with_fewer_gpus_than_configured(version):
    node = nodes_of(version, "nodes-inval")[HOSTS[version][1]]
    assert {"drain", "invalid_reg"} <= set(node["flags"]) and not node["available_for_jobs"]
    assert (
        node["reason"].startswith("gres/gpu count reported lower than configured")
        and node["reason_user"] == "slurm"
    )


LINE = (
    "NodeName=n1 Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUTot=8 CPULoad=0.1 AvailableFeatures=(null) Gres=%s GresUsed=%s NodeAddr=10.0.0.1 "
    "OS=Linux 5.10 #1 SMP x=y  RealMemory=4000 AllocMem=0 State=%s ThreadsPerCore=1 Partitions=a,b  BootTime=None%s\n"
)


@pytest.mark.parametrize(
    "shown, states, available",
    [
        ("IDLE", ["idle"], True),
        ("IDLE*", ["idle", "not_responding"], False),
        ("DOWN*+DRAIN", ["down", "not_responding", "drain"], False),
        ("MIXED+PLANNED", ["mixed", "planned"], True),
        ("IDLE+RESERVED", ["idle", "reserved"], True),
        ("IDLE+COMPLETING", ["idle", "completing"], True),
        ("MAINT", ["maintenance"], False),
        ("IDLE+MAINTENANCE", ["idle", "maintenance"], False),
        ("INVAL", ["invalid_reg"], False),
        ("IDLE~", ["idle", "powered_down"], False),
        ("ALLOCATED#", ["allocated", "powering_up"], False),
        ("IDLE-", ["idle", "planned"], True),
        ("IDLE+NEW_FLAG", ["idle", "new_flag"], True),
        ("FUTURE", ["future"], False),
        ("DOWN+REBOOT_ISSUED", ["down", "reboot_issued"], False),
        ("IDLE+DRAIN+DRAIN", ["idle", "drain"], False),
        ("UNKNOWN", ["unknown"], False),
        ("ERROR+DRAIN", ["error", "drain"], False),
    ],
)
def test_states(shown, states, available):
    """As all releases print them; 24.11 has no node that shows some of them."""
    (node,) = slurm.parse_nodes(LINE % ("gpu:1", "gpu:0", shown, ""))
    assert (node["states"], node["flags"], node["available_for_jobs"]) == (
        states,
        states[1:],
        available,
    )


@pytest.mark.parametrize(
    "total, used, gpus",
    [
        ("(null)", "(null)", []),
        ("gpu:4", "gpu:2(IDX:0,3)", [{"model": "", "total": 4, "used": 2}]),
        ("gpu:h100:8(S:0-1)", "gpu:h100:3(IDX:0-1,5)", [{"model": "h100", "total": 8, "used": 3}]),
        (
            "gpu:h100:4,mps:400,gpu:a100:no_consume:2",
            "gpu:h100:0(IDX:N/A),mps:0",
            [{"model": "a100", "total": 2, "used": 0}, {"model": "h100", "total": 4, "used": 0}],
        ),
        ("gpu:a:2(S:0),gpu:a:2(S:1)", "gpu:a:4(IDX:0-3)", [{"model": "a", "total": 4, "used": 4}]),
        ("shard:2K,gpu:1", "gpu:0", [{"model": "", "total": 1, "used": 0}]),
        # A use without a model is of the only one. Slurm also prints (null) for the model.
        ("gpu:h100:4", "gpu:2", [{"model": "h100", "total": 4, "used": 2}]),
        ("gpu:h100:4", "gpu:(null):2(IDX:0-1)", [{"model": "h100", "total": 4, "used": 2}]),
        ("gpu:4", "gpu:h100:3(IDX:0-2)", [{"model": "", "total": 4, "used": 3}]),
        # Of several it is of those that have free GPUs.
        (
            "gpu:a100:2,gpu:h100:4",
            "gpu:a100:1,gpu:2",
            [{"model": "a100", "total": 2, "used": 2}, {"model": "h100", "total": 4, "used": 1}],
        ),
    ],
)
def test_gpus_of_a_node(total, used, gpus):
    assert slurm.parse_nodes(LINE % (total, used, "IDLE", ""))[0]["gpus"] == gpus


SPECIALIZED = (
    "NodeName=node-a CPUAlloc=8 %sCPUTot=64 Gres=gpu:h100:4(S:0-1) GresUsed=%s NodeAddr=node-a RealMemory=512000 "
    "AllocMem=128000 CoreSpecCount=8 %sState=MIXED CfgTRES=%s AllocTRES=%s\n"
)
CONFIGURED, IN_USE = "cpu=56,mem=512000M,billing=56,gres/gpu=4", "cpu=8,mem=128000M,gres/gpu=2"


@pytest.mark.parametrize(
    "words, cpus, memory, used",
    [
        # job-failures.md, section 2, class M.
        (("CPUEfctv=56 ", "gpu:2", "MemSpecLimit=16000 ", CONFIGURED, IN_USE), 56, 496000, 2),
        # Slurm 21.08 has no CPUEfctv, and not every command asks for GresUsed.
        (("", "(null)", "MemSpecLimit=16000 ", CONFIGURED, IN_USE), 56, 496000, 2),
        (("", "(null)", "", "cpu=64,mem=512000M,gres/gpu=4", ""), 64, 512000, 0),
        (("CPUEfctv=0 ", "gpu:0", "MemSpecLimit=N/A ", "", ""), 64, 512000, 0),
        (("CPUEfctv=N/A ", "gpu:0", "MemSpecLimit=600000 ", "", ""), 64, 0, 0),
    ],
)
def test_a_node_has_what_jobs_can_use(words, cpus, memory, used):
    (node,) = slurm.parse_nodes(SPECIALIZED % words)
    assert (node["cpus"], node["memory_mib"]) == (cpus, memory)
    assert node["gpus"] == [{"model": "h100", "total": 4, "used": used}]


@pytest.mark.parametrize(
    "end, reason, user, since",
    [
        (" Reason=x", "x", "", None),
        (" Reason=a [b] [root@2026-01-02T03:04:05]", "a [b]", "root", "2026-01-02T03:04:05Z"),
        (
            " Reason=a [root@2020-01-01T00:00:00] b [slurm@2026-01-02T03:04:05] Comment=c d Extra=e",
            "a [root@2020-01-01T00:00:00] b",
            "slurm",
            "2026-01-02T03:04:05Z",
        ),
        (
            " Reason=a [root@2026-01-02T03:04:05]        b        c Comment=d\nNodeName",
            "a b c",
            "root",
            "2026-01-02T03:04:05Z",
        ),
        (
            " Reason=a [root@2026-01-02T03:04:05]        b [eve@2020-01-01T00:00:00]",
            "a b [eve@2020-01-01T00:00:00]",
            "root",
            "2026-01-02T03:04:05Z",
        ),
        (" Comment=Reason=x y", "", "", None),
        (" Comment=one\ntwo State=DOWN\nthree", "", "", None),
        (" Reason=a [root@Unknown] InstanceId=i ", "a", "root", None),
    ],
)
def test_reasons(end, reason, user, since):
    (node,) = slurm.parse_nodes(LINE % ("(null)", "(null)", "IDLE", end))
    assert (node["reason"], node["reason_user"], node["reason_time"], node["states"]) == (
        reason,
        user,
        since,
        ["idle"],
    )


@BOTH
def test_21_08_lacks_some_values_and_newer_ones_add_some(version):
    text = recorded(version, "nodes-busy")
    older = re.sub(r" (CPUEfctv|ResumeAfterTime|LastBusyTime|GresDrain)=\S*", "", text)
    newer = text.replace(" State=", " NewThing=1(a) TopologyPath=x.y State=").replace(
        " BootTime=", " Gpus=7 BootTime="
    )
    assert slurm.parse_nodes(older) == slurm.parse_nodes(newer) == slurm.parse_nodes(text)


@BOTH
@pytest.mark.parametrize("key", ["State", "CPUTot", "CPUAlloc", "RealMemory"])
def test_a_node_without_what_it_needs_is_refused(version, key):
    with pytest.raises(slurm.ParseError, match=r"%s is missing: 'NodeName=" % key):
        slurm.parse_nodes(re.sub(r" %s=\S+" % key, "", recorded(version, "nodes-idle"), count=1))


# --- partitions, reservations, configuration -----------------------------------------------------------------------------------


@BOTH
def test_partitions(version):
    first, second = HOSTS[version]
    partitions = slurm.parse_partitions(recorded(version, "partitions"))
    assert partitions[0] == {
        "name": "train",
        "default": True,
        "state": "up",
        "hidden": False,
        "nodes": [first, second, "h2-gone"],
        "max_minutes": 60,
        "default_minutes": None,
        "max_nodes": 2,
        "priority_tier": 1,
        "allow_accounts": None,
        "allow_qos": None,
        "qos": "",
        "preempt_mode": "requeue",
        "cpus": 20,
        "gpus": 8,
        "gpu_models": {"h100": 4},
    }
    assert [
        (item["name"], item["default"], item["state"], item["max_minutes"], item["max_nodes"])
        for item in partitions[1:]
    ] == [("debug", False, "up", 5, None), ("closed", False, "down", None, None)]


def test_a_partition_for_some():
    (partition,) = slurm.parse_partitions(
        "PartitionName=p AllowGroups=ALL AllowAccounts=a,b AllowQos=high Hidden=YES DefaultTime=1-00:30:01 QoS=limits MaxTime=UNLIMITED Nodes=n[01-03],m "
        "State=DRAIN TotalNodes=4 TRES=cpu=4,mem=1.5T,node=4,gres/gpu:h100=2\n"
    )
    assert (
        partition["allow_accounts"],
        partition["allow_qos"],
        partition["qos"],
        partition["hidden"],
    ) == (["a", "b"], ["high"], "limits", True)
    assert (
        partition["nodes"],
        partition["default_minutes"],
        partition["gpus"],
        partition["state"],
    ) == (["n01", "n02", "n03", "m"], 1471, 2, "drain")


@BOTH
def test_reservations(version):
    first, second = HOSTS[version]
    told = slurm.parse_reservations(recorded(version, "reservations"))
    assert [
        (
            item["name"],
            item["state"],
            item["nodes"],
            item["flags"],
            item["users"],
            item["accounts"],
            item["partition"],
        )
        for item in told
    ] == [
        ("maint1", "active", [second], ["maint", "ignore_jobs", "spec_nodes"], ["root"], [], ""),
        ("class", "inactive", [first], ["spec_nodes"], ["alice", "bob"], [], ""),
        ("acct", "inactive", [first], ["spec_nodes"], [], ["vision"], "train"),
    ]
    assert all(item["start_time"] < item["end_time"] for item in told)
    assert slurm.parse_reservations(recorded(version, "reservations-none")) == []


@BOTH
def test_configuration(version):
    told = slurm.parse_config(recorded(version, "config"))
    assert told == {
        "cluster": "trial",
        "version": {"22.05": "22.05.8", "24.11": "24.11.5"}[version],
        "controllers": [{"role": "primary", "host": HOSTS[version][0], "up": True}],
    }


def test_two_controllers():
    told = slurm.parse_config(
        "ClusterName             = a\nSLURM_VERSION           = 21.08.5\n\nSlurmctld(primary) at h1 is DOWN\nSlurmctld(backup1) at h2 is UP\n"
    )
    assert told["controllers"] == [
        {"role": "primary", "host": "h1", "up": False},
        {"role": "backup1", "host": "h2", "up": True},
    ]


# --- jobs -------------------------------------------------------------------------------------------------------------------


def jobs_of(version, name="jobs"):
    return slurm.parse_jobs(recorded(version, name), MARK)


def named(jobs, name):
    return [job for job in jobs if job["name"] == name]


@BOTH
def test_a_job_that_runs(version):
    (job,) = named(jobs_of(version), "exclusive")
    times = {
        key: job.pop(key) for key in ("submit_time", "eligible_time", "start_time", "end_time")
    }
    assert (
        all(re.fullmatch(r"2026-11-26T[0-9:]{8}Z", value) for value in times.values())
        and times["start_time"] < times["end_time"]
    )
    assert isinstance(job.pop("id"), int) and isinstance(job.pop("priority"), int)
    assert job == {
        "array": None,
        "het": None,
        "name": "exclusive",
        "comment": "",
        "user": "bob",
        "account": "nlp",
        "qos": "normal",
        "partition": "train",
        "state": "running",
        "reason": "",
        "node_count": 1,
        "nodes": [HOSTS[version][0]],
        "requested_nodes": [HOSTS[version][0]],
        "planned_nodes": [],
        "cpus": 8,
        "memory_mib": 4000,
        "gpus": 4,
        "gpu_models": {"h100": 4},
        "start_estimate": None,
        "limit_minutes": 60,
        "restarts": 0,
        "features": "",
        "reservation": "",
        "dependency": "",
    }


@BOTH
def test_why_jobs_wait(version):
    jobs = jobs_of(version)
    reasons = {job["name"]: job["reason"] for job in jobs if job["state"] == "pending"}
    assert {
        name: reasons[name]
        for name in (
            "quota",
            "toobig",
            "nodelimit",
            "timelimit",
            "closed",
            "later",
            "two words\nsecond line",
        )
    } == {
        "quota": "AssocGrpGRES",
        "toobig": "QOSMaxGRESPerUser",
        "nodelimit": "PartitionNodeLimit",
        "timelimit": "PartitionTimeLimit",
        "closed": "PartitionDown",
        "later": "BeginTime",
        "two words\nsecond line": "Dependency",
    }
    assert reasons["größe 模型 ☃"] == "JobHeldUser" and {"Resources", "Priority"} <= set(
        reasons.values()
    )
    assert reasons["gone"] == "ReqNodeNotAvail, UnavailableNodes:h2-gone"


@BOTH
def test_names_and_comments_are_only_text(version):
    jobs = jobs_of(version)
    (job,) = named(jobs, "two words\nsecond line")
    assert (job["comment"], job["state"], job["dependency"].startswith("afterany:")) == (
        "State=DOWN | , ; 'q' \"d\"\ttab",
        "pending",
        True,
    )
    (job,) = named(jobs, "größe 模型 ☃")
    assert (job["comment"], job["priority"], job["user"]) == ("JobId=7 Reason=None", 0, "alice")


@BOTH
def test_arrays_and_heterogeneous_jobs(version):
    jobs = jobs_of(version)
    (job,) = named(jobs, "array")
    assert (job["array"], job["gpus"], job["het"]) == (
        {"id": job["id"], "tasks": "1,3,5,7%2"},
        1,
        None,
    )
    first, second = sorted(named(jobs, "het"), key=lambda job: job["id"])
    assert (first["het"], second["het"]) == (
        {"id": first["id"], "offset": 0},
        {"id": first["id"], "offset": 1},
    )
    tasks = [job for job in jobs_of(version, "jobs-mixed") if job["array"]]
    assert sorted((job["array"]["tasks"], job["state"]) for job in tasks) == [
        ("1", "running"),
        ("2", "running"),
        ("3-6%2", "pending"),
    ]
    assert len({job["array"]["id"] for job in tasks}) == 1


@BOTH
def test_estimates_and_restarts(version):
    jobs = jobs_of(version)
    (job,) = named(jobs, "requeued")
    assert (job["restarts"], job["state"], job["start_time"]) == (1, "pending", None)
    (job,) = named(jobs, "later")
    assert (job["start_estimate"], job["start_time"]) == (job["eligible_time"], None)
    (job,) = named(jobs, "big")
    assert (job["features"], job["memory_mib"], job["partition"], job["node_count"]) == (
        "h100&ib",
        1536,
        "train,debug",
        1,
    )


def row(**values):
    known = dict(
        {field: "(null)" for field in slurm.JOB_FIELDS},
        JobID="7",
        ArrayJobID="7",
        ArrayTaskID="N/A",
        HetJobID="N/A",
        HetJobOffset="N/A",
        State="RUNNING",
        NumNodes="1",
        PriorityLong="1",
        RestartCnt="0",
        TimeLimit="1:00",
        NodeList="n[1-2]",
        Name="x",
        **{
            field: "2026-11-26T04:46:30"
            for field in ("SubmitTime", "EligibleTime", "StartTime", "EndTime")
        },
    )
    known.update({"tres-alloc": "cpu=1,mem=1G,node=1"}, **values)
    return "".join(known[field] + MARK for field in slurm.JOB_FIELDS) + "\n"


@pytest.mark.parametrize(
    "values, told",
    [
        ({"HetJobID": "0", "HetJobOffset": "0"}, {"het": None}),
        (
            {"NumNodes": "2-4", "State": "COMPLETING"},
            {"node_count": 2, "state": "completing", "start_time": "2026-11-26T04:46:30Z"},
        ),
        (
            {
                "tres-alloc": "cpu=256,mem=1.5T,node=4,billing=1,gres/gpu=32,gres/gpu:h100=32,license/x=2,energy=5"
            },
            {"gpus": 32, "memory_mib": 1572864, "cpus": 256},
        ),
        ({"tres-alloc": "(null)"}, {"gpus": 0, "cpus": 0}),
        (
            {"State": "REQUEUE_HOLD", "StartTime": "N/A"},
            {"start_time": None, "start_estimate": None},
        ),
        ({"Name": "x" + MARK[0]}, {"name": "x" + MARK[0]}),
        (
            {"Name": "7\n" * 3, "Comment": " a\u2028b\r"},
            {"name": "7\n" * 3, "comment": " a\u2028b\r"},
        ),
        ({"Name": ""}, {"name": ""}),
    ],
)
def test_jobs_of_other_clusters(values, told):
    before, job, after = slurm.parse_jobs(row() + row(**values) + row(), MARK)
    assert {key: job[key] for key in told} == told and before == after


@pytest.mark.parametrize(
    "values, message",
    [
        ({"JobID": "x"}, "JobID is 'x', expected a number"),
        ({"State": "R UNNING"}, "State is 'R UNNING'"),
        ({"SubmitTime": "Mon"}, "SubmitTime is 'Mon', expected a time"),
        ({"TimeLimit": "soon"}, "not a duration"),
        ({"tres-alloc": "cpu"}, "not a resource"),
        ({"NodeList": "n[1"}, "not a list of hosts"),
        ({"PriorityLong": "1.5"}, "PriorityLong is '1.5'"),
        ({"RestartCnt": "²"}, "RestartCnt"),
    ],
)
def test_a_job_that_cannot_be_read_is_refused(values, message):
    with pytest.raises(slurm.ParseError, match=re.escape(message)):
        slurm.parse_jobs(row() + row(**values), MARK)


def test_two_jobs_without_a_line_break_are_refused():
    with pytest.raises(slurm.ParseError, match="expected a line break between two jobs"):
        slurm.parse_jobs(row()[:-1] + row(JobID="123"), MARK)


def test_no_jobs():
    assert slurm.parse_jobs("", MARK) == []
    with pytest.raises(slurm.ParseError, match="incomplete"):
        slurm.parse_jobs("slurm_load_jobs error\n", MARK)


def test_ten_thousand_jobs_in_less_than_a_second():
    text = row(Name="a name = of some words", NodeList="gpu[001-016]", Comment="c" * 50) * 10000
    start = time.process_time()
    assert len(slurm.parse_jobs(text, MARK)) == 10000
    assert time.process_time() - start < 3


def test_commands():
    command = slurm.jobs_command(MARK)
    assert command[:4] == ["squeue", "--all", "--noheader", "--noconvert"] and command[
        4
    ].startswith("--Format=JobID:%s,ArrayJobID:%s," % (MARK, MARK))
    assert command[4].endswith("Name:%s,Comment:%s" % (MARK, MARK))
    told = slurm.command_environment(
        {
            "PATH": "/bin",
            "SQUEUE_FORMAT": "x",
            "SLURM_TIME_FORMAT": "%s",
            "SINFO_SORT": "x",
            "SLURM_CONF": "/c",
            "LC_ALL": "de",
            "TZ": "x",
        }
    )
    assert told == {"PATH": "/bin", "SLURM_CONF": "/c", "LC_ALL": "C", "TZ": "UTC0"}


#: scontrol --details show job 12, where 12 is also the number of an array. Shortened.
DETAILS = """JobId=12 ArrayJobId=12 ArrayTaskId=1 JobName=wrap
   UserId=anna(2001) GroupId=anna(2001) MCS_label=N/A
   JOB_GRES=gpu:h100:3
     Nodes=gpu-[01-02] CPU_IDs=0-1 Mem=0 GRES=gpu:h100:1(IDX:2)
     Nodes=head CPU_IDs=4 Mem=100 GRES=gpu:h100:1(IDX:0)%s
   MinCPUsNode=1 MinMemoryNode=0 MinTmpDiskNode=0

JobId=11 ArrayJobId=12 ArrayTaskId=0 JobName=wrap
     Nodes=gpu-01 CPU_IDs=2 Mem=0 GRES=gpu:h100:1(IDX:3)

"""


def test_positions_of_a_job():
    assert slurm.details_command(12) == ["scontrol", "--details", "show", "job", "12"]
    own = {"gpu-01": [2], "gpu-02": [2], "head": [0]}
    assert slurm.parse_positions(DETAILS % "", 12) == own
    assert slurm.parse_positions(DETAILS % "", 11) == {"gpu-01": [3]}
    # Two models have one row of numbers, and shards are no GPUs.
    text = "JobId=7 JobName=x\n     Nodes=a CPU_IDs=0 Mem=0 GRES=gpu:a100:3(IDX:0-1,4),shard:1(IDX:9),gpu:dgx:1(IDX:6)\n"
    assert slurm.parse_positions(text, 7) == {"a": [0, 1, 4, 6]}
    assert slurm.parse_positions("JobId=7 JobName=x\n     Nodes=a CPU_IDs=0 Mem=0 GRES=\n", 7) == {
        "a": []
    }
    assert slurm.parse_positions("", 7) == {}
    # A name with line breaks adds GPUs, by whose number the caller sees it.
    forged = slurm.parse_positions(DETAILS % "\n     Nodes=b CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:5)", 12)
    assert sum(len(places) for places in forged.values()) == 4


# --- finished jobs ------------------------------------------------------------------------------------------------------------


@BOTH
def test_finished_jobs(version):
    jobs = slurm.parse_finished(recorded(version, "finished"), MARK)
    states = {job["name"]: job["state"] for job in jobs}
    assert {
        name: states[name]
        for name in ("completes", "fails | 3", "cancelled", "nodefail", "timeout", "preempted2")
    } == {
        "completes": "completed",
        "fails | 3": "failed",
        "cancelled": "cancelled",
        "nodefail": "node_fail",
        "timeout": "timeout",
        "preempted2": "preempted",
    }
    (job,) = named(jobs, "fails | 3")
    assert (job["exit_code"], job["signal"], job["comment"], job["user"], job["gpus"]) == (
        3,
        0,
        "a|b\nc",
        "alice",
        0,
    )
    (job,) = named(jobs, "cancelled")
    assert (job["cancelled_by"], job["signal"], job["exit_code"]) == (None, 15, 0)
    (job,) = named(jobs, "cancelled later")
    assert (job["state"], job["cancelled_by"]) == ("cancelled", 1001)
    assert all(re.fullmatch(r"[0-9_+]+|[0-9]+_\[.*\]", job["id"]) for job in jobs)
    (job,) = named(jobs, "completes")
    assert (job["gpus"], job["nodes"], job["cancelled_by"]) == (1, [HOSTS[version][1]], None)
    assert {"nodes": [], "start_time": None}.items() <= named(jobs, "closed")[0].items()
    assert {job["id"] for job in named(jobs, "arr")} >= {"24_1", "24_2"} and {
        job["id"] for job in named(jobs, "het")
    } >= {"22+0", "22+1"}


def ended(**values):
    known = {
        "JobID": "7",
        "JobIDRaw": "7",
        "User": "alice",
        "Account": "vision",
        "QOS": "normal",
        "Partition": "train",
        "State": "COMPLETED",
        "Submit": "2026-11-26T04:00:00",
        "Start": "2026-11-26T04:00:05",
        "End": "2026-11-26T05:00:05",
        "ElapsedRaw": "3600",
        "NodeList": "gpu[001-016]",
        "AllocTRES": "billing=4,cpu=4,gres/gpu:h100=2,gres/gpu=2,mem=4G,node=1",
        "Reason": "None",
        "JobName": "a job",
        "Comment": "",
        "ExitCode": "0:0",
    }
    return MARK.join(dict(known, **values)[field] for field in slurm.FINISHED_FIELDS) + "\n"


def test_finished_jobs_share_nothing():
    """Lists of hosts and amounts are parsed once for each text. Each job has its own."""
    first, second = slurm.parse_finished(ended() + ended(JobID="8"), MARK)
    first["nodes"].append("other")
    first["gpu_models"]["other"] = 1
    assert (
        len(second["nodes"]) == 16 and second["gpu_models"] == {"h100": 2} and second["gpus"] == 2
    )


@pytest.mark.parametrize(
    "values, message",
    [
        ({"ElapsedRaw": "1.5"}, "ElapsedRaw is '1.5', expected a number: .8 7 alice vision"),
        ({"State": "done"}, "not a job as sacct prints it: .8 7 alice"),
        ({"ExitCode": "0"}, "not a job as sacct prints it: .8 7 alice"),
        ({"End": "now"}, "End is 'now', expected a time such as .*: .8 7 alice"),
        ({"NodeList": "gpu[1-"}, "not a list of hosts"),
        ({"AllocTRES": "cpu=x"}, "not a resource such as cpu=8"),
        ({"State": "CANCELLED by me"}, "State is 'me', expected a number: .8 7 alice"),
    ],
)
def test_a_finished_job_that_cannot_be_read_is_refused(values, message):
    with pytest.raises(slurm.ParseError, match=message):
        slurm.parse_finished(ended() + ended(JobID="8", **values) + ended(JobID="9"), MARK)


def test_ten_thousand_finished_jobs_in_less_than_a_second():
    text = "".join(
        ended(
            JobID=str(number),
            JobName="training of %d" % number,
            Start="2026-11-26T04:%02d:%02d" % (number // 60 % 60, number % 60),
        )
        for number in range(1, 10001)
    )
    start = time.process_time()
    assert len(slurm.parse_finished(text, MARK)) == 10000
    # `trainyard list` has a second for all of its work.
    assert time.process_time() - start < 0.5


# --- values -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value, hosts",
    [
        ("a", ["a"]),
        ("(null)", []),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[09-11],m", ["n09", "n10", "n11", "m"]),
        ("r[1-2]n[1,3]", ["r1n1", "r1n3", "r2n1", "r2n3"]),
        ("a.b-c_d,n[1]x", ["a.b-c_d", "n1x"]),
        ("n[001,3-4]", ["n001", "n3", "n4"]),
    ],
)
def test_lists_of_hosts(value, hosts):
    assert slurm.expand_hosts(value) == hosts


@pytest.mark.parametrize(
    "value",
    [
        "n[1-",
        "n[3-1]",
        "n[]",
        "n[a]",
        "a b",
        ",",
        "n[1-999999999]",
        "n[0-9999]x[0-9999]",
        "n]1[",
        "n[1]]",
        "[[1]]",
        "ä",
        "n[1-2,]",
        "n[0-99998]," * 2 + "z",
        "n," * 50001,
    ],
)
def test_what_is_not_a_list_of_hosts(value):
    with pytest.raises(slurm.ParseError):
        slurm.expand_hosts(value)


@pytest.mark.parametrize(
    "value, told",
    [
        ("1:00", 1),
        ("0:30", 1),
        ("1-00:00:00", 1440),
        ("UNLIMITED", None),
        ("", None),
        ("1:00:01", 61),
        ("Partition_Limit", None),
        ("NONE", None),
    ],
)
def test_minutes(value, told):
    assert slurm.minutes(value) == told


# --- failures ---------------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    "name, cause",
    [
        ("down-config", "controller_down"),
        ("down-nodes", "controller_down"),
        ("down-jobs", "controller_down"),
        ("unreachable-nodes", "controller_down"),
        ("unresolved-config", "controller_unreachable"),
        ("key-config", "auth"),
        ("key-nodes", "auth"),
        ("key-jobs", "auth"),
        ("nomunge-config", "auth_munge_down"),
        ("nomunge-jobs", "auth_munge_down"),
        ("nomunge-sacctmgr", "auth_munge_down"),
        ("notconfigured-config", "not_configured"),
        ("notconfigured-jobs", "not_configured"),
        ("badconfig-config", "invalid_configuration"),
        ("database-sacctmgr", "database_down"),
        ("database-sacct", "database_down"),
        ("mariadb-sacctmgr", "database_down"),
        ("permission-update", "permission"),
        ("invalid-node", "failed"),
        ("noreason", "failed"),
    ],
)
def test_causes(version, name, cause):
    text = recorded(version, "error-" + name)
    found, evidence = slurm.why_no_answer(1, "", text)
    assert found == cause and evidence in text and found in slurm.FIXES


def test_a_failure_without_output():
    assert slurm.why_no_answer(3, "", "\n") == ("failed", "exit code 3 and no output")


@BOTH
def test_unmunge_tells_the_key_from_the_clock(version):
    assert slurm.credential_fault(recorded(version, "unmunge-good")) == ""
    assert slurm.credential_fault(recorded(version, "unmunge-key")) == "auth_key"
    assert slurm.credential_fault(recorded(version, "unmunge-expired")) == "auth_clock"
    assert slurm.credential_fault("unmunge: Error: Rewound credential\n") == "auth_clock"
    assert (
        slurm.credential_fault("unmunge: Error: Failed to access socket\n")
        == slurm.credential_fault("")
        == ""
    )


@pytest.mark.parametrize(
    "text, told",
    [
        ("SlurmctldHost=a\n", (["a"], 6817)),
        (
            "# x\nslurmctldhost = a(10.0.0.1) # y\nSlurmctldHost=b\nSlurmctldPort=6820-6824\n",
            (["10.0.0.1", "b"], 6820),
        ),
        ("", ([], 6817)),
    ],
)
def test_controllers_in_the_configuration(text, told):
    assert slurm.controllers_of(text) == told


# --- drain and resume ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, told",
    [
        ("slow link", "trainyard: slow link"),
        ("trainyard: x", "trainyard: x"),
        ("trainyard:x", "trainyard: x"),
        ("a\n b\tc\x00", "trainyard: a b c"),
        ("  ", ""),
        ("trainyard:", ""),
        ("größe", "trainyard: größe"),
    ],
)
def test_reason_of(text, told):
    assert slurm.reason_of(text) == told and slurm.reason_of(told) == told


def test_a_long_reason_is_shortened_once():
    reason = slurm.reason_of("word " * 200)
    assert (
        len(reason) <= slurm.MAX_REASON
        and reason.endswith("...")
        and slurm.reason_of(reason) == reason
    )


def node(*states, **values):
    return dict(
        {"name": "n", "states": list(states), "reason": "", "reason_user": "", "reason_time": None},
        **values,
    )


@pytest.mark.parametrize(
    "found, state, only_ours, action",
    [
        (node("idle"), "drain", True, "drain"),
        (node("idle"), "resume", True, "unchanged"),
        (node("mixed", "drain", reason="trainyard: x"), "drain", True, "unchanged"),
        (node("idle", "drain", reason="trainyard: other"), "drain", True, "drain"),
        (node("idle", "drain", reason="fan"), "drain", True, "kept"),
        (node("idle", "drain", reason="fan"), "drain", False, "drain"),
        (node("idle", "drain", reason="trainyard: x"), "resume", True, "resume"),
        (node("idle", "drain", reason="fan"), "resume", True, "kept"),
        (node("idle", "drain", reason="fan"), "resume", False, "resume"),
        (node("idle", "drain", reason=""), "resume", True, "kept"),
        (node("down", "not_responding", reason="Not responding"), "resume", True, "kept"),
        (
            node("down", "not_responding", reason="Not responding", reason_user="slurm"),
            "drain",
            True,
            "drain",
        ),
        (node("down", reason="in repair", reason_user="root"), "drain", True, "kept"),
        (
            node("idle", "drain", "invalid_reg", reason="gres/gpu count", reason_user="slurm"),
            "drain",
            True,
            "kept",
        ),
        (node("down", reason=""), "drain", True, "drain"),
        (node("down", "drain", reason="trainyard:x"), "resume", True, "resume"),
        (node("idle", reason="left over"), "drain", True, "drain"),
        (node("unknown", "not_responding"), "resume", True, "unchanged"),
        (node("idle", "drain", reason="not trainyard: x"), "resume", True, "kept"),
    ],
)
def test_what_is_done_with_a_node(found, state, only_ours, action):
    assert slurm.node_state_plan(
        [found, node("idle", name="other")], ["n", "n"], state, "trainyard: x", only_ours
    ) == {"n": action}


# --- any text -----------------------------------------------------------------------------------------------------------------


PARSERS = {
    "nodes-busy": slurm.parse_nodes,
    "nodes-drained": slurm.parse_nodes,
    "nodes-reason-lines": slurm.parse_nodes,
    "nodes-reserved": slurm.parse_nodes,
    "partitions": slurm.parse_partitions,
    "reservations": slurm.parse_reservations,
    "config": slurm.parse_config,
    "jobs": lambda text: slurm.parse_jobs(text, MARK),
    "jobs-mixed": lambda text: slurm.parse_jobs(text, MARK),
    "finished": lambda text: slurm.parse_finished(text, MARK),
}


def read(name, text):
    try:
        return PARSERS[name](text)
    except slurm.ParseError:
        return None


@BOTH
@pytest.mark.parametrize("name", PARSERS)
def test_half_an_output_is_refused_or_a_part_of_it(version, name):
    """As of a command that was killed.

    An output that ends after a whole line cannot be told from a shorter one.
    """
    text = recorded(version, name)
    whole = PARSERS[name](text)
    starts = [match.start() for match in re.finditer("\n", text)]
    for end in sorted({0, *starts, *(start + 1 for start in starts), *range(1, len(text), 211)}):
        said = read(name, text[:end])
        if name == "config":
            assert said is None or said == whole
        elif said is not None:
            assert said == whole[: len(said)], text[:end][-80:]
            assert end in (0, len(text)) or text[end - 1] == "\n" or text[:end].endswith(MARK), (
                text[:end][-80:]
            )


@BOTH
@pytest.mark.parametrize("name", PARSERS)
def test_what_is_said_stands_in_the_text(version, name):
    text = recorded(version, name)

    @STEADY
    @given(st.data())
    def judge(data):
        spoiled = text
        for _turn in range(data.draw(st.integers(1, 3))):
            first, last = sorted(
                data.draw(st.tuples(st.integers(0, len(spoiled)), st.integers(0, len(spoiled))))
            )
            at = data.draw(st.integers(0, len(spoiled)))
            put = data.draw(
                st.sampled_from(
                    [
                        "",
                        spoiled[first:last][:500],
                        "\n",
                        "\t",
                        " ",
                        "=",
                        MARK,
                        "²",
                        "\x00",
                        "\u2028",
                        "99999",
                    ]
                )
                | st.text(max_size=8)
            )
            spoiled = data.draw(
                st.sampled_from(
                    [
                        spoiled[:first] + spoiled[last:],
                        spoiled[:at] + put + spoiled[at:],
                        spoiled[first:last],
                    ]
                )
            )
        said = read(name, spoiled)
        for item in said if isinstance(said, list) else []:
            told = [
                item["name"],
                item.get("comment", ""),
                item.get("user", ""),
                item.get("account", ""),
                item.get("id", ""),
            ] + item.get("partitions", [])
            assert [word for word in told if str(word) not in spoiled] == []

    judge()


@STEADY
@given(
    st.text() | st.text("n[]-,01", max_size=12),
    st.sampled_from([slurm.expand_hosts, slurm.minutes, slurm.parse_tres, slurm.parse_gres]),
)
def test_any_value(text, parse):
    with contextlib.suppress(slurm.ParseError):
        parse(text)


@STEADY
@given(
    st.text(),
    st.sampled_from(
        [slurm.parse_nodes, slurm.parse_partitions, slurm.parse_reservations, slurm.parse_config]
    ),
)
def test_any_text(text, parse):
    try:
        parse(text)
    except slurm.ParseError as error:
        assert str(error)


@STEADY
@given(st.text(), st.text())
def test_any_failure(stdout, stderr):
    cause, evidence = slurm.why_no_answer(1, stdout, stderr)
    assert cause in slurm.FIXES and evidence
    assert slurm.credential_fault(stdout) in ("", "auth_key", "auth_clock")
    assert slurm.controllers_of(stdout)[1] > -1
    reason = slurm.reason_of(stdout)
    assert reason == "" or (
        reason.startswith("trainyard: ")
        and reason.isprintable()
        and len(reason) <= slurm.MAX_REASON
        and slurm.reason_of(reason) == reason
    )


# --- sacctmgr ---------------------------------------------------------------------------------------------------------------

UNLIMITED = {
    "partition": "",
    "shares": 1,
    "group_tres": {},
    "group_max_jobs": None,
    "group_max_submitted": None,
    "job_tres": {},
    "max_jobs": None,
    "max_submitted": None,
    "max_minutes": None,
    "cluster": "trainyard",
}
THREE = ["high", "low", "normal"]


@pytest.mark.parametrize("version", VERSIONS)
def test_associations(version):
    found = slurm.parse_associations(recorded(version, "associations"))
    assert [(each["account"], each["user"]) for each in found] == [
        ("root", ""),
        ("root", "root"),
        ("language", ""),
        ("language", "ben"),
        ("trial", ""),
        ("trial", "carla"),
        ("vision", ""),
        ("vision", "anna"),
    ]
    by_name = {(each["account"], each["user"]): each for each in found}
    assert by_name["vision", ""] == dict(
        UNLIMITED,
        account="vision",
        user="",
        parent="root",
        group_tres={"gres/gpu": 2},
        qos=THREE,
        default_qos="normal",
    )
    assert by_name["vision", "anna"] == dict(
        UNLIMITED, account="vision", user="anna", parent="", qos=THREE, default_qos="normal"
    )
    assert by_name["language", "ben"]["max_minutes"] == 600
    limits = {
        "job_tres": {"gres/gpu": 2, "mem": 1500},
        "max_submitted": 5,
        "max_minutes": 3631,
        "qos": ["normal"],
        "default_qos": "",
        "account": "trial",
    }
    assert by_name["trial", ""] == dict(
        UNLIMITED,
        **limits,
        user="",
        parent="root",
        shares=None,
        max_jobs=3,
        group_max_jobs=10,
        group_max_submitted=20,
        group_tres={"cpu": 64, "gres/gpu": 4, "mem": 524288},
    )
    # What a person inherits, and the own number of jobs.
    assert by_name["trial", "carla"] == dict(
        UNLIMITED, **limits, user="carla", parent="", partition="train", max_jobs=1
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_qos(version):
    found = {each["name"]: each for each in slurm.parse_qos(recorded(version, "qos"))}
    none = {
        "grace_seconds": 0,
        "usage_factor": 1.0,
        "group_tres": {},
        "group_max_jobs": None,
        "group_max_submitted": None,
        "job_tres": {},
        "person_tres": {},
        "person_max_jobs": None,
        "person_max_submitted": None,
        "max_minutes": None,
        "flags": ["denyonlimit"],
    }
    assert found["normal"] == dict(
        none, name="normal", priority=100, preempts=["low"], preempt_mode="cluster"
    )
    assert found["low"] == dict(none, name="low", priority=0, preempts=[], preempt_mode="requeue")
    assert found["burst"] == {
        "name": "burst",
        "priority": 5,
        "preempts": ["low", "normal"],
        "preempt_mode": "requeue",
        "grace_seconds": 90,
        "flags": ["denyonlimit", "overpartqos"],
        "usage_factor": 0.5,
        "group_tres": {"gres/gpu": 16},
        "group_max_jobs": 7,
        "group_max_submitted": 9,
        "job_tres": {"cpu": 8},
        "person_tres": {"gres/gpu": 1},
        "person_max_jobs": 2,
        "person_max_submitted": 4,
        "max_minutes": 60,
    }
    assert len(found) == 4


@pytest.mark.parametrize(
    "parse, text, said",
    [
        (slurm.parse_associations, "c|a|u\n", "expected Cluster|Account|"),
        (slurm.parse_associations, "c|a||||1|||||||||", "the last line is incomplete"),
        (slurm.parse_associations, "|a||||1|||||||||\n", "expected Cluster|Account|"),
        (slurm.parse_associations, "c|||||1|||||||||\n", "Account is missing"),
        (slurm.parse_associations, "c|a||||x|||||||||\n", "Share is 'x', expected a number"),
        (slurm.parse_associations, "c|a||||1|gpu|||||||||\n", "expected Cluster"),
        (slurm.parse_associations, "c|a||||1|gpu||||||||\n", "not a resource"),
        (slurm.parse_associations, "c|a||||1|||||||soon||\n", "not a duration"),
        (slurm.parse_qos, "low||||||||||||||\n", "UsageFactor is ''"),
        (slurm.parse_qos, "low|0||cluster||soon|1.0||||||||\n", "GraceTime is 'soon'"),
        (slurm.parse_qos, "low|||cluster||00:00:00|1.0||||||||\n", "Priority is ''"),
    ],
)
def test_accounts_in_an_unexpected_format(parse, text, said):
    with pytest.raises(slurm.ParseError, match=re.escape(said)):
        parse(text)
    assert parse("") == []
