"""Faults injected into clusters of several switches: what is named, which nodes are not blamed, how many rounds."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.diagnostics.isolation.isolation import Isolation, Pair, PairKind

BOUND = 48


@dataclass
class Cluster:
    """Nodes under switches, and a fault. `every`: it shows in every so many attempts (1: always), counted by `by`."""

    sizes: list[int]
    node: str = ""
    """Its NIC, its cable or its port: every pair with it fails."""
    out: str = ""
    """Its pairs fail only when they cross a switch."""
    way: Pair | None = None
    """The way between these two switches."""
    switch: str = ""
    """Nothing passes through this one."""
    every: int = 1
    by: str = "culprit"  # or "pair"
    _tries: Counter[object] = field(default_factory=Counter)

    @property
    def switch_of(self) -> dict[str, str]:
        return {f"n{s}{chr(97 + i)}": f"s{s}" for s, size in enumerate(self.sizes) for i in range(size)}

    def passes(self, pair: Pair) -> bool:
        first, second = (self.switch_of[name] for name in pair)
        is_hit = self.node in pair or (first != second and self.out in pair)
        is_hit = is_hit or (first != second and self.way == (min(first, second), max(first, second)))
        if not is_hit and self.switch not in (first, second):
            return True
        key = tuple(sorted(pair)) if self.by == "pair" else "culprit"
        self._tries[key] += 1
        return self._tries[key] % self.every != 0

    def play(self, seed: int) -> Isolation:
        isolation = Isolation(list(self.switch_of), switches=self.switch_of, seed=seed)
        while pairs := isolation.next_round():
            seen = [node for pair in pairs for node in pair]
            assert len(seen) == len(set(seen)), "a node in two pairs of one round"
            probes = [isolation.way(pair) for pair in pairs if isolation.kind(pair) is PairKind.PROBE]
            crossing = Counter(switch for pair in pairs for switch in isolation.way(pair) or ())
            assert all(crossing[switch] == 1 for way in probes for switch in way or ()), "a probe that is not alone"
            isolation.report({pair: self.passes(pair) for pair in pairs})
        assert isolation.rounds <= BOUND
        return isolation


sizes = st.lists(st.integers(2, 5), min_size=2, max_size=6)
seeds = st.integers(0, 10_000)
everies = st.sampled_from([1, 2])
keys = st.sampled_from(["culprit", "pair"])


def blamed(isolation: Isolation) -> tuple[set[str], set[str], set[Pair], set[str], set[Pair]]:
    return isolation.bad, isolation.crossing, isolation.ways, isolation.switches, isolation.links


def nodes_of(draw: st.DrawFn, given_sizes: list[int]) -> str:
    return draw(st.sampled_from(list(Cluster(given_sizes).switch_of)))


@st.composite
def clusters(draw: st.DrawFn, fault: str) -> Cluster:
    shape = draw(sizes)
    every, by = draw(everies), draw(keys)
    match fault:
        case "node":
            return Cluster(shape, node=nodes_of(draw, shape), every=every, by=by)
        case "out":
            return Cluster(shape, out=nodes_of(draw, shape), every=every, by=by)
        case "way":
            names = sorted({f"s{i}" for i in range(len(shape))})
            way = draw(st.sampled_from([(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]))
            return Cluster(shape, way=way, every=every, by=by)
        case "switch":
            return Cluster(shape, switch=f"s{draw(st.integers(0, len(shape) - 1))}")
        case _:
            return Cluster(shape)


FAULTS: dict[str, Callable[[Cluster], tuple[set[str], set[str], set[Pair], set[str], set[Pair]]]] = {
    "none": lambda c: (set(), set(), set(), set(), set()),
    "node": lambda c: ({c.node}, set(), set(), set(), set()),
    "out": lambda c: (set(), {c.out}, set(), set(), set()),
    "way": lambda c: (set(), set(), {c.way} if c.way else set(), set(), set()),
    "switch": lambda c: (set(), set(), set(), {c.switch}, set()),
}


@pytest.mark.parametrize("fault", FAULTS)
@settings(deadline=None, max_examples=30)
@given(st.data())
def test_the_planted_fault_is_named_and_nothing_else(fault: str, data: st.DataObject) -> None:
    cluster = data.draw(clusters(fault))
    isolation = cluster.play(data.draw(seeds))
    assert blamed(isolation) == FAULTS[fault](cluster)
    assert isolation.good.isdisjoint({cluster.node, cluster.out})
    under_it = {name for name, switch in cluster.switch_of.items() if switch == cluster.switch}
    assert isolation.good == set(cluster.switch_of) - {cluster.node, cluster.out} - under_it


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_where_a_switch_has_one_node_nothing_else_is_blamed(data: st.DataObject) -> None:
    """It is unknown which of a lone node, its switch and its only path is bad; nothing healthy is named for it."""
    shape = [1, *data.draw(st.lists(st.integers(2, 4), min_size=1, max_size=3))]
    fault = data.draw(st.sampled_from(["node", "way"]))
    cluster = Cluster(shape, node="n0a") if fault == "node" else Cluster(shape, way=("s0", "s1"))
    isolation = cluster.play(data.draw(seeds))
    bad, crossing, ways, switches, links = blamed(isolation)
    assert (crossing, switches, links) == (set(), set(), set())
    if len(shape) == 2:
        assert (bad, ways) == (set(), set())
        assert isolation.undecided == {"n0a"}
        assert isolation.failed_with("n0a")
    elif fault == "node":
        assert (bad, ways) == ({"n0a"}, set())
    else:
        assert (bad, ways) == (set(), {("s0", "s1")})
    assert isolation.good == set(cluster.switch_of) - bad - isolation.undecided


def test_two_nodes_stop_after_the_strikes() -> None:
    for every in (1, 2):
        cluster = Cluster([1, 1], node="n0a", every=every)
        isolation = cluster.play(0)
        assert (isolation.good, isolation.bad) == (set(), set())
        assert isolation.undecided == {"n0a", "n1a"}
        assert isolation.rounds == (3 if every == 1 else 10)  # five failures of ten
