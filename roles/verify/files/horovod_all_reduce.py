# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures Horovod's all-reduce over the hosts of a job, in images without PyTorch: each host
alone, then all together.

horovodrun starts the ranks, which run the same steps in the same order. Groups of ranks are
Horovod's process sets. Versions without them (before 0.23) only measure all ranks together. The job
does not search for a slow host, because a rank that loses its peer ends with its job, and no other
group can be tried. Then all ranks work once more and are watched. Horovod reduces one message at a
time here, so nothing is fused. Gloo uses one ring, as PyTorch's Gloo does. NCCL may use any of its
algorithms: all ranks are one communicator for the whole job, so it cannot be limited to its ring
for one part. Plan and answer are those of all_reduce.py in the same folder. Python 3.6, for old
training images.
"""

import json
import os
import sys
import time

import _bandwidth
import all_reduce
from _job_watch import losses

NO_SEARCH = (
    "measured with Horovod; the search for the slow host or link needs an image with PyTorch"
)
NOT_WATCHED = "MPI carries Horovod's data and chooses the algorithm and the cards itself"


class Binding(object):
    """Common part of all bindings: sums over the ranks of a process set."""

    #: Whether an all-reduce returns before it has finished.
    lazy = False

    def reduce(self, buffer, name, process_set):
        # Versions before 0.19 have no operations, versions before 0.23 no process sets.
        options = {"op": self.hvd.Sum} if hasattr(self.hvd, "Sum") else {"average": False}
        if process_set is not None:
            options["process_set"] = process_set
        return self.hvd.allreduce(buffer, name=name, **options)


class Torch(Binding):
    def __init__(self):
        import horovod.torch as hvd
        import torch

        self.torch, self.hvd = torch, hvd

    def start(self, local_rank):
        self.gpu = self.torch.cuda.is_available()
        self.torch.set_num_threads(1)
        if self.gpu:
            self.torch.cuda.set_device(local_rank)
        self.device = (
            self.torch.device("cuda", local_rank) if self.gpu else self.torch.device("cpu")
        )

    def pattern(self, count, addend):
        return (self.torch.arange(count, device=self.device) % all_reduce.PATTERN + addend).to(
            self.torch.float32
        )

    def array(self, values):
        return self.torch.tensor(values, dtype=self.torch.float64)

    def values(self, buffer):
        return buffer.tolist()

    def differ(self, buffer, expected):
        return int((buffer != expected).sum().item())

    def wait(self, buffer):
        return float(buffer[0].item())


class TensorFlow(Binding):
    def __init__(self):
        import horovod.tensorflow as hvd
        import tensorflow as tf

        self.tf, self.hvd = tf, hvd
        if not tf.executing_eagerly():
            # TensorFlow 1.
            tf.compat.v1.enable_eager_execution()

    def start(self, local_rank):
        gpus = self.tf.config.experimental.list_physical_devices("GPU")
        self.gpu = bool(gpus)
        if gpus:
            self.tf.config.experimental.set_visible_devices(gpus[local_rank], "GPU")
            self.tf.config.experimental.set_memory_growth(gpus[local_rank], True)

    def pattern(self, count, addend):
        return self.tf.cast(self.tf.range(count) % all_reduce.PATTERN, self.tf.float32) + float(
            addend
        )

    def array(self, values):
        with self.tf.device("CPU"):
            return self.tf.constant(values, dtype=self.tf.float64)

    def values(self, buffer):
        return buffer.numpy().tolist()

    def differ(self, buffer, expected):
        return int(
            self.tf.reduce_sum(
                self.tf.cast(self.tf.not_equal(buffer, expected), self.tf.int64)
            ).numpy()
        )

    def wait(self, buffer):
        return float(buffer[0].numpy())


class MXNet(Binding):
    # Parallel operations need different names, and these have the same.
    lazy = True

    def __init__(self):
        import horovod.mxnet as hvd
        import mxnet

        self.mxnet, self.hvd = mxnet, hvd

    def start(self, local_rank):
        self.gpu = self.mxnet.context.num_gpus() > 0
        self.context = self.mxnet.gpu(local_rank) if self.gpu else self.mxnet.cpu()

    def pattern(self, count, addend):
        return (
            self.mxnet.nd.arange(count, ctx=self.context, dtype="int32") % all_reduce.PATTERN
            + addend
        ).astype("float32")

    def array(self, values):
        return self.mxnet.nd.array(values, dtype="float64")

    def values(self, buffer):
        return buffer.asnumpy().tolist()

    def differ(self, buffer, expected):
        return int((buffer != expected).sum().asscalar())

    def wait(self, buffer):
        return float(buffer[0].asscalar())


def load():
    """Return the first binding that can be imported."""
    reasons = []
    for binding in (Torch, TensorFlow, MXNet):
        try:
            return binding(), reasons
        except (ImportError, AttributeError, OSError, RuntimeError, TypeError, ValueError) as error:
            # A framework that is installed and broken fails in its own ways.
            reasons.append(
                "%s: %s"
                % (binding.__name__, (str(error).strip().splitlines() or [type(error).__name__])[0])
            )
    raise SystemExit(
        "The bandwidth job needs Horovod, but none of its bindings can be imported: %s"
        % "; ".join(reasons)
    )


class Job(object):
    def __init__(self, plan, binding):
        self.plan, self.binding, self.hvd = plan, binding, binding.hvd
        self.hosts = [host["name"] for host in plan["hosts"]]
        places = [(host["name"], slot) for host in plan["hosts"] for slot in range(host["slots"])]
        self.everybody = list(range(len(places)))
        self.host_of = [name for name, _slot in places]
        self.first_of = {host: self.host_of.index(host) for host in self.hosts}
        self.ranks_of = {
            host: [rank for rank in self.everybody if self.host_of[rank] == host]
            for host in self.hosts
        }
        self.sets = {}
        # Position in NCCL's log before all ranks are measured together.
        self.logged = 0

    def wanted_sets(self):
        """Return the groups of ranks besides all: those of each host, and the first rank of each
        host, because without GPUs two would share CPU and card.
        """
        groups = [ranks for ranks in self.ranks_of.values() if len(ranks) > 1] + [
            list(self.first_of.values())
        ]
        return [
            list(group)
            for group in dict.fromkeys(
                tuple(ranks) for ranks in groups if len(ranks) > 1 and ranks != self.everybody
            )
        ]

    def start(self):
        self.log = all_reduce.nccl_log()
        if hasattr(self.hvd, "ProcessSet"):
            self.sets = {tuple(ranks): self.hvd.ProcessSet(ranks) for ranks in self.wanted_sets()}
            self.hvd.init(process_sets=list(self.sets.values()))
        else:
            self.hvd.init()
        self.rank = self.hvd.rank()
        if self.hvd.size() != len(self.everybody):
            raise SystemExit(
                "Horovod has started %d ranks, but the plan has %d"
                % (self.hvd.size(), len(self.everybody))
            )
        self.binding.start(self.hvd.local_rank())
        # The bounds of the bandwidth depend on it.
        self.collective = "nccl" if self.binding.gpu else "gloo"
        self.carrier = carrier(self.hvd, self.binding.gpu)

    def runs(self):
        """Return (id, hosts, ranks) of the possible measurements: each host alone, and all
        together.
        """
        found = [
            ("host:%s" % host, [host], ranks)
            for host, ranks in self.ranks_of.items()
            if len(ranks) > 1
        ]
        if len(self.hosts) > 1:
            firsts = list(self.first_of.values())
            found.append(
                (
                    "cluster",
                    self.hosts,
                    firsts
                    if self.collective == "gloo" and tuple(firsts) in self.sets
                    else self.everybody,
                )
            )
        return [
            (name, hosts, ranks)
            for name, hosts, ranks in found
            if ranks == self.everybody or tuple(ranks) in self.sets
        ]

    def sum(self, buffer, ranks, name):
        return self.binding.reduce(
            buffer,
            "trainyard.%s.%s" % ("-".join(map(str, ranks[:1] + ranks[-1:])), name),
            self.sets.get(tuple(ranks)),
        )

    def mean(self, seconds, ranks):
        """Return the same number on all ranks, so that they continue in the same way."""
        return self.binding.values(self.sum(self.binding.array([seconds]), ranks, "mean"))[0] / len(
            ranks
        )

    def gather(self, value):
        """Return the values of all ranks in their order, on all ranks: as text, added to zeros.

        Not every binding can send objects.
        """
        text = json.dumps(value).encode()
        own_length = [0.0] * len(self.everybody)
        own_length[self.rank] = float(len(text))
        lengths = self.sum(self.binding.array(own_length), self.everybody, "lengths")
        lengths = [int(length) for length in self.binding.values(lengths)]
        place, length = sum(lengths[: self.rank]), sum(lengths)
        mine = [0.0] * place + [float(byte) for byte in text] + [0.0] * (length - place - len(text))
        data = bytes(
            int(byte)
            for byte in self.binding.values(
                self.sum(self.binding.array(mine), self.everybody, "text.%d" % length)
            )
        )
        ends = [sum(lengths[: rank + 1]) for rank in self.everybody]
        return [json.loads(data[end - one : end].decode()) for one, end in zip(lengths, ends)]

    def tell(self, value, root):
        """Return the value of rank `root` on all ranks."""
        return self.gather(value if self.rank == root else None)[root]

    def rows(self, ranks, sizes):
        """Return a row for each size, as in all_reduce.py."""
        rows, begun = [], time.perf_counter()
        for size in sizes:
            count, name = size // 4, "size.%d" % size
            buffer = self.binding.pattern(count, ranks.index(self.rank) + 1)
            # Checks the sum, warms up, and determines the number of iterations.
            first = time.perf_counter()
            result = self.sum(buffer, ranks, name)
            expected = (
                self.binding.pattern(count, 0) * len(ranks) + len(ranks) * (len(ranks) + 1) / 2.0
            )
            wrong = round(
                self.mean(float(self.binding.differ(result, expected)), ranks) * len(ranks)
            )
            once = self.mean(time.perf_counter() - first, ranks)
            block = max(1, min(all_reduce.BLOCK, int(all_reduce.ROW_SECONDS / once)))
            done, spent, since = 0, 0.0, time.perf_counter()
            while spent < all_reduce.ROW_SECONDS:
                for _iteration in range(block):
                    result = self.sum(buffer, ranks, name)
                    if self.binding.lazy:
                        self.binding.wait(result)
                self.binding.wait(result)
                done += block
                spent = self.mean(time.perf_counter() - since, ranks)
            rows.append(_bandwidth.row(size, spent / done, len(ranks), wrong))
            if not all_reduce.measures_next(
                self.mean(time.perf_counter() - begun, ranks), spent / done
            ):
                break
        return rows

    def measure(self):
        """Run all measurements one after the other. Every rank has their rows."""
        sizes = _bandwidth.sizes(int(self.plan["largest"][self.collective]))
        measured = []
        for name, hosts, ranks in self.runs():
            begun = time.perf_counter()
            self.logged = os.path.getsize(self.log.name)
            rows = self.tell(self.rows(ranks, sizes) if self.rank in ranks else [], ranks[0])
            measured.append(
                {
                    "id": name,
                    "hosts": hosts,
                    "ranks": len(ranks),
                    "rows": rows,
                    "seconds": round(time.perf_counter() - begun, 2),
                    "errors": [],
                    "transports": [],
                }
            )
            if self.rank == 0:
                print("%-40s %.3f GB/s" % (name, _bandwidth.judged_busbw(rows) or 0), flush=True)
        return measured

    def is_worth_watching(self, run):
        """Return whether a measurement is one of all hosts, and has anything to look at."""
        has_more = len(self.hosts) > 1 or self.binding.gpu
        return bool(run["rows"]) and run["hosts"] == self.hosts and has_more

    def watch(self, measured, cards):
        """Let the ranks of the last measurement work once more and watch them.

        C(cards) are the host's, on the first of its ranks.
        """
        run = measured[-1] if measured else None
        if run is None or not self.is_worth_watching(run):
            return {}
        if self.carrier == "mpi":
            return {"error": NOT_WATCHED}
        ranks = next(ranks for name, _hosts, ranks in self.runs() if name == run["id"])
        size = _bandwidth.watched_size(
            max(row["size_bytes"] for row in run["rows"]), self.carrier, len(ranks)
        )
        seen = None
        if self.rank in ranks:
            buffer = self.binding.pattern(size // 4, 0)

            def work(count):
                for _iteration in range(count):
                    result = self.sum(buffer, ranks, "watched")
                    if self.binding.lazy:
                        self.binding.wait(result)
                self.binding.wait(result)

            seen = all_reduce.watch(
                work, lambda value: self.mean(value, ranks), cards, self.binding.gpu
            )
            seen["via"] = all_reduce.connections(self.log, self.logged)
        answers = self.gather(seen)
        watched = dict(
            all_reduce.watched(
                size, [self.host_of[rank] for rank in ranks], [answers[rank] for rank in ranks]
            ),
            ring=self.carrier == "gloo",
        )
        if self.rank == 0:
            print("%-40s %d x %d bytes" % ("watched", watched["iterations"], size), flush=True)
        return watched


def carrier(hvd, gpu):
    """Return the backend of an all-reduce: nccl, mpi or gloo.

    Versions before 0.18 have no Gloo and do not report NCCL.
    """
    if gpu and getattr(hvd, "nccl_built", lambda: True)():
        return "nccl"
    return "mpi" if getattr(hvd, "mpi_enabled", lambda: True)() else "gloo"


def main():
    plan = all_reduce.read_plan()
    begun = time.perf_counter()
    binding, reasons = load()
    job = Job(plan, binding)
    job.start()
    # The facts of the host, from the first of its ranks.
    mine = all_reduce.facts(binding.gpu) if job.rank in job.first_of.values() else None
    gathered = job.gather(mine)
    facts = {host: gathered[first] for host, first in job.first_of.items()}
    before = losses(mine["cards"]) if mine else None
    measured = job.measure()
    lost = job.gather(_bandwidth.grown(before, losses(mine["cards"])) if mine else None)
    found = {
        "collective": "horovod",
        "carrier": job.carrier,
        "on_gpus": binding.gpu,
        "binding": type(binding).__name__,
        "not_loaded": reasons,
        "runs": _bandwidth.judge_runs(
            measured, facts, job.collective, plan["asked"], plan["history"].get("horovod", {})
        ),
        "watched": {},
        "lost": {host: lost[first] for host, first in job.first_of.items()},
        "facts": facts,
        "blame": [],
        "suspect": [],
        "note": _bandwidth.BROKE_OFF,
        "rounds": 0,
        "seconds": round(time.perf_counter() - begun, 2),
    }
    if job.rank == 0:
        all_reduce.write_answer(found)
    found.update(
        watched=job.watch(measured, mine["cards"] if mine else None),
        note=NO_SEARCH if len(job.hosts) > 1 else "",
        seconds=round(time.perf_counter() - begun, 2),
    )
    if job.rank == 0:
        all_reduce.write_answer(found)
        all_reduce.report_metrics(found)
    # No rank ends before the last one has finished.
    job.mean(0.0, job.everybody)
    job.hvd.shutdown()


if __name__ == "__main__":
    sys.exit(main())
