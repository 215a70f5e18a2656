# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trains MONAI's 3D UNet to find balls in noisy volumes with Horovod.

The volumes are generated, so nothing is downloaded.

Needs PyTorch, Horovod built for it, NumPy and MONAI. It follows unet_training_horovod.py of MONAI's
tutorials.
"""

import argparse
import os
import sys
import time

try:
    import horovod.torch as hvd
    import numpy
    import torch
    from monai.data import create_test_image_3d
    from monai.losses import DiceLoss
    from monai.networks.nets import UNet
except ImportError as error:
    raise SystemExit(
        "This example needs PyTorch, Horovod built for it, NumPy and MONAI in the training "
        "image (%s). "
        "Add monai with a version to training_image_python_packages, such as monai==1.3.2." % error
    ) from error

# Python must not write bytecode into the folder of the examples.
sys.dont_write_bytecode = True
import example_tools

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument(
    "--volumes", type=int, default=64, help="to train on; a quarter as many are made for the test"
)
parser.add_argument("--size", type=int, default=96, help="edge of a volume in voxels")
parser.add_argument(
    "--channels",
    type=int,
    nargs="+",
    default=[16, 32, 64, 128, 256],
    help="of the UNet's levels; each halves the edge",
)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batch-size", type=int, default=2, help="volumes of one rank in one step")
parser.add_argument(
    "--learning-rate", type=float, default=1e-3, help="for one rank; grows with the number of ranks"
)
parser.add_argument(
    "--output-dir",
    default=example_tools.job_folder(),
    help="folder of checkpoint.pt; default: the job's own folder",
)
parser.add_argument("--seed", type=int, default=7)
parser.add_argument(
    "--no-averaging",
    action="store_true",
    help="each rank trains alone, so that the parameters must differ",
)
args = parser.parse_args()
halvings = len(args.channels) - 1
if halvings < 1 or args.size % 2**halvings or args.size // 2**halvings < 2 or args.size < 16:
    raise SystemExit(
        "--size: %d does not fit %d levels; use at least 16, and a multiple of %d of at least %d."
        % (args.size, len(args.channels), 2**halvings, 2 ** (halvings + 1))
    )

started = time.monotonic()
hvd.init()
rank, size = hvd.rank(), hvd.size()
if torch.cuda.is_available():
    torch.cuda.set_device(hvd.local_rank())
    device = torch.device("cuda", hvd.local_rank())
else:
    torch.set_num_threads(1)
    device = torch.device("cpu")


class Volumes(torch.utils.data.Dataset):
    """Volume number N is the same on every rank and in every run.

    It is generated at its first use and kept.
    """

    def __init__(self, count, first):
        self.count, self.first, self.made = count, first, {}

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        if number not in self.made:
            image, mask = create_test_image_3d(
                args.size,
                args.size,
                args.size,
                num_objs=6,
                rad_max=max(4, args.size // 6),
                rad_min=max(2, args.size // 16),
                noise_max=0.5,
                num_seg_classes=1,
                random_state=numpy.random.RandomState(self.first + number),
            )
            self.made[number] = tuple(
                torch.from_numpy(numpy.asarray(part, dtype=numpy.float32))[None]
                for part in (image, mask)
            )
        return self.made[number]


def loader_of(data, batch_size, shuffle):
    sampler = torch.utils.data.DistributedSampler(
        data, num_replicas=size, rank=rank, shuffle=shuffle, seed=args.seed
    )
    return sampler, torch.utils.data.DataLoader(data, batch_size=batch_size, sampler=sampler)


sampler, loader = loader_of(Volumes(args.volumes, 0), args.batch_size, True)
_sampler, test_loader = loader_of(Volumes(max(size, args.volumes // 4), 1000000), 1, False)

# Each rank starts with other parameters, to check the broadcast. UNet's first argument is named
# dimensions in MONAI before 0.7.
torch.manual_seed(args.seed + rank)
model = UNet(
    3,
    in_channels=1,
    out_channels=1,
    channels=tuple(args.channels),
    strides=(2,) * halvings,
    num_res_units=2,
).to(device)
optimizer = torch.optim.Adam(
    model.parameters(), lr=args.learning_rate * (1 if args.no_averaging else size)
)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
if not args.no_averaging:
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
loss_of = DiceLoss(sigmoid=True)


def average(value, name):
    return hvd.allreduce(torch.tensor(value, dtype=torch.float64), name=name).item()


def dice():
    """Return the mean Dice score over the test volumes of all ranks: twice the intersection of mask
    and prediction, divided by the sum of both.
    """
    scores = []
    model.eval()
    with torch.no_grad():
        for images, masks in test_loader:
            found = (model(images.to(device)).cpu() > 0).float()
            scores.append(
                (2 * (found * masks).sum() / (found.sum() + masks.sum()).clamp(min=1)).item()
            )
    model.train()
    return average(sum(scores) / len(scores), "dice")


def add_up(values):
    return (hvd.allreduce(torch.tensor(values, dtype=torch.float64), name="data") * size).tolist()


# The volumes are made by MONAI, whose releases may differ between hosts.
example_tools.check_same_data(
    [part.numpy().tobytes() for part in Volumes(1, 0)[0]], rank, size, add_up
)
if rank == 0:
    print(
        "%d ranks on %s: %d volumes of %d^3 voxels to train on, %d to test on"
        % (size, device.type, args.volumes, args.size, len(test_loader.dataset)),
        flush=True,
    )
metrics = {}
for epoch in range(1, args.epochs + 1):
    sampler.set_epoch(epoch)
    total = 0.0
    for images, masks in loader:
        optimizer.zero_grad()
        loss = loss_of(model(images.to(device)), masks.to(device))
        loss.backward()
        optimizer.step()
        total += loss.item()
    metrics = {"loss": round(average(total / len(loader), "loss"), 4), "dice": round(dice(), 4)}
    if rank == 0:
        print(
            "epoch %d of %d: loss %.4f, test Dice %.4f"
            % (epoch, args.epochs, metrics["loss"], metrics["dice"]),
            flush=True,
        )
metrics["seconds"] = round(time.monotonic() - started, 2)

state = model.state_dict()
checksum = example_tools.checksum(state)
if rank == 0:
    os.makedirs(args.output_dir, exist_ok=True)
    checkpoint = {"model": state, "epoch": args.epochs, "metrics": metrics}
    example_tools.save_atomically(
        lambda stream: torch.save(checkpoint, stream),
        os.path.join(args.output_dir, "checkpoint.pt"),
    )
example_tools.report(checksum, metrics)
print("rank %d of %d is done: parameters sha256 %s" % (rank, size, checksum), flush=True)
hvd.shutdown()
