"""The bandwidth job of images without PyTorch, its ranks as threads that add what they have.

Scenario cluster has Horovod itself.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _bandwidth, _blame
from ansible_collections.trainyard.gpu.roles.train.files import _job_watch

FOLDER = Path(__file__).resolve().parents[4] / "roles/verify/files"
ASKED = {"fraction": 0.7, "min_busbw_gb_s": 0.0, "peer_fraction": 0.01, "drop_percent": 20}


@pytest.fixture(name="program")
def fixture_program(monkeypatch):
    """The program, without a framework."""
    for name, module in {
        "torch": None,
        "_bandwidth": _bandwidth,
        "_blame": _blame,
        "_job_watch": _job_watch,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    loaded = {}
    for name in ("all_reduce", "horovod_all_reduce"):
        spec = importlib.util.spec_from_file_location(name, FOLDER / ("%s.py" % name))
        loaded[name] = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, loaded[name])
        spec.loader.exec_module(loaded[name])
    monkeypatch.setattr(loaded["all_reduce"], "ROW_SECONDS", 0.001)
    monkeypatch.setattr(loaded["all_reduce"], "WATCH_SECONDS", {"gloo": 0.01, "nccl": 0.01})
    return loaded["horovod_all_reduce"]


class Horovod:
    """All ranks' side of it: an all-reduce ends when everyone of its set has brought a buffer of
    the same name.
    """

    Sum = "sum"

    def __init__(self, size, with_sets):
        self.size_, self.place, self.barriers, self.brought, self.lock = (
            size,
            threading.local(),
            {},
            {},
            threading.Lock(),
        )
        if with_sets:
            self.ProcessSet = tuple
        self.initialised = []
        # By rank, what it has brought in buffers of 1 KiB and more, and how often; and what is
        # enabled.
        self.moved = {}
        self.mpi_enabled, self.nccl_built = (lambda: False), (lambda: False)

    def init(self, process_sets=()):
        self.initialised.append([list(ranks) for ranks in process_sets])

    def rank(self):
        return self.place.rank

    def size(self):
        return self.size_

    local_rank = shutdown = rank

    def allreduce(self, buffer, name, op="sum", process_set=None):
        ranks = process_set or tuple(range(self.size_))
        assert self.rank() in ranks
        with self.lock:
            barrier = self.barriers.setdefault(ranks, threading.Barrier(len(ranks), timeout=10))
            self.brought[ranks, self.rank()] = (name, buffer)
        barrier.wait()
        names, buffers = zip(*(self.brought[ranks, rank] for rank in ranks))
        barrier.wait()
        assert len(set(names)) == 1, names
        self.moved.setdefault(self.rank(), []).append((name, 4 * len(buffer)))
        return [sum(values) for values in zip(*buffers)]


class Vector(list):
    def __mul__(self, factor):
        return Vector(value * factor for value in self)

    def __add__(self, more):
        return Vector(value + more for value in self)


@pytest.fixture(name="measure")
def fixture_measure(program, tmp_path, monkeypatch):
    def measured(
        hosts=(("a", 2), ("b", 2)),
        with_sets=True,
        wrong_rank=None,
        started=None,
        gpu=False,
        carrier="gloo",
    ):
        plan = {
            "hosts": [{"name": name, "slots": slots} for name, slots in hosts],
            "largest": {"gloo": 4096, "nccl": 4096},
            "history": {},
            "asked": ASKED,
        }
        size = sum(slots for _name, slots in hosts)
        horovod = Horovod(started or size, with_sets)
        horovod.mpi_enabled, horovod.nccl_built = (
            (lambda: carrier == "mpi"),
            (lambda: carrier == "nccl"),
        )

        class Binding(program.Binding):
            hvd = horovod

            def start(self, local_rank):
                pass

            def pattern(self, count, addend):
                return Vector(float(place % 7 + addend) for place in range(count))

            def array(self, values):
                return Vector(values)

            def values(self, buffer):
                return buffer

            def differ(self, buffer, expected):
                return sum(one != other for one, other in zip(buffer, expected)) + (
                    horovod.rank() == wrong_rank
                )

            def wait(self, buffer):
                return buffer[0]

        monkeypatch.setattr(
            program, "load", lambda: (Binding(), ["Torch: No module named 'torch'"])
        )
        monkeypatch.setattr(program.all_reduce, "read_plan", lambda: plan)
        Binding.gpu = gpu
        monkeypatch.setattr(
            program.all_reduce,
            "facts",
            lambda with_gpus: {
                "cards": [_bandwidth.card("eth%d" % horovod.rank(), "")],
                "gpus": [],
                "interface": "eth%d" % horovod.rank(),
            },
        )
        monkeypatch.setattr(
            program.all_reduce,
            "card_counters",
            lambda cards: {card["name"]: program.all_reduce.counters([card]) for card in cards},
        )
        # A card's counters are what its rank has brought under the name of what is watched.
        monkeypatch.setattr(
            program.all_reduce,
            "counters",
            lambda cards: (
                [
                    sum(
                        size
                        for name, size in horovod.moved[int(card["name"][3:])]
                        if name.endswith("watched")
                    )
                    for card in cards
                    for _way in range(2)
                ]
                or None
            ),
        )
        monkeypatch.setenv("TRAINYARD_JOB_DIR", str(tmp_path))
        monkeypatch.setenv("TRAINYARD_RANK_REPORT", str(tmp_path / "report"))
        errors = []

        def rank(number):
            horovod.place.rank = number
            try:
                program.main()
            except (Exception, SystemExit) as error:
                errors.append(error)

        ranks = [threading.Thread(target=rank, args=(number,)) for number in range(size)]
        for thread in ranks:
            thread.start()
        for thread in ranks:
            thread.join(30)
        if errors:
            raise errors[0]
        return json.loads((tmp_path / "bandwidth.json").read_text(encoding="utf-8")), horovod

    return measured


def test_it_is_python_3_6():
    ast.parse(
        (FOLDER / "horovod_all_reduce.py").read_text(encoding="utf-8"), feature_version=(3, 6)
    )


def test_each_host_alone_and_all_together(measure, tmp_path):
    found, horovod = measure()
    assert {json.dumps(sets) for sets in horovod.initialised} == {"[[0, 1], [2, 3], [0, 2]]"}
    assert [(run["id"], run["hosts"], run["ranks"], run["passed"]) for run in found["runs"]] == [
        ("host:a", ["a"], 2, True),
        ("host:b", ["b"], 2, True),
        ("cluster", ["a", "b"], 2, True),
    ]
    assert all(
        [row["size_bytes"] for row in run["rows"]] == _bandwidth.sizes(4096)
        for run in found["runs"]
    )
    assert all(
        row["in_place"]["wrong"] == 0 and row["in_place"]["time_us"] > 0
        for run in found["runs"]
        for row in run["rows"]
    )
    # What limits a host comes from a rank of its own.
    assert {host: facts["interface"] for host, facts in found["facts"].items()} == {
        "a": "eth0",
        "b": "eth2",
    }
    assert (found["collective"], found["carrier"], found["blame"]) == (
        "horovod",
        "gloo",
        [],
    ) and "PyTorch" in found["note"]
    assert (
        json.loads((tmp_path / "report").read_text(encoding="utf-8"))["metrics"]["busbw_gb_s"]
        == found["runs"][-1]["judged_busbw_gb_s"]
    )


def test_all_are_watched_at_work(measure):
    """The ranks that were measured together: the first of each host.

    What a card has carried is what was reduced since all were connected.
    """
    found, horovod = measure()
    watched = found["watched"]
    hosts = watched.pop("hosts")
    iterations = watched["iterations"]
    assert (
        watched
        == {"ranks": 2, "size_bytes": 4096, "iterations": iterations, "error": "", "ring": True}
        and iterations > 0
    )
    assert hosts == {
        name: {
            "ranks": 1,
            "via": [],
            "gpus": [],
            "sent_bytes": 4096 * iterations,
            "received_bytes": 4096 * iterations,
            "by_card": {card: 2 * 4096 * iterations},
        }
        for name, card in (("a", "eth0"), ("b", "eth2"))
    }
    # One more connects. The other ranks do not work.
    assert [
        len([name for name, _size in horovod.moved[rank] if name.endswith("watched")])
        for rank in range(4)
    ] == [iterations + 1, 0, iterations + 1, 0]
    assert found["note"] != _bandwidth.BROKE_OFF


def test_gpus_are_watched_with_all_ranks(measure, program, monkeypatch):
    """By NCCL, whose algorithm is not known, until nvidia-smi has answered.

    Of its log, what it says since all work together.
    """
    monkeypatch.setattr(
        program.all_reduce, "output", lambda *command: "98, 512, 81559\n97, 512, 81559\n"
    )
    rows = program.Job.rows

    def connected(self, ranks, sizes):
        with open(self.log.name, "a", encoding="utf-8") as stream:
            stream.write(
                "a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] via rank %d of %d\n"
                % (self.rank, len(ranks))
            )
        return rows(self, ranks, sizes)

    monkeypatch.setattr(program.Job, "rows", connected)
    found, _horovod = measure(gpu=True, carrier="nccl")
    assert (
        found["carrier"],
        found["on_gpus"],
        found["watched"]["ring"],
        found["watched"]["ranks"],
    ) == ("nccl", True, False, 4)
    assert {
        name: (host["ranks"], host["gpus"], host["via"])
        for name, host in found["watched"]["hosts"].items()
    } == {
        "a": (2, [98, 97], [" via rank 0 of 4", " via rank 1 of 4"]),
        "b": (2, [98, 97], [" via rank 2 of 4", " via rank 3 of 4"]),
    }
    # Of each host one rank has cards, and counts.
    moved = 4096 * found["watched"]["iterations"]
    assert moved > 0 and {host["sent_bytes"] for host in found["watched"]["hosts"].values()} == {
        moved
    }


@pytest.mark.parametrize(
    "hosts, carrier, watched",
    [
        (
            (("a", 2), ("b", 2)),
            "mpi",
            {"error": "MPI carries Horovod's data and chooses the algorithm and the cards itself"},
        ),
        # One host without GPUs has neither a fabric nor anything else to be seen.
        ((("a", 3),), "gloo", {}),
    ],
)
def test_who_is_not_watched(measure, hosts, carrier, watched):
    found, horovod = measure(hosts, carrier=carrier)
    assert (
        found["watched"] == watched
        and found["carrier"] == carrier
        and found["note"] != _bandwidth.BROKE_OFF
    )
    assert not [
        name
        for brought in horovod.moved.values()
        for name, _size in brought
        if name.endswith("watched")
    ]


def test_what_was_measured_is_left_where_watching_ends_the_job(
    measure, program, monkeypatch, tmp_path
):
    """A lost peer ends Horovod's ranks."""

    def lost(*arguments):
        raise RuntimeError("Connection reset by peer")

    monkeypatch.setattr(program.Job, "watch", lost)
    with pytest.raises(RuntimeError, match="Connection reset by peer"):
        measure()
    found = json.loads((tmp_path / "bandwidth.json").read_text(encoding="utf-8"))
    assert (
        found["note"] == _bandwidth.BROKE_OFF
        and [run["id"] for run in found["runs"]] == ["host:a", "host:b", "cluster"]
        and found["watched"] == {}
    )


@pytest.mark.parametrize(
    "gpu, functions, carrier",
    [
        (True, {"nccl_built": lambda: 22102, "mpi_enabled": lambda: True}, "nccl"),
        (True, {"nccl_built": lambda: 0, "mpi_enabled": lambda: True}, "mpi"),
        (True, {"nccl_built": lambda: False, "mpi_enabled": lambda: False}, "gloo"),
        (False, {"nccl_built": lambda: True, "mpi_enabled": lambda: False}, "gloo"),
        (False, {"nccl_built": lambda: True, "mpi_enabled": lambda: True}, "mpi"),
        # 0.16: without Gloo, and without a word of NCCL.
        (True, {}, "nccl"),
        (False, {}, "mpi"),
    ],
)
def test_what_moves_the_data(program, gpu, functions, carrier):
    assert program.carrier(SimpleNamespace(**functions), gpu) == carrier


def test_sums_that_are_wrong_on_one_rank(measure):
    found, _horovod = measure(wrong_rank=3)
    runs = {run["id"]: run for run in found["runs"]}
    assert (
        runs["host:a"]["passed"]
        and not runs["host:b"]["passed"]
        and "values of the sum are wrong" in runs["host:b"]["reasons"][0]
    )


def test_without_process_sets_all_ranks_together(measure):
    found, horovod = measure(with_sets=False)
    assert horovod.initialised == [[]] * 4
    assert [(run["id"], run["ranks"]) for run in found["runs"]] == [("cluster", 4)]


def test_one_host(measure):
    found, _horovod = measure([("a", 3)])
    assert [(run["id"], run["ranks"], run["passed"]) for run in found["runs"]] == [
        ("host:a", 3, True)
    ] and found["note"] == ""


def test_fewer_ranks_than_planned(measure):
    with pytest.raises(SystemExit, match="has started 3 ranks, but the plan has 4"):
        measure(started=3)


def test_no_binding(program, monkeypatch):
    monkeypatch.setitem(sys.modules, "horovod", None)
    with pytest.raises(SystemExit, match="Torch: .*; TensorFlow: .*; MXNet: "):
        program.load()


def test_sum_of_horovod_before_there_were_operations(program):
    asked = []
    binding = program.Binding()
    binding.hvd = SimpleNamespace(allreduce=lambda buffer, **options: asked.append(options))
    binding.reduce([1.0], "name", None)
    assert asked == [{"name": "name", "average": False}]
