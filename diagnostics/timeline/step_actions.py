"""One step's spans by action of the plan: when each action began and ended, on each replica of the pipeline. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from holdfast.base.errors import NotFound
from holdfast.diagnostics.steps.span_table import SpanTable
from holdfast.plan.needs import dependencies
from holdfast.plan.plan import COMPUTE, RECEIVES, SECOND_ORDER, SENDS, SPANS, Action, Op, Plan

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

TOGETHER = frozenset({Op.UNSHARD, Op.REDUCE_GRAD})
"""Ops that replicas of a stage do together: their spans contain the wait for the last of them."""
TIMED = COMPUTE | SENDS | TOGETHER | SECOND_ORDER
"""Ops that keep a rank busy between its first computation and its optimizer's step."""


@dataclass(frozen=True, slots=True)
class Wire:
    """What an action needs of others, as rows."""

    local: tuple[int, ...]
    """Of the same rank."""
    messages: tuple[tuple[int, int], ...]
    """(receive, send) of each message; receive -1 where the plan has no transfers."""


@dataclass(frozen=True)
class StepActions:
    """Rows go with the plan's actions, pipeline rank by pipeline rank; columns with *lines*: the ranks that differ
    in nothing but their place in the pipeline. Seconds since `zero_ns`; NaN where there is no span."""

    plan: Plan
    step: int
    zero_ns: int
    """The start of the step's earliest computation, on the controller's clock."""
    start: Floats
    end: Floats
    ranks: Ints
    """(pipeline ranks, lines): which rank of the job that is."""
    sizes: tuple[int, ...]
    """Of the mesh's axes but pp, `axes`: the shape of a row's lines."""
    axes: tuple[str, ...]

    @cached_property
    def rows(self) -> list[tuple[int, Action]]:
        return list(self.plan.actions())

    @cached_property
    def place(self) -> dict[str, int]:
        """Row of each action, by id."""
        return {action.id: row for row, (_, action) in enumerate(self.rows)}

    @cached_property
    def wires(self) -> dict[int, Wire]:
        """What each timed action needs, besides its turn. Reading the batch is left out: it precedes the pipeline."""
        found = {}
        needs = dependencies(self.plan)
        for row, (rank, action) in enumerate(self.rows):
            if action.op not in TIMED:
                continue
            local, messages, receive = [], [], -1
            for need in needs[action.id]:
                at = self.place.get(need, -1)
                if at < 0:
                    continue
                home, other = self.rows[at]
                if other.op in RECEIVES:
                    receive = at
                elif home != rank and action.op in COMPUTE:
                    messages.append((receive, at))
                elif home == rank and other.op in TIMED:
                    local.append(at)
            found[row] = Wire(tuple(local), tuple(messages))
        return found

    def of(self, ops: frozenset[Op]) -> list[int]:
        """The rows of these ops."""
        return [row for row, (_, action) in enumerate(self.rows) if action.op in ops]


def step_actions(table: SpanTable, plan: Plan, step: int) -> StepActions:
    """From the spans of any steps, of one generation. NotFound where a step has no computation of the plan, and for
    pipeline ranks that differ in tp: their ranks have no lines.
    """
    if plan.mesh.tps:
        raise NotFound("pipeline ranks differ in tp (parallel.stage_tp): their steps cannot be predicted")
    mesh = plan.mesh
    names = [name for name, _ in mesh.axes]
    axes = tuple(name for name in names if name != "pp")
    members = np.arange(mesh.world).reshape([size for _, size in mesh.axes])
    members = np.moveaxis(members, names.index("pp"), 0) if "pp" in names else members[None]
    ranks = members.reshape(len(members), -1)
    coordinate = np.empty(mesh.world, np.int64)
    line = np.empty(mesh.world, np.int64)
    coordinate[ranks] = np.arange(len(ranks))[:, None]
    line[ranks] = np.arange(ranks.shape[1])[None, :]

    rows = list(plan.actions())
    home = np.array([rank for rank, _ in rows] or [0])
    table = table.take((table.step == step) & (table.rank < mesh.world) & (table.rank >= 0))
    row = _rows_of(table, [action for _, action in rows])
    mine = (row >= 0) & (home[row] == coordinate[table.rank])
    table, row = table.take(mine), row[mine]
    computes = np.array([action.op in COMPUTE for _, action in rows] or [False])[row]
    if not computes.any():
        raise NotFound(f"step {step} has no span of a computation of the job's {plan.schedule} plan; choose another")
    zero = int(table.start[computes].min())
    start = np.full((len(rows), ranks.shape[1]), np.nan)
    end = start.copy()
    start[row, line[table.rank]] = (table.start - zero) * 1e-9
    end[row, line[table.rank]] = (table.end - zero) * 1e-9
    return StepActions(plan, step, zero, start, end, ranks, members.shape[1:], axes)


def _rows_of(table: SpanTable, actions: list[Action]) -> Ints:
    """The row of each span's action; -1 for what is none of these. Three million spans take a second."""
    number = {name: i for i, name in enumerate(table.kinds)}
    known = [
        (number[SPANS[a.op]], a.stage, a.micro_batch, a.turn, row)
        for row, a in enumerate(actions)
        if SPANS.get(a.op) in number
    ]
    if not known or not len(table):
        return np.full(len(table), -1, np.int64)
    wanted = np.array(known, np.int64)
    spans = np.stack([table.kind, table.stage, table.micro_batch, table.turn]).astype(np.int64)
    sizes = wanted[:, :4].max(axis=0) + 3  # room for -1, and for one that is no action's
    weights = np.array([sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1])
    keys = ((wanted[:, :4] + 1) * weights).sum(axis=1)
    order = np.argsort(keys)
    mixed = ((np.clip(spans, -1, (sizes - 2)[:, None]) + 1) * weights[:, None]).sum(axis=0)
    at = np.minimum(np.searchsorted(keys[order], mixed), len(order) - 1)
    return np.where(keys[order][at] == mixed, wanted[order[at], 4], -1)
