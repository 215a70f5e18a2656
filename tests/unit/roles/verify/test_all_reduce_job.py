"""What the bandwidth job measures, judges and writes down. The collective itself runs in scenario bandwidth; here hosts are simulated."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils import _bandwidth, _blame

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
    meeting.rendezvous = lambda url: iter([(SimpleNamespace(set_timeout=lambda timeout: None), 0, 8)])
    for name, module in {"torch": torch, "torch.distributed": torch.distributed, "torch.distributed.rendezvous": meeting, "_bandwidth": _bandwidth,
                         "_blame": _blame}.items():
        monkeypatch.setitem(sys.modules, name, module)
    spec = importlib.util.spec_from_file_location("all_reduce", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plan(**asked):
    return {"hosts": [{"name": name, "slots": 2} for name in HOSTS], "at_once": 0, "largest": {"gloo": str(1 << 24), "nccl": 1 << 30}, "history": {},
            "asked": dict({"fraction": 0.7, "min_busbw_gb_s": 0.5, "peer_fraction": 0.6, "drop_percent": 20}, **asked)}


@pytest.fixture(name="measure")
def fixture_measure(agent, tmp_path, monkeypatch):
    """Let the conductor measure hosts whose bandwidth a function tells. Returns what it has written, and what it asked for."""
    monkeypatch.setenv("TRAINYARD_JOB_DIR", str(tmp_path))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")

    def measured(busbw, given=None, cards=("",)):
        conductor = agent.Conductor(given or plan())
        asked = []

        def answer(wanted):
            asked.append({name: (ranks, sizes) for name, (ranks, sizes) in wanted.items()})
            answers = {}
            for name, (ranks, sizes) in wanted.items():
                value = busbw([HOSTS[rank // 2] for rank in ranks][::1 if name.startswith(("cluster", "pair", "group")) else 2])
                time = 2 * (len(ranks) - 1) / len(ranks) / 1e9 / value if value else 1
                answers[name] = {"rows": [_bandwidth.row(size, size * time, len(ranks), 0) for size in sizes] if value else [], "seconds": 0.1,
                                 "error": "" if value else "Connection refused"}
            return answers

        conductor.ask, conductor.put = answer, lambda key, value: None
        facts = {"cards": [_bandwidth.card("eth0", rate) for rate in cards], "gpus": [], "interface": "eth0"}
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
    assert asked == [{"host:%s" % name: ([2 * place, 2 * place + 1], sizes) for place, name in enumerate(HOSTS)}, {"cluster": ([0, 2, 4, 6], sizes)}]
    assert list(runs(found)) == ["host:%s" % name for name in HOSTS] + ["cluster"]
    assert all(run["passed"] for run in found["runs"])
    assert runs(found)["cluster"]["expected"]["bound"] == "threshold" and runs(found)["cluster"]["judged_busbw_gb_s"] == 1.0
    assert (found["collective"], found["blame"], found["suspect"], found["note"]) == ("gloo", [], [], "")


def test_slow_card(measure):
    found, asked = measure(lambda hosts: 0.1 if "node-c" in hosts and len(hosts) > 1 else 1.0)
    assert [(entry["kind"], entry["names"]) for entry in found["blame"]] == [("host", ["node-c"])] and found["suspect"] == ["node-c"]
    assert not runs(found)["cluster"]["passed"] and runs(found)["host:node-c"]["passed"]
    assert runs(found)["pair:node-a,node-c"]["passed"] is False and runs(found)["group:node-a,node-b,node-d"]["passed"]
    # Side by side: the cluster again, three rounds of two pairs, the rest without the culprit. One size is enough for that.
    assert [len(groups) for groups in asked] == [4, 1, 1, 2, 2, 2, 1]
    assert asked[3] == {"pair:node-a,node-d": ([0, 6], [4194304]), "pair:node-b,node-c": ([2, 4], [4194304])}
    # The curve of the first measurement stays.
    assert len(runs(found)["cluster"]["rows"]) == 5


def test_one_at_a_time(measure):
    _found, asked = measure(lambda hosts: 0.1 if hosts == ["node-b", "node-c"] or len(hosts) == 4 else 1.0, dict(plan(), at_once=1))
    assert {len(groups) for groups in asked} == {1}


def test_slow_link_that_fails(measure):
    found, _asked = measure(lambda hosts: 0 if hosts == ["node-b", "node-c"] else 0.1 if {"node-b", "node-c"} <= set(hosts) else 1.0)
    assert [(entry["kind"], entry["names"]) for entry in found["blame"]] == [("link", ["node-b", "node-c"])]
    assert runs(found)["pair:node-b,node-c"]["reasons"] == ["Connection refused"]


def test_host_that_is_slow_alone(measure):
    found, _asked = measure(lambda hosts: 0.2 if "node-d" in hosts else 1.0)
    assert [entry["names"] for entry in found["blame"]] == [["node-d"]] and "alone" in found["blame"][0]["evidence"]
    assert runs(found)["host:node-d"]["expected"]["bound"] == "peers" and not runs(found)["host:node-d"]["passed"]


def test_host_that_is_slow_alone_in_a_cluster_that_is_good(measure):
    found, _asked = measure(lambda hosts: 0.2 if hosts == ["node-d"] else 1.0)
    assert runs(found)["cluster"]["passed"] and [entry["names"] for entry in found["blame"]] == [["node-d"]]


def test_disturbed_once(measure):
    answers = iter([0.1])
    found, _asked = measure(lambda hosts: next(answers, 1.0) if len(hosts) == 4 else 1.0)
    assert runs(found)["cluster"]["passed"] and found["blame"] == [] and "disturbed" in found["note"]


def test_drop_against_history(measure):
    given = dict(plan(min_busbw_gb_s=0), history={"gloo": {"cluster": 2.0, "host:node-a": 9.0}, "nccl": {"cluster": 90.0}})
    found, _asked = measure(lambda hosts: 1.0, given)
    assert runs(found)["cluster"]["reasons"] == ["1 GB/s, required are 1.6 (history: the median of earlier runs, less 20 %)"]
    assert "no host and no link stands out" in found["note"]
    # What all together did once is no measure for two of them.
    assert runs(found)["pair:node-a,node-b"]["passed"]
    assert not runs(found)["host:node-a"]["passed"] and runs(found)["host:node-b"]["passed"]


def test_nothing_says_what_to_expect(measure):
    found, asked = measure(lambda hosts: 1.0, plan(min_busbw_gb_s=0))
    assert runs(found)["cluster"]["expected"]["required_gb_s"] is None and runs(found)["cluster"]["passed"] and len(asked) == 2


def test_expected_by_the_cards(measure):
    found, _asked = measure(lambda hosts: 0.5, plan(min_busbw_gb_s=0), cards=["10000"])
    assert runs(found)["cluster"]["expected"]["from"] == "node-a: Gloo adds up on one core and has one TCP stream"
    assert not runs(found)["cluster"]["passed"]


def tree(root, files):
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text + "\n", encoding="utf-8")
    return str(root)


def test_cards_from_sysfs(agent, tmp_path):
    sysfs = tree(tmp_path, {"class/net/eth0/speed": "25000", "class/net/eth0/device/current_link_speed": "8.0 GT/s PCIe",
                            "class/net/eth0/device/current_link_width": "8", "class/net/veth0/speed": "10000", "class/net/bond0/speed": "50000",
                            "class/net/bond0/lower_eth0/speed": "25000"})
    assert agent.interface_card("eth0", sysfs) == {"name": "eth0", "rdma": False, "line": 3.125, "pcie": pytest.approx(7.88)}
    assert agent.interface_card("bond0", sysfs)["line"] == 6.25
    # Its driver says 10 Gb/s whatever it can do.
    assert agent.interface_card("veth0", sysfs)["line"] == 0
    assert agent.interface_card("gone", sysfs)["line"] == 0


@pytest.mark.parametrize("wanted, taken", [
    ("", ["mlx5_0", "mlx5_1", "mlx5_10"]), ("mlx5_1", ["mlx5_1", "mlx5_10"]), ("=mlx5_1", ["mlx5_1"]), ("=mlx5_0:1,mlx5_1:1", ["mlx5_0", "mlx5_1"]),
    ("^mlx5_1", ["mlx5_0"]), ("^=mlx5_1", ["mlx5_0", "mlx5_10"])])
def test_rdma_cards(agent, tmp_path, wanted, taken):
    sysfs = tree(tmp_path, {"class/infiniband/%s/ports/1/%s" % (name, file): text for name, state in
                            (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "4: ACTIVE"), ("mlx5_10", "4: ACTIVE"), ("mlx5_2", "1: DOWN"))
                            for file, text in (("state", state), ("rate", "200 Gb/sec (4X HDR)"))})
    cards = agent.rdma_cards(wanted, sysfs)
    assert [card["name"] for card in cards] == taken
    assert all(card["rdma"] and card["line"] == 25 for card in cards)


def test_facts_of_a_host_without_gpus(agent, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-card")
    assert agent.facts(False) == {"cards": [{"name": "no-such-card", "rdma": False, "line": 0.0, "pcie": 0.0}], "gpus": [], "interface": "no-such-card"}
