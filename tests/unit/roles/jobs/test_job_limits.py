# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a cluster can never run, and why a job waits, in words."""

from __future__ import annotations

import _job_file
import _job_limits
import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _slurm


def judged(**values):
    return _job_file.judge(dict({"name": "a", "command": "b", "worker_image": "tools:1"}, **values))


def association(
    account,
    user="",
    parent="root",
    gpus=None,
    job_gpus=None,
    minutes=None,
    qos=("low", "normal"),
    submitted=None,
    **tres,
):
    return {
        "max_jobs": None,
        "max_submitted": submitted,
        "account": account,
        "user": user,
        "parent": "" if user else parent,
        "group_tres": tres if gpus is None else dict(tres, **{"gres/gpu": gpus}),
        "job_tres": {} if job_gpus is None else {"gres/gpu": job_gpus},
        "max_minutes": minutes,
        "qos": list(qos),
    }


def node(name, gpus=4, cpus=8, memory=16384, features=("h100",), used=0, available=True, reason=""):
    return {
        "name": name,
        "gpus": [{"model": "h100", "total": gpus, "used": used}] if gpus else [],
        "cpus": cpus,
        "cpus_allocated": 2,
        "memory_mib": memory,
        "memory_allocated_mib": 1024,
        "features": list(features),
        "available_for_jobs": available,
        "states": ["idle"] if available else ["down"],
        "reason": reason,
    }


ASSOCIATIONS = [
    association("root", parent=""),
    association("lab", gpus=6, cpu=12),
    association("vision", parent="lab", gpus=8, minutes=600, cpu=20),
    association("language", gpus=2, mem=8192),
    association("vision", "anna"),
    association("language", "anna", gpus=1),
    association("vision", "ben"),
]
PARTITIONS = [{"name": "train", "default": True, "nodes": ["a", "b"], "max_minutes": 1440}]


def test_the_tightest_limit_counts():
    found = _job_limits.accounts_of(ASSOCIATIONS, "anna")
    assert [
        (entry["account"], entry["gpus"], entry["person_gpus"], entry["max_minutes"])
        for entry in found
    ] == [("language", 2, 1, None), ("vision", 6, None, 600)]
    assert _job_limits.accounts_of(ASSOCIATIONS, "carla") == []
    # A person who was removed while a job of theirs runs.
    left = ASSOCIATIONS + [
        association("vision", "carla", submitted=0),
        association("language", "carla", submitted=5),
    ]
    assert [entry["account"] for entry in _job_limits.accounts_of(left, "carla")] == ["language"]


@pytest.mark.parametrize(
    "values, said",
    [
        ({}, None),
        ({"workspace_id": "vision", "worker_gpu": "3", "worker_count": "2"}, None),
        (
            {"workspace_id": "visoin"},
            "workspace_id: 'visoin' is not one of your accounts (language, vision); did you mean vision?",
        ),
        (
            {"workspace_id": "vision", "worker_gpu": "4", "worker_count": "2"},
            "worker_gpu: the job needs 8 GPUs (2 workers with 4 each), but account vision has 6 at most; use fewer",
        ),
        (
            {"workspace_id": "language", "worker_gpu": "2"},
            "worker_gpu: the job needs 2 GPUs (1 worker with 2 each), but each person of account language has 1 at most",
        ),
        (
            {"workspace_id": "vision", "max_minutes": "601"},
            "max_minutes: 601 is longer than account vision allows; use at most 600",
        ),
        ({"workspace_id": "vision", "worker_cpu": "6", "worker_count": "2"}, None),
        (
            {"workspace_id": "vision", "worker_cpu": "7", "worker_count": "2"},
            "worker_cpu: the job needs 14 CPUs (2 workers with 7 each), but account vision has 12 at most; use less",
        ),
        (
            {"workspace_id": "language", "worker_memory": "6.5", "worker_shared_memory": "2"},
            "worker_memory: the job needs 8.5 GB (1 worker with 8.5 each), but account language has 8 at most; use less",
        ),
    ],
)
def test_accounts(values, said):
    problems = _job_limits.account_problems(
        judged(**values), _job_limits.accounts_of(ASSOCIATIONS, "anna"), "anna"
    )
    assert len(problems) == (said is not None) and (said or "") in "".join(problems), problems


def test_words_for_one():
    """One GPU, one CPU, one host and one job."""
    free = node("a", gpus=1, cpus=3, memory=3072)
    assert _job_limits.largest_worker([free]) == "a worker can have 1 GPU, 1 CPU and 2 GB now, on a"
    full = dict(free, name="b", cpus_allocated=3)
    assert "\n1 GPU of b is free, but no CPU is" in _job_limits.largest_worker([full])
    job = judged(worker_count="2", worker_gpu="1", worker_memory="1")
    assert "\n".join(_job_limits.host_problems(job, [free], [])) == (
        "worker_count: each worker has a host of its own, but 1 host of this cluster is large enough for one (a) and the job has 2 workers; use at most 1 worker"
    )
    assert _job_limits.full_problems({"submitted": 1, "max_submitted": 1, "account": "vision"}) == [
        "workspace_id: you have 1 waiting and running job in account vision, which allows each person 1; wait until one ends, or stop one"
    ]


def test_a_person_without_an_account():
    assert _job_limits.account_problems(judged(), [], "carla") == [
        "workspace_id: carla has no account on this cluster; ask the operator to add you to a group in slurm_accounts"
    ]


@pytest.mark.parametrize(
    "values, said",
    [
        ({"worker_gpu": "4", "worker_count": "2", "worker_cpu": "8", "worker_memory": "16"}, None),
        (
            {"worker_gpu": "5"},
            "worker_gpu: a worker needs 5 GPUs, but the largest host of this cluster has 4 GPUs (a); use less",
        ),
        ({"worker_cpu": "9"}, "worker_cpu: a worker needs 9 CPUs"),
        (
            {"worker_memory": "10", "worker_shared_memory": "7"},
            "worker_memory: a worker needs 17 GB with worker_shared_memory, but the largest host of this cluster has 16 GB",
        ),
        (
            {"worker_count": "3"},
            "worker_count: each worker has a host of its own, but 2 hosts of this cluster are large enough for one (a, b)",
        ),
        (
            {"host_class": "h10"},
            "host_class: 'h10' is not a class of hosts here; use one of h100; did you mean h100?",
        ),
        (
            {"max_minutes": "1441"},
            "max_minutes: 1441 is longer than partition train allows; use at most 1440",
        ),
    ],
)
def test_hosts(values, said):
    # The third one is in another partition.
    problems = _job_limits.host_problems(
        judged(**values),
        [node("a"), node("b"), node("c", gpus=9, cpus=99, features=("a100",))],
        PARTITIONS,
    )
    assert len(problems) == (said is not None) and (said or "") in "".join(problems), problems


def test_a_cluster_without_hosts():
    assert "has 0 CPUs; use less" in "".join(_job_limits.host_problems(judged(), [], []))


@pytest.mark.parametrize(
    "image, images, registries, fine",
    [
        ("tools:1", ["tools:1"], [], True),
        ("tools", ["tools:latest"], [], True),
        ("tools:2", ["tools:1"], [], False),
        ("tools:2", [], [], True),
        ("r.example/team/x:1", ["tools:1"], ["r.example/team"], True),
        ("r.example/teams/x:1", ["tools:1"], ["r.example/team"], False),
    ],
)
def test_images(image, images, registries, fine):
    problems = _job_limits.image_problems(judged(worker_image=image), images, registries)
    assert (problems == []) == fine and all(
        "is not an image of this cluster; use one of tools:1" in problem for problem in problems
    )


def image(name, *platforms):
    return {"name": "front:5000/site/" + name, "digest": "sha256:1", "platforms": list(platforms)}


APPROVED = [
    image("arm:1", "linux/arm64/v8"),
    image("both:1", "linux/amd64", "linux/arm64"),
    image("intel:latest", "linux/amd64"),
    {"name": "front:5000/site/new:1"},
]


@pytest.mark.parametrize(
    "name, values, said",
    [
        ("arm:1", {}, None),
        ("arm:1", {"host_class": "gh200"}, None),
        ("both:1", {"host_class": "h100"}, None),
        ("new:1", {"host_class": "h100"}, None),
        ("other:1", {"host_class": "h100"}, None),
        (
            "arm:1",
            {"host_class": "h100"},
            "worker_image: 'front:5000/site/arm:1' is for linux/arm64/v8, but the hosts of class h100 need linux/amd64 (a); use an image for that",
        ),
        (
            "arm@sha256:1",
            {"host_class": "h100"},
            "worker_image: 'front:5000/site/arm@sha256:1' is for linux/arm64/v8",
        ),
        (
            "intel",
            {"host_class": "gh200"},
            "'front:5000/site/intel' is for linux/amd64, but the hosts of class gh200 need linux/arm64 (b)",
        ),
        # Host c is in another partition, and d has never registered.
        ("arm:1", {"host_class": "a100"}, None),
        ("arm:1", {"host_class": "new"}, None),
    ],
)
def test_an_image_for_another_architecture(name, values, said):
    nodes = [
        dict(node(host, features=(feature,)), architecture=machine)
        for host, feature, machine in (
            ("a", "h100", "x86_64"),
            ("b", "gh200", "aarch64"),
            ("c", "a100", "x86_64"),
            ("d", "new", ""),
        )
    ]
    partitions = [dict(PARTITIONS[0], nodes=["a", "b", "d"])]
    if "host_class" not in values:
        nodes = nodes[:2]
    problems = _job_limits.platform_problems(
        judged(worker_image="front:5000/site/" + name, **values), APPROVED, nodes, partitions
    )
    assert len(problems) == (said is not None) and (said or "") in "".join(problems), problems


USAGE = """Current Association Manager state

Association Records

ClusterName=trainyard Account=vision UserName= Partition= Priority=0 ID=3
    SharesRaw/Norm/Level/Factor=1/0.33/3/0.00
    GrpJobs=N(2) GrpJobsAccrue=N(0)
    GrpSubmitJobs=N(5) GrpWall=N(0.00)
    GrpTRES=cpu=8(3),mem=4096(512),energy=N(0),node=N(1),billing=N(3),fs/disk=N(0),vmem=N(0),pages=N(0),gres/gpu=4(4)
    GrpTRESMins=cpu=N(1),mem=N(1215),gres/gpu=9(0)
    ParentAccount=root(1) Lft=2 DefAssoc=No
    MaxJobs= MaxJobsAccrue= MaxSubmitJobs= MaxWallPJ=
    MaxTRESPJ=
ClusterName=trainyard Account=vision UserName=anna(2001) Partition= Priority=0 ID=5
    ParentAccount= Lft=7 DefAssoc=Yes
    GrpJobs=3(2) GrpJobsAccrue=N(0)
    GrpSubmitJobs=N(7) GrpWall=N(0.00)
    GrpTRES=cpu=N(0),gres/gpu=N(2)
    GrpTRESRunMins=cpu=N(0),gres/gpu=5(0)
    MaxJobs=2(2) MaxJobsAccrue= MaxSubmitJobs=7(7) MaxWallPJ=124
    MaxTRESPJ=cpu=8,gres/gpu=1
"""


def test_what_an_account_uses():
    account = {
        "cluster": "trainyard",
        "account": "vision",
        "user": "",
        "gpus": {"used": 4, "limit": 4},
        "jobs": {"used": 2, "limit": None},
        "cpus": {"used": 3, "limit": 8},
        "memory_mib": {"used": 512, "limit": 4096},
        "submitted": {"used": 5, "limit": None},
        "parent": "root",
        "group_tres": {"gres/gpu": 4, "cpu": 8, "mem": 4096},
        "job_tres": {},
        "max_jobs": None,
        "max_submitted": None,
        "max_minutes": None,
        "qos": [],
    }
    assert _slurm.parse_usage(USAGE) == [
        account,
        dict(
            account,
            user="anna",
            gpus={"used": 2, "limit": None},
            jobs={"used": 2, "limit": 3},
            parent="",
            group_tres={},
            max_submitted=7,
            max_minutes=124,
            cpus={"used": 0, "limit": None},
            memory_mib={"used": 0, "limit": None},
            submitted={"used": 7, "limit": None},
            max_jobs=2,
            job_tres={"cpu": 8, "gres/gpu": 1},
        ),
    ]
    assert _slurm.usage_command("anna") == [
        "scontrol",
        "show",
        "assoc_mgr",
        "users=anna",
        "flags=assoc",
    ]
    with pytest.raises(_slurm.ParseError, match="expected lines that begin with ClusterName="):
        _slurm.parse_usage("Current Association Manager state\n")


def test_the_controller_s_limits_are_judged_as_those_of_the_database():
    [mine] = _job_limits.accounts_of(_slurm.parse_usage(USAGE), "anna")
    assert (mine["account"], mine["gpus"], mine["job_gpus"], mine["max_minutes"], mine["qos"]) == (
        "vision",
        4,
        1,
        124,
        [],
    )
    # It does not tell the QOS, so each is accepted here.
    problems = _job_limits.account_problems(
        judged(worker_gpu="2", max_minutes="125"), [mine], "anna"
    )
    assert problems.pop(1) == (
        "workspace_id: you have 7 waiting and running jobs in account vision, which allows each person 7; wait until one ends, or stop "
        "one"
    )
    assert (
        len(problems) == 2
        and "a job of account vision has 1 at most" in problems[0]
        and "use at most 124" in problems[1]
    )
    assert (
        _job_limits.accounts_of(
            _slurm.parse_usage(USAGE.replace("MaxSubmitJobs=7(7)", "MaxSubmitJobs=0(7)")), "anna"
        )
        == []
    )
    with pytest.raises(_slurm.ParseError, match="MaxWallPJ"):
        _slurm.parse_usage(USAGE.replace("MaxWallPJ=124", "MaxWallPJ=1-0"))


@pytest.mark.parametrize(
    "reason, said",
    [
        ("AssocGrpGRES", "group vision uses 4 of its 4 GPUs"),
        ("AssocGrpTRES", "group vision uses 4 of its 4 GPUs"),
        # All GPUs are in use, too.
        ("AssocGrpCpuLimit", "group vision uses 4 of its 4 GPUs, and group vision uses 3 of its 8"),
        ("AssocGrpMemLimit", "group vision uses 0.5 of its 4 GB of memory"),
        (
            "AssocGrpCPURunMinutesLimit",
            "the running jobs of group vision hold all the minutes of CPUs that they may have; it starts when they have run for longer, or with a "
            "smaller max_minutes (AssocGrpCPURunMinutesLimit)",
        ),
        # The group has no such limit, and what it uses has nothing to do with the job's own size.
        (
            "AssocMaxGRESPerJob",
            "it asks for more GPUs than group vision allows one job, so it never starts; stop it, and submit it with a smaller worker_gpu",
        ),
        ("AssocGrpFuture", "group vision uses all that it may use (AssocGrpFuture)"),
        (
            "AssocMaxJobsLimit",
            "you have 2 running jobs in group vision, which allows each person 2",
        ),
        (
            "AssocMaxSubmitJobLimit",
            "you have 7 waiting and running jobs in group vision, which allows each person 7",
        ),
        ("AssocGrpJobsLimit", "you use 2 of your 3 running jobs in group vision"),
        ("QOSMaxGRESPerUser", "you have all the GPUs that priority low allows one person"),
        ("MaxNodePerAccount", "group vision has all the hosts that priority low allows one group"),
        ("QOSMinGRES", "it asks for fewer GPUs than priority low requires, so it never starts"),
        ("QOSGrpLicenseMinutes", "have used up the minutes of licences that they may use"),
        ("Priority", "other jobs are before it"),
        ("Resources", "until hosts are free"),
        (
            "ReqNodeNotAvail, UnavailableNodes:b",
            "hosts that it needs are out of service or reserved: b (new disk)",
        ),
        # squeue prints spaces, scontrol underscores.
        (
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
            "hosts that it needs are out of service or reserved: b (new disk)",
        ),
        (
            "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions",
            "hosts that it needs are out of service or reserved: b (new disk)",
        ),
        ("ReqNodeNotAvail, May be reserved for other job", "are out of service or reserved"),
        ("BadConstraints, whatever", "no host can ever fit it"),
        ("launch failed requeued held", "tell the operator"),
        ("JobHeldUser", "you have held it"),
        ("None", "it starts in a moment"),
        ("SomethingNew", "SomethingNew"),
        ("AssocMaxWallDurationPerJobLimit", "smaller max_minutes"),
        (
            "MaxGRESRunMinsPerUser",
            "your running jobs hold all the minutes of GPUs that priority low allows one person; it starts when they have run for longer, or with a smaller "
            "max_minutes (MaxGRESRunMinsPerUser)",
        ),
        (
            "MaxCpuRunMinsPerAccount",
            "the group's running jobs hold all the minutes of CPUs that priority low allows one group",
        ),
        ("MaxPoweredUpNodes", "as many hosts are switched on as this cluster allows"),
        ("MpiPortsBusy", "the ports that it needs on its hosts are in use"),
    ],
)
def test_why_a_job_waits(reason, said):
    assert said in _job_limits.why(
        {"reason": reason, "account": "vision", "qos": "low"},
        _slurm.parse_usage(USAGE),
        [node("a"), node("b", available=False, reason="new disk")],
    )


#: job_state_reason_string() of Slurm 21.08 to 25.05, and
#: https://slurm.schedmd.com/job_reason_codes.html. $ stands for what a limit counts.
REASONS = """
AccountNotAllowed AccountingPolicy AssociationJobLimit AssociationResourceLimit AssociationTimeLimit BadConstraints BeginTime BurstBufferOperation
BurstBufferResources BurstBufferStageIn Cleaning Constraints DeadLine Dependency DependencyNeverSatisfied FedJobLock FrontEndDown InactiveLimit
InvalidAccount InvalidQOS JobArrayTaskLimit JobHeldAdmin JobHeldUser JobHoldMaxRequeue JobLaunchFailure Licenses MaxMemPerLimit MaxPoweredUpNodes
MpiPortsBusy NodeDown NonZeroExitCode
None OutOfMemory PartitionConfig PartitionDown PartitionInactive PartitionNodeLimit PartitionTimeLimit PowerNotAvail PowerReserved Priority Prolog
QOSJobLimit QOSNotAllowed QOSResourceLimit QOSTimeLimit QOSUsageThreshold RaisedSignal ReqNodeNotAvail Reservation ReservationDeleted
ReservationInvalid Resources SchedDefer SystemFailure TimeLimit
AssocGrpCpuLimit AssocGrpCPUMinutesLimit AssocGrpCPURunMinutesLimit AssocGrpJobsLimit AssocGrpMemLimit AssocGrpNodeLimit AssocGrpSubmitJobsLimit
AssocGrpWallLimit AssocMaxCPUMinutesPerJobLimit AssocMaxCpuMinutesPerJobLimit AssocMaxCpuPerJobLimit AssocMaxCpuPerNode AssocMaxJobsLimit
AssocMaxMemMinutesPerJob AssocMaxMemPerJob AssocMaxMemPerNode AssocMaxNodePerJobLimit AssocMaxSubmitJobLimit AssocMaxWallDurationPerJobLimit
AssocGrpMemMinutes AssocGrpMemRunMinutes AssocGrpNodeMinutes AssocGrpNodeRunMinutes AssocMaxNodeMinutesPerJob
QOSGrpCpuLimit QOSGrpCPUMinutesLimit QOSGrpCPURunMinutesLimit QOSGrpJobsLimit QOSGrpMemLimit QOSGrpMemoryMinutes QOSGrpMemoryRunMinutes
QOSGrpNodeLimit QOSGrpNodeMinutes QOSGrpNodeRunMinutes QOSGrpSubmitJobsLimit QOSGrpWallLimit QOSMaxCpuMinutesPerJobLimit QOSMaxCpuPerJobLimit
QOSMaxCpuPerNode QOSMaxCpuPerUserLimit QOSMaxJobsPerUserLimit QOSMaxMemoryMinutesPerJob QOSMaxMemoryPerJob QOSMaxMemoryPerNode QOSMaxMemoryPerUser
QOSMaxNodeMinutesPerJob QOSMaxNodePerJobLimit QOSMaxNodePerUserLimit QOSMaxSubmitJobPerUserLimit QOSMaxWallDurationPerJobLimit
QOSMinCpuNotSatisfied QOSMinMemory QOSMinNode MaxCpuPerAccount MaxJobsPerAccount MaxMemoryPerAccount MaxNodePerAccount MaxSubmitJobsPerAccount
AssocGrp$ AssocGrp$Minutes AssocGrp$RunMinutes AssocMax$PerJob AssocMax$PerNode AssocMax$MinutesPerJob
QOSGrp$ QOSGrp$Minutes QOSGrp$RunMinutes QOSMax$PerJob QOSMax$PerNode QOSMax$PerUser QOSMax$MinutesPerJob QOSMin$ Max$PerAccount
Max$RunMinsPerAccount Max$RunMinsPerUser MaxCpuRunMinsPerAccount MaxCpuRunMinsPerUser MaxMemoryRunMinsPerAccount MaxMemoryRunMinsPerUser
MaxNodeRunMinsPerAccount MaxNodeRunMinsPerUser
""".split()


def test_each_reason_of_slurm_has_words():
    """Without numbers of limits, which are not always known."""
    names = set()
    for reason in REASONS:
        for what in ("BB", "Billing", "Energy", "GRES", "License", "Unknown"):
            names.add(reason.replace("$", what))
    assert len(names) > 180
    for name in sorted(names):
        job = {"reason": name, "account": "vision", "qos": "low"}
        words = _job_limits.why(job, [], [node("b", available=False, reason="new disk")])
        assert " " in words.replace(" (%s)" % name, "") and "%" not in words, name
        assert words.count(name) <= 1 and "  " not in words, words
        if name.startswith(("AssocMax", "QOSMax", "QOSMin")) and name.endswith(
            ("PerJob", "PerNode")
        ):
            assert "never starts; stop it, and submit it with" in words, name


def test_a_group_with_free_gpus_waits_for_cpus_alone():
    words = _job_limits.why(
        {"reason": "AssocGrpCpuLimit", "account": "vision"},
        _slurm.parse_usage(USAGE.replace("gres/gpu=4(4)", "gres/gpu=4(3)")),
        [node("a")],
    )
    assert words == "group vision uses 3 of its 8 CPUs"


def test_what_is_free():
    assert _job_limits.free(node("a", used=1)) == {"cpus": 6, "memory_mib": 15360, "gpus": 3}
    assert _job_limits.free(node("a", available=False)) == {"cpus": 0, "memory_mib": 0, "gpus": 0}


def silent(*seconds):
    return [
        {"worker": worker, "host": "gpu-" + "abc"[worker], "quiet": quiet}
        for worker, quiet in enumerate(seconds)
    ]


@pytest.mark.parametrize(
    "seconds, percents, words, absent",
    [
        # No log yet.
        ((None, None), [], [], ["hang"]),
        ((700, 12), [0], ["worker 1 printed something 12 s ago"], ["hang"]),
        ((599, 5000), [], ["worker 0 printed something 9 minutes ago"], ["hang"]),
        (
            (900, 905, 1500),
            [0, 1],
            [
                "it may hang: no worker has printed anything for 15 minutes",
                "worker 2 on gpu-c has been silent for longest, 25 minutes",
                "its GPUs are not used",
                "trainyard logs 7 --rank 2",
            ],
            [],
        ),
        # Without a difference nobody is blamed, and a waiting collective uses GPUs.
        ((900, 905), [99, None], ["99 % at most", "as they also are in a collective"], ["longest"]),
        ((7200, None), [None], ["for 2.0 hours", "is not known"], ["longest"]),
    ],
)
def test_whether_a_job_makes_progress(seconds, percents, words, absent):
    said = _job_limits.progress("7", silent(*seconds), percents)
    assert all(word in said for word in words) and not any(word in said for word in absent)
    assert bool(said) == bool(words)
