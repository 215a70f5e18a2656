"""The search for suspects in simulated clusters with known culprits."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_hosts import REQUIRED, SimulatedHosts

from ansible_collections.trainyard.gpu.plugins.module_utils import _blame


def named(verdict):
    return sorted((entry["kind"], *entry["names"]) for entry in verdict["blame"])


def test_it_runs_where_python_is_3_6():
    text = Path(_blame.__file__).read_text(encoding="utf-8")
    ast.parse(text, feature_version=(3, 6))
    assert "__future__" not in text, "annotations came with 3.7"


@pytest.mark.parametrize("count", range(2, 65))
def test_every_pair_is_in_exactly_one_round(count):
    """Every pair once, nobody twice in a round, and no fewer rounds would do."""
    hosts = list(range(count))
    rounds = _blame.circle(hosts)
    assert len(rounds) == (count - 1 if count % 2 == 0 else count)
    assert all(len({host for pair in pairs for host in pair}) == 2 * len(pairs) for pairs in rounds)
    assert sorted(tuple(sorted(pair)) for pairs in rounds for pair in pairs) == [
        (one, other) for one in hosts for other in hosts[one + 1 :]
    ]


def test_one_link_of_four_hosts():
    verdict = SimulatedHosts(4, links=[(1, 2)]).blamed()
    assert verdict["blame"] == [
        {
            "kind": "link",
            "names": ["node-01", "node-02"],
            "evidence": "this pair reaches 0.1 GB/s (required: 0.8); with other hosts "
            "node-01 reaches 1 and node-02 reaches 1: the path between the two",
        }
    ]
    # The head is the first, and launches the jobs.
    assert verdict["suspect"] == ["node-02"] and verdict["note"] == ""


def test_one_card_of_four_hosts():
    verdict = SimulatedHosts(4, cards=[0]).blamed()
    assert verdict["blame"] == [
        {
            "kind": "host",
            "names": ["node-00"],
            "evidence": "each of the 3 pairs measured with it reaches at most 0.1 GB/s "
            "(required: 0.8); links between others reach 1 or more: its network card, cable or switch port",
        }
    ]
    assert verdict["suspect"] == ["node-00"]


def test_a_host_that_is_slow_alone_needs_no_pairs():
    cluster = SimulatedHosts(4, alone=[2])
    verdict = cluster.blamed()
    assert verdict["blame"] == [
        {
            "kind": "host",
            "names": ["node-02"],
            "evidence": "alone, without the network, it reaches 0.1 GB/s, but the others 1: its "
            "CPU, memory, PCIe or GPUs",
        }
    ]
    # Once more itself, and then the others, who are as they should be without it.
    assert cluster.rounds == [[("node-02",)], [("node-00", "node-01", "node-03")]]


@pytest.mark.parametrize("slow", [0, 1])
def test_the_slower_one_of_two_hosts(slow):
    assert named(SimulatedHosts(2, alone=[slow]).blamed()) == [("host", "node-%02d" % slow)]


def test_two_hosts_whose_card_is_slow_cannot_be_told_apart():
    verdict = SimulatedHosts(2, cards=[0]).blamed()
    assert named(verdict) == [("link", "node-00", "node-01")] and verdict["suspect"] == ["node-01"]
    assert verdict["blame"][0]["evidence"].endswith(
        "A third host is needed to distinguish the link from the two hosts"
    )


def test_pair_that_fails_is_slower_than_any():
    search = _blame.search(["a", "b"], REQUIRED, {"a": 1, "b": 1})
    assert next(search) == [("a", "b")]
    search.send({("a", "b"): None})
    with pytest.raises(StopIteration) as done:
        search.send({("a", "b"): None})
    assert named(done.value.value) == [("link", "a", "b")]


def test_a_measurement_that_failed_is_not_slow_hardware():
    """net.ipv4.ip_local_port_range with 4 ports: the job of that host fails, which says nothing of
    its CPU, memory, PCIe or GPUs.
    """
    search = _blame.search(
        ["a", "b"], 0.8, {"a": 1.0, "b": 0.0}, errors={"b": "Cannot assign requested address"}
    )
    answers = None
    try:
        while True:
            groups = search.send(answers)
            answers = {group: None if "b" in group else 1.0 for group in groups}
    except StopIteration as done:
        verdict = done.value
    assert verdict["suspect"] == ["b"]
    assert verdict["blame"][0]["evidence"] == (
        "its measurement alone, without the network, failed: Cannot assign requested address, while the others reach 1 GB/s"
    )


def test_disturbed_once():
    verdict = SimulatedHosts(4).blamed()
    assert verdict == {
        "blame": [],
        "suspect": [],
        "note": "in a second measurement the cluster reached 1 GB/s: the first one was disturbed",
        "rounds": 1,
    }


class Oversubscribed(SimulatedHosts):
    def busbw(self, group):
        return 0.5 if len(group) > 2 else 1.0


@pytest.mark.parametrize("count", [4, 16])
def test_short_only_together(count):
    verdict = Oversubscribed(count).blamed()
    assert verdict["blame"] == verdict["suspect"] == []
    assert verdict["note"] == (
        "%d hosts together reach 0.5 GB/s (required: 0.8), each pair of them 1 to 1: they are too slow only together, so check "
        "what they share: the switch, its uplinks (oversubscription)" % count
    )


@pytest.mark.parametrize("count", [3, 8, 64])
def test_equally_slow_hosts_are_not_blamed(count):
    cluster = SimulatedHosts(count, usual=0.5)
    verdict = cluster.blamed()
    assert verdict["blame"] == []
    assert "each pair of them 0.5 to 0.5: no host and no link stands out" in verdict["note"]
    assert verdict["rounds"] <= count + math.log2(count)


def test_the_one_that_stands_out_where_all_fall_short():
    cluster = SimulatedHosts(5, links=[(0, 1)], usual=0.7)
    assert ("link", "node-00", "node-01") in named(cluster.blamed())


def test_one_at_a_time():
    cluster = SimulatedHosts(6, cards=[3])
    assert named(cluster.blamed(at_once=1)) == [("host", "node-03")]
    # The whole, 15 pairs, and the whole without it.
    assert [len(groups) for groups in cluster.rounds] == [1] * 17


def test_a_pair_is_measured_again_before_it_is_blamed():
    class Once(SimulatedHosts):
        def busbw(self, group):
            first = (
                group == ("node-01", "node-02")
                and sum(groups.count(group) for groups in self.rounds) == 1
            )
            return 0.1 if first or len(group) == 4 else 1.0

    verdict = Once(4).blamed()
    assert verdict["blame"] == [] and "only together" in verdict["note"]


def test_a_good_host_that_only_bad_ones_were_measured_with():
    """So many bad ones that halving leaves few to ask, and some of these are asked by bad ones
    only.
    """
    cards = [3, 4, 5, 14, 17, 19, 21, 22]
    assert named(SimulatedHosts(29, cards=cards).blamed()) == [
        ("host", "node-%02d" % number) for number in cards
    ]


def test_of_two_measurements_the_better_one_counts():
    search = _blame.search(["a", "b", "c"], REQUIRED, {"a": 0.4, "b": 1, "c": 1})
    assert next(search) == [("a",)]
    assert search.send({("a",): 0.1}) == [("b", "c")]
    with pytest.raises(StopIteration) as done:
        search.send({("b", "c"): 1})
    assert "it reaches 0.4 GB/s, but the others 1" in done.value.value["blame"][0]["evidence"]


@given(st.integers(2, 64), st.data())
@settings(max_examples=300, deadline=None)
def test_a_single_culprit_is_found_whoever_it_is(count, data):
    host = data.draw(st.integers(0, count - 1))
    kind = data.draw(
        st.sampled_from(["cards", "links", "alone"] if count > 2 else ["links", "alone"])
    )
    # Of links only those that the ring uses make the cluster fall short.
    cluster = SimulatedHosts(
        count, **{kind: [(host, (host + 1) % count)] if kind == "links" else [host]}
    )
    verdict = cluster.blamed()
    expected = (
        sorted({cluster.hosts[host], cluster.hosts[(host + 1) % count]})
        if kind == "links"
        else [cluster.hosts[host]]
    )
    assert named(verdict) == [("link" if kind == "links" else "host", *expected)]
    assert (
        verdict["rounds"]
        == len(cluster.rounds)
        <= (math.log2(count) + 10 if count >= _blame.BISECT_FROM else 2 * count + 1)
    )


@given(st.integers(6, 64), st.data())
@settings(max_examples=200, deadline=None)
def test_several_culprits(count, data):
    """Up to a third of the hosts are bad in one way or another; who is left out makes the rest
    good, and no good host is blamed.
    """
    numbers = data.draw(st.lists(st.integers(0, count - 1), unique=True, max_size=count // 3))
    cut = data.draw(st.integers(0, len(numbers)))
    cluster = SimulatedHosts(count, cards=numbers[:cut], alone=numbers[cut:])
    verdict = cluster.blamed()
    left = tuple(host for host in cluster.hosts if host not in verdict["suspect"])
    assert cluster.busbw(left) >= REQUIRED
    assert {
        name for entry in verdict["blame"] for name in entry["names"]
    } == cluster.cards | cluster.alone
    assert {entry["kind"] for entry in verdict["blame"]} <= {"host"}
    # Halving, or all pairs where it tells nothing, and what is measured again.
    assert verdict["rounds"] <= 2 * count + 2 * math.log2(count) + 8


@given(st.integers(4, 32), st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_noise_alone_blames_no_one_for_a_single_dip(count, seed):
    """Each measurement is disturbed with one chance in fifty; what is blamed was measured slow
    every time, and the culprit is never missed.
    """
    cluster = SimulatedHosts(count, cards=[1], dips=0.02, seed=seed)
    verdict = cluster.blamed()
    assert "node-01" in {name for entry in verdict["blame"] for name in entry["names"]}


@given(st.integers(2, 40), st.floats(0.01, 5), st.integers(0, 8), st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_whatever_is_measured_it_ends(count, required, at_once, rnd):
    hosts = list(range(count))
    search = _blame.search(hosts, required, {host: rnd.random() for host in hosts}, at_once)
    answers, rounds, verdict = None, 0, None
    while verdict is None:
        try:
            groups = search.send(answers)
        except StopIteration as done:
            verdict = done.value
        else:
            rounds += 1
            answers = {group: rnd.choice([None, rnd.random() * required * 2]) for group in groups}
    assert set(verdict["suspect"]) <= set(hosts) and verdict["rounds"] == rounds
    assert bool(verdict["blame"]) == bool(verdict["suspect"])
    assert verdict["blame"] or verdict["note"]
