"""Probe jobs on the nodes of Slurm: how they are submitted, and what their results say."""

from __future__ import annotations

import base64
import json

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _slurm_probe as probe

ANNA = {"name": "anna", "uid": 2001, "gid": 2001}
ASKED = {
    "node": "n1",
    "gpus": 1,
    "contained": False,
    "partition": "train",
    "qos": "",
    "problem": "",
}
DEVICES = {"0": ["c", 195, 0, ""], "1": ["c", 195, 1, ""]}
SEEN = {
    "node": "n1",
    "uid": 2001,
    "gid": 2001,
    "gpus": [0],
    "visible": 1,
    "devices": DEVICES,
    "driver": True,
    "share": "",
}


def a_node(*states, name="n1", gpus=4, reason=""):
    return {
        "name": name,
        "states": list(states or ("idle",)),
        "reason": reason,
        "gpus": [{"model": "h100", "total": gpus, "used": 0}] if gpus else [],
    }


def a_partition(name="train", **changes):
    return dict(
        {
            "name": name,
            "nodes": ["n1", "n2"],
            "state": "up",
            "allow_accounts": None,
            "allow_qos": None,
        },
        **changes,
    )


def a_job(result=None, state="COMPLETED", reason="", nodes=("n1",)):
    comment = (
        "trainyard:" + base64.urlsafe_b64encode(json.dumps(result).encode()).decode()
        if result
        else ""
    )
    return {
        "id": 7,
        "comment": comment,
        "state": state.lower(),
        "reason": reason,
        "nodes": list(nodes),
    }


def judged(job, refused="", **changes):
    told = probe.outcome(dict(ASKED, **changes), job, refused, ANNA, 60)
    assert told["node"] == "n1" and told["job"] == (job["id"] if job else None)
    return told["verdict"], told["found"]


# As scontrol show config of 22.05 and 24.11 ends.
CONFIG = """TaskPlugin              = %s
TaskPluginParam         = (null type)

Cgroup Support Configuration:
CgroupMountpoint        = /sys/fs/cgroup
ConstrainDevices        = %s
ConstrainRAMSpace       = yes
"""


@pytest.mark.parametrize(
    "plugin, devices, constrained",
    [
        ("task/cgroup,task/affinity", "yes", True),
        ("task/affinity,task/cgroup", "yes", True),
        ("task/affinity", "yes", False),
        ("task/cgroup", "no", False),
    ],
)
def test_whether_slurm_constrains_devices(plugin, devices, constrained):
    assert probe.constrains_devices(CONFIG % (plugin, devices)) is constrained
    assert probe.constrains_devices("TaskPlugin = task/cgroup\n") is False


@pytest.mark.parametrize(
    "node, said",
    [
        (a_node(), ""),
        (a_node("idle", "maintenance", "reserved"), ""),
        (a_node("mixed", "planned"), ""),
        (a_node("idle", "drain", reason="new disk"), "the node is idle, drain: new disk"),
        (a_node("down", "not_responding"), "the node is down, not_responding"),
        (
            a_node("idle", "not_responding", "maintenance"),
            "the node is idle, not_responding, maintenance",
        ),
    ],
)
def test_nodes_that_start_no_jobs(node, said):
    assert probe.unavailable(node) == said


@pytest.mark.parametrize(
    "partitions, changes",
    [
        ([a_partition()], {}),
        (
            [
                a_partition("other", nodes=["n2"]),
                a_partition("late", state="drain"),
                a_partition("theirs", allow_accounts=["language"]),
                a_partition("ours", allow_accounts=["vision"], allow_qos=["low", "high"]),
            ],
            {"partition": "ours", "qos": "low"},
        ),
        ([a_partition(allow_qos=["high", "normal"])], {}),
        ([], {"partition": "", "problem": "the node is in no partition"}),
        (
            [a_partition(state="down"), a_partition("theirs", allow_accounts=["language"])],
            {
                "partition": "",
                "problem": "account vision may not use its partitions (train: down, theirs: up)",
            },
        ),
    ],
)
def test_the_partition_of_a_job(partitions, changes):
    assert probe.request(a_node(), partitions, "vision", False) == dict(ASKED, **changes)


def test_a_node_without_gpus():
    asked = probe.request(a_node(gpus=0), [a_partition()], "vision", True)
    assert asked["gpus"] == 0 and not [
        word
        for word in probe.submission(asked, "vision", "", 60)
        if "gres" in word or "reservation" in word
    ]


def test_the_command():
    command = probe.submission(dict(ASKED, qos="low"), "vision", "trainyard-verify", 120)
    assert {
        "--nodelist=n1",
        "--gres=gpu:1",
        "--account=vision",
        "--partition=train",
        "--qos=low",
        "--reservation=trainyard-verify",
        "--no-requeue",
    } <= set(command)
    # It does not stay in the queue, and does not run on, if nobody cancels it.
    assert {"--time=4", "--deadline=now+420"} <= set(command)


@pytest.mark.parametrize(
    "state, active",
    [
        ("PENDING", True),
        ("RUNNING", True),
        ("COMPLETING", True),
        ("COMPLETED", False),
        ("NODE_FAIL", False),
    ],
)
def test_the_end_of_a_job(state, active):
    assert (
        probe.is_active(state.lower()) is active
        and probe.has_ended(a_job(state=state)) is not active
    )
    # With a result nothing else is waited for, except by the clean-up.
    assert probe.has_ended(a_job(SEEN, state))


@pytest.mark.parametrize(
    "comment",
    [
        "",
        "of a person",
        "trainyard:",
        "trainyard:%%%",
        "trainyard:W10=",
        "trainyard:e30",
        "trainyard:\u00e9",
    ],
)
def test_a_comment_without_a_result(comment):
    assert probe.result_of(comment) == {}


def test_a_job_in_order():
    assert judged(a_job(SEEN)) == ("pass", "job 7 of anna ran")
    assert judged(a_job(dict(SEEN, gpus=[], visible=0)), gpus=0) == ("pass", "job 7 of anna ran")
    # Other GPUs are hidden: by the container, or by the control group.
    assert judged(a_job(dict(SEEN, devices={"0": DEVICES["0"]})), contained=True)[0] == "pass"
    assert (
        judged(
            a_job(dict(SEEN, devices=dict(DEVICES, **{"1": ["c", 195, 1, "EPERM"]}))),
            contained=True,
        )[0]
        == "pass"
    )
    # Without a driver, on a virtual machine and on a host that is a container.
    assert (
        judged(
            a_job(
                dict(
                    SEEN,
                    driver=False,
                    devices={"0": ["c", 195, 0, "ENXIO"], "1": ["c", 195, 1, "EPERM"]},
                )
            ),
            contained=True,
        )[0]
        == "pass"
    )
    assert (
        judged(
            a_job(
                dict(
                    SEEN,
                    driver=False,
                    devices={key: value[:3] + ["EPERM"] for key, value in DEVICES.items()},
                )
            )
        )[0]
        == "pass"
    )


#: File=/dev/nvidia[0-2,4], then the display card /dev/nvidia3: GPU 3 of Slurm is device 4.
FIVE = {str(number): ["c", 195, number, ""] for number in range(5)}


def test_the_gpu_of_the_job_is_a_position():
    own = dict(SEEN, gpus=[3], positions=[0, 1, 2, 4, 3], devices={"4": FIVE["4"]})
    assert judged(a_job(own), contained=True)[0] == "pass"
    # trainyard-run has opened the display card, which Slurm may have given to another job.
    wrong = judged(a_job(dict(own, devices={"3": FIVE["3"]})), contained=True)
    assert wrong == (
        "fail",
        "job 7 of anna: it got /dev/nvidia4, which does not exist; it can open GPUs of other jobs: /dev/nvidia3",
    )
    both = judged(a_job(dict(own, devices=FIVE)), contained=True)[1]
    assert both.endswith("/dev/nvidia0, /dev/nvidia1, /dev/nvidia2, /dev/nvidia3")
    short = judged(a_job(dict(own, positions=[0])))
    assert short[1].endswith("it has GPUs 3 of Slurm, and the list of the host has 1 devices")
    # A host can say anything.
    assert judged(a_job(dict(SEEN, positions=["x"])))[0] == "pass"


def test_the_npu_of_the_job():
    """Its major number is the kernel's choice.

    It is GPU 0 of Slurm on a host whose devices begin with davinci4.
    """
    own = dict(SEEN, device="/dev/davinci", positions=[4, 5], devices={"4": ["c", 237, 4, ""]})
    assert judged(a_job(own), contained=True)[0] == "pass"
    other = dict(own, devices=dict(own["devices"], **{"5": ["c", 237, 5, ""]}))
    assert judged(a_job(other), contained=True)[1].endswith("of other jobs: /dev/davinci5")
    assert judged(a_job(dict(own, devices={})))[1].endswith("/dev/davinci4, which does not exist")
    # A host can say anything.
    assert judged(a_job(dict(SEEN, device="/dev/sda")))[0] == "pass"


def on_device(kind="c", major=195, minor=0, error=""):
    return dict(SEEN, devices=dict(DEVICES, **{"0": [kind, major, minor, error]}))


@pytest.mark.parametrize(
    "result, changes, said",
    [
        (dict(SEEN, node="n2"), {}, "it ran on n2"),
        (dict(SEEN, uid=0), {}, "it ran as user 0 and group 2001, and anna is 2001 and 2001"),
        (dict(SEEN, gid=100), {}, "it ran as user 2001 and group 100, and anna is 2001 and 2001"),
        (dict(SEEN, gpus=[0, 1], visible=2), {}, "it has GPUs 0, 1 and sees 2, not 1"),
        (dict(SEEN, visible=2), {}, "it has GPUs 0 and sees 2, not 1"),
        (dict(SEEN, gpus=[], visible=0), {}, "it has GPUs none and sees 0, not 1"),
        (dict(SEEN, devices={"1": DEVICES["1"]}), {}, "it got /dev/nvidia0, which does not exist"),
        (
            on_device(minor=7),
            {},
            "it got /dev/nvidia0, which is the device c 195:7 and not c 195:0",
        ),
        (
            on_device(major=1, minor=3),
            {},
            "it got /dev/nvidia0, which is the device c 1:3 and not c 195:0",
        ),
        (
            on_device("-", 0, 0),
            {},
            "it got /dev/nvidia0, which is the device - 0:0 and not c 195:0",
        ),
        # With a driver, a GPU that has fallen off the bus, or one that Slurm hides.
        (on_device(error="ENXIO"), {}, "it cannot open /dev/nvidia0: ENXIO"),
        (on_device(error="EPERM"), {}, "it cannot open /dev/nvidia0: EPERM"),
        (dict(on_device(error="EPERM"), driver=False), {}, "it cannot open /dev/nvidia0: EPERM"),
        (SEEN, {"contained": True}, "it can open GPUs of other jobs: /dev/nvidia1"),
        (
            dict(
                SEEN,
                driver=False,
                devices={"0": ["c", 195, 0, "ENXIO"], "1": ["c", 195, 1, "ENXIO"]},
            ),
            {"contained": True},
            "it can open GPUs of other jobs: /dev/nvidia1",
        ),
        (
            dict(SEEN, gpus=[], visible=0),
            {"gpus": 0, "contained": True},
            "it can open GPUs of other jobs: /dev/nvidia0, /dev/nvidia1",
        ),
        (
            dict(SEEN, share="/data1/share/user/anna cannot be written: Read-only file system"),
            {},
            "it cannot use the share: /data1/share/user/anna cannot be written: Read-only file system",
        ),
        (
            {"failed": "exit code 125: trainyard-run: image 'x' is not on this host"},
            {},
            "its task failed: exit code 125: trainyard-run: image 'x' is not on this host",
        ),
    ],
)
def test_what_is_wrong_with_a_job(result, changes, said):
    assert judged(a_job(result), **changes) == ("fail", "job 7 of anna: " + said)


def test_a_job_on_a_different_node_than_the_controller_says():
    assert judged(a_job(SEEN, nodes=["n2"])) == ("fail", "job 7 of anna: it ran on n1")


@pytest.mark.parametrize(
    "job, verdict, said",
    [
        (
            a_job(state="PENDING", reason="Resources", nodes=()),
            "fail",
            "job 7 of anna did not start within 60 s: Resources",
        ),
        (
            a_job(state="PENDING", reason="ReqNodeNotAvail, UnavailableNodes:n1", nodes=()),
            "fail",
            "job 7 of anna did not start within 60 s: ReqNodeNotAvail, UnavailableNodes:n1",
        ),
        (
            a_job(state="PENDING", reason="", nodes=()),
            "fail",
            "job 7 of anna did not start within 60 s",
        ),
        (
            a_job(state="PENDING", reason="launch failed requeued held", nodes=()),
            "fail",
            "job 7 of anna did not start within 60 s: launch failed requeued held",
        ),
        # The node is not the reason.
        (
            a_job(state="PENDING", reason="AssocGrpGRES", nodes=()),
            "not_made",
            "job 7 of anna did not start within 60 s: AssocGrpGRES",
        ),
        (
            a_job(state="PENDING", reason="QOSMaxJobsPerUserLimit", nodes=()),
            "not_made",
            "job 7 of anna did not start within 60 s: QOSMaxJobsPerUserLimit",
        ),
        (a_job(state="RUNNING"), "fail", "job 7 of anna did not end within 60 s"),
        (a_job(state="NODE_FAIL"), "fail", "job 7 of anna ended without a result: node_fail"),
        (
            a_job(state="FAILED", reason="NonZeroExitCode"),
            "fail",
            "job 7 of anna ended without a result: failed, NonZeroExitCode",
        ),
        (
            None,
            "not_made",
            "Slurm has forgotten the job of anna before its result was read; raise MinJobAge",
        ),
    ],
)
def test_a_job_without_a_result(job, verdict, said):
    assert judged(job) == (verdict, said)


@pytest.mark.parametrize(
    "node, said",
    [
        (a_node("idle", "drain", reason="Prolog error"), "; the node is idle, drain: Prolog error"),
        (
            a_node("down", "not_responding", reason="Not responding"),
            "; the node is down, not_responding: Not responding",
        ),
        # The reason of before, of a node that trainyard has drained, and of one that was resumed.
        (a_node("idle", "drain", reason="trainyard: verify: bad"), ""),
        (a_node("idle", reason="Prolog error"), ""),
        (a_node("idle", "drain"), ""),
        (None, ""),
    ],
)
def test_a_job_after_which_slurm_drains_the_node(node, said):
    told = probe.outcome(ASKED, a_job(state="FAILED"), "", ANNA, 60, node)
    assert (told["verdict"], told["found"]) == (
        "fail",
        "job 7 of anna ended without a result: failed" + said,
    )
    # Not of this job.
    assert probe.outcome(ASKED, a_job(SEEN), "", ANNA, 60, node)["found"] == "job 7 of anna ran"


@pytest.mark.parametrize(
    "text, verdict, said",
    [
        (
            "sbatch: error: Batch job submission failed: Requested node configuration is not available\n",
            "fail",
            "Requested node configuration is not available",
        ),
        (
            "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit)\n",
            "not_made",
            "Job violates accounting/QOS policy (job submit limit)",
        ),
        (
            "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
            "not_made",
            "Invalid account or account/partition combination specified",
        ),
        (
            "sbatch: error: Batch job submission failed: Access denied to requested reservation",
            "not_made",
            "Access denied to requested reservation",
        ),
    ],
)
def test_a_job_that_slurm_refuses(text, verdict, said):
    assert judged(None, refused=text) == (verdict, "Slurm refuses the job of anna: " + said)


def test_a_node_without_a_job():
    assert judged(None, problem="the node is down") == ("not_made", "the node is down")


PLAIN = {
    "devices": {"/dev/nvidia0": "EPERM", "/dev/nvidia1": "EPERM"},
    "missing": [],
    "folders": [],
    "memory": "killed",
    "here": ["", "EPERM"],
}


def isolated(changes=None, gpus=1, **result):
    told = probe.isolation(
        dict(ASKED, gpus=gpus),
        a_job(dict(SEEN, plain=dict(PLAIN, **(changes or {})), **result)),
        "no result",
    )
    return told["verdict"], told["found"], told["of_limits"]


@pytest.mark.parametrize(
    "changes, said",
    [
        ({}, "2 devices are closed"),
        ({"devices": {}, "here": []}, "there is no device of a GPU"),
        ({"memory": "refused"}, "2 devices are closed"),
        # The rest is in swap.
        ({"memory": 70}, "2 devices are closed"),
        ({"here": ["ENXIO"]}, "2 devices are closed"),
        ({"devices": {"/dev/nvidia0": "EACCES"}}, "1 devices are closed"),
    ],
)
def test_a_node_that_separates_jobs(changes, said):
    assert isolated(changes) == (
        "pass",
        "a task without GPUs of job 7: %s, and its memory is limited" % said,
        False,
    )


def test_a_node_without_gpus_separates_jobs():
    # Nothing is requested, so that the job cannot open them either.
    assert isolated({"here": ["EPERM"]}, gpus=0)[0] == "pass"


@pytest.mark.parametrize(
    "changes, said, of_limits",
    [
        (
            {"devices": {"/dev/nvidia1": "", "/dev/nvidia0": "ENXIO", "/dev/nvidia2": "EPERM"}},
            "it can open /dev/nvidia0, /dev/nvidia1",
            True,
        ),
        ({"devices": {"/dev/davinci0": "EBUSY"}}, "it can open /dev/davinci0", True),
        ({"memory": 192}, "it got 192 MiB of memory with a limit of 64 MiB", True),
        # What failed says more than what was not measured.
        (
            {"memory": 192, "here": ["EPERM"], "missing": ["/run/trainyard/jobs"]},
            "it got 192 MiB of memory with a limit of 64 MiB",
            True,
        ),
        (
            {"folders": ["/run/trainyard/jobs/3 can be read"]},
            "/run/trainyard/jobs/3 can be read",
            False,
        ),
        (
            {"memory": 192, "folders": ["/x/3 can be read"]},
            "it got 192 MiB of memory with a limit of 64 MiB; /x/3 can be read",
            False,
        ),
    ],
)
def test_a_node_that_does_not_separate_jobs(changes, said, of_limits):
    assert isolated(changes) == ("fail", "a task without GPUs of job 7: " + said, of_limits)


@pytest.mark.parametrize(
    "changes, said",
    [
        # A host that is a container: its engine denies all devices.
        ({"here": ["EPERM"]}, "the job cannot open its own GPU either"),
        ({"memory": ""}, "it could not try to get memory"),
        ({"missing": ["/run/trainyard/jobs"]}, "the job has no folder in /run/trainyard/jobs"),
    ],
)
def test_what_was_not_measured_does_not_pass(changes, said):
    assert isolated(changes) == ("not_made", "a task without GPUs of job 7: " + said, False)


@pytest.mark.parametrize(
    "job, said",
    [
        (None, "no result"),
        (a_job(), "no result"),
        (a_job(SEEN), "no result"),
        (
            a_job(dict(SEEN, plain={"failed": "exit code 1"})),
            "the task without GPUs failed: exit code 1",
        ),
    ],
)
def test_a_job_that_tells_nothing_of_others(job, said):
    assert probe.isolation(ASKED, job, "no result") == {
        "verdict": "not_made",
        "found": said,
        "of_limits": False,
    }
