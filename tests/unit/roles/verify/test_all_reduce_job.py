"""What the bandwidth job measures, judges and writes down.

The collective itself runs in scenario bandwidth; here hosts are simulated.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml
from role_variables import role_variable

from ansible_collections.trainyard.gpu.plugins.module_utils import _bandwidth, _blame
from ansible_collections.trainyard.gpu.roles.train.files import _job_watch

FILE = Path(__file__).resolve().parents[4] / "roles/verify/files/all_reduce.py"
HOSTS = ["node-a", "node-b", "node-c", "node-d"]


@pytest.fixture(name="agent")
def fixture_agent(monkeypatch):
    """The program as a rank has it: the collection's functions beside it, PyTorch around it."""
    torch = ModuleType("torch")
    torch.cuda = SimpleNamespace(is_available=lambda: False)
    torch.device = lambda *names: SimpleNamespace(type=names[0])
    torch.set_num_threads = lambda count: None
    torch.distributed = ModuleType("torch.distributed")
    meeting = ModuleType("torch.distributed.rendezvous")
    meeting.rendezvous = lambda url: iter(
        [(SimpleNamespace(set_timeout=lambda timeout: None), 0, 8)]
    )
    for name, module in {
        "torch": torch,
        "torch.distributed": torch.distributed,
        "torch.distributed.rendezvous": meeting,
        "_bandwidth": _bandwidth,
        "_blame": _blame,
        "_job_watch": _job_watch,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    spec = importlib.util.spec_from_file_location("all_reduce", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plan(**asked):
    return {
        "hosts": [{"name": name, "slots": 2} for name in HOSTS],
        "at_once": 0,
        "largest": {"gloo": str(1 << 24), "nccl": 1 << 30},
        "history": {},
        "asked": dict(
            {"fraction": 0.7, "min_busbw_gb_s": 0.5, "peer_fraction": 0.6, "drop_percent": 20},
            **asked,
        ),
    }


@pytest.fixture(name="measure")
def fixture_measure(agent, tmp_path, monkeypatch):
    """Let the conductor measure hosts whose bandwidth a function tells.

    Returns what it has written, and what it asked for.
    """
    monkeypatch.setenv("TRAINYARD_JOB_DIR", str(tmp_path))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")

    def measured(busbw, given=None, cards=("",), error="", wrong=lambda hosts: 0):
        conductor = agent.Conductor(given or plan())
        asked = []

        def watched(ranks, sizes):
            seen = [
                {
                    "iterations": 7,
                    "first": rank % 2 == 0,
                    "sent_bytes": 8 + rank,
                    "received_bytes": 9 + rank,
                    "by_card": {"mlx5_0": 17},
                    "gpus": [],
                    "via": ["via %d" % rank],
                }
                for rank in ranks
            ]
            return {
                "error": error,
                "watched": [None] * len(ranks) if error else seen,
                "sizes": sizes,
            }

        def answer(wanted, watch=False):
            if watch:
                return {name: watched(ranks, sizes) for name, (ranks, sizes) in wanted.items()}
            asked.append({name: (ranks, sizes) for name, (ranks, sizes) in wanted.items()})
            answers = {}
            for name, (ranks, sizes) in wanted.items():
                group = [HOSTS[rank // 2] for rank in ranks][
                    :: 1 if name.startswith(("cluster", "pair", "group")) else 2
                ]
                value, bad = busbw(group), wrong(group)
                time = 2 * (len(ranks) - 1) / len(ranks) / 1e9 / value if value else 1
                rows = [
                    _bandwidth.row(size, size * time, len(ranks), bad if size == 1 << 22 else 0)
                    for size in sizes
                ]
                answers[name] = {
                    "rows": rows if value else [],
                    "seconds": 0.1,
                    "error": "" if value else "Connection refused",
                    "via": [" via SHM/direct/direct", " via P2P/IPC"],
                }
            return answers

        conductor.ask, conductor.put = answer, lambda key, value: None
        facts = {
            "cards": [_bandwidth.card("eth0", rate) for rate in cards],
            "gpus": [],
            "interface": "eth0",
        }
        conductor.get = lambda key: facts
        conductor.lead()
        return json.loads((tmp_path / "bandwidth.json").read_text(encoding="utf-8")), asked

    return measured


def runs(found):
    return {run["id"]: run for run in found["runs"]}


def test_it_is_python_3_6():
    ast.parse(FILE.read_text(encoding="utf-8"), feature_version=(3, 6))


def test_good_cluster(measure):
    found, asked = measure(lambda hosts: 1.0)
    # Alone with both ranks, together with one of each host; then nothing more.
    sizes = _bandwidth.sizes(1 << 24)
    assert asked == [
        {"host:%s" % name: ([2 * place, 2 * place + 1], sizes) for place, name in enumerate(HOSTS)},
        {"cluster": ([0, 2, 4, 6], sizes)},
    ]
    assert list(runs(found)) == ["host:%s" % name for name in HOSTS] + ["cluster"]
    assert all(run["passed"] for run in found["runs"])
    # Of NCCL's log.
    assert runs(found)["host:node-a"]["transports"] == ["P2P/IPC", "SHM/direct"]
    assert (
        runs(found)["cluster"]["expected"]["bound"] == "threshold"
        and runs(found)["cluster"]["judged_busbw_gb_s"] == 1.0
    )
    assert (found["collective"], found["blame"], found["suspect"], found["note"]) == (
        "gloo",
        [],
        [],
        "",
    )


def test_slow_card(measure):
    found, asked = measure(lambda hosts: 0.1 if "node-c" in hosts and len(hosts) > 1 else 1.0)
    assert [(entry["kind"], entry["names"]) for entry in found["blame"]] == [
        ("host", ["node-c"])
    ] and found["suspect"] == ["node-c"]
    assert not runs(found)["cluster"]["passed"] and runs(found)["host:node-c"]["passed"]
    assert (
        runs(found)["pair:node-a,node-c"]["passed"] is False
        and runs(found)["group:node-a,node-b,node-d"]["passed"]
    )
    # Side by side: the cluster again, three rounds of two pairs, the rest without the culprit. One
    # size is enough for that.
    assert [len(groups) for groups in asked] == [4, 1, 1, 2, 2, 2, 1]
    assert asked[3] == {
        "pair:node-a,node-d": ([0, 6], [4194304]),
        "pair:node-b,node-c": ([2, 4], [4194304]),
    }
    # The curve of the first measurement stays.
    assert len(runs(found)["cluster"]["rows"]) == 5


@pytest.mark.parametrize("at_once, rounds", [(0, [2, 2, 2]), (1, [1] * 6)])
def test_each_pair_is_measured_once(measure, at_once, rounds):
    """As playbook burn_in does it, also in a cluster that is good."""
    found, asked = measure(
        lambda hosts: 0.6 if hosts == ["node-b", "node-c"] else 1.0,
        dict(plan(), pairs=True, at_once=at_once),
    )
    assert [len(groups) for groups in asked[-len(rounds) :]] == rounds and found["pairs"] is True
    pairs = {name for name in runs(found) if name.startswith("pair:")}
    assert len(pairs) == 6 and runs(found)["pair:node-b,node-c"]["judged_busbw_gb_s"] == 0.6
    assert found["blame"] == []


def test_pairs_that_the_search_has_measured_are_not_measured_again(measure):
    _found, asked = measure(
        lambda hosts: 0.1 if "node-c" in hosts and len(hosts) > 1 else 1.0,
        dict(plan(), pairs=True),
    )
    assert [len(groups) for groups in asked] == [4, 1, 1, 2, 2, 2, 1]


def test_one_at_a_time(measure):
    _found, asked = measure(
        lambda hosts: 0.1 if hosts == ["node-b", "node-c"] or len(hosts) == 4 else 1.0,
        dict(plan(), at_once=1),
    )
    assert {len(groups) for groups in asked} == {1}


def test_slow_link_that_fails(measure):
    found, _asked = measure(
        lambda hosts: (
            0
            if hosts == ["node-b", "node-c"]
            else 0.1
            if {"node-b", "node-c"} <= set(hosts)
            else 1.0
        )
    )
    assert [(entry["kind"], entry["names"]) for entry in found["blame"]] == [
        ("link", ["node-b", "node-c"])
    ]
    assert runs(found)["pair:node-b,node-c"]["reasons"] == ["Connection refused"]


def test_host_that_is_slow_alone(measure):
    found, _asked = measure(lambda hosts: 0.2 if "node-d" in hosts else 1.0)
    assert [entry["names"] for entry in found["blame"]] == [["node-d"]] and "alone" in found[
        "blame"
    ][0]["evidence"]
    assert (
        runs(found)["host:node-d"]["expected"]["bound"] == "peers"
        and not runs(found)["host:node-d"]["passed"]
    )


def test_host_that_is_slow_alone_in_a_cluster_that_is_good(measure):
    found, _asked = measure(lambda hosts: 0.2 if hosts == ["node-d"] else 1.0)
    assert runs(found)["cluster"]["passed"] and [entry["names"] for entry in found["blame"]] == [
        ["node-d"]
    ]


def test_disturbed_once(measure):
    answers = iter([0.1])
    found, _asked = measure(lambda hosts: next(answers, 1.0) if len(hosts) == 4 else 1.0)
    assert (
        runs(found)["cluster"]["passed"] and found["blame"] == [] and "disturbed" in found["note"]
    )


def test_wrong_sums_are_not_made_good_by_right_ones(measure):
    answers, speed = iter([7]), iter([1.0])
    found, _asked = measure(
        lambda hosts: next(speed, 1.1) if len(hosts) == 4 else 1.0,
        wrong=lambda hosts: next(answers, 0) if len(hosts) == 4 else 0,
    )
    assert (
        runs(found)["cluster"]["reasons"] == ["7 values of the sum are wrong"]
        and found["blame"] == []
    )
    assert found["note"].startswith("the sums were wrong in cluster:")


def test_host_that_gets_sums_wrong_at_full_speed(measure):
    found, _asked = measure(
        lambda hosts: 1.0, wrong=lambda hosts: 3 if "node-d" in hosts and len(hosts) > 1 else 0
    )
    assert [(entry["kind"], entry["names"]) for entry in found["blame"]] == [
        ("host", ["node-d"])
    ] and found["suspect"] == ["node-d"]
    assert (
        "the sums were wrong in" in found["blame"][0]["evidence"]
        and runs(found)["group:node-a,node-b,node-c"]["passed"]
    )
    # Alone, too.
    found, _asked = measure(lambda hosts: 1.0, wrong=lambda hosts: 3 if "node-d" in hosts else 0)
    assert [entry["names"] for entry in found["blame"]] == [["node-d"]] and not runs(found)[
        "host:node-d"
    ]["passed"]


def test_what_does_not_work_is_found_where_nothing_says_how_fast_it_has_to_be(measure):
    found, _asked = measure(
        lambda hosts: 0 if {"node-b", "node-c"} <= set(hosts) else 1.0, plan(min_busbw_gb_s=0)
    )
    assert not runs(found)["cluster"]["passed"]
    assert [(entry["kind"], entry["names"]) for entry in found["blame"]] == [
        ("link", ["node-b", "node-c"])
    ]


@pytest.mark.parametrize(
    "group, listening, closed",
    [
        ([0, 1, 2, 3, 4, 5], {0, 2, 4}, []),
        ([0, 1], {0}, []),
        ([0, 2], {0}, ["node-a cannot connect to node-b: refused"]),
        (
            [0, 1, 2, 3, 4, 5],
            {0, 2},
            [
                "node-a cannot connect to node-c: refused",
                "node-b cannot connect to node-c: refused",
            ],
        ),
    ],
)
def test_closed_ways_are_told_once_for_two_hosts(agent, monkeypatch, group, listening, closed):
    """All ranks of three hosts, side by side, with a store that waits for its keys."""
    written, changed, tried = {}, threading.Condition(), []

    def put(key, value):
        with changed:
            written[key] = value
            changed.notify_all()

    def get(key):
        with changed:
            assert changed.wait_for(lambda: key in written, 10), key
            return written[key]

    def connect(address, timeout):
        place = next(
            int(key.rpartition("/")[2])
            for key, value in written.items()
            if key.startswith("way/") and tuple(value) == address
        )
        tried.append(place)
        if place not in listening:
            raise OSError("refused")
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(agent.socket, "create_connection", connect)
    answers = {}

    def work(rank):
        one = object.__new__(agent.Rank)
        one.rank, one.address, one.put, one.get = rank, "127.0.0.1", put, get
        one.host_of = [HOSTS[number // 2] for number in range(8)]
        answers[rank] = one.closed_ways(5, group)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in group]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {rank: closed for rank in group}
    hosts = len({rank // 2 for rank in group})
    assert len(tried) == hosts * (hosts - 1) // 2


def test_drop_against_history(measure):
    given = dict(
        plan(min_busbw_gb_s=0),
        history={"gloo": {"cluster": 2.0, "host:node-a": 9.0}, "nccl": {"cluster": 90.0}},
    )
    found, _asked = measure(lambda hosts: 1.0, given)
    assert runs(found)["cluster"]["reasons"] == [
        "1 GB/s, required: 1.6 (history: the median of earlier runs, less 20 %)"
    ]
    assert "no host and no link stands out" in found["note"]
    # What all together did once is no measure for two of them.
    assert runs(found)["pair:node-a,node-b"]["passed"]
    assert not runs(found)["host:node-a"]["passed"] and runs(found)["host:node-b"]["passed"]


def test_nothing_says_what_to_expect(measure):
    found, asked = measure(lambda hosts: 1.0, plan(min_busbw_gb_s=0))
    assert (
        runs(found)["cluster"]["expected"]["required_gb_s"] is None
        and runs(found)["cluster"]["passed"]
        and len(asked) == 2
    )


def test_expected_by_the_cards(measure):
    found, _asked = measure(lambda hosts: 0.5, plan(min_busbw_gb_s=0), cards=["10000"])
    assert (
        runs(found)["cluster"]["expected"]["from"]
        == "node-a: Gloo reduces on one core and uses one TCP stream"
    )
    assert not runs(found)["cluster"]["passed"]


def tree(root, files):
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text + "\n", encoding="utf-8")
    return str(root)


def test_cards_from_sysfs(tmp_path):
    sysfs = tree(
        tmp_path,
        {
            "class/net/eth0/speed": "25000",
            "class/net/eth0/device/current_link_speed": "8.0 GT/s PCIe",
            "class/net/eth0/device/current_link_width": "8",
            "class/net/veth0/speed": "10000",
            "class/net/bond0/speed": "50000",
            "class/net/bond0/lower_eth0/speed": "25000",
        },
    )
    assert _job_watch.interface_card("eth0", sysfs) == {
        "name": "eth0",
        "rdma": False,
        "line": 3.125,
        "pcie": pytest.approx(7.88),
    }
    assert _job_watch.interface_card("bond0", sysfs)["line"] == 6.25
    # Its driver says 10 Gb/s whatever it can do.
    assert _job_watch.interface_card("veth0", sysfs)["line"] == 0
    assert _job_watch.interface_card("gone", sysfs)["line"] == 0


def test_models_of_cards(tmp_path):
    """Also of those below a bond, and of RDMA devices whose ports are down."""
    files = {
        "class/net/bond0/speed": "50000",
        "class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
        "class/infiniband/mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)",
        "class/infiniband/mlx5_1/ports/1/state": "1: DOWN",
    }
    for device, its_id in (
        ("net/eth0", "1572"),
        ("net/eth1", "1572"),
        ("infiniband/mlx5_0", "1021"),
        ("infiniband/mlx5_1", "1017"),
    ):
        files["class/%s/device/vendor" % device] = "0x15b3"
        files["class/%s/device/device" % device] = "0x" + its_id
    sysfs = tree(tmp_path, files)
    for name in ("eth0", "eth1"):
        (tmp_path / "class/net/bond0" / ("lower_" + name)).symlink_to("../" + name)
    assert _job_watch.interface_card("eth0", sysfs)["model"] == "15b3:1572"
    assert _job_watch.interface_card("bond0", sysfs)["model"] == "15b3:1572"
    assert [card["model"] for card in _job_watch.rdma_cards("", sysfs)] == ["15b3:1021"]
    assert _job_watch.rdma_models(sysfs) == ["15b3:1017", "15b3:1021"]


def test_facts_of_a_host_with_gpus(agent, monkeypatch):
    """As nvidia-smi tells them in the container."""
    texts = {
        "nvlink --status": "GPU 0: NVIDIA L40S (UUID: GPU-1)\nDevice does not have or support Nvlink\n"
        * 2,
        "topo -p2p r": " \tGPU0\tGPU1\t\n GPU0\tX\tNS\t\n GPU1\tNS\tX\t\n",
    }

    def output(*command):
        return texts.get(" ".join(command[1:]), "4, 8, 16, NVIDIA L40S\n" * 2)

    monkeypatch.setattr(agent, "output", output)
    monkeypatch.setenv("NCCL_IB_DISABLE", "1")
    told = agent.facts(True)
    assert told["p2p"] is False and told["nics"] == _job_watch.rdma_models()
    assert [gpu["model"] for gpu in told["gpus"]] == ["NVIDIA L40S"] * 2
    assert told["gpus"][0]["pcie"] == told["gpus"][0]["pcie_max"] / 2


@pytest.mark.parametrize(
    "wanted, taken",
    [
        ("", ["mlx5_0", "mlx5_1", "mlx5_10"]),
        ("mlx5_1", ["mlx5_1", "mlx5_10"]),
        ("=mlx5_1", ["mlx5_1"]),
        ("=mlx5_0:1,mlx5_1:1", ["mlx5_0", "mlx5_1"]),
        ("^mlx5_1", ["mlx5_0"]),
        ("^=mlx5_1", ["mlx5_0", "mlx5_10"]),
        # A port that is not there is not another one of its device.
        ("=mlx5_0:1,mlx5_1:2", ["mlx5_0"]),
    ],
)
def test_rdma_cards(tmp_path, wanted, taken):
    sysfs = tree(
        tmp_path,
        {
            "class/infiniband/%s/ports/1/%s" % (name, file): text
            for name, state in (
                ("mlx5_0", "4: ACTIVE"),
                ("mlx5_1", "4: ACTIVE"),
                ("mlx5_10", "4: ACTIVE"),
                ("mlx5_2", "1: DOWN"),
            )
            for file, text in (("state", state), ("rate", "200 Gb/sec (4X HDR)"))
        },
    )
    cards = _job_watch.rdma_cards(wanted, sysfs)
    assert [card["name"] for card in cards] == taken
    assert all(card["rdma"] and card["line"] == 25 for card in cards)


def test_facts_of_a_host_without_gpus(agent, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-card")
    assert agent.facts(False) == {
        "cards": [{"name": "no-such-card", "rdma": False, "line": 0.0, "pcie": 0.0}],
        "gpus": [],
        "interface": "no-such-card",
    }


def test_all_are_watched_at_work(measure):
    found, _asked = measure(lambda hosts: 1.0)
    # Of the largest size Gloo would send some pieces for nothing.
    seen = found["watched"].pop("hosts")
    assert found["watched"] == {"ranks": 4, "size_bytes": 8 << 20, "iterations": 7, "error": ""}
    assert seen == {
        name: {
            "ranks": 1,
            "via": ["via %d" % rank],
            "sent_bytes": 8 + rank,
            "received_bytes": 9 + rank,
            "by_card": {"mlx5_0": 17},
            "gpus": [],
        }
        for name, rank in zip(HOSTS, (0, 2, 4, 6))
    }


def test_several_ranks_of_a_host_are_watched(measure, monkeypatch, agent):
    monkeypatch.setattr(
        agent.Conductor,
        "ranks",
        lambda self, hosts: [rank for host in hosts for rank in self.ranks_of[host]],
    )
    found, _asked = measure(lambda hosts: 1.0)
    assert found["watched"]["hosts"]["node-b"] == {
        "ranks": 2,
        "via": ["via 2", "via 3"],
        "sent_bytes": 10,
        "received_bytes": 11,
        "by_card": {"mlx5_0": 17},
        "gpus": [],
    }


def test_who_could_not_be_watched(measure):
    found, _asked = measure(lambda hosts: 1.0, error="Connection reset by peer")
    assert (found["watched"]["error"], found["watched"]["hosts"]) == (
        "Connection reset by peer",
        {},
    ) and runs(found)["cluster"]["passed"]


def test_a_cluster_that_could_not_be_measured_is_not_watched(measure):
    found, _asked = measure(lambda hosts: 0 if len(hosts) == 4 else 1.0)
    assert found["watched"] == {}


@pytest.fixture(name="worker")
def fixture_worker(agent, monkeypatch):
    """A rank whose all-reduce takes a tenth of a second and, when it is the host's first, moves
    what counters then show.
    """
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    state = {"time": 0.0, "done": 0, "order": []}

    def all_reduce(buffer, op=None):
        state["time"] += 0.1
        state["done"] += 1

    agent.torch.zeros = lambda count, dtype, device: [0] * 1
    agent.torch.float32 = None
    agent.dist.all_reduce = all_reduce
    monkeypatch.setattr(
        agent,
        "slowest",
        lambda seconds, device: state["order"].append(("barrier", state["done"])) or seconds,
    )
    monkeypatch.setattr(agent.time, "perf_counter", lambda: state["time"])

    def settled(cards):
        state["order"].append(("look", state["done"]))
        return [1000 * state["done"], 3000 * state["done"]] if cards else None

    monkeypatch.setattr(agent, "settled", settled)
    # Of two cards, one carries all.
    monkeypatch.setattr(
        agent,
        "card_counters",
        lambda cards: (
            {"ib0": [1000 * state["done"], 3000 * state["done"]], "ib1": [7, 7]} if cards else {}
        ),
    )
    rank = agent.Rank(plan())
    rank.state = state
    return rank


def test_watching(agent, worker, monkeypatch):
    # Without GPUs nvidia-smi is not run.
    monkeypatch.delattr(agent, "Look")
    worker.cards = [{"name": "eth0"}]
    seen = worker.watch(1 << 20)
    # The one that connects is not counted, and nobody begins before all have looked, nor looks
    # before all are done.
    assert seen == {
        "iterations": 5,
        "first": True,
        "sent_bytes": 5000,
        "received_bytes": 15000,
        "by_card": {"ib0": 20000, "ib1": 0},
        "gpus": [],
    }
    assert worker.state["order"][:3] == [
        ("barrier", 1),
        ("look", 1),
        ("barrier", 1),
    ] and worker.state["order"][-2:] == [("barrier", 6), ("look", 6)]


def test_watching_where_nothing_counts(worker):
    seen = worker.watch(1 << 20)
    assert (seen["first"], seen["sent_bytes"], seen["received_bytes"]) == (False, None, None)


@pytest.mark.parametrize(
    "told, gpus",
    [
        ("98, 900, 24576\n97, [N/A], 24576\n", [98, 97]),
        ("Failed to initialize NVML\n", []),
        ("", []),
    ],
)
def test_looking_at_gpus(agent, worker, monkeypatch, capsys, told, gpus):
    monkeypatch.setattr(agent.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(
        agent, "output", lambda *command: told if command == _job_watch.USAGE else None
    )
    worker.backend, worker.cards = "nccl", [{"name": "mlx5_0"}]
    seen = worker.watch(1 << 30)
    assert seen["iterations"] >= 25 and seen["gpus"] == gpus
    assert ("Failed to initialize NVML" in capsys.readouterr().out) == ("NVML" in told)


def test_the_ring_is_for_those_who_are_watched(agent, worker, monkeypatch, tmp_path):
    """Also that NCCL's log is read from where the group begins, and its warnings are shown where it
    fails.
    """
    worker.log = SimpleNamespace(name=str(tmp_path / "nccl.log"))
    log = tmp_path / "nccl.log"
    log.write_text("Channel 00 : 0 -> 1 via NET/Socket/0\n", encoding="utf-8")
    answers, tuned = {}, []

    def begin(backend, **options):
        tuned.append((agent.os.environ.get("NCCL_ALGO"), agent.os.environ.get("NCCL_PROTO")))
        with log.open("a", encoding="utf-8") as stream:
            stream.write(
                "a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0\na:1:2 [0] NCCL WARN out of luck\n"
                * 2
            )
        if len(tuned) == 3:
            raise RuntimeError("NCCL error")

    agent.dist.init_process_group, agent.dist.is_initialized = begin, lambda: False
    agent.dist.PrefixStore = lambda *arguments: None
    worker.closed_ways, worker.put = lambda number, ranks: [], answers.__setitem__
    monkeypatch.setattr(agent, "all_reduce_rows", lambda *arguments: ["row"])
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    for number, watch in enumerate((True, False, True)):
        worker.measure(number, {"ranks": [0, 1], "sizes": [1 << 20], "watch": watch})
    assert (
        tuned == [("Ring", "Simple"), ("Tree", None), ("Ring", "Simple")]
        and agent.os.environ["NCCL_ALGO"] == "Tree"
    )
    assert "NCCL_PROTO" not in agent.os.environ
    assert (
        answers["answer/0/0"]["watched"]["via"] == [" via NET/IB/0"]
        and "watched" not in answers["answer/1/0"]
    )
    assert answers["answer/2/0"]["error"] == "NCCL error"


def test_warnings_of_nccl_are_shown(agent, worker, capsys, tmp_path):
    worker.log = SimpleNamespace(name=str(tmp_path / "nccl.log"))
    (tmp_path / "nccl.log").write_text("an earlier group's NCCL WARN\n", encoding="utf-8")

    def fail(number, ranks):
        with open(worker.log.name, "a", encoding="utf-8") as stream:
            stream.write("NCCL INFO x\nNCCL WARN socket closed\n")
        raise RuntimeError("NCCL error")

    worker.closed_ways, worker.put = fail, lambda key, value: None
    agent.dist.is_initialized = lambda: False
    worker.measure(0, {"ranks": [0, 1], "sizes": [1 << 20], "watch": False})
    assert capsys.readouterr().out == "NCCL WARN socket closed\n"


def test_counters_from_sysfs(agent, tmp_path):
    port = "class/infiniband/mlx5_0/ports/%d/counters/port_%s_data"
    sysfs = tree(
        tmp_path,
        {
            "class/net/eth0/statistics/tx_bytes": "5",
            "class/net/eth0/statistics/rx_bytes": "6",
            "class/net/bare/mtu": "1500",
            port % (1, "xmit"): "10",
            port % (1, "rcv"): "20",
            port % (2, "xmit"): "1",
            port % (2, "rcv"): "2",
        },
    )
    assert agent.counters([{"name": "eth0", "rdma": False}], sysfs) == [5, 6]
    # Each card once, with all of its ports.
    assert agent.counters([{"name": "mlx5_0", "rdma": True}] * 2, sysfs) == [44, 88]
    assert (
        agent.counters([{"name": "mlx5_0", "rdma": True}, {"name": "bare", "rdma": False}], sysfs)
        is None
    )
    assert agent.counters([], sysfs) is None
    # By card, for the rails.
    cards = [{"name": "mlx5_0", "rdma": True}, {"name": "bare", "rdma": False}]
    assert agent.card_counters(cards, sysfs) == {"mlx5_0": [44, 88], "bare": None}


def test_counters_of_real_cards_take_a_moment(agent, monkeypatch):
    slept = []
    monkeypatch.setattr(agent.time, "sleep", slept.append)
    monkeypatch.setattr(agent, "counters", lambda cards: cards)
    assert (
        agent.settled([{"line": 0.0}])
        and slept == []
        and agent.settled([{"line": 0.0}, {"line": 25.0}])
        and slept == [agent.SETTLE_SECONDS]
    )


def test_a_pause_does_not_leave_only_small_messages(agent):
    # 64 KiB in 20 ms. The ranks connected, or the machine paused, for 6 seconds before.
    assert agent.measures_next(6, 0.02) and agent.measures_next(0.3, 0.02)
    # The next messages alone would take longer than a run may.
    assert not agent.measures_next(0.3, 0.7)
    # Many pauses end a run.
    assert not agent.measures_next(9.7, 0.02)


def test_a_small_message_on_a_slow_network_is_not_0():
    assert _bandwidth.row(65536, 2.6, 2, 0)["in_place"]["busbw_gb_s"] == 0.000025


@pytest.mark.parametrize("launcher, program", [("torchrun", ""), ("horovodrun", "horovod_")])
def test_a_measurement_that_hangs_is_noticed_after_10_minutes(launcher, program):
    """Before its time limit, so the ranks still are where they wait."""
    given = {
        "__verify_bandwidth_id": "verify-bandwidth",
        "__verify_bandwidth_launcher": launcher,
        "__verify_bandwidth_members": [],
        "__verify_bandwidth_plan": {},
        "__verify_bandwidth_programs": "/share/p",
        "__verify_networks": {launcher: {}},
        "verify_bandwidth_timeout": 900,
        "verify_timeout": 120,
    }
    spec = role_variable("verify", "__verify_bandwidth_spec", **given)
    assert (spec["hang_minutes"], spec["timeout"]) == (10, 900)
    assert spec["command"] == "python3 -B /share/p/%sall_reduce.py" % program


def test_all_reduce_perf_on_all_hosts_is_watched_as_a_job_is():
    """By the first host, for as long, in a folder that the search for a slow host does not clean.

    A run on one host has no others.
    """
    given = {
        "__verify_bandwidth_names": ["gpu-a", "gpu-b"],
        "__verify_nccl_environment": {"NCCL_DEBUG": "INFO"},
        "cluster_share_path": "/share",
        "hostvars": {"gpu-a": {"__verify_bandwidth_facts": {"stdout": '{"ras_port": 40123}'}}},
        "inventory_hostname": "gpu-b",
    }
    folder = "/share/.trainyard/jobs/verify-nccl-tests"
    watched = role_variable("verify", "__verify_nccl_watch", **given)
    assert watched == ["10", folder, "1", "gpu-a", "gpu-b"]
    assert role_variable("verify", "__verify_nccl_together_environment", **given) == {
        "NCCL_DEBUG": "INFO",
        "NCCL_RAS_ADDR": "127.0.0.1:40123",
        "TRAINYARD_JOB_ID": "verify-nccl-tests",
    }
    for other in ({"inventory_hostname": "gpu-x"}, {"__verify_bandwidth_names": ["gpu-b"]}):
        assert role_variable("verify", "__verify_nccl_watch", **dict(given, **other)) == []
    role = Path(__file__).resolve().parents[4] / "roles/verify"
    tasks = yaml.safe_load((role / "tasks/nccl_tests.yml").read_text(encoding="utf-8"))
    by_name = {task["name"]: task for task in tasks}
    begin = by_name["Start watching the host"]["ansible.builtin.command"]["argv"]
    assert begin.endswith("+ __verify_nccl_watch }}")
    together = by_name["Run all_reduce_perf on all hosts"]["trainyard.gpu.nccl_all_reduce"]
    assert together["environment"] == "{{ __verify_nccl_together_environment }}"
    variables = yaml.safe_load((role / "vars/main.yml").read_text(encoding="utf-8"))
    files = variables["__verify_bandwidth_files"]
    paths = [entry["path"].rpartition("/")[2] for entry in files]
    assert "_job_hang.py" in paths and "{{ __verify_nccl_dir }}" in paths


# --- each card alone ---


def card_in(sysfs, name, ports=1, guid="a088:c203:00e3:1420"):
    """An RDMA device with active ports in a tree like /sys. Returns its cards."""
    folder = sysfs / "class/infiniband" / name
    (folder / "device").mkdir(parents=True)
    for file, text in (("vendor", "0x15b3"), ("device", "0x1021")):
        (folder / "device" / file).write_text(text + "\n", encoding="ascii")
    (folder / "node_guid").write_text(guid + "\n", encoding="ascii")
    for port in range(1, ports + 1):
        own = folder / "ports" / str(port)
        own.mkdir(parents=True)
        (own / "state").write_text("4: ACTIVE\n", encoding="ascii")
        (own / "rate").write_text("400 Gb/sec (4X NDR)\n", encoding="ascii")
    return [card for card in _job_watch.rdma_cards("", str(sysfs)) if card["name"] == name]


def test_rails_are_the_rdma_devices_with_their_guid(agent, tmp_path):
    cards = card_in(tmp_path, "mlx5_0", ports=2)
    cards += card_in(tmp_path, "mlx5_1", guid="a088:c203:00e3:1430")
    assert len(cards) == 3
    first = {"name": "mlx5_0", "rdma": True, "model": "15b3:1021", "serial": "a088c20300e31420"}
    second = dict(first, name="mlx5_1", serial="a088c20300e31430")
    assert agent.rails(cards, "=eth0", str(tmp_path)) == [first, second]
    assert agent.over_rail(first) == {"NCCL_IB_HCA": "=mlx5_0"}


def test_rails_are_interfaces_without_rdma(agent, tmp_path):
    for name in ("eth1", "eth2"):
        folder = tmp_path / "class/net" / name
        folder.mkdir(parents=True)
        (folder / "address").write_text("52:54:00:00:00:0%s\n" % name[3], encoding="ascii")
    cards = [_job_watch.interface_card("eth1", str(tmp_path))]
    found = agent.rails(cards, "=eth1,eth2", str(tmp_path))
    assert [(rail["name"], rail["serial"]) for rail in found] == [
        ("eth1", "525400000001"),
        ("eth2", "525400000002"),
    ]
    assert agent.over_rail(found[1]) == {"NCCL_SOCKET_IFNAME": "=eth2", "NCCL_IB_DISABLE": "1"}
    assert agent.rails(cards, "^docker0", str(tmp_path)) == []


@pytest.mark.parametrize(
    "names, hosts, at_once, asked",
    [
        # Each host has two partners for each card that all hosts have.
        (
            {"node-d": ["mlx5_0", "mlx5_1", "mlx5_9"]},
            HOSTS,
            0,
            [("mlx5_0", 2), ("mlx5_0", 2), ("mlx5_1", 2), ("mlx5_1", 2)],
        ),
        ({}, HOSTS, 1, [("mlx5_0", 1)] * 4 + [("mlx5_1", 1)] * 4),
        ({}, HOSTS[:2], 0, [("mlx5_0", 1), ("mlx5_1", 1)]),
        # One card is measured by the pairs, and one host has no partner.
        ({"node-b": ["mlx5_0"]}, HOSTS, 0, []),
        ({}, HOSTS[:1], 0, []),
    ],
)
def test_each_card_is_measured_alone(agent, monkeypatch, names, hosts, at_once, asked):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    given = dict(plan(), at_once=at_once)
    given["hosts"] = [{"name": name, "slots": 2} for name in hosts]
    conductor = agent.Conductor(given)
    conductor.backend, told = "nccl", []
    for host in hosts:
        own = names.get(host, ["mlx5_0", "mlx5_1"])
        conductor.facts[host] = {"rails": [{"name": name, "rdma": True} for name in own]}

    def ask(wanted, watch=False, rail=None):
        told.append((rail["name"], len(wanted)))
        # Two ranks of each host.
        assert all(len(ranks) == 4 for ranks, _sizes in wanted.values())
        rows = [_bandwidth.row(1 << 22, 0.001, 4, 0)]
        bad = rail["name"] == "mlx5_1"
        return {
            name: {"rows": [] if bad else rows, "error": "no route" if bad else ""}
            for name in wanted
        }

    conductor.ask = ask
    conductor.measure_rails([1 << 22])
    assert told == asked
    assert len(conductor.by_rail) == sum(count for _name, count in asked)
    for run in conductor.by_rail:
        assert (run["error"], run["busbw_gb_s"] is None) == (
            ("no route", True) if run["card"] == "mlx5_1" else ("", False)
        )


PROGRAM = """
import json, os, sys
print("a library says hello")
task = json.loads(os.environ["TRAINYARD_BANDWIDTH_TASK"])
if task["key"] == "bad":
    sys.exit("RuntimeError: no GID")
seen = [os.environ.get(name) for name in ("NCCL_IB_HCA", "RANK", "NCCL_DEBUG_FILE", "LOCAL_RANK")]
print("trainyard rows: " + json.dumps([task["place"], seen]))
"""


def test_a_card_is_chosen_in_a_process_of_its_own(agent, tmp_path, monkeypatch):
    """A real one. NCCL would not look at another choice of a process that has a communicator."""
    program = tmp_path / "all_reduce.py"
    program.write_text(PROGRAM, encoding="utf-8")
    monkeypatch.setattr(agent, "__file__", str(program))
    monkeypatch.setenv("NCCL_IB_HCA", "=mlx5_0,mlx5_1")
    monkeypatch.setenv("NCCL_DEBUG_FILE", "/tmp/log-of-the-rank")
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("RANK", "0")
    rows = agent.in_process({"key": "k", "place": 5}, {"NCCL_IB_HCA": "=mlx5_1"})
    assert rows == [5, ["=mlx5_1", "1", None, "3"]]
    with pytest.raises(RuntimeError, match="RuntimeError: no GID"):
        agent.in_process({"key": "bad"}, {})


def test_the_process_of_a_card_meets_the_others_in_the_store_of_the_job(agent, monkeypatch, capsys):
    """With a stand-in for PyTorch, as no test has a GPU."""
    called = []
    agent.torch.cuda.set_device = lambda device: called.append(("device", device.type))
    agent.dist.PrefixStore = lambda key, store: (key, store)
    agent.dist.init_process_group = lambda backend, **more: called.append((backend, more))
    agent.dist.destroy_process_group = lambda: called.append("destroyed")
    store = SimpleNamespace(set_timeout=lambda timeout: None)
    monkeypatch.setattr(agent, "rendezvous", lambda url: iter([(store, 1, 8)]))
    monkeypatch.setattr(agent, "all_reduce_rows", lambda *arguments: [list(arguments[:3])])
    monkeypatch.setenv("LOCAL_RANK", "1")
    task = {"key": "group/7/0", "place": 3, "ranks": 4, "sizes": [4096]}
    monkeypatch.setenv("TRAINYARD_BANDWIDTH_TASK", json.dumps(task))
    agent.main()
    (_device, (backend, more), ended) = called
    assert (backend, more["store"], ended) == ("nccl", ("group/7/0", store), "destroyed")
    assert (more["rank"], more["world_size"]) == (3, 4)
    assert capsys.readouterr().out == "trainyard rows: [[3, 4, [4096]]]\n"


def test_a_rank_tells_why_its_card_carried_nothing(agent, monkeypatch):
    """The step goes on: each of its ranks has an answer."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    rank, told = agent.Rank(plan()), {}
    rank.put = told.__setitem__

    def fail(task, changes):
        assert (task["place"], changes) == (0, {"NCCL_IB_HCA": "=mlx5_1"})
        raise RuntimeError("no GID")

    monkeypatch.setattr(agent, "in_process", fail)
    group = {"ranks": [0, 2], "sizes": [4096], "rail": {"name": "mlx5_1", "rdma": True}}
    rank.get = lambda key: [group]
    assert rank.take_part(7) is True
    assert told["answer/7/0"].pop("seconds") >= 0
    assert told == {"answer/7/0": {"rows": [], "error": "no GID"}}
