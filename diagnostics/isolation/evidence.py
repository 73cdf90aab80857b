"""Likelihood ratios of faults that show in some tests only: all tests of pairs in, culprits out. Pure.

A failed test makes *suspects* of all that it used: both nodes, their ways out of their switches, the switches, the way
between them, the link of just these two. A suspect's score is the logarithm of the likelihood ratio "it fails half of
its tests" (or 95 %, if more likely) against "`NOISE` of them fail for nothing": a failure adds 2.3, a pass takes 0.64.
A suspect is bad when its score reaches log(`ODDS` x suspects of its kind), and no other suspect of its failures
explains them as well: its score is log(`ODDS`) above the other's, or is that without the other's tests. A node's
failures count with partners that pass without it. By Ville's inequality a likelihood ratio reaches k, however often it
is looked at, with a probability below 1 / k. So a healthy part is blamed in less than one of `ODDS` runs for each kind,
whether the tests fail at random or another suspect is the reason. What a bad part explains counts for no other from
then on.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from holdfast.diagnostics.isolation.parts import TRIES, Pair, PairKind, partner_of

NOISE = 0.05
ODDS = 1000
WORN = 2  # failures of a link up to which one more says something new of its two nodes
_PROOF = math.log(ODDS)
_FAIL, _PASS = math.log(0.5 / NOISE), math.log(0.5 / (1 - NOISE))
_FAIL_ALWAYS, _PASS_ALWAYS = math.log(0.95 / NOISE), math.log(0.05 / (1 - NOISE))


class SuspectKind(StrEnum):
    NODE = "node"
    OUT = "out"
    WAY = "way"
    PROBE = "probe"
    """A way between switches, for a pair that is alone on it: it may be slow for one pair, and a crowd doesn't show
    that, which is compared with itself only."""
    LINK = "link"
    SWITCH = "switch"
    """It is never named, but no other is bad while it explains as much."""


Suspect = tuple[SuspectKind, Pair]
"""A node, its way out or a switch is (name, "")."""


@dataclass(frozen=True, slots=True)
class PairTest:
    pair: Pair
    way: Pair | None
    kind: PairKind
    is_pass: bool

    @property
    def link(self) -> Pair:
        return min(self.pair), max(self.pair)


@dataclass(frozen=True, slots=True)
class Doubt:
    """A part failed in `fails` of `tests`: too few to tell whether it is bad. `across`: only tests across count."""

    fails: int
    tests: int
    across: bool


@dataclass(frozen=True, slots=True)
class _Count:
    fails: int = 0
    passes: int = 0

    @property
    def half(self) -> float:
        """For "fails half of its tests"."""
        return self.fails * _FAIL + self.passes * _PASS

    @property
    def score(self) -> float:
        """For that, or for "fails always", which is more."""
        return max(self.half, self.fails * _FAIL_ALWAYS + self.passes * _PASS_ALWAYS)

    def is_clear(self, wanted: int) -> bool:
        return self.half <= -_PROOF if self.fails else self.passes >= wanted


class Evidence:
    """`add()` the tests of a round, then `judge()`; `bad`, `crossing`, `ways` and `links` may be added to."""

    def __init__(
        self,
        judged: Iterable[str],
        under: Mapping[str, Sequence[str]],
        ways: int,
        wanted: int,
        brief: Container[str | Pair] = (),
    ) -> None:
        """`judged`: nodes that can be bad. `under`: nodes by switch. `ways`: how many between switches. `wanted`:
        passes without any failure after which a part is healthy. `brief`: nodes and ways for which `TRIES` will do."""
        self._judged, self._wanted, self._brief = frozenset(judged), wanted, brief
        self._switch = {name: switch for switch, members in under.items() for name in members if len(members) > 1}
        nodes = max(1, len(self._judged))
        kinds = {SuspectKind.WAY: ways, SuspectKind.PROBE: ways, SuspectKind.LINK: nodes * (nodes - 1) // 2}
        self._limit = {kind: math.log(ODDS * max(1, kinds.get(kind, nodes))) for kind in SuspectKind}
        self._tests: list[PairTest] = []
        self._of: defaultdict[Suspect, int] = defaultdict(int)  # a bit for each test that nothing bad explains
        self._failed = 0  # likewise
        self._with: defaultdict[str, list[PairTest]] = defaultdict(list)
        self.bad: set[str] = set()
        self.crossing: set[str] = set()
        self.ways: set[Pair] = set()
        self.links: set[Pair] = set()
        self._explained = 0

    # --- what is known -------------------------------------------------------------------------------------------

    def tests_of(self, name: str) -> list[PairTest]:
        return self._with.get(name, [])

    def has_failed(self, name: str) -> bool:
        """Has it a failure that nothing bad explains?"""
        return self._count(SuspectKind.NODE, (name, "")).fails > 0

    def has_failed_near(self, name: str) -> bool:
        return self._count(SuspectKind.NODE, (name, "")).fails > self._count(SuspectKind.OUT, (name, "")).fails

    def failed_links(self) -> list[Pair]:
        return [what for (kind, what), bits in self._of.items() if kind is SuspectKind.LINK and bits & self._failed]

    def has_failed_link(self, link: Pair) -> bool:
        return self._count(SuspectKind.LINK, link).fails > 0

    def has_failed_alone(self, way: Pair) -> bool:
        """Did a pair fail on it that was alone there? Then only such pairs say whether it is healthy."""
        return self._count(SuspectKind.PROBE, way).fails > 0

    def is_sure(self, name: str, across: bool = False) -> bool:
        """Is a node, or its way out, healthy? The partner that it failed with most may be the reason."""
        me = (SuspectKind.OUT if across else SuspectKind.NODE, (name, ""))
        if self._count(*me).is_clear(self._enough(name)):
            return True
        worst = Counter(test.link for test in self._failures(me)).most_common(1)
        return bool(worst) and self.is_sure_without(name, worst[0][0], across)

    def is_sure_without(self, name: str, link: Pair, across: bool = False) -> bool:
        rest = self._less((SuspectKind.OUT if across else SuspectKind.NODE, (name, "")), (SuspectKind.LINK, link))
        return rest.half <= -_PROOF

    def has_passed_without(self, name: str, link: Pair) -> bool:
        kind = SuspectKind.OUT if self._is_across(link) else SuspectKind.NODE
        return self._less((kind, (name, "")), (SuspectKind.LINK, link)).is_clear(self._enough(name))

    def is_sure_way(self, way: Pair) -> bool:
        is_clear = self._count(SuspectKind.WAY, way).is_clear(self._enough(way))
        return is_clear and (not self.has_failed_alone(way) or self._count(SuspectKind.PROBE, way).half <= 0)

    def is_open_link(self, link: Pair) -> bool:
        """Has it failed, and is not known whether for nothing? The failure that raised the question is no answer."""
        count = self._count(SuspectKind.LINK, link)
        is_open = count.half > _FAIL + self._wanted * _PASS and count.score < self._limit[SuspectKind.LINK]
        return is_open and count.fails > 0 and link not in self.links

    def is_worn(self, link: Pair) -> bool:
        """Has it failed so often that one more failure tells nothing new of the two nodes?"""
        count = self._count(SuspectKind.LINK, link)
        return count.fails > WORN and count.score >= self._limit[SuspectKind.LINK]

    def is_apart(self, name: str) -> bool:
        """Do the ways that it failed on pass for others?"""
        me = (SuspectKind.OUT, (name, ""))
        ways = {test.way for test in self._failures(me) if test.way is not None}
        return bool(ways) and all(self._margin(me, (SuspectKind.WAY, way)) >= _PROOF for way in ways)

    def _enough(self, what: str | Pair) -> int:
        return TRIES if what in self._brief else self._wanted

    # --- what is not certain -------------------------------------------------------------------------------------

    def node_doubt(self, name: str) -> Doubt | None:
        """Failures that nothing bad explains, while too few passes followed to call them noise."""
        for across in (False, True):
            me = (SuspectKind.OUT if across else SuspectKind.NODE, (name, ""))
            count = self._count(*me)
            if count.fails and not self.is_sure(name, across) and not (across and self._is_of_ways(me)):
                return Doubt(count.fails, count.fails + count.passes, across)
        return None

    def _is_of_ways(self, me: Suspect) -> bool:
        """Did nothing ever pass on the ways that it failed on? Then they are in doubt, not each node that took them."""
        ways = {test.way for test in self._failures(me) if test.way is not None}
        return not any(self._count(SuspectKind.WAY, way).passes for way in ways)

    def way_doubts(self) -> dict[Pair, Doubt]:
        """Likewise, of ways between switches."""
        counts = {what: self._count(kind, what) for kind, what in self._of if kind is SuspectKind.WAY}
        return {
            way: Doubt(count.fails, count.fails + count.passes, True)
            for way, count in counts.items() if count.fails and way not in self.ways and not self.is_sure_way(way)
        }  # fmt: skip

    def link_doubts(self) -> dict[Pair, Doubt]:
        """Likewise, of links."""
        counts = {link: self._count(SuspectKind.LINK, link) for link in self.failed_links() if self.is_open_link(link)}
        return {link: Doubt(c.fails, c.fails + c.passes, self._is_across(link)) for link, c in counts.items()}

    def _is_across(self, link: Pair) -> bool:
        return any(test.way is not None for test in self._failures((SuspectKind.LINK, link)))

    def _count(self, kind: SuspectKind, what: Pair) -> _Count:
        return self._counted(self._of.get((kind, what), 0))

    def _counted(self, bits: int) -> _Count:
        fails = (bits & self._failed).bit_count()
        return _Count(fails, bits.bit_count() - fails)

    def _failures(self, suspect: Suspect) -> Iterator[PairTest]:
        bits = self._of.get(suspect, 0) & self._failed
        while bits:
            yield self._tests[bits.bit_length() - 1]
            bits ^= 1 << (bits.bit_length() - 1)

    # --- results -------------------------------------------------------------------------------------------------

    def add(self, tests: Iterable[PairTest]) -> None:
        for test in tests:
            for name in test.pair:
                self._with[name].append(test)
            self._book(len(self._tests), test)
            self._tests.append(test)

    def judge(self) -> None:
        """Find what is bad, the most certain first, until nothing more is."""
        self._forget()
        while (found := self._most_certain()) is not None:
            kind, what = found
            match kind:
                case SuspectKind.NODE:
                    self.bad.add(what[0])
                case SuspectKind.OUT:
                    self.crossing.add(what[0])
                case SuspectKind.LINK:
                    self.links.add(what)
                case _:
                    self.ways.add(what)
            self._forget()

    def _forget(self) -> None:
        """Failures that something bad explains speak for nothing else."""
        found = len(self.bad) + len(self.crossing) + len(self.ways) + len(self.links)
        if found == self._explained:
            return
        self._explained = found
        self._failed = 0
        self._of.clear()
        for index, test in enumerate(self._tests):
            self._book(index, test)

    def _book(self, index: int, test: PairTest) -> None:
        if not test.is_pass and self._is_explained(test):
            return
        bit = 1 << index
        self._failed |= 0 if test.is_pass else bit
        for suspect in self._suspects(test):
            self._of[suspect] |= bit

    def _is_explained(self, test: PairTest) -> bool:
        if test.link in self.links or not self.bad.isdisjoint(test.pair):
            return True
        return test.way is not None and (test.way in self.ways or not self.crossing.isdisjoint(test.pair))

    def _suspects(self, test: PairTest) -> Iterator[Suspect]:
        for name in test.pair:
            if name in self._judged:
                yield SuspectKind.NODE, (name, "")
                if test.way is not None:
                    yield SuspectKind.OUT, (name, "")
        if test.way is not None:
            yield SuspectKind.WAY, test.way
            if test.kind is PairKind.PROBE:
                yield SuspectKind.PROBE, test.way
        yield SuspectKind.LINK, test.link
        yield from ((SuspectKind.SWITCH, (s, "")) for s in {self._switch.get(name, "") for name in test.pair} if s)

    def _most_certain(self) -> Suspect | None:
        certain = {}
        for one, bits in self._of.items():
            kind, what = one
            if bits & self._failed and kind is not SuspectKind.SWITCH and self.crossing.isdisjoint(what):
                score = self._counted(bits).score
                if score >= self._limit[kind]:
                    certain[one] = score
        return next((one for one in sorted(certain, key=lambda one: -certain[one]) if self._stands_out(one)), None)

    def _stands_out(self, one: Suspect) -> bool:
        if not self._is_witnessed(one):
            return False
        others = {other for test in self._failures(one) for other in self._suspects(test)}
        if one[0] in (SuspectKind.WAY, SuspectKind.PROBE):  # what a switch does to all its ways is named by its ways
            others = {other for other in others if other[0] is not SuspectKind.SWITCH}
        return all(_is_same(one, other) or self._margin(one, other) >= _PROOF for other in others)

    def _is_witnessed(self, one: Suspect) -> bool:
        """Are its failures with partners that pass without it enough? Two others that are bad may explain the rest."""
        kind, (name, _) = one
        if kind not in (SuspectKind.NODE, SuspectKind.OUT):
            return True
        seen = self._count(*one)
        partners = (partner_of(test.pair, name) for test in self._failures(one))
        fails = sum(n not in self._judged or self._less((SuspectKind.NODE, (n, "")), one).half < 0 for n in partners)
        return _Count(fails, seen.passes).score >= self._limit[kind]

    def _margin(self, one: Suspect, other: Suspect) -> float:
        """How much more likely is it that `one` is bad than only `other`: in its place, or besides it?"""
        return max(self._count(*one).score - self._count(*other).score, self._less(one, other).score)

    def _less(self, one: Suspect, other: Suspect) -> _Count:
        """Its tests without those of the other one."""
        return self._counted(self._of.get(one, 0) & ~self._of.get(other, 0))


def _is_same(one: Suspect, other: Suspect) -> bool:
    """A node and its way out, or a way and its probes, are one culprit: the one with the higher score is named."""
    kinds = ({SuspectKind.NODE, SuspectKind.OUT}, {SuspectKind.WAY, SuspectKind.PROBE})
    return one == other or (one[1] == other[1] and any({one[0], other[0]} <= same for same in kinds))
