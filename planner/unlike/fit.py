"""Layouts for unlike NICs: those that keep their groups, each with layers by what its stages take. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from holdfast.plan.transformer import Transformer
from holdfast.planner.cost.layout import Layout
from holdfast.planner.cost.predict import CostModel
from holdfast.planner.unlike.shares import evenly, minimax

Times = tuple[float, float, float]


def fitted(costs: CostModel, model: Transformer, layouts: Iterable[Layout]) -> Iterator[Layout]:
    """Each layout with layers such that the slowest rank takes the least time, and with as many for each stage.

    Schedules with several pipes are left out: a stage's replicas are in different halves of the pipeline there, so a
    sum would go from one type to another. All have `stage_layers`.
    """
    for layout in layouts:
        if len(layout.places) > 1:
            continue
        even = tuple(len(layout.layers_of(stage, model.layers)) for stage in range(layout.stages))
        found = by_seconds(costs, model, layout)
        yield replace(layout, stage_layers=found)
        if found != even:
            yield replace(layout, stage_layers=even)


def by_seconds(costs: CostModel, model: Transformer, layout: Layout) -> tuple[int, ...]:
    """Layers of each stage: the exact minimax cut over the pipeline's ranks, each with its layers in equal stages.

    A rank's seconds are those of the cost model: of one layer in a step, of the embedding, and of the head.
    """
    places = layout.places[0]
    times = [costs.layer_seconds(model, layout, rank) for rank in range(layout.pp)]
    fastest = min(layer for layer, _, _ in times)
    ends = [0.0] * layout.pp
    ends[places[0]] += times[places[0]][1]
    ends[places[-1]] += times[places[-1]][2]
    factors = [layer / fastest for layer, _, _ in times]
    own = minimax([fastest] * model.layers, factors, ends, least=layout.stages_per_rank)
    shares = [iter(evenly(layers, layout.stages_per_rank)) for layers in own]
    return tuple(next(shares[rank]) for rank in places)
