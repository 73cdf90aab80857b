"""Which node, or which way between switches, is bad, found with tests of pairs in few rounds. Pure: pairs out, passed
or failed in.

What can be bad are *parts*: a node (NIC, cable, port), a node's way out of its switch, the way between two switches. A
pair under one switch tests two nodes; a pair across tests two ways out and the way between. The search finds what
always fails: a part passed it after `TRIES` passes in a row of one pair, and is bad after `strikes` failures without
any pass, with all others in those pairs known to be good. What fails in some tests only is decided by `evidence`, from
all tests.

Pairs under one switch come first, each twice; then one pair between every two switches, alone at both
(`PairKind.PROBE`: its figure can be compared with a pair under one switch); then all nodes go across at once
(`PairKind.CROWD`: compared with each other only, for a network may be narrower above its switches by design). Of more
than four switches each is in one such probe, and the other ways are a crowd, too. A node that has only failed meets
known-good partners, a new one after each failure. `certify` fills each round: a part has passed after `passes` tests
without a failure, so one that fails with probability 0.5 is missed with probability 0.5 ** `passes`; one that has
failed is tested on until its score says why. An only node under its switch is bad when it fails over several ways; over
a single one it is unknown. Where two nodes have no other partner, nothing tells which of them is bad.

Rounds: never more than `max_rounds` (48). With `passes` 2 a sound cluster takes 2 under one switch, 6 under two of the
same even size; with 8 it takes 8 and 12. A dead node is named in round 5, one that fails half of its tests in round 15
on average. A part that failed is not certain (`Doubt`) while nothing says whether it is bad or healthy.
"""

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations

from holdfast.diagnostics.isolation.certify import Certifier
from holdfast.diagnostics.isolation.evidence import Doubt, Evidence, PairTest
from holdfast.diagnostics.isolation.parts import (
    TRIES,
    IsolationPart,
    IsolationPlan,
    Pair,
    PairKind,
    partner_of,
)

__all__ = ["STRIKES", "TRIES", "Doubt", "Isolation", "Pair", "PairKind"]

STRIKES = 3
_MEETINGS = 8
_FEW = 4  # switches up to which each way is tested alone


class Isolation:
    """`next_round()`, test its pairs at the same time, `report()` the results; until `next_round()` is empty."""

    def __init__(
        self,
        nodes: Sequence[str],
        known_good: Collection[str] = (),
        switches: Mapping[str, str] | None = None,
        strikes: int = STRIKES,
        max_rounds: int = 48,
        seed: int = 0,
        passes: int = TRIES,
        partners: Collection[str] = (),
    ) -> None:
        """`known_good`: nodes that only serve as partners. `switches`: node -> switch. Where each has one node only, or
        all have the same, there is nothing to distinguish, and all are tested as though under one. `passes`: tests
        without a failure after which a part has passed. `partners`: nodes of which nobody asked: `TRIES` will do."""
        self._targets = [name for name in dict.fromkeys(nodes) if name not in known_good]
        everybody = [*self._targets, *sorted(known_good)]
        self._switch = {name: (switches or {}).get(name, "") for name in everybody}
        self._under = self._groups(everybody)
        if len(self._under) < 2 or max(map(len, self._under.values())) < 2:
            self._switch = dict.fromkeys(everybody, "")
            self._under = {"": everybody}
        self._strikes, self._max_rounds = strikes, max_rounds
        self._random = random.Random(seed)
        self._near = {name: IsolationPart() for group in self._under.values() if len(group) > 1 for name in group}
        self._out = {name: IsolationPart() for name in everybody} if len(self._under) > 1 else {}
        self._ways: dict[Pair, IsolationPart] = {pair: IsolationPart() for pair in combinations(sorted(self._under), 2)}
        for name in known_good:
            for part in (self._near.get(name), self._out.get(name)):
                if part is not None:
                    part.is_good = True
        if len(everybody) == 1:
            self._near = {name: IsolationPart() for name in everybody}
        self._known_good = set(known_good)
        order = sorted(self._under)
        self._first = set(zip(order[::2], order[1::2], strict=False))  # ways that are tested alone also of many
        self._asked: dict[Pair, PairKind] = {}
        self._partners = frozenset(partners)
        asked = {self._switch[name] for name in self._targets if name not in self._partners}
        brief: set[str | Pair] = {*self._partners, *(way for way in self._ways if asked.isdisjoint(way))}
        self._evidence = Evidence(self._targets, self._under, len(self._ways), max(TRIES, passes), brief)
        self._certifier = Certifier(self._evidence, self._switch, self.way)
        self.rounds = 0
        self.tests = 0

    def _groups(self, names: Iterable[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in names:
            found.setdefault(self._switch[name], []).append(name)
        return found

    # --- what is known -------------------------------------------------------------------------------------------

    @property
    def good(self) -> set[str]:
        """Nodes that passed more than once; those of `crossing` are not among them."""
        return self._known_good | {name for name in self._targets if self._is_good(name)}

    def _is_good(self, name: str) -> bool:
        near, out = self._near.get(name), self._out.get(name)
        if (out is not None and out.is_bad) or self._evidence.node_doubt(name) is not None:
            return False
        return bool(near and near.is_good) or bool(out and out.is_good and not (near and near.is_bad))

    @property
    def bad(self) -> set[str]:
        """Nodes whose pairs fail with partners that are known to be good, under their own switch, too, where they have
        a peer there that could show it."""
        return {name for name in self._targets if self._is_bad(name)}

    def is_bad(self, name: str) -> bool:
        """Is it one of `bad`? Without a look at all others; likewise the next two."""
        return name not in self._known_good and self._is_bad(name)

    def is_crossing(self, name: str) -> bool:
        out = self._out.get(name)
        return name not in self._known_good and out is not None and out.is_bad and not self._is_bad(name)

    def is_good(self, name: str) -> bool:
        return name in self._known_good or self._is_good(name)

    def is_undecided(self, name: str) -> bool:
        return not (self.is_good(name) or self._is_bad(name) or self.is_crossing(name))

    def _is_bad(self, name: str) -> bool:
        near, out = self._near.get(name), self._out.get(name)
        return bool(near and near.is_bad) or bool(out and out.is_bad and not (near and near.is_good))

    @property
    def crossing(self) -> set[str]:
        """Nodes that are good under their switch, and whose pairs across fail where others' pass."""
        return {name for name in self._targets if self.is_crossing(name)}

    @property
    def undecided(self) -> set[str]:
        """At the end: nodes of which nothing can be said, as when no pair passed at all."""
        return {name for name in self._targets if self.is_undecided(name)}

    @property
    def ways(self) -> set[Pair]:
        """Pairs of switches between which the way is bad, whichever node uses it."""
        dead = self.switches
        return {way for way, part in self._ways.items() if part.is_bad and dead.isdisjoint(way)}

    @property
    def switches(self) -> set[str]:
        """Switches under which, and out of which, nothing passed at all, while elsewhere it did."""
        if not any(part.passes for part in self._near.values()):
            return set()
        return {
            switch for switch, members in self._under.items()
            if switch and len(members) > 1 and all(self._is_silent(name) for name in members)
        }  # fmt: skip

    def _is_silent(self, name: str) -> bool:
        parts = [part for part in (self._near.get(name), self._out.get(name)) if part is not None]
        return not any(part.passes for part in parts) and self._near[name].row >= min(self._strikes, TRIES)

    @property
    def links(self) -> set[Pair]:
        """Pairs of good nodes that fail with each other only."""
        return self._evidence.links

    def doubt(self, name: str) -> Doubt | None:
        """Failures of an undecided node that nothing bad explains."""
        return self._evidence.node_doubt(name)

    def way_doubts(self) -> dict[Pair, Doubt]:
        """Ways between switches that are neither bad nor known to be good, and failed."""
        dead = self.switches
        return {way: doubt for way, doubt in self._evidence.way_doubts().items() if dead.isdisjoint(way)}

    def link_doubts(self) -> dict[Pair, Doubt]:
        """Likewise pairs of good nodes that failed with each other."""
        return {link: d for link, d in self._evidence.link_doubts().items() if all(map(self.is_good, link))}

    def failed_with(self, name: str) -> list[Pair]:
        """The pairs with it that failed."""
        return [test.pair for test in self._evidence.tests_of(name) if not test.is_pass]

    def tested(self, name: str) -> int:
        """Tests of pairs with it."""
        return len(self._evidence.tests_of(name))

    def way(self, pair: Pair) -> Pair | None:
        """The two switches between which a pair goes; None under one."""
        first, second = (self._switch[name] for name in pair)
        return None if first == second else (min(first, second), max(first, second))

    def kind(self, pair: Pair) -> PairKind:
        """How a pair of the round that is asked for now is tested."""
        return self._asked[pair]

    # --- the next round ------------------------------------------------------------------------------------------

    def next_round(self) -> list[Pair]:
        """Pairs to test at once, no node in two of them; empty when there is nothing more to learn."""
        self._asked = {}
        if self.rounds >= self._max_rounds:
            return []
        plan = IsolationPlan(self._random, self.way)
        for members in self._under.values():
            self._plan_near(plan, members)
        self._plan_across(plan)
        self._certify(plan)
        self._asked = plan.pairs
        if plan.pairs:
            self.rounds += 1
            self.tests += len(plan.pairs)
        return list(plan.pairs)

    def _plan_near(self, plan: IsolationPlan, members: Sequence[str]) -> None:
        parts = {name: self._near[name] for name in members if name in self._near}
        trusted = plan.shuffled(name for name, part in parts.items() if part.is_good)
        waiting = plan.shuffled(name for name, part in parts.items() if part.is_open)
        waiting.sort(key=lambda name: parts[name].rank)  # the most accused first: they are what holds up the end
        for name in waiting:
            if parts[name].is_suspect:
                plan.meet(name, parts[name], trusted, PairKind.NEAR)
        for name in waiting:
            partner = partner_of(parts[name].last, name)
            if partner in parts and not parts[partner].is_bad:
                plan.pair(name, partner, PairKind.NEAR)
        # Suspects wait for a partner that is known to be good, if there is one to come.
        pool = [*trusted, *(name for name in waiting if not (trusted and parts[name].is_suspect))]
        for name in waiting:
            if name in plan.busy or (parts[name].is_suspect and (trusted or self._is_stale(parts[name], len(members)))):
                continue
            met, free = parts[name].met(), [other for other in pool if other != name and other not in plan.busy]
            chosen = next((other for other in free if other not in met), next(iter(free), ""))
            if chosen:
                plan.pair(name, chosen, PairKind.NEAR)

    def _is_stale(self, part: IsolationPart, members: int) -> bool:
        """Has it failed with so many others that one more would say nothing new?"""
        enough = max(self._strikes, min(members - 1, _MEETINGS))
        return part.row >= enough or len(part.failures) > enough

    def _is_known(self, name: str) -> bool:
        """Did it pass under its switch, or fail too often to be searched for there?"""
        near = self._near.get(name)
        if near is None or near.is_good or near.is_mixed:
            return True
        return not near.is_bad and self._is_stale(near, len(self._under[self._switch[name]]))

    def _can_cross(self, name: str) -> bool:
        near, out = self._near.get(name), self._out[name]
        if out.is_bad or (near is not None and near.is_bad):
            return False
        return near is None or near.is_good or self._is_stale(near, len(self._under[self._switch[name]]))

    def _plan_across(self, plan: IsolationPlan) -> None:
        able = plan.shuffled(name for name in self._out if name not in plan.busy and self._can_cross(name))
        sides = self._groups(able)
        for name in sorted((n for n in able if self._out[n].is_suspect), key=lambda n: self._out[n].rank):
            part = self._out[name]
            if name not in plan.busy and not part.is_mixed and part.strikes < self._strikes:
                self._probe_suspect(plan, name, sides)
        waiting = [way for way, part in self._ways.items() if part.is_open and not part.is_mixed]
        waiting.sort(key=lambda way: (self._ways[way].rank, way not in self._first))
        for way in waiting:
            self._test_way(plan, way, sides)
        for name in able:
            if self._out[name].is_open and not self._out[name].failures and name not in plan.busy:
                self._send_across(plan, name, able)

    def _probe_suspect(self, plan: IsolationPlan, name: str, sides: Mapping[str, list[str]]) -> None:
        """A known-good partner over a way that is known to be good, alone on it."""
        partners = []
        for members in sides.values():
            way = self.way((name, members[0]))
            if way is not None and self._ways[way].is_good and plan.is_free(way, PairKind.PROBE):
                partners += [n for n in members if self._out[n].is_good]
        plan.meet(name, self._out[name], partners, PairKind.PROBE)

    def _test_way(self, plan: IsolationPlan, way: Pair, sides: Mapping[str, list[str]]) -> None:
        part = self._ways[way]
        is_alone = len(self._under) <= _FEW or way in self._first or bool(part.failures)
        kind = PairKind.PROBE if is_alone else PairKind.CROWD
        if not plan.is_free(way, kind):
            return
        if part.last is not None and plan.busy.isdisjoint(part.last) and all(map(self._can_cross, part.last)):
            plan.add(part.last, kind)
            return
        if part.row >= self._strikes + TRIES and not self._is_provable(way):
            return
        ends = []
        for switch in way:
            able: Sequence[str] = sides.get(switch, ())
            # A suspect says nothing of the way while there is another node.
            able = [name for name in able if not self._out[name].is_suspect] or able
            free = [name for name in able if name not in plan.busy]
            if not free:
                return
            ends.append(min(free, key=lambda name: self._fitness(name, part)))
        plan.pair(ends[0], ends[1], kind)

    def _fitness(self, name: str, way: IsolationPart) -> tuple[int, bool, bool]:
        """Least is best: nodes that are known to be good make a failure count, and those asked for need more tests."""
        return sum(name in pair for pair in way.failures), not self._out[name].is_good, name in self._partners

    def _is_provable(self, way: Pair) -> bool:
        """Are there known-good ends on both sides, so that a failure counts?"""
        return all(any(self._out[name].is_good for name in self._under[switch]) for switch in way)

    def _send_across(self, plan: IsolationPlan, name: str, able: Sequence[str]) -> None:
        here, mine = self._switch[name], self._out[name]
        open_to = {switch for switch in self._under if switch != here and self._is_open_way(plan, here, switch)}
        again = partner_of(mine.last, name)
        if again and self._can_cross(again):
            if self._switch[again] in open_to:
                plan.pair(name, again, PairKind.CROWD)
            return  # or in a later round: the second pass has to be of the same pair
        chosen = ""
        for other in able:  # once for each node: in a large cluster all that is looked up here counts
            if other in plan.busy or self._switch[other] not in open_to or self._out[other].is_suspect:
                continue
            if not self._out[other].is_good:  # those that have yet to cross first
                chosen = other
                break
            chosen = chosen or other
        if chosen:
            plan.pair(name, chosen, PairKind.CROWD)

    def _is_open_way(self, plan: IsolationPlan, here: str, there: str) -> bool:
        way = (min(here, there), max(here, there))
        return self._ways[way].is_good and plan.is_free(way, PairKind.CROWD)

    def _certify(self, plan: IsolationPlan) -> None:
        """Pairs of those that have nothing else to do in this round."""
        order = plan.shuffled(name for name in self._switch if not self._is_bad(name) and self._is_known(name))
        out = [name for name in order if name in self._out and self._can_cross(name)]
        ways = [way for way, part in self._ways.items() if part.is_good or part.is_mixed]
        near = [name for name in order if name in self._near]
        self._certifier.plan(plan, near, out, ways, [name for name in order if name not in self._known_good])

    # --- results -------------------------------------------------------------------------------------------------

    def report(self, passed: Mapping[Pair, bool]) -> None:
        """The results of the last round's pairs. One that is missing was not tested, and says nothing."""
        before = {id(part) for parts in (self._near, self._out, self._ways) for part in parts.values() if part.is_good}
        done = {pair: kind for pair, kind in self._asked.items() if pair in passed}
        for pair in done:
            self._note(pair, passed[pair], before)
        self._evidence.add(PairTest(pair, self.way(pair), kind, passed[pair]) for pair, kind in done.items())
        for part in (*self._near.values(), *self._ways.values()):
            self._decide(part)
        for name, part in self._out.items():
            self._decide(part, name)
        self._judge_ways()
        self._judge_evidence()
        self._asked = {}

    def _judge_evidence(self) -> None:
        """What the search found bad explains failures, and what the scores find bad is out of the search."""
        found = self._evidence
        found.bad |= self.bad
        found.crossing |= self.crossing
        found.ways |= {way for way, part in self._ways.items() if part.is_bad}
        found.judge()
        parts = [self._near.get(name) or self._out[name] for name in found.bad]
        parts += [self._out[name] for name in found.crossing]
        parts += [self._ways[way] for way in found.ways]
        for part in parts:
            part.is_good, part.is_bad = False, True

    def _parts(self, pair: Pair) -> list[IsolationPart]:
        way = self.way(pair)
        if way is None:
            return [self._near[name] for name in pair]
        return [self._out[pair[0]], self._out[pair[1]], self._ways[way]]

    def _note(self, pair: Pair, passed: bool, before: Collection[int]) -> None:
        parts = self._parts(pair)
        for part in parts:
            part.note(pair, passed, all(id(other) in before for other in parts if other is not part))

    def _decide(self, part: IsolationPart, out_of: str = "") -> None:
        if part.is_open:
            is_struck = part.strikes >= self._strikes and not part.passes
            is_apart = not out_of or not is_struck or self._evidence.is_apart(out_of)
            part.is_bad = is_struck and is_apart
            part.is_good = not part.is_bad and part.is_passed

    def _judge_ways(self) -> None:
        """What no single end explains is the way's, also before an end is known to be good; and an only node under its
        switch is bad when it fails over several ways."""
        for part in self._ways.values():
            if part.is_open and part.is_broad() and not part.passes:
                part.is_bad = part.row >= self._strikes
        for name, part in self._out.items():
            if part.is_open and name not in self._near and part.row >= self._strikes:
                part.is_bad = len({self.way(pair) for pair in part.failures[-part.row :]}) > 1
