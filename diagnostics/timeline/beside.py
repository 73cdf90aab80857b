"""A measured step beside its prediction, as data that can be sent and shown: numbers, lanes, late ranks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.base.errors import NotFound
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.steps.span_table import SpanTable
from holdfast.diagnostics.timeline.action_times import ActionTimes, action_times
from holdfast.diagnostics.timeline.lateness import Cause, Late, lateness
from holdfast.diagnostics.timeline.predicted import Prediction, predict
from holdfast.diagnostics.timeline.step_actions import TIMED, StepActions, step_actions
from holdfast.plan.plan import COMPUTE, RECEIVES, SECOND_ORDER, SENDS, SPANS, Action, Op, Plan

Json = dict[str, Any]
Bools = npt.NDArray[np.bool_]

DRAWN = COMPUTE | SECOND_ORDER | {Op.REDUCE_GRAD}
"""What lanes show: computations, an optimizer's work between them, and sums."""
SHOWN_S = 5e-5
"""A delay below this is none: texts give tenths of a millisecond."""
MOST_SHOWN = 40_000
"""Predicted spans in one answer."""
NO_PLAN = "this job has no plan to predict from: only `holdfast train` (holdfast.trainer) reports one"


def beside(
    table: SpanTable,
    shape: JobShape,
    times_from: Callable[[], SpanTable] | None = None,
    ranks: Sequence[int] = (),
) -> Json:
    """The newest whole step of a table beside its prediction; the answer has the lanes and rows of `ranks` (none: of
    all). Where no step is whole, the newest, and the text says what is missing.

    `times_from` gives the spans of the step whose medians are the times; None: this step's own. NotFound for a job
    without a plan, for spans that are missing, and for ranks that are not the job's.
    """
    plan = shape.decoded()
    if plan is None:
        raise NotFound("the job's plan is of a newer version than this program" if shape.plan else NO_PLAN)
    seen = _newest(table, plan, "this step")
    base = seen if times_from is None else _newest(times_from(), plan, "the step whose times are to be taken")
    times = action_times(base)
    found = predict(seen, times, ranks)
    rows = [(g, late) for g, one in enumerate(found) for late in lateness(seen, times, one)]
    wanted = set(ranks) or {late.rank for _, late in rows}
    shown = sorted(((g, late) for g, late in rows if late.rank in wanted), key=lambda row: row[1].rank)
    if not shown:
        raise NotFound(f"no such ranks: the job's plan has ranks 0 to {plan.mesh.world - 1}")
    world = plan.mesh.world
    left_out = world - len(rows)
    places = sorted({(g, seen.plan.mesh.coordinate(late.rank).get("pp", 0)) for g, late in shown})
    lane = {place: i for i, place in enumerate(places)}
    return {
        "job": shape.job,
        "name": shape.name,
        "step": seen.step,
        "times_of": base.step,
        "schedule": plan.schedule,
        "own_order": any(one.is_own_order for one in found),
        "zero": seen.zero_ns * 1e-9,
        **_lengths(seen, times, found),
        "incomplete": [int(rank) for rank in np.unique(seen.ranks[_missing(seen)])],
        "left_out": left_out,
        "text": _headline([late for _, late in rows], seen, found, is_own=base is seen),
        "ranks": [
            _row(late, seen) | {"lane": lane[g, seen.plan.mesh.coordinate(late.rank).get("pp", 0)]} for g, late in shown
        ],
        "times": list(_times(times)),
        **_columns(seen, found, places),
    }


def _newest(table: SpanTable, plan: Plan, which: str) -> StepActions:
    table = table.newest_generation()
    if not len(table):
        raise NotFound(f"no spans of {which}")
    newest = None
    for step in np.unique(table.step)[::-1].tolist():
        try:
            seen = step_actions(table, plan, step)
        except NotFound:
            if newest is None and step == table.step.min():
                raise
            continue
        if not _missing(seen).any():
            return seen
        newest = newest or seen
    assert newest is not None
    return newest


def _missing(seen: StepActions) -> Bools:
    """(pipeline ranks, lines): whether a computation has no span."""
    found = np.zeros(seen.ranks.shape, np.bool_)
    for row in seen.of(COMPUTE):
        found[seen.rows[row][0]] |= np.isnan(seen.start[row])
    return found


def _lengths(seen: StepActions, times: ActionTimes, found: Sequence[Prediction]) -> Json:
    """Seconds from the first computation to the last computation or sum; and the share without computation."""
    computes = seen.of(COMPUTE)
    measured = float(np.nanmax(seen.end[seen.of(DRAWN)]))
    busy = np.nansum(seen.end[computes] - seen.start[computes])
    owners = np.array([seen.rows[row][0] for row in computes])
    known = ~np.isnan(seen.start[computes])
    present = sum(int(known[owners == rank].any(axis=0).sum()) for rank in range(len(seen.plan.orders)))
    predicted = max(float(one.end[seen.of(DRAWN)].max()) for one in found)
    planned = sum(times.duration(seen.rows[row][1]) for row in computes)
    return {
        "measured_s": measured,
        "predicted_s": predicted,
        "measured_bubble": 1 - float(busy) / (present * measured),
        "predicted_bubble": 1 - planned / (len(seen.plan.orders) * predicted),
    }


def _row(late: Late, seen: StepActions) -> Json:
    if late.row < 0:
        nothing = {"late": "", "late_id": "", "own": "", "own_id": "", "cause": "", "peer": -1}
        return {"rank": late.rank, "late_s": None, "own_s": None, **nothing, "text": "none of its spans is there"}
    worst, own = seen.rows[late.row][1], seen.rows[late.own_row][1]
    return {
        "rank": late.rank,
        "late_s": late.late_s,
        "late": name_of(worst),
        "late_id": worst.id,
        "own_s": late.own_s,
        "own": name_of(own),
        "own_id": own.id,
        "cause": late.cause.value,
        "peer": late.peer,
        "text": own_text(late, own),
    }


def name_of(action: Action) -> str:
    """In words: "backward of micro-batch 3 on stage 2"."""
    kind = SPANS[action.op].replace("_", " ")
    if action.micro_batch < 0:
        return f"{kind} of stage {action.stage}"
    many = "+".join(map(str, action.micro_batches))
    which = f" part {action.turn}" if action.parts > 1 else ""
    return f"{kind} of micro-batch {many}{which} on stage {action.stage}"


def own_text(late: Late, action: Action) -> str:
    """The largest delay that began on a rank, in words."""
    what, ms = name_of(action), f"{late.own_s * 1e3:.1f} ms"
    if late.own_s < SHOWN_S:
        return "no delay began here"
    if late.part_s < late.own_s - SHOWN_S:
        part = f"{what} ended {ms} late, of which it "
        if late.cause is Cause.MESSAGE:
            return f"{part}waited {late.part_s * 1e3:.1f} ms for its message from rank {late.peer}"
        if late.cause is Cause.IDLE:
            return f"{part}had not begun for {late.part_s * 1e3:.1f} ms, although what it needs was there"
        return f"{part}took {late.part_s * 1e3:.1f} ms longer than predicted"
    if late.cause is Cause.MESSAGE:
        return f"{what} waited {ms} longer than predicted for its message from rank {late.peer}"
    if late.cause is Cause.IDLE:
        return f"{what} ended {ms} late: what it needs was there, and its rank did or awaited something else"
    return f"{what} took {ms} longer than predicted"


def _headline(rows: Sequence[Late], seen: StepActions, found: Sequence[Prediction], is_own: bool) -> str:
    """What is missing, or the rank with the largest delay of its own, and how many came late after it. `is_own`: the
    times are the step's own."""
    if _missing(seen).any():
        return _what_is_missing(seen, found)
    known = [late for late in rows if late.row >= 0]
    worst = max(known, key=lambda late: late.own_s)
    if worst.own_s < SHOWN_S:
        if not is_own:
            return "no action came later than predicted"
        return (
            "no action came later than by this step's own medians, which contain what was slow all the time: "
            "predict with the times of an earlier step"
        )
    half = worst.own_s / 2
    others = sum(late is not worst and late.late_s >= half > late.own_s for late in known)
    text = f"rank {worst.rank}: {own_text(worst, seen.rows[worst.own_row][1])}"
    return f"{text}; {others} other rank{'s' * (others != 1)} came late after it" if others else text


def _what_is_missing(seen: StepActions, found: Sequence[Prediction]) -> str:
    """The first computation, by its predicted start, that has no span."""
    lost = _missing(seen)
    rows = [row for row in seen.of(COMPUTE) if np.isnan(seen.start[row]).any()]
    first = min(rows, key=lambda row: found[0].start[row])
    coordinate, action = seen.rows[first]
    rank = seen.ranks[coordinate][np.isnan(seen.start[first])][0]
    count = int(lost.sum())
    return (
        f"step {seen.step} is incomplete, and its length says nothing: {count} rank{'s' * (count != 1)} lack spans of "
        f"computations, first rank {rank}: {name_of(action)}"
    )


def _times(times: ActionTimes) -> list[Json]:
    """The times behind the prediction."""
    rows = [(op, stage, share, took) for (op, stage, share), took in times.work.items()]
    turns: dict[tuple[Op, int], list[float]] = {}
    for (op, stage, _), took in times.together.items():
        turns.setdefault((op, stage), []).append(took)
    rows += [(op, stage, Fraction(1), float(np.median(each))) for (op, stage), each in turns.items()]
    rows += [(op, stage, Fraction(1), took) for (op, stage), took in times.messages.items()]
    return [
        {
            "kind": _time_name(op) + (f" of {share} micro-batches" if share != 1 else ""),
            "stage": stage,
            "seconds": took,
            "samples": times.samples.get((op, stage, share), 0),
        }
        for op, stage, share, took in sorted(rows, key=lambda row: (row[1], list(Op).index(row[0]), row[2]))
    ]


def _time_name(op: Op) -> str:
    """Of a message the time under way, which is named after what receives it."""
    if op in RECEIVES:
        return "message of " + ("activations" if op is Op.RECV_FORWARD else "gradients")
    return SPANS[op] + (" (handing over)" if op in SENDS else "")


def _columns(seen: StepActions, found: Sequence[Prediction], places: Sequence[tuple[int, int]]) -> Json:
    """Predicted spans, lane by lane in order of their start. Microseconds since `zero`."""
    kinds = [SPANS[op] for op in Op if op in DRAWN]
    columns: dict[str, list[int]] = {n: [] for n in ("lane", "kind", "stage", "micro_batch", "turn", "start", "took")}
    drawn = seen.of(DRAWN)
    for lane, (g, coordinate) in enumerate(places):
        one = found[g]
        mine = sorted((row for row in drawn if seen.rows[row][0] == coordinate), key=lambda row: one.start[row])
        if len(columns["lane"]) + len(mine) > MOST_SHOWN:
            break
        for row in mine:
            action = seen.rows[row][1]
            columns["lane"].append(lane)
            columns["kind"].append(kinds.index(SPANS[action.op]))
            columns["stage"].append(action.stage)
            columns["micro_batch"].append(action.micro_batch)
            columns["turn"].append(action.turn)
            columns["start"].append(round(one.start[row] * 1e6))
            columns["took"].append(round((one.end[row] - one.start[row]) * 1e6))
    return {"kinds": kinds, **columns}


assert DRAWN <= TIMED
