"""Two hosts whose image has TensorFlow, at first without PyTorch, then with it: Horovod compiled
for what the image has, checked, measured with, and trained with.

The archive of Horovod's tag has examples that the one of the package index does not have.
TRAINYARD_HOROVOD_ARCHIVE names the file of tag v0.28.1, whose pytorch_mnist.py is run then.
Otherwise a program of this file takes its place in an archive of the same form.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import tarfile
from pathlib import Path

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
# torchvision is that of torch 2.13.
BOTH = {
    "training_image_requires": {
        **IMAGE["training_image_requires"],
        "frameworks": ["tensorflow", "pytorch"],
    },
    "training_image_python_packages": [
        *IMAGE["training_image_python_packages"],
        "torch==2.13.0+cpu",
        "torchvision==0.28.0",
    ],
}
# As slow as two cores that have other work: whether it measures is asked here, not how fast the
# network is.
ASKED = {
    "verify_bandwidth_min_gb_s": 0.001,
    "verify_bandwidth_peer_fraction": 0.02,
    "verify_bandwidth_drop_percent": 100,
}
# In the forms of Keras' file and of torchvision's, which the cluster cannot download: the example's
# own digits, of which half are enough.
MNIST = """import os, struct, sys
sys.argv = ["x"]
import example_tools, numpy
parts = example_tools.digits("generated")[1:]
images = [numpy.kron(numpy.array(part).reshape(-1, 8, 8), numpy.ones((1, 3, 3))) for part in parts[::2]]
images = [(numpy.pad(part, ((0, 0), (2, 2), (2, 2))) * 255).astype("uint8") for part in images]
numpy.savez("/data1/share/mnist.npz", x_train=images[0], y_train=parts[1], x_test=images[1], y_test=parts[3])
raw = "/data1/share/mnist/MNIST/raw"
os.makedirs(raw, exist_ok=True)
for part, image, label in (("train", images[0], parts[1]), ("t10k", images[1], parts[3])):
    for name, data in (("images", image), ("labels", numpy.array(label, "uint8"))):
        head = struct.pack(">BBBB%dI" % data.ndim, 0, 0, 8, data.ndim, *data.shape)
        with open("%s/%s-%s-idx%d-ubyte" % (raw, part, name, data.ndim), "wb") as stream:
            stream.write(head + data.tobytes())
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
EXAMPLES = "/data1/share/.trainyard/examples"
EXAMPLE = "python3 %s/digits_tensorflow.py --data generated --epochs %%d" % EXAMPLES
# The torchvision of the package index is compiled for CUDA, so its operators cannot be loaded beside
# a PyTorch for CPUs, and it cannot be imported without the two that it describes at once.
RUN_WITH_TORCHVISION = """import importlib.util, os, runpy, sys, torch
folder = os.path.dirname(importlib.util.find_spec("torchvision").origin)
try:
    torch.ops.load_library(folder + "/_C.so")
except OSError:
    for name in ("nms", "qnms"):
        torch.library.define("torchvision::" + name, "(Tensor a, Tensor b, float c) -> Tensor")
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# In place of Horovod's own example: its options, its data, and the line about its test.
PYTORCH_MNIST = """import argparse
import horovod.torch as hvd
import torch
from torchvision import datasets, transforms

parser = argparse.ArgumentParser()
parser.add_argument("--no-cuda", action="store_true")
for name, kind in (("epochs", int), ("batch-size", int), ("lr", float), ("data-dir", str)):
    parser.add_argument("--" + name, type=kind, required=True)
args = parser.parse_args()
hvd.init()
torch.set_num_threads(1)


def images_of_rank(train):
    found = datasets.MNIST(args.data_dir, train=train, download=True, transform=transforms.ToTensor())
    sampler = torch.utils.data.DistributedSampler(found, hvd.size(), hvd.rank())
    return torch.utils.data.DataLoader(found, args.batch_size, sampler=sampler), sampler


model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 8, 5), torch.nn.ReLU(), torch.nn.MaxPool2d(4), torch.nn.Flatten(),
    torch.nn.Linear(288, 10),
)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.5),
    named_parameters=model.named_parameters(),
)
(train, train_sampler), (test, test_sampler) = images_of_rank(True), images_of_rank(False)
for epoch in range(1, args.epochs + 1):
    train_sampler.set_epoch(epoch)
    for images, labels in train:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    print("Train Epoch: %d [%d/%d" % (epoch, len(train_sampler), len(train_sampler)), flush=True)
    right = sum((model(images).argmax(1) == labels).sum().item() for images, labels in test)
    share = hvd.allreduce(torch.tensor(right / len(test_sampler)), name="accuracy").item()
    if hvd.rank() == 0:
        print("Test set: Average loss: %.4f, Accuracy: %.2f%%" % (loss.item(), 100 * share))
"""


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


def trains(cluster, image, command, slots=1):
    """Run a job on both hosts and judge what it has left: each rank where it belongs, all with the
    same parameters, and a network that has learned.
    """
    run = cluster.playbook(
        "playbooks/train.yml",
        "--extra-vars",
        {**image, "cluster_slots": slots, "train_command": command},
    )
    assert run.code == 0
    result = cluster.last_job()
    assert [(rank["host"], rank["slot"], rank["exit_code"]) for rank in result["ranks"]] == [
        (host, slot, 0) for host in cluster.hosts for slot in range(slots)
    ]
    assert len({rank["checksum"] for rank in result["ranks"]}) == 1 and re.fullmatch(
        "[0-9a-f]{64}", result["ranks"][0]["checksum"]
    )
    assert result["metrics"]["accuracy"] >= 0.9
    return result


@pytest.mark.parametrize("slots", [1, 2])
def test_two_hosts_train_together(cluster, slots):
    result = trains(cluster, IMAGE, EXAMPLE % 6, slots)
    assert result["metrics"]["accuracy"] >= 0.95


@pytest.fixture(name="mnist", scope="module")
def _mnist(cluster):
    # Beside the program: playbook train places the examples, and may not have run yet.
    tools = (cluster.root / "roles/train/files/examples/example_tools.py").read_text(
        encoding="utf-8"
    )
    programs = {
        "mnist": MNIST,
        "scalars": SCALARS,
        "example_tools": tools,
        "torchvision_on_cpu": RUN_WITH_TORCHVISION,
    }
    for name, text in programs.items():
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
    result = trains(cluster, IMAGE, KERAS % EPOCHS, slots=2)
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


@pytest.fixture(name="both", scope="module")
def _both(cluster):
    """The same hosts with both frameworks in their image: the last tests, as it replaces the first
    image.
    """
    assert cluster.playbook("playbooks/training_environment.yml", "--extra-vars", BOTH).code == 0
    return cluster


def test_horovod_is_built_for_both(both):
    """The table alone cannot tell: it had the same ticks before."""
    table = both.inside(both.peer, "horovodrun --check-build").out
    assert re.findall(r"\[X\] (\w+)", table) == ["TensorFlow", "PyTorch", "Gloo", "Gloo"]
    for name in ("tensorflow", "torch"):
        both.inside(
            both.peer, 'python3 -c "import horovod.%s as it; it.init(); it.shutdown()"' % name
        )


def test_verify_judges_both(both):
    run = both.playbook("playbooks/verify.yml", "--extra-vars", {**BOTH, **ASKED})
    report = both.last_report()
    assert run.code == 0 and report["bandwidth"]["tool"] == "torch"
    verdicts = {check["id"]: check["verdict"] for check in report["checks"]}
    assert verdicts["horovod-build"] == verdicts["bandwidth-cluster"] == "pass"


@pytest.mark.parametrize("example", ["digits_tensorflow.py", "digits_horovod.py"])
def test_a_job_of_each_framework(both, example):
    command = "python3 %s/%s --data generated --epochs 6" % (EXAMPLES, example)
    result = trains(both, BOTH, command)
    assert result["metrics"]["accuracy"] >= 0.95


@pytest.fixture(name="archive")
def _archive(tmp_path):
    """An archive with Horovod's examples, as the tag's."""
    given = os.environ.get("TRAINYARD_HOROVOD_ARCHIVE", "")
    if given:
        return Path(given)
    path, content = tmp_path / "v0.28.1.tar.gz", PYTORCH_MNIST.encode()
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("horovod-0.28.1/examples/pytorch/pytorch_mnist.py")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return path


def test_pytorch_mnist_of_horovod_s_examples(both, mnist, archive):
    """Its data are files: with download=True torchvision takes what it finds."""
    both.on(both.head, "mkdir -p /tmp/served")
    subprocess.run(["docker", "cp", archive, "%s:/tmp/served/it.tar.gz" % both.head], check=True)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    asked = {
        **BOTH,
        "train_horovod_examples_version": "0.28.1",
        "train_horovod_examples_checksum": "sha256:" + digest,
        "train_command": "python3 /data1/share/torchvision_on_cpu.py "
        "%s/horovod-0.28.1/pytorch/pytorch_mnist.py --no-cuda --epochs 6 --batch-size 16 --lr 0.05 "
        "--data-dir /data1/share/mnist" % EXAMPLES,
    }
    with both.serving("/tmp/served") as address:
        asked["train_horovod_examples_url"] = address + "/it.tar.gz"
        run = both.playbook("playbooks/train.yml", "--extra-vars", asked)
    assert run.code == 0
    result = both.last_job()
    assert [(rank["host"], rank["exit_code"]) for rank in result["ranks"]] == [
        (host, 0) for host in both.hosts
    ]
    # Each rank has its half of the 1440 images, and the accuracy is the mean of both.
    for rank in (0, 1):
        assert re.search(r"\[%d \S+\] Train Epoch: 6 \[\d+/720" % rank, run.text)
    told = re.findall(r"Test set: Average loss: [\d.]+, Accuracy: ([\d.]+)%", run.text)
    assert len(told) >= 6 and float(told[-1]) >= 80
