"""A job's hosts, its ranks, and the GPUs that it requests."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

from ansible_collections.trainyard.gpu.plugins.plugin_utils import _train_plan


def plan(*members, devices=None, gpus=None):
    environment = {} if devices is None else {"CUDA_VISIBLE_DEVICES": devices}
    return _train_plan.train_plan(
        {
            "members": list(members),
            "gpus": {"a": 8, "b": 8} if gpus is None else gpus,
            "npus": {},
        },
        {"environment": environment, "launcher": ""},
    )


def member(name="a", slots=8, counted=True):
    return {"name": name, "slots": slots, "slots_counted": counted, "address": "10.0.0.1"}


def test_every_rank_requests_a_gpu():
    told = plan(member(), member("b", 4, counted=False))
    assert told == {
        "hosts": [member(), member("b", 4, counted=False)],
        "problems": [],
        "watch": {"a": {"count": 8, "devices": []}, "b": {"count": 4, "devices": []}},
    }
    assert plan(member(slots=2, counted=False), gpus={})["watch"] == {
        "a": {"count": 0, "devices": []}
    }


@pytest.mark.parametrize(
    "devices, ranks",
    [
        ("0,1", 2),
        ("3", 1),
        (3, 1),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,GPU-1", 2),
        ("0,1,2,3,4,5,6,7", 8),
    ],
)
def test_counted_slots_follow_the_chosen_gpus(devices, ranks):
    """P4.6: CUDA_VISIBLE_DEVICES=0,1 with two processes on a host."""
    told = plan(member(), devices=devices)
    assert told["hosts"][0]["slots"] == ranks and told["problems"] == []
    assert told["watch"]["a"] == {"count": ranks, "devices": str(devices).split(",")}


def test_slots_of_the_inventory_must_fit():
    assert plan(member(slots=2, counted=False), devices="4,5")["problems"] == []
    # A rank may have several.
    assert plan(member(slots=1, counted=False), devices="4,5")["watch"]["a"]["count"] == 2
    assert plan(member(slots=4, counted=False), devices="0,1")["problems"] == [
        "CUDA_VISIBLE_DEVICES: '0,1' names 2 GPUs, but host a has 4 slots; name as many GPUs as there are ranks on a host, or set cluster_slots to 2"
    ]
    assert plan(member(slots=2, counted=False), devices="0")["problems"] == [
        "CUDA_VISIBLE_DEVICES: '0' names 1 GPU, but host a has 2 slots; name as many GPUs as there are ranks on a host, or set cluster_slots to 1"
    ]


def test_a_host_without_gpus_keeps_its_rank():
    assert plan(member(slots=1), devices="0,1", gpus={})["hosts"][0]["slots"] == 1


@pytest.mark.parametrize("devices", ["", "-1", "NoDevFiles"])
def test_hidden_gpus_are_not_requested(devices):
    told = plan(member(slots=8), devices=devices)
    assert (
        told["problems"] == []
        and told["watch"]["a"]["count"] == 0
        and told["hosts"][0]["slots"] == 8
    )


def test_a_gpu_that_the_host_lacks():
    assert plan(member(), devices="0,8")["problems"] == [
        "CUDA_VISIBLE_DEVICES: '0,8' names GPU 8, but host a has 8, numbered from 0; name those that it has"
    ]


@pytest.mark.parametrize(
    "devices, problem",
    [
        ("0, 1", "is not a list of GPUs"),
        ("0,", "is not a list of GPUs"),
        ("all", "is not a list of GPUs"),
        ("0;1", "is not a list of GPUs"),
        ("0,0", "names a GPU twice"),
    ],
)
def test_what_cuda_does_not_take(devices, problem):
    told = plan(member(), devices=devices)
    assert (
        len(told["problems"]) == 1
        and "'%s'" % devices in told["problems"][0]
        and problem in told["problems"][0]
    )


def npu_plan(*members, devices=None, npus=None):
    environment = {} if devices is None else {"ASCEND_RT_VISIBLE_DEVICES": devices}
    return _train_plan.train_plan(
        {
            "members": list(members),
            "gpus": {},
            "npus": {"a": 8, "b": 8} if npus is None else npus,
        },
        {"environment": environment, "launcher": "mindspore"},
    )


@pytest.mark.parametrize("devices, slots", [(None, 8), ("4,5,6,7", 4), (4, 1)])
def test_counted_slots_follow_the_chosen_npus(devices, slots):
    told = npu_plan(member(), member("b"), devices=devices)
    assert told["problems"] == [] and [host["slots"] for host in told["hosts"]] == [slots, slots]
    # nvidia-smi is not asked for NPUs.
    assert {each["count"] for each in told["watch"].values()} == {0}


@pytest.mark.parametrize(
    "devices, problem",
    [
        ("4-7", "is not a list of NPUs"),
        ("4, 5", "is not a list of NPUs"),
        ("4,4", "is not a list of NPUs"),
        ("7,8", "names NPU 8, but host a has 8, numbered from 0"),
    ],
)
def test_what_is_not_a_choice_of_npus(devices, problem):
    told = npu_plan(member(), devices=devices)
    assert (
        len(told["problems"]) == 1
        and told["problems"][0].startswith("ASCEND_RT_VISIBLE_DEVICES: '%s' " % devices)
        and problem in told["problems"][0]
    )


def test_hosts_need_as_many_ranks_as_each_other():
    """HCCL and msrun hang otherwise, or number ranks twice."""
    assert npu_plan(member(), member("b", 4, counted=False), member("c", 0))["problems"] == [
        "cluster_slots: 8 on a, 4 on b, but the launcher mindspore needs as many ranks on each host; set it to one number for all hosts, or leave out hosts "
        "with --limit"
    ]
    assert npu_plan(member(slots=2, counted=False), devices="4,5,6,7")["problems"] == [
        "ASCEND_RT_VISIBLE_DEVICES: '4,5,6,7' names 4 NPUs, but host a has 2 slots; name one NPU for each rank, or set cluster_slots to 4"
    ]
    # On CPUs: slots of the inventory.
    assert (
        npu_plan(member(slots=2, counted=False), member("b", 2, counted=False), npus={})["problems"]
        == []
    )
    # Other launchers have nothing to do with NPUs.
    assert plan(member(), member("b", 4))["problems"] == []


def test_hosts_without_a_slot_request_nothing():
    assert plan(member(slots=0), devices="0")["watch"] == {}


@pytest.mark.parametrize(
    "timeout, limit", [(0, []), (1, ["--time=6"]), (3600, ["--time=65"]), (3601, ["--time=66"])]
)
def test_a_job_waits_in_the_queue_for_its_hosts(timeout, limit):
    hosts = [
        {"name": "gpu-a", "slots": 8},
        {"name": "front", "slots": 0},
        {"name": "gpu-b", "slots": 1},
    ]
    words = _train_plan.queue_command(hosts, "night", timeout, ["--qos=high"])
    # Slurm refuses jobs of root.
    first = words.index("salloc")
    assert words[:first] == [
        "setpriv",
        "--reuid=slurm",
        "--regid=slurm",
        "--init-groups",
        "--reset-env",
    ]
    assert words[first + 1 : -3] == [
        "--account=trainyard-train",
        "--job-name=trainyard-night",
        "--nodes=2",
        "--nodelist=gpu-a,gpu-b",
        "--exclusive",
        "--kill-command=USR1",
        *limit,
        "--qos=high",
    ]
    done = subprocess.run(words[-3:], input=b"\n", stdout=subprocess.PIPE, check=True, timeout=1)
    assert done.stdout == b"granted\n"


def held(signals=()):
    """The command that keeps the hosts, seconds it ran on after its input ended, and its code."""
    words = _train_plan.queue_command([{"name": "gpu-a", "slots": 1}], "night", 0, [])[-3:]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as command:
        assert command.stdout.readline() == b"granted\n"
        began = time.monotonic()
        command.stdin.close()
        for each in signals:
            command.send_signal(each)
        code = command.wait(20)
    return time.monotonic() - began, code


def test_the_hosts_of_a_killed_runner_are_kept_until_its_sigterm_has_come():
    # A salloc that gets SIGTERM while it gives the hosts back keeps them for ever.
    seconds, code = held([signal.SIGTERM])
    assert code == 0 and 2 <= seconds < 10


def test_slurm_ends_what_keeps_the_hosts_at_once():
    seconds, code = held([signal.SIGUSR1])
    assert code == -signal.SIGUSR1 and seconds < 2
