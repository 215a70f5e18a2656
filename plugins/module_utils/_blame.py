# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Finds the host or link that keeps a cluster below its required bandwidth: chooses the next
measurements and draws conclusions.

Pure functions. They also run in training containers, so this is Python 3.6 with only the standard
library.

P(search) is a generator. It yields rounds, receives what was measured, and returns the verdict: an
all-reduce over each group of a round, the groups of a round disjoint, so they can run side by side.
A group of one is a host alone (its own processes or GPUs, no network), a group of two is a link,
larger ones narrow the search down: a slow half has a slow member, so a single culprit among 64
hosts is found in about ten rounds. Where halves tell nothing, all pairs are measured in rounds by
the circle method, n-1 of them for an even number of hosts and n for an odd one. A single
measurement is never enough for blame.
"""

import statistics
from typing import Any, Dict, Generator, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

__all__ = ["circle", "search"]

#: Names of hosts that are measured together, in the order of the search's hosts.
Group = Tuple[str, ...]
#: A culprit: its C(kind) (host or link), its C(names), and the C(evidence) in words.
Blame = Dict[str, Any]
#: Bus bandwidth in GB/s of the groups of a round, None of one that failed.
Measured = Mapping[Group, Optional[float]]
#: Yields rounds of groups, and is sent what was measured.
Rounds = Generator[List[Group], Measured, None]
Search = Generator[List[Group], Measured, Dict[str, Any]]

#: With fewer hosts all pairs are measured, which takes no more rounds than halving.
BISECT_FROM = 8


def circle(hosts: Sequence[str]) -> List[List[Group]]:
    """All pairs in rounds of disjoint pairs: one host stays, the others move by one position per
    round.
    """
    places: List[Optional[str]] = list(hosts) + [None] * (len(hosts) % 2)
    rounds = []
    for _round in range(len(places) - 1):
        half = len(places) // 2
        pairs: List[Group] = []
        for one, other in zip(places[:half], reversed(places[half:])):
            if one is not None and other is not None:
                pairs.append((one, other))
        rounds.append(pairs)
        places = places[:1] + places[-1:] + places[1:-1]
    return rounds


def _in_rounds(groups: Iterable[Group], at_once: int) -> List[List[Group]]:
    """Groups in rounds of disjoint groups, at most at_once in each (0: no limit), in the given
    order.
    """
    rounds: List[Tuple[Set[str], List[Group]]] = []
    for group in groups:
        for taken, members in rounds:
            if not taken.intersection(group) and not 0 < at_once <= len(members):
                break
        else:
            taken, members = set(), []
            rounds.append((taken, members))
        taken.update(group)
        members.append(group)
    return [members for _taken, members in rounds]


def _halves(groups: List[Group]) -> List[Tuple[Group, Group]]:
    """The two halves of each group of more than three hosts."""
    large = [group for group in groups if len(group) > 3]
    return [(group[: len(group) // 2], group[len(group) // 2 :]) for group in large]


def _pairs_in(groups: List[Group]) -> List[Group]:
    """All pairs of hosts within each group of up to three."""
    small = [group for group in groups if len(group) <= 3]
    return [pair for group in small for members in circle(group) for pair in members]


def _crossings(halves: List[Tuple[Group, Group]], slow: List[Group]) -> List[Group]:
    """Pairs between two halves that are not slow: an all-reduce uses a ring, which crosses between
    them at two links.
    """
    pairs: List[Group] = []
    for one, other in halves:
        if one not in slow and other not in slow:
            pairs += [(one[-1], other[0]), (one[0], other[-1])]
    return pairs


def _proving_pairs(suspects: List[str], witnesses: List[str]) -> List[Group]:
    """Pairs of each suspect and two other hosts, which show which of a pair it is, because one of
    them may have a bad link itself.
    """
    return [
        (host, witnesses[(2 * place + which) % len(witnesses)])
        for which in range(min(2, len(witnesses)))
        for place, host in enumerate(suspects)
    ]


class _Search(object):
    """Best measurement by group so far, because noise only lowers a bandwidth."""

    def __init__(
        self,
        hosts: Sequence[str],
        required: float,
        alone: Mapping[str, float],
        at_once: int,
        share: float,
        errors: Mapping[str, str],
    ) -> None:
        self.hosts = list(hosts)
        self.required = required
        self.at_once = at_once
        self.share = share
        self.errors = errors
        self.best: Dict[Group, float] = {(host,): alone[host] for host in hosts if host in alone}
        self.rounds = 0

    def key(self, group: Sequence[str]) -> Group:
        """Return a group as C(best) knows it: in the order of the hosts."""
        return tuple(sorted(group, key=self.hosts.index))

    def measure(self, groups: Iterable[Group]) -> Rounds:
        """Measure groups, C(at_once) in a round, and keep the best bandwidth in GB/s of each."""
        for members in _in_rounds([self.key(group) for group in groups], self.at_once):
            self.rounds += 1
            answer = yield members
            for group in members:
                # An incomplete measurement has no bandwidth.
                self.best[group] = max(self.best.get(group, 0.0), answer.get(group) or 0.0)

    def limit(self, values: List[float]) -> float:
        """Limit below which a group is slow.

        If no group reaches the requirement, only outliers count, because all others share the same
        problem.
        """
        best = max(values)
        is_enough = len(values) == 1 or best >= self.required
        return self.required if is_enough else self.share * best

    def slow(self, groups: Iterable[Group]) -> List[Group]:
        """Return the groups whose bandwidth is below the limit of them all."""
        keys = [self.key(group) for group in groups]
        limit = self.limit([self.best[group] for group in keys]) if keys else 0
        return [group for group in keys if self.best[group] < limit]

    def slow_alone(self) -> Generator[List[Group], Measured, Tuple[List[str], float]]:
        """Hosts that are slower alone than the others, because of their CPU, memory, PCIe or GPUs,
        and what is usual. Each is measured once more.
        """
        slow, usual = self._slow_alone()
        yield from self.measure(slow)
        slow, usual = self._slow_alone()
        return [group[0] for group in slow], usual

    def _slow_alone(self) -> Tuple[List[Group], float]:
        alone = {group: value for group, value in self.best.items() if len(group) == 1}
        # With two hosts the faster one.
        usual = statistics.median_high(alone.values()) if len(alone) > 1 else 0
        return [group for group, value in alone.items() if value < self.share * usual], usual

    def measure_twice(self, pairs: List[Group]) -> Rounds:
        """Each pair that was not measured yet, then slow ones once more, except for hosts that were
        slow with three or more others.
        """
        yield from self.measure(pair for pair in pairs if self.key(pair) not in self.best)
        keys = {self.key(pair) for pair in pairs}
        slow = self.slow(sorted(keys))
        found = {
            host
            for host in self.hosts
            if len([pair for pair in slow if host in pair]) > 2
            and not any(host in pair for pair in keys.difference(slow))
        }
        yield from self.measure(pair for pair in slow if not found.intersection(pair))

    def narrow(self, hosts: Sequence[str]) -> Generator[List[Group], Measured, List[Group]]:
        """Pairs that identify the culprits by halving.

        There is no result if no half or every half is slow.
        """
        pairs, witnesses = yield from self._halve(hosts)
        yield from self.measure_twice(pairs)
        slow = [pair for pair in pairs if self.best[self.key(pair)] < self.required]
        suspects = list(dict.fromkeys(host for pair in slow for host in pair))
        witnesses = [host for host in witnesses if host not in suspects]
        proving = _proving_pairs(suspects, witnesses)
        yield from self.measure_twice(proving)
        return list(dict.fromkeys(self.key(pair) for pair in pairs + proving)) if witnesses else []

    def _halve(
        self, hosts: Sequence[str]
    ) -> Generator[List[Group], Measured, Tuple[List[Group], List[str]]]:
        """Pairs of which one may be slow, and the hosts of halves that are not slow."""
        groups = [self.key(hosts)]
        pairs: List[Group] = []
        witnesses: List[str] = []
        while groups:
            halves = _halves(groups)
            pairs += _pairs_in(groups)
            both = [half for two in halves for half in two]
            yield from self.measure(both)
            groups = [half for half in both if self.best[half] < self.required]
            witnesses += [host for half in both if half not in groups for host in half]
            pairs += _crossings(halves, groups)
        return pairs, witnesses

    def reached(self, busbw: float, most: str = "") -> str:
        """What a measurement reached, as a text."""
        if not busbw:
            return "measured nothing, because the measurement failed"
        return "reaches %s%s GB/s (required: %s)" % (most, _figure(busbw), _figure(self.required))

    def host_entry(
        self, worst: str, links: List[Group], pairs: List[Group], slow: List[Group]
    ) -> Blame:
        """The blame of a host, all of whose C(links) to hosts without blame are slow."""
        own = [self.best[pair] for pair in links]
        others = [self.best[pair] for pair in pairs if worst not in pair and pair not in slow]
        elsewhere = (
            "; links between others reach %s or more" % _figure(min(others)) if others else ""
        )
        evidence = (
            "each of the %d pairs measured with it %s%s: its network card, cable or switch port%s"
            % (
                len(own),
                self.reached(max(own), "at most "),
                elsewhere,
                "" if any(own) else ", its firewall, or a limit of the host",
            )
        )
        return {"kind": "host", "names": [worst], "evidence": evidence}

    def link_entry(self, pair: Group, pairs: List[Group], slow: List[Group]) -> Blame:
        """The blame of a slow link."""
        others = {
            host: [self.best[other] for other in pairs if host in other and other not in slow]
            for host in pair
        }
        if all(others.values()):
            message = "; with other hosts %s: the path between the two" % " and ".join(
                "%s reaches %s" % (host, _figure(max(others[host]))) for host in pair
            )
        else:
            message = ". A third host is needed to distinguish the link from the two hosts"
        evidence = "this pair %s%s" % (self.reached(self.best[pair]), message)
        return {"kind": "link", "names": list(pair), "evidence": evidence}

    def good(self, pairs: List[Group]) -> Set[str]:
        """Hosts of any fast group. They are no culprits, even if their later partners were."""
        limit = self.limit([self.best[pair] for pair in pairs]) if pairs else 0
        groups = [group for group, value in self.best.items() if len(group) > 1 and value >= limit]
        return {host for group in groups for host in group}

    def culprits(self, hosts: List[str], pairs: List[Group]) -> List[Blame]:
        """Hosts whose links are all slow, then the slow links between the others."""
        slow, left = self.slow(pairs), list(hosts)
        blame: List[Blame] = []
        good = self.good(pairs)

        def links(host: str) -> List[Group]:
            return [pair for pair in pairs if host in pair and set(pair) <= set(left)]

        def is_bad(host: str) -> bool:
            own = links(host) if host not in good else []
            return len(own) > 1 and set(own) <= set(slow)

        worst = next(filter(is_bad, left), None)
        while worst is not None:
            blame.append(self.host_entry(worst, links(worst), pairs, slow))
            left.remove(worst)
            worst = next(filter(is_bad, left), None)
        blame += [self.link_entry(pair, pairs, slow) for pair in slow if set(pair) <= set(left)]
        return blame

    def run(self) -> Search:
        """Find the culprits, one group after the other, until the rest is as it should be or nobody
        stands out.
        """
        blame: List[Blame] = []
        slow, usual = yield from self.slow_alone()
        for host in slow:
            evidence = self.why_alone(host, usual)
            blame.append({"kind": "host", "names": [host], "evidence": evidence})
        suspect = list(slow)
        is_whole = False
        while True:
            left = [host for host in self.hosts if host not in suspect]
            if len(left) < 2:
                note = "" if blame else "one host alone has no link"
                break
            yield from self.measure([tuple(left)])
            together = self.best[tuple(left)]
            if together >= self.required:
                note = "" if blame else self.why_disturbed(together)
                break
            by_halves = len(left) >= BISECT_FROM and not is_whole
            found, pairs, is_whole = yield from self.blamed(left, by_halves)
            if not found:
                note = self.why_none(left, pairs, together)
                break
            blame += found
            # One end of a link is enough. The head, which is the first host, launches the jobs.
            ends = dict.fromkeys(entry["names"][-1] for entry in found)
            suspect += [host for host in ends if host not in suspect]
        return {"blame": blame, "suspect": suspect, "note": note, "rounds": self.rounds}

    def blamed(
        self, hosts: List[str], by_halves: bool
    ) -> Generator[List[Group], Measured, Tuple[List[Blame], List[Group], bool]]:
        """The culprits, the measured pairs, and whether these are all pairs of the hosts, as they
        are where halves tell nothing.
        """
        if by_halves:
            pairs = yield from self.narrow(hosts)
            found = self.culprits(hosts, pairs)
            if found:
                return found, pairs, False
        pairs = [self.key(pair) for members in circle(hosts) for pair in members]
        yield from self.measure_twice(pairs)
        return self.culprits(hosts, pairs), pairs, True

    def why_disturbed(self, together: float) -> str:
        """The note of a search that finds no fault."""
        return (
            "in a second measurement the cluster reached %s GB/s: the first one was disturbed"
            % _figure(together)
        )

    def why_alone(self, host: str, usual: float) -> str:
        """A measurement that failed has no bandwidth, which says nothing of the hardware."""
        if not self.best[(host,)]:
            message = (
                "its measurement alone, without the network, failed%s, while the others reach %s "
                "GB/s"
            )
            error = self.errors.get(host)
            return message % (": %s" % error if error else "", _figure(usual))
        return (
            "alone, without the network, it reaches %s GB/s, but the others %s: its CPU, "
            "memory, PCIe or GPUs"
        ) % (_figure(self.best[(host,)]), _figure(usual))

    def why_none(self, hosts: List[str], pairs: List[Group], together: float) -> str:
        """Return why no host and no link is to blame. C(together) is in GB/s."""
        values = [self.best[self.key(pair)] for pair in pairs]
        message = "%d hosts together reach %s GB/s (required: %s), each pair of them %s to %s" % (
            len(hosts),
            _figure(together),
            _figure(self.required),
            _figure(min(values)),
            _figure(max(values)),
        )
        if min(values) >= self.required:
            return message + (
                ": they are too slow only together, so check what they share: the switch, its "
                "uplinks (oversubscription)"
            )
        return message + (
            ": no host and no link stands out, so check what all share (switch, driver, "
            "settings), and whether the requirement is right"
        )


def _figure(value: float) -> str:
    return "%.3g" % value


def search(
    hosts: Sequence[str],
    required: float,
    alone: Optional[Mapping[str, float]] = None,
    at_once: int = 0,
    share: float = 0.6,
    errors: Optional[Mapping[str, str]] = None,
) -> Search:
    """Find the hosts and links that keep the hosts below the required bus bandwidth (GB/s).

    C(alone) is what each host does by itself, as far as it was measured (0 if that failed, with the
    reason in C(errors)); C(at_once) limits the groups of a round, 0 does not. Below the C(share) of
    what the others do a host alone is slow, and a pair where all fall short. A generator: yields
    lists of disjoint groups (tuples of hosts, in their order), is sent a dictionary from group to
    bus bandwidth (None for one that failed), and returns C(blame) (kind, names, evidence),
    C(suspect) (hosts without which the rest is as it should be), C(note) (why nobody is to blame)
    and C(rounds).
    """
    return _Search(hosts, required, alone or {}, at_once, share, errors or {}).run()
