"""Costs of layouts from a table that is drawn, and searches over them."""

from __future__ import annotations

import random
from typing import Any

from holdfast.plan.transformer import Transformer
from holdfast.planner.cluster.file import parse
from holdfast.planner.cost.layers import Precision
from holdfast.planner.cost.layout import Layout
from holdfast.planner.cost.measured import ProfileError
from holdfast.planner.cost.prediction import Breakdown, Memory, Prediction, Wire
from holdfast.planner.search.ranked import Ranked
from holdfast.planner.search.search import Search
from holdfast.planner.search.space import Space, families

MODEL = Transformer(layers=4, width=512, heads=4, vocab=1024, length=128)
CLUSTER = parse('gpu = "A100"\nnodes = 2\ngpus_per_node = 2\n[links.switch]\ngbit_per_s = 200\n')
SPACE = Space(schedules=("interleaved", "1f1b"), micro_batch_sizes=(1, 2), recompute=("none", "full"))


class Table:
    """Costs drawn for each layout: a family's part, which is its floor, and more of the member."""

    expands, precision, profile = False, Precision(), None

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

    def least_of_family(self, model: Transformer, one: Layout, policies: object = ()) -> float:
        return self._draw("bytes", self._family(one))

    def _held(self, one: Layout) -> float:
        return self._draw("bytes", self._family(one)) + 0.5 * self._draw("own bytes", one)

    def predict(self, model: Transformer, one: Layout) -> Prediction:
        self.predicted.append(one)
        seconds = self._draw("time", self._family(one)) + self._draw("own time", one)
        held = self._held(one)
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
