"""From spans to blame as data that can be sent and shown. The same for a finished run's files and for a live job."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.base.errors import NotFound
from holdfast.diagnostics.blame.blame import Blame, analyse
from holdfast.diagnostics.blame.heat import Heat, heat
from holdfast.diagnostics.blame.model import Culprit, Limits
from holdfast.diagnostics.blame.path import longest_first
from holdfast.diagnostics.blame.planned import Excess, excesses
from holdfast.diagnostics.blame.suspects.threads import Threads, threads_of
from holdfast.diagnostics.steps import graph as step_graph
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.steps.span_table import SpanTable
from holdfast.plan.planned_step import PlannedStep
from holdfast.wire.span_rows import THREAD

Json = dict[str, Any]

GARBAGE = "gc"
"""Spans of Python's garbage collector. They occur at any time, so they are not part of a step's list."""
MOST_SPANS = 2_000_000
"""Most spans in one evaluation: some seconds, some hundred MB. Of more, the newest steps."""

_NOTHING = "no step with the spans of all stages: wait for some steps, or request others"


def _nothing(shape: JobShape) -> str:
    plan = shape.decoded()
    if plan is not None and plan.mesh.tps:
        return "pipeline ranks differ in tp (parallel.stage_tp): no rank has another of its place to be compared with"
    return _NOTHING


def world_of(table: SpanTable, shape: JobShape) -> int:
    return max(int(table.rank.max()) + 1 if len(table) else 0, len(shape.nodes) * shape.nproc)


def blame_of(table: SpanTable, shape: JobShape, limits: Limits | None = None) -> Blame | None:
    """Blame over all steps of a table; None where no step has all its spans."""
    table = newest(table.newest_generation())
    if not len(table):
        return None
    world = world_of(table, shape)
    regular, garbage, threads = _apart(table, world)
    return analyse(step_graph.graphs(regular, shape.decoded(), world), shape, limits, garbage, threads)


def excesses_of(table: SpanTable, shape: JobShape, planned: PlannedStep) -> list[Excess]:
    """Where the steps of a table take longer than planned; empty where no step has all its spans."""
    table, plan = newest(table.newest_generation()), shape.decoded()
    if not len(table) or plan is None:
        return []
    world = world_of(table, shape)
    return excesses(list(step_graph.graphs(_apart(table, world)[0], plan, world)), plan, planned)


def _apart(table: SpanTable, world: int) -> tuple[SpanTable, npt.NDArray[np.float64] | None, Threads | None]:
    """The spans of the step's list; seconds of collections per step, by rank, if there are any; and what is known of
    the threads."""
    is_garbage = table.is_of(GARBAGE)
    threads = threads_of(table.take(table.is_of(THREAD)), world)
    garbage = None
    if is_garbage.any():
        took = (table.end - table.start)[is_garbage] * 1e-9
        garbage = np.bincount(table.rank[is_garbage], took, minlength=world) / len(np.unique(table.step))
    return table.without(GARBAGE, THREAD), garbage, threads


def newest(table: SpanTable) -> SpanTable:
    """As many of the last steps as fit into one evaluation."""
    if len(table) <= MOST_SPANS:
        return table
    steps, counts = np.unique(table.step, return_counts=True)
    kept = steps[::-1][np.cumsum(counts[::-1]) <= MOST_SPANS]
    return table.of_steps(int(kept.min() if len(kept) else steps[-1]), int(steps[-1]))


def heat_of(table: SpanTable, shape: JobShape) -> Heat | None:
    """Heat maps of all steps of a table; None where no step has all its spans."""
    table = newest(table.newest_generation())
    world = world_of(table, shape)
    regular, garbage, _ = _apart(table, world)
    return heat(list(step_graph.graphs(regular, shape.decoded(), world)), shape, garbage)


def report(table: SpanTable, shape: JobShape, limits: Limits | None = None) -> Json:
    """Blame as JSON-able data; unknown numbers are None. Raises NotFound where there are no spans to use."""
    blame = blame_of(table, shape, limits)
    if blame is None:
        raise NotFound(_nothing(shape))
    return to_json(blame, shape)


def heat_report(table: SpanTable, shape: JobShape) -> Json:
    """Heat maps as JSON-able data, likewise."""
    found = heat_of(table, shape)
    if found is None:
        raise NotFound(_nothing(shape))
    return {
        "job": shape.job,
        "name": shape.name,
        "first": int(found.steps[0]),
        "last": int(found.steps[-1]),
        "ranks": found.ranks.tolist(),
        "node_of": [shape.node_of(rank) for rank in found.ranks.tolist()],
        "phases": list(found.phases),
        "seconds": _rows(found.seconds, 6),
        "ratio": _rows(found.ratio, 4),
        "nodes": list(found.nodes),
        "steps": found.steps.tolist(),
        "by_step": _rows(found.by_step, 4),
        "worst": found.worst.tolist(),
        "worst_by_step": _rows(found.worst_by_step, 4),
    }


def to_json(blame: Blame, shape: JobShape) -> Json:
    columns = {name: getattr(blame, name) for name in ("wait_s", "self_s", "induced_s", "victim_s")}
    named = np.isin(blame.ranks, [end for c in blame.culprits for end in (c.rank, c.peer)])
    columns["self_ratio"] = np.where(named, blame.self_ratio, np.nan)  # others differ from their peers by noise
    parts = ("work_s", "compute_s", "other_s", "transfer_s", "jitter_s", "plan_s")
    columns |= {name: getattr(blame.parts, name) for name in parts}
    columns["named_s"] = np.where(np.isnan(blame.wait_s), np.nan, blame.parts.culprits_s.sum(axis=0))
    return {
        "job": shape.job,
        "name": shape.name,
        "first": blame.first,
        "last": blame.last,
        "steps": blame.steps,
        "step_s": blame.step_s,
        "ideal_s": blame.account.ideal_s,
        "account": _account(blame),
        "culprits": [_culprit(culprit, blame.step_s, shape) for culprit in blame.culprits],
        "ranks": {"rank": blame.ranks.tolist()}
        | {name: [_known(round(x, 6)) for x in values.tolist()] for name, values in columns.items()},
        "path": [asdict(part) for part in longest_first(blame.path)],
        "course": [asdict(part) for part in blame.path],
        "incomplete": blame.incomplete,
    }


def _account(blame: Blame) -> Json:
    shown = blame.entries
    step = max(blame.step_s, 1e-12)
    parts = [asdict(entry) | {"share": entry.seconds / step} for entry in shown.entries]
    return {"text": shown.line, "step": shown.step, "unit": shown.unit, "parts": parts}


def _culprit(culprit: Culprit, step_s: float, shape: JobShape) -> Json:
    node = shape.node_of(culprit.rank) if culprit.rank >= 0 else ""
    more = {"node": node, "what_if_s": step_s - culprit.cost_s, "share": culprit.cost_s / max(step_s, 1e-12)}
    return {key: _known(value) for key, value in asdict(culprit).items()} | more


def _rows(values: npt.NDArray[np.float64], digits: int) -> list[list[float | None]]:
    return [[_known(x) for x in row] for row in values.round(digits).tolist()]


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
