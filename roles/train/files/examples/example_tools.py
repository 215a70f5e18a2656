# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Common functions of the examples: training digits, the checksum of the parameters, the report to
the job, checkpoints.

Needs only Python 3.6. If you copy an example, also copy this file.
"""

import argparse
import array
import hashlib
import importlib.util
import json
import os
import random
import re

# Five columns and seven rows for each digit.
FONT = """
.###. ..#.. .###. .###. ...#. ##### ..##. ##### .###. .###.
#...# .##.. #...# #...# ..##. #.... .#... ....# #...# #...#
#..## ..#.. ....# ....# .#.#. ####. #.... ...#. #...# #...#
#.#.# ..#.. ...#. ..##. #..#. ....# ####. ..#.. .###. .####
##..# ..#.. ..#.. ....# ##### ....# #...# .#... #...# ....#
#...# ..#.. .#... #...# ...#. #...# #...# .#... #...# ...#.
.###. .###. ##### .###. ...#. .###. .###. .#... .###. .##..
"""
GLYPHS = [[line.split()[digit] for line in FONT.split("\n") if line] for digit in range(10)]


def digits_arguments(description, more=()):
    """Parse the options of the digits examples, which train the same network with each framework;
    `more` has (name, what add_argument takes) of others.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--epochs",
        type=int,
        help=(
            "default: 12 for up to 4 ranks, more for more ranks, which take fewer steps in an epoch"
        ),
    )
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument(
        "--learning-rate",
        type=float,
        default=0.05,
        help="for one rank; 4 and more ranks use four times as much",
    )
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--data",
        choices=["auto", "sklearn", "generated"],
        default="auto",
        help="auto: those of scikit-learn if it is installed",
    )
    parser.add_argument(
        "--no-averaging",
        action="store_true",
        help="each rank trains alone, so that the parameters must differ",
    )
    for name, options in more:
        parser.add_argument(name, **options)
    return parser.parse_args()


def choose_device(tf, local_rank):
    """Give the rank its own GPU in TensorFlow 2, of whose memory it takes what it needs, or one
    thread where there are no GPUs.
    """
    gpus = tf.config.experimental.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.experimental.set_visible_devices(gpus[local_rank], "GPU")
    else:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)


def generated_digits(count=1800, seed=20261124):
    """Generate images of 8x8 pixels and labels.

    Each digit is shifted, slanted, partly faint and noisy.

    The result is the same on every host and Python version, because only random() is used, whose
    sequence Python guarantees.
    """
    draw = random.Random(seed).random
    images, labels = [], []
    for number in range(count):
        digit = number % 10
        left, top = int(draw() * 4), int(draw() * 2)
        slant = (draw() - 0.5) * 0.5
        ink = 0.6 + draw() * 0.4
        image = [draw() * 0.4 for _pixel in range(64)]
        for row, line in enumerate(GLYPHS[digit]):
            for column, dot in enumerate(line):
                x = int(left + column + slant * (row - 3) + 0.5)
                if dot == "#" and 0 <= x < 8 and draw() > 0.05:
                    position = (top + row) * 8 + x
                    image[position] = min(1.0, image[position] + ink)
        images.append(image)
        labels.append(digit)
    return images, labels


def digits(source="auto"):
    """(name of the source, training images, their labels, test images, their labels): one fifth of
    the images is for the test.

    `sklearn`: the 1797 handwritten digits of scikit-learn. `generated`: 1800 from generated_digits.
    `auto`: the first where scikit-learn is installed. If it is installed and cannot be imported,
    this ends the rank: other data would hide the fault.
    """
    if source == "sklearn" or source == "auto" and importlib.util.find_spec("sklearn"):
        try:
            from sklearn.datasets import load_digits
            from sklearn.model_selection import train_test_split
        except ImportError as error:
            spec = importlib.util.find_spec("sklearn")
            raise SystemExit(
                "--data %s: scikit-learn cannot be imported (%s)%s. Add it to "
                "training_image_python_packages, "
                "remove what hides it, or use --data generated."
                % (source, error, " from %s" % spec.origin if spec else "")
            ) from error
        found = load_digits()
        split = train_test_split(
            found.data / 16.0,
            found.target,
            test_size=0.2,
            random_state=0,
            stratify=found.target,
        )
        x_train, x_test, y_train, y_test = (part.tolist() for part in split)
        return "sklearn", x_train, y_train, x_test, y_test
    images, labels = generated_digits()
    # The digits alternate, so that any consecutive part has the same number of each.
    border = len(images) * 4 // 5
    return "generated", images[:border], labels[:border], images[border:], labels[border:]


def check_same_data(parts, rank, size, add_up):
    """End the rank if the ranks have different data, which would train a model that nobody asked
    for.

    `parts` are lists of numbers, or bytes. `add_up` takes a list of numbers and returns their sums
    over all ranks. All ranks must call this.
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part if isinstance(part, bytes) else json.dumps(part).encode("ascii"))
    # Few enough bits for float32. Each rank writes into a place of its own.
    places = [0.0] * size
    places[rank] = float(int(digest.hexdigest()[:5], 16))
    numbers = [int(round(number)) for number in add_up(places)]
    others = [str(place) for place in range(size) if numbers[place] != numbers[0]]
    if others:
        raise SystemExit(
            "The data of rank %s differs from that of rank 0. Check that --data, the installed "
            "packages and PYTHONPATH are the same on all hosts "
            "(verify.yml compares them)." % ", ".join(others)
        )


def checksum(parameters):
    """Return the sha256 of torch tensors in the order of their names.

    A double represents float32 and smaller types exactly, so NumPy is not needed.
    """
    digest = hashlib.sha256()
    for name in sorted(parameters):
        digest.update(
            array.array("d", parameters[name].detach().cpu().double().flatten().tolist()).tobytes()
        )
    return digest.hexdigest()


def report_path(environment):
    """Return where this rank reports its result, or None outside a trainyard job.

    A command that starts ranks itself, as horovodrun does in a job of the command trainyard, has
    one path for all of them. They add their numbers to it.
    """
    path = environment.get("TRAINYARD_RANK_REPORT")
    of_worker = re.search(r"rank\.(\d+)\.report$", path or "")
    ranks = [
        environment[name]
        for name in ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK")
        if environment.get(name, "").isdigit()
    ]
    return (
        "%s.%s" % (path, ranks[0])
        if of_worker and ranks and ranks[0] != of_worker.group(1)
        else path
    )


def report(parameters_checksum, metrics):
    """Report the result of this rank to the job. Outside a trainyard job nothing is written."""
    path = report_path(os.environ)
    if path:
        with open(path, "w") as stream:
            json.dump({"checksum": parameters_checksum, "metrics": metrics}, stream)


def job_folder():
    return os.environ.get("TRAINYARD_JOB_DIR", ".")


def save_atomically(save, path):
    """Replace a file in one step. `save` writes a new file, so that a reader, or a job after a
    kill, finds the old or the new content and never a part.
    """
    temporary = path + ".new"
    with open(temporary, "wb") as stream:
        save(stream)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)
