"""Which node is bad, found with tests of pairs in few rounds. Pure: pairs out, passed or failed in.

A pair that passes clears both for good. A failed one says something only of a node whose partner is known to be good:
after `strikes` of those, with different partners where there are some and without a pass in between, the node is bad;
so one flaky test blames nobody. Round 1 tests all nodes in random pairs, neighbours first; from then on every suspect
meets a known-good node. One bad node takes 1 + `strikes` rounds at any size. With values instead of passes the caller
compares each pair's with a good pair's: a pair is as slow as its slower member, so the same rounds find it.

Two known-good nodes whose own pair failed share a bad link; `links` names it after it failed again.
"""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

Pair = tuple[str, str]

STRIKES = 3
_LINK_TRIES = 2


@dataclass(slots=True)
class _Standing:
    strikes: int = 0
    met: set[str] = field(default_factory=set)


class Isolation:
    """`next_round()`, test its pairs at the same time, `report()` the results; until `next_round()` is empty."""

    def __init__(
        self,
        nodes: Sequence[str],
        known_good: Collection[str] = (),
        switches: Mapping[str, str] | None = None,
        strikes: int = STRIKES,
        max_rounds: int = 24,
        seed: int = 0,
    ) -> None:
        """`known_good`: nodes that only serve as partners. `switches`: partners under one switch come first, so that
        a test says little of the network above."""
        self._undecided = {name: _Standing() for name in dict.fromkeys(nodes) if name not in known_good}
        self._switches = switches or {}
        self._strikes, self._max_rounds = strikes, max_rounds
        self._random = random.Random(seed)
        self._asked: list[Pair] = []
        self._odd_links: dict[Pair, int] = {}
        self.good: set[str] = set(known_good)
        self.bad: set[str] = set()
        self.links: set[Pair] = set()
        self.rounds = 0
        self.tests = 0

    @property
    def undecided(self) -> set[str]:
        """At the end: nodes of which nothing can be said, as when no pair passed at all."""
        return set(self._undecided)

    def next_round(self) -> list[Pair]:
        """Pairs to test at once, no node in two of them; empty when there is nothing more to learn."""
        if self.rounds >= self._max_rounds:
            return []
        pairs = self._suspect_pairs()
        busy = {node for pair in pairs for node in pair}
        for link, failures in self._odd_links.items():
            if link not in self.links and failures and self.good.issuperset(link) and busy.isdisjoint(link):
                pairs.append(link)
                busy.update(link)
        if pairs:
            self.rounds += 1
            self.tests += len(pairs)
        self._asked = pairs
        return pairs

    def _suspect_pairs(self) -> list[Pair]:
        waiting = list(self._undecided)
        self._random.shuffle(waiting)
        helpers = list(self.good)
        helpers.sort()  # a set's order is not the same in every process
        self._random.shuffle(helpers)
        pairs: list[Pair] = []
        # The most accused first: they are what holds up the end.
        waiting.sort(key=lambda name: -self._undecided[name].strikes)
        while waiting and helpers:
            name = waiting.pop(0)
            partner = self._partner(name, helpers)
            helpers.remove(partner)
            pairs.append((name, partner))
        while len(waiting) >= 2:
            name = waiting.pop(0)
            partner = self._partner(name, waiting)
            waiting.remove(partner)
            pairs.append((name, partner))
        return pairs

    def _partner(self, name: str, among: list[str]) -> str:
        met, switch = self._undecided[name].met, self._switches.get(name, "")
        new = [other for other in among if other not in met] or among
        near = [other for other in new if self._switches.get(other, "") == switch]
        return (near or new)[0]

    def report(self, passed: Mapping[Pair, bool]) -> None:
        """The results of the last round's pairs. One that is missing was not tested, and says nothing."""
        was_good = set(self.good)
        for pair in self._asked:
            if passed.get(pair):
                self.good.update(pair)
        for pair in self._asked:
            if pair in passed:
                self._note(pair, passed[pair], was_good)
        for name in self.good:
            self._undecided.pop(name, None)
        for name in [n for n, s in self._undecided.items() if s.strikes >= self._strikes]:
            del self._undecided[name]
            self.bad.add(name)
        self._asked = []

    def _note(self, pair: Pair, passed: bool, was_good: set[str]) -> None:
        first, second = pair
        key = (min(pair), max(pair))
        if passed:
            self._odd_links.pop(key, None)
            return
        for name, other in ((first, second), (second, first)):
            standing = self._undecided.get(name)
            if standing is not None:
                standing.met.add(other)
                standing.strikes += other in was_good
        failures = self._odd_links[key] = self._odd_links.get(key, 0) + 1
        if was_good.issuperset(pair) and failures > _LINK_TRIES:
            self.links.add(key)
