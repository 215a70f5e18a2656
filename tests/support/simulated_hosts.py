"""Hosts whose bandwidth is simulated, so that it is known who is to blame."""

from __future__ import annotations

import random

from ansible_collections.trainyard.gpu.plugins.module_utils import _blame

REQUIRED = 0.8


class SimulatedHosts:
    """Hosts whose all-reduce goes round in a ring, as fast as its slowest part; good ones do 1
    GB/s.
    """

    def __init__(self, count, cards=(), links=(), alone=(), dips=0.0, seed=0, usual=1.0):
        """Numbers of hosts whose card is slow, pairs of numbers whose link is, hosts that are slow
        alone; the chance that a measurement is disturbed.
        """
        self.hosts = ["node-%02d" % number for number in range(count)]
        self.cards, self.alone = (
            {self.hosts[number] for number in cards},
            {self.hosts[number] for number in alone},
        )
        self.links = {frozenset(self.hosts[number] for number in link) for link in links}
        self.dips, self.random, self.usual = dips, random.Random(seed), usual
        self.rounds = []

    def busbw(self, group):
        ring = (
            {frozenset(pair) for pair in zip(group, group[1:] + group[:1])}
            if len(group) > 1
            else set()
        )
        slow = (
            self.alone.intersection(group)
            or ring & self.links
            or len(group) > 1
            and self.cards.intersection(group)
        )
        return (0.1 if slow else self.usual) * (0.3 if self.random.random() < self.dips else 1)

    def blamed(self, at_once=0):
        """Let the search ask; its verdict. C(rounds) has what was measured side by side."""
        search = _blame.search(
            self.hosts, REQUIRED, {host: self.busbw((host,)) for host in self.hosts}, at_once
        )
        answers = None
        while True:
            try:
                groups = search.send(answers)
            except StopIteration as done:
                return done.value
            members = [host for group in groups for host in group]
            assert len(members) == len(set(members)), "groups of a round are disjoint"
            assert not at_once or len(groups) <= at_once
            self.rounds.append(groups)
            answers = {group: self.busbw(group) for group in groups}
