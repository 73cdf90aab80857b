"""The pairs that `isolation` adds to its search: all who passed meet on until a fault in every second test would have
shown, and who failed meets others until its score says whether it is the culprit. Pure."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

from holdfast.diagnostics.isolation.evidence import WORN, Evidence
from holdfast.diagnostics.isolation.parts import IsolationPlan, Pair, PairKind, partner_of

_LOOKED_AT = 32  # free partners, of which the best is chosen: in a large cluster all would cost too much


class Certifier:
    def __init__(
        self,
        evidence: Evidence,
        switch_of: Mapping[str, str],
        way_of: Callable[[Pair], Pair | None],
    ) -> None:
        self._evidence, self._switch, self._way_of = evidence, switch_of, way_of
        self._turn = False
        self._done: dict[str, bool] = {}  # of this round

    def plan(
        self, plan: IsolationPlan, near: Sequence[str], out: Sequence[str], ways: Sequence[Pair], judged: Sequence[str]
    ) -> None:
        """Fill the round. `near`, `out`: nodes that passed under their switch, and across; `ways`: that passed;
        `judged`: the nodes to be certain of."""
        self._plan, self._ways = plan, set(ways)
        self._done.clear()
        self._turn = not self._turn
        self._is_probing = self._turn or not any(
            self._evidence.has_failed(name) and not self._evidence.is_sure(name, True) for name in out
        )
        self._partners = {*near, *out}
        self._near, self._out = self._free(near), self._free(out)
        self._links()
        if self._turn:
            self._each_way(ways)
        wanting = [name for name in judged if not self._is_done(name)]
        wanting.sort(key=lambda name: not self._evidence.has_failed(name))
        for name in wanting:
            if name not in plan.busy:
                self._node(name)
        self._each_way(ways)

    def _free(self, names: Sequence[str]) -> dict[str, list[str]]:
        """By switch; those that are not certain yet come first as partners."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for name in sorted(names, key=self._is_done):
            if name not in self._plan.busy:
                found[self._switch[name]].append(name)
        return found

    def _is_done(self, name: str) -> bool:
        if name not in self._done:
            self._done[name] = self._is_certain(name)
        return self._done[name]

    def _is_certain(self, name: str) -> bool:
        return self._evidence.is_sure(name) and (not self._crosses(name) or self._evidence.is_sure(name, True))

    def _crosses(self, name: str) -> bool:
        return any(self._switch[name] in way for way in self._ways)

    # --- pairs ---------------------------------------------------------------------------------------------------

    def _links(self) -> None:
        """Two that pass with others, once more with each other."""
        for link in self._evidence.failed_links():
            if self._evidence.is_open_link(link) and all(self._can_repeat(name, link) for name in link):
                self._pair(link)

    def _can_repeat(self, name: str, link: Pair) -> bool:
        """Where the two have no other partner, some failures are enough: nothing tells which of them it is."""
        if self._evidence.has_passed_without(name, link):
            return True
        return self._partners <= set(link) and not self._evidence.is_worn(link)

    def _each_way(self, ways: Sequence[Pair]) -> None:
        for way in ways:
            if not self._evidence.is_sure_way(way):
                self._way(way)

    def _way(self, way: Pair) -> None:
        ends = []
        for switch in way:
            free = [name for name in self._out.get(switch, ()) if name not in self._plan.busy]
            if not free:
                return
            ends.append(
                min(free[:_LOOKED_AT], key=lambda name: (self._evidence.has_failed(name), self._uses(name, way)))
            )
        self._pair((ends[0], ends[1]))

    def _uses(self, name: str, way: Pair) -> int:
        return sum(test.way == way for test in self._evidence.tests_of(name))

    def _node(self, name: str) -> None:
        here = self._near.get(self._switch[name], ())
        # Under a switch of two its only partner there may be the reason: others tell more.
        is_near_first = self._evidence.has_failed_near(name) or self._evidence.is_sure(name, True)
        is_near_first = is_near_first and any(
            other != name and not self._has_failed_with(name, other) for other in here
        )
        if not is_near_first and self._across(name):
            return
        if not self._evidence.is_sure(name) and self._meet(name, here):
            return
        if is_near_first:
            self._across(name)

    def _again(self, name: str) -> str:
        """The partner of the last test, if it passed once: a fault may show in the second test of each pair only."""
        tests = self._evidence.tests_of(name)
        if not tests or not tests[-1].is_pass:
            return ""
        again = partner_of(tests[-1].pair, name)
        row = next((i for i, test in enumerate(reversed(tests)) if again not in test.pair), len(tests))
        return again if row % 2 else ""

    def _has_failed_with(self, name: str, other: str) -> bool:
        return self._evidence.has_failed_link((min(name, other), max(name, other)))

    def _across(self, name: str) -> bool:
        here = self._switch[name]
        if name not in self._out.get(here, ()):
            return False
        there = {switch for way in self._ways if here in way for switch in way if switch != here}
        return self._meet(name, [n for switch in sorted(there) for n in self._out.get(switch, ())])

    def _meet(self, name: str, partners: Sequence[str]) -> bool:
        met = Counter(other for test in self._evidence.tests_of(name) for other in test.pair)
        free = [other for other in partners if other != name and other not in self._plan.busy]
        free = [other for other in free if met[other] <= WORN or not self._is_worn(name, other)]
        if (again := self._again(name)) in free:
            return self._pair((name, again))
        free = sorted(free[:_LOOKED_AT], key=lambda other: (self._evidence.has_failed(other), met[other]))
        return any(self._pair((name, other)) for other in free)

    def _is_worn(self, name: str, other: str) -> bool:
        return self._evidence.is_worn((min(name, other), max(name, other)))

    def _pair(self, pair: Pair) -> bool:
        way = self._way_of(pair)
        kind = PairKind.NEAR
        if way is not None:
            kind = PairKind.PROBE if self._is_probing and self._evidence.has_failed_alone(way) else PairKind.CROWD
            if way not in self._ways or not self._plan.is_free(way, kind):
                return False
        return self._plan.pair(*pair, kind)
