"""An image with TensorFlow and without PyTorch, on two hosts: Horovod compiled for it, checked,
measured with, and trained with.
"""

from __future__ import annotations

import re

import pytest
from whole_cluster import WholeCluster

pytestmark = [pytest.mark.acceptance, pytest.mark.scenario]

# The last one that the published Horovod runs with.
IMAGE = {
    "training_image_requires": {
        "frameworks": ["tensorflow"],
        "controllers": ["gloo"],
        "tensor_operations": ["gloo"],
    },
    "training_image_python_packages": ["tensorflow-cpu==2.15.1", "numpy==1.26.4"],
}
# As slow as two cores that have other work: whether it measures is asked here, not how fast the
# network is.
ASKED = {
    "verify_bandwidth_min_gb_s": 0.001,
    "verify_bandwidth_peer_fraction": 0.02,
    "verify_bandwidth_drop_percent": 100,
}
# In the form of Keras' file, which the cluster cannot download: the example's own digits, of which
# half are enough.
MNIST = """import sys
sys.argv = ["x"]
import example_tools, numpy
parts = example_tools.digits("generated")[1:]
images = [numpy.kron(numpy.array(part).reshape(-1, 8, 8), numpy.ones((1, 3, 3))) for part in parts[::2]]
images = [(numpy.pad(part, ((0, 0), (2, 2), (2, 2))) * 255).astype("uint8") for part in images]
numpy.savez("/data1/share/mnist.npz", x_train=images[0], y_train=parts[1], x_test=images[1], y_test=parts[3])
"""
# Of five steps each: four ranks share 1440 images.
EPOCHS = 24
KERAS = "python3 /data1/share/.trainyard/examples/mnist_keras.py --data /data1/share/mnist.npz --epochs %d"
# The scalars of a folder of logs, as TensorBoard reads them: tag, steps, last value.
SCALARS = """import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator, TENSORS
from tensorboard.util.tensor_util import make_ndarray
found = EventAccumulator(sys.argv[1], size_guidance={TENSORS: 0}).Reload()
for tag in found.Tags()["tensors"]:
    if tag.startswith("epoch_"):
        events = found.Tensors(tag)
        print(tag, [event.step for event in events], float(make_ndarray(events[-1].tensor_proto)))
"""
EXAMPLE = (
    "python3 /data1/share/.trainyard/examples/digits_tensorflow.py --data generated --epochs %d"
)


@pytest.fixture(name="cluster", scope="module")
def fixture_cluster():
    with WholeCluster("tensorflow", "172.30.72.0/24").made("--extra-vars", IMAGE) as cluster:
        yield cluster


def test_horovod_is_built_for_tensorflow_alone(cluster):
    table = cluster.inside(cluster.peer, "horovodrun --check-build").out
    # Horovod 0.28.1 ticks PyTorch wherever `import horovod.torch` raises nothing, which it does
    # without its compiled part too.
    assert re.findall(r"\[X\] (\w+)", table) == ["TensorFlow", "PyTorch", "Gloo", "Gloo"]
    assert (
        cluster.inside(
            cluster.peer, 'python3 -c "import horovod.torch as it; it.init()"', check=False
        ).code
        != 0
    )
    assert cluster.inside(cluster.peer, 'python3 -c "import torch"', check=False).code != 0


def test_verify_measures_with_horovod(cluster):
    run = cluster.playbook("playbooks/verify.yml", "--extra-vars", {**IMAGE, **ASKED})
    report = cluster.last_report()
    bandwidth = report["bandwidth"]
    assert run.code == 0 and (bandwidth["tool"], bandwidth["collective"]) == ("horovod", "horovod")
    assert [(each["id"], each["ranks"], each["passed"]) for each in bandwidth["runs"]] == [
        ("host:%s" % cluster.head, 2, True),
        ("host:%s" % cluster.peer, 2, True),
        ("cluster", 2, True),
    ]
    assert {row["in_place"]["wrong"] for each in bandwidth["runs"] for row in each["rows"]} == {0}
    verdicts = {check["id"]: check["verdict"] for check in report["checks"]}
    assert [
        verdicts[name] for name in ("horovod-build", "bandwidth-host", "bandwidth-cluster")
    ] == ["pass"] * 3


@pytest.mark.parametrize("slots", [1, 2])
def test_two_hosts_train_together(cluster, slots):
    run = cluster.playbook(
        "playbooks/train.yml",
        "--extra-vars",
        {**IMAGE, "cluster_slots": slots, "train_command": EXAMPLE % 6},
    )
    assert run.code == 0
    result = cluster.last_job()
    assert [(rank["host"], rank["slot"], rank["exit_code"]) for rank in result["ranks"]] == [
        (host, slot, 0) for host in cluster.hosts for slot in range(slots)
    ]
    assert len({rank["checksum"] for rank in result["ranks"]}) == 1 and re.fullmatch(
        "[0-9a-f]{64}", result["ranks"][0]["checksum"]
    )
    assert result["metrics"]["accuracy"] >= 0.95


@pytest.fixture(name="mnist", scope="module")
def _mnist(cluster):
    # Beside the program: playbook train places the examples, and may not have run yet.
    tools = (cluster.root / "roles/train/files/examples/example_tools.py").read_text(
        encoding="utf-8"
    )
    for name, text in (("mnist", MNIST), ("scalars", SCALARS), ("example_tools", tools)):
        cluster.on(cluster.head, "cat > /data1/share/%s.py << 'END'\n%s\nEND" % (name, text))
    cluster.inside(cluster.head, "python3 /data1/share/mnist.py")


def kept(cluster, checkpoints, logs, epochs):
    """What a job has left for its person: a checkpoint after each epoch, and what TensorBoard
    shows.
    """
    assert cluster.on(cluster.peer, "ls -v %s" % checkpoints).out.split() == [
        "checkpoint-%d.h5" % epoch for epoch in range(1, epochs + 1)
    ]
    told = {
        line.split()[0]: line
        for line in cluster.inside(
            cluster.peer, "python3 /data1/share/scalars.py %s/train" % logs
        ).out.splitlines()
    }
    assert {"epoch_loss", "epoch_accuracy"} <= set(told) and str(list(range(epochs))) in told[
        "epoch_loss"
    ]
    return float(told["epoch_loss"].split()[-1])


def test_keras_trains_mnist_from_a_file(cluster, mnist):
    """Source 002, second half."""
    run = cluster.playbook(
        "playbooks/train.yml",
        "--extra-vars",
        {**IMAGE, "cluster_slots": 2, "train_command": KERAS % EPOCHS},
    )
    assert run.code == 0
    result = cluster.last_job()
    assert [(rank["host"], rank["slot"], rank["exit_code"]) for rank in result["ranks"]] == [
        (host, slot, 0) for host in cluster.hosts for slot in (0, 1)
    ]
    assert (
        len({rank["checksum"] for rank in result["ranks"]}) == 1
        and result["metrics"]["accuracy"] >= 0.9
    )
    folder = "/data1/share/.trainyard/jobs/%s" % result["job_id"]
    assert kept(cluster, folder + "/checkpoints", folder + "/tensorboard", EPOCHS) == pytest.approx(
        result["metrics"]["training_loss"], abs=1e-3
    )


def test_the_line_of_the_guide(cluster, mnist):
    """As a person types it, with the number of the job in the folders: horovodrun -hostfile, -p and
    --network-interface.
    """
    lines = "".join("%s slots=2\n" % cluster.address[host] for host in cluster.hosts)
    cluster.on(cluster.head, "printf '%s' > /data1/share/ib_config" % lines)
    told = cluster.inside(
        cluster.head,
        "cd /data1/share && DLWS_JOB_ID=17 && horovodrun -np 4 -hostfile /data1/share/ib_config -p 12345 "
        "--network-interface eth0 %s --checkpoints checkpoints/$DLWS_JOB_ID "
        "--tensorboard tensorboard/$DLWS_JOB_ID 2>&1" % (KERAS % 2),
    ).out
    assert "4 ranks, /data1/share/mnist.npz: 1440 images to train on, 360 to test on" in told
    assert (
        len(set(re.findall("parameters sha256 ([0-9a-f]{64})", told))) == 1
        and len(re.findall("rank [0-3] of 4 is done", told)) == 4
    )
    kept(cluster, "/data1/share/checkpoints/17", "/data1/share/tensorboard/17", 2)


@pytest.mark.parametrize(
    "path, said",
    [
        ("/data1/share/none.npz", "No such file"),
        ("/data1/share/mnist.py", "is not a file such as mnist.npz"),
    ],
)
def test_a_file_that_is_not_mnist(cluster, mnist, path, said):
    told = cluster.inside(
        cluster.head, "%s 2>&1" % (KERAS % 1).replace("/data1/share/mnist.npz", path), check=False
    )
    assert (
        told.code == 1
        and said in told.out
        and "Copy Keras' mnist.npz to the share once" in told.out
    )


def test_keras_that_averages_nothing_is_found_out(cluster, mnist):
    run = cluster.playbook(
        "playbooks/train.yml",
        "--extra-vars",
        {**IMAGE, "train_command": KERAS % 1 + " --no-averaging"},
    )
    assert run.code == 2 and "do not have the same parameters" in run.text


def test_ranks_that_average_nothing_are_found_out(cluster):
    """To see that the equal parameters above come from the averaging."""
    run = cluster.playbook(
        "playbooks/train.yml",
        "--extra-vars",
        {**IMAGE, "train_command": EXAMPLE % 1 + " --no-averaging"},
    )
    assert run.code == 2 and "do not have the same parameters" in run.text
    assert len({rank["checksum"] for rank in cluster.last_job()["ranks"]}) == 2
