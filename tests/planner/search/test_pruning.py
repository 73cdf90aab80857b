"""The search over costs from a table: what it leaves out is never among the best."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.base.errors import UsageError
from holdfast.planner.cost.measured import ProfileError
from holdfast.planner.search.ranked import Goal
from holdfast.planner.search.search import Search
from holdfast.planner.search.space import families
from tests.planner.support.drawn import CLUSTER, MODEL, SPACE, Table, everything, search


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("goal", ["time", "memory"])
def test_the_best_are_found_however_costs_lie(goal: Goal, seed: int) -> None:
    costs, kept, limit = Table(seed), 1 + seed % 4, 1.5 if seed % 2 else 0.6
    fit = [one for one in everything(costs) if one.prediction.fullest.total <= limit]
    expected = sorted(fit, key=lambda one: one.key(goal))[:kept]
    costs.predicted.clear()
    found = search(costs, goal=goal, kept=kept, limit_bytes=limit).run()
    assert [one.layout for one in found.best] == [one.layout for one in expected]
    assert (found.is_complete, found.floor_s) == (True, 0.0)
    assert len(costs.predicted) == len(set(costs.predicted)) == found.counts["predicted"]


@pytest.mark.parametrize("seed", range(10))
def test_nothing_is_predicted_whose_floor_is_too_slow_or_too_large(seed: int) -> None:
    costs = Table(seed)
    limit = 0.6
    best = sorted(one.prediction.step_s for one in everything(costs) if one.prediction.fullest.total <= limit)
    costs.predicted.clear()
    found = search(costs, kept=1, limit_bytes=limit).run()
    assert all(costs.least_bytes(MODEL, one) <= limit for one in costs.predicted)
    # Whatever could still have been the best is predicted.
    possible = {
        one
        for family in families(MODEL, CLUSTER, 8, SPACE)
        for one in family.members(MODEL, SPACE)
        if costs.floor(MODEL, one, with_schedule=True) < best[0] and costs.least_bytes(MODEL, one) <= limit
    }
    assert possible <= set(costs.predicted)
    skipped = found.counts.get("slower", 0) + found.counts.get("families slower", 0)
    assert skipped + sum(found.counts.get(name, 0) for name in ("too large", "families too large")) > 0
    assert search(costs, kept=1000, limit_bytes=limit).run().counts.get("slower", 0) == 0


@pytest.mark.parametrize("seed", range(10))
def test_the_floor_of_a_search_that_was_stopped_holds(seed: int) -> None:
    costs = Table(seed)
    best = min(one.prediction.step_s for one in everything(costs))
    one = search(costs, kept=1, limit_bytes=9.0)
    steps = 0
    while not (found := one.run(lambda: True)).is_complete:
        assert 0 < found.floor_s < found.best[0].prediction.step_s
        assert min(found.floor_s, found.best[0].prediction.step_s) <= best
        steps += 1
    assert steps > 1
    assert found.best[0].prediction.step_s == best


def test_families_without_a_measurement_are_left_out_and_counted() -> None:
    costs = Table(3, unknown=0.5)
    all_families = list(families(MODEL, CLUSTER, 8, SPACE))
    known = {(one.layout.pp, one.layout.dp, one.layout.tp) for one in everything(costs)}
    found = search(costs, kept=1000, limit_bytes=9.0).run()
    assert len(found.best) == len(everything(costs))
    assert {(one.layout.pp, one.layout.dp, one.layout.tp) for one in found.best} == known
    assert 0 < found.counts["families not measured"] < len(all_families)
    with pytest.raises(ProfileError, match="not measured"):
        search(Table(3, unknown=1.1), limit_bytes=9.0)


def test_what_a_search_does_not_take() -> None:
    many: Any = SimpleNamespace(cluster=SimpleNamespace(world=2**17 + 1))
    with pytest.raises(UsageError, match=r"131,073 devices: the search takes 131,072 at most"):
        Search(MODEL, many, 8)
    with pytest.raises(UsageError, match="0 samples in a step: 1 or more is needed"):
        Search(MODEL, Table(0), 0)  # type: ignore[arg-type]
