"""Spans of chosen ranks as columns, with the arrows between them: what a page needs to draw a timeline. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.base.errors import NotFound
from holdfast.diagnostics.blame.report import GARBAGE, world_of
from holdfast.diagnostics.steps import graph as step_graph
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.steps.replay import measured
from holdfast.diagnostics.steps.span_table import SpanTable
from holdfast.diagnostics.timeline import timeline
from holdfast.wire.span_rows import THREAD

Json = dict[str, Any]
Ints = npt.NDArray[np.int64]

MOST_SPANS = 40_000
"""In one answer: of more, the newest steps, and of a step with more than that, the first ranks."""
MOST_ARROWS = 20_000


def lanes(table: SpanTable, shape: JobShape, ranks: Sequence[int] = (), steps: int = 0, generation: int = -1) -> Json:
    """Spans of `ranks` (none: of all) in the last so many steps (0: all), as they were in that generation (-1: in the
    newest). Times in microseconds since `zero`, Unix seconds, on the controller's clock. NotFound if there are none."""
    table = table.newest_generation(generation).without(THREAD)
    chosen = table.take(np.isin(table.rank, np.array(ranks))) if ranks else table
    chosen = _within(chosen, steps)
    if not len(chosen):
        raise NotFound("no spans of these ranks in these steps")
    reported = np.unique(chosen.rank)
    first, last = int(chosen.step.min()), int(chosen.step.max())
    zero = int(chosen.start.min())
    order = np.lexsort((-chosen.end, chosen.start, chosen.rank))  # what lies in another comes after it
    chosen = chosen.take(order)
    plan = shape.decoded()
    arrows, waited = _meetings(table.of_steps(first, last), shape, chosen, zero)
    return {
        "job": shape.job,
        "zero": zero * 1e-9,
        "first": first,
        "last": last,
        "ranks": reported.tolist(),
        "left_out": len(np.unique(table.rank) if not ranks else set(ranks)) - len(reported),
        "planned": plan is not None and not plan.mesh.tps,
        "kinds": list(chosen.kinds),
        "groups": list(chosen.groups),
        "rank": chosen.rank.tolist(),
        "kind": chosen.kind.tolist(),
        "group": chosen.group.tolist(),
        "step": chosen.step.tolist(),
        "stage": chosen.stage.tolist(),
        "micro_batch": chosen.micro_batch.tolist(),
        "start": ((chosen.start - zero) // 1000).tolist(),
        "took": ((chosen.end - chosen.start) // 1000).tolist(),
        "bytes": chosen.bytes.tolist(),
        "waited": waited.tolist(),
        "arrows": arrows,
    }


def _within(table: SpanTable, steps: int) -> SpanTable:
    numbers, counts = np.unique(table.step, return_counts=True)
    if not len(numbers):
        return table
    fits = int((np.cumsum(counts[::-1]) <= MOST_SPANS).sum())
    keep = max(1, min(fits, steps or fits))
    table = table.of_steps(int(numbers[-keep:][0]), int(numbers[-1]))
    if len(table) <= MOST_SPANS:
        return table
    ranks, counts = np.unique(table.rank, return_counts=True)
    return table.take(np.isin(table.rank, ranks[np.cumsum(counts) <= MOST_SPANS]))


def _meetings(table: SpanTable, shape: JobShape, chosen: SpanTable, zero: int) -> tuple[Json, Ints]:
    """Arrows as columns {name (0 message, 1 last to arrive), source, sent, target, seen}: ranks, and microseconds since
    zero. And of each chosen span the microseconds at its start for which it waits for another rank."""
    columns: dict[str, list[int]] = {name: [] for name in ("name", "source", "sent", "target", "seen")}
    waited = np.zeros(len(chosen), np.int64)
    regular = table.without(GARBAGE)
    if not len(regular):
        return dict(columns), waited
    begin = int(regular.start.min())
    first = (begin - zero) / 1e3
    wanted = frozenset(chosen.rank.tolist())
    places: dict[tuple[int, int], int] = {}
    for i, place in enumerate(zip(chosen.rank.tolist(), chosen.start.tolist(), strict=True)):
        places[place] = i  # the inner of two that start together: a meeting, and what it lies in
    for graph in step_graph.graphs(regular, shape.decoded(), world_of(table, shape)):
        seen = measured(graph)
        for c, column in enumerate(graph.columns):
            waits = np.minimum(seen.waits[c], column.ends - column.starts)
            mine = np.isin(column.ranks, list(wanted)) & column.present
            for k, lane in np.argwhere((waits > 0) & mine):
                found = places.get((int(column.ranks[lane]), begin + round(float(column.starts[k, lane]) * 1e9)))
                if found is not None:
                    waited[found] = round(float(waits[k, lane]) * 1e6)
        for arrow in timeline.arrows(graph, wanted, seen):
            if len(columns["name"]) == MOST_ARROWS:
                break
            columns["name"].append(int(arrow.name != timeline.MESSAGE))
            columns["source"].append(arrow.source)
            columns["sent"].append(round(first + arrow.sent * 1e6))
            columns["target"].append(arrow.target)
            columns["seen"].append(round(first + max(arrow.came, arrow.sent) * 1e6))
    return dict(columns), waited
