import math

import numpy as np
import pytest

from holdfast.planner.network.ecmp import chance_of_none_shared, chance_of_two_at_most, counted, hashes


@pytest.mark.parametrize(("flows", "none", "two"), [(4, 0.823, 0.996), (8, 0.386, 0.952), (16, 0.010, 0.641)])
def test_drawn_uplinks_meet_as_often_as_the_formulas_say(flows: int, none: float, two: float) -> None:
    draws = 100_000
    formulas = chance_of_none_shared(flows, 32), chance_of_two_at_most(flows, 32)
    assert formulas == pytest.approx((none, two), abs=6e-4)
    for formula, drawn in zip(formulas, counted(flows, 32, draws, seed=7), strict=True):
        assert abs(drawn - formula) <= 3 * math.sqrt(formula * (1 - formula) / draws)


@pytest.mark.parametrize(("flows", "uplinks"), [(1, 1), (2, 1), (3, 2), (5, 2), (4, 4), (9, 4)])
def test_the_formulas_count_all_ways(flows: int, uplinks: int) -> None:
    ways = np.stack(np.meshgrid(*[np.arange(uplinks)] * flows), axis=-1).reshape(-1, flows)
    most = np.array([np.bincount(way).max() for way in ways])
    assert chance_of_none_shared(flows, uplinks) == pytest.approx((most <= 1).mean(), abs=1e-12)
    assert chance_of_two_at_most(flows, uplinks) == pytest.approx((most <= 2).mean(), abs=1e-12)


def test_hashes_of_real_neighbours_are_as_good_as_drawn() -> None:
    """Ends that follow each other, as ranks do, must not fall on uplinks in order."""
    source = np.arange(32_000)
    taken = (hashes(source, source + 8, seed=1) % np.uint64(32)).astype(int).reshape(-1, 8)
    none = np.mean([len(set(row)) == 8 for row in taken])
    formula = chance_of_none_shared(8, 32)
    assert abs(none - formula) <= 3 * math.sqrt(formula * (1 - formula) / len(taken))
    again = hashes(source, source + 8, seed=1)
    assert (again == hashes(source, source + 8, seed=1)).all()
    for other in (hashes(source, source + 8, 2), hashes(source, source + 8, 1, pair=1), hashes(source + 8, source, 1)):
        assert (again % np.uint64(32) == other % np.uint64(32)).mean() < 0.05
