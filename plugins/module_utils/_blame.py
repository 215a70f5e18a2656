# -*- coding: utf-8 -*-
# Copyright: (c) 2026, trainyard maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Finds the host or link that keeps a cluster below its required bandwidth: chooses the next measurements and draws conclusions.

Pure functions. They also run in training containers, so this is Python 3.6 with only the standard library.

P(search) is a generator. It yields rounds, receives what was measured, and returns the verdict: an all-reduce over each group of a round, the groups of a
round disjoint, so they can run side by side. A group of one is a host alone (its own processes or GPUs, no network), a group of two is a link, larger ones
narrow the search down: a slow half has a slow member, so a single culprit among 64 hosts is found in about ten rounds. Where halves tell nothing, all pairs are
measured in rounds by the circle method, n-1 of them for an even number of hosts and n for an odd one. A single measurement is never enough for blame.
"""

import statistics

__all__ = ["circle", "search"]

#: With fewer hosts all pairs are measured, which takes no more rounds than halving.
BISECT_FROM = 8


def circle(hosts):
    """All pairs in rounds of disjoint pairs: one host stays, the others move by one position per round."""
    places = list(hosts) + [None] * (len(hosts) % 2)
    rounds = []
    for dummy in range(len(places) - 1):
        half = len(places) // 2
        pairs = zip(places[:half], reversed(places[half:]))
        rounds.append(
            [(one, other) for one, other in pairs if one is not None and other is not None]
        )
        places = places[:1] + places[-1:] + places[1:-1]
    return rounds


def _in_rounds(groups, at_once):
    """Groups in rounds of disjoint groups, at most at_once in each (0: no limit), in the given order."""
    rounds = []
    for group in groups:
        for taken, members in rounds:
            if not taken.intersection(group) and not 0 < at_once <= len(members):
                break
        else:
            taken, members = set(), []
            rounds.append((taken, members))
        taken.update(group)
        members.append(group)
    return [members for dummy, members in rounds]


def _halves(groups):
    """The two halves of each group of more than three hosts."""
    large = [group for group in groups if len(group) > 3]
    return [(group[: len(group) // 2], group[len(group) // 2 :]) for group in large]


def _pairs_in(groups):
    """All pairs of hosts within each group of up to three."""
    small = [group for group in groups if len(group) <= 3]
    return [pair for group in small for members in circle(group) for pair in members]


def _crossings(halves, slow):
    """Pairs between two halves that are not slow: an all-reduce uses a ring, which crosses between them at two links."""
    pairs = []
    for one, other in halves:
        if one not in slow and other not in slow:
            pairs += [(one[-1], other[0]), (one[0], other[-1])]
    return pairs


def _proving_pairs(suspects, witnesses):
    """Pairs of each suspect and two other hosts, which show which of a pair it is, because one of them may have a bad link itself."""
    return [
        (host, witnesses[(2 * place + which) % len(witnesses)])
        for which in range(min(2, len(witnesses)))
        for place, host in enumerate(suspects)
    ]


class _Search(object):
    """Best measurement by group so far, because noise only lowers a bandwidth."""

    def __init__(self, hosts, required, alone, at_once, share, errors):
        self.hosts = list(hosts)
        self.required = required
        self.at_once = at_once
        self.share = share
        self.errors = errors
        self.best = {(host,): alone[host] for host in hosts if host in alone}
        self.rounds = 0

    def key(self, group):
        return tuple(sorted(group, key=self.hosts.index))

    def measure(self, groups):
        for members in _in_rounds([self.key(group) for group in groups], self.at_once):
            self.rounds += 1
            answer = yield members
            for group in members:
                # An incomplete measurement has no bandwidth.
                self.best[group] = max(self.best.get(group, 0.0), answer.get(group) or 0.0)

    def limit(self, values):
        """Limit below which a group is slow. If no group reaches the requirement, only outliers count, because all others share the same problem."""
        values = list(values)
        return (
            self.required
            if len(values) == 1 or max(values) >= self.required
            else self.share * max(values)
        )

    def slow(self, groups):
        groups = [self.key(group) for group in groups]
        limit = self.limit(self.best[group] for group in groups) if groups else 0
        return [group for group in groups if self.best[group] < limit]

    def slow_alone(self):
        """Hosts that are slower alone than the others, because of their CPU, memory, PCIe or GPUs. Each is measured once more."""
        for again in (False, True):
            alone = {group: value for group, value in self.best.items() if len(group) == 1}
            # With two hosts the faster one.
            usual = statistics.median_high(alone.values()) if len(alone) > 1 else 0
            slow = [group for group, value in alone.items() if value < self.share * usual]
            if slow and not again:
                yield from self.measure(slow)
        return [group[0] for group in slow], usual

    def measure_twice(self, pairs):
        """Each pair that was not measured yet, then slow ones once more, except for hosts that were slow with three or more others."""
        yield from self.measure(pair for pair in pairs if self.key(pair) not in self.best)
        pairs = {self.key(pair) for pair in pairs}
        slow = self.slow(sorted(pairs))
        found = {
            host
            for host in self.hosts
            if len([pair for pair in slow if host in pair]) > 2
            and not any(host in pair for pair in pairs.difference(slow))
        }
        yield from self.measure(pair for pair in slow if not found.intersection(pair))

    def narrow(self, hosts):
        """Pairs that identify the culprits by halving. There is no result if no half or every half is slow."""
        groups, pairs, witnesses = [self.key(hosts)], [], []
        while groups:
            halves = _halves(groups)
            pairs += _pairs_in(groups)
            both = [half for two in halves for half in two]
            yield from self.measure(both)
            groups = [half for half in both if self.best[half] < self.required]
            witnesses += [host for half in both if half not in groups for host in half]
            pairs += _crossings(halves, groups)
        yield from self.measure_twice(pairs)
        slow = [pair for pair in pairs if self.best[self.key(pair)] < self.required]
        suspects = list(dict.fromkeys(host for pair in slow for host in pair))
        witnesses = [host for host in witnesses if host not in suspects]
        asked = _proving_pairs(suspects, witnesses)
        yield from self.measure_twice(asked)
        return list(dict.fromkeys(self.key(pair) for pair in pairs + asked)) if witnesses else []

    def reached(self, busbw, most=""):
        """What a measurement reached, as a text."""
        if not busbw:
            return "measured nothing, because the measurement failed"
        return "reaches %s%s GB/s (required: %s)" % (most, _figure(busbw), _figure(self.required))

    def host_entry(self, worst, links, pairs, slow):
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

    def link_entry(self, pair, pairs, slow):
        """The blame of a slow link."""
        others = {
            host: [self.best[other] for other in pairs if host in other and other not in slow]
            for host in pair
        }
        if all(others.values()):
            told = "; with other hosts %s: the path between the two" % " and ".join(
                "%s reaches %s" % (host, _figure(max(others[host]))) for host in pair
            )
        else:
            told = ". A third host is needed to distinguish the link from the two hosts"
        evidence = "this pair %s%s" % (self.reached(self.best[pair]), told)
        return {"kind": "link", "names": list(pair), "evidence": evidence}

    def good(self, pairs):
        """Hosts of any fast group. They are no culprits, even if their later partners were."""
        limit = self.limit(self.best[pair] for pair in pairs) if pairs else 0
        groups = [group for group, value in self.best.items() if len(group) > 1 and value >= limit]
        return {host for group in groups for host in group}

    def culprits(self, hosts, pairs):
        """Hosts whose links are all slow, then the slow links between the others."""
        slow, blame, left = self.slow(pairs), [], list(hosts)
        good = self.good(pairs)

        def links(host):
            return [pair for pair in pairs if host in pair and set(pair) <= set(left)]

        def is_bad(host):
            own = links(host) if host not in good else []
            return len(own) > 1 and set(own) <= set(slow)

        worst = next(filter(is_bad, left), None)
        while worst is not None:
            blame.append(self.host_entry(worst, links(worst), pairs, slow))
            left.remove(worst)
            worst = next(filter(is_bad, left), None)
        blame += [self.link_entry(pair, pairs, slow) for pair in slow if set(pair) <= set(left)]
        return blame

    def run(self):
        blame, suspect = [], []
        slow, usual = yield from self.slow_alone()
        for host in slow:
            blame.append(
                {
                    "kind": "host",
                    "names": [host],
                    "evidence": self.why_alone(host, usual),
                }
            )
            suspect.append(host)
        whole = False
        while True:
            left = [host for host in self.hosts if host not in suspect]
            if len(left) < 2:
                note = "" if blame else "one host alone has no link"
                break
            yield from self.measure([left])
            together = self.best[tuple(left)]
            if together >= self.required:
                note = (
                    ""
                    if blame
                    else "in a second measurement the cluster reached %s GB/s: the first one was disturbed"
                    % _figure(together)
                )
                break
            pairs = []
            if len(left) >= BISECT_FROM and not whole:
                pairs = yield from self.narrow(left)
            found = self.culprits(left, pairs)
            if not found:
                pairs = [self.key(pair) for members in circle(left) for pair in members]
                yield from self.measure_twice(pairs)
                found = self.culprits(left, pairs)
                whole = True
            if not found:
                note = self.why_none(left, pairs, together)
                break
            blame += found
            # One end of a link is enough. The head, which is the first host, launches the jobs.
            suspect += [
                host
                for host in dict.fromkeys(entry["names"][-1] for entry in found)
                if host not in suspect
            ]
        return {"blame": blame, "suspect": suspect, "note": note, "rounds": self.rounds}

    def why_alone(self, host, usual):
        """A measurement that failed has no bandwidth, which says nothing of the hardware."""
        if not self.best[(host,)]:
            told = "its measurement alone, without the network, failed%s, while the others reach %s GB/s"
            error = self.errors.get(host)
            return told % (": %s" % error if error else "", _figure(usual))
        return (
            "alone, without the network, it reaches %s GB/s, but the others %s: its CPU, memory, PCIe or GPUs"
            % (_figure(self.best[(host,)]), _figure(usual))
        )

    def why_none(self, hosts, pairs, together):
        values = [self.best[self.key(pair)] for pair in pairs]
        told = "%d hosts together reach %s GB/s (required: %s), each pair of them %s to %s" % (
            len(hosts),
            _figure(together),
            _figure(self.required),
            _figure(min(values)),
            _figure(max(values)),
        )
        if min(values) >= self.required:
            return (
                told
                + ": they are too slow only together, so check what they share: the switch, its uplinks (oversubscription)"
            )
        return (
            told
            + ": no host and no link stands out, so check what all share (switch, driver, settings), and whether the requirement is right"
        )


def _figure(value):
    return "%.3g" % value


def search(hosts, required, alone=None, at_once=0, share=0.6, errors=None):
    """Find the hosts and links that keep the hosts below the required bus bandwidth (GB/s).

    C(alone) is what each host does by itself, as far as it was measured (0 if that failed, with the reason in C(errors)); C(at_once) limits the groups of a
    round, 0 does not. Below the C(share) of what the others do a host alone is slow, and a pair where all fall short. A generator: yields lists of
    disjoint groups (tuples of hosts, in their order), is sent a dictionary from group to bus bandwidth (None for one that failed), and returns C(blame)
    (kind, names, evidence), C(suspect) (hosts without which the rest is as it should be), C(note) (why nobody is to blame) and C(rounds).
    """
    return _Search(hosts, required, alone or {}, at_once, share, errors or {}).run()
