# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trains a convolutional network on MNIST with Keras of TensorFlow 2 and Horovod, on any number of
ranks.

Nothing is downloaded: the images come from a file as Keras has it (mnist.npz with x_train, y_train,
x_test and y_test), or are generated digits. Rank 0 writes a checkpoint after each epoch and logs
for TensorBoard, both into folders of the job unless others are named.
"""

import argparse
import hashlib
import os
import sys
import time
import zipfile

try:
    import horovod.tensorflow.keras as hvd
    import numpy
    import tensorflow as tf
except ImportError as error:
    raise SystemExit(
        "This example needs TensorFlow and Horovod built for it in the training image (%s). "
        "Set training_image_requires.frameworks to "
        "[tensorflow], or set train_command to a command of your own." % error
    ) from error

# Python must not write bytecode into the folder of the examples.
sys.dont_write_bytecode = True
import example_tools

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
release = tuple(int(part) for part in tf.__version__.split(".")[:2])
if not (2, 0) <= release < (2, 16):
    raise SystemExit(
        (
            "This example needs TensorFlow 2.0 to 2.15, but the training image has %s, for whose "
            "Keras there is no Horovod."
        )
        % tf.__version__
    )

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument(
    "--data", metavar="FILE", help="mnist.npz on the share; without it, digits are generated"
)
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch-size", type=int, default=64, help="images per rank and step")
parser.add_argument(
    "--learning-rate",
    type=float,
    default=0.001,
    help="for one rank; it is multiplied by the number of ranks, up to 8",
)
parser.add_argument("--seed", type=int, default=7)
parser.add_argument(
    "--checkpoints", metavar="DIR", help="default: checkpoints in the folder of the job"
)
parser.add_argument(
    "--tensorboard", metavar="DIR", help="default: tensorboard in the folder of the job"
)
parser.add_argument(
    "--no-averaging",
    action="store_true",
    help="each rank trains alone, so that the parameters must differ",
)
args = parser.parse_args()


def load(path):
    """Return the arrays of the file."""
    try:
        with numpy.load(path) as stream:
            found = {name: stream[name] for name in ARRAYS}
    except (OSError, KeyError, ValueError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise SystemExit(
            (
                "--data: '%s' is not a file such as mnist.npz, with the arrays %s: %s. Copy Keras' "
                "mnist.npz to the share once"
            )
            % (path, ", ".join(ARRAYS), error)
        ) from error
    if (
        found["x_train"].shape[1:] != (28, 28)
        or len(found["x_train"]) != len(found["y_train"])
        or len(found["x_test"]) != len(found["y_test"])
    ):
        raise SystemExit(
            (
                "--data: the images in '%s' have the shape %s, and 28 by 28 pixels with one label "
                "each were expected"
            )
            % (path, "x".join(map(str, found["x_train"].shape)))
        )
    return [found[name] for name in ARRAYS]


def generated():
    """Return digits in the form of MNIST: each pixel of 8x8 is three by three here, with an edge of
    two.
    """
    _source, x_train, y_train, x_test, y_test = example_tools.digits("generated")
    x_train, x_test = (
        numpy.pad(
            numpy.kron(
                numpy.array(part, dtype=numpy.float32).reshape(-1, 8, 8),
                numpy.ones((1, 3, 3), dtype=numpy.float32),
            ),
            ((0, 0), (2, 2), (2, 2)),
        )
        * 255
        for part in (x_train, x_test)
    )
    return x_train, numpy.array(y_train), x_test, numpy.array(y_test)


started = time.monotonic()
x_train, y_train, x_test, y_test = load(args.data) if args.data else generated()
hvd.init()
rank, size = hvd.rank(), hvd.size()
example_tools.choose_device(tf, hvd.local_rank())


def add_up(values):
    return (
        hvd.allreduce(tf.constant(values, dtype=tf.float64), name="data").numpy() * size
    ).tolist()


example_tools.check_same_data(
    [part.tobytes() for part in (x_train, y_train, x_test, y_test)], rank, size, add_up
)
x_train, x_test = (
    numpy.asarray(part, dtype=numpy.float32)[..., numpy.newaxis] / 255 for part in (x_train, x_test)
)
y_train, y_test = (numpy.asarray(part, dtype=numpy.int64) for part in (y_train, y_test))
# As many images on every rank, because the ranks wait for each other in every step.
share = len(x_train) // size // args.batch_size * args.batch_size
if not share:
    raise SystemExit(
        "%d images are too few for %d ranks with --batch-size %d"
        % (len(x_train), size, args.batch_size)
    )
dataset = tf.data.Dataset.from_tensor_slices(
    (x_train[rank::size][:share], y_train[rank::size][:share])
)
dataset = dataset.shuffle(share, seed=args.seed + rank).batch(args.batch_size)

# Each rank starts with other parameters, to check the broadcast.
tf.random.set_seed(args.seed + rank)
model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(32, 3, activation="relu", input_shape=(28, 28, 1)),
        tf.keras.layers.Conv2D(64, 3, activation="relu"),
        tf.keras.layers.MaxPooling2D(2),
        tf.keras.layers.Dropout(0.25),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(128, activation="relu"),
        tf.keras.layers.Dropout(0.5),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)
# Horovod wraps the optimizers of before 2.11, which later releases have under this name.
optimizers = tf.keras.optimizers.legacy if release >= (2, 11) else tf.keras.optimizers
optimizer = optimizers.Adam(args.learning_rate * (1 if args.no_averaging else min(size, 8)))
if not args.no_averaging:
    optimizer = hvd.DistributedOptimizer(optimizer)
# In the first releases Keras would take the gradients past the optimizer.
old = {"experimental_run_tf_function": False} if release < (2, 2) else {}
model.compile(
    loss="sparse_categorical_crossentropy", optimizer=optimizer, metrics=["accuracy"], **old
)

callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
]
checkpoints = args.checkpoints or os.path.join(example_tools.job_folder(), "checkpoints")
logs = args.tensorboard or os.path.join(example_tools.job_folder(), "tensorboard")
if rank == 0:
    print(
        "%d ranks, %s: %d images to train on, %d to test on"
        % (size, args.data or "generated digits", len(x_train), len(x_test)),
        flush=True,
    )
    os.makedirs(checkpoints, exist_ok=True)
    # The others would write the same files.
    callbacks += [
        tf.keras.callbacks.ModelCheckpoint(os.path.join(checkpoints, "checkpoint-{epoch}.h5")),
        tf.keras.callbacks.TensorBoard(logs),
    ]
history = model.fit(
    dataset, epochs=args.epochs, callbacks=callbacks, verbose=2 if rank == 0 else 0
).history

loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
metrics = {
    "loss": round(float(loss), 4),
    "accuracy": round(float(accuracy), 4),
    "training_loss": round(float(history["loss"][-1]), 4),
    "seconds": round(time.monotonic() - started, 2),
}
checksum = hashlib.sha256(b"".join(array.tobytes() for array in model.get_weights())).hexdigest()
example_tools.report(checksum, metrics)
if rank == 0:
    print(
        "test loss %.4f, accuracy %.4f; checkpoints in %s, logs for TensorBoard in %s"
        % (loss, accuracy, checkpoints, logs),
        flush=True,
    )
print("rank %d of %d is done: parameters sha256 %s" % (rank, size, checksum), flush=True)
hvd.shutdown()
