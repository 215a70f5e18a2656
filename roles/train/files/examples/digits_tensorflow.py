# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trains a small network on handwritten digits of 8x8 pixels with TensorFlow 2 and Horovod, on any
number of ranks.

The digits are scikit-learn's where it is installed, else generated. Keras is not used: its
optimizers differ between TensorFlow 2.0, 2.11 and 2.16.
"""

import hashlib
import os
import random
import sys
import time

try:
    import horovod.tensorflow as hvd
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

args = example_tools.digits_arguments(__doc__)
if int(tf.__version__.split(".")[0]) < 2:
    raise SystemExit(
        (
            "This example needs TensorFlow 2, but the training image has %s. Set train_command to "
            "your own command."
        )
        % tf.__version__
    )

started = time.monotonic()
hvd.init()
rank, size = hvd.rank(), hvd.size()
epochs = args.epochs or 12 * max(1, size // 4)
example_tools.choose_device(tf, hvd.local_rank())

source, *parts = example_tools.digits(args.data)
x_train, x_test = (
    numpy.array(part, dtype=numpy.float32).reshape(-1, 8, 8, 1) for part in parts[::2]
)
y_train, y_test = (numpy.array(part, dtype=numpy.int64) for part in parts[1::2])

# Each rank starts with other parameters, to check the broadcast.
tf.random.set_seed(args.seed + rank)
SHAPES = [
    ("conv1", (3, 3, 1, 16), 0.47),
    ("bias1", (16,), 0.0),
    ("conv2", (3, 3, 16, 32), 0.12),
    ("bias2", (32,), 0.0),
    ("dense", (512, 10), 0.05),
    ("bias3", (10,), 0.0),
]
variables = [
    tf.Variable(tf.random.normal(shape, stddev=deviation), name=name)
    for name, shape, deviation in SHAPES
]
velocities = [tf.Variable(tf.zeros_like(variable)) for variable in variables]
rate = tf.Variable(0.0)
hvd.broadcast_variables(variables, root_rank=0)


def logits_of(images):
    conv1, bias1, conv2, bias2, dense, bias3 = variables
    hidden = tf.nn.max_pool2d(
        tf.nn.relu(tf.nn.conv2d(images, conv1, 1, "SAME") + bias1), 2, 2, "VALID"
    )
    hidden = tf.nn.relu(tf.nn.conv2d(hidden, conv2, 1, "SAME") + bias2)
    return tf.matmul(tf.reshape(hidden, (-1, 512)), dense) + bias3


@tf.function
def step(images, labels):
    """One step of SGD with momentum 0.9."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits_of(images))
        )
    if not args.no_averaging:
        tape = hvd.DistributedGradientTape(tape)
    for variable, velocity, gradient in zip(variables, velocities, tape.gradient(loss, variables)):
        velocity.assign(0.9 * velocity + gradient)
        variable.assign_sub(rate * velocity)
    return loss


def average(value, name):
    return float(hvd.allreduce(tf.constant(value, dtype=tf.float64), name=name))


def accuracy():
    """Each rank tests its share of the images. The counts are summed over all ranks."""
    right = int(
        tf.reduce_sum(
            tf.cast(
                tf.argmax(logits_of(x_test[rank::size]), axis=1) == y_test[rank::size], tf.int64
            )
        )
    )
    return average(float(right), "right") * size / len(y_test)


def add_up(values):
    return (
        hvd.allreduce(tf.constant(values, dtype=tf.float64), name="data").numpy() * size
    ).tolist()


example_tools.check_same_data(parts, rank, size, add_up)
if rank == 0:
    print(
        "%d ranks, %s digits: %d to train on, %d to test on"
        % (size, source, len(x_train), len(x_test)),
        flush=True,
    )
metrics = {}
# The same number of steps on every rank. The remaining images are skipped, different ones in every
# epoch.
share = len(x_train) // size
for epoch in range(1, epochs + 1):
    # Smaller steps towards the end, because otherwise the accuracy varies by a point between
    # epochs.
    rate.assign(
        args.learning_rate * (1 if args.no_averaging else min(size, 4)) * (1 - (epoch - 1) / epochs)
    )
    order = list(range(len(x_train)))
    random.Random(args.seed + epoch).shuffle(order)
    own = order[rank : share * size : size]
    losses = [
        float(
            step(
                x_train[own[start : start + args.batch_size]],
                y_train[own[start : start + args.batch_size]],
            )
        )
        for start in range(0, share, args.batch_size)
    ]
    metrics = {
        "loss": round(average(sum(losses) / len(losses), "loss"), 4),
        "accuracy": round(accuracy(), 4),
    }
    if rank == 0:
        print(
            "epoch %d of %d: loss %.4f, test accuracy %.4f"
            % (epoch, epochs, metrics["loss"], metrics["accuracy"]),
            flush=True,
        )
metrics["seconds"] = round(time.monotonic() - started, 2)

checksum = hashlib.sha256(
    b"".join(variable.numpy().tobytes() for variable in variables)
).hexdigest()
if rank == 0:
    # One file instead of TensorFlow's format with several, so that it can be replaced in one step.
    arrays = {shape[0]: variable.numpy() for shape, variable in zip(SHAPES, variables)}
    example_tools.save_atomically(
        lambda stream: numpy.savez(stream, **arrays),
        os.path.join(example_tools.job_folder(), "checkpoint.npz"),
    )
example_tools.report(checksum, metrics)
print("rank %d of %d is done: parameters sha256 %s" % (rank, size, checksum), flush=True)
hvd.shutdown()
