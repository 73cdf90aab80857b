"""Closed forms of collectives against an event simulation of their messages, and against what must hold of any."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.planner.cluster.cluster import Hop
from holdfast.planner.cost.collectives import Collective, Ring, halving, hierarchical, ring, sent
from tests.planner.support import events

NEAR, FAR = Hop(3e-6, 1 / 300e9), Hop(9e-6, 1 / 25e9)
SIZES = (4e3, 1e6, 2e8)


def time_of(build, wire=lambda a, b: (FAR.alpha, FAR.beta)) -> float:
    network = events.Network(wire)
    build(network)
    return max(network.run().values())


@pytest.mark.parametrize("num_bytes", SIZES)
@pytest.mark.parametrize("n", [2, 3, 8])
def test_one_level(n: int, num_bytes: float) -> None:
    ranks, level = list(range(n)), Ring(n, FAR)
    simulated = {
        Collective.ALL_GATHER: time_of(lambda net: events.all_gather(net, ranks, num_bytes)),
        Collective.ALL_TO_ALL: time_of(lambda net: events.all_to_all(net, ranks, num_bytes)),
        Collective.BROADCAST: time_of(lambda net: events.broadcast(net, ranks, num_bytes)),
        Collective.SEND: time_of(lambda net: net.send(0, 0, 1, num_bytes, [])),
    }
    for op, expected in simulated.items():
        assert ring(op, num_bytes, level) == pytest.approx(expected, rel=0.02), op
    assert ring(Collective.REDUCE_SCATTER, num_bytes, level) == ring(Collective.ALL_GATHER, num_bytes, level)
    halved = time_of(lambda net: events.halving(net, ranks, num_bytes))
    around = time_of(lambda net: events.all_reduce(net, ranks, num_bytes))
    assert ring(Collective.ALL_REDUCE, num_bytes, level) == pytest.approx(min(around, halved), rel=0.02)


@pytest.mark.parametrize(("nodes", "inner"), [(2, 2), (3, 4), (4, 2)])
@pytest.mark.parametrize("num_bytes", [1e7, 2e8])
def test_two_levels(nodes: int, inner: int, num_bytes: float) -> None:
    def wire(a: int, b: int) -> tuple[float, float]:
        hop = NEAR if a // inner == b // inner else FAR
        return hop.alpha, hop.beta

    members = [list(range(i * inner, (i + 1) * inner)) for i in range(nodes)]
    ways = [time_of(lambda net, way=way: events.hierarchical_all_reduce(net, members, num_bytes, way), wire)
            for way in (True, False)]  # fmt: skip
    found = hierarchical(Collective.ALL_REDUCE, num_bytes, (Ring(inner, NEAR), Ring(nodes, FAR)))
    assert found == pytest.approx(min(ways), rel=0.02)


@pytest.mark.parametrize("n", [2, 4, 6, 8, 16])
def test_halving(n: int) -> None:
    for num_bytes in SIZES:
        expected = time_of(lambda net, size=num_bytes: events.halving(net, list(range(n)), size))
        assert halving(num_bytes, Ring(n, FAR)) == pytest.approx(expected, rel=0.02)


def test_all_gather_of_two_levels_by_hand() -> None:
    """4 nodes of 8: outside 3 pieces of S/32 each, inside 7 of S/8."""
    s = 3.2e8
    expected = 3 * (FAR.alpha + s / 32 * FAR.beta) + 7 * (NEAR.alpha + s / 8 * NEAR.beta)
    levels = (Ring(8, NEAR), Ring(4, FAR))
    assert hierarchical(Collective.ALL_GATHER, s, levels) == pytest.approx(expected)
    # All-to-all: S/32 to each of 7 peers near and 24 far.
    apart = 7 * (NEAR.alpha + s / 32 * NEAR.beta) + 24 * (FAR.alpha + s / 32 * FAR.beta)
    assert hierarchical(Collective.ALL_TO_ALL, s, levels) == pytest.approx(apart)


@settings(deadline=None)
@given(st.integers(2, 64), st.integers(1, 16), st.floats(1, 1e10))
def test_what_must_hold(outer: int, inner: int, num_bytes: float) -> None:
    levels = (Ring(inner, NEAR), Ring(outer, FAR))
    halves = sum(hierarchical(op, num_bytes, levels) for op in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER))
    whole = hierarchical(Collective.ALL_REDUCE, num_bytes, levels)
    assert whole <= halves * (1 + 1e-12)
    # No device can receive all but its own share faster than its links carry it.
    assert hierarchical(Collective.ALL_GATHER, num_bytes, levels) >= num_bytes * (outer - 1) / outer / inner * FAR.beta
    for op in Collective:
        assert hierarchical(op, 2 * num_bytes, levels) >= hierarchical(op, num_bytes, levels) > 0
        assert hierarchical(op, num_bytes, (Ring(1, NEAR), Ring(outer, FAR))) == ring(op, num_bytes, Ring(outer, FAR))
    assert hierarchical(Collective.ALL_REDUCE, num_bytes, (Ring(1, NEAR),)) == 0


def test_bytes_sent() -> None:
    assert sent(Collective.ALL_REDUCE, 100, 4) == 600
    assert sent(Collective.REDUCE_SCATTER, 100, 4) == sent(Collective.ALL_GATHER, 100, 4) == 300
    assert sent(Collective.SEND, 100, 2) == 100
