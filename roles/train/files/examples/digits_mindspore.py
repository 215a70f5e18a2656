# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trains a small network on handwritten digits of 8x8 pixels with MindSpore, on any number of
ranks, on NPUs or CPUs.

The gradients are averaged over all ranks. In the first epoch rank 0 also trains the same network
alone, on the images of all ranks in each step, and the example fails if the two differ: equal
parameters on all ranks alone would also be found if nothing was trained. The digits are
scikit-learn's where it is installed, else generated.
"""

import hashlib
import os
import random
import socket
import sys
import time

try:
    import mindspore
    import numpy
    from mindspore import Tensor, context, nn, ops
    from mindspore.communication import get_group_size, get_rank, init
except ImportError as error:
    raise SystemExit(
        "This example needs MindSpore in the training image (%s). Add it to "
        "training_image_python_packages, or set train_command to a command "
        "of your own." % error
    ) from error

# Python must not write bytecode into the folder of the examples.
sys.dont_write_bytecode = True
import example_tools

#: Largest difference between a parameter and the one that was trained alone. Sums of float32 in
#: another order differ by less.
TOLERANCE = 1e-3

args = example_tools.digits_arguments(
    __doc__,
    [("--hosts", {"type": int, "default": 1, "help": "fail if the ranks are on fewer hosts"})],
)

started = time.monotonic()
context.set_context(mode=context.PYNATIVE_MODE)
rank, size = 0, 1
if int(os.environ.get("RANK_SIZE", "1")) > 1:
    # With msrun, its scheduler also comes here, and ends in this call.
    init()
    rank, size = get_rank(), get_group_size()
epochs = args.epochs or 12 * max(1, size // 4)


def total(array):
    """Return the sum of an array over all ranks."""
    return ops.AllReduce(ops.ReduceOp.SUM)(Tensor(array)).asnumpy() if size > 1 else array


# Each rank writes into a place of its own, so the sum has the number of the host of each.
places = numpy.zeros(size, dtype=numpy.float32)
places[rank] = int(hashlib.sha256(socket.gethostname().encode()).hexdigest()[:5], 16)
hosts = len(set(total(places).tolist()))
if hosts < args.hosts:
    raise SystemExit(
        "The %d ranks are on %d hosts, and %d were expected" % (size, hosts, args.hosts)
    )

source, *parts = example_tools.digits(args.data)
x_train, x_test = (
    numpy.array(part, dtype=numpy.float32).reshape(-1, 1, 8, 8) for part in parts[::2]
)
y_train, y_test = (numpy.array(part, dtype=numpy.int32) for part in parts[1::2])
example_tools.check_same_data(
    parts, rank, size, lambda values: total(numpy.array(values, dtype=numpy.float32)).tolist()
)


class Training:
    """A network with SGD and momentum 0.9."""

    def __init__(self, values=None):
        self.network = nn.SequentialCell(
            nn.Conv2d(1, 16, 3, pad_mode="pad", padding=1, has_bias=True),
            nn.ReLU(),
            nn.MaxPool2d(2, 2),
            nn.Conv2d(16, 32, 3, pad_mode="pad", padding=1, has_bias=True),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dense(512, 10),
        )
        self.parameters = list(self.network.trainable_params())
        for parameter, value in zip(self.parameters, values or []):
            parameter.set_data(Tensor(value))
        self.velocities = [
            numpy.zeros(parameter.shape, dtype=numpy.float32) for parameter in self.parameters
        ]
        loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        self.forward = nn.WithLossCell(self.network, loss)
        self.gradients = ops.GradOperation(get_by_list=True)

    def values(self):
        return [parameter.asnumpy().copy() for parameter in self.parameters]

    def step(self, numbers, rate, average):
        """Train on the images with these numbers, and return the loss."""
        images, labels = Tensor(x_train[numbers]), Tensor(y_train[numbers])
        loss = float(self.forward(images, labels).asnumpy())
        gradients = [
            gradient.asnumpy()
            for gradient in self.gradients(self.forward, mindspore.ParameterTuple(self.parameters))(
                images, labels
            )
        ]
        for number, gradient in enumerate(average(gradients)):
            self.velocities[number] = 0.9 * self.velocities[number] + gradient
            self.parameters[number].set_data(
                Tensor(self.parameters[number].asnumpy() - rate * self.velocities[number])
            )
        return loss

    def right(self, images, labels):
        return int((self.network(Tensor(images)).asnumpy().argmax(axis=1) == labels).sum())


def averaged(gradients):
    """Return the gradients averaged over all ranks, which are sent as one array."""
    if size == 1 or args.no_averaging:
        return gradients
    whole = total(numpy.concatenate([gradient.ravel() for gradient in gradients])) / size
    ends = numpy.cumsum([gradient.size for gradient in gradients])[:-1]
    return [
        part.reshape(gradient.shape) for part, gradient in zip(numpy.split(whole, ends), gradients)
    ]


# Each rank starts with other parameters, and then takes those of rank 0: the others add zeros.
mindspore.set_seed(args.seed + rank)
own = Training()
values = own.values()
if rank > 0:
    values = [numpy.zeros_like(value) for value in values]
begin = [total(value) for value in values]
own = Training(begin)
alone = Training(begin) if rank == 0 else None

if rank == 0:
    print(
        "%d ranks on %d hosts, %s digits: %d to train on, %d to test on"
        % (size, hosts, source, len(x_train), len(x_test)),
        flush=True,
    )
metrics = {}
# The same number of images on every rank in every step. The remaining images are skipped, different
# ones in every epoch.
share = len(x_train) // size // args.batch_size * args.batch_size
for epoch in range(1, epochs + 1):
    # Smaller steps towards the end, because otherwise the accuracy varies by a point between
    # epochs.
    rate = (
        args.learning_rate * (1 if args.no_averaging else min(size, 4)) * (1 - (epoch - 1) / epochs)
    )
    order = list(range(len(x_train)))
    random.Random(args.seed + epoch).shuffle(order)
    losses = []
    for first in range(0, share * size, args.batch_size * size):
        whole = order[first : first + args.batch_size * size]
        losses.append(own.step(whole[rank::size], rate, averaged))
        if alone and epoch == 1:
            alone.step(whole, rate, lambda gradients: gradients)
    if alone and epoch == 1:
        # Not at the end: sums in another order differ in their last digit, and each step makes more
        # of that.
        difference = max(
            float(abs(value - other).max()) for value, other in zip(own.values(), alone.values())
        )
        moved = max(float(abs(value - other).max()) for value, other in zip(own.values(), begin))
    counted = total(
        numpy.array(
            [sum(losses) / len(losses), own.right(x_test[rank::size], y_test[rank::size])],
            dtype=numpy.float32,
        )
    )
    metrics = {
        "loss": round(float(counted[0]) / size, 4),
        "accuracy": round(float(counted[1]) / len(y_test), 4),
    }
    if rank == 0:
        print(
            "epoch %d of %d: loss %.4f, test accuracy %.4f"
            % (epoch, epochs, metrics["loss"], metrics["accuracy"]),
            flush=True,
        )
metrics["seconds"] = round(time.monotonic() - started, 2)

values = own.values()
checksum = hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()
if rank == 0:
    arrays = {parameter.name: value for parameter, value in zip(own.parameters, values)}
    example_tools.save_atomically(
        lambda stream: numpy.savez(stream, **arrays),
        os.path.join(example_tools.job_folder(), "checkpoint.npz"),
    )
    metrics.update(difference=difference, moved=moved)
example_tools.report(checksum, metrics)
print("rank %d of %d is done: parameters sha256 %s" % (rank, size, checksum), flush=True)
if rank == 0 and (metrics["difference"] > TOLERANCE or metrics["moved"] < 10 * TOLERANCE):
    raise SystemExit(
        "After one epoch the parameters differed by %.6f from those of one process that "
        "trained on the images of all ranks (allowed: %g), and had "
        "moved by %.6f" % (metrics["difference"], TOLERANCE, metrics["moved"])
    )
