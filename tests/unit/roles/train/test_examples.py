# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The examples that the role places on the share, as far as that needs no PyTorch."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import sys
from pathlib import Path
from unittest import mock

import jinja2.nativetypes
import pytest
import yaml

ROLE = Path(__file__).parents[4] / "roles/train"
EXAMPLES = ROLE / "files/examples"
SPEC = importlib.util.spec_from_file_location("example_tools", EXAMPLES / "example_tools.py")
tools = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tools)


def placed():
    return yaml.safe_load((ROLE / "vars/main.yml").read_text(encoding="utf-8"))[
        "__train_example_files"
    ]


def test_each_file_is_placed_and_each_placed_one_exists():
    assert sorted(placed()) == sorted(
        str(path.relative_to(EXAMPLES))
        for path in EXAMPLES.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    )


def test_the_readme_describes_each():
    readme = (ROLE / "README.md").read_text(encoding="utf-8")
    assert [name for name in placed() if "`%s`" % name not in readme] == []


@pytest.mark.parametrize("name", placed())
def test_they_are_python_3_6(name):
    ast.parse((EXAMPLES / name).read_text(encoding="utf-8"), feature_version=(3, 6))


@pytest.mark.parametrize(
    "launcher, requires, example",
    [
        ("horovodrun", None, "digits_horovod.py"),
        ("horovodrun", {"frameworks": ["pytorch"]}, "digits_horovod.py"),
        ("horovodrun", {"frameworks": ["tensorflow"]}, "digits_tensorflow.py"),
        ("horovodrun", {"frameworks": ["tensorflow", "pytorch"]}, "digits_horovod.py"),
        ("horovodrun", {"controllers": ["mpi"]}, "digits_horovod.py"),
        ("torchrun", {"frameworks": []}, "digits_torchrun.py"),
        ("torchrun", {"frameworks": ["tensorflow"]}, "digits_torchrun.py"),
        ("mindspore", {"frameworks": ["tensorflow"]}, "digits_mindspore.py"),
        ("mindspore", None, "digits_mindspore.py"),
        # Refused elsewhere. The default must not fail on it before that is said.
        ("horovodrun", "tensorflow", "digits_horovod.py"),
    ],
)
def test_the_default_command_follows_launcher_and_framework(launcher, requires, example):
    template = yaml.safe_load((ROLE / "defaults/main.yml").read_text(encoding="utf-8"))[
        "train_command"
    ]
    given = {} if requires is None else {"training_image_requires": requires}
    command = (
        jinja2.nativetypes.NativeEnvironment()
        .from_string(template)
        .render(cluster_share_path="/share", train_launcher=launcher, **given)
    )
    assert command == "python3 /share/.trainyard/examples/" + example
    assert example in placed()


def test_generated_digits_are_the_same_everywhere():
    images, labels = tools.generated_digits(200)
    assert [labels.count(digit) for digit in range(10)] == [20] * 10
    assert {len(image) for image in images} == {64} and all(
        0 <= pixel <= 1 for image in images for pixel in image
    )
    digest = hashlib.sha256(
        json.dumps([[round(pixel, 6) for pixel in image] for image in images]).encode()
    ).hexdigest()
    assert digest[:12] == "21d04262d6e3"


def test_other_data_is_never_taken_in_silence(tmp_path, monkeypatch):
    """Somebody's sklearn.py hides scikit-learn, as a PYTHONPATH on one host did."""
    (tmp_path / "sklearn.py").write_text("X = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.split(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    for source in ("auto", "sklearn"):
        with pytest.raises(SystemExit) as told:
            tools.digits(source)
        assert str(tmp_path / "sklearn.py") in str(told.value)
    assert tools.digits("generated")[0] == "generated"


def test_without_scikit_learn_the_digits_are_generated(monkeypatch):
    monkeypatch.setattr(tools.importlib.util, "find_spec", lambda name: None)
    assert tools.digits("auto")[0] == "generated"


@pytest.mark.parametrize(
    "datas, words",
    [
        ([[1, 2], [1, 2], [1, 2]], ""),
        ([[1, 2], [1, 3], [1, 2]], "The data of rank 1 differs from that of rank 0"),
        ([[1, 2], [1, 3], [1, 4]], "The data of rank 1, 2 differs"),
        ([b"a", b"b"], "The data of rank 1 differs"),
    ],
)
def test_ranks_with_other_data_end_all(datas, words):
    """Each rank adds zeros in the places of the others, here one after the other."""
    size, given = len(datas), []
    for rank, data in enumerate(datas):
        tools.check_same_data(
            [data], rank, size, lambda values: [given.append(values), [0.0] * size][1]
        )
    total = [sum(column) for column in zip(*given)]
    for rank, data in enumerate(datas):
        told = ""
        try:
            tools.check_same_data([data], rank, size, lambda values: total)
        except SystemExit as error:
            told = str(error)
        assert told.startswith(words) and bool(told) is bool(words)


def test_each_example_compares_its_data():
    without = {name for name in placed() if "check_same_data(" not in (EXAMPLES / name).read_text()}
    assert without == set()


def test_an_accuracy_on_generated_digits_has_to_be_learned():
    """What needs no training, the mean image of each digit, is right on about half of them.

    An accuracy of 0.95 is far from it.
    """
    images, labels = tools.generated_digits(400)
    means = [
        [
            sum(pixels) / 30
            for pixels in zip(
                *(image for image, label in zip(images[:300], labels) if label == digit)
            )
        ]
        for digit in range(10)
    ]
    nearest = [
        min(range(10), key=lambda digit: sum((a - b) ** 2 for a, b in zip(means[digit], image)))
        for image in images[300:]
    ]
    assert 0.3 < sum(found == label for found, label in zip(nearest, labels[300:])) / 100 < 0.7


def test_a_checkpoint_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "checkpoint.pt"
    tools.save_atomically(lambda stream: stream.write(b"first"), str(path))

    def is_killed(stream):
        stream.write(b"sec")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tools.save_atomically(is_killed, str(path))
    assert path.read_bytes() == b"first"
    tools.save_atomically(lambda stream: stream.write(b"second"), str(path))
    assert path.read_bytes() == b"second"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["checkpoint.pt"]


@pytest.mark.parametrize(
    "gpus, rank, calls",
    [
        (
            [],
            1,
            [
                "threading.set_intra_op_parallelism_threads(1)",
                "threading.set_inter_op_parallelism_threads(1)",
            ],
        ),
        (
            ["g0", "g1"],
            1,
            [
                "experimental.set_memory_growth('g0', True)",
                "experimental.set_memory_growth('g1', True)",
                "experimental.set_visible_devices('g1', 'GPU')",
            ],
        ),
    ],
)
def test_a_rank_of_tensorflow_has_its_own_gpu(gpus, rank, calls):
    tf = mock.Mock()
    tf.config.experimental.list_physical_devices.return_value = gpus
    tools.choose_device(tf, rank)
    assert [str(call)[len("call.config.") :] for call in tf.mock_calls[1:]] == calls


@pytest.mark.parametrize(
    "path, environment, expected",
    [
        ("", {}, ""),
        ("/job/rank.0.report", {}, "/job/rank.0.report"),
        ("/job/rank.1.report", {"HOROVOD_RANK": "1"}, "/job/rank.1.report"),
        # A PyTorchJob.
        ("/job/rank.1.report", {"RANK": "1"}, "/job/rank.1.report"),
        # horovodrun and mpirun, started by the job's command on worker 0, where RANK is that of the
        # worker.
        ("/job/rank.0.report", {"HOROVOD_RANK": "0", "RANK": "0"}, "/job/rank.0.report"),
        ("/job/rank.0.report", {"HOROVOD_RANK": "3", "RANK": "0"}, "/job/rank.0.report.3"),
        ("/job/rank.0.report", {"OMPI_COMM_WORLD_RANK": "12"}, "/job/rank.0.report.12"),
        # torchrun, started by worker 1.
        ("/job/rank.1.report", {"RANK": "2"}, "/job/rank.1.report.2"),
        ("/elsewhere/report.json", {"RANK": "2"}, "/elsewhere/report.json"),
    ],
)
def test_ranks_report_beside_each_other(path, environment, expected):
    assert (
        tools.report_path(dict(environment, **({"TRAINYARD_RANK_REPORT": path} if path else {})))
        or ""
    ) == expected
