"""Spans of a step as a trainer leaves them, from a plan and durations: an executor in virtual time.

It shares nothing with `holdfast.plan.simulate`: ranks take turns until all lists are done. A receive is posted in its
turn, and its span is the wait of the computation that uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from holdfast.diagnostics.steps.span_table import COLUMNS, SpanTable, from_columns
from holdfast.plan.needs import dependencies
from holdfast.plan.plan import COMPUTE, RECEIVES, SENDS, SPANS, Action, Op, Plan

KINDS = tuple(SPANS.values())


@dataclass
class Walk:
    """Seconds: of an action of a line, of its message, and what a rank does before it besides."""

    plan: Plan
    took: Callable[[Action], float]
    message: float = 0.0
    longer: dict[tuple[int, str], float] = field(default_factory=dict)
    """By (line, action)."""
    later: dict[tuple[int, str], float] = field(default_factory=dict)
    """By (line, action that sends): its message is that much longer under way."""
    away: dict[tuple[int, str], float] = field(default_factory=dict)
    """By (line, action): what the rank does before it that is no action."""
    lines: int = 1


Row = tuple[int, Action, float, float]
"""Rank of the job, action, start and end."""


def walk(w: Walk) -> list[Row]:
    """All spans of a step. Sums end on all lines when the last has come."""
    home = {action.id: (rank, action) for rank, action in w.plan.actions()}
    needs = dependencies(w.plan)
    end: dict[tuple[int, str], float] = {}
    free = {(rank, line): 0.0 for rank in range(len(w.plan.orders)) for line in range(w.lines)}
    at = dict.fromkeys(free, 0)
    came: dict[str, dict[int, float]] = {}
    rows: list[Row] = []

    def do(rank: int, line: int, action: Action) -> bool:
        wanted = needs[action.id] if action.op in COMPUTE | SENDS else ()
        if any((line, need) not in end for need in wanted):
            return False
        begin = free[rank, line] + w.away.get((line, action.id), 0.0)
        name = rank * w.lines + line
        if action.op in RECEIVES or action.op not in SPANS:
            end[line, action.id] = begin
            return True
        posted, receive = 0.0, None
        for need in wanted:
            where, other = home[need]
            if other.op in RECEIVES:
                posted, receive = end[line, need], other
            elif where != rank:
                there = max(end[line, need], posted) + w.message + w.later.get((line, need), 0.0)
                if receive is not None:
                    rows.append((name, receive, begin, max(begin, there)))
                begin = max(begin, there)
        ended = begin + w.took(action) + w.longer.get((line, action.id), 0.0)
        if action.op is Op.REDUCE_GRAD and w.lines > 1:
            present = came.setdefault(action.id, {})
            present.setdefault(line, begin)
            if len(present) < w.lines:
                return False
            ended = max(present.values()) + w.took(action)
        rows.append((name, action, begin, ended))
        end[line, action.id] = free[rank, line] = ended
        return True

    moving = True
    while moving:
        moving = False
        for (rank, line), place in at.items():
            order = w.plan.orders[rank]
            while place < len(order) and do(rank, line, order[place]):
                place, moving = place + 1, True
            at[rank, line] = place
    assert all(place == len(w.plan.orders[rank]) for (rank, _), place in at.items()), "the walk is stuck"
    return rows


def table_of(steps: Sequence[Iterable[Row]], first: int = 0, apart: float = 100.0) -> SpanTable:
    """Steps one after another, from step `first` on, each `apart` seconds after the one before."""
    rows = [(step + first, row) for step, one in enumerate(steps) for row in one]
    columns: dict[str, list[int]] = {name: [] for name in COLUMNS}
    for step, (rank, action, start, end) in rows:
        shift = 1_000_000_000 * round(apart) * (step + 1)
        given = {
            "rank": rank, "generation": 1, "step": step, "kind": KINDS.index(SPANS[action.op]), "stage": action.stage,
            "micro_batch": action.micro_batch, "turn": action.turn, "group": 0, "seq": -1, "cpu": 0, "bytes": 0,
            "start": shift + round(start * 1e9), "end": shift + round(end * 1e9),
        }  # fmt: skip
        for name in COLUMNS:
            columns[name].append(given[name])
    types = {"kind": np.int16, "stage": np.int16, "turn": np.int16, "group": np.int16, "start": np.int64,
             "end": np.int64, "cpu": np.int64, "bytes": np.int64}  # fmt: skip
    return from_columns(
        {name: np.array(values, types.get(name, np.int32)) for name, values in columns.items()}, KINDS, ("",)
    )
