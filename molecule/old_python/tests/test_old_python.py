"""The finished image: Horovod compiled with Python 3.6, and NCCL in the exact version from NVIDIA's
repository for Ubuntu 18.04.
"""

import base64
import io
import json
import re
import tarfile
from pathlib import Path

import pytest

testinfra_hosts = ["ansible://cluster"]

VERSION = "2.8.4-1+cuda11.0"


@pytest.fixture(name="image")
def fixture_image(host):
    names = host.check_output(
        "docker images --format '{{.Repository}}:{{.Tag}}' trainyard/training"
    ).split()
    assert len(names) == 1, names
    return names[0]


def test_the_base_is_as_old_as_the_guides(in_image):
    assert in_image("python3 --version", "site/bionic:1").strip() == "Python 3.6.9"
    assert in_image("python3 -m pip --version", "site/bionic:1").startswith("pip 9.")


def test_horovod_has_what_is_required(in_image):
    table = in_image("horovodrun --check-build")
    assert re.findall(r"\[X\] (\S+)", table) == ["PyTorch", "Gloo", "Gloo"], table


def test_two_ranks_reduce(in_image):
    script = (
        "import horovod.torch as hvd, torch; hvd.init(); assert hvd.size() == 2; "
        "print('sum', hvd.allreduce(torch.tensor([float(hvd.rank() + 1)]), op=hvd.Sum).item())"
    )
    output = in_image(f'horovodrun --gloo -np 2 -H localhost:2 python3 -c "{script}"')
    assert len(re.findall(r"sum 3\.0", output)) == 2, output


@pytest.fixture(scope="module", name="beside")
def fixture_beside():
    """Return a command that unpacks the examples and the bandwidth job into one folder and changes
    to it. Nothing is mounted, so the command contains them.
    """
    root, packed = Path(__file__).parents[3], io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path in (
            sorted(root.glob("roles/train/files/examples/*.py"))
            + sorted(root.glob("roles/verify/files/*.py"))
            + [
                root / name
                for name in (
                    "plugins/module_utils/_bandwidth.py",
                    "plugins/module_utils/_blame.py",
                    "roles/train/files/_job_watch.py",
                )
            ]
        ):
            archive.add(path, path.name)
    return (
        "mkdir /tmp/beside && cd /tmp/beside && echo %s | base64 -d | tar xz && "
        % base64.b64encode(packed.getvalue()).decode()
    )


@pytest.mark.parametrize(
    "launcher",
    [
        "python3 -B -m torch.distributed.run --nproc_per_node=2 ",
        "horovodrun --gloo -np 2 -H localhost:2 python3 -B ",
    ],
)
def test_examples_train_under_python_3_6(in_image, beside, launcher):
    """Two ranks end with the same parameters."""
    examples = (
        ["digits_horovod.py --epochs 1"]
        if "horovodrun" in launcher
        else [
            "digits_torchrun.py --epochs 1",
            "resnet18_ddp.py --random-images 64 --epochs 1 --width 4 --batch-size 16 --output-dir /tmp",
        ]
    )
    for example in examples:
        output = in_image(beside + launcher + example)
        checksums = re.findall(r"rank \d of 2 is done: parameters sha256 ([0-9a-f]{64})", output)
        assert len(checksums) == 2 and len(set(checksums)) == 1, output


def test_the_bandwidth_job_measures_under_python_3_6(in_image, beside):
    plan = {
        "hosts": [{"name": "a", "slots": 2}],
        "at_once": 0,
        "largest": {"gloo": "65536", "nccl": "0"},
        "history": {},
        "asked": {
            "fraction": 0.7,
            "min_busbw_gb_s": 0.0,
            "peer_fraction": 0.01,
            "drop_percent": 20,
        },
    }
    told = (
        "export TRAINYARD_JOB_DIR=/tmp TRAINYARD_BANDWIDTH=%s; "
        % base64.b64encode(json.dumps(plan).encode()).decode()
    )
    for command in (
        "python3 -B -m torch.distributed.run --nproc_per_node=2 all_reduce.py",
        "horovodrun --gloo -np 2 -H localhost:2 python3 -B horovod_all_reduce.py",
    ):
        found = json.loads(in_image(beside + told + command + " >&2 && cat /tmp/bandwidth.json"))
        (run,) = found["runs"]
        assert (
            run["id"] == "host:a"
            and run["ranks"] == 2
            and run["passed"]
            and all(row["in_place"]["wrong"] == 0 for row in run["rows"])
        )


def test_nothing_that_compiled_stays(in_image):
    assert in_image("python3 -m pip --version").startswith("pip 9.")
    assert (
        in_image("python3 -m pip list 2>/dev/null | grep -icE '^(cmake|pip 2)' || true").strip()
        == "0"
    )
    assert in_image("ls -d /tmp/trainyard-* 2>/dev/null || true").strip() == ""


def test_nccl_is_of_the_distribution_s_repository_pinned_held_and_recorded(host, image, in_image):
    for package in ("libnccl2", "libnccl-dev"):
        assert in_image(f"dpkg-query --show --showformat='${{Version}}' {package}") == VERSION
        assert package in in_image("apt-mark showhold").split()
    assert "Pin: version %s" % VERSION in in_image("cat /etc/apt/preferences.d/trainyard-nccl")
    labels = json.loads(
        host.check_output("docker inspect --format '{{json .Config.Labels}}' %s", image)
    )
    assert labels["trainyard.nccl"] == VERSION
    assert (
        labels["trainyard.horovod"] == "frameworks.pytorch controllers.gloo tensor_operations.gloo"
    )


def test_the_list_of_before_april_2022_is_gone_and_the_other_is_as_it_was(in_image):
    """The first would break every apt-get update.

    The second was only disabled during the build, because it conflicted with the build's own entry.
    """
    assert in_image("ls /etc/apt/sources.list.d").split() == ["0000bionic.list", "mirror.list"]
    assert in_image("ls /etc/apt/preferences.d").split() == ["trainyard-nccl"]
    log = in_image("cat /etc/apt/sources.list.d/mirror.list")
    assert log == "deb http://172.30.101.61:8000/compute/cuda/repos/ubuntu1804/x86_64 /"


def test_the_build_s_output_says_what_it_did(host):
    log = host.check_output("cat /var/log/trainyard/training_image.log")
    assert "pip 9.0.1 of the base is older than 20.3" in log
    assert "NCCL %s: requested by training_image_nccl_version" % VERSION in log
    assert (
        "Removed https://developer.download.nvidia.com/compute/cuda/repos/ubuntu1804/x86_64 from /etc/apt/sources.list.d/cuda.list"
        in log
    )
    assert "in /etc/apt/sources.list.d/mirror.list for this step" in log
