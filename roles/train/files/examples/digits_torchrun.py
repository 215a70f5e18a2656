# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trains a small network on handwritten digits of 8x8 pixels with PyTorch's own DDP, on any number
of ranks.

The digits are scikit-learn's where it is installed, else generated. Needs PyTorch. Started without
torchrun it trains alone, without DDP.
"""

import os
import sys
import time

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    raise SystemExit(
        "This example needs PyTorch in the training image (%s). Set "
        "training_image_requires.frameworks to [pytorch], "
        "or set train_command to a command of your own." % error
    ) from error

# Python must not write bytecode into the folder of the examples.
sys.dont_write_bytecode = True
import example_tools

args = example_tools.digits_arguments(__doc__)

started = time.monotonic()
torch.set_num_threads(1)
alone = "RANK" not in os.environ
local_rank = int(os.environ.get("LOCAL_RANK", "0"))
if torch.cuda.is_available():
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
else:
    device = torch.device("cpu")
if alone:
    rank, size = 0, 1
else:
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
epochs = args.epochs or 12 * max(1, size // 4)

source, *parts = example_tools.digits(args.data)
x_train, x_test = (torch.tensor(part, dtype=torch.float32) for part in parts[::2])
y_train, y_test = (torch.tensor(part, dtype=torch.long) for part in parts[1::2])
train = torch.utils.data.TensorDataset(x_train, y_train)
sampler = torch.utils.data.DistributedSampler(
    train, num_replicas=size, rank=rank, shuffle=True, seed=args.seed
)
loader = torch.utils.data.DataLoader(train, batch_size=args.batch_size, sampler=sampler)

# Each rank starts with other parameters, to check the broadcast.
torch.manual_seed(args.seed + rank)
model = torch.nn.Sequential(
    torch.nn.Unflatten(1, (1, 8, 8)),
    torch.nn.Conv2d(1, 16, 3, padding=1),
    torch.nn.ReLU(),
    torch.nn.MaxPool2d(2),
    torch.nn.Conv2d(16, 32, 3, padding=1),
    torch.nn.ReLU(),
    torch.nn.Flatten(),
    torch.nn.Linear(512, 10),
).to(device)
# DDP broadcasts rank 0's parameters and averages the gradients while they are computed.
replica = model if alone or args.no_averaging else torch.nn.parallel.DistributedDataParallel(model)
if args.no_averaging and not alone:
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
optimizer = torch.optim.SGD(
    model.parameters(),
    lr=args.learning_rate * (1 if args.no_averaging else min(size, 4)),
    momentum=0.9,
)
# Smaller steps towards the end, because otherwise the accuracy varies by a point between epochs.
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 - epoch / epochs)
loss_of = torch.nn.CrossEntropyLoss()


def add_up(values):
    total = torch.tensor(values, dtype=torch.float64, device=device)
    if not alone:
        dist.all_reduce(total)
    return total.tolist()


def accuracy():
    """Each rank tests its share of the images. The counts are summed over all ranks."""
    model.eval()
    with torch.no_grad():
        right = (
            (model(x_test[rank::size].to(device)).argmax(dim=1).cpu() == y_test[rank::size])
            .sum()
            .item()
        )
    model.train()
    return add_up([float(right)])[0] / len(y_test)


example_tools.check_same_data(parts, rank, size, add_up)
if rank == 0:
    print(
        "%d ranks, %s digits: %d to train on, %d to test on"
        % (size, source, len(x_train), len(x_test)),
        flush=True,
    )
metrics = {}
for epoch in range(1, epochs + 1):
    sampler.set_epoch(epoch)
    total = 0.0
    for images, labels in loader:
        optimizer.zero_grad()
        loss = loss_of(replica(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        total += loss.item()
    schedule.step()
    metrics = {
        "loss": round(add_up([total / len(loader)])[0] / size, 4),
        "accuracy": round(accuracy(), 4),
    }
    if rank == 0:
        print(
            "epoch %d of %d: loss %.4f, test accuracy %.4f"
            % (epoch, epochs, metrics["loss"], metrics["accuracy"]),
            flush=True,
        )
metrics["seconds"] = round(time.monotonic() - started, 2)

state = model.state_dict()
checksum = example_tools.checksum(state)
if rank == 0:
    checkpoint = {"model": state, "epoch": epochs, "metrics": metrics}
    example_tools.save_atomically(
        lambda stream: torch.save(checkpoint, stream),
        os.path.join(example_tools.job_folder(), "checkpoint.pt"),
    )
example_tools.report(checksum, metrics)
print("rank %d of %d is done: parameters sha256 %s" % (rank, size, checksum), flush=True)
# Ends the threads of the group. If this happens at Python's own end, the rank may abort after all
# its work.
del replica, loss
if not alone:
    dist.destroy_process_group()
