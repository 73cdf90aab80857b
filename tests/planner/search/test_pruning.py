"""The search over costs from a table: what it leaves out is never among the best."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.base.errors import UsageError
from holdfast.plan.transformer import Transformer
from holdfast.planner.cluster.file import parse
from holdfast.planner.cost.layout import Layout
from holdfast.planner.cost.measured import ProfileError
from holdfast.planner.cost.prediction import Breakdown, Memory, Prediction, Wire
from holdfast.planner.search.ranked import Goal, Ranked
from holdfast.planner.search.search import Search
from holdfast.planner.search.space import Space, families

MODEL = Transformer(layers=4, width=512, heads=4, vocab=1024, length=128)
CLUSTER = parse('gpu = "A100"\nnodes = 2\ngpus_per_node = 2\n[links.switch]\ngbit_per_s = 200\n')
SPACE = Space(schedules=("interleaved", "1f1b"), micro_batch_sizes=(1, 2), recompute=("none", "full"))


class Table:
    """Costs drawn for each layout: a family's part, which is its floor, and more of the member."""

    expands = False

    def __init__(self, seed: int, unknown: float = 0.0) -> None:
        self.seed, self.unknown, self.cluster = seed, unknown, CLUSTER
        self.predicted: list[Layout] = []

    def _draw(self, *of: object) -> float:
        return random.Random(f"{self.seed} {of}").random()

    def _family(self, one: Layout) -> tuple[object, ...]:
        return one.pp, one.dp, one.tp, one.micro_batch_size, one.recompute

    def estimate(self, model: Transformer, one: Layout) -> float:
        if self._draw("known", self._family(one)) < self.unknown:
            raise ProfileError("not measured")
        return self._draw("estimate", self._family(one))

    def floor(self, model: Transformer, one: Layout, with_schedule: bool = False) -> float:
        least = self._draw("time", self._family(one))
        return least + 0.5 * with_schedule * self._draw("own time", one)

    def least_bytes(self, model: Transformer, one: Layout) -> float:
        return self._draw("bytes", self._family(one)) + 0.25 * self._draw("own bytes", one)

    def least_of_family(self, model: Transformer, one: Layout, policies: object = (), pipes: int = 1) -> float:
        return self._draw("bytes", self._family(one))

    def predict(self, model: Transformer, one: Layout) -> Prediction:
        self.predicted.append(one)
        seconds = self._draw("time", self._family(one)) + self._draw("own time", one)
        held = self._draw("bytes", self._family(one)) + 0.5 * self._draw("own bytes", one)
        spent = Breakdown(seconds, 0, 0, 0, 0, 0)
        return Prediction(seconds, spent, (Memory(held, 0, 0, 0, 0, 0),), 0.0, Wire({}, {}), 0.5, 80e9)


def everything(costs: Table) -> list[Ranked]:
    """By predicting all whose family was measured."""
    found = []
    for family in families(MODEL, CLUSTER, 8, SPACE):
        try:
            costs.estimate(MODEL, family.base)
        except ProfileError:
            continue
        found += [Ranked(one, costs.predict(MODEL, one)) for one in family.members(MODEL, SPACE)]
    return found


def search(costs: Table, **settings: Any) -> Search:
    return Search(MODEL, costs, 8, space=SPACE, **settings)  # type: ignore[arg-type]


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
