"""What verify decides from the variables of all hosts: who is measured, what is reported, which
logs are read, what cannot be required.
"""

from __future__ import annotations

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _role_input
from ansible_collections.trainyard.gpu.plugins.plugin_utils import _verify_plan


def member(name, slots=8, in_play=True):
    return {"name": name, "slots": slots, "in_play": in_play, "address": "10.0.0.1"}


class Hosts(dict):
    """As Ansible's hostvars: what is read of a host is noted."""

    def __init__(self, hosts):
        super().__init__({name: Variables(variables) for name, variables in hosts.items()})
        self.lookups = []

    def __getitem__(self, name):
        self.lookups.append(name)
        return super().__getitem__(name)


class Variables(dict):
    def __init__(self, variables):
        super().__init__(variables)
        self.read = set()

    def __getitem__(self, key):
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key, default=None):
        self.read.add(key)
        return super().get(key, default)


@pytest.mark.parametrize(
    "variables, slots, gpus",
    [
        ({"cluster_host": {"gpus": 8}, "__verify_container_gpus": {"gpu_count": 4}}, 8, 4),
        # Without GPUs there are two ranks, so that they have something to exchange.
        ({"cluster_host": {"gpus": 0}}, 2, 0),
        ({"cluster_host": {}}, 2, 0),
        ({}, 2, 0),
        # The container was not checked.
        ({"cluster_host": {"gpus": 8}, "__verify_container_gpus": {"skipped": True}}, 8, 0),
        ({"cluster_host": {"gpus": 8}}, 8, 0),
    ],
)
def test_who_is_measured(variables, slots, gpus):
    assert _verify_plan.measured({"a": variables}, {"members": [member("a")]}) == {
        "hosts": [{"name": "a", "slots": slots}],
        "gpus": {"a": gpus},
    }


def test_hosts_without_slots_and_outside_the_play_are_not_measured():
    hosts = Hosts({name: {"other": 1} for name in "abc"})
    assert _verify_plan.measured(
        hosts, {"members": [member("a", slots=0), member("b"), member("c", in_play=False)]}
    ) == {"hosts": [{"name": "b", "slots": 2}], "gpus": {"b": 0}}
    # Ansible computes all variables of a host at each look-up, and evaluates one when it is read.
    assert hosts.lookups == ["b"] and "other" not in dict.__getitem__(hosts, "b").read


FULL = {
    "cluster_host": {"kernel": "6.1.0", "nvidia_devices": 8},
    "__verify_infiniband": {"devices": [{}, {}]},
    "__verify_gpus": {"driver_version": "570.1"},
    "__verify_stack": {
        "nvcc": {"version": "12.4"},
        "packages": {"libnccl2": {"version": "2.21"}},
        "container_toolkit": "1.17",
        "docker": "26.1",
    },
    "training_image_name": "trainyard/training:1",
    "training_image_nccl": "2.22",
    "__verify_horovod": {"version": "0.28.1"},
}


@pytest.mark.parametrize(
    "variables, versions, gpus, rdma_devices",
    [
        (
            FULL,
            {
                "kernel": "6.1.0",
                "driver": "570.1",
                "cuda": "12.4",
                "nccl": "2.21",
                "toolkit": "1.17",
                "docker": "26.1",
                "image": "trainyard/training:1",
                "image_nccl": "2.22",
                "horovod": "0.28.1",
            },
            8,
            2,
        ),
        ({"cluster_host": {"kernel": "6.1.0"}}, {"kernel": "6.1.0"}, 0, 0),
        # Tasks that were skipped or failed, and what is not installed.
        (
            {
                "cluster_host": {"kernel": "6.1.0"},
                "__verify_infiniband": {"skipped": True},
                "__verify_gpus": {"driver_version": None},
                "__verify_stack": {"failed": True},
                "training_image_nccl": "",
                "__verify_horovod": {"skipped": True},
            },
            {"kernel": "6.1.0"},
            0,
            0,
        ),
        (
            {
                "cluster_host": {"kernel": "6.1.0"},
                "__verify_stack": {
                    "nvcc": None,
                    "packages": {},
                    "container_toolkit": "",
                    "docker": None,
                },
            },
            {"kernel": "6.1.0"},
            0,
            0,
        ),
    ],
)
def test_evidence_of_a_host(variables, versions, gpus, rdma_devices):
    found = _verify_plan.evidence({"a": variables}, [member("a"), member("b")], ["a"], ["a"])
    assert found == {
        "hosts": [dict(member("a"), gpus=gpus, rdma_devices=rdma_devices)],
        "versions": {"a": versions},
        "logs": [],
    }


def test_a_host_that_has_dropped_out_is_in_the_report_without_versions():
    found = _verify_plan.evidence(
        {"a": FULL, "b": {}}, [member("a"), member("b")], ["a", "b"], ["a"]
    )
    assert [(host["name"], host["gpus"]) for host in found["hosts"]] == [
        ("a", 8),
        ("b", 0),
    ] and list(found["versions"]) == ["a"]


def test_tails_of_logs():
    item = {"host": "a", "name": "kernel", "argv": []}
    read = {"rc": 0, "stdout": "NVRM: Xid\n", "item": item}
    results = [read, dict(read, rc=1), dict(read, stdout=" \n"), {"failed": True, "item": item}]
    hosts = {
        "a": {"cluster_host": {"kernel": "6"}, "__verify_log": {"results": results}},
        "b": {"cluster_host": {"kernel": "6"}, "__verify_log": {"skipped": True}},
    }
    assert _verify_plan.evidence(hosts, [], [], ["a", "b"])["logs"] == [
        {"host": "a", "name": "kernel", "tail": "NVRM: Xid\n"}
    ]


SOURCES = [
    {"name": "container", "checks": ["ssh-mesh", "memlock"], "argv": ["one"]},
    {"name": "kernel", "checks": ["gpu-xid", "ssh-mesh"], "argv": ["two"]},
]
JOB = {"host": "head", "name": "bandwidth job", "argv": ["tail"]}


def check(check_id, host="a", verdict="fail"):
    return {"id": check_id, "host": host, "verdict": verdict}


@pytest.mark.parametrize(
    "checks, job_checks, logs",
    [
        ([], [], []),
        (
            [
                check("gpu-xid", verdict="warn"),
                check("memlock", "b"),
                check("memlock", "ab"),
                check("free-space"),
            ],
            [],
            [],
        ),
        ([check("memlock")], [], [("a", "container")]),
        ([check("gpu-xid", "b, a")], [], [("a", "kernel")]),
        ([check("ssh-mesh"), check("memlock")], [], [("a", "container"), ("a", "kernel")]),
        # The job failed anywhere, or has measured nothing.
        (
            [check("memlock")],
            [check("fabric-counters", "b")],
            [("a", "container"), ("head", "bandwidth job")],
        ),
        ([], [check("bandwidth-cluster", "a, b", "skipped")], [("head", "bandwidth job")]),
        ([], [check("gpus-busy", verdict="skipped"), check("bandwidth-host", verdict="warn")], []),
    ],
)
def test_logs_to_read(checks, job_checks, logs):
    assert [
        (log["host"], log["name"])
        for log in _verify_plan.logs(checks, "a", SOURCES, job_checks, JOB)
    ] == logs


JOBS = ["bandwidth-host", "bandwidth-cluster", "gpus-busy"]


@pytest.mark.parametrize(
    "required, run, left_out",
    [
        ([], {}, []),
        # In check mode or as part of another playbook nothing can be required. What is switched off
        # can.
        (["gpus-busy"], {"can_start": False, "is_asked": False}, JOBS),
        (["gpus-busy"], {"is_asked": False}, JOBS[:2]),
        (
            ["bandwidth-cluster"],
            {"hosts": 1},
            ["bandwidth-cluster", "fabric-counters", "fabric-errors"],
        ),
        ([], {"has_tool": False}, JOBS[:2]),
        (["bandwidth-host"], {"has_tool": False}, ["bandwidth-cluster"]),
        ([], {"has_process_sets": False}, ["bandwidth-host"]),
        (["bandwidth-host"], {"has_process_sets": False}, []),
        ([], {"needs_horovod": False}, ["horovod-build"]),
        (["horovod-build"], {"needs_horovod": False}, []),
        ([], {"has_person": False}, ["scheduler-job", "scheduler-isolation"]),
        (["scheduler-job"], {"has_person": False}, ["scheduler-isolation"]),
    ],
)
def test_what_cannot_be_required(required, run, left_out):
    assert (
        _verify_plan.decide_verify_unmeasured(required, JOBS, dict({"hosts": 2}, **run)) == left_out
    )
    assert JOBS == ["bandwidth-host", "bandwidth-cluster", "gpus-busy"]


def a_port(number=1, state="active", rate=400):
    return {"port": number, "state": state, "rate_gb_s": rate}


@pytest.mark.parametrize(
    "ports, rates",
    [
        ({}, {}),
        ({"a": None, "b": []}, {}),
        ({"a": [a_port(), a_port(2, rate=200)]}, {"mlx5_0 port 1": 400, "mlx5_0 port 2": 200}),
        # The slow port is the fault, whatever the order of the hosts.
        ({"a": [a_port(rate=100)], "b": [a_port()]}, {"mlx5_0 port 1": 400}),
        ({"a": [a_port()], "b": [a_port(rate=100)]}, {"mlx5_0 port 1": 400}),
        # No host has a cable there, or the rate is not known.
        ({"a": [a_port(state="down"), a_port(2, rate=None)]}, {}),
        ({"a": [a_port(state="init")], "b": [a_port()]}, {"mlx5_0 port 1": 400}),
    ],
)
def test_rates_of_ports(ports, rates):
    variables = {
        name: {}
        if its is None
        else {"__verify_infiniband": {"devices": [{"name": "mlx5_0", "ports": its}]}}
        for name, its in ports.items()
    }
    variables["c"] = {"__verify_infiniband": {"available": False}}
    assert _verify_plan.port_rates([{"name": name} for name in variables], variables) == rates


def a_login(name, cause="", **session):
    return {"name": name, "cause": cause, "session": session}


@pytest.mark.parametrize(
    "proofs, told",
    [
        ({}, {}),
        ({"a": {}, "b": {"logins": []}}, {}),
        # The login of a host to itself is the one that Horovod's check needs. Each limit is listed
        # once.
        (
            {
                "a": {"logins": [a_login("a", memlock="unlimited"), a_login("b", "refused")]},
                "b": {
                    "logins": [
                        a_login("a", "timeout", memlock="64"),
                        a_login("b", "denied", memlock="unlimited"),
                        a_login("c", memlock="64"),
                    ]
                },
                "c": {"logins": [a_login("c", memlock="64")]},
            },
            {
                "a": {"own_cause": "", "memlocks": ["unlimited", "64"]},
                "b": {"own_cause": "denied", "memlocks": ["unlimited"]},
                "c": {"own_cause": "", "memlocks": ["64"]},
            },
        ),
    ],
)
def test_what_logins_have_shown(proofs, told):
    assert _verify_plan.logins(proofs) == told


@pytest.mark.parametrize(
    "key, value, ids",
    [
        (
            "job",
            None,
            [
                "scheduler-job",
                "scheduler-isolation",
                "burn-in-results",
                "burn-in-speed",
                "burn-in-errors",
                "burn-in-links",
                "burn-in-rails",
                "bandwidth-host",
                "bandwidth-cluster",
                "gpus-busy",
                "fabric-counters",
                "fabric-errors",
                "nccl-transport",
            ],
        ),
        (
            "needed_by_jobs",
            None,
            [
                "image-identical",
                "container-running",
                "ssh-mesh",
                "shared-storage",
                "container-share",
                "host-unreachable",
            ],
        ),
        (
            "logs",
            "container",
            [
                "toolkit-container",
                "image-identical",
                "container-running",
                "unit-as-planned",
                "foreign-access",
                "horovod-build",
                "ssh-mesh",
                "memlock",
                "container-share",
                "container-limits",
                "session-environment",
            ],
        ),
        (
            "logs",
            "kernel",
            [
                "stack-drift",
                "gpus-present",
                "gpu-ecc",
                "gpu-state",
                "gpu-fabric",
                "gpu-xid",
                "gpu-nvlinks",
                "toolkit-container",
                "shared-storage",
                "container-share",
                "container-limits",
                "ib-ports",
                "ib-flaps",
                "ib-counters",
            ],
        ),
        ("no_such_key", None, []),
    ],
)
def test_ids_by_the_keys_of_the_rows(key, value, ids):
    assert _role_input.verify_ids(key, value) == ids


# --- nodes of the scheduler -------------------------------------------------------------------------------------------------------

DRAINING = ["gpu-xid", "bandwidth-host"]


def found(check_id, host, verdict="pass", what=""):
    return {"id": check_id, "host": host, "verdict": verdict, "found": what}


def node(name, reason=""):
    return {"name": name, "reason": reason}


OURS = "trainyard: verify: gpu-xid: Xid 79"
MEASURED = found("bandwidth-cluster", "a, b")


@pytest.mark.parametrize(
    "checks, drain",
    [
        (
            [found("gpu-xid", "b", "fail", "Xid 79"), found("ssh-mesh", "a", "fail", "refused")],
            {"b": "verify: gpu-xid: Xid 79"},
        ),
        (
            [
                found("gpu-xid", "b", "warn", "Xid 31"),
                found("gpu-xid", "a", "not_evaluated", "no log"),
            ],
            {},
        ),
        (
            [
                found("gpu-xid", "a, b", "fail", "Xid 48"),
                found("bandwidth-host", "b", "fail", "3.1 GB/s"),
                found("gpu-xid", "b", "fail", "Xid 48"),
            ],
            {
                "a": "verify: gpu-xid: Xid 48",
                "b": "verify: gpu-xid: Xid 48; bandwidth-host: 3.1 GB/s",
            },
        ),
        # Not a node, and not checked.
        (
            [
                found("gpu-xid", "login", "fail", "Xid 79"),
                found("gpu-xid", "away", "fail", "Xid 79"),
            ],
            {},
        ),
        (
            [found("gpu-xid", "a", "fail", "curl https://ops:geheim@hub/x")],
            {"a": "verify: gpu-xid: curl https://[removed]@hub/x"},
        ),
    ],
)
def test_a_node_is_drained_with_the_findings_that_are_a_reason_for_it(checks, drain):
    decided = _verify_plan.decide_verify_nodes(
        checks, DRAINING, {"nodes": [node("a"), node("b"), node("away")]}, ["login", "a", "b"]
    )
    assert {entry["node"]: entry["reason"] for entry in decided["drain"]} == drain and decided[
        "resume"
    ] == []


def test_of_a_slow_link_the_suspect_is_drained():
    blame = [{"kind": "link", "names": ["a", "b"], "evidence": "3.1 of 24 GB/s"}]
    decided = _verify_plan.decide_verify_nodes(
        [found("bandwidth-cluster", "a, b", "fail")],
        DRAINING,
        {"nodes": [node("a"), node("b")]},
        ["a", "b"],
        blame,
        ["b"],
    )
    assert decided["drain"] == [{"node": "b", "reason": "verify: link a, b: 3.1 of 24 GB/s"}]


@pytest.mark.parametrize(
    "nodes, checks, resumed",
    [
        (
            [node("a", OURS), node("b", "new disk")],
            [MEASURED, found("gpu-xid", "a"), found("gpu-xid", "b")],
            ["a"],
        ),
        # Another host's fault keeps no good node away.
        (
            [node("a", OURS), node("b")],
            [MEASURED, found("gpu-xid", "a", "warn"), found("gpu-xid", "b", "fail", "Xid 79")],
            ["a"],
        ),
        ([node("a", OURS)], [MEASURED, found("gpu-xid", "a", "not_evaluated")], []),
        ([node("a", OURS)], [MEASURED, found("gpu-xid", "a", "fail", "Xid 79")], []),
        # Without a measurement nobody knows whether the link is good again.
        (
            [node("a", OURS)],
            [found("gpu-xid", "a"), found("bandwidth-cluster", "a, b", "skipped")],
            [],
        ),
        (
            [node("a", OURS)],
            [found("gpu-xid", "a"), found("bandwidth-cluster", "a, b", "fail")],
            [],
        ),
        # Drained three times in a week.
        (
            [node("a", "trainyard: stays out: gpu-xid drained this node 3 times in a week")],
            [MEASURED, found("gpu-xid", "a")],
            [],
        ),
        # A host with one rank has no bandwidth of its own, and playbook burn_in measures it.
        ([node("a", OURS)], [found("gpu-xid", "a"), found("burn-in-speed", "a", "warn")], ["a"]),
        ([node("a", OURS)], [found("gpu-xid", "a"), found("burn-in-speed", "a", "fail")], []),
        ([node("away", OURS)], [found("bandwidth-cluster", "a, b, away")], []),
    ],
)
def test_only_good_nodes_that_trainyard_drained_are_resumed(nodes, checks, resumed):
    assert (
        _verify_plan.decide_verify_nodes(checks, DRAINING, {"nodes": nodes}, ["a", "b"])["resume"]
        == resumed
    )


def test_without_an_answer_of_the_scheduler_nothing_is_decided():
    assert _verify_plan.decide_verify_nodes(
        [found("gpu-xid", "a", "fail", "Xid 79")],
        DRAINING,
        {"available": False, "nodes": []},
        ["a"],
    ) == {"drain": [], "resume": []}
    assert _verify_plan.decide_verify_nodes(
        [found("gpu-xid", "a", "fail", "Xid 79")], DRAINING, {}, ["a"]
    ) == {
        "drain": [],
        "resume": [],
    }


def test_hosts_of_a_scheduler():
    members = [member("a", slots=0), member("b")]
    variables = {name: {"cluster_host": {"kernel": "6.1"}} for name in "ab"}
    assert [
        host.get("scheduler")
        for host in _verify_plan.evidence(variables, members, ["a", "b"], [])["hosts"]
    ] == [None, None]
    with_slurm = _verify_plan.evidence(variables, members, ["a", "b"], [], "a")["hosts"]
    assert [host["scheduler"] for host in with_slurm] == [["controller"], ["node"]]


# --- jobs of a person on the nodes --------------------------------------------------------------------------------------------

PEOPLE = [{"name": "anna", "uid": 2001}, {"name": "ben", "uid": 2002}]
TREES = [
    {"path": "/data1/share/group", "of": "groups"},
    {"path": "/data1/share/user/", "of": "users"},
]
CHOSEN = {
    "person": "anna",
    "account": "vision",
    "folder": "/data1/share/user/anna",
    "image": "",
    "problem": "",
    "possible": True,
}


@pytest.mark.parametrize(
    "accounts, changes",
    [
        ([{"name": "vision", "gpus": 2, "members": ["carla", "anna"]}], {}),
        # The largest quota, and none is the largest.
        (
            [
                {"name": "vision", "gpus": 2, "members": ["anna"]},
                {"name": "language", "gpus": 8, "members": ["ben"]},
            ],
            {"person": "ben", "account": "language", "folder": "/data1/share/user/ben"},
        ),
        (
            [
                {"name": "vision", "gpus": 9, "members": ["anna"]},
                {"name": "language", "gpus": 16, "max_gpus_per_person": 8, "members": ["ben"]},
            ],
            {},
        ),
        (
            [
                {"name": "language", "gpus": 8, "members": ["ben"]},
                {"name": "vision", "members": ["anna"]},
            ],
            {},
        ),
        (
            [
                {"name": "vision", "gpus": 2, "members": ["anna", "ben"]},
                {"name": "language", "gpus": 2, "members": ["ben"]},
            ],
            {},
        ),
    ],
)
def test_the_person_whose_job_is_tried(accounts, changes):
    assert _verify_plan.probe({"accounts": accounts, "missing_people": []}, PEOPLE, TREES) == dict(
        CHOSEN, **changes
    )


def test_a_person_without_a_folder_on_the_share():
    plan = {"accounts": [{"name": "vision", "members": ["anna"]}]}
    assert _verify_plan.probe(plan, PEOPLE, TREES[:1], "image:1") == dict(
        CHOSEN, folder="", image="image:1"
    )


@pytest.mark.parametrize(
    "plan, problem, possible",
    [
        ({}, "the accounts of the scheduler were not read", True),
        ({"accounts": []}, "has no member who is in shared_storage_users", False),
        (
            {"accounts": [{"name": "vision"}, {"name": "other", "members": ["carla"]}]},
            "has no member who is in shared_storage_users",
            False,
        ),
        (
            {"accounts": [{"name": "vision", "gpus": 0, "members": ["anna"]}]},
            "allow nobody a GPU",
            False,
        ),
        # A fault: people.yml creates them.
        (
            {"accounts": [{"name": "vision", "members": ["anna"]}], "missing_people": ["anna"]},
            "anna cannot log in to the scheduler; run people.yml",
            True,
        ),
    ],
)
def test_nobody_whose_job_can_be_tried(plan, problem, possible):
    told = _verify_plan.probe(plan, PEOPLE, TREES)
    assert problem in told["problem"] and (told["person"], told["possible"]) == ("", possible)


def test_a_person_who_is_missing_is_not_chosen():
    plan = {
        "accounts": [{"name": "vision", "members": ["anna", "ben"]}],
        "missing_people": ["anna"],
    }
    assert _verify_plan.probe(plan, PEOPLE, TREES)["person"] == "ben"


def separates(verdict="pass", found="", of_limits=False):
    return {"verdict": verdict, "found": found, "of_limits": of_limits}


def of_jobs(checks, name="scheduler-job"):
    return [check for check in checks if check["id"] == name]


def test_findings_of_the_jobs():
    told = {
        "probes": [
            {"node": "a", "verdict": "pass", "found": "job 1 of anna ran"},
            {"node": "b", "verdict": "fail", "found": "job 2 of anna did not start"},
            {
                "node": "c",
                "verdict": "not_made",
                "found": "job 3 of anna did not start within 60 s: AssocGrpGRES",
            },
        ],
        "seconds": 3,
    }
    told["probes"] = [dict(entry, isolation=separates()) for entry in told["probes"]]
    checks = of_jobs(
        _verify_plan.probe_checks(
            told, dict(CHOSEN, image="trainyard/training:1"), ["a", "b", "c", "d"], "no such node"
        )
    )
    assert [(check["id"], check["host"], check["verdict"], check["found"]) for check in checks] == [
        ("scheduler-job", "a", "pass", "job 1 of anna ran"),
        ("scheduler-job", "b", "fail", "job 2 of anna did not start"),
        (
            "scheduler-job",
            "c",
            "not_evaluated",
            "job 3 of anna did not start within 60 s: AssocGrpGRES",
        ),
        ("scheduler-job", "d", "skipped", "no such node"),
    ]
    assert (
        checks[0]["expected"]
        == "a job of anna on this host in a container of trainyard/training:1, with its GPU alone, and the share"
    )
    assert [bool(check["fix"]) for check in checks] == [False, True, True, False] and checks[1][
        "seconds"
    ] == 3
    (plain,) = of_jobs(_verify_plan.probe_checks(told, dict(CHOSEN, folder=""), ["a"]))
    assert plain["expected"] == "a job of anna on this host, with its GPU alone"


OPENED = separates("fail", "a task without GPUs of job 1: it can open /dev/nvidia0", of_limits=True)
READS = separates("fail", "a task without GPUs of job 1: /run/trainyard/jobs/3 can be read")


@pytest.mark.parametrize(
    "isolation, accepted, verdict",
    [
        (separates("pass", "closed"), False, "pass"),
        (separates("pass", "closed"), True, "pass"),
        (OPENED, False, "fail"),
        (OPENED, True, "warn"),
        # A folder needs no control groups.
        (READS, False, "fail"),
        (READS, True, "fail"),
        # What was not measured does not pass, whatever is accepted.
        (separates("not_made", "no result"), False, "not_evaluated"),
        (separates("not_made", "no result"), True, "not_evaluated"),
    ],
)
def test_whether_a_node_separates_jobs(isolation, accepted, verdict):
    told = {
        "probes": [
            {"node": "a", "verdict": "pass", "found": "job 1 of anna ran", "isolation": isolation}
        ],
        "seconds": 3,
    }
    checks = _verify_plan.probe_checks(told, CHOSEN, ["a", "b"], "no such node", accepted=accepted)
    found_here, elsewhere = of_jobs(checks, "scheduler-isolation")
    assert (found_here["host"], found_here["verdict"]) == ("a", verdict) and isolation[
        "found"
    ] in found_here["found"]
    assert (elsewhere["host"], elsewhere["verdict"], elsewhere["found"]) == (
        "b",
        "skipped",
        "no such node",
    )
    assert bool(found_here["fix"]) is (verdict != "pass")
    decision = _verify_plan.decide_verify_nodes(
        checks, _role_input.verify_ids("drains"), {"nodes": [node("a"), node("b")]}, ["a", "b"]
    )
    assert [entry["node"] for entry in decision["drain"]] == (["a"] if verdict == "fail" else [])


def test_a_node_whose_job_could_not_be_tried_is_not_resumed():
    told = {
        "probes": [
            {"node": "a", "verdict": "pass", "found": "", "isolation": separates()},
            {"node": "b", "verdict": "not_made", "found": "", "isolation": separates()},
            {"node": "c", "verdict": "fail", "found": "x", "isolation": separates()},
        ]
    }
    checks = _verify_plan.probe_checks(told, CHOSEN, ["a", "b", "c"]) + [
        found("bandwidth-cluster", "a, b, c")
    ]
    decision = _verify_plan.decide_verify_nodes(
        checks, ["scheduler-job"], {"nodes": [node(name, OURS) for name in "abc"]}, ["a", "b", "c"]
    )
    assert decision == {
        "drain": [{"node": "c", "reason": "verify: scheduler-job: x"}],
        "resume": ["a"],
    }
