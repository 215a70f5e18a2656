# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trains a ResNet18 for 32x32 images with PyTorch's DDP: CIFAR-10 from a folder, or random images.

Start it with torchrun.

Needs PyTorch, and NumPy for CIFAR-10. The folder holds the files of cifar-10-python.tar.gz:
data_batch_1 to data_batch_5 and test_batch.
"""

import argparse
import os
import pickle
import sys
import time

try:
    import torch
    import torch.distributed as dist
    from torch import nn
except ImportError as error:
    raise SystemExit("This example needs PyTorch in the training image (%s)." % error) from error

# Python must not write bytecode into the folder of the examples.
sys.dont_write_bytecode = True
import example_tools

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument(
    "--data",
    help="folder of CIFAR-10, or the parent folder of cifar-10-batches-py. Default: random images",
)
parser.add_argument(
    "--random-images", type=int, default=50000, help="number of random images without --data"
)
parser.add_argument(
    "--output-dir",
    default=example_tools.job_folder(),
    help="folder of checkpoint.pt, the same on all hosts; default: the job's own folder",
)
parser.add_argument(
    "--resume",
    nargs="?",
    const="",
    metavar="CHECKPOINT",
    help="continue from this file; without a value from checkpoint.pt in --output-dir if it exists",
)
parser.add_argument("--epochs", type=int, default=30)
parser.add_argument("--batch-size", type=int, default=128, help="images per rank and step")
parser.add_argument(
    "--learning-rate",
    type=float,
    default=0.05,
    help="for one rank; grows with the number of ranks over the first epochs",
)
parser.add_argument(
    "--width", type=int, default=64, help="channels of the first stage; 64 is ResNet18"
)
parser.add_argument(
    "--log-time", type=float, default=10, help="seconds between two lines of progress"
)
parser.add_argument("--seed", type=int, default=7)
args = parser.parse_args()
if "RANK" not in os.environ:
    raise SystemExit(
        "RANK is not set: start this example with torchrun, or with train_launcher: torchrun."
    )

started = time.monotonic()
local_rank = int(os.environ["LOCAL_RANK"])
if torch.cuda.is_available():
    torch.cuda.set_device(local_rank)
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda", local_rank)
else:
    torch.set_num_threads(1)
    device = torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
rank, size = dist.get_rank(), dist.get_world_size()


class ArraysOnly(pickle.Unpickler):
    """CIFAR-10 consists of pickles, which can run any code.

    Only arrays, text and numbers are allowed here.
    """

    ALLOWED = {
        ("numpy", "_reconstruct"),
        ("numpy", "_frombuffer"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("_codecs", "encode"),
    }

    def find_class(self, module, name):
        if (module.split(".")[0], name) in self.ALLOWED:
            return super().find_class(module, name)
        raise pickle.UnpicklingError("%s.%s is not part of CIFAR-10" % (module, name))


def cifar10(folder, names):
    images, labels = [], []
    for name in names:
        with open(os.path.join(folder, name), "rb") as stream:
            batch = ArraysOnly(stream, encoding="bytes").load()
        images.append(torch.from_numpy(batch[b"data"].copy()).reshape(-1, 3, 32, 32))
        labels += batch[b"labels"]
    return torch.cat(images), torch.tensor(labels)


def random_images(count, seed):
    """Each class has its own colour below the noise, so that the network can learn."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 10
    colours = torch.rand(10, 3, 1, 1, generator=torch.Generator().manual_seed(1)) * 96
    noise = torch.randint(0, 160, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return noise + colours.to(torch.uint8)[labels], labels


if args.data:
    below = os.path.join(args.data, "cifar-10-batches-py")
    data_folder = below if os.path.isdir(below) else args.data
    try:
        train_set = cifar10(data_folder, ["data_batch_%d" % number for number in range(1, 6)])
        test_set = cifar10(data_folder, ["test_batch"])
    except OSError as error:
        raise SystemExit(
            (
                "--data: '%s' is not the folder of CIFAR-10 (%s). Unpack cifar-10-python.tar.gz on "
                "the share."
            )
            % (args.data, error)
        ) from error
else:
    train_set = random_images(args.random_images, args.seed)
    test_set = random_images(max(size, args.random_images // 5), args.seed + 1)
MEAN = torch.tensor([125.3, 123.0, 113.9], device=device).reshape(1, 3, 1, 1)
DEVIATION = torch.tensor([63.0, 62.1, 66.7], device=device).reshape(1, 3, 1, 1)


def prepared(images):
    return (images.to(device, non_blocking=True).float() - MEAN) / DEVIATION


def augmented(images):
    """Shift every image of the batch by up to 4 pixels, and mirror every second batch."""
    moved = nn.functional.pad(images, (4, 4, 4, 4))
    top, left = torch.randint(0, 9, (2,)).tolist()
    moved = moved[:, :, top : top + 32, left : left + 32]
    return moved.flip(3) if torch.rand(1).item() < 0.5 else moved


class Block(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(inplace=True),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, images):
        return nn.functional.relu(self.body(images) + self.shortcut(images))


def resnet18(width):
    """ResNet18 for CIFAR: no pooling before the first stage, because 32x32 images are small."""
    layers = [
        nn.Conv2d(3, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    ]
    inside = width
    for stage in range(4):
        outside = width << stage
        layers += [Block(inside, outside, 1 if stage == 0 else 2), Block(outside, outside, 1)]
        inside = outside
    return nn.Sequential(*(layers + [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 10)]))


train = torch.utils.data.TensorDataset(*train_set)
sampler = torch.utils.data.DistributedSampler(
    train, num_replicas=size, rank=rank, shuffle=True, seed=args.seed
)
loader = torch.utils.data.DataLoader(
    train, batch_size=args.batch_size, sampler=sampler, pin_memory=device.type == "cuda"
)

torch.manual_seed(args.seed + rank)
model = resnet18(args.width).to(device)
optimizer = torch.optim.SGD(
    model.parameters(), lr=args.learning_rate * size, momentum=0.9, weight_decay=5e-4
)
# The learning rate of all ranks is reached after some epochs and then decreases.
warm_up = min(5, args.epochs)
schedule = torch.optim.lr_scheduler.LambdaLR(
    optimizer,
    lambda epoch: (
        (epoch + 1) / warm_up
        if epoch < warm_up
        else 1 - (epoch - warm_up) / max(1, args.epochs - warm_up)
    ),
)
loss_of = nn.CrossEntropyLoss()

checkpoint_path = os.path.join(args.output_dir, "checkpoint.pt")
first_epoch = 1
if rank == 0:
    os.makedirs(args.output_dir, exist_ok=True)
if args.resume is not None:
    # Only rank 0 reads and writes the file. The others get its content from rank 0.
    holder = [None]
    source = args.resume or checkpoint_path
    if rank == 0 and (args.resume or os.path.exists(source)):
        try:
            holder = [torch.load(source, map_location="cpu")]
        except OSError as error:
            holder = ["--resume: '%s' cannot be read (%s)." % (source, error.strerror)]
    dist.broadcast_object_list(holder, src=0)
    if isinstance(holder[0], str):
        raise SystemExit(holder[0])
    if holder[0]:
        model.load_state_dict(holder[0]["model"])
        optimizer.load_state_dict(holder[0]["optimizer"])
        schedule.load_state_dict(holder[0]["schedule"])
        first_epoch = holder[0]["epoch"] + 1
    if rank == 0:
        print(
            "continues after epoch %d of %s" % (first_epoch - 1, source)
            if holder[0]
            else "no %s: starts anew" % source,
            flush=True,
        )
# DDP broadcasts rank 0's parameters and averages the gradients while they are computed.
replica = nn.parallel.DistributedDataParallel(
    model, device_ids=[local_rank] if device.type == "cuda" else None
)


def add_up(*values):
    total = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return total.tolist()


def accuracy():
    """Each rank tests its share of the images. The counts are summed over all ranks."""
    model.eval()
    right = 0
    images, labels = (part[rank::size] for part in test_set)
    with torch.no_grad():
        for start in range(0, len(labels), 500):
            right += (
                (
                    model(prepared(images[start : start + 500])).argmax(dim=1).cpu()
                    == labels[start : start + 500]
                )
                .sum()
                .item()
            )
    model.train()
    return add_up(float(right))[0] / len(test_set[1])


# All labels, and one of 97 images.
example_tools.check_same_data(
    [labels.tolist() for _images, labels in (train_set, test_set)]
    + [bytes(images[::97].flatten().tolist()) for images, _labels in (train_set, test_set)],
    rank,
    size,
    lambda values: add_up(*values),
)
if rank == 0:
    print(
        "%d ranks on %s, %s: %d images to train on, %d to test on"
        % (size, device.type, args.data or "random images", len(train), len(test_set[1])),
        flush=True,
    )
metrics = {"first_epoch": first_epoch}
shown = time.monotonic()
for epoch in range(first_epoch, args.epochs + 1):
    # Without this, every epoch has the same order.
    sampler.set_epoch(epoch)
    begin = time.monotonic()
    total = torch.zeros(1, device=device)
    for number, (images, labels) in enumerate(loader, 1):
        optimizer.zero_grad()
        loss = loss_of(replica(augmented(prepared(images))), labels.to(device, non_blocking=True))
        loss.backward()
        optimizer.step()
        total += loss.detach()
        if rank == 0 and time.monotonic() - shown >= args.log_time:
            shown = time.monotonic()
            print(
                "epoch %d, step %d of %d: loss %.4f" % (epoch, number, len(loader), loss.item()),
                flush=True,
            )
    schedule.step()
    loss_sum, seconds = add_up(total.item() / len(loader), time.monotonic() - begin)
    metrics.update(
        epoch=epoch,
        loss=round(loss_sum / size, 4),
        accuracy=round(accuracy(), 4),
        images_per_second=round(len(sampler) * size / (seconds / size), 1),
    )
    if rank == 0:
        print(
            "epoch %d of %d: loss %.4f, test accuracy %.4f, %.1f images/s"
            % (
                epoch,
                args.epochs,
                metrics["loss"],
                metrics["accuracy"],
                metrics["images_per_second"],
            ),
            flush=True,
        )
        checkpoint = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "schedule": schedule.state_dict(),
            "epoch": epoch,
        }
        example_tools.save_atomically(
            lambda stream, content=checkpoint: torch.save(content, stream), checkpoint_path
        )
metrics["seconds"] = round(time.monotonic() - started, 2)

# Only of the parameters, because each rank has its own batch norm averages.
checksum = example_tools.checksum(dict(model.named_parameters()))
example_tools.report(checksum, metrics)
print("rank %d of %d is done: parameters sha256 %s" % (rank, size, checksum), flush=True)
# Rank 0 may still be writing. All ranks wait for it.
dist.barrier(device_ids=[local_rank] if device.type == "cuda" else None)
# Ends the threads of the group. If this happens at Python's own end, the rank may abort after all
# its work.
del replica
dist.destroy_process_group()
