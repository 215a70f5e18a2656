# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Has the programs that run inside images do their work, and prints what comes of it as JSON.

Run by two Pythons, it must be the same.

Needs nothing but Python 3.6. Arguments: the root of the collection, and an empty folder. A
framework is a stand-in here: scenario old_python has PyTorch.
"""

import base64
import contextlib
import hashlib
import importlib.util
import io
import json
import os
import re
import sys
import tarfile
import threading
import types

ROOT, FOLDER = sys.argv[1:3]
UTILS = os.path.join(ROOT, "plugins/module_utils")
NVIDIA = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu1804/x86_64"
ASKED = {"fraction": 0.7, "min_busbw_gb_s": 0.0, "peer_fraction": 0.01, "drop_percent": 20}


def load(path, name=""):
    """A program or module by its path in the collection, under the name by which its neighbours
    know it.
    """
    name = name or os.path.basename(path)[:-3]
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, os.path.join(ROOT, path))
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def written(name, text):
    path = os.path.join(FOLDER, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)
    return path


def refused(function, *arguments):
    """What an error says."""
    try:
        function(*arguments)
    except Exception as error:
        return "%s: %s" % (type(error).__name__, str(error).replace(FOLDER, ""))
    return "nothing"


def bandwidth():
    module = load("plugins/module_utils/_bandwidth.py")
    rows = [module.row(size, size / 2e9, 2, 0) for size in module.sizes(1 << 24)]
    run = {
        "id": "host:a",
        "hosts": ["a"],
        "ranks": 2,
        "rows": rows,
        "errors": [],
        "transports": [],
        "seconds": 1,
    }
    facts = {name: {"cards": [module.card("eth0", "100000")], "gpus": []} for name in "ab"}
    both = dict(run, id="cluster", hosts=["a", "b"])
    judged = module.judge_runs(
        [run, dict(run, id="host:b", hosts=["b"]), both], facts, "gloo", ASKED, {"cluster": 9.0}
    )
    return [
        module.card("mlx5_0", "200 Gb/sec (4X HDR)", True, "16.0 GT/s PCIe", "16"),
        refused(module.card, "eth0", "fast"),
        module.gpus("GPU 0: A\n\t Link 0: 25.781 GB/s\n", "4, 16\n"),
        rows,
        judged,
        module.better(run, dict(run, rows=rows[2:])),
        module.history(
            [{"collective": "gloo", "runs": judged}],
            "gloo",
            "host:a",
            ["a"],
            [row["size_bytes"] for row in rows],
        ),
        module.watched_size(1 << 24, "gloo", 4),
        module.must_move(1 << 20, 10, 4),
        module.counted({"statistics/tx_bytes": "7\n", "statistics/rx_bytes": "9"}),
        module.usage("12 %, 3 MiB, 9 MiB\n[N/A], 1, 2\n7, [N/A], 2\n"),
        refused(module.usage, "many"),
    ]


def blame():
    module, hosts = load("plugins/module_utils/_blame.py"), ["a", "b", "c", "d"]
    found, slow = [module.circle(hosts)], [{"c"}, {"b", "d"}]
    for culprits in slow:
        search, answers = module.search(hosts, 0.8, {host: 1.0 for host in hosts}), None
        while True:
            try:
                groups = search.send(answers)
            except StopIteration as done:
                found.append(done.value)
                break
            answers = {
                group: 0.1 if culprits <= set(group) and len(group) > 1 else 1.0 for group in groups
            }
    return found


def job_hang():
    module = load("roles/train/files/_job_hang.py")
    progress = module.Progress(1, 0)
    dump = 'Thread 7 (idle): "MainThread"\n    all_reduce (torch/distributed/distributed_c10d.py:9)\n    main (t.py:3)\n'
    ranks = [
        {
            "kind": "rank",
            "rank": rank,
            "pid": rank,
            "inner": rank,
            "command": "t",
            "state": "S",
            "wchan": "hrtimer_nanosleep",
            "kernel": "",
            "dump": dump * rank,
            "said": "",
            "children": [],
        }
        for rank in range(3)
    ]
    answers = [{"host": "a", "ranks": ranks, "ras": None}]
    said = module.tell(FOLDER, answers)
    return [
        [progress.look(at, 1, [{"now": []}]) for at in (0, 30, 60, 90)],
        said,
        module.collect("no such job"),
        module.ask_ras("localhost:1"),
        module.parse_ras("  The missing rank: 3\n"),
        module.parse_ras('{"communicators": []}'),
    ]


def job_watch():
    load("plugins/module_utils/_bandwidth.py")
    module = load("roles/train/files/_job_watch.py")
    sysfs = os.path.join(FOLDER, "sys")
    written("sys/class/net/eth0/speed", "25000\n")
    written("sys/class/net/eth0/device/current_link_width", "8\n")
    for name, number in (("tx_bytes", 1000), ("rx_bytes", 2000)):
        written("sys/class/net/eth0/statistics/" + name, "%d\n" % number)
    for name, text in (
        ("state", "4: ACTIVE"),
        ("rate", "100 Gb/sec (4X EDR)"),
        ("link_layer", "InfiniBand"),
        ("counters/port_xmit_data", "5"),
        ("counters/port_rcv_data", "6"),
    ):
        written("sys/class/infiniband/mlx5_0/ports/1/" + name, text + "\n")
    found = [
        module.cards_of({"GLOO_SOCKET_IFNAME": "eth0"}, False, sysfs),
        module.cards_of({"NCCL_IB_HCA": "=mlx5_0:1"}, True, sysfs),
        module.rdma_cards("^mlx5_0", sysfs),
        sys.modules["_bandwidth"].transports(
            "x via NET/IB/0 y\nx via P2P/CUMEM\nx via direct shared memory\n"
        ),
        module.seen_gpus(2, ["0", "3"], [90, 0, 0, 1]),
    ]
    found.append([module.counters(cards, sysfs) for cards, _interface in found[:2]])
    os.environ.update(GLOO_SOCKET_IFNAME="eth0")
    sink, (source, end) = io.StringIO(), os.pipe()
    os.close(end)
    with os.fdopen(source) as stream:
        module.watch(False, stream, sink, sysfs)
    del os.environ["GLOO_SOCKET_IFNAME"]
    return found + [json.loads(line) for line in sink.getvalue().splitlines()]


def steps():
    load("plugins/module_utils/_apt_sources.py", "apt_sources")
    load("plugins/module_utils/_openpgp.py", "openpgp")
    module = load("roles/training_image/files/steps.py")
    written(
        "apt/sources.list", "deb %s /\ndeb http://archive.ubuntu.com/ubuntu bionic main\n" % NVIDIA
    )
    written(
        "apt/sources.list.d/cuda.sources",
        "Types: deb\nURIs: %s\nSuites: /\nSigned-By: /usr/share/keyrings/cuda.gpg\n" % NVIDIA,
    )
    written("source/setup.py", "std=c++14\n")
    repository = {
        "uris": ["https://mirror.example/ubuntu"],
        "suites": ["bionic"],
        "components": ["main"],
        "architectures": ["amd64"],
    }
    fixes = [
        {
            "name": "new",
            "reason": "r",
            "source": ["s"],
            "when": {"torch": ">=2.1,<3"},
            "environment": {"A": "1"},
            "replace": [{"file": "setup.py", "from": "c++14", "to": "c++17"}],
        },
        {
            "name": "old",
            "reason": "r",
            "source": ["s"],
            "when": {"torch": "<2.1"},
            "environment": {"B": "1"},
        },
    ]
    variables = module.apply_fixes(
        fixes, {"torch": "2.6.0a0+df5bbc09d1"}, os.path.join(FOLDER, "source")
    )
    with open(os.path.join(FOLDER, "source/setup.py")) as stream:
        source = stream.read()
    lists = module.lists_without(
        lambda entry: "nvidia" in entry["uri"], os.path.join(FOLDER, "apt")
    )
    return [
        module.numbers("2.6.0a0+df5bbc09d1"),
        module.fits("2.1", ">=2.1,<2.13"),
        variables,
        source,
        refused(
            module.apply_fixes, fixes[:1], {"torch": "2.2"}, os.path.join(FOLDER, "source")
        ).split(":")[0],
        [
            [path.replace(FOLDER, ""), rest and rest.decode(), gone]
            for path, _before, rest, gone in lists
        ],
        module.deb822(repository, "/key.asc"),
        refused(module.deb822, dict(repository, suites=["a b"]), "x"),
        module.keys_as_files("Signed-By:\n -----BEGIN\n .\n AA\n", "/etc/keys"),
        sorted(module.repository_places([repository])),
        module.os_release(written("os-release", 'ID=ubuntu\nVERSION_ID="18.04"\n')),
        module.distribution(["no-such-distribution"]),
        module.keys_of(b"none"),
        module.distribution_on_path("pip") is not None,
    ]


def rank():
    module = load("roles/training_image/files/rank.py")
    module.write_json(os.path.join(FOLDER, "rank.json"), {"b": 1, "a": "\u00e9"})
    return [
        module.place({"HOROVOD_RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "x"}),
        module.container_id("a /var/lib/docker/containers/%s/hosts b" % ("0" * 64)),
        module.local_addresses(
            "  |-- 10.0.0.1\n     /32 host LOCAL\n  |-- 10.0.0.2\n     /24 link UNICAST\n"
        ),
        module.read(os.path.join(FOLDER, "rank.json")),
    ]


def source_build():
    module = load("roles/nccl/files/source_build.py")
    header = written(
        "tree/nccl-2/src/Makefile",
        "#define NCCL_MAJOR 2\n#define NCCL_MINOR 8\n#define NCCL_PATCH 4\n",
    )
    archive, record, target = (
        os.path.join(FOLDER, name) for name in ("nccl.tar.gz", "record.json", "placed/bin/tool")
    )
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(os.path.join(FOLDER, "tree/nccl-2"), "nccl-2")
    fetched = os.path.join(FOLDER, "fetched.tar.gz")
    module.fetch("nccl", "file://" + archive, module.digest(archive), fetched)
    wrong = refused(module.fetch, "nccl", "file://" + archive, "0" * 64, fetched)
    unpacked = module.unpack("nccl", fetched, os.path.join(FOLDER, "unpacked"), "NCCL")
    module.place(record, "1", {target: header}, [os.path.dirname(target)], "move it")
    there = (
        os.path.exists(target),
        sorted(module.read_record(record)),
        module.missing_folders(target)[-1:] == [target],
    )
    removed = module.remove(record), os.path.exists(os.path.dirname(target)), module.remove(record)
    return [
        module.header_version(header),
        re.sub("[0-9a-f]{64}", "", wrong),
        unpacked.replace(FOLDER, ""),
        there,
        removed,
        module.parse_libraries(
            "\tlibnccl.so.2 => /usr/lib/libnccl.so.2 (0x1f)\n\tlibx.so => not found\n"
        ),
        refused(module.unpack, "nccl", header, FOLDER, "NCCL").partition(" successfully")[0],
    ]


def nccl_tests():
    source_build()
    # It imports the builder of role nccl_tests by its name, from the folder in which the build has
    # put it.
    load("roles/nccl_tests/files/nccl_tests_from_source.py")
    steps()
    module = load("roles/training_image/files/nccl_tests.py")
    asked = {
        "mpi_home": FOLDER,
        "cuda_home": "/usr/local/cuda",
        "nccl_home": FOLDER,
        "compute_capabilities": ["80", "90"],
        "make_variables": {"B": "2", "A": "1"},
    }
    os.makedirs(os.path.join(FOLDER, "lib"), exist_ok=True)
    written("include/nccl.h", "#define NCCL_MAJOR 2\n")
    return [
        module.nccl_home(FOLDER).replace(FOLDER, ""),
        module.mpi_home(""),
        [
            text.replace(FOLDER, "")
            for text in sys.modules["nccl_tests_from_source"].make_variables(asked)
        ],
        sys.modules["nccl_tests_from_source"].run_path(asked).replace(FOLDER, "").split(":")[:2],
    ]


def all_reduce_job():
    """Without PyTorch its facts and its plan; the conductor with a stand-in whose ranks answer at
    once.
    """
    for path in (
        "plugins/module_utils/_bandwidth.py",
        "plugins/module_utils/_blame.py",
        "roles/train/files/_job_watch.py",
    ):
        load(path)
    torch = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(is_available=lambda: False)
    torch.device = lambda *names: types.SimpleNamespace(type=names[0])
    torch.set_num_threads = lambda count: None
    torch.distributed = types.ModuleType("torch.distributed")
    meeting = types.ModuleType("torch.distributed.rendezvous")
    meeting.rendezvous = lambda url: iter(
        [(types.SimpleNamespace(set_timeout=lambda timeout: None), 0, 4)]
    )
    sys.modules.update(
        {
            "torch": torch,
            "torch.distributed": torch.distributed,
            "torch.distributed.rendezvous": meeting,
        }
    )
    module, rows = load("roles/verify/files/all_reduce.py"), sys.modules["_bandwidth"].row
    plan = {
        "hosts": [{"name": name, "slots": 2} for name in "ab"],
        "at_once": 0,
        "largest": {"gloo": "4096", "nccl": "0"},
        "history": {},
        "asked": ASKED,
    }
    os.environ.update(
        TRAINYARD_BANDWIDTH=base64.b64encode(json.dumps(plan).encode()).decode(),
        TRAINYARD_JOB_DIR=FOLDER,
        MASTER_ADDR="127.0.0.1",
    )
    conductor = module.Conductor(module.read_plan())
    conductor.ask = lambda wanted, watch=False: {
        name: {
            "rows": [rows(size, size / 1e9, len(ranks), 0) for size in sizes],
            "seconds": 1,
            "error": "",
        }
        for name, (ranks, sizes) in wanted.items()
    }
    conductor.put, conductor.get, conductor.watch_all = (
        (lambda key, value: None),
        (lambda key: module.facts(False)),
        lambda: None,
    )
    conductor.lead()
    with open(os.path.join(FOLDER, "bandwidth.json")) as stream:
        found = json.load(stream)
    return [
        module.facts(False),
        [(run["id"], run["passed"], run["judged_busbw_gb_s"]) for run in found["runs"]],
        found["blame"],
        found["note"],
    ]


class Vector(list):
    def __mul__(self, factor):
        return Vector(value * factor for value in self)

    def __add__(self, more):
        return Vector(value + more for value in self)


class Ranks(object):
    """Horovod as four threads have it: an all-reduce ends when everyone of its set has brought a
    buffer.
    """

    Sum = "sum"

    def __init__(self, size):
        self.count, self.local, self.lock, self.barriers, self.brought = (
            size,
            threading.local(),
            threading.Lock(),
            {},
            {},
        )
        self.ProcessSet = tuple

    def init(self, process_sets=()):
        pass

    def rank(self):
        return self.local.rank

    def size(self):
        return self.count

    local_rank = shutdown = rank

    def allreduce(self, buffer, name, op="sum", process_set=None):
        ranks = process_set or tuple(range(self.count))
        with self.lock:
            barrier = self.barriers.setdefault(ranks, threading.Barrier(len(ranks), timeout=200))
            self.brought[ranks, self.rank()] = buffer
        barrier.wait()
        buffers = [self.brought[ranks, rank] for rank in ranks]
        barrier.wait()
        return [sum(values) for values in zip(*buffers)]


def horovod_job():
    all_reduce_job()
    module, hvd = load("roles/verify/files/horovod_all_reduce.py"), Ranks(4)

    class Binding(module.Binding):
        gpu = False

        def __init__(self):
            self.hvd = hvd

        def start(self, local_rank):
            pass

        def pattern(self, count, addend):
            return Vector(float(place % 7 + addend) for place in range(count))

        def array(self, values):
            return Vector(values)

        def values(self, buffer):
            return buffer

        def differ(self, buffer, expected):
            return sum(one != other for one, other in zip(buffer, expected))

        def wait(self, buffer):
            return buffer[0]

    # However slow the machine is, no size is left out.
    module.load, module.all_reduce.ROW_SECONDS, module.all_reduce.RUN_SECONDS = (
        (lambda: (Binding(), ["Torch: none"])),
        0.001,
        1e6,
    )
    errors = []

    def work(number):
        hvd.local.rank = number
        try:
            module.main()
        except (Exception, SystemExit) as error:
            errors.append(repr(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(250)
    with open(os.path.join(FOLDER, "bandwidth.json")) as stream:
        found = json.load(stream)
    return [
        errors,
        found["binding"],
        found["not_loaded"],
        [
            (run["id"], run["ranks"], [row["in_place"]["wrong"] for row in run["rows"]])
            for run in found["runs"]
        ],
    ]


def example_tools():
    module = load("roles/train/files/examples/example_tools.py")
    images, labels = module.generated_digits(40)
    module.save_atomically(lambda stream: stream.write(b"kept"), os.path.join(FOLDER, "checkpoint"))
    os.environ["TRAINYARD_RANK_REPORT"] = os.path.join(FOLDER, "report")
    module.report("abc", {"loss": 0.5})
    with open(os.path.join(FOLDER, "report")) as report, open(
        os.path.join(FOLDER, "checkpoint")
    ) as checkpoint:
        told = [json.load(report), checkpoint.read()]
    # Not the last digits of floats: Python guarantees those of random() alone.
    return [
        hashlib.sha256(
            repr([[round(value, 9) for value in image] for image in images]).encode()
        ).hexdigest(),
        labels,
        told,
        module.digits("generated")[0],
    ]


CASES = (
    bandwidth,
    blame,
    job_hang,
    job_watch,
    steps,
    rank,
    source_build,
    nccl_tests,
    all_reduce_job,
    horovod_job,
    example_tools,
)


def main():
    sys.dont_write_bytecode = True
    found = {}
    for number, case in enumerate(CASES):
        globals()["FOLDER"] = os.path.join(sys.argv[2], str(number))
        os.makedirs(FOLDER)
        # What they tell their user.
        with contextlib.redirect_stdout(io.StringIO()):
            found[case.__name__] = case()
    print(json.dumps({"python": list(sys.version_info[:2]), "cases": found}, sort_keys=True))


if __name__ == "__main__":
    main()
