"""Bytes of a step by level, against the same nodes in another order."""

from __future__ import annotations

import pytest

from holdfast.planner.placement.report import compared
from holdfast.planner.placement.sites import Site, Sites, SlowLinks
from holdfast.planner.placement.traffic import USUAL, Shape

PLACES = Sites(
    (Site("n0", "a"), Site("n1", "b"), Site("n2", "a"), Site("n3", "b")), SlowLinks(frozenset({("n2", "n1")}))
)


def test_bytes_by_level_and_axis() -> None:
    """Two stages of two replicas with tp in the node: the rings of dp in one switch each, or across two."""
    shape = Shape(2, 2, 2, pp_bytes=80.0, dp_bytes=800.0, tp_bytes=8000.0)
    found = compared(shape, 2, PLACES, (0, 2, 1, 3), (0, 1, 2, 3))
    assert [one.level for one in found.levels] == ["node", "switch", "pod"]
    node, switch, pod = found.levels
    assert node.by_axis == {"pp": 0.0, "dp": 0.0, "tp": 8000.0}
    assert (switch.by_axis, switch.naive) == ({"pp": 0.0, "dp": 800.0, "tp": 0.0}, 80.0)
    assert (pod.by_axis, pod.naive) == ({"pp": 80.0, "dp": 0.0, "tp": 0.0}, 800.0)
    assert (found.slow, found.naive_slow, found.in_bytes) == (0.0, 0.0, True)
    # n1 and n2 are neighbours in the ring of stage 1: half of what dp sends, and of the bytes both ways all.
    assert compared(shape, 2, PLACES, (0, 3, 1, 2), (0, 1, 2, 3)).slow == 400.0


def test_shares_where_bytes_are_not_known() -> None:
    found = compared(Shape(2, 2), 1, PLACES, (0, 2, 1, 3), (0, 1, 2, 3))
    whole = 4 * USUAL["dp"] + 4 * USUAL["pp"]
    assert not found.in_bytes
    assert sum(one.total for one in found.levels) == pytest.approx(1.0)
    assert {one.level: one.total for one in found.levels} == pytest.approx(
        {"switch": 4 * USUAL["dp"] / whole, "pod": 4 * USUAL["pp"] / whole}
    )
