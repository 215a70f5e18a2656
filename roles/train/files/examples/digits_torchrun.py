# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trains a small network on scikit-learn's handwritten digits (1797 images of 8x8 pixels) with PyTorch's own DDP, on any number of ranks."""

import argparse
import hashlib
import json
import os
import time

try:
    import torch
    import torch.distributed as dist
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
except ImportError as error:
    raise SystemExit("This example needs PyTorch and scikit-learn in the training image (%s). Ask for them with "
                     "training_image_python_packages, or name a job of your own in train_command." % error) from error

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch-size", type=int, default=32, help="images of one rank in one step")
parser.add_argument("--learning-rate", type=float, default=0.05, help="for one rank; grows with the number of ranks")
parser.add_argument("--seed", type=int, default=7)
parser.add_argument("--no-averaging", action="store_true", help="each rank trains alone: the parameters must then differ")
args = parser.parse_args()

started = time.monotonic()
torch.set_num_threads(1)
local_rank = int(os.environ["LOCAL_RANK"])
if torch.cuda.is_available():
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
else:
    device = torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
rank, size = dist.get_rank(), dist.get_world_size()

digits = load_digits()
split = train_test_split(digits.data / 16.0, digits.target, test_size=0.2, random_state=0, stratify=digits.target)
x_train, x_test = (torch.tensor(part, dtype=torch.float32) for part in split[:2])
y_train, y_test = (torch.tensor(part, dtype=torch.long) for part in split[2:])
train = torch.utils.data.TensorDataset(x_train, y_train)
sampler = torch.utils.data.DistributedSampler(train, num_replicas=size, rank=rank, shuffle=True, seed=args.seed)
loader = torch.utils.data.DataLoader(train, batch_size=args.batch_size, sampler=sampler)

# A different start on each rank, so that the broadcast is seen to work.
torch.manual_seed(args.seed + rank)
model = torch.nn.Sequential(
    torch.nn.Unflatten(1, (1, 8, 8)),
    torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
    torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(),
    torch.nn.Linear(512, 10),
).to(device)
# DDP broadcasts rank 0's parameters itself, and averages the gradients while they are computed.
replica = model if args.no_averaging else torch.nn.parallel.DistributedDataParallel(model)
if args.no_averaging:
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate * (1 if args.no_averaging else size), momentum=0.9)
# Smaller steps towards the end: or the accuracy jumps by a point from epoch to epoch.
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 - epoch / args.epochs)
loss_of = torch.nn.CrossEntropyLoss()


def add_up(value):
    total = torch.tensor(value, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return total.item()


def accuracy():
    """Each rank judges its share of the test images; the counts are added up over all ranks."""
    model.eval()
    with torch.no_grad():
        right = (model(x_test[rank::size].to(device)).argmax(dim=1).cpu() == y_test[rank::size]).sum().item()
    model.train()
    return add_up(float(right)) / len(y_test)


metrics = {}
for epoch in range(1, args.epochs + 1):
    sampler.set_epoch(epoch)
    total = 0.0
    for images, labels in loader:
        optimizer.zero_grad()
        loss = loss_of(replica(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        total += loss.item()
    schedule.step()
    metrics = {"loss": round(add_up(total / len(loader)) / size, 4), "accuracy": round(accuracy(), 4)}
    if rank == 0:
        print("epoch %d of %d: loss %.4f, test accuracy %.4f" % (epoch, args.epochs, metrics["loss"], metrics["accuracy"]), flush=True)
metrics["seconds"] = round(time.monotonic() - started, 2)

state = model.state_dict()
checksum = hashlib.sha256(b"".join(state[name].cpu().numpy().tobytes() for name in sorted(state))).hexdigest()
job = os.environ.get("TRAINYARD_JOB_DIR", ".")
if rank == 0:
    torch.save({"model": state, "epoch": args.epochs, "metrics": metrics}, os.path.join(job, "checkpoint.pt"))
if "TRAINYARD_RANK_REPORT" in os.environ:
    with open(os.environ["TRAINYARD_RANK_REPORT"], "w", encoding="utf-8") as stream:
        json.dump({"checksum": checksum, "metrics": metrics}, stream)
print("rank %d of %d is done: parameters sha256 %s" % (rank, size, checksum), flush=True)
# The group's threads are joined when its last user lets go of it. At Python's own end that may be too late: the rank then aborts after all its work.
del replica, loss
dist.destroy_process_group()
