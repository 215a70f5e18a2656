"""Real training runs on both hosts, and runs that only seem to be correct.

CI has each launcher's good run, and of each kind of fault one. A run takes half a minute of both
cores.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time

import pytest
from whole_cluster import FOR_EVER


def train(cluster, **variables):
    return cluster.playbook("playbooks/train.yml", "-e", variables)


EXAMPLES = "/data1/share/.trainyard/examples"
# The training of two ranks in two epochs, in one process without a launcher, with the batch size
# and learning rate of both ranks together.
ALONE = (
    "python3 %s/digits_torchrun.py --data generated --epochs 2 --batch-size 64 --learning-rate 0.1"
    % EXAMPLES
)
COMPARE = """import torch
one, two = (torch.load(path)["model"] for path in ("/tmp/alone/checkpoint.pt", "%s/checkpoint.pt"))
print(max((one[name] - two[name]).abs().max().item() for name in one))"""


HOROVODRUN_AND_TORCHRUN = [
    ("horovodrun", "digits_horovod.py"),
    pytest.param("torchrun", "digits_torchrun.py", marks=pytest.mark.acceptance),
]


def difference_from_one_process(cluster, result):
    """Return the largest difference between the parameters of a job with two ranks and those of one
    process.
    """
    cluster.inside(
        cluster.head,
        "mkdir -p /tmp/alone && cd /tmp/alone && { test -f checkpoint.pt || %s; }" % ALONE,
    )
    return float(
        cluster.inside(
            cluster.head,
            "python3 -c '%s'" % (COMPARE % ("/data1/share/.trainyard/jobs/%s" % result["job_id"])),
        ).out
    )


@pytest.mark.parametrize("launcher", ["horovodrun", "torchrun"])
def test_two_hosts_train_together(cluster, launcher):
    run = train(cluster, train_launcher=launcher)
    assert run.code == 0
    result = cluster.last_job()
    assert result["launcher"] == launcher and result["world_size"] == 2
    assert [
        (rank["rank"], rank["host"], rank["slot"], rank["exit_code"]) for rank in result["ranks"]
    ] == [(0, cluster.head, 0, 0), (1, cluster.peer, 0, 0)]
    # The ranks ran on two machines and in two containers, with the same parameters.
    assert [rank["hostname"] for rank in result["ranks"]] == list(cluster.hosts)
    assert [rank["container_id"][:12] for rank in result["ranks"]] == [
        cluster.inspect(host)["Id"][:12] for host in cluster.hosts
    ]
    assert len({rank["checksum"] for rank in result["ranks"]}) == 1 and re.fullmatch(
        "[0-9a-f]{64}", result["ranks"][0]["checksum"]
    )
    assert result["metrics"]["accuracy"] >= 0.95
    folder = "/data1/share/.trainyard/jobs/%s" % result["job_id"]
    written = cluster.on(cluster.peer, "ls %s" % folder).out.split()
    assert {"spec.json", "result.json", "rank.0.log", "rank.1.log", "checkpoint.pt"} <= set(written)
    # The operator saw the output of the ranks while they worked.
    assert "test accuracy" in run.text
    assert cluster.left_alive(result["job_id"]) == {host: [] for host in cluster.hosts}


@pytest.fixture(name="one_idle_gpu", scope="module")
def fixture_one_idle_gpu(cluster):
    """Install a fake nvidia-smi with two GPUs in all containers, because the hosts have none.

    The first GPU works, the second stays idle.
    """
    query = "--query-gpu=utilization.gpu,memory.used,memory.total,utilization.memory --format=csv,noheader,nounits"
    replay = '#!/bin/sh\ntest "$*" = "%s" || exit 9\n' % query
    replay += "echo 97, 900, 24576, 40\necho 0, 1, 24576, 0\n"
    for host in cluster.hosts:
        subprocess.run(
            [
                "docker",
                "exec",
                "-i",
                host,
                "docker",
                "exec",
                "-i",
                cluster.container,
                "sh",
                "-c",
                "cat > /usr/local/bin/nvidia-smi && chmod 755 /usr/local/bin/nvidia-smi",
            ],
            input=replay,
            text=True,
            check=True,
        )
    yield
    for host in cluster.hosts:
        cluster.inside(host, "rm /usr/local/bin/nvidia-smi")


@pytest.mark.acceptance
@pytest.mark.usefixtures("one_idle_gpu")
@pytest.mark.parametrize("launcher", ["horovodrun", "torchrun"])
def test_two_ranks_a_host_on_chosen_gpus(cluster, launcher):
    """Two slots on each of two hosts: the devices of every rank, and the observations during the
    job.
    """
    before = cluster.moved_bytes()
    example = "/data1/share/.trainyard/examples/digits_%s.py" % (
        "torchrun" if launcher == "torchrun" else "horovod"
    )
    run = train(
        cluster,
        train_launcher=launcher,
        cluster_slots=2,
        train_environment={"CUDA_VISIBLE_DEVICES": "0,1"},
        train_master_port=29517,
        train_command='sh -c "echo devices $CUDA_VISIBLE_DEVICES port ${MASTER_PORT:-none}; exec python3 %s --epochs 2"'
        % example,
    )
    moved = cluster.moved_bytes()
    assert run.code == 0
    result = cluster.last_job()
    assert [
        (rank["rank"], rank["host"], rank["slot"], rank["exit_code"]) for rank in result["ranks"]
    ] == [
        (0, cluster.head, 0, 0),
        (1, cluster.head, 1, 0),
        (2, cluster.peer, 0, 0),
        (3, cluster.peer, 1, 0),
    ]
    assert len({rank["checksum"] for rank in result["ranks"]}) == 1
    folder = "/data1/share/.trainyard/jobs/%s" % result["job_id"]
    told = cluster.on(cluster.peer, "cat %s/rank.*.log" % folder).out
    assert (
        len(
            re.findall(
                "^devices 0,1 port %s$" % ("29517" if launcher == "torchrun" else "none"),
                told,
                re.MULTILINE,
            )
        )
        == 4
    )
    if launcher == "horovodrun":
        lines = ["%s slots=2" % cluster.address[host] for host in cluster.hosts]
        assert cluster.on(cluster.peer, "cat %s/hosts" % folder).out.splitlines() == lines
    assert list(result["versions"]) == ["torch" if launcher == "torchrun" else "horovod"]
    for host in cluster.hosts:
        gpus, fabric = result["gpus"][host], result["fabric"][host]
        assert (gpus["requested"], gpus["busy"], gpus["idle"], gpus["peak_utilization"]) == (
            2,
            1,
            [1],
            [97, 0],
        )
        assert "host %s: GPU 1 (0 %% at most) stayed idle" % host in run.text
        # The counters of the cards over the complete play, which sends more than the job.
        assert fabric["interface"] == "eth0" and fabric["rdma"] is False
        for way in ("sent", "received"):
            assert 100000 < fabric[way + "_bytes"] < moved[host, way] - before[host, way]
    assert cluster.left_alive(result["job_id"]) == {host: [] for host in cluster.hosts}


def test_more_ranks_than_chosen_gpus_are_refused(cluster):
    run = train(cluster, cluster_slots=2, train_environment={"CUDA_VISIBLE_DEVICES": "0"})
    assert run.code == 2
    assert (
        "CUDA_VISIBLE_DEVICES: '0' names 1 GPU, but host %s has 2 slots" % cluster.head
        in " ".join(run.text.split())
    )


@pytest.mark.parametrize("launcher, example", HOROVODRUN_AND_TORCHRUN)
def test_ranks_that_do_not_average_are_found_out(cluster, launcher, example):
    run = train(
        cluster,
        train_launcher=launcher,
        train_command="python3 %s/%s --data generated --epochs 2 --no-averaging"
        % (EXAMPLES, example),
    )
    assert run.code == 2
    result = cluster.last_job()
    assert [rank["exit_code"] for rank in result["ranks"]] == [0, 0]
    assert len({rank["checksum"] for rank in result["ranks"]}) == 2
    assert "do not have the same parameters" in run.text
    assert difference_from_one_process(cluster, result) > 0.01


@pytest.mark.parametrize("launcher, example", HOROVODRUN_AND_TORCHRUN)
def test_gradients_are_averaged_as_one_process_with_the_whole_batch_would(
    cluster, launcher, example
):
    run = train(
        cluster,
        train_launcher=launcher,
        train_command="python3 %s/%s --data generated --epochs 2" % (EXAMPLES, example),
    )
    assert run.code == 0
    # Only the order of sums differs. With more epochs this difference would grow.
    assert difference_from_one_process(cluster, cluster.last_job()) < 1e-4


# As the files of cifar-10-python.tar.gz, with 16 images each.
CIFAR10 = """import numpy, os, pickle
os.makedirs("/data1/share/cifar10/cifar-10-batches-py")
for number, name in enumerate(["test_batch"] + ["data_batch_%d" % part for part in range(1, 6)]):
    images = numpy.random.RandomState(number).randint(0, 256, (16, 3072), dtype=numpy.uint8)
    with open("/data1/share/cifar10/cifar-10-batches-py/" + name, "wb") as stream:
        pickle.dump({b"data": images, b"labels": [image % 10 for image in range(16)]}, stream, protocol=2)"""


@pytest.mark.acceptance
def test_resnet18_trains_on_cifar10_and_continues_where_it_was(cluster):
    command = (
        "python3 %s/resnet18_ddp.py --width 8 --batch-size 16 --output-dir /data1/share/resnet18 --resume "
        % EXAMPLES
    )
    cluster.inside(cluster.head, "python3 -c '%s'" % CIFAR10)
    try:
        runs = [
            (
                train(cluster, train_launcher="torchrun", train_command=command + more),
                cluster.last_job(),
            )
            for more in ("--random-images 64 --epochs 1", "--data /data1/share/cifar10 --epochs 2")
        ]
        left = cluster.on(cluster.peer, "ls /data1/share/resnet18").out.split()
    finally:
        cluster.on(cluster.head, "rm -rf /data1/share/cifar10 /data1/share/resnet18")
    assert [run.code for run, result in runs] == [0, 0]
    assert [
        (result["metrics"]["first_epoch"], result["metrics"]["epoch"]) for run, result in runs
    ] == [(1, 1), (2, 2)]
    assert [len({rank["checksum"] for rank in result["ranks"]}) for run, result in runs] == [1, 1]
    assert "80 images to train on, 16 to test on" in runs[1][0].text
    assert left == ["checkpoint.pt"]


@pytest.mark.acceptance
def test_unet3d_reports_its_dice(cluster):
    options = "--size 16 --channels 4 8 16 --volumes 16 --epochs 3 --learning-rate 0.01"
    run = train(cluster, train_command="python3 %s/unet3d_horovod.py %s" % (EXAMPLES, options))
    assert run.code == 0
    result = cluster.last_job()
    assert [rank["host"] for rank in result["ranks"]] == list(cluster.hosts) and len(
        {rank["checksum"] for rank in result["ranks"]}
    ) == 1
    assert 0.45 < result["metrics"]["dice"] <= 1 and "test Dice" in run.text


CURVE = """import horovod.torch, tensorboardX, tqdm
horovod.torch.init()
rank = horovod.torch.rank()
writer = tensorboardX.SummaryWriter("/data1/share/curves/rank%d" % rank)
for step in tqdm.tqdm(range(3), desc="rank %d" % rank):
    writer.add_scalar("loss_of_rank_%d" % rank, 1 / (step + 1), step)
writer.close()
"""


@pytest.mark.acceptance
def test_ranks_write_curves_with_tensorboardx_and_show_progress_with_tqdm(cluster):
    cluster.on(cluster.head, "mkdir -p /data1/share/curves")
    cluster.on(cluster.head, "cat > /data1/share/curves/curve.py <<'EOF'\n%sEOF" % CURVE)
    try:
        run = train(cluster, train_command="python3 /data1/share/curves/curve.py")
        kept = [
            cluster.on(
                cluster.peer, "grep -c loss_of_rank_%d /data1/share/curves/rank%d/*" % (n, n)
            )
            for n in (0, 1)
        ]
    finally:
        cluster.on(cluster.head, "rm -rf /data1/share/curves")
    assert run.code == 0
    assert [int(found.out) > 0 for found in kept] == [True, True]
    assert all("rank %d: 100%%" % n in run.text for n in (0, 1))


@pytest.mark.acceptance
def test_ranks_find_each_other_although_their_hostname_is_a_loopback_address(cluster):
    """Ubuntu's installer writes 127.0.1.1.

    Horovod's process sets announced that address, and no other host can reach it.
    """
    for host in cluster.hosts:
        line = "127.0.1.1 %s" % cluster.inside(host, "hostname").out.strip()
        # Docker has mounted the file, so that it can be written and not replaced.
        cluster.inside(
            host, "cp /etc/hosts /tmp/hosts; { echo %s; cat /tmp/hosts; } > /etc/hosts" % line
        )
    try:
        run = train(cluster)
        result = cluster.last_job()
    finally:
        for host in cluster.hosts:
            cluster.inside(host, "cat /tmp/hosts > /etc/hosts; rm /tmp/hosts")
    assert run.code == 0
    assert [rank["exit_code"] for rank in result["ranks"]] == [0, 0]


@pytest.mark.acceptance
def test_horovod_s_own_examples_come_from_the_archive_of_their_tag(cluster):
    """An archive with the layout of the tag's, from a server on the head: only its examples are
    installed on the share, once.
    """
    tree = "/tmp/served/horovod-0.28.1"
    cluster.on(
        cluster.head,
        "mkdir -p {0}/examples/pytorch {0}/docs/examples && echo 'print(\"its own\")' > {0}/examples/pytorch/hello.py"
        " && touch {0}/docs/examples/other.py && tar -czf /tmp/served/v0.28.1.tar.gz -C /tmp/served horovod-0.28.1".format(
            tree
        ),
    )
    digest = cluster.on(cluster.head, "sha256sum /tmp/served/v0.28.1.tar.gz").out.split()[0]
    given = {
        "train_horovod_examples_version": "0.28.1",
        "train_command": "python3 %s/horovod-0.28.1/pytorch/hello.py" % EXAMPLES,
    }
    with cluster.serving("/tmp/served") as address:
        given["train_horovod_examples_url"] = address + "/v0.28.1.tar.gz"
        wrong = train(cluster, **dict(given, train_horovod_examples_checksum="sha256:" + "0" * 64))
        run = train(cluster, **dict(given, train_horovod_examples_checksum="sha256:" + digest))
    assert wrong.code == 2 and "checksum" in wrong.text
    assert run.code == 0 and run.text.count("its own") >= 2
    assert cluster.on(
        cluster.peer, "cd %s/horovod-0.28.1 && find . -type f | sort" % EXAMPLES
    ).out.split() == ["./.trainyard-examples", "./pytorch/hello.py"]
    # The server no longer runs, so installed examples are not downloaded again.
    assert (
        train(cluster, **dict(given, train_horovod_examples_checksum="sha256:" + digest)).code == 0
    )


@pytest.mark.acceptance
def test_both_ranks_on_one_host_are_found_out(cluster):
    """The head's ssh connects to itself for the peer's address.

    The job runs, but no data crosses the network.
    """
    config = "/etc/trainyard/ssh/ssh_config"
    astray = "Host %s\\n  HostName %s\\n" % (
        cluster.address[cluster.peer],
        cluster.address[cluster.head],
    )
    cluster.on(
        cluster.head,
        "cp -p %s /root/ssh_config.kept && printf '%s' | cat - /root/ssh_config.kept > %s"
        % (config, astray, config),
    )
    try:
        run = train(
            cluster,
            train_command="python3 /data1/share/.trainyard/examples/digits_horovod.py --epochs 2",
        )
        result = cluster.last_job()
    finally:
        cluster.on(
            cluster.head, "cat /root/ssh_config.kept > %s && rm /root/ssh_config.kept" % config
        )
    assert run.code == 2
    assert [rank["host"] for rank in result["ranks"]] == [cluster.head, cluster.head]
    assert "rank 1 belongs on host %s, but ran on %s" % (cluster.peer, cluster.head) in run.text


@pytest.mark.parametrize(
    "launcher", ["horovodrun", pytest.param("torchrun", marks=pytest.mark.acceptance)]
)
def test_a_failed_rank_fails_the_job_and_leaves_none_alive(cluster, launcher):
    """Rank 1 fails with its own exit code while rank 0 sleeps."""
    command = 'sh -c "test $FAILS_ON != $(hostname) || exit 7; sleep 1000"'
    run = train(
        cluster,
        train_launcher=launcher,
        train_command=command,
        train_environment={"FAILS_ON": cluster.peer},
    )
    assert run.code == 2
    result = cluster.last_job()
    assert result["ranks"][1]["exit_code"] == 7 and result["exit_code"] == 7
    assert cluster.peer in run.text and "exit code 7" in run.text
    assert cluster.left_alive(result["job_id"]) == {host: [] for host in cluster.hosts}


@pytest.mark.acceptance
def test_the_operator_sees_each_line_within_5_seconds(cluster):
    job = cluster.start(
        "playbooks/train.yml",
        "-e",
        {"train_command": FOR_EVER, "train_timeout": 25},
        output=subprocess.PIPE,
    )
    late = [
        time.time() - float(seen.group(1))
        for seen in (re.search(r"\[\d \S+\] (\d+\.\d+)$", line.rstrip()) for line in job.stdout)
        if seen
    ]
    assert job.wait() == 2
    assert cluster.last_job()["exit_code"] == 124
    assert len(late) > 12 and max(late) < 5


def kill_operator(cluster, job_id, operator):
    os.killpg(operator.pid, signal.SIGKILL)


def press_ctrl_c(cluster, job_id, operator):
    os.killpg(operator.pid, signal.SIGINT)


def kill_rank(cluster, job_id, operator):
    # A process may have ended since it was listed.
    cluster.on(
        cluster.peer,
        "kill -KILL %s"
        % " ".join(path.split("/")[2] for path in cluster.left_alive(job_id)[cluster.peer]),
        check=False,
    )


def kill_runner(cluster, job_id, operator):
    cluster.on(
        cluster.head, "systemctl kill --signal=KILL --kill-whom=main trainyard-job-%s" % job_id
    )


@pytest.mark.parametrize(
    "launcher", ["horovodrun", pytest.param("torchrun", marks=pytest.mark.acceptance)]
)
@pytest.mark.parametrize(
    "kill, exit_code",
    [
        (press_ctrl_c, 143),
        *(
            pytest.param(*entry, marks=pytest.mark.acceptance)
            for entry in ((kill_operator, 143), (kill_rank, None), (kill_runner, 143))
        ),
    ],
)
def test_no_rank_outlives_its_job(cluster, kill, exit_code, launcher):
    # An ID is used once, also by several runs of the tests.
    job_id = "%s-%s-%d" % (launcher, kill.__name__.replace("_", "-"), time.time())
    log = cluster.state / ("%s.log" % job_id)
    with open(log, "w", encoding="utf-8") as output:
        operator = cluster.start(
            "playbooks/train.yml",
            "-e",
            {"train_command": FOR_EVER, "train_job_id": job_id, "train_launcher": launcher},
            output=output,
        )
    cluster.wait(
        "both ranks",
        120,
        lambda: (
            set(
                re.findall(r"\[(\d) \S+\] \d+\.\d+$", log.read_text(encoding="utf-8"), re.MULTILINE)
            )
            == {"0", "1"}
        ),
    )
    assert all(cluster.left_alive(job_id).values())
    kill(cluster, job_id, operator)
    result = "/data1/share/.trainyard/jobs/%s/result.json" % job_id
    # 30 s of lease, then a SIGTERM with a limit of 2 s. Other scenarios use the cores meanwhile.
    cluster.wait(
        "result.json",
        60,
        lambda: cluster.on(cluster.peer, "cat %s" % result, check=False).code == 0,
    )
    alive = cluster.left_alive(job_id)
    told = json.loads(cluster.on(cluster.head, "cat %s" % result).out)
    assert alive == {host: [] for host in cluster.hosts}, "\n".join(
        told["problems"]
        + [cluster.on(host, "ps -eo pid,ppid,stat,etimes,args").out for host in alive]
    )
    assert told["exit_code"] and told["problems"]
    assert exit_code in (None, told["exit_code"])
    assert operator.wait(60) != 0
    assert (
        cluster.on(cluster.head, "systemctl is-active trainyard-job-%s" % job_id, check=False).code
        != 0
    )
